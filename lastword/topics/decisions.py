"""Decisions that people take about a topic, as rows of its ledger: log starts (Kafka's DeleteRecords), rolls, pauses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lastword.compaction.errors import OffsetOutOfRange, PolicyViolation, UserError
from lastword.storage.cleaning.log_starts import raise_log_starts
from lastword.storage.ledger.decisions import Decision, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lastword.storage.ledger.decisions import Decisions
    from lastword.storage.log.topic_log import TopicLog


def delete_records(log: TopicLog, before: Mapping[int, int], *, now_ms: int) -> bool:
    """Write the log start offsets that `before` asks for ({partition: offset}, -1 for the log end) into the ledger; tell whether one rose.

    Raises `OffsetOutOfRange` naming what is allowed, `PolicyViolation` for a topic that is compacted alone, `UserError` for a topic that
    mirrors another. Rule: docs/semantics.md#A.41.
    """
    log.sync_ledger_with_history()  # a log start that a RESTORE has just made void must not stand in the way of a lower one
    state = log.at()
    decisions, ends = state.decisions, state.log_end_offsets
    if decisions.mirror is not None:
        message = f"topic {log.name} mirrors {decisions.mirror['source']}: delete records there, and they are deleted here too"
        raise UserError(message)
    policy = state.config.cleanup_policy
    if policy == {"compact"}:
        message = (
            f"topic {log.name}: cleanup.policy = compact does not allow to delete records by offset. Delete a key by a tombstone (append "
            "its key with a null value), or erase it with purge; or set cleanup.policy = compact,delete, with retention.ms = -1 if "
            "nothing is to go by age"
        )
        raise PolicyViolation(message)
    for partition, offset in before.items():
        log.check_partition(partition)
        if not -1 <= offset <= ends[partition]:
            message = f"topic {log.name}, partition {partition}: offset {offset}; allowed is 0 to {ends[partition]}, or -1 for the log end"
            raise OffsetOutOfRange(message)
    wanted = {partition: ends[partition] if offset == -1 else offset for partition, offset in before.items()}
    return raise_log_starts(log, wanted, why="delete_records", now_ms=now_ms)


def roll(log: TopicLog, partition: int | None, *, now_ms: int) -> dict[int, int]:
    """Close the active segment of one partition, or of all; return {partition: log end offset at which the next one begins}."""
    if partition is not None:
        log.check_partition(partition)
    state = log.at()
    decisions, ends, last = state.decisions, state.log_end_offsets, state.snapshot.last_segments()
    rolled = {
        number: ends[number]
        for number in (range(len(ends)) if partition is None else [partition])
        if number in last and decisions.closed_offset(number, ends[number]) <= last[number].label
    }
    if rolled:
        log.ledger.append(
            [
                Decision(kind=Kind.ROLL, time_ms=now_ms, partition=one, offset=offset, table_version=state.version)
                for one, offset in rolled.items()
            ]
        )
    return rolled


def count_pauses(log: TopicLog, partition: int | None, step: int, *, now_ms: int) -> dict[int, int]:
    """Add `step` to the pauses of one partition, or of all (for a resume: of all that have one); return what is left, by partition."""
    if partition is not None:
        log.check_partition(partition)

    def count(today: Decisions) -> tuple[list[Decision], dict[int, int]]:
        asked = range(today.partitions) if partition is None else [partition]
        changed = {number: today.pauses.get(number, 0) + step for number in asked if step > 0 or number in today.pauses}
        if not changed:
            message = f"topic {log.name}: nothing is paused" if partition is None else f"topic {log.name}: {partition} is not paused"
            raise UserError(message)
        rows = [Decision(kind=Kind.PAUSE, time_ms=now_ms, partition=number, details={"count": left}) for number, left in changed.items()]
        return rows, changed

    return log.ledger.decide(count)


def drop_reader(log: TopicLog, name: str, *, now_ms: int) -> None:
    """Forget a registered reader; raise `UserError` naming those that there are when it is none of them."""
    known = log.decisions().readers
    if name not in known:
        message = f"topic {log.name} knows no reader {name!r}; known: {', '.join(sorted(known)) or 'none'}"
        raise UserError(message)
    log.ledger.append([Decision(kind=Kind.READER, time_ms=now_ms, name=name, details={"offsets": None})])
    log.reader_positions.drop(name)
