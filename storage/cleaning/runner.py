"""Where cleaning tasks run: in threads of this process, or in tasks of a Spark cluster; one decision, by bytes.

Little work is done in this process: it needs no Spark job. Work of many bytes goes to the executors, if the session has any, a task a
row of a DataFrame under `mapInArrow`; each returns what it wrote. Throttled work stays here, one task after the other, because it waits
most of the time.
"""

from __future__ import annotations

import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import pyarrow as pa

from lastword.compaction.errors import LastwordError
from lastword.compaction.planning.throttle import Unlimited

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

    from lastword.compaction.planning.throttle import Pace
    from lastword.storage.cleaning.slices import Progress

T_co = TypeVar("T_co", covariant=True)
#: From so many bytes on, the tasks of a round are spread over a cluster.
_SPREAD_BYTES: Final = 256 * 2**20


class Task(Protocol[T_co]):
    """What a round does at a time: a small picklable value that runs anywhere; what it returns is metadata."""

    @property
    def size_bytes(self) -> int:
        """How many bytes of files it looks at."""

    def run(self, progress: Progress) -> T_co:
        """Do it."""


def run_tasks(tasks: Sequence[Task[T_co]], pace: Pace, *, spark: SparkSession | None, parallelism: int | None) -> list[T_co]:
    """Run tasks, and return what each did, in their order. What the first task to fail raises is raised when all have ended."""
    size = sum(task.size_bytes for task in tasks)
    if spark is not None and not pace.is_limited and size >= _SPREAD_BYTES and len(tasks) > 1 and _has_executors(spark):
        return _on_cluster(tasks, spark, parallelism)
    workers = 1 if pace.is_limited else min(len(tasks), parallelism or os.cpu_count() or 1)
    if workers <= 1:
        return [task.run(pace) for task in tasks]
    with ThreadPoolExecutor(workers, "cleaning") as threads:
        return list(threads.map(lambda task: task.run(pace), tasks))


def _has_executors(spark: SparkSession) -> bool:
    return not (spark.sparkContext.master or "local").startswith("local")


def _on_cluster(tasks: Sequence[Task[T_co]], spark: SparkSession, parallelism: int | None) -> list[T_co]:
    """Run a task a row, the largest first; results are metadata alone."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number, text in zip(batch.column("number").to_pylist(), batch.column("task").to_pylist(), strict=True):
                try:
                    done = pickle.loads(text).run(Unlimited())  # noqa: S301  our own, from the driver
                except LastwordError as error:  # what is wrong with a file must not become a failed job of Spark
                    done = error
                yield pa.record_batch([pa.array([number]), pa.array([pickle.dumps(done)], pa.binary())], names=["number", "done"])

    order = sorted(enumerate(tasks), key=lambda pair: -pair[1].size_bytes)
    rows = spark.createDataFrame([(number, pickle.dumps(task)) for number, task in order], "number bigint, task binary")
    slots = min(len(order), parallelism or spark.sparkContext.defaultParallelism)
    found = rows.repartition(slots).mapInArrow(run, "number bigint, done binary").collect()
    done = {row["number"]: pickle.loads(bytes(row["done"])) for row in found}  # noqa: S301  as above
    for one in done.values():
        if isinstance(one, LastwordError):
            raise one
    return [done[number] for number in range(len(tasks))]
