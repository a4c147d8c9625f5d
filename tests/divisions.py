"""The ways in which a cleaning may be divided, for tests that must not see a difference."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from unittest import mock

from lastword.storage.cleaning import cleaning, offset_map
from lastword.storage.files import data_files

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Keys that are folded or looked up at a time, rows of a row group, and bytes of a slice.
_LIMITS: Final = {
    "as it is": (2**20, 2**17, 2**27),
    "row by row": (1, 1, 2**27),
    "a slice for each row group": (2**20, 2, 1),
    "small stretches, small slices": (3, 3, 2**11),
}
DIVISIONS: Final = tuple(_LIMITS)


@contextmanager
def divided(how: str) -> Iterator[None]:
    """Let cleanings be divided in one of the `DIVISIONS`, whatever their size."""
    stretch, rows, slice_bytes = _LIMITS[how]
    with (
        mock.patch.object(offset_map, "_STRETCH_ROWS", stretch),
        mock.patch.object(data_files, "ROW_GROUP_ROWS", rows),
        mock.patch.object(cleaning, "MAX_SLICE_BYTES", slice_bytes),
    ):
        yield
