"""Avro of a registry: values as Connect's JsonConverter writes them, and the Connect schema beside them."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import pytest

from lastword.change_data.columns.connect_schema import columns_of_connect_schema
from lastword.change_data.columns.row_converter import RowConverter
from lastword.change_data.events.debezium import read_events
from lastword.change_data.events.envelopes import Envelope
from lastword.change_data.registry.avro import parse_avro
from lastword.change_data.registry.avro_connect import connect_schema_of
from lastword.change_data.registry.formats import Format, format_of
from lastword.change_data.registry.schemas import RegisteredSchema, UndecodableFrame
from tests.storage.schema_registry.registries import ENVELOPE, EVENT, ROW_VALUE, avro_frame, header

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


def converted(schema: Any) -> dict[str, Any]:
    """Return the Connect schema of an Avro schema."""
    return connect_schema_of(parse_avro(json.dumps(schema)))


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


def test_a_row_of_debezium_becomes_canonical_with_its_connect_schema() -> None:
    """What the schema says is what the row converter needs."""
    schema, text = converted(ENVELOPE), format_for(ENVELOPE).read(avro_frame(1, ENVELOPE, EVENT))[0]
    row = json.dumps(json.loads(text)["after"]).encode()
    assert json.loads(RowConverter(columns_of_connect_schema(schema)).convert(row)) == {
        **ROW_JSON,
        "price": "-123.45",
        "made": "2024-05-01T12:00:00.123456",
        "paid": "2024-05-01T12:00:00.000001Z",
        "day": "2024-05-01",
    }


def _deletion() -> dict[str, Any]:
    return {**EVENT, "before": ROW_VALUE, "after": None, "op": "d", "source": {**EVENT["source"], "lsn": 987_654_999}}


def test_the_connect_schema_of_debezium() -> None:
    """What Connect noted in the Avro schema comes back."""
    schema = converted(ENVELOPE)
    assert (schema["name"], schema["version"], schema["optional"]) == ("pg.shop.orders.Envelope", 2, False)
    before, after, source, operation, moment = schema["fields"]
    assert before == {**after, "field": "before"}
    assert (after["type"], after["name"], after["optional"]) == ("struct", "pg.shop.orders.Value", True)
    assert source["name"] == "io.debezium.connector.postgresql.Source"
    assert operation == {"type": "string", "optional": False, "field": "op"}
    assert moment == {"type": "int64", "optional": True, "field": "ts_ms"}
    fields = {field.pop("field"): field for field in after["fields"]}
    assert fields["id"] == {"type": "int64", "optional": False}
    assert fields["price"] == {
        "type": "bytes",
        "optional": True,
        "name": "org.apache.kafka.connect.data.Decimal",
        "version": 1,
        "parameters": {"scale": "2", "connect.decimal.precision": "9"},
    }
    assert fields["made"] == {"type": "int64", "optional": True, "name": "io.debezium.time.MicroTimestamp", "version": 1}
    assert fields["weight"]["type"] == "float"
    assert fields["size"]["type"] == "double"
    assert fields["flag"] == {"type": "boolean", "optional": False, "default": True}
    assert fields["state"] == {
        "type": "string",
        "optional": True,
        "name": "io.debezium.data.Enum",
        "version": 1,
        "parameters": {"allowed": "open,closed"},
        "default": "open",
    }
    assert fields["tags"] == {"type": "array", "optional": True, "items": {"type": "string", "optional": True}}


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


LOGICAL: list[tuple[dict[str, Any], Any, Any, dict[str, Any]]] = [
    ({"type": "int", "logicalType": "date"}, 19844, 19844, {"type": "int32", "name": "org.apache.kafka.connect.data.Date"}),
    ({"type": "int", "logicalType": "time-millis"}, 5, 5, {"type": "int32", "name": "org.apache.kafka.connect.data.Time"}),
    ({"type": "long", "logicalType": "timestamp-millis"}, -5, -5, {"type": "int64", "name": "org.apache.kafka.connect.data.Timestamp"}),
    *(
        (
            {"type": kind, "logicalType": logical},
            value,
            value,
            {"type": connect, "name": name, "parameters": {"avro.logicalType": logical}},
        )
        for kind, logical, value, connect, name in [
            ("long", "timestamp-micros", 253_402_300_799_999_999, "int64", "io.debezium.time.MicroTimestamp"),
            ("long", "timestamp-nanos", 2**62, "int64", "io.debezium.time.NanoTimestamp"),
            ("long", "local-timestamp-millis", 1, "int64", "io.debezium.time.Timestamp"),
            ("long", "local-timestamp-micros", 1, "int64", "io.debezium.time.MicroTimestamp"),
            ("long", "local-timestamp-nanos", 1, "int64", "io.debezium.time.NanoTimestamp"),
            ("long", "time-micros", 1, "int64", "io.debezium.time.MicroTime"),
            ("string", "uuid", "not checked", "string", "io.debezium.data.Uuid"),
        ]
    ),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 3},
        b"\xcf\xc7",
        "z8c=",
        {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "3", "connect.decimal.precision": "38"}},
    ),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 64, "scale": 2},
        b"\x01",
        "AQ==",
        {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}},
    ),
    (
        {"type": "fixed", "name": "Money", "size": 4, "logicalType": "decimal", "precision": 8},
        b"\xff\xff\xcf\xc7",
        "///Pxw==",
        {
            "type": "bytes",
            "name": "org.apache.kafka.connect.data.Decimal",
            "parameters": {"connect.fixed.size": "4", "scale": "0", "connect.decimal.precision": "8"},
        },
    ),
]


@pytest.mark.parametrize(("schema", "raw", "text", "connect"), LOGICAL, ids=lambda part: str(part)[:50])
def test_logical_types_stay_what_they_are_written_as(schema: dict[str, Any], raw: Any, text: Any, connect: dict[str, Any]) -> None:
    """No date or decimal of Python that cannot hold all of them; the Connect schema says what they mean."""
    plain = {name: value for name, value in schema.items() if name != "logicalType"}
    frame = avro_frame(1, record(("x", ["null", plain])), {"x": raw})
    assert json.loads(format_for(record(("x", ["null", schema]))).read(frame)[0]) == {"x": text}
    assert converted(schema) == {"optional": False, "version": 1, **connect}


def test_what_connect_noted_counts_before_the_logical_type() -> None:
    """Name, version, parameters, small integers, defaults, and no name where Connect made one up."""
    assert converted({"type": "int", "connect.type": "int16", "connect.default": 3, "connect.doc": "small"}) == {
        "type": "int16",
        "optional": False,
        "doc": "small",
        "default": 3,
    }
    assert converted({"type": "long", "logicalType": "timestamp-micros", "connect.name": "x.Y", "connect.version": 4}) == {
        "type": "int64",
        "optional": False,
        "name": "x.Y",
        "version": 4,
        "parameters": {"avro.logicalType": "timestamp-micros"},
    }
    assert "name" not in converted(record(namespace="io.confluent.connect.avro", name="ConnectDefault2"))
    schema = {
        "type": "record",
        "name": "a.Row",
        "fields": [
            {"name": "b", "type": "bytes", "default": "\u00ff", "connect.parameters": {"k": 1}},
            {"name": "n", "type": ["null", "int"], "default": None},
            {"name": "e", "type": "bytes", "default": "€"},
            {"name": "z", "type": "null"},
            {"name": "l", "type": {"type": "array", "items": "bytes"}, "default": ["a"]},
            {"name": "m", "type": {"type": "map", "values": "int"}, "default": {"a": 1}},
            {
                "name": "r",
                "type": {"type": "record", "name": "In", "fields": [{"name": "u", "type": ["bytes", "null"]}]},
                "default": {"u": "a"},
            },
        ],
    }
    fields = {field["field"]: field for field in converted(schema)["fields"]}
    assert fields["b"] == {"type": "bytes", "optional": False, "parameters": {"k": "1"}, "default": "/w==", "field": "b"}
    assert "default" not in fields["n"]
    assert "default" not in fields["e"], "which has no character for each byte"
    assert fields["z"] == {"type": "string", "optional": True, "field": "z"}
    assert fields["l"]["default"] == ["YQ=="]
    assert fields["m"]["default"] == {"a": 1}
    assert fields["r"]["default"] == {"u": "YQ=="}
    assert fields["r"]["name"] == "a.In"


def test_enums_have_their_symbols_as_parameters() -> None:
    """As Connect's converter notes them."""
    assert converted({"type": "enum", "name": "a.E", "symbols": ["X", "Y"]}) == {
        "type": "string",
        "optional": False,
        "name": "a.E",
        "parameters": {
            "io.confluent.connect.avro.Enum": "a.E",
            "io.confluent.connect.avro.Enum.X": "X",
            "io.confluent.connect.avro.Enum.Y": "Y",
        },
    }


