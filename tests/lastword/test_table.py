"""Rows as the table that they are: the columns that sources name, through Arrow, and what does not fit them."""

from __future__ import annotations

import json
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from lastword import ArrowTopic, Envelope, LogDir, UserError
from lastword.arrow_topic import DECODED_ROWS, decode_rows
from lastword.change_data.columns.connect_schema import columns_of_ddl
from lastword.change_data.columns.table_columns import TableColumns, TableDecoder
from lastword.cli import app as cli

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_CONFIG = {"cleanup.policy": "compact"}
_PRICE = {
    "type": "bytes",
    "name": "org.apache.kafka.connect.data.Decimal",
    "field": "price",
    "parameters": {"scale": "2", "connect.decimal.precision": "10"},
}
_AT = {"type": "int64", "name": "io.debezium.time.MicroTimestamp", "field": "at"}


def _event(lsn: int, row: dict[str, Any] | None, fields: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return an event with Connect's schema."""
    schema = {"type": "struct", "fields": [{"type": "struct", "field": "after", "fields": list(fields)}]}
    payload = {"op": "u" if row else "d", "before": None, "after": row, "source": {"connector": "postgresql", "lsn": lsn}}
    key = (row or {"id": 1})["id"]
    return {"key": json.dumps({"id": key}), "value": json.dumps({"schema": schema, "payload": payload})}


def _latest_rows(values: Sequence[str]) -> pa.Table:
    """Return records of partition 0 from offset 100 on, the first one under the key k0."""
    numbers = range(len(values))
    columns = {
        "partition": pa.array([0] * len(values), pa.int32()),
        "offset": pa.array([100 + number for number in numbers], pa.int64()),
        "key": pa.array([f"k{number}".encode() for number in numbers], pa.binary()),
        "value": pa.array([value.encode() for value in values], pa.binary()),
    }
    return pa.table(columns)


def _fields(*fields: dict[str, Any], id_type: str = "int32") -> list[dict[str, Any]]:
    return [{"type": id_type, "field": "id"}, *fields]


@pytest.fixture(name="topic")
def _topic(tmp_path: Path) -> ArrowTopic:
    return LogDir(tmp_path / "logs").create_topic("t", partitions=2, config=_CONFIG)


def test_the_columns_are_those_of_the_newest_schema(topic: ArrowTopic) -> None:
    """By position, not by arrival; a column that came later is null in older rows, one that went is not shown, a wider type reads both.

    ```
     position  schema                  table
     1         id int, note text       id, note
     3         id bigint, price, at    id, price, at
     2         id int, note text       id, price, at
    ```
    """
    note = {"type": "string", "field": "note"}
    topic.append([_event(1, {"id": 1, "note": "a"}, _fields(note))], envelope=Envelope())
    assert topic.table().to_pylist() == [{"id": 1, "note": "a"}]
    newest = _fields(_PRICE, _AT, id_type="int64")
    topic.append([_event(3, {"id": 2**40, "price": "AfQ=", "at": 1_700_000_000_000_001}, newest)], envelope=Envelope())
    topic.append([_event(2, {"id": 7, "note": "late schema"}, _fields(note))], envelope=Envelope())
    found = sorted(topic.table().to_pylist(), key=lambda row: row["id"])
    assert found == [
        {"id": 1, "price": None, "at": None},
        {"id": 7, "price": None, "at": None},
        {"id": 2**40, "price": Decimal("5.00"), "at": datetime(2023, 11, 14, 22, 13, 20, 1)},  # noqa: DTZ001  a column without a zone
    ]
    assert topic.table(schema="id bigint, note string").column("note").to_pylist().count("a") == 1
    commits = topic.log.ledger.rows()
    topic.append([_event(9, {"id": 8, "price": None, "at": None}, newest)], envelope=Envelope())
    assert len(topic.log.ledger.rows()) == len(commits), "what is known already is not written again"


def test_many_events_of_one_schema_name_its_columns_too(topic: ArrowTopic) -> None:
    """Events that are alike are read together."""
    rows = [_event(100 + number, {"id": number, "price": "AfQ=", "at": number}, _fields(_PRICE, _AT)) for number in range(60)]
    topic.append(rows, envelope=Envelope())
    assert topic.table().schema.names == ["id", "price", "at"]
    assert set(topic.table().column("price").to_pylist()) == {Decimal("5.00")}


def test_the_columns_of_an_envelope_are_those_of_its_schema(topic: ArrowTopic) -> None:
    """Every type as what it is; of some keys or partitions, or of the past, as `latest()`."""
    ddl = "id int, price decimal(10,2), at timestamp, day date, raw binary, tags array<string>, meta json, u uuid"
    row = {
        "id": 1,
        "price": "AfQ=",
        "at": 1_700_000_000_000_001,
        "day": 20_000,
        "raw": "AP8=",
        "tags": ["a", None],
        "meta": '{"a": 1.0}',
        "u": "0b7c1f0e-0000-0000-0000-000000000001",
    }
    events = [{"key": json.dumps({"id": row_id}), "value": json.dumps({"op": "c", "after": {**row, "id": row_id}})} for row_id in (1, 2)]
    topic.append(events, envelope=Envelope(schema=ddl))
    (found,) = topic.table(keys=['{"id":1}']).to_pylist()
    assert found == {
        "id": 1,
        "price": Decimal("5.00"),
        "at": datetime(2023, 11, 14, 22, 13, 20, 1, timezone.utc),
        "day": date(2024, 10, 4),
        "raw": b"\x00\xff",
        "tags": ["a", None],
        "meta": '{"a":1.0}',
        "u": "0b7c1f0e-0000-0000-0000-000000000001",
    }
    version = topic.log.snapshot().version
    topic.append([{"key": '{"id":1}', "value": json.dumps({"op": "d", "before": {"id": 1}})}], envelope=Envelope(schema=ddl))
    assert (len(topic.table()), len(topic.table(as_of=version))) == (1, 2)


def test_a_value_that_does_not_fit_is_named_or_null(topic: ArrowTopic) -> None:
    """With its topic, partition, offset, key and column."""
    topic.append([{"key": "a", "value": '{"n":1}'}, {"key": "b", "value": '{"n":"x","m":2}'}, {"key": "c", "value": "no json"}])
    with pytest.raises(UserError, match="topic t: no source of the topic says which columns its rows have; give them as SQL DDL"):
        topic.table()
    with pytest.raises(UserError, match=r"topic t, partition \d, offset \d, key (b|c): .*mode='PERMISSIVE' for null"):
        topic.table(schema="n int, m int")
    found = sorted(map(repr, topic.table(schema="n int, m int", mode="PERMISSIVE").to_pylist()))
    assert found == ["{'n': 1, 'm': None}", "{'n': None, 'm': 2}", "{'n': None, 'm': None}"]
    with pytest.raises(UserError, match="mode = 'LAX': allowed is FAILFAST or PERMISSIVE"):
        topic.table(schema="n int", mode="LAX")
    with pytest.raises(UserError, match="topic t: schema = 'n inta': DDL, at inta: a type expected"):
        topic.table(schema="n inta")


@pytest.mark.parametrize("batch_rows", [1, 2, 3, 5, 6])
def test_rows_are_the_same_however_many_are_decoded_at_a_time(batch_rows: int) -> None:
    """Also the row that does not fit is the same one, in whichever batch it is."""
    columns = TableColumns(value=columns_of_ddl("n int"))
    rows = _latest_rows(values=[f'{{"n":{number}}}' for number in range(5)])
    decoded = decode_rows(rows, TableDecoder(columns), topic="t", batch_rows=batch_rows)
    assert decoded.to_pylist() == [{"n": number} for number in range(5)]
    rows = _latest_rows(values=['{"n":0}', '{"n":1}', '{"n":2}', '{"n":"x"}', '{"n":4}'])
    with pytest.raises(UserError, match='topic t, partition 0, offset 103, key k3: column n = "x"'):
        decode_rows(rows, TableDecoder(columns), topic="t", batch_rows=batch_rows)
    lenient = decode_rows(rows, TableDecoder(columns, on_misfit="null"), topic="t", batch_rows=batch_rows)
    assert lenient.column("n").to_pylist() == [0, 1, 2, None, 4]
    assert decode_rows(rows.slice(0, 0), TableDecoder(columns), topic="t", batch_rows=batch_rows).num_rows == 0


@pytest.mark.long
@pytest.mark.parametrize("count", [DECODED_ROWS - 1, DECODED_ROWS, DECODED_ROWS + 1, 2 * DECODED_ROWS + 1])
def test_a_table_of_about_the_size_of_a_batch_has_every_row_once(tmp_path: Path, count: int) -> None:
    """With one row less, as many, and one more; a row that does not fit is named, also as the first of a second batch."""
    topic = LogDir(tmp_path).create_topic("large", config=_CONFIG)
    numbers = range(count)
    topic.append(pa.table({"key": [f"k{number}" for number in numbers], "value": [f'{{"n":{number}}}' for number in numbers]}))
    assert topic.table(schema="n int").column("n").to_pylist() == list(numbers)
    assert len(topic.table(schema="n int", limit=count - 1)) == count - 1
    topic.append([{"key": "bad", "value": '{"n":"x"}'}])
    with pytest.raises(UserError, match=rf'topic large, partition 0, offset {count}, key bad: column n = "x"'):
        topic.table(schema="n int")
    assert topic.table(schema="n int", mode="PERMISSIVE").column("n").to_pylist() == [*numbers, None]


def test_the_command_shows_the_table(topic: ArrowTopic, tmp_path: Path) -> None:
    """As a table, or as JSON with decimals and times as text."""
    ddl = "id int, price decimal(10,2), raw binary, at timestamp, tags array<string>"
    row = {"id": 1, "price": "AfQ=", "raw": "AP8=", "at": 1_700_000_000_000_001, "tags": ["a"]}
    topic.append([{"key": '{"id":1}', "value": json.dumps({"op": "c", "after": row})}], envelope=Envelope(schema=ddl))
    done = CliRunner().invoke(cli.app, ["table", "t", "--log-dir", str(tmp_path / "logs"), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output) == {
        "id": 1,
        "price": "5.00",
        "raw": "AP8=",
        "at": "2023-11-14T22:13:20.000001+00:00",
        "tags": ["a"],
    }
    shown = CliRunner().invoke(cli.app, ["table", "t", "--log-dir", str(tmp_path / "logs"), "--limit", "1"])
    assert "5.00" in shown.output
