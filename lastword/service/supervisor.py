"""The supervisor of the sources: starts each, starts it again when it failed, and reports what is down; one source never stops another.

```
 due ─► starting (a thread) ─► running ─► came to its end         over
  ▲         │ error               │ error     its topic is deleted  over; due again when there is a topic of this name again
  └─────────┴── wait ◄────────────┘
                1 s, doubled up to 5 min; 1 s again after a run of 5 min
```

Starting a source asks a Kafka cluster or lists a folder, which may take long when it does not answer, so that it is done by threads: the
loop of the service goes on, and so do the other sources. A service in which every source has an end restarts none: the first error is
its own, when the others have come to their end.
"""

from __future__ import annotations

import math
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from lastword.compaction.errors import LastwordError, UnknownTopic, UserError, first_line
from lastword.compaction.moments import moment_ms
from lastword.service.backlog import read_backlog
from lastword.status.standing import QueryStanding
from lastword.streaming.append.query_errors import query_error, was_stopped
from lastword.streaming.append.source_issues import source_issue
from lastword.streaming.append.source_settings import KafkaSource
from lastword.streaming.events import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql.streaming.query import StreamingQuery

    from lastword.storage.log.topic_log import TopicLog
    from lastword.streaming.append.source_settings import FileSource, RateSource

    AnySource = FileSource | KafkaSource | RateSource

#: The longest wait before a restart, and how long something has to work until its next failure counts as the first one.
LONGEST_RESTART_SECONDS: Final = 300.0
#: Kafka topics that a pattern matches are looked for so often.
PATTERN_SECONDS: Final = 30.0
_STARTERS: Final = 4
_HURRY_SECONDS: Final = 0.05
_LOG: Final = logger("service")


@dataclass(slots=True)
class Backoff:
    """How long the restart of something that failed is waited for: a second, doubled up to `longest_seconds`."""

    longest_seconds: float = LONGEST_RESTART_SECONDS
    failures: int = 0
    _seconds: float = 0.0

    def next_seconds(self, *, worked_seconds: float) -> float:
        """Count a failure and return the wait; after work for as long as the longest wait it is the first failure again."""
        if worked_seconds >= self.longest_seconds:
            self.failures, self._seconds = 0, 0.0
        self.failures += 1
        self._seconds = min(2 * self._seconds, self.longest_seconds) if self._seconds else 1.0
        return self._seconds


@dataclass(slots=True)
class _Work:
    """Something that is started by a thread and started again when it failed: a source, or the search for the topics of a pattern."""

    source: AnySource
    backoff: Backoff
    starting: Future[Any] | None = None
    over: bool = False
    due: float = 0.0
    retry_ms: int | None = None
    message: str = ""

    @property
    def is_failing(self) -> bool:
        """Whether it has failed and has not worked since."""
        return bool(self.message)


@dataclass(slots=True)
class _Running(_Work):
    """One source, and its query while there is one."""

    log: TopicLog | None = None
    query: StreamingQuery | None = None
    started_ms: int = 0
    #: Its topic is deleted: None as long as it is not, else whether the topic has been out of sight since.
    lost: bool | None = None


