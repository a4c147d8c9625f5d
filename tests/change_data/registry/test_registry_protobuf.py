"""Protobuf of a registry: message index, values and Connect schema, with the files that a schema imports."""

from __future__ import annotations

import base64
import json
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from lastword.change_data.columns.column_types import ArrayType, Column, DataType, DecimalType, ScalarType, StructType
from lastword.change_data.columns.row_converter import RowConverter
from lastword.change_data.registry.formats import Format, WriterSchema, format_of
from lastword.change_data.registry.schemas import SchemaRegistryError, UndecodableFrame
from lastword.storage.schema_registry.decoder import RegistryDecoder
from tests.change_data.registry.protobuf_schemas import (
    FIELD,
    FIRST,
    add,
    add_map,
    file_of,
    message_class,
    optional,
    read,
    schema_of,
    text_of,
    with_params,
)
from tests.storage.schema_registry.registries import Registry, header, running
from tests.storage.schema_registry.test_schema_registry import config_of

if TYPE_CHECKING:
    from pathlib import Path


def scalars() -> Any:
    """Return a file with a message that has a field of each scalar type."""
    file = file_of()
    file.enum_type.add(name="Color").value.add(name="RED", number=0)
    file.enum_type[0].value.add(name="BLUE", number=5)
    message = file.message_type.add(name="Row")
    kinds = ["double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32", "sfixed64"]
    for number, kind in enumerate([*kinds, "bool", "string", "bytes"], start=1):
        add(message, f"a_{kind}", number, kind)
    add(message, "color", 16, "shop.Color")
    return file


def test_scalars_have_their_values_or_their_defaults() -> None:
    """64-bit numbers stay numbers, bytes are base64, enums are names, and the names of fields are those of the file."""
    schema = schema_of(scalars())
    file_format, row = format_of(schema), message_class(schema)
    assert read(file_format, FIRST) == {
        **dict.fromkeys([f"a_{kind}" for kind in ("double", "float")], 0.0),
        **dict.fromkeys([f"a_{sign}int{bits}" for sign in ("", "u", "s") for bits in (32, 64)], 0),
        **dict.fromkeys([f"a_{sign}fixed{bits}" for sign in ("", "s") for bits in (32, 64)], 0),
        "a_bool": False,
        "a_string": "",
        "a_bytes": "",
        "color": "RED",
    }
    message = row(
        a_double=float("nan"), a_float=0.1, a_int64=2**63 - 1, a_uint64=2**64 - 1, a_sint64=-(2**63), a_string="é", a_bytes=b"\xff", color=5
    )
    values = read(file_format, FIRST + message.SerializeToString())
    assert {name: value for name, value in values.items() if value} == {
        "a_double": "NaN",
        "a_float": 0.1,
        "a_int64": 2**63 - 1,
        "a_uint64": 2**64 - 1,
        "a_sint64": -(2**63),
        "a_string": "é",
        "a_bytes": "/w==",
        "color": "BLUE",
    }
    assert read(file_format, FIRST + row(color=7).SerializeToString())["color"] == "UNKNOWN_ENUM_VALUE_Color_7"


def fields_of(file_format: Format, index: tuple[int, ...] = (0,)) -> dict[str, DataType]:
    """Return the types of the fields of a message by name."""
    found = file_format.data_type(index)
    assert isinstance(found, StructType)
    return {column.name: column.data_type for column in found.fields}


def test_the_columns_of_scalars() -> None:
    """Unsigned 32-bit numbers need 64 bits."""
    assert {name: str(data_type) for name, data_type in fields_of(format_of(schema_of(scalars()))).items()} == {
        "a_double": "double",
        "a_float": "float",
        **{f"a_{kind}": "int" for kind in ("int32", "sint32", "sfixed32")},
        **{f"a_{kind}": "bigint" for kind in ("uint32", "fixed32", "int64", "uint64", "sint64", "fixed64", "sfixed64")},
        "a_bool": "boolean",
        "a_string": "string",
        "a_bytes": "binary",
        "color": "string",
    }


