"""Kafka for real: a KRaft broker, transactions, tombstones, and a topic that keeps Kafka's partitions and offsets."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from lastword import clock
from lastword.compaction.errors import QueryRefused, UserError
from lastword.service.backlog import read_backlog
from lastword.status.standing import Backlog
from lastword.streaming.append.kafka_topics import KafkaTopics, KafkaUnreachable, hang_up
from lastword.streaming.append.source_settings import KafkaSource
from lastword.streaming.append.sources import open_source
from tests.kafka_broker import KafkaBroker, Record
from tests.pictures import latest, log, text
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from lastword import LogDir, SparkTopic

pytestmark = pytest.mark.kafka
_COMPACT = {"cleanup.policy": "compact"}


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    """Return a real broker for the tests of this module."""
    with KafkaBroker() as running:
        yield running


def _source(broker: KafkaBroker, subscribe: str, **settings: Any) -> KafkaSource:
    given = {"name": "mirror", "topic": "fruit", "format": "kafka", "bootstrap.servers": broker.bootstrap_servers, "subscribe": subscribe}
    return KafkaSource.model_validate(given | settings)


def _run(spark: SparkSession, topic: SparkTopic, source: KafkaSource) -> StreamingQuery:
    opened = open_source(spark, source, topic.log, now_ms=clock.now_ms())
    query = topic.append_stream(
        opened.rows, name=source.name, trigger={"availableNow": True}, mirror=opened.mirror, upstream=opened.upstream, events=opened.events
    )
    assert query.awaitTermination(90)
    return query


def _found(topic: SparkTopic) -> list[tuple[int, int, str, str, int, tuple[tuple[str, bytes], ...]]]:
    rows = topic.records().orderBy("partition", "offset").collect()
    return [
        (
            row["partition"],
            row["offset"],
            text(row["key"]),
            text(row["value"]),
            int(row["timestamp"].timestamp() * 1000),
            tuple((header["key"], bytes(header["value"])) for header in row["headers"] or []),
        )
        for row in rows
    ]


def test_the_backlog_is_the_offsets_that_the_broker_has_and_the_query_has_not_read(
    spark: SparkSession, logs: LogDir[SparkTopic], broker: KafkaBroker
) -> None:
    """After each micro-batch of about 20 offsets: two partitions of 25 and 30 records, all of which were there from the start."""
    broker.create_topic("waiting", partitions=2)
    broker.produce("waiting", [Record(int(number >= 25), b"k", b"v") for number in range(55)])
    topic = logs.create_topic("fruit", partitions=2, config=_COMPACT)
    query = _run(spark, topic, _source(broker, "waiting", **{"max.offsets.per.trigger": 20}))

    batches = [progress for progress in query.recentProgress if progress.numInputRows]
    left = [55 - read for read in accumulate(progress.numInputRows for progress in batches)]  # Spark shares 20 by size, and rounds down
    assert [read_backlog(progress.sources) for progress in batches] == [Backlog(count=count, unit="offsets") for count in left]
    assert len(batches) >= 3
    assert left[-1] == 0


def test_every_committed_record_comes_once_with_its_kafka_partition_offset_timestamp_and_headers(
    spark: SparkSession, logs: LogDir[SparkTopic], broker: KafkaBroker
) -> None:
    """Plain, committed and aborted records over three partitions; stopped, more produced, resumed; the checkpoint deleted at the end."""
    broker.create_topic("prices", partitions=3)
    topic = logs.create_topic("fruit", partitions=3, config=_COMPACT)
    expected: dict[tuple[int, int], tuple[str, str, int, tuple[tuple[str, bytes], ...]]] = {}

    def produce(records: list[Record], *, transactional_id: str | None = None, abort: bool = False) -> None:
        offsets = broker.produce("prices", records, transactional_id=transactional_id, abort=abort)
        if abort:
            return
        for record, offset in zip(records, offsets, strict=True):
            key, value = text(record.key), text(record.value)
            expected[record.partition, offset] = (
                key,
                value,
                record.timestamp_ms or 0,
                tuple((name, value or b"") for name, value in record.headers),
            )

    def batch(base: int, count: int) -> list[Record]:
        return [
            Record(
                number % 3,
                f"k{number % 7}".encode(),
                None if number % 5 == 0 else f"v{base + number}".encode(),
                [("n", str(number).encode())],
                1_700_000_000_000 + base + number,
            )
            for number in range(count)
        ]

    produce(batch(0, 30))
    produce(batch(100, 12), transactional_id="loader")
    produce(batch(200, 12), transactional_id="loader", abort=True)
    produce(batch(300, 9))
    source = _source(broker, "prices", **{"max.offsets.per.trigger": 20})
    _run(spark, topic, source)
    assert _found(topic) == [(*place, *rest) for place, rest in sorted(expected.items())]
    produce(batch(400, 12), transactional_id="loader")
    produce(batch(500, 6), transactional_id="other", abort=True)
    produce(batch(600, 10))
    _run(spark, topic, source)
    found = _found(topic)
    assert found == [(*place, *rest) for place, rest in sorted(expected.items())]
    gaps = [after[1] - before[1] for before, after in pairwise(found) if before[0] == after[0]]
    assert max(gaps) > 1, "markers and aborted records leave gaps"
    assert topic.describe().mirror is not None


def test_a_recreated_kafka_topic_and_one_with_other_partitions_stop_the_mirror(
    spark: SparkSession, logs: LogDir[SparkTopic], broker: KafkaBroker
) -> None:
    """Its offsets begin anew; the log's are for ever."""
    broker.create_topic("short", partitions=2)
    topic = logs.create_topic("fruit", partitions=2, config=_COMPACT)
    source = _source(broker, "short")
    broker.produce("short", [Record(0, b"a", b"1"), Record(1, b"b", b"1")])
    _run(spark, topic, source)
    broker.delete_topic("short")
    broker.create_topic("short", partitions=2)
    broker.produce("short", [Record(0, b"a", b"new") for _ in range(5)])
    with pytest.raises((QueryRefused, StreamingQueryException), match=r"was deleted and created again"):
        _run(spark, topic, source)
    assert log(topic, 0) == ["0 a=1"]
    broker.create_topic("wide", partitions=4)
    with pytest.raises(QueryRefused, match="has 4 partitions, topic narrow has 2"):
        _run(spark, logs.create_topic("narrow", partitions=2, config=_COMPACT), _source(broker, "wide"))


