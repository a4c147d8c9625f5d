"""Change events of Debezium as rows of a log: keys, values, deletions and source sequences out of the envelope.

```
 key                    value                                                       row of the log, source_sequence
 {"id":1}               {"before":null,"after":{"id":1,"v":"a"},"op":"c",…}         {"id":1} = {"id":1,"v":"a"}, source.lsn
 {"id":1}               {"before":{…},"after":null,"op":"d",…}                      {"id":1} = ∅
 {"id":1}               null, the tombstone behind a d                              none: the d says it
 null                   {"op":"t",…}                                                none: a TRUNCATE
 {"serverName":"s"}     {"ts_ms":…}, a heartbeat                                    none: it is counted
```

The flat form (ExtractNewRecordState) has the row itself as its value, with fields of metadata under a prefix, and says deletions by null,
by the text `null`, or by `__deleted`. Connect's schemas, if an event carries them, are taken off.

An event whose position in its source is not known, as a tombstone of the flat form, has a sequence without an order: the append gives it
the highest order of its own key (`lastword.compaction.rows.sequence_checks`).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from lastword.compaction.rows.column_types import Misfit
from lastword.compaction.rows.connect_schema import columns_of_connect_schema
from lastword.compaction.rows.envelopes import (
    DELETED,
    HEARTBEAT,
    MESSAGE,
    SCHEMA_CHANGE,
    TOMBSTONE,
    TRANSACTION,
    TRUNCATED,
    USUAL_ADDED_FIELDS,
    Envelope,
    Events,
    added_names,
    placeholders_of,
    signs_of,
)
from lastword.compaction.rows.event_keys import KeyReader, shorten
from lastword.compaction.rows.event_positions import Source, named_sequence, source_sequence
from lastword.compaction.rows.input_columns import ALERT
from lastword.compaction.rows.json_rows import (
    NESTED,
    NULL,
    NoEvent,
    canonical_object,
    document,
    fields_of,
    is_one_of,
    resolved,
    shown,
    unwrapped,
)
from lastword.compaction.rows.row_converter import RowConverter
from lastword.compaction.rows.source_positions import SourcePosition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lastword.compaction.rows.column_types import Column

_UPSERTS: Final = ("r", "c", "u")
#: The last millisecond of the year 9999.
_MAX_MS: Final = 253_402_300_799_999


class _Event(msgspec.Struct):
    """The envelope; what is asked for by path is read from the text again."""

    op: Any = None
    before: msgspec.Raw = msgspec.Raw(b"null")
    after: msgspec.Raw = msgspec.Raw(b"null")
    source: Source | None = None
    #: Of Connect's JSON with schemas.
    schema: msgspec.Raw = msgspec.Raw()
    payload: msgspec.Raw = msgspec.Raw()
    #: Of events that are no changes of a row.
    status: Any = None
    ddl: Any = None
    tableChanges: Any = None  # noqa: N815  Debezium's name
    ts_ms: Any = None


_EVENT: Final = msgspec.json.Decoder(_Event)
_ANY: Final = msgspec.json.Decoder()
_PLAIN: Final = msgspec.json.Encoder()


def read_events(
    key: Sequence[bytes | None],
    value: Sequence[bytes | None],
    envelope: Envelope,
    schemas: Mapping[int, bytes] | None = None,
    *,
    key_schemas: Mapping[int, bytes] | None = None,
) -> Events:
    """Return the events of a batch as rows of a log; values are JSON, as Connect's JsonConverter writes them.

    `schemas` and `key_schemas` are Connect's schemas of values and keys that do not carry them, by row number, as JSON.
    """
    reader = _Raw if envelope.kind == "debezium" else _Flat
    return reader(envelope, schemas or {}, key_schemas).read(key, value)


def typed_rows(envelope: Envelope) -> Callable[[bytes, bytes], bytes]:
    """Return what makes a row of a raw event canonical, by the schema that its event carries; it raises `NoEvent`."""
    return _Raw(envelope, {}).typed


class _Reader(ABC):
    """What both forms have in common."""

    #: The field of an event's schema that is the row's; the empty text for all of it.
    part = ""

    @abstractmethod
    def take(self, row: int, key: bytes | None, value: bytes | None) -> None:
        """Add what an event is to `events`; raise `NoEvent` for one that cannot be read."""

    @abstractmethod
    def identify(self, row: int, key: bytes | None, value: bytes) -> tuple[bytes | None, str]:
        """Return the canonical key and the sequence of an event that cannot be read whole; raise `NoEvent` where that is not known."""

    def __init__(self, envelope: Envelope, schemas: Mapping[int, bytes], key_schemas: Mapping[int, bytes] | None = None) -> None:
        self.envelope, self.schemas, self.events = envelope, schemas, Events()
        self._keys, self._key_schemas = KeyReader(envelope.key_format), key_schemas or {}
        self._unchanged = placeholders_of(envelope)
        self._has_sign = re.compile(b"|".join(re.escape(sign) for sign in sorted(signs_of(envelope)))).search
        self._given_columns = envelope.columns()
        self._given_names = frozenset(column.name for column in self._given_columns)
        self._given = self._converter(self._given_columns) if envelope.schema else None
        self._learnt: dict[bytes, RowConverter] = {}
        #: The converters of the key's columns alone, by the schema of an event.
        self._key_converters: dict[bytes, RowConverter] = {}
        #: By which columns the last row was converted.
        self._columns: tuple[Column, ...] = ()

    def read(self, keys: Sequence[bytes | None], values: Sequence[bytes | None]) -> Events:
        for row, (key, value) in enumerate(zip(keys, values, strict=True)):
            try:
                if value is not None and not value.isascii():
                    value.decode()  # msgspec does not look into texts that it skips
                self.take(row, key, value)
            except NoEvent as error:
                self._refuse(row, key, value, str(error))
            except RecursionError:
                self._refuse(row, key, value, NESTED)
            except (msgspec.MsgspecError, ValueError, ArithmeticError) as error:  # not UTF-8, or a number that cannot be computed with
                self._refuse(row, key, value, f"the value is no envelope of Debezium ({error}): {shown(value or b'')}")
        return self.events

    def _refuse(self, row: int, key: bytes | None, value: bytes | None, reason: str) -> None:
        """Take note of an event that cannot be read, and of its key and sequence if those can: the row of this key is stale from now on."""
        self.events.refused[row] = reason
        record_key: bytes | None = None
        with suppress(NoEvent, RecursionError, msgspec.MsgspecError, ValueError, ArithmeticError):
            record_key = None if self.envelope.key else self.own_key(row, key)
            record_key, self.events.positions[row] = self.identify(row, key, value or b"")
        if record_key is not None:
            self.events.refused_keys[row] = record_key

    def truncate(self, row: int, sequence: str) -> None:
        """Take a TRUNCATE, as the envelope's policy says."""
        policy, position = self.envelope.truncate, SourcePosition.of(sequence)
        named = f"TRUNCATE of the source's table at {position.commit or 'an unknown position'}"
        if policy == "delete-all" and (position.order or position.floor):
            self.events.others[row], self.events.positions[row] = TRUNCATED, sequence
        elif policy == "ignore":
            self.events.others[row] = f"{TRUNCATED} ignored"
        elif policy == "alert":
            self.events.others[row] = f"{ALERT}{named}: the rows before it stay, as truncate = alert says"
        else:
            self.events.others[row] = f"{ALERT}{named}: which rows came before it cannot be told, so none was deleted"

    def take_time(self, row: int, ts_ms: Any) -> None:
        """Take note of when an event happened in its source, if it says so by a whole number of milliseconds."""
        if type(ts_ms) is int and 0 <= ts_ms <= _MAX_MS:
            self.events.times[row] = ts_ms

    def typed(self, row: bytes, schema: bytes) -> bytes:
        """Return a row in canonical JSON, by the columns that are given or that the event's own schema names."""
        converter, self._columns = self._given, ()
        if row[:1] != b"{":  # a text, as MongoDB's
            row = document(row)
        if converter is None:
            if not schema or schema == NULL:
                return row
            converter = self._learnt.get(schema)
            if converter is None:
                converter = self._learnt[schema] = self._converter(self.columns_of(schema))
            self._columns = converter.columns
        if self.envelope.key and self.envelope.misfit == "null":
            self.identifying_columns(row, schema)  # of a key no column becomes null
        try:
            return converter.convert(row)
        except Misfit as error:
            raise NoEvent(str(error)) from None

    def columns_of(self, schema: bytes) -> tuple[Column, ...]:
        """Return the columns of the row that Connect's schema of an event names."""
        return _columns(schema, self.part)

    def learn(self, row: int, sequence: str) -> None:
        """Take note of the columns by which the row of an event was converted, if its own schema named them."""
        if self._columns:
            self.events.learn(self._columns, sequence, row)

    def _converter(self, columns: Sequence[Column]) -> RowConverter:
        on_misfit: Literal["error", "null"] = "null" if self.envelope.misfit == "null" else "error"
        return RowConverter(columns, on_misfit=on_misfit, placeholders=self._unchanged)

    def unresolved(self, row: bytes) -> tuple[str, ...]:
        """Return the columns of a row whose value the source left out."""
        if self._has_sign(row) is None:
            return ()
        return tuple(name for name, text in fields_of(row, "the row").items() if is_one_of(bytes(text), self._unchanged))

    def key_of(self, row: int, key: bytes | None, text: bytes, *, is_before: bool = False) -> bytes | None:
        """Return the canonical key of an event: its own key, or of the columns of its row.

        `is_before` tells that the text is the row before the change, of which a source may send some columns alone, and null for others.
        """
        if not self.envelope.key:
            own_key = self.own_key(row, key)
            if is_before and own_key is not None and own_key[:1] == b"{" and b"null" in own_key:
                own = fields_of(own_key, "the key")
                self._check_known(own, list(own), is_whole=text[:1] == b"{" and self._is_whole(own_key, fields_of(text, "the row")))
            return own_key
        fields = fields_of(text, "the row") if text[:1] == b"{" else {}
        if is_before:
            self._check_known(fields, self.envelope.key, is_whole=self._is_whole(self._readable_key(row, key), fields))
        missing = [name for name in self.envelope.key if name not in fields]
        if missing:
            message = f"the key's column {', '.join(missing)} is not in the row; there are {', '.join(fields)}"
            raise NoEvent(message)
        self._check_placeholders({name: fields[name] for name in self.envelope.key})
        types = {column.name: column.data_type for column in self._columns or self._given_columns}
        return canonical_object({name: shorten(bytes(fields[name]), types.get(name)) for name in self.envelope.key})

    def _check_known(self, fields: Mapping[str, msgspec.Raw], names: Sequence[str], *, is_whole: bool) -> None:
        """Raise `NoEvent` if a column of the key has no value before the change, and may be left out."""
        missing = [name for name in names if name not in fields]
        nulls = [name for name in names if name in fields and bytes(fields[name]) == NULL]
        if missing or (nulls and not is_whole):
            message = (
                f"the key's column {', '.join(missing or nulls)} has no value in the row before the change, and may be left out there: let "
                "the source send the whole row (PostgreSQL: REPLICA IDENTITY FULL; MySQL: binlog_row_image=FULL)"
            )
            raise NoEvent(message)

    def _check_placeholders(self, fields: Mapping[str, msgspec.Raw]) -> None:
        """Raise `NoEvent` for a column of the key whose value the source left out."""
        left_out = [name for name, text in fields.items() if self._has_sign(bytes(text)) and is_one_of(bytes(text), self._unchanged)]
        if left_out:
            message = (
                f"the key's column {', '.join(left_out)} was left out, as it did not change (unchanged TOAST): let the source send the "
                "whole row (PostgreSQL: REPLICA IDENTITY FULL)"
            )
            raise NoEvent(message)

    def _is_whole(self, own_key: bytes | None, fields: Mapping[str, msgspec.Raw]) -> bool:
        """Tell whether a row before the change has more than the columns of the event's own key, the only ones that some sources send."""
        own = set(fields_of(own_key, "the key")) if own_key is not None and own_key[:1] == b"{" else set(self.envelope.key)
        return any(name not in own and bytes(text) != NULL for name, text in fields.items())

    def _readable_key(self, row: int, key: bytes | None) -> bytes | None:
        """Return the event's own key where the key is that of columns, so that it need not be readable."""
        try:
            return self.own_key(row, key)
        except NoEvent:
            return None

    def own_key(self, row: int, key: bytes | None) -> bytes | None:
        if key is None:
            return None
        read = self._keys.read(key, self._key_schemas.get(row, b""))
        if read[:1] == b"{" and self._has_sign(read):
            self._check_placeholders(fields_of(read, "the key"))
        return read if read != NULL else None

    def identifying_columns(self, text: bytes, schema: bytes) -> bytes:
        """Return the key's columns of a row in which other columns do not fit their types."""
        if self._given_columns or schema == NULL:
            schema = b""
        converter = self._key_converters.get(schema)
        if converter is None:
            columns = self._given_columns or (self.columns_of(schema) if schema else ())
            converter = RowConverter([column for column in columns if column.name in self.envelope.key])
            self._key_converters[schema] = converter
        fields = fields_of(document(text), "the row")
        try:
            return converter.convert(_PLAIN.encode({name: part for name, part in fields.items() if name in self.envelope.key}))
        except Misfit as error:
            raise NoEvent(str(error)) from None


