"""Segments put in the place of others: one ordered file a group, one commit that names exactly the slices that go.

```
 members     0: 0,40,70   100: 100,130     200: 200          groups [0, 100] and [200]
 written     0: 0                          200: 200          a group takes the label and the base of its first member
 replaced    slices 0 to 200 of partition 0                   neighbours with no slice between them are one range (`slice_ranges`)
```
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from storage.commit import commit_swap
from storage.lanes import spread
from storage.schema import LOG_COLUMNS, PLACE_COLUMNS
from storage.slice_ranges import slice_ranges

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from compaction.segments import Segment
    from storage.snapshot import LogSnapshot
    from storage.topic_log import TopicLog

_TARGETS: Final = pa.schema(
    [("partition", pa.int32()), ("segment", pa.int64()), ("__segment", pa.int64()), ("__slice", pa.int64()), ("__task", pa.int32())]
)


def rewrite(
    log: TopicLog,
    snapshot: LogSnapshot,
    parts: Sequence[DataFrame],
    groups: Mapping[int, list[Sequence[Segment]]],
    *,
    kind: str,
    receipts: Sequence[Mapping[str, Any]] = (),
    parallelism: int | None = None,
) -> int:
    """Write `parts` (log columns of the members of `groups`) as one file a group, in the place of the members, and return the version.

    A group takes the label and the base of its first member. Several parts hold whole partitions each, and each is written by one task; the
    groups of a single one are spread over tasks by a shuffle, at most `parallelism` at a time.
    """
    spark = parts[0].sparkSession
    tasks = min(sum(len(mine) for mine in groups.values()), parallelism or 2 * spark.sparkContext.defaultParallelism)
    targets = _targets(groups, tasks)
    # From Arrow they are part of the plan; from tuples a job would have to bring them in.
    columns = zip(_TARGETS, zip(*targets, strict=True), strict=True)
    target = F.broadcast(spark.createDataFrame(pa.table([pa.array(values, one.type) for one, values in columns], schema=_TARGETS)))
    placed = [one.join(target, ["partition", "segment"]) for one in parts]
    if len(parts) > 1 or tasks == 1:
        spread_out = reduce(DataFrame.union, [one.coalesce(1) for one in placed])
    else:
        rows = placed[0] if parallelism is None else placed[0].coalesce(parallelism)
        spread_out = rows.repartitionById(tasks, F.col("__task"))
    new_place = {"segment": "__segment AS segment", "slice": "__slice AS slice"}
    written = spread_out.selectExpr(*[new_place.get(name, name) for name in LOG_COLUMNS])
    written = written.sortWithinPartitions(*PLACE_COLUMNS, "offset")
    return commit_swap(
        written,
        log.paths.log,
        snapshot,
        kind=kind,
        slices=slice_ranges(
            snapshot.files,
            [(partition, group[0].slices[0], group[-1].slices[-1]) for partition, mine in groups.items() for group in mine],
        ),
        receipts=receipts,
        find=log.committed_at,
        codec=log.config().compression_type,
    )


def _targets(groups: Mapping[int, list[Sequence[Segment]]], tasks: int) -> list[tuple[int, int, int, int, int]]:
    """Return (partition, member's label, label and base of its group, task) for each member: groups spread over tasks by their bytes."""
    flat = [(partition, group) for partition, mine in groups.items() for group in mine]
    chosen = spread([sum(member.size_bytes for member in group) for _, group in flat], tasks)
    return [
        (partition, member.label, group[0].label, group[0].slices[0], task)
        for (partition, group), task in zip(flat, chosen, strict=True)
        for member in group
    ]
