"""What connectors send that a log must not take at its word: each kind of event, and what becomes of the table.

```
 deletions in disguise      null · __deleted · a d without a tombstone    no row
 columns left out           "__debezium_unavailable_value"                the value of the row before
 TRUNCATE                   a t, of which only one partition knows        no row, in any partition
 one row under many keys    {"id":1} · {"id": 1.0} · with a schema        one row
 an old event again         after a restart of the connector              late
```

Types of values: `tests/test_change_event_values.py`.
"""

from __future__ import annotations

import base64
import json
import random
from typing import TYPE_CHECKING, Any, Final

import pytest

from lastword import Envelope, InvalidRecords
from tests.change_events import FLAT, append, append_lines, change, key_of, rows_of, topic_in
from tests.clocks import at
from tests.pictures import HOUR_MS, T0

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_LEFT_OUT: Final = "__debezium_unavailable_value"
_LEFT_OUT_BYTES: Final = base64.b64encode(_LEFT_OUT.encode()).decode()


# Deletions of flattened rows


@pytest.mark.parametrize(
    "deletion",
    [
        pytest.param(None, id="a tombstone"),
        pytest.param("null", id="the text null"),
        pytest.param("  null\n", id="the text null among spaces"),
        pytest.param('{"schema":null,"payload":null}', id="null with the schema null"),
        pytest.param(' {"payload" : null, "schema": {"type":"struct","fields":[]}} ', id="null with a schema behind it"),
        pytest.param('{"id":1,"v":"a","__deleted":"true"}', id="a row that says deleted as text"),
        pytest.param('{"id":1,"v":"a","__deleted":true}', id="a row that says deleted as a truth value"),
        pytest.param('{"id":1,"v":"a","__deleted":"True"}', id="a row that says deleted with a capital"),
        pytest.param('{"id":1,"v":null,"__op":"d"}', id="a row whose operation is d"),
        pytest.param(
            '{"schema":{"type":"struct","fields":[]},"payload":{"id":1,"__deleted":"true"}}', id="a row that says deleted, with a schema"
        ),
    ],
)
@pytest.mark.parametrize("has_tombstone", [False, True])
def test_a_flat_deletion_deletes(tmp_path: Path, deletion: str | None, *, has_tombstone: bool) -> None:
    """However it is said, and with a tombstone behind it or without; the row beside it stays."""
    topic = topic_in(tmp_path)
    append(topic, (key_of(1), '{"id":1,"v":"a"}'), (key_of(2), '{"id":2,"v":"b"}'), envelope=FLAT)
    append(topic, (key_of(1), deletion), *([(key_of(1), None)] if has_tombstone else []), envelope=FLAT)
    assert rows_of(topic) == {'{"id":2}': {"id": 2, "v": "b"}}


@pytest.mark.parametrize(
    "value",
    [
        pytest.param('{"id":1,"__deleted":"false"}', id="a row that says not deleted as text"),
        pytest.param('{"id":1,"__deleted":false}', id="a row that says not deleted as a truth value"),
        pytest.param('{"id":1,"deleted":"true"}', id="a column that is called deleted"),
        pytest.param('{"id":1,"v":"null"}', id="a column whose text is null"),
        pytest.param('{"id":1,"op":"d"}', id="a column that is called op"),
        pytest.param('{"id":null}', id="a row of nulls"),
    ],
)
def test_what_only_looks_like_a_flat_deletion_is_a_row(tmp_path: Path, value: str) -> None:
    """Its metadata is left out, its columns are not."""
    topic = topic_in(tmp_path)
    append(topic, (key_of(1), value), envelope=FLAT)
    expected = {name: one for name, one in json.loads(value).items() if not name.startswith("__")}
    assert rows_of(topic) == {'{"id":1}': expected}


