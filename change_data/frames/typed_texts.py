"""Rows of text files with a schema: JSON and CSV as columns with types. What Spark might read as another value is malformed here.

```
 schema    id bigint, price decimal(10,2), at timestamp
 JSON      {"id":1,"price":1.5,"at":"2026-03-01T06:30:00Z","note":"x"}     1, 1.50, 2026-03-01 06:30 UTC     without `note`
 JSON      {"id":"1"}  {"id":1.0}  {"price":1.555}  {"at":1772346600}     malformed: the column, its value, and what is allowed
 CSV       1,1.50,2026-03-01 06:30                                        as CAST of each text; an empty field is null
```
"""

from __future__ import annotations

import base64
import binascii
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.types as pt

from lastword.change_data.columns.column_types import ArrayType, DecimalType, MapType, Misfit, StructType
from lastword.change_data.columns.connect_schema import columns_of_ddl
from lastword.change_data.columns.json_rows import NULL, NoEvent, excerpt
from lastword.change_data.columns.row_decoder import RowDecoder
from lastword.change_data.files.file_rows import fields_of_row
from lastword.change_data.frames.json_columns import WrongColumn, plain_type, type_name
from lastword.change_data.frames.text_casts import can_cast_text, cast_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lastword.change_data.columns.column_types import DataType
    from lastword.change_data.files.file_rows import RowText

_WHOLE: Final = re.compile(rb"0|-?[1-9][0-9]*").fullmatch
_ELEMENTS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_MAX_PRECISION: Final = 38
_SPECIAL: Final = frozenset({"NaN", "Infinity", "-Infinity"})
#: Types of columns that Spark's DDL does not have, or not with one type here.
_NOT_OF_SPARK: Final = frozenset({"json", "uuid", "enum", "time", "interval"})


def schema_of_ddl(ddl: str) -> pa.Schema:
    """Return the columns that SQL DDL gives, in plain types. Raises `WrongColumn` for what is no DDL of Spark's types."""
    try:
        columns = columns_of_ddl(ddl)
    except ValueError as error:
        message = f"schema {ddl!r} is not SQL DDL (icao string, elevation double): {error}"
        raise WrongColumn(message) from None
    for column in columns:
        if not _is_of_spark(column.data_type):
            message = f"schema: column {column.name} is {column.data_type}: allowed are the types of Spark"
            raise WrongColumn(message)
    fields = [(field.name, plain_type(field.type)) for field in RowDecoder(columns).schema]
    return pa.schema(fields)


def _is_of_spark(data_type: DataType) -> bool:
    if isinstance(data_type, StructType):
        return all(_is_of_spark(field.data_type) for field in data_type.fields)
    if isinstance(data_type, (ArrayType, MapType)):
        return _is_of_spark(data_type.element if isinstance(data_type, ArrayType) else data_type.value)
    if isinstance(data_type, DecimalType):
        return data_type.precision is not None and data_type.precision <= _MAX_PRECISION
    return data_type.kind not in _NOT_OF_SPARK


class ReadTexts(NamedTuple):
    """Rows of text that were read as columns, and what is wrong with those that are refused.

    `unread` says why a row has no columns, `misfits` which of its values does not fit its column; `raw` has the text of these rows. All are
    null for the rows that can be appended.
    """

    rows: pa.RecordBatch
    unread: pa.Array
    misfits: pa.Array
    raw: pa.Array


