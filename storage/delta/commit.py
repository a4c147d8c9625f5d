"""Every commit to a table of ours, by the public Delta protocol: one text, put only where no commit of its version is.

```
 version      7       8        9       10
              plan    append   swap    ← ours, planned at 7: exactly here or not at all
```

`put_commit` makes each of them, on a local disk and on an object store: of the log by `commit_files`, of the ledger and the dead letters by
`lastword.storage.delta.small_tables`. The text is `lastword.storage.delta.commit_text`, the put `lastword.storage.delta.put`.

The commits of a log are of two families, *appends* and *maintenance* (swap, retention, deletion). Each has an application id whose
version every commit of the family raises. A commit is planned at a version V and made at the newest version W. Between the two

* the own family must not have moved: else `CommitConflict`, plan again;
* the other family may have: appends write slices of their own, maintenance removes only files of the snapshot that it was planned with;
* a commit that is not ours must not have touched a file or the table's metadata (an OPTIMIZE, a RESTORE): else `CommitConflict`, so that
  the next plan sees what it did.

The commit is put at W + 1; if another writer was first, W is read again. After an error the commit is read back, and compared with ours.
Ours: committed. Another: try again. None: not committed. No answer: `CommitStateUnknown`. On a local disk the commit is flushed to the
disk before it counts.
"""

from __future__ import annotations

import os
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from lastword.compaction.errors import CommitConflict
from lastword.storage.delta.commit_text import Add, Remove, action_time_ms, commit_text
from lastword.storage.delta.history import CommitMetadata, commit_actions
from lastword.storage.delta.protocol import check_features
from lastword.storage.delta.put import put_if_absent
from lastword.storage.files.data_files import sync_folder
from lastword.storage.files.locations import local_path
from lastword.storage.files.paths import filesystem_of
from lastword.storage.files.schema import PLACE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray
    from pyarrow import fs

    from lastword.storage.delta.snapshot import Files, LogSnapshot
    from lastword.storage.files.data_files import DataFile

T = TypeVar("T")
#: How often another writer may be first at the version that a commit is put at.
MAX_ATTEMPTS: Final = 100
#: Actions that say nothing about files or metadata.
_HARMLESS: Final = frozenset({"commitInfo", "txn"})


def retry_on_conflict(once: Callable[[], T], *, attempts: int = 10) -> T:
    """Do something that plans and commits, again from a fresh plan while commits of others come first."""
    retrying = Retrying(
        retry=retry_if_exception_type(CommitConflict),
        stop=stop_after_attempt(attempts),
        wait=wait_random_exponential(multiplier=0.05, max=2),
        reraise=True,
    )
    return retrying(once)


def new_token() -> str:
    """Return a token that no other commit carries."""
    return uuid.uuid4().hex


def put_commit(
    location: str,
    storage_options: Mapping[str, str],
    checked_version: Callable[[], int],
    files: Sequence[Add | Remove],
    *,
    metadata: CommitMetadata,
    transactions: Mapping[str, int],
    table: Sequence[Mapping[str, Any]] = (),
    operation: str = "",
    attempts: int = MAX_ATTEMPTS,
) -> int:
    """Put one commit into a table, whichever table of ours it is, and return its version: exactly there, or nowhere.

    `checked_version` returns the newest version of the table, at which the plan still holds; it is asked before each try, and raises
    `CommitConflict` when the plan does not hold. `transactions`, `table` and `operation` are those of `commit_text`.

    Raises `CommitConflict` as `checked_version` does, or when other writers are first at `attempts` versions, and `OSError` when the commit
    could not be put: nothing of ours is in the table; `CommitStateUnknown` when that cannot be found out.
    """
    text = commit_text(files, metadata=metadata, time_ms=action_time_ms(), transactions=transactions, table=table, operation=operation)
    for attempt in range(attempts):
        version = checked_version() + 1
        if put_if_absent(location, storage_options, version, text):
            return version
        time.sleep(min(0.001 * attempt, 0.05))
    message = f"{location}: other writers were first at {attempts} versions; nothing of this commit was written"
    raise CommitConflict(message)


