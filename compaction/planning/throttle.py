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
from dataclasses import dataclass
from typing import Final, Protocol

#: A round may take the bytes of this many seconds at the most, as far as whole partitions allow it.
ROUND_SECONDS: Final = 10
#: What is counted of a byte that is cleaned, at the most: read in both passes, and written.
_TIMES_COUNTED: Final = 3


class Pace(Protocol):
    """What a cleaning asks before it reads and after it has written."""

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit."""

    def spend(self, counted_bytes: int) -> None:
        """Return when so many bytes may be read and written, and count them."""


class Unlimited:
    """The pace of a cleaning that nothing holds back."""

    is_limited = False

    def spend(self, counted_bytes: int) -> None:
        """Return at once."""


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
        """Return how long the next bytes have to wait."""
        return max(0.0, self._free_at_ms - now_ms)

    def observe(self, counted_bytes: int, started_ms: float) -> None:
        """Count bytes of which the first are read at `started_ms`: at the limit they take so long. Fewer than none take time back."""
        if not math.isinf(self.bytes_per_second):
            self._free_at_ms = max(self._free_at_ms, started_ms) + 1000 * counted_bytes / self.bytes_per_second
