"""The pure rules of producers and transactions: worked examples, and a state machine against the model."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from lastword.compaction.producers import (
    LAST_EPOCH,
    SEQUENCES,
    Control,
    OpenTransaction,
    ProducerSnapshot,
    ProducerState,
    Verdict,
    drop_expired_producers,
    in_sight,
    last_stable_offsets,
    merge_states,
    next_identity,
    open_transactions,
    unexpired_producers,
)
from tests.compaction.producer_rules import applied, judge
from tests.model import ModelTopic
from tests.randomness import examples

_STATE = ProducerState(partition=0, producer_id=7, epoch=3, last_sequence=9, last_appended_ms=1_000)


def _judge(state: ProducerState | None, epoch: int, sequence: int | None, *, transactional: bool = False) -> Verdict:
    return judge(state, epoch=epoch, sequence=sequence, transactional=transactional, control=None)


def test_sequences_go_on_by_one_and_what_comes_again_is_a_duplicate() -> None:
    """Kafka's idempotence."""
    assert _judge(_STATE, 3, 10) is Verdict.ACCEPTED
    assert _judge(_STATE, 3, 9) is Verdict.DUPLICATE
    assert _judge(_STATE, 3, 0) is Verdict.DUPLICATE
    assert _judge(_STATE, 3, 11) is Verdict.GAP


def test_an_older_epoch_is_fenced_and_a_newer_one_starts_at_sequence_0() -> None:
    """KIP-360."""
    assert _judge(_STATE, 2, 10) is Verdict.FENCED
    assert judge(_STATE, epoch=2, sequence=None, transactional=True, control=Control.COMMIT) is Verdict.FENCED
    assert _judge(_STATE, 4, 0) is Verdict.ACCEPTED
    assert _judge(_STATE, 4, 1) is Verdict.GAP


def test_a_producer_that_the_log_does_not_know_may_start_anywhere() -> None:
    """As in Kafka; also after `producer.id.expiration.ms`."""
    assert _judge(None, 0, 12_345) is Verdict.ACCEPTED
    assert unexpired_producers([_STATE], now_ms=1_999, expiration_ms=1_000) == [_STATE]
    assert unexpired_producers([_STATE], now_ms=2_000, expiration_ms=1_000) == []


@pytest.mark.parametrize(("now_ms", "left"), [(9_500, {3}), (6_500, {2, 3}), (99_000, {3})])
def test_who_is_not_known_any_more_is_forgotten_by_no_clock_that_runs_ahead(now_ms: int, left: set[int]) -> None:
    """The picture of `drop_expired_producers`; whose transaction is open is remembered for ever."""
    states = {(0, one): replace(_STATE, producer_id=one, last_appended_ms=at) for one, at in ((1, 1_000), (2, 2_000), (3, 9_000))}
    snapshot = ProducerSnapshot(table_version=4, log_end_offsets=(60,), states=states)
    kept = drop_expired_producers(snapshot, now_ms=now_ms, expiration_ms=5_000)
    assert {producer_id for _, producer_id in kept.states} == left
    assert (kept.table_version, kept.log_end_offsets) == (4, (60,))
    held = replace(snapshot, states={**states, (0, 1): replace(states[0, 1], open_first_offset=5)})
    assert (0, 1) in drop_expired_producers(held, now_ms=now_ms, expiration_ms=5_000).states
    assert drop_expired_producers(replace(snapshot, states={}), now_ms=now_ms, expiration_ms=1).states == {}


def test_a_marker_leaves_the_place_with_the_last_data_record_of_its_epoch() -> None:
    """Epoch and sequence are read from that row; a newer epoch has none but the marker, and the next data record takes the place anyway.

    ```
     offset   20 data, sequence 9      30 COMMIT               the stretch that is merged holds the marker alone
    ```
    """
    held = replace(_STATE, place_offset=20, place_is_data=True)
    marker = ProducerState(partition=0, producer_id=7, epoch=3, last_sequence=None, last_appended_ms=2_000, place_offset=30)
    place = [(one.place_offset, one.place_is_data, one.last_sequence) for one in (merge_states(held, marker, ended=True),)]
    assert place == [(20, True, 9)]
    newer = merge_states(held, replace(marker, epoch=4), ended=True)
    assert (newer.place_offset, newer.place_is_data, newer.last_sequence) == (30, False, None)
    data = merge_states(held, replace(marker, last_sequence=10, place_is_data=True), ended=False)
    assert (data.place_offset, data.place_is_data, data.last_sequence) == (30, True, 10)
    again = merge_states(replace(marker, place_offset=25), marker, ended=True)
    assert (again.place_offset, again.place_is_data) == (30, False)


