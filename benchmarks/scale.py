"""Times and peak memory (VmHWM) with large numbers of topics, partitions, records and micro-batches; only (c) starts a JVM.

(a) A service with 1,000 topics of 4 partitions: until each partition was cleaned once, a round with nothing to do, and its page.
(b) A topic of 10,000 partitions: an append that reaches each of them, the next one, a cleaning, and the latest records.
(c) A topic of 3,000 partitions on Spark: the same by DataFrames.
(d) A log of 100 M records of 10 M keys: cleaning, the typed table, and the records of a few keys.
(e) A week of micro-batches every 10 seconds, replayed by a clock that is set, with a service's upkeep: files and commits that are left.
    Delta keeps commits for seven days. VACUUM goes by the clock of the machine, so that files which left the log lie on the disk.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from benchmarks.measure import WHOLE, Scale, in_a_process, report
from benchmarks.memory import read_resident_mib
from lastword import LogDir, spark_session
from lastword.streaming.cleaning.scheduler import MaintenanceScheduler
from tests.processes import free_port

if TYPE_CHECKING:
    from collections.abc import Callable

_COMPACT: Final = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.5"}
_BEGIN_MS: Final = 1_700_000_000_000
_SECOND_MS: Final = 1000
_MOST_SECONDS: Final = 1_200
_TOPICS, _IDLE_SECONDS = 1_000, 20.0


def run(scale: Scale = WHOLE) -> None:
    """Measure many topics, many partitions without Spark and with it, many records, and many micro-batches."""
    for title, parts, count in (
        ("(a) topics of 4 partitions in a service", ("make_topics", "topics"), scale.rows(_TOPICS)),
        ("(b) partitions of a topic", ("partitions",), scale.rows(10_000)),
        ("(c) partitions of a topic on Spark", ("partitions_on_spark",), scale.rows(3_000)),
        ("(d) records of a log", ("make_records", "records"), scale.rows(100_000_000)),
        ("(e) micro-batches of 20 records, every 10 s", ("week",), scale.rows(60_480)),
    ):
        with tempfile.TemporaryDirectory() as folder:
            rows = [[*figure] for part in parts for figure in in_a_process("benchmarks.scale", part, folder, str(count)).items()]
        report(f"{title}: {count:,}", rows, ["what", "seen"])


def _measure(thing: Callable[[], Any]) -> tuple[str, Any]:
    begun = time.perf_counter()
    result = thing()
    return f"{time.perf_counter() - begun:.2f} s", result


def _add_peak(figures: dict[str, str]) -> dict[str, str]:
    return {**figures, "peak of the process": f"{read_resident_mib():.0f} MiB"}


def _pairs(keys: np.ndarray[Any, Any], number: int) -> pa.Table:
    values = pa.array([f'{{"n":{number},"note":"{"x" * 60}"}}'] * len(keys))
    return pa.table({"key": pa.array(keys).cast(pa.string()), "value": values})


def _make_topics(folder: str, count: int) -> dict[str, str]:
    logs = LogDir(folder)

    def make() -> None:
        for number in range(count):
            topic = logs.create_topic(f"topic-{number:04}", partitions=4, config=_COMPACT)
            for turn in range(3):
                topic.append(_pairs(np.arange(100), turn))
            topic.roll()

    return {"made, with three appends each": _measure(make)[0]}


def _measure_topics(folder: str, count: int) -> dict[str, str]:
    config = Path(folder, "lastword.toml")
    web = f"127.0.0.1:{free_port()}"
    config.write_text(f'log.dir = "."\nhttp.listen = "{web}"\n', encoding="ascii")
    begun = time.perf_counter()
    with subprocess.Popen([sys.executable, "-m", "lastword", "run", "-c", str(config)], stderr=subprocess.DEVNULL) as service:  # noqa: S603  ours
        try:
            while _clean_topics(web) < count:
                assert service.poll() is None and time.perf_counter() - begun < _MOST_SECONDS, "not all is cleaned"  # noqa: S101, PT018
                time.sleep(0.5)
            cleaned = time.perf_counter() - begun
            seconds = _IDLE_SECONDS if count >= _TOPICS else 1.0
            time.sleep(seconds / 4)
            spent = _processor_seconds(service.pid)
            time.sleep(seconds)
            idle = (_processor_seconds(service.pid) - spent) / seconds
            pages = {path: _measure(functools.partial(_get, web, path))[0] for path in ("/", "/topics/topic-0003", "/metrics")}
            peak = read_resident_mib(process=service.pid)
        finally:
            service.terminate()
    return {
        "from the start until each partition was cleaned": f"{cleaned:.1f} s",
        "with nothing to do": f"{idle:.0%} of a core",
        **{f"page {path}": took for path, took in pages.items()},
        "peak of the service": f"{peak:.0f} MiB",
    }


def _get(web: str, path: str) -> str:
    with urllib.request.urlopen(f"http://{web}{path}", timeout=60) as answer:
        return str(answer.read().decode())


def _clean_topics(web: str) -> int:
    """Return of how many topics the service has counted at least a cleaning for each partition; 0 while it does not answer."""
    try:
        lines = _get(web, "/metrics").splitlines()
    except OSError:
        return 0
    return sum(float(line.split()[-1]) >= 4 for line in lines if line.startswith("lastword_log_cleaner_cleanings_total{"))  # noqa: PLR2004


def _list_children(process: int) -> list[int]:
    return [int(child) for listed in Path(f"/proc/{process}/task").glob("*/children") for child in listed.read_text("ascii").split()]


def _processor_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _measure_partitions(folder: str, count: int) -> dict[str, str]:
    logs = LogDir(folder)
    topic = logs.create_topic("wide", partitions=count, config=_COMPACT)
    rows = _pairs(np.arange(count * 10), 0)
    found = {
        "first append, of ten records each": _measure(lambda: topic.append(rows))[0],
        "second": _measure(lambda: topic.append(rows))[0],
    }
    found["an append of 20 records"] = _measure(lambda: topic.append(_pairs(np.arange(20), 1)))[0]
    found["roll"] = _measure(topic.roll)[0]
    found["cleaning"] = _measure(topic.clean)[0]
    found["latest()"], latest = _measure(topic.latest)
    found["describe()"] = _measure(topic.describe)[0]
    assert len(latest) == count * 10  # noqa: S101
    return _add_peak(found)


def _measure_partitions_on_spark(folder: str, count: int) -> dict[str, str]:
    started, spark = _measure(spark_session)
    figures = {"start of Spark": started}
    topic = LogDir(spark, folder).create_topic("wide", partitions=count, config=_COMPACT)
    rows, few = (spark.createDataFrame(_pairs(np.arange(number), 0)) for number in (count * 10, 20))
    for name in ("first append, of ten records each", "second", "third"):
        figures[name] = _measure(lambda: topic.append(rows))[0]
    figures["an append of 20 records"] = _measure(lambda: topic.append(few))[0]
    figures["roll"] = _measure(topic.roll)[0]
    figures["cleaning"] = _measure(topic.clean)[0]
    figures["latest(), counted"], latest = _measure(lambda: topic.latest().count())
    assert latest == count * 10  # noqa: S101
    figures["peak of the JVM"] = f"{max(read_resident_mib(process=child) for child in _list_children(os.getpid())):.0f} MiB"
    return _add_peak(figures)


def _make_records(folder: str, count: int) -> dict[str, str]:
    topic, chance, each = LogDir(folder).create_topic("long", partitions=4, config=_COMPACT), np.random.default_rng(1), min(count, 500_000)

    def make() -> None:
        for number in range(count // each):
            topic.append(_pairs(chance.integers(0, max(1, count // 10), each), number))
        topic.roll()

    made = _measure(make)[0]
    size = sum(path.stat().st_size for path in Path(folder).rglob("*.parquet"))
    return {"appended, 500,000 at a time": made, "size": f"{size / 2**30:.1f} GiB"}


def _measure_records(folder: str, count: int) -> dict[str, str]:
    topic = LogDir(folder).topic("long")

    def clean() -> int:
        rounds = 0
        while topic.clean():
            rounds += 1
        return rounds

    cleaned, rounds = _measure(clean)
    found = {"cleaned": f"{cleaned}, {rounds} rounds", "peak after cleaning": f"{read_resident_mib():.0f} MiB"}
    found["typed table"], _ = _measure(lambda: topic.materialize(f"{folder}/table", schema="n bigint, note string"))
    found["peak after the table"] = f"{read_resident_mib():.0f} MiB"
    found["one key"], key = _measure(lambda: topic.get("7"))
    assert key is not None  # noqa: S101
    assert topic.describe().record_count < count  # noqa: S101
    return found


def _measure_week(folder: str, count: int) -> dict[str, str]:
    now = [_BEGIN_MS]
    logs, chance = LogDir(folder, clock=lambda: now[0]), np.random.default_rng(1)
    topic = logs.create_topic("week", partitions=4, config={**_COMPACT, "segment.ms": "1h", "delete.retention.ms": "1h"})
    upkeep = MaintenanceScheduler(
        spark=None, cleaner=logs.cleaner, config=logs.service_config, topics=lambda: [topic.log], clock_ms=lambda: now[0]
    )
    seconds, sizes = list[float](), list[str]()
    for number in range(count):
        rows = _pairs(chance.integers(0, 1000, 20), number)
        begun = time.perf_counter()
        topic.append(rows)
        seconds.append(time.perf_counter() - begun)
        now[0] += 10 * _SECOND_MS
        if number % 6 == 0:  # once a minute, and not each 15 s as a service
            upkeep.tick()
        if (number + 1) % max(1, count // 7) == 0:
            files = len(topic.log.snapshot().files.path)
            commits = sum(1 for _ in Path(topic.log.paths.log, "_delta_log").iterdir())
            on_disk = sum(1 for _ in Path(topic.log.paths.log).rglob("*.parquet"))
            metadata = sum(path.stat().st_size for path in Path(topic.log.paths.log, "_delta_log").iterdir())
            sizes.append(f"{files}/{on_disk}/{commits}/{metadata // 2**20}")
    tail = max(1, count // 10)
    first, last = float(np.median(seconds[:tail])), float(np.median(seconds[-tail:]))
    found = {
        "each day: files of the log / on disk / entries of its _delta_log / MiB of these": " ".join(sizes),
        "an append in the first tenth, and in the last": f"{first * 1000:.1f} ms, {last * 1000:.1f} ms",
        "all appends": f"{sum(seconds):.0f} s",
    }
    return _add_peak(found)


if __name__ == "__main__":
    parts: dict[str, Callable[[str, int], dict[str, str]]] = {
        "make_topics": _make_topics,
        "topics": _measure_topics,
        "partitions": _measure_partitions,
        "partitions_on_spark": _measure_partitions_on_spark,
        "make_records": _make_records,
        "records": _measure_records,
        "week": _measure_week,
    }
    sys.stdout.write(json.dumps(parts[sys.argv[1]](sys.argv[2], int(sys.argv[3]))) + "\n")
