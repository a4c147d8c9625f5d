"""The cleaner as a streaming query: foreachBatch on a ticker, so that Spark runs, watches and stops it like any other query.

The micro-batch's own data is not used. A tick that takes longer than the interval is followed by the next one at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

#: Scheduler pools (lastword/spark/fairscheduler.xml): appends go first.
APPEND_POOL: Final = "append"
CLEANER_POOL: Final = "cleaner"


def start_cleaner_query(spark: SparkSession, tick: Callable[[], None], *, interval_ms: int) -> StreamingQuery:
    """Start a query that calls `tick` every `interval_ms`, in the cleaner's scheduler pool, and return it."""

    def tend(_rows: DataFrame, _batch_id: int) -> None:
        tick()

    with_pool(spark, CLEANER_POOL)
    ticker = spark.readStream.format("rate").option("rowsPerSecond", 1).option("numPartitions", 1).load()
    writer = ticker.writeStream.foreachBatch(tend).queryName("lastword/cleaner").trigger(processingTime=f"{interval_ms} milliseconds")
    return writer.start()


def with_pool(spark: SparkSession, pool: str) -> None:
    """Let the jobs that this thread starts, and the queries that it starts, run in a scheduler pool."""
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", pool)
