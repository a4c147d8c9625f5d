"""Fields of flattened events in headers of their records: which are read, in which encodings, and what an event is by them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from lastword.change_data.events.envelopes import Envelope
from lastword.change_data.events.event_headers import added_headers, header_fields, header_names
from lastword.change_data.events.event_rows import event_rows, line_events
from lastword.compaction.errors import InvalidConfiguration
from lastword.compaction.order.source_positions import NO_SCOPE, SourcePosition
from lastword.compaction.rows.input_columns import HEADERS
from tests.change_events import FLAT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lastword.change_data.columns.column_types import DataType
    from lastword.change_data.events.event_rows import FrameDecoder

Header = tuple[str, bytes | None]
_POSITION: tuple[Header, ...] = (("__op", b"d"), ("__source_lsn", b"97"))


def _rows(*events: tuple[str | None, Sequence[Header]], envelope: Envelope = FLAT, decoder: FrameDecoder | None = None) -> list[Any]:
    """Return the rows of events of the key {"id":1}, by their values and headers."""
    columns = {
        "key": pa.array(['{"id":1}' for _ in events], pa.string()),
        "value": pa.array([value for value, _ in events], pa.string()),
        "headers": pa.array([[{"key": name, "value": text} for name, text in headers] or None for _, headers in events], HEADERS),
    }
    rows: list[Any] = event_rows(pa.record_batch(columns), envelope, decoder).to_pylist()
    return rows


def _row(value: str | None, *headers: Header, envelope: Envelope = FLAT) -> dict[str, Any]:
    (row,) = _rows((value, headers), envelope=envelope)
    return dict(row)


def _order(row: dict[str, Any]) -> str:
    return SourcePosition.of(row["source_sequence"]).order


@pytest.mark.parametrize("value", [None, "null", '{"schema":null,"payload":null}'])
def test_a_tombstone_has_the_position_that_its_headers_say(value: str | None) -> None:
    """As the connector sends a deletion in its modes tombstone (which is the default) and delete-to-tombstone."""
    row = _row(value, *_POSITION)
    assert (row["value"], row["__refusal"], row["__event"]) == (None, None, None)
    assert row["source_sequence"] == f"@postgresql:0001/{97:020}.1/{97:020}//"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"97", 97),
        (b"-97", -97),
        (b"d", "d"),
        (b'"d"', "d"),
        (b'"97"', "97"),
        (b"007", "007"),
        (b"9" * 20, "9" * 20),
        (b'["96","97"]', '["96","97"]'),
        (b'"[\\"96\\",\\"97\\"]"', '["96","97"]'),
        (b"0000002a:00000d38:0005", "0000002a:00000d38:0005"),
        (b"bin.000003", "bin.000003"),
        ("größer".encode(), "größer"),
        (b"true", "true"),
        (b"", ""),
        (b"null", None),
        (None, None),
        (b'{"schema":{"type":"int64","optional":true},"payload":97}', 97),
        (b'{"schema":{"type":"string"},"payload":"d"}', "d"),
        (b'{"schema":{"type":"string"},"payload":null}', None),
        (b'{"schema":null,"payload":"d"}', "d"),
    ],
)
def test_a_header_is_a_text_or_json_with_and_without_the_schema_of_connect(text: bytes | None, value: Any) -> None:
    """A name of figures stays what it is where it is compared as a text."""
    assert header_fields([("__source_x", text)], {"__source_x": "source_x"}, ()) == {"source_x": value}


@pytest.mark.parametrize(
    "text",
    [b"\0\0\0\0\5\2d", b"\xff\xfe", b'"d', b"{", b'{"lsn":97}', b'{"schema":{"type":"struct"},"payload":{"a":1}}', b'{"payload":1}'],
)
def test_a_header_that_cannot_be_read_is_a_dead_letter_that_names_it(text: bytes) -> None:
    """Such as a schema registry's frame: without its position the event would count as the newest of its key."""
    row = _row(None, ("__source_lsn", text))
    assert row["__refusal"].startswith(f"header __source_lsn = {repr(text)[1:]}: allowed is a text or JSON, as the connector's")
    assert row["__record_key"] == b'{"id":1}'
    assert (_row('{"id":1,"v":"a"}', ("__source_lsn", text))["__refusal"] or "").startswith("header __source_lsn")
    assert _order(_row('{"id":1,"__source_lsn":5}', ("__source_lsn", text))) == f"{5:020}.1"  # it is not needed


def test_a_header_that_comes_twice_counts_if_it_says_the_same() -> None:
    """As after a transformation that was configured twice."""
    assert _order(_row(None, *_POSITION, *_POSITION)) == f"{97:020}.1"
    row = _row(None, *_POSITION, ("__source_lsn", b"98"))
    assert row["__refusal"] == "header __source_lsn comes twice, as '97' and as '98': which of them counts cannot be told"
    assert "as null and as '98'" in _row(None, ("__source_lsn", None), ("__source_lsn", b"98"))["__refusal"]
    assert _order(_row('{"id":1,"__source_lsn":5}', *_POSITION, ("__source_lsn", b"98"))) == f"{5:020}.1"


