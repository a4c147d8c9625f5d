"""A snapshot that follows commit by commit is the one that a full read takes; what it cannot apply, it leaves to the full read."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastword.compaction.errors import CorruptLog
from lastword.storage.delta.commit import commit_files, new_token
from lastword.storage.delta.following import follow
from lastword.storage.delta.history import CommitMetadata
from lastword.storage.delta.snapshot import APPEND_APP_ID, MAINTENANCE_APP_ID, Files, LogSnapshot
from lastword.storage.delta.tables import txn_version
from lastword.storage.files.paths import filesystem_of
from tests.compaction.logs import rows
from tests.randomness import examples
from tests.storage.logs import DiskLog

if TYPE_CHECKING:
    from hypothesis.strategies import DataObject

    from lastword.storage.delta.following import Followed
    from lastword.storage.files.data_files import DataFile

_NOWS = st.sampled_from([0, 1, 999, 1_700_000_000_123, -5, 253_402_300_799_999, -62_135_596_800_000]) | st.integers(0, 2 * 10**12)
_WORDS = st.sampled_from(["a=1", "b=2", "c=∅~1500", "d=∅", "7.0:e=1", "9.1#3t2:f=1", "7.0:COMMIT~9", "EMPTY", "9.1:ABORT"])


def _follow(log: DiskLog, snapshot: LogSnapshot) -> Followed | None:
    return follow(filesystem_of(log.location, {}), snapshot)


def _assert_equal(followed: LogSnapshot, full: LogSnapshot) -> None:
    assert (followed.version, followed.append_txn, followed.maintenance_txn) == (full.version, full.append_txn, full.maintenance_txn)
    for one in fields(Files):
        ours, read = getattr(followed.files, one.name), getattr(full.files, one.name)
        assert (one.name, ours.dtype, ours.tolist()) == (one.name, read.dtype, read.tolist())
    ends = full.log_end_offsets(4)
    assert followed.log_end_offsets(4) == ends
    assert followed.segments() == full.segments()
    last = {segment.partition: segment for segment in full.segments()}
    assert followed.last_segments() == full.last_segments() == last


class _History:
    """A random history of one log, and the snapshots that follow it: of each commit, and of many at once."""

    def __init__(self, folder: Path, data: DataObject) -> None:
        self.log, self.data = DiskLog.create(folder / "log"), data
        self.ends = [0] * 4
        self.steps = 0

    def file(self, partition: int, first: int, count: int) -> DataFile:
        words = self.data.draw(st.lists(_WORDS, min_size=count, max_size=count))
        drawn = rows(" ".join(f"{first + number}:{word}" for number, word in enumerate(words)))
        segment = first // 6 * 6
        return self.log.written(drawn, partition=partition, segment=segment, now_ms=self.data.draw(_NOWS))

    def append(self) -> None:
        snapshot, files = self.log.snapshot(), []
        self.ends = snapshot.log_end_offsets(4)
        for partition in sorted(self.data.draw(st.sets(st.integers(0, 3), min_size=1))):
            count = self.data.draw(st.integers(1, 4))
            files.append(self.file(partition, self.ends[partition], count))
        queries = self.data.draw(st.dictionaries(st.sampled_from(["q", "r"]), st.integers(0, 9)))
        metadata = CommitMetadata(token=new_token(), kind="append")
        commit_files(self.log.snapshot, snapshot, {}, family=APPEND_APP_ID, metadata=metadata, adds=files, transactions=queries)

    def swap(self) -> None:
        """Some files leave, others are written anew: in the slice of one that leaves, or nothing at all."""
        snapshot = self.log.snapshot()
        count = len(snapshot.files.path)
        leaving = np.array(self.data.draw(st.lists(st.booleans(), min_size=count, max_size=count)), dtype=np.bool_)
        written = [
            self.file(int(snapshot.files.partition[at]), int(snapshot.files.first_offset[at]), int(snapshot.files.record_count[at]))
            for at in np.flatnonzero(leaving)
            if self.data.draw(st.booleans())
        ]
        metadata = CommitMetadata(token=new_token(), kind="clean")
        commit_files(self.log.snapshot, snapshot, {}, family=MAINTENANCE_APP_ID, metadata=metadata, adds=written, removes=leaving)

    def restore(self) -> None:
        table = self.log.table()
        if table.version() > 0:
            table.restore(self.data.draw(st.integers(0, table.version() - 1)))

    def optimize(self) -> None:
        """Files of another writer, with statistics of its own."""
        self.log.table().optimize.compact()

    def vacuum(self) -> None:
        self.log.table().vacuum(retention_hours=10**6, dry_run=False)

    def checkpoint(self) -> None:
        self.log.table().create_checkpoint()

    def properties(self) -> None:
        self.steps += 1
        self.log.table().alter.set_table_properties({"delta.checkpointInterval": str(100 + self.steps)})


_STEPS = st.sampled_from(["append", "append", "append", "swap", "swap", "restore", "optimize", "vacuum", "checkpoint", "properties"])


@pytest.mark.long
@settings(max_examples=examples(25), deadline=None)
@given(steps=st.lists(_STEPS, min_size=1, max_size=8), data=st.data())
def test_it_is_the_snapshot_of_a_full_read_whatever_was_committed(steps: list[str], data: DataObject) -> None:
    """Appends, swaps of files in the same slices, RESTOREs, an OPTIMIZE, other table properties: after each, and over all of them."""
    with TemporaryDirectory() as folder:
        history = _History(Path(folder), data)
        snapshots = [history.log.snapshot()]
        applied = set[str]()
        for step in steps:
            getattr(history, step)()
            full = history.log.snapshot()
            for before in snapshots:
                followed = _follow(history.log, before)
                if followed is not None:
                    _assert_equal(followed.snapshot, full)
                    versions = {name: txn_version(history.log.table(), name) for name in followed.transactions}
                    assert followed.transactions == versions
                    applied.add(step)
            snapshots.append(full)
        assert {"append", "swap"} & set(steps) <= applied


@pytest.fixture
def log(tmp_path: Path) -> DiskLog:
    """A log of two slices: offsets 0 to 1 and 2 to 3."""
    made = DiskLog.create(tmp_path / "log")
    for picture in ("0:a=1 1:b=1", "2:a=2 3:b=2"):
        made.append([made.written(rows(picture), segment=0)])
    return made


def _commit(log: DiskLog, *actions: dict[str, Any]) -> None:
    """Put a commit of somebody else's into the Delta log."""
    version = log.table().version() + 1
    text = "\n".join(json.dumps(one) for one in ({"commitInfo": {"operation": "WRITE"}}, *actions))
    Path(log.location, "_delta_log", f"{version:020}.json").write_text(text + "\n", encoding="utf-8")


