"""What a reader without a JVM sees of a log: one table version, its decisions, and which transactions are decided.

```
 offset     0 … start … first dirty … last stable … log end
 producer files                       p1 p1 C1 p2 p2 q A2      file by file: {data: 1, 2} {COMMIT: 1} {ABORT: 2}
 open       has data, no marker       last stable offset = the lowest first offset of an open transaction, or the log end
 aborted    has an ABORT marker       its data is not there for read_committed
```

Inside a partition the first offset of a transaction names it, as only one row stands there. A marker stands behind the data of its
transaction and stays as long as a data row is left (docs/semantics.md#A.12), and cleaning never passes an open transaction; so only files
that reach past the cleaner checkpoint and hold rows of producers are looked at, and of them two columns. A topic without producers pays
nothing.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.exceptions import TableNotFoundError

from lastword.compaction.errors import UnknownTopic
from lastword.compaction.log.restores import Restore
from lastword.compaction.producers import Control
from lastword.compaction.read_positions import Extent, Position
from lastword.storage.delta.history import check_commits, commits_since
from lastword.storage.delta.snapshot import Files, has_sequences
from lastword.storage.delta.tables import open_table, refresh_table
from lastword.storage.files.data_reader import named_errors
from lastword.storage.files.locations import location_of
from lastword.storage.files.paths import TopicPaths, filesystem_of
from lastword.storage.ledger.ledger import Ledger
from lastword.storage.reading.view import check_isolation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, MutableMapping, Sequence
    from pathlib import Path

    from deltalake import DeltaTable
    from numpy.typing import NDArray
    from pyarrow import fs

    from lastword.storage.ledger.decisions import Decisions
    from lastword.storage.log.topic_log import TopicLog
    from lastword.storage.reading.view import View

    Longs = NDArray[np.int64]

#: How many files are read at once.
THREADS: Final = max(2, pa.cpu_count())
#: No offsets.
NOTHING: Final = np.array([], dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTransactions:
    """First offsets of the transactions that a file knows of: those with data, those that it commits, those that it aborts.

    `last_data[n]` is the offset of the last record in the file of transaction `data[n]`.
    """

    data: Longs
    last_data: Longs
    committed: Longs
    aborted: Longs


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrowView:
    """What a reader of `isolation` sees at one table version: offsets `start[p]` to `end[p]` (exclusive) of each partition p.

    Below `first_dirty[p]` a key has at most one data record, and no data of an aborted transaction is left. `aborted[p]` are the first
    offsets of the aborted transactions of p, ascending; empty for read_uncommitted.
    """

    topic: str
    topic_id: str
    location: str
    storage_options: Mapping[str, str]
    version: int
    isolation: str
    files: Files
    start: tuple[int, ...]
    first_dirty: tuple[int, ...]
    stable: tuple[int, ...]
    log_end: tuple[int, ...]
    aborted: tuple[Longs, ...]
    #: Whether every data file has the column source_sequence; in a topic of an older version some may have none.
    has_sequences: bool = True

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return len(self.start)

    @property
    def end(self) -> tuple[int, ...]:
        """Where the reader's log ends: the last stable offsets, or the log ends."""
        return self.stable if self.isolation == "read_committed" else self.log_end

    @property
    def position(self) -> Position:
        """Where a reader goes on that knows all that is seen here."""
        return Position(offsets=self.end, table_version=self.version, since_version=self.version, topic_id=self.topic_id)

    @property
    def extent(self) -> Extent:
        """The log as a reader finds it; it reaches to the log end offsets, whatever is seen."""
        return Extent(topic_id=self.topic_id, table_version=self.version, log_start_offsets=self.start, log_end_offsets=self.log_end)

    def is_dirty(self, partition: int, offset: int) -> bool:
        """Tell whether an offset lies in the dirty section."""
        return offset >= self.first_dirty[partition]

    def chosen(self, begin: Sequence[int], end: Sequence[int], partitions: Iterable[int] | None = None) -> Longs:
        """Return the numbers of the files that may hold an offset from `begin` to `end` (exclusive), in order of partition and offset.

        A partition where nothing lies between the two has none, not even the file that both of them fall into.
        """
        files = self.files
        partition = files.partition
        first, last = np.asarray(begin, dtype=np.int64)[partition], np.asarray(end, dtype=np.int64)[partition]
        wanted = (first < last) & (files.last_offset >= first) & (files.first_offset < last)
        if partitions is not None:
            wanted &= np.isin(partition, list(partitions))
        return np.flatnonzero(wanted)


