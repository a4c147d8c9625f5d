"""What a cleaning does with each row, drawn before and after: docs/semantics.md#8 to docs/semantics.md#11 and docs/semantics.md#B."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lastword.compaction.rows.fates import Removal, fates
from tests.compaction.logs import HOUR_MS, arrow_rows, cleaned, cleaning_pass, pass_over, rows
from tests.compaction.row_rules import Fate, Row, fate, last_rows_of_producers


def _reasons(picture: str, *, first_dirty: int = 0, end: int = 1_000, now_ms: int = 0) -> dict[int, str]:
    """Return by offset why rows go."""
    drawn = rows(picture)
    log = [one.row for one in drawn]
    cleaning = pass_over(log, first_dirty=first_dirty, end=end, now_ms=now_ms, delete_retention_ms=10)
    found = fates(arrow_rows(drawn), cleaning_pass(log, cleaning, first_dirty=first_dirty))
    return {row.offset: reason.value for reason in Removal for row, gone in zip(log, found.removed_for(reason), strict=True) if gone}


def _places(picture: str, *active: int) -> list[int]:
    return sorted(last_rows_of_producers([one.row for one in rows(picture)], active))


# --- the latest of each key ---------------------------------------------------------------------------------------------------------------


def test_the_latest_record_of_each_key_stays() -> None:
    """Keys A1 B2 A3 C4 A5: kept are 2, 4, 5."""
    assert cleaned("1:A=1 2:B=1 3:A=2 4:C=1 5:A=3") == "2:B=1 4:C=1 5:A=3"


def test_half_of_six_records_go_and_the_tombstone_stays_with_a_horizon() -> None:
    """The worked example docs/semantics.md#B.6: user1, user2 and user3."""
    before = "100:user1=a 101:user2=a 150:user1=b 175:user3=∅ 190:user2=b 195:user1=c"
    assert cleaned(before) == "175:user3=∅~10 190:user2=b 195:user1=c"


def test_the_cleanings_of_fruit_prices() -> None:
    """First 0 to 3, with 4 in the active segment; a week later 4 to 7, with 8 in it (docs/semantics.md#B.4, docs/semantics.md#B.5)."""
    first = cleaned("0:grape=1 1:lime=1 2:grape=∅ 3:lime=2", now_ms=0, retention_ms=24 * HOUR_MS)
    assert first == f"2:grape=∅~{24 * HOUR_MS} 3:lime=2"
    second = f"{first} 4:lime=3 5:guava=1 6:guava=2 7:kiwi=1"
    assert cleaned(second, first_dirty=4, now_ms=7 * 24 * HOUR_MS) == "4:lime=3 6:guava=2 7:kiwi=1"
    soon = cleaned(second, first_dirty=4, now_ms=24 * HOUR_MS - 1)
    assert soon == f"2:grape=∅~{24 * HOUR_MS} 4:lime=3 6:guava=2 7:kiwi=1", "cleaned within the day, it would stay"


def test_a_record_of_the_clean_section_goes_when_its_key_came_again() -> None:
    """And stays when it did not: only the dirty range is mapped."""
    assert cleaned("0:grape=1 1:lime=1 2:kiwi=1 3:lime=2", first_dirty=3) == "0:grape=1 2:kiwi=1 3:lime=2"
    assert cleaned("0:grape=1 1:grape=2 2:kiwi=1", first_dirty=2) == "0:grape=1 1:grape=2 2:kiwi=1", "not judged anew"


def test_records_at_and_past_the_end_of_the_map_stay_whatever_they_are() -> None:
    """The map budget cut the range at 2: the rest of the segment is looked at and left as it is."""
    assert cleaned("0:k=1 1:k=2 2:k=3 3:k=4 4:=x", end=2) == "1:k=2 2:k=3 3:k=4 4:=x"


def test_why_a_row_goes_is_told() -> None:
    """The values stand in receipts."""
    picture = "0:9.0t0:a=1 1:b=1 2:=x 3:b=∅~5 4:9.0t0:ABORT~5 5:8.0:EMPTY 6:c=1 7:b2=1"
    assert _reasons(picture, now_ms=5) == {
        0: "aborted",
        1: "superseded",
        2: "keyless",
        3: "expired_tombstone",
        4: "expired_marker",
        5: "empty",
    }
    told_of_purges = {Removal.PURGED_TOMBSTONE.value}  # tests/storage/cleaning/test_released_tombstones.py
    assert {one.value for one in Removal} - told_of_purges == set(_reasons(picture, now_ms=5).values())


