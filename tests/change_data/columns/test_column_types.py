"""Values as Debezium sends them, as canonical JSON.

The examples have the form of events that connectors recorded from a real PostgreSQL. What a source loses before it sends a row cannot be
seen here: PostgreSQL's date `infinity` is a day number far outside any calendar, an interval is one number of microseconds, numeric NaN is
null (decimal.handling.mode=precise), NULL is the default of its column, and the JSON text `null` is SQL's NULL.
"""

from __future__ import annotations

import json
import pickle
from base64 import b64encode
from contextlib import suppress
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastword.change_data.columns.column_types import (
    ArrayType,
    Column,
    DecimalType,
    MapType,
    Misfit,
    ScalarType,
    StructType,
    with_time_zones,
)
from lastword.change_data.columns.connect_schema import columns_of_connect_schema, columns_of_ddl
from lastword.change_data.columns.row_converter import RowConverter
from lastword.change_data.columns.row_decoder import RowDecoder

if TYPE_CHECKING:
    from lastword.change_data.columns.column_types import DataType

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
BASE64 = "decimal(20,10)"
MICROS = {"timestamp": ScalarType("timestamp", "micros"), "timestamp_ntz": ScalarType("timestamp_ntz", "micros")}
PLACEHOLDER = "__debezium_unavailable_value"
ENCODED = b64encode(PLACEHOLDER.encode()).decode()
PLACEHOLDERS = frozenset(json.dumps(one).encode() for one in (PLACEHOLDER, ENCODED, PLACEHOLDER.encode().hex(), [PLACEHOLDER], [ENCODED]))


def converted(data_type: DataType, value: str, **options: Any) -> str:
    """Return the canonical JSON of a column `c` whose value is some JSON text."""
    row = RowConverter([Column("c", data_type)], **options).convert(f'{{"c":{value}}}'.encode()).decode()
    assert row.startswith('{"c":')
    return row[len('{"c":') : -1]


def misfit(data_type: DataType, value: str) -> str:
    """Return the error of a column `c` whose value is some JSON text; as the second column of a row that has others, it is the same."""
    with pytest.raises(Misfit) as error:
        converted(data_type, value)
    with pytest.raises(Misfit, match=r"^column c"):
        RowConverter([Column("id", ScalarType("int")), Column("c", data_type)]).convert(f'{{"x":1,"c":{value},"id":1}}'.encode())
    assert converted(data_type, value, on_misfit="null") == "null"
    return str(error.value)


def ddl_type(ddl: str, **modes: Any) -> DataType:
    """Return the type of one column of DDL."""
    return columns_of_ddl(f"c {ddl}", **modes)[0].data_type


def connect_type(schema: dict[str, Any]) -> DataType:
    """Return the type of a field of one Connect schema."""
    return columns_of_connect_schema({"type": "struct", "fields": [{"field": "c", **schema}]})[0].data_type


TEXT, DOUBLE = {"decimal_handling_mode": "string"}, {"decimal_handling_mode": "double"}
ISO, CONNECT, NANOS = ({"time_precision_mode": mode} for mode in ("isostring", "connect", "nanoseconds"))