def arrow_view(log: TopicLog, view: View) -> ArrowView:
    """Return a view, of any table version, as Arrow reads by it."""
    files, aborted = view.snapshot.files, [NOTHING] * view.partitions
    if view.isolation == "read_committed":
        undecided = np.flatnonzero(
            (files.producer_rows > 0) & (files.last_offset >= np.asarray(view.first_dirty, dtype=np.int64)[files.partition])
        )
        found = file_transactions(filesystem_of(log.paths.log, log.storage_options), [str(path) for path in files.path[undecided]], {})
        for partition in range(view.partitions):
            aborted[partition] = _union([one.aborted for one, at in zip(found, undecided, strict=True) if files.partition[at] == partition])
    return ArrowView(
        topic=log.name,
        topic_id=view.topic_id,
        location=log.paths.log,
        storage_options=log.storage_options,
        version=view.snapshot.version,
        isolation=view.isolation,
        files=files,
        start=view.start,
        first_dirty=view.first_dirty,
        stable=view.end,
        log_end=tuple(view.extent.log_end_offsets),
        aborted=tuple(aborted),
        has_sequences=view.snapshot.has_sequences,
    )


class ArrowLog:
    """A topic's log without a JVM: asked for a view again and again, it reads only what is new."""

    def __init__(self, path: str | Path, storage_options: Mapping[str, str] | None = None, ledger: Ledger | None = None) -> None:
        """Take the folder of a topic, `<log.dir>/<topic>`, as a path or URI, and its ledger if it is open already; nothing is read yet."""
        self.paths = TopicPaths(location_of(str(path)))
        self.topic = self.paths.root.rsplit("/", 1)[-1]
        self.storage_options = dict(storage_options or {})
        self.ledger = Ledger(self.paths.ledger, self.topic, self.storage_options) if ledger is None else ledger
        self._lock = threading.Lock()
        self._table: DeltaTable | None = None
        self._files: tuple[int, Files] | None = None
        self._known: dict[str, FileTransactions] = {}
        self._restores: dict[int, Restore] = {}
        self._looked_at = -1
        self._topic_id = ""

    @cached_property
    def filesystem(self) -> fs.FileSystem:
        """The folder of the log table as a file system."""
        return filesystem_of(self.paths.log, self.storage_options)

    def table(self) -> DeltaTable:
        """Return the log table at its newest version; raise `UnknownTopic` when there is none."""
        try:
            if self._table is None:
                self._table = open_table(self.paths.log, self.storage_options)
            else:
                refresh_table(self._table)
        except TableNotFoundError as error:
            message = f"topic {self.topic} does not exist (no log at {self.paths.log}): give the folder <log.dir>/<topic>"
            raise UnknownTopic(message) from error
        return self._table

    def view(self, isolation: str) -> ArrowView:
        """Return what a reader of `isolation` sees now; raise `UserError` for another isolation than `ISOLATIONS`."""
        check_isolation(isolation)
        with self._lock:  # a topic may be read by several threads
            return self._newest_view(isolation)

    def _newest_view(self, isolation: str) -> ArrowView:
        decisions = self.ledger.read()
        if decisions.topic_id != self._topic_id:  # another topic has the name now: nothing that is known holds
            self._table, self._files, self._known, self._restores, self._looked_at = None, None, {}, {}, -1
            self._topic_id = decisions.topic_id
        table = self.table()
        files, partitions = self._read(table), decisions.partitions
        ends = np.zeros(partitions, dtype=np.int64)
        np.maximum.at(ends, files.partition, files.last_offset + 1)
        decisions = self._without_restored(table, decisions)
        start = decisions.log_start_offsets()
        checkpoints = [decisions.cleaner_checkpoint(one, as_of_version=table.version()) or 0 for one in range(partitions)]
        stable, aborted = ends, [NOTHING] * partitions
        if isolation == "read_committed" and (files.producer_rows > 0).any():
            stable, aborted = self._transactions(files, checkpoints, start, ends)
        return ArrowView(
            topic=self.topic,
            topic_id=decisions.topic_id,
            location=self.paths.log,
            storage_options=self.storage_options,
            version=table.version(),
            isolation=isolation,
            files=files,
            start=tuple(start),
            first_dirty=tuple(max(pair) for pair in zip(start, checkpoints, strict=True)),
            stable=tuple(stable.tolist()),
            log_end=tuple(ends.tolist()),
            aborted=tuple(aborted),
            has_sequences=has_sequences(table),
        )

    def _read(self, table: DeltaTable) -> Files:
        if self._files is None or self._files[0] != table.version():
            check_commits(table, None if self._files is None else self._files[0])
            self._files = table.version(), Files.of(table)
        return self._files[1]

    def _without_restored(self, table: DeltaTable, decisions: Decisions) -> Decisions:
        """Return the decisions without those that a RESTORE made void which the ledger does not know of yet."""
        if not decisions.cleanings and not decisions.starts:
            return decisions
        seen = max(self._looked_at, decisions.looked_at_version)
        for commit in commits_since(table, seen):
            if commit.restored_version is not None:
                self._restores[commit.version] = Restore(version=commit.version, restored_version=commit.restored_version)
        self._looked_at = max(seen, table.version())
        return replace(decisions, restores=(*decisions.restores, *self._restores.values()))

    def _transactions(self, files: Files, checkpoints: Sequence[int], start: Sequence[int], ends: Longs) -> tuple[Longs, list[Longs]]:
        """Return the last stable offset and the aborted transactions of every partition.

        A transaction without a record at or past the log start holds nothing back (`lastword.compaction.producers.in_sight`).
        """
        undecided = np.flatnonzero(
            (files.producer_rows > 0) & (files.last_offset >= np.asarray(checkpoints, dtype=np.int64)[files.partition])
        )
        paths = [str(path) for path in files.path[undecided]]
        found = file_transactions(self.filesystem, paths, self._known)
        self._known = dict(zip(paths, found, strict=True))
        stable, aborted = ends.copy(), []
        for partition in range(len(ends)):
            mine = [one for one, number in zip(found, undecided, strict=True) if files.partition[number] == partition]
            ended = [*(one.committed for one in mine), *(one.aborted for one in mine)]
            in_sight = [one.data[one.last_data >= start[partition]] for one in mine]
            still_open = np.setdiff1d(_union(in_sight), _union(ended))
            if len(still_open):
                stable[partition] = max(still_open[0], start[partition])
            aborted.append(_union([one.aborted for one in mine]))
        return stable, aborted


