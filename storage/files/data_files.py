"""Data files: Parquet files of one slice each, in offset order, with the statistics that the Delta log needs.

```
 rows, sorted          partition 0, segment 0, slice 40      partition 0, segment 90, slice 90       partition 1 …
 files                 partition=0/segment=0/slice=40/…      partition=0/segment=90/slice=90/…       …
 statistics            rows; least, greatest and nulls of offset, timestamp, appended_at, delete_horizon, producer_id, source_sequence
```

The control plane reads a log from these statistics alone, so a file is never written without them. Key and value have none: keys do
not belong into a Delta log. On a local disk a file and the folders made for it are flushed to the disk (fsync) before it is returned,
because the commit that names it promises that it is there.
"""

from __future__ import annotations

import json
import os
import uuid
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lastword.compaction.order.sequences import ends
from lastword.compaction.order.source_positions import highest_of_scopes, highest_text
from lastword.storage.files.locations import local_path
from lastword.storage.files.paths import filesystem_of
from lastword.storage.files.schema import DATA_SCHEMA, PLACE_COLUMNS, STATISTICS_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
#: No offset comes twice in a file, and few keys and values do: a dictionary of them is built and thrown away.
_DICTIONARY_COLUMNS: Final = [name for name in DATA_SCHEMA.names if name not in {"offset", "key", "value", "headers", "source_sequence"}]
_CODECS: Final[Mapping[str, Mapping[str, Any]]] = {
    # zstd's first level makes files as small as its third, in four fifths of the time that an append takes.
    "zstd": {"compression": "zstd", "compression_level": 1},
    "uncompressed": {"compression": "none"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroupLimits:
    """Where a row group of a data file ends, whichever comes first: so much a reader or a cleaning holds at a time."""

    max_rows: int = 2**17
    #: In memory, before they are compressed.
    max_bytes: int = 16 * 2**20


#: What a data file is written with when its writer is given no limits.
ROW_GROUP_LIMITS: Final = RowGroupLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A data file that lies in the table's folder and is in no commit yet; `stats` are Delta's, as JSON text."""

    path: str
    partition: int
    segment: int
    slice: int
    size_bytes: int
    record_count: int
    first_offset: int
    last_offset: int
    stats: str


class _Abandoned(Exception):
    """Closes an output file without keeping it."""


class SliceWriter:
    """Writes one slice as one Parquet file: `write` batches in offset order, then `close`."""

    def __init__(
        self,
        location: str,
        storage_options: Mapping[str, str],
        *,
        partition: int,
        segment: int,
        slice_: int,
        codec: str,
        known_folders: int = 0,
        limits: RowGroupLimits = ROW_GROUP_LIMITS,
    ) -> None:
        """Create the file in the table at `location`; `codec` is the topic's compression.type, `known_folders` as in `output_file`."""
        self._place = partition, segment, slice_
        self._limits = limits
        folder = "/".join(f"{name}={value}" for name, value in zip(PLACE_COLUMNS, self._place, strict=True))
        self._path = f"{folder}/part-{uuid.uuid4()}.{codec}.parquet"
        self._open = ExitStack()
        self._stream = self._open.enter_context(output_file(location, storage_options, self._path, known_folders=known_folders))
        settings = _CODECS.get(codec, {"compression": codec})
        self._writer = pq.ParquetWriter(self._stream, DATA_SCHEMA, use_dictionary=_DICTIONARY_COLUMNS, **settings)
        self._held: list[pa.Table] = []
        self._statistics = _Statistics()

    def write(self, rows: pa.Table) -> None:
        """Add rows with the columns of `DATA_SCHEMA`, which continue in offset order."""
        self._statistics.add(rows)
        self._held.append(rows)
        count, size = sum(len(table) for table in self._held), sum(table.nbytes for table in self._held)
        if count >= self._limits.max_rows or size >= self._limits.max_bytes:
            self._flush(count, size)

    @property
    def size_bytes(self) -> int:
        """How much was written so far; what is held for the next row group does not count."""
        return int(self._stream.tell())

    def close(self) -> DataFile:
        """Finish the file and return it."""
        if self._held:
            self._flush(sum(len(table) for table in self._held), sum(table.nbytes for table in self._held))
        self._writer.close()
        size = int(self._stream.tell())
        self._open.close()
        partition, segment, slice_ = self._place
        statistics = self._statistics
        return DataFile(
            path=self._path,
            partition=partition,
            segment=segment,
            slice=slice_,
            size_bytes=size,
            record_count=statistics.rows,
            first_offset=statistics.first_offset,
            last_offset=statistics.last_offset,
            stats=statistics.to_json(),
        )

    def abandon(self) -> None:
        """Close the file and delete it, as `output_file` does with an incomplete one; no commit names it."""
        with suppress(Exception):
            self._writer.close()
        with suppress(Exception), self._open:
            raise _Abandoned

    def _flush(self, count: int, size: int) -> None:
        rows = pa.concat_tables(self._held)
        self._held = []
        max_rows = max(1, min(self._limits.max_rows, count * self._limits.max_bytes // max(1, size)))
        self._writer.write_table(rows, row_group_size=max_rows)


def complete(rows: pa.Table, schema: pa.Schema = DATA_SCHEMA) -> pa.Table:
    """Return rows in the columns of a schema; one that they lack is null."""
    nulls = {field.name: pa.nulls(len(rows), field.type) for field in schema if field.name not in rows.schema.names}
    return pa.table({name: nulls[name] if name in nulls else rows.column(name) for name in schema.names}).cast(schema)


class _Statistics:
    """Statistics of one file, kept up batch by batch."""

    def __init__(self) -> None:
        self.rows = 0
        self.first_offset = self.last_offset = -1
        self._least: dict[str, Any] = {}
        self._greatest: dict[str, Any] = {}
        self._nulls = dict.fromkeys(STATISTICS_COLUMNS, 0)
        #: The highest source sequence of each scope.
        self._sequences: dict[str, str] = {}

    def add(self, rows: pa.Table) -> None:
        offsets = rows.column("offset").to_numpy()
        if not len(offsets):
            return
        if offsets[0] <= self.last_offset or (np.diff(offsets) <= 0).any():
            message = f"rows of a slice are not in offset order after offset {self.last_offset}: a bug of lastword; nothing was committed"
            raise ValueError(message)
        if not self.rows:
            self.first_offset = int(offsets[0])
        self.last_offset = int(offsets[-1])
        self.rows += len(offsets)
        for name in STATISTICS_COLUMNS:
            column = rows.column(name)
            self._nulls[name] += column.null_count
            if column.null_count < len(column):
                least, greatest = _ends(name, column)
                self._least[name] = min(self._least.get(name, least), least)
                self._greatest[name] = max(self._greatest.get(name, greatest), greatest)
        for scope, sequence in highest_of_scopes(rows.column("source_sequence")).items():
            self._sequences[scope] = max(sequence, self._sequences.get(scope, ""))

    def to_json(self) -> str:
        """Return the statistics as Delta has them; the greatest source sequence is `highest_text` of those of all scopes."""
        if self._sequences:
            self._greatest["source_sequence"] = highest_text(self._sequences)
        return json.dumps(
            {
                "numRecords": self.rows,
                "minValues": {name: _plain(name, value) for name, value in self._least.items()},
                "maxValues": {name: _plain(name, value) for name, value in self._greatest.items()},
                "nullCount": self._nulls,
            },
            separators=(",", ":"),
        )


def _ends(name: str, column: pa.ChunkedArray) -> tuple[Any, Any]:
    """Return the least and the greatest value of a column that has one."""
    texts = ends(column) if name == "source_sequence" else None
    if texts is not None:
        return texts
    bounds = pc.min_max(column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).as_py()
    return bounds["min"], bounds["max"]


def _plain(name: str, value: Any) -> Any:
    """Return a value of a column as Delta's statistics have it: a timestamp as text with milliseconds; ours have no more."""
    if not pa.types.is_timestamp(DATA_SCHEMA.field(name).type):
        return value
    return (_EPOCH + timedelta(milliseconds=value // 1000)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@contextmanager
def output_file(location: str, storage_options: Mapping[str, str], path: str, *, known_folders: int = 0) -> Iterator[Any]:
    """Open a new file below a table's folder for writing; on a local disk it is flushed to the disk when it is closed.

    So are the folders on the way to it, but for the first `known_folders`: a commit names files in them, so they are on the disk. A file
    that could not be written whole is deleted.
    """
    try:
        yield from _output_file(location, storage_options, path, known_folders)
    except FileExistsError:
        raise
    except BaseException:
        delete_files(location, storage_options, [path])
        raise


def delete_files(location: str, storage_options: Mapping[str, str], paths: Iterable[str]) -> None:
    """Delete files of a table that no commit names; VACUUM removes what cannot be deleted now."""
    files = filesystem_of(location, storage_options)
    for path in paths:
        with suppress(OSError):
            files.delete_file(path)


def _output_file(location: str, storage_options: Mapping[str, str], path: str, known_folders: int) -> Iterator[Any]:
    folder = local_path(location)
    if folder is None:
        with filesystem_of(location, storage_options).open_output_stream(path) as stream:
            yield stream
        return
    file = folder / path
    parents = [file.parent, *(parent for parent in file.parent.parents if parent.is_relative_to(folder))]
    flushed = len(parents) - (known_folders if known_folders and parents[-1 - known_folders].exists() else 0)
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("xb") as stream:
        yield stream
        stream.flush()
        os.fsync(stream.fileno())
    # Another thread may have made one of the other folders, and not flushed it yet.
    for parent in parents[:flushed]:
        sync_folder(parent)


def sync_folder(folder: Path) -> None:
    """Flush the names in a local folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
