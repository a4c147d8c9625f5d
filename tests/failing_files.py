"""Files whose n-th call fails: the calls of the C library on files below one folder, for all that reads or writes in a process.

```
 Python  Arrow (C++)  delta-rs, Polars (Rust)  Spark (JVM)
              │  open read write fsync readdir stat link rename unlink mkdir
              ▼
 failing_files.c   the n-th of some kinds: an error, a lost answer, half of it, an early end, a pause
              ▼
         the C library
```

A process must be started with it: `environment(folder)` says how, and `FailingFiles` is the handle inside of it.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
import traceback
from contextlib import contextmanager
from enum import Enum, IntFlag
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SOURCE = Path(__file__).with_suffix(".c")
#: What differs in the names of files of a kind: numbers and random ids.
_NAMES = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{16,}|\d+")


class Call(IntFlag):
    """What is done to a file or a folder: OPEN one that is there, MAKE a new one, NAME is link and rename."""

    OPEN = 1
    READ = 2
    WRITE = 4
    SYNC = 8
    LIST = 16
    STAT = 32
    NAME = 64
    DELETE = 128
    MAKE = 256


class Fault(Enum):
    """How a call fails: with an error; done, and then with an error; by half of the bytes; by none, as at the end; late."""

    FAIL = 0
    FAIL_AFTERWARDS = 1
    SHORT = 2
    END_OF_FILE = 3
    SLOW = 4


def compiler() -> str | None:
    """Return the C compiler of this machine, if it has one."""
    return shutil.which("cc") or shutil.which("gcc")


#: What the library needs.
needed = pytest.mark.skipif(compiler() is None or sys.platform != "linux", reason="needs Linux and a C compiler, cc or gcc")


def environment(folder: Path) -> dict[str, str]:
    """Compile the library into a folder; return the environment of a process whose files it can let fail, and those of its children."""
    library = folder / "failing_files.so"
    command = [compiler() or "cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(_SOURCE), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603
    return {**os.environ, "LD_PRELOAD": str(library), "FAILING_FILES": str(folder / "failing_files.state")}


def runs_well(module: str, folder: Path, *words: object) -> None:
    """Run `python -m tests.MODULE FOLDER WORDS…` as a process whose files it can let fail; it has nothing to complain of."""
    command = [sys.executable, "-m", f"tests.{module}", str(folder), *map(str, words)]
    done = subprocess.run(command, env=environment(folder), capture_output=True, text=True, check=False)  # noqa: S603
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


class FailingFiles:
    """What is to fail in this process, and what did."""

    def __init__(self) -> None:
        """Find the library that this process was started with."""
        self._library = ctypes.CDLL(os.environ["LD_PRELOAD"])
        self._library.failing_files_calls.restype = self._library.failing_files_failed.restype = ctypes.c_long
        self._library.failing_files_path.restype = self._library.failing_files_path_of.restype = ctypes.c_char_p
        self._library.failing_files_path_of.argtypes = [ctypes.c_long]
        self._library.failing_files_start.argtypes = [
            ctypes.c_char_p,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_long,
            ctypes.c_long,
            ctypes.c_int,
        ]

    @contextmanager
    def failing(self, folder: str, calls: Call, fault: Fault, nth: int, number: int, *, last: int | None = None) -> Iterator[None]:
        """Let the `nth` call of some kinds below a folder fail with an error number, or the `nth` to `last`, while the block runs."""
        self._library.failing_files_start(os.fsencode(folder), int(calls), fault.value, nth, nth if last is None else last, number)
        try:
            yield
        finally:
            self._library.failing_files_stop()

    def sites(self, folder: str, calls: Call, run: Callable[[], object]) -> list[str]:
        """Run something in which nothing fails; return, for each call of some kinds, where it is made and on which kind of file.

        Calls with the same site are made by the same lines of Python. Threads that are not Python's count as where Python is then.
        """
        lines: dict[int, str] = {}

        def hear(nth: int) -> None:
            frames = traceback.walk_stack(sys._getframe(1))  # noqa: SLF001
            lines[nth] = " ".join(f"{frame.f_code.co_filename}:{line}" for frame, line in frames)

        heard = ctypes.CFUNCTYPE(None, ctypes.c_long)(hear)
        self._library.failing_files_listen(heard)
        try:
            with self.failing(folder, calls, Fault.FAIL, 10**9, 0):
                run()
            paths = [os.fsdecode(self._library.failing_files_path_of(nth)) for nth in range(1, self.calls + 1)]
        finally:
            self._library.failing_files_listen(None)
        found, where = [], ""
        for nth, path in enumerate(paths, 1):
            where = lines.get(nth, where)
            found.append(f"{_NAMES.sub('#', path)} {where}")
        return found

    @property
    def calls(self) -> int:
        """How many calls of the kinds there were."""
        return int(self._library.failing_files_calls())

    @property
    def failed(self) -> int:
        """How many of them failed."""
        return int(self._library.failing_files_failed())

    @property
    def path(self) -> str:
        """The file or folder of the first call that failed."""
        return os.fsdecode(self._library.failing_files_path())
