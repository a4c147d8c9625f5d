"""The receipt of a cleaning: what one round did to one partition, and where the next one begins."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningReceipt:
    """What a round did to a partition: offsets `first_dirty_offset` to `end_offset` were mapped, and the checkpoint is `end_offset`.

    Records and bytes are those of the segments that were written again (`segments_before` of them, in `groups`), before and after; all
    others were left alone. `removed` counts rows by reason (`record_retention.Removal`), of which `emptied` left an EMPTY row.
    `map_utilization` is the share of the map's slots that was used; `rounds_left` says how many more rounds the map budget asks for, 0 when
    it did not cut the range. `highest_removed_tombstone` is the offset below which a slow reader may have missed a delete, and
    `highest_expired_tombstone` the same without the tombstones of purges. `read_bytes` are those of both passes. `table_version` is the
    swap's.
    """

    topic: str
    partition: int
    trigger: str
    first_dirty_offset: int
    end_offset: int
    cleanable_ratio: float
    table_version: int | None
    segments_before: int
    groups: int
    records_before: int
    records_after: int
    bytes_before: int
    bytes_after: int | None
    removed: Mapping[str, int]
    emptied: int
    map_entries: int
    map_utilization: float
    rounds_left: int
    highest_removed_tombstone: int | None
    indexed_bytes: int
    read_bytes: int
    index_ms: int
    total_ms: int | None
    now_ms: int
    highest_expired_tombstone: int | None = None

    @property
    def removed_count(self) -> int:
        """The rows that went, for whatever reason."""
        return sum(self.removed.values())

    def to_details(self) -> dict[str, Any]:
        """Return it as JSON's types alone, for the ledger and the commit."""
        return asdict(self) | {"removed": dict(self.removed)}

    @staticmethod
    def from_details(details: Mapping[str, Any]) -> CleaningReceipt:
        """Return the receipt that `to_details` wrote."""
        since_purges = {"highest_expired_tombstone": details.get("highest_expired_tombstone", details.get("highest_removed_tombstone"))}
        return CleaningReceipt(**{field.name: {**details, **since_purges}[field.name] for field in fields(CleaningReceipt)})
