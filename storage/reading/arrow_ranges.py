"""An offset range of a log, cut into pieces that any process can read by itself, and that survive the files they were planned with.

```
 planned at version 12     [0 … 400) a.parquet b.parquet   [400 … 731) c.parquet      tile the range: no offset twice, none left out
 cleaned, vacuumed          a.parquet is gone
 read at version 14        [0 … 400) x.parquet             what survives of the offsets that were not given out yet
```

The offsets of a piece are fixed when it is planned; its files are only the fastest way to them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from lastword.storage.files.paths import TopicPaths, filesystem_of
from lastword.storage.log.topic_log import open_log
from lastword.storage.reading.arrow_rows import BATCH_ROWS, file_ranges, range_batches
from lastword.storage.reading.view import newest_view

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from lastword.storage.reading.arrow_rows import FileRange
    from lastword.storage.reading.view import View

#: A piece is not cut further below this many bytes of files.
SPLIT_BYTES: Final = 64 * 2**20
_ATTEMPTS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeSplit:
    """The offsets `begin` to `end` (exclusive) of a partition, as a reader of `isolation` sees them, and where they were at `version`.

    `aborted` are the first offsets of the transactions whose data is not shown.
    """

    root: str
    storage_options: Mapping[str, str]
    isolation: str
    version: int
    partition: int
    begin: int
    end: int
    files: tuple[FileRange, ...]
    aborted: NDArray[np.int64]


def split_range(view: View, root: str, begin: Sequence[int], end: Sequence[int], *, split_bytes: int = SPLIT_BYTES) -> list[RangeSplit]:
    """Cut the offsets `begin` to `end` (exclusive) of all partitions into splits, in the order of partitions and offsets.

    A partition is one split, or several of about `split_bytes` when it has that much; one without a row is none.
    """
    sizes = dict(zip(view.files.path.tolist(), view.files.size_bytes.tolist(), strict=True))
    splits: list[RangeSplit] = []
    for partition in range(view.partitions):
        if begin[partition] >= end[partition]:
            continue
        groups: list[list[FileRange]] = []
        filled = 0
        for file_range in file_ranges(view, begin, end, [partition]):
            if not groups or filled >= split_bytes:
                groups.append([])
                filled = 0
            groups[-1].append(file_range)
            filled += sizes[file_range.path]
        bounds = [begin[partition], *(group[0].first_offset for group in groups[1:]), end[partition]]
        splits += [
            RangeSplit(
                root=root,
                storage_options=view.storage_options,
                isolation=view.isolation,
                version=view.version,
                partition=partition,
                begin=bounds[number],
                end=bounds[number + 1],
                files=tuple(group),
                aborted=view.aborted[partition][view.aborted[partition] < bounds[number + 1]],
            )
            for number, group in enumerate(groups)
        ]
    return splits


def read_split(split: RangeSplit, columns: Sequence[str], *, batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
    """Return the data records of a split as record batches, by offset, `offset` among the `columns`.

    When a file is not there any more, what was not given out yet is read from the newest table version.
    """
    paths = TopicPaths(split.root)
    filesystem = filesystem_of(paths.log, split.storage_options)
    todo = split
    attempts = 0
    while True:
        next_offset = todo.begin
        try:
            for batch in range_batches(filesystem, todo.files, columns, aborted={todo.partition: todo.aborted}, batch_rows=batch_rows):
                next_offset = batch.column("offset")[-1].as_py() + 1
                yield batch
        except OSError:
            attempts += 1
            view = newest_view(open_log(split.root, split.storage_options), split.isolation)
            if attempts == _ATTEMPTS or view.version <= todo.version:
                raise
            todo = _again(view, todo, next_offset)
        else:
            return


def _again(view: View, split: RangeSplit, begin: int) -> RangeSplit:
    """Return what is left of a split from `begin` on, with the files that hold it now."""
    low, high = [0] * view.partitions, [0] * view.partitions
    low[split.partition], high[split.partition] = begin, split.end
    files = file_ranges(view, low, high, [split.partition])
    return replace(split, version=view.version, begin=begin, files=tuple(files), aborted=view.aborted[split.partition])
