"""The log of one topic: where it stands, and how rows get into it.

```
 append(rows)
   read      snapshot of the Delta log + decisions of the ledger        milliseconds, no Spark job
   check     what is wrong with each row (storage.envelope)             expressions
   number    offset, segment, slice (storage.numbering)                 expressions, one shuffle
   commit    compare-and-set, one Delta commit (storage.commit)         the one Spark job
   conflict  read again, number again                                   nothing was written
```

Invariants: offsets of a partition ascend and are never given twice; an append writes slices of its own and never into one that exists;
a micro-batch that was committed is recognised by its query's id and its number and not written again.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from deltalake import DeltaTable
from pyspark import StorageLevel
from pyspark.sql import functions as F
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from compaction.config import TopicConfig, parse_topic_config
from compaction.errors import CommitConflict, InvalidRecords, UnknownTopic, UserError
from compaction.segments import ActiveSegment, next_append
from storage import crash_points, dead_letters
from storage.commit import commit_append
from storage.crash_points import CrashPoint
from storage.envelope import REASON, Reason, checked, shape_of
from storage.ledger import Decisions, Ledger
from storage.numbering import SMALL_ROWS, Guard, numbered
from storage.snapshot import LogSnapshot

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame

    from storage.layout import TopicPaths

_ATTEMPTS: Final = 50
#: After a micro-batch with refused rows, the next ones are likely to hold some too: take them with care at once.
_CAREFUL_AFTER_REFUSAL: Final = 20
_MEANINGFUL_RECORDS: Final = 1_000
#: Appenders of one process take turns: two that work side by side would only conflict, and one of them work for nothing.
_TURNS: Final[dict[str, threading.RLock]] = {}
_TURNS_GUARD: Final = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendedRange:
    """What an append wrote into one partition: offsets `first_offset` to `last_offset`, `record_count` of them."""

    partition: int
    first_offset: int
    last_offset: int
    record_count: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendResult:
    """What one append did: the table version that shows it, and the offsets of every partition that it touched.

    `table_version` is None when nothing was committed: an empty input, or a micro-batch that had been committed before (`replayed`).
    `refused` counts dead letters by reason, `duplicates` the rows of a mirror that lay below the log end.
    """

    table_version: int | None
    ranges: Mapping[int, AppendedRange] = field(default_factory=dict)
    refused: Mapping[str, int] = field(default_factory=dict)
    duplicates: int = 0
    replayed: bool = False

    @property
    def record_count(self) -> int:
        """The number of records that were appended."""
        return sum(one.record_count for one in self.ranges.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Whose rows these are: a streaming query's micro-batch, which may come again after a crash."""

    query_id: str
    query_name: str
    batch_id: int
    fail_on_invalid: bool = False


@dataclass(slots=True)
class Habits:
    """What an appender remembers of its last appends; wrong memories cost time, never correctness."""

    careful_appends_left: int = 0
    last_record_count: int | None = None
    last_bytes: int | None = None


