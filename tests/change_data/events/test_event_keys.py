"""Keys of change events: one for one row, whoever wrote it, and two for two rows."""

from __future__ import annotations

import json
import struct
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastword.change_data.columns.json_rows import NoEvent
from lastword.change_data.events.event_keys import KeyFormat, KeyReader, canonical_key

_DECIMAL = "org.apache.kafka.connect.data.Decimal"


def _schema(scale: int, **more: Any) -> dict[str, Any]:
    parameters = {"scale": str(scale), "connect.decimal.precision": "12"}
    return {"type": "struct", "fields": [{"type": "bytes", "name": _DECIMAL, "field": "id", "parameters": parameters, **more}]}


def _wrapped(schema: Any, payload: Any) -> bytes:
    return json.dumps({"schema": schema, "payload": payload}).encode()


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param([b"1.10", b"1.1", b"1e3", b"1000", b"-0", b"0", b"0.0", b"1000.0"], id="texts that are numbers"),
        pytest.param([b" 5", b"5", b"5 ", b"05", b"+5"], id="texts with spaces, zeros or a sign"),
        pytest.param([b"true", b"True", b"TRUE", b"NaN", b"Infinity", b"nul"], id="words"),
        pytest.param([b'{"id":123456789012345678.25}', b'{"id":123456789012345678.5}'], id="digits that no float has"),
        pytest.param([b'{"id":0.1}', b'{"id":0.10000000000000000001}'], id="a tenth, and a little more"),
        pytest.param([b'{"id":1e400}', b'{"id":2e400}', b'{"id":1e-400}', b'{"id":0}'], id="beyond the range of a float"),
        pytest.param([b'{"a":[1.5]}', b'{"a":[1.50000000000000000000001]}', b'{"a":{"b":1.5}}'], id="nested"),
        pytest.param([b'{"schema":"a","payload":"b"}', b'{"schema":"x","payload":"b"}', b'"b"'], id="columns called schema and payload"),
        pytest.param([b'{"schema":5,"payload":1}', b'{"schema":6,"payload":1}', b"1"], id="numbers in such columns"),
    ],
)
def test_keys_that_differ_stay_different(keys: list[bytes]) -> None:
    """No number goes through a float, and no name alone takes a part of a key away."""
    assert len({canonical_key(key) for key in keys}) == len(keys)


@pytest.mark.parametrize(
    ("key", "canonical"),
    [
        (b'{"id":1.0}', b'{"id":1}'),
        (b'{"id":1.10}', b'{"id":1.1}'),
        (b'{"id":-0.0}', b'{"id":0}'),
        (b'{"id":1e2}', b'{"id":100}'),
        (b'{"id":123456789012345678.250}', b'{"id":123456789012345678.25}'),
        (b'{"id":12345678901234567890.0}', b'{"id":12345678901234567890}'),
        (b'{"id":-0.00012345678901234567890}', b'{"id":-0.0001234567890123456789}'),
        (b'{"id":10000000000000000000000000000000000000000000000001e60}', b'{"id":10000000000000000000000000000000000000000000000001e60}'),
        (b'{"b":{"d":1,"c":[2.0]},"a":null}', b'{"a":null,"b":{"c":[2],"d":1}}'),
        (_wrapped({"type": "int32"}, 5), b"5"),
        (_wrapped(None, {"id": 5}), b'{"id":5}'),
        (b'{"id":9007199254740992.0}', b'{"id":9007199254740992}'),
        (b'{"id":1e18}', b'{"id":1000000000000000000}'),
        (b'{"id":1e22}', b'{"id":10000000000000000000000}'),
        (b'{"id":-0.0e5}', b'{"id":0}'),
        (b"null", b"null"),
        (b"plain", b'"plain"'),
    ],
)
def test_a_key_in_canonical_form(key: bytes, canonical: bytes) -> None:
    """Numbers of an object are compared as numbers; its canonical form is its own."""
    assert canonical_key(key) == canonical
    assert canonical_key(canonical) == canonical


@given(st.decimals(allow_nan=False, allow_infinity=False, places=None), st.integers(0, 3))
def test_numbers_are_one_key_if_they_are_equal(number: Decimal, zeros: int) -> None:
    """`1.50` and `1.5` are one key; all digits that change the value are kept."""
    text = f"{number:f}" + ("" if "." in f"{number:f}" else ".") + "0" * (zeros + 1)
    canonical = canonical_key(f'{{"id":{text}}}'.encode())
    assert canonical == canonical_key(f'{{"id":{number:f}}}'.encode()) or "." not in f"{number:f}"
    decode = msgspec.json.Decoder(float_hook=Decimal).decode
    assert Decimal(decode(canonical)["id"]) == number


