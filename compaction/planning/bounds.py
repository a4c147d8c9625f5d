"""How far a partition may be cleaned, and how dirty it is: offsets and bytes from the metadata of its segments.

```
 segments     0          412         590         731         900
            ┌──────────┬───────────┬───────────┬───────────┬─────────
            │ clean    │ dirty     │ dirty     │ too young │ active
            └──────────┴───────────┴───────────┴───────────┴─────────
                       ▲ first_dirty_offset    ▲ first_uncleanable_offset = min(last stable offset, active segment,
                       = cleaner checkpoint      first segment inside min.compaction.lag.ms)
 clean_bytes ──────────┘ cleanable_bytes ──────┘ ratio = cleanable / (clean + cleanable)
```

The rules of LogCleanerManager (docs/semantics.md#3, docs/semantics.md#4). Ranges are half-open. A bound in the middle of a segment
excludes that whole segment.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING

from lastword.compaction.log.segments import BASE, closes_at_ms, segments_between

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lastword.compaction.config.topic_config import TopicConfig
    from lastword.compaction.log.segments import Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLog:
    """What planning knows of one partition; every field comes from metadata.

    `segments` are all of it, ordered by base offset. `active_base_offset` is the base of the active segment, or the log end when even the
    last segment is closed. `checkpoint` is the cleaner checkpoint (first dirty offset), None when there is none. `stable_holder` names who
    holds the last stable offset below the log end. `unread_offset` is the lowest offset that a registered reader has not read yet.
    `rounds_left` is what the newest receipt says of a dirty range that the map budget cut, 0 when it was not. `unreadable` says why nothing
    is known of its producers: neither is the last stable offset then, and it is left alone.
    """

    topic: str
    partition: int
    config: TopicConfig
    segments: Sequence[Segment]
    active_base_offset: int
    log_start_offset: int
    log_end_offset: int
    last_stable_offset: int
    checkpoint: int | None
    stable_holder: str | None = None
    unread_offset: int | None = None
    rounds_left: int = 0
    unreadable: str | None = None

    @property
    def closed_segments(self) -> Sequence[Segment]:
        """The segments that take no more appends and have something that may go.

        Not one that holds only the EMPTY row of the log end; nor those that lie below the log start whole, which retention takes: joined
        with what stays, they would stay with it.
        """
        if self.log_start_offset >= self.log_end_offset:
            return ()
        below = max(0, bisect_right(self.segments, self.log_start_offset, key=BASE) - 1)
        return self._closed[below:]

    @property
    def closed_end_offset(self) -> int:
        """The base of the first segment that is not closed, or of the one that the next append opens."""
        closed = len(self._closed)
        return self.segments[closed].base_offset if closed < len(self.segments) else self.active_base_offset

    @property
    def _closed(self) -> Sequence[Segment]:
        segments = segments_between(self.segments, -1, self.active_base_offset)
        if segments and only_keeps_the_log_end(segments[-1], self.log_end_offset):
            return segments[:-1]
        return segments


class Bound(str, Enum):
    """What the first uncleanable offset is held by."""

    ACTIVE_SEGMENT = "active segment"
    LAST_STABLE_OFFSET = "last stable offset"
    MIN_COMPACTION_LAG = "min.compaction.lag.ms"


class CheckpointReset(str, Enum):
    """Why a cleaner checkpoint was not believed; cleaning then begins at the log start."""

    BELOW_LOG_START = "below the log start offset"
    ABOVE_LOG_END = "above the log end offset"


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanableRange:
    """How much of a partition may be cleaned now: offsets `first_dirty_offset` to `first_uncleanable_offset`.

    `end_offset` is where the cleanable segments end: the base of the segment that holds the first uncleanable offset.
    `held_until_ms` is when the bound gives way by itself, None when that is unknown.
    """

    first_dirty_offset: int
    first_uncleanable_offset: int
    end_offset: int
    bound: Bound
    held_until_ms: int | None
    reset: CheckpointReset | None
    clean_bytes: int
    cleanable_bytes: int

    @property
    def total_bytes(self) -> int:
        """Clean and cleanable bytes; neither what is too young nor the active segment."""
        return self.clean_bytes + self.cleanable_bytes

    @property
    def ratio(self) -> float:
        """The cleanable share of the bytes, 0.0 when there are none."""
        return self.cleanable_bytes / self.total_bytes if self.total_bytes else 0.0


def cleanable_range(log: PartitionLog, now_ms: int) -> CleanableRange:
    """Return how much of a partition may be cleaned at `now_ms` (LogCleanerManager.cleanableOffsets and calculateCleanableBytes)."""
    first_dirty, reset = _first_dirty(log)
    closed, active = log.closed_segments, log.closed_end_offset
    bounds: list[tuple[int, Bound, int | None]] = []
    if log.last_stable_offset < log.log_end_offset:
        bounds.append((log.last_stable_offset, Bound.LAST_STABLE_OFFSET, None))
    lag = log.config.min_compaction_lag_ms
    if lag > 0 and first_dirty <= active:
        young = next(
            (segment for segment in segments_between(closed, first_dirty, active) if segment.largest_timestamp_ms > now_ms - lag), None
        )
        if young is not None:
            bounds.append((young.base_offset, Bound.MIN_COMPACTION_LAG, young.largest_timestamp_ms + lag))
    bounds.append((active, Bound.ACTIVE_SEGMENT, None))
    lowest, bound, until_ms = min(bounds, key=lambda item: item[0])
    first_uncleanable = max(first_dirty, lowest)

    end = active
    if first_uncleanable < active:
        end = segments_between(closed, first_uncleanable, active)[0].base_offset
    dirty = [segment for segment in segments_between(closed, min(first_dirty, end), end) if segment.last_offset >= first_dirty]
    return CleanableRange(
        first_dirty_offset=first_dirty,
        first_uncleanable_offset=first_uncleanable,
        end_offset=end,
        bound=bound,
        held_until_ms=until_ms,
        reset=reset,
        clean_bytes=sum(segment.size_bytes for segment in log.segments if segment.base_offset < first_dirty),
        cleanable_bytes=sum(segment.size_bytes for segment in dirty),
    )


def _first_dirty(log: PartitionLog) -> tuple[int, CheckpointReset | None]:
    """Return where the dirty section begins, and why the checkpoint is not believed if it is not."""
    if log.checkpoint is None:
        return log.log_start_offset, None
    if log.checkpoint < log.log_start_offset:
        return log.log_start_offset, CheckpointReset.BELOW_LOG_START
    if log.checkpoint > log.log_end_offset:
        return log.log_start_offset, CheckpointReset.ABOVE_LOG_END
    return log.checkpoint, None


def only_keeps_the_log_end(last: Segment, log_end_offset: int) -> bool:
    """Tell whether the last segment holds nothing but the EMPTY row that keeps the log end: neither deletable nor cleanable."""
    return last.holds_only_empty_rows and last.record_count == 1 and last.last_offset == log_end_offset - 1


def overdue_since_ms(log: PartitionLog, first_dirty_offset: int) -> int | None:
    """Return when the oldest dirty record becomes overdue by `max.compaction.lag.ms`; None when there is none with a time.

    It is overdue strictly after that moment (LogCleanerManager.maxCompactionDelay). Times at or below 0 do not count, as in Kafka.
    """
    dirty = segments_between(log.closed_segments, first_dirty_offset, max(first_dirty_offset, log.closed_end_offset))
    times = [segment.min_timestamp_ms for segment in dirty if segment.min_timestamp_ms > 0 and segment.last_offset >= first_dirty_offset]
    return min(times) + log.config.max_compaction_lag_ms if times else None


def cleanable_late_since_ms(log: PartitionLog, first_dirty_offset: int, now_ms: int) -> int | None:
    """Return since when an overdue record could have been cleaned and was not; None when there is none.

    Records may arrive with timestamps that are older than `max.compaction.lag.ms`: they are overdue at once, but a segment can be cleaned
    only after it is closed. It is closed when the next segment begins, or by its age; of one that was rolled the moment is not known, and
    that of its first append counts.
    """
    dirty = segments_between(log.closed_segments, first_dirty_offset, max(first_dirty_offset, log.closed_end_offset))
    begins = {segment.base_offset: after.appended_at_ms for segment, after in pairwise(log.segments)}
    moments = []
    for segment in dirty:
        if segment.min_timestamp_ms <= 0 or segment.last_offset < first_dirty_offset:
            continue
        by_age_ms = closes_at_ms(segment, log.config)
        closed_ms = begins.get(segment.base_offset, by_age_ms if by_age_ms <= now_ms else segment.appended_at_ms)
        moments.append(max(segment.min_timestamp_ms + log.config.max_compaction_lag_ms, closed_ms))
    return min(moments, default=None)


def earliest_horizon_ms(log: PartitionLog, first_dirty_offset: int) -> int | None:
    """Return the earliest delete horizon in the segments that are clean to their end; None when nothing waits for one there.

    Segments that a registered reader has not read to their end wait for the reader.
    """
    before = first_dirty_offset if log.unread_offset is None else min(first_dirty_offset, log.unread_offset)
    clean = (closed_segment for closed_segment in log.closed_segments if closed_segment.last_offset < before)
    return min((segment.delete_horizon_ms for segment in clean if segment.delete_horizon_ms is not None), default=None)


def seen_at(log: PartitionLog, moment_ms: int) -> PartitionLog:
    """Return a log as it will be seen at a moment if nothing is appended: its active segment may be closed by then."""
    if _takes_appends(log) and moment_ms >= closes_at_ms(log.segments[-1], log.config):
        return replace(log, active_base_offset=log.log_end_offset)
    return log


def moments_of_change(log: PartitionLog) -> set[int]:
    """Return the moments at which time alone may change what is closed, cleanable, overdue or past its horizon; at no other it does."""
    config = log.config
    moments = {segment.largest_timestamp_ms + config.min_compaction_lag_ms for segment in log.segments}
    moments |= {segment.min_timestamp_ms + config.max_compaction_lag_ms + 1 for segment in log.segments}
    moments |= {segment.delete_horizon_ms for segment in log.segments if segment.delete_horizon_ms is not None}
    if _takes_appends(log):
        moments.add(closes_at_ms(log.segments[-1], config))
    return moments


def _takes_appends(log: PartitionLog) -> bool:
    """Tell whether the last segment is the active one, not closed yet."""
    return bool(log.segments) and log.segments[-1].base_offset >= log.active_base_offset
