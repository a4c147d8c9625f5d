"""What a step reads of the log: how far it goes, and its records, some at a time.

After each step the table is what `latest()` says at its position. What is superseded by a record behind a step may be cleaned away, so a
step does not end inside a clean section, however far that reaches, and reads the table version of the log that it was planned at.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from lastword.compaction.errors import CommitConflict, ReaderBehind
from lastword.compaction.read_positions import Position, advance, overtaken
from lastword.storage.files.paths import filesystem_of
from lastword.storage.log.reader_history import HistoryWatch
from lastword.storage.reading.arrow_frames import latest_batches
from lastword.storage.reading.arrow_rows import file_ranges, range_batches, schema_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lastword.storage.log.topic_log import TopicLog
    from lastword.storage.reading.view import View

_BATCH_ROWS: Final = 65_536


def next_position(log: TopicLog, view: View, position: Position, watch: HistoryWatch, *, max_offsets: int | None) -> Position:
    """Return where the next step from a position ends; the position itself when there is nothing new.

    Raises `ReaderBehind` when records or tombstones that the table has not read are gone: it may hold what was deleted.
    """
    missed = overtaken(position, view.extent, partial(log.history, watch))
    if missed:
        lines = "\n".join(f"  {loss}" for loss in missed)
        message = f"topic {log.name}: the table was overtaken:\n{lines}\nrebuild=True (--rebuild) makes it again from the log as it is"
        raise ReaderBehind(message)
    offsets = advance(position.offsets, view.end, max_offsets)
    clean = map(min, view.first_dirty, view.end)
    moves = zip(position.offsets, view.end, offsets, clean, strict=True)
    offsets = tuple(max(at, end) if first < bound else at for first, bound, at, end in moves)
    if offsets == position.offsets:
        return position
    return Position(offsets=offsets, table_version=view.version, since_version=position.since_version, topic_id=view.topic_id)


def step_records(
    view: View, begin: Sequence[int], end: Sequence[int], columns: Sequence[str], *, max_rows: int, max_bytes: int
) -> Iterator[pa.Table]:
    """Yield the records with a key from `begin` to `end` (exclusive) by partition and offset, so many rows or bytes at a time."""
    ranges = file_ranges(view, begin, end)
    filesystem = filesystem_of(view.location, view.storage_options)
    batches = range_batches(filesystem, ranges, columns, aborted=view.aborted, batch_rows=min(_BATCH_ROWS, max_rows))
    yield from _chunks(batches, columns, max_rows=max_rows, max_bytes=max_bytes)


def latest_records(view: View, columns: Sequence[str], partitions: Sequence[int], *, max_rows: int, max_bytes: int) -> Iterator[pa.Table]:
    """Yield the last record of each key of some partitions, if it is no tombstone, in the order of offsets, so much at a time."""
    yield from _chunks(latest_batches(view, columns, partitions), columns, max_rows=max_rows, max_bytes=max_bytes)


def _chunks(batches: Iterable[pa.RecordBatch], columns: Sequence[str], *, max_rows: int, max_bytes: int) -> Iterator[pa.Table]:
    held, rows, size = list[pa.RecordBatch](), 0, 0
    for batch in _while_there(batches):
        keyed = batch.filter(batch.column("key").is_valid()) if batch.column("key").null_count else batch
        held.append(keyed)
        rows, size = rows + len(keyed), size + keyed.nbytes
        if rows >= max_rows or size >= max_bytes:
            yield pa.Table.from_batches(held).combine_chunks()
            held, rows, size = [], 0, 0
    if rows:
        yield pa.Table.from_batches(held, schema_of(columns)).combine_chunks()


def _while_there(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches; raise `CommitConflict` when a file of the log was deleted meanwhile: a newer version of the log has its rows."""
    try:
        yield from batches
    except FileNotFoundError as error:
        message = f"a file of the log was deleted while it was read, by VACUUM or a purge ({error}); nothing was written"
        raise CommitConflict(message) from error


def new_watch() -> HistoryWatch:
    """Return what looks for removed tombstones; those of purges do not count, as a purge erases from registered tables itself."""
    return HistoryWatch(purges=False)
