"""Commits by the public protocol: put where no commit is, refused when the plan is an old one, and asked for when nobody knows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lastword.compaction.errors import CommitConflict, CommitStateUnknown, CorruptLog
from lastword.storage.delta import put
from lastword.storage.delta.commit import commit_files, new_token
from lastword.storage.delta.following import follow
from lastword.storage.delta.history import CommitMetadata
from lastword.storage.delta.snapshot import APPEND_APP_ID, MAINTENANCE_APP_ID, LogSnapshot
from lastword.storage.delta.tables import txn_version
from lastword.storage.files.paths import filesystem_of
from tests.compaction.logs import rows
from tests.storage.logs import DiskLog, offsets
from tests.storage.storm import storm


@pytest.fixture
def log(tmp_path: Path) -> DiskLog:
    """A log of two slices: offsets 0 to 1 and 2 to 3."""
    made = DiskLog.create(tmp_path / "log")
    for picture in ("0:a=1 1:b=1", "2:a=2 3:b=2"):
        made.append([made.written(rows(picture), segment=0)])
    return made


def _swap(log: DiskLog, snapshot: LogSnapshot, picture: str, removes: Any, **more: Any) -> int:
    metadata = CommitMetadata(token=new_token(), kind="clean", receipts=({"partition": 0},))
    files = [log.written(rows(picture), segment=0)] if picture else []
    return commit_files(
        more.pop("newest", log.snapshot),
        snapshot,
        log.storage_options,
        family=MAINTENANCE_APP_ID,
        metadata=metadata,
        adds=files,
        removes=np.asarray(removes),
        **more,
    )


def _actions(log: DiskLog, version: int) -> list[dict[str, Any]]:
    text = Path(log.location, "_delta_log", f"{version:020}.json").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def test_an_append_changes_data_and_a_swap_changes_none(log: DiskLog) -> None:
    """As Delta's streams understand it; each raises the version of its own family, and says in userMetadata who it is."""
    version = _swap(log, log.snapshot(), "2:a=2 3:b=2", [True, True])
    assert version == 3
    append, swap = _actions(log, 2), _actions(log, 3)
    assert [one["add"]["dataChange"] for one in append if "add" in one] == [True]
    assert [one[kind]["dataChange"] for one in swap for kind in ("add", "remove") if kind in one] == [False] * 3
    assert [one["txn"] for one in append + swap if "txn" in one] == [
        {"appId": APPEND_APP_ID, "version": 1},
        {"appId": MAINTENANCE_APP_ID, "version": 0},
    ]
    (info,) = (one["commitInfo"] for one in swap if "commitInfo" in one)
    found = CommitMetadata.from_json(info["userMetadata"])
    assert found is not None
    assert (found.kind, found.receipts) == ("clean", ({"partition": 0},))
    assert offsets(log) == [2, 3]


def test_a_query_has_an_application_id_of_its_own(log: DiskLog) -> None:
    """Its version is the last micro-batch, at any later version of the table."""
    snapshot, file = log.snapshot(), log.written(rows("4:c=1"), segment=0)
    metadata = CommitMetadata(token=new_token(), kind="append")
    commit_files(log.snapshot, snapshot, {}, family=APPEND_APP_ID, metadata=metadata, adds=[file], transactions={"query": 7})
    log.append([log.written(rows("5:d=1"), segment=0)])
    log.table().create_checkpoint()

    assert [txn_version(log.table(), name) for name in ("query", "another", APPEND_APP_ID)] == [7, -1, 3]


def test_a_plan_that_its_own_family_has_overtaken_is_refused(log: DiskLog) -> None:
    """Two appends would assign the same offsets; two swaps would remove the same files. Nothing of the second is in the table."""
    stale = log.snapshot()
    log.append([log.written(rows("4:c=1"), segment=0)])
    with pytest.raises(CommitConflict, match="another commit of lastword-append came after table version 2; nothing of"):
        log.append([log.written(rows("4:d=1"), segment=0)], stale)
    _swap(log, stale, "3:b=2", [True, True])
    with pytest.raises(CommitConflict, match="another commit of lastword-maintenance came"):
        _swap(log, stale, "2:a=2", [True, True])
    assert offsets(log) == [3, 4]


