"""Two cleaners of different processes: a long round is left alone, and a claim never outlives the process that made it for long."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from lastword import LogDir
from lastword.compaction.errors import CommitConflict
from lastword.storage.ledger.decisions import Decision, Kind
from lastword.streaming.cleaning.claims import Claims
from tests.clocks import at
from tests.pictures import T0, delete_records, history, rows

if TYPE_CHECKING:
    from pathlib import Path

    from lastword import Topic

#: Many of these take half a second or more; `make quick` leaves them to `make test`.
pytestmark = pytest.mark.long

_EAGER = {"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": 0, "retention.ms": -1}


class MovedClock:
    """A clock that stands until the test moves it, and the waiting of a thread that renews a claim by it."""

    def __init__(self) -> None:
        """Begin now."""
        self._now_ms = int(time.time() * 1000)
        self._wakes_ms: int | None = None
        self._changed = threading.Condition()

    def now_ms(self) -> int:
        """Return the time."""
        with self._changed:
            return self._now_ms

    def wait(self, over: threading.Event, seconds: float) -> bool:
        """Wait until the clock was moved by so many seconds, or `over` is set; return whether it is."""
        with self._changed:
            self._wakes_ms = self._now_ms + int(1000 * seconds)
            self._changed.notify_all()
            while self._now_ms < self._wakes_ms and not over.is_set():
                self._changed.wait(0.01)
            self._wakes_ms = None
        return over.is_set()

    def move(self, seconds: float) -> None:
        """Move the clock, once the thread waits; return when what was to be done at the new time is done, and the thread waits again."""
        self._wait_for_waiting()
        with self._changed:
            self._now_ms += int(1000 * seconds)
            self._changed.notify_all()
        self._wait_for_waiting()

    def _wait_for_waiting(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._wakes_ms is not None and self._wakes_ms > self._now_ms, 60), "nothing waits"


@pytest.fixture
def clock() -> MovedClock:
    """Return a clock that the test moves."""
    return MovedClock()


@pytest.fixture
def logs(tmp_path: Path) -> LogDir:
    """Return a log.dir whose cleaner claims each round."""
    found = LogDir(str(tmp_path))
    found.cleaner.claims = Claims(claimed_bytes=0)
    return found


@pytest.fixture
def topic(logs: LogDir) -> Topic:
    """Return a topic with something to clean."""
    found = logs.create_topic("fruit", config=_EAGER)
    at(T0, found).append(rows("a=1 a=2"))
    at(T0, found).roll()
    return found


def _other(topic: Topic) -> Topic:
    return LogDir(topic.log.paths.root.rsplit("/", 1)[0]).topic("fruit")


def _claimed(topic: Topic, owner: str, seconds: float) -> None:
    details = {"owner": owner, "until_ms": int(1000 * (time.time() + seconds))}
    topic.log.ledger.append([Decision(kind=Kind.CLAIM, time_ms=T0, name="maintenance", details=details)])


def test_what_another_process_works_on_is_left_alone_until_it_is_done(logs: LogDir, topic: Topic) -> None:
    """No round, no retention, no merge; `explain` says why. Then it goes on."""
    other = _other(topic)
    with logs.cleaner.claims.hold(topic.log, 1):
        assert at(T0, other).clean() == []
        assert [report.obstacle for report in at(T0, other).explain()] == ["being cleaned already"]
        delete_records(at(T0, other), {0: 2})
        assert history(other) == []
        assert other.describe().record_count == 2, "the records go when the claim is over"
        with pytest.raises(CommitConflict, match=r"another cleaner .* works on it"), Claims(claimed_bytes=0).hold(other.log, 1):
            pass
    assert at(T0, other).apply_retention()
    assert other.describe().record_count == 1, "what keeps the log end"


def test_a_cleaner_claims_its_own_rounds_and_gives_them_back(logs: LogDir, topic: Topic) -> None:
    """Whether the round succeeds or not."""
    assert [receipt.removed for receipt in at(T0, topic).clean()] == [{"superseded": 1}]
    claims = [row.details["until_ms"] for row in topic.log.ledger.rows() if row.kind is Kind.CLAIM]
    assert [until > 0 for until in claims] == [True, False]
    with pytest.raises(ZeroDivisionError), logs.cleaner.claims.hold(topic.log, 1):
        _ = 1 // 0
    claim = topic.log.decisions().claim
    assert claim is not None
    assert claim.until_ms == 0


def test_a_short_round_has_no_claim(topic: Topic) -> None:
    """It costs less than a commit of the ledger. A round of as many bytes as the limit has one."""
    with Claims().hold(topic.log, 128 * 2**20 - 1), Claims(claimed_bytes=100).hold(topic.log, 99):
        assert topic.log.decisions().claim is None
    claims = Claims(claimed_bytes=100)
    with claims.hold(topic.log, 100):
        claim = topic.log.decisions().claim
        assert claim is not None
        assert claim.owner == claims.owner


def test_a_claim_that_is_renewed_goes_on(topic: Topic, clock: MovedClock) -> None:
    """Every third of its lease, for as long as the round lasts."""
    other = Claims(clock_ms=clock.now_ms)
    with Claims(claimed_bytes=0, lease_seconds=60, clock_ms=clock.now_ms, wait=clock.wait).hold(topic.log, 1):
        for _ in range(6):
            clock.move(20)
            claim = other.of_another(topic.log.decisions())
            assert claim is not None
            assert claim.until_ms == clock.now_ms() + 60_000
    assert other.of_another(topic.log.decisions()) is None


def test_a_claim_that_is_not_renewed_ends_with_its_lease(logs: LogDir, topic: Topic, clock: MovedClock) -> None:
    """The process may be gone, or its machine."""
    logs.cleaner.claims = Claims(clock_ms=clock.now_ms)
    details = {"owner": "another.host/1/abc", "until_ms": clock.now_ms() + 1_000}
    topic.log.ledger.append([Decision(kind=Kind.CLAIM, time_ms=T0, name="maintenance", details=details)])
    assert at(T0, topic).clean() == []
    later = clock.now_ms() + 999
    assert Claims(clock_ms=lambda: later).of_another(topic.log.decisions()) is not None
    logs.cleaner.claims = Claims(clock_ms=lambda: later + 1)
    assert len(at(T0, topic).clean()) == 1


def test_a_claim_of_another_users_process_on_this_machine_counts(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may not be asked for a signal, so it is there; one whose number nobody has is dead."""
    owner = f"{socket.gethostname()}/1/abc"
    _claimed(topic, owner, 60)
    for error, counts in ((PermissionError, True), (ProcessLookupError, False)):

        def refused(_pid: int, _signal: int, error: type[OSError] = error) -> None:
            raise error

        monkeypatch.setattr(os, "kill", refused)
        assert (Claims().of_another(topic.log.decisions()) is not None) is counts


