"""The executable specification: a topic as Python lists, obviously right. Everything else is compared with it.

It knows no segments, files or commits: only what a reader may rely on. Every answer is found by looking through the whole list.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_SEQUENCES = 2**31


@dataclass(frozen=True)
class Record:
    """One row as the log holds it; `control` is None for data, else COMMIT or ABORT."""

    offset: int
    key: bytes | None = None
    value: bytes | None = None
    timestamp_ms: int = 0
    producer_id: int | None = None
    epoch: int | None = None
    sequence: int | None = None
    transactional: bool = False
    control: str | None = None


@dataclass
class ModelTopic:
    """A compacted topic: per partition, the rows in offset order."""

    partitions: int
    logs: dict[int, list[Record]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin with empty partitions."""
        self.logs = {partition: [] for partition in range(self.partitions)}

    def append(self, partition: int, key: bytes | None, value: bytes | None, timestamp_ms: int) -> int:
        """Append one plain record and return its offset: the next one, never used before."""
        offset = self._log_end(partition)
        self.logs[partition].append(Record(offset, key, value, timestamp_ms))
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
    ) -> str:
        """Append a producer's row if the rules allow it; return the verdict."""
        verdict = self._verdict(partition, producer_id, epoch, sequence, transactional=transactional, control=control)
        if verdict == "accepted":
            row = Record(self._log_end(partition), key, value, 0, producer_id, epoch, sequence, transactional, control)
            self.logs[partition].append(row)
        return verdict

    def transaction_of(self, partition: int, row: Record) -> int | None:
        """Return the first offset of the transaction that a row (data or marker) belongs to."""
        if row.producer_id is None or not (row.transactional or row.control):
            return None
        first = None
        for one in self.logs[partition]:
            if one.producer_id == row.producer_id and one.offset <= row.offset:
                if one.control is None and one.transactional and first is None:
                    first = one.offset
                if one.control and one.offset < row.offset:
                    first = None
        return first

    def outcome(self, partition: int, row: Record) -> str | None:
        """Return how the transaction of a data row ended: COMMIT, ABORT, or None while it is open."""
        for one in self.logs[partition]:
            if one.offset > row.offset and one.producer_id == row.producer_id and one.control:
                return one.control
        return None

    def last_stable_offset(self, partition: int) -> int:
        """Return the first offset that belongs to an open transaction, or the log end."""
        undecided = [
            row.offset for row in self.logs[partition] if row.transactional and not row.control and self.outcome(partition, row) is None
        ]
        return min(undecided, default=self._log_end(partition))

    def read_committed(self, partition: int) -> list[Record]:
        """Return the data rows that a read_committed reader sees."""
        stable = self.last_stable_offset(partition)
        return [
            row
            for row in self.logs[partition]
            if row.offset < stable and not row.control and (not row.transactional or self.outcome(partition, row) == "COMMIT")
        ]

    def latest(self) -> dict[tuple[int, bytes], Record]:
        """Return the last committed record of every key, tombstones left out."""
        newest = {
            (partition, record.key): record
            for partition in self.logs
            for record in self.read_committed(partition)
            if record.key is not None
        }
        return {place: record for place, record in newest.items() if record.value is not None}

    def _log_end(self, partition: int) -> int:
        log = self.logs[partition]
        return log[-1].offset + 1 if log else 0

    def _verdict(
        self, partition: int, producer_id: int, epoch: int, sequence: int | None, *, transactional: bool, control: str | None
    ) -> str:
        mine = [row for row in self.logs[partition] if row.producer_id == producer_id]
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
        events = [row for row in mine if row.control or row.transactional]
        if events and not events[-1].control and not transactional:
            return "invalid_txn_state"
        return "accepted" if sequence == expected else "sequence_gap"
