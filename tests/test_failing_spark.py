"""A disk of which a call fails under Spark: appends, streams, the table and the tail go on as if nothing had been (docs/limits.md)."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.failing_files import compiler, environment
from tests.test_model_equality import seed_of_this_run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.jvm,
    pytest.mark.skipif(compiler() is None or sys.platform != "linux", reason="needs Linux and a C compiler, cc or gcc"),
]


def _run(folder: Path, trials: int) -> None:
    command = [sys.executable, "-m", "tests.failing_spark_app", str(folder), str(seed_of_this_run()), str(trials)]
    done = subprocess.run(command, env=environment(folder), capture_output=True, text=True, check=False)  # noqa: S603
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_what_spark_does_on_a_disk_that_fails_is_done_once(tmp_path: Path) -> None:
    """Calls fail in the driver, in its workers and in the JVM; after an error the same is done again, where nothing fails."""
    _run(tmp_path, 14)


@pytest.mark.torture
@pytest.mark.timeout(7_200)
def test_much_that_spark_does_on_a_disk_that_fails_is_done_once(tmp_path: Path) -> None:
    """LASTWORD_TRIALS says how often."""
    _run(tmp_path, int(os.environ.get("LASTWORD_TRIALS", "600")))
