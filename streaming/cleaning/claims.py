"""Claims: a process says in the ledger that it works on a topic, so that no other cleans it for nothing at the same time.

```
 ledger   claim a until 12:02      claim a until 12:03 (renewed)      claim a until 0 (released)
 b        leaves the topic alone ──────────────────────────────────► cleans it
```

All maintenance of a topic is one family of commits: of two rounds that overlap, one works for nothing, and a long one would lose against
short ones for ever. A round that is short costs less than its claim, so only long ones have one. A claim is a courtesy, not a lock: the
compare-and-set keeps the log right without it. It expires, by the wall clock, as different processes look at it; and it counts no longer
when the process that made it is known to be dead.
"""

from __future__ import annotations

import os
import socket
import threading
import uuid
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from lastword.compaction.errors import CommitConflict
from lastword.storage.delta.commit_text import action_time_ms
from lastword.storage.ledger.decisions import Claim, Decision, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lastword.storage.ledger.decisions import Decisions
    from lastword.storage.log.topic_log import TopicLog

#: A round over so many bytes of files has a claim: it takes a second or more.
_CLAIMED_BYTES: Final = 128 * 2**20
#: How long a claim holds when it is not renewed.
_LEASE_SECONDS: Final = 120.0
#: A claim that seems to hold for longer is of a clock that is wrong, and counts for nothing.
_MAX_LEFT_MS: Final = 10 * 60 * 1000
_NAME: Final = "maintenance"


class Claims:
    """The claims of one cleaner; others of the same process have others."""

    def __init__(
        self,
        *,
        claimed_bytes: int = _CLAIMED_BYTES,
        lease_seconds: float = _LEASE_SECONDS,
        clock_ms: Callable[[], int] = action_time_ms,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        """Claim nothing yet.

        `clock_ms` is the clock by which claims expire. `wait` waits, for some seconds of it, for the event that ends a round, and returns
        whether the event came.
        """
        self._claimed_bytes, self._lease_seconds = claimed_bytes, lease_seconds
        self._clock_ms, self._wait = clock_ms, wait
        self.owner = f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:12]}"

    def of_another(self, decisions: Decisions) -> Claim | None:
        """Return the claim that another cleaner has on a topic now, if there is one."""
        claim = decisions.claim
        if claim is None or claim.owner == self.owner or _is_dead(claim.owner):
            return None
        left_ms = claim.until_ms - self._clock_ms()
        return claim if 0 < left_ms < _MAX_LEFT_MS else None

    @contextmanager
    def hold(self, log: TopicLog, size_bytes: int, *, insists: bool = False) -> Iterator[None]:
        """Claim a topic for a round over so many bytes, as long as the block lasts; no claim for a short one.

        Raises `CommitConflict` if another cleaner has claimed it; one that `insists` works beside it, without a claim.
        """
        if size_bytes < self._claimed_bytes or (insists and self.of_another(log.decisions()) is not None):
            yield
            return
        self._claim(log)
        over = threading.Event()
        renewing = threading.Thread(target=self._renew, args=(log, over), name=f"claim {log.name}", daemon=True)
        renewing.start()
        try:
            yield
        finally:
            over.set()
            renewing.join()
            self._write(log, lambda: 0)

    def _claim(self, log: TopicLog) -> None:
        other = log.ledger.decide(lambda today: self._try_claim(today, self._until_ms()))
        if other is not None:
            message = f"topic {log.name}: another cleaner ({other.owner}) works on it"
            raise CommitConflict(message)

    def _renew(self, log: TopicLog, over: threading.Event) -> None:
        while not self._wait(over, self._lease_seconds / 3):
            self._write(log, self._until_ms)

    def _until_ms(self) -> int:
        return self._clock_ms() + int(1000 * self._lease_seconds)

    def _write(self, log: TopicLog, until_ms: Callable[[], int]) -> None:
        """Renew or release the claim, if another cleaner has not claimed the topic since it expired; whatever fails, a claim expires."""
        with suppress(Exception):
            log.ledger.decide(lambda today: self._try_claim(today, until_ms()))

    def _try_claim(self, today: Decisions, until_ms: int) -> tuple[list[Decision], Claim | None]:
        """Return our claim until a moment; none, and the other claim, where another cleaner has claimed the topic."""
        other = self.of_another(today)
        return ([self._decision(until_ms)], None) if other is None else ([], other)

    def _decision(self, until_ms: int) -> Decision:
        details = {"owner": self.owner, "until_ms": until_ms}
        return Decision(kind=Kind.CLAIM, time_ms=self._clock_ms(), name=_NAME, details=details)


def _is_dead(owner: str) -> bool:
    """Return True if the process that made a claim ran on this machine and does not exist any more."""
    host, pid, _ = owner.rsplit("/", 2)
    if host != socket.gethostname():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
