"""Segments put in the place of others: one commit that names exactly the slices that go.

```
 members     0: 0,40,70   100: 100,130     200: 200          groups [0, 100] and [200]
 written     0: 0                          200: 200          a group takes the label and the base of its first member
 replaced    slices 0 to 200 of partition 0                   neighbours with no slice between them are one range (`slice_ranges`)
```

What is left of a group is one ordered file, a slice. It is several where one would be larger than is good for the task that writes it:

```
 members     0: 0,40,70 of 100 MiB each    100: 100          group [0, 100], at most 256 MiB a slice
 written     0: 0,70                                         slice 0 from 0 and 40, slice 70 from 70 and 100
```

A task sorts what it writes, on disk in runs, and holds a buffer for each run until it ends. So tasks write in turns, a job each, of about
`MOST_BYTES` a task, as far as what is left is known before: the memory that a rewrite needs does not grow with what is rewritten. A file
that was appended larger, or is to be one slice, is written in one go. Turns and slices are smaller where the cleaner is to be slow, and it
waits between them (`lastword.compaction.planning.throttle`).
"""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F

from lastword.compaction.errors import PartitionUncleanable
from lastword.compaction.planning.grouping import pieces
from lastword.storage.cleaning.judged import joined
from lastword.storage.cleaning.lanes import divided, spread
from lastword.storage.delta.commit import commit_swap
from lastword.storage.delta.slice_ranges import any_of, files_in, slice_ranges
from lastword.storage.files.schema import LOG_COLUMNS, PLACE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from pyspark.sql import DataFrame, SparkSession

    from lastword.compaction.log.segments import Segment
    from lastword.compaction.planning.throttle import Pace
    from lastword.storage.delta.snapshot import LogSnapshot
    from lastword.storage.log.topic_log import TopicLog

#: What a task writes in a turn, and what one of several slices of a group may hold, in bytes of Parquet. A turn costs half a second more.
MOST_BYTES: Final = 128 * 2**20
#: However slow the cleaner is to be, no smaller slice is cut: to open a file costs a reader as much (spark.sql.files.openCostInBytes).
_LEAST_BYTES: Final = 4 * 2**20

