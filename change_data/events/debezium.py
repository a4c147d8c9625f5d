"""Raw change events of Debezium as rows of a log: keys, values, deletions and source sequences out of the envelope.

```
 key                    value                                                       row of the log, source_sequence
 {"id":1}               {"before":null,"after":{"id":1,"v":"a"},"op":"c",…}         {"id":1} = {"id":1,"v":"a"}, source.lsn
 {"id":1}               {"before":{…},"after":null,"op":"d",…}                      {"id":1} = ∅
 {"id":1}               null, the tombstone behind a d                              none: the d says it
 null                   {"op":"t",…}                                                none: a TRUNCATE
 {"serverName":"s"}     {"ts_ms":…}, a heartbeat                                    none: it is counted
```

The flat form (ExtractNewRecordState) has the row itself as its value, with fields of metadata under a prefix, and says deletions by null,
by the text `null`, or by `__deleted` (`lastword.change_data.events.flat_events`). Connect's schemas are taken off.

An event whose position in its source is not known, as a tombstone of the flat form without headers, has a sequence without an order: the
append gives it the highest order of its own key (`lastword.compaction.rows.sequence_checks`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from lastword.change_data.columns.json_rows import NULL, NoEvent, excerpt, fields_of, split_schema
from lastword.change_data.events.envelopes import HEARTBEAT, MESSAGE, SCHEMA_CHANGE, TOMBSTONE, TRANSACTION, Envelope, Events
from lastword.change_data.events.event_positions import SourceBlock, named_sequence, source_sequence
from lastword.change_data.events.event_reader import EventReader
from lastword.change_data.events.flat_events import FlatReader
from lastword.compaction.rows.unchanged_columns import fill_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lastword.change_data.events.event_headers import Headers
    from lastword.change_data.events.event_keys import FrameType

_UPSERTS: Final = ("r", "c", "u")


class _ChangeEvent(msgspec.Struct):
    """The envelope; what is asked for by path is read from the text again."""

    op: Any = None
    before: msgspec.Raw = msgspec.Raw(b"null")
    after: msgspec.Raw = msgspec.Raw(b"null")
    source: SourceBlock | None = None
    #: Of Connect's JSON with schemas.
    schema: msgspec.Raw = msgspec.Raw()
    payload: msgspec.Raw = msgspec.Raw()
    #: Of events that are no changes of a row.
    status: Any = None
    ddl: Any = None
    tableChanges: Any = None  # noqa: N815  Debezium's name
    ts_ms: Any = None


_EVENT: Final = msgspec.json.Decoder(_ChangeEvent)


def read_events(
    key: Sequence[bytes | None],
    value: Sequence[bytes | None],
    envelope: Envelope,
    schemas: Mapping[int, FrameType] | None = None,
    *,
    key_schemas: Mapping[int, FrameType] | None = None,
    headers: Headers | None = None,
) -> Events:
    """Return the events of a batch as rows of a log; values are JSON, as Connect's JsonConverter writes them.

    `schemas` and `key_schemas` are the types of values and keys that were frames, by row number. `headers` are
    those of flattened events that `added_headers` returned.
    """
    if envelope.kind == "debezium":
        return _Raw(envelope, schemas or {}, key_schemas).read(key, value)
    return FlatReader(envelope, schemas or {}, key_schemas, headers or {}).read(key, value)


def typed_rows(envelope: Envelope) -> Callable[[bytes, bytes], bytes]:
    """Return what makes a row of a raw event canonical, by the schema that its event carries; it raises `NoEvent`."""
    return _Raw(envelope, {}).canonical_row


class _Raw(EventReader):
    """Events as the connector sends them."""

    part = "after"

    def take(self, row: int, key: bytes | None, value: bytes | None) -> None:
        event = None if value is None else _event(value)
        if event is not None and event.source is not None:
            self.take_time(row, event.source.ts_ms)
        if event is None or value is None:
            self.events.others[row] = TOMBSTONE
        elif event.op is None:
            self._no_change(row, event, value)
        elif event.op in _UPSERTS:
            self._upsert(row, key, event, value)
        elif event.op == "d":
            before = bytes(event.before)
            if self.envelope.key and before[:1] == b"{":
                before = self.canonical_row(before, self.schemas.get(row) or bytes(event.schema))
            self.events.add(row, self.key_of(row, key, before, is_before=True), None, self.sequence_of(event, value))
        elif event.op == "t":
            self.truncate(row, self.sequence_of(event, value))
        elif event.op == "m":
            self.events.others[row] = MESSAGE
        else:
            message = f"op {event.op!r}: allowed is r, c, u, d, t or m"
            raise NoEvent(message)

    def _upsert(self, row: int, key: bytes | None, event: _ChangeEvent, value: bytes) -> None:
        after = bytes(event.after)
        if after == NULL:
            message = f"op {event.op!r} without a row in `after`"
            if event.source is not None and event.source.connector == "mongodb":
                message += ": let the connector send the document (capture.mode = change_streams_update_full)"
            raise NoEvent(message)
        schema, before = self.schemas.get(row) or bytes(event.schema), bytes(event.before)
        after, sequence = self.canonical_row(after, schema), self.sequence_of(event, value)
        columns, missing = self._columns, self.unresolved_columns(after)
        if before != NULL and (self.envelope.key or missing):
            before = self.canonical_row(before, schema)
        if missing and before != NULL:  # with REPLICA IDENTITY FULL the row before has what did not change
            after, missing = fill_columns(after, missing, before, self._unchanged)
        new_key = self.key_of(row, key, after)
        if self.envelope.key and before != NULL:
            old_key = self._old_key(row, key, before, new_key)
            if old_key != new_key:
                self.events.add(row, old_key, None, sequence)
        self._columns = columns
        self.learn(row, sequence)
        self.events.add(row, new_key, after, sequence, missing)

    def _old_key(self, row: int, key: bytes | None, before: bytes, new_key: bytes | None) -> bytes | None:
        """Return the key of columns that a row had before an update; a row that is known in part tells it if it is the new one."""
        if all(name in fields_of(before, "the row") for name in self.envelope.key) and self.key_of(row, key, before) == new_key:
            return new_key
        return self.key_of(row, key, before, is_before=True)

    def identify(self, row: int, key: bytes | None, value: bytes) -> tuple[bytes | None, str]:
        event = _event(value) or _ChangeEvent()
        is_before, sequence = event.op == "d", self.sequence_of(event, value)
        text, schema = bytes(event.before if is_before else event.after), self.schemas.get(row) or bytes(event.schema)
        if self.envelope.key:
            text = self.identifying_columns(text, schema)
        new_key = self.key_of(row, key, text, is_before=is_before)
        if self.envelope.key and not is_before and bytes(event.before) != NULL:
            old_key = self._old_key(row, key, self.identifying_columns(bytes(event.before), schema), new_key)
            if old_key != new_key:  # the row has left its old key, whatever is wrong with it
                self.events.add(row, old_key, None, sequence)
        return new_key, sequence

    def _no_change(self, row: int, event: _ChangeEvent, value: bytes) -> None:
        if event.status in ("BEGIN", "END"):  # of any type
            self.events.others[row] = TRANSACTION
        elif event.ddl is not None or event.tableChanges is not None:
            self.events.others[row] = SCHEMA_CHANGE
        elif event.ts_ms is not None and set(fields_of(split_schema(value)[0], "the value")) == {"ts_ms"}:
            self.events.others[row] = HEARTBEAT
        else:
            message = f"no op in the value, so it is no change event: {excerpt(value)}"
            raise NoEvent(message)

    def sequence_of(self, event: _ChangeEvent, value: bytes) -> str:
        if self.envelope.sequence:
            return named_sequence(split_schema(value)[0], self.envelope)
        return source_sequence(event.source or SourceBlock(), event.op, self.envelope)


def _event(value: bytes) -> _ChangeEvent | None:
    """Return the envelope of a value, without Connect's schema; None for one that says null."""
    try:
        event = None if value.strip() == NULL else _EVENT.decode(value)
        if event is not None and event.op is None and bytes(event.payload):
            payload, schema = bytes(event.payload), event.schema
            event = None if payload.strip() == NULL else _EVENT.decode(payload)
            if event is not None:
                event.schema = schema
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message = f"the value is no envelope of Debezium ({error}): {excerpt(value)}"
        raise NoEvent(message) from None
    return event
