"""The front door: what `LogDir` takes, and what its topics return with each engine."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from lastword import ArrowTopic, InvalidRecords, LogDir, SparkTopic, UnknownTopic, UserError
from lastword.compaction.errors import LogDirUnreachable
from tests.pictures import T0, latest, rows
from tests.test_packaging import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

_IMPORTED = "import sys, lastword; lastword.LogDir; print(sorted({'pyspark', 'py4j', 'delta'} & set(sys.modules)))"


@pytest.mark.long
def test_opening_a_log_dir_imports_no_pyspark() -> None:
    """So it cannot start a JVM."""
    done = subprocess.run([sys.executable, "-c", _IMPORTED], cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603

    assert done.stdout.strip() == "[]"


def test_frames_are_those_of_the_engine(spark: SparkSession, tmp_path: Path) -> None:
    """With and without Spark the same topic is opened: what one appends the other reads. A location may be a `Path`."""
    plain = LogDir(tmp_path).create_topic("fruit")
    plain.append(rows("lime=1 kiwi=1"))
    by_spark = LogDir(spark, tmp_path).topic("fruit")
    by_spark.append(spark.createDataFrame([("lime", "2")], "key string, value string"))

    assert (type(plain), type(by_spark)) == (ArrowTopic, SparkTopic)
    for read in (plain.latest(), plain.records(), plain.bootstrap().rows, plain.changes([0], [1]), plain.dead_letters()):
        assert isinstance(read, pa.Table)
    for lazy in (plain.scan_latest(), plain.scan_records()):
        assert isinstance(lazy, pl.LazyFrame)
    found = (by_spark.latest(), by_spark.records(), by_spark.bootstrap().rows, by_spark.changes([0], [1]), by_spark.dead_letters())
    assert all(isinstance(read, DataFrame) for read in found)
    assert latest(plain) == {"lime": "2", "kiwi": "1"}
    assert plain.bootstrap().position == by_spark.bootstrap().position
    assert plain.offsets() == by_spark.offsets() == {0: (0, 3, 3)}


@pytest.mark.parametrize("given", [(), (None, "data"), ("a", "b"), (1,), (object(), "data"), ("a", "b", "c")])
def test_what_is_no_location_is_refused_with_what_is(given: Any) -> None:
    """An empty location and an object that is no session are refused, and the message says what is allowed."""
    with pytest.raises(UserError, match=r'LogDir takes a location, LogDir\("data"\), or a Spark session and a location'):
        LogDir(*given)


def test_all_that_is_written_goes_by_the_clock_of_the_log_dir(tmp_path: Path) -> None:
    """Record timestamps, decisions, markers, and what is due: one clock, which may move."""
    moment = [T0]
    logs = LogDir(tmp_path, clock=lambda: moment[0])
    topic = logs.create_topic("fruit", config={"cleanup.policy": "delete", "retention.ms": 1_000, "file.delete.delay.ms": 500})
    topic.append(rows("lime=1"))
    assert topic.log.decisions().created_ms == T0
    moment[0] += 10
    with topic.transaction("loader") as transaction:
        transaction.append(rows("kiwi=1"))
        moment[0] += 10
    times = topic.records(include_control=True).column("timestamp").cast(pa.int64()).to_pylist()
    assert times == [T0 * 1000, (T0 + 10) * 1000, (T0 + 20) * 1000]
    topic.roll()
    moment[0] = T0 + 1_020
    assert topic.apply_retention() == {}
    moment[0] = T0 + 1_021
    assert list(topic.apply_retention()) == [0]
    logs.delete_topic("fruit")
    moment[0] += 499
    assert logs.purge_deleted() == []
    moment[0] += 1
    assert logs.purge_deleted() == ["fruit"]


def test_what_is_no_table_is_refused_by_name(tmp_path: Path) -> None:
    """The message names the type, and what is taken."""
    topic = LogDir(tmp_path).create_topic("fruit")
    with pytest.raises(InvalidRecords, match="cannot take int: allowed are an Arrow table"):
        topic.append(7)  # type: ignore[arg-type]


def test_records_of_the_past_are_asked_by_a_version_and_not_by_offsets(spark: SparkSession, tmp_path: Path) -> None:
    """With both engines; offsets are bounds of their own."""
    topics = LogDir(tmp_path).create_topic("fruit"), LogDir(spark, tmp_path).topic("fruit")
    topics[0].append(rows("lime=1"))
    topics[0].append(rows("lime=2"))

    assert [len(topics[0].records(as_of=version)) for version in (0, 1, 2)] == [0, 1, 2]
    assert [topics[1].records(as_of=version).count() for version in (0, 1, 2)] == [0, 1, 2]
    for topic in topics:
        with pytest.raises(UserError, match=r"records\(\) takes a table version or a moment"):
            topic.records(as_of={0: 1})


def test_a_folder_whose_ledger_was_never_committed_is_no_topic(tmp_path: Path) -> None:
    """A disk that failed, or a process that was killed, left it: the name is free."""
    (tmp_path / "fruit/ledger/_delta_log").mkdir(parents=True)
    (tmp_path / "fruit/ledger/_delta_log/_commit_0.json.tmp").write_bytes(b"{")
    logs = LogDir(tmp_path)
    assert logs.topics() == []
    with pytest.raises(UnknownTopic):
        logs.topic("fruit")
    assert logs.create_topic("fruit", partitions=2).partitions == 2
    assert logs.topics() == ["fruit"]


def test_a_log_dir_that_is_another_folder_than_before_is_a_volume_that_went_away(tmp_path: Path) -> None:
    """An empty mount point is no log.dir without topics; the folder of before is one again."""
    folder = tmp_path / "logs"
    logs = LogDir(folder)
    logs.create_topic("fruit")
    logs.check_reachable()
    folder.rename(tmp_path / "away")
    with pytest.raises(LogDirUnreachable, match=r"is not there any more .*: is the volume mounted\?"):
        logs.check_reachable()
    folder.mkdir()
    with pytest.raises(LogDirUnreachable, match=r"is another folder than when this process began: is the volume mounted\?"):
        logs.check_reachable()
    folder.rmdir()
    (tmp_path / "away").rename(folder)
    logs.check_reachable()
    assert logs.topics() == ["fruit"]
