"""The columns of a target: those of a last word, or the fields of a decoded value beside columns with an underscore.

```
 latest()      partition  key  value  headers  timestamp  offset
 with fields   _partition _key _offset _timestamp _headers  price  colour
 history       … _valid_from _valid_to _is_current
```

Names and types are checked before anything is made. Delta's column mapping is on where a name needs it: `Unit Price`, `a,b`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F
from pyspark.sql import types as T

from lastword.compaction.errors import UserError
from lastword.storage.reading.view import LATEST_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame

#: The columns beside the fields of a decoded value; their names are out of the way of the fields'.
_TYPED: Final = {"partition": "_partition", "key": "_key", "offset": "_offset", "timestamp": "_timestamp", "headers": "_headers"}
VALID_FROM: Final = "_valid_from"
VALID_TO: Final = "_valid_to"
CURRENT: Final = "_is_current"
#: The columns that say when a word holds.
PERIOD: Final = (
    T.StructField(VALID_FROM, T.TimestampType()),
    T.StructField(VALID_TO, T.TimestampType()),
    T.StructField(CURRENT, T.BooleanType()),
)
#: What Delta takes in a column's name only under column mapping.
_MAPPED: Final = re.compile(r"[ ,;{}()\n\t=]")
#: What a Delta table can hold.
_TYPES: Final = (
    T.StringType,
    T.BinaryType,
    T.BooleanType,
    T.ByteType,
    T.ShortType,
    T.IntegerType,
    T.LongType,
    T.FloatType,
    T.DoubleType,
    T.DecimalType,
    T.DateType,
    T.TimestampType,
    T.TimestampNTZType,
    T.VariantType,
)
#: Types of a table that take every value of another type: what a column may be widened to.
_WIDER: Final[dict[type[T.DataType], tuple[type[T.DataType], ...]]] = {
    T.ByteType: (T.ShortType, T.IntegerType, T.LongType, T.DoubleType),
    T.ShortType: (T.IntegerType, T.LongType, T.DoubleType),
    T.IntegerType: (T.LongType, T.DoubleType),
    T.FloatType: (T.DoubleType,),
}


def check_value_type(value: T.DataType) -> None:
    """Raise `UserError` naming each field of a decoded value that a Delta table cannot hold; an atomic value has no fields."""
    if not isinstance(value, T.StructType):
        return
    added = {name.lower(): name for name in (*_TYPED.values(), VALID_FROM, VALID_TO, CURRENT)}
    clash = sorted({name for name in value.names if name.lower() in added})
    if clash:
        message = f"schema: the fields {', '.join(clash)} have the names of columns that a target adds; call them something else"
        raise UserError(message)
    wrong = []
    for path, field, siblings in _fields(value, ""):
        if siblings.count(field.name.lower()) > 1:
            wrong.append(f"{path}: a Delta table does not tell names apart by case, and there is another field of this name")
        if not field.name:
            wrong.append(f"{path}: a field needs a name")
        collated = isinstance(field.dataType, T.StringType) and field.dataType.simpleString() != "string"
        if collated or not isinstance(field.dataType, (*_TYPES, T.StructType, T.ArrayType, T.MapType)):
            wrong.append(f"{path} {field.dataType.simpleString()}: a Delta table has no such type")
    if wrong:
        message = "schema: " + "; ".join(dict.fromkeys(wrong))
        raise UserError(message)


def needs_mapping(schema: T.StructType) -> bool:
    """Tell whether a name in a schema needs Delta's column mapping."""
    return any(_MAPPED.search(field.name) for _, field, _ in _fields(schema, ""))


def shaped(rows: DataFrame, keep: Sequence[str] = ()) -> DataFrame:
    """Return rows in the columns of a target: as they are, or, of a decoded value, its fields beside the columns with an underscore."""
    value = rows.schema["value"].dataType
    if not isinstance(value, T.StructType):
        return rows.select(*LATEST_COLUMNS, *keep)
    beside = [F.col(name).alias(new) for name, new in _TYPED.items()]
    return rows.select(*beside, *[F.col("value").getField(name).alias(name) for name in value.names], *keep)


def names_of(table: DataFrame) -> dict[str, str]:
    """Return what a target calls partition, key, offset, timestamp and headers."""
    return _TYPED if _TYPED["key"] in table.columns else {name: name for name in _TYPED}


def missing_columns(table: T.StructType, rows: T.StructType) -> list[str]:
    """Return what a table lacks to take rows: columns that are not there, or that are of a type that does not take the rows' values."""
    there = {field.name.lower(): field.dataType for field in table.fields}
    found = []
    for field in rows.fields:
        has = there.get(field.name.lower())
        if has is None:
            found.append(f"column {field.name} is not there")
        elif not _takes(has, field.dataType):
            found.append(f"column {field.name} is {has.simpleString()} and not {field.dataType.simpleString()}")
    return found


def _takes(has: T.DataType, given: T.DataType) -> bool:
    if isinstance(has, T.StructType) and isinstance(given, T.StructType):
        return [one.name.lower() for one in has] == [one.name.lower() for one in given] and all(
            _takes(one.dataType, other.dataType) for one, other in zip(has, given, strict=True)
        )
    if isinstance(has, T.ArrayType) and isinstance(given, T.ArrayType):
        return _takes(has.elementType, given.elementType)
    if isinstance(has, T.MapType) and isinstance(given, T.MapType):
        return _takes(has.keyType, given.keyType) and _takes(has.valueType, given.valueType)
    return has == given or isinstance(has, _WIDER.get(type(given), ()))


def _fields(data_type: T.DataType, path: str) -> Iterator[tuple[str, T.StructField, list[str]]]:
    """Return each field at any depth: its path, itself, and the names beside it in lower case."""
    if isinstance(data_type, T.StructType):
        siblings = [field.name.lower() for field in data_type.fields]
        for field in data_type.fields:
            inner = f"{path}.{field.name}" if path else field.name
            yield inner, field, siblings
            yield from _fields(field.dataType, inner)
    elif isinstance(data_type, T.ArrayType):
        yield from _element(data_type.elementType, f"{path}.element")
    elif isinstance(data_type, T.MapType):
        yield from _element(data_type.keyType, f"{path}.key")
        yield from _element(data_type.valueType, f"{path}.value")


def _element(data_type: T.DataType, path: str) -> Iterator[tuple[str, T.StructField, list[str]]]:
    name = path.rpartition(".")[2]
    yield path, T.StructField(name, data_type), [name]
    yield from _fields(data_type, path)
