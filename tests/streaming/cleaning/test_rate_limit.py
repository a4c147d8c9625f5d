"""The limit of bytes a second within a round: it waits between row groups, hurries for those who wait, and ends when paused."""

from __future__ import annotations

import logging
import shutil
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from lastword import LogDir
from lastword.compaction.planning.rate_limiter import RateLimiter
from lastword.storage.cleaning.offset_map import PLAIN_COLUMNS
from lastword.storage.files.data_reader import row_groups
from lastword.streaming.cleaning.rate_limit import RoundSlots, SharedRate
from tests.clocks import at
from tests.pictures import T0, history

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from lastword import Topic


class Waits(threading.Event):
    """A clock in seconds that moves when somebody waits for the service to stop; `then` is done at the first of it."""

    def __init__(self) -> None:
        """Begin at 0."""
        super().__init__()
        self.now = 0.0
        self.then: Callable[[], object] = lambda: None

    def seconds(self) -> float:
        """Return what time it is."""
        return self.now

    def wait(self, timeout: float | None = None) -> bool:
        """Move the clock on."""
        self.now += timeout or 0.0
        self.then()
        return self.is_set()


@pytest.fixture
def waits() -> Waits:
    """A clock."""
    return Waits()


def test_what_is_spent_is_waited_for_by_the_next_who_spends(waits: Waits) -> None:
    """500 bytes at 100 a second: the next begins after 5 s, and the one who only waits, 2 s later."""
    limit = SharedRate(RateLimiter(100), waits, waits.seconds)
    limit.spend(500)
    assert waits.now == 0
    limit.spend(200)
    assert waits.now == pytest.approx(5)
    limit.spend(0)
    assert waits.now == pytest.approx(7)


def test_who_is_hurried_or_told_to_stop_waits_no_longer_and_is_counted(waits: Waits) -> None:
    """A purge waits for the round; then the service ends."""
    limit = SharedRate(RateLimiter(100), waits, waits.seconds)
    limit.spend(500)
    limit.spend(100, lambda: waits.now >= 1)
    assert waits.now == pytest.approx(1, abs=0.21)
    waits.then = waits.set
    limit.spend(300)
    assert waits.now < 2
    waits.clear()
    waits.then = lambda: None
    limit.spend(0)
    assert waits.now == pytest.approx(9), "all three are paid for"


def test_another_round_has_the_slot_while_one_waits(waits: Waits) -> None:
    """With one cleaner thread; a round that goes on takes its slot back."""
    slots, rate = RoundSlots(lambda: 1), SharedRate(RateLimiter(100), waits, waits.seconds)
    free: list[bool] = []

    def take() -> None:
        free.append(slots.acquire(blocking=False))
        slots.release()

    waits.then = take
    with slots.hold() as waited:
        for _ in range(2):
            with slots.lend():
                rate.spend(100)
        assert set(free) == {True}
        assert not slots.acquire(blocking=False)
    assert not waited


def test_as_many_slots_are_held_as_the_limit_says_at_the_moment() -> None:
    """A waiter has one when the limit rises, as when executors come; a lower limit takes none away, and lets no other begin."""
    limit = [1]
    slots, taken = RoundSlots(lambda: limit[0]), threading.Event()
    assert slots.acquire(blocking=False)
    assert not slots.acquire(blocking=False)

    def take() -> None:
        slots.acquire()
        taken.set()

    threading.Thread(target=take).start()
    assert not taken.wait(0.05)
    limit[0] = 2
    assert taken.wait(10)
    limit[0] = 1
    slots.release()
    assert not slots.acquire(blocking=False)
    slots.release()
    assert slots.acquire(blocking=False)


# --- a round ------------------------------------------------------------------------------------------------------------------------------


@dataclass
class Spent(SharedRate):
    """A limit, and what was spent; `then` is done before what is spent as number `at`."""

    bytes: list[int] = field(default_factory=list)
    at: int = -1
    then: Callable[[], object] = lambda: None

    def spend(self, counted_bytes: int, hurries: Callable[[], bool] = lambda: False) -> None:
        """Note it."""
        if len(self.bytes) == self.at:
            self.then()
        self.bytes.append(counted_bytes)
        super().spend(counted_bytes, hurries)


@pytest.fixture
def topic(spark: SparkSession, logs: LogDir) -> Topic:
    """Two partitions of three closed segments, 60 records each, of which every other is superseded."""
    made = logs.create_topic("paced", partitions=2, config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})
    for number in range(3):
        again = F.when(F.col("id") % 2 == 0, F.lit("")).otherwise(F.lit(f"{number}-"))
        value = F.substring(F.sha2(F.concat_ws("-", "id", F.lit(number)), 256), 1, 32)
        at(T0, made).append(spark.range(120).select(F.concat(again, "id").alias("key"), value.alias("value")))
        at(T0, made).roll()
    return made


