"""Commits to the small tables of a topic, the ledger and the dead letters, whose files have no partitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import CommitProperties, Schema, Transaction
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

from lastword.compaction.errors import CommitConflict
from lastword.storage.delta.commit import action_time_ms, flush_commit, new_token, put_commit
from lastword.storage.delta.history import CommitMetadata
from lastword.storage.delta.tables import txn_version
from lastword.storage.files.paths import storage_faults
from lastword.storage.files.row_files import RowFile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from deltalake import DeltaTable


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
    """Make a table with its first files in one commit; raises what deltalake raises when there is one already."""
    with storage_faults(location):
        create_table_with_add_actions(
            location,
            schema,
            [_added(one, None) for one in adds],
            mode="error",
            configuration=dict(properties),
            storage_options=dict(storage_options),
            commit_properties=CommitProperties(
                custom_metadata={"userMetadata": CommitMetadata(token=new_token(), kind=kind).to_json()},
                max_commit_retries=0,
                app_transactions=[Transaction(version.app_id, version.next)],
            ),
        )
    flush_commit(location, 0)


def commit_rows(
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

    `refreshed` as in `lastword.storage.delta.commit.put_commit`. Raises `CommitConflict` where `version` is another than expected, or a
    file to be removed is gone, or where `planned_version` is given and the table has moved on: nothing was written then.
    """

    def check(table: DeltaTable, _since_version: int) -> None:
        came_between = version is not None and txn_version(table, version.app_id) != version.expected
        moved = planned_version is not None and table.version() != planned_version
        gone = removes and {one.path for one in removes} - {one.path for one in current_files(table)}
        if came_between or moved or gone:
            message = f"{table.table_uri}: another commit came before version {table.version() + 1}; nothing of this one was written"
            raise CommitConflict(message)

    now_ms = action_time_ms()
    removed = [RemoveAction(one.path, True, now_ms, one.size_bytes, None) for one in removes]  # noqa: FBT003  a change of data
    return put_commit(
        refreshed,
        check,
        [*removed, *(_added(one, time_column) for one in adds)],
        metadata=CommitMetadata(token=new_token(), kind=kind),
        transactions={} if version is None else {version.app_id: version.next},
    )


def current_files(table: DeltaTable, time_column: str | None = None) -> list[RowFile]:
    """Return the files of the version that `table` has loaded; `time_ms` is the greatest value of `time_column`, where it is known."""
    actions = pa.table(table.get_add_actions(flatten=True))
    names = actions.schema.names
    times = [None] * len(actions)
    if time_column is not None and f"max.{time_column}" in names:
        micros = actions.column(f"max.{time_column}").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        times = [None if one is None else one // 1000 for one in micros.to_pylist()]
    counts = actions.column("num_records").to_pylist() if "num_records" in names else [None] * len(actions)
    return [
        RowFile(path=path, size_bytes=size, record_count=count or 0, time_ms=time_ms)
        for path, size, count, time_ms in zip(
            actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist(), counts, times, strict=True
        )
    ]


def _added(file: RowFile, time_column: str | None) -> AddAction:
    return AddAction(file.path, file.size_bytes, {}, action_time_ms(), True, file.stats(time_column))  # noqa: FBT003
