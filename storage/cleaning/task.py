"""Cleaning one partition: a small picklable value in, files and counts out; it commits nothing and runs anywhere.

```
 map       dirty files: key, offset            newest offset of each key (`offset_map`)
 ask       clean files: key, offset            which records are superseded (`offset_map`; files that are remembered to have none of the
                                               keys are not read: `key_hashes`); special rows: which segments change beside
 group     dirty segments, changed clean ones, small ones worth merging (pure)
 stream    the files of those groups, row group by row group: the rule (`fates`) decides, what stays is written in order
```

Memory: the map and hashes of its keys, the keys of a stretch of clean files, a row group and the writer's buffer; and for all tasks of the
process together the hashes of keys of clean files. A file whose rows are all removed is not read again.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lastword.compaction.order.source_positions import highest_by_place, highest_of_each_place
from lastword.compaction.planning.grouping import group_segments, worth_writing
from lastword.compaction.producers import Control
from lastword.compaction.rows.fates import RULE_COLUMNS, CleaningPass, Removal, fates, survivors
from lastword.storage.cleaning.key_hashes import KEY_HASHES
from lastword.storage.cleaning.offset_map import KEY_COLUMNS, PLAIN_COLUMNS, OffsetMap, Superseded, count_between
from lastword.storage.cleaning.slices import SegmentWriter
from lastword.storage.delta import crash_points
from lastword.storage.delta.crash_points import CrashPoint
from lastword.storage.files.data_reader import row_groups
from lastword.storage.files.schema import DATA_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lastword.compaction.log.segments import Segment
    from lastword.compaction.planning.rate_limiter import Spend
    from lastword.compaction.rows.fates import Fates
    from lastword.storage.cleaning.limits import CleaningLimits
    from lastword.storage.files.data_files import DataFile

#: What the rule looks at beside the key; values are read only where they are written again.
_COUNTED_COLUMNS: Final = (*RULE_COLUMNS, "key", "source_sequence")
_TOMBSTONES: Final = (Removal.EXPIRED_TOMBSTONE, Removal.PURGED_TOMBSTONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file of the partition at the table version of the plan."""

    path: str
    segment: int
    slice: int
    size_bytes: int
    record_count: int
    first_offset: int
    last_offset: int
    producer_rows: int
    empty_rows: int
    delete_horizon_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanTask:
    """What cleaning one partition takes.

    `segments` are those that the plan looks at, in order, `files` all files of the partition. The mapped range is `first_dirty_offset` to
    `end_offset`; with `starts_at_log_start` no cleaning has looked at the records before it. `places` are offsets that must stay,
    `released` those of purged tombstones. With `writes` False nothing is written: a dry run.
    """

    location: str
    storage_options: Mapping[str, str]
    codec: str
    partition: int
    segments: tuple[Segment, ...]
    files: tuple[SourceFile, ...]
    first_dirty_offset: int
    end_offset: int
    starts_at_log_start: bool
    now_ms: int
    horizon_ms: int
    places: tuple[int, ...]
    released: tuple[int, ...]
    unread_offset: int | None
    segment_bytes: int
    limits: CleaningLimits
    writes: bool

    @property
    def size_bytes(self) -> int:
        """The bytes of the segments that it looks at."""
        return sum(segment.size_bytes for segment in self.segments)

    def run(self, spend: Spend) -> Cleaned:
        """Clean the partition."""
        return _PartitionCleaning(self, spend).run()


@dataclass(slots=True, kw_only=True)
class Cleaned:
    """What a task did: `groups` of segment labels were written again as `written`; rows removed by reason and segment label."""

    partition: int
    map_entries: int = 0
    indexed_bytes: int = 0
    read_bytes: int = 0
    index_ms: int = 0
    groups: list[list[int]] = field(default_factory=list)
    removed: dict[str, Counter[int]] = field(default_factory=dict)
    emptied: int = 0
    highest_tombstones: dict[str, int] = field(default_factory=dict)
    #: The highest orders of removed tombstones, by source and partition.
    removed_positions: dict[str, str] = field(default_factory=dict)
    written: list[DataFile] = field(default_factory=list)

    def count(self, reason: str, label: int, rows: int) -> None:
        """Count rows that are removed from the segment `label`."""
        if rows:
            self.removed.setdefault(reason, Counter())[label] += rows

    def totals(self) -> dict[str, int]:
        """Return the removed rows by reason."""
        return {reason: sum(by_label.values()) for reason, by_label in sorted(self.removed.items())}