def _add(log: DiskLog) -> dict[str, Any]:
    """Return the add of the newest commit."""
    text = Path(log.location, "_delta_log", f"{log.table().version():020}.json").read_text(encoding="utf-8")
    found: dict[str, Any] = next(one["add"] for one in map(json.loads, text.splitlines()) if "add" in one)
    return found


def _place(offset: int) -> dict[str, Any]:
    return {"partitionValues": {"partition": "0", "segment": "0", "slice": str(offset)}}


@pytest.mark.parametrize(
    "change",
    [
        {"path": "partition=0/segment=0/slice=4/a%20b.parquet"},
        {"path": "file:///elsewhere/a.parquet"},
        {"deletionVector": {"storageType": "u", "pathOrInlineDv": "x", "offset": 1, "sizeInBytes": 1, "cardinality": 1}},
        {"partitionValues": {"partition": "0", "segment": "0", "slice": None}},
        {"stats": None},
        {"stats": "{}"},
        {"stats": '{"numRecords":1,"minValues":{"offset":4},"maxValues":{"offset":4},"nullCount":{"timestamp":0}}'},
        {"stats": '{"numRecords":1,"minValues":{"offset":4.5},"maxValues":{"offset":4},"nullCount":{"timestamp":0,"producer_id":1}}'},
        {
            **_place(2),
            "stats": '{"numRecords":1,"minValues":{"offset":2},"maxValues":{"offset":2},"nullCount":{"timestamp":0,"producer_id":1}}',
        },
    ],
)
def test_an_add_that_is_not_as_ours_is_left_to_the_full_read(log: DiskLog, change: dict[str, Any]) -> None:
    """An encoded or absolute path, a deletion vector, no or half statistics, a second file with the same first offset."""
    snapshot = log.snapshot()
    _commit(log, {"add": {**_add(log), "path": "partition=0/segment=0/slice=4/new.parquet", **_place(4), **change}})
    assert _follow(log, snapshot) is None