def test_what_is_absent_is_null() -> None:
    """`optional`, a part of a oneof, a message: null if it is absent, and its value if it is there, also a default."""
    file = file_of()
    message = file.message_type.add(name="Row")
    message.oneof_decl.add(name="way")
    for name, number in (("air", 2), ("sea", 3)):
        add(message, name, number, "string", oneof_index=0)
    optional(message, "opt", 1, "int32")
    add(message, "inner", 4, "shop.Row.Inner")
    add(message.nested_type.add(name="Inner"), "x", 1, "int32")
    add(message, "list", 5, "int32*")
    add(message, "inners", 6, "shop.Row.Inner*")
    schema = schema_of(file)
    file_format, row = format_of(schema), message_class(schema)
    assert read(file_format, FIRST) == {"opt": None, "air": None, "sea": None, "inner": None, "list": [], "inners": []}
    full = row(opt=0, sea="", inner={}, list=[1, 0], inners=[{"x": 1}, {}])
    assert read(file_format, FIRST + full.SerializeToString()) == {
        "opt": 0,
        "air": None,
        "sea": "",
        "inner": {"x": 0},
        "list": [1, 0],
        "inners": [{"x": 1}, {"x": 0}],
    }
    assert str(fields_of(file_format)["inners"]) == "array<struct<x: int>>"


def test_proto2_has_presence_and_required_fields() -> None:
    """An optional field of proto2 that is absent is null, whatever its default."""
    file = file_of(syntax="proto2")
    message = file.message_type.add(name="Row")
    add(message, "a", 1, "int32", label=FIELD.LABEL_REQUIRED)
    add(message, "b", 2, "string", default_value="x")
    schema = schema_of(file)
    row = message_class(schema)
    assert read(format_of(schema), FIRST + row(a=1).SerializeToString()) == {"a": 1, "b": None}
    assert read(format_of(schema), FIRST + row(a=1, b="x").SerializeToString()) == {"a": 1, "b": "x"}


def test_what_karapace_leaves_out_is_completed() -> None:
    """The oneof of an `optional` field, maps, and full names of types."""
    file = file_of()
    file.enum_type.add(name="Color").value.add(name="RED", number=0)
    message = file.message_type.add(name="Row")
    message.nested_type.add(name="Inner")
    add(message, "opt", 1, "int32", proto3_optional=True)
    for name, number, kind in (
        ("inner", 2, "Inner"),
        ("color", 3, "Color"),
        ("a_map", 4, "map<string, int64>"),
        ("b_map", 5, "map<bool,Inner>"),
    ):
        message.field.add(name=name, number=number, label=FIELD.LABEL_OPTIONAL, type_name=kind)
    schema = schema_of(file)
    assert read(format_of(schema), FIRST) == {"opt": None, "inner": None, "color": "RED", "a_map": {}, "b_map": []}
    full = message_class(schema)(opt=0, inner={}, a_map={"x": 1}, b_map={True: {}})
    assert read(format_of(schema), FIRST + full.SerializeToString()) == {
        "opt": 0,
        "inner": {},
        "color": "RED",
        "a_map": {"x": 1},
        "b_map": [[True, {}]],
    }
    old = file_of(syntax="proto2")
    add(old.message_type.add(name="Row"), "opt", 1, "int32", proto3_optional=True)
    assert read(format_of(schema_of(old)), FIRST) == {"opt": None}


def test_maps() -> None:
    """Text keys make an object, others an array of pairs."""
    file = file_of()
    message = file.message_type.add(name="Row")
    add_map(message, "shop.Row", "texts", 1, ("string", "int64"))
    add_map(message, "shop.Row", "numbers", 2, ("int32", "shop.Row"))
    schema = schema_of(file)
    row = message_class(schema)
    data = row(texts={"b": 2, "a": 1}, numbers={2: {}, 1: {"texts": {"x": 3}}}).SerializeToString()
    empty: dict[str, Any] = {"texts": {}, "numbers": []}
    assert read(format_of(schema), FIRST) == empty
    assert read(format_of(schema), FIRST + data) == {"texts": {"a": 1, "b": 2}, "numbers": [[1, {**empty, "texts": {"x": 3}}], [2, empty]]}
    assert [str(data_type) for data_type in fields_of(format_of(schema)).values()] == ["map<string,bigint>", "json"]


