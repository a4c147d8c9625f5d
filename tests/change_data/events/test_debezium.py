"""Debezium's envelopes, raw and flat, event by event: which rows of a log they are."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from lastword.change_data.columns.column_types import Column, DataType, ScalarType, StructType
from lastword.change_data.events.debezium import read_events
from lastword.change_data.events.envelopes import Envelope, Events
from lastword.change_data.events.event_keys import canonical_key
from lastword.change_data.events.event_rows import event_rows, line_events
from lastword.compaction.errors import InvalidConfiguration, InvalidRecords
from lastword.compaction.order.source_positions import SourcePosition, scope_of, table_code
from lastword.compaction.rows.input_columns import check_event_columns, columns_of

_FLAT = Envelope(kind="debezium-flat")
_OP = {"type": "string", "field": "op"}


def _read(*events: tuple[Any, Any], envelope: Envelope | None = None) -> Events:
    """Read events of keys and values that are JSON values, None for null, or the bytes themselves."""

    def text(value: Any) -> bytes | None:
        return value if value is None or isinstance(value, bytes) else json.dumps(value).encode()

    keys, values = zip(*((text(key), text(value)) for key, value in events), strict=True)
    return read_events(keys, values, envelope or Envelope())


def _source(lsn: int | None, **fields: Any) -> dict[str, Any]:
    return {"connector": "postgresql", "lsn": lsn, **fields}


def _orders(events: Events) -> list[str]:
    return [SourcePosition.of(text).order for text in events.sequence]


def _drawn(events: Events) -> list[str]:
    pairs = zip(events.key, events.value, strict=True)
    return [f"{(key or b'null').decode()} = {'∅' if value is None else value.decode()}" for key, value in pairs]


def _with_schema(payload: Any, kind: str = "int32") -> dict[str, Any]:
    return {"schema": {"type": "struct", "fields": [{"type": kind, "field": "id"}]}, "payload": payload}


def test_upserts_and_deletes_are_rows_and_the_tombstone_behind_a_delete_is_none() -> None:
    """Snapshot reads, inserts and updates alike."""
    row = {"id": 1, "v": "a"}
    events = _read(
        *(({"id": 1}, {"before": None, "after": row, "op": op, "source": _source(7)}) for op in "rcu"),
        ({"id": 1}, {"before": {"id": 1}, "after": None, "op": "d", "source": _source(8)}),
        ({"id": 1}, None),
    )
    assert _drawn(events) == ['{"id":1} = {"id": 1, "v": "a"}'] * 3 + ['{"id":1} = ∅']
    assert _orders(events) == [f"{7:020}.0", f"{7:020}.1", f"{7:020}.1", f"{8:020}.1"]
    assert events.others == {4: "tombstone"}


def test_a_flat_event_is_the_row_itself_without_its_metadata() -> None:
    """Deletions come as null, as the text null, or as rows that say so; null has no position."""
    events = _read(
        ({"id": 1}, {"id": 1, "v": "a", "__op": "c", "__source_lsn": 7}),
        ({"id": 2}, None),
        ({"id": 3}, b" null "),
        ({"id": 4}, {"id": 4, "__deleted": "true", "__source_lsn": 9}),
        ({"id": 5}, {"id": 5, "__deleted": "false", "__source_lsn": 10}),
        envelope=_FLAT,
    )
    assert _drawn(events) == ['{"id":1} = {"id":1,"v":"a"}', '{"id":2} = ∅', '{"id":3} = ∅', '{"id":4} = ∅', '{"id":5} = {"id":5}']
    assert _orders(events) == [f"{7:020}.1", "", "", f"{9:020}.1", f"{10:020}.1"]
    assert events.guessed == {1, 2}


def test_another_prefix_of_the_metadata() -> None:
    """As add.fields.prefix of the connector; without one nothing is taken for metadata."""
    event = ({"id": 1}, {"id": 1, "__op": "x", "meta.source_lsn": 3})
    assert _drawn(_read(event, envelope=Envelope(kind="debezium-flat", prefix="meta."))) == ['{"id":1} = {"id":1,"__op":"x"}']
    assert _read(event, envelope=Envelope(kind="debezium-flat", prefix="")).sequence == ["@:0001////"]


@pytest.mark.parametrize(
    "key",
    [
        b'{"order_id":5,"line_no":1}',
        b'{ "line_no" : 1 , "order_id" : 5 }',
        b'{"line_no":1.0,"order_id":5}',
        json.dumps(_with_schema({"order_id": 5, "line_no": 1})).encode(),
        json.dumps(_with_schema({"line_no": 1, "order_id": 5}, kind="int64")).encode(),
    ],
)
def test_one_row_has_one_key_whoever_writes_it(key: bytes) -> None:
    """Connect's schema, the type of a number, spaces and the order of fields make no second key."""
    assert canonical_key(key) == b'{"line_no":1,"order_id":5}'


