"""Every commit to a table of ours: by the public Delta protocol, put only where no commit of that version exists.

```
 version      7       8        9       10
              plan    append   swap    ← ours, planned at 7: exactly here or not at all
```

`put_commit` makes each of them. The ledger and the dead letters are committed through `lastword.storage.delta.small_tables`.

The commits of a log are of two families, *appends* and *maintenance* (swap, retention, deletion). Each has an application id whose
version every commit of the family raises. A commit is planned at a version V and made at the newest version W. Between the two

* the own family must not have moved: else `CommitConflict`, plan again;
* the other family may have: appends write slices of their own, maintenance removes only files of the snapshot that it was planned with;
* a commit that is not ours must not have touched a file or the table's metadata (an OPTIMIZE, a RESTORE): else `CommitConflict`, so that
  the next plan sees what it did.

The commit is put at W + 1 if that version is absent, on a local disk as on an object store; if another writer was first, W is read
again. Commits of the log on a local disk are written here, all others by delta-rs. After an error of unknown outcome the newer commits are
searched for our token. Found: committed. Not found: not committed. The table cannot be read: `CommitStateUnknown`. On a local disk the
commit is flushed to the disk before it counts.
"""

from __future__ import annotations

import errno
import os
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, CommitProperties, PostCommitHookProperties, RemoveAction, Transaction
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from lastword.compaction.errors import CommitConflict, CommitStateUnknown
from lastword.storage.delta.history import CommitMetadata, commit_actions, find_token, table_files
from lastword.storage.delta.local_commit import commit_text, put_text
from lastword.storage.delta.tables import txn_version
from lastword.storage.files.data_files import sync_folder
from lastword.storage.files.locations import local_path
from lastword.storage.files.paths import filesystem_of, storage_faults
from lastword.storage.files.schema import PLACE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import numpy as np
    from deltalake import DeltaTable
    from numpy.typing import NDArray
    from pyarrow import fs

    from lastword.storage.delta.snapshot import Files, LogSnapshot
    from lastword.storage.files.data_files import DataFile

T = TypeVar("T")
#: How often another writer may be first at the version that a commit is put at.
_ATTEMPTS: Final = 100
#: What delta-rs says of a version that it has loaded, and that it leaves out when it lists the log again (lastword.storage.delta.tables).
_NOT_LISTED: Final = "Invalid table version"
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


def action_time_ms() -> int:
    """Return when a file comes or leaves, in milliseconds by the wall clock, as Delta's actions say it: VACUUM goes by it."""
    return int(time.time() * 1000)


def new_token() -> str:
    """Return a token that no other commit carries."""
    return uuid.uuid4().hex


def put_commit(
    refreshed: Callable[[], DeltaTable],
    check: Callable[[DeltaTable, int], None],
    actions: Sequence[AddAction | RemoveAction],
    *,
    metadata: CommitMetadata,
    transactions: Mapping[str, int],
    planned_version: int = -1,
    attempts: int = _ATTEMPTS,
) -> int:
    """Put one commit into a table, whichever table of ours it is, and return its version: exactly there, or nowhere.

    `refreshed` returns the table at its newest version. `check(table, since_version)` is asked before each try whether the plan still holds
    at the version that `table` has loaded, of which those up to `since_version` (at first `planned_version`) were looked at before; it
    raises `CommitConflict` when it does not. `transactions` are the versions of application ids that the commit sets.

    Raises `CommitConflict` as `check` does, or when other writers are first at `attempts` versions: nothing of ours is in the table;
    `CommitStateUnknown` when that cannot be found out. Any other error of the write is raised as it came, after the table was searched and
    did not have the commit.
    """
    properties = CommitProperties(
        custom_metadata={"userMetadata": metadata.to_json()},
        max_commit_retries=0,
        app_transactions=[Transaction(name, version) for name, version in transactions.items()],
    )
    # A checkpoint is written here only where no service does it (`delta.checkpointInterval`).
    hooks = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)
    checked = planned_version
    for attempt in range(attempts):
        table = refreshed()
        check(table, checked)
        checked = table.version()
        try:
            with storage_faults(table.table_uri):
                table.create_write_transaction(
                    list(actions), "append", table.schema(), commit_properties=properties, post_commithook_properties=hooks
                )
        except Exception as failure:
            found = _find(refreshed, metadata.token, checked)
            if found is not None:
                return flush_commit(table.table_uri, found)
            if isinstance(failure, DeltaError) and str(failure).startswith(_NOT_LISTED):
                message = f"{table.table_uri}: {failure}; nothing of this commit was written"
                raise OSError(errno.EIO, message) from failure
            # Another commit at this version was first; anything else is no race, and would be no other at the next version.
            if not isinstance(failure, CommitFailedError) or refreshed().version() <= checked:
                raise
            time.sleep(min(0.001 * attempt, 0.05))
        else:
            return flush_commit(table.table_uri, checked + 1)
    message = f"{refreshed().table_uri}: other writers were first at {attempts} versions; nothing of this commit was written"
    raise CommitConflict(message)