def test_a_kafka_topic_that_is_not_there_is_named(spark: SparkSession, logs: LogDir[SparkTopic], broker: KafkaBroker) -> None:
    """Before the query starts."""
    topic = logs.create_topic("fruit", config=_COMPACT)
    with pytest.raises(UserError, match=r"Kafka topic nowhere at 127\.0\.0\.1"):
        open_source(spark, _source(broker, "nowhere"), topic.log, now_ms=0)


def test_without_mirror_kafka_records_are_hashed_anew_in_kafka_s_order(
    spark: SparkSession, logs: LogDir[SparkTopic], broker: KafkaBroker
) -> None:
    """The topic has another number of partitions than Kafka's and its own offsets."""
    broker.create_topic("again", partitions=2)
    broker.produce("again", [Record(number % 2, f"k{number % 2}".encode(), str(number).encode()) for number in range(20)])
    topic = logs.create_topic("fruit", config=_COMPACT)
    _run(spark, topic, _source(broker, "again", mirror=False))
    assert log(topic) == [f"{at} k0={2 * at}" for at in range(10)] + [f"{10 + at} k1={2 * at + 1}" for at in range(10)]


def _words(count: int, partition: int = 0, begin: int = 0) -> list[Record]:
    return [Record(partition, f"k{number}".encode(), b"v") for number in range(begin, begin + count)]


def test_a_mirror_follows_the_log_start_of_its_source(spark: SparkSession, logs: LogDir[SparkTopic], broker: KafkaBroker) -> None:
    """DeleteRecords there, of one partition, below and up to its log end; at a start, and before a micro-batch."""
    broker.create_topic("starts", partitions=2, config={"cleanup.policy": "delete"})
    topic = logs.create_topic("fruit", partitions=2, config=_COMPACT)
    source = _source(broker, "starts")
    broker.produce("starts", [*_words(10), *_words(3, 1)])
    _run(spark, topic, source)
    broker.delete_records("starts", {0: 4})
    _run(spark, topic, source)
    assert topic.log.decisions().log_start_offsets() == [4, 0], "nothing is new there: at the start of the query"
    assert [line.split()[0] for line in log(topic, 0)] == [str(offset) for offset in range(4, 10)]
    broker.delete_records("starts", {0: 10, 1: 1})
    broker.produce("starts", _words(2, begin=20))
    _run(spark, topic, source)
    assert topic.log.decisions().log_start_offsets() == [10, 1]
    assert sorted(latest(topic)) == ["k1", "k2", "k20", "k21"]
    with pytest.raises(UserError, match="mirrors Kafka topic starts: delete records there, and they are deleted here too"):
        topic.delete_records({0: 11})


