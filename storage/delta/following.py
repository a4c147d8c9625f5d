"""A snapshot of the newest table version from an older one: the commits that came since, applied to its files.

```
 snapshot   version 7: a b c d                 60,000 files, read from the Delta log once
 commits    8: +e    9: -b -c +f    10: txn    read from _delta_log/….json
 followed   version 10: a f d e                the same arrays as `LogSnapshot.of` returns, without reading the other files again
```

The cost is that of the commits, and a copy of the arrays. `follow` returns None where a full read is needed: too many commits, a commit
that is gone or that holds actions which are not applied here (metadata, protocol, deletion vectors), a file without statistics, a removal
of a file that is not in the snapshot.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from pyarrow import fs

from lastword.storage.delta.history import commit_actions, commit_file
from lastword.storage.delta.snapshot import ABSENT, APPEND_APP_ID, MAINTENANCE_APP_ID, Files
from lastword.storage.files.schema import PLACE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from lastword.storage.delta.snapshot import LogSnapshot

#: More commits than this are not applied one by one: a full read costs less.
_MAX_COMMITS: Final = 100
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MILLISECOND: Final = timedelta(milliseconds=1)
#: Fields of an add and of a remove that are read, or change nothing here. Any other one that is not null may change what a file holds.
_ADD_FIELDS: Final = frozenset({"path", "partitionValues", "size", "modificationTime", "dataChange", "stats", "tags"})
_REMOVE_FIELDS: Final = _ADD_FIELDS | {"deletionTimestamp", "extendedFileMetadata"}
_NUMBERS: Final = tuple(attribute.name for attribute in fields(Files) if attribute.name not in {"path", "max_sequence"})
#: What orders the files of a snapshot.
_ORDER: Final = ("partition", "segment", "slice", "first_offset")


class _NotApplicable(Exception):
    """A commit that is not applied here: the log must be read in full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """The snapshot of the newest version, and the application ids that commits after the older one raised, with their versions."""

    snapshot: LogSnapshot
    transactions: Mapping[str, int]


def follow(log: fs.FileSystem, snapshot: LogSnapshot, *, max_commits: int = _MAX_COMMITS) -> Followed | None:
    """Return the snapshot of the newest table version, made from an older one; None when the log must be read in full.

    `log` holds the files of the log table. The result equals `LogSnapshot.of` at that version. More than `max_commits` are not applied.
    """
    try:
        commits = _commits_after(log, snapshot.version, max_commits)
        return _apply(snapshot, commits) if commits else Followed(snapshot=snapshot, transactions={})
    except (_NotApplicable, OSError, ValueError, KeyError, TypeError, AttributeError):  # the full read names what is wrong
        return None


def _commits_after(log: fs.FileSystem, version: int, max_commits: int) -> list[list[dict[str, Any]]]:
    """Return the actions of each commit after a version; raise `_NotApplicable` when there are more than `max_commits`."""
    commits: list[list[dict[str, Any]]] = []
    while True:
        try:
            commits.append(commit_actions(log, version + 1 + len(commits)))
        except FileNotFoundError:
            break
        if len(commits) > max_commits:
            raise _NotApplicable
    # Delta removes old commits: where that of the snapshot is gone, the next ones may be gone too while there are newer ones.
    if not commits and log.get_file_info(commit_file(version)).type == fs.FileType.NotFound:
        raise _NotApplicable
    return commits


@dataclass(slots=True)
class _Changes:
    """What commits change: the files that they add, the places of all files that they add or remove, transaction versions."""

    added: dict[str, dict[str, int]] = field(default_factory=dict)
    #: The highest source sequence of each file that has one.
    sequences: dict[str, str] = field(default_factory=dict)
    places: dict[str, tuple[int, ...]] = field(default_factory=dict)
    #: Removed before any of the commits added them: they must be in the snapshot.
    removed: set[str] = field(default_factory=set)
    transactions: dict[str, int] = field(default_factory=dict)

    def take(self, actions: Sequence[Mapping[str, Any]]) -> None:
        """Add the actions of the next commit."""
        paths = set()
        for action in actions:
            ((kind, body),) = action.items()
            if kind == "txn":
                self.transactions[body["appId"]] = body["version"]
            elif kind in {"add", "remove"}:
                path = _path(body, _ADD_FIELDS if kind == "add" else _REMOVE_FIELDS)
                if path in paths:
                    raise _NotApplicable
                paths.add(path)
                self._take_file(kind, path, body)
            elif kind != "commitInfo":
                raise _NotApplicable

    def _take_file(self, kind: str, path: str, body: Mapping[str, Any]) -> None:
        place = tuple(int(body["partitionValues"][name]) for name in PLACE_COLUMNS)
        if kind == "add":
            stats = json.loads(body["stats"])
            self.added[path] = dict(zip(PLACE_COLUMNS, place, strict=True)) | _statistics(stats, _number(body["size"]))
            self.sequences[path] = stats["maxValues"].get("source_sequence") or ""
        elif path not in self.places:
            self.removed.add(path)
        elif self.added.pop(path, None) is None:
            raise _NotApplicable
        self.places[path] = place


