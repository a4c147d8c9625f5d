"""Frames and files with columns of their own: what is appended without Spark, and what is said of those that cannot be."""

from __future__ import annotations

import bz2
import gzip
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

from lastword import LogDir
from lastword.change_data.events.envelopes import Envelope
from lastword.compaction.errors import InvalidRecords, UserError
from lastword.compaction.rows.batches import BatchLimits
from lastword.compaction.rows.input_columns import columns_of
from lastword.storage.append.append import append_rows
from lastword.storage.append.batch_rows import BatchRows
from lastword.storage.append.requests import AppendStats
from tests.pictures import log

if TYPE_CHECKING:
    from lastword import ArrowTopic

_ROWS: Final[list[dict[str, Any]]] = [
    {"id": 1, "status": "new", "op": "u"},
    {"id": 2, "status": "new", "op": "u"},
    {"id": 1, "status": None, "op": "d"},
]
_WORDS: Final[dict[str, Any]] = {"key": "id", "tombstone": "op = 'd'", "drop": "op"}
_RECORDS: Final = ['0 1={"status":"new"}', '1 2={"status":"new"}', "2 1=∅"]
_LINES: Final = "".join(f"{json.dumps(row)}\n" for row in _ROWS).encode()


@pytest.fixture
def topic(tmp_path: Path) -> ArrowTopic:
    """Return an empty compacted topic."""
    return LogDir(str(tmp_path / "data")).create_topic("orders", config={"cleanup.policy": "compact"})


@pytest.mark.parametrize("frame", [_ROWS, pd.DataFrame(_ROWS), pl.DataFrame(_ROWS), pa.Table.from_pylist(_ROWS)], ids=type)
def test_a_frame_becomes_records(topic: ArrowTopic, frame: Any) -> None:
    """Frames of each library give the same records, and the columns of the table are known afterwards."""
    assert topic.append(frame, **_WORDS).record_count == 3
    assert log(topic) == _RECORDS
    assert topic.table().to_pylist() == [{"id": 2, "status": "new"}]


def test_categories_are_texts(topic: ArrowTopic, tmp_path: Path) -> None:
    """In frames of pandas and Polars, in string views, and in the files that both write."""
    texts = {"id": ["a", "b"], "c": ["x", None]}
    polars = pl.DataFrame(texts, schema={"id": pl.String, "c": pl.Categorical})
    polars.write_parquet(tmp_path / "a.parquet")
    polars.write_ipc(tmp_path / "a.arrow")
    for frame in (polars, pd.DataFrame(texts).astype({"c": "category"})):
        topic.append(frame, key="id")
    for name in ("a.parquet", "a.arrow"):
        topic.append_file(tmp_path / name, key="id")
    assert [line.partition(" ")[2] for line in log(topic)] == ['a={"c":"x"}', 'b={"c":null}'] * 4


def test_a_late_row_of_a_frame_is_left_out(topic: ArrowTopic) -> None:
    """By its sequence, of several parts too."""
    frame = pl.DataFrame({"id": [1, 1, 1], "v": ["new", "old", "newer"], "n": [2, 1, 2], "at": [1, 9, 2]})
    result = topic.append(frame, key="id", columns=["v"], sequence=["n", "at"])
    assert (result.record_count, result.late) == (2, 1)
    assert log(topic) == ['0 1={"v":"new"}', '1 1={"v":"newer"}']


