"""What people have in memory as the input of an append: Arrow, Polars, pandas, or a list of dicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

import pyarrow as pa

from lastword.compaction.errors import InvalidRecords
from lastword.compaction.rows.input_columns import check_names

_TAKEN: Final = "an Arrow table, record batch or stream, a Polars, pandas or Spark DataFrame, or a list of dicts"


class ArrowStream(Protocol):
    """Anything that exports itself as an Arrow stream: pyarrow, Polars, DuckDB and others."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the stream."""


#: What an append takes without Spark.
ArrowInput: TypeAlias = ArrowStream | Sequence[Mapping[str, Any]]


def arrow_table(data: object, *, topic: str, are_records: bool = True) -> pa.Table:
    """Return data as an Arrow table.

    Args:
        data: A `pyarrow` table, record batch or reader; anything with `__arrow_c_stream__` or `__arrow_c_array__` (Polars, DuckDB); a
            pandas DataFrame, whose index is left out; a Spark DataFrame, which is collected; or a list of dicts, of which a key that is
            missing is null.
        topic: The topic's name, for messages.
        are_records: Dicts are records, which have a key and a value.

    Raises:
        InvalidRecords: It is none of these, or the values of a column have different types, or are none that Arrow can hold.
    """
    try:
        return _table(_collect_spark(data), are_records=are_records)
    except _UnreadableColumn as error:
        message = f"topic {topic} cannot take these rows: {error}"
        raise InvalidRecords(message) from error
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        message = f"topic {topic} cannot take these rows: {error}; each column needs one type"
        raise InvalidRecords(message) from error
    except TypeError as error:
        message = f"topic {topic} cannot take {type(data).__name__}: {error}"
        raise InvalidRecords(message) from error


class _UnreadableColumn(ValueError):
    """A column whose values Arrow cannot hold; the text names it."""


def _collect_spark(data: Any) -> Any:
    """Return the rows of a Spark DataFrame, which exports no Arrow stream on Spark 4.0 and 4.1; anything else as it is."""
    is_spark = type(data).__module__.startswith("pyspark.") and hasattr(data, "toArrow")
    return data.toArrow() if is_spark else data


def _table(data: Any, *, are_records: bool) -> pa.Table:
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, pa.RecordBatchReader):
        return data.read_all()
    library, is_frame = type(data).__module__.partition(".")[0], hasattr(type(data), "columns") or hasattr(data, "columns")
    if library == "pandas" and is_frame:
        return _table_of_pandas(data)
    if library == "polars" and is_frame:
        _check_objects(data)
    exports_arrow = hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__")
    if exports_arrow and (is_frame or library not in {"pandas", "polars"}):  # a Series of either has no columns
        return pa.table(data)
    if isinstance(data, Sequence) and not isinstance(data, (str, bytes)) and all(isinstance(row, Mapping) for row in data):
        return _table_of_dicts(data, are_records=are_records)
    message = f"{_other_rows(data)}allowed are {_TAKEN}"
    raise TypeError(message)


def _other_rows(data: Any) -> str:
    """Return what rows of a list are that are no dicts, as the begin of a message; an empty text for anything but a list."""
    other = next((type(row).__name__ for row in data if not isinstance(row, Mapping)), "") if isinstance(data, list) else ""
    return f"rows of it are of the type {other}; " if other else ""


def _table_of_pandas(frame: Any) -> pa.Table:
    names = [str(name) for name in frame.columns]
    check_names(names)
    return pa.table({name: _column(name, frame.iloc[:, number]) for number, name in enumerate(names)})


def _table_of_dicts(rows: Sequence[Mapping[str, Any]], *, are_records: bool) -> pa.Table:
    own = ["key", "value"] if are_records else []
    names: dict[Any, None] = dict.fromkeys([*own, *(name for row in rows for name in row)])
    for name in names:
        if not isinstance(name, str) or not _is_utf8(name):
            message = f"column {name!r}: allowed are names that are texts"
            raise _UnreadableColumn(message)
    return pa.table({name: _column(name, [row.get(name) for row in rows]) for name in names})


def _column(name: str, values: Any) -> pa.Array:
    """Return the values of a column, of a list or a pandas Series; raise `_UnreadableColumn` that names what Arrow cannot hold."""
    try:
        return _array(values)
    except UnicodeEncodeError:
        wrong = next(value for value in values if not _is_utf8(value))
        message = f"column {name} = {wrong!r}: a lone surrogate is no character of UTF-8"
    except OverflowError:
        wrong = next((value for value in values if isinstance(value, int) and not -(2**63) <= value < 2**63), None)
        message = f"column {name} = {wrong}: allowed are whole numbers of 64 bits, with a sign or without one"
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        message = f"column {name}: {error}; each column needs one type"
    raise _UnreadableColumn(message)


def _array(values: Any) -> pa.Array:
    try:
        return pa.array(values, from_pandas=not isinstance(values, list))
    except OverflowError:
        return pa.array(values, pa.uint64())


def _is_utf8(value: object) -> bool:
    """Tell whether all texts in a value are characters of UTF-8."""
    try:
        _texts_of(value).encode()
    except UnicodeEncodeError:
        return False
    return True


def _texts_of(value: object) -> str:
    """Return the texts in a value, one behind the other."""
    if isinstance(value, Mapping):
        return "".join(map(_texts_of, [*value.keys(), *value.values()]))
    if isinstance(value, (list, tuple)):
        return "".join(map(_texts_of, value))
    return value if isinstance(value, str) else ""


def _check_objects(frame: Any) -> None:
    """Raise `TypeError` for a LazyFrame, `_UnreadableColumn` for a column of Python's objects, of which Polars hands over the addresses."""
    if type(frame).__name__ == "LazyFrame":
        message = "call its method collect() first, which gives a Polars DataFrame"
        raise TypeError(message)
    for name, data_type in getattr(frame, "schema", {}).items():
        if "Object" in str(data_type):
            message = f"column {name} is {data_type} of Polars, which holds objects of Python: cast it to String or Binary"
            raise _UnreadableColumn(message)
