"""Expressions of SQL without Spark: what is computed, and what is refused by name rather than computed differently."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pytest

from lastword.change_data.frames.json_columns import WrongColumn
from lastword.change_data.frames.sql_expressions import Failures, WrongExpression, bind_condition, bind_expression, columns_in, lone_column

_COLUMNS: Final = {
    "op": pa.array(["d", "7", None]),
    "n": pa.array([1, 4, None], pa.int32()),
    "big": pa.array([2**53 + 1, 0, None]),
    "price": pa.array(["1.50", "2", None]).cast(pa.decimal128(10, 2)),
    "f": pa.array([1.5, float("nan"), None]),
    "f32": pa.array([0.1, 1.5, None], pa.float32()),
    "is_deleted": pa.array([True, False, None]),
    "day": pa.array([0, 20_513, None], pa.int32()).cast(pa.date32()),
    "at": pa.array([0, 10**15, None], pa.timestamp("us", "UTC")),
    "local": pa.array([0, 10**15, None], pa.timestamp("us")),
    "bytes": pa.array([b"x", b"", None]),
    "nothing": pa.nulls(3),
    "current_date": pa.array(["x", "y", None]),
    "exact": pa.array([1, 2, None], pa.decimal128(38, 20)),
    "a `b`": pa.array(["x", "y", None]),
}
_TYPES: Final = {name: column.type for name, column in _COLUMNS.items()}


def _compute(text: str) -> tuple[list[bool | None], list[bool]]:
    failures = Failures(np.zeros(3, dtype=np.bool_))
    values = bind_condition(text, _TYPES).compute(_COLUMNS, failures)
    return values.to_pylist(), failures.rows.tolist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("op = 'd'", [True, False, None]),
        ("op <> 'd' AND n > 3", [False, True, None]),
        ("NOT is_deleted or n is null", [False, True, True]),
        ("op IN ('d', 'x') AND op NOT IN ('y')", [True, False, None]),
        ("n BETWEEN 1 AND 3 AND n NOT BETWEEN 2 AND 3", [True, False, None]),
        ("price = 1.5 OR price >= 2", [True, True, None]),
        ("n = 1.0", [True, False, None]),
        ("f > 1e308", [False, True, None]),  # NaN is above all numbers, as in Spark
        ("f != f", [False, False, None]),
        ("f32 = 0.1", [False, False, None]),  # of 64 bits 0.1 is another number
        ("big = 9007199254740993", [True, False, None]),
        ("day >= '2026-03-01' OR day = DATE '1970-01-01'", [True, True, None]),
        ("at > TIMESTAMP '2000-01-01T00:00:00+01:00'", [False, True, None]),
        ("`a ``b``` = 'x'", [True, False, None]),
        ("CAST(n AS BIGINT) = 4 AND TRUE", [False, True, None]),
        ("is_deleted", [True, False, None]),
        ("(((op))) == 'd'", [True, False, None]),
        ("`n` < 2 OR n >= 4", [True, True, None]),
        ("n > -1 AND n <> - 4", [True, True, None]),
        ("f <= 1.5e0", [True, False, None]),
        ("f < 2 AND f <= 1.5", [True, False, None]),
        ("f >= 1.5 AND 1.5 < f", [False, True, None]),
        ("big < price", [False, True, None]),
        ("price IN (1.50, 3)", [True, False, None]),
        ("n BETWEEN .5 AND 0002.", [True, False, None]),
        ("is_deleted = FALSE OR is_deleted > (n = 4)", [True, True, None]),
        ("day BETWEEN '1970-01-01' AND DATE '1970-01-02'", [True, False, None]),
        ("at = '1970-01-01T01:00:00+01:00'", [True, False, None]),
        ("local < '1970-01-01T00:00:00'", [False, False, None]),
        ("'2026-03-01' <= day", [False, True, None]),
        ("op IS NOT NULL AND NOT NOT n IS NOT NULL", [True, True, False]),
        ("NOT NOT is_deleted", [True, False, None]),
        ("bytes IS NULL OR TRUE AND FALSE", [False, False, True]),
        ("1 = 1.0 AND 'a' < 'b'", [True, True, True]),
        ("CAST(CAST(n AS INT) AS BIGINT) = big", [False, False, None]),
        ("CAST('7' AS decimal ( 3 , 1 )) = 7.0", [True, True, True]),
        ("CAST(op AS STRING) = '7'", [False, True, None]),
        ("current_date = 'x'", [True, False, None]),
        ("n IN (" + ", ".join(map(str, range(2, 3000))) + ")", [False, True, None]),
        (" OR ".join(["n = 1"] * 3000), [True, False, None]),
        ("NOT " * 3001 + "is_deleted", [False, True, None]),
        ("(" * 39 + "is_deleted" + ")" * 39, [True, False, None]),
    ],
    ids=lambda value: value[:60] if isinstance(value, str) else "",
)
def test_a_condition_is_computed_as_spark_does(text: str, expected: list[bool | None]) -> None:
    """Null is neither true nor false; AND and OR know three values."""
    assert _compute(text) == (expected, [False] * 3)


def test_a_cast_that_fails_is_a_row_without_a_result() -> None:
    """Its row is noted, and the others are computed."""
    assert _compute("CAST(op AS BIGINT) = 7") == ([None, True, None], [True, False, False])
    assert _compute("CAST(op AS BOOLEAN)") == ([None, None, None], [True, True, False])
    assert _compute("CAST('d' AS DATE) IS NULL") == ([True] * 3, [True] * 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("op = 1", "string = bigint compares two kinds"),
        ("lower(op) = 'd'", "the function lower is for Spark alone"),
        ("op LIKE 'd%'", "LIKE 'd%' cannot be read here"),
        ("n + 1 = 2", "arithmetic is for Spark alone"),
        ("n = 2 - 1", "arithmetic"),
        ("n = 1L", "letters behind a number"),
        ("f = n", "double = int compares two kinds"),
        ("price = f", "compares two kinds"),
        ("f32 = 16777217", "compares two kinds"),
        ('op = "d"', "double quotes mean a text or a column"),
        ("op = 'it''s'", "a quote or a backslash"),
        (r"op = 'a\nb'", "a quote or a backslash"),
        ("op = NULL", "write IS NULL"),
        ("at > '2026-01-01'", "write it as '2026-03-01T06:30:00Z'"),
        ("at > TIMESTAMP '2026-01-01'", "has no time zone"),
        ("day = DATE '2026-02-30'", "is no DATE"),
        ("op.x = 1", "a field of op is for Spark alone"),
        ("op IS TRUE", "IS NULL and IS NOT NULL are allowed"),
        ("n", "is not a SQL condition: it is int"),
        ("NOT n", "NOT of a int"),
        ("CAST(n AS STRING) = '1'", "CAST of int to string is for Spark alone"),
        ("CAST(op AS XML) = '1'", "CAST to XML"),
        ("(op = 'd'", ") expected at the end"),
        ("op = 'd' op", "op cannot be read here"),
        ("", "the end cannot be read here"),
    ],
)
def test_what_might_differ_from_spark_is_refused_by_name(text: str, message: str) -> None:
    """Before a row is read; the message says what is allowed."""
    with pytest.raises(WrongExpression) as error:
        bind_condition(text, _TYPES)
    assert message in str(error.value)


#: An expression, and the one line that says why it is refused, up to what is allowed.
_REFUSED: Final = [
    ("n = 'x'", "int = string compares two kinds; cast one, e.g. CAST(n AS BIGINT), or write the literal as the column's kind"),
    ("bytes = bytes", "binary = binary compares two kinds; cast one, e.g. CAST(n AS BIGINT), or write the literal as the column's kind"),
    ("nothing > 1", "void > bigint compares two kinds; cast one, e.g. CAST(n AS BIGINT), or write the literal as the column's kind"),
    (
        "exact = n",
        "decimal(38,20) = int compares two kinds; cast one, e.g. CAST(n AS BIGINT), or write the literal as the column's kind",
    ),
    ("day = '01.03.2026'", "'01.03.2026' is compared with a date: write it as '2026-03-01'"),
    ("local = '2026-03-01T06:30:00Z'", "'2026-03-01T06:30:00Z' is compared with a timestamp_ntz: write it as '2026-03-01T06:30:00'"),
    ("n = 9223372036854775808", "the number 9223372036854775808 has more than 64 bits"),
    ("n = " + "9" * 5000, f"the number {'9' * 5000} has more than 64 bits"),
    ("f < 1e400", "the number 1e400 has more than 64 bits"),
    ("price = 0." + "1" * 39, f"the number 0.{'1' * 39} has more than 38 digits"),
    ("n = -", "the end cannot be read here"),
    ("n = --1", "1 cannot be read here"),
    ("-n = 1", "= 1 cannot be read here"),
    ("n NOT = 1", "BETWEEN and IN are allowed after NOT"),
    ("n NOT LIKE '1'", "BETWEEN and IN are allowed after NOT"),
    ("n IN ()", ") cannot be read here"),
    ("n BETWEEN 1 OR 2", "AND expected at OR 2"),
    ("n + 1", "arithmetic is for Spark alone"),
    ("(n) + 1", "+ 1 cannot be read here"),
    ("op <=> 'd'", "<=> 'd' cannot be read here"),
    ("op = 'd", "'d cannot be read here"),
    ("op = ;", "; cannot be read here"),
    ("`op`.x = 1", ".x = 1 cannot be read here"),
    ("n = CASE", "CASE cannot be read here"),
    ("op = CURRENT_TIMESTAMP", "the function CURRENT_TIMESTAMP is for Spark alone"),
    ("n AND TRUE", "AND of a int: allowed is a condition"),
    ("TRUE OR op", "OR of a string: allowed is a condition"),
    ("CAST op", "( expected at op"),
    ("CAST(op AS", "a type expected after AS, e.g. CAST(n AS BIGINT)"),
    ("CAST(op AS ARRAY<INT>)", "a type expected after AS, e.g. CAST(n AS BIGINT)"),
    ("CAST(op AS MAP)", "CAST to MAP: allowed are the types of Spark without parts"),
    ("CAST(op AS JSON) = 'd'", "CAST to JSON: allowed are the types of Spark without parts"),
    ("CAST(op AS VARCHAR(3)) = 'd'", "CAST to VARCHAR(3): allowed are the types of Spark without parts"),
    ("CAST(op AS DECIMAL(39, 1)) = 1", "CAST to DECIMAL(39, 1): allowed are the types of Spark without parts"),
    ("CAST(n AS TINYINT) = 1", "CAST of int to tinyint is for Spark alone"),
    ("(" * 3000 + "n", "more than 40 brackets and casts in one another"),
    ("CAST(" * 3000 + "n", "more than 40 brackets and casts in one another"),
]


@pytest.mark.parametrize(("text", "why"), _REFUSED, ids=[text[:40] for text, _ in _REFUSED])
def test_why_an_expression_is_refused(text: str, why: str) -> None:
    """The whole message: the expression, why, and what is allowed instead."""
    allowed = "Without Spark allowed are columns, literals, comparisons, BETWEEN, IN, IS NULL, AND, OR, NOT and CAST"
    with pytest.raises(WrongExpression) as error:
        bind_condition(text, _TYPES)
    assert str(error.value) == f"{text}: {why}. {allowed}"


def test_a_missing_column_is_named() -> None:
    """With those that there are."""
    with pytest.raises(WrongColumn) as error:
        bind_condition("gone = 'd'", {"op": pa.string(), "n": pa.int8()})
    assert str(error.value) == "gone = 'd': no column gone; there are op, n"


def test_a_column_of_another_case_is_named() -> None:
    """Spark takes it for the same one; JSON has both."""
    with pytest.raises(WrongColumn, match=r"no column OP; there are op, n, .*: upper and lower case differ"):
        bind_condition("OP = 'd'", _TYPES)


def test_of_texts_a_lone_column_is_a_boolean() -> None:
    """As a source without a schema reads it."""
    failures = Failures(np.zeros(4, dtype=np.bool_))
    condition = bind_condition("gone", None)
    assert condition.compute({"gone": pa.array(["true", "0", None, "maybe"])}, failures).to_pylist() == [True, False, None, None]
    assert failures.rows.tolist() == [False, False, False, True]
    failures = Failures(np.zeros(2, dtype=np.bool_))
    assert bind_condition("NOT (a = 'x')", None).compute({}, failures).to_pylist() == [None, None]  # no row has the column
    with pytest.raises(WrongExpression, match=r"^a = current_date: the function current_date is for Spark alone"):
        bind_condition("a = current_date", None)


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("gone", "gone"),
        (" (gone)\n", "gone"),
        ("`a ``b```", "a `b`"),
        ("`AND`", "AND"),
        ("AND", ""),
        ("true", ""),
        ("'gone'", ""),
        ("7", ""),
        ("gone = 'x'", ""),
        ("", ""),
    ],
)
def test_a_column_by_itself(text: str, column: str) -> None:
    """In brackets too; a literal is none."""
    assert lone_column(text) == column


def test_the_columns_of_an_expression() -> None:
    """The names of all columns that an expression uses are found."""
    assert columns_in("NOT current_date IN (a, 'x') OR a") == ["current_date", "a"]
    assert columns_in("a > 1 AND NOT `b c` OR CAST(d AS INT) IN (1)") == ["a", "b c", "d"]
    with pytest.raises(WrongExpression, match=r"^a = : the end cannot be read here"):
        columns_in("a = ")


def test_the_kind_of_an_expression() -> None:
    """What it is compared as."""
    texts = ["CAST(op AS TIMESTAMP)", "local", "day", "n", "1.5", "1e3", "f32", "TRUE", "'x'", "bytes"]
    expected = ["timestamp", "timestamp_ntz", "date", "whole", "decimal", "double", "float", "boolean", "text", "other"]
    assert [bind_expression(text, _TYPES).kind for text in texts] == expected
