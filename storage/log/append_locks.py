"""The locks that let the appenders of one process append to a topic one at a time.

Two that work side by side would only conflict, and one of them work for nothing. Commits are compare-and-set, so that
offsets are right without these locks, as between the appenders of several processes.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator


class AppendLocks:
    """A lock for each log, by the place of its topic."""

    def __init__(self) -> None:
        """Begin without a lock."""
        self._locks: dict[str, threading.RLock] = {}
        self._guard = threading.Lock()

    @contextmanager
    def hold(self, place: str) -> Iterator[None]:
        """Hold the lock of the topic at a place; the thread that holds it already takes it again."""
        with self._guard:
            lock = self._locks.setdefault(place, threading.RLock())
        with lock:
            yield


#: The locks of this process.
APPEND_LOCKS: Final = AppendLocks()