# --- tombstones ---------------------------------------------------------------------------------------------------------------------------


def test_a_tombstone_gets_its_horizon_when_a_cleaning_first_keeps_it() -> None:
    """Written at 0, cleaned at 1 h, delete.retention.ms 24 h: a round at 24 h keeps it, one at 25 h drops it."""
    day = 24 * HOUR_MS
    stamped = cleaned("0:k=1 1:k=∅", now_ms=HOUR_MS, retention_ms=day)
    assert stamped == f"1:k=∅~{25 * HOUR_MS}"
    for first_dirty in (0, 2):  # in the dirty range of the round, or in the clean section: on an idle topic
        assert cleaned(stamped, now_ms=day, retention_ms=day, first_dirty=first_dirty, end=2) == stamped
        assert cleaned(stamped, now_ms=25 * HOUR_MS - 1, retention_ms=day, first_dirty=first_dirty, end=2) == stamped
        assert cleaned(stamped, now_ms=25 * HOUR_MS, retention_ms=day, first_dirty=first_dirty, end=2) == ""


def test_a_horizon_is_never_stamped_again() -> None:
    """Not by later cleanings, and not by another delete.retention.ms."""
    assert cleaned("0:k=∅~10 1:9.0t1:COMMIT~10", now_ms=9, retention_ms=500) == "0:k=∅~10 1:9.0t1:COMMIT~10"


def test_without_retention_a_tombstone_goes_with_the_second_cleaning() -> None:
    """The first one stamps it all the same."""
    assert cleaned("0:k=∅", now_ms=5, retention_ms=0) == "0:k=∅~5"
    assert cleaned("0:k=∅~5", now_ms=5, retention_ms=0) == ""


def test_a_superseded_tombstone_goes_at_once() -> None:
    """It is removed at any age, with or without a delete horizon."""
    assert cleaned("0:k=∅ 1:j=∅~99 2:k=1 3:j=∅") == "2:k=1 3:j=∅~10"


def test_an_empty_value_is_no_tombstone() -> None:
    """Only null is: the record stays for ever, and supersedes as any other."""
    assert cleaned("0:k=1 1:k=") == "1:k="
    assert cleaned("0:k=1 1:k=", now_ms=10**12) == "1:k="


def test_an_expired_horizon_on_a_record_that_is_no_tombstone_means_nothing() -> None:
    """Such a row is never written; the rule does not rely on it."""
    assert cleaned("0:k=1~5 1:j=~5", now_ms=9) == "0:k=1~5 1:j=~5"


def test_a_tombstone_past_the_end_of_the_map_is_stamped_but_never_dropped() -> None:
    """As in Kafka: the segment is written again, but what was not mapped stays."""
    assert cleaned("0:k=1 1:k=∅", end=1, now_ms=3) == "0:k=1 1:k=∅~13"
    assert cleaned("0:k=1 1:k=∅~5", end=1, now_ms=9) == "0:k=1 1:k=∅~5"
    assert cleaned("0:k=1 1:k=∅~5", end=2, now_ms=9) == ""


def test_a_tombstone_waits_for_a_reader_that_has_not_read_it() -> None:
    """Who has read all below 1 has read it at 0."""
    assert [cleaned("0:k=∅~5 1:j=1", now_ms=5, unread=unread) for unread in (0, 1)] == ["0:k=∅~5 1:j=1", "1:j=1"]


def test_a_released_tombstone_waits_for_nobody_and_says_so() -> None:
    """A purge has decided it: not for its horizon, not for a reader; what is no tombstone stays, as does one past the end of the map."""
    picture = "0:k=∅ 1:j=∅ 2:i=1 3:h=∅~5"
    assert cleaned(picture, released=(0, 2, 3), unread=0, end=3) == "1:j=∅~10 2:i=1 3:h=∅~5"
    cleaning = pass_over([], first_dirty=0, end=2, now_ms=9, delete_retention_ms=10)
    tombstone = Row(offset=1, key=b"k", has_value=False, delete_horizon_ms=5)
    assert [fate(tombstone, replace(cleaning, released=released)) for released in ((1,), (0,))] == [
        Fate(removal=Removal.PURGED_TOMBSTONE),
        Fate(removal=Removal.EXPIRED_TOMBSTONE),
    ]


