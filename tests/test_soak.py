"""The service for an hour under everything at once: memory, times and files stay flat.

What is kept for days is kept for minutes here, or an hour would show nothing of it: files that left the log go with the next VACUUM,
decisions, transactional ids and producers after `_KEPT_MINUTES`, dead letters after 30 seconds, and commits in each `_delta_log` after
`_KEPT_MINUTES`, by dating those that are older eight days back (Delta keeps them 7 days, and looks with each checkpoint: here each 10
commits, not 100). Files that no commit names (each DELETE of dead letters leaves an empty one) go with a VACUUM FULL, which is each tenth
one instead of once a day, and finds them a day old as they are dated back, too.

`LASTWORD_SOAK_MINUTES` says how long (60), `LASTWORD_SOAK_PLOT` names an SVG file to draw the samples into. In `make test` the same code
runs for a minute, which is too short to say that something is flat: there only what must hold at any length is asserted.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import statistics
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from lastword import clock
from lastword.service.service import Service
from lastword.service.settings import Settings
from lastword.storage.append.dead_letters import expire_dead_letters
from lastword.storage.files import schema
from lastword.storage.log import upkeep
from lastword.storage.log.limits import UpkeepLimits
from lastword.streaming import metrics
from tests.pictures import rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import SparkSession

    from lastword import Topic
    from lastword.storage.log.topic_log import TopicLog

_MIB = 2**20
_KEPT_MINUTES = 5.0
_EIGHT_DAYS = 8 * 24 * 3600
#: Nothing is kept for days.
_LIMITS = UpkeepLimits(file_retention_ms=0, decision_retention_ms=int(_KEPT_MINUTES * 60_000))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    """What is measured each time."""

    minute: float
    python_mib: float
    live_heap_mib: float
    append_seconds: float
    clean_seconds: float
    log_files: int
    files: int
    files_on_disk: int
    ledger_rows: int
    ledger_log_files: int
    dead_letters: int
    dead_letter_log_files: int
    query_files: int


class _Totals:
    """Sums of the histograms, so that a sample gets the mean of what came since the one before."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, float]] = {}

    def mean(self, name: str) -> float:
        total = count = 0.0
        for family in text_string_to_metric_families(generate_latest(metrics.REGISTRY).decode()):
            for sample in family.samples:
                total += sample.value if sample.name == f"{name}_sum" else 0
                count += sample.value if sample.name == f"{name}_count" else 0
        before = self._before.get(name, (0.0, 0.0))
        self._before[name] = total, count
        return (total - before[0]) / (count - before[1]) if count > before[1] else float("nan")


def _settings(folder: Path) -> Settings:
    return Settings.model_validate(
        {
            "log_dir": str(folder / "logs"),
            "broker": {
                "log.cleaner.backoff.ms": "1s",
                "log.initial.task.delay.ms": 0,
                "log.retention.check.interval.ms": "5s",
                "dead.letter.retention.ms": "30s",
            },
            "topics": {
                "kept": {
                    "partitions": 2,
                    "config": {
                        "cleanup.policy": "compact",
                        "segment.bytes": "64KiB",  # a file has 4 KiB besides its records
                        "min.cleanable.dirty.ratio": 0.3,
                        "producer.id.expiration.ms": f"{_KEPT_MINUTES:g}m",
                        "delete.retention.ms": "30s",
                        "file.delete.delay.ms": 0,
                    },
                },
                "passing": {
                    "config": {"cleanup.policy": "delete", "segment.bytes": "16KiB", "retention.ms": "30s", "file.delete.delay.ms": 0}
                },
            },
            "sources": [
                {"name": "ticks", "topic": "passing", "format": "rate", "rows_per_second": 500, "trigger": "2 seconds"},
                {
                    "name": "drops",
                    "topic": "kept",
                    "format": "json",
                    "path": str(folder / "incoming"),
                    "schema": "key string, amount int",
                    "key": ["key"],
                    "trigger": "2 seconds",
                },
            ],
            "http": {"listen": ""},
        }
    )


def _live_mib(spark: SparkSession) -> float:
    java: Any = spark.sparkContext._jvm.java.lang  # type: ignore[union-attr]  # noqa: SLF001  no public way
    java.System.gc()
    heap = java.Runtime.getRuntime()
    return float(heap.totalMemory() - heap.freeMemory()) / _MIB


