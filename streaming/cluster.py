"""Runs tasks on the executors of a Spark session: a task a row of a DataFrame under `mapInArrow`; each returns what it wrote."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from lastword.compaction.errors import LastwordError
from lastword.compaction.planning.rate_limiter import spend_freely

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

    from lastword.storage.tasks import Task

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SparkCluster:
    """The executors of a session."""

    spark: SparkSession

    @property
    def has_executors(self) -> bool:
        """Whether there are any besides this process."""
        return not (self.spark.sparkContext.master or "local").startswith("local")

    def run(self, tasks: Sequence[Task[T]], parallelism: int | None) -> list[T]:
        """Run a task a row, the largest first, and return what each did, in their order; results are metadata alone."""

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number, text in zip(batch.column("number").to_pylist(), batch.column("task").to_pylist(), strict=True):
                    try:
                        done = pickle.loads(text).run(spend_freely)  # noqa: S301  our own, from the driver
                    except LastwordError as error:  # what is wrong with a file must not become a failed job of Spark
                        done = error
                    yield pa.record_batch([pa.array([number]), pa.array([pickle.dumps(done)], pa.binary())], names=["number", "done"])

        order = sorted(enumerate(tasks), key=lambda pair: -pair[1].size_bytes)
        rows = self.spark.createDataFrame([(number, pickle.dumps(task)) for number, task in order], "number bigint, task binary")
        slots = min(len(order), parallelism or self.spark.sparkContext.defaultParallelism)
        results = rows.repartition(slots).mapInArrow(run, "number bigint, done binary").collect()
        done = {row["number"]: pickle.loads(bytes(row["done"])) for row in results}  # noqa: S301  as above
        for result in done.values():
            if isinstance(result, LastwordError):
                raise result
        return [done[number] for number in range(len(tasks))]


def cluster_of(spark: SparkSession | None) -> SparkCluster | None:
    """Return the executors of a session; None without one."""
    return None if spark is None else SparkCluster(spark)
