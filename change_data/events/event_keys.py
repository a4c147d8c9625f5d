"""Keys of change events in canonical JSON: the same row has the same key from every connector, two rows have two keys.

```
 key                                       format    canonical
 {"b":1, "a":1.0}                          json      {"a":1,"b":1}
 {"schema":{…},"payload":{"id":5}}         json      {"id":5}
 {"id":"ARI="}, by its schema a decimal    json      {"id":"2.74"}       whatever its scale
 1.10                                      json      1.10                a number by itself keeps its text
 1.10                                      string    "1.10"
 00 00 00 00 00 00 00 05                   long      5
```

The formats are those of Kafka's serializers and Connect's converters. `json` is what JsonConverter writes, or any text. None (the empty
text) is `json`, or a frame of the schema registry that the source has, which comes here as JSON.
"""

from __future__ import annotations

import math
import struct
from base64 import b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from lastword.change_data.columns.column_types import ArrayType, Column, DecimalType, MapType, Misfit, StructType
from lastword.change_data.columns.connect_schema import columns_of_connect_schema
from lastword.change_data.columns.json_rows import CANONICAL_KEY, NULL, NoEvent, canonical_json, fields_of, json_text, split_schema
from lastword.change_data.columns.row_converter import RowConverter

if TYPE_CHECKING:
    from lastword.change_data.columns.column_types import DataType

KeyFormat = Literal["", "json", "string", "short", "integer", "long", "float", "double", "bytes"]

_NUMBERS: Final = {"short": ">h", "integer": ">i", "long": ">q", "float": ">f", "double": ">d"}
#: The column that stands for a key which is one value and no row.
_VALUE: Final = "key"


@dataclass(frozen=True, slots=True, eq=False)
class FrameType:
    """The type of what a frame of a schema registry holds; each object stands for itself, as a schema does."""

    data_type: DataType


#: Connect's schema of a key or a value as JSON, empty for none; or the type of a frame.
Schema: TypeAlias = bytes | FrameType


class KeyReader:
    """Reads the keys of a batch, each different one once."""

    def __init__(self, key_format: KeyFormat = "") -> None:
        """Read keys of a format."""
        self._format: KeyFormat = key_format
        self._known: dict[tuple[bytes, Schema], bytes] = {}
        self._decimals: dict[Schema, _Decimals] = {}

    def read(self, key: bytes, schema: Schema = b"") -> bytes:
        """Return a key as canonical JSON.

        Args:
            key: The key's bytes.
            schema: The schema of the key, if the key does not carry it.

        Raises:
            NoEvent: The key is not of its format.
        """
        known = self._known.get((key, schema))
        if known is None:
            known = self._known[key, schema] = (
                self._read_json(key, schema) if self._format in {"", "json"} else _read_plain(key, self._format)
            )
        return known

    def _read_json(self, key: bytes, schema: Schema) -> bytes:
        if not schema and CANONICAL_KEY(key):
            return key
        payload, own_schema = split_schema(key)
        if not (own_schema or schema):
            return canonical_json(key)
        schema = own_schema or schema
        if has_decimals(schema.data_type) if isinstance(schema, FrameType) else b"Decimal" in schema:
            if schema not in self._decimals:
                self._decimals[schema] = _Decimals(schema)
            payload = self._decimals[schema].convert(payload)
        return canonical_json(payload)


def canonical_key(key: bytes) -> bytes:
    """Return a key of the format `json` as canonical JSON; one that is no JSON is a text: its JSON string."""
    return KeyReader().read(key)


def plain_key(key: bytes, key_format: KeyFormat) -> bytes:
    """Return the key of a row as text: a number's digits, a text and bytes as they are, JSON in canonical form."""
    if key_format == "bytes":
        return key
    read = KeyReader(key_format).read(key)
    return msgspec.json.decode(read, type=str).encode() if key_format == "string" else read


def _read_plain(key: bytes, key_format: KeyFormat) -> bytes:
    if key_format == "bytes":
        return json_text(b64encode(key).decode())
    if key_format == "string":
        try:
            return json_text(key.decode())
        except UnicodeDecodeError:
            message = f"the key is not UTF-8, which key.format = string asks for: {key[:120]!r}"
            raise NoEvent(message) from None
    try:
        (number,) = struct.unpack(_NUMBERS[key_format], key)
    except struct.error:
        size = struct.calcsize(_NUMBERS[key_format])
        message = f"the key has {len(key)} bytes, and key.format = {key_format} asks for {size}: {key[:120]!r}"
        raise NoEvent(message) from None
    return json_text(number if math.isfinite(number) else str(number))


class _Decimals:
    """The decimals of a key, by its schema: Connect writes them as base64 of a number without its scale, which may change."""

    def __init__(self, schema: Schema) -> None:
        if isinstance(schema, FrameType):
            key_type = schema.data_type
        else:
            try:
                row = {"type": "struct", "fields": [{**msgspec.json.decode(schema), "field": _VALUE}]}
                key_type = columns_of_connect_schema(row)[0].data_type
            except (TypeError, ValueError, msgspec.DecodeError) as error:
                message = f"the schema of the key cannot be read: {error}"
                raise NoEvent(message) from None
        self._is_value = not isinstance(key_type, StructType)
        columns = key_type.fields if isinstance(key_type, StructType) else (Column(_VALUE, key_type),)
        self._types = {column.name: column.data_type for column in columns if has_decimals(column.data_type)}
        self._converter = RowConverter([Column(name, data_type) for name, data_type in self._types.items()])

    def convert(self, key: bytes) -> bytes:
        """Return a key with its decimals as their shortest text."""
        if key == NULL:
            return key
        try:
            row = self._converter.convert(b'{"%b":%b}' % (_VALUE.encode(), key) if self._is_value else key)
        except Misfit as error:
            message = f"the key does not fit its schema: {error}"
            raise NoEvent(message) from None
        fields = {name: bytes(text) for name, text in fields_of(row, "the key").items()}
        texts = {name: shorten(text, self._types.get(name)) for name, text in fields.items()}
        if self._is_value:
            return texts[_VALUE]
        return msgspec.json.encode({name: msgspec.Raw(text) for name, text in texts.items()})


def has_decimals(data_type: DataType) -> bool:
    """Tell whether a type is a decimal, or has one inside it."""
    if isinstance(data_type, StructType):
        return any(has_decimals(field.data_type) for field in data_type.fields)
    if isinstance(data_type, (ArrayType, MapType)):
        return has_decimals(data_type.element if isinstance(data_type, ArrayType) else data_type.value)
    return isinstance(data_type, DecimalType)


def shorten(text: bytes, data_type: DataType | None) -> bytes:
    """Return a value in canonical JSON with its decimals without the zeros at their end, which only the scale of the type asks for."""
    if data_type is None or text == NULL or not has_decimals(data_type):
        return text
    if isinstance(data_type, DecimalType):
        return text[:-1].rstrip(b"0").rstrip(b".") + b'"' if text[:1] == b'"' and b"." in text else text
    if isinstance(data_type, ArrayType):
        parts = [shorten(bytes(part), data_type.element) for part in msgspec.json.decode(text, type=list[msgspec.Raw])]
        return msgspec.json.encode([msgspec.Raw(part) for part in parts])
    types = {field.name: field.data_type for field in data_type.fields} if isinstance(data_type, StructType) else {}
    inner = data_type.value if isinstance(data_type, MapType) else None
    fields = {name: shorten(bytes(part), types.get(name, inner)) for name, part in fields_of(text, "the key").items()}
    return msgspec.json.encode({name: msgspec.Raw(part) for name, part in fields.items()})
