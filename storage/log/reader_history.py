"""What happened to a log that a reader cannot see in its rows: tombstones that cleanings removed, RESTOREs that took records back.

```
 version     41      42       43        44       45          46
 commit      append  clean    append    clean    append      RESTORE to 43
 tombstone           ≤ 17               ≤ 30                 44 is void: what it removed is back
 taken back                                                  44, 45: the log ends where it ended at 43
```

Receipts are in the ledger, and in the `userMetadata` of swaps whose receipt a crash kept from it; RESTOREs are in the ledger once the
service has looked back, and in the history of the log at once. Both are read here: a reader has no service to ask. Nothing runs Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltalake.exceptions import DeltaError

from lastword.compaction.log.restores import Restore, is_contained
from lastword.compaction.read_positions import RemovedTombstone, TakenBack
from lastword.storage.delta.history import commits_since, telling
from lastword.storage.delta.snapshot import LogSnapshot
from lastword.storage.delta.tables import open_table
from lastword.storage.ledger.decisions import highest_tombstone

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltalake import DeltaTable

    from lastword.storage.delta.history import Commit
    from lastword.storage.ledger.decisions import Decisions


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderHistory:
    """What `lastword.compaction.read_positions.missed_ranges` asks of the versions after `since_version`, up to `version`."""

    since_version: int
    version: int
    tombstones: tuple[RemovedTombstone, ...]
    restores: tuple[TakenBack, ...]


class HistoryWatch:
    """The history of one log for one reader that asks again and again: each commit of the log is looked at once."""

    def __init__(self, storage_options: Mapping[str, str] | None = None, *, purges: bool = True) -> None:
        """Know nothing yet; `storage_options` are those of the log. Without `purges` their tombstones do not count (registered targets)."""
        self._options = storage_options
        self._told = "highest_removed_tombstone" if purges else "highest_expired_tombstone"
        self._since = -1
        self._looked_at = -1
        self._commits: list[Commit] = []
        self._taken_back: dict[int, TakenBack] = {}

    def look(self, table: DeltaTable, decisions: Decisions, since_version: int, *, version: int | None = None) -> ReaderHistory:
        """Return what happened after `since_version` up to `version`, by default the version that `table` has loaded."""
        version = table.version() if version is None else version
        if self._looked_at < 0 or since_version < self._since or version < self._looked_at:
            self._since, self._looked_at, self._commits = since_version, max(since_version, decisions.looked_at_version), []
        if version > self._looked_at:
            self._commits += telling(commits_since(table, self._looked_at, version))
            self._looked_at = version
        for restore in _restores(decisions, since_version, version, self._commits):
            if restore.version not in self._taken_back:
                self._taken_back[restore.version] = _taken_back(restore, table, decisions.partitions, self._options)
        return ReaderHistory(
            since_version=since_version,
            version=version,
            tombstones=tuple(_tombstones(decisions, since_version, version, self._commits, self._told)),
            restores=tuple(self._taken_back[at] for at in sorted(self._taken_back) if since_version < at <= version),
        )


def _restores(decisions: Decisions, since_version: int, version: int, commits: Sequence[Commit]) -> list[Restore]:
    """Return the RESTOREs of ledger and commits after `since_version`, oldest first."""
    restores = {restore.version: restore for restore in decisions.restores}
    for commit in commits:
        if commit.restored_version is not None:
            restores[commit.version] = Restore(version=commit.version, restored_version=commit.restored_version)
    return [restores[at] for at in sorted(restores) if since_version < at <= version]


def _tombstones(decisions: Decisions, since_version: int, version: int, commits: Sequence[Commit], field: str) -> list[RemovedTombstone]:
    """Return the tombstones that went after `since_version` and did not come back; `told` is the field of a receipt that names them."""
    highest = {
        (row.table_version or 0, row.partition or 0): highest_tombstone(row.details, field)
        for rows in decisions.cleanings.values()
        for row in rows
        if since_version < (row.table_version or 0) <= version
    }
    for commit in commits:
        for receipt in commit.metadata.receipts if commit.metadata is not None else ():
            highest[commit.version, receipt["partition"]] = highest_tombstone(receipt, field)
    undone = _restores(decisions, -1, version, commits)
    return [
        RemovedTombstone(table_version=at, partition=partition, offset=offset)
        for (at, partition), offset in sorted(highest.items(), key=lambda entry: entry[0])
        if since_version < at <= version and offset is not None and is_contained(undone, at)
    ]


def _taken_back(restore: Restore, table: DeltaTable, partitions: int, storage_options: Mapping[str, str] | None) -> TakenBack:
    options = dict(storage_options or {})
    try:
        left = LogSnapshot.of(open_table(table.table_uri, options, version=restore.version))
    except (DeltaError, FileNotFoundError):  # the Delta log keeps its history for some days only
        ends = None
    else:
        ends = tuple(left.log_end_offsets(partitions))
    return TakenBack(table_version=restore.version, restored_version=restore.restored_version, log_end_offsets=ends)
