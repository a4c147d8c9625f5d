"""When maintenance of a topic is due again, and by which settings."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

import lastword.streaming.cleaning.scheduler
from lastword import LogDir
from lastword.compaction.config.topic_config import parse_service_config
from lastword.compaction.errors import CommitStateUnknown, UnknownTopic
from lastword.compaction.planning.planner import LEAST_URGENT
from lastword.storage.ledger.ledger import Ledger
from lastword.storage.log.limits import UPKEEP_LIMITS, UpkeepLimits
from lastword.storage.log.topic_log import TopicLog
from lastword.streaming.cleaning.cleaner import Cleaner
from lastword.streaming.cleaning.scheduler import MaintenanceScheduler, _Due
from tests.clocks import at
from tests.other_processes import in_another_process
from tests.pictures import DAY_MS, HOUR_MS, T0, history, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lastword import Topic
    from lastword.compaction.readers import Reader
    from lastword.storage.ledger.decisions import Decisions


def _tending(
    spark: SparkSession, topic: Topic, *, limits: UpkeepLimits = UPKEEP_LIMITS, cleaner: type[Cleaner] = Cleaner
) -> MaintenanceScheduler:
    """Return a cleaner that has seen nothing yet, at T0, for one topic, of which it keeps what it knows from tick to tick."""
    config, _ = parse_service_config({"log.initial.task.delay.ms": 0, "log.cleaner.backoff.ms": 3_000})
    return MaintenanceScheduler(
        spark=spark,
        cleaner=cleaner(config),
        config=config,
        topics=lambda: [topic.log],
        clock_ms=lambda: T0,
        limits=limits,
    )


def test_what_is_due_waits_its_interval_and_no_longer_when_the_clock_is_put_back() -> None:
    """A service may start a day ahead of the clock that it is given later."""
    due = _Due(delay_ms=30, upkeep_ms=1_030)
    assert [due.take_if_due("upkeep_ms", now_ms, 100) for now_ms in (1_000, 1_029, 1_030, 1_031, 1_129, 1_130)] == [
        False,
        False,
        True,
        False,
        False,
        True,
    ]
    assert [due.take_if_due("upkeep_ms", now_ms, 100) for now_ms in (500, 599, 600)] == [True, False, True]


def _without_spark(now_ms: int = T0) -> MaintenanceScheduler:
    config, _ = parse_service_config({})
    unused: Any = None
    return MaintenanceScheduler(spark=unused, cleaner=Cleaner(config), config=config, topics=list, clock_ms=lambda: now_ms)


def test_the_upkeep_of_many_topics_is_spread_over_the_hour() -> None:
    """Each has a minute of its own, the same after every start, and none before log.initial.task.delay.ms; retention begins at once."""
    found = [_without_spark()._first_due(f"topic-{number}") for number in range(600)]  # noqa: SLF001
    by_minute = Counter((due.upkeep_ms - T0) // 60_000 for due in found)
    assert set(by_minute) == set(range(60))
    assert max(by_minute.values()) < 30
    assert {due.retention_ms - T0 for due in found} == {30_000}
    assert all(30_000 <= due.upkeep_ms - T0 < HOUR_MS for due in found)
    assert not any(due.take_if_due("upkeep_ms", T0 + 29_999, HOUR_MS) for due in found)


def test_a_restart_repeats_no_full_vacuum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger knows when the last one was, whichever process did it; one that failed is due again, and so is one of the future."""
    topic, full = LogDir(str(tmp_path)).create_topic("fruit"), list[bool]()

    def vacuumed(*_: Any, orphans: bool, **__: Any) -> None:
        full.append(orphans)
        if len(full) == 1:
            message = "No space left on device"
            raise OSError(28, message)

    monkeypatch.setattr(lastword.streaming.cleaning.scheduler, "vacuum", vacuumed)
    with pytest.raises(OSError, match="No space left"):
        _without_spark()._vacuum(topic.log, T0)  # noqa: SLF001
    for now_ms in (T0 + HOUR_MS, T0 + 2 * HOUR_MS, T0 + 24 * HOUR_MS, T0 + 25 * HOUR_MS, T0 + 26 * HOUR_MS, T0):
        _without_spark()._vacuum(LogDir(str(tmp_path)).topic("fruit").log, now_ms)  # noqa: SLF001  another process
    assert full == [True, True, False, False, True, False, True]
    assert topic.log.decisions().upkeep_ms == {"orphans": T0}


