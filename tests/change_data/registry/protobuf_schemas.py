"""Protobuf schemas without a compiler: files and messages piece by piece, as a registry serializes them."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor_pb2, message_factory  # type: ignore[import-untyped]

from lastword.change_data.registry.protobuf import ProtobufFile
from lastword.change_data.registry.schemas import RegisteredSchema
from tests.storage.schema_registry.registries import header

if TYPE_CHECKING:
    from lastword.change_data.registry.formats import Format

FIELD = descriptor_pb2.FieldDescriptorProto
#: Zigzag: what is in front of the bytes of a message. A 0 alone is the first message.
FIRST = b"\0"


def file_of(name: str = "default", package: str = "shop", syntax: str = "proto3", imports: tuple[str, ...] = ()) -> Any:
    """Return an empty .proto file."""
    return descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax=syntax, dependency=imports)


def add(message: Any, name: str, number: int, kind: str, **more: Any) -> Any:
    """Add a field: `kind` is a type of Protobuf or the full name of a message or enum; `string*` is repeated."""
    label = FIELD.LABEL_REPEATED if kind.endswith("*") else FIELD.LABEL_OPTIONAL
    kind = kind.removesuffix("*")
    field = message.field.add(name=name, number=number, label=more.pop("label", label), **more)
    if "." in kind:
        field.type_name = f".{kind}"
        field.type = FIELD.TYPE_ENUM if kind.endswith("Color") else FIELD.TYPE_MESSAGE
    else:
        field.type = FIELD.Type.Value(f"TYPE_{kind.upper()}")
    return field


def add_map(message: Any, full_name: str, name: str, number: int, kinds: tuple[str, str]) -> None:
    """Add a map of two types."""
    key, value = kinds
    entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
    entry.options.map_entry = True
    add(entry, "key", 1, key)
    add(entry, "value", 2, value)
    add(message, name, number, f"{full_name}.{entry.name}*")


def optional(message: Any, name: str, number: int, kind: str) -> None:
    """Add a field with the word `optional` of proto3, behind all oneofs."""
    message.oneof_decl.add(name=f"_{name}")
    add(message, name, number, kind, proto3_optional=True, oneof_index=len(message.oneof_decl) - 1)


def with_params(field: Any, **params: str) -> None:
    """Give a field Confluent's option `field_meta`."""

    def part(tag: bytes, data: bytes) -> bytes:
        assert len(data) < 128
        return tag + bytes([len(data)]) + data

    meta = b"".join(part(b"\x12", part(b"\x0a", name.encode()) + part(b"\x12", value.encode())) for name, value in params.items())
    field.options.MergeFromString(part(b"\x82\x44", meta))


def text_of(file: Any) -> str:
    """Return a file as the registry serializes it."""
    return base64.b64encode(file.SerializeToString()).decode()


def schema_of(file: Any, *references: tuple[str, Any]) -> RegisteredSchema:
    """Return the registered schema of a file."""
    return RegisteredSchema(id=1, kind="PROTOBUF", text=text_of(file), references=tuple((name, text_of(part)) for name, part in references))


def message_class(schema: RegisteredSchema, index: tuple[int, ...] = (0,)) -> Any:
    """Return a class that writes a message of a schema."""
    return message_factory.GetMessageClass(ProtobufFile(schema.text, schema.references).message(index))


def read(file_format: Format, payload: bytes) -> Any:
    """Return what a payload becomes."""
    return json.loads(file_format.read(header(1) + payload)[0])
