"""The watcher: a background thread that reads the status of every topic and keeps the newest standing and a day of history.

```
 every 5 s ─► log.dir readable? ─► topic by topic: metadata ─► Standing ─► /metrics, the status page, top
                                                        └─► one sample of each topic per minute, kept for a day, also in a file
```
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from lastword.compaction.config.keys import HOUR_MS
from lastword.compaction.errors import UnknownTopic, first_line
from lastword.status.samples import ALL_TOPICS, Sample, SampleHistory
from lastword.status.standing import AppendCounts, Looker, QueryStanding, Standing, TableStanding, TopicStanding
from lastword.streaming import metrics
from lastword.streaming.events import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lastword.compaction.order.source_states import SourceCounts
    from lastword.status.samples import HistoryFile
    from lastword.storage.log.topic_log import TopicLog
    from lastword.streaming.cleaning.cleaner import Cleaner

#: Interval between two passes over the topics.
INTERVAL_SECONDS: Final = 5.0
_LOG: Final = logger("watcher")


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerStanding:
    """State of the cleaner query: end of its newest tick, whether it is dead now, and its number of deaths."""

    ran_ms: int | None = None
    dead: bool = False
    deaths: int = 0


@dataclass(slots=True, kw_only=True)
class Watcher:
    """Keeps the newest standing of a log.dir."""

    log_dir: str
    topics: Callable[[], Sequence[TopicLog]]
    cleaner: Cleaner
    clock_ms: Callable[[], int]
    queries: Callable[[], Sequence[QueryStanding]] = tuple
    tables: Callable[[], Sequence[TableStanding]] = tuple
    cleaner_standing: Callable[[], CleanerStanding] = CleanerStanding
    append_counts: Callable[[], Mapping[str, tuple[int, int]]] = metrics.append_counts
    source_counts: Callable[[], Mapping[str, Mapping[str, SourceCounts]]] = metrics.source_counts
    interval_seconds: float = INTERVAL_SECONDS
    standing: Standing = field(init=False)
    _lookers: dict[str, Looker] = field(default_factory=dict)
    _history: SampleHistory = field(default_factory=SampleHistory)
    _history_file: HistoryFile | None = None
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __post_init__(self) -> None:
        """Start with an empty standing."""
        now_ms = self.clock_ms()
        self.standing = Standing(log_dir=self.log_dir, taken_ms=now_ms, started_ms=now_ms, loaded=False)

    def start(self) -> None:
        """Start the background thread; it runs until `stop`."""
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread after its current pass."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._save_history(at_once=True)

    def keep_history(self, file: HistoryFile) -> None:
        """Load the samples of a history file, and save new ones to it; call it before `start`."""
        file.load(self._history, self.clock_ms())
        self._history_file = file

    def _save_history(self, *, at_once: bool = False) -> None:
        """Write the samples to their file when that is due; not while the log.dir cannot be read, or has not been."""
        if self._history_file is not None and self.standing.loaded and self.standing.offline is None:
            self._history_file.save(self._history, self.clock_ms(), at_once=at_once)

    def history(self, topic: str) -> tuple[Sample, ...]:
        """Return the samples of a topic, or of all topics together (`ALL_TOPICS`), oldest first, of at most a day."""
        return self._history.of(topic)

    def log_of(self, topic: str) -> TopicLog | None:
        """Return the log of a topic that was there at the last pass; None for another one."""
        looker = self._lookers.get(topic)
        return None if looker is None else looker.log

    def look(self) -> Standing:
        """Read the status of every topic once, and return the standing."""
        before = {topic.name: topic for topic in self.standing.topics}
        try:
            logs = {log.name: log for log in self.topics()}
        except Exception as error:  # noqa: BLE001  any storage error: the previous topics stay, `offline` holds the error
            self.standing = replace(self._service(), offline=first_line(error), topics=self.standing.topics, loaded=self.standing.loaded)
            return self.standing
        self._lookers = {name: self._looker(log) for name, log in logs.items()}
        self._history.keep(logs)
        topics: dict[str, TopicStanding] = {}
        counts, sources = self.append_counts(), self.source_counts()
        loading = [name for name in logs if name not in before]
        for name, looker in self._lookers.items():
            if self._stop.is_set():
                return self.standing
            try:
                topics[name] = self._with_counts(looker.look(now_ms=self.clock_ms()), *counts.get(name, (0, 0)), sources.get(name, {}))
            except UnknownTopic:
                continue
            if name in loading:  # the first pass may take long: publish each topic as soon as it is read
                loading.remove(name)
                self._publish(before | topics, loading)
            if topics[name].error is None:
                self._sample(name, [topics[name]])
        self._publish(topics, [])
        self._sample(ALL_TOPICS, list(topics.values()))
        self._save_history()
        return self.standing

    def _publish(self, topics: Mapping[str, TopicStanding], loading: Sequence[str]) -> None:
        self.standing = replace(
            self._service(), topics=tuple(topics[name] for name in sorted(topics)), loading=tuple(loading), loaded=not loading
        )

    def _service(self) -> Standing:
        cleaner = self.cleaner_standing()
        return replace(
            self.standing,
            taken_ms=self.clock_ms(),
            queries=tuple(self.queries()),
            tables=tuple(self.tables()),
            offline=None,
            cleaner_ran_ms=cleaner.ran_ms,
            cleaner_dead=cleaner.dead,
            dead_cleaners=cleaner.deaths,
        )

    def _looker(self, log: TopicLog) -> Looker:
        known = self._lookers.get(log.name)
        return known if known is not None and known.log is log else Looker(log, self.cleaner)

    def _with_counts(self, topic: TopicStanding, appended: int, late: int, sources: Mapping[str, SourceCounts]) -> TopicStanding:
        """Return a topic with what its append queries did; a service that is younger than an hour had counted nothing before."""
        hour_ago_ms = self.clock_ms() - HOUR_MS
        begun_ms = self.standing.started_ms  # the samples of a service before this one have its counts
        samples = reversed(self._history.of(topic.name))
        before = next((earlier for earlier in samples if begun_ms <= earlier.time_ms <= hour_ago_ms), None)
        appended_before, late_before = (0, 0) if before is None else (before.appended, before.late)
        counts = AppendCounts(
            appended=appended,
            late=late,
            recent_appended=max(0, appended - appended_before),
            recent_late=max(0, late - late_before),
            sources=sources,
        )
        return replace(topic, appends=counts)

    def _sample(self, name: str, topics: Sequence[TopicStanding]) -> None:
        """Add a sample of one topic, or of several together, if one is due."""
        now_ms = self.clock_ms()
        if not self._history.is_due(name, now_ms):
            return
        worst = [topic.dirtiest.report.ratio for topic in topics if topic.dirtiest is not None]
        sample = Sample(
            time_ms=now_ms,
            size_bytes=sum(topic.size_bytes for topic in topics),
            record_count=sum(topic.record_count for topic in topics),
            cleanable_bytes=sum(topic.cleanable_bytes for topic in topics),
            appended=sum(topic.appends.appended for topic in topics),
            late=sum(topic.appends.late for topic in topics),
            end_offsets=sum(topic.end_offsets for topic in topics),
            compaction_lag_ms=max((topic.compaction_lag_ms for topic in topics), default=0),
            dirty_percent=round(100 * max(worst, default=0.0)),
            reader_lag=max((topic.consumer_lag for topic in topics), default=0),
            dead_letters=sum(topic.dead_letters.count for topic in topics if topic.dead_letters is not None),
            cleaning_ms=self._add_cleanings(name, topics),
        )
        self._history.add(name, sample)

    def _add_cleanings(self, name: str, topics: Sequence[TopicStanding]) -> int:
        """Return the total time of cleanings so far: the total in the previous sample, and the cleanings after it."""
        samples = self._history.of(name)
        if not samples:
            return 0
        receipts = (receipt for topic in topics for receipt in topic.receipts if receipt.now_ms > samples[-1].time_ms)
        return samples[-1].cleaning_ms + sum(receipt.total_ms or 0 for receipt in receipts)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.look()
            except Exception as error:  # noqa: BLE001  the thread must survive; `taken_ms` shows the age of the standing
                _LOG.error("status collection failed", error=first_line(error))
            self._stop.wait(self.interval_seconds)
