"""What the log knows of its producers: rebuilt from the rows that carry one, then kept up with what is appended.

Only files that hold such a row are read (their statistics say so), and only narrow columns of them, row group by row group. A file that
cannot be read makes the states of its partition unknown, and of no other:

```
 partition 0   read up to its log end       its states are known
 partition 1   a file cannot be read        nothing of it is known; it is tried again after a while, and whenever somebody asks for it
```
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from lastword.compaction.errors import CorruptLog, first_line
from lastword.compaction.producers import ProducerSnapshot, ProducerState, drop_expired_producers, in_sight, merge_states
from lastword.compaction.rows.producer_summaries import SUMMARY_COLUMNS, summaries
from lastword.storage.delta.history import commits_since
from lastword.storage.files.data_reader import row_groups

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from deltalake import DeltaTable

    from lastword.storage.delta.snapshot import LogSnapshot

States = Mapping[tuple[int, int], ProducerState]
#: A marker goes in the second cleaning that comes by it, at the earliest.
_LEAST_CLEANINGS: Final = 2


class ProducerCache(Protocol):
    """Where a snapshot of the states is kept between processes; it may be lost or spoilt at any time."""

    def load(self) -> ProducerSnapshot | None:
        """Return what is kept, or None when there is nothing that can be trusted."""

    def save(self, snapshot: ProducerSnapshot) -> None:
        """Keep a snapshot."""


class NoProducerCache:
    """Keeps nothing: for readers."""

    def load(self) -> ProducerSnapshot | None:
        """Return None."""
        return None

    def save(self, snapshot: ProducerSnapshot) -> None:
        """Keep nothing."""


class ProducerLog:
    """The states of one log's producers, kept between calls and, through a cache, between processes; for one thread at a time."""

    def __init__(
        self,
        location: str,
        storage_options: Mapping[str, str],
        *,
        table: Callable[[], DeltaTable],
        partitions: Callable[[], int],
        cache: ProducerCache,
    ) -> None:
        """Read nothing yet. `table` returns the newest state of the Delta table at `location`, `partitions` how many the topic has."""
        self._location, self._options = location, storage_options
        self._table, self._partitions, self._cache = table, partitions, cache
        self._held: ProducerSnapshot | None = None
        #: The newest of which every partition could be read: from there a partition goes on that can be read again.
        self._whole: ProducerSnapshot | None = None
        self._unreadable: dict[int, Exception] = {}
        self._failed_at = -math.inf
        self._useless: set[ProducerState] = set()

    def states(self, at: LogSnapshot, of: Collection[int] | None = None) -> States:
        """Return the states of the partitions `of` (default: all) at a snapshot.

        Reads the rows with a producer that were appended since the last call; raises `CorruptLog` naming the file when one of a partition
        `of` cannot be read, and before that `OSError` for the disk, the network or the store.
        """
        states, unreadable = self._read(at, again=of)
        wanted = unreadable if of is None else unreadable.keys() & set(of)
        for partition in sorted(wanted, key=lambda partition: (isinstance(unreadable[partition], CorruptLog), partition)):
            raise unreadable[partition]
        return states if of is None else {place: state for place, state in states.items() if place[0] in of}

    def readable(self, at: LogSnapshot, *, again: bool, retry_seconds: float) -> tuple[States, dict[int, str]]:
        """Return the states at a snapshot, and by partition why those of the others cannot be read.

        One that could not be read is tried again after `retry_seconds`, at once with `again`.
        """
        is_due = again or time.monotonic() >= self._failed_at + retry_seconds
        states, unreadable = self._read(at, again=None if is_due else ())
        return states, {partition: first_line(error) for partition, error in unreadable.items()}

    def forget(self, log_start_offsets: Sequence[int], *, now_ms: int, expiration_ms: int) -> int:
        """Forget the states of expired producers (`drop_expired_producers`), and return how many.

        A state goes if it had expired at the last call, too: a clock that jumps and comes back between two calls removes none.
        """
        if self._held is None:
            return 0
        seen = replace(self._held, states=in_sight(self._held.states, log_start_offsets))
        kept = drop_expired_producers(seen, now_ms=now_ms, expiration_ms=expiration_ms).states
        useless = {state for place, state in self._held.states.items() if place not in kept}
        forgotten, self._useless = useless & self._useless, useless
        if forgotten:
            self._keep(replace(self._held, states={place: state for place, state in self._held.states.items() if state not in forgotten}))
        return len(forgotten)

    def _read(self, at: LogSnapshot, *, again: Collection[int] | None) -> tuple[States, Mapping[int, Exception]]:
        """Return the states that can be read, and by partition why the others cannot; those `again` (None: all) are tried in any case."""
        if self._held is None:
            self._held = self._whole = self._cache.load()
        retried = self._unreadable.keys() if again is None else self._unreadable.keys() & set(again)
        if self._held is not None and self._held.table_version == at.version and not retried:
            return self._held.states, self._unreadable
        partitions = self._partitions()
        if not has_producers(at, (0,) * partitions):
            return {}, {}
        self._held = self._follow(self._held)
        is_past = self._held is not None and self._held.table_version > at.version
        left_out = {partition: error for partition, error in self._unreadable.items() if partition not in retried}
        since = None if is_past else self._follow(self._whole) if retried else self._held
        only = [partition for partition in range(partitions) if partition not in left_out]
        producers, failed = read_states(self._location, self._options, at, partitions, since, only=only)
        if not is_past:
            self._unreadable = left_out | failed
            self._failed_at = time.monotonic() if failed else self._failed_at
            self._keep(producers)
        return producers.states, left_out | failed

    def _keep(self, snapshot: ProducerSnapshot) -> None:
        """Hold a snapshot; other processes get it if it is whole."""
        self._held = snapshot
        if not self._unreadable:
            self._whole = snapshot
            self._cache.save(snapshot)

    def _follow(self, known: ProducerSnapshot | None) -> ProducerSnapshot | None:
        """Return some states if what came after them is all in the rows past them, otherwise None.

        Not after a RESTORE. Nor where two cleanings may have removed a marker: the first gives it a horizon, a later one takes it away.
        """
        if known is None:
            return None
        table = self._table()
        commits = commits_since(table, known.table_version)
        if len(commits) < table.version() - known.table_version or any(commit.restored_version is not None for commit in commits):
            return None
        has_open = any(state.open_first_offset is not None for state in known.states.values())
        cleanings = sum(commit.metadata is not None and bool(commit.metadata.receipts) for commit in commits)
        return known if not has_open or cleanings < _LEAST_CLEANINGS else None


