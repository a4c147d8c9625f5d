"""The log of one topic, read from the Delta log and the ledger without a Spark job, and the way in for appends.

```
 TopicLog.at()             snapshot of the newest version ─┐
 TopicLog.at(version)      snapshot of an old one ─────────┼─► LogState: files, log start and end, first dirty offset;
                           decisions of the ledger,        │             when asked: producers, last stable offsets, aborted transactions
                           and what the history adds ──────┘
```

Invariants: offsets of a partition ascend and are never given twice; an append writes slices of its own and never into one that exists;
a micro-batch that was committed is recognised by its query's id and its number and not written again.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final, TypeVar

from deltalake.exceptions import DeltaError
from pyarrow import fs

from lastword.compaction.config.topic_config import TopicConfig, parse_topic_config
from lastword.compaction.errors import CommitConflict, CorruptLog, UserError
from lastword.compaction.moments import instant
from lastword.compaction.planning.receipt import CleaningReceipt
from lastword.compaction.producers import OpenTransaction, in_sight, last_stable_offsets, open_transactions, unexpired_producers
from lastword.compaction.rows.numbering import Compression
from lastword.storage.delta.commit import commit_files, retry_on_conflict
from lastword.storage.delta.following import follow
from lastword.storage.delta.footers import read_compression
from lastword.storage.delta.history import commits_since
from lastword.storage.delta.snapshot import LogSnapshot
from lastword.storage.delta.tables import open_table, refresh_table, txn_version, write_checkpoint
from lastword.storage.files.data_files import delete_files
from lastword.storage.files.locations import location_of
from lastword.storage.files.paths import TopicPaths, filesystem_of
from lastword.storage.ledger.decisions import Decision, Decisions, Kind
from lastword.storage.ledger.ledger import Ledger
from lastword.storage.log.aborted import AbortedTransactions
from lastword.storage.log.append_locks import APPEND_LOCKS
from lastword.storage.log.limits import LOG_LIMITS
from lastword.storage.log.partition_logs import partition_logs
from lastword.storage.log.producer_states import NoProducerCache, ProducerLog
from lastword.storage.log.reader_positions import ReaderPositions
from lastword.storage.log.unrecorded import UnrecordedDecisions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    import numpy as np
    from deltalake import DeltaTable
    from numpy.typing import NDArray

    from lastword.compaction.planning.bounds import PartitionLog
    from lastword.compaction.readers import Reader
    from lastword.storage.delta.history import CommitMetadata
    from lastword.storage.delta.snapshot import Files
    from lastword.storage.files.data_files import DataFile
    from lastword.storage.log.aborted import Longs
    from lastword.storage.log.append_locks import AppendLocks
    from lastword.storage.log.producer_states import ProducerCache, States
    from lastword.storage.log.reader_history import HistoryWatch, ReaderHistory

T = TypeVar("T")
#: How often an append is planned again when its plan is outdated, such as by a newer instance of its transactional.id.
_REPLANS: Final = 50
#: How often an append is tried again because another commit came first. On an object store no lock keeps processes apart, and each attempt
#: writes the files again: beside three appenders that never pause, about one attempt in eight succeeds.
_CONFLICTS: Final = 300
#: The store is asked for so many files by name, at the most; for more of them the whole folder is listed.
_MAX_NAMED_FILES: Final = 100
#: How far into the history of the log somebody has looked is written down each time that it has grown by so many commits.
_LOOKED_COMMITS: Final = 200


@dataclass(frozen=True)
class Replan:
    """What was planned does not hold any more, as the log's decisions are others now; `reason` says why."""

    reason: str


