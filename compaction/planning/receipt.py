"""The receipt of a cleaning: what one round did to one partition, and where the next one begins."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar

from lastword.compaction.display import Displayed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lastword.compaction.log.segments import Segment


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CleaningReceipt(Displayed):
    """What a round did to a partition: offsets `first_dirty_offset` to `end_offset` were mapped, and the checkpoint is `end_offset`.

    Records and bytes are those of the segments that were written again (`segments_before` of them, in `groups`), before and after; all
    others were left alone. `removed` counts rows by reason (`Removal`), of which `emptied` left an EMPTY row;
    `removed_bytes` is an estimate of their bytes (`estimated_bytes`), empty in receipts of before there was one.
    `map_utilization` is the share of the map's slots that was used; `rounds_left` says how many more rounds the map budget asks for, 0 when
    it did not cut the range. `highest_removed_tombstone` is the offset below which a slow reader may have missed a delete, and
    `highest_expired_tombstone` the same without the tombstones of purges; `removed_positions` are the highest orders of tombstones that
    this cleaning or one before it removed, by source and partition (`lastword.compaction.order.source_positions.place_name`).
    `read_bytes` are those of both passes: of `indexed_bytes` about what the columns take that were mapped, and the files that were
    written again. `table_version` is the swap's.
    """

    BRIEF: ClassVar = (
        "topic", "partition", "trigger", "first_dirty_offset", "end_offset", "records_before", "records_after", "removed", "now_ms",
    )  # fmt: skip

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
    removed_bytes: Mapping[str, int] = field(default_factory=dict)
    removed_positions: Mapping[str, str] = field(default_factory=dict)

    @property
    def removed_count(self) -> int:
        """The rows that went, for whatever reason."""
        return sum(self.removed.values())

    def to_details(self) -> dict[str, Any]:
        """Return it as JSON's types alone, for the ledger and the commit."""
        mappings = {"removed": self.removed, "removed_bytes": self.removed_bytes, "removed_positions": self.removed_positions}
        return asdict(self) | {name: dict(mapping) for name, mapping in mappings.items()}

    @staticmethod
    def from_details(details: Mapping[str, Any]) -> CleaningReceipt:
        """Return the receipt that `to_details` wrote."""
        added = {
            "highest_expired_tombstone": details.get("highest_expired_tombstone", details.get("highest_removed_tombstone")),
            "removed_bytes": details.get("removed_bytes", {}),
            "removed_positions": removed_positions_of(details),
        }
        return CleaningReceipt(**{attribute.name: {**details, **added}[attribute.name] for attribute in fields(CleaningReceipt)})


def removed_positions_of(details: Mapping[str, Any]) -> dict[str, str]:
    """Return the highest orders of removed deletions, by place, that a receipt or a log start tells; of an older version, of no scope."""
    removed: dict[str, str] = dict(details.get("removed_positions", {}))
    before = details.get("removed_sequence", "")
    return {**removed, "": max(before, removed.get("", ""))} if before else removed


def estimated_bytes(removed: Mapping[str, Mapping[int, int]], segments: Iterable[Segment]) -> dict[str, int]:
    """Return by reason about how many bytes removed rows take: of each segment their number × the mean bytes of a record in it.

    `removed` counts rows by reason and label. Files are compressed, so what is really freed may differ: it is `bytes_before` −
    `bytes_after`, all reasons together.
    """
    mean = {segment.label: segment.size_bytes / segment.record_count for segment in segments}
    return {reason: round(sum(rows * mean[label] for label, rows in by_label.items())) for reason, by_label in sorted(removed.items())}
