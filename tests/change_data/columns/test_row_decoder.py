"""Canonical rows, and those of other writers, as Arrow values."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastword.change_data.columns.column_types import ArrayType, Column, Misfit, ScalarType, StructType
from lastword.change_data.columns.connect_schema import columns_of_ddl
from lastword.change_data.columns.row_converter import RowConverter
from lastword.change_data.columns.row_decoder import RowDecoder

if TYPE_CHECKING:
    from collections.abc import Sequence

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def unscaled(number: int) -> str:
    """Return a number as Java's BigInteger writes it: two's complement in as few bytes as possible, base64."""
    return b64encode(number.to_bytes((number + (number < 0)).bit_length() // 8 + 1, "big", signed=True)).decode()


def arrow(columns: Sequence[Column], *rows: str) -> list[Any]:
    """Return rows of the source as Python values out of Arrow."""
    converter = RowConverter(columns)
    decoded = RowDecoder(columns).decode(pa.array([converter.convert(row.encode()) for row in rows], pa.binary()))
    assert decoded.type == pa.struct(RowDecoder(columns).schema)
    found: list[Any] = decoded.to_pylist()
    return found


def test_canonical_rows_are_arrow_values() -> None:
    """A column that a row lacks is null, as one that is null."""
    ddl = "p decimal(20,10), n decimal(*), d date, at timestamp, l timestamp_ntz, t time, b binary, j json, iv interval, f float"
    (row, empty) = arrow(
        columns_of_ddl(f"{ddl}, x double, u uuid"),
        r'{"p":"AQ==","n":1.50,"d":-1,"at":"2026-03-01T06:30:00.1234567Z","l":-1,"t":49020000001,"b":"AP8Q","j":"{\"a\": 1.0}","iv":5,'
        '"f":0.5,"x":"NaN","u":"86ee131f-a458-4ebb-994c-d7a8204590de","z":1}',
        '{"p":null,"j":null,"iv":null}',
    )

    assert str(row.pop("x")) == "nan"
    assert row == {
        "p": Decimal("0.0000000001"),
        "n": "1.50",
        "d": date(1969, 12, 31),
        "at": datetime(2026, 3, 1, 6, 30, 0, 123456, timezone.utc),
        "l": datetime(1969, 12, 31, 23, 59, 59, 999999),  # noqa: DTZ001
        "t": time(13, 37, 0, 1),
        "b": b"\x00\xff\x10",
        "j": '{"a":1.0}',
        "iv": "5",
        "f": 0.5,
        "u": "86ee131f-a458-4ebb-994c-d7a8204590de",
    }
    assert set(empty.values()) == {None}


def test_nested_values_are_arrow_values() -> None:
    """Nulls and empty values stay apart at each level."""
    ddl = "a array<decimal(5,2)>, m map<string,date>, s struct<x: int, y: struct<z: time>>, l array<struct<d: date>>, j array<json>"
    rows = arrow(
        columns_of_ddl(ddl),
        r'{"a":["AJY=",null],"m":{"k":0,"l":null},"s":{"x":1,"y":{"z":0}},"l":[{"d":0},null,{}],"j":["1.0",null]}',
        '{"a":null,"m":null,"s":null,"l":null}',
        '{"a":[],"m":{},"s":{"y":null},"l":[]}',
    )

    assert rows == [
        {
            "a": [Decimal("1.50"), None],
            "m": [("k", date(1970, 1, 1)), ("l", None)],
            "s": {"x": 1, "y": {"z": time(0)}},
            "l": [{"d": date(1970, 1, 1)}, None, {"d": None}],
            "j": ["1.0", None],
        },
        {"a": None, "m": None, "s": None, "l": None, "j": None},
        {"a": [], "m": [], "s": {"x": None, "y": None}, "l": [], "j": None},
    ]


def test_nanoseconds_and_the_end_of_the_day_are_arrow_values() -> None:
    """A row that there is not is null."""
    columns = columns_of_ddl("l timestamp_ntz, t time", time_precision_mode="nanoseconds")
    decoded = RowDecoder(columns).decode(pa.array([RowConverter(columns).convert(b'{"l":-1,"t":86400000000000}'), None]))

    assert RowDecoder(columns).schema == pa.schema([("l", pa.timestamp("ns")), ("t", pa.time64("ns"))])
    assert decoded.field("l").cast(pa.int64()).to_pylist() == [-1, None]
    assert decoded.field("t").cast(pa.int64()).to_pylist() == [86_400_000_000_000, None]
    assert decoded.is_valid().to_pylist() == [True, False]


@pytest.mark.parametrize(
    ("ddl", "row", "message"),
    [
        ("p decimal(20,10)", '{"p":true}', "column p = true: allowed is decimal(20,10) as a number, or as text"),
        ("i int", '{"i":"5"}', 'column i = "5": allowed is int as a whole number, -2147483648 to 2147483647'),
        ("p decimal(20,10)", '{"p":"AQ=="}', 'column p = "AQ==": allowed is decimal(20,10) as a number, or as text'),
        ("p decimal(4,2)", '{"p":1.234}', "column p = 1.234: allowed is decimal(4,2) as a number, or as text"),
        ("s struct<d: date>", '{"s":{"d":"infinity"}}', 'column s.d = "infinity": allowed is date as ISO text, years 1 to 9999'),
        ("t time", '{"t":"__debezium_unavailable_value"}', 'column t = "__debezium_unavailable_value": allowed is time as ISO text'),
        ("t time", '{"t":"25:00:00"}', 'column t = "25:00:00": allowed is time as ISO text, 00:00:00 to 24:00:00'),
        ("t time", '{"t":"10:00:60"}', 'column t = "10:00:60": allowed is time'),
        ("t time", '{"t":"10:00:00+02:00"}', 'column t = "10:00:00+02:00": allowed is time'),
        ("t array<time>", '{"t":["23:59:59",null,"24:00:01"]}', 'column t[2] = "24:00:01": allowed is time'),
        ("at timestamp_ntz", '{"at":"2026-03-01T10:00:00+02:00"}', 'column at = "2026-03-01T10:00:00+02:00": allowed is timestamp_ntz'),
        ("at timestamp", '{"at":"2026-02-30T10:00:00Z"}', 'column at = "2026-02-30T10:00:00Z": allowed is timestamp as ISO text'),
        ("at timestamp", '{"at":1767225600}', "column at = 1767225600: allowed is timestamp as ISO text"),
        ("d date", '{"d":"0000-01-01"}', 'column d = "0000-01-01": allowed is date as ISO text, years 1 to 9999'),
        ("at timestamp", '{"at":"0000-01-01T00:00:00.000000Z"}', 'column at = "0000-01-01T00:00:00.000000Z": allowed is timestamp'),
        ("at timestamp", '{"at":"0000-01-01"}', 'column at = "0000-01-01": allowed is timestamp'),
        ("at timestamp(9)", '{"at":"1600-01-01T00:00:00Z"}', "allowed is timestamp(9) as ISO text, years 1678 to 2261"),
        ("at timestamp(9)", '{"at":"2500-01-01"}', "allowed is timestamp(9) as ISO text, years 1678 to 2261"),
        ("l timestamp_ntz(9)", '{"l":"9999-01-01 00:00:00"}', "allowed is timestamp_ntz(9) as ISO text, years 1678 to 2261"),
        ("d date", '{"d":"2026-02-30"}', 'column d = "2026-02-30": allowed is date'),
        ("b binary", '{"b":"AP8Q!"}', 'column b = "AP8Q!": allowed is binary as base64'),
        ("m map<string,binary>", '{"m":{"k":"AP8Q!"}}', 'column m["k"] = "AP8Q!": allowed is binary as base64'),
        ("f float", '{"f":3.5e38}', "column f = 3.5e38: allowed is float as a number of up to 3.4e38"),
        ("x double", '{"x":1e400}', "column x = 1e400: allowed is double"),
        ("i array<tinyint>", '{"i":[128]}', "column i[0] = 128: allowed is tinyint as a whole number, -128 to 127"),
        ("größe tinyint", '{"größe":128}', "column größe = 128: allowed is tinyint"),
        ('s struct<`a"b`: tinyint>', r'{"s":{"a\"b":128}}', 'column s.a"b = 128: allowed is tinyint'),
        ("i int", "[]", "row = []: allowed is struct<i: int> as a JSON object"),
        ("i int", '{"i":1', 'row = {"i":1: allowed is struct<i: int> as a JSON object'),
    ],
)
def test_rows_that_do_not_fit_are_misfits_that_name_column_and_value(ddl: str, row: str, message: str) -> None:
    """Such as rows that were appended before the topic had columns."""
    with pytest.raises(Misfit, match=re.escape(message)):
        RowDecoder(columns_of_ddl(ddl)).decode(pa.array([row]))


@pytest.mark.parametrize(
    "name", ["größe", "日本", "😀", "Ж", 'a"b', "a\\b", "tab\tnew\n", "a.b", "a`b", "", " ", "ID", "it's", "$", "a\u2028b"]
)
def test_a_column_of_any_name_decodes(name: str) -> None:
    """At the top, in a struct, in a list of structs; escaped in the row or not; and converted from the source's row."""
    inner = StructType((Column(name, ScalarType("int")), Column("x", ScalarType("int"))))
    columns = [Column(name, ScalarType("int")), Column("s", inner), Column("l", ArrayType(inner))]
    row = {name: 7, "s": {name: 8, "x": 1}, "l": [{name: 9}, None, {"x": 2}]}
    wanted = {name: 7, "s": {name: 8, "x": 1}, "l": [{name: 9, "x": None}, None, {name: None, "x": 2}]}

    for text in (json.dumps(row), json.dumps(row, ensure_ascii=False)):
        assert RowDecoder(columns).decode(pa.array([text.encode(), None])).to_pylist() == [wanted, None]
        assert json.loads(RowConverter(columns).convert(text.encode())) == row
    with pytest.raises(Misfit, match=re.escape(f'column {name} = "x": allowed is int')):
        RowConverter(columns).convert(json.dumps({name: "x"}).encode())


