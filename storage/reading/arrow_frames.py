"""The last word on every key without a JVM, and lazy frames of Polars.

```
 pass 1   key and offset of the dirty section   → its newest offsets, and the keys that the clean section has lost
 pass 2   all columns asked for                 → dirty rows at those offsets, clean rows of the other keys
```

Values are read once, and only in files that hold a row of the answer. Polars folds, pyarrow reads; the lazy frames are Polars' alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from lastword.storage.files.paths import filesystem_of
from lastword.storage.files.schema import ADDED_COLUMNS, DATA_SCHEMA, OFFSET_BITS, RECORD_COLUMNS
from lastword.storage.log.aborted import NOTHING
from lastword.storage.reading.arrow_rows import TYPES, clip_range, file_ranges, range_batches, schema_of, together
from lastword.storage.reading.view import LATEST_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from lastword.storage.reading.arrow_rows import FileRange
    from lastword.storage.reading.view import View

    Longs = NDArray[np.int64]


def latest(
    view: View,
    columns: Sequence[str] = LATEST_COLUMNS,
    *,
    partitions: Iterable[int] | None = None,
    keys: Sequence[bytes] | None = None,
) -> pa.Table:
    """Return the last record of every (partition, key) that a view shows, tombstones left out; of some partitions or keys alone.

    Identity is (partition, key), as in Kafka; keyless rows have no last word. Rows by partition and offset.
    """
    ranges, read = _latest_ranges(view, columns, partitions, keys)
    return together(ranges, lambda file: list(read(file)), columns)


def latest_batches(view: View, columns: Sequence[str], partitions: Sequence[int] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `latest` as record batches, in the same order; the keys of the dirty section alone are held in memory."""
    ranges, read = _latest_ranges(view, columns, partitions, None)
    for file in ranges:
        yield from read(file)


def _latest_ranges(
    view: View, columns: Sequence[str], partitions: Iterable[int] | None, keys: Sequence[bytes] | None
) -> tuple[list[FileRange], Callable[[FileRange], Iterator[pa.RecordBatch]]]:
    """Return the file ranges that hold a row of `latest`, and what reads the rows of one of them."""
    schema_of(columns)
    clean, dirty = _sections(view, partitions)
    wanted = None if keys is None else pa.array(sorted(set(keys)), pa.binary())
    newest = _newest(view, dirty, None if wanted is None else pl.Series(wanted))
    by_partition = collect_rows(view, dirty, newest).partition_by("partition", as_dict=True)
    winners = {int(str(part[0])): frame["offset"].sort().to_numpy() for part, frame in by_partition.items()}
    newer = {int(str(part[0])): frame.select("key") for part, frame in by_partition.items()}

    def newest_of_dirty(batch: pa.RecordBatch, file: FileRange) -> NDArray[np.bool_]:
        offset = batch.column("offset").to_numpy()
        mine = _between(winners[file.partition], int(offset[0]), int(offset[-1]))
        last = np.zeros(len(offset), dtype=np.bool_)
        last[np.searchsorted(offset, mine)] = True
        return last & _present(batch.column("value"))

    def left_of_clean(batch: pa.RecordBatch, file: FileRange) -> NDArray[np.bool_]:
        key = batch.column("key")
        last = _present(batch.column("value")) & (_present(key) if wanted is None else pc.is_in(key, wanted).to_numpy(zero_copy_only=False))
        if file.partition in newer:
            rows = pl.DataFrame({"key": pl.Series(key)}).with_row_index("row")
            last[rows.join(newer[file.partition], on="key", how="semi")["row"].to_numpy()] = False
        return last

    def read(file: FileRange) -> Iterator[pa.RecordBatch]:
        if not view.is_dirty(file.partition, file.begin):
            return range_batches(filesystem, [file], columns, keep=left_of_clean, needs=("key", "value"))
        return range_batches(filesystem, [file], columns, aborted=view.aborted, keep=newest_of_dirty, needs=("offset", "value"))

    filesystem = filesystem_of(view.location, view.storage_options)
    won = [_narrow(file, _between(winners.get(file.partition, NOTHING), file.first_offset, file.last_offset)) for file in dirty]
    return sorted([*clean, *(file for file in won if file is not None)], key=lambda file: file.partition), read


def collect_rows(view: View, ranges: Sequence[FileRange], frame: pl.LazyFrame) -> pl.DataFrame:
    """Return the rows of a frame over file ranges. What Polars says of a damaged file does not name it: pyarrow's `CorruptLog` does."""
    try:
        return frame.collect(engine="streaming")
    except pl.exceptions.PolarsError:
        for _ in range_batches(filesystem_of(view.location, view.storage_options), ranges, ("key", "txn_first_offset")):
            pass
        raise