def _python_mib() -> float:
    resident = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(resident.split()[1]) / 1024


def _write(topic: Topic, spark: SparkSession, draw: random.Random, number: int) -> None:
    """Append updates and tombstones; every third time in a transaction of its own id, of which every other is aborted."""
    keys = [f"k{draw.randrange(2000)}" for _ in range(300)]
    batch = rows(" ".join(f"{key}={'∅' if draw.random() < 0.05 else f'{number}-{draw.random():.12f}'}" for key in keys))
    if number % 3:
        topic.append(batch)
        return
    txn = topic.transaction(f"load-{number}")
    txn.append(batch)
    (txn.abort if number % 6 else txn.commit)()


def _drop(incoming: Path, number: int) -> None:
    """Bring a file with one record and one that a compacted topic refuses, as it has no key."""
    written = incoming.parent / "next.json"
    written.write_text(f'{{"key": "dropped", "amount": {number}}}\n{{"amount": {number}}}\n')
    written.rename(incoming / f"{number:06}.json")


def _tidied(log: TopicLog, *, daily: bool) -> None:
    """Do what the service does each hour, and `daily`."""
    now_ms, kept_ms = clock.now_ms(), int(_KEPT_MINUTES * 60_000)
    for table in (log.paths.log, log.paths.ledger, log.paths.dead_letters):
        _age(Path(table, "_delta_log").glob("0*"))
        if daily:
            _age(one for one in Path(table).rglob("*.parquet") if one.parent.name != "_delta_log")
    with log.append_lock():
        expire_dead_letters(log.paths.dead_letters, log.storage_options, before_ms=now_ms - 30_000)
    upkeep.vacuum(log, now_ms=now_ms, orphans=daily, limits=_LIMITS)
    upkeep.compact_ledger(log, now_ms=now_ms, id_expiration_ms=kept_ms, least_files=20, limits=_LIMITS)


def _files(*folders: Path) -> int:
    return sum(1 for folder in folders for found in folder.rglob("*") if found.is_file() and not found.name.startswith("."))


def _age(files: Iterable[Path]) -> None:
    """Date what is older than `_KEPT_MINUTES` eight days back: commits with their checksums and checkpoints, or data files."""
    now = time.time()
    for file in files:
        with contextlib.suppress(FileNotFoundError):  # Delta's clean-up came first
            written = file.stat().st_mtime
            if _KEPT_MINUTES * 60 < now - written < _EIGHT_DAYS:
                os.utime(file, (written - _EIGHT_DAYS, written - _EIGHT_DAYS))


def soak(spark: SparkSession, folder: Path, *, minutes: float, every_seconds: float) -> list[_Sample]:
    """Run the service with writers for so long, and return what was measured."""
    (folder / "incoming").mkdir()
    service = Service(_settings(folder))
    service.watcher.interval_seconds = 1.0
    service.scheduler.limits = _LIMITS
    running = threading.Thread(target=service.run)
    running.start()
    samples: list[_Sample] = []
    totals = _Totals()
    draw = random.Random(1)
    begun = sampled = time.monotonic()
    number = 0
    try:
        topic = service.logs.topic("kept")
        while time.monotonic() - begun < 60 * minutes or not topic.receipts():
            assert running.is_alive(), "the service died"
            _write(topic, spark, draw, number)
            _drop(folder / "incoming", number)
            number += 1
            if time.monotonic() - sampled >= every_seconds:
                topics = list(service.scheduler.topics())
                for log in topics:
                    _tidied(log, daily=len(samples) % 10 == 9)
                roots = [Path(log.paths.root) for log in topics]
                samples.append(
                    _Sample(
                        minute=(time.monotonic() - begun) / 60,
                        python_mib=_python_mib(),
                        live_heap_mib=_live_mib(spark),
                        append_seconds=totals.mean("lastword_append_seconds"),
                        clean_seconds=totals.mean("lastword_log_cleaner_clean_seconds"),
                        log_files=_files(*(root / "log/_delta_log" for root in roots)),
                        files=sum(len(log.snapshot().files.path) for log in topics),
                        files_on_disk=sum(1 for root in roots for _ in root.glob("log/partition=*/**/*.parquet")),
                        ledger_rows=sum(len(log.ledger.rows()) for log in topics),
                        ledger_log_files=_files(*(root / "ledger/_delta_log" for root in roots)),
                        dead_letters=sum(1 for root in roots for _ in root.glob("dead_letters/*.parquet")),
                        dead_letter_log_files=_files(*(root / "dead_letters/_delta_log" for root in roots)),
                        query_files=_files(*(root / "queries" for root in roots)),
                    )
                )
                sampled = time.monotonic()
        assert service.scheduler.counts.failures == 0, service.scheduler.counts.last_failure
        assert service.dead_cleaners == 0
        assert not any(one.error for one in service.watcher.standing.topics)
    finally:
        service.stop()
        running.join(120)
    assert not running.is_alive()
    for name in ("kept", "passing"):
        report = service.logs.topic(name).verify()
        assert report.ok, report.problems
    assert service.logs.topic("kept").receipts()
    return samples


