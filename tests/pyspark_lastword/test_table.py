"""`format("lastword")` with `readTable=true`: what `SparkTopic.table` and `ArrowTopic.table` return, to any Spark and to SQL."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException, PySparkException

from lastword.compaction.errors import InvalidConfiguration, UserError
from lastword.storage.log.topic_log import open_log
from pyspark_lastword.options import SourceOptions
from pyspark_lastword.table import TableReader
from tests.clocks import at
from tests.pictures import DAY_MS, T0, by_arrow, rows, vacuum
from tests.releases import SPARK
from tests.streaming.reading.test_tables import _ROW, _SCHEMA

if TYPE_CHECKING:
    from typing import Any

    from pyspark.sql import DataFrame, SparkSession

    from lastword import LogDir, SparkTopic, Topic

_COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01}


def _source(spark: SparkSession, topic: Topic, **options: str) -> DataFrame:
    return spark.read.format("lastword").options(readTable="true", **options).load(topic.log.paths.root)


def _priced(logs: LogDir, *, partitions: int = 1) -> Topic:
    """Return a topic with fig and lime in a cleaned segment, and lime, plum and a deleted fig behind it."""
    topic = logs.create_topic("fruit", partitions=partitions, config=_COMPACT)
    at(T0, topic).append([{"key": key, "value": json.dumps({"price": price})} for key, price in (("fig", 1), ("lime", 1), ("fig", 2))])
    at(T0, topic).roll()
    at(T0 + DAY_MS, topic).clean()
    at(T0 + DAY_MS, topic).append(
        [{"key": "lime", "value": '{"price": 3}'}, {"key": "plum", "value": '{"price": 4}'}, {"key": "fig", "value": None}]
    )
    return topic


@pytest.mark.parametrize("partitions", [1, 3])
def test_the_newest_rows_are_those_of_the_readers_without_it(spark: SparkSession, logs: LogDir, partitions: int) -> None:
    """From the clean and the dirty section, without deleted keys, of one partition or several; a log without a row gives none."""
    topic = _priced(logs, partitions=partitions)
    table = _source(spark, topic, schema="price int")

    assert table.dtypes == [("price", "int")]
    assert sorted(row["price"] for row in table.collect()) == [3, 4]
    assert sorted(by_arrow(topic.log.paths.root).table(schema="price int")["price"].to_pylist()) == [3, 4]
    empty = logs.create_topic("empty", config=_COMPACT)
    assert _source(spark, empty, schema="price int").collect() == []


def test_columns_of_every_type_are_those_of_table(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """But JSON and times are text; names that differ in case alone are two columns."""
    topic = logs.create_topic("t", config=_COMPACT)
    topic.append([{"key": "full", "value": json.dumps(_ROW)}, {"key": "empty", "value": "{}"}])
    table = _source(spark, topic, schema=_SCHEMA)
    expected = topic.table(schema=_SCHEMA)

    assert table.columns == expected.columns
    assert [kind for _, kind in table.dtypes] == [kind.replace("variant", "string") for _, kind in expected.dtypes]
    plain, wanted = (frame.toDF(*(f"c{number}" for number in range(13))) for frame in (table, expected))
    same = [f"c{number}" for number in (0, 1, 2, 3, 4, 5, 6, 11, 12)]
    assert sorted(map(str, plain.select(same).collect())) == sorted(map(str, wanted.select(same).collect()))
    of_json = ["{0}c7{1}", "{0}c8.j{1}", "transform(c9, v -> {0}v{1})", "transform_values(c10, (k, v) -> {0}v{1})"]
    parsed, variants = (
        frame.selectExpr(*(f"{expression.format(*call)} x{number}" for number, expression in enumerate(of_json)), "c8.d")
        for frame, call in ((plain, ("to_json(parse_json(", "))")), (wanted, ("to_json(", ")")))
    )
    assert sorted(map(str, parsed.collect())) == sorted(map(str, variants.collect()))


def test_a_topic_is_a_typed_table_of_spark_sql(spark: SparkSession, logs: LogDir) -> None:
    """Its columns are those that its sources have named. Since Spark 4.1 its rows are those of its first read until it is created anew."""
    topic = logs.create_topic("orders", config=_COMPACT)
    topic.append([{"id": 1, "price": 1.5}, {"id": 2, "price": 2.5}, {"id": 1, "price": 3.5}], key="id")  # a frame names its columns
    create = f"CREATE TEMPORARY VIEW orders USING lastword OPTIONS (path '{logs.location}', topic 'orders', readTable 'true')"
    spark.sql(create)
    try:
        assert spark.sql("SELECT id, price FROM orders WHERE price > 2 ORDER BY id").collect() == [(1, 3.5), (2, 2.5)]
        topic.append([{"id": 3, "price": 9.0}], key="id")
        stays = 2 if SPARK >= (4, 1) else 3
        assert spark.sql("SELECT max(id) FROM orders").first() == (stays,), (
            "from 4.1 on Spark plans a view once: it stays at its first version"
        )
        spark.sql(create.replace("CREATE", "CREATE OR REPLACE"))
        assert spark.sql("SELECT max(id) FROM orders").first() == (3,)
    finally:
        spark.catalog.dropTempView("orders")


def test_some_columns_may_be_asked_for_and_no_others(spark: SparkSession, logs: LogDir) -> None:
    """By the schema of the read, whose types are those of the table; other types are the option `schema`."""
    topic = logs.create_topic("t", config=_COMPACT)
    topic.append([{"key": "k", "value": '{"a": 1, "b": "x", "c": true}'}])
    read = spark.read.format("lastword").options(readTable="true", schema="a int, b string, c boolean")

    assert read.schema("c boolean, a int").load(topic.log.paths.root).collect() == [(True, 1)]
    for wrong in ("a bigint", "d int"):
        with pytest.raises(PySparkException, match="the table has a int, b string, c boolean; to read other types, give the option schema"):
            read.schema(wrong).load(topic.log.paths.root).collect()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "topic t: no source of the topic says which columns its rows have"),
        ({"schema": "a strin"}, "schema = 'a strin'"),
        ({"schema": "a int", "mode": "DROPMALFORMED"}, "mode = DROPMALFORMED: allowed is failfast or permissive"),
        ({"schema": "a int", "startingOffsets": "earliest"}, "startingOffsets = earliest: a table is read whole"),
        ({"schema": "a int", "includeHeaders": "true"}, "includeHeaders = true: a table is read whole"),
        ({"readTable": "yes"}, "readTable = yes: allowed is true or false"),
        ({"readTable": "false", "schema": "a int"}, "schema = a int: it needs readTable = true"),
    ],
)
def test_options_that_do_not_go_together_are_refused(spark: SparkSession, logs: LogDir, options: dict[str, str], message: str) -> None:
    """When the source is loaded, with what is allowed."""
    topic = logs.create_topic("t", config=_COMPACT)
    with pytest.raises(AnalysisException, match=message):
        spark.read.format("lastword").options(**{"readTable": "true", **options}).load(topic.log.paths.root)


def test_a_stream_has_no_table() -> None:
    """It gives records."""
    with pytest.raises(InvalidConfiguration, match=r"readTable = true: a stream gives records; .* use materialize"):
        SourceOptions.parse({"path": "data/t", "readTable": "true"}, streaming=True)


def test_a_value_that_does_not_fit_ends_the_read_or_is_null(spark: SparkSession, logs: LogDir) -> None:
    """The error names topic, partition, offset, key, column and value."""
    topic = logs.create_topic("t", config=_COMPACT)
    topic.append([{"key": "good", "value": '{"id": 5}'}, {"key": "bad", "value": '{"id": "x"}'}])

    with pytest.raises(PySparkException, match=r'topic t, partition 0, offset 1, key bad: column id = "x": allowed is int'):
        _source(spark, topic, schema="id int").collect()
    assert sorted(str(row["id"]) for row in _source(spark, topic, schema="id int", mode="permissive").collect()) == ["5", "None"]


def test_an_open_transaction_is_seen_by_read_uncommitted_alone(spark: SparkSession, logs: LogDir) -> None:
    """As by every reader."""
    topic = logs.create_topic("t", config=_COMPACT)
    topic.append([{"key": "a", "value": '{"id": 1}'}])
    topic.transaction("open").__enter__().append([{"key": "a", "value": '{"id": 2}'}])

    seen: dict[str, Any] = {
        isolation: _source(spark, topic, schema="id int", isolation=isolation).collect()
        for isolation in ("read_committed", "read_uncommitted")
    }
    assert seen == {"read_committed": [(1,)], "read_uncommitted": [(2,)]}


def test_a_file_that_vacuum_took_meanwhile_is_an_error_that_says_so(spark: SparkSession, logs: LogDir) -> None:
    """A table is read at one version: rows of another one are not mixed in."""
    topic = logs.create_topic("t", config=_COMPACT)
    at(T0, topic).append(rows("a=1 a=2", timestamp_ms=T0))
    at(T0, topic).roll()
    reader = TableReader(SourceOptions.parse({"path": topic.log.paths.root, "readTable": "true", "schema": "id int"}))
    (partition,) = reader.partitions()
    at(T0 + DAY_MS, topic).clean()
    vacuum(topic, spark)

    with pytest.raises(
        UserError, match=r"topic t: a file of table version \d+ was removed by VACUUM: load.. it, or create the view, again"
    ):
        list(reader.read(partition))
    assert open_log(topic.log.paths.root, {}).at().version > partition.value[0].version
