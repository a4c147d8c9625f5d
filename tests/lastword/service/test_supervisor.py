"""The supervisor of the sources, without Spark: what fails is reported and started again, later each time; the others go on."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from lastword.compaction.errors import Aborted, QueryRefused, UnknownTopic, UserError
from lastword.service.supervisor import Backoff, SourceSupervisor
from lastword.streaming.append.query import stop_append_query
from lastword.streaming.append.query_errors import query_error, was_stopped
from lastword.streaming.append.source_issues import set_source_issue, source_issue
from lastword.streaming.append.source_settings import KafkaSource, RateSource
from tests.waiting import until


class Query:
    """A streaming query as far as the supervisor looks."""

    def __init__(self) -> None:
        """Run, and report nothing yet."""
        self.isActive, self.runId = True, object()
        self.lastProgress: SimpleNamespace | None = None
        self.error: Exception | None = None

    def exception(self) -> Exception | None:
        """Return what it died of."""
        return self.error

    def stop(self) -> None:
        """End."""
        self.isActive = False

    def die(self, error: Exception | None) -> None:
        """End by an error, or without one."""
        self.error, self.isActive = error, False

    def progress(self, timestamp: str = "1970-01-01T00:00:01.000Z") -> None:
        """Report a micro-batch."""
        figures = {"batchId": 3, "inputRowsPerSecond": 1.0, "processedRowsPerSecond": None, "batchDuration": 5}
        self.lastProgress = SimpleNamespace(timestamp=timestamp, sources=[], **figures)


class Log:
    """A topic that is there until it is not, and whose ledger can be read until it cannot."""

    is_there = True
    error: Exception | None = None
    paths = SimpleNamespace(root="/logs/fruit")

    def decisions(self) -> None:
        """Raise what a topic raises that is gone."""
        if self.error is not None:
            raise self.error
        if not self.is_there:
            message = "topic fruit does not exist"
            raise UnknownTopic(message)


class Bench:
    """A supervisor whose sources are started by a list of outcomes, and whose clock is `seconds`."""

    def __init__(self, *sources: Any, **settings: Any) -> None:
        """Let each start succeed until `outcomes` of its name say otherwise."""
        self.seconds, self.log, self.known = 0.0, Log(), {"fruit"}
        self.outcomes: dict[str, list[Exception]] = {}
        self.queries: dict[str, list[Query]] = {}
        self.matches: list[Any] = []
        self.sources = SourceSupervisor(
            sources=sources or [_rate("made-up")],
            start=self._start,
            matching=self._match,
            stop_query=stop_append_query,
            is_known=lambda topic: topic in self.known,
            clock_ms=lambda: round(self.seconds * 1000),
            monotonic=lambda: self.seconds,
            **{"restarts": True, **settings},
        )

    def _start(self, source: Any) -> tuple[Any, Any]:
        if self.outcomes.get(source.name):
            raise self.outcomes[source.name].pop(0)
        self.queries.setdefault(source.name, []).append(Query())
        return self.log, self.queries[source.name][-1]

    def _match(self, _source: Any) -> list[Any]:
        found = self.matches.pop(0)
        if isinstance(found, Exception):
            raise found
        return list(found)

    def step(self) -> None:
        """Look until nothing is being started any more."""
        works = [*self.sources._running.values(), *self.sources._patterns]  # noqa: SLF001  what is in hand
        self.sources.step()
        until(lambda: all(one.starting is None or one.starting.done() for one in works))
        self.sources.step()

    def state(self, name: str = "made-up") -> tuple[bool, int, str] | None:
        """Return whether a source is reported as running, its failures and its message; None when it is not reported."""
        return next(((one.active, one.failures, one.message) for one in self.sources.standings() if one.name == name), None)


def _rate(name: str, trigger: str = "") -> RateSource:
    return RateSource.model_validate({"name": name, "topic": "fruit", "format": "rate", "trigger": trigger})


def _pattern() -> KafkaSource:
    given = {"name": "all", "format": "kafka", "bootstrap.servers": "nowhere:1", "topics.pattern": ".*", "envelope": "debezium"}
    return KafkaSource.model_validate(given)


@pytest.fixture
def bench() -> Bench:
    """Two sources."""
    return Bench(_rate("made-up"), _rate("other"))


def test_the_wait_doubles_to_its_longest_and_is_short_again_after_work_for_as_long() -> None:
    """However often it fails."""
    backoff = Backoff()
    assert [backoff.next_seconds(worked_seconds=0) for _ in range(11)] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    assert {backoff.next_seconds(worked_seconds=299) for _ in range(1_100)} == {300}
    assert (backoff.next_seconds(worked_seconds=300), backoff.failures) == (1, 1)


@pytest.mark.parametrize(
    "error",
    [
        UserError("source made-up: the folder is not there"),
        UnknownTopic("topic fruit does not exist"),
        QueryRefused("query made-up runs in another process"),
        OSError(28, "No space left on device"),
        OSError(30, "Read-only file system"),
        TimeoutError("the store did not answer"),
        RuntimeError("SlowDown: please reduce your request rate"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_source_that_cannot_be_started_is_reported_and_started_again_and_the_others_run(bench: Bench, error: Exception) -> None:
    """Each cause is reported until the source has made progress."""
    bench.outcomes["made-up"] = [error, error]
    bench.step()
    assert bench.state("other") == (True, 0, "")
    failed = bench.state()
    assert failed is not None
    assert failed[:2] == (False, 1)
    assert str(error) in failed[2]
    assert next(one.retry_ms for one in bench.sources.standings() if one.name == "made-up") == 1_000
    bench.seconds = 0.9
    bench.step()
    assert len(bench.outcomes["made-up"]) == 1
    bench.seconds = 1
    bench.step()
    assert (bench.state() or ())[:2] == (False, 2)
    bench.seconds = 3
    bench.step()
    assert (bench.state() or ())[:2] == (False, 2), "it runs, and has done nothing yet"
    bench.queries["made-up"][0].progress()
    bench.step()
    assert bench.state() == (True, 0, "")
    assert len(bench.queries["other"]) == 1


@pytest.mark.parametrize(
    "error", ["[STREAM_FAILED] a file is cut", "java.lang.OutOfMemoryError", "Caused by: java.net.ConnectException: refused"]
)
def test_a_query_that_dies_is_started_again_and_the_others_run(bench: Bench, error: str) -> None:
    """After a second; after five minutes of work it is the first failure again."""
    bench.step()
    bench.queries["made-up"][0].die(RuntimeError(error))
    bench.step()
    assert (bench.state() or ())[:2] == (False, 1)
    bench.seconds = 1
    bench.step()
    bench.queries["made-up"][1].progress("1970-01-01T00:00:02.000Z")
    bench.queries["made-up"][1].die(RuntimeError(error))
    bench.step()
    assert (bench.state() or ())[:2] == (False, 2)
    bench.seconds = 3
    bench.step()
    bench.queries["made-up"][2].progress("1970-01-01T00:05:03.000Z")
    bench.queries["made-up"][2].die(RuntimeError(error))
    bench.step()
    assert (bench.state() or ())[:2] == (False, 1)
    assert len(bench.queries["other"]) == 1


def test_a_query_that_came_to_its_end_or_was_stopped_is_over() -> None:
    """It is not started again, and not reported."""
    bench = Bench(_rate("made-up"), _rate("other"))
    bench.step()
    assert not bench.sources.is_over
    bench.queries["made-up"][0].die(None)
    bench.queries["other"][0].die(RuntimeError(f"{Aborted.__module__}.{Aborted.__qualname__}: query other is stopping"))
    bench.step()
    bench.seconds = 1_000
    bench.step()
    assert (bench.sources.is_over, bench.sources.error, bench.sources.standings()) == (True, None, [])
    assert [len(one) for one in bench.queries.values()] == [1, 1]


def test_the_source_of_a_deleted_topic_is_stopped_and_comes_back_with_the_topic(bench: Bench) -> None:
    """It is nobody's trouble meanwhile; a topic that is only on its way out of sight starts nothing."""
    bench.step()
    bench.log.is_there = False
    bench.step()
    assert bench.state() == (True, 0, ""), "the topic is still listed"
    bench.known.clear()
    bench.step()
    assert (bench.sources.standings(), [one.isActive for one in bench.queries["made-up"]]) == ([], [False])
    bench.known.add("fruit")
    bench.log.is_there = True
    bench.step()
    bench.step()
    assert bench.state() == (True, 0, "")
    assert len(bench.queries["made-up"]) == 2


