"""Change events at the edges, by the rules alone: what is known in part, and what looks like something else.

What they do to a topic: tests/test_change_event_edges.py.
"""

from __future__ import annotations

import json
import re
import struct
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from lastword.change_data.columns.column_types import ArrayType, Column, DataType, DecimalType, Misfit, ScalarType, StructType
from lastword.change_data.columns.connect_schema import columns_of_ddl
from lastword.change_data.columns.row_decoder import RowDecoder
from lastword.change_data.columns.table_columns import describe_misfit
from lastword.change_data.events.envelopes import Envelope
from lastword.change_data.events.event_keys import KeyFormat, plain_key
from lastword.change_data.events.event_rows import event_rows
from lastword.compaction.errors import InvalidConfiguration
from lastword.compaction.rows.input_columns import cast_column, plain_batch
from tests.change_events import change

if TYPE_CHECKING:
    from collections.abc import Mapping

_OF_COLUMNS = Envelope(key=("tenant", "id"))
_FLAT = Envelope(kind="debezium-flat")
_FLAT_OF_COLUMNS = Envelope(kind="debezium-flat", key=("tenant", "id"))


def _rows(*events: tuple[str | None, str | None], envelope: Envelope) -> list[dict[str, Any]]:
    columns = {"key": pa.array([key for key, _ in events], pa.string()), "value": pa.array([value for _, value in events], pa.string())}
    rows: list[dict[str, Any]] = event_rows(pa.record_batch(columns), envelope).to_pylist()
    return rows


def _refusals(*events: tuple[str | None, str | None], envelope: Envelope, decoder: Any = None) -> list[str | None]:
    columns = {"key": pa.array([key for key, _ in events], pa.string()), "value": pa.array([value for _, value in events], pa.string())}
    return [row["__refusal"] for row in event_rows(pa.record_batch(columns), envelope, decoder).to_pylist()]


# A row before the change that is known in part (PostgreSQL: REPLICA IDENTITY DEFAULT; MySQL: binlog_row_image=MINIMAL)


def test_a_changed_key_whose_old_columns_are_not_known_is_a_dead_letter() -> None:
    """An update that leaves the key as it is needs no row before it."""
    partial, same = {"id": 1, "tenant": None}, {"id": 1, "tenant": None, "v": 5}
    (moved, stays) = _refusals(
        change("u", 1, 1, {"id": 1, "tenant": "b"}, before=partial), change("u", 1, 2, same, before=same), envelope=_OF_COLUMNS
    )
    assert moved is not None
    assert "REPLICA IDENTITY FULL" in moved
    assert stays is None


def test_a_flat_deletion_whose_key_columns_are_not_known_is_a_dead_letter() -> None:
    """As a row that says it was deleted, by `__deleted` or by `__op`."""
    rows = ['{"id":1,"tenant":null,"__deleted":"true"}', '{"id":1,"__op":"d"}', '{"id":1,"tenant":"a","__deleted":"true"}']
    (first, second, third) = _refusals(*(('{"id":1}', row) for row in rows), envelope=_FLAT_OF_COLUMNS)
    assert first is not None
    assert second is not None
    assert "REPLICA IDENTITY FULL" in first
    assert "REPLICA IDENTITY FULL" in second
    assert third is None


# Keys and schemas of a registry


class _Decoder:
    """Decodes frames that begin with the letter of their schema."""

    def decode_column(self, column: pa.Array) -> Any:
        texts = [None if text is None else bytes(text) for text in column.to_pylist()]
        is_frame = [text is not None and text[:1] in {b"a", b"d", b"n", b"x"} for text in texts]
        values = [text[1:] if fits and text else None for text, fits in zip(texts, is_frame, strict=True)]
        reasons = {row: "no frame" for row, text in enumerate(texts) if text is not None and not is_frame[row]}
        schemas = {row: (text[:1].decode(),) for row, text in enumerate(texts) if is_frame[row] and text}
        return type("Frames", (), {"values": pa.array(values, pa.binary()), "reasons": reasons, "schemas": schemas})

    def data_type(self, schema_id: Any, message: tuple[int, ...] = ()) -> DataType:  # noqa: ARG002
        if schema_id == "n":
            return StructType((Column("after", ArrayType(ScalarType("int"))),))
        if schema_id == "x":
            reason = "$ref '#/definitions/nope' leads nowhere"
            raise ValueError(reason)
        if schema_id == "d":
            return StructType((Column("id", DecimalType(9, 2)),))
        return StructType((Column("after", StructType((Column("id", ScalarType("int")),))),))


