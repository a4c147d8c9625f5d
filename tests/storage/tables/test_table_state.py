"""A table as its Delta log says it is: from commits, from checkpoints of any writer, and an error where neither says it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from lastword.compaction.errors import CorruptLog
from lastword.storage.delta.tables import checkpoint_version
from lastword.storage.files.paths import filesystem_of
from lastword.storage.tables.table_state import TableCommit, TableState, is_known, read_state
from tests.storage.tables.kept import Kept
from tests.storage.tables.strangers import actions_of, commit, commit_path, versions


def _stepped(folder: Path, steps: int = 4) -> Kept:
    kept = Kept(folder)
    kept.fill(6)
    for number in range(steps):
        kept.append((number, number + 1))
        kept.table.step()
    return kept


def _state(kept: Kept) -> TableState:
    found = read_state(filesystem_of(kept.location, {}))
    assert found is not None
    return found


def _comparable(state: TableState) -> TableState:
    """Return a state without what checkpoints write in another order, or not at all."""
    metadata = {name: value for name, value in state.metadata.items() if name not in {"name", "description"}}
    return replace(
        state,
        metadata=metadata,
        protocol={name: sorted(value) if isinstance(value, list) else value for name, value in state.protocol.items()},
    )


@pytest.mark.parametrize("at", range(5))
def test_a_checkpoint_and_the_commits_say_the_same(tmp_path: Path, at: int) -> None:
    """Files with their vectors, transactions, columns, protocol; at whatever version it was made, and with all commits below it gone."""
    kept = _stepped(tmp_path)
    before = _comparable(_state(kept))
    assert any(file.vector is not None for file in before.files.values())
    DeltaTable(kept.location, version=at).create_checkpoint()
    assert checkpoint_version(filesystem_of(kept.location, {})) == at
    assert _comparable(_state(kept)) == before
    for version in range(at):
        commit_path(kept.location, version).unlink()
    after = _comparable(_state(kept))
    assert {path: file.identity for path, file in after.files.items()} == {path: file.identity for path, file in before.files.items()}
    assert replace(after, files={}) == replace(before, files={})
    assert [file.rows for file in after.files.values()] == [after.files[path].rows for path in after.files]
    kept.append((5, 9))
    kept.engine().step()
    assert kept.rows() == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (5, 9)]


def test_a_checkpoint_of_several_parts_counts_when_it_is_whole(tmp_path: Path) -> None:
    """A part that is missing: the one before it, and the commits since."""
    kept = _stepped(tmp_path)
    before = _comparable(_state(kept))
    DeltaTable(kept.location, version=1).create_checkpoint()
    DeltaTable(kept.location, version=3).create_checkpoint()
    log = Path(kept.location, "_delta_log")
    whole = pq.read_table(log / f"{3:020}.checkpoint.parquet")
    half = len(whole) // 2
    parts = [log / f"{3:020}.checkpoint.{number:010}.{2:010}.parquet" for number in (1, 2)]
    pq.write_table(whole.slice(0, half), parts[0])
    pq.write_table(whole.slice(half), parts[1])
    (log / f"{3:020}.checkpoint.parquet").unlink()
    for version in (0, 1, 2):
        commit_path(kept.location, version).unlink()
    assert {file.identity for file in _state(kept).files.values()} == {file.identity for file in before.files.values()}
    parts[0].unlink()
    with pytest.raises(CorruptLog, match="goes up to version 4"):
        _state(kept)


def test_a_hint_of_the_last_checkpoint_that_cannot_be_read_is_looked_past(tmp_path: Path) -> None:
    """The files in the folder say it."""
    kept = _stepped(tmp_path)
    filesystem = filesystem_of(kept.location, {})
    assert checkpoint_version(filesystem) == -1
    DeltaTable(kept.location).create_checkpoint()
    hint = Path(kept.location, "_delta_log/_last_checkpoint")
    for text in ("", "{}", "[]", '{"version":"x"}'):
        hint.write_text(text)
        assert checkpoint_version(filesystem) == 4
    hint.unlink()
    assert checkpoint_version(filesystem) == -1


@pytest.mark.parametrize(
    "checkpoint", ["", f"{3:020}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"], ids=["none", "of another form"]
)
def test_a_log_without_its_beginning_is_an_error(tmp_path: Path, checkpoint: str) -> None:
    """Its first commits are gone, and no checkpoint that can be read says what they did: it is not taken for no table."""
    kept = _stepped(tmp_path)
    for version in range(4 if checkpoint else 1):
        commit_path(kept.location, version).unlink()
    if checkpoint:
        Path(kept.location, "_delta_log", checkpoint).write_text("{}")
    before = versions(kept.location)
    assert not is_known(filesystem_of(kept.location, {}), replace(_state_of_nothing(), version=0))
    for engine in (kept.engine(), kept.engine()):
        with pytest.raises(CorruptLog, match="goes up to version 4"):
            engine.step()
    assert versions(kept.location) == before


def _state_of_nothing() -> TableState:
    return TableState(version=-1, metadata={}, protocol={}, files={}, transactions={})


def test_no_table_is_none(tmp_path: Path) -> None:
    """An empty folder, none at all, and one with an empty log."""
    assert read_state(filesystem_of(str(tmp_path), {})) is None
    assert read_state(filesystem_of(str(tmp_path / "nowhere"), {})) is None
    (tmp_path / "_delta_log").mkdir()
    assert read_state(filesystem_of(str(tmp_path), {})) is None


def test_paths_are_encoded_in_the_log_and_are_not_here(tmp_path: Path) -> None:
    """As the protocol asks for it: a space and a percent sign in the name of a stranger's file."""
    add: dict[str, Any] = {"path": quote("a b%20c.parquet"), "size": 1, "partitionValues": {}, "dataChange": True}
    state = _state_of_nothing().after(0, [{"add": add}])
    assert list(state.files) == ["a b%20c.parquet"]
    assert not state.after(1, [{"remove": add}]).files


