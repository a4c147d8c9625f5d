"""Standings made from drawn logs (tests/compaction/logs.py), for tests of what is shown: no Spark, no storage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lastword.compaction.config.topic_config import describe_topic_config, parse_topic_config
from lastword.compaction.planning.backoff import CleaningFailure
from lastword.compaction.planning.planner import plan_cleaning
from lastword.compaction.planning.receipt import CleaningReceipt
from lastword.compaction.producers import OpenTransaction
from lastword.compaction.read_positions import Position
from lastword.compaction.readers import Reader, ReaderStanding
from lastword.status.standing import Standing, TopicStanding, partition_standing
from lastword.storage.append.dead_letters import DeadLettersView
from lastword.topics.explanation import partition_reports
from lastword.topics.sources import SourceDescription
from tests.compaction.logs import HOUR_MS, MIB, drawn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lastword.compaction.planning.bounds import PartitionLog

NOW_MS = 1_800_000_000_000
#: One partition of every kind of section: clean to 200, cleanable to 300, held back by a transaction at 310, active from 400.
PICTURE = f"0:30@{NOW_MS - 9 * HOUR_MS} 100:20 | 200:40@{NOW_MS - 2 * HOUR_MS} 300:10@{NOW_MS - HOUR_MS} 400:5@{NOW_MS}* 450"


def partition(picture: str = PICTURE, **options: Any) -> PartitionLog:
    """Return the log of a picture; sizes are MiB."""
    return drawn(picture, options.pop("settings", None), unit=MIB, **options)


def source(name: str = "mysql.shop", **options: Any) -> SourceDescription:
    """Return a source of change events of which nothing is to be said."""
    given: dict[str, Any] = {"since_ms": NOW_MS, "epoch": 1, "retired": False, "by_lsn": False, "lower_positions": "", "snapshots": ()}
    return SourceDescription(name=name, **(given | {"rows_not_in_snapshot": 0, "incomplete_snapshots": ()} | options))


def receipt(topic: str = "fruit", partition: int = 0, *, removed: Mapping[str, int] | None = None, now_ms: int = NOW_MS) -> CleaningReceipt:
    """Return the receipt of a cleaning."""
    return CleaningReceipt(
        topic=topic,
        partition=partition,
        trigger="above min.cleanable.dirty.ratio",
        first_dirty_offset=0,
        end_offset=200,
        cleanable_ratio=1.0,
        table_version=7,
        segments_before=2,
        groups=1,
        records_before=200,
        records_after=100,
        bytes_before=2 * MIB,
        bytes_after=MIB,
        removed=removed or {"superseded": 90, "aborted": 10},
        emptied=0,
        map_entries=100,
        map_utilization=0.5,
        rounds_left=0,
        highest_removed_tombstone=None,
        indexed_bytes=MIB,
        read_bytes=3 * MIB,
        index_ms=10,
        total_ms=100,
        now_ms=now_ms,
    )


def transaction(since_ms: int, *, producer_id: int = 7, name: str | None = "loader", timeout_ms: int = 900_000) -> OpenTransaction:
    """Return a transaction that holds back partition 0 at offset 310."""
    return OpenTransaction(
        producer_id=producer_id, epoch=0, transactional_id=name, first_offsets={0: 310}, since_ms=since_ms, timeout_ms=timeout_ms
    )


def reader(name: str, offset: int, *, seen_ms: int = NOW_MS, end: int = 450) -> ReaderStanding:
    """Return a reader of one partition that reads `offset` next."""
    position = Position(offsets=(offset,), table_version=1, since_version=1)
    return ReaderStanding.of(Reader(name=name, position=position, seen_ms=seen_ms, expiration_ms=HOUR_MS), [end], NOW_MS)


def topic(
    name: str = "fruit",
    logs: Sequence[PartitionLog] | None = None,
    *,
    uncleanable: Mapping[int, str] | None = None,
    failing: Mapping[int, str] | None = None,
    receipts: Sequence[CleaningReceipt] = (),
    dead_letters: Sequence[Mapping[str, Any]] = (),
    now_ms: int = NOW_MS,
    **fields: Any,
) -> TopicStanding:
    """Return a topic with the partitions that `logs` draw; `failing` says why partitions wait for their third try, in two minutes."""
    failures = {
        one: CleaningFailure(failures=2, reason=reason, failed_ms=now_ms, retry_ms=retry_ms)
        for given, retry_ms in ((uncleanable, None), (failing, now_ms + 120_000))
        for one, reason in (given or {}).items()
    }
    plan = plan_cleaning(
        logs if logs is not None else [partition()],
        now_ms=now_ms,
        entries=10**6,
        obstacle_of=lambda log: failures[log.partition].obstacle(now_ms) if log.partition in failures else None,
    )
    newest = {one.partition: one for one in receipts}
    return TopicStanding(
        name=name,
        policy="compact",
        table_version=12,
        partitions=tuple(
            partition_standing(one, report, newest.get(report.partition), now_ms=now_ms)
            for one, report in zip(plan.partitions, partition_reports(plan, failures), strict=True)
        ),
        receipts=tuple(receipts),
        config=describe_topic_config(parse_topic_config(fields.get("overrides", {}))),
        dead_letters=DeadLettersView(count=len(dead_letters), newest=tuple(dead_letters)),
        **fields,
    )


def standing(*topics: TopicStanding, **fields: Any) -> Standing:
    """Return a log.dir with these topics, all looked at now."""
    known: dict[str, Any] = {"log_dir": "data", "taken_ms": NOW_MS, "started_ms": NOW_MS, "topics": topics, "cleaner_ran_ms": NOW_MS}
    return Standing(**known | fields)