def test_fields_in_headers_do_as_those_in_the_value_which_go_first() -> None:
    """A row, the row of a snapshot, a deletion that is a row, and one column that is left as it is."""
    value = '{"id":1,"v":"a"}'
    upsert, read, deletion, other = (
        _row(value, ("__op", b"u"), ("__source_lsn", b"97")),
        _row(value, ("__op", b"r"), ("__source_lsn", b"97")),
        _row(value, *_POSITION),
        _row('{"id":1,"v":"a","__source_lsn":5}', *_POSITION, ("__op", b"d")),
    )
    assert [row["value"] for row in (upsert, read, deletion, other)] == [value.encode()] * 2 + [None] * 2
    assert [_order(row)[-4:] for row in (upsert, read, deletion, other)] == ["97.1", "97.0", "97.1", "05.1"]
    assert _row('{"id":1,"__deleted":"true"}', ("__op", b"d"), ("__source_lsn", b"97"))["value"] is None


@pytest.mark.parametrize(
    ("headers", "scope", "order"),
    [
        ([("__op", b"d")], NO_SCOPE, ""),
        ([("__op", None), ("__source_lsn", None)], NO_SCOPE, ""),
        ([("__source_connector", b"postgresql"), ("__source_name", b"007")], "@postgresql.007:", ""),
        ([("__source_connector", b"mongodb"), ("__source_ts_ms", b"1000"), ("__source_ord", b"1")], "@mongodb:", f"{1000:020}.{1:020}.1"),
        ([("__ts_ms", b"1000"), ("__source_connector", b"mongodb"), ("__source_ord", b"1")], "@mongodb:", ""),
        ([("__source_file", b"bin.000003"), ("__source_pos", b"154"), ("__source_row", b"2")], "@mysql:", f"{3:020}.{154:020}.1"),
        ([("__lsn", b"97")], "@postgresql:", f"{97:020}.1"),
        ([("__source_lsn", b"no number")], "@postgresql:", ""),
        ([("h", b"1"), ("__source_version", b"\0"), ("source_lsn", b"97")], NO_SCOPE, ""),
    ],
)
def test_a_position_is_what_the_headers_of_its_connector_say(headers: list[Header], scope: str, order: str) -> None:
    """A header of another name, or without a value, says nothing."""
    position = SourcePosition.of(_row(None, *headers)["source_sequence"])
    assert (position.scope, position.order) == (scope, order)


def test_a_null_value_is_a_deletion_or_a_truncate() -> None:
    """Anything else that a header says of it is a dead letter."""
    truncate = _row(None, ("__op", b"t"), ("__source_lsn", b"97"))
    assert (truncate["__event"], _order(truncate)) == ("truncate", f"{97:020}.1")
    assert _row("{}", ("__op", b"t"), ("__source_lsn", b"97"))["__event"] == "truncate"
    assert _row(None, ("__op", b"u"))["__refusal"] == (
        "the value is null, and a header says op 'u': a null value is a deletion (d) or a TRUNCATE (t)"
    )
    assert (
        "no row to take the key's columns from" in _row(None, *_POSITION, envelope=Envelope(kind="debezium-flat", key=("id",)))["__refusal"]
    )


def test_a_sequence_that_is_named_orders_rows_and_a_tombstone_is_behind_those_of_its_key() -> None:
    """The position in its headers is of another order."""
    envelope = Envelope(kind="debezium-flat", sequence=("v",))
    row, tombstone = _rows(('{"id":1,"v":5}', _POSITION[1:]), (None, _POSITION), envelope=envelope)
    assert (row["source_sequence"], tombstone["source_sequence"]) == (f"{5:020}", f"{NO_SCOPE}0001////")


def test_a_tombstone_behind_a_deletion_that_is_a_row_says_nothing_where_the_mode_says_so() -> None:
    """`delete.tombstone.handling.mode=rewrite-with-tombstone`; its key may be one of columns, which a null value does not have."""
    for key in ((), ("id",)):
        envelope = Envelope(kind="debezium-flat", key=key, delete_tombstone_handling_mode="rewrite-with-tombstone")
        deletion, tombstone = _rows(('{"id":1,"__deleted":"true","__source_lsn":7}', ()), (None, [("__op", b"d")]), envelope=envelope)
        assert (deletion["value"], deletion["__event"]) == (None, None)
        assert tombstone["__event"] == "tombstone"
        assert _row(None, ("__op", b"t"), ("__source_lsn", b"9"), envelope=envelope)["__event"] == "truncate"


