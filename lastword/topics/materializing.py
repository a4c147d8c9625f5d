"""Starting a materialisation: a table that holds its own position, or a function with a query checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lastword.compaction.errors import UserError
from lastword.streaming.reading.materialize import materialize_into, materialize_table
from lastword.streaming.reading.target import Target
from lastword.topics.positions import starting_position

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from lastword.storage.log.topic_log import TopicLog
    from lastword.streaming.reading.materialize import Sink, TableShape
    from lastword.streaming.reading.tail import TailOptions


def start_materialization(
    spark: SparkSession,
    log: TopicLog,
    target: str | Sink,
    *,
    options: TailOptions,
    shape: TableShape,
    trigger: Mapping[str, Any],
    history: bool,
    rebuild: bool,
    checkpoint_location: str | None,
    clock_ms: Callable[[], int],
    storage_options: Mapping[str, str],
) -> StreamingQuery:
    """Start the query of `SparkTopic.materialize`; raise `UserError` for arguments that do not go together."""
    if callable(target):
        if checkpoint_location is None or history or rebuild:
            message = f"topic {log.name}: a function as target needs checkpoint_location, and takes neither history nor rebuild"
            raise UserError(message)
        return materialize_into(
            log,
            spark,
            target,
            options=options,
            shape=shape,
            trigger=trigger,
            begin=starting_position(log, "earliest", None, options.isolation),
            checkpoint_location=checkpoint_location,
            clock_ms=clock_ms,
        )
    if checkpoint_location is not None:
        message = f"topic {log.name}: checkpoint_location = {checkpoint_location}: a table needs none, its position stands in it"
        raise UserError(message)
    wanted = Target(target, topic_id=log.decisions().topic_id, history=history, storage_options=storage_options)
    return materialize_table(log, spark, wanted, options=options, shape=shape, trigger=trigger, rebuild=rebuild, clock_ms=clock_ms)
