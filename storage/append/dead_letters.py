"""Refused rows of streams: nothing of an input is lost, and nobody has to look for it in a log file.

One row a refusal in `dead_letters/`, with the reason, the value that was wrong and what is allowed, and the row itself. Written
*before* the good rows of the same micro-batch are committed, under the query's id and the micro-batch's number: a replay writes them
once. A batch call refuses instead: it raises, and nothing is written anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler
from pyarrow import fs
from pyspark.sql import functions as F

from lastword.compaction.errors import InvalidRecords
from lastword.storage.append.validation import DETAIL, RAW, REASON
from lastword.storage.files.schema import DEAD_LETTER_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

_REASONS_NAMED: Final = 10
_SHOWN: Final = ("refused_at", "source", "reason", "detail", "partition", "offset", "key")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLettersView:
    """How many dead letters there are, and the newest of them: refused_at, source, reason, detail, partition, offset, key."""

    count: int
    newest: tuple[Mapping[str, Any], ...]


@dataclass(slots=True)
class DeadLetters:
    """The dead letters of one topic for people, without a Spark job; read again only when there are others."""

    location: str
    storage_options: Mapping[str, str]
    most: int = 20
    _table: DeltaTable | None = None
    _seen: tuple[int, DeadLettersView] | None = field(default=None)

    def look(self) -> DeadLettersView:
        """Return the count, and the newest `most` of them, newest first."""
        if self._table is None:
            self._table = DeltaTable(self.location, storage_options=dict(self.storage_options))
        else:
            self._table.update_incremental()
        version = self._table.version()
        if self._seen is None or self._seen[0] != version:
            self._seen = version, self._read(self._table)
        return self._seen[1]

    def _read(self, table: DeltaTable) -> DeadLettersView:
        files = table.get_add_actions(flatten=True)
        paths = files.column("path").to_pylist()
        counts = files.column("num_records").to_pylist()
        times = files.column("modification_time").to_pylist()
        filesystem = fs.PyFileSystem(DeltaStorageHandler(self.location, dict(self.storage_options)))
        newest: list[dict[str, Any]] = []
        for _, path in sorted(zip(times, paths, strict=True), reverse=True):
            if len(newest) >= self.most:
                break
            with pq.ParquetFile(path, filesystem=filesystem) as file:
                for batch in file.iter_batches(batch_size=self.most, columns=list(_SHOWN)):
                    newest += batch.to_pylist()
                    break
        newest.sort(key=lambda row: (row["refused_at"], row["offset"] or 0), reverse=True)
        return DeadLettersView(count=sum(count or 0 for count in counts), newest=tuple(newest[: self.most]))
