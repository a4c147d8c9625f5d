"""Pass 1 of a cleaning: the offset map of the dirty ranges, and which rows of the clean section it supersedes.

```
 dirty rows    key, offset          ┐ newest offset of each key = the offset map        positions that stay
 clean rows    key, offset, segment ┘ those whose key is in the map                     positions that go
```

A clean section that is no larger than the dirty one is mapped along with it: it has at most one record of a key. A larger one is asked
row by row whether its key is in the map (`cleaning_rows.with_newer`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from compaction.record_retention import Removal
from storage import crash_points
from storage.cleaning_rows import blocks, position, with_newer, without_aborted
from storage.cleaning_segments import clean_segments, dirty_segments, files_of, span_bits
from storage.crash_points import CrashPoint
from storage.plan_values import by_partition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from compaction.planner import PartitionPlan
    from compaction.segments import Segment
    from storage.cleaning_reads import RoundReads

#: What one judged position may cost in memory when it is sent to every task, and the share of the driver's memory that they may take.
BROADCAST_BYTES: Final = 64
_BROADCAST_SHARE: Final = 6


@dataclass(slots=True)
class Found:
    """What the index and the census say of one partition.

    `newest` are ranges that hold the newest offsets of the dirty range; `places` are the offsets that must stay.
    """

    keys: int = 0
    newest: list[tuple[int, int]] = field(default_factory=list)
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

    def broadcasts(self) -> bool:
        """Tell whether the judged positions are few enough to be sent to every task: two for each key that was mapped, at the most."""
        most = self.reads.spark.sparkContext._jvm.java.lang.Runtime.getRuntime().maxMemory()  # type: ignore[union-attr]  # noqa: SLF001
        positions = 2 * sum(one.keys for one in self.found.values())
        return bool(positions * BROADCAST_BYTES <= most // _BROADCAST_SHARE)

    def judged(self, aborted: DataFrame | None) -> DataFrame | None:
        """Build the offset map and return the judged positions; None when the dirty ranges hold nothing."""
        dirty = [segment for plan in self.chosen.values() for segment in dirty_segments(plan)]
        if not dirty:
            return None
        clean = [segment for plan in self.chosen.values() if dirty_segments(plan) for segment in clean_segments(plan)]
        together = bool(clean) and sum(one.record_count for one in clean) <= sum(one.record_count for one in dirty)
        mapped_members = [*dirty, *clean] if together else dirty
        lanes, shared = self.reads.divided(mapped_members)
        rows, mapped_rows = [], []
        for lane in lanes:
            rows.append(self._dirty_rows([one for one in dirty if one.partition in lane], aborted))
            beside = self._clean_rows([one for one in clean if one.partition in lane]) if together else None
            mapped_rows.append(self._mapped(rows[-1], beside, shared=shared))
        mapped = self.reads.hold(reduce(DataFrame.unionByName, mapped_rows))
        newest = mapped.where(F.col("offset").isNotNull()) if together else mapped
        self._count(reduce(DataFrame.unionByName, rows), newest)
        crash_points.reached(CrashPoint.OFFSET_MAP_BUILT)
        newest = newest.where(F.col("key").isNotNull())
        superseded = self._superseded_together(newest) if together else None
        superseded = self._superseded_apart(newest) if superseded is None else superseded
        judged = newest.select(position().alias("position"))
        return blocks(judged if superseded is None else judged.unionByName(superseded))

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
        first, end = (by_partition(offsets, F.col("partition")) for offsets in (self.first_dirty, self.end))
        columns = ("partition", "offset", "key", "control", "producer_id", "txn_first_offset")
        rows = without_aborted(self.reads.segments(dirty, columns), aborted)
        rows = rows.where(F.col("control").isNull() & (F.col("offset") >= first) & (F.col("offset") < end))
        return rows.select("partition", "offset", "key")

    def _clean_rows(self, clean: Sequence[Segment]) -> DataFrame:
        """Return partition, segment, offset and key of the data rows in the clean section."""
        rows = self.reads.segments(clean, ("partition", "segment", "offset", "key", "control"))
        first = by_partition(self.first_dirty, F.col("partition"))
        return rows.where(F.col("control").isNull() & F.col("key").isNotNull() & (F.col("offset") < first)).drop("control")

    def _count(self, rows: DataFrame, newest: DataFrame) -> None:
        """Count the keys of the dirty ranges, and the rows that are not the newest of theirs."""
        keyed = F.when(F.col("key").isNotNull(), F.col("offset"))
        spans = newest.groupBy("partition", F.shiftright("offset", span_bits(self.chosen.values()))).agg(
            F.count(keyed).alias("keys"), F.count(F.lit(1)).alias("groups"), F.min(keyed).alias("first"), F.max(keyed).alias("last")
        )
        keyless = False
        for row in spans.collect():
            found = self.found[row["partition"]]
            found.keys += row["keys"]
            found.newest += [(row["first"], row["last"])] if row["keys"] else []
            keyless = keyless or row["groups"] > row["keys"]
        self._count_superseded(rows, keyless=keyless)

    def _count_superseded(self, rows: DataFrame, *, keyless: bool) -> None:
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
            counted = self.reads.few(rows).groupBy("partition").agg(F.count(F.lit(1)).alias("rows"), F.count("key").alias("keyed"))
            for row in counted.collect():
                totals[row["partition"]], without_key[row["partition"]] = row["rows"], row["rows"] - row["keyed"]
        else:
            totals = {at: sum(one.record_count for one in dirty_segments(plan)) for at, plan in self.chosen.items()}
        for partition, total in totals.items():
            dirty, found = dirty_segments(self.chosen[partition]), self.found[partition]
            if dirty:
                found.count(Removal.KEYLESS.value, dirty[0].label, without_key.get(partition, 0))
                found.count(Removal.SUPERSEDED.value, dirty[0].label, total - without_key.get(partition, 0) - found.keys)

    def _superseded_together(self, newest: DataFrame) -> DataFrame | None:
        """Return the positions of clean rows whose key came again; None when a key has several of them, which the map does not hold."""
        going = newest.where(F.col("clean_offset").isNotNull())
        counts = (
            going.groupBy("partition", "clean_segment").agg(F.count(F.lit(1)).alias("keys"), F.sum("clean_rows").alias("rows")).collect()
        )
        if any(row["rows"] > row["keys"] for row in counts):
            return None
        for row in counts:
            self.found[row["partition"]].count(Removal.SUPERSEDED.value, row["clean_segment"], row["keys"])
        return going.select(position(offset="clean_offset").alias("position"))

    def _superseded_apart(self, newest: DataFrame) -> DataFrame | None:
        """Return the positions of clean rows whose key came again; None when there is no clean section."""
        clean = [one for partition, plan in self.chosen.items() if self.found[partition].keys for one in clean_segments(plan)]
        if not clean:
            return None
        broadcast = self.broadcasts()
        rows = self._clean_rows(clean)
        newer = with_newer(rows if broadcast else self.reads.few(rows), newest.select("partition", "key"), broadcast=broadcast)
        going = self.reads.hold(self.reads.few(newer.select("partition", "segment", position().alias("position"))))
        for row in going.groupBy("partition", "segment").count().collect():
            self.found[row["partition"]].count(Removal.SUPERSEDED.value, row["segment"], row["count"])
        return going.select("position")
