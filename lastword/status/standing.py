"""The status of a log.dir at one moment: the values behind metrics, status page, live table and drawing.

```
 partition 0      log start        first dirty      end of cleanable    closed up to     log end
                  ┌────────────────┬────────────────┬───────────────────┬────────────────┐
   sections       │ clean          │ cleanable      │ uncleanable       │ active         │
                  └────────────────┴────────────────┴───────────────────┴────────────────┘
                       ▲ reader                          ▲ last stable offset
```

A standing is collected in the background, from metadata. Reading it starts no work.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Final

from lastword.compaction.config.topic_config import describe_topic_config
from lastword.compaction.errors import LastwordError, UnknownTopic, first_line
from lastword.compaction.readers import ReaderStanding
from lastword.storage.append.dead_letters import DeadLetters
from lastword.storage.reading.stale_keys import StaleKeys
from lastword.topics.explanation import PartitionReport, partition_reports
from lastword.topics.sources import SourceDescription, SourceDescriptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lastword.compaction.log.segments import Segment
    from lastword.compaction.order.source_states import SourceCounts
    from lastword.compaction.planning.planner import PartitionPlan
    from lastword.compaction.planning.receipt import CleaningReceipt
    from lastword.compaction.producers import OpenTransaction
    from lastword.storage.append.dead_letters import DeadLettersView
    from lastword.storage.log.topic_log import TopicLog
    from lastword.streaming.cleaning.cleaner import Cleaner

_RECEIPTS_KEPT: Final = 200


class SectionKind(str, Enum):
    """The sections of a partition that the cleaner distinguishes."""

    CLEAN = "clean"
    CLEANABLE = "cleanable"
    UNCLEANABLE = "uncleanable"
    ACTIVE = "active"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Offsets `begin` to `end` (exclusive) of a partition, and the kind of this section."""

    kind: SectionKind
    begin: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStanding:
    """One partition: its report as in `explain`, its sections and segments, and the lag of cleaning.

    `compaction_lag_ms` is the age of the oldest record that has not been cleaned, measured from the start of its segment; 0 if there is
    none. `future_ms` is the distance of the newest record timestamp into the future; 0 if it is not in the future.
    """

    report: PartitionReport
    sections: tuple[Section, ...]
    segments: tuple[Segment, ...]
    size_bytes: int
    record_count: int
    compaction_lag_ms: int
    future_ms: int
    last_cleaning: CleaningReceipt | None

    @property
    def partition(self) -> int:
        """The number of the partition."""
        return self.report.partition


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendCounts:
    """What the append queries of the service did with the rows of a topic, since its start and in the last hour.

    `late` rows were left out, because the log has a row of their key with a higher source sequence.
    """

    appended: int = 0
    late: int = 0
    recent_appended: int = 0
    recent_late: int = 0
    #: By the name of the source, since the start of the service.
    sources: Mapping[str, SourceCounts] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStanding:
    """One topic at one table version; where it cannot be read, `error` holds the reason, and the rest is that of the last success."""

    name: str
    policy: str
    table_version: int
    partitions: tuple[PartitionStanding, ...]
    transactions: tuple[OpenTransaction, ...] = ()
    readers: tuple[ReaderStanding, ...] = ()
    receipts: tuple[CleaningReceipt, ...] = ()
    dead_letters: DeadLettersView | None = None
    #: How many keys have a last record that is older than a dead letter of theirs; None if a file that tells it is damaged.
    stale_keys: int | None = 0
    sources: tuple[SourceDescription, ...] = ()
    appends: AppendCounts = field(default_factory=AppendCounts)
    #: Every setting as canonical text, and those that are the topic's own.
    config: Mapping[str, str] = field(default_factory=dict)
    overrides: Mapping[str, str] = field(default_factory=dict)
    error: str | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of all its files, compressed."""
        return sum(partition.size_bytes for partition in self.partitions)

    @property
    def record_count(self) -> int:
        """Records in all partitions."""
        return sum(partition.record_count for partition in self.partitions)

    @property
    def compaction_lag_ms(self) -> int:
        """The compaction lag of its worst partition."""
        return max((partition.compaction_lag_ms for partition in self.partitions), default=0)

    @property
    def end_offsets(self) -> int:
        """The sum of the log end offsets of its partitions."""
        return sum(partition.report.log_end_offset for partition in self.partitions)

    @property
    def cleanable_bytes(self) -> int:
        """The bytes of all partitions that can be cleaned now."""
        return sum(partition.report.cleanable_bytes for partition in self.partitions)

    @property
    def consumer_lag(self) -> int:
        """The consumer lag of its slowest reader or table, in offsets; readers that have expired do not count."""
        return max((reader.lag for reader in self.readers if not reader.expired), default=0)

    @property
    def dirtiest(self) -> PartitionStanding | None:
        """The partition with the highest dirty ratio."""
        return max(self.partitions, key=lambda partition: (partition.report.ratio, partition.compaction_lag_ms), default=None)

    @property
    def uncleanable(self) -> tuple[PartitionStanding, ...]:
        """The partitions that are in quarantine."""
        return tuple(partition for partition in self.partitions if partition.report.uncleanable_reason is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What waits in the source of a query: `count` offsets of Kafka or files (`unit`) that the query has not read."""

    count: int
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryStanding:
    """The newest progress of one streaming query. `progressed_ms` is its start; None before the first progress.

    `failures` counts its failures in a row and `message` is the last of them, until it makes progress again; at `retry_ms` it is started
    again. `topic` is "" for the search for the topics of a pattern. `issue` says why the source of a running query cannot be read now.
    `backlog` is None if it is not known.
    """

    name: str
    topic: str
    active: bool
    batch_id: int = -1
    input_rows_per_second: float = 0.0
    processed_rows_per_second: float = 0.0
    batch_duration_ms: int = 0
    progressed_ms: int | None = None
    failures: int = 0
    retry_ms: int | None = None
    message: str = ""
    issue: str = ""
    backlog: Backlog | None = None

    @property
    def works(self) -> bool:
        """Whether the query runs, and its source can be read."""
        return self.active and not self.issue


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStanding:
    """A typed table that the service keeps: offsets that it has not read (`lag_offsets`), and for how long it was not in step (`lag_ms`).

    `step_ms` is how long the last look at the topic took, with all steps and upkeep. `steps`, `written_rows`, `deleted_rows` and
    `misfit_rows` (records with a value that did not fit its column) count from the start of the service. `failures` and `message` as of a
    query.
    """

    topic: str
    path: str
    paused: bool = False
    lag_offsets: int = 0
    lag_ms: int = 0
    step_ms: int = 0
    steps: int = 0
    written_rows: int = 0
    deleted_rows: int = 0
    misfit_rows: int = 0
    table_version: int = -1
    failures: int = 0
    retry_ms: int | None = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A whole log.dir at `taken_ms`.

    `loading` holds the topics that were not read yet; `loaded` is true if there are none. `offline` is the error if the log.dir cannot be
    read. `dead_cleaners` counts the failures of the cleaner query; `cleaner_dead` is true while it waits for its restart.
    `cleaner_ran_ms` is the end of the newest tick. `max_compaction_delay_ms` is the longest time by which a partition exceeds
    `max.compaction.lag.ms`.
    """

    log_dir: str
    taken_ms: int
    started_ms: int
    topics: tuple[TopicStanding, ...] = ()
    queries: tuple[QueryStanding, ...] = ()
    tables: tuple[TableStanding, ...] = ()
    loading: tuple[str, ...] = ()
    loaded: bool = True
    offline: str | None = None
    cleaner_ran_ms: int | None = None
    cleaner_dead: bool = False
    dead_cleaners: int = 0

    def topic(self, name: str) -> TopicStanding | None:
        """Return one topic by name; None if it does not exist."""
        return next((topic for topic in self.topics if topic.name == name), None)

    @property
    def partitions(self) -> tuple[PartitionStanding, ...]:
        """Every partition of every topic."""
        return tuple(partition for topic in self.topics for partition in topic.partitions)

    @property
    def max_compaction_delay_ms(self) -> int:
        """The longest delay of all partitions."""
        return max((partition.report.overdue_ms for partition in self.partitions), default=0)


@dataclass(slots=True)
class Looker:
    """Reads the status of one topic repeatedly; unchanged metadata is not read again."""

    log: TopicLog
    cleaner: Cleaner
    _dead_letters: DeadLetters = field(init=False)
    _stale_keys: StaleKeys = field(init=False)
    _sources: SourceDescriptions = field(init=False)
    _last: TopicStanding | None = None

    def __post_init__(self) -> None:
        """Open the dead letters of the topic."""
        self._dead_letters = DeadLetters(self.log.paths.dead_letters, self.log.storage_options)
        self._stale_keys = StaleKeys(self.log)
        self._sources = SourceDescriptions(self.log)

    def look(self, *, now_ms: int) -> TopicStanding:
        """Return the standing of the topic; if it cannot be read, the previous one with `error`.

        Raises `UnknownTopic` if the topic was deleted.
        """
        try:
            self._last = self._look(now_ms=now_ms)
        except UnknownTopic:
            raise
        except Exception as error:  # noqa: BLE001  one topic must not hide the others
            return self._failed_topic(str(error) if isinstance(error, LastwordError) else first_line(error))
        return self._last

    def _failed_topic(self, why: str) -> TopicStanding:
        last = self._last or TopicStanding(name=self.log.name, policy="", table_version=-1, partitions=())
        return replace(last, error=why)

    def _look(self, *, now_ms: int) -> TopicStanding:
        log = self.log
        plan, state = self.cleaner.plan(log, now_ms=now_ms)
        reports = partition_reports(plan, state.decisions.cleaning_failures())
        receipts = log.receipts()
        newest = {receipt.partition: receipt for receipt in receipts}
        return TopicStanding(
            name=log.name,
            policy=",".join(sorted(state.config.cleanup_policy)),
            table_version=state.version,
            partitions=tuple(
                partition_standing(partition, report, newest.get(report.partition), now_ms=now_ms)
                for partition, report in zip(plan.partitions, reports, strict=True)
            ),
            transactions=tuple(state.readable_transactions()),
            readers=tuple(
                ReaderStanding.of(reader, state.log_end_offsets, now_ms) for _, reader in sorted(log.readers(state.decisions).items())
            ),
            receipts=tuple(receipts[-_RECEIPTS_KEPT:]),
            dead_letters=self._dead_letters.look(),
            stale_keys=self._stale_keys.count(),
            sources=self._sources.collect(now_ms=now_ms),
            config=describe_topic_config(state.config),
            overrides=dict(state.decisions.overrides),
        )


def partition_standing(plan: PartitionPlan, report: PartitionReport, cleaning: CleaningReceipt | None, *, now_ms: int) -> PartitionStanding:
    """Return the standing of one partition, from its plan, its report as in `explain`, and its newest cleaning."""
    log, cleanable = plan.log, plan.range
    dirty = [
        segment for segment in log.segments if segment.last_offset >= cleanable.first_dirty_offset and not segment.holds_only_empty_rows
    ]
    newest_ms = max((segment.max_timestamp_ms for segment in log.segments), default=0)
    oldest_ms = min((segment.appended_at_ms for segment in dirty), default=now_ms)
    return PartitionStanding(
        report=report,
        sections=sections(report, compacted=log.config.compacted, cleanable_end=cleanable.end_offset, closed_end=log.closed_end_offset),
        segments=tuple(log.segments),
        size_bytes=sum(segment.size_bytes for segment in log.segments),
        record_count=sum(segment.record_count for segment in log.segments),
        compaction_lag_ms=max(0, now_ms - oldest_ms) if log.config.compacted else 0,
        future_ms=max(0, newest_ms - now_ms),
        last_cleaning=cleaning,
    )


def sections(report: PartitionReport, *, compacted: bool, cleanable_end: int, closed_end: int) -> tuple[Section, ...]:
    """Return the sections of a partition, without empty ones. A topic without `compact` has no clean and no cleanable section."""
    start, end = report.log_start_offset, report.log_end_offset
    dirty = min(max(report.first_dirty_offset, start), end) if compacted else start
    cleanable = max(dirty, min(cleanable_end, end)) if compacted else start
    closed = max(cleanable, min(closed_end, end))
    cut: Mapping[SectionKind, tuple[int, int]] = {
        SectionKind.CLEAN: (start, dirty),
        SectionKind.CLEANABLE: (dirty, cleanable),
        SectionKind.UNCLEANABLE: (cleanable, closed),
        SectionKind.ACTIVE: (closed, end),
    }
    return tuple(Section(kind=kind, begin=begin, end=stop) for kind, (begin, stop) in cut.items() if stop > begin)
