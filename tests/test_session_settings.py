"""No setting of a caller's session changes what is written to a log or read from it."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from delta.tables import DeltaTable
from pyspark.sql import functions as F

from lastword import InvalidConfiguration, LogDir
from tests.clocks import at
from tests.pictures import T0, by_arrow

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from lastword import SparkTopic

#: Settings that change how Spark and Delta write, what a new table is like, and how values are cast and shown.
_HOSTILE: Final[Mapping[str, Mapping[str, str]]] = {
    "no statistics": {
        "spark.databricks.delta.stats.collect": "false",
        "spark.databricks.delta.properties.defaults.dataSkippingNumIndexedCols": "0",
    },
    "other files": {
        "spark.sql.files.maxRecordsPerFile": "25",
        "spark.databricks.delta.optimizeWrite.enabled": "true",
        "spark.databricks.delta.autoCompact.enabled": "true",
        "spark.sql.shuffle.partitions": "7",
        "spark.sql.adaptive.coalescePartitions.enabled": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "3",
    },
    "other encodings": {
        "spark.sql.parquet.outputTimestampType": "INT96",
        "spark.sql.parquet.compression.codec": "gzip",
        "spark.sql.parquet.writeLegacyFormat": "true",
        "spark.sql.session.timeZone": "Pacific/Apia",
        "spark.sql.execution.arrow.useLargeVarTypes": "true",
    },
    "other tables": {
        "spark.databricks.delta.properties.defaults.columnMapping.mode": "name",
        "spark.databricks.delta.properties.defaults.enableDeletionVectors": "true",
        "spark.databricks.delta.properties.defaults.enableChangeDataFeed": "true",
    },
    "other SQL": {"spark.sql.caseSensitive": "true", "spark.sql.ansi.enabled": "false", "spark.sql.legacy.timeParserPolicy": "LEGACY"},
}


@contextmanager
def _session(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    before: dict[str, str | None] = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, was in before.items():
            if was is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, was)


def _rows(spark: SparkSession, count: int, value: str) -> DataFrame:
    """Return records in three tasks, in the order of their numbers."""
    numbers = spark.range(0, count, 1, 3)
    return numbers.select(
        F.concat(F.lit("k"), F.col("id") % 40).alias("key"),
        F.concat(F.lit(value), F.col("id")).alias("value"),
        F.timestamp_millis(F.lit(T0) + F.col("id")).alias("timestamp"),
        F.array(F.struct(F.lit("h").alias("key"), F.col("id").cast("string").cast("binary").alias("value"))).alias("headers"),
        (F.col("id") % 2).cast("int").alias("partition"),
    )


def _lived(spark: SparkSession, logs: LogDir[SparkTopic], name: str) -> SparkTopic:
    """Append, clean, append again, all in the session as it is."""
    topic = logs.create_topic(name, partitions=2, config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})
    at(T0, topic).append(_rows(spark, 300, "a"))
    at(T0, topic).append(_rows(spark, 90, "b"))
    at(T0, topic).roll()
    at(T0, topic).clean()
    at(T0, topic).append(_rows(spark, 60, "c"))
    return topic


def _shown(rows: DataFrame) -> list[tuple[Any, ...]]:
    rows = rows.select("partition", "offset", "key", "value", F.unix_millis("timestamp"), F.col("headers").cast("string"))
    return sorted(tuple(bytes(one) if isinstance(one, bytearray) else one for one in row) for row in rows.collect())


@pytest.fixture(scope="module")
def plain(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Return the records and the last words of a topic that lived in a session without such settings."""
    topic = _lived(spark, LogDir(spark, str(tmp_path_factory.mktemp("plain"))), "plain")
    return _shown(topic.records()), _shown(topic.latest())


@pytest.mark.parametrize("settings", _HOSTILE.values(), ids=list(_HOSTILE))
def test_what_is_written_and_read_is_the_same_in_every_session(
    spark: SparkSession,
    logs: LogDir[SparkTopic],
    plain: tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]],
    settings: Mapping[str, str],
) -> None:
    """Offsets, rows, files in ascending order with statistics, and what readers see, with Spark and without."""
    with _session(spark, settings):
        topic = _lived(spark, logs, "hostile")
        records, latest = _shown(topic.records()), _shown(topic.latest())
    assert (records, latest) == plain
    words = by_arrow(topic).latest()
    assert sorted(zip(words["partition"].to_pylist(), words["offset"].to_pylist(), strict=True)) == [row[:2] for row in latest]
    assert topic.log.log_end_offsets() == [225, 225]
    files = topic.log.snapshot().files
    assert (files.record_count > 0).all()
    assert topic.verify().ok


def test_a_file_that_cannot_be_read_is_an_error_whatever_the_session_ignores(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """A cleaning names the file and removes nothing; a reader names the setting, as Spark would leave the rows out without a word."""
    topic = logs.create_topic("damaged", config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})
    at(T0, topic).append(spark.createDataFrame([("a", "1"), ("b", "1")], "key string, value string"))
    at(T0, topic).append(spark.createDataFrame([("a", "2")], "key string, value string"))
    at(T0, topic).roll()
    path = Path(topic.log.paths.log, str(topic.log.snapshot().files.path[0]))
    whole, version = path.read_bytes(), topic.log.snapshot().version
    path.write_bytes(whole[: len(whole) // 2])
    with _session(spark, {"spark.sql.files.ignoreCorruptFiles": "true", "spark.sql.files.ignoreMissingFiles": "true"}):
        assert at(T0, topic).clean(force=True) == []
        [report] = at(T0, topic).explain()
        assert path.name in str(report.uncleanable_reason)
        assert topic.log.snapshot().version == version
        for read in (topic.latest, topic.records):
            with pytest.raises(InvalidConfiguration, match=r"spark.sql.files.ignoreCorruptFiles = true: false: rows of the log"):
                read()
    path.write_bytes(whole)
    [receipt] = at(T0, topic).clean(force=True)
    assert receipt.removed == {"superseded": 1}


def test_after_an_optimize_of_another_writer_all_readers_see_the_same(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """Or an error that says what happened: never two truths."""
    with _session(spark, _HOSTILE["other files"]):
        topic = _lived(spark, logs, "optimized")
        before = _shown(topic.latest())
        DeltaTable.forPath(spark, topic.log.paths.log).optimize().executeCompaction()
        assert _shown(LogDir(spark, logs.location).topic("optimized").latest()) == before
    words = by_arrow(topic).latest()
    assert sorted(zip(words["partition"].to_pylist(), words["offset"].to_pylist(), strict=True)) == [row[:2] for row in before]
