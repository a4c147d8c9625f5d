"""Values in the encodings of a source as canonical text; what cannot be one is a `ValueError`.

```
 decimal(20,10)  base64     "AUzypFwA"                        ─►  143.0000000000
 timestamp       text       "2026-03-01T07:30:00.5+01:00"     ─►  2026-03-01T06:30:00.500000Z
 timestamp_ntz   micros     1769940360500000                  ─►  2026-02-01T10:06:00.500000
 time            nanos      49020000001000                    ─►  13:37:00.000001000
```

A JSON number for a decimal, and ISO text for a date, a time or a timestamp, cannot be misread: they are accepted under each encoding. There
are six digits behind the point of a second; nine for nanoseconds, and where a text has more than six.
"""

from __future__ import annotations

import re
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

if TYPE_CHECKING:
    from lastword.change_data.columns.column_types import DecimalType

Convert: TypeAlias = Callable[[Any], Any]

#: No database has numbers of more digits; a larger exponent would only fill the memory.
_MAX_DIGITS: Final = 200_000
#: Python's `str` refuses integers of more than 4,300 digits; those go through `Decimal`.
_LARGE_BITS: Final = 12_000
_LARGE_PRECISION: Final = 3_600
_EPOCH_ORDINAL: Final = date(1970, 1, 1).toordinal()
_DAY_SECONDS: Final = 86_400
#: Java's zones are no further from UTC.
_MAX_OFFSET_SECONDS: Final = 18 * 3_600
#: How many digits a unit has behind the point of a second, and how many of it a second has.
UNITS: Final = {"millis": (3, 1_000), "micros": (6, 1_000_000), "nanos": (9, 1_000_000_000)}
#: What is no number, as Debezium's decimals and the canonical form name it.
_SPECIAL_NUMBERS: Final = {
    "NAN": "NaN",
    "POSITIVE_INFINITY": "Infinity",
    "NEGATIVE_INFINITY": "-Infinity",
    **{name: name for name in ("NaN", "Infinity", "-Infinity")},
}

_DECIMAL: Final = re.compile(r"([+-]?)([0-9]+)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]{1,9}))?")
_DATE: Final = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})Z?")
_ZONE: Final = r"(?:Z|([+-])([0-9]{2})(?::?([0-9]{2}))?)"
_CLOCK: Final = r"([0-9]{2}:[0-9]{2})(:[0-9]{2})?(?:\.([0-9]{1,9}))?"
_TIME: Final = re.compile(rf"{_CLOCK}({_ZONE})?")
_TIMESTAMP: Final = re.compile(rf"([0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}})[T ]{_CLOCK}({_ZONE})?")


