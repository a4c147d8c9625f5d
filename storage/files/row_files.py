"""Files of the small tables, the ledger and the dead letters: Parquet files without partitions.

A file is flushed to a local disk before it is returned, as a data file is. Its metadata says which version of lastword wrote it.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq

from lastword.storage.files.data_files import output_file
from lastword.storage.files.data_reader import named_errors, second_look
from lastword.storage.files.paths import filesystem_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pyarrow as pa


_WRITER: Final = b"lastword.version"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFile:
    """A file of rows that lies in a table's folder, in a commit or not yet; `time_ms` is the greatest moment in it, if known."""

    path: str
    size_bytes: int
    record_count: int
    time_ms: int | None = field(default=None)

    def stats(self, time_column: str | None) -> str:
        """Return Delta's statistics as JSON text: the number of rows, and `time_ms` as the greatest of a column."""
        body: dict[str, object] = {"numRecords": self.record_count}
        if self.time_ms is not None and time_column is not None:
            text = datetime.fromtimestamp(self.time_ms / 1000, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            body["maxValues"] = {time_column: text}
        return json.dumps(body, separators=(",", ":"))


def write_row_file(
    location: str,
    storage_options: Mapping[str, str],
    rows: Iterable[pa.Table],
    schema: pa.Schema,
    *,
    name: str = "part",
    time_ms: int | None = None,
) -> RowFile | None:
    """Write rows as one file of the table at `location`, called after `name`, and return it; None, and no file, when there are none."""
    there = (row for row in rows if len(row))
    first = next(there, None)
    if first is None:
        return None
    path = f"{name}.{uuid.uuid4().hex}.parquet"
    count = 0
    with output_file(location, storage_options, path) as stream:
        named = schema.with_metadata({_WRITER: (installed_version() or "unknown").encode()})
        with pq.ParquetWriter(stream, named, compression="zstd") as writer:
            while first is not None:
                count += len(first)
                writer.write_table(first.select(schema.names).cast(named))
                first = next(there, None)
        size = int(stream.tell())
    return RowFile(path=path, size_bytes=size, record_count=count, time_ms=time_ms)


def read_row_file(location: str, storage_options: Mapping[str, str], path: str) -> pa.Table:
    """Return the rows of a file; raises `CorruptLog` when it is damaged or not there, `OSError` when the storage does not give it now."""

    def read() -> pa.Table:
        with named_errors(f"{location}/{path}"), filesystem_of(location, storage_options).open_input_file(path) as source:
            return pq.read_table(source)

    return second_look(read)


def writer_of(rows: pa.Table) -> str:
    """Return which version of lastword wrote the file of some rows."""
    return str((rows.schema.metadata or {}).get(_WRITER, b"unknown").decode())


@cache
def installed_version() -> str | None:
    """Return the version of lastword; the package's metadata is read once. None for files without metadata: a source tree on PYTHONPATH."""
    try:
        return version("lastword")
    except PackageNotFoundError:
        return None
