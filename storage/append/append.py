"""One append: what it promises, and one attempt of it against one snapshot.

```
   check     what is wrong with each row (lastword.storage.append.validation)             expressions
   judge     rows that bring their own producer (lastword.storage.append.producer_rows) expressions
   number    offset, segment, slice (lastword.storage.append.offsets)                 expressions, one shuffle
   commit    compare-and-set, one Delta commit (lastword.storage.delta.commit)         the one Spark job
```

The common append is written in one pass over its input, with guards. It is done *with care* (the input held, refused rows put aside,
segments split) when a guard fired, when the last ones had refused rows, and for rows that bring their own producer.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from pyspark import StorageLevel
from pyspark.sql import functions as F

from lastword.compaction.errors import CommitConflict, InvalidRecords, ProducerFenced, UserError
from lastword.compaction.log.segments import ActiveSegment, next_append
from lastword.compaction.producers import Verdict
from lastword.storage.append import dead_letters
from lastword.storage.append.offsets import SMALL_ROWS, Guard, Numbering, Stamped
from lastword.storage.append.producer_rows import judged
from lastword.storage.append.validation import REASON, Reason, checked, shape_of
from lastword.storage.delta import crash_points
from lastword.storage.delta.commit import new_token
from lastword.storage.delta.crash_points import CrashPoint
from lastword.storage.delta.history import CommitMetadata
from lastword.storage.delta.snapshot import APPEND_APP_ID
from lastword.storage.delta.spark_rows import write_rows
from lastword.storage.log.producer_states import states_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

    from lastword.compaction.producers import ProducerStamp
    from lastword.storage.append.validation import Shape
    from lastword.storage.files.data_files import DataFile
    from lastword.storage.ledger.decisions import Decisions
    from lastword.storage.log.topic_log import TopicLog

#: After a micro-batch with refused rows, the next ones are likely to hold some too: take them with care at once.
_CAREFUL_AFTER_REFUSAL: Final = 20
#: After a micro-batch of more or larger rows than those before, the next ones may be so too: add up what they take, each time for longer.
_ADDED_UP_AFTER_UNEVEN: Final = 20
_LONGEST_ADDED_UP: Final = 10_000
#: Rows are counted instead where a record may take so many times what the last ones took.
_LEAST_ROOM: Final = 8
#: Then each partition has a task of its own, where that is no more tasks than these.
_TASKS_PER_CORE: Final = 2


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
    `refused` counts dead letters by reason, `duplicates` the rows that were in the log already: of a mirror, below the log end; of a
    producer, by their sequence.
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
class AppendStats:
    """What an appender remembers of its last appends; wrong memories cost time, never correctness."""

    careful_appends_left: int = 0
    added_up_appends_left: int = 0
    added_up_next_time: int = _ADDED_UP_AFTER_UNEVEN
    last_record_count: int | None = None
    #: The most that any partition got.
    last_bytes: int | None = None
    last_partition_records: int = 0
    #: The micro-batch that an attempt wrote dead letters of.
    put_aside: tuple[str, int] | None = None

    def found_uneven(self) -> None:
        """Remember that rows could not be counted."""
        self.added_up_appends_left = self.added_up_next_time
        self.added_up_next_time = min(2 * self.added_up_next_time, _LONGEST_ADDED_UP)


def append_rows(log: TopicLog, rows: DataFrame, *, now_ms: int, stats: AppendStats, micro_batch: MicroBatch | None = None) -> AppendResult:
    """Append rows to a topic's log in one commit; try again from a fresh snapshot while other appenders commit first.

    A batch call (`micro_batch` None) raises `InvalidRecords` if the log rejects one of the rows, and nothing is written. A micro-batch
    writes rejected rows to the dead letters; one that was committed before does nothing.
    """
    return log.attempts(lambda: Append(log, rows, now_ms=now_ms, stats=stats, micro_batch=micro_batch).run())


class Append:
    """One attempt of one append, against one snapshot."""

    def __init__(
        self,
        log: TopicLog,
        rows: DataFrame,
        *,
        now_ms: int,
        stats: AppendStats,
        micro_batch: MicroBatch | None = None,
        stamp: ProducerStamp | None = None,
    ) -> None:
        """Take the snapshot that this attempt plans with."""
        self.log, self.rows, self.now_ms, self.stats, self.micro_batch = log, rows, now_ms, stats, micro_batch
        log.decisions()  # raises when the topic is gone, and its table with it
        self.snapshot = log.snapshot()
        self.decisions = log.decisions()  # of no earlier moment: they know each query whose micro-batches the snapshot has
        self.config = log.config(self.decisions)
        self.log_ends = self.snapshot.log_end_offsets(self.decisions.partitions)
        self.last_segments = self.snapshot.last_segments()
        self.actives = [self._active(partition) for partition in range(self.decisions.partitions)]
        self.stamp = stamp
        self.shape: Shape | None = None

    def run(self) -> AppendResult:
        """Append, or find that there is nothing to do."""
        self.shape = shape_of(self.rows.schema, topic=self.log.name)
        if self.micro_batch and self.log.committed_micro_batch(self.micro_batch.query_id) >= self.micro_batch.batch_id:
            return AppendResult(table_version=None, replayed=True)
        self._check_mirror()
        self._check_stamp()
        if self.micro_batch is not None and self.stats.last_record_count is None:  # the first since a start: it may be a replay
            self._take_back(self.micro_batch)
        rows = checked(
            self.rows,
            topic=self.log.name,
            config=self.config,
            partitions=self.decisions.partitions,
            log_end_offsets=self.log_ends,
            now_ms=self.now_ms,
        )
        if self.shape.has_producers:
            states = self.log.known_producers(self.snapshot, now_ms=self.now_ms)
            return self._with_care(judged(rows, states.values()))
        if self.stats.careful_appends_left == 0:
            try:
                return self._commit_in_one_pass(rows)
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
            rolled_offset=self.decisions.closed_offset(partition, self.log_ends[partition]),
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

    def _check_stamp(self) -> None:
        if self.stamp is None:
            return
        check_not_fenced(self.stamp, self.log.decisions(), self.log.name)  # as it is after the snapshot was taken
        if self.shape is not None and (self.shape.has_producers or self.shape.has_offsets):
            message = f"topic {self.log.name}: rows of a transaction get their producer and offsets from it; leave those columns out"
            raise InvalidRecords(message)

    def _stamped(self) -> Stamped | None:
        """Say where the stamp's sequences and transaction stand in every partition: a transaction begins with its first record there.

        Raises `CommitConflict` where an older instance has one open, which must be aborted first.
        """
        if self.stamp is None:
            return None
        states = states_of(self.stamp.producer_id, self.log.producer_states(self.snapshot))
        sequences, firsts = [0] * len(self.log_ends), list(self.log_ends)
        for partition, state in states.items():
            if state.is_left_open_before(self.stamp.epoch):
                message = f"topic {self.log.name}: an older instance of {self.stamp.transactional_id} came first; nothing was appended"
                raise CommitConflict(message)
            if state.epoch == self.stamp.epoch:
                sequences[partition] = state.next_sequence
            if state.open_first_offset is not None:
                firsts[partition] = state.open_first_offset
        return Stamped(stamp=self.stamp, next_sequences=sequences, first_offsets=firsts)

    def _expects_split(self) -> bool:
        """Tell whether this append may fill a segment: as much again as the last one brought would, or nobody knows."""
        if self.stats.last_bytes is None:
            return True
        return any(active.size_bytes + 2 * self.stats.last_bytes > self.config.segment_bytes for active in self.actives)

    def _with_care(self, rows: DataFrame) -> AppendResult:
        """Append the good rows and put the others aside; the input is held so that it is computed once."""
        held = rows.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            counts = dead_letters.count_refused(held)
            known = [Verdict.DUPLICATE.value, *([Reason.BELOW_LOG_END.value] if self.decisions.mirror else [])]
            duplicates = sum(counts.pop(reason, 0) for reason in known)
            if counts:
                refused = held.where(~F.col(REASON).isin(known))
                self._put_aside(refused)
            elif self.micro_batch is not None and self.stats.put_aside == (self.micro_batch.query_id, self.micro_batch.batch_id):
                self._take_back(self.micro_batch)
            self.stats.careful_appends_left = (
                _CAREFUL_AFTER_REFUSAL if counts or duplicates else max(0, self.stats.careful_appends_left - 1)
            )
            result = self._commit(held.where(F.col(REASON).isNull()), split=True)
        finally:
            held.unpersist()
        return replace(result, refused=counts, duplicates=duplicates)

    def _take_back(self, batch: MicroBatch) -> None:
        """Remove the dead letters that an earlier attempt of the micro-batch wrote."""
        location, options = self.log.paths.dead_letters, self.log.storage_options
        dead_letters.replace_dead_letters(location, options, [], query_id=batch.query_id, batch_id=batch.batch_id)

    def _put_aside(self, refused: DataFrame) -> None:
        if self.micro_batch is None or self.micro_batch.fail_on_invalid:
            raise dead_letters.refusal(refused, topic=self.log.name)
        if self.log.committed_micro_batch(self.micro_batch.query_id) >= self.micro_batch.batch_id:
            message = f"topic {self.log.name}: another process has committed micro-batch {self.micro_batch.batch_id}"
            raise CommitConflict(message)  # the next attempt finds it replayed; its dead letters are those of the other process
        self.stats.put_aside = self.micro_batch.query_id, self.micro_batch.batch_id
        dead_letters.write_dead_letters(
            refused,
            self.log.paths.dead_letters,
            self.log.storage_options,
            source=self.micro_batch.query_name,
            query_id=self.micro_batch.query_id,
            batch_id=self.micro_batch.batch_id,
            now_ms=self.now_ms,
        )
        crash_points.reached(CrashPoint.DEAD_LETTERS_WRITTEN)

    def append_markers(self) -> AppendResult:
        """Append markers in the shape of judged rows; they need no check."""
        return self._commit(self.rows, split=True)

    def _commit(self, rows: DataFrame, *, split: bool) -> AppendResult:
        numbering = Numbering(
            actives=self.actives,
            config=self.config,
            now_ms=self.now_ms,
            compression=self.log.compression(self.snapshot),
            given=self.shape.columns if self.shape is not None else (),
            stamped=self._stamped(),
        )
        most_bytes = None if split or not numbering.counts() else self._most_record_bytes(rows)
        if most_bytes is None:
            log_rows = numbering.added_up(rows, split=split, spark_partitions=self._spark_partitions(rows))
        else:
            log_rows = numbering.counted(rows, most_bytes=most_bytes)
        crash_points.reached(CrashPoint.APPEND_PLANNED)
        location, codec = self.log.paths.log, self.config.compression_type
        files = write_rows(log_rows, location, self.log.storage_options, codec=codec)
        if not files:
            return AppendResult(table_version=None)
        version = self.log.commit(
            self.snapshot,
            family=APPEND_APP_ID,
            metadata=CommitMetadata(token=new_token(), kind="append"),
            adds=files,
            transactions={self.micro_batch.query_id: self.micro_batch.batch_id} if self.micro_batch else {},
        )
        crash_points.reached(CrashPoint.APPEND_COMMITTED)
        result = AppendResult(table_version=version, ranges=_ranges(files))
        self.stats.last_record_count = result.record_count
        self.stats.last_bytes = max((one.size_bytes for one in result.ranges.values()), default=0)
        self.stats.last_partition_records = max((one.record_count for one in result.ranges.values()), default=0)
        return result

    def _commit_in_one_pass(self, rows: DataFrame) -> AppendResult:
        """Append in one pass; in a second one, with sizes added up, where rows could not be counted."""
        split = self._expects_split()
        try:
            return self._commit(rows, split=split)
        except Exception as error:
            if Guard.of(error) is not Guard.UNEVEN:
                raise
            self.stats.found_uneven()
            return self._commit(rows, split=split)

    def _most_record_bytes(self, rows: DataFrame) -> float | None:
        """Return what a record may take so that rows need only be counted; None where their sizes are to be added up."""
        stats = self.stats
        if stats.added_up_appends_left:
            stats.added_up_appends_left -= 1
            return None
        most_tasks = 1 if self._is_small() else _TASKS_PER_CORE * rows.sparkSession.sparkContext.defaultParallelism
        if not stats.last_bytes or self.decisions.partitions > most_tasks:
            return None
        room = min(self.config.segment_bytes - one.size_bytes for one in self.actives)
        most = room / max(2 * stats.last_partition_records, SMALL_ROWS)
        return most if most >= _LEAST_ROOM * stats.last_bytes / stats.last_partition_records else None

    def _is_small(self) -> bool:
        return self.stats.last_record_count is not None and self.stats.last_record_count <= SMALL_ROWS

    def _spark_partitions(self, rows: DataFrame) -> int:
        if self._is_small() or self.decisions.partitions == 1:
            return 1
        return min(self.decisions.partitions, max(2, rows.sparkSession.sparkContext.defaultParallelism))


def _ranges(files: Sequence[DataFile]) -> dict[int, AppendedRange]:
    """Return what some new files hold by partition."""
    found: dict[int, list[DataFile]] = {}
    for one in files:
        found.setdefault(one.partition, []).append(one)
    return {
        partition: AppendedRange(
            partition=partition,
            first_offset=min(one.first_offset for one in mine),
            last_offset=max(one.last_offset for one in mine),
            record_count=sum(one.record_count for one in mine),
            size_bytes=sum(one.size_bytes for one in mine),
        )
        for partition, mine in sorted(found.items())
    }


def check_not_fenced(stamp: ProducerStamp, decisions: Decisions, topic: str) -> None:
    """Raise `ProducerFenced` unless `stamp` is still the newest instance of its transactional.id."""
    newest = decisions.producers.get(stamp.transactional_id)
    ours = f"ours is producer {stamp.producer_id}, epoch {stamp.epoch}"
    if newest is None:
        message = (
            f"topic {topic}: transactional.id {stamp.transactional_id} is not known any more ({ours}): nothing was begun under it for "
            "transactional.id.expiration.ms, or the ledger was lost; begin a new transaction"
        )
        raise ProducerFenced(message)
    if (newest.producer_id, newest.epoch) != (stamp.producer_id, stamp.epoch):
        message = (
            f"topic {topic}: transactional.id {stamp.transactional_id} was taken over by another instance ({ours}; newest is producer "
            f"{newest.producer_id}, epoch {newest.epoch}); what it left open was aborted"
        )
        raise ProducerFenced(message)
