"""Planning a round: which partitions are cleaned now, in which order, how far; and for every other one, what holds it back.

`plan_cleaning` is pure: metadata in, a `CleaningPlan` out. The cleaner executes it, `explain` and the dry run read it.

```
 partition   overdue?   ratio   horizon      order       status
 0           yes        0.10    -            1           cleaned: overdue                    max.compaction.lag.ms is a promise here
 1           no         0.80    -            2           cleaned: 0.80 > 0.50
 2           no         0.60    -            3           waits: the map entries of this round are used up
 3           no         0.00    passed       4           cleaned: tombstones and markers may go
 4           no         0.40    in 3 h       -           below the ratio; eligible in 3 h
```
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeAlias

from lastword.compaction.config.keys import LONG_MAX
from lastword.compaction.log.segments import segments_between
from lastword.compaction.planning.bounds import (
    CheckpointReset,
    CleanableRange,
    PartitionLog,
    cleanable_late_since_ms,
    cleanable_range,
    earliest_horizon_ms,
    moments_of_change,
    overdue_since_ms,
    seen_at,
)
from lastword.compaction.planning.offset_map import DirtyRange, fit_dirty_range

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lastword.compaction.log.segments import Segment


class Trigger(str, Enum):
    """Why a partition is cleaned."""

    OVERDUE = "overdue by max.compaction.lag.ms"
    DIRTY_RATIO = "above min.cleanable.dirty.ratio"
    CUT = "the map budget cut the round before"
    DELETE_HORIZON = "a delete horizon has passed"
    FORCED = "forced"


class Obstacle(str, Enum):
    """Why a partition is not cleaned now."""

    NOT_COMPACTED = "cleanup.policy does not include compact"
    PAUSED = "paused"
    IN_PROGRESS = "being cleaned already"
    UNCLEANABLE = "uncleanable after a failure"
    RETRY_LATER = "waiting for the next try after a failure"
    NOTHING_CLEANABLE = "nothing cleanable"
    BELOW_RATIO = "not above min.cleanable.dirty.ratio"
    NO_ROOM = "the map entries of this round are used up"


#: What `force` overrides.
_FORCED: Final = frozenset({Obstacle.UNCLEANABLE, Obstacle.RETRY_LATER})
#: What may change by itself, in time.
_TIME_HELPS: Final = frozenset({Obstacle.NOTHING_CLEANABLE, Obstacle.BELOW_RATIO})


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlan:
    """What is planned for one partition, and all that the decision was made from.

    With a `trigger` it is cleaned: the offsets of `dirty` are mapped, and `segments` (the whole log below its end) are looked at.
    Otherwise `obstacle` says why not, and `eligible_at_ms` when that changes without another append. `overdue_ms` is by how much
    `max.compaction.lag.ms` is exceeded, 0 when it is not; `delay_ms` is how much of that the partition could have been cleaned for.
    """

    log: PartitionLog
    now_ms: int
    range: CleanableRange
    overdue_ms: int
    delay_ms: int
    horizon_ms: int | None
    trigger: Trigger | None
    obstacle: Obstacle | None
    dirty: DirtyRange
    segments: Sequence[Segment] = ()

    @property
    def threshold(self) -> float:
        """The ratio that has to be exceeded."""
        return self.log.config.min_cleanable_dirty_ratio

    @property
    def eligible_at_ms(self) -> int | None:
        """The first moment at which time alone makes it eligible; None when it is, or when none does. Judged anew whenever it is asked for.

        What is done in between is not foreseen: appends, the end of a transaction, readers that go on or expire, retention.
        """
        return _eligible_at_ms(self.log, self.now_ms) if self.obstacle in _TIME_HELPS else None


#: What orders partitions, and topics by the first of theirs: rank (overdue, ratio, horizon), less dirty, horizon, topic, partition.
Urgency: TypeAlias = "tuple[int, float, int, str, int]"
LEAST_URGENT: Final[Urgency] = (3, 0.0, 0, "", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningPlan:
    """One round: the partitions `chosen`, in the order in which they take the budget, and every other one with its obstacle."""

    now_ms: int
    entries: int
    chosen: tuple[PartitionPlan, ...]
    held_back: tuple[PartitionPlan, ...]

    @property
    def partitions(self) -> tuple[PartitionPlan, ...]:
        """Every partition's plan, by topic and partition."""
        return tuple(sorted((*self.chosen, *self.held_back), key=lambda plan: (plan.log.topic, plan.log.partition)))

    @property
    def urgency(self) -> Urgency:
        """What orders the topics of a log.dir as the partitions of one are ordered; one with nothing to clean comes last."""
        if self.chosen:
            return _order(self.chosen[0])
        return LEAST_URGENT

    def unread_offsets(self, partitions: int) -> list[int]:
        """Return by partition of the topic the lowest offset that a registered reader has not read: tombstones from there on stay."""
        unread = {plan.log.partition: plan.log.unread_offset for plan in self.chosen}
        return [LONG_MAX if unread.get(partition) is None else unread[partition] or 0 for partition in range(partitions)]


