"""An open log.dir without its topics: location, session, clock, storage options, settings and cleaner.

`Topic` and the functions in `lastword.topics` need this much of a log.dir and no more; `LogDir` adds the topics.
"""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING

from lastword.compaction.config.topic_config import TopicConfig, parse_service_config, parse_topic_config
from lastword.storage.files.paths import LogDirFiles
from lastword.streaming.cleaning.cleaner import Cleaner

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from os import PathLike

    from pyspark.sql import SparkSession

    from lastword.compaction.config.topic_config import ServiceConfig
    from lastword.storage.log.topic_log import TopicLog


class Handle:
    """An open log.dir: what all its topics share."""

    def __init__(
        self,
        spark: SparkSession | None,
        location: str | PathLike[str],
        *,
        settings: Mapping[str, object] | None,
        storage_options: Mapping[str, str] | None,
        cleaner_parallelism: int | Callable[[], int] | None,
        clock: Callable[[], int],
    ) -> None:
        """Open a log.dir, with the Spark session if there is one; nothing is read or made yet. The rest is `LogDir`'s."""
        #: The Spark session, if the log.dir was opened with one: work that needs none is not a reason to start it.
        self.session = spark
        #: What the time is, in milliseconds since the epoch.
        self.clock = clock
        self._files = LogDirFiles(os.fspath(location), storage_options)
        self._settings = settings
        if settings is not None:
            _ = self._configuration
        self._storage_options = dict(storage_options or {})
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

    def make_folder(self) -> None:
        """Make the folder of a local log.dir where there is none."""
        self._files.make()

    def check_exists(self) -> None:
        """Raise `UserError` if the log.dir does not exist, so that it is not taken for one without topics."""
        self._files.check_exists()

    def keep_settings(self) -> None:
        """Let whoever opens this log.dir without settings of his own work with those of this one: commands beside the service and after it.

        Makes the folder of the log.dir where there is none.
        """
        self._files.make()
        self._files.write_settings(self._settings or {})

    @property
    def location(self) -> str:
        """The path or URI."""
        return self._files.uri

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

        Raises `CommitConflict` when the round takes too long.
        """
        self.cleaner.locks.wait(log)
        return self.cleaner

    def check_config(self, overrides: Mapping[str, object], *, subject: str) -> TopicConfig:
        """Return the configuration that `overrides` give over the service's defaults; raise `InvalidConfiguration`."""
        return parse_topic_config(overrides, subject=subject, defaults=self._defaults)
