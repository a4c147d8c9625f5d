"""A log.dir: a directory of topics, on a local disk or an object store (Kafka's log.dir)."""

from __future__ import annotations

import uuid
from functools import cached_property
from typing import TYPE_CHECKING

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from checkpoints.producers import ProducerSnapshots
from compaction.config import TopicConfig, normalize_overrides, parse_service_config, parse_topic_config
from compaction.errors import InvalidTopic, TopicExists, UnknownTopic
from lastword import clock
from lastword.session import spark_session
from lastword.topic import Topic
from storage import lock, schema
from storage.decisions import Decision, Kind
from storage.layout import LogDirFiles, filesystem_of
from storage.ledger import Ledger
from storage.snapshot import LogSnapshot
from storage.topic_log import TopicLog
from streaming.appender import stop_append_queries
from streaming.cleaner import Cleaner

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltalake import Schema
    from pyspark.sql import SparkSession

    from compaction.config import ServiceConfig

_MOST_PARTITIONS = 10_000
_CREATE_ATTEMPTS = 5


class LogDir:
    """A directory of topics.

    `spark` may be None: everything that needs no record (create, list, describe, alter, delete) then runs without a JVM, and the first
    use that does need one starts the default session. `settings` are service-wide settings under Kafka's names (`log.retention.hours`,
    `log.cleaner.threads`, topic keys …) that hold for every topic without its own; when none are given (None), those that the last
    `lastword run` over this log.dir began with hold, or the defaults when there was none. `storage_options` are delta-rs' for object
    stores.
    """

    def __init__(
        self,
        spark: SparkSession | None,
        location: str,
        *,
        settings: Mapping[str, object] | None = None,
        storage_options: Mapping[str, str] | None = None,
        cleaner_parallelism: int | None = None,
        session_settings: Mapping[str, str] | None = None,
    ) -> None:
        """Open a log.dir; nothing is read or made yet. Raises `InvalidConfiguration` for wrong settings.

        `cleaner_parallelism` limits the Spark tasks of all cleanings together; `session_settings` are those of a session that has to be
        started.
        """
        self._spark = spark
        self._files = LogDirFiles(str(location), storage_options)
        self._settings = settings
        if settings is not None:
            _ = self._configuration
        self._storage_options = dict(storage_options or {})
        self._session_settings = dict(session_settings or {})
        self._cleaner_parallelism = cleaner_parallelism
        self._cleaner: Cleaner | None = None

    def __repr__(self) -> str:
        """Return the place, for people."""
        return f"LogDir({self.location!r})"

    @cached_property
    def _configuration(self) -> tuple[ServiceConfig, dict[str, str]]:
        """The service's own settings and the topic defaults: those that were given, else those that the last service began with."""
        config, defaults = parse_service_config(self._files.read_settings() if self._settings is None else self._settings)
        parse_topic_config({}, subject="log.dir", defaults=defaults)
        return config, defaults

    @property
    def service_config(self) -> ServiceConfig:
        """The settings of the service itself."""
        return self._configuration[0]

    @property
    def _defaults(self) -> dict[str, str]:
        return self._configuration[1]

    def keep_settings(self) -> None:
        """Let whoever opens this log.dir without settings of his own work with those of this one: commands beside the service and after it.

        Needs the lock of the log.dir.
        """
        self.hold_lock()
        self._files.write_settings(self._settings or {})

    @property
    def location(self) -> str:
        """The path or URI."""
        return self._files.uri

    @property
    def is_local(self) -> bool:
        """Whether it lies on a local disk, where one process alone may commit."""
        return self._files.local is not None

    @property
    def spark(self) -> SparkSession:
        """The Spark session; started on first use when none was given."""
        if self._spark is None:
            self._spark = spark_session(settings=self._session_settings)
        return self._spark

    @property
    def storage_options(self) -> Mapping[str, str]:
        """What delta-rs needs to reach the object store."""
        return self._storage_options

    @property
    def cleaner(self) -> Cleaner:
        """The cleaner of this log.dir: one for all its topics, so that they share its states and its map budget."""
        if self._cleaner is None:
            self._cleaner = Cleaner(self.service_config, parallelism=self._cleaner_parallelism)
        return self._cleaner

    def idle_cleaner(self, log: TopicLog) -> Cleaner:
        """Return the cleaner once no other thread works on a topic: a swap beside a slow round of the service would throw its work away.

        Become the committing process first, with a session. Raises `CommitConflict` when the round takes too long.
        """
        self.hold_with_spark()
        self.cleaner.claims.wait_idle(log)
        return self.cleaner

    def hold_lock(self, spark: SparkSession | None = None) -> None:
        """Become the committing process of this log.dir, with its JVM if there is one.

        Raises `LogDirLocked` if another process is (local disks only).
        """
        lock.hold(self._files.local, spark or self._spark)

    def hold_with_spark(self) -> None:
        """Become the committing process, and start the session if it does not run yet: with the lock first, a session is not in vain."""
        self.hold_lock()
        self.hold_lock(self.spark)

    def check_config(self, overrides: Mapping[str, object], *, subject: str) -> TopicConfig:
        """Return the configuration that `overrides` give over the service's defaults; raise `InvalidConfiguration`."""
        return parse_topic_config(overrides, subject=subject, defaults=self._defaults)

    def create_topic(
        self, name: str, *, partitions: int = 1, config: Mapping[str, object] | None = None, now_ms: int | None = None
    ) -> Topic:
        """Create a topic and return it.

        `config` has topic settings under Kafka's names, human units allowed (`{"segment.bytes": "128MiB"}`). Raises `TopicExists`,
        `InvalidTopic` (name, partitions) or `InvalidConfiguration` with every violation; nothing is made then.
        """
        paths = self._files.topic(name)
        if type(partitions) is not int or not 1 <= partitions <= _MOST_PARTITIONS:
            message = f"partitions = {partitions}: allowed is 1 to {_MOST_PARTITIONS}"
            raise InvalidTopic(message)
        self.check_config(config or {}, subject=f"topic {name}")
        if self._files.has_ledger(name):
            message = f"topic {name} exists already in {self.location}"
            raise TopicExists(message)
        time_ms = clock.now_ms() if now_ms is None else now_ms
        if self._files.local is not None:
            self._files.local.mkdir(parents=True, exist_ok=True)
        self._create_table(paths.log, schema.log_schema(), schema.log_properties(), partition_by=schema.PLACE_COLUMNS)
        self._create_table(paths.dead_letters, schema.dead_letter_schema(), schema.dead_letter_properties())
        used = LogSnapshot.of(DeltaTable(paths.log, storage_options=self._storage_options)).partitions()
        if used and used[-1] >= partitions:
            message = f"partitions = {partitions}: {paths.log} holds records of partition {used[-1]}; allowed is {used[-1] + 1} or more"
            raise InvalidTopic(message)
        created = Decision(kind=Kind.CREATE, time_ms=time_ms, details={"partitions": partitions, "topic_id": uuid.uuid4().hex})
        configured = Decision(kind=Kind.CONFIG, time_ms=time_ms, details=normalize_overrides(config or {}))
        Ledger(paths.ledger, name, self._storage_options).create([created, configured])
        return self.topic(name)

    def topic(self, name: str) -> Topic:
        """Return the topic `name`; raise `UnknownTopic` naming those that exist."""
        if not self._files.has_ledger(name):
            known = ", ".join(self.topics()) or "none"
            message = f"topic {name} does not exist in {self.location}; existing: {known}"
            raise UnknownTopic(message)
        return Topic(self, self.log(name))

    def log(self, name: str) -> TopicLog:
        """Return the log of topic `name`, which exists; nothing is read yet."""
        paths = self._files.topic(name)
        log = TopicLog(
            name,
            paths,
            defaults=self._defaults,
            storage_options=self._storage_options,
            producer_cache=ProducerSnapshots(filesystem_of(paths.root, self._storage_options), lambda: log.decisions().topic_id),
        )
        return log

    def check_reachable(self) -> None:
        """Raise `LogDirUnreachable` when the log.dir that this process holds is not there any more."""
        self._files.check_reachable()

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return self._files.topics()

    def delete_topic(self, name: str, *, now_ms: int | None = None) -> None:
        """Delete a topic: it is gone at once and its name is free; its files go after file.delete.delay.ms.

        Its streaming queries are stopped first, between two micro-batches, and a cleaning in hand ends; later appends to it raise
        `UnknownTopic`. Needs the lock of the log.dir. Raises `CommitConflict` when the cleaning takes too long; nothing is deleted then.
        """
        topic = self.topic(name)
        self.hold_lock()
        time_ms = clock.now_ms() if now_ms is None else now_ms
        with self.cleaner.claims.kept_away(topic.log):  # first: a deletion that cannot be leaves the queries running
            stop_append_queries(topic.log)
            with topic.log.turn():
                self.cleaner.forget(topic.log)
                self._files.retire(name, time_ms + topic.config.file_delete_delay_ms)
                if self._spark is not None:
                    self._forget_delta_log(topic)

    def purge_deleted(self, *, now_ms: int | None = None) -> list[str]:
        """Remove the files of deleted topics whose file.delete.delay.ms has passed; return the names of those topics."""
        return self._files.purge_retired(clock.now_ms() if now_ms is None else now_ms)

    def _create_table(self, location: str, columns: Schema, properties: dict[str, str], *, partition_by: Sequence[str] = ()) -> None:
        """Make a Delta table if it is not there. Of two who do so at once one fails: the table is there when it asks again."""
        for attempt in Retrying(retry=retry_if_exception_type(CommitFailedError), stop=stop_after_attempt(_CREATE_ATTEMPTS), reraise=True):
            with attempt:
                DeltaTable.create(
                    location,
                    columns,
                    mode="ignore",
                    partition_by=list(partition_by),
                    configuration=properties,
                    storage_options=self._storage_options,
                )

    def _forget_delta_log(self, topic: Topic) -> None:
        """Drop Delta's cached snapshots of the paths, which another topic of the same name may take."""
        jvm = self.spark.sparkContext._jvm  # noqa: SLF001  no public way to reach a Scala object
        session = self.spark._jsparkSession  # noqa: SLF001
        for path in (topic.log.paths.log, topic.log.paths.dead_letters):
            jvm.org.apache.spark.sql.delta.DeltaLog.invalidateCache(session, jvm.org.apache.hadoop.fs.Path(path))  # type: ignore[union-attr]
