"""The cleaner's limit of bytes a second, kept on average: how long to wait before the next round (SEMANTICS §15).

Kafka counts what it reads in both passes and what it writes, and sleeps within a cleaning. A Spark job cannot be slowed down while it runs,
so a round is kept small here, and the next one waits until the average is right again. Shared by all cleaner threads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

#: A round may take the bytes of this many seconds at the most, as far as whole partitions allow it.
ROUND_SECONDS: Final = 10
#: What is counted of a byte that is cleaned, at the most: read in both passes, and written.
_TIMES_COUNTED: Final = 3


@dataclass(slots=True)
class Throttle:
    """Owes time for bytes; not thread-safe, the owner holds a lock.

    A debt that was slept off is gone; idle time earns nothing, or a long pause would pay for a burst.
    """

    bytes_per_second: float
    _free_at_ms: float = -math.inf

    @property
    def round_bytes(self) -> int | None:
        """The most bytes of segments that one round should clean; None when there is no limit."""
        if math.isinf(self.bytes_per_second):
            return None
        return max(1, int(self.bytes_per_second * ROUND_SECONDS / _TIMES_COUNTED))

    def wait_ms(self, now_ms: float) -> float:
        """Return how long the next round has to wait."""
        return max(0.0, self._free_at_ms - now_ms)

    def observe(self, counted_bytes: int, started_ms: float) -> None:
        """Count the bytes of a round that was begun at `started_ms`: at the limit it would have lasted so long."""
        if not math.isinf(self.bytes_per_second):
            self._free_at_ms = max(self._free_at_ms, started_ms) + 1000 * counted_bytes / self.bytes_per_second
