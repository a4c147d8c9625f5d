"""Rows that carry their producer, judged by the thousand: `judge` of tests/compaction/producer_rules.py as Spark expressions.

One micro-batch is Kafka's record batch here: after the first refused row of a producer, what it still brings in the same micro-batch is
refused too (Kafka's client would have to resend it). Rows of an older epoch are refused wherever they stand; rows that are in the log
already are dropped and counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lastword.compaction.producers import SEQUENCES, Control, Verdict
from lastword.storage.append.validation import DETAIL, ORDER_PREFIX, REASON

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame

    from lastword.compaction.producers import ProducerState

#: Columns that `judged` adds for `Numbering`: the first offset of the transaction that the producer has open.
OPEN_FIRST: Final = "__open_first"
_STATE_TYPE: Final = T.StructType(
    [
        T.StructField("partition", T.IntegerType()),
        T.StructField("producer_id", T.LongType()),
        T.StructField("__known_epoch", T.IntegerType()),
        T.StructField("__known_sequence", T.LongType()),
        T.StructField(OPEN_FIRST, T.LongType()),
    ]
)


def judged(rows: DataFrame, states: Iterable[ProducerState]) -> DataFrame:
    """Return checked rows with the producer's verdict as their reason, and the column `OPEN_FIRST`.

    Runs no job. Rows without a producer, and rows that are refused already, stay as they are.
    """
    order = [name for name in rows.columns if name.startswith(ORDER_PREFIX)]
    known = [(one.partition, one.producer_id, one.epoch, one.last_sequence, one.open_first_offset) for one in states]
    state = rows.sparkSession.createDataFrame(known, _STATE_TYPE)
    joined = rows.join(F.broadcast(state), ["partition", "producer_id"], "left")

    mine = F.col("producer_id").isNotNull() & F.col(REASON).isNull()
    by_producer = Window.partitionBy("partition", "producer_id").orderBy(*order)
    before = by_producer.rowsBetween(Window.unboundedPreceding, -1)
    data = mine & F.col("control").isNull()
    epochs = joined.withColumn(
        "__epoch",
        F.greatest(
            F.coalesce(F.max(F.when(mine, F.col("producer_epoch"))).over(before), F.lit(-1)), F.coalesce("__known_epoch", F.lit(-1))
        ),
    ).withColumn("__fenced", mine & (F.col("producer_epoch") < F.col("__epoch")))

    # Sequences of one epoch on a line: those after the ring's end lie behind it.
    by_epoch = Window.partitionBy("partition", "producer_id", "producer_epoch").orderBy(*order)
    before_in_epoch = by_epoch.rowsBetween(Window.unboundedPreceding, -1)
    same_epoch = F.col("producer_epoch") == F.col("__known_epoch")
    # A producer that nobody knows may start anywhere, with its very first row; every other epoch starts at 0.
    start = F.first(F.when(mine, F.struct("producer_epoch", "sequence")), ignorenulls=True).over(
        by_producer.rowsBetween(Window.unboundedPreceding, 0)
    )
    anywhere = F.col("__known_epoch").isNull() & (start["producer_epoch"] == F.col("producer_epoch")) & start["sequence"].isNotNull()
    origin = F.when(same_epoch, F.coalesce(F.col("__known_sequence"), F.lit(-1))).when(anywhere, start["sequence"].cast("bigint") - 1)
    counts = data & ~F.col("__fenced")
    placed = epochs.withColumn("__origin", F.coalesce(origin, F.lit(-1).cast("bigint")))
    behind = (F.col("__origin") + 1 - F.col("sequence")) > F.lit(SEQUENCES // 2)
    placed = placed.withColumn("__line", F.when(behind, F.col("sequence") + F.lit(SEQUENCES)).otherwise(F.col("sequence").cast("bigint")))
    highest = F.greatest(
        F.coalesce(F.max(F.when(counts, F.col("__line"))).over(before_in_epoch), F.lit(-1).cast("bigint")), F.col("__origin")
    )
    placed = placed.withColumn("__highest", highest)
    gap = counts & (F.col("__line") > F.col("__highest") + 1)
    duplicate = counts & (F.col("__line") <= F.col("__highest"))

    placed = placed.withColumn("__gap", gap).withColumn("__duplicate", duplicate)

    living = mine & ~F.col("__fenced")
    ends = living & F.col("control").isNotNull()
    begins = living & F.col("control").isNull() & F.col("transactional") & ~F.col("__duplicate")
    last_event = F.last(F.when(ends, F.lit(False)).when(begins, F.lit(True)), ignorenulls=True).over(before)
    opened = F.coalesce(last_event, F.col(OPEN_FIRST).isNotNull())
    placed = placed.withColumn("__plain_inside", counts & ~F.col("__duplicate") & ~F.col("transactional") & opened)
    stopped = living & F.coalesce(F.max(F.col("__gap") | F.col("__plain_inside")).over(before), F.lit(False))

    verdict = (
        F.when(F.col("__fenced"), Verdict.FENCED.value)
        .when(stopped, Verdict.GAP.value)
        .when(F.col("__duplicate"), Verdict.DUPLICATE.value)
        .when(F.col("__plain_inside"), Verdict.NOT_TRANSACTIONAL.value)
        .when(F.col("__gap"), Verdict.GAP.value)
    )
    detail = (
        F.when(
            F.col("__fenced"),
            F.format_string(
                "epoch %d of producer %d: allowed is %d or later", F.col("producer_epoch"), F.col("producer_id"), F.col("__epoch")
            ),
        )
        .when(
            stopped | F.col("__gap"),
            F.format_string(
                "sequence %s of producer %d: expected %d",
                F.col("sequence").cast("string"),
                F.col("producer_id"),
                F.pmod(F.col("__highest") + 1, F.lit(SEQUENCES)),
            ),
        )
        .when(F.col("__duplicate"), F.format_string("sequence %d of producer %d is in the log", F.col("sequence"), F.col("producer_id")))
        .when(
            F.col("__plain_inside"),
            F.format_string("producer %d has a transaction open; allowed are transactional rows", F.col("producer_id")),
        )
    )
    return (
        placed.withColumn(REASON, F.coalesce(F.col(REASON), verdict))
        .withColumn(DETAIL, F.coalesce(F.col(DETAIL), detail))
        .select(*rows.columns, OPEN_FIRST)
    )


def with_first_offsets(numbered_rows: DataFrame) -> DataFrame:
    """Return numbered rows with `txn_first_offset`: the first offset of their transaction in their partition, for data and markers."""
    by_producer = Window.partitionBy("partition", "producer_id").orderBy("offset")
    before = by_producer.rowsBetween(Window.unboundedPreceding, -1)
    marker = F.col("control").isin(Control.COMMIT.value, Control.ABORT.value)
    nth = F.coalesce(F.sum(F.when(marker, 1).otherwise(0)).over(before), F.lit(0))
    counted = numbered_rows.withColumn("__nth", nth)
    of_transaction = Window.partitionBy("partition", "producer_id", "__nth")
    begun = F.min(F.when(F.col("transactional") & F.col("control").isNull(), F.col("offset"))).over(of_transaction)
    first = F.when((F.col("__nth") == 0) & F.col(OPEN_FIRST).isNotNull(), F.col(OPEN_FIRST)).otherwise(begun)
    belongs = F.col("producer_id").isNotNull() & (F.col("transactional") | marker)
    return counted.withColumn("txn_first_offset", F.when(belongs, first)).drop("__nth")
