"""The Connect schema of a Protobuf message, with the types that `protobuf` gives its values.

```
 message Order {                                struct shop.Order
   int64 id = 1;                                  id: int64
   optional string note = 2;                      note: string, optional
   map<string, int32> sizes = 3;                  sizes: map of string and int32
   confluent.type.Decimal price = 4               price: bytes, org.apache.kafka.connect.data.Decimal, scale 2
     [(confluent.field_meta) = {params: {key: "scale", value: "2"}}];
   oneof way { string air = 5; string sea = 6; }  air: string, optional; sea: string, optional
 }
```

Connect's own converter differs by default: it makes a oneof a struct of its own and a wrapper a struct with one field, and of a Timestamp
milliseconds, which lose a part of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor  # type: ignore[import-untyped]

from lastword.change_data.registry import connect
from lastword.change_data.registry.connect import ConnectSchema, as_field, as_optional, connect_schema
from lastword.change_data.registry.protobuf import DATE, DECIMAL, TIME_OF_DAY, TIMESTAMP, WRAPPERS

if TYPE_CHECKING:
    from lastword.change_data.registry.protobuf import Field, ProtobufFile

_PREFIX: Final = "io.confluent.connect.protobuf"
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
_MESSAGES: Final = {
    TIMESTAMP: ("string", connect.ZONED_TIMESTAMP),
    DATE: ("int32", connect.DATE),
    TIME_OF_DAY: ("int64", connect.NANO_TIME),
}


def connect_schema_of(file: ProtobufFile, index: tuple[int, ...]) -> ConnectSchema:
    """Return the Connect schema of a message of a file.

    Args:
        file: The file of the schema.
        index: The message's index, as in a frame.

    Raises:
        ValueError: There is no such message.
    """
    return _Converter(file).message(file.message(index), {})


class _Converter:
    def __init__(self, file: ProtobufFile) -> None:
        self._file = file
        #: Full names of the messages that contain the one at hand.
        self._open: list[str] = []

    def message(self, descriptor: Descriptor, params: dict[str, str]) -> ConnectSchema:
        """Convert a message that stands for itself."""
        name = descriptor.full_name
        if name in WRAPPERS:
            return self._scalar(descriptor.fields_by_name["value"], {})
        if name in _MESSAGES:
            kind, meaning = _MESSAGES[name]
            return connect_schema(kind, name=meaning, version=1)
        if name == DECIMAL:
            return _decimal(params)
        if name in self._open:  # a struct within itself
            return connect.any_value(optional=False, doc=f"{name} within itself")
        self._open.append(name)
        fields = [as_field(field.descriptor.name, self._field(field)) for field in self._file.fields_of(descriptor)]
        self._open.pop()
        return connect_schema("struct", name=name, fields=fields)

    def _field(self, field: Field) -> ConnectSchema:
        descriptor = field.descriptor
        if field.key is not None and field.value is not None:
            parts: dict[str, Any] = {"keys": self._scalar(field.key, {}), "values": self._value(field.value, field.params)}
            return connect_schema("map", **parts)
        converted = self._value(descriptor, field.params)
        if field.repeated:
            return connect_schema("array", items=converted)
        return as_optional(converted) if descriptor.has_presence else converted

    def _value(self, descriptor: FieldDescriptor, params: dict[str, str]) -> ConnectSchema:
        return self._scalar(descriptor, params) if descriptor.message_type is None else self.message(descriptor.message_type, params)

    @staticmethod
    def _scalar(descriptor: FieldDescriptor, params: dict[str, str]) -> ConnectSchema:
        kind = _TYPES[descriptor.type]
        if kind == "int32" and params.get("connect.type") in _SMALL:
            kind = params["connect.type"]
        enum = descriptor.enum_type
        if enum is None:
            return connect_schema(kind)
        symbols = {f"{_PREFIX}.Enum.{value.name}": str(value.number) for value in enum.values}
        return connect_schema(kind, name=enum.full_name, parameters={f"{_PREFIX}.Enum": enum.name, **symbols})


def _decimal(params: dict[str, str]) -> ConnectSchema:
    """Return the schema of a Decimal: Connect's if the field declares a scale, else Debezium's that carries it."""
    if params.get("scale", "").removeprefix("-").isdigit():
        parameters = {connect.SCALE: params["scale"]}
        if "precision" in params:
            parameters[connect.PRECISION] = params["precision"]
        return connect_schema("bytes", name=connect.DECIMAL, version=1, parameters=parameters)
    fields = [as_field("scale", connect_schema("int32")), as_field("value", connect_schema("bytes"))]
    return connect_schema("struct", name=connect.VARIABLE_SCALE_DECIMAL, version=1, fields=fields)