def test_time_outs_press_and_so_does_retention_where_no_cleaning_comes_before_it() -> None:
    """What presses is done while a round takes its time."""
    due = _Due(delay_ms=0, hanging_ms=50, retention_ms=20)
    assert [due.is_pressing(now_ms) for now_ms in (19, 20, 49, 50)] == [False, False, False, True]
    due.compacted = False
    assert [due.is_pressing(now_ms) for now_ms in (19, 20, 49, 50)] == [False, True, True, True]


def _slices(topic: Topic) -> list[int]:
    """Return of how many slices each segment of partition 0 is."""
    return [len(one.slices) for one in topic.describe().partitions[0].segments]


def test_a_backlog_of_small_files_is_joined_within_a_tick_as_far_as_the_tick_is_long(spark: SparkSession, logs: LogDir) -> None:
    """A merge takes what fills a segment; the next one waits for log.retention.check.interval.ms only when there was nothing to join.

    ```
     slices of segments   2 2     first merge   1 2     second   1 1     third   nothing to do
    ```
    """
    topic = logs.create_topic("backlog", config={"cleanup.policy": "delete", "retention.ms": -1})
    picture = rows("a=1", timestamp_ms=T0)
    for _ in range(2):
        for _ in range(2):
            at(T0, topic).append(picture)
        at(T0, topic).roll()
    topic.alter_config({"cleanup.policy": "delete", "retention.ms": -1, "segment.bytes": "1KiB"})
    assert _slices(topic) == [2, 2]
    merged, seconds, always = list[int](), [0.0], [False]

    class Counted(Cleaner):
        def merge(self, *args: Any, **settings: Any) -> int:
            merged.append(1 if always[0] else super().merge(*args, **settings))
            seconds[0] += 1
            return merged[-1]

    scheduler = _tending(spark, topic, cleaner=Counted)
    scheduler.monotonic = lambda: seconds[0]
    scheduler.tick()
    scheduler.tick()
    assert (merged, _slices(topic)) == ([1, 1, 0], [1, 1])

    always[0] = True
    scheduler.clock_ms = lambda: T0 + scheduler.config.log_retention_check_interval_ms
    scheduler.tick()
    assert merged[3:] == [1, 1, 1], "a second each, and a tick has three"
    scheduler.tick()
    assert len(merged) == 9, "it goes on in the next one"
    assert scheduler.counts.failures == 0


def test_retention_that_finds_a_topic_busy_stays_due(spark: SparkSession, logs: LogDir) -> None:
    """Merges of a backlog follow one another; each time they left no partition for retention, which then waited for its next interval."""
    topic = logs.create_topic("backlog", config={"cleanup.policy": "delete", "retention.ms": 1})
    at(T0 - DAY_MS, topic).append(rows("a=1"))
    at(T0 - DAY_MS, topic).roll()
    scheduler = _tending(spark, topic)
    with scheduler.cleaner.locks.hold(topic.log):  # a merge
        scheduler.tick()
    assert history(topic) == ["0 a=1"]
    scheduler.tick()
    assert history(topic) == []