@pytest.mark.parametrize(
    ("prefix", "field"), [pytest.param("meta.", "meta.deleted", id="a word"), pytest.param("_", "_deleted", id="one underscore")]
)
def test_a_deletion_under_a_prefix_of_ones_own(tmp_path: Path, prefix: str, field: str) -> None:
    """`add.fields.prefix` of the connector; what has another prefix is a column."""
    topic, envelope = topic_in(tmp_path), Envelope(kind="debezium-flat", prefix=prefix)
    append(topic, *((key_of(one), json.dumps({"id": one})) for one in (1, 2)), envelope=envelope)
    append(topic, (key_of(1), json.dumps({"id": 1, field: "true"})), (key_of(2), '{"id":2,"x.deleted":"true"}'), envelope=envelope)
    assert rows_of(topic) == {'{"id":2}': {"id": 2, "x.deleted": "true"}}


@pytest.mark.parametrize(
    "line",
    [
        pytest.param('{"key":{"id":1},"value":null}', id="null"),
        pytest.param('{"key":"{\\"id\\":1}","value":"null"}', id="the text null in quotes"),
        pytest.param('{"key":{"id":1},"value":{"id":1,"__deleted":"true"}}', id="a row that says deleted"),
        pytest.param(
            '{"key":{"id":1}, "headers":[["h","x"]], "value":"{\\"id\\":1,\\"__op\\":\\"d\\"}"}', id="a text of a row that says d"
        ),
    ],
)
def test_a_flat_deletion_in_a_line_of_a_file(tmp_path: Path, line: str) -> None:
    """A line is a record, with its key and its value as text or as JSON."""
    topic = topic_in(tmp_path)
    append_lines(topic, '{"key":{"id":1},"value":{"id":1,"v":"a"}}', envelope=FLAT)
    append_lines(topic, line, envelope=FLAT)
    assert rows_of(topic) == {}


# Deletions of envelopes


@pytest.mark.parametrize("before", [None, {"id": 1}, {"id": 1, "v": "a"}], ids=["no row before", "the key before", "the row before"])
@pytest.mark.parametrize("tombstone", ["none", "behind it", "much later"])
def test_a_deletion_needs_no_tombstone_and_a_tombstone_deletes_nothing(tmp_path: Path, before: Any, tombstone: str) -> None:
    """One that comes when there is a row of this key again leaves that alone: it is counted.

    ```
     c 1 │ d 2        ∅ │ c 3 │ ∅         ─►   the row of c 3
    ```
    """
    topic = topic_in(tmp_path)
    behind = [(key_of(1), None)] if tombstone == "behind it" else []
    done = append(topic, change("c", 1, 1, {"id": 1, "v": "a"}), change("d", 1, 2, before=before), *behind)
    assert (rows_of(topic), dict(done.skipped)) == ({}, {"tombstone": 1} if behind else {})
    append(topic, change("c", 1, 3, {"id": 1, "v": "b"}))
    if tombstone == "much later":
        assert append(topic, (key_of(1), None)).skipped == {"tombstone": 1}
    assert rows_of(topic) == {'{"id":1}': {"id": 1, "v": "b"}}


@pytest.mark.parametrize(
    ("events", "envelope"),
    [
        pytest.param([change("d", 9, 2, before={"id": 9})], Envelope(), id="of a row that was never there"),
        pytest.param([change("d", 1, 2), change("d", 1, 2)], Envelope(), id="twice"),
        pytest.param([change("d", 1, 2), change("u", 1, 1, {"id": 1})], Envelope(), id="before an older change"),
        pytest.param([change("d", None, 2, before={"id": 1, "v": "a"})], Envelope(key=("id",)), id="with the key in its row alone"),
        pytest.param([change("d", 1, 2, schema={"type": "struct", "fields": []})], Envelope(), id="with a schema"),
    ],
)
def test_deletions_that_come_in_other_ways(tmp_path: Path, events: list[Any], envelope: Envelope) -> None:
    """Each way in which a connector can send a deletion leaves no row of the key."""
    topic = topic_in(tmp_path)
    append(topic, change("c", 2, 1, {"id": 2}), envelope=envelope)
    for event in events:
        append(topic, event, envelope=envelope)
    assert rows_of(topic) == {'{"id":2}': {"id": 2}}


# Columns that are left out


