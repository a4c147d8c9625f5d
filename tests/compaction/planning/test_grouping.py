"""Which segments become one, and which are not worth writing again: docs/semantics.md#7, docs/semantics.md#A.9, ADR 0010."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from lastword.compaction.planning.grouping import group_segments, worth_writing
from tests.compaction.logs import bases, drawn

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from lastword.compaction.log.segments import Segment


def _groups(picture: str, segment_bytes: int) -> list[list[int]]:
    return [bases(group) for group in group_segments(drawn(picture).segments, segment_bytes)]


def _written(picture: str, segment_bytes: int, changed: Collection[int]) -> list[list[int]]:
    return [bases(group) for group in worth_writing(group_segments(drawn(picture).segments, segment_bytes), changed)]


# --- grouping by size ---------------------------------------------------------------------------------------------------------------------


def test_neighbours_become_one_while_their_source_sizes_fit_segment_bytes() -> None:
    """70 + 20 + 10 is 100 exactly; 1 more is too much, and begins the next group. A group is named by its first member."""
    assert _groups("0:70 100:20 200:10 300:1 400:99 500:2 600", 100) == [[0, 100, 200], [300, 400], [500]]


def test_the_first_segment_of_a_group_is_taken_whatever_its_size() -> None:
    """It then stays alone, but for what has no bytes."""
    assert _groups("0:500 100:1 200:300 300:1 400", 100) == [[0], [100], [200], [300]]
    assert _groups("0:100 100:0 200:1 300", 100) == [[0, 100], [200]]


def test_a_small_segment_between_large_ones_is_not_moved() -> None:
    """Only neighbours; the order of offsets is the order of segments."""
    assert _groups("0:60 100:60 200:1 300:60 400", 100) == [[0], [100, 200], [300]]


def test_no_segments_no_groups() -> None:
    """Nor one without members."""
    assert _groups("", 100) == []


@given(st.lists(st.integers(0, 120), max_size=12))
def test_groups_hold_every_segment_once_in_order_and_are_as_large_as_may_be(sizes: list[int]) -> None:
    """And the first of the next group would never have fitted."""
    picture = " ".join(f"{number * 10}:{size}" for number, size in enumerate(sizes)) + f" {10 * len(sizes)}"
    segments = drawn(picture).segments
    groups = group_segments(segments, 100)
    assert [one for group in groups for one in group] == list(segments)
    for group, following in pairwise(groups):
        assert _size(group) + following[0].size_bytes > 100
    assert all(_size(group) <= 100 or _size(group[1:]) == 0 for group in groups)


def _size(group: Sequence[Segment]) -> int:
    return sum(one.size_bytes for one in group)


# --- what is worth writing ----------------------------------------------------------------------------------------------------------------


def test_an_unchanged_first_segment_is_left_out_if_it_is_larger_than_the_rest_of_its_group() -> None:
    """The example of grouping.py: segment 0 has 50 bytes and the rest of its group 45, so 100, 200 and 300 alone are joined."""
    picture = "0:50 100:20 200:15 300:10 400:10 500:60 600"
    assert _groups(picture, 100) == [[0, 100, 200, 300], [400, 500]]
    assert _written(picture, 100, {400, 500}) == [[100, 200, 300], [400, 500]]


def test_a_clean_segment_in_which_nothing_changes_is_left_alone() -> None:
    """Alone in its group it has nothing to be joined with."""
    assert _written("0:90 100:90 200", 100, set()) == []
    assert _written("0:90 100:90 200", 100, {100}) == [[100]]
    assert _written("0:90 100:90 200", 100, {0, 100}) == [[0], [100]]


def test_a_segment_that_changes_is_written_with_all_that_follow_it_in_its_group() -> None:
    """What follows is joined with it, whatever its size."""
    assert _written("0:10 100:60 200:5 300", 100, {0}) == [[0, 100, 200]]


def test_a_segment_is_joined_only_with_at_least_as_many_bytes_as_it_has_itself() -> None:
    """So each join at least doubles its segment, and a byte is rewritten a logarithmic number of times."""
    assert _written("0:50 100:30 200:20 300", 100, {200}) == [[0, 100, 200]]
    assert _written("0:51 100:30 200:19 300", 100, {200}) == [[200]]
    assert _written("0:51 100:19 200:30 300", 100, {200}) == [[100, 200]]


def test_segments_of_the_same_size_are_joined_even_if_nothing_changes() -> None:
    """Many small segments become fewer, larger ones."""
    assert _written("0:10 100:10 200", 100, set()) == [[0, 100]]
    assert _written("0:10 100:10 200:10 300:10 400", 100, set()) == [[0, 100, 200, 300]]


def test_an_unchanged_last_segment_is_never_written_by_itself() -> None:
    """40 > 20 + 10, 20 > 10, and 10 is left alone too."""
    assert _written("0:40 100:20 200:10 300", 100, set()) == []


def test_nothing_is_written_of_no_groups() -> None:
    """Nor of one that has no bytes and does not change."""
    assert _written("", 100, set()) == []
    assert _written("0:0 100", 100, set()) == []


def test_each_group_is_judged_by_itself() -> None:
    """The first is left alone, the second changes, of the third the end is joined."""
    assert _written("0:100 100:100 200:60 300:15 400:20 500", 100, {100}) == [[100], [300, 400]]


def test_appending_and_cleaning_for_ever_writes_each_byte_a_logarithmic_number_of_times() -> None:
    """1,000 segments of one byte, each cleaned when it came: every byte is written eleven times at most, not a thousand."""
    sizes: list[int] = []
    written = 0
    for _ in range(1_000):
        sizes.append(1)
        picture = " ".join(f"{number}:{size}" for number, size in enumerate(sizes)) + f" {len(sizes)}"
        for group in worth_writing(group_segments(drawn(picture).segments, 10_000), {len(sizes) - 1}):
            first, total = group[0].base_offset, sum(one.size_bytes for one in group)
            written += total
            sizes = [*sizes[:first], total, *sizes[first + len(group) :]]
    assert sum(sizes) == 1_000
    assert len(sizes) <= 10
    assert written <= 11 * 1_000
