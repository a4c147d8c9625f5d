"""Floating-point numbers of binary formats as JSON has them."""

from __future__ import annotations

import math
import struct
from typing import Final

_FLOAT: Final = struct.Struct("<f")
#: Every float has a decimal number of nine digits that means it. One of up to six digits is found with six, as the rest of them are zeros.
_FLOAT_DIGITS: Final = (6, 7, 8)
#: The smallest floats have fewer bits; Java writes at least two digits.
_MIN_NORMAL_FLOAT: Final = 2.0**-126
_SMALL_DIGITS: Final = (2, 3, 4, 5, 6, 7, 8)


def shortest_float(value: float) -> float | str:
    """Return the decimal number that a 32-bit float is the nearest one to; text if it is not finite, as JSON has no such numbers."""
    if not math.isfinite(value):
        return special_number(value)
    for digits in _FLOAT_DIGITS if abs(value) >= _MIN_NORMAL_FLOAT else _SMALL_DIGITS:
        short = float(f"{value:.{digits}g}")
        if _FLOAT.unpack(_FLOAT.pack(short))[0] == value:
            return short
    return float(f"{value:.9g}")


def special_number(value: float) -> float | str:
    """Return a number, or the text that Jackson writes for one that JSON does not have."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
