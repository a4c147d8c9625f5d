"""Copying a topic: the way to another number of partitions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from lastword.compaction.errors import UserError
from lastword.compaction.order.source_positions import highest_of_each_place
from lastword.log_dir import LogDir
from lastword.storage.append.source_decisions import truncate_decision
from lastword.storage.ledger.decisions import Decision, Kind
from lastword.storage.progress import work

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lastword.arrow_topic import ArrowTopic
    from lastword.topic import Topic

_COLUMNS: Final = ("key", "value", "headers", "timestamp")
#: The decisions about sources of change events, which a copy needs as they are.
_OF_SOURCES: Final = frozenset({Kind.SOURCE, Kind.SNAPSHOT, Kind.SWEEP})
#: About how many bytes of rows are in memory, and in a commit, at once.
_CHUNK_BYTES: Final = 128 * 2**20


def copy_topic(logs: LogDir[Topic], source: str, target: str, *, partitions: int, chunk_bytes: int = _CHUNK_BYTES) -> int:
    """Create `target` with the configuration of `source`, append all its data records, hashed anew, and return how many; needs no Spark.

    Records keep key, value, headers, timestamp and source sequence; offsets begin at 0. The copy knows the same columns, and events that
    are late for `source` are late for `target`. A key had one partition in `source`, so its records keep their order. Tombstones come
    along; what was aborted does not. The records are those of one table version, appended in commits of about `chunk_bytes`. Raises
    `UserError` while a transaction is open, whose records cannot be judged yet, `TopicExists` when there is a topic `target`, and
    `InvalidRecords` when the log holds records that today's configuration refuses (keyless ones from before the policy was compact, say);
    there is no topic `target` then.
    """
    here = LogDir(logs.location, storage_options=logs.storage_options, clock=logs.clock)
    origin = here.topic(source)
    undecided = ", ".join(
        f"producer {one.producer_id} ({one.transactional_id or 'no transactional.id'})" for one in origin.open_transactions()
    )
    if undecided:
        message = f"topic {source}: open transactions of {undecided}: commit or abort them first (lastword transactions list {source})"
        raise UserError(message)
    copy = logs.create_topic(target, partitions=partitions, config=origin.log.decisions().overrides)
    try:
        decisions = _order_of_events(origin, copy)
        columns = (*_COLUMNS, "source_sequence") if decisions is not None else _COLUMNS
        decisions = [*(decisions or []), *_known_columns(origin, copy)]
        batches = _chunks(origin.record_batches(isolation="read_committed", columns=columns), chunk_bytes)
        total = sum(offsets.log_end - offsets.log_start for offsets in origin.offsets().values())
        count = 0
        with work(f"copy {source} to {target}", total=total, unit="offsets") as advance:
            for rows in batches:
                count += copy.append(_with_sequences(rows), sequence_as="text").record_count
                advance(len(rows))
        if decisions:
            copy.log.ledger.append(decisions)
    except BaseException:
        logs.delete_topic(target)
        raise
    return count


def _order_of_events(origin: ArrowTopic, copy: Topic) -> list[Decision] | None:
    """Return what the ledger of a copy has to know of the deletions that left the log; None for a topic without source sequences."""
    log, now_ms = origin.log, copy.log.decisions().created_ms
    state = log.at()
    snapshot, decisions = state.snapshot, state.decisions
    positions = [decisions.removed_positions(partition) for partition in range(decisions.partitions)]
    removed = highest_of_each_place(*positions)
    if not any(snapshot.highest_sequences(decisions.partitions)) and not removed:
        return None
    found = [
        Decision(kind=Kind.START, time_ms=now_ms, partition=partition, offset=0, table_version=0, details={"removed_positions": removed})
        for partition in range(copy.partitions)
        if removed
    ]
    found += [replace(row, sequence=0, table_version=0) for row in log.ledger.rows() if row.kind in _OF_SOURCES]
    return [*found, *(truncate_decision(one.position, is_applied=one.is_applied, now_ms=now_ms) for one in decisions.truncations.values())]


def _known_columns(origin: ArrowTopic, copy: Topic) -> list[Decision]:
    """Return what the ledger of a copy has to know of the columns of the rows, which `table()` shows."""
    columns = origin.log.decisions().columns
    if columns is None:
        return []
    return [Decision(kind=Kind.COLUMNS, time_ms=copy.log.decisions().created_ms, details=columns)]


def _with_sequences(rows: pa.Table) -> pa.Table:
    """Return rows in which a record from before there were source sequences has one that is not known."""
    at = rows.schema.get_field_index("source_sequence")
    return rows if at < 0 else rows.set_column(at, "source_sequence", pc.fill_null(rows.column(at), ""))


def _chunks(batches: Iterable[pa.RecordBatch], chunk_bytes: int) -> Iterator[pa.Table]:
    """Yield the rows of batches in tables of about so many bytes."""
    held, held_bytes = list[pa.RecordBatch](), 0
    for batch in batches:
        held.append(batch)
        held_bytes += batch.nbytes
        if held_bytes >= chunk_bytes:
            yield pa.Table.from_batches(held)
            held, held_bytes = [], 0
    if held:
        yield pa.Table.from_batches(held)
