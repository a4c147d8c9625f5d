"""Source sequences: where the source says that an event stands, as one text that orders by its bytes.

```
 source.lsn                         27330312                       00000000000027330312
 binlog file, position, row         (mysql-bin.000003, 154, 2)     mysql-bin.000003 00000000000000000154 00000000000000000002
 updated_at                         2026-03-01T06:30:00.123456Z    2026-03-01T06:30:00.123456Z
```

A text, so that every Delta reader can sort by it and Delta's statistics hold it. Parts of several columns are compared from left to right.
Whole numbers, decimals and floating-point numbers of one value are one text, so a source that widens its column changes nothing.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

#: The digits before the point: enough for each 64-bit number.
_DIGITS: Final = 20
_LIMIT: Final = 10**_DIGITS
#: Part of a text that stands before another part: what would sort before the separator is escaped by this and a later character.
_SEPARATOR, _ESCAPE = " ", "!"
_ESCAPED: Final = {chr(code): _ESCAPE + chr(code + 0x30) for code in range(ord(_ESCAPE) + 1)}
_TABLE: Final = str.maketrans(_ESCAPED)
#: The first and last microsecond whose year has four digits.
_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999
ALLOWED: Final = "whole number, decimal, float, timestamp, date, string, boolean, binary, or a struct of those"


def is_orderable(data_type: pa.DataType) -> bool:
    """Tell whether values of an Arrow type can be a source sequence."""
    if pt.is_struct(data_type):
        fields = [data_type.field(number).type for number in range(data_type.num_fields)]
        return bool(fields) and all(is_orderable(field) and not pt.is_struct(field) for field in fields)
    kinds = (pt.is_integer, pt.is_decimal, pt.is_floating, pt.is_timestamp, pt.is_date, pt.is_string, pt.is_large_string, pt.is_boolean)
    return any(is_kind(data_type) for is_kind in (*kinds, pt.is_string_view, pt.is_binary, pt.is_large_binary, pt.is_binary_view))


def sequence_texts(column: pa.Array) -> pa.Array:
    """Return source sequences as texts (string) that order by their bytes as the values do.

    Null where a value is null, is no number (NaN), has more than 20 digits before the point, or a year outside 1 to 9999; a struct is null
    where one of its parts is.
    """
    if not pt.is_struct(column.type):
        return _part(column)
    parts = [_part(child) for child in column.flatten()]
    return pc.binary_join_element_wise(*[_escape(part) for part in parts[:-1]], parts[-1], _SEPARATOR)


def sequence_text(values: Sequence[Any]) -> str:
    """Return the text of one sequence of several parts, of Python's int, Decimal or str; `ValueError` for what has none."""
    if all(type(value) is int and 0 <= value < _LIMIT for value in values):
        return _SEPARATOR.join([f"{value:020}" for value in values])
    parts = [value if isinstance(value, str) else _number(value) for value in values]
    if any(part is None for part in parts):
        raise ValueError(values)
    texts = [str(part) for part in parts]
    return _SEPARATOR.join([*(text.translate(_TABLE) for text in texts[:-1]), texts[-1]])


def _part(column: pa.Array) -> pa.Array:
    data_type = column.type
    if pt.is_boolean(data_type):
        return _part(column.cast(pa.int8()))
    if pt.is_integer(data_type):
        return _whole(column)
    if pt.is_decimal(data_type) or pt.is_floating(data_type):
        return pa.array([None if value is None else _number(value) for value in column.to_pylist()], pa.string())
    if pt.is_timestamp(data_type):
        return _times(column)
    if pt.is_binary(data_type) or pt.is_large_binary(data_type) or pt.is_binary_view(data_type):
        return pa.array([None if value is None else value.hex() for value in column.to_pylist()], pa.string())
    return column.cast(pa.string())  # text, and a date as 2026-03-01


def _whole(column: pa.Array) -> pa.Array:
    texts = pc.ascii_lpad(column.cast(pa.string()), _DIGITS, "0")
    negative = pc.less(column, pa.scalar(0, column.type))
    if not pc.any(negative).as_py():
        return texts
    return pa.array([None if value is None else _number(value) for value in column.to_pylist()], pa.string())


def _number(value: float | Decimal) -> str | None:
    """Return the text of one number: 20 digits and, where it is not whole, a point and its decimals; complemented below zero."""
    if type(value) is int and 0 <= value < _LIMIT:
        return f"{value:020}"
    if isinstance(value, float) and not math.isfinite(value):
        return None
    with localcontext() as exact:
        exact.prec = 400
        number = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
        if not number.is_finite() or abs(number) >= _LIMIT:
            return None
        whole, _, part = f"{abs(number):f}".partition(".")
    part = part.rstrip("0")
    digits = whole.zfill(_DIGITS) + (f".{part}" if part else "")
    if number >= 0:
        return digits
    # Each digit is taken from nine, so that -2 comes before -1; "~" lets -1.5, which has more digits, come before it too.
    flipped = "".join(str(9 - int(digit)) if digit.isdigit() else digit for digit in digits)
    return f"-{flipped}~"


def _times(column: pa.Array) -> pa.Array:
    micros = column.cast(pa.timestamp("us", column.type.tz), safe=False).cast(pa.int64())
    inside = pc.and_(pc.greater_equal(micros, _FIRST_US), pc.less_equal(micros, _LAST_US))
    times = pc.if_else(inside, micros, None).cast(pa.timestamp("us"))
    return pc.strftime(times, "%Y-%m-%dT%H:%M:%SZ")


def _escape(texts: pa.Array) -> pa.Array:
    if not pc.any(pc.match_substring_regex(texts, "[\\x00-\\x21]")).as_py():
        return texts
    return pa.array([None if text is None else text.translate(_TABLE) for text in texts.to_pylist()], pa.string())


def highest(texts: pa.Array | pa.ChunkedArray) -> str:
    """Return the highest of some source sequences, the empty text if there is none; null is left out."""
    text: str | None = pc.max(texts).as_py() if len(texts) else None
    return text or ""


def ends(texts: pa.Array | pa.ChunkedArray) -> tuple[str, str] | None:
    """Return the lowest and the highest source sequence, nulls left out; None if there is none. Ascending ones are not compared again."""
    if texts.null_count == len(texts):
        return None
    if not texts.null_count and (isinstance(texts, pa.Array) or texts.num_chunks == 1):
        array = texts if isinstance(texts, pa.Array) else texts.chunk(0)
        if len(array) == 1 or pc.all(pc.greater_equal(array[1:], array[:-1])).as_py():
            return array[0].as_py(), array[-1].as_py()
    bounds = pc.min_max(texts).as_py()
    return bounds["min"], bounds["max"]


def ranks(texts: pa.Array) -> NDArray[np.int64]:
    """Return for each text its place among the distinct ones, ascending, from 1 on."""
    places: NDArray[np.int64] = pc.rank(texts, tiebreaker="dense").to_numpy().astype(np.int64)
    return places
