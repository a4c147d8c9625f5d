"""The columns of a table as Delta's schema says them, and what a reader must know for them.

| Arrow | Delta | feature |
|---|---|---|
| int8 … int64, float, double, bool, string, binary, date32 | byte … long, float, double, boolean, string, binary, date | |
| decimal128(p, s) | decimal(p,s) | |
| timestamp[us, UTC] | timestamp | |
| timestamp[us] | timestamp_ntz | timestampNtz |
| list, map, struct | array, map, struct | |

Delta takes some characters in a name only under column mapping: readers then see the name, and data files, statistics and this package know
the column by a *stored* name. `price (EUR)` is stored as `price__EUR__1c7d03f0`; a name without such characters is stored as it is.
"""

from __future__ import annotations

import json
import re
import zlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from lastword.compaction.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

_NAMES: Final = {
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us", "UTC"): "timestamp",
    pa.timestamp("us"): "timestamp_ntz",
}
_TYPES: Final = {name: data_type for data_type, name in _NAMES.items()}
#: What Delta and Parquet take in a name only under column mapping.
_MAPPED: Final = re.compile(r"[ ,;{}()\n\t=]")


_ID: Final = "delta.columnMapping.id"
_PHYSICAL: Final = "delta.columnMapping.physicalName"


def check_names(schema: pa.Schema, where: str) -> None:
    """Raise `UserError` for an empty name of a column, and for two that differ by case."""
    wrong = []
    for path, name, siblings in _named_fields(list(schema), ""):
        if not name:
            wrong.append(f"column {path!r}: a column of a Delta table has a name")
        if [sibling.lower() for sibling in siblings].count(name.lower()) > 1:
            wrong.append(f"column {path!r}: a Delta table does not tell names apart by case, and there is another column of this name")
    if wrong:
        message = f"{where}: " + "; ".join(dict.fromkeys(wrong)) + "; give other names with a schema"
        raise UserError(message)


def _named_fields(fields: Sequence[pa.Field], prefix: str) -> Iterator[tuple[str, str, list[str]]]:
    siblings = [field.name for field in fields]
    for field in fields:
        path = f"{prefix}{field.name}"
        yield path, field.name, siblings
        inner = field.type
        while pa.types.is_list(inner) or pa.types.is_map(inner):
            inner = inner.value_type if pa.types.is_list(inner) else inner.item_type
        if pa.types.is_struct(inner):
            yield from _named_fields([inner.field(number) for number in range(inner.num_fields)], f"{path}.")


def needs_mapping(schema: pa.Schema) -> bool:
    """Tell whether a name, at any depth, has a character that Delta takes only under column mapping."""
    return any(_MAPPED.search(name) for _, name, _ in _named_fields(list(schema), ""))


def stored_name(name: str) -> str:
    """Return what data files call a column."""
    return f"{_MAPPED.sub('_', name)}_{zlib.crc32(name.encode()):08x}" if _MAPPED.search(name) else name


def replaced_name(name: str) -> str:
    """Return a name with an underscore in the place of each character that needs column mapping."""
    return _MAPPED.sub("_", name)


def renamed_schema(schema: pa.Schema, rename: Callable[[str], str]) -> pa.Schema:
    """Return a schema with other names, at any depth."""
    return pa.schema([pa.field(rename(field.name), _renamed_type(field.type, rename)) for field in schema])


def _renamed_type(data_type: pa.DataType, rename: Callable[[str], str]) -> pa.DataType:
    if pa.types.is_struct(data_type):
        return pa.struct([pa.field(rename(field.name), _renamed_type(field.type, rename)) for field in data_type])
    if pa.types.is_list(data_type):
        return pa.list_(_renamed_type(data_type.value_type, rename))
    if pa.types.is_map(data_type):
        return pa.map_(_renamed_type(data_type.key_type, rename), _renamed_type(data_type.item_type, rename))
    return data_type


