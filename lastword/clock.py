"""The one place that reads a clock. `LogDir` is given one; what stands below takes `now_ms`."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Return the wall clock in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
