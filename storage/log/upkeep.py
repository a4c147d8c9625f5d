"""What keeps a topic's folder bounded over months: old files, old refusals, old decisions.

| what | kept | how |
|---|---|---|
| files that left the log | max(file.delete.delay.ms, 24 h), what readers pin; 7 days at the most | lite VACUUM, which lists no files |
| files that no commit ever named (a crash left them) | as long | full VACUUM, once a day |
| Delta log of the log | 7 days | clean-up at each Delta log checkpoint of the service (`lastword.storage.files.schema.log_properties`) |
| … its checkpoints | the newest ten, and as long as the commits the first of each 1,000 | deleted when the service writes one |
| dead letters | `dead.letter.retention.ms` | a commit that takes them out of the table, then VACUUM |
| ledger | what still holds, and 7 days | rewritten when it has many files |
| … `transactional.id`s that write no more | `transactional.id.expiration.ms` | left out then |
| … readers that are gone | 7 days after they expired or were dropped | left out then |
| query checkpoints | the last 100 micro-batches | Spark (`spark.sql.streaming.minBatchesToRetain`) |
| … of a source of files | the name of every file ever read | not removed: the source's `FileListing` needs them, some 150 B each |

Table versions older than 7 days, and than the checkpoint before that, cannot be read, whatever files are there: their commits are gone. So
nothing is kept longer for them.
Nothing here runs a Spark job.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from lastword.compaction.config.keys import DAY_MS, HOUR_MS
from lastword.compaction.readers import oldest_seen_ms
from lastword.storage.delta.commit import flush_delta_log
from lastword.storage.delta.tables import CHECKPOINT, checkpoint_version, list_delta_log, open_table, write_checkpoint
from lastword.storage.files.paths import filesystem_of, storage_faults
from lastword.storage.log.limits import UPKEEP_LIMITS

if TYPE_CHECKING:
    from lastword.storage.log.limits import UpkeepLimits
    from lastword.storage.log.topic_log import TopicLog

#: Delta knows its commits for so long (`lastword.storage.files.schema.log_properties`), and when a file left (its own default,
#: delta.deletedFileRetentionDuration).
_LONGEST_FILE_RETENTION_MS: Final = 7 * DAY_MS
_LEDGER_FILES: Final = 100


def vacuum(log: TopicLog, *, now_ms: int, orphans: bool = False, limits: UpkeepLimits = UPKEEP_LIMITS) -> None:
    """Delete the files that left the log, and the dead letters, longer ago than they are kept; with `orphans` what crashes left, too."""
    kept_ms = max(log.config().file_delete_delay_ms, limits.file_retention_ms)
    seen_ms = oldest_seen_ms(log.readers().values(), now_ms)
    if seen_ms is not None:
        kept_ms = max(kept_ms, now_ms - seen_ms + HOUR_MS)
    for location, retention_ms in ((log.paths.log, kept_ms), (log.paths.dead_letters, limits.file_retention_ms)):
        hours = -(-min(retention_ms, _LONGEST_FILE_RETENTION_MS) // HOUR_MS)
        if orphans:
            hours = max(1, hours)  # a file that an append has written and not committed yet is no orphan
        table = open_table(location, log.storage_options)
        with storage_faults(location):
            table.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=orphans)
        flush_delta_log(location, since_version=table.version() - 2)


def checkpoint(log: TopicLog, *, limits: UpkeepLimits = UPKEEP_LIMITS) -> int:
    """Write a Delta checkpoint if the last one is `limits.checkpoint_commits` commits old. Return the table version of the newest one.

    Commits older than `delta.logRetentionDuration` are removed with it, and the checkpoints between those that stay. Where no service
    runs, each 500th commit writes one (`lastword.storage.files.schema.log_properties`).
    """
    table = open_table(log.paths.log, log.storage_options)
    newest, version = checkpoint_version(filesystem_of(log.paths.log, log.storage_options)), table.version()
    if version - newest < limits.checkpoint_commits:
        return newest
    write_checkpoint(table, log.storage_options)
    with storage_faults(log.paths.log):
        flush_delta_log(log.paths.log, since_version=version)
        table.cleanup_metadata()
    _thin_checkpoints(log, limits)
    return version


def _thin_checkpoints(log: TopicLog, limits: UpkeepLimits) -> None:
    """Delete the checkpoints of the Delta log, except the newest ones and the first of each `limits.checkpoint_spacing` commits.

    Each lists every file that left the log in the last 7 days. The oldest one stays: the commits that are left can only be read from it. A
    table version of the past is read from the checkpoint before it, and at most `checkpoint_spacing` commits more than when all were there.
    """
    files = filesystem_of(log.paths.log, log.storage_options)
    with storage_faults(log.paths.log):
        matches = (CHECKPOINT.fullmatch(name) for name in list_delta_log(files))
        versions = sorted(int(match[1]) for match in matches if match and match[2] is None)  # of one file, as delta-rs writes them
        first = {version // limits.checkpoint_spacing: version for version in reversed(versions)}
        for version in versions[: max(0, len(versions) - limits.kept_checkpoints)]:
            if first[version // limits.checkpoint_spacing] != version:
                with suppress(FileNotFoundError):  # another process deletes them, too
                    files.delete_file(f"_delta_log/{version:020}.checkpoint.parquet")


def compact_ledger(
    log: TopicLog, *, now_ms: int, id_expiration_ms: int, least_files: int = _LEDGER_FILES, limits: UpkeepLimits = UPKEEP_LIMITS
) -> int:
    """Write the ledger again without the decisions that no longer hold and are older than 7 days; return how many rows went.

    Those of a transactional.id go when nothing was begun under it for `id_expiration_ms` and it has no transaction open.
    """
    if not log.ledger.is_long(least_files):
        return 0
    # Receipts that go are not to be taken for missing ones, as long as the log's history tells of their swaps.
    log.sync_ledger_with_history(tell=True)
    with log.append_lock():  # an append of a transaction that is not open yet is not overtaken
        open_ids = {
            open_transaction.transactional_id
            for open_transaction in log.at().open_transactions()
            if open_transaction.transactional_id is not None
        }
        return log.ledger.compact(
            before_ms=now_ms - limits.decision_retention_ms,
            least_files=least_files,
            silent_ms=now_ms - id_expiration_ms,
            open_ids=open_ids,
        )
