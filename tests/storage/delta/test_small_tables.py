"""Commits to tables without partitions: made once, refused where rows must stay, with a checkpoint at each interval."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from lastword.compaction.errors import CommitConflict, CorruptLog
from lastword.storage.delta.protocol import unknown_features
from lastword.storage.delta.small_tables import AppVersion, commit_rows, create_small_table, current_files
from lastword.storage.delta.tables import open_table, refresh_table, txn_version
from lastword.storage.files.row_files import RowFile, write_row_file
from lastword.storage.files.schema import ledger_schema, small_table_properties

_APP_ID: Final = "lastword-ledger"
_ARROW: Final = pa.schema(ledger_schema().to_arrow())


class Table:
    """A small table on a local disk, made with one file."""

    def __init__(self, location: Path, **properties: str) -> None:
        """Make it."""
        self.location = str(location)
        version = AppVersion(app_id=_APP_ID, expected=-1, next=1)
        given = {**small_table_properties(), **{f"delta.{name}": value for name, value in properties.items()}}
        create_small_table(self.location, {}, ledger_schema(), given, [self.written()], kind="ledger", version=version)
        self.table = open_table(self.location, {})

    def written(self) -> RowFile:
        """Write a file of one row, which is in no commit."""
        rows = pa.table({name: pa.nulls(1, one.type) for name, one in zip(_ARROW.names, _ARROW, strict=True)})
        file = write_row_file(self.location, {}, [rows], _ARROW)
        assert file is not None
        return file

    def commit(self, *adds: RowFile, **more: Any) -> int:
        """Commit files."""
        return commit_rows(self.location, {}, lambda: refresh_table(self.table), adds, kind="ledger", **more)

    def put(self, *actions: dict[str, Any]) -> None:
        """Commit as another writer does."""
        version = refresh_table(self.table).version() + 1
        text = "".join(f"{json.dumps(action)}\n" for action in actions)
        Path(self.location, "_delta_log", f"{version:020}.json").write_text(text, encoding="utf-8")


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table with one file."""
    return Table(tmp_path / "ledger")


def test_a_table_is_made_with_its_first_files_and_once(table: Table) -> None:
    """In one commit, which sets the version of an application id."""
    assert (table.table.version(), len(current_files(table.table)), txn_version(table.table, _APP_ID)) == (0, 1, 1)
    with pytest.raises(FileExistsError, match="there is a table"):
        Table(Path(table.location))


def test_files_are_replaced_in_one_commit_unless_another_came_first(table: Table) -> None:
    """By the version of the application id, by the files themselves, and by the version that was planned with."""
    (old,) = current_files(table.table)
    new, version = table.written(), AppVersion(app_id=_APP_ID, expected=1, next=2)
    assert table.commit(new, removes=[old], version=version) == 1
    assert [file.path for file in current_files(refresh_table(table.table))] == [new.path]
    for more in ({"version": version}, {"removes": [old]}, {"planned_version": 0}):
        with pytest.raises(CommitConflict, match="another commit came before version 2"):
            table.commit(table.written(), **more)
    assert refresh_table(table.table).version() == 1


def test_a_checkpoint_is_written_at_each_interval(tmp_path: Path) -> None:
    """As delta-rs counts them; another writer may ask for more of them, or write what is no number."""
    table = Table(tmp_path / "ledger", checkpointInterval="3")
    for _ in range(5):
        table.commit(table.written())
    written = sorted(file.name[:20] for file in Path(table.location, "_delta_log").glob("*.checkpoint*.parquet"))
    assert [int(name) for name in written] == [2, 5]
    assert len(current_files(open_table(table.location, {}))) == 6
    other = Table(tmp_path / "other", checkpointInterval="often")
    assert [other.commit(other.written()) for _ in range(3)] == [1, 2, 3]


def test_a_checkpoint_that_cannot_be_written_is_no_failure_of_the_commit(tmp_path: Path) -> None:
    """The commit counts, and a later one has its own."""
    table = Table(tmp_path / "ledger", checkpointInterval="2")
    Path(table.location, "_delta_log", f"{1:020}.checkpoint.parquet").mkdir()
    assert [table.commit(table.written()) for _ in range(2)] == [1, 2]


@pytest.mark.parametrize(
    ("reader", "writer", "features", "unknown"),
    [
        (1, 1, [], ()),
        (1, 4, [], ()),
        (2, 5, [], ()),
        (1, 6, [], ("writer version 6",)),
        (1, 7, ["appendOnly", "checkConstraints", "changeDataFeed"], ()),
        (3, 7, ["deletionVectors"], ()),
        (1, 7, ["rowTracking", "inCommitTimestamp", "appendOnly"], ("inCommitTimestamp", "rowTracking")),
    ],
)
def test_a_table_is_written_to_as_long_as_it_asks_for_nothing_unknown(
    table: Table, reader: int, writer: int, features: list[str], unknown: tuple[str, ...]
) -> None:
    """What delta-rs refused before is refused; nothing of the commit is written then."""
    protocol: dict[str, Any] = {"minReaderVersion": reader, "minWriterVersion": writer}
    protocol |= {"writerFeatures": features} if writer == 7 else {}
    protocol |= {"readerFeatures": features} if reader == 3 else {}
    table.put({"protocol": protocol})
    assert unknown_features(refresh_table(table.table)) == unknown
    if not unknown:
        assert table.commit(table.written()) == 2
        return
    with pytest.raises(CorruptLog, match=f"asks for {', '.join(unknown)}, which lastword does not do. Nothing of this commit was written"):
        table.commit(table.written())
    assert refresh_table(table.table).version() == 1


def test_no_row_leaves_a_table_that_is_for_appends_alone(table: Table) -> None:
    """Rows that come are committed all the same."""
    table.table.alter.set_table_properties({"delta.appendOnly": "true"})
    files = current_files(refresh_table(table.table))
    with pytest.raises(CorruptLog, match=r"delta\.appendOnly"):
        table.commit(table.written(), removes=files)
    assert table.commit(table.written()) == 2
