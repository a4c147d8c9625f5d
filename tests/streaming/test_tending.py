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


def test_time_outs_press_and_so_does_retention_where_no_cleaning_comes_before_it() -> None:
    """What presses is done while a round takes its time."""
    due = _Due(delay_ms=0, hanging_ms=50, retention_ms=20)
    assert [due.is_pressing(now_ms) for now_ms in (19, 20, 49, 50)] == [False, False, False, True]
    due.compacted = False
    assert [due.is_pressing(now_ms) for now_ms in (19, 20, 49, 50)] == [False, True, True, True]
