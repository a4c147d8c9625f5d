"""Segments of a cleaning, from metadata and the offset map: dirty and clean ones, and those of which no row is left.

```
 segments     0        100       200       300
 newest       ·        ·         230       310, 350     offsets of the newest record of each key in the dirty range
 read again   no       no        yes       yes          what a segment leaves nothing of need not be read to be replaced
```

A reload of everything, as a nightly snapshot is, leaves whole segments of what came before without a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from storage.cleaning_rows import OFFSET_BITS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from compaction.planner import PartitionPlan
    from compaction.segments import Segment
    from storage.snapshot import Files

#: How many spans of offsets the newest records are told apart by, over all partitions.
_SPANS: Final = 4096


def dirty_segments(plan: PartitionPlan) -> list[Segment]:
    """Return the segments that hold a part of the mapped range."""
    if plan.dirty.end_offset <= plan.dirty.first_offset:
        return []
    return [one for one in plan.segments if one.last_offset >= plan.dirty.first_offset]


def clean_segments(plan: PartitionPlan) -> list[Segment]:
    """Return the segments that hold a part of the clean section."""
    return [one for one in plan.segments if one.first_offset < plan.dirty.first_offset]


def files_of(files: Files, chosen: Mapping[int, PartitionPlan]) -> NDArray[np.bool_]:
    """Tell for every file whether it lies in the segments of a chosen partition."""
    inside = files.partition < 0
    for partition, plan in chosen.items():
        if plan.segments:
            inside = inside | ((files.partition == partition) & (files.slice <= plan.segments[-1].slices[-1]))
    return inside


def files_with(files: Files, positions: Iterable[int]) -> NDArray[np.bool_]:
    """Tell for every file whether one of a few positions lies in its range of offsets."""
    inside = files.partition < 0
    for partition, offset in (divmod(one, 1 << OFFSET_BITS) for one in positions):
        inside = inside | ((files.partition == partition) & (files.first_offset <= offset) & (files.last_offset >= offset))
    return inside


def span_bits(plans: Iterable[PartitionPlan]) -> int:
    """Return by how many bits offsets of the dirty ranges are shifted, so that a few thousand spans are left."""
    offsets = sum(max(0, one.dirty.end_offset - one.dirty.first_offset) for one in plans)
    return max(0, (offsets // _SPANS).bit_length())


def leaves_nothing(
    segment: Segment, plan: PartitionPlan, files: Files, *, newest: Sequence[tuple[int, int]], superseded: int, places: Sequence[int]
) -> bool:
    """Tell whether no row of a segment is left by the cleaning.

    `newest` are ranges (first, last) that hold the offsets of the newest records of the dirty range, `superseded` is how many rows of the
    segment gave way if it is a clean one, `places` are offsets that must stay. Control rows and rows of producers are looked at one by one.
    """
    if any(segment.first_offset <= place <= segment.last_offset for place in places):
        return False
    if segment.last_offset < plan.dirty.first_offset:
        return superseded == segment.record_count
    if segment.first_offset < plan.dirty.first_offset or segment.last_offset >= plan.dirty.end_offset:
        return False
    mine = (files.partition == segment.partition) & (files.slice >= segment.slices[0]) & (files.slice <= segment.slices[-1])
    if (files.producer_rows[mine] > 0).any() or (files.empty_rows[mine] > 0).any():
        return False
    return not any(first <= segment.last_offset and last >= segment.first_offset for first, last in newest)
