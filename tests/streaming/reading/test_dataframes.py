"""What readers see: the last words now and in the past, decoded and narrowed, and what changed in between."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from lastword import Envelope
from lastword.compaction.errors import HistoryCleaned, OffsetOutOfRange, UserError
from lastword.storage.reading.view import view_of
from lastword.streaming.reading.dataframes import LatestLimits, latest_records
from tests.change_events import change
from tests.clocks import at
from tests.pictures import HOUR_MS, T0, by_arrow, delete_records, rows, text, vacuum

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lastword import LogDir, SparkTopic

_COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0, "delete.retention.ms": "1h"}


@pytest.fixture
def topic(logs: LogDir[SparkTopic]) -> SparkTopic:
    """Return a compacted topic of one partition whose cleaner waits for nothing."""
    return at(T0, logs).create_topic("fruit-prices", config=_COMPACT)


def append(topic: SparkTopic, spark: SparkSession, picture: str, *, roll: bool = True) -> None:
    """Append what a picture draws, and close the segment."""
    at(T0, topic).append(rows(picture))
    if roll:
        at(T0, topic).roll()


def words(table: DataFrame) -> str:
    """Return a table of last words as a picture, by key."""
    return " ".join(sorted(f"{text(row['key'])}={text(row['value'])}" for row in table.collect()))


def test_the_past_is_asked_by_version_moment_or_offsets_before_and_after_cleaning(topic: SparkTopic, spark: SparkSession) -> None:
    """As of an offset vector the answer comes from the newest table version that cleaning has not spoilt for it."""
    append(topic, spark, "a=1 b=1 a=2")
    version = topic.log.snapshot().version
    moment = datetime.fromtimestamp(dict(topic.log.commit_times())[version] / 1000, timezone.utc)
    append(topic, spark, "c=1 b=∅ a=3")
    append(topic, spark, "d=1", roll=False)

    asked: list[Any] = [{0: 3}, version, moment, moment.isoformat(), {0: 5}, {0: 1}, {0: 7}, None]
    right = ["a=2 b=1", "a=2 b=1", "a=2 b=1", "a=2 b=1", "a=2 c=1", "a=1", "a=3 c=1 d=1", "a=3 c=1 d=1"]
    assert [words_as_of(topic, one) for one in asked] == right
    at(T0, topic).clean()
    assert [words_as_of(topic, one) for one in asked] == right
    at(T0 + HOUR_MS, topic).clean()
    assert [words_as_of(topic, one) for one in asked] == right
    assert topic.records(as_of=version).count() == 3


def test_partitions_of_different_versions_are_read_in_their_order(logs: LogDir[SparkTopic], spark: SparkSession) -> None:
    """One of them was cleaned past the vector, so an older version answers for it."""
    topic = logs.create_topic("many", partitions=3, config=_COMPACT)
    for value in (1, 2):
        for partition in range(3):
            at(T0, topic).append(rows(f"a={value} b={value}", partition=partition))
    at(T0, topic).roll(1)
    at(T0, topic).clean()
    found = by_arrow(topic).latest(as_of=[4, 3, 4])
    assert found.column("partition").to_pylist() == [0, 0, 1, 1, 2, 2]
    assert words(topic.latest(as_of=[4, 3, 4])) == "a=2 a=2 a=2 b=1 b=2 b=2"


def test_a_past_that_is_gone_says_so_instead_of_answering_wrongly(topic: SparkTopic, spark: SparkSession) -> None:
    """Cleaning has passed the point, and VACUUM has taken the files; or the records were deleted; or the point never was."""
    append(topic, spark, "a=1 b=1 a=2")
    append(topic, spark, "a=3", roll=False)
    version = topic.log.snapshot().version
    at(T0, topic).clean()
    vacuum(topic, spark)

    _refused(topic, {0: 2}, HistoryCleaned, r"as_of offsets \{0: 2\}: cleaning has passed that point, and VACUUM took 1 of the")
    _refused(topic, version, HistoryCleaned, rf"as_of table version {version}: cleaning has passed that point")
    assert words_as_of(topic, {0: 3}) == "a=2 b=1"
    _refused(topic, {0: 9}, OffsetOutOfRange, r"partition 0: as_of offset 9; allowed is up to 4 \(last stable offset\)")
    _refused(topic, 99, UserError, r"as_of = 99: allowed are the table versions 0 to")
    _refused(topic, datetime.now(timezone.utc) - timedelta(days=1), HistoryCleaned, "the history of the log begins at")
    _refused(topic, "noon", UserError, r"as_of = 'noon': allowed is a table version, a datetime")
    delete_records(at(T0, topic), {0: 3})
    _refused(topic, {0: 2}, HistoryCleaned, r"partition 0: as_of offset 2 was deleted; the log starts at 3")


def test_a_cleaning_that_a_restore_took_back_counts_at_once(topic: SparkTopic, spark: SparkSession) -> None:
    """Nobody has looked back yet: a section that is dirty again must not be taken for clean."""
    append(topic, spark, "a=1 b=1 a=2")
    version = topic.log.snapshot().version
    at(T0, topic).clean()
    DeltaTable.forPath(spark, topic.log.paths.log).restoreToVersion(version)
    assert words(topic.latest()) == "a=2 b=1"
    append(topic, spark, "a=3")
    assert words(topic.latest()) == "a=3 b=1"
    assert words_as_of(topic, {0: 2}) == "a=1 b=1"


def test_the_clean_section_is_not_shuffled(topic: SparkTopic, spark: SparkSession) -> None:
    """A clean log is one scan; a small dirty section is sent to it."""
    append(topic, spark, "a=1 b=1 a=2")
    at(T0, topic).clean()
    plan = _plan(topic.latest())
    assert ("Exchange" in plan, "Aggregate" in plan, "Join" in plan) == (False, False, False)

    append(topic, spark, "b=2")
    plan = _plan(topic.latest())
    assert ("BroadcastHashJoin" in plan, "SortMergeJoin" in plan) == (True, False)
    assert words(topic.latest()) == "a=2 b=2"


@pytest.mark.parametrize(
    ("limits", "strategy"),
    [
        (LatestLimits(broadcast_bytes=2**30), "BroadcastHashJoin LeftAnti"),
        (LatestLimits(broadcast_bytes=2**30, one_task_rows=0), "BroadcastHashJoin LeftAnti hashpartitioning"),
        (LatestLimits(broadcast_bytes=2**30, one_task_files=0), "BroadcastHashJoin LeftAnti hashpartitioning"),
        # 7 dirty records: 896 bytes of keys; 11 records in all: 704 bytes of positions
        (LatestLimits(broadcast_bytes=896), "BroadcastHashJoin LeftAnti"),
        (LatestLimits(broadcast_bytes=895), "BroadcastHashJoin LeftSemi hashpartitioning"),
        (LatestLimits(broadcast_bytes=704), "BroadcastHashJoin LeftSemi hashpartitioning"),
        (LatestLimits(broadcast_bytes=703), "SortMergeJoin LeftSemi hashpartitioning"),
    ],
)
def test_latest_is_the_same_on_both_sides_of_each_limit(
    logs: LogDir[SparkTopic], spark: SparkSession, limits: LatestLimits, strategy: str
) -> None:
    """Two partitions: a clean section of four records, and a dirty one of seven with a tombstone."""
    topic = at(T0, logs).create_topic("fruit-prices", partitions=2, config=_COMPACT)
    for partition in (0, 1):
        topic.append(rows("a=1 b=1", partition=partition))
    topic.roll()
    topic.clean()
    topic.append(rows("a=2 c=1 a=3 b=∅", partition=0))
    topic.append(rows("c=1 d=1 d=2", partition=1))
    log = topic.log
    view = view_of(log.at(), "read_committed")
    assert (view.records(view.first_dirty), view.records(view.start)) == (7, 11)
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    try:
        found = latest_records(spark, log, view, limits=limits)
        plan = _plan(found)
        assert words(found) == "a=1 a=3 b=1 c=1 c=1 d=2"
    finally:
        spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")
    steps = ("BroadcastHashJoin", "SortMergeJoin", "LeftAnti", "LeftSemi", "hashpartitioning")
    assert " ".join(step for step in steps if step in plan) == strategy


def test_partitions_and_keys_narrow_what_is_read(logs: LogDir[SparkTopic], spark: SparkSession) -> None:
    """They reach the scan: Delta partitions are pruned, keys are looked for in Parquet's statistics."""
    topic = at(T0, logs).create_topic("two", partitions=2, config=_COMPACT)
    at(T0, topic).append(rows("a=1 b=1", partition=0))
    at(T0, topic).append(rows("a=2 c=1", partition=1))
    assert words(topic.latest(partitions=[1])) == "a=2 c=1"
    assert words(topic.latest(keys=["a", b"b"])) == "a=1 a=2 b=1"
    assert words(topic.latest(partitions=[0], keys=["a"])) == "a=1"
    assert "PushedFilters: [IsNull(control), IsNotNull(key), EqualTo(key" in _plan(topic.latest(keys=["a"]))
    with pytest.raises(UserError, match="has no partition 2: allowed is 0 to 1"):
        topic.latest(partitions=[2])


