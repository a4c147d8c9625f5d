"""What transactions cost: appending with a producer, and finding the producers again at a start.

(a) 200,000 records as one append of a transaction against the same as plain records. Bound: 1.4×.
(b) The producers' states from a log of 5 M records of which 1 % carry a producer, against the same fold over all files: at least 10×
    faster, and only the files that hold such a row are opened.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from benchmarks.append import records
from benchmarks.measure import WHOLE, Scale, in_turns, report
from lastword import LogDir, clock, spark_session
from lastword.compaction.rows.producer_summaries import SUMMARY_COLUMNS, summaries
from lastword.storage.append import transactions
from lastword.storage.append.append import append_rows
from lastword.storage.append.requests import AppendStats
from lastword.storage.files.data_reader import read_columns
from lastword.storage.log.producer_states import read_states
from lastword.streaming.append.dataframes import DataFrameRows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lastword import Topic
    from lastword.compaction.producers import ProducerStamp
    from lastword.storage.delta.snapshot import LogSnapshot

_PARTITIONS = 4
_RECORDS = 5_000_000
_APPENDS = 100


def run(scale: Scale = WHOLE) -> None:
    """Measure and print."""
    spark = spark_session("lastword-bench", settings={"spark.log.level": "ERROR", "spark.driver.memory": "4g"})
    with tempfile.TemporaryDirectory() as folder:
        _append(spark, Path(folder), scale)
        _rebuild(spark, Path(folder), scale)


def _append(spark: SparkSession, folder: Path, scale: Scale) -> None:
    logs = LogDir(spark, str(folder / "logs"))
    source = str(folder / "source")
    records(spark, scale.rows(200_000)).repartition(2).write.parquet(source)
    plain, ours = (logs.create_topic(name, partitions=_PARTITIONS, config={"cleanup.policy": "compact"}) for name in ("plain", "txn"))
    stamp = transactions.begin(ours.log, "loader", now_ms=clock.now_ms(), timeout_ms=None)
    stats = {"plain": AppendStats(), "txn": AppendStats()}

    def append(topic: Topic, stamp: ProducerStamp | None) -> None:
        rows, now_ms = DataFrameRows(spark.read.parquet(source), stats[topic.name]), clock.now_ms()
        if stamp is None:
            append_rows(topic.log, rows, now_ms=now_ms, stats=stats[topic.name])
        else:
            transactions.append(topic.log, rows, stamp, now_ms=now_ms, stats=stats[topic.name])

    timings = in_turns(
        {"plain": lambda: append(plain, None), "transactional": lambda: append(ours, stamp)},
        warm_up=scale.warm_up(4),
        rounds=scale.turns(9),
    )
    counts = {topic.describe().record_count for topic in (plain, ours)}
    assert len(counts) == 1, counts  # noqa: S101
    without, with_producer = timings["plain"].median, timings["transactional"].median
    line = [f"{without:.3f} s", f"{with_producer:.3f} s", f"{with_producer / without:.2f}×", "≤ 1.4"]
    report("200,000 records in one append (medians of 9, in turns)", [line], ["plain", "transactional", "ratio", "bound"])


def _rebuild(spark: SparkSession, folder: Path, scale: Scale) -> None:
    topic = LogDir(spark, str(folder / "logs")).create_topic("rebuild", partitions=_PARTITIONS, config={"cleanup.policy": "compact"})
    appends, stats = scale.rows(_APPENDS, least=4), AppendStats()
    each = scale.rows(_RECORDS) // appends
    for number in range(appends):
        rows = records(spark, each)
        if number == appends // 2:  # 1 % of all records, in one append
            rows = rows.select(
                "*",
                F.lit(7).cast("bigint").alias("producer_id"),
                F.lit(0).alias("producer_epoch"),
                F.row_number().over(Window.orderBy("key")).cast("int").alias("sequence"),
                F.lit(0).alias("partition"),
            )
        append_rows(topic.log, DataFrameRows(rows, stats), now_ms=clock.now_ms(), stats=stats)
    snapshot = topic.log.snapshot()
    needed = int((snapshot.files.producer_rows > 0).sum())
    assert (topic.describe().record_count, needed) == (each * appends, 1)  # noqa: S101

    def whole() -> None:
        for partition, path in zip(snapshot.files.partition.tolist(), snapshot.files.path, strict=True):
            summaries(read_columns(topic.log.paths.log, {}, path, SUMMARY_COLUMNS), partition)

    timings = in_turns({"all files": whole, "states": lambda: _states(topic, snapshot)}, warm_up=scale.warm_up(2), rounds=scale.turns(5))
    everything, states = timings["all files"].median, timings["states"].median
    line = [f"{everything:.2f} s", f"{states:.2f} s", f"{everything / states:.1f}×", f"{needed} of {len(snapshot.files.path)}", "≥ 10×"]
    report("producers' states of 5 M records, 1 % with a producer", [line], ["reading all", "states", "faster", "files read", "bound"])


def _states(topic: Topic, snapshot: LogSnapshot) -> None:
    read_states(topic.log.paths.log, {}, snapshot, _PARTITIONS)