def _framed(envelope: Envelope, *events: tuple[bytes | None, bytes | None]) -> list[dict[str, Any]]:
    columns = {"key": pa.array([key for key, _ in events], pa.binary()), "value": pa.array([value for _, value in events], pa.binary())}
    rows: list[dict[str, Any]] = event_rows(pa.record_batch(columns), envelope, _Decoder()).to_pylist()
    return rows


_EVENT = b'a{"op":"c","after":{"id":1}}'
_UNREADABLE = b'x{"op":"c","after":{"id":2}}'


def test_an_event_whose_schema_cannot_be_converted_is_a_dead_letter() -> None:
    """The others of the batch are rows; with columns that the source gives, the schema is not asked for."""
    rows = _framed(Envelope(), (b'a{"id":1}', _EVENT), (b'a{"id":2}', _UNREADABLE))
    assert [row["__refusal"] for row in rows] == [None, "its schema cannot be read: $ref '#/definitions/nope' leads nowhere"]
    assert rows[1]["__record_key"] == b'{"id":2}'
    rows = _framed(Envelope(schema="id int"), (b'a{"id":1}', _EVENT), (b'a{"id":2}', _UNREADABLE))
    assert [row["value"] for row in rows] == [b'{"id":1}', b'{"id":2}']


def test_a_key_whose_schema_cannot_be_converted_is_a_dead_letter() -> None:
    """And names the key."""
    (first, second) = _framed(Envelope(), (b'x{"id":1}', _EVENT), (b'a{"id":1}', _EVENT))
    assert first["__refusal"] == "its schema cannot be read: $ref '#/definitions/nope' leads nowhere"
    assert second["__refusal"] is None


@pytest.mark.parametrize(
    ("envelope", "key", "canonical"),
    [
        pytest.param(Envelope(key_format="string"), b"plum", b'"plum"', id="StringConverter"),
        pytest.param(Envelope(key_format="string"), b"1.10", b'"1.10"', id="a text that is a number"),
        pytest.param(Envelope(key_format="long"), struct.pack(">q", 5), b"5", id="LongConverter"),
        pytest.param(Envelope(key_format="integer"), struct.pack(">i", 5), b"5", id="IntegerConverter"),
        pytest.param(Envelope(key_format="json"), b'{"b":1,"a":2}', b'{"a":2,"b":1}', id="JsonConverter"),
        pytest.param(Envelope(key_format="bytes"), b"\x00\x01", b'"AAE="', id="ByteArrayConverter"),
        pytest.param(Envelope(key=("id",)), b"\x07 of no format", b'{"id":1}', id="a key of columns"),
        pytest.param(Envelope(key=("id",)), None, b'{"id":1}', id="no key at all"),
    ],
)
def test_keys_of_another_serializer_than_the_values(envelope: Envelope, key: bytes | None, canonical: bytes) -> None:
    """Avro values beside keys of any converter; a key of the row's columns does not need the record's."""
    (row,) = _framed(envelope, (key, _EVENT))
    assert (row["__refusal"], row["key"]) == (None, canonical)


def test_a_mongodb_update_without_its_document_names_the_setting() -> None:
    """The message names the connector's setting; for other connectors it does not."""
    mongodb = {"connector": "mongodb", "ts_ms": 1, "ord": 1}
    (first, second) = _refusals(change("u", 1, mongodb), change("u", 1, 5), envelope=Envelope())
    assert first is not None
    assert "capture.mode = change_streams_update_full" in first
    assert second == "op 'u' without a row in `after`"


