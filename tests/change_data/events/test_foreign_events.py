"""Events that no connector sends, and rows of a document store: one odd record never takes the others along.

```
 good, odd, good   ─►   two rows, one refused with its reason
```
"""

from __future__ import annotations

import json
from typing import Any, Final

import pyarrow as pa
import pytest

from lastword.change_data.events.debezium import read_events
from lastword.change_data.events.envelopes import Envelope, Events
from lastword.change_data.events.event_rows import event_rows, line_events
from lastword.compaction.order.source_positions import SourcePosition

_DEEP: Final = b"[" * 100_000 + b"]" * 100_000
_KEY: Final = b'{"id":1}'
_GOOD: Final = {"op": "c", "after": {"id": 1}, "source": {"connector": "postgresql", "lsn": 1}}


def _text(value: Any) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode()


def _read(*values: Any, envelope: Envelope | None = None) -> Events:
    return read_events([_KEY] * len(values), [_text(value) for value in values], envelope or Envelope())


def _with_schema(schema: Any) -> dict[str, Any]:
    return {"schema": schema, "payload": _GOOD}


def _after(*fields: Any) -> dict[str, Any]:
    return _with_schema({"type": "struct", "fields": [{"type": "struct", "field": "after", "fields": [*fields]}]})


@pytest.mark.parametrize(
    ("value", "said"),
    [
        pytest.param({"op": ["c"], "after": {"id": 1}}, "op ['c']: allowed is", id="the op is a list"),
        pytest.param({"op": {"c": 1}, "after": {"id": 1}}, "op {'c': 1}: allowed is", id="the op is an object"),
        pytest.param({"status": ["BEGIN"]}, "no op in the value", id="a status that is a list"),
        pytest.param(b'{"op":"c","after":{"x":' + _DEEP + b"}}", "nested too deeply", id="a row of a hundred thousand brackets"),
        pytest.param(b'{"op":"c","after":{"x":"\xff"}}', "no envelope of Debezium ('utf-8'", id="bytes that are not UTF-8 in a column"),
        pytest.param({"op": "c", "after": [1]}, "the row is no JSON object", id="a row that is a list"),
        pytest.param({"op": "c", "after": 5}, "the row is no JSON object", id="a row that is a number"),
        pytest.param({"op": "c", "after": "[1]"}, "the row is no JSON object", id="a row that is a text of a list"),
        pytest.param(_with_schema({"fields": 5}), "schema cannot be read", id="a schema whose fields are a number"),
        pytest.param(_after({"field": ["id"], "type": "int32"}), "schema cannot be read", id="a schema with a name that is a list"),
        pytest.param(_after(*[{"field": "id", "type": "int32"}] * 2), "each name is allowed once", id="a schema with a name twice"),
    ],
)
def test_an_odd_event_is_refused_alone(value: Any, said: str) -> None:
    """With the reason."""
    events = _read(_GOOD, value, _GOOD)
    assert (events.row, list(events.refused)) == ([0, 2], [1])
    assert said in events.refused[1]


def test_a_flat_event_of_many_brackets_and_a_key_of_many_are_refused_alone() -> None:
    """No parser follows them."""
    envelope = Envelope(kind="debezium-flat")
    assert _read({"id": 1}, b'{"x":' + _DEEP + b"}", envelope=envelope).refused == {1: "its JSON is nested too deeply"}
    assert read_events([_DEEP], [b'{"id":1}'], envelope).refused == {0: "its JSON is nested too deeply"}


@pytest.mark.parametrize(
    "source",
    [
        pytest.param({"connector": "postgresql", "lsn": 10**20}, id="a number of 21 digits"),
        pytest.param({"connector": "sqlserver", "commit_lsn": ["x"]}, id="a list where a text belongs"),
    ],
)
def test_a_position_that_has_no_order_is_the_order_of_arrival(source: dict[str, Any]) -> None:
    """As one that is missing."""
    (sequence,) = _read({**_GOOD, "source": source}).sequence
    assert SourcePosition.of(sequence).order == ""


@pytest.mark.parametrize("old_key", [b"\xff\xfe", _DEEP])
def test_a_header_that_is_no_key_says_nothing(old_key: bytes) -> None:
    """The event is taken all the same."""
    headers = pa.array([[{"key": "__debezium.newkey", "value": old_key}]], pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})))
    deletion = _text({**_GOOD, "op": "d", "after": None})
    batch = pa.record_batch({"key": pa.array([_KEY]), "value": pa.array([deletion]), "headers": headers})
    (row,) = event_rows(batch, Envelope()).to_pylist()
    assert (row["key"], row["value"], row["__unchanged"], row["__refusal"]) == (_KEY, None, None, None)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b'{"key":"\xff","value":"x"}', id="a key that is not UTF-8"),
        pytest.param(b'{"key":"a","value":"x","headers":[["h"]]}', id="a header without a value"),
        pytest.param(b'{"key":"a","value":"x","headers":[5]}', id="a header that is a number"),
        pytest.param(b'{"key":"a","value":"x","headers":' + _DEEP + b"}", id="headers of a hundred thousand brackets"),
    ],
)
def test_a_line_that_is_no_record_is_the_value_of_an_event_alone(line: bytes) -> None:
    """Which is refused then, with its text."""
    rows = line_events(pa.record_batch({"value": pa.array([line, b'{"key":"k","value":"v"}'])})).to_pylist()
    assert [(row["key"], row["value"]) for row in rows] == [(None, line), (b"k", b"v")]


def test_a_document_that_is_sent_as_text_is_a_row() -> None:
    """As MongoDB's connector does, with a schema that knows it as text alone; keys may be taken from its fields."""
    source = {"connector": "mongodb", "ts_ms": 1_700_000_000_000, "ord": 2}
    event = {"op": "u", "before": '{"_id": 1, "n": 1}', "after": '{"_id": 2, "n": 1.50}', "source": source}
    fields = [{"type": "string", "optional": True, "name": "io.debezium.data.Json", "field": field} for field in ("before", "after")]
    wrapped = {"schema": {"type": "struct", "name": "shop.orders.Envelope", "fields": fields}, "payload": event}
    assert [json.loads(value or b"") for value in _read(event, wrapped).value] == [{"_id": 2, "n": 1.5}] * 2
    moved = _read(wrapped, envelope=Envelope(key=("_id",)))
    assert list(zip(moved.key, moved.value, strict=True)) == [(b'{"_id":1}', None), (b'{"_id":2}', b'{"_id":2,"n":1.50}')]


def test_a_flat_event_with_the_positions_of_sql_server() -> None:
    """`add.fields=source.commit_lsn,source.change_lsn` order it, if the envelope names the connector; Db2 has no more than these."""
    lsn = {"__source_commit_lsn": "00000027:00000ac0:0002", "__source_change_lsn": "00000027:00000ac0:0001"}
    (sequence,) = _read({"id": 1, **lsn}, envelope=Envelope(kind="debezium-flat", connector="db2")).sequence
    assert sequence == "@db2:0001/00000027:00000ac0:0002.1/00000027:00000ac0:0001//"


def test_the_schema_of_an_older_event_teaches_nothing() -> None:
    """The columns are those of the newest event, whichever comes last."""
    newer, older = (
        {**_after({"field": name, "type": "int32"}), "payload": {**_GOOD, "source": {"lsn": lsn}}} for name, lsn in (("a", 2), ("b", 1))
    )
    learnt = _read(newer, older).learnt
    assert learnt is not None
    assert ([column.name for column in learnt.columns], learnt.row) == (["a"], 0)
