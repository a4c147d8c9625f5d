"""Many appenders of one topic in one application: every offset once (compare-and-set, ADR 0002)."""

from __future__ import annotations

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from lastword.compaction.errors import CommitConflict
from lastword.storage.log.topic_log import TopicLog
from tests.other_processes import in_another_process
from tests.pictures import rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from lastword import LogDir, SparkTopic


def _storm(
    spark: SparkSession, logs: LogDir[SparkTopic], folder: Path, appends: int, opened: Callable[[str], SparkTopic] | None = None
) -> None:
    """Two streams and batch appends side by side; each record says who wrote it."""
    topic = logs.create_topic("fruit", partitions=2, config={"cleanup.policy": "compact", "segment.bytes": "16KiB"})
    opened = opened or logs.topic
    folder.mkdir()
    for number in range(appends):
        path = folder / f"{number:04}.json"
        path.write_text(json.dumps({"key": "stream", "value": str(number)}) + "\n")
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
    queries = []
    for name in ("one", "two"):
        source = spark.readStream.schema("key string, value string").option("maxFilesPerTrigger", 1).json(str(folder))
        stream = source.withColumn("key", F.concat("key", F.lit(f"-{name}")))
        queries.append(opened("fruit").append_stream(stream, name=name, trigger={"availableNow": True}))

    def batch(number: int) -> None:
        opened("fruit").append(rows(f"batch={number} batch{number % 7}={number}"))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(batch, range(appends)))
    for query in queries:
        query.awaitTermination()
        assert query.exception() is None
    description = topic.describe()
    assert description.record_count == 4 * appends
    assert description.table_version == 3 * appends
    for partition in description.partitions:
        assert partition.record_count == partition.log_end_offset
    for name in ("one", "two"):
        mine = (
            topic.records().where(F.col("key").cast("string") == f"stream-{name}").orderBy("offset").select(F.col("value").cast("string"))
        )
        assert [int(row[0]) for row in mine.collect()] == list(range(appends)), "each stream's records in its order"


def test_two_streams_and_batch_appends_on_one_topic_give_every_offset_once(
    spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path
) -> None:
    """The short version."""
    _storm(spark, logs, tmp_path / "input", 8)


def test_without_the_turn_of_the_process_compare_and_set_alone_keeps_offsets_apart(
    spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path
) -> None:
    """As on an object store, where the appenders are different processes: conflicts happen, and are planned again."""
    conflicts = []

    class Counted(TopicLog):
        def commit(self, *arguments: Any, **settings: Any) -> int:
            try:
                return super().commit(*arguments, **settings)
            except CommitConflict:
                conflicts.append(threading.current_thread().name)
                raise

    _storm(spark, logs, tmp_path / "input", 6, lambda name: in_another_process(logs, name, kind=Counted))
    assert conflicts, "the appenders met"


@pytest.mark.torture
@pytest.mark.timeout(1_800)
def test_two_hundred_commits_at_once(spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path) -> None:
    """The long version: 3 × 67 commits."""
    _storm(spark, logs, tmp_path / "input", int(os.environ.get("LASTWORD_APPENDS", "67")))
