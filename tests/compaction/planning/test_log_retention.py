"""Which segments go whole: docs/semantics.md#14 and the example docs/semantics.md#B.11."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lastword.compaction.planning.log_retention import DeletionReason, deletable
from tests.compaction.logs import HOUR_MS, drawn

if TYPE_CHECKING:
    from lastword.compaction.planning.bounds import PartitionLog

_NEVER = {"cleanup.policy": "delete", "retention.ms": -1}


def _gone(log: PartitionLog, now_ms: int = 0) -> list[tuple[int, str]]:
    """Return (base offset, reason) of the segments that go."""
    return [(segment.base_offset, breach.value) for segment, breach in deletable(log, now_ms).segments]


def test_the_picture_of_the_module() -> None:
    """Log start 500, 250 bytes, 1 h: the start takes 0, the size nothing more, the time 412 and 590; the active segment is young."""
    settings = {"cleanup.policy": "compact,delete", "retention.bytes": 250, "retention.ms": "1h"}
    now = 10 * HOUR_MS
    log = drawn(f"0:100@{7 * HOUR_MS} 412:100@{8 * HOUR_MS} 590:100@{5 * HOUR_MS} 731:100@{now}* 900", settings, log_start=500)
    found = deletable(log, now)
    assert _gone(log, now) == [(0, "log start offset"), (412, "retention.ms"), (590, "retention.ms")]
    assert found.log_start_offset == 731


# --- by time ------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpoint", [0, 100, 200])
def test_a_closed_segment_older_than_72_h_goes_whole_cleaned_or_not(checkpoint: int) -> None:
    """cleanup.policy=compact,delete with 72 h; retention does not wait for the cleaner."""
    settings = {"cleanup.policy": "compact,delete", "retention.ms": "72h"}
    log = drawn(f"0:10@{HOUR_MS} 100:10@{90 * HOUR_MS} 200:1* 210", settings, checkpoint=checkpoint)
    assert _gone(log, 73 * HOUR_MS) == []
    assert _gone(log, 73 * HOUR_MS + 1) == [(0, "retention.ms")]
    assert deletable(log, 73 * HOUR_MS + 1).log_start_offset == 100


def test_the_newest_record_of_a_segment_keeps_it_and_those_behind_it() -> None:
    """From the oldest on, until the first that stays: 200 is old, but 100 is not."""
    log = drawn("0:1@1000 100:1@9000 200:1@1000 300:1* 310", {"cleanup.policy": "delete", "retention.ms": 5_000})
    assert _gone(log, 10_000) == [(0, "retention.ms")]


def test_a_segment_without_a_record_time_is_as_old_as_its_first_append() -> None:
    """EMPTY rows alone, two of them."""
    log = drawn("0:1∅@1000#2..99 100:1@9000* 310", {"cleanup.policy": "delete", "retention.ms": 5_000})
    assert _gone(log, 6_000) == []
    assert _gone(log, 6_001) == [(0, "retention.ms")]


def test_record_times_in_the_future_block_retention_by_time_and_are_reported() -> None:
    """As in Kafka; what is behind such a segment stays too."""
    log = drawn("0:1@99999 100:1@1 200:1* 310", {"cleanup.policy": "delete", "retention.ms": 5_000})
    found = deletable(log, 10_000)
    assert (found.segments, found.log_start_offset, found.future_timestamp_ms) == ((), 0, 99_999)
    assert deletable(log, 99_999).future_timestamp_ms is None, "now it is the present"


def test_a_future_record_that_does_not_block_anything_is_not_reported() -> None:
    """Not first in line, or no retention by time, or nothing left."""
    assert (
        deletable(drawn("0:1@9000 100:1@99999* 310", {"cleanup.policy": "delete", "retention.ms": 5_000}), 10_000).future_timestamp_ms
        is None
    )
    assert deletable(drawn("0:1@99999* 310", _NEVER), 10_000).future_timestamp_ms is None
    assert deletable(drawn("0:1@99999* 310"), 10_000).future_timestamp_ms is None
    assert deletable(drawn("", {"cleanup.policy": "delete"}), 10_000).future_timestamp_ms is None


def test_retention_of_0_ms_blocks_on_the_future_too() -> None:
    """0 is a retention, -1 is none."""
    log = drawn("0:1@99 100:1@5* 310", {"cleanup.policy": "delete", "retention.ms": 0})
    assert deletable(log, 50).future_timestamp_ms == 99
    assert _gone(log, 99) == []
    assert _gone(log, 100) == [(0, "retention.ms"), (100, "retention.ms")]


def test_minus_1_is_no_limit() -> None:
    """For time and for size."""
    log = drawn("0:100@1 100:1@1* 310", {**_NEVER, "retention.bytes": -1})
    assert _gone(log, 10**15) == []


# --- by size ------------------------------------------------------------------------------------------------------------------------------


def test_oldest_segments_go_while_the_rest_is_still_as_large_as_retention_bytes() -> None:
    """What remains is never smaller than that: 400 without 0 is 300, without 100 it is 200, without 200 it would be 100."""
    log = drawn("0:100 100:100 200:100 300:100* 310", {**_NEVER, "retention.bytes": 200})
    assert _gone(log) == [(0, "retention.bytes"), (100, "retention.bytes")]
    assert deletable(log, 0).log_start_offset == 200
    assert _gone(drawn("0:100 100:100 200:100 300:100* 310", {**_NEVER, "retention.bytes": 201})) == [(0, "retention.bytes")]


def test_the_first_segment_that_is_too_large_to_go_keeps_those_behind_it() -> None:
    """350 bytes, 200 may go at most: not the 201 of the first, so not the 10 behind it."""
    log = drawn("0:201 100:10 200:139* 310", {**_NEVER, "retention.bytes": 150})
    assert _gone(log) == []


def test_a_log_smaller_than_retention_bytes_loses_nothing() -> None:
    """Nor one of just that size."""
    assert _gone(drawn("0:100 100:100* 310", {**_NEVER, "retention.bytes": 201})) == []
    assert _gone(drawn("0:100 100:100* 310", {**_NEVER, "retention.bytes": 200})) == []


def test_retention_of_0_bytes_takes_everything() -> None:
    """0 is a limit; the active segment may go as well."""
    log = drawn("0:100 100:100* 310", {**_NEVER, "retention.bytes": 0})
    assert _gone(log) == [(0, "retention.bytes"), (100, "retention.bytes")]
    assert deletable(log, 0).log_start_offset == 310


def test_segments_that_went_by_log_start_do_not_count() -> None:
    """300 of 400 bytes are left then: 100 more may go."""
    log = drawn("0:100 100:100 200:100 300:100* 310", {**_NEVER, "retention.bytes": 200}, log_start=150)
    assert _gone(log) == [(0, "log start offset"), (100, "retention.bytes")]


# --- by log start -------------------------------------------------------------------------------------------------------------------------


def test_segments_below_the_log_start_go_under_every_policy() -> None:
    """Also when it is neither compact nor delete."""
    for policy in ("compact", "delete", "compact,delete", ""):
        log = drawn("0:1@9 100:1@9 200:1@9* 310", {"cleanup.policy": policy}, log_start=200)
        assert _gone(log, 10) == [(0, "log start offset"), (100, "log start offset")]
        assert deletable(log, 10).log_start_offset == 200


def test_a_segment_that_the_log_start_cuts_stays_and_so_does_the_log_start() -> None:
    """It is not moved back to the segment's base."""
    log = drawn("0:1 100:1 200:1* 310", log_start=150)
    assert _gone(log) == [(0, "log start offset")]
    assert deletable(log, 0).log_start_offset == 150
    assert _gone(drawn("0:1 100:1 200:1* 310", log_start=99)) == []