def test_a_ledger_that_cannot_be_read_is_no_deleted_topic(bench: Bench) -> None:
    """The storage does not answer for a while: the query is restarted, not forgotten."""
    bench.step()
    bench.log.error = OSError(5, "the storage did not answer")
    bench.queries["made-up"][0].die(RuntimeError("cannot append"))
    bench.step()
    assert bench.state() == (False, 1, "cannot append")


def test_a_search_that_fails_is_reported_and_made_again() -> None:
    """No topic is known, so it is reported under the name of its source; what it finds later is started."""
    bench = Bench(_pattern())
    bench.matches = [UserError("Kafka at nowhere:1: timed out"), [], [_rate("found")]]
    bench.step()
    assert bench.state("all") == (False, 1, "Kafka at nowhere:1: timed out")
    bench.seconds = 1
    bench.step()
    assert bench.state("all") is None
    bench.seconds = 31
    bench.step()
    bench.step()
    assert bench.state("found") == (True, 0, "")


def test_a_kafka_topic_of_a_name_is_looked_for_until_it_is_found() -> None:
    """Until then the failure names the topic; afterwards a second search would report the same source twice."""
    given = {"name": "one", "format": "kafka", "bootstrap.servers": "nowhere:1", "subscribe": "fruit", "envelope": "debezium"}
    source = KafkaSource.model_validate(given)
    bench = Bench(source)
    bench.matches = [UserError("Kafka topic fruit is not there"), [source.model_copy(update={"topic": "fruit"})]]
    bench.step()
    assert [(one.name, one.topic, one.active) for one in bench.sources.standings()] == [("one", "fruit", False)]
    bench.seconds = 1
    bench.step()
    bench.step()
    bench.seconds = 100
    bench.step()
    assert [(one.name, one.topic, one.active) for one in bench.sources.standings()] == [("one", "fruit", True)]