def test_keys_that_differ_stay_different() -> None:
    """Null parts and empty strings, texts and numbers, numbers beyond the exact range of a float."""
    keys = [
        b'{"a":null}',
        b'{"a":""}',
        b'{"a":"1"}',
        b'{"a":1}',
        b'{"a":1.5}',
        b'{"a":9007199254740993}',
        b'{"a":true}',
        b"5",
        b'"5"',
        b"x",
    ]
    assert len({canonical_key(key) for key in keys}) == len(keys)


def test_a_key_from_the_columns_of_the_row() -> None:
    """A changed key is a deletion and an insert, if the row before is known; a missing column is refused by name."""
    envelope = Envelope(key=("b", "a"))
    events = _read(
        ({"a": 1}, {"before": None, "after": {"a": 1, "b": "", "c": 2}, "op": "c", "source": _source(1)}),
        ({"a": 1}, {"before": {"a": 1, "b": "", "c": 2}, "after": {"a": 1, "b": None, "c": 2}, "op": "u", "source": _source(2)}),
        ({"a": 1}, {"before": {"a": 1, "b": None, "c": 2}, "after": None, "op": "d", "source": _source(3)}),
        ({"a": 1}, {"before": None, "after": {"a": 1}, "op": "c", "source": _source(4)}),
        envelope=envelope,
    )
    assert events.key == [b'{"a":1,"b":""}', b'{"a":1,"b":""}', b'{"a":1,"b":null}', b'{"a":1,"b":null}']
    assert [value is None for value in events.value] == [False, True, False, True]
    assert events.refused == {3: "the key's column b is not in the row; there are a"}


@pytest.mark.parametrize(
    ("source", "order", "identity"),
    [
        ({"connector": "postgresql", "sequence": '["24023119","24023128"]', "lsn": 24023128}, (24023119,), f"{24023128:020}"),
        ({"connector": "postgresql", "sequence": ["7", "9"], "lsn": "9"}, (7,), f"{9:020}"),
        ({"connector": "postgresql", "sequence": '["7","9"]', "commit_lsn": 12, "lsn": 9}, (12,), f"{9:020}"),
        ({"connector": "postgresql", "lsn": 27330312}, (27330312,), f"{27330312:020}"),
        ({"connector": "mysql", "file": "mysql-bin.000003", "pos": 154, "row": 2}, (3, 154), f"{2:020}"),
        ({"connector": "mariadb", "file": "binlog.1000000", "pos": 4}, (1_000_000, 4), f"{0:020}"),
        ({"connector": "oracle", "scn": "2122184", "commit_scn": "2122200"}, (2122200,), f"{2122184:020}"),
        ({"connector": "oracle", "scn": "2122184", "commit_scn": None}, (2122184,), f"{2122184:020}"),
        ({"connector": "mongodb", "ts_ms": 1700000000000, "ord": 31}, (1700000000000, 31), ""),
        ({"connector": "mongodb", "ts_ms": 1700000000000, "ord": 31, "wallTime": 1700000000123}, (1700000000000, 31), ""),
    ],
)
def test_each_connector_has_its_position(source: dict[str, Any], order: tuple[int, ...], identity: str) -> None:
    """The position of the commit is the order; the rest of it tells the events of one commit apart."""
    (text,) = _read(({"id": 1}, {"after": {"id": 1}, "op": "u", "source": {**source, "name": "shop/1"}})).sequence
    found = SourcePosition.of(text)
    assert (found.scope, found.order) == (f"@{source['connector']}.shop%2F1:", ".".join(f"{part:020}" for part in order) + ".1")
    assert (found.identity, found.partition, found.table) == (identity, "", "")


