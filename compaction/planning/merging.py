"""Which slices of a segment become one: few files where a stream has written many, and no record is written again often.

```
 active segment     first  │  400  50  50 … 50   │ newest        sizes; 50 comes ten times, each was merged from ten slices of 5
 merged             ·      │  400 [50  50 … 50]  │ ·             400 stays: 9 × 400 is more than the 500 bytes after it
 later              ·      │ [400 500 400 400 …] │ ·             once ten slices, together ten times as large as the first, follow
```

A slice is merged into one that is at least `MERGE_FACTOR` times as large, so a record of equal slices is written again once for each
power of ten of their number. What stays is larger than a ninth of all that follows it, so the number of slices that are left grows with
the logarithm of the segment's size. Slices of `max_slice_bytes` are as large as slices become; nothing is merged with them.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Final

from lastword.compaction.log.segments import is_closed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lastword.compaction.config.topic_config import TopicConfig
    from lastword.compaction.log.segments import Segment

#: At least this many slices are merged, into one that is at least this many times as large as the first of them.
MERGE_FACTOR: Final = 10


def slices_of_active(sizes: Sequence[int], first_timed: int, *, max_slice_bytes: int) -> range:
    """Return which consecutive slices of the active segment become one; an empty range if there are too few.

    `sizes` are those of its slices, `first_timed` is the number of the first one that holds a timestamp. The slices up to that one stay:
    the age of the segment and its roll by record time are read from them. The newest stays: the next ones are merged with it.
    """
    large = (number for number in reversed(range(len(sizes))) if sizes[number] >= max_slice_bytes)
    begin, end = max(first_timed, next(large, 0)) + 1, len(sizes) - 1
    left = sum(sizes[begin:end])
    while begin < end and MERGE_FACTOR * sizes[begin] > left:
        left -= sizes[begin]
        begin += 1
    return range(begin, end) if end - begin >= MERGE_FACTOR else range(0)


def mergeable_slices(sizes: Sequence[int], *, max_slice_bytes: int) -> list[range]:
    """Return which consecutive slices of a closed segment become one: all between those that are as large as slices become."""
    runs = groupby(range(len(sizes)), key=lambda number: sizes[number] >= max_slice_bytes)
    small_runs = [list(numbers) for is_large, numbers in runs if not is_large]
    return [range(run[0], run[-1] + 1) for run in small_runs if len(run) > 1]


def stays_closed(last: Segment, config: TopicConfig, *, log_end_offset: int, rolled_offset: int, now_ms: int) -> bool:
    """Tell whether the last segment of a partition takes no appends after its slices were merged; arguments as `is_closed`.

    Closed by its size or its number of slices alone, it would be open again, and be written again and again.
    """
    merged = replace(last, size_bytes=0, slices=last.slices[:1])
    return is_closed(merged, config, log_end_offset=log_end_offset, rolled_offset=rolled_offset, now_ms=now_ms)