def plan_cleaning(
    logs: Iterable[PartitionLog],
    *,
    now_ms: int,
    entries: int,
    obstacle_of: Callable[[PartitionLog], Obstacle | None] = lambda _: None,
    force: bool = False,
    most_bytes: int | None = None,
) -> CleaningPlan:
    """Plan one round (LogCleanerManager.grabFilthiestCompactedLog, with the order of docs/semantics.md#A.17).

    `entries` is how many records the round may map; `obstacle_of` returns the obstacle of a partition that is locked, paused, failed
    or claimed by another process, None for any other. With `force` neither the
    ratio nor failures before matter; the bounds hold all the same. `most_bytes` limits the bytes of the round; one partition is always
    taken. After the first that does not fit, only those are taken that map nothing. One whose producers cannot be read is never taken.
    """
    plans = [_plan_partition(log, now_ms=now_ms, obstacle=obstacle_of(log), force=force) for log in logs]
    eligible = sorted((partition_plan for partition_plan in plans if partition_plan.trigger is not None), key=_order)
    chosen: list[PartitionPlan] = []
    waiting = [partition_plan for partition_plan in plans if partition_plan.trigger is None]
    entries_left, bytes_left, full = entries, most_bytes, False
    for number, plan in enumerate(eligible):
        dirty = _dirty_range(plan, max(1, entries_left))
        size = plan.range.total_bytes
        fits = not dirty.cut and dirty.record_count <= entries_left and (bytes_left is None or size <= bytes_left)
        full = full or not fits
        if number and (not fits or (full and dirty.end_offset > dirty.first_offset)):
            waiting.append(replace(plan, trigger=None, obstacle=Obstacle.NO_ROOM, segments=()))
            continue
        chosen.append(replace(plan, dirty=dirty, segments=_segments_below(plan.segments, dirty)))
        entries_left -= dirty.record_count
        bytes_left = None if bytes_left is None else bytes_left - size
    return CleaningPlan(now_ms=now_ms, entries=entries, chosen=tuple(chosen), held_back=tuple(waiting))


def _dirty_range(plan: PartitionPlan, entries: int) -> DirtyRange:
    """Return what of a partition's dirty section a round maps; nothing when only the clean section is looked at."""
    first, end = plan.range.first_dirty_offset, plan.range.end_offset
    if end <= first:
        return plan.dirty
    return fit_dirty_range(segments_between(plan.segments, first, end), first, end, entries)


def _segments_below(segments: Sequence[Segment], dirty: DirtyRange) -> tuple[Segment, ...]:
    """Return the segments that a round looks at: up to the end of the mapped range, or those that are clean to their end."""
    if dirty.end_offset > dirty.first_offset:
        return tuple(segment for segment in segments if segment.base_offset < dirty.end_offset)
    return tuple(segment for segment in segments if segment.last_offset < dirty.first_offset)


