"""The start of a session: settings that Spark refuses are one line and exit code 1; the jars are there, and are not copied."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest

from lastword.spark.jars import resolve

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


_KILLED = """
import os, signal
from lastword import spark_session
spark = spark_session(master="local[2]")
spark.range(3).write.format("delta").save("table")
os.kill(os.getpid(), signal.SIGKILL)
"""
_SECOND_OF_A_JVM = """
from pyspark import SparkContext
from pyspark.sql import SparkSession
from lastword import UserError, spark_session
SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate().stop()
try:
    spark_session(master="local[2]")
except UserError as error:
    print(error)
print(SparkContext._active_spark_context)
"""
_WITH_JARS = """
import sys
from lastword import spark_session
spark = spark_session(master="local[2]", settings={{"{setting}": sys.argv[1]}})
spark.range(3).write.format("delta").save("table")
print(spark._jvm.java.lang.Thread.currentThread().getContextClassLoader().getResource("{name}"))
"""


def _run(folder: Path, code: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run code as a process whose Spark keeps its temporary files in a folder."""
    environment = {**os.environ, "SPARK_LOCAL_DIRS": str(folder / "local")}
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120)  # noqa: S603  as above


def test_a_local_session_that_is_killed_leaves_no_jars(tmp_path: Path) -> None:
    """Those of S3 alone are 690 MB, and a service that is killed is started again."""
    done = _run(tmp_path, _KILLED)

    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (tmp_path / "local").is_dir()
    assert list((tmp_path / "local").rglob("*.jar")) == []
    assert len(list((tmp_path / "table").glob("*.parquet"))) > 0


def test_a_jvm_that_was_started_without_our_jars_is_refused(tmp_path: Path) -> None:
    """The class path of a JVM is that of its launch. The error names the class that is missing, and no context is left."""
    done = _run(tmp_path, _SECOND_OF_A_JVM)

    assert done.returncode == 0, done.stderr
    assert "the JVM of this process has no io.delta.sql.DeltaSparkSessionExtension. If it was started before, start a new" in done.stdout
    assert all(path in done.stdout for path in map(str, resolve()))
    assert done.stdout.splitlines()[-1] == "None"


@pytest.mark.parametrize("named_by", ["spark-defaults.conf", "PYSPARK_SUBMIT_ARGS"])
def test_a_class_path_that_spark_has_from_elsewhere_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named_by: str) -> None:
    """Delta's jars are there beside it."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "theirs.txt").write_text("theirs", encoding="utf-8")
    if named_by == "PYSPARK_SUBMIT_ARGS":
        monkeypatch.setenv(named_by, f"--driver-class-path {tmp_path}/theirs pyspark-shell")
    else:
        (tmp_path / named_by).write_text(f"spark.driver.extraClassPath {tmp_path}/theirs\n", encoding="utf-8")
        monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    done = _run(tmp_path, _WITH_JARS.format(setting="spark.app.name", name="theirs.txt"), "name")

    assert done.returncode == 0, done.stderr
    assert "theirs.txt" in done.stdout


@pytest.mark.parametrize("setting", ["spark.jars", "spark.driver.extraClassPath"])
def test_jars_of_the_settings_are_there_beside_ours(tmp_path: Path, setting: str) -> None:
    """Neither setting takes the place of Delta's jars."""
    jar = tmp_path / "their own.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        archive.writestr("theirs.txt", "theirs")
    done = _run(tmp_path, _WITH_JARS.format(setting=setting, name="theirs.txt"), str(jar))

    assert done.returncode == 0, done.stderr
    assert "theirs.txt" in done.stdout