@pytest.mark.parametrize(
    ("source", "order"),
    [
        ({"connector": "postgresql", "sequence": '[null,"24023128"]', "lsn": 24023128}, f"{24023128:020}.0"),
        ({"connector": "postgresql", "sequence": '["7","9"]', "lsn": 9}, f"{7:020}.1"),
        ({"connector": "postgresql", "sequence": None, "lsn": None}, ""),
        ({"connector": "mysql", "file": "a.000003", "pos": 154}, f"{3:020}.{154:020}.0"),
        ({"connector": "sqlserver", "commit_lsn": "00000027:00000AC0:0002", "change_lsn": None}, "00000027:00000ac0:0002.0"),
        ({"connector": "sqlserver", "commit_lsn": None, "change_lsn": None}, ""),
        ({"connector": "mongodb", "ts_ms": 1700000000000, "ord": 31}, ""),
    ],
)
def test_the_row_of_a_snapshot_is_before_a_change_at_its_position(source: dict[str, Any], order: str) -> None:
    """One of an incremental snapshot is a change; where nothing is known, or a clock of the connector, arrival counts."""
    assert _orders(_read(({"id": 1}, {"after": {"id": 1}, "op": "r", "source": source}))) == [order]


def test_sql_server_has_texts_for_positions() -> None:
    """They have a fixed width, so comparing the texts compares the positions; each database is a source of its own."""
    source: dict[str, Any] = {"connector": "sqlserver", "name": "s", "db": "d", "schema": "dbo", "table": "t"}
    source |= {"commit_lsn": "00000027:00000ac0:0002", "change_lsn": "00000027:00000AC0:0001", "event_serial_no": 1}
    (found,) = _read(({"id": 1}, {"after": {"id": 1}, "op": "u", "source": source})).sequence
    assert found == f"@sqlserver.s.d:0001/00000027:00000ac0:0002.1/00000027:00000AC0:0001.1/{table_code('d', 'dbo', 't')}/"


@pytest.mark.parametrize(
    "source",
    [
        None,
        {},
        {"connector": "vitess", "vgtid": "x"},
        {"connector": "informix", "commit_lsn": "9999999000"},
        {"connector": "postgresql", "sequence": '[null,"5"]', "lsn": 5},
        {"connector": "mongodb", "ts_ms": 1700000000123, "ord": 1},
        {"connector": "mongodb", "ts_ms": 1700000000000, "ord": 1, "wallTime": 1700000000000},
        {"connector": "sqlserver", "commit_lsn": "12"},
        _source(None),
        _source(10**20),
    ],
)
def test_an_unknown_position_is_the_order_of_arrival(source: Any) -> None:
    """Such an event is no error; its scope is known if its connector is."""
    (text,) = _read(({"id": 1}, {"after": {"id": 1}, "op": "u", "source": source})).sequence
    assert SourcePosition.of(text).order == ""
    assert scope_of(text) == f"@{(source or {}).get('connector', '')}:"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ({"connector": "cassandra", "file": "1", "pos": 1}, "source.connector cassandra: its events come in no order"),
        ({"commit_lsn": "00000027:00000ac0:0002", "row": 0}, "commit_lsn without source.connector: say which connector it is"),
    ],
)
def test_what_cannot_be_ordered_is_refused(source: Any, reason: str) -> None:
    """By the name of the connector or of the field."""
    refused = _read(({"id": 1}, {"after": {"id": 1}, "op": "u", "source": source})).refused
    assert refused[0].startswith(reason)
    named = _read(({"id": 1}, {"after": {"id": 1}, "op": "u", "source": source}), envelope=Envelope(connector="db2"))
    assert bool(named.refused) is ("connector" in source)


def test_an_envelope_names_the_source() -> None:
    """In place of what the event says, or does not say."""
    event = {"after": {"id": 1}, "op": "u", "source": {"connector": "mysql", "name": "a", "file": "x.1", "pos": 4}}
    (text,) = _read(({"id": 1}, event), envelope=Envelope(scope="blue")).sequence
    assert scope_of(text) == "@mysql.blue:"
    (text,) = _read(({"id": 1}, None), envelope=Envelope(kind="debezium-flat", scope="blue", connector="mysql")).sequence
    assert scope_of(text) == "@mysql.blue:"


