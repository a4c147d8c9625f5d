"""What planning knows of the partitions of a topic, from a snapshot and the decisions; no file is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lastword.compaction.log.segments import is_closed
from lastword.compaction.planning.bounds import PartitionLog
from lastword.compaction.readers import unread_offsets

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lastword.compaction.config.topic_config import TopicConfig
    from lastword.compaction.log.segments import Segment
    from lastword.storage.delta.snapshot import LogSnapshot
    from lastword.storage.ledger.decisions import Decisions


def partition_logs(
    topic: str,
    config: TopicConfig,
    snapshot: LogSnapshot,
    decisions: Decisions,
    stable: Sequence[int],
    *,
    holders: Mapping[tuple[int, int], str],
    unreadable: Mapping[int, str],
    now_ms: int,
) -> list[PartitionLog]:
    """Return what planning knows of every partition of a topic, from loaded metadata alone.

    `stable` are the last stable offsets by partition, `holders` who holds them, by (partition, offset); `unreadable` says why the producers
    of a partition are not known.
    """
    ends = snapshot.log_end_offsets(decisions.partitions)
    unread = unread_offsets(decisions.readers.values(), decisions.partitions, now_ms)
    segments: dict[int, list[Segment]] = {partition: [] for partition in range(decisions.partitions)}
    for segment in snapshot.segments():
        segments[segment.partition].append(segment)

    def active_base(partition: int) -> int:
        mine, end = segments[partition], ends[partition]
        closed = decisions.closed_offset(partition, end)
        if not mine or is_closed(mine[-1], config, log_end_offset=end, rolled_offset=closed, now_ms=now_ms):
            return end
        return mine[-1].base_offset

    return [
        PartitionLog(
            topic=topic,
            partition=partition,
            config=config,
            segments=tuple(segments[partition]),
            active_base_offset=active_base(partition),
            log_start_offset=decisions.log_start_offset(partition),
            log_end_offset=ends[partition],
            last_stable_offset=stable[partition],
            checkpoint=decisions.cleaner_checkpoint(partition),
            rounds_left=decisions.rounds_left(partition),
            stable_holder=holders.get((partition, stable[partition])),
            unread_offset=unread[partition],
            unreadable=unreadable.get(partition),
        )
        for partition in range(decisions.partitions)
    ]
