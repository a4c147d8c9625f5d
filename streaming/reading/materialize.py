"""A table of last words, bootstrapped and then kept in step with the log: one step of the target for each micro-batch of its tail.

```
 start      where does the target stand?   nowhere → bootstrap, in one commit
            tail from there
 span       read it, apply it, move the position: one commit of the target          lastword.streaming.reading.target
```

After each step the table is exactly what `latest()` says at the position (`TailOptions.consistent`).

The position stands in the target, in the same commit as the rows; a query checkpoint would be a second truth, so it is a temporary one.
Any other sink gets the newest record of each key of a micro-batch, and the position after it; its progress is in a query checkpoint, and a
sink that keeps the position beside its rows is exactly once too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from lastword.compaction.errors import CommitConflict, UserError
from lastword.storage.delta import crash_points
from lastword.storage.delta.crash_points import CrashPoint
from lastword.storage.reading.view import view_of
from lastword.streaming.events import logger
from lastword.streaming.reading.dataframes import latest_records
from lastword.streaming.reading.decoding import decoded
from lastword.streaming.reading.tail import Tail
from lastword.streaming.reading.tail_source import streaming_frame
from lastword.streaming.reading.target import Standing, register

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

    from lastword.compaction.read_positions import Position
    from lastword.storage.log.topic_log import TopicLog
    from lastword.streaming.reading.tail import Span, TailOptions
    from lastword.streaming.reading.target import Target

    #: What a sink of one's own is: (newest record of each key, position after them).
    Sink = Callable[[DataFrame, Position], None]

_LOG = logger("materialize")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a materialised row looks like: keys as text or bytes, values decoded or bytes."""

    key_format: str | None = None
    value_format: str | None = None
    schema: StructType | str | None = None
    mode: str = "FAILFAST"

    def __post_init__(self) -> None:
        """Refuse a key format that there is not."""
        if self.key_format not in {None, "utf8"}:
            message = f"key_format = {self.key_format!r}: allowed is utf8, or None for bytes"
            raise UserError(message)

    def of(self, rows: DataFrame) -> DataFrame:
        """Return rows in this shape; `live` tells a record from a tombstone, whatever its value is decoded to."""
        keyed = rows.withColumn("live", F.col("value").isNotNull())
        if self.key_format is not None:
            keyed = keyed.withColumn("key", F.col("key").cast("string"))
        return decoded(keyed, self.value_format, self.schema, mode=self.mode)


class Materialization:
    """The foreachBatch function of one target."""

    def __init__(self, log: TopicLog, target: Target, standing: Standing, shape: Shape) -> None:
        """Go on from where the target stands."""
        self._log, self._target, self._standing, self._shape = log, target, standing, shape
        self._span: Span | None = None

    def reading(self, span: Span) -> None:
        """Remember what the next micro-batch holds."""
        self._span = span

    def apply(self, rows: DataFrame, _batch_id: int) -> None:
        """Take the step that a micro-batch is."""
        span, self._span = self._span, None
        if span is None or span.end == self._standing.position:
            return
        crash_points.reached(CrashPoint.STEP_PLANNED)
        shaped = self._shape.of(rows.where(F.col("key").isNotNull()))
        try:
            self._standing = self._target.step(shaped, self._standing, span.end)
        except CommitConflict:
            fenced = self._target.standing()
            if fenced is None or fenced.position != self._standing.position or span.end.table_version < fenced.fenced_version:
                raise
            # A purge has fenced the target; this span was planned after it and holds nothing of the key.
            self._standing = self._target.step(shaped, fenced, span.end)
        crash_points.reached(CrashPoint.STEP_TAKEN)
        _LOG.info("target updated", topic=self._log.name, offsets=",".join(map(str, span.end.offsets)), step=self._standing.steps)


def materialize_table(
    log: TopicLog,
    spark: SparkSession,
    target: Target,
    *,
    options: TailOptions,
    shape: Shape,
    trigger: Mapping[str, Any],
    rebuild: bool,
    clock_ms: Callable[[], int],
) -> StreamingQuery:
    """Bootstrap the target if it is not there (or `rebuild` it), and start the query; see `lastword.spark_topic.SparkTopic.materialize`."""
    standing = target.standing()
    register(log, target.location, history=target.history, now_ms=clock_ms())
    if standing is None or rebuild:
        view = view_of(log, log.snapshot(), options.isolation)
        rows = shape.of(latest_records(spark, log, view)).drop("live")
        crash_points.reached(CrashPoint.TARGET_PLANNED)
        target.create(rows, view.position, after=standing)
        crash_points.reached(CrashPoint.TARGET_MADE)
        standing = Standing(position=view.position, steps=0 if standing is None else standing.steps + 1)
    run = Materialization(log, target, standing, shape)
    frame = streaming_frame(Tail(log, spark, replace(options, consistent=True), clock_ms), standing.position, on_span=run.reading)
    return _started(frame, run.apply, trigger, {})


def materialize_into(
    log: TopicLog,
    spark: SparkSession,
    sink: Sink,
    *,
    options: TailOptions,
    shape: Shape,
    trigger: Mapping[str, Any],
    begin: Position,
    checkpoint_location: str,
    clock_ms: Callable[[], int],
) -> StreamingQuery:
    """Start a query that gives a sink of one's own each micro-batch from `begin` on; see `lastword.spark_topic.SparkTopic.materialize`."""
    spans: list[Span] = []

    def give(rows: DataFrame, _batch_id: int) -> None:
        keyed = shape.of(rows.where(F.col("key").isNotNull()))
        columns = F.struct("value", "headers", "timestamp", "offset", "live")
        newest = keyed.groupBy("partition", "key").agg(F.max_by(columns, "offset").alias("newest")).select("partition", "key", "newest.*")
        sink(newest, spans[-1].end)

    frame = streaming_frame(Tail(log, spark, options, clock_ms), begin, on_span=lambda span: spans.__setitem__(slice(None), [span]))
    return _started(frame, give, trigger, {"checkpointLocation": checkpoint_location})


def _started(
    frame: DataFrame, function: Callable[[DataFrame, int], None], trigger: Mapping[str, Any], options: Mapping[str, str]
) -> StreamingQuery:
    writer = frame.writeStream.foreachBatch(function).options(**options)
    return (writer.trigger(**trigger) if trigger else writer).start()