@pytest.mark.parametrize(
    ("ddl", "modes", "value", "canonical"),
    [
        (BASE64, {}, '"AUzypFwA"', '"143.0000000000"'),
        (BASE64, {}, '"AQ=="', '"0.0000000001"'),
        (BASE64, {}, '"AA=="', '"0.0000000000"'),
        (BASE64, {}, "12.5", '"12.5000000000"'),  # JsonConverter's decimal.format=NUMERIC
        (BASE64, {}, r'"AUzypFw\u0041"', '"143.0000000000"'),
        ("decimal(38,10)", {}, '"9rZPCQ/9zOw7tm+xM5i66w=="', '"-1234567890123456789012345678.0123456789"'),
        ("decimal(5,0)", {}, '"/w=="', '"-1"'),
        ("decimal(5,-2)", {}, '"DA=="', '"1200"'),
        ("decimal(5,-2)", TEXT, '"1200"', '"1200"'),
        (BASE64, TEXT, '"143.0000000000"', '"143.0000000000"'),
        (BASE64, TEXT, '"-1E-7"', '"-0.0000001000"'),
        (BASE64, TEXT, '"0E-10"', '"0.0000000000"'),
        (BASE64, TEXT, '"1.50000000000000"', '"1.5000000000"'),
        (BASE64, DOUBLE, "3143.1428571429", '"3143.1428571429"'),
        (BASE64, DOUBLE, "1E3", '"1000.0000000000"'),
        ("decimal(*)", {}, '{"scale":2,"value":"MDk="}', '"123.45"'),
        ("decimal(*)", {}, '{"scale":30,"value":"AQ=="}', '"0.000000000000000000000000000001"'),
        ("decimal(*)", {}, '{"scale":-3,"value":"BQ=="}', '"5000"'),
        ("decimal(*)", TEXT, '"1.50"', '"1.50"'),
        ("decimal(*)", TEXT, '"1E+3"', '"1000"'),
        ("decimal(*)", TEXT, '"NAN"', '"NaN"'),
        ("decimal(*)", TEXT, '"NEGATIVE_INFINITY"', '"-Infinity"'),
        ("decimal(*)", DOUBLE, "0.1", '"0.1"'),
        ("date", {}, "20513", '"2026-03-01"'),
        ("date", {}, "-719162", '"0001-01-01"'),
        ("date", {}, '"2026-03-01"', '"2026-03-01"'),
        ("date", ISO, '"2026-03-01Z"', '"2026-03-01"'),
        ("timestamp", {}, '"2026-03-01T06:30:00.123456Z"', '"2026-03-01T06:30:00.123456Z"'),
        ("timestamp", {}, '"2026-03-01T06:30:00Z"', '"2026-03-01T06:30:00.000000Z"'),
        ("timestamp", {}, '"2026-03-01T08:30+02:00"', '"2026-03-01T06:30:00.000000Z"'),
        ("timestamp", {}, '"2026-02-28 23:30:00.5-0700"', '"2026-03-01T06:30:00.500000Z"'),
        ("timestamp", {}, '"2026-03-01T06:30:00.1234567Z"', '"2026-03-01T06:30:00.123456700Z"'),
        ("timestamp", {}, "-1", '"1969-12-31T23:59:59.999999Z"'),
        ("timestamp_ntz", {}, "1769940360500000", '"2026-02-01T10:06:00.500000"'),
        ("timestamp_ntz", ISO, '"2026-02-01T10:06:00.5Z"', '"2026-02-01T10:06:00.500000"'),
        ("timestamp_ntz", {}, '"2026-02-01T10:06:00.5+00:00"', '"2026-02-01T10:06:00.500000"'),
        ("timestamp_ntz", CONNECT, "1769940360500", '"2026-02-01T10:06:00.500000"'),
        ("timestamp_ntz(3)", {}, "1769940360500", '"2026-02-01T10:06:00.500000"'),
        ("timestamp_ntz(7)", {}, "1769940360500000100", '"2026-02-01T10:06:00.500000100"'),
        ("timestamp_ntz", NANOS, "-1", '"1969-12-31T23:59:59.999999999"'),
        ("timestamp_ntz", NANOS, '"2026-02-01T10:06:00.5"', '"2026-02-01T10:06:00.500000000"'),
        ("time", {}, "49020000001", '"13:37:00.000001"'),
        ("time", {}, "86400000000", '"24:00:00.000000"'),
        ("time(2)", {}, "49020010", '"13:37:00.010000"'),
        ("time(2)", {"time_precision_mode": "adaptive_time_microseconds"}, "49020010000", '"13:37:00.010000"'),
        ("time", {"time_precision_mode": "microseconds"}, "0", '"00:00:00.000000"'),
        ("time", NANOS, "49020000000001", '"13:37:00.000000001"'),
        ("time", ISO, '"13:37:00.000001Z"', '"13:37:00.000001"'),
        ("time", ISO, '"24:00Z"', '"24:00:00.000000"'),
        ("binary", {}, '"AP8Q"', '"AP8Q"'),
        ("binary", {}, '""', '""'),
        ("binary", {"binary_handling_mode": "hex"}, '"00Ff10"', '"AP8Q"'),
        ("binary", {"binary_handling_mode": "base64-url-safe"}, '"--__"', '"++//"'),
        ("binary", {"binary_handling_mode": "base64-url-safe"}, '"_w"', '"/w=="'),
        ("json", {}, r'"{\"a\": [1.0, 1E400, 12345678901234567890], \"s\": \"山\"}"', '{"a":[1.0,1E400,12345678901234567890],"s":"山"}'),
        ("json", {}, '"null"', "null"),
        ("json", {}, '{"a": 1}', '{"a":1}'),
        ("variant", {}, r'"\"text\""', '"text"'),
        ("interval", {}, "31741200000000", "31741200000000"),
        ("interval day to second", {}, '"P1Y0M2DT3H0M0S"', '"P1Y0M2DT3H0M0S"'),
        ("double", {}, '"NaN"', '"NaN"'),
        ("double", {}, "5", "5.0"),
        ("float", {}, '"-Infinity"', '"-Infinity"'),
        ("float", {}, "1.0E-30", "1e-30"),
        ("boolean", {}, "true", "true"),
        ("long", {}, "-9223372036854775808", "-9223372036854775808"),
        ("uuid", {}, '"86ee131f-a458-4ebb-994c-d7a8204590de"', '"86ee131f-a458-4ebb-994c-d7a8204590de"'),
        ("enum", {}, '"new"', '"new"'),
        ("varchar(10)", {}, r'"q\"q \u00e9"', r'"q\"q é"'),
        ("array<string>", {}, '["a",null,""]', '["a",null,""]'),
        ("array<decimal(20,10)>", {}, '["A34R1gA=",null]', '["1.5000000000",null]'),
        ("array<array<date>>", {}, "[[0],null,[]]", '[["1970-01-01"],null,[]]'),
        ("map<string,timestamp>", {}, '{"a":0,"b":null}', '{"a":"1970-01-01T00:00:00.000000Z","b":null}'),
        ("map<string,double>", {}, '{"a":0.5}', '{"a":0.5}'),
        ("struct<x: int, `d d`: date>", {}, '{"d d":0,"x":1}', '{"x":1,"d d":"1970-01-01"}'),
        ("struct<x int, y: struct<z: json>>", {}, '{"new":1,"y":{"z":"{}"}}', '{"y":{"z":{}},"new":1}'),
        ("struct<x: int>", {}, '{"x":1}', '{"x":1}'),
    ],
)
def test_each_encoding_becomes_one_canonical_form(ddl: str, modes: dict[str, Any], value: str, canonical: str) -> None:
    """With null, without the column, behind other columns and before unknown fields it is the same."""
    data_type = ddl_type(ddl, **modes)

    assert converted(data_type, value) == canonical
    assert converted(data_type, "null") == "null"
    assert converted(data_type, value, placeholders=PLACEHOLDERS) == canonical
    assert RowConverter([Column("c", data_type)]).convert(b"{}") == b"{}"
    other = RowConverter([Column("id", ScalarType("int")), Column("c", data_type)]).convert(f'{{ "c" : {value} , "z":[1.00] }}'.encode())
    assert other.decode() == f'{{"c":{canonical},"z":[1.00]}}'