@pytest.mark.parametrize(
    ("left_out", "value", "envelope"),
    [
        pytest.param(_LEFT_OUT, "a long text", Envelope(), id="text"),
        pytest.param([_LEFT_OUT], ["a", None, "b"], Envelope(), id="an array of texts"),
        pytest.param(_LEFT_OUT_BYTES, "AP8=", Envelope(), id="bytes as base64"),
        pytest.param(_LEFT_OUT.encode().hex(), "00ff", Envelope(), id="bytes as hexadecimal digits"),
        pytest.param(_LEFT_OUT, None, Envelope(), id="a value that is null"),
        pytest.param("(unchanged)", "a long text", Envelope(placeholder="(unchanged)"), id="a placeholder of one's own"),
        pytest.param(_LEFT_OUT, {"a": [1]}, Envelope(schema="id int, body json, other string, n int"), id="a JSON column"),
        pytest.param([_LEFT_OUT], ["x"], Envelope(schema="id int, body array<string>, other string, n int"), id="a typed array"),
    ],
)
def test_a_column_that_is_left_out_is_filled_in(tmp_path: Path, left_out: Any, value: Any, envelope: Envelope) -> None:
    """In the same call or in another one; through a cleaning, and twice in a row."""
    topic = at(T0, topic_in(tmp_path))
    sent = json.dumps(value) if "json" in envelope.schema else value
    row = {"id": 1, "body": sent, "other": envelope.placeholder[:-1], "n": 1}
    append(topic, change("c", 1, 1, row), change("u", 1, 2, {**row, "body": left_out, "n": 2}), envelope=envelope)
    assert rows_of(topic) == {'{"id":1}': {**row, "body": value, "n": 2}}
    topic.roll()
    at(T0 + HOUR_MS, topic).clean()
    append(topic, change("u", 1, 3, {**row, "body": left_out, "n": 3}), envelope=envelope)
    assert rows_of(topic) == {'{"id":1}': {**row, "body": value, "n": 3}}


def test_several_columns_of_one_row_are_filled_in_each_by_itself(tmp_path: Path) -> None:
    """Each has the value that it had last.

    ```
     a b c     x y z │ · · 1 │ · 2 · │ 3 · ·     ─►   3 2 1
    ```
    """
    topic = topic_in(tmp_path)
    sent = [("x", "y", "z"), (_LEFT_OUT, _LEFT_OUT, "1"), (_LEFT_OUT, "2", _LEFT_OUT), ("3", _LEFT_OUT, _LEFT_OUT)]
    for number, (a, b, c) in enumerate(sent):
        append(topic, change("u", 1, number + 1, {"id": 1, "a": a, "b": b, "c": c}))
    assert rows_of(topic) == {'{"id":1}': {"id": 1, "a": "3", "b": "2", "c": "1"}}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"about {_LEFT_OUT}", id="within a text"),
        pytest.param(json.dumps({"note": _LEFT_OUT}), id="within a JSON text"),
        pytest.param([_LEFT_OUT, "x"], id="beside another element"),
        pytest.param({"note": {"deep": _LEFT_OUT}}, id="within an object"),
        pytest.param(_LEFT_OUT + " ", id="with a space behind it"),
    ],
)
def test_a_value_that_contains_the_placeholder_is_a_value(tmp_path: Path, text: Any) -> None:
    """It puts the older one away."""
    topic = topic_in(tmp_path)
    append(topic, change("c", 1, 1, {"id": 1, "body": "old"}), change("u", 1, 2, {"id": 1, "body": text}))
    assert rows_of(topic) == {'{"id":1}': {"id": 1, "body": text}}


@pytest.mark.parametrize(
    "before",
    [
        pytest.param([], id="the first event of its key"),
        pytest.param([change("c", 1, 1, {"id": 1, "body": "a"}), change("d", 1, 2)], id="after a deletion"),
        pytest.param([change("c", 2, 1, {"id": 2, "body": "a"})], id="after a row of another key"),
        pytest.param([change("c", 1, 1, {"id": 1})], id="after a row that had no such column"),
    ],
)
def test_a_column_that_no_row_has_is_an_error_or_null(tmp_path: Path, before: list[Any]) -> None:
    """The message names it; what the key had before a deletion does not count."""
    topic = topic_in(tmp_path)
    if before:
        append(topic, *before)
    rows, event = rows_of(topic), change("u", 1, 3, {"id": 1, "body": _LEFT_OUT, "n": 1})
    with pytest.raises(InvalidRecords, match="body"):
        append(topic, event)
    assert rows_of(topic) == rows
    append(topic, event, envelope=Envelope(unresolved="null"))
    assert rows_of(topic)['{"id":1}'] == {"id": 1, "body": None, "n": 1}


