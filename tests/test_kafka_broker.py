"""The tests' own broker: it starts, keeps what it is given, and shows readers what Kafka shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from tests.kafka_broker import KafkaBroker, Record

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.kafka, pytest.mark.jvm]


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    """One broker for this module."""
    with KafkaBroker() as running:
        yield running


def read(broker: KafkaBroker, topic: str, isolation_level: str) -> list[tuple[int, bytes | None, bytes | None]]:
    """Return (offset, key, value) of everything in partition 0, up to the end that the isolation level allows to see."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "reader",
            "isolation.level": isolation_level,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    seen: list[tuple[int, bytes | None, bytes | None]] = []
    try:
        while (message := consumer.poll(10)) is not None:
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF  # noqa: SLF001  the client's public name for it
                return seen
            seen.append((message.offset() or 0, message.key(), message.value()))
    finally:
        consumer.close()
    pytest.fail("the broker did not answer within 10 s")


def test_a_committed_transaction_is_read_and_an_aborted_one_is_not(broker: KafkaBroker) -> None:
    """Offsets: 0 plain, 1-2 committed, 3 COMMIT, 4 aborted, 5 ABORT, 6 a tombstone."""
    broker.create_topic("fruit-prices", partitions=2, config={"cleanup.policy": "compact"})

    plain = broker.produce("fruit-prices", [Record(0, b"apple", b"1", [("source", b"till-4")], 1_000)])
    committed = broker.produce("fruit-prices", [(0, b"apple", b"2", [], 2_000), (0, b"pear", b"5", [], 2_000)], transactional_id="till-4")
    aborted = broker.produce("fruit-prices", [(0, b"pear", b"999", [], 3_000)], transactional_id="till-4", abort=True)
    tombstone = broker.produce("fruit-prices", [(0, b"apple", None, [], 4_000)])

    assert (plain, committed, aborted, tombstone) == ([0], [1, 2], [4], [6])
    assert read(broker, "fruit-prices", "read_committed") == [
        (0, b"apple", b"1"),
        (1, b"apple", b"2"),
        (2, b"pear", b"5"),
        (6, b"apple", None),
    ]
    assert [offset for offset, _, _ in read(broker, "fruit-prices", "read_uncommitted")] == [0, 1, 2, 4, 6]


def test_headers_and_timestamps_arrive_as_they_were_sent(broker: KafkaBroker) -> None:
    """A header may have no value; the timestamp is the producer's (CreateTime)."""
    broker.create_topic("headers")
    broker.produce("headers", [Record(0, b"k", b"", [("a", b"1"), ("a", None)], 1_234)])

    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "reader"})
    consumer.assign([TopicPartition("headers", 0, OFFSET_BEGINNING)])
    message = consumer.poll(10)
    consumer.close()

    assert message is not None
    assert message.value() == b""
    assert message.headers() == [("a", b"1"), ("a", None)]
    assert message.timestamp()[1] == 1_234


def test_a_topic_that_is_created_again_has_another_id(broker: KafkaBroker) -> None:
    """Kafka tells a topic from its successor of the same name by the topic id."""
    broker.create_topic("twice")
    first = broker.topic_id("twice")
    broker.delete_topic("twice")
    broker.create_topic("twice")

    assert broker.topic_id("twice") != first
    assert broker.produce("twice", [(0, b"k", b"v", [], None)]) == [0]


def test_a_broker_that_cannot_start_says_why() -> None:
    """The error carries the end of the broker's log."""
    with pytest.raises(RuntimeError, match=r"num\.io\.threads"), KafkaBroker({"num.io.threads": "none"}):
        pytest.fail("it must not start")
