"""What a ledger keeps when it is written again: what still holds; who is gone for long is forgotten."""

from __future__ import annotations

import errno
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from lastword.compaction.config.keys import DAY_MS
from lastword.compaction.errors import CorruptLog, LedgerUnreadable, UnknownFormat
from lastword.compaction.planning.backoff import CleaningFailure
from lastword.compaction.read_positions import Position
from lastword.compaction.readers import Reader
from lastword.storage.delta.history import CommitMetadata
from lastword.storage.ledger.decisions import Decision, Decisions, Kind
from lastword.storage.ledger.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable

    from lastword.storage.files.row_files import RowFile

_DAY = DAY_MS


@pytest.fixture(name="ledger")
def _ledger(tmp_path: Path) -> Ledger:
    ledger = Ledger(str(tmp_path / "ledger"), "fruit")
    ledger.create([Decision(kind=Kind.CREATE, time_ms=0, details={"topic_id": "id", "partitions": 1})])
    return ledger


def _decide(ledger: Ledger, kind: Kind, day: float, name: str | None = None, **details: Any) -> None:
    ledger.append([Decision(kind=kind, time_ms=int(day * _DAY), name=name, details=details)])


def _folded_alike(ledger: Ledger, fold: Callable[[Decisions], object]) -> object:
    """Return what the decisions say, by this ledger and by one that is opened anew."""
    found = fold(ledger.read())
    assert found == fold(Ledger(ledger._uri, "fruit").read())  # noqa: SLF001  the same folder
    return found


def test_a_transactional_id_is_forgotten_when_nothing_was_begun_under_it_for_long(ledger: Ledger) -> None:
    """Not one whose transaction is open, nor a streaming query's, nor who has the highest producer id: that is never given twice.

    ```
     day          0     1      2      3         10 ────► transactional.id.expiration.ms of 7 days
     morning      id 0         epoch 1           goes: begun a second before day 3
     open         id 1                           stays: its transaction is open
     stream       id 2                           stays: a query's micro-batches go on under it
     noon                             id 3       stays: begun at day 3
     highest      id 4                           stays until somebody has a higher id
    ```
    """
    for day, name, producer_id, epoch, query in (
        (0, "morning", 0, 0, None),
        (0, "open", 1, 0, None),
        (0, "stream", 2, 0, "a-query"),
        (0, "highest", 4, 0, None),
        (2, "morning", 0, 1, None),
        (3, "noon", 3, 0, None),
    ):
        _decide(ledger, Kind.PRODUCER, day, name, producer_id=producer_id, epoch=epoch, timeout_ms=None, query=query)
    assert ledger.compact(before_ms=3 * _DAY, least_files=1, silent_ms=2 * _DAY, open_ids={"open"}) == 1, "the epoch before, no id"
    assert ledger.compact(before_ms=3 * _DAY, least_files=1, silent_ms=3 * _DAY, open_ids={"open"}) == 1
    assert _folded_alike(ledger, lambda today: set(today.producers)) == {"open", "stream", "noon", "highest"}
    _decide(ledger, Kind.PRODUCER, 4, "next", producer_id=5, epoch=0, timeout_ms=None, query=None)
    assert ledger.compact(before_ms=3 * _DAY, least_files=1, silent_ms=3 * _DAY) == 2
    assert _folded_alike(ledger, lambda today: set(today.producers)) == {"stream", "noon", "next"}


def test_a_short_expiration_forgets_what_was_decided_in_the_last_week_too(ledger: Ledger) -> None:
    """All rows of the id go, young ones as well, or it would be known by them again."""
    for day, producer_id, name in ((0, 0, "a"), (8, 0, "a"), (8, 1, "b")):
        _decide(ledger, Kind.PRODUCER, day, name, producer_id=producer_id, epoch=int(day > 0), timeout_ms=None, query=None)
    assert ledger.compact(before_ms=2 * _DAY, least_files=1, silent_ms=9 * _DAY) == 2
    assert _folded_alike(ledger, lambda today: set(today.producers)) == {"b"}