def test_a_sequence_that_is_given() -> None:
    """Fields of the event by path; of a flat event its columns, and one that lacks it is refused."""
    event = ({"id": 1}, {"after": {"id": 1, "version": 4}, "op": "u", "source": {"ts_ms": 99}})
    assert _read(event, envelope=Envelope(sequence=("source.ts_ms", "after.version"))).sequence == [f"{99:020} {4:020}"]
    flat = Envelope(kind="debezium-flat", sequence=("version",), sequence_as="text")
    assert _read(({"id": 1}, {"id": 1, "version": "b"}), envelope=flat).sequence == ["b"]
    assert _read(({"id": 1}, {"id": 1}), envelope=flat).refused == {0: "sequence version: the event has none"}


def test_a_deletion_has_the_sequence_of_the_row_before_it() -> None:
    """If the event leaves out `before`, as under REPLICA IDENTITY DEFAULT, the sequence is not known."""
    envelope = Envelope(sequence=("after.version",))
    events = [({"id": 1}, {"before": before, "after": None, "op": "d"}) for before in ({"id": 1, "version": 4}, {"id": 1}, None)]
    assert _read(*events, envelope=envelope).sequence == [f"{4:020}", "", ""]


@pytest.mark.parametrize(
    ("kind", "older", "newer"),
    [
        ("number", "9999999", "10000000"),
        ("number", "-5", "-4.5"),
        ("number", "5", "50000000000000000000"),
        ("time", "2026-03-01T06:30:00Z", "2026-03-01T06:30:00.5Z"),
        ("time", "2026-03-01T06:30:00.500Z", "2026-03-01T06:30:00.500000001Z"),
        ("time", "2026-03-01 09:30:00+02:00", "2026-03-01 08:30:00+00:00"),
        ("time", "2026-03-01 06:30:00", "2026-03-01 06:30:00.25"),
        ("text", "a9", "b1"),
    ],
)
def test_a_text_is_compared_as_it_is_said(kind: Any, older: str, newer: str) -> None:
    """As a text, a number or a time; without a word it is refused."""
    events = [({"id": 1}, {"after": {"id": 1, "v": text}, "op": "u"}) for text in (older, newer)]
    first, second = _read(*events, envelope=Envelope(sequence=("after.v",), sequence_as=kind)).sequence
    assert first < second
    refused = _read(*events, envelope=Envelope(sequence=("after.v",))).refused
    assert [reason.partition(": a text; ")[2] for reason in refused.values()] == [
        "say what it is compared as: sequence.as = number, time or text"
    ] * 2


@pytest.mark.parametrize(("kind", "text"), [("number", "x"), ("number", "NaN"), ("time", "yesterday"), ("time", "2026-02-30T00:00:00Z")])
def test_a_text_that_is_not_what_is_said_is_refused(kind: Any, text: str) -> None:
    """With the field and the value."""
    event = ({"id": 1}, {"after": {"id": 1, "v": text}, "op": "u"})
    assert "sequence after.v = " in _read(event, envelope=Envelope(sequence=("after.v",), sequence_as=kind)).refused[0]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({"ts_ms": 1}, "heartbeat"),
        (_with_schema({"ts_ms": 1}), "heartbeat"),
        ({"status": "BEGIN", "id": "571:53195829", "ts_ms": 1, "event_count": None, "data_collections": None}, "transaction"),
        ({"source": {"lsn": 1}, "ddl": "CREATE TABLE t (id int)", "databaseName": "shop", "tableChanges": []}, "schema_change"),
        ({"op": "m", "source": _source(3), "message": {"prefix": "p", "content": "eA=="}}, "message"),
        (_with_schema(None), "tombstone"),
        (b"null", "tombstone"),
    ],
)
def test_events_that_are_no_rows_are_told_apart(value: Any, kind: str) -> None:
    """They are counted, and no dead letters."""
    events = _read((None, value))
    assert (events.others, events.key, events.refused) == ({0: kind}, [], {})


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"\xff\xfe", "the value is no envelope of Debezium"),
        (b"[1]", "the value is no envelope of Debezium"),
        ({"id": 1, "v": "a"}, "no op in the value, so it is no change event"),
        ({"op": "x"}, "op 'x': allowed is r, c, u, d, t or m"),
        ({"op": "c", "after": None}, "op 'c' without a row in `after`"),
        ({"op": 7}, "op 7: allowed is"),
        (b'{"op":"c","after":' + b"[" * 10_000, "its JSON is nested too deeply"),
    ],
)
def test_what_is_no_event_is_refused_and_the_others_go_on(value: Any, said: str) -> None:
    """With the text that was wrong."""
    good = ({"id": 1}, {"after": {"id": 1}, "op": "c", "source": _source(1)})
    events = _read(good, (None, value), good)
    assert said in events.refused[1]
    assert events.row == [0, 2]


