"""Planning a round (docs/semantics.md#4, docs/semantics.md#A.17): who is eligible, in which order, how far; what holds others back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lastword.compaction.planning.planner import CleaningPlan, Obstacle, PartitionPlan, Trigger, plan_cleaning
from tests.compaction.logs import HOUR_MS, MIB, bases, drawn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lastword.compaction.planning.bounds import PartitionLog

_PLENTY = 10**9
_DIRTY = "0:10 | 100:90 200:1* 210"
_CLEAN = "0:90 | 100:10 200:1* 210"


def _plan(
    *logs: PartitionLog,
    now_ms: int = 0,
    entries: int = _PLENTY,
    obstacle: Obstacle | None = None,
    force: bool = False,
    most_bytes: int | None = None,
) -> CleaningPlan:
    return plan_cleaning(logs, now_ms=now_ms, entries=entries, obstacle_of=lambda _: obstacle, force=force, most_bytes=most_bytes)


def _one(
    log: PartitionLog, *, now_ms: int = 0, entries: int = _PLENTY, obstacle: Obstacle | None = None, force: bool = False
) -> PartitionPlan:
    """Return the plan of a partition by itself."""
    (found,) = _plan(log, now_ms=now_ms, entries=entries, obstacle=obstacle, force=force).partitions
    assert (found.trigger is None) != (found.obstacle is None), "cleaned, or held back by something"
    return found


def _order(plan: CleaningPlan) -> list[tuple[int, str]]:
    """Return (partition, why) of those that are cleaned, in order."""
    return [(one.log.partition, one.trigger.name) for one in plan.chosen if one.trigger is not None]


def _waiting(plan: CleaningPlan) -> dict[int, str]:
    return {one.log.partition: one.obstacle.name for one in plan.held_back if one.obstacle is not None}


def _partitions(*pictures: str, settings: Mapping[str, object] | None = None) -> list[PartitionLog]:
    return [drawn(picture, settings, partition=partition) for partition, picture in enumerate(pictures)]


# --- eligible by ratio --------------------------------------------------------------------------------------------------------------------


def test_a_partition_a_quarter_dirty_is_not_eligible() -> None:
    """750 + 750 MiB clean, 500 MiB dirty, min.cleanable.dirty.ratio 0.5."""
    found = _one(drawn("0:750 100:750 | 200:500 300:40* 310", unit=MIB))
    assert (found.obstacle, found.range.ratio, found.threshold) == (Obstacle.BELOW_RATIO, 0.25, 0.5)
    assert found.segments == ()
    assert found.dirty.end_offset == found.dirty.first_offset == 200


def test_one_more_closed_segment_of_1_gib_makes_it_eligible() -> None:
    """1524 of 3024 MiB; 1.5 of 3.0 is exactly the ratio, which has to be exceeded."""
    found = _one(drawn("0:750 100:750 | 200:500 300:1024 400:40* 410", unit=MIB))
    assert found.trigger is Trigger.DIRTY_RATIO
    assert (found.dirty.first_offset, found.dirty.end_offset, found.dirty.record_count) == (200, 400, 200)
    assert bases(found.segments) == [0, 100, 200, 300]
    assert found.eligible_at_ms is None
    assert _one(drawn("0:750 100:750 | 200:500 300:1000 400:40* 410", unit=MIB)).obstacle is Obstacle.BELOW_RATIO


def test_after_that_cleaning_it_is_not_eligible_again() -> None:
    """Ratio 0.0."""
    assert _one(drawn("0:750 100:400 300:300 | 400:40* 410", unit=MIB)).obstacle is Obstacle.NOTHING_CLEANABLE


def test_the_second_cleaning_of_fruit_prices() -> None:
    """4 of 6 records of equal size below the active segment are dirty: 0.67."""
    found = _one(drawn("0:20#2 | 4:40#4 8:10* 9"))
    assert found.trigger is Trigger.DIRTY_RATIO
    assert round(found.range.ratio, 2) == 0.67


def test_a_ratio_of_0_means_any_cleanable_byte_and_one_of_1_turns_cleaning_by_ratio_off() -> None:
    """Strictly above, at both ends."""
    assert _one(drawn("0:1000 | 100:1 200:1* 210", {"min.cleanable.dirty.ratio": 0})).trigger is Trigger.DIRTY_RATIO
    assert _one(drawn("0:1000 | 200:1* 210", {"min.cleanable.dirty.ratio": 0})).obstacle is Obstacle.NOTHING_CLEANABLE
    assert _one(drawn("0:1000 200:1* 210", {"min.cleanable.dirty.ratio": 1})).obstacle is Obstacle.BELOW_RATIO


# --- eligible by time ---------------------------------------------------------------------------------------------------------------------


def test_an_overdue_partition_is_eligible_below_the_ratio() -> None:
    """max.compaction.lag.ms 1 h after its oldest dirty record of 5 s; not at that moment, but strictly after it."""
    log = drawn("0:90@1 | 100:10@5000 200:1* 210", {"max.compaction.lag.ms": "1h", "segment.ms": "1h"})
    due = 5_000 + HOUR_MS
    early = _one(log, now_ms=due)
    assert (early.obstacle, early.overdue_ms) == (Obstacle.BELOW_RATIO, 0)
    late = _one(log, now_ms=due + 7)
    assert (late.trigger, late.overdue_ms) == (Trigger.OVERDUE, 7)
    assert _one(log, now_ms=due - 7).overdue_ms == 0
    assert _one(drawn(_CLEAN)).overdue_ms == 0, "no record has a time"


def test_a_single_dirty_byte_is_enough() -> None:
    """To be overdue, to be below the ratio, to know when that changes."""
    log = drawn("0:90@1 | 100:1@5000 200", {"max.compaction.lag.ms": "1h"})
    waiting = _one(log, now_ms=6_000)
    assert (waiting.obstacle, waiting.eligible_at_ms) == (Obstacle.BELOW_RATIO, 5_001 + HOUR_MS)
    assert _one(log, now_ms=5_001 + HOUR_MS).trigger is Trigger.OVERDUE
    filthy = drawn("0:10@99999999 100:90@99999999 200", {"max.compaction.lag.ms": "1h"}, partition=1)
    assert _order(_plan(filthy, log, now_ms=5_001 + HOUR_MS)) == [(0, "OVERDUE"), (1, "DIRTY_RATIO")]


def test_overdue_records_that_may_not_be_cleaned_make_nothing_eligible() -> None:
    """An open transaction began in their segment."""
    log = drawn("0:90@1 | 100:10@5000 200:1* 210", {"max.compaction.lag.ms": "1h"}, stable=150)
    found = _one(log, now_ms=100 * HOUR_MS)
    assert (found.obstacle, found.overdue_ms > 0) == (Obstacle.NOTHING_CLEANABLE, True)


def test_overdue_records_that_may_not_be_cleaned_do_not_bring_a_partition_forward() -> None:
    """It is cleaned for its horizon, so after the dirty one."""
    settings = {"max.compaction.lag.ms": "1h"}
    held = drawn("0:90@1~5 | 100:10@5000 200:1* 210", settings, stable=150)
    filthy = drawn(f"0:10@{90 * HOUR_MS} 100:90@{90 * HOUR_MS} 200", {}, partition=1)
    assert _order(_plan(held, filthy, now_ms=90 * HOUR_MS)) == [(1, "DIRTY_RATIO"), (0, "DELETE_HORIZON")]


def test_a_passed_delete_horizon_makes_an_idle_partition_eligible() -> None:
    """At the horizon itself; Kafka leaves expired tombstones on an idle topic for ever. Nothing is mapped then."""
    log = drawn("0:50~500 100:50 | 200:1* 210")
    assert _one(log, now_ms=499).obstacle is Obstacle.NOTHING_CLEANABLE
    found = _one(log, now_ms=500)
    assert (found.trigger, found.horizon_ms) == (Trigger.DELETE_HORIZON, 500)
    assert (found.dirty.first_offset, found.dirty.end_offset, found.dirty.record_count, found.dirty.cut) == (200, 200, 0, False)
    assert bases(found.segments) == [0, 100]


def test_a_round_for_a_horizon_leaves_out_what_may_not_be_cleaned() -> None:
    """An open transaction began in the segment that the checkpoint cuts: only what is clean to its end is looked at."""
    found = _one(drawn("0:50~5 100:50 300:1* 310", checkpoint=150, stable=160), now_ms=5)
    assert found.trigger is Trigger.DELETE_HORIZON
    assert bases(found.segments) == [0]
    assert (found.dirty.first_offset, found.dirty.end_offset) == (150, 150)
    last = _one(drawn("0:50~5 100:50..150 300:1* 310", checkpoint=150, stable=150), now_ms=5)
    assert bases(last.segments) == [0], "its very last record is dirty"


def test_a_round_for_a_horizon_maps_what_may_be_cleaned_too() -> None:
    """It is below the ratio, but the segments are read anyway."""
    found = _one(drawn("0:90~5 | 100:10 200:1* 210"), now_ms=5)
    assert found.trigger is Trigger.DELETE_HORIZON
    assert (found.dirty.first_offset, found.dirty.end_offset) == (100, 200)
    assert bases(found.segments) == [0, 100]


# --- order --------------------------------------------------------------------------------------------------------------------------------


def test_overdue_first_then_the_filthiest_then_those_with_a_passed_horizon_earliest_first() -> None:
    """max.compaction.lag.ms is a promise here."""
    settings = {"max.compaction.lag.ms": "1h", "segment.ms": "1h"}
    now = 10 * HOUR_MS
    young = now - 5
    logs = _partitions(
        f"0:90@1~20 | 100:1@{young}* 210",
        f"0:90@1~10 | 100:1@{young}* 210",
        f"0:40@1 | 100:60@{young} 200:1@{young}* 210",
        f"0:20@1 | 100:80@{young} 200:1@{young}* 210",
        f"0:90@1 | 100:10@1 200:1@{young}* 210",
        f"0:80@1 | 100:20@1 200:1@{young}* 210",
        settings=settings,
    )
    assert _order(_plan(*logs, now_ms=now)) == [
        (5, "OVERDUE"),
        (4, "OVERDUE"),
        (3, "DIRTY_RATIO"),
        (2, "DIRTY_RATIO"),
        (1, "DELETE_HORIZON"),
        (0, "DELETE_HORIZON"),
    ]


def test_among_those_with_a_passed_horizon_the_dirtier_one_comes_first() -> None:
    """The horizon decides where the ratio is the same."""
    logs = _partitions("0:90~10 | 100:1* 210", "0:60~20 | 100:40 200:1* 210")
    assert _order(_plan(*logs, now_ms=50)) == [(1, "DELETE_HORIZON"), (0, "DELETE_HORIZON")]


def test_a_passed_horizon_does_not_help_a_partition_that_is_eligible_anyway() -> None:
    """Equal ratios: the tie is decided by topic and partition."""
    logs = _partitions("0:10~20 | 100:90 200:1* 210", "0:10~10 | 100:90 200:1* 210")
    assert _order(_plan(*logs, now_ms=50)) == [(0, "DIRTY_RATIO"), (1, "DIRTY_RATIO")]


def test_ties_are_decided_by_topic_and_partition() -> None:
    """In whichever order they come."""
    logs = [drawn(_DIRTY, topic=topic, partition=partition) for topic in ("nuts", "fruit") for partition in (1, 0)]
    found = [(one.log.topic, one.log.partition) for one in _plan(*logs).chosen]
    assert found == [("fruit", 0), ("fruit", 1), ("nuts", 0), ("nuts", 1)]


def test_every_partition_is_in_the_plan_once() -> None:
    """By topic and partition, cleaned or not."""
    logs = [drawn(_CLEAN, topic="nuts"), drawn(_DIRTY, partition=1), drawn(_CLEAN, partition=0)]
    plan = _plan(*logs, now_ms=77, entries=500)
    assert [(one.log.topic, one.log.partition) for one in plan.partitions] == [("fruit", 0), ("fruit", 1), ("nuts", 0)]
    assert (plan.now_ms, plan.entries) == (77, 500)
    assert _order(plan) == [(1, "DIRTY_RATIO")]
    assert _waiting(plan) == {0: "BELOW_RATIO"}


# --- the budgets of a round ---------------------------------------------------------------------------------------------------------------


def test_partitions_share_the_map_entries_of_a_round_in_their_order() -> None:
    """100 + 100 of 200 fit; the third waits for the next round, although by itself it would fit."""
    logs = _partitions("100:90 200:1* 210", "0:10 | 100:90 200:1* 210", "0:20 | 100:80 200:1* 210")
    plan = _plan(*logs, entries=200)
    assert _order(plan) == [(0, "DIRTY_RATIO"), (1, "DIRTY_RATIO")]
    assert _waiting(plan) == {2: "NO_ROOM"}
    (waiting,) = plan.held_back
    assert (waiting.trigger, waiting.segments, waiting.eligible_at_ms) == (None, (), None)
    assert (waiting.dirty.first_offset, waiting.dirty.end_offset) == (100, 100)
    assert _order(_plan(*logs, entries=199)) == [(0, "DIRTY_RATIO")]


def test_a_partition_is_never_cut_for_the_sake_of_the_others() -> None:
    """Only the first of a round may be larger than its budget; the second waits whole, and so does a small one after it."""
    logs = _partitions("100:90 200:1* 210", "0:10 | 100:90 300:1* 310", "0:20 | 100:80 110:1* 120")
    plan = _plan(*logs, entries=299)
    assert _order(plan) == [(0, "DIRTY_RATIO")]
    assert _waiting(plan) == {1: "NO_ROOM", 2: "NO_ROOM"}


def test_the_first_partition_of_a_round_is_cut_when_it_does_not_fit() -> None:
    """At 160, inside its second segment; the receipt says that two more rounds are left."""
    plan = _plan(*_partitions("0:30 100:60 200:1* 210", "0:10 | 100:90 200:1* 210"), entries=60)
    (first,) = plan.chosen
    assert (first.dirty.end_offset, first.dirty.record_count, first.dirty.rounds_left) == (60, 60, 3)
    assert bases(first.segments) == [0]
    assert _waiting(plan) == {1: "NO_ROOM"}
    (alone,) = _plan(drawn("0:30 100:60 200:1* 210", checkpoint=60), entries=60).chosen
    assert (alone.dirty.first_offset, alone.dirty.end_offset, alone.dirty.rounds_left) == (60, 120, 2)
    assert bases(alone.segments) == [0, 100]


def test_a_round_with_no_entry_maps_one_record() -> None:
    """It makes progress all the same."""
    (found,) = _plan(drawn("0:30 100:1* 210"), entries=0).chosen
    assert (found.dirty.end_offset, found.dirty.record_count) == (1, 1)


def test_a_partition_with_a_single_record_waits_when_the_entries_are_used_up() -> None:
    """If other partitions have used the whole offset map, even one record has to wait for the next round."""
    logs = _partitions("0:90 100:1* 210", "0:10 | 100:90 101:1* 110")
    assert _waiting(_plan(*logs, entries=100)) == {1: "NO_ROOM"}
    assert _waiting(_plan(*logs, entries=101)) == {}


def test_a_partition_that_maps_nothing_needs_no_entry() -> None:
    """The picture of the module: 2 waits, 3 is cleaned in the same round; dirty partitions after 2 would wait."""
    logs = _partitions("0:90 100:1* 210", "0:10 | 100:90 200:1* 210", "0:20 | 100:80 101:1* 210", "0:90~5 | 100:1* 210")
    plan = _plan(*logs, now_ms=5, entries=150)
    assert _order(plan) == [(0, "DIRTY_RATIO"), (3, "DELETE_HORIZON")]
    assert _waiting(plan) == {1: "NO_ROOM", 2: "NO_ROOM"}
    assert _order(_plan(*logs, now_ms=5, entries=100)) == [(0, "DIRTY_RATIO"), (3, "DELETE_HORIZON")]


def test_a_round_is_limited_in_bytes_but_always_takes_one_partition() -> None:
    """100 bytes each, of the clean and the dirty section together."""
    logs = _partitions(_DIRTY, _DIRTY, _DIRTY)
    assert _order(_plan(*logs, most_bytes=1)) == [(0, "DIRTY_RATIO")]
    assert _order(_plan(*logs, most_bytes=199)) == [(0, "DIRTY_RATIO")]
    plan = _plan(*logs, most_bytes=200)
    assert _order(plan) == [(0, "DIRTY_RATIO"), (1, "DIRTY_RATIO")]
    assert _waiting(plan) == {2: "NO_ROOM"}


def test_the_limit_in_bytes_holds_for_partitions_that_map_nothing_too() -> None:
    """They are read and written as well: 90 bytes beside 100."""
    logs = _partitions(_DIRTY, "0:90~5 | 100:1* 210")
    assert _waiting(_plan(*logs, now_ms=5, most_bytes=189)) == {1: "NO_ROOM"}
    assert _waiting(_plan(*logs, now_ms=5, most_bytes=190)) == {}


def test_a_partition_too_large_for_the_bytes_that_are_left_lets_no_dirty_one_pass() -> None:
    """The order of a round is kept."""
    logs = _partitions(_DIRTY, "0:200 | 100:700 200:1* 210", "0:4 | 100:6 200:1* 210")
    plan = _plan(*logs, most_bytes=150)
    assert (_order(plan), _waiting(plan)) == ([(0, "DIRTY_RATIO")], {1: "NO_ROOM", 2: "NO_ROOM"})


def test_20_gb_with_7_5_million_entries_is_cut_and_never_an_error() -> None:
    """Three rounds: two are left after the first."""
    picture = " ".join(f"{number * 1_000_000}:{10**9}" for number in range(20)) + " 20000000"
    (found,) = _plan(drawn(picture), entries=7_500_000).chosen
    assert (found.dirty.end_offset, found.dirty.rounds_left) == (7_500_000, 2)
    assert bases(found.segments)[-1] == 7_000_000


@pytest.mark.parametrize("segments", [1, 20])
def test_a_range_that_the_budget_cut_is_gone_on_with_until_it_is_clean(segments: int) -> None:
    """Three rounds over 20 GB, though the ratio is not above a half after the first: what the cut segment holds counts on both sides."""
    each = 20 // segments
    picture = " ".join(f"{number * each * 1_000_000}:{each * 10**9}" for number in range(segments)) + " 20000000"
    checkpoint, left, rounds = None, 0, []
    while True:
        one = _one(drawn(picture, checkpoint=checkpoint, rounds_left=left), entries=7_500_000)
        if one.trigger is None:
            break
        checkpoint, left = one.dirty.end_offset, one.dirty.rounds_left
        rounds.append((one.trigger.name, checkpoint, left))
    assert rounds == [("DIRTY_RATIO", 7_500_000, 2), ("CUT" if segments == 1 else "DIRTY_RATIO", 15_000_000, 1), ("CUT", 20_000_000, 0)]
    assert one.obstacle is Obstacle.NOTHING_CLEANABLE


def test_what_a_cut_left_waits_for_the_bounds_and_counts_for_nothing_when_its_checkpoint_is_not_believed() -> None:
    """An open transaction holds the rest back; a checkpoint past the log end speaks of another log."""
    settings = {"min.cleanable.dirty.ratio": 1}
    cut = "0:10 100:10 200:1* 210"
    assert _one(drawn(cut, settings, checkpoint=50, rounds_left=1)).trigger is Trigger.CUT
    assert _one(drawn(cut, settings, checkpoint=50)).obstacle is Obstacle.BELOW_RATIO
    assert _one(drawn(cut, settings, checkpoint=50, rounds_left=1, stable=60)).obstacle is Obstacle.NOTHING_CLEANABLE
    assert _one(drawn(cut, settings, checkpoint=300, rounds_left=1)).obstacle is Obstacle.BELOW_RATIO
    moved = _one(drawn(cut, settings, checkpoint=50, rounds_left=1, log_start=60))
    assert (moved.trigger, moved.dirty.first_offset) == (Trigger.CUT, 60), "a log start past it leaves the rest as it is"


def test_what_lies_below_the_log_start_whole_is_left_to_retention() -> None:
    """Joined with what stays, it would never go: not looked at, and no horizon in it counts."""
    found = _one(drawn("0:10 100:10 | 200:40 300:1* 310", log_start=100))
    assert (found.trigger, bases(found.segments)) == (Trigger.DIRTY_RATIO, [100, 200])
    assert bases(_one(drawn("0:10 100:10 | 200:40 300:1* 310", log_start=99)).segments) == [0, 100, 200]
    passed = "0:10~5 | 100:1 200:1* 210"
    settings = {"min.cleanable.dirty.ratio": 1}
    assert _one(drawn(passed, settings), now_ms=9).trigger is Trigger.DELETE_HORIZON
    assert _one(drawn(passed, settings, log_start=100), now_ms=9).trigger is None


# --- barred -------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("obstacle", [Obstacle.PAUSED, Obstacle.IN_PROGRESS, Obstacle.UNCLEANABLE])
def test_what_the_state_machine_keeps_out_is_not_cleaned(obstacle: Obstacle) -> None:
    """However dirty it is; time alone does not change that."""
    found = _one(drawn("0:90@1~500 100:1@1* 210"), obstacle=obstacle)
    assert (found.obstacle, found.segments, found.eligible_at_ms) == (obstacle, (), None)


def test_a_topic_that_is_not_compacted_is_not_cleaned() -> None:
    """Not by force either, and before any other obstacle is named; time does not help."""
    log = drawn("0:90@1~500 100:1@1* 210", {"cleanup.policy": "delete"})
    for force in (False, True):
        found = _one(log, obstacle=Obstacle.PAUSED, force=force)
        assert (found.obstacle, found.eligible_at_ms) == (Obstacle.NOT_COMPACTED, None)


def test_force_lifts_quarantine_and_backoff_and_nothing_else() -> None:
    """A paused partition stays paused, one in progress is left to whoever works on it."""
    for obstacle in (Obstacle.UNCLEANABLE, Obstacle.RETRY_LATER):
        assert _one(drawn(_DIRTY), obstacle=obstacle).obstacle is obstacle
        assert _one(drawn(_CLEAN), obstacle=obstacle, force=True).trigger is Trigger.FORCED
    for obstacle in (Obstacle.PAUSED, Obstacle.IN_PROGRESS):
        assert _one(drawn(_DIRTY), obstacle=obstacle, force=True).obstacle is obstacle


def test_what_is_known_of_no_producer_is_left_alone_by_force_too() -> None:
    """If producer state cannot be read, any transaction may be open: `--force` does not clean. Pauses and claims are reported."""
    spoilt = replace(drawn(_DIRTY), unreadable="a file of it is spoilt")
    for given, shown in (
        (None, Obstacle.UNCLEANABLE),
        (Obstacle.UNCLEANABLE, Obstacle.UNCLEANABLE),
        (Obstacle.PAUSED, Obstacle.PAUSED),
        (Obstacle.IN_PROGRESS, Obstacle.IN_PROGRESS),
    ):
        found = [_one(spoilt, obstacle=given, force=force) for force in (False, True)]
        assert [(one.trigger, one.obstacle) for one in found] == [(None, shown)] * 2


def test_partitions_are_barred_one_by_one() -> None:
    """The state machine is asked about each."""
    plan = plan_cleaning(
        _partitions(_DIRTY, _DIRTY), now_ms=0, entries=_PLENTY, obstacle_of=lambda log: Obstacle.PAUSED if log.partition == 0 else None
    )
    assert (_order(plan), _waiting(plan)) == ([(1, "DIRTY_RATIO")], {0: "PAUSED"})
    assert _order(plan_cleaning(_partitions(_DIRTY, _DIRTY), now_ms=0, entries=_PLENTY)) == [(0, "DIRTY_RATIO"), (1, "DIRTY_RATIO")]
    assert _order(plan_cleaning(_partitions(_CLEAN), now_ms=0, entries=_PLENTY)) == [], "nothing is forced by itself"


# --- force --------------------------------------------------------------------------------------------------------------------------------


def test_force_cleans_below_the_ratio() -> None:
    """A partition that is eligible anyway keeps its reason."""
    found = _one(drawn(_CLEAN), force=True)
    assert (found.trigger, found.dirty.end_offset, bases(found.segments)) == (Trigger.FORCED, 200, [0, 100])
    assert _one(drawn(_DIRTY), force=True).trigger is Trigger.DIRTY_RATIO


def test_force_cleans_a_clean_log_again() -> None:
    """Nothing is mapped; what has expired may go, small segments may be joined."""
    found = _one(drawn("0:90 100:10 | 200:1* 210"), force=True)
    assert (found.trigger, found.dirty.end_offset, bases(found.segments)) == (Trigger.FORCED, 200, [0, 100])
    assert found.dirty.record_count == 0


def test_force_never_goes_past_the_bounds() -> None:
    """Open transaction, young segment, active segment."""
    stable = _one(drawn("0:10 100:10 200:10 300:1* 310", stable=250), force=True)
    assert (stable.dirty.end_offset, bases(stable.segments)) == (200, [0, 100])
    young = _one(drawn("0:10@1 100:10@9999 200:1* 310", {"min.compaction.lag.ms": 5_000}), now_ms=10_000, force=True)
    assert (young.dirty.end_offset, bases(young.segments)) == (100, [0])
    active = _one(drawn("0:10* 310"), force=True)
    assert (active.obstacle, active.segments) == (Obstacle.NOTHING_CLEANABLE, ())


@pytest.mark.parametrize(
    "log",
    [
        drawn(""),
        drawn("0:10* 310"),
        drawn("0:10 100:1* 310", stable=50),
        drawn("0:10 100:1* 310", checkpoint=50, stable=60),
        drawn("309:1∅#1 310"),
        drawn("100:10* 310"),
    ],
    ids=["empty", "active alone", "held at once", "held behind the checkpoint", "the row of the log end", "begins later"],
)
def test_force_finds_nothing_where_no_segment_may_be_looked_at(log: PartitionLog) -> None:
    """It is said, not planned as an empty round."""
    assert _one(log, force=True).obstacle is Obstacle.NOTHING_CLEANABLE


# --- figures ------------------------------------------------------------------------------------------------------------------------------


def test_a_plan_of_nothing_is_empty() -> None:
    """No topic, no partition, no error."""
    plan = _plan()
    assert (plan.chosen, plan.held_back, plan.partitions) == ((), (), ())
