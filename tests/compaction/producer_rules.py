"""What a log does with one row of a producer, and what it knows afterwards: the specification, one row at a time (KIP-98, KIP-360).

Production applies the same rules to whole micro-batches (`lastword.compaction.rows.producer_checks`) and to whole logs
(`lastword.storage.log.producer_states`); tests compare them.
"""

from __future__ import annotations

from lastword.compaction.producers import SEQUENCES, Control, ProducerState, Verdict


def judge(state: ProducerState | None, *, epoch: int, sequence: int | None, transactional: bool, control: Control | None) -> Verdict:
    """Say what happens to a row of a producer, given what the log knows of it (None: nothing)."""
    if state is None:
        return Verdict.ACCEPTED
    if epoch < state.epoch:
        return Verdict.FENCED
    if control is not None:
        return Verdict.ACCEPTED
    expected = 0 if epoch > state.epoch else state.next_sequence
    given = epoch == state.epoch and state.last_sequence is not None
    if given and sequence is not None and _is_before(sequence, expected):
        return Verdict.DUPLICATE
    if state.open_first_offset is not None and not transactional:
        return Verdict.NOT_TRANSACTIONAL
    return Verdict.ACCEPTED if sequence in {None, expected} else Verdict.GAP


def _is_before(sequence: int, expected: int) -> bool:
    """Tell whether `sequence` was given before `expected`, on the ring of 32-bit sequences: at most half of it behind."""
    return 1 <= (expected - sequence) % SEQUENCES <= SEQUENCES // 2


def applied(
    state: ProducerState | None,
    *,
    partition: int,
    producer_id: int,
    epoch: int,
    sequence: int | None,
    transactional: bool,
    control: Control | None,
    offset: int,
    appended_ms: int,
) -> ProducerState:
    """Return the state after an accepted row stands at `offset`."""
    last = state.last_sequence if state is not None and state.epoch == epoch else None
    open_first = state.open_first_offset if state is not None else None
    open_last = state.open_last_offset if state is not None else None
    open_since = state.open_since_ms if state is not None else None
    if control in {Control.COMMIT, Control.ABORT}:
        open_first = open_last = open_since = None
    elif control is None and transactional:
        open_first, open_since = (offset, appended_ms) if open_first is None else (open_first, open_since)
        open_last = offset
    is_data = control is None or (control is Control.EMPTY and sequence is not None)  # what is left of a marker has no sequence
    moves = is_data or state is None or state.epoch != epoch or not state.place_is_data
    return ProducerState(
        partition=partition,
        producer_id=producer_id,
        epoch=epoch,
        last_sequence=last if sequence is None else sequence,
        last_appended_ms=appended_ms,
        open_first_offset=open_first,
        open_last_offset=open_last,
        open_since_ms=open_since,
        place_offset=offset if moves or state is None else state.place_offset,
        place_is_data=is_data or (not moves),
    )
