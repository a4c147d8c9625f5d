"""The one place that reads a clock. Everything below takes `now_ms`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def now_ms() -> int:
    """Return the wall clock in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def at(moment_ms: int | None) -> Callable[[], int]:
    """Return a clock that stands at a moment; that of the machine when there is none."""
    return now_ms if moment_ms is None else lambda: moment_ms


def or_now(moment_ms: int | None) -> int:
    """Return a moment in milliseconds, or the wall clock when it is None."""
    return now_ms() if moment_ms is None else moment_ms
