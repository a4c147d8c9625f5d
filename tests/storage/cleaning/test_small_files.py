"""Small files become fewer on a real log, without Spark but for one test: nothing of a record changes, and appends go on beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from lastword import LogDir
from lastword.compaction.errors import CorruptLog
from lastword.compaction.log.segments import next_append
from lastword.storage.cleaning import small_files
from lastword.storage.cleaning.limits import CLEANING_LIMITS, CleaningLimits
from lastword.storage.delta.history import commit_actions
from lastword.storage.files.data_files import RowGroupLimits
from lastword.storage.files.data_reader import read_columns
from lastword.storage.files.paths import filesystem_of
from lastword.storage.files.schema import DATA_SCHEMA
from lastword.storage.log.partition_logs import partition_logs
from lastword.streaming.cluster import SparkCluster
from tests.clocks import at
from tests.compaction.logs import rows
from tests.storage.logs import DiskLog

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from lastword.compaction.planning.bounds import PartitionLog
    from lastword.storage.delta.snapshot import LogSnapshot
    from lastword.storage.log.topic_log import TopicLog

#: Many of these take half a second or more; `make quick` leaves them to `make test`.
pytestmark = pytest.mark.long


def _topic(folder: Path, settings: Mapping[str, object] | None = None, *, partitions: int = 1) -> tuple[TopicLog, DiskLog]:
    """Return a topic without a record, and its log."""
    config = {"cleanup.policy": "compact", **(settings or {})}
    log = at(0, LogDir(str(folder))).create_topic("fruit", partitions=partitions, config=config).log
    return log, DiskLog(log.paths.log)


def _logs(log: TopicLog, snapshot: LogSnapshot, now_ms: int) -> list[PartitionLog]:
    """Return what planning knows of the partitions; nothing is held back by a producer."""
    decisions = log.decisions()
    ends = snapshot.log_end_offsets(decisions.partitions)
    return partition_logs(log.name, log.config(), snapshot, decisions, ends, holders={}, unreadable={}, now_ms=now_ms)


def _merge(log: TopicLog, snapshot: LogSnapshot | None = None, *, now_ms: int = 0, limits: CleaningLimits = CLEANING_LIMITS) -> int:
    state = log.state_of(snapshot or log.snapshot())
    return small_files.merge_small_files(state, _logs(log, state.snapshot, now_ms), now_ms=now_ms, limits=limits)


def _slices(log: DiskLog) -> list[tuple[int, int, int]]:
    """Return label, slice and number of records of each file."""
    files = log.snapshot().files
    return list(zip(files.segment.tolist(), files.slice.tolist(), files.record_count.tolist(), strict=True))


def _content(log: DiskLog) -> list[dict[str, Any]]:
    """Return all columns of all rows, partition by partition."""
    files = log.snapshot().files
    tables = [read_columns(log.location, {}, str(path), DATA_SCHEMA.names) for path in files.path]
    return [row for table in tables for row in table.to_pylist()]


def _pictures(first: int, count: int) -> list[str]:
    """Return slices of two rows each: data, tombstones, transactions and their markers, an EMPTY row; each second offset is a gap."""
    kinds = ("a{0}=1", "b=∅", "=x", "7.0#{0}t0:c=1", "7.0t0:COMMIT~9", "8.1#3:EMPTY")
    pairs = ((first + 4 * number, first + 4 * number + 2) for number in range(count))
    return [" ".join(f"{offset}:{kinds[(offset // 2) % len(kinds)].format(offset)}" for offset in pair) for pair in pairs]


@pytest.mark.parametrize("policy", ["compact", "delete", "compact,delete"])
def test_old_slices_of_the_active_segment_become_one_and_nothing_else_changes(tmp_path: Path, policy: str) -> None:
    """Rows, base offset, age and times of the segment stay; only its size and its number of slices change."""
    log, disk = _topic(tmp_path, {"cleanup.policy": policy})
    disk.append_each(_pictures(100, 14), segment=100, now_ms=5)
    content, [before] = _content(disk), log.snapshot().segments()
    assert _merge(log) == 1
    assert _slices(disk) == [(100, 100, 2), (100, 104, 24), (100, 152, 2)]
    assert _content(disk) == content
    [after] = log.snapshot().segments()
    assert replace(after, slices=before.slices, size_bytes=before.size_bytes, spans=before.spans) == before
    assert after.slices == (100, 104, 152)
    assert [(one.first_offset, one.last_offset, one.record_count) for one in after.spans] == [(100, 102, 2), (104, 150, 24), (152, 154, 2)]
    assert _merge(log) == 0


def test_a_merge_is_no_change_of_data(tmp_path: Path) -> None:
    """Delta's streams skip it; older versions have their files until VACUUM."""
    log, disk = _topic(tmp_path)
    disk.append_each(_pictures(0, 16), segment=0)
    version = log.snapshot().version
    assert _merge(log) == 1
    actions = commit_actions(filesystem_of(log.paths.log, {}), version + 1)
    assert {one[kind]["dataChange"] for one in actions for kind in ("add", "remove") if kind in one} == {False}
    older = DeltaTable(log.paths.log, version=version)
    assert len(older.file_uris()) == 16
    assert len(older.to_pyarrow_table()) == 32


