"""Turns of the processes of one machine at a folder: whoever is slow is not overtaken for ever.

Commits are compare-and-set, so they are right without it. A process that takes long for each attempt loses every race against quick ones;
in its turn it has none to lose.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_POLL_SECONDS: Final = 0.01


@contextmanager
def turn_at(folder: Path | None, *, patience_seconds: float) -> Iterator[None]:
    """Hold the turn at a folder of a local disk; go on without it where there is none, or after so many seconds.

    The kernel gives the turn back when the process ends, however it does. No file is made: the folder itself is locked (flock).
    """
    descriptor = _opened(folder)
    if descriptor is None:
        yield
        return
    try:
        ends = time.monotonic() + patience_seconds
        while not _locked(descriptor) and time.monotonic() < ends:
            time.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _opened(folder: Path | None) -> int | None:
    """Return a descriptor of a folder; None for one that is not there, or not on a local disk."""
    if folder is not None:
        with suppress(OSError):
            return os.open(folder, os.O_RDONLY)
    return None


def _locked(descriptor: int) -> bool:
    """Take the lock of a folder if it is free; one that cannot be locked (a network file system) counts as taken by us."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
