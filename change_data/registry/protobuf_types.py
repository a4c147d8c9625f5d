"""The column's type of a Protobuf message, for the values that `protobuf` reads.

```
 message Order {                                struct
   int64 id = 1;                                  id: bigint
   map<string, int32> sizes = 2;                  sizes: map<string, int>
   confluent.type.Decimal price = 3               price: decimal(38,2)
     [(confluent.field_meta) = {params: {key: "scale", value: "2"}}];
   oneof way { string air = 4; string sea = 5; }  air: string, sea: string
 }
```

Connect's own converter differs by default: it makes a oneof a struct of its own and a wrapper a struct with one field, and of a Timestamp
milliseconds, which lose a part of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor  # type: ignore[import-untyped]

from lastword.change_data.columns.column_types import ArrayType, Column, DecimalType, MapType, ScalarType, StructType
from lastword.change_data.columns.connect_schema import ANY_VALUE, PRECISION, connect_type, logical_type
from lastword.change_data.columns.connect_schema import DECIMAL as CONNECT_DECIMAL
from lastword.change_data.registry.protobuf import DATE, DECIMAL, TIME_OF_DAY, TIMESTAMP, WRAPPERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lastword.change_data.columns.column_types import DataType
    from lastword.change_data.registry.protobuf import Field, ProtobufFile

_TYPES: Final = {
    FieldDescriptor.TYPE_INT32: "int32",
    FieldDescriptor.TYPE_SINT32: "int32",
    FieldDescriptor.TYPE_SFIXED32: "int32",
    FieldDescriptor.TYPE_UINT32: "int64",
    FieldDescriptor.TYPE_FIXED32: "int64",
    FieldDescriptor.TYPE_INT64: "int64",
    FieldDescriptor.TYPE_SINT64: "int64",
    FieldDescriptor.TYPE_SFIXED64: "int64",
    FieldDescriptor.TYPE_UINT64: "int64",
    FieldDescriptor.TYPE_FIXED64: "int64",
    FieldDescriptor.TYPE_FLOAT: "float",
    FieldDescriptor.TYPE_DOUBLE: "double",
    FieldDescriptor.TYPE_BOOL: "boolean",
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_ENUM: "string",
}
_SMALL: Final = frozenset({"int8", "int16"})
_MESSAGES: Final[Mapping[str, DataType]] = {
    TIMESTAMP: ScalarType("timestamp", "text"),
    DATE: ScalarType("date", "days"),
    TIME_OF_DAY: ScalarType("time", "nanos"),
}


def data_type_of(file: ProtobufFile, index: tuple[int, ...]) -> DataType:
    """Return the type of a column whose values are messages of a file.

    Args:
        file: The file of the schema.
        index: The message's index, as in a frame.

    Raises:
        ValueError: There is no such message.
    """
    return _ProtobufTypes(file).message(file.message(index), {})


class _ProtobufTypes:
    def __init__(self, file: ProtobufFile) -> None:
        self._file = file
        #: Full names of the messages that contain the one at hand.
        self._open: list[str] = []

    def message(self, descriptor: Descriptor, params: dict[str, str]) -> DataType:
        """Convert a message that stands for itself."""
        name = descriptor.full_name
        if name in WRAPPERS:
            return _scalar(descriptor.fields_by_name["value"], {})
        if name == DECIMAL:
            return _decimal(params)
        if name in self._open:  # a struct within itself
            return ANY_VALUE
        known = _MESSAGES.get(name) or logical_type(name)
        if known is not None:
            return known
        self._open.append(name)
        fields = tuple(Column(field.descriptor.name, self._field(field)) for field in self._file.fields_of(descriptor))
        self._open.pop()
        return StructType(fields)

    def _field(self, field: Field) -> DataType:
        if field.key is not None and field.value is not None:
            value = self._value(field.value, field.params)
            return MapType(value) if _TYPES[field.key.type] == "string" else ANY_VALUE
        converted = self._value(field.descriptor, field.params)
        return ArrayType(converted) if field.repeated else converted

    def _value(self, descriptor: FieldDescriptor, params: dict[str, str]) -> DataType:
        return _scalar(descriptor, params) if descriptor.message_type is None else self.message(descriptor.message_type, params)


def _scalar(descriptor: FieldDescriptor, params: dict[str, str]) -> DataType:
    kind = _TYPES[descriptor.type]
    return connect_type(params["connect.type"] if kind == "int32" and params.get("connect.type") in _SMALL else kind)


def _decimal(params: dict[str, str]) -> DataType:
    """Return the type of a Decimal: of one scale if the field declares it, else each number has its own."""
    if not params.get("scale", "").removeprefix("-").isdigit():
        return DecimalType()
    named = {"scale": params["scale"], **({PRECISION: params["precision"]} if "precision" in params else {})}
    return logical_type(CONNECT_DECIMAL, named) or DecimalType()
