"""JSON Schema of a registry: the payload of a frame is the JSON text itself, and the schema says what Connect would call its values.

```
 {"type": "object", "title": "shop.Value", "properties": {                             struct shop.Value
    "id":   {"connect.index": 0, "type": "integer", "connect.type": "int32"},            id: int32
    "note": {"connect.index": 1, "oneOf": [{"type": "null"}, {"type": "string"}]}}}      note: string, optional
```

A schema that Connect wrote has `connect.type` and `connect.index`; it marks a field that may be null with `oneOf`. In any other schema a
field that is not `required` may be absent, which is the same to a reader. What may be of several kinds is a value of any kind
(`connect.any_value`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from lastword.change_data.registry import connect
from lastword.change_data.registry.connect import ConnectSchema, as_field, as_optional, connect_schema

_Schema: TypeAlias = Mapping[str, Any]

_TYPES: Final = {"integer": "int64", "number": "double", "boolean": "boolean", "string": "string"}
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


def connect_schema_of(text: str, references: Sequence[tuple[str, str]] = ()) -> ConnectSchema:
    """Return the Connect schema of a JSON Schema.

    Args:
        text: The schema.
        references: Name and text of each schema that a `$ref` of it leads to.

    Raises:
        ValueError: It is no JSON Schema, or a `$ref` leads nowhere.
    """
    documents = {name: json.loads(part) for name, part in [*references, ("", text)]}
    try:
        return _Converter(documents).convert(documents[""], "")
    except (TypeError, AttributeError, KeyError) as error:
        message = f"a part of the schema is not as JSON Schema has it ({error})"
        raise ValueError(message) from None


class _Converter:
    """Converts one schema; `documents` are the schemas by name, the schema itself under the empty one."""

    def __init__(self, documents: Mapping[str, Any]) -> None:
        self._documents = documents
        self._open: list[tuple[str, str]] = []

    def convert(self, schema: Any, document: str) -> ConnectSchema:
        if not isinstance(schema, Mapping) or not schema:
            return connect.any_value()
        reference = schema.get("$ref")
        if isinstance(reference, str):
            return self._reference(reference, document)
        branches, nullable = _branches(schema)
        if branches is not None:
            converted = self.convert(branches[0], document) if len(branches) == 1 else connect.any_value()
            return as_optional(converted) if nullable else converted
        converted = self._all_of(schema, document) if isinstance(schema.get("allOf"), list) else self._plain(schema, document)
        return as_optional(converted) if nullable else converted

    def _plain(self, schema: _Schema, document: str) -> ConnectSchema:
        """Convert a schema that is neither a choice nor a reference."""
        given, kind = schema.get("connect.type"), _kind(schema)
        parts: dict[str, Any] = {}
        parameters = {name: str(value) for name, value in (schema.get("connect.parameters") or {}).items()}
        if given == "map":
            type_name = "map"
            parts.update(self._map(schema, document))
        elif given is not None:
            type_name = connect.connect_type(given)
        elif kind == "array":
            type_name = "array"
            parts["items"] = self.convert(schema.get("items"), document)
        elif kind == "object":
            extra = schema.get("additionalProperties")
            if not schema.get("properties") and isinstance(extra, Mapping):
                type_name = "map"
                parts.update(self._map(schema, document))
            elif not schema.get("properties"):
                return connect.any_value()
            else:
                type_name = "struct"
                parts["fields"] = self._fields(schema, document)
        elif kind in _TYPES:
            type_name = _TYPES[kind]
        else:
            return connect.any_value()
        return connect_schema(
            type_name,
            name=schema.get("title"),
            version=schema.get("connect.version"),
            parameters=parameters,
            doc=schema.get("description"),
            default=schema.get("default"),
            **parts,
        )

    def _fields(self, schema: _Schema, document: str) -> list[ConnectSchema]:
        """Convert the properties of an object, in the order of `connect.index`."""
        required = schema["required"] if isinstance(schema.get("required"), list) else None
        fields = []
        for position, (name, part) in enumerate(schema["properties"].items()):
            index = part.get("connect.index") if isinstance(part, Mapping) else None
            converted = self.convert(part, document)
            # Connect lists no required fields: what may be null says so itself.
            if name not in (required or ()) and (required is not None or index is None):
                converted = as_optional(converted)
            fields.append((position if index is None else index, as_field(name, converted)))
        return [field for _, field in sorted(fields, key=lambda one: one[0])]

    def _map(self, schema: _Schema, document: str) -> dict[str, ConnectSchema]:
        """Convert a map: an object of any properties, or an array of pairs if its keys are not texts."""
        entry = schema.get("items")
        if _kind(schema) == "array" and isinstance(entry, Mapping):
            pair = entry.get("properties", {})
            return {"keys": self.convert(pair.get("key"), document), "values": self.convert(pair.get("value"), document)}
        return {"keys": connect_schema("string"), "values": self.convert(schema.get("additionalProperties"), document)}

    def _reference(self, reference: str, document: str) -> ConnectSchema:
        target, where = self._resolve(reference, document)
        if (where, reference) in self._open:  # a struct within itself
            return connect.any_value(doc=f"{reference} within itself")
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
            found = _with_id(target, f"#{pointer}")
        else:
            found = target
            for part in pointer.split("/")[1:]:
                key = part.replace("~1", "/").replace("~0", "~")
                found = (
                    found.get(key) if isinstance(found, Mapping) else found[int(key)] if isinstance(found, list) and key.isdigit() else None
                )
        if found is None:
            message = f"$ref {reference!r} leads nowhere"
            raise ValueError(message)
        return found, where

    def _all_of(self, schema: _Schema, document: str) -> ConnectSchema:
        """Convert a schema that is all of several: a struct with the fields of all of them, if they are structs."""
        own = {name: value for name, value in schema.items() if name != "allOf"}
        parts = [self.convert(part, document) for part in schema["allOf"]]
        if _kind(own):
            parts.append(self._plain(own, document))
        described = [part for part in parts if part.get("name") != connect.ANY_VALUE] or [connect.any_value()]
        fields = {field["field"]: field for part in described for field in part.get("fields", [])}
        merged = {**described[0], **({"fields": list(fields.values())} if fields else {})}
        return {**merged, "name": schema["title"]} if "title" in schema else merged


def _kind(schema: _Schema) -> str:
    """Return the one type of a schema; empty if it may be of several."""
    kinds = schema.get("type")
    listed = [kind for kind in ([kinds] if isinstance(kinds, str) else kinds or []) if kind != "null"]
    if not listed and "properties" in schema:
        return "object"
    if not listed and "enum" in schema:
        listed = list({"string" if isinstance(value, str) else "" for value in schema["enum"] if value is not None})
    return listed[0] if len(listed) == 1 else ""


def _branches(schema: _Schema) -> tuple[list[Any] | None, bool]:
    """Return the choices of a schema but null, or None if it has none, and whether null is allowed."""
    for word in ("oneOf", "anyOf"):
        choices = schema.get(word)
        if isinstance(choices, list):
            others = [choice for choice in choices if not (isinstance(choice, Mapping) and choice.get("type") == "null")]
            return others or [{}], len(others) < len(choices)
    kinds = schema.get("type")
    return None, (isinstance(kinds, list) and "null" in kinds) or None in (schema.get("enum") or [])


def _with_id(schema: Any, wanted: str) -> Any:
    """Return the part of a schema that has an id; None if there is none."""
    if isinstance(schema, Mapping):
        if wanted in {schema.get("$id"), schema.get("id")}:
            return schema
        return next((found for part in schema.values() if (found := _with_id(part, wanted)) is not None), None)
    if isinstance(schema, list):
        return next((found for part in schema if (found := _with_id(part, wanted)) is not None), None)
    return None
