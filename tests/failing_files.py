"""Files whose n-th call fails: the calls of the C library on files below one folder, for all that reads or writes in a process.

```
 Python  Arrow (C++)  delta-rs, Polars (Rust)
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
import shutil
import subprocess
from contextlib import contextmanager
from enum import Enum, IntFlag
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_SOURCE = Path(__file__).with_suffix(".c")


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


def environment(folder: Path) -> dict[str, str]:
    """Compile the library into a folder; return the environment of a process whose files it can let fail."""
    library = folder / "failing_files.so"
    command = [compiler() or "cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(_SOURCE), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603
    return {**os.environ, "LD_PRELOAD": str(library)}


class FailingFiles:
    """What is to fail in this process, and what did."""

    def __init__(self) -> None:
        """Find the library that this process was started with."""
        self._library = ctypes.CDLL(os.environ["LD_PRELOAD"])
        self._library.failing_files_calls.restype = self._library.failing_files_failed.restype = ctypes.c_long
        self._library.failing_files_path.restype = ctypes.c_char_p
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