@pytest.mark.parametrize(
    ("policy", "sequence", "said"),
    [
        ("delete-all", 5, "truncate"),
        ("ignore", 5, "truncate ignored"),
        ("alert", 5, "alert:TRUNCATE of the source's table at"),
        ("delete-all", None, "alert:TRUNCATE of the source's table at an unknown position"),
    ],
)
def test_a_truncate_is_taken_as_its_policy_says(policy: Any, sequence: int | None, said: str) -> None:
    """One whose position is not known cannot be ordered, so it deletes nothing."""
    events = _read((None, {"op": "t", "source": _source(sequence)}), envelope=Envelope(truncate=policy))
    assert events.others[0].startswith(said)


_TOAST = "__debezium_unavailable_value"


@pytest.mark.parametrize(
    "placeholder",
    [_TOAST, [_TOAST], "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==", {_TOAST: _TOAST}, list(_TOAST.encode()), _TOAST.encode().hex()],
)
def test_columns_that_are_left_out_are_named(placeholder: Any) -> None:
    """Text, arrays, bytes, maps, arrays of numbers, hexadecimal; what only contains the placeholder is a value."""
    row = {"id": 1, "body": placeholder, "note": f"about {_TOAST}", "n": 2}
    assert _read(({"id": 1}, {"after": row, "op": "u", "source": _source(1)})).unresolved == [("body",)]


def test_the_row_before_has_what_was_left_out() -> None:
    """With REPLICA IDENTITY FULL nothing has to be looked up."""
    event = {"before": {"id": 1, "body": "long"}, "after": {"id": 1, "body": _TOAST}, "op": "u", "source": _source(1)}
    events = _read(({"id": 1}, event))
    assert (_drawn(events), events.unresolved) == (['{"id":1} = {"id":1,"body":"long"}'], [()])


def test_numbers_keep_their_digits() -> None:
    """The row is taken as text."""
    row = b'{"id":1,"big":12345678901234567890123,"f":1.10,"e":1e-30}'
    events = _read(({"id": 1}, b'{"before":null,"after":' + row + b',"op":"c","source":{"lsn":1}}'))
    assert events.value == [row]


def test_events_of_a_batch_are_rows_with_their_place_in_the_source() -> None:
    """In the order of the batch, two for a changed key; other columns go along."""
    change = {"before": {"id": 1, "v": "a"}, "after": {"id": 2, "v": "a"}, "op": "u", "source": _source(4)}
    headers = pa.array([None, [{"key": "h", "value": b"x"}], None], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))
    batch = pa.record_batch(
        {
            "key": pa.array([None, None, "k"]),
            "value": pa.array([json.dumps({"ts_ms": 1}), json.dumps(change), "no event"]),
            "headers": headers,
            "partition": pa.array([0, 1, 1], pa.int32()),
            "offset": pa.array([5, 6, 7]),
            "timestamp": pa.array([10, 20, 30]),
        }
    )
    rows = event_rows(batch, Envelope(key=("id",))).to_pylist()
    assert [(row["key"], row["value"], row["timestamp"]) for row in rows] == [
        (None, b'{"ts_ms": 1}', 10),
        (b'{"id":1}', None, 20),
        (b'{"id":2}', b'{"id": 2, "v": "a"}', 20),
        (b"k", b"no event", 30),
    ]
    assert [row["__event"] for row in rows] == ["heartbeat", None, None, None]
    assert rows[3]["__refusal"].startswith("the value is no envelope")
    assert [(header["key"], header["value"]) for header in rows[2]["headers"]] == [
        ("h", b"x"),
        ("source.partition", b"1"),
        ("source.offset", b"6"),
    ]