def test_values_are_decoded_on_demand(topic: SparkTopic, spark: SparkSession) -> None:
    """JSON with and without a schema, Avro, text; what does not parse ends the read or is null."""
    at(T0, topic).append(spark.createDataFrame([("a", '{"price": 3}'), ("b", None)], "key string, value string"))
    assert topic.latest(value_format="json", schema="price int").select("value.price").collect() == [(3,)]
    assert topic.latest(value_format="json").selectExpr("variant_get(value, '$.price', 'int')").collect() == [(3,)]
    assert topic.latest(value_format="utf8").select("value").collect() == [('{"price": 3}',)]

    at(T0, topic).append(spark.createDataFrame([("a", "three")], "key string, value string"))
    with pytest.raises((PySparkException, Py4JJavaError), match="Malformed records are detected"):
        topic.latest(value_format="json", schema="price int").collect()
    assert topic.latest(value_format="json", schema="price int", mode="PERMISSIVE").select("value.price").collect() == [(None,)]

    avro = json.dumps({"type": "record", "name": "price", "fields": [{"name": "price", "type": "int"}]})
    written = spark.range(1).select(
        F.lit("a").alias("key"), F.call_function("to_avro", F.struct(F.lit(7).alias("price")), F.lit(avro)).alias("value")
    )
    at(T0, topic).append(written)
    assert topic.latest(value_format="avro", schema=avro).select("value.price").collect() == [(7,)]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"value_format": "xml"}, r"value_format = 'xml': allowed is json, avro, utf8"),
        ({"schema": "a int"}, r"schema = a int: a schema needs value_format"),
        ({"value_format": "json", "schema": "int int int"}, r"schema 'int int int' is not SQL DDL"),
        ({"value_format": "avro"}, r"schema = None: avro needs the writer's schema as JSON text"),
        ({"value_format": "utf8", "schema": "a int"}, r"utf8 has none"),
        ({"value_format": "json", "mode": "DROPMALFORMED"}, r"mode = 'DROPMALFORMED': allowed is FAILFAST or PERMISSIVE"),
        ({"isolation": "snapshot"}, r"isolation 'snapshot': allowed is read_committed or read_uncommitted"),
    ],
)
def test_what_cannot_be_is_named_with_what_is_allowed(topic: SparkTopic, given: dict[str, Any], told: str) -> None:
    """Before anything is read."""
    with pytest.raises(UserError, match=told):
        topic.latest(**given)


