"""What a Kafka cluster says of a topic, asked through the client that the Kafka source brings along."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JJavaError

from lastword.compaction.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

_TIMEOUT_MS: Final = 15_000


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

    def describe(self, name: str) -> KafkaTopic:
        """Return what the cluster says of the topic `name` now; raise `UserError` when it cannot be reached or has no such topic."""

        def asked(admin: Any, jvm: Any) -> Any:
            names = jvm.java.util.ArrayList()
            names.add(name)
            return admin.describeTopics(names).allTopicNames().get().get(name)

        found = self._ask(f"topic {name} ", asked)
        return KafkaTopic(topic_id=found.topicId().toString(), partitions=found.partitions().size())

    def names(self) -> list[str]:
        """Return the names of the topics that the cluster has now, without its internal ones; raise `UserError` when it is out of reach."""
        return sorted(self._ask("", lambda admin, _: list(admin.listTopics().names().get())))

    def _ask(self, what: str, question: Callable[[Any, Any], Any]) -> Any:
        jvm: Any = self._spark.sparkContext._jvm  # noqa: SLF001  no public way to the Kafka client
        try:
            if self._admin is None:
                properties = jvm.java.util.Properties()
                for key, value in self._options.items():
                    properties.setProperty(key, value)
                self._admin = jvm.org.apache.kafka.clients.admin.Admin.create(properties)
            return question(self._admin, jvm)
        except Py4JJavaError as error:
            reason = str(error.java_exception).splitlines()[0]
            message = f"Kafka {what}at {self._options['bootstrap.servers']}: {reason}"
            raise UserError(message) from error
