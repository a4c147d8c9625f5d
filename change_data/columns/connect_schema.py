"""Columns out of what describes a source's rows: the schema that Kafka Connect sends with an event, or DDL that a user writes.

```
 {"type":"struct","fields":[{"field":"price","type":"bytes","name":"org.apache.kafka.connect.data.Decimal",…}]}  ─►  price decimal(20,10)
 "id int, price decimal(20,10), at timestamp"  and the connector's settings                                      ─►  …
```

A Connect schema says how each value is encoded. With DDL that follows from the connector's settings, which have Debezium's names and
values here: `decimal.handling.mode`, `time.precision.mode`, `binary.handling.mode`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn

from lastword.change_data.columns.column_types import KINDS, ArrayType, Column, DecimalType, MapType, ScalarType, StructType, quote_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lastword.change_data.columns.column_types import DataType

DecimalHandlingMode = Literal["precise", "double", "string"]
TimePrecisionMode = Literal["adaptive", "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds"]
BinaryHandlingMode = Literal["bytes", "base64", "base64-url-safe", "hex"]

_CONNECT_TYPES: Final[Mapping[str, DataType]] = {
    "int8": ScalarType("tinyint"),
    "int16": ScalarType("smallint"),
    "int32": ScalarType("int"),
    "int64": ScalarType("bigint"),
    "float": ScalarType("float"),
    "double": ScalarType("double"),
    "boolean": ScalarType("boolean"),
    "string": ScalarType("string"),
    "bytes": ScalarType("binary", "base64"),
}
_LOGICAL_TYPES: Final[Mapping[str, DataType]] = {
    "org.apache.kafka.connect.data.Date": ScalarType("date", "days"),
    "org.apache.kafka.connect.data.Time": ScalarType("time", "millis"),
    "org.apache.kafka.connect.data.Timestamp": ScalarType("timestamp_ntz", "millis"),
    "io.debezium.time.Date": ScalarType("date", "days"),
    "io.debezium.time.Time": ScalarType("time", "millis"),
    "io.debezium.time.MicroTime": ScalarType("time", "micros"),
    "io.debezium.time.NanoTime": ScalarType("time", "nanos"),
    "io.debezium.time.Timestamp": ScalarType("timestamp_ntz", "millis"),
    "io.debezium.time.MicroTimestamp": ScalarType("timestamp_ntz", "micros"),
    "io.debezium.time.NanoTimestamp": ScalarType("timestamp_ntz", "nanos"),
    "io.debezium.time.IsoDate": ScalarType("date", "text"),
    "io.debezium.time.IsoTime": ScalarType("time", "text"),
    "io.debezium.time.IsoTimestamp": ScalarType("timestamp_ntz", "text"),
    "io.debezium.time.ZonedTime": ScalarType("time", "zoned_text"),
    "io.debezium.time.ZonedTimestamp": ScalarType("timestamp", "text"),
    "io.debezium.time.Interval": ScalarType("interval"),
    "io.debezium.time.MicroDuration": ScalarType("interval"),
    "io.debezium.time.NanoDuration": ScalarType("interval"),
    "io.debezium.data.Json": ScalarType("json", "text"),
    "io.debezium.data.Uuid": ScalarType("uuid"),
    "io.debezium.data.Enum": ScalarType("enum"),
    "io.debezium.data.EnumSet": ScalarType("enum"),
    "io.debezium.data.VariableScaleDecimal": DecimalType(),
}
DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
#: Connect does not know the precision of a decimal; Debezium adds it, except for PostgreSQL's money.
PRECISION: Final = "connect.decimal.precision"
_DEFAULT_PRECISION: Final = 38
#: What JsonConverter calls otherwise than the property `connect.type` does.
_RENAMED: Final = {"float32": "float", "float64": "double"}
#: The type of values of any kind.
ANY_VALUE: Final = ScalarType("json", "value")


def logical_type(name: object, parameters: Mapping[str, Any] | None = None) -> DataType | None:
    """Return the type that a logical name of Connect or Debezium stands for; None for another name, or for none."""
    if name == DECIMAL:
        given = parameters or {}
        return DecimalType(int(given.get(PRECISION, _DEFAULT_PRECISION)), int(given.get("scale", 0)))
    return _LOGICAL_TYPES.get(str(name))


def connect_type(name: str) -> DataType:
    """Return the type of a column that has a type of Connect without parts.

    Raises:
        ValueError: It is no such type.
    """
    renamed = _RENAMED.get(name, name)
    if renamed not in _CONNECT_TYPES:
        message = f"connect.type {name!r} is no type of Connect"
        raise ValueError(message)
    return _CONNECT_TYPES[renamed]


def columns_of_connect_schema(schema: Mapping[str, Any]) -> tuple[Column, ...]:
    """Return the columns that a schema of Kafka Connect describes.

    Logical types of Connect and Debezium become the types that they stand for; those without a type here (Xml, Year, Bits, geometry, and
    unknown names) become what their Connect type is. Timestamps as numbers have no zone, as Debezium defines them. A map whose
    keys are not texts is kept as JSON.

    Args:
        schema: The schema of a row, as JsonConverter writes it: that of the fields `before` and `after` of an envelope, or of a flat value.
            Of the schema of a whole envelope, the field `after` counts.

    Raises:
        ValueError: It is no schema of a struct, or has a type that Connect does not have; the text names the field.
    """
    try:
        if str(schema.get("name")).endswith(".Envelope"):
            schema = next((field for field in schema["fields"] if field["field"] == "after"), schema)
        row = _connect_type("", schema)
    except (AttributeError, KeyError, TypeError) as error:
        message = f"this is no schema of Kafka Connect ({type(error).__name__}: {error}): {str(schema)[:_SHOWN]}"
        raise ValueError(message) from None
    if not isinstance(row, StructType):
        message = f"the schema of a row is of type {row}: allowed is a struct"
        raise ValueError(message)  # noqa: TRY004  it is the schema that is wrong
    return row.fields


def _connect_type(path: str, schema: Mapping[str, Any]) -> DataType:
    kind, known = str(schema.get("type")), logical_type(schema.get("name"), schema.get("parameters"))
    if known is not None:
        return known
    if kind == "struct":
        return StructType(tuple(Column(field["field"], _connect_type(f"{path}.{field['field']}", field)) for field in schema["fields"]))
    if kind == "array":
        return ArrayType(_connect_type(f"{path}[]", schema["items"]))
    if kind == "map":
        value = _connect_type(f"{path}[]", schema["values"])
        return MapType(value) if schema["keys"].get("type") == "string" else ANY_VALUE
    if kind not in _CONNECT_TYPES:
        message = f"field {path.removeprefix('.')}: type {kind!r}: allowed are {', '.join(_CONNECT_TYPES)}, array, map and struct"
        raise ValueError(message)
    return _CONNECT_TYPES[kind]


# DDL

_DECIMAL_ENCODINGS: Final = {"precise": "base64", "double": "number", "string": "text"}
_BINARY_ENCODINGS: Final = {"bytes": "base64", "base64": "base64", "base64-url-safe": "base64url", "hex": "hex"}
_TIME_ENCODINGS: Final = {
    "adaptive": "",
    "adaptive_time_microseconds": "",
    "connect": "millis",
    "isostring": "text",
    "microseconds": "micros",
    "nanoseconds": "nanos",
}
_ALIASES: Final = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "dec": "decimal",
    "numeric": "decimal",
    "varchar": "string",
    "char": "string",
    "character": "string",
    "timestamp_ltz": "timestamp",
    "variant": "json",
}
_TYPE_NAMES: Final = (*KINDS, "decimal", "array", "map", "struct")
#: A name in backticks, a text in quotes, a word, or a sign.
_TOKEN: Final = re.compile(r"""\s*(?:`((?:[^`]|``)*)`|('(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.)*")|(\w+)|([<>(),:]))""")
_NUMBERS: Final = re.compile(r"\s*\((\s*-?[0-9]+\s*(?:,\s*-?[0-9]+\s*)*)\)")
_SPARK_DECIMAL: Final = (10, 0)
_MILLIS_DIGITS, _MICROS_DIGITS = 3, 6
_SHOWN: Final = 40


def columns_of_ddl(
    ddl: str,
    *,
    decimal_handling_mode: DecimalHandlingMode = "precise",
    time_precision_mode: TimePrecisionMode = "adaptive",
    binary_handling_mode: BinaryHandlingMode = "bytes",
) -> tuple[Column, ...]:
    """Return the columns that DDL describes: `id int, price decimal(20,10), tags array<string>, at timestamp, meta json`.

    The names of types are Spark's, and `json`, `uuid`, `enum` and `time`. Spark's types take parameters of the source's columns: a decimal
    of any scale (PostgreSQL's numeric) is `decimal(*)`, and `timestamp(3)`, `timestamp_ntz(3)` and `time(3)` have that precision.

    Args:
        ddl: Names and types, separated by commas; a name in backticks may have any characters. NOT NULL and COMMENT are read over.
        decimal_handling_mode: The connector's `decimal.handling.mode`.
        time_precision_mode: The connector's `time.precision.mode`. In the adaptive modes the unit depends on the precision of the column in
            the source: up to 3 digits milliseconds, up to 6 microseconds, else nanoseconds. Without a precision it is the microsecond, as
            for PostgreSQL's types without one; MySQL's datetime without one is datetime(0), which is `timestamp_ntz(0)` here.
        binary_handling_mode: The connector's `binary.handling.mode`.

    Raises:
        ValueError: The DDL cannot be read, or a mode is none of Debezium's; the text says where and what is allowed.
    """
    modes = (
        ("decimal_handling_mode", decimal_handling_mode, _DECIMAL_ENCODINGS),
        ("time_precision_mode", time_precision_mode, _TIME_ENCODINGS),
        ("binary_handling_mode", binary_handling_mode, _BINARY_ENCODINGS),
    )
    for name, mode, allowed in modes:
        if mode not in allowed:
            message = f"{name} = {mode!r}: allowed are {', '.join(allowed)}"
            raise ValueError(message)
    decimal, binary = _DECIMAL_ENCODINGS[decimal_handling_mode], _BINARY_ENCODINGS[binary_handling_mode]
    return _Ddl(ddl, decimal, time_precision_mode, binary).columns("")


def column_of_type(name: str, type_ddl: str) -> Column:
    """Return the column of a name and a type of DDL; of a type that cannot be read it is `json`, as its values are written."""
    try:
        (column,) = columns_of_ddl(f"{quote_name(name)} {type_ddl}")
    except ValueError:
        (column,) = columns_of_ddl(f"{quote_name(name)} json")
    return column


class _Ddl:
    """A text of DDL, and the place up to which it is read."""

    def __init__(self, text: str, decimal: str, times: str, binary: str) -> None:
        self.text, self.place = text, 0
        self.decimal, self.times, self.binary = decimal, times, binary

    def columns(self, end: str) -> tuple[Column, ...]:
        """Read columns and `end`, which is `>` or, as the empty text, the end of the DDL."""
        columns: list[Column] = []
        while not columns or self.skip(","):
            name = self.name()
            if name in {column.name for column in columns}:
                self.fail(f"a second column {name}")
            self.skip(":")
            columns.append(Column(name, self.data_type()))
            self.options()
        self.expect(end)
        return tuple(columns)

    def name(self) -> str:
        match = _TOKEN.match(self.text, self.place)
        if match is None or (match[1] is None and not match[3]):
            self.fail("a column's name expected")
        self.place = match.end()
        return str(match[3] if match[1] is None else match[1]).replace("``", "`")

    def options(self) -> None:
        """Read over what says nothing about the values."""
        if self.skip("not"):
            self.expect("null")
        if self.skip("comment"):
            match = _TOKEN.match(self.text, self.place)
            if match is None or match[2] is None:
                self.fail("a text in quotes expected")
            self.place = match.end()

    def data_type(self) -> DataType:
        start, word = self.place, self.peek()
        self.skip(word)
        kind = _ALIASES.get(word, word)
        if kind in {"array", "map", "struct"}:
            self.expect("<")
            return self.read_type_arguments(kind)
        if kind == "decimal":
            return self.decimal_type()
        if kind in {"time", "timestamp", "timestamp_ntz"}:
            return ScalarType(kind, self.unit(kind))
        if kind == "interval":
            self.interval_units()
        elif kind not in _TYPE_NAMES:
            self.place = start
            self.fail(f"a type expected: {', '.join(_TYPE_NAMES)}")
        elif word in {"varchar", "char", "character"}:
            self.numbers(1)
        encodings = {"binary": self.binary, "date": "text" if self.times == "isostring" else "days", "json": "text"}
        return ScalarType(kind, encodings.get(kind, ""))

    def read_type_arguments(self, kind: str) -> DataType:
        if kind == "struct":
            return StructType(self.columns(">"))
        if kind == "map":
            self.expect("string")
            self.expect(",")
        inner = self.data_type()
        self.expect(">")
        return ArrayType(inner) if kind == "array" else MapType(inner)

    def decimal_type(self) -> DecimalType:
        if self.text[self.place :].replace(" ", "").startswith("(*)"):
            self.place = self.text.index(")", self.place) + 1
            return DecimalType(encoding=self.decimal)
        numbers = self.numbers(2) if self.peek() == "(" else _SPARK_DECIMAL
        return DecimalType(numbers[0], numbers[1] if len(numbers) > 1 else 0, self.decimal)

    def unit(self, kind: str) -> str:
        """Return the encoding of a time or timestamp: what the mode says, or what the precision says in the adaptive ones."""
        precision = self.numbers(1)[0] if self.peek() == "(" else _MICROS_DIGITS
        if kind == "time" and self.times == "adaptive_time_microseconds":
            return "micros"
        adaptive = "millis" if precision <= _MILLIS_DIGITS else "micros" if precision <= _MICROS_DIGITS else "nanos"
        return _TIME_ENCODINGS[self.times] or adaptive

    def interval_units(self) -> None:
        while self.peek() in {"year", "month", "day", "hour", "minute", "second", "to"}:
            self.skip(self.peek())

    def numbers(self, limit: int) -> tuple[int, ...]:
        """Read up to so many whole numbers in parentheses."""
        match = _NUMBERS.match(self.text, self.place)
        numbers = () if match is None else tuple(int(number) for number in match[1].split(","))
        if match is None or len(numbers) > limit:
            self.fail(f"{'one number' if limit == 1 else 'one or two numbers'} in parentheses expected")
        self.place = match.end()
        return numbers

    def peek(self) -> str:
        """Return the next word (in small letters) or sign; the empty text at the end, and a quote for what is quoted."""
        match = _TOKEN.match(self.text, self.place)
        return self.text[self.place :].strip()[:1] if match is None else str(match[3] or match[4] or "'").lower()

    def skip(self, token: str) -> bool:
        """Read the next word or sign if it is the given one; tell whether it was."""
        match = _TOKEN.match(self.text, self.place)
        if match is None or self.peek() != token:
            return False
        self.place = match.end()
        return True

    def expect(self, token: str) -> None:
        """Read the given word or sign; the empty text is the end."""
        if self.peek() != token:
            self.fail(f"{token or 'a comma or the end'} expected")
        self.skip(token)

    def fail(self, expected: str) -> NoReturn:
        rest = self.text[self.place :].strip()
        message = f"DDL, at {rest[:_SHOWN] + ('…' if len(rest) > _SHOWN else '') if rest else 'the end'}: {expected}"
        raise ValueError(message)
