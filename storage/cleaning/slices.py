"""The slices of one segment that is written again: by a cleaning, or by a merge that removes nothing.

```
 rows of the segment    ──────────────────────────────────────────►
 slices                 │ 412            │ 9871           │ 15330          128 MiB each, at the end of a row group
                          its first label  each later one is named by its first offset, which no other slice has
```
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from lastword.storage.files.data_files import SliceWriter, delete_files
from lastword.storage.files.schema import DATA_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from lastword.compaction.planning.rate_limiter import Spend
    from lastword.storage.cleaning.limits import CleaningLimits
    from lastword.storage.files.data_files import DataFile


class SegmentWriter:
    """Writes rows in offset order as slices of one segment: the first is named `slice_`, each later one by its first offset."""

    def __init__(
        self,
        location: str,
        storage_options: Mapping[str, str],
        *,
        partition: int,
        segment: int,
        slice_: int,
        codec: str,
        limits: CleaningLimits,
        spend: Spend,
    ) -> None:
        """Write nothing yet; `spend` is called with all bytes that are written."""
        self._location, self._options, self._slice, self._limits, self._spend = location, storage_options, slice_, limits, spend
        self._open = partial(
            SliceWriter, location, storage_options, partition=partition, segment=segment, codec=codec, limits=limits.row_groups
        )
        self._counted = 0
        self._writer: SliceWriter | None = None
        self._done: list[DataFile] = []

    def write(self, rows: pa.Table) -> None:
        """Add rows, which continue in offset order."""
        if self._writer is None:
            self._writer = self._open(slice_=int(rows.column("offset")[0].as_py()) if self._done else self._slice)
        self._writer.write(rows.cast(DATA_SCHEMA))
        self._count(self._writer.size_bytes)
        if self._writer.size_bytes >= self._limits.max_slice_bytes:
            self._end_slice()

    def close(self) -> list[DataFile]:
        """Finish the last slice and return all of them."""
        if self._writer is not None:
            self._end_slice()
        return self._done

    def abandon(self) -> None:
        """Delete all files, which no commit names."""
        if self._writer is not None:
            self._writer.abandon()
        delete_files(self._location, self._options, [file.path for file in self._done])

    def _end_slice(self) -> None:
        assert self._writer is not None  # noqa: S101  its callers have looked
        self._done.append(self._writer.close())
        self._writer = None
        self._count(self._done[-1].size_bytes)
        self._counted = 0

    def _count(self, size_bytes: int) -> None:
        """Count what was written of the open slice since the last call."""
        if size_bytes > self._counted:
            self._spend(size_bytes - self._counted)
            self._counted = size_bytes