def test_without_restarts_the_service_fails_when_the_last_source_has_ended() -> None:
    """One source fails at its start, the other goes on to its end; then the service ends with the error of the first."""
    bench = Bench(_rate("made-up", "available-now"), _rate("other", "available-now"), restarts=False)
    bench.outcomes["made-up"] = [UserError("the folder is not there")]
    bench.step()
    assert not bench.sources.is_over
    bench.queries["other"][0].die(None)
    bench.step()
    assert (bench.sources.is_over, str(bench.sources.error)) == (True, "the folder is not there")


def test_a_users_mistake_at_the_first_start_ends_a_command_that_would_go_on() -> None:
    """`append --follow`: later failures, and those of the machine, are ridden out."""
    bench = Bench(must_start=True)
    bench.outcomes["made-up"] = [OSError(28, "No space left on device"), UserError("no column fruit")]
    bench.step()
    assert not bench.sources.is_over
    bench.seconds = 1
    bench.step()
    assert (bench.sources.is_over, str(bench.sources.error)) == (True, "no column fruit")


def test_stop_waits_for_a_start_in_hand_and_stops_what_it_started() -> None:
    """Else a query would go on behind the service."""
    bench, go = Bench(), threading.Event()
    start = bench.sources.start

    def slow(source: Any) -> Any:
        go.wait()
        return start(source)

    bench.sources.start = slow
    bench.sources.step()
    threading.Timer(0.1, go.set).start()
    bench.sources.stop()
    assert [one.isActive for one in bench.queries["made-up"]] == [False]


def test_stop_hangs_up_on_a_cluster_that_does_not_answer() -> None:
    """A start, or a search for the topics of a pattern, would keep the process for as long as the client is patient."""
    bench, answered = Bench(), threading.Event()

    def unanswered(_: Any) -> Any:
        answered.wait()
        raise ConnectionError

    bench.sources.start = bench.sources.matching = unanswered
    bench.sources.hang_up = answered.set
    bench.sources.step()
    bench.sources.stop()
    assert answered.is_set()
    assert bench.queries == {}