_HOLDING = replace(_STATE, open_first_offset=42, open_last_offset=44, open_since_ms=1_000)


def _after(state: ProducerState, offset: int, *, epoch: int = 3, transactional: bool, control: Control | None) -> ProducerState:
    return applied(
        state,
        partition=0,
        producer_id=7,
        epoch=epoch,
        sequence=None,
        transactional=transactional,
        control=control,
        offset=offset,
        appended_ms=5_000,
    )


def test_a_row_beside_an_open_transaction_leaves_it_as_it_is() -> None:
    """A record outside of it, which only a foreign writer makes, or an EMPTY row; the next record of it goes on with it."""
    for control in (None, Control.EMPTY):
        beside = _after(_HOLDING, 50, transactional=False, control=control)
        assert (beside.open_first_offset, beside.open_last_offset, beside.open_since_ms) == (42, 44, 1_000)
    inside = _after(_HOLDING, 50, transactional=True, control=None)
    assert (inside.open_first_offset, inside.open_last_offset, inside.open_since_ms) == (42, 50, 1_000)


def test_what_is_left_of_a_marker_takes_no_place_from_a_data_record() -> None:
    """An EMPTY row that was data carries its sequence; one without was a marker."""
    held = replace(_STATE, place_offset=20, place_is_data=True)
    left = _after(held, 50, transactional=False, control=Control.EMPTY)
    assert (left.place_offset, left.place_is_data, left.last_sequence) == (20, True, 9)
    was_data = applied(
        held, partition=0, producer_id=7, epoch=3, sequence=10, transactional=False, control=Control.EMPTY, offset=50, appended_ms=5_000
    )
    assert (was_data.place_offset, was_data.place_is_data, was_data.last_sequence) == (50, True, 10)


def test_a_marker_of_the_epoch_or_of_a_newer_one_is_accepted_and_ends_the_transaction() -> None:
    """It has no sequence; one of a newer epoch ends the transaction of a producer that was fenced, and sequences begin anew."""
    for control in (Control.COMMIT, Control.ABORT):
        for epoch, last_sequence in ((3, 9), (4, None)):
            assert judge(_HOLDING, epoch=epoch, sequence=None, transactional=True, control=control) is Verdict.ACCEPTED
            ended = _after(_HOLDING, 50, epoch=epoch, transactional=True, control=control)
            assert (ended.open_first_offset, ended.open_last_offset, ended.open_since_ms) == (None, None, None)
            assert (ended.epoch, ended.last_sequence) == (epoch, last_sequence)


def test_a_transaction_of_an_older_epoch_is_left_open_before_a_newer_one() -> None:
    """It is aborted before the newer instance writes: otherwise that one's marker would commit records of both."""
    left_open = replace(_STATE, open_first_offset=40, open_last_offset=45, open_since_ms=900)
    assert left_open.is_left_open_before(4)
    assert not left_open.is_left_open_before(3), "its own"
    assert not _STATE.is_left_open_before(4), "nothing is open"


def test_an_open_transaction_keeps_its_producer_known_however_old_it_is() -> None:
    """Otherwise nobody could end the transaction."""
    holding = applied(
        _STATE, partition=0, producer_id=7, epoch=3, sequence=10, transactional=True, control=None, offset=50, appended_ms=1_000
    )
    assert holding.open_first_offset == 50
    assert unexpired_producers([holding], now_ms=10**12, expiration_ms=1) == [holding]
    assert _judge(holding, 3, 11) is Verdict.NOT_TRANSACTIONAL
    assert _judge(holding, 3, 11, transactional=True) is Verdict.ACCEPTED


def test_sequences_begin_again_at_0_after_the_last_of_32_bits() -> None:
    """DefaultRecordBatch.incrementSequence."""
    last = ProducerState(partition=0, producer_id=7, epoch=3, last_sequence=SEQUENCES - 1, last_appended_ms=0)
    assert last.next_sequence == 0
    assert _judge(last, 3, 0) is Verdict.ACCEPTED
    assert _judge(last, 3, SEQUENCES - 1) is Verdict.DUPLICATE
    assert _judge(last, 3, 1) is Verdict.GAP


