"""One Spark session for the whole run, a log.dir for each test, and the invariants checked after each of them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from lastword import LogDir, spark_session

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

#: The bad rows that tests make on purpose would fill the output with Spark's stack traces.
_SETTINGS = {
    "spark.log.level": os.environ.get("SPARK_LOG_LEVEL", "OFF"),
    "spark.driver.memory": "3g",
    "spark.sql.streaming.pollingDelay": "10ms",
    # VACUUM lists the files in as many tasks: 10,000 are 20 s for one test.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that asks for the Spark session with `jvm`; those that start a JVM by other means carry the mark themselves."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.jvm)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Return the one session of the run."""
    session = spark_session("lastword-tests", master="local[2]", settings=_SETTINGS)
    yield session
    session.stop()


@pytest.fixture
def logs(spark: SparkSession, tmp_path: Path) -> Iterator[LogDir]:
    """Return an empty log.dir; after the test every topic left in it must pass `verify`."""
    log_dir = LogDir(spark, str(tmp_path / "logs"))
    yield log_dir
    for name in log_dir.topics():
        report = log_dir.topic(name).verify()
        assert report.ok, "\n".join(report.problems)
