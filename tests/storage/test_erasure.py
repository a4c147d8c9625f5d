"""Which files that no commit names a purge deletes: those that no append can commit any more."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from lastword import LogDir
from lastword.compaction.errors import CorruptLog
from lastword.compaction.rows.input_columns import HEADERS
from lastword.storage.erasure import _is_tombstone, sweep
from lastword.storage.key_search import KeySearch, WantedKey, statistics_naming
from tests.compaction.logs import rows
from tests.storage.logs import DiskLog


def test_a_file_below_the_log_end_goes_and_one_at_the_log_end_may_be_an_append_in_flight(tmp_path: Path) -> None:
    """In whichever partition it lies; what is in the newest version stays."""
    log = DiskLog.create(tmp_path / "log")
    for partition in range(3):
        log.append([log.written(rows("0:b=1 1:b=2"), partition=partition, segment=0)])
    behind = log.written(rows("0:a=1"), partition=0, segment=0)
    at_end = log.written(rows("2:a=1"), partition=1, segment=0)
    search = KeySearch(log.location, {}, WantedKey(key=b"a"))
    now_ms = Path(log.location, behind.path).stat().st_mtime_ns // 1_000_000
    found = sweep(search, log.location, {}, now_ms=now_ms, is_log=True)
    assert (found.removed, [one.path for one, _ in found.left]) == (1, [at_end.path])
    assert not Path(log.location, behind.path).exists()


@pytest.mark.parametrize(("batch_rows", "batch_bytes"), [(1, 2**24), (3, 2**24), (65_536, 1), (65_536, 2**24)])
def test_a_key_is_counted_whatever_is_decoded_at_a_time(batch_rows: int, batch_bytes: int, tmp_path: Path) -> None:
    """One row, a few, a file whose rows are larger than a batch, and all of them; kept records are left out."""
    topic = LogDir(str(tmp_path)).create_topic("fruit", config={"cleanup.policy": "compact"})
    topic.append([{"key": key, "value": "1"} for key in "abacabad"])
    wanted = (WantedKey(key=b"a"), WantedKey(key=b"a", kept=frozenset({(0, 4)})), WantedKey(key=b"x"))
    found = [KeySearch(topic.log.paths.log, {}, key, batch_rows=batch_rows, batch_bytes=batch_bytes).look() for key in wanted]
    assert [[file.rows for file in files] for files in found] == [[4], [3], []]


def test_a_file_without_a_column_of_keys_is_one_that_cannot_be_decoded(tmp_path: Path) -> None:
    """Whether it holds the key nobody can tell."""
    pq.write_table(pa.table({"colour": ["a"]}), tmp_path / "foreign.parquet")
    [found] = KeySearch(str(tmp_path), {}, WantedKey(key=b"a")).look()
    assert (found.rows, found.why) == (None, "has no column key")


def test_a_dead_letter_names_a_key_in_the_columns_that_it_has(tmp_path: Path) -> None:
    """An older version wrote fewer of them; the empty key stands in no text, only in a column of keys."""
    letters = pa.table({"key": ["a", "", None, None], "detail": ["x", "y", "says a", None]})
    found = [KeySearch(str(tmp_path), {}, WantedKey(key=key), texts=True).letters_naming(letters).tolist() for key in (b"a", b"", b"z")]
    assert found == [[True, False, True, False], [False, True, False, False], [False] * 4]
    headers = pa.array([[("h", b"a")], [("h", None)], None, [("a", b"1")]], HEADERS)
    letters = letters.append_column("headers", headers).append_column("record_key", pa.array([None, b"a", None, None]))
    assert KeySearch(str(tmp_path), {}, WantedKey(key=b"a"), texts=True).letters_naming(letters).tolist() == [True] * 4


def test_statistics_that_name_a_key_are_found_in_commits_and_in_their_checkpoint(tmp_path: Path) -> None:
    """A table with keys as text has the least and the greatest of them in its Delta log; a file that holds no adds names nothing."""
    write_deltalake(tmp_path, pa.table({"key": ["kiwi", "lime"], "value": ["1", "2"]}))
    DeltaTable(tmp_path).create_checkpoint()
    pq.write_table(pa.table({"version": [0]}), tmp_path / "_delta_log/other.parquet")
    (tmp_path / "_delta_log/half.json").write_text("{", encoding="utf-8")
    both = ["_delta_log/00000000000000000000.checkpoint.parquet", "_delta_log/00000000000000000000.json"]
    for key, paths in ((b"kiwi", both), (b"lime", both), (b"kiw", []), (b"1", both), (b"plum", [])):
        assert [path for path, _ in statistics_naming(str(tmp_path), {}, WantedKey(key=key))] == paths


def test_a_file_that_somebody_deletes_while_it_is_looked_for_holds_nothing(tmp_path: Path) -> None:
    """It is no file that cannot be read, which a purge would wait for."""
    topic = LogDir(str(tmp_path)).create_topic("fruit", config={"cleanup.policy": "compact"})
    for _ in range(2):
        topic.append([{"key": "a", "value": "1"}])
    first, second = topic.log.snapshot().files.path.tolist()

    class Going(KeySearch):
        def _rows(self, path: str) -> int:
            if path == first:
                Path(topic.log.paths.log, path).unlink()
            return super()._rows(path)

    search = Going(topic.log.paths.log, {}, WantedKey(key=b"a"))
    assert [(one.path, one.rows, one.why) for one in search.look()] == [(second, 1, "")]


def test_the_last_record_of_a_key_that_is_gone_when_it_is_looked_at_again_is_damage(tmp_path: Path) -> None:
    """Nobody writes a file of the log again under its name; to take the key for deleted would be a guess."""
    topic = LogDir(str(tmp_path)).create_topic("fruit")
    topic.append([{"key": "a", "value": None}, {"key": "b", "value": "1"}])
    [path] = topic.log.snapshot().files.path.tolist()
    assert [_is_tombstone(topic.log.paths.log, {}, path, offset) for offset in (0, 1)] == [True, False]
    with pytest.raises(CorruptLog, match=f"{path}: offset 2 is not there any more"):
        _is_tombstone(topic.log.paths.log, {}, path, 2)