def test_the_last_stable_offset_is_the_first_offset_of_the_earliest_open_transaction() -> None:
    """It is counted by partition; without an open transaction it is the log end."""
    states = [
        ProducerState(partition=0, producer_id=1, epoch=0, last_sequence=0, last_appended_ms=0, open_first_offset=40, open_since_ms=5),
        ProducerState(partition=0, producer_id=2, epoch=0, last_sequence=0, last_appended_ms=0, open_first_offset=30, open_since_ms=6),
        ProducerState(partition=1, producer_id=2, epoch=0, last_sequence=0, last_appended_ms=0, open_first_offset=3, open_since_ms=6),
    ]
    assert last_stable_offsets([0, 0, 0], [100, 100, 100], states) == [30, 3, 100]
    assert last_stable_offsets([35, 0, 0], [100, 100, 100], states) == [35, 3, 100], "a transaction that began below the log start"


def test_open_transactions_are_told_of_all_their_partitions_the_oldest_first() -> None:
    """A registered producer has its name, and its own timeout if it set one; what lies below the log start begins there."""
    states = [
        ProducerState(partition=0, producer_id=1, epoch=2, last_sequence=0, last_appended_ms=0, open_first_offset=40, open_since_ms=9),
        ProducerState(partition=0, producer_id=2, epoch=0, last_sequence=0, last_appended_ms=0, open_first_offset=30, open_since_ms=6),
        ProducerState(partition=1, producer_id=2, epoch=1, last_sequence=0, last_appended_ms=0, open_first_offset=3, open_since_ms=7),
        ProducerState(partition=1, producer_id=3, epoch=0, last_sequence=0, last_appended_ms=0, open_first_offset=5, open_since_ms=8),
        ProducerState(partition=1, producer_id=4, epoch=0, last_sequence=0, last_appended_ms=0),
    ]
    found = open_transactions(states, [0, 4], {2: ("a", None), 3: ("b", 50)}, timeout_ms=70)
    assert [(one.producer_id, one.epoch, one.transactional_id, one.first_offsets, one.since_ms, one.timeout_ms) for one in found] == [
        (2, 1, "a", {0: 30, 1: 4}, 6, 70),
        (3, 0, "b", {1: 5}, 8, 50),
        (1, 2, None, {0: 40}, 9, 70),
    ]


def test_a_transaction_below_the_log_start_is_not_open_and_begins_anew() -> None:
    """Producer 7 has one in partition 0, whose records were all deleted.

    ```
     offset      40   41   42            log start 42: nothing of it is left
     row         p    p   [·             the next record has first offset 43, another transaction as far as this partition knows
    ```
    """
    first = replace(_STATE, open_first_offset=40, open_last_offset=40, open_since_ms=1, place_offset=40, place_is_data=True)
    again = replace(first, last_sequence=10, open_last_offset=41, place_offset=41)
    holding = merge_states(first, again, ended=False)
    assert holding == again
    states = {(0, 7): holding}
    assert in_sight(states, [41]) == states
    left = in_sight(states, [42])[0, 7]
    assert left == replace(holding, open_first_offset=None, open_last_offset=None, open_since_ms=None)
    assert last_stable_offsets([42], [43], [left]) == [43]
    anew = replace(again, last_sequence=11, open_first_offset=43, open_last_offset=43, open_since_ms=2, place_offset=43)
    assert merge_states(holding, anew, ended=False) == anew, "also for whoever knew the old one and did not see it go"
    plain = replace(left, last_sequence=11, place_offset=43)
    assert in_sight({(0, 7): merge_states(holding, plain, ended=False)}, [42])[0, 7] == plain, "a plain record does not bring it back"


def test_an_identity_gets_the_next_epoch_and_after_the_last_one_a_new_id() -> None:
    """And never an id that ledger or log have seen."""
    assert next_identity(None, highest_id=-1) == (0, 0)
    assert next_identity(None, highest_id=41) == (42, 0)
    assert next_identity((5, 8), highest_id=41) == (5, 9)
    assert next_identity((5, LAST_EPOCH), highest_id=41) == (42, 0)


def test_a_transaction_hangs_when_it_is_open_for_longer_than_its_timeout() -> None:
    """Equality is not longer."""
    one = OpenTransaction(producer_id=1, epoch=0, transactional_id=None, first_offsets={0: 3}, since_ms=100, timeout_ms=50)
    assert (one.hangs(150), one.hangs(151)) == (False, True)


