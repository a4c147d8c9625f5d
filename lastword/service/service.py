"""The service: one Spark application with an append query for every source, and the cleaner query over all topics.

SIGTERM and SIGINT let the micro-batch and the swap in hand finish and then stop the queries; the process ends with 0. SIGKILL loses nothing
either: what was not committed comes again, what was committed is recognised. An append query that dies ends the service with 1 and its
error; a cleaner query that dies is started again, later each time, and counted: readers and writers do not need it at once. The deletion
of a topic stops its sources, and nothing else.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from lastword import clock
from lastword.compaction.errors import Aborted, TopicExists, UnknownTopic, first_line
from lastword.compaction.moments import moment_ms
from lastword.log_dir import LogDir
from lastword.spark.object_store import storage_options
from lastword.spark.session import spark_session
from lastword.status.server import StatusApp, StatusServer
from lastword.status.standing import QueryStanding
from lastword.status.watcher import CleanerStanding, Watcher
from lastword.streaming import metrics
from lastword.streaming.append.query import stop_append_query
from lastword.streaming.append.source_settings import KafkaSource
from lastword.streaming.append.sources import matching_sources, open_source, trigger_of
from lastword.streaming.cleaning.scheduler import MaintenanceScheduler
from lastword.streaming.events import logger
from lastword.streaming.ticker import APPEND_POOL, start_cleaner_query, with_pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from lastword.service.settings import Settings
    from lastword.storage.log.topic_log import TopicLog
    from lastword.streaming.append.source_settings import FileSource, RateSource

_POLL_SECONDS: Final = 0.2
_TIDY_SECONDS: Final = 10
#: Kafka topics that a pattern matches are looked for so often.
_PATTERN_SECONDS: Final = 30.0
_LONGEST_RESTART_SECONDS: Final = 300.0
#: Set while a session is started.
_STARTING: Final = threading.Event()
_LOG: Final = logger("service")


def _ignore_sigterm_in_the_jvm() -> None:
    """Let a process that is forked while the session starts ignore SIGTERM: that outlives its exec, which a handler does not."""
    if _STARTING.is_set():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


# Between fork and exec, so that this process heeds the signal all the time. PySpark's Popen has a preexec_fn; without one Python calls no
# hook.
os.register_at_fork(after_in_child=_ignore_sigterm_in_the_jvm)


def session_that_outlives_sigterm(settings: Settings, heed: Callable[[int, FrameType | None], None]) -> SparkSession:
    """Start the session with a JVM that ignores SIGTERM, so that a signal to the process group does not kill it under a micro-batch.

    `heed` is called for one that comes to this process meanwhile; the start, which takes seconds, goes on.
    """
    before = signal.signal(signal.SIGTERM, heed)
    _STARTING.set()
    try:
        return spark_session(master=settings.spark.get("spark.master"), settings=settings.spark)
    finally:
        _STARTING.clear()
        signal.signal(signal.SIGTERM, before)


class Service:
    """Runs the sources of a configuration and the cleaner until it is told to stop."""

    def __init__(self, settings: Settings, *, cleaning: bool = True) -> None:
        """Open the log.dir, become its committing process and create the topics that are declared and missing.

        Without `cleaning` only the sources run: for a command that appends and ends. It takes the settings of the last service.
        """
        self._settings = settings
        self._cleaning = cleaning
        self._stop = threading.Event()
        spark = self._spark = session_that_outlives_sigterm(settings, self._heed)
        # A core is left to appends: FAIR pools do not take a running task away.
        free = spark.sparkContext.defaultParallelism - 1
        self.logs = LogDir(
            spark,
            settings.log_dir,
            settings=settings.broker if cleaning else None,
            storage_options=storage_options(settings.spark),
            cleaner_parallelism=free,
        )
        self.logs.cleaner.stopping = self._stop
        if cleaning:
            self.logs.keep_settings()
        self.scheduler = MaintenanceScheduler(
            spark=spark,
            cleaner=self.logs.cleaner,
            config=self.logs.service_config,
            topics=self._topic_logs,
            clock_ms=clock.now_ms,
            stop=self._stop,
        )
        self.dead_cleaners = 0
        self._cleaner_dead = False
        self._cleaner_started_ms = clock.now_ms()
        self._restart_seconds = 0.0
        self._queries: dict[tuple[str, str], tuple[TopicLog, StreamingQuery]] = {}
        self._heartbeat_ms = clock.now_ms()
        self.watcher = Watcher(
            log_dir=self.logs.location,
            topics=self._topic_logs,
            cleaner=self.logs.cleaner,
            clock_ms=clock.now_ms,
            queries=self._query_standings,
            cleaner_standing=self._cleaner_standing,
        )
        self._started: set[tuple[str, str]] = set()
        self._looked_for_topics = 0.0
        self._has_patterns = any(isinstance(one, KafkaSource) and one.topics_pattern for one in settings.sources)
        self._known: dict[str, TopicLog] = {}
        self._topics_lock = threading.Lock()
        for name, topic in settings.topics.items():
            try:
                self.logs.create_topic(name, partitions=topic.partitions, config=topic.config)
            except TopicExists:
                _LOG.debug("topic exists", topic=name)

    def stop(self) -> None:
        """Ask the service to stop after the micro-batches and the swap in hand."""
        self._stop.set()

    def run(self) -> None:
        """Start every source and the cleaner; return when all sources have come to their end (`available-now`), or after `stop`.

        Raises what an append query died of, and `LogDirUnreachable` when the log.dir goes away. Without a source, or with one that has no
        end, it runs until `stop`: the cleaner has work, also when the source's topic is deleted.
        """
        with_pool(self._spark, APPEND_POOL)
        self.watcher.start()
        queries = list["StreamingQuery"]()
        cleaner: StreamingQuery | None = None
        restart_at, tidied = 0.0 if self._cleaning else math.inf, 0.0
        try:
            queries.extend(self._start_sources())
            while not self._stop.is_set() and (queries or self._outlives_sources()):
                self._heartbeat_ms = clock.now_ms()
                self.logs.check_reachable()
                if time.monotonic() - tidied >= _TIDY_SECONDS:
                    self.logs.purge_deleted()
                    tidied = time.monotonic()
                self._stop_orphans()
                if self._has_patterns and time.monotonic() - self._looked_for_topics >= _PATTERN_SECONDS:
                    queries.extend(self._start_sources())
                for query in list(queries):
                    if not query.isActive:
                        queries.remove(query)
                        error = query.exception()
                        if error is not None and not _was_stopped(error) and not self._lost_its_topic(query):
                            raise error
                if cleaner is not None and not cleaner.isActive:
                    restart_at = time.monotonic() + self._count_dead_cleaner(cleaner)
                    cleaner = None
                if cleaner is None and time.monotonic() >= restart_at:
                    cleaner = self._start_cleaner()
                    self._cleaner_dead = False
                self._stop.wait(_POLL_SECONDS)
        finally:
            self._stop.set()
            for query in queries:
                stop_append_query(query)
            self._stop_cleaner(cleaner)
            self.watcher.stop()

    def _outlives_sources(self) -> bool:
        """Tell whether the cleaner goes on when no append query runs. One without an end was stopped: its topic is deleted."""
        finite = [trigger_of(source.trigger).get("availableNow", False) for source in self._settings.sources]
        return not finite or (self._cleaning and not all(finite))

    def _stop_orphans(self) -> None:
        """Stop the queries of topics that somebody has deleted since the last look, between two micro-batches."""
        for log, query in list(self._queries.values()) if self.watcher.standing.loaded else ():
            # A topic that was made since the last look is not known yet.
            if log.name not in self._known and query.isActive and self._lost_its_topic(query):
                _LOG.info("source stopped", topic=log.name, why="the topic was deleted")
                stop_append_query(query)

    def _lost_its_topic(self, query: StreamingQuery) -> bool:
        """Tell whether somebody has deleted the topic of a query, and its checkpoint with it."""
        for log in [log for log, one in self._queries.values() if one is query]:
            try:
                log.decisions()
            except UnknownTopic:
                return True
        return False

    def serve(self) -> StatusServer | None:
        """Answer HTTP from now on, if there is an address for it; raises `UserError` when that is taken."""
        if not self._settings.http.listen:
            return None
        app = StatusApp(watcher=self.watcher, now_ms=clock.now_ms, heartbeat_ms=lambda: self._heartbeat_ms)
        server = StatusServer(app, self._settings.http.listen)
        server.start()
        _LOG.info("http server started", url=server.url)
        return server

    def run_until_signal(self) -> None:
        """Run as a process that answers HTTP: SIGTERM and SIGINT stop it gracefully."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._heed)
        server = self.serve()
        try:
            self.run()
        finally:
            if server is not None:
                server.stop()

    def _heed(self, signum: int, _frame: FrameType | None) -> None:
        _LOG.info("service stopping", signal=signal.Signals(signum).name)
        self.stop()

    def _start_sources(self) -> Iterator[StreamingQuery]:
        """Start the sources that are not running; those of a pattern, one for each Kafka topic that it matches now."""
        self._looked_for_topics = time.monotonic()
        for source in self._settings.sources:
            if not isinstance(source, KafkaSource) or not source.topics_pattern:
                found = [source]
            else:
                found = [self._of_topic(one, partitions) for one, partitions in matching_sources(self._spark, source)]
            for one in found:
                if not self._stop.is_set() and (one.topic, one.name) not in self._started:
                    self._started.add((one.topic, one.name))
                    yield self._start(one)

    def _of_topic(self, source: KafkaSource, partitions: int) -> KafkaSource:
        """Make the topic of a source that a pattern has found, if it is missing."""
        with suppress(TopicExists):
            self.logs.create_topic(source.topic, partitions=partitions, config={"cleanup.policy": "compact"})
        return source

    def _start(self, source: FileSource | KafkaSource | RateSource) -> StreamingQuery:
        topic = self.logs.topic(source.topic)
        opened = open_source(self._spark, source, topic.log, now_ms=clock.now_ms())
        _LOG.info("source started", source=source.name, topic=source.topic, format=source.format)
        query = topic.append_stream(
            opened.rows,
            name=source.name,
            trigger=trigger_of(source.trigger),
            on_invalid=source.on_invalid,
            mirror=opened.mirror,
            envelope=opened.envelope,
            events=opened.events,
            decoder=opened.decoder,
        )
        self._queries[source.topic, source.name] = topic.log, query
        return query

    def _start_cleaner(self) -> StreamingQuery:
        self._cleaner_started_ms = clock.now_ms()
        return start_cleaner_query(self._spark, self.scheduler.tick, interval_ms=self.logs.service_config.log_cleaner_backoff_ms)

    def _count_dead_cleaner(self, cleaner: StreamingQuery) -> float:
        """Count a cleaner query that died, and return after how many seconds it is started again.

        A second, doubled each time; a second again for one that had ticked for as long as the longest wait.
        """
        self.dead_cleaners += 1
        self._cleaner_dead = True
        metrics.DEAD_CLEANERS.inc()
        ticked_ms = (self.scheduler.counts.last_tick_ms or 0) - self._cleaner_started_ms
        steady = ticked_ms >= _LONGEST_RESTART_SECONDS * 1000
        delay = 1.0 if steady or not self._restart_seconds else min(2 * self._restart_seconds, _LONGEST_RESTART_SECONDS)
        self._restart_seconds = delay
        error = cleaner.exception()
        reason = str(error).splitlines()[0] if error is not None else "the query ended without an error"
        _LOG.error("cleaner died", dead_cleaners=self.dead_cleaners, restart_in_s=delay, error=reason)
        return delay

    def _cleaner_standing(self) -> CleanerStanding:
        return CleanerStanding(ran_ms=self.scheduler.counts.last_tick_ms, dead=self._cleaner_dead, deaths=self.dead_cleaners)

    def _query_standings(self) -> list[QueryStanding]:
        """Return how the queries are; those of deleted topics need nobody."""
        return [
            _query_standing(name, log.name, query) for (_, name), (log, query) in list(self._queries.items()) if log.name in self._known
        ]

    def _stop_cleaner(self, cleaner: StreamingQuery | None) -> None:
        """Stop the cleaner query after the swap in hand: `StreamingQuery.stop()` alone would interrupt it."""
        self._stop.set()
        if cleaner is not None:
            self.scheduler.finish()
            cleaner.stop()

    def _topic_logs(self) -> list[TopicLog]:
        """Return the topics that are there now; what is known of one is kept from tick to tick."""
        known = {}
        with self._topics_lock:  # the cleaner and the watcher share the objects, and so what they know and their locks
            self.logs.check_reachable()
            for name in self.logs.topics():
                log = self._known.get(name) or self.logs.log(name)
                try:
                    log.decisions()  # another topic may have taken the name since
                except UnknownTopic:
                    continue
                except Exception as error:  # noqa: BLE001  whoever works on the topic meets it again, and the others go on
                    _LOG.warning("topic cannot be read", topic=name, error=first_line(error))
                known[name] = log
            self._known = known
        return list(known.values())


