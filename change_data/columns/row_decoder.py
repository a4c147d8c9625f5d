r"""Rows in JSON as Arrow values, by the types of their columns: what `table()` shows, here and in Spark's tasks.

```
 columns     id int, price decimal(10,2), at timestamp, meta json
 row         {"id":1,"price":"1.50","at":"2026-03-01T08:30:00+02:00","meta":{"a":1.0}}
 Arrow       int32 1, decimal128 1.50, timestamp[us, UTC] 2026-03-01 06:30:00, string {"a":1.0}
```

Rows that an append made canonical decode in one pass of a parser in C. A row of any other writer decodes too if its values are in a form
that cannot be misread: ISO text for dates and times, numbers or text for decimals. Everything else is a `Misfit` that names the column.
"""

from __future__ import annotations

import re
from functools import partial
from itertools import accumulate, chain
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lastword.change_data.columns.column_types import (
    ENCODINGS,
    INTEGER_BITS,
    KINDS,
    MAX_FLOAT,
    ArrayType,
    DecimalType,
    MapType,
    Misfit,
    ScalarType,
    StructType,
    fixed_decimal,
)
from lastword.change_data.columns.column_values import bytes_of_base64, date_text, time_text, time_units, timestamp_text
from lastword.change_data.columns.json_rows import can_name_a_field, excerpt

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lastword.change_data.columns.column_types import Column, DataType

    Convert = Callable[[Any], Any]

_SPECIAL: Final = Literal["NaN", "Infinity", "-Infinity"]
_UNFIT: Final = (msgspec.MsgspecError, pa.ArrowException, ValueError, OverflowError, RecursionError)
#: An instant in canonical form, which Arrow reads by itself.
_INSTANT: Final = re.compile(r"(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\.[0-9]{6}Z").fullmatch
_ZONE: Final = re.compile(r"(?:Z|[+-][0-9]{2}(?::?[0-9]{2})?)\Z").search
_DATE: Final = re.compile(r"(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}").fullmatch
#: The first and the last whole year that nanoseconds in 64 bits reach.
_FIRST_NANOS_YEAR, _LAST_NANOS_YEAR = 1678, 2261
_IN_NANOS: Final = ScalarType("timestamp", "nanos")
_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw] | None).decode
_ELEMENTS: Final = msgspec.json.Decoder(list[msgspec.Raw] | None).decode


