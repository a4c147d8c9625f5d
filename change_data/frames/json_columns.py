"""Columns of Arrow as JSON texts and as keys, byte for byte as a source of Spark's writes them.

```
 column                          JSON                              key
 int32 7                         7                                 7
 decimal(10,2) 1.50              1.50                              1.5        another scale makes no other key
 double 1e10                     1.0E10                            refused: Java 17 and 21 write different digits
 timestamp[us, UTC]              "2026-03-01T06:30:00.500000Z"     2026-03-01T06:30:00.500000Z
 timestamp[us]                   "2026-03-01T06:30:00.500000"      2026-03-01T06:30:00.500000
 binary                          "AP8="                            the bytes
 struct, list, map               {"a":1,"b":null} [1] {"k":1}      {"a":1,"b":null} [1] {"k":1}
```

The rule is Spark's `to_json` with `ignoreNullFields = false` and times in UTC (`lastword.streaming.append.change_rows`), the oracle of
the tests. Java 17 writes some floating-point numbers with a digit more than they need; the number is the same.
"""

from __future__ import annotations

import base64
import math
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from lastword.change_data.columns.column_types import Column, quote_name
from lastword.change_data.columns.connect_schema import column_of_type

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Characters that a JSON text escapes, and how Spark does.
_ESCAPES: Final = {
    "\\": "\\\\",
    '"': '\\"',
    **{chr(code): f"\\u{code:04X}" for code in range(0x20)},
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
}
_TABLE: Final = str.maketrans(_ESCAPES)
_MUST_BE_ESCAPED: Final = '["\\\\\\x00-\\x1f]'
_TRAILING_ZEROS: Final = r"(\.[0-9]*?)0+$"
#: Java writes numbers from here to there without an exponent.
_PLAIN_FROM, _PLAIN_TO = 1e-3, 1e7
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_DAY_MICROS: Final = 86_400_000_000
_MAX_PRECISION: Final = 38
_ALLOWED: Final = (
    "whole numbers, decimals of up to 38 digits, floating-point numbers, booleans, texts, binary, dates, timestamps, and structs, lists "
    "and maps of them"
)


class WrongColumn(ValueError):
    """A column that is not there, or has a type or a value that is not allowed; the text names it."""


def plain_type(data_type: pa.DataType) -> pa.DataType | None:
    """Return the type of Spark as which a column is written; None for a type that has no JSON here."""
    if pt.is_dictionary(data_type):
        return plain_type(data_type.value_type)
    if pt.is_nested(data_type):
        return _nested_plain_type(data_type)
    if pt.is_timestamp(data_type):
        return pa.timestamp("us", None if data_type.tz is None else "UTC")
    if pt.is_decimal(data_type):
        fits = data_type.precision <= _MAX_PRECISION and 0 <= data_type.scale <= data_type.precision
        return pa.decimal128(data_type.precision, data_type.scale) if fits else None
    return next((plain for holds, plain in _PLAIN if holds(data_type)), None)


def _nested_plain_type(data_type: pa.DataType) -> pa.DataType | None:
    if pt.is_struct(data_type):
        fields = [(field.name, plain_type(field.type)) for field in data_type]
        return None if any(kind is None for _, kind in fields) else pa.struct(fields)
    if pt.is_map(data_type):
        key, item = plain_type(data_type.key_type), plain_type(data_type.item_type)
        has_text_key = key is not None and (pt.is_string(key) or pt.is_integer(key))
        return pa.map_(key, item) if has_text_key and item is not None else None
    item = plain_type(data_type.value_type) if _is_list(data_type) else None
    return None if item is None else pa.list_(item)


def _is_list(data_type: pa.DataType) -> bool:
    return bool(pt.is_list(data_type) or pt.is_large_list(data_type) or pt.is_fixed_size_list(data_type))


