"""What a plan carries and what is generated from it: the code of one append is that of the next, so that the JVM has it warm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lastword import LogDir
from tests.clocks import at
from tests.pictures import T0

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def _compiled(spark: SparkSession) -> int:
    """Return how many classes Spark has generated and compiled so far."""
    metrics = spark.sparkContext._jvm.org.apache.spark.metrics.source.CodegenMetrics  # type: ignore[union-attr]  # noqa: SLF001
    return int(metrics.METRIC_COMPILATION_TIME().getCount())


def test_an_append_runs_the_classes_of_the_one_before(spark: SparkSession, tmp_path: Path) -> None:
    """No number of an append is written into the generated code."""
    topic = LogDir(spark, str(tmp_path)).create_topic("warm", partitions=2, config={"cleanup.policy": "compact"})
    compiled = []
    for number in range(5):
        rows = [(f"k{at}", "v" * number) for at in range(7 * number + 1)]
        frame = spark.createDataFrame(rows, "key string, value string").coalesce(1)
        before = _compiled(spark)
        at(T0 + number, topic).append(frame)
        compiled.append(_compiled(spark) - before)
    assert compiled[-2:] == [0, 0], compiled
