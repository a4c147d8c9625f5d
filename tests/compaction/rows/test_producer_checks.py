"""Rows with a producer, judged in runs, against the rule for one row after the other (`producer_rules`)."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from lastword.compaction.producers import SEQUENCES, Control, ProducerState, Verdict
from lastword.compaction.rows.producer_checks import ProducerChecks, verdict_of
from tests.compaction.producer_rules import applied, judge

if TYPE_CHECKING:
    from collections.abc import Sequence

_Row = tuple[int | None, int | None, int | None, bool, str | None]


def _batch(rows: Sequence[_Row]) -> pa.RecordBatch:
    types = {
        "producer_id": pa.int64(),
        "producer_epoch": pa.int32(),
        "sequence": pa.int32(),
        "transactional": pa.bool_(),
        "control": pa.string(),
    }
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(types)
    return pa.record_batch({name: pa.array(column, of) for (name, of), column in zip(types.items(), columns, strict=True)})


def _state(**changes: Any) -> ProducerState:
    given: dict[str, Any] = {"partition": 0, "producer_id": 7, "epoch": 0, "last_sequence": 4, "last_appended_ms": 0}
    return ProducerState(**(given | changes))


def _checked(states: list[ProducerState], rows: Sequence[_Row]) -> tuple[list[Verdict], dict[int, str]]:
    verdicts, details = ProducerChecks(states).check(_batch(rows))
    return [verdict_of(code) for code in verdicts.tolist()], details


_DUP, _OK, _GAP = Verdict.DUPLICATE, Verdict.ACCEPTED, Verdict.GAP


def test_the_picture_of_the_module() -> None:
    """Duplicates, what goes on, a gap, and what follows it."""
    rows: list[_Row] = [*((7, 0, sequence, False, None) for sequence in (3, 4, 5, 6, 8, 9)), (7, 1, 0, False, None)]
    verdicts, details = _checked([_state()], rows)
    assert verdicts == [_DUP, _DUP, _OK, _OK, _GAP, _GAP, _GAP]
    assert details == {
        0: "sequence 3 of producer 7 is in the log",
        1: "sequence 4 of producer 7 is in the log",
        4: "sequence 8 of producer 7: expected 7",
        5: "sequence 9 of producer 7: expected 7",
        6: "sequence 0 of producer 7: expected 0",
    }


def test_an_older_epoch_is_fenced_and_stops_nobody() -> None:
    """A marker of it too; the newer instance beside it goes on."""
    rows: list[_Row] = [(7, 2, 0, False, None), (7, 1, 0, False, None), (7, 1, None, True, "COMMIT"), (7, 2, 1, False, None)]
    verdicts, details = _checked([_state()], rows)
    assert verdicts == [_OK, Verdict.FENCED, Verdict.FENCED, _OK]
    assert details[1] == details[2] == "epoch 1 of producer 7: allowed is 2 or later"


def test_plain_rows_in_an_open_transaction_are_refused_until_a_marker() -> None:
    """And all that the producer brings afterwards, the marker included."""
    rows: list[_Row] = [(7, 0, 5, False, None), (7, 0, 6, False, None), (7, 0, None, True, "COMMIT"), (None, None, None, False, None)]
    verdicts, details = _checked([_state(open_first_offset=3)], rows)
    assert verdicts == [Verdict.NOT_TRANSACTIONAL, _GAP, _GAP, _OK]
    assert details[0] == "producer 7 has a transaction open; allowed are transactional rows"
    assert details[1] == "sequence 6 of producer 7: expected 5"
    assert details[2] == "sequence null of producer 7: expected 5"
    closed: list[_Row] = [(7, 0, None, True, "COMMIT"), (7, 0, 5, False, None)]
    assert _checked([_state(open_first_offset=3)], closed)[0] == [_OK, _OK]


def test_who_is_not_known_may_start_anywhere_and_sequences_begin_again_at_0() -> None:
    """The ring of 32-bit sequences; a marker first means sequence 0."""
    last = SEQUENCES - 1
    assert _checked([], [(7, 0, last, False, None), (7, 0, 0, False, None), (7, 0, last, False, None)])[0] == [_OK, _OK, _DUP]
    assert _checked([], [(7, 3, None, True, "ABORT"), (7, 3, 1, False, None)])[0] == [_OK, _GAP]
    assert _checked([_state(last_sequence=None)], [(7, 0, 1, False, None)])[0] == [_GAP]
    assert _checked([], []) == ([], {})


def _specified(states: dict[int, ProducerState], rows: list[_Row], *, next_offset: int) -> tuple[list[Verdict], list[int]]:
    """Return verdicts and first offsets, one row after the other; `states` become those after the accepted ones."""
    stopped: set[int] = set()
    verdicts, firsts = [], []
    for producer_id, epoch, sequence, transactional, text in rows:
        if producer_id is None or epoch is None:
            verdicts.append(Verdict.ACCEPTED)
            firsts.append(-1)
            next_offset += 1
            continue
        control = None if text is None else Control(text)
        state = states.get(producer_id)
        verdict = judge(state, epoch=epoch, sequence=sequence, transactional=transactional, control=control)
        if producer_id in stopped and verdict is not Verdict.FENCED:
            verdict = Verdict.GAP
        if verdict in {Verdict.GAP, Verdict.NOT_TRANSACTIONAL}:
            stopped.add(producer_id)
        verdicts.append(verdict)
        if verdict is not Verdict.ACCEPTED:
            continue
        before = None if state is None else state.open_first_offset
        states[producer_id] = applied(
            state,
            partition=0,
            producer_id=producer_id,
            epoch=epoch,
            sequence=sequence,
            transactional=transactional,
            control=control,
            offset=next_offset,
            appended_ms=0,
        )
        first = before if control is not None else states[producer_id].open_first_offset
        firsts.append(-1 if first is None else first)
        next_offset += 1
    return verdicts, firsts


def _random_row(chance: random.Random) -> _Row:
    if chance.random() < 0.1:
        return (None, None, None, False, None)
    producer, epoch = chance.choice([1, 1, 2]), chance.choice([0, 0, 0, 0, 0, 1])
    if chance.random() < 0.15:
        return (producer, epoch, None, True, chance.choice(["COMMIT", "ABORT"]))
    return (producer, epoch, -1, chance.random() < 0.5, None)


@pytest.mark.parametrize("seed", range(500))
def test_random_rows_are_judged_as_one_after_the_other(seed: int) -> None:
    """Over several batches; most sequences go on, some repeat, skip or wrap."""
    chance = random.Random(seed)
    states: dict[int, ProducerState] = {}
    if chance.random() < 0.6:
        last = chance.choice([None, 0, 5, SEQUENCES - 2])
        states[1] = _state(producer_id=1, last_sequence=last, open_first_offset=chance.choice([None, 3]))
    checks, offset = ProducerChecks(list(states.values())), 10
    sequences = {1: states[1].next_sequence if 1 in states else 0, 2: chance.choice([0, 8])}
    rows: list[_Row] = []
    transactional = chance.random() < 0.7
    for _ in range(chance.randrange(1, 40)):
        producer, epoch, sequence, flag, control = _random_row(chance)
        if producer is not None and control is None:
            sequence = (sequences[producer] + chance.choice([0] * 20 + [-1, -3, 1])) % SEQUENCES
            sequences[producer] = (sequence + 1) % SEQUENCES
            flag = transactional if chance.random() < 0.95 else flag
        rows.append((producer, epoch, sequence, flag, control))
    expected, firsts = _specified(states, rows, next_offset=offset)
    found: list[Verdict] = []
    found_firsts: list[int] = []
    while rows:
        taken = chance.randrange(1, len(rows) + 1)
        verdicts, details = checks.check(_batch(rows[:taken]))
        assert set(details) == set(np.flatnonzero(verdicts).tolist())
        accepted = np.flatnonzero(verdicts == 0)
        offsets = np.full(taken, -1)
        offsets[accepted] = np.arange(offset, offset + len(accepted))
        offset += len(accepted)
        found_firsts += checks.first_offsets(offsets)[accepted].tolist()
        found += [verdict_of(code) for code in verdicts.tolist()]
        rows = rows[taken:]
    assert found == expected
    assert found_firsts == firsts
