"""Where a cleaning begins and what makes it due, on a real log: overdue by max.compaction.lag.ms, and a checkpoint that is not believed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from lastword.storage.ledger.decisions import Decision, Kind
from lastword.streaming.cleaning.cleaner import Cleaner
from tests.clocks import at
from tests.divisions import with_map_of
from tests.pictures import DAY_MS, HOUR_MS, T0, delete_records, history, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lastword import LogDir


def test_an_overdue_partition_is_cleaned_below_the_ratio(spark: SparkSession, logs: LogDir) -> None:
    """The oldest dirty record counts, by its own time, and at exactly the lag it is not overdue yet.

    ```
                  clean              dirty                  ratio < 0.9     max.compaction.lag.ms 1 h
     partition 0  a=1 b=1 c=1 d=1    a=2 (1 h + 1 ms old)   not above       overdue: cleaned
     partition 1  a=1 b=1 c=1 d=1    a=2 (1 h old)          not above       left alone, until a millisecond later
    ```
    """
    settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.9, "max.compaction.lag.ms": "1h"}
    topic = logs.create_topic("overdue", partitions=2, config=settings)

    def closed(picture: str, *timestamps_ms: int) -> None:
        first, second = (rows(picture, partition=at, timestamp_ms=time_ms) for at, time_ms in enumerate(timestamps_ms))
        at(T0, topic).append(pa.concat_tables([first, second]))
        at(T0, topic).roll()

    closed("a=1 b=1 c=1 d=1", T0 - 2 * HOUR_MS, T0 - 2 * HOUR_MS)
    assert [one.end_offset for one in at(T0, topic).clean()] == [4, 4]
    closed("a=2", T0 - HOUR_MS - 1, T0 - HOUR_MS)
    reports = at(T0, topic).explain()
    assert [(one.eligible, one.trigger, one.obstacle) for one in reports] == [
        (True, "overdue by max.compaction.lag.ms", None),
        (False, None, "not above min.cleanable.dirty.ratio"),
    ]
    assert [one.eligible_at_ms for one in reports[1:]] == [T0 + 1]
    [receipt] = at(T0, topic).clean()
    assert (receipt.partition, receipt.trigger, dict(receipt.removed)) == (0, "overdue", {"superseded": 1})
    assert receipt.cleanable_ratio < 0.9
    assert history(topic, 0) == ["1 b=1", "2 c=1", "3 d=1", "4 a=2"]
    assert history(topic, 1) == ["0 a=1", "1 b=1", "2 c=1", "3 d=1", "4 a=2"]
    assert [one.partition for one in at(T0 + 1, topic).clean()] == [1]
    assert history(topic, 1) == history(topic, 0)


def test_a_dirty_range_that_the_map_cut_is_cleaned_to_its_end_at_the_ratio_of_every_day(spark: SparkSession, logs: LogDir) -> None:
    """The segment that a cut ends in counts as clean and as dirty, so that the rest is half of it: not above 0.5, but promised."""
    topic = logs.create_topic("cut", config={"cleanup.policy": "compact"})
    at(T0, topic).append(rows("a=1 b=1 a=2 b=2 a=3 c=∅ a=4 b=3"))
    at(T0, topic).roll()
    cleaner = Cleaner(with_map_of(3, logs.service_config))
    receipts = [one for _ in range(4) for one in cleaner.clean(topic.log, spark, clock_ms=lambda: T0)]
    done = [(one.trigger, one.end_offset, one.rounds_left) for one in receipts]
    assert done == [("dirty_ratio", 3, 2), ("cut", 6, 1), ("cut", 8, 0)]
    assert history(topic) == [f"5 c=∅ @{DAY_MS}", "6 a=4", "7 b=3"]
    [receipt] = cleaner.clean(topic.log, spark, clock_ms=lambda: T0 + DAY_MS)
    assert (receipt.trigger, history(topic)) == ("delete_horizon", ["6 a=4", "7 b=3"])


def test_a_last_stable_offset_in_mid_segment_excludes_that_whole_segment(spark: SparkSession, logs: LogDir) -> None:
    """What lies before it in the segment waits, too; the transaction's end lets all of it go.

    ```
     segment 0     0 a=1   1 a=2                 cleaned
     segment 2     2 b=1   3 b=2   4 x=1 …       open transaction from 4 on: b waits
    ```
    """
    topic = logs.create_topic("mid-segment", config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})
    at(T0, topic).append(rows("a=1 a=2"))
    at(T0, topic).roll()
    at(T0, topic).append(rows("b=1 b=2"))
    held = at(T0, topic).transaction("loader")
    at(T0, held).append(rows("x=1"))
    at(T0, topic).roll()
    [report] = at(T0, topic).explain()
    assert (report.bound, report.first_uncleanable_offset) == ("last stable offset", 4)
    [receipt] = at(T0, topic).clean()
    assert (receipt.end_offset, history(topic)) == (2, ["1 a=2", "2 b=1", "3 b=2", "4 x=1"])
    assert at(T0, topic).clean() == []
    at(T0, held).commit()
    at(T0, topic).roll()
    [receipt] = at(T0, topic).clean()
    assert (receipt.end_offset, history(topic)) == (6, ["1 a=2", "3 b=2", "4 x=1", "5 COMMIT"])


def test_a_checkpoint_outside_of_the_log_falls_back_to_the_log_start(spark: SparkSession, logs: LogDir) -> None:
    """It says too much, past the log end; or the log start has moved past it. Either way all that is closed counts as dirty.

    ```
                  closed           closed            active
                  0 a=1   1 a=2    2 b=1   3 b=2     4 c=1      log end 5
     partition 0  ^ log start 0                                 checkpoint 9     from 0: 1 a=2   3 b=2
     partition 1                   ^ checkpoint 2
                                           ^ log start 3                         from 3: 3 b=2
    ```
    """
    topic = logs.create_topic("healed", partitions=2, config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})

    def appended(**pictures: str) -> None:
        frames = [rows(picture, partition=int(name[1:])) for name, picture in pictures.items()]
        at(T0, topic).append(pa.concat_tables(frames))

    appended(p1="a=1 a=2")
    at(T0, topic).roll()
    at(T0, topic).clean()
    appended(p0="a=1 a=2", p1="b=1 b=2")
    at(T0, topic).roll()
    appended(p0="b=1 b=2")
    at(T0, topic).roll()
    appended(p0="c=1", p1="c=1")
    delete_records(at(T0, topic), {1: 3})
    said = {"first_dirty_offset": 0, "end_offset": 9, "removed": {}}
    version = topic.log.snapshot().version
    topic.log.ledger.append([Decision(kind=Kind.CLEAN, time_ms=T0, partition=0, offset=9, table_version=version, details=said)])
    assert topic.verify().problems[0] == "partition 0: the cleaner checkpoint 9 lies past the log end 5"
    assert [(one.checkpoint_reset, one.first_dirty_offset) for one in at(T0, topic).explain()] == [
        ("above the log end offset", 0),
        ("below the log start offset", 3),
    ]
    receipts = {one.partition: one for one in at(T0, topic).clean()}
    assert {at: (one.first_dirty_offset, one.end_offset) for at, one in receipts.items()} == {0: (0, 4), 1: (3, 4)}
    assert (history(topic, 0), history(topic, 1)) == (["1 a=2", "3 b=2", "4 c=1"], ["3 b=2", "4 c=1"])
    assert [(one.checkpoint_reset, one.first_dirty_offset) for one in at(T0, topic).explain()] == [(None, 4), (None, 4)]
    assert topic.verify().ok


def test_a_checkpoint_past_the_log_end_hides_no_roll(spark: SparkSession, logs: LogDir) -> None:
    """The segment that was rolled takes no more appends, and is cleaned whole at once."""
    topic = logs.create_topic("boast", config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})
    at(T0, topic).append(rows("a=1 a=2"))
    at(T0, topic).roll()
    said = {"first_dirty_offset": 0, "end_offset": 9, "removed": {}}
    version = topic.log.snapshot().version
    topic.log.ledger.append([Decision(kind=Kind.CLEAN, time_ms=T0, partition=0, offset=9, table_version=version, details=said)])
    at(T0, topic).append(rows("b=1"))
    assert [one.end_offset for one in at(T0, topic).clean()] == [2]
    assert history(topic) == ["1 a=2", "2 b=1"]
