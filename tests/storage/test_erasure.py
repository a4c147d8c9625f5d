"""Which files that no commit names a purge deletes: those that no append can commit any more."""

from __future__ import annotations

from pathlib import Path

import pytest

from lastword import LogDir
from lastword.storage.erasure import sweep
from lastword.storage.key_search import KeySearch, WantedKey
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
