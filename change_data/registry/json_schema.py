"""JSON Schema of a registry: the payload of a frame is the JSON text itself, and the schema says the columns' types of its values.

```
 {"type": "object", "title": "shop.Value", "properties": {                             struct
    "id":   {"connect.index": 0, "type": "integer", "connect.type": "int32"},            id: int
    "note": {"connect.index": 1, "oneOf": [{"type": "null"}, {"type": "string"}]}}}      note: string
```

A schema that Connect wrote has `connect.type` and `connect.index`, and the logical name as `title`. What may be of several kinds is a value
of any kind.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from lastword.change_data.columns.column_types import ArrayType, Column, MapType, ScalarType, StructType
from lastword.change_data.columns.connect_schema import ANY_VALUE, connect_type, logical_type

if TYPE_CHECKING:
    from lastword.change_data.columns.column_types import DataType

_Schema: TypeAlias = Mapping[str, Any]

_TYPES: Final = {"integer": "int64", "number": "double", "boolean": "boolean", "string": "string"}
#: Kinds and encodings of values that are texts.
_TEXTS: Final = frozenset({"string", "enum", "uuid", "text", "zoned_text"})
#: Checks that a text is JSON without building its values.
_TEXT: Final = msgspec.json.Decoder(msgspec.Raw)


def read_json(data: bytes, at: int) -> bytes:
    """Return the JSON text that begins at a position.

    Raises:
        ValueError: It is no JSON, or not UTF-8.
    """
    text = data[at:]
    try:
        _TEXT.decode(text)
        if not text.isascii():
            text.decode()
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message = f"the payload is no JSON ({error})"
        raise ValueError(message) from None
    return text


def data_type_of(text: str, references: Sequence[tuple[str, str]] = ()) -> DataType:
    """Return the type of a column whose values a JSON Schema describes.

    Args:
        text: The schema.
        references: Name and text of each schema that a `$ref` of it leads to.

    Raises:
        ValueError: It is no JSON Schema, or a `$ref` leads nowhere.
    """
    documents = {name: json.loads(part) for name, part in [*references, ("", text)]}
    try:
        return _JsonSchemaTypes(documents).convert(documents[""], "")
    except (TypeError, AttributeError, KeyError) as error:
        message = f"a part of the schema is not as JSON Schema has it ({error})"
        raise ValueError(message) from None


class _JsonSchemaTypes:
    """Converts one schema; `documents` are the schemas by name, the schema itself under the empty one."""

    def __init__(self, documents: Mapping[str, Any]) -> None:
        self._documents = documents
        self._open: list[tuple[str, str]] = []

    def convert(self, schema: Any, document: str) -> DataType:
        if not isinstance(schema, Mapping) or not schema:
            return ANY_VALUE
        if isinstance(schema.get("$ref"), str):
            return self._reference(schema["$ref"], document)
        branches = _branches(schema)
        if branches is not None:
            return self.convert(branches[0], document) if len(branches) == 1 else ANY_VALUE
        return self._all_of(schema, document) if isinstance(schema.get("allOf"), list) else self._plain(schema, document)

    def _plain(self, schema: _Schema, document: str) -> DataType:
        """Convert a schema that is neither a choice nor a reference."""
        given, kind = schema.get("connect.type"), _kind(schema)
        unnamed = self._map(schema, document) if given == "map" else None if given is None else connect_type(given)
        if unnamed is None:
            unnamed = self._of_kind(schema, kind, document)
        if unnamed == ANY_VALUE and given is None:
            return unnamed
        return logical_type(schema.get("title"), schema.get("connect.parameters")) or unnamed

    def _of_kind(self, schema: _Schema, kind: str, document: str) -> DataType:
        if kind == "array":
            return ArrayType(self.convert(schema.get("items"), document))
        if kind == "object" and schema.get("properties"):
            return StructType(self._fields(schema, document))
        if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
            return self._map(schema, document)
        return connect_type(_TYPES[kind]) if kind in _TYPES else ANY_VALUE

    def _fields(self, schema: _Schema, document: str) -> tuple[Column, ...]:
        """Convert the properties of an object, in the order of `connect.index`."""
        fields = []
        for position, (name, part) in enumerate(schema["properties"].items()):
            index = part.get("connect.index") if isinstance(part, Mapping) else None
            fields.append((position if index is None else index, Column(name, self.convert(part, document))))
        return tuple(field for _, field in sorted(fields, key=lambda field: field[0]))

    def _map(self, schema: _Schema, document: str) -> DataType:
        """Convert a map: an object of any properties, or an array of pairs if its keys are not texts."""
        entry = schema.get("items")
        if _kind(schema) != "array" or not isinstance(entry, Mapping):
            return MapType(self.convert(schema.get("additionalProperties"), document))
        pair = entry.get("properties", {})
        key, value = (self.convert(pair.get(name), document) for name in ("key", "value"))
        return MapType(value) if isinstance(key, ScalarType) and (key.kind in _TEXTS or key.encoding in _TEXTS) else ANY_VALUE

    def _reference(self, reference: str, document: str) -> DataType:
        target, where = self._resolve(reference, document)
        if (where, reference) in self._open:  # a struct within itself
            return ANY_VALUE
        self._open.append((where, reference))
        try:
            return self.convert(target, where)
        finally:
            self._open.pop()

    def _resolve(self, reference: str, document: str) -> tuple[Any, str]:
        """Return what a `$ref` leads to, and the name of the document that it is in."""
        name, _, pointer = reference.partition("#")
        where = name or document
        if where not in self._documents:
            message = f"$ref {reference!r} leads to no schema that this one refers to"
            raise ValueError(message)
        target = self._documents[where]
        if pointer and not pointer.startswith("/"):
            node = _with_id(target, f"#{pointer}")
        else:
            node = target
            for part in pointer.split("/")[1:]:
                key = part.replace("~1", "/").replace("~0", "~")
                node = node.get(key) if isinstance(node, Mapping) else node[int(key)] if isinstance(node, list) and key.isdigit() else None
        if node is None:
            message = f"$ref {reference!r} leads nowhere"
            raise ValueError(message)
        return node, where

    def _all_of(self, schema: _Schema, document: str) -> DataType:
        """Convert a schema that is all of several: a struct with the fields of all of them, if they are structs."""
        own = {name: value for name, value in schema.items() if name != "allOf"}
        parts = [self.convert(part, document) for part in schema["allOf"]]
        if _kind(own):
            parts.append(self._plain(own, document))
        described = [part for part in parts if part != ANY_VALUE] or [ANY_VALUE]
        parameters = [part["connect.parameters"] for part in schema["allOf"] if isinstance(part, Mapping) and "connect.parameters" in part]
        named = logical_type(schema.get("title"), parameters[0] if parameters else None)
        if named is not None or not isinstance(described[0], StructType):
            return named or described[0]
        fields = {field.name: field for part in described if isinstance(part, StructType) for field in part.fields}
        return StructType(tuple(fields.values()))


def _kind(schema: _Schema) -> str:
    """Return the one type of a schema; empty if it may be of several."""
    kinds = schema.get("type")
    listed = [kind for kind in ([kinds] if isinstance(kinds, str) else kinds or []) if kind != "null"]
    if not listed and "properties" in schema:
        return "object"
    if not listed and "enum" in schema:
        listed = list({"string" if isinstance(value, str) else "" for value in schema["enum"] if value is not None})
    return listed[0] if len(listed) == 1 else ""


def _branches(schema: _Schema) -> list[Any] | None:
    """Return the choices of a schema but null, or None if it has none."""
    for word in ("oneOf", "anyOf"):
        choices = schema.get(word)
        if isinstance(choices, list):
            others = [choice for choice in choices if not (isinstance(choice, Mapping) and choice.get("type") == "null")]
            return others or [{}]
    return None


def _with_id(schema: Any, wanted: str) -> Any:
    """Return the part of a schema that has an id; None if there is none."""
    if isinstance(schema, Mapping):
        if wanted in {schema.get("$id"), schema.get("id")}:
            return schema
        return next((node for part in schema.values() if (node := _with_id(part, wanted)) is not None), None)
    if isinstance(schema, list):
        return next((node for part in schema if (node := _with_id(part, wanted)) is not None), None)
    return None
