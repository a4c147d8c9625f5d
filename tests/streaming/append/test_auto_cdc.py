"""AUTO CDC's arguments over DataFrames, and the same in a source's settings: keys, sequence, deletions, TRUNCATE, columns, SCD types."""

from __future__ import annotations

import json
import os
import shutil
from datetime import datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError
from pyspark.sql import functions as F

from lastword import LogDir, UserError
from lastword.streaming.append.change_rows import ChangeColumns, change_rows, table_columns
from lastword.streaming.append.source_rows import change_columns
from lastword.streaming.append.source_settings import FileSource, KafkaSource
from lastword.streaming.append.sources import open_source
from tests.kafka_broker import KafkaBroker, Record
from tests.pictures import by_arrow
from tests.storage.schema_registry.registries import Registry, avro_frame, running

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from lastword import SparkTopic, Topic

_CONFIG = {"cleanup.policy": "compact"}
_NOW = {"availableNow": True}
_SCHEMA = "id bigint, name string, city string, op string, seq bigint"
#: The example of AUTO CDC's documentation: changes that come out of order, deletions among them.
_CHANGES = [
    (124, "Raul", "Oaxaca", "INSERT", 1),
    (123, "Isabel", "Monterrey", "INSERT", 1),
    (125, "Mercedes", "Tijuana", "INSERT", 2),
    (126, "Lily", "Cancun", "INSERT", 2),
    (123, None, None, "DELETE", 6),
    (125, "Mercedes", "Guadalajara", "UPDATE", 6),
    (125, "Mercedes", "Mexicali", "UPDATE", 5),
    (123, "Isabel", "Chihuahua", "UPDATE", 5),
]


def _arrive(folder: Path, number: int, rows: list[Any]) -> None:
    folder.mkdir(exist_ok=True)
    names = ("id", "name", "city", "op", "seq")
    lines = [json.dumps(row if isinstance(row, dict) else dict(zip(names, row, strict=True))) for row in rows]
    (folder / f"{number}.json").write_text("\n".join(lines) + "\n")
    os.utime(folder / f"{number}.json", (1_700_000_000 + number, 1_700_000_000 + number))


def _stream(spark: SparkSession, folder: Path, schema: str = _SCHEMA) -> DataFrame:
    return spark.readStream.schema(schema).json(str(folder))


def _table(topic: Topic) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in by_arrow(topic).table().to_pylist()), key=repr)


@pytest.mark.parametrize("order", [1, -1])
def test_changes_in_any_order_are_the_newest_row_of_each_key(
    spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path, order: int
) -> None:
    """Also over two runs; the same table through Arrow, Spark and the Delta table that the flow keeps."""
    topic = logs.create_topic("users", partitions=2, config=_CONFIG)
    changes = _CHANGES[::order]
    for number in range(2):
        _arrive(tmp_path / "in", number, changes[4 * number : 4 * number + 4])
        flow = topic.create_auto_cdc_flow(
            _stream(spark, tmp_path / "in"),
            ["id"],
            F.col("seq"),
            apply_as_deletes="op = 'DELETE'",
            except_column_list=["op", F.col("seq")],
            stored_as_scd_type="1",
            table=str(tmp_path / "users"),
            trigger=_NOW,
        )
        assert flow.await_termination(90)
    wanted = [(124, "Raul", "Oaxaca"), (125, "Mercedes", "Guadalajara"), (126, "Lily", "Cancun")]
    assert _table(topic) == wanted
    assert sorted(map(tuple, topic.table().collect())) == wanted
    kept = spark.read.format("delta").load(str(tmp_path / "users"))
    assert sorted(map(tuple, kept.select("id", "name", "city").collect())) == wanted
    topic.roll()
    assert topic.clean(force=True)
    assert _table(topic) == wanted


