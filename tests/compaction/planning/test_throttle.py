"""The throttle as worked examples: bytes are paid for in time, idle time earns nothing."""

from __future__ import annotations

import math

from lastword.compaction.planning.throttle import Throttle, Unlimited


def test_a_round_makes_the_next_one_wait_until_the_average_is_right() -> None:
    """1000 bytes at 100 a second are 10 s from the beginning of the round, however fast it was."""
    throttle = Throttle(100)
    assert throttle.wait_ms(0) == 0
    throttle.observe(1_000, started_ms=0)
    assert throttle.wait_ms(2_000) == 8_000
    throttle.observe(500, started_ms=2_000)
    assert throttle.wait_ms(10_000) == 5_000, "who does not wait owes both"


def test_idle_time_pays_for_no_burst() -> None:
    """An hour without work is not credit."""
    throttle = Throttle(100)
    throttle.observe(100, started_ms=0)
    throttle.observe(1_000, started_ms=3_600_000)
    assert throttle.wait_ms(3_600_000) == 10_000


def test_what_was_less_than_expected_is_given_back() -> None:
    """1000 bytes were counted before, 600 it was: 6 s; but no more than there is to wait."""
    throttle = Throttle(100)
    throttle.observe(1_000, started_ms=0)
    throttle.observe(-400, started_ms=1_000)
    assert throttle.wait_ms(1_000) == 5_000
    throttle.observe(-10_000, started_ms=2_000)
    throttle.observe(100, started_ms=6_000)
    assert throttle.wait_ms(6_000) == 1_000


def test_a_round_is_small_enough_for_ten_seconds_and_without_a_limit_nothing_waits() -> None:
    """What is cleaned is counted three times at the most: read twice, written once."""
    assert [Throttle(limit).round_bytes for limit in (300, 0.1)] == [1_000, 1]
    free = Throttle(math.inf)
    free.observe(10**12, started_ms=0)
    assert (free.round_bytes, free.wait_ms(0)) == (None, 0)


def test_an_unlimited_cleaning_asks_and_is_never_held() -> None:
    """Whatever it spends."""
    pace = Unlimited()
    pace.spend(10**15)
    assert not pace.is_limited
