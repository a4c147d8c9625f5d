"""Statistics of data files: no reader leaves out a file that has the rows it asks for (TABLES A6)."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest

from lastword.storage.tables.statistics import file_statistics, has_nan, null_count, row_count, with_wide_bounds
from tests.storage.tables.kept import Kept
from tests.storage.tables.readers import READERS, read_duckdb

if TYPE_CHECKING:
    from pathlib import Path

_INF: Final = float("inf")


def _ends(values: list[Any], data_type: pa.DataType, *, keys: tuple[str, ...] = ()) -> tuple[Any, Any, Any]:
    """Return least, greatest, and number of nulls of a column `c`, by a parser that takes no NaN."""
    text = file_statistics(pa.table({"c": pa.array(values, data_type)}), keys=keys)
    body = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in {text}"), parse_float=str)
    assert body["numRecords"] == len(values)
    assert body["tightBounds"] is True
    return body["minValues"].get("c"), body["maxValues"].get("c"), body["nullCount"].get("c")


@pytest.mark.parametrize(
    ("values", "data_type", "expected"),
    [
        ([3, None, -1], pa.int64(), (-1, 3, 1)),
        ([2**63 - 1, -(2**63)], pa.int64(), (-(2**63), 2**63 - 1, 0)),
        ([None], pa.int32(), (None, None, 1)),
        ([], pa.int32(), (None, None, 0)),
        ([1.5, 2.5], pa.float64(), ("1.5", "2.5", 0)),
        ([1.5, math.nan], pa.float64(), (None, None, 0)),
        ([1.5, math.nan, None], pa.float32(), (None, None, 1)),
        ([1.5, _INF], pa.float64(), ("1.5", None, 0)),
        ([-_INF, 1.5], pa.float64(), (None, "1.5", 0)),
        ([-0.0], pa.float64(), ("-0.0", "0.0", 0)),
        ([0.0], pa.float64(), ("-0.0", "0.0", 0)),
        ([0.0, 1.0], pa.float64(), ("-0.0", "1.0", 0)),
        ([Decimal("-0.10"), Decimal("12345678.90")], pa.decimal128(10, 2), ("-0.10", "12345678.90", 0)),
        ([Decimal("9" * 37)], pa.decimal128(38, 0), (10**37 - 1, 10**37 - 1, 0)),
        ([Decimal("0.0000000001")], pa.decimal128(20, 10), ("0.0000000001", "0.0000000001", 0)),
        ([dt.date(1, 1, 1), dt.date(9999, 12, 31)], pa.date32(), ("0001-01-01", "9999-12-31", 0)),
        (
            [dt.datetime.fromisoformat("2024-02-29T01:02:03.000004")],
            pa.timestamp("us"),
            ("2024-02-29T01:02:03.000004", "2024-02-29T01:02:03.000004", 0),
        ),
        (
            [dt.datetime(2024, 2, 29, tzinfo=dt.timezone.utc)],
            pa.timestamp("us", "UTC"),
            ("2024-02-29T00:00:00.000000Z", "2024-02-29T00:00:00.000000Z", 0),
        ),
        ([True, None], pa.bool_(), (None, None, 1)),
        ([b"a", None], pa.binary(), (None, None, 1)),
        ([[1], None], pa.list_(pa.int64()), (None, None, None)),
    ],
)
def test_the_ends_of_a_column(values: list[Any], data_type: pa.DataType, expected: tuple[Any, Any, Any]) -> None:
    """As JSON that every reader takes."""
    assert _ends(values, data_type) == expected


@pytest.mark.parametrize(
    ("text", "upper"),
    [
        ("short", "short"),
        ("x" * 32, "x" * 32),
        ("x" * 33, "x" * 31 + "y"),
        ("\x7f" * 40, "\x7f" * 31 + "\x80"),
        ("a" * 31 + "\ud7ff" * 2, "a" * 31 + "\ue000"),
        ("a" * 31 + "\U0010ffff" * 5, "a" * 30 + "b"),
        ("\U0010ffff" * 40, None),
        ("", ""),
    ],
)
def test_the_upper_end_of_a_long_text_is_rounded_up(text: str, upper: str | None) -> None:
    """Cut alone it would be below the text, and readers would lose the row; there may be none."""
    low, high, _ = _ends([text], pa.string())
    assert (low, high) == (text[:32], upper)
    assert low <= text
    assert high is None or high.encode() >= text.encode()


def test_the_text_of_a_key_stands_in_no_statistics() -> None:
    """A key that is erased must not stand in the Delta log; a number may."""
    assert _ends(["secret"], pa.string(), keys=("c",)) == (None, None, 0)
    assert _ends([b"secret"], pa.binary(), keys=("c",)) == (None, None, 0)
    assert _ends([7], pa.int64(), keys=("c",)) == (7, 7, 0)


def test_what_statistics_say_of_rows() -> None:
    """Statistics of our own files, and of other writers' files, which may say less."""
    ours = file_statistics(pa.table({"c": pa.array([1, None]), "price": pa.array([Decimal("1.10")] * 2)}), keys=())
    wide = with_wide_bounds(ours)
    assert (row_count(ours), null_count(ours, "c"), null_count(ours, "other")) == (2, 1, None)
    assert wide == ours.replace('"tightBounds":true', '"tightBounds":false')
    assert with_wide_bounds("{}") == '{"tightBounds":false}'
    for text in (None, "", "{}", "null", '{"numRecords":null,"nullCount":null}'):
        assert (row_count(text), null_count(text, "c")) == (None, None)


