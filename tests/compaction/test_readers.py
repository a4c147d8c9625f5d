"""What registered readers pin, as worked examples."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lastword.compaction.errors import UserError
from lastword.compaction.planning.bounds import earliest_horizon_ms
from lastword.compaction.read_positions import Position
from lastword.compaction.readers import Reader, ReaderStanding, check_reader, oldest_seen_ms, unread_offsets
from tests.compaction.logs import cleaned, drawn


def reader(name: str, *offsets: int, seen_ms: int = 0, expiration_ms: int = 100) -> Reader:
    """Return a reader that was at some offsets when it was seen."""
    return Reader(name=name, position=Position(offsets=offsets), seen_ms=seen_ms, expiration_ms=expiration_ms)


def test_a_partition_is_unread_from_the_slowest_reader_on() -> None:
    """Each partition has its own slowest; a reader that has expired does not count, from the very moment on."""
    readers = [reader("a", 5, 9), reader("b", 7, 2), reader("gone", 0, 0, expiration_ms=50)]
    assert unread_offsets(readers, 2, now_ms=49) == [0, 0]
    assert unread_offsets(readers, 2, now_ms=50) == [5, 2]
    assert unread_offsets(readers, 2, now_ms=100) == [None, None]
    assert unread_offsets([], 2, now_ms=0) == [None, None]
    assert unread_offsets([reader("of a topic with one partition", 0)], 2, now_ms=0) == [None, None]


def test_files_are_kept_since_the_reader_that_was_not_seen_for_longest() -> None:
    """Readers that have expired do not count."""
    readers = [reader("a", 5, seen_ms=30), reader("b", 7, seen_ms=60)]
    assert [oldest_seen_ms(readers, now_ms) for now_ms in (90, 130, 160)] == [30, 60, None]


def test_an_expired_tombstone_stays_until_it_was_read() -> None:
    """The horizon of both has passed; the reader is at offset 4."""
    rows = "2:a=∅~10 3:b=1 5:c=∅~10"
    assert cleaned(rows, now_ms=10, end=6, unread=4) == "3:b=1 5:c=∅~10"
    assert cleaned(rows, now_ms=10, end=6, unread=6) == "3:b=1"
    assert cleaned(rows, now_ms=10, end=6) == "3:b=1"


def test_lag_counts_offsets_and_a_reader_past_the_end_has_none() -> None:
    """As Kafka's consumer lag: gaps count."""
    standing = ReaderStanding.of(reader("a", 5, 9, seen_ms=7), (8, 4), now_ms=107)
    assert standing == ReaderStanding(name="a", offsets=(5, 9), lag=3, seen_ms=7, expires_ms=107, expired=True)


def test_what_the_ledger_keeps_of_a_reader_comes_back() -> None:
    """And a dropped one does not."""
    kept = Reader(name="a", position=Position(offsets=(5, 9), table_version=4, since_version=3), seen_ms=7, expiration_ms=100)
    assert Reader.from_details("a", kept.to_details(), 7) == kept
    assert Reader.from_details("a", kept.to_details(), 7, 4) == replace(kept, registration=4)
    assert Reader.from_details("a", {"offsets": None}, 7) is None


def test_the_row_of_a_reader_is_due_after_half_of_its_expiration() -> None:
    """Long before it expires; or at once if the clock went back."""
    assert [reader("a", 5, seen_ms=10).is_due(now_ms) for now_ms in (9, 10, 59, 60)] == [True, False, False, True]


@pytest.mark.parametrize(("name", "expiration_ms"), [("", 1), ("x" * 250, 1), ("a\n", 1), ("a", 0)])
def test_a_name_or_an_expiration_that_cannot_be_is_refused(name: str, expiration_ms: int) -> None:
    """With what is allowed."""
    with pytest.raises(UserError, match="allowed"):
        check_reader(name, expiration_ms)
    for allowed in ("orders-cache", "a", "x" * 249):
        assert check_reader(allowed, 1) == allowed


def test_a_horizon_in_a_segment_that_is_not_read_to_its_end_does_not_wait_for_a_round() -> None:
    """Else a round would come for it at every tick, and find nothing that may go."""
    log = drawn("0:1~7 100:1~9 200 |")
    assert earliest_horizon_ms(log, 200) == 7
    assert earliest_horizon_ms(replace(log, unread_offset=150), 200) == 7
    assert earliest_horizon_ms(replace(log, unread_offset=50), 200) is None
