"""Applications as processes of their own, whose JVM lives for a minute or is killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ROOT: Final = Path(__file__).parents[1]


def free_port() -> int:
    """Return a port of the loopback address that no process listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def running(
    command: Sequence[str], log: Path, *, cwd: Path = ROOT, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process and its children for as long as the block lasts; if the block fails, print the end of what the process wrote."""
    with log.open("wb") as stream:
        started = subprocess.Popen(  # noqa: S603  a command line of the tests
            command, cwd=cwd, env=environment, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            yield started
        except BaseException:
            print(f"--- {log.name} ---\n{log.read_text(errors='replace')[-6000:]}")  # noqa: T201  pytest shows it with the failure
            raise
        finally:
            if started.poll() is None:
                os.killpg(started.pid, signal.SIGKILL)
            started.wait()


def run_until_killed(module: str, *words: str) -> int:
    """Run a module as a process and return its exit code: 0, or that of SIGKILL."""
    done = subprocess.run(  # noqa: S603  our own interpreter
        [sys.executable, "-m", module, *words],
        cwd=ROOT,
        start_new_session=True,
        capture_output=True,
        text=True,
        timeout=1_800,
        check=False,
    )
    assert done.returncode in {0, -signal.SIGKILL}, done.stdout + done.stderr
    return done.returncode
