"""Rows of a log as Arrow data, without a JVM: an offset range, and the last word on every key.

```
 pass 1   key and offset of the dirty section   → its newest offsets, and the keys that the clean section has lost
 pass 2   all columns asked for                 → dirty rows at those offsets, clean rows of the other keys
```

Values are read once, and only in row groups that hold a row of the answer. Rows of a partition ascend by offset. Files are read by pyarrow;
Polars folds. A file that VACUUM took meanwhile means that a newer table version holds its rows: the caller asks for a new view.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from compaction.errors import UserError
from storage.arrow_view import NOTHING, THREADS, log_filesystem
from storage.schema import RECORD_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from pyarrow import fs

    from storage.arrow_view import ArrowView

    Longs = NDArray[np.int64]

#: The columns of a last word.
LATEST_COLUMNS: Final = ("partition", "key", "value", "headers", "timestamp", "offset")
_TIMESTAMP: Final = pa.timestamp("us", "UTC")
#: The Arrow types of the log's columns; Spark's own for the same columns are these too.
TYPES: Final = {
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": _TIMESTAMP,
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    "producer_id": pa.int64(),
    "producer_epoch": pa.int32(),
    "sequence": pa.int32(),
    "txn_first_offset": pa.int64(),
    "control": pa.string(),
    "appended_at": _TIMESTAMP,
    "delete_horizon": _TIMESTAMP,
}
_BATCH_ROWS: Final = 16_384
_OFFSET_BITS: Final = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRange:
    """A file that holds the offsets `first_offset` to `last_offset`, of which `begin` to `end` (exclusive) are wanted."""

    path: str
    partition: int
    first_offset: int
    last_offset: int
    begin: int
    end: int

    @property
    def whole(self) -> bool:
        """Whether everything in the file is wanted."""
        return self.begin <= self.first_offset and self.last_offset < self.end


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """Return the Arrow schema of columns of the log; raise `UserError` for a column that it does not have."""
    unknown = [name for name in columns if name not in TYPES]
    if unknown:
        message = f"unknown column {', '.join(map(repr, unknown))}: allowed are {', '.join(TYPES)}"
        raise UserError(message)
    return pa.schema([(name, TYPES[name]) for name in columns])


def file_ranges(view: ArrowView, begin: Sequence[int], end: Sequence[int], partitions: Iterable[int] | None = None) -> list[FileRange]:
    """Return the files that hold the offsets `begin` to `end` (exclusive) of a view's partitions, in order of partition and offset."""
    files = view.files
    return [
        FileRange(
            path=str(files.path[number]),
            partition=partition,
            first_offset=int(files.first_offset[number]),
            last_offset=int(files.last_offset[number]),
            begin=begin[partition],
            end=end[partition],
        )
        for number in view.chosen(begin, end, partitions).tolist()
        for partition in [int(files.partition[number])]
    ]


def range_batches(
    filesystem: fs.FileSystem,
    ranges: Iterable[FileRange],
    columns: Sequence[str],
    *,
    aborted: Sequence[Longs] | Mapping[int, Longs] | None = None,
    control: bool = False,
    keep: Callable[[pa.RecordBatch, FileRange], NDArray[np.bool_] | None] | None = None,
    needs: Sequence[str] = (),
) -> Iterator[pa.RecordBatch]:
    """Return the rows of file ranges as record batches with `columns` (of `TYPES`), in the order of the ranges and of their offsets.

    Without the data of aborted transactions (`aborted`: their first offsets by partition), without control rows unless `control`, and
    only those that `keep` says, which is given the columns of `needs` too. Raises FileNotFoundError when a file is gone.
    """
    schema = schema_of(columns)
    for one in ranges:
        gone = aborted[one.partition] if aborted is not None else NOTHING
        wanted = {*columns, *needs}
        wanted |= set() if control and not len(gone) else {"control"}
        wanted |= {"txn_first_offset"} if len(gone) else set()
        wanted |= set() if one.whole else {"offset"}
        with pq.ParquetFile(one.path, filesystem=filesystem) as file:
            groups = _row_groups(file.metadata, one)
            in_file = [name for name in file.schema_arrow.names if name in wanted]
            for batch in file.iter_batches(_BATCH_ROWS, row_groups=groups, columns=in_file or ["offset"], use_threads=False):
                mask = _seen(batch, one, gone, control=control)
                kept = keep(batch, one) if keep is not None else None
                if kept is not None:
                    mask = kept if mask is None else mask & kept
                if mask is None or mask.all():
                    yield _shaped(batch, one.partition, schema)
                elif mask.any():
                    yield _shaped(batch.filter(pa.array(mask)), one.partition, schema)


