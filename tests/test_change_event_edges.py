"""Change events at the edges: rows that are known in part, fields that look like others, keys and schemas that cannot be read.

What is in doubt becomes a dead letter that names the remedy; nothing is dropped, and no other row is changed.
"""

from __future__ import annotations

import json
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from lastword import Envelope
from lastword.change_data.events.event_rows import event_rows
from tests.change_events import append, append_lines, change, key_of, rows_of, topic_in

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_OF_COLUMNS = Envelope(key=("tenant", "id"))
_FLAT_OF_COLUMNS = Envelope(kind="debezium-flat", key=("tenant", "id"))


def _refusals(*events: tuple[str | None, str | None], envelope: Envelope, decoder: Any = None) -> list[str | None]:
    columns = {"key": pa.array([key for key, _ in events], pa.string()), "value": pa.array([value for _, value in events], pa.string())}
    return [row["__refusal"] for row in event_rows(pa.record_batch(columns), envelope, decoder).to_pylist()]


# A row before the change that is known in part (PostgreSQL: REPLICA IDENTITY DEFAULT; MySQL: binlog_row_image=MINIMAL)


@pytest.mark.parametrize(
    "before",
    [
        pytest.param({"id": 1, "tenant": None}, id="null in the key's column"),
        pytest.param({"id": 1, "tenant": None, "v": None}, id="null in all but the primary key"),
        pytest.param({"id": 1}, id="no such column"),
        pytest.param(None, id="no row at all"),
        pytest.param({}, id="an empty row"),
    ],
)
def test_a_deletion_whose_key_columns_are_not_known_is_a_dead_letter(tmp_path: Path, before: Any) -> None:
    """It names the setting of the source; no tombstone is written under another key."""
    topic = topic_in(tmp_path)
    append(topic, change("c", 1, 1, {"id": 1, "tenant": "a", "v": 5}), envelope=_OF_COLUMNS)
    rows = [dict(zip(("key", "value"), change("d", 1, 2, before=before), strict=True))]
    assert topic.append(rows, envelope=_OF_COLUMNS, on_invalid="dead-letter").refused == {"no_event": 1}
    (letter,) = topic.dead_letters().to_pylist()
    assert "REPLICA IDENTITY FULL" in letter["detail"]
    assert list(rows_of(topic)) == ['{"id":1,"tenant":"a"}']


def test_a_deletion_of_a_whole_row_with_null_in_a_key_column_is_a_tombstone(tmp_path: Path) -> None:
    """A column beyond the event's own key has a value, so the row is whole; raw, and flattened as a row that says it was deleted."""
    topic = topic_in(tmp_path)
    row = {"id": 1, "tenant": None, "v": 5}
    append(topic, change("c", 1, 1, row), change("c", 2, 2, {**row, "id": 2}), envelope=_OF_COLUMNS)
    append(topic, change("d", 1, 3, before=row), envelope=_OF_COLUMNS)
    deleted = json.dumps({**row, "id": 2, "__deleted": "true", "__source_lsn": 4})
    append(topic, ('{"id":2}', deleted), envelope=_FLAT_OF_COLUMNS)
    assert rows_of(topic) == {}


# Fields of the flattened form


@pytest.mark.parametrize(
    ("envelope", "row", "columns"),
    [
        (Envelope(kind="debezium-flat"), {"__v": 1, "__row_version": 2, "__id": 3}, {"__v": 1, "__row_version": 2, "__id": 3}),
        (Envelope(kind="debezium-flat"), {"__source_lsn": 5, "__op": "c", "__transaction_id": "x", "v": 1}, {"v": 1}),
        (Envelope(kind="debezium-flat"), {"__": 1, "___x": 2, "__Op": 3}, {"__": 1, "___x": 2, "__Op": 3}),
        (Envelope(kind="debezium-flat", schema="id int, __table string"), {"__table": "t"}, {"__table": "t"}),
        (
            Envelope(kind="debezium-flat", add_fields=("op", "source.lsn")),
            {"__op": "c", "__source_lsn": 5, "__table": "t"},
            {"__table": "t"},
        ),
        (Envelope(kind="debezium-flat", add_fields=("source.lsn:place",)), {"__place": 5, "__source_lsn": 6}, {"__source_lsn": 6}),
        (Envelope(kind="debezium-flat", prefix="_dbz_"), {"_dbz_op": "c", "__op": "x", "_dbz_v": 1}, {"__op": "x", "_dbz_v": 1}),
        (Envelope(kind="debezium-flat", prefix=""), {"op": "c", "__op": "x"}, {"op": "c", "__op": "x"}),
    ],
)
def test_only_fields_that_the_connector_adds_are_taken_from_a_flat_row(
    tmp_path: Path, envelope: Envelope, row: Mapping[str, Any], columns: Mapping[str, Any]
) -> None:
    """A column of the row stays, whatever its name begins with."""
    topic = topic_in(tmp_path)
    append(topic, ('{"id":1}', json.dumps({"id": 1, **row})), envelope=envelope)
    assert rows_of(topic) == {'{"id":1}': {"id": 1, **columns}}