def test_a_reader_is_forgotten_a_week_after_it_expired_or_was_dropped(ledger: Ledger) -> None:
    """Until then it is shown as expired. Of a reader that was dropped nothing stays that would bring it back."""

    def seen(name: str, day: float, *, expires_after: float = 2) -> None:
        position = Position(offsets=(5,), table_version=1, since_version=1)
        reader = Reader(name=name, position=position, seen_ms=int(day * _DAY), expiration_ms=int(expires_after * _DAY))
        _decide(ledger, Kind.READER, day, name, **reader.to_details())

    def dropped(name: str, day: float) -> None:
        _decide(ledger, Kind.READER, day, name, offsets=None)

    seen("gone", 0)
    seen("expired", 1.5)
    seen("patient", 0, expires_after=100)
    seen("dropped", 1)
    dropped("dropped", 2)
    seen("dropped by a slow clock", 9)
    dropped("dropped by a slow clock", 2)
    seen("dropped lately", 1)
    dropped("dropped lately", 4)
    assert ledger.compact(before_ms=3 * _DAY, least_files=1) == 7, "gone, and both rows of each that was dropped"
    assert _folded_alike(ledger, lambda today: set(today.readers)) == {"expired", "patient"}


def test_purges_that_wait_for_a_cleaning_stay_and_so_does_the_highest(ledger: Ledger) -> None:
    """However old: a tombstone that may go at once would else wait for its horizon, and a table behind a purge not be fenced."""

    def decide(kind: Kind, offset: int, version: int) -> None:
        ledger.append([Decision(kind=kind, time_ms=0, partition=0, offset=offset, table_version=version, details={})])

    decide(Kind.PURGE, 3, 1)
    decide(Kind.PURGE, 7, 2)
    decide(Kind.CLEAN, 5, 3)
    decide(Kind.PURGE, 2, 4)
    assert ledger.read().released_offsets(0) == [2, 7]
    assert ledger.compact(before_ms=_DAY, least_files=1) == 1
    assert _folded_alike(ledger, lambda today: today.released_offsets(0)) == [2, 7]
    decide(Kind.CLEAN, 9, 5)
    assert ledger.compact(before_ms=_DAY, least_files=1) == 2
    assert [row.offset for row in ledger.rows() if row.kind is Kind.PURGE] == [7]
    assert _folded_alike(ledger, lambda today: today.released_offsets(0)) == []


def _placed(ledger: Ledger, kind: Kind, day: float, version: int, offset: int | None = None, **details: Any) -> None:
    """Decide something about partition 0 at a table version."""
    partition = None if kind is Kind.RESTORE else 0
    decision = Decision(kind=kind, time_ms=int(day * _DAY), partition=partition, offset=offset, table_version=version, details=details)
    ledger.append([decision])


def test_what_a_restore_took_back_stays_void_whatever_restore_came_after(ledger: Ledger) -> None:
    """Each of them is kept: the second one says nothing of what the first took back, which is young here, as a RESTORE may bear any time.

    ```
     table version   50             52             60
                     log start 100  RESTORE to 49  RESTORE to 55      100 lies in what was taken back
                     tombstone 7 may go
    ```
    """
    _placed(ledger, Kind.START, 10, 50, 100)
    _placed(ledger, Kind.PURGE, 10, 51, 7)
    _placed(ledger, Kind.RESTORE, 0, 52, restored_version=49)
    _placed(ledger, Kind.RESTORE, 0, 60, restored_version=55)
    assert ledger.compact(before_ms=5 * _DAY, least_files=1) == 0
    assert _folded_alike(ledger, lambda today: (today.log_start_offset(0), today.released_offsets(0))) == (0, [])
    assert _folded_alike(ledger, lambda today: [one.version for one in today.restores]) == [52, 60]


def test_of_log_starts_and_rolls_the_highest_stays_not_the_last_that_was_written(ledger: Ledger) -> None:
    """Two who decide at the same time may write theirs in either order."""
    for kind in (Kind.START, Kind.ROLL):
        _placed(ledger, kind, 1, 5, 300)
        _placed(ledger, kind, 1, 5, 500)
        _placed(ledger, kind, 1, 5, 100)
    assert ledger.compact(before_ms=5 * _DAY, least_files=1) == 4
    assert _folded_alike(ledger, lambda today: (today.log_start_offset(0), today.closed_offset(0, 900))) == (500, 500)