@pytest.mark.parametrize(
    ("ddl", "modes", "value", "message"),
    [
        (BASE64, {}, '"oops!"', 'column c = "oops!": allowed is decimal(20,10) as base64 (decimal.handling.mode=precise)'),
        (BASE64, TEXT, '"1,5"', 'column c = "1,5": allowed is decimal(20,10) as text (decimal.handling.mode=string)'),
        (BASE64, DOUBLE, '"NaN"', 'column c = "NaN": allowed is decimal(20,10) as a number (decimal.handling.mode=double)'),
        ("int", {}, "2147483648", "column c = 2147483648: allowed is int as a whole number, -2147483648 to 2147483647"),
        ("tinyint", {}, "1.5", "column c = 1.5: allowed is tinyint as a whole number, -128 to 127"),
        ("string", {}, "5", "column c = 5: allowed is string as text"),
        ("array<int>", {}, "5", "column c = 5: allowed is array<int> as a JSON array"),
        (
            "array<struct<a: int>>",
            {},
            '[{"a":1},{"a":"x"}]',
            'column c[1].a = "x": allowed is int as a whole number, -2147483648 to 2147483647',
        ),
        ("map<string,date>", {}, '{"k":"x"}', 'column c["k"] = "x": allowed is date as days since 1970-01-01 or ISO text, years 1 to 9999'),
        (
            "timestamp",
            {},
            '"infinity"',
            'column c = "infinity": allowed is timestamp as micros since 1970-01-01T00:00:00 UTC or ISO text with Z',
        ),
    ],
)
def test_a_misfit_names_the_field_the_value_and_what_is_allowed(ddl: str, modes: dict[str, Any], value: str, message: str) -> None:
    """The setting of the connector is part of it where it decides."""
    with pytest.raises(Misfit) as error:
        converted(ddl_type(ddl, **modes), value)

    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("ddl", "modes", "values"),
    [
        (
            BASE64,
            {},
            ['"143.0000000000"', '""', '"AUzypFwA "', '"AB=="', '"AUzypFwAAAAAAA=="', "true", "[1]", "1e-11", '{"scale":1,"value":"AA=="}'],
        ),
        (BASE64, TEXT, ['"1.00000000001"', '"12345678901"', '"NaN"', '"1_0"', '"\u0661"', '"1e999999999"', '" 1"', '""', '"."']),
        ("decimal(5,-2)", TEXT, ['"1201"']),
        ("decimal(*)", {}, ['{"scale":300000,"value":"AA=="}', '{"scale":1,"value":"x"}', '{"scale":1}', '"x"']),
        ("date", {}, ["-622191234", "2932897", "1.5", '"+292278994-08-16Z"', '"infinity"', '"2026-02-30"', '"2026-W09-7"', '"0000-01-01"']),
        ("date", ISO, ["20513"]),
        ("timestamp", {}, ['"-infinity"', '"2026-03-01T06:30:00"', '"2026-03-01"', '"2026-13-01T00:00Z"', "9223372036825200000"]),
        (
            "timestamp",
            {},
            ['"2026-03-01T06:30:00+19:00"', '"0001-01-01T00:00:00+01:00"', '"2026-03-01T24:00:00Z"', '"2026-03-01T06:30:61Z"'],
        ),
        ("timestamp_ntz", {}, ['"2026-03-01T06:30:00+02:00"', '"2026-03-01T06:30:00.1234567890"']),
        ("time", {}, ["-1", "86400000001", '"24:00:00.000001"', '"25:00"', '"12:60"', '"12:00:60"', '"12:00+02:00"', '"-01:00"', '"PT1H"']),
        ("binary", {}, ['"AP8"', '"AP 8Q"', '"é"', '"AP8Q\\n"', "5"]),
        ("binary", {"binary_handling_mode": "hex"}, ['"0"', '"00 ff"', '"zz"']),
        ("json", {}, ['"{"', '""', '"__debezium_unavailable_value"', r'"\"\\ud800\""', '"[1,]"']),
        ("uuid", {}, ['"86ee131f"', '"86ee131fa4584ebb994cd7a8204590de"', '"86ee131f-a458-4ebb-994c-d7a8204590de\\n"', "1"]),
        ("float", {}, ["1e39", '"nan"', "true"]),
        ("double", {}, ["1e400", '"NAN"', '"1"']),
        ("boolean", {}, ["1", '"true"']),
        ("bigint", {}, ["9223372036854775808", "1.0", '"1"', "true"]),
        ("smallint", {}, ["-32769", "32768"]),
        ("interval", {}, ["true", "{}"]),
        ("struct<a: int>", {}, ["[1]", '"{}"']),
        ("map<string,int>", {}, ["[]"]),
    ],
)
def test_what_does_not_fit_is_a_misfit_or_null(ddl: str, modes: dict[str, Any], values: list[str]) -> None:
    """Texts that Python would read, and numbers behind the calendar, are not read either."""
    for value in values:
        assert f"= {value[:20]}" in misfit(ddl_type(ddl, **modes), value)


