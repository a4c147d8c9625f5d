"""The Delta log of one table: what others did to it, and our commits, each exactly where it was planned or nowhere.

```
 7  step       ours, token 5c…                       what this process left: looked at again before the next step
 8  OPTIMIZE   somebody's, the same rows             go on
 9  DELETE     somebody's, other rows                stop: "changed by somebody else", until the table is rebuilt
```

Others may write while a table is paused: Spark's commits are not put-if-absent, so one of them may take the place of one of ours that was
acknowledged. Then the table is read anew, and the step, whose position is not in it, is taken again. Rule: docs/tables.md.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from lastword.compaction.errors import CommitConflict, UserError
from lastword.storage.delta import crash_points
from lastword.storage.delta.commit import new_token, put_commit
from lastword.storage.delta.commit_text import Add, Remove
from lastword.storage.delta.crash_points import CrashPoint
from lastword.storage.delta.history import CommitMetadata, commit_actions
from lastword.storage.delta.tables import checkpoint_version, make_log_folder
from lastword.storage.files.paths import filesystem_of
from lastword.storage.tables.statistics import with_wide_bounds
from lastword.storage.tables.table_properties import KNOWN_FEATURES, is_obstacle
from lastword.storage.tables.table_state import (
    ERASURE_OF_CHANGED,
    KIND,
    TableCommit,
    TableFile,
    TableState,
    commits_back_to_ours,
    follow,
    is_known,
    read_state,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyarrow import fs

_MAX_VERSION_WITHOUT_FEATURES: Final = 4
#: Metadata of a column with which a writer must check or compute values.
_DEMANDS: Final = ("delta.invariants", "delta.generationExpression", "delta.identity.start")
REBUILD: Final = "rebuild=True (--rebuild) makes it again in the place of what is there"


@dataclass(slots=True)
class FileChanges:
    """What a commit does to the files of a table: new ones, ones that leave, and ones that get another deletion vector."""

    added: list[TableFile] = field(default_factory=list)
    removed: list[TableFile] = field(default_factory=list)
    #: The file as it was, and as it is.
    marked: list[tuple[TableFile, TableFile]] = field(default_factory=list)
    #: Whether a commit that names the files was put. Readers may have it, whatever happened since: its files are not to be deleted.
    is_put: bool = False

    def actions(self, *, changes_rows: bool) -> list[Add | Remove]:
        """Return the actions of the commit; `changes_rows` is false where the same rows lie in other files."""
        gone = [*self.removed, *(before for before, _ in self.marked)]
        there = [*self.added, *(after for _, after in self.marked)]
        return [
            *(
                Remove(
                    path=file.path,
                    size_bytes=file.size_bytes,
                    data_change=changes_rows,
                    partition_values=file.partition_values,
                    deletion_vector=None if file.vector is None else file.vector.action(),
                )
                for file in gone
            ),
            *(
                Add(
                    path=file.path,
                    size_bytes=file.size_bytes,
                    stats=(file.stats or "{}") if file.vector is None else with_wide_bounds(file.stats or "{}"),
                    data_change=changes_rows,
                    partition_values=file.partition_values,
                    deletion_vector=None if file.vector is None else file.vector.action(),
                )
                for file in there
            ),
        ]


class TableLog:
    """The Delta log of the table at a location, as this process has read it."""

    def __init__(self, location: str, storage_options: Mapping[str, str]) -> None:
        """Name it; nothing is read yet."""
        self.location, self._options = location, storage_options
        self.filesystem: fs.FileSystem = filesystem_of(location, storage_options)
        self._state: TableState | None = None
        #: The versions and tokens of the last two commits of this process.
        self._last: list[tuple[int, str]] = []
        #: A version of ours that another writer replaced below a later one of ours: rows of it are missing, whatever the position says.
        self._lost: int | None = None
        #: The newest state up to which the commits of others are known to have done no harm.
        self._examined: TableState | None = None

    def state(self) -> TableState | None:
        """Return the table at its newest version; None when there is none."""
        lost = [version for version, token in self._last if not self._is_still_ours(version, token)]
        if lost and lost[0] < self._last[-1][0]:
            self._lost = lost[0]
        if self._state is None or lost or not is_known(self.filesystem, self._state):
            self._state, self._last, self._examined = read_state(self.filesystem), [], None
        else:
            self._state, _ = follow(self.filesystem, self._state)
        return self._state

    def examine(self, check_owner: Callable[[TableState], None]) -> TableState | None:
        """Return the table as `state` does, after a look at whose it is, and at what others did to it.

        Raises `UserError` naming a commit that changed its rows, or a setting with which no step can be taken.
        """
        state = self.state()
        if state is None:
            return None
        check_owner(state)
        if self._lost is not None or state.stale:
            which = f"version {self._lost} of the table" if self._lost is not None else f"a version that wrote {state.stale[0].path}"
            message = f"{self.location}: {which} was replaced by another writer after steps had followed it. {REBUILD}"
            raise UserError(message)
        if self._examined is None or state.version > self._examined.version:
            self._examine(self._examined, state)
            self._check_settings(state)
            self._examined = state
        return state

    def commit(
        self,
        planned: TableState | None,
        changes: FileChanges,
        *,
        kind: str,
        operation: str,
        transactions: Mapping[str, int],
        table: Sequence[Mapping[str, Any]] = (),
        changes_rows: bool = True,
    ) -> TableState:
        """Commit changes that were planned at a state (None: there was no table), and return the state after it.

        Raises `CommitConflict` when another commit came first that changes files or the table, `OSError` when it could not be put: nothing
        of it is in the table; `CommitStateUnknown` when that cannot be found out.
        """
        newest, token = planned, new_token()
        if planned is None:
            make_log_folder(self.location)

        def checked_version() -> int:
            nonlocal newest
            if newest is None:
                if read_state(self.filesystem) is not None:
                    message = f"{self.location}: a table was made there meanwhile"
                    raise CommitConflict(message)
                return -1
            newest, commits = follow(self.filesystem, newest)
            for commit in commits:
                if commit.is_ours or commit.changes_files or commit.changes_table:
                    what = f"a commit ({commit.operation}) came at version {commit.version}"
                    message = f"{self.location}: {what}; nothing of this one was written"
                    raise CommitConflict(message)
            return newest.version

        version = put_commit(
            self.location,
            self._options,
            checked_version,
            changes.actions(changes_rows=changes_rows),
            metadata=CommitMetadata(token=token, kind=f"{KIND}-{kind}"),
            transactions=transactions,
            table=table,
            operation=operation,
        )
        changes.is_put = True
        crash_points.reached(CrashPoint.TABLE_COMMIT_PUT)
        actions = self._actions(version)
        if actions is None or _token(version, actions) != token or self._is_below_the_log(version, newest):
            self._state = None
            message = (
                f"{self.location}: another writer replaced version {version}, or cleaned it away; nothing of this commit is in the table"
            )
            raise CommitConflict(message)
        base = newest or TableState(version=-1, metadata={}, protocol={}, files={}, transactions={})
        self._state = base.after(version, actions)
        self._last = [*self._last[-1:], (version, token)]
        if kind != ERASURE_OF_CHANGED:
            self._examined = self._state
        if kind == "rebuild":
            self._lost, self._last = None, self._last[-1:]
        return self._state

    def _is_still_ours(self, version: int, token: str) -> bool:
        """Tell whether a commit of this process is there still, or was cleaned away with those before it."""
        actions = self._actions(version)
        return checkpoint_version(self.filesystem) >= version if actions is None else _token(version, actions) == token

    def _is_below_the_log(self, version: int, before: TableState | None) -> bool:
        """Tell whether a version was put where commits had been cleaned away; then the one before it is gone, too."""
        return checkpoint_version(self.filesystem) > version and (before is None or not is_known(self.filesystem, before))

    def _actions(self, version: int) -> list[dict[str, Any]] | None:
        try:
            return commit_actions(self.filesystem, version)
        except FileNotFoundError:
            return None

    def _examine(self, before: TableState | None, state: TableState) -> None:
        """Raise `UserError` for a commit of others that changed rows, unless the files are those again that we left."""
        others, ours = commits_back_to_ours(self.filesystem, state.version)
        known = before.version if before is not None else -1
        new = [commit for commit in others if commit.version > known]
        harmful = [commit for commit in new if commit.changes_rows]
        is_same = before is not None and identities(before.files.values()) == identities(state.files.values())
        if harmful and not is_same:
            first = harmful[-1]
            message = f"{self.location} was changed by somebody else: {first.operation} at version {first.version}. {REBUILD}"
            raise UserError(message)
        if ours is None and known < 0:
            message = (
                f"{self.location}: the Delta log does not go back to the last commit of lastword, so what others did to the table is not "
                f"known. {REBUILD}"
            )
            raise UserError(message)

    def _check_settings(self, state: TableState) -> None:
        stops = sorted(state.features - KNOWN_FEATURES)
        writer = int(state.protocol.get("minWriterVersion", 0))
        if not state.protocol.get("writerFeatures") and writer > _MAX_VERSION_WITHOUT_FEATURES:
            stops.append(f"writer version {writer}")
        stops += [f"{name} = {value}" for name, value in sorted(state.configuration.items()) if is_obstacle(name, value)]
        for column in json.loads(state.metadata["schemaString"])["fields"]:
            stops += [f"{name} of column {column['name']}" for name in _DEMANDS if name in column["metadata"]]
            stops += [] if column["nullable"] else [f"column {column['name']} is not null"]
        if stops:
            message = f"{self.location} takes no steps with {'; '.join(stops)}: ALTER TABLE takes it back, and {REBUILD}"
            raise UserError(message)


def _token(version: int, actions: Sequence[Mapping[str, Any]]) -> str | None:
    metadata = TableCommit.of(version, actions).metadata
    return None if metadata is None else metadata.token


def identities(files: Iterable[TableFile]) -> frozenset[Any]:
    """Return what tells which rows some files hold."""
    return frozenset(file.identity for file in files)
