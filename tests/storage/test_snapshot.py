"""The log from its metadata alone: what the Delta log says is what Spark finds in the files."""

from __future__ import annotations

import dataclasses
import json
import random
import string
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse
from urllib.request import url2pathname

import numpy as np
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import functions as F

from compaction.segments import NO_TIMESTAMP
from storage.snapshot import CommitMetadata, Files, LogSnapshot, commits_since, find_token, newest_metadata
from tests.pictures import log, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from compaction.segments import Segment
    from lastword import LogDir, Topic

_COMPACT = {"cleanup.policy": "compact"}
_ROWS = pa.table({"number": [1]})


# --- segments -----------------------------------------------------------------------------------------------------------------------


def test_a_segment_begins_with_the_first_record_that_has_a_timestamp() -> None:
    """The first of its files may hold EMPTY rows alone; a segment in which all do has no timestamp."""
    none = np.iinfo(np.int64).min
    zeros = np.zeros(5, dtype=np.int64)
    fields = dict.fromkeys((one.name for one in dataclasses.fields(Files)), zeros)
    fields["segment"], fields["slice"] = np.array([0, 0, 0, 30, 30]), np.array([0, 10, 20, 30, 40])
    fields["min_timestamp_ms"] = fields["max_timestamp_ms"] = np.array([none, 7, 5, none, none])
    files = Files(**{**fields, "path": np.array([""] * 5, dtype=object)})
    found = LogSnapshot(version=1, append_txn=1, maintenance_txn=1, queries={}, files=files).segments()
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
        topic.append(spark.createDataFrame(drawn, "key string, value binary, partition int, timestamp bigint"), now_ms=10**12 + step)
        topic.roll(step % 4)
        versions.append(topic.log.snapshot().version)
    snapshot = topic.log.snapshot()
    segments = snapshot.segments()
    assert len(segments) > 8
    assert any(len(one.slices) > 1 for one in segments)
    assert _found_by_spark(spark, topic, snapshot.version) == _said_by_metadata(segments)
    before = topic.log.snapshot_at(versions[2])
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
    assert (snapshot.version, snapshot.append_txn, snapshot.maintenance_txn, dict(snapshot.queries)) == (0, -1, -1, {})
    assert (snapshot.segments(), snapshot.last_segments(), snapshot.partitions()) == ([], {}, [])
    assert snapshot.log_end_offsets(2) == [0, 0]


def test_an_optimize_and_a_vacuum_by_hand_change_nothing_that_is_said(spark: SparkSession, logs: LogDir) -> None:
    """Other files, other sizes, table versions that are not ours: the same records, and appends go on after them."""
    topic = logs.create_topic("fruit", config=_COMPACT)
    topic.append(rows(spark, "grape=1 lime=1"))
    topic.append(rows(spark, "grape=2"))
    before = topic.log.snapshot()
    table = DeltaTable(topic.log.paths.log)
    table.optimize.z_order(["offset"])
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    after = topic.log.snapshot()
    assert after.version > before.version
    assert (after.append_txn, dict(after.queries)) == (before.append_txn, dict(before.queries))
    (old,), (new,) = before.segments(), after.segments()
    assert [getattr(old, name) for name in _SAID] == [getattr(new, name) for name in _SAID]
    assert topic.append(rows(spark, "kiwi=1")).ranges[0].first_offset == 3
    assert log(topic) == ["0 grape=1", "1 lime=1", "2 grape=2", "3 kiwi=1"]


_SAID = ("label", "slices", "record_count", "first_offset", "last_offset", "min_timestamp_ms", "max_timestamp_ms", "appended_at_ms")


# --- whose commit is it -------------------------------------------------------------------------------------------------------------

_SCALARS = st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False)
_RECEIPTS = st.lists(st.dictionaries(st.text(), _SCALARS | st.lists(_SCALARS, max_size=3), max_size=4), max_size=3)
_METADATA = st.builds(
    CommitMetadata,
    token=st.text(),
    kind=st.text(),
    queries=st.dictionaries(st.text(), st.integers(min_value=0), max_size=4),
    receipts=_RECEIPTS.map(tuple),
)