_PLAIN: Final[tuple[tuple[Callable[[pa.DataType], bool], pa.DataType], ...]] = (
    (pt.is_null, pa.null()),
    (pt.is_boolean, pa.bool_()),
    (pt.is_int8, pa.int8()),
    (lambda kind: pt.is_int16(kind) or pt.is_uint8(kind), pa.int16()),
    (lambda kind: pt.is_int32(kind) or pt.is_uint16(kind), pa.int32()),
    (lambda kind: pt.is_int64(kind) or pt.is_uint32(kind), pa.int64()),
    (pt.is_uint64, pa.decimal128(20, 0)),
    (lambda kind: pt.is_float32(kind) or pt.is_float16(kind), pa.float32()),
    (pt.is_float64, pa.float64()),
    (lambda kind: pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind), pa.string()),
    (
        lambda kind: pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_binary_view(kind) or pt.is_fixed_size_binary(kind),
        pa.binary(),
    ),
    (pt.is_date, pa.date32()),
)


def plain_column(name: str, column: pa.Array) -> pa.Array:
    """Return a column in its plain type. Raises `WrongColumn` for a type without one, and for times and years that do not fit it."""
    data_type = plain_type(column.type)
    if data_type is None:
        message = f"column {name} is {column.type}: allowed are {_ALLOWED}; cast it, or leave it out with drop"
        raise WrongColumn(message)
    try:
        plain = _cast(column, data_type)
    except pa.ArrowInvalid as error:
        message = f"column {name} is {column.type}, and cannot be taken as {type_name(data_type)}: {error}"
        raise WrongColumn(message) from None
    _check_years(name, plain)
    return plain


def _cast(column: pa.Array, data_type: pa.DataType) -> pa.Array:
    if pt.is_dictionary(column.type):
        values = _cast(column.dictionary, data_type)
        return values.take(column.indices)
    if column.type == data_type:
        return column
    if pt.is_float16(column.type):
        return pa.array(column.to_numpy(zero_copy_only=False).astype(np.float32), mask=column.is_null().to_numpy(zero_copy_only=False))
    if pt.is_uint64(column.type):
        return pa.array([value and int(value) for value in column.to_pylist()], data_type)
    return column.cast(data_type)


def _check_years(name: str, column: pa.Array) -> None:
    """Raise `WrongColumn` for a date or a timestamp, at any depth, whose year has not four digits."""
    if pt.is_struct(column.type):
        for child in column.flatten():
            _check_years(name, child)
    elif pt.is_map(column.type):
        _check_years(name, column.items)
    elif pt.is_list(column.type):
        _check_years(name, column.flatten())
    elif pt.is_date(column.type) or pt.is_timestamp(column.type):
        numbers = column.cast(pa.int32()).cast(pa.int64()) if pt.is_date(column.type) else column.cast(pa.int64())
        unit = 1 if pt.is_date(column.type) else _DAY_MICROS
        ends = pc.min_max(numbers).as_py()
        if ends["min"] is not None and (ends["min"] < _FIRST_DAY * unit or ends["max"] >= (_LAST_DAY + 1) * unit):
            message = f"column {name} has a {type_name(column.type)} outside the years 1 to 9999"
            raise WrongColumn(message)


def type_name(data_type: pa.DataType) -> str:
    """Return the name that SQL has for a plain type."""
    if pt.is_struct(data_type):
        return f"struct<{','.join(f'{quote_name(field.name)}:{type_name(field.type)}' for field in data_type)}>"
    if pt.is_map(data_type):
        return f"map<{type_name(data_type.key_type)},{type_name(data_type.item_type)}>"
    if pt.is_list(data_type):
        return f"array<{type_name(data_type.value_type)}>"
    if pt.is_timestamp(data_type):
        return "timestamp_ntz" if data_type.tz is None else "timestamp"
    if pt.is_decimal(data_type):
        return f"decimal({data_type.precision},{data_type.scale})"
    return _NAMES.get(data_type, str(data_type))


_NAMES: Final = {
    pa.null(): "void",
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
}