def _was_stopped(error: Exception) -> bool:
    """Tell whether an append query died because its topic is gone, or a micro-batch came when it had been asked to stop.

    The text is all that survives of the error on its way through the JVM.
    """
    return any(f"{one.__module__}.{one.__qualname__}: " in str(error) for one in (Aborted, UnknownTopic))


def _query_standing(name: str, topic: str, query: StreamingQuery) -> QueryStanding:
    """Return how a query is, from the progress that Spark reports."""
    try:
        progress, active, failure = query.lastProgress, query.isActive, query.exception()
    except Exception as error:  # noqa: BLE001  the JVM is going down
        return QueryStanding(name=name, topic=topic, active=False, message=first_line(error))
    message = first_line(failure) if failure is not None else ""
    if progress is None:
        return QueryStanding(name=name, topic=topic, active=active, message=message)
    return QueryStanding(
        name=name,
        topic=topic,
        active=active,
        batch_id=progress.batchId,
        input_rows_per_second=_number(progress.inputRowsPerSecond),
        processed_rows_per_second=_number(progress.processedRowsPerSecond),
        batch_duration_ms=progress.batchDuration,
        progressed_ms=round(moment_ms(progress.timestamp)),
        message=message,
    )


def _number(value: float | None) -> float:
    """Return what Spark gives as a rate: absent or NaN before the second micro-batch."""
    return 0.0 if value is None or not math.isfinite(value) else value