def test_a_log_start_does_not_move_where_nothing_goes() -> None:
    """Also when cleaning has emptied the first segments: compaction never moves it."""
    assert deletable(drawn("100:1 200:1* 310"), 0).log_start_offset == 0
    assert deletable(drawn("309:1∅#1 310", log_start=200), 0).log_start_offset == 200


def test_a_log_start_at_the_log_end_takes_the_active_segment_too() -> None:
    """Everything was deleted; one row keeps the log end."""
    log = drawn("0:1 100:1* 310", log_start=310)
    assert _gone(log) == [(0, "log start offset"), (100, "log start offset")]
    assert deletable(log, 0).log_start_offset == 310
    assert _gone(drawn("0:1 100:1* 310", log_start=309)) == [(0, "log start offset")]


def test_one_pass_unblocks_another() -> None:
    """Kafka's testRetentionIdempotency: the young segment that held back the old ones goes by log start."""
    settings = {"cleanup.policy": "delete", "retention.ms": 5_000}
    picture = "0:1@9999 100:1@1 200:1@1 300:1@9999* 310"
    assert _gone(drawn(picture, settings), 10_000) == []
    assert _gone(drawn(picture, settings, log_start=100), 10_000) == [
        (0, "log start offset"),
        (100, "retention.ms"),
        (200, "retention.ms"),
    ]


