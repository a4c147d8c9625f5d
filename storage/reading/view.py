"""What a reader of an isolation level sees of a log at one table version, from metadata and, for the last stable offset, narrow columns.

```
 offset        0 … start … first dirty … end …                   end = last stable offset (read_committed) or log end
 section         gone    │ clean       │ dirty  │ not yet seen
 rows of a key           │ at most one │ any    │
```

DataFrames (`lastword.streaming.reading.dataframes`) are read by it, and so are old table versions as Arrow. The newest version as Arrow is
read by an `ArrowLog` (`lastword.storage.reading.arrow_view`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from lastword.compaction.errors import UserError
from lastword.compaction.read_positions import Extent, Position

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from lastword.storage.delta.snapshot import LogSnapshot
    from lastword.storage.log.topic_log import TopicLog

#: Kafka's isolation.level.
ISOLATIONS: Final = ("read_committed", "read_uncommitted")
#: Spark's parse modes: a value that does not fit its column ends the read, or is null.
DECODE_MODES: Final = ("FAILFAST", "PERMISSIVE")
#: The columns of a last word.
LATEST_COLUMNS: Final = ("partition", "key", "value", "headers", "timestamp", "offset")
#: The columns of a change. `change_type` is insert, update_before, update_after or delete; a delete carries the value from before.
CHANGE_COLUMNS: Final = (*LATEST_COLUMNS, "change_type")


def check_isolation(isolation: str) -> None:
    """Raise `UserError` for another isolation than `ISOLATIONS`."""
    if isolation not in ISOLATIONS:
        message = f"isolation {isolation!r}: allowed is {' or '.join(ISOLATIONS)}"
        raise UserError(message)


def misfit_policy(mode: str) -> Literal["error", "null"]:
    """Return what becomes of a value that does not fit its column; raise `UserError` for another mode than `DECODE_MODES`."""
    if mode not in DECODE_MODES:
        message = f"mode = {mode!r}: allowed is {' or '.join(DECODE_MODES)}"
        raise UserError(message)
    return "error" if mode == "FAILFAST" else "null"


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a reader of `isolation` sees of the log at a snapshot: offsets `start[p]` to `end[p]` (exclusive) of each partition p.

    Nothing below the log start offset, at any version: deleted records never come back. Below `first_dirty[p]` a key has at most one data
    record, and no data of an aborted transaction is left.
    """

    topic_id: str
    snapshot: LogSnapshot
    isolation: str
    start: tuple[int, ...]
    first_dirty: tuple[int, ...]
    end: tuple[int, ...]

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return len(self.start)

    @property
    def position(self) -> Position:
        """Where a reader goes on that knows all that is seen here."""
        version = self.snapshot.version
        return Position(offsets=self.end, table_version=version, since_version=version, topic_id=self.topic_id)

    @property
    def extent(self) -> Extent:
        """The log as a reader finds it; it reaches to the log end offsets, whatever is seen."""
        ends = self.snapshot.log_end_offsets(self.partitions)
        return Extent(topic_id=self.topic_id, table_version=self.snapshot.version, log_start_offsets=self.start, log_end_offsets=ends)

    def records(self, begin: Sequence[int]) -> int:
        """Return how many rows the files that reach past `begin` hold: at least as many as are seen from there on."""
        return int(self.snapshot.files.record_count[self._reached(begin)].sum())

    def file_count(self, begin: Sequence[int]) -> int:
        """Return how many files hold what is seen from `begin` on."""
        return int(self._reached(begin).sum())

    def _reached(self, begin: Sequence[int]) -> NDArray[np.bool_]:
        files = self.snapshot.files
        reached: NDArray[np.bool_] = files.last_offset >= _of(begin, files.partition)
        return reached & (files.first_offset < _of(self.end, files.partition))

    def first_slices(self, begin: Sequence[int]) -> list[int]:
        """Return for each partition the first slice that may hold an offset from `begin` on."""
        files = self.snapshot.files
        found = np.full(self.partitions, np.iinfo(np.int64).max)
        reached = files.last_offset >= _of(begin, files.partition)
        np.minimum.at(found, files.partition[reached], files.slice[reached])
        return [int(one) for one in found]


def _of(values: Sequence[int], partition: NDArray[np.int64]) -> NDArray[np.int64]:
    chosen: NDArray[np.int64] = np.asarray(values, dtype=np.int64)[partition]
    return chosen


def view_of(log: TopicLog, snapshot: LogSnapshot, isolation: str) -> View:
    """Return what a reader of `isolation` sees at a snapshot; raise `UserError` for another isolation than `ISOLATIONS`."""
    check_isolation(isolation)
    decisions = log.decisions_seen(snapshot)
    ends = snapshot.log_end_offsets(decisions.partitions)
    if isolation == "read_committed":
        ends = log.last_stable_offsets(snapshot, decisions)
    start = decisions.log_start_offsets()
    checkpoints = [decisions.cleaner_checkpoint(one, as_of_version=snapshot.version) or 0 for one in range(decisions.partitions)]
    dirty = [max(*bounds) for bounds in zip(start, checkpoints, strict=True)]
    return View(
        topic_id=decisions.topic_id, snapshot=snapshot, isolation=isolation, start=tuple(start), first_dirty=tuple(dirty), end=tuple(ends)
    )