def test_values_are_what_the_schema_of_their_event_says() -> None:
    """Connect's schema, read once; the row before is typed alike when the key is taken from it."""
    fields = [
        {"type": "int32", "field": "id"},
        {
            "type": "bytes",
            "name": "org.apache.kafka.connect.data.Decimal",
            "parameters": {"scale": "2"},
            "field": "price",
            "optional": True,
        },
    ]
    schema = {"type": "struct", "fields": [*({"type": "struct", "fields": fields, "field": one} for one in ("before", "after")), _OP]}
    rows = [{"id": 1, "price": "NA=="}, {"id": 2, "price": None}]
    values = [{"schema": schema, "payload": {"before": rows[0], "after": row, "op": "u", "source": _source(1)}} for row in rows]
    deletion = {"schema": schema, "payload": {"before": rows[0], "after": None, "op": "d", "source": _source(2)}}
    events = _read(*((None, value) for value in (*values, deletion)), envelope=Envelope(key=("id", "price")))
    assert _drawn(events) == [
        '{"id":1,"price":"0.52"} = {"id":1,"price":"0.52"}',
        '{"id":1,"price":"0.52"} = ∅',
        '{"id":2,"price":null} = {"id":2,"price":null}',
        '{"id":1,"price":"0.52"} = ∅',
    ]


def test_values_are_what_a_given_schema_says_and_what_does_not_fit_is_refused() -> None:
    """By name, or null if that is wished; a schema that cannot be read refuses its events."""
    event = ({"id": 1}, {"after": {"id": 1, "price": "oops!"}, "op": "c", "source": _source(1)})
    given = "id int, price decimal(10,2)"
    assert _read(event, envelope=Envelope(schema=given)).refused[0].startswith('column price = "oops!": allowed is decimal(10,2)')
    assert _read(event, envelope=Envelope(schema=given, misfit="null")).value == [b'{"id":1,"price":null}']
    wrong = {"schema": {"type": "nonsense"}, "payload": {"after": {"id": 1}, "op": "c"}}
    assert "schema" in _read(({"id": 1}, wrong)).refused[0]
    assert _read(({"id": 1}, {"schema": None, "payload": {"after": {"id": 1}, "op": "c"}})).value == [b'{"id": 1}']


def test_the_columns_of_the_newest_event_that_is_a_row_are_noted() -> None:
    """Whichever comes last; one whose row before does not fit its schema is refused."""
    fields = [{"type": "int32", "field": "id"}]
    schema = {"type": "struct", "fields": [{"type": "struct", "fields": fields, "field": one} for one in ("before", "after")]}

    def event(lsn: int, before: object) -> tuple[None, dict[str, Any]]:
        payload = {"before": before, "after": {"id": lsn}, "op": "u", "source": _source(lsn)}
        return None, {"schema": schema, "payload": payload}

    events = _read(event(1, None), event(5, {"id": 5}), event(3, None), event(9, {"id": "x"}), envelope=Envelope(key=("id",)))
    assert events.learnt is not None
    assert (events.learnt.row, list(events.refused)) == (1, [3])


def test_a_flat_event_with_a_schema() -> None:
    """The types of its columns; a row whose columns are called schema and payload, and others, is a row."""
    schema = {"type": "struct", "fields": [{"type": "int32", "name": "io.debezium.time.Date", "field": "day"}]}
    events = _read(
        (None, {"schema": schema, "payload": {"day": 20513}}),
        (b"null", {"schema": 1, "payload": 2, "more": 3}),
        envelope=_FLAT,
    )
    assert (events.value, events.key) == ([b'{"day":"2026-03-01"}', b'{"schema": 1, "payload": 2, "more": 3}'], [None, None])


def test_flat_events_that_are_no_rows() -> None:
    """Heartbeats and TRUNCATE; a tombstone has no columns to take a key from."""
    events = _read(
        ({"serverName": "s"}, {"ts_ms": 4}), (None, {"__op": "t", "__source_lsn": 3}), ({"id": 1}, {"id": 1, "__op": "d"}), envelope=_FLAT
    )
    assert events.others == {0: "heartbeat", 1: "truncate"}
    assert _drawn(events) == ['{"id":1} = ∅']
    refused = _read(({"id": 1}, None), (None, b"[]"), envelope=Envelope(kind="debezium-flat", key=("id",))).refused
    assert "a tombstone has no row" in refused[0]
    assert "the value is no JSON object" in refused[1]