def test_a_late_event_fills_in_nothing(tmp_path: Path) -> None:
    """The column of the newest row is not that of an older one that comes after it."""
    topic = topic_in(tmp_path)
    append(topic, change("c", 1, 5, {"id": 1, "body": "new"}))
    assert append(topic, change("u", 1, 3, {"id": 1, "body": "old"})).late == 1
    append(topic, change("u", 1, 7, {"id": 1, "body": _LEFT_OUT}))
    assert rows_of(topic) == {'{"id":1}': {"id": 1, "body": "new"}}


# TRUNCATE


def _table(first: int, last: int, lsn: int) -> list[Any]:
    return [change("c", one, lsn, {"id": one, "lsn": lsn}) for one in range(first, last)]


@pytest.mark.parametrize(
    "truncate",
    [
        pytest.param([change("t", None, 50)], id="without a key"),
        pytest.param([change("t", 3, 50)], id="with a key"),
        pytest.param([change("t", None, 50), change("t", None, 50)], id="twice"),
        pytest.param([change("t", None, 40), change("t", None, 50)], id="two of them"),
        pytest.param([change("t", None, 50), change("t", None, 40)], id="an older one behind it"),
        pytest.param([change("t", None, 50, schema={"type": "struct", "fields": []})], id="with a schema"),
    ],
)
@pytest.mark.parametrize("order", ["rows first", "truncate first", "in between"])
def test_a_truncate_deletes_every_row_before_it_in_each_partition(tmp_path: Path, truncate: list[Any], order: str) -> None:
    """Whether the rows are there already or come after it; those that were made after it stay.

    ```
     partition 0    c 10 … │ t 50        partition 1    c 10 … │ c 60 …    ─►   c 60 …
    ```
    """
    topic = topic_in(tmp_path, partitions=3)
    old, new = _table(0, 12, 10), _table(8, 20, 60)
    arrivals = {
        "rows first": [old, new, truncate],
        "truncate first": [truncate, new, old],
        "in between": [old[:6], truncate, old[6:], new],
    }
    for events in arrivals[order]:
        append(topic, *events)
    assert sorted(row["id"] for row in rows_of(topic).values()) == [*range(8, 20)]
    assert {row["lsn"] for row in rows_of(topic).values()} == {60}


@pytest.mark.parametrize("form", ["raw", "flat"])
@pytest.mark.parametrize("policy", ["delete-all", "alert", "ignore"])
def test_what_a_truncate_does_by_each_policy(tmp_path: Path, policy: Any, form: str) -> None:
    """It deletes, is refused with its name, or is counted."""
    topic = topic_in(tmp_path, partitions=2)
    kind: Any = "debezium" if form == "raw" else "debezium-flat"
    envelope = Envelope(kind=kind, truncate=policy)
    rows: list[tuple[str | None, str | None]] = [
        change("c", one, 1, {"id": one}) if form == "raw" else (key_of(one), f'{{"id":{one},"__source_lsn":1}}') for one in range(9)
    ]
    truncate: tuple[str | None, str | None] = change("t", None, 5) if form == "raw" else (None, '{"__op":"t","__source_lsn":5}')
    append(topic, *rows, envelope=envelope)
    if policy == "alert":
        with pytest.raises(InvalidRecords, match="TRUNCATE of the source's table at"):
            append(topic, truncate, envelope=envelope)
    else:
        done = append(topic, truncate, envelope=envelope)
        assert done.skipped == {"truncate" if policy == "delete-all" else "truncate ignored": 1}
    assert len(rows_of(topic)) == (0 if policy == "delete-all" else 9)


