"""Which segments of a plan are dirty and clean, and what is mapped together."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from lastword.compaction.planning.offset_map import DirtyRange
from lastword.storage.cleaning.cleaning_segments import clean_segments, dirty_segments, mapped_together


def _segment(first_offset: int, last_offset: int, record_count: int) -> Mock:
    return Mock(label=first_offset, first_offset=first_offset, last_offset=last_offset, record_count=record_count)


@pytest.mark.parametrize(
    ("mapped", "record_count", "together"),
    [((300, 400), 100, False), ((300, 400), 60, False), ((60, 400), 200, True), ((0, 400), 320, False)],
    ids=["the rest of a joined segment", "less than may be there", "more than is clean", "nothing is clean"],
)
def test_a_joined_segment_that_the_map_ended_in_is_clean_before_the_range_and_dirty_in_it(
    mapped: tuple[int, int], record_count: int, *, together: bool
) -> None:
    """The last cleaning ended at offset 300, the map being full, and joined what it looked at.

    ```
     offsets    0 ────────── 300 ── 349  350 ─ 399
     segments   joined: 270 records       50 records
     range                   300 ──────────── 400      100 records mapped; 220 to 270 are clean
    ```
    """
    plan = Mock(
        segments=[_segment(0, 349, 270), _segment(350, 399, 50)],
        dirty=DirtyRange(first_offset=mapped[0], end_offset=mapped[1], record_count=record_count),
    )
    assert [one.label for one in dirty_segments(plan)] == [0, 350]
    assert [one.label for one in clean_segments(plan)] == ([] if mapped[0] == 0 else [0])
    assert mapped_together([plan]) is together
