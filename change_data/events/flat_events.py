"""Change events that ExtractNewRecordState has flattened: the row itself is the value; the connector adds metadata to it, or as headers.

```
 value                                            headers                          row of the log
 {"id":1,"v":"a","__op":"u","__source_lsn":7}     none                             {"id":1} = {"v":"a",…} at 7
 {"id":1,"v":"a"}                                 __op u, __source_lsn 7           the same
 null                                             __op d, __source_lsn 8           {"id":1} = ∅ at 8
 null                                             none                             {"id":1} = ∅, behind the newest event of its key
 {"id":1,"v":"a","__deleted":"true"}              any                              {"id":1} = ∅
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from lastword.change_data.columns.json_rows import NULL, NoEvent, fields_of, split_schema
from lastword.change_data.events.envelopes import DELETED, HEARTBEAT, TOMBSTONE, USUAL_ADDED_FIELDS, Envelope, added_names
from lastword.change_data.events.event_headers import header_fields, header_names
from lastword.change_data.events.event_positions import NO_POSITION, SourceBlock, named_sequence, source_sequence
from lastword.change_data.events.event_reader import EventReader
from lastword.compaction.order.source_positions import SourcePosition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lastword.change_data.columns.column_types import Column
    from lastword.change_data.events.event_headers import Headers
    from lastword.change_data.events.event_keys import FrameType, Schema

_ANY: Final = msgspec.json.Decoder()
_PLAIN: Final = msgspec.json.Encoder()


class FlatReader(EventReader):
    """Events that ExtractNewRecordState has flattened."""

    def __init__(
        self, envelope: Envelope, schemas: Mapping[int, FrameType], key_schemas: Mapping[int, FrameType] | None, headers: Headers
    ) -> None:
        """Begin with no events; the schemas are those of frames, by row number, and `headers` those of the records that are read."""
        super().__init__(envelope, schemas, key_schemas)
        self._added_names, self._headers, self._header_names = added_names(envelope), headers, header_names(envelope)

    def take(self, row: int, key: bytes | None, value: bytes | None) -> None:
        """Add a row, or what the event is instead."""
        text, schema = (NULL, b"") if value is None else self._unwrap(value)
        if text == NULL:
            self._tombstone(row, key)
            return
        fields = fields_of(text, "the value")
        if set(fields) == {"ts_ms"} and _is_of_heartbeat(key):
            self.events.others[row] = HEARTBEAT
            return
        metadata = self._metadata(row, fields)
        self.take_time(row, metadata.get("source_ts_ms"))
        if metadata.get("op") == "t":
            self.truncate(row, self._sequence_of(text, metadata))
            return
        columns = {name: part for name, part in fields.items() if not self._is_metadata(name)}
        bare = self.canonical_row(_PLAIN.encode(columns) if len(columns) < len(fields) else text, self.schemas.get(row) or schema)
        is_deletion = _is_deletion(metadata)
        sequence, own_key = self._sequence_of(text, metadata), self.key_of(row, key, bare, is_before=is_deletion)
        if is_deletion:
            self.events.add(row, own_key, None, sequence)
        else:
            self.learn(row, sequence)
            self.events.add(row, own_key, bare, sequence, self.unresolved_columns(bare))

    def _tombstone(self, row: int, key: bytes | None) -> None:
        """Take a null value: a deletion, at the position that its headers say; or, if they say so, a TRUNCATE."""
        metadata = self._metadata(row, {})
        self.take_time(row, metadata.get("source_ts_ms"))
        op, sequence = metadata.get("op") or "d", NO_POSITION if self.envelope.sequence else self._position_of(metadata)
        if op == "t":
            self.truncate(row, sequence)
        elif op != "d":
            message = f"the value is null, and a header says op {op!r}: a null value is a deletion (d) or a TRUNCATE (t)"
            raise NoEvent(message)
        elif self.envelope.delete_tombstone_handling_mode == "rewrite-with-tombstone":
            self.events.others[row] = TOMBSTONE
        elif self.envelope.key:
            message = "a tombstone has no row to take the key's columns from; let the connector send deletions as rows (rewrite)"
            raise NoEvent(message)
        else:
            self.events.add(row, self.key_of(row, key, NULL, is_before=True), None, sequence)
            position = SourcePosition.of(sequence)
            if not (position.order or position.identity):
                self.events.guessed.add(len(self.events.row) - 1)

    def identify(self, row: int, key: bytes | None, value: bytes) -> tuple[bytes | None, str]:
        """Return key and sequence of an event by its key's columns and its metadata alone."""
        text, schema = self._unwrap(value)
        metadata = self._metadata(row, fields_of(text, "the value"))
        if self.envelope.key:
            text = self.identifying_columns(text, self.schemas.get(row) or schema)
        return self.key_of(row, key, text, is_before=_is_deletion(metadata)), self._sequence_of(text, metadata)

    def columns_of(self, schema: Schema) -> tuple[Column, ...]:
        """Return the columns of the row, without the fields that the connector adds."""
        return tuple(column for column in super().columns_of(schema) if not self._is_metadata(column.name))

    def _unwrap(self, value: bytes) -> tuple[bytes, bytes]:
        """Return a value and Connect's schema of it; a row whose columns, as the source gives them, are called so has none."""
        if {"schema", "payload"} <= self._given_names:
            return value.strip(), b""
        return split_schema(value)

    def _is_metadata(self, name: str) -> bool:
        """Tell whether a field is one that the connector adds, and no column of the row."""
        if name == DELETED or self._added_names:
            return name == DELETED or name in self._added_names
        prefix = self.envelope.prefix
        if not prefix or not name.startswith(prefix) or name in self._given_names:
            return False
        return name.removeprefix(prefix) in USUAL_ADDED_FIELDS

    def _metadata(self, row: int, fields: Mapping[str, msgspec.Raw]) -> dict[str, Any]:
        """Return the fields that the connector adds to the value or as headers, without their prefix; `__deleted` has another one."""
        names = {name: self._added_names.get(name, name.removeprefix(self.envelope.prefix)) for name in fields if self._is_metadata(name)}
        values = {"deleted" if name == DELETED else field: _ANY.decode(fields[name]) for name, field in names.items()}
        return {**header_fields(self._headers.get(row, ()), self._header_names, values), **values}

    def _sequence_of(self, text: bytes, metadata: Mapping[str, Any]) -> str:
        if self.envelope.sequence:
            return named_sequence(text, self.envelope)
        return self._position_of(metadata)

    def _position_of(self, metadata: Mapping[str, Any]) -> str:
        of_source = {name.removeprefix("source_"): value for name, value in metadata.items() if name.startswith("source_")}
        source = {**metadata, "ts_ms": None, **of_source}  # a bare ts_ms is the connector's clock
        named = SourceBlock(**{name: source.get(name) for name in SourceBlock.__struct_fields__})
        return source_sequence(named, metadata.get("op"), self.envelope)


def _is_deletion(metadata: Mapping[str, Any]) -> bool:
    return str(metadata.get("deleted", "false")).lower() == "true" or metadata.get("op") == "d"


def _is_of_heartbeat(key: bytes | None) -> bool:
    """Tell whether a key is that of Debezium's heartbeats, which name the server: a table may have the one column ts_ms, too."""
    if key is None or b'"serverName"' not in key:
        return False
    try:
        return set(fields_of(split_schema(key)[0], "the key")) == {"serverName"}
    except NoEvent:
        return False
