"""Decisions that the history of a log tells and its ledger does not have: RESTOREs, and receipts that were never written.

A swap carries its receipts in its own `userMetadata`: after a crash in between, or where the ledger was lost, they are taken from there. A
RESTORE makes the receipts and log starts that it took back void.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lastword.storage.delta.history import commits_since, telling
from lastword.storage.ledger.decisions import Decision, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltalake import DeltaTable

    from lastword.storage.delta.history import Commit
    from lastword.storage.ledger.decisions import Decisions


class UnrecordedDecisions:
    """Reads the history of one log, each commit once; for one thread at a time."""

    def __init__(self) -> None:
        """Read nothing yet."""
        #: Up to this table version the ledger has what the history tells.
        self.looked_at = 0
        self._read_to = 0
        self._commits: list[Commit] = []

    def collect(self, today: Decisions, table: DeltaTable, version: int) -> list[Decision]:
        """Return what the history up to a version of the log table says and `today` does not, oldest first; each commit is read once.

        A cleaning that began past all that is known to be clean began at a log start that was lost: what lies before it was never cleaned,
        so the checkpoint stays where it was.
        """
        since = max(self.looked_at, today.looked_at_version)
        read_to = max(since, self._read_to)
        if version > read_to:
            self._commits += telling(commits_since(table, read_to, version))
        self._read_to = max(read_to, version)
        self._commits = [commit for commit in self._commits if commit.version > since]
        known_receipts = {row.table_version for rows in today.cleanings.values() for row in rows} if self._commits else set()
        known_restores = {restore.version for restore in today.restores}
        rows, reached = list[Decision](), dict[int, int]()
        for commit in self._commits:
            if commit.restored_version is not None and commit.version not in known_restores:
                details = {"restored_version": commit.restored_version}
                rows.append(Decision(kind=Kind.RESTORE, time_ms=commit.time_ms, table_version=commit.version, details=details))
            elif commit.metadata is not None and commit.version not in known_receipts:
                rows += [_recover(receipt, commit.version, today, reached) for receipt in commit.metadata.receipts]
        return rows


def _recover(receipt: Mapping[str, Any], version: int, today: Decisions, reached: dict[int, int]) -> Decision:
    """Return the ledger's row for a receipt that a swap carries; `reached` are the cleaner checkpoints that earlier ones give."""
    partition = receipt["partition"]
    newest, checkpoint = today.newest_cleaning(partition), receipt["end_offset"]
    if newest is None or version >= (newest.table_version or 0):  # else later ones went on from it
        known = reached.get(partition, max(today.cleaner_checkpoint(partition) or 0, today.log_start_offset(partition)))
        checkpoint = reached[partition] = checkpoint if receipt["first_dirty_offset"] <= known else known
    details = {**receipt, "table_version": version}
    return Decision(
        kind=Kind.CLEAN, time_ms=details["now_ms"], partition=partition, offset=checkpoint, table_version=version, details=details
    )
