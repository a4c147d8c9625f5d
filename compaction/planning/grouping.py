"""Which segments become one: Kafka's grouping by size, and what of a group is worth writing again.

```
 segment.bytes 100       clean                       dirty
 segments      0: 50   100: 20   200: 15  300: 10  400: 10   500: 60
 groups        [0    100    200   300]   [400         500]            Σ source size ≤ segment.bytes, in order
 written        ·     [100    200   300]  [400         500]           0 is unchanged and larger than what it would be joined with
```

Kafka writes every group again in each cleaning. Here a clean segment in which nothing changes is left alone, unless joining it with its
neighbours makes fewer, larger segments of many small ones; a segment is then joined only with at least as many bytes as it has itself, so
that a byte is written again a logarithmic number of times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from lastword.compaction.log.segments import Segment


def group_segments(segments: Sequence[Segment], segment_bytes: int) -> list[list[Segment]]:
    """Return consecutive segments in groups whose source sizes add up to at most `segment_bytes` (Cleaner.groupSegmentsBySize).

    The first segment of a group is taken whatever its size. A group is named by its first member's base offset.
    """
    groups: list[list[Segment]] = []
    size = 0
    for segment in segments:
        if groups and size + segment.size_bytes <= segment_bytes:
            groups[-1].append(segment)
            size += segment.size_bytes
        else:
            groups.append([segment])
            size = segment.size_bytes
    return groups


def worth_writing(groups: Sequence[Sequence[Segment]], changed: Collection[int]) -> list[Sequence[Segment]]:
    """Return what of each group is to be written again; `changed` are the labels of the segments that must be."""
    kept = []
    for group in groups:
        start = 0
        left = sum(segment.size_bytes for segment in group)
        while start < len(group) and group[start].label not in changed and 2 * group[start].size_bytes > left:
            left -= group[start].size_bytes
            start += 1
        rest = group[start:]
        if len(rest) > 1 or (rest and rest[0].label in changed):
            kept.append(rest)
    return kept
