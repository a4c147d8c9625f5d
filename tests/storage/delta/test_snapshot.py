"""The log from its metadata alone: what the Delta log says is what Spark finds in the files."""

from __future__ import annotations

import dataclasses
import random
import string
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse
from urllib.request import url2pathname

import numpy as np
from deltalake import DeltaTable
from pyspark.sql import functions as F

from lastword.compaction.log.segments import NO_TIMESTAMP
from lastword.storage.delta.snapshot import Files, LogSnapshot
from tests.clocks import at
from tests.pictures import log, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lastword import LogDir, Topic
    from lastword.compaction.log.segments import Segment

_COMPACT = {"cleanup.policy": "compact"}


# --- segments -----------------------------------------------------------------------------------------------------------------------


def test_a_segment_begins_with_the_first_record_that_has_a_timestamp() -> None:
    """The first of its files may hold EMPTY rows alone; a segment in which all do has no timestamp."""
    none = np.iinfo(np.int64).min
    zeros = np.zeros(5, dtype=np.int64)
    fields = dict.fromkeys((one.name for one in dataclasses.fields(Files)), zeros)
    fields["segment"], fields["slice"] = np.array([0, 0, 0, 30, 30]), np.array([0, 10, 20, 30, 40])
    fields["min_timestamp_ms"] = fields["max_timestamp_ms"] = np.array([none, 7, 5, none, none])
    files = Files(**{**fields, "path": np.array([""] * 5, dtype=object)})
    found = LogSnapshot(version=1, append_txn=1, maintenance_txn=1, files=files).segments()
    assert [(one.label, one.first_timestamp_ms) for one in found] == [(0, 7), (30, NO_TIMESTAMP)]


def _found_by_spark(spark: SparkSession, topic: Topic, version: int) -> dict[tuple[int, int], tuple[Any, ...]]:
    """Return what every segment holds, from its records and the sizes of its files."""
    table = spark.read.format("delta").option("versionAsOf", version).load(topic.log.paths.log)
    found = (
        table.withColumn("file", F.input_file_name())
        .groupBy("partition", "segment")
        .agg(
            F.count("*"),
            F.min("offset"),
            F.max("offset"),
            F.min(F.unix_millis("timestamp")),
            F.max(F.unix_millis("timestamp")),
            F.sort_array(F.collect_set("slice")),
            F.min_by(F.unix_millis("appended_at"), "offset"),
            F.collect_set("file"),
        )
    )
    return {(row[0], row[1]): (*row[2:7], tuple(row[7]), row[8], sum(map(_size, row[9]))) for row in found.collect()}


def _size(uri: str) -> int:
    return Path(url2pathname(urlparse(uri).path)).stat().st_size


def _said_by_metadata(segments: list[Segment]) -> dict[tuple[int, int], tuple[Any, ...]]:
    """Return the same from the snapshot."""
    return {
        (one.partition, one.label): (
            one.record_count,
            one.first_offset,
            one.last_offset,
            one.min_timestamp_ms,
            one.max_timestamp_ms,
            one.slices,
            one.appended_at_ms,
            one.size_bytes,
        )
        for one in segments
    }


def test_segments_from_metadata_are_what_spark_finds_in_the_files(spark: SparkSession, logs: LogDir) -> None:
    """Random appends over five partitions, split over small segments, with rolls between; at the newest version and at one before."""
    chance = random.Random(3)
    topic = logs.create_topic("fruit", partitions=5, config={**_COMPACT, "segment.bytes": "16KiB"})
    versions = [0]
    for step in range(5):
        drawn = [
            (chance.choice(string.ascii_lowercase), chance.randbytes(chance.randrange(300)), chance.randrange(4), chance.randrange(10**9))
            for _ in range((9, 400, 30, 1, 70)[step])
        ]
        at(10**12 + step, topic).append(spark.createDataFrame(drawn, "key string, value binary, partition int, timestamp bigint"))
        topic.roll(step % 4)
        versions.append(topic.log.snapshot().version)
    snapshot = topic.log.snapshot()
    segments = snapshot.segments()
    assert len(segments) > 8
    assert any(len(one.slices) > 1 for one in segments)
    assert _found_by_spark(spark, topic, snapshot.version) == _said_by_metadata(segments)
    before = topic.log.at(versions[2]).snapshot
    assert _found_by_spark(spark, topic, versions[2]) == _said_by_metadata(before.segments())

    assert snapshot.partitions() == [0, 1, 2, 3]
    ends = snapshot.log_end_offsets(5)
    for partition in range(5):
        mine = snapshot.segments(partition)
        assert mine == [one for one in segments if one.partition == partition]
        assert mine == sorted(mine, key=lambda one: one.label)
        assert ends[partition] == (mine[-1].last_offset + 1 if mine else 0)
        assert snapshot.last_segments().get(partition) == (mine[-1] if mine else None)


def test_an_empty_log_has_no_segments_and_ends_at_0(logs: LogDir) -> None:
    """Version 0: created, nothing appended."""
    snapshot = logs.create_topic("fruit", partitions=2).log.snapshot()
    assert (snapshot.version, snapshot.append_txn, snapshot.maintenance_txn) == (0, -1, -1)
    assert (snapshot.segments(), snapshot.last_segments(), snapshot.partitions()) == ([], {}, [])
    assert snapshot.log_end_offsets(2) == [0, 0]


def test_an_optimize_and_a_vacuum_by_hand_change_nothing_that_is_said(spark: SparkSession, logs: LogDir) -> None:
    """Other files, other sizes, table versions that are not ours: the same records, and appends go on after them."""
    topic = logs.create_topic("fruit", config=_COMPACT)
    topic.append(rows("grape=1 lime=1"))
    topic.append(rows("grape=2"))
    before = topic.log.snapshot()
    table = DeltaTable(topic.log.paths.log)
    table.optimize.z_order(["offset"])
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    after = topic.log.snapshot()
    assert after.version > before.version
    assert after.append_txn == before.append_txn
    (old,), (new,) = before.segments(), after.segments()
    assert [getattr(old, name) for name in _SAID] == [getattr(new, name) for name in _SAID]
    assert topic.append(rows("kiwi=1")).ranges[0].first_offset == 3
    assert log(topic) == ["0 grape=1", "1 lime=1", "2 grape=2", "3 kiwi=1"]


_SAID = ("label", "slices", "record_count", "first_offset", "last_offset", "min_timestamp_ms", "max_timestamp_ms", "appended_at_ms")
