"""A commit is put into a Delta log only where no commit of its version is: the one way, on a local disk and on an object store.

```
 local disk     _commit_….json.tmp     written and flushed          no reader takes a file of this name
                00…010.json            a hard link to it, flushed   whole from the first moment, and given once
 object store   00…010.json            a conditional put (obstore, `mode="create"`)
```

An error of the storage decides nothing. A network file system may give the name and report an error (link(2)). A store whose reply was
lost has the object, and a request that is repeated then reports that it exists. So after any error the commit is read back:

| there is | then |
|---|---|
| the same text, with our token | it was put |
| another text | another writer was first |
| nothing | the error is raised as it came |
| no answer | `CommitStateUnknown` |
"""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

from lastword.compaction.errors import CommitStateUnknown
from lastword.storage.delta.history import commit_file
from lastword.storage.files.data_files import sync_folder
from lastword.storage.files.locations import local_path

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def put_if_absent(location: str, storage_options: Mapping[str, str], version: int, text: bytes) -> bool:
    """Put a commit as a version of the table at a location; tell whether it is there: False when another writer's is.

    Raises `OSError` when neither is there, and `CommitStateUnknown` when the storage does not say, or when the commit is there and cannot
    be flushed to the disk: the power may fail after it counts.
    """
    folder = local_path(location)
    if folder is None:
        return _put_on_store(location, storage_options, commit_file(version), text)
    if not _put_on_disk(folder / commit_file(version), text):
        return False
    try:
        sync_folder(folder / "_delta_log")  # its text is flushed already
    except OSError as error:
        message = f"{location}: the commit is written as table version {version}, but could not be flushed to the disk: {error}"
        raise CommitStateUnknown(message) from error
    return True


def _put_on_disk(commit: Path, text: bytes) -> bool:
    temporary = commit.with_name(f"_commit_{uuid.uuid4()}.json.tmp")
    try:
        with temporary.open("xb") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        try:
            os.link(temporary, commit)
        except OSError as error:
            try:
                is_ours = commit.samefile(temporary)
            except FileNotFoundError:
                is_ours = False
            except OSError as unread:
                raise _unknown(str(commit), unread) from error
            if is_ours or isinstance(error, FileExistsError):
                return is_ours
            raise
    finally:
        with suppress(OSError):
            temporary.unlink()
    return True


def _put_on_store(location: str, storage_options: Mapping[str, str], path: str, text: bytes) -> bool:
    from lastword.storage.files.object_stores import put_object, read_object  # noqa: PLC0415  Spark's tasks import this, without obstore

    try:
        put_object(location, storage_options, path, text)
    except OSError as error:
        try:
            return read_object(location, storage_options, path) == text
        except FileNotFoundError:
            raise error from None
        except OSError as unread:
            commit = f"{location.rstrip('/')}/{path}"
            raise _unknown(commit, unread) from error
    return True


def _unknown(commit: str, error: OSError) -> CommitStateUnknown:
    return CommitStateUnknown(f"whether {commit} was written cannot be found out ({error}); stop, and let the next start look at the table")
