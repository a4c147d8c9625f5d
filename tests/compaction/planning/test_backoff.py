"""When a failed cleaning is tried again: docs/semantics.md#A.28, ADR 0030."""

from __future__ import annotations

import pytest

from lastword.compaction.planning.backoff import CleaningFailure, next_failure, retry_delay_ms
from lastword.compaction.planning.planner import Obstacle

_MINUTE_MS = 60_000


def _fails(times: int, *, is_damage: bool = False, max_failures: int = 10, now_ms: int = 0) -> CleaningFailure:
    """Return what holds after so many failures in a row, all at the same moment."""
    found: CleaningFailure | None = None
    for _ in range(times):
        found = next_failure(found, "OSError: no answer", is_damage=is_damage, now_ms=now_ms, max_failures=max_failures)
    assert found is not None
    return found


def test_the_delay_doubles_from_a_minute_to_an_hour() -> None:
    """However many failures there were."""
    assert [retry_delay_ms(failures) // _MINUTE_MS for failures in range(1, 10)] == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert retry_delay_ms(10**9) == 60 * _MINUTE_MS


def test_a_transient_failure_is_tried_again_and_quarantined_after_so_many_in_a_row() -> None:
    """Ten by default, after about four and a half hours."""
    assert [_fails(times).retry_ms is None for times in range(1, 12)] == [False] * 9 + [True, True]
    assert _fails(3, now_ms=1_000).retry_ms == 1_000 + 4 * _MINUTE_MS
    assert _fails(1, max_failures=1).retry_ms is None
    assert sum(retry_delay_ms(failures) for failures in range(1, 10)) == 243 * _MINUTE_MS


def test_damage_is_quarantined_at_once() -> None:
    """A later failure that names none, of a try by force, is tried again by itself."""
    damaged = _fails(1, is_damage=True)
    assert (damaged.failures, damaged.retry_ms) == (1, None)
    assert next_failure(damaged, "OSError: no answer", is_damage=False, now_ms=0, max_failures=10).retry_ms == 2 * _MINUTE_MS


@pytest.mark.parametrize(
    ("now_ms", "obstacle"),
    [(5_000, Obstacle.RETRY_LATER), (5_000 + _MINUTE_MS - 1, Obstacle.RETRY_LATER), (5_000 + _MINUTE_MS, None), (4_999, None)],
)
def test_a_partition_waits_until_its_next_try_is_due(now_ms: int, obstacle: Obstacle | None) -> None:
    """A clock that is put back before the failure puts nothing off."""
    assert _fails(1, now_ms=5_000).obstacle(now_ms) is obstacle
    assert _fails(10, now_ms=5_000).obstacle(now_ms) is Obstacle.UNCLEANABLE


def test_the_ledger_keeps_it() -> None:
    """A success has no failures."""
    for failure in (_fails(2, now_ms=7), _fails(10, now_ms=7)):
        assert CleaningFailure.from_details(failure.to_details(), 7) == failure
    assert CleaningFailure.from_details({"failures": 0}, 7) is None
