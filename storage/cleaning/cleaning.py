"""One round of cleaning over partitions of one topic: the shell around the pure plan.

```
 plan      which partitions, dirty ranges, segments (lastword.compaction.planning.planner)         metadata
 index     newest offset of each key of the dirty ranges: the offset map;        key, offset, txn columns; a shuffle, or a lane a task
           which rows of the clean section they supersede                        its key, offset (lastword.storage.cleaning.cleaning_index)
 census    what goes beside: aborted, expired, EMPTY rows                        only files that may hold such rows
 group     segments that change or are worth joining (lastword.compaction.planning.grouping)       metadata
 rewrite   only those groups; a filter on position; ordered files, in turns      all columns
 swap      compare-and-set, one Delta commit that names exactly those slices
 receipt   a row for each partition in the ledger: the new cleaner checkpoint
```

A crash before the swap leaves files that VACUUM removes; one between swap and receipt is made good from the swap's own `userMetadata`
(`record_receipts`). A swap that another one overtook is refused and changes nothing: the plan was an old one.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Final

import numpy as np
from pyspark.sql import functions as F

from lastword.compaction.errors import CleaningAborted, UnknownTopic
from lastword.compaction.planning.grouping import group_segments, worth_writing
from lastword.compaction.planning.receipt import CleaningReceipt, estimated_bytes
from lastword.compaction.planning.throttle import Unlimited
from lastword.compaction.producers import Control, known
from lastword.compaction.rows.removal import Removal
from lastword.storage.cleaning.cleaning_index import Found, Index
from lastword.storage.cleaning.cleaning_reads import RoundReads
from lastword.storage.cleaning.cleaning_rows import (
    KEEPS_PLACE,
    REMOVAL,
    STAMPED,
    Judgement,
    survivors,
    with_fate,
)
from lastword.storage.cleaning.cleaning_segments import dirty_segments, files_left, files_of, files_with
from lastword.storage.cleaning.swap import Rewrite
from lastword.storage.delta import crash_points
from lastword.storage.delta.crash_points import CrashPoint
from lastword.storage.delta.plan_values import listed_by_partition
from lastword.storage.delta.slice_ranges import files_in, span_of
from lastword.storage.files.schema import LOG_COLUMNS, OFFSET_BITS, TRANSACTION
from lastword.storage.ledger.decisions import Decision, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray
    from pyspark.sql import DataFrame, SparkSession

    from lastword.compaction.log.segments import Segment
    from lastword.compaction.planning.planner import CleaningPlan, PartitionPlan
    from lastword.compaction.planning.throttle import Pace
    from lastword.storage.delta.snapshot import Files, LogSnapshot
    from lastword.storage.log.topic_log import TopicLog

_SPECIAL: Final = "control IS NOT NULL OR delete_horizon IS NOT NULL OR txn_first_offset IS NOT NULL"

#: A map of fewer keys (some 100 B each in every task) is not worth the time that it takes to let go of it before the next round does.
_MANY_KEYS: Final = 2**17


class Cleaning:
    """One round over the chosen partitions of a plan, against the snapshot that it was planned with."""

    def __init__(
        self,
        log: TopicLog,
        spark: SparkSession,
        plan: CleaningPlan,
        snapshot: LogSnapshot,
        *,
        slots: int,
        parallelism: int | None = None,
        pace: Pace | None = None,
    ) -> None:
        """Take what was planned; nothing runs yet. `slots` are those of the offset map; `parallelism` limits the tasks at a time."""
        self.log, self.spark, self.plan, self.snapshot, self.slots = log, spark, plan, snapshot, slots
        self.pace = pace or Unlimited()
        self.indexed_share = log.compression(snapshot).indexed
        self.decisions = log.decisions_seen(snapshot)
        self.config = log.config(self.decisions)
        self.chosen = {one.log.partition: one for one in plan.chosen}
        self.parallelism = parallelism
        self.reads = RoundReads(spark, log.paths.log, snapshot, self.chosen, parallelism)
        self.found: dict[int, Found] = {partition: Found() for partition in self.chosen}
        self.released = [(one << OFFSET_BITS) | offset for one in self.chosen for offset in self.decisions.released_offsets(one)]

    def run(self) -> list[CleaningReceipt]:
        """Clean, and return a receipt for each partition that was; raise `CommitConflict` when another swap came first."""
        expected = self._indexed_bytes(sum(segment.size_bytes for plan in self.chosen.values() for segment in plan.segments))
        self.pace.spend(expected)
        started = time.monotonic()
        try:
            judgement = self._look()
            index_ms = _elapsed_ms(started)
            groups = self._groups()
            crash_points.reached(CrashPoint.CLEANING_PLANNED)
            read_again = self._read_again(groups)
            bytes_again = self._bytes_by_partition(read_again)
            receipts = self._receipts(groups, bytes_again, index_ms)
            receipts = [one for one in receipts if one.groups or one.end_offset > one.first_dirty_offset]
            left_bytes = self._left_bytes(read_again, receipts)
            version = self._swap(judgement, groups, read_again, left_bytes, receipts)
        finally:
            self.reads.release()
        if version is None:
            return []
        crash_points.reached(CrashPoint.SWAP_COMMITTED)
        done = [replace(one, total_ms=_elapsed_ms(started), table_version=version) for one in receipts]
        done = self._with_sizes(done, groups, version)
        expected += sum(bytes_again.values()) + int(left_bytes.sum())
        self.pace.settle(sum(one.read_bytes + (one.bytes_after or 0) for one in done) - expected)
        write_receipts(self.log, done)
        crash_points.reached(CrashPoint.RECEIPT_WRITTEN)
        return done

    def preview(self) -> list[CleaningReceipt]:
        """Return the receipts that `run` would write, without writing anything; sizes and times after the cleaning are unknown."""
        started = time.monotonic()
        try:
            self._look()
            groups = self._groups()
            index_ms = _elapsed_ms(started)
            bytes_again = self._bytes_by_partition(self._read_again(groups))
            return [one for one in self._receipts(groups, bytes_again, index_ms) if one.groups]
        finally:
            self.reads.release()

    # --- pass 1 -------------------------------------------------------------------------------------------------------------------------

    def _look(self) -> Judgement:
        """Run the narrow jobs: the offset map, what it supersedes, and the census of everything else that goes."""
        first_dirty, end = self._bounds()
        transactional = self._holds_producers()
        aborted = self._aborted() if transactional else None
        index = Index(self.reads, self.chosen, self.found, first_dirty=first_dirty, end=end)
        judged = index.judged(aborted)
        if index.sent_keys >= _MANY_KEYS:
            self.reads.forget()  # the segments are written without that map
        judgement = Judgement(
            now_ms=self.plan.now_ms,
            delete_retention_ms=self.config.delete_retention_ms,
            first_dirty=first_dirty,
            end=end,
            judged=judged,
            aborted=aborted,
            pinned=None,
            places=self._places(),
            unread=self.plan.unread_offsets(self.decisions.partitions),
            released=self.released,
            broadcast=index.broadcasts(),
        )
        if transactional:
            judgement = replace(judgement, pinned=self._pinned(judgement))
        self._census(judgement)
        return judgement

    def _bounds(self) -> tuple[list[int], list[int]]:
        """Return first dirty and end offset by partition of the topic; of a partition that is not cleaned nothing is judged."""
        first_dirty, end = [0] * self.decisions.partitions, [0] * self.decisions.partitions
        for partition, plan in self.chosen.items():
            first_dirty[partition] = plan.dirty.first_offset
            end[partition] = max(plan.dirty.end_offset, plan.dirty.first_offset)
        return first_dirty, end

    def _holds_producers(self) -> bool:
        files = self.snapshot.files
        mine = files_of(files, self.chosen)
        return bool((files.producer_rows[mine] > 0).any())

    def _aborted(self) -> DataFrame | None:
        """Return the transactions that were aborted: their markers may stand past the dirty range, but not before it."""
        first = {partition: dirty_segments(plan)[0].slices[0] for partition, plan in self.chosen.items() if dirty_segments(plan)}
        if not first:
            return None  # aborted data never outlives the cleaning of its range
        markers = self.reads.table.where(F.col("producer_id").isNotNull() & (F.col("control") == Control.ABORT.value))
        markers = markers.where(reduce(or_, [(F.col("partition") == one) & (F.col("slice") >= start) for one, start in first.items()]))
        return self.reads.hold(self.reads.few(markers.where(F.col("txn_first_offset").isNotNull()).select(*TRANSACTION).distinct()))

    def _pinned(self, judgement: Judgement) -> DataFrame:
        """Return the transactions with a marker in the range of which a data row is left after the pass."""
        rows = self.reads.special(lambda files: files.producer_rows > 0, from_start=True)
        if rows is None:
            return self.spark.createDataFrame([], "partition int, producer_id bigint, txn_first_offset bigint")
        marker = F.col("control").isin(Control.COMMIT.value, Control.ABORT.value)
        ended = (
            rows.where(marker & F.col("txn_first_offset").isNotNull() & F.col("delete_horizon").isNull()).select(*TRANSACTION).distinct()
        )
        data = rows.where(F.col("control").isNull() & F.col("txn_first_offset").isNotNull())
        begins = [0] * self.decisions.partitions
        for partition, plan in self.chosen.items():
            begins[partition] = plan.segments[0].first_offset  # what lies before it stays until retention takes it
        stays = f"{REMOVAL} IS NULL OR offset < {listed_by_partition(begins)}"
        left = with_fate(data, judgement, keys=False, values=False).where(stays)
        return self.reads.hold(ended.join(left, list(TRANSACTION), "left_semi"))

    def _places(self) -> list[int]:
        """Return the positions that must stay: the rows that hold an active producer's place, and the last row of each partition."""
        ends = self.snapshot.log_end_offsets(self.decisions.partitions)
        held = {(partition, ends[partition] - 1) for partition in self.chosen if ends[partition]}
        states = self.log.producer_states(self.spark, self.snapshot, of=self.chosen).values()
        active = known(states, now_ms=self.plan.now_ms, expiration_ms=self.config.producer_id_expiration_ms)
        held |= {(one.partition, one.place_offset) for one in active if one.partition in self.chosen}
        for partition, offset in sorted(held):
            if self.chosen[partition].segments and offset <= self.chosen[partition].segments[-1].last_offset:
                self.found[partition].places.append(offset)
        return [(partition << OFFSET_BITS) | offset for partition, found in self.found.items() for offset in found.places]

    def _census(self, judgement: Judgement) -> None:
        """Count what goes besides superseded and keyless rows, and find the clean segments that change by it."""
        now_ms = self.plan.now_ms
        # A record without a key that holds a place leaves an EMPTY row; no other plain one that holds a place goes.
        keyless = [partition for partition, found in self.found.items() if Removal.KEYLESS.value in found.removed]
        held = [(partition << OFFSET_BITS) | offset for partition in keyless for offset in self.found[partition].places]

        def may_change(files: Files) -> NDArray[np.bool_]:
            due = (files.delete_horizon_ms >= 0) & (files.delete_horizon_ms <= now_ms)
            return (files.producer_rows > 0) | (files.empty_rows > 0) | due | files_with(files, [*self.released, *held])

        rows = self.reads.special(may_change)
        if rows is None:
            return
        fated = with_fate(rows, judgement, keys=False, values=False)
        special = F.expr(_SPECIAL) | (F.col(REMOVAL) == Removal.PURGED_TOMBSTONE.value)
        changes = fated.where((special & (F.col(REMOVAL).isNotNull() | F.col(STAMPED))) | F.col(KEEPS_PLACE))
        counts = changes.groupBy("partition", "segment", REMOVAL).agg(
            F.count(F.lit(1)).alias("rows"),
            F.count(F.when(F.col(KEEPS_PLACE), 1)).alias("emptied"),
            F.max("offset").alias("last"),
        )
        for row in counts.collect():
            found = self.found[row["partition"]]
            found.changed.add(row["segment"])
            if row[REMOVAL] not in {None, Removal.SUPERSEDED.value, Removal.KEYLESS.value}:  # the index has counted those
                found.count(row[REMOVAL], row["segment"], row["rows"])
            found.emptied += row["emptied"]
            if row[REMOVAL] in {Removal.EXPIRED_TOMBSTONE.value, Removal.PURGED_TOMBSTONE.value}:
                found.highest_tombstones[row[REMOVAL]] = max(row["last"], found.highest_tombstones.get(row[REMOVAL], 0))

    # --- pass 2 -------------------------------------------------------------------------------------------------------------------------

    def _groups(self) -> dict[int, list[Sequence[Segment]]]:
        """Return by partition the groups of segments that are written again."""
        found = {}
        for partition, plan in self.chosen.items():
            dirty = {one.label for one in dirty_segments(plan)}
            groups = worth_writing(group_segments(plan.segments, self.config.segment_bytes), self.found[partition].changed | dirty)
            if groups:
                found[partition] = groups
        return found

    def _swap(
        self,
        judgement: Judgement,
        groups: Mapping[int, list[Sequence[Segment]]],
        read_again: NDArray[np.bool_],
        left_bytes: NDArray[np.int64],
        receipts: Sequence[CleaningReceipt],
    ) -> int | None:
        """Write the groups and put them in the place of what they were made of; None when there is nothing to write."""
        if not groups:
            return None

        def rows(chosen: NDArray[np.bool_]) -> DataFrame:
            self._check_still_wanted()  # at each turn: a slow pace may make a round long
            # Beyond a broadcast the rows are shuffled to be judged: the tasks before that are limited too.
            found = self.reads.files(chosen)
            return survivors(with_fate(found if judgement.broadcast else self.reads.few(found), judgement), judgement, LOG_COLUMNS)

        return Rewrite(
            log=self.log,
            spark=self.spark,
            snapshot=self.snapshot,
            groups=groups,
            rows=rows,
            read=read_again,
            left_bytes=left_bytes,
            one_slice=False,
            parallelism=self.parallelism,
            pace=self.pace,
        ).commit("clean", [one.to_details() for one in receipts])

    def _left_bytes(self, read_again: NDArray[np.bool_], receipts: Sequence[CleaningReceipt]) -> NDArray[np.int64]:
        """Return about how much is left of each file that is read again."""
        files = self.snapshot.files
        left = np.zeros(len(files.partition), dtype=np.int64)
        for one in receipts:
            mine = read_again & (files.partition == one.partition)
            left[mine] = files.size_bytes[mine] * min(1.0, one.records_after / max(1, files.record_count[mine].sum()))
        return left

    def _read_again(self, groups: Mapping[int, list[Sequence[Segment]]]) -> NDArray[np.bool_]:
        """Tell which files the groups have to be made of; one of which no row is left is none of them."""
        files = self.snapshot.files
        again = np.zeros(len(files.partition), dtype=np.bool_)
        for partition, mine in groups.items():
            found = self.found[partition]
            superseded = found.removed.get(Removal.SUPERSEDED.value, {})
            left = files_left(files, self.chosen[partition], newest=found.newest, superseded=superseded, places=found.places)
            again |= left & files_in(files, map(span_of, mine))
        return again

    def _bytes_by_partition(self, chosen: NDArray[np.bool_]) -> dict[int, int]:
        """Return the bytes of some files by partition; a partition with none of them is not there."""
        files = self.snapshot.files
        total = np.zeros(self.decisions.partitions, dtype=np.int64)
        np.add.at(total, files.partition[chosen], files.size_bytes[chosen])
        return {partition: size for partition, size in enumerate(total.tolist()) if size}

    def _check_still_wanted(self) -> None:
        """Raise `CleaningAborted` when the topic is gone, is not compacted any more, or was paused since the plan."""
        try:
            today = self.log.decisions()
        except UnknownTopic as error:
            message = f"topic {self.log.name}: deleted while it was being cleaned"
            raise CleaningAborted(message) from error
        if not self.log.config(today).compacted:
            message = f"topic {self.log.name}: cleanup.policy was changed while it was being cleaned"
            raise CleaningAborted(message)
        paused = sorted(set(today.pauses) & set(self.chosen))
        if paused:
            message = f"topic {self.log.name}: partitions {paused} were paused while they were being cleaned"
            raise CleaningAborted(message, paused)

    # --- receipts -----------------------------------------------------------------------------------------------------------------------

    def _receipts(
        self, groups: Mapping[int, list[Sequence[Segment]]], bytes_again: Mapping[int, int], index_ms: int
    ) -> list[CleaningReceipt]:
        return [
            self._receipt(plan, groups.get(partition, []), bytes_again.get(partition, 0), index_ms)
            for partition, plan in self.chosen.items()
        ]

    def _receipt(self, plan: PartitionPlan, groups: Sequence[Sequence[Segment]], bytes_again: int, index_ms: int) -> CleaningReceipt:
        found = self.found[plan.log.partition]
        members = [one for group in groups for one in group]
        removed = found.totals()
        before = sum(one.record_count for one in members)
        bytes_before = sum(one.size_bytes for one in members)
        indexed = self.reads.bytes[plan.log.partition]
        return CleaningReceipt(
            topic=plan.log.topic,
            partition=plan.log.partition,
            trigger=plan.trigger.name.lower() if plan.trigger else "",
            first_dirty_offset=plan.dirty.first_offset,
            end_offset=max(plan.dirty.end_offset, plan.dirty.first_offset),
            cleanable_ratio=plan.range.ratio,
            table_version=None,
            segments_before=len(members),
            groups=len(groups),
            records_before=before,
            records_after=before - sum(removed.values()) + found.emptied,
            bytes_before=bytes_before,
            bytes_after=None,
            removed=removed,
            emptied=found.emptied,
            map_entries=found.keys,
            map_utilization=found.keys / self.slots if self.slots else 0.0,
            rounds_left=plan.dirty.rounds_left,
            highest_removed_tombstone=max(found.highest_tombstones.values(), default=None),
            highest_expired_tombstone=found.highest_tombstones.get(Removal.EXPIRED_TOMBSTONE.value),
            removed_bytes=estimated_bytes(found.removed, plan.segments, mapped=dirty_segments(plan)),
            indexed_bytes=indexed,
            read_bytes=self._indexed_bytes(indexed) + bytes_again,
            index_ms=index_ms,
            total_ms=None,
            now_ms=self.plan.now_ms,
        )

    def _indexed_bytes(self, size_bytes: int) -> int:
        """Return how much pass 1 reads of segments: some columns of them."""
        return round(self.indexed_share * size_bytes)

    def _with_sizes(
        self, receipts: Sequence[CleaningReceipt], groups: Mapping[int, list[Sequence[Segment]]], version: int
    ) -> list[CleaningReceipt]:
        """Return receipts with what was really written, from the statistics of the new files."""
        files = self.log.snapshot_at(version).files
        done = []
        for one in receipts:
            written = files_in(files, map(span_of, groups.get(one.partition, [])))
            records = int(files.record_count[written].sum())
            emptied = records - one.records_before + one.removed_count
            done.append(replace(one, bytes_after=int(files.size_bytes[written].sum()), records_after=records, emptied=emptied))
        return done


def write_receipts(log: TopicLog, receipts: Sequence[CleaningReceipt]) -> None:
    """Write receipts into the ledger: the new cleaner checkpoints."""
    log.ledger.append(
        [
            Decision(
                kind=Kind.CLEAN,
                time_ms=one.now_ms,
                partition=one.partition,
                offset=one.end_offset,
                table_version=one.table_version,
                details=one.to_details(),
            )
            for one in receipts
        ]
    )


def _elapsed_ms(started: float) -> int:
    return round((time.monotonic() - started) * 1000)
