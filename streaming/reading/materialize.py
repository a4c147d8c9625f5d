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

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from lastword.checkpoints.queries import remove_unfinished_batch
from lastword.compaction.errors import CommitConflict, LastwordError, UserError, first_line
from lastword.storage.delta import crash_points
from lastword.storage.delta.crash_points import CrashPoint
from lastword.storage.files.paths import filesystem_of
from lastword.storage.reading.view import misfit_policy, view_of
from lastword.streaming.events import logger
from lastword.streaming.reading.dataframes import check_session, latest_records
from lastword.streaming.reading.decoding import decoded
from lastword.streaming.reading.misfits import first_misfit
from lastword.streaming.reading.own_session import own_session, settle
from lastword.streaming.reading.tail import Tail
from lastword.streaming.reading.tail_source import streaming_frame
from lastword.streaming.reading.target import register
from lastword.streaming.reading.target_columns import check_value_type, shaped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from lastword.compaction.read_positions import Position
    from lastword.storage.log.topic_log import TopicLog
    from lastword.streaming.reading.tail import TailOptions, TailRange
    from lastword.streaming.reading.target import Target
    from lastword.streaming.reading.target_state import TableStatus

    #: What a sink of one's own is: (newest record of each key, position after them).
    Sink = Callable[[DataFrame, Position], None]

_LOG = logger("materialize")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableShape:
    """What a materialised row looks like: keys as text or bytes, values decoded or bytes."""

    key_format: str | None = None
    value_format: str | None = None
    schema: StructType | str | None = None
    mode: str = "FAILFAST"

    def __post_init__(self) -> None:
        """Refuse a key format or a mode that there is not, and a mode without values that it is for."""
        if misfit_policy(self.mode) == "null" and self.value_format is None:
            message = f"mode = {self.mode!r} needs value_format: nothing is decoded without"
            raise UserError(message)
        if self.key_format not in {None, "utf8"}:
            message = f"key_format = {self.key_format!r}: allowed is utf8, or None for bytes"
            raise UserError(message)

    def of(self, rows: DataFrame) -> DataFrame:
        """Return rows in this shape; `live` tells a record from a tombstone, whatever its value is decoded to."""
        keyed = rows.withColumn("live", F.col("value").isNotNull())
        if self.key_format is not None:
            keyed = keyed.withColumn("key", F.col("key").cast("string"))
        return decoded(keyed, self.value_format, self.schema, mode=self.mode)


class TableQuery(StreamingQuery):
    """The query that keeps a table: what lastword has to say about its end is raised as it is, and not as an error of Spark."""

    def __init__(self, query: StreamingQuery, run: Materialization) -> None:
        """Be the query whose micro-batches `run` takes."""
        super().__init__(query._jsq)  # noqa: SLF001  the same query under another class
        self._run = run

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802  Spark's name
        """Wait for the end, as Spark's; raises the `LastwordError` that the query ended with, if it is one."""
        try:
            return super().awaitTermination(timeout)
        except StreamingQueryException as error:
            if self._run.failure is None:
                raise
            raise self._run.failure from error


class Materialization:
    """The foreachBatch function of one target, and the tail that it reads."""

    def __init__(self, log: TopicLog, target: Target, standing: TableStatus, shape: TableShape) -> None:
        """Go on from where the target stands."""
        self._log, self._target, self._standing, self._shape = log, target, standing, shape
        self._span: TailRange | None = None
        self.failure: LastwordError | None = None

    def reading(self, span: TailRange) -> None:
        """Remember what the next micro-batch holds."""
        self._span = span

    @contextmanager
    def remembers(self) -> Iterator[None]:
        """Remember the error that the query ends with."""
        try:
            yield
        except LastwordError as error:
            self.failure = error
            raise

    def apply(self, rows: DataFrame, _batch_id: int) -> None:
        """Take the step that a micro-batch is."""
        with self.remembers():
            self._apply(rows)

    def _apply(self, rows: DataFrame) -> None:
        span, self._span = self._span, None
        if span is None or span.end == self._standing.position:
            return
        crash_points.reached(CrashPoint.STEP_PLANNED)
        settle(rows.sparkSession)  # a clone that Spark made for this query alone
        keyed = rows.where(F.col("key").isNotNull())
        with naming_misfits(self._log.name, keyed, self._shape):
            records = self._shape.of(keyed)
            try:
                self._standing = self._target.step(records, self._standing, span.end)
            except CommitConflict:
                fenced = self._target.standing()
                if fenced is None or fenced.position != self._standing.position or span.end.table_version < fenced.fenced_version:
                    raise
                # A purge has fenced the target; this span was planned after it and holds nothing of the key.
                self._standing = self._target.step(records, fenced, span.end)
        crash_points.reached(CrashPoint.STEP_TAKEN)
        _LOG.info("target updated", topic=self._log.name, offsets=",".join(map(str, span.end.offsets)), step=self._standing.steps)


