"""What an append promises: order, offsets for ever, all or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from chispa import assert_df_equality
from pyspark.sql import functions as F

from lastword.compaction.errors import CommitConflict, InvalidConfiguration, InvalidRecords
from lastword.storage.append.append import append_rows
from lastword.storage.append.requests import AppendStats, MicroBatch
from lastword.storage.append.writing import ArrowRows
from tests.clocks import at
from tests.commits import commit_append
from tests.pictures import latest, log, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lastword import LogDir, SparkTopic

_COMPACT = {"cleanup.policy": "compact"}


def test_offsets_go_on_where_the_last_append_stopped_and_keep_the_order_of_the_rows(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """Two appends, one partition."""
    topic = logs.create_topic("fruit", config=_COMPACT)
    first = topic.append(rows("grape=1 lime=2 grape=∅"))
    second = topic.append(rows("lime=3 kiwi=1"))
    assert log(topic) == ["0 grape=1", "1 lime=2", "2 grape=∅", "3 lime=3", "4 kiwi=1"]
    assert latest(topic) == {"lime": "3", "kiwi": "1"}
    assert (first.ranges[0].first_offset, first.ranges[0].last_offset, first.record_count) == (0, 2, 3)
    assert (second.ranges[0].first_offset, second.ranges[0].last_offset, second.record_count) == (3, 4, 2)
    assert second.table_version == (first.table_version or 0) + 1


def test_a_key_always_has_the_same_partition_and_a_row_may_name_its_own(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """Hashed rows and rows with a partition column."""
    topic = logs.create_topic("fruit", partitions=4, config=_COMPACT)
    keys = " ".join(f"key{number}=1" for number in range(100))
    topic.append(rows(keys))
    topic.append(rows(keys))
    by_key = topic.records().groupBy("key").agg(F.countDistinct("partition").alias("partitions"), F.count("*").alias("records"))
    assert by_key.where("partitions = 1 AND records = 2").count() == 100
    assert topic.records().select("partition").distinct().count() == 4
    own = topic.append(rows("apple=1 pear=1", partition=3))
    assert set(own.ranges) == {3}
    mixed = spark.createDataFrame([("apple", "2", 2), ("key7", "2", None)], "key string, value string, partition int")
    assert topic.append(mixed).record_count == 2


def test_a_null_value_is_a_tombstone_and_an_empty_one_is_not(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """Rule: docs/semantics.md#10.5."""
    topic = logs.create_topic("fruit", config=_COMPACT)
    topic.append(spark.createDataFrame([("a", ""), ("b", None)], "key string, value string"))
    expected = spark.createDataFrame([(bytearray(b"a"), bytearray(b""))], "key binary, value binary")
    assert_df_equality(topic.latest().select("key", "value"), expected, ignore_nullable=True)