def _path(body: Mapping[str, Any], known: frozenset[str]) -> str:
    """Return the path of an add or remove; it is URL-encoded, which changes nothing in the paths that lastword gives."""
    path: str = body["path"]
    if "%" in path or ":" in path or any(name not in known and value is not None for name, value in body.items()):
        raise _NotApplicable
    return path


def _statistics(stats: Mapping[str, Any], size_bytes: int) -> dict[str, int]:
    """Return the columns of numbers of a file in `Files` that do not come from its place."""
    least, greatest, nulls = stats["minValues"], stats["maxValues"], stats["nullCount"]
    records = _number(stats["numRecords"])
    producer_id = greatest.get("producer_id")
    return {
        "size_bytes": size_bytes,
        "record_count": records,
        "first_offset": _number(least["offset"]),
        "last_offset": _number(greatest["offset"]),
        "min_timestamp_ms": _millis(least.get("timestamp")),
        "max_timestamp_ms": _millis(greatest.get("timestamp")),
        "appended_at_ms": _millis(least.get("appended_at")),
        "delete_horizon_ms": _millis(least.get("delete_horizon")),
        "empty_rows": _number(nulls["timestamp"]),
        "producer_rows": records - _number(nulls["producer_id"]),
        "max_producer_id": ABSENT if producer_id is None else _number(producer_id),
    }


def _number(value: object) -> int:
    if type(value) is not int:
        raise _NotApplicable
    return value


def _millis(text: str | None) -> int:
    """Return a timestamp of Delta's statistics in milliseconds, rounded down."""
    if text is None:
        return ABSENT
    return (datetime.fromisoformat(text.replace("Z", "+00:00")) - _EPOCH) // _MILLISECOND


def _apply(snapshot: LogSnapshot, commits: Sequence[Sequence[Mapping[str, Any]]]) -> Followed:
    changes = _Changes()
    for actions in commits:
        changes.take(actions)
    files = snapshot.files
    leaving = [index for path, place in changes.places.items() if (index := _index(files, path, place, changes)) is not None]
    if leaving:
        files = files.select(np.delete(np.arange(len(files.path)), leaving))
    if changes.added:
        files = _insert_files(files, changes.added, changes.sequences)
    transactions = changes.transactions
    return Followed(
        snapshot=replace(
            snapshot,
            version=snapshot.version + len(commits),
            append_txn=transactions.get(APPEND_APP_ID, snapshot.append_txn),
            maintenance_txn=transactions.get(MAINTENANCE_APP_ID, snapshot.maintenance_txn),
            files=files,
        ),
        transactions=transactions,
    )


def _index(files: Files, path: str, place: tuple[int, ...], changes: _Changes) -> int | None:
    """Return the index of a file, None if it is not in the snapshot."""
    begin, end = _range(files, place)
    indexes: list[int] = (begin + np.flatnonzero(files.path[begin:end] == path)).tolist() if begin < end else []
    if not indexes and path in changes.removed:
        raise _NotApplicable
    return indexes[0] if indexes else None


def _range(files: Files, key: tuple[int, ...]) -> tuple[int, int]:
    """Return where the files with a (partition, segment, slice, first offset) begin and end; the key may stop before its last parts."""
    begin, end = 0, len(files.path)
    for name, value in zip(_ORDER, key, strict=False):
        column = getattr(files, name)[begin:end]
        begin, end = begin + int(column.searchsorted(value)), begin + int(column.searchsorted(value, side="right"))
    return begin, end


def _insert_files(files: Files, added: Mapping[str, Mapping[str, int]], sequences: Mapping[str, str]) -> Files:
    """Return the files with new ones in their places; two files of one slice with the same first offset are in no order of ours."""
    rows = sorted((tuple(row[name] for name in _ORDER), path) for path, row in added.items())
    ranges = [_range(files, key) for key, _ in rows]
    if len({key for key, _ in rows}) < len(rows) or any(begin < end for begin, end in ranges):
        raise _NotApplicable
    count, positions = len(files.path), np.array([begin for begin, _ in ranges])
    order = np.insert(np.arange(count), positions, count + np.arange(len(rows)))
    columns: dict[str, NDArray[Any]] = {
        name: np.concatenate([getattr(files, name), np.array([added[path][name] for _, path in rows], dtype=np.int64)])[order]
        for name in _NUMBERS
    }
    paths = np.concatenate([files.path, np.array([path for _, path in rows], dtype=object)])[order]
    highest = np.concatenate([files.max_sequence, np.array([sequences[path] for _, path in rows], dtype=object)])[order]
    return Files(path=paths, max_sequence=highest, **columns)
