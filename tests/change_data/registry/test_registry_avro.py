"""Avro of a registry: values as Connect's JsonConverter writes them, and the types of their columns."""

from __future__ import annotations

import base64
import json
import math
from typing import TYPE_CHECKING, Any

import pytest

from lastword.change_data.columns.column_types import DecimalType, ScalarType, StructType
from lastword.change_data.columns.row_converter import RowConverter
from lastword.change_data.events.debezium import read_events
from lastword.change_data.events.envelopes import Envelope
from lastword.change_data.registry.avro import parse_avro
from lastword.change_data.registry.avro_types import data_type_of
from lastword.change_data.registry.formats import Format, format_of
from lastword.change_data.registry.schemas import RegisteredSchema, UndecodableFrame
from tests.storage.schema_registry.registries import ENVELOPE, EVENT, ROW_VALUE, avro_frame, header

if TYPE_CHECKING:
    from lastword.change_data.columns.column_types import DataType

ROW_JSON = {
    "id": 7,
    "name": "pear – é",
    "price": "z8c=",
    "made": 1_714_564_800_123_456,
    "paid": "2024-05-01T12:00:00.000001Z",
    "day": 19844,
    "weight": 0.1,
    "size": 1.5,
    "flag": False,
    "state": "closed",
    "extra": "AP8=",
    "tags": ["a", None],
}


def format_for(schema: Any, schema_id: int = 1, references: tuple[tuple[str, str], ...] = ()) -> Format:
    """Return the format of an Avro schema."""
    return format_of(RegisteredSchema(id=schema_id, kind="AVRO", text=json.dumps(schema), references=references))


def through(schema: Any, value: Any) -> Any:
    """Return what a value is after it went through a frame and JSON."""
    return json.loads(format_for(schema).read(avro_frame(1, schema, value))[0])


def converted(schema: Any) -> DataType:
    """Return the type of a column that an Avro schema describes."""
    return data_type_of(parse_avro(json.dumps(schema)))


def fields_of(schema: Any) -> dict[str, DataType]:
    """Return the types of the fields of a record by name."""
    found = converted(schema)
    assert isinstance(found, StructType)
    return {column.name: column.data_type for column in found.fields}


def record(*fields: tuple[str, Any], **more: Any) -> dict[str, Any]:
    """Return the schema of a record."""
    return {"type": "record", "name": "Row", "fields": [{"name": name, "type": kind} for name, kind in fields], **more}


def test_an_event_of_debezium_is_that_of_the_json_converter() -> None:
    """Numbers stay numbers, a decimal is the base64 of its bytes, and the envelope reader makes a row of it."""
    text, _ = format_for(ENVELOPE).read(avro_frame(1, ENVELOPE, EVENT))
    assert json.loads(text) == {**EVENT, "after": ROW_JSON}
    key = format_for(record(("id", "long"))).read(avro_frame(1, record(("id", "long")), {"id": 7}))[0]
    events = read_events([key, key, key], [text, format_for(ENVELOPE).read(avro_frame(1, ENVELOPE, _deletion()))[0], None], Envelope())
    assert events.key == [b'{"id":7}', b'{"id":7}']
    assert events.value[1] is None
    assert json.loads(events.value[0] or b"") == ROW_JSON
    assert events.refused == {}
    assert events.others == {2: "tombstone"}
    assert all("987654" in sequence for sequence in events.sequence)


def test_a_row_of_debezium_becomes_canonical_with_its_columns() -> None:
    """What the schema says is what the row converter needs."""
    after, text = fields_of(ENVELOPE)["after"], format_for(ENVELOPE).read(avro_frame(1, ENVELOPE, EVENT))[0]
    row = json.dumps(json.loads(text)["after"]).encode()
    assert isinstance(after, StructType)
    assert json.loads(RowConverter(after.fields).convert(row)) == {
        **ROW_JSON,
        "price": "-123.45",
        "made": "2024-05-01T12:00:00.123456",
        "paid": "2024-05-01T12:00:00.000001Z",
        "day": "2024-05-01",
    }