@pytest.mark.parametrize(
    ("source", "known"),
    [
        ({"lsn": 5}, True),
        ({"file": "bin.000001", "pos": 4}, True),
        ({"scn": "7"}, True),
        ({"ord": 2, "ts_ms": 1000}, True),
        ({"connector": "mysql", "file": "no number", "pos": 4}, False),
        ({"connector": ["postgresql"], "lsn": 4}, False),
        ({"connector": "postgresql", "lsn": "x"}, False),
    ],
)
def test_a_source_that_does_not_name_its_connector(source: dict[str, Any], *, known: bool) -> None:
    """Its fields tell it; what cannot be read is the order of arrival."""
    (sequence,) = _read(({"id": 1}, {"after": {"id": 1}, "op": "u", "source": source})).sequence
    assert bool(SourcePosition.of(sequence).order) is known


def test_a_sequence_that_has_no_order_is_refused() -> None:
    """A number that is too long."""
    event = ({"id": 1}, {"after": {"id": 1, "v": 10**20, "w": {"a": 1}}, "op": "u"})
    assert "allowed are numbers of up to 20 digits" in _read(event, envelope=Envelope(sequence=("after.v",))).refused[0]
    assert "allowed is a number" in _read(event, envelope=Envelope(sequence=("after.w",))).refused[0]


def test_keys_that_are_no_json() -> None:
    """A text is its JSON string; bytes are refused, and null, in whichever form, is no key."""
    events = _read((b"plain text", {"after": {}, "op": "c"}), (b"\xff\xfe", {"after": {}, "op": "c"}), (b"null", {"after": {}, "op": "c"}))
    assert events.key == [b'"plain text"', None]
    assert "neither JSON nor UTF-8" in events.refused[1]
    assert canonical_key(b'{"b":[1.0,{"c":2.0}],"a":1e300}') == b'{"a":1e300,"b":[1,{"c":2}]}'


def test_the_settings_of_an_envelope_are_checked() -> None:
    """All at once; a schema that cannot be read says where."""
    with pytest.raises(InvalidConfiguration) as error:
        Envelope(truncate="never", kind="maxwell")  # type: ignore[arg-type]
    assert [one.key for one in error.value.violations] == ["kind", "truncate"]
    with pytest.raises(InvalidConfiguration, match="schema"):
        Envelope(schema="id nonsense(")


def test_a_changed_key_is_noted_with_its_old_and_new_one() -> None:
    """From Debezium's headers; a batch without them has no notes."""
    text = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = [[("__debezium.newkey", b'{"id":2}')], [("__debezium.oldkey", b'{"id":1.0}')], None, [("h", None)]]
    values = [
        {"before": {"id": 1}, "op": "d", "source": _source(4)},
        {"after": {"id": 2, "body": _TOAST}, "op": "c", "source": _source(4)},
        {"after": {"id": 3, "body": _TOAST}, "op": "u", "source": _source(5)},
        {"after": {"id": 4}, "op": "u", "source": _source(6)},
    ]
    batch = pa.record_batch(
        {
            "key": pa.array(['{"id":1}', '{"id":2}', '{"id":3}', '{"id":4}']),
            "value": pa.array([json.dumps(value) for value in values]),
            "headers": pa.array([one and [{"key": key, "value": value} for key, value in one] for one in headers], text),
        }
    )
    notes = event_rows(batch, Envelope()).column("__unchanged").to_pylist()
    assert [note and json.loads(note) for note in notes] == [
        {"columns": [], "old_key": None, "new_key": '{"id":2}'},
        {"columns": ["body"], "old_key": '{"id":1}', "new_key": None},
        {"columns": ["body"], "old_key": None, "new_key": None},
        None,
    ]
    others = batch.slice(3, 1).set_column(2, "headers", pa.array([[{"key": "h", "value": b"x"}]], text))
    assert event_rows(others, Envelope()).column("__unchanged").to_pylist() == [None]
    for odd in (b"\xff", b"[" * 100_000):
        unread = batch.slice(1, 1).set_column(2, "headers", pa.array([[{"key": "__debezium.oldkey", "value": odd}]], text))
        (note,) = event_rows(unread, Envelope()).column("__unchanged").to_pylist()
        assert json.loads(note) == {"columns": ["body"], "old_key": None, "new_key": None}


