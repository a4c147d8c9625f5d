"""Upkeep of a table: the same rows in fewer files, checkpoints, and files that no reader needs.

```
 small files, or many rows deleted      a b c d   →   e          one commit that changes no row for Delta's streams
 100 commits since the last one         checkpoint, and commits that are older than delta.logRetentionDuration go
 files and vectors that left the table  deleted after delta.deletedFileRetentionDuration
```

VACUUM of delta-rs is not called: it never deletes a vector, or, as a full one, those that are read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from pyarrow import fs

from lastword.storage.delta.history import commit_actions
from lastword.storage.tables.partitioning import is_hidden
from lastword.storage.tables.vectors import FOLDER, Vector

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lastword.storage.tables.table_state import TableFile, TableState

_DAY_MS: Final = 86_400_000
_UNITS_MS: Final = {"millisecond": 1, "second": 1000, "minute": 60_000, "hour": 3_600_000, "day": _DAY_MS, "week": 7 * _DAY_MS}
_INTERVAL: Final = re.compile(r"(?:interval\s+)?(\d+)\s+([a-z]+?)s?", re.IGNORECASE)
#: What a step calls its data files.
_DATA_FILE: Final = re.compile(r"part-[0-9a-f-]{36}\.parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeLimits:
    """When files are written again: at least `min_files` of fewer than `small_rows` rows, or one of which `deleted_share` is deleted.

    A file that is written has up to `max_rows` rows, from files of up to `max_bytes`.
    """

    min_files: int = 8
    small_rows: int = 100_000
    deleted_share: float = 0.3
    max_rows: int = 1_000_000
    max_bytes: int = 128 * 2**20
    checkpoint_commits: int = 100


def plan_merges(files: Iterable[TableFile], limits: MergeLimits) -> list[list[TableFile]]:
    """Return groups of files of one partition that are each to be written again as one; one whose rows are not known is left alone."""
    by_partition = dict[tuple[tuple[str, str | None], ...], list["TableFile"]]()
    for file in files:
        by_partition.setdefault(tuple(sorted(file.partition_values.items())), []).append(file)
    return [group for mine in by_partition.values() for group in _plan_merges(mine, limits)]


def _plan_merges(files: Iterable[TableFile], limits: MergeLimits) -> list[list[TableFile]]:
    known = [(file, file.rows - file.deleted_rows) for file in files if file.rows is not None]
    small = [(file, live) for file, live in known if live < limits.small_rows]
    spread = [
        (file, live) for file, live in known if live >= limits.small_rows and file.deleted_rows > limits.deleted_share * (file.rows or 0)
    ]
    groups, held, rows, size = list[list["TableFile"]](), list["TableFile"](), 0, 0
    wasted = [(file, live) for file, live in small if file.deleted_rows > limits.deleted_share * (file.rows or 0)]
    merged = small if len(small) >= limits.min_files else wasted
    for file, live in sorted([*merged, *spread], key=lambda file: (file[1], file[0].path)):
        if held and (rows + live > limits.max_rows or size + file.size_bytes > limits.max_bytes):
            groups.append(held)
            held, rows, size = [], 0, 0
        held.append(file)
        rows, size = rows + live, size + file.size_bytes
    return [*groups, held] if held else groups


def interval_ms(configuration: Mapping[str, str], name: str, default_ms: int) -> int:
    """Return a duration that a property of a table names, `interval 1 days`, in milliseconds."""
    matched = _INTERVAL.fullmatch(configuration.get(name, "").strip())
    return int(matched[1]) * _UNITS_MS[matched[2].lower()] if matched and matched[2].lower() in _UNITS_MS else default_ms


def unused_files(filesystem: fs.FileSystem, state: TableState, *, now_ms: int) -> list[str]:
    """Return the data files and files of vectors that left the table before the time that its readers have, and those of no commit.

    Nothing where the Delta log does not reach back so far: what was removed last is not known then.
    """
    before_ms = now_ms - interval_ms(state.configuration, "delta.deletedFileRetentionDuration", 7 * _DAY_MS)
    in_folders = bool(state.partition_by)
    listed = filesystem.get_file_info(fs.FileSelector("", recursive=in_folders))
    listed += [] if in_folders else filesystem.get_file_info(fs.FileSelector(FOLDER, allow_not_found=True))
    used = {*state.files, *(file.vector.path for file in state.files.values() if file.vector is not None)}
    old = {
        file.path
        for file in listed
        if file.type == fs.FileType.File
        and (file.path.startswith(f"{FOLDER}/") or (not is_hidden(file.path) and _DATA_FILE.fullmatch(file.base_name)))
        and file.path not in used
        and file.mtime is not None
        and file.mtime.timestamp() * 1000 < before_ms
    }
    if not old:
        return []
    recent = _removed_since(filesystem, state.version, before_ms)
    return [] if recent is None else sorted(old - recent)


def _removed_since(filesystem: fs.FileSystem, version: int, since_ms: int) -> set[str] | None:
    """Return what the commits since a moment removed, vectors too; None if they are not all there."""
    removed = set[str]()
    for at in range(version, -1, -1):
        try:
            actions = commit_actions(filesystem, at)
        except FileNotFoundError:
            return None
        if any(action["commitInfo"].get("timestamp", since_ms) < since_ms for action in actions if "commitInfo" in action):
            return removed
        for action in actions:
            if "remove" in action:
                vector = Vector.of_action(action["remove"].get("deletionVector"))
                removed |= {unquote(action["remove"]["path"]), *([vector.path] if vector is not None and vector.path else [])}
    return removed
