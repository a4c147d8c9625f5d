"""What reading raw and flattened change events has in common: keys, typed rows, columns that were left out, and events that are refused.

`lastword.change_data.events.debezium` reads raw events, `lastword.change_data.events.flat_events` flattened ones.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from lastword.change_data.columns.column_types import DataType, Misfit, ScalarType, StructType
from lastword.change_data.columns.connect_schema import columns_of_connect_schema
from lastword.change_data.columns.json_rows import NESTED, NULL, NoEvent, canonical_object, document, excerpt, fields_of
from lastword.change_data.columns.row_converter import RowConverter
from lastword.change_data.events.envelopes import Envelope, Events, placeholders_of, signs_of
from lastword.change_data.events.event_keys import FrameType, KeyReader, Schema, shorten
from lastword.compaction.order.source_positions import SourcePosition
from lastword.compaction.rows.input_columns import ALERT, TRUNCATED
from lastword.compaction.rows.unchanged_columns import is_one_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lastword.change_data.columns.column_types import Column

_ANY: Final = msgspec.json.Decoder()
_PLAIN: Final = msgspec.json.Encoder()
#: The last millisecond of the year 9999.
_MAX_MS: Final = 253_402_300_799_999


#: Types of a row that is sent as a text, as MongoDB's.
_TEXTS: Final = (ScalarType("string"), ScalarType("json", "text"))


class EventReader(ABC):
    """Reads the events of one batch; what raw and flattened events have in common."""

    #: The field of an event's schema that is the row's; the empty text for all of it.
    part = ""

    @abstractmethod
    def take(self, row: int, key: bytes | None, value: bytes | None) -> None:
        """Add what an event is to `events`; raise `NoEvent` for one that cannot be read."""

    @abstractmethod
    def identify(self, row: int, key: bytes | None, value: bytes) -> tuple[bytes | None, str]:
        """Return the canonical key and the sequence of an event that cannot be read whole; raise `NoEvent` where that is not known."""

    def __init__(self, envelope: Envelope, schemas: Mapping[int, FrameType], key_schemas: Mapping[int, FrameType] | None = None) -> None:
        """Begin with no events; the schemas are those of frames, by row number."""
        self.envelope, self.schemas, self.events = envelope, schemas, Events()
        self._keys, self._key_schemas = KeyReader(envelope.key_format), key_schemas or {}
        self._unchanged = placeholders_of(envelope)
        self._has_sign = re.compile(b"|".join(re.escape(sign) for sign in sorted(signs_of(envelope)))).search
        self._given_columns = envelope.columns()
        self._given_names = frozenset(column.name for column in self._given_columns)
        self._given = self._converter(self._given_columns) if envelope.schema else None
        self._learnt: dict[Schema, RowConverter] = {}
        #: The converters of the key's columns alone, by the schema of an event.
        self._key_converters: dict[Schema, RowConverter] = {}
        #: By which columns the last row was converted.
        self._columns: tuple[Column, ...] = ()

    def read(self, keys: Sequence[bytes | None], values: Sequence[bytes | None]) -> Events:
        """Read the events of a batch one after the other."""
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
                self._refuse(row, key, value, f"the value is no envelope of Debezium ({error}): {excerpt(value or b'')}")
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

    def canonical_row(self, row: bytes, schema: Schema) -> bytes:
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

    def columns_of(self, schema: Schema) -> tuple[Column, ...]:
        """Return the columns of the row that the schema of an event names."""
        return _columns(schema, self.part)

    def learn(self, row: int, sequence: str) -> None:
        """Take note of the columns by which the row of an event was converted, if its own schema named them."""
        if self._columns:
            self.events.learn(self._columns, sequence, row)

    def _converter(self, columns: Sequence[Column]) -> RowConverter:
        on_misfit: Literal["error", "null"] = "null" if self.envelope.misfit == "null" else "error"
        return RowConverter(columns, on_misfit=on_misfit, placeholders=self._unchanged)

    def unresolved_columns(self, row: bytes) -> tuple[str, ...]:
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
        """Return the canonical form of a record's own key; None for null. Raises `NoEvent` for one that cannot be read."""
        if key is None:
            return None
        read = self._keys.read(key, self._key_schemas.get(row, b""))
        if read[:1] == b"{" and self._has_sign(read):
            self._check_placeholders(fields_of(read, "the key"))
        return read if read != NULL else None

    def identifying_columns(self, text: bytes, schema: Schema) -> bytes:
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


def _columns(schema: Schema, part: str) -> tuple[Column, ...]:
    """Return the columns that the schema of an event, or of one of its fields, names."""
    try:
        if isinstance(schema, FrameType):
            columns = _columns_of_type(schema.data_type, part)
            RowConverter(columns)  # each name is allowed once
            return columns
        struct = _ANY.decode(schema)
        fields = struct.get("fields", ()) if isinstance(struct, dict) else ()
        row = next((field for field in fields if field.get("field") == part), struct)
        columns = () if row.get("type") == "string" else columns_of_connect_schema(row)
        RowConverter(columns)  # each name is allowed once
    except (ValueError, AttributeError, TypeError, msgspec.DecodeError) as error:
        message = f"the event's schema cannot be read: {error}"
        raise NoEvent(message) from None
    return columns


def _columns_of_type(data_type: DataType, part: str) -> tuple[Column, ...]:
    """Return the columns of what a frame holds, or of one of its fields; none for a text. Raises `ValueError` for another type."""
    fields = data_type.fields if isinstance(data_type, StructType) else ()
    row = next((field.data_type for field in fields if field.name == part), data_type)
    if row not in _TEXTS and not isinstance(row, StructType):
        message = f"the schema of a row is of type {row}: allowed is a struct"
        raise ValueError(message)
    return row.fields if isinstance(row, StructType) else ()