@pytest.mark.parametrize("row", [b"[]", b"null", b"", b'{"c":1', b"\xff", b"[" * 100_000])
def test_a_row_that_is_no_object_is_a_misfit(row: bytes) -> None:
    """There is no value that could be null instead."""
    with pytest.raises(Misfit, match="allowed is a JSON object"):
        RowConverter(columns_of_ddl("c int"), on_misfit="null").convert(row)


def test_text_that_is_no_utf8_is_a_misfit() -> None:
    """It is never passed on."""
    for ddl in ("string", "json", "decimal(3,2)"):
        with pytest.raises(Misfit, match="column c"):
            RowConverter(columns_of_ddl(f"c {ddl}")).convert(b'{"c":"\xff"}')


def test_columns_have_the_order_of_the_schema_and_other_fields_stay_as_they_are() -> None:
    """Each digit and each space of a field that is no column stays."""
    converter = RowConverter(columns_of_ddl("id int, price decimal(20,10), at timestamp_ntz, note string"))

    assert converter.convert(b'{"x":1.00, "at":0,"price":"AQ==","id":1,"y":"\\u00e9"}') == (
        b'{"id":1,"price":"0.0000000001","at":"1970-01-01T00:00:00.000000","x":1.00,"y":"\\u00e9"}'
    )
    assert converter.convert(b'{"x":{"a": 1}}') == b'{"x":{"a": 1}}'
    assert RowConverter([]).convert(b'{"x":1.00}') == b'{"x":1.00}'


def test_a_misfit_may_become_null_without_its_neighbours() -> None:
    """In an array or a struct it is the one value."""
    converter = RowConverter(columns_of_ddl("id int, days array<date>, s struct<a: int, b: int>"), on_misfit="null")

    assert converter.convert(b'{"id":"x","days":[0,"infinity"],"s":{"a":1,"b":""}}') == (
        b'{"id":null,"days":["1970-01-01",null],"s":{"a":1,"b":null}}'
    )


