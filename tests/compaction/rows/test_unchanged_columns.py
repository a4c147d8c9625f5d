"""Columns that events leave out, as pictures: `key body@position`, and what each event says beside its row."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from lastword.compaction.rows.envelopes import Envelope
from lastword.compaction.rows.input_columns import HEADERS, UNCHANGED
from lastword.compaction.rows.unchanged_columns import (
    MOVED,
    PENDING,
    LastRecord,
    Move,
    Moved,
    MovedRows,
    UnchangedColumns,
    headers_of,
    kept_key,
    moved_rows,
    settled_moves,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from lastword.compaction.rows.unchanged_columns import Resolved

_OUT = "__debezium_unavailable_value"


class _Log:
    """The last records of some keys."""

    def __init__(self, **records: LastRecord) -> None:
        self.records = {name.encode(): record for name, record in records.items()}

    def __call__(self, keys: Collection[bytes]) -> Mapping[bytes, LastRecord]:
        return {key: self.records[key] for key in keys if key in self.records}


def _row(body: str | None) -> bytes:
    return json.dumps({"body": body, "n": 1}, separators=(",", ":")).encode()


def _note(columns: Collection[str] = (), old_key: str | None = None, new_key: str | None = None, *, is_guessed: bool = False) -> str:
    return json.dumps({"columns": list(columns), "old_key": old_key, "new_key": new_key, "is_guessed": is_guessed})


def _batch(*events: tuple[str, str | None, str, str | None]) -> pa.RecordBatch:
    """Return events: key, body (None for a deletion), position, and what it says."""
    keys, bodies, positions, notes = zip(*events, strict=True)
    return pa.record_batch(
        {
            "key": pa.array([key.encode() for key in keys], pa.binary()),
            "value": pa.array([None if body is None else _row(body or None) for body in bodies], pa.binary()),
            "headers": pa.nulls(len(keys), HEADERS),
            "source_sequence": pa.array(positions, pa.string()),
            UNCHANGED: pa.array(notes, pa.string()),
        }
    )


def _columns(own: _Log, anywhere: _Log | None = None, moved: MovedRows | None = None, **settings: Any) -> UnchangedColumns:
    return UnchangedColumns(Envelope(**settings), own, anywhere or own, moved)


def _bodies(done: Resolved) -> list[str | None]:
    return [None if value is None else json.loads(value)["body"] for value in done.rows.column("value").to_pylist()]


def _headers(done: Resolved) -> list[list[str]]:
    return [[header["key"] for header in headers or []] for headers in done.rows.column("headers").to_pylist()]


def test_a_column_comes_from_the_last_record_of_its_key() -> None:
    """In the log, in this batch, or in an earlier one of the append."""
    columns = _columns(_Log(k=LastRecord(_row("in the log"), "1")))
    done = columns.resolve(
        _batch(("k", _OUT, "2", _note(["body"])), ("k", "new", "3", None), ("j", "j", "3", None), ("k", _OUT, "4", _note(["body"])))
    )
    assert (_bodies(done), done.refused) == (["in the log", "new", "j", "new"], {})
    assert _bodies(columns.resolve(_batch(("j", "j2", "5", None)))) == ["j2"]
    assert _bodies(columns.resolve(_batch(("j", _OUT, "6", _note(["body"])), ("k", _OUT, "6", _note(["body"]))))) == ["j2", "new"]


def test_a_column_that_no_record_has_is_refused_or_null() -> None:
    """A deleted row has none; what is refused vouches for nothing."""
    batch = _batch(("k", _OUT, "1", _note(["body"])), ("j", "j", "1", None), ("k", _OUT, "2", _note(["body"])))
    gone = _Log(k=LastRecord(None, "0"))
    done = _columns(gone).resolve(batch)
    assert done.refused == {0: ("body",), 2: ("body",)}
    columns = _columns(gone, unresolved="null")
    assert _bodies(columns.resolve(batch)) == [None, "j", None]
    alone = _columns(gone).resolve(_batch(("k", _OUT, "1", _note(["body"]))))
    assert alone.refused == {0: ("body",)}


def test_a_changed_key_takes_the_row_from_the_tombstone_of_the_old_one() -> None:
    """At the same position; that of another change is another row."""
    left = _Log(old=LastRecord(None, "5", {}, Moved(_row("long").decode(), "new")))
    done = _columns(_Log(), left).resolve(_batch(("new", _OUT, "5", _note(["body"], old_key="old"))))
    assert (_bodies(done), done.needed, _headers(done)) == (["long"], set(), [[]])
    other = _columns(_Log(), left).resolve(_batch(("new", _OUT, "6", _note(["body"], old_key="old"))))
    assert (_bodies(other), other.needed, _headers(other)) == ([None], {b"old"}, [[PENDING]])
    guessed = _Log(old=LastRecord(None, "5", {}, Moved(_row("long").decode(), "new", is_guessed=True)))
    flat = _columns(_Log(), guessed).resolve(_batch(("new", _OUT, "6", _note(["body"], old_key="old"))))
    assert (_bodies(flat), _headers(flat)) == (["long"], [[]])


def test_the_row_is_kept_under_a_key_of_its_own_when_the_old_key_went_on() -> None:
    """Which names both keys."""
    kept = kept_key(b'"old"', b'"new"')
    assert kept == b'{"source.moved":{"from":"old","to":"new"}}'
    log = _Log()
    log.records = {kept: LastRecord(None, "5", {}, Moved(_row("long").decode(), '"new"')), b'"old"': LastRecord(_row("another"), "7")}
    done = _columns(_Log(), log).resolve(_batch(('"new"', _OUT, "5", _note(["body"], old_key='"old"'))))
    assert (_bodies(done), _headers(done)) == (["long"], [[]])


def test_a_row_whose_old_key_is_not_there_yet_waits_for_it() -> None:
    """With what is known so far; later events hand the wait on, until one has the column."""
    columns = _columns(_Log(), _Log(old=LastRecord(_row("so far"), "3")))
    first = columns.resolve(_batch(("new", _OUT, "5", _note(["body"], old_key="old"))))
    assert (_bodies(first), _headers(first), first.needed) == (["so far"], [[PENDING]], {b"old"})
    (headers,) = first.rows.column("headers").to_pylist()
    assert json.loads(headers[0]["value"]) == {"body": ["old", "5"]}
    second = columns.resolve(_batch(("new", _OUT, "6", _note(["body"])), ("new", "own", "7", _note())))
    assert (_bodies(second), _headers(second)) == (["so far", "own"], [[PENDING], []])
    nothing = _columns(_Log(), _Log(old=LastRecord(_row("later"), "9")), MovedRows()).resolve(
        _batch(("new", _OUT, "5", _note(["body"], old_key="old")))
    )
    assert (_bodies(nothing), _headers(nothing), nothing.needed) == ([None], [[PENDING]], set())


def test_the_append_brings_the_old_row_itself() -> None:
    """Of another partition; a column that this row lacks is null."""
    moved = MovedRows({(b"old", "5"): Moved(_row("long").decode(), "new"), (b"odd", "6"): Moved('{"n":1}', "new")})
    columns = _columns(_Log(), _Log(), moved)
    done = columns.resolve(_batch(("new", _OUT, "5", _note(["body"], old_key="old")), ("new", _OUT, "6", _note(["body"], old_key="odd"))))
    assert (_bodies(done), _headers(done)) == (["long", None], [[], []])


def test_an_event_that_comes_again_keeps_its_columns() -> None:
    """Although the row of the old key is gone."""
    done = _columns(_Log(new=LastRecord(_row("long"), "5")), _Log()).resolve(_batch(("new", _OUT, "5", _note(["body"], old_key="old"))))
    assert (_bodies(done), done.needed) == (["long"], set())


def test_a_deletion_that_moves_its_row_leaves_it_in_a_header() -> None:
    """And says so; one of a row that nobody knows does not."""
    done = _columns(_Log(old=LastRecord(_row("long"), "1", {"body": ("older", "0")}))).resolve(
        _batch(("old", None, "5", _note(new_key="new")), ("x", None, "5", _note(new_key="y")), ("old", None, "6", None))
    )
    assert done.moves == [Move(b"old", "5", Moved(_row("long").decode(), "new", {"body": ("older", "0")}))]
    assert _headers(done) == [[MOVED], [], []]
    record = LastRecord.of(None, "5", done.rows.column("headers").to_pylist()[0])
    assert record.moved == done.moves[0].moved
    assert LastRecord.of(_row("x"), None, [{"key": PENDING, "value": b'{"body":["older","0"]}'}]).pending == {"body": ("older", "0")}
    assert headers_of(LastRecord(None)) == []


def test_rows_of_old_keys_in_an_append() -> None:
    """By position, whatever the order; the newest of the log and of the append counts, and what the log has later does not."""
    events: list[tuple[bytes, bytes | None, str, str | None]] = [
        (b"a", None, "5", _note(new_key="b")),
        (b"a", _row(_OUT), "4", _note(["body"])),
        (b"a", _row("old"), "2", None),
        (b"b", _row(_OUT), "5", _note(["body"], old_key="a")),
        (b"b", None, "6", _note(new_key="c")),
        (b"d", _row(_OUT), "7", _note(["body"], old_key="nobody")),
        (b"d", None, "8", _note(new_key="e")),
        (b"f", None, "8", _note(new_key="g")),
    ]
    in_log = {b"a": LastRecord(_row("newer"), "3"), b"b": LastRecord(_row("from after"), "9"), b"z": LastRecord(_row("z"), "1")}
    found = moved_rows(events, in_log, Envelope())
    rows = {(key.decode(), at): json.loads(moved.row)["body"] for (key, at), moved in found.exact.items()}
    assert rows == {("a", "5"): "newer", ("b", "6"): "newer", ("d", "8"): _OUT}
    assert found.exact[b"d", "8"].pending == {"body": ("nobody", "7")}
    assert (found.last[b"b"].sequence, found.last[b"z"].sequence, found.last[b"a"].value) == ("9", "1", None)


def test_a_flat_deletion_stands_where_the_event_before_it_does() -> None:
    """So the row under the new key takes the last one before it, or else the first behind it; and it may be there already."""
    rows = {
        (b"old", at): Moved(_row(f"at {at}").decode(), to, is_guessed=True)
        for at, to in (("3", "new"), ("5", "new"), ("6", "other"), ("9", "new"))
    }
    moved = MovedRows(rows)
    found = [moved.row_of(b"old", "new", at) for at in ("2", "4", "5", "8")]
    assert [None if one is None else json.loads(one.row)["body"] for one in found] == ["at 3", "at 3", "at 5", "at 5"]
    assert MovedRows({(b"old", "3"): Moved("{}", "new")}).row_of(b"old", "new", "4") is None
    assert moved.row_of(b"gone", "new", "4") is None
    events: list[tuple[bytes, bytes | None, str, str | None]] = [
        (b"a", _row("last"), "5", None),
        (b"a", None, "5", _note(new_key="b", is_guessed=True)),
        (b"b", _row(_OUT), "7", _note(["body"], old_key="a")),
        (b"b", None, "8", _note(new_key="c")),
    ]
    flat = moved_rows(events, {}, Envelope())
    assert [json.loads(one.row)["body"] for one in flat.exact.values()] == ["last", "last"]
    waits = {b"new": LastRecord(_row("so far"), "4", {"body": ("old", "4")})}
    log = _Log()
    log.records = waits
    move = Move(b"old", "5", Moved(_row("long").decode(), "new", is_guessed=True))
    settled = settled_moves([move], log, lambda _: waits, [], Envelope())
    assert {key: json.loads(record.value or b"")["body"] for key, record in settled.items()} == {b"new": "long"}


def test_a_batch_of_which_every_event_is_refused_takes_nothing() -> None:
    """And the next one goes on."""
    columns = _columns(_Log())
    assert columns.resolve(_batch(("k", _OUT, "1", _note(["body"])))).refused == {0: ("body",)}
    assert _bodies(columns.resolve(_batch(("k", "new", "2", None), ("k", _OUT, "3", _note(["body"]))))) == ["new", "new"]


def test_a_changed_key_is_settled_before_its_deletion_is_appended() -> None:
    """The row is kept for an event that has not come; one that came is given its columns; one that comes in the append needs neither."""
    move = Move(b'"old"', "5", Moved(_row("long").decode(), '"new"'))
    kept = kept_key(b'"old"', b'"new"')

    def settled(
        records: dict[bytes, LastRecord], in_append: Collection[tuple[bytes, str]] = (), **settings: Any
    ) -> dict[bytes, LastRecord]:
        log = _Log()
        log.records = records
        waiting = {key: record for key, record in records.items() if record.pending}
        return settled_moves([move], log, lambda _: waiting, in_append, Envelope(**settings))

    assert settled({}) == {kept: LastRecord(None, "5", {}, move.moved)}
    assert settled({}, [(b'"new"', "5")]) == {}
    assert settled({kept: LastRecord(None, "5", {}, move.moved)}) == {}
    assert settled({b'"new"': LastRecord(_row("own"), "6")}) == {}
    waits = LastRecord(_row("so far"), "6", {"body": ('"old"', "5"), "n": ("other", "1")})
    found = settled({b'"new"': waits})
    assert found == {b'"new"': LastRecord(_row("long"), "6", {"n": ("other", "1")})}
    assert settled({b'"new"': LastRecord(_row("so far"), "6", {"body": ('"old"', "9")})}) == {}
    gone = LastRecord(_row("so far"), "6", {"extra": ('"old"', "5")})
    assert json.loads(settled({b'"new"': gone})[b'"new"'].value or b"")["extra"] is None
    deleted = LastRecord(None, "6", {"body": ('"old"', "5")})
    assert settled({b'"new"': LastRecord(_row("own"), "7"), b'"x"': deleted}) == {}
    assert msgspec.json.decode(headers_of(LastRecord(None, "5", {}, move.moved))[0]["value"])["to"] == '"new"'


def test_several_changed_keys_are_looked_up_at_once() -> None:
    """The records under their new keys, and those that wait for their old ones; each gets its own row."""
    moves = [Move(name.encode(), "5", Moved(_row(name).decode(), f"new {name}")) for name in ("a", "b")]
    waits = {f"new {name}".encode(): LastRecord(_row("so far"), "6", {"body": (name, "5")}) for name in ("a", "b")}
    asked: list[list[bytes]] = []

    def look_up(keys: Collection[bytes]) -> Mapping[bytes, LastRecord]:
        asked.append(sorted(keys))
        return waits

    found = settled_moves(moves, look_up, look_up, [], Envelope())
    assert {key: record.value for key, record in found.items()} == {b"new a": _row("a"), b"new b": _row("b")}
    assert asked[1:] == [[b"a", b"b"]]
