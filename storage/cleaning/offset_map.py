"""Pass 1 of a cleaning: the newest offset of each key of a dirty range, and which records of the clean section it supersedes.

```
 dirty files    key, offset          newest offset of each key = the offset map        `newest`: these records stay
 clean files    key, offset          those whose key is in the map                     `superseded`: these records are removed
```

Only narrow columns are read, file by file. Keys are compared as they are; hashes only tell which files need not be read. What is held is
the map, and the keys of a stretch of files.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from lastword.storage.cleaning.key_hashes import KEY_HASHES, KeyHashCache, hash_keys

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lastword.storage.cleaning.key_hashes import Hashes

#: What pass 1 reads of a file that has only data records without a producer.
PLAIN_COLUMNS: Final = ("key", "offset")
#: What it reads of any other file, to tell control rows and aborted records from data.
KEY_COLUMNS: Final = (*PLAIN_COLUMNS, "control", "producer_id", "txn_first_offset")


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
        """Add the rows of a file: `KEY_COLUMNS`, or `PLAIN_COLUMNS`."""
        keyed = data_records(rows, self.first_dirty_offset, self.end_offset, self.aborted)
        missing = keyed.column("key").null_count
        if missing:
            self.keyless[path] = self.keyless.get(path, 0) + missing
            keyed = keyed.filter(pc.is_valid(keyed.column("key")))
        frame = pl.DataFrame(keyed.select(PLAIN_COLUMNS))
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
    """The records of the clean section whose key is in the map; `add` its files in order, but for those it `lacks`, then `offsets`."""

    keys: pl.DataFrame
    end_offset: int
    aborted: frozenset[tuple[int, int]]
    #: Keys of so many records, at least, are looked up at a time.
    min_batch_keys: int
    #: How many bytes the cache of hashes may take.
    max_hash_bytes: int
    cache: KeyHashCache = KEY_HASHES
    #: The sorted hashes of the keys of the map, once they are needed.
    _wanted: Hashes | None = None
    _held: list[_HeldFile] = field(default_factory=list)
    _held_rows: int = 0
    _matches: list[NDArray[np.int64]] = field(default_factory=list)

    def lacks(self, place: str) -> bool:
        """Tell whether an earlier cleaning has remembered the keys of a file, and none of them is in the map."""
        if self._wanted is None:
            self._wanted = np.sort(hash_keys(self.keys["key"]))
        return self.cache.lacks(place, self._wanted)

    def add(self, place: str, rows: pa.Table) -> None:
        """Add the rows of a file: `KEY_COLUMNS`, or `PLAIN_COLUMNS`. Only records below `end_offset` belong to the clean section."""
        keyed = data_records(rows, -1, self.end_offset, self.aborted)
        frame = pl.DataFrame(keyed.select(PLAIN_COLUMNS))
        # Of all of its rows: those that do not count today may count tomorrow.
        keys = frame["key"] if keyed is rows else pl.Series(rows.column("key"))
        self._held.append(_HeldFile(place, frame, hash_keys(keys)))
        self._held_rows += len(frame)
        if self._held_rows >= max(self.min_batch_keys, len(self.keys)):
            self._look_up()

    def _look_up(self) -> None:
        if self._held:
            rows = pl.concat([file.records for file in self._held])
            # Where hardly any key comes again the smaller side is hashed: polars hashes the right one.
            offsets = rows.join(self.keys.select("key"), on="key", how="semi")["offset"].sort().to_numpy()
            self._matches.append(offsets)
            for file in self._held:
                if not file.has_any_of(offsets):  # it stays
                    self.cache.put(file.place, file.hashes, max_bytes=self.max_hash_bytes)
            self._held, self._held_rows = [], 0

    def offsets(self) -> NDArray[np.int64]:
        """Return the offsets, ascending."""
        self._look_up()
        return np.sort(np.concatenate(self._matches)) if self._matches else np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class _HeldFile:
    """The key and the offset of each record of a file, and the hashes of its keys."""

    place: str
    records: pl.DataFrame
    hashes: Hashes

    def has_any_of(self, offsets: NDArray[np.int64]) -> bool:
        """Tell whether the file has a record at any of some ascending offsets."""
        mine = self.records["offset"]
        return len(mine) > 0 and count_between(offsets, mine[0], mine[-1]) > 0


def data_records(rows: pa.Table, begin: int, end: int, aborted: frozenset[tuple[int, int]]) -> pa.Table:
    """Return the data rows from offset `begin` to `end` (exclusive), without those of aborted transactions.

    Rows of `PLAIN_COLUMNS` are all data, and of no transaction.
    """
    offset = rows.column("offset").to_numpy()
    mask = None
    if len(offset) and (offset[0] < begin or offset[-1] >= end):
        mask = (offset >= begin) & (offset < end)
    is_plain = "control" not in rows.column_names
    if not is_plain and (control := rows.column("control")).null_count < len(rows):
        is_data = pc.is_null(control).to_numpy(zero_copy_only=False)
        mask = is_data if mask is None else mask & is_data
    if aborted and not is_plain and (first := rows.column("txn_first_offset")).null_count < len(rows):
        pairs = zip(rows.column("producer_id").to_pylist(), first.to_pylist(), strict=True)
        kept = np.fromiter((pair not in aborted for pair in pairs), dtype=np.bool_, count=len(rows))
        mask = kept if mask is None else mask & kept
    return rows if mask is None else rows.filter(pa.array(mask))


def count_between(offsets: NDArray[np.int64], first: int, last: int) -> int:
    """Return how many of some ascending offsets lie from `first` to `last`."""
    return int(np.searchsorted(offsets, last, side="right") - np.searchsorted(offsets, first, side="left"))
