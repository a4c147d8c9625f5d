"""Change events that ExtractNewRecordState has flattened: the row itself is the value, and the connector adds fields of metadata to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from lastword.compaction.rows.envelopes import DELETED, HEARTBEAT, USUAL_ADDED_FIELDS, Envelope, added_names
from lastword.compaction.rows.event_positions import Source, named_sequence, source_sequence
from lastword.compaction.rows.event_reader import EventReader
from lastword.compaction.rows.json_rows import NULL, NoEvent, fields_of, unwrapped

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lastword.compaction.rows.column_types import Column

_ANY: Final = msgspec.json.Decoder()
_PLAIN: Final = msgspec.json.Encoder()


class FlatReader(EventReader):
    """Events that ExtractNewRecordState has flattened."""

    def __init__(self, envelope: Envelope, schemas: Mapping[int, bytes], key_schemas: Mapping[int, bytes] | None = None) -> None:
        """Begin with no events; the schemas are Connect's, by row number, as JSON."""
        super().__init__(envelope, schemas, key_schemas)
        self._added_names = added_names(envelope)

    def take(self, row: int, key: bytes | None, value: bytes | None) -> None:
        """Add a row, or what the event is instead."""
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
        """Return key and sequence of an event by its key's columns and its metadata alone."""
        text, schema = self._unwrapped(value)
        metadata = self._metadata(fields_of(text, "the value"))
        if self.envelope.key:
            text = self.identifying_columns(text, self.schemas.get(row) or schema)
        return self.key_of(row, key, text, is_before=_is_deletion(metadata)), self._sequence_of(text, metadata)

    def columns_of(self, schema: bytes) -> tuple[Column, ...]:
        """Return the columns of the row, without the fields that the connector adds."""
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
