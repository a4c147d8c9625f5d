"""The words of a Connect schema, as JsonConverter writes it beside a value (`schemas.enable`), and its numbers.

```
 {"type": "struct", "optional": false, "name": "shop.Value", "version": 1, "fields": [
    {"type": "int64", "optional": false, "field": "id"},
    {"type": "bytes", "optional": true, "name": "org.apache.kafka.connect.data.Decimal", "version": 1,
     "parameters": {"scale": "2"}, "field": "price"},
    {"type": "map", "optional": false, "keys": {…}, "values": {…}, "field": "tags"},
    {"type": "array", "optional": false, "items": {…}, "field": "sizes"}]}
```

`name` says what a value means: the logical names of Connect and of Debezium are below. A struct within itself is a value of any kind, as
its schema would have no end.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

#: A Connect schema as JSON.
ConnectSchema: TypeAlias = dict[str, Any]

DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
DATE: Final = "org.apache.kafka.connect.data.Date"
TIME: Final = "org.apache.kafka.connect.data.Time"
TIMESTAMP: Final = "org.apache.kafka.connect.data.Timestamp"
DEBEZIUM_TIMESTAMP: Final = "io.debezium.time.Timestamp"
MICRO_TIMESTAMP: Final = "io.debezium.time.MicroTimestamp"
NANO_TIMESTAMP: Final = "io.debezium.time.NanoTimestamp"
ZONED_TIMESTAMP: Final = "io.debezium.time.ZonedTimestamp"
MICRO_TIME: Final = "io.debezium.time.MicroTime"
NANO_TIME: Final = "io.debezium.time.NanoTime"
UUID: Final = "io.debezium.data.Uuid"
#: A value of any kind. Connect has no type for it.
ANY_VALUE: Final = "lastword.AnyValue"
#: A decimal number that carries its scale: {"scale": int32, "value": bytes}.
VARIABLE_SCALE_DECIMAL: Final = "io.debezium.data.VariableScaleDecimal"

SCALE: Final = "scale"
PRECISION: Final = "connect.decimal.precision"
#: Connect's types for what Avro, JSON Schema and Protobuf call otherwise.
CONNECT_TYPES: Final = frozenset({"int8", "int16", "int32", "int64", "float", "double", "boolean", "string", "bytes"})
_FLOAT: Final = struct.Struct("<f")
#: Every float has a decimal number of nine digits that means it. One of up to six digits is found with six, as the rest of them are zeros.
_FLOAT_DIGITS: Final = (6, 7, 8)
#: The smallest floats have fewer bits; Java writes at least two digits.
_MIN_NORMAL_FLOAT: Final = 2.0**-126
_SMALL_DIGITS: Final = (2, 3, 4, 5, 6, 7, 8)
#: JsonConverter's words differ from those of the property `connect.type`.
_RENAMED: Final = {"float32": "float", "float64": "double"}


def connect_type(name: str) -> str:
    """Return the word of JsonConverter for a type of Connect.

    Raises:
        ValueError: It is no type of Connect's.
    """
    renamed = _RENAMED.get(name, name)
    if renamed not in CONNECT_TYPES:
        message = f"connect.type {name!r} is no type of Connect"
        raise ValueError(message)
    return renamed


def connect_schema(
    type: str,  # noqa: A002  Connect's word
    *,
    optional: bool = False,
    name: str | None = None,
    version: int | None = None,
    parameters: Mapping[str, str] | None = None,
    doc: str | None = None,
    **parts: Any,
) -> ConnectSchema:
    """Return a Connect schema; what is None or empty is left out, as JsonConverter does.

    Args:
        type: `int8` to `int64`, `float`, `double`, `boolean`, `string`, `bytes`, `array`, `map` or `struct`.
        optional: Whether null is allowed.
        name: What the value means.
        version: Version of the meaning.
        parameters: Details of the meaning, all of them texts.
        doc: What a person wrote about it.
        **parts: `fields`, `items`, `keys`, `values`, `default`.
    """
    schema: ConnectSchema = {"type": type, "optional": optional}
    for word, value in (("name", name), ("version", version), ("parameters", dict(parameters or {}) or None), ("doc", doc), *parts.items()):
        if value is not None:
            schema[word] = value
    return schema


def as_field(name: str, schema: ConnectSchema) -> ConnectSchema:
    """Return a schema as that of a field of a struct."""
    return {**schema, "field": name}


def as_optional(schema: ConnectSchema) -> ConnectSchema:
    """Return a schema that allows null."""
    return {**schema, "optional": True}


def any_value(*, optional: bool = True, doc: str | None = None) -> ConnectSchema:
    """Return the schema of a value that may be anything: a map whose keys are not texts, as readers keep such a map as JSON."""
    part = connect_schema("bytes", optional=True)
    return connect_schema("map", optional=optional, name=ANY_VALUE, version=1, doc=doc, keys=part, values=part)


def shortest_float(value: float) -> float | str:
    """Return the decimal number that a 32-bit float is the nearest one to; text if it is not finite, as JSON has no such numbers."""
    if not math.isfinite(value):
        return special_number(value)
    for digits in _FLOAT_DIGITS if abs(value) >= _MIN_NORMAL_FLOAT else _SMALL_DIGITS:
        short = float(f"{value:.{digits}g}")
        if _FLOAT.unpack(_FLOAT.pack(short))[0] == value:
            return short
    return float(f"{value:.9g}")


def special_number(value: float) -> float | str:
    """Return a number, or the text that Jackson writes for one that JSON does not have."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
