"""Typed tables by the front door, without Spark: made, followed, paused, dropped, and erased from."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from deltalake import DeltaTable

from lastword import LogDir, UserError
from lastword.compaction.errors import InvalidConfiguration
from lastword.compaction.read_positions import Position
from lastword.storage.delta.crash_points import CrashPoint, hook
from tests.change_events import append, change, key_of
from tests.clocks import at
from tests.pictures import DAY_MS, T0
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from lastword import ArrowTopic
    from lastword.topics.tables import TableArguments

_SCHEMA = "id bigint, price decimal(10,2)"
_COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}


@pytest.fixture
def topic(tmp_path: Path) -> ArrowTopic:
    """Return a topic with two rows."""
    made = LogDir(tmp_path / "data").create_topic("orders", partitions=2, config=_COMPACT)
    _append(made, {1: "1.00", 2: "2.00"})
    return made


def _append(topic: ArrowTopic, prices: dict[int, str | None]) -> None:
    topic.append(
        [
            {"key": f'{{"id":{number}}}', "value": None if price is None else f'{{"id":{number},"price":"{price}"}}'}
            for number, price in prices.items()
        ]
    )


def _prices(path: Path) -> dict[int, str]:
    return {row["id"]: str(row["price"]) for row in pl.read_delta(str(path)).to_dicts()}


def test_one_call_takes_all_steps_and_says_what_it_did(topic: ArrowTopic, tmp_path: Path) -> None:
    """Bootstrap, step, nothing, rebuild."""
    path = tmp_path / "table"
    done = topic.materialize(str(path), schema=_SCHEMA)
    assert (done.kind, done.steps, done.written_rows, done.deleted_rows, done.table_version) == ("bootstrap", 1, 2, 0, 0)
    assert sum(done.position.offsets) == 2
    _append(topic, {1: "1.50", 2: None, 3: "3.00"})
    done = topic.materialize(str(path), schema=_SCHEMA)
    assert (done.kind, done.written_rows, done.deleted_rows) == ("step", 2, 2)
    done = topic.materialize(str(path), schema=_SCHEMA)
    assert (done.kind, done.steps, sum(done.position.offsets)) == ("", 0, 5)
    assert _prices(path) == {1: "1.50", 3: "3.00"}
    assert topic.materialize(str(path), schema=_SCHEMA, rebuild=True).kind == "rebuild"
    assert _prices(path) == {1: "1.50", 3: "3.00"}


def test_a_table_of_change_events_has_the_columns_of_the_events(tmp_path: Path) -> None:
    """No schema is given; keys are columns, and `_key` is null."""
    topic = LogDir(tmp_path / "data").create_topic("orders", config=_COMPACT)
    columns = [{"field": "id", "type": "int32"}, {"field": "price", "type": "double", "optional": True}]
    row = {"type": "struct", "optional": True, "fields": columns}
    source = {"connector": "mysql", "name": "s", "file": "bin.000001", "pos": 10}
    append(topic, change("c", 1, source, {"id": 1, "price": 1.5}, schema=_envelope(row)))
    topic.materialize(str(tmp_path / "table"))
    [found] = pl.read_delta(str(tmp_path / "table")).to_dicts()
    assert {name: found[name] for name in ("id", "price")} == {"id": 1, "price": 1.5}


def _envelope(row: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": [{**row, "field": "before"}, {**row, "field": "after"}, {"field": "op", "type": "string"}]}


def test_a_follower_goes_on_until_it_is_stopped(topic: ArrowTopic, tmp_path: Path) -> None:
    """It sees what comes, and says what it did."""
    follower = topic.materialize(str(tmp_path / "table"), schema=_SCHEMA, follow=True, every_seconds=0.01)
    until(lambda: follower.is_in_step)
    _append(topic, {3: "3.00"})
    until(lambda: follower.progress.written_rows == 3)
    assert not follower.wait(0.01)
    assert follower.stop().steps == 2
    assert follower.wait()
    assert _prices(tmp_path / "table") == {1: "1.00", 2: "2.00", 3: "3.00"}


def test_an_error_ends_a_follower_and_is_raised_to_whoever_waits(topic: ArrowTopic, tmp_path: Path) -> None:
    """The step is not in the table."""
    follower = topic.materialize(str(tmp_path / "table"), schema=_SCHEMA, follow=True, every_seconds=0.01)
    until(lambda: follower.is_in_step)
    topic.append([{"key": '{"id":1}', "value": '{"id":1,"price":"dear"}'}])
    with pytest.raises(UserError, match=r'key \{"id":1\}: column price = "dear": allowed is decimal\(10,2\)'):
        follower.wait(30)
    with pytest.raises(UserError, match="dear"):
        follower.stop()
    assert _prices(tmp_path / "table") == {1: "1.00", 2: "2.00"}


def test_pausing_dropping_and_what_is_no_table(topic: ArrowTopic, tmp_path: Path) -> None:
    """A paused table takes no step in any process; a dropped one is kept nothing for."""
    path = str(tmp_path / "table")
    with pytest.raises(UserError, match=r"has no table .*: allowed is none; lastword materialize makes one"):
        topic.pause_table(path)
    topic.materialize(path, schema=_SCHEMA, history=True)
    [table] = topic.tables()
    assert (table.path, table.history, table.paused, table.lag) == (path, True, False, 0)
    topic.pause_table(path)
    topic.pause_table(path)
    _append(topic, {1: "9.00"})
    assert [(one.paused, one.lag) for one in topic.tables()] == [(True, 1)]
    with pytest.raises(UserError, match="is paused: lastword tables resume goes on with it"):
        topic.materialize(path, schema=_SCHEMA, history=True)
    topic.resume_table(path)
    assert topic.materialize(path, schema=_SCHEMA, history=True).steps == 1
    with pytest.raises(UserError, match=f"has no table {tmp_path / 'other'}: allowed is {path}"):
        topic.drop_table(str(tmp_path / "other"))
    topic.drop_table(path)
    assert (topic.tables(), topic.readers()) == ([], [])
    topic.materialize(path, schema=_SCHEMA, history=True)
    assert [one.path for one in topic.tables()] == [path]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"schema": "id bignt"}, "schema = 'id bignt'"),
        ({"schema": 7}, "schema = 7: allowed is SQL DDL as a text"),
        ({}, "no source of the topic says which columns its rows have"),
        ({"schema": _SCHEMA, "mode": "DROP"}, "mode = 'DROP': allowed is FAILFAST, PERMISSIVE or DROPMALFORMED"),
        ({"schema": _SCHEMA, "isolation": "dirty"}, "isolation 'dirty': allowed is read_committed or read_uncommitted"),
        ({"schema": _SCHEMA, "on_type_change": "ask"}, "on_type_change = 'ask': allowed is rebuild or fail"),
        ({"schema": _SCHEMA, "max_offsets_per_step": 0}, "max_offsets_per_step = 0: allowed is 1 or more"),
        ({"schema": _SCHEMA, "record_columns": ["_part"]}, "'_part': allowed are _offset, _timestamp, _headers, _value"),
        ({"schema": _SCHEMA, "follow": True, "every_seconds": 0}, "every_seconds = 0: allowed is a number above 0"),
        ({"schema": "id int, _key string"}, "the columns _key have names of columns that lastword adds"),
        ({"schema": "a int, A int"}, "does not tell names apart by case"),
        ({"schema": _SCHEMA, "properties": {"delta.columnMapping.mode": "id"}}, "properties delta.columnMapping.mode = id"),
        ({"schema": _SCHEMA, "properties": {"delta.appendOnly": "true"}}, "properties delta.appendOnly = true"),
        ({"schema": _SCHEMA, "properties": {"lastword-table": "{}"}}, "properties lastword-table = {}"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_made(topic: ArrowTopic, tmp_path: Path, given: dict[str, Any], message: str) -> None:
    """The value, and what is allowed; no table and no registration is there after it."""
    with pytest.raises((UserError, InvalidConfiguration)) as caught:
        topic.materialize(str(tmp_path / "table"), **given)
    assert message in str(caught.value)
    assert not (tmp_path / "table").exists()
    assert topic.tables() == []


def test_a_table_is_described_by_its_delta_log(topic: ArrowTopic, tmp_path: Path) -> None:
    """Rows, files, columns and position; a table that is registered and not there has none of them."""
    path = str(tmp_path / "table")
    topic.materialize(path, schema=_SCHEMA)
    _append(topic, {1: "9.00", 2: None})
    topic.materialize(path, schema=_SCHEMA)
    _append(topic, {3: "1.00"})
    found = topic.describe_table(path)
    assert (found.path, found.table_version, found.rows, found.lag) == (path, 1, 1, 1)
    assert (found.files >= 1, found.size_bytes > 0, found.deletion_vectors, sum(found.offsets)) == (True, True, True, 4)
    assert dict(found.columns) == {"id": "long", "price": "decimal(10,2)", "_partition": "integer", "_key": "binary"}
    shutil.rmtree(path)
    assert (topic.describe_table(path).table_version, topic.describe_table(path).columns) == (-1, {})
    with pytest.raises(UserError, match=f"topic orders has no table .*other: allowed is {path}"):
        topic.describe_table(str(tmp_path / "other"))


def test_a_rebuild_that_is_asked_for_is_done_by_the_next_step_once(topic: ArrowTopic, tmp_path: Path) -> None:
    """Also of a table that somebody else changed; one that is asked for during it is done after it."""
    path = str(tmp_path / "table")
    topic.materialize(path, schema=_SCHEMA)
    DeltaTable(path).delete("id = 1")
    with pytest.raises(UserError, match="was changed by somebody else"):
        topic.materialize(path, schema=_SCHEMA)
    topic.rebuild_table(path)
    follower = topic.materialize(path, schema=_SCHEMA, follow=True, every_seconds=0.01)
    try:
        until(lambda: follower.is_in_step)
        assert (follower.progress.kind, follower.progress.steps) == ("rebuild", 1)
    finally:
        follower.stop()
    assert _prices(tmp_path / "table") == {1: "1.00", 2: "2.00"}

    def asks_again(point: CrashPoint) -> None:
        if point is CrashPoint.TARGET_MADE and len(asked) < 2:
            asked.append(T0 + len(asked))
            at(asked[-1], topic).rebuild_table(path)

    asked: list[int] = []
    topic.rebuild_table(path)
    with hook(asks_again):
        kinds = [topic.materialize(path, schema=_SCHEMA).kind for _ in range(4)]
    assert kinds == ["rebuild", "rebuild", "rebuild", ""]


def test_tombstones_are_kept_for_a_table_that_has_not_read_them(topic: ArrowTopic, tmp_path: Path) -> None:
    """It is a registered reader by itself."""
    path = str(tmp_path / "table")
    topic.materialize(path, schema=_SCHEMA)
    _append(topic, {1: None})
    topic.roll()
    for days in (2, 4):
        at(T0 + days * DAY_MS, topic).clean()
    assert topic.materialize(path, schema=_SCHEMA).deleted_rows == 1
    assert _prices(tmp_path / "table") == {2: "2.00"}


@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("deletion_vectors", [False, True])
def test_a_purge_erases_a_key_from_a_table(topic: ArrowTopic, tmp_path: Path, *, history: bool, deletion_vectors: bool) -> None:
    """From rows, past rows, old files and vectors; a step that was in hand with the key is not taken after it."""
    path = str(tmp_path / "table")
    options: TableArguments = {"schema": _SCHEMA, "history": history, "deletion_vectors": deletion_vectors}
    topic.materialize(path, **options)
    for price in ("3.00", "4.00"):
        _append(topic, {1: price})
        topic.materialize(path, **options)
    _append(topic, {1: "5.00"})  # read by no step yet

    def purged(point: CrashPoint) -> None:
        if point is CrashPoint.STEP_PLANNED and not receipts:
            receipts.append(topic.purge(key_of(1).replace(" ", "")))

    receipts: list[Any] = []
    with hook(purged):
        topic.materialize(path, **options)
    [receipt] = receipts
    assert receipt.target_rows_removed == {path: 3 if history else 1}
    assert (receipt.readers, receipt.absent_targets) == ((), ())
    assert set(_prices(tmp_path / "table")) == {2}
    for file in (tmp_path / "table").glob("*.parquet"):
        assert 1 not in pl.read_parquet(file)["id"].to_list()
    assert topic.purge('{"id":1}').was_found is False


def test_a_purge_says_which_table_it_could_not_erase_from(topic: ArrowTopic, tmp_path: Path) -> None:
    """One whose place holds another topic's table now is absent; one that is gone as well."""
    other = LogDir(tmp_path / "data").create_topic("other", config=_COMPACT)
    paths = [str(tmp_path / name) for name in ("theirs", "gone")]
    for path in paths:
        topic.materialize(path, schema=_SCHEMA)
        for file in sorted((tmp_path / path).rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()
    other.materialize(paths[0], schema=_SCHEMA)
    assert topic.purge('{"id":1}').absent_targets == tuple(sorted(paths))


def test_a_position_is_that_of_the_topic(topic: ArrowTopic, tmp_path: Path) -> None:
    """A reader may go on from there."""
    done = topic.materialize(str(tmp_path / "table"), schema=_SCHEMA)
    assert isinstance(done.position, Position)
    assert topic.records(from_offsets=done.position).num_rows == 0
