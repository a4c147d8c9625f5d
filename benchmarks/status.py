"""What being watched costs: the status page and /metrics of 200 topics × 12 partitions, and what a scrape each second takes from the work.

(a) The overview, a topic and /metrics over 200 × 12 partitions from the cached standing, the first time after a new standing and again:
    under 300 ms.
(b) Ten appends and a cleaning, again and again for five minutes, in turns with and without a scrape each second: throughput changes by less
    than 3 %.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
import urllib.request
from typing import Any

from benchmarks.measure import WHOLE, Scale, in_turns, report
from lastword import LogDir, clock, spark_session
from lastword.status.server import StatusApp, StatusServer
from lastword.status.watcher import Watcher
from tests.lastword.status.standings import NOW_MS, partition, standing, topic

_TOPICS = 200
_PARTITIONS = 12
_APPENDS = 10
_ROUNDS = 16


def run(scale: Scale = WHOLE) -> None:
    """Measure both."""
    pages(scale)
    scraped(scale)


def _get(url: str) -> float:
    begun = time.perf_counter()
    with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310  loopback
        answer.read()
    return time.perf_counter() - begun


def pages(scale: Scale) -> None:
    """Measure (a)."""
    topics = [
        topic(f"topic-{number:03}", logs=[partition(partition=one) for one in range(_PARTITIONS)])
        for number in range(scale.rows(_TOPICS, least=4))
    ]

    class Fixed:
        standing = standing(*topics)

        def history(self, _topic: str) -> tuple[Any, ...]:
            return ()

    watcher: Any = Fixed()
    server = StatusServer(StatusApp(watcher=watcher, now_ms=lambda: NOW_MS, heartbeat_ms=lambda: NOW_MS), "127.0.0.1:0")
    server.start()
    rows = []
    for path in ("/", "/topics/topic-003", "/metrics", "/status.json"):
        first, again = [], []
        for number in range(scale.turns(6)):
            watcher.standing = standing(*topics, taken_ms=NOW_MS + number)
            first.append(_get(server.url + path))
            again.append(_get(server.url + path))
        rows.append([path, f"{1000 * statistics.median(first):.0f}", f"{1000 * statistics.median(again):.0f}", "< 300 ms"])
    server.stop()
    report(f"(a) {len(topics)} topics × {_PARTITIONS} partitions", rows, ["path", "new standing ms", "again ms", "bound"])


def scraped(scale: Scale) -> None:
    """Measure (b)."""
    spark = spark_session("lastword-bench", settings={"spark.log.level": "ERROR"})
    with tempfile.TemporaryDirectory() as folder:
        logs = LogDir(spark, folder)
        one = logs.create_topic("scraped", partitions=4, config={"cleanup.policy": "compact", "segment.bytes": "4MiB"})
        watcher = Watcher(log_dir=folder, topics=lambda: [one.log], cleaner=logs.cleaner, clock_ms=clock.now_ms)
        watcher.start()
        server = StatusServer(StatusApp(watcher=watcher, now_ms=clock.now_ms, heartbeat_ms=clock.now_ms), "127.0.0.1:0")
        server.start()
        scraping, over = threading.Event(), threading.Event()

        def scrape() -> None:
            while not over.wait(1):
                if scraping.is_set():
                    _get(f"{server.url}/metrics")

        thread = threading.Thread(target=scrape, daemon=True)
        thread.start()
        rows = scale.rows(20_000)
        batch = spark.range(rows).selectExpr("cast(id % 5000 as string) key", "repeat(cast(rand() as string), 8) value").persist()
        batch.count()

        def cycle() -> None:
            for _ in range(_APPENDS):
                one.append(batch)
            one.clean()

        def scraped_cycle() -> None:
            scraping.set()
            cycle()
            scraping.clear()

        timings = in_turns({"alone": cycle, "scraped": scraped_cycle}, warm_up=scale.warm_up(2), rounds=max(2, scale.turns(_ROUNDS)))
        over.set()
        thread.join()
        server.stop()
        watcher.stop()
    alone, watched = (rows * _APPENDS / timings[name].median for name in ("alone", "scraped"))
    changes = [mine / theirs - 1 for theirs, mine in zip(timings["alone"].seconds, timings["scraped"].seconds, strict=True)]
    low, _, high = statistics.quantiles(changes, n=4)
    spent = sum(timings["alone"].seconds + timings["scraped"].seconds)
    row = [f"{spent:.0f}", f"{alone:,.0f}", f"{watched:,.0f}", f"{watched / alone - 1:+.1%}", f"{-high:+.1%} to {-low:+.1%}", "± 3 %"]
    columns = ["s", "rows/s alone", "rows/s scraped", "change", "half of the turns", "bound"]
    report("(b) appends and cleanings, scraped each second", [row], columns)
