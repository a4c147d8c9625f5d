"""The worked examples (docs/semantics.md#B) read as tables: the log with control rows and horizons, the last words, around each cleaning.

The rules say what comes out; every table is compared as a whole (chispa), and what Spark reads is what Arrow reads.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from chispa.dataframe_comparer import assert_df_equality
from pyspark.sql import functions as F

from tests.clocks import at
from tests.pictures import DAY_MS, HOUR_MS, T0, by_arrow, rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from lastword import LogDir, SparkTopic

_COMPACT = {"cleanup.policy": "compact"}
_LOG = "partition int, offset bigint, timestamp timestamp, key string, value string, control string, delete_horizon timestamp"
_LATEST = "partition int, key string, value string, offset bigint, timestamp timestamp"


def _at(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / 1000, timezone.utc)


def _reads(spark: SparkSession, topic: SparkTopic, log: Sequence[tuple[Any, ...]], words: Sequence[tuple[Any, ...]]) -> None:
    """Compare both tables with rows in the order of the columns of `_LOG` and `_LATEST`, times in milliseconds."""
    shown = topic.records(include_control=True).select(
        "partition", "offset", "timestamp", F.col("key").cast("string"), F.col("value").cast("string"), "control", "delete_horizon"
    )
    expected = [(*row[:2], _at(row[2]), *row[3:6], None if row[6] is None else _at(row[6])) for row in log]
    assert_df_equality(shown, spark.createDataFrame(expected, _LOG), ignore_nullable=True, ignore_row_order=True)
    latest = topic.latest().select("partition", F.col("key").cast("string"), F.col("value").cast("string"), "offset", "timestamp")
    last = spark.createDataFrame([(*row[:4], _at(row[4])) for row in words], _LATEST)
    assert_df_equality(latest, last, ignore_nullable=True, ignore_row_order=True)
    read = by_arrow(topic).latest().to_pylist()
    assert sorted((row["partition"], row["key"].decode(), row["value"].decode(), row["offset"]) for row in read) == sorted(
        tuple(row[:4]) for row in words
    )


def test_the_fruit_prices_before_and_after_each_cleaning(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """0 grape, 1 lime, 2 grape→null, 3 lime, roll, 4 lime; a week later 5 to 7, roll, 8 guava."""
    topic = logs.create_topic("fruit-prices", config=_COMPACT)
    at(T0, topic).append(rows("grape=1 lime=1 grape=∅ lime=2"))
    at(T0, topic).roll()
    at(T0, topic).append(rows("lime=3"))
    begun = [
        (0, 0, T0, "grape", "1", None, None),
        (0, 1, T0, "lime", "1", None, None),
        (0, 2, T0, "grape", None, None, None),
        (0, 3, T0, "lime", "2", None, None),
        (0, 4, T0, "lime", "3", None, None),
    ]
    _reads(spark, topic, begun, [(0, "lime", "3", 4, T0)])
    at(T0, topic).clean()
    cleaned = [(0, 2, T0, "grape", None, None, T0 + DAY_MS), *begun[3:]]
    _reads(spark, topic, cleaned, [(0, "lime", "3", 4, T0)])
    week = T0 + 7 * DAY_MS
    at(week, topic).append(rows("guava=1 guava=2 kiwi=1"))
    at(week, topic).roll()
    at(week, topic).append(rows("guava=3"))
    at(week, topic).clean()
    left = [
        (0, 4, T0, "lime", "3", None, None),
        (0, 6, week, "guava", "2", None, None),
        (0, 7, week, "kiwi", "1", None, None),
        (0, 8, week, "guava", "3", None, None),
    ]
    _reads(spark, topic, left, [(0, "lime", "3", 4, T0), (0, "kiwi", "1", 7, week), (0, "guava", "3", 8, week)])


def test_users_letters_and_an_idle_tombstone(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """The users at their offsets; the letters A1 B2 A3 C4 A5; a tombstone of time 0, cleaned at 1 h, kept at 24 h and gone at 25 h."""
    topic = logs.create_topic("examples", partitions=3, config=_COMPACT)
    users = [(100, "user1", "a"), (101, "user2", "b"), (150, "user1", "c"), (175, "user3", None), (190, "user2", "d"), (195, "user1", "e")]
    letters = [(1, "A", "1"), (2, "B", "2"), (3, "A", "3"), (4, "C", "4"), (5, "A", "5")]
    idle = [(0, "grape", "1"), (1, "grape", None), (2, "kiwi", "1")]
    examples: list[list[tuple[int, str, str | None]]] = [users, letters, idle]  # type: ignore[list-item]  # some have no tombstone
    drawn = [(number, *one) for number, example in enumerate(examples) for one in example]
    at(T0, topic).append(spark.createDataFrame(drawn, "partition int, offset bigint, key string, value string"))
    words = [
        (0, "user1", "e", 195, T0),
        (0, "user2", "d", 190, T0),
        (1, "A", "5", 5, T0),
        (1, "B", "2", 2, T0),
        (1, "C", "4", 4, T0),
        (2, "kiwi", "1", 2, T0),
    ]
    _reads(spark, topic, [(partition, offset, T0, key, value, None, None) for partition, offset, key, value in drawn], words)
    at(T0, topic).roll()
    at(T0 + HOUR_MS, topic).clean()
    horizon = T0 + 25 * HOUR_MS
    kept = [
        (0, 175, T0, "user3", None, None, horizon),
        (0, 190, T0, "user2", "d", None, None),
        (0, 195, T0, "user1", "e", None, None),
        (1, 2, T0, "B", "2", None, None),
        (1, 4, T0, "C", "4", None, None),
        (1, 5, T0, "A", "5", None, None),
        (2, 1, T0, "grape", None, None, horizon),
        (2, 2, T0, "kiwi", "1", None, None),
    ]
    _reads(spark, topic, kept, words)
    assert at(T0 + 24 * HOUR_MS, topic).clean() == []
    _reads(spark, topic, kept, words)
    at(horizon, topic).clean()
    _reads(spark, topic, [row for row in kept if row[4] is not None], words)


def test_a_compacted_topic_that_also_deletes_loses_closed_segments_older_than_72_hours(
    spark: SparkSession, logs: LogDir[SparkTopic]
) -> None:
    """Whole, cleaned or not."""
    topic = logs.create_topic("both", config={"cleanup.policy": "compact,delete", "retention.ms": "72h", "min.cleanable.dirty.ratio": 0})
    later = T0 + 73 * HOUR_MS
    at(T0, topic).append(rows("a=1 a=2 b=1"))
    at(T0, topic).roll()
    at(T0, topic).clean()
    kept = [(0, 1, T0, "a", "2", None, None), (0, 2, T0, "b", "1", None, None)]
    _reads(spark, topic, kept, [(0, "a", "2", 1, T0), (0, "b", "1", 2, T0)])
    at(later, topic).append(rows("c=1"))
    at(later, topic).apply_retention()
    _reads(spark, topic, [(0, 3, later, "c", "1", None, None)], [(0, "c", "1", 3, later)])
