"""Small files: slices of a segment become fewer, larger ones, and no record changes.

```
 segment 412 (active)    412 │ 520  530  540 … 610 │ 620  ◄── appends         10 or more (lastword.compaction.planning.merging)
 after the swap          412 │ 520                 │ 620  ◄── appends
```

Slices never grow: an append writes a slice of its own, named by the log end offset. An append that was planned before the merge therefore
writes behind what is merged, and neither makes the other a conflict. Segments keep their labels, their bases and their first slices; the
swap is no change of data for Delta's streams, and readers of any table version see the same records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lastword.compaction.errors import CorruptLog
from lastword.compaction.log.segments import NO_TIMESTAMP
from lastword.compaction.planning.grouping import group_segments
from lastword.compaction.planning.merging import mergeable_slices, slices_of_active, stays_closed
from lastword.compaction.planning.rate_limiter import spend_freely
from lastword.storage.cleaning.limits import CLEANING_LIMITS
from lastword.storage.cleaning.slices import SegmentWriter
from lastword.storage.delta.commit import new_token
from lastword.storage.delta.history import CommitMetadata
from lastword.storage.delta.snapshot import MAINTENANCE_APP_ID
from lastword.storage.files.data_reader import row_groups
from lastword.storage.files.schema import DATA_SCHEMA
from lastword.storage.tasks import run_tasks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lastword.compaction.log.segments import Segment
    from lastword.compaction.planning.bounds import PartitionLog
    from lastword.compaction.planning.rate_limiter import Spend
    from lastword.storage.cleaning.limits import CleaningLimits
    from lastword.storage.delta.snapshot import LogSnapshot
    from lastword.storage.files.data_files import DataFile
    from lastword.storage.log.topic_log import LogState
    from lastword.storage.tasks import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeTask:
    """Consecutive slices of a segment, whose files become slices from the label `slice` on."""

    location: str
    storage_options: Mapping[str, str]
    codec: str
    partition: int
    segment: int
    slice: int
    paths: tuple[str, ...]
    size_bytes: int
    record_count: int
    limits: CleaningLimits

    def run(self, spend: Spend) -> list[DataFile]:
        """Write the rows of the files again, row group by row group; `CorruptLog` if they are not as many as the Delta log says."""
        writer = SegmentWriter(
            self.location,
            self.storage_options,
            partition=self.partition,
            segment=self.segment,
            slice_=self.slice,
            codec=self.codec,
            limits=self.limits,
            spend=spend,
        )
        try:
            for path in self.paths:
                for group in row_groups(self.location, self.storage_options, path, DATA_SCHEMA.names):
                    spend(group.size_bytes)
                    writer.write(group.read())
            written = writer.close()
        except BaseException:
            writer.abandon()
            raise
        after = sum(file.record_count for file in written)
        if after != self.record_count:
            message = (
                f"{self.location} partition {self.partition} segment {self.segment}: slices to be merged hold {self.record_count} records "
                f"by the Delta log, but {after} were read; nothing was changed"
            )
            raise CorruptLog(message)
        return written


def merge_small_files(
    state: LogState,
    logs: Sequence[PartitionLog],
    *,
    now_ms: int,
    spend: Spend | None = None,
    cluster: Cluster | None = None,
    parallelism: int | None = None,
    limits: CleaningLimits = CLEANING_LIMITS,
) -> int:
    """Merge the slices of partitions in one commit, and return in how many segments there were any to merge.

    In the active segment some of the old ones (`slices_of_active`). In closed segments all, if no cleaning will write them again; of
    those a call takes no more than fill one segment of each partition.
    """
    log, snapshot, decisions, runs = state.log, state.snapshot, state.decisions, list[NDArray[np.int64]]()
    for partition_log in logs:
        rolled = decisions.closed_offset(partition_log.partition, partition_log.log_end_offset)
        runs += _mergeable_runs(partition_log, snapshot, rolled_offset=rolled, now_ms=now_ms, max_slice_bytes=limits.max_slice_bytes)
        runs += _run_of_active(partition_log, snapshot, max_slice_bytes=limits.max_slice_bytes)
    if not runs:
        return 0
    files, codec = state.files, state.config.compression_type
    tasks = [
        MergeTask(
            location=log.paths.log,
            storage_options=dict(log.storage_options),
            codec=codec,
            partition=int(files.partition[run[0]]),
            segment=int(files.segment[run[0]]),
            slice=int(files.slice[run[0]]),
            paths=tuple(files.path[run]),
            size_bytes=int(files.size_bytes[run].sum()),
            record_count=int(files.record_count[run].sum()),
            limits=limits,
        )
        for run in runs
    ]
    written = run_tasks(
        tasks,
        spend or spend_freely,
        what=f"merge files of {log.name}",
        is_limited=spend is not None,
        cluster=cluster,
        parallelism=parallelism,
        spread_bytes=limits.spread_bytes,
    )
    removes = np.zeros(len(files.partition), dtype=np.bool_)
    removes[np.concatenate(runs)] = True
    log.commit(
        snapshot,
        family=MAINTENANCE_APP_ID,
        metadata=CommitMetadata(token=new_token(), kind="merge"),
        adds=[file for each in written for file in each],
        removes=removes,
    )
    return len({(task.partition, task.segment) for task in tasks})


def _mergeable_runs(
    log: PartitionLog, snapshot: LogSnapshot, *, rolled_offset: int, now_ms: int, max_slice_bytes: int
) -> list[NDArray[np.int64]]:
    """Return the files of each run of slices in closed segments that becomes one, by their numbers in the snapshot."""
    if log.config.compacted:
        return []
    waiting: list[Segment] = []
    runs: dict[int, list[NDArray[np.int64]]] = {}
    for closed_segment in log.closed_segments:
        if len(closed_segment.slices) == 1:
            continue
        if closed_segment is log.segments[-1] and not stays_closed(
            closed_segment, log.config, log_end_offset=log.log_end_offset, rolled_offset=rolled_offset, now_ms=now_ms
        ):
            continue
        begins, files = _slices(closed_segment, snapshot)
        mergeable = mergeable_slices(_sizes(begins, files, snapshot), max_slice_bytes=max_slice_bytes)
        if mergeable:
            waiting.append(closed_segment)
            runs[closed_segment.label] = [_numbers(begins, files, run) for run in mergeable]
    groups = group_segments(waiting, log.config.segment_bytes)
    return [run for segment in groups[0] for run in runs[segment.label]] if groups else []


def _run_of_active(log: PartitionLog, snapshot: LogSnapshot, *, max_slice_bytes: int) -> list[NDArray[np.int64]]:
    """Return the numbers of the files of the small slices in the active segment that a merge makes one slice, as a list of one run.

    The list is empty if there is nothing to merge. The slice with the first timestamp, and those behind it, stay: the age of the segment
    counts from it.
    """
    if not log.segments or log.segments[-1].base_offset < log.active_base_offset:
        return []
    begins, files = _slices(log.segments[-1], snapshot)
    timed = np.maximum.reduceat(snapshot.files.max_timestamp_ms[files], begins) > NO_TIMESTAMP
    first_timed = int(np.argmax(timed)) if timed.any() else len(begins)
    run = slices_of_active(_sizes(begins, files, snapshot), first_timed, max_slice_bytes=max_slice_bytes)
    return [_numbers(begins, files, run)] if run else []


def _slices(segment: Segment, snapshot: LogSnapshot) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where each slice begins among the files of a segment, and those files by their numbers in the snapshot."""
    files = snapshot.files
    mine = np.flatnonzero((files.partition == segment.partition) & (files.segment == segment.label))
    return np.append(0, np.flatnonzero(np.diff(files.slice[mine])) + 1), mine


def _sizes(begins: NDArray[np.int64], files: NDArray[np.int64], snapshot: LogSnapshot) -> list[int]:
    sizes: list[int] = np.add.reduceat(snapshot.files.size_bytes[files], begins).tolist()
    return sizes


def _numbers(begins: NDArray[np.int64], files: NDArray[np.int64], run: range) -> NDArray[np.int64]:
    """Return the files of a run of slices."""
    end = begins[run.stop] if run.stop < len(begins) else len(files)
    return files[begins[run.start] : end]
