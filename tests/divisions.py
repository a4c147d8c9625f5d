"""The ways in which a cleaning is divided between tasks, for tests that must not see a difference."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from unittest import mock

from lastword.storage.cleaning import cleaning_index, lanes, swap

if TYPE_CHECKING:
    from collections.abc import Iterator

#: How much is one lane, how many lanes there may be, what the broadcast of a block is taken to cost, how many come to the driver, and what
#: a task writes in a turn.
_LIMITS: Final = {
    "one task": (2**40, 8, 64, 2**20, 2**27),
    "a lane each": (-1, 8, 64, 2**20, 2**27),
    "shared": (-1, 0, 64, 2**20, 2**27),
    "a lane each, nothing gathered": (-1, 8, 64, 0, 2**27),
    "shared, nothing broadcast": (-1, 0, 2**40, 0, 2**27),
    "one task, in turns": (2**40, 8, 64, 2**20, 2**11),
    "a lane each, in turns": (-1, 8, 64, 2**20, 2**11),
    "shared, in turns": (-1, 0, 64, 2**20, 2**11),
}
DIVISIONS: Final = tuple(_LIMITS)


@contextmanager
def divided(how: str) -> Iterator[None]:
    """Let cleanings be divided in one of the `DIVISIONS`, whatever their size; on one core there is only the first."""
    one_lane_bytes, most, broadcast_bytes, gathered, turn = _LIMITS[how]
    limits = {"ONE_LANE_BYTES": one_lane_bytes, "MOST_LANES": most, "LONGEST": float("inf")}
    sent = {"BROADCAST_BYTES": broadcast_bytes, "GATHERED_BLOCKS": gathered}
    with (
        mock.patch.multiple(lanes, **limits),  # type: ignore[call-overload]
        mock.patch.multiple(cleaning_index, **sent),  # type: ignore[call-overload]
        mock.patch.object(swap, "MOST_BYTES", turn),
    ):
        yield
