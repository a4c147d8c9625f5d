"""The columns of a materialized table: which names and types it can have, and what becomes of a value that does not fit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lastword import UserError
from lastword.streaming.reading.misfits import first_misfit
from lastword.streaming.reading.target_columns import check_value_type, missing_columns, needs_mapping
from tests.clocks import at
from tests.pictures import T0

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from lastword import LogDir, SparkTopic

_ONCE = {"availableNow": True}
_JSON = {"key_format": "utf8", "value_format": "json"}
#: Names that are awkward somewhere: Delta's own characters, dots, quotes, SQL's words, Unicode, what a step calls its columns.
_NAMES = ["Unit Price", "a.b", "a,b", "a=b", "tab\tx", "quo`te", "select", "größe", "live", "__first", "change", "{x}", "(y);", "target"]


@pytest.fixture
def topic(logs: LogDir[SparkTopic]) -> SparkTopic:
    """Return a compacted topic of one partition."""
    return at(T0, logs).create_topic("fruit", config={"cleanup.policy": "compact"})


def put(topic: SparkTopic, **values: Any) -> None:
    """Append JSON values (or text as it is) by key."""
    texts = [one if isinstance(one, str) else json.dumps(one) for one in values.values()]
    at(T0, topic).append([{"key": key, "value": text} for key, text in zip(values, texts, strict=True)])


def catch_up(topic: SparkTopic, location: Path, **options: Any) -> None:
    """Materialise all that there is, and stop."""
    topic.materialize(str(location), trigger=_ONCE, **options).awaitTermination()


@pytest.mark.parametrize("history", [False, True], ids=["last words", "history"])
def test_any_name_that_delta_can_map_is_a_column(
    topic: SparkTopic,
    spark: SparkSession,
    tmp_path: Path,
    history: bool,  # noqa: FBT001  a table of cases
) -> None:
    """In the bootstrap, in a step and in a rebuild over a table of plain names; a purge finds the key in its files."""
    schema = T.StructType([T.StructField(name, T.LongType()) for name in _NAMES])
    target, options = tmp_path / "target", {**_JSON, "history": history}
    put(topic, a=dict.fromkeys(_NAMES, 1), b=dict.fromkeys(_NAMES, 2))
    catch_up(topic, target, **options, schema="live bigint")
    catch_up(topic, target, **options, schema=schema, rebuild=True)
    put(topic, a=dict.fromkeys(_NAMES, 3), c=dict.fromkeys(_NAMES, 4))
    catch_up(topic, target, **options, schema=schema)
    table = spark.read.format("delta").load(str(target))
    current = table.where("_is_current") if history else table
    words = [tuple(row[name] for name in ("_key", *_NAMES)) for row in current.orderBy("_key").collect()]
    assert words == [(key, *[value] * len(_NAMES)) for key, value in (("a", 3), ("b", 2), ("c", 4))]
    assert topic.purge("a").target_rows_removed == {str(target): 2 if history else 1}


def _struct(**fields: T.DataType) -> T.StructType:
    return T.StructType([T.StructField(name, data_type) for name, data_type in fields.items()])


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        (_struct(id=T.LongType(), ID=T.LongType()), "id: a Delta table does not tell names apart by case"),
        (_struct(s=_struct(x=T.LongType(), X=T.LongType())), "s.x: a Delta table does not tell names apart"),
        (_struct(_KEY=T.StringType()), "the fields _KEY have the names of columns that a target adds"),
        (_struct(d=T.DayTimeIntervalType()), "d interval day to second: a Delta table has no such type"),
        (_struct(n=T.NullType()), "n void: a Delta table has no such type"),
        (_struct(a=T.ArrayType(_struct(c=T.CharType(3)))), "a.element.c char.*: a Delta table has no such type"),
        (_struct(m=T.MapType(T.StringType(), T.YearMonthIntervalType())), "m.value interval .*: a Delta table has no such type"),
        (T.StructType([T.StructField("", T.LongType())]), "a field needs a name"),
    ],
)
def test_what_no_table_can_hold_is_said_before_anything_is_made(schema: T.StructType, named: str) -> None:
    """One error that names the field, at any depth."""
    with pytest.raises(UserError, match=named):
        check_value_type(schema)


def test_names_that_need_column_mapping() -> None:
    """Those with characters that Delta refuses, at any depth; all others have none."""
    assert not needs_mapping(_struct(größe=T.LongType(), **{"a.b": T.LongType()}))
    assert needs_mapping(_struct(a=T.ArrayType(_struct(**{"Unit Price": T.LongType()}))))


def test_a_column_takes_values_of_a_narrower_type_alone() -> None:
    """A table may be wider than the records, in columns and in types; not narrower."""
    maps = [_struct(m=T.MapType(T.StringType(), kind)) for kind in (T.LongType(), T.IntegerType(), T.StringType())]
    assert [missing_columns(maps[0], one) for one in maps[:2]] == [[], []]
    assert missing_columns(maps[0], maps[2]) == ["column m is map<string,bigint> and not map<string,string>"]
    there = _struct(a=T.LongType(), b=T.StringType(), s=_struct(x=T.DoubleType()), more=T.LongType())
    assert missing_columns(there, _struct(A=T.IntegerType(), s=_struct(x=T.FloatType()))) == []
    assert missing_columns(there, _struct(b=T.LongType(), c=T.LongType(), s=_struct(y=T.FloatType()))) == [
        "column b is string and not bigint",
        "column c is not there",
        "column s is struct<x:double> and not struct<y:float>",
    ]


def test_nothing_is_kept_of_a_table_that_cannot_be(topic: SparkTopic, tmp_path: Path) -> None:
    """Neither a folder nor a row of the ledger, whatever is wrong with the schema."""
    put(topic, a={"x": 1})
    for schema in ("id bigint, ID bigint", "d interval day", "c char(3)", "x bigint,", "x nosuchtype", "_key string", "bigint"):
        with pytest.raises(UserError):
            catch_up(topic, tmp_path / "target", **_JSON, schema=schema)
    assert not (tmp_path / "target").exists()
    assert topic.log.decisions().targets == {}


def test_a_value_that_does_not_fit_is_named_or_null(topic: SparkTopic, spark: SparkSession, tmp_path: Path) -> None:
    """In a step and in a bootstrap: topic, partition, offset, key, field and value; PERMISSIVE makes the field null and goes on."""
    schema = "name string, price bigint"
    target = tmp_path / "target"
    put(topic, a={"name": "fig", "price": 1})
    catch_up(topic, target, **_JSON, schema=schema)
    put(topic, b={"name": "lime", "price": 2}, c={"name": "kiwi", "price": "oops"})
    named = r'topic fruit, partition 0, offset 2, key c, field price bigint: the value .*"oops".* does not fit\. mode=.*--mode PERMISSIVE'
    for location in (target, target, tmp_path / "new"):
        with pytest.raises(UserError, match=named):
            catch_up(topic, location, **_JSON, schema=schema)
    put(topic, d="no json", e='{"name": "plum", "price": 99999999999999999999}')
    catch_up(topic, target, **_JSON, schema=schema, mode="PERMISSIVE")
    found = spark.read.format("delta").load(str(target)).orderBy("_key").select("_key", "name", "price").collect()
    assert [tuple(row) for row in found] == [("a", "fig", 1), ("b", "lime", 2), ("c", "kiwi", None), ("d", None, None), ("e", "plum", None)]


@pytest.mark.parametrize(
    ("value", "options", "named"),
    [
        ("[1", {"value_format": "json"}, r"offset 0, key x: the value \[1 does not fit"),
        ("no json", {"value_format": "json", "schema": "a int, b int"}, r"offset 0, key x: the value no json does not fit"),
        ('{"s": {"d": "1 May"}}', {"value_format": "json", "schema": "n int, s struct<d: date>"}, r"key x, field s struct<d:date>"),
        ('{"l": [1, "two"]}', {"value_format": "json", "schema": "n int, l array<int>"}, r"key x, field l array<int>"),
    ],
)
def test_whatever_does_not_fit_is_named(topic: SparkTopic, tmp_path: Path, value: str, options: dict[str, str], named: str) -> None:
    """Text that is no JSON, with and without a schema; a field inside of another one; an element."""
    put(topic, x=value)
    with pytest.raises(UserError, match=named):
        catch_up(topic, tmp_path / "target", **options)


def test_a_json_null_is_null_as_in_the_table_of_the_topic(topic: SparkTopic, spark: SparkSession, tmp_path: Path) -> None:
    """A column of JSON that says null is null, in the rows of `table()` and in those of a target."""
    put(topic, a={"doc": None, "n": 1}, b={"doc": {"x": 1}, "n": 2})
    catch_up(topic, tmp_path / "target", **_JSON, schema="doc variant, n int")
    put(topic, c={"doc": None, "n": 3})
    catch_up(topic, tmp_path / "target", **_JSON, schema="doc variant, n int")
    kept = spark.read.format("delta").load(str(tmp_path / "target")).orderBy("n").selectExpr("doc IS NULL")
    asked = topic.table(schema="doc json, n int").orderBy("n").selectExpr("doc IS NULL")
    assert [row[0] for row in kept.collect()] == [row[0] for row in asked.collect()] == [True, False, True]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"mode": "DROPMALFORMED", "value_format": "json"}, "mode = 'DROPMALFORMED': allowed is FAILFAST or PERMISSIVE"),
        ({"mode": "PERMISSIVE"}, "mode = 'PERMISSIVE' needs value_format"),
        ({"trigger": {"processingTime": "now and then"}}, "trigger = .*allowed are"),
        ({"trigger": {"sometimes": True}}, "trigger = .*allowed are"),
        ({"trigger": {"availableNow": True, "processingTime": "1 second"}}, "trigger = .*allowed are"),
        ({"schema": "a int"}, "a schema needs value_format"),
    ],
)
def test_arguments_that_are_not_allowed_make_nothing(topic: SparkTopic, tmp_path: Path, options: dict[str, Any], named: str) -> None:
    """One error, and neither a table nor a row of the ledger."""
    with pytest.raises(UserError, match=named):
        topic.materialize(str(tmp_path / "target"), **options)
    assert not (tmp_path / "target").exists()
    assert topic.log.decisions().targets == {}


def test_the_first_record_that_is_no_avro_of_the_schema_is_named(spark: SparkSession) -> None:
    """By its place and key; None when all are."""
    schema = json.dumps({"type": "record", "name": "price", "fields": [{"name": "price", "type": "int"}]})
    written = F.call_function("to_avro", F.struct(F.col("offset").cast("int").alias("price")), F.lit(schema))
    whole = spark.range(2).select(F.lit(0).alias("partition"), F.col("id").alias("offset"), F.lit(b"k").alias("key"))
    rows = whole.withColumn("value", written)
    assert first_misfit(rows, "fruit", "avro", schema) is None
    spoilt = rows.withColumn("value", F.when(F.col("offset") == 1, F.lit(b"")).otherwise(F.col("value")))
    found = first_misfit(spoilt, "fruit", "avro", schema)
    assert found is not None
    assert found.startswith("topic fruit, partition 0, offset 1, key k: the value ")
