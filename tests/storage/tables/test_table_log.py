"""What others do to a table that is kept: harmless commits are passed over, others end the steps with a text that says what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from lastword import LogDir
from lastword.compaction.errors import UserError
from lastword.storage.delta.crash_points import CrashPoint, hook
from lastword.storage.tables.table import MaterializedTable
from lastword.storage.tables.table_options import TableOptions
from tests.storage.tables.kept import Kept
from tests.storage.tables.strangers import actions_of, commit, commit_a_transaction, commit_path, newest, versions, write

if TYPE_CHECKING:
    from collections.abc import Callable

_VECTORS: Final = pytest.mark.parametrize("vectors", [True, False], ids=["deletion vectors", "copy on write"])


def _kept(folder: Path, *, vectors: bool = True) -> Kept:
    """Return a table of three commits whose rows are 0 to 3, and one record that it has not read."""
    kept = Kept(folder, options=TableOptions(deletion_vectors=vectors))
    kept.fill(4)
    for number in (1, 2):
        kept.append((number, number))
        kept.table.step()
    kept.append((3, 3), (0, None))
    return kept


_AFTER: Final = [(1, 1), (2, 2), (3, 3)]
_HARMLESS: Final[dict[str, Callable[[str], Any]]] = {
    "compact": lambda location: DeltaTable(location).optimize.compact(),
    "z_order": lambda location: DeltaTable(location).optimize.z_order(["n"]),
    "a transaction": commit_a_transaction,
    "a full vacuum": lambda location: DeltaTable(location).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True),
    "a checkpoint": lambda location: DeltaTable(location).create_checkpoint(),
    "a property": lambda location: DeltaTable(location).alter.set_table_properties({"delta.checkpointInterval": "7"}),
    "a comment": lambda location: DeltaTable(location).alter.set_table_description("ours"),
}
_HARMFUL: Final[dict[str, Callable[[str], Any]]] = {
    "DELETE": lambda location: DeltaTable(location).delete("id = 1"),
    "UPDATE": lambda location: DeltaTable(location).update(predicate="id = 1", updates={"n": "100"}),
    "WRITE": lambda location: write_deltalake(location, DeltaTable(location).to_pyarrow_table().slice(0, 1), mode="append"),
    "RESTORE": lambda location: DeltaTable(location).restore(1),
}


@_VECTORS
@pytest.mark.parametrize("is_new", [False, True], ids=["the same engine", "a new one"])
@pytest.mark.parametrize("what", _HARMLESS)
def test_a_commit_that_changes_no_rows_is_passed_over(tmp_path: Path, what: str, *, vectors: bool, is_new: bool) -> None:
    """A commit that rewrites the same rows, or touches no file, does not stop the next step."""
    kept = _kept(tmp_path, vectors=vectors)
    _HARMLESS[what](kept.location)
    (kept.engine() if is_new else kept.table).step()
    assert kept.rows() == _AFTER


@_VECTORS
@pytest.mark.parametrize("is_new", [False, True], ids=["the same engine", "a new one"])
@pytest.mark.parametrize("what", _HARMFUL)
def test_a_commit_that_changes_rows_ends_the_steps(tmp_path: Path, what: str, *, vectors: bool, is_new: bool) -> None:
    """The text names the commit, and the position is not told any more; a rebuild makes it right."""
    kept = _kept(tmp_path, vectors=vectors)
    if what == "WRITE" and vectors:
        commit(kept.location, {"add": {**newest(kept.location, "add"), "path": "other.parquet"}})
    else:
        _HARMFUL[what](kept.location)
    engine = kept.engine() if is_new else kept.table
    for ask in (engine.step, engine.position, engine.step):
        with pytest.raises(UserError, match=rf"changed by somebody else: {what} at version \d+.*rebuild=True"):
            ask()
    engine.rebuild()
    assert kept.rows() == _AFTER
    assert engine.step() is None
    assert kept.engine().step() is None


@pytest.mark.parametrize("is_new", [False, True], ids=["the same engine", "a new one"])
def test_an_erasure_does_not_hide_what_others_did_before_it(tmp_path: Path, *, is_new: bool) -> None:
    """It is made whatever they did; the steps end as before."""
    kept = _kept(tmp_path)
    DeltaTable(kept.location).delete("id = 1")
    (kept.engine() if is_new else kept.table).erase(b'{"id":2}', kept={})
    for engine in (kept.table, kept.engine()):
        with pytest.raises(UserError, match="changed by somebody else: DELETE"):
            engine.step()


def test_an_erasure_is_no_harm_of_others(tmp_path: Path) -> None:
    """Steps of any process go on after it."""
    kept = _kept(tmp_path)
    kept.engine().erase(b'{"id":2}', kept={})
    kept.table.step()
    kept.append((1, 9))
    kept.engine().step()
    assert kept.rows() == [(1, 9), (3, 3)]


@_VECTORS
def test_rows_that_were_taken_back_by_a_restore_are_no_change(tmp_path: Path, *, vectors: bool) -> None:
    """The files and their vectors are those again that this process left; another process cannot know that, and stops."""
    kept = _kept(tmp_path, vectors=vectors)
    version = DeltaTable(kept.location).version()
    DeltaTable(kept.location).delete("id = 1")
    DeltaTable(kept.location).restore(version)
    with pytest.raises(UserError, match="changed by somebody else"):
        kept.engine().step()
    kept.table.step()
    assert kept.rows() == _AFTER


def test_a_vector_that_was_replaced_is_read_again(tmp_path: Path) -> None:
    """A stranger gives a file another vector, and ours back: the path is the same, and so are the rows in the end."""
    kept = _kept(tmp_path)
    (path,) = [one["add"]["path"] for one in actions_of(kept.location, 0) if "add" in one]
    marked = [one["add"] for version in versions(kept.location) for one in actions_of(kept.location, version) if "add" in one]
    first, last = [one for one in marked if one["path"] == path and "deletionVector" in one]
    commit(kept.location, {"remove": {**last, "dataChange": True}}, {"add": first}, operation="DELETE")
    with pytest.raises(UserError, match="changed by somebody else"):
        kept.table.step()
    commit(kept.location, {"remove": {**first, "dataChange": True}}, {"add": last}, operation="DELETE")
    kept.table.step()
    assert kept.rows() == _AFTER


# --- tables that are none of ours -------------------------------------------------------------------------------------------------------


def test_a_table_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    """Neither a step nor a rebuild writes to a table of another topic."""
    kept = Kept(tmp_path)
    write_deltalake(kept.location, pa.table({"id": [1]}))
    for ask in (kept.table.step, kept.table.rebuild, kept.table.position):
        with pytest.raises(UserError, match="that topic t was not materialized into"):
            ask()
    assert versions(kept.location) == [0]


def test_a_table_of_another_topic_is_left_alone(tmp_path: Path) -> None:
    """Also one of a topic that had the same name."""
    kept = _kept(tmp_path)
    before = versions(kept.location)
    log_dir = LogDir(tmp_path / "log")
    log_dir.delete_topic("t")
    topic = log_dir.create_topic("t", partitions=1)
    engine = MaterializedTable(topic.log, kept.location, kept.layout, kept.options, {})
    for ask in (engine.step, engine.rebuild, engine.position):
        with pytest.raises(UserError, match="table of another topic, t"):
            ask()
    assert versions(kept.location) == before


def test_a_history_is_no_table_without_one(tmp_path: Path) -> None:
    """The other kind is asked for: a step says so, and a rebuild makes it."""
    kept = _kept(tmp_path)
    kept.history = True
    with pytest.raises(UserError, match="is no history"):
        kept.table.step()
    kept.table.rebuild()
    assert kept.rows("id n _is_current") == [(1, 1, True), (2, 2, True), (3, 3, True)]


# --- what a table asks of its writers ---------------------------------------------------------------------------------------------------


def _with_feature(*names: str, reader: bool = False) -> Callable[[str], None]:
    def change(location: str) -> None:
        protocol = newest(location, "protocol")
        features = {"readerFeatures": sorted({*protocol["readerFeatures"], *(names if reader else ())})}
        commit(location, {"protocol": {**protocol, **features, "writerFeatures": sorted({*protocol["writerFeatures"], *names})}})

    return change


def _with_property(name: str, value: str) -> Callable[[str], None]:
    def change(location: str) -> None:
        metadata = newest(location, "metaData")
        commit(location, {"metaData": {**metadata, "configuration": {**metadata["configuration"], name: value}}}, operation="SET")

    return change


def _with_field(**changed: Any) -> Callable[[str], None]:
    def change(location: str) -> None:
        metadata = newest(location, "metaData")
        schema = json.loads(metadata["schemaString"])
        schema["fields"][1] |= changed
        commit(location, {"metaData": {**metadata, "schemaString": json.dumps(schema)}}, operation="CHANGE COLUMN")

    return change


_INVARIANT: Final = {"delta.invariants": '{"expression":{"expression":"n > 0"}}'}
_STOPS: Final[dict[str, tuple[Callable[[str], None], str]]] = {
    "in-commit timestamps": (_with_feature("inCommitTimestamp"), "inCommitTimestamp"),
    "row tracking": (_with_feature("rowTracking"), "rowTracking"),
    "identity columns": (_with_feature("identityColumns"), "identityColumns"),
    "v2 checkpoints": (_with_feature("v2Checkpoint", reader=True), "v2Checkpoint"),
    "type widening": (_with_feature("typeWidening", reader=True), "typeWidening"),
    "a feature of the future": (_with_feature("wishes"), "wishes"),
    "in-commit timestamps by a property": (_with_property("delta.enableInCommitTimestamps", "true"), "delta.enableInCommitTimestamps"),
    "row tracking by a property": (_with_property("delta.enableRowTracking", "true"), "delta.enableRowTracking = true"),
    "a CHECK constraint": (_with_property("delta.constraints.positive", "n > 0"), "delta.constraints.positive = n > 0"),
    "column mapping by numbers": (_with_property("delta.columnMapping.mode", "id"), "delta.columnMapping.mode = id"),
    "expiring transactions": (_with_property("delta.setTransactionRetentionDuration", "interval 1 days"), "setTransactionRetention"),
    "appends alone": (_with_property("delta.appendOnly", "true"), "delta.appendOnly = true"),
    "an invariant": (_with_field(metadata=_INVARIANT), "delta.invariants"),
    "a generated column": (_with_field(metadata={"delta.generationExpression": "id + 1"}), "delta.generationExpression"),
    "a column that is never null": (_with_field(nullable=False), "column n is not null"),
}


@pytest.mark.parametrize("is_new", [False, True], ids=["the same engine", "a new one"])
@pytest.mark.parametrize("what", _STOPS)
def test_a_step_ends_at_what_it_cannot_do(tmp_path: Path, what: str, *, is_new: bool) -> None:
    """What it wrote would be refused by readers, or break what a stranger asks of the table."""
    kept = _kept(tmp_path)
    change, text = _STOPS[what]
    change(kept.location)
    before = versions(kept.location)
    engine = kept.engine() if is_new else kept.table
    for _ in range(2):
        with pytest.raises(UserError, match=text):
            engine.step()
    assert versions(kept.location) == before


@pytest.mark.parametrize(
    "change",
    [
        _with_feature("domainMetadata", "clustering"),
        _with_feature("timestampNtz", reader=True),
        _with_property("delta.enableRowTracking", "false"),
        _with_property("delta.enableChangeDataFeed", "false"),
        _with_property("delta.deletedFileRetentionDuration", "interval 9 days"),
        _with_field(metadata={"comment": "how many"}),
    ],
)
def test_a_step_goes_on_with_what_it_can_do(tmp_path: Path, change: Callable[[str], None]) -> None:
    """And leaves it as it is."""
    kept = _kept(tmp_path)
    change(kept.location)
    protocol, metadata = newest(kept.location, "protocol"), newest(kept.location, "metaData")
    kept.value_ddl += ", more timestamp_ntz"
    kept.table.step()
    assert kept.rows() == _AFTER
    assert set(protocol["writerFeatures"]) <= set(newest(kept.location, "protocol")["writerFeatures"])
    after = newest(kept.location, "metaData")
    assert after["configuration"] == metadata["configuration"]
    assert json.loads(after["schemaString"])["fields"][:2] == json.loads(metadata["schemaString"])["fields"][:2]
    kept.append((1, 9))
    assert kept.engine().step() is not None


def test_a_column_of_another_type_brings_its_feature_in_the_same_commit(tmp_path: Path) -> None:
    """Readers refuse a table with a timestamp_ntz whose protocol does not say so: with and without deletion vectors."""
    for vectors in (True, False):
        kept = _kept(tmp_path / str(vectors), vectors=vectors)
        kept.value_ddl += ", at timestamp_ntz"
        kept.append((1, {"id": 1, "n": 1, "at": "2024-02-29T10:00:00"}))
        kept.table.step()
        kinds = [kind for action in actions_of(kept.location, versions(kept.location)[-1]) for kind in action]
        assert kinds[:3] == ["commitInfo", "protocol", "metaData"]
        assert "timestampNtz" in newest(kept.location, "protocol")["readerFeatures"]
        assert [n for n, at in kept.rows("n at") if at is not None] == [1]


def test_a_protocol_without_a_list_of_features_keeps_what_it_asks(tmp_path: Path) -> None:
    """A stranger turns on the change data feed, which is writer version 4; then a column comes that needs a list."""
    kept = _kept(tmp_path, vectors=False)
    metadata = newest(kept.location, "metaData")
    configuration = {**metadata["configuration"], "delta.enableChangeDataFeed": "true"}
    protocol = {"minReaderVersion": 1, "minWriterVersion": 4}
    commit(kept.location, {"protocol": protocol}, {"metaData": {**metadata, "configuration": configuration}})
    kept.value_ddl += ", more int"
    kept.engine(TableOptions(deletion_vectors=True)).step()
    assert newest(kept.location, "protocol") == protocol
    kept.value_ddl += ", at timestamp_ntz"
    kept.append((1, {"id": 1, "n": 9}))
    kept.table.step()
    after = newest(kept.location, "protocol")
    assert after["readerFeatures"] == ["timestampNtz"]
    assert {"changeDataFeed", "checkConstraints", "generatedColumns", "timestampNtz"} < set(after["writerFeatures"])
    assert kept.rows() == [(1, 9), *_AFTER[1:]]
    kept.append((1, 10))
    assert kept.engine().step() is not None


# --- commits that get lost --------------------------------------------------------------------------------------------------------------


def test_a_step_whose_commit_was_replaced_is_taken_again(tmp_path: Path) -> None:
    """Spark's commits are not put-if-absent: one of them takes the place of one that was acknowledged."""
    kept = _kept(tmp_path)
    kept.table.step()
    last = versions(kept.location)[-1]
    commit_path(kept.location, last).unlink()
    commit_a_transaction(kept.location)
    assert kept.rows() != _AFTER
    kept.table.step()
    assert kept.rows() == _AFTER


