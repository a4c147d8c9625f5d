"""Runs pieces of work of a cleaning or a table: in threads of this process, or in tasks of a Spark cluster; one decision, by bytes.

Little work is done in this process: it needs no Spark job. Work of many bytes goes to the executors, if the session has any, a task a
row of a DataFrame under `mapInArrow`; each returns what it wrote. Work with a limit of bytes a second stays here, one task after the other,
because it waits most of the time.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from lastword.storage.progress import work

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lastword.compaction.planning.rate_limiter import Spend

T_co = TypeVar("T_co", covariant=True)
#: How often a task reads or writes its bytes at most: keys, records, what is left of them.
_PASSES: Final = 3


class Task(Protocol[T_co]):
    """A piece of work: a small picklable value that runs anywhere; what it returns is metadata."""

    @property
    def size_bytes(self) -> int:
        """How many bytes of files it looks at."""

    def run(self, spend: Spend, /) -> T_co:
        """Do it."""


class Cluster(Protocol):
    """Where tasks may be spread to: the executors of a Spark session."""

    @property
    def has_executors(self) -> bool:
        """Whether there are any besides this process."""

    def run(self, tasks: Sequence[Task[T_co]], parallelism: int | None) -> list[T_co]:
        """Run tasks, the largest first, and return what each did, in their order; raise what one of them raised."""


def run_tasks(
    tasks: Sequence[Task[T_co]],
    spend: Spend,
    *,
    what: str,
    is_limited: bool,
    cluster: Cluster | None,
    parallelism: int | None,
    spread_bytes: int,
) -> list[T_co]:
    """Run tasks, and return what each did, in their order. What the first task to fail raises is raised when all have ended.

    `what` names the work where its progress is shown (`lastword.storage.progress`); on a cluster Spark shows it.

    Tasks that look at `spread_bytes` or more together run on the executors of the cluster, if there are any. With a limit of bytes a
    second (`is_limited`) one task at a time is fast enough.
    """
    size = sum(task.size_bytes for task in tasks)
    if cluster is not None and not is_limited and size >= spread_bytes and len(tasks) > 1 and cluster.has_executors:
        return cluster.run(tasks, parallelism)
    workers = 1 if is_limited else min(len(tasks), parallelism or os.cpu_count() or 1)
    with work(what, total=size, unit="B") as advance:
        if workers <= 1:
            return [_run_task(task, spend, advance) for task in tasks]
        with ThreadPoolExecutor(workers, "task") as threads:
            return list(threads.map(lambda task: _run_task(task, spend, advance), tasks))


def _run_task(task: Task[T_co], spend: Spend, advance: Callable[[float], None]) -> T_co:
    """Run a task, whose progress is about what it has spent of its passes over its bytes."""
    left = task.size_bytes

    def spend_and_advance(counted_bytes: int) -> None:
        nonlocal left
        spend(counted_bytes)
        step = min(left, counted_bytes // _PASSES)
        left -= step
        advance(step)

    done = task.run(spend_and_advance)
    advance(left)
    return done
