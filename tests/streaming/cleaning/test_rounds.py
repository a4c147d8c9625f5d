"""Rounds of the cleaner: what fails is planned anew, who is urgent comes first, and nobody has the cleaner for himself."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from lastword.compaction.config.topic_config import parse_service_config
from lastword.storage.delta import crash_points
from lastword.storage.delta.crash_points import CrashPoint
from lastword.storage.ledger.decisions import Decision, Kind
from lastword.streaming.cleaning.cleaner import Cleaner
from lastword.streaming.cleaning.scheduler import MaintenanceScheduler
from tests.clocks import at
from tests.divisions import with_map_of
from tests.pictures import DAY_MS, T0, delete_records, history, latest, rows
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from lastword import LogDir, Topic
    from lastword.compaction.planning.receipt import CleaningReceipt
    from lastword.storage.log.topic_log import TopicLog

_EAGER = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}


def _dirty(spark: SparkSession, topic: Topic, *partitions: int) -> None:
    """Append two closed segments and an active one to each partition."""
    for picture in ("a=1 b=1", "a=2 c=1", "d=1"):
        for partition in partitions:
            at(T0, topic).append(rows(picture, partition=partition, timestamp_ms=T0))
        if picture != "d=1":
            at(T0, topic).roll()


def test_a_round_that_fails_after_its_swap_is_planned_anew(spark: SparkSession, logs: LogDir) -> None:
    """Its partitions are cleaned one by one, and by then the log is another one: what came of the swap is neither lost nor done twice.

    ```
     planned   segments 0 and 2, active 4       swap    slice 0      active 4       the receipt cannot be written
     one by one with the old plan: slices "0 to 2" of what is there now would have been 0 and 4, of which only 0 is read
    ```
    """
    topic = logs.create_topic("receipts-fail", partitions=2, config=_EAGER)
    _dirty(spark, topic, 0, 1)
    failures = [OSError("the disk is full")]

    def failing(point: CrashPoint) -> None:
        if point is CrashPoint.SWAP_COMMITTED and failures:
            raise failures.pop()

    with crash_points.hook(failing):
        at(T0, topic).clean()
    for partition in (0, 1):
        assert history(topic, partition) == ["1 b=1", "2 a=2", "3 c=1", "4 d=1"]
    assert sorted((one.partition, one.end_offset) for one in topic.receipts()) == [(0, 4), (1, 4)]
    assert topic.log.decisions().cleaning_failures() == {}


def test_who_looks_back_between_a_swap_and_its_receipt_does_not_make_it_two(spark: SparkSession, logs: LogDir) -> None:
    """The status page plans, and so looks back, at any time; the receipt that tells sizes is the one that is shown."""
    topic = logs.create_topic("looked-at", config=_EAGER)
    _dirty(spark, topic, 0)

    def look(point: CrashPoint) -> None:
        if point is CrashPoint.SWAP_COMMITTED:
            logs.topic("looked-at").log.sync_ledger_with_history()

    with crash_points.hook(look):
        done = at(T0, topic).clean()
    assert topic.receipts() == done


def test_no_round_begins_after_the_cleaner_was_told_to_stop(spark: SparkSession, logs: LogDir) -> None:
    """One partition a round: the swap in hand ends, and the others are left as they are."""
    topic = logs.create_topic("stopped", partitions=3, config=_EAGER)
    _dirty(spark, topic, 0, 1, 2)
    cleaner = Cleaner(with_map_of(4, logs.service_config))
    with crash_points.hook(lambda _: cleaner.stopping.set()):
        [receipt] = cleaner.clean(topic.log, spark, clock_ms=lambda: T0)
    assert (receipt.partition, history(topic, 0)) == (0, ["1 b=1", "2 a=2", "3 c=1", "4 d=1"])
    assert [len(history(topic, partition)) for partition in (1, 2)] == [5, 5]
    assert cleaner.clean(topic.log, spark, clock_ms=lambda: T0) == []


def test_a_pause_stops_the_round_and_the_other_partitions_get_another_one(spark: SparkSession, logs: LogDir) -> None:
    """The round in hand lets go of all, as it is one commit; what is not paused is planned anew at once."""
    topic = logs.create_topic("paused-meanwhile", partitions=2, config=_EAGER)
    _dirty(spark, topic, 0, 1)

    pauses, lock = list[int](), threading.Lock()

    def paused(point: CrashPoint) -> None:
        with lock:  # each partition comes here, in a thread of its own
            if point is CrashPoint.CLEANING_PLANNED and not pauses:
                pauses.append(0)
                at(T0, topic).pause(0)

    with crash_points.hook(paused):
        assert [(one.partition, one.end_offset) for one in at(T0, topic).clean()] == [(1, 4)]
    assert (len(history(topic, 0)), history(topic, 1)) == (5, ["1 b=1", "2 a=2", "3 c=1", "4 d=1"])
    at(T0, topic).resume(0)
    assert [(one.partition, one.end_offset) for one in at(T0, topic).clean()] == [(0, 4)]


@pytest.mark.parametrize(
    ("threads", "parallelism", "rounds", "tasks"),
    [(1, 3, 1, 3), (2, 3, 2, 1), (2, 8, 2, 4), (4, 1, 1, 1), (1, 0, 1, 1), (3, None, 3, None)],
)
def test_the_tasks_that_the_cleaner_may_take_are_those_of_all_its_rounds(
    threads: int, parallelism: int | None, rounds: int, tasks: int | None
) -> None:
    """`log.cleaner.threads` rounds at a time, as far as each has a task: the core that is left to appends stays theirs."""
    config, _ = parse_service_config({"log.cleaner.threads": threads})
    cleaner = Cleaner(config, parallelism=parallelism)
    assert [cleaner._slots.acquire(blocking=False) for _ in range(rounds + 1)] == [True] * rounds + [False]  # noqa: SLF001
    assert cleaner._parallelism == tasks  # noqa: SLF001


def test_a_round_that_waited_for_a_slot_is_planned_when_it_has_it(spark: SparkSession, logs: LogDir) -> None:
    """What came meanwhile is cleaned along, tombstones keep their whole delete.retention.ms, and nobody was kept from its partitions.

    ```
     T0      a=1 b=∅ | a=2          planned; another round has the only slot
     T0+1 d  … a=3 c=1 | e=1        it ends: planned again
    ```
    """
    topic = logs.create_topic("late", config=_EAGER)
    at(T0, topic).append(rows("a=1 b=∅", timestamp_ms=T0))
    at(T0, topic).roll()
    cleaner = logs.cleaner
    asked, now_ms = threading.Event(), [T0]

    def clock_ms() -> int:
        asked.set()
        return now_ms[0]

    done: list[Any] = []
    waiting = threading.Thread(target=lambda: done.extend(cleaner.clean(topic.log, spark, clock_ms=clock_ms)))
    with cleaner._slots.hold() as waited:  # noqa: SLF001
        assert not waited
        waiting.start()
        assert asked.wait(60)
        time.sleep(0.3)
        assert not cleaner.locks.is_held(topic.log)
        at(T0, topic).append(rows("a=3 c=1", timestamp_ms=T0))
        at(T0, topic).roll()
        now_ms[0] = T0 + DAY_MS
    waiting.join(60)
    assert [(one.end_offset, one.now_ms) for one in done] == [(4, T0 + DAY_MS)]
    assert history(topic) == [f"1 b=∅ @{2 * DAY_MS}", "2 a=3", "3 c=1"]


def test_a_round_that_finds_nothing_to_clean_when_it_has_its_turn_does_nothing(logs: LogDir) -> None:
    """Another process has cleaned the topic in the meantime."""
    topic = logs.create_topic("cleaned", config=_EAGER)
    at(T0, topic).append(rows("a=1 a=2", timestamp_ms=T0))
    at(T0, topic).roll()
    cleaner, asked, done = logs.cleaner, threading.Event(), list[Any]()

    def clock_ms() -> int:
        asked.set()
        return T0

    waiting = threading.Thread(target=lambda: done.append(cleaner.clean(topic.log, None, clock_ms=clock_ms)))
    with cleaner._slots.hold():  # noqa: SLF001
        waiting.start()
        assert asked.wait(60)
        time.sleep(0.3)
        [receipt] = Cleaner(cleaner.config).clean(topic.log, None, clock_ms=lambda: T0)
        version = topic.log.snapshot().version
    waiting.join(60)
    assert (done, topic.log.snapshot().version, topic.receipts()) == ([[]], version, [receipt])


def test_partitions_that_failed_before_are_left_when_the_cleaner_is_to_stop(logs: LogDir) -> None:
    """Each has a round of its own: the first ends, the second does not begin."""
    topic = logs.create_topic("failed", partitions=2, config=_EAGER)
    for partition in range(2):
        at(T0, topic).append(rows("a=1 a=2", partition=partition, timestamp_ms=T0))
        details = {"failures": 1, "reason": "poisoned", "retry_ms": None}
        topic.log.ledger.append([Decision(kind=Kind.FAILURE, time_ms=T0, partition=partition, table_version=1, details=details)])
    at(T0, topic).roll()
    with crash_points.hook(lambda _: logs.cleaner.stopping.set()):
        assert [one.partition for one in at(T0, topic).clean(force=True)] == [0]
    assert (history(topic, 0), history(topic, 1)) == (["1 a=2"], ["0 a=1", "1 a=2"])


def test_a_round_that_waits_for_its_turn_when_the_cleaner_is_to_stop_does_not_begin(spark: SparkSession, logs: LogDir) -> None:
    """The round in hand ends, no other begins."""
    topic = logs.create_topic("stopped", config=_EAGER)
    _dirty(spark, topic, 0)
    cleaner, asked, done = logs.cleaner, threading.Event(), list[Any]()

    def clock_ms() -> int:
        asked.set()
        return T0

    waiting = threading.Thread(target=lambda: done.append(cleaner.clean(topic.log, spark, clock_ms=clock_ms)))
    with cleaner._slots.hold():  # noqa: SLF001
        waiting.start()
        assert asked.wait(60)
        time.sleep(0.3)
        cleaner.stopping.set()
    waiting.join(60)
    assert (done, len(history(topic))) == ([[]], 5)


def test_a_topic_is_deleted_when_the_cleaning_in_hand_has_ended(spark: SparkSession, logs: LogDir) -> None:
    """Its swap is whole, and a topic that takes the name inherits no quarantine."""
    topic = logs.create_topic("doomed", config=_EAGER)
    _dirty(spark, topic, 0)
    begun, go_on = threading.Event(), threading.Event()

    def held(_point: CrashPoint) -> None:
        begun.set()
        assert go_on.wait(60)

    done: list[Any] = []
    cleaning_it = threading.Thread(target=lambda: done.append(at(T0, topic).clean()))
    deleting = threading.Thread(target=logs.delete_topic, args=("doomed",))
    with crash_points.hook(held):
        cleaning_it.start()
        assert begun.wait(60)
        deleting.start()
        time.sleep(0.3)
        assert logs.topics() == ["doomed"], "the cleaning is not done"
        go_on.set()
        cleaning_it.join(60)
        deleting.join(60)
    assert ([one.end_offset for one in done[0]], logs.topics()) == ([4], [])
    again = logs.create_topic("doomed", config=_EAGER)
    assert again.log.decisions().cleaning_failures() == {}
    _dirty(spark, again, 0)
    assert len(at(T0, again).clean()) == 1


@pytest.fixture
def scheduler(spark: SparkSession, logs: LogDir) -> MaintenanceScheduler:
    """Return a cleaner that has seen nothing yet over the topics of the log.dir, at T0, whose ticks are three seconds long."""
    config, _ = parse_service_config({"log.cleaner.backoff.ms": 3_000})
    return MaintenanceScheduler(
        spark=spark,
        cleaner=Cleaner(config),
        config=config,
        topics=lambda: [logs.topic(name).log for name in logs.topics()],
        clock_ms=lambda: T0,
    )


def _noted(scheduler: MaintenanceScheduler, clean: Callable[[str], list[CleaningReceipt] | None]) -> list[str]:
    """Return the names of the topics that the cleaner cleans, as it goes; `clean` does it instead unless it returns None."""
    seen: list[str] = []

    class Noted(Cleaner):
        def clean(self, log: TopicLog, *args: Any, **settings: Any) -> list[CleaningReceipt]:
            seen.append(log.name)
            receipts = clean(log.name)
            return super().clean(log, *args, **settings) if receipts is None else receipts

    scheduler.cleaner = Noted(scheduler.config)
    return seen


def test_topics_are_cleaned_in_the_order_of_their_most_urgent_partitions(
    spark: SparkSession, logs: LogDir, scheduler: MaintenanceScheduler
) -> None:
    """Overdue before dirty, dirtier before less dirty, and what is clean last: max.compaction.lag.ms is a promise, whatever the name.

    They are ordered anew at each tick, by what they are then: all were clean when the first tick ended.
    """
    logs.create_topic("a-clean", config=_EAGER)
    half = logs.create_topic("b-half", config=_EAGER)
    _dirty(spark, half, 0)
    at(T0, half).clean()
    at(T0, half).append(rows("a=3", timestamp_ms=T0))
    at(T0, half).roll()
    _dirty(spark, logs.create_topic("c-dirty", config=_EAGER), 0)
    overdue = logs.create_topic("d-overdue", config={**_EAGER, "min.cleanable.dirty.ratio": 1, "max.compaction.lag.ms": 1})
    at(T0 - 10, overdue).append(rows("a=1 a=2", timestamp_ms=T0 - 10))
    at(T0 - 10, overdue).roll()
    seen = _noted(scheduler, lambda _: None)
    scheduler.tick()
    assert seen[:4] == ["d-overdue", "c-dirty", "b-half", "a-clean"]
    assert latest(overdue) == {"a": "2"}
    assert history(overdue) == ["1 a=2"]

    _dirty(spark, half, 0)
    at(T0 - 10, overdue).append(rows("a=3 a=4", timestamp_ms=T0 - 10))
    at(T0 - 10, overdue).roll()
    seen.clear()
    scheduler.tick()
    assert seen[:2] == ["d-overdue", "b-half"]


def test_transactions_time_out_and_segments_go_while_a_round_of_another_topic_takes_long(
    spark: SparkSession, logs: LogDir, scheduler: MaintenanceScheduler
) -> None:
    """Readers of every topic wait behind an open transaction; a throttled round may take hours."""
    logs.create_topic("a-slow", config=_EAGER)
    other = logs.create_topic("b-other", config={"cleanup.policy": "delete", "retention.ms": 1_000})
    now_ms = [T0]
    scheduler.clock_ms = lambda: now_ms[0]
    ended = threading.Event()

    def clean(_name: str) -> list[CleaningReceipt]:
        at(T0, other).append(rows("old=1", timestamp_ms=T0))
        at(T0, other).roll()
        at(T0, at(T0, other).transaction("loader")).append(rows("lime=1", timestamp_ms=T0))
        now_ms[0] = T0 + DAY_MS
        until(lambda: not other.open_transactions() and "0 old=1" not in history(other))
        ended.set()
        return []

    _noted(scheduler, clean)
    scheduler.tick()
    assert ended.is_set()
    assert scheduler.counts.failures == 0


def test_a_reset_checkpoint_is_told_once(
    spark: SparkSession, logs: LogDir, scheduler: MaintenanceScheduler, caplog: pytest.LogCaptureFixture
) -> None:
    """It stays as it is until the partition is dirty enough; with delete in the policy retention does that all the time."""
    for name, policy in (("told", "compact"), ("usual", "compact,delete")):
        topic = logs.create_topic(name, config={"cleanup.policy": policy, "min.cleanable.dirty.ratio": 0.1, "retention.ms": -1})
        _dirty(spark, topic, 0)
        at(T0, topic).clean()
        delete_records(at(T0, topic), {0: -1})
        topic.alter_config({"cleanup.policy": policy, "min.cleanable.dirty.ratio": 1, "retention.ms": -1})
    caplog.clear()
    for _ in range(3):
        scheduler.tick()
    told = [one.getMessage() for one in caplog.records if "cleaner checkpoint reset" in one.getMessage()]
    assert len(told) == 1, told
    assert "topic=told" in told[0]


def test_a_topic_that_is_never_clean_has_its_turn_and_no_more(spark: SparkSession, logs: LogDir, scheduler: MaintenanceScheduler) -> None:
    """It stands in line again behind the others, and the tick ends all the same, so that there is another one."""
    busy, other = logs.create_topic("busy", config=_EAGER), logs.create_topic("other", config=_EAGER)
    _dirty(spark, busy, 0)
    _dirty(spark, other, 0)
    [receipt] = at(T0, busy).clean()
    seconds = [0.0]
    scheduler.monotonic = lambda: seconds[0]

    def clean(name: str) -> list[CleaningReceipt] | None:
        seconds[0] += 1 if name == "busy" else 0
        return [receipt] if name == "busy" else None

    seen = _noted(scheduler, clean)
    scheduler.tick()
    assert seen.count("busy") == 3, "a second each, and a tick has three"
    assert seen.index("other") < 2
    assert len(history(other)) == 4
