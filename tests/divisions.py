"""The ways in which a cleaning is divided between tasks, for tests that must not see a difference."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from unittest import mock

from storage import cleaning_index, lanes

if TYPE_CHECKING:
    from collections.abc import Iterator

#: How much is one lane, how many lanes there may be, what the broadcast of a block is taken to cost, and how many come to the driver.
_LIMITS: Final = {
    "one task": (2**40, 8, 64, 2**20),
    "a lane each": (-1, 8, 64, 2**20),
    "shared": (-1, 0, 64, 2**20),
    "a lane each, nothing gathered": (-1, 8, 64, 0),
    "shared, nothing broadcast": (-1, 0, 2**40, 0),
}
DIVISIONS: Final = tuple(_LIMITS)


@contextmanager
def divided(how: str) -> Iterator[None]:
    """Let cleanings be divided in one of the `DIVISIONS`, whatever their size; on one core there is only the first."""
    one_lane_bytes, most, broadcast_bytes, gathered = _LIMITS[how]
    limits = {"ONE_LANE_BYTES": one_lane_bytes, "MOST_LANES": most, "LONGEST": float("inf")}
    sent = {"BROADCAST_BYTES": broadcast_bytes, "GATHERED_BLOCKS": gathered}
    with mock.patch.multiple(lanes, **limits), mock.patch.multiple(cleaning_index, **sent):  # type: ignore[call-overload]
        yield
