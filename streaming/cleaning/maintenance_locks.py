"""The lock of each topic for maintenance in this process: cleaning, retention, merging, purging. Shared by all handles of all log.dirs.

```
 handle A   round of cleaning: hold ──────────────►
 handle B            purge: reserve ─── waits ─────►│ sweeps files │     what A writes is committed before B looks for orphans
 handle C                  retention: hold ✗                          refused while another thread holds or reserves the topic
```

Two maintenance commits of a topic exclude each other, whichever their partitions, so one lock a topic is enough. A path names a topic,
whichever handle opened it. Processes share no lock: between them every commit is a compare-and-set, a long round claims its topic in the
ledger (`lastword.streaming.cleaning.claims`), and a purge deletes only files that are old enough.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from lastword.compaction.errors import CommitConflict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lastword.storage.log.topic_log import TopicLog

#: How long the work of another thread on a topic is waited for.
_MAX_WAIT_SECONDS: Final = 600.0
_POLL_SECONDS: Final = 0.05


class MaintenanceLocks:
    """The topics that a thread maintains, or has reserved, by their folders."""

    def __init__(self, *, max_wait_seconds: float = _MAX_WAIT_SECONDS) -> None:
        """Begin with every topic idle; `wait` waits for `max_wait_seconds` at the most."""
        self._max_wait_seconds = max_wait_seconds
        self._held: set[str] = set()
        self._reserved: set[str] = set()
        self._awaited: Counter[str] = Counter()
        self._lock = threading.Lock()

    def is_held(self, log: TopicLog) -> bool:
        """Tell whether a thread maintains a topic, or has reserved it."""
        with self._lock:
            return log.paths.place in self._held | self._reserved

    def is_awaited(self, log: TopicLog) -> bool:
        """Return True while a thread waits for a topic. The round that works on it then ignores `log.cleaner.io.max.bytes.per.second`."""
        with self._lock:
            return self._awaited[log.paths.place] > 0

    @contextmanager
    def hold(self, log: TopicLog) -> Iterator[None]:
        """Maintain a topic; raise `CommitConflict` if another thread does, or has reserved it."""
        place = log.paths.place
        with self._lock:
            if place in self._held | self._reserved:
                message = f"topic {log.name}: another thread works on it"
                raise CommitConflict(message)
            self._held.add(place)
        try:
            yield
        finally:
            with self._lock:
                self._held.discard(place)

    def wait(self, log: TopicLog) -> None:
        """Wait until no thread maintains a topic; raise `CommitConflict` when that takes too long."""
        end, place = time.monotonic() + self._max_wait_seconds, log.paths.place
        with self._lock:
            self._awaited[place] += 1
        try:
            while True:
                with self._lock:
                    if place not in self._held:
                        return
                if time.monotonic() >= end:
                    message = f"topic {log.name}: another thread works on it"
                    raise CommitConflict(message)
                time.sleep(_POLL_SECONDS)
        finally:
            with self._lock:
                self._awaited[place] -= 1

    @contextmanager
    def reserve(self, log: TopicLog) -> Iterator[None]:
        """Keep other threads from starting maintenance of a topic until the block ends; first wait for the one at work.

        Raises `CommitConflict` at once if another thread has reserved the topic, or after the wait as `wait` does.
        """
        place = log.paths.place
        with self._lock:
            if place in self._reserved:
                message = f"topic {log.name}: another thread has reserved it"
                raise CommitConflict(message)
            self._reserved.add(place)
        try:
            self.wait(log)
            yield
        finally:
            with self._lock:
                self._reserved.discard(place)


#: Those of this process.
MAINTENANCE_LOCKS: Final = MaintenanceLocks()
