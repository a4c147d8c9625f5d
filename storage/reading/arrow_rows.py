"""Rows of a log as Arrow data, without a JVM: an offset range, file by file.

```
 wanted [3 … 9)     a.parquet 0–4      b.parquet 5–8       c.parquet 9–12
 read               rows 3, 4          all of it           not opened
```

Only the columns that are asked for, the offsets and the row groups that reach into the range are read. Rows of a partition ascend by
offset; a file whose rows do not was rewritten by another writer, and is an error. A file that VACUUM took meanwhile means that a newer
table version holds its rows: the caller asks for a new view.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lastword.compaction.errors import UserError
from lastword.compaction.rows.input_columns import HEADERS, TIMESTAMP
from lastword.storage.files.data_reader import check_order, named_errors
from lastword.storage.files.paths import filesystem_of
from lastword.storage.files.schema import ADDED_COLUMNS, RECORD_COLUMNS
from lastword.storage.log.aborted import NOTHING, THREADS
from lastword.storage.progress import work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from pyarrow import fs

    from lastword.storage.reading.view import View

    Longs = NDArray[np.int64]

#: The Arrow types of the log's columns; Spark's own for the same columns are these too.
TYPES: Final = {
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": TIMESTAMP,
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": HEADERS,
    "producer_id": pa.int64(),
    "producer_epoch": pa.int32(),
    "sequence": pa.int32(),
    "txn_first_offset": pa.int64(),
    "control": pa.string(),
    "appended_at": TIMESTAMP,
    "delete_horizon": TIMESTAMP,
    "source_sequence": pa.string(),
}
#: The number of rows that are read at a time.
BATCH_ROWS: Final = 16_384


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


def file_ranges(view: View, begin: Sequence[int], end: Sequence[int], partitions: Iterable[int] | None = None) -> list[FileRange]:
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
    batch_rows: int = BATCH_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Return the rows of file ranges as record batches with `columns` (of `TYPES`), in the order of the ranges and of their offsets.

    Without the data of aborted transactions (`aborted`: their first offsets by partition), without control rows unless `control`, and
    only those that `keep` says, which is given the columns of `needs` too. Raises FileNotFoundError when a file is gone, and `CorruptLog`
    when one cannot be read or its rows are not in offset order.
    """
    schema = schema_of(columns)
    for file_range in ranges:
        gone = aborted[file_range.partition] if aborted is not None else NOTHING
        wanted = {*columns, *needs, "offset"}
        wanted |= set() if control and not len(gone) else {"control"}
        wanted |= {"txn_first_offset"} if len(gone) else set()
        last = -1
        with named_errors(file_range.path, may_be_gone=True), pq.ParquetFile(file_range.path, filesystem=filesystem) as file:
            groups = _row_groups(file.metadata, file_range)
            in_file = [name for name in file.schema_arrow.names if name in wanted]
            for read in file.iter_batches(batch_rows, row_groups=groups, columns=in_file, use_threads=False):
                batch = _with_log_types(read)
                last = check_order(batch.column("offset").to_numpy(), last, file_range.path)
                mask = _visible_rows(batch, file_range, gone, control=control)
                kept = keep(batch, file_range) if keep is not None else None
                if kept is not None:
                    mask = kept if mask is None else mask & kept
                if mask is None or mask.all():
                    yield _select_columns(batch, file_range.partition, schema)
                elif mask.any():
                    yield _select_columns(batch.filter(pa.array(mask)), file_range.partition, schema)


def _row_groups(metadata: pq.FileMetaData, wanted: FileRange) -> list[int]:
    """Return the row groups that may contain a wanted offset; one without statistics is among them."""
    if wanted.whole:
        return list(range(metadata.num_row_groups))
    column = metadata.schema.to_arrow_schema().get_field_index("offset")
    numbers = []
    for number in range(metadata.num_row_groups):
        statistics = metadata.row_group(number).column(column).statistics
        if statistics is None or not statistics.has_min_max or (statistics.max >= wanted.begin and statistics.min < wanted.end):
            numbers.append(number)
    return numbers


def _visible_rows(batch: pa.RecordBatch, wanted: FileRange, gone: Longs, *, control: bool) -> NDArray[np.bool_] | None:
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


