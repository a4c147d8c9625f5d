"""Steps of a table: what each commit does, and what is there after one that failed."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from lastword.compaction.errors import ReaderBehind, UserError
from lastword.storage.delta.crash_points import CrashPoint, hook
from lastword.storage.tables.table_options import TableLimits, TableOptions
from tests.pictures import T0
from tests.storage.tables.kept import Kept
from tests.storage.tables.table_lives import failing

_VECTORS = pytest.mark.parametrize("vectors", [True, False], ids=["deletion vectors", "copy on write"])


@_VECTORS
def test_a_step_replaces_and_deletes_the_rows_of_its_keys(tmp_path: Path, *, vectors: bool) -> None:
    """With deletion vectors no file is written again; without them each file that loses rows is."""
    kept = Kept(tmp_path, options=TableOptions(deletion_vectors=vectors))
    kept.fill(4)
    kept.append((1, 7), (2, None), (9, 9))
    done = kept.table.step()
    assert done is not None
    assert (done.kind, done.written_rows, done.deleted_rows, done.position.offsets) == ("step", 2, 2, (7,))
    assert kept.rows() == [(0, 0), (1, 7), (3, 0), (9, 9)]
    assert kept.table.step() is None
    assert Path(kept.location, "_dv").exists() is vectors


@_VECTORS
def test_an_engine_without_vectors_writes_files_again_that_have_them(tmp_path: Path, *, vectors: bool) -> None:
    """And one with them leaves them out where the table's protocol does not know them: readers would show deleted rows."""
    kept = Kept(tmp_path, options=TableOptions(deletion_vectors=vectors))
    kept.fill(4)
    kept.append((1, 7))
    kept.table.step()
    other = kept.engine(TableOptions(deletion_vectors=not vectors))
    kept.append((2, 7), (3, None))
    other.step()
    assert kept.rows() == [(0, 0), (1, 7), (2, 7)]
    assert Path(kept.location, "_dv").exists() is vectors
    other.rebuild()
    kept.append((0, 9))
    other.step()
    assert kept.rows() == [(0, 9), (1, 7), (2, 7)]


def test_the_files_of_a_commit_stay_whatever_fails_after_it(tmp_path: Path) -> None:
    """The process dies between the put and the look at what was put: readers have the commit already."""
    kept = Kept(tmp_path)
    kept.fill(4)
    kept.append((1, 7))

    def die(point: CrashPoint) -> None:
        if point is CrashPoint.TABLE_COMMIT_PUT:
            raise KeyboardInterrupt

    with hook(die), pytest.raises(KeyboardInterrupt):
        kept.table.step()
    assert kept.rows() == [(0, 0), (1, 7), (2, 0), (3, 0)]
    assert kept.table.step() is None
    assert kept.engine().step() is None


@pytest.mark.parametrize("is_cleaned", [False, True])
def test_a_checkpoint_right_after_a_commit_is_no_conflict(tmp_path: Path, *, is_cleaned: bool) -> None:
    """Another process takes a step and writes a checkpoint before the first one has checked its commit; old commits may be gone."""
    kept = Kept(tmp_path)
    kept.fill(4)
    kept.append((1, 7))
    other, left = kept.engine(), [1]

    def step(point: CrashPoint) -> None:
        if point is CrashPoint.TABLE_COMMIT_PUT and left.pop() if left else False:
            kept.append((2, 8))
            other.step()
            DeltaTable(kept.location).create_checkpoint()
            if is_cleaned:
                for version in (0, 1):
                    Path(kept.location, f"_delta_log/{version:020}.json").unlink()

    with hook(step):
        kept.table.step()
    assert kept.rows() == [(0, 0), (1, 7), (2, 8), (3, 0)]
    kept.append((3, 9))
    kept.table.step()
    assert kept.rows() == [(0, 0), (1, 7), (2, 8), (3, 9)]


@pytest.mark.parametrize("nth", [1, 2, 3, 4])
@pytest.mark.parametrize("what", ["os.fsync", "os.link"])
def test_the_files_of_a_step_that_fails_are_deleted(tmp_path: Path, what: str, nth: int) -> None:
    """The step is taken again by the same engine."""
    kept = Kept(tmp_path, options=TableOptions(limits=TableLimits(chunk_rows=1)))
    kept.fill(4)
    before = _data_files(kept)
    kept.append((1, 7), (2, None))
    with failing(what, nth, done=False):
        try:
            kept.table.step()
        except OSError:
            assert _data_files(kept) == before
    kept.table.step()
    assert kept.rows() == [(0, 0), (1, 7), (3, 0)]


def _data_files(kept: Kept) -> set[str]:
    return {str(path) for path in Path(kept.location).rglob("*") if path.is_file() and path.suffix in {".parquet", ".bin"}}


def test_columns_that_come_in_a_history_are_null_in_rows_before_them(tmp_path: Path) -> None:
    """The rows that end in that step lie in a file with the new ones."""
    kept = Kept(tmp_path, history=True)
    kept.append((1, 7))
    kept.table.step()
    kept.value_ddl += ", more string"
    kept.append((1, {"id": 1, "n": 8, "more": "x"}))
    kept.table.step()
    assert kept.rows("id n more _is_current") == [(1, 7, None, False), (1, 8, "x", True)]


@pytest.mark.parametrize("chunk_rows", [1, 100])
def test_a_tombstone_without_a_row_before_it_says_nothing_of_when_rows_hold(tmp_path: Path, chunk_rows: int) -> None:
    """The periods are the same wherever a step ends, as the table keeps no tombstones."""
    kept = Kept(tmp_path, history=True, options=TableOptions(limits=TableLimits(chunk_rows=chunk_rows)))
    kept.table.step()
    kept.append((1, None), time_ms=T0 + 5000)
    kept.append((1, 7), time_ms=T0)
    kept.append((1, None), time_ms=T0 + 1000)
    kept.append((1, None), time_ms=T0 + 9000)
    kept.append((1, 8), time_ms=T0 + 2000)
    kept.table.step()
    found = kept.rows("n _valid_from _valid_to")
    assert [(n, _ms(begin), _ms(end)) for n, begin, end in found] == [(7, 0, 1000), (8, 2000, None)]


def _ms(moment: object) -> int | None:
    return None if moment is None else round(moment.timestamp() * 1000) - T0  # type: ignore[attr-defined]


def test_a_table_that_missed_a_removed_tombstone_says_so_and_is_rebuilt(tmp_path: Path) -> None:
    """It may hold what was deleted."""
    kept = Kept(tmp_path)
    kept.fill(3)
    kept.append((1, None), (2, 5))
    kept.clean()
    kept.clean(days=2)
    with pytest.raises(ReaderBehind, match="rebuild"):
        kept.table.step()
    kept.table.rebuild()
    assert kept.rows() == [(0, 0), (2, 5)]


def test_a_column_of_another_type_rebuilds_the_table_or_ends_the_step(tmp_path: Path) -> None:
    """By `on_type_change`; the text names the column and both types."""
    kept = Kept(tmp_path)
    kept.fill(2)
    kept.value_ddl = "id bigint, n string"
    kept.append((1, {"id": 1, "n": "x"}), (0, {"id": 0, "n": "0"}))
    with pytest.raises(UserError, match="n is long and would be string"):
        kept.engine(TableOptions(on_type_change="fail")).step()
    done = kept.table.step()
    assert done is not None
    assert done.kind == "rebuild"
    assert kept.rows() == [(0, "0"), (1, "x")]
