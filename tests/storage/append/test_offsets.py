"""Rows that are counted, and what makes an append add their sizes up instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from lastword.compaction.errors import InvalidRecords
from lastword.storage.append import append, offsets
from lastword.storage.append.append import AppendStats, MicroBatch, append_rows
from lastword.storage.append.offsets import Numbering
from tests.pictures import T0, log, rows, segments

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lastword import LogDir, Topic

_COMPACT = {"cleanup.policy": "compact"}


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What a record might take in each append that counted its rows, whether it was committed or not."""
    seen: list[float] = []
    original = Numbering.counted

    def noted(self: Numbering, rows: DataFrame, *, most_bytes: float) -> DataFrame:
        seen.append(most_bytes)
        return original(self, rows, most_bytes=most_bytes)

    monkeypatch.setattr(Numbering, "counted", noted)
    monkeypatch.setattr(append, "SMALL_ROWS", 4)  # so that a handful of rows gets a task for each partition
    return seen


def _numbers(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(0, count, 1, 3).select(F.col("id").cast("string").alias("key"), F.col("id").cast("string").alias("value"))


def _in_order(topic: Topic) -> list[bool]:
    """Tell of each partition whether its offsets ascend without a gap from 0 on and the numbers in its values ascend, append by append."""
    found = []
    for partition in range(len(topic.describe().partitions)):
        records = topic.records().where(F.col("partition") == partition).orderBy("offset").collect()
        values = [(one.appended_at, int(one.value)) for one in records if bytes(one.key).isdigit()]
        found.append([one.offset for one in records] == list(range(len(records))) and values == sorted(values))
    return found


def test_rows_are_counted_partition_by_partition_in_the_order_of_the_input(spark: SparkSession, logs: LogDir, counted: list[float]) -> None:
    """Three partitions, from the second append on; offsets, order, segment and slices as if their sizes had been added up."""
    topic = logs.create_topic("counted", partitions=3, config=_COMPACT)
    for number in range(3):
        topic.append(_numbers(spark, 1_000), now_ms=T0 + number)
    assert len(counted) == 2
    assert _in_order(topic) == [True, True, True]
    assert [len(one.segments) for one in topic.describe().partitions] == [1, 1, 1]
    assert [len(one.segments[0].slices) for one in topic.describe().partitions] == [3, 3, 3]
    assert topic.verify().problems == ()


def test_a_partition_in_the_spark_partition_of_another_is_noticed(
    spark: SparkSession, logs: LogDir, counted: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counting them would go on with the count of another partition: the append is repeated with care instead."""
    topic = logs.create_topic("elsewhere", partitions=3, config=_COMPACT)
    topic.append(_numbers(spark, 100), now_ms=T0)
    original = offsets._spread  # noqa: SLF001  what Spark promises is taken away
    monkeypatch.setattr(offsets, "_spread", lambda *given: original(*given).coalesce(1))
    topic.append(_numbers(spark, 100), now_ms=T0 + 1)
    assert len(counted) == 1
    assert _in_order(topic) == [True, True, True]
    assert topic.describe().record_count == 200


def test_larger_records_than_those_before_are_added_up_and_split_where_they_must_be(
    spark: SparkSession, logs: LogDir, counted: list[float]
) -> None:
    """A record that may take more than the segment has room for, times the rows expected; the next appends add up at once."""
    topic = logs.create_topic("large", config={**_COMPACT, "segment.bytes": "256KiB"})
    topic.append(rows(spark, "a=1 b=1 c=1"), now_ms=T0)
    topic.append(rows(spark, "a=2 b=2"), now_ms=T0)
    assert len(counted) == 1
    topic.append(rows(spark, f"a=3 b={'x' * 150_000} c={'y' * 150_000} d=4"), now_ms=T0)
    assert len(counted) == 2, "tried, and repeated"
    assert [(first, last) for _, first, last in segments(topic)] == [(0, 6), (7, 8)]
    topic.append(rows(spark, "a=5"), now_ms=T0)
    assert len(counted) == 2
    assert [line[:4] for line in log(topic)] == ["0 a=", "1 b=", "2 c=", "3 a=", "4 b=", "5 a=", "6 b=", "7 c=", "8 d=", "9 a="]


def test_many_more_rows_than_those_before_are_added_up(spark: SparkSession, logs: LogDir, counted: list[float]) -> None:
    """Each is small, and together they are more than a segment."""
    topic = logs.create_topic("many", config={**_COMPACT, "segment.bytes": "256KiB"})
    topic.append(rows(spark, "a=1 b=1 c=1"), now_ms=T0)
    topic.append(_numbers(spark, 20_000), now_ms=T0)
    assert len(counted) == 1
    assert len(segments(topic)) == 2
    assert _in_order(topic) == [True]
    assert topic.describe().record_count == 20_003


@pytest.mark.parametrize("minutes", [60, 61])
def test_a_segment_s_time_ends_as_when_sizes_are_added_up(spark: SparkSession, logs: LogDir, counted: list[float], minutes: int) -> None:
    """segment.ms from the first record's time on: equality is not older; and without times of their own, rows have the append's."""
    topic = logs.create_topic("timed", config={**_COMPACT, "segment.ms": "1h"})
    topic.append(rows(spark, "a=1 b=1", timestamp_ms=T0), now_ms=T0)
    topic.append(rows(spark, "c=1", timestamp_ms=T0 + minutes * 60_000), now_ms=T0)
    assert len(counted) == 1
    expected = [(0, 0, 2)] if minutes == 60 else [(0, 0, 1), (2, 2, 2)]
    assert segments(topic) == expected
    late = logs.create_topic("late", config={**_COMPACT, "segment.ms": "1h"})
    late.append(rows(spark, "a=1 b=1"), now_ms=T0)
    late.append(rows(spark, "c=1"), now_ms=T0 + minutes * 60_000)
    assert segments(late) == expected


def test_what_a_transaction_writes_is_counted_too(spark: SparkSession, logs: LogDir, counted: list[float]) -> None:
    """Sequences go on from record to record, in every partition."""
    topic = logs.create_topic("orders", partitions=2, config=_COMPACT)
    with topic.transaction("loader") as transaction:
        for _ in range(3):
            transaction.append(_numbers(spark, 50))
    assert len(counted) == 2
    found: list[Any] = topic.records().where("control IS NULL").orderBy("partition", "offset").collect()
    for partition in range(2):
        mine = [one for one in found if one.partition == partition]
        assert [one.sequence for one in mine] == [one.offset for one in mine] == list(range(len(mine)))
        assert {one.txn_first_offset for one in mine} == {0}


def test_a_segment_that_never_ends_by_time_takes_counted_rows(spark: SparkSession, logs: LogDir, counted: list[float]) -> None:
    """segment.ms of 2^63 - 1, as Kafka's users write never."""
    topic = logs.create_topic("never", config={**_COMPACT, "segment.ms": 2**63 - 1})
    for number in range(3):
        topic.append(rows(spark, f"a={number}", timestamp_ms=T0 + number * 10_000_000_000), now_ms=T0)
    assert len(counted) == 2
    assert segments(topic) == [(0, 0, 2)]


def test_refused_rows_are_refused_and_the_others_kept(spark: SparkSession, logs: LogDir, counted: list[float]) -> None:
    """Counted or not: a batch call raises, a stream's micro-batch goes on with its good rows; Kafka's partitioner, a source's own order."""
    config = {**_COMPACT, "max.message.bytes": 1_000, "partitioner": "kafka"}
    topic = logs.create_topic("refusing", partitions=2, config=config)
    schema = "key string, value string, partition int, __order_at bigint"
    good = [(f"k{number}", str(number), number % 2 if number > 5 else None, 100 - number) for number in range(10)]
    bad = [(None, "1", None, 1), ("big", "x" * 2_000, None, 2), ("where", "1", 9, 3), ("lost", "1", -1, 4)]
    stats = AppendStats()
    refused = []
    for number, given in enumerate((good, good, good + bad)):
        query = MicroBatch(query_id="q", query_name="files", batch_id=number)
        result = append_rows(topic.log, spark.createDataFrame(given, schema), now_ms=T0 + number, stats=stats, micro_batch=query)
        assert result.record_count == 10
        refused.append(dict(result.refused))
    assert refused == [{}, {}, {"keyless": 1, "oversized": 1, "unknown_partition": 2}]
    assert len(counted) == 2
    stats.careful_appends_left = 0
    with pytest.raises(InvalidRecords, match="1 × keyless"):
        append_rows(topic.log, spark.createDataFrame(bad, schema), now_ms=T0 + 3, stats=stats)
    assert len(counted) == 3
    for partition in range(2):
        records = topic.records().where(F.col("partition") == partition).orderBy("offset").collect()
        assert [one.offset for one in records] == list(range(len(records)))
        values = [(one.appended_at, -int(one.value)) for one in records]
        assert values == sorted(values), "in the order of the source's own column"
