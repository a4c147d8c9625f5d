"""Offsets, segments and slices for the rows that an append brings to a partition.

```
 log end 100, active segment 60 (nearly full)            segment.bytes reached here, and here
                                                                  │           │
   rows of the partition, in source order     a  b  c  d  e  f  g  h  i  j  k  l
   offset                                   100 ……………………………………… 107 ………………… 111
   segment = label of the active one, then first offset of each new one    60   107        111
   slice   = log end, then first offset of each new segment                100  107        111
```

As Kafka does record by record (LogSegment.shouldRoll): a record goes into a new segment if the active one is not empty and the record does
not fit into `segment.bytes`, or is more than `segment.ms` later than the segment's first record. A record's size is what it takes in a
file: the raw bytes of key, and of value and headers, times the compression that a recent file of the topic showed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from lastword.compaction.errors import InvalidRecords
from lastword.compaction.rows.validation import rest_bytes

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from lastword.compaction.log.segments import ActiveSegment


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression:
    """What a record takes in a file: `key` and `rest` (value and headers) are stored bytes a raw byte, `overhead` is bytes a record."""

    key: float = 1.0
    rest: float = 1.0
    overhead: float = 16.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentLimits:
    """When a segment is full: `segment.bytes`, and min(`segment.ms`, `max.compaction.lag.ms`)."""

    segment_bytes: int
    max_segment_ms: int


@dataclass(frozen=True, slots=True)
class SlicePart:
    """Rows `start` to `end` (exclusive) of a batch, which go into one slice of one segment."""

    start: int
    end: int
    segment: int
    slice: int


@dataclass(slots=True)
class Numbering:
    """The end of one partition while an append numbers its rows; `number` takes its batches one after the other."""

    active: ActiveSegment
    limits: SegmentLimits
    compression: Compression
    topic: str
    _next_offset: int = field(init=False)
    _place: tuple[int, int] = field(init=False)
    _filled: float = field(init=False)
    _first_ms: int | None = field(init=False)

    def __post_init__(self) -> None:
        """Begin where the active segment ends."""
        self._next_offset = self.active.log_end_offset
        self._place = self.active.label, self.active.log_end_offset
        self._filled, self._first_ms = self.active.size_bytes, self.active.first_timestamp_ms

    def number(self, rows: pa.RecordBatch, *, has_offsets: bool) -> tuple[NDArray[np.int64], list[SlicePart]]:
        """Return the offsets of the rows of a batch, and the slices that they go into.

        Columns: offset if the rows bring their own (ascending), timestamp, key, value, headers. Raises `InvalidRecords` if two rows bring
        the same offset.
        """
        count = len(rows)
        offsets: NDArray[np.int64]
        if has_offsets:
            offsets = rows.column("offset").to_numpy()
            if count and (offsets[0] < self._next_offset or (np.diff(offsets) <= 0).any()):
                message = f"topic {self.topic}: two rows carry the same partition and offset; nothing was appended"
                raise InvalidRecords(message)
        else:
            offsets = np.arange(self._next_offset, self._next_offset + count)
        if count:
            self._next_offset = int(offsets[-1]) + 1
        return offsets, self._parts(rows, offsets)

    def _parts(self, rows: pa.RecordBatch, offsets: NDArray[np.int64]) -> list[SlicePart]:
        sizes = np.cumsum(self._sizes(rows))
        times_ms = rows.column("timestamp").cast("int64").to_numpy() // 1000
        parts, start, count = list[SlicePart](), 0, len(rows)
        while start < count:
            before = float(sizes[start - 1]) if start else 0.0
            is_empty = self._first_ms is None
            first_ms = int(times_ms[start]) if self._first_ms is None else self._first_ms
            end = int(np.searchsorted(sizes, self.limits.segment_bytes - self._filled + before, side="right"))
            end = max(end, start + is_empty)  # a segment holds one record at least
            late = np.flatnonzero(times_ms[start:end] - first_ms > self.limits.max_segment_ms)
            if len(late):
                end = start + int(late[0])
            if end > start:
                parts.append(SlicePart(start, end, *self._place))
                self._filled += float(sizes[end - 1]) - before
                self._first_ms = first_ms
            if end < count:
                base = int(offsets[end])
                self._place, self._filled, self._first_ms = (base, base), 0.0, None
            start = end
        return parts

    def _sizes(self, rows: pa.RecordBatch) -> NDArray[np.float64]:
        of_keys = pc.binary_length(rows.column("key")).fill_null(0).to_numpy(zero_copy_only=False)
        of_rest = rest_bytes(rows.column("value"), rows.column("headers"))
        sizes: NDArray[np.float64] = of_keys * self.compression.key + of_rest * self.compression.rest + self.compression.overhead
        return sizes