def _row_groups(metadata: pq.FileMetaData, wanted: FileRange) -> list[int]:
    """Return the row groups whose statistics do not say that no wanted offset is in them."""
    if wanted.whole:
        return list(range(metadata.num_row_groups))
    column = metadata.schema.to_arrow_schema().get_field_index("offset")
    found = []
    for number in range(metadata.num_row_groups):
        statistics = metadata.row_group(number).column(column).statistics
        if statistics is None or not statistics.has_min_max or (statistics.max >= wanted.begin and statistics.min < wanted.end):
            found.append(number)
    return found


def _seen(batch: pa.RecordBatch, wanted: FileRange, gone: Longs, *, control: bool) -> NDArray[np.bool_] | None:
    """Return which rows lie in the range, are data if only data is asked for, and were not aborted; None for all of them."""
    mask: NDArray[np.bool_] | None = None
    is_data = None
    if not control or len(gone):
        markers = batch.column("control")
        if markers.null_count < len(markers):
            is_data = markers.is_null().to_numpy(zero_copy_only=False)
            mask = None if control else is_data
    if len(gone) and batch.column("txn_first_offset").null_count < len(batch):
        first = pc.fill_null(batch.column("txn_first_offset"), -1).to_numpy()
        aborted = np.isin(first, gone)
        if is_data is not None:
            aborted &= is_data
        mask = ~aborted if mask is None else mask & ~aborted
    if not wanted.whole:
        offset = batch.column("offset").to_numpy()
        inside = (offset >= wanted.begin) & (offset < wanted.end)
        mask = inside if mask is None else mask & inside
    return mask