def known_types() -> Any:
    """Return a file that imports what the registry knows without a reference."""
    imports = ("google/protobuf/wrappers.proto", "google/protobuf/timestamp.proto", "google/type/date.proto", "google/type/timeofday.proto")
    file = file_of(imports=(*imports, "confluent/type/decimal.proto", "confluent/meta.proto"))
    message = file.message_type.add(name="Row")
    add(message, "text", 1, "google.protobuf.StringValue")
    add(message, "number", 2, "google.protobuf.UInt32Value")
    add(message, "at", 3, "google.protobuf.Timestamp")
    add(message, "day", 4, "google.type.Date")
    add(message, "time", 5, "google.type.TimeOfDay")
    add(message, "own_scale", 6, "confluent.type.Decimal")
    with_params(add(message, "price", 7, "confluent.type.Decimal"), scale="2", precision="9")
    with_params(add(message, "prices", 8, "confluent.type.Decimal*"), scale="2")
    with_params(add(message, "small", 9, "int32"), **{"connect.type": "int8"})
    return file


def decimal(unscaled: int, scale: int) -> dict[str, Any]:
    """Return a Decimal."""
    return {"value": unscaled.to_bytes(8, "big", signed=True), "scale": scale}


def test_wrappers_times_and_decimals_become_what_they_mean() -> None:
    """And the row converter makes columns of them."""
    schema = schema_of(known_types())
    file_format, row = format_of(schema), message_class(schema)
    assert read(file_format, FIRST) == {
        **dict.fromkeys(["text", "number", "at", "day", "time", "own_scale", "price"]),
        "prices": [],
        "small": 0,
    }
    message = row(
        text={"value": ""},
        number={"value": 2**32 - 1},
        at={"seconds": 1_714_564_800, "nanos": 1},
        day={"year": 2024, "month": 5, "day": 1},
        time={"hours": 23, "minutes": 59, "seconds": 59, "nanos": 5},
        own_scale=decimal(-12345, 3),
        price=decimal(-12345, 2),
        prices=[decimal(5, 0), decimal(12340, 3)],
    )
    frame = FIRST + message.SerializeToString()
    values = read(file_format, frame)
    assert values["text"] == ""
    assert values["number"] == 2**32 - 1
    assert values["at"] == "2024-05-01T12:00:00.000000001Z"
    assert values["day"] == 19844
    assert values["time"] == 86_399_000_000_005
    assert base64.b64decode(values["price"]) == (-12345).to_bytes(2, "big", signed=True)
    assert [int.from_bytes(base64.b64decode(price), "big") for price in values["prices"]] == [500, 1234]
    columns = [Column(name, data_type) for name, data_type in fields_of(file_format).items()]
    canonical = json.loads(RowConverter(columns).convert(file_format.read(header(1) + frame)[0]))
    assert canonical == {
        "text": "",
        "number": 2**32 - 1,
        "at": "2024-05-01T12:00:00.000000001Z",
        "day": "2024-05-01",
        "time": "23:59:59.000000005",
        "own_scale": "-12.345",
        "price": "-123.45",
        "prices": ["5.00", "12.34"],
        "small": 0,
    }