def _deletion() -> dict[str, Any]:
    return {**EVENT, "before": ROW_VALUE, "after": None, "op": "d", "source": {**EVENT["source"], "lsn": 987_654_999}}


def test_the_columns_of_debezium() -> None:
    """What Connect noted in the Avro schema counts."""
    schema = fields_of(ENVELOPE)
    assert list(schema) == ["before", "after", "source", "op", "ts_ms"]
    assert schema["before"] == schema["after"]
    assert (schema["op"], schema["ts_ms"]) == (ScalarType("string"), ScalarType("bigint"))
    after = schema["after"]
    assert isinstance(after, StructType)
    fields = {column.name: column.data_type for column in after.fields}
    assert fields["id"] == ScalarType("bigint")
    assert fields["price"] == DecimalType(9, 2)
    assert fields["made"] == ScalarType("timestamp_ntz", "micros")
    assert [str(fields[name]) for name in ("weight", "size", "flag", "state", "tags")] == [
        "float",
        "double",
        "boolean",
        "enum",
        "array<string>",
    ]


@pytest.mark.parametrize(
    ("schema", "value", "text"),
    [
        ("int", -3, b"-3"),
        ("long", 2**63 - 1, b"9223372036854775807"),
        ("long", -(2**63), b"-9223372036854775808"),
        ("string", 'a"é', '"a\\"é"'.encode()),
        ("boolean", True, b"true"),
        ("double", 1.0, b"1.0"),
        ("null", None, b"null"),
        (["null", "string"], None, b"null"),
        (["null", "string"], "x", b'"x"'),
        ({"type": "string", "avro.java.string": "String"}, "x", b'"x"'),
        ({"type": "long", "connect.name": "io.debezium.time.Timestamp"}, 5, b"5"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", b'"B"'),
        ({"type": "fixed", "name": "F", "size": 2}, b"\0\1", b'"AAE="'),
        ({"type": "array", "items": "int"}, [1, 2], b"[1,2]"),
        ({"type": "map", "values": ["null", "int"]}, {"a": 1, "b": None}, b'{"a":1,"b":null}'),
    ],
)
def test_keys_need_not_be_records(schema: Any, value: Any, text: bytes) -> None:
    """A key is often a number or a text alone."""
    assert format_for(schema).read(avro_frame(1, schema, value))[0] == text


def test_blocks_of_an_array_may_have_their_size() -> None:
    """A negative count is followed by the size of the block in bytes, which a reader does not need."""
    payload = b"\x03\x04\x02\x04" + b"\x02\x06" + b"\x00"
    assert format_for({"type": "array", "items": "int"}).read(header(1) + payload)[0] == b"[1,2,3]"
    assert format_for({"type": "map", "values": "int"}).read(header(1) + b"\x01\x06\x02a\x02\x00")[0] == b'{"a":1}'


def test_bytes_alone_have_no_length() -> None:
    """Confluent's serializer writes them as they are."""
    assert format_for("bytes").read(header(1) + b"\xff\0")[0] == b'"/wA="'
    assert format_for({"type": "bytes", "logicalType": "decimal"}).read(header(1))[0] == b'""'


def test_floats_are_the_numbers_that_java_writes() -> None:
    """Not the double that a float becomes; and text for what JSON has no numbers for."""
    schema = record(("f", "float"), ("d", "double"))
    assert through(schema, {"f": 0.1, "d": 0.1}) == {"f": 0.1, "d": 0.1}
    assert through(schema, {"f": 3.4028234663852886e38, "d": 5e-324}) == {"f": 3.4028235e38, "d": 5e-324}
    assert through(schema, {"f": math.nan, "d": -math.inf}) == {"f": "NaN", "d": "-Infinity"}
    assert through(schema, {"f": math.inf, "d": math.nan}) == {"f": "Infinity", "d": "NaN"}
    assert through(schema, {"f": 1.1604766463905062e-36, "d": 0.0})["f"] == 1.16047665e-36, "some need nine digits"


LOGICAL: list[tuple[dict[str, Any], Any, Any, DataType]] = [
    ({"type": "int", "logicalType": "date"}, 19844, 19844, ScalarType("date", "days")),
    ({"type": "int", "logicalType": "time-millis"}, 5, 5, ScalarType("time", "millis")),
    ({"type": "long", "logicalType": "timestamp-millis"}, -5, -5, ScalarType("timestamp_ntz", "millis")),
    *(
        ({"type": kind, "logicalType": logical}, value, value, ScalarType(column, encoding))
        for kind, logical, value, column, encoding in [
            ("long", "timestamp-micros", 253_402_300_799_999_999, "timestamp_ntz", "micros"),
            ("long", "timestamp-nanos", 2**62, "timestamp_ntz", "nanos"),
            ("long", "local-timestamp-millis", 1, "timestamp_ntz", "millis"),
            ("long", "local-timestamp-micros", 1, "timestamp_ntz", "micros"),
            ("long", "local-timestamp-nanos", 1, "timestamp_ntz", "nanos"),
            ("long", "time-micros", 1, "time", "micros"),
            ("string", "uuid", "not checked", "uuid", ""),
        ]
    ),
    ({"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 3}, b"\xcf\xc7", "z8c=", DecimalType(38, 3)),
    ({"type": "bytes", "logicalType": "decimal", "precision": 64, "scale": 2}, b"\x01", "AQ==", DecimalType(38, 2)),
    (
        {"type": "fixed", "name": "Money", "size": 4, "logicalType": "decimal", "precision": 8},
        b"\xff\xff\xcf\xc7",
        "///Pxw==",
        DecimalType(8, 0),
    ),
]


@pytest.mark.parametrize(("schema", "raw", "text", "data_type"), LOGICAL, ids=lambda part: str(part)[:50])
def test_logical_types_stay_what_they_are_written_as(schema: dict[str, Any], raw: Any, text: Any, data_type: DataType) -> None:
    """No date or decimal of Python that cannot hold all of them; the column's type says what they mean."""
    plain = {name: value for name, value in schema.items() if name != "logicalType"}
    frame = avro_frame(1, record(("x", ["null", plain])), {"x": raw})
    assert json.loads(format_for(record(("x", ["null", schema]))).read(frame)[0]) == {"x": text}
    assert converted(schema) == data_type


def test_what_connect_noted_counts_before_the_logical_type() -> None:
    """Name, parameters, small integers, and no name where Connect made one up."""
    assert converted({"type": "int", "connect.type": "int16", "connect.default": 3, "connect.doc": "small"}) == ScalarType("smallint")
    assert converted({"type": "long", "logicalType": "timestamp-micros", "connect.name": "x.Y"}) == ScalarType("bigint")
    assert converted({"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}) == ScalarType("timestamp_ntz", "micros")
    named = {"type": "bytes", "connect.name": "org.apache.kafka.connect.data.Decimal", "connect.parameters": {"scale": "4"}}
    assert converted(named) == DecimalType(38, 4)
    assert str(converted({"type": "map", "values": "int"})) == "map<string,int>"
    of_field = {
        "name": "d",
        "type": ["null", {"type": "bytes", "connect.name": named["connect.name"]}],
        "connect.parameters": {"scale": "3"},
    }
    assert fields_of({"type": "record", "name": "Row", "fields": [of_field]}) == {"d": DecimalType(38, 3)}
    made_up = {"type": "long", "logicalType": "time-micros", "connect.name": "io.confluent.connect.avro.ConnectDefault2"}
    assert converted(made_up) == ScalarType("time", "micros")
    assert converted(record(namespace="io.debezium.data", name="VariableScaleDecimal")) == DecimalType()
    assert fields_of(record(("z", "null"), ("n", ["null", "int"]), ("e", {"type": "enum", "name": "a.E", "symbols": ["X"]}))) == {
        "z": ScalarType("string"),
        "n": ScalarType("int"),
        "e": ScalarType("string"),
    }
    with pytest.raises(ValueError, match=r"connect\.type .int128. is no type of Connect"):
        converted({"type": "int", "connect.type": "int128"})


def test_a_union_of_several_types_is_a_struct_with_one_field_set() -> None:
    """As Connect does; of named types the field has the short name."""
    inner = {"type": "record", "name": "a.Inner", "fields": [{"name": "x", "type": "int"}]}
    schema = record(("u", ["null", "string", inner, {"type": "array", "items": "int"}]))
    assert through(schema, {"u": None}) == {"u": None}
    assert through(schema, {"u": "s"}) == {"u": {"string": "s", "Inner": None, "array": None}}
    assert through(schema, {"u": {"x": 1}}) == {"u": {"string": None, "Inner": {"x": 1}, "array": None}}
    assert str(fields_of(schema)["u"]) == "struct<string: string, Inner: struct<x: int>, array: array<int>>"
    two = [{**inner, "name": "a.Same"}, {**inner, "name": "b.Same"}]
    assert set(json.loads(format_for(two).read(header(1) + b"\2\2")[0])) == {"a.Same", "b.Same"}
    assert through(record(("u", ["string"])), {"u": "s"}) == {"u": "s"}
    assert converted(["string"]) == ScalarType("string")


def test_a_map_without_text_keys_is_an_array_of_pairs() -> None:
    """Connect writes entries; JsonConverter makes an object of them if the keys are texts."""

    def entries(key: Any) -> dict[str, Any]:
        entry = record(("key", key), ("value", "int"), namespace="io.confluent.connect.avro", name="MapEntry")
        return record(("m", {"type": "array", "items": entry}))

    values = [{"key": 1, "value": 10}, {"key": 2, "value": 20}]
    assert through(entries("int"), {"m": values}) == {"m": [[1, 10], [2, 20]]}
    texts = [{"key": "a", "value": 10}, {"key": None, "value": 20}]
    assert through(entries(["null", "string"]), {"m": texts}) == {"m": {"a": 10, "null": 20}}
    assert [str(fields_of(entries(key))["m"]) for key in ("int", "string", ["null", "string"])] == [
        "json",
        "map<string,int>",
        "map<string,int>",
    ]


def test_recursive_records() -> None:
    """A list and a tree: where the record comes again it is a value of any kind."""
    schema = {
        "type": "record",
        "name": "t.Node",
        "fields": [
            {"name": "v", "type": "int"},
            {"name": "next", "type": ["null", "Node"]},
            {"name": "more", "type": {"type": "array", "items": "Node"}},
        ],
    }
    value = {"v": 1, "next": {"v": 2, "next": None, "more": []}, "more": [{"v": 3, "next": None, "more": []}]}
    assert through(schema, value) == value
    node = converted(schema)
    assert str(node) == "struct<v: int, next: json, more: array<json>>"
    assert isinstance(node, StructType)
    text = format_for(schema).read(avro_frame(1, schema, value))[0]
    assert json.loads(RowConverter(node.fields).convert(text)) == value


def test_data_that_nests_without_end_is_refused_and_ends_no_process() -> None:
    """A recursive record in 200 kB of the same byte."""
    schema = {"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]}
    with pytest.raises(UndecodableFrame, match="schema 1: the payload is nested too deep"):
        format_for(schema).read(header(1) + b"\2" * 200_000 + b"\0")


@pytest.mark.parametrize(
    ("schema", "payload", "reason"),
    [
        ("string", b"\x14ab", "a text of 10 bytes cannot follow byte 6 of 8"),
        ("string", b"\x03ab", "a text of -2 bytes cannot follow byte 6 of 8"),
        ("string", b"\x80\x02" + b"a" * 127, "a text of 128 bytes cannot follow byte 7 of 134"),
        ("string", b"\x04\xff\xfe", "'utf-8' codec can't decode"),
        (["null", "bytes"], b"\x02\x14ab", "10 bytes cannot follow byte 7 of 9"),
        ("boolean", b"\x07", "a boolean is 0 or 1, not 7"),
        ("int", b"\xff\xff\xff\xff\xff\x01", "an int has more than 32 bits"),
        ("long", b"\xff" * 12 + b"\x01", "a number has more than 64 bits"),
        ("long", b"\xff" * 9 + b"\x02", "a number has more than 64 bits"),
        ("long", b"\xff\xff", "ends too early"),
        ("long", b"", "ends too early"),
        ("float", b"abc", "ends too early"),
        ("double", b"abc", "ends too early"),
        ({"type": "fixed", "name": "F", "size": 4}, b"abc", "ends too early"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x01", "there is no symbol -1 of 1"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02", "there is no symbol 1 of 1"),
        (["null", "int"], b"\x01", "a union of 2 has no such branch"),
        (["null", "int", "string"], b"\x05", "a union of 3 has no branch -3"),
        ({"type": "array", "items": "null"}, b"\xfe\xff\xff\xff\x0f\x00", "2147483647 items cannot follow"),
        ({"type": "map", "values": "int"}, b"\x02\x02a", "ends too early"),
        (record(("a", "int"), ("b", "int")), b"\x02\x02\x02", "1 bytes are left behind the value"),
    ],
)
def test_what_does_not_fit_the_schema_is_refused(schema: Any, payload: bytes, reason: str) -> None:
    """The reason names the schema and what is wrong."""
    with pytest.raises(UndecodableFrame) as caught:
        format_for(schema, 9).read(header(9) + payload)
    assert str(caught.value).startswith("schema 9: ")
    assert reason in str(caught.value)


def test_the_same_record_under_two_schemas_is_the_same_json() -> None:
    """An int that became a long, a field that may be null now: another schema id, the same row."""
    old, new = record(("id", "int"), ("n", "string")), record(("id", "long"), ("n", ["null", "string"]))
    value = {"id": 5, "n": "x"}
    assert format_for(old).read(avro_frame(1, old, value))[0] == format_for(new, 2).read(avro_frame(2, new, value))[0]


def test_references_define_types() -> None:
    """A type of another schema, by its full name or within the same namespace."""
    state = json.dumps({"type": "enum", "name": "x.State", "symbols": ["A", "B"]})
    schema = {"type": "record", "name": "x.Row", "fields": [{"name": "s", "type": "State"}, {"name": "t", "type": {"type": "x.State"}}]}
    assert format_for(schema, references=(("x.State", state),)).read(header(1) + b"\0\2")[0] == b'{"s":"A","t":"B"}'


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "record", "name": "R"}, "has no 'fields'"),
        ({"type": "record", "name": "R", "fields": {}}, "the fields of R are no list"),
        ({"type": "record", "name": "R", "fields": [{"type": "int"}]}, "a field of R has no name"),
        ({"type": "record", "name": 7, "fields": []}, "7 is no name"),
        ({"type": "enum", "name": "E"}, "the enum E has no symbols"),
        ({"type": "fixed", "name": "F"}, "the fixed F has no size"),
        ({"type": "array"}, "has no 'items'"),
        ({"no": 1}, "is no type of Avro"),
        (7, "is no type of Avro"),
        ("Row", "the type 'Row' is not defined before it is used"),
        (json.loads('{"type":' * 300 + '"int"' + "}" * 300), "nested more than 200 deep"),
    ],
)
def test_a_schema_that_is_none(schema: Any, reason: str) -> None:
    """The reason is in every dead letter of the schema."""
    with pytest.raises(UndecodableFrame) as caught:
        format_for(schema).read(header(1))
    assert str(caught.value).startswith("schema 1 cannot be read: ")
    assert reason in str(caught.value)


def test_names_need_not_keep_to_the_rules_of_avro() -> None:
    """Registries have schemas from before they were checked."""
    schema = {
        "type": "record",
        "name": "my-topic.Row",
        "fields": [{"name": "a-b", "type": {"type": "enum", "name": "1", "symbols": ["x y"]}}],
    }
    assert format_for(schema).read(header(1) + b"\0")[0] == b'{"a-b":"x y"}'


def test_base64_is_what_json_has_for_bytes() -> None:
    """At any depth."""
    schema = record(("m", {"type": "map", "values": {"type": "array", "items": "bytes"}}))
    assert through(schema, {"m": {"a": [b"\xfb"]}}) == {"m": {"a": [base64.b64encode(b"\xfb").decode()]}}
