"""The service: an append query of Spark for every source, the cleaner over all topics, and the typed tables.

Without a source it needs no Spark and starts no JVM, unless `spark.master` is a cluster, whose executors then clean.

SIGTERM and SIGINT let the micro-batch and the swap in hand finish and then stop the queries; the process ends with 0. SIGKILL loses nothing
either: what was not committed comes again, what was committed is recognised. A source that cannot be started, or whose query dies, is
reported and started again, later each time, and so is the cleaner; the others go on (`lastword.service.supervisor`). The deletion of
a topic stops its sources, and nothing else.
"""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, cast

from lastword import clock
from lastword.compaction.config.topic_config import normalize_overrides
from lastword.compaction.errors import (
    Aborted,
    InvalidConfiguration,
    LastwordError,
    TopicExists,
    UnknownTopic,
    UserError,
    Violation,
    first_line,
)
from lastword.log_dir import LogDir
from lastword.service.signals import POLL_SECONDS, StopSignals, start_session
from lastword.service.supervisor import LONGEST_RESTART_SECONDS, Backoff, SourceSupervisor
from lastword.service.tables import TableSupervisor
from lastword.spark.object_store import storage_options
from lastword.spark.package import is_cluster
from lastword.status.records import RecordLooks
from lastword.status.samples import HistoryFile
from lastword.status.server import StatusApp, StatusServer
from lastword.status.watcher import CleanerStanding, Watcher
from lastword.streaming import metrics
from lastword.streaming.append.query_errors import query_error
from lastword.streaming.append.source_settings import trigger_of
from lastword.streaming.cleaning.scheduler import MaintenanceScheduler
from lastword.streaming.cluster import cluster_of
from lastword.streaming.events import logger
from lastword.streaming.ticker import APPEND_POOL, QueryTicker, ThreadTicker, with_pool

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from lastword.arrow_topic import ArrowTopic
    from lastword.service.settings import Settings, TopicSettings
    from lastword.spark_topic import SparkTopic
    from lastword.storage.log.topic_log import TopicLog
    from lastword.streaming.append.source_settings import FileSource, KafkaSource, RateSource
    from lastword.streaming.ticker import Ticker

_TIDY_SECONDS: Final = 10
_LOG: Final = logger("service")


