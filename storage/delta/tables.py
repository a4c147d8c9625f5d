"""Opening a Delta table, and following it to its newest version: the one place where delta-rs reads a Delta log.

delta-rs does not always say that the storage gave no answer. On a local disk it takes a commit that it cannot look at for one that is not
there: the newest ones are left out without a word, and one in between is a gap, which looks like damage. So

```
 an error        the Delta log is listed here, where errors have a number, and read again: damage is what is found each time
 no error        no later commit is there than the version that was read (local disk), or the table is read again
```

Errors: `TableNotFoundError` when there is no table, `CorruptLog` for damage (`DeltaError` for a version that is not there any more), and an
`OSError` with a number for the disk, the network or the store. Only the first two say something about the table.
"""

from __future__ import annotations

import errno
import json
import re
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, TypeVar

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyarrow import fs

from lastword.compaction.errors import CorruptLog, first_line, said_by_delta
from lastword.storage.delta.commit_text import action_time_ms, commit_text, first_actions
from lastword.storage.delta.history import commit_file, table_files
from lastword.storage.delta.put import put_if_absent
from lastword.storage.files.data_files import sync_folder
from lastword.storage.files.locations import local_path
from lastword.storage.files.paths import filesystem_of, storage_faults

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from deltalake import Schema

    from lastword.storage.delta.commit_text import Add
    from lastword.storage.delta.history import CommitMetadata

T = TypeVar("T")
_LOOKS: Final = 3
#: The names of commits and checkpoints.
_LOG_FILE: Final = re.compile(r"\d{20}\.")
_CHECKPOINT_INTERVAL: Final = 100
_LAST_CHECKPOINT: Final = "_delta_log/_last_checkpoint"
#: The name of a checkpoint file: the version, and if the checkpoint has several parts, which part this is and how many there are.
CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet")


def create_table(
    location: str,
    columns: Schema,
    properties: Mapping[str, str],
    storage_options: Mapping[str, str],
    *,
    partition_by: Sequence[str] = (),
) -> None:
    """Make an empty table if there is none. Errors as the module says."""
    try:
        open_table(location, storage_options)
    except TableNotFoundError:
        with suppress(FileExistsError):  # another process makes it at this moment
            make_table(location, storage_options, columns, properties, partition_by=partition_by)


def make_table(
    location: str,
    storage_options: Mapping[str, str],
    columns: Schema,
    properties: Mapping[str, str],
    *,
    partition_by: Sequence[str] = (),
    files: Sequence[Add] = (),
    metadata: CommitMetadata | None = None,
    transactions: Mapping[str, int] | None = None,
) -> None:
    """Make a table with its first files in one commit; raise `FileExistsError` when there is a table already."""
    now_ms = action_time_ms()
    make_log_folder(location)
    there = filesystem_of(location, storage_options).get_file_info(fs.FileSelector("_delta_log", allow_not_found=True))
    table = first_actions(columns, properties, partition_by=partition_by, time_ms=now_ms)
    text = commit_text(files, metadata=metadata, time_ms=now_ms, transactions=transactions or {}, table=table)
    if any(_LOG_FILE.match(file.base_name) for file in there) or not put_if_absent(location, storage_options, 0, text):
        raise FileExistsError(errno.EEXIST, "there is a table", location)


def make_log_folder(location: str) -> None:
    """Make the folder of a Delta log on a local disk; a store has no folders."""
    folder = local_path(location)
    if folder is not None:
        (folder / "_delta_log").mkdir(parents=True, exist_ok=True)
        for made in (folder, folder.parent):
            sync_folder(made)


def checkpoint_interval(table: DeltaTable) -> int:
    """Return after how many commits a table is to have a checkpoint; delta-rs' default is 100."""
    text = str(table.metadata().configuration.get("delta.checkpointInterval", ""))
    return int(text) if text.isdigit() and int(text) else _CHECKPOINT_INTERVAL


def write_checkpoint(table: DeltaTable, storage_options: Mapping[str, str]) -> None:
    """Write a checkpoint of a table at its version. Errors as the module says."""
    try:
        with storage_faults(table.table_uri):
            table.create_checkpoint()
    except DeltaError as error:  # what is there says whether that is damage
        open_table(table.table_uri, storage_options)
        raise OSError(errno.EIO, f"{table.table_uri}: no checkpoint could be written: {said_by_delta(error)}") from error


