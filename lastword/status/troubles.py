"""The list of open issues. The status page, `lastword top` and /status.json show the same texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lastword.compaction.config.keys import DAY_MS, HOUR_MS, MINUTE_MS
from lastword.compaction.moments import instant
from lastword.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lastword.compaction.producers import OpenTransaction
    from lastword.status.standing import PartitionStanding, Standing, TopicStanding
    from lastword.topics.sources import SourceDescription

#: A transaction that is open for this long is an issue, even before its timeout.
_LONG_OPEN_MS: Final = MINUTE_MS
#: Dead letters are an issue until the newest of them is this old.
DEAD_LETTER_ISSUE_MS: Final = DAY_MS
#: Late rows are an issue from this number and from this share of the rows of the last hour on.
MIN_LATE_ROWS: Final = 10
MIN_LATE_SHARE: Final = 0.01
#: A table that has not been in step for this long is an issue.
LATE_TABLE_MS: Final = 10 * MINUTE_MS
_WIDEST: Final = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """One issue. It is `critical` if it stops cleaning or appends. `topic` is "" for the service itself."""

    critical: bool
    text: str
    topic: str = ""
    partition: int | None = None


def troubles(standing: Standing, now_ms: int) -> list[Trouble]:
    """Return the open issues, critical ones first."""
    issues = [*_of_service(standing), *_of_tables(standing)]
    for topic in standing.topics:
        issues += _of_topic(topic, now_ms)
    return sorted(issues, key=lambda trouble: (not trouble.critical, trouble.topic, -1 if trouble.partition is None else trouble.partition))


def ago(moment_ms: int, now_ms: int) -> str:
    """Return the time since a moment, in one unit."""
    return duration(max(0, now_ms - moment_ms))


def duration(length_ms: float) -> str:
    """Return a duration in one unit, for example `2.5 h`."""
    for unit, name in ((DAY_MS, "d"), (HOUR_MS, "h"), (MINUTE_MS, "min")):
        if length_ms >= unit:
            return f"{length_ms / unit:.1f} {name}"
    return f"{length_ms / 1000:.0f} s"


def _of_service(standing: Standing) -> Iterator[Trouble]:
    if standing.offline is not None:
        yield Trouble(critical=True, text=printable(f"the log.dir cannot be read: {standing.offline}", _WIDEST))
    if standing.cleaner_dead:
        failures = f"{standing.dead_cleaners} failure{'s' if standing.dead_cleaners > 1 else ''}"
        yield Trouble(critical=True, text=f"the cleaner query failed ({failures}) and is about to restart")
    for query in standing.queries:
        if not query.active:
            again = "" if query.retry_ms is None else f"; the next start is at {instant(query.retry_ms)}"
            failures = f" ({query.failures} in a row{again})" if query.failures else ""
            text = f"append query {query.name} is not running{failures}: {query.message}"
            yield Trouble(critical=True, topic=query.topic, text=printable(text, _WIDEST))
        elif query.issue:
            text = f"append query {query.name} waits for its source: {query.issue}"
            yield Trouble(critical=True, topic=query.topic, text=printable(text, _WIDEST))


def _of_tables(standing: Standing) -> Iterator[Trouble]:
    for table in standing.tables:
        if table.message:
            again = "" if table.retry_ms is None else f"; the next try is at {instant(table.retry_ms)}"
            text = f"table {table.path} failed ({table.failures} in a row{again}): {table.message}"
            yield Trouble(critical=True, topic=table.topic, text=printable(text, _WIDEST))
        elif table.paused:
            text = f"table {table.path} is paused; to go on: lastword tables resume {table.topic} {table.path}"
            yield Trouble(critical=False, topic=table.topic, text=printable(text, _WIDEST))
        elif table.lag_ms >= LATE_TABLE_MS:
            text = f"table {table.path} has not been in step for {duration(table.lag_ms)}: {table.lag_offsets:,} offsets behind"
            yield Trouble(critical=False, topic=table.topic, text=printable(text, _WIDEST))


def _of_topic(topic: TopicStanding, now_ms: int) -> Iterator[Trouble]:
    if topic.error is not None:
        yield Trouble(critical=True, topic=topic.name, text=printable(f"topic cannot be read: {topic.error}", _WIDEST))
    yield from _of_rows_left_out(topic, now_ms)
    for source in topic.sources:
        yield from _of_source(topic.name, source)
    for partition in topic.partitions:
        yield from _of_partition(topic.name, partition)
    for transaction in topic.transactions:
        if now_ms - transaction.since_ms >= _LONG_OPEN_MS:
            yield from _of_transaction(topic.name, transaction, now_ms)
    for reader in topic.readers:
        if reader.expired:
            text = printable(f"reader {reader.name} was last seen {ago(reader.seen_ms, now_ms)} ago and has expired", _WIDEST)
            yield Trouble(critical=False, topic=topic.name, text=text)


def _of_rows_left_out(topic: TopicStanding, now_ms: int) -> Iterator[Trouble]:
    """Return the issues of rows that the append queries did not take: dead letters of the last day, and late rows of the last hour."""
    letters, counts = topic.dead_letters, topic.appends
    newest = letters.newest[0] if letters is not None and letters.newest else None
    if letters is not None and newest is not None and newest["refused_at"] is not None:
        refused_ms = round(newest["refused_at"].timestamp() * 1000)
        if now_ms - refused_ms < DEAD_LETTER_ISSUE_MS:
            number = f"{letters.count:,} dead letter{'s' if letters.count > 1 else ''}"
            text = (
                f"{number}, the newest {ago(refused_ms, now_ms)} ago ({newest['reason']}); to see them: lastword dead-letters {topic.name}"
            )
            yield Trouble(critical=False, topic=topic.name, text=printable(text, _WIDEST))
    if topic.stale_keys:
        number = "1 key is stale" if topic.stale_keys == 1 else f"{topic.stale_keys:,} keys are stale"
        text = (
            f"{number}: a newer row is a dead letter, so readers see the one before it; to see which: "
            f"lastword dead-letters {topic.name} --stale"
        )
        yield Trouble(critical=False, topic=topic.name, text=printable(text, _WIDEST))
    rows = counts.recent_appended + counts.recent_late
    if counts.recent_late >= MIN_LATE_ROWS and counts.recent_late >= MIN_LATE_SHARE * rows:
        text = (
            f"{counts.recent_late:,} of {rows:,} rows of the last hour were late and left out: the log has rows of their keys with a "
            "higher source sequence"
        )
        yield Trouble(critical=False, topic=topic.name, text=text)


def _of_source(topic: str, source: SourceDescription) -> Iterator[Trouble]:
    """Return the issues of a source of change events: lower positions than before, and rows that its newest snapshot lacks."""
    if source.lower_positions:
        text = (
            f"source {source.name} sends events at lower positions that are younger than the records above them (position "
            f"{source.lower_positions}), as after a failover; they are late and left out: lastword sources new-epoch {topic} "
            f"{source.name}, and then let the connector take a snapshot"
        )
        yield Trouble(critical=True, topic=topic, text=printable(text, _WIDEST))
    if source.rows_not_in_snapshot:
        text = (
            f"{source.rows_not_in_snapshot:,} rows of source {source.name} are older than its newest snapshot, which lacks them; if it was "
            f"of whole tables, they were deleted in a gap: lastword sources sweep {topic} {source.name}"
        )
        yield Trouble(critical=False, topic=topic, text=printable(text, _WIDEST))


def _of_partition(topic: str, partition: PartitionStanding) -> Iterator[Trouble]:
    report = partition.report
    if report.uncleanable_reason is not None:
        text = printable(f"uncleanable: {report.uncleanable_reason}", _WIDEST)
        yield Trouble(critical=True, topic=topic, partition=partition.partition, text=text)
    if report.failure is not None and report.eligible_at_ms is not None:
        text = printable(f"cleaning {report.failure}; the next try is at {instant(report.eligible_at_ms)}", _WIDEST)
        yield Trouble(critical=False, topic=topic, partition=partition.partition, text=text)
    if report.overdue_ms > 0:
        text = f"cleaning is overdue by {duration(report.overdue_ms)} (max.compaction.lag.ms): {report.obstacle or report.trigger}"
        yield Trouble(critical=False, topic=topic, partition=partition.partition, text=text)
    if partition.future_ms > HOUR_MS:
        text = f"a record timestamp is {duration(partition.future_ms)} in the future and blocks retention by time"
        yield Trouble(critical=False, topic=topic, partition=partition.partition, text=text)


def _of_transaction(topic: str, transaction: OpenTransaction, now_ms: int) -> Iterator[Trouble]:
    who = f"producer {transaction.producer_id}" + (f" ({transaction.transactional_id})" if transaction.transactional_id else "")
    since = f"{instant(transaction.since_ms)} ({ago(transaction.since_ms, now_ms)}"
    for partition, offset in sorted(transaction.first_offsets.items()):
        text = (
            f"open transaction of {who} since {since}; timeout {duration(transaction.timeout_ms)}) "
            f"holds back readers and cleaning at offset {offset}; to end it: lastword transactions abort {topic} {transaction.producer_id}"
        )
        yield Trouble(critical=transaction.hangs(now_ms), topic=topic, partition=partition, text=printable(text, _WIDEST))