def test_a_union_of_several_types_is_a_struct_with_one_field_set() -> None:
    """As Connect does; of named types the field has the short name."""
    inner = {"type": "record", "name": "a.Inner", "fields": [{"name": "x", "type": "int"}]}
    schema = record(("u", ["null", "string", inner, {"type": "array", "items": "int"}]))
    assert through(schema, {"u": None}) == {"u": None}
    assert through(schema, {"u": "s"}) == {"u": {"string": "s", "Inner": None, "array": None}}
    assert through(schema, {"u": {"x": 1}}) == {"u": {"string": None, "Inner": {"x": 1}, "array": None}}
    field = converted(schema)["fields"][0]
    assert (field["type"], field["optional"], field["name"]) == ("struct", True, "io.confluent.connect.avro.Union")
    assert [(part["field"], part["optional"]) for part in field["fields"]] == [("string", True), ("Inner", True), ("array", True)]
    two = [{**inner, "name": "a.Same"}, {**inner, "name": "b.Same"}]
    assert set(json.loads(format_for(two).read(header(1) + b"\2\2")[0])) == {"a.Same", "b.Same"}
    assert through(record(("u", ["string"])), {"u": "s"}) == {"u": "s"}
    assert converted(["string"]) == {"type": "string", "optional": False}


def test_a_map_without_text_keys_is_an_array_of_pairs() -> None:
    """Connect writes entries; JsonConverter makes an object of them if the keys are texts."""

    def entries(key: Any) -> dict[str, Any]:
        entry = record(("key", key), ("value", "int"), namespace="io.confluent.connect.avro", name="MapEntry")
        return record(("m", {"type": "array", "items": entry}))

    values = [{"key": 1, "value": 10}, {"key": 2, "value": 20}]
    assert through(entries("int"), {"m": values}) == {"m": [[1, 10], [2, 20]]}
    texts = [{"key": "a", "value": 10}, {"key": None, "value": 20}]
    assert through(entries(["null", "string"]), {"m": texts}) == {"m": {"a": 10, "null": 20}}
    field = converted(entries("int"))["fields"][0]
    assert field == {
        "type": "map",
        "optional": False,
        "keys": {"type": "int32", "optional": False},
        "values": {"type": "int32", "optional": False},
        "field": "m",
    }


def test_recursive_records() -> None:
    """A list and a tree; the Connect schema names the record where it comes again."""
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
    fields = {field["field"]: field for field in converted(schema)["fields"]}
    assert (fields["next"]["name"], fields["next"]["optional"]) == ("lastword.AnyValue", True)
    assert (fields["more"]["items"]["doc"], fields["more"]["items"]["optional"]) == ("t.Node within itself", False)
    text = format_for(schema).read(avro_frame(1, schema, value))[0]
    assert json.loads(RowConverter(columns_of_connect_schema(converted(schema))).convert(text)) == value


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
