"""A client of Spark Connect: its DataFrames are appended without Spark, it reads `format("lastword")`, and `LogDir` refuses its session."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.processes import ROOT

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.jvm
@pytest.mark.long
def test_a_client_of_spark_connect_appends_and_reads(tmp_path: Path) -> None:
    """With a server of its own; the error of `LogDir` names the two ways that there are."""
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    run = [sys.executable, "-m", "tests.connect_app", str(tmp_path / "data")]
    done = subprocess.run(run, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=240)  # noqa: S603  our own interpreter

    assert done.returncode == 0, done.stderr[-4000:]
    said = json.loads(done.stdout)
    assert said["session"] == "pyspark.sql.connect.session"
    assert said["format"] == [[0, "lime", "1"], [1, "grape", "2"], [2, "lime", "3"]]
    assert sorted(said["latest"]) == [["grape", "2"], ["lime", "3"]]
    assert "LogDir was given a session of Spark Connect" in said["LogDir(spark, …)"]
    assert f"LogDir('{tmp_path / 'data'}')" in said["LogDir(spark, …)"]
    assert 'format("lastword")' in said["LogDir(spark, …)"]