@pytest.fixture(autouse=True)
def _nothing_is_kept_for_days(monkeypatch: pytest.MonkeyPatch) -> None:
    for table in (schema._LOG_PROPERTIES, schema._SMALL_TABLE_PROPERTIES, schema._DEAD_LETTER_PROPERTIES):  # noqa: SLF001
        monkeypatch.setitem(table, "delta.checkpointInterval", "10")


def test_a_minute_of_everything_at_once(spark: SparkSession, tmp_path: Path) -> None:
    """Nothing fails, nothing dies, and the invariants hold."""
    assert soak(spark, tmp_path, minutes=0.5, every_seconds=30)


@pytest.mark.torture
@pytest.mark.timeout(3 * 3600)
def test_an_hour_of_everything_at_once_is_flat(spark: SparkSession, tmp_path: Path) -> None:
    """The last third against the second: memory within 15 %, times within a half, files, commits, decisions and refusals bounded."""
    minutes = float(os.environ.get("LASTWORD_SOAK_MINUTES", "60"))
    samples = soak(spark, tmp_path, minutes=minutes, every_seconds=20)
    if plot := os.environ.get("LASTWORD_SOAK_PLOT"):
        _plot(samples, Path(plot))
    third = len(samples) // 3
    thirds = samples[:third], samples[third : 2 * third], samples[2 * third :]

    def median(name: str, part: Sequence[_Sample]) -> float:
        return float(statistics.median(getattr(one, name) for one in part if not math.isnan(getattr(one, name))))

    found = {}
    for name in (one for one in _Sample.__annotations__ if one != "minute"):
        medians = [median(name, part) for part in thirds]
        found[name] = medians[2] / medians[1]
        print(f"{name:>22}: {' → '.join(f'{one:.6g}' for one in medians)}")  # noqa: T201
    assert found["python_mib"] < 1.15
    assert found["live_heap_mib"] < 1.15
    assert found["append_seconds"] < 1.5
    assert found["clean_seconds"] < 1.5
    for name in ("files", "files_on_disk", "log_files", "ledger_rows", "ledger_log_files", "dead_letters", "dead_letter_log_files"):
        assert found[name] < 1.5, name
    assert found["query_files"] < 1.5  # their number; Spark's source of files writes names that it read into ever longer ones


def _plot(samples: Sequence[_Sample], target: Path) -> None:
    """Draw the samples."""
    import matplotlib as mpl  # noqa: PLC0415  only where a plot is asked for

    mpl.use("svg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(4, 1, figsize=(8, 10), sharex=True, layout="constrained")
    minutes = [one.minute for one in samples]
    shown = (
        ("MiB", (("python_mib", "Python, resident"), ("live_heap_mib", "JVM heap, live"))),
        ("seconds", (("append_seconds", "append"), ("clean_seconds", "round of cleaning"))),
        ("count", (("files", "files of the logs"), ("files_on_disk", "Parquet files on disk"), ("log_files", "files in _delta_log"))),
        ("count", (("ledger_rows", "rows of the ledgers"), ("dead_letters", "files of refused rows"), ("query_files", "files of queries"))),
    )
    for axis, (unit, lines) in zip(axes, shown, strict=True):
        for name, label in lines:
            axis.plot(minutes, [getattr(one, name) for one in samples], label=label)
        axis.set_ylabel(unit)
        axis.set_ylim(bottom=0)
        axis.legend(loc="best")
    axes[-1].set_xlabel("minutes")
    figure.savefig(target, metadata={"Date": None})