class _PartitionCleaning:
    def __init__(self, task: CleanTask, spend: Spend) -> None:
        self.task, self.spend = task, spend
        self.done = Cleaned(partition=task.partition)
        labels = {segment.label for segment in task.segments}
        self.mine = [file for file in task.files if file.segment in labels]
        self.keyless: Mapping[str, int] = {}

    def run(self) -> Cleaned:
        started = time.monotonic()
        cleaning = self._index()
        self.done.index_ms = round((time.monotonic() - started) * 1000)
        crash_points.reached(CrashPoint.OFFSET_MAP_BUILT)
        changed = {segment.label for segment in self._dirty()} | self._changed_segments(cleaning)
        groups = worth_writing(group_segments(self.task.segments, self.task.segment_bytes), changed)
        self.done.groups = [[segment.label for segment in group] for group in groups]
        crash_points.reached(CrashPoint.CLEANING_PLANNED)
        for group in groups:
            self._rewrite(group, cleaning)
        return self.done

    # --- pass 1 -------------------------------------------------------------------------------------------------------------------------

    def _dirty(self) -> list[Segment]:
        """Return the segments that hold a part of the mapped range."""
        if self.task.end_offset <= self.task.first_dirty_offset:
            return []
        return [segment for segment in self.task.segments if segment.last_offset >= self.task.first_dirty_offset]

    def _index(self) -> CleaningPass:
        """Build the offset map, ask the clean section, and look at transactions."""
        task, dirty = self.task, self._dirty()
        aborted = self._find_aborted_offsets(dirty)
        offset_map = OffsetMap(task.first_dirty_offset, task.end_offset, aborted, task.limits.min_batch_keys)
        for file in self._files_of(dirty):
            if file.last_offset >= task.first_dirty_offset and file.first_offset < task.end_offset:
                offset_map.add(file.path, self._read_keys(file))
        self.done.map_entries = len(offset_map.keys)
        self.keyless = offset_map.keyless
        limits = task.limits
        superseded = Superseded(offset_map.keys, task.first_dirty_offset, aborted, limits.min_batch_keys, limits.max_hash_bytes)
        if self.done.map_entries:
            for file in self.mine:
                if file.first_offset < task.first_dirty_offset and not superseded.lacks(self._locate(file)):
                    superseded.add(self._locate(file), self._read_keys(file))
        cleaning = CleaningPass(
            now_ms=task.now_ms,
            horizon_ms=task.horizon_ms,
            first_dirty_offset=task.first_dirty_offset,
            end_offset=max(task.end_offset, task.first_dirty_offset),
            newest=offset_map.newest(),
            superseded=superseded.offsets(),
            aborted=aborted,
            places=np.asarray(sorted(task.places), dtype=np.int64),
            released=np.asarray(sorted(task.released), dtype=np.int64),
            unread_offset=task.unread_offset,
        )
        return self._pin_transactions(cleaning)

    def _files_of(self, segments: Iterable[Segment]) -> list[SourceFile]:
        labels = {segment.label for segment in segments}
        return [file for file in self.mine if file.segment in labels]

    def _locate(self, file: SourceFile) -> str:
        return f"{self.task.location}/{file.path}"

    def _read_keys(self, file: SourceFile) -> pa.Table:
        return self._narrow(file, KEY_COLUMNS if file.producer_rows or file.empty_rows else PLAIN_COLUMNS)

    def _narrow(self, file: SourceFile, columns: Sequence[str]) -> pa.Table:
        """Return some columns of a file, for the first pass, which counts their bytes."""
        tables = []
        for group in row_groups(self.task.location, self.task.storage_options, file.path, columns):
            self.spend(group.size_bytes)
            self.done.indexed_bytes += group.size_bytes
            tables.append(group.read())
        return pa.concat_tables(tables)

    def _find_aborted_offsets(self, dirty: Sequence[Segment]) -> frozenset[tuple[int, int]]:
        """Return the transactions that were aborted: their markers may stand past the dirty range, but not before it."""
        aborted: set[tuple[int, int]] = set()
        if dirty:  # aborted data never outlives the cleaning of its range
            for file in self.task.files:
                if file.producer_rows and file.slice >= dirty[0].slices[0]:
                    rows = self._narrow(file, RULE_COLUMNS)
                    aborted |= _transactions(rows.filter(_is(rows, Control.ABORT)))
        return frozenset(aborted)

    def _pin_transactions(self, cleaning: CleaningPass) -> CleaningPass:
        """Return the pass with the transactions that have an unstamped marker, and a data row that is left after it."""
        ended: set[tuple[int, int]] = set()
        left: set[tuple[int, int]] = set()
        begin, end = self.task.segments[0].first_offset, self.task.segments[-1].slices[-1]
        for file in self.task.files:
            if not file.producer_rows or file.slice > end:
                continue
            rows = self._narrow(file, RULE_COLUMNS)
            unstamped = pc.and_(pc.or_(_is(rows, Control.COMMIT), _is(rows, Control.ABORT)), pc.is_null(rows.column("delete_horizon")))
            ended |= _transactions(rows.filter(unstamped))
            data = rows.filter(pc.and_(pc.is_null(rows.column("control")), pc.is_valid(rows.column("txn_first_offset"))))
            if len(data):
                # What lies before the segments stays until retention removes it.
                stays = (fates(data, cleaning).code == 0) | (data.column("offset").to_numpy() < begin)
                left |= _transactions(data.filter(pa.array(stays)))
        return replace(cleaning, pinned=frozenset(ended & left))

    def _changed_segments(self, cleaning: CleaningPass) -> set[int]:
        """Return the labels of the segments without a mapped range in which a row is removed, emptied or stamped."""
        changed, dirty = set[int](), {segment.label for segment in self._dirty()}
        for file in self.mine:
            if file.segment in changed or file.segment in dirty:
                continue
            if count_between(cleaning.superseded, file.first_offset, file.last_offset):
                changed.add(file.segment)
            elif self._may_change(file, cleaning):
                rows = self._narrow(file, _COUNTED_COLUMNS)
                if fates(rows, cleaning).changes:
                    changed.add(file.segment)
        return changed

    def _may_change(self, file: SourceFile, cleaning: CleaningPass) -> bool:
        """Tell from the statistics of a clean file whether it may hold rows that change beside superseded ones."""
        due = 0 <= file.delete_horizon_ms <= self.task.now_ms
        released = count_between(cleaning.released, file.first_offset, file.last_offset) > 0
        return bool(file.producer_rows or file.empty_rows or due or released or self.task.starts_at_log_start)

    # --- pass 2 -------------------------------------------------------------------------------------------------------------------------

    def _rewrite(self, group: Sequence[Segment], cleaning: CleaningPass) -> None:
        """Write what is left of a group as one segment, in one or several slices."""
        task = self.task
        slices = SegmentWriter(
            task.location,
            task.storage_options,
            partition=task.partition,
            segment=group[0].label,
            slice_=group[0].slices[0],
            codec=task.codec,
            limits=task.limits,
            spend=self.spend,
        )
        try:
            for file in self._files_of(group):
                KEY_HASHES.drop(self._locate(file))
                if self._count_whole(file, cleaning):
                    continue
                columns = DATA_SCHEMA.names if self.task.writes else _COUNTED_COLUMNS
                for chunk in row_groups(self.task.location, self.task.storage_options, file.path, columns):
                    self.spend(chunk.size_bytes)
                    self.done.read_bytes += chunk.size_bytes
                    rows = chunk.read()
                    row_fates = fates(rows, cleaning)
                    self._count(rows, row_fates, file.segment)
                    if self.task.writes and row_fates.written.any():
                        slices.write(survivors(rows, row_fates, cleaning))
            self.done.written += slices.close()
        except BaseException:
            slices.abandon()
            raise

    def _count_whole(self, file: SourceFile, cleaning: CleaningPass) -> bool:
        """Count the rows of a file of which none is left, without reading it; return False where one may be."""
        first, last = file.first_offset, file.last_offset
        if file.producer_rows or file.empty_rows or count_between(cleaning.places, first, last):
            return False
        if first >= cleaning.first_dirty_offset and last < cleaning.end_offset:
            if count_between(cleaning.newest, first, last):
                return False
        elif last >= cleaning.first_dirty_offset or count_between(cleaning.superseded, first, last) < file.record_count:
            return False
        keyless = self.keyless.get(file.path, 0)
        self.done.count(Removal.KEYLESS.value, file.segment, keyless)
        self.done.count(Removal.SUPERSEDED.value, file.segment, file.record_count - keyless)
        return True

    def _count(self, rows: pa.Table, row_fates: Fates, label: int) -> None:
        for reason, count in row_fates.counts().items():
            self.done.count(reason, label, count)
        self.done.emptied += int(row_fates.keeps_place.sum())
        for reason in _TOMBSTONES:
            gone = row_fates.removed_for(reason)
            if gone.any():
                highest = int(rows.column("offset").to_numpy()[gone].max())
                self.done.highest_tombstones[reason.value] = max(highest, self.done.highest_tombstones.get(reason.value, 0))
                removed = highest_by_place(rows.column("source_sequence").filter(pa.array(gone)).combine_chunks())
                self.done.removed_positions = highest_of_each_place(self.done.removed_positions, removed)


def _is(rows: pa.Table, control: Control) -> pa.ChunkedArray:
    return pc.fill_null(pc.equal(rows.column("control"), control.value), False)  # noqa: FBT003


def _transactions(rows: pa.Table) -> set[tuple[int, int]]:
    """Return the transactions that rows name."""
    named = rows.filter(pc.and_(pc.is_valid(rows.column("producer_id")), pc.is_valid(rows.column("txn_first_offset"))))
    return set(zip(named.column("producer_id").to_pylist(), named.column("txn_first_offset").to_pylist(), strict=True))
