"""A few records of a log for people to look at, with at most so many bytes read: from an offset on, or the newest.

```
 row groups of a partition    [0 … 89] [90 … 169] [170 … 201]
 20 records from 85 on         read     read                     forwards until there are 20
 20 newest                                         read          backwards until there are 20
```

Row groups are read whole, and counted by what they take in memory. One that does not fit into what is left of the budget is not read:
the page is then cut, and says so. Records of open and aborted transactions are shown, with their status.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow.parquet as pq

from lastword.storage.files.data_reader import named_errors
from lastword.storage.files.paths import filesystem_of
from lastword.storage.reading.arrow_rows import file_ranges, range_batches

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from pyarrow import fs

    from lastword.storage.reading.arrow_rows import FileRange
    from lastword.storage.reading.view import View

_COLUMNS: Final = ("partition", "offset", "timestamp", "key", "value", "headers", "txn_first_offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLimits:
    """Limits of the records and bytes that a page of records reads."""

    max_records: int = 100
    #: Of row groups, in memory, before anything is chosen from them.
    max_bytes: int = 64 * 2**20
    #: Partitions whose newest records are looked for at once.
    max_partitions: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRecord:
    """A record as people see it; `status` is `committed`, `aborted`, `open` or `waiting` (behind an open transaction)."""

    partition: int
    offset: int
    timestamp: datetime
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPage:
    """Some records. `is_cut`: there were more to look at than the limits allow to read."""

    records: tuple[PageRecord, ...]
    read_bytes: int
    is_cut: bool


@dataclass(slots=True)
class _Budget:
    """Bytes that may still be read, and whether something was left out for want of them."""

    left_bytes: int
    read_bytes: int = 0
    is_cut: bool = field(default=False)

    def take(self, size_bytes: int) -> bool:
        """Return whether so many bytes may be read, and count them if so."""
        if size_bytes > self.left_bytes:
            self.is_cut = True
            return False
        self.left_bytes -= size_bytes
        self.read_bytes += size_bytes
        return True


def read_page_from(view: View, everything: View, partition: int, offset: int, *, count: int, limits: PageLimits) -> RecordPage:
    """Return `count` records of a partition from an offset on, in offset order.

    `view` is that of `read_committed`, `everything` that of `read_uncommitted` at the same version. Raises FileNotFoundError when a file
    is gone, as other reads of a view.
    """
    begin = [offset if number == partition else 0 for number in range(view.partitions)]
    filesystem, budget = filesystem_of(view.location, view.storage_options), _Budget(limits.max_bytes)
    rows = list[dict[str, Any]]()
    for file in file_ranges(everything, begin, everything.end, [partition]):
        for group in _row_groups(filesystem, file, backwards=False):
            if len(rows) >= count or not budget.take(group.size_bytes):
                break
            rows += _read_rows(filesystem, group.range)
        if len(rows) >= count or budget.is_cut:
            break
    return _page(view, rows[:count], budget)


def read_newest_page(view: View, everything: View, partitions: Sequence[int] | None, *, count: int, limits: PageLimits) -> RecordPage:
    """Return the `count` newest records of some partitions or of all, those with the latest timestamp first; arguments as above."""
    filesystem, budget = filesystem_of(view.location, view.storage_options), _Budget(limits.max_bytes)
    by_partition: dict[int, list[FileRange]] = {}
    for file in file_ranges(everything, everything.start, everything.end, partitions):
        by_partition.setdefault(file.partition, []).append(file)
    appended = dict(zip(view.files.path.tolist(), view.files.appended_at_ms.tolist(), strict=True))
    chosen = sorted(by_partition, key=lambda partition: -appended[by_partition[partition][-1].path])
    budget.is_cut = len(chosen) > limits.max_partitions
    rows = list[dict[str, Any]]()
    for partition in chosen[: limits.max_partitions]:
        rows += _read_newest(filesystem, by_partition[partition], count, budget)
    rows.sort(key=lambda row: (row["timestamp"], row["partition"], row["offset"]), reverse=True)
    return _page(view, rows[:count], budget)


def _read_newest(filesystem: fs.FileSystem, files: Sequence[FileRange], count: int, budget: _Budget) -> list[dict[str, Any]]:
    """Return the newest rows of one partition: at most `count`, from the last row group back."""
    rows = list[dict[str, Any]]()
    for file in reversed(files):
        for group in _row_groups(filesystem, file, backwards=True):
            if len(rows) >= count or not budget.take(group.size_bytes):
                return rows
            rows = [*_read_rows(filesystem, group.range), *rows][-count:]
    return rows


@dataclass(frozen=True, slots=True)
class _Group:
    """A row group of a data file: the offsets to be read from it, and its size in memory."""

    range: FileRange
    size_bytes: int


def _row_groups(filesystem: fs.FileSystem, file: FileRange, *, backwards: bool) -> Iterator[_Group]:
    """Yield the row groups of a file that reach into the wanted range; a file without statistics of them is one."""
    with named_errors(file.path, may_be_gone=True), pq.ParquetFile(file.path, filesystem=filesystem) as opened:
        metadata = opened.metadata
        column = opened.schema_arrow.get_field_index("offset")
        groups = list[_Group]()
        for number in range(metadata.num_row_groups):
            row_group = metadata.row_group(number)
            statistics = row_group.column(column).statistics
            if statistics is None or not statistics.has_min_max:
                groups = [_Group(file, sum(metadata.row_group(each).total_byte_size for each in range(metadata.num_row_groups)))]
                break
            begin, end = max(file.begin, int(statistics.min)), min(file.end, int(statistics.max) + 1)
            if begin < end:
                groups.append(_Group(replace(file, begin=begin, end=end), row_group.total_byte_size))
    yield from reversed(groups) if backwards else groups


def _read_rows(filesystem: fs.FileSystem, wanted: FileRange) -> list[dict[str, Any]]:
    return [row for batch in range_batches(filesystem, [wanted], _COLUMNS) for row in batch.to_pylist()]


def _page(view: View, rows: Sequence[dict[str, Any]], budget: _Budget) -> RecordPage:
    """Return rows as records with their status."""
    opened: set[tuple[int, int]] = set()
    if view.end != view.state.log_end_offsets:
        opened = {place for transaction in view.state.open_transactions() for place in transaction.first_offsets.items()}
    return RecordPage(
        records=tuple(
            PageRecord(
                partition=row["partition"],
                offset=row["offset"],
                timestamp=row["timestamp"],
                key=row["key"],
                value=row["value"],
                headers=tuple((header["key"], header["value"]) for header in row["headers"] or ()),
                status=_status(view, row, opened),
            )
            for row in rows
        ),
        read_bytes=budget.read_bytes,
        is_cut=budget.is_cut,
    )


def _status(view: View, row: dict[str, Any], opened: set[tuple[int, int]]) -> str:
    partition, first = row["partition"], row["txn_first_offset"]
    if first is not None and np.isin(first, view.aborted[partition]):
        return "aborted"
    if (partition, first) in opened:
        return "open"
    return "waiting" if row["offset"] >= view.end[partition] else "committed"