def test_a_file_whose_vector_was_not_known_is_there_twice() -> None:
    """A commit on which a later one was planned is gone: strict readers show both."""
    add: dict[str, Any] = {"path": "a", "size": 1, "partitionValues": {}, "dataChange": True}
    marked = [{**add, "deletionVector": {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": 1, "cardinality": 1}} for text in "123"]
    state = _state_of_nothing().after(0, [{"add": add}]).after(1, [{"remove": add}, {"add": marked[0]}])
    assert (state.files["a"].deleted_rows, state.stale) == (1, ())
    replaced = state.after(2, [{"remove": marked[1]}, {"add": marked[2]}])
    assert [one.identity for one in replaced.stale] == [("a", "i1@None")]
    assert not replaced.after(3, [{"remove": marked[0]}]).stale
    added = state.after(2, [{"add": marked[1]}])
    assert [one.identity for one in added.stale] == [("a", "i1@None")]


def test_statistics_are_not_asked_for(tmp_path: Path) -> None:
    """A stranger's file may have none: its rows are found, and it is marked or written again as any other."""
    kept = _stepped(tmp_path)
    table = DeltaTable(kept.location)
    table.optimize.compact()
    last = versions(kept.location)[-1]
    bare = [
        {kind: {name: value for name, value in body.items() if name != "stats"} for kind, body in action.items()}
        for action in actions_of(kept.location, last)
    ]
    commit_path(kept.location, last).write_text("".join(json.dumps(one) + "\n" for one in bare))
    kept.append((5, 9), (4, None), ('{"id": 7}', {"id": 7, "n": 7}))
    kept.engine().step()
    assert kept.rows() == [(0, 1), (1, 2), (2, 3), (3, 4), (5, 9), (7, 7)]
    kept.append(*((number, None) for number in range(6)), ('{"id": 7}', None))
    kept.engine().step()
    assert kept.rows() == []


def test_what_a_commit_did(tmp_path: Path) -> None:
    """Which writer it is of, and whether it changes rows, files or the table itself."""
    kept = _stepped(tmp_path, 1)
    ours = TableCommit.of(1, actions_of(kept.location, 1))
    assert (ours.is_ours, ours.is_of_unchanged, ours.changes_rows, ours.changes_files, ours.changes_table) == (
        True,
        True,
        True,
        True,
        False,
    )
    DeltaTable(kept.location).optimize.compact()
    compacted = TableCommit.of(2, actions_of(kept.location, 2))
    assert (compacted.is_ours, compacted.operation, compacted.changes_rows, compacted.changes_files) == (False, "OPTIMIZE", False, True)
    version = commit(kept.location, {"metaData": {}})
    assert TableCommit.of(version, actions_of(kept.location, version)).changes_table
    nameless = TableCommit.of(9, [{"add": {"path": "a"}}])
    assert (nameless.operation, nameless.changes_rows) == ("unknown operation", True)