class _Raw(_Reader):
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
                before = self.typed(before, self.schemas.get(row) or bytes(event.schema))
            self.events.add(row, self.key_of(row, key, before, is_before=True), None, self.sequence_of(event, value))
        elif event.op == "t":
            self.truncate(row, self.sequence_of(event, value))
        elif event.op == "m":
            self.events.others[row] = MESSAGE
        else:
            message = f"op {event.op!r}: allowed is r, c, u, d, t or m"
            raise NoEvent(message)

    def _upsert(self, row: int, key: bytes | None, event: _Event, value: bytes) -> None:
        after = bytes(event.after)
        if after == NULL:
            message = f"op {event.op!r} without a row in `after`"
            if event.source is not None and event.source.connector == "mongodb":
                message += ": let the connector send the document (capture.mode = change_streams_update_full)"
            raise NoEvent(message)
        schema, before = self.schemas.get(row) or bytes(event.schema), bytes(event.before)
        after, sequence = self.typed(after, schema), self.sequence_of(event, value)
        columns, missing = self._columns, self.unresolved(after)
        if before != NULL and (self.envelope.key or missing):
            before = self.typed(before, schema)
        if missing and before != NULL:  # with REPLICA IDENTITY FULL the row before has what did not change
            after, missing = resolved(after, missing, before, self._unchanged)
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
        event = _event(value) or _Event()
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

    def _no_change(self, row: int, event: _Event, value: bytes) -> None:
        if event.status in ("BEGIN", "END"):  # of any type
            self.events.others[row] = TRANSACTION
        elif event.ddl is not None or event.tableChanges is not None:
            self.events.others[row] = SCHEMA_CHANGE
        elif event.ts_ms is not None and set(fields_of(unwrapped(value)[0], "the value")) == {"ts_ms"}:
            self.events.others[row] = HEARTBEAT
        else:
            message = f"no op in the value, so it is no change event: {shown(value)}"
            raise NoEvent(message)

    def sequence_of(self, event: _Event, value: bytes) -> str:
        if self.envelope.sequence:
            return named_sequence(unwrapped(value)[0], self.envelope)
        return source_sequence(event.source or Source(), event.op, self.envelope)


