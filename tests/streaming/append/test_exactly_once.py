"""Exactly once under fire: the streaming application killed with SIGKILL, and the log compared with a plain fold of the input."""

from __future__ import annotations

import json
import os
import random
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from lastword import LogDir
from tests.kill_app import TOPIC, service
from tests.pictures import latest
from tests.processes import run_until_killed

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

_ROWS_A_FILE = 40


def write_input(folder: Path, files: int, seed: int) -> dict[str, str]:
    """Write files of changes, some with a row that the log refuses; return the fold of the good ones."""
    folder.mkdir()
    draw = random.Random(seed)
    fold: dict[str, str] = {}
    for number in range(files):
        lines = []
        for row in range(_ROWS_A_FILE):
            key, value = f"k{draw.randrange(60)}", "" if draw.random() < 0.2 else f"{number}.{row}"
            lines.append(json.dumps({"fruit": key, "value": value}))
            fold[key] = value
        if number % 3 == 0:
            lines.insert(draw.randrange(len(lines)), json.dumps({"value": "no key"}))
        path = folder / f"{number:03}.json"
        path.write_text("\n".join(lines) + "\n")
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
    return {key: value for key, value in fold.items() if value}


def application(log_dir: Path, folder: Path, point: str, nth: int = 1, *words: str) -> int:
    """Run the application as a process and return its exit code; see `tests.kill_app`."""
    return run_until_killed("tests.kill_app", str(log_dir), str(folder), point, str(nth), *words)


def next_start(log_dir: Path, folder: Path, *, cleaning: bool = False) -> None:
    """Start the application once more, to its end, in this process: its session is warm, another JVM would take a minute."""
    running = service(str(log_dir), str(folder), cleaning=cleaning)
    with ThreadPoolExecutor(1) as thread:  # what it sets of Spark's is the thread's own
        thread.submit(running.run).result(timeout=1_800)


def _check(spark: SparkSession, log_dir: Path, files: int, fold: dict[str, str]) -> None:
    topic = LogDir(spark, str(log_dir)).topic(TOPIC)
    assert latest(topic) == fold
    description = topic.describe()
    assert description.record_count == files * _ROWS_A_FILE
    for partition in description.partitions:
        assert partition.record_count == partition.log_end_offset, "offsets are 0..n-1 without a gap"
    assert topic.verify().ok, topic.verify().problems
    assert topic.dead_letters().count() == len(range(0, files, 3)), "each refused row stands once among the dead letters"


_KILLS = [("APPEND_PLANNED", 2, "group"), ("WRITING", 2, "group"), ("APPEND_COMMITTED", 1, "python"), ("DEAD_LETTERS_WRITTEN", 1, "group")]


def test_killed_while_it_writes_each_record_is_in_the_log_once(spark: SparkSession, tmp_path: Path) -> None:
    """One input, the whole process group killed among its files; `make torture` has every point."""
    files = 3
    fold = write_input(tmp_path / "input", files, seed=1)
    point, nth, whom = _KILLS[1]
    assert application(tmp_path / "logs", tmp_path / "input", point, nth, whom) == -signal.SIGKILL
    next_start(tmp_path / "logs", tmp_path / "input")
    _check(spark, tmp_path / "logs", files, fold)


@pytest.mark.torture
@pytest.mark.timeout(1_800)
def test_killed_twenty_four_times_over_one_input(spark: SparkSession, tmp_path: Path) -> None:
    """The application is killed at random points, drawn from a printed seed; each row is appended once."""
    seed = int(os.environ.get("LASTWORD_SEED", random.SystemRandom().randrange(10**6)))
    print(f"LASTWORD_SEED={seed}")  # noqa: T201
    draw = random.Random(seed)
    files = 60
    fold = write_input(tmp_path / "input", files, seed)
    killed = 0
    for number in range(24):
        point, _, whom = _KILLS[number % len(_KILLS)]
        code = application(tmp_path / "logs", tmp_path / "input", point, draw.randint(1, 2), whom)
        killed += code == -signal.SIGKILL
    assert killed >= 20
    next_start(tmp_path / "logs", tmp_path / "input")
    _check(spark, tmp_path / "logs", files, fold)
