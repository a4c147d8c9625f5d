"""An open log.dir without its topics: location, session, storage options, settings, lock and cleaner.

`Topic` and the functions in `lastword.topics` need this much of a log.dir and no more; `LogDir` adds the topics.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from lastword.compaction.config.topic_config import TopicConfig, parse_service_config, parse_topic_config
from lastword.spark.session import spark_session
from lastword.storage.delta import lock
from lastword.storage.files.paths import LogDirFiles
from lastword.streaming.cleaning.cleaner import Cleaner

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from lastword.compaction.config.topic_config import ServiceConfig
    from lastword.storage.log.topic_log import TopicLog


class Handle:
    """An open log.dir: what all its topics share."""

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
        self.cleaner.locks.wait_idle(log)
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