_PROXY = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred
=== Streaming Query ===
Caused by: py4j.Py4JException: An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "query.py", line 1, in append_micro_batch
    self._check_source()
{}

\tat py4j.Protocol.getReturnValue(Protocol.java:476)
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            _PROXY.format("lastword.compaction.errors.QueryRefused: Kafka topic a has 4 partitions\nand more"),
            "Kafka topic a has 4 partitions",
        ),
        (_PROXY.format("OSError: [Errno 28] No space left on device"), "OSError: [Errno 28] No space left on device"),
        (_PROXY.format("pyspark.errors.exceptions.captured.NumberFormatException: [CAST] x"), "NumberFormatException: [CAST] x"),
        (_PROXY.format("KeyboardInterrupt"), "KeyboardInterrupt: "),
        ("[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Path does not exist", "Path does not exist"),
        (
            "[STREAM_FAILED] Query [id = 1] terminated with exception: null\nCaused by: a.B: first\n\tat x\nCaused by: c.D: last\n\tat y",
            "c.D: last",
        ),
        ("", ""),
        ("Traceback (most recent call last):\n  File 1\nCaused by: c.D: last", "c.D: last"),
    ],
)
def test_what_a_query_died_of_is_one_line(text: str, said: str) -> None:
    """Errors of lastword are shown by their message, others by class and message."""
    assert str(query_error(RuntimeError(text))) == said


def test_a_query_that_was_asked_to_stop_is_told_from_one_that_failed() -> None:
    """By the text, which is all that survives."""
    assert was_stopped(RuntimeError(_PROXY.format("lastword.compaction.errors.Aborted: query a is stopping")))
    assert was_stopped(RuntimeError(_PROXY.format("lastword.compaction.errors.UnknownTopic: topic a does not exist")))
    assert not was_stopped(RuntimeError(_PROXY.format("OSError: Aborted")))


def test_a_running_query_whose_source_cannot_be_read_is_reported_with_the_issue() -> None:
    """The query is active and waits; the issue ends when the source can be read again, and is that of one source alone."""
    bench = Bench(_rate("away"), _rate("there"))
    bench.step()
    set_source_issue("/logs/fruit", "away", "its files cannot be listed: there is no folder incoming")
    try:
        standings = {one.name: (one.active, one.works, one.issue) for one in bench.sources.standings()}
        assert standings == {
            "away": (True, False, "its files cannot be listed: there is no folder incoming"),
            "there": (True, True, ""),
        }
    finally:
        set_source_issue("/logs/fruit", "away", "")
    assert [one.works for one in bench.sources.standings()] == [True, True]
    assert source_issue("/logs/fruit", "away") == ""


def test_a_query_that_dies_because_its_topic_was_deleted_is_nobodys_trouble(bench: Bench) -> None:
    """It meets the deletion before the supervisor does; the other one goes on."""
    bench.step()
    bench.log.is_there = False
    bench.queries["made-up"][0].die(RuntimeError("topic fruit does not exist"))
    bench.step()
    assert (bench.state(), bench.state("other")) == (None, (True, 0, ""))
    bench.step()
    assert len(bench.queries["made-up"]) == 1, "the topic is still listed"


def test_a_query_that_cannot_be_asked_is_reported_as_not_running(bench: Bench) -> None:
    """The JVM is going down; the supervisor goes on, and knows of no progress."""

    class Gone(Query):
        @property
        def lastProgress(self) -> SimpleNamespace | None:  # noqa: N802  PySpark's name
            message = "Answer from Java side is empty"
            raise ConnectionError(message)

        @lastProgress.setter
        def lastProgress(self, _: object) -> None:  # noqa: N802
            """Report nothing."""

    bench.step()
    bench.queries["made-up"][0].__class__ = Gone
    assert bench.state() == (False, 0, "ConnectionError: Answer from Java side is empty")
    bench.queries["made-up"][0].die(RuntimeError("java.net.SocketException"))
    bench.step()
    assert (bench.state() or ())[:2] == (False, 1)
    assert bench.state("other") == (True, 0, "")
