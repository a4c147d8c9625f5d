"""How rows are spread over files by the values of a table's partition columns (Delta's `partitionColumns`), and what the Delta log says.

| column | in the Delta log |
|---|---|
| text | as it is; the empty one cannot be: readers have null for it |
| whole number, decimal | 12, 1.50 |
| boolean | true, false |
| date | 2026-11-28 |

A file of a partition lies in folders as Hive has them (`land=NO/part-….parquet`), for which Polars looks. It has these columns, too; files
that others write have not, and get them from the Delta log here.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

import polars as pl
import pyarrow as pa

from lastword.compaction.errors import CorruptLog, UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

#: What Hive, and so Spark, calls null in the path of a file.
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_LONGEST_NAME: Final = 255


def check_partition_columns(schema: pa.Schema, names: Sequence[str], where: str) -> None:
    """Raise `UserError` for names that are no columns of a table, or of a type that it cannot be partitioned by."""
    types = {field.name: field.type for field in schema}
    able = [name for name, data_type in types.items() if _can_partition(data_type)]
    wrong = [name for name in names if name not in able]
    if wrong or len(set(names)) < len(names):
        message = (
            f"{where}: partition_by = {', '.join(names)}: allowed are different columns of text, whole numbers, decimals, booleans or "
            f"dates: {', '.join(able)}"
        )
        raise UserError(message)


def _can_partition(data_type: pa.DataType) -> bool:
    kinds = (pa.types.is_string, pa.types.is_integer, pa.types.is_decimal, pa.types.is_boolean, pa.types.is_date)
    return any(is_kind(data_type) for is_kind in kinds)


def split_rows(rows: pa.Table, names: Sequence[str]) -> Iterator[tuple[dict[str, str | None], pa.Table]]:
    """Yield the rows of each combination of values, with the values as the Delta log has them."""
    if not names:
        yield {}, rows
        return
    values = pl.DataFrame([pl.Series(str(number), rows.column(name)) for number, name in enumerate(names)]).with_row_index("row")
    for mine, group in values.group_by([str(number) for number in range(len(names))], maintain_order=True):
        part = rows if len(group) == len(rows) else rows.take(group["row"].to_arrow())
        yield dict(zip(names, map(_text, mine), strict=True)), part


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Decimal):
        return f"{value:f}"
    return value.isoformat() if isinstance(value, dt.date) else str(value)


def constant_column(text: str | None, data_type: pa.DataType, count: int) -> pa.Array:
    """Return a column in which each row has the value that the Delta log gives as a text."""
    return pa.repeat(pa.scalar(text or None, pa.string()).cast(data_type), count)


def partition_folder(values: Mapping[str, str | None]) -> str:
    """Return the folders of a partition, with a slash at the end; none where a name would be too long for a file system, or mean null."""
    if _NULL in values.values():
        return ""
    parts = [f"{_folder_name(name)}={_NULL if text is None else _folder_name(text)}/" for name, text in values.items()]
    return "".join(parts) if max(map(len, parts), default=0) <= _LONGEST_NAME else ""


def _folder_name(text: str) -> str:
    return quote(text, safe="").replace("~", "%7E")  # as delta-rs does


def values_of_path(path: str, names: Sequence[str], where: str) -> dict[str, str | None]:
    """Return the values that the path of a file names (`country=NO/part-….parquet`); raise `CorruptLog` when it does not."""
    parts = [part.split("=", 1) for part in path.split("/")[:-1] if "=" in part]
    named = {unquote(name): unquote(text) for name, text in parts}
    missing = [name for name in names if name not in named]
    if missing:
        message = f"{where}/{path}: neither the file nor its path has the column {', '.join(missing)}"
        raise CorruptLog(message)
    return {name: None if named[name] == _NULL else named[name] for name in names}


def is_hidden(path: str) -> bool:
    """Tell whether a path lies in a folder that readers of data skip, as `_delta_log`; the folder of a partition may begin with _, too."""
    first = path.split("/", 1)[0]
    return first.startswith("_") and "=" not in first
