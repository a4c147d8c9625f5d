"""Where cleaning tasks run: in threads of this process, or in tasks of a Spark cluster; one decision, by bytes.

Little work is done in this process: it needs no Spark job. Work of many bytes goes to the executors, if the session has any, a task a
row of a DataFrame under `mapInArrow`; each returns what it wrote. Throttled work stays here, one task after the other, because it waits
most of the time.
"""

from __future__ import annotations

import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa

from lastword.compaction.planning.throttle import Unlimited
from lastword.storage.cleaning.task import Cleaned, CleanTask, Progress, clean_partition

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

#: From so many bytes of segments on, a round is spread over a cluster.
_SPREAD_BYTES: Final = 256 * 2**20


class Round(Progress, Protocol):
    """What a round says of its tasks."""

    @property
    def is_paced(self) -> bool:
        """Whether bytes a second are limited."""


def run_tasks(tasks: Sequence[CleanTask], round_: Round, *, spark: SparkSession | None, parallelism: int | None) -> list[Cleaned]:
    """Run tasks, and return what each did, in their order. What the first task to fail raises is raised when all have ended."""
    size = sum(segment.size_bytes for task in tasks for segment in task.segments)
    if spark is not None and not round_.is_paced and size >= _SPREAD_BYTES and len(tasks) > 1 and _has_executors(spark):
        return _on_cluster(tasks, spark, parallelism)
    workers = 1 if round_.is_paced else min(len(tasks), parallelism or os.cpu_count() or 1)
    if workers <= 1:
        return [clean_partition(task, round_) for task in tasks]
    with ThreadPoolExecutor(workers, "cleaning") as threads:
        return list(threads.map(lambda task: clean_partition(task, round_), tasks))


def _has_executors(spark: SparkSession) -> bool:
    return not (spark.sparkContext.master or "local").startswith("local")


def _on_cluster(tasks: Sequence[CleanTask], spark: SparkSession, parallelism: int | None) -> list[Cleaned]:
    """Run a task a row, the largest first; results are metadata alone."""

    def clean(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for text in batch.column("task").to_pylist():
                done = clean_partition(pickle.loads(text), Unlimited())  # noqa: S301  our own, from the driver
                yield pa.record_batch([pa.array([pickle.dumps(done)], pa.binary())], names=["done"])

    order = sorted(tasks, key=lambda task: -sum(one.size_bytes for one in task.segments))
    rows = spark.createDataFrame([(pickle.dumps(task),) for task in order], "task binary")
    slots = min(len(order), parallelism or spark.sparkContext.defaultParallelism)
    found = rows.repartition(slots).mapInArrow(clean, "done binary").collect()
    done = {one.partition: one for one in (pickle.loads(bytes(row["done"])) for row in found)}  # noqa: S301  as above
    return [done[task.partition] for task in tasks]
