"""mode = DROPMALFORMED: a record that does not fit its table is a dead letter of the topic, once, and the table has no row of it.

```
 log             id 1 = 5     id 1 = "x"          id 1 = 7
 table           1 → 5        –                   1 → 7
 dead letters                 offset 1, "x"       offset 1, "x"
```
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import polars as pl
import pytest

from lastword.compaction.errors import UserError
from lastword.storage.append.dead_letters import open_dead_letters
from lastword.storage.delta.crash_points import CrashPoint, hook
from lastword.storage.delta.small_tables import current_files
from lastword.storage.tables.table_log import TableLog
from lastword.storage.tables.table_options import TableLimits, TableOptions
from tests.pictures import T0
from tests.storage.tables.kept import Kept

_DROPS = TableOptions(mode="DROPMALFORMED")


def _bad(number: int, text: Any = "x") -> tuple[int, dict[str, Any]]:
    return number, {"id": number, "n": text}


def _letters(kept: Kept) -> list[tuple[int, str, str]]:
    return [(letter["offset"], letter["reason"], letter["detail"]) for letter in kept.topic.dead_letters().to_pylist()]


def _offsets(kept: Kept) -> list[int]:
    return [offset for offset, _, _ in _letters(kept)]


def test_the_table_has_no_row_of_a_key_whose_last_record_does_not_fit(tmp_path: Path) -> None:
    """It keeps no older row and none of nulls; the dead letter names place, column and value; the key is not stale by it."""
    kept = Kept(tmp_path, options=_DROPS)
    kept.append((1, 5), (2, 2), _bad(3))
    done = kept.table.step()
    assert done is not None
    assert (done.written_rows, done.misfit_rows, kept.rows()) == (2, 1, [(1, 5), (2, 2)])
    kept.append(_bad(1), _bad(4, {"deep": 1}), (2, 3))
    done = kept.table.step()
    assert done is not None
    assert (done.written_rows, done.deleted_rows, done.misfit_rows, kept.rows()) == (1, 2, 2, [(2, 3)])
    [first, *_] = _letters(kept)
    assert first[:2] == (2, "table_misfit")
    assert 'column n = "x"' in first[2]
    letter = kept.topic.dead_letters().to_pylist()[0]
    assert (letter["key"], letter["value"], letter["source"]) == (b'{"id":3}', b'{"id":3,"n":"x"}', f"table {kept.location}")
    assert kept.topic.stale_keys() == ()
    assert _offsets(kept) == [2, 3, 4]
    kept.append((1, 7))
    kept.table.step()
    assert kept.rows() == [(1, 7), (2, 3)]


def test_a_record_that_ends_a_period_and_does_not_fit_begins_none(tmp_path: Path) -> None:
    """In a history: from its timestamp on nothing is known of the key."""
    kept = Kept(tmp_path, history=True, options=TableOptions(mode="DROPMALFORMED", limits=TableLimits(chunk_rows=1)))
    kept.append((1, 5), (2, 2))
    kept.table.step()
    kept.append(_bad(1), time_ms=T0 + 1000)
    kept.append((1, 7), time_ms=T0 + 2000)
    kept.table.step()
    found = [(number, n, begin.second, end and end.second) for number, n, begin, end in kept.rows("id n _valid_from _valid_to")]
    base = found[0][2]
    assert [(number, n, begin - base, None if end is None else end - base) for number, n, begin, end in found] == [
        (1, 5, 0, 1),
        (1, 7, 2, None),
        (2, 2, 0, None),
    ]
    assert _offsets(kept) == [2]


@pytest.mark.parametrize("point", [CrashPoint.TABLE_COMMIT_PUT, CrashPoint.STEP_TAKEN, CrashPoint.STEP_PLANNED])
def test_a_step_that_is_taken_again_writes_its_letters_once(tmp_path: Path, point: CrashPoint) -> None:
    """A step that was killed before or after the commit of the table is repeated."""
    kept = Kept(tmp_path, options=_DROPS)
    kept.append((1, 5), _bad(2))
    kept.table.step()
    kept.append(_bad(1), (3, 3))

    def die(reached: CrashPoint) -> None:
        if reached is point:
            raise KeyboardInterrupt

    with hook(die), pytest.raises(KeyboardInterrupt):
        kept.table.step()
    again = kept.engine()
    again.step()
    assert again.step() is None
    assert (kept.rows(), _offsets(kept)) == ([(3, 3)], [1, 2])


def test_letters_are_written_before_the_commit_that_leaves_their_records_out(tmp_path: Path) -> None:
    """A commit that fails leaves them, and the step that is taken again takes their place: they are there once."""
    kept = Kept(tmp_path, options=_DROPS)
    kept.append((1, 5))
    kept.table.step()
    kept.append(_bad(1))
    other = kept.engine()
    seen = list[list[int]]()

    def overtake(reached: CrashPoint) -> None:
        if reached is CrashPoint.STEP_PLANNED and not seen:
            seen.append([])
            other.step()
            seen.append(_offsets(kept))

    with hook(overtake):
        kept.table.step()
    assert (seen, _offsets(kept), kept.rows()) == ([[], [1]], [1], [])


@pytest.mark.parametrize("most", [None, 1])
def test_of_two_steps_of_different_lengths_no_letter_is_lost(tmp_path: Path, most: int | None) -> None:
    """The longer one is committed while the shorter one is under way."""
    kept = Kept(tmp_path, options=_DROPS)
    kept.append((1, 5))
    kept.table.step()
    kept.append(_bad(2))
    short, long, seen = kept.engine(TableOptions(mode="DROPMALFORMED", max_offsets_per_step=most)), kept.engine(), list[list[int]]()

    def overtake(reached: CrashPoint) -> None:
        if reached is CrashPoint.STEP_PLANNED and not seen:
            seen.append([])
            kept.append(_bad(3))
            long.step()
            seen.append(_offsets(kept))

    with hook(overtake):
        short.step()
    while short.step():
        pass
    assert (seen[1], sorted(set(_offsets(kept))), kept.rows()) == ([1, 2], [1, 2], [(1, 5)])


@pytest.mark.parametrize("rebuilds", [False, True])
def test_letters_of_a_commit_that_was_never_made_are_there_once(tmp_path: Path, *, rebuilds: bool) -> None:
    """Killed between the letters and the commit of the table, in a step or in a table that is written anew; more records come then."""
    kept = Kept(tmp_path, options=_DROPS)
    kept.append((1, 5))
    kept.table.step()
    kept.append(_bad(2))
    with mock.patch.object(TableLog, "commit", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        (kept.table.rebuild if rebuilds else kept.table.step)()
    assert _offsets(kept) == [1]
    kept.append(_bad(3))
    again = kept.engine()
    while again.step():
        pass
    assert (_offsets(kept), kept.rows()) == ([1, 2], [(1, 5)])


def test_a_table_that_is_written_anew_takes_the_place_of_its_letters(tmp_path: Path) -> None:
    """With columns that fit there is none left."""
    kept = Kept(tmp_path, options=_DROPS)
    kept.append((1, 5), _bad(2))
    kept.table.step()
    kept.append(_bad(3))
    kept.table.step()
    kept.table.rebuild()
    assert _offsets(kept) == [1, 2]
    kept.value_ddl = "id bigint, n string"
    kept.table.rebuild()
    assert (_offsets(kept), kept.rows()) == ([], [(1, "5"), (2, "x"), (3, "x")])


def test_a_purge_erases_the_letters_of_a_key(tmp_path: Path) -> None:
    """Those of a table, too; a step that was planned before the log was cleaned writes none of it."""
    kept = Kept(tmp_path, options=_DROPS)
    kept.topic.materialize(kept.location, schema="id bigint, n bigint", mode="DROPMALFORMED")
    kept.append(_bad(1), _bad(2))
    kept.topic.materialize(kept.location, schema="id bigint, n bigint", mode="DROPMALFORMED")
    kept.topic.purge('{"id":1}')
    assert _offsets(kept) == [1]
    kept.append(_bad(3))
    cleaned = list[bool]()

    def clean(reached: CrashPoint) -> None:
        if reached is CrashPoint.STEP_PLANNED and not cleaned:
            cleaned.append(True)
            kept.topic.purge('{"id":3}')

    with hook(clean):
        kept.topic.materialize(kept.location, schema="id bigint, n bigint", mode="DROPMALFORMED")
    assert cleaned
    committed = [current.path for current in current_files(open_dead_letters(kept.topic.log.paths.dead_letters, {}))]
    assert len(committed) == 1
    assert not [path for path in committed if 3 in pl.read_parquet(f"{kept.topic.log.paths.dead_letters}/{path}")["offset"]]
    assert [path.name for path in Path(kept.topic.log.paths.dead_letters).glob("*.parquet") if 3 in pl.read_parquet(path)["offset"]] == []
    assert [letter["key"] for letter in kept.topic.dead_letters().to_pylist()] == [b'{"id":2}']


def test_other_modes_are_refused_with_those_that_there_are(tmp_path: Path) -> None:
    """Before anything is made."""
    kept = Kept(tmp_path)
    with pytest.raises(UserError, match="mode = 'DROP': allowed is FAILFAST, PERMISSIVE or DROPMALFORMED"):
        kept.topic.materialize(kept.location, schema="id bigint, n bigint", mode="DROP")


def test_nulls_of_values_that_do_not_fit_are_counted(tmp_path: Path) -> None:
    """PERMISSIVE: the row stays, and the step says how many."""
    kept = Kept(tmp_path, options=TableOptions(mode="PERMISSIVE"))
    kept.append((1, 5), _bad(2))
    done = kept.table.step()
    assert done is not None
    assert (done.misfit_rows, kept.rows(), _letters(kept)) == (1, [(1, 5), (2, None)], [])
