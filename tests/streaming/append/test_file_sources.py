"""File sources by Spark: conditions that fail, columns of any name, schemas, and starts that fail and leave nothing behind."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from lastword.compaction.errors import QueryRefused, UserError
from lastword.streaming.append.source_settings import FileSource
from lastword.streaming.append.sources import open_source
from tests.pictures import T0, by_arrow, latest, log

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from lastword import LogDir, SparkTopic

_NOW: Final = {"availableNow": True}
_COMPACT: Final = {"cleanup.policy": "compact"}


def _source(folder: Path | str, **settings: Any) -> FileSource:
    given = {"name": "files", "topic": "t", "format": "json", "path": str(folder), "key": ["k"], **settings}
    return FileSource.model_validate(given)


def _run(spark: SparkSession, topic: SparkTopic, source: FileSource) -> None:
    opened = open_source(spark, source, topic.log, now_ms=0)
    query = topic.append_stream(
        opened.rows, name=source.name, trigger=_NOW, envelope=opened.envelope, upstream=opened.upstream, sequence_as="text"
    )
    assert query.awaitTermination(120)


def _letters(topic: SparkTopic) -> list[tuple[str, str]]:
    return sorted((row["reason"], row["detail"]) for row in topic.dead_letters().collect())


def _write(folder: Path, name: str, *lines: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def test_a_condition_that_fails_is_the_dead_letter_of_its_row(spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path) -> None:
    """A cast, a division, an overflow, an index that is not there (null is none for Spark), in each expression; whatever ANSI says."""
    rows = [
        {"k": "a", "deleted": "1", "n": 1, "v": 1},
        {"k": "b", "deleted": "false", "n": 2, "v": 2},
        {"k": "c", "deleted": "0", "n": 0, "v": 3},
        {"k": "d", "deleted": None, "n": 3, "v": 4},
        {"k": "e", "deleted": "0", "n": 9_223_372_036_854_775_807, "v": 5},
        {"k": "f", "deleted": "9", "n": 4, "v": 6},
    ]
    _write(tmp_path / "in", "1.json", *[json.dumps(row) for row in rows])
    schema = "k string, deleted string, n bigint, v int"
    cases: list[tuple[dict[str, Any], dict[str, int]]] = [
        ({"tombstone": "deleted = 1 OR deleted = 2 OR n < 0"}, {"b": 1}),
        ({"tombstone": "10 / n > 100 OR n + 1 = 3"}, {"c": 1, "e": 1}),
        ({"sequence": ["CAST(deleted AS INT)"], "tombstone": "CAST(deleted AS INT) = 1"}, {"b": 1, "d": 1}),
        ({"sequence": ["n * 2"], "truncate": "array(1, 2)[CAST(deleted AS INT)] = 7"}, {"b": 1, "d": 1, "e": 1, "f": 1}),
    ]
    for ansi in ("true", "false"):
        session = spark.newSession()
        session.conf.set("spark.sql.ansi.enabled", ansi)
        for number, (settings, refused) in enumerate(cases[:1] if ansi == "false" else cases):
            topic = logs.create_topic(f"t{number}-{ansi}", config=_COMPACT)
            opened = open_source(session, _source(tmp_path / "in", schema=schema, **settings), topic.log, now_ms=0)
            assert topic.append_stream(opened.rows, name="files", trigger=_NOW).awaitTermination(120)
            found = {bytes(row["key"]).decode(): 1 for row in topic.dead_letters().collect()}
            assert found == refused, settings
            assert topic.describe().record_count == len(rows) - len(refused), settings
            assert session.conf.get("spark.sql.ansi.enabled") == ansi
            reasons = {reason for reason, _ in _letters(topic)}
            assert reasons <= {"failed_expression", "no_sequence"}
    detail = "tombstone deleted = 1 OR deleted = 2 OR n < 0 cannot be computed for this row"
    assert _letters(logs.topic("t0-false")) == [("failed_expression", detail)]


def test_without_a_schema_an_expression_sees_texts(spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path) -> None:
    """A sequence of numbers says so; a key with leading zeros stays; columns have any name; a misfit is a dead letter."""
    topic = logs.create_topic("t", config=_COMPACT)
    _write(tmp_path / "in", "1.csv", "k,version,op,geo.lat,*,`,_metadata", "007,9,u,1,2,3,4", "7,1,u,,,,")
    settings = {"format": "csv", "tombstone": "op = 'd'", "sequence": ["version"], "sequence.as": "number", "drop": ["op"]}
    _run(spark, topic, _source(tmp_path / "in", **settings))
    _write(tmp_path / "in", "2.csv", "op,k,version,new", "u,007,10,x", "d,7,11,", "u,7,two,y")
    _run(spark, topic, _source(tmp_path / "in", **settings))
    assert log(topic) == [
        '0 007={"version":"9","geo.lat":"1","*":"2","`":"3","_metadata":"4"}',
        '1 7={"version":"1","geo.lat":null,"*":null,"`":null,"_metadata":null}',
        '2 007={"version":"10","new":"x"}',
        "3 7=∅",
    ]
    assert [reason for reason, _ in _letters(topic)] == ["failed_expression"]


def test_without_a_schema_a_timestamp_is_what_its_text_says(spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path) -> None:
    """And stands in the value as it was written. A number is ms since 1970 if it has 11 to 13 digits; another one is malformed."""
    topic = logs.create_topic("t", config=_COMPACT)
    texts = ('"2026-01-01T00:00:00.5Z"', '"2026-01-01 01:00:00+01:00"', "1767225600000", "1767225600", "20260101")
    _write(tmp_path / "in", "1.json", *[f'{{"k":"{key}","at":{text}}}' for key, text in zip("abcde", texts, strict=True)])
    _run(spark, topic, _source(tmp_path / "in", timestamp="at"))
    found = [(bytes(row["value"]).decode(), row["timestamp"].isoformat()) for row in by_arrow(topic).records().to_pylist()]
    assert found == [
        ('{"at":"2026-01-01T00:00:00.5Z"}', "2026-01-01T00:00:00.500000+00:00"),
        ('{"at":"2026-01-01 01:00:00+01:00"}', "2026-01-01T00:00:00+00:00"),
        ('{"at":1767225600000}', "2026-01-01T00:00:00+00:00"),
    ]
    assert [reason for reason, _ in _letters(topic)] == ["malformed"] * 2


def test_with_a_schema_csv_and_json_have_its_types(spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path) -> None:
    """By header, to the microsecond; what does not fit is malformed. A document of several lines, and one that is cut."""
    topic = logs.create_topic("t", config=_COMPACT)
    schema = "k string, price decimal(9,2), at timestamp, `Unit Price` double, `a.b` int"
    _write(tmp_path / "csv", "1.csv", "at,k,price,Unit Price,a.b", "2026-01-01T00:00:00.123456Z,a,1.5,2,3", ",b,,,", ",c,x,,")
    _run(spark, topic, _source(tmp_path / "csv", name="csv", format="csv", schema=schema))
    folder = tmp_path / "json"
    _write(folder, "1.json", '[{"k":"d","price":2.25,', '"at":"2026-01-01T00:00:00.123456Z"},', '{"k":"e","a.b":7}, {"k":"f","price":[]}]')
    (folder / "2.json.gz").write_bytes(gzip.compress(b'{"k":"g"}')[:-5])
    _run(spark, topic, _source(folder, name="json", schema=schema, options={"multiLine": "true"}))
    rest = '"Unit Price":null,"a.b":null}'
    assert log(topic) == [
        '0 a={"price":1.50,"at":"2026-01-01T00:00:00.123456Z","Unit Price":2.0,"a.b":3}',
        '1 b={"price":null,"at":null,' + rest,
        '2 d={"price":2.25,"at":"2026-01-01T00:00:00.123456Z",' + rest,
        '3 e={"price":null,"at":null,"Unit Price":null,"a.b":7}',
    ]
    assert [reason for reason, _ in _letters(topic)] == ["corrupt_file", "malformed", "malformed"]


def test_events_and_parquet_files_that_cannot_be_read_are_named(spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path) -> None:
    """The others are taken."""
    topic = logs.create_topic("t", config=_COMPACT)
    folder = tmp_path / "events"
    _write(
        folder,
        "[1].json",
        json.dumps({"key": {"id": 1}, "value": {"op": "c", "before": None, "after": {"id": 1}}}, separators=(",", ":")),
        "no event",
    )
    (folder / "2:00.json.gz").write_bytes(gzip.compress(b"{}\n" * 99)[:-5])
    _run(spark, topic, _source(folder, name="events", envelope="debezium", key=[]))
    parquet = tmp_path / "parquet"
    spark.createDataFrame([("b", 1)], "k string, n int").coalesce(1).write.parquet(str(parquet))
    _run(spark, topic, _source(parquet, name="parquet", format="parquet"))
    (parquet / "z cut.parquet").write_bytes(b"PAR1")
    spark.createDataFrame([("c", "x")], "k string, n string").coalesce(1).write.mode("append").parquet(str(parquet))
    spark.createDataFrame([("d", 2, 3)], "k string, n bigint, more int").coalesce(1).write.mode("append").parquet(str(parquet))
    spark.createDataFrame([(4, "e")], "n bigint, K string").coalesce(1).write.mode("append").parquet(str(parquet))
    _run(spark, topic, _source(parquet, name="parquet", format="parquet"))
    assert log(topic) == ['0 {"id":1}={"id":1}', '1 b={"n":1}', '2 e={"n":4}']
    reasons = [reason for reason, _ in _letters(topic)]
    assert reasons == ["corrupt_file"] * 4 + ["no_event"]
    details = " ".join(detail for _, detail in _letters(topic))
    for said in ("2:00.json.gz", "z cut.parquet", "cannot be taken as int32", "columns that the files before did not have: more"):
        assert said in details


@pytest.mark.parametrize(
    ("lines", "case"),
    [
        (["{", '"k": 1', "}"], ({"tombstone": "op = 'd'"}, "there is no row in .* that could be read .*truncated")),
        (['{"k":1}'], ({"key": ["K"]}, "no column K; there are k")),
        (['{"k":1}'], ({"tombstone": "nothing(k) = 1"}, r"nothing\(k\) = 1 is not a SQL condition: \[UNRESOLVED_ROUTINE")),
        (['{"k":1}'], ({"tombstone": "k ="}, "k = is not a SQL")),
        (['{"k":1}'], ({"tombstone": "k", "sequence": ["k"], "sequence.as": "number"}, "is not a SQL condition: it is string")),
        (['{"k":1}'], ({"tombstone": "K = '1'"}, "no column K; there are k: upper and lower case differ")),
        (['{"k":1}'], ({"schema": "k int, K string"}, "columns K, k differ in case alone")),
        (['{"k":1}'], ({"schema": "k in"}, "is not SQL DDL")),
        (['{"k":1}'], ({"schema": "k int, __refusal string"}, "columns of these names are lastword's own: __refusal")),
        (['{"k":1}'], ({"on.null": "keep", "sequence": ["CAST(k AS INT)"]}, "on.null = keep needs a schema")),
        (['{"k":1}'], ({"format": "parquet"}, "does not say its columns .*1.json")),
    ],
)
def test_a_start_that_fails_says_why_and_leaves_nothing(
    spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path, lines: list[str], case: tuple[dict[str, Any], str]
) -> None:
    """It leaves no schema and no query, so the next start is a first one."""
    settings, said = case
    topic = logs.create_topic("t", config=_COMPACT)
    _write(tmp_path / "in", "1.json", *lines)
    with pytest.raises(UserError, match=said):
        open_source(spark, _source(tmp_path / "in", **settings), topic.log, now_ms=0)
    decisions = topic.log.decisions()
    assert (dict(decisions.schemas), dict(decisions.queries)) == ({}, {})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"options": {"inferSchema": "true"}}, "inferSchema: of json files allowed are encoding"),
        ({"options": {"encoding": "latin-99"}}, "no such encoding"),
        ({"options": {"multiLine": "yes"}}, "allowed are true and false"),
        ({"format": "csv", "options": {"sep": "||"}}, "allowed is one ASCII character"),
        ({"format": "csv", "options": {"quote": "\n"}}, "one ASCII character that ends no line, or none"),
        ({"format": "parquet", "options": {"encoding": "UTF-8"}}, "of parquet files allowed are pathGlobFilter"),
        ({"on.corrupt.file": "ignore"}, "'skip' or 'fail'"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    """With what is allowed."""
    with pytest.raises(ValidationError, match=said):
        _source(tmp_path, **settings)


def _write_rows(folder: Path, name: str, file_format: str, *rows: dict[str, Any]) -> None:
    """Write rows as a file of a format; each has the columns of the first."""
    folder.mkdir(exist_ok=True)
    if file_format == "parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), folder / f"{name}.parquet")
        return
    header = [",".join(rows[0])] if file_format == "csv" else []
    lines = [",".join(map(str, row.values())) if file_format == "csv" else json.dumps(row) for row in rows]
    _write(folder, f"{name}.{file_format}", *header, *lines)


@pytest.mark.parametrize("file_format", ["json", "csv", "parquet"])
def test_a_column_that_is_not_there_yet_is_null_until_it_comes(
    spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path, caplog: pytest.LogCaptureFixture, file_format: str
) -> None:
    """A condition for deletions before the first deletion came, one for truncations, a part of a sequence; `drop` of one is no mistake.

    It is said once, with the columns that there are. When the column comes, it counts.
    """
    topic = logs.create_topic("t", config=_COMPACT)
    settings = {
        "format": file_format,
        "tombstone": "op = 'd'",
        "truncate": "op = 't'",
        "sequence": ["n", "part"],
        "drop": ["op", "part", "n", "other"],
        "sequence.as": "" if file_format == "parquet" else "number",
    }
    _write_rows(tmp_path / "in", "1", file_format, {"k": "a", "n": 1, "v": 1}, {"k": "b", "n": 1, "v": 2})
    _run(spark, topic, _source(tmp_path / "in", **{**settings, "sequence": ["n"]}))
    warnings = [record.getMessage() for record in caplog.records if "not in the files yet" in record.getMessage()]
    assert len(warnings) == 1
    assert "op" in warnings[0]
    assert 'there_are="k, n, v"' in warnings[0]
    assert len(latest(topic)) == 2
    extra = {"n": 2, "v": 0, "op": "d"} if file_format == "parquet" else {"n": 2, "v": 0, "op": "d", "later": 1}
    _write_rows(tmp_path / "in", "2", file_format, {"k": "a", **extra})
    _run(spark, topic, _source(tmp_path / "in", **{**settings, "sequence": ["n"]}))
    assert set(latest(topic)) == {"b"}
    assert _letters(topic) == []


@pytest.mark.parametrize("file_format", ["json", "csv", "parquet"])
def test_a_column_of_the_schema_that_no_file_has_is_reported(
    spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path, caplog: pytest.LogCaptureFixture, file_format: str
) -> None:
    """It is null; its name may be misspelt. Where files are texts, a difference in case alone is a mistake."""
    topic = logs.create_topic("t", config=_COMPACT)
    _write_rows(tmp_path / "in", "1", file_format, {"k": "a", "name": "plum"})
    _run(spark, topic, _source(tmp_path / "in", format=file_format, schema="k string, nmae string, name string"))
    (warning,) = [record.getMessage() for record in caplog.records if "not in the files yet" in record.getMessage()]
    assert 'columns=nmae there_are="k, name"' in warning
    assert latest(topic) == {"a": '{"nmae":null,"name":"plum"}'}
    other = _source(tmp_path / "in", name="other", format=file_format, schema="k string, NAME string")
    if file_format == "parquet":
        open_source(spark, other, logs.create_topic("other").log, now_ms=T0)
    else:
        with pytest.raises(UserError, match="no column NAME; there are name: upper and lower case differ"):
            open_source(spark, other, logs.create_topic("other").log, now_ms=T0)
    assert len([record for record in caplog.records if "not in the files yet" in record.getMessage()]) == 1


@pytest.mark.parametrize("file_format", ["json", "csv", "parquet"])
def test_a_text_that_orders_rows_is_refused_until_somebody_says_what_it_is(
    spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path, file_format: str
) -> None:
    """With and without a schema; without one all columns of JSON and CSV are texts."""
    topic = logs.create_topic("t", config=_COMPACT)
    first = "version" if file_format == "parquet" else "CAST(version AS INT)"
    rows = [{"k": "a", "n": text, "v": number, "version": number} for number, text in enumerate(["v9", "v10"])]
    _write_rows(tmp_path / "in", "1", file_format, *rows)
    ddl = {} if file_format == "parquet" else {"schema": "k string, n string, v int, version int"}
    for more in ({}, ddl):
        with pytest.raises(
            UserError, match=r"source files: sequence n is string, .* say by sequence.as what .* number, time or text; or cast"
        ):
            open_source(spark, _source(tmp_path / "in", format=file_format, sequence=[first, "n"], **more), topic.log, now_ms=0)
    cast, kind = "CAST(substring(n, 2) AS INT)", "" if file_format == "parquet" else "number"
    for number, (sequence, sequence_as, newest) in enumerate(((["n"], "text", 0), ([cast], "", 1), (["version"], kind, 1))):
        other = logs.create_topic(f"t{number}", config=_COMPACT)
        settings = {"topic": other.name, "format": file_format, "sequence": sequence, "sequence.as": sequence_as, "value": "v"}
        _run(spark, other, _source(tmp_path / "in", **settings))
        assert latest(other) == {"a": f"{newest}"}


def test_a_whole_condition_that_is_not_there_yet_is_false(spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path) -> None:
    """`--tombstone deleted`: the column is a boolean when it comes. A column in a function, too; what is no SQL is still refused."""
    topic = logs.create_topic("t", config=_COMPACT)
    _write(tmp_path / "in", "1.json", '{"k":"a","v":1}', '{"k":"b","v":2}')
    source = _source(tmp_path / "in", tombstone="deleted", drop=["deleted"])
    _run(spark, topic, source)
    _write(tmp_path / "in", "2.json", '{"k":"a","deleted":true}', '{"k":"b","v":3,"deleted":false}')
    _run(spark, topic, source)
    assert latest(topic) == {"b": '{"v":3}'}
    other = logs.create_topic("other", config=_COMPACT)
    _run(spark, other, _source(tmp_path / "in", topic="other", tombstone="lower(op) IN ('d', 'delete') OR coalesce(gone, 'n') = 'y'"))
    assert len(log(other)) == 4
    for tombstone, message in (("op = ", "not a SQL"), ("v + 1", "allowed is boolean"), ("nofunc(v)", "nofunc")):
        with pytest.raises(UserError, match=message):
            open_source(spark, _source(tmp_path / "in", tombstone=tombstone), logs.create_topic(f"x{len(message)}").log, now_ms=0)


@pytest.mark.parametrize("settings", [{"key": ["missing"]}, {"value": "missing"}, {"columns": ["missing"]}, {"timestamp": "missing"}])
def test_a_column_of_key_value_or_timestamp_must_be_there(
    spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path, settings: dict[str, Any]
) -> None:
    """A name that is mistyped would make each row a dead letter, or each value empty."""
    _write(tmp_path / "in", "1.json", '{"k":"a","v":1}')
    with pytest.raises(UserError, match="source files: no column missing; there are k, v"):
        open_source(spark, _source(tmp_path / "in", **settings), logs.create_topic("t").log, now_ms=0)


def test_a_second_query_that_reads_the_same_files_is_refused_by_name(spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path) -> None:
    """The path may be spelled differently, be a link, a glob or a parent folder; nothing is appended."""
    topic = logs.create_topic("t", config=_COMPACT)
    _write(tmp_path / "in", "1.json", '{"k":"a","v":1}')
    _run(spark, topic, _source(tmp_path / "in", name="append"))
    (tmp_path / "link").symlink_to(tmp_path / "in")
    spelled = (f"{tmp_path}/in/", f"{tmp_path}/in/../in", f"{tmp_path}/in/../in/*.json", tmp_path / "link", tmp_path / "link" / "1.json")
    for path in (tmp_path / "in", tmp_path / "in" / "*.json", tmp_path / "in" / "1.json", *spelled):
        with pytest.raises(QueryRefused) as refused:
            _run(spark, topic, _source(path, name="prices"))
        assert "query prices of topic t: query append reads " in str(refused.value)
        assert "use its name: name = append" in str(refused.value)
        assert "lastword queries forget t append" in str(refused.value)
    assert log(topic) == ['0 a={"v":1}']
    _write(tmp_path / "other", "1.json", '{"k":"b","v":1}')
    _run(spark, topic, _source(tmp_path / "other", name="prices"))
    _write(tmp_path / "in", "2.json", '{"k":"c","v":1}')
    _run(spark, topic, _source(tmp_path / "in", name="append"))
    _run(spark, logs.create_topic("u", config=_COMPACT), _source(tmp_path / "in", name="prices", topic="u"))
    assert [row.split("=")[0] for row in log(topic)] == ["0 a", "1 b", "2 c"]
    topic.forget_query("append")
    _run(spark, topic, _source(tmp_path / "in", name="again"))
    assert len(log(topic)) == 5, "every row again, as the way out says"
