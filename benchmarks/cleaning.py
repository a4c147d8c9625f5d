"""What cleaning costs: against a plain rewrite, against MERGE, as the clean section grows, in planning and in memory.

(a) 4 M records of about 200 B, 90 % superseded, 4 partitions × 20 segments, against a plain Spark rewrite that reads the same and keeps
    10 %: at most 1.6×, aim 1.25×.
(b) Upkeep of a latest-per-key table, 20 micro-batches of 200,000 updates: appends and cleanings against MERGE in foreachBatch; over 400,000
    keys at least 3× cheaper, over 2 M keys at least 5×.
(c) 100,000 dirty records whose keys live in 5 % of the clean segments, the clean section 1 M, 4 M, 8 M: less than 1.5× from first to last,
    and the segments written again are those 5 %.
(d) Planning 1,000 partitions × 100 segments from loaded metadata: under 1 s and 300 MB.
(e) Peak memory of a cleaning at one map budget, for 1 M and 16 M records: the same.
(f) The throttle over a minute: within 10 % of the limit.

A log is cleaned several times by taking the cleaning back with Delta's RESTORE, which is not measured.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from typing import TYPE_CHECKING

import numpy as np
from delta.tables import DeltaTable
from pyspark.sql import functions as F

from benchmarks.measure import in_turns, report
from compaction.config import parse_service_config, parse_topic_config
from compaction.planner import plan_cleaning
from lastword import LogDir, clock, spark_session
from storage.ledger import Decision, Kind, fold
from storage.snapshot import Files, LogSnapshot
from storage.topic_log import partition_logs
from streaming.cleaner import Cleaner
from streaming.tending import Tending

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from lastword import Topic

_PARTITIONS = 4
_MIB = 2**20
_COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}
_ROUNDS = 3
_THROTTLED_SECONDS = 75


def run() -> None:
    """Measure and print everything; minutes."""
    for one in (planning, against_rewrite, incremental, against_merge, throttled, memory):
        one()


def _session() -> SparkSession:
    return spark_session("lastword-bench", settings={"spark.log.level": "ERROR", "spark.driver.memory": "4g"})


def changes(spark: SparkSession, count: int, first_key: int, keys: int, seed: int) -> DataFrame:
    """Return `count` changes of about 200 B over `keys` keys from `first_key` on, a key as often as every other one."""
    key = F.lit(first_key) + F.pmod((F.col("id") + F.lit(seed * count)) * F.lit(7_919), F.lit(keys))
    return spark.range(count).select(
        F.substring(F.sha2(key.cast("string"), 256), 1, 16).cast("binary").alias("key"),
        F.concat(F.sha2(F.concat(F.col("id"), F.lit(f"-{seed}")), 512), F.sha2(F.concat(F.col("id"), F.lit(f"+{seed}")), 256))
        .cast("binary")
        .alias("value"),
    )


def _again(spark: SparkSession, topic: Topic, version: int) -> None:
    """Take everything after `version` back."""
    DeltaTable.forPath(spark, topic.log.paths.log).restoreToVersion(version)
    topic.log.look_back()


def against_rewrite() -> None:
    """Measure (a)."""
    spark = _session()
    with tempfile.TemporaryDirectory() as folder:
        topic = LogDir(spark, f"{folder}/logs").create_topic("a", partitions=_PARTITIONS, config=_COMPACT)
        for number in range(20):
            topic.append(changes(spark, 200_000, 0, 400_000, number), now_ms=clock.now_ms())
            topic.roll()
        version = topic.log.snapshot().version
        size = topic.describe().size_bytes
        receipts = []
        seconds: list[float] = []

        def clean() -> None:
            begun = time.perf_counter()
            receipts[:] = topic.clean()
            seconds.append(time.perf_counter() - begun)

        def rewrite() -> None:
            rows = spark.read.format("delta").option("versionAsOf", version).load(topic.log.paths.log)
            kept = rows.where(F.pmod(F.col("offset"), F.lit(10)) == 0)
            kept.write.format("delta").mode("overwrite").partitionBy("partition").save(f"{folder}/plain")

        plain = []
        for number in range(_ROUNDS + 1):
            begun = time.perf_counter()
            rewrite()
            plain.append(time.perf_counter() - begun)
            clean()
            if number < _ROUNDS:
                _again(spark, topic, version)
        ours, theirs = sorted(seconds[1:])[_ROUNDS // 2], sorted(plain[1:])[_ROUNDS // 2]
        kept = sum(one.records_after for one in receipts)
        index = max(one.index_ms for one in receipts) / 1000
        row = [
            f"{size / _MIB:.0f} MiB",
            f"{kept:,}",
            f"{theirs:.2f}",
            f"{ours:.2f}",
            f"{index:.2f}",
            f"{ours / theirs:.2f}",
            "≤ 1.6 (aim 1.25)",
        ]
        report(
            "(a) cleaning 4 M records, 90 % superseded", [row], ["log", "left", "rewrite s", "clean s", "of it pass 1", "ratio", "bound"]
        )


def against_merge() -> None:
    """Measure (b)."""
    spark = _session()
    rows = []
    for keys, bound in ((400_000, "≥ 3"), (2_000_000, "≥ 5")):
        with tempfile.TemporaryDirectory() as folder:
            first = changes(spark, keys, 0, keys, -1)
            first.write.format("delta").save(f"{folder}/merge")
            topic = LogDir(spark, f"{folder}/logs").create_topic(
                "b", partitions=_PARTITIONS, config={"cleanup.policy": "compact", "segment.bytes": "16MiB"}
            )
            topic.append(first)
            topic.roll()
            topic.clean()
            target = DeltaTable.forPath(spark, f"{folder}/merge")
            merged = appended = cleaned = 0.0
            for number in range(21):
                batch = changes(spark, 200_000, (number * 61_003) % keys, min(keys, 200_000), number)
                begun = time.perf_counter()
                newest = batch.withColumn("__at", F.monotonically_increasing_id()).groupBy("key").agg(F.max_by("value", "__at").alias("value"))
                merge = target.alias("t").merge(newest.alias("s"), "t.key = s.key")
                merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
                middle = time.perf_counter()
                topic.append(batch)
                after = time.perf_counter()
                topic.clean()
                if number:  # the first one warms up
                    merged += middle - begun
                    appended += after - middle
                    cleaned += time.perf_counter() - after
            ours = appended + cleaned
            rows.append([f"{keys:,}", f"{merged:.1f}", f"{appended:.1f}", f"{cleaned:.1f}", f"{merged / ours:.1f}×", bound])
    report("(b) 20 micro-batches of 200,000 updates", rows, ["keys", "MERGE s", "appends s", "cleanings s", "cheaper", "bound"])


def incremental() -> None:
    """Measure (c)."""
    spark = _session()
    rows, medians = [], []
    for count in (1_000_000, 4_000_000, 8_000_000):
        with tempfile.TemporaryDirectory() as folder:
            topic = LogDir(spark, f"{folder}/logs").create_topic("c", partitions=_PARTITIONS, config=_COMPACT)
            each = count // 20
            for number in range(20):
                topic.append(changes(spark, each, number * each, each, number))
                topic.roll()
            smallest = min(one.size_bytes for partition in topic.describe().partitions for one in partition.segments)
            topic.alter_config({"segment.bytes": int(smallest * 1.5)})
            topic.clean()
            topic.alter_config({"segment.bytes": None})
            topic.append(changes(spark, 100_000, 0, min(each, 100_000), 99))
            topic.roll()
            topic.alter_config({"segment.bytes": int(smallest * 1.5)})
            version = topic.log.snapshot().version
            before = {(row[0], row[1]) for row in _slices(topic)}
            seconds = []
            rewritten = 0
            for number in range(_ROUNDS + 1):
                begun = time.perf_counter()
                receipts = topic.clean(force=True)
                seconds.append(time.perf_counter() - begun)
                rewritten = sum(one.segments_before for one in receipts) - _PARTITIONS
                if number < _ROUNDS:
                    _again(spark, topic, version)
            median = sorted(seconds[1:])[_ROUNDS // 2]
            medians.append(median)
            rows.append(
                [f"{count:,}", f"{median:.2f}", f"{rewritten} of {len(before) - _PARTITIONS}", f"{median / medians[0]:.2f}", "< 1.5"]
            )
    report(
        "(c) 100,000 dirty records, keys in 5 % of the segments", rows, ["clean section", "s", "clean segments written", "ratio", "bound"]
    )


def _slices(topic: Topic) -> list[tuple[int, int]]:
    files = topic.log.snapshot().files
    return list(zip(files.partition.tolist(), files.slice.tolist(), strict=True))


def planning() -> None:
    """Measure (d)."""
    partitions, segments = 1_000, 100
    count = partitions * segments
    partition = np.repeat(np.arange(partitions), segments)
    base = np.tile(np.arange(segments) * 1_000, partitions)
    zeros = np.zeros(count, dtype=np.int64)
    files = Files(
        partition=partition,
        segment=base,
        slice=base,
        size_bytes=zeros + _MIB,
        record_count=zeros + 1_000,
        first_offset=base,
        last_offset=base + 999,
        min_timestamp_ms=zeros + 1,
        max_timestamp_ms=zeros + 2,
        appended_at_ms=zeros + 1,
        delete_horizon_ms=zeros + np.iinfo(np.int64).min,
        empty_rows=zeros,
        producer_rows=zeros,
        max_producer_id=zeros - 1,
        path=np.array([""] * count, dtype=object),
    )
    snapshot = LogSnapshot(version=1, append_txn=1, maintenance_txn=1, queries={}, files=files)
    decisions = fold([Decision(kind=Kind.CREATE, time_ms=0, details={"partitions": partitions, "topic_id": "x"}, sequence=1)])
    config = parse_topic_config(_COMPACT)
    ends = snapshot.log_end_offsets(partitions)

    def plan() -> int:
        logs = partition_logs("d", config, snapshot, decisions, ends, holders={}, now_ms=10)
        return len(plan_cleaning(logs, now_ms=10, entries=10**9).chosen)

    timings = in_turns({"plan": plan}, warm_up=1, rounds=5)["plan"]
    tracemalloc.start()
    chosen = plan()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    row = [f"{partitions:,} × {segments}", f"{chosen:,}", f"{timings.median:.2f}", f"{peak / _MIB:.0f} MiB", "< 1 s, < 300 MB"]
    report("(d) planning", [row], ["partitions × segments", "chosen", "s", "peak", "bound"])


def throttled() -> None:
    """Measure (f): rounds for a minute and more, at a limit that they would exceed by far."""
    spark = _session()
    limit = 4 * _MIB
    config, _ = parse_service_config({"log.cleaner.io.max.bytes.per.second": limit})
    with tempfile.TemporaryDirectory() as folder:
        logs = LogDir(spark, f"{folder}/logs")
        topic = logs.create_topic("f", partitions=24, config=_COMPACT)
        counted: list[int] = []
        cleaner = Cleaner(config)
        original = cleaner.clean

        def counting(*given: object, **named: object) -> object:
            receipts = original(*given, **named)  # type: ignore[arg-type]
            counted.append(sum(one.read_bytes + (one.bytes_after or 0) for one in receipts))
            return receipts

        cleaner.clean = counting  # type: ignore[assignment, method-assign]
        tending = Tending(spark=spark, cleaner=cleaner, config=config, topics=lambda: [topic.log], clock_ms=clock.now_ms)
        for number in range(2):
            topic.append(changes(spark, 400_000, 0, 200_000, number))
            topic.roll()
        total, begun = 0, time.perf_counter()
        while time.perf_counter() - begun < _THROTTLED_SECONDS:
            tending.tick()
            total, elapsed = sum(counted), time.perf_counter() - begun
            topic.append(changes(spark, 400_000, 0, 200_000, 7))
            topic.roll()
        rate = total / elapsed
        row = [f"{limit / _MIB:.1f}", f"{rate / _MIB:.2f}", f"{elapsed:.0f}", f"{100 * (rate / limit - 1):+.1f} %", "± 10 %"]
        report("(f) log.cleaner.io.max.bytes.per.second", [row], ["limit MiB/s", "average MiB/s", "over s", "off by", "bound"])


def memory() -> None:
    """Measure (e): each size in a process of its own, with the same map budget and the same heap."""
    rows = []
    for count in (1_000_000, 16_000_000):
        done = subprocess.run(  # noqa: S603  our own interpreter
            [sys.executable, "-m", "benchmarks.cleaning", str(count)], capture_output=True, text=True, check=True
        )
        rows.append([f"{count:,}", *done.stdout.strip().splitlines()[-1].split()])
    report("(e) memory at one map budget (16 MiB), heap 1 GiB", rows, ["records", "rounds", "peak live heap MiB", "driver's Python MiB"])


def _clean_and_watch(count: int) -> None:
    """Clean `count` records and print rounds, the highest heap after a collection, and Python's peak."""
    spark = spark_session("lastword-memory", settings={"spark.log.level": "ERROR", "spark.driver.memory": "1g"})
    beans = spark.sparkContext._jvm.java.lang.management.ManagementFactory  # type: ignore[union-attr]  # noqa: SLF001
    peak, over = 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        pools = [one for one in beans.getMemoryPoolMXBeans() if "Old" in one.getName() or "Tenured" in one.getName()]
        while not over.wait(0.2):
            peak = max(peak, *(one.getCollectionUsage().getUsed() for one in pools))

    with tempfile.TemporaryDirectory() as folder:
        logs = LogDir(spark, f"{folder}/logs", settings={"log.cleaner.dedupe.buffer.size": "16MiB"})
        topic = logs.create_topic("e", partitions=_PARTITIONS, config=_COMPACT)
        for number in range(count // 1_000_000):
            topic.append(changes(spark, 1_000_000, number * 500_000, 500_000, number))
            topic.roll()
        spark.sparkContext._jvm.java.lang.System.gc()  # type: ignore[union-attr]  # noqa: SLF001
        threading.Thread(target=watch, daemon=True).start()
        rounds = 0
        while topic.clean():
            rounds += 1
        over.set()
    print(rounds, round(peak / _MIB), round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))


_PARTS: dict[str, Callable[[], None]] = {
    "planning": planning,
    "rewrite": against_rewrite,
    "incremental": incremental,
    "merge": against_merge,
    "throttle": throttled,
    "memory": memory,
}

if __name__ == "__main__":
    if sys.argv[1] in _PARTS:
        _PARTS[sys.argv[1]]()
    else:
        _clean_and_watch(int(sys.argv[1]))
