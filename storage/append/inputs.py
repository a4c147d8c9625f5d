"""What people have in memory as the input of an append: Arrow, Polars, pandas, or a list of dicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import pyarrow as pa

from lastword.compaction.errors import InvalidRecords
from lastword.storage.append.writing import ArrowRows

if TYPE_CHECKING:
    from lastword.compaction.rows.envelopes import Envelope
    from lastword.compaction.rows.event_rows import FrameDecoder

_TAKEN: Final = "an Arrow table, record batch or stream, a Polars or pandas DataFrame, or a list of dicts"


class ArrowStream(Protocol):
    """Anything that exports itself as an Arrow stream: pyarrow, Polars, DuckDB and others."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the stream."""


#: What an append takes without Spark.
ArrowInput: TypeAlias = ArrowStream | Sequence[Mapping[str, Any]]


def arrow_rows(data: object, *, topic: str, envelope: Envelope | None = None, decoder: FrameDecoder | None = None) -> ArrowRows:
    """Return data as the input of an append.

    Args:
        data: A `pyarrow` table, record batch or reader; anything with `__arrow_c_stream__` or `__arrow_c_array__` (Polars, DuckDB); a
            pandas DataFrame, whose index is left out; or a list of dicts, of which a key that is missing is null.
        topic: The topic's name, for messages.
        envelope: What the rows are the events of, if they are change events.
        decoder: What decodes their keys and values, if they are framed for a schema registry.

    Raises:
        InvalidRecords: It is none of these, or values of one column have different types.
    """
    try:
        return ArrowRows(_table(data)) if envelope is None else ArrowRows.of_events(_table(data), envelope, decoder, topic=topic)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        message = f"topic {topic} cannot take these rows: {error}; each column needs one type"
        raise InvalidRecords(message) from error
    except TypeError as error:
        message = f"topic {topic} cannot take {type(data).__name__}: {error}"
        raise InvalidRecords(message) from error


def _table(data: Any) -> pa.Table:
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, pa.RecordBatchReader):
        return data.read_all()
    if type(data).__module__.partition(".")[0] == "pandas":
        return pa.Table.from_pandas(data, preserve_index=False)
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        return pa.table(data)
    if isinstance(data, Sequence) and not isinstance(data, (str, bytes)) and all(isinstance(row, Mapping) for row in data):
        names = dict.fromkeys(["key", "value", *(name for row in data for name in row)])
        return pa.table({name: pa.array([row.get(name) for row in data]) for name in names})
    message = f"allowed are {_TAKEN}"
    raise TypeError(message)