@pytest.mark.parametrize("envelope", [Envelope(kind="debezium-flat", prefix="_dbz_"), Envelope(kind="debezium-flat", add_fields=("op",))])
def test_deleted_has_no_prefix_of_ones_own(tmp_path: Path, envelope: Envelope) -> None:
    """ExtractNewRecordState calls it `__deleted` whatever `add.fields.prefix` says."""
    topic = topic_in(tmp_path)
    append(topic, ('{"id":1}', '{"id":1,"__deleted":"false"}'), ('{"id":2}', '{"id":2}'), envelope=envelope)
    append(topic, ('{"id":1}', '{"id":1,"__deleted":"true"}'), envelope=envelope)
    assert rows_of(topic) == {'{"id":2}': {"id": 2}}


def test_a_renamed_position_orders_the_events(tmp_path: Path) -> None:
    """`add.fields = source.lsn:place`."""
    topic, envelope = topic_in(tmp_path), Envelope(kind="debezium-flat", add_fields=("op", "source.lsn:place"))
    append(topic, ('{"id":1}', '{"id":1,"v":"new","__place":9}'), envelope=envelope)
    assert append(topic, ('{"id":1}', '{"id":1,"v":"old","__place":8}'), envelope=envelope).late == 1
    assert rows_of(topic) == {'{"id":1}': {"id": 1, "v": "new"}}


def test_the_clock_of_the_source_is_not_that_of_the_connector(tmp_path: Path) -> None:
    """Flattened events of MongoDB have both; the connector's is later, and says nothing of the order."""
    topic = topic_in(tmp_path)

    def event(value: str, source_ms: int, connector_ms: int) -> tuple[str, str]:
        row = {"_id": 1, "v": value, "__source_ts_ms": source_ms, "__source_ord": 1, "__ts_ms": connector_ms}
        return '{"id":1}', json.dumps(row)

    append(topic, event("new", 2_000, 2_100), envelope=Envelope(kind="debezium-flat"))
    assert append(topic, event("old", 1_000, 9_000), envelope=Envelope(kind="debezium-flat")).late == 1
    assert rows_of(topic) == {'{"id":1}': {"_id": 1, "v": "new"}}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        pytest.param('{"ts_ms":5}', '{"ts_ms":5}', id="the only column ts_ms"),
        pytest.param('{"schema":"a","payload":"b"}', '{"schema":"a","payload":"b"}', id="columns schema and payload"),
        pytest.param('{"schema":1,"payload":null}', '{"schema":1,"payload":null}', id="with null"),
        pytest.param('{"op":"d"}', '{"op":"d"}', id="a column op"),
        pytest.param('{"deleted":"true"}', '{"deleted":"true"}', id="a column deleted"),
        pytest.param('{"serverName":"s"}', '{"serverName":"s","ts_ms":1}', id="a column serverName"),
    ],
)
def test_a_flat_row_whose_columns_have_names_of_debezium_is_a_row(tmp_path: Path, key: str, value: str) -> None:
    """It is told apart by more than a name."""
    topic = topic_in(tmp_path)
    append(topic, (key, value), envelope=Envelope(kind="debezium-flat"))
    assert [json.loads(row) for row in topic.latest().column("value").to_pylist()] == [json.loads(value)]


