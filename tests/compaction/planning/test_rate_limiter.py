"""The rate limiter as worked examples: bytes are paid for in time, idle time earns nothing."""

from __future__ import annotations

import math

from lastword.compaction.planning.rate_limiter import RateLimiter, spend_freely


def test_a_round_makes_the_next_one_wait_until_the_average_is_right() -> None:
    """1000 bytes at 100 a second are 10 s from the beginning of the round, however fast it was."""
    limiter = RateLimiter(100)
    assert limiter.wait_ms(0) == 0
    limiter = limiter.charge(1_000, now_ms=0)
    assert limiter.wait_ms(2_000) == 8_000
    limiter = limiter.charge(500, now_ms=2_000)
    assert limiter.wait_ms(10_000) == 5_000, "who does not wait owes both"


def test_idle_time_pays_for_no_burst() -> None:
    """An hour without work is not credit."""
    limiter = RateLimiter(100).charge(100, now_ms=0).charge(1_000, now_ms=3_600_000)
    assert limiter.wait_ms(3_600_000) == 10_000


def test_a_round_is_small_enough_for_ten_seconds_and_without_a_limit_nothing_waits() -> None:
    """What is cleaned is counted three times at the most: read twice, written once."""
    assert [RateLimiter(limit).round_bytes for limit in (300, 0.1)] == [1_000, 1]
    free = RateLimiter(math.inf).charge(10**12, now_ms=0)
    assert (free.round_bytes, free.wait_ms(0)) == (None, 0)
    spend_freely(10**15)
