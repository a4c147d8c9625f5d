"""The pure rules, driven over a log that is a Python list, against the executable specification by the thousand.

A history is appends, transactions, rolls, purges, changed settings, lost receipts and a clock; cleaning (with a small map) and retention in
between. After each step the rows that are left (offsets, values, horizons, producers), the segments, the checkpoint and the log start must
be the model's, no step may change the last word on a key, and the rows alone must tell whoever restarts what their producers may append.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from lastword.compaction.log.segments import NO_TIMESTAMP, Segment, is_closed, next_append
from lastword.compaction.planning.bounds import PartitionLog
from lastword.compaction.planning.grouping import group_segments, worth_writing
from lastword.compaction.planning.log_retention import deletable
from lastword.compaction.planning.planner import PartitionPlan, plan_cleaning
from lastword.compaction.producers import Control, ProducerState, in_sight, last_stable_offsets, unexpired_producers
from lastword.compaction.rows.fates import fates, survivors
from tests.compaction.logs import DrawnRow, arrow_rows, cleaning_pass, config, drawn_rows, pass_over
from tests.compaction.producer_rules import applied, judge
from tests.compaction.row_rules import Row, last_rows_of_producers
from tests.model import ModelConfig, ModelTopic, Record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.compaction.row_rules import Pass

#: Small settings, so that a history of some hundred milliseconds meets all of them; the first of each is where a history begins.
_SETTINGS: Final[Mapping[str, Sequence[object]]] = {
    "cleanup_policy": (frozenset({"compact"}), frozenset({"compact", "delete"}), frozenset({"delete"}), frozenset[str]()),
    "delete_retention_ms": (30, 0, 100),
    "max_compaction_lag_ms": (2**63 - 1, 50, 300),
    "min_cleanable_dirty_ratio": (0.5, 0.0, 1.0),
    "min_compaction_lag_ms": (0, 1, 40),
    "producer_id_expiration_ms": (100, 5, 1_000),
    "retention_bytes": (-1, 0, 40),
    "retention_ms": (-1, 0, 150),
    "segment_bytes": (60, 15, 1_000),
    "segment_ms": (1_000, 60),
}
_KEYS: Final = (b"a", b"b", b"c", b"")
_VALUES: Final = st.sampled_from([None, b"", b"x", b"xxxxxxxx"])
_BEGIN_MS: Final = 1_000


def _size(row: Record) -> int:
    """Return the bytes of a row: what is left of one is small."""
    return 1 + 3 * (row.control is None) + len(row.value or b"")


def _row(record: Record) -> Row:
    """Return what the rules look at."""
    return Row(
        offset=record.offset,
        key=record.key,
        has_value=record.value is not None,
        producer_id=record.producer_id,
        epoch=record.epoch,
        sequence=record.sequence,
        txn_first_offset=record.txn_first_offset,
        control=None if record.control is None else Control(record.control),
        delete_horizon_ms=record.delete_horizon_ms,
    )


def _record(before: Record, row: Row) -> Record:
    """Return a record after its cleaning."""
    if row.control is Control.EMPTY and before.control != "EMPTY":
        return before.emptied()
    return replace(before, delete_horizon_ms=row.delete_horizon_ms)


class ListLog:
    """One partition as a list of rows with their segments' labels: the shell around the pure rules that storage is for a real log."""

    def __init__(self) -> None:
        """Begin empty."""
        self.config = replace(config(), **{name: values[0] for name, values in _SETTINGS.items()})  # type: ignore[arg-type]
        self.rows: list[Record] = []
        self.labels: dict[int, int] = {}
        self.log_end = 0
        self.log_start = 0
        self.rolled = -1
        self.checkpoint: int | None = None
        self.rounds_left = 0
        self.states: dict[int, ProducerState] = {}

    def segments(self) -> list[Segment]:
        """Return the segments from the rows in them, as storage does from the statistics of their files."""
        return [self._segment(label) for label in sorted(set(self.labels.values()))]

    def _segment(self, label: int) -> Segment:
        rows = [row for row in self.rows if self.labels[row.offset] == label]
        times = [row.timestamp_ms for row in rows if row.timestamp_ms is not None]
        horizons = [row.delete_horizon_ms for row in rows if row.delete_horizon_ms is not None]
        return Segment(
            partition=0,
            label=label,
            base_offset=label,
            slices=(label,),
            size_bytes=sum(map(_size, rows)),
            record_count=len(rows),
            first_offset=rows[0].offset,
            last_offset=rows[-1].offset,
            min_timestamp_ms=min(times, default=NO_TIMESTAMP),
            max_timestamp_ms=max(times, default=NO_TIMESTAMP),
            first_timestamp_ms=NO_TIMESTAMP if rows[0].timestamp_ms is None else rows[0].timestamp_ms,
            appended_at_ms=min(row.appended_at_ms for row in rows),
            delete_horizon_ms=min(horizons, default=None),
        )

    def _closed_offset(self) -> int:
        cleaned = -1 if self.checkpoint is None else self.checkpoint
        return max(self.rolled, cleaned, self.log_start if self.log_start == self.log_end else -1)

    def partition_log(self, now_ms: int) -> PartitionLog:
        """Return what planning knows of the partition."""
        segments = self.segments()
        active = self.log_end
        if segments:
            last = segments[-1]
            rolled = self._closed_offset()
            closed = is_closed(last, self.config, log_end_offset=self.log_end, rolled_offset=rolled, now_ms=now_ms)
            active = self.log_end if closed else last.base_offset
        return PartitionLog(
            topic="fruit",
            partition=0,
            config=self.config,
            segments=tuple(segments),
            active_base_offset=active,
            log_start_offset=self.log_start,
            log_end_offset=self.log_end,
            last_stable_offset=last_stable_offsets([self.log_start], [self.log_end], self.states.values())[0],
            checkpoint=self.checkpoint,
            rounds_left=self.rounds_left,
        )

    def states_of_rows(self) -> dict[int, ProducerState]:
        """Return the producers' states from the rows that are left, as a process without a memory finds them."""
        found: dict[int, ProducerState] = {}
        for row in self.rows:
            if row.producer_id is None or row.epoch is None:
                continue
            state = found.get(row.producer_id)
            if state is not None and row.txn_first_offset not in {None, state.open_first_offset}:
                state = replace(state, open_first_offset=None)  # each record names its transaction: this one began anew
            after_it = applied(
                state,
                partition=0,
                producer_id=row.producer_id,
                epoch=row.epoch,
                sequence=row.sequence,
                transactional=row.txn_first_offset is not None,
                control=None if row.control is None else Control(row.control),
                offset=row.offset,
                appended_ms=row.appended_at_ms,
            )
            if after_it.open_first_offset is not None and row.txn_first_offset is not None:
                after_it = replace(after_it, open_first_offset=row.txn_first_offset)
            found[row.producer_id] = after_it
        seen = in_sight({(0, producer_id): state for producer_id, state in found.items()}, [self.log_start])
        return {producer_id: state for (_, producer_id), state in seen.items()}

    def append(self, row: Record) -> None:
        """Append a row in the segment where it belongs."""
        segments = self.segments()
        active = next_append(
            segments[-1] if segments else None,
            self.config,
            partition=0,
            log_end_offset=self.log_end,
            rolled_offset=self._closed_offset(),
            now_ms=row.appended_at_ms,
        )
        begun = active.first_timestamp_ms
        late = begun not in {None, NO_TIMESTAMP} and (row.timestamp_ms or 0) - (begun or 0) > self.config.max_segment_ms
        self.labels[row.offset] = row.offset if late else active.label
        self.rows.append(row)
        self.log_end = row.offset + 1

    def starts_at(self, log_start: int) -> None:
        """Delete the records below an offset, for readers."""
        self.log_start = log_start
        seen = in_sight({(0, producer_id): state for producer_id, state in self.states.items()}, [log_start])
        self.states = {producer_id: state for (_, producer_id), state in seen.items()}

    def offer(self, producer_id: int, epoch: int, sequence: int | None, row: Record) -> str:
        """Append a row of a producer if the rules allow it; return the verdict."""
        control = None if row.control is None else Control(row.control)
        state = self.states.get(producer_id)
        if state is not None and not unexpired_producers(
            [state], now_ms=row.appended_at_ms, expiration_ms=self.config.producer_id_expiration_ms
        ):
            state = None
        verdict = judge(state, epoch=epoch, sequence=sequence, transactional=row.transactional, control=control)
        if verdict.value == "accepted":
            self.states[producer_id] = applied(
                state,
                partition=0,
                producer_id=producer_id,
                epoch=epoch,
                sequence=sequence,
                transactional=row.transactional,
                control=control,
                offset=self.log_end,
                appended_ms=row.appended_at_ms,
            )
            self.append(row)
        return verdict.value

    def _places(self, now_ms: int) -> set[int]:
        """Return the places that must stay, from the producers' states.

        The rows that are left say the same, but for places that retention took.
        """
        active = unexpired_producers(self.states.values(), now_ms=now_ms, expiration_ms=self.config.producer_id_expiration_ms)
        left = {row.offset: row.producer_id for row in self.rows}
        found = last_rows_of_producers(map(_row, self.rows), {state.producer_id for state in active})
        for state in active:
            if state.place_offset in left:
                assert [offset for offset in found if left[offset] == state.producer_id] == [state.place_offset]
        return {self.log_end - 1, *(state.place_offset for state in active)}

    def clean(self, now_ms: int, *, entries: int, force: bool) -> PartitionPlan | None:
        """Clean as planned; return the plan, None when there is nothing to do."""
        plan = plan_cleaning([self.partition_log(now_ms)], now_ms=now_ms, entries=entries, force=force)
        if not plan.chosen:
            return None
        (chosen,) = plan.chosen
        assert chosen.segments, "a round looks at something"
        cleaning = pass_over(
            [_row(row) for row in self.rows],
            first_dirty=chosen.dirty.first_offset,
            end=chosen.dirty.end_offset,
            now_ms=now_ms,
            delete_retention_ms=self.config.delete_retention_ms,
            places=self._places(now_ms),
            begin=chosen.segments[0].first_offset,
        )
        assert len(cleaning.newest) <= max(1, entries), "the map keeps to its budget"
        self._rewrite(chosen, cleaning)
        self.checkpoint, self.rounds_left = chosen.dirty.end_offset, chosen.dirty.rounds_left
        return chosen

    def _rewrite(self, chosen: PartitionPlan, cleaning: Pass) -> None:
        """Replace the groups that are worth writing by what is left of them."""
        bare = [_row(row) for row in self.rows]
        known, found = cleaning_pass(bare, cleaning, first_dirty=chosen.dirty.first_offset), arrow_rows([DrawnRow(row=row) for row in bare])
        written = {one.row.offset: one.row for one in drawn_rows(survivors(found, fates(found, known), known))}
        left = {row.offset: written.get(row.offset) for row in self.rows}
        changed = {one.label for one in chosen.segments if chosen.dirty.first_offset <= one.last_offset}
        changed |= {self.labels[row.offset] for row in self.rows if left[row.offset] != _row(row)}
        groups = worth_writing(group_segments(chosen.segments, self.config.segment_bytes), changed)
        target = {member.label: group[0].label for group in groups for member in group}
        assert changed & {one.label for one in chosen.segments} <= set(target), "what changes is written"
        kept, labels = [], {}
        for row in self.rows:
            label = self.labels[row.offset]
            remains = left[row.offset] if label in target else _row(row)
            if remains is not None:
                kept.append(_record(row, remains))
                labels[row.offset] = target.get(label, label)
        self.rows, self.labels = kept, labels

    def retain(self, now_ms: int) -> list[int]:
        """Remove what retention takes; return the labels of the segments that went."""
        found = deletable(self.partition_log(now_ms), now_ms)
        gone = [segment.label for segment, _ in found.segments]
        last = self.rows[-1] if self.rows else None
        kept = [row for row in self.rows if self.labels[row.offset] not in gone]
        labels = {row.offset: self.labels[row.offset] for row in kept}
        if last is not None and (not kept or kept[-1].offset != last.offset):
            kept.append(last.emptied())
            labels[last.offset] = last.offset
        self.rows, self.labels = kept, labels
        self.starts_at(found.log_start_offset)
        return gone


