"""What a topic holds, from metadata; and how many keys are stale, or not in a snapshot, for which the keys of records are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from lastword.compaction.config.topic_config import describe_topic_config
from lastword.compaction.display import Displayed
from lastword.compaction.errors import LastwordError
from lastword.compaction.log.segments import is_closed
from lastword.storage.reading.stale_keys import StaleKeys
from lastword.topics.sources import SourceDescription, describe_sources

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lastword.compaction.log.segments import Segment
    from lastword.storage.log.topic_log import LogState, TopicLog


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PartitionDescription(Displayed):
    """One partition: its offsets, sizes and segments. `active` tells whether the last segment still takes appends.

    Where the states of its producers cannot be read, as a file is spoilt, `last_stable_offset` is the log start: nothing is known above it.
    """

    BRIEF: ClassVar = ("partition", "log_start_offset", "last_stable_offset", "log_end_offset", "record_count", "size_bytes")

    partition: int
    log_start_offset: int
    last_stable_offset: int
    log_end_offset: int
    record_count: int
    size_bytes: int
    segments: tuple[Segment, ...]
    active: bool


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TopicDescription(Displayed):
    """A topic at one table version. Counts are exact: they are Delta's own statistics of its files."""

    BRIEF: ClassVar = ("name", "location", "table_version", "overrides")

    name: str
    topic_id: str
    location: str
    table_version: int
    config: Mapping[str, str]
    overrides: Mapping[str, str]
    mirror: Mapping[str, object] | None
    queries: Mapping[str, str | None]
    partitions: tuple[PartitionDescription, ...]
    #: How many keys have a stale last record, as a newer row of theirs is a dead letter (`Topic.stale_keys`); None if a file that tells it
    #: is damaged.
    stale_keys: int | None = 0
    #: The sources of its change events (`Topic.sources`).
    sources: tuple[SourceDescription, ...] = ()

    @property
    def record_count(self) -> int:
        """Records in all partitions."""
        return sum(partition.record_count for partition in self.partitions)

    @property
    def size_bytes(self) -> int:
        """Bytes of all files, compressed."""
        return sum(partition.size_bytes for partition in self.partitions)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TopicSummary(Displayed):
    """A topic in a list, from metadata alone. `last_append_ms` is None for a topic without a record; `error` says why it cannot be read."""

    topic: str
    partitions: int | None = None
    records: int | None = None
    size_bytes: int | None = None
    last_append_ms: int | None = None
    error: str | None = None


def summarize(log: TopicLog) -> TopicSummary:
    """Return a topic for a list of topics, also one whose metadata cannot be read."""
    try:
        state = log.at()
    except LastwordError as error:
        return TopicSummary(topic=log.name, error=str(error))
    files = state.files
    return TopicSummary(
        topic=log.name,
        partitions=state.partitions,
        records=int(files.record_count.sum()),
        size_bytes=int(files.size_bytes.sum()),
        last_append_ms=int(files.appended_at_ms.max()) if len(files.path) else None,
    )


def describe(log: TopicLog, *, now_ms: int) -> TopicDescription:
    """Describe a topic."""
    state = log.at()
    decisions = state.decisions
    return TopicDescription(
        name=log.name,
        topic_id=decisions.topic_id,
        location=log.paths.root,
        table_version=state.version,
        config=describe_topic_config(state.config),
        overrides=dict(decisions.overrides),
        mirror=decisions.mirror,
        queries={name: query_id for name, query_id in decisions.queries.items() if query_id is not None},
        partitions=describe_partitions(state, now_ms=now_ms),
        stale_keys=StaleKeys(log).count(),
        sources=describe_sources(log),
    )


def describe_partitions(state: LogState, *, now_ms: int) -> tuple[PartitionDescription, ...]:
    """Describe each partition of a log from metadata; files with records of producers are read for the last stable offset."""
    decisions, ends, stable = state.decisions, state.log_end_offsets, state.readable_stable_offsets()
    segments: dict[int, list[Segment]] = {partition: [] for partition in range(decisions.partitions)}
    for segment in state.snapshot.segments():
        segments[segment.partition].append(segment)

    def describe_partition(partition: int) -> PartitionDescription:
        mine, end = segments[partition], ends[partition]
        rolled = decisions.closed_offset(partition, end)
        return PartitionDescription(
            partition=partition,
            log_start_offset=decisions.log_start_offset(partition),
            last_stable_offset=stable[partition],
            log_end_offset=end,
            record_count=sum(segment.record_count for segment in mine),
            size_bytes=sum(segment.size_bytes for segment in mine),
            segments=tuple(mine),
            active=bool(mine) and not is_closed(mine[-1], state.config, log_end_offset=end, rolled_offset=rolled, now_ms=now_ms),
        )

    return tuple(describe_partition(partition) for partition in range(decisions.partitions))
