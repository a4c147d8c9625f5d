"""What stands beside the services of docker-compose.yml: `python -m tests.orders_app SERVERS` makes the topic `orders` and fills it."""

from __future__ import annotations

import sys

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

RECORDS = 100


def main(servers: str) -> None:
    """Make the topic as the service `orders` does, and produce records of 20 keys."""
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic("orders", 4)])["orders"].result(60)
    producer = Producer({"bootstrap.servers": servers, "acks": "all"})
    for number in range(RECORDS):
        producer.produce("orders", key=f"order-{number % 20}", value=f'{{"n":{number}}}')
    assert producer.flush(60) == 0


if __name__ == "__main__":
    main(sys.argv[1])