@pytest.mark.parametrize(
    ("ddl", "value"),
    [
        ("timestamp", PLACEHOLDER),
        ("json", PLACEHOLDER),
        ("uuid", PLACEHOLDER),
        ("string", PLACEHOLDER),
        ("decimal(38,0)", ENCODED),
        ("decimal(100,2)", ENCODED),
        ("binary", PLACEHOLDER.encode().hex()),
        ("array<date>", [PLACEHOLDER]),
        ("array<decimal(100,2)>", [ENCODED]),
    ],
)
def test_a_placeholder_stays(ddl: str, value: object) -> None:
    """Also where it could be read as a value of the type, and where another value of the row is a misfit."""
    converter = RowConverter(columns_of_ddl(f"c {ddl}, d date", binary_handling_mode="hex"), placeholders=PLACEHOLDERS)
    text = json.dumps(value).encode()

    assert converter.convert(b'{"d":0,"c":' + text + b"}") == b'{"c":' + text + b',"d":"1970-01-01"}'
    assert converter.convert(b'{"d":null,"z":1,"c":' + text + b"}") == b'{"c":' + text + b',"d":null,"z":1}'
    with pytest.raises(Misfit, match="column d"):
        converter.convert(b'{"d":"x","c":' + text + b"}")


def test_a_converter_says_which_options_it_has() -> None:
    """As every option of a user does."""
    with pytest.raises(ValueError, match="on_misfit = 'skip': allowed are error and null"):
        RowConverter([], on_misfit="skip")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="columns a, a: each name is allowed once"):
        RowConverter([Column("a", ScalarType("int"))] * 2)


# Round trips


