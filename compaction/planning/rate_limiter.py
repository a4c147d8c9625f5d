"""The cleaner's limit of bytes a second, kept on average: how long to wait before the next bytes (docs/semantics.md#A.24).

Kafka counts what it reads in both passes and what it writes, and sleeps within a cleaning (docs/semantics.md#15). A round waits before
each row group that it reads and after each one that it writes, until the average is right again. All cleaner threads share the limit.

```
 limit 10 MB/s    30 MB read    60 MB read     40 MB written        a round that reads 90 MB and writes 40
                  ▔▔─           ▔▔▔▔────       ▔▔▔───               ▔ works  ─ waits
                  0 s           3 s            9 s                  13 s: the next round
```
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

#: What a cleaning calls with a count of bytes before it reads and after it has written them. It may wait, and raise to end the round.
Spend = Callable[[int], None]
#: A round may take the bytes of this many seconds at the most, as far as whole partitions allow it.
ROUND_SECONDS: Final = 10
#: What is counted of a byte that is cleaned, at the most: read in both passes, and written.
_TIMES_COUNTED: Final = 3


def spend_freely(_counted_bytes: int) -> None:
    """Return at once: the `Spend` of a cleaning without a limit."""


@dataclass(frozen=True, slots=True)
class RateLimiter:
    """A limit of bytes a second, and the time at which the bytes charged so far are paid for.

    Idle time earns nothing, or a long pause would pay for a burst.
    """

    bytes_per_second: float
    paid_at_ms: float = -math.inf

    @property
    def round_bytes(self) -> int | None:
        """The most bytes of segments that one round should clean; None when there is no limit."""
        if math.isinf(self.bytes_per_second):
            return None
        return max(1, int(self.bytes_per_second * ROUND_SECONDS / _TIMES_COUNTED))

    def wait_ms(self, now_ms: float) -> float:
        """Return how long the next bytes have to wait."""
        return max(0.0, self.paid_at_ms - now_ms)

    def charge(self, counted_bytes: int, now_ms: float) -> RateLimiter:
        """Return the limiter with `counted_bytes` more to pay for, from now on or from when the bytes before them are paid for."""
        if math.isinf(self.bytes_per_second):
            return self
        return replace(self, paid_at_ms=max(self.paid_at_ms, now_ms) + 1000 * counted_bytes / self.bytes_per_second)
