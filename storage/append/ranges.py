"""What an append wrote, partition by partition: its offsets, its records and their size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lastword.storage.files.data_files import DataFile


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendedRange:
    """What an append wrote into one partition: offsets `first_offset` to `last_offset`, `record_count` of them."""

    partition: int
    first_offset: int
    last_offset: int
    record_count: int
    size_bytes: int


def ranges_of(files: Sequence[DataFile]) -> dict[int, AppendedRange]:
    """Return what some new files hold by partition."""
    by_partition: dict[int, list[DataFile]] = {}
    for file in files:
        by_partition.setdefault(file.partition, []).append(file)
    return {
        partition: AppendedRange(
            partition=partition,
            first_offset=min(file.first_offset for file in mine),
            last_offset=max(file.last_offset for file in mine),
            record_count=sum(file.record_count for file in mine),
            size_bytes=sum(file.size_bytes for file in mine),
        )
        for partition, mine in sorted(by_partition.items())
    }