def table_column(name: str, data_type: pa.DataType) -> Column:
    """Return the column that a typed table has for a column of a plain type; a type that is written as JSON alone is `json`."""
    return column_of_type(name, type_name(data_type))


def json_text(text: str) -> str:
    """Return a text as a JSON string, with Spark's escapes."""
    return f'"{text.translate(_TABLE)}"'


def objects_of(names: Sequence[str], columns: Sequence[pa.Array], count: int) -> pa.Array:
    """Return the JSON objects that columns of plain types make, a row each; null is written."""
    if not names:
        return pa.array(["{}"] * count, pa.string())
    parts: list[pa.Array | str] = []
    for number, (name, column) in enumerate(zip(names, columns, strict=True)):
        parts += [f"{',' if number else '{'}{json_text(name)}:", _json_or_null(column)]
    return pc.binary_join_element_wise(*parts, "}", "")


def json_column(column: pa.Array) -> pa.Array:
    """Return the JSON texts of a column of a plain type; null where it is null."""
    data_type = column.type
    if pt.is_nested(data_type):
        made = _nested_texts(column)
        return pc.if_else(column.is_valid(), made, None) if column.null_count else made
    if pt.is_decimal(data_type):
        return _texts(column, str)
    if pt.is_floating(data_type):
        return _texts(column, java_float if pt.is_float32(data_type) else java_double, is_json=True)
    if pt.is_string(data_type):
        return _quote(_escape(column))
    is_json = pt.is_integer(data_type) or pt.is_boolean(data_type) or pt.is_null(data_type)
    return column.cast(pa.string()) if is_json else _quote(plain_texts(column))


def _nested_texts(column: pa.Array) -> pa.Array:
    """Return the JSON texts of structs, lists or maps; where a row is null, they say nothing."""
    if pt.is_struct(column.type):
        children = [column.field(number) for number in range(column.type.num_fields)]
        return objects_of([field.name for field in column.type], children, len(column))
    offsets = column.offsets
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    starts = pc.subtract(offsets, pa.scalar(first, pa.int32()))
    if not pt.is_map(column.type):
        texts, begin, end = _json_or_null(column.values.slice(first, last - first)), "[", "]"
    else:
        names = json_column(column.keys.slice(first, last - first))
        names = names if pt.is_string(column.type.key_type) else _quote(names)
        members = _json_or_null(column.items.slice(first, last - first))
        texts, begin, end = pc.binary_join_element_wise(names, members, ":"), "{", "}"
    return pc.binary_join_element_wise(begin, pc.binary_join(pa.ListArray.from_arrays(starts, texts), ","), end, "")


def _json_or_null(column: pa.Array) -> pa.Array:
    return pc.fill_null(json_column(column), "null")


def plain_texts(column: pa.Array) -> pa.Array:
    """Return the texts of a column of texts, binary (base64), dates, times, booleans or numbers, without quotes."""
    data_type = column.type
    if pt.is_binary(data_type):
        return _texts(column, lambda value: base64.b64encode(value).decode())
    if pt.is_timestamp(data_type):
        return pc.strftime(column.cast(pa.timestamp("us")), "%Y-%m-%dT%H:%M:%S" + ("" if data_type.tz is None else "Z"))
    return column if pt.is_string(data_type) else column.cast(pa.string())