@pytest.mark.parametrize("parts", [["seq"], ["seq", "op"]])
def test_a_truncate_deletes_what_came_before_it_whenever_it_comes(
    spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path, parts: list[str]
) -> None:
    """A row from before it that comes later is late; one without a sequence is a dead letter, as is a change without one."""
    topic = logs.create_topic("users", partitions=2, config=_CONFIG)
    changes = [
        (1, "old", "x", "INSERT", 3),
        (None, None, None, "TRUNCATE", 5),
        (2, "late", "x", "INSERT", 4),
        (3, "new", "x", "INSERT", 6),
        (None, None, None, "TRUNCATE", None),
        (4, "lost", "x", "INSERT", None),
    ]
    for number, change in enumerate(changes):
        _arrive(tmp_path / "in", number, [change])
        flow = topic.create_auto_cdc_flow(
            _stream(spark, tmp_path / "in"),
            ["id"],
            F.struct(*parts) if len(parts) > 1 else "seq",
            apply_as_truncates=F.expr("op = 'TRUNCATE'"),
            sequence_as="text",
            column_list=["id", "name"],
            trigger=_NOW,
        )
        assert flow.await_termination(90)
    assert _table(topic) == [(3, "new")]
    letters = sorted((row["reason"], row["detail"]) for row in by_arrow(topic).dead_letters().to_pylist())
    assert [reason for reason, _ in letters] == ["no_sequence", "truncate"]
    assert letters[0][1].endswith(": allowed is a value that has an order, in each part of it")
    named = "seq" if len(parts) == 1 else "Column<'struct(seq, op)'>"
    assert letters[1][1].startswith(f"TRUNCATE without a sequence: allowed in {named} is a value that has an order")


def test_columns_that_are_null_keep_what_they_were(spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path) -> None:
    """In the log, in the append itself, and not across a deletion; a first row has nothing to keep."""
    topic = logs.create_topic("users", partitions=2, config=_CONFIG)
    steps = [
        [(1, "a", None, "U", 1), (1, None, "b", "U", 2), (2, None, None, "U", 1), (3, "x", "y", "U", 1)],
        [(1, "c", None, "U", 3), (3, None, None, "D", 2), (3, None, "z", "U", 3)],
    ]
    for number, rows in enumerate(steps):
        _arrive(tmp_path / "in", number, rows)
        flow = topic.create_auto_cdc_flow(
            _stream(spark, tmp_path / "in"),
            "id",
            "seq",
            apply_as_deletes="op = 'D'",
            ignore_null_updates=True,
            column_list=["id", "name", "city"],
            trigger=_NOW,
        )
        assert flow.await_termination(90)
        topic.roll()
        topic.clean(force=True)
    assert _table(topic) == [(1, "c", "b"), (2, None, None), (3, None, "z")]


def test_scd_type_2_keeps_every_row_and_when_it_held(spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path) -> None:
    """Its times are those of the records."""
    topic = logs.create_topic("users", config=_CONFIG)
    for number, change in enumerate([(1, "a", "x", "U", 1), (1, "b", "x", "U", 2), (1, None, None, "D", 3)]):
        _arrive(tmp_path / "in", number, [change])
        flow = topic.create_auto_cdc_flow(
            _stream(spark, tmp_path / "in"),
            ["id"],
            "seq",
            apply_as_deletes="op = 'D'",
            stored_as_scd_type=2,
            table=str(tmp_path / "history"),
            trigger=_NOW,
        )
        assert flow.await_termination(90)
    rows = spark.read.format("delta").load(str(tmp_path / "history")).orderBy("_valid_from").collect()
    assert [(row["name"], row["_is_current"]) for row in rows] == [("a", False), ("b", False)]
    assert rows[0]["_valid_to"] == rows[1]["_valid_from"]


