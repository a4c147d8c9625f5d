"""Segments: when the last one is closed, where the next append goes, which ones a range of offsets touches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lastword.compaction.log.segments import NO_TIMESTAMP, ActiveSegment, Segment, is_closed, next_append, segments_between
from tests.compaction.logs import HOUR_MS, bases, config, drawn

_LOG = drawn("0:100 412:50 590:70 731:20* 900")
_ACTIVE = _LOG.segments[-1]


def _closed(last: Segment, settings: dict[str, object], *, rolled: int = -1, now_ms: int = 0) -> bool:
    return is_closed(last, config(settings), log_end_offset=900, rolled_offset=rolled, now_ms=now_ms)


def test_a_segment_is_closed_when_it_is_full() -> None:
    """At `segment.bytes` exactly it is."""
    full = replace(_ACTIVE, size_bytes=1_024)
    assert _closed(full, {"segment.bytes": 1_024})
    assert not _closed(full, {"segment.bytes": 1_025})


def test_a_segment_is_closed_when_it_has_segment_slices_slices() -> None:
    """Each append is one, unless they were merged; by default that is so many that a service, which merges them, never comes there."""
    many = replace(_ACTIVE, slices=(731, 740, 750))
    assert _closed(many, {"segment.slices": 3})
    assert not _closed(many, {"segment.slices": 4})
    assert not _closed(replace(_ACTIVE, slices=tuple(range(731, 731 + 9_999))), {})
    assert _closed(replace(_ACTIVE, slices=tuple(range(731, 731 + 10_000))), {})


def test_a_roll_closes_the_segment_that_was_active_then_and_no_later_one() -> None:
    """The roll remembers the log end at its moment: past the label of what it closed, at the label of what came after."""
    assert _closed(_ACTIVE, {}, rolled=800)
    assert _closed(_ACTIVE, {}, rolled=900)
    assert _closed(_ACTIVE, {}, rolled=732)
    assert not _closed(_ACTIVE, {}, rolled=731)
    assert not _closed(_ACTIVE, {})


def test_a_roll_past_the_log_end_was_taken_back_with_the_records_that_it_followed() -> None:
    """After a RESTORE the log is shorter than the ledger remembers."""
    assert not _closed(_ACTIVE, {}, rolled=901)


def test_a_segment_closes_by_the_wall_clock_without_an_append() -> None:
    """Its first append must be more than segment.ms ago; equality is not more. Kafka needs an append for that."""
    begun = replace(_ACTIVE, appended_at_ms=5_000)
    assert not _closed(begun, {"segment.ms": "1h"}, now_ms=5_000 + HOUR_MS)
    assert _closed(begun, {"segment.ms": "1h"}, now_ms=5_001 + HOUR_MS)


def test_historic_record_times_do_not_close_a_segment() -> None:
    """The clock is that of the append."""
    historic = replace(_ACTIVE, min_timestamp_ms=5, max_timestamp_ms=5, appended_at_ms=100 * HOUR_MS)
    assert not _closed(historic, {"segment.ms": "1h"}, now_ms=100 * HOUR_MS)


def test_max_compaction_lag_caps_the_age_of_a_segment_on_a_compacted_topic_only() -> None:
    """LogConfig.maxSegmentMs."""
    settings: dict[str, object] = {"segment.ms": "2h", "max.compaction.lag.ms": "1h"}
    assert _closed(_ACTIVE, settings, now_ms=HOUR_MS + 1)
    assert not _closed(_ACTIVE, {**settings, "cleanup.policy": "delete"}, now_ms=HOUR_MS + 1)


def test_the_next_append_goes_into_the_active_segment() -> None:
    """At the log end, with what the segment holds already."""
    last = replace(_ACTIVE, first_timestamp_ms=77)
    found = next_append(last, config(), partition=3, log_end_offset=900, rolled_offset=-1, now_ms=0)
    assert found == ActiveSegment(partition=3, log_end_offset=900, label=731, size_bytes=20, first_timestamp_ms=77)


@pytest.mark.parametrize("last", [None, _ACTIVE], ids=["nothing was appended yet", "the last segment is closed"])
def test_otherwise_it_opens_a_segment_at_the_log_end(last: Segment | None) -> None:
    """The new segment has the log end offset as its base offset."""
    found = next_append(last, config(), partition=3, log_end_offset=900, rolled_offset=900, now_ms=0)
    assert found == ActiveSegment(partition=3, log_end_offset=900, label=900, size_bytes=0, first_timestamp_ms=None)


@pytest.mark.parametrize(
    ("from_offset", "to_offset", "expected"),
    [
        (0, 900, [0, 412, 590, 731]),
        (412, 731, [412, 590]),
        (500, 731, [412, 590]),
        (411, 412, [0]),
        (412, 413, [412]),
        (589, 591, [412, 590]),
        (731, 900, [731]),
        (900, 950, [731]),
        (500, 500, []),
    ],
)
def test_a_range_touches_the_segment_that_contains_its_start_and_all_that_begin_below_its_end(
    from_offset: int, to_offset: int, expected: list[int]
) -> None:
    """Kafka's `LogSegments.values(from, to)` selects the same segments."""
    assert bases(segments_between(_LOG.segments, from_offset, to_offset)) == expected


def test_a_range_that_begins_below_every_segment_touches_those_below_its_end() -> None:
    """A log may begin at an offset above 0, after retention, and the range below that."""
    log = drawn("412:50 590:70 731")
    assert bases(segments_between(log.segments, 0, 590)) == [412]
    assert bases(segments_between(log.segments, 0, 412)) == []
    assert bases(segments_between(log.segments, -1, 731)) == [412, 590]
    assert bases(segments_between([], 0, 731)) == []


def test_the_age_of_a_segment_is_its_newest_records_or_that_of_its_first_append_when_no_record_is_left() -> None:
    """Kafka falls back to the file's mtime."""
    assert NO_TIMESTAMP == -1, "Kafka's RecordBatch.NO_TIMESTAMP: no record can have it"
    segment = replace(_ACTIVE, max_timestamp_ms=7, appended_at_ms=9)
    assert segment.largest_timestamp_ms == 7
    assert not segment.holds_only_empty_rows
    emptied = replace(segment, max_timestamp_ms=NO_TIMESTAMP)
    assert emptied.largest_timestamp_ms == 9
    assert emptied.holds_only_empty_rows
    assert not replace(segment, max_timestamp_ms=0).holds_only_empty_rows