def _with_log_types(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with the types of the log: another writer may have rewritten the file with views in the place of strings."""
    wanted = pa.schema([(name, TYPES[name]) for name in batch.schema.names])
    return batch if batch.schema.types == wanted.types else batch.cast(wanted, safe=False)


def _select_columns(batch: pa.RecordBatch, partition: int, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch of a file with the columns of `schema`, the partition among them."""

    def column(field: pa.Field) -> pa.Array:
        if field.name == "partition":
            return pa.repeat(pa.scalar(partition, pa.int32()), batch.num_rows)
        if field.name in ADDED_COLUMNS and field.name not in batch.schema.names:
            return pa.nulls(batch.num_rows, field.type)
        return batch.column(field.name)

    return pa.RecordBatch.from_arrays([column(field) for field in schema], schema=schema)


def records(
    view: View,
    columns: Sequence[str] = RECORD_COLUMNS,
    *,
    control: bool = False,
    begin: Sequence[int] | None = None,
    end: Sequence[int] | None = None,
    partitions: Iterable[int] | None = None,
) -> pa.Table:
    """Return the rows that a view shows from `begin` to `end` (offset vectors; default: all of them), by partition and offset."""
    schema_of(columns)
    filesystem = filesystem_of(view.location, view.storage_options)
    ranges = file_ranges(view, *clip_range(view, begin, end), partitions)

    def read(file_range: FileRange) -> list[pa.RecordBatch]:
        return list(range_batches(filesystem, [file_range], columns, aborted=view.aborted, control=control))

    return together(ranges, read, columns)


def record_batches(
    view: View,
    columns: Sequence[str] = RECORD_COLUMNS,
    *,
    control: bool = False,
    begin: Sequence[int] | None = None,
    end: Sequence[int] | None = None,
    partitions: Iterable[int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `records` as record batches, file by file: a file is opened when its rows are asked for."""
    ranges = file_ranges(view, *clip_range(view, begin, end), partitions)
    filesystem = filesystem_of(view.location, view.storage_options)
    yield from range_batches(filesystem, ranges, columns, aborted=view.aborted, control=control)


def offsets_at(view: View, moment_ms: int, partitions: Sequence[int] | None = None) -> tuple[int, ...]:
    """Return for each partition the first offset that is seen whose timestamp is not older than a moment; its end where there is none.

    Kafka's offsetsForTimes. It is looked for in some `partitions`, or in all. Of each partition the first file is read whose statistics
    reach that far, and only its narrow columns.
    """
    offsets = list(view.end)
    filesystem = filesystem_of(view.location, view.storage_options)
    files = view.files
    newest = dict(zip(files.path.tolist(), files.max_timestamp_ms.tolist(), strict=True))
    moment = pa.scalar(moment_ms * 1000, pa.int64()).cast(TIMESTAMP)
    for partition in range(view.partitions) if partitions is None else partitions:
        for file_range in file_ranges(view, view.start, view.end, [partition]):
            if newest[file_range.path] < moment_ms:
                continue
            batches = range_batches(filesystem, [file_range], ("offset", "timestamp"), aborted=view.aborted)
            young = (batch.filter(pc.greater_equal(batch.column("timestamp"), moment)) for batch in batches)
            first = next((batch.column("offset")[0].as_py() for batch in young if batch.num_rows), None)
            if first is not None:
                offsets[partition] = first
                break
    return tuple(offsets)


def together(ranges: Sequence[FileRange], read: Callable[[FileRange], list[pa.RecordBatch]], columns: Sequence[str]) -> pa.Table:
    """Return the batches of file ranges, in their order, as one table; some files are read at once."""

    def read_range(file: FileRange) -> list[pa.RecordBatch]:
        batches = read(file)
        advance(1)
        return batches

    with ThreadPoolExecutor(THREADS) as pool, work("read", total=len(ranges), unit="files") as advance:
        return pa.Table.from_batches(chain.from_iterable(pool.map(read_range, ranges)), schema_of(columns))


def clip_range(view: View, begin: Sequence[int] | None, end: Sequence[int] | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return an offset range as far as the view shows it."""
    return (
        view.start if begin is None else tuple(map(max, begin, view.start)),
        view.end if end is None else tuple(map(min, end, view.end)),
    )