def test_keys_and_sequences_of_several_columns_of_any_type(spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path) -> None:
    """Null and the empty text are two keys; the order of columns and the scale of a decimal make no other one; names may be any."""
    topic = logs.create_topic("prices", config=_CONFIG)
    schema = "`a.b` string, n decimal(20,{}), at timestamp, part int, `_metadata` string"
    rows = [
        {"a.b": "", "n": 1, "at": "2026-01-01T00:00:00.000002Z", "part": 1, "_metadata": "first"},
        {"a.b": None, "n": 1, "at": "2026-01-01T00:00:00.000001Z", "part": 9, "_metadata": "other"},
        {"a.b": "", "n": 1.0, "at": "2026-01-01T00:00:00.000002Z", "part": 2, "_metadata": "second"},
        {"a.b": "", "n": 1, "at": "2026-01-01T00:00:00.000001Z", "part": 3, "_metadata": "late"},
    ]
    for number, keys in enumerate((["n", "a.b"], ["a.b", "n"])):
        _arrive(tmp_path / "in", number, rows[2 * number : 2 * number + 2])
        sequence = F.struct("at", "part")
        flow = topic.create_auto_cdc_flow(_stream(spark, tmp_path / "in", schema.format(4 - 2 * number)), keys, sequence, trigger=_NOW)
        assert flow.await_termination(90)
    first = datetime(2026, 1, 1, 0, 0, 0, 1, timezone.utc)
    assert _table(topic) == [
        ("", Decimal("1.00"), first.replace(microsecond=2), 2, "second"),
        (None, Decimal("1.00"), first, 9, "other"),
    ]
    assert {bytes(row["key"]) for row in by_arrow(topic).latest().to_pylist()} == {b'{"a.b":"","n":"1"}', b'{"a.b":null,"n":"1"}'}


@pytest.mark.parametrize(
    "case",
    [
        ("number", ["9", "10", " 9.5", "-1", "ten", "1e400", None], 1, [4, 5, 6]),
        ("text", ["9", "10", "a"], 2, []),
        (
            "time",
            [
                "2026-03-01 06:30:00",
                "2026-03-01T06:30:00.000001",
                "2026-03-01T07:30:00+01:00",
                "2026-03-01",
                "06:30:01",
                "2026-13-01",
                "2026-03-01T06:30:00.000001Z",
            ],
            6,
            [4, 5],
        ),
    ],
)
def test_a_text_in_a_sequence_is_compared_as_it_is_said(
    spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path, case: tuple[str, list[str | None], int, list[int]]
) -> None:
    """One that is no number or no time is a dead letter; a time without a zone is in UTC. Each change is of one append."""
    kind, texts, newest, refused = case
    topic = logs.create_topic("users", config=_CONFIG)
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        _arrive(tmp_path / "in", 0, [{"id": 1, "name": f"{number}", "city": text, "op": "U"} for number, text in enumerate(texts)])
        sequence = F.struct("city", F.lit(1).alias("one")) if kind == "number" else "city"
        flow = topic.create_auto_cdc_flow(
            _stream(spark, tmp_path / "in"), ["id"], sequence, column_list=["id", "name"], sequence_as=kind, trigger=_NOW
        )
        assert flow.await_termination(90)
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))
    assert _table(topic) == [(1, f"{newest}")]
    letters = by_arrow(topic).dead_letters().to_pylist()
    assert sorted(json.loads(row["value"])["name"] for row in letters) == [f"{number}" for number in refused]
    assert {row["reason"] for row in letters} <= {"failed_expression", "no_sequence"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"keys": []}, "keys is empty; name at least one column"),
        ({"keys": ["nope"]}, "keys names 'nope'; columns are id, name, city, op, seq"),
        ({"keys": [F.upper]}, "keys names <function"),
        ({"keys": ["id", "city", "id"]}, "keys names 'id' twice; name each column once"),
        ({"column_list": ["name", "name"]}, "column_list names 'name' twice"),
        ({"keys": "nope column"}, "keys = .*nope"),
        ({"apply_as_deletes": "seq"}, "seq is not a SQL condition: it is bigint, and allowed is boolean"),
        ({"apply_as_deletes": "op = = 'D'"}, "op = = 'D' is not a SQL condition over the columns id, name"),
        ({"apply_as_truncates": "nope"}, "nope is not a SQL condition over the columns id, name"),
        ({"sequence_by": 7}, "sequence_by = 7: allowed is a SQL expression or a column"),
        ({"sequence_by": "op"}, "sequence_by op is string, and of texts 10 is below 9: say by sequence_as what"),
        ({"sequence_by": "struct(seq, op)"}, r"is struct<seq:bigint,op:string>, and of texts 10 is below 9"),
        ({"sequence_as": "date"}, "sequence_as = 'date': allowed are number, time and text"),
        ({"sequence_by": "nope"}, "an expression cannot be read over the columns id, name"),
        ({"sequence_by": "seq = = 1"}, "an expression cannot be read over the columns id, name"),
        ({"column_list": ["name"], "except_column_list": ["city"]}, "column_list and except_column_list exclude each other"),
        ({"stored_as_scd_type": 3, "table": "t"}, "stored_as_scd_type = 3: allowed are 1 .* and 2"),
        ({"stored_as_scd_type": 1}, "stored_as_scd_type = 1 is of a Delta table: give its path or URI as table"),
    ],
)
def test_an_argument_that_is_not_allowed_is_named(
    spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path, arguments: dict[str, Any], said: str
) -> None:
    """Before anything is started."""
    topic = logs.create_topic("users", config=_CONFIG)
    (tmp_path / "in").mkdir()
    given = {"keys": ["id"], "sequence_by": "seq", **arguments}
    if given["keys"] == "nope column":  # a column of Spark, which is made in a session
        given["keys"] = F.col("nope")
    with pytest.raises(UserError, match=said) as refused:
        topic.create_auto_cdc_flow(_stream(spark, tmp_path / "in"), given.pop("keys"), given.pop("sequence_by"), **given)
    assert "\n" not in str(refused.value), "Spark's plan is nothing for a user"
    assert topic.log.decisions().queries == {}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"envelope": "debezium", "tombstone": "op = 'D'"}, "tombstone: the events of an envelope say this themselves"),
        ({"envelope": "debezium", "on.null": "keep"}, "on.null: the events of an envelope"),
        ({"envelope": "debezium", "truncate": "op = 'T'"}, "allowed are delete-all, alert, ignore"),
        ({"schema": _SCHEMA, "truncate": "op = 'T'"}, "it needs a sequence"),
        ({"schema": _SCHEMA, "columns": ["a"], "drop": ["b"]}, "columns and drop exclude each other"),
        ({"schema": _SCHEMA, "value": "a", "on.null": "keep"}, "value takes one column as it is"),
        ({"sequence": ["seq"], "on.null": "keep"}, r"sequence, on.null: which columns the JSON values have says schema"),
        ({"schema.registry.url": "http://x"}, "goes with an envelope or a schema"),
    ],
)
def test_settings_of_a_source_that_exclude_each_other_are_named(settings: dict[str, Any], said: str) -> None:
    """Before anything is started."""
    given = {"name": "s", "topic": "t", "format": "kafka", "bootstrap.servers": "x:1", "subscribe": "t"}
    with pytest.raises(ValidationError, match=said):
        KafkaSource.model_validate({**given, **settings})


