"""What keeps a topic's folder bounded over months: old files, old refusals, old decisions.

| what | kept | how |
|---|---|---|
| files that left the log | max(file.delete.delay.ms, 24 h), what readers pin | VACUUM LITE, which does not list the files |
| files that no commit ever named (a crash left them) | as long | VACUUM FULL, once a day |
| Delta log of the log | 7 days | Delta's own clean-up, at each Delta log checkpoint (`schema.log_properties`) |
| dead letters | `dead.letter.retention.ms` | a Delta DELETE, then VACUUM |
| ledger | what still holds, and 7 days | rewritten when it has many files |
| query checkpoints | the last 100 micro-batches | Spark (`spark.sql.streaming.minBatchesToRetain`) |
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JJavaError

from compaction.config_keys import DAY_MS, HOUR_MS
from compaction.readers import oldest_seen_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from storage.topic_log import TopicLog

#: Files of the log stay at least so long, whatever file.delete.delay.ms says: a reader may hold a snapshot of yesterday.
LEAST_FILE_RETENTION_MS: Final = DAY_MS
_LEDGER_FILES: Final = 100
#: As long Delta knows when a file left (`delta.deletedFileRetentionDuration`, which the log leaves at its default). FULL needs that: what
#: a reader of an older version pins is no orphan.
_TOMBSTONES_KEPT_MS: Final = 7 * DAY_MS
#: That no less than 7 days may be asked for, and that (from Delta 4.1 on) what is asked for does not count.
_CHECKS: Final = ("spark.databricks.delta.retentionDurationCheck.enabled", "spark.databricks.delta.vacuum.retentionWindowIgnore.enabled")
#: They are settings of the whole session, which the cleaner's threads share.
_CHECKING: Final = threading.Lock()


def vacuum(log: TopicLog, spark: SparkSession, *, now_ms: int, orphans: bool = False) -> None:
    """Delete the files that left the log, and the dead letters, longer ago than they are kept; with `orphans` what crashes left, too."""
    kept_ms = max(log.config().file_delete_delay_ms, LEAST_FILE_RETENTION_MS)
    seen_ms = oldest_seen_ms(log.decisions().readers.values(), now_ms)
    if seen_ms is not None:
        kept_ms = max(kept_ms, now_ms - seen_ms + HOUR_MS)
    for location, retention_ms in ((log.paths.log, kept_ms), (log.paths.dead_letters, LEAST_FILE_RETENTION_MS)):
        if not orphans or retention_ms > _TOMBSTONES_KEPT_MS:
            try:
                _vacuum(spark, location, "LITE", retention_ms)
                continue
            except Py4JJavaError as error:
                # LITE learns from commits which files left since the VACUUM before. After a week without one those commits are gone, and
                # while more than a week is asked for it finds none and forgets where it stood.
                if "[DELTA_CANNOT_VACUUM_LITE]" not in str(error.java_exception):
                    raise
        if retention_ms <= _TOMBSTONES_KEPT_MS:
            _vacuum(spark, location, "FULL", retention_ms)


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


def _vacuum(spark: SparkSession, location: str, kind: str, retention_ms: int) -> None:
    """Run VACUUM with a retention of our own, rounded up to hours; it is ours to answer for."""
    sql = f"VACUUM delta.`{location.replace('`', '``')}` {kind} RETAIN {-(-retention_ms // HOUR_MS)} HOURS"
    with _CHECKING:
        before = {name: spark.conf.get(name, "true") for name in _CHECKS}
        for name in _CHECKS:
            spark.conf.set(name, "false")
        try:
            spark.sql(sql)
        finally:
            for name, value in before.items():
                spark.conf.set(name, value or "true")
