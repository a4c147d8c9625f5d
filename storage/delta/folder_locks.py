"""A lock between the processes of one machine, on a folder: a slow process is not overtaken by quick ones again and again.

Commits are compare-and-set, so they are right without it. A process that takes long for each attempt loses every race against quick ones,
but not while it holds the lock.
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
def folder_lock(folder: Path | None, *, max_wait_seconds: float) -> Iterator[None]:
    """Hold the lock of a folder of a local disk; go on without it where there is no such folder, or after `max_wait_seconds`.

    The kernel releases the lock when the process ends, however it does. No file is made: the folder itself is locked (flock).
    """
    descriptor = _open(folder)
    if descriptor is None:
        yield
        return
    try:
        ends = time.monotonic() + max_wait_seconds
        while not _try_lock(descriptor) and time.monotonic() < ends:
            time.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _open(folder: Path | None) -> int | None:
    """Return a descriptor of a folder; None for one that is not there, or not on a local disk."""
    if folder is not None:
        with suppress(OSError):
            return os.open(folder, os.O_RDONLY)
    return None


def _try_lock(descriptor: int) -> bool:
    """Lock a folder if it is free; return True also where folders cannot be locked (a network file system)."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
