"""Applications as processes of their own, whose JVM lives for a minute or is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]


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
