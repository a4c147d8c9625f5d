"""Dead letters without Spark: an attempt takes the place of an earlier one, and old ones leave by files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from lastword.storage.append.dead_letters import DeadLetters, _micro_batch_name, expire_dead_letters, replace_dead_letters
from lastword.storage.erasure import erase_dead_letters
from lastword.storage.files import schema
from lastword.storage.files.data_files import complete
from lastword.storage.files.row_files import RowFile, write_row_file
from lastword.storage.key_search import WantedKey


@pytest.fixture(name="location")
def _location(tmp_path: Path) -> str:
    DeltaTable.create(str(tmp_path / "letters"), schema.dead_letter_schema(), configuration=schema.dead_letter_properties())
    return str(tmp_path / "letters")


def written_letters(location: str, query: str, batch: int, *letters: dict[str, Any]) -> list[RowFile]:
    """Write a file as a task of Spark does; `refused_ms` of the letters is the same."""
    columns = schema.dead_letter_arrow_schema()
    rows = [{name: value for name, value in one.items() if name != "refused_ms"} for one in letters]
    refused_ms = letters[0].get("refused_ms", 0)
    table = pa.Table.from_pylist([{"refused_at": refused_ms * 1000, "query_id": query, "batch_id": batch, **one} for one in rows])
    table = table.set_column(0, "refused_at", table.column("refused_at").cast(pa.timestamp("us", "UTC")))
    file = write_row_file(location, {}, [complete(table, columns)], columns, name=_micro_batch_name(query, batch), time_ms=refused_ms)
    return [] if file is None else [file]


def _raw(location: str) -> list[str]:
    rows = pa.table(DeltaTable(location).to_pyarrow_table(columns=["raw"])).column("raw").to_pylist()
    return sorted(rows)


def test_an_attempt_takes_the_place_of_an_earlier_one_of_the_same_micro_batch(location: str) -> None:
    """It may have refused other rows, under other settings; or none at all."""
    replace_dead_letters(location, {}, written_letters(location, "q", 1, {"raw": "a"}, {"raw": "b"}), query_id="q", batch_id=1)
    replace_dead_letters(location, {}, written_letters(location, "q", 11, {"raw": "c"}), query_id="q", batch_id=11)
    replace_dead_letters(location, {}, written_letters(location, "other", 1, {"raw": "d"}), query_id="other", batch_id=1)
    assert _raw(location) == ["a", "b", "c", "d"]
    replace_dead_letters(location, {}, written_letters(location, "q", 1, {"raw": "b"}), query_id="q", batch_id=1)
    assert _raw(location) == ["b", "c", "d"]
    version = DeltaTable(location).version()
    replace_dead_letters(location, {}, [], query_id="q", batch_id=2)
    assert DeltaTable(location).version() == version, "nothing to say"
    replace_dead_letters(location, {}, [], query_id="q", batch_id=1)
    assert _raw(location) == ["c", "d"]


def test_old_ones_and_those_of_a_key_leave_and_the_others_stay(location: str) -> None:
    """Whole files, or a part of one; the count and the newest that people see follow."""
    refused: dict[int, list[dict[str, Any]]] = {
        1_000: [{"raw": "a", "key": b"k"}],
        2_000: [{"raw": "names k here"}, {"raw": "b", "key": b"kk"}],
        3_000: [{"raw": "c", "headers": [{"key": "h", "value": b"k"}]}, {"raw": "d"}],
    }
    for batch, (refused_ms, letters) in enumerate(refused.items()):
        files = written_letters(location, "q", batch, *({"refused_ms": refused_ms, **one} for one in letters))
        replace_dead_letters(location, {}, files, query_id="q", batch_id=batch)
    letters_of = DeadLetters(location, {})
    assert letters_of.look().count == 5
    assert expire_dead_letters(location, {}, before_ms=1_000) == 0
    assert expire_dead_letters(location, {}, before_ms=1_001) == 1
    assert erase_dead_letters(location, {}, WantedKey(key=b"k", before_ms=3_000)) == 1
    assert _raw(location) == ["b", "c", "d"]
    assert erase_dead_letters(location, {}, WantedKey(key=b"k")) == 1
    assert _raw(location) == ["b", "d"]
    assert (letters_of.look().count, letters_of.look().newest[0]["refused_at"].timestamp()) == (2, 3.0)
    assert expire_dead_letters(location, {}, before_ms=9_000) == 2
    assert (_raw(location), letters_of.look().count) == ([], 0)


def test_files_that_say_nothing_of_their_time_are_read(location: str) -> None:
    """Files of other writers may have no statistics or no rows; of the others only the newest are read."""
    files = [file for batch in range(3) for file in written_letters(location, "q", batch, {"raw": f"{batch}", "refused_ms": batch * 1000})]
    empty = schema.dead_letter_arrow_schema().empty_table()
    pq.write_table(empty, f"{location}/empty.parquet")
    paths = [*(file.path for file in files), "empty.parquet"]
    actions: list[AddAction | RemoveAction] = [
        AddAction(path, Path(location, path).stat().st_size, {}, number, True, "")  # noqa: FBT003  deltalake's own
        for number, path in enumerate(paths)
    ]
    table = DeltaTable(location)
    table.create_write_transaction(actions, "append", table.schema())
    assert [row["refused_at"].second for row in DeadLetters(location, {}, most=1).look().newest] == [2]
    assert expire_dead_letters(location, {}, before_ms=1_000) == 1
    assert _raw(location) == ["1", "2"]