class TopicLog:
    """The log of one topic, shared by all appenders of this process."""

    def __init__(self, name: str, paths: TopicPaths, defaults: Mapping[str, object], storage_options: Mapping[str, str]) -> None:
        """Open lazily; nothing is read yet. `defaults` are the service-wide topic settings."""
        self.name = name
        self.paths = paths
        self.ledger = Ledger(paths.ledger, name, storage_options)
        self._defaults = dict(defaults)
        self._storage_options = dict(storage_options)
        self._table: DeltaTable | None = None
        self._snapshot: LogSnapshot | None = None
        self._config: tuple[Mapping[str, str], TopicConfig] | None = None
        self._topic_id: str | None = None

    def decisions(self) -> Decisions:
        """Return today's decisions; raise `UnknownTopic` when the topic was deleted, also if another took its name since."""
        decisions = self.ledger.read()
        if self._topic_id is None:
            self._topic_id = decisions.topic_id
        elif decisions.topic_id != self._topic_id:
            message = f"topic {self.name} was deleted and another one created under its name; open it again"
            raise UnknownTopic(message)
        return decisions

    def config(self, decisions: Decisions | None = None) -> TopicConfig:
        """Return today's configuration: the topic's own settings over the service's over the defaults."""
        overrides = (decisions or self.decisions()).overrides
        if self._config is None or self._config[0] != overrides:
            self._config = overrides, parse_topic_config(overrides, subject=f"topic {self.name}", defaults=self._defaults)
        return self._config[1]

    def table(self) -> DeltaTable:
        """Return the Delta table of records, at its newest version."""
        if self._table is None:
            self._table = DeltaTable(self.paths.log, storage_options=self._storage_options)
        else:
            self._table.update_incremental()
        return self._table

    def snapshot(self) -> LogSnapshot:
        """Return the newest snapshot; costs nothing when the table has not moved."""
        with self.turn():
            table = self.table()
            if self._snapshot is None or self._snapshot.version != table.version():
                self._snapshot = LogSnapshot.of(table)
            return self._snapshot

    def snapshot_at(self, version: int) -> LogSnapshot:
        """Return the snapshot of one table version."""
        newest = self.snapshot()
        if newest.version == version:
            return newest
        return LogSnapshot.of(DeltaTable(self.paths.log, version=version, storage_options=self._storage_options))

    def log_end_offsets(self) -> list[int]:
        """Return the next offset of every partition."""
        return self.snapshot().log_end_offsets(self.decisions().partitions)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Hold this process's turn at the log: one append at a time, whichever object asks."""
        with _TURNS_GUARD:
            lock = _TURNS.setdefault(self.paths.log, threading.RLock())
        with lock:
            yield

    def append(self, rows: DataFrame, *, now_ms: int, habits: Habits, micro_batch: MicroBatch | None = None) -> AppendResult:
        """Append rows in one commit; try again from a fresh snapshot while other appenders come first.

        A batch call (`micro_batch` None) raises `InvalidRecords` if the log refuses one of the rows, and nothing is written. A
        micro-batch puts refused rows aside as dead letters; one that was committed before does nothing.
        """
        attempts = Retrying(
            retry=retry_if_exception_type(CommitConflict),
            stop=stop_after_attempt(_ATTEMPTS),
            wait=wait_random_exponential(multiplier=0.05, max=2),
            reraise=True,
        )
        for attempt in attempts:
            with attempt, self.turn():
                return _Append(self, rows, now_ms, habits, micro_batch).run()
        raise AssertionError  # Retrying reraises


