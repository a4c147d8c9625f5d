"""What the methods of a topic do with Spark; imported when one of them is called first, because it imports pyspark."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame

from lastword.storage.reading.time_travel import vector_of, views_as_of
from lastword.streaming.append.query import Grouping, start_append_query, stop_append_queries
from lastword.streaming.reading.changes import changes as every_change
from lastword.streaming.reading.changes import net_changes
from lastword.streaming.reading.dataframes import data_records, latest_records, log_records
from lastword.streaming.reading.decoding import decoded
from lastword.streaming.reading.jvm_source import streaming_frame
from lastword.streaming.reading.materialize import Shape
from lastword.streaming.reading.tail import Tail, TailOptions
from lastword.topics.materializing import start_materialization
from lastword.topics.positions import starting_position

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from pyspark.sql import SparkSession

    from lastword.storage.log.topic_log import TopicLog
    from lastword.storage.reading.view import View

__all__ = [
    "Grouping",
    "Shape",
    "TailOptions",
    "changes",
    "forget_delta_log",
    "latest",
    "latest_of",
    "records",
    "start_append_query",
    "start_materialization",
    "stop_append_queries",
    "tail",
]


def records(spark: SparkSession, log: TopicLog, view: View, *, include_control: bool) -> DataFrame:
    """Return the rows that a view shows."""
    rows = log_records(spark, log, view)
    return rows if include_control else data_records(rows)


def latest(
    spark: SparkSession,
    log: TopicLog,
    as_of: object,
    isolation: str,
    *,
    partitions: Sequence[int] | None,
    keys: Sequence[bytes] | None,
    value_format: str | None,
    schema: Any,
    mode: str,
) -> DataFrame:
    """Return the last words of the past or of now, with decoded values."""
    views = views_as_of(log, as_of, isolation)
    found = [latest_records(spark, log, view, partitions=partitions, keys=keys) for view in views]
    return decoded(reduce(DataFrame.unionByName, found), value_format, schema, mode=mode)


def latest_of(spark: SparkSession, log: TopicLog, view: View) -> DataFrame:
    """Return the last words that a view shows."""
    return latest_records(spark, log, view)


def tail(
    spark: SparkSession,
    log: TopicLog,
    options: TailOptions,
    *,
    starting_offsets: object,
    starting_timestamp: int | datetime | None,
    clock_ms: Callable[[], int],
) -> DataFrame:
    """Return a streaming DataFrame of the records from a position on."""
    begin = starting_position(log, starting_offsets, starting_timestamp, options.isolation)
    return streaming_frame(Tail(log, spark, options, clock_ms), begin)


def changes(spark: SparkSession, log: TopicLog, begin: object, end: object, *, net: bool, isolation: str) -> DataFrame:
    """Return what changed between two offset vectors."""
    told = net_changes if net else every_change
    return told(log, spark, vector_of(log, begin, "begin"), vector_of(log, end, "end"), isolation=isolation)


def forget_delta_log(spark: SparkSession, log: TopicLog) -> None:
    """Drop Delta's cached snapshots of the paths of a deleted topic, which another topic of the same name may take."""
    jvm = spark.sparkContext._jvm  # noqa: SLF001  no public way to reach a Scala object
    session = spark._jsparkSession  # noqa: SLF001
    for path in (log.paths.log, log.paths.dead_letters):
        jvm.org.apache.spark.sql.delta.DeltaLog.invalidateCache(session, jvm.org.apache.hadoop.fs.Path(path))  # type: ignore[union-attr]
