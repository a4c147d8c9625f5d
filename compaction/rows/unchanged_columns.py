"""Columns that an event leaves out because they did not change (PostgreSQL's TOAST), from the last record of its key.

```
 log, or earlier in the append    k = {"id":1,"body":"long …","n":1}
 event                            k = {"id":1,"body":"__debezium_unavailable_value","n":2}
 row of the log                   k = {"id":1,"body":"long …","n":2}
```

The value is filled in before the event is appended, so no later cleaning can take it away. A change of the key leaves out columns of the
row under its old key. The tombstone of the old key carries that row in a header, where both keys are in one partition:

```
 events              5 = ∅ (newkey 50) at 30                50 = {"id":50,"body":"__debezium_unavailable_value"} (oldkey 5) at 30
 rows of the log     5 = ∅, header source.moved: the row    50 = {"id":50,"body":"long …"}
```

An event whose columns no record of the partition has is refused, or its columns are null (`EventPolicy.null_unresolved`).

A row that was filled in says in the header `source.unchanged` since which source sequence its columns are what they are: an event that was
refused since then may have changed them, so the key stays stale (docs/semantics.md#A.57).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import pyarrow as pa

from lastword.compaction.order.source_positions import is_same_event
from lastword.compaction.rows.input_columns import HEADERS, UNCHANGED

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from lastword.compaction.rows.input_columns import EventPolicy

#: The reason of an event that leaves out a column which no record of its key has.
UNRESOLVED_COLUMN: Final = "unresolved_column"
#: The header of a tombstone whose row has another key now: `Moved` as JSON.
MOVED: Final = "source.moved"
#: The header of a row that was filled in: the source sequence of the record that its columns come from.
UNCHANGED_SINCE: Final = "source.unchanged"


class Unchanged(msgspec.Struct, frozen=True):
    """What an event says beside the row: the columns left out, the key before, and, of a deletion, the key that the row has now.

    `is_guessed`: the position is that of another event, as a flat tombstone has none.
    """

    columns: tuple[str, ...] = ()
    old_key: str | None = None
    new_key: str | None = None
    is_guessed: bool = False


class Moved(msgspec.Struct, frozen=True, omit_defaults=True):
    """A row whose key was changed to the key `to`, as JSON text; `Unchanged.is_guessed`, and `LastRecord.whole_since` of the row.

    `at` is the source sequence of the change.
    """

    row: str
    to: str
    is_guessed: bool = False
    since: str = ""
    at: str = ""

    def is_of(self, new_key: bytes, position: str) -> bool:
        """Tell whether this is the row that a change of the key at a position gave a new key."""
        return self.to.encode() == new_key and (self.is_guessed or is_same_event(self.at, position))


_KEPT: Final = ["key", "value", "source_sequence"]
_UNCHANGED: Final = msgspec.json.Decoder(Unchanged)
_MOVED: Final = msgspec.json.Decoder(Moved)
_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ANY: Final = msgspec.json.Decoder()
_PLAIN: Final = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class LastRecord:
    """The last record of a key: value, source sequence, and the row that a tombstone carries whose key was changed.

    `since` is the source sequence of the record that columns were filled in from; None if all columns are the record's own.
    """

    value: bytes | None = None
    sequence: str = ""
    moved: Moved | None = None
    since: str | None = None

    @property
    def whole_since(self) -> str:
        """The source sequence since which all columns are what they are."""
        return self.sequence if self.since is None else self.since

    @staticmethod
    def of(value: bytes | None, sequence: str | None, headers: Iterable[Mapping[str, Any]] | None) -> LastRecord:
        """Return a record of the log."""
        return LastRecord(value, sequence or "", _moved_of(headers), _filled_since(headers))

    @property
    def may_inherit(self) -> bool:
        """Whether this is a tombstone that carries no row: it may belong to a deletion before it, which does."""
        return self.value is None and self.moved is None

    def inherit_row(self, before: LastRecord | None) -> LastRecord:
        """Return the record with the row that the record before it of the same key carries, if this is a tombstone without a row.

        A row with a guessed position is not inherited: events between the two records may have been refused, unknown to the log.
        """
        moved = None if before is None else before.moved
        return replace(self, moved=moved) if moved is not None and not moved.is_guessed and self.may_inherit else self


def columns_since(headers: Iterable[Mapping[str, Any]] | None) -> str | None:
    """Return the source sequence since which columns of a record are so that are not its own; None if all are.

    They were filled in, or are of the row that a tombstone carries, as its key was changed.
    """
    moved = _moved_of(headers)
    return _filled_since(headers) if moved is None else moved.since


def _moved_of(headers: Iterable[Mapping[str, Any]] | None) -> Moved | None:
    value = _last_header(headers, MOVED)
    with suppress(msgspec.DecodeError, UnicodeDecodeError):  # a header of the source's own may have this name
        return None if value is None else _MOVED.decode(value)
    return None


def _filled_since(headers: Iterable[Mapping[str, Any]] | None) -> str | None:
    value = _last_header(headers, UNCHANGED_SINCE)
    with suppress(UnicodeDecodeError):
        return None if value is None else value.decode()
    return None


def _last_header(headers: Iterable[Mapping[str, Any]] | None, name: str) -> bytes | None:
    """Return the last header of a name: what an append adds stands behind the source's own."""
    values = [header["value"] for header in headers or () if header["key"] == name]
    return None if not values or values[-1] is None else bytes(values[-1])


