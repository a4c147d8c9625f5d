"""What readers of Spark cost: last words, the tail, a table that is kept in step.

(a) `latest()`, 4 M records of about 200 B over 400,000 keys: cleaned, against a scan of a plain Delta table that holds just those rows: at
    most 1.3×; with 5 % of new records on top at most 2×; never cleaned, against the best plain fold (`max_by`): at most 1.1×.
(b) The tail of the 4 M records, against Spark's own Delta stream of the same files: at least 80 % of its throughput.
(c) `materialize` of 20 × 200,000 updates over 400,000 keys, against MERGE in foreachBatch of the same rows: no slower.

The table version that is read is always the newest one: Spark keeps the newest snapshot of a Delta table, and makes older ones anew.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from typing import TYPE_CHECKING, Any

from delta.tables import DeltaTable
from pyspark.sql import functions as F

from benchmarks.cleaning import changes
from benchmarks.measure import WHOLE, Scale, headline, in_turns, report
from lastword import LogDir, spark_session
from lastword.storage.reading.view import LATEST_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from lastword import SparkTopic

_PARTITIONS = 4
_KEYS = 400_000
_APPENDS = 20
_UPDATES = 200_000
_ROUNDS = 5
_COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}


def run(scale: Scale = WHOLE) -> None:
    """Measure and print everything; minutes."""
    spark = spark_session("lastword-bench", settings={"spark.log.level": "ERROR", "spark.driver.memory": "4g"})
    with tempfile.TemporaryDirectory() as folder:
        topic = LogDir(spark, f"{folder}/logs").create_topic("a", partitions=_PARTITIONS, config=_COMPACT)
        for number in range(_APPENDS):
            topic.append(changes(spark, scale.rows(_UPDATES), 0, scale.rows(_KEYS), number))
            topic.roll()
        tail(spark, topic, folder, scale)
        last_words(spark, topic, folder, scale)
    materialized(spark, scale)


def last_words(spark: SparkSession, topic: SparkTopic, folder: str, scale: Scale) -> None:
    """Measure (a)."""

    def log() -> DataFrame:
        return spark.read.format("delta").load(topic.log.paths.log)

    def newest(*columns: str) -> DataFrame:
        word = F.max_by(F.struct(*columns, "offset"), "offset").alias("newest")
        return log().groupBy("partition", "key").agg(word).select("partition", "key", "newest.*")

    folds = {
        "max_by value": lambda: _drain(log().groupBy("key").agg(F.max_by("value", "offset").alias("value"))),
        "max_by row": lambda: _drain(newest("value", "headers", "timestamp")),
    }
    timings = in_turns({**folds, "ours": lambda: _drain(topic.latest())}, warm_up=scale.warm_up(1), rounds=scale.turns(3))
    best = min((timings[name] for name in folds), key=lambda one: one.median)
    headline("latest(), never cleaned", "the best plain fold in Spark", best.seconds, timings["ours"].seconds, goal=0.9)
    found = [_row("never cleaned", topic, (best.median, timings["ours"].median), f"plain fold, {best.name}", "≤ 1.1")]
    topic.clean()
    topic.latest().select(*LATEST_COLUMNS).repartition(_PARTITIONS, "partition").write.format("delta").save(f"{folder}/plain")
    plain = {"scan": lambda: _drain(spark.read.format("delta").load(f"{folder}/plain"))}
    for name, bound in (("cleaned", "≤ 1.3"), ("cleaned, 5 % dirty", "≤ 2")):
        if bound == "≤ 2":
            topic.append(changes(spark, scale.rows(_KEYS) // 20, 0, scale.rows(_KEYS), _APPENDS))
        timings = in_turns({**plain, "ours": lambda: _drain(topic.latest())}, warm_up=scale.warm_up(3), rounds=scale.turns(4 * _ROUNDS))
        assert topic.latest().count() == scale.rows(_KEYS)  # noqa: S101
        goal = 0.77 if bound == "≤ 1.3" else 0.5
        headline(f"latest(), {name}", "a scan of a plain table of these rows", timings["scan"].seconds, timings["ours"].seconds, goal=goal)
        found.append(_row(name, topic, (timings["scan"].median, timings["ours"].median), "scan of a plain table", bound))
    report("(a) latest() over 400,000 keys", found, ["log", "records", "against", "theirs s", "ours s", "ratio", "bound"])


def tail(spark: SparkSession, topic: SparkTopic, folder: str, scale: Scale) -> None:
    """Measure (b)."""

    def drained(source: DataFrame) -> None:
        checkpoint = tempfile.mkdtemp(dir=folder)
        source.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
        shutil.rmtree(checkpoint)

    columns = ("partition", "offset", "timestamp", "key", "value", "headers")
    delta = spark.readStream.format("delta").option("maxFilesPerTrigger", 1_000).load(topic.log.paths.log).select(*columns)
    timings = in_turns(
        {"delta": lambda: drained(delta), "tail": lambda: drained(topic.tail())}, warm_up=scale.warm_up(1), rounds=scale.turns(_ROUNDS)
    )
    theirs, ours = timings["delta"].median, timings["tail"].median
    headline("tail() of the whole log", "Delta's own stream", timings["delta"].seconds, timings["tail"].seconds, goal=0.8)
    row = [f"{_APPENDS * scale.rows(_UPDATES):,}", f"{theirs:.2f}", f"{ours:.2f}", f"{theirs / ours:.0%}", "≥ 80 %"]
    report("(b) tail of the whole log", [row], ["records", "Delta stream s", "tail s", "throughput", "bound"])


def materialized(spark: SparkSession, scale: Scale) -> None:
    """Measure (c): both follow the same appends, in turns; the first step of each is not counted."""
    with tempfile.TemporaryDirectory() as folder:
        topic = LogDir(spark, f"{folder}/logs").create_topic("m", partitions=_PARTITIONS, config=_COMPACT)
        keys, updates, appends = scale.rows(_KEYS), scale.rows(_UPDATES), scale.turns(_APPENDS)
        topic.append(changes(spark, keys, 0, keys, -1))
        source = spark.readStream.format("delta").load(topic.log.paths.log).select("partition", "key", "value", "offset")
        topic.latest().select("partition", "key", "value", "offset").write.format("delta").save(f"{folder}/merged")
        merged = DeltaTable.forPath(spark, f"{folder}/merged")

        def merge(rows: DataFrame, _batch_id: int) -> None:
            newest = rows.groupBy("partition", "key").agg(F.max_by(F.struct("value", "offset"), "offset").alias("newest"))
            change = newest.select("partition", "key", "newest.*").alias("change")
            same = merged.alias("target").merge(change, "target.partition = change.partition AND target.key = change.key")
            same = same.whenMatchedDelete("change.value IS NULL").whenMatchedUpdateAll("change.offset > target.offset")
            same.whenNotMatchedInsertAll("change.value IS NOT NULL").execute()

        def by_merge() -> None:
            query = source.writeStream.foreachBatch(merge).option("checkpointLocation", f"{folder}/checkpoint")
            query.trigger(availableNow=True).start().awaitTermination()

        def by_us() -> None:
            topic.materialize(f"{folder}/ours", trigger={"availableNow": True}, record_columns=["_offset", "_value"]).awaitTermination()

        seconds: dict[str, list[float]] = {"merge": [], "ours": []}
        for number in range(appends + 1):
            for name, thing in (("merge", by_merge), ("ours", by_us)):
                seconds[name].append(_seconds(thing))
            topic.append(changes(spark, updates, 0, keys, number))
        assert {spark.read.format("delta").load(f"{folder}/{name}").count() for name in ("merged", "ours")} == {keys}  # noqa: S101
        theirs, ours = sum(seconds["merge"][1:]), sum(seconds["ours"][1:])
        headline(
            "materialize() by Spark, a step of 200,000 updates", "MERGE in foreachBatch", seconds["merge"][1:], seconds["ours"][1:], goal=1
        )
        row = [f"{appends} × {updates:,}", f"{theirs:.1f}", f"{ours:.1f}", f"{ours / theirs:.2f}", "≤ 1"]
    report("(c) materialize", [row], ["updates", "MERGE s", "ours s", "ratio", "bound"])


def _seconds(thing: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    thing()
    return time.perf_counter() - begun


def _drain(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


def _row(name: str, topic: SparkTopic, seconds: tuple[float, float], against: str, bound: str) -> list[str]:
    records = topic.log.snapshot().files.record_count.sum()
    theirs, ours = seconds
    return [name, f"{records:,}", against, f"{theirs:.2f}", f"{ours:.2f}", f"{ours / theirs:.2f}", bound]
