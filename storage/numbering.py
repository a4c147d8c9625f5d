"""Offsets, segments and slices for the rows of one append, in one pass over them.

```
 log end 100, active segment 60 (nearly full)            segment.bytes reached here, and here
                                                                  │           │
   rows of the partition, in source order     a  b  c  d  e  f  g  h  i  j  k  l
   offset  = log end + rank                 100 ……………………………………… 107 ………………… 111
   segment = active's label, then first offset of each run   60     107        111
   slice   = log end, then first offset of each run         100     107        111
```

Splitting needs two more window passes, so the common micro-batch, which fits into its active segment, is written without them and
with a guard instead: a row that would have to go elsewhere, or that the log may not take, fails the job with `Guard`, nothing is
committed, and the append is repeated with care. The caller chooses the careful way at once where it expects to need it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from compaction.producers import SEQUENCES
from storage.envelope import ORDER_PREFIX, REASON, by_partition, record_bytes
from storage.producer_rows import with_first_offsets
from storage.schema import HEADERS_TYPE, LOG_COLUMNS, PLACE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pyspark.sql import DataFrame

    from compaction.config import TopicConfig
    from compaction.producers import ProducerStamp
    from compaction.segments import ActiveSegment
    from storage.footers import Compression

#: A micro-batch of up to this many rows is numbered by one task: a shuffle costs more than it saves.
SMALL_ROWS: Final = 20_000
_NO_TIMESTAMP: Final = -1


class Guard(str, Enum):
    """Why a write without care was given up; the text travels through Spark's exception."""

    INVALID = "lastword:guard:invalid (this micro-batch holds rows that the log refuses; it is repeated with care, nothing was written)"
    SPLIT = "lastword:guard:split (this micro-batch begins a new segment within itself; it is repeated with care, nothing was written)"
    DOUBLE = "lastword:guard:double (two rows of this input carry the same offset; nothing was written)"

    @staticmethod
    def of(error: Exception) -> Guard | None:
        """Return the guard that an exception of Spark carries, or None."""
        text = str(error)
        return next((guard for guard in Guard if guard.value.split(" ")[0] in text), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamped:
    """One producer for all rows of an append: where its sequences and its transaction stand in every partition."""

    stamp: ProducerStamp
    next_sequences: Sequence[int]
    first_offsets: Sequence[int]


def numbered(
    rows: DataFrame,
    actives: Sequence[ActiveSegment],
    config: TopicConfig,
    *,
    now_ms: int,
    compression: Compression,
    given: Collection[str],
    split: bool,
    spark_partitions: int,
    stamped: Stamped | None = None,
) -> DataFrame:
    """Return checked rows as rows of the log table, each partition's in one Spark partition and in offset order.

    `given` names the optional columns that the input brought (`Shape.columns`). `actives` says for every partition where its append
    begins. `compression` is what a record takes in a file of this topic. With `split` False a row that
    does not belong into the active segment raises `Guard.SPLIT`. Rows with a reason always raise `Guard.INVALID`: filter them out first.
    `stamped` gives all rows one producer.
    """
    has_offsets = "offset" in given
    order = ["offset"] if has_offsets else [name for name in rows.columns if name.startswith(ORDER_PREFIX)]
    # A partition that is one constant (there is one, or the input names one) is no column to sort by: Delta would sort by it once more,
    # and where that sort spills it keeps no order among equals. No row's place is negative, which Spark does not know.
    rows = rows.withColumn("partition", F.when(F.col(order[-1]) >= 0, F.col("partition")))
    log_end = by_partition([active.log_end_offset for active in actives], F.col("partition"), fold=False)
    label = by_partition([active.label for active in actives], F.col("partition"), fold=False)
    placed = rows.coalesce(1) if spark_partitions == 1 else rows.repartition(spark_partitions, "partition")
    # Without a split a partition's rows share a segment and a slice: numbered in that order, they are in the order that Delta writes in.
    placed = placed if split else placed.withColumns({"segment": label, "slice": log_end})
    by_order = Window.partitionBy(*(("partition",) if split else PLACE_COLUMNS)).orderBy(*order)
    running = by_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)

    fill = by_partition([active.size_bytes for active in actives], F.col("partition"))
    first_ms = by_partition(
        [_NO_TIMESTAMP if active.first_timestamp_ms is None else active.first_timestamp_ms for active in actives], F.col("partition")
    )

    key_bytes = F.coalesce(F.octet_length("key"), F.lit(0))
    rest_bytes = record_bytes(F.lit(None), F.col("value"), F.col("headers") if "headers" in given else None)
    weight = key_bytes * F.lit(compression.key) + rest_bytes * F.lit(compression.rest) + F.lit(compression.overhead)
    stamp = F.unix_millis("timestamp") if "timestamp" in given else None  # else all rows have the time of the append
    measured = placed.select(
        "*",
        F.row_number().over(by_order).alias("__rank"),
        F.sum(weight).over(running).alias("__sum"),
        (F.lit(now_ms) if stamp is None else F.max(stamp).over(running)).alias("__latest"),
        (F.lit(now_ms) if stamp is None else F.first(stamp).over(running)).alias("__first"),
        *([F.lag("offset").over(by_order).alias("__previous")] if has_offsets else []),
    )
    begun = F.when(first_ms == _NO_TIMESTAMP, F.col("__first")).otherwise(first_ms)
    run_by_bytes = F.floor((fill + F.col("__sum") - 1) / F.lit(config.segment_bytes))
    run_by_time = F.floor(F.greatest(F.lit(0), F.col("__latest") - begun - 1) / F.lit(config.max_segment_ms))
    run = F.greatest(F.lit(0), run_by_bytes) + run_by_time

    offset = F.col("offset") if has_offsets else log_end + F.col("__rank") - 1
    guards = F.when(F.col(REASON).isNotNull(), F.lit(Guard.INVALID.value))
    if has_offsets:
        guards = guards.when(F.col("__previous") == F.col("offset"), F.lit(Guard.DOUBLE.value))
    if not split:
        guards = guards.when((run > 0) & ((fill > 0) | (F.col("__rank") > 1)), F.lit(Guard.SPLIT.value))
    offset = F.when(guards.isNotNull(), F.raise_error(guards).cast("bigint")).otherwise(offset)

    if split:
        runs = measured.withColumn("__run", run).withColumn("offset", offset)
        starts = runs.withColumn("__start", F.when(F.col("__run") != F.coalesce(F.lag("__run").over(by_order), F.lit(0)), F.col("offset")))
        base = F.max("__start").over(running)
        located = starts.withColumn("__base", base).select(
            "*", F.coalesce("__base", label).alias("segment"), F.coalesce("__base", log_end).alias("slice")
        )
    else:
        located = measured.withColumn("offset", offset)
    if stamped is not None:
        located = _stamped(located, stamped)
    elif "producer_id" in located.columns:
        located = with_first_offsets(located)
    nothing = {
        "producer_id": "bigint",
        "producer_epoch": "int",
        "sequence": "int",
        "txn_first_offset": "bigint",
        "control": "string",
        "headers": HEADERS_TYPE,
        "delete_horizon": "timestamp",
    }
    filled = located.select(
        "*",
        F.timestamp_millis(F.lit(now_ms)).alias("appended_at"),
        *(F.lit(None).cast(data_type).alias(name) for name, data_type in nothing.items() if name not in located.columns),
    )
    log_rows = filled.select(*LOG_COLUMNS)
    return log_rows.sortWithinPartitions(*PLACE_COLUMNS, "offset") if split else log_rows


def _stamped(rows: DataFrame, stamped: Stamped) -> DataFrame:
    partition = F.col("partition")
    sequence = F.pmod(by_partition(stamped.next_sequences, partition) + F.col("__rank") - 1, F.lit(SEQUENCES))
    return rows.withColumns(
        {
            "producer_id": F.lit(stamped.stamp.producer_id).cast("bigint"),
            "producer_epoch": F.lit(stamped.stamp.epoch).cast("int"),
            "sequence": sequence.cast("int"),
            "txn_first_offset": by_partition(stamped.first_offsets, partition),
        }
    )