def _narrow(file: FileRange, offsets: Longs) -> FileRange | None:
    """Return a range from the first to the last of the offsets, ascending, that are wanted of it; None when there are none."""
    return replace(file, begin=int(offsets[0]), end=int(offsets[-1]) + 1) if len(offsets) else None


def _sections(view: View, partitions: Iterable[int] | None) -> tuple[list[FileRange], list[FileRange]]:
    """Return the files of the clean section and those of the dirty one, as far as they are seen."""
    chosen = None if partitions is None else list(partitions)
    clean = file_ranges(view, view.start, tuple(map(min, view.first_dirty, view.end)), chosen)
    return clean, file_ranges(view, view.first_dirty, view.end, chosen)


def _present(array: pa.Array) -> NDArray[np.bool_]:
    """Return where an array is not null, to be written to."""
    if not array.null_count:
        return np.ones(len(array), dtype=np.bool_)
    present: NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    return present


def _between(ascending: Longs, first: int, last: int) -> Longs:
    """Return the part of a list of ascending offsets that is from `first` to `last`, both included."""
    return ascending[np.searchsorted(ascending, first) : np.searchsorted(ascending, last, side="right")]


def scan_records(
    view: View,
    columns: Sequence[str] = RECORD_COLUMNS,
    *,
    control: bool = False,
    begin: Sequence[int] | None = None,
    end: Sequence[int] | None = None,
    partitions: Iterable[int] | None = None,
) -> pl.LazyFrame:
    """Return the rows of `records` as a lazy frame that pushes columns and predicates down to the files."""
    schema_of(columns)
    return _scan(view, file_ranges(view, *clip_range(view, begin, end), partitions), control=control).select(columns)


def scan_latest(
    view: View,
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


def _newest(view: View, dirty: Sequence[FileRange], keys: pl.Series | None) -> pl.LazyFrame:
    """Return partition, key and newest offset of the keys of the dirty section, or of `keys` alone."""
    asked = pl.col("key").is_not_null() if keys is None else pl.col("key").is_in(keys.implode())
    return _scan(view, dirty).filter(asked).group_by("partition", "key").agg(pl.col("offset").max())


def _scan(view: View, ranges: Sequence[FileRange], *, control: bool = False) -> pl.LazyFrame:
    """Return the rows of file ranges, all columns, without aborted data and without control rows unless `control`."""
    whole: dict[int, list[str]] = {}
    for file in ranges:
        if file.whole:
            whole.setdefault(file.partition, []).append(file.path)
    inside = [
        _scan_files(view, file.partition, [file.path]).filter(pl.col("offset").is_between(file.begin, file.end, closed="left"))
        for file in ranges
        if not file.whole
    ]
    nothing = pl.LazyFrame(pl.from_arrow(schema_of(list(TYPES)).empty_table()))
    rows = pl.concat([nothing, *(_scan_files(view, partition, paths) for partition, paths in whole.items()), *inside])
    data = pl.col("control").is_null()
    gone = [partition << OFFSET_BITS | first for partition, firsts in enumerate(view.aborted) for first in firsts.tolist()]
    if gone:
        transaction = pl.col("partition").cast(pl.Int64) * (1 << OFFSET_BITS) + pl.col("txn_first_offset")
        rows = rows.filter(~(data & transaction.is_in(pl.Series(gone, dtype=pl.Int64).implode()).fill_null(value=False)))
    return rows if control else rows.filter(data)


def _polars_options(options: Mapping[str, str]) -> dict[str, Any] | None:
    """Return options of delta-rs as Polars takes them, which wants this one as a number."""
    return {key: int(value) if key == "max_retries" else value for key, value in options.items()} or None


def _scan_files(view: View, partition: int, paths: Sequence[str]) -> pl.LazyFrame:
    """Return the rows of files of one partition, which is not read from their paths: a log.dir may lie below a folder `name=value`."""
    rows = _of_files(view, paths) if view.has_sequences else pl.concat([_of_older_file(view, path) for path in paths])
    return rows.with_columns(pl.lit(partition, pl.Int32).alias("partition")).select(list(TYPES))


def _of_files(view: View, paths: Sequence[str]) -> pl.LazyFrame:
    return pl.scan_parquet(
        [f"{view.location}/{path}" for path in paths],
        hive_partitioning=False,
        glob=False,
        storage_options=_polars_options(view.storage_options),
    )


def _of_older_file(view: View, path: str) -> pl.LazyFrame:
    """Return the rows of a file with null for the columns that it lacks: an older version wrote it, and a newer one the file beside it."""
    rows = _of_files(view, [path])
    there = rows.collect_schema().names()
    return rows.with_columns(pl.lit(None, pl.String).alias(name) for name in ADDED_COLUMNS if name not in there).select(DATA_SCHEMA.names)