def test_a_keyless_record_without_a_value_is_no_tombstone() -> None:
    """Nothing to delete."""
    assert not Row(offset=0, has_value=False).is_tombstone
    assert Row(offset=0, key=b"k", has_value=False).is_tombstone
    assert Row(offset=0, key=b"", has_value=False).is_tombstone, "an empty key is a key"
    assert not Row(offset=0, key=b"k").is_tombstone
    (marker,) = rows("0:9.0t0:COMMIT")
    assert not marker.row.is_tombstone
    assert cleaned("0:=∅ 1:=∅", end=1) == "1:=∅", "never stamped"


# --- keyless rows -------------------------------------------------------------------------------------------------------------------------


def test_a_keyless_record_below_the_end_of_the_map_goes_and_one_above_it_stays() -> None:
    """The topic was not compacted when they came; in the clean section they go too."""
    assert cleaned("0:=a 1:=b 2:=c 3:=d", first_dirty=1, end=3) == "3:=d"
    assert _reasons("0:=a 1:=b 2:=c", first_dirty=1, end=2) == {0: "keyless", 1: "keyless"}


# --- transactions -------------------------------------------------------------------------------------------------------------------------


def test_the_picture_of_the_module() -> None:
    """7 is the producer of an aborted transaction, the log end is the row after."""
    picture = "0:7.0t0:k=1 1:k=2 2:j=∅ 3:7.0t0:j=3 4:7.0t0:ABORT 5:k=4 6:z=9"
    once = cleaned(picture)
    assert once == "2:j=∅~10 4:7.0t0:ABORT~10 5:k=4 6:z=9"
    assert _reasons(picture) == {0: "aborted", 1: "superseded", 3: "aborted"}
    assert cleaned(once, now_ms=9) == once
    assert cleaned(once, now_ms=10) == "5:k=4 6:z=9"


def test_aborted_records_go_at_once_whatever_their_key_and_supersede_nothing() -> None:
    """Newest of its key, keyless, a tombstone, past the end of the map."""
    assert cleaned("0:k=1 1:7.0t1:k=2 2:7.0t1:=x 3:7.0t1:z=∅ 4:7.0t1:ABORT", end=2) == "0:k=1 4:7.0t1:ABORT~10"


def test_only_the_aborted_transaction_of_a_producer_goes() -> None:
    """The one before it and the one after it were committed."""
    before = "0:7.0t0:a=1 1:7.0t0:COMMIT 2:7.0t2:b=1 3:7.0t2:ABORT 4:7.0t4:c=1 5:7.0t4:COMMIT"
    assert cleaned(before) == "0:7.0t0:a=1 1:7.0t0:COMMIT 3:7.0t2:ABORT~10 4:7.0t4:c=1 5:7.0t4:COMMIT"


def test_two_producers_may_have_begun_at_the_same_offset_in_two_lives_of_a_log() -> None:
    """A transaction is its producer and its first offset, not the offset alone."""
    assert cleaned("0:7.0t0:a=1 1:8.0t0:b=1 2:7.0t0:ABORT") == "1:8.0t0:b=1 2:7.0t0:ABORT~10"


def test_a_plain_record_of_a_producer_belongs_to_no_transaction() -> None:
    """Idempotent, or older than the aborted transaction."""
    assert cleaned("0:7.0:a=1 1:7.0t1:b=1 2:7.0t1:ABORT 3:7.0:c=1") == "0:7.0:a=1 2:7.0t1:ABORT~10 3:7.0:c=1"


def test_a_marker_goes_in_two_steps_after_the_last_record_of_its_transaction() -> None:
    """Three cleanings: the first keeps it as it is, the second stamps it as no record is left, the third drops it."""
    first = cleaned("0:7.0t0:k=1 1:7.0t0:COMMIT 2:j=1", now_ms=100)
    assert first == "0:7.0t0:k=1 1:7.0t0:COMMIT 2:j=1"
    second = cleaned(f"{first} 3:k=2", first_dirty=3, now_ms=200)
    assert second == "1:7.0t0:COMMIT~210 2:j=1 3:k=2"
    assert cleaned(second, first_dirty=4, now_ms=209) == second
    assert cleaned(second, first_dirty=4, now_ms=210) == "2:j=1 3:k=2"


