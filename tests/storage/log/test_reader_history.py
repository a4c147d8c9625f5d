"""What a reader is told of a log's history: tombstones that went, and RESTOREs, whether the ledger knows of them already or not."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from delta import DeltaTable as SparkDeltaTable
from deltalake import DeltaTable

from lastword import LogDir
from lastword.compaction.log.restores import Restore
from lastword.compaction.read_positions import RemovedTombstone, TakenBack
from lastword.storage.delta import crash_points
from lastword.storage.ledger.decisions import Decision, Kind
from lastword.storage.ledger.ledger import Ledger
from lastword.storage.log.reader_history import HistoryWatch, _taken_back
from tests.clocks import at
from tests.compaction.logs import rows as drawn
from tests.pictures import DAY_MS, T0, rows
from tests.storage.logs import DiskLog

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from lastword import Topic
    from lastword.storage.delta.crash_points import CrashPoint


def _topic_with_a_tombstone(spark: SparkSession, logs: LogDir) -> Topic:
    """Make grape=1, grape=∅, lime=1 in a closed segment, then lime=2 in the next: 0 to 2, 3."""
    topic = logs.create_topic("fruit", config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01})
    at(T0, topic).append(rows("grape=1 grape=∅ lime=1"))
    at(T0, topic).roll()
    at(T0, topic).append(rows("lime=2"))
    return topic


def test_a_removed_tombstone_is_told_from_the_cleaning_that_removed_it(spark: SparkSession, logs: LogDir) -> None:
    """The first cleaning stamps the tombstone, the one after its horizon removes it; a reader that began later is told nothing."""
    topic = _topic_with_a_tombstone(spark, logs)
    began = topic.log.snapshot().version
    at(T0, topic).clean(force=True)
    at(T0 + 2 * DAY_MS, topic).clean()
    table, decisions = DeltaTable(topic.log.paths.log), topic.log.decisions()

    removed = [RemovedTombstone(table_version=table.version(), partition=0, offset=1)]
    assert list(HistoryWatch().look(table, decisions, began).tombstones) == removed
    assert HistoryWatch().look(table, decisions, table.version()).tombstones == ()
    assert HistoryWatch().look(table, decisions, 0).restores == ()


def test_a_receipt_that_a_crash_kept_from_the_ledger_is_read_from_the_swap(spark: SparkSession, logs: LogDir) -> None:
    """The swap's own metadata says what was removed."""
    topic = _topic_with_a_tombstone(spark, logs)
    at(T0, topic).clean(force=True)

    def crash(point: CrashPoint) -> None:
        if point is crash_points.CrashPoint.SWAP_COMMITTED:
            raise KeyboardInterrupt

    with crash_points.hook(crash), pytest.raises(KeyboardInterrupt):
        at(T0 + 2 * DAY_MS, topic).clean()
    table = DeltaTable(topic.log.paths.log)

    removed = HistoryWatch().look(table, topic.log.decisions(), 0).tombstones
    assert removed == (RemovedTombstone(table_version=table.version(), partition=0, offset=1),)


def test_a_restore_is_told_with_the_log_end_that_it_left_and_brings_tombstones_back(spark: SparkSession, logs: LogDir) -> None:
    """The ledger need not know of it; a watch that looked before it is told too."""
    topic = _topic_with_a_tombstone(spark, logs)
    at(T0, topic).clean(force=True)
    before = topic.log.snapshot().version
    at(T0 + 2 * DAY_MS, topic).clean()
    at(T0, topic).append(rows("kiwi=1 kiwi=2"))
    watch = HistoryWatch()
    table = DeltaTable(topic.log.paths.log)
    assert [one.offset for one in watch.look(table, topic.log.decisions(), 0).tombstones] == [1]

    SparkDeltaTable.forPath(spark, topic.log.paths.log).restoreToVersion(before)
    table.update_incremental()
    taken_back = [TakenBack(table_version=table.version(), restored_version=before, log_end_offsets=(4,))]

    for told in (watch.look(table, topic.log.decisions(), 0), HistoryWatch().look(table, topic.log.decisions(), 0)):
        assert (list(told.tombstones), list(told.restores)) == ([], taken_back)
    topic.log.sync_ledger_with_history()
    history = HistoryWatch().look(table, topic.log.decisions(), 0)
    assert (list(history.tombstones), list(history.restores)) == ([], taken_back)


def test_the_ledger_keeps_old_receipts_that_removed_a_higher_tombstone_than_every_later_one(tmp_path: Path) -> None:
    """Months later a slow reader is told the same; receipts that tell nobody anything have gone."""
    ledger = Ledger(str(tmp_path / "ledger"), "fruit")
    ledger.create([Decision(kind=Kind.CREATE, time_ms=T0, details={"topic_id": "id", "partitions": 2})])

    def receipt(version: int, partition: int, removed: int | None) -> Decision:
        details = {"highest_removed_tombstone": removed}
        return Decision(kind=Kind.CLEAN, time_ms=T0, partition=partition, offset=version, table_version=version, details=details)

    for version, partition, removed in ((1, 0, 5), (2, 0, 9), (3, 0, 7), (4, 0, None), (5, 1, 3), (6, 0, None)):
        ledger.append([receipt(version, partition, removed)])

    assert ledger.compact(before_ms=T0 + 1, least_files=1) == 2
    assert [row.table_version for row in ledger.rows() if row.kind is Kind.CLEAN] == [2, 3, 5, 6]


def test_what_a_restore_left_is_not_known_when_its_commits_are_gone(tmp_path: Path) -> None:
    """The Delta log keeps its history for some days; that there was a RESTORE is in the ledger."""
    log = DiskLog.create(tmp_path / "log")
    for offset in range(3):
        log.append([log.written(drawn(f"{offset}:a=1"), segment=0)])
    log.table().restore(1)
    log.append([log.written(drawn("1:b=1"), segment=0)])
    restore = Restore(version=4, restored_version=1)
    assert _taken_back(restore, log.table(), 1, {}) == TakenBack(table_version=4, restored_version=1, log_end_offsets=(1,))
    log.table().create_checkpoint()
    for version in range(5):
        (tmp_path / "log/_delta_log" / f"{version:020}.json").unlink()
    assert _taken_back(restore, log.table(), 1, {}) == TakenBack(table_version=4, restored_version=1, log_end_offsets=None)


def test_receipts_that_the_ledger_lost_are_read_from_the_swaps_also_before_one_that_it_has(tmp_path: Path) -> None:
    """A later cleaning went on from where an earlier one ended, so its checkpoint is that of its receipt."""
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01}
    topic = at(T0, LogDir(tmp_path).create_topic("fruit", config=config))
    for number in range(2):
        topic.append(rows(f"a={number} a={number}"))
        topic.roll()
        topic.clean(force=True)
    told = [(one.table_version, one.first_dirty_offset, one.end_offset) for one in topic.receipts()]
    assert [(first, end) for _, first, end in told] == [(0, 2), (2, 4)]
    kept, cleanings = list[Decision](), 0
    for row in topic.log.ledger.rows():
        cleanings += row.kind is Kind.CLEAN
        if row.kind is not Kind.LOOKED and not (row.kind is Kind.CLEAN and cleanings == 1):
            kept.append(row)
    shutil.rmtree(topic.log.paths.ledger)
    Ledger(topic.log.paths.ledger, "fruit").create(kept)
    again = at(T0, LogDir(tmp_path).topic("fruit"))
    again.log.sync_ledger_with_history()
    assert {(one.table_version, one.first_dirty_offset, one.end_offset) for one in again.receipts()} == set(told)
    assert again.log.decisions().cleaner_checkpoint(0) == 4
