"""Every commit of records goes through here (the ledger's, which Spark never writes, are in `ledger`).

A commit is *one Delta commit*, by compare-and-set: it begins at the table version that it was planned with, names the application id that
all its peers share, and another commit of that id since then is a conflict (`delta_transaction`). Delta gives three answers:

* it returns the version: written;
* it raises a conflict: nothing was written → `CommitConflict`;
* it raises anything else: written or not, nobody knows yet.

So after an error the newest commits are asked for our token. Found: ours. Not found: not ours. Cannot be asked: `CommitStateUnknown`.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from lastword.compaction.errors import CommitConflict, CommitStateUnknown, LastwordError
from lastword.storage.delta import delta_transaction
from lastword.storage.delta.history import CommitMetadata
from lastword.storage.delta.snapshot import APPEND_APP_ID, MAINTENANCE_APP_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from lastword.storage.delta.snapshot import LogSnapshot

    #: (token, since table version) → the table version that carries the token, or None.
    Finder = Callable[[str, int], "int | None"]

T = TypeVar("T")

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


def is_conflict(error: BaseException) -> bool:
    """Tell whether Delta refused a commit because another one came first."""
    return any(name in str(error) for name in _CONFLICTS)


def retry_on_conflict(once: Callable[[], T], *, attempts: int = 10) -> T:
    """Do something that plans and commits, again from a fresh plan while commits of others come first."""
    for attempt in Retrying(
        retry=retry_if_exception(_came_second),
        stop=stop_after_attempt(attempts),
        wait=wait_random_exponential(multiplier=0.05, max=2),
        reraise=True,
    ):
        with attempt:
            return once()
    raise AssertionError  # Retrying reraises


def _came_second(error: BaseException) -> bool:
    """Tell whether nothing was written; a `CommitStateUnknown` that quotes Delta's conflict is not that."""
    return isinstance(error, CommitConflict) or (not isinstance(error, LastwordError) and is_conflict(error))


def new_token() -> str:
    """Return a token that no other commit carries."""
    return uuid.uuid4().hex


def commit_append(rows: DataFrame, location: str, snapshot: LogSnapshot, *, find: Finder, queries: Mapping[str, int], codec: str) -> int:
    """Append `rows` (the columns of the log table) in one commit and return its table version.

    `snapshot` is what the rows were numbered with; `find(token, since_version)` asks the table which of its newer versions carries a
    token. Raises `CommitConflict` when another append came first: nothing of ours is in the table then; and `CommitStateUnknown` when the
    table cannot be asked. Any other error of the write is raised as it came, after the table was asked and did not have the commit.
    """
    metadata = CommitMetadata(token=new_token(), kind="append", queries=queries, append_txn=snapshot.append_txn + 1)
    options = {"txnAppId": APPEND_APP_ID, "txnVersion": str(snapshot.append_txn + 1), "compression": codec}
    turns = [(rows, None)]
    return _commit(rows.sparkSession, turns, options, metadata, mode="append", location=location, snapshot=snapshot, find=find)


def commit_swap(
    spark: SparkSession,
    turns: Iterable[tuple[DataFrame, str]],
    location: str,
    snapshot: LogSnapshot,
    *,
    kind: str,
    receipts: Sequence[Mapping[str, Any]],
    find: Finder,
    codec: str,
) -> int:
    """Put rows in the place of slices, in one commit, and return its table version.

    `turns` are rows and the condition of the slices that they replace; each is asked for when the one before is written. No reader of a
    Delta stream sees the commit (`dataChange=false`). The slices are those of `snapshot`: any other swap since then is a `CommitConflict`,
    and nothing was changed; appends may have come. Errors as `commit_append`.
    """
    metadata = CommitMetadata(
        token=new_token(), kind=kind, queries=snapshot.queries, append_txn=snapshot.append_txn, receipts=tuple(receipts)
    )
    options = {
        "txnAppId": MAINTENANCE_APP_ID,
        "txnVersion": str(snapshot.maintenance_txn + 1),
        "dataChange": "false",
        "compression": codec,
    }
    return _commit(spark, turns, options, metadata, mode="overwrite", location=location, snapshot=snapshot, find=find)


def _commit(
    spark: SparkSession,
    turns: Iterable[tuple[DataFrame, str | None]],
    options: Mapping[str, str],
    metadata: CommitMetadata,
    *,
    mode: str,
    location: str,
    snapshot: LogSnapshot,
    find: Finder,
) -> int:
    """Write; after an error ask the table whether the commit is there, whatever Delta said."""
    given = {**options, "userMetadata": metadata.to_json()}
    try:
        return delta_transaction.write(spark, turns, location, mode=mode, options=given, planned_version=snapshot.version)
    except Exception as failure:
        version = _find(find, location, metadata.token, snapshot.version)
        if version is not None:
            return version
        if is_conflict(failure):
            peer = "append" if mode == "append" else "swap of segments"
            message = f"{location}: another {peer} was committed after table version {snapshot.version}; nothing of this one was written"
            raise CommitConflict(message) from failure
        raise


def _find(find: Finder, location: str, token: str, since_version: int) -> int | None:
    try:
        return find(token, since_version)
    except Exception as error:
        message = (
            f"{location}: whether the commit after table version {since_version} was written cannot be found out ({error}); "
            "stop, and let the next start look at the table"
        )
        raise CommitStateUnknown(message) from error
