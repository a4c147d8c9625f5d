"""What a ledger keeps when it is written again: what still holds; who is gone for long is forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from compaction.config_keys import DAY_MS
from compaction.read_positions import Position
from compaction.readers import Reader
from storage.decisions import Decision, Kind
from storage.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from storage.decisions import Decisions

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
    """Until then it is shown as expired. A row that drops a reader stays as long as one that would bring it back."""

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
    assert ledger.compact(before_ms=3 * _DAY, least_files=1) == 3, "gone, and both rows of dropped"
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
