"""What an append costs over a plain Delta append of the same rows.

Micro-batches of 200, 20,000 and 200,000 records of about 200 B over 4 partitions. The plain append writes the same columns, Delta-
partitioned by partition, with txnAppId and txnVersion, and gives no offsets. Both go through `foreachBatch`-like calls on the same
input, which is computed anew each time. Then 200 micro-batches of 200 records: the last ten against the first ten after warm-up.

Bounds: 0.4× at 200, 0.7× at 200,000; the last ten at most 1.2× the first ten.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from delta.tables import DeltaTable
from pyspark.sql import functions as F

from benchmarks.measure import WHOLE, Scale, headline, in_turns, report
from lastword import LogDir, clock, spark_session
from lastword.compaction.rows.input_columns import ORDER_PREFIX
from lastword.storage.append.append import append_rows
from lastword.storage.append.requests import AppendStats
from lastword.storage.files.schema import HEADERS_TYPE, LOG_COLUMNS
from lastword.streaming.append.dataframes import DataFrameRows

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

_PARTITIONS = 4
_SIZES = (200, 20_000, 200_000)
#: Times as fast as a plain append.
_GOALS = {200: 2.5, 20_000: 1.43, 200_000: 1.43}
_BOUNDS = {200: "≤ 0.4", 20_000: "≤ 0.7", 200_000: "≤ 0.7"}


def run(scale: Scale = WHOLE) -> None:
    """Measure and print."""
    spark = spark_session("lastword-bench", settings={"spark.log.level": "ERROR", "spark.driver.memory": "4g"})
    with tempfile.TemporaryDirectory() as folder:
        _sizes(spark, Path(folder), scale)
        _many(spark, Path(folder), scale)


def records(spark: SparkSession, count: int, keys: int = 400_000) -> DataFrame:
    """Return `count` changes of about 200 B: a 16 B key and a value that hardly compresses."""
    number = F.col("id")
    return spark.range(count).select(
        F.substring(F.sha2(F.pmod(number * 7_919, F.lit(keys)).cast("string"), 256), 1, 16).cast("binary").alias("key"),
        F.concat(F.sha2(number.cast("string"), 512), F.sha2((number + 1).cast("string"), 256)).cast("binary").alias("value"),
    )


def plain_append(spark: SparkSession, rows: Callable[[], DataFrame], location: str) -> Callable[[], None]:
    """Return a function that appends the rows to a plain Delta table in one commit, as a hand-made pipeline would."""
    nothing = {"headers": HEADERS_TYPE, "producer_id": "bigint", "producer_epoch": "int", "sequence": "int", "txn_first_offset": "bigint"}
    nothing |= {"control": "string", "delete_horizon": "timestamp", "source_sequence": "string"}

    def columns(given: DataFrame) -> DataFrame:
        return given.select(
            F.pmod(F.xxhash64("key"), F.lit(_PARTITIONS)).cast("int").alias("partition"),
            F.lit(0).cast("bigint").alias("segment"),
            F.lit(0).cast("bigint").alias("slice"),
            F.monotonically_increasing_id().alias("offset"),
            F.current_timestamp().alias("timestamp"),
            F.current_timestamp().alias("appended_at"),
            "key",
            "value",
            *(F.lit(None).cast(kind).alias(name) for name, kind in nothing.items()),
        ).select(*LOG_COLUMNS)

    builder = DeltaTable.create(spark).location(location).addColumns(columns(rows()).schema).partitionedBy("partition")
    builder.property("delta.dataSkippingStatsColumns", "offset,timestamp,appended_at,delete_horizon,producer_id")
    builder.property("delta.checkpointInterval", "100").execute()
    versions = itertools.count(1)

    def append() -> None:
        writer = columns(rows()).write.format("delta").mode("append").option("compression", "zstd")
        writer.option("txnAppId", "bench").option("txnVersion", next(versions)).save(location)

    return append


def _sizes(spark: SparkSession, folder: Path, scale: Scale) -> None:
    logs = LogDir(spark, str(folder / "logs"))
    lines = []
    for size in scale.sizes(_SIZES):
        source = str(folder / f"source-{size}")
        records(spark, scale.rows(size)).repartition(2).write.parquet(source)

        def rows(source: str = source) -> DataFrame:
            return spark.read.parquet(source)

        topic = logs.create_topic(f"bench-{size}", partitions=_PARTITIONS, config={"cleanup.policy": "compact"})
        stats = AppendStats()

        def lastword() -> None:
            append_rows(topic.log, DataFrameRows(rows(), stats), now_ms=clock.now_ms(), stats=stats)  # noqa: B023  called in this turn of the loop

        things: dict[str, Callable[[], object]] = {"plain": plain_append(spark, rows, str(folder / f"plain-{size}")), "lastword": lastword}
        warm_up, turns = scale.warm_up(5), scale.turns(11)
        timings = in_turns(things, warm_up=warm_up, rounds=turns)
        assert topic.describe().record_count == (warm_up + turns) * scale.rows(size)  # noqa: S101
        plain, ours = timings["plain"].median, timings["lastword"].median
        what = f"append {size:,} records"
        headline(what, "a plain Delta append, exactly once", timings["plain"].seconds, timings["lastword"].seconds, goal=_GOALS[size])
        lines.append([f"{size:,}", f"{plain:.3f} s", f"{ours:.3f} s", f"{ours / plain:.2f}×", _BOUNDS[size]])
    report("append against a plain Delta append (medians of 11, in turns)", lines, ["records", "plain", "lastword", "ratio", "bound"])


def _many(spark: SparkSession, folder: Path, scale: Scale) -> None:
    topic = LogDir(spark, str(folder / "logs")).create_topic("many", partitions=_PARTITIONS, config={"cleanup.policy": "compact"})
    source = str(folder / "source-200")
    stats = AppendStats()
    seconds = []
    for _ in range(10 + scale.rows(200, least=10)):
        begun = time.perf_counter()
        rows = spark.read.parquet(source).withColumn(f"{ORDER_PREFIX}1", F.lit(0))
        append_rows(topic.log, DataFrameRows(rows, stats), now_ms=clock.now_ms(), stats=stats)
        seconds.append(time.perf_counter() - begun)
    first, last = statistics.median(seconds[10:20]), statistics.median(seconds[-10:])
    line = [f"{first:.3f} s", f"{last:.3f} s", f"{last / first:.2f}×", "≤ 1.2"]
    report("200 micro-batches of 200 records, one topic", [line], ["first ten", "last ten", "ratio", "bound"])