def test_all_columns_of_a_record_come_back(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """Key, value, headers, timestamp; appended_at is the time of the append."""
    topic = logs.create_topic("fruit", config=_COMPACT)
    schema = "key binary, value binary, headers array<struct<key:string,value:binary>>, timestamp bigint"
    given = spark.createDataFrame([(bytearray(b"\xff\x00"), bytearray(b"v"), [("h", bytearray(b"1"))], 1_234)], schema)
    at(9_000, topic).append(given)
    expected = given.select(
        F.lit(0).alias("partition"),
        F.lit(0).cast("bigint").alias("offset"),
        F.timestamp_millis("timestamp").alias("timestamp"),
        "key",
        "value",
        "headers",
        *(F.lit(None).cast(kind).alias(name) for name, kind in _NOTHING.items()),
        F.timestamp_millis(F.lit(9_000)).alias("appended_at"),
        F.lit(None).cast("timestamp").alias("delete_horizon"),
        F.lit(None).cast("string").alias("source_sequence"),
    )
    assert_df_equality(topic.records(), expected, ignore_nullable=True)


_NOTHING = {"producer_id": "bigint", "producer_epoch": "int", "sequence": "int", "txn_first_offset": "bigint", "control": "string"}

_BAD: dict[str, tuple[list[tuple[Any, ...]], str, str]] = {
    "keyless": ([("a", "1"), (None, "2")], "key string, value string", "1 × keyless: key is null"),
    "unknown partition": (
        [("a", "1", 0), ("b", "2", 7), ("c", "3", -1)],
        "key string, value string, partition int",
        "2 × unknown_partition: partition 7: allowed is 0 to 1",
    ),
    "oversized": ([("a", "1"), ("b", "x" * 3_000)], "key string, value string", "3001 bytes of key, value and headers: allowed are 2000"),
    "negative timestamp": ([("a", "1", -5)], "key string, value string, timestamp bigint", "timestamp -5 ms: allowed is 0"),
    "timestamp past 2262": ([("a", "1", 2**62)], "key string, value string, timestamp bigint", "the year 2262"),
    "offset below the log end": (
        [("a", "1", 0, 1)],
        "key string, value string, partition int, offset bigint",
        "offset 1: the log of the partition ends at 3",
    ),
    "an offset twice": (
        [("a", "1", 0, 10), ("a", "1", 0, 10)],
        "key string, value string, partition int, offset bigint",
        "two rows carry the same partition and offset",
    ),
    "no offset beside offsets": (
        [("a", "1", 0, 10), ("a", "1", 0, None)],
        "key string, value string, partition int, offset bigint",
        "all rows or none carry an offset",
    ),
    "offset past what a position holds": (
        [("a", "1", 0, 2**47)],
        "key string, value string, partition int, offset bigint",
        f"offset {2**47}: all rows or none carry an offset of 0 to {2**47 - 1}",
    ),
    "wrong type": ([("a", 1)], "key string, value int", "column value is int: allowed is binary or string"),
    "unknown column": ([("a", "1", "x")], "key string, value string, valeu string", "column valeu is unknown: allowed are key, value"),
    "no value": ([("a",)], "key string", "column value is missing"),
    "offset without partition": ([("a", "1", 10)], "key string, value string, offset bigint", "column offset needs a column partition"),
}


def test_a_batch_call_with_a_bad_row_raises_one_clear_error_and_writes_nothing(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """Every reason, one topic; the version of the table does not move."""
    topic = logs.create_topic("fruit", partitions=2, config={**_COMPACT, "max.message.bytes": 2_000})
    topic.append(rows("grape=1 lime=1 kiwi=1", partition=0))
    before = topic.describe().table_version
    for name, (bad, schema, message) in _BAD.items():
        with pytest.raises(InvalidRecords) as caught:
            topic.append(spark.createDataFrame(bad, schema))
        assert message in str(caught.value), name
    assert topic.describe().table_version == before
    assert log(topic) == ["0 grape=1", "1 lime=1", "2 kiwi=1"]


def test_a_topic_that_is_not_compacted_takes_rows_without_a_key(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """cleanup.policy=delete."""
    topic = logs.create_topic("events", partitions=3)
    topic.append(spark.createDataFrame([(None, f"event {number}") for number in range(30)], "key string, value string"))
    assert topic.describe().record_count == 30
    assert topic.latest().count() == 0


def test_explicit_offsets_are_kept_and_may_leave_gaps(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """User1 @100, 150, 195; user2 @101, 190; user3→null @175 (docs/semantics.md#B.6)."""
    topic = logs.create_topic("users", config=_COMPACT)
    drawn = [("user1", "a", 100), ("user2", "a", 101), ("user1", "b", 150), ("user3", None, 175), ("user2", "b", 190), ("user1", "c", 195)]
    given = spark.createDataFrame(
        [(key, value, 0, offset) for key, value, offset in drawn], "key string, value string, partition int, offset long"
    )
    topic.append(given)
    assert log(topic) == ["100 user1=a", "101 user2=a", "150 user1=b", "175 user3=∅", "190 user2=b", "195 user1=c"]
    assert topic.append(rows("user4=a")).ranges[0].first_offset == 196


def test_an_empty_input_changes_nothing_that_a_reader_sees(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """No rows, no offsets."""
    topic = logs.create_topic("fruit", config=_COMPACT)
    result = topic.append(spark.createDataFrame([], "key string, value string"))
    assert result.ranges == {}
    assert topic.append(rows("grape=1")).ranges[0].first_offset == 0


def test_a_replayed_micro_batch_is_recognised_by_its_query_and_number(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """Also when other appends came between, which carry the numbers forward."""
    topic = logs.create_topic("fruit", config=_COMPACT)
    query = MicroBatch(query_id="q1", query_name="files", batch_id=0)
    topic.log.ledger.append([_query_decision("files", "q1")])
    batch = rows("grape=1 lime=1")
    assert append_rows(topic.log, ArrowRows(batch), now_ms=1, stats=AppendStats(), micro_batch=query).record_count == 2
    topic.append(rows("kiwi=1"))
    again = append_rows(topic.log, ArrowRows(batch), now_ms=2, stats=AppendStats(), micro_batch=query)
    assert again.replayed
    assert again.table_version is None
    assert log(topic) == ["0 grape=1", "1 lime=1", "2 kiwi=1"]


def test_a_commit_planned_from_an_old_snapshot_is_refused(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """Appends do not conflict in Delta, and a stale txnVersion is skipped silently; two appenders would number from the same log end."""
    topic = logs.create_topic("fruit", config=_COMPACT)
    topic.append(rows("grape=1"))
    stale = topic.log.snapshot()
    log_rows = spark.read.format("delta").load(topic.log.paths.log)
    topic.append(rows("lime=1"))
    with pytest.raises(CommitConflict, match="another commit of lastword-append came"):
        commit_append(topic.log, log_rows, stale)
    assert log(topic) == ["0 grape=1", "1 lime=1"]


def test_another_codec_holds_for_new_files(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """compression.type, altered between two appends; unknown ones are refused."""
    topic = logs.create_topic("fruit", config=_COMPACT)
    topic.append(rows("grape=1"))
    topic.alter_config({"compression.type": "snappy"})
    topic.append(rows("grape=2"))
    names = sorted(name.rsplit(".", 2)[1] for name in topic.log.snapshot().files.path)
    assert names == ["snappy", "zstd"]
    with pytest.raises(InvalidConfiguration, match=r"compression\.type"):
        topic.alter_config({"compression.type": "brotly"})


def _query_decision(name: str, query_id: str) -> Any:
    from lastword.storage.ledger.decisions import Decision, Kind  # noqa: PLC0415

    return Decision(kind=Kind.QUERY, time_ms=0, name=name, details={"query_id": query_id})