@pytest.mark.parametrize("mirror", [True, False])
def test_what_kafka_deleted_before_it_was_read_is_named_and_gone_on_behind_as_configured(
    spark: SparkSession, logs: LogDir[SparkTopic], broker: KafkaBroker, *, mirror: bool
) -> None:
    """One clear error with partition and range, of a mirror and of a query with offsets of its own; no exception of Java."""
    name = f"lost-{mirror}".lower()
    broker.create_topic(name, partitions=2, config={"cleanup.policy": "delete"})
    topic = logs.create_topic("fruit", partitions=2, config=_COMPACT)
    broker.produce(name, [*_words(5), *_words(5, 1)])
    source = _source(broker, name, mirror=mirror)
    _run(spark, topic, source)
    broker.produce(name, [*_words(5, begin=5), *_words(1, 1, begin=5)])
    broker.delete_records(name, {0: 8})
    with pytest.raises(StreamingQueryException, match=r"before they were read \(partition 0: offsets 5 to 7\).*on.data.loss"):
        _run(spark, topic, source)
    _run(spark, topic, _source(broker, name, mirror=mirror, **{"on.data.loss": "go-on"}))
    assert {"k8", "k9"} <= set(latest(topic))
    assert "k6" not in latest(topic)
    broker.produce(name, _words(1, begin=10))
    _run(spark, topic, source)
    assert topic.log.decisions().log_start_offsets() == ([8, 0] if mirror else [0, 0])
    assert "k10" in latest(topic)


def test_offsets_of_aborted_records_that_were_passed_are_not_lost(
    spark: SparkSession, logs: LogDir[SparkTopic], broker: KafkaBroker
) -> None:
    """The log ends before them, the checkpoint behind them."""
    broker.create_topic("passed", config={"cleanup.policy": "delete"})
    topic = logs.create_topic("fruit", config=_COMPACT)
    source = _source(broker, "passed")
    broker.produce("passed", _words(3))
    broker.produce("passed", _words(4, begin=3), transactional_id="loader", abort=True)
    _run(spark, topic, source)
    broker.delete_records("passed", {0: 8})
    broker.produce("passed", _words(1, begin=9))
    _run(spark, topic, source)
    assert log(topic, 0) == ["8 k9=v"]


