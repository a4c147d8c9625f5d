"""What cleaning costs: against a plain rewrite, against MERGE, as the clean section grows, and in planning.

(a) 4 M records of about 200 B, 90 % superseded, 4 partitions × 20 segments, against a plain Spark rewrite that reads the same and keeps
    10 %: at most half of its time. Processor time is given beside the time, as a machine that does other things too spoils the latter.
(b) Upkeep of a latest-per-key table, 20 micro-batches of 200,000 updates: appends and cleanings against MERGE in foreachBatch; over 400,000
    keys at least 4× cheaper, over 2 M keys at least 8×. Twice: with segments of the default size, rolled and cleaned after the last
    micro-batch, so that everything is clean then; and with segments of 32 MiB, which six micro-batches fill, where the cleaner is asked
    after each micro-batch and cleans when its dirty ratio (the default, 0.5) says so. All of it runs over 100,000 keys first, to warm up.
(c) 100,000 dirty records whose keys live in 5 % of the clean segments, the clean section 1 M, 4 M, 8 M: less than 1.5× from first to last,
    and the segments written again are those 5 %. The first cleaning of a process reads the keys of all clean files, later ones do not:
    the first is given beside the median of the later ones, and how long pass 1 takes of these.
(d) Planning 1,000 partitions × 100 segments from loaded metadata: under 1 s and 300 MB.
(f) The throttle over a minute: within 10 % of the limit. Memory is measured by benchmarks/memory.py, a cluster by benchmarks/cluster.py.

A log is cleaned several times by taking the cleaning back with Delta's RESTORE, which is not measured, nor is loading the state of the log
after it: both sides of a comparison begin with loaded metadata.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import tracemalloc
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from benchmarks.measure import WHOLE, Scale, headline, in_turns, report, timed
from lastword import LogDir, clock, spark_session
from lastword.compaction.config.topic_config import parse_service_config, parse_topic_config
from lastword.compaction.planning.planner import plan_cleaning
from lastword.compaction.planning.rate_limiter import RateLimiter
from lastword.storage.delta.snapshot import Files, LogSnapshot
from lastword.storage.ledger.decisions import Decision, Kind, fold
from lastword.storage.log.partition_logs import partition_logs
from lastword.streaming.cleaning.cleaner import Cleaner
from lastword.streaming.cleaning.rate_limit import SharedRate
from lastword.streaming.cleaning.scheduler import MaintenanceScheduler

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from pyspark.sql import DataFrame

    from lastword import SparkTopic, Topic
    from lastword.compaction.planning.receipt import CleaningReceipt

_PARTITIONS = 4
_MIB = 2**20
_COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}
_WARM_UP = 5
_ROUNDS = 3
_MICRO_BATCHES = 20


def stop_session() -> None:
    """Stop the session of the benchmark before: each part starts with one of its own settings."""
    running = SparkSession.getActiveSession()
    if running is not None:
        running.stop()


def _session() -> SparkSession:
    return spark_session(
        "lastword-bench",
        settings={
            "spark.log.level": "ERROR",
            "spark.driver.memory": "4g",
            # Spark's own, i.e. none: lastword's would make the large sorts of MERGE and of the plain rewrite slower.
            "spark.shuffle.spill.maxSizeInBytesForSpillThreshold": str(2**63 - 1),
        },
    )


def changes(spark: SparkSession, count: int, first_key: int, keys: int, seed: int, *, in_turn: bool = True) -> DataFrame:
    """Return `count` changes of about 200 B over `keys` keys from `first_key` on: a key as often as every other one, or at random."""
    number = F.col("id") + F.lit(seed * count)
    key = F.lit(first_key) + F.pmod(number * F.lit(7_919) if in_turn else F.xxhash64(number), F.lit(keys))
    return spark.range(count).select(
        F.substring(F.sha2(key.cast("string"), 256), 1, 16).cast("binary").alias("key"),
        F.concat(F.sha2(F.concat(F.col("id"), F.lit(f"-{seed}")), 512), F.sha2(F.concat(F.col("id"), F.lit(f"+{seed}")), 256))
        .cast("binary")
        .alias("value"),
    )


def _again(spark: SparkSession, topic: Topic, version: int) -> None:
    """Take everything after `version` back, and load the state of the log: nobody is to pay for the RESTORE.

    Delta writes no checksum of it, as it does of an append: the first to list files by their partition counts them all (`partition < 0`).
    """
    DeltaTable.forPath(spark, topic.log.paths.log).restoreToVersion(version)
    topic.log.sync_ledger_with_history()
    topic.describe()
    for nothing in ("offset < 0", "partition < 0"):
        spark.read.format("delta").load(topic.log.paths.log).where(nothing).count()


def against_rewrite(scale: Scale = WHOLE) -> None:
    """Measure (a): once with keys that come in turn, so that whole segments are superseded, and once at random, so that hardly any is."""
    spark = _session()
    rows = [_against_rewrite(spark, scale, in_turn=in_turn) for in_turn in (True, False)]
    columns = ["keys", "log", "left", "rewrite s", "clean s", "of it pass 1", "ratio", "of processor time", "bound"]
    report("(a) cleaning 4 M records, 90 % superseded", rows, columns)


def _against_rewrite(spark: SparkSession, scale: Scale, *, in_turn: bool) -> list[str]:
    warm_up, rounds, keys = scale.warm_up(_WARM_UP), scale.turns(_ROUNDS), scale.rows(400_000)
    with tempfile.TemporaryDirectory() as folder:
        topic = LogDir(spark, f"{folder}/logs").create_topic("a", partitions=_PARTITIONS, config=_COMPACT)
        for number in range(20):
            topic.append(changes(spark, scale.rows(200_000), 0, keys, number, in_turn=in_turn))
            topic.roll()
        version = topic.log.snapshot().version
        size = topic.describe().size_bytes
        receipts: list[CleaningReceipt] = []
        ours: list[tuple[float, float]] = []
        theirs: list[tuple[float, float]] = []

        def clean() -> None:
            receipts[:] = topic.clean()

        def rewrite() -> None:
            rows = spark.read.format("delta").load(topic.log.paths.log)
            kept = rows.where(F.pmod(F.col("offset"), F.lit(10)) == 0)
            kept.write.format("delta").mode("overwrite").partitionBy("partition").save(f"{folder}/plain")

        for number in range(warm_up + rounds):
            for thing, measured in ((rewrite, theirs), (clean, ours)):
                measured.append(timed(spark, thing))
            if number < warm_up + rounds - 1:
                _again(spark, topic, version)
        (their_s, their_cpu_s), (our_s, our_cpu_s) = (
            tuple(statistics.median(column) for column in zip(*measured[warm_up:], strict=True)) for measured in (theirs, ours)
        )
        seconds = [[one for one, _ in measured[warm_up:]] for measured in (theirs, ours)]
        order = "in turn" if in_turn else "at random"
        headline(
            f"clean {20 * scale.rows(200_000) / 1e6:g} M records, 90 % superseded, keys {order}",
            "a plain Spark rewrite that keeps 10 %",
            *seconds,
            goal=2,
        )
        kept = sum(one.records_after for one in receipts)
        assert kept == topic.latest().count() >= (keys if in_turn else 1)  # noqa: S101
        index = max(one.index_ms for one in receipts) / 1000
        return [
            order,
            f"{size / _MIB:.0f} MiB",
            f"{kept:,}",
            f"{their_s:.2f}",
            f"{our_s:.2f}",
            f"{index:.2f}",
            f"{our_s / their_s:.2f}",
            f"{our_cpu_s / their_cpu_s:.2f}",
            "≤ 0.5",
        ]


def against_merge(scale: Scale = WHOLE) -> None:
    """Measure (b)."""
    spark = _session()
    if scale.warm_up(1):
        _upkeep(spark, 100_000, scale)
    columns = ["keys", "segments", "MERGE s", "appends s", "cleanings s", "rounds", "cheaper", "of processor time", "bound"]
    sizes = scale.sizes(((400_000, "≥ 4"), (2_000_000, "≥ 8")))
    rows = [[*row, bound] for keys, bound in sizes for row in _upkeep(spark, scale.rows(keys), scale)]
    report("(b) 20 micro-batches of 200,000 updates", rows, columns)


def _upkeep(spark: SparkSession, keys: int, scale: Scale) -> list[list[str]]:
    """Take the micro-batches with MERGE and with a topic of each size of segments; return a row for each of these, without the bound."""
    rows, updates, micro_batches = [], scale.rows(200_000), scale.turns(_MICRO_BATCHES)
    with tempfile.TemporaryDirectory() as folder:
        first = changes(spark, keys, 0, keys, -1)
        first.write.format("delta").save(f"{folder}/merge")
        target = DeltaTable.forPath(spark, f"{folder}/merge")
        kept = [_Upkeep.of(spark, f"{folder}/{segment_bytes}", first, segment_bytes) for segment_bytes in (None, "32MiB")]
        merged = np.zeros(2)
        for number in range(micro_batches + 1):  # the first one warms up
            batch = changes(spark, updates, (number * 61_003) % keys, min(keys, updates), number).persist()
            batch.count()  # nobody pays for making it
            spent = np.array(timed(spark, partial(_merge, target, batch)))
            for one in kept:
                one.take(spark, batch, last=number == micro_batches, counts=number > 0)
            batch.unpersist()
            merged += spent if number else 0
        counts = {one.topic.latest().count() for one in kept}
        assert counts == {spark.read.format("delta").load(f"{folder}/merge").count()}, counts  # noqa: S101
        for one in kept:
            cheaper = merged / (one.appends + one.cleanings)
            seconds = [f"{spent[0]:.1f}" for spent in (merged, one.appends, one.cleanings)]
            rows.append([f"{keys:,}", one.segment_bytes or "1 GiB", *seconds, str(one.rounds), *(f"{x:.2f}×" for x in cheaper)])
    return rows


@dataclass
class _Upkeep:
    """A topic that takes the micro-batches, and what they cost: seconds and processor seconds of appends and of cleanings."""

    topic: SparkTopic
    segment_bytes: str | None
    rounds: int = 0
    appends: NDArray[np.float64] = field(default_factory=lambda: np.zeros(2))
    cleanings: NDArray[np.float64] = field(default_factory=lambda: np.zeros(2))

    @classmethod
    def of(cls, spark: SparkSession, folder: str, first: DataFrame, segment_bytes: str | None) -> _Upkeep:
        """Make the topic and fill it with a clean section: `first`."""
        config = {"cleanup.policy": "compact", **({"segment.bytes": segment_bytes} if segment_bytes else {})}
        topic = LogDir(spark, folder).create_topic("b", partitions=_PARTITIONS, config=config)
        topic.append(first)
        topic.roll()
        topic.clean()
        return cls(topic=topic, segment_bytes=segment_bytes)

    def take(self, spark: SparkSession, batch: DataFrame, *, last: bool, counts: bool) -> None:
        """Append a micro-batch and let the cleaner look; with whole segments it is the last one that closes them."""
        appended = timed(spark, partial(self.topic.append, batch))
        if last and self.segment_bytes is None:
            self.topic.roll()
        receipts: list[CleaningReceipt] = []
        cleaned = timed(spark, partial(_clean_into, self.topic, receipts))
        if counts:
            self.appends += appended
            self.cleanings += cleaned
            self.rounds += bool(receipts)


def _merge(target: DeltaTable, batch: DataFrame) -> None:
    """Do what foreachBatch does without a log: the newest of each key, and MERGE."""
    newest = batch.withColumn("at", F.monotonically_increasing_id()).groupBy("key").agg(F.max_by("value", "at").alias("value"))
    merge = target.alias("t").merge(newest.alias("s"), "t.key = s.key")
    merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()


def _clean_into(topic: Topic, receipts: list[CleaningReceipt], *, force: bool = False) -> None:
    receipts[:] = topic.clean(force=force)


def incremental(scale: Scale = WHOLE) -> None:
    """Measure (c)."""
    spark = _session()
    rows, medians = [], []
    dirty, rounds = scale.rows(100_000), scale.turns(_ROUNDS)
    for count in (scale.rows(whole, least=20) for whole in scale.sizes((1_000_000, 4_000_000, 8_000_000))):
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
            topic.append(changes(spark, dirty, 0, min(each, dirty), 99))
            topic.roll()
            topic.alter_config({"segment.bytes": int(smallest * 1.5)})
            version = topic.log.snapshot().version
            before = {(row[0], row[1]) for row in _slices(topic)}
            spent = []
            receipts: list[CleaningReceipt] = []
            for number in range(rounds + 1):
                spent.append(timed(spark, partial(_clean_into, topic, receipts, force=True)))
                if number < rounds:
                    _again(spark, topic, version)
            assert topic.latest().count() == count  # noqa: S101  the dirty keys are of the first segments
            rewritten = sum(one.segments_before for one in receipts) - _PARTITIONS
            medians.append([statistics.median(column) for column in zip(*spent[1:], strict=True)])
            index_s = max(receipt.index_ms for receipt in receipts) / 1000
            ratios = [f"{now / first:.2f}" for now, first in zip(medians[-1], medians[0], strict=True)]
            seconds = [f"{figure:.2f}" for figure in (spent[0][0], *medians[-1], index_s)]
            rows.append([f"{count:,}", *seconds, f"{rewritten} of {len(before) - _PARTITIONS}", *ratios, "< 1.5"])
    columns = [
        "clean section",
        "first s",
        "s",
        "processor s",
        "of it pass 1",
        "clean segments written",
        "ratio",
        "of processor time",
        "bound",
    ]
    report("(c) 100,000 dirty records, keys in 5 % of the segments", rows, columns)


def _slices(topic: Topic) -> list[tuple[int, int]]:
    files = topic.log.snapshot().files
    return list(zip(files.partition.tolist(), files.slice.tolist(), strict=True))


def planning(scale: Scale = WHOLE) -> None:
    """Measure (d)."""
    partitions, segments = scale.rows(1_000), 100
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
        max_sequence=np.array([""] * count, dtype=object),
        path=np.array([""] * count, dtype=object),
    )
    snapshot = LogSnapshot(version=1, append_txn=1, maintenance_txn=1, files=files)
    decisions = fold([Decision(kind=Kind.CREATE, time_ms=0, details={"partitions": partitions, "topic_id": "x"}, sequence=1)])
    config = parse_topic_config(_COMPACT)
    ends = snapshot.log_end_offsets(partitions)

    def plan() -> int:
        logs = partition_logs("d", config, snapshot, decisions, ends, holders={}, unreadable={}, now_ms=10)
        return len(plan_cleaning(logs, now_ms=10, entries=10**9).chosen)

    timings = in_turns({"plan": plan}, warm_up=scale.warm_up(1), rounds=scale.turns(5))["plan"]
    tracemalloc.start()
    chosen = plan()
    assert chosen == partitions  # noqa: S101
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    row = [f"{partitions:,} × {segments}", f"{chosen:,}", f"{timings.median:.2f}", f"{peak / _MIB:.0f} MiB", "< 1 s, < 300 MB"]
    report("(d) planning", [row], ["partitions × segments", "chosen", "s", "peak", "bound"])


@dataclass(slots=True)
class _Watched(SharedRate):
    """A limit that notes when how much was read and written. What is settled belongs to what came before."""

    spent: list[tuple[float, int]] = field(default_factory=list)

    def spend(self, counted_bytes: int, hurries: Callable[[], bool] = lambda: False) -> None:
        """Spend, and note it."""
        SharedRate.spend(self, counted_bytes, hurries)
        self.spent.append((time.monotonic(), counted_bytes))

    def rates(self) -> tuple[float, float]:
        """Return bytes a second on average, and in the minute with the most; 0 when it took less than a minute."""
        began, ended = self.spent[0][0], self.spent[-1][0]
        minutes = [sum(size for at, size in self.spent if start <= at < start + 60) / 60 for start, _ in self.spent if start + 60 <= ended]
        return sum(size for _, size in self.spent) / (ended - began), max(minutes, default=0)


def throttled(scale: Scale = WHOLE) -> None:
    """Measure (f): one tick of a minute and more, at a limit that its rounds would exceed by far even on a busy machine.

    Once a log of several partitions, a round each; once of a single one, which costs more than a minute's bytes: one round. The last time
    that the tick waits, and has nothing more to clean, is when the round before was slept off.
    """
    spark = _session()
    rows = [
        _throttled(spark, limit=2 * _MIB, partitions=_PARTITIONS, appends=10, records=scale.rows(100_000), keys=500_000),
        _throttled(spark, limit=4 * _MIB, partitions=1, appends=20, records=scale.rows(100_000), keys=1_000_000),
    ]
    columns = ["partitions", "limit MiB/s", "average MiB/s", "over s", "rounds", "off by", "bound", "most in a minute"]
    report("(f) log.cleaner.io.max.bytes.per.second", rows, columns)


def _throttled(spark: SparkSession, *, limit: int, partitions: int, appends: int, records: int, keys: int) -> list[str]:
    config, _ = parse_service_config({"log.cleaner.io.max.bytes.per.second": limit, "log.cleaner.backoff.ms": "1h"})  # one tick
    with tempfile.TemporaryDirectory() as folder:
        topic = LogDir(spark, f"{folder}/logs").create_topic("f", partitions=partitions, config=_COMPACT)
        for number in range(appends):
            topic.append(changes(spark, records, 0, keys, number, in_turn=False))
            topic.roll()
        scheduler = MaintenanceScheduler(
            spark=spark, cleaner=Cleaner(config), config=config, topics=lambda: [topic.log], clock_ms=clock.now_ms
        )
        scheduler.rate = watched = _Watched(RateLimiter(limit), scheduler.stop)
        scheduler.tick()
        assert scheduler.counts.rounds >= 1  # noqa: S101
        average, most = watched.rates()
        over_s = watched.spent[-1][0] - watched.spent[0][0]
        return [
            str(partitions),
            f"{limit / _MIB:.1f}",
            f"{average / _MIB:.2f}",
            f"{over_s:.0f}",
            str(scheduler.counts.rounds),
            f"{100 * (average / limit - 1):+.1f} %",
            "± 10 %",
            f"{most / _MIB:.2f}",
        ]
