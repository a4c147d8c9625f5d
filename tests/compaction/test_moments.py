"""Moments as people write them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from lastword.compaction.moments import instant, moment_ms


def test_a_moment_is_written_in_utc_and_one_past_the_year_9999_never_comes() -> None:
    """An expiration may lie any number of milliseconds ahead."""
    assert instant(0) == "1970-01-01T00:00:00.000Z"
    assert instant(1_769_860_800_123) == "2026-01-31T12:00:00.123Z"
    assert instant(253_402_300_799_999) == "9999-12-31T23:59:59.999Z"
    assert [instant(253_402_300_800_000), instant(2**62)] == ["never", "never"]


def test_a_moment_without_a_zone_is_utc() -> None:
    """As text or as a datetime; a date is its midnight."""
    noon = 1_769_860_800_000
    east = timezone(timedelta(hours=2))
    for given in ("2026-01-31T12:00:00", " 2026-01-31T12:00:00Z ", "2026-01-31T14:00:00+02:00"):
        assert moment_ms(given) == noon
    for at in (datetime(2026, 1, 31, 12), datetime(2026, 1, 31, 14, tzinfo=east)):  # noqa: DTZ001  the point of it
        assert moment_ms(at) == noon
    assert moment_ms("2026-01-31") == noon - 12 * 3_600_000
    with pytest.raises(ValueError, match="noon"):
        moment_ms("noon")
