"""How cleanings keep to `log.cleaner.io.max.bytes.per.second`: they wait before they read and write, all threads of a process together."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lastword.compaction.planning.throttle import Throttle

if TYPE_CHECKING:
    from collections.abc import Callable

_POLL_SECONDS: Final = 0.2


@dataclass(slots=True)
class Pacing:
    """The limit, and what was read and written; nobody waits any more once `stop` is set. `seconds` is a clock that never goes back."""

    bytes_per_second: float
    stop: threading.Event
    seconds: Callable[[], float] = time.monotonic
    _throttle: Throttle = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        """Begin with nothing spent."""
        self._throttle = Throttle(self.bytes_per_second)

    @property
    def round_bytes(self) -> int | None:
        """The most bytes of segments that one round should clean; None when there is no limit."""
        return self._throttle.round_bytes

    def wait(self) -> None:
        """Wait until what was spent is paid for."""
        self.spend(0, lambda: False)

    def spend(self, counted_bytes: int, hurried: Callable[[], bool]) -> None:
        """Wait until what was spent is paid for, or as long as nobody is `hurried`; then count some bytes more."""
        while True:
            stay = not self.stop.is_set() and not hurried()
            with self._lock:
                now_ms = self.seconds() * 1000
                wait_ms = self._throttle.wait_ms(now_ms) if stay else 0.0
                if wait_ms <= 0:
                    self._throttle.observe(counted_bytes, now_ms)
                    return
            self.stop.wait(min(wait_ms / 1000, _POLL_SECONDS))


class Turns:
    """A semaphore of which as many may be held as `limit` says at the moment; one that is held stays so when the limit falls."""

    def __init__(self, limit: Callable[[], int]) -> None:
        """Begin with none held."""
        self._limit = limit
        self._held = 0
        self._changed = threading.Condition()

    def acquire(self, *, blocking: bool = True) -> bool:
        """Take one; tell whether that was possible without waiting, if it must be."""
        with self._changed:
            while self._held >= self._limit():
                if not blocking:
                    return False
                self._changed.wait(_POLL_SECONDS)  # the limit may rise without a release
            self._held += 1
            return True

    def release(self) -> None:
        """Give one back."""
        with self._changed:
            self._held -= 1
            self._changed.notify()

    def __enter__(self) -> None:
        """Take one."""
        self.acquire()

    def __exit__(self, *_: object) -> None:
        """Give it back."""
        self.release()


@dataclass(frozen=True, slots=True)
class PacedTurn:
    """The pace of one round that has taken one of some `turns`, and leaves it to others while it waits.

    It is a `lastword.compaction.planning.throttle.Pace`. It waits for nothing once it is `hurried`.
    """

    pacing: Pacing
    turns: Turns
    hurried: Callable[[], bool]

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit."""
        return self.pacing.round_bytes is not None

    def spend(self, counted_bytes: int) -> None:
        """Return when so many bytes may be read and written, and count them."""
        self.turns.release()
        try:
            self.pacing.spend(counted_bytes, self.hurried)
        finally:
            self.turns.acquire()
