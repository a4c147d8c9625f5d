"""Events that are alike are read as each would be by itself, whatever stands between them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastword.change_data.events.alike_events import AlikeLimits, alike_events
from lastword.change_data.events.envelopes import Envelope
from lastword.change_data.events.event_rows import event_rows
from lastword.compaction.rows.input_columns import COLUMNS, HEADERS
from tests.randomness import examples

if TYPE_CHECKING:
    from collections.abc import Sequence

_TOAST = "__debezium_unavailable_value"
_POSTGRESQL = (
    '{"version":"3.6.1.Final","connector":"postgresql","ts_ms":17000%d,"snapshot":"false","sequence":"[\\"275\\",\\"2758%d\\"]","lsn":%d}'
)
_MYSQL = '{"connector":"mysql","file":"mysql-bin.0000%02d","pos":%d,"row":0,"gtid":null}'
_MONGODB = '{"connector":"mongodb","ts_ms":17000000%02d,"ord":%d}'


_SCHEMA = (
    b'{"type":"struct","fields":[{"type":"struct","field":"after","fields":[{"type":"int32","field":"id"},'
    b'{"type":"int32","name":"io.debezium.time.Date","field":"day"}]}],"version":1}'
)


def _event(number: int, row: str | None = None, *, before: str = "null", op: str = "u", source: str = "") -> bytes:
    """Return an event as Debezium writes it, with a row in JSON."""
    row = json.dumps({"id": number, "v": "x" * (number % 7)}) if row is None else row
    source = source or _POSTGRESQL % (number + 10, number + 10, number + 1000)
    return f'{{"before":{before},"after":{row},"source":{source},"transaction":null,"op":"{op}","ts_ms":1700{number + 10}}}'.encode()


def _batch(values: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None) -> pa.RecordBatch:
    keys = [b'{"id":%d}' % number for number in range(len(values))] if keys is None else keys
    return pa.record_batch({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})


def _by_itself(batch: pa.RecordBatch, envelope: Envelope) -> list[dict[str, Any]]:
    """Return what each event is by itself; of the columns that their schemas name, a batch tells those of the newest event."""
    rows = [row for at in range(len(batch)) for row in event_rows(batch.slice(at, 1), envelope).to_pylist()]
    newest = max((at for at, row in enumerate(rows) if row[COLUMNS]), key=lambda at: (rows[at]["source_sequence"], at), default=-1)
    return [{**row, COLUMNS: row[COLUMNS] if at == newest else None} for at, row in enumerate(rows)]


def _taken(batch: pa.RecordBatch, envelope: Envelope | None = None) -> list[int]:
    """Return the rows that are read together; all are to be what they are by themselves."""
    envelope = envelope or Envelope()
    assert event_rows(batch, envelope).to_pylist() == _by_itself(batch, envelope)
    rows: list[int] = alike_events(batch.column("key"), batch.column("value"), envelope).row.tolist()
    return rows


@pytest.mark.parametrize(
    ("limits", "together"),
    [
        (AlikeLimits(min_events=40), True),
        (AlikeLimits(min_events=41), False),
        (AlikeLimits(compared_bytes=1), True),
        (AlikeLimits(compared_bytes=300), True),
        (AlikeLimits(sampled_events=1), True),
        (AlikeLimits(max_misses=0), False),
    ],
    ids=repr,
)
def test_events_are_read_together_or_not_by_the_limits(limits: AlikeLimits, *, together: bool) -> None:
    """Forty events that are alike; what is compared at a time does not matter."""
    batch = _batch([_event(number) for number in range(40)])
    alike = alike_events(batch.column("key"), batch.column("value"), Envelope(), limits=limits)
    assert alike.row.tolist() == (list(range(40)) if together else [])
    assert alike.value.to_pylist() == (event_rows(batch, Envelope()).column("value").to_pylist() if together else [])


@pytest.mark.parametrize(("min_share", "rows"), [(2, list(range(40))), (1, [])])
def test_a_form_is_worth_it_if_enough_events_have_it(min_share: int, rows: list[int]) -> None:
    """Forty of sixty events have one form, which the template is learnt from; each of the others has its own."""
    others = [b'{"op":"u","n":%s,"after":{"id":%d}}' % (b'"' + b"x" * number + b'"', number) for number in range(20)]
    batch = _batch([*(_event(number) for number in range(40)), *others])
    limits = AlikeLimits(min_share=min_share, max_misses=1)
    assert alike_events(batch.column("key"), batch.column("value"), Envelope(), limits=limits).row.tolist() == rows


def test_events_that_are_alike_are_read_together() -> None:
    """Their rows, and the digits of their numbers, are their own."""
    batch = _batch([_event(number) for number in range(40)])
    assert _taken(batch) == list(range(40))
    assert _taken(batch.slice(3, 30)) == list(range(30))
    found = event_rows(batch, Envelope()).to_pylist()[5]
    assert (found["key"], found["value"]) == (b'{"id":5}', b'{"id": 5, "v": "xxxxx"}')
    assert found["source_sequence"] == f"@postgresql:0001/{275:020}.1/{1005:020}//"


@pytest.mark.parametrize(
    "events",
    [
        [_event(number, source=_MYSQL % (number, number + 100), op="r") for number in range(20)],
        [_event(number, before=f'{{"id":{number}}}') for number in range(20)],
        [_event(number, "null", before=f'{{"id":{number}}}', op="d") for number in range(20)],
        [b'{"after":{"id":%d},"before":{},"op":"c","source":{"connector":"postgresql","lsn":"%02d"}}' % (n, n) for n in range(20)],
        [b'{"schema":null,"payload":%s}' % _event(number) for number in range(20)],
    ],
    ids=["binlog", "the row before", "deletions", "the row before behind", "payload"],
)
def test_forms_that_are_read_together(events: list[bytes | None]) -> None:
    """Other connectors, deletions, REPLICA IDENTITY FULL."""
    assert _taken(_batch(events)) == list(range(20))


@pytest.mark.parametrize(
    "events",
    [
        [_event(number) for number in range(10)],
        [b'{"op":"d","before":{},"source":{"connector":"sqlserver","commit_lsn":"1:%d"}}' % number for number in range(20)],
        [b'{"op":"d","before":{},"source":{"connector":["postgresql"],"lsn":%d}}' % number for number in range(20)],
        [b'{"op":"c","after":[],"source":{"connector":"postgresql","lsn":%d}}' % (number + 10) for number in range(20)],
        [b'{"op":"d","before":null,"source":{"connector":"postgresql","lsn":%d}}' % (number + 10) for number in range(20)],
        [_event(number, source=_MONGODB % (number, number % 10)) for number in range(20)],
        [_event(number, source='{"connector":"postgresql","sequence":"[null,\\"5\\"]","lsn":5}') for number in range(20)],
        [_event(number, source='{"connector":"postgresql","commit_lsn":7,"sequence":"[\\"3\\",\\"5\\"]","lsn":5}') for number in range(20)],
        [b'{"op":"d","before":{},"source":{"connector":"postgresql","lsn":1%d.0}}' % number for number in range(20)],
        [b'{"op":"d","before":{},"source":{"connector":"postgresql","lsn":"3_%d"}}' % number for number in range(20)],
        [b'{"source":{"connector":"postgresql","lsn":%d},"op":"c","after":{}}' % (number + 10) for number in range(20)],
        [b'{"payload":%s,"schema":%s}' % (_event(number), _SCHEMA) for number in range(20)],
        [b'{"schema":"nonsense","payload":%s}' % _event(number) for number in range(20)],
        [b'{"op":"d","before":{}}'] * 20,
        [b'{"ts_ms":1}', None] * 10,
        [b'{"op":"%s"}' % letter for letter in (b"x", b"t", b"m", b"c") * 5],
        [_event(number, json.dumps({"v": _TOAST})) for number in range(20)],
        [_event(number, '{"v":"\\u00e9"') for number in range(20)],
    ],
)
def test_forms_that_are_read_by_themselves(events: list[bytes | None]) -> None:
    """Few events, positions that are no numbers or not known, rows that leave something out."""
    assert _taken(_batch(events)) == []


@pytest.mark.parametrize("envelope", [Envelope(kind="debezium-flat"), Envelope(key=("id",)), Envelope(sequence=("after.id",))])
def test_events_of_some_envelopes_are_read_one_by_one(envelope: Envelope) -> None:
    """Flattened events, and those whose key or sequence is a column of the row, are never read together."""
    assert _taken(_batch([_event(number) for number in range(20)]), envelope) == []


def test_rows_with_types_are_read_together() -> None:
    """As the envelope or the schema of each event says; what does not fit its column is read by itself, and the newest one."""
    events = [b'{"schema":%s,"payload":%s}' % (_SCHEMA, _event(one, f'{{"day":{one + 20_000},"id":1}}')) for one in range(40)]
    events[3] = events[3].replace(b"20003", b'"never"')
    events[4] = events[4].replace(b'"version":1', b'"version":2')
    batch = _batch(events)
    assert _taken(batch) == [0, 1, 2, *range(5, 39)]
    assert event_rows(batch, Envelope()).column("value")[0].as_py() == b'{"id":1,"day":"2024-10-04"}'
    given = Envelope(schema="id int, v string")
    assert _taken(_batch([_event(one, '{"v":"x","id":"1"}' if one == 3 else None) for one in range(20)]), given) == [0, 1, 2, *range(4, 20)]


def test_several_forms_of_one_batch() -> None:
    """Numbers of other lengths, and a few events that are like no other."""
    events = [_event(number % 2000, op="cu"[number % 2]) for number in range(0, 4000, 10)]
    assert _taken(_batch(events)) == list(range(400))
    events[7], events[200], events[399] = b"{cut", b'{"ts_ms":1}', _event(1, "{}", before="[]")
    assert _taken(_batch(events)) == [row for row in range(400) if row not in {7, 200, 399}]
    assert len(_taken(_batch([event for one in range(20) for event in (_event(one), _event(one, f'{{"v":"{_TOAST}"}}'))]))) == 20


def test_other_events_end_the_search_for_what_is_alike() -> None:
    """Each is like no other."""
    events = [_event(1, source='{"x":"%s","connector":"postgresql","lsn":10}' % ("x" * size)) for size in range(40)]
    assert _taken(_batch(events)) == []


_HOSTILE = [
    '{"id":1',
    '"b":2},{"c":3}',
    '{"a":1}{"b":',
    "2}",
    '{"a":1},"after":{"b":2}',
    '{"a":{},"after":{"b":2}}',
    '{"a":"\\",\\"after\\":{}"}',
    '{"a":1},"op":"d","x":{"b":2}',
    '{"a":1} ',
    ' {"a":1}',
    "{}",
    "null",
    "5",
    '"text"',
    "[]",
    "[{}]",
    '{"a":12345678901234567890123,"b":1e999}',
    '{"a":"\\ud83d\\ude00","b":"\u00e9"}',
    '{"a":"\\ud83d"}',
    '{"a":"\n"}',
    '{"a":01}',
    '{"a":nul}',
    '{"a":1,"a":2}',
    f'{{"a":"{_TOAST}"}}',
    f'{{"a":"{_TOAST}{_TOAST}"}}',
    '{"a":[95, 95]}',
    '{"a":{"b":{"c":[{},{}]}}}',
]
_SOURCES = [
    '{"connector":"postgresql","lsn":0%d}',
    '{"connector":"postgresql","lsn":-%d}',
    '{"connector":"postgresql","lsn":%d0000000000000000000000}',
    '{"connector":"postgresql","lsn":%d,"lsn":null}',
    '{"connector":"postgresql","lsn":null,"lsn":%d}',
    '{"connector":"postgresql","l\\u0073n":%d,"lsn":7}',
    '{"connector":"postgresql","lsn":%d.5}',
    '{"connector":"postgresql","lsn":%de2}',
    '{"connector":"postgresql","lsn":"%d"}',
    '{"connector":"mysql","file":"b1_\\u006%d.1","pos":5,"row":"1"}',
    '{"connector":"mysql","file":"binlog.%d","pos":5}',
    '{"connector":"mysql","file":5,"pos":%d,"row":1}',
    '{"connector":"db%d","lsn":12}',
    '{"connector":"mongodb","ts_ms":%d,"ord":0}',
]


@st.composite
def _any_event(draw: st.DrawFn) -> bytes | None:
    number = draw(st.integers(0, 99))
    row = draw(st.none() | st.sampled_from(_HOSTILE))
    before = draw(st.just("null") | st.sampled_from(_HOSTILE))
    source = draw(st.just("") | st.sampled_from(_SOURCES).map(lambda text: text % (number % 10 + 1)))
    text = _event(number, row, before=before, op=draw(st.sampled_from("ccuurd")), source=source)
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        at, added = draw(st.integers(0, len(text))), draw(st.sampled_from([b"", *(bytes([one]) for one in b'07 "\\{},\xff\n')]))
        text = text[:at] + added + text[at + draw(st.integers(0, 1)) :]
    text = b'{"schema":%s,"payload":%s}' % (_SCHEMA, text) if draw(st.integers(0, 3)) == 0 else text
    return draw(st.sampled_from([text, text, text, text, text, None, b"null", text[: len(text) // 2]]))


_KEYS = st.sampled_from(
    [
        None,
        b'{"id":5}',
        b'{"id":05}',
        b'{"id":"x"}',
        b'{"id":"\xc3\xa9"}',
        b'{"id":"\xff"}',
        b'{"id":5}\n',
        b"null",
        b"\xff",
        b"5",
        b'{"b":1,"a":2.0}',
    ]
)


@given(
    st.lists(st.tuples(_any_event(), st.sampled_from([1, 9]), _KEYS), min_size=1, max_size=40),
    st.integers(1, 12),
    st.sampled_from(["null", "{}"]),
    st.sampled_from([Envelope(), Envelope(), Envelope(schema="id int, a string"), Envelope(schema="a int", misfit="null")]),
)
@settings(deadline=None, max_examples=examples(60))
def test_events_of_any_kind_are_what_they_are_by_themselves(
    events: list[tuple[bytes | None, int, bytes | None]], between: int, before: str, envelope: Envelope
) -> None:
    """Between events that are alike, and as a form of their own."""
    values, keys = list[bytes | None](), list[bytes | None]()
    for at, (value, times, key) in enumerate(events):
        values += [value] * times + [_event(at + one, before=before) for one in range(between)]
        keys += [key] * (times + between)
    batch = _batch(values, keys)
    found, alone = event_rows(batch, envelope).to_pylist(), _by_itself(batch, envelope)
    assert found == alone


@pytest.mark.parametrize(
    "rows",
    [
        ['{"a":1}{"b":', "2}"],
        ['{"a":1', '2}{"b":3}'],
        ['{"a":1', '{"b":2}}{"c":3}'],
        ['{"a":[{}', "{}]}"],
        ["[]", "{}"],
        ["[" * 5000, "{}"],
    ],
)
def test_rows_that_are_none_by_themselves(rows: list[str]) -> None:
    """Though all of them, one behind the other, would be."""
    others = [_event(number) for number in range(20)]
    batch = _batch([*others, *(_event(0, row) for row in rows), *others])
    assert set(range(42)) - set(_taken(batch)) >= {row for row in (20, 21) if rows[row - 20] != "{}"}


def test_keys_that_cannot_be_read_are_refused_and_others_are_made_canonical() -> None:
    """Among events that are alike."""
    keys = [b'{"id":"a"}', b"\xff", None, b"null", b'{"b":1,"a":2.0}'] * 5
    assert _taken(_batch([_event(number) for number in range(25)], keys)) == [row for row in range(25) if row % 5 != 1]


def test_a_deletion_whose_key_was_changed_is_read_by_itself() -> None:
    """Its headers say so."""
    batch = _batch([_event(number, "null", before="{}", op="d") for number in range(20)])
    header = [{"key": "__debezium.newkey", "value": b'{"id":77}'}]
    batch = batch.append_column("headers", pa.array([header if row == 4 else None for row in range(20)], HEADERS))
    assert event_rows(batch, Envelope()).to_pylist() == _by_itself(batch, Envelope())
    assert event_rows(batch, Envelope()).column("__unchanged").null_count == 19


def test_rows_that_are_no_utf8_are_read_by_themselves() -> None:
    """Whether they leave something out is told row by row."""
    events = [_event(number).replace(b"v", b"\xff") for number in range(20)]
    assert _taken(_batch(events)) == []