def test_an_append_that_was_planned_before_a_merge_is_committed_after_it(tmp_path: Path) -> None:
    """It has a slice of its own, named by the log end; and a merge does not fail for an append that came first."""
    log, disk = _topic(tmp_path)
    disk.append_each(_pictures(0, 16), segment=0)
    planned = disk.snapshot()
    segment, end = planned.segments(0)[0], planned.log_end_offsets(1)[0]
    active = next_append(segment, log.config(), partition=0, log_end_offset=end, rolled_offset=-1, now_ms=0)
    assert _merge(log) == 1
    late = disk.written(rows(f"{end}:z=1"), segment=active.label)
    disk.append([late], planned)
    assert _slices(disk)[-1] == (0, 63, 1)
    assert [one.row.offset for one in disk.rows()] == [*range(0, 64, 2), 63]

    disk.append_each(_pictures(64, 16), segment=0)
    planned = log.snapshot()
    disk.append_each(["200:y=1"], segment=0)
    assert _merge(log, planned) == 1
    assert [one.row.offset for one in disk.rows()] == [*range(0, 64, 2), 63, *range(64, 128, 2), 200]


def test_the_first_slice_with_a_timestamp_stays_also_behind_empty_rows(tmp_path: Path) -> None:
    """The roll by record time goes by it; a record that is older than the first one came later."""
    log, disk = _topic(tmp_path)
    disk.append_each(["0:8.1#3:EMPTY"], segment=0)
    disk.append_each(["1:a=1"], segment=0, now_ms=50)
    disk.append_each([f"{offset}:a=1" for offset in range(2, 14)], segment=0, now_ms=40)
    assert _merge(log, now_ms=50) == 1
    [after] = log.snapshot().segments()
    assert after.slices == (0, 1, 2, 13)
    assert (after.first_timestamp_ms, after.min_timestamp_ms) == (50, 40)


def test_a_run_of_large_slices_is_cut_where_a_slice_is_full(tmp_path: Path) -> None:
    """The later slices are named by their first offset, and none of them is written again."""
    limits = CleaningLimits(max_slice_bytes=6_000, row_groups=RowGroupLimits(max_rows=8))
    log, disk = _topic(tmp_path)
    disk.append_each(_pictures(0, 60), segment=0)
    content = _content(disk)
    assert _merge(log, limits=limits) == 1
    sliced = _slices(disk)
    assert len(sliced) > 3
    assert [row for row in sliced if row[1] % 2] == []
    assert _content(disk) == content
    assert _merge(log, limits=limits) == 0


def test_closed_segments_are_merged_only_where_no_cleaning_does_it(tmp_path: Path) -> None:
    """And the last one, which is closed by `segment.slices` alone, only when the next append has opened another."""
    for number, policy in enumerate(("compact", "delete")):
        log, disk = _topic(tmp_path / policy, {"cleanup.policy": policy, "segment.slices": 3})
        disk.append_each(_pictures(0, 3), segment=0)
        snapshot = log.snapshot()
        [last] = snapshot.segments()
        append = next_append(last, log.config(), partition=0, log_end_offset=11, rolled_offset=-1, now_ms=0)
        assert (append.label, append.size_bytes) == (11, 0), "the next append begins a segment"
        assert _merge(log) == 0
        disk.append_each(_pictures(100, 1), segment=100)
        assert _merge(log) == number
        assert len(_slices(disk)) == (4, 2)[number]


def test_partitions_are_merged_in_one_commit(tmp_path: Path) -> None:
    """A task for each, in threads; a partition with few slices is left alone."""
    log, disk = _topic(tmp_path, partitions=3)
    for partition, count in enumerate((16, 9, 30)):
        disk.append_each(_pictures(0, count), partition=partition, segment=0)
    version = log.snapshot().version
    assert _merge(log) == 2
    assert log.snapshot().version == version + 1
    assert [len(one.slices) for one in log.snapshot().segments()] == [3, 9, 3]


def test_records_that_are_not_there_are_an_error_and_nothing_is_changed(tmp_path: Path) -> None:
    """What is read is counted against the Delta log."""
    log, disk = _topic(tmp_path)
    disk.append_each(_pictures(0, 16), segment=0)
    version = log.snapshot().version
    for path in log.snapshot().files.path.tolist():
        pq.write_table(DATA_SCHEMA.empty_table(), tmp_path / "fruit" / "log" / path)
    with pytest.raises(CorruptLog, match="hold 28 records by the Delta log, but 0 were read; nothing was changed"):
        _merge(log)
    assert log.snapshot().version == version


def test_tasks_of_a_cluster_come_back_in_order_and_name_a_damaged_file(spark: SparkSession, tmp_path: Path) -> None:
    """As a task in this process does, not as a job of Spark that failed."""
    _, disk = _topic(tmp_path)
    disk.append_each(_pictures(0, 3), segment=0)
    files = disk.snapshot().files
    tasks = [
        small_files.MergeTask(
            location=disk.location,
            storage_options={},
            codec="zstd",
            partition=0,
            segment=0,
            slice=int(files.slice[number]),
            paths=(str(files.path[number]),),
            size_bytes=number,
            record_count=2,
            limits=CLEANING_LIMITS,
        )
        for number in range(3)
    ]
    done = SparkCluster(spark).run(tasks, None)
    assert [[one.first_offset for one in each] for each in done] == [[0], [4], [8]]
    with pytest.raises(CorruptLog, match=r"missing\.parquet cannot be read"):
        SparkCluster(spark).run([tasks[0], replace(tasks[1], paths=("missing.parquet",))], None)


def test_slices_of_a_closed_segment_that_are_as_large_as_slices_become_stay(tmp_path: Path) -> None:
    """There is nothing to join, and no commit says that there was."""
    log, disk = _topic(tmp_path, {"cleanup.policy": "delete"})
    for offset in range(2):
        disk.append([disk.written(rows(f"{offset}:a=1"), segment=0)])
    disk.append([disk.written(rows("2:a=1"), segment=2)])
    before = _slices(disk), log.snapshot().version
    assert _merge(log, limits=replace(CLEANING_LIMITS, max_slice_bytes=1)) == 0
    assert (_slices(disk), log.snapshot().version) == before
    assert _merge(log) == 1
