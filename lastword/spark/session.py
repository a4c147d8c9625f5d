"""A Spark session that lastword runs well on: Delta, the resolved jars, and the settings that make small commits fast.

Bring your own session if you have one: it needs the Delta extension and catalog, the jars of `lastword.spark.jars`, and the settings of
`SETTINGS` where they can still be set.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lastword.spark.installation import require_spark
from lastword.spark.package import is_cluster, package

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import SparkSession

#: Settings that lastword relies on, and why.
SETTINGS: Final[dict[str, str]] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # A snapshot of the log is small: 50 tasks (the default) to read it make every small append slow.
    "spark.databricks.delta.snapshotPartitions": "1",
    # INT96 timestamps carry no Parquet statistics for other engines.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",
    # A second start of a query would otherwise silently stop the first.
    "spark.sql.streaming.stopActiveRunOnRestart": "false",
    # Each table that is broadcast takes at least a page, and a page of a 3 GiB heap on 2 cores is 64 MiB.
    "spark.buffer.pageSize": "8m",
    # The memory of a cleaning is to be bounded by its map, not by what survives: sorts go to disk in runs of this size, each of which takes
    # one buffer when they are merged (not two), and a task holds no more than this much of a file that it writes, or reads later.
    "spark.shuffle.spill.maxSizeInBytesForSpillThreshold": "32m",
    "spark.unsafe.sorter.spill.read.ahead.enabled": "false",
    "spark.hadoop.parquet.block.size": str(16 * 2**20),
    # zstd's first level makes files as small as its third (Spark's own), in four fifths of the time that an append takes.
    "spark.hadoop.parquet.compression.codec.zstd.level": "1",
    # Parquet counts, for each page, what its strings would take; no reader of ours asks, and an append pays a thirtieth of its time for it.
    "spark.hadoop.parquet.size.statistics.enabled": "false",
    # No offset comes twice in a file, hardly a value does, and what does zstd finds: a dictionary of them is tried and thrown away, for a
    # twentieth of an append.
    "spark.hadoop.parquet.enable.dictionary#offset": "false",
    "spark.hadoop.parquet.enable.dictionary#value": "false",
    # Spark keeps 100 generated classes; planning a commit and a round of cleaning alone take more, so that each would be compiled, and
    # warmed up by the JVM, again and again.
    "spark.sql.codegen.cache.maxEntries": "1000",
    # What the UI, event logs and messages of Spark do not show: names of settings and options that hold secrets.
    "spark.redaction.regex": (
        "(?i)secret|passw|passphrase|token|jaas|credential|(access|account|api|private|shared)[._-]?key|user[._-]info|connection[._-]?string"
    ),
    # The cleaner and the appenders share one application: neither may hold up the other.
    "spark.scheduler.mode": "FAIR",
    # Hadoop takes this path as it is written: a space stays a space.
    "spark.scheduler.allocation.file": f"file://{Path(__file__).resolve().with_name('fairscheduler.xml')}",
}
S3_SETTINGS: Final = "spark.hadoop.fs.s3a."
_CLASS_PATH: Final = "spark.driver.extraClassPath"
#: For each group of jars of jars.lock, a class that a JVM can load only if it has the group.
_CLASSES: Final = {"spark": "io.delta.sql.DeltaSparkSessionExtension", "s3": "org.apache.hadoop.fs.s3a.S3AFileSystem"}
_LOCAL: Final[dict[str, str]] = {
    "spark.sql.shuffle.partitions": "4",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    # What the page would show is kept all the same: a thousand plans (the default) are tens of MiB.
    "spark.sql.ui.retainedExecutions": "10",
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "200",
    "spark.ui.showConsoleProgress": "false",
    # As a URI: the options are split at spaces.
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}",
}


def spark_session(app_name: str = "lastword", master: str | None = None, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Return the running Spark session, or start one: local by default, with Delta, the Kafka source and `SETTINGS`.

    `master` is Spark's (default: $SPARK_MASTER, else `local[*]`); `settings` are added last and win; any `spark.hadoop.fs.s3a.*` among
    them brings the jars of an S3 store. Jars that are missing are downloaded first, with a progress bar. On a cluster the executors get
    lastword's own code (`lastword.spark.package`); their Python is `spark.pyspark.python`, else $PYSPARK_PYTHON, else a Python at the path
    of this one. Raises `UserError` when there is no pyspark, jars cannot be downloaded, or Spark does not start with these settings.
    """
    require_spark("spark_session()")
    from lastword.spark import starting  # noqa: PLC0415  importing it costs a second that metadata commands need not pay
    from lastword.spark.jars import resolve  # noqa: PLC0415  `python -m lastword.spark.jars` must be the first to import it

    running = starting.running_session()
    if running is not None:
        return running
    os.environ["PYSPARK_PYTHON"] = executors_python(settings or {})
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    chosen = master or os.environ.get("SPARK_MASTER") or "local[*]"
    groups = ("spark", "s3") if any(key.startswith(S3_SETTINGS) for key in settings or {}) else ("spark",)
    paths = resolve(groups)
    local = _LOCAL if chosen.startswith("local") else {}
    clustered = is_cluster(chosen)
    jars = _make_jar_setting(paths, settings or {}, clustered=clustered)
    given = {**SETTINGS, **local, **(settings or {}), **jars}
    session = starting.start_session(app_name, chosen, given, [_CLASSES[group] for group in groups], paths)
    if clustered:
        _give_code(session)
    # Spark looks for data sources in Python by a shell command that does not quote the path; one that it finds is not given the code.
    if clustered or " " in os.environ["PYSPARK_PYTHON"]:
        from pyspark_lastword import DefaultSource  # noqa: PLC0415  as above

        session.dataSource.register(DefaultSource)
    return session