def test_a_truncate_holds_after_a_cleaning(tmp_path: Path) -> None:
    """What it deleted stays away, whatever comes again."""
    topic = at(T0, topic_in(tmp_path, delete_retention_ms="0"))
    append(topic, *_table(0, 5, 10))
    append(topic, change("t", None, 50))
    for hour in (1, 2):
        topic.roll()
        at(T0 + hour * HOUR_MS, topic).clean()
    assert append(topic, *_table(0, 5, 10)).late == 5
    append(topic, *_table(3, 4, 60))
    assert [row["lsn"] for row in rows_of(topic).values()] == [60]


# Keys


@pytest.mark.parametrize(
    ("key", "other"),
    [
        pytest.param('{"id":1}', '{"id": 1}', id="spaces"),
        pytest.param('{"id":1}', '{"id":1.0}', id="a whole number with a point"),
        pytest.param('{"id":100}', '{"id":1e2}', id="a whole number with an exponent"),
        pytest.param('{"id":0}', '{"id":-0.0}', id="nothing below zero"),
        pytest.param(
            '{"schema":{"type":"struct","fields":[{"type":"int32","field":"id"}]},"payload":{"id":1}}',
            '{"payload":{"id":1},"schema":{"type":"struct","fields":[{"type":"int64","field":"id"}]}}',
            id="a schema with int32, then with int64",
        ),
        pytest.param('{"schema":null,"payload":{"id":1}}', '{"id":1}', id="with a schema that is null, and without"),
        pytest.param('{"a":1,"b":"x"}', '{"b":"x","a":1}', id="another order of fields"),
        pytest.param('{"k":{"b":1,"a":[2.0,{"y":1,"x":2}]}}', '{"k":{"a":[2,{"x":2,"y":1}],"b":1.0}}', id="nested objects and lists"),
        pytest.param('{"name":"caf\\u00e9"}', '{"name":"café"}', id="a letter that is escaped"),
        pytest.param('{"name":"\\ud83c\\udf4f"}', '{"name":"🍏"}', id="a sign of two escapes"),
        pytest.param('{"path":"a\\/b"}', '{"path":"a/b"}', id="a stroke that is escaped"),
        pytest.param('{"n\\u00e4me":1}', '{"näme":1}', id="a name that is escaped"),
        pytest.param("plain text", '"plain text"', id="a text with quotes and without"),
        pytest.param('{"schema":{"type":"int32","optional":false},"payload":7}', "7", id="a number alone"),
    ],
)
def test_one_row_has_one_key(tmp_path: Path, key: str, other: str) -> None:
    """Its newest change counts, whoever wrote the key; and a deletion by the one deletes what came by the other."""
    topic = topic_in(tmp_path, partitions=4)
    append(topic, change("c", key, 1, {"v": 1}), change("u", other, 2, {"v": 2}))
    assert [*rows_of(topic).values()] == [{"v": 2}]
    append(topic, change("u", key, 3, {"v": 3}))
    assert [*rows_of(topic).values()] == [{"v": 3}]
    append(topic, change("d", other, 4))
    assert rows_of(topic) == {}


def test_keys_of_different_rows_stay_apart(tmp_path: Path) -> None:
    """Null, the empty text and a missing part; numbers and texts of them; numbers that a float cannot hold."""
    keys = ['{"a":null}', '{"a":""}', '{"a":"null"}', "{}", '{"a":0}', '{"a":false}', '{"a":"0"}', '{"a":[]}', '{"a":{}}', '{"a":" "}']
    keys += ['{"a":9007199254740992}', '{"a":9007199254740993}', '{"a":18446744073709551616}', '{"a":18446744073709551617}']
    keys += [
        '{"a":"e\\u0301"}',
        '{"a":"é"}',
        '{"a":0.5}',
        '{"A":0.5}',
        '{"a":1,"b":2}',
        '{"a":2,"b":1}',
        '{"payload":1}',
        '"{}"',
        "5",
        '"5"',
    ]
    topic = topic_in(tmp_path, partitions=3)
    append(topic, *(change("c", key, 1, {"n": number}) for number, key in enumerate(keys)))
    assert sorted(row["n"] for row in rows_of(topic).values()) == [*range(len(keys))]


# Events that come again


