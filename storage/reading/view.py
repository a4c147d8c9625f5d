"""What a reader of an isolation level sees of a log at one table version, from metadata and, for the last stable offset, narrow columns.

```
 offset        0 … start … first dirty … end …                   end = last stable offset (read_committed) or log end
 section         gone    │ clean       │ dirty  │ not yet seen
 rows of a key           │ at most one │ any    │
```

DataFrames (`lastword.streaming.reading.dataframes`) and Arrow tables (`arrow_rows`, `arrow_frames`) are read by it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
from deltalake.exceptions import TableNotFoundError

from lastword.compaction.errors import UnknownTopic, UserError
from lastword.compaction.read_positions import Extent, Position
from lastword.storage.log.aborted import NOTHING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from lastword.storage.delta.snapshot import Files
    from lastword.storage.log.topic_log import LogState, TopicLog

#: Kafka's isolation.level.
ISOLATIONS: Final = ("read_committed", "read_uncommitted")
#: Spark's parse modes: a value that does not fit its column ends the read, or is null.
DECODE_MODES: Final = ("FAILFAST", "PERMISSIVE")
#: The columns of a last word.
LATEST_COLUMNS: Final = ("partition", "key", "value", "headers", "timestamp", "offset")
#: The columns of a change. `change_type` is insert, update_before, update_after or delete; a delete carries the value from before.
CHANGE_COLUMNS: Final = (*LATEST_COLUMNS, "change_type")


def check_isolation(isolation: str) -> str:
    """Return an isolation; raise `UserError` for another one than `ISOLATIONS`."""
    if isolation not in ISOLATIONS:
        message = f"isolation {isolation!r}: allowed is {' or '.join(ISOLATIONS)}"
        raise UserError(message)
    return isolation


def misfit_policy(mode: str) -> Literal["error", "null"]:
    """Return what becomes of a value that does not fit its column; raise `UserError` for another mode than `DECODE_MODES`."""
    if mode not in DECODE_MODES:
        message = f"mode = {mode!r}: allowed is {' or '.join(DECODE_MODES)}"
        raise UserError(message)
    return "error" if mode == "FAILFAST" else "null"


@dataclass(frozen=True, eq=False)
class View:
    """What a reader of `isolation` sees of a log: offsets `start[p]` to `end[p]` (exclusive) of each partition p.

    Nothing below the log start offset, at any version: deleted records never come back. Below `first_dirty[p]` a key has at most one data
    record, and no data of an aborted transaction is left.
    """

    state: LogState
    isolation: str
    end: tuple[int, ...]

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.state.log.name

    @property
    def topic_id(self) -> str:
        """The id that no other topic has had."""
        return self.state.decisions.topic_id

    @property
    def location(self) -> str:
        """The folder of the log table."""
        return self.state.log.paths.log

    @property
    def storage_options(self) -> Mapping[str, str]:
        """What delta-rs needs to reach the object store."""
        return self.state.log.storage_options

    @property
    def version(self) -> int:
        """The table version."""
        return self.state.version

    @property
    def files(self) -> Files:
        """The data files."""
        return self.state.files

    @property
    def has_sequences(self) -> bool:
        """Whether every data file has the column source_sequence; in a topic of an older version some may have none."""
        return self.state.snapshot.has_sequences

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return self.state.partitions

    @property
    def start(self) -> tuple[int, ...]:
        """The log start offsets."""
        return self.state.log_start_offsets

    @property
    def first_dirty(self) -> tuple[int, ...]:
        """Where the dirty section of each partition begins."""
        return self.state.first_dirty_offsets

    @property
    def aborted(self) -> tuple[NDArray[np.int64], ...]:
        """First offsets of the aborted transactions that are not shown, by partition, ascending; none for read_uncommitted."""
        return self.state.aborted_transactions if self.isolation == "read_committed" else (NOTHING,) * self.partitions

    @property
    def position(self) -> Position:
        """Where a reader goes on that knows all that is seen here."""
        return Position(offsets=self.end, table_version=self.version, since_version=self.version, topic_id=self.topic_id)

    @property
    def extent(self) -> Extent:
        """The log as a reader finds it; it reaches to the log end offsets, whatever is seen."""
        ends = self.state.log_end_offsets
        return Extent(topic_id=self.topic_id, table_version=self.version, log_start_offsets=self.start, log_end_offsets=ends)

    def is_dirty(self, partition: int, offset: int) -> bool:
        """Tell whether an offset lies in the dirty section."""
        return offset >= self.first_dirty[partition]

    def chosen(self, begin: Sequence[int], end: Sequence[int], partitions: Iterable[int] | None = None) -> NDArray[np.int64]:
        """Return the numbers of the files that may hold an offset from `begin` to `end` (exclusive), in order of partition and offset.

        A partition where nothing lies between the two has none, not even the file that both of them fall into.
        """
        files = self.files
        first, last = _of(begin, files.partition), _of(end, files.partition)
        wanted = (first < last) & (files.last_offset >= first) & (files.first_offset < last)
        if partitions is not None:
            wanted &= np.isin(files.partition, list(partitions))
        return np.flatnonzero(wanted)

    def records(self, begin: Sequence[int]) -> int:
        """Return how many rows the files that reach past `begin` hold: at least as many as are seen from there on."""
        return int(self.files.record_count[self._files_between(begin)].sum())

    def file_count(self, begin: Sequence[int]) -> int:
        """Return how many files hold what is seen from `begin` on."""
        return int(self._files_between(begin).sum())

    def _files_between(self, begin: Sequence[int]) -> NDArray[np.bool_]:
        files = self.files
        reached: NDArray[np.bool_] = files.last_offset >= _of(begin, files.partition)
        return reached & (files.first_offset < _of(self.end, files.partition))

    def first_slices(self, begin: Sequence[int]) -> list[int]:
        """Return for each partition the first slice that may hold an offset from `begin` on."""
        files = self.files
        slices = np.full(self.partitions, np.iinfo(np.int64).max)
        reached = files.last_offset >= _of(begin, files.partition)
        np.minimum.at(slices, files.partition[reached], files.slice[reached])
        return [int(number) for number in slices]


def _of(values: Sequence[int], partition: NDArray[np.int64]) -> NDArray[np.int64]:
    chosen: NDArray[np.int64] = np.asarray(values, dtype=np.int64)[partition]
    return chosen


def view_of(state: LogState, isolation: str) -> View:
    """Return what a reader of `isolation` sees of a log; raise `UserError` for another isolation than `ISOLATIONS`."""
    check_isolation(isolation)
    return View(state, isolation, state.last_stable_offsets() if isolation == "read_committed" else state.log_end_offsets)


def newest_view(log: TopicLog, isolation: str) -> View:
    """Return what a reader of `isolation` sees now; raise `UnknownTopic` where the log is not there, and what `view_of` raises."""
    check_isolation(isolation)
    try:
        return view_of(log.at(), isolation)
    except TableNotFoundError as error:
        message = f"topic {log.name} does not exist (no log at {log.paths.log}): give the folder <log.dir>/<topic>"
        raise UnknownTopic(message) from error
