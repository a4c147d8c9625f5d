"""What the ledger says of the sources of a topic: the snapshots that have begun, and the TRUNCATEs of their tables, as its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lastword.compaction.errors import CommitConflict
from lastword.compaction.rows.source_positions import SourcePosition, place_name, scope_name
from lastword.storage.ledger.decisions import Decision, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lastword.compaction.rows.source_epochs import NewSnapshot
    from lastword.storage.append.plan import AppendPlan
    from lastword.storage.ledger.decisions import Decisions
    from lastword.storage.log.topic_log import TopicLog


def begin_snapshots(log: TopicLog, new: Sequence[NewSnapshot], plan: AppendPlan, *, now_ms: int) -> None:
    """Write into the ledger which snapshots of sources begin: their rows, and what comes behind them, have an epoch from then on.

    Raises `CommitConflict`, as the append is to be planned again.
    """
    highest = {(one.scope, one.partition): _highest_before(one, plan) for one in new}

    def begun(today: Decisions) -> list[Decision]:
        return [snapshot_decision(one, epoch, now_ms=now_ms) for one, epoch in today.epochs.epochs_of_new(new, highest)]

    log.ledger.decide(begun)
    message = f"topic {log.name}: a snapshot of {scope_name(new[0].scope)} has begun; the append is planned again"
    raise CommitConflict(message)


def _highest_before(new: NewSnapshot, plan: AppendPlan) -> str:
    """Return the highest order that the log has of a place in which a snapshot begins; empty where all is below the snapshot."""
    epoch = plan.epochs.epoch((new.scope, new.partition))
    begin = SourcePosition(scope=new.scope, epoch=epoch, order=new.position).commit
    removed = [one.removed.get((new.scope, new.partition), "") for one in plan.sequences]
    if not any(one.highest > begin for one in plan.sequences):
        return max(removed, default="")
    return max([*removed, *(lookup.highest_in(new.scope, new.partition) for lookup in plan.lookups)])


def snapshot_decision(new: NewSnapshot, epoch: int, *, now_ms: int) -> Decision:
    """Return the row of the ledger that says which snapshot of a source has begun in one of Kafka's partitions, and its epoch."""
    return Decision(
        kind=Kind.SNAPSHOT,
        time_ms=now_ms,
        name=f"{place_name(new.scope, new.partition)}/{new.position}",
        details={"scope": new.scope, "partition": new.partition, "position": new.position, "epoch": epoch, "offset": new.offset},
    )


def truncate_decision(position: str, *, is_applied: bool, now_ms: int) -> Decision:
    """Return the row of the ledger that says where a table of a source was truncated, by its scope and its table."""
    end = SourcePosition.of(position)
    details = {"position": position, "applied": is_applied}
    return Decision(kind=Kind.TRUNCATE, time_ms=now_ms, name=f"{end.scope}{end.table}" or None, details=details)
