"""Rows of the ledger about the sources of change events of a topic: the sources, their snapshots, epochs, TRUNCATEs and sweeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lastword.compaction.order.source_epochs import EVERY_PARTITION
from lastword.compaction.order.source_positions import NO_SCOPE, SourcePosition, epoch_text, place_name
from lastword.compaction.order.source_states import SourceState, notes_of
from lastword.storage.ledger.decisions import Decision, Kind

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from lastword.compaction.order.source_epochs import NewSnapshot, Place, Snapshot
    from lastword.compaction.order.source_states import SourceCounts
    from lastword.storage.append.plan import AppendPlan
    from lastword.storage.ledger.decisions import Decisions
    from lastword.storage.log.topic_log import TopicLog


def begin_snapshots(log: TopicLog, new: Sequence[NewSnapshot], plan: AppendPlan, *, now_ms: int) -> None:
    """Write into the ledger which snapshots of sources begin: their rows, and what comes behind them, have an epoch from then on.

    The append is to be planned again after it.
    """
    before = _highest_before({(snapshot.scope, snapshot.partition) for snapshot in new}, plan)

    def begin(today: Decisions) -> tuple[list[Decision], None]:
        decided, places = list[Decision](), set[tuple[str, str]]()
        for snapshot, epoch in today.epochs.epochs_of_new(new, before):
            place = snapshot.scope, snapshot.partition
            is_first = place not in before and not (snapshot.before or today.epochs.of(place) or place in places)
            places.add(place)
            decided.append(snapshot_decision(snapshot, epoch, is_first=is_first, now_ms=now_ms))
        return decided, None

    log.ledger.decide(begin)


def _highest_before(places: Collection[Place], plan: AppendPlan) -> dict[Place, str]:
    """Return the highest order that the log has of each of some scopes and Kafka partitions; without those of which it has no event."""
    removed = [{place: bounds.removed[place] for place in places if place in bounds.removed} for bounds in plan.sequences]
    there = [place for place in places if any(bounds.highest_of(place[0]) for bounds in plan.sequences)]
    before: dict[Place, str] = {}
    for highest in [*removed, *(lookup.highest_in(there) for lookup in plan.lookups)]:
        for place, order in highest.items():
            before[place] = max(order, before.get(place, ""))
    return before


def snapshot_decision(new: NewSnapshot, epoch: int, *, is_first: bool, now_ms: int) -> Decision:
    """Return the row of the ledger that says which snapshot of a source has begun in one of Kafka's partitions, and its epoch."""
    details = {"scope": new.scope, "partition": new.partition, "position": new.position, "epoch": epoch, "offset": new.offset}
    name = f"{place_name(new.scope, new.partition)}/{new.position}"
    return Decision(kind=Kind.SNAPSHOT, time_ms=now_ms, name=name, details={**details, "is_first": is_first})


def new_epoch_decision(scope: str, epoch: int, *, now_ms: int) -> Decision:
    """Return the row of the ledger that says that a new epoch of a source begins with the next events, in all of Kafka's partitions."""
    details = {"scope": scope, "partition": EVERY_PARTITION, "position": "", "epoch": epoch, "offset": None}
    return Decision(kind=Kind.SNAPSHOT, time_ms=now_ms, name=f"{place_name(scope, EVERY_PARTITION)}/{epoch}", details=details)


def sweep_decision(place: Place, snapshot: Snapshot, *, rows: int, table_version: int, now_ms: int) -> Decision:
    """Return the row of the ledger that says that what a snapshot of a source lacks in one of Kafka's partitions was deleted.

    `table_version` shows the deletions: a RESTORE to before it makes the row void.
    """
    details = {"scope": place[0], "partition": place[1], "position": snapshot.position, "epoch": snapshot.epoch, "rows": rows}
    name = f"{place_name(*place)}/{epoch_text(snapshot.epoch)}/{snapshot.position}"
    return Decision(kind=Kind.SWEEP, time_ms=now_ms, name=name, table_version=table_version, details=details)


def truncate_decision(position: str, *, is_applied: bool, now_ms: int) -> Decision:
    """Return the row of the ledger that says where a table of a source was truncated, by its scope and its table."""
    end = SourcePosition.of(position)
    details = {"position": position, "applied": is_applied}
    return Decision(kind=Kind.TRUNCATE, time_ms=now_ms, name=f"{end.scope}{end.table}" or None, details=details)


def note_sources(log: TopicLog, counts: Mapping[str, SourceCounts], known: Decisions, *, has_columns: bool, now_ms: int) -> tuple[str, ...]:
    """Write into the ledger what an append learns of its sources, and return it as texts; nothing where the ledger has it.

    `has_columns` tells whether this append or one before it knew the columns of the rows.
    """

    def change(today: Decisions) -> tuple[list[Decision], tuple[str, ...]]:
        rows, notes, states = list[Decision](), list[str](), dict(today.sources)
        for scope, counted in counts.items():
            if scope == NO_SCOPE:
                continue
            before = states.get(scope)
            after = (before or SourceState(scope=scope, since_ms=now_ms)).after(counted, today.epochs.highest_epoch(scope))
            if after != before:
                rows.append(source_decision(after, now_ms=now_ms))
                notes.extend(notes_of(before, after, states.values(), topic=log.name, has_columns=has_columns))
                states[scope] = after
        return rows, tuple(notes)

    return log.ledger.decide(change) if change(known)[0] else ()


def source_decision(state: SourceState, *, now_ms: int) -> Decision:
    """Return the row of the ledger that says what is known of a source."""
    return Decision(kind=Kind.SOURCE, time_ms=now_ms, name=state.scope, details=state.to_details())