def unscaled(number: int) -> str:
    """Return a number as Java's BigInteger writes it: two's complement in as few bytes as possible, base64."""
    return b64encode(number.to_bytes((number + (number < 0)).bit_length() // 8 + 1, "big", signed=True)).decode()


@pytest.mark.parametrize(
    "number", ["100000", "1000", "10", "123456789", "0", "-100000", "1e4", "100000.5", "99999999.99", "5000000000000000"]
)
def test_a_number_is_never_base64_whatever_its_digits(number: str) -> None:
    """Digits are letters of base64; alone, in a list, beside other columns, and under each scale."""
    for scale in (2, 4):
        wanted = f'"{Decimal(number):.{scale}f}"'
        assert converted(DecimalType(30, scale), number) == wanted
        assert converted(ArrayType(DecimalType(30, scale)), f"[{number},{number}]") == f"[{wanted},{wanted}]"
        columns = [Column("p", DecimalType(30, scale)), Column("x", ScalarType("int"))]
        assert RowConverter(columns).convert(f'{{"y":1,"x":5,"p":{number}}}'.encode()) == f'{{"p":{wanted},"x":5,"y":1}}'.encode()


@given(st.data(), st.integers(1, 60))
def test_decimals_of_any_precision_and_scale_keep_their_value(data: st.DataObject, precision: int) -> None:
    """As base64, text, number, and with a scale of their own; one digit more than the precision is a misfit."""
    scale = data.draw(st.integers(-5, precision + 3))
    number = data.draw(st.integers(-(10**precision) + 1, 10**precision - 1))
    value = Decimal(number).scaleb(-scale) if abs(number) < 10**28 else Decimal(f"{number}E{-scale}")

    texts = {
        converted(DecimalType(precision, scale), f'"{unscaled(number)}"'),
        converted(DecimalType(precision, scale, "text"), f'"{value}"'),
        converted(DecimalType(precision, scale, "number"), f"{value:f}"),
        converted(DecimalType(), f'{{"scale":{scale},"value":"{unscaled(number)}"}}'),
    }

    (text,) = map(json.loads, texts)
    assert Decimal(text) == value
    assert "E" not in text
    assert -Decimal(text).as_tuple().exponent == max(scale, 0)  # type: ignore[operator]
    too_large = number * 10 + (1 if number >= 0 else -1) * 10**precision
    assert misfit(DecimalType(precision, scale), f'"{unscaled(too_large)}"')


def test_a_decimal_may_have_more_digits_than_python_prints() -> None:
    """PostgreSQL's numeric has up to 131,072 before the point; Python's `str` has a limit of 4,300."""
    number = 10**6_000 + 7

    text = json.loads(converted(DecimalType(), f'{{"scale":3,"value":"{unscaled(-number)}"}}'))
    assert (text[:3], text[-4:], len(text)) == ("-10", ".007", 6_003)
    assert json.loads(converted(DecimalType(7_000, 3), f'"{unscaled(number)}"')) == text[1:]


@given(st.dates())
def test_days_are_dates(day: date) -> None:
    """Before 1970 too."""
    days = (day - EPOCH.date()).days
    assert converted(ScalarType("date", "days"), str(days)) == converted(ScalarType("date", "text"), f'"{day}Z"') == f'"{day}"'


@given(st.datetimes(timezones=st.just(timezone.utc)), st.integers(0, 999))
def test_instants_keep_each_digit(moment: datetime, nanos: int) -> None:
    """From the year 1 to 9999, in each unit and with an offset."""
    micros = (moment - EPOCH) // timedelta(microseconds=1)
    text = moment.isoformat(timespec="microseconds").removesuffix("+00:00")

    assert converted(MICROS["timestamp"], str(micros)) == f'"{text}Z"'
    assert converted(ScalarType("timestamp", "text"), f'"{moment.isoformat()}"') == f'"{text}Z"'
    assert converted(MICROS["timestamp_ntz"], f'"{moment.replace(tzinfo=None).isoformat()}"') == f'"{text}"'
    assert converted(ScalarType("timestamp_ntz", "millis"), str(micros // 1_000)) == f'"{text[:-3]}000"'
    assert converted(ScalarType("timestamp_ntz", "nanos"), str(micros * 1_000 + nanos)) == f'"{text}{nanos:03d}"'
    eastern = f'"{text}{nanos:03d}+05:30"'
    if moment.year > 1:
        earlier = (moment - timedelta(hours=5, minutes=30)).isoformat(timespec="microseconds").removesuffix("+00:00")
        assert converted(ScalarType("timestamp", "text"), eastern) == f'"{earlier}{nanos:03d}Z"'


@given(st.times(), st.integers(-18 * 60, 18 * 60))
def test_times_of_day_keep_each_digit(moment: time, offset: int) -> None:
    """An offset is taken off, around midnight if need be."""
    micros = (datetime.combine(EPOCH, moment) - EPOCH.replace(tzinfo=None)) // timedelta(microseconds=1)
    text = moment.isoformat(timespec="microseconds")
    zone = f"{'-' if offset < 0 else '+'}{abs(offset) // 60:02d}:{abs(offset) % 60:02d}"
    shifted = (datetime.combine(date(2000, 1, 1), moment) - timedelta(minutes=offset)).time().isoformat(timespec="microseconds")

    assert converted(ScalarType("time", "micros"), str(micros)) == converted(ScalarType("time", "text"), f'"{moment}Z"') == f'"{text}"'
    assert converted(ScalarType("time", "nanos"), str(micros * 1_000)) == f'"{text}000"'
    assert converted(ScalarType("time", "zoned_text"), f'"{moment.isoformat()}{zone}"') == f'"{shifted}"'


@given(st.binary(max_size=40))
def test_bytes_are_base64_in_the_end(data: bytes) -> None:
    """With or without padding where the source writes base64 for URLs."""
    wanted = json.dumps(b64encode(data).decode())
    url = b64encode(data, altchars=b"-_").decode()

    assert converted(ScalarType("binary", "base64"), wanted) == wanted
    assert (
        converted(ScalarType("binary", "base64url"), f'"{url}"')
        == converted(ScalarType("binary", "base64url"), f'"{url.rstrip("=")}"')
        == wanted
    )
    assert converted(ScalarType("binary", "hex"), f'"{data.hex()}"') == wanted


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
_EVERYTHING = columns_of_ddl(
    "a int, b decimal(9,2), c decimal(*), d date, e timestamp, f timestamp_ntz, g time, h binary, i json, j uuid, k interval, l double,"
    "m float, n boolean, o array<date>, p map<string,decimal(3,1)>, q struct<a: int, x: json>, r string, s array<json>"
)
_STRICT, _LENIENT = RowConverter(_EVERYTHING), RowConverter(_EVERYTHING, on_misfit="null")


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from("abcdefghijklmnopqrsxyz"), _JSON))
def test_any_row_is_converted_or_a_misfit_and_by_field_it_is_the_same(row: dict[str, Any]) -> None:
    """The fast and the careful way agree, and what comes out is canonical."""
    text = json.dumps(row).encode()

    canonical = _LENIENT.convert(text)
    assert list(json.loads(canonical)) == sorted(row, key=lambda name: (name in "xyz", 0 if name in "xyz" else ord(name)))
    assert json.loads(_LENIENT._convert_by_field(text)) == json.loads(canonical)  # noqa: SLF001
    RowDecoder(_EVERYTHING).decode(pa.array([canonical]))
    with suppress(Misfit):
        assert _STRICT.convert(text) == canonical


# Schemas


@pytest.mark.parametrize(
    ("schema", "data_type"),
    [
        ({"type": "int8"}, ScalarType("tinyint")),
        ({"type": "int16"}, ScalarType("smallint")),
        ({"type": "int64"}, ScalarType("bigint")),
        ({"type": "float"}, ScalarType("float")),
        ({"type": "boolean"}, ScalarType("boolean")),
        ({"type": "bytes"}, ScalarType("binary", "base64")),
        (
            {
                "type": "bytes",
                "name": "org.apache.kafka.connect.data.Decimal",
                "parameters": {"scale": "2", "connect.decimal.precision": "10"},
            },
            DecimalType(10, 2),
        ),
        ({"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}}, DecimalType(38, 2)),
        ({"type": "int32", "name": "io.debezium.time.Date"}, ScalarType("date", "days")),
        ({"type": "int32", "name": "io.debezium.time.Time"}, ScalarType("time", "millis")),
        ({"type": "int32", "name": "io.debezium.time.Year"}, ScalarType("int")),
        ({"type": "int64", "name": "io.debezium.time.MicroTimestamp"}, ScalarType("timestamp_ntz", "micros")),
        ({"type": "string", "name": "io.debezium.time.ZonedTimestamp"}, ScalarType("timestamp", "text")),
        ({"type": "string", "name": "io.debezium.time.ZonedTime"}, ScalarType("time", "zoned_text")),
        ({"type": "string", "name": "io.debezium.time.Interval"}, ScalarType("interval")),
        ({"type": "string", "name": "io.debezium.data.EnumSet", "parameters": {"allowed": "a,b"}}, ScalarType("enum")),
        ({"type": "string", "name": "io.debezium.data.Xml"}, ScalarType("string")),
        ({"type": "string", "name": "io.debezium.data.Json"}, ScalarType("json", "text")),
        ({"type": "bytes", "name": "io.debezium.data.Bits", "parameters": {"length": "9"}}, ScalarType("binary", "base64")),
        ({"type": "string", "name": "somebody.elses.Type"}, ScalarType("string")),
        ({"type": "array", "items": {"type": "string", "name": "io.debezium.data.Uuid"}}, ArrayType(ScalarType("uuid"))),
        ({"type": "map", "keys": {"type": "string"}, "values": {"type": "string"}}, MapType(ScalarType("string"))),
        ({"type": "map", "keys": {"type": "int16"}, "values": {"type": "double"}}, ScalarType("json", "value")),
        (
            {
                "type": "struct",
                "name": "io.debezium.data.VariableScaleDecimal",
                "fields": [{"field": "scale", "type": "int32"}, {"field": "value", "type": "bytes"}],
            },
            DecimalType(),
        ),
        (
            {
                "type": "struct",
                "name": "io.debezium.data.geometry.Geometry",
                "fields": [{"field": "wkb", "type": "bytes"}, {"field": "srid", "type": "int32", "optional": True}],
            },
            StructType((Column("wkb", ScalarType("binary", "base64")), Column("srid", ScalarType("int")))),
        ),
    ],
)
def test_a_connect_type_is_a_type_with_an_encoding(schema: dict[str, Any], data_type: DataType) -> None:
    """A name that nobody knows counts as its Connect type."""
    assert connect_type(schema) == data_type


def test_the_row_of_an_envelope_is_its_field_after() -> None:
    """A schema may describe a whole event; its field `after` then gives the columns of the row."""
    row = {"type": "struct", "optional": True, "name": "s.t.Value", "fields": [{"type": "int32", "optional": False, "field": "id"}]}
    fields = [{**row, "field": "before"}, {**row, "field": "after"}, {"type": "string", "field": "op"}]

    assert columns_of_connect_schema({"type": "struct", "fields": fields, "name": "s.t.Envelope"}) == columns_of_connect_schema(row)
    assert columns_of_connect_schema(row) == (Column("id", ScalarType("int")),)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "string"}, "the schema of a row is of type string: allowed is a struct"),
        (
            {"type": "struct", "fields": [{"field": "a", "type": "array", "items": {"type": "int7"}}]},
            r"field a\[\]: type 'int7': allowed are int8,",
        ),
        ({"type": "struct"}, "no schema of Kafka Connect .*fields"),
        ({"type": "struct", "fields": [1]}, "no schema of Kafka Connect"),
    ],
)
def test_what_is_no_schema_is_an_error(schema: dict[str, Any], message: str) -> None:
    """The text names the field."""
    with pytest.raises(ValueError, match=message):
        columns_of_connect_schema(schema)


