"""What a topic costs does not grow with what it has been through: files, commits and decisions that are read again. No JVM."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pytest

from lastword import LogDir, clock
from lastword.storage.delta import following
from lastword.storage.delta.snapshot import ABSENT, Files, LogSnapshot
from lastword.storage.ledger import ledger as ledgers
from lastword.storage.ledger.decisions import Decision, Kind
from lastword.storage.tables import table_log
from lastword.topics.tables import keep_table
from tests.pictures import rows

if TYPE_CHECKING:
    from pathlib import Path

#: Many of these take half a second or more; `make quick` leaves them to `make test`.
pytestmark = pytest.mark.long

_FEW: Final = 5
_MANY: Final = 40


def _counted(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[Any]:
    """Return a list that gets an entry for each call of a function, from now on."""
    calls: list[Any] = []
    original = getattr(module, name)

    def counting(*given: Any, **named: Any) -> Any:
        calls.append(given)
        return original(*given, **named)

    monkeypatch.setattr(module, name, counting)
    return calls


def test_the_last_segments_of_many_partitions_are_found_in_one_look() -> None:
    """60,000 files in 100 partitions, in processor time: what an append needs before it writes."""
    partitions, files = 100, 600
    count = partitions * files
    numbers = np.arange(count, dtype=np.int64)
    begin = numbers % files * 10
    columns: dict[str, Any] = {name: np.full(count, ABSENT, dtype=np.int64) for name in Files.__dataclass_fields__}
    columns |= {
        "partition": numbers // files,
        "segment": begin // 100 * 100,
        "slice": begin,
        "first_offset": begin,
        "last_offset": begin + 9,
        "record_count": np.full(count, 10, dtype=np.int64),
        "size_bytes": np.full(count, 1_000, dtype=np.int64),
        "empty_rows": np.zeros(count, dtype=np.int64),
        "producer_rows": np.zeros(count, dtype=np.int64),
        "max_sequence": np.full(count, "", dtype=object),
        "path": np.full(count, "f", dtype=object),
    }
    snapshot = LogSnapshot(version=1, append_txn=0, maintenance_txn=0, files=Files(**columns))
    began = time.process_time()
    found = snapshot.last_segments()
    assert time.process_time() - began < 0.5
    assert {one.last_offset for one in found.values()} == {files * 10 - 1}
    assert len(found) == partitions


def _decide(logs: LogDir[Any], number: int) -> object:
    return logs.topic("fruit").log.ledger.append([Decision(kind=Kind.ROLL, time_ms=1, partition=0, offset=number, table_version=1)])


@pytest.mark.parametrize("count", [_FEW, _MANY])
def test_a_decision_reads_the_decisions_since_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """By a process that has the ledger open: its own, and those of another one, once each."""
    logs = LogDir(tmp_path)
    ledger, other = logs.create_topic("fruit").log.ledger, LogDir(tmp_path)
    for number in range(count):
        _decide(other, number)
    ledger.read()
    read = _counted(monkeypatch, ledgers, "read_row_file")
    for number in range(3):
        ledger.append([Decision(kind=Kind.ROLL, time_ms=1, partition=0, offset=number, table_version=1)])
        ledger.read()
    assert len(read) == 3
    _decide(other, count)  # opens it anew
    read.clear()
    ledger.read()
    ledger.read()
    assert len(read) == 1


@pytest.mark.parametrize("count", [_FEW, _MANY])
def test_an_append_reads_the_commits_since_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """And so do a reader and a commit of another process, however long the Delta log is."""
    topic = LogDir(tmp_path).create_topic("fruit")
    for _ in range(count):
        topic.append(rows("a=1"))
    read = _counted(monkeypatch, following, "commit_actions")
    whole = _counted(monkeypatch, Files, "of")
    topic.append(rows("a=2"))
    LogDir(tmp_path).topic("fruit").append(rows("a=3"))
    whole.clear()  # that handle was new
    topic.append(rows("a=4"))
    topic.offsets()
    assert len(read) <= 12  # each asks for the next commit until there is none
    assert len(whole) <= 1


@pytest.mark.parametrize("count", [_FEW, _MANY])
def test_a_step_of_a_table_reads_the_commits_since_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """However many steps came before it."""
    topic = LogDir(tmp_path / "data").create_topic("fruit")
    follower_steps = []
    read = _counted(monkeypatch, table_log, "commit_actions")
    table = keep_table(topic.log, str(tmp_path / "table"), record_columns=["_value"], storage_options={}, clock_ms=clock.now_ms)
    table.start(rebuild=False)
    for number in range(count):
        topic.append(rows(f"a={number}"))
        read.clear()
        table.catch_up()
        follower_steps.append(len(read))
    assert table.progress.steps == count
    assert max(follower_steps) <= 8
