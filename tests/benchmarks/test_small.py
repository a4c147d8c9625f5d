"""Each benchmark runs in a small form: no figure counts, only that it ends, and that what it asserts of its counts holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from benchmarks import measure
from benchmarks.__main__ import ALL
from tests.jvms import SPARK_ARCHIVE, jvm_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Those that need no Spark session; what they start has one of its own, or is a broker.
_ALONE: Final = {"without_spark", "kafka", "small", "planning", "metadata", "memory", "scale", "cluster", "kept_tables"}
_WITHOUT_JVM: Final = _ALONE - {"kafka", "cluster"}


@pytest.mark.parametrize("name", sorted(ALL.keys() - _ALONE))
def test_a_benchmark_on_spark_runs_in_its_small_form(spark: SparkSession, name: str) -> None:
    """It takes the session of the tests, whatever settings it asks for."""
    ALL[name](measure.SMALL)
    assert "| " in measure.taken()


@pytest.mark.jvm
@pytest.mark.kafka
def test_the_benchmark_against_kafka_runs_in_its_small_form() -> None:
    """Kafka cleans closed segments of 16 MiB alone, so that its records are a fifth and not fewer."""
    ALL["kafka"](measure.SMALL)
    assert "| " in measure.taken()


@pytest.mark.jvm
@pytest.mark.timeout(600)
def test_the_benchmark_on_a_cluster_runs_in_its_small_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """A master, two workers with an executor each, whose JVMs take their options from the environment alone, and a driver."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", " ".join(jvm_options(SPARK_ARCHIVE)))
    ALL["cluster"](measure.SMALL)
    assert "| " in measure.taken()


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(_WITHOUT_JVM))
def test_a_benchmark_without_a_jvm_runs_in_its_small_form(name: str) -> None:
    """Those that start processes start small ones."""
    ALL[name](measure.SMALL)
    assert "| " in measure.taken()
