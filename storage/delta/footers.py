"""What Parquet footers say that the Delta log does not: what the columns of a record take."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lastword.compaction.rows.numbering import Compression
from lastword.storage.files.paths import filesystem_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lastword.storage.delta.snapshot import LogSnapshot

_LEAST_RECORDS: Final = 30
_LENGTH_BYTES: Final = 4


def read_compression(location: str, snapshot: LogSnapshot, storage_options: Mapping[str, str]) -> Compression | None:
    """Return how well the records of the largest of the newest files compress; None when no file holds enough records to tell.

    An unreadable file counts as one without records: the error is raised where its records are read.
    """
    files = snapshot.files
    enough = np.flatnonzero(files.record_count >= _LEAST_RECORDS)
    if not len(enough):
        return None
    newest = enough[np.argsort(files.appended_at_ms[enough], kind="stable")[-8:]]
    filesystem = filesystem_of(location, storage_options)
    for file in newest[np.argsort(-files.size_bytes[newest], kind="stable")]:
        with suppress(OSError, pa.ArrowInvalid):
            return _compression(pq.read_metadata(str(files.path[file]), filesystem=filesystem))
    return None


def _compression(metadata: pq.FileMetaData) -> Compression:
    raw, stored = {"key": 0, "rest": 0}, {"key": 0, "rest": 0, "overhead": 0}
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            column = metadata.row_group(group).column(number)
            name = column.path_in_schema.split(".")[0]
            part = {"key": "key", "value": "rest", "headers": "rest"}.get(name, "overhead")
            stored[part] += column.total_compressed_size
            if part != "overhead":
                raw[part] += max(0, column.total_uncompressed_size - _LENGTH_BYTES * column.num_values)
    return Compression(
        key=_ratio(stored["key"], raw["key"]),
        rest=_ratio(stored["rest"], raw["rest"]),
        overhead=stored["overhead"] / metadata.num_rows,
    )


def _ratio(stored: int, raw: int) -> float:
    """Return stored bytes a raw byte; a column that is stored by dictionary looks smaller than it is, so 1 is the most."""
    return min(1.0, stored / raw) if raw else 1.0