def with_names(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows under the names of a schema, which has their types in their order."""
    columns = [_with_type(column, field.type) for column, field in zip(rows.columns, schema, strict=True)]
    return pa.Table.from_arrays(columns, schema=schema)


def _with_type(column: pa.ChunkedArray, data_type: pa.DataType) -> pa.ChunkedArray:
    if column.type == data_type:
        return column
    return pa.chunked_array([_with_inner_names(chunk, data_type) for chunk in column.chunks], data_type)


def _with_inner_names(values: pa.Array, data_type: pa.DataType) -> pa.Array:
    """Return nested values under the names of a type that differs from theirs in names alone."""
    if values.type == data_type:
        return values
    if pa.types.is_struct(data_type):
        parts = [_with_inner_names(values.field(number), data_type.field(number).type) for number in range(data_type.num_fields)]
        return pa.StructArray.from_arrays(parts, fields=list(data_type), mask=values.is_null())
    ends = values.offsets.to_numpy(zero_copy_only=False)
    offsets = pa.array(ends, pa.int32(), mask=np.append(values.is_null().to_numpy(zero_copy_only=False), False))
    if pa.types.is_list(data_type):
        return pa.ListArray.from_arrays(offsets, _with_inner_names(values.values, data_type.value_type)).cast(data_type)
    keys, items = _with_inner_names(values.keys, data_type.key_type), _with_inner_names(values.items, data_type.item_type)
    return pa.MapArray.from_arrays(offsets, keys, items).cast(data_type)


def map_columns(fields: Iterable[dict[str, Any]], last_id: int) -> int:
    """Give the fields of a Delta schema that have none their numbers and stored names, at any depth; return the last number."""
    for field in fields:
        if _ID not in field["metadata"]:
            last_id += 1
            field["metadata"] |= {_ID: last_id, _PHYSICAL: stored_name(field["name"])}
        last_id = _map_inner_columns(field["type"], last_id)
    return last_id


def _map_inner_columns(data_type: Any, last_id: int) -> int:
    if isinstance(data_type, dict):
        last_id = map_columns(data_type.get("fields", ()), last_id)
        for part in ("elementType", "keyType", "valueType"):
            last_id = _map_inner_columns(data_type.get(part), last_id)
    return last_id


def schema_text(schema: pa.Schema) -> str:
    """Return Delta's `schemaString` of an Arrow schema."""
    return json.dumps({"type": "struct", "fields": [_field(field) for field in schema]}, separators=(",", ":"), ensure_ascii=False)


def read_schema(text: str) -> pa.Schema:
    """Return the Arrow schema of Delta's `schemaString`, under stored names; a type that a table of ours cannot have is `pa.null()`."""
    return pa.schema([_arrow_field(field) for field in json.loads(text)["fields"]])


def parquet_schema(text: str) -> pa.Schema:
    """Return the schema of data files for Delta's `schemaString`: as `read_schema`, with the numbers of mapped columns as field ids."""
    return pa.schema([_arrow_field(field, with_ids=True) for field in json.loads(text)["fields"]])


def _arrow_field(field: Mapping[str, Any], *, with_ids: bool = False) -> pa.Field:
    metadata: Mapping[str, Any] = field.get("metadata", {})
    ids = {"PARQUET:field_id": str(metadata[_ID])} if with_ids and _ID in metadata else None
    return pa.field(metadata.get(_PHYSICAL, field["name"]), _arrow_type(field["type"], with_ids=with_ids), metadata=ids)


def has_local_times(schema: pa.Schema) -> bool:
    """Tell whether a timestamp without a time zone is in a schema, for which readers need the feature timestampNtz."""
    return any(_has_local_times(field.type) for field in schema)


def _has_local_times(data_type: pa.DataType) -> bool:
    if pa.types.is_timestamp(data_type):
        return data_type.tz is None
    return any(_has_local_times(data_type.field(number).type) for number in range(data_type.num_fields))


def differing_columns(there: pa.Schema, wanted: pa.Schema, names: Sequence[str]) -> list[str]:
    """Return the columns of a table whose type is another one than is wanted; a column that only one of both has does not count.

    `names` are those of the wanted columns as readers see them.
    """
    types = {field.name: field.type for field in there}
    return [
        f"{name} is {_type_text(types[field.name])} and would be {_type_text(field.type)}"
        for field, name in zip(wanted, names, strict=True)
        if field.name in types and types[field.name] != field.type
    ]


def _type_text(data_type: pa.DataType) -> str:
    name = _type(data_type)
    return name if isinstance(name, str) else json.dumps(name)


def _field(field: pa.Field) -> dict[str, Any]:
    return {"name": field.name, "type": _type(field.type), "nullable": True, "metadata": {}}


def _type(data_type: pa.DataType) -> Any:
    if pa.types.is_decimal(data_type):
        return f"decimal({data_type.precision},{data_type.scale})"
    if pa.types.is_list(data_type):
        return {"type": "array", "elementType": _type(data_type.value_type), "containsNull": True}
    if pa.types.is_map(data_type):
        item = _type(data_type.item_type)
        return {"type": "map", "keyType": _type(data_type.key_type), "valueType": item, "valueContainsNull": True}
    if pa.types.is_struct(data_type):
        return {"type": "struct", "fields": [_field(data_type.field(number)) for number in range(data_type.num_fields)]}
    return _NAMES[data_type]


def _arrow_type(given: str | Mapping[str, Any], *, with_ids: bool = False) -> pa.DataType:
    if isinstance(given, str):
        decimal = re.fullmatch(r"decimal\((\d+),(\d+)\)", given)
        return pa.decimal128(int(decimal[1]), int(decimal[2])) if decimal else _TYPES.get(given, pa.null())
    if given["type"] == "array":
        return pa.list_(_arrow_type(given["elementType"], with_ids=with_ids))
    if given["type"] == "map":
        return pa.map_(_arrow_type(given["keyType"], with_ids=with_ids), _arrow_type(given["valueType"], with_ids=with_ids))
    if given["type"] == "struct":
        return pa.struct([_arrow_field(field, with_ids=with_ids) for field in given["fields"]])
    return pa.null()
