"""Which segments of a partition go whole: by log start offset, by size, by time (docs/semantics.md#14).

```
 segments      0        412       590       731 (active)         log start 500, retention.bytes 250, retention.ms 1 h
 size, age     100, 3h  100, 2h   100, 5h   100, 0
 start offset  ✗ (412 ≤ 500)
 size                   · (300 − 250 < 100)
 time                   ✗         ✗         ·                    from the oldest, until the first that stays
```

Kafka's order: each pass sees the result of the one before. A segment goes or stays as a whole; the log start becomes the base of the first
that stays, or the log end.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from lastword.compaction.planning.bounds import only_keeps_the_log_end

if TYPE_CHECKING:
    from collections.abc import Callable

    from lastword.compaction.log.segments import Segment
    from lastword.compaction.planning.bounds import PartitionLog


class DeletionReason(str, Enum):
    """Why a segment goes."""

    LOG_START = "log start offset"
    SIZE = "retention.bytes"
    TIME = "retention.ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """The segments of a partition that go, oldest first, each with the reason; and the log start offset afterwards.

    `future_timestamp_ms` is the record time of a segment that blocks retention by time because it lies in the future, None when none does.
    """

    segments: tuple[tuple[Segment, DeletionReason], ...]
    log_start_offset: int
    future_timestamp_ms: int | None = None


def deletable(log: PartitionLog, now_ms: int) -> Deletion:
    """Return what retention takes from a partition at `now_ms` (UnifiedLog.deleteOldSegments)."""
    left, end = list(log.segments), log.log_end_offset
    if left and only_keeps_the_log_end(left[-1], log.log_end_offset):
        end = left.pop().base_offset
    gone: list[tuple[Segment, DeletionReason]] = []

    def walk(breach: DeletionReason, goes: Callable[[Segment, int], bool]) -> None:
        while left and goes(left[0], left[1].base_offset if len(left) > 1 else end):
            gone.append((left.pop(0), breach))

    walk(DeletionReason.LOG_START, lambda _, next_base: next_base <= log.log_start_offset)
    future = None
    if log.config.deletes:
        excess = sum(segment.size_bytes for segment in left) - log.config.retention_bytes

        def too_large(segment: Segment, _next_base: int) -> bool:
            nonlocal excess
            if log.config.retention_bytes < 0 or excess < segment.size_bytes:
                return False
            excess -= segment.size_bytes
            return True

        walk(DeletionReason.SIZE, too_large)
        retention_ms = log.config.retention_ms
        walk(DeletionReason.TIME, lambda segment, _: retention_ms >= 0 and now_ms - segment.largest_timestamp_ms > retention_ms)
        if left and retention_ms >= 0 and left[0].largest_timestamp_ms > now_ms:
            future = left[0].largest_timestamp_ms
    stays = left[0].base_offset if left else log.log_end_offset
    start = max(log.log_start_offset, stays) if gone else log.log_start_offset
    return Deletion(segments=tuple(gone), log_start_offset=start, future_timestamp_ms=future)
