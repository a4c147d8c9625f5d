"""What calls the cleaner again and again: a streaming query where Spark runs, a thread where it does not.

```
 with Spark      foreachBatch on a ticker   Spark runs, shows and stops the cleaner like any other query
 without         a thread                   no JVM is started for it
```

A tick that takes longer than the interval is followed by the next one at once.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

#: Scheduler pools (lastword/spark/fairscheduler.xml): appends go first.
APPEND_POOL: Final = "append"
CLEANER_POOL: Final = "cleaner"


class Ticker(Protocol):
    """Calls a function each interval until it is stopped or the function raises."""

    @property
    def is_active(self) -> bool:
        """Whether it still calls the function."""

    def error(self) -> Exception | None:
        """Return what the function raised; None when it raised nothing."""

    def stop(self) -> None:
        """Stop calling: a query interrupts a call that runs, a thread waits until it returns."""


class QueryTicker:
    """Calls `tick` in each micro-batch of a streaming query, whose own rows are not used."""

    def __init__(self, spark: SparkSession, tick: Callable[[], None], *, interval_ms: int) -> None:
        """Start a query that calls `tick` every `interval_ms` milliseconds, in the scheduler pool of the cleaner."""

        def tend(_rows: DataFrame, _batch_id: int) -> None:
            tick()

        with_pool(spark, CLEANER_POOL)
        rows = spark.readStream.format("rate").option("rowsPerSecond", 1).option("numPartitions", 1).load()
        writer = rows.writeStream.foreachBatch(tend).queryName("lastword/cleaner").trigger(processingTime=f"{interval_ms} milliseconds")
        self._query = writer.start()

    @property
    def is_active(self) -> bool:
        """Whether the query runs."""
        return self._query.isActive

    def error(self) -> Exception | None:
        """Return the error that ended the query."""
        return self._query.exception()

    def stop(self) -> None:
        """Stop the query, also in the middle of a call."""
        self._query.stop()


class ThreadTicker:
    """Calls `tick` in a thread of this process."""

    def __init__(self, tick: Callable[[], None], *, interval_ms: int) -> None:
        """Start a thread that calls `tick` every `interval_ms` milliseconds."""
        self._tick, self._interval_seconds = tick, interval_ms / 1000
        self._stopping, self._error = threading.Event(), list[Exception]()
        self._thread = threading.Thread(target=self._run, name="cleaner-ticker", daemon=True)
        self._thread.start()

    @property
    def is_active(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def error(self) -> Exception | None:
        """Return the error that `tick` raised, which ended the thread."""
        return self._error[0] if self._error else None

    def stop(self) -> None:
        """End after the call in hand."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                began = time.monotonic()
                self._tick()
                self._stopping.wait(max(0.0, self._interval_seconds - (time.monotonic() - began)))
        except Exception as error:  # noqa: BLE001  the service reads it and starts another one
            self._error.append(error)


def with_pool(spark: SparkSession, pool: str) -> None:
    """Let the jobs that this thread starts, and the queries that it starts, run in a scheduler pool."""
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", pool)
