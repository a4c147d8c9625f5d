"""A Spark streaming source whose planning is Python and whose reading is the JVM's.

Spark asks a source two things on the thread of its query: how far it can read now (`latestOffset`), and the DataFrame between two source
offsets (`getBatch`). Both answers are made here, in Python, through the same callbacks that foreachBatch uses; the DataFrame is a plan over
the Delta table, so that no record passes through Python. A data source in Python (`format("lastword")`) reads its records there, and is
several times slower.

Spark's interfaces `Source` and `SupportsTriggerAvailableNow` are its own, not public ones: this module is the only place that knows them,
and `tests/streaming/reading/test_tail.py` runs all that Spark does with them. The source offset of a micro-batch is its `Span` as JSON.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lastword.compaction.errors import ReaderBehind
from lastword.streaming.reading.tail import TAIL_COLUMNS, Span

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from lastword.compaction.read_positions import Position
    from lastword.streaming.reading.tail import Tail


def streaming_frame(tail: Tail, begin: Position, *, on_span: Callable[[Span], None] | None = None) -> DataFrame:
    """Return a streaming DataFrame that tails from `begin` on; any number of queries may be started from it.

    `on_span` is told of each micro-batch before it is processed, on the thread of the query.
    """
    spark = tail.spark
    ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]  # noqa: SLF001  as foreachBatch does
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001  no public way to a streaming source of one's own
    session = spark._jsparkSession  # noqa: SLF001
    first = Span(begin=begin.offsets, end=begin)
    schema = tail.columns()._jdf.schema()  # noqa: SLF001
    nothing = session.internalCreateDataFrame(session.sparkContext().emptyRDD(jvm.scala.reflect.ClassTag.Object()), schema, True)  # noqa: FBT003
    source = _Source(tail, first, schema, DataFrame(nothing, spark), on_span)
    relation = getattr(
        getattr(_internals(spark), "StreamingExecutionRelation$"), "MODULE$"
    )  # a Scala object; its two arguments stay the same
    plan = relation.apply(source, session)
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(session, plan), spark)


def _internals(spark: SparkSession) -> Any:
    """Return the package of Spark's streaming classes: Spark 4.1 moved them."""
    streaming: Any = spark.sparkContext._jvm.org.apache.spark.sql.execution.streaming  # type: ignore[union-attr]  # noqa: SLF001
    return streaming if spark.version.startswith("4.0.") else streaming.runtime


class _Source:
    """What Spark calls; the names are those of its interfaces."""

    def __init__(self, tail: Tail, first: Span, schema: Any, nothing: DataFrame, on_span: Callable[[Span], None] | None) -> None:
        self._on_span = on_span
        self._tail = tail
        self._first = first
        self._schema = schema
        self._nothing = nothing
        self._until: dict[str, tuple[int, ...]] = {}
        self._processed = first.end

    def schema(self) -> Any:
        return self._schema

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        return self._jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit.allAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._until[self._query()] = self._tail.bounds()

    def latestOffset(self, start: Any, _limit: Any) -> Any:  # noqa: N802
        """Return the source offset up to which the next micro-batch reads; the one given when there is nothing new.

        Everything before the one given was processed.
        """
        after = self._first if start is None else Span.from_json(start.json())
        self._processed = after.end
        span = self._tail.plan(after.end, until=self._until.get(self._query()))
        self._tail.tell(after.end)
        unmoved = span.is_empty and span.end == after.end
        return self._offset(after if unmoved else span)

    def reportLatestOffset(self) -> Any:  # noqa: N802
        return None

    def getOffset(self) -> Any:  # noqa: N802
        return self.latestOffset(None, None)

    def getBatch(self, _start: Any, end: Any) -> Any:  # noqa: N802
        """Return the rows of the micro-batch that ends at `end`; a span says itself where it begins.

        At its start a query asks so for the micro-batch that it committed last, and throws the answer away: a reader that was overtaken
        since then fails when the rows are read, not when they are asked for.
        """
        span = Span.from_json(end.json())
        if self._on_span is not None:
            self._on_span(span)
        if span.is_empty:
            return self._nothing._jdf  # noqa: SLF001
        try:
            rows = self._tail.read(span)
        except ReaderBehind as error:
            rows = self._failing(error)
        return rows.unionByName(self._nothing)._jdf  # noqa: SLF001

    def initialOffset(self) -> Any:  # noqa: N802
        return self._offset(self._first)

    def deserializeOffset(self, text: str) -> Any:  # noqa: N802
        return self._offset(Span.from_json(text))

    def commit(self, end: Any) -> None:
        """Do nothing: the query checkpoint is the reader's progress."""

    def stop(self) -> None:
        self._tail.tell(self._processed, stopping=True)
        self._until.pop(self._query(), None)

    def toString(self) -> str:  # noqa: N802
        return f"lastword[{self._tail.log.paths.root}]"

    def hashCode(self) -> int:  # noqa: N802
        return id(self) % 2**31

    def equals(self, other: Any) -> bool:
        return other is self

    @property
    def _spark(self) -> SparkSession:
        return self._tail.spark

    @property
    def _jvm(self) -> Any:
        return self._spark.sparkContext._jvm  # noqa: SLF001

    def _query(self) -> str:
        """Return the id of the query whose thread asks; several may read one DataFrame."""
        return str(self._spark.sparkContext.getLocalProperty("sql.streaming.queryId"))

    def _failing(self, error: ReaderBehind) -> DataFrame:
        """Return rows whose reading fails with the message of `error`."""
        fails = F.raise_error(F.lit(str(error))).cast("boolean")
        return self._spark.range(1).where(fails).select(*[F.lit(None).alias(name) for name in TAIL_COLUMNS])

    def _offset(self, span: Span) -> Any:
        return _internals(self._spark).SerializedOffset(span.to_json())

    class Java:
        """The interfaces, for py4j."""

        implements = (
            "org.apache.spark.sql.execution.streaming.Source",
            "org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow",
        )
