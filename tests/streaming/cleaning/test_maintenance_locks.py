"""One lock a topic for maintenance: who holds it, who reserves it, and who waits for it; without Spark."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from lastword.compaction.errors import CommitConflict
from lastword.streaming.cleaning.maintenance_locks import MaintenanceLocks
from tests.waiting import until


def _log(place: str) -> Any:
    """Return what locks look at of a topic's log: its name and its folder."""
    return SimpleNamespace(name=place.rsplit("/", 1)[-1], paths=SimpleNamespace(place=place))


FRUIT, NUTS = _log("logs/fruit"), _log("logs/nuts")


def test_a_topic_is_held_until_the_work_ends_however_it_ends() -> None:
    """Other topics are free; a second thread is refused and leaves the first one."""
    locks = MaintenanceLocks()
    with locks.hold(FRUIT):
        assert (locks.is_held(FRUIT), locks.is_held(NUTS)) == (True, False)
        with pytest.raises(CommitConflict, match=r"^topic fruit: another thread works on it$"), locks.hold(FRUIT):
            pytest.fail("it is held")
        assert locks.is_held(FRUIT)
        with locks.hold(NUTS):
            assert locks.is_held(NUTS)
    assert not locks.is_held(FRUIT)
    with pytest.raises(ZeroDivisionError), locks.hold(FRUIT):
        raise ZeroDivisionError
    assert not locks.is_held(FRUIT)


def test_a_reserved_topic_waits_for_the_work_in_hand_and_refuses_what_comes() -> None:
    """From the first moment; another thread that wants to reserve it is refused."""
    locks, steps = MaintenanceLocks(), list[str]()

    def reserve() -> None:
        with locks.reserve(FRUIT):
            steps.append("reserved")

    with locks.hold(FRUIT):
        waiting = threading.Thread(target=reserve)
        waiting.start()
        until(lambda: locks.is_awaited(FRUIT))
        with pytest.raises(CommitConflict, match="topic fruit: another thread has reserved it"), locks.reserve(FRUIT):
            pytest.fail("one at a time")
        steps.append("work ends")
    waiting.join()
    assert steps == ["work ends", "reserved"]
    assert (locks.is_awaited(FRUIT), locks.is_held(FRUIT)) == (False, False)
    with locks.reserve(NUTS):
        assert locks.is_held(NUTS)
        with pytest.raises(CommitConflict, match="topic nuts: another thread works on it"), locks.hold(NUTS):
            pytest.fail("it is reserved")


def test_waiting_for_a_topic_ends_with_a_conflict_when_the_work_takes_too_long() -> None:
    """A topic that no thread maintains is not waited for."""
    locks = MaintenanceLocks(max_wait_seconds=0)
    with locks.hold(FRUIT):
        locks.wait(NUTS)
        with pytest.raises(CommitConflict, match="topic fruit: another thread works on it"):
            locks.wait(FRUIT)
    locks.wait(FRUIT)
