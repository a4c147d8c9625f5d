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

from pyspark.sql import functions as F

from compaction.producers import SEQUENCES
from storage.envelope import ORDER_PREFIX, REASON, record_bytes
from storage.plan_values import listed_by_partition, looked_up
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
    order = ["offset"] if has_offsets else [f"`{name}`" for name in rows.columns if name.startswith(ORDER_PREFIX)]
    log_end = listed_by_partition([active.log_end_offset for active in actives])
    label = listed_by_partition([active.label for active in actives])
    # A partition that is one constant (there is one, or the input names one) is no column to sort by: Delta would sort by it once more,
    # and where that sort spills it keeps no order among equals. No row's place is negative, which Spark does not know.
    spread = rows.withColumn("partition", F.expr(f"CASE WHEN {order[-1]} >= 0 THEN partition END"))
    # By number: a hash sends three of four partitions into one of two tasks.
    task = ["__task"] if spark_partitions > 1 else []
    if task:
        spread = spread.withColumn("__task", F.expr(f"coalesce(pmod(partition, {spark_partitions}), 0)"))
    spread = spread.repartitionById(spark_partitions, F.col("__task")) if task else spread.coalesce(1)
    rest_bytes = record_bytes(F.lit(None), F.col("value"), F.col("headers") if "headers" in given else None)
    # Without a split a partition's rows share a segment and a slice: numbered in that order, they are in the order that Delta writes in.
    place = [] if split else [F.expr(f"{label} AS segment"), F.expr(f"{log_end} AS slice")]
    placed = spread.select("*", rest_bytes.alias("__rest"), *place)

    by_order = f"PARTITION BY {', '.join([*(['partition'] if split else PLACE_COLUMNS), *task])} ORDER BY {', '.join(order)}"
    running = f"{by_order} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
    of_key, of_rest, overhead = (looked_up(f"{one}D") for one in (compression.key, compression.rest, compression.overhead))
    weight = f"coalesce(octet_length(key), 0) * {of_key} + __rest * {of_rest} + {overhead}"
    now = looked_up(f"{now_ms}L")
    # Without times of their own all rows have that of the append.
    stamps = [f"{name}(unix_millis(timestamp)) OVER ({running})" if "timestamp" in given else now for name in ("max", "first")]
    measured = placed.selectExpr(
        "*",
        f"row_number() OVER ({by_order}) AS __rank",
        f"sum({weight}) OVER ({running}) AS __sum",
        f"{stamps[0]} AS __latest",
        f"{stamps[1]} AS __first",
        *([f"lag(offset) OVER ({by_order}) AS __previous"] if has_offsets else []),
    )

    fill = listed_by_partition([active.size_bytes for active in actives])
    begun = listed_by_partition([active.first_timestamp_ms for active in actives])
    run_by_bytes = f"floor(({fill} + __sum - 1) / {config.segment_bytes})"
    run_by_time = f"floor(greatest(0, __latest - coalesce({begun}, __first) - 1) / {config.max_segment_ms})"
    run = f"(greatest(0, {run_by_bytes}) + {run_by_time})"
    guards = {f"{REASON} IS NOT NULL": Guard.INVALID}
    if has_offsets:
        guards["__previous = offset"] = Guard.DOUBLE
    if not split:
        guards[f"{run} > 0 AND ({fill} > 0 OR __rank > 1)"] = Guard.SPLIT
    cases = " ".join(f"WHEN {when} THEN CAST(raise_error('{guard.value}') AS BIGINT)" for when, guard in guards.items())
    offset = f"CASE {cases} ELSE {'offset' if has_offsets else f'{log_end} + __rank - 1'} END"

    if split:
        runs = measured.withColumns({"offset": F.expr(offset), "__run": F.expr(run)})
        begins = f"__run != coalesce(lag(__run) OVER ({by_order}), 0)"
        starts = runs.selectExpr("*", f"CASE WHEN {begins} THEN offset END AS __start")
        based = starts.selectExpr("*", f"max(__start) OVER ({running}) AS __base")
        located = based.selectExpr("*", f"coalesce(__base, {label}) AS segment", f"coalesce(__base, {log_end}) AS slice")
    else:
        located = measured.withColumn("offset", F.expr(offset))
    if stamped is not None:
        located = located.selectExpr("*", *_stamped(stamped))
    elif "producer_id" in located.columns:
        located = with_first_offsets(located)
    absent = {
        "producer_id": "bigint",
        "producer_epoch": "int",
        "sequence": "int",
        "txn_first_offset": "bigint",
        "control": "string",
        "headers": HEADERS_TYPE,
        "delete_horizon": "timestamp",
    }
    values = {name: f"CAST(NULL AS {kind}) AS {name}" for name, kind in absent.items() if name not in located.columns}
    values["appended_at"] = f"timestamp_millis({now}) AS appended_at"
    log_rows = located.selectExpr(*(values.get(name, name) for name in LOG_COLUMNS))
    return log_rows.sortWithinPartitions(*PLACE_COLUMNS, "offset") if split else log_rows


def _stamped(stamped: Stamped) -> list[str]:
    """Return the SQL of the columns that one producer gives to all rows."""
    return [
        f"{stamped.stamp.producer_id}L AS producer_id",
        f"CAST({stamped.stamp.epoch} AS INT) AS producer_epoch",
        f"CAST(pmod({listed_by_partition(stamped.next_sequences)} + __rank - 1, {SEQUENCES}L) AS INT) AS sequence",
        f"{listed_by_partition(stamped.first_offsets)} AS txn_first_offset",
    ]