def test_a_later_stretch_of_the_log_goes_over_what_was_known() -> None:
    """An open transaction is carried on unless a marker ended it; a sequence unless the epoch is new."""
    holding = ProducerState(partition=0, producer_id=7, epoch=3, last_sequence=9, last_appended_ms=1, open_first_offset=40, open_since_ms=1)
    later = ProducerState(partition=0, producer_id=7, epoch=3, last_sequence=None, last_appended_ms=2)
    assert merge_states(None, later, ended=True) == later
    carried = merge_states(holding, later, ended=False)
    assert (carried.open_first_offset, carried.open_since_ms, carried.last_sequence, carried.last_appended_ms) == (40, 1, 9, 2)
    decided = merge_states(holding, later, ended=True)
    assert (decided.open_first_offset, decided.open_since_ms, decided.last_sequence) == (None, None, 9)
    newer = ProducerState(partition=0, producer_id=7, epoch=4, last_sequence=None, last_appended_ms=2)
    assert merge_states(holding, newer, ended=True).last_sequence is None


class Histories(RuleBasedStateMachine):
    """Random histories of three producers in one partition: the rules over states against the model over the whole log."""

    def __init__(self) -> None:
        """Begin with an empty partition."""
        super().__init__()
        self.model = ModelTopic(1)
        self.remembered: dict[int, ProducerState] = {}

    @rule(producer=st.integers(0, 2), epoch=st.integers(0, 3), step=st.integers(-3, 3), transactional=st.booleans())
    def data(self, producer: int, epoch: int, step: int, transactional: bool) -> None:  # noqa: FBT001  Hypothesis passes by name
        """Offer a data row whose sequence is near the right one."""
        state = self.states.get(producer)
        sequence = max(0, (state.next_sequence if state is not None and state.epoch == epoch else 0) + step)
        self._offer(producer, epoch, sequence, transactional=transactional, control=None)

    @rule(producer=st.integers(0, 2), epoch=st.integers(0, 3), control=st.sampled_from([Control.COMMIT, Control.ABORT]))
    def marker(self, producer: int, epoch: int, control: Control) -> None:
        """Offer a marker."""
        self._offer(producer, epoch, None, transactional=True, control=control)

    def _offer(self, producer: int, epoch: int, sequence: int | None, *, transactional: bool, control: Control | None) -> None:
        state = self.states.get(producer)
        verdict = judge(state, epoch=epoch, sequence=sequence, transactional=transactional, control=control)
        offset = len(self.model.logs[0])
        expected = self.model.offer(
            0,
            b"k",
            b"v",
            producer_id=producer,
            epoch=epoch,
            sequence=sequence,
            transactional=transactional,
            control=control.value if control else None,
        )
        assert verdict.value == expected
        if verdict is Verdict.ACCEPTED:
            seen = applied(
                state,
                partition=0,
                producer_id=producer,
                epoch=epoch,
                sequence=sequence,
                transactional=transactional,
                control=control,
                offset=offset,
                appended_ms=offset,
            )
            # What is remembered does not know of deletions, and learns of the row as of a stretch of the log.
            belongs = transactional and control is None
            stretch = seen if belongs else replace(seen, open_first_offset=None, open_last_offset=None, open_since_ms=None)
            self.remembered[producer] = merge_states(self.remembered.get(producer), stretch, ended=control is not None)

    @property
    def states(self) -> dict[int, ProducerState]:
        """What is remembered, as far as it is in sight."""
        places = {(0, producer): state for producer, state in self.remembered.items()}
        return {producer: state for (_, producer), state in in_sight(places, [self.model.log_start_offsets[0]]).items()}

    @rule(share=st.floats(0, 1))
    def purge(self, share: float) -> None:
        """Delete the records below an offset, as far as the log goes."""
        self.model.delete_records(0, round(share * len(self.model.logs[0])))

    @invariant()
    def the_last_stable_offset_is_the_model_s(self) -> None:
        """After every step."""
        start, end = self.model.log_start_offsets[0], len(self.model.logs[0])
        assert last_stable_offsets([start], [end], self.states.values()) == [self.model.last_stable_offset(0)]


Histories.TestCase.settings = settings(max_examples=examples(300), stateful_step_count=40, deadline=None)
TestHistories = Histories.TestCase
