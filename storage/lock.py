"""One committing process on a local disk.

Two Spark processes that commit to one Delta table on `file:` destroy it: the check for an existing version and the rename are not one
step there (run: checksum errors, lost commits). So a committing process holds `<log.dir>/.lock` for its life, as a Kafka broker does.
The operating system lets go of it when the process dies, however it dies. Reading needs no lock, and object stores have Delta's own
concurrent-writer support.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Final

from filelock import FileLock, Timeout

from compaction.errors import LogDirLocked

if TYPE_CHECKING:
    from pathlib import Path

_HELD: Final[dict[str, FileLock]] = {}
_GUARD: Final = threading.Lock()


def hold(log_dir: Path | None) -> None:
    """Take the lock of a local log.dir for the life of this process, or raise `LogDirLocked` naming the holder.

    Nothing happens for an object store (`log_dir` is None) or when this process holds the lock already.
    """
    if log_dir is None:
        return
    with _GUARD:
        path = str(log_dir.resolve())
        if path in _HELD:
            return
        log_dir.mkdir(parents=True, exist_ok=True)
        lock = FileLock(log_dir / ".lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            message = (
                f"log.dir {path} is held by {_holder(log_dir)}, and two processes that commit to one local Delta table destroy it. "
                "Reading works beside it; to append, stop that process or send the rows through it"
            )
            raise LogDirLocked(message) from None
        (log_dir / ".lock.holder").write_text(f"process {os.getpid()}\n")
        _HELD[path] = lock


def release_all() -> None:
    """Let go of every lock of this process."""
    with _GUARD:
        for lock in _HELD.values():
            lock.release(force=True)
        _HELD.clear()


def _holder(log_dir: Path) -> str:
    try:
        return (log_dir / ".lock.holder").read_text().strip() or "another process"
    except OSError:
        return "another process"