class TypedTexts:
    """Reads rows of text as rows with the columns of a schema."""

    def __init__(self, schema: pa.Schema, *, are_texts: bool) -> None:
        """Read JSON, or with `are_texts` fields that are texts whatever their column is (CSV). Raises `WrongColumn` for its types."""
        self.schema, self._are_texts = schema, are_texts
        if are_texts:
            wrong = [field.name for field in schema if not can_cast_text(field.type)]
            if wrong:
                message = f"schema: column {', '.join(wrong)}: a field of CSV has no such type; allowed are those without parts"
                raise WrongColumn(message)

    def read(self, rows: Sequence[RowText]) -> ReadTexts:
        """Return rows as a batch; a value that does not fit its column is null, and the other columns of its row keep their values."""
        columns: dict[str, list[Any]] = {field.name: [] for field in self.schema}
        unread, misfits, raw = (list[str | None]() for _ in range(3))
        for row in rows:
            values, misfit = self._values(row.fields)
            unread.append(None if row.malformed is None else row.detail)
            misfits.append(misfit)
            raw.append(row.malformed if misfit is None else row.text.decode())
            for name, listed in columns.items():
                listed.append(values.get(name))
        batch = pa.record_batch([pa.array(columns[field.name], field.type) for field in self.schema], schema=self.schema)
        return ReadTexts(batch, *(pa.array(texts, pa.string()) for texts in (unread, misfits, raw)))

    def _values(self, fields: Mapping[str, msgspec.Raw]) -> tuple[dict[str, Any], str | None]:
        """Return the values of a row by column, and what is wrong with the first value that does not fit; None if all fit."""
        values, misfits = dict[str, Any](), list[str]()
        for field in self.schema:
            if field.name in fields:
                try:
                    values[field.name] = self._value(field.name, bytes(fields[field.name]).strip(), field.type)
                except Misfit as error:
                    misfits.append(str(error))
        return values, misfits[0] if misfits else None

    def _value(self, name: str, text: bytes, data_type: pa.DataType) -> Any:
        """Return a value of a row as its column's type. Raises `Misfit`."""
        if text in {b"", NULL}:
            return None
        try:
            return cast_text(msgspec.json.decode(text), data_type) if self._are_texts else _of_json(text, data_type)
        except (ValueError, TypeError, OverflowError, RecursionError, msgspec.MsgspecError, NoEvent):
            message = f"column {name} = {excerpt(text)}: allowed is {_allowed_values(data_type)}"
            raise Misfit(message) from None


_HINTS: Final = {
    "timestamp": " as ISO 8601 text",
    "timestamp_ntz": " as ISO 8601 text without a zone",
    "date": " as 2026-03-01",
    "binary": " as base64",
}


def _allowed_values(data_type: pa.DataType) -> str:
    name = type_name(data_type)
    return name + _HINTS.get(name, "")


def _of_json(text: bytes, data_type: pa.DataType) -> Any:
    """Return a JSON value as a value of a type. Raises `ValueError` where Spark might read another value."""
    if text == NULL:
        return None
    text = b"0" if text == b"-0" else text  # of whole numbers Spark has one zero
    if pt.is_nested(data_type):
        return _nested_of_json(text, data_type)
    if pt.is_boolean(data_type):
        return msgspec.json.decode(text, type=bool)
    string = msgspec.json.decode(text, type=str) if text.startswith(b'"') else None
    if pt.is_binary(data_type):
        return _base64(string)
    if pt.is_integer(data_type) or pt.is_decimal(data_type) or (pt.is_floating(data_type) and string not in _SPECIAL):
        return _number_of_json(text, string, data_type)
    is_plain = _WHOLE(text) or text in {b"true", b"false"}  # which Spark writes as they stand, others anew
    if string is None and not (pt.is_string(data_type) and is_plain):
        raise ValueError(text)
    return cast_text(text.decode() if string is None else string, data_type)


def _nested_of_json(text: bytes, data_type: pa.DataType) -> Any:
    if pt.is_struct(data_type):
        fields = fields_of_row(text)
        return {field.name: _of_json(bytes(fields[field.name]).strip(), field.type) for field in data_type if field.name in fields}
    if pt.is_map(data_type):
        return [(name, _of_json(bytes(member).strip(), data_type.item_type)) for name, member in fields_of_row(text).items()]
    return [_of_json(bytes(member).strip(), data_type.value_type) for member in _ELEMENTS.decode(text)]


def _number_of_json(text: bytes, string: str | None, data_type: pa.DataType) -> Any:
    """Return a number of JSON; a decimal with more digits behind the point than its type is none, as Spark would round it."""
    if string is not None:
        raise ValueError(string)
    number = text.decode()
    value = cast_text(number, data_type)
    if pt.is_decimal(data_type) and value != Decimal(number):
        raise ValueError(text)
    return value


def _base64(text: str | None) -> bytes:
    if text is None:
        raise ValueError(text)
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError(text) from None
