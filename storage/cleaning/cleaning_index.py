"""Pass 1 of a cleaning: the offset map of the dirty ranges, and which rows of the clean section it supersedes.

```
 dirty rows    key, offset          ┐ newest offset of each key = the offset map        positions that stay
 clean rows    key, offset, segment ┘ those whose key is in the map                     positions that go    (judged.py)
```

A clean section that is no larger than the dirty one is mapped along with it: it has at most one record of a key. A larger one is asked
row by row whether its key is in the map (`lastword.storage.cleaning.cleaning_rows.with_newer`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow.compute as pc
from pyspark.sql import functions as F

from lastword.compaction.rows.removal import Removal
from lastword.storage.cleaning.cleaning_rows import with_newer, without_aborted
from lastword.storage.cleaning.cleaning_segments import clean_segments, dirty_segments, files_of, mapped_together, span_bits
from lastword.storage.cleaning.judged import BLOCK_BITS, Judged, as_blocks, joined, judged
from lastword.storage.delta import crash_points
from lastword.storage.delta.crash_points import CrashPoint
from lastword.storage.delta.plan_values import listed_by_partition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray
    from pyspark.sql import DataFrame

    from lastword.compaction.log.segments import Segment
    from lastword.compaction.planning.planner import PartitionPlan
    from lastword.storage.cleaning.cleaning_reads import RoundReads

#: What one block of judged positions, or a key, may cost in memory when it is sent to every task, and the share of the driver's memory that
#: all of them may take.
BROADCAST_BYTES: Final = 64
_BROADCAST_SHARE: Final = 6
#: So many blocks come to the driver, where Python takes some 100 B for each.
GATHERED_BLOCKS: Final = 2**20


@dataclass(slots=True)
class Found:
    """What the index and the census say of one partition.

    `newest` are ranges (first, last) that hold the newest offsets of the dirty range; `places` are the offsets that must stay.
    """

    keys: int = 0
    newest: NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 2), dtype=np.int64))
    changed: set[int] = field(default_factory=set)
    removed: dict[str, dict[int, int]] = field(default_factory=dict)
    emptied: int = 0
    highest_tombstones: dict[str, int] = field(default_factory=dict)
    places: list[int] = field(default_factory=list)

    def count(self, reason: str, label: int, rows: int) -> None:
        """Count rows that go from the segment `label`."""
        if rows:
            by_label = self.removed.setdefault(reason, {})
            by_label[label] = by_label.get(label, 0) + rows
            self.changed.add(label)

    def totals(self) -> dict[str, int]:
        """Return the rows that go, by reason."""
        return {reason: sum(by_label.values()) for reason, by_label in sorted(self.removed.items())}


class Index:
    """The offset map of one round; `first_dirty` and `end` are offsets by partition of the topic."""

    def __init__(
        self,
        reads: RoundReads,
        chosen: Mapping[int, PartitionPlan],
        found: Mapping[int, Found],
        *,
        first_dirty: Sequence[int],
        end: Sequence[int],
    ) -> None:
        """Take what is indexed; nothing runs yet. What is counted goes into `found`."""
        self.reads, self.chosen, self.found = reads, chosen, found
        self.first_dirty, self.end = first_dirty, end
        #: How many keys of the map were sent to every task.
        self.sent_keys = 0

    def broadcasts(self) -> bool:
        """Tell whether the judged positions can be sent to every task."""
        return self._fits(self._most_blocks)

    @cached_property
    def _most_blocks(self) -> int:
        """How many blocks of judged positions to expect at the most: two positions for each dirty record, among the offsets there are."""
        most = 0
        for plan in self.chosen.values():
            if dirty_segments(plan):
                offsets = plan.dirty.end_offset - plan.segments[0].first_offset
                most += min(2 * plan.dirty.record_count, (offsets >> BLOCK_BITS) + 2)
        return most

    @property
    def _gathers(self) -> bool:
        return self._most_blocks <= GATHERED_BLOCKS

    def _fits(self, entries: int) -> bool:
        most = self.reads.spark.sparkContext._jvm.java.lang.Runtime.getRuntime().maxMemory()  # type: ignore[union-attr]  # noqa: SLF001
        return bool(entries * BROADCAST_BYTES <= most // _BROADCAST_SHARE)

    def judged(self, aborted: DataFrame | None) -> DataFrame | None:
        """Build the offset map and return the judged positions (`as_blocks`); None when the dirty ranges hold nothing."""
        self._count_keyless_below(aborted)
        plans = [plan for plan in self.chosen.values() if dirty_segments(plan)]
        if not plans:
            return None
        dirty = [segment for plan in plans for segment in dirty_segments(plan)]
        clean = [segment for plan in plans for segment in clean_segments(plan)]
        together = mapped_together(plans)
        lanes, shared = self.reads.divided([*dirty, *clean] if together else dirty)
        rows, mapped_rows = [], []
        for lane in lanes:
            rows.append(self._dirty_rows([one for one in dirty if one.partition in lane], aborted))
            beside = self._clean_rows([one for one in clean if one.partition in lane], aborted) if together else None
            mapped_rows.append(self._mapped(rows[-1], beside, shared=shared))
        if clean or not self._gathers:
            mapped_rows = [self.reads.hold(one) for one in mapped_rows]  # asked for their newest offsets, and for their keys or positions
        newest = [one.where("offset IS NOT NULL") for one in mapped_rows] if together else mapped_rows
        found = [self._newest(newest)]
        self._count_superseded(rows, keyless=found[0].counts.column("block").null_count > 0)
        crash_points.reached(CrashPoint.OFFSET_MAP_BUILT)
        superseded = self._superseded_together(newest) if together else None
        superseded = self._superseded_apart(newest, clean, aborted) if superseded is None else superseded
        blocks = as_blocks(self.reads, [*found, *superseded])
        if self._gathers:
            for one in mapped_rows:
                self.reads.release(one)
        return blocks

    def _mapped(self, dirty: DataFrame, clean: DataFrame | None, *, shared: bool) -> DataFrame:
        """Return by partition and key the newest `offset` in the dirty range of a lane.

        With `clean` rows: also offset, segment and number of those of the key; `offset` is null when the dirty range has none.
        """
        if clean is None:
            return self.reads.lane(dirty, shared=shared).groupBy("partition", "key").agg(F.max("offset").alias("offset"))
        renamed = clean.withColumnsRenamed({"offset": "clean_offset", "segment": "clean_segment"})
        return (
            self.reads.lane(dirty.unionByName(renamed, allowMissingColumns=True), shared=shared)
            .groupBy("partition", "key")
            .agg(
                F.max("offset").alias("offset"),
                F.max("clean_offset").alias("clean_offset"),
                F.max("clean_segment").alias("clean_segment"),
                F.count("clean_offset").alias("clean_rows"),
            )
        )

    def _dirty_rows(self, dirty: Sequence[Segment], aborted: DataFrame | None) -> DataFrame:
        """Return partition, offset and key of the data rows in the dirty ranges, without those of aborted transactions."""
        rows = without_aborted(self.reads.segments(dirty), aborted).where("control IS NULL")
        if not all(self._is_dirty(one) for one in dirty):  # a needless condition makes Delta look for the files twice
            rows = rows.where(f"offset >= {listed_by_partition(self.first_dirty)} AND offset < {listed_by_partition(self.end)}")
        return rows.select("partition", "offset", "key")

    def _clean_rows(self, clean: Sequence[Segment], aborted: DataFrame | None) -> DataFrame:
        """Return partition, segment, offset and key of the data rows in the clean section.

        Those of aborted transactions are judged as such: some may lie below a log start that stands inside their transaction.
        """
        rows = without_aborted(self.reads.segments(clean), aborted).where("control IS NULL AND key IS NOT NULL")
        if any(one.last_offset >= self.first_dirty[one.partition] for one in clean):
            rows = rows.where(f"offset < {listed_by_partition(self.first_dirty)}")
        return rows.select("partition", "segment", "offset", "key")

    def _is_dirty(self, one: Segment) -> bool:
        """Tell whether a segment lies in the dirty range whole."""
        return one.first_offset >= self.first_dirty[one.partition] and one.last_offset < self.end[one.partition]

    def _newest(self, newest: Sequence[DataFrame]) -> Judged:
        """Judge and count the newest record of each key of the dirty ranges; a record without a key is counted under no block."""
        rows = [one.selectExpr("partition", "if(key IS NULL, NULL, offset) AS offset") for one in newest]
        found = self._judged(rows, ["partition"])
        for partition, keys, ranges in found.by_partition():
            self.found[partition].keys, self.found[partition].newest = keys, ranges
        return found

    def _count_superseded(self, rows: Sequence[DataFrame], *, keyless: bool) -> None:
        """Count the rows of the dirty ranges that are not the newest of their key: from metadata where it says how many rows there are."""
        totals: dict[int, int] = {}
        without_key: dict[int, int] = {}
        files = self.reads.snapshot.files
        special = files_of(files, self.chosen) & ((files.producer_rows > 0) | (files.empty_rows > 0))
        partial = [
            one
            for plan in self.chosen.values()
            for one in dirty_segments(plan)
            if one.first_offset < plan.dirty.first_offset or one.last_offset >= plan.dirty.end_offset
        ]
        if keyless or partial or special.any():
            counted = self.reads.few(joined(rows)).groupBy("partition").agg(F.count(F.lit(1)).alias("rows"), F.count("key").alias("keyed"))
            for row in counted.collect():
                totals[row["partition"]], without_key[row["partition"]] = row["rows"], row["rows"] - row["keyed"]
        else:
            totals = {at: sum(one.record_count for one in dirty_segments(plan)) for at, plan in self.chosen.items()}
        for partition, total in totals.items():
            dirty, found = dirty_segments(self.chosen[partition]), self.found[partition]
            if dirty:
                found.count(Removal.KEYLESS.value, dirty[0].label, without_key.get(partition, 0))
                found.count(Removal.SUPERSEDED.value, dirty[0].label, total - without_key.get(partition, 0) - found.keys)

    def _count_keyless_below(self, aborted: DataFrame | None) -> None:
        """Count records without a key below a log start that stands inside a segment: no cleaning has looked at them yet."""
        plans = [one for one in self.chosen.values() if one.dirty.first_offset == one.log.log_start_offset]
        asked = [segment for plan in plans for segment in clean_segments(plan)]
        if not asked:
            return
        rows = without_aborted(self.reads.segments(asked), aborted).where("control IS NULL AND key IS NULL")
        rows = rows.where(f"offset < {listed_by_partition(self.first_dirty)}")
        for row in self.reads.few(rows).groupBy("partition", "segment").count().collect():
            self.found[row["partition"]].count(Removal.KEYLESS.value, row["segment"], row["count"])

    def _superseded_together(self, newest: Sequence[DataFrame]) -> list[Judged] | None:
        """Judge clean rows whose key came again; None when a key has several of them, which the map does not hold."""
        going = [one.where("clean_offset IS NOT NULL AND key IS NOT NULL") for one in newest]
        columns = ("partition", "clean_segment AS segment", "clean_offset AS offset", "clean_rows > 1 AS several")
        rows = [one.selectExpr(*columns) for one in going]
        found = self._judged(rows, ["partition", "segment", "several"])
        if pc.any(found.counts.column("several")).as_py():
            return None
        return self._counted(found)

    def _superseded_apart(self, newest: Sequence[DataFrame], clean: Sequence[Segment], aborted: DataFrame | None) -> list[Judged]:
        """Judge clean rows whose key came again."""
        asked = [one for one in clean if self.found[one.partition].keys]
        if not asked:
            return []
        keys = sum(one.keys for one in self.found.values())
        broadcast = self._fits(2 * keys)
        self.sent_keys = keys if broadcast else 0
        rows = self._clean_rows(asked, aborted)
        newer = with_newer(rows if broadcast else self.reads.few(rows), joined(newest).where("key IS NOT NULL"), broadcast=broadcast)
        going = newer.select("partition", "segment", "offset")
        return self._counted(self._judged([going if self._gathers else self.reads.hold(self.reads.few(going))], ["partition", "segment"]))

    def _judged(self, rows: Sequence[DataFrame], by: Sequence[str]) -> Judged:
        return judged(self.reads, rows, by, gathers=self._gathers, span_bits=span_bits(self.chosen.values()))

    def _counted(self, superseded: Judged) -> list[Judged]:
        """Count clean rows that give way, by segment."""
        by_segment = superseded.counts.group_by(["partition", "segment"]).aggregate([("rows", "sum")])
        for row in by_segment.to_pylist():
            self.found[row["partition"]].count(Removal.SUPERSEDED.value, row["segment"], row["rows_sum"])
        return [superseded]
