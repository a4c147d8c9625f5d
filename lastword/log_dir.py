"""A log.dir: a directory of topics, on a local disk or an object store (Kafka's log.dir)."""

from __future__ import annotations

import uuid
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, Generic, cast, overload

from typing_extensions import TypeVar

from lastword.arrow_topic import ArrowTopic
from lastword.checkpoints.producer_cache import ProducerSnapshots
from lastword.clock import now_ms
from lastword.compaction.config.topic_config import normalize_overrides
from lastword.compaction.errors import InvalidTopic, TopicExists, UnknownTopic, UserError
from lastword.handle import Handle
from lastword.progress_bars import show_where_seen
from lastword.storage.delta.snapshot import LogSnapshot
from lastword.storage.delta.tables import create_table, open_table
from lastword.storage.files import schema
from lastword.storage.files.json_files import read_json_file, write_json_file
from lastword.storage.files.paths import filesystem_of
from lastword.storage.ledger.decisions import Decision, Kind
from lastword.storage.ledger.ledger import Ledger
from lastword.storage.log.topic_log import TopicLog
from lastword.topic import Topic
from lastword.topics.notebooks import html_of_topics
from lastword.topics.queries import run_query

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import polars as pl
    from pyspark.sql import SparkSession

    from lastword.spark_topic import SparkTopic


#: The topics of a log.dir; `LogDir` alone, as a type, is one of any engine.
TopicT_co = TypeVar("TopicT_co", bound=Topic, covariant=True, default=Topic)
_SPARK_AND_LOCATION = 2
_MOST_PARTITIONS = 10_000