def _shaped(batch: pa.RecordBatch, partition: int, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch of a file with the columns of `schema`, the partition among them."""

    def column(field: pa.Field) -> pa.Array:
        if field.name == "partition":
            return pa.repeat(pa.scalar(partition, pa.int32()), batch.num_rows)
        found = batch.column(field.name)
        return found if found.type == field.type else found.cast(field.type)

    return pa.RecordBatch.from_arrays([column(field) for field in schema], schema=schema)


def records(
    view: ArrowView,
    columns: Sequence[str] = RECORD_COLUMNS,
    *,
    control: bool = False,
    begin: Sequence[int] | None = None,
    end: Sequence[int] | None = None,
    partitions: Iterable[int] | None = None,
) -> pa.Table:
    """Return the rows that a view shows from `begin` to `end` (offset vectors; default: all of them), by partition and offset."""
    schema_of(columns)
    filesystem = log_filesystem(view.location, view.storage_options)
    ranges = file_ranges(view, *_clipped(view, begin, end), partitions)

    def read(one: FileRange) -> list[pa.RecordBatch]:
        return list(range_batches(filesystem, [one], columns, aborted=view.aborted, control=control))

    return _together(ranges, read, columns)


def offsets_at(view: ArrowView, moment_ms: int) -> tuple[int, ...]:
    """Return for each partition the first offset that is seen whose timestamp is not older than a moment; its end where there is none.

    Kafka's offsetsForTimes. Of each partition the first file is read whose statistics reach that far, and only its narrow columns.
    """
    found = list(view.end)
    filesystem = log_filesystem(view.location, view.storage_options)
    files = view.files
    newest = dict(zip(files.path.tolist(), files.max_timestamp_ms.tolist(), strict=True))
    moment = pa.scalar(moment_ms * 1000, pa.int64()).cast(_TIMESTAMP)
    for partition in range(view.partitions):
        for one in file_ranges(view, view.start, view.end, [partition]):
            if newest[one.path] < moment_ms:
                continue
            batches = range_batches(filesystem, [one], ("offset", "timestamp"), aborted=view.aborted)
            young = (batch.filter(pc.greater_equal(batch.column("timestamp"), moment)) for batch in batches)
            first = next((batch.column("offset")[0].as_py() for batch in young if batch.num_rows), None)
            if first is not None:
                found[partition] = first
                break
    return tuple(found)


def latest(
    view: ArrowView,
    columns: Sequence[str] = LATEST_COLUMNS,
    *,
    partitions: Iterable[int] | None = None,
    keys: Sequence[bytes] | None = None,
) -> pa.Table:
    """Return the last record of every (partition, key) that a view shows, tombstones left out; of some partitions or keys alone.

    Identity is (partition, key), as in Kafka; keyless rows have no last word. Rows by partition and offset.
    """
    schema_of(columns)
    clean, dirty = _sections(view, partitions)
    wanted = None if keys is None else pa.array(sorted(set(keys)), pa.binary())
    by_partition = (
        _newest(view, dirty, None if wanted is None else pl.Series(wanted))
        .collect(engine="streaming")
        .partition_by("partition", as_dict=True)
    )
    winners = {int(str(part[0])): frame["offset"].sort().to_numpy() for part, frame in by_partition.items()}
    newer = {int(str(part[0])): frame.select("key") for part, frame in by_partition.items()}

    def newest_of_dirty(batch: pa.RecordBatch, one: FileRange) -> NDArray[np.bool_]:
        offset = batch.column("offset").to_numpy()
        mine = _between(winners[one.partition], int(offset[0]), int(offset[-1]))
        last = np.zeros(len(offset), dtype=np.bool_)
        last[np.searchsorted(offset, mine)] = True
        return last & _present(batch.column("value"))

    def left_of_clean(batch: pa.RecordBatch, one: FileRange) -> NDArray[np.bool_]:
        key = batch.column("key")
        last = _present(batch.column("value")) & (_present(key) if wanted is None else pc.is_in(key, wanted).to_numpy(zero_copy_only=False))
        if one.partition in newer:
            rows = pl.DataFrame({"key": pl.Series(key)}).with_row_index("row")
            last[rows.join(newer[one.partition], on="key", how="semi")["row"].to_numpy()] = False
        return last

    def read(one: FileRange) -> list[pa.RecordBatch]:
        if not view.is_dirty(one.partition, one.begin):
            return list(range_batches(filesystem, [one], columns, keep=left_of_clean, needs=("key", "value")))
        kept = range_batches(filesystem, [one], columns, aborted=view.aborted, keep=newest_of_dirty, needs=("offset", "value"))
        return list(kept)

    filesystem = log_filesystem(view.location, view.storage_options)
    won = [_narrowed(one, _between(winners.get(one.partition, NOTHING), one.first_offset, one.last_offset)) for one in dirty]
    ranges = sorted([*clean, *(one for one in won if one is not None)], key=lambda one: one.partition)
    return _together(ranges, read, columns)


def _narrowed(one: FileRange, offsets: Longs) -> FileRange | None:
    """Return a range from the first to the last of the offsets, ascending, that are wanted of it; None when there are none."""
    return replace(one, begin=int(offsets[0]), end=int(offsets[-1]) + 1) if len(offsets) else None


def _sections(view: ArrowView, partitions: Iterable[int] | None) -> tuple[list[FileRange], list[FileRange]]:
    """Return the files of the clean section and those of the dirty one, as far as they are seen."""
    chosen = None if partitions is None else list(partitions)
    clean = file_ranges(view, view.start, tuple(map(min, view.first_dirty, view.end)), chosen)
    return clean, file_ranges(view, view.first_dirty, view.end, chosen)


def _together(ranges: Sequence[FileRange], read: Callable[[FileRange], list[pa.RecordBatch]], columns: Sequence[str]) -> pa.Table:
    """Return the batches of file ranges, in their order, as one table; some files are read at once."""
    with ThreadPoolExecutor(THREADS) as pool:
        return pa.Table.from_batches(chain.from_iterable(pool.map(read, ranges)), schema_of(columns))


def _present(array: pa.Array) -> NDArray[np.bool_]:
    """Return where an array is not null, to be written to."""
    if not array.null_count:
        return np.ones(len(array), dtype=np.bool_)
    present: NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    return present


def _between(ascending: Longs, first: int, last: int) -> Longs:
    """Return the offsets from `first` to `last`, both included."""
    return ascending[np.searchsorted(ascending, first) : np.searchsorted(ascending, last, side="right")]


def _clipped(view: ArrowView, begin: Sequence[int] | None, end: Sequence[int] | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return an offset range as far as the view shows it."""
    return (
        view.start if begin is None else tuple(map(max, begin, view.start)),
        view.end if end is None else tuple(map(min, end, view.end)),
    )


def scan_records(
    view: ArrowView,
    columns: Sequence[str] = RECORD_COLUMNS,
    *,
    control: bool = False,
    begin: Sequence[int] | None = None,
    end: Sequence[int] | None = None,
    partitions: Iterable[int] | None = None,
) -> pl.LazyFrame:
    """Return the rows of `records` as a lazy frame that pushes columns and predicates down to the files."""
    schema_of(columns)
    return _scan(view, file_ranges(view, *_clipped(view, begin, end), partitions), control=control).select(columns)


def scan_latest(
    view: ArrowView,
    columns: Sequence[str] = LATEST_COLUMNS,
    *,
    partitions: Iterable[int] | None = None,
    keys: Sequence[bytes] | None = None,
) -> pl.LazyFrame:
    """Return the rows of `latest` as a lazy frame that pushes columns and predicates down to the files."""
    schema_of(columns)
    clean, dirty = _sections(view, partitions)
    wanted = None if keys is None else pl.Series(sorted(set(keys)), dtype=pl.Binary)
    newest = _newest(view, dirty, wanted)
    asked = pl.col("key").is_not_null() if wanted is None else pl.col("key").is_in(wanted.implode())
    left = _scan(view, clean).filter(asked).join(newest, on=["partition", "key"], how="anti")
    last = _scan(view, dirty).join(newest, on=["partition", "offset"], how="semi")
    return pl.concat([left, last]).filter(pl.col("value").is_not_null()).select(columns)


def _newest(view: ArrowView, dirty: Sequence[FileRange], keys: pl.Series | None) -> pl.LazyFrame:
    """Return partition, key and newest offset of the keys of the dirty section, or of `keys` alone."""
    asked = pl.col("key").is_not_null() if keys is None else pl.col("key").is_in(keys.implode())
    return _scan(view, dirty).filter(asked).group_by("partition", "key").agg(pl.col("offset").max())


def _scan(view: ArrowView, ranges: Sequence[FileRange], *, control: bool = False) -> pl.LazyFrame:
    """Return the rows of file ranges, all columns, without aborted data and without control rows unless `control`."""
    inside = [
        _scanned(view, [one.path]).filter(pl.col("offset").is_between(one.begin, one.end, closed="left")) for one in ranges if not one.whole
    ]
    rows = pl.concat([_scanned(view, [one.path for one in ranges if one.whole]), *inside])
    data = pl.col("control").is_null()
    gone = [partition << _OFFSET_BITS | first for partition, firsts in enumerate(view.aborted) for first in firsts.tolist()]
    if gone:
        transaction = pl.col("partition").cast(pl.Int64) * (1 << _OFFSET_BITS) + pl.col("txn_first_offset")
        rows = rows.filter(~(data & transaction.is_in(pl.Series(gone, dtype=pl.Int64).implode()).fill_null(value=False)))
    return rows if control else rows.filter(data)


def _scanned(view: ArrowView, paths: Sequence[str]) -> pl.LazyFrame:
    if not paths:
        return pl.LazyFrame(pl.from_arrow(schema_of(list(TYPES)).empty_table()))
    rows = pl.scan_parquet(
        [f"{view.location}/{path}" for path in paths],
        hive_partitioning=True,
        hive_schema={"partition": pl.Int32, "segment": pl.Int64, "slice": pl.Int64},
        glob=False,
        storage_options=dict(view.storage_options) or None,
    )
    return rows.select(list(TYPES))
