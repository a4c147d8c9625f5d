"""One round of cleaning over partitions of one topic: the shell around the pure plan.

```
 plan      which partitions, dirty ranges, segments (lastword.compaction.planning.planner)         metadata
 task      a partition each: map, ask, group, stream (lastword.storage.cleaning.task)              files, no engine
 check     rows before = rows after + removed − emptied, from the files themselves
 swap      compare-and-set, one Delta commit that names exactly the files that go
 receipt   a row for each partition in the ledger: the new cleaner checkpoint
```

A crash before the swap leaves files that VACUUM removes; one between swap and receipt is made good from the swap's own `userMetadata`
(`write_receipts`). A swap that another one overtook is refused and changes nothing: the plan was an old one.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from lastword.compaction.errors import CleaningAborted, CorruptLog, PartitionUncleanable, UnknownTopic
from lastword.compaction.order.source_positions import highest_of_each_place
from lastword.compaction.planning.rate_limiter import spend_freely
from lastword.compaction.planning.receipt import CleaningReceipt, estimated_bytes
from lastword.compaction.producers import unexpired_producers
from lastword.compaction.rows.fates import Removal
from lastword.compaction.rows.validation import LAST_TIMESTAMP_MS
from lastword.storage.cleaning.limits import CLEANING_LIMITS
from lastword.storage.cleaning.task import Cleaned, CleanTask, SourceFile
from lastword.storage.delta import crash_points
from lastword.storage.delta.commit import new_token
from lastword.storage.delta.crash_points import CrashPoint
from lastword.storage.delta.history import CommitMetadata
from lastword.storage.delta.snapshot import MAINTENANCE_APP_ID
from lastword.storage.ledger.decisions import Decision, Kind
from lastword.storage.tasks import run_tasks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from lastword.compaction.log.segments import Segment
    from lastword.compaction.planning.planner import CleaningPlan, PartitionPlan
    from lastword.compaction.planning.rate_limiter import Spend
    from lastword.storage.cleaning.limits import CleaningLimits
    from lastword.storage.log.topic_log import LogState, TopicLog
    from lastword.storage.tasks import Cluster

_CHECK_SECONDS = 1.0


class Cleaning:
    """One round over the chosen partitions of a plan, against the snapshot that it was planned with."""

    def __init__(
        self,
        state: LogState,
        cluster: Cluster | None,
        plan: CleaningPlan,
        *,
        slots: int,
        parallelism: int | None = None,
        spend: Spend | None = None,
        limits: CleaningLimits = CLEANING_LIMITS,
    ) -> None:
        """Take what was planned; nothing runs yet. `slots` are those of the offset map; `parallelism` limits the tasks at a time.

        `spend` keeps them to a limit of bytes a second: one task at a time is fast enough then.
        """
        self.state, self.log, self.snapshot, self.decisions = state, state.log, state.snapshot, state.decisions
        self.cluster, self.plan, self.slots = cluster, plan, slots
        self.is_limited, self._spend_rate = spend is not None, spend or spend_freely
        self.config = state.config
        self.chosen = {partition_plan.log.partition: partition_plan for partition_plan in plan.chosen}
        self.parallelism, self.limits = parallelism, limits
        self._checked = time.monotonic()

    def run(self) -> list[CleaningReceipt]:
        """Clean, and return a receipt for each partition that was; raise `CommitConflict` when another swap came first."""
        started = time.monotonic()
        cleaned = self._clean(writes=True)
        receipts = [self._receipt(result) for result in cleaned]
        receipts = [receipt for receipt in receipts if receipt.groups or receipt.end_offset > receipt.first_dirty_offset]
        if not any(result.groups for result in cleaned):
            return []
        self._check_still_wanted()
        removes = self._replaced_files(cleaned)
        version = self.log.commit(
            self.snapshot,
            family=MAINTENANCE_APP_ID,
            metadata=CommitMetadata(token=new_token(), kind="clean", receipts=tuple(receipt.to_details() for receipt in receipts)),
            adds=[file for result in cleaned for file in result.written],
            removes=removes,
        )
        crash_points.reached(CrashPoint.SWAP_COMMITTED)
        done = [replace(receipt, total_ms=_elapsed_ms(started), table_version=version) for receipt in receipts]
        write_receipts(self.log, done)
        crash_points.reached(CrashPoint.RECEIPT_WRITTEN)
        return done

    def preview(self) -> list[CleaningReceipt]:
        """Return the receipts that `run` would write, without writing anything; sizes and times after the cleaning are unknown."""
        receipts = [self._receipt(result) for result in self._clean(writes=False)]
        return [replace(receipt, bytes_after=None) for receipt in receipts if receipt.groups]

    # --- tasks --------------------------------------------------------------------------------------------------------------------------

    def _clean(self, *, writes: bool) -> list[Cleaned]:
        """Run the tasks, and check what they return."""
        self._check_order()
        places = self._places()
        tasks = [self._task(plan, places[partition], writes=writes) for partition, plan in self.chosen.items()]
        cleaned = run_tasks(
            tasks,
            self._spend,
            what=f"clean {self.log.name}",
            is_limited=self.is_limited,
            cluster=self.cluster,
            parallelism=self.parallelism,
            spread_bytes=self.limits.spread_bytes,
        )
        if writes:
            for result in cleaned:
                self._check_counts(result)
        return cleaned

    def _task(self, plan: PartitionPlan, places: Sequence[int], *, writes: bool) -> CleanTask:
        partition = plan.log.partition
        unread = self.plan.unread_offsets(self.decisions.partitions)[partition]
        return CleanTask(
            location=self.log.paths.log,
            storage_options=dict(self.log.storage_options),
            codec=self.config.compression_type,
            partition=partition,
            segments=tuple(plan.segments),
            files=tuple(self._files(partition)),
            first_dirty_offset=plan.dirty.first_offset,
            end_offset=plan.dirty.end_offset,
            starts_at_log_start=plan.dirty.first_offset == plan.log.log_start_offset,
            now_ms=self.plan.now_ms,
            horizon_ms=min(self.plan.now_ms + self.config.delete_retention_ms, LAST_TIMESTAMP_MS),
            places=tuple(places),
            released=tuple(self.decisions.released_offsets(partition)),
            unread_offset=unread,
            segment_bytes=self.config.segment_bytes,
            limits=self.limits,
            writes=writes,
        )

    def _files(self, partition: int) -> list[SourceFile]:
        """Return the files of a partition, in order."""
        files = self.snapshot.files
        mine = np.flatnonzero(files.partition == partition)
        columns = (
            getattr(files, name)[mine].tolist()
            for name in ("path", "segment", "slice", "size_bytes", "record_count", "first_offset", "last_offset")
        )
        special = (getattr(files, name)[mine].tolist() for name in ("producer_rows", "empty_rows", "delete_horizon_ms"))
        names = SourceFile.__dataclass_fields__
        return [SourceFile(**dict(zip(names, values, strict=True))) for values in zip(*columns, *special, strict=True)]

    def _check_order(self) -> None:
        """Raise `PartitionUncleanable` where files of other segments lie between those of the plan's, or two files hold one offset."""
        files = self.snapshot.files
        for partition, plan in self.chosen.items():
            planned = [slice_ for segment in plan.segments for slice_ in segment.slices]
            mine = files.slice[files.partition == partition]
            between = np.unique(mine[(mine >= planned[0]) & (mine <= planned[-1])]).tolist()
            if between != planned:
                segments = f"segments {[segment.label for segment in plan.segments]} with slices {planned}"
                message = f"topic {self.log.name} partition {partition}: where {segments} are, slices {between} lie"
                raise PartitionUncleanable(message)
            ordered = np.flatnonzero(files.partition == partition)
            twice = np.flatnonzero(files.first_offset[ordered][1:] <= files.last_offset[ordered][:-1])
            if len(twice):
                file, other = (str(files.path[ordered[twice[0] + number]]) for number in (0, 1))
                message = f"topic {self.log.name} partition {partition}: {other} begins before {file} ends; another writer made one of them"
                raise PartitionUncleanable(message)

    def _places(self) -> dict[int, list[int]]:
        """Return by partition the offsets that must stay: the rows that hold an active producer's place, and the last row."""
        ends = self.state.log_end_offsets
        held = {(partition, ends[partition] - 1) for partition in self.chosen if ends[partition]}
        states = self.state.producer_states(of=self.chosen).values()
        active = unexpired_producers(states, now_ms=self.plan.now_ms, expiration_ms=self.config.producer_id_expiration_ms)
        held |= {(state.partition, state.place_offset) for state in active if state.partition in self.chosen}
        places: dict[int, list[int]] = {partition: [] for partition in self.chosen}
        for partition, offset in sorted(held):
            if offset <= self.chosen[partition].segments[-1].last_offset:
                places[partition].append(offset)
        return places

    def _spend(self, counted_bytes: int) -> None:
        """Wait until a task may read or write so many bytes; raise `CleaningAborted` when the round is not wanted any more."""
        self._spend_rate(counted_bytes)
        if self.is_limited or time.monotonic() - self._checked >= _CHECK_SECONDS:
            self._check_still_wanted()
            self._checked = time.monotonic()

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

    def _members(self, result: Cleaned) -> list[Segment]:
        """Return the segments that a task wrote again."""
        labels = {label for group in result.groups for label in group}
        return [segment for segment in self.chosen[result.partition].segments if segment.label in labels]

    def _check_counts(self, result: Cleaned) -> None:
        """Raise `CorruptLog` when records were lost or doubled: what was read is not what the Delta log says, or a rule is broken."""
        before = sum(segment.record_count for segment in self._members(result))
        after = sum(file.record_count for file in result.written)
        removed = sum(result.totals().values())
        if before != after + removed - result.emptied:
            message = (
                f"topic {self.log.name} partition {result.partition}: the segments to be cleaned hold {before} records by the Delta log, "
                f"but {after} were written, {removed} removed and {result.emptied} of these emptied; nothing was changed. "
                f"lastword verify {self.log.name} names files that are not whole"
            )
            raise CorruptLog(message)

    def _replaced_files(self, cleaned: Sequence[Cleaned]) -> NDArray[np.bool_]:
        """Tell for each file of the snapshot whether it is of a segment that was written again."""
        files = self.snapshot.files
        replaced = np.zeros(len(files.partition), dtype=np.bool_)
        for result in cleaned:
            labels = [segment.label for segment in self._members(result)]
            replaced |= (files.partition == result.partition) & np.isin(files.segment, labels)
        return replaced

    # --- receipts -----------------------------------------------------------------------------------------------------------------------

    def _receipt(self, result: Cleaned) -> CleaningReceipt:
        plan, members = self.chosen[result.partition], self._members(result)
        removed = result.totals()
        before = sum(segment.record_count for segment in members)
        return CleaningReceipt(
            topic=plan.log.topic,
            partition=result.partition,
            trigger=plan.trigger.name.lower() if plan.trigger else "",
            first_dirty_offset=plan.dirty.first_offset,
            end_offset=max(plan.dirty.end_offset, plan.dirty.first_offset),
            cleanable_ratio=plan.range.ratio,
            table_version=None,
            segments_before=len(members),
            groups=len(result.groups),
            records_before=before,
            records_after=before - sum(removed.values()) + result.emptied,
            bytes_before=sum(segment.size_bytes for segment in members),
            bytes_after=sum(file.size_bytes for file in result.written),
            removed=removed,
            emptied=result.emptied,
            map_entries=result.map_entries,
            map_utilization=result.map_entries / self.slots if self.slots else 0.0,
            rounds_left=plan.dirty.rounds_left,
            highest_removed_tombstone=max(result.highest_tombstones.values(), default=None),
            highest_expired_tombstone=result.highest_tombstones.get(Removal.EXPIRED_TOMBSTONE.value),
            removed_bytes=estimated_bytes(result.removed, plan.segments),
            removed_positions=highest_of_each_place(result.removed_positions, self.decisions.removed_positions(result.partition)),
            indexed_bytes=result.indexed_bytes,
            read_bytes=result.indexed_bytes + result.read_bytes,
            index_ms=result.index_ms,
            total_ms=None,
            now_ms=self.plan.now_ms,
        )


def write_receipts(log: TopicLog, receipts: Sequence[CleaningReceipt]) -> None:
    """Write receipts into the ledger: the new cleaner checkpoints."""
    log.ledger.append(
        [
            Decision(
                kind=Kind.CLEAN,
                time_ms=receipt.now_ms,
                partition=receipt.partition,
                offset=receipt.end_offset,
                table_version=receipt.table_version,
                details=receipt.to_details(),
            )
            for receipt in receipts
        ]
    )


def _elapsed_ms(started: float) -> int:
    return round((time.monotonic() - started) * 1000)
