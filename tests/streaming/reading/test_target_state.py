"""Where a target stands, and what others did to it, by its Delta log alone: others may be of any engine. No JVM."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Field, Transaction, write_deltalake
from deltalake.schema import PrimitiveType
from pyspark.sql import types as T

from lastword import UserError
from lastword.compaction.read_positions import Position
from lastword.streaming.reading.target import Target
from lastword.streaming.reading.target_state import APP_ID, Owner, TableStatus, TargetState, obstacles

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_ROWS: Final = pa.table({"key": ["a", "b"], "value": [1, 2]})
_OWNER: Final = Owner(topic_id="t1", history=False)
_FIRST: Final = TableStatus(position=Position(offsets=(2, 0)), steps=0)


def state_of(location: Path, owner: Owner = _OWNER) -> TargetState:
    """Return the state of a table as a target."""
    return TargetState(str(location), owner, {})


def commit(location: Path, standing: TableStatus) -> None:
    """Take a step, as `Target` does: rows, application id and metadata in one commit."""
    properties = CommitProperties(
        custom_metadata={"userMetadata": state_of(location).metadata(standing)}, app_transactions=[Transaction(APP_ID, standing.steps)]
    )
    write_deltalake(location, _ROWS, mode="append", commit_properties=properties)


@pytest.fixture
def location(tmp_path: Path) -> Path:
    """Return a target that was bootstrapped."""
    state = state_of(tmp_path)
    commit(tmp_path, _FIRST)
    assert state.committed(opened(state), _FIRST) == _FIRST
    return tmp_path


def opened(state: TargetState) -> DeltaTable:
    """Return the table, which is there."""
    table = state.table()
    assert table is not None
    return table


def _overwritten(table: DeltaTable) -> None:
    write_deltalake(table, _ROWS, mode="overwrite")


_HARMLESS: Final[Mapping[str, Callable[[DeltaTable], object]]] = {
    "compact": lambda table: table.optimize.compact(),
    "z-order": lambda table: table.optimize.z_order(["value"]),
    "vacuum": lambda table: table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True),
    "properties": lambda table: table.alter.set_table_properties({"delta.logRetentionDuration": "interval 1 days"}),
    "columns": lambda table: table.alter.add_columns([Field("more", PrimitiveType("long"))]),
    "description": lambda table: table.alter.set_table_description("prices"),
    "checkpoint": lambda table: table.create_checkpoint(),
    "deleted nothing": lambda table: table.delete("value = 7"),
}
_HARMFUL: Final[Mapping[str, Callable[[DeltaTable], object]]] = {
    "DELETE": lambda table: table.delete("key = 'a'"),
    "UPDATE": lambda table: table.update({"value": "7"}, predicate="key = 'a'"),
    "WRITE": lambda table: write_deltalake(table, _ROWS, mode="append"),
    "WRITE ": _overwritten,
    "MERGE": lambda table: table.merge(_ROWS, "s.key = t.key", source_alias="s", target_alias="t").when_matched_delete().execute(),
}


@pytest.mark.parametrize("change", _HARMLESS.values(), ids=list(_HARMLESS))
def test_commits_that_keep_the_rows_do_no_harm(location: Path, change: Callable[[DeltaTable], object]) -> None:
    """Also when the file beside the table is gone: then the commits alone are asked."""
    write_deltalake(location, _ROWS, mode="append", commit_properties=CommitProperties(custom_metadata={"userMetadata": "{}"}))
    state, standing = state_of(location), TableStatus(position=_FIRST.position, steps=1, examined=1)
    commit(location, standing)
    change(opened(state))
    table = opened(state)
    assert state.harm(table, standing) is None
    for path in location.glob("_lastword/*"):
        path.unlink()
    assert state.harm(table, standing) is None
    assert state.standing(table) == standing


@pytest.mark.parametrize("operation", _HARMFUL)
def test_commits_that_change_rows_are_named(location: Path, operation: str) -> None:
    """By version and operation, also behind harmless ones and behind a step of ours."""
    state = state_of(location)
    opened(state).alter.set_table_properties({"delta.checkpointInterval": "7"})
    _HARMFUL[operation](opened(state))
    standing = state.standing(opened(state))
    assert standing == _FIRST
    assert state.harm(opened(state), standing) == f"version 2 ({operation.strip()}) changed its rows"
    after = TableStatus(position=Position(offsets=(3, 0)), steps=1, examined=standing.examined)
    commit(location, after)
    committed = state.committed(opened(state), after)
    assert committed is not None
    assert state.harm(opened(state), committed) == f"version 2 ({operation.strip()}) changed its rows"


def test_a_change_that_was_taken_back_is_none(location: Path) -> None:
    """The files are those that we left; another older version is harm."""
    state = state_of(location)
    standing = TableStatus(position=_FIRST.position, steps=1, examined=0)
    commit(location, standing)
    assert state.committed(opened(state), standing) == standing
    opened(state).delete("key = 'a'")
    opened(state).restore(1)
    assert state.harm(opened(state), standing) is None
    standing = replace(standing, examined=3)
    opened(state).restore(0)
    assert "(RESTORE) changed its rows" in str(state.harm(opened(state), standing))


def test_the_state_outlives_its_commits(location: Path) -> None:
    """The file beside the table, with the transaction version that Delta keeps; without the file nobody knows."""
    state = state_of(location)
    for number in range(3):
        opened(state).alter.set_table_properties({"delta.checkpointInterval": str(number + 5)})
    opened(state).create_checkpoint()
    for version in range(3):
        (location / "_delta_log" / f"{version:020}.json").unlink()
    table = opened(state)
    assert state.standing(table) == _FIRST
    assert state.harm(table, _FIRST) is None
    (location / "_lastword" / "position.json").write_text("{}")
    assert state.standing(table) is None
    assert state.owner(table) is None
    assert "version 0 is not in the Delta log any more" in str(state.harm(table, _FIRST))


def test_a_step_of_another_writer_is_no_step_of_ours(location: Path) -> None:
    """Same number, another position: one of them is not there. Another topic's table, or one of another kind, stands nowhere."""
    state = state_of(location)
    theirs = TableStatus(position=Position(offsets=(5, 5)), steps=1, examined=0)
    commit(location, theirs)
    assert state.committed(opened(state), TableStatus(position=Position(offsets=(4, 4)), steps=1, examined=0)) is None
    assert state.committed(opened(state), TableStatus(position=Position(offsets=(5, 5)), steps=2, examined=0)) is None
    assert state.committed(opened(state), theirs) == theirs
    for owner in (Owner(topic_id="t2", history=False), Owner(topic_id="t1", history=True)):
        assert state_of(location, owner).standing(opened(state)) is None
        assert state_of(location, owner).owner(opened(state)) == _OWNER