def test_a_claim_by_a_clock_that_runs_ahead_counts_for_nothing(logs: LogDir, topic: Topic) -> None:
    """A topic would rest for a day."""
    _claimed(topic, "another.host/1/abc", 86_400)
    assert logs.cleaner.claims.of_another(topic.log.decisions()) is None


def test_who_asks_by_force_cleans_and_purges_a_claimed_topic(topic: Topic) -> None:
    """A person knows what for; the round works beside the other, without a claim."""
    _claimed(topic, "another.host/1/abc", 60)
    assert at(T0, topic).clean() == []
    assert at(T0, topic).purge("a").records_removed == 2


def test_a_claim_of_another_is_neither_renewed_nor_released(topic: Topic, clock: MovedClock) -> None:
    """It was made after ours had expired."""
    with Claims(claimed_bytes=0, lease_seconds=6, clock_ms=clock.now_ms, wait=clock.wait).hold(topic.log, 1):
        _claimed(topic, "another.host/1/abc", 60)
        clock.move(2)
    claim = topic.log.decisions().claim
    assert claim is not None
    assert claim.owner == "another.host/1/abc"


def test_the_claim_of_a_dead_process_of_this_machine_counts_no_more(logs: LogDir, topic: Topic) -> None:
    """Its number is nobody's now; that of a living one counts."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    _claimed(topic, f"{socket.gethostname()}/{dead.pid}/abc", 60)
    assert logs.cleaner.claims.of_another(topic.log.decisions()) is None
    _claimed(topic, f"{socket.gethostname()}/1/abc", 60)
    assert logs.cleaner.claims.of_another(topic.log.decisions()) is not None
    assert at(T0, topic).clean() == []
