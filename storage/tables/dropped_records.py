"""Records with a value that does not fit their table: dead letters of the topic, written before the step that leaves them out.

A step that is taken again, after a crash or a conflict, writes the same letters in the place of those before. A table that is written anew
takes the place of all its letters. Two processes that take different steps from one position at the same time may write a letter twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from lastword.compaction.errors import CommitConflict
from lastword.storage.append.dead_letters import LetterOrigin, dead_letters_of, replace_dead_letters, write_dead_letters
from lastword.storage.delta.commit_text import action_time_ms
from lastword.storage.files.data_files import delete_files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lastword.change_data.columns.table_columns import RowMisfit
    from lastword.storage.files.row_files import RowFile
    from lastword.storage.log.topic_log import TopicLog
    from lastword.storage.reading.view import View

#: Why a record is a dead letter.
REASON = "table_misfit"


class DroppedRecords:
    """The dead letters of one step of a table, or of a table that is written anew (`step` is None)."""

    def __init__(self, log: TopicLog, view: View, source: str, *, step: int | None) -> None:
        """Begin with none; `step` is a number that each step of the table has for itself."""
        self._log, self._view, self._step = log, view, step
        self._origin = LetterOrigin(
            location=log.paths.dead_letters,
            storage_options=log.storage_options,
            source=source,
            query_id=f"{source} of {view.topic_id}",
            batch_id=-1 if step is None else step,
            refused_ms=action_time_ms(),
        )
        self._files = list["RowFile"]()

    def take(self, records: pa.Table, misfits: Sequence[RowMisfit]) -> None:
        """Write those of some records that do not fit as a file."""
        rows = records.take(pa.array([misfit.row for misfit in misfits]))
        rows = rows.append_column("raw", pa.nulls(len(rows), pa.string())).combine_chunks()
        reasons, details = [REASON] * len(misfits), [str(misfit) for misfit in misfits]
        # The topic's keys are not stale by them: the log has the record.
        stale = pa.nulls(len(rows), pa.binary())
        letters = [dead_letters_of(batch, reasons, details, stale, self._origin) for batch in rows.to_batches()]
        written = write_dead_letters(letters, self._origin)
        self._files += [] if written is None else [written]

    def commit(self) -> None:
        """Commit the letters; raise `CommitConflict` if a purge may have erased meanwhile what they hold."""
        with self._log.append_lock():
            today, before = self._log.at(), self._view.state
            is_cleaned = today.snapshot.maintenance_txn != before.snapshot.maintenance_txn
            if self._files and is_cleaned and today.decisions.purges:
                message = f"topic {self._log.name}: the log was cleaned meanwhile, and keys are purged; the step is taken again"
                raise CommitConflict(message)
            replace_dead_letters(
                self._origin.location,
                self._origin.storage_options,
                self._files,
                query_id=self._origin.query_id,
                batch_id=self._step,
            )
        self._files = []

    def discard(self) -> None:
        """Delete the files of letters that were not committed."""
        delete_files(self._origin.location, self._origin.storage_options, [file.path for file in self._files])