def test_a_step_behind_which_somebody_else_committed_is_there(location: Path) -> None:
    """It is looked for from the newest commit back; what came behind it is yet to be examined."""
    state, second = state_of(location), TableStatus(position=Position(offsets=(3, 1)), steps=1, examined=0)
    commit(location, second)
    opened(state).alter.set_table_description("prices")
    found = state.committed(opened(state), second)
    assert found == replace(second, examined=found.examined if found else -1)
    assert state.standing(opened(state)) is not None


def test_a_target_that_is_gone_or_too_narrow_takes_no_step(location: Path, tmp_path: Path) -> None:
    """The message says what to do about it; neither needs Spark to be found."""
    gone, there = Target(str(tmp_path / "gone"), topic_id="t1"), Target(str(location), topic_id="t1")
    with pytest.raises(UserError, match="gone: the table was deleted meanwhile; start again to bootstrap it anew"):
        gone.check(_FIRST)
    has, needs = (T.StructType([T.StructField("value", kind)]) for kind in (T.StringType(), T.LongType()))
    with pytest.raises(UserError, match=r"does not fit the records: column value is string and not bigint\. "):
        there.check(_FIRST, needs, there=has)
    assert there.check(_FIRST, needs, there=needs) == _FIRST


def test_an_erasure_of_ours_is_no_harm(location: Path) -> None:
    """A purge deletes rows, and says that it was us."""
    state = state_of(location)
    opened(state).delete("key = 'a'", commit_properties=CommitProperties(custom_metadata={"userMetadata": state.erasure_metadata()}))
    assert state.harm(opened(state), _FIRST) is None
    other = state_of(location, Owner(topic_id="t2", history=False))
    opened(state).delete("key = 'b'", commit_properties=CommitProperties(custom_metadata={"userMetadata": other.erasure_metadata()}))
    assert state.harm(opened(state), _FIRST) == "version 2 (DELETE) changed its rows"


def test_settings_that_stop_steps(location: Path) -> None:
    """Each is named with its value; all others are none of our business."""
    state = state_of(location)
    opened(state).alter.set_table_properties({"delta.appendOnly": "false", "delta.enableChangeDataFeed": "true"})
    assert obstacles(opened(state)) == []
    opened(state).alter.add_constraint({"small": "value < 100"})
    opened(state).alter.set_table_properties({"delta.appendOnly": "true"})
    assert obstacles(opened(state)) == ["delta.appendOnly = true", "delta.constraints.small = value < 100"]


def test_a_delta_log_that_cannot_be_read_is_one_error(location: Path) -> None:
    """And no traceback of the library below."""
    (location / "_delta_log" / f"{0:020}.json").write_text("no json\n")
    with pytest.raises(UserError, match="the Delta log cannot be read"):
        state_of(location).table()
