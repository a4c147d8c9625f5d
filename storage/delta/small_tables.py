"""Commits to the small tables of a topic, the ledger and the dead letters, whose files have no partitions."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake.exceptions import DeltaError

from lastword.compaction.errors import CommitConflict, CorruptLog
from lastword.storage.delta.commit import new_token, put_commit
from lastword.storage.delta.commit_text import Add, Remove
from lastword.storage.delta.history import CommitMetadata
from lastword.storage.delta.protocol import check_features, check_removes, unknown_features
from lastword.storage.delta.tables import checkpoint_interval, make_table, txn_version, write_checkpoint
from lastword.storage.files.row_files import RowFile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from deltalake import DeltaTable, Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class AppVersion:
    """A compare-and-set: the commit raises the version of an application id from `expected` to `next`."""

    app_id: str
    expected: int
    next: int


def create_small_table(
    location: str,
    storage_options: Mapping[str, str],
    schema: Schema,
    properties: Mapping[str, str],
    adds: Sequence[RowFile],
    *,
    kind: str,
    version: AppVersion,
) -> None:
    """Make a table with its first files in one commit; raise `FileExistsError` when there is one already."""
    make_table(
        location,
        storage_options,
        schema,
        properties,
        files=[_add(file, None) for file in adds],
        metadata=CommitMetadata(token=new_token(), kind=kind),
        transactions={version.app_id: version.next},
    )


def commit_rows(
    location: str,
    storage_options: Mapping[str, str],
    refreshed: Callable[[], DeltaTable],
    adds: Sequence[RowFile],
    *,
    kind: str,
    version: AppVersion | None = None,
    removes: Sequence[RowFile] = (),
    planned_version: int | None = None,
    time_column: str | None = None,
) -> int:
    """Commit files to a small table, and take others out of it, in one commit; return the table version.

    `refreshed` returns the table at its newest version. Raises `CommitConflict` where `version` is another than expected, or a file to be
    removed is gone, or where `planned_version` is given and the table has moved on: nothing was written then. The commits that end an
    interval of `delta.checkpointInterval` write a checkpoint.
    """
    interval = 0

    def checked_version() -> int:
        nonlocal interval
        table = refreshed()
        came_between = version is not None and txn_version(table, version.app_id) != version.expected
        moved = planned_version is not None and table.version() != planned_version
        gone = removes and {file.path for file in removes} - {file.path for file in current_files(table)}
        if came_between or moved or gone:
            message = f"{location}: another commit came before version {table.version() + 1}; nothing of this one was written"
            raise CommitConflict(message)
        check_features(location, unknown_features(table))
        if removes:
            check_removes(table)
        interval = checkpoint_interval(table)
        return table.version()

    removed = [Remove(path=file.path, size_bytes=file.size_bytes, data_change=True, partition_values={}) for file in removes]
    committed = put_commit(
        location,
        storage_options,
        checked_version,
        [*removed, *(_add(file, time_column) for file in adds)],
        metadata=CommitMetadata(token=new_token(), kind=kind),
        transactions={} if version is None else {version.app_id: version.next},
    )
    if (committed + 1) % interval == 0:
        with suppress(DeltaError, OSError, CorruptLog):  # the commit counts without it, and a later one has its own
            write_checkpoint(refreshed(), storage_options)
    return committed


def current_files(table: DeltaTable, time_column: str | None = None) -> list[RowFile]:
    """Return the files of the version that `table` has loaded; `time_ms` is the greatest value of `time_column`, where it is known."""
    actions = pa.table(table.get_add_actions(flatten=True))
    names = actions.schema.names
    times = [None] * len(actions)
    if time_column is not None and f"max.{time_column}" in names:
        micros = actions.column(f"max.{time_column}").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        times = [None if micro is None else micro // 1000 for micro in micros.to_pylist()]
    counts = actions.column("num_records").to_pylist() if "num_records" in names else [None] * len(actions)
    return [
        RowFile(path=path, size_bytes=size, record_count=count or 0, time_ms=time_ms)
        for path, size, count, time_ms in zip(
            actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist(), counts, times, strict=True
        )
    ]


def _add(file: RowFile, time_column: str | None) -> Add:
    return Add(path=file.path, size_bytes=file.size_bytes, stats=file.stats(time_column), data_change=True, partition_values={})
