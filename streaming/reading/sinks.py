"""Any other sink than a table: a function that gets the newest record of each key of every micro-batch, and the position after it.

Its progress is in the query checkpoint. A micro-batch may come again after a crash: a sink that keeps the position beside its rows knows
it, and is exactly once too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions as F

from lastword.checkpoints.queries import remove_unfinished_batch
from lastword.compaction.errors import UserError, first_line
from lastword.storage.files.paths import filesystem_of
from lastword.storage.reading.view import misfit_policy
from lastword.streaming.reading.decoding import decoded
from lastword.streaming.reading.tail import Tail
from lastword.streaming.reading.tail_source import streaming_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

    from lastword.compaction.read_positions import Position
    from lastword.storage.log.topic_log import TopicLog
    from lastword.streaming.reading.tail import TailOptions, TailRange

    #: A sink: (newest record of each key, position after them).
    Sink = Callable[[DataFrame, Position], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkFormat:
    """What the rows of a sink look like: keys as text or bytes, values decoded or bytes."""

    key_format: str | None = None
    value_format: str | None = None
    schema: StructType | str | None = None
    mode: str = "FAILFAST"

    def __post_init__(self) -> None:
        """Check the key format and the mode."""
        if misfit_policy(self.mode) == "null" and self.value_format is None:
            message = f"mode = {self.mode!r} needs value_format: nothing is decoded without"
            raise UserError(message)
        if self.key_format not in {None, "utf8"}:
            message = f"key_format = {self.key_format!r}: allowed is utf8, or None for bytes"
            raise UserError(message)

    def apply(self, rows: DataFrame) -> DataFrame:
        """Return rows in this format; `live` tells a record from a tombstone, whatever its value is decoded to."""
        keyed = rows.withColumn("live", F.col("value").isNotNull())
        if self.key_format is not None:
            keyed = keyed.withColumn("key", F.col("key").cast("string"))
        return decoded(keyed, self.value_format, self.schema, mode=self.mode)


def check_trigger(spark: SparkSession, trigger: Mapping[str, Any]) -> None:
    """Raise `UserError` for a trigger that Spark does not have, before anything is made."""
    try:
        spark.readStream.format("rate").load().writeStream.trigger(**trigger or {"once": True})
    except (PySparkException, TypeError, ValueError) as error:
        message = (
            f"trigger = {dict(trigger)}: allowed are {{'availableNow': True}} and {{'processingTime': '10 seconds'}} ({first_line(error)})"
        )
        raise UserError(message) from error


def start_sink_query(
    log: TopicLog,
    spark: SparkSession,
    sink: Sink,
    *,
    options: TailOptions,
    row_format: SinkFormat,
    trigger: Mapping[str, Any],
    begin: Position,
    checkpoint_location: str,
    clock_ms: Callable[[], int],
) -> StreamingQuery:
    """Start a query that gives a sink each micro-batch from `begin` on; see `lastword.spark_topic.SparkTopic.materialize`."""
    check_trigger(spark, trigger)
    if checkpoint_location.startswith(("/", "file:")):  # any other is one of Spark's file systems
        remove_unfinished_batch(filesystem_of(checkpoint_location, {}))
    tail = Tail(log, spark, options, clock_ms)
    spans: list[TailRange] = []
    try:
        row_format.apply(tail.columns())
    except AnalysisException as error:
        message = f"value_format = {row_format.value_format}, schema = {row_format.schema}: {first_line(error)}"
        raise UserError(message) from error

    def give(rows: DataFrame, _batch_id: int) -> None:
        keyed = row_format.apply(rows.where(F.col("key").isNotNull()))
        columns = F.struct("value", "headers", "timestamp", "offset", "live")
        newest = keyed.groupBy("partition", "key").agg(F.max_by(columns, "offset").alias("newest")).select("partition", "key", "newest.*")
        sink(newest, spans[-1].end)

    frame = streaming_frame(tail, begin, on_span=lambda span: spans.__setitem__(slice(None), [span]))
    writer = frame.writeStream.foreachBatch(give).options(checkpointLocation=checkpoint_location)
    return (writer.trigger(**trigger) if trigger else writer).start()