def commit_files(
    refreshed: Callable[[], DeltaTable],
    snapshot: LogSnapshot,
    *,
    family: str,
    metadata: CommitMetadata,
    adds: Sequence[DataFile],
    removes: NDArray[np.bool_] | None = None,
    transactions: Mapping[str, int] | None = None,
    newest: Callable[[], LogSnapshot] | None = None,
    attempts: int = _ATTEMPTS,
) -> int:
    """Commit files to the log in one commit and return its table version.

    `snapshot` is what the files were planned with, of whose files `removes` are to leave the table. An append (no `removes`) is a change of
    data for Delta's streams; maintenance is none. `transactions` are versions of further application ids, such as a streaming query's
    micro-batch. `refreshed` and errors as in `put_commit`; `CommitConflict` when the plan is an old one. With `newest`, which returns the
    newest snapshot, the commit of a table on a local disk is written here (`_put_local_commit`).
    """
    expected = snapshot.txn(family)
    removed = [] if removes is None else _removed(snapshot.files, removes)
    added = [_added(one, data_change=removes is None) for one in adds]
    versions = {**(transactions or {}), family: expected + 1}
    folder = local_path(snapshot.location) if newest is not None and snapshot.location and snapshot.is_plain else None
    if newest is not None and folder is not None:
        return _put_local_commit(
            folder, newest, snapshot, family, [*removed, *added], metadata=metadata, transactions=versions, attempts=attempts
        )

    def check(table: DeltaTable, since: int) -> None:
        newest_txn = txn_version(table, family)
        _check_plan(snapshot, family, table_files(table), newest_version=table.version(), newest_txn=newest_txn, since_version=since)

    return put_commit(
        refreshed, check, [*removed, *added], metadata=metadata, transactions=versions, planned_version=snapshot.version, attempts=attempts
    )


def _put_local_commit(
    folder: Path,
    newest: Callable[[], LogSnapshot],
    snapshot: LogSnapshot,
    family: str,
    actions: Sequence[AddAction | RemoveAction],
    *,
    metadata: CommitMetadata,
    transactions: Mapping[str, int],
    attempts: int,
) -> int:
    """Put one commit into the log on a local disk, as `put_commit` does, and return its version.

    delta-rs lists all of the Delta log for each commit, and replays the table's files; here a commit is one small file, whatever the table
    holds (docs/adr/0036). The file is whole and on the disk before it has its name, and a name is given once (a hard link, as delta-rs
    does it).
    """
    checked, files = snapshot.version, filesystem_of(str(folder), {})
    text = commit_text(actions, user_metadata=metadata.to_json(), time_ms=action_time_ms(), transactions=transactions)
    for attempt in range(attempts):
        now = newest()
        if not now.is_plain:
            message = f"{folder}: another writer changed the table's protocol or properties; nothing of this commit was written"
            raise CommitConflict(message)
        _check_plan(snapshot, family, files, newest_version=now.version, newest_txn=now.txn(family), since_version=checked)
        checked = now.version
        if put_text(folder / "_delta_log", f"{checked + 1:020}.json", text):
            return flush_commit(str(folder), checked + 1)
        time.sleep(min(0.001 * attempt, 0.05))
    message = f"{folder}: other writers were first at {attempts} versions; nothing of this commit was written"
    raise CommitConflict(message)


