"""A Spark streaming source whose planning is Python.

Spark asks a source two things on the thread of its query: how far it can read now (`latestOffset`), and the DataFrame between two source
offsets (`getBatch`). Both answers are made in Python (`Planner`), through the same callbacks that foreachBatch uses; the DataFrame is a
plan like any other. A data source in Python (`format("lastword")`) reads its records there, and is several times slower.

Spark's interfaces `Source` and `SupportsTriggerAvailableNow` are its own, not public ones: this module is the only place that knows them,
and `tests/streaming/reading/test_tail.py` runs all that Spark does with them.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

from py4j.java_gateway import JavaObject
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame

from lastword.storage.files.locations import local_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

#: A source in an object store is looked at so often at the most, as each look is several requests.
_STORE_SECONDS: Final = 1.0


class PollPace:
    """Lets a source rest between two looks: without a trigger Spark asks again 10 ms after it heard that there is nothing new.

    A look that comes earlier waits: the answer that there is nothing new must be true.
    """

    def __init__(
        self, location: str, *, monotonic: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Pace the looks at a location: half of the time at the most, and once a second in an object store."""
        self._least_seconds = 0.0 if local_path(location) is not None else _STORE_SECONDS
        self._monotonic, self._sleep = monotonic, sleep
        self._began = self._free_at = 0.0

    def begin(self) -> None:
        """Wait until the next look is due."""
        self._sleep(max(0.0, self._free_at - self._monotonic()))
        self._began = self._monotonic()

    def rest(self) -> None:
        """Let the next look wait as long as this one took."""
        now = self._monotonic()
        self._free_at = now + max(now - self._began, self._least_seconds)


class Planner(ABC):
    """What is read next, and the rows of it. Source offsets are texts of JSON; `query` is the id of the query that asks."""

    #: How the source is called in Spark's progress and errors.
    name: str

    @abstractmethod
    def first(self) -> str:
        """Return the source offset before the first row."""

    @abstractmethod
    def latest(self, after: str, query: str) -> str:
        """Return up to where the next micro-batch reads: `after` when there is nothing new. Everything before `after` was processed."""

    def newest(self) -> str | None:
        """Return the newest source offset that the last look has seen, for the progress of the query; None if it is not known."""
        return None

    @abstractmethod
    def rows(self, after: str, end: str) -> DataFrame | None:
        """Return the rows between two source offsets, None for none.

        At its start a query asks so for the micro-batch that it committed last, and throws the answer away.
        """

    @abstractmethod
    def bound(self, query: str) -> None:
        """Read no further than there is now: the query runs with `availableNow`."""

    @abstractmethod
    def stop(self, query: str) -> None:
        """Let go of what belongs to a query."""


def planned_stream(planner: Planner, columns: DataFrame) -> DataFrame:
    """Return a streaming DataFrame of what a planner says, with the schema of `columns`; several queries may be started from it."""
    spark = columns.sparkSession
    ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]  # noqa: SLF001  as foreachBatch does
    jvm = _jvm_of(spark)
    session = spark._jsparkSession  # noqa: SLF001
    schema = columns._jdf.schema()  # noqa: SLF001
    nothing = session.internalCreateDataFrame(session.sparkContext().emptyRDD(jvm.scala.reflect.ClassTag.Object()), schema, True)  # noqa: FBT003
    source = _SparkSource(planner, schema, DataFrame(nothing, spark))
    relation = getattr(
        getattr(_internals(spark), "StreamingExecutionRelation$"), "MODULE$"
    )  # a Scala object; its two arguments stay the same
    plan = relation.apply(source, session)
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(session, plan), spark)


def _jvm_of(spark: SparkSession) -> Any:
    """Return what stands for the JVM of a session: there is no public way to a streaming source of one's own."""
    return spark.sparkContext._jvm  # noqa: SLF001


def _internals(spark: SparkSession) -> Any:
    """Return the package of Spark's streaming classes: Spark 4.1 moved them."""
    streaming = _jvm_of(spark).org.apache.spark.sql.execution.streaming
    return streaming if spark.version.startswith("4.0.") else streaming.runtime


class _SparkSource:
    """What Spark calls; the names are those of its interfaces."""

    def __init__(self, planner: Planner, schema: Any, nothing: DataFrame) -> None:
        self._planner, self._schema, self._nothing = planner, schema, nothing

    def schema(self) -> Any:
        return self._schema

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        return self._jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit.allAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._planner.bound(self._query())

    def latestOffset(self, start: Any, _limit: Any) -> Any:  # noqa: N802
        after = self._planner.first() if start is None else start.json()
        return self._offset(self._planner.latest(after, self._query()))

    def reportLatestOffset(self) -> Any:  # noqa: N802
        newest = self._planner.newest()
        return None if newest is None else self._offset(newest)

    def getOffset(self) -> Any:  # noqa: N802
        return self._jvm.scala.Option.apply(self.latestOffset(None, None))

    def getBatch(self, start: Any, end: Any) -> Any:  # noqa: N802
        after = start.get().json() if start.isDefined() else self._planner.first()
        rows = self._planner.rows(after, end.json())
        return (self._nothing if rows is None else rows.unionByName(self._nothing))._jdf  # noqa: SLF001

    def initialOffset(self) -> Any:  # noqa: N802
        return self._offset(self._planner.first())

    def deserializeOffset(self, text: str) -> Any:  # noqa: N802
        return self._offset(text)

    def commit(self, end: Any) -> None:
        """Do nothing: the query checkpoint is the reader's progress."""

    def stop(self) -> None:
        self._planner.stop(self._query())

    def toString(self) -> str:  # noqa: N802
        return self._planner.name

    def hashCode(self) -> int:  # noqa: N802
        return id(self) % 2**31

    def equals(self, other: Any) -> bool:
        # It comes as Java has it: another object than this one, with this one's hash code.
        return isinstance(other, JavaObject) and other.hashCode() == self.hashCode()

    @property
    def _jvm(self) -> Any:
        return _jvm_of(self._nothing.sparkSession)

    def _query(self) -> str:
        """Return the id of the query whose thread asks; several may read one DataFrame."""
        return str(self._nothing.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId"))

    def _offset(self, text: str) -> Any:
        return _internals(self._nothing.sparkSession).SerializedOffset(text)

    class Java:
        """The interfaces, for py4j."""

        implements = (
            "org.apache.spark.sql.execution.streaming.Source",
            "org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow",
        )
