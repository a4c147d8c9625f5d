"""Segments as metadata: what the rules know of a log without reading a record.

```
 partition 0      label 0             label 412                 label 731
                ┌─────────────────┐ ┌───────────────────────┐ ┌──────────────
   slices       │ 0 │ 100 │ 300   │ │ 412 │ 520             │ │ 731   ◄── appends
                └─────────────────┘ └───────────────────────┘ └──────────────
                 closed              closed                    active
```

A *segment* is Kafka's: records that closed together. A *slice* is what one commit wrote into it. The label of a segment is fixed when a
record is appended; its base offset is the smallest slice in it (an append may follow a swap of the slices before it).
The last segment of a partition is the active one; it counts as closed when it was rolled, or is old enough by the wall clock
(docs/semantics.md#A.5: Kafka needs an append for that).
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lastword.compaction.config.topic_config import TopicConfig

#: The timestamp of a segment that holds no record with one: EMPTY rows alone (Kafka's RecordBatch.NO_TIMESTAMP).
NO_TIMESTAMP: Final = -1
#: What orders the segments of a partition.
BASE: Final = attrgetter("base_offset")


class Span(NamedTuple):
    """What one slice holds: its first and last offset, and how many records."""

    first_offset: int
    last_offset: int
    record_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One segment of one partition, from the statistics of its files; offsets and timestamps are of the records still in it.

    Timestamps are `NO_TIMESTAMP` when it holds EMPTY rows alone. `delete_horizon_ms` is the earliest in it, None when there is none.
    `spans` are those of its slices, in order, where it has several.
    """

    partition: int
    label: int
    base_offset: int
    slices: tuple[int, ...]
    size_bytes: int
    record_count: int
    first_offset: int
    last_offset: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    first_timestamp_ms: int
    appended_at_ms: int
    delete_horizon_ms: int | None
    spans: tuple[Span, ...] = ()

    @property
    def largest_timestamp_ms(self) -> int:
        """The time that lags and retention look at: the newest record's, or when the segment was begun (Kafka: the file's mtime)."""
        return self.max_timestamp_ms if self.max_timestamp_ms != NO_TIMESTAMP else self.appended_at_ms

    @property
    def holds_only_empty_rows(self) -> bool:
        """Tell whether there is nothing left in it but EMPTY rows, which have no timestamp."""
        return self.max_timestamp_ms == NO_TIMESTAMP


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveSegment:
    """Where the next append of a partition goes: its offsets begin at `log_end_offset`, into the segment `label`.

    `size_bytes` is 0 and `first_timestamp_ms` None when the append opens a new segment.
    """

    partition: int
    log_end_offset: int
    label: int
    size_bytes: int
    first_timestamp_ms: int | None


def is_closed(last: Segment, config: TopicConfig, *, log_end_offset: int, rolled_offset: int, now_ms: int) -> bool:
    """Tell whether the last segment of a partition takes no more appends.

    It was rolled by command (`rolled_offset`, the log end at that moment, lies past its label), it is full (`segment.bytes`,
    `segment.slices`), or its first slice was appended longer ago than min(segment.ms, max.compaction.lag.ms): the wall clock, not the
    record time, so that historic data does not roll at each micro-batch.
    """
    rolled = last.label < rolled_offset <= log_end_offset
    full = last.size_bytes >= config.segment_bytes or len(last.slices) >= config.segment_slices
    return rolled or full or now_ms >= closes_at_ms(last, config)


def closes_at_ms(last: Segment, config: TopicConfig) -> int:
    """Return when the last segment of a partition is closed by its age, if nothing else has closed it before."""
    return last.appended_at_ms + config.max_segment_ms + 1


def next_append(
    last: Segment | None, config: TopicConfig, *, partition: int, log_end_offset: int, rolled_offset: int, now_ms: int
) -> ActiveSegment:
    """Say where the next append of a partition goes: into the active segment, or into a new one at the log end."""
    if last is None or is_closed(last, config, log_end_offset=log_end_offset, rolled_offset=rolled_offset, now_ms=now_ms):
        return ActiveSegment(
            partition=partition, log_end_offset=log_end_offset, label=log_end_offset, size_bytes=0, first_timestamp_ms=None
        )
    return ActiveSegment(
        partition=partition,
        log_end_offset=log_end_offset,
        label=last.label,
        size_bytes=last.size_bytes,
        first_timestamp_ms=last.first_timestamp_ms,
    )


def segments_between(segments: Sequence[Segment], from_offset: int, to_offset: int) -> Sequence[Segment]:
    """Return the segment that contains `from_offset`, and all after it that begin below `to_offset` (Kafka's LogSegments.values).

    `segments` is ordered by base offset. Nothing when the two offsets are the same.
    """
    if from_offset == to_offset:
        return ()
    start = max(0, bisect_right(segments, from_offset, key=BASE) - 1)
    end = start
    while end < len(segments) and segments[end].base_offset < to_offset:
        end += 1
    return segments[start:end]
