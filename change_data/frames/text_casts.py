"""Texts as values of a type, for the forms that Spark and lastword read as the same value; another form is none.

```
 bigint      " 7 " "+7"                                                   not 7.0, not 1e3
 decimal     "1.50" "1e3"                                                 more decimals than the type has are rounded half up
 double      "1.5" "1e-3" "NaN" "Infinity"
 boolean     t true y yes 1, f false n no 0, in any case
 date        2026-03-01
 timestamp   2026-03-01, 2026-03-01 06:30, 2026-03-01T06:30:00.5+01:00    without a zone it is in UTC
```
"""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta, timezone
from decimal import ROUND_HALF_UP, Decimal, localcontext
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.types as pt

if TYPE_CHECKING:
    from collections.abc import Callable

#: No type has more than 19 digits, and Python makes no number of some thousand.
_WHOLE: Final = re.compile(r"([+-]?)0*([0-9]{1,19})").fullmatch
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?").fullmatch
_SPECIAL: Final = {"NaN", "Infinity", "-Infinity"}
_BOOLEANS: Final = {**dict.fromkeys(("t", "true", "y", "yes", "1"), True), **dict.fromkeys(("f", "false", "n", "no", "0"), False)}
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}").fullmatch
_TIMESTAMP: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})(?:[ T]([0-9]{2}:[0-9]{2})(?:(:[0-9]{2})(?:\.([0-9]{1,9}))?)?"
    r"(Z|[+-](?:(?:0[0-9]|1[0-7]):[0-5][0-9]|18:00))?)?"
).fullmatch
#: Milliseconds since 1970, as a text.
_MILLIS: Final = re.compile(r"[0-9]{11,13}").fullmatch
_DIGITS_ALONE: Final = re.compile(r"-?[0-9]+").fullmatch
#: What Spark takes off both ends of a text before it casts it.
_SPACES: Final = "".join(map(chr, range(0x21)))
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


def can_cast_text(data_type: pa.DataType) -> bool:
    """Tell whether a text can be cast to a plain type."""
    return _conversion(data_type) is not None


def cast_texts(texts: pa.Array, data_type: pa.DataType) -> pa.Array:
    """Return texts as values of a plain type; null for a text that has another form."""
    convert = _conversion(data_type)
    if convert is None:
        message = f"no cast of a text to {data_type}"
        raise ValueError(message)
    strips = _strips(data_type)
    return pa.array([None if text is None else convert(text.strip(strips)) for text in texts.to_pylist()], data_type)


def cast_text(text: str, data_type: pa.DataType) -> Any:
    """Return a text as a value of a plain type. Raises `ValueError` for a text of another form."""
    convert = _conversion(data_type)
    value = None if convert is None else convert(text.strip(_strips(data_type)))
    if value is None:
        raise ValueError(text)
    return value


def _strips(data_type: pa.DataType) -> str:
    return "" if pt.is_string(data_type) or pt.is_binary(data_type) else _SPACES


def record_times(texts: pa.Array) -> pa.Array:
    """Return texts as the times of records: 11 to 13 digits are milliseconds since 1970, other digits alone are no time."""
    return pa.array([None if text is None else _record_time(text) for text in texts.to_pylist()], pa.timestamp("us", "UTC"))


def _record_time(text: str) -> datetime | None:
    if _MILLIS(text):
        return _EPOCH + timedelta(milliseconds=int(text))
    return None if _DIGITS_ALONE(text) else _timestamp(text.strip(_SPACES))


def _conversion(data_type: pa.DataType) -> Callable[[str], Any] | None:
    if pt.is_signed_integer(data_type):
        bits = data_type.bit_width
        return lambda text: _whole(text, bits)
    if pt.is_decimal(data_type):
        return lambda text: _decimal(text, data_type.precision, data_type.scale)
    if pt.is_timestamp(data_type):
        return _timestamp if data_type.tz is not None else _local_timestamp
    known: dict[pa.DataType, Callable[[str], Any]] = {
        pa.string(): str,
        pa.binary(): str.encode,
        pa.float32(): _double,
        pa.float64(): _double,
        pa.bool_(): lambda text: _BOOLEANS.get(text.lower()),
        pa.date32(): _date,
    }
    return known.get(data_type)


def _whole(text: str, bits: int) -> int | None:
    match = _WHOLE(text)
    number = None if match is None else int(match[1] + match[2])
    return number if number is not None and -(2 ** (bits - 1)) <= number < 2 ** (bits - 1) else None


def _decimal(text: str, precision: int, scale: int) -> Decimal | None:
    if not _NUMBER(text):
        return None
    with localcontext() as exact:
        exact.prec = 20_000
        number = Decimal(text)
        if number.adjusted() >= precision - scale and number:
            return None
        rounded = number.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP)
    return rounded if rounded == 0 or rounded.adjusted() < precision - scale else None


def _double(text: str) -> float | None:
    return float(text) if _NUMBER(text) or text in _SPECIAL else None


def _date(text: str) -> date | None:
    try:
        return date.fromisoformat(text) if _DATE(text) else None
    except ValueError:
        return None


def _timestamp(text: str) -> datetime | None:
    match = _TIMESTAMP(text)
    if match is None:
        return None
    try:
        local = datetime.fromisoformat(f"{match[1]}T{match[2] or '00:00'}{match[3] or ':00'}").replace(tzinfo=timezone.utc)
        local += timedelta(microseconds=int((match[4] or "0").ljust(6, "0")[:6]))
        zone = match[5] or "Z"
        offset = timedelta() if zone == "Z" else timedelta(hours=int(zone[1:3]), minutes=int(zone[4:6]))
        return local - offset if zone[0] != "-" else local + offset
    except (ValueError, OverflowError):
        return None


def _local_timestamp(text: str) -> datetime | None:
    match = _TIMESTAMP(text)
    instant = None if match is None or match[5] else _timestamp(text)
    return None if instant is None else instant.replace(tzinfo=None)