class Records(Protocol):
    """The way to the last records of some keys in the log."""

    def __call__(self, keys: Collection[bytes], *, moved: AbstractSet[bytes]) -> Mapping[bytes, LastRecord]:
        """Return them; a key that has none is left out. The records of the keys `moved` are as `LastRecord.inherit_row` returns them."""


@dataclass(slots=True)
class Resolved:
    """Rows with the values that were left out; `refused` says of the others, by row number, what is missing."""

    rows: pa.RecordBatch
    refused: dict[int, str] = field(default_factory=dict)


class UnchangedColumns:
    """The values of one partition that events of an append leave out; `resolve` takes its batches one after the other."""

    def __init__(self, policy: EventPolicy, records: Records) -> None:
        """Begin with a way to the records that the partition has in the log."""
        self._policy, self._records = policy, records
        self._taken: list[tuple[pa.RecordBatch, Mapping[int, LastRecord]]] = []

    def resolve(self, rows: pa.RecordBatch) -> Resolved:
        """Resolve rows, none of them late, in their order.

        Columns: key, value, headers, source_sequence, and what the events say of them (`UNCHANGED`).
        """
        texts = rows.column(UNCHANGED)
        if texts.null_count == len(rows):
            self._taken.append((rows.select(_KEPT), {}))
            return Resolved(rows)
        keys, values = rows.column("key").to_pylist(), rows.column("value").to_pylist()
        sequences = rows.column("source_sequence").to_pylist()
        notes = {row: _UNCHANGED.decode(text) for row, text in enumerate(texts.to_pylist()) if text is not None}
        moved = {note.old_key.encode() for note in notes.values() if note.old_key is not None}
        moved |= {keys[row] for row, note in notes.items() if note.new_key is not None}
        last = self._last_records({keys[row] for row in notes} | moved, moved)
        refused, records = dict[int, str](), dict[int, LastRecord]()
        for row, key in enumerate(keys):
            record = LastRecord(values[row], sequences[row])
            if row not in notes:
                if values[row] is None and key in last and last[key].moved is not None:  # a tombstone behind a deletion is part of it
                    record = records[row] = replace(record, moved=last[key].moved)
                if key in last:
                    last[key] = record
                continue
            record, missing = self._record(key, record, notes[row], last)
            if missing:
                refused[row] = _refusal(missing, notes[row])
            else:
                values[row], records[row], last[key] = record.value, record, record
        headers = _with_headers(rows.column("headers"), records)
        resolved = _with(_with(rows, "value", pa.array(values, pa.binary())), "headers", headers)
        taken = [row for row in range(len(rows)) if row not in refused]
        kept = (resolved.take(pa.array(taken, pa.int64())) if refused else resolved).select(_KEPT)
        self._taken.append((kept, {at: records[row] for at, row in enumerate(taken) if row in records}))
        return Resolved(resolved, refused)

    def _record(
        self, key: bytes, record: LastRecord, note: Unchanged, last: Mapping[bytes, LastRecord]
    ) -> tuple[LastRecord, tuple[str, ...]]:
        """Return the record of an event that says something beside its row; and the columns that no record has."""
        before = last[key]
        if note.new_key is not None:
            if before.value is not None:
                moved = Moved(before.value.decode(), note.new_key, note.is_guessed, before.whole_since, record.sequence)
                return replace(record, moved=moved), ()
            new_key, moved_before = note.new_key.encode(), before.moved
            if moved_before is not None and moved_before.is_of(new_key, moved_before.at if note.is_guessed else record.sequence):
                record = replace(record, moved=moved_before)  # it comes again, or is the tombstone behind the deletion
            return record, ()
        if record.value is None or not note.columns:
            return record, ()
        row, since = before.value, before.whole_since
        # Another row had the key before, or none, unless it is this event again.
        if note.old_key is not None and (row is None or not is_same_event(before.sequence, record.sequence)):
            row, since = _moved_row(last[note.old_key.encode()], key, record.sequence)
        value, missing = fill_columns(record.value, note.columns, row, self._policy.placeholders)
        is_filled = len(missing) < len(note.columns)
        if missing and self._policy.null_unresolved:
            value, missing = _PLAIN.encode({**_FIELDS.decode(value), **dict.fromkeys(missing)}), ()
        return LastRecord(value, record.sequence, None, since if is_filled else None), missing

    def _last_records(self, keys: AbstractSet[bytes], moved: AbstractSet[bytes]) -> dict[bytes, LastRecord]:
        """Return the last record of each key, from this append or else from the log; an empty record if there is none.

        `moved` as in `Records`.
        """
        last, settled = dict[bytes, LastRecord](), set[bytes]()
        for batch, records in self._taken:
            columns = (batch.column(name).to_pylist() for name in _KEPT)
            for at, (key, value, sequence) in enumerate(zip(*columns, strict=True)):
                if key in keys:
                    record = records.get(at, LastRecord(value, sequence))
                    last[key] = record.inherit_row(last.get(key))
                    if not record.may_inherit:
                        settled.add(key)
        wanted = (keys - last.keys()) | ((moved & last.keys()) - settled)
        of_log = self._records(wanted, moved=moved) if wanted else {}
        return {key: last[key].inherit_row(of_log.get(key)) if key in last else of_log.get(key, LastRecord()) for key in keys}


