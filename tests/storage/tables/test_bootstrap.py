"""A table that is made or written anew is the same wherever its tasks run: in threads, one after the other, or on executors.

```
 partitions   0   1   2   3       a task each      →  one commit
 executors    each task and what it returns go through pickle, as to another machine
```
"""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lastword.compaction.errors import UserError
from lastword.compaction.planning.rate_limiter import spend_freely
from lastword.storage.tables.table import MaterializedTable
from lastword.storage.tables.table_options import TableLimits, TableOptions
from tests.clocks import at
from tests.pictures import DAY_MS, HOUR_MS, T0
from tests.storage.tables.kept import Kept
from tests.storage.tables.readers import read_duckdb, read_polars

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

_SPREAD = TableLimits(spread_bytes=0)


@dataclass
class _Executors:
    """A cluster whose tasks go through pickle there and back; `lost` is the partition whose executor dies."""

    has_executors: bool = True
    lost: int | None = None
    given: list[int] = field(default_factory=list)

    def run(self, tasks: Sequence[Any], parallelism: int | None) -> list[Any]:  # noqa: ARG002  a cluster's signature
        done = []
        for task in tasks:
            if task.partition == self.lost:
                message = "an executor is lost"
                raise RuntimeError(message)
            self.given.append(task.partition)
            done.append(pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(task)).run(spend_freely))))  # noqa: S301  our own
        return done


def _engine(kept: Kept, cluster: _Executors | None, options: TableOptions) -> MaterializedTable:
    return MaterializedTable(kept.topic.log, kept.location, kept.layout, options, {}, cluster=cluster)


def _filled(folder: Path, **arguments: Any) -> Kept:
    """Return a topic of four partitions with clean and dirty sections, tombstones, and one partition without a record."""
    kept = Kept(folder, partitions=4, **arguments)
    for partition in range(3):
        kept.append(*((number, number + partition) for number in range(40)), partition=partition)
        kept.append((3, None), (4, 400), partition=partition, time_ms=T0 + HOUR_MS)
    kept.topic.roll()
    at(T0 + DAY_MS, kept.topic).clean()
    for partition in range(2):
        kept.append((5, 500), (6, None), (77, 1), partition=partition, time_ms=T0 + DAY_MS)
    return kept


def _rows(kept: Kept, read: Callable[[str], pa.Table] = read_polars) -> list[str]:
    return sorted(map(str, read(kept.location).to_pylist()))


@pytest.mark.parametrize(
    "arguments", [{}, {"history": True}, {"record_columns": ("_offset", "_headers")}], ids=["latest", "history", "own"]
)
@pytest.mark.parametrize("limits", [TableLimits(), _SPREAD, TableLimits(chunk_rows=7), TableLimits(index_bytes=1)])
def test_executors_write_the_table_that_threads_write(tmp_path: Path, arguments: dict[str, Any], limits: TableLimits) -> None:
    """In the making and anew; small work stays here."""
    kept, executors = _filled(tmp_path, **arguments), _Executors()
    options = TableOptions(limits=limits)
    done = _engine(kept, executors, options).step()
    assert done is not None
    assert (done.kind, done.written_rows) == ("bootstrap", len(kept.topic.latest()))
    assert sorted(executors.given) == ([0, 1, 2, 3] if limits is _SPREAD else [])
    made = _rows(kept)
    assert _table(kept) == _latest(kept)
    kept.append((5, 501), (90, 9), partition=0, time_ms=T0 + DAY_MS)
    assert _engine(kept, executors, options).rebuild().kind == "rebuild"
    rebuilt = _rows(kept)
    assert len(rebuilt) == len(made) + 1
    _engine(kept, None, TableOptions()).rebuild()
    assert _rows(kept) == rebuilt


def test_steps_go_on_from_a_table_that_executors_made(tmp_path: Path) -> None:
    """The index of its keys is read from its files."""
    kept = _filled(tmp_path)
    table = _engine(kept, _Executors(), TableOptions(limits=_SPREAD))
    assert table.step() is not None
    kept.append((5, 7), (4, None), (78, 2), partition=0, time_ms=T0 + DAY_MS)
    done = table.step()
    assert done is not None
    assert (done.written_rows, done.deleted_rows) == (2, 2)
    assert _table(kept) == _latest(kept)


def test_partition_columns_and_mapped_names_reach_the_executors(tmp_path: Path) -> None:
    """Folders, and field ids of columns whose names Delta takes only under column mapping."""
    kept = Kept(tmp_path, value_ddl="id bigint, `a b` bigint, day date", partitions=2)
    for partition in (0, 1):
        rows = [{"id": number, "a b": 1, "day": "2026-01-02" if number % 2 else None} for number in range(6)]
        kept.append(*((number, row) for number, row in enumerate(rows)), partition=partition)
    _engine(kept, _Executors(), TableOptions(limits=_SPREAD, partition_by=("day",))).step()
    executed = _rows(kept, read_duckdb)
    assert len(executed) == 12
    _engine(kept, None, TableOptions(partition_by=("day",))).rebuild()
    assert _rows(kept, read_duckdb) == executed


@pytest.mark.parametrize("limits", [TableLimits(), _SPREAD], ids=["threads", "executors"])
def test_a_value_that_does_not_fit_ends_it_and_leaves_no_file(tmp_path: Path, limits: TableLimits) -> None:
    """Whichever partition it is in; the others' files go as well, and the message names the place."""
    kept = _filled(tmp_path)
    kept.append((8, {"id": 8, "n": "many"}), partition=2, time_ms=T0 + DAY_MS)
    with pytest.raises(UserError, match=r'partition 2, offset \d+, key \{"id":8\}: column n = "many"'):
        _engine(kept, _Executors(), TableOptions(limits=limits)).step()
    assert not list(Path(kept.location).rglob("*.parquet"))


def test_a_lost_executor_leaves_the_table_as_it_was(tmp_path: Path) -> None:
    """Nothing is committed; the next try makes it."""
    kept = _filled(tmp_path)
    with pytest.raises(RuntimeError, match="executor is lost"):
        _engine(kept, _Executors(lost=2), TableOptions(limits=_SPREAD)).step()
    assert not Path(kept.location, "_delta_log").exists()
    done = _engine(kept, _Executors(), TableOptions(limits=_SPREAD)).step()
    assert done is not None
    assert _table(kept) == _latest(kept)


def test_dead_letters_are_written_by_the_process_that_commits_them(tmp_path: Path) -> None:
    """One partition after the other, however large it is."""
    kept, executors = _filled(tmp_path), _Executors()
    kept.append((8, {"id": 8, "n": "many"}), partition=2, time_ms=T0 + DAY_MS)
    done = _engine(kept, executors, TableOptions(limits=_SPREAD, mode="DROPMALFORMED")).step()
    assert done is not None
    assert (done.misfit_rows, executors.given) == (1, [])
    assert [letter["reason"] for letter in kept.topic.dead_letters().to_pylist()] == ["table_misfit"]


def _latest(kept: Kept) -> dict[tuple[int, int], int]:
    rows = kept.topic.latest().to_pylist()
    return {(row["partition"], json.loads(row["key"])["id"]): json.loads(row["value"])["n"] for row in rows}


def _table(kept: Kept) -> dict[tuple[int, int], int]:
    return {(row["_partition"], row["id"]): row["n"] for row in read_polars(kept.location).to_pylist()}
