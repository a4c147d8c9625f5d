"""How the frames of one schema are decoded: one format for each schema, made once in a process.

```
 AVRO       00 | id | value in Avro's binary form             the type bytes alone: as they are, without their length
 JSON       00 | id | JSON text
 PROTOBUF   00 | id | index of the message | message
```
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from lastword.change_data.registry import avro_types, json_schema
from lastword.change_data.registry.avro import parse_avro
from lastword.change_data.registry.avro_reader import read_long, reader_of
from lastword.change_data.registry.schemas import SchemaRegistryError, UndecodableFrame

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lastword.change_data.columns.column_types import DataType
    from lastword.change_data.registry.schemas import RegisteredSchema

#: The magic byte and the schema's id.
HEADER_BYTES: Final = 5
#: What the readers of a payload raise if it does not fit; see `avro_reader`.
DOES_NOT_FIT: Final = (ValueError, IndexError, RecursionError, OverflowError)
_MAX_DEPTH: Final = 64
_ENCODE: Final = msgspec.json.Encoder().encode


class WriterSchema(NamedTuple):
    """What a frame was written with: the schema's id, and of Protobuf the index of the message in it."""

    id: int
    message: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Format:
    """How the frames of a schema are decoded.

    Attributes:
        read: Takes a frame, returns its JSON text and what it was written with; raises `UndecodableFrame`.
        data_type: Takes the index of a message, of which only Protobuf has several; returns the type of the values as a column.
    """

    read: Callable[[bytes], tuple[bytes, WriterSchema]]
    data_type: Callable[[tuple[int, ...]], DataType]


def undecodable(schema_id: int, error: Exception) -> UndecodableFrame:
    """Return the error of a frame that does not fit its schema."""
    if isinstance(error, IndexError):
        reason = "the payload ends too early"
    elif isinstance(error, RecursionError):
        reason = "the payload is nested too deep"
    else:
        reason = str(error)
    return UndecodableFrame(f"schema {schema_id}: {reason}")


def format_of(schema: RegisteredSchema) -> Format:
    """Make the format of a schema; of one that cannot be read, a format that says so for each frame.

    Raises:
        SchemaRegistryError: It is Protobuf, and the library is not installed.
    """
    make = _MAKERS.get(schema.kind)
    try:
        if make is None:
            message = f"its type is {schema.kind}; AVRO, JSON and PROTOBUF can be read"
            raise ValueError(message)
        return make(schema)
    except DOES_NOT_FIT as error:
        text = f"schema {schema.id} cannot be read: {error}"

    def refuse(_: object) -> Any:
        raise UndecodableFrame(text)

    return Format(refuse, refuse)


def _avro(schema: RegisteredSchema) -> Format:
    parsed = parse_avro(schema.text, schema.references)
    read_value, written_with = reader_of(parsed), WriterSchema(schema.id)
    if parsed.kind == "bytes":  # Confluent's serializer writes them as they are, without their length
        read_value = _rest

    def read(data: bytes) -> tuple[bytes, WriterSchema]:
        try:
            value, end = read_value(data, HEADER_BYTES)
            if end != len(data):
                _refuse_rest(len(data) - end)
            return _ENCODE(value), written_with
        except DOES_NOT_FIT as error:
            raise undecodable(schema.id, error) from None

    return Format(read, lambda _: avro_types.data_type_of(parsed))


def _rest(data: bytes, at: int) -> tuple[bytes, int]:
    return data[at:], len(data)


def _refuse_rest(size: int) -> None:
    message = f"{size} bytes are left behind the value"
    raise ValueError(message)


def _json(schema: RegisteredSchema) -> Format:
    written_with = WriterSchema(schema.id)

    def read(data: bytes) -> tuple[bytes, WriterSchema]:
        try:
            return json_schema.read_json(data, HEADER_BYTES), written_with
        except ValueError as error:
            raise undecodable(schema.id, error) from None

    return Format(read, lambda _: json_schema.data_type_of(schema.text, schema.references))


def _protobuf(schema: RegisteredSchema) -> Format:
    try:
        from lastword.change_data.registry import protobuf, protobuf_types  # noqa: PLC0415  the library may not be there
    except ImportError as error:
        message = f"schema {schema.id} is Protobuf, which needs the package protobuf wherever rows are decoded: {error}"
        raise SchemaRegistryError(message) from None
    file = protobuf.ProtobufFile(schema.text, schema.references)
    readers: dict[tuple[int, ...], tuple[WriterSchema, Callable[[bytes], Any]]] = {}

    def read(data: bytes) -> tuple[bytes, WriterSchema]:
        try:
            index, end = _message_index(data, HEADER_BYTES)
            reader = readers.get(index)
            if reader is None:
                reader = readers[index] = WriterSchema(schema.id, index), file.reader(index)
            return _ENCODE(reader[1](data[end:])), reader[0]
        except DOES_NOT_FIT as error:
            raise undecodable(schema.id, error) from None

    return Format(read, lambda index: protobuf_types.data_type_of(file, index))


def _message_index(data: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """Return the index of a message and the position behind it: a count and as many numbers, or a single 0 for the first message."""
    count, at = read_long(data, at)
    if count == 0:
        return (0,), at
    if not 0 < count <= _MAX_DEPTH:
        message = f"the message index has {count} parts; numbers without zigzag, an old option of some producers, cannot be read"
        raise ValueError(message)
    index = []
    for _ in range(count):
        part, at = read_long(data, at)
        index.append(part)
    return tuple(index), at


_MAKERS: Final[Mapping[str, Callable[[RegisteredSchema], Format]]] = {"AVRO": _avro, "JSON": _json, "PROTOBUF": _protobuf}
