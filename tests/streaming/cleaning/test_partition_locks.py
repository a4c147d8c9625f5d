"""Who works on a partition, and who waits for it: the claims of a process, without Spark."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from lastword.compaction.errors import CommitConflict
from lastword.compaction.planning.planner import Obstacle
from lastword.streaming.cleaning.partition_locks import PartitionLocks
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterable


def _log(place: str) -> Any:
    """Return what claims look at of a topic's log: its name and its folder."""
    return SimpleNamespace(name=place.rsplit("/", 1)[-1], paths=SimpleNamespace(place=place))


FRUIT, NUTS = _log("logs/fruit"), _log("logs/nuts")


def _obstacles(found: PartitionLocks, log: Any, partitions: Iterable[int] = range(3)) -> list[Obstacle | None]:
    return [found.obstacle(log, partition) for partition in partitions]


def test_a_partition_in_progress_is_claimed_until_the_work_ends_however_it_ends() -> None:
    """Other partitions and other topics are free; a second claim is a conflict and leaves the first one."""
    found = PartitionLocks()
    with found.in_progress(FRUIT, [0, 1]):
        assert _obstacles(found, FRUIT) == [Obstacle.IN_PROGRESS, Obstacle.IN_PROGRESS, None]
        assert _obstacles(found, NUTS) == [None] * 3
        assert (found.works_on(FRUIT), found.works_on(NUTS)) == (True, False)
        with (
            pytest.raises(CommitConflict, match=r"^topic fruit: another thread works on partitions \[1\]$"),
            found.in_progress(FRUIT, [1, 2]),
        ):
            pytest.fail("partition 1 is claimed")
        assert _obstacles(found, FRUIT) == [Obstacle.IN_PROGRESS, Obstacle.IN_PROGRESS, None], "2 was not claimed along with 1"
        with found.in_progress(NUTS, [0]):
            assert found.works_on(NUTS)
    assert _obstacles(found, FRUIT) == [None] * 3
    with pytest.raises(ZeroDivisionError), found.in_progress(FRUIT, [0]):
        raise ZeroDivisionError
    assert not found.works_on(FRUIT)


def test_who_keeps_the_cleaner_away_waits_for_what_is_in_progress_and_bars_what_comes() -> None:
    """Every partition of the topic is an obstacle from the first moment; another one who wants the same is refused."""
    found, steps = PartitionLocks(), list[str]()

    def keep_away() -> None:
        with found.kept_away(FRUIT):
            steps.append("kept away")

    with found.in_progress(FRUIT, [0]):
        waiting = threading.Thread(target=keep_away)
        waiting.start()
        until(lambda: found.is_awaited(FRUIT))
        assert _obstacles(found, FRUIT) == [Obstacle.IN_PROGRESS] * 3
        with pytest.raises(CommitConflict, match="the cleaner is kept away already"), found.kept_away(FRUIT):
            pytest.fail("one at a time")
        steps.append("work ends")
    waiting.join()
    assert steps == ["work ends", "kept away"]
    assert (found.is_awaited(FRUIT), _obstacles(found, FRUIT)) == (False, [None] * 3)


def test_waiting_for_a_topic_ends_with_a_conflict_when_the_work_takes_too_long() -> None:
    """The partitions that are in progress are named; partitions that nobody works on are not waited for."""
    found = PartitionLocks(max_wait_seconds=0)
    with found.in_progress(FRUIT, [2, 1]):
        found.wait_idle(FRUIT, [0])
        with pytest.raises(CommitConflict, match=r"another thread works on partitions \[1, 2\]"):
            found.wait_idle(FRUIT)
    found.wait_idle(FRUIT)
