"""The lock of a folder: held by one at a time, released when the process dies, and never waited for too long."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from lastword.storage.delta.folder_locks import _try_lock, folder_lock

if TYPE_CHECKING:
    from pathlib import Path

_HOLDER = """
import sys, time
from pathlib import Path
from lastword.storage.delta.folder_locks import folder_lock
with folder_lock(Path(sys.argv[1]), max_wait_seconds=1):
    print("held", flush=True)
    time.sleep(60)
"""


def _holder(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", _HOLDER, str(folder)], stdout=subprocess.PIPE, text=True)  # noqa: S603
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_one_at_a_time_holds_the_lock(tmp_path: Path) -> None:
    """Threads exclude each other, too, because each one opens the folder itself."""
    inside, most = list[int](), list[int]()

    def work(number: int) -> None:
        for _ in range(20):
            with folder_lock(tmp_path, max_wait_seconds=60):
                inside.append(number)
                most.append(len(inside))
                time.sleep(0.001)
                inside.remove(number)

    threads = [threading.Thread(target=work, args=[number]) for number in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert set(most) == {1}
    assert len(most) == 80


def test_the_lock_of_a_process_that_was_killed_is_free(tmp_path: Path) -> None:
    """The kernel releases it."""
    process = _holder(tmp_path)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    began = time.monotonic()
    with folder_lock(tmp_path, max_wait_seconds=30):
        assert time.monotonic() - began < 10


def test_a_process_that_hangs_with_the_lock_is_waited_for_only_so_long(tmp_path: Path) -> None:
    """Commits are compare-and-set: without the lock they are as right as with it."""
    process = _holder(tmp_path)
    try:
        began = time.monotonic()
        with folder_lock(tmp_path, max_wait_seconds=0.3):
            assert time.monotonic() - began >= 0.3
    finally:
        process.kill()
        process.wait()


def test_without_a_folder_there_is_no_lock_and_none_is_made(tmp_path: Path) -> None:
    """A topic that was deleted, and an object store."""
    with folder_lock(tmp_path / "gone", max_wait_seconds=30), folder_lock(None, max_wait_seconds=30):
        assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_locked_is_worked_at_without_a_lock(tmp_path: Path) -> None:
    """Some network file systems have no locks: the compare-and-set of a commit is right without one."""
    descriptor = os.open(tmp_path, os.O_PATH)  # Linux refuses to lock what was opened for its name alone
    try:
        with pytest.raises(OSError, match="Bad file descriptor"):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert _try_lock(descriptor)
    finally:
        os.close(descriptor)
