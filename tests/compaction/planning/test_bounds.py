"""How far a partition may be cleaned and how dirty it is: docs/semantics.md#3, docs/semantics.md#4 and docs/semantics.md#B."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lastword.compaction.planning.bounds import (
    Bound,
    CheckpointReset,
    CleanableRange,
    PartitionLog,
    cleanable_late_since_ms,
    cleanable_range,
    earliest_horizon_ms,
    only_keeps_the_log_end,
    overdue_since_ms,
)
from tests.compaction.logs import HOUR_MS, MIB, bases, drawn


def _range(log: PartitionLog, now_ms: int = 0) -> tuple[int, int, int, str]:
    """Return (first dirty, first uncleanable, end of the cleanable segments, bound)."""
    found = cleanable_range(log, now_ms)
    return found.first_dirty_offset, found.first_uncleanable_offset, found.end_offset, found.bound.value


# --- the ratio ----------------------------------------------------------------------------------------------------------------------------


def test_500_dirty_mib_beside_1500_clean_ones_are_a_quarter() -> None:
    """The worked example docs/semantics.md#B.1: clean 750 + 750 MiB, dirty 500 MiB; the active segment does not count."""
    found = cleanable_range(drawn("0:750 100:750 | 200:500 300:40* 310", unit=MIB), 0)
    assert (found.clean_bytes, found.cleanable_bytes, found.total_bytes) == (1_500 * MIB, 500 * MIB, 2_000 * MIB)
    assert found.ratio == 0.25


def test_one_more_closed_segment_of_1_gib_makes_it_1524_of_3024() -> None:
    """Just above a half; in rounded GiB (docs/semantics.md#B.2) it is 1.5 of 3.0: exactly a half."""
    found = cleanable_range(drawn("0:750 100:750 | 200:500 300:1024 400:40* 410", unit=MIB), 0)
    assert found.ratio == 1_524 / 3_024
    assert found.ratio > 0.5
    assert cleanable_range(drawn("0:750 100:750 | 200:500 300:1000 400:40* 410", unit=MIB), 0).ratio == 0.5


def test_after_the_cleaning_nothing_is_dirty() -> None:
    """Ratio 0.0, whatever the sizes are then (docs/semantics.md#B.3)."""
    found = cleanable_range(drawn("0:750 100:400 300:300 | 400:40* 410", unit=MIB), 0)
    assert (found.cleanable_bytes, found.ratio) == (0, 0.0)


def test_a_partition_without_a_byte_has_the_ratio_0() -> None:
    """And nothing to clean."""
    log = drawn("")
    found = cleanable_range(log, 0)
    assert (found.total_bytes, found.ratio) == (0, 0.0)
    assert _range(log) == (0, 0, 0, "active segment")
    assert cleanable_range(drawn("0:100* 10"), 0).ratio == 0.0


def test_a_segment_that_the_checkpoint_cuts_counts_on_both_sides() -> None:
    """The map budget cut the last round at 150: 100 of its 200 offsets are clean."""
    found = cleanable_range(drawn("0:10 50:30 250:5 300:1* 310", checkpoint=150), 0)
    assert (found.clean_bytes, found.cleanable_bytes) == (40, 35)


def test_a_segment_that_is_clean_to_its_end_is_not_cleanable_even_if_the_checkpoint_lies_below_the_next() -> None:
    """The map budget cut at 150, and what was above it in the segment was aborted and is gone."""
    found = cleanable_range(drawn("0:10 50:30..149 250:1* 310", checkpoint=150), 0)
    assert (found.clean_bytes, found.cleanable_bytes) == (40, 0)


# --- the checkpoint -----------------------------------------------------------------------------------------------------------------------


def test_without_a_checkpoint_everything_from_the_log_start_is_dirty() -> None:
    """Which is no reset."""
    found = cleanable_range(drawn("0:10 100:10 200:1* 210", log_start=100), 0)
    assert (found.first_dirty_offset, found.reset) == (100, None)


