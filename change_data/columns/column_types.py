r"""Columns of a row and their types, each with the encoding in which the source writes its values.

```
 CREATE TABLE            Debezium sends                       encoding                 canonical JSON          Arrow            Spark
 price numeric(20,10)    "AUzypFwA" | "143.0000000000" | 143  base64 | text | number   "143.0000000000"        decimal128       decimal
 at    timestamptz       "2026-03-01T06:30:00.5Z"             text                     "…T06:30:00.500000Z"    timestamp, UTC   timestamp
 day   date              20513 | "2026-03-01Z"                days | text              "2026-03-01"            date32           date
 t     time              49020000001                          millis | micros | nanos  "13:37:00.000001"       time64           string
 meta  jsonb             "{\"a\": 1.0}"                       text                     {"a":1.0}               string           variant
```

`connect_schema` reads columns from Connect's schemas and from DDL, `row_converter` converts rows of the source, `row_decoder` decodes
canonical rows. Here are the types.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The type, and what is quoted: a column of this name has a type behind it.
_TIMESTAMP: Final = re.compile(r"(`[^`]*`|'[^']*'|\"[^\"]*\")|\btimestamp\b(?=\s*(?:[,>)]|$|not\b|comment\b))", re.IGNORECASE)
INTEGER_BITS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_UNITS: Final = ("millis", "micros", "nanos")
#: Arrow's decimal128 and Spark's decimal have no more digits.
_MAX_PRECISION: Final = 38
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: The largest number of a `float` column, as rounding to 32 bits sees it.
MAX_FLOAT: Final = 3.4028235677973366e38
_SINCE: Final = {unit: f"{unit} since 1970-01-01T00:00:00 UTC or " for unit in _UNITS} | {"text": ""}
_SINCE_MIDNIGHT: Final = {unit: f"{unit} since midnight or " for unit in _UNITS} | {"text": "", "zoned_text": "(converted to UTC) "}
#: What MySQL's TIME holds besides a time of day has other types here.
_INTERVALS: Final = " (for MySQL's longer or negative TIME give the column in schema as bigint, or with isostring as string)"
#: The encodings of each kind that has some, and how a message names them.
ENCODINGS: Final[Mapping[str, Mapping[str, str]]] = {
    "decimal": {
        "base64": "base64 (decimal.handling.mode=precise)",
        "text": "text (decimal.handling.mode=string)",
        "number": "a number (decimal.handling.mode=double)",
    },
    "binary": {
        "base64": "base64 (binary.handling.mode=bytes or base64)",
        "base64url": "base64 for URLs (binary.handling.mode=base64-url-safe)",
        "hex": "hexadecimal text (binary.handling.mode=hex)",
    },
    "date": {"days": "days since 1970-01-01 or ISO text, years 1 to 9999", "text": "ISO text, years 1 to 9999"},
    "time": {encoding: f"{since}ISO text, 00:00:00 to 24:00:00{_INTERVALS}" for encoding, since in _SINCE_MIDNIGHT.items()},
    "timestamp": {encoding: f"{since}ISO text with Z or an offset, years 1 to 9999" for encoding, since in _SINCE.items()},
    "timestamp_ntz": {encoding: f"{since}ISO text without an offset, years 1 to 9999" for encoding, since in _SINCE.items()},
    "json": {"text": "text that is valid JSON, or another JSON value", "value": "a JSON value"},
}
#: The kinds of `ScalarType`; how a message names the values of those that have no encoding.
KINDS: Final[Mapping[str, str]] = {
    **dict.fromkeys((kind for kind in ENCODINGS if kind != "decimal"), ""),
    "boolean": "true or false",
    **{kind: f"a whole number, {-(2 ** (bits - 1))} to {2 ** (bits - 1) - 1}" for kind, bits in INTEGER_BITS.items()},
    "float": 'a number of up to 3.4e38, "NaN", "Infinity" or "-Infinity"',
    "double": 'a number, "NaN", "Infinity" or "-Infinity"',
    "string": "text",
    "enum": "text",
    "uuid": "text of 8-4-4-4-12 hexadecimal digits",
    "interval": "a number or text",
}


class Misfit(ValueError):
    """A value that its column's type does not allow; the text names the column, the value and what is allowed."""


class _Type:
    """What all types have in common."""

    __slots__ = ()

    def __str__(self) -> str:
        """Return the name of the type, as DDL has it."""
        return _type_name(self)


