"""Two services on one log.dir by mistake, with the same sources: one runs the query, and each row is in the log once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from lastword import LogDir
from lastword.compaction.errors import QueryRefused
from tests.kill_app import TOPIC, service
from tests.processes import ROOT
from tests.streaming.append.test_exactly_once import next_start
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

_ROWS_A_FILE = 10


class _Input:
    """A folder that files of numbered rows come into, one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0
        folder.mkdir()

    def arrive(self) -> None:
        """Put another file there."""
        rows = [{"fruit": f"k{number % 7}", "value": str(self.count * _ROWS_A_FILE + number)} for number in range(_ROWS_A_FILE)]
        arriving = self.folder / f".{self.count:05}.json"
        arriving.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        os.utime(arriving, (1_700_000_000 + self.count, 1_700_000_000 + self.count))
        arriving.rename(self.folder / f"{self.count:05}.json")
        self.count += 1

    def check(self, log_dir: Path) -> None:
        """Compare the log with all that came."""
        values = LogDir(log_dir).topic(TOPIC).records()["value"].to_pylist()
        assert sorted(int(value) for value in values) == list(range(self.count * _ROWS_A_FILE)), "every row once"
        report = LogDir(str(log_dir)).topic(TOPIC).verify()
        assert report.ok, report.problems


def _started(log_dir: Path, given: _Input, output: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.kill_app", str(log_dir), str(given.folder), "NONE", "1", "group", "follow"]
    with output.open("ab") as stream:
        return subprocess.Popen(command, cwd=ROOT, start_new_session=True, stdout=stream, stderr=stream)  # noqa: S603


def _kill(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _count(log_dir: Path) -> int:
    return LogDir(log_dir).topic(TOPIC).records().num_rows if (log_dir / TOPIC / "ledger" / "_delta_log").is_dir() else 0


def test_a_second_service_refuses_the_query_that_the_first_runs_and_takes_over_when_that_is_killed(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Its error names the process. The lock of the one that is killed is gone with it; no row is lost, and none comes twice."""
    given, log_dir = _Input(tmp_path / "input"), tmp_path / "logs"
    given.arrive()
    first = _started(log_dir, given, tmp_path / "first.log")
    try:
        until(lambda: _count(log_dir) == _ROWS_A_FILE or first.poll() is not None, "the first service appends nothing")
        given.arrive()
        with pytest.raises(QueryRefused, match=rf"query files of topic {TOPIC} runs in another process \(process {first.pid}\)"):
            service(str(log_dir), str(given.folder), cleaning=False).run()
        assert first.poll() is None, (tmp_path / "first.log").read_text()
        given.arrive()
    finally:
        _kill(first)
    next_start(log_dir, given.folder)
    given.check(log_dir)


@pytest.mark.torture
@pytest.mark.jvm
@pytest.mark.timeout(1_800)
def test_two_services_that_are_killed_and_started_again_append_each_row_once(spark: SparkSession, tmp_path: Path) -> None:
    """As a supervisor starts them: also the one that ends because the other runs the query. From a printed seed.

    The one that runs it is killed eight times, a random moment after its first micro-batch; in ten minutes at the most.
    """
    seed = int(os.environ.get("LASTWORD_SEED", random.SystemRandom().randrange(10**6)))
    print(f"LASTWORD_SEED={seed}")  # noqa: T201
    draw, given, log_dir = random.Random(seed), _Input(tmp_path / "input"), tmp_path / "logs"
    outputs = [tmp_path / "service-0.log", tmp_path / "service-1.log"]
    given.arrive()
    processes = [_started(log_dir, given, output) for output in outputs]
    kills, ended, known, dies_at, ends = 0, 0, 0, 0.0, time.monotonic() + 600
    try:
        while kills < 8 and time.monotonic() < ends:
            for number, process in enumerate(processes):
                if process.poll() is not None:
                    ended += 1
                    processes[number] = _started(log_dir, given, outputs[number])
            if not dies_at and _micro_batches(log_dir) > known:
                dies_at = time.monotonic() + draw.uniform(0, 5)
            if dies_at and time.monotonic() >= dies_at:
                holder = (log_dir / TOPIC / "queries" / ".files.lock").read_text()
                (running,) = (one for one in processes if holder == f"process {one.pid}")
                _kill(running)
                kills, dies_at, known = kills + 1, 0.0, _micro_batches(log_dir)
            given.arrive()
            time.sleep(1)
    finally:
        for process in processes:
            _kill(process)
    next_start(log_dir, given.folder)
    given.check(log_dir)
    print(f"{given.count} files, {kills} kills, {ended} starts after an end, {_micro_batches(log_dir)} micro-batches")  # noqa: T201
    assert kills > 1
    refused = [f"query files of topic {TOPIC} runs in another process" in output.read_text() for output in outputs]
    assert any(refused)


def _micro_batches(log_dir: Path) -> int:
    """Return how many micro-batches were done, by the checkpoint."""
    return max((int(one.name) + 1 for one in (log_dir / TOPIC / "queries" / "files" / "commits").glob("[0-9]*")), default=0)
