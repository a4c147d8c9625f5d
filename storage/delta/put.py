"""The text of a commit, and its place in the Delta log of a table on a local disk: put only where no commit of that version exists.

```
 _commit_….json.tmp      written and flushed             nobody reads a file of this name
 00…010.json             a hard link to it, or refused   whole from the first moment, and given once
```

An object store has no hard links: there delta-rs puts commits (`lastword.storage.delta.commit.put_commit`).
"""

from __future__ import annotations

import json
import os
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from deltalake.transaction import AddAction, RemoveAction

from lastword.compaction.errors import CommitStateUnknown
from lastword.storage.files.row_files import installed_version

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def put_text(log: Path, name: str, text: bytes) -> bool:
    """Write a commit, and give it its name if no other commit has it; tell whether it was given.

    Raises `OSError` when it was not, and `CommitStateUnknown` when nobody can say. A network file system may give the name, and then say
    that it failed or that the name was taken (link(2)): so it is looked at whose it is.
    """
    temporary, commit = log / f"_commit_{uuid.uuid4()}.json.tmp", log / name
    try:
        with temporary.open("xb") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        try:
            os.link(temporary, commit)
        except OSError as error:
            if not _is_same(temporary, commit):
                if isinstance(error, FileExistsError):
                    return False
                raise
    finally:
        with suppress(OSError):
            temporary.unlink()
    return True


def _is_same(temporary: Path, commit: Path) -> bool:
    try:
        return commit.samefile(temporary)
    except FileNotFoundError:
        return False
    except OSError as error:
        message = f"whether {commit} was written cannot be found out ({error}); stop, and let the next start look at the table"
        raise CommitStateUnknown(message) from error


def _engine() -> str:
    """Return how commits name their writer."""
    version = installed_version()
    return "lastword" if version is None else f"lastword-{version}"


def commit_text(actions: Sequence[AddAction | RemoveAction], *, user_metadata: str, time_ms: int, transactions: Mapping[str, int]) -> bytes:
    """Return a commit as Delta's protocol writes it: an action a line."""
    info = {
        "timestamp": time_ms,
        "operation": "WRITE",
        "operationParameters": {"mode": "Append", "partitionBy": "[]"},
        "engineInfo": _engine(),
        "userMetadata": user_metadata,
    }
    lines: list[dict[str, Any]] = [{"commitInfo": info}]
    for action in actions:
        if isinstance(action, AddAction):
            add = {
                "path": action.path,
                "partitionValues": action.partition_values,
                "size": action.size,
                "modificationTime": action.modification_time,
                "dataChange": action.data_change,
                "stats": action.stats,
            }
            lines.append({"add": add})
        else:
            remove = {
                "path": action.path,
                "dataChange": action.data_change,
                "deletionTimestamp": action.deletion_timestamp,
                "extendedFileMetadata": True,
                "partitionValues": action.partition_values,
                "size": action.size,
            }
            lines.append({"remove": remove})
    lines += [{"txn": {"appId": name, "version": number}} for name, number in transactions.items()]
    return b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)