def test_the_columns_of_wrappers_times_and_decimals() -> None:
    """Parameters of a field are in Confluent's option."""
    assert fields_of(format_of(schema_of(known_types()))) == {
        "text": ScalarType("string"),
        "number": ScalarType("bigint"),
        "at": ScalarType("timestamp", "text"),
        "day": ScalarType("date", "days"),
        "time": ScalarType("time", "nanos"),
        "own_scale": DecimalType(),
        "price": DecimalType(9, 2),
        "prices": ArrayType(DecimalType(38, 2)),
        "small": ScalarType("tinyint"),
    }


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"at": {"seconds": 10**15}}, "outside the years 1 to 9999"),
        ({"at": {"nanos": -1}}, "no -1 nanoseconds"),
        ({"day": {"month": 5}}, "year"),
        ({"price": decimal(1, 3)}, "a Decimal of scale 3 does not fit the field's scale 2"),
        ({"price": decimal(1, -(2**31))}, "a Decimal has the scale -2147483648, its field the scale 2"),
    ],
)
def test_values_that_mean_nothing_are_refused(values: dict[str, Any], reason: str) -> None:
    """The reason is that of the row's dead letter."""
    schema = schema_of(known_types())
    with pytest.raises(UndecodableFrame, match=f"schema 1: .*{reason}"):
        read(format_of(schema), FIRST + message_class(schema)(**values).SerializeToString())


def nested() -> Any:
    """Return a file with three messages, the second of which has messages within it."""
    file = file_of()
    for name in ("First", "Second", "Third"):
        add(file.message_type.add(name=name), name.lower(), 1, "string")
    within = file.message_type[1].nested_type.add(name="Within")
    add(within.nested_type.add(name="Deep"), "deep", 1, "string")
    return file


@pytest.mark.parametrize(
    ("written", "index", "name"),
    [
        (b"\0", (0,), "first"),
        (b"\x02\0", (0,), "first"),
        (b"\x02\x04", (2,), "third"),
        (b"\x06\x02\0\0", (1, 0, 0), "deep"),
    ],
)
def test_the_message_index_says_which_message_it_is(written: bytes, index: tuple[int, ...], name: str) -> None:
    """Zigzag numbers: a count, then the way to the message."""
    schema = schema_of(nested())
    data = message_class(schema, index)(**{name: "x"}).SerializeToString()
    text, written_with = format_of(schema).read(header(1) + written + data)
    assert json.loads(text) == {name: "x"}
    assert written_with == WriterSchema(1, index)
    assert list(fields_of(format_of(schema), index)) == [name]


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "the payload ends too early"),
        (b"\x02", "the payload ends too early"),
        (b"\x01\x01", "the message index has -1 parts; numbers without zigzag, an old option of some producers, cannot be read"),
        (b"\xfe\x01" + b"\0" * 200, "the message index has 127 parts"),
        (b"\x02\x06", r"there is no message with index \[3\]"),
        (b"\x02\x01", r"there is no message with index \[-1\]"),
        (b"\x04\0\0", r"there is no message with index \[0, 0\]"),
        (b"\0\x0a\x05ab", "the payload is no shop.First"),
        (b"\0\x0a\x02\xff\xfe", "the payload is no shop.First"),
    ],
)
def test_what_does_not_fit_the_schema_is_refused(payload: bytes, reason: str) -> None:
    """The reason names the schema and what is wrong."""
    with pytest.raises(UndecodableFrame, match=f"schema 1: {reason}"):
        format_of(schema_of(nested())).read(header(1) + payload)


def test_messages_within_themselves_have_an_end() -> None:
    """A value may be nested; one that is nested without end is refused. The column is a value of any kind."""
    file = file_of()
    message = file.message_type.add(name="Row")
    add(message, "next", 1, "shop.Row")
    add(message, "x", 2, "int32")
    schema = schema_of(file)
    row = message_class(schema)
    assert read(format_of(schema), FIRST + row(x=1, next={"x": 2}).SerializeToString()) == {"next": {"next": None, "x": 2}, "x": 1}
    data = b""
    for _ in range(500):
        size = len(data)
        data = b"\x0a" + (bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])) + data
    with pytest.raises(UndecodableFrame, match=r"the payload is no shop\.Row"):
        read(format_of(schema), FIRST + data)
    assert str(fields_of(format_of(schema))["next"]) == "json"


