"""Applications as processes of their own, whose JVM lives for a minute or is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
#: The second compiler of a JVM that lives for a minute costs more than it gains: a driver, a master and two workers on two cores take 46 s
#: without it, 71 to 85 s with it.
SHORT_JVM: Final = {**os.environ, "JAVA_TOOL_OPTIONS": f"{os.environ.get('JAVA_TOOL_OPTIONS', '')} -XX:TieredStopAtLevel=1".strip()}


def run_until_killed(module: str, *words: str) -> int:
    """Run a module as a process and return its exit code: 0, or that of SIGKILL."""
    done = subprocess.run(  # noqa: S603  our own interpreter
        [sys.executable, "-m", module, *words],
        cwd=ROOT,
        env=SHORT_JVM,
        start_new_session=True,
        capture_output=True,
        text=True,
        timeout=1_800,
        check=False,
    )
    assert done.returncode in {0, -signal.SIGKILL}, done.stdout + done.stderr
    return done.returncode
