"""Who may touch a partition: every transition of SEMANTICS §13, and every one that is not allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lastword.compaction.errors import InvalidCleaningState
from lastword.compaction.planning.cleaning_state import CleaningStates
from lastword.compaction.planning.planner import Obstacle

if TYPE_CHECKING:
    from collections.abc import Callable

_PLACE = ("logs/fruit", 3)
_OTHER = ("logs/fruit", 4)


def _states(name: str) -> CleaningStates:
    """Return states with the partition in the one that `name` says; the other partition is idle."""
    states = CleaningStates()
    match name:
        case "in progress":
            states.begin(_PLACE)
        case "aborted":
            states.begin(_PLACE)
            assert states.abort_and_pause(_PLACE), "there is work to wait for"
        case "paused 1":
            assert not states.abort_and_pause(_PLACE), "nobody to wait for"
        case "paused 2":
            states.abort_and_pause(_PLACE)
            states.abort_and_pause(_PLACE)
        case _:
            assert name == "none"
    return states


def _state(states: CleaningStates) -> str:
    """Return the partition's state by name."""
    inside = [name for name, places in (("in progress", states.in_progress), ("aborted", states.aborted)) if _PLACE in places]
    inside += [f"paused {states.pauses[_PLACE]}"] if _PLACE in states.pauses else []
    assert len(inside) <= 1, "a partition is in one state"
    return inside[0] if inside else "none"


def _begin(states: CleaningStates) -> object:
    states.begin(_PLACE)
    return None


def _resume(states: CleaningStates) -> object:
    states.resume(_PLACE)
    return None


_STEPS: dict[str, Callable[[CleaningStates], object]] = {
    "begin": _begin,
    "done": lambda states: states.done(_PLACE),
    "abort_and_pause": lambda states: states.abort_and_pause(_PLACE),
    "resume": _resume,
}


@pytest.mark.parametrize(
    ("before", "step", "after", "answer"),
    [
        ("none", "begin", "in progress", None),
        ("none", "abort_and_pause", "paused 1", False),
        ("in progress", "done", "none", True),
        ("in progress", "abort_and_pause", "aborted", True),
        ("aborted", "done", "paused 1", False),
        ("paused 1", "abort_and_pause", "paused 2", False),
        ("paused 2", "resume", "paused 1", None),
        ("paused 1", "resume", "none", None),
    ],
)
def test_a_step_that_is_allowed(before: str, step: str, after: str, answer: object) -> None:
    """`done` answers whether the checkpoint may be written; `abort_and_pause` whether there is work to wait for."""
    states = _states(before)
    assert _STEPS[step](states) == answer
    assert _state(states) == after
    assert states.obstacle(_OTHER) is None, "the other partition has its own state"


@pytest.mark.parametrize(
    ("before", "step"),
    [
        ("none", "done"),
        ("none", "resume"),
        ("in progress", "begin"),
        ("in progress", "resume"),
        ("aborted", "begin"),
        ("aborted", "abort_and_pause"),
        ("aborted", "resume"),
        ("paused 1", "begin"),
        ("paused 1", "done"),
        ("paused 2", "done"),
    ],
)
def test_a_step_that_is_not_allowed_is_a_bug_and_changes_nothing(before: str, step: str) -> None:
    """Kafka's IllegalStateException; the message names the partition, the step and the state."""
    states = _states(before)
    with pytest.raises(InvalidCleaningState, match=rf"^partition 3 of logs/fruit: {step} is not allowed when it is {before}$"):
        _STEPS[step](states)
    assert _state(states) == before


@pytest.mark.parametrize(
    ("state", "obstacle"),
    [
        ("none", None),
        ("in progress", Obstacle.IN_PROGRESS),
        ("aborted", Obstacle.IN_PROGRESS),
        ("paused 1", Obstacle.PAUSED),
        ("paused 2", Obstacle.PAUSED),
    ],
)
def test_only_an_idle_partition_may_be_cleaned_or_shortened(state: str, obstacle: Obstacle | None) -> None:
    """An aborted one is still being worked on."""
    assert _states(state).obstacle(_PLACE) is obstacle


def test_a_partition_is_worked_on_until_what_was_begun_ends() -> None:
    """Also while it was asked to stop; a pause or a quarantine alone is no work, and another topic's is not ours."""
    found = {name: _states(name).working_on("logs/fruit") for name in ("none", "in progress", "aborted", "paused 1")}
    assert found == {"none": set(), "in progress": {3}, "aborted": {3}, "paused 1": set()}
    assert _states("in progress").working_on("logs/vegetables") == set()


def test_an_uncleanable_partition_is_kept_out_until_a_cleaning_succeeds() -> None:
    """Quarantine stands beside the states: whoever forces it may begin."""
    states = CleaningStates()
    states.quarantine(_PLACE, "bad rows")
    assert states.obstacle(_PLACE) is Obstacle.UNCLEANABLE
    assert states.uncleanable == {_PLACE: "bad rows"}
    assert states.obstacle(_OTHER) is None
    states.begin(_PLACE)
    assert states.obstacle(_PLACE) is Obstacle.IN_PROGRESS, "work comes before quarantine"
    assert states.done(_PLACE)
    assert states.obstacle(_PLACE) is Obstacle.UNCLEANABLE, "nobody released it"
    states.release(_PLACE)
    assert states.obstacle(_PLACE) is None
    states.release(_PLACE)
    assert states.obstacle(_PLACE) is None, "releasing what is free changes nothing"


def test_a_paused_uncleanable_partition_is_paused_first() -> None:
    """Forcing lifts quarantine, never a pause."""
    states = _states("paused 1")
    states.quarantine(_PLACE, "bad rows")
    assert states.obstacle(_PLACE) is Obstacle.PAUSED
    states.resume(_PLACE)
    assert states.obstacle(_PLACE) is Obstacle.UNCLEANABLE


def test_the_newest_reason_of_a_quarantine_counts() -> None:
    """It failed again."""
    states = CleaningStates()
    states.quarantine(_PLACE, "first")
    states.quarantine(_PLACE, "second")
    assert states.uncleanable == {_PLACE: "second"}


@pytest.mark.parametrize("state", ["in progress", "aborted", "paused 1", "paused 2"])
def test_a_topic_that_is_gone_is_forgotten(state: str) -> None:
    """A new topic in its place inherits nothing; other topics keep theirs."""
    states = _states(state)
    states.quarantine(_PLACE, "bad rows")
    other = ("logs/nuts", 3)
    states.quarantine(other, "bad nuts")
    states.abort_and_pause(other)
    working, stopped = ("logs/nuts", 4), ("logs/nuts", 5)
    states.begin(working)
    states.begin(stopped)
    states.abort_and_pause(stopped)
    states.forget("logs/fruit")
    in_hand = state in {"in progress", "aborted"}
    assert _state(states) == ("in progress" if in_hand else "none"), "work in hand ends by itself"
    if in_hand:
        states.done(_PLACE)
    assert (_state(states), states.obstacle(_PLACE)) == ("none", None)
    assert (states.obstacle(other), states.uncleanable) == (Obstacle.PAUSED, {other: "bad nuts"})
    assert (states.in_progress, states.aborted) == ({working}, {stopped})