@pytest.mark.parametrize("before", [{"id": 1, "tenant": None}, {"id": 1}, {}, None])
def test_a_deletion_whose_key_columns_are_not_known_names_the_setting_of_the_source(before: Any) -> None:
    """Null, missing, or no row at all; a whole row with null in a key column is a tombstone."""
    (partial,) = _rows(change("d", 1, 2, before=before), envelope=_OF_COLUMNS)
    assert "REPLICA IDENTITY FULL" in partial["__refusal"]
    assert partial["__record_key"] is None
    (whole,) = _rows(change("d", 1, 2, before={"id": 1, "tenant": None, "v": 5}), envelope=_OF_COLUMNS)
    assert (whole["__refusal"], whole["key"], whole["value"]) == (None, b'{"id":1,"tenant":null}', None)
    for key in ("k", "17", None):  # without the names of its columns, a column beyond the key tells that the row is whole
        (whole,) = _rows(change("d", key, 2, before={"id": 1, "tenant": None, "v": 5}), envelope=_OF_COLUMNS)
        assert (whole["__refusal"], whole["key"]) == (None, b'{"id":1,"tenant":null}')
        (partial,) = _rows(change("d", key, 2, before={"id": 1, "tenant": None, "v": None}), envelope=_OF_COLUMNS)
        assert "REPLICA IDENTITY FULL" in partial["__refusal"]


@pytest.mark.parametrize(
    ("envelope", "key", "row", "value"),
    [
        pytest.param(_FLAT, '{"id":1}', '{"id":1,"__v":2,"__op":"c","__source_lsn":3}', '{"id":1,"__v":2}', id="usual fields"),
        pytest.param(
            Envelope(kind="debezium-flat", add_fields=("op",)),
            '{"id":1}',
            '{"id":1,"__op":"c","__lsn":3}',
            '{"id":1,"__lsn":3}',
            id="listed",
        ),
        pytest.param(_FLAT, '{"ts_ms":5}', '{"ts_ms":5}', '{"ts_ms":5}', id="no heartbeat"),
        pytest.param(_FLAT, '{"serverName":', '{"ts_ms":5}', '{"ts_ms":5}', id="a key that is cut"),
        pytest.param(_FLAT, '{"a":"serverName"}', '{"ts_ms":5}', '{"ts_ms":5}', id="a text in the key"),
        pytest.param(_FLAT, '["serverName",1]', '{"ts_ms":5}', '{"ts_ms":5}', id="a key that is a list"),
        pytest.param(
            Envelope(kind="debezium-flat", schema="schema string, payload string"),
            '{"schema":"a"}',
            '{"schema":"a","payload":null}',
            '{"schema":"a","payload":null}',
            id="columns of Connect's names",
        ),
    ],
)
def test_a_flat_row_keeps_its_columns(envelope: Envelope, key: str, row: str, value: str) -> None:
    """What a connector adds is told by more than a name."""
    (read,) = _rows((key, row), envelope=envelope)
    assert (read["__refusal"], json.loads(read["value"])) == (None, json.loads(value))


@pytest.mark.parametrize(
    ("envelope", "event", "key", "sequence"),
    [
        pytest.param(Envelope(schema="id int"), change("u", 1, 7, {"id": "x"}), b'{"id":1}', True, id="raw, own key"),
        pytest.param(Envelope(), ('{"id":1}', "null "), None, False, id="a null that is none"),
        pytest.param(Envelope(), ('{"id":1}', "[]"), b'{"id":1}', False, id="no object"),
        pytest.param(
            Envelope(key=("id",), schema="id int, v int"),
            change("u", 9, 7, {"id": 1, "v": "x"}),
            b'{"id":1}',
            True,
            id="raw, key of columns",
        ),
        pytest.param(Envelope(key=("id",), schema="id int"), change("u", 9, 7, {"id": "x"}), None, False, id="a key that does not fit"),
        pytest.param(
            Envelope(kind="debezium-flat", key=("id",), schema="id int, v int"),
            (None, '{"id":1,"v":"x","__source_lsn":7}'),
            b'{"id":1}',
            True,
            id="flat, key of columns",
        ),
        pytest.param(
            Envelope(kind="debezium-flat", key=("id",)),
            (None, '{"id":1,"__deleted":"true","__source_lsn":7,"x":}'),
            None,
            False,
            id="flat, cut",
        ),
        pytest.param(Envelope(key_format="long"), ("short", '{"op":"c","after":{"id":1}}'), None, False, id="a key of another serializer"),
    ],
)
def test_the_key_and_the_place_of_a_refused_event_are_known_if_they_can_be_read(
    envelope: Envelope, event: tuple[str | None, str | None], key: bytes | None, *, sequence: bool
) -> None:
    """The last record of this key is stale then."""
    (row,) = _rows(event, envelope=envelope)
    assert row["__refusal"] is not None or row["__event"] == "tombstone"
    assert (row["__record_key"], bool(row["source_sequence"])) == (key, sequence)