def test_a_marker_past_the_end_of_the_map_is_judged_like_any_other() -> None:
    """What counts is whether a record of its transaction is left."""
    assert cleaned("0:7.0t0:k=1 1:k=2 2:7.0t0:COMMIT", end=2) == "1:k=2 2:7.0t0:COMMIT~10"
    assert cleaned("1:k=2 2:7.0t0:COMMIT~10", end=2, now_ms=10) == "1:k=2"
    assert cleaned("0:k=2 1:7.0t1:k=1 2:7.0t1:COMMIT", end=1) == "0:k=2 1:7.0t1:k=1 2:7.0t1:COMMIT"


def test_a_marker_stays_while_one_record_of_its_transaction_is_left() -> None:
    """The other record is superseded. The marker also stays if its delete horizon has passed already."""
    assert cleaned("0:7.0t0:k=1 1:7.0t0:j=1 2:7.0t0:COMMIT 3:k=2") == "1:7.0t0:j=1 2:7.0t0:COMMIT 3:k=2"
    assert cleaned("0:7.0t0:j=1 1:7.0t0:COMMIT~5", now_ms=9) == "0:7.0t0:j=1 1:7.0t0:COMMIT~5"


def test_neither_an_empty_row_nor_another_transaction_pins_a_marker() -> None:
    """An idle partition's markers can go, one pass earlier than in Kafka."""
    assert cleaned("0:7.0#0:EMPTY 1:7.0t0:COMMIT 2:7.0t2:k=1 3:7.0t2:COMMIT", active=(7,)) == "1:7.0t0:COMMIT~10 2:7.0t2:k=1 3:7.0t2:COMMIT"
    assert cleaned("0:8.0t0:k=1 1:7.0t0:COMMIT") == "0:8.0t0:k=1 1:7.0t0:COMMIT~10"


def test_a_marker_of_a_transaction_without_a_record_here_is_stamped_at_once() -> None:
    """It belongs to nothing in this partition."""
    assert cleaned("0:7.0:COMMIT 1:8.0:ABORT 2:k=1") == "0:7.0:COMMIT~10 1:8.0:ABORT~10 2:k=1"
    assert cleaned("0:7.0:k=1 1:7.0:COMMIT") == "0:7.0:k=1 1:7.0:COMMIT~10", "a plain record of its producer pins nothing"
    assert cleaned("0:7.0:k=1 1:7.0:ABORT") == "0:7.0:k=1 1:7.0:ABORT~10", "and is not aborted with it"


def test_a_committed_record_is_cleaned_like_any_other() -> None:
    """By key; the records of a transaction are not kept together."""
    assert cleaned("0:7.0t0:k=1 1:7.0t0:j=∅ 2:7.0t0:COMMIT 3:k=2") == "1:7.0t0:j=∅~10 2:7.0t0:COMMIT 3:k=2"


# --- rows that hold a place ---------------------------------------------------------------------------------------------------------------


def test_the_last_record_of_a_partition_leaves_an_empty_row() -> None:
    """No offset is given twice; without a producer it has nothing but its offset."""
    assert cleaned("0:k=1 1:k=∅~5", now_ms=9, log_end=2) == "1:EMPTY"
    assert cleaned("0:k=1 1:=x", log_end=2) == "0:k=1 1:EMPTY"
    assert cleaned("0:k=1 1:EMPTY", log_end=2) == "0:k=1 1:EMPTY"


def test_that_row_goes_when_it_is_not_the_last_any_more() -> None:
    """Something was appended."""
    assert cleaned("0:k=1 1:EMPTY 2:j=1", log_end=3) == "0:k=1 2:j=1"


def test_the_last_data_record_of_an_active_producer_leaves_an_empty_row() -> None:
    """With its epoch and sequence, so that the producer goes on; the one before it goes without a trace."""
    before = "0:7.3#4:k=1 1:7.3#5:k=2 2:k=3"
    assert cleaned(before, active=(7,)) == "1:7.3#5:EMPTY 2:k=3"
    assert cleaned(before, active=(8,)) == "2:k=3", "not active: forgotten"


def test_an_empty_row_of_a_producer_goes_when_it_appends_again_or_is_forgotten() -> None:
    """A newer record holds its place then."""
    assert cleaned("1:7.3#5:EMPTY 2:k=3 3:7.3#6:j=1", active=(7,)) == "2:k=3 3:7.3#6:j=1"
    assert cleaned("1:7.3#5:EMPTY 2:k=3", active=(7,)) == "1:7.3#5:EMPTY 2:k=3"
    assert cleaned("1:7.3#5:EMPTY 2:k=3") == "2:k=3"


