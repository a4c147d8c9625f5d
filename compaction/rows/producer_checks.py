"""Rows that carry their producer: which of them an append takes (KIP-98, KIP-360).

```
 known of producer 7    epoch 0, last sequence 4
 rows                   0/3   0/4   0/5   0/6   0/8   0/9   1/0        epoch/sequence
 verdict                dup   dup   ok    ok    gap   gap   gap        3 and 4 are in the log; 7 is missing, and what follows waits for it
```

The rows of one append are Kafka's record batch: after the first row of a producer that is refused for its sequence, all that the producer
still brings is refused too (Kafka's client resends it). Rows of an older epoch are refused wherever they stand. Rows that are in the log
already are dropped and counted. The rows are checked in runs: rows of one producer and epoch whose sequences follow each other.
`tests/compaction/producer_rules.py` is the same rule for one row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from lastword.compaction.producers import SEQUENCES, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa
    from numpy.typing import NDArray

    from lastword.compaction.producers import ProducerState

#: No transaction, or no sequence.
_NONE: Final = -1
#: A transaction that begins with row n of a batch is -2 - n until the row has its offset.
_FIRST_ROW: Final = -2
_VERDICTS: Final = tuple(Verdict)
_CODES: Final = {verdict: number for number, verdict in enumerate(_VERDICTS)}


@dataclass(slots=True)
class _CheckedProducer:
    """What is known of a producer: `expected` is its next sequence; `is_given` whether it has appended in this epoch."""

    epoch: int
    expected: int
    is_given: bool
    open_first: int | None = None
    is_stopped: bool = False


class ProducerChecks:
    """The producers of one partition during one append; `check` takes its batches one after the other."""

    def __init__(self, states: Iterable[ProducerState]) -> None:
        """Begin with what the log knows of the partition's producers."""
        self._producers = {
            state.producer_id: _CheckedProducer(
                epoch=state.epoch,
                expected=state.next_sequence,
                is_given=state.last_sequence is not None,
                open_first=state.open_first_offset,
            )
            for state in states
        }
        self._verdicts = np.empty(0, dtype=np.int8)
        self._firsts = np.empty(0, dtype=np.int64)
        self._details: dict[int, str] = {}

    def check(self, rows: pa.RecordBatch) -> tuple[NDArray[np.int8], dict[int, str]]:
        """Return the verdict on each row of a batch as its number in `Verdict` (0: accepted), and details of the others by row number.

        Columns: producer_id, producer_epoch, sequence, transactional, control, as validated. Rows without a producer are accepted.
        """
        self._verdicts = np.zeros(len(rows), dtype=np.int8)
        self._firsts = np.full(len(rows), _NONE)
        self._details = {}
        producer = rows.column("producer_id")
        mine = np.flatnonzero(producer.is_valid().to_numpy(zero_copy_only=False))
        if not len(mine):
            return self._verdicts, self._details
        ids, epochs, sequences = (
            rows.column(name).fill_null(_NONE).to_numpy(zero_copy_only=False).astype(np.int64)
            for name in ("producer_id", "producer_epoch", "sequence")
        )
        mine = mine[np.argsort(ids[mine], kind="stable")]
        ids, epochs, sequences = ids[mine], epochs[mine], sequences[mine]
        is_marker = rows.column("control").is_valid().to_numpy(zero_copy_only=False)[mine]
        transactional = rows.column("transactional").to_numpy(zero_copy_only=False).astype(np.bool_)[mine]
        follows = (ids[1:] == ids[:-1]) & (epochs[1:] == epochs[:-1]) & (transactional[1:] == transactional[:-1])
        follows &= (sequences[1:] == (sequences[:-1] + 1) % SEQUENCES) & ~is_marker[1:] & ~is_marker[:-1]
        starts = np.append(0, np.flatnonzero(~follows) + 1).tolist()
        for start, end in zip(starts, [*starts[1:], len(mine)], strict=True):
            self._check_run(
                mine[start:end],
                int(ids[start]),
                int(epochs[start]),
                None if is_marker[start] else int(sequences[start]),
                transactional=bool(transactional[start]),
            )
        return self._verdicts, self._details

    def first_offsets(self, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the first offset of each row's transaction, -1 for none; `offsets` are those that the rows of the last batch got."""
        pending = self._firsts <= _FIRST_ROW
        self._firsts[pending] = offsets[_FIRST_ROW - self._firsts[pending]]
        for producer in self._producers.values():
            if producer.open_first is not None and producer.open_first <= _FIRST_ROW:
                producer.open_first = int(offsets[_FIRST_ROW - producer.open_first])
        return self._firsts

    def _check_run(self, rows: NDArray[np.intp], producer_id: int, epoch: int, sequence: int | None, *, transactional: bool) -> None:
        """Judge a run of data, or one marker (`sequence` None)."""
        known = self._producers.get(producer_id)
        if known is None:  # a new producer may start anywhere
            known = self._producers[producer_id] = _CheckedProducer(epoch, expected=sequence or 0, is_given=False)
        if epoch < known.epoch:
            self._refuse(rows, Verdict.FENCED, lambda _: f"epoch {epoch} of producer {producer_id}: allowed is {known.epoch} or later")
            return
        is_new = epoch > known.epoch
        expected, is_given = (0, False) if is_new else (known.expected, known.is_given)

        def missing(number: int) -> str:
            shown = "null" if sequence is None else str((sequence + number) % SEQUENCES)
            return f"sequence {shown} of producer {producer_id}: expected {expected}"

        if known.is_stopped:
            self._refuse(rows, Verdict.GAP, missing)
            return
        if sequence is None:
            self._firsts[rows] = _NONE if known.open_first is None else known.open_first
            known.epoch, known.expected, known.is_given, known.open_first = epoch, expected, is_given, None
            return
        duplicates = _count_duplicates(sequence, expected, len(rows)) if is_given else 0
        self._refuse(
            rows[:duplicates],
            Verdict.DUPLICATE,
            lambda number: f"sequence {(sequence + number) % SEQUENCES} of producer {producer_id} is in the log",
        )
        fresh = rows[duplicates:]
        if not len(fresh):
            return
        if known.open_first is not None and not transactional:
            self._refuse(
                fresh[:1],
                Verdict.NOT_TRANSACTIONAL,
                lambda _: f"producer {producer_id} has a transaction open; allowed are transactional rows",
            )
            self._refuse(fresh[1:], Verdict.GAP, lambda number: missing(number + duplicates + 1))
            known.is_stopped = True
        elif (sequence + duplicates) % SEQUENCES != expected:
            self._refuse(fresh, Verdict.GAP, missing)
            known.is_stopped = True
        else:
            known.epoch, known.expected, known.is_given = epoch, (expected + len(fresh)) % SEQUENCES, True
            if transactional:
                known.open_first = _FIRST_ROW - int(fresh[0]) if known.open_first is None else known.open_first
                self._firsts[fresh] = known.open_first

    def _refuse(self, rows: NDArray[np.intp], verdict: Verdict, detail: Callable[[int], str]) -> None:
        self._verdicts[rows] = _CODES[verdict]
        self._details.update((row, detail(number)) for number, row in enumerate(rows.tolist()))


def _count_duplicates(sequence: int, expected: int, rows: int) -> int:
    """Return how many of some rows, whose sequences begin with `sequence`, are below the sequence that is expected of their producer."""
    behind = (expected - sequence) % SEQUENCES
    return min(rows, behind) if 1 <= behind <= SEQUENCES // 2 else 0


def verdict_of(code: int) -> Verdict:
    """Return the verdict of a number that `ProducerChecks.check` returned."""
    return _VERDICTS[code]
