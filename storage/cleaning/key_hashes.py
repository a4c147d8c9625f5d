"""Hashes of the keys of clean files, by which a cleaning knows which of these files it need not read.

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
#: The bytes that the cache takes for a file beside its hashes: the name, the array object, the entry.
_FILE_BYTES: Final = 400
#: A file that no cleaning has asked for in so many seconds may be dropped to make room, but no file earlier: where cleanings go through
#: more files than fit, each would be dropped just before it is needed again.
_IDLE_SECONDS: Final = 600.0


def hash_keys(keys: pl.Series) -> Hashes:
    """Return the hash of each key, in their order."""
    return keys.hash(_SEED).to_numpy()


@dataclass(slots=True, eq=False)
class KeyHashCache:
    """A cache of the sorted hashes of each file's keys, which several threads may use; the least recently used file comes first."""

    now: Callable[[], float] = time.monotonic
    #: By file: its hashes, and when a cleaning last asked for it.
    _files: OrderedDict[str, tuple[Hashes, float]] = field(default_factory=OrderedDict)
    _bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def lacks(self, file: str, wanted: Hashes) -> bool:
        """Tell whether the cache has a file, and none of the wanted keys is in it; `wanted` are sorted hashes."""
        with self._lock:
            if file not in self._files:
                return False
            hashes, _ = self._files.pop(file)
            self._files[file] = hashes, self.now()
        return not _have_common(hashes, wanted)

    def put(self, file: str, hashes: Hashes, *, max_bytes: int) -> None:
        """Add a file with the hashes of its keys, unless all files together would take more than `max_bytes`."""
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
        """Remove a file, if it is there."""
        with self._lock:
            self._drop(file)

    def _make_room(self, most_bytes: int) -> bool:
        """Remove idle files until the others take at most so many bytes; tell whether that was possible."""
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


#: The cache of all cleanings in this process.
KEY_HASHES: Final = KeyHashCache()
