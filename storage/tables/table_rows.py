"""Rows of a table from records of its topic: typed columns, and which row is whose.

```
 record   partition 0  key {"id":1}    value {"id":1,"price":"1.50"}      row   id 1  price 1.50  _partition 0  _key null
 record   partition 0  key {"id": 1}   value {"id":1,"price":"2.00"}      row   id 1  price 2.00  _partition 0  _key {"id": 1}
```

Identity is (partition, key), as in Kafka. A key is *plain* if it is the canonical text of its columns, and the row has them: the columns of
the key say it all, and `_key` is null. Any other key stands in `_key` as it is: one with a space in its JSON, one that does not fit its
columns, one whose row says something else. So no two keys of the log are one row of the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from lastword.change_data.columns.column_types import Column, DecimalType, Misfit, ScalarType
from lastword.change_data.columns.row_decoder import RowDecoder
from lastword.change_data.columns.table_columns import RowMisfit, TableColumns, TableDecoder, describe_misfit, key_objects
from lastword.compaction.errors import UserError
from lastword.compaction.rows.input_columns import HEADERS, TIMESTAMP
from lastword.storage.tables.table_schema import check_names, renamed_schema, replaced_name, stored_name, with_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Mask = NDArray[np.bool_]

PARTITION: Final = "_partition"
KEY: Final = "_key"
#: Columns of the record that a table may have besides, and their types.
RECORD_COLUMNS: Final = {"_offset": pa.int64(), "_timestamp": TIMESTAMP, "_headers": HEADERS, "_value": pa.binary()}
VALID_FROM, VALID_TO, CURRENT = "_valid_from", "_valid_to", "_is_current"
#: When a row of a history holds.
PERIOD: Final = {VALID_FROM: TIMESTAMP, VALID_TO: TIMESTAMP, CURRENT: pa.bool_()}
_DECODED_ROWS: Final = 16_384
_INTEGERS: Final = frozenset({"tinyint", "smallint", "int", "bigint"})
_TEXTS: Final = frozenset({"string", "enum", "uuid"})
#: What JSON escapes in a text.
_ESCAPED: Final = '["\\\\\\x00-\\x1f\\x7f]'


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLayout:
    """The columns of a table: those of the topic's rows, and which of the record's it has besides (`record_columns`).

    Names that Delta takes only under column mapping get it; without `column_mapping` their characters are replaced by underscores.
    """

    columns: TableColumns
    record_columns: tuple[str, ...] = ()
    history: bool = False
    column_mapping: bool = True

    def __post_init__(self) -> None:
        """Check the columns, and that none has the name of one of ours."""
        unknown = [name for name in self.record_columns if name not in RECORD_COLUMNS]
        if unknown:
            message = f"columns of the record {', '.join(map(repr, unknown))}: allowed are {', '.join(RECORD_COLUMNS)}"
            raise UserError(message)
        ours = {PARTITION, KEY, *RECORD_COLUMNS, *PERIOD}
        named = [column.name for column in (*self.columns.of_key_alone, *self.columns.value)]
        clash = sorted(name for name in named if name.lower() in ours)
        if clash:
            message = f"the columns {', '.join(clash)} have names of columns that lastword adds to a table: give other names with a schema"
            raise UserError(message)

    @property
    def key_names(self) -> tuple[str, ...]:
        """The columns of the key, of those that a table tells rows apart by; none if `_key` alone does."""
        return tuple(column.name for column in self.key_columns)

    @property
    def stored_key_names(self) -> tuple[str, ...]:
        """The names of the key's columns in the data files: the physical names of Delta's column mapping, if the table has it."""
        return tuple(stored_name(self.table_name(name)) for name in self.key_names)

    def table_name(self, name: str) -> str:
        """Return what the table calls a column of the topic."""
        return name if self.column_mapping else replaced_name(name)

    @property
    def key_columns(self) -> tuple[Column, ...]:
        """The columns of the key with the types that they have in the table; none if one of them has no canonical text here."""
        of_value = {column.name: column for column in self.columns.value}
        columns = tuple(of_value.get(column.name, column) for column in self.columns.key)
        return columns if all(_has_plain_text(column) for column in columns) else ()

    @property
    def identity_names(self) -> tuple[str, ...]:
        """The columns that tell rows apart."""
        return (PARTITION, *self.key_names, KEY)

    @property
    def own_columns(self) -> dict[str, pa.DataType]:
        """The columns beside those of the rows, in their order."""
        needed = ("_offset",) if self.history and "_offset" not in self.record_columns else ()
        beside = {name: RECORD_COLUMNS[name] for name in (*needed, *self.record_columns)}
        return {PARTITION: pa.int32(), KEY: pa.binary(), **beside, **(PERIOD if self.history else {})}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordKeys:
    """The keys of some records: `columns` are `_partition`, the columns of the key, and `_key` with the bytes of each; `plain` as above."""

    columns: pa.Table
    plain: Mask


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeRows:
    """Rows of a table, one of each record, and the records with a value that does not fit its column; it is null in the row."""

    rows: pa.Table
    misfits: Sequence[RowMisfit]


class RowMaker:
    """Makes rows of a table from records."""

    def __init__(
        self, layout: TableLayout, *, topic: str, on_misfit: Literal["error", "null"] = "error", partition_by: Sequence[str] = ()
    ) -> None:
        """Make rows of a layout; a value that does not fit its column is an error that names the record, or null.

        An empty text does not fit a column that the table is partitioned by.
        """
        self.layout, self._topic, self._on_misfit, self._partition_by = layout, topic, on_misfit, frozenset(partition_by)
        self._decoder = TableDecoder(layout.columns, on_misfit=on_misfit, for_spark=True)
        self._keys = RowDecoder(layout.key_columns, for_spark=True)
        self._decoded = pa.schema([*self._decoder.schema, *layout.own_columns.items()])
        #: The columns of the table, as its readers see them, and as its files call them.
        self.named_schema = renamed_schema(self._decoded, layout.table_name)
        self.schema = renamed_schema(self.named_schema, stored_name)
        check_names(self.named_schema, f"topic {topic}")

    def keys(self, records: pa.Table) -> RecordKeys:
        """Return the keys of records (partition, key); the columns of one that does not fit them are null."""
        columns = [("_partition", records.column("partition")), *self._key_columns(records).items(), (KEY, records.column("key"))]
        keys = pa.table(dict(columns)).combine_chunks()
        return RecordKeys(columns=keys, plain=self._is_canonical(keys))

    def rows(self, records: pa.Table, keys: RecordKeys) -> MadeRows:
        """Return records with a value (partition, offset, key, value, and the record's columns of the layout) as rows of the table.

        Raises `UserError` for a value that does not fit its column; it names the topic, the record, the column and the value.
        """
        decoded, misfits = self._decode(records)
        decoded = self._without_empty_texts(decoded, records, misfits)
        plain = keys.plain & self._has_key(decoded, keys)
        named = {name: decoded.column(name) for name in decoded.schema.names}
        key = pc.if_else(pa.array(plain), pa.scalar(None, pa.binary()), keys.columns.column(KEY))
        own: dict[str, Any] = {PARTITION: records.column("partition"), KEY: key}
        own |= {name: records.column(name.removeprefix("_")) for name in self.layout.own_columns if name in RECORD_COLUMNS}
        given = {**named, **own}
        rows = [given.get(field.name, pa.nulls(len(records), field.type)) for field in self._decoded]
        return MadeRows(rows=with_names(pa.table(rows, names=self._decoded.names).cast(self._decoded), self.schema), misfits=misfits)

    def _decode(self, records: pa.Table) -> tuple[pa.Table, list[RowMisfit]]:
        batches, misfits, begin = list[pa.RecordBatch](), list[RowMisfit](), 0
        for batch in records.combine_chunks().to_batches(max_chunksize=_DECODED_ROWS):
            of_batch = list[RowMisfit]()
            try:
                batches += self._decoder.decode(batch.column("key"), batch.column("value"), of_batch)
            except RowMisfit as error:
                raise self._misfit_error(batch, error) from None
            misfits += [RowMisfit(begin + misfit.row, str(misfit)) for misfit in of_batch]
            begin += len(batch)
        return pa.Table.from_batches(batches, self._decoder.schema), misfits

    def _misfit_error(self, records: pa.RecordBatch | pa.Table, misfit: RowMisfit) -> UserError:
        """Return the error that names the record."""
        return UserError(describe_misfit(self._topic, records.slice(misfit.row, 1).to_pylist()[0], str(misfit)))

    def _without_empty_texts(self, rows: pa.Table, records: pa.Table, misfits: list[RowMisfit]) -> pa.Table:
        """Return rows with null for the empty texts of partition columns, which are misfits; a key that has one stays in `_key`."""
        for number, field in enumerate(rows.schema):
            if self.layout.table_name(field.name) not in self._partition_by or not pa.types.is_string(field.type):
                continue
            column = rows.column(number)
            is_empty = boolean_mask(pc.fill_null(pc.equal(column, ""), fill_value=False))
            reason = f'column {field.name} = "": the table is partitioned by it, and Delta takes an empty text for null'
            empty = [RowMisfit(int(row), reason) for row in np.flatnonzero(is_empty)]
            if empty and self._on_misfit == "error":
                raise self._misfit_error(records, empty[0])
            misfits += empty
            if empty:
                rows = rows.set_column(number, field, pc.if_else(pa.array(is_empty), pa.scalar(None, pa.string()), column))
        return rows

    def _key_columns(self, records: pa.Table) -> dict[str, pa.Array]:
        if not self.layout.key_names:
            return {}
        parts = [self._decoded_keys(batch.column("key")) for batch in records.select(["key"]).combine_chunks().to_batches(_DECODED_ROWS)]
        if not parts:
            return {field.name: pa.array([], field.type) for field in self._keys.schema}
        together = pa.concat_arrays(parts).flatten()
        return dict(zip(self._keys.schema.names, together, strict=True))

    def _decoded_keys(self, keys: pa.Array) -> pa.StructArray:
        """Return keys as their columns; those of a key that does not fit are null."""
        try:
            return self._keys.decode(key_objects(keys, self.layout.columns))
        except Misfit:
            half = len(keys) // 2
            if half:
                return pa.concat_arrays([self._decoded_keys(keys[:half]), self._decoded_keys(keys[half:])])
            return pa.nulls(1, pa.struct(list(self._keys.schema)))

    def _is_canonical(self, keys: pa.Table) -> Mask:
        """Tell which keys are the canonical text of their columns."""
        names = self.layout.key_names
        if not names:
            return np.zeros(len(keys), dtype=np.bool_)
        form = self.layout.columns.key_form
        texts = {name: _canonical_text(keys.column(name), is_json=form != "text") for name in names}
        if form == "object":
            parts: list[Any] = []
            for name in sorted(texts):
                parts += [("," if parts else "{") + msgspec.json.encode(name).decode() + ":", texts[name]]
            made = pc.binary_join_element_wise(*[_as_text(part) for part in parts], "}", "")
        elif form == "bytes":
            return boolean_mask(pc.is_valid(keys.column(names[0])))
        else:
            made = texts[names[0]]
        return boolean_mask(pc.fill_null(pc.equal(made.cast(pa.binary()), keys.column(KEY)), fill_value=False))

    def _has_key(self, decoded: pa.Table, keys: RecordKeys) -> Mask:
        """Tell which rows have the columns of their key as the key says them."""
        same = np.ones(len(keys.columns), dtype=np.bool_)
        for name in self.layout.key_names:
            given = pl.Series(decoded.column(name).combine_chunks())
            same &= given.eq_missing(pl.Series(keys.columns.column(name).combine_chunks())).to_numpy()
        return same


def _has_plain_text(column: Column) -> bool:
    kind = column.data_type.kind if isinstance(column.data_type, ScalarType) else ""
    is_fixed = isinstance(column.data_type, DecimalType) and column.data_type.scale is not None
    return is_fixed or kind in _INTEGERS | _TEXTS | {"boolean", "date", "binary"}


def _canonical_text(values: pa.ChunkedArray, *, is_json: bool) -> pa.Array:
    """Return values as they stand in a canonical key; null for one that is null or that this function does not write."""
    data_type = values.type
    if pa.types.is_binary(data_type):  # in base64 as a part of an object
        return pa.nulls(len(values), pa.string())
    if pa.types.is_decimal(data_type):
        plain = values.cast(pa.string())  # Arrow writes numbers below 10^-6 with an exponent
        plain = pc.if_else(pc.match_substring(plain, "E"), pa.scalar(None, pa.string()), plain)
        texts = pc.replace_substring_regex(plain, r"(\.[0-9]*?)0+$", r"\1")
        texts = pc.replace_substring_regex(texts, r"\.$", "")
    else:
        texts = values.cast(pa.string())
    is_number = pa.types.is_integer(data_type) or pa.types.is_boolean(data_type)
    if pa.types.is_string(data_type) and is_json:
        texts = pc.if_else(pc.match_substring_regex(texts, _ESCAPED), pa.scalar(None, pa.string()), texts)
    return texts if is_number or not is_json else pc.binary_join_element_wise('"', texts, '"', "")


def _as_text(part: Any) -> Any:
    return pa.scalar(part, pa.string()) if isinstance(part, str) else part


def boolean_mask(values: pa.ChunkedArray | pa.Array) -> Mask:
    """Return booleans as an array of numpy."""
    joined = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    mask: Mask = joined.to_numpy(zero_copy_only=False).astype(np.bool_)
    return mask


def newest_of_each_key(records: pa.Table) -> pa.Table:
    """Return of records in the order of the log the last one of each (partition, key)."""
    places = pl.DataFrame({"partition": pl.Series(records.column("partition")), "key": pl.Series(records.column("key"))})
    last = places.with_row_index("row").group_by("partition", "key").agg(pl.col("row").max())["row"].sort()
    return records if len(last) == len(records) else records.take(last.to_arrow())
