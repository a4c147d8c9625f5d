"""A table as its Delta log says it is: its files with their deletion vectors, its columns, protocol, and the position of its reader.

```
 checkpoint 40     all files, transaction versions, metadata, protocol
 41.json …         the commits since, one by one                            → TableState at 43
```

delta-rs does not say which vectors the files have, so the Delta log is read here. Each commit is looked at once: who made it, and whether
it changes rows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import pyarrow.parquet as pq
from pyarrow import fs

from lastword.compaction.errors import CorruptLog
from lastword.storage.delta.history import CommitMetadata, commit_actions, commit_file
from lastword.storage.delta.tables import list_delta_log, newest_checkpoint
from lastword.storage.files.paths import storage_faults
from lastword.storage.tables.statistics import null_count, row_count
from lastword.storage.tables.vectors import Vector

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: What our commits to a table are called in their metadata begins so.
KIND: Final = "table"
#: What an erasure is called from a table that others changed.
ERASURE_OF_CHANGED: Final = "erase-changed"
#: Checkpoints of any form, such as those of the feature v2Checkpoint.
_COMMIT_OR_CHECKPOINT: Final = re.compile(r"\d{20}\.(json$|checkpoint\.)")
_ACTIONS: Final = ("add", "txn", "metaData", "protocol")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFile:
    """A data file of a table; `stats` are Delta's, as JSON text."""

    path: str
    size_bytes: int
    stats: str | None
    partition_values: Mapping[str, str | None]
    vector: Vector | None = None

    @property
    def rows(self) -> int | None:
        """How many rows it has, deleted ones too; None if its statistics do not say."""
        return row_count(self.stats)

    @property
    def deleted_rows(self) -> int:
        """How many of its rows are deleted."""
        return 0 if self.vector is None else self.vector.cardinality

    def has_only_nulls(self, column: str) -> bool:
        """Tell whether its statistics say that no row has a value in a column."""
        return self.rows is not None and null_count(self.stats, column) == self.rows

    @property
    def identity(self) -> tuple[str, str | None]:
        """What tells which rows it holds: files never change, vectors do."""
        return self.path, None if self.vector is None else self.vector.identity


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCommit:
    """A commit of a table: `metadata` if it is ours, and what it changes."""

    version: int
    metadata: CommitMetadata | None
    operation: str
    changes_rows: bool
    changes_files: bool
    changes_table: bool

    @property
    def is_ours(self) -> bool:
        """Whether lastword made it, in this process or in another one."""
        return self.metadata is not None and self.metadata.kind.startswith(KIND)

    @property
    def is_of_unchanged(self) -> bool:
        """Whether others had done no harm before it: an erasure is made whatever they did."""
        return self.metadata is not None and self.is_ours and self.metadata.kind != f"{KIND}-{ERASURE_OF_CHANGED}"

    @staticmethod
    def of(version: int, actions: Sequence[Mapping[str, Any]]) -> TableCommit:
        """Return what the actions of a commit say."""
        info: Mapping[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
        files = [action.get("add") or action["remove"] for action in actions if "add" in action or "remove" in action]
        return TableCommit(
            version=version,
            metadata=CommitMetadata.from_json(info.get("userMetadata")),
            operation=str(info.get("operation") or "unknown operation"),
            changes_rows=any(body.get("dataChange", True) for body in files),
            changes_files=bool(files),
            changes_table=any("metaData" in action or "protocol" in action for action in actions),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """A table at a version. `metadata` and `protocol` are the bodies of these actions, `files` are by path.

    `stale` are files of which another vector was removed than the one that they have: a commit on which a later one was planned is gone.
    """

    version: int
    metadata: Mapping[str, Any]
    protocol: Mapping[str, Any]
    files: Mapping[str, TableFile]
    transactions: Mapping[str, int]
    stale: tuple[TableFile, ...] = ()

    @property
    def configuration(self) -> Mapping[str, str]:
        """The properties of the table."""
        properties: Mapping[str, str] = self.metadata.get("configuration") or {}
        return properties

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The partition columns, as readers see their names."""
        return tuple(self.metadata.get("partitionColumns") or ())

    @property
    def features(self) -> frozenset[str]:
        """The features that the table asks of its readers and writers."""
        return frozenset([*(self.protocol.get("readerFeatures") or ()), *(self.protocol.get("writerFeatures") or ())])

    @property
    def takes_vectors(self) -> bool:
        """Whether rows may be marked as deleted: its readers know vectors, and it is set to get them."""
        is_set = self.configuration.get("delta.enableDeletionVectors", "").lower() == "true"
        return is_set and "deletionVectors" in self.features

    @property
    def live_rows(self) -> int:
        """How many rows it has, as far as the statistics say."""
        return sum((file.rows or 0) - file.deleted_rows for file in self.files.values())

    def after(self, version: int, actions: Iterable[Mapping[str, Any]]) -> TableState:
        """Return the state after a commit."""
        files, transactions, stale = dict(self.files), dict(self.transactions), list(self.stale)
        state, added = self, list[TableFile]()
        for action in actions:
            ((kind, body),) = action.items()
            if kind == "remove":
                gone = _file({"size": None, **body})  # the add of the same file with another vector comes after it
                left = [file for file in stale if file.identity != gone.identity]
                if len(left) < len(stale):
                    stale = left
                elif gone.path in files and files.pop(gone.path).identity != gone.identity:
                    stale.append(self.files[gone.path])
            elif kind == "add":
                added.append(_file(body))
            elif kind == "txn":
                transactions[body["appId"]] = body["version"]
            elif kind == "metaData":
                state = replace(state, metadata=body)
            elif kind == "protocol":
                state = replace(state, protocol=body)
        for file in added:
            before = files.get(file.path, file)
            stale += [before] if before.identity != file.identity else []
            files[file.path] = file
        return replace(state, version=version, files=files, transactions=transactions, stale=tuple(stale))


_NOTHING: Final = TableState(version=-1, metadata={}, protocol={}, files={}, transactions={})


def read_state(filesystem: fs.FileSystem) -> TableState | None:
    """Return a table at its newest version; None when there is no table.

    Raises `CorruptLog` for a Delta log that cannot be read, `OSError` when the storage gives no answer.
    """
    log_files = list_delta_log(filesystem)
    begin = _checkpoint(filesystem, log_files)
    state, _ = follow(filesystem, _NOTHING if begin is None else begin)
    newest = max((int(name[:20]) for name in log_files if _COMMIT_OR_CHECKPOINT.match(name)), default=-1)
    if state.version < newest or (state.version >= 0 and (not state.metadata or not state.protocol)):
        message = (
            f"the Delta log goes up to version {newest}, but its commits up to version {state.version + 1} are gone, and no checkpoint of "
            "them is there that lastword reads"
        )
        raise CorruptLog(message)
    return None if state.version < 0 else state


def follow(filesystem: fs.FileSystem, state: TableState) -> tuple[TableState, list[TableCommit]]:
    """Return a table at its newest version from an older one, and the commits in between."""
    commits = list[TableCommit]()
    while True:
        try:
            actions = commit_actions(filesystem, state.version + 1)
        except FileNotFoundError:
            return state, commits
        state = state.after(state.version + 1, actions)
        commits.append(TableCommit.of(state.version, actions))


def is_known(filesystem: fs.FileSystem, state: TableState) -> bool:
    """Tell whether the commit of a state is still in the Delta log: if it was cleaned away, newer ones may be, too."""
    return bool(filesystem.get_file_info(commit_file(state.version)).type != fs.FileType.NotFound)


def commits_back_to_ours(filesystem: fs.FileSystem, version: int) -> tuple[list[TableCommit], TableCommit | None]:
    """Return the commits up to a version that are not ours, newest first, and the last one of ours below them, of an unchanged table.

    None if that one is gone.
    """
    others = list[TableCommit]()
    for at in range(version, -1, -1):
        try:
            commit = TableCommit.of(at, commit_actions(filesystem, at))
        except FileNotFoundError:
            return others, None
        if commit.is_of_unchanged:
            return others, commit
        others += [] if commit.is_ours else [commit]
    return others, None


def _checkpoint(filesystem: fs.FileSystem, log_files: Sequence[str]) -> TableState | None:
    version, paths = newest_checkpoint(log_files)
    if version < 0:
        return None
    state, actions = _NOTHING, list[dict[str, Any]]()
    for path in paths:
        with storage_faults(path), filesystem.open_input_file(path) as source:
            file = pq.ParquetFile(source)
            named = [name for name in _ACTIONS if name in file.schema_arrow.names]
            for row in file.read(columns=named).to_pylist():
                actions += [{name: _plain(row[name])} for name in named if row[name] is not None]
    return state.after(version, actions)


def _plain(body: dict[str, Any]) -> dict[str, Any]:
    """Return an action of a checkpoint as a commit has it: maps are lists of pairs there."""
    maps: dict[str, Any] = {name: dict(body[name]) for name in ("partitionValues", "configuration") if isinstance(body.get(name), list)}
    if "format" in body:
        maps["format"] = {"provider": body["format"]["provider"], "options": dict(body["format"].get("options") or ())}
    return {name: value for name, value in body.items() if value is not None} | maps


def _file(body: Mapping[str, Any]) -> TableFile:
    return TableFile(
        path=unquote(body["path"]),
        size_bytes=body["size"],
        stats=body.get("stats"),
        partition_values=body.get("partitionValues") or {},
        vector=Vector.of_action(body.get("deletionVector")),
    )