@pytest.mark.parametrize(
    ("checkpoint", "first_dirty", "reset"),
    [
        (99, 100, CheckpointReset.BELOW_LOG_START),
        (100, 100, None),
        (150, 150, None),
        (210, 210, None),
        (211, 100, CheckpointReset.ABOVE_LOG_END),
    ],
    ids=["below the log start", "at the log start", "between", "at the log end", "above the log end"],
)
def test_a_checkpoint_outside_the_log_is_not_believed(checkpoint: int, first_dirty: int, reset: CheckpointReset | None) -> None:
    """Cleaning then begins at the log start; a checkpoint at the log end is a valid one."""
    found = cleanable_range(drawn("0:10 100:10 200:1* 210", log_start=100, checkpoint=checkpoint), 0)
    assert (found.first_dirty_offset, found.reset) == (first_dirty, reset)


# --- the first uncleanable offset ---------------------------------------------------------------------------------------------------------


def test_the_active_segment_is_never_cleaned() -> None:
    """It begins at 300."""
    assert _range(drawn("0:10 100:10 200:10 300:1* 310")) == (0, 300, 300, "active segment")


def test_when_even_the_last_segment_is_closed_the_log_end_is_the_bound() -> None:
    """By roll or by age."""
    assert _range(drawn("0:10 100:10 200")) == (0, 200, 200, "active segment")


def test_a_last_stable_offset_in_mid_segment_excludes_that_whole_segment() -> None:
    """An open transaction began at 150: the segment from 100 on stays as it is."""
    log = drawn("0:10 100:20 200:40 300:1* 310", stable=150)
    assert _range(log) == (0, 150, 100, "last stable offset")
    assert cleanable_range(log, 0).cleanable_bytes == 10


def test_a_last_stable_offset_at_the_base_of_a_segment_excludes_that_one_and_what_follows() -> None:
    """100 is the first offset that is not stable."""
    log = drawn("0:10 100:20 200:40 300:1* 310", stable=100)
    assert _range(log) == (0, 100, 100, "last stable offset")
    assert cleanable_range(log, 0).cleanable_bytes == 10


def test_a_last_stable_offset_in_the_active_segment_does_not_matter() -> None:
    """The active segment is the lower bound then."""
    assert _range(drawn("0:10 100:20 200:1* 310", stable=250)) == (0, 200, 200, "active segment")


def test_a_last_stable_offset_at_the_end_of_the_closed_segments_holds_nothing_back() -> None:
    """All of them are decided; of two bounds at the same offset the one that somebody can do something about is named."""
    log = drawn("0:10 100:20 200:1* 310", stable=200)
    assert _range(log) == (0, 200, 200, "last stable offset")
    assert cleanable_range(log, 0).cleanable_bytes == 30


def test_an_open_transaction_below_the_checkpoint_leaves_nothing_to_clean() -> None:
    """The range is empty, never backwards."""
    log = drawn("0:10 100:20 | 200:40 300:1* 310", stable=150)
    assert _range(log) == (200, 200, 200, "last stable offset")
    assert cleanable_range(log, 0).cleanable_bytes == 0


def test_a_checkpoint_and_a_last_stable_offset_in_one_segment_leave_nothing_to_clean() -> None:
    """The part before the checkpoint is clean, and the part after the last stable offset must not be cleaned."""
    log = drawn("0:10 100:20 300:1* 310", checkpoint=150, stable=160)
    assert _range(log) == (150, 160, 100, "last stable offset")
    found = cleanable_range(log, 0)
    assert (found.clean_bytes, found.cleanable_bytes) == (30, 0)


def test_a_transaction_whose_first_record_was_deleted_holds_back_all_that_is_left() -> None:
    """The log begins at 100 by now; nobody knows how the transaction ends."""
    log = drawn("100:20 200:40 300:1* 310", stable=50, log_start=100)
    assert _range(log) == (100, 100, 100, "last stable offset")
    assert cleanable_range(log, 0).cleanable_bytes == 0


