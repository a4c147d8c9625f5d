"""Who works on which partition in this process: one `PartitionLocks` for all handles of all log.dirs.

```
 handle A   round on fruit/0, fruit/1 ──────────►
 handle B            purge of fruit: kept_away ─── waits ──►│ sweeps files │     what A writes is committed before B looks for orphans
```

A path names a topic, whichever handle opened it. Processes share no lock: between them every commit is a compare-and-set, a long round
claims its topic in the ledger (`lastword.streaming.cleaning.claims`), and a purge deletes only files that are old enough.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeAlias

from lastword.compaction.errors import CommitConflict
from lastword.compaction.planning.planner import Obstacle

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from lastword.storage.log.topic_log import TopicLog

#: A topic's folder and a partition.
Place: TypeAlias = "tuple[str, int]"
#: How long the work of another thread on a topic is waited for.
_MAX_WAIT_SECONDS: Final = 600.0
_POLL_SECONDS: Final = 0.05


class PartitionLocks:
    """The states of the partitions that are not idle; shared by the threads of a process."""

    def __init__(self, *, max_wait_seconds: float = _MAX_WAIT_SECONDS) -> None:
        """Begin with every partition idle; `wait_idle` waits for `max_wait_seconds` at the most."""
        self._max_wait_seconds = max_wait_seconds
        self._in_progress: set[Place] = set()
        self._kept_away: set[str] = set()
        self._awaited: Counter[str] = Counter()
        self._lock = threading.Lock()

    def obstacle(self, log: TopicLog, partition: int) -> Obstacle | None:
        """Return what keeps a partition from being cleaned or shortened; None when nothing does."""
        with self._lock:
            return self._obstacle(log.paths.place, partition)

    def _obstacle(self, root: str, partition: int) -> Obstacle | None:
        if root in self._kept_away or (root, partition) in self._in_progress:
            return Obstacle.IN_PROGRESS
        return None

    @contextmanager
    def in_progress(self, log: TopicLog, partitions: Sequence[int]) -> Iterator[None]:
        """Work on partitions of a topic; `CommitConflict` when another thread does."""
        root = log.paths.place
        begun = {(root, partition) for partition in partitions}
        with self._lock:
            busy = [one for one in partitions if self._obstacle(root, one) is Obstacle.IN_PROGRESS]
            if busy:
                message = f"topic {log.name}: another thread works on partitions {busy}"
                raise CommitConflict(message)
            self._in_progress |= begun
        try:
            yield
        finally:
            with self._lock:
                self._in_progress -= begun

    def works_on(self, log: TopicLog) -> bool:
        """Tell whether somebody works on a topic."""
        with self._lock:
            return bool(self._busy(log))

    def _busy(self, log: TopicLog) -> set[int]:
        return {partition for root, partition in self._in_progress if root == log.paths.place}

    def is_awaited(self, log: TopicLog) -> bool:
        """Tell whether somebody waits until a topic is idle."""
        with self._lock:
            return self._awaited[log.paths.place] > 0

    def wait_idle(self, log: TopicLog, partitions: Collection[int] | None = None) -> None:
        """Wait until no other thread works on a topic, or on some of its partitions; `CommitConflict` when that takes too long.

        What works there keeps to no limit of bytes a second meanwhile.
        """
        end = time.monotonic() + self._max_wait_seconds
        with self._lock:
            self._awaited[log.paths.place] += 1
        try:
            while True:
                with self._lock:
                    busy = self._busy(log)
                if not (busy if partitions is None else busy & set(partitions)):
                    return
                if time.monotonic() >= end:
                    message = f"topic {log.name}: another thread works on partitions {sorted(busy)}"
                    raise CommitConflict(message)
                time.sleep(_POLL_SECONDS)
        finally:
            with self._lock:
                self._awaited[log.paths.place] -= 1

    @contextmanager
    def kept_away(self, log: TopicLog) -> Iterator[None]:
        """Let nobody clean, retain or merge in a topic, after what is being done there; errors as `wait_idle`."""
        with self._lock:
            if log.paths.place in self._kept_away:
                message = f"topic {log.name}: the cleaner is kept away already"
                raise CommitConflict(message)
            self._kept_away.add(log.paths.place)
        try:
            self.wait_idle(log)
            yield
        finally:
            with self._lock:
                self._kept_away.discard(log.paths.place)


#: Those of this process.
PARTITION_LOCKS: Final = PartitionLocks()
