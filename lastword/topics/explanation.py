"""Why a partition is cleaned now, or what holds it back, and until when: the cleaning plan as people read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from lastword.compaction.display import Displayed
from lastword.compaction.moments import instant
from lastword.compaction.planning.bounds import Bound
from lastword.compaction.planning.planner import Obstacle

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lastword.compaction.planning.backoff import CleaningFailure
    from lastword.compaction.planning.planner import CleaningPlan, PartitionPlan


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PartitionReport(Displayed):
    """One partition of `explain`.

    `eligible` with its `trigger`, or the `obstacle`. `ratio` must exceed `threshold`. `overdue_ms` is for how long the partition has been
    overdue by `max.compaction.lag.ms` and could have been cleaned. `bound` is what holds the first uncleanable offset
    (`bound_detail` says whose, or until when), `eligible_at_ms` when time alone makes it eligible (None: it is, or nobody knows).
    `uncleanable_reason` says why it is in quarantine, or, whatever the obstacle, why nothing is known of its producers. `failure` says why
    the last cleaning failed; the next try is at `eligible_at_ms`.
    """

    BRIEF: ClassVar = ("topic", "partition", "eligible", "trigger", "obstacle", "ratio", "threshold", "bound_detail", "eligible_at_ms")

    topic: str
    partition: int
    eligible: bool
    trigger: str | None
    obstacle: str | None
    ratio: float
    threshold: float
    clean_bytes: int
    cleanable_bytes: int
    log_start_offset: int
    first_dirty_offset: int
    first_uncleanable_offset: int
    last_stable_offset: int
    log_end_offset: int
    bound: str
    bound_detail: str
    overdue_ms: int
    horizon_ms: int | None
    eligible_at_ms: int | None
    rounds_left: int
    checkpoint_reset: str | None
    uncleanable_reason: str | None
    failure: str | None


def partition_reports(plan: CleaningPlan, failures: Mapping[int, CleaningFailure]) -> list[PartitionReport]:
    """Return a report for every partition of a plan; `failures` are those in a row of each partition whose last cleaning failed."""
    return [_report(partition, failures.get(partition.log.partition)) for partition in plan.partitions]


def _report(plan: PartitionPlan, failure: CleaningFailure | None) -> PartitionReport:
    log, found = plan.log, plan.range
    until = "" if found.held_until_ms is None else f", until {instant(found.held_until_ms)}"
    detail = {
        Bound.ACTIVE_SEGMENT: f"active segment begins at offset {log.closed_end_offset}",
        Bound.LAST_STABLE_OFFSET: f"open transaction of {log.stable_holder or 'a producer'} since offset {log.last_stable_offset}",
        Bound.MIN_COMPACTION_LAG: (
            f"segment {found.first_uncleanable_offset} is younger than min.compaction.lag.ms = {log.config.min_compaction_lag_ms}{until}"
        ),
    }[found.bound]
    if log.unreadable is not None:
        detail = "the last stable offset is unknown: the producer states cannot be read"
    quarantined = failure if plan.obstacle is Obstacle.UNCLEANABLE else None
    waiting = failure if plan.obstacle is Obstacle.RETRY_LATER else None
    return PartitionReport(
        topic=log.topic,
        partition=log.partition,
        eligible=plan.trigger is not None,
        trigger=plan.trigger.value if plan.trigger else None,
        obstacle=plan.obstacle.value if plan.obstacle else None,
        ratio=found.ratio,
        threshold=plan.threshold,
        clean_bytes=found.clean_bytes,
        cleanable_bytes=found.cleanable_bytes,
        log_start_offset=log.log_start_offset,
        first_dirty_offset=found.first_dirty_offset,
        first_uncleanable_offset=found.first_uncleanable_offset,
        last_stable_offset=log.last_stable_offset,
        log_end_offset=log.log_end_offset,
        bound=found.bound.value,
        bound_detail=detail,
        overdue_ms=plan.delay_ms,
        horizon_ms=plan.horizon_ms,
        eligible_at_ms=plan.eligible_at_ms if waiting is None else waiting.retry_ms,
        rounds_left=plan.dirty.rounds_left,
        checkpoint_reset=found.reset.value if found.reset else None,
        uncleanable_reason=log.unreadable or (quarantined.reason if quarantined else None),
        failure=f"failed {waiting.failures} in a row: {waiting.reason}" if waiting else None,
    )