def test_changes_carry_the_values_from_before(topic: SparkTopic, spark: SparkSession) -> None:
    """Insert, update, delete, and the insert after a delete; a tombstone for a key that is not there is no change."""
    append(topic, spark, "a=1 b=1")
    append(topic, spark, "a=2 b=∅ c=1 x=∅ a=3 b=2", roll=False)
    every = [
        "2 a=1 update_before", "2 a=2 update_after", "3 b=1 delete", "4 c=1 insert",
        "6 a=2 update_before", "6 a=3 update_after", "7 b=2 insert",
    ]  # fmt: skip
    net = ["4 c=1 insert", "6 a=1 update_before", "6 a=3 update_after", "7 b=1 update_before", "7 b=2 update_after"]
    assert told(topic, {0: 2}, {0: 8}) == every
    assert told(topic, {0: 2}, {0: 8}, net=True) == net
    assert told(topic, {0: 2}, {0: 2}) == []
    assert told(topic, {0: 0}, {0: 8}, net=True) == ["4 c=1 insert", "6 a=3 insert", "7 b=2 insert"]
    assert told(topic, {0: 2}, {0: 4}, net=True) == ["1 b=1 delete", "2 a=1 update_before", "2 a=2 update_after"]

    at(T0, topic).roll()
    at(T0, topic).clean()
    assert told(topic, {0: 2}, {0: 8}) == every
    assert told(topic, {0: 2}, {0: 8}, net=True) == net


