"""Files of Protobuf schemas: those that a schema may import without saying where they are, and what a registry leaves out of a file.

The registry knows some files, Google's own and those of Confluent, so they are not among a schema's references. Google's well-known types
come with the library; the others are here, in the smallest form that reads the same: `name type number`, where a type with a dot is a
message.
"""

from __future__ import annotations

import base64
import importlib
from typing import TYPE_CHECKING, Final

from google.protobuf import descriptor_pb2  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Mapping

_WELL_KNOWN: Final = (
    "any",
    "api",
    "descriptor",
    "duration",
    "empty",
    "field_mask",
    "source_context",
    "struct",
    "timestamp",
    "type",
    "wrappers",
)
_META: Final = "confluent/meta.proto"
#: Of each file its package and its messages; in a message a line for each field.
_MESSAGES: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "confluent/type/decimal.proto": ("confluent.type", {"Decimal": "value bytes 1, precision uint32 2, scale int32 3"}),
    "confluent/type/variant.proto": ("confluent.type", {"Variant": "metadata bytes 1, value bytes 2"}),
    "google/type/date.proto": ("google.type", {"Date": "year int32 1, month int32 2, day int32 3"}),
    "google/type/timeofday.proto": ("google.type", {"TimeOfDay": "hours int32 1, minutes int32 2, seconds int32 3, nanos int32 4"}),
    "google/type/decimal.proto": ("google.type", {"Decimal": "value string 1"}),
    "google/type/money.proto": ("google.type", {"Money": "currency_code string 1, units int64 2, nanos int32 3"}),
    "google/type/latlng.proto": ("google.type", {"LatLng": "latitude double 1, longitude double 2"}),
    "google/type/fraction.proto": ("google.type", {"Fraction": "numerator int64 1, denominator int64 2"}),
    "google/type/quaternion.proto": ("google.type", {"Quaternion": "x double 1, y double 2, z double 3, w double 4"}),
    "google/type/interval.proto": (
        "google.type",
        {"Interval": "start_time google.protobuf.Timestamp 1, end_time google.protobuf.Timestamp 2"},
    ),
    _META: (
        "confluent",
        {
            "Rule": "name string 1, doc string 2, expr string 3, sql string 4",
            "Meta": "doc string 1, params map 2, tags string* 3, rules confluent.Rule* 4",
        },
    ),
}
#: The number of Confluent's options for files, messages, fields, enums and values of enums.
META_NUMBER: Final = 1088
_EXTENDED: Final = ("FileOptions", "MessageOptions", "FieldOptions", "EnumOptions", "EnumValueOptions")
_EXTENSIONS: Final = ("file_meta", "message_meta", "field_meta", "enum_meta", "enum_value_meta")
_FIELD: Final = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final = frozenset(name.removeprefix("TYPE_").lower() for name in _FIELD.Type.keys()) - {"message", "enum", "group"}  # noqa: SIM118


def read_file(text: str, path: str) -> descriptor_pb2.FileDescriptorProto:
    """Return a file that a registry gives with format=serialized.

    Confluent's registry gives a file as the compiler does. Karapace leaves out of which oneof an `optional` field is the only part, and has
    `map<…>` as the name of a type; this is completed.

    Args:
        text: Base64 of a FileDescriptorProto.
        path: What the file is called in a message.

    Raises:
        ValueError: It is none.
    """
    try:
        file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (ValueError, DecodeError):
        message = f"{path} is no serialized file descriptor"
        raise ValueError(message) from None
    for message_type in file.message_type:
        _complete(message_type, is_proto3=file.syntax == "proto3")
    return file


def _complete(message: descriptor_pb2.DescriptorProto, *, is_proto3: bool) -> None:
    """Add what a registry left out of a message."""
    for within in message.nested_type:
        _complete(within, is_proto3=is_proto3)
    for field in message.field:
        if field.proto3_optional and not is_proto3:
            field.ClearField("proto3_optional")
        elif field.proto3_optional and not field.HasField("oneof_index"):
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")
        if field.type_name.startswith("map<"):
            key, _, value = field.type_name.removeprefix("map<").removesuffix(">").partition(",")
            _make_map(message, field, key.strip(), value.strip())


def _make_map(message: descriptor_pb2.DescriptorProto, field: descriptor_pb2.FieldDescriptorProto, key: str, value: str) -> None:
    """Make a map of a field: a repeated message of key and value."""
    entry = message.nested_type.add(name="".join(part.capitalize() for part in field.name.split("_")) + "Entry")
    entry.options.map_entry = True
    _add_field(entry, "key", key, 1)
    _add_field(entry, "value", value, 2)
    field.label, field.type, field.type_name = _FIELD.LABEL_REPEATED, _FIELD.TYPE_MESSAGE, entry.name


def _add_field(message: descriptor_pb2.DescriptorProto, name: str, kind: str, number: int) -> descriptor_pb2.FieldDescriptorProto:
    """Add a field of a scalar type, or of a message or an enum by name."""
    field = message.field.add(name=name, number=number, label=_FIELD.LABEL_OPTIONAL)
    if kind in _SCALARS:
        field.type = _FIELD.Type.Value(f"TYPE_{kind.upper()}")
    else:
        field.type_name = kind
    return field


def known_file(path: str) -> descriptor_pb2.FileDescriptorProto | None:
    """Return a file that the registry knows without a reference; None if it is none of those."""
    name = path.removeprefix("google/protobuf/").removesuffix(".proto")
    if name != path and name in _WELL_KNOWN:
        module = importlib.import_module(f"google.protobuf.{name}_pb2")
        return descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    if path not in _MESSAGES:
        return None
    package, messages = _MESSAGES[path]
    file = descriptor_pb2.FileDescriptorProto(name=path, package=package, syntax="proto3")
    if "interval" in path:
        file.dependency.append("google/protobuf/timestamp.proto")
    for message, fields in messages.items():
        _add_message(file, message, fields)
    if path == _META:
        file.dependency.append("google/protobuf/descriptor.proto")
        for extended, extension in zip(_EXTENDED, _EXTENSIONS, strict=True):
            file.extension.add(
                name=extension,
                number=META_NUMBER,
                extendee=f".google.protobuf.{extended}",
                label=_FIELD.LABEL_OPTIONAL,
                type=_FIELD.TYPE_MESSAGE,
                type_name=".confluent.Meta",
            )
    return file


def _add_message(file: descriptor_pb2.FileDescriptorProto, name: str, fields: str) -> None:
    """Add a message to a file."""
    message = file.message_type.add(name=name)
    for line in fields.split(", "):
        field, kind, number = line.split(" ")
        added = _add_field(message, field, kind.removesuffix("*"), int(number))
        if kind == "map":
            _make_map(message, added, "string", "string")
        elif kind.endswith("*"):
            added.label = _FIELD.LABEL_REPEATED