def test_columns_that_the_source_names_are_no_wrapping_of_connect(tmp_path: Path) -> None:
    """A row of the columns schema and payload, both null, is none of Connect's tombstones then."""
    topic = topic_in(tmp_path)
    append(topic, ("k", '{"schema":null,"payload":null}'), envelope=Envelope(kind="debezium-flat", schema="schema string, payload json"))
    assert rows_of(topic) == {'"k"': {"schema": None, "payload": None}}
    append(topic, ("k", '{"schema":null,"payload":null}'), envelope=Envelope(kind="debezium-flat"))
    assert rows_of(topic) == {}


# Lines of files


def test_a_line_with_a_business_column_called_value_is_the_row(tmp_path: Path) -> None:
    """A line is a record of Kafka if it has no other fields than those of a record."""
    topic, envelope = topic_in(tmp_path), Envelope(kind="debezium-flat", key=("id",))
    append_lines(
        topic, '{"value":{"id":77,"cm":3},"id":1}', '{"id":2,"value":5,"key":"x"}', '{"headers":[],"value":"a","id":3}', envelope=envelope
    )
    assert rows_of(topic) == {
        '{"id":1}': {"value": {"id": 77, "cm": 3}, "id": 1},
        '{"id":2}': {"id": 2, "value": 5, "key": "x"},
        '{"id":3}': {"headers": [], "value": "a", "id": 3},
    }


@pytest.mark.parametrize("value", ["108000000000", "-3020399000000", '"30:00:00"', '"-838:59:59"'])
def test_a_time_of_mysql_that_is_no_time_of_day_has_a_way_on(tmp_path: Path, value: str) -> None:
    """The dead letter says which types take it; they do."""
    event = ('{"id":1}', f'{{"op":"c","after":{{"id":1,"t":{value}}},"source":{{"connector":"mysql","file":"b.1","pos":4}}}}')
    (refusal,) = _refusals(event, envelope=Envelope(schema="id int, t time"))
    assert refusal is not None
    assert "give the column in schema as bigint, or with isostring as string" in refusal
    kind = "string" if value.startswith('"') else "bigint"
    topic = topic_in(tmp_path)
    append(topic, event, envelope=Envelope(schema=f"id int, t {kind}"))
    assert topic.table().to_pylist() == [{"id": 1, "t": json.loads(value)}]


# Where an append ends


@pytest.mark.parametrize("cuts", [cuts for count in range(4) for cuts in combinations(range(1, 4), count)], ids=str)
@pytest.mark.parametrize(("is_flat", "mode"), [(False, ""), (True, ""), (True, "rewrite-with-tombstone")])
@pytest.mark.parametrize("is_noted", [False, True], ids=["tombstone without a key", "tombstone with the new key"])
def test_a_row_that_moves_keeps_its_columns_wherever_an_append_ends(
    tmp_path: Path, cuts: tuple[int, ...], mode: Any, *, is_flat: bool, is_noted: bool
) -> None:
    """A change of the key with TOAST: the row, its deletion, the tombstone behind that, and the row under its new key."""
    left_out = "__debezium_unavailable_value"

    def event(op: str, key: int, at: int, body: str, **headers: int) -> dict[str, Any]:
        row = {"id": key, "body": body}
        flat = json.dumps({**row, "__deleted": str(op == "d").lower(), "__op": op, "__source_lsn": at, "__source_connector": "postgresql"})
        value = flat if is_flat else change(op, key, at, None if op == "d" else row, before=row if op == "d" else None)[1]
        return {"key": key_of(key), "value": value, "headers": noted(headers)}

    def noted(headers: Mapping[str, int]) -> list[dict[str, str]]:
        return [{"key": f"__debezium.{name}", "value": key_of(key)} for name, key in headers.items()]

    tombstone = {"key": key_of(5), "value": None, "headers": noted({"newkey": 50} if is_noted else {})}
    events = [event("c", 5, 10, "long"), event("d", 5, 20, "long", newkey=50), tombstone, event("c", 50, 20, left_out, oldkey=5)]
    topic = topic_in(tmp_path)
    envelope = Envelope(kind="debezium-flat" if is_flat else "debezium", delete_tombstone_handling_mode=mode)
    for start, end in pairwise([0, *cuts, 4]):
        assert not topic.append(events[start:end], envelope=envelope).refused
    assert list(rows_of(topic).values()) == [{"id": 50, "body": "long"}]