def read_states(
    location: str,
    storage_options: Mapping[str, str],
    snapshot: LogSnapshot,
    partitions: int,
    since: ProducerSnapshot | None = None,
    *,
    only: Collection[int] | None = None,
) -> tuple[ProducerSnapshot, dict[int, Exception]]:
    """Return the producers' states at `snapshot`, from all of the log or from `since` on, and by partition why the others are not known.

    A log that is shorter than `since` knew it (a RESTORE) is read from its beginning. Of a partition other than `only`, or of which a file
    cannot be read, nothing is returned: it reaches to offset 0.
    """
    ends = snapshot.log_end_offsets(partitions)
    if since is not None and (since.table_version > snapshot.version or any(map(int.__gt__, since.log_end_offsets, ends))):
        since = None
    states: dict[tuple[int, int], ProducerState] = {}
    reached, failed = [0] * partitions, dict[int, Exception]()
    for partition in range(partitions) if only is None else only:
        start = 0 if since is None else since.log_end_offsets[partition]
        new_states = {} if since is None else {place: state for place, state in since.states.items() if place[0] == partition}
        try:
            for new, ended in _stretches(location, storage_options, snapshot, partition, start):
                place = partition, new.producer_id
                new_states[place] = merge_states(new_states.get(place), new, ended=ended)
        except (CorruptLog, OSError) as error:
            failed[partition] = error.with_traceback(None)
        else:
            states |= new_states
            reached[partition] = ends[partition]
    return ProducerSnapshot(table_version=snapshot.version, log_end_offsets=tuple(reached), states=states), failed


def _stretches(
    location: str, storage_options: Mapping[str, str], snapshot: LogSnapshot, partition: int, start: int
) -> Iterator[tuple[ProducerState, bool]]:
    """Yield what each row group of a partition that may hold rows of producers past `start` shows of each producer, in offset order.

    By offset, as a swap may give such rows an older slice.
    """
    files = snapshot.files
    mine = np.flatnonzero((files.partition == partition) & (files.producer_rows > 0) & (files.last_offset >= start))
    for path in files.path[mine[np.argsort(files.first_offset[mine], kind="stable")]]:
        for group in row_groups(location, storage_options, path, SUMMARY_COLUMNS):
            rows = group.read()
            yield from summaries(rows.slice(int(np.searchsorted(rows.column("offset").to_numpy(), start))), partition)


def has_producers(snapshot: LogSnapshot, starts: Sequence[int]) -> bool:
    """Tell from the statistics whether a row at or past `starts` may carry a producer."""
    files = snapshot.files
    if not len(files.partition):
        return False
    from_here = [starts[partition] for partition in files.partition]
    return bool(((files.producer_rows > 0) & (files.last_offset >= from_here)).any())


def states_of(producer_id: int, states: Mapping[tuple[int, int], ProducerState]) -> dict[int, ProducerState]:
    """Return the states of one producer by partition."""
    return {partition: state for (partition, producer), state in states.items() if producer == producer_id}
