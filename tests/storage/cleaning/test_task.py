"""One partition cleaned without an engine: random logs on disk, compared with the rule for one row."""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from lastword.compaction.errors import CorruptLog
from lastword.compaction.producers import Control
from lastword.storage.cleaning.limits import CLEANING_LIMITS, CleaningLimits
from lastword.storage.cleaning.task import CleanTask, SourceFile
from lastword.storage.delta.commit import commit_files, new_token
from lastword.storage.delta.history import CommitMetadata
from lastword.storage.delta.snapshot import MAINTENANCE_APP_ID
from lastword.storage.files.data_files import RowGroupLimits
from tests.compaction.logs import DrawnRow, pass_over, rows
from tests.compaction.row_rules import Row, after, fate, pinned_transactions
from tests.storage.logs import DiskLog

if TYPE_CHECKING:
    from lastword.storage.cleaning.task import Cleaned

_HISTORIES, _MANY_HISTORIES = 25, 600


class Counting:
    """A `Spend` that only counts."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.bytes = 0

    def __call__(self, counted_bytes: int) -> None:
        """Count."""
        assert counted_bytes >= 0
        self.bytes += counted_bytes


def _task(log: DiskLog, first_dirty: int, end: int, **settings: object) -> CleanTask:
    """Return the task that cleans all of a log of one partition."""
    snapshot = log.snapshot()
    names = SourceFile.__dataclass_fields__
    columns = [getattr(snapshot.files, name).tolist() for name in names]
    files = [SourceFile(**dict(zip(names, values, strict=True))) for values in zip(*columns, strict=True)]
    task = CleanTask(
        location=log.location,
        storage_options={},
        codec="zstd",
        partition=0,
        segments=tuple(snapshot.segments(0)),
        files=tuple(files),
        first_dirty_offset=first_dirty,
        end_offset=end,
        starts_at_log_start=first_dirty == 0,
        now_ms=50,
        horizon_ms=150,
        places=(),
        released=(),
        unread_offset=None,
        segment_bytes=2**30,
        limits=CLEANING_LIMITS,
        writes=True,
    )
    return replace(task, **settings)  # type: ignore[arg-type]


def _swapped(log: DiskLog, task: CleanTask, done: Cleaned) -> None:
    """Commit what a task wrote in the place of the segments of its groups."""
    snapshot = log.snapshot()
    replaced = np.isin(snapshot.files.segment, [label for group in done.groups for label in group])
    metadata = CommitMetadata(token=new_token(), kind="clean")
    commit_files(log.snapshot, snapshot, {}, family=MAINTENANCE_APP_ID, metadata=metadata, adds=done.written, removes=replaced)


class History:
    """A log of one partition that is appended to and cleaned, beside the rows that it should hold: (row, label of its segment)."""

    def __init__(self, log: DiskLog, chance: random.Random, limits: CleaningLimits) -> None:
        """Begin empty; cleanings take the `limits`, but for the size of slices, which they draw."""
        self.log, self.chance, self.limits = log, chance, limits
        self.rows: list[tuple[DrawnRow, int]] = []
        self.offset = 0
        self.open: dict[int, int] = {}
        self.checkpoint = 0

    def append(self) -> None:
        """Append a segment of a few slices: data, tombstones, records without a key, transactions and their markers, gaps."""
        chance, label, files = self.chance, None, []
        for _ in range(chance.randint(1, 3)):
            slice_ = [self._row() for _ in range(chance.randint(1, 8))]
            label = slice_[0].row.offset if label is None else label
            files.append(self.log.written(slice_, segment=label))
            self.rows += [(one, label) for one in slice_]
        self.log.append(files)

    def _row(self) -> DrawnRow:
        chance = self.chance
        offset = self.offset + chance.choice((0, 0, 0, 1))
        self.offset = offset + 1
        producer, kind = chance.randint(1, 2), chance.random()
        row = Row(offset=offset, key=chance.choice((b"a", b"b", b"c", b"d", None)), has_value=chance.random() < 0.7)
        if kind < 0.2 and producer in self.open:
            control, first = chance.choice((Control.COMMIT, Control.ABORT)), self.open.pop(producer)
            row = Row(offset=offset, has_value=False, producer_id=producer, epoch=0, txn_first_offset=first, control=control)
        elif kind < 0.5:
            first = self.open.setdefault(producer, offset)
            row = replace(row, producer_id=producer, epoch=0, sequence=offset, txn_first_offset=first)
        return DrawnRow(row=row, value=str(offset) if row.has_value else None)

    def clean(self, now_ms: int) -> None:
        """Clean up to some offset below the last stable one; compare what is left, and what is counted, with the rule for one row."""
        chance, bare = self.chance, [one.row for one, _ in self.rows]
        stable = min([self.offset, *self.open.values()])
        end = max(self.checkpoint, chance.choice((stable, stable, chance.randint(0, stable))))
        places = {bare[-1].offset, *chance.sample([row.offset for row in bare], min(2, len(bare)))}
        released = {row.offset for row in bare if row.is_tombstone and chance.random() < 0.1}
        unread = chance.choice((None, None, chance.randint(0, self.offset)))
        cleaning = pass_over(bare, first_dirty=self.checkpoint, end=end, now_ms=now_ms, delete_retention_ms=100, places=places)
        if end == self.checkpoint:  # nothing is mapped: aborted data never outlives the cleaning of its range
            cleaning = replace(cleaning, aborted=frozenset())
        cleaning = replace(cleaning, released=released, unread_offset=unread)
        cleaning = replace(cleaning, pinned=pinned_transactions(bare, cleaning))
        segments = tuple(one for one in self.log.snapshot().segments(0) if one.first_offset < end)
        if not segments:
            return
        task = _task(
            self.log,
            self.checkpoint,
            end,
            segments=segments,
            now_ms=now_ms,
            horizon_ms=now_ms + 100,
            places=tuple(places),
            released=tuple(released),
            unread_offset=unread,
            limits=replace(self.limits, max_slice_bytes=chance.choice((1, 2**27))),
            segment_bytes=chance.choice((1, 4_000, 2**30)),
        )
        preview = replace(task, writes=False).run(Counting())
        spent = Counting()
        done = task.run(spent)
        groups = {label: group[0] for group in done.groups for label in group}
        removed, emptied, left = Counter[str](), 0, []
        for one, label in self.rows:
            found, remains = fate(one.row, cleaning), after(one.row, cleaning)
            if label not in groups:
                looked_at = label in {segment.label for segment in segments}
                assert not looked_at or found.removal is None, "a segment in which a row is removed is written again"
                left.append((one, label))
                continue
            if found.removal is not None:
                removed[found.removal.value] += 1
                emptied += found.keeps_place
            if remains is not None:
                left.append((DrawnRow(row=remains, value=one.value if remains.has_value else None), groups[label]))
        assert (done.totals(), done.emptied) == (dict(sorted(removed.items())), emptied)
        assert spent.bytes == done.indexed_bytes + done.read_bytes + sum(one.size_bytes for one in done.written)
        assert (preview.groups, preview.totals(), preview.written) == (done.groups, done.totals(), [])
        if done.groups:
            _swapped(self.log, task, done)
        self.rows, self.checkpoint = left, end
        assert [str(row) for row in self.log.rows()] == [str(row) for row, _ in left]
        files = self.log.snapshot().files
        assert sorted(set(files.segment.tolist())) == sorted({label for _, label in left})


@pytest.mark.long
@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=[pytest.mark.torture] if seed >= _HISTORIES else []) for seed in range(_MANY_HISTORIES)],
)
def test_a_random_history_is_cleaned_as_the_rule_for_one_row_says(tmp_path: Path, seed: int) -> None:
    """With any sizes of batches, row groups and slices; the receipt counts what was removed, as a dry run does."""
    chance = random.Random(seed)
    batch_keys, group_rows = chance.choice((1, 3, 2**20)), chance.choice((1, 2, 2**17))
    limits = CleaningLimits(min_batch_keys=batch_keys, row_groups=RowGroupLimits(max_rows=group_rows))
    history = History(DiskLog.create(tmp_path / "log"), chance, limits)
    now_ms = 0
    for _ in range(chance.randint(2, 5)):
        for _ in range(chance.randint(0 if history.rows else 1, 3)):
            history.append()
        now_ms += chance.choice((10, 60, 150))
        history.clean(now_ms)


def test_a_file_of_which_no_row_is_left_is_not_read_again(tmp_path: Path) -> None:
    """All rows of the first and third of four slices are superseded."""
    log = DiskLog.create(tmp_path / "log")
    for picture in ("0:a=1 1:b=1", "2:c=1 3:a=2", "4:b=2 5:a=3", "6:a=4 7:b=4"):
        log.append([log.written(rows(picture), segment=0)])
    task = _task(log, 0, 8)
    harmed = replace(task, writes=False).run(Counting())
    assert (harmed.totals(), harmed.map_entries) == ({"superseded": 5}, 3)
    _swapped(log, task, task.run(Counting()))
    assert [str(row) for row in log.rows()] == ["2:c=1", "6:a=4", "7:b=4"]


def test_a_key_that_comes_again_is_found_however_large_the_clean_section_is(tmp_path: Path) -> None:
    """Only the segments that hold it are written again."""
    log = DiskLog.create(tmp_path / "log")
    for number in range(10):
        first = 10 * number
        log.append([log.written(rows(" ".join(f"{first + n}:k{first + n}=1" for n in range(10))), segment=first)])
    log.append([log.written(rows("100:k35=2 101:new=1"), segment=100)])
    task = _task(log, 100, 102, segment_bytes=1)
    done = task.run(Counting())
    assert (done.groups, done.totals(), done.map_entries) == ([[30], [100]], {"superseded": 1}, 2)
    assert sum(one.record_count for one in done.written) == 11


def test_a_clean_file_is_not_read_again_until_one_of_its_keys_comes(tmp_path: Path) -> None:
    """The first cleaning reads the keys of ten clean files, the second those of the dirty file alone, the third one clean file more."""
    log = DiskLog.create(tmp_path / "log")
    for number in range(10):
        first = 10 * number
        log.append([log.written(rows(" ".join(f"{first + n}:k{first + n}=1" for n in range(10))), segment=first)])
    read = []
    for number, key in enumerate(("new", "newer", "k35", "k35")):
        offset = 100 + number
        log.append([log.written(rows(f"{offset}:{key}=2"), segment=offset)])
        task = _task(log, offset, offset + 1, segment_bytes=1)
        done = task.run(Counting())
        read.append(done.indexed_bytes)
        assert done.totals() == ({"superseded": 1} if key == "k35" else {})
        _swapped(log, task, done)
    of_ten, none, of_one, of_two = read
    assert none < of_one < of_ten / 3
    assert none < of_two < of_ten / 3


def test_damage_of_a_clean_file_is_noticed_when_it_is_read(tmp_path: Path) -> None:
    """A cleaning that needs none of its keys succeeds; a cleaning that needs a key of it names the file."""
    log = DiskLog.create(tmp_path / "log")
    log.append([log.written(rows("0:a=1 1:b=1"), segment=0)])
    log.append([log.written(rows("2:c=1"), segment=2)])
    path = log.snapshot().files.path[0]
    assert _task(log, 2, 3, segment_bytes=1).run(Counting()).totals() == {}
    os.truncate(Path(log.location, path), 10)
    log.append([log.written(rows("3:d=1"), segment=3)])
    assert _task(log, 3, 4, segment_bytes=1).run(Counting()).totals() == {}
    log.append([log.written(rows("4:b=2"), segment=4)])
    with pytest.raises(CorruptLog, match=re.escape(path)):
        _task(log, 4, 5, segment_bytes=1).run(Counting())
