"""The Connect schema of an Avro schema, as Connect's Avro converter makes it.

```
 {"type": "bytes", "logicalType": "decimal", "scale": 2, "precision": 9}     bytes   org.apache.kafka.connect.data.Decimal   scale 2
 {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}         int64   io.debezium.time.MicroTimestamp
 ["null", "string"]                                                          string, optional
 ["int", "string"]                                                           struct {int, string}, each of them optional
```

`connect.name`, `connect.version`, `connect.parameters`, `connect.default`, `connect.doc` and `connect.type` are what Connect left in the
schema when it wrote it. Avro's logical types in microseconds and nanoseconds, which Connect's converter drops, get Debezium's names; their
parameter `avro.logicalType` tells a moment (`timestamp-micros`) from a local time (`local-timestamp-micros`).
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

from lastword.change_data.registry import connect
from lastword.change_data.registry.avro import CONNECT, AvroField, AvroType
from lastword.change_data.registry.connect import ConnectSchema, as_field, connect_schema

_TYPES: Final = {
    "boolean": "boolean",
    "int": "int32",
    "long": "int64",
    "float": "float",
    "double": "double",
    "bytes": "bytes",
    "fixed": "bytes",
    "string": "string",
    "enum": "string",
}
#: Names that Connect's own converter gives.
_LOGICAL: Final = {
    ("int", "date"): connect.DATE,
    ("int", "time-millis"): connect.TIME,
    ("long", "timestamp-millis"): connect.TIMESTAMP,
}
#: Names of Debezium, for what Connect has no name.
_DEBEZIUM: Final = {
    ("long", "timestamp-micros"): connect.MICRO_TIMESTAMP,
    ("long", "timestamp-nanos"): connect.NANO_TIMESTAMP,
    ("long", "local-timestamp-millis"): connect.DEBEZIUM_TIMESTAMP,
    ("long", "local-timestamp-micros"): connect.MICRO_TIMESTAMP,
    ("long", "local-timestamp-nanos"): connect.NANO_TIMESTAMP,
    ("long", "time-micros"): connect.MICRO_TIME,
    ("string", "uuid"): connect.UUID,
}
_DEFAULT_PRECISION: Final = 64
_TEXT: Final = "string"


def connect_schema_of(schema: AvroType) -> ConnectSchema:
    """Return the Connect schema of an Avro schema."""
    return _Converter().convert(schema)


class _Converter:
    def __init__(self) -> None:
        #: The records that contain the type at hand.
        self._open: list[AvroType] = []

    def convert(self, schema: AvroType, *, optional: bool = False, default: Any = None) -> ConnectSchema:
        """Convert a type; `default` is that of the field which has it."""
        if schema.kind == "union":
            return self._union(schema)
        if schema.kind == "null":
            return connect_schema("string", optional=True)
        if schema in self._open:
            return connect.any_value(optional=optional, doc=f"{schema.name} within itself")
        attributes = schema.attributes
        parts: dict[str, Any] = {}
        if schema.kind == "record":
            type_name = "struct"
            self._open.append(schema)
            parts["fields"] = [self._field(field) for field in schema.fields]
            self._open.pop()
        elif schema.kind == "map":
            type_name = "map"
            parts.update(keys=connect_schema(_TEXT), values=self.convert(schema.inner[0]))
        elif schema.kind == "array" and schema.inner[0].is_map_entry:
            type_name = "map"
            entry = {field.name: field.type for field in schema.inner[0].fields}
            parts.update(keys=self.convert(entry["key"]), values=self.convert(entry["value"]))
        elif schema.kind == "array":
            type_name = "array"
            parts["items"] = self.convert(schema.inner[0])
        else:
            type_name = _TYPES[schema.kind]
            if schema.kind == "int" and "connect.type" in attributes and "logicalType" not in attributes:
                type_name = connect.connect_type(attributes["connect.type"])
        logical, parameters = _meaning(schema)
        given = attributes.get("connect.default") if default is None else default
        return connect_schema(
            type_name,
            optional=optional,
            name=_name(schema) or logical,
            version=attributes.get("connect.version", 1 if logical else None),
            parameters=parameters | _texts(attributes.get("connect.parameters")),
            doc=attributes.get("connect.doc"),
            default=_default(schema, given),
            **parts,
        )

    def _field(self, field: AvroField) -> ConnectSchema:
        schema = self.convert(field.type, default=field.attributes.get("default"))
        parameters = schema.get("parameters", {}) | _texts(field.attributes.get("connect.parameters"))
        return as_field(field.name, {**schema, "parameters": parameters} if parameters else schema)

    def _union(self, schema: AvroType) -> ConnectSchema:
        other = schema.nullable
        if other is not None:
            return self.convert(other, optional=True)
        if len(schema.inner) == 1:
            return self.convert(schema.inner[0])
        branches = [branch for branch in schema.inner if branch.kind != "null"]
        fields = [as_field(name, self.convert(branch, optional=True)) for name, branch in zip(schema.branch_names, branches, strict=True)]
        return connect_schema("struct", optional=len(branches) < len(schema.inner), name=f"{CONNECT}.Union", fields=fields)


def _name(schema: AvroType) -> str | None:
    """Return the name that Connect gave a type, or its own one if it is not that of a schema without a name."""
    name = schema.attributes.get("connect.name")
    if name is None and schema.kind in {"record", "enum", "fixed"} and schema.attributes.get("logicalType") != "decimal":
        name = schema.name
    return None if name is None or name.startswith(f"{CONNECT}.ConnectDefault") else name


def _meaning(schema: AvroType) -> tuple[str | None, dict[str, str]]:
    """Return the logical name of a type, and the parameters that belong to it."""
    attributes = schema.attributes
    parameters: dict[str, str] = {}
    if schema.kind == "fixed":
        parameters["connect.fixed.size"] = str(attributes["size"])
    if schema.kind == "enum":
        parameters[f"{CONNECT}.Enum"] = schema.name
        parameters.update({f"{CONNECT}.Enum.{symbol}": symbol for symbol in attributes["symbols"]})
    logical = attributes.get("logicalType")
    if logical == "decimal" and schema.kind in {"bytes", "fixed"}:
        parameters[connect.SCALE] = str(attributes.get("scale", 0))
        if attributes.get("precision", _DEFAULT_PRECISION) != _DEFAULT_PRECISION:
            parameters[connect.PRECISION] = str(attributes["precision"])
        return connect.DECIMAL, parameters
    key = (schema.kind, str(logical))
    if key in _DEBEZIUM:
        return _DEBEZIUM[key], {**parameters, "avro.logicalType": key[1]}
    return _LOGICAL.get(key), parameters


def _texts(parameters: Any) -> dict[str, str]:
    return {name: str(value) for name, value in parameters.items()} if isinstance(parameters, Mapping) else {}


def _default(schema: AvroType, value: Any) -> Any:  # noqa: PLR0911  one for each kind of type
    """Return a default as JsonConverter writes it. In a schema of Avro bytes are a text, with one character for each byte."""
    if value is None:
        return None
    if schema.kind in {"bytes", "fixed"}:
        try:
            return base64.b64encode(value.encode("latin-1")).decode()
        except (AttributeError, UnicodeEncodeError):
            return None
    if schema.kind == "union":
        return _default(schema.inner[0], value)
    if schema.kind == "record" and isinstance(value, Mapping):
        return {field.name: _default(field.type, value.get(field.name)) for field in schema.fields}
    if schema.kind == "array" and isinstance(value, list) and not schema.inner[0].is_map_entry:
        return [_default(schema.inner[0], item) for item in value]
    if schema.kind == "map" and isinstance(value, Mapping):
        return {name: _default(schema.inner[0], item) for name, item in value.items()}
    return value
