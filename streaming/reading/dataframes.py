"""The log as DataFrames: what a reader of an isolation level sees at one table version, and the last word on every key.

```
 offset        0 … start … first dirty … end …                   end = last stable offset (read_committed) or log end
 section         gone    │ clean       │ dirty  │ not yet seen
 rows of a key           │ at most one │ any    │
```

The last word needs one look at the dirty section: the newest offset of each of its keys. Then a row goes, wherever it stands, when a newer
one of its key stands in the dirty section. The clean section is neither folded nor moved. A `View` says which rows are seen and where the
sections meet; it comes from metadata, but for the last stable offset.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from lastword.compaction.errors import InvalidConfiguration, Violation
from lastword.compaction.producers import Control
from lastword.storage.files.locations import spark_location
from lastword.storage.files.schema import OFFSET_BITS, RECORD_COLUMNS, TRANSACTION
from lastword.storage.log.producer_states import has_producers
from lastword.storage.reading.view import LATEST_COLUMNS
from lastword.streaming.reading.by_partition import by_partition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from lastword.storage.log.topic_log import TopicLog
    from lastword.storage.reading.view import View

#: The column that `flagged_aborted` adds.
ABORTED: Final = "__aborted"
#: Settings of a session with which Spark leaves out the rows of a file that it cannot read.
_LOSSY: Final = ("spark.sql.files.ignoreCorruptFiles", "spark.sql.files.ignoreMissingFiles")
#: What an entry costs in the memory of every task when keys, or positions, are sent to it; and the share of the heap that they may take.
_KEY_BYTES: Final = 128
_POSITION_BYTES: Final = 64
_BROADCAST_SHARE: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestLimits:
    """The sizes that choose how the latest records are found; the answer is the same on either side of each."""

    #: What keys or positions may take of the memory of every task when they are sent to it.
    broadcast_bytes: int
    #: Up to so many rows, in so many files, one task finds the newest offsets faster than a shuffle does.
    one_task_rows: int = 100_000
    one_task_files: int = 100


def session_limits(spark: SparkSession) -> LatestLimits:
    """Return the limits for a session: a share of its heap may be sent to every task."""
    heap_bytes: int = spark.sparkContext._jvm.java.lang.Runtime.getRuntime().maxMemory()  # type: ignore[union-attr]  # noqa: SLF001
    return LatestLimits(broadcast_bytes=heap_bytes // _BROADCAST_SHARE)


def log_records(spark: SparkSession, log: TopicLog, view: View, *, begin: Sequence[int] | None = None) -> DataFrame:
    """Return the rows that a view shows, control rows included, from the offset vector `begin` on (default: all).

    The rows are those of the view's table version, whenever they are read. `read_committed`: no record of an aborted transaction.
    """
    seen = _seen(_table(spark, log, view), view, view.start if begin is None else tuple(map(max, begin, view.start)))
    return seen.select(*RECORD_COLUMNS)


def _table(spark: SparkSession, log: TopicLog, view: View) -> DataFrame:
    check_session(spark)
    table = spark.read.format("delta").option("versionAsOf", view.version).load(spark_location(log.paths.log))
    if view.has_sequences:
        return table
    return table.withColumn("source_sequence", F.lit(None).cast("string"))


def check_session(spark: SparkSession) -> None:
    """Raise `InvalidConfiguration` for a session that would leave out the rows of a file which cannot be read, and say nothing."""
    found = [(key, spark.conf.get(key, "false") or "") for key in _LOSSY]
    wrong = [
        Violation(key=key, value=value, allowed="false: rows of the log would be left out") for key, value in found if value != "false"
    ]
    if wrong:
        subject = "the Spark session"
        raise InvalidConfiguration(subject, wrong)


def _seen(table: DataFrame, view: View, begin: Sequence[int]) -> DataFrame:
    """Return the rows of the view's table version that it shows from `begin` on, all columns of the log and maybe others."""
    rows = _from(table, view, begin)
    if view.end != view.state.log_end_offsets:
        ends = by_partition(view.end, F.col("partition"))
        rows = rows.where((F.col("slice") < ends) & (F.col("offset") < ends))
    undecided = tuple(map(max, begin, view.first_dirty))
    if view.isolation == "read_uncommitted" or not has_producers(view.state.snapshot, undecided):
        return rows
    # Markers are looked for past the last stable offset too: that of an earlier record may lie there. None lies before its record.
    data = flagged_aborted(rows, _from(table, view, undecided))
    return data.where(F.col(ABORTED).isNull() | F.col("control").isNotNull())


