"""The columns of a table as Delta's schema says them, and what a reader must know for them.

| Arrow | Delta | feature |
|---|---|---|
| int8 … int64, float, double, bool, string, binary, date32 | byte … long, float, double, boolean, string, binary, date | |
| decimal128(p, s) | decimal(p,s) | |
| timestamp[us, UTC] | timestamp | |
| timestamp[us] | timestamp_ntz | timestampNtz |
| list, map, struct | array, map, struct | |
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from lastword.compaction.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

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


def check_names(columns: Sequence[str] | pa.Schema, where: str) -> None:
    """Raise `UserError` for a name that no column of a Delta table can have without column mapping, and for two that differ by case."""
    schema = columns if isinstance(columns, pa.Schema) else pa.schema([(name, pa.null()) for name in columns])
    wrong = []
    for path, name, siblings in _named_fields(list(schema), ""):
        if not name or _MAPPED.search(name):
            wrong.append(
                f"column {path!r}: a name may have none of the characters space , ; {{ }} ( ) = tab and line feed, and is not empty"
            )
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


def schema_text(schema: pa.Schema) -> str:
    """Return Delta's `schemaString` of an Arrow schema."""
    return json.dumps({"type": "struct", "fields": [_field(field) for field in schema]}, separators=(",", ":"), ensure_ascii=False)


def read_schema(text: str) -> pa.Schema:
    """Return the Arrow schema of Delta's `schemaString`; a type that a table of ours cannot have is `pa.null()`."""
    return pa.schema([pa.field(field["name"], _arrow_type(field["type"])) for field in json.loads(text)["fields"]])


def has_local_times(schema: pa.Schema) -> bool:
    """Tell whether a timestamp without a time zone is in a schema, for which readers need the feature timestampNtz."""
    return any(_has_local_times(field.type) for field in schema)


def _has_local_times(data_type: pa.DataType) -> bool:
    if pa.types.is_timestamp(data_type):
        return data_type.tz is None
    return any(_has_local_times(data_type.field(number).type) for number in range(data_type.num_fields))


def differing_columns(there: pa.Schema, wanted: pa.Schema) -> list[str]:
    """Return the columns of a table whose type is another one than is wanted; a column that only one of both has does not count."""
    types = {field.name: field.type for field in there}
    return [
        f"{field.name} is {_type_text(types[field.name])} and would be {_type_text(field.type)}"
        for field in wanted
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


def _arrow_type(given: str | Mapping[str, Any]) -> pa.DataType:
    if isinstance(given, str):
        decimal = re.fullmatch(r"decimal\((\d+),(\d+)\)", given)
        return pa.decimal128(int(decimal[1]), int(decimal[2])) if decimal else _TYPES.get(given, pa.null())
    if given["type"] == "array":
        return pa.list_(_arrow_type(given["elementType"]))
    if given["type"] == "map":
        return pa.map_(_arrow_type(given["keyType"]), _arrow_type(given["valueType"]))
    if given["type"] == "struct":
        return pa.struct([pa.field(field["name"], _arrow_type(field["type"])) for field in given["fields"]])
    return pa.null()