@pytest.mark.parametrize(
    ("name", "wrong"), [("key", "id"), ("key", ("id", "id")), ("sequence", ("",)), ("add_fields", (1,)), ("key", None)]
)
def test_a_list_of_names_that_is_none_is_refused(name: str, wrong: Any) -> None:
    """A text is no list of names."""
    with pytest.raises(InvalidConfiguration, match=f"{name} = .*: a tuple of names, each once"):
        Envelope(**{name: wrong})


@pytest.mark.parametrize("key_format", ["string", "long"])
def test_events_that_are_alike_have_keys_of_any_serializer(key_format: KeyFormat) -> None:
    """Those of a batch that are read together, too."""
    numbers = range(1, 60)
    keys = [struct.pack(">q", number) if key_format == "long" else str(number).encode() for number in numbers]
    values = [change("c", number, number, {"id": number})[1].encode() for number in numbers]
    batch = pa.record_batch({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})
    rows = event_rows(batch, Envelope(key_format=key_format)).to_pylist()
    quote = b'"' if key_format == "string" else b""
    assert [row["key"] for row in rows] == [quote + str(number).encode() + quote for number in numbers]


@pytest.mark.parametrize(
    ("key", "key_format", "text"),
    [
        (b"\0", "bytes", b"\0"),
        (b"1.10", "string", b"1.10"),
        (struct.pack(">i", 5), "integer", b"5"),
        (b'{"b":1,"a":2}', "json", b'{"a":2,"b":1}'),
    ],
)
def test_a_key_of_a_row_is_a_text(key: bytes, key_format: KeyFormat, text: bytes) -> None:
    """As other sources write it."""
    assert plain_key(key, key_format) == text


def test_dictionaries_of_views_and_other_types_are_decoded() -> None:
    """A cast that Arrow refuses for another reason than the size is its own error."""
    views = pa.DictionaryArray.from_arrays(pa.array([1, 0, None]), pa.array(["a", "b"], pa.string_view()))
    texts = pa.array(["x", "y", "x"]).dictionary_encode()
    batch = plain_batch(pa.record_batch({"views": views, "texts": texts, "plain": pa.array([1, 2, 3])}))
    assert batch.to_pydict() == {"views": ["b", "a", None], "texts": ["x", "y", "x"], "plain": [1, 2, 3]}
    with pytest.raises(pa.ArrowInvalid, match="Failed to parse"):
        cast_column(pa.array(["x"]), pa.int64())
    with pytest.raises(pa.ArrowInvalid, match="UTF"):
        cast_column(pa.array([b"\xff"], pa.large_binary()), pa.string())


def test_rows_for_spark_have_texts_for_times_of_day() -> None:
    """And microseconds for all timestamps."""
    columns = columns_of_ddl("t time, l timestamp_ntz", time_precision_mode="nanoseconds")
    decoder = RowDecoder(columns, for_spark=True)
    assert decoder.schema == pa.schema([("t", pa.string()), ("l", pa.timestamp("us"))])
    rows = decoder.decode(pa.array(['{"t":"24:00:00","l":"2026-03-01T00:00:00.123456789"}']))
    assert [str(value) for value in rows.to_pylist()[0].values()] == ["24:00:00.000000000", "2026-03-01 00:00:00.123456"]
    with pytest.raises(Misfit, match='column t = "25:00:00"'):
        decoder.decode(pa.array(['{"t":"25:00:00"}']))


