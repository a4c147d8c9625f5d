"""Where the rows of a key are: an index of the data files of a table by a hash of the key, in memory.

```
 file a   hashes in order   0x1f 0x3c 0x77      rows   2  0  1
 wanted   0x3c, 0x90    →   file a, row 0
```

It is a cache: an entry is made from the columns of a file that tell rows apart, and may be dropped at any time. A file never changes, so an
entry is never wrong; rows that were deleted meanwhile are in the deletion vector of the file, and are left out by the caller. The hash
has 128 bits and a seed of the process: two keys of 16 million have the same one with a probability of 4 in 10^25.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl
import pyarrow as pa

from lastword.storage.tables.table_rows import KEY, PARTITION

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from numpy.typing import NDArray

    from lastword.storage.tables.table_rows import RecordKeys

    Hashes = NDArray[np.uint64]
    Rows = NDArray[np.int64]

#: Of each of the two halves of a hash: of rows that the key columns tell apart, and of rows that `_key` does.
_SEEDS: Final = tuple(secrets.randbits(63) for _ in range(4))
#: Of the rows of a table that is no history.
_NO_OFFSETS: Final = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyHashes:
    """Hashes of 128 bits as two arrays of 64."""

    first: Hashes
    second: Hashes

    def take(self, at: NDArray[np.intp]) -> KeyHashes:
        """Return some of them."""
        return KeyHashes(first=self.first[at], second=self.second[at])


def hash_keys(columns: pa.Table, *, by_key: bool) -> KeyHashes:
    """Return the hashes of rows by all of some columns; `by_key` for `_key`, whose hashes are none of the other columns'."""
    frame = pl.DataFrame([pl.Series(name, columns.column(name).combine_chunks()) for name in columns.schema.names])
    first, second = (frame.hash_rows(seed=seed).to_numpy() for seed in _SEEDS[2 if by_key else 0 :][:2])
    return KeyHashes(first=first, second=second)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileKeys:
    """The hashes of the rows of one file, in order, the numbers of these rows, and their offsets in the log where the table has them."""

    hashes: KeyHashes
    rows: NDArray[np.int32]
    offsets: Rows

    @staticmethod
    def of(hashes: KeyHashes, offsets: Rows | None = None) -> FileKeys:
        """Sort the hashes of the rows 0, 1, 2 … of a file."""
        order = np.argsort(hashes.first, kind="stable")
        return FileKeys(hashes=hashes.take(order), rows=order.astype(np.int32), offsets=_NO_OFFSETS if offsets is None else offsets[order])

    @property
    def size_bytes(self) -> int:
        """How much memory it takes."""
        arrays = (self.hashes.first, self.hashes.second, self.rows, self.offsets)
        return sum(array.nbytes for array in arrays)

    def offsets_of(self, rows: Rows) -> Rows:
        """Return the offsets of some rows of the file."""
        by_row = np.empty(len(self.rows), dtype=np.int64)
        by_row[self.rows] = self.offsets
        return by_row[rows]

    def find(self, wanted: KeyHashes) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the pairs of a wanted hash and a row that has it: the numbers of the hashes, and the places here."""
        order = np.argsort(wanted.first)  # in order they are found faster
        at = np.searchsorted(self.hashes.first, wanted.first[order])
        which, count = order, len(self.hashes.first)
        matches: list[tuple[NDArray[np.intp], NDArray[np.intp]]] = []
        while len(which):  # rows of a history have one hash, one behind the other
            inside = at < count
            which, at = which[inside], at[inside]
            same = self.hashes.first[at] == wanted.first[which]
            which, at = which[same], at[same]
            equal = self.hashes.second[at] == wanted.second[which]
            matches.append((which[equal], at[equal]))
            at = at + 1
        nothing = np.zeros(0, dtype=np.intp)
        return np.concatenate([nothing, *(pair for pair, _ in matches)]), np.concatenate([nothing, *(pair for _, pair in matches)])


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedKeys:
    """Hashes of the keys that a step looks for in the files of a table.

    `by_key` are hashes of the bytes of every key, `by_columns` those of the key's columns: only for the keys that columns can hold, which
    are the keys at `numbers`.
    """

    numbers: NDArray[np.intp]
    by_columns: KeyHashes
    by_key: KeyHashes

    @staticmethod
    def of(keys: RecordKeys) -> WantedKeys:
        """Hash the keys of records."""
        columns, plain = keys.columns, np.flatnonzero(keys.plain)
        names = [name for name in columns.schema.names if name != KEY]
        return WantedKeys(
            numbers=plain,
            by_columns=hash_keys(columns.select(names).take(pa.array(plain)), by_key=False),
            by_key=hash_keys(columns.select([PARTITION, KEY]), by_key=True),
        )


def find_keys(entry: FileKeys, wanted: WantedKeys, *, has_plain_alone: bool = False) -> tuple[Rows, Rows]:
    """Return the pairs of a wanted key, by its number, and a row of a file that is its; `has_plain_alone`: no row there has a `_key`."""
    which, at = entry.find(wanted.by_columns)
    numbers, rows = [wanted.numbers[which]], [entry.rows[at]]
    if not has_plain_alone:
        which, at = entry.find(wanted.by_key)
        numbers.append(which)
        rows.append(entry.rows[at])
    return np.concatenate(numbers).astype(np.int64), np.concatenate(rows).astype(np.int64)


class KeyIndex:
    """The keys of the files of one table, as many as the memory for it holds; those that were not asked for longest go first."""

    def __init__(self, *, max_bytes: int) -> None:
        """Hold up to so many bytes."""
        self._read: Callable[[str], FileKeys]
        self._max_bytes = max_bytes
        self._held: OrderedDict[str, FileKeys] = OrderedDict()
        self._bytes = 0

    def reads_by(self, read: Callable[[str], FileKeys]) -> None:
        """Read the keys of a file that is not held by this function from now on."""
        self._read = read

    def of(self, path: str) -> FileKeys:
        """Return the keys of a file."""
        keys = self._held.get(path)
        if keys is not None:
            self._held.move_to_end(path)
            return keys
        keys = self._read(path)
        self.put(path, keys)
        return keys

    def put(self, path: str, keys: FileKeys) -> None:
        """Hold the keys of a file, if there is room for them at all."""
        self.drop([path])
        if keys.size_bytes > self._max_bytes:
            return
        while self._bytes + keys.size_bytes > self._max_bytes:
            _, oldest = self._held.popitem(last=False)
            self._bytes -= oldest.size_bytes
        self._held[path] = keys
        self._bytes += keys.size_bytes

    def drop(self, paths: Sequence[str]) -> None:
        """Let go of files that left the table."""
        for path in paths:
            gone = self._held.pop(path, None)
            self._bytes -= 0 if gone is None else gone.size_bytes

    def keep(self, files: Collection[str]) -> None:
        """Let go of the files that are not in the table any more."""
        self.drop([path for path in self._held if path not in files])

    @property
    def size_bytes(self) -> int:
        """How much memory the keys take that are held."""
        return self._bytes