def test_the_settings_of_the_connector_say_which_headers_are_read() -> None:
    """By default the usual fields under `__`; without a prefix none that is not listed, as of the fields of values."""
    usual = header_names(FLAT)
    assert {"__op": "op", "__source_lsn": "source_lsn", "__lsn": "lsn", "__source_sequence": "source_sequence"}.items() <= usual.items()
    assert not {"__source_version", "__transaction_id", "__deleted"} & usual.keys()
    listed = Envelope(kind="debezium-flat", headers_prefix="", add_headers=("op", "source.lsn:place", "source.version"))
    assert header_names(listed) == {"op": "op", "place": "source_lsn"}
    assert header_names(Envelope(kind="debezium-flat", headers_prefix="")) == {}
    assert header_names(Envelope()) == {}
    assert _order(_row(None, ("op", b"d"), ("place", b"97"), envelope=listed)) == f"{97:020}.1"
    assert _order(_row(None, ("meta.source_lsn", b"97"), envelope=Envelope(kind="debezium-flat", headers_prefix="meta."))) == f"{97:020}.1"
    assert _row(None, *_POSITION, envelope=listed)["source_sequence"] == f"{NO_SCOPE}0001////"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"add_headers": ("op",)}, "add_headers, headers_prefix = ('op',): only with kind='debezium-flat'"),
        ({"headers_prefix": ""}, "add_headers, headers_prefix = : only with kind='debezium-flat'"),
        ({"delete_tombstone_handling_mode": "rewrite"}, "delete_tombstone_handling_mode = rewrite: only with kind='debezium-flat'"),
        (
            {"kind": "debezium-flat", "delete_tombstone_handling_mode": "keep"},
            "keep: one of drop, tombstone, rewrite, rewrite-with-tombstone",
        ),
        ({"kind": "debezium-flat", "add_headers": ("op:a", "lsn:a")}, "add_headers = ('op:a', 'lsn:a'): fields with a name of their own"),
        ({"kind": "debezium-flat", "add_headers": (1,)}, "add_headers = (1,): a tuple of names"),
        ({"kind": "debezium-flat", "headers_prefix": None}, "headers_prefix = None: a text"),
        ({"kind": "debezium-flat", "add_headers": ("source.commit_lsn",)}, "several connectors have a commit_lsn"),
    ],
)
def test_settings_of_headers_that_would_do_nothing_are_refused(settings: dict[str, Any], message: str) -> None:
    """As those of the fields of values are."""
    with pytest.raises(InvalidConfiguration, match=re.escape(message)):
        Envelope(**settings)


def test_the_connector_may_be_said_by_a_header_of_another_field() -> None:
    """A commit_lsn in a header, and source.connector in the value."""
    envelope = Envelope(kind="debezium-flat", add_fields=("source.connector",), add_headers=("source.commit_lsn",))
    row = _row('{"id":1,"__source_connector":"db2"}', ("__source_commit_lsn", b"0000:0a"), envelope=envelope)
    assert row["source_sequence"] == "@db2:0001/0000:0a.1///"


def test_headers_of_lines_are_texts_or_json() -> None:
    """An object in a line is the header's JSON."""
    line = {"key": {"id": 1}, "value": None, "headers": [["__op", "d"], ["__source_lsn", {"schema": {"type": "int64"}, "payload": 97}]]}
    other = {"key": {"id": 1}, "value": None, "headers": [["__op", None], ["__source_lsn", 97]]}
    lines = pa.array([json.dumps(one).encode() for one in (line, other)])
    rows = event_rows(line_events(pa.record_batch({"value": lines})), FLAT).to_pylist()
    assert [_order(row) for row in rows] == [f"{97:020}.1"] * 2


def test_a_batch_without_headers_of_these_names_has_none_to_read() -> None:
    """If no record has one of the headers, none is read, in each of Arrow's layouts of the column."""
    kinds = (HEADERS, pa.large_list(pa.struct({"key": pa.large_string(), "value": pa.string()})))
    for kind in kinds:
        column = pa.array([None, [], [{"key": "h", "value": b"1" if kind is HEADERS else "1"}]], kind)
        assert added_headers(column, FLAT) == {}
        assert added_headers(column.slice(0, 1), FLAT) == {}
        own = pa.array([None, [], [{"key": "__op", "value": b"c" if kind is HEADERS else "c"}]], kind)
        assert added_headers(own, FLAT) == {2: [("__op", b"c")]}
        assert added_headers(own.slice(1), FLAT) == {1: [("__op", b"c")]}
        assert added_headers(own, Envelope()) == {}


class _Framed:
    """Decodes each frame to the text behind its first byte."""

    def decode_column(self, column: pa.Array) -> Any:
        texts = [None if text is None else text[1:].decode() for text in column.cast(pa.binary()).to_pylist()]
        return type("Frames", (), {"values": pa.array(texts, pa.string()).cast(pa.binary()), "reasons": {}, "schemas": {}})()

    def data_type(self, schema_id: int, message: tuple[int, ...] = ()) -> DataType:
        raise AssertionError(schema_id, message)


def test_a_registry_frames_keys_and_values_while_headers_are_texts() -> None:
    """As with Avro values and the default header.converter."""
    columns = {
        "key": pa.array([b'\0{"id":1}']),
        "value": pa.array([None], pa.binary()),
        "headers": pa.array([[{"key": name, "value": text} for name, text in _POSITION]], HEADERS),
    }
    (row,) = event_rows(pa.record_batch(columns), FLAT, _Framed()).to_pylist()
    assert (row["key"], _order(row)) == (b'{"id":1}', f"{97:020}.1")
