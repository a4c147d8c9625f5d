"""Kafka for real: a KRaft broker, transactions, tombstones, and a topic that keeps Kafka's partitions and offsets."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from lastword import clock
from lastword.compaction.errors import QueryRefused, UserError
from lastword.streaming.append.source_settings import KafkaSource
from lastword.streaming.append.sources import open_source
from tests.kafka_broker import KafkaBroker, Record
from tests.pictures import log, text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

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


def _run(spark: SparkSession, topic: SparkTopic, source: KafkaSource) -> None:
    opened = open_source(spark, source, topic.log, now_ms=clock.now_ms())
    query = topic.append_stream(opened.rows, name=source.name, trigger={"availableNow": True}, mirror=opened.mirror)
    assert query.awaitTermination(90)


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
    """Another number of partitions; offsets of our own."""
    broker.create_topic("again", partitions=2)
    broker.produce("again", [Record(number % 2, f"k{number % 2}".encode(), str(number).encode()) for number in range(20)])
    topic = logs.create_topic("fruit", config=_COMPACT)
    _run(spark, topic, _source(broker, "again", mirror=False))
    assert log(topic) == [f"{at} k0={2 * at}" for at in range(10)] + [f"{10 + at} k1={2 * at + 1}" for at in range(10)]
