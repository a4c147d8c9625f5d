"""Rows of text with a schema: a text and its type, and the value that it is, or why it is none."""

from __future__ import annotations

import json
import re
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pytest

from lastword.change_data.files.file_rows import RowText, fields_of_row
from lastword.change_data.frames.json_columns import WrongColumn
from lastword.change_data.frames.typed_texts import TypedTexts, schema_of_ddl

_MORNING: Final = datetime(2026, 3, 1, 6, 30, tzinfo=timezone.utc)


def _read(ddl: str, *rows: str, are_texts: bool = False) -> tuple[list[Any], list[str | None], list[str | None]]:
    given = [RowText(text=row.encode(), fields=fields_of_row(row.encode())) for row in rows]
    read = TypedTexts(schema_of_ddl(ddl), are_texts=are_texts).read(given)
    assert read.unread.null_count == len(rows)
    return read.rows.to_pylist(), read.misfits.to_pylist(), read.raw.to_pylist()


#: A type, a JSON value of it, and what it is read as.
_VALUES: Final[list[tuple[str, str, Any]]] = [
    ("bigint", "7", 7),
    ("bigint", " null ", None),
    ("tinyint", "-128", -128),
    ("decimal(10,2)", "1.5", Decimal("1.50")),
    ("decimal(10,2)", "1.500", Decimal("1.50")),
    ("decimal(10,2)", "1e2", Decimal("100.00")),
    ("double", "1", 1.0),
    ("float", "1.5e0", 1.5),
    ("double", '"-Infinity"', float("-inf")),
    ("boolean", "true", True),
    ("string", '"7"', "7"),
    ("string", '" a\\n"', " a\n"),
    ("string", "7", "7"),
    ("string", "-12345678901234567890", "-12345678901234567890"),
    ("string", "false", "false"),
    ("string", "-0", "0"),
    ("bigint", "-0", 0),
    ("binary", '"AP8="', b"\x00\xff"),
    ("date", '"2026-03-01"', date(2026, 3, 1)),
    ("timestamp", '"2026-03-01T07:30:00+01:00"', _MORNING),
    ("timestamp_ntz", '"2026-03-01T06:30:00"', _MORNING.replace(tzinfo=None)),
    ("array<int>", "[1, null]", [1, None]),
    ("map<string,decimal(3,1)>", '{"a":1.5,"b":null}', [("a", Decimal("1.5")), ("b", None)]),
    ("struct<a:int,b:string,c:date>", '{"b":true,"a": 1 ,"x":[]}', {"a": 1, "b": "true", "c": None}),
]


@pytest.mark.parametrize(("data_type", "text", "value"), _VALUES, ids=[f"{kind} {text}" for kind, text, _ in _VALUES])
def test_a_value_of_json_is_one_of_its_type(data_type: str, text: str, value: Any) -> None:
    """It is the one that Spark reads; a column that is not there is null, and one without a type is left out."""
    assert _read(f"x {data_type}, y int", f'{{"x":{text},"other":1}}') == ([{"x": value, "y": None}], [None], [None])


_MALFORMED: Final = [
    ("bigint", '"1"', "bigint"),
    ("bigint", "1.0", "bigint"),
    ("bigint", "1e3", "bigint"),
    ("int", "2147483648", "int"),
    ("int", "[1]", "int"),
    ("decimal(10,2)", "1.555", "decimal(10,2)"),
    ("decimal(3,2)", "10", "decimal(3,2)"),
    ("decimal(10,2)", '"1.50"', "decimal(10,2)"),
    ("double", '"1.5"', "double"),
    ("double", "true", "double"),
    ("boolean", "1", "boolean"),
    ("boolean", '"true"', "boolean"),
    ("string", "1.5", "string"),
    ("string", '{"a":1}', "string"),
    ("binary", '"AP8"', "binary as base64"),
    ("binary", '"é"', "binary as base64"),
    ("binary", "1", "binary as base64"),
    ("date", '"01.03.2026"', "date as 2026-03-01"),
    ("date", "20513", "date as 2026-03-01"),
    ("timestamp", "1772346600", "timestamp as ISO 8601 text"),
    ("timestamp_ntz", '"2026-03-01T06:30:00Z"', "timestamp_ntz as ISO 8601 text without a zone"),
    ("array<int>", '[1,"2"]', "array<int>"),
    ("array<int>", '{"a":1}', "array<int>"),
    ("map<string,int>", '{"a":1,"a":2}', "map<string,int>"),
    ("map<string,int>", "[]", "map<string,int>"),
    ("struct<a:int>", '{"a":"1"}', "struct<a:int>"),
    ("struct<a:int>", '{"a":1,"a":2}', "struct<a:int>"),
    ("struct<a:int>", "[1]", "struct<a:int>"),
]


@pytest.mark.parametrize(("data_type", "text", "allowed"), _MALFORMED, ids=[f"{kind} {text}" for kind, text, _ in _MALFORMED])
def test_what_spark_might_read_as_another_value_is_malformed(data_type: str, text: str, allowed: str) -> None:
    """It is null, and the other columns keep their values; the reason has the column, its value, and what is allowed."""
    row = f'{{"y":1,"x":{text}}}'
    assert _read(f"x {data_type}, y int", row) == ([{"x": None, "y": 1}], [f"column x = {text}: allowed is {allowed}"], [row])