class TopicLog:
    """The log of one topic, shared by all appenders of this process."""

    def __init__(
        self,
        name: str,
        paths: TopicPaths,
        *,
        defaults: Mapping[str, object],
        storage_options: Mapping[str, str],
        producer_cache: ProducerCache,
        append_locks: AppendLocks = APPEND_LOCKS,
    ) -> None:
        """Open lazily; nothing is read yet. `defaults` are the service-wide topic settings."""
        self.name = name
        self.paths = paths
        self.limits = LOG_LIMITS
        self.ledger = Ledger(paths.ledger, name, storage_options)
        self.reader_positions = ReaderPositions(paths.root, storage_options)
        self._defaults = dict(defaults)
        self._storage_options = dict(storage_options)
        self._table: DeltaTable | None = None
        self._snapshot: LogSnapshot | None = None
        #: Versions of application ids at the snapshot, of those that somebody asked for or that a followed commit raised.
        self._transactions: dict[str, int] = {}
        self._config: tuple[Mapping[str, str], TopicConfig] | None = None
        self._producers = ProducerLog(
            paths.log, self._storage_options, table=self._newest_table, partitions=lambda: self.decisions().partitions, cache=producer_cache
        )
        self._aborted = AbortedTransactions()
        self._compression: tuple[int | None, Compression] = None, Compression()
        self._unrecorded = UnrecordedDecisions()
        self._append_locks = append_locks
        self._lock = threading.RLock()

    def __reduce__(self) -> tuple[Callable[[], TopicLog], tuple[()]]:
        """Pickle what opens the log again in another process; there it is for readers alone."""
        options, cache = self._storage_options, NoProducerCache()
        return partial(TopicLog, self.name, self.paths, defaults=self._defaults, storage_options=options, producer_cache=cache), ()

    @property
    def storage_options(self) -> Mapping[str, str]:
        """What delta-rs needs to reach the object store."""
        return self._storage_options

    def decisions(self) -> Decisions:
        """Return today's decisions; raise `UnknownTopic` when the topic was deleted, also if another took its name since."""
        return self.ledger.read()

    def readers(self, decisions: Decisions | None = None) -> dict[str, Reader]:
        """Return the registered readers by name, each where it was when it was seen last."""
        return self.reader_positions.newest(decisions or self.decisions())

    def config(self, decisions: Decisions | None = None) -> TopicConfig:
        """Return today's configuration: the topic's own settings over the service's over the defaults."""
        overrides = (decisions or self.decisions()).overrides
        if self._config is None or self._config[0] != overrides:
            self._config = overrides, parse_topic_config(overrides, subject=f"topic {self.name}", defaults=self._defaults)
        return self._config[1]

    def snapshot(self) -> LogSnapshot:
        """Return the newest snapshot; costs nothing when the table has not moved."""
        with self._lock:
            followed = None if self._snapshot is None else follow(self._files, self._snapshot)
            if followed is not None and followed.snapshot.version >= self._open_table().version():
                self._transactions |= followed.transactions
                self._snapshot = followed.snapshot
                return self._snapshot
            table = self._newest_table()
            if self._snapshot is None or self._snapshot.version != table.version():
                self._transactions.clear()
                self._snapshot = LogSnapshot.of(table)
            return self._snapshot

    def commit(
        self,
        snapshot: LogSnapshot,
        *,
        family: str,
        metadata: CommitMetadata,
        adds: Sequence[DataFile],
        removes: NDArray[np.bool_] | None = None,
        transactions: Mapping[str, int] | None = None,
    ) -> int:
        """Commit files to the log, as `lastword.storage.delta.commit.commit_files` says, and return the table version.

        Raises `UnknownTopic` if the topic was deleted since the files were planned. When the commit is refused, because another one came
        first, its files are deleted: they may hold a key that a purge has erased meanwhile.
        """
        self.decisions()
        try:
            with self._lock:
                version = commit_files(
                    self.snapshot,
                    snapshot,
                    self._storage_options,
                    family=family,
                    metadata=metadata,
                    adds=adds,
                    removes=removes,
                    transactions=transactions,
                )
                if version % self.limits.checkpoint_commits == 0:
                    self._write_checkpoint()
                return version
        except CommitConflict:
            self.discard(adds)
            raise

    def _write_checkpoint(self) -> None:
        """Write a checkpoint for a commit; the commit counts without it, and a later one has its own."""
        with suppress(DeltaError, OSError):
            write_checkpoint(self._newest_table(), self.storage_options)

    def discard(self, files: Sequence[DataFile]) -> None:
        """Delete data files that no commit names; VACUUM removes what cannot be deleted."""
        delete_files(self.paths.log, self.storage_options, [file.path for file in files])

    def committed_micro_batch(self, query_id: str) -> int:
        """Return the number of the last micro-batch that a streaming query has committed to the log; -1 when it has none."""
        with self._lock:
            self.snapshot()
            if query_id not in self._transactions:  # delta-rs reads all of the Delta log for an id that is not in it
                try:
                    self._transactions[query_id] = txn_version(self._newest_table(), query_id)
                except DeltaError:  # the commits that the table was opened with are gone: a checkpoint says what they did
                    self._table = None
                    self._transactions[query_id] = txn_version(self._newest_table(), query_id)
            return self._transactions[query_id]

    def _open_table(self) -> DeltaTable:
        """Return the table at some version, for those who ask it for none."""
        return self._newest_table() if self._table is None else self._table

    def _newest_table(self) -> DeltaTable:
        """Return the table at its newest version: delta-rs needs 2 ms for each 1,000 files of the table when there is a new one."""
        if self._table is None:
            self._table = open_table(self.paths.log, self._storage_options)
        else:
            refresh_table(self._table)
        return self._table

    @cached_property
    def _files(self) -> fs.FileSystem:
        return filesystem_of(self.paths.log, self._storage_options)

    def at(self, version: int | None = None) -> LogState:
        """Return the log at a table version, or at the newest one.

        Raises `UnknownTopic` when the topic was deleted, and what delta-rs raises for a version that is gone.
        """
        try:
            snapshot = self.snapshot()
            if version not in {None, snapshot.version}:
                snapshot = LogSnapshot.of(open_table(self.paths.log, self._storage_options, version=version))
        except Exception:
            self.decisions()  # raises when the topic is gone, and its table with it
            raise
        return self.state_of(snapshot)

    def state_of(self, snapshot: LogSnapshot) -> LogState:
        """Return the log at a snapshot that was taken before, with the decisions that hold there today."""
        with self._lock:  # the ledger is read in it: else another thread may write down meanwhile what `today` lacks
            today = self.decisions()
            collected = self._unrecorded.collect(today, self._open_table(), snapshot.version)
        unknown = [decision for decision in collected if (decision.table_version or 0) <= snapshot.version]
        return LogState(self, snapshot, today.with_history(unknown) if unknown else today)

    def producers_at(self, snapshot: LogSnapshot, of: Collection[int] | None = None) -> States:
        """Return every producer's state at a snapshot, as `ProducerLog.states`."""
        with self._lock:
            return self._producers.states(snapshot, of)

    def readable_producers_at(self, snapshot: LogSnapshot, *, again: bool) -> tuple[States, dict[int, str]]:
        """Return the producers' states at a snapshot that can be read, and why the others cannot, as `ProducerLog.readable`."""
        with self._lock:
            return self._producers.readable(snapshot, again=again, retry_seconds=self.limits.retry_seconds)

    def aborted_at(self, files: Files, first_dirty: Sequence[int]) -> tuple[Longs, ...]:
        """Return the aborted transactions that the dirty section of each partition has, as `AbortedTransactions.read`."""
        return self._aborted.read(self._files, files, first_dirty)

    def check_partition(self, partition: int) -> int:
        """Return a partition that the topic has; raise `UserError` naming those that it has otherwise."""
        count = self.decisions().partitions
        if isinstance(partition, bool) or not hasattr(partition, "__index__") or not 0 <= partition < count:
            message = f"topic {self.name} has no partition {partition!r}: allowed is 0 to {count - 1}"
            raise UserError(message)
        return partition

    def commit_times(self) -> list[tuple[int, int]]:
        """Return (table version, time in milliseconds) of the commits that the Delta log still knows, newest first."""
        with self._lock:
            return [(commit.version, commit.time_ms) for commit in commits_since(self._open_table(), -1, self.snapshot().version)]

    def history(self, watch: HistoryWatch, since_version: int) -> ReaderHistory:
        """Return what `watch` finds in the history of the log after a version: removed tombstones, RESTOREs."""
        decisions = self.decisions()
        with self._lock:
            return watch.look(self._open_table(), decisions, since_version, version=self.snapshot().version)

    def missing_files(self, paths: Sequence[str], *, max_named: int = _MAX_NAMED_FILES) -> list[str]:
        """Return those of the log's files that do not exist any more; more than `max_named` are looked up in one listing of the folder."""
        if len(paths) <= max_named:
            return [file.path for file in self._files.get_file_info(list(paths)) if file.type == fs.FileType.NotFound] if paths else []
        there = {file.path for file in self._files.get_file_info(fs.FileSelector("", recursive=True))}
        return [path for path in paths if path not in there]

    def append_lock(self) -> AbstractContextManager[None]:
        """Hold the lock that lets one thread of this process append to the topic at a time, whichever object asks."""
        return self._append_locks.hold(self.paths.place)

    def sync_ledger_with_history(self, *, tell: bool = False, looked_commits: int = _LOOKED_COMMITS) -> None:
        """Write into the ledger what the history of the log says and the ledger does not.

        A RESTORE makes the receipts and log starts that it took back void; a swap whose receipt was never written (a crash in between,
        or a lost ledger) carries it in its own `userMetadata`. How far the history was read is written after each `looked_commits`, too, or
        at once with `tell`: what lies before is not read again.
        """
        with self._lock:
            snapshot, today = self.snapshot(), self.decisions()
            if snapshot.version <= (today.looked_at_version if tell else max(self._unrecorded.looked_at, today.looked_at_version)):
                return
            decisions = self._unrecorded.collect(today, self._open_table(), snapshot.version)
            if tell or decisions or snapshot.version - today.looked_at_version >= looked_commits:
                newest = commits_since(self._open_table(), snapshot.version - 1, snapshot.version)
                now_ms = newest[-1].time_ms if newest else today.created_ms
                self.ledger.append([*decisions, Decision(kind=Kind.LOOKED, time_ms=now_ms, table_version=snapshot.version)])
            self._unrecorded.looked_at = snapshot.version

    def receipts(self, partition: int | None = None) -> list[CleaningReceipt]:
        """Return the receipts of the cleanings that the log still contains, of one partition or of all, oldest first."""
        today = self.decisions()
        rows = [row for mine in today.cleanings.values() for row in mine if today.contains(row) and partition in {None, row.partition}]
        # Who looks back between a swap and its receipt writes one too, without what was only known afterwards.
        rows.sort(key=lambda row: (row.details.get("total_ms") is not None, row.sequence))
        newest = {(row.partition, row.table_version or -row.sequence): row for row in rows}
        return [CleaningReceipt.from_details(row.details) for row in sorted(newest.values(), key=lambda row: row.sequence)]

    def forget_producers(self, *, now_ms: int) -> int:
        """Forget the states of producers that have expired (`producer.id.expiration.ms`), as `ProducerLog.forget`; return how many."""
        with self._lock:
            expiration_ms = self.config().producer_id_expiration_ms
            return self._producers.forget(self.decisions().log_start_offsets(), now_ms=now_ms, expiration_ms=expiration_ms)

    def compression(self, snapshot: LogSnapshot) -> Compression:
        """Return what a record of this topic takes in a file; its raw size when nothing was written yet.

        Read from the footer of a recent file, and again after some commits (`LogLimits.compression_commits`).
        """
        with self._lock:
            at, known_compression = self._compression
            if at is None or snapshot.version - at >= self.limits.compression_commits:
                compression = read_compression(self.paths.log, snapshot, self._storage_options)
                if compression is not None:
                    self._compression = snapshot.version, compression
                    return compression
            return known_compression

    def attempts(self, once: Callable[[], T | Replan]) -> T:
        """Do something that commits, under the append lock: again while others come first, and while it says so itself."""

        def locked_once() -> T | Replan:
            with self.append_lock():
                return once()

        reason = ""
        for _ in range(_REPLANS):
            done = retry_on_conflict(locked_once, attempts=_CONFLICTS)
            if not isinstance(done, Replan):
                return done
            reason = done.reason
        message = f"topic {self.name}: {reason}, {_REPLANS} times; nothing was written"
        raise CommitConflict(message)