class _KeptTail(Tail):
    """A tail of which the run of its query remembers how it failed."""

    run: Materialization

    def plan(self, after: Position, *, until: tuple[int, ...] | None = None) -> TailRange:
        with self.run.remembers():
            return super().plan(after, until=until)

    def read(self, span: TailRange) -> DataFrame:
        with self.run.remembers():
            return super().read(span)


@contextmanager
def naming_misfits(topic: str, rows: DataFrame, shape: TableShape) -> Iterator[None]:
    """Turn an error of Spark into a `UserError` that names the record whose value does not fit, if there is one among `rows`."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        misfit = first_misfit(rows, topic, shape.value_format, shape.schema) if shape.mode == "FAILFAST" else None
        if misfit is None:
            raise
        message = f"{misfit}. mode='PERMISSIVE' (--mode PERMISSIVE) makes it null; or append a newer record of the key"
        raise UserError(message) from error


def materialize_table(
    log: TopicLog,
    spark: SparkSession,
    target: Target,
    *,
    options: TailOptions,
    shape: TableShape,
    trigger: Mapping[str, Any],
    rebuild: bool,
    clock_ms: Callable[[], int],
) -> StreamingQuery:
    """Bootstrap the target if it is not there (or `rebuild` it), and start the query; see `lastword.spark_topic.SparkTopic.materialize`."""
    check_session(spark)
    check_trigger(spark, trigger)
    own = own_session(spark)
    view = view_of(log.at(), options.isolation)
    last = latest_records(own, log, view)
    rows = _shaped_rows(last, shape)
    standing = None if rebuild and _may_replace(log, target) else target.standing()
    if standing is not None:
        standing = target.check(standing, shaped(rows).schema, there=target.columns(own))
    register(log, target.location, history=target.history, now_ms=clock_ms())
    if standing is None:
        crash_points.reached(CrashPoint.TARGET_PLANNED)
        with naming_misfits(log.name, last, shape):
            standing = target.create(rows, view.position, replaces=rebuild)
        crash_points.reached(CrashPoint.TARGET_MADE)
    run = Materialization(log, target, standing, shape)
    tail = _KeptTail(log, spark, replace(options, consistent=True), clock_ms)
    tail.run = run
    frame = streaming_frame(tail, standing.position, on_span=run.reading)
    return TableQuery(_started(frame, run.apply, trigger, {}), run)


def _may_replace(log: TopicLog, target: Target) -> bool:
    """Tell whether what is at the place of a target may be replaced: it follows this topic, or did so before somebody changed it."""
    today = log.decisions()
    owner = target.owner()
    return owner == today.topic_id or (owner is None and target.location in today.targets)


def _shaped_rows(last: DataFrame, shape: TableShape) -> DataFrame:
    """Return last words as the rows of a target; raise `UserError` for a schema that cannot be decoded, or that no table can hold."""
    try:
        rows = shape.of(last)
        check_value_type(rows.schema["value"].dataType)
    except AnalysisException as error:
        message = f"value_format = {shape.value_format}, schema = {shape.schema}: {first_line(error)}"
        raise UserError(message) from error
    return rows.drop("live")


def check_trigger(spark: SparkSession, trigger: Mapping[str, Any]) -> None:
    """Raise `UserError` for a trigger that Spark does not have, before anything is made."""
    try:
        spark.readStream.format("rate").load().writeStream.trigger(**trigger or {"once": True})
    except (PySparkException, TypeError, ValueError) as error:
        message = (
            f"trigger = {dict(trigger)}: allowed are {{'availableNow': True}} and {{'processingTime': '10 seconds'}} ({first_line(error)})"
        )
        raise UserError(message) from error


def materialize_into(
    log: TopicLog,
    spark: SparkSession,
    sink: Sink,
    *,
    options: TailOptions,
    shape: TableShape,
    trigger: Mapping[str, Any],
    begin: Position,
    checkpoint_location: str,
    clock_ms: Callable[[], int],
) -> StreamingQuery:
    """Start a query that gives a sink of one's own each micro-batch from `begin` on; see `lastword.spark_topic.SparkTopic.materialize`."""
    check_trigger(spark, trigger)
    if checkpoint_location.startswith(("/", "file:")):  # any other is one of Spark's file systems
        remove_unfinished_batch(filesystem_of(checkpoint_location, {}))
    spans: list[TailRange] = []

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