def test_ddl_is_read_as_spark_writes_it() -> None:
    """With comments, backticks, old names of types, and nested ones."""
    ddl = """id INT NOT NULL COMMENT 'the "key"', `a ``b` BIGINT comment "it's", p DECIMAL(20, 10), q decimal, r numeric(5), n decimal( * ),
        t array<struct<x: int, y string>>, m map<string, array<date>>, v varchar(10), w string, iv interval year to month"""

    columns = columns_of_ddl(ddl)

    assert ", ".join(f"{column.name} {column.data_type}" for column in columns) == (
        "id int, a `b bigint, p decimal(20,10), q decimal(10,0), r decimal(5,0), n decimal(*), "
        "t array<struct<x: int, y: string>>, m map<string,array<date>>, v string, w string, iv interval"
    )
    assert pickle.loads(pickle.dumps(columns)) == columns  # noqa: S301


@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        ("", "DDL, at the end: a column's name expected"),
        ("id text", "DDL, at text: a type expected: binary, date, "),
        ("id 'int'", "DDL, at 'int': a type expected"),
        ("id int x", "DDL, at x: a comma or the end expected"),
        ("id int not", "DDL, at the end: null expected"),
        ("id int comment x", "DDL, at x: a text in quotes expected"),
        ("id int comment", "DDL, at the end: a text in quotes expected"),
        ("a array int", "DDL, at int: < expected"),
        ("a array<int", "DDL, at the end: > expected"),
        ("m map<int,string>", "DDL, at int,string>: string expected"),
        ("d decimal(x)", r"DDL, at \(x\): one or two numbers in parentheses expected"),
        ("d timestamp(3,4)", r"DDL, at \(3,4\): one number in parentheses expected"),
        ("a int, a int", "DDL, at int: a second column a"),
        ("a €" + "x" * 50, "DDL, at €x{39}…: a type expected"),
    ],
)
def test_ddl_that_cannot_be_read_is_an_error(ddl: str, message: str) -> None:
    """The text says where, and what is expected there."""
    with pytest.raises(ValueError, match=message):
        columns_of_ddl(ddl)


