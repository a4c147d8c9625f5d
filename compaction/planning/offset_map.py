"""The budget of the offset map, and the dirty range that fits it.

Kafka's map has slots of 24 bytes (a 16-byte digest and an offset) and is filled to a load factor (docs/semantics.md#6.1,
docs/semantics.md#6.6). Here it is a table of keys and offsets, and the same number of entries bounds its memory. A dirty range is cut
beforehand by record counts alone, an upper bound of its keys (docs/semantics.md#A.21).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lastword.compaction.log.segments import Span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lastword.compaction.config.topic_config import ServiceConfig
    from lastword.compaction.log.segments import Segment

BYTES_PER_ENTRY: Final = 24


def map_slots(config: ServiceConfig) -> int:
    """Return the slots of one cleaner thread's map: its share of `log.cleaner.dedupe.buffer.size`."""
    return config.log_cleaner_dedupe_buffer_size // config.log_cleaner_threads // BYTES_PER_ENTRY


def map_entries(config: ServiceConfig) -> int:
    """Return how many keys one round may map: the slots times `log.cleaner.io.buffer.load.factor`, at least one."""
    return max(1, int(map_slots(config) * config.log_cleaner_io_buffer_load_factor))


@dataclass(frozen=True, slots=True, kw_only=True)
class DirtyRange:
    """The offsets that one round maps: `first_offset` to `end_offset`, holding at most `record_count` records.

    `rounds_left` is how many more rounds of the same budget the rest would need; 0 when the range was not cut.
    """

    first_offset: int
    end_offset: int
    record_count: int
    rounds_left: int = 0

    @property
    def cut(self) -> bool:
        """Tell whether the map budget cut the range."""
        return self.rounds_left > 0


def fit_dirty_range(segments: Sequence[Segment], first_dirty_offset: int, end_offset: int, entries: int) -> DirtyRange:
    """Return as much of `first_dirty_offset` to `end_offset` as `entries` entries can map, at least one record.

    `segments` are those of the range, the first of them perhaps begun before it. A slice that does not fit as a whole is cut inside: no
    offset stands twice, so `n` offsets hold at most `n` records. Where a log has gaps, as the mirror of a compacted topic does, its slices
    tell how many records there are.
    """
    spans = [span for segment in segments for span in _spans(segment)]
    # So many records of a slice may stand at or past the first dirty offset.
    counts = [max(0, min(span.record_count, span.last_offset - max(span.first_offset, first_dirty_offset) + 1)) for span in spans]
    bases = {_spans(segment)[0]: segment.base_offset for segment in segments}  # a cut there is one that cuts no segment
    taken = 0
    for number, span in enumerate(spans):
        if taken + counts[number] > entries:
            start = max(first_dirty_offset, span.first_offset)
            end = start + entries - taken if entries > taken else bases.get(span, span.first_offset)
            left = sum(counts[number:]) - (entries - taken)
            return DirtyRange(first_offset=first_dirty_offset, end_offset=end, record_count=entries, rounds_left=-(-left // entries))
        taken += counts[number]
    return DirtyRange(first_offset=first_dirty_offset, end_offset=end_offset, record_count=taken)


def _spans(segment: Segment) -> Sequence[Span]:
    """Return what the slices of a segment hold; all of it as one where there is a single slice."""
    return segment.spans or (Span(segment.first_offset, segment.last_offset, segment.record_count),)
