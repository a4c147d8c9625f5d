"""The checkpoint of an append query that is not what it was: put back to an older state, or replayed after the history is gone."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lastword import LogDir
from lastword.compaction.errors import QueryRefused
from lastword.storage.log import upkeep
from lastword.storage.log.limits import UpkeepLimits
from lastword.streaming.append.upstream import Mirror
from tests.pictures import log, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lastword import SparkTopic

_COMPACT = {"cleanup.policy": "compact"}


def _arrive(folder: Path, lines: str) -> None:
    """Put a file there whose rows are `lines`, each `key,value` and more columns."""
    folder.mkdir(exist_ok=True)
    number = len(list(folder.iterdir()))
    path = folder / f"{number}.csv"
    path.write_text(lines.replace(" ", "\n") + "\n")
    os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def _run(
    spark: SparkSession, topic: SparkTopic, folder: Path, schema: str = "key string, value string", mirror: Mirror | None = None
) -> None:
    """Append all that is in the folder in one micro-batch."""
    stream = spark.readStream.schema(schema).csv(str(folder))
    query = topic.append_stream(stream, name="files", trigger={"availableNow": True}, mirror=mirror)
    assert query.awaitTermination(60)


def _put_back(checkpoint: Path, kept: Path) -> None:
    shutil.rmtree(checkpoint)
    shutil.copytree(kept, checkpoint)


def test_a_checkpoint_in_an_older_state_is_refused_before_rows_are_lost(
    spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path
) -> None:
    """Spark would put the third file into micro-batch 1, which the log has: that of the second file."""
    topic, folder, kept = logs.create_topic("fruit", config=_COMPACT), tmp_path / "incoming", tmp_path / "kept"
    checkpoint = Path(topic.log.paths.query("files"))
    _arrive(folder, "grape,1")
    _run(spark, topic, folder)
    shutil.copytree(checkpoint, kept / "older")
    _arrive(folder, "lime,2")
    _run(spark, topic, folder)
    shutil.copytree(checkpoint, kept / "newest")
    _arrive(folder, "kiwi,3")

    _put_back(checkpoint, kept / "older")
    with pytest.raises(QueryRefused, match="the log has its micro-batches up to 1, but its checkpoint knows micro-batch 0 as the last one"):
        _run(spark, topic, folder)
    assert log(topic) == ["0 grape=1", "1 lime=2"]

    _put_back(checkpoint, kept / "newest")
    _run(spark, topic, folder)
    assert log(topic) == ["0 grape=1", "1 lime=2", "2 kiwi=3"]


def _begin_to_write(checkpoint: Path) -> None:
    """Leave what Spark leaves when it is killed, or the disk is full, while it writes micro-batch 0."""
    for folder in ("offsets", "commits"):
        (checkpoint / folder).mkdir(parents=True)
        (checkpoint / folder / ".0.1b9e6a3f.tmp").write_text("v1\n")
        (checkpoint / folder / "..0.1b9e6a3f.tmp.crc").write_bytes(b"crc\0")


def test_a_first_micro_batch_written_in_part_is_written_anew(spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path) -> None:
    """Spark itself starts no query beside such files."""
    topic, folder = logs.create_topic("fruit", config=_COMPACT), tmp_path / "incoming"
    checkpoint = Path(topic.log.paths.query("files"))
    _begin_to_write(checkpoint)
    _arrive(folder, "grape,1")
    _run(spark, topic, folder)
    assert log(topic) == ["0 grape=1"]

    unfinished = checkpoint / "offsets" / ".1.1b9e6a3f.tmp"
    unfinished.write_text("v1\n")
    _arrive(folder, "lime,2")
    _run(spark, topic, folder)
    assert log(topic) == ["0 grape=1", "1 lime=2"]


@pytest.mark.parametrize("scheme", ["file://", ""])
def test_a_sink_of_ones_own_starts_beside_a_first_micro_batch_written_in_part(
    spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path, scheme: str
) -> None:
    """Its checkpoint is the user's, by a path or by a URI."""
    topic, checkpoint, keys = logs.create_topic("fruit", config=_COMPACT), tmp_path / "own", list[bytes]()
    _begin_to_write(checkpoint)
    topic.append(rows("grape=1"))
    query = topic.materialize(
        lambda frame, _position: keys.extend(row.key for row in frame.collect()),
        checkpoint_location=f"{scheme}{checkpoint}",
        trigger={"availableNow": True},
    )
    assert query.awaitTermination(60)
    assert [bytes(key) for key in keys] == [b"grape"]


def test_a_mirror_whose_checkpoint_is_in_an_older_state_goes_on_without_it(
    spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path
) -> None:
    """Refused: its micro-batch would be skipped as a whole. Without a checkpoint it begins anew; what is there is dropped by offset."""
    topic, folder, kept = logs.create_topic("fruit", config=_COMPACT), tmp_path / "incoming", tmp_path / "kept"
    checkpoint = Path(topic.log.paths.query("files"))
    schema, mirror = "key string, value string, partition int, offset bigint", Mirror(source="elsewhere")
    _arrive(folder, "grape,1,0,0")
    _run(spark, topic, folder, schema, mirror)
    shutil.copytree(checkpoint, kept)
    _arrive(folder, "lime,2,0,1")
    _run(spark, topic, folder, schema, mirror)
    _arrive(folder, "kiwi,3,0,2")
    _put_back(checkpoint, kept)
    with pytest.raises(QueryRefused, match="delete the folder: this query keeps the offsets of its source"):
        _run(spark, topic, folder, schema, mirror)
    shutil.rmtree(checkpoint)
    _run(spark, topic, folder, schema, mirror)
    assert log(topic) == ["0 grape=1", "1 lime=2", "2 kiwi=3"]


def test_a_micro_batch_is_recognised_when_the_commits_of_its_time_are_gone_from_the_delta_log(
    spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path
) -> None:
    """Spark does not know that it was done; commits of others came since, and the Delta log was cleaned up thirty days later."""
    topic, folder = logs.create_topic("fruit", config=_COMPACT), tmp_path / "incoming"
    checkpoint = Path(topic.log.paths.query("files"))
    _arrive(folder, "grape,1 lime,2")
    _run(spark, topic, folder)
    (version,) = (one for one, _ in topic.log.commit_times() if one > 0)
    for number in range(3):
        topic.append(rows(f"other={number}"))
    month_ago = time.time() - 30 * 86_400
    delta_log = Path(topic.log.paths.log) / "_delta_log"
    for path in delta_log.iterdir():
        os.utime(path, (month_ago, month_ago))
    upkeep.checkpoint(topic.log, limits=UpkeepLimits(checkpoint_commits=3))
    assert not (delta_log / f"{version:020}.json").exists()

    for path in checkpoint.glob("commits/*0*"):
        path.unlink()
    before = log(topic)
    topic = LogDir(spark, logs.location).topic("fruit")
    _run(spark, topic, folder)
    assert log(topic) == before
    _arrive(folder, "kiwi,3")
    _run(spark, topic, folder)
    assert log(topic) == [*before, "5 kiwi=3"]
