"""A session whose settings Spark refuses: one line that says what it has against them, and exit code 1."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.jvm, pytest.mark.long]

_CONFIG = """
log.dir = "data"
[[source]]
name = "s"
topic = "t"
format = "rate"

[spark]
{settings}
"""


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ('"spark.master" = "sparkk://host:7077"', "Could not parse Master URL: 'sparkk://host:7077'"),
        ('"spark.network.timeout" = "20s"', "spark.network.timeoutInterval should be less than or equal to spark.network.timeout"),
        ('"spark.task.cpus" = "two"', "spark.task.cpus"),
        ('"spark.driver.memory" = "lots"', "Java gateway process exited before sending its port number. What the JVM wrote"),
        ('"spark.sql.shuffle.partitions" = "many"', "spark.sql.shuffle.partitions"),
    ],
    ids=["master", "two settings", "a number", "memory", "a setting of SQL"],
)
def test_settings_that_spark_refuses_are_one_line(tmp_path: Path, settings: str, said: str) -> None:
    """By `lastword run`; what the JVM writes itself comes before it."""
    (tmp_path / "lastword.toml").write_text(_CONFIG.format(settings=settings), encoding="utf-8")
    run = [sys.executable, "-m", "lastword", "run", "-c", "lastword.toml"]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)  # noqa: S603  our own interpreter

    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert line.startswith("error: Spark does not start: ")
    assert said in line