def test_families_do_not_conflict_with_each_other(log: DiskLog) -> None:
    """An append that was planned before a swap, and a swap that was planned before an append."""
    before = log.snapshot()
    _swap(log, before, "2:a=2 3:b=2", [True, True])
    log.append([log.written(rows("4:c=1"), segment=0)], before)
    again = log.snapshot()
    log.append([log.written(rows("5:c=2"), segment=0)])
    _swap(log, again, "2:a=2", [True, False])
    assert offsets(log) == [2, 4, 5]


def test_another_writer_that_touched_a_file_is_a_conflict_and_one_that_did_not_is_none(log: DiskLog) -> None:
    """A RESTORE takes records back, a DELETE rewrites files; VACUUM only says that it ran."""
    version = _swap(log, log.snapshot(), "2:a=2 3:b=2", [True, True])
    plan = log.snapshot()
    log.table().vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    assert log.snapshot().version > plan.version
    log.append([log.written(rows("4:c=1"), segment=0)], plan)
    assert offsets(log) == [2, 3, 4]

    plan = log.snapshot()
    log.table().restore(version)
    with pytest.raises(CommitConflict, match=r"a commit of another writer \(RESTORE\) came at table version"):
        log.append([log.written(rows("5:d=1"), segment=0)], plan)
    plan = log.snapshot()
    log.table().alter.set_table_properties({"delta.checkpointInterval": "7"})
    with pytest.raises(CommitConflict, match="a commit of another writer"):
        log.append([log.written(rows("4:d=1"), segment=0)], plan)
    assert offsets(log) == [2, 3]


def test_a_commit_whose_version_is_taken_meanwhile_is_put_at_the_next(log: DiskLog) -> None:
    """The other family was first between the look at the table and the commit."""
    snapshot = log.snapshot()
    seen: list[int] = []

    def newest() -> LogSnapshot:
        now = log.snapshot()
        if not seen:
            log.append([log.written(rows("4:c=1"), segment=0)])
        seen.append(now.version)
        return now

    assert _swap(log, snapshot, "2:a=2 3:b=2", [True, True], newest=newest) == 4
    assert (seen[0], offsets(log)) == (2, [2, 3, 4])


@pytest.mark.parametrize(("races", "wins"), [(2, True), (30, False)])
def test_a_commit_gives_up_when_others_were_first_at_so_many_versions(log: DiskLog, *, races: int, wins: bool) -> None:
    """Three attempts; nothing of it is in the table then."""
    snapshot, appended = log.snapshot(), list[int]()

    def newest() -> LogSnapshot:
        seen = log.snapshot()
        if len(appended) < races:
            appended.append(4 + len(appended))
            log.append([log.written(rows(f"{appended[-1]}:c=1"), segment=0)])
        return seen

    if wins:
        _swap(log, snapshot, "2:a=2 3:b=2", [True, True], attempts=3, newest=newest)
        assert offsets(log) == [2, 3, 4, 5]
        return
    with pytest.raises(CommitConflict, match="other writers were first at 3 versions; nothing of this commit was written"):
        _swap(log, snapshot, "2:a=2 3:b=2", [True, True], attempts=3, newest=newest)
    assert offsets(log) == [0, 1, 2, 3, *appended]


def test_new_properties_of_another_writer_are_a_conflict_and_the_next_plan_goes_on(log: DiskLog) -> None:
    """The plan is made again; a change data feed asks nothing of a commit that adds or removes whole files."""
    snapshot = log.snapshot()
    log.table().alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    with pytest.raises(CommitConflict, match="a commit of another writer"):
        _swap(log, snapshot, "2:a=2 3:b=2", [True, True])
    _swap(log, log.snapshot(), "2:a=2 3:b=2", [True, True])
    assert offsets(log) == [2, 3]