_TARGETS: Final = pa.schema(
    [
        ("__partition", pa.int32()),
        ("__member", pa.int64()),
        ("__first", pa.int64()),
        ("__last", pa.int64()),
        ("__segment", pa.int64()),
        ("__task", pa.int32()),
    ]
)
_IN_TARGET: Final = "partition = __partition AND segment = __member AND slice BETWEEN __first AND __last"
_PLACE: Final = {"segment": "__segment AS segment", "slice": "__first AS slice"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """A slice to be written into the segment `label`, from the slices `first_slice` to `last_slice`, which are of the segments `members`.

    `read_bytes` of them are read again, and about `left_bytes` written.
    """

    partition: int
    label: int
    members: Sequence[int]
    first_slice: int
    last_slice: int
    read_bytes: int
    left_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """Groups of segments by partition, each to become one segment that takes the label and the base of its first member.

    `read` tells which files of the snapshot are read again, `rows` returns what some of them leave (log columns), and `left_bytes` is about
    how much that is, by file; 0 of one that is not read. A group becomes one slice, or, if it need not be `one_slice`, slices of at most
    `MOST_BYTES` each, or less at a slow `pace`. `parallelism` limits the tasks at a time.
    """

    log: TopicLog
    spark: SparkSession
    snapshot: LogSnapshot
    groups: Mapping[int, list[Sequence[Segment]]]
    rows: Callable[[NDArray[np.bool_]], DataFrame]
    read: NDArray[np.bool_]
    left_bytes: NDArray[np.int64]
    one_slice: bool
    parallelism: int | None
    pace: Pace

    def commit(self, kind: str, receipts: Sequence[Mapping[str, Any]] = ()) -> int:
        """Write the groups in the place of their members in one commit, and return the version. Errors as `commit_swap`."""
        return commit_swap(
            self.spark,
            self._turns(),
            self.log.paths.log,
            self.snapshot,
            kind=kind,
            receipts=receipts,
            find=self.log.committed_at,
            codec=self.log.config().compression_type,
        )

    def _turns(self) -> Iterator[tuple[DataFrame, str]]:
        """Return of each turn the rows and the condition of the slices that they replace."""
        targets = [one for partition, mine in self.groups.items() for one in self._targets(partition, mine)]
        for number, piece in enumerate(self._pieces(targets)):
            if number:
                gc.collect()  # what the last turn sent to every task can go: Python's proxies of Java objects are cycles
            turn = targets[piece.start : piece.stop]
            self.pace.spend(sum(one.read_bytes + one.left_bytes for one in turn))
            yield self._written(turn), any_of(slice_ranges(self.snapshot.files, [_span(one) for one in turn]))

    def _pieces(self, targets: Sequence[_Target]) -> list[range]:
        """Return which targets are written in each turn."""
        most = MOST_BYTES * (self.parallelism or self.spark.sparkContext.defaultParallelism)
        # What is larger counts as much as another one: a turn has a target for each task at least.
        sizes = [min(one.left_bytes, MOST_BYTES) for one in targets]
        if self.pace.turn_bytes is not None:
            paced = [(one.read_bytes + one.left_bytes) * most // self.pace.turn_bytes for one in targets]
            sizes = [max(both) for both in zip(sizes, paced, strict=True)]
        return pieces(sizes, most)

    def _slice_bytes(self, read_bytes: int, left_bytes: int) -> int:
        """Return the most that a slice of a group may hold of which so much is read and left."""
        if self.pace.turn_bytes is None:
            return MOST_BYTES
        return min(MOST_BYTES, max(_LEAST_BYTES, self.pace.turn_bytes * left_bytes // max(1, read_bytes + left_bytes)))

    def _targets(self, partition: int, groups: Sequence[Sequence[Segment]]) -> Iterator[_Target]:
        """Return the slices that are written for each group of a partition, in order.

        Raises `PartitionUncleanable` when others lie between a group's: slices would be replaced that were not read.
        """
        files = self.snapshot.files
        mine = np.flatnonzero(files.partition == partition)
        slices, which = np.unique(files.slice[mine], return_inverse=True)
        left, read = (
            np.bincount(which, np.where(self.read[mine], of_file[mine], 0)).astype(np.int64)
            for of_file in (self.left_bytes, files.size_bytes)
        )
        for group in groups:
            first = int(np.searchsorted(slices, group[0].slices[0]))
            end = int(np.searchsorted(slices, group[-1].slices[-1])) + 1
            planned = [one for segment in group for one in segment.slices]
            if slices[first:end].tolist() != planned:
                segments = f"segments {[segment.label for segment in group]} with slices {planned}"
                message = f"topic {self.log.name} partition {partition}: where {segments} are, slices {slices[first:end].tolist()} lie"
                raise PartitionUncleanable(message)
            most = self._slice_bytes(int(read[first:end].sum()), int(left[first:end].sum()))
            cuts = [range(end - first)]
            if not self.one_slice and left[first:end].sum() > most:
                cuts = pieces(left[first:end].tolist(), most)
            for one in cuts:
                at = slice(first + one.start, first + one.stop)
                first_slice, last_slice = int(slices[at][0]), int(slices[at][-1])
                yield _Target(
                    partition=partition,
                    label=group[0].label,
                    members=[one.label for one in group if one.slices[0] <= last_slice and first_slice <= one.slices[-1]],
                    first_slice=first_slice,
                    last_slice=last_slice,
                    read_bytes=int(read[at].sum()),
                    left_bytes=int(left[at].sum()),
                )

    def _written(self, turn: Sequence[_Target]) -> DataFrame:
        """Return what is written in a turn: every target in order, and by one task."""
        lanes, shared = divided(self.spark, ((one.partition, one.read_bytes) for one in turn), self.parallelism)
        tasks = min(len(turn), self.parallelism or 2 * self.spark.sparkContext.defaultParallelism) if shared else len(lanes)
        target = F.broadcast(_table(self.spark, turn, spread([one.read_bytes + one.left_bytes for one in turn], tasks)))
        files = [self.read & files_in(self.snapshot.files, [_span(one) for one in turn if one.partition in lane]) for lane in lanes]
        parts = [self.rows(one) for one in files]
        if shared and tasks > 1:
            few = parts[0] if self.parallelism is None else parts[0].coalesce(self.parallelism)
            placed = few.join(target, F.expr(_IN_TARGET)).repartitionById(tasks, F.col("__task"))
        else:
            placed = joined([one.coalesce(1) for one in parts]).join(target, F.expr(_IN_TARGET))
        written = placed.selectExpr(*[_PLACE.get(name, name) for name in LOG_COLUMNS])
        return written.sortWithinPartitions(*PLACE_COLUMNS, "offset")


def _span(one: _Target) -> tuple[int, int, int]:
    return one.partition, one.first_slice, one.last_slice


def _table(spark: SparkSession, turn: Sequence[_Target], tasks: Sequence[int]) -> DataFrame:
    """Return where the rows of each member of the targets go.

    From Arrow it is part of the plan; from tuples a job would have to bring it in.
    """
    rows = [
        (one.partition, member, one.first_slice, one.last_slice, one.label, task)
        for one, task in zip(turn, tasks, strict=True)
        for member in one.members
    ]
    columns = zip(_TARGETS, zip(*rows, strict=True), strict=True)
    return spark.createDataFrame(pa.table([pa.array(values, one.type) for one, values in columns], schema=_TARGETS))
