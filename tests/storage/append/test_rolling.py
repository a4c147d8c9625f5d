"""When a segment closes: by bytes, by record time, by the wall clock, by command (docs/semantics.md#A.5)."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from lastword.compaction.errors import UserError
from tests.clocks import at
from tests.pictures import log, rows, segments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lastword import LogDir

_HOUR = 3_600_000


def _text(count: int, size: int, letter: str = "x") -> str:
    return " ".join(f"k{number}={letter * size}" for number in range(count))


def test_a_segment_that_reached_segment_bytes_takes_no_more_appends(spark: SparkSession, logs: LogDir) -> None:
    """A file with any record is larger than 1 KiB, so each append closes its segment."""
    topic = logs.create_topic("fruit", config={"cleanup.policy": "compact", "segment.bytes": "1KiB"})
    for _ in range(3):
        topic.append(rows("grape=1 lime=2"))
    assert segments(topic) == [(0, 0, 1), (2, 2, 3), (4, 4, 5)]
    assert not topic.describe().partitions[0].active


def test_appends_share_a_segment_until_it_is_full(spark: SparkSession, logs: LogDir) -> None:
    """Small appends: slices of one segment."""
    topic = logs.create_topic("fruit", config={"cleanup.policy": "compact", "segment.bytes": "1MiB"})
    for _ in range(3):
        topic.append(rows("grape=1 lime=2"))
    (segment,) = topic.describe().partitions[0].segments
    assert (segment.label, segment.slices, segment.record_count) == (0, (0, 2, 4), 6)
    assert topic.describe().partitions[0].active


def test_a_micro_batch_larger_than_five_segments_is_split(spark: SparkSession, logs: LogDir) -> None:
    """600 records of about 300 B over 32 KiB segments: one commit, six segments, none larger than it may be, offsets without a gap."""
    topic = logs.create_topic("fruit", config={"cleanup.policy": "compact", "segment.bytes": "32KiB"})
    result = topic.append(rows(_text(600, 300)))
    found = segments(topic)
    assert len(found) >= 6
    assert found[0][1] == 0
    assert found[-1][2] == 599
    assert all(before[2] + 1 == after[0] == after[1] for before, after in pairwise(found))
    assert topic.describe().table_version == result.table_version == 1
    assert log(topic)[:2] == [f"0 k0={'x' * 300}", f"1 k1={'x' * 300}"]


def test_a_split_continues_the_active_segment_first(spark: SparkSession, logs: LogDir) -> None:
    """What fits still goes into the active segment; an append that expected no split is repeated with one."""
    topic = logs.create_topic("fruit", config={"cleanup.policy": "compact", "segment.bytes": "32KiB"})
    topic.append(rows("grape=1 lime=2"))
    topic.append(rows("grape=1 lime=2"))
    topic.append(rows(_text(200, 300)))
    found = segments(topic)
    assert found[0][0:2] == (0, 0)
    assert 4 < found[0][2] < 203
    assert len(found) == 3
    assert found[-1][2] == 203


def test_segment_ms_counts_record_time_from_the_segment_s_first_record(spark: SparkSession, logs: LogDir) -> None:
    """Equality is not older: Kafka rolls when the time waited is *more* than segment.ms."""
    topic = logs.create_topic("fruit", config={"cleanup.policy": "compact", "segment.ms": "1h"})
    start = 1_000 * _HOUR
    for moment in (start, start + _HOUR, start + _HOUR + 1):
        at(start, topic).append(rows("grape=1", timestamp_ms=moment))
    assert segments(topic) == [(0, 0, 1), (2, 2, 2)]


def test_historic_records_of_many_hours_in_one_append_are_split_by_segment_ms(spark: SparkSession, logs: LogDir) -> None:
    """No segment spans more than segment.ms of record time, and a record out of order does not open one."""
    topic = logs.create_topic("fruit", config={"cleanup.policy": "compact", "segment.ms": "1h"})
    minutes = [0, 30, 60, 61, 20, 119, 150, 400]
    given = spark.createDataFrame([(f"k{at}", "1", at * 60_000) for at in minutes], "key string, value string, timestamp bigint")
    at(1_000 * _HOUR, topic).append(given)
    assert segments(topic) == [(0, 0, 2), (3, 3, 5), (6, 6, 6), (7, 7, 7)]


def test_historic_data_does_not_roll_at_each_micro_batch(spark: SparkSession, logs: LogDir) -> None:
    """The wall clock rule looks at the append time, not at the record time."""
    topic = logs.create_topic("fruit", config={"cleanup.policy": "compact", "segment.ms": "1h"})
    now = 1_000_000 * _HOUR
    for _ in range(3):
        at(now, topic).append(rows("grape=1", timestamp_ms=5))
    assert segments(topic) == [(0, 0, 2)]


def test_an_idle_topic_s_last_segment_closes_by_the_wall_clock(spark: SparkSession, logs: LogDir) -> None:
    """Kafka needs an append for that; `max.compaction.lag.ms` caps segment.ms on a compacted topic."""
    topic = logs.create_topic("fruit", config={"cleanup.policy": "compact", "max.compaction.lag.ms": "2h"})
    start = 1_000 * _HOUR
    at(start, topic).append(rows("grape=1"))
    at(start + 2 * _HOUR, topic).append(rows("grape=2"))
    at(start + 2 * _HOUR + 1, topic).append(rows("grape=3", timestamp_ms=start))
    assert segments(topic) == [(0, 0, 1), (2, 2, 2)]


def test_roll_closes_the_active_segment_and_an_empty_one_is_left_alone(spark: SparkSession, logs: LogDir) -> None:
    """The worked example docs/semantics.md#B.4 begins so: 0..3, roll, 4."""
    topic = logs.create_topic("fruit", partitions=2, config={"cleanup.policy": "compact"})
    topic.append(rows("grape=1 lime=1 grape=∅ lime=2", partition=0))
    assert topic.roll() == {0: 4}
    assert topic.roll() == {}
    assert not topic.describe().partitions[0].active
    topic.append(rows("lime=3", partition=0))
    assert segments(topic) == [(0, 0, 3), (4, 4, 4)]
    assert topic.describe().partitions[0].active
    with pytest.raises(UserError, match="no partition 2: allowed is 0 to 1"):
        topic.roll(2)


