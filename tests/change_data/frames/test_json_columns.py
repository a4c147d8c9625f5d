"""Columns as JSON and as keys. That these are the bytes of Spark: tests/streaming/append/test_same_records.py."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest

from lastword.change_data.frames.json_columns import (
    WrongColumn,
    java_double,
    java_float,
    json_column,
    keys_of,
    objects_of,
    plain_column,
    plain_texts,
    table_column,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.0, "1.0"),
        (0.001, "0.001"),
        (9.999e-4, "9.999E-4"),
        (9_999_999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (-123456789.125, "-1.23456789125E8"),
        (5e-324, "4.9E-324"),
        (2e-323, "2.0E-323"),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
    ],
)
def test_a_double_is_written_as_java_writes_it(value: float, text: str) -> None:
    """The fewest digits that are the number, at least two."""
    assert java_double(value) == text


def test_a_float_has_the_digits_of_its_32_bits() -> None:
    """0.1 is 0.1, not 0.10000000149011612; the smallest one has two digits, as it has of 64 bits."""
    assert [java_float(value) for value in (0.10000000149011612, 1e10, 16_777_216.0)] == ["0.1", "1.0E10", "1.6777216E7"]
    assert [java_float(value) for value in (1.401298464324817e-45, -float("inf"), -0.0)] == ["1.4E-45", "-Infinity", "-0.0"]


_INSTANT: Final = pa.timestamp("us", "UTC")

#: A column, and the JSON of its values; the last one is null.
_JSON: Final[list[tuple[pa.Array, list[str]]]] = [
    (pa.array([7, -(2**63), None]), ["7", "-9223372036854775808"]),
    (pa.array([True, False, None]), ["true", "false"]),
    (pa.array([Decimal("1.50"), Decimal(0), None], pa.decimal128(10, 2)), ["1.50", "0.00"]),
    (pa.array([Decimal("1E-18"), None], pa.decimal128(38, 18)), ["1E-18"]),
    (pa.array([1e10, float("nan"), float("inf"), None]), ["1.0E10", '"NaN"', '"Infinity"']),
    (pa.array([0.1, float("-inf"), None], pa.float32()), ["0.1", '"-Infinity"']),
    (pa.array(["a", 'a"\\/\b\f\n\r\t\x01\x1f\x7fé😀', None]), ['"a"', '"a\\"\\\\/\\b\\f\\n\\r\\t\\u0001\\u001F\x7fé😀"']),
    (pa.array([b"\x00\xff", b"", None]), ['"AP8="', '""']),
    (pa.array([dt.date(2026, 3, 1), dt.date(1, 1, 1), None]), ['"2026-03-01"', '"0001-01-01"']),
    (pa.array([500_000, -1, None], _INSTANT), ['"1970-01-01T00:00:00.500000Z"', '"1969-12-31T23:59:59.999999Z"']),
    (pa.array([500_000, None], pa.timestamp("us")), ['"1970-01-01T00:00:00.500000"']),
    (pa.array([None], pa.null()), []),
    (pa.array([{"a": 1, 'b"': None}, None], pa.struct([("a", pa.int8()), ('b"', pa.string())])), ['{"a":1,"b\\"":null}']),
    (pa.array([{}, None], pa.struct([])), ["{}"]),
    (pa.array([[[1], None, []], [], None], pa.list_(pa.list_(pa.int8()))), ["[[1],null,[]]", "[]"]),
    (pa.array([[('k"', 1.5), ("", None)], [], None], pa.map_(pa.string(), pa.float64())), ['{"k\\"":1.5,"":null}', "{}"]),
    (pa.array([[(-5, [None])], None], pa.map_(pa.int64(), pa.list_(pa.null()))), ['{"-5":[null]}']),
]


@pytest.mark.parametrize(("column", "texts"), _JSON, ids=[str(column.type) for column, _ in _JSON])
def test_a_column_is_written_as_json(column: pa.Array, texts: list[str]) -> None:
    """As Spark's to_json does it; null is null."""
    assert json_column(column).to_pylist() == [*texts, None]


def test_rows_are_objects_of_their_columns() -> None:
    """Null is written; without columns there are as many empty objects as rows."""
    columns = [pa.array([1, None]), pa.array(["x", None])]
    assert objects_of(["b", 'a"'], columns, 2).to_pylist() == ['{"b":1,"a\\"":"x"}', '{"b":null,"a\\"":null}']
    assert objects_of([], [], 2).to_pylist() == ["{}", "{}"]


