"""The executable specification: a topic as Python lists, obviously right. Everything else is compared with it.

```
 history    0 grape=1   1 lime=1   2 grape=∅   3 lime=2   4 lime=3         everything that was ever appended; nothing leaves it
 logs                               2 grape=∅   3 lime=2   4 lime=3         what is left: cleaning, retention and purges take from it
 labels     0 ─────────────────────────────────────────── 4 ──────        where segments begin
```

What a reader may see, what a producer may append and what holds the last stable offset are answered from the history; what cleaning does,
from the rows that are left. It knows no files, commits or Spark, and shares no code with `compaction`. Three things it cannot know are
given to it: the sizes of segments, how cleaning grouped them, and where the map budget cut a dirty range.

A test of a real topic does everything twice and compares after each step:

```
 topic                                          model
 topic.append(rows, now_ms=t)                   model.append(partition, key, value, timestamp_ms, now_ms=t)    each row, in its order
 a transaction                                  model.offer(partition, key, value, producer_id=…, …, now_ms=t)
 topic.roll(partition)                          model.roll(partition)
 topic.alter_config(…)                          model.config = replace(model.config, …)
 a round of cleaning                            model.clean(partition, t, end_offset=receipt.end_offset)       True if there is a receipt
 retention                                      model.apply_retention(partition, t)
 records are purged                             model.delete_records(partition, offset)
 after each step                                model.adopt_segments(partition, {segment.label: segment.size_bytes, …})
```

Then `logs[partition]` are the rows of the log table in offset order, as `Record`s; `read_committed`, `latest`, `last_stable_offset`,
`log_start_offsets` and `checkpoints` are what the topic must say too; and `latest() == last_words()` says that no step lost a word.
`adopt_segments` may be left out where one segment more or less changes nothing: where all of them are closed by `roll`, say.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_SEQUENCES = 2**31
_NEVER = 2**63 - 1
_DAY_MS = 86_400_000
_MARKERS = ("COMMIT", "ABORT")
_OFFSET = attrgetter("offset")


@dataclass(frozen=True)
class Record:
    """One row as the log holds it; `control` is None for data, else COMMIT, ABORT or EMPTY. Only an EMPTY row has no timestamp."""

    offset: int
    key: bytes | None = None
    value: bytes | None = None
    timestamp_ms: int | None = 0
    producer_id: int | None = None
    epoch: int | None = None
    sequence: int | None = None
    transactional: bool = field(default=False, compare=False)
    control: str | None = None
    txn_first_offset: int | None = None
    delete_horizon_ms: int | None = None
    appended_at_ms: int = 0

    @property
    def transaction(self) -> tuple[int, int] | None:
        """The transaction that a data row or marker belongs to: its producer and first offset."""
        if self.producer_id is None or self.txn_first_offset is None:
            return None
        return self.producer_id, self.txn_first_offset

    def emptied(self) -> Record:
        """Return the EMPTY row that remains of it."""
        return Record(
            self.offset, None, None, None, self.producer_id, self.epoch, self.sequence, control="EMPTY", appended_at_ms=self.appended_at_ms
        )


@dataclass(frozen=True)
class ModelConfig:
    """The settings that rows depend on, with Kafka's names and defaults."""

    cleanup_policy: frozenset[str] = frozenset({"compact"})
    delete_retention_ms: int = _DAY_MS
    max_compaction_lag_ms: int = _NEVER
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    producer_id_expiration_ms: int = _DAY_MS
    retention_bytes: int = -1
    retention_ms: int = 7 * _DAY_MS
    segment_bytes: int = 2**30
    segment_ms: int = 7 * _DAY_MS

    @property
    def max_segment_ms(self) -> int:
        """The age at which a segment closes."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if "compact" in self.cleanup_policy else self.segment_ms


@dataclass(frozen=True)
class ModelSegment:
    """A segment that holds a row: the offsets `label` to `end` are its own; `closed` when it takes no more appends."""

    label: int
    end: int
    closed: bool
    size_bytes: int
    rows: list[Record]

    @property
    def times(self) -> list[int]:
        """The timestamps in it; EMPTY rows have none."""
        return [row.timestamp_ms for row in self.rows if row.timestamp_ms is not None]

    @property
    def largest_timestamp_ms(self) -> int:
        """The newest record's, or the time of its first append when nothing but EMPTY rows is left."""
        return max(self.times, default=self.rows[0].appended_at_ms)