def test_changes_that_cleaning_took_are_refused(topic: SparkTopic, spark: SparkSession) -> None:
    """Every change needs every record; net changes need both ends, and get them as long as the old files are there."""
    append(topic, spark, "a=1 b=1")
    append(topic, spark, "a=2 a=3")
    at(T0, topic).clean()
    append(topic, spark, "b=2")
    with pytest.raises(
        HistoryCleaned, match=r"changes to offsets \{0: 5\}: they were appended after records from offset 2 on had been cleaned"
    ):
        topic.changes({0: 2}, {0: 5})
    net = ["3 a=1 update_before", "3 a=3 update_after", "4 b=1 update_before", "4 b=2 update_after"]
    assert told(topic, {0: 2}, {0: 5}, net=True) == net
    vacuum(topic, spark)
    with pytest.raises(HistoryCleaned, match="VACUUM took"):
        topic.changes({0: 2}, {0: 5}, net=True)
    assert told(topic, {0: 4}, {0: 5}) == ["4 b=1 update_before", "4 b=2 update_after"]
    with pytest.raises(OffsetOutOfRange, match="changes from offset 5 to 4"):
        topic.changes({0: 5}, {0: 4})


def told(topic: SparkTopic, begin: dict[int, int], end: dict[int, int], *, net: bool = False) -> list[str]:
    """Return changes as `offset key=value change_type`, in the order of the log; Spark and Arrow say the same."""
    found = topic.changes(begin, end, net=net).orderBy("offset", F.col("change_type") != "update_before")
    arrow = by_arrow(topic).changes(begin, end, net=net)
    columns = ["offset", "key", "value", "headers", "change_type", "partition"]
    assert arrow.select(columns).to_pylist() == found.toArrow().select(columns).to_pylist()
    rows = arrow.to_pylist()
    return [f"{row['offset']} {text(row['key'])}={text(row['value'])} {row['change_type']}" for row in rows]


def words_as_of(topic: SparkTopic, as_of: Any) -> str:
    """Return the last words of the past as a picture; Spark and Arrow say the same."""
    arrow = by_arrow(topic).latest(as_of=as_of).to_pylist()
    found = words(topic.latest(as_of=as_of))
    assert " ".join(sorted(f"{text(row['key'])}={text(row['value'])}" for row in arrow)) == found
    return found


def _refused(topic: SparkTopic, as_of: Any, error: type[UserError], message: str) -> None:
    """See that Spark and Arrow refuse a question about the past with the same message."""
    with pytest.raises(error, match=message):
        topic.latest(as_of=as_of)
    with pytest.raises(error, match=message):
        by_arrow(topic).latest(as_of=as_of)


def _plan(table: DataFrame) -> str:
    plan: str = table._jdf.queryExecution().explainString(  # noqa: SLF001
        table.sparkSession._jvm.org.apache.spark.sql.execution.ExplainMode.fromString("formatted")  # type: ignore[union-attr]  # noqa: SLF001
    )
    return plan


def test_a_json_column_that_is_null_in_the_source_is_null_in_the_table(logs: LogDir[SparkTopic]) -> None:
    """And not a VARIANT that says null, which no `IS NULL` finds."""
    topic = logs.create_topic("t", config={"cleanup.policy": "compact"})
    events = [change("c", 1, 1, {"id": 1, "meta": None}), change("c", 2, 2, {"id": 2, "meta": '{"a":1}'}), change("c", 3, 3, {"id": 3})]
    topic.append([{"key": key, "value": value} for key, value in events], envelope=Envelope(schema="id int, meta json"))
    assert [row["id"] for row in topic.table().where("meta IS NULL").orderBy("id").collect()] == [1, 3]
    assert [row["id"] for row in topic.table().where("variant_get(meta, '$.a', 'int') = 1").collect()] == [2]