def _match(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    match = pattern.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return match


# Decimals. A number is its sign, its digits and its scale, as texts and a count: so there is no limit of digits and nothing is rounded.


def _decimal_text(is_negative: bool, digits: str, scale: int, data_type: DecimalType) -> str:  # noqa: FBT001
    """Return a number of some digits, the last `scale` of them behind the point, with exactly the scale of its type."""
    digits = digits.lstrip("0")
    if data_type.precision is not None and data_type.scale is not None:
        surplus = scale - data_type.scale
        if surplus > 0 and digits[-surplus:].strip("0"):
            message = "more digits behind the point than the scale"
            raise ValueError(message)
        digits, scale = (digits[:-surplus] if surplus > 0 else digits + "0" * -surplus if digits else ""), data_type.scale
        if len(digits) > data_type.precision:
            message = "more digits than the precision"
            raise ValueError(message)
    sign = "-" if is_negative and digits else ""
    if scale <= 0:
        return sign + (digits + "0" * -scale if digits else "0")
    digits = digits.zfill(scale + 1)
    return f"{sign}{digits[:-scale]}.{digits[-scale:]}"


def _decimal_of_text(data_type: DecimalType, text: str) -> str:
    if data_type.scale is None and text in _SPECIAL_NUMBERS:
        return _SPECIAL_NUMBERS[text]
    match = _match(_DECIMAL, text)
    sign, whole, fraction, exponent = match[1], match[2], match[3] or "", int(match[4] or 0)
    if abs(exponent) > _MAX_DIGITS:
        raise ValueError(text)
    return _decimal_text(sign == "-", whole + fraction, len(fraction) - exponent, data_type)


def _decimal_of_base64(data_type: DecimalType, text: str, scale: int) -> str:
    data = bytes_of_base64(text)
    if not data or abs(scale) > _MAX_DIGITS:
        raise ValueError(text)
    unscaled = int.from_bytes(data, "big", signed=True)
    digits = str(abs(unscaled)) if unscaled.bit_length() < _LARGE_BITS else str(Decimal(abs(unscaled)))
    return _decimal_text(unscaled < 0, digits, scale, data_type)


class _Scaled(msgspec.Struct):
    """Debezium's VariableScaleDecimal."""

    scale: int
    value: str


_SCALED: Final = msgspec.json.Decoder(_Scaled)
_TEXT: Final = msgspec.json.Decoder(str)


def _decimal(data_type: DecimalType, raw: msgspec.Raw) -> Any:
    value = bytes(raw)
    if value[:1] == b'"':
        text = _TEXT.decode(value)
        if data_type.encoding == "base64" and data_type.scale is not None:
            return _decimal_of_base64(data_type, text, data_type.scale)
        return _decimal_of_text(data_type, text)
    if not value:
        return msgspec.UNSET
    if value == b"null":
        return None
    if data_type.scale is None and value[:1] == b"{":
        scaled = _SCALED.decode(value)
        return _decimal_of_base64(data_type, scaled.value, scaled.scale)
    return _decimal_of_text(data_type, value.decode())


def decimal_conversion(data_type: DecimalType) -> Convert:
    """Return the conversion of the JSON text of a decimal: to its canonical text, or to nothing for a column that the row lacks."""
    convert = partial(_decimal, data_type)
    precision, scale = data_type.precision or 0, data_type.scale or 0
    if data_type.encoding != "base64" or scale <= 0 or precision > _LARGE_PRECISION:
        return convert
    limit = 10**precision

    def convert_base64(raw: msgspec.Raw) -> Any:
        """Convert the usual form in few steps; `convert` has the last word on others."""
        value = bytes(raw)
        text = value[1:-1]
        try:
            data = a2b_base64(text) if value[:1] == b'"' else b""  # the digits of a number can be base64, too
        except ValueError:
            data = b""
        unscaled = int.from_bytes(data, "big", signed=True)
        if not data or not -limit < unscaled < limit or b2a_base64(data, newline=False) != text:
            return convert(raw)
        digits = str(abs(unscaled)).zfill(scale + 1)
        return f"{'-' if unscaled < 0 else ''}{digits[:-scale]}.{digits[-scale:]}"

    return convert_base64


# Bytes and JSON


def bytes_of_base64(text: str) -> bytes:
    """Return the bytes of base64 text as encoders write it; `ValueError` for any other text, which `a2b_base64` would read in part."""
    data = a2b_base64(text)
    if b2a_base64(data, newline=False) != text.encode():
        raise ValueError(text)
    return data


def binary_text(encoding: str, text: str) -> str:
    """Return bytes as base64."""
    if encoding == "hex":
        data = bytes.fromhex(text)
        if data.hex() != text.lower():  # it skips spaces
            raise ValueError(text)
        return b2a_base64(data, newline=False).decode()
    if encoding == "base64url":
        text = text.replace("-", "+").replace("_", "/") + "=" * (-len(text) % 4)
    bytes_of_base64(text)
    return text


def json_value(encoding: str, raw: msgspec.Raw) -> Any:
    """Return the JSON value itself, without spaces, with all digits of its numbers; nothing for a column that the row lacks."""
    value = bytes(raw)
    if not value:
        return msgspec.UNSET
    if encoding == "text" and value[:1] == b'"':
        value = _TEXT.decode(value).encode()
    value.decode()  # msgspec does not look into texts that it skips
    return msgspec.Raw(msgspec.json.format(value, indent=-1))


# Dates and times. The day, the second of the day and the digits behind the point are texts of their own.


@lru_cache(maxsize=8_192)
def _day_text(days: int) -> str:
    return date.fromordinal(_EPOCH_ORDINAL + days).isoformat()


def date_text(value: int | str) -> str:
    """Return a date; a number counts days since 1970-01-01."""
    return _day_text(value) if isinstance(value, int) else date.fromisoformat(_match(_DATE, value)[1]).isoformat()


def _clock_text(seconds: int, fraction: str) -> str:
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour:02d}:{minute:02d}:{second:02d}.{fraction}"


