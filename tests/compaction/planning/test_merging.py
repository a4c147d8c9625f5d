"""Which slices become one: docs/semantics.md#A.49, docs/semantics.md#A.50, ADR 0029."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastword.compaction.log.segments import is_closed
from lastword.compaction.planning.merging import MERGE_FACTOR, mergeable_slices, slices_of_active, stays_closed
from tests.compaction.logs import config, drawn

_LARGE = 1_000_000


def _active(sizes: list[int], *, first_timed: int = 0, large: int = _LARGE) -> list[int]:
    """Return the sizes of the slices that become one."""
    return [sizes[number] for number in slices_of_active(sizes, first_timed, max_slice_bytes=large)]


def _after(sizes: list[int], *, large: int = _LARGE) -> list[int]:
    """Return the sizes of the slices after a merge of the active segment."""
    run = slices_of_active(sizes, 0, max_slice_bytes=large)
    return [*sizes[: run.start], sum(sizes[run.start : run.stop]), *sizes[run.stop :]] if run else sizes


def test_the_picture_of_the_module() -> None:
    """400 is more than a ninth of what follows it; ten slices of 50 become one of 500."""
    assert _active([7, 400, *[50] * 10, 9]) == [50] * 10
    assert _after([7, 400, *[50] * 10, 9]) == [7, 400, 500, 9]


def test_ten_old_slices_become_one_and_nine_do_not() -> None:
    """The first and the newest are not among them."""
    assert _active([1] * 11) == []
    assert _active([1] * 12) == [1] * 10
    assert _active([1] * 40) == [1] * 38
    for few in ([], [1], [1, 1]):
        assert _active(few) == []


def test_the_slices_up_to_the_first_with_a_timestamp_stay() -> None:
    """The roll by record time compares with it; a segment may begin with EMPTY rows, or hold nothing else."""
    assert _active([1, 2, *[3] * 10, 4], first_timed=1) == [3] * 10
    assert _active([1] * 20, first_timed=20) == []


def test_a_slice_is_merged_into_one_of_at_least_ten_times_its_size() -> None:
    """100 is a tenth of 100 + 900 exactly."""
    assert _active([1, 100, *[50] * 18, 1]) == [100, *[50] * 18]
    assert _active([1, 101, *[50] * 18, 1]) == [50] * 18
    assert _active([1, 1_000, 100, *[1] * 9, 1]) == [], "nine slices of 1 are too few"


def test_slices_as_large_as_they_become_are_left_alone_with_all_before_them() -> None:
    """What comes after them is merged by itself."""
    assert _active([1, *[1] * 20, 500, *[2] * 10, 1], large=500) == [2] * 10
    assert _active([1, *[1] * 20, 500, *[2] * 9, 1], large=500) == []
    assert _active([500, *[2] * 10, 1], large=500) == [2] * 10


def test_a_week_of_slices_of_a_10_s_trigger_are_few_files_and_no_record_is_written_again_often() -> None:
    """60,480 equal slices, looked at every five minutes: never more than 60, and each record is written again four times on average."""
    sizes: list[int] = []
    written, most = 0, 0
    for number in range(60_480):
        sizes.append(1_000)
        most = max(most, len(sizes))
        if number % 30 == 0:
            run = slices_of_active(sizes, 0, max_slice_bytes=2**27)
            written += sum(sizes[run.start : run.stop])
            sizes = _after(sizes, large=2**27)
    assert sum(sizes) == 60_480_000
    assert most <= 60
    assert written <= 4 * 60_480_000


@given(st.lists(st.integers(1, 10_000), max_size=60))
def test_whatever_the_sizes_what_is_left_grows_by_a_tenth_from_slice_to_slice(sizes: list[int]) -> None:
    """So the number of slices grows with the logarithm of the bytes, and one merge does not lead to another."""
    left = _after(sizes)
    assert sum(left) == sum(sizes)
    assert _after(left) == left
    if len(left) < len(sizes):
        rests = [sum(left[number:-1]) for number in range(1, len(left) - 1)]
        assert all(MERGE_FACTOR * after < (MERGE_FACTOR - 1) * rest for rest, after in pairwise(rests))


@pytest.mark.parametrize(
    ("sizes", "merged"),
    [
        ([5], []),
        ([5, 5], [[0, 1]]),
        ([5, 5, 100, 5, 5, 5], [[0, 1], [3, 4, 5]]),
        ([100, 100, 5], []),
        ([], []),
    ],
)
def test_all_slices_of_a_closed_segment_become_one_but_for_large_ones(sizes: list[int], merged: list[list[int]]) -> None:
    """It gets no more of them."""
    assert [list(run) for run in mergeable_slices(sizes, max_slice_bytes=100)] == merged


def test_the_last_segment_is_merged_whole_only_if_it_stays_closed() -> None:
    """Closed by its size or its slices, it would be smaller after the merge, take appends again, and be written again with them."""
    last = replace(drawn("100:2000* 200").segments[0], slices=(100, 110, 120))
    settings = config({"segment.bytes": 1_024, "segment.slices": 3, "segment.ms": 1_000})
    assert is_closed(last, settings, log_end_offset=200, rolled_offset=-1, now_ms=1_000)
    assert not stays_closed(last, settings, log_end_offset=200, rolled_offset=-1, now_ms=1_000)
    assert stays_closed(last, settings, log_end_offset=200, rolled_offset=200, now_ms=1_000), "rolled by command"
    assert stays_closed(last, settings, log_end_offset=200, rolled_offset=-1, now_ms=1_001), "old enough"
