"""Pass 1 of a cleaning: the newest offset of each key of a dirty range, and which records of the clean section it supersedes.

```
 dirty files    key, offset          newest offset of each key = the offset map        `newest`: these records stay
 clean files    key, offset          those whose key is in the map                     `superseded`: these records are removed
```

Only narrow columns are read, file by file. Keys are exact, no hash. What is held is the map, and the keys of a stretch of files.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from numpy.typing import NDArray

KEY_COLUMNS: Final = ("key", "offset", "control", "producer_id", "txn_first_offset")


@dataclass(slots=True)
class OffsetMap:
    """The newest offset of each key in the dirty range of a partition; `add` its files in order, then `newest`."""

    first_dirty_offset: int
    end_offset: int
    aborted: frozenset[tuple[int, int]]
    #: Keys of so many records, at least, are folded at a time.
    min_batch_keys: int
    #: By file: how many records without a key it holds in the range.
    keyless: dict[str, int] = field(default_factory=dict)
    _folded: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema={"key": pl.Binary, "offset": pl.Int64}))
    _held: list[pl.DataFrame] = field(default_factory=list)
    _held_rows: int = 0

    def add(self, path: str, rows: pa.Table) -> None:
        """Add the rows of a file: `KEY_COLUMNS`."""
        keyed = data_records(rows, self.first_dirty_offset, self.end_offset, self.aborted)
        missing = keyed.column("key").null_count
        if missing:
            self.keyless[path] = self.keyless.get(path, 0) + missing
            keyed = keyed.filter(pc.is_valid(keyed.column("key")))
        frame = pl.DataFrame(keyed.select(["key", "offset"]))
        self._held.append(frame)
        self._held_rows += len(frame)
        if self._held_rows >= max(self.min_batch_keys, len(self._folded)):
            self._fold()

    def _fold(self) -> None:
        """Keep the newest of each key: what comes later has higher offsets."""
        if self._held:
            everything = pl.concat([self._folded, *self._held])
            self._folded = everything.group_by("key").agg(pl.col("offset").max())
            self._held, self._held_rows = [], 0

    @property
    def keys(self) -> pl.DataFrame:
        """The map: each key with its newest offset."""
        self._fold()
        return self._folded

    def newest(self) -> NDArray[np.int64]:
        """Return the newest offsets, ascending."""
        return np.sort(self.keys["offset"].to_numpy())


@dataclass(slots=True)
class Superseded:
    """The records of the clean section whose key is in the map; `add` its files in order, then `offsets`."""

    keys: pl.DataFrame
    end_offset: int
    aborted: frozenset[tuple[int, int]]
    #: Keys of so many records, at least, are looked up at a time.
    min_batch_keys: int
    _held: list[pl.DataFrame] = field(default_factory=list)
    _held_rows: int = 0
    _found: list[NDArray[np.int64]] = field(default_factory=list)

    def add(self, rows: pa.Table) -> None:
        """Add the rows of a file: `KEY_COLUMNS`. Only records below `end_offset` belong to the clean section."""
        keyed = data_records(rows, -1, self.end_offset, self.aborted)
        frame = pl.DataFrame(keyed.select(["key", "offset"]))
        self._held.append(frame)
        self._held_rows += len(frame)
        if self._held_rows >= max(self.min_batch_keys, len(self.keys)):
            self._look_up()

    def _look_up(self) -> None:
        if self._held:
            rows = pl.concat(self._held)
            self._held, self._held_rows = [], 0
            # Where hardly any key comes again the smaller side is hashed: polars hashes the right one.
            matches = rows.join(self.keys.select("key"), on="key", how="semi")
            self._found.append(matches["offset"].to_numpy())

    def offsets(self) -> NDArray[np.int64]:
        """Return the offsets, ascending."""
        self._look_up()
        return np.sort(np.concatenate(self._found)) if self._found else np.empty(0, dtype=np.int64)


def data_records(rows: pa.Table, begin: int, end: int, aborted: frozenset[tuple[int, int]]) -> pa.Table:
    """Return the data rows from offset `begin` to `end` (exclusive), without those of aborted transactions."""
    offset = rows.column("offset").to_numpy()
    mask = None
    if len(offset) and (offset[0] < begin or offset[-1] >= end):
        mask = (offset >= begin) & (offset < end)
    control = rows.column("control")
    if control.null_count < len(rows):
        is_data = pc.is_null(control).to_numpy(zero_copy_only=False)
        mask = is_data if mask is None else mask & is_data
    first = rows.column("txn_first_offset")
    if aborted and first.null_count < len(rows):
        pairs = zip(rows.column("producer_id").to_pylist(), first.to_pylist(), strict=True)
        kept = np.fromiter((pair not in aborted for pair in pairs), dtype=np.bool_, count=len(rows))
        mask = kept if mask is None else mask & kept
    return rows if mask is None else rows.filter(pa.array(mask))


def count_between(offsets: NDArray[np.int64], first: int, last: int) -> int:
    """Return how many of some ascending offsets lie from `first` to `last`."""
    return int(np.searchsorted(offsets, last, side="right") - np.searchsorted(offsets, first, side="left"))