def test_a_step_whose_commit_was_replaced_by_other_rows_stops(tmp_path: Path) -> None:
    """As at any commit that changes rows."""
    kept = _kept(tmp_path)
    kept.table.step()
    last = versions(kept.location)[-1]
    commit_path(kept.location, last).unlink()
    DeltaTable(kept.location).delete("id = 1")
    with pytest.raises(UserError, match="changed by somebody else: DELETE"):
        kept.table.step()


def test_a_commit_that_was_replaced_below_another_of_ours_ends_the_steps(tmp_path: Path) -> None:
    """The later one was planned on the lost one: its position says that the rows of the lost step are there."""
    kept = _kept(tmp_path)
    kept.table.step()
    below = versions(kept.location)[-2]
    write(kept.location, below, [{"commitInfo": {"timestamp": 1, "operation": "SET TBLPROPERTIES"}}])
    kept.append((1, 9))
    for _ in range(2):
        with pytest.raises(UserError, match=rf"version {below} .* replaced.*rebuild=True"):
            kept.table.step()
    with pytest.raises(UserError, match="replaced"):
        kept.engine().step()
    kept.table.rebuild()
    assert kept.rows() == [(1, 9), (2, 2), (3, 3)]
    kept.append((1, 10))
    kept.table.step()
    assert kept.rows() == [(1, 10), (2, 2), (3, 3)]


