"""One committing process on a local disk.

Two Spark processes that commit to one Delta table on `file:` destroy it: the check for an existing version and the rename are not one
step there (run: checksum errors, lost commits). So a committing process holds `<log.dir>/.lock` for its life, as a Kafka broker does.
The operating system lets go of it when the process dies, however it dies. Reading needs no lock, and object stores have Delta's own
concurrent-writer support.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Final

from filelock import FileLock, Timeout
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from lastword.compaction.errors import LogDirLocked
from lastword.storage.files.paths import LOCK_FILE

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

_HELD: Final[dict[str, FileLock]] = {}
_HELD_BY_JVM: Final[dict[str, Any]] = {}
_ORPHAN_SECONDS: Final = 30
_GUARD: Final = threading.Lock()


def hold(log_dir: Path | None, spark: SparkSession | None) -> None:
    """Take the lock of a local log.dir for the life of this process, or raise `LogDirLocked` naming the holder.

    Nothing happens for an object store (`log_dir` is None) or when this process holds the lock already. With a Spark session its JVM takes
    a lock of its own: a JVM may outlive the killed Python process that drove it, and finish a commit.
    """
    if log_dir is None:
        return
    with _GUARD:
        path = str(log_dir.resolve())
        if path not in _HELD:
            _hold_python(log_dir, path)
        if spark is not None and path not in _HELD_BY_JVM:
            _HELD_BY_JVM[path] = _hold_jvm(log_dir, spark)


def _hold_python(log_dir: Path, path: str) -> None:
    log_dir.mkdir(parents=True, exist_ok=True)
    lock = FileLock(log_dir / LOCK_FILE)
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


def _hold_jvm(log_dir: Path, spark: SparkSession) -> Any:
    """Take the JVM's lock, waiting for an orphaned JVM to end."""
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001  the lock must be the JVM's own
    file = jvm.java.io.RandomAccessFile(str(log_dir / ".lock.jvm"), "rw")
    for attempt in Retrying(
        stop=stop_after_delay(_ORPHAN_SECONDS), wait=wait_fixed(0.2), retry=retry_if_exception_type(LogDirLocked), reraise=True
    ):
        with attempt:
            if file.getChannel().tryLock() is None:
                message = f"log.dir {log_dir} is still held by the JVM of a process that died; stop it (it is a java process)"
                raise LogDirLocked(message)
    return file  # closing it, or the end of the JVM, lets go of the lock


def release_all() -> None:
    """Let go of every lock of this process."""
    with _GUARD:
        for lock in _HELD.values():
            lock.release(force=True)
        for file in _HELD_BY_JVM.values():
            file.close()
        _HELD.clear()
        _HELD_BY_JVM.clear()


def _holder(log_dir: Path) -> str:
    try:
        return (log_dir / ".lock.holder").read_text().strip() or "another process"
    except OSError:
        return "another process"