def test_modes_are_those_of_debezium() -> None:
    """A typing error is not taken for the default."""
    with pytest.raises(ValueError, match="time_precision_mode = 'seconds': allowed are adaptive, adaptive_time_microseconds,"):
        columns_of_ddl("id int", time_precision_mode="seconds")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "encoding", "message"),
    [
        ("text", "", "type 'text' with encoding '': allowed encodings are those of"),
        ("date", "", "allowed encodings are days, text"),
        ("int", "text", "allowed encodings are none"),
        ("decimal", "base64", "type 'decimal'"),
    ],
)
def test_a_type_has_the_encodings_of_its_kind(kind: str, encoding: str, message: str) -> None:
    """Others are an error when the type is made, not when a row comes."""
    with pytest.raises(ValueError, match=message):
        ScalarType(kind, encoding)


def test_a_decimal_has_precision_and_scale_or_neither() -> None:
    """And one of three encodings."""
    for arguments in ((10,), (10, 2, "hex")):
        with pytest.raises(ValueError, match="allowed encodings are base64, text, number"):
            DecimalType(*arguments)


# For readers


@pytest.mark.parametrize(
    ("ddl", "found"),
    [
        ("at timestamp", "at timestamp_ltz"),
        ("timestamp TIMESTAMP, at timestamp_ntz", "timestamp timestamp_ltz, at timestamp_ntz"),
        ("timestamp string", "timestamp string"),
        (
            "a array<timestamp>, m map<string,timestamp>, s struct<timestamp: timestamp, x: int>",
            "a array<timestamp_ltz>, m map<string,timestamp_ltz>, s struct<timestamp: timestamp_ltz, x: int>",
        ),
        (
            "at timestamp NOT NULL COMMENT 'a timestamp', `a timestamp` int",
            "at timestamp_ltz NOT NULL COMMENT 'a timestamp', `a timestamp` int",
        ),
        ("timestamp", "timestamp_ltz"),
        ("my_timestamp timestamp_ltz", "my_timestamp timestamp_ltz"),
    ],
)
def test_a_timestamp_of_ddl_has_a_time_zone_in_every_session(ddl: str, found: str) -> None:
    """The type, at any depth; neither a column of this name nor what is quoted."""
    assert with_time_zones(ddl) == found