def test_a_commit_that_came_meanwhile_and_is_gone_is_a_conflict(log: DiskLog) -> None:
    """Nobody knows any more what it did: a checkpoint holds the table as it left it."""
    snapshot, file = log.snapshot(), log.written(rows("4:c=1"), segment=0)
    log.table().alter.set_table_properties({"delta.checkpointInterval": "7"})
    log.table().create_checkpoint()
    for version in range(4):
        Path(log.location, "_delta_log", f"{version:020}.json").unlink()
    with pytest.raises(CommitConflict, match="a commit that is gone came at table version 3; nothing of this one was written"):
        log.append([file], snapshot)


def test_the_commit_is_flushed_before_it_counts(log: DiskLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit's file, and the names in its folder."""
    flushed: list[str] = []
    monkeypatch.setattr("os.fsync", lambda _: flushed.append("commit"))
    monkeypatch.setattr(put, "sync_folder", lambda folder: flushed.append(folder.name))
    log.append([log.written(rows("4:c=1"), segment=0)])
    assert flushed[-2:] == ["commit", "_delta_log"]


def test_a_commit_that_cannot_be_flushed_is_there_and_nobody_knows_for_how_long(log: DiskLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who takes the error for a commit that failed would append again."""

    def failing(_folder: Path) -> None:
        message = "input/output error"
        raise OSError(message)

    file = log.written(rows("4:c=1"), segment=0)
    monkeypatch.setattr(put, "sync_folder", failing)
    with pytest.raises(CommitStateUnknown, match="is written as table version 3, but could not be flushed"):
        log.append([file])
    assert offsets(log) == [0, 1, 2, 3, 4]


def test_files_without_statistics_are_an_error_and_never_nothing(log: DiskLog) -> None:
    """Their offsets would be assigned again; another writer adds them, in a session that collects none."""
    file = log.written(rows("4:c=1"), segment=0)
    bare = type(file)(**{**{name: getattr(file, name) for name in file.__dataclass_fields__}, "stats": "{}"})
    log.append([bare])
    with pytest.raises(CorruptLog, match=r"1 files have no statistics \(num_records\), such as partition=0/segment=0/slice=4/part-"):
        log.snapshot()


def test_a_commit_that_the_power_cut_left_empty_is_an_error_and_not_nothing(log: DiskLog) -> None:
    """delta-rs takes an empty file for a commit that changes nothing: its offsets would be given again."""
    before = log.snapshot()
    log.append([log.written(rows("4:c=1"), segment=0)])
    newest = Path(log.location, "_delta_log", f"{log.table().version():020}.json")
    newest.write_bytes(b"")
    with pytest.raises(CorruptLog, match=f"{newest.name} is empty"):
        log.snapshot()
    with pytest.raises(CorruptLog, match=f"{newest.name} is empty"):
        follow(filesystem_of(log.location, {}), before)
    newest.unlink()  # as the error says
    assert offsets(log) == [0, 1, 2, 3]
    log.append([log.written(rows("4:d=1"), segment=0)])
    assert offsets(log) == [0, 1, 2, 3, 4]


def test_a_micro_batch_is_recognised_after_its_commit_is_gone(log: DiskLog) -> None:
    """Delta removes commits after days; a checkpoint keeps the versions of application ids."""
    log.append([log.written(rows("4:c=1"), segment=0)], transactions={"query": 7})
    for offset in range(5, 9):
        log.append([log.written(rows(f"{offset}:c=1"), segment=0)])
    log.table().create_checkpoint()
    for commit_file in sorted(Path(log.location, "_delta_log").glob("*.json"))[:-1]:
        commit_file.unlink()
    assert txn_version(log.table(), "query") == 7
    assert offsets(log) == list(range(9))


@pytest.mark.long
def test_several_processes_commit_to_one_table_and_every_offset_is_given_once(tmp_path: Path) -> None:
    """Put if absent is what keeps them apart: no lock is held."""
    storm(DiskLog.create(tmp_path / "log"), writers=3, commits=8)


@pytest.mark.torture
def test_seven_processes_commit_to_one_table_on_a_local_disk(tmp_path: Path) -> None:
    """The same, for longer."""
    storm(DiskLog.create(tmp_path / "log"), writers=7, commits=60)