class _Flat(_Reader):
    """Events that ExtractNewRecordState has flattened."""

    def __init__(self, envelope: Envelope, schemas: Mapping[int, bytes], key_schemas: Mapping[int, bytes] | None = None) -> None:
        super().__init__(envelope, schemas, key_schemas)
        self._added_names = added_names(envelope)

    def take(self, row: int, key: bytes | None, value: bytes | None) -> None:
        text, schema = (NULL, b"") if value is None else self._unwrapped(value)
        if text == NULL:
            if self.envelope.key:
                message = "a tombstone has no row to take the key's columns from; let the connector send deletions as rows (rewrite)"
                raise NoEvent(message)
            self.events.add(row, self.key_of(row, key, NULL, is_before=True), None, source_sequence(Source(), "d", self.envelope))
            self.events.guessed.add(len(self.events.row) - 1)
            return
        fields = fields_of(text, "the value")
        if set(fields) == {"ts_ms"} and _is_of_heartbeat(key):
            self.events.others[row] = HEARTBEAT
            return
        metadata = self._metadata(fields)
        self.take_time(row, metadata.get("source_ts_ms"))
        if metadata.get("op") == "t":
            self.truncate(row, self._sequence_of(text, metadata))
            return
        columns = {name: part for name, part in fields.items() if not self._is_metadata(name)}
        bare = self.typed(_PLAIN.encode(columns) if metadata else text, self.schemas.get(row) or schema)
        is_deletion = _is_deletion(metadata)
        sequence, own_key = self._sequence_of(text, metadata), self.key_of(row, key, bare, is_before=is_deletion)
        if is_deletion:
            self.events.add(row, own_key, None, sequence)
        else:
            self.learn(row, sequence)
            self.events.add(row, own_key, bare, sequence, self.unresolved(bare))

    def identify(self, row: int, key: bytes | None, value: bytes) -> tuple[bytes | None, str]:
        text, schema = self._unwrapped(value)
        metadata = self._metadata(fields_of(text, "the value"))
        if self.envelope.key:
            text = self.identifying_columns(text, self.schemas.get(row) or schema)
        return self.key_of(row, key, text, is_before=_is_deletion(metadata)), self._sequence_of(text, metadata)

    def columns_of(self, schema: bytes) -> tuple[Column, ...]:
        return tuple(column for column in super().columns_of(schema) if not self._is_metadata(column.name))

    def _unwrapped(self, value: bytes) -> tuple[bytes, bytes]:
        """Return a value and Connect's schema of it; a row whose columns, as the source gives them, are called so has none."""
        if {"schema", "payload"} <= self._given_names:
            return value.strip(), b""
        return unwrapped(value)

    def _is_metadata(self, name: str) -> bool:
        """Tell whether a field is one that the connector adds, and no column of the row."""
        if name == DELETED or self._added_names:
            return name == DELETED or name in self._added_names
        prefix = self.envelope.prefix
        if not prefix or not name.startswith(prefix) or name in self._given_names:
            return False
        return name.removeprefix(prefix) in USUAL_ADDED_FIELDS

    def _metadata(self, fields: Mapping[str, msgspec.Raw]) -> dict[str, Any]:
        """Return the fields that the connector adds, without their prefix; `__deleted` has none of the prefix that others are given."""
        names = {name: self._added_names.get(name, name.removeprefix(self.envelope.prefix)) for name in fields if self._is_metadata(name)}
        return {"deleted" if name == DELETED else field: _ANY.decode(fields[name]) for name, field in names.items()}

    def _sequence_of(self, text: bytes, metadata: Mapping[str, Any]) -> str:
        if self.envelope.sequence:
            return named_sequence(text, self.envelope)
        of_source = {name.removeprefix("source_"): value for name, value in metadata.items() if name.startswith("source_")}
        source = {**metadata, "ts_ms": None, **of_source}  # a bare ts_ms is the connector's clock
        named = Source(**{name: source.get(name) for name in Source.__struct_fields__})
        return source_sequence(named, metadata.get("op"), self.envelope)