def test_a_transaction_takes_the_same_words(topic: ArrowTopic) -> None:
    """All of its rows are visible together."""
    with topic.transaction("load") as transaction:
        transaction.append(_ROWS, **_WORDS)
    assert [line for line in log(topic) if "COMMIT" not in line][:3] == _RECORDS
    assert topic.table().to_pylist() == [{"id": 2, "status": "new"}]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.jsonl", _LINES),
        ("a.json.gz", gzip.compress(_LINES)),
        ("a.ndjson.bz2", bz2.compress(_LINES)),
        ("a.json.zst", pa.compress(_LINES, "zstd", asbytes=True)),
        ("a.csv", b"id,status,op\n1,new,u\n2,new,u\n1,,d\n"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_of_text_becomes_records(topic: ArrowTopic, tmp_path: Path, name: str, data: bytes) -> None:
    """Told by its name, decompressed by its ending."""
    (tmp_path / name).write_bytes(data)
    assert topic.append_file(tmp_path / name, **_WORDS).record_count == 3
    assert log(topic) == _RECORDS


def test_a_typed_file_becomes_records(topic: ArrowTopic, tmp_path: Path) -> None:
    """Parquet and Arrow, told by what they begin with; a stream of Arrow by its format."""
    table = pa.Table.from_pylist(_ROWS)
    pq.write_table(table, tmp_path / "rows")
    feather.write_feather(table, tmp_path / "rows.bin")
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    stream.seek(0)
    for given in (tmp_path / "rows", tmp_path / "rows.bin"):
        topic.append_file(given, **_WORDS)
    topic.append_file(stream, format="arrow", **_WORDS)
    assert [line.partition(" ")[2] for line in log(topic)] == [line.partition(" ")[2] for line in _RECORDS] * 3


def test_a_stream_is_read_as_a_file_is(topic: ArrowTopic) -> None:
    """Compressed or not: what it begins with says it."""
    for data in (_LINES, gzip.compress(_LINES)):
        topic.append_file(io.BytesIO(data), format="json", **_WORDS)
    assert topic.describe().record_count == 6


@pytest.mark.parametrize("path", [io.StringIO("id\n1\n"), 5, None])
def test_what_is_no_stream_of_bytes_is_named(topic: ArrowTopic, path: Any) -> None:
    """With what is allowed."""
    with pytest.raises(UserError, match=r"path = .*: allowed are a path, a URI and a stream of bytes"):
        topic.append_file(path, format="csv", key="id")


@pytest.mark.parametrize(("name", "text"), [("a.json", '{"id":1,"name":"a"}\n'), ("a.csv", "id,name\n1,a\n")])
def test_a_column_of_the_schema_that_the_file_lacks_is_reported(
    topic: ArrowTopic, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, text: str
) -> None:
    """It is null, and its name may be misspelt. A difference in case alone is a mistake; a file without rows says nothing."""
    file = tmp_path / name
    file.write_text(text)
    assert topic.append_file(file, key="id", schema="id int, nmae string, name string").record_count == 1
    (record,) = caplog.records
    assert f'"columns are not in the file; they are null" topic=orders file={file} columns=nmae' in record.getMessage()
    assert log(topic) == ['0 1={"nmae":null,"name":"a"}']
    with pytest.raises(UserError, match="no column Name; there are id, name: upper and lower case differ"):
        topic.append_file(file, key="id", schema="id int, Name string")
    assert topic.append_file(file, key="id", schema="id int, name string").record_count == 1
    file.write_text("" if name == "a.json" else "id\n")
    assert topic.append_file(file, key="id", schema="id int, nmae string").record_count == 0
    assert len(caplog.records) == 1


def test_an_argument_that_is_none_is_named(topic: ArrowTopic, tmp_path: Path) -> None:
    """With those that there are."""
    (tmp_path / "a.csv").write_text("id\n1\n")
    arguments: dict[str, Any] = {"keys": "id"}
    with pytest.raises(UserError, match="keys: there is no such argument; allowed are format, schema, options, lines, key, value, columns"):
        topic.append_file(tmp_path / "a.csv", **arguments)


def test_a_column_of_a_condition_that_the_file_lacks_is_reported(
    topic: ArrowTopic, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is null, as of a source, and once is said which it is: a quote may have been forgotten."""
    (tmp_path / "a.csv").write_text("id,op\n1,d\n")
    assert topic.append_file(tmp_path / "a.csv", key="id", tombstone="op = d").record_count == 1
    (record,) = caplog.records
    assert "columns are not in the file; they are null" in record.getMessage()
    assert f"topic=orders file={tmp_path / 'a.csv'} columns=d" in record.getMessage()
    assert log(topic) == ['0 1={"op":"d"}']


def test_change_events_are_read_line_by_line(topic: ArrowTopic, tmp_path: Path) -> None:
    """As a source with the envelope reads them."""
    source = {"connector": "postgresql", "name": "shop", "db": "shop", "schema": "public", "table": "t", "lsn": 1}
    event = {"key": {"id": 1}, "value": {"before": None, "after": {"id": 1, "x": 2}, "op": "c", "source": source}}
    (tmp_path / "a.json").write_text(json.dumps(event, separators=(",", ":")) + "\n")
    assert topic.append_file(tmp_path / "a.json", envelope=Envelope()).record_count == 1
    assert log(topic) == ['0 {"id":1}={"id":1,"x":2}']


def test_a_schema_gives_texts_their_types(topic: ArrowTopic, tmp_path: Path) -> None:
    """In JSON and CSV files; a value that does not fit becomes a dead letter that names it."""
    (tmp_path / "a.csv").write_text("id,price,at\n1,1.5,2026-03-01 06:30\nx,2,\n")
    (tmp_path / "a.json").write_text('{"id":2,"price":2.25,"at":"2026-03-01T07:30:00+01:00","note":1}\n{"id":3,"price":1.555}\n')
    schema = "id bigint, price decimal(10,2), at timestamp"
    for name in ("a.csv", "a.json"):
        result = topic.append_file(tmp_path / name, key="id", schema=schema, on_invalid="dead-letter")
        assert (result.record_count, result.refused) == (1, {"malformed": 1})
    assert log(topic) == [
        '0 1={"price":1.50,"at":"2026-03-01T06:30:00.000000Z"}',
        '1 2={"price":2.25,"at":"2026-03-01T06:30:00.000000Z"}',
    ]
    assert [row["detail"] for row in topic.dead_letters().to_pylist()] == [
        'column id = "x": allowed is bigint',
        "column price = 1.555: allowed is decimal(10,2)",
    ]


@pytest.mark.parametrize(
    ("name", "data", "words", "message"),
    [
        ("a.json", b'{"id":1}\n\n{"id":}\n', {"key": "id"}, "a.json: .*1 × malformed: line 3: the row is no JSON object"),
        ("a.csv", b"id,x\n1,2\n3,4,5\n", {"key": "id"}, "a.csv: .*1 × malformed: the row has 3 fields, .* 2 columns: 3,4,5"),
        ("a.csv", b"id,x\n1,2\n,4\n", {"key": "id"}, "1 × keyless: row 2: key is null"),
        ("a.csv", b"id,id\n1,2\n", {"key": "id"}, "a.csv cannot be read: its header names a column twice: 'id'; nothing of it"),
        ("a.json", b'{"id":1}\n', {"key": "no"}, "a.json cannot be appended to topic orders: no column no; there are id"),
        ("a.json", b'{"id":1}\n', {"key": "ID"}, "no column ID; there are id: upper and lower case differ"),
        ("a.json", b'{"id":1}\n', {}, "a.json holds json: name the columns that are the key, or give an envelope"),
        ("a.json.gz", b'{"id":1}\n', {"key": "id"}, "a.json.gz cannot be read: "),
        ("a.txt", b"x", {"key": "id"}, "a.txt: its name does not say what it holds; allowed are .json"),
        ("a.txt", b"x", {"key": "id", "format": "xml"}, "format = 'xml': allowed are parquet, arrow, json, csv"),
        ("a.parquet", b"x", {"key": "id"}, "a.parquet cannot be read: it does not begin as a Parquet file does"),
        ("a.arrow", b"id,x\n1,2\n", {"key": "id"}, "a.arrow cannot be read: it does not begin as an Arrow file or stream does"),
        ("a.csv", b"id\n1\n", {"key": "id", "schema": ["id int"]}, r"append to topic orders: schema = \['id int'\]: allowed is a text"),
        ("a.csv", b"id\n1\n", {"key": "id", "format": 5}, "append to topic orders: format = 5: allowed is a text"),
        ("a.csv", b"id\n1\n", {"key": "id", "options": "sep=;"}, "options = 'sep=;': allowed are names and texts"),
        ("a.csv", b"id\n1\n", {"key": "id", "options": {"header": True}}, "options = {'header': True}: allowed are names and texts"),
        ("a.parquet", b"PAR1", {"key": "id"}, "a.parquet cannot be read: "),
        ("a.json", b'{"id":1}\n', {"key": "id", "options": {"sep": ";"}}, "options sep: of json files allowed are encoding"),
        ("a.json", b'{"id":1}\n', {"key": "id", "schema": "id xml"}, "is not SQL DDL"),
        ("a.json", b'{"id":1}\n', {"key": "id", "schema": "id json"}, "column id is json: allowed are the types of Spark"),
        ("a.json", b'{"id":1}\n', {"key": "id", "sequence": "id"}, "sequence id is string, and of texts 10 is below 9: say by sequence_as"),
        ("a.json", b'{"id":1}\n', {"key": "id", "tombstone": "lower(id)"}, "the function lower is for Spark alone"),
        ("a.json", b'{"id":1}\n', {"key": "id", "on_null": "keep"}, "on_null = keep looks up the newest row of a key, so it needs a seq"),
        ("a.json", b'{"id":1}\n', {"tombstone": "id"}, "tombstone: without key"),
        ("a.json", b'{"id":1}\n', {"key": "id", "lines": "records"}, "lines = 'records': allowed are records and values, with an envelope"),
    ],
)
def test_bad_input_is_named_and_nothing_is_appended(  # noqa: PLR0917
    topic: ArrowTopic, tmp_path: Path, name: str, data: bytes, words: dict[str, Any], message: str
) -> None:
    """One text: the file, the row or line, the value, and what is allowed."""
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match=f"(?s){message}"):
        topic.append_file(tmp_path / name, **words)
    assert log(topic) == []
    assert list((tmp_path / "data" / "orders" / "log").rglob("*.parquet")) == []


@pytest.mark.parametrize(
    ("frame", "words", "message"),
    [
        (pl.DataFrame({"id": [1]}), {"key": "no"}, "no column no; there are id"),
        (pl.DataFrame({"id": [1.5]}), {"key": "id"}, "column id is double: a floating-point number is no key"),
        (pl.DataFrame({"id": [1]}), {"key": "id", "drop": "x"}, "no column x; there are id"),
        (pl.DataFrame({"id": [1]}), {"key": ["id", "id"]}, r"key = \['id', 'id'\]: 'id': each name is allowed once"),
        (pl.DataFrame({"id": [1]}), {"key": "id", "columns": "id", "drop": "id"}, "columns and drop exclude each other"),
        (pl.DataFrame({"id": [1]}), {"key": "id", "timestamp": 5}, "timestamp = 5: allowed is a text"),
        (pl.DataFrame({"id": [1], "t": ["x"]}), {"key": "id", "timestamp": "t"}, "timestamp = 't' is .*string.*: allowed are a timestamp"),
        (pl.DataFrame({"id": [1], "t": [1.5]}), {"key": "id", "value": "t"}, "value = 't' is double: allowed are text, binary"),
        (pl.DataFrame({"id": [1]}), {"key": 7}, "append to topic orders: key = 7: allowed are texts: names of columns"),
        (pl.DataFrame({"id": [1]}), {"key": "id", "sequence": True}, "sequence = True: allowed are texts: SQL expressions"),
        (pl.DataFrame({"id": [1]}), {"key": "id", "sequence_as": "text"}, "sequence_as = 'text': it says what a text of sequence"),
        (pl.DataFrame({"id": [None]}), {"key": "id"}, "1 × keyless"),
        (pl.DataFrame({"id": [1]}), {"key": "id", "envelope": Envelope()}, "the events of an envelope say this themselves"),
        (pd.DataFrame([[1, 2]], columns=["id", "id"]), {"key": "id"}, "column id comes more than once"),
        (pl.DataFrame({"order_id": [1], "x": [1]}), {}, "there are order_id, x: name the columns that are the key, e.g. key='order_id'"),
        ([{"order_id": 1}], {}, "neither the column key nor the column value; there are order_id: name the columns that are the key"),
        (pl.DataFrame({"key": [b"1"], "order_id": [1]}), {}, "column order_id is unknown"),
        (pl.LazyFrame({"id": [1]}), {"key": "id"}, r"cannot take LazyFrame: call its method collect\(\) first"),
    ],
)
def test_a_frame_that_cannot_be_appended_is_named(topic: ArrowTopic, frame: Any, words: dict[str, Any], message: str) -> None:
    """Nothing is appended."""
    with pytest.raises(UserError, match=message):
        topic.append(frame, **words)
    assert log(topic) == []


@pytest.mark.parametrize("frame", [pd.DataFrame({"id": []}), pl.DataFrame({"id": []}), []], ids=type)
def test_an_empty_frame_appends_nothing(topic: ArrowTopic, frame: Any) -> None:
    """It is no mistake."""
    assert topic.append(frame, key="id").table_version is None


def test_a_truncate_deletes_all_that_came_before(topic: ArrowTopic) -> None:
    """By the sequence."""
    topic.append([{"id": 1, "op": "u", "n": 1}, {"id": 2, "op": "u", "n": 2}], key="id", sequence="n", truncate="op = 't'")
    topic.append([{"id": 9, "op": "t", "n": 3}, {"id": 3, "op": "u", "n": 4}], key="id", sequence="n", truncate="op = 't'")
    assert [row["key"] for row in topic.latest().to_pylist()] == [b"3"]
    lines = b'{"id":5,"op":"u","n":5}\n{"id":9,"op":"t","n":6}\n{"id":6,"op":"u","n":7}\n'
    words: dict[str, Any] = {"key": "id", "sequence": "CAST(n AS BIGINT)", "truncate": "op = 't'"}
    result = topic.append_file(io.BytesIO(lines), format="json", **words)
    assert (result.skipped, [row["key"] for row in topic.latest().to_pylist()]) == ({"truncate": 1}, [b"6"])


def test_a_file_is_one_commit_whatever_its_batches_are(topic: ArrowTopic) -> None:
    """Batches are opened again for another attempt; a refused row in the last one leaves no file behind."""
    columns = columns_of(pa.schema([("key", pa.string()), ("value", pa.string())]))
    good = [pa.record_batch({"key": [f"k{n}", f"l{n}"], "value": [str(n), str(n)]}) for n in range(5)]
    rows = BatchRows(columns, lambda: iter(good), limits=BatchLimits(batch_rows=1))
    result = append_rows(topic.log, rows, now_ms=1, stats=AppendStats())
    assert (result.table_version, result.record_count) == (1, 10)
    bad = [*good, pa.record_batch({"key": pa.array([None], pa.string()), "value": ["x"]})]
    before = set(Path(topic.log.paths.log).rglob("*.parquet"))
    with pytest.raises(InvalidRecords, match="row 11: key is null"):
        append_rows(topic.log, BatchRows(columns, lambda: iter(bad)), now_ms=2, stats=AppendStats())
    assert set(Path(topic.log.paths.log).rglob("*.parquet")) == before