_POSITIONS: Final[dict[str, Callable[[int], dict[str, Any]]]] = {
    # Written in another order than committed, and all before the first commit: a commit is behind what it commits.
    "postgresql": lambda number: {"sequence": json.dumps([str(1000 + number), str(999 - number)]), "lsn": 999 - number},
    "mysql": lambda number: {"file": f"binlog.{999_998 + number // 3:06}", "pos": 4 + number % 3 * 200, "row": 5 - number % 3},
    "mariadb": lambda number: {"file": f"mariadb-bin.{9 + number // 4:06}", "pos": 1_000 + number % 4, "row": 0},
    "sqlserver": lambda number: {"commit_lsn": f"0000002a:{number + 14:08X}:0009", "change_lsn": f"0000002a:{99 - number:08x}:0001"},
    "oracle": lambda number: {"scn": str(2_000 - number), "commit_scn": str(998 + number)},
    "mongodb": lambda number: {"ts_ms": 1_700_000_000_000 + number // 2 * 1_000, "ord": number % 2 + 1},
    "db2": lambda number: {"commit_lsn": f"0000:{number + 9:08x}", "change_lsn": f"0000:{99 - number:08x}"},
}
#: What happens: a row is made, changed, deleted, and made again.
_HISTORY: Final = (("r", 1), ("r", 2), ("u", 1), ("d", 2), ("c", 3), ("u", 1), ("u", 3), ("d", 3), ("c", 2), ("u", 2), ("d", 1), ("c", 1))
_AT_THE_END: Final = {'{"id":1}': {"id": 1, "n": 11}, '{"id":2}': {"id": 2, "n": 9}}


def _sent(connector: str, *, is_flat: bool, has_snapshot: bool = True) -> list[Any]:
    """Return the history as a connector sends it; flattened it has the positions alone, and deletions as rows."""
    found = list[tuple[str | None, str | None]]()
    for number, (sent, row_id) in enumerate(_HISTORY):
        op = sent if has_snapshot else sent.replace("r", "c")
        source, row = _POSITIONS[connector](number), {"id": row_id, "n": number}
        if is_flat:
            metadata = {f"__source_{name}": value for name, value in {"connector": connector, **source}.items()}
            metadata |= {"__op": op, "__deleted": str(op == "d").lower()}
            found.append((key_of(row_id), json.dumps({**row, **metadata})))
        else:
            after = json.dumps(row) if connector == "mongodb" else row
            found.append(change(op, row_id, {"connector": connector, **source}, None if op == "d" else after))
    return found


@pytest.mark.long
@pytest.mark.parametrize("is_flat", [False, True], ids=["raw", "flat"])
@pytest.mark.parametrize("connector", _POSITIONS)
def test_the_table_never_goes_back_when_a_connector_begins_again(tmp_path: Path, connector: str, *, is_flat: bool) -> None:
    """All that it sends again is late or says the same, deletions too, with cleanings in between.

    ```
     r1 r2 u1 d2 c3 … c1  ‖  u1 d2 c3 …  ‖  r1 …     ─►   always the table at the end of the first time
    ```
    """
    topic, events = at(T0, topic_in(tmp_path, partitions=2)), _sent(connector, is_flat=is_flat)
    envelope, chance, now_ms = FLAT if is_flat else Envelope(), random.Random(connector), T0
    append(topic, *events, envelope=envelope)
    assert rows_of(topic) == _AT_THE_END
    for begin in (7, 2):  # a snapshot that comes again at lower positions would be an epoch of its own
        rest = events[begin:]
        while rest:
            size = chance.randrange(1, 5)
            append(topic, *rest[:size], envelope=envelope)
            assert rows_of(topic) == _AT_THE_END
            rest, now_ms = rest[size:], now_ms + 60_000
            topic.roll()
            at(now_ms, topic).clean()
    assert rows_of(topic) == _AT_THE_END


@pytest.mark.long
@pytest.mark.parametrize("connector", _POSITIONS)
def test_events_that_come_in_any_order_are_the_same_table(tmp_path: Path, connector: str) -> None:
    """Each change of a key finds its place, in one call or over several."""
    for seed in range(4):
        chance, events = random.Random(seed), _sent(connector, is_flat=False, has_snapshot=False)
        chance.shuffle(events)
        topic = topic_in(tmp_path / str(seed), partitions=2)
        while events:
            size = chance.randrange(1, 7)
            append(topic, *events[:size])
            del events[:size]
        assert rows_of(topic) == _AT_THE_END, f"seed {seed}"


def test_an_event_from_before_a_forgotten_deletion_is_no_guess(tmp_path: Path) -> None:
    """When the deletion was cleaned away, an older event of its key is an error that says so."""
    topic = at(T0, topic_in(tmp_path, delete_retention_ms="0"))
    append(topic, change("c", 1, 1, {"id": 1}), change("d", 1, 5))
    for hour in (1, 2, 3):
        topic.roll()
        at(T0 + hour * HOUR_MS, topic).clean()
    assert len(topic.records()) == 0
    with pytest.raises(InvalidRecords, match="unknown_order"):
        append(topic, change("u", 1, 3, {"id": 1}))
    append(topic, change("c", 1, 7, {"id": 1, "n": 7}))
    assert rows_of(topic) == {'{"id":1}': {"id": 1, "n": 7}}


#: A commit that deletes a row and writes it again, and one that deletes another row, of connectors whose commits are all that orders them.
_COMMITS: Final[dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    "mysql": ({"file": "binlog.000007", "pos": 4}, {"file": "binlog.000007", "pos": 900}),
    "mariadb": ({"file": "binlog.000007", "pos": 4, "row": 1}, {"file": "binlog.000008", "pos": 4, "row": 0}),
    "sqlserver": ({"commit_lsn": "0000002a:0000000e:0009"}, {"commit_lsn": "0000002a:0000000f:0009"}),
    "oracle": ({"scn": "40", "commit_scn": "50"}, {"scn": "39", "commit_scn": "60"}),
    "db2": ({"commit_lsn": "0000:0000000e"}, {"commit_lsn": "0000:0000000f"}),
}


@pytest.mark.parametrize("is_flat", [False, True], ids=["raw", "flat"])
@pytest.mark.parametrize("connector", _COMMITS)
def test_a_row_that_its_commit_wrote_behind_its_deletion_is_not_lost(tmp_path: Path, connector: Any, *, is_flat: bool) -> None:
    """Also if the deletion comes again, and the row only after its tombstone could have been removed.

    ```
     commit 3   k=1 ∅   k=1 row   commit 4   k=2 ∅   ‖   k=1 ∅   ‖ three cleanings, an hour apart ‖   k=1 row   k=2 ∅   ─►   k=1 is there
    ```
    """
    topic = at(T0, topic_in(tmp_path, delete_retention_ms="0"))
    envelope = Envelope(kind="debezium-flat", connector=connector) if is_flat else Envelope()
    third, fourth = _COMMITS[connector]
    deletes, writes, ends = ("d", 1, third), ("c", 1, third), ("d", 2, fourth)

    def arrive(*events: tuple[str, int, dict[str, Any]]) -> None:
        rows = list[dict[str, Any]]()
        for op, row_id, source in events:
            row = {"id": row_id, "n": 7}
            event: Any = {"op": op, "after": None if op == "d" else row, "source": {"connector": connector, **source}}
            if is_flat:
                metadata = {f"__source_{name}": value for name, value in source.items()}
                event = {**row, "__op": op, "__deleted": str(op == "d").lower(), **metadata}
            rows.append({"key": key_of(row_id), "value": json.dumps(event), "partition": 0, "offset": len(rows)})
        topic.append(rows, envelope=envelope)

    def clean(*hours: int) -> None:
        for hour in hours:
            topic.roll()
            at(T0 + hour * HOUR_MS, topic).clean()

    arrive(deletes, writes, ends)
    arrive(deletes)
    assert rows_of(topic) == {}, "it has come again, so the table goes back inside its commit"
    clean(1, 2, 3)
    assert [bytes(row["key"]) for row in topic.records().to_pylist()] == [b'{"id":1}'], "the tombstone of k=1 stays, that of k=2 is gone"
    arrive(writes, ends)
    assert rows_of(topic) == {'{"id":1}': {"id": 1, "n": 7}}
    clean(4, 5, 6)
    assert rows_of(topic) == {'{"id":1}': {"id": 1, "n": 7}}
