"""Producers and transactions, as rules over small values: who may append what, and what is still open.

```
 offset      0   1   2   3   4   5   6        p = transactional producer, q = another, · = plain
 row         p   ·   q   p   qC  ·   p        qC = COMMIT marker of q
             └───────────────────────── open transaction of p, first offset 0
             last stable offset = 0            q's transaction is decided: 2 is committed
```

A producer's state in a partition is a function of the log (docs/semantics.md#1.10): its newest epoch, the sequence of its newest data
record in that epoch, and the first offset of the transaction that it has open. `lastword.compaction.rows.producer_checks` decides for whole
micro-batches what becomes of a row that brings its own producer (ADR 0008).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Final

from lastword.compaction.display import Displayed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: Sequences are 32-bit and begin again at 0 after the last (Kafka's DefaultRecordBatch.incrementSequence).
SEQUENCES: Final = 2**31
#: The last epoch that a producer id may have; then it gets a new id (Kafka keeps Short.MAX_VALUE for the coordinator's own fencing).
LAST_EPOCH: Final = 32_766


class Control(str, Enum):
    """What a control row is; null is a data record."""

    COMMIT = "COMMIT"
    ABORT = "ABORT"
    EMPTY = "EMPTY"


class Verdict(str, Enum):
    """What happens to a row that carries a producer; the values of the refusals stand in `dead_letters.reason`."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate_sequence"
    GAP = "sequence_gap"
    FENCED = "producer_fenced"
    NOT_TRANSACTIONAL = "invalid_txn_state"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerState:
    """What the log knows of one producer in one partition.

    `last_sequence` is None when the producer has no data record in its newest epoch; the next one is then 0. `open_first_offset` and
    `open_last_offset` are those of the first and the last record of its open transaction, which was begun at `open_since_ms`; None when it
    has none. `last_appended_ms` is when it last appended.
    `place_offset` is the row that carries its newest epoch and sequence, which cleaning must keep: its last data record in that epoch
    (`place_is_data`), else its last marker (UnifiedLog.lastRecordsOfActiveProducers).
    """

    partition: int
    producer_id: int
    epoch: int
    last_sequence: int | None
    last_appended_ms: int
    open_first_offset: int | None = None
    open_last_offset: int | None = None
    open_since_ms: int | None = None
    place_offset: int = -1
    place_is_data: bool = False

    @property
    def next_sequence(self) -> int:
        """The sequence that continues in this epoch."""
        return 0 if self.last_sequence is None else (self.last_sequence + 1) % SEQUENCES

    def is_left_open_before(self, epoch: int) -> bool:
        """Tell whether an instance of an older epoch has a transaction open here."""
        return self.open_first_offset is not None and self.epoch < epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerStamp:
    """Who a transactional append belongs to: the identity that its rows carry."""

    transactional_id: str
    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OpenTransaction(Displayed):
    """A transaction that is neither committed nor aborted, over all the partitions that it touched."""

    producer_id: int
    epoch: int
    transactional_id: str | None
    first_offsets: Mapping[int, int]
    since_ms: int
    timeout_ms: int

    def hangs(self, now_ms: int) -> bool:
        """Tell whether it has been open for longer than its timeout."""
        return now_ms - self.since_ms > self.timeout_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSnapshot:
    """The states at a table version, by (partition, producer id), and how far into each partition they reach."""

    table_version: int
    log_end_offsets: tuple[int, ...]
    states: Mapping[tuple[int, int], ProducerState]


def merge_states(old: ProducerState | None, new: ProducerState, *, ended: bool) -> ProducerState:
    """Return the state of a producer from what was known (`old`) and what a later stretch of the log shows (`new`).

    `ended` tells whether that stretch holds a marker of the producer, so that a transaction open before it is decided. Its records name the
    transaction: another one than was known is one that began anew (`in_sight`).
    """
    if old is None:
        return new
    carried = not ended and old.open_first_offset is not None and new.open_first_offset in {None, old.open_first_offset}
    kept = old.epoch == new.epoch and old.place_is_data and not new.place_is_data
    return replace(
        new,
        last_sequence=old.last_sequence if new.last_sequence is None and old.epoch == new.epoch else new.last_sequence,
        open_first_offset=old.open_first_offset if carried else new.open_first_offset,
        open_last_offset=old.open_last_offset if carried and new.open_last_offset is None else new.open_last_offset,
        open_since_ms=old.open_since_ms if carried else new.open_since_ms,
        place_offset=old.place_offset if kept else new.place_offset,
        place_is_data=old.place_is_data if kept else new.place_is_data,
    )