@dataclass(slots=True, kw_only=True)
class SourceSupervisor:
    """Keeps the queries of some sources running.

    `start` opens a source and starts its query; `matching` returns a source for each topic that a source makes. Both may raise anything.
    `is_known` tells whether there is a topic of a name, None if unknown yet. If `restarts` is False, any error ends the source. If
    `must_start` is True, a `UserError` at the first start ends it too.
    """

    sources: Sequence[AnySource]
    start: Callable[[AnySource], tuple[TopicLog, StreamingQuery]]
    matching: Callable[[KafkaSource], list[KafkaSource]]
    #: Stops a query after the micro-batch in hand.
    stop_query: Callable[[StreamingQuery], None]
    is_known: Callable[[str], bool | None]
    clock_ms: Callable[[], int]
    restarts: bool
    must_start: bool = False
    in_thread: Callable[[], None] = lambda: None
    #: Ends what a start waits for: an answer of a cluster that is not there.
    hang_up: Callable[[], None] = lambda: None
    longest_seconds: float = LONGEST_RESTART_SECONDS
    pattern_seconds: float = PATTERN_SECONDS
    #: The time by which starts and searches are due, in seconds.
    monotonic: Callable[[], float] = time.monotonic
    #: What ended a source that is not restarted: the first such error.
    error: Exception | None = None
    _running: dict[tuple[str, str], _Running] = field(default_factory=dict)
    _patterns: list[_Work] = field(default_factory=list)
    _threads: ThreadPoolExecutor | None = None

    def __post_init__(self) -> None:
        """Let every source be due; nothing is started yet."""
        for source in self.sources:
            if isinstance(source, KafkaSource) and source.makes_topics:
                self._patterns.append(_Work(source, Backoff(self.longest_seconds)))
            else:
                self._add(source)

    @property
    def is_over(self) -> bool:
        """Whether every source has come to its end."""
        searched = all(pattern.over or (pattern.starting is None and pattern.due and not pattern.is_failing) for pattern in self._patterns)
        return searched and all(source.over for source in self._running.values())

    def step(self) -> None:
        """Look at every source once: collect what ended, start what is due. Returns at once."""
        for pattern in self._patterns:
            self._step_pattern(pattern)
        for source in list(self._running.values()):
            if source.over:
                self._revive(source)
            elif source.starting is not None:
                self._collect(source, source.starting)
            elif source.query is not None:
                self._look(source, source.query)
            elif self.monotonic() >= source.due:
                source.starting = self._submit(self.start, source.source)

    def stop(self) -> None:
        """Stop every query after the micro-batch in hand. Returns when no start is in hand any more."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            starts = [source.starting for source in (*self._patterns, *self._running.values()) if source.starting is not None]
            in_hand = [start for start in starts if not start.cancelled()]
            while wait(in_hand, timeout=_HURRY_SECONDS).not_done:
                self.hang_up()
        for source in list(self._running.values()):
            if source.starting is not None and not source.starting.cancelled() and source.starting.exception() is None:
                source.log, source.query = source.starting.result()
            if source.query is not None:
                self.stop_query(source.query)

    def standings(self) -> list[QueryStanding]:
        """Return the state of every source but those of deleted topics."""
        found = [_standing(pattern) for pattern in self._patterns if pattern.is_failing]
        for source in list(self._running.values()):
            query = source.query
            if source.lost is None and (source.is_failing or (query is not None and self.is_known(source.source.topic) is not False)):
                found.append(_standing(source, query))
        return found

    def _add(self, source: AnySource) -> None:
        self._running.setdefault((source.topic, source.name), _Running(source, Backoff(self.longest_seconds)))

    def _submit(self, do: Callable[[Any], Any], source: AnySource) -> Future[Any]:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_STARTERS, "source-start", initializer=self.in_thread)
        return self._threads.submit(do, source)

    def _step_pattern(self, one: _Work) -> None:
        if one.starting is None:
            if self.monotonic() >= one.due and not one.over:
                one.starting = self._submit(self.matching, one.source)
            return
        if not one.starting.done():
            return
        found, one.starting = one.starting, None
        try:
            sources: list[KafkaSource] = found.result()
        except Exception as error:  # noqa: BLE001  whatever a cluster answers
            self._handle_failure(one, error, worked_seconds=0)
            return
        self._works(one)
        one.due = self.monotonic() + self.pattern_seconds
        one.over = bool(one.source.filled_topic)  # a topic of a name is found once, those of a pattern again and again
        for source in sources:
            self._add(source)

    def _collect(self, one: _Running, starting: Future[Any]) -> None:
        if not starting.done():
            return
        one.starting = None
        try:
            one.log, one.query = starting.result()
        except Exception as error:  # noqa: BLE001  whatever a source answers
            is_final = self.must_start and not one.started_ms and isinstance(error, UserError)
            self._handle_failure(one, error, worked_seconds=0, is_final=is_final)
            return
        one.started_ms = self.clock_ms()
        _LOG.info("source started", source=one.source.name, topic=one.source.topic, format=one.source.format)

    def _look(self, one: _Running, query: StreamingQuery) -> None:
        """Look whether a query still runs; between two micro-batches it is stopped when its topic was deleted."""
        if query.isActive:
            if self.is_known(one.source.topic) is False and _lost_its_topic(one.log):
                self.stop_query(query)
                self._lose(one)
            elif one.is_failing and _progressed_ms(query) is not None:
                self._works(one)
            return
        error, progressed_ms = query.exception(), _progressed_ms(query)
        one.query = None
        if _lost_its_topic(one.log):
            self._lose(one)
        elif error is None or was_stopped(error):
            one.over = True
        else:
            self.stop_query(query)  # it lets go of its checkpoint
            worked_seconds = 0 if progressed_ms is None else (progressed_ms - one.started_ms) / 1000
            self._handle_failure(one, query_error(error), worked_seconds=worked_seconds)

    def _lose(self, one: _Running) -> None:
        _LOG.info("source stopped", source=one.source.name, topic=one.source.topic, why="the topic was deleted")
        one.query, one.over, one.lost, one.message = None, True, False, ""

    def _revive(self, one: _Running) -> None:
        """Let the source of a deleted topic be due again once there is a topic of this name again."""
        if one.lost is None or not self.restarts:
            return
        is_known = self.is_known(one.source.topic)
        if is_known is False:
            one.lost = True
        elif is_known and one.lost:
            one.over, one.lost, one.due = False, None, 0.0

    def _handle_failure(self, one: _Work, error: Exception, *, worked_seconds: float, is_final: bool = False) -> None:
        """Report a failure; the next start is due after a wait, if there is one."""
        # A message of lastword's own needs no class in front of it.
        one.message = (str(error).splitlines() or [""])[0] if isinstance(error, LastwordError) else first_line(error)
        source, topic = one.source.name, one.source.filled_topic
        if is_final or not self.restarts:
            self.error = self.error or error
            one.over = True
            _LOG.error("source failed", source=source, topic=topic, error=one.message)
            return
        seconds = one.backoff.next_seconds(worked_seconds=worked_seconds)
        one.due, one.retry_ms = self.monotonic() + seconds, self.clock_ms() + round(seconds * 1000)
        _LOG.error("source failed", source=source, topic=topic, failures=one.backoff.failures, restart_in_s=seconds, error=one.message)

    def _works(self, one: _Work) -> None:
        if one.is_failing:
            _LOG.info("source works again", source=one.source.name, topic=one.source.filled_topic, failures=one.backoff.failures)
        one.message, one.retry_ms = "", None


def _lost_its_topic(log: TopicLog | None) -> bool:
    """Tell whether somebody has deleted the topic of a query, and its checkpoint with it."""
    assert log is not None  # noqa: S101  it comes with the query
    try:
        log.decisions()
    except UnknownTopic:
        return True
    except Exception:  # noqa: BLE001  a ledger that cannot be read now is no deleted topic
        return False
    return False


def _progressed_ms(query: StreamingQuery) -> int | None:
    with suppress(Exception):  # the JVM is going down
        progress = query.lastProgress
        return None if progress is None else round(moment_ms(progress.timestamp))
    return None


def _standing(one: _Work, query: StreamingQuery | None = None) -> QueryStanding:
    """Return how a source is: what Spark reports of its query, or what it failed of until it has made progress again."""
    found = QueryStanding(
        name=one.source.name,
        topic=one.source.filled_topic,
        active=query is not None and not one.is_failing,
        failures=one.backoff.failures if one.is_failing else 0,
        retry_ms=one.retry_ms if query is None else None,
        message=one.message,
    )
    if query is None:
        return found
    log = one.log if isinstance(one, _Running) else None
    assert log is not None  # noqa: S101  it comes with the query
    found = replace(found, issue=source_issue(log.paths.root, one.source.name))
    try:
        progress, active = query.lastProgress, query.isActive
    except Exception as error:  # noqa: BLE001  the JVM is going down
        return replace(found, active=False, message=first_line(error))
    found = replace(found, active=found.active and active)
    if progress is None:
        return found
    return replace(
        found,
        batch_id=progress.batchId,
        input_rows_per_second=_number(progress.inputRowsPerSecond),
        processed_rows_per_second=_number(progress.processedRowsPerSecond),
        batch_duration_ms=progress.batchDuration,
        progressed_ms=round(moment_ms(progress.timestamp)),
        backlog=read_backlog(progress.sources),
    )


def _number(value: float | None) -> float:
    """Return what Spark gives as a rate: absent or NaN before the second micro-batch."""
    return 0.0 if value is None or not math.isfinite(value) else value
