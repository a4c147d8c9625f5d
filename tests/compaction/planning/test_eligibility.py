"""When a partition that is held back is cleaned without another append: the moment that `explain` prints."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lastword.compaction.config.keys import LONG_MAX
from lastword.compaction.log.segments import NO_TIMESTAMP, Segment, is_closed
from lastword.compaction.planning.bounds import PartitionLog
from lastword.compaction.planning.planner import Obstacle, PartitionPlan, Trigger, plan_cleaning
from tests.compaction.logs import HOUR_MS, MIB, config, drawn

if TYPE_CHECKING:
    from collections.abc import Mapping

_DAY_MS = 24 * HOUR_MS
_FAR_MS = 10**15


def _seen(log: PartitionLog, now_ms: int) -> PartitionLog:
    """Return a log as the storage sees it: whether the last segment is closed depends on the moment."""
    if log.active_base_offset == log.log_end_offset:
        return log
    closed = is_closed(log.segments[-1], log.config, log_end_offset=log.log_end_offset, rolled_offset=0, now_ms=now_ms)
    return replace(log, active_base_offset=log.log_end_offset) if closed else log


def _at(log: PartitionLog, now_ms: int, *, obstacle: Obstacle | None = None, force: bool = False) -> PartitionPlan:
    """Return the plan of a partition by itself at a moment."""
    plan = plan_cleaning([_seen(log, now_ms)], now_ms=now_ms, entries=10**9, obstacle_of=lambda _: obstacle, force=force)
    (found,) = plan.partitions
    return found


def _eligible(log: PartitionLog, now_ms: int = 6_000) -> tuple[int, str] | None:
    """Return when a partition becomes eligible, and by what then; a millisecond before it must not be."""
    moment = _at(log, now_ms).eligible_at_ms
    if moment is None:
        return None
    assert _at(log, moment - 1).trigger is None
    trigger = _at(log, moment).trigger
    assert trigger is not None
    return moment, trigger.name


# --- worked examples ----------------------------------------------------------------------------------------------------------------------


def test_an_active_segment_that_closes_does_not_help_a_partition_that_stays_below_the_ratio() -> None:
    """90 MiB clean, 5 MiB dirty, 1 MiB active: 6 of 96 are 0.0625; it is the moment when that exceeds the threshold."""
    picture = "0:90@1 | 100:5@2 200:1@3* 210"
    assert _eligible(drawn(picture, unit=MIB)) is None
    assert _eligible(drawn(picture, {"min.cleanable.dirty.ratio": 0.0625}, unit=MIB)) is None
    assert _eligible(drawn(picture, {"min.cleanable.dirty.ratio": 0.06}, unit=MIB)) == (4 + 7 * _DAY_MS, "DIRTY_RATIO")


def test_a_dirty_active_segment_makes_a_partition_eligible_when_it_counts_as_closed() -> None:
    """More than segment.ms after its first append."""
    settings = {"segment.ms": "1h"}
    assert _eligible(drawn("0:10@1 | 100:90@5000* 200", settings)) == (5_001 + HOUR_MS, "DIRTY_RATIO")
    assert _eligible(drawn("0:90@1 100:10@5000 | 200", settings)) is None, "there is none"
    assert _eligible(drawn("", settings)) is None


def test_the_age_of_a_segment_counts_from_its_first_append_and_not_from_the_time_of_its_records() -> None:
    """As `is_closed` has it: historic data is appended at 5 s."""
    log = drawn("0:10@1 | 100:90@2* 200", {"segment.ms": "1h"})
    late = replace(log, segments=(log.segments[0], replace(log.segments[1], appended_at_ms=5_000)))
    assert _eligible(late) == (5_001 + HOUR_MS, "DIRTY_RATIO")


def test_below_the_ratio_a_partition_becomes_eligible_when_it_is_overdue() -> None:
    """A millisecond past the lag; that of an active segment when it is closed, by the same lag."""
    settings = {"max.compaction.lag.ms": "1h"}
    closed, active = drawn("0:90@1 | 100:10@5000 200", settings), drawn("0:90@1 | 100:10@5000* 200", settings)
    assert _eligible(closed) == _eligible(closed, 5_000 + HOUR_MS) == (5_001 + HOUR_MS, "OVERDUE")
    assert _eligible(active) == _eligible(active, 5_000 + HOUR_MS) == (5_001 + HOUR_MS, "OVERDUE")


def test_without_a_lag_there_is_no_such_moment() -> None:
    """The default is no limit."""
    assert _eligible(drawn("0:90@1 | 100:10@5000 200")) is None
    for lag_ms, moment in ((2**63 - 5_003, (2**63 - 2, "OVERDUE")), (2**63 - 5_002, None)):
        log = drawn("0:90@1 | 100:10@5000 200", {"max.compaction.lag.ms": lag_ms})
        assert _eligible(log) == moment, "past the last millisecond of 64 bits is never"


def test_a_partition_that_is_held_by_a_young_segment_waits_for_it() -> None:
    """Until its newest record is as old as min.compaction.lag.ms; if that is not enough, for the next one, or until it is overdue."""
    settings = {"min.compaction.lag.ms": "1h"}
    assert _eligible(drawn("0:10@1 | 100:90@5000 200", settings)) == (5_000 + HOUR_MS, "DIRTY_RATIO")
    assert _eligible(drawn("0:90@1 | 100:10@5000 200:90@8000 300", settings)) == (8_000 + HOUR_MS, "DIRTY_RATIO")
    assert _eligible(drawn("0:10@1 | 100:45@8000 200:45@5000 300", settings)) == (8_000 + HOUR_MS, "DIRTY_RATIO")
    assert _eligible(drawn("0:90@1 | 100:10@5000 200", settings)) is None
    lags = {**settings, "max.compaction.lag.ms": "2h"}
    assert _eligible(drawn("0:90@1 | 100:10@5000 200", lags)) == (5_001 + 2 * HOUR_MS, "OVERDUE")


def test_a_segment_of_empty_rows_alone_is_young_since_it_was_begun() -> None:
    """It has no other time."""
    log = drawn("0:10@1 | 100:90∅@5000 200:1@6000* 210", {"min.compaction.lag.ms": "1h"})
    assert _eligible(log) == (5_000 + HOUR_MS, "DIRTY_RATIO")


def test_a_clean_partition_becomes_eligible_at_its_earliest_horizon() -> None:
    """At that millisecond; not below a reader that has not read it. One in the active segment counts from when that is closed."""
    log = drawn("0:90~7000 50:1~6500 | 100")
    assert _eligible(log) == _eligible(log, 6_499) == (6_500, "DELETE_HORIZON")
    assert _eligible(replace(log, unread_offset=50)) == (7_000, "DELETE_HORIZON")
    assert _eligible(replace(log, unread_offset=49)) is None
    assert _eligible(drawn("0:90@1 50:1@5000~6500* | 100", {"segment.ms": "1h"})) == (5_001 + HOUR_MS, "DELETE_HORIZON")


def test_a_partition_that_an_open_transaction_holds_back_waits_for_nobody_knows_what() -> None:
    """The time of its next cleaning is unknown, unless a delete horizon in the clean section expires before."""
    lags = {"max.compaction.lag.ms": "1h", "segment.ms": "1h"}
    for picture in ("0:10@1 | 100:90@5000* 200", "0:10@1 | 100:90@5000 200"):
        assert _eligible(drawn(picture, lags, stable=150)) is None
    assert _eligible(drawn("0:10@1~9000 | 100:90@5000* 200", lags, stable=150)) == (9_000, "DELETE_HORIZON")


def test_a_transaction_in_the_active_segment_leaves_what_lies_before_it() -> None:
    """The young segment is old enough before; the active one does not count, closed or not."""
    log = drawn("0:10@1 | 100:90@5000 200:10@5000* 300", {"min.compaction.lag.ms": "1h"}, stable=250)
    assert _eligible(log) == (5_000 + HOUR_MS, "DIRTY_RATIO")
    assert _eligible(drawn("0:80@1 | 100:70@5000 200:90@5000* 300", {"segment.ms": "1h"}, stable=250)) is None


def test_the_first_of_several_moments_counts() -> None:
    """Horizon 9 s, overdue at 8.001 s, active segment closed at 7.501 s, young segment at 7 s: each of them enough."""
    picture = "0:90@1~9000 | 100:80@4000 200:20@3500* 210"
    lags = {"max.compaction.lag.ms": 4_000, "min.compaction.lag.ms": 3_000}
    assert _eligible(drawn(picture, {**lags, "min.cleanable.dirty.ratio": 0.4})) == (7_000, "DIRTY_RATIO")
    assert _eligible(drawn(picture, lags)) == (7_501, "OVERDUE")
    assert _eligible(drawn(picture, {"segment.ms": 4_000})) == (7_501, "DIRTY_RATIO")
    assert _eligible(drawn(picture, {"segment.ms": 9_999})) == (9_000, "DELETE_HORIZON")
    assert _eligible(drawn("0:90@1~9000 | 100:80@4000 200", lags)) == (8_001, "OVERDUE")


def test_moments_of_the_past_do_not_count() -> None:
    """A horizon in the past is of a segment that may not be looked at yet; nor does the present."""
    log = drawn("0:10@1 | 100:90@5000~5500* 200", {"segment.ms": "1h"}, stable=150)
    assert [_eligible(log, now) for now in (6_000, 5_000 + HOUR_MS, 5_001 + HOUR_MS)] == [None] * 3
    cut = drawn("0:10@1~5 100:1* 200", {"segment.ms": "1h"}, checkpoint=50, stable=60)
    assert _eligible(cut) is None


@pytest.mark.parametrize("obstacle", [Obstacle.PAUSED, Obstacle.IN_PROGRESS, Obstacle.UNCLEANABLE])
def test_what_a_person_or_a_round_holds_back_is_not_released_by_time(obstacle: Obstacle) -> None:
    """Nor is one that is not compacted."""
    log = drawn("0:10@1~9000 | 100:90@5000* 200", {"segment.ms": "1h"})
    assert _at(log, 6_000, obstacle=obstacle).eligible_at_ms is None
    assert _at(drawn("0:10@1~9000 | 100:90@5000 200", {"cleanup.policy": "delete"}), 6_000).eligible_at_ms is None


def test_it_is_when_the_cleaner_would_take_the_partition_by_itself() -> None:
    """By force it might have been sooner; one that is eligible now waits for nothing."""
    log = drawn("0:10@1 100:90@5000* 200", {"segment.ms": "1h", "min.cleanable.dirty.ratio": 1}, checkpoint=100, stable=10)
    assert (_at(log, 6_000, force=True).obstacle, _at(log, 6_000, force=True).eligible_at_ms) == (None, None)
    empty = drawn("0:10@5000* 100", {"segment.ms": "1h", "min.cleanable.dirty.ratio": 1})
    assert _at(empty, 6_000, force=True).eligible_at_ms is None
    assert _at(empty, 5_001 + HOUR_MS, force=True).trigger is Trigger.FORCED


# --- any log ------------------------------------------------------------------------------------------------------------------------------


@st.composite
def _logs(draw: st.DrawFn) -> PartitionLog:
    """Draw a small log, with gaps, EMPTY rows, horizons, an open transaction, a reader; moments up to some hundred."""
    moments = st.integers(-1, 60)
    segments: list[Segment] = []
    at = 0
    for _ in range(draw(st.integers(0, 5))):
        last_offset = at + draw(st.integers(0, 3))
        times = sorted(draw(st.tuples(moments, moments))) if draw(st.integers(0, 4)) else (NO_TIMESTAMP, NO_TIMESTAMP)
        segments.append(
            Segment(
                partition=0,
                label=at,
                base_offset=at,
                slices=(at,),
                size_bytes=draw(st.integers(1, 9)),
                record_count=last_offset - at + 1,
                first_offset=at,
                last_offset=last_offset,
                min_timestamp_ms=times[0],
                max_timestamp_ms=times[1],
                first_timestamp_ms=times[0],
                appended_at_ms=draw(st.integers(0, 60)),
                delete_horizon_ms=draw(st.none() | st.integers(0, 150)),
            )
        )
        at = last_offset + 1 + draw(st.integers(0, 2))
    end = segments[-1].last_offset + 1 if segments else 0
    active = draw(st.booleans()) and bool(segments)
    min_lag = draw(st.just(0) | st.integers(0, 60))
    settings: Mapping[str, object] = {
        "min.cleanable.dirty.ratio": draw(st.sampled_from([0, 0.2, 0.5, 0.8, 1])),
        "min.compaction.lag.ms": min_lag,
        "max.compaction.lag.ms": draw(st.just(LONG_MAX) | st.integers(max(1, min_lag), 120)),
        "segment.ms": draw(st.integers(1, 120)),
    }
    return PartitionLog(
        topic="fruit",
        partition=0,
        config=config(settings),
        segments=tuple(segments),
        active_base_offset=segments[-1].base_offset if active else end,
        log_start_offset=draw(st.just(0) | st.integers(0, end)),
        log_end_offset=end,
        last_stable_offset=draw(st.just(end) | st.integers(0, end)),
        checkpoint=draw(st.none() | st.integers(0, end + 1)),
        unread_offset=draw(st.none() | st.integers(0, end)),
    )


@given(_logs(), st.integers(0, 150), st.integers(0, 400))
@example(drawn("0:90@1 | 100:5@2 200:1@3* 210", {"segment.ms": 9}), 6, 6)
def test_a_partition_is_first_cleaned_at_the_moment_that_its_plan_says(log: PartitionLog, now_ms: int, later_ms: int) -> None:
    """Planned then there is a trigger, planned a millisecond earlier there is none, nor at any moment between; without one never."""
    plan = _at(log, now_ms)
    moment = plan.eligible_at_ms
    if plan.trigger is not None:
        assert moment is None
        assert _at(log, now_ms + later_ms).trigger is not None, "time takes nothing away"
        return
    if moment is None:
        assert _at(log, now_ms + later_ms).trigger is None
        assert _at(log, _FAR_MS).trigger is None
        return
    assert moment > now_ms
    assert _at(log, moment - 1).trigger is None
    assert _at(log, moment).trigger is not None
    assert (_at(log, now_ms + later_ms).trigger is not None) == (now_ms + later_ms >= moment)
