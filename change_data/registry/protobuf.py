"""Protobuf of a registry: the file of a schema becomes message classes, and a message becomes what JSON has.

```
 frame:  0 | id | message index | message
                    0            the first message of the file; short for 1, 0
                    2, 1, 0      one count and the indexes, zigzag: the first message within the second one
```

| in the message | in JSON |
|---|---|
| field without a value that can be absent: `optional`, a part of a `oneof`, a message | null |
| field without a value that cannot be absent | its default: 0, "", false, the first value of an enum, [] |
| 64-bit number | number, not text |
| bytes | base64 |
| enum | its name |
| map | object; pairs in an array if its keys are not texts, as JsonConverter does |
| `google.protobuf.…Value` (wrappers) | the value, or null |
| `google.protobuf.Timestamp` | text, UTC with nine decimals: `2024-05-01T12:00:00.000000001Z` |
| `google.type.Date`, `google.type.TimeOfDay` | days since 1970, nanoseconds since midnight |
| `confluent.type.Decimal` | the unscaled number as base64 of its bytes if the field says its scale, else `{"scale": …, "value": …}` |
| any other message | object, fields named as in the .proto file |

A message class is made once for each schema and message index.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]
from google.protobuf.descriptor import Descriptor, FieldDescriptor  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]

from lastword.change_data.registry.floats import shortest_float, special_number
from lastword.change_data.registry.protobuf_files import META_NUMBER, known_file, read_file

_FieldProto: Final = descriptor_pb2.FieldDescriptorProto
#: Takes a value of a field, returns what becomes JSON.
Convert = Callable[[Any], Any]

WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value" for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
TIMESTAMP, DATE, TIME_OF_DAY, DECIMAL = "google.protobuf.Timestamp", "google.type.Date", "google.type.TimeOfDay", "confluent.type.Decimal"
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_MAX_DIGITS: Final = 1000
_NANOS: Final = 1_000_000_000
_EPOCH_DAY: Final = dt.date(1970, 1, 1).toordinal()


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a message, with what the descriptor alone does not tell.

    Attributes:
        descriptor: The field.
        repeated: Whether it has many values; a map is repeated too.
        key: The key of a map; None of any other field.
        value: The value of a map; None of any other field.
        params: What Confluent's converter noted: `scale`, `precision`, `connect.type`.
    """

    descriptor: FieldDescriptor
    repeated: bool
    key: FieldDescriptor | None
    value: FieldDescriptor | None
    params: dict[str, str]

    @property
    def scale(self) -> int | None:
        """The scale that a field of Decimals declares; None if each has its own."""
        text = self.params.get("scale", "")
        return int(text) if text.removeprefix("-").isdigit() else None


class ProtobufFile:
    """The file of a schema, and the files that it imports."""

    def __init__(self, text: str, references: tuple[tuple[str, str], ...] = ()) -> None:
        """Take the serialized FileDescriptorProto as base64, and the same of each file that it imports.

        Raises:
            ValueError: It is none, or a file that it imports is missing.
        """
        self._pool = descriptor_pool.DescriptorPool()
        self._given = {path: read_file(reference, path) for path, reference in references}
        self._added: set[str] = set()
        self._file = read_file(text, "the schema")
        self._file.name = "lastword/schema.proto"  # a registry calls every file `default`
        try:
            self._add(self._file)
        except (TypeError, KeyError) as error:
            message = f"the file of the schema does not fit together ({error})"
            raise ValueError(message) from None

    def _add(self, file: descriptor_pb2.FileDescriptorProto) -> None:
        """Add a file to the pool, behind those that it imports."""
        self._added.add(file.name)
        for path in file.dependency:
            if path in self._added:
                continue
            imported = self._given.get(path) or known_file(path)
            if imported is None:
                message = f"it imports {path}, which is neither among its references nor known"
                raise ValueError(message)
            imported.name = path  # a registry may name a file by its subject
            self._add(imported)
        self._pool.AddSerializedFile(file.SerializeToString())

    def message(self, index: tuple[int, ...]) -> Descriptor:
        """Return a message by its index: the first number counts the file's messages, each further one those within the message.

        Raises:
            ValueError: There is no such message.
        """
        messages, path = list(self._file.message_type), [self._file.package] if self._file.package else []
        for position in index:
            if not 0 <= position < len(messages):
                message = f"there is no message with index {list(index)}"
                raise ValueError(message)
            path.append(messages[position].name)
            messages = list(messages[position].nested_type)
        return self._pool.FindMessageTypeByName(".".join(path))

    def fields_of(self, descriptor: Descriptor) -> list[Field]:
        """Return the fields of a message."""
        proto = descriptor_pb2.DescriptorProto()
        descriptor.CopyToProto(proto)
        fields = []
        for field, written in zip(descriptor.fields, proto.field, strict=True):
            repeated = written.label == _FieldProto.LABEL_REPEATED
            is_map = repeated and field.message_type is not None and field.message_type.GetOptions().map_entry
            by_name = field.message_type.fields_by_name if is_map else {}
            params = self._params(written.options)
            fields.append(Field(field, repeated, by_name.get("key"), by_name.get("value"), params))
        return fields

    def _params(self, options: descriptor_pb2.FieldOptions) -> dict[str, str]:
        """Return what Confluent's converter noted in the options of a field."""
        written = options.SerializeToString()
        return dict(self._meta.FromString(written).meta.params) if written else {}

    @cached_property
    def _meta(self) -> Any:
        """A message that reads the options of a field: only what Confluent adds to them."""
        pool = descriptor_pool.DescriptorPool()
        for known in filter(None, map(known_file, ("google/protobuf/descriptor.proto", "confluent/meta.proto"))):
            pool.AddSerializedFile(known.SerializeToString())
        file = descriptor_pb2.FileDescriptorProto(name="options.proto", syntax="proto3", dependency=["confluent/meta.proto"])
        options = file.message_type.add(name="Options")
        options.field.add(
            name="meta",
            number=META_NUMBER,
            label=_FieldProto.LABEL_OPTIONAL,
            type=_FieldProto.TYPE_MESSAGE,
            type_name=".confluent.Meta",
        )
        pool.AddSerializedFile(file.SerializeToString())
        return message_factory.GetMessageClass(pool.FindMessageTypeByName("Options"))

    def reader(self, index: tuple[int, ...]) -> Convert:
        """Return the function that reads the bytes of a message.

        The function raises `ValueError` if the bytes are no such message.
        """
        descriptor = self.message(index)
        factory, convert = message_factory.GetMessageClass(descriptor), _ProtobufReaders(self).message(descriptor)

        def read(data: bytes) -> Any:
            try:
                return convert(factory.FromString(data))
            except DecodeError as error:
                message = f"the payload is no {descriptor.full_name} ({error})"
                raise ValueError(message) from None

        return read