def test_a_round_spends_what_it_reads_before_it_reads_it_and_what_it_wrote_besides(spark: SparkSession, topic: Topic, waits: Waits) -> None:
    """Both passes and the written row groups are counted one by one; the next round has nothing to do."""
    limit = Spent(RateLimiter(1), waits, waits.seconds)
    before = topic.log.snapshot()
    words = {word.partition(" ")[2] for word in history(topic)}
    receipts = topic._log_dir.cleaner.clean(topic.log, spark, clock_ms=lambda: T0, rate=limit)  # noqa: SLF001
    assert [one.partition for one in receipts] == [0], "one partition is more than a round may take"
    [receipt] = receipts
    size = int(before.files.size_bytes[before.files.partition == 0].sum())
    location, paths = topic.log.paths.log, before.files.path[before.files.partition == 0]
    groups = (group for path in paths for group in row_groups(location, {}, str(path), PLAIN_COLUMNS))
    assert receipt.indexed_bytes == sum(group.size_bytes for group in groups), "keys and offsets alone"
    assert 0.4 * size < receipt.read_bytes - receipt.indexed_bytes < size, "files less their footers, which are half of files so small"
    assert sum(limit.bytes[:3]) == receipt.indexed_bytes, "three files"
    assert sum(limit.bytes) == receipt.read_bytes + (receipt.bytes_after or 0)
    assert waits.now == pytest.approx(sum(limit.bytes[:-1]), rel=0.01), "who waits is the one who spends next"
    assert topic.log.snapshot().version == before.version + 1
    limit.spend(0)
    [other] = topic._log_dir.cleaner.clean(topic.log, spark, clock_ms=lambda: T0, rate=limit)  # noqa: SLF001
    assert other.partition == 1
    assert topic._log_dir.cleaner.clean(topic.log, spark, clock_ms=lambda: T0, rate=limit) == []  # noqa: SLF001
    assert {word.partition(" ")[2] for word in history(topic)} < words
    assert topic.verify().ok


def test_no_round_is_paced_for_so_long_that_vacuum_takes_what_it_wrote(spark: SparkSession, topic: Topic, waits: Waits) -> None:
    """Half a day, at a limit at which it would take years."""
    topic._log_dir.cleaner.clean(topic.log, spark, clock_ms=lambda: T0, rate=Spent(RateLimiter(1e-6), waits, waits.seconds))  # noqa: SLF001
    assert waits.now == pytest.approx(12 * 3600, abs=1)


def test_a_round_that_is_paused_between_its_row_groups_changes_nothing(spark: SparkSession, topic: Topic, waits: Waits) -> None:
    """What it wrote is in no commit; resumed, it is cleaned whole."""
    limit = Spent(RateLimiter(1), waits, waits.seconds, at=2, then=lambda: topic.pause(0))
    before, rows = topic.log.snapshot().version, history(topic)
    assert topic._log_dir.cleaner.clean(topic.log, spark, clock_ms=lambda: T0, rate=limit) == []  # noqa: SLF001
    assert (len(limit.bytes), topic.log.snapshot().version, history(topic)) == (3, before, rows)
    topic.resume(0)
    assert sum(one.removed_count for one in at(T0, topic).clean()) == 120
    assert topic.verify().ok


@pytest.mark.parametrize("is_deleted", [False, True], ids=["not compacted any more", "deleted"])
def test_a_round_that_nobody_wants_any_more_ends_between_its_row_groups(
    topic: Topic, waits: Waits, caplog: pytest.LogCaptureFixture, *, is_deleted: bool
) -> None:
    """After a decision of another process nothing of the round is committed, and the log says why."""
    version, root = topic.log.snapshot().version, topic.log.paths.root

    def decide() -> None:
        if is_deleted:
            shutil.rmtree(root)
        else:
            LogDir(Path(root).parent).topic("paced").alter_config({"cleanup.policy": "delete"})

    with caplog.at_level(logging.INFO):
        limit = Spent(RateLimiter(1), waits, waits.seconds, at=2, then=decide)
        assert topic._log_dir.cleaner.clean(topic.log, None, clock_ms=lambda: T0, rate=limit) == []  # noqa: SLF001
    assert ("deleted while it was being" if is_deleted else "cleanup.policy was changed while it was being cleaned") in caplog.text
    if not is_deleted:
        assert topic.log.snapshot().version == version


def test_a_round_hurries_when_its_topic_is_to_be_deleted(spark: SparkSession, logs: LogDir, topic: Topic, waits: Waits) -> None:
    """The deletion waits for the round, so the round waits for nothing any more; and finds its topic still there."""
    deleting = threading.Thread(target=lambda: logs.delete_topic("paced"))
    cleaner = topic._log_dir.cleaner  # noqa: SLF001

    def delete() -> None:
        deleting.start()
        while not cleaner.locks.is_awaited(topic.log):
            pass

    limit = Spent(RateLimiter(1), waits, waits.seconds, at=1, then=delete)
    [receipt] = cleaner.clean(topic.log, spark, clock_ms=lambda: T0, rate=limit)
    deleting.join()
    assert receipt.removed_count == 60
    assert waits.now == 0