def test_a_misfit_names_its_record() -> None:
    """The topic, the partition, the offset and the key."""
    row: Mapping[str, Any] = {"partition": 2, "offset": 5, "key": b"a\xff"}
    assert describe_misfit("t", row, "column v = 1: allowed is text").startswith(
        "topic t, partition 2, offset 5, key a\ufffd: column v = 1"
    )


@pytest.mark.parametrize("envelope", [Envelope(), _FLAT])
def test_a_deletion_whose_own_key_has_null_is_refused_unless_its_row_is_whole(envelope: Envelope) -> None:
    """Keys that `message.key.columns` names are not all of the primary key; without the whole row they are null in a deletion."""
    key = '{"id":1,"tenant":null}'
    partial = {"id": 1, "tenant": None, "v": None}
    if envelope.kind == "debezium":
        events: list[tuple[str | None, str | None]] = [change("d", key, 2, before=partial), change("d", key, 3)]
    else:
        events = [(key, None), (key, json.dumps({**partial, "__deleted": "true"}))]
    for row in _rows(*events, envelope=envelope):
        assert "REPLICA IDENTITY FULL" in row["__refusal"]
    whole = {**partial, "v": 5}
    event = change("d", key, 2, before=whole) if envelope.kind == "debezium" else (key, json.dumps({**whole, "__deleted": "true"}))
    (row,) = _rows(event, envelope=envelope)
    assert (row["__refusal"], row["key"], row["value"]) == (None, key.encode(), None)


@pytest.mark.parametrize("op", ["u", "d"])
def test_a_column_of_the_key_that_was_left_out_makes_no_key(op: str) -> None:
    """A deletion or update whose placeholder stands in a key column is refused, unless the row before has the value."""
    left_out = {"id": 1, "doc": "__debezium_unavailable_value", "v": 1}
    envelope = Envelope(key=("id", "doc"))
    event = change(op, 1, 1, left_out) if op == "u" else change(op, 1, 1, before=left_out)
    (row,) = _rows(event, envelope=envelope)
    assert "the key's column doc was left out" in row["__refusal"]
    assert row["__record_key"] is None
    (known,) = _rows(change("u", 1, 1, left_out, before={**left_out, "doc": "x"}), envelope=envelope)
    assert (known["__refusal"], known["key"]) == (None, b'{"doc":"x","id":1}')
    own_key = json.dumps({"id": 1, "doc": "__debezium_unavailable_value"})
    (whole,) = _rows(change("d", own_key, 1, before={"id": 1, "doc": None, "v": 2}), envelope=envelope)  # its own key is not needed
    assert (whole["__refusal"], whole["key"]) == (None, b'{"doc":null,"id":1}')
    (row,) = _rows(change("u", own_key, 1, {"id": 1}), envelope=Envelope())
    assert "the key's column doc was left out" in row["__refusal"]


def test_a_column_of_the_key_is_never_null_because_it_does_not_fit() -> None:
    """`misfit = null` is for all other columns."""
    raw = Envelope(key=("id",), schema="id int, v int", misfit="null")
    flat = Envelope(kind="debezium-flat", key=("id",), schema="id int, v int", misfit="null")
    events = {raw: change("c", None, 1, {"id": 3_000_000_000, "v": 1}), flat: (None, '{"id":3000000000,"v":1}')}
    for envelope, event in events.items():
        (row,) = _rows(event, envelope=envelope)
        assert "column id = 3000000000: allowed is int" in row["__refusal"]
    (row,) = _rows(change("c", None, 1, {"id": 1, "v": "x"}), envelope=raw)
    assert (row["key"], row["value"]) == (b'{"id":1}', b'{"id":1,"v":null}')


def test_a_row_leaves_its_old_key_also_if_it_does_not_fit_under_the_new_one() -> None:
    """The old key is deleted, and the new one is stale."""
    envelope = Envelope(key=("id",), schema="id int, v int")
    event = change("u", 1, 7, {"id": 2, "v": "x"}, before={"id": 1, "v": 1})
    (old, new) = _rows(event, envelope=envelope)
    assert (old["key"], old["value"], old["__refusal"]) == (b'{"id":1}', None, None)
    assert (new["__record_key"], "column v" in new["__refusal"]) == (b'{"id":2}', True)
    (row,) = _rows(change("u", 1, 7, {"id": 1, "v": "x"}, before={"id": 1, "v": 1}), envelope=envelope)
    assert row["__record_key"] == b'{"id":1}'