class RowDecoder:
    """Decodes rows in JSON by their columns; JSON texts of one table after the other, as `decode` is called.

    Types in Arrow: decimal128, timestamp (UTC or without a zone), date32, time64, binary, list, map, struct. The unit of times is the
    microsecond, of a column with the encoding `nanos` the nanosecond. JSON, UUIDs, enums, intervals and decimals without a fixed scale are
    strings. For Spark, which has no such types, times of day are strings, too, and all timestamps have microseconds.
    """

    def __init__(self, columns: Sequence[Column], *, for_spark: bool = False) -> None:
        """Decode rows of some columns."""
        self.row_type, self._for_spark = StructType(tuple(columns)), for_spark
        self._decoders: dict[DataType, tuple[Convert, Convert]] = {}

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of decoded rows."""
        return self._schema(self.row_type.fields)

    def decode(self, values: pa.Array) -> pa.StructArray:
        """Return rows as Arrow values.

        Args:
            values: JSON objects (binary or string), null for a row that does not exist.

        Returns:
            A struct array with the fields of `schema`; columns that a row lacks are null, other fields of a row are left out. Digits
            behind the unit of a time are cut. The time 24:00:00 of PostgreSQL is 86,400,000,000 microseconds. An instant without a zone
            is in UTC.

        Raises:
            Misfit: A value does not fit its column; the text names the column, the value and what is allowed.
        """
        texts = values.to_pylist()
        try:
            return self._struct_array(self.row_type, self._parse(self.row_type, texts))
        except _UNFIT as error:
            given = (text.encode() if isinstance(text, str) else text for text in texts if text is not None)
            misfits = (self._find_misfit(self.row_type, text, "") for text in given)
            raise Misfit(next(filter(None, misfits), str(error))) from None

    def _parse(self, data_type: DataType, texts: Sequence[str | bytes | None]) -> list[Any]:
        """Return JSON texts as values of the types of `_annotation`; the empty text is None."""
        if data_type not in self._decoders:
            annotations = (self._annotation(data_type, is_lenient=is_lenient) for is_lenient in (False, True))
            strict, lenient = (msgspec.json.Decoder(annotation).decode for annotation in annotations)
            self._decoders[data_type] = strict, lenient
        strict, lenient = self._decoders[data_type]
        values: list[Any] = []
        for text in texts:
            try:
                values.append(strict(text) if text else None)
            except msgspec.ValidationError:
                values.append(lenient(text))
        return values

    def _annotation(self, data_type: DataType, *, is_lenient: bool) -> Any:
        """Return the type that msgspec decodes; a lenient one takes any JSON value for a text."""
        if isinstance(data_type, ArrayType):
            return list[self._annotation(data_type.element, is_lenient=is_lenient)] | None  # type: ignore[misc]
        if isinstance(data_type, MapType):
            return dict[str, self._annotation(data_type.value, is_lenient=is_lenient)] | None  # type: ignore[misc]
        if isinstance(data_type, StructType):
            if not all(can_name_a_field(field.name) for field in data_type.fields):
                return dict[str, msgspec.Raw] | None
            names = {f"field_{number}": field.name for number, field in enumerate(data_type.fields)}
            types = [self._annotation(field.data_type, is_lenient=is_lenient) for field in data_type.fields]
            fields = [(name, given, msgspec.Raw() if given is msgspec.Raw else None) for name, given in zip(names, types, strict=True)]
            return msgspec.defstruct("Row", fields, rename=names, gc=False) | None
        if isinstance(data_type, DecimalType):
            return msgspec.Raw
        annotation = self._scalar(data_type)[0]
        return msgspec.Raw if is_lenient and annotation == str | None and data_type.kind not in ENCODINGS else annotation

    def _schema(self, columns: Sequence[Column]) -> pa.Schema:
        return pa.schema([pa.field(column.name, self._arrow_type(column.data_type)) for column in columns])

    def _arrow_type(self, data_type: DataType) -> pa.DataType:
        if isinstance(data_type, ArrayType):
            return pa.list_(self._arrow_type(data_type.element))
        if isinstance(data_type, MapType):
            return pa.map_(pa.string(), self._arrow_type(data_type.value))
        if isinstance(data_type, StructType):
            return pa.struct(self._schema(data_type.fields))
        if isinstance(data_type, DecimalType):
            fixed = fixed_decimal(data_type)
            return pa.string() if fixed is None else pa.decimal128(*fixed)
        return self._scalar(data_type)[3]

    def _struct_array(self, data_type: StructType, rows: Sequence[Any]) -> pa.StructArray:
        kinds = set(map(type, rows))
        mask = pa.array([row is None for row in rows], pa.bool_()) if type(None) in kinds or not kinds else None
        fields = enumerate(data_type.fields)
        arrays = [self._arrow_array(field.data_type, self._field_values(rows, kinds, number, field)) for number, field in fields]
        return pa.StructArray.from_arrays(arrays, fields=list(self._schema(data_type.fields)), mask=mask)

    def _field_values(self, rows: Sequence[Any], kinds: set[type], number: int, field: Column) -> list[Any]:
        """Return one field of rows: of classes with fields, or of dicts of JSON texts; `kinds` are the classes of the rows."""
        if dict in kinds:
            return self._parse(field.data_type, [None if row is None else bytes(row.get(field.name, b"")) for row in rows])
        get = attrgetter(f"field_{number}")
        return [None if row is None else get(row) for row in rows] if type(None) in kinds else list(map(get, rows))

    def _arrow_array(self, data_type: DataType, values: list[Any]) -> pa.Array:
        if isinstance(data_type, StructType):
            return self._struct_array(data_type, values)
        if isinstance(data_type, (ArrayType, MapType)):
            ends = accumulate(0 if value is None else len(value) for value in values)
            starts = [None if value is None else end - len(value) for value, end in zip(values, ends, strict=True)]
            present = [value for value in values if value is not None]
            offsets = pa.array([*starts, sum(map(len, present))], pa.int32())
            if isinstance(data_type, ArrayType):
                return pa.ListArray.from_arrays(offsets, self._arrow_array(data_type.element, list(chain.from_iterable(present))))
            keys = pa.array(chain.from_iterable(present), pa.string())
            entries = [value for entry in present for value in entry.values()]
            return pa.MapArray.from_arrays(offsets, keys, self._arrow_array(data_type.value, entries))
        return self._plain_array(data_type, values)

    def _plain_array(self, data_type: DecimalType | ScalarType, values: list[Any]) -> pa.Array:
        convert, raw_type = (_text_of_string, pa.string()) if isinstance(data_type, DecimalType) else self._scalar(data_type)[1:3]
        texts = _canonical_texts(data_type, values) if convert else None
        if texts is not None:
            return texts.cast(self._arrow_type(data_type))
        if convert:
            values = [None if value is None else convert(value) for value in values]
        return pa.array(values, raw_type).cast(self._arrow_type(data_type))

    def _scalar(self, data_type: ScalarType) -> tuple[Any, Convert | None, pa.DataType, pa.DataType]:
        """Return what msgspec decodes, what becomes of it in Python, the Arrow type of that, and the type that Arrow casts it to."""
        is_nanos = data_type.encoding == "nanos"
        unit, digits = ("ns", 9) if is_nanos and not self._for_spark else ("us", 6)
        text, single = pa.string(), Annotated[float, msgspec.Meta(ge=-MAX_FLOAT, le=MAX_FLOAT)] | _SPECIAL | None
        codecs: dict[str, tuple[Any, Convert | None, pa.DataType, pa.DataType]] = {
            **{name: (int | None, None, pa.int64(), getattr(pa, f"int{bits}")()) for name, bits in INTEGER_BITS.items()},
            "boolean": (bool | None, None, pa.bool_(), pa.bool_()),
            "float": (single, float, pa.float64(), pa.float32()),
            "double": (float | _SPECIAL | None, float, pa.float64(), pa.float64()),
            "json": (msgspec.Raw, _text_of, text, text),
            "interval": (msgspec.Raw, _text_of_string, text, text),
            "binary": (str | None, bytes_of_base64, pa.binary(), pa.binary()),
            "date": (str | None, _day, text, pa.date32()),
            "time": (str | None, partial(time_units, digits), pa.int64(), pa.time64(unit)),
            "timestamp": (str | None, partial(_instant, digits, is_nanos), text, pa.timestamp(unit, "UTC")),
            "timestamp_ntz": (str | None, partial(_local_time, digits, is_nanos), text, pa.timestamp(unit)),
        }
        if self._for_spark:
            codecs["time"] = (str | None, partial(time_text, "nanos" if is_nanos else "micros"), text, text)
        return codecs.get(data_type.kind, (str | None, _text_of_string, text, text))

    def _find_misfit(self, data_type: DataType, text: bytes, path: str) -> str | None:
        """Return what a message says of the first value inside a JSON text that does not fit; None if all of it fits."""
        parts: Mapping[str, tuple[DataType, msgspec.Raw]] = {}
        try:
            if isinstance(data_type, StructType):
                fields = _FIELDS(text) or {}
                prefix = f"{path}." if path else ""
                parts = {f"{prefix}{part.name}": (part.data_type, fields[part.name]) for part in data_type.fields if part.name in fields}
            elif isinstance(data_type, ArrayType):
                parts = {f"{path}[{number}]": (data_type.element, element) for number, element in enumerate(_ELEMENTS(text) or [])}
            elif isinstance(data_type, MapType):
                parts = {f'{path}["{name}"]': (data_type.value, value) for name, value in (_FIELDS(text) or {}).items()}
            else:
                self._arrow_array(data_type, self._parse(data_type, [text]))
        except _UNFIT:
            return f"{f'column {path}' if path else 'row'} = {excerpt(text)}: allowed is {_allowed_json(data_type)}"
        return next(filter(None, (self._find_misfit(part_type, bytes(part), place) for place, (part_type, part) in parts.items())), None)


def _canonical_texts(data_type: DataType, values: list[Any]) -> pa.Array | None:
    """Return strings, canonical instants and decimals as texts that Arrow casts all at once; None if one of them needs a parser."""
    kinds = set(map(type, values)) - {type(None)}
    if isinstance(data_type, DecimalType) and kinds == {msgspec.Raw}:
        return _canonical_decimals(values)
    if isinstance(data_type, ScalarType) and kinds == {str}:
        if data_type.kind in {"string", "enum", "uuid"}:
            return pa.array(values, pa.string())
        if data_type.kind == "timestamp" and data_type != _IN_NANOS:
            return _canonical_instants(values)
    return None


def _canonical_decimals(values: list[Any]) -> pa.Array | None:
    quoted = pa.array([None if value is None else bytes(value) for value in values], pa.binary()).cast(pa.string())
    is_canonical = pc.all(pc.match_substring_regex(quoted, r'^"-?[0-9]+(\.[0-9]+)?"$')).as_py()
    return pc.utf8_slice_codeunits(quoted, 1, -1) if is_canonical else None


def _canonical_instants(values: list[Any]) -> pa.Array | None:
    texts = pa.array(values, pa.string())
    is_canonical = pc.match_substring_regex(texts, r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\.[0-9]{6}Z$")
    is_year = pc.invert(pc.starts_with(texts, "0000"))
    return texts if pc.all(pc.and_(is_canonical, is_year)).as_py() else None


def _text_of(raw: msgspec.Raw) -> str | None:
    value = bytes(raw)
    return None if value in {b"", b"null"} else value.decode()


def _text_of_string(value: str | msgspec.Raw) -> str | None:
    """Return a text as it is, and any other JSON value, of a column that had another type, as its JSON text."""
    if isinstance(value, str):
        return value
    text = bytes(value)
    return msgspec.json.decode(text, type=str) if text[:1] == b'"' else _text_of(value)


def _day(value: str) -> str:
    return value if _DATE(value) else date_text(value)


def _instant(digits: int, is_nanos: bool, value: str) -> str:  # noqa: FBT001
    """Return an instant in UTC with at most so many digits behind the second."""
    if not is_nanos and _INSTANT(value):
        return value
    if _DATE(value):
        canonical = f"{value}T00:00:00Z"
    else:
        canonical = timestamp_text("text", "Z", value if _ZONE(value) else f"{value}Z")[: 20 + digits].rstrip("Z") + "Z"
    return _in_nanoseconds(canonical) if is_nanos else canonical


def _local_time(digits: int, is_nanos: bool, value: str) -> str:  # noqa: FBT001
    canonical = f"{value}T00:00:00" if _DATE(value) else timestamp_text("text", "", value)[: 20 + digits]
    return _in_nanoseconds(canonical) if is_nanos else canonical


def _in_nanoseconds(text: str) -> str:
    """Return a timestamp whose nanoseconds since 1970 fit into 64 bits; raise `ValueError` for any other."""
    if not _FIRST_NANOS_YEAR <= int(text[:4]) <= _LAST_NANOS_YEAR:
        raise ValueError(text)
    return text


def _allowed_json(data_type: DataType) -> str:
    if isinstance(data_type, DecimalType):
        return f"{data_type} as a number, or as text"
    if isinstance(data_type, ScalarType):
        if data_type.encoding == "nanos" and data_type.kind != "time":
            return f"{data_type} as ISO text, years {_FIRST_NANOS_YEAR} to {_LAST_NANOS_YEAR} (nanoseconds in 64 bits)"
        form = "base64" if data_type.kind == "binary" else ENCODINGS.get(data_type.kind, {}).get("text") or KINDS[data_type.kind]
        return f"{data_type} as {form}"
    return f"{data_type} as {'a JSON array' if isinstance(data_type, ArrayType) else 'a JSON object'}"
