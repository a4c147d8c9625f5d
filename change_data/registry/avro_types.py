"""The column's type of an Avro schema, as Connect's Avro converter and its names say it.

```
 {"type": "bytes", "logicalType": "decimal", "scale": 2, "precision": 9}     decimal(9,2)
 {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}         timestamp_ntz, microseconds
 ["null", "string"]                                                          string
 ["int", "string"]                                                           struct<int: int, string: string>
```

`connect.name`, `connect.parameters` and `connect.type` are what Connect left in the schema when it wrote it. Avro's logical types in
microseconds and nanoseconds, which Connect's converter drops, are timestamps and times as Debezium has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from lastword.change_data.columns.column_types import ArrayType, Column, MapType, ScalarType, StructType
from lastword.change_data.columns.connect_schema import ANY_VALUE, DECIMAL, PRECISION, connect_type, logical_type
from lastword.change_data.registry.avro import CONNECT

if TYPE_CHECKING:
    from lastword.change_data.columns.column_types import DataType
    from lastword.change_data.registry.avro import AvroType

_TYPES: Final = {
    "null": "string",
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
_LOGICAL: Final[Mapping[tuple[str, str], DataType]] = {
    ("int", "date"): ScalarType("date", "days"),
    ("int", "time-millis"): ScalarType("time", "millis"),
    ("long", "time-micros"): ScalarType("time", "micros"),
    ("long", "timestamp-millis"): ScalarType("timestamp_ntz", "millis"),
    ("long", "timestamp-micros"): ScalarType("timestamp_ntz", "micros"),
    ("long", "timestamp-nanos"): ScalarType("timestamp_ntz", "nanos"),
    ("long", "local-timestamp-millis"): ScalarType("timestamp_ntz", "millis"),
    ("long", "local-timestamp-micros"): ScalarType("timestamp_ntz", "micros"),
    ("long", "local-timestamp-nanos"): ScalarType("timestamp_ntz", "nanos"),
    ("string", "uuid"): ScalarType("uuid"),
}
#: The precision by which Connect says that it does not know one.
_UNKNOWN_PRECISION: Final = 64
_NAMED: Final = frozenset({"record", "enum", "fixed"})
_TEXTS: Final = frozenset({"string", "enum"})


def data_type_of(schema: AvroType) -> DataType:
    """Return the type of a column whose values are written with a schema.

    Raises:
        ValueError: A property `connect.type` names no type of Connect.
    """
    return _AvroTypes().convert(schema)


class _AvroTypes:
    def __init__(self) -> None:
        #: The records that contain the type at hand.
        self._open: list[AvroType] = []

    def convert(self, schema: AvroType, parameters: object = None) -> DataType:
        """Convert a type; `parameters` are those that Connect noted of the field which has it."""
        if schema.kind == "union":
            return self._union(schema, parameters)
        if schema in self._open:  # a struct within itself
            return ANY_VALUE
        return _named_type(schema, parameters) or self._type_by_kind(schema)

    def _type_by_kind(self, schema: AvroType) -> DataType:
        if schema.kind == "record":
            self._open.append(schema)
            fields = tuple(
                Column(field.name, self.convert(field.type, field.attributes.get("connect.parameters"))) for field in schema.fields
            )
            self._open.pop()
            return StructType(fields)
        if schema.kind == "map":
            return MapType(self.convert(schema.inner[0]))
        if schema.kind == "array":
            return self._array(schema.inner[0])
        given = schema.attributes.get("connect.type") if schema.kind == "int" and "logicalType" not in schema.attributes else None
        return connect_type(_TYPES[schema.kind] if given is None else given)

    def _array(self, item: AvroType) -> DataType:
        """Return the type of an array, or of a map that Connect wrote as an array of its entries."""
        if not item.is_map_entry:
            return ArrayType(self.convert(item))
        entry = {field.name: field.type for field in item.fields}
        key = entry["key"].nullable or entry["key"]
        return MapType(self.convert(entry["value"])) if key.kind in _TEXTS else ANY_VALUE

    def _union(self, schema: AvroType, parameters: object) -> DataType:
        """Return the type of what may be null; or a struct with a field for each type, of which one has a value."""
        other = schema.nullable or (schema.inner[0] if len(schema.inner) == 1 else None)
        if other is not None:
            return self.convert(other, parameters)
        branches = [branch for branch in schema.inner if branch.kind != "null"]
        return StructType(tuple(Column(name, self.convert(branch)) for name, branch in zip(schema.branch_names, branches, strict=True)))


def _named_type(schema: AvroType, of_field: object) -> DataType | None:
    """Return the type that a schema's name or logical type says; None if it says none."""
    attributes, logical = schema.attributes, str(schema.attributes.get("logicalType"))
    parameters, name = dict[str, Any](), attributes.get("connect.name")
    is_decimal = logical == "decimal" and schema.kind in {"bytes", "fixed"}
    if is_decimal:
        parameters = {"scale": attributes.get("scale", 0)}
        if attributes.get("precision", _UNKNOWN_PRECISION) != _UNKNOWN_PRECISION:
            parameters[PRECISION] = attributes["precision"]
    for given in (attributes.get("connect.parameters"), of_field):
        parameters |= given if isinstance(given, Mapping) else {}
    if name is None and schema.kind in _NAMED and not is_decimal:
        name = schema.name
    if name is not None and not name.startswith(f"{CONNECT}.ConnectDefault"):
        return logical_type(name, parameters)
    return logical_type(DECIMAL, parameters) if is_decimal else _LOGICAL.get((schema.kind, logical))