@pytest.mark.parametrize(
    ("envelope", "key", "value"),
    [
        (Envelope(sequence=("source.ver",)), '{"id":1}', '{"op":"c","after":{"id":1,"v":1e400},"source":{"ver":1}}'),
        (_FLAT, '{"id":1}', '{"id":1,"__source_lsn":1e400}'),
        (_FLAT, '{"id":1}', '{"id":1,"__deleted":1e400}'),
        (Envelope(key=("id",)), None, '{"op":"c","after":{"id":1e99999999999999999999}}'),
        (Envelope(kind="debezium-flat", key=("id",)), None, f'{{"id":[{"1" * 5000}]}}'),
        (Envelope(), '{"id":1}', '{"op":"u","after":{"id":1,"t":[1e400,"__debezium_unavailable_value"]}}'),
    ],
)
def test_a_number_that_nothing_can_compute_with_is_one_dead_letter(envelope: Envelope, key: str | None, value: str) -> None:
    """The other events of the batch are rows."""
    good = change("c", 2, 1, {"id": 2})[1] if envelope.kind == "debezium" else '{"id":2}'
    good = json.dumps({**json.loads(good), "source": {"ver": 1}}) if envelope.sequence else good
    (wrong, right) = sorted(_rows((key, value), ('{"id":2}', good), envelope=envelope), key=lambda row: row["__refusal"] is None)
    assert wrong["__refusal"] is not None or "1e400" in value
    assert right["__refusal"] is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"add_fields": ("op",)}, "only with kind='debezium-flat'"),
        ({"prefix": "x_"}, "only with kind='debezium-flat'"),
        ({"key": ("id",), "key_format": "long"}, "key_format = long: only without key"),
        ({"kind": "debezium-flat", "add_fields": ("op:a", "lsn:a")}, "fields with a name of their own"),
        ({"kind": "debezium-flat", "add_fields": (":",)}, "a tuple of names"),
        ({"kind": "debezium-flat", "prefix": None}, "prefix = None: a text"),
        ({"placeholder": 5}, "placeholder = 5: text, or hex:"),
        ({"schema": 5}, "schema = 5: a text"),
        ({"sequence": ("..",)}, "a tuple of names"),
        ({"sequence": ("a",), "scope": "blue"}, "connector, scope = blue: only without sequence"),
        ({"sequence": ("a",), "on_snapshot": "replace"}, "on_snapshot = replace: only without sequence"),
        ({"sequence_as": "time"}, "sequence_as = time: only with sequence"),
        ({"sequence": ("a",), "sequence_as": "date"}, "sequence_as = date: one of text, number, time"),
        ({"connector": "vitess"}, "connector = vitess: one of postgresql, mysql"),
        ({"scope": 5}, "scope = 5: a text"),
        ({"kind": "debezium-flat", "add_fields": ("op", "source.commit_lsn")}, "several connectors have a commit_lsn"),
    ],
)
def test_settings_of_an_envelope_that_would_do_nothing_are_refused(settings: dict[str, Any], message: str) -> None:
    """Settings that would have no effect are refused, and so are values of a wrong type."""
    with pytest.raises(InvalidConfiguration, match=re.escape(message)):
        Envelope(**settings)


def test_a_framed_key_has_the_type_of_its_schema() -> None:
    """A decimal in an Avro key is written as its shortest text, as in a JSON key."""
    (row,) = _framed(Envelope(), (b'd{"id":"Mg=="}', _EVENT))
    assert row["key"] == b'{"id":"0.5"}'


def test_a_frame_whose_row_is_no_struct_is_refused() -> None:
    """The reason names the type."""
    (row,) = _framed(Envelope(), (None, b'n{"op":"c","after":{"id":1}}'))
    assert row["__refusal"] == "the event's schema cannot be read: the schema of a row is of type array<int>: allowed is a struct"