def _order(plan: PartitionPlan) -> Urgency:
    """Overdue first, then the filthiest, then those with a passed horizon, earliest first; ties by topic and partition."""
    rank = 0 if plan.overdue_ms > 0 and plan.range.cleanable_bytes > 0 else 2 if plan.trigger is Trigger.DELETE_HORIZON else 1
    horizon = plan.horizon_ms if rank == 2 and plan.horizon_ms is not None else 0  # noqa: PLR2004  the rank above
    return rank, -plan.range.ratio, horizon, plan.log.topic, plan.log.partition


def _plan_partition(log: PartitionLog, *, now_ms: int, obstacle: Obstacle | None, force: bool) -> PartitionPlan:
    """Judge one partition by itself."""
    cleanable = cleanable_range(log, now_ms)
    overdue_at_ms = overdue_since_ms(log, cleanable.first_dirty_offset)
    overdue_ms = 0 if overdue_at_ms is None else max(0, now_ms - overdue_at_ms)
    late_since_ms = cleanable_late_since_ms(log, cleanable.first_dirty_offset, now_ms)
    horizon_ms = earliest_horizon_ms(log, cleanable.first_dirty_offset)
    trigger, obstacle = _judge(log, cleanable, obstacle, overdue_ms=overdue_ms, horizon_ms=horizon_ms, now_ms=now_ms, force=force)
    nothing = DirtyRange(first_offset=cleanable.first_dirty_offset, end_offset=cleanable.first_dirty_offset, record_count=0)
    return PartitionPlan(
        log=log,
        now_ms=now_ms,
        range=cleanable,
        overdue_ms=overdue_ms,
        delay_ms=0 if late_since_ms is None else max(0, now_ms - late_since_ms),
        horizon_ms=horizon_ms,
        trigger=trigger,
        obstacle=obstacle,
        dirty=nothing,
        segments=log.closed_segments if trigger else (),
    )


def _judge(
    log: PartitionLog,
    cleanable: CleanableRange,
    obstacle: Obstacle | None,
    *,
    overdue_ms: int,
    horizon_ms: int | None,
    now_ms: int,
    force: bool,
) -> tuple[Trigger | None, Obstacle | None]:
    """Return why a partition is cleaned, or why not."""
    if not log.config.compacted:
        return None, Obstacle.NOT_COMPACTED
    if obstacle is not None and not (force and obstacle in _FORCED):
        return None, obstacle
    if log.unreadable is not None:
        return None, Obstacle.UNCLEANABLE
    whole = DirtyRange(first_offset=cleanable.first_dirty_offset, end_offset=cleanable.end_offset, record_count=0)
    reasons = {
        Trigger.OVERDUE: overdue_ms > 0 and cleanable.cleanable_bytes > 0,
        Trigger.DIRTY_RATIO: cleanable.ratio > log.config.min_cleanable_dirty_ratio,
        # The segment that a cut range ends in counts as clean and as dirty: by the ratio the rest would often never be cleaned.
        Trigger.CUT: log.rounds_left > 0 and cleanable.reset is not CheckpointReset.ABOVE_LOG_END and cleanable.cleanable_bytes > 0,
        Trigger.DELETE_HORIZON: horizon_ms is not None and horizon_ms <= now_ms,
        Trigger.FORCED: force and bool(_segments_below(log.closed_segments, whole)),
    }
    trigger = next((candidate for candidate, holds in reasons.items() if holds), None)
    if trigger is not None:
        return trigger, None
    return None, Obstacle.BELOW_RATIO if cleanable.cleanable_bytes > 0 else Obstacle.NOTHING_CLEANABLE


def _eligible_at_ms(log: PartitionLog, now_ms: int) -> int | None:
    """Return the first moment after `now_ms` at which a partition has a trigger if nothing is appended; None when there is none.

    Time takes no trigger away: more is closed, less is too young, what is overdue stays it. So the moments are halved until it is found.
    """

    def has_trigger(moment_ms: int) -> bool:
        return _plan_partition(seen_at(log, moment_ms), now_ms=moment_ms, obstacle=None, force=False).trigger is not None

    moments = sorted(moment for moment in moments_of_change(log) if now_ms < moment < LONG_MAX)
    first = bisect_left(moments, True, key=has_trigger)  # noqa: FBT003  what is looked for
    return moments[first] if first < len(moments) else None