def _make_jar_setting(paths: Iterable[Path], settings: Mapping[str, str], *, clustered: bool) -> dict[str, str]:
    """Return the setting by which Spark gets our jars, and those that `settings` name under the same key.

    A local Spark has them on its class path and copies none. It copies `spark.jars` to a temporary folder, where they stay when it is
    killed: 700 MB with those of S3. Executors on a cluster fetch `spark.jars` from the driver. A class path that Spark has from elsewhere
    stays what it is, and a path with a colon cannot be on one.
    """
    key, separator, texts = _CLASS_PATH, os.pathsep, [str(path) for path in paths]
    if clustered or _has_class_path() or any(os.pathsep in text for text in texts):
        key, separator, texts = "spark.jars", ",", [path.as_uri() for path in paths]
    return {key: separator.join([*texts, *filter(None, [settings.get(key)])])}


def _has_class_path() -> bool:
    """Tell whether spark-defaults.conf or $PYSPARK_SUBMIT_ARGS name a class path of the driver."""
    home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (home and f"{home}/conf")
    file = Path(folder or ".", "spark-defaults.conf")
    defaults = file.read_text(encoding="utf-8", errors="replace") if folder and file.is_file() else ""
    given = os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    return _CLASS_PATH in given or "--driver-class-path" in given or re.search(rf"^\s*{_CLASS_PATH}\b", defaults, re.MULTILINE) is not None


def without_query_contexts() -> None:
    """Keep PySpark from writing each error of a query to standard error as JSON, beside the message of whoever catches it.

    These loggers are of a class of PySpark's, which must make them: in one of Python's the error would fail that is to be told.
    """
    from pyspark.logger import PySparkLogger  # noqa: PLC0415  as above

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


def executors_python(settings: Mapping[str, str]) -> str:
    """Return the Python of the executors: PySpark itself heeds `spark.pyspark.python` under spark-submit alone."""
    return settings.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or sys.executable


def _give_code(session: SparkSession) -> None:
    """Give the executors lastword's own code, in a zip that Spark removes with its other files when the session ends."""
    from pyspark import SparkFiles  # noqa: PLC0415  as above

    session.sparkContext.addPyFile(str(package(Path(SparkFiles.getRootDirectory()) / "code")))