def test_a_step_of_the_upkeep_that_fails_keeps_no_other_from_being_taken(spark: SparkSession, logs: LogDir) -> None:
    """It is logged and counted, and due again in an hour; ledger and producers do not grow because files cannot be listed."""
    logs.create_topic("upkeep", config={"cleanup.policy": "compact"})
    taken = []

    class Looked(Ledger):
        def is_long(self, least_files: int) -> bool:
            taken.append("ledger")
            return super().is_long(least_files)

    class Damaged(TopicLog):
        def __init__(self, *given: Any, **settings: Any) -> None:
            super().__init__(*given, **settings)
            self.ledger = Looked(self.paths.ledger, self.name, self.storage_options)

        def readers(self, decisions: Decisions | None = None) -> dict[str, Reader]:
            if decisions is None:  # asked by VACUUM
                message = "no such file"
                raise OSError(message)
            return super().readers(decisions)

    scheduler = _tending(spark, in_another_process(logs, "upkeep", kind=Damaged))
    scheduler.tick()
    scheduler.clock_ms = lambda: T0 + HOUR_MS
    scheduler.tick()
    assert (taken, scheduler.counts.failures, scheduler.counts.last_failure) == (["ledger"], 1, "no such file")


def test_a_changed_setting_of_a_topic_takes_effect_at_the_next_tick(spark: SparkSession, logs: LogDir) -> None:
    """A lower ratio cleans, a policy with delete deletes; the service is not started again."""
    topic = logs.create_topic("changed", config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 1})
    at(T0, topic).append(rows("a=1 a=2 b=1", timestamp_ms=T0 - DAY_MS))
    at(T0, topic).roll()
    scheduler = _tending(spark, topic)
    scheduler.tick()
    assert history(topic) == ["0 a=1", "1 a=2", "2 b=1"]
    topic.alter_config({"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})
    scheduler.tick()
    assert history(topic) == ["1 a=2", "2 b=1"]
    topic.alter_config({"cleanup.policy": "compact,delete", "retention.ms": "1h"})
    scheduler.tick()
    assert history(topic) == []


def _checkpoints(topic: Topic) -> list[int]:
    """Return the versions at which the Delta log of a topic has a checkpoint."""
    return sorted(int(one.name.split(".")[0]) for one in Path(topic.log.paths.log, "_delta_log").glob("*.checkpoint.parquet"))


def test_the_cleaner_writes_the_checkpoints_of_the_delta_log_so_that_hardly_an_append_does(spark: SparkSession, logs: LogDir) -> None:
    """A service that starts takes the newest one that it finds, whoever wrote it; so does one that tends a topic of the same name anew."""
    topic = logs.create_topic("appended", config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 1})
    scheduler = _tending(spark, topic, limits=UpkeepLimits(checkpoint_commits=3))
    found = []
    for _ in range(7):
        at(T0, topic).append(rows("a=1"))
        scheduler.tick()
        found.append(_checkpoints(topic))
    assert found == [[], [], [3], [3], [3], [3, 6], [3, 6]]

    later = _tending(spark, topic, limits=UpkeepLimits(checkpoint_commits=3))
    later.tick()
    assert _checkpoints(topic) == [3, 6]
    later._due[topic.log.paths.root].checkpoint_version = 100  # noqa: SLF001  of a topic that was deleted
    for _ in range(2):
        at(T0, topic).append(rows("a=1"))
    later.tick()
    assert _checkpoints(topic) == [3, 6, 9]
    assert DeltaTable(topic.log.paths.log).version() == 9
    assert scheduler.counts.failures + later.counts.failures == 0


def test_who_deletes_a_topic_waits_for_the_checkpoint_in_hand(spark: SparkSession, logs: LogDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would be written into the folder of the next topic of that name. One that another thread works on gets its own later."""
    topic = logs.create_topic("deleted", config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 1})
    at(T0, topic).append(rows("a=1"))
    scheduler, found = _tending(spark, topic, limits=UpkeepLimits(checkpoint_commits=1)), list[bool]()

    def written(log: TopicLog, *, limits: UpkeepLimits) -> int:
        assert limits.checkpoint_commits == 1
        found.append(scheduler.cleaner.locks.is_held(log))
        return log.snapshot().version

    monkeypatch.setattr(lastword.streaming.cleaning.scheduler, "checkpoint", written)
    with scheduler.cleaner.locks.reserve(topic.log):
        scheduler.tick()
    assert found == []
    scheduler.tick()
    assert found == [True]
    assert scheduler.counts.failures == 0


def test_a_checkpoint_that_cannot_be_written_is_a_failure_and_tried_again_after_as_many_commits(
    spark: SparkSession, logs: LogDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full for a while; appends go on."""
    topic = logs.create_topic("disk-full", config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 1})
    scheduler, failures = _tending(spark, topic, limits=UpkeepLimits(checkpoint_commits=2)), []

    def without_space(_table: DeltaTable) -> None:
        message = "no space left on device"
        raise OSError(message)

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_checkpoint", without_space)
        for _ in range(3):
            at(T0, topic).append(rows("a=1"))
            scheduler.tick()
            failures.append(scheduler.counts.failures)
    assert failures == [0, 1, 1]
    assert str(scheduler.counts.last_failure).endswith(": no space left on device")
    at(T0, topic).append(rows("a=1"))
    scheduler.tick()
    assert (_checkpoints(topic), scheduler.counts.failures) == ([4], 1)


def test_a_topic_that_was_deleted_meanwhile_is_no_failure_and_an_unknown_commit_ends_the_tick(tmp_path: Path) -> None:
    """Going on after a commit of unknown outcome could do it twice; other errors do not stop other topics."""
    log, scheduler = LogDir(str(tmp_path)).create_topic("fruit").log, _without_spark()

    def raising(error: Exception) -> bool:
        def work(_: TopicLog) -> bool:
            raise error

        return scheduler._run_for(log, work)  # noqa: SLF001

    assert raising(UnknownTopic("topic fruit does not exist")) is False
    assert scheduler.counts.failures == 0
    assert raising(ValueError("made up")) is False
    assert (scheduler.counts.failures, scheduler.counts.last_failure) == (1, "made up")
    with pytest.raises(CommitStateUnknown, match="nobody knows"):
        raising(CommitStateUnknown("nobody knows"))
    assert (scheduler.counts.failures, scheduler.counts.last_failure) == (2, "nobody knows")


def test_a_topic_that_cannot_be_planned_comes_last(tmp_path: Path) -> None:
    """Its error is reported when its turn comes."""
    topic = LogDir(str(tmp_path)).create_topic("fruit", config={"cleanup.policy": "compact"})
    shutil.rmtree(Path(topic.log.paths.log) / "_delta_log")
    scheduler = _without_spark()
    assert scheduler._urgency(LogDir(str(tmp_path)).topic("fruit").log) == LEAST_URGENT  # noqa: SLF001

    class Unknown(Cleaner):
        def plan(self, *_: Any, **__: Any) -> Any:
            message = "nobody knows"
            raise CommitStateUnknown(message)

    scheduler.cleaner = Unknown(scheduler.config)
    with pytest.raises(CommitStateUnknown):
        scheduler._urgency(topic.log)  # noqa: SLF001


def test_a_tick_that_is_stopped_as_it_begins_touches_no_topic(spark: SparkSession, logs: LogDir) -> None:
    """It neither plans nor cleans."""
    topic = logs.create_topic("fruit", config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})
    at(T0, topic).append(rows("a=1 a=2"))
    at(T0, topic).roll()
    scheduler = _tending(spark, topic)

    def listed() -> list[TopicLog]:
        scheduler.stop.set()
        return [topic.log]

    scheduler.topics = listed
    scheduler.tick()
    assert (history(topic), scheduler.counts.failures) == (["0 a=1", "1 a=2"], 0)
    scheduler.stop.clear()
    scheduler.topics = lambda: [topic.log]
    scheduler.tick()
    assert history(topic) == ["1 a=2"]