def _is_deletion(metadata: Mapping[str, Any]) -> bool:
    return str(metadata.get("deleted", "false")).lower() == "true" or metadata.get("op") == "d"


def _is_of_heartbeat(key: bytes | None) -> bool:
    """Tell whether a key is that of Debezium's heartbeats, which name the server: a table may have the one column ts_ms, too."""
    if key is None or b'"serverName"' not in key:
        return False
    try:
        return set(fields_of(unwrapped(key)[0], "the key")) == {"serverName"}
    except NoEvent:
        return False


def _columns(schema: bytes, part: str) -> tuple[Column, ...]:
    """Return the columns that Connect's schema of an event, or one of its fields, names."""
    try:
        found = _ANY.decode(schema)
        fields = found.get("fields", ()) if isinstance(found, dict) else ()
        row = next((one for one in fields if one.get("field") == part), found)
        columns = () if row.get("type") == "string" else columns_of_connect_schema(row)
        RowConverter(columns)  # each name is allowed once
    except (ValueError, AttributeError, TypeError, msgspec.DecodeError) as error:
        message = f"the event's schema cannot be read: {error}"
        raise NoEvent(message) from None
    return columns


def _event(value: bytes) -> _Event | None:
    """Return the envelope of a value, without Connect's schema; None for one that says null."""
    try:
        event = None if value.strip() == NULL else _EVENT.decode(value)
        if event is not None and event.op is None and bytes(event.payload):
            payload, schema = bytes(event.payload), event.schema
            event = None if payload.strip() == NULL else _EVENT.decode(payload)
            if event is not None:
                event.schema = schema
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message = f"the value is no envelope of Debezium ({error}): {shown(value)}"
        raise NoEvent(message) from None
    return event