class _ProtobufReaders:
    """Makes the functions that convert the messages of one file."""

    def __init__(self, file: ProtobufFile) -> None:
        self._file = file
        self._messages: dict[str, Convert] = {}

    def message(self, descriptor: Descriptor, scale: int | None = None) -> Convert:
        name = descriptor.full_name
        if name in WRAPPERS:
            convert = self._scalar(descriptor.fields_by_name["value"])
            return lambda message: convert(message.value)
        if name == DECIMAL:
            return lambda message: _decimal(message, scale)
        return _SPECIAL.get(name) or self._messages.get(name) or self._struct(descriptor)

    def _struct(self, descriptor: Descriptor) -> Convert:
        empty: dict[str, Any] = {}
        converts: dict[int, tuple[str, Convert]] = {}

        def convert_struct(message: Message) -> dict[str, Any]:
            struct = empty.copy()
            for field, value in message.ListFields():
                known = converts.get(field.number)
                if known is not None:  # not an extension
                    struct[known[0]] = known[1](value)
            return struct

        self._messages[descriptor.full_name] = convert_struct  # a field may be the message itself
        for field in self._file.fields_of(descriptor):
            convert = self._field(field)
            empty[field.descriptor.name] = self._absent(field, convert)
            converts[field.descriptor.number] = field.descriptor.name, convert
        return convert_struct

    def _field(self, field: Field) -> Convert:
        if field.key is not None and field.value is not None:
            key, value = self._scalar(field.key), self._value(field.value, field.scale)
            if field.key.type == FieldDescriptor.TYPE_STRING:
                return lambda entries: {name: value(entries[name]) for name in entries}
            return lambda entries: [[key(name), value(entries[name])] for name in sorted(entries)]
        convert = self._value(field.descriptor, field.scale)
        if field.repeated:
            return lambda values: [convert(value) for value in values]
        return convert

    def _value(self, descriptor: FieldDescriptor, scale: int | None) -> Convert:
        return self._scalar(descriptor) if descriptor.message_type is None else self.message(descriptor.message_type, scale)

    def _scalar(self, descriptor: FieldDescriptor) -> Convert:
        kind = descriptor.type
        if kind == FieldDescriptor.TYPE_ENUM:
            names = {value.number: value.name for value in reversed(descriptor.enum_type.values)}
            enum = descriptor.enum_type.name
            return lambda number: names.get(number) or f"UNKNOWN_ENUM_VALUE_{enum}_{number}"
        if kind == FieldDescriptor.TYPE_FLOAT:
            return shortest_float
        return special_number if kind == FieldDescriptor.TYPE_DOUBLE else _same

    @staticmethod
    def _absent(field: Field, convert: Convert) -> Any:
        """Return what stands for a field that the message leaves out."""
        if field.repeated:
            return convert({} if field.key is not None else [])
        return None if field.descriptor.has_presence else convert(field.descriptor.default_value)


def _same(value: Any) -> Any:
    return value


def _timestamp(message: Any) -> str:
    if not 0 <= message.nanos < _NANOS:
        text = f"a Timestamp has no {message.nanos} nanoseconds"
        raise ValueError(text)
    try:
        moment = _EPOCH + dt.timedelta(seconds=message.seconds)
    except OverflowError:
        text = f"a Timestamp of {message.seconds} seconds is outside the years 1 to 9999"
        raise ValueError(text) from None
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{message.nanos:09}Z".rjust(30, "0")


def _date(message: Any) -> int:
    return dt.date(message.year, message.month, message.day).toordinal() - _EPOCH_DAY


def _time_of_day(message: Any) -> int:
    nanos: int = ((message.hours * 60 + message.minutes) * 60 + message.seconds) * _NANOS + message.nanos
    return nanos


def _decimal(message: Any, scale: int | None) -> Any:
    """Return a Decimal with the scale of its field; with its own scale if the field declares none."""
    if scale is None:
        return {"scale": message.scale, "value": message.value}
    unscaled = int.from_bytes(message.value, "big", signed=True)
    if abs(message.scale - scale) > _MAX_DIGITS:
        text = f"a Decimal has the scale {message.scale}, its field the scale {scale}"
        raise ValueError(text)
    if message.scale > scale:
        unscaled, rest = divmod(unscaled, 10 ** (message.scale - scale))
        if rest:
            text = f"a Decimal of scale {message.scale} does not fit the field's scale {scale}"
            raise ValueError(text)
    else:
        unscaled *= 10 ** (scale - message.scale)
    return unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)


_SPECIAL: Final[dict[str, Convert]] = {TIMESTAMP: _timestamp, DATE: _date, TIME_OF_DAY: _time_of_day}
