"""The log as DataFrames: its rows, and the last word on every key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from storage.schema import RECORD_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from storage.topic_log import TopicLog


def log_records(spark: SparkSession, log: TopicLog, *, table_version: int | None = None) -> DataFrame:
    """Return every row of the log at a table version (default: the newest), control rows included."""
    reader = spark.read.format("delta")
    if table_version is not None:
        reader = reader.option("versionAsOf", table_version)
    return reader.load(log.paths.log).select(*RECORD_COLUMNS)


def data_records(rows: DataFrame) -> DataFrame:
    """Leave out the control rows: markers, and EMPTY rows that only hold a place."""
    return rows.where(F.col("control").isNull())


def latest_records(rows: DataFrame) -> DataFrame:
    """Return the last of `rows` for every (partition, key), tombstones left out.

    Columns: partition, key, value, headers, timestamp, offset. Identity is (partition, key), as in Kafka; keyless rows have no last
    word. A fold by `max_by` over a struct, which moves each row once.
    """
    newest = F.max_by(F.struct("value", "headers", "timestamp", "offset"), "offset").alias("newest")
    folded = rows.where(F.col("key").isNotNull()).groupBy("partition", "key").agg(newest)
    return folded.select("partition", "key", "newest.*").where(F.col("value").isNotNull())
