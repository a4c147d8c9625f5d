"""Refused rows of streams: nothing of an input is lost, and nobody has to look for it in a log file.

One row a refusal in `dead_letters/`, with the reason, the value that was wrong and what is allowed, and the row itself. Written
*before* the good rows of the same micro-batch are committed, under the query's id and the micro-batch's number: a replay writes them
once. A batch call refuses instead: it raises, and nothing is written anywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from compaction.errors import InvalidRecords
from storage.envelope import DETAIL, RAW, REASON
from storage.schema import DEAD_LETTER_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_REASONS_NAMED = 10


def count_refused(rows: DataFrame) -> dict[str, int]:
    """Return the number of refused rows by reason; runs one job over checked rows."""
    counted = rows.where(F.col(REASON).isNotNull()).groupBy(REASON).count().collect()
    return {row[REASON]: row["count"] for row in counted}


def write_dead_letters(rows: DataFrame, location: str, *, source: str, query_id: str, batch_id: int, now_ms: int) -> None:
    """Append the refused ones among checked rows to the dead letters; nothing happens when this micro-batch did it before."""
    refused = rows.where(F.col(REASON).isNotNull()).select(
        F.timestamp_millis(F.lit(now_ms)).alias("refused_at"),
        F.lit(source).alias("source"),
        F.lit(query_id).alias("query_id"),
        F.lit(batch_id).cast("bigint").alias("batch_id"),
        F.col(REASON).alias("reason"),
        F.col(DETAIL).alias("detail"),
        "partition",
        "offset",
        "timestamp",
        "key",
        "value",
        "headers",
        F.col(RAW).alias("raw"),
    )
    (
        refused.select(*DEAD_LETTER_COLUMNS)
        .write.format("delta")
        .mode("append")
        .option("txnAppId", query_id)
        .option("txnVersion", batch_id)
        .save(location)
    )


def refusal(rows: DataFrame, *, topic: str) -> InvalidRecords:
    """Return the error of a batch call: every reason with its count and one example; runs one job over checked rows."""
    found = (
        rows.where(F.col(REASON).isNotNull())
        .groupBy(REASON)
        .agg(F.count("*").alias("rows"), F.first(DETAIL).alias("example"))
        .orderBy(F.desc("rows"), REASON)
        .limit(_REASONS_NAMED)
        .collect()
    )
    lines = [f"  {row['rows']} × {row[REASON]}: {row['example']}" for row in found]
    message = f"topic {topic} cannot take these rows; nothing was appended:\n" + "\n".join(lines)
    return InvalidRecords(message)