def test_a_cluster_that_does_not_answer_before_a_micro_batch_stops_nothing(
    spark: SparkSession, logs: LogDir[SparkTopic], broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What it would say is not known now; the records are read by another way."""
    broker.create_topic("silent")
    broker.produce("silent", _words(3))
    topic = logs.create_topic("fruit", config=_COMPACT)
    source = _source(broker, "silent")
    _run(spark, topic, source)
    broker.produce("silent", _words(3, begin=3))
    opened = open_source(spark, source, topic.log, now_ms=clock.now_ms())

    def unanswered(*_: object) -> None:
        message = "Kafka topic silent: org.apache.kafka.common.errors.TimeoutException"
        raise KafkaUnreachable(message)

    monkeypatch.setattr(KafkaTopics, "describe", unanswered)
    query = topic.append_stream(opened.rows, name=source.name, trigger={"availableNow": True}, mirror=opened.mirror)
    assert query.awaitTermination(90)
    assert len(latest(topic)) == 6
    assert any("the source does not answer" in one.getMessage() for one in caplog.records)


def test_a_cluster_that_is_not_there_is_told_from_a_topic_that_is_not_there(spark: SparkSession, broker: KafkaBroker) -> None:
    """The first may answer later; a topic that is gone is the query's error."""
    fast = {"default.api.timeout.ms": "500", "request.timeout.ms": "400"}
    for servers in ("127.0.0.1:1", "127.0.0.1:1,127.0.0.1:2"):
        with pytest.raises(KafkaUnreachable, match="TimeoutException"):
            KafkaTopics(spark, servers, fast).describe("fruit")
    with pytest.raises(KafkaUnreachable, match="No resolvable bootstrap urls"):
        KafkaTopics(spark, "no-such-host.invalid:9092", fast).names()
    with pytest.raises(UserError) as gone:
        KafkaTopics(spark, broker.bootstrap_servers, {}).describe("nowhere")
    assert not isinstance(gone.value, KafkaUnreachable)


def test_a_question_that_is_not_answered_ends_when_the_process_is_to_end(spark: SparkSession) -> None:
    """However patient the client is; the next question is asked anew."""
    topics = KafkaTopics(spark, "127.0.0.1:1", {})
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(topics.describe, "fruit")
        time.sleep(0.5)
        while not asked.done():
            hang_up()
            time.sleep(0.05)
    with pytest.raises(KafkaUnreachable):
        asked.result()
    with pytest.raises(KafkaUnreachable):
        KafkaTopics(spark, "127.0.0.1:1", {"default.api.timeout.ms": "500", "request.timeout.ms": "400"}).names()


def test_a_mirror_of_uncommitted_records_says_what_stays_in_it(
    spark: SparkSession, logs: LogDir[SparkTopic], broker: KafkaBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """What was aborted after it was read."""
    broker.create_topic("uncommitted")
    topic = logs.create_topic("fruit", config=_COMPACT)
    broker.produce("uncommitted", _words(2), transactional_id="loader", abort=True)
    _run(spark, topic, _source(broker, "uncommitted", **{"isolation.level": "read_uncommitted"}))
    assert len(latest(topic)) == 2
    assert any("aborted after they were read stay in the mirror" in one.getMessage() for one in caplog.records)


def test_partitions_that_are_added_to_a_topic_are_read_by_a_query_that_is_no_mirror(
    spark: SparkSession, logs: LogDir[SparkTopic], broker: KafkaBroker
) -> None:
    """Also while it runs."""
    broker.create_topic("grows", partitions=1)
    broker.produce("grows", _words(2))
    topic = logs.create_topic("fruit", config=_COMPACT)
    opened = open_source(spark, _source(broker, "grows", mirror=False, options={"kafka.metadata.max.age.ms": "500"}), topic.log, now_ms=0)
    query = topic.append_stream(opened.rows, name="grows", upstream=opened.upstream, events=opened.events)
    try:
        until(lambda: len(latest(topic)) == 2)
        broker.add_partitions("grows", 3)
        broker.produce("grows", [*_words(2, 1, begin=2), *_words(2, 2, begin=4)])
        until(lambda: len(latest(topic)) == 6 or not query.isActive)
        assert query.isActive, query.exception()
    finally:
        query.stop()


@pytest.mark.parametrize("kind", ["plain", "schema"])
@pytest.mark.parametrize("count", [2, 9])
def test_a_kafka_topic_that_was_made_anew_is_named_and_read_from_its_start_as_configured(
    spark: SparkSession, logs: LogDir[SparkTopic], broker: KafkaBroker, kind: str, count: int
) -> None:
    """With fewer records than were read, and with more: Spark would say that data may be lost, or skip what lies below its position."""
    name = f"anew-{kind}-{count}"
    settings: dict[str, Any] = {"mirror": False} if kind == "plain" else {"schema": "v int", "starting.offsets": "earliest"}

    def produce(values: range) -> None:
        broker.produce(name, [Record(0, f"k{value}".encode(), f'{{"v":{value}}}'.encode()) for value in values])

    broker.create_topic(name)
    topic = logs.create_topic("fruit", config=_COMPACT)
    produce(range(5))
    _run(spark, topic, _source(broker, name, **settings))
    broker.delete_topic(name)
    broker.create_topic(name)
    produce(range(100, 100 + count))
    for _ in range(2):
        with pytest.raises(QueryRefused) as refused:
            _run(spark, topic, _source(broker, name, **settings))
        message = str(refused.value)
        assert f"query mirror of topic fruit: Kafka topic {name} was deleted and created again" in message
        assert f"partition 0: the query reads offset 5 next, and the log end offset is {count}" in message
        assert "on.data.loss = go-on" in message
    going_on = _source(broker, name, **settings, **{"on.data.loss": "go-on"})
    _run(spark, topic, going_on)
    assert set(latest(topic)) == {f"k{value}" for value in (*range(5), *range(100, 100 + count))}
    produce(range(200, 203))
    _run(spark, topic, going_on)
    _run(spark, topic, _source(broker, name, **settings))
    assert len(log(topic)) == 5 + count + 3, "each once"


def test_a_second_query_of_the_same_kafka_topic_is_refused_by_name(
    spark: SparkSession, logs: LogDir[SparkTopic], broker: KafkaBroker
) -> None:
    """Into another topic it is read as well."""
    broker.create_topic("twice")
    broker.produce("twice", _words(3))
    topic = logs.create_topic("fruit", config=_COMPACT)
    _run(spark, topic, _source(broker, "twice", mirror=False))
    with pytest.raises(QueryRefused, match=r"query again of topic fruit: query mirror reads Kafka topic twice \(id .*name = mirror"):
        _run(spark, topic, _source(broker, "twice", name="again", mirror=False))
    assert len(log(topic)) == 3
    _run(spark, logs.create_topic("other", config=_COMPACT), _source(broker, "twice", name="again", topic="other", mirror=False))
