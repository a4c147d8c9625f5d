"""Offsets, segments and slices for the rows of one append, in one pass over them.

```
 log end 100, active segment 60 (nearly full)            segment.bytes reached here, and here
                                                                  │           │
   rows of the partition, in source order     a  b  c  d  e  f  g  h  i  j  k  l
   offset  = log end + rank                 100 ……………………………………… 107 ………………… 111
   segment = active's label, then first offset of each run   60     107        111
   slice   = log end, then first offset of each run         100     107        111
```

Splitting needs three window passes, so the common micro-batch, which fits into its active segment, is written with one and with a
guard instead: a row that would have to go elsewhere, or that the log may not take, fails the job with `Guard`, nothing is committed, and
the append is repeated with care. The caller chooses the careful way at once where it expects to need it.

Where there is room for many times what is expected, no window is needed either: each Spark partition holds one partition, whose rows are
counted as they come out of the sort, and `rank × the most that a record may take` stands in for what they take together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from lastword.compaction.producers import SEQUENCES
from lastword.storage.append.producer_rows import with_first_offsets
from lastword.storage.append.validation import LAST_TIMESTAMP_MS, ORDER_PREFIX, REASON, record_bytes
from lastword.storage.delta.plan_values import listed_by_partition, looked_up
from lastword.storage.files.schema import LOG_COLUMNS, PLACE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pyspark.sql import DataFrame

    from lastword.compaction.config.topic_config import TopicConfig
    from lastword.compaction.log.segments import ActiveSegment
    from lastword.compaction.producers import ProducerStamp
    from lastword.storage.delta.footers import Compression

#: A micro-batch of up to this many rows is numbered by one task: a shuffle costs more than it saves.
SMALL_ROWS: Final = 20_000
#: How many rows of a Spark partition `monotonically_increasing_id` tells apart.
_MOST_ROWS: Final = 2**33
_TASK: Final = "__task"


class Guard(str, Enum):
    """Why a write without care was given up; the text travels through Spark's exception."""

    INVALID = "lastword:guard:invalid (this micro-batch holds rows that the log refuses; it is repeated with care, nothing was written)"
    SPLIT = "lastword:guard:split (this micro-batch begins a new segment within itself; it is repeated with care, nothing was written)"
    UNEVEN = "lastword:guard:uneven (more or larger rows than those before; this micro-batch is repeated, nothing was written)"
    DOUBLE = "lastword:guard:double (two rows of this input carry the same offset; nothing was written)"

    @staticmethod
    def of(error: Exception) -> Guard | None:
        """Return the guard that an exception of Spark carries, or None."""
        text = str(error)  # Spark's errors of analysis quote the plan, and all guards with it
        return next((guard for guard in Guard if f"[USER_RAISED_EXCEPTION] {guard.value.split(' ')[0]}" in text), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamped:
    """One producer for all rows of an append: where its sequences and its transaction stand in every partition."""

    stamp: ProducerStamp
    next_sequences: Sequence[int]
    first_offsets: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbering:
    """What numbers the rows of one append.

    `actives` says for every partition where its append begins; `compression` is what a record takes in a file of this topic; `given` names
    the optional columns that the input brought (`Shape.columns`); `stamped` gives all rows one producer.
    """

    actives: Sequence[ActiveSegment]
    config: TopicConfig
    now_ms: int
    compression: Compression
    given: Collection[str]
    stamped: Stamped | None = None

    def added_up(self, rows: DataFrame, *, split: bool, spark_partitions: int) -> DataFrame:
        """Return checked rows as rows of the log table, each partition's in one Spark partition and in offset order.

        With `split` False a row that does not belong into the active segment raises `Guard.SPLIT`. Rows with a reason always raise
        `Guard.INVALID`: filter them out first.
        """
        has_offsets = "offset" in self.given
        spread, order = _spread(rows, self._order(rows), spark_partitions), ", ".join(self._order(rows))
        rest_bytes = record_bytes("NULL", "value", "headers" if "headers" in self.given else None)
        # Without a split a partition's rows share a segment and a slice: numbered in that order, they are in the order Delta writes in.
        placed = spread.selectExpr("*", f"{rest_bytes} AS __rest", *([] if split else self._place()))

        together = [*(["partition"] if split else PLACE_COLUMNS), *([_TASK] if spark_partitions > 1 else [])]
        by_order = f"PARTITION BY {', '.join(together)} ORDER BY {order}"
        running = f"{by_order} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
        one = self.compression
        of_key, of_rest, overhead = (looked_up(f"{number}D") for number in (one.key, one.rest, one.overhead))
        weight = f"coalesce(octet_length(key), 0) * {of_key} + __rest * {of_rest} + {overhead}"
        # Without times of their own all rows have that of the append.
        now, timed = looked_up(f"{self.now_ms}L"), "timestamp" in self.given
        stamps = [f"{name}(unix_millis(timestamp)) OVER ({running})" if timed else now for name in ("max", "first")]
        measured = placed.selectExpr(
            "*",
            f"row_number() OVER ({by_order}) AS __rank",
            f"sum({weight}) OVER ({running}) AS __sum",
            f"{stamps[0]} AS __latest",
            f"{stamps[1]} AS __first",
            *([f"lag(offset) OVER ({by_order}) AS __previous"] if has_offsets else []),
        )

        fill, begun, log_end = self._fill(), listed_by_partition([active.first_timestamp_ms for active in self.actives]), self._log_end()
        run_by_bytes = f"floor(({fill} + __sum - 1) / {self.config.segment_bytes})"
        run_by_time = f"floor(greatest(0, __latest - coalesce({begun}, __first) - 1) / {self.config.max_segment_ms})"
        run = f"(greatest(0, {run_by_bytes}) + {run_by_time})"
        guards = {f"{REASON} IS NOT NULL": Guard.INVALID}
        if has_offsets:
            guards["__previous = offset"] = Guard.DOUBLE
        if not split:
            guards[f"{run} > 0 AND ({fill} > 0 OR __rank > 1)"] = Guard.SPLIT
        offset = _guarded(guards, "offset" if has_offsets else f"{log_end} + __rank - 1")
        if not split:
            return self._log_rows(measured.withColumn("offset", F.expr(offset)))
        label = self._label()
        runs = measured.withColumns({"offset": F.expr(offset), "__run": F.expr(run)})
        begins = f"__run != coalesce(lag(__run) OVER ({by_order}), 0)"
        starts = runs.selectExpr("*", f"CASE WHEN {begins} THEN offset END AS __start")
        based = starts.selectExpr("*", f"max(__start) OVER ({running}) AS __base")
        located = based.selectExpr("*", f"coalesce(__base, {label}) AS segment", f"coalesce(__base, {log_end}) AS slice")
        return self._log_rows(located).sortWithinPartitions(*PLACE_COLUMNS, "offset")

    def counts(self) -> bool:
        """Tell whether `counted` can number these rows: they bring no offsets, and how long the active segments last is known."""
        begun = [active.first_timestamp_ms for active in self.actives if active.first_timestamp_ms is not None]
        if "timestamp" in self.given:
            return "offset" not in self.given and len(begun) == len(self.actives)
        return "offset" not in self.given and all(self.now_ms <= self._ends_ms(at) for at in begun)

    def counted(self, rows: DataFrame, *, most_bytes: float) -> DataFrame:
        """Return what `added_up` returns without a split, each partition's rows in the Spark partition of its number; where `counts()`.

        `most_bytes` is what no record takes in a file; one that may, and more rows than segments have room for then, raise `Guard.UNEVEN`.
        """
        order = self._order(rows)
        spread = _spread(rows, order, len(self.actives))
        # Spark counts the rows of a Spark partition as they come out of the sort, and puts its number above.
        ids = listed_by_partition([active.log_end_offset - active.partition * _MOST_ROWS for active in self.actives])
        ordered = spread.selectExpr("*", *self._place()).sortWithinPartitions(*PLACE_COLUMNS, *order)
        ranked = ordered.selectExpr("*", f"monotonically_increasing_id() + {ids} AS __offset")

        # A file takes no more of a record than there is of it: as it is, it needs no weighing.
        size = record_bytes("key", "value", "headers" if "headers" in self.given else None)
        most_raw_bytes = math.floor(most_bytes - self.compression.overhead)
        ends = [active.log_end_offset + int((self.config.segment_bytes - active.size_bytes) / most_bytes) - 1 for active in self.actives]
        guards = {
            f"{REASON} IS NOT NULL": Guard.INVALID,
            f"__offset NOT BETWEEN slice AND {listed_by_partition(ends)}": Guard.UNEVEN,
            f"{size} > {looked_up(f'{most_raw_bytes}L')}": Guard.UNEVEN,
        }
        if "timestamp" in self.given:
            until = [None if active.first_timestamp_ms is None else self._ends_ms(active.first_timestamp_ms) for active in self.actives]
            guards[f"unix_millis(timestamp) > {listed_by_partition(until)}"] = Guard.SPLIT
        return self._log_rows(ranked.withColumn("offset", F.expr(_guarded(guards, "__offset"))))

    def _order(self, rows: DataFrame) -> list[str]:
        return ["offset"] if "offset" in self.given else [f"`{name}`" for name in rows.columns if name.startswith(ORDER_PREFIX)]

    def _place(self) -> list[str]:
        return [f"{self._label()} AS segment", f"{self._log_end()} AS slice"]

    def _log_end(self) -> str:
        return listed_by_partition([active.log_end_offset for active in self.actives])

    def _label(self) -> str:
        return listed_by_partition([active.label for active in self.actives])

    def _fill(self) -> str:
        return listed_by_partition([active.size_bytes for active in self.actives])

    def _ends_ms(self, begun_ms: int) -> int:
        """Return the last record time that a segment takes whose first record is of `begun_ms`; none is later than the log takes."""
        return min(begun_ms + self.config.max_segment_ms, LAST_TIMESTAMP_MS)

    def _log_rows(self, located: DataFrame) -> DataFrame:
        """Return the columns of the log table that may hold something; the others are null in every row, and the writer adds them."""
        if self.stamped is not None:
            located = located.selectExpr("*", *_stamped(self.stamped, self._log_end()))
        elif "producer_id" in located.columns:
            located = with_first_offsets(located)
        stamp = f"timestamp_millis({looked_up(f'{self.now_ms}L')}) AS appended_at"
        # Spark takes far longer to hand over a list, though it is null in each row, than all other columns together.
        given = [name for name in LOG_COLUMNS if name in located.columns and (name != "headers" or "headers" in self.given)]
        return located.selectExpr(*given, stamp)


def _guarded(guards: Mapping[str, Guard], otherwise: str) -> str:
    """Return the SQL of a number that raises the first guard whose condition holds."""
    cases = " ".join(f"WHEN {when} THEN CAST(raise_error('{guard.value}') AS BIGINT)" for when, guard in guards.items())
    return f"CASE {cases} ELSE {otherwise} END"


def _spread(rows: DataFrame, order: Sequence[str], spark_partitions: int) -> DataFrame:
    """Return rows with each partition's in one Spark partition: in that of its own number, where there are as many."""
    # A partition that is one constant (there is one, or the input names one) is no column to sort by: Delta would sort by it once more,
    # and where that sort spills it keeps no order among equals. No row's place is negative, which Spark does not know.
    partition = f"CASE WHEN {order[-1]} >= 0 THEN partition END"
    if spark_partitions == 1:
        return rows.withColumn("partition", F.expr(partition)).coalesce(1)
    # By number: a hash sends three of four partitions into one of two tasks.
    task = f"coalesce(pmod({partition}, {spark_partitions}), 0)"
    return rows.withColumns({"partition": F.expr(partition), _TASK: F.expr(task)}).repartitionById(spark_partitions, F.col(_TASK))


def _stamped(stamped: Stamped, log_end: str) -> list[str]:
    """Return the SQL of the columns that one producer gives to all rows."""
    return [
        f"{stamped.stamp.producer_id}L AS producer_id",
        f"CAST({stamped.stamp.epoch} AS INT) AS producer_epoch",
        f"CAST(pmod({listed_by_partition(stamped.next_sequences)} + offset - {log_end}, {SEQUENCES}L) AS INT) AS sequence",
        f"{listed_by_partition(stamped.first_offsets)} AS txn_first_offset",
    ]