def checkpoint_version(filesystem: fs.FileSystem) -> int:
    """Return the version of the newest checkpoint, by _last_checkpoint or else by the files in the Delta log; -1 if there is none."""
    try:
        with storage_faults(_LAST_CHECKPOINT), filesystem.open_input_stream(_LAST_CHECKPOINT) as stream:
            return int(json.loads(stream.read())["version"])
    except FileNotFoundError:
        return -1
    except (ValueError, KeyError, TypeError):
        return newest_checkpoint(list_delta_log(filesystem))[0]


def list_delta_log(filesystem: fs.FileSystem) -> list[str]:
    """Return the names of the files in the Delta log of a table; none if there is no table."""
    with storage_faults("_delta_log"):
        return [file.base_name for file in filesystem.get_file_info(fs.FileSelector("_delta_log", allow_not_found=True))]


def newest_checkpoint(log_files: Sequence[str]) -> tuple[int, list[str]]:
    """Return the version and the files of the newest complete checkpoint in a Delta log; -1 and no files if there is none.

    V2 checkpoints are not recognized.
    """
    checkpoints = dict[int, dict[str, int]]()
    for name in log_files:
        matched = CHECKPOINT.fullmatch(name)
        if matched:
            checkpoints.setdefault(int(matched[1]), {})[f"_delta_log/{name}"] = int(matched[3] or 1)
    for version in sorted(checkpoints, reverse=True):
        single = [path for path, parts in checkpoints[version].items() if parts == 1]
        whole = single[:1] or (sorted(checkpoints[version]) if len(checkpoints[version]) == max(checkpoints[version].values()) else [])
        if whole:
            return version, whole
    return -1, []


def open_table(location: str, storage_options: Mapping[str, str], *, version: int | None = None) -> DeltaTable:
    """Return a table at its newest version, or at another one. Errors as the module says."""
    options = dict(storage_options)
    files = filesystem_of(location, options)
    if version is not None:
        return _read_again(lambda: DeltaTable(location, version=version, storage_options=options), location, files)
    with _corrupt_log_errors(location):
        return _at_newest(_read_again(lambda: DeltaTable(location, storage_options=options), location, files), files)


def refresh_table(table: DeltaTable) -> DeltaTable:
    """Bring a table to its newest version, and return it. Errors as the module says."""
    files = table_files(table)
    with _corrupt_log_errors(table.table_uri):
        _read_again(table.update_incremental, table.table_uri, files)
        return _at_newest(table, files)


def txn_version(table: DeltaTable, app_id: str) -> int:
    """Return the version of an application id at the loaded table version; -1 when it never committed. Errors as the module says."""
    version = _read_again(lambda: table.transaction_version(app_id), table.table_uri, table_files(table))
    return -1 if version is None else version


@contextmanager
def _corrupt_log_errors(location: str) -> Iterator[None]:
    try:
        yield
    except TableNotFoundError:
        raise
    except DeltaError as error:
        message = f"{location}: the Delta log cannot be read: {first_line(error)}"
        raise CorruptLog(message) from error


def _read_again(read: Callable[[], T], location: str, files: fs.FileSystem) -> T:
    """Do something that reads a Delta log; after an error again, if the log can be listed, and there is one."""
    for _ in range(_LOOKS - 1):
        try:
            return read()
        except (DeltaError, OSError):
            if not files.get_file_info(fs.FileSelector("_delta_log", allow_not_found=True)):
                break
    with storage_faults(location):
        return read()


def _at_newest(table: DeltaTable, files: fs.FileSystem) -> DeltaTable:
    """Return a table when no later commit is there than it knows; read it again otherwise."""
    location = table.table_uri
    for _ in range(_LOOKS if local_path(location) is not None else 0):
        version = table.version()
        if files.get_file_info(commit_file(version + 1)).type == fs.FileType.NotFound:
            break
        _read_again(table.update_incremental, location, files)
        if table.version() == version:
            message = f"{location}: table version {version + 1} is there, and cannot be looked at"
            raise OSError(errno.EIO, message)
    return table
