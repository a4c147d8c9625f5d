"""Failed cleanings of partitions: classed, remembered in the ledger, reported.

```
 failure     names damage?   no: `retry_ms` in 1 min … 1 h      yes, or log.cleaner.max.failures in a row: quarantined
 ledger      failure  partition 0  {"failures": 2, "reason": "…", "retry_ms": …}       every process knows it, after a restart too
 success     failure  partition 0  {"failures": 0}
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lastword.compaction.errors import CorruptLog, PartitionUncleanable, first_line
from lastword.compaction.moments import instant
from lastword.compaction.planning.backoff import next_failure
from lastword.storage.ledger.decisions import Decision, Kind
from lastword.streaming.events import logger

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lastword.compaction.planning.backoff import CleaningFailure
    from lastword.compaction.planning.bounds import PartitionLog
    from lastword.storage.ledger.decisions import Decisions
    from lastword.storage.log.topic_log import TopicLog

#: Errors that name damage: what is read is not what was written, and a second look finds the same. All others may be transient.
_DAMAGE: Final = (CorruptLog, PartitionUncleanable)
_LOG: Final = logger("cleaner")


def record_failure(
    log: TopicLog, partition_log: PartitionLog, error: Exception, *, table_version: int, now_ms: int, max_failures: int
) -> CleaningFailure:
    """Write into the ledger that the cleaning of a partition failed at a table version, report it, and return what holds now."""
    partition, reason = partition_log.partition, first_line(error)

    def count(today: Decisions) -> tuple[list[Decision], CleaningFailure]:
        before = today.cleaning_failure(partition)
        failure = next_failure(before, reason, is_damage=isinstance(error, _DAMAGE), now_ms=now_ms, max_failures=max_failures)
        details = failure.to_details()
        return [Decision(kind=Kind.FAILURE, time_ms=now_ms, partition=partition, table_version=table_version, details=details)], failure

    failure = log.ledger.decide(count)
    if failure.retry_ms is None:
        report_uncleanable(partition_log, reason, partition_log.last_stable_offset)
    else:
        _LOG.warning(
            "cleaning failed",
            topic=log.name,
            partition=partition,
            failures=failure.failures,
            retry_at=instant(failure.retry_ms),
            reason=reason,
        )
    return failure


def record_success(log: TopicLog, partitions: Iterable[int], *, table_version: int, now_ms: int) -> None:
    """End the rows of failures of partitions that were cleaned, if they had any."""
    partitions = list(partitions)

    def end(today: Decisions) -> tuple[list[Decision], None]:
        rows = [
            Decision(kind=Kind.FAILURE, time_ms=now_ms, partition=partition, table_version=table_version, details={"failures": 0})
            for partition in partitions
            if partition in today.cleaning_failures()
        ]
        return rows, None

    if log.decisions().cleaning_failures().keys() & set(partitions):
        log.ledger.decide(end)


def report_uncleanable(log: PartitionLog, reason: str, last_stable_offset: int | None) -> None:
    """Write why a partition is left alone, and its bounds, of which the last stable offset may not be known."""
    _LOG.error(
        "partition uncleanable",
        topic=log.topic,
        partition=log.partition,
        reason=reason,
        last_stable_offset=last_stable_offset,
        log_start_offset=log.log_start_offset,
        log_end_offset=log.log_end_offset,
    )
