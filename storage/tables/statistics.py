"""Statistics of a data file of a table, for readers that leave out files which cannot hold what they ask for.

| column | statistics |
|---|---|
| numbers, dates, times | least, greatest, number of nulls |
| floats | the same; none with NaN, as readers do not agree where it lies; zero is -0.0 at the lower end and 0.0 at the upper one |
| text | the first 32 characters; the upper end is the next text of this length, or is left out |
| the key, if it is text or bytes; boolean, binary | number of nulls alone: a key that is erased must not stand in the Delta log |
| lists, maps, structs | none |
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Collection

_TEXT_CHARACTERS: Final = 32
_LAST_CODE_POINT: Final = 0x10FFFF
#: No text of UTF-8 has one of these code points.
_SURROGATES: Final = range(0xD800, 0xE000)


def file_statistics(rows: pa.Table, *, keys: Collection[str]) -> str:
    """Return the statistics of rows as the JSON text of Delta's `stats`; `keys` are the columns of the key."""
    least, greatest, nulls = dict[str, Any](), dict[str, Any](), dict[str, int]()
    for field in rows.schema:
        if pa.types.is_nested(field.type):
            continue
        column = rows.column(field.name)
        nulls[field.name] = column.null_count
        is_key_text = pa.types.is_string(field.type) and field.name in keys
        if is_key_text or pa.types.is_boolean(field.type) or pa.types.is_binary(field.type) or column.null_count == len(column):
            continue
        low, high = _ends(column, field.type)
        least |= {} if low is None else {field.name: low}
        greatest |= {} if high is None else {field.name: high}
    body = {"numRecords": len(rows), "minValues": least, "maxValues": greatest, "nullCount": nulls, "tightBounds": True}
    return msgspec.json.encode(body).decode()


def has_nan(rows: pa.Table) -> bool:
    """Tell whether a float of some rows is NaN, in a part of a column too.

    The ends of such a column in a Parquet file leave NaN out, and readers for which it is the greatest number would lose the row.
    """
    return any(_has_nan(column) for column in rows.columns)


def _has_nan(column: pa.ChunkedArray | pa.Array) -> bool:
    if pa.types.is_floating(column.type):
        return bool(pc.any(pc.is_nan(column)).as_py())
    if pa.types.is_struct(column.type):
        return any(_has_nan(pc.struct_field(column, number)) for number in range(column.type.num_fields))
    if pa.types.is_map(column.type):
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        return any(_has_nan(chunk.items) for chunk in chunks)
    return pa.types.is_list(column.type) and _has_nan(pc.list_flatten(column))


def with_wide_bounds(stats: str) -> str:
    """Return the statistics of a file that has a deletion vector now: the ends may be those of deleted rows."""
    return msgspec.json.encode({**msgspec.json.decode(stats, type=dict[str, msgspec.Raw]), "tightBounds": False}).decode()


def row_count(stats: str | None) -> int | None:
    """Return how many rows a file has by its statistics, deleted ones too; None if they do not say."""
    body = msgspec.json.decode(stats) if stats else None
    return cast("int | None", body.get("numRecords")) if isinstance(body, dict) else None


def null_count(stats: str | None, column: str) -> int | None:
    """Return how many rows of a file have no value in a column by its statistics; None if they do not say."""
    body = msgspec.json.decode(stats) if stats else None
    return cast("int | None", (body.get("nullCount") or {}).get(column)) if isinstance(body, dict) else None


def _ends(column: pa.ChunkedArray, data_type: pa.DataType) -> tuple[Any, Any]:
    """Return the least and the greatest value of a column that has one, as JSON has them; None for an end that is left out."""
    if pa.types.is_floating(data_type) and pc.any(pc.is_nan(column)).as_py():
        return None, None
    bounds = pc.min_max(column)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if pa.types.is_floating(data_type):
        # Readers do not agree whether -0.0 is below 0.0.
        return (low or -0.0) if math.isfinite(low) else None, (high or 0.0) if math.isfinite(high) else None
    if pa.types.is_decimal(data_type):
        return msgspec.Raw(f"{low:f}".encode()), msgspec.Raw(f"{high:f}".encode())
    if pa.types.is_temporal(data_type):
        return _iso_text(low), _iso_text(high)
    if pa.types.is_string(data_type):
        return low[:_TEXT_CHARACTERS], _upper_text(high)
    return low, high


def _iso_text(moment: Any) -> str:
    text: str = moment.isoformat(timespec="microseconds") if hasattr(moment, "hour") else moment.isoformat()
    return text.replace("+00:00", "Z")


def _upper_text(text: str) -> str | None:
    """Return a text of at most 32 characters that is not below another one; None if there is none."""
    if len(text) <= _TEXT_CHARACTERS:
        return text
    for at in range(_TEXT_CHARACTERS - 1, -1, -1):
        following = ord(text[at]) + 1
        following = _SURROGATES.stop if following in _SURROGATES else following
        if following <= _LAST_CODE_POINT:
            return text[:at] + chr(following)
    return None