def test_times_of_another_writer_are_the_same_moment() -> None:
    """An offset counts; without one an instant is in UTC; a date alone is its midnight."""
    columns = columns_of_ddl("at timestamp, l timestamp_ntz, d date, t time")
    rows = [
        '{"at":"2026-03-01T10:00:00.123456+02:00","l":"2026-03-01 10:00","d":"2026-03-01Z","t":"10:00"}',
        '{"at":"2026-03-01 10:00:00","l":"2026-03-01","d":"2026-03-01","t":"10:00:00.5Z"}',
        '{"at":"2026-03-01","l":"2026-03-01T10:00:00Z"}',
    ]

    assert [list(map(str, row.values())) for row in RowDecoder(columns).decode(pa.array(rows)).to_pylist()] == [
        ["2026-03-01 08:00:00.123456+00:00", "2026-03-01 10:00:00", "2026-03-01", "10:00:00"],
        ["2026-03-01 10:00:00+00:00", "2026-03-01 00:00:00", "2026-03-01", "10:00:00.500000"],
        ["2026-03-01 00:00:00+00:00", "2026-03-01 10:00:00", "None", "None"],
    ]


def test_rows_of_a_column_that_had_another_type_and_decimals_as_numbers_decode() -> None:
    """A number where the column is text now; digits of a decimal that no floating-point number has."""
    columns = columns_of_ddl("t string, u uuid, p decimal(38,20), l array<string>")
    row = '{"t":5,"u":null,"p":123456789012345678.01234567890123456789,"l":[1.5,true,"x",123456789012345678.25,{"a":1.0}]}'
    (found,) = RowDecoder(columns).decode(pa.array([row])).to_pylist()
    assert found == {
        "t": "5",
        "u": None,
        "p": Decimal("123456789012345678.01234567890123456789"),
        "l": ["1.5", "true", "x", "123456789012345678.25", '{"a":1.0}'],
    }