def _split(value: int, encoding: str) -> tuple[int, str]:
    """Return the seconds of a number of units, and the digits behind the point."""
    digits, per_second = UNITS[encoding]
    seconds, part = divmod(value, per_second)
    return seconds, str(part).zfill(digits).ljust(6, "0")


def _pad(fraction: str | None, encoding: str) -> str:
    """Return the digits behind the point of a text: six, or nine where there are more or the column has nanoseconds."""
    digits = fraction or ""
    return digits.ljust(9 if len(digits) > 6 or encoding == "nanos" else 6, "0")  # noqa: PLR2004


def _offset_seconds(sign: str | None, hours: str | None, minutes: str | None) -> int:
    """Return the seconds that a zone is ahead of UTC; none for `Z`."""
    seconds = int(hours or 0) * 3_600 + int(minutes or 0) * 60
    if seconds > _MAX_OFFSET_SECONDS:
        raise ValueError(hours)
    return -seconds if sign == "-" else seconds


def time_text(encoding: str, value: int | str) -> str:
    """Return a time of day, up to 24:00:00, which PostgreSQL has; a number counts units since midnight."""
    if isinstance(value, int):
        seconds, fraction = _split(value, encoding)
    else:
        match = _match(_TIME, value)
        hour, minute, second = (int(digits) for digits in (match[1] + (match[2] or ":00")).split(":"))
        offset, fraction = _offset_seconds(match[5], match[6], match[7]), _pad(match[3], encoding)
        seconds = hour * 3_600 + minute * 60 + second
        if max(minute, second) > 59 or (offset and encoding != "zoned_text"):  # noqa: PLR2004
            raise ValueError(value)
        seconds = (seconds - offset) % _DAY_SECONDS if offset else seconds
    if not 0 <= seconds < _DAY_SECONDS and (seconds != _DAY_SECONDS or fraction.strip("0")):
        raise ValueError(value)
    return _clock_text(seconds, fraction)


def time_units(digits: int, text: str) -> int:
    """Return a time of day, without an offset, as the number of its microseconds (`digits` 6) or nanoseconds (9)."""
    clock, _, fraction = time_text("", text).partition(".")
    hour, minute, second = clock.split(":")
    return int(f"{int(hour) * 3_600 + int(minute) * 60 + int(second)}{fraction.ljust(digits, '0')[:digits]}")


def timestamp_text(encoding: str, zone: str, value: int | str) -> str:
    """Return a timestamp; a number counts units since 1970. `zone` is `Z` for an instant, and empty for a local time."""
    if isinstance(value, int):
        seconds, fraction = _split(value, encoding)
        days, second = divmod(seconds, _DAY_SECONDS)
        return f"{_day_text(days)}T{_clock_text(second, fraction)}{zone}"
    match = _match(_TIMESTAMP, value)
    text = f"{match[1]}T{match[2]}{match[3] or ':00'}"
    local = datetime.fromisoformat(text)
    offset = _offset_seconds(match[6], match[7], match[8])
    if (zone and not match[5]) or (offset and not zone):
        raise ValueError(value)
    if offset:
        text = (local - timedelta(seconds=offset)).isoformat()
    return f"{text}.{_pad(match[4], encoding)}{zone}"