class _Append:
    """One attempt of one append, against one snapshot."""

    def __init__(self, log: TopicLog, rows: DataFrame, now_ms: int, habits: Habits, micro_batch: MicroBatch | None) -> None:
        self.log, self.rows, self.now_ms, self.habits, self.micro_batch = log, rows, now_ms, habits, micro_batch
        self.decisions = log.decisions()
        self.config = log.config(self.decisions)
        self.snapshot = log.snapshot()
        self.log_ends = self.snapshot.log_end_offsets(self.decisions.partitions)
        self.last_segments = self.snapshot.last_segments()
        self.actives = [self._active(partition) for partition in range(self.decisions.partitions)]
        self.shape = shape_of(rows.schema, topic=log.name)

    def run(self) -> AppendResult:
        if self.micro_batch and self.snapshot.queries.get(self.micro_batch.query_id, -1) >= self.micro_batch.batch_id:
            return AppendResult(table_version=None, replayed=True)
        self._check_mirror()
        rows = checked(
            self.rows,
            topic=self.log.name,
            config=self.config,
            partitions=self.decisions.partitions,
            log_end_offsets=self.log_ends,
            now_ms=self.now_ms,
        )
        if self.habits.careful_appends_left == 0:
            try:
                return self._commit(rows, split=self._expects_split())
            except Exception as error:
                guard = Guard.of(error)
                if guard is None:
                    raise
                if guard is Guard.DOUBLE:
                    message = f"topic {self.log.name}: two rows carry the same partition and offset; nothing was appended"
                    raise InvalidRecords(message) from None
                if guard is Guard.INVALID and self.micro_batch is None:
                    raise dead_letters.refusal(rows, topic=self.log.name) from None
        return self._with_care(rows)

    def _active(self, partition: int) -> ActiveSegment:
        return next_append(
            self.last_segments.get(partition),
            self.config,
            partition=partition,
            log_end_offset=self.log_ends[partition],
            rolled_offset=self.decisions.rolled_offset(partition),
            now_ms=self.now_ms,
        )

    def _check_mirror(self) -> None:
        mirror = self.decisions.mirror
        if mirror is None or (self.micro_batch is not None and self.micro_batch.query_name == mirror["query"]):
            return
        message = (
            f"topic {self.log.name} mirrors {mirror['source']} (query {mirror['query']}) and keeps its offsets, so it takes records from "
            "there alone; append to the source, or to another topic"
        )
        raise UserError(message)

    def _expects_split(self) -> bool:
        """Tell whether this append may fill a segment: as much again as the last one brought would, or nobody knows."""
        if self.habits.last_bytes is None:
            return True
        return any(active.size_bytes + 2 * self.habits.last_bytes > self.config.segment_bytes for active in self.actives)

    def _with_care(self, rows: DataFrame) -> AppendResult:
        """Append the good rows and put the others aside; the input is held so that it is computed once."""
        held = rows.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            counts = dead_letters.count_refused(held)
            refused = held
            duplicates = 0
            if self.decisions.mirror:  # what a mirror brings again is in the log already
                duplicates = counts.pop(Reason.BELOW_LOG_END.value, 0)
                refused = held.where(F.col(REASON) != Reason.BELOW_LOG_END.value)
            if counts:
                self._put_aside(refused)
            self.habits.careful_appends_left = (
                _CAREFUL_AFTER_REFUSAL if counts or duplicates else max(0, self.habits.careful_appends_left - 1)
            )
            result = self._commit(held.where(F.col(REASON).isNull()), split=True)
        finally:
            held.unpersist()
        return replace(result, refused=counts, duplicates=duplicates)

    def _put_aside(self, refused: DataFrame) -> None:
        if self.micro_batch is None or self.micro_batch.fail_on_invalid:
            raise dead_letters.refusal(refused, topic=self.log.name)
        dead_letters.write_dead_letters(
            refused,
            self.log.paths.dead_letters,
            source=self.micro_batch.query_name,
            query_id=self.micro_batch.query_id,
            batch_id=self.micro_batch.batch_id,
            now_ms=self.now_ms,
        )
        crash_points.reached(CrashPoint.DEAD_LETTERS_WRITTEN)

    def _commit(self, rows: DataFrame, *, split: bool) -> AppendResult:
        log_rows = numbered(
            rows,
            self.actives,
            self.config,
            now_ms=self.now_ms,
            mean_record_bytes=self._mean_record_bytes(),
            has_offsets=self.shape.has_offsets,
            split=split,
            spark_partitions=self._spark_partitions(rows),
        )
        queries = {query: batch for query, batch in self.snapshot.queries.items() if query in self.decisions.queries.values()}
        if self.micro_batch:
            queries[self.micro_batch.query_id] = self.micro_batch.batch_id
        crash_points.reached(CrashPoint.APPEND_PLANNED)
        version = commit_append(log_rows, self.log.table(), self.snapshot, queries=queries, codec=self.config.compression_type)
        crash_points.reached(CrashPoint.APPEND_COMMITTED)
        result = AppendResult(table_version=version, ranges=self._ranges(version))
        self.habits.last_record_count = result.record_count
        self.habits.last_bytes = max((one.size_bytes for one in result.ranges.values()), default=0)
        return result

    def _mean_record_bytes(self) -> float | None:
        records = sum(segment.record_count for segment in self.last_segments.values())
        if records < _MEANINGFUL_RECORDS:
            return None
        return sum(segment.size_bytes for segment in self.last_segments.values()) / records

    def _spark_partitions(self, rows: DataFrame) -> int:
        few = self.habits.last_record_count is not None and self.habits.last_record_count <= SMALL_ROWS
        if few or self.decisions.partitions == 1:
            return 1
        return min(self.decisions.partitions, max(2, rows.sparkSession.sparkContext.defaultParallelism))

    def _ranges(self, version: int) -> dict[int, AppendedRange]:
        """Say what the commit at `version` appended: the files of slices at or past the log ends that it was numbered from."""
        files = self.log.snapshot_at(version).files
        ranges = {}
        for partition, log_end in enumerate(self.log_ends):
            mine = (files.partition == partition) & (files.slice >= log_end)
            if mine.any():
                ranges[partition] = AppendedRange(
                    partition=partition,
                    first_offset=int(files.first_offset[mine].min()),
                    last_offset=int(files.last_offset[mine].max()),
                    record_count=int(files.record_count[mine].sum()),
                    size_bytes=int(files.size_bytes[mine].sum()),
                )
        return ranges