@pytest.mark.parametrize(
    ("ddl", "values", "expected"),
    [
        ("c string", ['"a"', '"b"', "null"], ["a", "b", None]),
        ("c string", ['"a"', "5", '"5"'], ["a", "5", "5"]),
        ("c decimal(10,2)", ['"1.50"', '"-2"', '"0.05"'], [Decimal("1.50"), Decimal("-2.00"), Decimal("0.05")]),
        ("c decimal(10,2)", ['"1.50"', "2.5", "null"], [Decimal("1.50"), Decimal("2.50"), None]),
        ("c decimal(10,2)", ['"1.50"', '"1e1"'], [Decimal("1.50"), Decimal("10.00")]),
        ("c timestamp", ['"2026-03-01T10:00:00.000001Z"', "null"], ["2026-03-01 10:00:00.000001+00:00", None]),
        (
            "c timestamp",
            ['"2026-03-01T10:00:00.000001Z"', '"2026-03-01"'],
            ["2026-03-01 10:00:00.000001+00:00", "2026-03-01 00:00:00+00:00"],
        ),
    ],
)
def test_values_decode_alike_together_and_each_by_itself(ddl: str, values: list[str], expected: list[Any]) -> None:
    """Canonical ones are cast together; one that is not has all of them looked at."""
    decoder = RowDecoder(columns_of_ddl(ddl))
    rows = [f'{{"c":{value}}}' for value in values]
    found = [row["c"] for row in decoder.decode(pa.array(rows)).to_pylist()]
    assert [str(one) if isinstance(one, datetime) else one for one in found] == expected
    assert found == [decoder.decode(pa.array([row]))[0].as_py()["c"] for row in rows]


@pytest.mark.parametrize("value", ['"0000-01-01T00:00:00.000000Z"', '"2026-13-01T00:00:00.000000Z"', '"2026-03-01T99:00:00.000000Z"'])
def test_an_instant_that_looks_canonical_and_is_none_is_a_misfit(value: str) -> None:
    """Alone, and among others."""
    decoder = RowDecoder(columns_of_ddl("c timestamp"))
    for rows in ([value], ['"2026-03-01T10:00:00.000001Z"', value]):
        with pytest.raises(Misfit, match=re.escape(f"column c = {value}")):
            decoder.decode(pa.array([f'{{"c":{row}}}' for row in rows]))


@given(st.lists(st.tuples(st.integers(-(10**20) + 1, 10**20 - 1), st.datetimes(timezones=st.just(timezone.utc)), st.binary()), max_size=5))
def test_arrow_has_what_the_source_has(rows: list[tuple[int, datetime, bytes]]) -> None:
    """Numbers, instants and bytes make the whole way."""
    columns = columns_of_ddl("p decimal(20,10), at timestamp, b binary")
    texts = [
        json.dumps({"p": unscaled(number), "at": (moment - EPOCH) // timedelta(microseconds=1), "b": b64encode(data).decode()})
        for number, moment, data in rows
    ]

    assert [tuple(row.values()) for row in arrow(columns, *texts)] == [
        (Decimal(number).scaleb(-10), moment, data) for number, moment, data in rows
    ]
