"""Moments: milliseconds since the epoch inside, ISO 8601 outside, UTC always."""

from __future__ import annotations

from datetime import datetime, timezone


def instant(time_ms: float) -> str:
    """Return a moment as people write it: `2026-01-31T12:00:00.000Z`."""
    return datetime.fromtimestamp(time_ms / 1000, tz=timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def moment_ms(moment: datetime | str) -> float:
    """Return the milliseconds of a datetime or of ISO 8601 text (a date is its midnight); without a zone it is UTC.

    Raises ValueError for any other text.
    """
    if isinstance(moment, str):
        moment = datetime.fromisoformat(moment.strip().replace("Z", "+00:00"))
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp() * 1000