def test_what_is_young_takes_the_place_of_nothing_as_a_restore_may_yet_make_it_void(ledger: Ledger) -> None:
    """A cleaning of the last days has passed two purges, and told of a higher tombstone; then it is taken back."""
    _placed(ledger, Kind.CLEAN, 0, 1, 6, highest_removed_tombstone=5)
    _placed(ledger, Kind.PURGE, 1, 2, 3)
    _placed(ledger, Kind.PURGE, 1, 3, 7)
    _placed(ledger, Kind.START, 1, 4, 2)
    _placed(ledger, Kind.CLEAN, 10, 10, 9, highest_removed_tombstone=8)
    _placed(ledger, Kind.START, 10, 10, 9)
    assert ledger.compact(before_ms=5 * _DAY, least_files=1) == 0
    _placed(ledger, Kind.RESTORE, 11, 12, restored_version=9)
    assert _folded_alike(ledger, lambda today: today.released_offsets(0)) == [3, 7]
    assert _folded_alike(ledger, lambda today: today.log_start_offset(0)) == 2
    assert _folded_alike(ledger, lambda today: today.newest_cleaning(0)).details["highest_removed_tombstone"] == 5  # type: ignore[attr-defined]


def test_a_restore_that_is_undone_lets_old_decisions_hold_again_while_it_is_young(ledger: Ledger) -> None:
    """The ledger is written again in between. What a RESTORE of long ago took back does not come again: its files are gone.

    ```
     table version   2              5             6                7             8
                     log start 100  RESTORE to 1  log start 40     RESTORE to 4  written again
     day             1              9             9                10            20
    ```
    """
    _placed(ledger, Kind.START, 1, 2, 100)
    _placed(ledger, Kind.RESTORE, 9, 5, restored_version=1)
    assert _folded_alike(ledger, lambda today: today.log_start_offset(0)) == 0
    assert ledger.compact(before_ms=5 * _DAY, least_files=1) == 0
    _placed(ledger, Kind.START, 9, 6, 40)
    _placed(ledger, Kind.RESTORE, 10, 7, restored_version=4)
    assert _folded_alike(ledger, lambda today: today.log_start_offset(0)) == 100
    assert ledger.compact(before_ms=20 * _DAY, least_files=1) == 1, "the log start of version 6"
    assert _folded_alike(ledger, lambda today: today.log_start_offset(0)) == 100


def test_of_what_no_restore_takes_back_the_newest_alone_stays_however_young(ledger: Ledger) -> None:
    """A reader tells each few seconds where it is, a loader begins each second: the ledger is not the larger for it."""
    for number in range(5):
        position = Position(offsets=(number,), table_version=1, since_version=1)
        reader = Reader(name="tail", position=position, seen_ms=number, expiration_ms=_DAY)
        _decide(ledger, Kind.READER, 9, "tail", **reader.to_details())
        _decide(ledger, Kind.PRODUCER, 9, "loader", producer_id=0, epoch=number, timeout_ms=None, query=None)
        _decide(ledger, Kind.CONFIG, 9, **{"cleanup.policy": "compact", "segment.ms": str(number)})
        ledger.append([Decision(kind=Kind.LOOKED, time_ms=9 * _DAY, table_version=number)])
    assert ledger.compact(before_ms=_DAY, least_files=1) == 16
    assert _folded_alike(ledger, lambda today: (today.readers["tail"].position.offsets, today.producers["loader"].epoch)) == ((4,), 4)
    assert _folded_alike(ledger, lambda today: (today.overrides["segment.ms"], today.looked_at_version)) == ("4", 4)


def test_what_is_decided_while_the_ledger_is_read_to_be_written_again_is_not_lost(ledger: Ledger) -> None:
    """An id is silent for long and comes back at that moment, in another process: the ledger is left as it is, or written with that."""
    for name, producer_id in (("nightly", 0), ("highest", 1)):
        _decide(ledger, Kind.PRODUCER, 0, name, producer_id=producer_id, epoch=0, timeout_ms=None, query=None)
    other = Ledger(ledger._uri, "fruit")  # noqa: SLF001

    class Overtaken(Ledger):
        def _refresh(self) -> None:
            super()._refresh()
            if other.read().producers["nightly"].epoch == 0:
                _decide(other, Kind.PRODUCER, 9, "nightly", producer_id=0, epoch=1, timeout_ms=None, query=None)

    ledger = Overtaken(ledger._uri, "fruit")  # noqa: SLF001
    assert ledger.compact(before_ms=5 * _DAY, least_files=1, silent_ms=5 * _DAY) == 0
    assert _folded_alike(ledger, lambda today: today.producers["nightly"].epoch) == 1


