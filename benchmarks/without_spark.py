"""What needs no Spark: Arrow appends, alone and by several processes, and the commands.

(a) An Arrow table of 200, 20,000 and 200,000 records of 100 B over 4 partitions: at most twice a `write_deltalake` of the same rows, which
    neither numbers nor validates nor flushes; at most 15, 30 and 120 ms on 2 cores.
(b) 4 processes that append 200 records 50 times each to one topic: every append in, at least 20 a second together.
(c) An append after 10,000 commits takes what it takes after 100, ± 20 %: small files are merged and the Delta log has its checkpoints,
    as in a service.
(d) Commands on a topic of 100,000 records, whole processes: at most 1.5 s each.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake

from benchmarks.measure import WHOLE, Scale, headline, in_turns, report
from lastword import LogDir, clock
from lastword.storage.log.upkeep import checkpoint
from lastword.streaming.cleaning.cleaner import Cleaner

if TYPE_CHECKING:
    from lastword import Topic

_PARTITIONS = 4
_BOUNDS_MS = {200: 15, 20_000: 30, 200_000: 120}
_CONFIG = {"cleanup.policy": "compact"}
_PROCESSES, _APPENDS = 4, 50
_MANY_COMMITS = 10_000
_COMMANDS = (
    ("topics", "describe", "t"),
    ("explain", "t"),
    ("records", "t", "--limit", "20"),
    ("latest", "t", "--limit", "20"),
    ("clean", "t"),
    ("verify", "t"),
    ("receipts", "t"),
)


def rows(count: int, seed: int) -> pa.Table:
    """Return changes of 100 B to 400,000 keys."""
    chance = np.random.default_rng(seed)
    keys = pa.array([b"key-%07d" % number for number in chance.integers(0, 400_000, count)])
    return pa.table({"key": keys, "value": pa.array([chance.bytes(100) for _ in range(count)])})


def run(scale: Scale = WHOLE) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        _sizes(folder, scale)
        _together(folder, scale.turns(_APPENDS))
        _after_many_commits(folder, scale.rows(_MANY_COMMITS, least=60))
        _commands(folder, scale)


def _sizes(folder: str, scale: Scale) -> None:
    lines = []
    for whole, bound in _BOUNDS_MS.items():
        count = scale.rows(whole)
        topic = LogDir(f"{folder}/sizes").create_topic(f"t{whole}", partitions=_PARTITIONS, config=_CONFIG)
        table = rows(count, count)
        plain = table.append_column("partition", pa.array(np.arange(count) % _PARTITIONS))

        def write(plain: pa.Table = plain, whole: int = whole) -> None:
            write_deltalake(f"{folder}/plain-{whole}", plain, mode="append", partition_by=["partition"])

        def append(topic: Topic = topic, table: pa.Table = table) -> None:
            topic.append(table)

        warm_up, turns = scale.warm_up(3), scale.turns(15)
        timings = in_turns({"plain": write, "lastword": append}, warm_up=warm_up, rounds=turns)
        assert topic.describe().record_count == (warm_up + turns) * count  # noqa: S101
        headline(
            f"append {count:,} records from Arrow",
            "write_deltalake of the same rows",
            timings["plain"].seconds,
            timings["lastword"].seconds,
            goal=0.5,
        )
        ours, theirs = timings["lastword"].median * 1000, timings["plain"].median * 1000
        lines.append([f"{count:,}", f"{theirs:.1f}", f"{ours:.1f}", f"≤ {bound}"])
    report("(a) milliseconds of an append over 4 partitions", lines, ["records", "write_deltalake", "lastword", "bound"])


def _together(folder: str, appends: int) -> None:
    place = f"{folder}/together"
    topic = LogDir(place).create_topic("t", partitions=_PARTITIONS, config=_CONFIG)
    command = [sys.executable, "-m", "benchmarks.without_spark", place]
    pipe, each = subprocess.PIPE, str(appends)
    processes = [subprocess.Popen([*command, str(number), each], stdin=pipe, stdout=pipe) for number in range(_PROCESSES)]  # noqa: S603
    for process in processes:
        assert process.stdout is not None  # noqa: S101
        process.stdout.readline()  # it is ready
    begun = time.perf_counter()
    for process in processes:
        process.communicate(b"go\n")
    seconds = time.perf_counter() - begun
    assert topic.describe().record_count == _PROCESSES * appends * 200  # noqa: S101
    line = [str(_PROCESSES), f"{_PROCESSES * appends}", f"{seconds:.1f}", f"{_PROCESSES * appends / seconds:.0f}", "≥ 20"]
    report("(b) appends of 200 records to one topic", [line], ["processes", "appends", "s", "a second", "bound"])


def _appends(place: str, seed: str, count: str) -> None:
    topic, table = LogDir(place).topic("t"), rows(200, int(seed))
    topic.describe()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    for _ in range(int(count)):
        topic.append(table)


def _after_many_commits(folder: str, commits: int) -> None:
    logs = LogDir(f"{folder}/many")
    topic, table = logs.create_topic("t", config=_CONFIG), rows(200, 1)
    cleaner, seconds = Cleaner(logs.service_config, parallelism=None), list[float]()
    while topic.log.snapshot().version < commits:
        begun = time.perf_counter()
        topic.append(table)
        seconds.append(time.perf_counter() - begun)
        if len(seconds) % 100 == 0:
            checkpoint(topic.log)
        if len(seconds) % 500 == 0:
            cleaner.merge(topic.log, None, now_ms=clock.now_ms())
    first, last = (statistics.median(part) * 1000 for part in (seconds[min(50, commits // 2) : 150], seconds[-100:]))
    assert topic.describe().record_count == 200 * len(seconds)  # noqa: S101
    line = [f"{first:.1f}", f"{last:.1f}", f"{last / first:.2f}×", "0.8 to 1.2"]
    report("(c) milliseconds of an append of 200 records", [line], ["at 100 commits", "at 10,000 commits", "ratio", "bound"])


def _commands(folder: str, scale: Scale) -> None:
    place = f"{folder}/commands"
    topic = LogDir(place).create_topic("t", partitions=2, config=_CONFIG)
    for number in range(5):
        topic.append(rows(scale.rows(20_000), number))
        topic.roll()
    lines = []
    for words in _COMMANDS:
        seconds = []
        for _ in range(scale.turns(5)):
            begun = time.perf_counter()
            environment = {**os.environ, "LASTWORD_LOG_DIR": place}
            subprocess.run([sys.executable, "-m", "lastword", *words], check=True, capture_output=True, env=environment)  # noqa: S603
            seconds.append(time.perf_counter() - begun)
        lines.append([" ".join(words), f"{statistics.median(seconds):.2f}", f"{min(seconds):.2f}–{max(seconds):.2f}", "≤ 1.5"])
    report("(d) seconds of a command, the whole process", lines, ["lastword …", "median of 5", "range", "bound"])


if __name__ == "__main__":
    _appends(*sys.argv[1:])