def test_an_aborted_last_record_of_an_active_producer_leaves_an_empty_row_too() -> None:
    """Its transaction is left out: the row pins no marker."""
    assert cleaned("0:7.0#0t0:k=1 1:7.0t0:ABORT", active=(7,)) == "0:7.0#0:EMPTY 1:7.0t0:ABORT~10"
    assert cleaned("0:7.0#0:EMPTY 1:7.0t0:ABORT~10", active=(7,), now_ms=10) == "0:7.0#0:EMPTY"


def test_what_remains_of_a_marker_does_not_take_the_place_of_a_sequence() -> None:
    """The marker at the log end went and left an EMPTY row; the sequence that the producer goes on from stands at 0."""
    before = "0:7.0#4:EMPTY 1:7.0t0:COMMIT~5"
    assert cleaned(before, active=(7,), now_ms=9, log_end=2) == "0:7.0#4:EMPTY 1:7.0:EMPTY"
    assert cleaned("0:7.0#4:EMPTY 1:7.0:EMPTY", active=(7,), now_ms=9, log_end=2) == "0:7.0#4:EMPTY 1:7.0:EMPTY"
    assert cleaned("0:7.0#4:EMPTY 1:7.0:EMPTY 2:k=1", active=(7,)) == "0:7.0#4:EMPTY 2:k=1"


def test_a_marker_that_alone_carries_a_producers_newest_epoch_leaves_an_empty_row() -> None:
    """A fencing abort: epoch 4 has no data record. The data of epoch 3 holds no place any more."""
    before = "0:7.3t0:k=1 1:7.4t0:ABORT~5 2:k=2"
    assert cleaned(before, active=(7,), now_ms=9) == "1:7.4:EMPTY 2:k=2"
    assert cleaned(before, active=(7,), now_ms=4) == before.removeprefix("0:7.3t0:k=1 ")
    assert cleaned(before, now_ms=9) == "2:k=2"


def test_a_place_is_kept_by_a_row_that_stays_as_it_is() -> None:
    """Nothing is emptied that has no reason to go."""
    assert cleaned("0:7.3:k=1 1:j=1", active=(7,), log_end=2) == "0:7.3:k=1 1:j=1"
    assert cleaned("0:k=1 1:j=∅", log_end=2) == "0:k=1 1:j=∅~10", "the last row is stamped like any other"


def test_who_holds_a_place_for_a_producer() -> None:
    """Its last data record in its newest epoch, or what remains of it; without one there, its last marker of that epoch."""
    assert _places("0:7.0:a=1 1:7.0:b=1 2:8.0:c=1", 7, 8) == [1, 2]
    assert _places("0:7.0:a=1 1:7.0:b=1 2:8.0:c=1", 7) == [1]
    assert _places("0:7.0t0:a=1 1:7.0t0:COMMIT", 7) == [0], "data before markers"
    assert _places("0:7.0#0:EMPTY 1:7.0t0:COMMIT", 7) == [0], "also when it is gone"
    assert _places("0:7.0:EMPTY 1:7.0:COMMIT", 7) == [1], "what was a marker is none better than a later one"
    assert _places("0:7.0#0:a=1 1:7.0:EMPTY", 7) == [0]
    assert _places("0:7.0t0:a=1 1:7.1t0:ABORT", 7) == [1], "the newest epoch before data"
    assert _places("0:7.1:ABORT 1:7.1:COMMIT", 7) == [1]
    assert _places("0:7.1:ABORT 1:7.1:a=1 2:7.1t1:COMMIT", 7) == [1]
    assert _places("0:a=1", 7) == []


def test_a_producer_that_came_back_with_a_lower_epoch_holds_its_new_place() -> None:
    """It had been forgotten, so nobody fenced it; what it wrote in its earlier life holds nothing."""
    assert _places("0:7.5:a=1 1:7.0:b=1", 7) == [1]
    assert cleaned("0:7.5:a=1 1:7.0:b=1 2:a=2 3:b=2", active=(7,)) == "1:7.0:EMPTY 2:a=2 3:b=2"


@pytest.mark.parametrize("row", ["0:k=1", "0:k=∅~10", "0:7.0:EMPTY", "0:7.0t0:COMMIT~10", "0:=x"])
def test_a_row_past_the_range_has_no_fate(row: str) -> None:
    """It stays as it is while nothing holds against it: not expired, in its place, past the map."""
    (one,) = rows(row)
    cleaning = pass_over([one.row], first_dirty=0, end=0, now_ms=9, delete_retention_ms=10, places={0})
    assert fate(one.row, cleaning) == Fate()
