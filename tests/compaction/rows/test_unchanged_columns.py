"""Columns that events leave out, as pictures: `key body@position`, and what each event says beside its row."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest

from lastword.compaction.rows.input_columns import HEADERS, UNCHANGED, EventPolicy
from lastword.compaction.rows.unchanged_columns import MOVED, UNCHANGED_SINCE, LastRecord, Moved, UnchangedColumns, columns_since

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from collections.abc import Set as AbstractSet

    from lastword.compaction.rows.unchanged_columns import Resolved

_OUT = "__debezium_unavailable_value"
_POLICY = EventPolicy(placeholders=frozenset({json.dumps(_OUT).encode()}))
_NULLS = EventPolicy(placeholders=_POLICY.placeholders, null_unresolved=True)


class _Log:
    """The last records of some keys."""

    def __init__(self, **records: LastRecord) -> None:
        self.records = {name.encode(): record for name, record in records.items()}

    def __call__(self, keys: Collection[bytes], *, moved: AbstractSet[bytes]) -> Mapping[bytes, LastRecord]:
        del moved  # a tombstone here has what the deletion before it carries
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


def _bodies(done: Resolved) -> list[str | None]:
    return [None if value is None else json.loads(value)["body"] for value in done.rows.column("value").to_pylist()]


def _headers(done: Resolved) -> list[list[str]]:
    return [[header["key"] for header in headers or []] for headers in done.rows.column("headers").to_pylist()]


def _moved(body: str = "long", to: str = "new", *, is_guessed: bool = False) -> Moved:
    return Moved(_row(body).decode(), to, is_guessed, "1", "5")


def test_a_column_comes_from_the_last_record_of_its_key() -> None:
    """In the log, in this batch, or in an earlier one of the append."""
    columns = UnchangedColumns(_POLICY, _Log(k=LastRecord(_row("in the log"), "1")))
    done = columns.resolve(
        _batch(("k", _OUT, "2", _note(["body"])), ("k", "new", "3", None), ("j", "j", "3", None), ("k", _OUT, "4", _note(["body"])))
    )
    assert (_bodies(done), done.refused) == (["in the log", "new", "j", "new"], {})
    assert _bodies(columns.resolve(_batch(("j", "j2", "5", None)))) == ["j2"]
    assert _bodies(columns.resolve(_batch(("j", _OUT, "6", _note(["body"])), ("k", _OUT, "6", _note(["body"]))))) == ["j2", "new"]


def test_a_column_that_no_record_has_is_refused_or_null() -> None:
    """A deleted row has none, nor has a row whose own column is a placeholder; what is refused vouches for nothing."""
    batch = _batch(("k", _OUT, "1", _note(["body"])), ("j", "j", "1", None), ("k", _OUT, "2", _note(["body"])))
    text = "the source left out body, which did not change (unchanged TOAST), and no record of the key has it"
    for gone in (_Log(k=LastRecord(None, "0")), _Log(k=LastRecord(_row(_OUT), "0")), _Log(k=LastRecord(b'{"n":1}', "0"))):
        assert UnchangedColumns(_POLICY, gone).resolve(batch).refused == {0: text, 2: text}
        assert _bodies(UnchangedColumns(_NULLS, gone).resolve(batch)) == [None, "j", None]


def test_a_deletion_leaves_the_row_of_a_changed_key_in_a_header() -> None:
    """One of a row that is not known does not; the tombstone behind the deletion has it, too."""
    events: list[tuple[str, str | None, str, str | None]] = [
        ("old", None, "5", _note(new_key="new")),
        ("x", None, "5", _note(new_key="y")),
        ("old", None, "6", None),
    ]
    done = UnchangedColumns(_POLICY, _Log(old=LastRecord(_row("long"), "1"))).resolve(_batch(*events))
    assert _headers(done) == [[MOVED], [], [MOVED]]
    (header,) = done.rows.column("headers").to_pylist()[0]
    assert LastRecord.of(None, "5", [{"key": "other", "value": b""}, header]) == LastRecord(None, "5", _moved())
    assert LastRecord.of(b"{}", None, None) == LastRecord(b"{}")


def test_a_changed_key_takes_the_row_from_the_tombstone_of_the_old_one() -> None:
    """Only a tombstone of the same change counts: with the same position (if it is known) and the same new key.

    ```
    old = ∅, moved to new, at 5     new at 5: long     new at 6, another change: refused     another at 5: refused
    ```
    """
    left = _Log(old=LastRecord(None, "5", _moved()))
    for event, body in ((("new", "5"), "long"), (("new", "6"), _OUT), (("another", "5"), _OUT)):
        key, position = event
        done = UnchangedColumns(_POLICY, left).resolve(_batch((key, _OUT, position, _note(["body"], old_key="old"))))
        assert (_bodies(done), len(done.refused)) == ([body], int(body == _OUT))
    guessed = _Log(old=LastRecord(None, "5", _moved(is_guessed=True)))
    flat = UnchangedColumns(_POLICY, guessed).resolve(_batch(("new", _OUT, "6", _note(["body"], old_key="old"))))
    assert (_bodies(flat), flat.refused) == (["long"], {})


def test_both_events_in_one_append_need_no_log() -> None:
    """In one batch or in two, also with the tombstone that Debezium sends behind a deletion; a row that came between is another one."""
    gone, tombstone = ("old", None, "5", _note(new_key="new")), ("old", None, "5", None)
    came = ("new", _OUT, "5", _note(["body"], old_key="old"))
    cuts: list[list[list[tuple[str, str | None, str, str | None]]]] = [[[gone, came]], [[gone], [came]], [[gone, tombstone, came]]]
    for batches in cuts:
        columns = UnchangedColumns(_POLICY, _Log(old=LastRecord(_row("long"), "1")))
        done = [columns.resolve(_batch(*batch)) for batch in batches]
        assert (_bodies(done[-1])[-1], done[-1].refused) == ("long", {})
    columns = UnchangedColumns(_POLICY, _Log(old=LastRecord(_row("long"), "1")))
    assert list(columns.resolve(_batch(gone, ("old", "again", "6", None), came)).refused) == [2]


def test_a_row_whose_old_key_is_in_another_partition_is_refused() -> None:
    """The text says what to do; the row that had the new key before is another one. Or the column is null."""
    batch = _batch(("new", _OUT, "5", _note(["body"], old_key="old")))
    (text,) = UnchangedColumns(_POLICY, _Log(new=LastRecord(_row("of another row"), "3"))).resolve(batch).refused.values()
    assert text == (
        "the source left out body, which did not change (unchanged TOAST), and the key was old before, whose row is not in this partition; "
        "with REPLICA IDENTITY FULL the event has all columns"
    )
    assert _bodies(UnchangedColumns(_NULLS, _Log()).resolve(batch)) == [None]


def test_an_event_that_comes_again_keeps_its_columns() -> None:
    """Although the row of the old key is gone; one that leaves out nothing stays as it is."""
    columns = UnchangedColumns(_POLICY, _Log(new=LastRecord(_row("long"), "5")))
    done = columns.resolve(_batch(("new", _OUT, "5", _note(["body"], old_key="old")), ("new", "own", "7", _note())))
    assert (_bodies(done), done.refused) == (["long", "own"], {})


def test_a_batch_of_which_every_event_is_refused_takes_nothing() -> None:
    """And the next one goes on."""
    columns = UnchangedColumns(_POLICY, _Log())
    assert list(columns.resolve(_batch(("k", _OUT, "1", _note(["body"])))).refused) == [0]
    assert _bodies(columns.resolve(_batch(("k", "new", "2", None), ("k", _OUT, "3", _note(["body"]))))) == ["new", "new"]


def _since(done: Resolved) -> list[str | None]:
    """Return what `source.unchanged` says of each row."""
    listed = ([header["value"].decode() for header in headers or [] if header["key"] == UNCHANGED_SINCE] for headers in _raw(done))
    return [found[0] if found else None for found in listed]


def _raw(done: Resolved) -> list[list[dict[str, Any]] | None]:
    listed: list[list[dict[str, Any]] | None] = done.rows.column("headers").to_pylist()
    return listed


def test_a_row_that_was_filled_in_says_since_when_its_columns_are_so() -> None:
    """Also through a change of the key; of a column that is null there is nothing to say.

    ```
    whole at 1     filled at 2, since 1     filled at 3, since 1     whole at 4     filled at 5, since 4     nothing left out at 6
    ```
    """
    columns = UnchangedColumns(_POLICY, _Log(k=LastRecord(_row("in the log"), "1")))
    filled = [("k", _OUT, position, _note(["body"])) for position in ("2", "3", "5")]
    whole: list[tuple[str, str | None, str, str | None]] = [("k", "whole", "4", None), ("k", "own", "6", _note())]
    done = columns.resolve(_batch(*filled[:2], whole[0], filled[2], whole[1]))
    assert _since(done) == ["1", "1", None, "4", None]
    (headers,) = [one for one in _raw(done)[1:2] if one]
    record = LastRecord.of(_row("in the log"), "3", headers)
    assert (record.since, record.whole_since, LastRecord(b"{}", "7").whole_since) == ("1", "1", "7")
    later = UnchangedColumns(_POLICY, _Log(k=record)).resolve(
        _batch(("k", _OUT, "8", _note(["body"])), ("k", None, "9", _note(new_key="j")))
    )
    assert _since(later) == ["1", None]
    (moved,) = [LastRecord.of(None, "9", one).moved for one in _raw(later)[1:] if one]
    assert moved is not None
    assert moved.since == "1"
    came = UnchangedColumns(_POLICY, _Log(k=LastRecord(None, "9", moved))).resolve(_batch(("j", _OUT, "9", _note(["body"], old_key="k"))))
    assert _since(came) == ["1"]
    assert _since(UnchangedColumns(_NULLS, _Log()).resolve(_batch(("k", _OUT, "1", _note(["body"]))))) == [None]


@pytest.mark.parametrize("is_noted", [False, True], ids=["tombstone without a key", "tombstone with the new key"])
def test_a_deletion_that_comes_again_keeps_the_row_that_it_took_away(*, is_noted: bool) -> None:
    """In the log or in the append; also behind it the tombstone, whose position is not known. Of another change it does not."""
    behind = ("old", None, "", _note(new_key="new", is_guessed=True) if is_noted else None)
    goes, comes = ("old", None, "5", _note(new_key="new")), ("new", _OUT, "5", _note(["body"], old_key="old"))
    for log in (_Log(old=LastRecord(None, "5", _moved())), _Log(old=LastRecord(_row("long"), "1"))):
        cuts: list[list[list[tuple[str, str | None, str, str | None]]]] = [
            [[goes, behind, comes]],
            [[goes, behind], [comes]],
            [[goes], [("another key", "b", "6", None), behind], [comes]],
            [[goes], [behind, behind], [goes], [comes]],
            [[goes, goes, comes]],
        ]
        for batches in cuts:
            columns = UnchangedColumns(_POLICY, log)
            done = [columns.resolve(_batch(*batch)) for batch in batches]
            assert (_bodies(done[-1])[-1], done[-1].refused) == ("long", {})
    row = ("old", "another one", "6", None)
    between = UnchangedColumns(_POLICY, _Log())
    for batch in ([goes], [row], [("old", None, "7", None)]):
        between.resolve(_batch(*batch))
    assert list(between.resolve(_batch(comes)).refused) == [0], "a row stands between the deletion and the tombstone"
    guessed = UnchangedColumns(_POLICY, _Log(old=LastRecord(_row("long"), "1")))
    for batch in ([("old", None, "1", _note(new_key="new", is_guessed=True))], [("old", None, "1", None)]):
        guessed.resolve(_batch(*batch))
    assert list(guessed.resolve(_batch(comes)).refused) == [0], "events between the deletion and the tombstone may have been refused"
    other = UnchangedColumns(_POLICY, _Log(old=LastRecord(None, "5", _moved())))
    assert _headers(other.resolve(_batch(("old", None, "7", _note(new_key="new")), ("old", None, "8", _note(new_key="x"))))) == [[], []]


def test_a_key_without_a_row_takes_the_moved_one_where_events_of_a_commit_are_not_told_apart() -> None:
    """As of Oracle: the deletion of the new key and its row have one position. A swap through a third key, too."""
    moves = [("5", "7"), ("6", "5"), ("7", "6")]
    events: list[tuple[str, str | None, str, str | None]] = [
        event for old, new in moves for event in ((old, None, "9", _note(new_key=new)), (new, _OUT, "9", _note(["body"], old_key=old)))
    ]
    log = _Log(**{"5": LastRecord(_row("five"), "1"), "6": LastRecord(_row("six"), "1")})
    done = UnchangedColumns(_POLICY, log).resolve(_batch(*events))
    assert (_bodies(done), done.refused) == ([None, "five", None, "six", None, "five"], {})


@pytest.mark.parametrize("value", [b"\xff", b"x", None])
def test_headers_of_the_source_of_the_same_names_are_no_error(value: bytes | None) -> None:
    """What an append adds stands behind them, and counts."""
    foreign: list[dict[str, Any]] = [{"key": MOVED, "value": value}, {"key": UNCHANGED_SINCE, "value": value}]
    assert LastRecord.of(b"{}", "1", foreign).moved is None
    own = [*foreign, {"key": UNCHANGED_SINCE, "value": b"1"}]
    assert (LastRecord.of(b"{}", "2", own).since, columns_since(own)) == ("1", "1")
    tombstone = [{"key": MOVED, "value": msgspec.json.encode(_moved())}]
    assert columns_since(tombstone) == "1"
    assert columns_since(None) is None