@pytest.mark.parametrize(
    "action",
    [
        {"remove": {"path": "partition=0/segment=0/slice=0/unknown.parquet", "dataChange": True, "deletionTimestamp": 1, **_place(0)}},
        {"remove": {"path": "partition=0/segment=0/slice=0/unknown.parquet", "dataChange": True, "deletionTimestamp": 1}},
        {"cdc": {"path": "_change_data/a.parquet", "partitionValues": {}, "size": 1, "dataChange": False}},
        {"domainMetadata": {"domain": "d", "configuration": "", "removed": False}},
    ],
)
def test_an_action_that_is_not_known_is_left_to_the_full_read(log: DiskLog, action: dict[str, Any]) -> None:
    """The removal of a file that is not there, or of which the commit does not say where; what is no file at all."""
    snapshot = log.snapshot()
    _commit(log, action)
    assert _follow(log, snapshot) is None


def test_a_file_that_leaves_twice_is_left_to_the_full_read(log: DiskLog) -> None:
    """In one commit, or in two: what it means is for delta-rs to say."""
    snapshot, add = log.snapshot(), _add(log)
    remove = {"remove": {"path": add["path"], "dataChange": True, "deletionTimestamp": 1, "partitionValues": add["partitionValues"]}}
    _commit(log, remove)
    assert _follow(log, snapshot) is not None
    _commit(log, remove)
    assert _follow(log, snapshot) is None


def test_a_commit_that_names_a_file_twice_is_left_to_the_full_read(log: DiskLog) -> None:
    """It comes and goes at once."""
    snapshot, add = log.snapshot(), _add(log)
    remove = {"path": add["path"], "dataChange": True, "deletionTimestamp": 1, "partitionValues": add["partitionValues"]}
    _commit(log, {"remove": remove}, {"add": add})
    assert _follow(log, snapshot) is None


def test_the_full_read_names_a_file_without_statistics(log: DiskLog) -> None:
    """Following says nothing of its own about it."""
    snapshot = log.snapshot()
    _commit(log, {"add": {**_add(log), "path": "partition=0/segment=0/slice=4/new.parquet", **_place(4), "stats": None}})
    assert _follow(log, snapshot) is None
    with pytest.raises(CorruptLog, match="1 files have no statistics"):
        log.snapshot()


def test_a_file_that_a_commit_adds_again_is_there_once(log: DiskLog) -> None:
    """With its new statistics, as Delta says."""
    snapshot = log.snapshot()
    _commit(log, {"add": {**_add(log), "size": 77}})
    followed = _follow(log, snapshot)
    assert followed is not None
    _assert_equal(followed.snapshot, log.snapshot())
    assert followed.snapshot.files.size_bytes.tolist()[1] == 77


def test_a_commit_that_is_gone_and_too_many_commits_are_left_to_the_full_read(log: DiskLog) -> None:
    """Delta removes old commits behind a checkpoint: without them nobody knows what the newest version is."""
    snapshot = log.snapshot()
    assert _follow(log, snapshot) is not None
    for offset in (4, 5, 6):
        log.append([log.written(rows(f"{offset}:c=1"), segment=0)])
    for most, applied in ((3, True), (2, False)):
        followed = follow(filesystem_of(log.location, {}), snapshot, max_commits=most)
        assert (followed is not None) == applied
    log.table().create_checkpoint()
    for version in (2, 3):
        Path(log.location, "_delta_log", f"{version:020}.json").unlink()
    assert _follow(log, snapshot) is None


def test_files_that_come_back_are_applied_and_a_restore_of_delta_rs_is_read_in_full(log: DiskLog) -> None:
    """Spark's RESTORE adds and removes files; that of delta-rs writes protocol and metadata again."""
    first = _add(log)
    removed = {name: first[name] for name in ("path", "partitionValues", "size")} | {"dataChange": True, "deletionTimestamp": 1}
    _commit(log, {"remove": removed})
    before = log.snapshot()
    _commit(log, {"add": first})
    followed = _follow(log, before)
    assert followed is not None
    _assert_equal(followed.snapshot, log.snapshot())
    assert followed.snapshot.files.first_offset.tolist() == [0, 2]
    log.table().restore(3)
    assert _follow(log, before) is None


def test_nothing_new_costs_nothing(log: DiskLog) -> None:
    """Without a new commit the snapshot is the same object; a commit without files keeps its arrays."""
    snapshot = log.snapshot()
    followed = _follow(log, snapshot)
    assert followed is not None
    assert followed.snapshot is snapshot
    _commit(log, {"txn": {"appId": "query", "version": 7}})
    followed = _follow(log, snapshot)
    assert followed is not None
    assert followed.snapshot.files is snapshot.files
    assert (followed.snapshot.version, followed.transactions) == (3, {"query": 7})
