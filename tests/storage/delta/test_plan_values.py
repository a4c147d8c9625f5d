"""What a plan carries and what is generated from it: the code of one append is that of the next, so that the JVM has it warm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lastword import LogDir
from lastword.storage.append import append
from tests.pictures import T0

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def _compiled(spark: SparkSession) -> int:
    """Return how many classes Spark has generated and compiled so far."""
    metrics = spark.sparkContext._jvm.org.apache.spark.metrics.source.CodegenMetrics  # type: ignore[union-attr]  # noqa: SLF001
    return int(metrics.METRIC_COMPILATION_TIME().getCount())


@pytest.mark.parametrize("counted", [False, True])
def test_an_append_runs_the_classes_of_the_one_before(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, counted: bool
) -> None:
    """Log ends, the time and what a record takes are others in each append; none of them is written into the generated code."""
    monkeypatch.setattr(append, "SMALL_ROWS", 0 if counted else 20_000)
    monkeypatch.setattr(append, "_LEAST_ROOM", 1 if counted else float("inf"))
    topic = LogDir(spark, str(tmp_path)).create_topic("warm", partitions=2, config={"cleanup.policy": "compact"})
    compiled = []
    for number in range(5):
        rows = [(f"k{at}", "v" * number) for at in range(7 * number + 1)]
        frame = spark.createDataFrame(rows, "key string, value string").coalesce(1)
        before = _compiled(spark)
        topic.append(frame, now_ms=T0 + number)
        compiled.append(_compiled(spark) - before)
    assert compiled[-2:] == [0, 0], compiled
