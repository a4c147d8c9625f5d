"""Query checkpoints: whose they are, and what to do when one is gone.

Spark keeps a streaming query's position in its checkpointLocation, under a query id that it draws when the folder is new. A deleted
folder therefore starts the source from its beginning under a new id, and every row would come again as new. The topic's ledger knows
which id belongs to which name, so that this is noticed before the first row. So is a folder that was put back to an older state: the log
knows a later micro-batch than it does.

Spark writes a checkpoint on a local disk by a check and a rename, which two processes can pass at the same time. Each of them would then
have a micro-batch of one number and of other rows, and the log takes the first alone. So a process holds a lock as long as its query runs.
On an object store there is none.

A write of Spark that fails, or is killed, may leave its file under another name. Spark passes over it, but for one case: without any
micro-batch such files have to go, or no query starts there (STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY, Spark 4.1).
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from filelock import FileLock, Timeout
from pyarrow import fs

from lastword.compaction.errors import QueryRefused

if TYPE_CHECKING:
    from pathlib import Path

    from filelock import BaseFileLock

_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def check_query_name(name: str) -> str:
    """Return `name` if it can name a streaming query; raise `QueryRefused` otherwise."""
    if not _NAME.fullmatch(name) or name.startswith("."):
        message = f"query name {name!r}: 1 to 249 of the characters a-z, A-Z, 0-9, '.', '_' and '-' are allowed, and no '.' in front"
        raise QueryRefused(message)
    return name


def stored_query_id(checkpoint: fs.FileSystem) -> str | None:
    """Return the query id that a checkpointLocation, whose files these are, holds; None when there is none (yet, or any more)."""
    try:
        with checkpoint.open_input_file("metadata") as file:
            return str(json.loads(file.read())["id"])
    except (FileNotFoundError, ValueError, KeyError):
        return None


def stored_micro_batch(checkpoint: fs.FileSystem) -> int:
    """Return the number of the newest micro-batch that a checkpointLocation knows; -1 when it knows none.

    Spark writes a micro-batch there before it runs it, so the log never has a later one.
    """
    offsets = checkpoint.get_file_info(fs.FileSelector("offsets", allow_not_found=True))
    return max((int(file.base_name) for file in offsets if file.base_name.isdigit()), default=-1)


def remove_unfinished_batch(checkpoint: fs.FileSystem) -> None:
    """Remove the files of a first micro-batch that Spark began to write and did not finish; a checkpoint that knows one is left alone."""
    files = [
        file
        for folder in ("offsets", "commits")
        for file in checkpoint.get_file_info(fs.FileSelector(folder, allow_not_found=True))
        if file.is_file
    ]
    if any(file.base_name.isdigit() for file in files):
        return
    for file in files:
        with suppress(FileNotFoundError):
            checkpoint.delete_file(file.path)


def stored_positions(checkpoint: fs.FileSystem, batch_id: int, *, topic: str | None = None) -> dict[int, int] | None:
    """Return the offset at which a micro-batch begins, by partition of the Kafka topic that is read; None when the checkpoint has none.

    That is where the micro-batch before it ended, the last line of its file: `{"prices":{"0":17,"1":4}}`. With `topic` only those of a
    Kafka topic of this name.
    """
    try:
        with checkpoint.open_input_file(f"offsets/{batch_id - 1}") as file:
            ((name, offsets),) = json.loads(file.read().decode().splitlines()[-1]).items()
            if topic not in {None, name}:
                return None
            return {int(partition): int(offset) for partition, offset in offsets.items()}
    except (FileNotFoundError, ValueError, IndexError, AttributeError):
        return None


def lock_query(name: str, *, topic: str, location: Path) -> BaseFileLock:
    """Hold the checkpoint of a query for this process; raise `QueryRefused` if another one does. The lock goes with the process."""
    location.parent.mkdir(parents=True, exist_ok=True)
    path = location.with_name(f".{name}.lock")  # no query has a name like this
    lock = FileLock(path, timeout=0, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        holder = ""
        with suppress(OSError):
            holder = path.read_text(encoding="utf-8")
        message = (
            f"query {name} of topic {topic} runs in another process{f' ({holder})' if holder else ''}, so it is not started here: two of "
            "them would take the same rows. Is a second service running over this log.dir? Stop that process first, or give one of the two "
            "queries another name and other rows"
        )
        raise QueryRefused(message) from None
    with suppress(OSError):  # a full disk takes no name of the holder; the lock holds without it
        path.write_text(f"process {os.getpid()}", encoding="utf-8")
    return lock


def check_micro_batch(name: str, *, topic: str, committed: int, stored: int, offsets_are_kept: bool) -> None:
    """Raise `QueryRefused` if the log has a later micro-batch of a query (`committed`) than its checkpoint knows (`stored`).

    Spark would make the micro-batches between them anew, of what the source has by now, and the log would take them for those that it has.
    """
    if committed <= stored:
        return
    last = f"micro-batch {stored}" if stored >= 0 else "no micro-batch"
    again = (
        f"delete the folder: this query keeps the offsets of its source, so what the log of {topic} holds is not appended again"
        if offsets_are_kept
        else "start under a new name from a position in the source that you choose; or, if you want every row again, delete the folder and "
        f"forget the query: lastword queries forget {topic} {name}"
    )
    message = (
        f"query {name} of topic {topic}: the log has its micro-batches up to {committed}, but its checkpoint knows {last} as the last one. "
        "An older state of the checkpoint was put back, or its newest files are lost. The micro-batches in between would be made of "
        f"other rows now, and not be appended. Ways out: restore the newest state of the folder queries/{name}; or {again}"
    )
    raise QueryRefused(message)


def check_query(name: str, *, topic: str, known_id: str | None, stored_id: str | None, offsets_are_kept: bool) -> None:
    """Raise `QueryRefused` if starting the query would bring rows again that the log holds already.

    `known_id` is the id under which the ledger knows `name` (None: not known, or forgotten on purpose), `stored_id` the one in the
    checkpoint. A mirror (`offsets_are_kept`) may always go on: what it brings again lies below the log end and is dropped.
    """
    if known_id is None or known_id == stored_id or offsets_are_kept:
        return
    gone = "is gone" if stored_id is None else f"holds another query's id ({stored_id})"
    message = (
        f"query {name} of topic {topic}: its checkpoint {gone}, so its source would be read from the beginning, and rows that the log "
        f"already holds (appended as query {known_id}) would be appended again. Ways out: restore the checkpoint folder "
        f"queries/{name}; or start under a new name from a position in the source that you choose; or, if you want every row again, "
        f"forget the query first: lastword queries forget {topic} {name}"
    )
    raise QueryRefused(message)
