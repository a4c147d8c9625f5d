"""The columns of the table whose rows a topic holds: what a key and a value decode to, with their types.

```
 key                  value                                    columns                                       row of the table
 {"id":1}             {"id":1,"price":"1.00"}                  value: id bigint, price decimal(10,2)         1, 1.00
 plum                 {"price":0.5}                            key: fruit string, value: price double        plum, 0.5
```

A source of change events says them in its schemas, its settings or its DataFrame; the newest of them are kept in the ledger.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import pyarrow as pa

from lastword.change_data.columns.column_types import (
    Column,
    DecimalType,
    Misfit,
    ScalarType,
    quote_name,
)
from lastword.change_data.columns.connect_schema import columns_of_ddl
from lastword.change_data.columns.json_rows import excerpt
from lastword.change_data.columns.row_decoder import RowDecoder

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
    return ", ".join(f"{quote_name(column.name)} {column.data_type}" for column in columns)


class RowMisfit(Misfit):
    """A row that its columns do not fit; `row` is its number."""

    def __init__(self, row: int, message: str) -> None:
        """Name the row."""
        super().__init__(message)
        self.row = row


def describe_misfit(topic: str, row: Mapping[str, Any], reason: str) -> str:
    """Return the message for a record (partition, offset, key) whose value does not fit the columns of its table."""
    key = bytes(row["key"]).decode(errors="replace")
    return (
        f"topic {topic}, partition {row['partition']}, offset {row['offset']}, key {key}: {reason}; "
        "give another schema, or mode='PERMISSIVE' for null"
    )


class TableDecoder:
    """Decodes keys and values of records as rows of their table."""

    def __init__(self, columns: TableColumns, *, on_misfit: Literal["error", "null"] = "error", for_spark: bool = False) -> None:
        """Decode the columns of the key alone, then those of the value; a value that does not fit is a `RowMisfit`, or null."""
        self._columns, self._on_misfit = columns, on_misfit
        self._key, self._value = (RowDecoder(part, for_spark=for_spark) for part in (columns.of_key_alone, columns.value))
        #: A decoder for each column, of rows in which another column does not fit.
        self._parts = [
            *(RowDecoder([column], for_spark=for_spark) for column in columns.of_key_alone),
            *(RowDecoder([column], for_spark=for_spark) for column in columns.value),
        ]

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows."""
        return pa.schema([*self._key.schema, *self._value.schema])

    def decode(self, keys: pa.Array, values: pa.Array, misfits: list[RowMisfit] | None = None) -> list[pa.RecordBatch]:
        """Return keys (binary) and values (binary JSON objects) as rows of the table, in their order.

        With `on_misfit="null"` the rows in which a value became null are added to `misfits`.
        """
        return self._decode(keys, values, 0, [] if misfits is None else misfits)

    def _decode(self, keys: pa.Array, values: pa.Array, first_row: int, misfits: list[RowMisfit]) -> list[pa.RecordBatch]:
        """Decode rows together; if one of them does not fit, each half by itself."""
        try:
            return [self._decode_together(keys, values)]
        except Misfit as error:
            half = len(keys) // 2
            if half:
                begin = self._decode(keys[:half], values[:half], first_row, misfits)
                return begin + self._decode(keys[half:], values[half:], first_row + half, misfits)
            misfits.append(RowMisfit(first_row, str(error)))
            if self._on_misfit == "error":
                raise misfits[-1] from None
            return [self._decode_by_column(keys, values)]

    def _decode_together(self, keys: pa.Array, values: pa.Array) -> pa.RecordBatch:
        arrays = [*self._key.decode(key_objects(keys, self._columns)).flatten()] if len(self._key.schema) else []
        arrays += self._value.decode(values).flatten() if len(self._value.schema) else []
        return pa.record_batch(arrays, schema=self.schema)

    def _decode_by_column(self, key: pa.Array, value: pa.Array) -> pa.RecordBatch:
        """Return one row with null in the place of each value that does not fit."""
        arrays = list[pa.Array]()
        for number, part in enumerate(self._parts):
            try:
                text = key_objects(key, self._columns) if number < len(self._key.schema) else value
                arrays.append(part.decode(text).flatten()[0])
            except Misfit:
                arrays.append(pa.nulls(1, part.schema.types[0]))
        return pa.record_batch(arrays, schema=self.schema)


def key_objects(keys: pa.Array, columns: TableColumns) -> pa.Array:
    """Return keys as JSON objects."""
    form = columns.key_form
    if form == "object":
        return keys
    name, encode = columns.key[0].name, msgspec.json.encode
    of_form: dict[str, Callable[[bytes], bytes]] = {
        "bytes": lambda key: encode({name: key}),
        "text": lambda key: encode({name: _text(key)}),
        "json": lambda key: encode({name: _json(key, columns.key[0])}),
    }
    return pa.array(map(of_form[form], keys.to_pylist()), pa.binary())


def _json(key: bytes, column: Column) -> msgspec.Raw:
    """Return a key that is one JSON value, as such."""
    try:
        return msgspec.json.decode(key, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        message = f"column {column.name} = {excerpt(key)}: allowed is {column.data_type} as JSON"
        raise Misfit(message) from None


def _text(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        message = f"the key {key!r} is not UTF-8"
        raise Misfit(message) from None