def test_a_roll_that_a_restore_took_back_does_not_hide_a_later_one(spark: SparkSession, logs: LogDir) -> None:
    """The log end is lower then; what was rolled beyond it says nothing, before anybody has looked back at the RESTORE and after.

    ```
     append 0 1   append 2 3   roll 4   RESTORE   append 2   roll 3
     ├ segment 0 ─────────────┤         ├ 0 1 ┤   ├ 0 1 2 ────────┤ 3 …
    ```
    """
    topic = logs.create_topic("fruit", config={"cleanup.policy": "compact"})
    version = topic.append(rows("grape=1 lime=1")).table_version
    topic.append(rows("grape=2 lime=2"))
    assert topic.roll() == {0: 4}
    spark.sql(f"RESTORE delta.`{topic.log.paths.log}` TO VERSION AS OF {version}")
    topic.append(rows("kiwi=1"))
    assert topic.roll() == {0: 3}
    assert not topic.describe().partitions[0].active
    topic.append(rows("kiwi=2 kiwi=3"))
    assert segments(topic) == [(0, 0, 2), (3, 3, 4)]

    topic.log.sync_ledger_with_history()
    assert topic.log.decisions().closed_offset(0, 5) == 3
    assert topic.roll() == {0: 5}


def test_records_that_suddenly_grow_do_not_outgrow_their_segments(spark: SparkSession, logs: LogDir) -> None:
    """The estimate is one of bytes, not of records: small records, then large ones that hardly compress."""
    limit = 64 * 1024
    topic = logs.create_topic("fruit", config={"cleanup.policy": "compact", "segment.bytes": limit})
    digest = F.sha2(F.col("id").cast("string"), 512)
    small = spark.range(2_000).select(F.col("id").cast("string").alias("key"), F.substring(digest, 1, 10).alias("value"))
    large = spark.range(400).select(
        F.col("id").cast("string").alias("key"), F.concat(*[F.sha2(F.concat("id", F.lit(f"-{n}")), 512) for n in range(16)]).alias("value")
    )
    topic.append(small)
    topic.append(large)
    sizes = [segment.size_bytes for segment in topic.describe().partitions[0].segments]
    assert len(sizes) > 5
    assert max(sizes) <= 1.5 * limit, sizes