def test_files_are_imported_by_reference_or_known(tmp_path: Path) -> None:
    """From the registry: serialized, with their own references; the import's path is the reference's name."""
    base, money = file_of("default", "base"), file_of("default", "base")
    add(money.message_type.add(name="Money"), "units", 1, "int64")
    base.dependency.append("base/money.proto")
    add(base.message_type.add(name="Base"), "money", 1, "base.Money")
    file = file_of(imports=("base/base.proto", "base/money.proto"))  # which is there by then
    add(file.message_type.add(name="Row"), "base", 1, "base.Base")
    registry = Registry()
    registry.add("syntax …", kind="PROTOBUF", subject="money", serialized=text_of(money))
    money_reference = [{"name": "base/money.proto", "subject": "money", "version": 1}]
    registry.add("syntax …", kind="PROTOBUF", subject="base", serialized=text_of(base), references=money_reference)
    references = [{"name": "base/base.proto", "subject": "base", "version": 1}, *money_reference]
    schema_id = registry.add("syntax …", kind="PROTOBUF", serialized=text_of(file), references=references)
    schema = schema_of(file, ("base/money.proto", money), ("base/base.proto", base))
    frame = header(schema_id) + FIRST + message_class(schema)(base={"money": {"units": 5}}).SerializeToString()
    with running(registry), pytest.MonkeyPatch.context() as patch:
        patch.setenv("no_proxy", "*")
        decoder = RegistryDecoder(config_of(registry.url), str(tmp_path))
        decoded = decoder.decode_column(pa.array([frame, frame]))
        assert decoded.values.to_pylist() == [b'{"base":{"money":{"units":5}}}'] * 2
        assert list(dict.fromkeys(decoded.schemas.values())) == [WriterSchema(schema_id, (0,))]
        assert str(decoder.data_type(*decoded.schemas[0])) == "struct<base: struct<money: struct<units: bigint>>>"
    assert registry.requests[:2] == ["/schemas/ids/3", "/schemas/ids/3?format=serialized"]
    assert registry.requests[2] == "/subjects/base/versions/1?deleted=true&format=serialized"


def test_a_file_that_is_missing_is_named() -> None:
    """In every dead letter of the schema."""
    file = file_of(imports=("google/type/postal_address.proto",))
    add(file.message_type.add(name="Row"), "x", 1, "int32")
    with pytest.raises(UndecodableFrame, match=r"schema 1 cannot be read: it imports google/type/postal_address\.proto, which is neither"):
        format_of(schema_of(file)).read(header(1) + FIRST)
    broken = file_of()
    add(broken.message_type.add(name="Row"), "x", 1, "shop.Missing")
    with pytest.raises(UndecodableFrame, match="schema 1 cannot be read: the file of the schema does not fit together"):
        format_of(schema_of(broken)).read(header(1) + FIRST)


def test_without_the_library_the_stream_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows would be dead letters for want of a package."""
    name = "lastword.change_data.registry"
    monkeypatch.delattr(f"{name}.protobuf")
    monkeypatch.setitem(sys.modules, f"{name}.protobuf", None)
    with pytest.raises(SchemaRegistryError, match="schema 1 is Protobuf, which needs the package protobuf"):
        format_of(schema_of(scalars()))


@pytest.mark.parametrize("path", ["money", "decimal", "latlng", "fraction", "quaternion", "interval"])
def test_googles_common_types_are_known(path: str) -> None:
    """As the registry knows them."""
    file = file_of(imports=(f"google/type/{path}.proto", "confluent/type/variant.proto"))
    name = {"latlng": "LatLng"}.get(path, path.capitalize())
    add(file.message_type.add(name="Row"), "x", 1, f"google.type.{name}")
    assert read(format_of(schema_of(file)), FIRST) == {"x": None}


def test_an_extension_is_no_field_of_the_message() -> None:
    """Extension fields of a Protobuf message are left out of the columns and the JSON."""
    file = file_of(syntax="proto2")
    message = file.message_type.add(name="Row")
    message.extension_range.add(start=100, end=200)
    add(message, "x", 1, "int32")
    file.extension.add(name="more", number=100, label=FIELD.LABEL_OPTIONAL, type=FIELD.TYPE_INT32, extendee=".shop.Row")
    assert read(format_of(schema_of(file)), FIRST + b"\x08\x05" + b"\xa0\x06\x07") == {"x": 5}
