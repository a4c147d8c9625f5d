"""Starts the streaming queries of `SparkTopic.materialize`: one that keeps a typed table, or one that calls a function.

```
 Spark      trigger ─► micro-batch without rows       whenever the topic has grown     lastword.streaming.reading.growth_source
 lastword                └─► all steps of the table   as without Spark                 lastword.topics.tables
```

The position is in the table, in the same commit as the rows; a query checkpoint would be a second truth, so it is a temporary one.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypedDict

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from lastword.compaction.errors import LastwordError, UserError
from lastword.streaming.cluster import SparkCluster
from lastword.streaming.reading.growth_source import growth_frame
from lastword.streaming.reading.sinks import SinkFormat, check_trigger, start_sink_query
from lastword.streaming.reading.tail import TailOptions
from lastword.topics.positions import starting_position
from lastword.topics.tables import TableArguments, keep_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from lastword.storage.log.topic_log import TopicLog
    from lastword.streaming.reading.sinks import Sink
    from lastword.topics.tables import TableKeeper, TableProgress


class SinkArguments(TypedDict, total=False):
    """The arguments of `SparkTopic.materialize` for a function, beside `trigger` and `checkpoint_location`."""

    key_format: str | None
    value_format: str | None
    schema: StructType | str | None
    mode: str
    isolation: str
    max_offsets_per_trigger: int | None
    fail_on_data_loss: bool
    on_missed_tombstones: str
    reader: str | None
    reader_expiration_ms: int


class TableQuery(StreamingQuery):
    """The streaming query that keeps a table. An error of lastword is raised as it is, and not as an error of Spark."""

    def __init__(self, query: StreamingQuery, run: _TableRun) -> None:
        """Be the query whose micro-batches `run` takes."""
        super().__init__(query._jsq)  # noqa: SLF001  the same query under another class
        self._run = run

    @property
    def progress(self) -> TableProgress:
        """What was done to the table since the start."""
        return self._run.keeper.progress

    def stop(self) -> None:
        """End after the commit in hand."""
        self._run.stopping.set()
        super().stop()

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802  Spark's name
        """Wait for the end, as Spark's; raises the `LastwordError` that the query ended with, if it is one."""
        try:
            return super().awaitTermination(timeout)
        except StreamingQueryException as error:
            if self._run.failure is None:
                raise
            raise self._run.failure from error


class _TableRun:
    """The foreachBatch function of a table."""

    def __init__(self, keeper: TableKeeper) -> None:
        self.keeper, self.stopping = keeper, threading.Event()
        self.failure: LastwordError | None = None

    def remember(self, error: Exception) -> None:
        """Remember the error that the query ends with."""
        if isinstance(error, LastwordError):
            self.failure = error

    def take_steps(self, _rows: DataFrame, _batch_id: int) -> None:
        """Take all steps up to the log end."""
        try:
            self.keeper.catch_up(stopping=self.stopping.is_set)
        except Exception as error:
            self.remember(error)
            raise


def start_table_query(
    spark: SparkSession,
    log: TopicLog,
    path: str,
    *,
    trigger: Mapping[str, Any],
    checkpoint_location: str | None,
    storage_options: Mapping[str, str],
    clock_ms: Callable[[], int],
    arguments: Mapping[str, Any],
) -> TableQuery:
    """Start the query that keeps a table; raise `UserError` for arguments that it does not take."""
    check_trigger(spark, trigger)
    check_arguments(log, arguments, TableArguments.__annotations__, "a table")
    if checkpoint_location is not None:
        message = f"topic {log.name}: checkpoint_location = {checkpoint_location}: a table needs none, its position is in its own commits"
        raise UserError(message)
    rebuild, isolation = arguments.get("rebuild", False), arguments.get("isolation", "read_committed")
    named = {name: value for name, value in arguments.items() if name != "rebuild"}
    keeper = keep_table(log, path, storage_options=storage_options, clock_ms=clock_ms, cluster=SparkCluster(spark), **named)
    keeper.start(rebuild=rebuild)
    run = _TableRun(keeper)
    writer = growth_frame(spark, log, isolation, run.remember).writeStream.foreachBatch(run.take_steps)
    return TableQuery((writer.trigger(**trigger) if trigger else writer).start(), run)


def check_arguments(log: TopicLog, arguments: Iterable[str], allowed: Iterable[str], subject: str) -> None:
    """Raise `UserError` naming the arguments of `materialize` that are not of its kind of target."""
    unknown = sorted(set(arguments) - set(allowed))
    if unknown:
        message = f"topic {log.name}: materialize into {subject} has no argument {', '.join(unknown)}: allowed are {', '.join(allowed)}"
        raise UserError(message)


def start_sink(
    spark: SparkSession,
    log: TopicLog,
    sink: Sink,
    *,
    trigger: Mapping[str, Any],
    checkpoint_location: str | None,
    clock_ms: Callable[[], int],
    arguments: Mapping[str, Any],
) -> StreamingQuery:
    """Start the query that calls a function; raise `UserError` for arguments that it does not take."""
    if checkpoint_location is None:
        message = f"topic {log.name}: a function needs checkpoint_location, where its progress is kept"
        raise UserError(message)
    check_arguments(log, arguments, SinkArguments.__annotations__, "a function")
    named = SinkFormat.__dataclass_fields__
    row_format = SinkFormat(**{name: value for name, value in arguments.items() if name in named})
    options = TailOptions(**{name: value for name, value in arguments.items() if name not in named})
    return start_sink_query(
        log,
        spark,
        sink,
        options=options,
        row_format=row_format,
        trigger=trigger,
        begin=starting_position(log, "earliest", None, options.isolation),
        checkpoint_location=checkpoint_location,
        clock_ms=clock_ms,
    )
