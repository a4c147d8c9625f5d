"""The commits of the log, from the history that Delta keeps: what each of ours carries, which are RESTOREs, and how far those went back."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyarrow import fs

from lastword.compaction.errors import CorruptLog, UnknownFormat
from lastword.storage.files.paths import filesystem_of, storage_faults

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltalake import DeltaTable

#: The format of what commits carry.
_FORMAT: Final = 1
_COMMIT: Final = re.compile(r"\d{20}\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitMetadata:
    """What every commit of ours writes into its `userMetadata`.

    `token` makes the commit recognisable as ours whatever the writer was told; `receipts` are those of a cleaning.
    """

    token: str
    kind: str
    receipts: tuple[Mapping[str, Any], ...] = ()

    def to_json(self) -> str:
        """Return the JSON text for `userMetadata`."""
        body: dict[str, Any] = {"lastword": _FORMAT, "kind": self.kind, "token": self.token}
        if self.receipts:
            body["receipts"] = [dict(receipt) for receipt in self.receipts]
        return json.dumps(body, separators=(",", ":"))

    @staticmethod
    def from_json(text: str | None) -> CommitMetadata | None:
        """Return what a commit of ours carries, None for another's; raise `UnknownFormat` for one of a later version."""
        try:
            body = json.loads(text or "")
        except ValueError:
            return None
        if not isinstance(body, dict) or not {"lastword", "token", "kind"} <= set(body):
            return None
        if body["lastword"] != _FORMAT:
            message = (
                f"a commit has metadata of format {body['lastword']}, and this version of lastword reads {_FORMAT}: a later version has "
                "written to the table. Use that version or a later one; nothing is damaged, and nothing was changed"
            )
            raise UnknownFormat(message)
        return CommitMetadata(
            token=body["token"],
            kind=body["kind"],
            receipts=tuple(body.get("receipts", ())),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One commit in the history of the log: its operation as Delta names it, and what of ours it carries, if it is ours.

    `time_ms` is Delta's time of the commit. `restored_version` is the version that a RESTORE went back to; -1 when the history does not
    say, None for every other commit.
    """

    version: int
    time_ms: int
    operation: str
    metadata: CommitMetadata | None
    restored_version: int | None = None


def commits_since(table: DeltaTable, since_version: int, until_version: int | None = None) -> list[Commit]:
    """Return the commits after `since_version` up to `until_version`, newest first; those that Delta still has and that say what they did.

    `until_version` is by default the version that `table` has loaded. Each commit is read by itself: the history of delta-rs numbers its
    entries by their place, and reads all of the log again.
    """
    filesystem = table_files(table)
    commits = []
    for version in range(table.version() if until_version is None else until_version, since_version, -1):
        try:
            info = _commit_info(filesystem, version)
        except FileNotFoundError:  # Delta removes the oldest ones
            break
        if info is not None:
            commits.append(_commit(info, version, filesystem))
    return commits


def telling(newest_first: Sequence[Commit]) -> list[Commit]:
    """Return the commits that say something which is not in the rows of the log, RESTOREs and cleanings, oldest first."""
    return [
        commit
        for commit in reversed(newest_first)
        if commit.restored_version is not None or (commit.metadata is not None and commit.metadata.receipts)
    ]


def _commit(info: Mapping[str, Any], version: int, filesystem: fs.FileSystem) -> Commit:
    return Commit(
        version=version,
        time_ms=int(info.get("timestamp", 0)),
        operation=info.get("operation", ""),
        metadata=CommitMetadata.from_json(info.get("userMetadata")),
        restored_version=_restored_version(info, version, filesystem),
    )


def _restored_version(info: Mapping[str, Any], version: int, filesystem: fs.FileSystem) -> int | None:
    """Return the version that a RESTORE went back to: named in its parameters, or the newest that had the files which it left.

    The moment of a `RESTORE … TO TIMESTAMP` is not used: it is in the time zone of the session that ran it, and Delta compares it with the
    times of its files.
    """
    if info.get("operation") != "RESTORE":
        return None
    parameters = info.get("operationParameters") or {}
    try:
        return int(parameters["version"])
    except (KeyError, TypeError, ValueError):
        return _version_of_same_files(filesystem, version)


def _version_of_same_files(filesystem: fs.FileSystem, version: int) -> int:
    """Return the newest version before `version` that had the same files, going back commit by commit; -1 when the Delta log ends before.

    ```
     commit      5: +a    6: +b    7: +c, -a    8 (RESTORE): +a, -b, -c
     differing   -        b        a c          a b c                       from 8: version 5 is the newest without any
    ```
    """
    differing: set[str] = set()
    for at in range(version, -1, -1):
        try:
            differing ^= _changed_files(filesystem, at)
        except FileNotFoundError:
            break
        if not differing:
            return at - 1
    return -1


def _changed_files(filesystem: fs.FileSystem, version: int) -> set[str]:
    """Return the paths of the files that a commit added or removed, as the Delta log writes them."""
    return {action[kind]["path"] for action in commit_actions(filesystem, version) for kind in ("add", "remove") if kind in action}


def table_files(table: DeltaTable) -> fs.FileSystem:
    """Return the files of a table's folder."""
    return filesystem_of(table.table_uri, table._storage_options or {})  # noqa: SLF001  the handle does not say it otherwise


def commit_file(version: int) -> str:
    """Return the path of a commit below the folder of its table."""
    return f"_delta_log/{version:020}.json"


def commit_actions(filesystem: fs.FileSystem, version: int) -> list[dict[str, Any]]:
    """Return the actions of a commit. Raises `CorruptLog` for one that is empty (`check_commits`)."""
    text = _read(filesystem, version)
    if not text:
        raise _empty(commit_file(version))
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def check_commits(table: DeltaTable, since_version: int | None = None) -> None:
    """Raise `CorruptLog` naming a commit that is empty: delta-rs takes it for one that changes nothing, and what it held would be lost.

    A machine that loses its power may leave such a file. All commits that are there are looked at, or those after `since_version`.
    """
    filesystem = table_files(table)
    if since_version is None:
        files = filesystem.get_file_info(fs.FileSelector("_delta_log"))
    else:
        files = filesystem.get_file_info([commit_file(version) for version in range(since_version + 1, table.version() + 1)])
    for file in files:
        if file.type == fs.FileType.File and file.size == 0 and _COMMIT.fullmatch(file.base_name):
            path = f"{table.table_uri}/_delta_log/{file.base_name}"
            raise _empty(path)


def _empty(path: str) -> CorruptLog:
    message = (
        f"{path} is empty: the machine stopped while it was written, and no writer was told that it is committed. Stop what writes to the "
        "table, delete this file if it is the newest of the folder, and start again; if it is not, restore it from a copy"
    )
    return CorruptLog(message)


def _commit_info(filesystem: fs.FileSystem, version: int) -> dict[str, Any] | None:
    """Return who wrote a commit and why; None if it does not say. Its other actions, which may be many, are not parsed."""
    text = _read(filesystem, version)
    at = text.find(b'"commitInfo"')  # inside of a value the quotes are escaped
    if at < 0:
        return None
    begin, end = text.rfind(b"\n", 0, at) + 1, text.find(b"\n", at)
    info: dict[str, Any] | None = json.loads(text[begin : len(text) if end < 0 else end]).get("commitInfo")
    return info


def _read(filesystem: fs.FileSystem, version: int) -> bytes:
    with storage_faults(commit_file(version)), filesystem.open_input_stream(commit_file(version)) as stream:
        text: bytes = stream.read()
    return text