@given(_METADATA)
def test_commit_metadata_comes_back_from_its_json(metadata: CommitMetadata) -> None:
    """Whatever the token, the queries and the receipts are; one line of JSON."""
    text = metadata.to_json()
    assert CommitMetadata.from_json(text) == metadata
    assert "\n" not in text


_JSON = st.recursive(_SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5)


@given(st.none() | st.text() | _JSON.map(json.dumps))
def test_a_commit_that_is_not_ours_has_no_metadata_of_ours(text: str | None) -> None:
    """No text, no JSON, JSON of somebody else."""
    assert CommitMetadata.from_json(text) is None


def _commit(path: Path, metadata: CommitMetadata | None = None, text: str | None = None) -> None:
    """Append to a throwaway table as one of ours does, or as somebody else."""
    written = metadata.to_json() if metadata else text
    properties = CommitProperties(custom_metadata={"userMetadata": written} if written is not None else {})
    write_deltalake(path, _ROWS, mode="append", commit_properties=properties)


def test_the_newest_metadata_lies_below_any_number_of_foreign_commits(tmp_path: Path) -> None:
    """None in a table of others; then ours under 0, 1 and 25 of theirs; the newest of ours."""
    for text in (None, "", "not JSON", '{"user": "somebody"}'):
        _commit(tmp_path, text=text)
    table = DeltaTable(tmp_path)
    assert newest_metadata(table) is None
    for token in ("a", "b"):
        _commit(tmp_path, CommitMetadata(token=token, kind="append", queries={"q": ord(token)}))
    for foreign in (0, 1, 24):
        for _ in range(foreign):
            _commit(tmp_path)
        table.update_incremental()
        newest = newest_metadata(table)
        assert newest is not None
        assert (newest.token, dict(newest.queries)) == ("b", {"q": ord("b")})
    assert table.version() == 30


def test_the_newest_metadata_is_that_of_the_loaded_version(tmp_path: Path) -> None:
    """A snapshot of an old version does not see what came after it."""
    for token in ("a", "b", "c"):
        _commit(tmp_path, CommitMetadata(token=token, kind="append"))
    for version, token in enumerate(("a", "b", "c")):
        newest = newest_metadata(DeltaTable(tmp_path, version=version))
        assert newest is not None
        assert newest.token == token


def test_a_token_is_found_in_the_commits_after_a_version_and_nowhere_else(tmp_path: Path) -> None:
    """Versions 0 to 4 carry a, nothing, b, c, nothing."""
    for token in ("a", None, "b", "c", None):
        _commit(tmp_path, CommitMetadata(token=token, kind="append") if token else None)
    table = DeltaTable(tmp_path)
    assert {token: find_token(table, token, 0) for token in "abcd"} == {"a": None, "b": 2, "c": 3, "d": None}
    assert [find_token(table, "b", since) for since in range(5)] == [2, 2, None, None, None]
    assert [find_token(table, "c", since) for since in range(6)] == [3, 3, 3, None, None, None]
    earlier = DeltaTable(tmp_path, version=2)
    assert {token: find_token(earlier, token, 0) for token in "abc"} == {"a": None, "b": 2, "c": None}, "and what came after it is not"


@pytest.mark.parametrize(("gone", "newer"), [(0, 0), (0, 3), (2, 0), (2, 3), (1, 3)])
def test_commits_have_their_versions_whatever_came_since_and_whatever_is_gone(tmp_path: Path, gone: int, newer: int) -> None:
    """delta-rs numbers what came after the loaded version as if it had not come; the oldest commits leave the Delta log in the end.

    ```
     version     0 1 2 3 4 5   6 7 8
     token       a b c d e f   g h i
                 gone          newer
    ```
    """
    tokens = "abcdefghi"
    for token in tokens[:6]:
        _commit(tmp_path, CommitMetadata(token=token, kind="append"))
    table = DeltaTable(tmp_path)
    table.create_checkpoint()
    for version in range(gone):
        (tmp_path / "_delta_log" / f"{version:020}.json").unlink()
    for token in tokens[6 : 6 + newer]:
        _commit(tmp_path, CommitMetadata(token=token, kind="append"))
    for since in range(-1, 6):
        found = [(one.version, one.metadata.token if one.metadata else None) for one in commits_since(table, since)]
        assert found == [(version, tokens[version]) for version in range(5, max(since, gone - 1), -1)]
