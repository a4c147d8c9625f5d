"""Every commit of records goes through here (the ledger's, which Spark never writes, are in `ledger`).

A commit is *one Delta commit*, by compare-and-set: the writer names the application id that all its peers share and the version that
follows the one in the snapshot it planned with. Delta gives three answers, and only one of them can be believed at once:

* it raises a conflict: nothing was written → `CommitConflict`;
* it returns: the commit was written, **or silently skipped** because the version was stale;
* it raises anything else: written or not, nobody knows yet.

So the newest commits are asked for our token. Found: ours. Not found: not ours. Cannot be asked: `CommitStateUnknown`.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

from compaction.errors import CommitConflict, CommitStateUnknown
from storage.snapshot import APPEND_APP_ID, CommitMetadata

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame

    from storage.snapshot import LogSnapshot

    #: (token, since table version) → the table version that carries the token, or None.
    Finder = Callable[[str, int], "int | None"]

#: What Delta raises when another commit came first; the message of the Java class is all that survives the way into Python.
_CONFLICTS: Final = (
    "ConcurrentTransactionException",
    "ConcurrentAppendException",
    "ConcurrentDeleteReadException",
    "ConcurrentDeleteDeleteException",
    "ConcurrentWriteException",
    "DELTA_CONCURRENT_",
    "MetadataChangedException",
    "ProtocolChangedException",
    "DELTA_METADATA_CHANGED",
    "DELTA_PROTOCOL_CHANGED",
)


def new_token() -> str:
    """Return a token that no other commit carries."""
    return uuid.uuid4().hex


def commit_append(rows: DataFrame, location: str, snapshot: LogSnapshot, *, find: Finder, queries: Mapping[str, int], codec: str) -> int:
    """Append `rows` (the columns of the log table) in one commit and return its table version.

    `snapshot` is what the rows were numbered with; `find(token, since_version)` asks the table which of its newer versions carries a
    token. Raises `CommitConflict` when another append came first: nothing of ours is in the table then; and `CommitStateUnknown` when the
    table cannot be asked. Any other error of the write is raised as it came, after the table was asked and did not have the commit.
    """
    metadata = CommitMetadata(token=new_token(), kind="append", queries=queries)
    writer = (
        rows.write.format("delta")
        .mode("append")
        .option("txnAppId", APPEND_APP_ID)
        .option("txnVersion", snapshot.append_txn + 1)
        .option("userMetadata", metadata.to_json())
        .option("compression", codec)
    )
    failure: Exception | None = None
    try:
        writer.save(location)
    except Exception as error:  # noqa: BLE001  whatever it was, the table is asked whether the commit is there
        failure = error
    version = _find(find, location, metadata.token, snapshot.version)
    if version is not None:
        return version
    if failure is None or any(name in str(failure) for name in _CONFLICTS):
        message = f"{location}: another append was committed after table version {snapshot.version}; nothing of this one was written"
        raise CommitConflict(message) from failure
    raise failure


def _find(find: Finder, location: str, token: str, since_version: int) -> int | None:
    try:
        return find(token, since_version)
    except Exception as error:
        message = (
            f"{location}: whether the commit after table version {since_version} was written cannot be found out ({error}); "
            "stop, and let the next start look at the table"
        )
        raise CommitStateUnknown(message) from error
