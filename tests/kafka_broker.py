"""A real Kafka broker for tests: KRaft, one node, one JVM, from the `broker` jars of `lastword/spark/jars.lock`; no Docker.

```python
with KafkaBroker() as broker:
    broker.create_topic("fruit-prices", partitions=2, config={"cleanup.policy": "compact"})
    broker.produce("fruit-prices", [Record(0, b"apple", b"3", [("source", b"till-4")], 1_000)], transactional_id="till-4")
```

It listens on two free loopback ports, keeps everything in a temporary folder, and is gone with the `with` block. Producing is
synchronous: what `produce` returns from is in the log. When the block ends by an exception, the end of the broker's log is printed.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewPartitions, NewTopic

from lastword.spark.jars import resolve
from tests.jvms import BROKER_ARCHIVE, jvm_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType

_START_SECONDS = 90
_ANSWER_SECONDS = 20
_LOG_TAIL_LINES = 40
_JVM = ("-Xmx512m", "-Djava.awt.headless=true", *jvm_options(BROKER_ARCHIVE))

#: One node is every role, and every internal topic has one partition and one replica. Small cleaner settings: a test cannot wait 15 s.
#: Time neither deletes nor rolls unless a topic says so: the timestamps of tests are of 1970, markers are of today, so by Kafka's defaults
#: the first marker would roll the segment, and retention would remove it a second later.
_PROPERTIES = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "auto.create.topics.enable": "false",
    "default.replication.factor": "1",
    "num.network.threads": "1",
    "num.io.threads": "2",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.dedupe.buffer.size": "2097152",
    "log.cleaner.io.buffer.size": "65536",
    "log.initial.task.delay.ms": "100",
    "log.retention.check.interval.ms": "1000",
    "log.segment.delete.delay.ms": "100",
    "log.retention.ms": "-1",
    "log.roll.ms": str(2**63 - 1),
}
_LOG4J = """\
Configuration:
  status: warn
  Appenders: {Console: {name: out, target: SYSTEM_OUT, PatternLayout: {pattern: "%d{HH:mm:ss,SSS} %p %c{1} %m%n"}}}
  Loggers:
    Root: {level: WARN, AppenderRef: {ref: out}}
    Logger: [{name: org.apache.kafka.storage.internals.log, level: INFO}]
"""
#: What the cleaner writes after each partition (LogCleaner.recordStats): which, from where to where, in how many seconds.
_CLEANED = re.compile(
    r"cleaned log (?P<topic>\S+)-(?P<partition>\d+) \(dirty section = \[(?P<first>\d+), (?P<end>\d+)\)?\]?"
    r".*?log processed in (?P<seconds>[\d,.]+) seconds",
    re.DOTALL,
)


class Record(NamedTuple):
    """What a producer sends. `value` None is a tombstone; `timestamp_ms` None is the time of sending."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int | None = None


