"""Hashes of the keys of clean files: they tell which files need not be read, because none of their keys comes again.

```
 dirty keys     0x20 0x90
 clean file a   0x1f 0x3c 0x77      none in common: it is not read
 clean file b   0x44 0x90           read: it holds the key, or another one with the same hash
```

It is a cache of the process, for the files of all topics. A file never changes, and no other one gets its name, so its hashes are never
wrong. They have 64 bits and a seed of the process; two keys with the same hash cost time, as a file is then read in vain, and nothing else.
Damage of a file that is not read is not noticed here.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    import polars as pl
    from numpy.typing import NDArray

    Hashes = NDArray[np.uint64]

_SEED: Final = secrets.randbits(63)
#: What a file takes beside its hashes: its name, the array, its place in the cache.
_FILE_BYTES: Final = 400
#: A file that was not asked for so long may go when there is no room; until then, what is held stays:
#: files that are asked for in turn would push each other out otherwise.
_IDLE_SECONDS: Final = 600.0


def hash_keys(keys: pl.Series) -> Hashes:
    """Return the hash of each key, in their order."""
    return keys.hash(_SEED).to_numpy()


@dataclass(slots=True, eq=False)
class KeyHashCache:
    """The sorted hashes of the keys of files, for several threads; the file that was not asked for longest comes first."""

    now: Callable[[], float] = time.monotonic
    #: And when each file was asked for.
    _files: OrderedDict[str, tuple[Hashes, float]] = field(default_factory=OrderedDict)
    _bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def lacks(self, file: str, wanted: Hashes) -> bool:
        """Tell whether a file is known to hold none of some keys, whose hashes are sorted."""
        with self._lock:
            if file not in self._files:
                return False
            hashes, _ = self._files.pop(file)
            self._files[file] = hashes, self.now()
        return not _have_common(hashes, wanted)

    def put(self, file: str, hashes: Hashes, *, max_bytes: int) -> None:
        """Hold the hashes of the keys of a file, if there is room for them in so many bytes of all files."""
        with self._lock:
            self._drop(file)
            if not self._make_room(max_bytes - _size(hashes)):
                return
        hashes = np.sort(hashes)
        with self._lock:
            self._drop(file)
            self._files[file] = hashes, self.now()
            self._bytes += _size(hashes)

    def drop(self, file: str) -> None:
        """Let go of a file that leaves the log."""
        with self._lock:
            self._drop(file)

    def _make_room(self, most_bytes: int) -> bool:
        """Let go of idle files until the others take at most so many bytes; tell whether they do."""
        while self._bytes > most_bytes:
            oldest = next(iter(self._files), None)
            if oldest is None or self.now() - self._files[oldest][1] < _IDLE_SECONDS:
                return False
            self._drop(oldest)
        return most_bytes >= 0

    def _drop(self, file: str) -> None:
        if file in self._files:
            self._bytes -= _size(self._files.pop(file)[0])


def _size(hashes: Hashes) -> int:
    return hashes.nbytes + _FILE_BYTES


def _have_common(some: Hashes, others: Hashes) -> bool:
    """Tell whether two sorted arrays have a value in common."""
    few, many = sorted((some, others), key=len)
    at = np.searchsorted(many, few)
    return bool((many[at[at < len(many)]] == few[at < len(many)]).any())


#: Of the files that this process cleans.
KEY_HASHES: Final = KeyHashCache()