def test_one_young_segment_holds_back_the_older_ones_behind_it() -> None:
    """min.compaction.lag.ms looks at the newest record of each segment in order and stops at the first young one."""
    log = drawn("0:10@1000 100:10@9000 200:10@1000 300:1@9999* 310", {"min.compaction.lag.ms": 5_000})
    found = cleanable_range(log, 10_000)
    assert (found.first_uncleanable_offset, found.bound, found.held_until_ms) == (100, Bound.MIN_COMPACTION_LAG, 14_000)
    assert found.cleanable_bytes == 10


def test_a_record_that_is_exactly_as_old_as_the_lag_may_be_cleaned() -> None:
    """A millisecond earlier it may not."""
    log = drawn("0:10@1000 100:1* 310", {"min.compaction.lag.ms": 5_000})
    assert _range(log, 6_000) == (0, 100, 100, "active segment")
    assert _range(log, 5_999) == (0, 0, 0, "min.compaction.lag.ms")
    assert cleanable_range(log, 5_999).held_until_ms == 6_000


def test_without_a_lag_even_a_record_from_the_future_may_be_cleaned() -> None:
    """0, the default, is no lag."""
    assert _range(drawn("0:10@99000 100:1* 310"), 5) == (0, 100, 100, "active segment")


def test_a_lag_of_1_ms_is_a_lag() -> None:
    """A record from the future blocks it."""
    assert _range(drawn("0:10@99000 100:1* 310", {"min.compaction.lag.ms": 1}), 5) == (0, 0, 0, "min.compaction.lag.ms")


def test_the_lag_looks_at_the_segment_that_the_checkpoint_cuts_and_not_at_those_before() -> None:
    """What is clean may be young."""
    settings = {"min.compaction.lag.ms": 5_000}
    assert _range(drawn("0:10@9999 | 100:10@1000 200:1* 310", settings), 10_000) == (100, 200, 200, "active segment")
    assert _range(drawn("0:10@9999 100:10@1000 200:1* 310", settings, checkpoint=50), 10_000) == (50, 50, 0, "min.compaction.lag.ms")


def test_a_clean_partition_has_no_young_segment() -> None:
    """The lag does not look into the active segment, even with the checkpoint at its base or inside of it."""
    settings = {"min.compaction.lag.ms": 5_000}
    assert _range(drawn("0:10@9999 | 100:10@9999* 310", settings), 10_000) == (100, 100, 100, "active segment")
    assert _range(drawn("0:10@9999 100:10@9999* 310", settings, checkpoint=200), 10_000) == (200, 200, 100, "active segment")


def test_the_lowest_bound_counts() -> None:
    """Open transaction at 250, young segment at 100: the segment; the other way round: the transaction."""
    settings = {"min.compaction.lag.ms": 5_000}
    assert _range(drawn("0:1@1 100:1@9999 200:1@1 300:1* 310", settings, stable=250), 10_000)[1:] == (100, 100, "min.compaction.lag.ms")
    assert _range(drawn("0:1@1 100:1@1 200:1@9999 300:1* 310", settings, stable=150), 10_000)[1:] == (150, 100, "last stable offset")


def test_nobody_knows_when_a_transaction_ends_or_an_active_segment_closes() -> None:
    """`held_until_ms` is for the lag alone."""
    assert cleanable_range(drawn("0:10 100:1* 110", stable=50), 0).held_until_ms is None
    assert cleanable_range(drawn("0:10 100:1* 110"), 0).held_until_ms is None


# --- the row that keeps the log end -------------------------------------------------------------------------------------------------------


def test_a_segment_that_holds_only_the_empty_row_of_the_log_end_is_not_cleanable() -> None:
    """Nothing can go from it, so it must not count as dirty for ever."""
    log = drawn("0:10 100:5∅#1..309 310")
    assert only_keeps_the_log_end(log.segments[-1], 310)
    assert bases(log.closed_segments) == [0]
    assert _range(log) == (0, 100, 100, "active segment")
    assert cleanable_range(log, 0).cleanable_bytes == 10


