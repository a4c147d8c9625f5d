"""Which slices of a log are meant: as few ranges as name them, and the condition that finds them by Delta partition columns alone.

```
 slices of partition 0   0  40  70  100  200          segments [0, 40, 70] and [100]   one range: 0 to 100
                                                      segments [0, 40, 70] and [200]   two ranges: 0 to 70, 200 to 200
```
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Final

import numpy as np

from lastword.storage.delta.plan_values import listed_by_partition

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from lastword.compaction.log.segments import Segment
    from lastword.storage.delta.snapshot import Files

#: So many ranges of one partition are looked up; more of them are constants, one condition each.
_LOOKED_UP: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceRange:
    """The slices of a partition from `first_slice` to `last_slice`, both included."""

    partition: int
    first_slice: int
    last_slice: int

    @property
    def predicate(self) -> str:
        """The SQL condition, of Delta partition columns alone."""
        return f"(partition = {self.partition} AND slice >= {self.first_slice} AND slice <= {self.last_slice})"


def span_of(segments: Sequence[Segment]) -> tuple[int, int, int]:
    """Return the span of neighbouring segments: partition, first slice, last slice."""
    return segments[0].partition, segments[0].slices[0], segments[-1].slices[-1]


def slice_ranges(files: Files, spans: Iterable[tuple[int, int, int]]) -> list[SliceRange]:
    """Return spans (partition, first slice, last slice), in order, as few ranges: neighbours with no slice between them become one."""
    place = files.partition, files.slice
    following: dict[tuple[int, int], int] = {}
    if len(files.partition):
        slices = np.unique(np.stack(place, axis=1), axis=0).tolist()
        following = {(one[0], one[1]): after[1] for one, after in pairwise(slices) if one[0] == after[0]}
    ranges: list[SliceRange] = []
    for partition, first, last in spans:
        if ranges and ranges[-1].partition == partition and first <= following.get((partition, ranges[-1].last_slice), -1):
            ranges[-1] = replace(ranges[-1], last_slice=max(last, ranges[-1].last_slice))
        elif ranges and ranges[-1].partition == partition and first == ranges[-1].last_slice:
            ranges[-1] = replace(ranges[-1], last_slice=last)
        else:
            ranges.append(SliceRange(partition=partition, first_slice=first, last_slice=last))
    return ranges


def ranges_of(files: Files, chosen: NDArray[np.bool_]) -> list[SliceRange]:
    """Return the slices that the chosen ones of `files` are of, as few ranges."""
    slices = files.slice[chosen].tolist()
    return slice_ranges(files, zip(files.partition[chosen].tolist(), slices, slices, strict=True))


def files_in(files: Files, spans: Iterable[tuple[int, int, int]]) -> NDArray[np.bool_]:
    """Tell for every file whether its slice lies in one of some disjoint spans (partition, first slice, last slice)."""
    of_partition: dict[int, list[tuple[int, int]]] = {}
    for partition, first, last in spans:
        of_partition.setdefault(partition, []).append((first, last))
    inside = np.zeros(len(files.partition), dtype=np.bool_)
    for partition, pairs in of_partition.items():
        firsts, lasts = np.asarray(sorted(pairs), dtype=np.int64).T
        mine = np.flatnonzero(files.partition == partition)
        before = np.searchsorted(firsts, files.slice[mine], side="right") - 1
        inside[mine] = (before >= 0) & (files.slice[mine] <= lasts[np.maximum(before, 0)])
    return inside


def any_of(ranges: Sequence[SliceRange]) -> str:
    """Return the SQL condition that a row lies in one of the ranges, which are in order.

    Their bounds are looked up by partition (`plan_values`), the first range of each partition, then the second: few are needed.
    """
    mine: dict[int, list[SliceRange]] = {}
    for one in ranges:
        mine.setdefault(one.partition, []).append(one)
    if max(map(len, mine.values()), default=0) > _LOOKED_UP:
        return " OR ".join(one.predicate for one in ranges)
    return " OR ".join(_first_of(layer) for layer in zip_longest(*mine.values())) or "false"


def _first_of(ranges: Sequence[SliceRange | None]) -> str:
    """Return the SQL condition that a row lies in the one range of its partition."""
    found = {one.partition: one for one in ranges if one is not None}
    every = [found.get(partition) for partition in range(max(found) + 1)]
    first = listed_by_partition([None if one is None else one.first_slice for one in every])
    last = listed_by_partition([None if one is None else one.last_slice for one in every])
    return f"(slice >= {first} AND slice <= {last})"
