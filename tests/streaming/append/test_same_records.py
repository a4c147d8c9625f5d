"""A source with Spark and `append` without it make the same records of the same rows: keys, values, times, sequences, deletions."""

from __future__ import annotations

import datetime as dt
import gzip
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lastword.streaming.append.source_settings import FileSource
from lastword.streaming.append.sources import open_source
from tests.pictures import by_arrow

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from lastword import LogDir, SparkTopic, Topic

_COMPACT: Final = {"cleanup.policy": "compact"}
_INSTANT: Final = pa.timestamp("us", "UTC")
#: A column of each type, with values at its ends and null.
_TYPED: Final = pa.table(
    {
        "id": pa.array([1, 2, 3, 4]),
        "op": ["u", "d", None, "u"],
        "i8": pa.array([1, -128, 127, None], pa.int8()),
        "i16": pa.array([1, -(2**15), None, 0], pa.int16()),
        "i32": pa.array([1, None, -(2**31), 2**31 - 1], pa.int32()),
        "i64": pa.array([2**63 - 1, -(2**63), None, 0]),
        "price": pa.array([Decimal("1.50"), Decimal("-0.05"), None, Decimal("100.00")], pa.decimal128(10, 2)),
        "tiny": pa.array([Decimal("1E-18"), Decimal("1.5"), Decimal(0), None], pa.decimal128(38, 18)),
        "whole": pa.array([Decimal(100), Decimal(0), None, Decimal(-7)], pa.decimal128(12, 0)),
        "f32": pa.array([0.1, 1e10, float("nan"), None], pa.float32()),
        "f64": pa.array([1e-5, 123456789.125, float("-inf"), None]),
        "g64": pa.array([-0.0, 1e7, 9999999.0, 0.001]),
        "h64": pa.array([5e-324, 1.7976931348623157e308, 9.999e-4, 1.5e22]),
        "flag": pa.array([True, False, None, True]),
        "bin": pa.array([b"\x00\xff", b"", None, b"abc"]),
        "text": ['a"\\/\b\f\n\r\t\x01\x1f\x7f\u2028é😀', "", None, "null"],
        "day": pa.array([dt.date(2026, 1, 1), dt.date(1, 1, 1), dt.date(9999, 12, 31), None]),
        "at": pa.array(["2026-01-01T01:02:03.000456", "0001-01-01", None, "1969-12-31"]).cast(pa.timestamp("us")).cast(_INSTANT),
        "local": pa.array(["2026-01-01T01:02:03.000456", "1600-01-01", None, "1970-01-01"]).cast(pa.timestamp("us")),
        "nested": pa.array(
            [{"a": 1, "b": {"c": None}}, {"a": None, "b": None}, None, {"a": 2, "b": {"c": ['"', None]}}],
            pa.struct([("a", pa.int32()), ("b", pa.struct([("c", pa.list_(pa.string()))]))]),
        ),
        "list": pa.array([[Decimal("1.50"), None], [], None, [Decimal("0.00")]], pa.list_(pa.decimal128(5, 2))),
        "lists": pa.array([[[1], [], None], [None], None, []], pa.list_(pa.list_(pa.int64()))),
        "map": pa.array([[("k", 1.5), ('l"', None)], [], None, [("", 1e10)]], pa.map_(pa.string(), pa.float64())),
        "numbered": pa.array([[(1, dt.date(2026, 1, 1))], [], None, [(-5, None)]], pa.map_(pa.int64(), pa.date32())),
        "maps": pa.array(
            [[{"x": [("a", b"1")]}], [None], None, [{"x": None}]], pa.list_(pa.struct([("x", pa.map_(pa.string(), pa.binary()))]))
        ),
        'a name, with `signs` "': pa.array([1, 2, None, 3]),
    }
)


def _by_source(spark: SparkSession, topic: SparkTopic, folder: Path, **settings: Any) -> None:
    given = {"name": "files", "topic": "t", "path": str(folder), **settings}
    source = FileSource.model_validate(given)
    opened = open_source(spark, source, topic.log, now_ms=0)
    query = topic.append_stream(
        opened.rows, name="files", trigger={"availableNow": True}, envelope=opened.envelope, upstream=opened.upstream, sequence_as="text"
    )
    assert query.awaitTermination(120)