class KafkaBroker:
    """A broker that runs inside a `with` block; `properties` are added to its server.properties and win."""

    def __init__(self, properties: Mapping[str, str] | None = None, *, jvm: Sequence[str] = _JVM) -> None:
        """Remember the properties and the options of the JVM; nothing runs yet."""
        self.bootstrap_servers = ""
        self._jvm = tuple(jvm)
        self._properties = dict(properties or {})
        self._folder = Path()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> KafkaBroker:  # noqa: PYI034  typing.Self is of Python 3.11
        """Format the storage, start the broker and return when it answers. Raises `RuntimeError` with its log when it does not."""
        self._folder = Path(tempfile.mkdtemp(prefix="kafka-"))
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Kill the broker and remove its folder; after an exception, print the end of its log."""
        if error is not None:
            sys.stderr.write(f"--- the broker's log ends with ---\n{self._log_tail()}\n")
        self._stop()

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Create a topic and return when every partition has a leader."""
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
        self._admin.create_topics([topic])[name].result(_ANSWER_SECONDS)
        self._wait(f"topic {name} to have leaders", lambda: self._leaders(name) == partitions)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and return when the broker no longer knows it."""
        self._admin.delete_topics([name])[name].result(_ANSWER_SECONDS)
        self._wait(f"topic {name} to be gone", lambda: name not in self._admin.list_topics(timeout=_ANSWER_SECONDS).topics)

    def delete_records(self, name: str, before: Mapping[int, int]) -> None:
        """Delete the records of a topic below an offset, by partition."""
        wanted = [TopicPartition(name, partition, offset) for partition, offset in before.items()]
        for done in self._admin.delete_records(wanted).values():
            done.result(_ANSWER_SECONDS)

    def add_partitions(self, name: str, total: int) -> None:
        """Give a topic more partitions, and return when every one has a leader."""
        self._admin.create_partitions([NewPartitions(name, total)])[name].result(_ANSWER_SECONDS)
        self._wait(f"topic {name} to have leaders", lambda: self._leaders(name) == total)

    def terminate(self) -> None:
        """Ask the broker to end, and return when its JVM has; what it holds stays."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(_START_SECONDS)
            self._process = None

    def kill(self) -> None:
        """Kill the broker; what it holds stays, for `start_again`."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def start_again(self) -> None:
        """Start the broker over what it holds, at the same address, and return when it answers."""
        with (self._folder / "broker.log").open("ab") as log:
            self._process = self._java("kafka.Kafka", "server.properties", output=log)
        port = int(self.bootstrap_servers.rpartition(":")[2])
        self._wait("the broker to listen", lambda: _listens(port), _START_SECONDS)
        self._wait("the broker to answer", self._answers, _START_SECONDS)

    def freeze(self, *, frozen: bool) -> None:
        """Stop the broker in the middle of what it does, so that it answers nobody, or let it go on."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP if frozen else signal.SIGCONT)

    def alter_topic(self, name: str, key: str, value: str) -> None:
        """Change one setting of a topic."""
        entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
        self._admin.incremental_alter_configs([resource])[resource].result(_ANSWER_SECONDS)

    def cleanings(self) -> list[tuple[str, int, int, float]]:
        """Return the cleanings that the broker has logged: topic, first dirty offset, end, seconds."""
        text = (self._folder / "broker.log").read_text(encoding="utf-8", errors="replace")
        found = _CLEANED.finditer(text)
        return [(one["topic"], int(one["first"]), int(one["end"]), float(one["seconds"].replace(",", ""))) for one in found]

    def topic_id(self, name: str) -> str:
        """Return the topic's id in Kafka's text form (22 characters of base64): another one after delete and create."""
        described = self._admin.describe_topics(TopicCollection([name]))[name].result(_ANSWER_SECONDS)
        return str(described.topic_id)

    def produce(
        self,
        topic: str,
        records: Iterable[Record | tuple[object, ...]],
        *,
        transactional_id: str | None = None,
        abort: bool = False,
        compression: str = "none",
    ) -> list[int]:
        """Send records in order and return their offsets, in order; tuples are read as `Record`s. `compression` is the producer's.

        With a `transactional_id` they are one transaction, ended by COMMIT, or by ABORT when `abort` says so.
        """
        if abort and transactional_id is None:
            message = "abort=True needs a transactional_id"
            raise ValueError(message)
        config: dict[str, str | int | bool] = {"bootstrap.servers": self.bootstrap_servers, "linger.ms": 1, "log_level": 0}
        config["compression.type"] = compression
        if transactional_id is not None:
            config["transactional.id"] = transactional_id
        producer = Producer(config)
        if transactional_id is not None:
            producer.init_transactions(_ANSWER_SECONDS)
            producer.begin_transaction()
        offsets = self._send(producer, topic, [Record(*record) for record in records])
        if transactional_id is not None:
            (producer.abort_transaction if abort else producer.commit_transaction)(_ANSWER_SECONDS)
        return offsets

    def _send(self, producer: Producer, topic: str, records: list[Record]) -> list[int]:
        offsets: dict[int, int] = {}
        errors: list[KafkaError] = []
        for at, record in enumerate(records):

            def delivered(error: KafkaError | None, message: Message, at: int = at) -> None:
                if error is not None:
                    errors.append(error)
                else:
                    offsets[at] = message.offset() or 0

            producer.produce(
                topic,
                partition=record.partition,
                key=record.key,
                value=record.value,
                headers=list(record.headers),
                timestamp=record.timestamp_ms if record.timestamp_ms is not None else 0,
                on_delivery=delivered,
            )
            producer.poll(0)
        unsent = producer.flush(_ANSWER_SECONDS)
        if errors or unsent:
            message = f"{len(errors)} of {len(records)} records were refused and {unsent} not answered: {errors[:3]}"
            raise RuntimeError(message)
        return [offsets[at] for at in range(len(records))]

    def _start(self) -> None:
        ports = _free_ports(2)
        broker, controller = (f"127.0.0.1:{port}" for port in ports)
        properties = {
            **_PROPERTIES,
            "listeners": f"PLAINTEXT://{broker},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{broker}",
            "controller.quorum.voters": f"1@{controller}",
            "log.dirs": str(self._folder / "data"),
            **self._properties,
        }
        lines = "".join(f"{key}={value}\n" for key, value in properties.items())
        (self._folder / "server.properties").write_text(lines, encoding="utf-8")
        (self._folder / "log4j2.yaml").write_text(_LOG4J, encoding="utf-8")
        self._format()
        self.bootstrap_servers = broker
        self._admin = AdminClient({"bootstrap.servers": broker, "log_level": 0})
        self.start_again()

    def _format(self) -> None:
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        with (self._folder / "broker.log").open("ab") as log:
            tool = self._java("kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}", "--config=server.properties", output=log)
            code = tool.wait(_START_SECONDS)
        if code != 0:
            message = f"kafka.tools.StorageTool format ended with exit code {code}:\n{self._log_tail()}"
            raise RuntimeError(message)

    def _java(self, main: str, *arguments: str, output: IO[bytes]) -> subprocess.Popen[bytes]:
        home = os.environ.get("JAVA_HOME")
        java = str(Path(home) / "bin" / "java") if home else "java"
        class_path = os.pathsep.join(str(jar.resolve()) for jar in resolve(("broker",)))
        command = [java, *self._jvm, "-Dlog4j2.configurationFile=log4j2.yaml", "-cp", class_path, main, *arguments]
        return subprocess.Popen(command, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)  # noqa: S603  our own command line

    def _answers(self) -> bool:
        try:
            return len(self._admin.list_topics(timeout=1).brokers) == 1
        except KafkaException:
            return False

    def _leaders(self, topic: str) -> int:
        found = self._admin.list_topics(topic, timeout=_ANSWER_SECONDS).topics[topic]
        return 0 if found.error is not None else sum(partition.leader == 1 for partition in found.partitions.values())

    def _wait(self, what: str, holds: Callable[[], bool], seconds: float = _ANSWER_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            ended = self._process.poll() if self._process else None
            if ended is not None or time.monotonic() > deadline:
                why = f"it ended with exit code {ended}" if ended is not None else f"{seconds} s are over"
                message = f"waited in vain for {what}: {why}. The broker's log ends with:\n{self._log_tail()}"
                raise RuntimeError(message)
            time.sleep(0.05)

    def _log_tail(self) -> str:
        log = self._folder / "broker.log"
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
        return "\n".join(lines[-_LOG_TAIL_LINES:])

    def _stop(self) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


def _free_ports(count: int) -> list[int]:
    """Return free loopback ports, all different: they are held together before they are let go."""
    holders = [socket.socket() for _ in range(count)]
    try:
        for holder in holders:
            holder.bind(("127.0.0.1", 0))
        return [int(holder.getsockname()[1]) for holder in holders]
    finally:
        for holder in holders:
            holder.close()


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=0.5):
            return True
    except OSError:
        return False