@pytest.mark.parametrize(
    ("key_format", "key", "canonical"),
    [
        ("string", b"1.10", b'"1.10"'),
        ("string", b'{"a":1}', b'"{\\"a\\":1}"'),
        ("string", b'"quoted"', b'"\\"quoted\\""'),
        ("string", b"", b'""'),
        ("short", struct.pack(">h", -2), b"-2"),
        ("integer", struct.pack(">i", 7), b"7"),
        ("long", struct.pack(">q", 2**62), str(2**62).encode()),
        ("float", struct.pack(">f", 0.5), b"0.5"),
        ("double", struct.pack(">d", 1e300), b"1e300"),
        ("double", struct.pack(">d", float("nan")), b'"nan"'),
        ("bytes", b"\x00\xff", b'"AP8="'),
        ("json", b'{"b":1,"a":2}', b'{"a":2,"b":1}'),
    ],
)
def test_a_key_of_each_serializer(key_format: KeyFormat, key: bytes, canonical: bytes) -> None:
    """As Kafka's serializers and Connect's converters write it."""
    assert KeyReader(key_format).read(key) == canonical


@pytest.mark.parametrize(
    ("key_format", "key", "message"),
    [
        ("long", b"12345", r"the key has 5 bytes, and key\.format = long asks for 8"),
        ("integer", b"", r"the key has 0 bytes, and key\.format = integer asks for 4"),
        ("string", b"\xff", r"the key is not UTF-8, which key\.format = string asks for"),
    ],
)
def test_a_key_of_another_serializer_is_refused_by_name(key_format: KeyFormat, key: bytes, message: str) -> None:
    """With the setting that says how keys are written."""
    with pytest.raises(NoEvent, match=message):
        KeyReader(key_format).read(key)


def test_a_decimal_of_a_key_is_the_same_under_each_scale() -> None:
    """2.74 with two digits and with four, alone, beside other columns, and with a scale of its own."""
    keys = [_wrapped(_schema(2), {"id": "ARI="}), _wrapped(_schema(4), {"id": "awg="})]
    assert {canonical_key(key) for key in keys} == {b'{"id":"2.74"}'}
    alone = [{**_schema(2)["fields"][0]}, {**_schema(4)["fields"][0]}]
    assert {canonical_key(_wrapped(schema, text)) for schema, text in zip(alone, ("ARI=", "awg="), strict=True)} == {b'"2.74"'}
    variable = {
        "type": "struct",
        "name": "io.debezium.data.VariableScaleDecimal",
        "field": "id",
        "fields": [{"type": "int32", "field": "scale"}, {"type": "bytes", "field": "value"}],
    }
    given = {"type": "struct", "fields": [variable, {"type": "string", "field": "t"}]}
    payloads = [{"id": {"scale": 2, "value": "ARI="}, "t": "x"}, {"t": "x", "id": {"scale": 4, "value": "awg="}}]
    assert {canonical_key(_wrapped(given, payload)) for payload in payloads} == {b'{"id":"2.74","t":"x"}'}
    assert KeyReader().read(b'{"id":"ARI="}', json.dumps(_schema(2)).encode()) == b'{"id":"2.74"}'
    assert canonical_key(_wrapped(_schema(0), {"id": "ZA=="})) == b'{"id":"100"}'
    nested = {"type": "struct", "fields": [{**_schema(2), "field": "k"}, {"type": "array", "field": "l", "items": alone[0]}]}
    wider = {"type": "struct", "fields": [{**_schema(4), "field": "k"}, {"type": "array", "field": "l", "items": alone[1]}]}
    keys = [_wrapped(nested, {"k": {"id": "ARI="}, "l": ["ARI=", None]}), _wrapped(wider, {"k": {"id": "awg="}, "l": ["awg=", None]})]
    assert {canonical_key(key) for key in keys} == {b'{"k":{"id":"2.74"},"l":["2.74",null]}'}
    of_map = {"type": "struct", "fields": [{"type": "map", "field": "m", "keys": {"type": "string"}, "values": alone[0]}]}
    assert canonical_key(_wrapped(of_map, {"m": {"x": "ARI="}})) == b'{"m":{"x":"2.74"}}'
    reader, schema = KeyReader(), json.dumps(_schema(2)).encode()
    assert [reader.read(key, schema) for key in (b'{"id":"ARI="}', b'{"id":"ZA=="}', b"null")] == [b'{"id":"2.74"}', b'{"id":"1"}', b"null"]
    named = json.dumps({"type": "struct", "name": "DecimalKey", "fields": [{"type": "int32", "field": "id"}]}).encode()
    assert reader.read(b'{"id":1, "a":2}', named) == b'{"a":2,"id":1}'
    assert canonical_key(_wrapped(_schema(2, optional=True), {"id": None})) == b'{"id":null}'


@pytest.mark.parametrize(
    ("schema", "payload", "message"),
    [
        (_schema(2), {"id": "no base64!"}, "the key does not fit its schema: column id"),
        ({"type": "struct", "fields": [{"type": "bytes", "name": _DECIMAL}]}, {"id": "ARI="}, "the schema of the key cannot be read"),
        ({"type": "nope", "name": _DECIMAL, "fields": 5, "parameters": {"scale": "x"}}, "ARI=", "the schema of the key cannot be read"),
    ],
)
def test_a_key_that_does_not_fit_its_schema_is_refused(schema: Any, payload: Any, message: str) -> None:
    """Only the event with this key becomes a dead letter."""
    with pytest.raises(NoEvent, match=message):
        canonical_key(_wrapped(schema, payload))
