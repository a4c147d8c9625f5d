"""A topic's log follows the commits of other processes, and reads itself in full only where it must."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from lastword import LogDir
from lastword.storage.delta.commit import commit_files, new_token
from lastword.storage.delta.history import CommitMetadata
from lastword.storage.delta.snapshot import APPEND_APP_ID, LogSnapshot
from lastword.storage.log.limits import LogLimits
from lastword.storage.log.topic_log import TopicLog
from tests.compaction.logs import rows
from tests.other_processes import in_another_process
from tests.storage.logs import DiskLog

if TYPE_CHECKING:
    from deltalake import DeltaTable


class _Process:
    """Another process that commits to the log, and how often this one has read it in full."""

    def __init__(self, log: TopicLog, monkeypatch: pytest.MonkeyPatch) -> None:
        self.disk, self.full_reads = DiskLog(log.paths.log), 0
        self._take = LogSnapshot.of
        monkeypatch.setattr("lastword.storage.log.topic_log.LogSnapshot.of", self._counted)

    def _counted(self, table: Any) -> LogSnapshot:
        self.full_reads += 1
        return self._take(table)

    def append(self, offset: int, **queries: int) -> int:
        file = self.disk.written(rows(f"{offset}:a=1"), segment=0)
        metadata = CommitMetadata(token=new_token(), kind="append")

        def newest() -> LogSnapshot:
            return self._take(self.disk.table())

        return commit_files(newest, newest(), {}, family=APPEND_APP_ID, metadata=metadata, adds=[file], transactions=queries)


@pytest.fixture(name="log")
def _log(tmp_path: Path) -> TopicLog:
    return LogDir(str(tmp_path)).create_topic("fruit").log


def test_commits_of_others_are_followed(log: TopicLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """One full read, whatever comes; the micro-batches that they committed are known, those asked for before and others."""
    process = _Process(log, monkeypatch)
    assert log.snapshot().version == 0
    assert log.committed_micro_batch("q") == -1
    for offset in range(5):
        process.append(offset, **({"q": offset} if offset % 2 else {"r": offset}))
        assert list(log.at().log_end_offsets) == [offset + 1]
    assert [log.committed_micro_batch(name) for name in "qrs"] == [3, 4, -1]
    assert [version for version, _ in log.commit_times()] == [5, 4, 3, 2, 1, 0]
    assert process.full_reads == 1


def test_an_own_commit_is_followed_too(log: TopicLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handle of delta-rs is at the newest version then, and the snapshot is not behind it."""
    process = _Process(log, monkeypatch)
    process.append(0)
    before = log.snapshot()
    process.append(1)
    with pytest.raises(Exception, match="another commit of lastword-append"):
        log.commit(before, family=APPEND_APP_ID, metadata=CommitMetadata(token=new_token(), kind="append"), adds=[])
    file = process.disk.written(rows("2:a=1"), segment=0)
    log.commit(log.snapshot(), family=APPEND_APP_ID, metadata=CommitMetadata(token=new_token(), kind="append"), adds=[file])
    assert (log.snapshot().version, list(log.at().log_end_offsets), process.full_reads) == (3, [3], 1)


def test_what_cannot_be_followed_is_read_in_full(log: TopicLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other table properties; commits that Delta removed while nobody looked: what they committed is known."""
    process = _Process(log, monkeypatch)
    process.append(0, q=1)
    assert log.committed_micro_batch("q") == 1
    process.disk.table().alter.set_table_properties({"delta.checkpointInterval": "7"})
    process.append(1, q=2)
    assert (log.committed_micro_batch("q"), process.full_reads) == (2, 2)

    for offset in (2, 3):
        process.append(offset, q=offset + 1)
    process.disk.table().create_checkpoint()
    process.append(4)
    for version in range(5):
        Path(log.paths.log, "_delta_log", f"{version:020}.json").unlink()
    assert (log.committed_micro_batch("q"), list(log.at().log_end_offsets), process.full_reads) == (4, [5], 3)
    assert [version for version, _ in log.commit_times()] == [6, 5]


def test_a_query_that_was_never_asked_for_is_looked_for_when_old_commits_are_gone(log: TopicLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handle was opened by commits that Delta removed since; a checkpoint says what they did."""
    process = _Process(log, monkeypatch)
    process.append(0, q=7)
    process.append(1)
    assert (log.snapshot().version, log.committed_micro_batch("q")) == (2, 7)
    process.disk.table().create_checkpoint()
    for version in range(2):
        Path(log.paths.log, "_delta_log", f"{version:020}.json").unlink()
    assert [log.committed_micro_batch(name) for name in "qr"] == [7, -1]
    process.append(2, r=3)
    assert ([log.committed_micro_batch(name) for name in "qr"], list(log.at().log_end_offsets)) == ([7, 3], [3])


def test_a_log_whose_newest_commit_is_gone_is_not_read_again(log: TopicLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint holds it: delta-rs says that there is nothing newer."""
    process = _Process(log, monkeypatch)
    process.append(0)
    first = log.snapshot()
    process.disk.table().create_checkpoint()
    for version in range(2):
        Path(log.paths.log, "_delta_log", f"{version:020}.json").unlink()
    assert log.snapshot() is first
    assert process.full_reads == 1


def test_an_append_whose_checkpoint_cannot_be_written_is_appended(tmp_path: Path) -> None:
    """A checkpoint only makes a later look cheaper."""
    topic = LogDir(tmp_path).create_topic("fruit")
    topic.log.limits = LogLimits(checkpoint_commits=1)
    for version in (1, 2):  # no file can be written where a folder is
        (Path(topic.log.paths.log) / "_delta_log" / f"{version:020}.checkpoint.parquet" / "full").mkdir(parents=True)
    for number in range(2):
        assert topic.append([{"key": "a", "value": str(number)}]).record_count == 1
    assert len(topic.records()) == 2


@pytest.mark.parametrize("max_named", [0, 2, 100], ids=["listed", "some listed", "asked by name"])
def test_files_that_are_gone_are_found_however_many_there_are(tmp_path: Path, max_named: int) -> None:
    """Many by one listing, as each question to an object store is a request."""
    topic = LogDir(tmp_path).create_topic("t", partitions=2)
    for partition in (0, 1):
        topic.append(pa.table({"key": ["a"], "value": ["1"], "partition": pa.array([partition], pa.int32())}))
    first, second = topic.log.snapshot().files.path.tolist()
    assert topic.log.missing_files([first, second], max_named=max_named) == []
    Path(topic.log.paths.log, first).unlink()
    wanted = [second, first, "partition=0/segment=0/no.parquet"]
    assert topic.log.missing_files(wanted, max_named=max_named) == [first, "partition=0/segment=0/no.parquet"]
    assert topic.log.missing_files([], max_named=max_named) == []


def test_a_query_is_looked_for_anew_when_old_commits_go_meanwhile(log: TopicLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table was brought to its newest version before they went."""
    process = _Process(log, monkeypatch)
    for offset in range(3):
        process.append(offset, q=offset)
    going: list[Path] = []

    class Going(TopicLog):
        def _newest_table(self) -> DeltaTable:
            table = super()._newest_table()
            if going:
                process.disk.table().create_checkpoint()
            while going:
                going.pop().unlink()
            return table

    log = in_another_process(LogDir(tmp_path), "fruit", kind=Going).log
    log.snapshot()
    going += [Path(log.paths.log, "_delta_log", f"{version:020}.json") for version in range(4)]
    assert log.committed_micro_batch("r") == -1
    assert log.committed_micro_batch("q") == 2
