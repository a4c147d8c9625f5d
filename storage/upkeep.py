"""What keeps a topic's folder bounded over months: old files, old refusals, old decisions.

| what | kept | how |
|---|---|---|
| files that left the log | max(file.delete.delay.ms, 24 h), what readers pin | VACUUM LITE, which does not touch a commit in flight |
| Delta log of the log | 7 days | Delta's own clean-up, at each Delta log checkpoint (`schema.log_properties`) |
| dead letters | `dead.letter.retention.ms` | a Delta DELETE, then VACUUM |
| ledger | what still holds, and 7 days | rewritten when it has many files |
| query checkpoints | the last 100 micro-batches | Spark (`spark.sql.streaming.minBatchesToRetain`) |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from compaction.config_keys import DAY_MS, HOUR_MS
from compaction.readers import oldest_seen_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from storage.topic_log import TopicLog

#: Files of the log stay at least so long, whatever file.delete.delay.ms says: a reader may hold a snapshot of yesterday.
LEAST_FILE_RETENTION_MS: Final = DAY_MS
_LEDGER_FILES: Final = 100
_CHECK: Final = "spark.databricks.delta.retentionDurationCheck.enabled"


def vacuum(log: TopicLog, spark: SparkSession, *, now_ms: int) -> None:
    """Delete the files that left the log, and the dead letters, longer ago than they are kept."""
    kept_ms = max(log.config().file_delete_delay_ms, LEAST_FILE_RETENTION_MS)
    seen_ms = oldest_seen_ms(log.decisions().readers.values(), now_ms)
    if seen_ms is not None:
        kept_ms = max(kept_ms, now_ms - seen_ms + HOUR_MS)
    for location, retention_ms in ((log.paths.log, kept_ms), (log.paths.dead_letters, LEAST_FILE_RETENTION_MS)):
        _vacuum_lite(spark, location, -(-retention_ms // HOUR_MS))


def expire_dead_letters(log: TopicLog, spark: SparkSession, *, now_ms: int, retention_ms: int) -> None:
    """Delete dead letters that are older than `retention_ms`."""
    before = now_ms - retention_ms
    location = log.paths.dead_letters.replace("`", "``")
    if spark.sql(f"SELECT 1 FROM delta.`{location}` WHERE refused_at < timestamp_millis({before}) LIMIT 1").isEmpty():  # noqa: S608
        return
    spark.sql(f"DELETE FROM delta.`{location}` WHERE refused_at < timestamp_millis({before})")  # noqa: S608  a path of ours, and a number


def compact_ledger(log: TopicLog, *, now_ms: int, least_files: int = _LEDGER_FILES) -> int:
    """Write the ledger again without the decisions that no longer hold and are older than 7 days; return how many rows went."""
    return log.ledger.compact(before_ms=now_ms - 7 * DAY_MS, least_files=least_files)


def _vacuum_lite(spark: SparkSession, location: str, hours: int) -> None:
    """Run VACUUM LITE; the retention is ours to answer for, it is never below a day."""
    before = spark.conf.get(_CHECK, "true")
    spark.conf.set(_CHECK, "false")
    try:
        spark.sql(f"VACUUM delta.`{location.replace('`', '``')}` LITE RETAIN {hours} HOURS")
    finally:
        spark.conf.set(_CHECK, before or "true")