def test_the_newest_receipt_is_that_of_the_newest_swap_in_whichever_order_they_were_written(ledger: Ledger) -> None:
    """One that a crash kept from the ledger is written when somebody misses it; of two for one swap the later one counts."""
    _placed(ledger, Kind.CLEAN, 1, 10, 600, highest_removed_tombstone=7)
    _placed(ledger, Kind.CLEAN, 1, 4, 200, highest_removed_tombstone=9)
    _placed(ledger, Kind.CLEAN, 1, 4, 100, rounds_left=2)
    assert _folded_alike(ledger, lambda today: (today.cleaner_checkpoint(0), today.rounds_left(0))) == (600, 0)
    assert _folded_alike(ledger, lambda today: today.cleaner_checkpoint(0, as_of_version=9)) == 100
    assert ledger.compact(before_ms=5 * _DAY, least_files=1) == 1
    assert _folded_alike(ledger, lambda today: [one.offset for one in today.cleanings[0]]) == [200, 600], "200 tells of a tombstone"


def _failed(ledger: Ledger, day: float, version: int, failures: int) -> None:
    reason: dict[str, Any] = {"reason": f"OSError: {failures}", "retry_ms": 7} if failures else {}
    _placed(ledger, Kind.FAILURE, day, version, failures=failures, **reason)


def test_the_newest_failure_of_a_partition_holds_until_a_success(ledger: Ledger) -> None:
    """However old it is; failures that are over leave nothing."""
    assert ledger.read().cleaning_failures() == {}
    _failed(ledger, 1, 4, 1)
    _failed(ledger, 2, 4, 2)
    assert ledger.compact(before_ms=9 * _DAY, least_files=1) == 1
    failure = _folded_alike(ledger, lambda today: today.cleaning_failure(0))
    assert failure == CleaningFailure(failures=2, reason="OSError: 2", failed_ms=2 * _DAY, retry_ms=7)
    assert ledger.read().cleaning_failures() == {0: failure}
    _failed(ledger, 3, 4, 0)
    assert _folded_alike(ledger, lambda today: today.cleaning_failures()) == {}
    assert ledger.compact(before_ms=9 * _DAY, least_files=1) == 2
    assert [row for row in ledger.rows() if row.kind is Kind.FAILURE] == []
    assert ledger.read().cleaning_failure(0) is None


def test_a_restore_makes_failures_void_that_came_after_what_it_went_back_to(ledger: Ledger) -> None:
    """The log is another one; a failure before is one of the log that is there again. What a restored success ended does not come back."""
    _failed(ledger, 1, 50, 1)
    _placed(ledger, Kind.RESTORE, 2, 60, restored_version=55)
    assert _folded_alike(ledger, lambda today: list(today.cleaning_failures())) == [0]
    _failed(ledger, 2, 61, 2)
    _placed(ledger, Kind.RESTORE, 3, 62, restored_version=60)
    assert _folded_alike(ledger, lambda today: today.cleaning_failures()) == {}
    _failed(ledger, 4, 63, 1)
    _failed(ledger, 4, 64, 0)
    _placed(ledger, Kind.RESTORE, 5, 65, restored_version=63)
    assert _folded_alike(ledger, lambda today: today.cleaning_failures()) == {}


