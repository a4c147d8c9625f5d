"""Logs as text, for tests that read like the documentation.

One line a record, `offset key=value`; a tombstone is `key=∅`. What a test appends is written the same way without offsets:
`"grape=1 lime=2 grape=∅"`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from delta.tables import DeltaTable
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lastword import Topic

_TOMBSTONE = "∅"


def rows(spark: SparkSession, picture: str, *, partition: int | None = None, timestamp_ms: int | None = None) -> DataFrame:
    """Return the rows that a picture draws, in its order, optionally all for one partition and at one record time."""
    drawn = [(key, None if value == _TOMBSTONE else value) for key, _, value in (word.partition("=") for word in picture.split())]
    frame = spark.createDataFrame(drawn, "key string, value string")
    if partition is not None:
        frame = frame.withColumn("partition", F.lit(partition))
    if timestamp_ms is not None:
        frame = frame.withColumn("timestamp", F.lit(timestamp_ms).cast("bigint"))
    return frame


def text(value: bytes | bytearray | None) -> str:
    """Return a value as it is drawn."""
    return _TOMBSTONE if value is None else bytes(value).decode()


def log(topic: Topic, partition: int = 0) -> list[str]:
    """Return the data records of a partition as they are drawn."""
    found = topic.records().where(F.col("partition") == partition).orderBy("offset").collect()
    return [f"{row['offset']} {text(row['key'])}={text(row['value'])}" for row in found]


def latest(topic: Topic) -> dict[str, str]:
    """Return the last word on every key; the keys of a test belong to one partition each."""
    return {text(row["key"]): text(row["value"]) for row in topic.latest().collect()}


def segments(topic: Topic, partition: int = 0) -> list[tuple[int, int, int]]:
    """Return (label, first offset, last offset) of every segment of a partition."""
    return [(one.label, one.first_offset, one.last_offset) for one in topic.describe().partitions[partition].segments]


#: Where the clock of a worked example begins.
T0 = 1_700_000_000_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def history(topic: Topic, partition: int = 0) -> list[str]:
    """Return every row of a partition: `offset key=value` or `offset CONTROL`, and `@horizon` in ms after T0 where there is one."""
    found = topic.records(include_control=True).where(F.col("partition") == partition).orderBy("offset")
    shown = found.select("offset", "key", "value", "control", F.unix_millis("delete_horizon").alias("horizon")).collect()
    return [
        f"{row['offset']} {row['control'] or text(row['key']) + '=' + text(row['value'])}"
        + ("" if row["horizon"] is None else f" @{row['horizon'] - T0}")
        for row in shown
    ]


def vacuum(topic: Topic, spark: SparkSession) -> None:
    """Delete every file that the newest table version does not need, at once."""
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    try:
        DeltaTable.forPath(spark, topic.log.paths.log).vacuum(0)
    finally:
        spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