def test_a_column_that_is_left_out_has_to_be_there() -> None:
    """A name that is written wrongly would leave nothing out."""
    given = {"name": "s", "topic": "t", "format": "kafka", "bootstrap.servers": "x:1", "subscribe": "t", "schema": _SCHEMA}
    source = KafkaSource.model_validate({**given, "drop": ["op", "sequence"]})
    names = ["id", "name", "city", "op", "seq"]
    with pytest.raises(UserError, match="source s: no column sequence; there are id, name, city, op, seq"):
        change_columns(source, names, names)
    kept = change_columns(source.model_copy(update={"drop": ["op", "seq"]}), names, names)
    assert list(kept.columns) == ["id", "name", "city"]


def test_files_with_a_sequence_a_truncate_and_partial_rows(spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path) -> None:
    """The settings of a source give what the flow gives; the table has the key column, which the value lacks."""
    topic = logs.create_topic("users", partitions=2, config=_CONFIG)
    source = FileSource.model_validate(
        {
            "name": "files",
            "topic": "users",
            "format": "json",
            "path": str(tmp_path / "in"),
            "key": ["id"],
            "schema": _SCHEMA,
            "sequence": ["seq"],
            "tombstone": "op = 'D'",
            "truncate": "op = 'T'",
            "columns": ["name", "city"],
            "on.null": "keep",
        }
    )
    steps: list[list[Any]] = [
        [(9, "gone", "x", "U", 1), (None, None, None, "T", 2), (1, "a", "b", "U", 3), "{no json"],
        [(1, "c", None, "U", 4), (1, "old", "old", "U", 3), (2, "x", "y", "U", 5), (2, None, None, "D", 6)],
    ]
    for number, rows in enumerate(steps):
        _arrive(tmp_path / "in", number, [row for row in rows if not isinstance(row, str)])
        with (tmp_path / "in" / f"{number}.json").open("a") as file:
            file.writelines(f"{row}\n" for row in rows if isinstance(row, str))
        os.utime(tmp_path / "in" / f"{number}.json", (1_700_000_000 + number, 1_700_000_000 + number))
        opened = open_source(spark, source, topic.log, now_ms=0)
        query = topic.append_stream(opened.rows, name="files", trigger=_NOW, envelope=opened.envelope)
        assert query.awaitTermination(90)
    assert _table(topic) == [(1, "c", "b")]
    assert [row["reason"] for row in by_arrow(topic).dead_letters().to_pylist()] == ["malformed"]


