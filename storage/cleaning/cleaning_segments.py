"""Segments and files of a cleaning, from metadata and the offset map: dirty and clean ones, and those of which no row is left.

```
 files        0        100       200       300
 newest       ·        ·         230       310, 350     offsets of the newest record of each key in the dirty range
 read again   no       no        yes       yes          a file that leaves nothing need not be read to be replaced
```

A reload of everything, as a nightly snapshot is, leaves whole files of what came before without a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from lastword.storage.files.schema import OFFSET_BITS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from lastword.compaction.log.segments import Segment
    from lastword.compaction.planning.planner import PartitionPlan
    from lastword.storage.delta.snapshot import Files

#: Pairs of a first and a last offset.
Ranges: TypeAlias = "NDArray[np.int64] | Sequence[tuple[int, int]]"
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


def mapped_together(plans: Sequence[PartitionPlan]) -> bool:
    """Tell whether the clean sections hold at most as many records as are mapped of the dirty ones, and any at all.

    A segment may lie in both, as a map that is full ends anywhere: what counts for the clean section is what lies before the range.
    """
    clean = [min(one.record_count, plan.dirty.first_offset - one.first_offset) for plan in plans for one in clean_segments(plan)]
    return 0 < sum(clean) <= sum(plan.dirty.record_count for plan in plans)


def files_of(files: Files, chosen: Mapping[int, PartitionPlan], *, from_start: bool = False) -> NDArray[np.bool_]:
    """Tell for every file whether it lies in the segments of a chosen partition, or, `from_start`, anywhere before their end."""
    inside = files.partition < 0
    for partition, plan in chosen.items():
        if plan.segments:
            mine = (files.partition == partition) & (files.slice <= plan.segments[-1].slices[-1])
            inside = inside | (mine if from_start else mine & (files.slice >= plan.segments[0].slices[0]))
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


def files_left(
    files: Files,
    plan: PartitionPlan,
    *,
    newest: Ranges,
    superseded: Mapping[int, int],
    places: Sequence[int],
) -> NDArray[np.bool_]:
    """Tell for every file of the plan's segments whether a row of it may be left by the cleaning; False for all other files.

    `newest` are disjoint ranges (first, last) that hold the offsets of the newest record of each key in the dirty range, `superseded` says
    by label how many rows of a clean segment gave way, `places` are offsets that must stay. Control rows and rows of producers are looked
    at one by one.
    """
    mine = np.flatnonzero(files_of(files, {plan.log.partition: plan}))
    first, last, slices = files.first_offset[mine], files.last_offset[mine], files.slice[mine]
    gone = (first >= plan.dirty.first_offset) & (last < plan.dirty.end_offset)
    gone &= (files.producer_rows[mine] == 0) & (files.empty_rows[mine] == 0) & ~_overlaps(first, last, newest)
    for one in clean_segments(plan):
        if one.last_offset < plan.dirty.first_offset and superseded.get(one.label) == one.record_count:
            gone |= (slices >= one.slices[0]) & (slices <= one.slices[-1])
    left = np.zeros(len(files.partition), dtype=np.bool_)
    left[mine] = ~(gone & ~_overlaps(first, last, [(place, place) for place in places]))
    return left


def _overlaps(first: NDArray[np.int64], last: NDArray[np.int64], ranges: Ranges) -> NDArray[np.bool_]:
    """Tell for every pair of `first` and `last` whether it meets one of some disjoint ranges."""
    pairs = np.asarray(ranges, dtype=np.int64).reshape(-1, 2)
    if not len(pairs):
        return np.zeros(len(first), dtype=np.bool_)
    begins, ends = pairs[np.argsort(pairs[:, 0])].T
    before = np.searchsorted(begins, last, side="right") - 1  # the last range that begins before the file ends
    met: NDArray[np.bool_] = (before >= 0) & (ends[np.maximum(before, 0)] >= first)
    return met
