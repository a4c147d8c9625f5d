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

from lastword.compaction.planning.grouping import group_segments
from lastword.compaction.planning.log_retention import deletable
from lastword.compaction.producers import Control
from lastword.storage.cleaning.swap import Rewrite
from lastword.storage.delta import crash_points
from lastword.storage.delta.commit import commit_swap
from lastword.storage.delta.crash_points import CrashPoint
from lastword.storage.delta.slice_ranges import any_of, ranges_of, slice_ranges
from lastword.storage.files.schema import LOG_COLUMNS
from lastword.storage.ledger.decisions import Decision, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray
    from pyspark.sql import DataFrame, SparkSession

    from lastword.compaction.log.segments import Segment
    from lastword.compaction.planning.bounds import PartitionLog
    from lastword.compaction.planning.log_retention import Deletion
    from lastword.compaction.planning.throttle import Pace
    from lastword.storage.delta.snapshot import LogSnapshot
    from lastword.storage.log.topic_log import TopicLog


def remove_segments(
    log: TopicLog, spark: SparkSession, snapshot: LogSnapshot, logs: Sequence[PartitionLog], *, now_ms: int
) -> dict[int, Deletion]:
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
    commit_swap(
        spark,
        [(_empty_rows(log, spark, snapshot, last_rows), any_of(slice_ranges(snapshot.files, spans)))],
        log.paths.log,
        snapshot,
        kind="retention",
        receipts=(),
        find=log.committed_at,
        codec=log.config().compression_type,
    )
    crash_points.reached(CrashPoint.SEGMENTS_REMOVED)
    return found


def _empty_rows(log: TopicLog, spark: SparkSession, snapshot: LogSnapshot, last_rows: Mapping[int, tuple[int, int]]) -> DataFrame:
    """Return the last rows of partitions as EMPTY rows in slices of their own: {partition: (slice that holds it, its offset)}."""
    rows = spark.read.format("delta").option("versionAsOf", snapshot.version).load(log.paths.log)
    if not last_rows:
        return rows.where("false").select(*LOG_COLUMNS)
    ranges = slice_ranges(snapshot.files, [(partition, slice_, slice_) for partition, (slice_, _) in last_rows.items()])
    wanted = " OR ".join(f"(partition = {partition} AND offset = {offset})" for partition, (_, offset) in last_rows.items())
    kept = {"partition", "offset", "producer_id", "producer_epoch", "sequence", "appended_at"}
    types = dict(rows.dtypes)

    def column(name: str) -> str:
        if name == "control":
            return f"'{Control.EMPTY.value}' AS control"
        if name == "segment":  # its own: an append that was planned before may still bring slices of it, which lie behind this one
            return name
        if name == "slice":
            return "offset AS slice"
        return name if name in kept else f"CAST(NULL AS {types[name]}) AS {name}"

    return rows.where(any_of(ranges)).where(wanted).selectExpr(*[column(name) for name in LOG_COLUMNS]).coalesce(1)


def merge_small_files(
    log: TopicLog, spark: SparkSession, snapshot: LogSnapshot, logs: Sequence[PartitionLog], *, parallelism: int | None, pace: Pace
) -> int:
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
    table = spark.read.format("delta").option("versionAsOf", snapshot.version).load(log.paths.log)

    def rows(files: NDArray[np.bool_]) -> DataFrame:
        return table.where(any_of(ranges_of(snapshot.files, files))).select(*LOG_COLUMNS)

    Rewrite(
        log=log,
        spark=spark,
        snapshot=snapshot,
        groups=groups,
        rows=rows,
        read=np.ones(len(snapshot.files.partition), dtype=np.bool_),
        left_bytes=snapshot.files.size_bytes,
        one_slice=True,
        parallelism=parallelism,
        pace=pace,
    ).commit("merge")
    return sum(len(mine) for mine in groups.values())