def test_a_text_has_no_quotes() -> None:
    """If the value is one column, its text is stored without JSON's quotes."""
    columns = pa.array(['a"', None]), pa.array([1, None], _INSTANT), pa.array([b"\xff", None]), pa.array([7, None]), pa.array([True, None])
    expected = ['a"', "1970-01-01T00:00:00.000001Z", "/w==", "7", "true"]
    assert [plain_texts(column).to_pylist() for column in columns] == [[text, None] for text in expected]


def test_a_slice_of_lists_and_maps_is_written_alone() -> None:
    """Offsets that do not begin at zero, and null rows, which may have members."""
    lists = pa.array([[1], [2, None], None, [3]], pa.list_(pa.int64()))
    assert json_column(lists.slice(1)).to_pylist() == ["[2,null]", None, "[3]"]
    maps = pa.array([[("a", 1)], None, [("b", None), ("c", 3)]], pa.map_(pa.string(), pa.int8()))
    assert json_column(maps.slice(1)).to_pylist() == [None, '{"b":null,"c":3}']
    structs = pa.array([{"a": 1}, None, {"a": None}], pa.struct([("a", pa.int8())]))
    assert json_column(structs.slice(1)).to_pylist() == [None, '{"a":null}']
    hidden = pa.ListArray.from_arrays(pa.array([0, 1, 2]), pa.array([1, 2]), mask=pa.array([False, True]))
    assert json_column(hidden).to_pylist() == ["[1]", None]


@pytest.mark.parametrize(
    ("column", "plain"),
    [
        (pa.array(["a", None, "a"]).dictionary_encode(), ["a", None, "a"]),
        (pa.array([2**64 - 1, None], pa.uint64()), [2**64 - 1, None]),
        (pa.array([7], pa.uint8()), [7]),
        (pa.array(["x"], pa.large_string()), ["x"]),
        (pa.array([b"x"], pa.binary(1)), [b"x"]),
        (pa.array([[1]], pa.large_list(pa.int32())), [[1]]),
        (pa.array([[1, 2], None], pa.list_(pa.int32(), 2)), [[1, 2], None]),
        (pa.array([[2**64 - 1]], pa.list_(pa.uint64())), [[Decimal(2**64 - 1)]]),
        (pa.array([np.float16(1.5), None], pa.float16()), [1.5, None]),
        (pa.array([Decimal("1.50")], pa.decimal256(10, 2)), [Decimal("1.50")]),
        (pa.array([dt.date(2026, 3, 1)], pa.date64()), [dt.date(2026, 3, 1)]),
        (pa.array([1], pa.timestamp("ms", "Europe/Berlin")), [dt.datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=dt.timezone.utc)]),
        (pa.StructArray.from_arrays([pa.array(["a", None]).dictionary_encode()], ["x"]), [{"x": "a"}, {"x": None}]),
        (pa.array([[(1, dt.date(2026, 3, 1))]], pa.map_(pa.uint8(), pa.date64())), [[(1, dt.date(2026, 3, 1))]]),
        (pa.array([None]), [None]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_types_of_arrow_that_spark_has_not_are_taken_as_one_that_it_has(column: pa.Array, plain: list[object]) -> None:
    """Dictionaries, unsigned and large ones."""
    assert plain_column("x", column).to_pylist() == plain


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([1], pa.time64("us")), "column x is time64.us.: allowed are whole numbers"),
        (pa.array([1], pa.duration("us")), "column x is duration"),
        (pa.array([1], pa.timestamp("ns")), "cannot be taken as timestamp_ntz: Casting from timestamp.ns"),
        (pa.array([3_000_000], pa.date32()), "a date outside the years 1 to 9999"),
        (pa.array([[-(10**17)]], pa.list_(pa.timestamp("us"))), "a timestamp_ntz outside the years 1 to 9999"),
        (pa.array([[(1.5, 1)]], pa.map_(pa.float64(), pa.int8())), "column x is map"),
        (pa.array([[("a", 3_000_000)]], pa.map_(pa.string(), pa.date32())), "a date outside the years 1 to 9999"),
        (pa.array([{"a": -800_000}], pa.struct([("a", pa.date32())])), "a date outside the years 1 to 9999"),
        (pa.array([10**18], _INSTANT), "column x has a timestamp outside the years 1 to 9999"),
        (pa.array([2**62], pa.timestamp("s", "UTC")), "cannot be taken as timestamp: Casting from timestamp.s, tz=UTC. to timestamp.us"),
        (pa.array([1], pa.decimal256(39, 0)), "column x is decimal256.39, 0.: allowed are whole numbers, decimals of up to 38 digits"),
        (pa.array([100], pa.decimal128(5, -2)), "column x is decimal128.5, -2.: allowed are"),
        (pa.array([[{"a": dt.time(1)}]], pa.list_(pa.struct([("a", pa.time64("us"))]))), "column x is list"),
        (pa.array([[1]], pa.list_view(pa.int8())), "column x is list_view<item: int8>: allowed are"),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_a_column_that_json_has_no_form_for_is_named(column: pa.Array, message: str) -> None:
    """Its name, its type, and what is allowed."""
    with pytest.raises(WrongColumn, match=message):
        plain_column("x", column)


#: Columns of a key, and the keys of their rows.
_KEYS: Final[list[tuple[dict[str, pa.Array], list[Any]]]] = [
    ({"id": pa.array([7, None])}, ["7", None]),
    ({"id": pa.array(['a"', None])}, ['a"', None]),
    ({"id": pa.array([b"\x00\xff", None])}, [b"\x00\xff", None]),
    ({"id": pa.array([Decimal("1.50"), Decimal("100.00"), Decimal("0.00"), None], pa.decimal128(10, 2))}, ["1.5", "100", "0", None]),
    ({"id": pa.array([Decimal("1E-18"), None], pa.decimal128(38, 18))}, ["0.000000000000000001", None]),
    ({"id": pa.array([0, None], _INSTANT)}, ["1970-01-01T00:00:00.000000Z", None]),
    ({"id": pa.array([{"a": 1, "b": None}, None], pa.struct([("a", pa.int8()), ("b", pa.date32())]))}, ['{"a":1,"b":null}', None]),
    ({"id": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int8()))}, ['{"k":1}', None]),
    (
        {"b": pa.array([1, None, None]), "a": pa.array([Decimal("2.50"), Decimal("3.00"), None], pa.decimal128(10, 2))},
        ['{"a":"2.5","b":1}', '{"a":"3","b":null}', None],
    ),
    ({"b": pa.array([b"\xff"]), "a": pa.array(["x"]), "c": pa.array([[1]])}, ['{"a":"x","b":"/w==","c":[1]}']),
]


