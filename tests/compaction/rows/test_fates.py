"""The rule over batches is the rule for one row: random rows, random passes, compared with the specification."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lastword.compaction.producers import Control
from lastword.compaction.rows.fates import CleaningPass, Removal, among, fates, survivors
from tests.compaction.logs import DrawnRow, arrow_rows, cleaning_pass, drawn_rows, pass_over, rows
from tests.compaction.row_rules import Row, after, fate

if TYPE_CHECKING:
    from tests.compaction.row_rules import Pass

_KEYS = st.sampled_from([None, b"a", b"b", b"c"])
_HORIZONS = st.sampled_from([None, None, 5, 10, 20])


@st.composite
def _rows(draw: Any) -> list[Row]:
    """Draw a log: data, tombstones, keyless records, transactions, markers and EMPTY rows, with gaps between the offsets."""
    found, offset = [], 0
    for _ in range(draw(st.integers(0, 25))):
        offset += draw(st.integers(1, 3))
        kind = draw(st.sampled_from(["data", "data", "data", "transactional", "marker", "empty"]))
        producer, first = draw(st.integers(1, 2)), draw(st.sampled_from([1, 4]))
        if kind == "marker":
            control = draw(st.sampled_from([Control.COMMIT, Control.ABORT]))
            found.append(
                Row(
                    offset=offset,
                    has_value=False,
                    producer_id=producer,
                    epoch=0,
                    txn_first_offset=first,
                    control=control,
                    delete_horizon_ms=draw(_HORIZONS),
                )
            )
        elif kind == "empty":
            found.append(Row(offset=offset, has_value=False, producer_id=producer, epoch=0, sequence=3, control=Control.EMPTY))
        else:
            key, has_value = draw(_KEYS), draw(st.booleans())
            row = Row(offset=offset, key=key, has_value=has_value, delete_horizon_ms=None if has_value or key is None else draw(_HORIZONS))
            named = {"producer_id": producer, "epoch": 0, "sequence": 7, "txn_first_offset": first} if kind == "transactional" else {}
            found.append(replace(row, **named))
    return found


@st.composite
def _passes(draw: Any) -> tuple[list[Row], Pass, int]:
    log = draw(_rows())
    offsets = [row.offset for row in log]
    some = st.sets(st.sampled_from(offsets)) if offsets else st.just(set())
    first_dirty = draw(st.integers(0, 40))
    end = draw(st.integers(first_dirty, 80))
    cleaning = pass_over(log, first_dirty=first_dirty, end=end, now_ms=10, delete_retention_ms=100, places=draw(some))
    return log, replace(cleaning, released=draw(some), unread_offset=draw(st.none() | st.integers(0, 80))), first_dirty


_PLAIN = CleaningPass(now_ms=0, horizon_ms=10, first_dirty_offset=2, end_offset=9)


def test_a_batch_says_how_many_rows_go_and_whether_anything_changes() -> None:
    """In the clean section nothing does; in the dirty range what is not the newest of its key; past the end of the map nothing."""
    clean, dirty = arrow_rows(rows("0:a=1 1:b=1")), arrow_rows(rows("2:a=2 3:b=2 4:=x 9:c=1"))

    assert (fates(clean, _PLAIN).changes, fates(clean, _PLAIN).counts()) == (False, {})
    found = fates(dirty, replace(_PLAIN, newest=np.asarray([3])))
    assert (found.changes, found.counts(), found.written.tolist()) == (True, {"superseded": 1, "keyless": 1}, [False, True, False, True])
    assert fates(arrow_rows(rows("9:c=∅")), _PLAIN).changes, "it is stamped"


def test_without_keys_a_record_without_one_counts_as_superseded() -> None:
    """Which is all that a count of special rows asks."""
    narrow = arrow_rows(rows("2:=x 3:a=∅")).drop_columns(["key", "value"])
    found = fates(narrow, replace(_PLAIN, newest=np.asarray([3])))

    assert (found.counts(), found.stamped.tolist()) == ({"superseded": 1}, [False, False])


def test_a_first_offset_without_a_producer_names_no_transaction() -> None:
    """No writer leaves one."""
    (row,) = rows("2:a=1")
    odd = arrow_rows([DrawnRow(row=replace(row.row, txn_first_offset=2), value="1")])

    assert not fates(odd, replace(_PLAIN, newest=np.asarray([2]), aborted=frozenset({(1, 2)}))).changes


@given(_passes())
def test_a_batch_has_the_fates_of_its_rows(drawn: tuple[list[Row], Pass, int]) -> None:
    """Reasons, places and horizons; and what is written is what the specification leaves, in order."""
    log, cleaning, first_dirty = drawn
    table, known = arrow_rows([DrawnRow(row=row) for row in log]), cleaning_pass(log, cleaning, first_dirty=first_dirty)
    found, wanted = fates(table, known), [fate(row, cleaning) for row in log]

    assert found.keeps_place.tolist() == [one.removal is not None and one.keeps_place for one in wanted]
    assert found.stamped.tolist() == [one.new_horizon_ms is not None for one in wanted]
    for reason in Removal:
        assert found.removed_for(reason).tolist() == [one.removal is reason for one in wanted], reason
    assert found.counts() == {one.value: n for one in Removal if (n := sum(each.removal is one for each in wanted))}
    assert found.changes == any(one.removal is not None or one.new_horizon_ms is not None for one in wanted)
    left = [row for row in (after(row, cleaning) for row in log) if row is not None]
    assert [one.row for one in drawn_rows(survivors(table, found, known))] == left


@given(_passes())
def test_without_keys_and_values_the_fates_are_the_same_but_for_what_these_tell(drawn: tuple[list[Row], Pass, int]) -> None:
    """Without keys, a keyless record counts as superseded; without values, no tombstone gets a delete horizon."""
    log, cleaning, first_dirty = drawn
    cleaning = replace(cleaning, released=())
    known = cleaning_pass(log, cleaning, first_dirty=first_dirty)
    table = arrow_rows([DrawnRow(row=row) for row in log])
    whole, narrow = fates(table, known), fates(table.drop_columns(["key", "value"]), known)

    clean_and_keyless = np.asarray([row.key is None and row.control is None and row.offset < first_dirty for row in log], dtype=np.bool_)
    assert ((whole.code != 0) == (narrow.code != 0))[~clean_and_keyless].all()


@given(st.lists(st.integers(0, 30), unique=True).map(sorted), st.lists(st.integers(0, 30), unique=True).map(sorted))
def test_offsets_are_looked_up_in_ascending_ones(offsets: list[int], ascending: list[int]) -> None:
    """As a set would."""
    found = among(np.asarray(offsets, dtype=np.int64), np.asarray(ascending, dtype=np.int64))
    assert found.tolist() == [one in set(ascending) for one in offsets]
