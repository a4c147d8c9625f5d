"""The cleaner: rounds of cleaning, retention and upkeep over topics, and who may touch which partition.

```
 tick ─► for each topic: look back ─► plan ─► clean ─► receipts   until nothing is eligible
                                   └► retention ─► merge small files
```

A round that fails is repeated partition by partition, from plans anew: the failure of one that fails again is remembered in the ledger
(`lastword.streaming.cleaning.failures`), the others go on. It is tried again, by itself, when its backoff is over, or never if it is
quarantined. A plan that another swap overtook is planned again. What is paused or in progress is left alone. Retention goes on in
partitions whose cleaning fails: it removes whole segments and reads none but for the last row of a partition.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final, TypeVar

from lastword.compaction.errors import CleaningAborted, CommitConflict, CommitStateUnknown, UnknownTopic, first_line
from lastword.compaction.planning.bounds import CheckpointReset
from lastword.compaction.planning.offset_map import map_entries, map_slots
from lastword.compaction.planning.planner import Obstacle, plan_cleaning
from lastword.storage.cleaning.cleaning import Cleaning
from lastword.storage.cleaning.limits import CLEANING_LIMITS
from lastword.storage.cleaning.retention import remove_segments
from lastword.storage.cleaning.small_files import merge_small_files
from lastword.storage.delta.commit import retry_on_conflict
from lastword.streaming import metrics
from lastword.streaming.cleaning.claims import Claims
from lastword.streaming.cleaning.failures import record_failure, record_success, report_uncleanable
from lastword.streaming.cleaning.maintenance_locks import MAINTENANCE_LOCKS
from lastword.streaming.cleaning.rate_limit import RoundSlots
from lastword.streaming.cluster import cluster_of
from lastword.streaming.events import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from pyspark.sql import SparkSession

    from lastword.compaction.config.topic_config import ServiceConfig
    from lastword.compaction.planning.bounds import PartitionLog
    from lastword.compaction.planning.log_retention import Deletion
    from lastword.compaction.planning.planner import CleaningPlan, PartitionPlan
    from lastword.compaction.planning.rate_limiter import Spend
    from lastword.compaction.planning.receipt import CleaningReceipt
    from lastword.storage.cleaning.limits import CleaningLimits
    from lastword.storage.log.topic_log import LogState, TopicLog
    from lastword.streaming.cleaning.maintenance_locks import MaintenanceLocks
    from lastword.streaming.cleaning.rate_limit import SharedRate

_MIB: Final = 2**20
#: So long a round may wait at the most: VACUUM takes files of a day that no commit names.
_MAX_WAITING_SECONDS: Final = 12 * 3600
#: Errors that say nothing about a partition.
_OF_NO_PARTITION: Final = (CommitConflict, CommitStateUnknown, UnknownTopic)
_LOG: Final = logger("cleaner")
T = TypeVar("T")


class Cleaner:
    """Cleans topics of one log.dir; shared by the threads of a process."""

    def __init__(
        self,
        config: ServiceConfig,
        *,
        parallelism: int | Callable[[], int] | None = None,
        locks: MaintenanceLocks = MAINTENANCE_LOCKS,
        limits: CleaningLimits = CLEANING_LIMITS,
    ) -> None:
        """Start idle. `locks` says what other threads of this process work on, `limits` how much a round takes at a time.

        As many rounds run at a time as `config` has cleaner threads, of all callers together. `parallelism` limits the tasks of all of them
        together, so that appends find a free core; a function is asked when a round begins, as executors come and go.
        """
        self.config, self.locks, self.limits = config, locks, limits
        self._limit = parallelism
        self._reported_resets: dict[tuple[str, int], tuple[int | None, int]] = {}
        self._unreadable: set[tuple[str, int]] = set()
        self._slots = RoundSlots(self._rounds)
        #: What this cleaner says in the ledger about what it works on, for those of other processes.
        self.claims = Claims()
        #: Set it, and no further round begins; the one in hand ends.
        self.stopping = threading.Event()

    def _rounds(self) -> int:
        """Return how many rounds may run now."""
        limit = self._limit() if callable(self._limit) else self._limit
        return self.config.log_cleaner_threads if limit is None else max(1, min(self.config.log_cleaner_threads, limit))

    @property
    def _parallelism(self) -> int | None:
        """The most tasks of one round now; None for no limit."""
        limit = self._limit() if callable(self._limit) else self._limit
        return None if limit is None else max(1, limit // self._rounds())

    # --- what is planned ----------------------------------------------------------------------------------------------------------------

    def plan(self, log: TopicLog, *, now_ms: int, force: bool = False, most_bytes: int | None = None) -> tuple[CleaningPlan, LogState]:
        """Return what a round would do, and the log that it was planned with."""
        log.sync_ledger_with_history()
        state = log.at()
        logs = state.partition_logs(now_ms=now_ms, again=force)
        return self._plan(log, logs, now_ms=now_ms, force=force, most_bytes=most_bytes, done=set()), state

    def preview(self, log: TopicLog, spark: SparkSession | None, *, now_ms: int, force: bool = False) -> list[CleaningReceipt]:
        """Return the receipts that one round would write, without writing anything (the dry run)."""
        plan, state = self.plan(log, now_ms=now_ms, force=force)
        slots = map_slots(self.config)
        return Cleaning(state, cluster_of(spark), plan, slots=slots, parallelism=self._parallelism, limits=self.limits).preview()

    def _logs(self, state: LogState, *, now_ms: int, again: bool = False) -> list[PartitionLog]:
        """Return what planning knows of every partition, and report once each whose producers cannot be read."""
        log, logs = state.log, state.partition_logs(now_ms=now_ms, again=again)
        for partition_log in logs:
            place = log.paths.root, partition_log.partition
            if partition_log.unreadable is None:
                self._unreadable.discard(place)
            elif place not in self._unreadable:
                self._unreadable.add(place)
                report_uncleanable(partition_log, partition_log.unreadable, None)
        return logs

    def _plan(
        self, log: TopicLog, logs: Sequence[PartitionLog], *, now_ms: int, force: bool, most_bytes: int | None, done: set[int]
    ) -> CleaningPlan:
        today = log.decisions()
        failures = today.cleaning_failures()
        is_busy = self.locks.is_held(log) or (not force and self.claims.of_another(today) is not None)

        def obstacle_of(partition_log: PartitionLog) -> Obstacle | None:
            if is_busy or partition_log.partition in done:
                return Obstacle.IN_PROGRESS
            if partition_log.partition in today.pauses:
                return Obstacle.PAUSED
            return failures[partition_log.partition].obstacle(now_ms) if partition_log.partition in failures else None

        entries = map_entries(self.config)
        return plan_cleaning(logs, now_ms=now_ms, entries=entries, obstacle_of=obstacle_of, force=force, most_bytes=most_bytes)

    # --- cleaning -----------------------------------------------------------------------------------------------------------------------

    def clean(
        self,
        log: TopicLog,
        spark: SparkSession | None,
        *,
        clock_ms: Callable[[], int],
        force: bool = False,
        rate: SharedRate | None = None,
        partitions: Collection[int] | None = None,
    ) -> list[CleaningReceipt]:
        """Clean every eligible partition of a topic once, in as many commits as the map budget asks for; return their receipts.

        With the session `spark` much work is spread over its executors, if it has some; else all of it is done by threads of this process.

        Each round is of the moment at which it begins (`clock_ms`), as each cleaning of Kafka's is: tombstones that a late one finds keep
        their whole delete.retention.ms. One that waits for a slot begins, and is planned, after that. With a limit of bytes a second,
        `rate`, one round of it. Only `partitions`, when they are given: the others are left alone. What is left when `stopping` is set
        stays as it is.
        """
        done = set() if partitions is None else set(range(log.decisions().partitions)) - set(partitions)
        # One that failed before has a round of its own: the work on others is not thrown away if it fails again.
        failures = log.decisions().cleaning_failures()
        due = {partition for partition, failure in failures.items() if force or failure.obstacle(clock_ms()) is None} - done
        receipts = self._clean_each(log, spark, due, clock_ms=clock_ms, force=force, rate=rate, done=done)
        done |= failures.keys()
        while not self.stopping.is_set():
            receipts_of_round, tried = self._round(log, spark, clock_ms=clock_ms, force=force, rate=rate, done=done)
            receipts += receipts_of_round
            if not tried or (rate is not None and rate.limiter.round_bytes is not None):
                break
            done |= tried
        return receipts

    def _round(
        self,
        log: TopicLog,
        spark: SparkSession | None,
        *,
        clock_ms: Callable[[], int],
        force: bool,
        rate: SharedRate | None,
        done: set[int],
    ) -> tuple[list[CleaningReceipt], set[int]]:
        """Plan and execute one round, again from a fresh plan while others come first; return its receipts and what was tried.

        When it fails, its partitions are cleaned one by one, each by a plan of its own: the round may have changed the log all the same.
        """
        most_bytes = None if rate is None else rate.limiter.round_bytes

        def plan_round() -> tuple[CleaningPlan, LogState]:
            log.sync_ledger_with_history()
            state, now_ms = log.at(), clock_ms()
            logs = self._logs(state, now_ms=now_ms, again=force)
            plan = self._plan(log, logs, now_ms=now_ms, force=force, most_bytes=most_bytes, done=done)
            return plan, state

        def once() -> tuple[list[CleaningReceipt] | None, set[int]]:
            plan, state = plan_round()
            if not plan.chosen:
                self._report_plan(log, plan)
                return [], set()
            with self._slots.hold() as waited:
                if self.stopping.is_set():
                    return [], set()
                if waited:  # as long as rounds of others took: of another moment, and perhaps another log
                    plan, state = plan_round()
                self._report_plan(log, plan)
                chosen = {partition_plan.log.partition for partition_plan in plan.chosen}
                try:
                    if not chosen:
                        return [], chosen
                    return self._execute(log, spark, plan, state, rate, clock_ms=clock_ms, force=force), chosen
                except CleaningAborted as error:
                    _LOG.info("cleaning aborted", topic=log.name, why=str(error))
                    return [], chosen & error.paused

        receipts, chosen = retry_on_conflict(once)
        if receipts is not None:
            return receipts, chosen
        return self._clean_each(log, spark, chosen, clock_ms=clock_ms, force=force, rate=rate, done=done), chosen

    def _clean_each(
        self,
        log: TopicLog,
        spark: SparkSession | None,
        partitions: Collection[int],
        *,
        clock_ms: Callable[[], int],
        force: bool,
        rate: SharedRate | None,
        done: set[int],
    ) -> list[CleaningReceipt]:
        """Clean partitions in rounds of their own, if they are eligible."""
        receipts: list[CleaningReceipt] = []
        for partition in sorted(partitions):
            if not self.stopping.is_set():
                others = set(range(log.decisions().partitions)) - {partition}
                receipts += self._round(log, spark, clock_ms=clock_ms, force=force, rate=rate, done=others | done)[0]
        return receipts

    def _execute(
        self,
        log: TopicLog,
        spark: SparkSession | None,
        plan: CleaningPlan,
        state: LogState,
        rate: SharedRate | None,
        *,
        clock_ms: Callable[[], int],
        force: bool,
    ) -> list[CleaningReceipt] | None:
        """Clean the chosen partitions. The failure of a single one is recorded; if several fail together, return None."""
        with self.locks.hold(log):
            try:
                size_bytes = sum(segment.size_bytes for partition_plan in plan.chosen for segment in partition_plan.segments)
                with self.claims.hold(log, size_bytes, insists=force):
                    return self._run(spark, plan, state, rate)
            except (*_OF_NO_PARTITION, CleaningAborted):
                raise
            except Exception as error:
                if (
                    log.snapshot().maintenance_txn != state.snapshot.maintenance_txn
                ):  # a purge of another process may have deleted old files
                    message = f"topic {log.name}: the files of the plan may be gone, as another process has replaced files: {error}"
                    raise CommitConflict(message) from error
                if len(plan.chosen) == 1:
                    record_failure(
                        log,
                        plan.chosen[0].log,
                        error,
                        table_version=state.version,
                        now_ms=clock_ms(),
                        max_failures=self.config.log_cleaner_max_failures,
                    )
                    return []
                _LOG.warning("round failed, retrying each partition", topic=log.name, error=first_line(error))
                return None

    def _run(self, spark: SparkSession | None, plan: CleaningPlan, state: LogState, rate: SharedRate | None) -> list[CleaningReceipt]:
        began, log = time.monotonic(), state.log
        slots, spend = map_slots(self.config), self._spend_of(log, rate)
        receipts = Cleaning(
            state, cluster_of(spark), plan, slots=slots, parallelism=self._parallelism, spend=spend, limits=self.limits
        ).run()
        metrics.count_round(log.name, receipts, seconds=time.monotonic() - began)
        chosen = [partition_plan.log.partition for partition_plan in plan.chosen]
        record_success(log, chosen, table_version=state.version, now_ms=plan.now_ms)
        for receipt in receipts:
            report_cleaning(receipt)
        return receipts

    def _spend_of(self, log: TopicLog, rate: SharedRate | None) -> Spend | None:
        """Return what a round that holds a slot calls to keep to the rate; None without a limit.

        It waits no longer once another thread waits for the topic, or VACUUM could delete what the round has written.
        """
        if rate is None or rate.limiter.round_bytes is None:
            return None
        end = rate.seconds() + _MAX_WAITING_SECONDS

        def spend(counted_bytes: int) -> None:
            with self._slots.lend():
                rate.spend(counted_bytes, lambda: self.locks.is_awaited(log) or rate.seconds() > end)

        return spend

    # --- retention and upkeep -----------------------------------------------------------------------------------------------------------

    def apply_retention(self, log: TopicLog, *, now_ms: int, heeds_claims: bool = False) -> dict[int, Deletion]:
        """Take away the segments that log start, size and time allow to go; return what went by partition.

        With `heeds_claims` none of a topic that a cleaner of another process has claimed.

        When that fails it is done partition by partition, and what went wrong with one of them is raised in the end.
        """

        def once(only: int | None) -> dict[int, Deletion]:
            log.sync_ledger_with_history()
            state = log.at()
            logs = self._idle(log, self._logs(state, now_ms=now_ms), only)
            if not logs or (heeds_claims and self.claims.of_another(log.decisions()) is not None):
                return {}
            with self.locks.hold(log):
                return remove_segments(state, logs, now_ms=now_ms)

        each, failure = _together_or_apart(log, once)
        deletions = {partition: deletion for mine in each for partition, deletion in mine.items()}
        self._report_deletions(log, deletions)
        if failure is not None:
            raise failure
        return {partition: deletion for partition, deletion in deletions.items() if deletion.segments}

    @staticmethod
    def _report_deletions(log: TopicLog, deletions: Mapping[int, Deletion]) -> None:
        metrics.count_deletions(log.name, deletions)
        for partition, deletion in deletions.items():
            if deletion.future_timestamp_ms is not None:
                _LOG.warning(
                    "retention blocked by future timestamp", topic=log.name, partition=partition, until=deletion.future_timestamp_ms
                )
            if deletion.segments:
                _LOG.info(
                    "segments deleted",
                    topic=log.name,
                    partition=partition,
                    segments=[(segment.base_offset, breach.value) for segment, breach in deletion.segments],
                    log_start_offset=deletion.log_start_offset,
                )

    def merge(self, log: TopicLog, spark: SparkSession | None, *, now_ms: int, rate: SharedRate | None = None) -> int:
        """Merge small files: old slices of active segments and, if no cleaning writes them again, slices of closed ones.

        Return in how many segments there were any to merge. When that fails it is done partition by partition, and what went wrong with one
        of them is raised in the end.
        """

        def once(only: int | None) -> int:
            with self._slots.hold():  # first: a merge that waits for a slot holds no lock
                if self.stopping.is_set() or self.claims.of_another(log.decisions()) is not None:
                    return 0
                state = log.at()
                logs = self._idle(log, self._logs(state, now_ms=now_ms), only)
                failures = state.decisions.cleaning_failures() if state.config.compacted else {}
                logs = [
                    partition_log for partition_log in logs if partition_log.unreadable is None and partition_log.partition not in failures
                ]
                if not logs:
                    return 0
                with self.locks.hold(log):
                    return merge_small_files(
                        state,
                        logs,
                        now_ms=now_ms,
                        spend=self._spend_of(log, rate),
                        cluster=cluster_of(spark),
                        parallelism=self._parallelism,
                        limits=self.limits,
                    )

        merged, failure = _together_or_apart(log, once)
        if failure is not None:
            raise failure
        return sum(merged)

    def _idle(self, log: TopicLog, logs: Sequence[PartitionLog], only: int | None) -> list[PartitionLog]:
        """Return the partitions, or the one that is wanted, without those that are paused; none while another thread works on the topic."""
        if self.locks.is_held(log):
            return []
        paused = log.decisions().pauses
        return [
            partition_log for partition_log in logs if only in {None, partition_log.partition} and partition_log.partition not in paused
        ]

    def forget(self, log: TopicLog) -> None:
        """Drop what is known of a topic that is gone."""
        self._reported_resets = {place: seen for place, seen in self._reported_resets.items() if place[0] != log.paths.root}
        self._unreadable = {place for place in self._unreadable if place[0] != log.paths.root}
        metrics.forget_topic(log.name)

    def _is_news(self, log: TopicLog, plan: PartitionPlan) -> bool:
        """Return True the first time that a cleaner checkpoint is reset, so that it is logged once. A reset by retention is expected."""
        place, why = (log.paths.root, plan.log.partition), plan.range.reset
        if why is None or (why is CheckpointReset.BELOW_LOG_START and plan.log.config.deletes):
            self._reported_resets.pop(place, None)
            return False
        seen = plan.log.checkpoint, plan.log.log_start_offset
        known = self._reported_resets.get(place) == seen
        self._reported_resets[place] = seen
        return not known

    def _report_plan(self, log: TopicLog, plan: CleaningPlan) -> None:
        overdue = [partition for partition in plan.partitions if partition.overdue_ms > 0]
        if overdue:
            _LOG.info(
                "partitions overdue",
                topic=log.name,
                partitions=len(overdue),
                max_compaction_delay_ms=max(partition_plan.overdue_ms for partition_plan in overdue),
            )
        for partition in plan.partitions:
            if self._is_news(log, partition):
                _LOG.warning(
                    "cleaner checkpoint reset",
                    topic=log.name,
                    partition=partition.log.partition,
                    checkpoint=partition.log.checkpoint,
                    why=partition.range.reset.value if partition.range.reset is not None else None,
                    log_start_offset=partition.log.log_start_offset,
                    log_end_offset=partition.log.log_end_offset,
                )


def _together_or_apart(log: TopicLog, once: Callable[[int | None], T]) -> tuple[list[T], Exception | None]:
    """Do something for all partitions of a topic (None) or, when that fails, for each by itself.

    Return what it returned, and what went wrong with the first partition of which something did.
    """
    try:
        return [retry_on_conflict(lambda: once(None))], None
    except _OF_NO_PARTITION:
        raise
    except Exception as error:  # noqa: BLE001  one poisoned partition must not hold the others
        _LOG.warning("maintenance failed, retrying each partition", topic=log.name, error=first_line(error))
    done: list[T] = []
    failure: Exception | None = None
    for partition in range(log.decisions().partitions):
        try:
            done.append(retry_on_conflict(lambda: once(partition)))  # noqa: B023  called at once
        except _OF_NO_PARTITION:
            raise
        except Exception as error:  # noqa: BLE001  as above
            failure = failure or error
    return done, failure


def report_cleaning(receipt: CleaningReceipt) -> None:
    """Write what Kafka's cleaner prints (LogCleaner.recordStats), under the same names."""
    seconds = max(receipt.total_ms or 0, 1) / 1000
    index_seconds = max(receipt.index_ms, 1) / 1000
    clean_seconds = max(seconds - index_seconds, 0.001)
    cleaned_mb = receipt.bytes_before / _MIB
    _LOG.info(
        "partition cleaned",
        topic=receipt.topic,
        partition=receipt.partition,
        trigger=receipt.trigger,
        dirty_section=[receipt.first_dirty_offset, receipt.end_offset],
        dirty_ratio=round(receipt.cleanable_ratio, 4),
        processed_mb=round(cleaned_mb, 3),
        seconds=round(seconds, 3),
        mb_per_second=round(cleaned_mb / seconds, 1),
        indexed_mb=round(receipt.indexed_bytes / _MIB, 3),
        index_seconds=round(index_seconds, 3),
        index_percent=round(100 * index_seconds / seconds, 1),
        buffer_utilization_percent=round(100 * receipt.map_utilization, 1),
        clean_seconds=round(clean_seconds, 3),
        start_size_mb=round(cleaned_mb, 3),
        start_messages=receipt.records_before,
        end_size_mb=round((receipt.bytes_after or 0) / _MIB, 3),
        end_messages=receipt.records_after,
        size_reduction_percent=_percent_less(receipt.bytes_after or 0, receipt.bytes_before),
        fewer_messages_percent=_percent_less(receipt.records_after, receipt.records_before),
        removed=dict(receipt.removed),
        rounds_left=receipt.rounds_left,
    )
    if receipt.removed.get("keyless"):
        _LOG.warning("keyless records removed", topic=receipt.topic, partition=receipt.partition, keyless=receipt.removed["keyless"])
    if receipt.rounds_left:
        _LOG.info("dirty range cut by the map budget", topic=receipt.topic, partition=receipt.partition, rounds_left=receipt.rounds_left)


def _percent_less(after: int, before: int) -> float:
    return round(100 * (1 - after / before), 1) if before else float("nan")