def commit_files(
    newest: Callable[[], LogSnapshot],
    snapshot: LogSnapshot,
    storage_options: Mapping[str, str],
    *,
    family: str,
    metadata: CommitMetadata,
    adds: Sequence[DataFile],
    removes: NDArray[np.bool_] | None = None,
    transactions: Mapping[str, int] | None = None,
    attempts: int = MAX_ATTEMPTS,
) -> int:
    """Commit files to the log in one commit and return its table version.

    `snapshot` is what the files were planned with, of whose files `removes` are to leave the table; `newest` returns the newest one. An
    append (no `removes`) is a change of data for Delta's streams; maintenance is none. `transactions` are versions of further application
    ids, such as a streaming query's micro-batch. Errors as in `put_commit`; `CommitConflict` when the plan is an old one, and `CorruptLog`
    when another writer made the table one that lastword cannot write to.
    """
    leaving = [] if removes is None else _remove_actions(snapshot.files, removes)
    coming = [_add_action(file, data_change=removes is None) for file in adds]
    versions = {**(transactions or {}), family: snapshot.txn(family) + 1}
    checked = snapshot.version

    def checked_version() -> int:
        nonlocal checked
        now = newest()
        _check_plan(snapshot, family, now, storage_options, since_version=checked)
        check_features(now.location, now.unknown_features)
        checked = now.version
        return checked

    return put_commit(
        snapshot.location,
        storage_options,
        checked_version,
        [*leaving, *coming],
        metadata=metadata,
        transactions=versions,
        attempts=attempts,
    )


def _add_action(file: DataFile, *, data_change: bool) -> Add:
    places = {name: str(getattr(file, name)) for name in PLACE_COLUMNS}
    return Add(path=file.path, size_bytes=file.size_bytes, stats=file.stats, data_change=data_change, partition_values=places)


def _remove_actions(files: Files, which: NDArray[np.bool_]) -> list[Remove]:
    columns = (files.path[which], files.size_bytes[which].tolist(), *(getattr(files, name)[which].tolist() for name in PLACE_COLUMNS))
    return [
        Remove(path=path, size_bytes=size, data_change=False, partition_values=dict(zip(PLACE_COLUMNS, map(str, place), strict=True)))
        for path, size, *place in zip(*columns, strict=True)
    ]


def _check_plan(snapshot: LogSnapshot, family: str, newest: LogSnapshot, storage_options: Mapping[str, str], *, since_version: int) -> None:
    """Raise `CommitConflict` if a commit makes the plan of a snapshot an old one; those up to `since_version` were looked at before."""
    location = snapshot.location
    if newest.txn(family) != snapshot.txn(family):
        message = f"{location}: another commit of {family} came after table version {snapshot.version}; nothing of this one was written"
        raise CommitConflict(message)
    if newest.version == since_version:
        return
    files = filesystem_of(location, storage_options)
    for number in range(since_version + 1, newest.version + 1):
        actions = _actions(files, number)
        if actions is None or not _is_compatible(actions):
            what = "a commit that is gone" if actions is None else f"a commit of another writer ({_operation(actions)})"
            message = f"{location}: {what} came at table version {number}; nothing of this one was written"
            raise CommitConflict(message)


def _actions(files: fs.FileSystem, number: int) -> list[dict[str, Any]] | None:
    try:
        return commit_actions(files, number)
    except FileNotFoundError:
        return None


def _is_compatible(actions: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether a commit is ours, or says nothing about files and metadata."""
    info: Mapping[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    return CommitMetadata.from_json(info.get("userMetadata")) is not None or all(set(action) <= _HARMLESS for action in actions)


def _operation(actions: Sequence[Mapping[str, Any]]) -> str:
    return str(next((action["commitInfo"].get("operation") for action in actions if "commitInfo" in action), None) or "unknown operation")


def flush_delta_log(location: str, *, since_version: int) -> None:
    """Flush to a local disk what deltalake writes into a Delta log by itself, commits of VACUUM and checkpoints, from a version on."""
    folder = local_path(location)
    if folder is None:
        return
    log = folder / "_delta_log"
    for path in log.iterdir():
        if path.name == "_last_checkpoint" or (path.name[:20].isdigit() and int(path.name[:20]) >= since_version):
            with suppress(FileNotFoundError), path.open("rb") as stream:  # another process may clean up
                os.fsync(stream.fileno())
    sync_folder(log)