def test_a_commit_that_is_replaced_before_it_was_looked_at_is_taken_again(tmp_path: Path) -> None:
    """Right after the put."""
    kept = _kept(tmp_path)
    left = [1]

    def replace(point: CrashPoint) -> None:
        if point is CrashPoint.TABLE_COMMIT_PUT and left.pop() if left else False:
            commit(kept.location, {"txn": {"appId": "a stranger", "version": 1}}, version=versions(kept.location)[-1])

    with hook(replace):
        kept.table.step()
    assert kept.rows() == _AFTER


def test_a_commit_that_is_put_where_the_log_was_cleaned_away_is_taken_again(tmp_path: Path) -> None:
    """A process sleeps between plan and put; others commit on, make a checkpoint, and clean: no reader looks at what it put."""
    kept = _kept(tmp_path)
    other, left = kept.engine(), [1]

    def sleep(point: CrashPoint) -> None:
        if point is CrashPoint.STEP_PLANNED and left.pop() if left else False:
            planned = versions(kept.location)[-1]
            for number in (5, 6, 7):
                kept.append((number, number))
                other.step()
            DeltaTable(kept.location).create_checkpoint()
            for version in range(planned + 2):
                commit_path(kept.location, version).unlink()

    with hook(sleep):
        kept.table.step()
    assert kept.rows() == [*_AFTER, (5, 5), (6, 6), (7, 7)]
    kept.append((1, 9))
    kept.table.step()
    assert kept.rows() == [(1, 9), *_AFTER[1:], (5, 5), (6, 6), (7, 7)]


def test_a_log_that_does_not_go_back_to_our_last_commit_ends_the_steps(tmp_path: Path) -> None:
    """What others did since is not known then."""
    kept = _kept(tmp_path)
    DeltaTable(kept.location).optimize.compact()
    DeltaTable(kept.location).create_checkpoint()
    for version in versions(kept.location)[:-1]:
        commit_path(kept.location, version).unlink()
    for engine in (kept.table, kept.engine()):
        with pytest.raises(UserError, match="does not go back to the last commit of lastword"):
            engine.step()
    kept.table.rebuild()
    assert kept.rows() == _AFTER


def test_two_engines_that_make_a_table_at_once_make_one(tmp_path: Path) -> None:
    """The second one takes the table of the first, and what it wrote itself is gone."""
    kept = Kept(tmp_path)
    kept.append((1, 1))
    other, left = kept.engine(), [1]

    def make(point: CrashPoint) -> None:
        if point is CrashPoint.TARGET_PLANNED and left.pop() if left else False:
            other.step()

    with hook(make):
        assert kept.table.step() is None
    assert versions(kept.location) == [0]
    assert len(list(Path(kept.location).glob("*.parquet"))) == 1