def file_transactions(
    filesystem: fs.FileSystem, paths: Sequence[str], known: MutableMapping[str, FileTransactions]
) -> list[FileTransactions]:
    """Return what files know of transactions, in their order; those in `known` are not read again."""

    def read(path: str) -> FileTransactions:
        with named_errors(path, may_be_gone=True), pq.ParquetFile(path, filesystem=filesystem) as file:
            table = file.read(columns=["control", "offset", "txn_first_offset"], use_threads=False)
        control, first = table.column("control"), table.column("txn_first_offset")
        records = table.filter(pc.and_(pc.is_null(control), pc.is_valid(first)))
        data = records.group_by("txn_first_offset").aggregate([("offset", "max")])

        def firsts(mask: pa.ChunkedArray) -> Longs:
            offsets: Longs = first.filter(mask).drop_null().to_numpy()
            return np.unique(offsets)

        return FileTransactions(
            data=data.column("txn_first_offset").to_numpy(),
            last_data=data.column("offset_max").to_numpy(),
            committed=firsts(pc.equal(control, Control.COMMIT.value)),
            aborted=firsts(pc.equal(control, Control.ABORT.value)),
        )

    unknown = [path for path in paths if path not in known]
    with ThreadPoolExecutor(THREADS) as pool:
        fresh = dict(zip(unknown, pool.map(read, unknown), strict=True))
    return [known[path] if path in known else fresh[path] for path in paths]


def _union(arrays: Sequence[Longs]) -> Longs:
    return np.unique(np.concatenate(arrays)) if arrays else NOTHING