@dataclass(frozen=True, slots=True)
class ScalarType(_Type):
    """A type without parts; its kind is one of `KINDS`, and has an encoding if it is one of `ENCODINGS`."""

    kind: str
    encoding: str = ""

    def __post_init__(self) -> None:
        """Check that there is such a kind, with such an encoding."""
        if self.kind not in KINDS or self.encoding not in ENCODINGS.get(self.kind, {"": ""}):
            allowed = ", ".join(ENCODINGS.get(self.kind, {"": ""})) or "none" if self.kind in KINDS else f"those of {', '.join(KINDS)}"
            message = f"type {self.kind!r} with encoding {self.encoding!r}: allowed encodings are {allowed}"
            raise ValueError(message)


@dataclass(frozen=True, slots=True)
class DecimalType(_Type):
    """A decimal of `precision` digits in all, `scale` of them behind the point; without the two each number has a scale of its own.

    A negative scale counts zeros before the point, as in PostgreSQL and Oracle.
    """

    precision: int | None = None
    scale: int | None = None
    encoding: str = "base64"

    def __post_init__(self) -> None:
        """Check the encoding, and that both numbers are given or none."""
        if self.encoding not in ENCODINGS["decimal"] or (self.precision is None) != (self.scale is None):
            message = f"{self} with encoding {self.encoding!r}: allowed encodings are {', '.join(ENCODINGS['decimal'])}"
            raise ValueError(message)


@dataclass(frozen=True, slots=True)
class ArrayType(_Type):
    """A list of values of one type."""

    element: DataType


@dataclass(frozen=True, slots=True)
class MapType(_Type):
    """Values of one type under texts."""

    value: DataType


@dataclass(frozen=True, slots=True)
class StructType(_Type):
    """Named fields, each of its own type."""

    fields: tuple[Column, ...]


DataType: TypeAlias = ScalarType | DecimalType | ArrayType | MapType | StructType


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a row, or a field of a struct: its name and its type, which has the encoding."""

    name: str
    data_type: DataType


def _type_name(data_type: object) -> str:
    if isinstance(data_type, ArrayType):
        return f"array<{data_type.element}>"
    if isinstance(data_type, MapType):
        return f"map<string,{data_type.value}>"
    if isinstance(data_type, StructType):
        return f"struct<{', '.join(f'{quote_name(field.name)}: {field.data_type}' for field in data_type.fields)}>"
    if isinstance(data_type, DecimalType):
        return "decimal(*)" if data_type.precision is None else f"decimal({data_type.precision},{data_type.scale})"
    if isinstance(data_type, ScalarType) and data_type.encoding == "nanos":
        return f"{data_type.kind}(9)"
    return str(getattr(data_type, "kind", ""))


def allowed_values(data_type: DataType) -> str:
    """Return what a message says of the values that a type allows: `decimal(20,10) as base64 (decimal.handling.mode=precise)`."""
    if isinstance(data_type, DecimalType):
        form = ENCODINGS["decimal"][data_type.encoding]
        return f"{data_type} as {form if data_type.scale is not None else f'a number, text, or scale and {form}'}"
    if isinstance(data_type, ScalarType):
        return f"{data_type} as {ENCODINGS[data_type.kind][data_type.encoding] if data_type.encoding else KINDS[data_type.kind]}"
    return f"{data_type} as {'a JSON array' if isinstance(data_type, ArrayType) else 'a JSON object'}"


def fixed_decimal(data_type: DecimalType) -> tuple[int, int] | None:
    """Return precision and scale of a decimal as Arrow and Spark have them; None where only text holds all its numbers."""
    if data_type.precision is None or data_type.scale is None:
        return None
    precision, scale = max(data_type.precision, data_type.precision - data_type.scale, data_type.scale), max(data_type.scale, 0)
    return (precision, scale) if precision <= _MAX_PRECISION else None


def with_time_zones(ddl: str) -> str:
    """Return Spark's DDL with `timestamp_ltz` for the type `timestamp`: whether that has a time zone is a setting of the session."""
    return _TIMESTAMP.sub(lambda match: match[1] or "timestamp_ltz", ddl)


def quote_name(name: str) -> str:
    """Return a column's name as DDL has it: in backticks, unless it is a plain word."""
    return name if _NAME.fullmatch(name) else f"`{name.replace('`', '``')}`"