def _quote(texts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', texts, '"', "")


def _escape(texts: pa.Array) -> pa.Array:
    if not pc.any(pc.match_substring_regex(texts, _MUST_BE_ESCAPED)).as_py():
        return texts
    return _texts(texts, lambda text: text.translate(_TABLE))


def _texts(column: pa.Array, text_of: Callable[..., str], *, is_json: bool = False) -> pa.Array:
    """Return what a function makes of each value; as JSON NaN and infinity are strings."""
    texts = [None if value is None else text_of(value) for value in column.to_pylist()]
    if is_json:
        texts = [f'"{text}"' if text is not None and text[-1] in "Ny" else text for text in texts]
    return pa.array(texts, pa.string())


def java_double(value: float) -> str:
    """Return a number of 64 bits as Java writes it from version 19 on: the fewest digits that are this number, at least two."""
    return _java(value, repr(value))


def java_float(value: float) -> str:
    """Return a number of 32 bits as Java writes it, as `java_double`."""
    return _java(value, str(np.float32(value)))


def _java(value: float, shortest: str) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "-0.0" if math.copysign(1, value) < 0 else "0.0"
    digits, exponent = _digits(shortest)
    if len(digits) == 1:  # Java takes the nearest number of two digits
        digits, exponent = _digits(f"{abs(value):.1e}")
    sign = "-" if value < 0 else ""
    if _PLAIN_FROM <= abs(value) < _PLAIN_TO:
        if exponent < 0:
            return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
        whole, part = digits[: exponent + 1].ljust(exponent + 1, "0"), digits[exponent + 1 :]
        return f"{sign}{whole}.{part or '0'}"
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{exponent}"


def _digits(text: str) -> tuple[str, int]:
    """Return the significant digits of a number, and the power of ten of the first of them."""
    mantissa, _, power = text.lstrip("-").lower().partition("e")
    whole, _, part = mantissa.partition(".")
    plain = whole + part
    leading = len(plain) - len(plain.lstrip("0"))
    return plain.strip("0") or "0", int(power or 0) + len(whole) - 1 - leading


# Keys


def keys_of(names: Sequence[str], columns: Sequence[pa.Array]) -> pa.Array:
    """Return the keys of rows (string, or binary for a lone column of binary); null where no column of the key has a value.

    Raises `WrongColumn` for a type that is no key.
    """
    for name, column in zip(names, columns, strict=True):
        _check_key(name, column.type, is_alone=len(names) == 1)
    if len(names) == 1:
        return _key(columns[0])
    is_there = columns[0].is_valid()
    for column in columns[1:]:
        is_there = pc.or_(is_there, column.is_valid())
    named = sorted(zip(names, columns, strict=True), key=lambda pair: pair[0])
    parts = [_decimal_text(column) if pt.is_decimal(column.type) else column for _, column in named]
    return pc.if_else(is_there, objects_of([name for name, _ in named], parts, len(columns[0])), None)


def _key(column: pa.Array) -> pa.Array:
    if pt.is_binary(column.type):
        return column
    if pt.is_decimal(column.type):
        return _decimal_text(column)
    if pt.is_nested(column.type):
        return json_column(column)
    return plain_texts(column)


def _decimal_text(column: pa.Array) -> pa.Array:
    """Return decimals without an exponent, and without the zeros that only their scale asks for."""
    texts = _texts(column, lambda value: f"{value:f}")
    return pc.replace_substring_regex(pc.replace_substring_regex(texts, _TRAILING_ZEROS, r"\1"), r"\.$", "")


def _check_key(name: str, data_type: pa.DataType, *, is_alone: bool) -> None:
    """Raise `WrongColumn` for a key with floating-point numbers, or with decimals in a struct, a list or a map."""
    kinds = set(_leaves(data_type))
    if any(pt.is_floating(kind) for kind in kinds):
        message = (
            f"column {name} is {type_name(data_type)}: a floating-point number is no key, as not every Java writes the same digits of it; "
            "cast it to decimal or text"
        )
        raise WrongColumn(message)
    if is_alone and pt.is_nested(data_type) and any(pt.is_decimal(kind) for kind in kinds):
        message = f"column {name} is {type_name(data_type)}: a decimal in a struct, a list or a map is no key; name its fields as columns"
        raise WrongColumn(message)


def _leaves(data_type: pa.DataType) -> list[pa.DataType]:
    if not pt.is_nested(data_type):
        return [data_type]
    if pt.is_map(data_type):
        return [*_leaves(data_type.key_type), *_leaves(data_type.item_type)]
    if pt.is_list(data_type):
        return _leaves(data_type.value_type)
    return [leaf for field in data_type for leaf in _leaves(field.type)]
