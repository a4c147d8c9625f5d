"""What changed between two offset vectors, with the values from before: the log as a change feed.

```
 offset    0 a=1   1 b=1 │ 2 a=2   3 b=∅   4 c=1   5 a=3 │ 6 …        from [2] to [6]
 changes                   a 1→2   b 1→∅   ∅→c 1   a 2→3              update, delete, insert, update
 net                       a 1→3   b 1→∅   ∅→c 1                      each key once
```

A change needs the records that it speaks of: a table version that was not cleaned past the first vector (for net changes, one such version
for each of the two vectors).
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lastword.storage.reading.time_travel import change_witnesses, check_range, witnesses
from lastword.streaming.reading.dataframes import data_records, latest_records, log_records

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from lastword.storage.log.topic_log import TopicLog

_WORD: Final = ("value", "headers", "timestamp", "offset")


def changes(log: TopicLog, spark: SparkSession, begin: Sequence[int], end: Sequence[int], *, isolation: str) -> DataFrame:
    """Return every change from `begin` to `end` (exclusive), `CHANGE_COLUMNS`; offset and timestamp are those of the record that made it.

    A tombstone for a key that is not there changes nothing. Raises `OffsetOutOfRange` for a vector that goes back or is not reached yet,
    `HistoryCleaned` when cleaning has removed records that the answer needs.
    """
    parts = []
    for witness in change_witnesses(log, begin, end, isolation):
        rows = data_records(log_records(spark, log, witness.below(end), begin=begin)).where(F.col("key").isNotNull())
        keys = rows.select("partition", "key").distinct()
        before = latest_records(spark, log, witness.below(begin)).join(keys, ["partition", "key"], "left_semi")
        columns = ("partition", "key", *_WORD)
        parts.append(
            rows.select(*columns, F.lit(True).alias("__asked")).unionByName(before.select(*columns, F.lit(False).alias("__asked")))
        )
    together = reduce(DataFrame.unionByName, parts)
    ordered = "OVER (PARTITION BY partition, key ORDER BY offset)"
    word = f"struct({', '.join(_WORD)})"
    steps = together.select("*", F.expr(f"{word} AS after"), F.expr(f"lag({word}) {ordered} AS before")).where("__asked")
    return _told(steps)


def net_changes(log: TopicLog, spark: SparkSession, begin: Sequence[int], end: Sequence[int], *, isolation: str) -> DataFrame:
    """Return what the keys say at `end` and did not say at `begin`, each key once; columns and errors as `changes`.

    A delete has offset and timestamp of the word that went: its tombstone may be gone.
    """
    check_range(log, begin, end)
    tables = []
    for name, vector in (("before", begin), ("after", end)):
        found = [latest_records(spark, log, one.below(vector)) for one in witnesses(log, vector, isolation, asked="changes")]
        table = reduce(DataFrame.unionByName, found)
        tables.append(table.select("partition", "key", F.struct(*_WORD).alias(name)))
    both = tables[0].join(tables[1], ["partition", "key"], "full")
    return _told(both.where("NOT (before.offset <=> after.offset)"))


def _told(steps: DataFrame) -> DataFrame:
    """Return the changes that steps (partition, key, before, after) make; a word that is null, or has a null value, is not there."""

    def change(kind: str, word: str, moment: str) -> str:
        return (
            f"named_struct('value', {word}.value, 'headers', {word}.headers, 'timestamp', {moment}.timestamp, 'offset', {moment}.offset, "
            f"'change_type', '{kind}')"
        )

    made = f"""CASE
        WHEN before.value IS NOT NULL AND after.value IS NOT NULL
            THEN array({change("update_before", "before", "after")}, {change("update_after", "after", "after")})
        WHEN before.value IS NOT NULL AND after IS NOT NULL THEN array({change("delete", "before", "after")})
        WHEN before.value IS NOT NULL THEN array({change("delete", "before", "before")})
        WHEN after.value IS NOT NULL THEN array({change("insert", "after", "after")})
        ELSE array() END"""
    return steps.select("partition", "key", F.explode(F.expr(made)).alias("change")).select("partition", "key", "change.*")
