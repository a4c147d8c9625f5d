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
from lastword.compaction.order.source_positions import FIRST_SCOPE, highest_by_place, highest_of_each_place
from lastword.compaction.planning.log_retention import deletable
from lastword.compaction.producers import Control
from lastword.storage.delta import crash_points
from lastword.storage.delta.commit import new_token
from lastword.storage.delta.crash_points import CrashPoint
from lastword.storage.delta.history import CommitMetadata
from lastword.storage.delta.snapshot import MAINTENANCE_APP_ID, files_in
from lastword.storage.files.data_files import SliceWriter, complete
from lastword.storage.files.data_reader import read_columns, row_groups
from lastword.storage.ledger.decisions import Decision, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lastword.compaction.planning.bounds import PartitionLog
    from lastword.compaction.planning.log_retention import Deletion
    from lastword.storage.files.data_files import DataFile
    from lastword.storage.log.topic_log import LogState


def remove_segments(state: LogState, logs: Sequence[PartitionLog], *, now_ms: int) -> dict[int, Deletion]:
    """Take what retention takes from partitions of a topic in one commit; return by partition what went, or what blocks retention by time.

    Raises `CommitConflict` when another swap came first: the log starts hold already, the segments go next time.
    """
    deletions = {partition_log.partition: deletable(partition_log, now_ms) for partition_log in logs}
    going = {partition: deletion for partition, deletion in deletions.items() if deletion.segments}
    if not going:
        return deletions
    log, snapshot, ends = state.log, state.snapshot, state.log_end_offsets
    spans = []
    last_rows = {}
    for partition, deletion in going.items():
        first, last = deletion.segments[0][0].slices[0], deletion.segments[-1][0].slices[-1]
        if deletion.segments[-1][0].last_offset == ends[partition] - 1:
            last_rows[partition] = (last, ends[partition] - 1)
            last = ends[partition] - 1
        spans.append((partition, first, last))
    adds = _empty_rows(state, last_rows)  # a file that cannot be read stops it before a log start is decided
    raised = {
        partition: deletion for partition, deletion in going.items() if deletion.log_start_offset > state.log_start_offsets[partition]
    }
    if raised:
        log.ledger.append(
            [
                Decision(
                    kind=Kind.START,
                    time_ms=now_ms,
                    partition=partition,
                    offset=deletion.log_start_offset,
                    table_version=snapshot.version,
                    details={
                        "why": "retention",
                        "segments": len(deletion.segments),
                        "bytes": sum(gone.size_bytes for gone, _ in deletion.segments),
                        "removed_positions": removed_positions(state, partition, deletion.log_start_offset),
                    },
                )
                for partition, deletion in raised.items()
            ]
        )
    crash_points.reached(CrashPoint.LOG_START_DECIDED)
    log.commit(
        snapshot,
        family=MAINTENANCE_APP_ID,
        metadata=CommitMetadata(token=new_token(), kind="retention"),
        adds=adds,
        removes=files_in(snapshot.files, spans),
    )
    crash_points.reached(CrashPoint.SEGMENTS_REMOVED)
    return deletions


def removed_positions(state: LogState, partition: int, log_start_offset: int) -> dict[str, str]:
    """Return the highest orders that are gone once a partition's log starts at an offset, by source and partition.

    Those of a file that the offset falls into count whole. Raises `CorruptLog` naming a file that cannot be read.
    """
    log, files = state.log, state.files
    gone = np.flatnonzero((files.partition == partition) & (files.first_offset < log_start_offset) & (files.max_sequence != ""))
    removed = state.decisions.removed_positions(partition)
    for at in gone.tolist():
        if files.max_sequence[at] < FIRST_SCOPE:  # sequences of no scope alone
            removed = highest_of_each_place(removed, {"": str(files.max_sequence[at])})
        else:
            groups = row_groups(log.paths.log, log.storage_options, files.path[at], ("source_sequence",))
            columns = (group.read().column("source_sequence").combine_chunks() for group in groups)
            removed = highest_of_each_place(removed, *map(highest_by_place, columns))
    return removed


def _empty_rows(state: LogState, last_rows: Mapping[int, tuple[int, int]]) -> list[DataFile]:
    """Write the last rows of partitions as EMPTY rows in slices of their own: {partition: (slice that holds it, its offset)}."""
    log, files, codec = state.log, state.files, state.config.compression_type
    kept = ["offset", "producer_id", "producer_epoch", "sequence", "appended_at"]
    written = []
    for partition, (slice_, offset) in sorted(last_rows.items()):
        holds = (files.partition == partition) & (files.slice == slice_) & (files.first_offset <= offset) & (files.last_offset >= offset)
        at = int(np.flatnonzero(holds)[0])
        rows = read_columns(log.paths.log, log.storage_options, files.path[at], kept)
        row = rows.filter(pc.equal(rows.column("offset"), offset))
        if len(row) != 1:  # without it the next append would assign its offset again
            message = f"topic {log.name} partition {partition}: {files.path[at]} holds {len(row)} rows of offset {offset}, its last one"
            raise CorruptLog(message)
        # Its segment stays: an append that was planned before may still bring slices of it, which lie behind this one.
        writer = SliceWriter(
            log.paths.log, log.storage_options, partition=partition, segment=int(files.segment[at]), slice_=offset, codec=codec
        )
        writer.write(complete(row.append_column("control", pa.array([Control.EMPTY.value]))))
        written.append(writer.close())
    return written