def test_the_first_misfit_of_a_row_is_its_reason() -> None:
    """In the order of the schema."""
    row = '{"y":"b","x":"a"}'
    assert _read("x int, y int", row) == ([{"x": None, "y": None}], ['column x = "a": allowed is int'], [row])


def test_zero_has_a_sign_in_fractions_alone() -> None:
    """Spark reads the JSON number -0 as the whole number 0, at any depth."""
    assert [str(value) for value in _read("x array<double>", '{"x":[-0,-0.0,0]}')[0][0]["x"]] == ["0.0", "-0.0", "0.0"]


def test_the_other_rows_are_read() -> None:
    """A row that was no JSON keeps its own reason and its text."""
    given = [
        RowText(text=b'{"x":1}', fields=fields_of_row(b'{"x":1}')),
        RowText(malformed="{", detail="line 2: the row is no JSON object"),
        RowText(text=b'{"x":2}', fields=fields_of_row(b'{"x":2}')),
    ]
    read = TypedTexts(schema_of_ddl("x int"), are_texts=False).read(given)
    assert read.rows.to_pydict() == {"x": [1, None, 2]}
    assert read.unread.to_pylist() == [None, "line 2: the row is no JSON object", None]
    assert read.misfits.to_pylist() == [None] * 3
    assert read.raw.to_pylist() == [None, "{", None]
    assert TypedTexts(schema_of_ddl("x int"), are_texts=False).read([]).rows.schema == pa.schema([("x", pa.int32())])


_FIELDS: Final[list[tuple[str, str, Any]]] = [
    ("bigint", " 7 ", 7),
    ("decimal(10,2)", "1.555", Decimal("1.56")),
    ("double", "1e-3", 0.001),
    ("boolean", "Yes", True),
    ("string", "null", "null"),
    ("binary", " AP8=", b" AP8="),
    ("timestamp", "2026-03-01 06:30", _MORNING),
]


@pytest.mark.parametrize(("data_type", "text", "value"), _FIELDS, ids=[f"{kind} {text}" for kind, text, _ in _FIELDS])
def test_a_field_of_csv_is_cast(data_type: str, text: str, value: Any) -> None:
    """As CAST of the text does it; null is null."""
    rows = [json.dumps({"x": text}), '{"x":null}']
    assert _read(f"x {data_type}", *rows, are_texts=True) == ([{"x": value}, {"x": None}], [None, None], [None, None])


def test_a_field_of_csv_of_another_form_is_malformed() -> None:
    """The reason shows the field."""
    expected = [{"x": None}], ['column x = "7.0": allowed is bigint'], ['{"x":"7.0"}']
    assert _read("x bigint", '{"x":"7.0"}', are_texts=True) == expected


def test_a_field_of_csv_has_no_parts() -> None:
    """All columns that have are named."""
    message = r"^schema: column a, m: a field of CSV has no such type; allowed are those without parts$"
    with pytest.raises(WrongColumn, match=message):
        TypedTexts(schema_of_ddl("a array<int>, id int, m map<string,int>"), are_texts=True)


def test_a_schema_has_the_types_of_spark() -> None:
    """Under the names that its DDL has for them."""
    expected = pa.schema(
        [
            ("a", pa.int64()),
            ("b", pa.decimal128(10, 0)),
            ("c", pa.timestamp("us", "UTC")),
            ("d", pa.string()),
            ("e", pa.list_(pa.struct([("f", pa.map_(pa.string(), pa.float32()))]))),
        ]
    )
    assert (
        schema_of_ddl("a long not null, b decimal, c timestamp comment 'x', d varchar(3), e array<struct<f:map<string,real>>>") == expected
    )


@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        ("x json", "schema: column x is json: allowed are the types of Spark"),
        ("x uuid", "schema: column x is uuid: allowed are the types of Spark"),
        ("x decimal(*)", "schema: column x is decimal(*): allowed are the types of Spark"),
        ("x decimal(39,2)", "schema: column x is decimal(39,2): allowed are the types of Spark"),
        ("x struct<a:array<time>>", "schema: column x is struct<a: array<time>>: allowed are the types of Spark"),
        ("x map<string,json>", "schema: column x is map<string,json>: allowed are the types of Spark"),
        (
            "x map<int,string>",
            "schema 'x map<int,string>' is not SQL DDL (icao string, elevation double): DDL, at int,string>: string expected",
        ),
        ("x", "schema 'x' is not SQL DDL (icao string, elevation double): DDL, at the end: a type expected: "),
        ("x int, x int", "schema 'x int, x int' is not SQL DDL (icao string, elevation double): DDL, at int: a second column x"),
    ],
)
def test_another_schema_is_refused(ddl: str, message: str) -> None:
    """Before a file is read; in one line."""
    with pytest.raises(WrongColumn, match=f"^{re.escape(message)}") as error:
        schema_of_ddl(ddl)
    assert "\n" not in str(error.value)