@pytest.mark.parametrize(
    "picture",
    ["0:10 100:5∅#2..309 310", "0:10 100:5∅#1..308 310", "0:10 100:5@7#1..309 310"],
    ids=["two EMPTY rows", "not at the log end", "a record"],
)
def test_every_other_segment_is_an_ordinary_one(picture: str) -> None:
    """One of several EMPTY rows may go one day."""
    log = drawn(picture)
    assert not only_keeps_the_log_end(log.segments[-1], 310)
    assert bases(log.closed_segments) == [0, 100]
    assert log.closed_end_offset == 310


def test_a_partition_that_holds_only_the_row_of_its_log_end_has_nothing_to_clean() -> None:
    """After retention took everything."""
    log = drawn("309:5∅#1 310", log_start=310)
    assert bases(log.closed_segments) == []
    assert _range(log) == (310, 310, 309, "active segment")
    assert cleanable_range(log, 0).cleanable_bytes == 0


def test_the_closed_segments_end_where_the_active_one_begins() -> None:
    """If no segment is active, they end at the log end."""
    assert drawn("0:10 100:5* 310").closed_end_offset == 100
    assert drawn("0:10 100:5 310").closed_end_offset == 310
    assert bases(drawn("0:10 1:5* 2").closed_segments) == [0], "one record is enough"
    assert drawn("").closed_end_offset == 0


def test_what_lies_below_the_log_start_whole_is_none_of_the_closed_segments() -> None:
    """Retention takes it; where nothing is left, the active segment begins where it did."""
    picture = "0:10 100:10 200:5* 310"
    found = {start: bases(drawn(picture, log_start=start).closed_segments) for start in (0, 99, 100, 199, 200, 309, 310)}
    assert found == {0: [0, 100], 99: [0, 100], 100: [100], 199: [100], 200: [], 309: [], 310: []}
    assert {drawn(picture, log_start=start).closed_end_offset for start in (0, 100, 310)} == {200}
    assert bases(drawn("0:10 100:10 310", log_start=309).closed_segments) == [100]


# --- overdue and horizons -----------------------------------------------------------------------------------------------------------------


def test_a_partition_is_overdue_from_its_oldest_dirty_record_on() -> None:
    """The oldest of the dirty closed segments counts; neither clean ones nor the active one do."""
    settings = {"max.compaction.lag.ms": HOUR_MS}
    log = drawn("0:10@1 | 100:10@7000 200:10@5000 300:1@2* 310", settings)
    assert overdue_since_ms(log, 100) == 5_000 + HOUR_MS


def test_records_without_a_time_do_not_make_a_partition_overdue() -> None:
    """As in Kafka: times at or below 0 do not count."""
    settings = {"max.compaction.lag.ms": HOUR_MS}
    assert overdue_since_ms(drawn("0:10@0 100:10@-1 200:1* 310", settings), 0) is None
    assert overdue_since_ms(drawn("0:10@0 100:10@1 200:1* 310", settings), 0) == 1 + HOUR_MS


def _appended(log: PartitionLog, *moments_ms: int) -> PartitionLog:
    """Return a log whose segments were begun at some moments, whatever the timestamps of their records are."""
    segments = [replace(segment, appended_at_ms=moment) for segment, moment in zip(log.segments, moments_ms, strict=True)]
    return replace(log, segments=segments)


def test_old_records_can_be_cleaned_late_only_from_the_moment_that_their_segment_was_closed() -> None:
    """A backfill: records a month older than the lag, appended now. The next segment was begun at 8 h, and closed theirs."""
    settings = {"max.compaction.lag.ms": HOUR_MS}
    log = _appended(drawn("0:10@5 100:1@6* 310", settings), 7 * HOUR_MS, 8 * HOUR_MS)
    assert overdue_since_ms(log, 0) == 5 + HOUR_MS
    assert cleanable_late_since_ms(log, 0, 9 * HOUR_MS) == 8 * HOUR_MS


