"""The service: one Spark application with an append query for every source.

SIGTERM and SIGINT let the micro-batch in hand finish and then stop the queries; the process ends with 0. SIGKILL loses nothing either:
what was not committed comes again, what was committed is recognised. A query that dies ends the service with 1 and its error.
"""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING, Final

from compaction.errors import TopicExists
from lastword import clock
from lastword.log_dir import LogDir
from lastword.session import spark_session
from streaming.appender import stop_append_query
from streaming.events import logger
from streaming.sources import open_source, trigger_of

if TYPE_CHECKING:
    from types import FrameType

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from lastword.settings import Settings

_POLL_SECONDS: Final = 0.2
#: Kafka's transaction.abort.timed.out.transaction.cleanup.interval.ms.
_HANGING_SECONDS: Final = 10
_LOG: Final = logger("service")


def session_that_outlives_sigterm(settings: Settings) -> SparkSession:
    """Start the session with SIGTERM ignored, so that a signal to the process group does not kill the JVM under a micro-batch."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        return spark_session(master=settings.spark.get("spark.master"), settings=settings.spark)
    finally:
        signal.signal(signal.SIGTERM, before)


class Service:
    """Runs the sources of a configuration until it is told to stop."""

    def __init__(self, settings: Settings) -> None:
        """Open the log.dir, become its committing process and create the topics that are declared and missing."""
        self._settings = settings
        self._stop = threading.Event()
        self.logs = LogDir(session_that_outlives_sigterm(settings), settings.log_dir, settings=settings.broker)
        self.logs.hold_lock()
        for name, topic in settings.topics.items():
            try:
                self.logs.create_topic(name, partitions=topic.partitions, config=topic.config)
            except TopicExists:
                _LOG.debug("topic exists", topic=name)

    def stop(self) -> None:
        """Ask the service to stop after the micro-batches in hand."""
        self._stop.set()

    def run(self) -> None:
        """Start every source and return when all have ended by themselves, or after `stop`; raise what a query died of."""
        queries = [self._start(number) for number in range(len(self._settings.sources))]
        looked = 0.0
        try:
            while queries and not self._stop.is_set():
                if time.monotonic() - looked >= _HANGING_SECONDS:
                    self._end_hanging_transactions()
                    self.logs.purge_deleted()
                    looked = time.monotonic()
                for query in list(queries):
                    if not query.isActive:
                        queries.remove(query)
                        error = query.exception()
                        if error is not None:
                            raise error
                self._stop.wait(_POLL_SECONDS)
        finally:
            for query in queries:
                stop_append_query(query)

    def _end_hanging_transactions(self) -> None:
        """End what has been open for too long in any topic, so that one dead writer does not hold back readers for ever."""
        for name in self.logs.topics():
            for one in self.logs.topic(name).end_hanging_transactions():
                _LOG.warning(
                    "hanging transaction ended",
                    topic=name,
                    producer_id=one.producer_id,
                    transactional_id=one.transactional_id,
                    partitions=sorted(one.first_offsets),
                    timeout_ms=one.timeout_ms,
                )

    def run_until_signal(self) -> None:
        """Run as a process: SIGTERM and SIGINT stop it gracefully."""

        def handle(signum: int, _frame: FrameType | None) -> None:
            _LOG.info("stopping", signal=signal.Signals(signum).name)
            self.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, handle)
        self.run()

    def _start(self, number: int) -> StreamingQuery:
        source = self._settings.sources[number]
        topic = self.logs.topic(source.topic)
        opened = open_source(self.logs.spark, source, topic.log, now_ms=clock.now_ms())
        _LOG.info("source started", source=source.name, topic=source.topic, format=source.format)
        return topic.append_stream(
            opened.rows, name=source.name, trigger=trigger_of(source.trigger), on_invalid=source.on_invalid, mirror=opened.mirror
        )