class Histories(RuleBasedStateMachine):
    """Random histories of one partition: the pure rules over a list, and the model."""

    def __init__(self) -> None:
        """Begin with an empty partition."""
        super().__init__()
        self.now_ms = _BEGIN_MS
        self.log = ListLog()
        self.model = ModelTopic(1, row_bytes=_size)
        self.model.config = ModelConfig(**{name: values[0] for name, values in _SETTINGS.items()})  # type: ignore[arg-type]

    @rule(
        words=st.lists(st.tuples(st.sampled_from([*_KEYS, *_KEYS, None]), _VALUES), min_size=1, max_size=12),
        age=st.sampled_from([0, 0, 0, 30, 900, -50]),
        roll=st.booleans(),
    )
    def records(self, *, words: list[tuple[bytes | None, bytes | None]], age: int, roll: bool) -> None:
        """Append plain records of one time; some may have no key, as before the topic was compacted. Perhaps close their segment."""
        for key, value in words:
            offset = self.model.append(0, key, value, self.now_ms - age, now_ms=self.now_ms)
            self.log.append(Record(offset, key, value, self.now_ms - age, appended_at_ms=self.now_ms))
        if roll:
            self.rolled()

    @rule(
        producer=st.integers(0, 2),
        words=st.lists(st.tuples(st.sampled_from(_KEYS), _VALUES), max_size=4),
        ending=st.sampled_from(["COMMIT", "ABORT", None]),
        fenced=st.sampled_from([0, 0, 0, 1]),
        roll=st.booleans(),
    )
    def transaction(self, *, producer: int, words: list[tuple[bytes, bytes | None]], ending: str | None, fenced: int, roll: bool) -> None:
        """Append records of a transaction and end it, perhaps by fencing; or go on with it later."""
        for key, value in words:
            epoch, sequence = self._next(producer)
            self._offer(producer, epoch, key, value, sequence=sequence, transactional=True, control=None)
        if ending is not None:
            self._offer(producer, self._next(producer)[0] + fenced, None, None, sequence=None, transactional=True, control=ending)
        if roll:
            self.rolled()

    @rule(
        producer=st.integers(0, 2),
        newer=st.sampled_from([0, 0, 0, 1, -1]),
        step=st.sampled_from([0, 0, 0, 1, -1]),
        key=st.sampled_from(_KEYS),
        transactional=st.booleans(),
    )
    def produced(self, *, producer: int, newer: int, step: int, key: bytes, transactional: bool) -> None:
        """Offer a record that may be fenced, a duplicate, or come too early; no forgotten producer comes back with an older epoch."""
        epoch, sequence = self._next(producer)
        if not self.model.is_active(0, producer, self.now_ms):
            newer = max(0, newer)
        if newer:
            sequence = 0
        self._offer(producer, max(0, epoch + newer), key, b"x", sequence=max(0, sequence + step), transactional=transactional, control=None)

    def _next(self, producer: int) -> tuple[int, int]:
        """Return the epoch and sequence with which a producer goes on."""
        state = self.log.states.get(producer)
        return (0, 0) if state is None else (state.epoch, state.next_sequence)

    def _offer(
        self,
        producer: int,
        epoch: int,
        key: bytes | None,
        value: bytes | None,
        *,
        sequence: int | None,
        transactional: bool,
        control: str | None,
    ) -> None:
        if control is not None and producer in self.log.states and not self.model.is_active(0, producer, self.now_ms):
            return  # a forgotten producer has no transaction that anybody could end
        expected = self.model.offer(
            0,
            key,
            value,
            producer_id=producer,
            epoch=epoch,
            sequence=sequence,
            transactional=transactional,
            control=control,
            timestamp_ms=self.now_ms,
            now_ms=self.now_ms,
        )
        written = Record(
            self.log.log_end, key, value, self.now_ms, producer, epoch, sequence, transactional, control, appended_at_ms=self.now_ms
        )
        if expected == "accepted":
            written = replace(written, txn_first_offset=self.model.logs[0][-1].txn_first_offset)
        assert self.log.offer(producer, epoch, sequence, written) == expected

    @rule()
    def rolled(self) -> None:
        """Close the active segment."""
        self.model.roll(0)
        self.log.rolled = self.log.log_end

    @rule(by_ms=st.sampled_from([1, 10, 31, 61, 101, 400]))
    def time_passes(self, by_ms: int) -> None:
        """Move the clock on."""
        self.now_ms += by_ms

    @rule(
        after_ms=st.sampled_from([0, 1, 30, 101]),
        entries=st.sampled_from([1, 2, 5, 1_000, 1_000]),
        force=st.booleans(),
        roll=st.booleans(),
    )
    def cleaned(self, *, after_ms: int, entries: int, force: bool, roll: bool) -> None:
        """Clean once, if there is a reason; perhaps roll before."""
        if roll:
            self.rolled()
        self.now_ms += after_ms
        self._clean(entries, force=force)

    @rule(after_ms=st.sampled_from([0, 30, 101]), entries=st.sampled_from([1, 3, 1_000]))
    def cleaned_to_the_end(self, *, after_ms: int, entries: int) -> None:
        """Clean until nothing is eligible: one round for each record of the dirty range at most, and two for horizons."""
        self.rolled()
        self.now_ms += after_ms
        rounds = self.log.log_end + 2
        while self._clean(entries, force=False) is not None:
            rounds -= 1
            assert rounds >= 0, "rounds follow for ever"

    def _clean(self, entries: int, *, force: bool) -> PartitionPlan | None:
        before = self.model.latest()
        plan = self.log.clean(self.now_ms, entries=entries, force=force)
        end = None if plan is None else plan.dirty.end_offset
        assert self.model.clean(0, self.now_ms, force=force, end_offset=end) == (plan is not None)
        if plan is not None:
            if not plan.dirty.cut:
                assert plan.dirty.end_offset == self.model.dirty_range(0, self.now_ms)[0], "everything that may be cleaned was"
            self.model.adopt_segments(0, dict.fromkeys(self.log.labels.values()))
        assert self.model.latest() == before
        return plan

    @rule(
        limits=st.sampled_from([{}, {"retention_bytes": 0}, {"retention_bytes": 20}, {"retention_ms": 0}, {"retention_ms": 60}]),
        after_ms=st.sampled_from([0, 30, 101]),
    )
    def shortened(self, *, limits: dict[str, int], after_ms: int) -> None:
        """Apply retention, perhaps with limits for this once; a second time it finds nothing."""
        self.now_ms += after_ms
        kept = self.log.config, self.model.config
        for name, value in {"cleanup_policy": frozenset({"compact", "delete"}), **limits}.items() if limits else ():
            self.configured(choice=(name, value))
        assert self.log.retain(self.now_ms) == self.model.apply_retention(0, self.now_ms)
        assert self.log.retain(self.now_ms) == []
        self.log.config, self.model.config = kept

    @rule(share=st.sampled_from([0.1, 0.3, 0.5, 1.0]))
    def purged(self, share: float) -> None:
        """Delete records up to an offset."""
        offset = int(self.log.log_end * share)
        self.model.delete_records(0, offset)
        self.log.starts_at(max(offset, self.log.log_start))

    @rule(share=st.sampled_from([None, 0.0, 0.5, 0.9]))
    def lost_a_receipt(self, share: float | None) -> None:
        """Die after a swap whose receipt is gone for good, as with the ledger: the checkpoint is an earlier one, or none at all."""
        self.log.rounds_left, self.model.cut = 0, self.model.cut - {0}
        if self.log.checkpoint is None or share is None:
            self.log.checkpoint = None
            self.model.checkpoints.pop(0, None)
        else:
            self.log.checkpoint = self.model.checkpoints[0] = int(share * self.log.checkpoint)

    @rule(choice=st.sampled_from([(name, value) for name, values in _SETTINGS.items() for value in (values[0], *values)]))
    def configured(self, choice: tuple[str, object]) -> None:
        """Change a setting."""
        name, value = choice
        self.log.config = replace(self.log.config, **{name: value})  # type: ignore[arg-type]
        self.model.config = replace(self.model.config, **{name: value})  # type: ignore[arg-type]

    @invariant()
    def what_is_left_is_the_models(self) -> None:
        """Rows, segments, and what a reader may rely on."""
        assert self.log.rows == self.model.logs[0]
        assert [segment.label for segment in self.model.segments(0, self.now_ms)] == [segment.label for segment in self.log.segments()]
        assert self.log.log_end == (self.model.history[0][-1].offset + 1 if self.model.history[0] else 0)
        assert self.log.log_start == self.model.log_start_offsets[0]
        assert self.log.checkpoint == self.model.checkpoints.get(0)
        assert self.model.latest() == self.model.last_words(), "no step loses a word, or brings one back"

    @invariant()
    def whoever_restarts_knows_its_producers(self) -> None:
        """From the rows alone, but for those whose place retention took, when the last marker came, and when rows began that are gone."""
        left, found = {row.offset for row in self.log.rows}, self.log.states_of_rows()
        for state in unexpired_producers(
            self.log.states.values(), now_ms=self.now_ms, expiration_ms=self.log.config.producer_id_expiration_ms
        ):
            if state.place_offset in left:
                again = replace(found[state.producer_id], last_appended_ms=state.last_appended_ms)
                if state.open_first_offset not in left:
                    again = replace(again, open_since_ms=state.open_since_ms)
                assert again == state


def _live(examples: int, steps: int) -> None:
    unhurried = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    limits = settings(max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=unhurried)
    run_state_machine_as_test(Histories, settings=limits)


@pytest.mark.hypothesis
@pytest.mark.long
def test_random_histories_leave_what_the_model_says() -> None:
    """Five hundred short ones."""
    _live(500, 30)


@pytest.mark.torture
@pytest.mark.timeout(7_200)
def test_many_long_random_histories_leave_what_the_model_says() -> None:
    """LASTWORD_EXAMPLES histories of 80 steps."""
    _live(int(os.environ.get("LASTWORD_EXAMPLES", "10000")), 80)
