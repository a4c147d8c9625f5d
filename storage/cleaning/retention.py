"""Segments that go whole: the log start is decided first, then the files leave the table in one commit of metadata.

```
 ledger   start  partition 0  offset 590           readers show nothing below from here on
 log      one commit without the slices below 590  no record is read; VACUUM removes the files later
```

A crash in between is made good by the next call: the start-offset pass finds the segments below the log start. Offsets are never given
again: when nothing else would be left of a partition, its last row stays as an EMPTY row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lastword.compaction.errors import CorruptLog
from lastword.compaction.planning.grouping import group_segments
from lastword.compaction.planning.log_retention import deletable
from lastword.compaction.producers import Control
from lastword.storage.delta import crash_points
from lastword.storage.delta.commit import new_token
from lastword.storage.delta.crash_points import CrashPoint
from lastword.storage.delta.history import CommitMetadata
from lastword.storage.delta.snapshot import MAINTENANCE_APP_ID, files_in
from lastword.storage.files.data_files import DataFile, SliceWriter
from lastword.storage.files.data_reader import read_columns, row_groups
from lastword.storage.files.schema import DATA_SCHEMA
from lastword.storage.ledger.decisions import Decision, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lastword.compaction.log.segments import Segment
    from lastword.compaction.planning.bounds import PartitionLog
    from lastword.compaction.planning.log_retention import Deletion
    from lastword.compaction.planning.throttle import Pace
    from lastword.storage.delta.snapshot import LogSnapshot
    from lastword.storage.log.topic_log import TopicLog


def remove_segments(log: TopicLog, snapshot: LogSnapshot, logs: Sequence[PartitionLog], *, now_ms: int) -> dict[int, Deletion]:
    """Take what retention takes from partitions of a topic in one commit; return by partition what went, or what blocks retention by time.

    Raises `CommitConflict` when another swap came first: the log starts hold already, the segments go next time.
    """
    found = {one.partition: deletable(one, now_ms) for one in logs}
    going = {partition: one for partition, one in found.items() if one.segments}
    if not going:
        return found
    today = log.decisions_seen(snapshot)
    raised = {partition: one for partition, one in going.items() if one.log_start_offset > today.log_start_offset(partition)}
    if raised:
        log.ledger.append(
            [
                Decision(
                    kind=Kind.START,
                    time_ms=now_ms,
                    partition=partition,
                    offset=one.log_start_offset,
                    table_version=snapshot.version,
                    details={"why": "retention", "segments": len(one.segments), "bytes": sum(gone.size_bytes for gone, _ in one.segments)},
                )
                for partition, one in raised.items()
            ]
        )
    crash_points.reached(CrashPoint.LOG_START_DECIDED)
    ends = snapshot.log_end_offsets(today.partitions)
    spans = []
    last_rows = {}
    for partition, one in going.items():
        first, last = one.segments[0][0].slices[0], one.segments[-1][0].slices[-1]
        if one.segments[-1][0].last_offset == ends[partition] - 1:
            last_rows[partition] = (last, ends[partition] - 1)
            last = ends[partition] - 1
        spans.append((partition, first, last))
    log.commit(
        snapshot,
        family=MAINTENANCE_APP_ID,
        metadata=CommitMetadata(token=new_token(), kind="retention"),
        adds=_empty_rows(log, snapshot, last_rows),
        removes=files_in(snapshot.files, spans),
    )
    crash_points.reached(CrashPoint.SEGMENTS_REMOVED)
    return found


def _empty_rows(log: TopicLog, snapshot: LogSnapshot, last_rows: Mapping[int, tuple[int, int]]) -> list[DataFile]:
    """Write the last rows of partitions as EMPTY rows in slices of their own: {partition: (slice that holds it, its offset)}."""
    files, codec = snapshot.files, log.config().compression_type
    kept = {"offset", "producer_id", "producer_epoch", "sequence", "appended_at"}
    written = []
    for partition, (slice_, offset) in sorted(last_rows.items()):
        holds = (files.partition == partition) & (files.slice == slice_) & (files.first_offset <= offset) & (files.last_offset >= offset)
        at = int(np.flatnonzero(holds)[0])
        rows = read_columns(log.paths.log, log.storage_options, files.path[at], sorted(kept))
        row = rows.filter(pc.equal(rows.column("offset"), offset))
        if len(row) != 1:  # without it the next append would assign its offset again
            message = f"topic {log.name} partition {partition}: {files.path[at]} holds {len(row)} rows of offset {offset}, its last one"
            raise CorruptLog(message)
        columns = {one.name: row.column(one.name) if one.name in kept else pa.nulls(len(row), one.type) for one in DATA_SCHEMA}
        columns["control"] = pa.array([Control.EMPTY.value] * len(row), pa.string())
        # Its segment stays: an append that was planned before may still bring slices of it, which lie behind this one.
        writer = SliceWriter(
            log.paths.log, log.storage_options, partition=partition, segment=int(files.segment[at]), slice_=offset, codec=codec
        )
        writer.write(pa.table(columns).cast(DATA_SCHEMA))
        written.append(writer.close())
    return written


def merge_small_files(log: TopicLog, snapshot: LogSnapshot, logs: Sequence[PartitionLog], *, pace: Pace) -> int:
    """Write each closed segment of several slices again as one file, without changing a record; return how many segments that were.

    For topics that the cleaner does not touch. Segments keep their labels and bases; a round takes no more of them than fill one segment.
    """
    groups: dict[int, list[Sequence[Segment]]] = {}
    budget = log.config().segment_bytes
    for one in logs:
        many = [segment for segment in one.closed_segments if len(segment.slices) > 1]
        taken = group_segments(many, budget)[0] if many else []
        if taken:
            groups[one.partition] = [[segment] for segment in taken]
    if not groups:
        return 0
    files, codec = snapshot.files, log.config().compression_type
    labels = {(partition, segment.label) for partition, mine in groups.items() for (segment,) in mine}
    written, removes = list[DataFile](), np.zeros(len(files.partition), dtype=np.bool_)
    for partition, label in sorted(labels):
        mine_now = np.flatnonzero((files.partition == partition) & (files.segment == label))
        removes[mine_now] = True
        writer = SliceWriter(
            log.paths.log, log.storage_options, partition=partition, segment=label, slice_=int(files.slice[mine_now[0]]), codec=codec
        )
        try:
            for at in mine_now:
                for group in row_groups(log.paths.log, log.storage_options, files.path[at], DATA_SCHEMA.names):
                    pace.spend(2 * group.size_bytes)
                    writer.write(group.read())
        except BaseException:
            writer.abandon()
            raise
        written.append(writer.close())
    _check_merged(log, int(files.record_count[removes].sum()), written)
    metadata = CommitMetadata(token=new_token(), kind="merge")
    log.commit(snapshot, family=MAINTENANCE_APP_ID, metadata=metadata, adds=written, removes=removes)
    return len(labels)


def _check_merged(log: TopicLog, before: int, written: Sequence[DataFile]) -> None:
    """Raise `CorruptLog` when the merged files do not hold as many records as the Delta log says of those before."""
    after = sum(one.record_count for one in written)
    if before != after:
        message = (
            f"topic {log.name}: segments to be merged hold {before} records by the Delta log, but {after} were read; nothing was changed"
        )
        raise CorruptLog(message)