def _added(file: DataFile, *, data_change: bool) -> AddAction:
    places = {name: str(getattr(file, name)) for name in PLACE_COLUMNS}
    return AddAction(file.path, file.size_bytes, places, action_time_ms(), data_change, file.stats)


def _removed(files: Files, which: NDArray[np.bool_]) -> list[RemoveAction]:
    now_ms = action_time_ms()
    columns = (files.path[which], files.size_bytes[which].tolist(), *(getattr(files, name)[which].tolist() for name in PLACE_COLUMNS))
    return [
        RemoveAction(path, False, now_ms, size, dict(zip(PLACE_COLUMNS, map(str, place), strict=True)))  # noqa: FBT003  no change of data
        for path, size, *place in zip(*columns, strict=True)
    ]


def _check_plan(
    snapshot: LogSnapshot, family: str, files: fs.FileSystem, *, newest_version: int, newest_txn: int, since_version: int
) -> None:
    """Raise `CommitConflict` if a commit makes the plan of a snapshot an old one; those up to `since_version` were looked at before."""
    location = snapshot.location
    if newest_txn != snapshot.txn(family):
        message = f"{location}: another commit of {family} came after table version {snapshot.version}; nothing of this one was written"
        raise CommitConflict(message)
    for number in range(since_version + 1, newest_version + 1):
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
    info: Mapping[str, Any] = next((one["commitInfo"] for one in actions if "commitInfo" in one), {})
    return CommitMetadata.from_json(info.get("userMetadata")) is not None or all(set(one) <= _HARMLESS for one in actions)


def _operation(actions: Sequence[Mapping[str, Any]]) -> str:
    return str(next((one["commitInfo"].get("operation") for one in actions if "commitInfo" in one), None) or "unknown operation")


def _find(refreshed: Callable[[], DeltaTable], token: str, since_version: int) -> int | None:
    """Return the version of the commit that carries our token; None when there is none."""
    try:
        return find_token(refreshed(), token, since_version)
    except Exception as error:
        message = (
            f"whether the commit after table version {since_version} was written cannot be found out ({error}); "
            "stop, and let the next start look at the table"
        )
        raise CommitStateUnknown(message) from error


def flush_commit(location: str, version: int) -> int:
    """Flush a commit to a local disk and return its version: the power may fail after it counts."""
    folder = local_path(location)
    if folder is None:
        return version
    log = folder / "_delta_log"
    try:
        with (log / f"{version:020}.json").open("rb") as stream:
            os.fsync(stream.fileno())
        sync_folder(log)
    except OSError as error:
        message = f"{location}: the commit is written as table version {version}, but could not be flushed to the disk: {error}"
        raise CommitStateUnknown(message) from error
    return version


def flush_delta_log(location: str, *, since_version: int) -> None:
    """Flush to a local disk what deltalake writes into a Delta log by itself, commits of VACUUM and checkpoints, from a version on."""
    folder = local_path(location)
    if folder is None:
        return
    log = folder / "_delta_log"
    for one in log.iterdir():
        if one.name == "_last_checkpoint" or (one.name[:20].isdigit() and int(one.name[:20]) >= since_version):
            with suppress(FileNotFoundError), one.open("rb") as stream:  # another process may clean up
                os.fsync(stream.fileno())
    sync_folder(log)