def _rows(topic: Topic) -> list[dict[str, Any]]:
    """Return the records without the time of the append, and the dead letters by reason and text of the row."""
    names = ["offset", "key", "value", "source_sequence", "timestamp", "headers"]
    return cast("list[dict[str, Any]]", by_arrow(topic).records(columns=names).to_pylist())


def _letters(topic: Topic) -> list[tuple[Any, ...]]:
    rows = by_arrow(topic).dead_letters().to_pylist()
    return sorted((str(row["reason"]), row["record_key"] or b"", row["value"] or b"", row["raw"] or "") for row in rows)


_KEYS: Final = [name for name in _TYPED.column_names if name not in {"f32", "f64", "g64", "h64", "list", "map"}]


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the typed rows as Parquet."""
    folder = tmp_path_factory.mktemp("typed")
    pq.write_table(_TYPED, folder / "rows.parquet")
    return folder


@pytest.mark.parametrize(
    "words",
    [
        {"key": ["id"]},
        {"key": ["id"], "tombstone": "op = 'd'", "drop": ["op", "map"], "sequence": ["i64", "price", "at", "day", "flag", "f64"]},
        {"key": ["op", "id", "price", "at", "bin", "nested", "day", "maps"], "columns": ["text", "id"]},
        {"key": ["id"], "value": "bin"},
        {"key": ["id"], "value": "tiny"},
        {"key": ["id"], "on.null": "keep", "sequence": ["id"], "tombstone": "flag"},
        {"key": ["id"], "sequence": ["id"], "truncate": "price > 50 AND NOT flag IS NULL"},
        {"key": ["id"], "tombstone": "at >= TIMESTAMP '2026-01-01T00:00:00Z' OR f64 < 0 OR day = '0001-01-01'"},
        {"key": ["id"], "tombstone": "i8 IN (1, -128) AND price BETWEEN -1 AND 1.5 OR g64 > 0.5"},
        {"key": ["id"], "tombstone": "f64 <> 1.5 AND f32 > 1 AND i64 <= 0.5", "sequence": ["op"], "sequence.as": "text"},
        {"key": ["id"], "sequence": ["text"], "sequence.as": "number"},
        *({"key": [name], "columns": ["id"]} for name in _KEYS if name != "id"),
    ],
    ids=lambda words: " ".join(f"{name}={value}" for name, value in words.items())[:60],
)
def test_typed_rows_are_the_same_records(spark: SparkSession, logs: LogDir[SparkTopic], typed: Path, words: dict[str, Any]) -> None:
    """A Parquet source, an Arrow frame, a file and a Spark DataFrame give equal records."""
    python = {name.replace(".", "_"): value for name, value in words.items()}
    source, frame, file, rows = (logs.create_topic(name, config={}) for name in ("source", "frame", "file", "dataframe"))
    _by_source(spark, source, typed, format="parquet", **words)
    expected, letters = _rows(source), _letters(source)
    assert len(expected) + len(letters) or words.get("truncate")
    frame.append(_TYPED, on_invalid="dead-letter", **python)
    file.append_file(typed / "rows.parquet", on_invalid="dead-letter", **python)
    rows.append(spark.read.parquet(str(typed)).coalesce(1), on_invalid="dead-letter", **python)
    for topic in (frame, file, rows):
        for made, given in zip(_rows(topic), expected, strict=True):
            assert {**made, "timestamp": 0} == {**given, "timestamp": 0}, topic.name
        assert _letters(topic) == letters
        assert topic.log.decisions().columns == source.log.decisions().columns


#: Fields with quotes, separators, line ends, spaces and nothing in them; a row with too many fields, and one without a key.
_CSV: Final = """id,name,price,at,op,n
007,"a, ""b"" c",1.50,2026-03-01T06:30:00Z,u,10
8, x ,,2026-03-01 07:30:00.5,u,9
9,"",2e3,1772346600000,d,+11
10,"two
lines",-0,2026-03-01,,-1.5
11,é😀\t/,7.125,2026-03-01T06:30:00+01:00,t,9.5
12,too,many,fields,for,the,header
,keyless,1,2026-03-02T00:00:00Z,u,12
007,last,0.10,2026-03-03T00:00:00Z,u,x
13,no time,1,yesterday,u,13
"""
#: Values of each kind, written in more than one way; a row that is no JSON, one with a column twice, one without a key.
_JSON: Final = """{"id":"007","name":"a, \\"b\\"","price":1.50,"at":"2026-03-01T06:30:00Z","op":"u","n":10}
{ "id" : 8 , "name" : null , "price" : 1e3 , "at" : "2026-03-01 07:30:00.5" , "op" : "u" , "n" : 9 }