@pytest.mark.parametrize(
    ("text", "error", "message"), [(b"", CorruptLog, "is empty"), (b'{"add":{"pa', LedgerUnreadable, "cannot be read")]
)
def test_a_decision_that_the_power_cut_short_is_an_error_and_not_nothing(
    ledger: Ledger, text: bytes, error: type[Exception], message: str
) -> None:
    """A log start that is forgotten would bring deleted records back. It is noticed by who has the ledger open, and by who opens it."""
    ledger.append([Decision(kind=Kind.START, time_ms=1, partition=0, offset=5, table_version=1)])
    opened = Ledger(ledger._uri, "fruit")  # noqa: SLF001  the same folder
    opened.read()
    ledger.append([Decision(kind=Kind.START, time_ms=2, partition=0, offset=9, table_version=1)])
    newest = max(Path(ledger._uri, "_delta_log").glob("*.json"))  # noqa: SLF001
    newest.write_bytes(text)
    for one in (opened, Ledger(ledger._uri, "fruit")):  # noqa: SLF001
        with pytest.raises(error, match=message):
            one.read()
    newest.unlink()
    assert Ledger(ledger._uri, "fruit").read().log_start_offset(0) == 5  # noqa: SLF001


def test_a_slow_process_decides_between_quick_ones(ledger: Ledger) -> None:
    """Each decision of theirs makes what it chose an old choice, but under its lock they wait.

    ```
     quick    d d d d . . . . d d d d       each takes milliseconds
     slow          [choose  ]               takes as long as many of theirs, and is asked once
    ```
    """
    quick, ended = Ledger(ledger._uri, "fruit"), threading.Event()  # noqa: SLF001  the same folder

    def decide_quickly() -> None:
        while not ended.is_set():
            _decide(quick, Kind.CONFIG, 1, **{"retention.ms": "1"})

    asked = list[Decisions]()

    def choose(today: Decisions) -> tuple[list[Decision], str]:
        asked.append(today)
        time.sleep(0.3)
        return [Decision(kind=Kind.QUERY, time_ms=0, name="files", details={"query_id": "an id"})], "decided"

    thread = threading.Thread(target=decide_quickly)
    thread.start()
    try:
        assert ledger.decide(choose) == "decided"
        assert ledger.read().queries == {"files": "an id"}
    finally:
        ended.set()
        thread.join()
    assert len(asked) == 1


class _LaterLedger(Ledger):
    """A ledger of which another version of lastword writes the files."""

    def _write_file(self, numbered: list[tuple[int, Decision]]) -> list[RowFile]:
        [file] = super()._write_file(numbered)
        path = Path(self._uri, file.path)
        rows = pq.read_table(path)
        pq.write_table(rows.replace_schema_metadata(dict.fromkeys(rows.schema.metadata, b"9.9.9")), path)
        return [replace(file, size_bytes=path.stat().st_size)]


@pytest.mark.parametrize(
    ("kind", "details", "said"),
    [
        (SimpleNamespace(value="lease"), {}, r"does not know \(lease; .*written by version 9\.9\.9\)"),
        (SimpleNamespace(value="Roll"), {"a": 1}, r"does not know \(Roll"),
        (SimpleNamespace(value=""), {}, r"does not know \(;"),
        (Kind.PRODUCER, {"producer_id": 1, "epoch": 0, "isolation": "new"}, r"cannot read \(.*isolation.*written by versions .*9\.9\.9"),
        (Kind.CLAIM, {"owner": "a"}, r"cannot read \('until_ms'\)"),
        (Kind.TRUNCATE, {"at": 1}, r"cannot read \('position'\)"),
    ],
)
def test_a_decision_of_a_later_version_is_an_error_that_says_so_and_changes_nothing(
    tmp_path: Path, kind: Any, details: dict[str, Any], said: str
) -> None:
    """It is no damage: nobody is told to move the ledger away. The files stay as they are."""
    ledger = Ledger(str(tmp_path / "ledger"), "fruit")
    ledger.create([Decision(kind=Kind.CREATE, time_ms=0, details={"topic_id": "id", "partitions": 1})])
    with pytest.raises(UnknownFormat):
        _LaterLedger(str(tmp_path / "ledger"), "fruit").append([Decision(kind=kind, time_ms=1, name="x", details=details)])
    files = sorted(str(path) for path in Path(tmp_path).rglob("*"))
    for one in (ledger, Ledger(str(tmp_path / "ledger"), "fruit")):
        with pytest.raises(UnknownFormat, match=said) as found:
            one.read()
        assert "move the folder" not in str(found.value)
        with pytest.raises(UnknownFormat):
            one.append([Decision(kind=Kind.CONFIG, time_ms=2)])
    assert sorted(str(path) for path in Path(tmp_path).rglob("*")) == files


