"""What one round of cleaning reads of the log, always at the table version that it was planned with, and what it holds meanwhile."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from pyspark import StorageLevel

from lastword.storage.cleaning.cleaning_segments import files_of
from lastword.storage.cleaning.lanes import divided
from lastword.storage.delta.slice_ranges import any_of, ranges_of, slice_ranges, span_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import numpy as np
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame, SparkSession

    from lastword.compaction.log.segments import Segment
    from lastword.compaction.planning.planner import PartitionPlan
    from lastword.storage.delta.snapshot import Files, LogSnapshot


class RoundReads:
    """The log of a round. `parallelism` limits the tasks at a time; `bytes` are those of pass 1, by partition."""

    def __init__(
        self, spark: SparkSession, location: str, snapshot: LogSnapshot, chosen: Mapping[int, PartitionPlan], parallelism: int | None
    ) -> None:
        """Take what is read; nothing runs yet. What rounds before had is forgotten."""
        self.forget()
        self.spark, self.snapshot, self.chosen, self.parallelism = spark, snapshot, chosen, parallelism
        self.bytes: dict[int, int] = dict.fromkeys(chosen, 0)
        self.table = spark.read.format("delta").option("versionAsOf", snapshot.version).load(location)
        self._held: list[DataFrame] = []

    def divided(self, segments: Iterable[Segment]) -> tuple[list[frozenset[int]], bool]:
        """Return the lanes that read some segments, and whether tasks share the one lane that it is then."""
        return divided(self.spark, ((one.partition, one.size_bytes) for one in segments), self.parallelism)

    def segments(self, segments: Iterable[Segment]) -> DataFrame:
        """Return all rows of some segments, for the first pass, which counts their bytes: whoever asks selects narrow columns."""
        members = list(segments)
        for one in members:
            self.bytes[one.partition] += one.size_bytes
        return self.table.where(any_of(slice_ranges(self.snapshot.files, [span_of([one]) for one in members])))

    def special(self, files: Callable[[Files], NDArray[np.bool_]], *, from_start: bool = False) -> DataFrame | None:
        """Return the narrow columns of the files in range that may hold control rows, horizons or producers; None when there are none.

        In range is what the round looks at, or, `from_start`, what lies below the log start too and waits for retention.
        """
        all_files = self.snapshot.files
        mine = files_of(all_files, self.chosen, from_start=from_start) & files(all_files)
        columns = ("partition", "segment", "offset", "control", "producer_id", "txn_first_offset", "delete_horizon")
        return self.few(self.files(mine).select(*columns)) if mine.any() else None

    def files(self, files: NDArray[np.bool_]) -> DataFrame:
        """Return all rows of the slices that some files are of."""
        return self.table.where(any_of(ranges_of(self.snapshot.files, files)))

    def few(self, rows: DataFrame) -> DataFrame:
        """Return rows in as many tasks as the round may use."""
        return rows if self.parallelism is None else rows.coalesce(self.parallelism)

    def lane(self, rows: DataFrame, *, shared: bool) -> DataFrame:
        """Return rows of a lane in the task that takes it: what groups them by partition needs no shuffle then."""
        return self.few(rows) if shared else rows.coalesce(1)

    def hold(self, rows: DataFrame) -> DataFrame:
        """Keep rows that are asked for more than once, until `release`."""
        held = rows.persist(StorageLevel.MEMORY_AND_DISK)
        self._held.append(held)
        return held

    def release(self, rows: DataFrame | None = None) -> None:
        """Let go of rows that `hold` returned, or of all that are held."""
        for one in [one for one in self._held if rows is None or one is rows]:
            one.unpersist()
            self._held.remove(one)

    def forget(self) -> None:
        """Let go of plans that are over, and of the maps that they sent to every task, in the JVM too.

        Python's proxies of Java objects are cycles: otherwise all of it would live until Python happens to look for cycles.
        """
        gc.collect()