def test_new_records_can_be_cleaned_late_from_the_moment_that_they_are_overdue() -> None:
    """Their segment was closed long before: the lag counts, as in Kafka."""
    settings = {"max.compaction.lag.ms": HOUR_MS}
    log = _appended(drawn(f"0:10@{8 * HOUR_MS} 100:1@{8 * HOUR_MS}* 310", settings), 8 * HOUR_MS, 8 * HOUR_MS + 5)
    assert cleanable_late_since_ms(log, 0, 20 * HOUR_MS) == 9 * HOUR_MS


def test_the_last_segment_is_closed_by_its_age_or_counts_from_its_first_append() -> None:
    """When it was rolled before is not known to the planning."""
    settings = {"max.compaction.lag.ms": HOUR_MS}
    log = _appended(drawn("0:10@5 310", settings), 7 * HOUR_MS)
    assert cleanable_late_since_ms(log, 0, 9 * HOUR_MS) == 8 * HOUR_MS + 1
    assert cleanable_late_since_ms(log, 0, 7 * HOUR_MS + 5) == 7 * HOUR_MS


def test_of_several_segments_the_first_that_could_be_cleaned_counts() -> None:
    """Those without a time, and those that are clean to their end, do not."""
    settings = {"max.compaction.lag.ms": HOUR_MS}
    log = _appended(drawn("0:10@0 100:10@6 200:10@5 300:1@9* 400", settings), 1, 2 * HOUR_MS, 3 * HOUR_MS, 4 * HOUR_MS)
    assert cleanable_late_since_ms(log, 0, 9 * HOUR_MS) == 3 * HOUR_MS
    assert cleanable_late_since_ms(log, 200, 9 * HOUR_MS) == 4 * HOUR_MS
    assert cleanable_late_since_ms(log, 300, 9 * HOUR_MS) is None
    cut = _appended(drawn("0:10@5..149 200:1* 310", settings), 1, 2)
    assert cleanable_late_since_ms(cut, 150, 9 * HOUR_MS) is None


def test_a_clean_partition_is_not_overdue() -> None:
    """With the checkpoint at the end of the closed segments, or past it."""
    settings = {"max.compaction.lag.ms": HOUR_MS}
    assert overdue_since_ms(drawn("0:10@5 100:1@5* 310", settings), 100) is None
    assert overdue_since_ms(drawn("0:10@5 100:1@5* 310", settings), 200) is None


def test_a_segment_that_the_checkpoint_cuts_may_be_overdue_but_not_one_that_is_clean_to_its_end() -> None:
    """Offsets up to 149 are left of it, then up to 150."""
    settings = {"max.compaction.lag.ms": HOUR_MS}
    assert overdue_since_ms(drawn("0:10@5..149 200:1* 310", settings), 150) is None
    assert overdue_since_ms(drawn("0:10@5..150 200:1* 310", settings), 150) == 5 + HOUR_MS


def test_the_earliest_horizon_is_looked_for_where_everything_is_clean() -> None:
    """A segment that the checkpoint cuts waits until it is clean to its end."""
    log = drawn("0:10~70..99 100:10~50 200:10 300:10~20..399 400:10~10 500:1~5* 510")
    assert earliest_horizon_ms(log, 400) == 20
    assert earliest_horizon_ms(log, 399) == 50
    assert earliest_horizon_ms(log, 100) == 70
    assert earliest_horizon_ms(log, 99) is None


def test_a_range_says_how_dirty_it_is() -> None:
    """The properties by themselves."""
    found = CleanableRange(
        first_dirty_offset=0,
        first_uncleanable_offset=9,
        end_offset=9,
        bound=Bound.ACTIVE_SEGMENT,
        held_until_ms=None,
        reset=None,
        clean_bytes=3,
        cleanable_bytes=1,
    )
    assert (found.total_bytes, found.ratio) == (4, 0.25)
