"""Where a target stands, and what others did to it: read from its Delta log, without Spark.

```
 version   commit                                                  examined up to
 7         step 3, by us: position [3, 9], steps 3                 7
 8         OPTIMIZE, by somebody: the same rows in other files     8
 9         DELETE, by somebody: the table is not what we left      8, and an error that names version 9
```

A step's `userMetadata` holds its position, its number, and the version up to which the commits of others had been examined. Delta deletes
old commits. So the newest state is also kept in `_lastword/position.json` in the folder of the table, which VACUUM leaves alone. It counts
while Delta's transaction version of the target, which never expires, is the number of its step; otherwise the newest commit of ours does.

A commit of others is harmless if no file that it adds or removes changes data (`dataChange`): OPTIMIZE, VACUUM, REORG, settings, new
columns. Any other one is found by that alone, whatever its operation is called. If the files are again the ones that we left, as after a
DELETE that was taken back by RESTORE, there was no harm either. Commits that Delta has deleted before we examined them may have done
anything, unless the files are the same.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from deltalake.exceptions import TableNotFoundError

from lastword.compaction.read_positions import Position
from lastword.storage.delta.history import commit_actions, table_files
from lastword.storage.delta.tables import open_table
from lastword.storage.files.json_files import read_json_file, write_json_file
from lastword.storage.files.locations import local_path
from lastword.storage.files.paths import filesystem_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltalake import DeltaTable

#: The application id of the steps.
APP_ID: Final = "lastword-materialize"
_KEPT: Final = "_lastword/position.json"
#: Counts the shapes that the kept file has had.
_FORMAT: Final = 1
_CONSTRAINT: Final = "delta.constraints."
_APPEND_ONLY: Final = "delta.appendOnly"
#: With it Delta forgets transaction versions, and with them which step was taken.
_FORGETS: Final = "delta.setTransactionRetentionDuration"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus:
    """Where a target stands: the position that its rows are right for, and the number of steps that it has taken.

    `fenced_version`: what was planned at an older table version of the log must not be applied any more, as a purge came between.
    `examined`: the version of the target up to which the commits of others did no harm.
    """

    position: Position
    steps: int
    fenced_version: int = field(default=-1, compare=False)
    examined: int = field(default=-1, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Whose target a table is: the topic, and whether it keeps every word (`history`)."""

    topic_id: str
    history: bool