class LogDir(Handle, Generic[TopicT_co]):
    """A directory of topics; what its topics take and return is of the engine that it was opened with.

    ```
     LogDir("data")           LogDir[ArrowTopic]    no Spark, no JVM: Arrow tables, Polars lazy frames
     LogDir(spark, "data")    LogDir[SparkTopic]    DataFrames, and what streams
    ```
    """

    @overload
    def __init__(
        self: LogDir[ArrowTopic],
        location: str | PathLike[str],
        /,
        *,
        settings: Mapping[str, object] | None = None,
        storage_options: Mapping[str, str] | None = None,
        clock: Callable[[], int] = now_ms,
    ) -> None: ...

    @overload
    def __init__(
        self: LogDir[SparkTopic],
        spark: SparkSession,
        location: str | PathLike[str],
        /,
        *,
        settings: Mapping[str, object] | None = None,
        storage_options: Mapping[str, str] | None = None,
        cleaner_parallelism: int | Callable[[], int] | None = None,
        clock: Callable[[], int] = now_ms,
    ) -> None: ...

    def __init__(
        self,
        *given: Any,
        settings: Mapping[str, object] | None = None,
        storage_options: Mapping[str, str] | None = None,
        cleaner_parallelism: int | Callable[[], int] | None = None,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        """Open a log.dir: `LogDir(location)`, or `LogDir(spark, location)`; nothing is read or made yet.

        Args:
            given: The path or URI of the log.dir, behind the Spark session if there is one.
            settings: Service-wide settings under Kafka's names (`log.retention.hours`, `log.cleaner.threads`, topic keys …) that hold for
                every topic without its own. None: those that the last `lastword run` over this log.dir began with, or the defaults when
                there was none.
            storage_options: delta-rs' options for an object store; none are needed where the environment has them (AWS_REGION …).
            cleaner_parallelism: The most tasks of all cleanings together; a function is asked whenever work starts.
            clock: Returns the time in milliseconds since the epoch; everything that is appended, decided or due goes by it.

        Raises:
            InvalidConfiguration: Settings that are not allowed, each with what is.
            UserError: Neither a location nor a session and a location, or a session of Spark Connect.
        """
        spark, location = given if len(given) == _SPARK_AND_LOCATION else (None, given[0] if len(given) == 1 else None)
        is_session = hasattr(spark, "readStream")
        if not isinstance(location, (str, PathLike)) or is_session is not (len(given) == _SPARK_AND_LOCATION):
            shown = ", ".join(repr(one) for one in given) or "nothing"
            message = (
                f'LogDir takes a location, LogDir("data"), or a Spark session and a location, LogDir(spark, "data"); it was given {shown}'
            )
            raise UserError(message)
        if type(spark).__module__.startswith("pyspark.sql.connect."):
            message = (
                "LogDir was given a session of Spark Connect, which has no JVM of its own. Leave the session out: the topics of "
                f"LogDir({str(location)!r}) append DataFrames of Spark Connect and return Arrow tables; "
                'spark.read.format("lastword") reads them'
            )
            raise UserError(message)
        show_where_seen()
        super().__init__(
            spark,
            location,
            settings=settings,
            storage_options=storage_options,
            cleaner_parallelism=cleaner_parallelism,
            clock=clock,
        )

    def create_topic(self, name: str, *, partitions: int = 1, config: Mapping[str, object] | None = None) -> TopicT_co:
        """Create a topic and return it.

        `config` has topic settings under Kafka's names, human units allowed (`{"segment.bytes": "128MiB"}`). Raises `TopicExists`,
        `InvalidTopic` (name, partitions) or `InvalidConfiguration` with every violation; nothing is made then.
        """
        paths = self._files.topic(name)
        if type(partitions) is not int or not 1 <= partitions <= _MOST_PARTITIONS:
            message = f"partitions = {partitions!r}: allowed is a whole number from 1 to {_MOST_PARTITIONS}"
            raise InvalidTopic(message)
        self.check_config(config or {}, subject=f"topic {name}")
        if self._files.has_ledger(name):
            message = f"topic {name} exists already in {self.location}"
            raise TopicExists(message)
        time_ms = self.clock()
        self._files.make()
        options = self._storage_options
        create_table(paths.log, schema.log_schema(), schema.log_properties(), options, partition_by=schema.PLACE_COLUMNS)
        create_table(paths.dead_letters, schema.dead_letter_schema(), schema.dead_letter_properties(), options)
        used = LogSnapshot.of(open_table(paths.log, options)).partitions()
        if used and used[-1] >= partitions:
            message = f"partitions = {partitions}: {paths.log} holds records of partition {used[-1]}; allowed is {used[-1] + 1} or more"
            raise InvalidTopic(message)
        created = Decision(kind=Kind.CREATE, time_ms=time_ms, details={"partitions": partitions, "topic_id": uuid.uuid4().hex})
        configured = Decision(kind=Kind.CONFIG, time_ms=time_ms, details=normalize_overrides(config or {}))
        Ledger(paths.ledger, name, options).create([created, configured])
        return self.topic(name)

    def topic(self, name: str) -> TopicT_co:
        """Return the topic `name`; raise `UnknownTopic` naming those that exist."""
        if not self._files.has_ledger(name):
            known = ", ".join(self.topics()) or "none"
            message = f"topic {name} does not exist in {self.location}; existing: {known}"
            raise UnknownTopic(message)
        log = self.log(name)
        if self.session is None:
            return cast("TopicT_co", ArrowTopic(self, log))
        from lastword.spark_topic import SparkTopic  # noqa: PLC0415  imports pyspark, which may not be there

        return cast("TopicT_co", SparkTopic(self, log, self.session))

    def log(self, name: str) -> TopicLog:
        """Return the log of topic `name`, which exists; nothing is read yet."""
        paths = self._files.topic(name)
        log = TopicLog(
            name,
            paths,
            defaults=self._defaults,
            storage_options=self._storage_options,
            producer_cache=producer_snapshots(paths.root, self._storage_options, lambda: log.decisions().topic_id),
        )
        return log

    def _repr_html_(self) -> str:
        return html_of_topics(self.location, self.topics(), self.log)

    def check_reachable(self) -> None:
        """Raise `LogDirUnreachable` when the log.dir that this process holds is not there any more."""
        self._files.check_reachable()

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return self._files.topics()

    def sql(self, query: str, *, limit: int | None = None) -> pl.DataFrame:
        """Return the rows of a SQL query over topics, each as a table of its newest rows; without a JVM, by Polars' SQL.

        A topic whose sources have named columns has these, with their types, as `table`. Any other one has partition, key, value, headers,
        timestamp and offset, as `latest`; key and value are text there, null where they are not UTF-8. Names with dots may be quoted:
        `select * from "shop.orders"`. Only topics that the query names are read, at their newest version.

        Args:
            query: One SELECT; nothing can be written.
            limit: The most rows that are returned.

        Raises:
            UserError: The statement does not read, or is wrong, in one line. A value does not fit its column.
            UnknownTopic: A table is no topic.
        """
        return run_query(query, open_log=self.log, topics=self.topics, limit=limit)

    def delete_topic(self, name: str) -> None:
        """Delete a topic: it is gone at once and its name is free; its files go after file.delete.delay.ms.

        Its streaming queries are stopped first, between two micro-batches, and a cleaning in hand ends; later appends to it raise
        `UnknownTopic`. Raises `CommitConflict` when the cleaning takes too long; nothing is deleted then.
        """
        topic = self.topic(name)
        time_ms = self.clock()
        with self.cleaner.locks.reserve(topic.log):  # first: a deletion that cannot be leaves the queries running
            topic.stop_queries()
            with topic.log.append_lock():
                self.cleaner.forget(topic.log)
                self._files.retire(name, time_ms + topic.config.file_delete_delay_ms)
                topic.forget()

    def purge_deleted(self) -> list[str]:
        """Remove the files of deleted topics whose file.delete.delay.ms has passed; return the names of those topics."""
        return self._files.purge_retired(self.clock())


def producer_snapshots(root: str, storage_options: Mapping[str, str], topic_id: Callable[[], str]) -> ProducerSnapshots:
    """Return the cache of producer states in the folder of a topic."""
    files = filesystem_of(root, storage_options)
    return ProducerSnapshots(
        partial(read_json_file, files), lambda path, body: write_json_file(files, path, body, unfinished=f"{path}.new"), topic_id
    )
