"""A session of our own: what is written to a table and how a value is read do not depend on the settings of the caller's session.

```
 caller's session    ANSI off, time zone Apia, deletion vectors by default, 25 records a file, …
 ours                Spark's and Delta's defaults, UTC; what says where things are and how fast goes along
```
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from pyspark.errors import AnalysisException

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The settings that decide what is written and read; all others (credentials, `spark.hadoop.*`) stay as they are.
_DECIDING: Final = ("spark.sql.", "spark.databricks.", "spark.delta.")
#: Among them those that say where things are, and those that decide how fast a query is and not what it returns.
_KEPT: Final = (
    "spark.sql.adaptive.",
    "spark.sql.artifact.",
    "spark.sql.autoBroadcastJoinThreshold",
    "spark.sql.catalog.",
    "spark.sql.catalogImplementation",
    "spark.sql.codegen.cache.maxEntries",
    "spark.sql.extensions",
    "spark.sql.files.maxPartitionBytes",
    "spark.sql.files.openCostInBytes",
    "spark.sql.hive.",
    "spark.sql.shuffle.partitions",
    "spark.sql.sources.parallelPartitionDiscovery.",
    "spark.sql.streaming.",
    "spark.sql.ui.",
    "spark.sql.warehouse.dir",
    "spark.databricks.delta.snapshotPartitions",
    "spark.delta.logStore.",
)
_FIXED: Final = {"spark.sql.session.timeZone": "UTC", "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}


def own_session(spark: SparkSession) -> SparkSession:
    """Return a new session of the same application that has the caller's files, catalogs and jars, and our settings (`settle`)."""
    own = spark.newSession()
    for key, value in spark.conf.getAll.items():
        if _stays(key):
            _put(own, key, value)
    settle(own)
    return own


def settle(own: SparkSession) -> None:
    """Put the settings of a session that nobody else uses, such as a streaming query's, to what lastword's tables are written with."""
    for key in own.conf.getAll:
        if key not in _FIXED and not _stays(key):
            _put(own, key, None)
    for key, value in _FIXED.items():
        own.conf.set(key, value)


def _stays(key: str) -> bool:
    return not key.startswith(_DECIDING) or key.startswith(_KEPT)


def _put(own: SparkSession, key: str, value: str | None) -> None:
    """Set or unset a setting; those of the whole application (static ones) are the same in every session and cannot be changed."""
    with suppress(AnalysisException):
        if value is None:
            own.conf.unset(key)
        else:
            own.conf.set(key, value)
