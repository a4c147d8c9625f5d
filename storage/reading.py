"""The log as DataFrames: its rows, those that a reader of an isolation level sees, and the last word on every key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from compaction.errors import UserError
from compaction.producers import Control
from storage.envelope import by_partition
from storage.producer_log import has_producers
from storage.schema import RECORD_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from storage.snapshot import LogSnapshot
    from storage.topic_log import TopicLog

#: Kafka's isolation.level.
ISOLATIONS: Final = ("read_committed", "read_uncommitted")


def log_records(spark: SparkSession, log: TopicLog, snapshot: LogSnapshot, *, isolation: str) -> DataFrame:
    """Return the rows of the log at a snapshot that a reader of `isolation` sees, control rows included.

    Nothing below the log start offset of its partition, at any version: deleted records never come back. `read_committed`: nothing at or
    past the last stable offset of its partition, and no record of an aborted transaction. The rows are those of one table version,
    whenever they are read.
    """
    if isolation not in ISOLATIONS:
        message = f"isolation {isolation!r}: allowed is {' or '.join(ISOLATIONS)}"
        raise UserError(message)
    rows = spark.read.format("delta").option("versionAsOf", snapshot.version).load(log.paths.log).select(*RECORD_COLUMNS)
    decisions = log.decisions()
    partitions = decisions.partitions
    starts = [decisions.log_start_offset(partition) for partition in range(partitions)]
    if any(starts):
        rows = rows.where(F.col("offset") >= by_partition(starts, F.col("partition")))
    if isolation == "read_uncommitted" or not has_producers(snapshot, (0,) * partitions):
        return rows
    # Markers are looked for past the last stable offset too: that of an earlier record may lie there.
    aborted = rows.where((F.col("control") == Control.ABORT.value) & F.col("txn_first_offset").isNotNull()).select(*_TRANSACTION).distinct()
    stable = log.last_stable_offsets(spark, snapshot)
    if stable != snapshot.log_end_offsets(partitions):
        rows = rows.where(F.col("offset") < by_partition(stable, F.col("partition")))
    data = rows.join(F.broadcast(aborted.withColumn("__aborted", F.lit(True))), list(_TRANSACTION), "left")
    return data.where(F.col("__aborted").isNull() | F.col("control").isNotNull()).select(*RECORD_COLUMNS)


_TRANSACTION: Final = ("partition", "producer_id", "txn_first_offset")


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
