"""What a Kafka cluster says of a topic, asked through the client that the Kafka source brings along."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JJavaError

from lastword.compaction.errors import UserError, read_root_cause

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

_TIMEOUT_MS: Final = 15_000
#: What the client says of a cluster that does not answer for now.
_NO_ANSWER: Final = ("TimeoutException", "DisconnectException", "NetworkException", "NotAvailableException", "No resolvable bootstrap urls")


_ASKING: Final[set[KafkaTopics]] = set()


def hang_up() -> None:
    """End every question that a cluster has not answered yet: the process is to end."""
    for topics in list(_ASKING):
        topics.close()


class KafkaUnreachable(UserError):
    """A Kafka cluster that does not answer now. Reaction: ask again later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaTopic:
    """A Kafka topic's id (a new one when it was deleted and created again) and its number of partitions."""

    topic_id: str
    partitions: int


class KafkaTopics:
    """Asks a Kafka cluster about its topics; the connection is made once and kept."""

    def __init__(self, spark: SparkSession, bootstrap_servers: str, client_options: Mapping[str, str]) -> None:
        """Connect lazily. `client_options` are Kafka client settings (security and the like)."""
        self._spark = spark
        self._options = {
            "bootstrap.servers": bootstrap_servers,
            "default.api.timeout.ms": str(_TIMEOUT_MS),
            "request.timeout.ms": str(_TIMEOUT_MS),
            **client_options,
        }
        self._admin: Any = None

    def close(self) -> None:
        """End the connection: who waits for an answer on it gets `KafkaUnreachable`; the next question makes another one."""
        admin, self._admin = self._admin, None
        if admin is not None:
            jvm: Any = self._spark.sparkContext._jvm  # noqa: SLF001  as `_ask`
            admin.close(jvm.java.time.Duration.ZERO)

    def describe(self, name: str) -> KafkaTopic:
        """Return what the cluster says of a topic now; raise `KafkaUnreachable`, or `UserError` when it has no such topic."""

        def ask(admin: Any, jvm: Any) -> Any:
            names = jvm.java.util.Collections.singletonList(name)
            return admin.describeTopics(names).allTopicNames().get().get(name)

        description = self._ask(f"topic {name} ", ask)
        return KafkaTopic(topic_id=description.topicId().toString(), partitions=description.partitions().size())

    def log_starts(self, name: str, partitions: int) -> dict[int, int]:
        """Return the log start offset of each partition of a topic; raise `KafkaUnreachable`, or `UserError` for what else is wrong."""
        return self._offsets(name, partitions, "earliest")

    def log_ends(self, name: str, partitions: int) -> dict[int, int]:
        """Return the log end offset of each partition of a topic; errors as `log_starts`."""
        return self._offsets(name, partitions, "latest")

    def _offsets(self, name: str, partitions: int, spec: str) -> dict[int, int]:
        """Return an offset of each partition of a topic; `spec` is the method of Kafka's `OffsetSpec` that makes the question."""

        def ask(admin: Any, jvm: Any) -> dict[int, int]:
            places = [jvm.org.apache.kafka.common.TopicPartition(name, partition) for partition in range(partitions)]
            wanted = jvm.java.util.HashMap()
            for place in places:
                wanted.put(place, getattr(jvm.org.apache.kafka.clients.admin.OffsetSpec, spec)())
            answer = admin.listOffsets(wanted).all().get()
            return {partition: answer.get(place).offset() for partition, place in enumerate(places)}

        offsets: dict[int, int] = self._ask(f"topic {name} ", ask)
        return offsets

    def names(self) -> list[str]:
        """Return the names of the topics that the cluster has now, without its internal ones; raise `KafkaUnreachable`."""
        return sorted(self._ask("", lambda admin, _: list(admin.listTopics().names().get())))

    def _ask(self, what: str, question: Callable[[Any, Any], Any]) -> Any:
        jvm: Any = self._spark.sparkContext._jvm  # noqa: SLF001  no public way to the Kafka client
        try:
            if self._admin is None:
                properties = jvm.java.util.Properties()
                for key, value in self._options.items():
                    properties.setProperty(key, value)
                self._admin = jvm.org.apache.kafka.clients.admin.Admin.create(properties)
            _ASKING.add(self)
            return question(self._admin, jvm)
        except Py4JJavaError as error:
            reason = read_root_cause(error.java_exception)
            message = f"Kafka {what}at {self._options['bootstrap.servers']}: {reason}"
            kind = KafkaUnreachable if any(sign in reason for sign in _NO_ANSWER) else UserError
            raise kind(message) from error
        finally:
            _ASKING.discard(self)