@pytest.mark.parametrize(
    ("columns", "keys"), _KEYS, ids=[" ".join(str(column.type) for column in columns.values()) for columns, _ in _KEYS]
)
def test_a_key_is_a_text_or_an_object(columns: dict[str, pa.Array], keys: list[Any]) -> None:
    """Several columns are in the order of their names; where none has a value, there is no key."""
    assert keys_of(list(columns), list(columns.values())).to_pylist() == keys


@pytest.mark.parametrize(
    ("data_type", "name"),
    [
        (pa.float32(), "float"),
        (pa.list_(pa.float64()), "array<double>"),
        (pa.map_(pa.string(), pa.float64()), "map<string,double>"),
        (pa.struct([("a", pa.timestamp("us")), ("b", pa.float64())]), "struct<a:timestamp_ntz,b:double>"),
    ],
    ids=str,
)
def test_a_key_has_no_floating_point_number_within(data_type: pa.DataType, name: str) -> None:
    """Alone or with another column."""
    message = (
        f"column x is {name}: a floating-point number is no key, as not every Java writes the same digits of it; cast it to decimal or text"
    )
    for names in (["x"], ["id", "x"]):
        with pytest.raises(WrongColumn) as error:
            keys_of(names, [pa.array([1]), pa.nulls(1, data_type)][-len(names) :])
        assert str(error.value) == message


def test_a_floating_point_number_is_no_key() -> None:
    """Nor are decimals in a list, whose text is not one."""
    with pytest.raises(WrongColumn, match="column x is double: a floating-point number is no key"):
        keys_of(["x"], [pa.array([1.5])])
    with pytest.raises(WrongColumn, match="a decimal in a struct, a list or a map is no key"):
        keys_of(["x"], [pa.array([[1]], pa.list_(pa.decimal128(3, 1)))])


def test_a_type_without_a_column_of_a_table_is_json() -> None:
    """A map by numbers, for one."""
    assert str(table_column("x", pa.map_(pa.int64(), pa.string())).data_type) == "json"
    assert str(table_column("x", pa.decimal128(10, 2)).data_type) == "decimal(10,2)"
    nested = pa.struct([("a b", pa.list_(_INSTANT)), ("c", pa.map_(pa.string(), pa.binary()))])
    column = table_column("a `b`", nested)
    assert (column.name, str(column.data_type)) == ("a `b`", "struct<`a b`: array<timestamp>, c: map<string,binary>>")
    assert [str(table_column("x", kind).data_type) for kind in (pa.null(), pa.struct([]))] == ["json", "json"]