{"id":-0,"name":"\\u00e9\\ud83d\\ude00\\/\\t","price":-0,"at":1772346600000,"op":"d","n":-0}
{"id":1.50,"name":true,"price":-0.0,"at":"2026-03-01","op":"t","n":9.5}
{"id":{"b":1,"a":[1.0,2]},"name":{"x":null},"price":[],"at":"2026-03-01T06:30:00+01:00","n":12345678901234567890,"more":{"a": 1}}
{"id":9,"op":
{"id":10,"id":11,"name":"twice","at":"2026-03-01","n":1}
{"name":"keyless","price":1,"at":"2026-03-02T00:00:00Z","op":"u","n":12}
{"id":12,"name":"é😀\u007f\u2028","price":0.10,"at":"2026-03-03T00:00:00Z","op":false,"n":"x"}
{"id":13,"name":"no time","price":1,"at":"yesterday","op":"u","n":13}
"""
_SCHEMA: Final = "id string, name string, price decimal(10,2), at timestamp, op string, n double"
_TYPED_JSON: Final = """{"id":1,"name":"a\\n","price":1.5,"at":"2026-03-01T06:30:00Z","tags":["x",null],"of":{"b":"AP8="},"m":{"k":-0}}
{"id":2,"price":-0,"at":"2026-03-01","tags":[],"of":null,"m":{},"more":1}
{"id":3,"name":7,"price":100,"at":"1970-01-01T00:00:00.0000019","of":{"b":null,"c":1},"tags":null,"m":{"a":1.5,"b":1e10}}
{"id":4,"name":"misfit","price":true}
{"id":"5","name":"no key","price":1}
"""
_TYPED_SCHEMA: Final = (
    "id bigint, name string, price decimal(10,2), at timestamp, tags array<string>, of struct<a:int,b:binary>, m map<string,double>"
)
_TEXTS: Final[list[tuple[str, bytes, dict[str, Any]]]] = [
    ("a.csv", _CSV.encode(), {"key": ["id"]}),
    ("a.csv", _CSV.encode(), {"key": ["op", "id"], "tombstone": "op = 'd'", "drop": ["op", "n"]}),
    ("a.csv", _CSV.encode(), {"key": ["id"], "columns": ["price", "name"], "tombstone": "op IS NULL OR price = '1.50'"}),
    ("a.csv", _CSV.encode(), {"key": ["id"], "value": "name", "timestamp": "at"}),
    ("a.csv", _CSV.encode(), {"key": ["id"], "sequence": ["n"], "sequence.as": "number"}),
    ("a.csv", _CSV.encode(), {"key": ["id"], "sequence": ["at", "id"], "sequence.as": "text"}),
    ("a.csv", _CSV.encode(), {"key": ["id"], "sequence": ["at"], "sequence.as": "time", "tombstone": "op = 'd'"}),
    ("a.csv", _CSV.encode(), {"key": ["id"], "sequence": ["CAST(n AS DOUBLE)"], "truncate": "op = 't'", "drop": ["n"]}),
    ("a.csv", _CSV.encode(), {"key": ["id"], "schema": _SCHEMA, "tombstone": "op = 'd'", "sequence": ["at", "n"]}),
    ("a.csv", _CSV.encode(), {"key": ["id"], "schema": _SCHEMA, "tombstone": "price >= 2 OR op IS NULL", "timestamp": "at"}),
    (
        "a.csv",
        "id;x\n1;é\n2;|a\\|b;c|\n".encode("ISO-8859-1"),
        {"key": ["id"], "options": {"sep": ";", "quote": "|", "escape": "\\", "encoding": "ISO-8859-1"}},
    ),
    ("a.csv", b"id\tx\n1\t'a\t''b'\n", {"key": ["id"], "options": {"sep": "\\t", "quote": "'", "escape": "'"}}),
    (
        "a.csv",
        b"id,op,n,m\n1,u,1,1\n2,t,,\n3,t,5,\n4,u,2,2\n5,t,1,5\n",
        {"key": ["id"], "sequence": ["CAST(n AS INT)", "CAST(m AS DOUBLE)"], "truncate": "op = 't'"},
    ),
    ("a.csv.gz", gzip.compress(_CSV.encode()), {"key": ["id"]}),
    ("a.json", _JSON.encode(), {"key": ["id"]}),
    ("a.json", _JSON.encode(), {"key": ["op", "id"], "tombstone": "op = 'd'", "drop": ["op", "n"]}),
    ("a.json", _JSON.encode(), {"key": ["id"], "columns": ["price", "more"], "tombstone": "n = '0' OR op = 'false'"}),
    ("a.json", _JSON.encode(), {"key": ["id"], "value": "name", "timestamp": "at"}),
    ("a.json", _JSON.encode(), {"key": ["id"], "value": "price", "tombstone": "n = '9.5'"}),
    ("a.json", _JSON.encode(), {"key": ["id"], "sequence": ["n"], "sequence.as": "number"}),
    ("a.json", _JSON.encode(), {"key": ["id"], "sequence": ["at", "n"], "sequence.as": "text"}),
    ("a.json", _JSON.encode(), {"key": ["id"], "sequence": ["CAST(n AS DOUBLE)"], "truncate": "op = 't'", "drop": ["n"]}),
    ("a.jsonl.gz", gzip.compress(_JSON.encode()), {"key": ["id"], "drop": ["more"]}),
    ("a.json", _JSON.encode("UTF-16"), {"key": ["id"], "options": {"encoding": "UTF-16"}}),
    ("a.json", b'[{"id":1,"x":1.50},\n {"id":2,"x":{"a": 1}}, 3]', {"key": ["id"], "options": {"multiLine": "true"}}),
    ("a.json", _TYPED_JSON.encode(), {"key": ["id"], "schema": _TYPED_SCHEMA}),
    ("a.json", _TYPED_JSON.encode(), {"key": ["id", "price"], "schema": _TYPED_SCHEMA, "tombstone": "price > 2", "timestamp": "at"}),
    ("a.json", _TYPED_JSON.encode(), {"key": ["id"], "schema": _TYPED_SCHEMA, "on.null": "keep", "sequence": ["id"], "drop": ["m", "of"]}),
    ("a.json", _TYPED_JSON.encode(), {"key": ["id"], "schema": _TYPED_SCHEMA, "sequence": ["at", "id"], "truncate": "price < 1"}),
]


@pytest.mark.parametrize(
    ("name", "data", "words"), _TEXTS, ids=[f"{name} {' '.join(f'{k}={v}' for k, v in words.items())}"[:80] for name, _, words in _TEXTS]
)
def test_rows_of_text_files_are_the_same_records(  # noqa: PLR0917
    spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path, name: str, data: bytes, words: dict[str, Any]
) -> None:
    """A CSV or JSON source, and the same file without Spark, give equal records and equal dead letters."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / name).write_bytes(data)
    source, file = (logs.create_topic(topic, config=_COMPACT) for topic in ("source", "file"))
    _by_source(spark, source, tmp_path / "in", format="csv" if ".csv" in name else "json", **words)
    python: dict[str, Any] = {name.replace(".", "_"): value for name, value in words.items()}
    file.append_file(tmp_path / "in" / name, on_invalid="dead-letter", **python)
    expected = _rows(source)
    assert expected
    times = {} if words.get("timestamp") else {"timestamp": 0}  # else that of the append
    for made, given in zip(_rows(file), expected, strict=True):
        assert {**made, **times} == {**given, **times}
    assert _letters(file) == _letters(source)
    assert file.log.decisions().columns == source.log.decisions().columns