class _Frames(NamedTuple):
    values: pa.Array
    reasons: dict[int, str]
    schemas: dict[int, tuple[int]]


class _Decoder:
    """Frames are a digit, the schema, and JSON behind it."""

    def decode_column(self, column: pa.Array) -> _Frames:
        texts = column.to_pylist()
        good = [text if text is None or text[:1].isdigit() else None for text in texts]
        return _Frames(
            pa.array([text and text[1:] for text in good], pa.binary()),
            {row: "no frame" for row, text in enumerate(texts) if text is not None and good[row] is None},
            {row: (int(text[:1]),) for row, text in enumerate(good) if text is not None},
        )

    def data_type(self, schema_id: int, message: tuple[int, ...] = ()) -> DataType:  # noqa: ARG002
        row = StructType((Column("day", ScalarType("date", "days")),) if schema_id == 1 else ())
        return StructType((Column("before", row), Column("after", row), Column("op", ScalarType("string"))))


def test_framed_events_have_the_types_of_their_schemas() -> None:
    """And a frame that cannot be decoded is refused with the reason, key or value."""
    event = json.dumps({"after": {"day": 0}, "op": "c"}).encode()
    keys, values = [b'2{"id":1}', b"x", b'2{"id":3}'], [b"1" + event, b"1" + event, b"x"]
    rows = event_rows(pa.record_batch({"key": pa.array(keys), "value": pa.array(values)}), Envelope(), _Decoder()).to_pylist()
    assert [row["__refusal"] for row in rows] == [None, "key: no frame", "no frame"]
    assert (rows[0]["key"], rows[0]["value"]) == (b'{"id":1}', b'{"day":"1970-01-01"}')
    assert (rows[2]["key"], rows[2]["value"]) == (b'2{"id":3}', b"x")


def test_lines_are_records_of_kafka_or_events_alone() -> None:
    """Keys and values as text or as JSON; headers as pairs; other columns stay."""
    lines = [
        b'{"key":"{\\"id\\":1}","value":{"op":"c"},"headers":[["h",1],["n",null]]}',
        b'{"key":null,"value":null,"headers":{}}',
        b'{"op":"c","value":1}',
        b"",
        b"{cut",
    ]
    rows = line_events(pa.record_batch({"value": pa.array(lines), "at": pa.array(range(5))})).to_pylist()
    assert [(row["key"], row["value"]) for row in rows] == [
        (b'{"id":1}', b'{"op":"c"}'),
        (None, None),
        (None, lines[2]),
        (None, b""),
        (None, lines[4]),
    ]
    assert rows[0]["headers"] == [{"key": "h", "value": b"1"}, {"key": "n", "value": None}]
    assert [row["at"] for row in rows] == [0, 1, 2, 3, 4]


def test_events_without_headers_of_their_own_have_their_place() -> None:
    """All at once."""
    columns = {"key": pa.array(["1", "2"]), "value": pa.array([None, None], pa.string())}
    batch = pa.record_batch({**columns, "partition": pa.array([3, 4]), "offset": pa.array([5, 6])})
    found = [[bytes(header["value"]) for header in row["headers"]] for row in event_rows(batch, Envelope()).to_pylist()]
    assert found == [[b"3", b"5"], [b"4", b"6"]]


def test_events_need_a_key_and_a_value() -> None:
    """As text or binary."""
    check_event_columns(columns_of(pa.schema([("key", pa.string()), ("value", pa.null())])), topic="t")
    with pytest.raises(InvalidRecords, match="column key is missing, or neither text nor binary"):
        check_event_columns(columns_of(pa.schema([("key", pa.int64()), ("value", pa.string())])), topic="t")
    texts = [("key", pa.string()), ("value", pa.string())]
    with pytest.raises(InvalidRecords, match="column headers is int64: allowed is array"):
        check_event_columns(columns_of(pa.schema([*texts, ("headers", pa.int64())])), topic="t")
    with pytest.raises(InvalidRecords, match="column source_sequence: events in an envelope say themselves"):
        check_event_columns(columns_of(pa.schema([*texts, ("source_sequence", pa.int64())])), topic="t")
