"""When a partition whose cleaning failed is tried again, and when it is left alone.

```
 failures in a row     1      2      3      4      5       6       7 to 9   10 = log.cleaner.max.failures
 next try after        1 min  2 min  4 min  8 min  16 min  32 min  1 h      no more: quarantined
 damage                quarantined at the first
```

A failure is transient until it names damage: storage that does not answer, a full disk, a Spark job that was lost. A success ends the row
of failures. `lastword clean --force` tries at once, whatever is waited for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lastword.compaction.config.keys import HOUR_MS, MINUTE_MS
from lastword.compaction.planning.planner import Obstacle

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The delay before the second try; it doubles from failure to failure up to `MAX_RETRY_MS`.
FIRST_RETRY_MS: Final = MINUTE_MS
MAX_RETRY_MS: Final = HOUR_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningFailure:
    """Failures in a row of the cleaning of a partition: their number, the last reason and time, the next try (None: in quarantine)."""

    failures: int
    reason: str
    failed_ms: int
    retry_ms: int | None

    def obstacle(self, now_ms: int) -> Obstacle | None:
        """Return the obstacle to a cleaning at a moment; None when the next try is due, or the clock was put back behind the failure."""
        if self.retry_ms is None:
            return Obstacle.UNCLEANABLE
        return Obstacle.RETRY_LATER if self.failed_ms <= now_ms < self.retry_ms else None

    def to_details(self) -> dict[str, Any]:
        """Return it as the ledger keeps it; `from_details` reads it."""
        return {"failures": self.failures, "reason": self.reason, "retry_ms": self.retry_ms}

    @staticmethod
    def from_details(details: Mapping[str, Any], failed_ms: int) -> CleaningFailure | None:
        """Read what `to_details` returned; None after a success."""
        if not details.get("failures"):
            return None
        return CleaningFailure(failures=details["failures"], reason=details["reason"], failed_ms=failed_ms, retry_ms=details["retry_ms"])


def next_failure(before: CleaningFailure | None, reason: str, *, is_damage: bool, now_ms: int, max_failures: int) -> CleaningFailure:
    """Return the failures in a row after one more at `now_ms`; `before` are those so far, None after a success."""
    failures = 1 if before is None else before.failures + 1
    retry_ms = None if is_damage or failures >= max_failures else now_ms + retry_delay_ms(failures)
    return CleaningFailure(failures=failures, reason=reason, failed_ms=now_ms, retry_ms=retry_ms)


def retry_delay_ms(failures: int) -> int:
    """Return how long after so many failures in a row the next try is made."""
    doublings = min(failures - 1, MAX_RETRY_MS.bit_length())
    return min(FIRST_RETRY_MS << doublings, MAX_RETRY_MS)