class TargetState:
    """The Delta log of one target, and the file beside it."""

    def __init__(self, location: str, owner: Owner, storage_options: Mapping[str, str]) -> None:
        """Look at the table at `location` as a target of `owner`; nothing is read yet."""
        self._location, self._owner, self._options = location, owner, dict(storage_options)

    def table(self) -> DeltaTable | None:
        """Return the table as it is now; None when there is none. Raises `UserError` for one that cannot be read."""
        try:
            return open_table(self._location, self._options)
        except TableNotFoundError:
            return None

    def metadata(self, standing: TableStatus) -> str:
        """Return the `userMetadata` of the commit with which a target comes to stand there."""
        body = _body(self._owner) | {
            "position": json.loads(standing.position.to_json()),
            "steps": standing.steps,
            "examined": standing.examined,
        }
        body |= {"fenced_version": standing.fenced_version} if standing.fenced_version >= 0 else {}
        return json.dumps(body, separators=(",", ":"))

    def erasure_metadata(self) -> str:
        """Return the `userMetadata` of a commit of ours that changes rows and takes no step."""
        return json.dumps(_body(self._owner) | {"erasure": True}, separators=(",", ":"))

    def owner(self, table: DeltaTable) -> Owner | None:
        """Return whose target a table is; None when nothing says that it is one."""
        kept = self._kept(table)
        if kept is not None:
            return _owner_of(kept)
        found = _newest(table, with_position=False)
        return None if found is None else _owner_of(found[1])

    def standing(self, table: DeltaTable) -> TableStatus | None:
        """Return where a table of the owner stands; None when it does not say, or is another one's."""
        steps = table.transaction_version(APP_ID)
        kept = self._kept(table)
        if steps is None:
            return None
        if kept is not None and kept["steps"] == steps:
            return None if _owner_of(kept) != self._owner else _standing(kept, steps, kept["examined"])
        found = _newest(table, with_position=True)
        if found is None or _owner_of(found[1]) != self._owner or found[1].get("steps", steps) != steps:
            return None
        return _standing(found[1], steps, found[1].get("examined", found[0]))

    def committed(self, table: DeltaTable, standing: TableStatus) -> TableStatus | None:
        """Return where the target stands if the commit that brings it there is in the table, and keep that; None if it is not."""
        if table.transaction_version(APP_ID) != standing.steps:
            return None
        for version in range(table.version(), standing.examined, -1):
            body = _metadata(_commit_info(commit_actions(table_files(table), version)).get("userMetadata"))
            if body is None or "position" not in body:
                continue
            if _owner_of(body) != self._owner or _standing(body, body.get("steps", -1), -1) != standing:
                return None
            # A commit of somebody else that lies before it is yet to be examined.
            found = replace(standing, examined=version if version == standing.examined + 1 else standing.examined)
            self.keep(table, found)
            return found
        return None

    def keep(self, table: DeltaTable, standing: TableStatus) -> None:
        """Keep where the target stands in the file beside it."""
        body = json.loads(self.metadata(standing)) | {"format": _FORMAT, "table_id": table.metadata().id}
        body["files"] = _files_of(table) if standing.examined == table.version() else None
        filesystem = filesystem_of(self._location, self._options)
        write_json_file(filesystem, _KEPT, body, unfinished=_KEPT if local_path(self._location) is None else f"{_KEPT}.new")

    def harm(self, table: DeltaTable, standing: TableStatus) -> str | None:
        """Return what others did since `standing.examined` by which the table is not what a step left any more; None if nothing."""
        kept = self._kept(table)
        if kept is not None and kept["steps"] == standing.steps and kept["files"] is not None and kept["files"] == _files_of(table):
            return None
        filesystem = table_files(table)
        for version in range(standing.examined + 1, table.version() + 1):
            try:
                actions = commit_actions(filesystem, version)
            except FileNotFoundError:
                return f"version {version} is not in the Delta log any more, and nobody can tell whether it changed rows"
            info = _commit_info(actions)
            body = _metadata(info.get("userMetadata"))
            if body is not None and body["topic_id"] == self._owner.topic_id:
                continue
            changed = [action[kind] for action in actions for kind in ("add", "remove") if kind in action]
            if any(one.get("dataChange", True) for one in changed):
                return f"version {version} ({info.get('operation', 'an operation without a name')}) changed its rows"
        return None

    def _kept(self, table: DeltaTable) -> dict[str, Any] | None:
        """Return what the file beside the table says, if it is there and about this table; raise `OSError` if nobody can tell now."""
        try:
            body: dict[str, Any] = read_json_file(filesystem_of(self._location, self._options), _KEPT)
            mine = (body["format"], body["table_id"]) == (_FORMAT, table.metadata().id)
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
        return body if mine and body["examined"] <= table.version() else None


def _files_of(table: DeltaTable) -> str | None:
    """Return a digest of the names of a table's files; None if deletion vectors may hide rows of them."""
    if "deletionVectors" in (table.protocol().reader_features or ()):
        return None
    return hashlib.sha256("\n".join(sorted(table.file_uris())).encode()).hexdigest()


def obstacles(table: DeltaTable) -> list[str]:
    """Return the settings of a table that keep steps from being taken, as `property = value`."""
    settings = table.metadata().configuration
    found = [key for key in settings if key.startswith(_CONSTRAINT) or key == _FORGETS]
    found += [_APPEND_ONLY] if settings.get(_APPEND_ONLY, "false").lower() == "true" else []
    return [f"{key} = {settings[key]}" for key in sorted(found)]


def _body(owner: Owner) -> dict[str, Any]:
    return {"lastword_target": 1, "topic_id": owner.topic_id, "history": owner.history}


def _owner_of(body: Mapping[str, Any]) -> Owner:
    return Owner(topic_id=str(body["topic_id"]), history=bool(body["history"]))


def _standing(body: Mapping[str, Any], steps: int, examined: int) -> TableStatus:
    position = Position.from_dict(body["position"])
    return TableStatus(position=position, steps=steps, fenced_version=body.get("fenced_version", -1), examined=examined)


def _newest(table: DeltaTable, *, with_position: bool) -> tuple[int, dict[str, Any]] | None:
    """Return the newest commit of a target, as far back as the Delta log goes: its version and metadata."""
    filesystem = table_files(table)
    for version in range(table.version(), -1, -1):
        try:
            actions = commit_actions(filesystem, version)
        except FileNotFoundError:
            return None
        body = _metadata(_commit_info(actions).get("userMetadata"))
        if body is not None and ("position" in body or not with_position):
            return version, body
    return None


def _commit_info(actions: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    return next((action["commitInfo"] for action in actions if "commitInfo" in action), {})


def _metadata(text: str | None) -> dict[str, Any] | None:
    try:
        body = json.loads(text or "")
    except ValueError:
        return None
    return body if isinstance(body, dict) and "lastword_target" in body else None
