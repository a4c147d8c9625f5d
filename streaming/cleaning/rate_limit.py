"""How the rounds of a process share `log.cleaner.io.max.bytes.per.second` and `log.cleaner.threads`.

A round holds one of the slots, and lends it to other rounds while it waits for the rate.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lastword.compaction.planning.rate_limiter import RateLimiter

_POLL_SECONDS: Final = 0.2


@dataclass(slots=True)
class SharedRate:
    """One `RateLimiter` for all threads. Once `stop` is set no thread waits. `seconds` is a monotonic clock."""

    limiter: RateLimiter
    stop: threading.Event
    seconds: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def spend(self, counted_bytes: int, hurries: Callable[[], bool] = lambda: False) -> None:
        """Wait until the bytes charged before are paid for, or `hurries` returns True; then charge `counted_bytes`."""
        while True:
            may_wait = not self.stop.is_set() and not hurries()
            with self._lock:
                now_ms = self.seconds() * 1000
                wait_ms = self.limiter.wait_ms(now_ms) if may_wait else 0.0
                if wait_ms <= 0:
                    self.limiter = self.limiter.charge(counted_bytes, now_ms)
                    return
            self.stop.wait(min(wait_ms / 1000, _POLL_SECONDS))


class RoundSlots:
    """A semaphore whose limit is asked for each time; a slot that is held stays held when the limit falls."""

    def __init__(self, limit: Callable[[], int]) -> None:
        """Begin with none held."""
        self._limit = limit
        self._held = 0
        self._changed = threading.Condition()

    def acquire(self, *, blocking: bool = True) -> bool:
        """Take a slot; return False if none is free and `blocking` is False."""
        with self._changed:
            while self._held >= self._limit():
                if not blocking:
                    return False
                self._changed.wait(_POLL_SECONDS)  # the limit may rise without a release
            self._held += 1
            return True

    def release(self) -> None:
        """Give a slot back."""
        with self._changed:
            self._held -= 1
            self._changed.notify()

    @contextmanager
    def hold(self) -> Iterator[bool]:
        """Hold a slot; the value is True if it had to be waited for."""
        waited = not self.acquire(blocking=False) and self.acquire()
        try:
            yield waited
        finally:
            self.release()

    @contextmanager
    def lend(self) -> Iterator[None]:
        """Let another round have the slot that the caller holds, and take one back."""
        self.release()
        try:
            yield
        finally:
            self.acquire()
