"""Records with a value that does not fit their table: dead letters of the topic, written before the step that leaves them out.

A step that is taken again, after a crash or a conflict, or by another process, adds no letter that is there: partition and offset tell them
apart. A table that is written anew takes the place of all its letters. Two processes that take a step at the same moment may write a letter
twice; none is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from lastword.compaction.errors import CommitConflict
from lastword.storage.append.dead_letters import (
    LetterOrigin,
    add_dead_letters,
    dead_letters_of,
    places_of_letters,
    replace_dead_letters,
    write_dead_letters,
)
from lastword.storage.delta.commit_text import action_time_ms
from lastword.storage.files.data_files import delete_files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lastword.change_data.columns.table_columns import RowMisfit
    from lastword.storage.files.row_files import RowFile
    from lastword.storage.log.topic_log import TopicLog
    from lastword.storage.reading.view import View

#: The reason that these dead letters have.
REASON = "table_misfit"


class DroppedRecords:
    """The dead letters of one step of a table, or with `replaces` of a table that is written anew."""

    def __init__(self, log: TopicLog, view: View, source: str, *, replaces: bool) -> None:
        """Begin with none."""
        self._log, self._view, self._replaces = log, view, replaces
        self._origin = LetterOrigin(
            location=log.paths.dead_letters,
            storage_options=log.storage_options,
            source=source,
            query_id=f"{source} of {view.topic_id}",
            batch_id=sum(view.position.offsets),
            refused_ms=action_time_ms(),
        )
        self._files = list["RowFile"]()
        #: Partitions and offsets of the records that are dead letters already; read when the first record is dropped.
        self._known: frozenset[tuple[int, int]] | None = frozenset() if replaces else None

    def take(self, records: pa.Table, misfits: Sequence[RowMisfit]) -> None:
        """Write those of some records that do not fit as a file, but for those that are there already."""
        if self._known is None:
            self._known = places_of_letters(self._origin.location, self._origin.storage_options, query_id=self._origin.query_id)
        partitions, offsets = records.column("partition"), records.column("offset")
        new = [misfit for misfit in misfits if (partitions[misfit.row].as_py(), offsets[misfit.row].as_py()) not in self._known]
        rows = records.take(pa.array([misfit.row for misfit in new], pa.int64()))
        rows = rows.append_column("raw", pa.nulls(len(rows), pa.string())).combine_chunks()
        reasons, details = [REASON] * len(new), [str(misfit) for misfit in new]
        # The topic's keys are not stale by them: the log has the record.
        stale = pa.nulls(len(rows), pa.binary())
        letters = [dead_letters_of(batch, reasons, details, stale, self._origin) for batch in rows.to_batches()]
        written = write_dead_letters(letters, self._origin)
        self._files += [] if written is None else [written]

    def commit(self) -> None:
        """Commit the letters; raise `CommitConflict` if a purge may have erased meanwhile what they hold."""
        location, options = self._origin.location, self._origin.storage_options
        with self._log.append_lock():
            today, before = self._log.at(), self._view.state
            is_cleaned = today.snapshot.maintenance_txn != before.snapshot.maintenance_txn
            if self._files and is_cleaned and today.decisions.purges:
                message = f"topic {self._log.name}: the log was cleaned meanwhile, and keys are purged; the step is taken again"
                raise CommitConflict(message)
            if self._replaces:
                replace_dead_letters(location, options, self._files, query_id=self._origin.query_id, batch_id=None)
            elif self._files:
                add_dead_letters(location, options, self._files)
        self._files = []

    def discard(self) -> None:
        """Delete the files of letters that were not committed."""
        delete_files(self._origin.location, self._origin.storage_options, [file.path for file in self._files])
