"""The columns of the table whose rows a topic holds: what a key and a value decode to, with their types.

```
 key                  value                                    columns                                       row of the table
 {"id":1}             {"id":1,"price":"1.00"}                  value: id bigint, price decimal(10,2)         1, 1.00
 plum                 {"price":0.5}                            key: fruit string, value: price double        plum, 0.5
```

A source of change events says them in its schemas, its settings or its DataFrame; the newest of them are kept in the ledger.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import pyarrow as pa

from lastword.compaction.rows.column_types import (
    Column,
    DecimalType,
    Misfit,
    ScalarType,
    quoted,
)
from lastword.compaction.rows.connect_schema import columns_of_ddl
from lastword.compaction.rows.row_decoder import arrow_schema_of, decode_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


#: Kinds whose text is not their JSON: as JSON they are a text.
_TEXTS: Final = frozenset({"string", "enum", "uuid", "date", "time", "timestamp", "timestamp_ntz", "interval"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumns:
    """The columns of a table. `key` are those of the key, which is their text if `is_key_text` (one column), else a JSON object."""

    key: tuple[Column, ...] = ()
    is_key_text: bool = False
    value: tuple[Column, ...] = ()

    @property
    def of_key_alone(self) -> tuple[Column, ...]:
        """The columns that only the key has."""
        names = {column.name for column in self.value}
        return tuple(column for column in self.key if column.name not in names)

    @property
    def key_form(self) -> Literal["object", "text", "json", "bytes"]:
        """What a key is: a JSON object of its columns; or the text, the JSON or the bytes of its one column."""
        if not self.is_key_text:
            return "object"
        data_type = self.key[0].data_type
        if isinstance(data_type, ScalarType) and data_type.kind == "binary":
            return "bytes"
        return "text" if isinstance(data_type, DecimalType) or (isinstance(data_type, ScalarType) and data_type.kind in _TEXTS) else "json"

    def as_details(self) -> dict[str, Any]:
        """Return the columns as a row of the ledger says them."""
        return {"key": ddl_text(self.key), "key_is_text": self.is_key_text, "value": ddl_text(self.value)}

    @staticmethod
    def of_details(details: Mapping[str, Any]) -> TableColumns:
        """Return the columns that a row of the ledger says."""
        key, value = (columns_of_ddl(details[part]) if details[part] else () for part in ("key", "value"))
        return TableColumns(key=key, is_key_text=details["key_is_text"], value=value)


def ddl_text(columns: Sequence[Column]) -> str:
    """Return the DDL that `columns_of_ddl` reads as these columns, without the encodings of a source."""
    return ", ".join(f"{quoted(column.name)} {column.data_type}" for column in columns)


class RowMisfit(Misfit):
    """A row that its columns do not fit; `row` is its number."""

    def __init__(self, row: int, message: str) -> None:
        """Name the row."""
        super().__init__(message)
        self.row = row


def decode_table(
    keys: pa.Array, values: pa.Array, columns: TableColumns, *, on_misfit: Literal["error", "null"] = "error"
) -> list[pa.RecordBatch]:
    """Return keys (binary) and canonical values (binary) as rows of the table, in their order: the columns of the key alone come first.

    A value that does not fit its column is a `RowMisfit`, or null.
    """
    try:
        return [_decoded(keys, values, columns)]
    except Misfit:
        return [_decoded_row(keys, values, row, columns, on_misfit) for row in range(len(keys))]


def _decoded(keys: pa.Array, values: pa.Array, columns: TableColumns) -> pa.RecordBatch:
    of_key = columns.of_key_alone
    arrays = [*decode_rows(_objects(keys, columns), of_key).flatten()] if of_key else []
    arrays += decode_rows(values, columns.value).flatten() if columns.value else []
    return pa.record_batch(arrays, names=[column.name for column in (*of_key, *columns.value)])


def _decoded_row(keys: pa.Array, values: pa.Array, row: int, columns: TableColumns, on_misfit: Literal["error", "null"]) -> pa.RecordBatch:
    key, value = keys.slice(row, 1), values.slice(row, 1)
    try:
        return _decoded(key, value, columns)
    except Misfit as error:
        if on_misfit == "error":
            raise RowMisfit(row, str(error)) from None
    parts = [replace(columns, key=columns.of_key_alone, value=()), *(replace(columns, key=(), value=(column,)) for column in columns.value)]
    found = [_or_null(key, value, part) for part in parts if part.of_key_alone or part.value]
    return pa.record_batch([array for one in found for array in one.columns], names=[name for one in found for name in one.schema.names])


def _or_null(key: pa.Array, value: pa.Array, columns: TableColumns) -> pa.RecordBatch:
    """Return a row of some columns; nulls where it does not fit them."""
    try:
        return _decoded(key, value, columns)
    except Misfit:
        schema = arrow_schema_of((*columns.of_key_alone, *columns.value))
        return pa.record_batch([pa.nulls(1, field.type) for field in schema], schema=schema)


def _objects(keys: pa.Array, columns: TableColumns) -> pa.Array:
    """Return keys as JSON objects."""
    form = columns.key_form
    if form == "object":
        return keys
    name, encode = columns.key[0].name, msgspec.json.encode
    of_form: dict[str, Callable[[bytes], bytes]] = {
        "bytes": lambda key: encode({name: key}),
        "text": lambda key: encode({name: _text(key)}),
        "json": lambda key: encode({name: msgspec.Raw(key)}),
    }
    return pa.array(map(of_form[form], keys.to_pylist()), pa.binary())


def _text(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        message = f"the key {key!r} is not UTF-8"
        raise Misfit(message) from None
