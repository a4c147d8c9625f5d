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
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from pyarrow import fs

from lastword.compaction.errors import CorruptLog, first_line, said_by_delta
from lastword.storage.delta.history import commit_file, table_files
from lastword.storage.files.locations import local_path
from lastword.storage.files.paths import filesystem_of, storage_faults

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from deltalake import Schema

T = TypeVar("T")
_LOOKS: Final = 3


def create_table(
    location: str, columns: Schema, properties: Mapping[str, str], storage_options: Mapping[str, str], *, partition_by: Sequence[str] = ()
) -> None:
    """Make a table if there is none. Raises what deltalake raises when another is made at the same time; errors as the module says."""
    try:
        with storage_faults(location):
            DeltaTable.create(
                location,
                columns,
                mode="ignore",
                partition_by=list(partition_by),
                configuration=dict(properties),
                storage_options=dict(storage_options),
            )
    except CommitFailedError:
        raise
    except DeltaError as error:  # what is there says whether that is damage
        try:
            open_table(location, storage_options)
        except TableNotFoundError:
            raise OSError(errno.EIO, f"{location}: {said_by_delta(error)}") from error


def write_checkpoint(table: DeltaTable, storage_options: Mapping[str, str]) -> None:
    """Write a checkpoint of a table at its version. Errors as the module says."""
    try:
        with storage_faults(table.table_uri):
            table.create_checkpoint()
    except DeltaError as error:  # what is there says whether that is damage
        open_table(table.table_uri, storage_options)
        raise OSError(errno.EIO, f"{table.table_uri}: no checkpoint could be written: {said_by_delta(error)}") from error


def open_table(location: str, storage_options: Mapping[str, str], *, version: int | None = None) -> DeltaTable:
    """Return a table at its newest version, or at another one. Errors as the module says."""
    options = dict(storage_options)
    files = filesystem_of(location, options)
    if version is not None:
        return _read_again(lambda: DeltaTable(location, version=version, storage_options=options), location, files)
    with _damage_named(location):
        return _at_newest(_read_again(lambda: DeltaTable(location, storage_options=options), location, files), files)


def refresh_table(table: DeltaTable) -> DeltaTable:
    """Bring a table to its newest version, and return it. Errors as the module says."""
    files = table_files(table)
    with _damage_named(table.table_uri):
        _read_again(table.update_incremental, table.table_uri, files)
        return _at_newest(table, files)


def txn_version(table: DeltaTable, app_id: str) -> int:
    """Return the version of an application id at the loaded table version; -1 when it never committed. Errors as the module says."""
    version = _read_again(lambda: table.transaction_version(app_id), table.table_uri, table_files(table))
    return -1 if version is None else version


@contextmanager
def _damage_named(location: str) -> Iterator[None]:
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
