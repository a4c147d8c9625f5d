"""The executable specification: a topic as Python lists, obviously right. Everything else is compared with it.

It knows no segments, files or commits: only what a reader may rely on.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Record:
    """One record as a reader sees it."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int


@dataclass
class ModelTopic:
    """A compacted topic: per partition, the records in offset order."""

    partitions: int
    logs: dict[int, list[Record]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin with empty partitions."""
        self.logs = {partition: [] for partition in range(self.partitions)}

    def append(self, partition: int, key: bytes | None, value: bytes | None, timestamp_ms: int) -> int:
        """Append one record and return its offset: the next one, never used before."""
        log = self.logs[partition]
        offset = log[-1].offset + 1 if log else 0
        log.append(Record(offset, key, value, timestamp_ms))
        return offset

    def latest(self) -> dict[tuple[int, bytes], Record]:
        """Return the last record of every key, tombstones left out."""
        newest = {(partition, record.key): record for partition, log in self.logs.items() for record in log if record.key is not None}
        return {place: record for place, record in newest.items() if record.value is not None}
