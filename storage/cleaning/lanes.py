"""Lanes: which partitions each task of a cleaning takes.

```
 bytes of partitions   0: 40   1: 30   2: 20   3: 10          two tasks
 lanes                 {0, 3}: 50   {1, 2}: 50                each reads, maps and writes its own: no shuffle
 bytes of partitions   0: 80   1: 10                          two tasks
 lanes                 one for all                            shared between the tasks by a shuffle
```

Partitions know nothing of each other: a key lives in one of them, and so does every file. So a task that takes whole ones needs nothing
from another task. That is worth it while no task has much more to do than the others, and while the plan, which names each lane, stays
small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession

#: So little is done by one task sooner than it is divided.
ONE_LANE_BYTES: Final = 8 * 2**20
#: What the longest lane may hold, in shares of an equal division, and how many lanes a plan may name.
LONGEST: Final = 1.5
MOST_LANES: Final = 8


def spread(sizes: Sequence[int], tasks: int) -> list[int]:
    """Return the task of each thing: the largest first, each to the task with the least to do."""
    load, chosen = [0] * tasks, [0] * len(sizes)
    for at in sorted(range(len(sizes)), key=lambda one: -sizes[one]):
        chosen[at] = load.index(min(load))
        load[chosen[at]] += sizes[at]
    return chosen


def lanes(sizes: Mapping[int, int], tasks: int) -> list[frozenset[int]] | None:
    """Return the partitions of each task, from their bytes; None where tasks had better share them by a shuffle."""
    total = sum(sizes.values())
    if tasks == 1 or total <= ONE_LANE_BYTES:
        return [frozenset(sizes)]
    if tasks > MOST_LANES:
        return None
    chosen = dict(zip(sizes, spread(list(sizes.values()), tasks), strict=True))
    found = [frozenset(one for one in sizes if chosen[one] == task) for task in sorted(set(chosen.values()))]
    longest = max(sum(sizes[one] for one in lane) for lane in found)
    return found if longest * tasks <= LONGEST * total else None


def divided(spark: SparkSession, sizes: Iterable[tuple[int, int]], parallelism: int | None) -> tuple[list[frozenset[int]], bool]:
    """Return the lanes of partitions, from (partition, bytes) of all there is, and whether tasks share the one lane that it is then.

    `parallelism` limits the tasks at a time; None: as many as Spark has.
    """
    total: dict[int, int] = {}
    for partition, size in sizes:
        total[partition] = total.get(partition, 0) + size
    found = lanes(total, parallelism or spark.sparkContext.defaultParallelism)
    if found is not None and len(found) > 1 and spark.conf.get("spark.sql.unionOutputPartitioning", "true") == "true":
        found = None  # Spark would put all of them into one task
    return found or [frozenset(total)], found is None
