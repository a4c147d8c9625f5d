"""Which partition a record goes to: by its key, as Kafka's own client does if asked, and by its value when there is no key."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F

from lastword.compaction.rows.partitioners import murmur2, xxhash64

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lastword import LogDir, SparkTopic

_KEYS_OF_EACH_LENGTH = 8
_LONGEST = 70


def _keys(seed: int) -> list[bytes]:
    """Return random keys of every length from 0 to 70 in random order, so that all the tails of four bytes meet in one call."""
    chance = random.Random(seed)
    keys = [chance.randbytes(length) for length in range(_LONGEST + 1) for _ in range(_KEYS_OF_EACH_LENGTH)]
    chance.shuffle(keys)
    return keys


def _kafka(spark: SparkSession) -> Any:
    """Return the Java client's package, which the Kafka source of Spark brings along."""
    return spark.sparkContext._jvm.org.apache.kafka  # type: ignore[union-attr]  # noqa: SLF001  no public way to reach it


def test_murmur2_is_that_of_the_java_client_for_keys_of_every_length(spark: SparkSession) -> None:
    """568 keys in one call; Java's int is signed, ours is not."""
    keys = _keys(seed=1)
    java = _kafka(spark).common.utils.Utils
    ours = murmur2(pa.array(keys, pa.binary()))
    expected = [java.murmur2(bytearray(key)) for key in keys]
    assert expected == ours.view(np.int32).tolist()
    assert min(expected) < 0 < max(expected)


def test_xxhash64_is_that_of_spark_for_keys_of_every_length(spark: SparkSession) -> None:
    """568 keys and a null in one call; topics that Spark has filled keep the partition of each key."""
    keys = [*_keys(seed=3), None]
    frame = spark.createDataFrame([(None if key is None else bytearray(key),) for key in keys], "key binary").coalesce(1)
    expected = [row[0] for row in frame.select(F.xxhash64("key")).collect()]
    assert xxhash64(pa.array(keys, pa.binary())).view(np.int64).tolist() == expected


def test_a_topic_with_kafka_s_partitioner_puts_every_key_where_kafka_s_default_partitioner_would(
    spark: SparkSession, logs: LogDir[SparkTopic]
) -> None:
    """Seven partitions; asked of the class that a Kafka producer asks; an empty key is a key."""
    keys = sorted(set(_keys(seed=2)))
    topic = logs.create_topic("mirror", partitions=7, config={"cleanup.policy": "compact", "partitioner": "kafka"})
    topic.append(spark.createDataFrame([(bytearray(key), b"1") for key in keys], "key binary, value binary"))
    java = _kafka(spark).clients.producer.internals.BuiltInPartitioner
    expected = {key: java.partitionForKey(bytearray(key), 7) for key in keys}
    assert expected == {bytes(row["key"]): row["partition"] for row in topic.records().select("key", "partition").collect()}
    assert set(expected.values()) == set(range(7))


def test_records_without_a_key_are_spread_by_their_value_and_a_replay_spreads_them_alike(
    spark: SparkSession, logs: LogDir[SparkTopic]
) -> None:
    """With both partitioners; a random choice would put a replay elsewhere. Records with a key go by their key."""
    drawn = [(None if number % 2 else f"key {number}", f"event {number}") for number in range(400)]
    given = spark.createDataFrame(drawn, "key string, value string")
    for partitioner in ("lastword", "kafka"):
        topic = logs.create_topic(f"events-{partitioner}", partitions=4, config={"partitioner": partitioner})
        topic.append(given)
        topic.append(given.orderBy(F.desc("value")))
        placed = topic.records().select("partition", F.col("key").isNull().alias("keyless"), F.col("value").cast("string")).collect()
        places = Counter((row["value"], row["partition"]) for row in placed)
        assert set(places.values()) == {2}, "the same value twice in the same partition"
        assert len(places) == 400
        spread = Counter(row["partition"] for row in placed if row["keyless"])
        assert sorted(spread) == [0, 1, 2, 3]
        assert min(spread.values()) > 50, f"400 keyless records over 4 partitions: {spread}"


def test_a_topic_of_one_partition_asks_no_partitioner(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """Everything is in partition 0, in the order of the rows."""
    topic = logs.create_topic("events", config={"partitioner": "kafka"})
    topic.append(spark.createDataFrame([("b", "1"), (None, "2"), ("a", "3")], "key string, value string"))
    found = topic.records().orderBy("offset").select("partition", F.col("value").cast("string")).collect()
    assert [tuple(row) for row in found] == [(0, "1"), (0, "2"), (0, "3")]
