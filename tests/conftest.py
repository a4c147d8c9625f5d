"""One Spark session for the whole run, a log.dir for each test, and the invariants checked after each of them."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lastword import LogDir, spark_session
from tests.golden import Golden
from tests.jvms import set_spark_options
from tests.measuring import measure_spark_workers
from tests.randomness import register_profiles

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from lastword import SparkTopic

#: The bad rows that tests make on purpose would fill the output with Spark's stack traces.
_SETTINGS = {
    "spark.log.level": os.environ.get("SPARK_LOG_LEVEL", "OFF"),
    "spark.driver.memory": "3g",
    "spark.sql.streaming.pollingDelay": "10ms",
    "spark.sql.shuffle.partitions": "2",
    # VACUUM lists the files in as many tasks: 10,000 are 20 s for one test.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
}


register_profiles()

#: The files that take longest: begun last, one of them would keep a process busy when the other has nothing left to do.
_FIRST = (
    "tests/streaming/reading/test_handover.py",
    "tests/benchmarks/test_small.py",
    "tests/docs/test_snippets.py",
    "tests/storage/append/test_transactions.py",
    "tests/lastword/topics/test_purging.py",
    "tests/pyspark_lastword/test_source.py",
    "tests/lastword/test_topics.py",
    "tests/storage/reading/test_arrow_rows.py",
    "tests/test_disk_histories.py",
    "tests/test_several_processes.py",
    "tests/test_cleaning_equality.py",
    "tests/test_cluster.py",
    "tests/test_soak.py",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the flag that accepts what the golden files are compared with."""
    parser.addoption("--rewrite-goldens", action="store_true", help="write the files of tests/goldens instead of comparing with them")


def pytest_configure(config: pytest.Config) -> None:
    """Set what every process that tests start inherits: the options of its JVM, and what it is measured by when this run is."""
    set_spark_options(os.environ)
    if "COVERAGE_PROCESS_CONFIG" in os.environ and not hasattr(config, "workerinput"):
        folder = Path(tempfile.mkdtemp(prefix="measured-spark-"))
        config.add_cleanup(lambda: shutil.rmtree(folder))
        measure_spark_workers(os.environ, folder)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that asks for the Spark session with `jvm`; those that start a JVM by other means carry the mark themselves.

    The longest files come first.
    """
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.jvm)
    items.sort(key=lambda item: next((place for place, name in enumerate(_FIRST) if item.path.as_posix().endswith(name)), len(_FIRST)))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Return the one session of the run."""
    session = spark_session("lastword-tests", master="local[2]", settings=_SETTINGS)
    yield session
    session.stop()


@pytest.fixture(scope="session", autouse=True)
def _flush_nothing() -> Iterator[None]:
    """Let fsync do nothing in this process: no test takes the machine its power; those of power cuts cut the files themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture
def golden(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Golden:
    """Return what compares a text with its golden file."""
    return Golden(tmp_path_factory.getbasetemp(), rewrite=request.config.getoption("--rewrite-goldens"))


@pytest.fixture
def logs(spark: SparkSession, tmp_path: Path) -> Iterator[LogDir[SparkTopic]]:
    """Return an empty log.dir; after the test every topic left in it must pass `verify`."""
    log_dir = LogDir(spark, str(tmp_path / "logs"))
    yield log_dir
    for name in log_dir.topics():
        report = log_dir.topic(name).verify()
        assert report.ok, "\n".join(report.problems)
