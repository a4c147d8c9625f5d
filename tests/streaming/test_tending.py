"""When a topic is tended again."""

from __future__ import annotations

from streaming.tending import _Due


def test_what_is_due_waits_its_interval_and_no_longer_when_the_clock_is_put_back() -> None:
    """A service may start a day ahead of the clock that it is given later."""
    due = _Due(delay_ms=30, upkeep_ms=1_030)
    assert [due.passed("upkeep_ms", now_ms, 100) for now_ms in (1_000, 1_029, 1_030, 1_031, 1_129, 1_130)] == [
        False,
        False,
        True,
        False,
        False,
        True,
    ]
    assert [due.passed("upkeep_ms", now_ms, 100) for now_ms in (500, 599, 600)] == [True, False, True]