@pytest.mark.parametrize("error", [OSError(5, "i/o"), TimeoutError(), ConnectionResetError(), PermissionError(13, "denied")])
def test_a_hiccup_of_the_network_is_no_damage(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
    """It is raised as it is, and the next look reads the ledger."""
    ledger.append([Decision(kind=Kind.ROLL, time_ms=1, partition=0, offset=5, table_version=1)])
    opened = Ledger(ledger._uri, "fruit")  # noqa: SLF001  the same folder

    def fails(*_: Any) -> Any:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr("lastword.storage.ledger.ledger.read_row_file", fails)
        with pytest.raises(type(error)) as found:
            opened.read()
        assert "move the folder" not in str(found.value)
    assert opened.read().sequence == 2


def test_a_ledger_without_its_beginning_is_damage(tmp_path: Path) -> None:
    """Its first file was lost, or its first commit."""
    ledger = Ledger(str(tmp_path / "ledger"), "fruit")
    ledger.create([Decision(kind=Kind.ROLL, time_ms=1, partition=0, offset=5, table_version=1)])
    with pytest.raises(LedgerUnreadable, match="it does not say how the topic was created"):
        ledger.read()


def test_commits_of_a_later_version_say_so() -> None:
    """What they carry is not guessed."""
    ours = CommitMetadata(token="t", kind="append")  # noqa: S106  no password
    assert CommitMetadata.from_json(ours.to_json()) == ours
    for text in (ours.to_json().replace(":1,", ":2,"), ours.to_json().replace(":1,", ':"2.0",')):
        with pytest.raises(UnknownFormat, match=r"metadata of format 2.*reads 1"):
            CommitMetadata.from_json(text)


def test_a_ledger_whose_first_commits_are_gone_is_read_from_its_checkpoint(ledger: Ledger) -> None:
    """Delta removes commits that are old; a ledger that was read before needs none of them."""
    _decide(ledger, Kind.CONFIG, 1, **{"retention.ms": "1"})
    ledger.read()
    DeltaTable(ledger._uri).create_checkpoint()  # noqa: SLF001  the folder
    commits = sorted(Path(ledger._uri, "_delta_log").glob("*.json"))  # noqa: SLF001
    commits[0].unlink()
    anew = Ledger(ledger._uri, "fruit")  # noqa: SLF001
    assert anew.read().sequence == ledger.read().sequence == 2
    _decide(anew, Kind.CONFIG, 2, **{"retention.ms": "2"})
    assert ledger.read().overrides == anew.read().overrides == {"retention.ms": "2"}
    DeltaTable(ledger._uri).create_checkpoint()  # noqa: SLF001
    for commit in Path(ledger._uri, "_delta_log").glob("*.json"):  # noqa: SLF001
        commit.unlink()
    for one in (ledger, Ledger(ledger._uri, "fruit")):  # noqa: SLF001
        assert one.read().overrides == {"retention.ms": "2"}


def test_a_short_ledger_is_not_written_again(ledger: Ledger) -> None:
    """It would cost more than it saves."""
    _decide(ledger, Kind.CONFIG, 1, **{"retention.ms": "1"})
    files = sorted(Path(ledger._uri).glob("*.parquet"))  # noqa: SLF001  the folder
    assert ledger.compact(before_ms=9 * _DAY, least_files=3) == 0
    assert (sorted(Path(ledger._uri).glob("*.parquet")), ledger.is_long(3), ledger.is_long(2)) == (files, False, True)  # noqa: SLF001


def test_a_ledger_that_the_storage_does_not_take_is_no_topic_that_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If writing the first ledger fails, creating the topic can be tried again."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "link", full)
    created = [Decision(kind=Kind.CREATE, time_ms=0, details={"topic_id": "id", "partitions": 1})]
    with pytest.raises(OSError, match="No space left"):
        Ledger(str(tmp_path / "ledger"), "fruit").create(created)
    monkeypatch.undo()
    Ledger(str(tmp_path / "ledger"), "fruit").create(created)
