"""The last word on every key in plain SQL, for engines that read Delta tables or Parquet files and know nothing of lastword.

It asks the log table alone, so it knows no checkpoint and folds everything, with the rules of transactions. Names are qualified where an
engine keeps them for itself (`offset`), so that one text serves DuckDB, Spark SQL and others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lastword.compaction.errors import UserError, check_text

if TYPE_CHECKING:
    from collections.abc import Mapping

_FOLD = """newest AS (
  SELECT v.partition AS partition, v.key AS key, max(v.offset) AS newest_offset
  FROM visible v GROUP BY v.partition, v.key
)
SELECT v.partition AS partition, v.key AS key, v.value AS value, v.headers AS headers, v.timestamp AS timestamp, v.offset AS offset
FROM visible v JOIN newest n ON n.partition = v.partition AND n.newest_offset = v.offset
WHERE v.value IS NOT NULL"""

_UNCOMMITTED = """WITH visible AS (
  SELECT r.* FROM {source} r
  WHERE r.control IS NULL AND r.key IS NOT NULL{started}
), """

_COMMITTED = """WITH transactions AS (
  SELECT r.partition AS partition, r.txn_first_offset AS first_offset,
    max(CASE WHEN r.control IS NULL{started} THEN 1 ELSE 0 END) AS has_data,
    max(CASE WHEN r.control IN ('COMMIT', 'ABORT') THEN 1 ELSE 0 END) AS is_decided,
    max(CASE WHEN r.control = 'ABORT' THEN 1 ELSE 0 END) AS is_aborted
  FROM {source} r WHERE r.txn_first_offset IS NOT NULL GROUP BY r.partition, r.txn_first_offset
), stable AS (
  SELECT t.partition AS partition, min(t.first_offset) AS last_stable_offset
  FROM transactions t WHERE t.has_data = 1 AND t.is_decided = 0 GROUP BY t.partition
), visible AS (
  SELECT r.* FROM {source} r
  LEFT JOIN transactions t ON t.partition = r.partition AND t.first_offset = r.txn_first_offset AND t.is_aborted = 1
  LEFT JOIN stable s ON s.partition = r.partition
  WHERE r.control IS NULL AND r.key IS NOT NULL AND t.first_offset IS NULL
    AND (s.last_stable_offset IS NULL OR r.offset < s.last_stable_offset){started}
), """


def latest_sql(source: str, *, isolation: str = "read_committed", log_start_offsets: Mapping[int, int] | None = None) -> str:
    """Return a SQL query for the last record of every (partition, key): partition, key, value, headers, timestamp, offset.

    `source` is what stands in its FROM for the log table: a table's name, or `read_parquet([…], hive_partitioning = true)`.
    The log start offsets are decisions, which the log table does not hold: without them, records that were deleted are seen, and open
    transactions that were deleted hide what came after them, until retention removes their segment. Raises `UserError` for any other
    isolation.
    """
    check_text("source", source)
    texts = {"read_committed": _COMMITTED, "read_uncommitted": _UNCOMMITTED}
    if isolation not in texts:
        message = f"isolation {isolation!r}: allowed is {' or '.join(texts)}"
        raise UserError(message)
    starts = {int(partition): int(start) for partition, start in (log_start_offsets or {}).items() if start > 0}
    cases = " ".join(f"WHEN {partition} THEN {start}" for partition, start in starts.items())
    started = f" AND r.offset >= CASE r.partition {cases} ELSE 0 END" if starts else ""
    return texts[isolation].format(source=source, started=started) + _FOLD
