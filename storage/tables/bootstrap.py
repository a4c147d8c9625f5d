"""Writes all rows of a table that is made or written anew: a task a partition, in threads, or on the executors of a Spark cluster.

```
 partition 0 ─► task ─► files          a task reads the latest records of its partition, some at a time, and writes their rows as files;
 partition 1 ─► task ─► files          no key comes twice, so that none is looked up
                          └─► one commit of the table names them all
```

The index of the keys is not filled: the first step reads the columns of the keys. So a bootstrap has its memory for records of several
partitions at a time, and executors return names of files alone.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from lastword.compaction.errors import LastwordError
from lastword.compaction.planning.rate_limiter import spend_freely
from lastword.storage.tables.log_rows import latest_records
from lastword.storage.tables.step_changes import StepChanges, Vectors
from lastword.storage.tables.table_log import FileChanges
from lastword.storage.tasks import run_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from lastword.change_data.columns.table_columns import RowMisfit
    from lastword.compaction.planning.rate_limiter import Spend
    from lastword.storage.reading.view import View
    from lastword.storage.tables.table_files import TableFiles
    from lastword.storage.tables.table_options import TableLimits
    from lastword.storage.tables.table_rows import RowMaker
    from lastword.storage.tables.table_state import TableFile
    from lastword.storage.tasks import Cluster

    Refuse = Callable[[pa.Table, Sequence[RowMisfit]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRows:
    """What a task wrote, or the error that ended it; its files are deleted then."""

    files: tuple[TableFile, ...] = ()
    written_rows: int = 0
    misfit_rows: int = 0
    error: Exception | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTask:
    """Writes the rows of one partition. `size_bytes` are those of the files of the log that it reads.

    `new_rows` and `new_files` make what a process has for itself. `refuse` takes records with a value that does not fit; a task that has it
    runs in the process that made it.
    """

    view: View
    partition: int
    size_bytes: int
    columns: tuple[str, ...]
    new_files: Callable[[], TableFiles]
    new_rows: Callable[[], RowMaker]
    limits: TableLimits
    refuse: Refuse | None = None

    def run(self, _spend: Spend) -> PartitionRows:
        """Write the files; no commit names them yet."""
        files = self.new_files()
        changes = StepChanges({}, files, None, Vectors(files), self.new_rows(), refuse=self.refuse)
        records = latest_records(
            self.view, self.columns, [self.partition], max_rows=self.limits.chunk_rows, max_bytes=self.limits.chunk_bytes
        )
        try:
            for chunk in records:
                changes.add(chunk)
        except BaseException as error:
            changes.discard(FileChanges())
            if isinstance(error, (LastwordError, OSError)):  # not raised, so that the files of the other tasks are known, and deleted, too
                return PartitionRows(error=error)
            raise
        written = changes.files(deletion_vectors=False).added
        return PartitionRows(files=tuple(written), written_rows=changes.written_rows, misfit_rows=changes.misfit_rows)


@dataclass(slots=True, kw_only=True)
class Bootstrap:
    """The rows of a table that is written anew. `table_files` deletes them if no commit names them."""

    tasks: Sequence[PartitionTask]
    table_files: TableFiles
    cluster: Cluster | None
    limits: TableLimits
    _done: list[PartitionRows] = field(default_factory=list)

    def run(self) -> FileChanges:
        """Run the tasks and return the files that a commit adds; raise what the first of them to fail raised.

        So many run at a time in this process that their records take no more memory than a step with its index does.
        """
        limits = self.limits
        self._done = run_tasks(
            self.tasks,
            spend_freely,
            what=f"write {self.table_files.location}",
            is_limited=any(task.refuse is not None for task in self.tasks),
            cluster=self.cluster,
            parallelism=min(os.cpu_count() or 1, 1 + limits.index_bytes // limits.chunk_bytes),
            spread_bytes=limits.spread_bytes,
        )
        for done in self._done:
            if done.error is not None:
                raise done.error
        return FileChanges(added=[file for done in self._done for file in done.files])

    def discard(self, _changes: FileChanges) -> None:
        """Delete the files, which no commit names."""
        self.table_files.delete([file.path for done in self._done for file in done.files])

    @property
    def written_rows(self) -> int:
        """Return how many rows were written."""
        return sum(done.written_rows for done in self._done)

    @property
    def deleted_rows(self) -> int:
        """Return 0: no row was there before."""
        return 0

    @property
    def misfit_rows(self) -> int:
        """Return how many records have a value that does not fit."""
        return sum(done.misfit_rows for done in self._done)


def plan_bootstrap(
    view: View,
    columns: Sequence[str],
    *,
    new_files: Callable[[], TableFiles],
    new_rows: Callable[[], RowMaker],
    limits: TableLimits,
    refuse: Refuse | None,
    cluster: Cluster | None,
) -> Bootstrap:
    """Return the tasks for the rows of a view, one a partition."""
    sizes = np.bincount(view.files.partition, weights=view.files.size_bytes, minlength=view.partitions)
    tasks = [
        PartitionTask(
            view=view,
            partition=partition,
            size_bytes=int(sizes[partition]),
            columns=tuple(columns),
            new_files=new_files,
            new_rows=new_rows,
            limits=limits,
            refuse=refuse,
        )
        for partition in range(view.partitions)
    ]
    return Bootstrap(tasks=tasks, table_files=new_files(), cluster=cluster, limits=limits)