def _moved_row(old: LastRecord, new_key: bytes, position: str) -> tuple[bytes | None, str]:
    """Return the row that went from an old key to a new one at a position, and `Moved.since`; None where the old key does not have it."""
    if old.moved is None or not old.moved.is_of(new_key, position):
        return None, ""
    return old.moved.row.encode(), old.moved.since


def fill_columns(row: bytes, names: Sequence[str], before: bytes | None, placeholders: frozenset[bytes]) -> tuple[bytes, tuple[str, ...]]:
    """Return a row with some columns of the row before it, and the names of those that this one lacks; both are JSON objects.

    `placeholders` are the texts that stand for a value that was left out.
    """
    if before is None:
        return row, tuple(names)
    fields, others = _FIELDS.decode(row), _FIELDS.decode(before)
    values = {name: others[name] for name in names if name in others and not is_one_of(bytes(others[name]), placeholders)}
    return (_PLAIN.encode({**fields, **values}) if values else row), tuple(name for name in names if name not in values)


def is_one_of(text: bytes, texts: frozenset[bytes]) -> bool:
    """Tell whether a JSON text is one of some compact ones, whatever its spaces."""
    text = text.strip()
    return text in texts or (text[:1] in {b"[", b"{"} and _PLAIN.encode(_ANY.decode(text)) in texts)


def _refusal(missing: Sequence[str], note: Unchanged) -> str:
    """Return why an event is refused that leaves out columns."""
    left_out = f"the source left out {', '.join(missing)}, which did not change (unchanged TOAST)"
    if note.old_key is None:
        return f"{left_out}, and no record of the key has it"
    return (
        f"{left_out}, and the key was {note.old_key} before, whose row is not in this partition; with REPLICA IDENTITY FULL the event has "
        "all columns"
    )


def _with(rows: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    return rows.set_column(rows.schema.get_field_index(name), name, column)


def _with_headers(headers: pa.Array, records: Mapping[int, LastRecord]) -> pa.Array:
    """Return headers with those of tombstones whose row has another key now, and of rows that were filled in."""
    moved = {row: {"key": MOVED, "value": msgspec.json.encode(record.moved)} for row, record in records.items() if record.moved is not None}
    filled = {row: {"key": UNCHANGED_SINCE, "value": record.since.encode()} for row, record in records.items() if record.since is not None}
    if not moved and not filled:
        return headers
    listed = headers.to_pylist()
    for row, header in [*moved.items(), *filled.items()]:
        listed[row] = [*(listed[row] or []), header]
    return pa.array(listed, HEADERS)
