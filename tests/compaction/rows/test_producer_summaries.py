"""What stretches of a log show of its producers, against the rule for one row after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastword.compaction.producers import Control, ProducerState, merge_states
from lastword.compaction.rows.producer_summaries import SUMMARY_COLUMNS, summaries
from tests.compaction.producer_rules import applied
from tests.randomness import examples

if TYPE_CHECKING:
    from collections.abc import Sequence

_TYPES = dict(
    zip(SUMMARY_COLUMNS, [pa.int64(), pa.timestamp("us", "UTC"), pa.int64(), pa.int32(), pa.int32(), pa.string(), pa.int64()], strict=True)
)


def _table(rows: Sequence[Sequence[object]]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [[] for _ in SUMMARY_COLUMNS]
    return pa.table({name: pa.array(list(column), _TYPES[name]) for name, column in zip(SUMMARY_COLUMNS, columns, strict=True)})


def _row(offset: int, *rest: object) -> list[object]:
    """Return a row of `SUMMARY_COLUMNS`, appended a second after the one before: producer, epoch, sequence, control, first offset."""
    return [offset, offset * 1_000_000, *rest]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], {}),
        ([_row(0, None, None, None, None, None)], {}),
        ([_row(3, 7, 0, 0, None, None), _row(4, 7, 0, 1, None, None)], {7: (0, 1, None, None, None, 4, True, False)}),
        ([_row(3, 7, 0, 0, None, 3), _row(4, 7, 0, 1, None, 3)], {7: (0, 1, 3, 4, 3000, 4, True, False)}),
        ([_row(3, 7, 0, 0, None, 3), _row(4, 7, 0, None, "COMMIT", 3)], {7: (0, 0, None, None, None, 3, True, True)}),
        ([_row(4, 7, 0, None, "ABORT", 3), _row(6, 7, 0, 5, None, 6)], {7: (0, 5, 6, 6, 6000, 6, True, True)}),
        # A marker of a new epoch takes the place; what it fenced has no sequence any more.
        ([_row(3, 7, 0, 4, None, 3), _row(4, 7, 1, None, "ABORT", 3)], {7: (1, None, None, None, None, 4, False, True)}),
        # What is left of a record keeps its sequence; what is left of a marker has none.
        ([_row(3, 7, 0, 4, "EMPTY", None), _row(5, 7, 0, None, "EMPTY", None)], {7: (0, 4, None, None, None, 3, True, False)}),
        ([_row(5, 7, 2, None, "EMPTY", None)], {7: (2, None, None, None, None, 5, False, False)}),
        # The first record of the open transaction is gone (log start): since the last one, not since an earlier transaction.
        ([_row(2, 7, 0, 0, None, 2), _row(3, 7, 0, None, "COMMIT", 2), _row(9, 7, 0, 1, None, 5)], {7: (0, 1, 5, 9, 9000, 9, True, True)}),
        # Two producers in one stretch.
        (
            [_row(1, 8, 0, 0, None, 1), _row(2, 7, 3, 1, None, None)],
            {8: (0, 0, 1, 1, 1000, 1, True, False), 7: (3, 1, None, None, None, 2, True, False)},
        ),
    ],
)
def test_what_a_stretch_shows(rows: list[list[object]], expected: dict[int, tuple[object, ...]]) -> None:
    """Epoch, sequence, first and last offset and begin of the open transaction, place, whether data holds it, whether a marker was seen."""
    found = {
        one.producer_id: (
            one.epoch,
            one.last_sequence,
            one.open_first_offset,
            one.open_last_offset,
            one.open_since_ms,
            one.place_offset,
            one.place_is_data,
            ended,
        )
        for one, ended in summaries(_table(rows), 0)
    }
    assert found == expected


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["data", "txn", "commit", "abort", "epoch", "plain"]), st.booleans()), max_size=40
    )
)
def test_stretches_joined_are_the_rule_row_by_row(events: list[tuple[int, str, bool]]) -> None:
    """However a log of accepted rows is cut into stretches."""
    states: dict[int, ProducerState] = {}
    rows: list[list[object]] = []
    cuts = [0]
    for offset, (producer, what, cut) in enumerate(events):
        if cut:
            cuts.append(offset)
        if what == "plain":
            rows.append(_row(offset, None, None, None, None, None))
            continue
        known = states.get(producer)
        is_open = known is not None and known.open_first_offset is not None
        epoch = known.epoch if known is not None else 0
        control = None
        sequence: int | None = known.next_sequence if known is not None else 0
        if what in {"commit", "abort"} or (what == "epoch" and is_open):
            control, sequence = (Control.COMMIT if what == "commit" else Control.ABORT), None
            epoch += what == "epoch"
        elif what == "epoch":
            epoch, sequence = epoch + 1, 0
        transactional = control is None and (what == "txn" or is_open)
        states[producer] = applied(
            known,
            partition=0,
            producer_id=producer,
            epoch=epoch,
            sequence=sequence,
            transactional=transactional,
            control=control,
            offset=offset,
            appended_ms=offset * 1000,
        )
        first = states[producer].open_first_offset if control is None else (known.open_first_offset if known is not None else None)
        rows.append(_row(offset, producer, epoch, sequence, None if control is None else control.value, first))
    joined: dict[int, ProducerState] = {}
    for begin, end in zip(cuts, [*cuts[1:], len(rows)], strict=True):
        for new, ended in summaries(_table(rows[begin:end]), 0):
            joined[new.producer_id] = merge_states(joined.get(new.producer_id), new, ended=ended)
    assert joined == states
