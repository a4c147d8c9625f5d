"""Columns that an event leaves out because they did not change (PostgreSQL's TOAST), from the last record of its key.

```
 log, or earlier in the append    k = {"id":1,"body":"long …","n":1}
 event                            k = {"id":1,"body":"__debezium_unavailable_value","n":2}
 row of the log                   k = {"id":1,"body":"long …","n":2}
```

The value is filled in before the event is appended, so no later cleaning can take it away. A change of the key leaves out columns of the
row under its old key, which may be in another partition that is ahead or behind:

```
 events, of two partitions    5 = ∅ (newkey 50) at 30                50 = {"id":50,"body":"__debezium_unavailable_value"} (oldkey 5) at 30
 rows of the log              5 = ∅, header source.moved: the row    50 = {"id":50,"body":"long …"}
```

* Both in one append, or the deletion first: the row is known. It is also kept under a key of its own (`kept_key`), as a tombstone with this
  header, so that nothing which happens to the old key, or to the new one, can take it away (`settled_moves`).
* The new key first: the columns have what the old key has so far, and the header `source.pending` names them with the old key and the
  position. They are filled in when the deletion comes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import pyarrow as pa

from lastword.compaction.rows.envelopes import placeholders_of
from lastword.compaction.rows.input_columns import HEADERS, UNCHANGED
from lastword.compaction.rows.json_rows import resolved, without
from lastword.compaction.rows.source_positions import SourcePosition, is_before, is_same_event

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from lastword.compaction.rows.envelopes import Envelope

#: The reason of an event that leaves out a column which no record of its key has.
UNRESOLVED_COLUMN: Final = "unresolved_column"
#: Headers, as JSON: on a tombstone the row that it was (`Moved`), on a record the columns that are to come (`Pending`).
MOVED, PENDING = "source.moved", "source.pending"
#: Columns that are to come, each with the old key and the position of the change of the key.
Pending = Mapping[str, tuple[str, str]]


class Unchanged(msgspec.Struct, frozen=True):
    """What an event says beside the row: the columns left out, the key before, and, of a deletion, the key that the row has now.

    `is_guessed`: the position is that of another event, as a flat tombstone has none.
    """

    columns: tuple[str, ...] = ()
    old_key: str | None = None
    new_key: str | None = None
    is_guessed: bool = False


class Moved(msgspec.Struct, frozen=True, omit_defaults=True):
    """A row whose key was changed to the key `to`, as JSON text, those of its columns that are to come, and `Unchanged.is_guessed`."""

    row: str
    to: str
    pending: dict[str, tuple[str, str]] = {}
    is_guessed: bool = False


_KEPT: Final = ["key", "value", "source_sequence"]
_UNCHANGED: Final = msgspec.json.Decoder(Unchanged)
_MOVED: Final = msgspec.json.Decoder(Moved)
_PENDING: Final = msgspec.json.Decoder(dict[str, tuple[str, str]])


@dataclass(frozen=True, slots=True)
class LastRecord:
    """The last record of a key: value and source sequence, and what its headers say."""

    value: bytes | None = None
    sequence: str = ""
    pending: Pending = field(default_factory=dict)
    moved: Moved | None = None

    @staticmethod
    def of(value: bytes | None, sequence: str | None, headers: Iterable[Mapping[str, Any]] | None) -> LastRecord:
        """Return a record of the log."""
        said = {header["key"]: header["value"] for header in headers or ()}
        return LastRecord(
            value,
            sequence or "",
            _PENDING.decode(said[PENDING]) if PENDING in said else {},
            _MOVED.decode(said[MOVED]) if MOVED in said else None,
        )


class Records(Protocol):
    """The way to the last records of some keys in the log."""

    def __call__(self, keys: Collection[bytes]) -> Mapping[bytes, LastRecord]:
        """Return them; a key that has none is left out."""


@dataclass(frozen=True, slots=True)
class Move:
    """A change of a key at a position, and the row before it."""

    old_key: bytes
    position: str
    moved: Moved


@dataclass(frozen=True, slots=True)
class MovedRows:
    """What an append itself brings of some old keys: rows by old key and position of the change, and how each is at the end."""

    exact: Mapping[tuple[bytes, str], Moved] = field(default_factory=dict)
    last: Mapping[bytes, LastRecord] = field(default_factory=dict)

    def row_of(self, old_key: bytes, new_key: str, position: str) -> Moved | None:
        """Return the row that moved from one key to another at a position, or, if that is guessed, near it."""
        return _moved(self.exact, old_key, new_key, position)


@dataclass(slots=True)
class Resolved:
    """Rows with the values that were left out.

    `refused` are by row number the columns that no record has, `needed` old keys of which the append may bring the rows.
    """

    rows: pa.RecordBatch
    refused: dict[int, tuple[str, ...]] = field(default_factory=dict)
    needed: set[bytes] = field(default_factory=set)
    moves: list[Move] = field(default_factory=list)


class UnchangedColumns:
    """The values of one partition that events of an append leave out; `resolve` takes its batches one after the other."""

    def __init__(self, envelope: Envelope, own: Records, anywhere: Records, moved: MovedRows | None) -> None:
        """Begin with a way to the records of this partition, and to those of all; `moved` are old rows that the append brings itself."""
        self._own, self._anywhere, self._moved = own, anywhere, moved
        self._is_null = envelope.unresolved == "null"
        self._placeholders = placeholders_of(envelope)
        self._taken: list[tuple[pa.RecordBatch, Mapping[int, LastRecord]]] = []
        #: Of the old keys of a batch the last records in the log, and the rows that are kept of them.
        self._elsewhere: Mapping[bytes, LastRecord] = {}

    def resolve(self, rows: pa.RecordBatch) -> Resolved:
        """Resolve rows, none of them late, in their order.

        Columns: key, value, headers, source_sequence, and what the events say of them (`UNCHANGED`).
        """
        notes = rows.column(UNCHANGED)
        if notes.null_count == len(rows):
            self._taken.append((rows.select(_KEPT), {}))
            return Resolved(rows)
        keys, values = rows.column("key").to_pylist(), rows.column("value").to_pylist()
        sequences = rows.column("source_sequence").to_pylist()
        said = {row: _UNCHANGED.decode(text) for row, text in enumerate(notes.to_pylist()) if text is not None}
        known = self._known({keys[row] for row in said})
        changes = [(note.old_key.encode(), keys[row]) for row, note in said.items() if note.old_key is not None]
        if changes:
            self._elsewhere = self._anywhere({one for old, key in changes for one in (old, kept_key(old, key))})
        done, records = Resolved(rows), dict[int, LastRecord]()
        for row, key in enumerate(keys):
            if row not in said:
                if key in known:
                    known[key] = LastRecord(values[row], sequences[row])
                continue
            record, still = self._record(key, LastRecord(values[row], sequences[row]), said[row], known[key], done)
            if still:
                done.refused[row] = still
            else:
                values[row], records[row], known[key] = record.value, record, record
        headers = _with_headers(rows.column("headers"), records)
        done.rows = _with(_with(rows, "value", pa.array(values, pa.binary())), "headers", headers)
        taken = [row for row in range(len(rows)) if row not in done.refused]
        kept = (done.rows.take(pa.array(taken, pa.int64())) if done.refused else done.rows).select(_KEPT)
        self._taken.append((kept, {at: records[row] for at, row in enumerate(taken) if row in records}))
        return done

    def _record(
        self, key: bytes, record: LastRecord, said: Unchanged, before: LastRecord, done: Resolved
    ) -> tuple[LastRecord, tuple[str, ...]]:
        """Return the record of an event that says something beside its row; and the columns that nobody knows."""
        if said.new_key is not None:
            if before.value is None:
                return record, ()
            moved = Moved(before.value.decode(), said.new_key, dict(before.pending), said.is_guessed)
            done.moves.append(Move(key, record.sequence, moved))
            return LastRecord(None, record.sequence, {}, moved), ()
        # Another row had the key before, unless it is this event again.
        if said.old_key is not None and not is_same_event(before.sequence, record.sequence):
            before = LastRecord()
        found, still = _filled(record, said.columns, before, self._placeholders)
        if still and said.old_key is not None:
            found, still = self._from_old_key(key, found, still, said.old_key.encode(), done), ()
        if still and self._is_null:
            found, still = _without(found, still), ()
        return found, still

    def _from_old_key(self, key: bytes, record: LastRecord, still: tuple[str, ...], old: bytes, done: Resolved) -> LastRecord:
        """Return a record with the columns of the row under its old key: as it was, or as far as it is known, and then they are to come."""
        moved = MovedRows() if self._moved is None else self._moved
        in_log, exact = self._elsewhere.get(old, LastRecord()), moved.row_of(old, key.decode(), record.sequence)
        for one in (in_log, self._elsewhere.get(kept_key(old, key), LastRecord())):
            is_same = one.moved is not None and (one.moved.is_guessed or is_same_event(one.sequence, record.sequence))
            if exact is None and one.moved is not None and is_same and one.moved.to.encode() == key:
                exact = one.moved
        if exact is not None:
            before = LastRecord(exact.row.encode(), record.sequence, exact.pending)
            found, missing = _filled(record, still, before, self._placeholders)
            return _without(found, missing)
        if self._moved is None:
            done.needed.add(old)
        last = moved.last.get(old, in_log)
        found, missing = _filled(record, still, LastRecord() if is_before(record.sequence, last.sequence) else last, self._placeholders)
        origin = old.decode(), record.sequence
        return replace(_without(found, missing), pending={**found.pending, **dict.fromkeys(still, origin)})

    def _known(self, keys: Collection[bytes]) -> dict[bytes, LastRecord]:
        """Return the last record of each key, in the append so far or in the log; one without a value for none."""
        found: dict[bytes, LastRecord] = {}
        for batch, records in self._taken:
            columns = (batch.column(name).to_pylist() for name in _KEPT)
            rows = enumerate(zip(*columns, strict=True))
            found |= {key: records.get(at, LastRecord(value, sequence)) for at, (key, value, sequence) in rows if key in keys}
        missing = [key for key in keys if key not in found]
        return {**dict.fromkeys(missing, LastRecord()), **(self._own(missing) if missing else {}), **found}


def moved_rows(
    events: Iterable[tuple[bytes, bytes | None, str, str | None]], in_log: Mapping[bytes, LastRecord], envelope: Envelope
) -> MovedRows:
    """Return what the log and the events of an append (key, value, sequence, `UNCHANGED`) say of rows whose keys have changed."""
    placeholders, last = placeholders_of(envelope), dict[bytes, LastRecord]()
    exact = dict[tuple[bytes, str], Moved]()
    said_of = [(event, Unchanged() if event[3] is None else _UNCHANGED.decode(event[3])) for event in _ordered(events, in_log)]
    # A guessed position is that of the event before the deletion, of its key; any other that of the row under the new key, too.
    for (key, value, sequence, _), said in sorted(
        said_of, key=lambda one: (SourcePosition.of(one[0][2]).exact, one[0][1] is not None or one[1].is_guessed)
    ):
        known, before = in_log.get(key, LastRecord()), last.get(key, LastRecord())
        # What the log has from after the event says nothing of the row before it.
        if (key not in last or is_before(before.sequence, known.sequence)) and not is_before(sequence, known.sequence):
            before = known
        own = before if said.old_key is None else LastRecord()
        record, still = _filled(LastRecord(value, sequence), said.columns, own, placeholders)
        if still and said.old_key is not None:
            origin = said.old_key, sequence
            old = _moved(exact, said.old_key.encode(), key.decode(), sequence)
            if old is None:
                record = LastRecord(record.value, sequence, {**record.pending, **dict.fromkeys(still, origin)})
            else:
                record, _ = _filled(record, still, LastRecord(old.row.encode(), sequence, old.pending), placeholders)
        if said.new_key is not None and before.value is not None:
            exact[key, sequence] = moved = Moved(before.value.decode(), said.new_key, dict(before.pending), said.is_guessed)
            record = LastRecord(None, sequence, {}, moved)
        last[key] = record
    newer = {key: one for key, one in in_log.items() if key not in last or is_before(last[key].sequence, one.sequence)}
    return MovedRows(exact, {**last, **newer})


def _ordered(
    events: Iterable[tuple[bytes, bytes | None, str, str | None]], in_log: Mapping[bytes, LastRecord]
) -> Iterator[tuple[bytes, bytes | None, str, str | None]]:
    """Yield events of which each whose order is not known has the newest position of its key before it."""
    newest = {key: record.sequence for key, record in in_log.items()}
    for key, value, sequence, said in events:
        known = newest.get(key, "")
        position = sequence if SourcePosition.of(sequence).order else known or sequence
        newest[key] = known if is_before(position, known) else position
        yield key, value, position, said


def _moved(rows: Mapping[tuple[bytes, str], Moved], old_key: bytes, new_key: str, position: str) -> Moved | None:
    """Return the row that moved to a key at a position; of guessed ones, at the last one before it, or else the first one behind it."""
    same = (one for (key, at), one in rows.items() if key == old_key and is_same_event(at, position))
    if (one := next(same, None)) is not None:
        return one
    guessed = ((at, one) for (key, at), one in rows.items() if key == old_key and one.to == new_key and one.is_guessed)
    found = sorted(guessed, key=lambda one: SourcePosition.of(one[0]).exact)
    before = [one for at, one in found if not is_before(position, at)]
    return before[-1] if before else found[0][1] if found else None


def settled_moves(
    moves: Iterable[Move], records: Records, waiting: Records, in_append: Collection[tuple[bytes, str]], envelope: Envelope
) -> dict[bytes, LastRecord]:
    """Return the records to append before the deletions of old keys: those that wait for columns, and rows left at their new keys.

    `records` returns the last records of some keys in the log, `waiting` those that wait for columns of some old keys; `in_append` are key
    and sequence of the events of the append under the new keys.
    """
    placeholders, settled = placeholders_of(envelope), dict[bytes, LastRecord]()
    moves = list(moves)
    targets = [(move, move.moved.to.encode()) for move in moves]
    in_log = records([key for move, new_key in targets for key in (new_key, kept_key(move.old_key, new_key))])
    in_wait: Mapping[bytes, LastRecord] | None = None  # looked for once, and only if a new key is there already
    for move, key in targets:
        old, left_at = move.old_key.decode(), kept_key(move.old_key, key)
        new, kept = (settled.get(one, in_log.get(one)) for one in (key, left_at))
        if new is None or (is_before(new.sequence, move.position) and not (move.moved.is_guessed and _waits_for(new, old))):
            is_kept = kept is not None and not is_before(kept.sequence, move.position)
            if not is_kept and not any(one == key and not is_before(sequence, move.position) for one, sequence in in_append):
                settled[left_at] = LastRecord(None, move.position, {}, move.moved)
            continue
        row = LastRecord(move.moved.row.encode(), move.position, move.moved.pending)
        if in_wait is None:
            in_wait = waiting([one.old_key for one in moves])
        for at, record in {**in_wait, **settled}.items():  # the row may have got other keys since
            wait = tuple(
                name
                for name, (one, position) in record.pending.items()
                if one == old and (move.moved.is_guessed or is_same_event(position, move.position))
            )
            if wait and record.value is not None:
                rest = {name: origin for name, origin in record.pending.items() if name not in wait}
                found, missing = _filled(LastRecord(record.value, record.sequence, rest), wait, row, placeholders)
                settled[at] = _without(found, missing)
    return settled


def _waits_for(record: LastRecord, old_key: str) -> bool:
    return any(one == old_key for one, _ in record.pending.values())


def kept_key(old_key: bytes, new_key: bytes) -> bytes:
    """Return the key under which the log keeps the row of a changed key, as a tombstone, until the event of the new key comes."""
    return msgspec.json.encode({MOVED: {"from": msgspec.Raw(old_key), "to": msgspec.Raw(new_key)}})


def headers_of(record: LastRecord) -> list[dict[str, Any]]:
    """Return the headers that say what a record waits for, or which row it was."""
    found: list[dict[str, Any]] = []
    if record.moved is not None:
        found.append({"key": MOVED, "value": msgspec.json.encode(record.moved)})
    if record.pending:
        found.append({"key": PENDING, "value": msgspec.json.encode(record.pending)})
    return found


def _filled(
    record: LastRecord, columns: Collection[str], before: LastRecord, placeholders: frozenset[bytes]
) -> tuple[LastRecord, tuple[str, ...]]:
    """Return a record with columns of one before it, which are to come where they are there too, and the names of those that it lacks."""
    if record.value is None or not columns:
        return record, ()
    value, still = resolved(record.value, tuple(columns), before.value, placeholders)
    pending = {name: origin for name, origin in before.pending.items() if name in columns and name not in still}
    return LastRecord(value, record.sequence, {**record.pending, **pending}), still


def _without(record: LastRecord, names: Collection[str]) -> LastRecord:
    """Return a record with null in some columns."""
    return record if record.value is None or not names else replace(record, value=without(record.value, tuple(names)))


def _with(rows: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    return rows.set_column(rows.schema.get_field_index(name), name, column)


def _with_headers(headers: pa.Array, records: Mapping[int, LastRecord]) -> pa.Array:
    added = {row: headers_of(record) for row, record in records.items() if record.moved is not None or record.pending}
    if not added:
        return headers
    listed = headers.to_pylist()
    for row, more in added.items():
        listed[row] = [*(listed[row] or []), *more]
    return pa.array(listed, HEADERS)