def flagged_aborted(rows: DataFrame, markers: DataFrame) -> DataFrame:
    """Return rows with the column `ABORTED`: true for those of a transaction that a marker aborted, null for all others."""
    ends = markers.where(F.col("producer_id").isNotNull() & F.col("txn_first_offset").isNotNull())
    aborted = ends.where(F.col("control") == Control.ABORT.value).select(*TRANSACTION).distinct()
    return rows.join(F.broadcast(aborted.withColumn(ABORTED, F.lit(True))), list(TRANSACTION), "left")


def data_records(rows: DataFrame) -> DataFrame:
    """Leave out the control rows: markers, and EMPTY rows that only hold a place."""
    return rows.where(F.col("control").isNull())


def latest_records(
    spark: SparkSession,
    log: TopicLog,
    view: View,
    *,
    partitions: Sequence[int] | None = None,
    keys: Sequence[bytes] | None = None,
    limits: LatestLimits | None = None,
) -> DataFrame:
    """Return the last record of every (partition, key) that a view shows, tombstones left out; of some partitions or keys alone.

    Columns: `LATEST_COLUMNS`. Identity is (partition, key), as in Kafka; keyless rows have no last word. The clean section is read once
    and never shuffled while the dirty one is small enough to send its keys to every task; otherwise keys and offsets alone are.
    `limits` are those of the session by default.
    """
    # Every step of a DataFrame is analysed when it is taken: few steps, as a small answer takes little more than that.
    asked = F.col("control").isNull() & F.col("key").isNotNull()
    if partitions is not None:
        asked &= F.col("partition").isin(list(partitions))
    if keys is not None:
        asked &= F.col("key").isin(list(keys))
    living = asked & F.col("value").isNotNull()
    place = ("partition", "key", "offset")
    chosen = limits or session_limits(spark)
    dirty = view.records(view.first_dirty)
    table = _table(spark, log, view)
    everything = _seen(table, view, view.start)
    if not dirty:
        last = everything.where(living)
    elif dirty * _KEY_BYTES <= chosen.broadcast_bytes:
        words = _seen(table, view, view.first_dirty).where(asked).select(*place)
        is_small = dirty <= chosen.one_task_rows and view.file_count(view.first_dirty) <= chosen.one_task_files
        newer = _newest(words.coalesce(1) if is_small else words)
        same = (F.col("partition") == F.col("__partition")) & (F.col("key") == F.col("__key"))
        last = everything.where(living).join(F.broadcast(newer), same & (F.col("offset") < F.col("__offset")), "left_anti")
    else:
        newest = _newest(everything.where(asked).select(*place)).select(_position("__partition", "__offset").alias("__position"))
        if view.records(view.start) * _POSITION_BYTES <= chosen.broadcast_bytes:
            newest = F.broadcast(newest)
        last = everything.where(living).withColumn("__position", _position("partition", "offset")).join(newest, "__position", "left_semi")
    return last.select(*LATEST_COLUMNS)


def _position(partition: str, offset: str) -> Column:
    """Return a row's position: partition and offset in one long."""
    return F.shiftleft(F.col(partition).cast("bigint"), OFFSET_BITS).bitwiseOR(F.col(offset))


def _newest(rows: DataFrame) -> DataFrame:
    """Return the newest offset of each key, under names that no column of the log has."""
    named = (F.col("partition").alias("__partition"), F.col("key").alias("__key"))
    return rows.groupBy(*named).agg(F.max("offset").alias("__offset"))


def _from(rows: DataFrame, view: View, begin: Sequence[int]) -> DataFrame:
    """Return the rows from an offset vector on; files before it are not read, as their Delta partition says so."""
    if not any(begin):
        return rows
    partition = F.col("partition")
    reached: Column = F.col("slice") >= by_partition(view.first_slices(begin), partition)
    return rows.where(reached & (F.col("offset") >= by_partition(begin, partition)))
