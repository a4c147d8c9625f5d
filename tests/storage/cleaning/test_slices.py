"""A large group is written as several slices of one segment, in one commit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from lastword.storage.cleaning import task
from lastword.storage.cleaning.limits import CleaningLimits
from lastword.storage.files import data_reader
from lastword.storage.files.data_files import RowGroupLimits
from lastword.storage.files.schema import DATA_SCHEMA
from tests.clocks import at
from tests.pictures import T0, history, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lastword import LogDir, Topic

_EAGER = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}
_KEYS = 60


def _appended(spark: SparkSession, topic: Topic, seed: int) -> None:
    """Append 60 keys with values that cannot be compressed, into a slice of its own."""
    value = F.substring(F.sha2(F.concat_ws("-", "id", F.lit(seed)), 256), 1, 32)
    at(T0, topic).append(spark.range(_KEYS).select(F.concat(F.lit(f"{seed}-"), "id").alias("key"), value.alias("value")))


@pytest.fixture
def topic(spark: SparkSession, logs: LogDir) -> Topic:
    """Six slices of the same size in three segments, of keys that do not come again."""
    made = logs.create_topic("slices", config=_EAGER)
    for number in range(6):
        _appended(spark, made, number)
        if number % 2:
            at(T0, made).roll()
    return made


def _places(topic: Topic) -> list[tuple[int, int, int]]:
    """Return label, slice and number of records of each file."""
    files = topic.log.snapshot().files
    return list(zip(files.segment.tolist(), files.slice.tolist(), files.record_count.tolist(), strict=True))


def test_a_large_group_becomes_slices_of_one_segment_in_one_commit(spark: SparkSession, logs: LogDir, topic: Topic) -> None:
    """A slice ends with the row group that fills it, and the next is named by its first offset; left alone afterwards."""
    before = topic.log.snapshot()
    found = history(topic)
    logs.cleaner.limits = CleaningLimits(max_slice_bytes=1, row_groups=RowGroupLimits(max_rows=40))
    [receipt] = at(T0, topic).clean()
    assert _places(topic) == [(0, 0, 60), (0, 60, 60), (0, 120, 60), (0, 180, 60), (0, 240, 60), (0, 300, 60)]
    assert topic.log.snapshot().version == before.version + 1
    assert (receipt.records_before, receipt.records_after, receipt.groups, receipt.segments_before) == (360, 360, 1, 3)
    assert receipt.bytes_after == topic.log.snapshot().files.size_bytes.sum()
    assert history(topic) == found
    assert topic.verify().ok
    assert at(T0, topic).clean() == []
    _appended(spark, topic, 4)
    at(T0, topic).roll()
    [receipt] = at(T0, topic).clean()
    assert dict(receipt.removed) == {"superseded": 60}
    labels, _, records = zip(*_places(topic), strict=True)
    assert (set(labels), len(labels) > 1, sum(records)) == ({0}, True, 360)
    assert sorted(one.partition(" ")[2] for one in history(topic)) == sorted(one.partition(" ")[2] for one in found)
    assert topic.verify().ok


def test_a_crash_after_some_slices_leaves_the_log_as_it_was(logs: LogDir, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written is in no commit, and deleted where the process lives on; the next cleaning does all of it."""
    before, found = topic.log.snapshot(), history(topic)
    logs.cleaner.limits = CleaningLimits(max_slice_bytes=1)
    read, done = data_reader.row_groups, list[str]()

    def cut(*given: Any) -> Any:
        if given[3] == DATA_SCHEMA.names:
            done.append(given[2])
            if len(done) > 2:
                raise KeyboardInterrupt
        return read(*given)

    with monkeypatch.context() as patch:
        patch.setattr(task, "row_groups", cut)
        with pytest.raises(KeyboardInterrupt):
            at(T0, topic).clean()
    assert len(done) > 2, "it has written some"
    assert len(list(Path(topic.log.paths.log).glob("partition=*/**/*.parquet"))) == len(before.files.path)
    assert topic.log.snapshot().version == before.version
    assert history(topic) == found
    assert topic.receipts() == []
    [receipt] = at(T0, topic).clean()
    assert receipt.end_offset == 360
    assert history(topic) == found
    assert topic.verify().ok


def test_records_that_are_lost_on_the_way_stop_the_round(spark: SparkSession, logs: LogDir) -> None:
    """What was read is compared with what the Delta log says before anything is changed; the partition is quarantined."""
    topic = logs.create_topic("fruit", config=_EAGER)
    at(T0, topic).append(rows("grape=1 lime=1 kiwi=1 grape=2"))
    at(T0, topic).roll()
    before, found = topic.log.snapshot().version, history(topic)
    [path] = topic.log.snapshot().files.path.tolist()
    file = Path(topic.log.paths.log, path)
    whole = file.read_bytes()
    pq.write_table(pq.ParquetFile(file).read().take([0, 2, 3]), file)
    at(T0, topic).clean()
    file.write_bytes(whole)
    [report] = at(T0, topic).explain()
    assert "hold 4 records by the Delta log, but 2 were written, 1 removed" in (report.uncleanable_reason or "")
    assert (topic.log.snapshot().version, history(topic)) == (before, found)