@pytest.mark.parametrize("value", [math.nan, 1.5, None])
@pytest.mark.parametrize(
    "data_type",
    [
        pa.float32(),
        pa.float64(),
        pa.list_(pa.float64()),
        pa.map_(pa.string(), pa.float64()),
        pa.struct([("n", pa.int64()), ("inner", pa.struct([("d", pa.float64())]))]),
    ],
)
def test_nan_is_seen_in_parts_of_columns_too(data_type: pa.DataType, value: float | None) -> None:
    """Files with it have no statistics of Parquet's either."""
    shaped: Any = value
    if pa.types.is_list(data_type):
        shaped = [1.0, value]
    elif pa.types.is_map(data_type):
        shaped = {"a": value}
    elif pa.types.is_struct(data_type):
        shaped = {"n": 1, "inner": {"d": value}}
    rows = pa.table({"id": pa.array([1, 2]), "c": pa.array([None, shaped], data_type)})
    assert has_nan(rows) is (value is not None and math.isnan(value))
    assert not has_nan(pa.table({"c": pa.array([None], data_type)}))


_DDL: Final = "id bigint, d double, f float, text string, price decimal(10,2), at timestamp, local timestamp_ntz, day date"
_ODD: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "NaN beside a number": ({"d": "NaN"}, "d > 5"),
    "an infinity": ({"d": "Infinity"}, "d > 5"),
    "a negative infinity": ({"d": "-Infinity"}, "d < -5"),
    "a negative zero": ({"d": -0.0}, "d = 0.0"),
    "a zero": ({"d": 0.0}, "d = -0.0"),
    "a long text": ({"text": "x" * 32 + "y"}, f"text = '{'x' * 32}y'"),
    "the highest text": ({"text": "\U0010ffff" * 33}, f"text >= '{chr(0x10FFFF) * 33}'"),
    "the last year": ({"at": "9999-12-31T23:59:59.999999Z"}, "\"at\" >= '9999-12-31 23:59:59'"),
    "the first year": ({"day": "0001-01-01"}, "day < '0002-01-01'"),
    "a microsecond": ({"local": "2024-02-29T10:00:00.000001"}, "local > '2024-02-29 10:00:00'"),
    "a decimal": ({"price": "99999999.99"}, "price > 99999999.98"),
}


@pytest.mark.parametrize("what", _ODD)
def test_a_filter_finds_the_rows_that_it_asks_for(tmp_path: Path, what: str) -> None:
    """With values at the ends of what a type has; in DuckDB, and in Polars and delta-rs whole."""
    kept = Kept(tmp_path, value_ddl=_DDL)
    row, condition = _ODD[what]
    kept.append((1, {"id": 1, "d": 1.5, **row}), (2, {"id": 2, "d": 1.5, "f": 0.5}))
    kept.table.step()
    assert read_duckdb(kept.location, f"SELECT id FROM {{}} WHERE {condition}").column("id").to_pylist() == [1]  # noqa: S608
    for read in READERS.values():
        assert sorted(read(kept.location).column("id").to_pylist()) == [1, 2]