class Service:
    """Runs the sources of a configuration and the cleaner until it is told to stop."""

    def __init__(
        self,
        settings: Settings,
        *,
        cleaning: bool = True,
        longest_restart_seconds: float = LONGEST_RESTART_SECONDS,
        store: Mapping[str, str] | None = None,
        signals: StopSignals | None = None,
    ) -> None:
        """Open the log.dir and create the topics that are declared and missing.

        Without `cleaning` only the sources run: for a command that appends. It takes the settings of the last service. What failed is
        started again after `longest_restart_seconds` at the most. `store` are options of the object store that win over those of the
        Spark settings; `signals` have received what came before.
        """
        self._settings = settings
        self._cleaning = cleaning
        self._stop = threading.Event()
        self._signals = signals or StopSignals()
        self._spark = start_session(settings.spark, self._signals) if _needs_spark(settings) else None
        self.logs = self._open({**storage_options(settings.spark, settings.log_dir), **(store or {})})
        self.logs.cleaner.stopping = self._stop
        self.scheduler = MaintenanceScheduler(
            spark=self._spark,
            cleaner=self.logs.cleaner,
            config=self.logs.service_config,
            topics=self._topic_logs,
            clock_ms=clock.now_ms,
            stop=self._stop,
        )
        self.dead_cleaners, self._cleaner_dead = 0, False
        self._cleaner_started_ms = clock.now_ms()
        self._cleaner_backoff = Backoff(longest_restart_seconds)
        have_end = [trigger_of(source.trigger).get("availableNow", False) for source in settings.sources]
        #: Whether it goes on when no source runs: the cleaner has work. A source without an end was stopped: its topic is deleted.
        self.outlives_sources = not have_end or (cleaning and not all(have_end))
        self.sources = self._supervise_sources(longest_restart_seconds, restarts=not have_end or not all(have_end))
        self.tables = TableSupervisor(
            settings=settings.tables,
            topics=lambda: self._known,
            storage_options=self.logs.storage_options,
            clock_ms=clock.now_ms,
            cluster=cluster_of(self._spark),
            longest_seconds=longest_restart_seconds,
        )
        self._heartbeat_ms = clock.now_ms()
        self.watcher = Watcher(
            log_dir=self.logs.location,
            topics=self._topic_logs,
            cleaner=self.logs.cleaner,
            clock_ms=clock.now_ms,
            queries=self.sources.standings,
            tables=self.tables.standings,
            cleaner_standing=self._cleaner_standing,
        )
        self._known: dict[str, TopicLog] = {}
        self._topics_lock = threading.Lock()
        self._undeclared = dict(settings.topics)
        self._unkept = cleaning
        self._declare()

    def _open(self, options: Mapping[str, str]) -> LogDir[ArrowTopic] | LogDir[SparkTopic]:
        settings, spark = self._settings.broker if self._cleaning else None, self._spark
        if spark is None:
            return LogDir(self._settings.log_dir, settings=settings, storage_options=options)
        return LogDir(
            spark,
            self._settings.log_dir,
            settings=settings,
            storage_options=options,
            # A core is left to appends: FAIR pools do not take a running task away. Executors may come and go.
            cleaner_parallelism=lambda: spark.sparkContext.defaultParallelism - 1,
        )

    def _supervise_sources(self, longest_seconds: float, *, restarts: bool) -> SourceSupervisor:
        return SourceSupervisor(
            sources=self._settings.sources,
            start=self._start,
            matching=self._matching,
            is_known=lambda topic: topic in self._known if self.watcher.standing.loaded else None,
            clock_ms=clock.now_ms,
            restarts=restarts,
            must_start=not self._cleaning,
            in_thread=self._choose_pool,
            longest_seconds=longest_seconds,
            stop_query=lambda query: self._queries().stop_append_query(query),
            hang_up=lambda: self._queries().hang_up(),
        )

    def _choose_pool(self) -> None:
        if self._spark is not None:
            with_pool(self._spark, APPEND_POOL)

    def _declare(self) -> None:
        """Keep the settings for commands, make the topics that are declared and missing, and give the others their declared settings.

        What the storage does not let through now is reported and due again. Raises `InvalidConfiguration` for partitions that a topic
        does not have.
        """
        try:
            self.logs.make_folder()  # topics of a pattern are made later
            if self._unkept:
                self.logs.keep_settings()
                self._unkept = False
            for name, topic in list(self._undeclared.items()):
                try:
                    self.logs.create_topic(name, partitions=topic.partitions or 1, config=topic.config)
                except TopicExists:
                    self._apply(name, topic)
                del self._undeclared[name]
        except UserError:
            raise
        except Exception as error:  # noqa: BLE001  a disk that is full or cannot be written, a store that does not answer
            _LOG.error("topics cannot be declared", topics=sorted(self._undeclared), error=first_line(error))

    def _apply(self, name: str, declared: TopicSettings) -> None:
        """Give a topic that exists the settings of its declaration; those that it does not name stay."""
        topic = self.logs.topic(name)
        try:
            today = topic.log.decisions()
        except LastwordError as error:  # this topic's trouble, and no other's
            _LOG.error("topic cannot be declared", topic=name, error=str(error))
            return
        if declared.partitions not in {None, today.partitions}:
            allowed = (
                f"topic {name} has {today.partitions}, and the number is fixed at creation: leave it out, or copy the topic (lastword "
                f"topics copy {name} NEW --partitions {declared.partitions}) and declare the copy"
            )
            violation = Violation(key=f"topic.{name}.partitions", value=str(declared.partitions), allowed=allowed)
            subject = "the service"
            raise InvalidConfiguration(subject, [violation])
        wanted = normalize_overrides(declared.config, subject=f"topic {name}")
        changed = {key: value for key, value in wanted.items() if today.overrides.get(key) != value}
        if changed:
            topic.alter_config(changed)
        for key, value in changed.items():
            _LOG.warning("topic setting changed by the configuration file", topic=name, key=key, old=today.overrides.get(key), new=value)

    def stop(self) -> None:
        """Ask the service to stop after the micro-batches and the swap in hand."""
        self._stop.set()

    def run(self) -> None:
        """Run every source and the cleaner; return when all sources have come to their end (`available-now`), or after `stop`.

        At their end the tables take what is there.

        With a source that has no end, or without any source, it runs until `stop`, whatever fails meanwhile. Raises `LogDirUnreachable`
        when the log.dir goes away. If all sources have an end, none is restarted: the first error is raised when the others have come to
        theirs.
        """
        self.watcher.start()
        cleaner: Ticker | None = None
        restart_at, tidied = 0.0 if self._cleaning else math.inf, 0.0
        try:
            while not self._is_asked_to_stop() and (self.outlives_sources or not self.sources.is_over):
                self._heartbeat_ms = clock.now_ms()
                self.logs.check_reachable()
                if time.monotonic() - tidied >= _TIDY_SECONDS:
                    self._tidy()
                    tidied = time.monotonic()
                self.sources.step()
                self.tables.step()
                if cleaner is not None and not cleaner.is_active:
                    restart_at = time.monotonic() + self._count_dead_cleaner(cleaner)
                    cleaner = None
                if cleaner is None and time.monotonic() >= restart_at:
                    cleaner = self._start_cleaner()
                    self._cleaner_dead = False
                self._stop.wait(POLL_SECONDS)
            if not self._stop.is_set():  # every source has come to its end
                self._topic_logs()
                self.tables.finish()
        finally:
            self._stop.set()
            self.sources.stop()
            self.tables.stop()
            self._stop_cleaner(cleaner)
            self.watcher.stop()
        if self.sources.error is not None:
            raise self.sources.error

    def _is_asked_to_stop(self) -> bool:
        """Return whether `stop` was called or a signal was received, which is looked at here and nowhere else."""
        if self._signals.received is not None and not self._stop.is_set():
            _LOG.info("service stopping", signal=self._signals.received.name)
            self.stop()
        return self._stop.is_set()

    def _tidy(self) -> None:
        """Declare what could not be declared before, and remove the files of deleted topics that are due; a disk is asked again."""
        try:
            if self._undeclared or self._unkept:
                self._declare()
            self.logs.purge_deleted()
        except (OSError, UserError) as error:
            _LOG.warning("the log.dir cannot be tidied", error=first_line(error))

    def serve(self) -> StatusServer | None:
        """Answer HTTP from now on, if there is an address for it; raises `UserError` when that is taken."""
        if not self._settings.http.listen:
            return None
        looks = RecordLooks(log_of=self.watcher.log_of) if self._settings.http.records else None
        app = StatusApp(watcher=self.watcher, now_ms=clock.now_ms, heartbeat_ms=lambda: self._heartbeat_ms, looks=looks)
        server = StatusServer(app, self._settings.http.listen)
        self.watcher.keep_history(HistoryFile(self.logs.location, self.logs.storage_options, host=socket.gethostname(), port=server.port))
        server.start()
        _LOG.info("http server started", url=server.url)
        return server

    def run_until_signal(self) -> None:
        """Run as a process that answers HTTP: SIGTERM and SIGINT stop it gracefully."""
        with self._signals:
            server = self.serve()
            try:
                self.run()
            finally:
                if server is not None:
                    server.stop()

    def _matching(self, source: KafkaSource) -> list[KafkaSource]:
        """Return a source for each Kafka topic that a source reads now, and make the topics of these names that are missing."""
        found = self._queries().matching_sources(cast("SparkSession", self._spark), source)
        for one, partitions in found:
            with suppress(TopicExists):
                self.logs.create_topic(one.topic, partitions=partitions, config={"cleanup.policy": "compact"})
        return [one for one, _ in found]

    def _start(self, source: FileSource | KafkaSource | RateSource) -> tuple[TopicLog, StreamingQuery]:
        if self._stop.is_set():
            message = f"source {source.name} is not started: the service stops"
            raise Aborted(message)
        try:
            topic = cast("SparkTopic", self.logs.topic(source.topic))
        except UnknownTopic as error:
            message = f'{error}; to let the service make it: topic."{source.topic}".cleanup.policy = "compact"'
            raise UnknownTopic(message) from None
        return topic.log, self._queries().start_query(cast("SparkSession", self._spark), topic, source)

    @staticmethod
    def _queries() -> ModuleType:
        from lastword.service import source_queries  # noqa: PLC0415  imports PySpark, which a service without sources does not need

        return source_queries

    def _start_cleaner(self) -> Ticker:
        self._cleaner_started_ms = clock.now_ms()
        interval_ms = self.logs.service_config.log_cleaner_backoff_ms
        if self._spark is None:
            return ThreadTicker(self.scheduler.tick, interval_ms=interval_ms)
        return QueryTicker(self._spark, self.scheduler.tick, interval_ms=interval_ms)

    def _count_dead_cleaner(self, cleaner: Ticker) -> float:
        """Count a cleaner that died, and return after how many seconds it is started again."""
        self.dead_cleaners += 1
        self._cleaner_dead = True
        metrics.DEAD_CLEANERS.inc()
        ticked_ms = (self.scheduler.counts.last_tick_ms or 0) - self._cleaner_started_ms
        delay = self._cleaner_backoff.next_seconds(worked_seconds=ticked_ms / 1000)
        error = cleaner.error()
        reason = "it ended without an error" if error is None else first_line(error) if self._spark is None else str(query_error(error))
        _LOG.error("cleaner died", dead_cleaners=self.dead_cleaners, restart_in_s=delay, error=reason)
        return delay

    def _cleaner_standing(self) -> CleanerStanding:
        return CleanerStanding(ran_ms=self.scheduler.counts.last_tick_ms, dead=self._cleaner_dead, deaths=self.dead_cleaners)

    def _stop_cleaner(self, cleaner: Ticker | None) -> None:
        """Stop the cleaner after the swap in hand: stopping its query alone would interrupt it."""
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


def _needs_spark(settings: Settings) -> bool:
    """Tell whether a service runs a query of Spark, or has the executors of a cluster for its cleaner."""
    master = settings.spark.get("spark.master") or os.environ.get("SPARK_MASTER") or "local"
    return bool(settings.sources) or is_cluster(master) or "PYSPARK_GATEWAY_PORT" in os.environ  # which spark-submit sets