@dataclass(frozen=True, eq=False)
class LogState:
    """The log of a topic at one table version. Make one with `TopicLog.at`.

    `decisions` are today's, with what the history of the log up to this version says besides: a RESTORE makes decisions void at once, and a
    cleaning counts from its commit on. What was deleted is gone at any version.
    """

    log: TopicLog
    snapshot: LogSnapshot
    decisions: Decisions

    @property
    def version(self) -> int:
        """The table version."""
        return self.snapshot.version

    @property
    def files(self) -> Files:
        """The data files of this version."""
        return self.snapshot.files

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return self.decisions.partitions

    @cached_property
    def config(self) -> TopicConfig:
        """The topic's configuration. Raises `InvalidConfiguration` for settings that this version does not take."""
        return self.log.config(self.decisions)

    @cached_property
    def log_start_offsets(self) -> tuple[int, ...]:
        """The log start offset of each partition."""
        return tuple(self.decisions.log_start_offsets())

    @cached_property
    def log_end_offsets(self) -> tuple[int, ...]:
        """The next offset of each partition."""
        return tuple(self.snapshot.log_end_offsets(self.partitions))

    @cached_property
    def first_dirty_offsets(self) -> tuple[int, ...]:
        """Where the dirty section of each partition begins: below, a key has at most one data record."""
        checkpoints = (
            self.decisions.cleaner_checkpoint(partition, as_of_version=self.version) or 0 for partition in range(self.partitions)
        )
        return tuple(map(max, self.log_start_offsets, checkpoints))

    def producer_states(self, *, of: Collection[int] | None = None) -> States:
        """Return every producer's state by (partition, producer id), in the partitions `of` or in all.

        Of a transaction that lies below the log start nothing is open. Reads the rows with a producer that were appended since the last
        call; raises `CorruptLog` naming the file when one of these partitions cannot be read.
        """
        return self._from_log_start(self.log.producers_at(self.snapshot, of))

    def readable_states(self, *, again: bool = False) -> tuple[States, dict[int, str]]:
        """Return `producer_states` of the partitions whose files can be read, and for each other partition the reason.

        One that could not be read is tried again after half a minute, at once with `again`.
        """
        states, unreadable = self.log.readable_producers_at(self.snapshot, again=again)
        return self._from_log_start(states), unreadable

    def _from_log_start(self, states: States) -> States:
        if all(state.open_first_offset is None for state in states.values()):
            return states
        return in_sight(states, self.log_start_offsets)

    def unexpired_states(self, *, now_ms: int) -> States:
        """Return the states of the producers that have not expired (`producer.id.expiration.ms`)."""
        kept = unexpired_producers(self.producer_states().values(), now_ms=now_ms, expiration_ms=self.config.producer_id_expiration_ms)
        return {(state.partition, state.producer_id): state for state in kept}

    def open_transactions(self) -> list[OpenTransaction]:
        """Return the transactions that are open, oldest first. Errors as `producer_states`."""
        return self._open(self.producer_states())

    def readable_transactions(self) -> list[OpenTransaction]:
        """Return `open_transactions`, without what they have in partitions whose producers cannot be read."""
        return self._open(self.readable_states()[0])

    def _open(self, states: States) -> list[OpenTransaction]:
        """Return the transactions that are open by some states, oldest first."""
        named = {producer.producer_id: (name, producer.timeout_ms) for name, producer in self.decisions.producers.items()}
        return open_transactions(states.values(), self.log_start_offsets, named, timeout_ms=self.config.transaction_timeout_ms)

    def last_stable_offsets(self) -> tuple[int, ...]:
        """Return the last stable offset of every partition: a read_committed reader sees what lies below. Errors as `producer_states`."""
        return self._stable(self.producer_states(), ())

    def readable_stable_offsets(self) -> tuple[int, ...]:
        """Return `last_stable_offsets`; the log start offset for a partition whose producers cannot be read."""
        try:
            return self.last_stable_offsets()
        except CorruptLog:
            return self._stable(*self.readable_states())

    def _stable(self, states: States, unreadable: Collection[int]) -> tuple[int, ...]:
        stable = last_stable_offsets(self.log_start_offsets, self.log_end_offsets, states.values())
        return tuple(self.log_start_offsets[partition] if partition in unreadable else offset for partition, offset in enumerate(stable))

    @cached_property
    def aborted_transactions(self) -> tuple[Longs, ...]:
        """First offsets of the aborted transactions that the dirty section of each partition has, ascending (`AbortedTransactions`)."""
        return self.log.aborted_at(self.files, self.first_dirty_offsets)

    def partition_logs(self, *, now_ms: int, again: bool = False) -> list[PartitionLog]:
        """Return what planning knows of every partition; of one whose producers cannot be read, why (`readable_states`)."""
        states, unreadable = self.readable_states(again=again)
        stable, holders = self._stable(states, unreadable), dict[tuple[int, int], str]()
        if stable != self.log_end_offsets:
            for transaction in self._open(states):
                name = f" ({transaction.transactional_id})" if transaction.transactional_id else ""
                holder = f"producer {transaction.producer_id}{name}, begun {instant(transaction.since_ms)},"
                holders.update(dict.fromkeys(transaction.first_offsets.items(), holder))
        decisions = replace(self.decisions, readers=self.log.readers(self.decisions))
        return partition_logs(
            self.log.name, self.config, self.snapshot, decisions, stable, holders=holders, unreadable=unreadable, now_ms=now_ms
        )


def open_log(path: str | Path, storage_options: Mapping[str, str] | None = None) -> TopicLog:
    """Return the log of a topic for reading, from its folder `<log.dir>/<topic>`, as a path or URI; nothing is read yet."""
    root = location_of(str(path))
    options = dict(storage_options or {})
    return TopicLog(root.rsplit("/", 1)[-1], TopicPaths(root), defaults={}, storage_options=options, producer_cache=NoProducerCache())