def test_compact_alone_deletes_nothing_by_size_or_time() -> None:
    """Even if retention.ms and retention.bytes are exceeded."""
    assert _gone(drawn("0:100@1 100:1@1* 310", {"retention.ms": 1, "retention.bytes": 0}), 10**15) == []


# --- the last segment ---------------------------------------------------------------------------------------------------------------------


def test_the_active_segment_may_go_and_the_log_start_is_the_log_end_then() -> None:
    """Kafka rolls a new one first."""
    log = drawn("0:1@1 100:1@1* 310", {"cleanup.policy": "delete", "retention.ms": 5_000})
    assert _gone(log, 10_000) == [(0, "retention.ms"), (100, "retention.ms")]
    assert deletable(log, 10_000).log_start_offset == 310


def test_the_row_that_keeps_the_log_end_is_never_taken() -> None:
    """By no pass; what is before it may go, and the log start is the log end then."""
    settings = {"cleanup.policy": "delete", "retention.ms": 5_000, "retention.bytes": 0}
    alone = drawn("309:1∅@1#1 310", settings, log_start=310)
    assert (deletable(alone, 10_000).segments, deletable(alone, 10_000).log_start_offset) == ((), 310)
    log = drawn("0:1@1 309:1∅@1#1 310", settings)
    assert _gone(log, 10_000) == [(0, "retention.bytes")]
    assert deletable(log, 10_000).log_start_offset == 310


def test_what_lies_below_the_log_start_goes_before_the_row_that_keeps_the_log_end() -> None:
    """Segment 0 ends where that row begins, not at the log end: it goes from log start 309 on."""
    picture = "0:1 309:1∅@1#1 310"
    assert _gone(drawn(picture, log_start=309)) == [(0, "log start offset")]
    assert deletable(drawn(picture, log_start=309), 0).log_start_offset == 310
    assert _gone(drawn(picture, log_start=308)) == []


def test_its_bytes_do_not_count() -> None:
    """100 bytes without it: nothing may go; with it, the first 50 could."""
    assert _gone(drawn("0:50 100:50 309:50∅#1 310", {**_NEVER, "retention.bytes": 100})) == []


def test_that_row_goes_when_something_was_appended_behind_it() -> None:
    """Then it keeps nothing any more, and lies below the log start."""
    log = drawn("309:1∅@1#1 310:1@9* 320", _NEVER, log_start=310)
    assert _gone(log) == [(309, "log start offset")]


def test_nothing_to_delete_is_an_empty_answer() -> None:
    """An empty log keeps its log start."""
    found = deletable(drawn("", {"cleanup.policy": "delete"}), 0)
    assert (found.segments, found.log_start_offset) == ((), 0)
    assert {one.value for one in DeletionReason} == {"log start offset", "retention.bytes", "retention.ms"}
