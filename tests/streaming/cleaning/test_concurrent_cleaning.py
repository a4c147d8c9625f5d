"""Appends each second while the service cleans: nobody waits for the other, and who tails the log sees every record once."""

from __future__ import annotations

import os
import statistics
import threading
import time
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from lastword.service.service import Service
from lastword.service.settings import Settings
from lastword.streaming.ticker import APPEND_POOL, with_pool

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from lastword import Topic

_ROWS = 500
_KEYS = 2_000


def _append(spark: SparkSession, topic: Topic, number: int) -> float:
    """Append a micro-batch and return how long it took."""
    keys = F.pmod(F.col("id") * 7_919 + number, F.lit(_KEYS)).cast("string")
    frame = spark.range(_ROWS).select(keys.alias("key"), F.concat(F.lit(f"{number}-"), F.col("id")).alias("value"))
    begun = time.monotonic()
    topic.append(frame)
    return time.monotonic() - begun


def _tailed(spark: SparkSession) -> tuple[int, int]:
    """Return how many rows a Delta stream that began with the log has seen by now, and how many different ones."""
    found = spark.table("tailed").agg(F.count(F.lit(1)), F.countDistinct("partition", "offset")).collect()[0]
    return found[0], found[1]


def _run(spark: SparkSession, folder: Path, *, calm: int, seconds: int) -> tuple[list[float], list[float], int]:
    """Append each second, first without a cleaner, then with one; return the times of both, and the rounds of the cleaner."""
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.1, "segment.bytes": "32KiB"}
    settings = {
        "log_dir": str(folder),
        "broker": {"log.cleaner.backoff.ms": 500},
        "topics": {"busy": {"partitions": 2, "config": config}, "idle": {}},
        "sources": [{"name": "idle", "topic": "idle", "format": "rate", "trigger": "1 hour"}],  # the cleaner is a query then
    }
    service = Service(Settings.model_validate(settings))
    topic = service.logs.topic("busy")
    tail = spark.readStream.format("delta").load(topic.log.paths.log).select("partition", "offset")
    query = tail.writeStream.format("memory").queryName("tailed").trigger(processingTime="2 seconds").start()
    with_pool(spark, APPEND_POOL)
    times: dict[bool, list[float]] = {False: [], True: []}
    running = threading.Thread(target=service.run)
    end = time.monotonic() + seconds
    number = 0
    try:
        while number < calm + 5 or time.monotonic() < end:
            if number == calm + 5:
                running.start()
            took = _append(spark, topic, number)
            if number >= 5:  # the first ones warm up
                times[number >= calm + 5].append(took)
            number += 1
            time.sleep(max(0.0, 1 - took))
    finally:
        service.stop()
        running.join()
        query.processAllAvailable()
    assert _tailed(spark) == (number * _ROWS, number * _ROWS)
    query.stop()
    report = topic.verify()
    assert report.ok, report.problems
    assert topic.latest().count() == _KEYS
    return times[False], times[True], service.scheduler.counts.rounds


def test_appends_and_cleaning_side_by_side_lose_and_double_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """For some seconds."""
    _, _, rounds = _run(spark, tmp_path / "logs", calm=1, seconds=20)
    assert rounds >= 1


@pytest.mark.torture
@pytest.mark.timeout(3_600)
def test_ten_minutes_of_appends_while_the_cleaner_runs(spark: SparkSession, tmp_path: Path) -> None:
    """LASTWORD_MINUTES of them; the slowest append of a hundred takes less than three times the median of those without cleaning."""
    minutes = float(os.environ.get("LASTWORD_MINUTES", "10"))
    calm, busy, rounds = _run(spark, tmp_path / "logs", calm=30, seconds=int(60 * minutes))
    median, slowest = statistics.median(calm), statistics.quantiles(busy, n=100)[98]
    print(f"{len(busy)} appends, {rounds} rounds; median without cleaning {median:.3f} s, 99th percentile with {slowest:.3f} s")  # noqa: T201
    assert rounds > 10
    assert slowest < 3 * median
