"""Texts as values of a type: the forms that Spark reads as the same value, and those that are none."""

from __future__ import annotations

import math
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pytest

from lastword.change_data.frames.text_casts import can_cast_text, cast_text, cast_texts, record_times

_INSTANT: Final = pa.timestamp("us", "UTC")
_LOCAL: Final = pa.timestamp("us")
_MORNING: Final = datetime(2026, 3, 1, 6, 30, tzinfo=timezone.utc)

#: A text, its type, and the value that it is; None for a form that is no value.
_CASTS: Final[list[tuple[str, pa.DataType, Any]]] = [
    ("7", pa.int8(), 7),
    (" +7\t\n", pa.int64(), 7),
    ("-128", pa.int8(), -128),
    ("128", pa.int8(), None),
    ("2147483648", pa.int32(), None),
    ("-9223372036854775808", pa.int64(), -(2**63)),
    ("9223372036854775808", pa.int64(), None),
    ("0" * 5000 + "7", pa.int64(), 7),
    ("9" * 5000, pa.int64(), None),
    ("7.0", pa.int64(), None),
    ("1e3", pa.int64(), None),
    ("", pa.int64(), None),
    ("1.5", pa.decimal128(10, 2), Decimal("1.50")),
    ("1e3", pa.decimal128(10, 2), Decimal("1000.00")),
    ("1.005", pa.decimal128(10, 2), Decimal("1.01")),
    ("-1.005", pa.decimal128(10, 2), Decimal("-1.01")),
    ("0e9999", pa.decimal128(10, 2), Decimal("0.00")),
    ("1e-9999", pa.decimal128(10, 2), Decimal("0.00")),
    ("0.4", pa.decimal128(2, 2), Decimal("0.40")),
    ("99.94", pa.decimal128(3, 1), Decimal("99.9")),
    ("99.95", pa.decimal128(3, 1), None),
    ("100", pa.decimal128(3, 1), None),
    ("1e9999", pa.decimal128(38, 0), None),
    ("1_000", pa.decimal128(10, 2), None),
    ("NaN", pa.decimal128(10, 2), None),
    ("1.5", pa.float64(), 1.5),
    (".5", pa.float32(), 0.5),
    ("5.", pa.float32(), 5.0),
    ("1e-3", pa.float64(), 0.001),
    (" -Infinity ", pa.float64(), -math.inf),
    ("inf", pa.float64(), None),
    ("1.5f", pa.float64(), None),
    ("T", pa.bool_(), True),
    (" yes", pa.bool_(), True),
    ("False", pa.bool_(), False),
    ("0", pa.bool_(), False),
    ("on", pa.bool_(), None),
    ("2026-03-01", pa.date32(), date(2026, 3, 1)),
    ("2026-02-30", pa.date32(), None),
    ("2026-3-1", pa.date32(), None),
    ("2026-03-01T06:30", pa.date32(), None),
    ("2026-03-01", _INSTANT, _MORNING.replace(hour=0, minute=0)),
    ("2026-03-01 06:30", _INSTANT, _MORNING),
    ("2026-03-01T06:30:00Z", _INSTANT, _MORNING),
    ("2026-03-01T07:30+01:00", _INSTANT, _MORNING),
    ("2026-02-28 12:30:00-18:00", _INSTANT, _MORNING),
    ("2026-03-01T06:30:00.5", _INSTANT, _MORNING + timedelta(microseconds=500_000)),
    ("2026-03-01T06:30:00.123456789Z", _INSTANT, _MORNING + timedelta(microseconds=123_456)),
    ("2026-03-01T06:30:00+18:01", _INSTANT, None),
    ("2026-03-01T06:30:00+01:60", _INSTANT, None),
    ("2026-03-01T24:00", _INSTANT, None),
    ("2026-02-30", _INSTANT, None),
    ("0001-01-01T00:00+01:00", _INSTANT, None),
    ("1772346600", _INSTANT, None),
    ("2026-03-01T06:30:00", _LOCAL, _MORNING.replace(tzinfo=None)),
    ("2026-03-01", _LOCAL, _MORNING.replace(hour=0, minute=0, tzinfo=None)),
    ("2026-03-01T06:30:00Z", _LOCAL, None),
    ("2026-02-30", _LOCAL, None),
    ("noon", _LOCAL, None),
    (" a ", pa.string(), " a "),
    (" é ", pa.binary(), b" \xc3\xa9 "),
]


@pytest.mark.parametrize(("text", "data_type", "value"), _CASTS, ids=[f"{text[:30]}-{kind}" for text, kind, _ in _CASTS])
def test_a_text_is_one_value_or_none(text: str, data_type: pa.DataType, value: Any) -> None:
    """In a column and by itself; a null stays one."""
    assert can_cast_text(data_type)
    assert cast_texts(pa.array([text, None]), data_type).to_pylist() == [value, None]
    if value is None:
        with pytest.raises(ValueError, match=r"^") as error:
            cast_text(text, data_type)
        assert str(error.value) == text
    else:
        assert cast_text(text, data_type) == value


def test_not_a_number_is_a_number() -> None:
    """It equals nothing, so it is not among the others."""
    assert math.isnan(cast_text("NaN", pa.float32()))


@pytest.mark.parametrize("data_type", [pa.list_(pa.int8()), pa.struct([("a", pa.int8())]), pa.null()], ids=str)
def test_a_type_with_parts_has_no_text(data_type: pa.DataType) -> None:
    """Struct, array and map columns cannot be cast from text; this is reported before any text is read."""
    assert not can_cast_text(data_type)
    with pytest.raises(ValueError, match=r"^no cast of a text to (list|struct|null)"):
        cast_texts(pa.array(["1"]), data_type)
    with pytest.raises(ValueError, match=r"^\[1\]$"):
        cast_text("[1]", data_type)


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("1772346600000", _MORNING),
        ("10000000000", datetime(1970, 4, 26, 17, 46, 40, tzinfo=timezone.utc)),
        ("1772346600", None),
        ("-1772346600000", None),
        ("17723466000000", None),
        (" 2026-03-01T06:30:00Z", _MORNING),
        ("2026-03-01 06:30", _MORNING),
        ("today", None),
        (None, None),
    ],
)
def test_the_time_of_a_record_is_iso_or_milliseconds(text: str | None, time: datetime | None) -> None:
    """Ten digits may be seconds, and fourteen microseconds: they are no time."""
    assert record_times(pa.array([text], pa.string())).to_pylist() == [time]
