"""Moments: milliseconds since the epoch inside, ISO 8601 outside, UTC always."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_YEAR_10000_MS: Final = 253_402_300_800_000


def instant(time_ms: float) -> str:
    """Return a moment as people write it: `2026-01-31T12:00:00.000Z`; "never" when it is past the year 9999."""
    if time_ms >= _YEAR_10000_MS:
        return "never"
    return (_EPOCH + timedelta(milliseconds=time_ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def moment_ms(moment: datetime | str) -> float:
    """Return the milliseconds of a datetime or of ISO 8601 text (a date is its midnight); without a zone it is UTC.

    Raises ValueError for any other text.
    """
    if isinstance(moment, str):
        moment = datetime.fromisoformat(moment.strip().replace("Z", "+00:00"))
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp() * 1000