def unexpired_producers(states: Iterable[ProducerState], *, now_ms: int, expiration_ms: int) -> list[ProducerState]:
    """Return the states of producers with an open transaction, and of those that appended in the last `expiration_ms`.

    An expired producer may start at any sequence. The clock is that of the append (Kafka's is the record's timestamp,
    which would forget a loader of historic data at once).
    """
    return [state for state in states if state.open_first_offset is not None or now_ms - state.last_appended_ms < expiration_ms]


def drop_expired_producers(snapshot: ProducerSnapshot, *, now_ms: int, expiration_ms: int) -> ProducerSnapshot:
    """Return a snapshot without the producers that have expired both at `now_ms` and when the newest of them appended last.

    ```
     last appended    p 1 000    q 2 000    r 9 000        expiration 5 000
     now 9 500        dropped    dropped    kept           at 9 000, p and q were idle for longer than 5 000
     now 6 500        dropped    kept       kept           r's clock runs ahead, and expires no other producer
     now 99 000       dropped    dropped    kept           a clock that jumps expires none of the newest producers
    ```

    Without this an application that takes a new producer id for each run would leave a state of each for ever.
    """
    states = snapshot.states.values()
    newest_ms = max((state.last_appended_ms for state in states), default=now_ms)
    kept = unexpired_producers(states, now_ms=min(now_ms, newest_ms), expiration_ms=expiration_ms)
    return replace(snapshot, states={(state.partition, state.producer_id): state for state in kept})


def in_sight(states: Mapping[tuple[int, int], ProducerState], log_start_offsets: Sequence[int]) -> Mapping[tuple[int, int], ProducerState]:
    """Return the states; a transaction whose last record lies below the log start offset is not open any more.

    ```
     offset      4   5   6                    delete_records to 6: nothing undecided is left, the last stable offset is 6 and not 4
     row         p   ·  [6 …                  what p appends to its transaction from now on begins it anew: first offset 6 or later
    ```

    So what is open follows from the log that a reader finds. Kafka's broker remembers such a transaction, and its last stable offset stays
    at the log start until it ends.
    """
    gone = {
        place: replace(state, open_first_offset=None, open_last_offset=None, open_since_ms=None)
        for place, state in states.items()
        if state.open_last_offset is not None and state.open_last_offset < log_start_offsets[state.partition]
    }
    return {**states, **gone} if gone else states


def last_stable_offsets(log_start_offsets: Sequence[int], log_end_offsets: Sequence[int], states: Iterable[ProducerState]) -> list[int]:
    """Return for each partition the first offset of its earliest open transaction, or its log end (UnifiedLog.lastStableOffset).

    A transaction that began below the log start, of which something is left, holds it there. `states` are those `in_sight`.
    """
    offsets = list(log_end_offsets)
    for state in states:
        if state.open_first_offset is not None:
            first = max(state.open_first_offset, log_start_offsets[state.partition])
            offsets[state.partition] = min(offsets[state.partition], first)
    return offsets


def next_identity(previous: tuple[int, int] | None, *, highest_id: int) -> tuple[int, int]:
    """Return (producer id, epoch) for a transactional.id that starts anew.

    The epoch is one above the previous, which fences the instance before; without a previous one, or after its last epoch, the id is one
    above the highest that ledger or log have seen.
    """
    if previous is None or previous[1] >= LAST_EPOCH:
        return highest_id + 1, 0
    return previous[0], previous[1] + 1


def open_transactions(
    states: Iterable[ProducerState],
    log_start_offsets: Sequence[int],
    named: Mapping[int, tuple[str, int | None]],
    *,
    timeout_ms: int,
) -> list[OpenTransaction]:
    """Return the transactions that are open by some states, oldest first.

    `named` has the transactional.id of each registered producer by its id, and its own timeout, in place of `timeout_ms`.
    """
    by_producer: dict[int, list[ProducerState]] = {}
    for state in states:
        if state.open_first_offset is not None:
            by_producer.setdefault(state.producer_id, []).append(state)
    transactions = []
    for producer_id, mine in by_producer.items():
        name, own_ms = named.get(producer_id, (None, None))
        firsts = {state.partition: state.open_first_offset or 0 for state in mine}
        transactions.append(
            OpenTransaction(
                producer_id=producer_id,
                epoch=max(state.epoch for state in mine),
                transactional_id=name,
                first_offsets={partition: max(first, log_start_offsets[partition]) for partition, first in firsts.items()},
                since_ms=min(state.open_since_ms or 0 for state in mine),
                timeout_ms=timeout_ms if own_ms is None else own_ms,
            )
        )
    return sorted(transactions, key=lambda transaction: (transaction.since_ms, transaction.producer_id))