@dataclass
class ModelTopic:
    """A topic: per partition, what was appended, what is left of it in offset order, and where its segments begin.

    `row_bytes` is the size of a row in a segment whose size nobody told.
    """

    partitions: int
    config: ModelConfig = field(default_factory=ModelConfig)
    row_bytes: Callable[[Record], int] = lambda _: 1
    history: dict[int, list[Record]] = field(init=False)
    logs: dict[int, list[Record]] = field(init=False)
    labels: dict[int, list[int]] = field(init=False)
    sizes: dict[tuple[int, int], int] = field(default_factory=dict)
    rolled: dict[int, int] = field(default_factory=dict)
    log_start_offsets: dict[int, int] = field(init=False)
    checkpoints: dict[int, int] = field(default_factory=dict)
    cut: set[int] = field(default_factory=set)
    reborn: dict[tuple[int, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin with empty partitions."""
        self.history = {partition: [] for partition in range(self.partitions)}
        self.logs = {partition: [] for partition in range(self.partitions)}
        self.labels = {partition: [] for partition in range(self.partitions)}
        self.log_start_offsets = dict.fromkeys(range(self.partitions), 0)

    # --- append -------------------------------------------------------------------------------------------------------------------------

    def append(self, partition: int, key: bytes | None, value: bytes | None, timestamp_ms: int, *, now_ms: int = 0) -> int:
        """Append one plain record and return its offset: the next one, never used before."""
        offset = self._log_end(partition)
        self._write(partition, Record(offset, key, value, timestamp_ms, appended_at_ms=now_ms))
        return offset

    def offer(
        self,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        *,
        producer_id: int,
        epoch: int,
        sequence: int | None = None,
        transactional: bool = False,
        control: str | None = None,
        timestamp_ms: int = 0,
        now_ms: int = 0,
    ) -> str:
        """Append a producer's row if the rules allow it; return the verdict."""
        offset = self._log_end(partition)
        if self._mine(partition, producer_id) and not self.is_active(partition, producer_id, now_ms):
            self.reborn[partition, producer_id] = offset
        verdict = self._verdict(partition, producer_id, epoch, sequence, transactional=transactional, control=control)
        if verdict == "accepted":
            open_first = self.open_transactions(partition).get(producer_id)
            first = offset if open_first is None and not control else open_first
            row = Record(
                offset,
                key,
                value,
                timestamp_ms,
                producer_id,
                epoch,
                sequence,
                transactional,
                control,
                txn_first_offset=first if transactional or control else None,
                appended_at_ms=now_ms,
            )
            self._write(partition, row)
        return verdict

    def roll(self, partition: int) -> None:
        """Close the active segment by command."""
        self.rolled[partition] = self._log_end(partition)

    def segments(self, partition: int, now_ms: int) -> list[ModelSegment]:
        """Return the segments that hold a row, oldest first; only the last may still be open."""
        starts = self.labels[partition]
        ends = [*starts[1:], self._log_end(partition)]
        found = [self._segment(partition, label, end, now_ms) for label, end in zip(starts, ends, strict=False)]
        return [segment for segment in found if segment.rows]

    def adopt_segments(self, partition: int, sizes: Mapping[int, int | None]) -> None:
        """Take over where segments begin and how large they are: {label: bytes}, None where `row_bytes` says it."""
        self.labels[partition] = sorted(sizes)
        self.sizes = {place: size for place, size in self.sizes.items() if place[0] != partition}
        self.sizes |= {(partition, label): size for label, size in sizes.items() if size is not None}

    def _write(self, partition: int, row: Record) -> None:
        last = self._segment(partition, max(self.labels[partition], default=0), row.offset, row.appended_at_ms)
        begun = last.rows[0].timestamp_ms if last.rows else None
        late = begun is not None and row.timestamp_ms is not None and row.timestamp_ms - begun > self.config.max_segment_ms
        if not last.rows or last.closed or late:
            self.labels[partition].append(row.offset)
        self.history[partition].append(row)
        self.logs[partition].append(row)

    def _segment(self, partition: int, label: int, end: int, now_ms: int) -> ModelSegment:
        """Return the segment of the offsets `label` to `end`.

        The last one is closed by command, by size or by age; and once it was cleaned, or emptied up to the log end, it is never written to
        again.
        """
        log, log_end = self.logs[partition], self._log_end(partition)
        rows = log[bisect_left(log, label, key=_OFFSET) : bisect_left(log, end, key=_OFFSET)]
        size = self.sizes.get((partition, label), sum(map(self.row_bytes, rows)))
        rolled = label < self.rolled.get(partition, -1)
        cleaned = label < self.checkpoints.get(partition, -1) <= log_end
        emptied = self.log_start_offsets[partition] == log_end
        old = bool(rows) and now_ms - rows[0].appended_at_ms > self.config.max_segment_ms
        closed = end < log_end or rolled or cleaned or emptied or old or size >= self.config.segment_bytes
        return ModelSegment(label, end, closed, size, rows)

    # --- producers and transactions -----------------------------------------------------------------------------------------------------

    def transaction_of(self, partition: int, row: Record) -> int | None:  # noqa: ARG002  the partition belongs to the question
        """Return the first offset of the transaction that a row (data or marker) belongs to."""
        return row.txn_first_offset

    def outcome(self, partition: int, row: Record) -> str | None:
        """Return how the transaction of a data row ended: COMMIT, ABORT, or None while it is open."""
        for one in self.history[partition]:
            if one.offset > row.offset and one.producer_id == row.producer_id and one.control:
                return one.control
        return None

    def open_transactions(self, partition: int) -> dict[int, int]:
        """Return the first offset of the open transaction of each producer that has one with a record at or past the log start."""
        last: dict[int, Record] = {}
        for row in self.history[partition]:
            if row.producer_id is not None and row.control:
                last.pop(row.producer_id, None)
            elif row.producer_id is not None and row.transactional:
                last[row.producer_id] = row
        return {
            producer_id: row.txn_first_offset
            for producer_id, row in last.items()
            if row.txn_first_offset is not None and row.offset >= self.log_start_offsets[partition]
        }

    def last_stable_offset(self, partition: int) -> int:
        """Return the first offset that belongs to an open transaction, or the log end; never below the log start."""
        first = min(self.open_transactions(partition).values(), default=self._log_end(partition))
        return max(first, self.log_start_offsets[partition])

    def is_active(self, partition: int, producer_id: int, now_ms: int) -> bool:
        """Tell whether a producer is remembered: it has a transaction open, or its last row is not too old."""
        mine = self._mine(partition, producer_id)
        young = bool(mine) and now_ms - mine[-1].appended_at_ms < self.config.producer_id_expiration_ms
        return young or producer_id in self.open_transactions(partition)

    def places(self, partition: int, now_ms: int) -> set[int]:
        """Return the offsets that must not vanish: the log's last, and of each active producer the last row of its newest epoch.

        That is its last data row, or its last marker when it has no data row in that epoch.
        """
        found = {self._log_end(partition) - 1}
        for producer_id in {row.producer_id for row in self.history[partition] if row.producer_id is not None}:
            if self.is_active(partition, producer_id, now_ms):
                mine = self._mine(partition, producer_id)
                newest = [row for row in mine if row.epoch == mine[-1].epoch]
                data = [row for row in newest if not row.control]
                found.add((data or newest)[-1].offset)
        return found

    def _mine(self, partition: int, producer_id: int) -> list[Record]:
        """Return what a producer appended since it was last forgotten."""
        since = self.reborn.get((partition, producer_id), 0)
        return [row for row in self.history[partition] if row.producer_id == producer_id and row.offset >= since]

    def _verdict(
        self, partition: int, producer_id: int, epoch: int, sequence: int | None, *, transactional: bool, control: str | None
    ) -> str:
        mine = self._mine(partition, producer_id)
        if not mine:
            return "accepted"
        newest = max(row.epoch for row in mine if row.epoch is not None)
        if epoch < newest:
            return "producer_fenced"
        if control:
            return "accepted"
        given = [row.sequence for row in mine if row.epoch == epoch and row.sequence is not None]
        expected = (given[-1] + 1) % _SEQUENCES if given else 0
        if given and sequence != expected and sequence is not None and (expected - sequence) % _SEQUENCES <= _SEQUENCES // 2:
            return "duplicate_sequence"
        if producer_id in self.open_transactions(partition) and not transactional:
            return "invalid_txn_state"
        return "accepted" if sequence in {None, expected} else "sequence_gap"

    # --- read ---------------------------------------------------------------------------------------------------------------------------

    def read_committed(self, partition: int) -> list[Record]:
        """Return the data rows that a read_committed reader sees."""
        return self._committed(partition, self.logs[partition])

    def latest(self) -> dict[tuple[int, bytes], Record]:
        """Return the last committed record of every key, tombstones left out, as a reader finds it in what is left."""
        return {place: row for partition in self.logs for place, row in self._last(partition, self.logs[partition]).items()}

    def last_words(self) -> dict[tuple[int, bytes], Record]:
        """Return the same from the history: what `latest` must be, whatever was cleaned."""
        return {place: row for partition in self.logs for place, row in self._last(partition, self.history[partition]).items()}

    def _committed(self, partition: int, rows: list[Record]) -> list[Record]:
        start, stable = self.log_start_offsets[partition], self.last_stable_offset(partition)
        return [
            row
            for row in rows
            if start <= row.offset < stable and not row.control and (not row.transactional or self.outcome(partition, row) == "COMMIT")
        ]

    def _last(self, partition: int, rows: list[Record]) -> dict[tuple[int, bytes], Record]:
        newest = {(partition, row.key): row for row in self._committed(partition, rows) if row.key is not None}
        return {place: row for place, row in newest.items() if row.value is not None}

    # --- clean --------------------------------------------------------------------------------------------------------------------------

    def dirty_range(self, partition: int, now_ms: int) -> tuple[int, int]:
        """Return the offsets that may be cleaned now, half-open: from the checkpoint to the first segment that may not."""
        start, log_end = self.log_start_offsets[partition], self._log_end(partition)
        checkpoint = self.checkpoints.get(partition, start)
        first = checkpoint if start <= checkpoint <= log_end else start
        stable, young_after = self.last_stable_offset(partition), now_ms - self.config.min_compaction_lag_ms
        for segment in self.segments(partition, now_ms):
            undecided = stable < segment.end
            young = self.config.min_compaction_lag_ms > 0 and segment.largest_timestamp_ms > young_after
            if segment.end > first and (not segment.closed or self._keeps_the_log_end(partition, segment) or undecided or young):
                return first, max(first, segment.label)
        return first, max(first, log_end)

    def is_eligible(self, partition: int, now_ms: int) -> bool:
        """Tell whether cleaning has a reason: too dirty, overdue, cut short, or a delete horizon in the clean section has passed."""
        first, end = self.dirty_range(partition, now_ms)
        segments = self.segments(partition, now_ms)
        closed = self._cleanable_segments(partition, now_ms)
        clean_bytes = sum(one.size_bytes for one in segments if one.label < first)
        dirty_bytes = sum(one.size_bytes for one in segments if one.rows[-1].offset >= first and first < end and one.label < end)
        too_dirty = dirty_bytes > self.config.min_cleanable_dirty_ratio * (clean_bytes + dirty_bytes)
        begun = [min(one.times) for one in closed if one.rows[-1].offset >= first and one.times and min(one.times) > 0]
        overdue = dirty_bytes > 0 and any(now_ms - time > self.config.max_compaction_lag_ms for time in begun)
        horizons = [row.delete_horizon_ms for one in closed if one.rows[-1].offset < first for row in one.rows]
        expired = any(horizon is not None and horizon <= now_ms for horizon in horizons)
        cut_short = partition in self.cut and self.checkpoints[partition] <= self._log_end(partition) and dirty_bytes > 0
        return "compact" in self.config.cleanup_policy and (too_dirty or overdue or cut_short or expired)

    def clean(self, partition: int, now_ms: int, *, force: bool = False, end_offset: int | None = None) -> bool:
        """Clean a partition if it is eligible, or by force as far as the bounds allow; return whether it was looked at.

        `end_offset` is where a map budget cut the dirty range.
        """
        if "compact" not in self.config.cleanup_policy or not (force or self.is_eligible(partition, now_ms)):
            return False
        first, end = self.dirty_range(partition, now_ms)
        bound = end
        if end_offset is not None:
            assert first <= end_offset <= end, f"a dirty range {first} to {end} cannot end at {end_offset}"
            assert end_offset > first or first == end, "a round must make progress"
            end = end_offset
        looked_at = {
            row.offset
            for one in self._cleanable_segments(partition, now_ms)
            for row in one.rows
            if (one.label < end if end > first else one.rows[-1].offset < first)  # without a dirty range: what is clean to its end
        }
        if not looked_at:
            return False
        self.logs[partition] = self._cleaned(partition, looked_at, first, end, now_ms)
        self.checkpoints[partition] = end
        self.cut = self.cut | {partition} if end < bound else self.cut - {partition}
        return True

    def _cleanable_segments(self, partition: int, now_ms: int) -> list[ModelSegment]:
        """Return the closed segments that cleaning may look at: what lies below the log start whole is left to retention."""
        return [
            one
            for one in self.segments(partition, now_ms)
            if one.closed and not self._keeps_the_log_end(partition, one) and one.end > self.log_start_offsets[partition]
        ]

    def _cleaned(self, partition: int, looked_at: set[int], first: int, end: int, now_ms: int) -> list[Record]:
        """Return the rows of a partition after the dirty range `first` to `end` was mapped and the rows `looked_at` were judged."""
        rows, places = self.logs[partition], self.places(partition, now_ms)
        aborted = {row.transaction for row in self.history[partition] if row.control == "ABORT"} - {None}
        newest = {row.key: row.offset for row in rows if first <= row.offset < end and not row.control and row.transaction not in aborted}

        def goes(row: Record) -> bool:
            """Tell whether a data row goes."""
            if row.transaction in aborted:
                return True
            if row.offset >= end:
                return False
            expired = row.delete_horizon_ms is not None and now_ms >= row.delete_horizon_ms
            return row.key is None or newest.get(row.key, -1) > row.offset or (row.value is None and expired)

        unfinished = {row.transaction for row in rows if not row.control and not (row.offset in looked_at and goes(row))} - {None}
        horizon_ms = now_ms + self.config.delete_retention_ms
        left = []
        for row in rows:
            dying = (row.control in _MARKERS and row.transaction not in unfinished) or (
                not row.control and row.key is not None and row.value is None
            )
            if row.offset not in looked_at:
                left.append(row)
            elif row.control == "EMPTY":
                left += [row] if row.offset in places else []
            elif goes(row) if not row.control else dying and row.delete_horizon_ms is not None and now_ms >= row.delete_horizon_ms:
                left += [row.emptied()] if row.offset in places else []
            else:
                left.append(replace(row, delete_horizon_ms=horizon_ms) if dying and row.delete_horizon_ms is None else row)
        return left

    # --- retention ----------------------------------------------------------------------------------------------------------------------

    def apply_retention(self, partition: int, now_ms: int) -> list[int]:
        """Remove the segments that go whole: by log start, then by size, then by time; return their labels."""
        config = self.config
        left = self.segments(partition, now_ms)
        if left and self._keeps_the_log_end(partition, left[-1]):
            left.pop()
        gone = []
        while left and left[0].end <= self.log_start_offsets[partition]:
            gone.append(left.pop(0))
        if "delete" in config.cleanup_policy:
            while left and config.retention_bytes >= 0 and sum(one.size_bytes for one in left[1:]) >= config.retention_bytes:
                gone.append(left.pop(0))
            while left and config.retention_ms >= 0 and now_ms - left[0].largest_timestamp_ms > config.retention_ms:
                gone.append(left.pop(0))
        if gone:
            start = left[0].label if left else self._log_end(partition)
            self.log_start_offsets[partition] = max(start, self.log_start_offsets[partition])
            self._remove(partition, {row.offset for segment in gone for row in segment.rows})
        return [segment.label for segment in gone]

    def delete_records(self, partition: int, offset: int) -> None:
        """Take away what lies below `offset`: readers do not see it any more; whole segments go with the next retention."""
        if offset > self._log_end(partition):
            message = f"offset {offset} is above the log end {self._log_end(partition)}"
            raise ValueError(message)
        self.log_start_offsets[partition] = max(offset, self.log_start_offsets[partition])

    def _remove(self, partition: int, offsets: set[int]) -> None:
        """Remove rows; the log's last row leaves an EMPTY row in a segment of its own, so that no offset is given twice."""
        last = self._log_end(partition) - 1
        kept = [row for row in self.logs[partition] if row.offset not in offsets]
        if last in offsets:
            kept += [row.emptied() for row in self.logs[partition] if row.offset == last]
            self.labels[partition] = sorted({*self.labels[partition], last})
        self.logs[partition] = kept

    def _keeps_the_log_end(self, partition: int, segment: ModelSegment) -> bool:
        """Tell whether a segment holds nothing but the EMPTY row that keeps the log end."""
        return [row.offset for row in segment.rows if row.control == "EMPTY"] == [self._log_end(partition) - 1] and not segment.times

    def _log_end(self, partition: int) -> int:
        return self.history[partition][-1].offset + 1 if self.history[partition] else 0