@pytest.mark.kafka
def test_json_values_of_kafka_by_their_columns(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """With the key of the record or columns; each record once by its offset, with or without a checkpoint; no envelope is needed."""
    values: list[dict[str, Any]] = [
        {"id": 1, "name": "a", "op": "U", "seq": 1, "more": True},
        {"id": 1, "name": "b", "op": "U", "seq": 3},
        {"id": 1, "name": "late", "op": "U", "seq": 2},
        {"id": 2, "name": "x", "op": "U", "seq": 1},
        {"id": 2, "name": None, "op": "D", "seq": 2},
        {"id": 3, "name": "y", "op": "U", "seq": 9},
    ]
    texts = [json.dumps(value).encode() for value in values] + [b"{no json", None]
    records = [
        Record(number % 2, f"key {number}".encode(), text)
        for number, text in zip([*(value["id"] for value in values), 3, 3], texts, strict=True)
    ]
    with KafkaBroker() as broker:
        broker.create_topic("users", 2)
        broker.produce("users", records)
        given: dict[str, Any] = {
            "format": "kafka",
            "bootstrap.servers": broker.bootstrap_servers,
            "subscribe": "users",
            "trigger": "available-now",
        }
        given |= {"schema": _SCHEMA, "tombstone": "op = 'D'", "drop": ["op", "seq", "city"]}
        for name, more in (
            ("by-column", {"key": ["id"], "sequence": ["seq"]}),
            ("by-record", {"sequence": ["seq", "_kafka.offset"]}),
            ("in-order", {}),
        ):
            topic = logs.create_topic(name, partitions=3, config=_CONFIG)
            source = KafkaSource.model_validate({**given, **more, "name": "users", "topic": name})
            counts = list[int]()
            for _ in range(2):
                opened = open_source(spark, source, topic.log, now_ms=0)
                query = topic.append_stream(opened.rows, name="users", trigger=_NOW, envelope=opened.envelope, events=opened.events)
                assert query.awaitTermination(90)
                counts.append(topic.describe().record_count)
                shutil.rmtree(topic.log.paths.query("users"))
            assert counts[0] == counts[1], "each record is appended once, whatever becomes of the checkpoint"
            letters = sorted(row["reason"] for row in by_arrow(topic).dead_letters().to_pylist())
            found = {bytes(row["key"]): json.loads(row["value"]) for row in by_arrow(topic).latest().to_pylist()}
            if name == "by-column":
                assert found == {b"1": {"id": 1, "name": "b"}, b"3": {"id": 3, "name": "y"}}
                assert letters == ["keyless", "malformed"]
            elif name == "by-record":
                assert found == {b"key 1": {"id": 1, "name": "b"}, b"key 3": {"id": 3, "name": "y"}}
                assert letters == ["malformed", "no_sequence"]
            else:
                assert found == {b"key 1": {"id": 1, "name": "late"}}
                assert letters == ["malformed"]
            headers = {header["key"] for row in by_arrow(topic).records().to_pylist() for header in row["headers"]}
            assert headers == {"source.partition", "source.offset"}


@pytest.mark.kafka
def test_framed_values_of_kafka_by_their_columns(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """Keys may be plain; a frame of an unknown schema is a dead letter as it came, and costs no other record."""
    schema = {
        "type": "record",
        "name": "User",
        "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}, {"name": "seq", "type": "long"}],
    }
    registry = Registry()
    with running(registry) as url, KafkaBroker() as broker:
        known = registry.add(schema)
        rows = [{"id": 1, "name": "a", "seq": 2}, {"id": 1, "name": "late", "seq": 1}, {"id": 2, "name": None, "seq": 1}]
        unknown = b"\0" + (99).to_bytes(4, "big") + b"x"
        frames = [avro_frame(known, schema, row) for row in rows] + [unknown]
        broker.create_topic("users")
        broker.produce("users", [Record(0, f"plain {number}".encode(), frame) for number, frame in enumerate(frames)])
        topic = logs.create_topic("users", partitions=2, config=_CONFIG)
        source = KafkaSource.model_validate(
            {
                "name": "users",
                "topic": "users",
                "format": "kafka",
                "bootstrap.servers": broker.bootstrap_servers,
                "subscribe": "users",
                "schema.registry.url": url,
                "schema": "id bigint, name string, seq bigint",
                "key": ["id"],
                "sequence": ["seq"],
            }
        )
        opened = open_source(spark, source, topic.log, now_ms=0)
        query = topic.append_stream(opened.rows, name="users", trigger=_NOW, events=opened.events)
        assert query.awaitTermination(90)
    assert _table(topic) == [(1, "a", 2), (2, None, 1)]
    (letter,) = by_arrow(topic).dead_letters().to_pylist()
    assert (letter["reason"], bytes(letter["value"])) == ("no_event", unknown)
    assert "99" in letter["detail"]


def test_a_flow_with_a_table_runs_until_it_is_stopped_and_nothing_runs_when_the_table_is_none_of_ours(
    spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path
) -> None:
    """If the table is refused, the append query does not start either."""
    topic = logs.create_topic("users", config=_CONFIG)
    _arrive(tmp_path / "in", 0, _CHANGES)
    how: dict[str, Any] = {"keys": ["id"], "sequence_by": "seq", "trigger": {"processingTime": "1 hour"}, "stored_as_scd_type": 1}
    flow = topic.create_auto_cdc_flow(_stream(spark, tmp_path / "in"), table=str(tmp_path / "users"), **how)
    assert flow.table_query is not None
    assert (flow.await_termination(1), flow.append_query.isActive, flow.table_query.isActive) == (False, True, True)
    flow.stop()
    assert (flow.append_query.isActive, flow.table_query.isActive, flow.await_termination(1)) == (False, False, True)
    flow = topic.create_auto_cdc_flow(_stream(spark, tmp_path / "in"), ["id"], "seq", trigger={"processingTime": "1 hour"})
    flow.stop()
    assert (flow.append_query.isActive, flow.table_query, flow.await_termination(1)) == (False, None, True), "a flow without a table"
    spark.range(3).write.format("delta").save(str(tmp_path / "theirs"))
    with pytest.raises(UserError, match="was not materialized into"):
        topic.create_auto_cdc_flow(_stream(spark, tmp_path / "in"), table=str(tmp_path / "theirs"), **how)
    assert [query.name for query in spark.streams.active] == []


def test_keys_and_columns_of_types_that_json_has_not(spark: SparkSession) -> None:
    """Bytes are the key as they are, a struct and a list are JSON; a column of a type that we have not is JSON in the table."""
    rows = spark.sql("SELECT X'FF00' AS b, named_struct('x', 1, 'n', NULL) AS s, array(1, 2) AS a, INTERVAL 1 DAY AS d, NULL AS z")
    for name, key in (("b", b"\xff\x00"), ("s", '{"x":1,"n":null}'), ("a", "[1,2]")):
        changes = ChangeColumns(keys=[name], columns=["d", "z"])
        found = change_rows(rows, changes, subject="made up").first()
        assert found is not None
        assert (bytes(found["key"]) if name == "b" else found["key"]) == key
        assert found["value"] == """{"d":"INTERVAL '1' DAY","z":null}"""
    columns = table_columns(rows, ChangeColumns(keys=["b"], columns=["d", "z"])).value
    assert [str(column.data_type) for column in columns] == ["interval", "json"]
