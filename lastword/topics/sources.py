"""The sources of a topic's change events, as `lastword sources` shows them, and what people decide of them.

```
 source            epoch   rows not in its snapshot   remarks
 postgresql.shop   2       3                          -
 mysql.old         1       0                          retired
```

Positions are compared within a source. `new_epoch`: what comes from now on is newer than all that came before. `retire`: what comes from
the source is late from now on. `sweep`: rows that its newest snapshot lacks are deleted. Rules: docs/semantics.md#A.60 to A.62.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Final
from urllib.parse import quote

from lastword.compaction.config.keys import MINUTE_MS
from lastword.compaction.display import Displayed
from lastword.compaction.errors import UserError
from lastword.compaction.order.source_epochs import EVERY_PARTITION
from lastword.compaction.order.source_positions import NO_SCOPE, UNNAMED_BELOW, shown_position
from lastword.compaction.order.source_states import SourceState, source_name
from lastword.storage.append.append import sweep
from lastword.storage.append.snapshot_gaps import SnapshotGap, begin_of, open_snapshots, read_gaps
from lastword.storage.append.source_decisions import new_epoch_decision, source_decision, sweep_decision

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lastword.storage.ledger.decisions import Decision, Decisions
    from lastword.storage.log.topic_log import LogState, TopicLog

#: What are no sources among the scopes of a log.
_NO_SOURCES: Final = frozenset({"", NO_SCOPE, UNNAMED_BELOW})
#: Rows that a snapshot lacks are counted again after this time at the earliest, as keys are read for it.
_RECOUNT_MS: Final = MINUTE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotDescription:
    """A snapshot of a source in one of Kafka's partitions (empty if the events have none): its position, its epoch, whether it was swept.

    Without a position it is a new epoch that somebody has said to begin; `partition` is `*` then.
    """

    partition: str
    position: str
    epoch: int
    swept: bool


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SourceDescription(Displayed):
    """One source of a topic.

    `since_ms` is when the topic saw it first, None if an older version did. `lower_positions` is the position of a late event that was
    younger than the record above it in the present epoch, empty for none: the source may need a new epoch. `by_lsn` tells that
    PostgreSQL's LSN is all that is known of the order. `rows_not_in_snapshot` counts the rows that its newest snapshots lack, and
    `incomplete_snapshots` names Kafka's partitions in which no change has come behind them.
    """

    BRIEF: ClassVar = ("name", "since_ms", "epoch", "retired", "lower_positions", "rows_not_in_snapshot")

    name: str
    since_ms: int | None
    epoch: int
    retired: bool
    by_lsn: bool
    lower_positions: str
    snapshots: tuple[SnapshotDescription, ...]
    rows_not_in_snapshot: int
    incomplete_snapshots: tuple[str, ...]


def describe_sources(log: TopicLog, gaps: Sequence[SnapshotGap] | None = None) -> tuple[SourceDescription, ...]:
    """Return the sources of a topic by name; `gaps` are those of `read_gaps`, which reads keys if they are not given."""
    state = log.at()
    found = read_gaps(state) if gaps is None else gaps
    described = [_describe(scope, state.decisions, [gap for gap in found if gap.scope == scope]) for scope in _read_scopes(state)]
    return tuple(sorted(described, key=lambda source: source.name))


def _describe(scope: str, decisions: Decisions, gaps: Iterable[SnapshotGap]) -> SourceDescription:
    epochs, state = decisions.epochs, decisions.sources.get(scope)
    epoch, swept = epochs.highest_epoch(scope), decisions.sweeps
    snapshots = [
        SnapshotDescription(
            partition=partition,
            position=shown_position(snapshot.position),
            epoch=snapshot.epoch,
            swept=(scope, partition, snapshot.position, snapshot.epoch) in swept,
        )
        for (name, partition), known in sorted(epochs.snapshots.items())
        for snapshot in known
        if name == scope and (snapshot.position or partition == EVERY_PARTITION)
    ]
    return SourceDescription(
        name=source_name(scope),
        since_ms=None if state is None else state.since_ms,
        epoch=epoch,
        retired=state is not None and state.is_retired,
        by_lsn=state is not None and state.is_by_lsn,
        lower_positions=state.lower_example if state is not None and state.has_lower_positions(epoch) else "",
        snapshots=tuple(snapshots),
        rows_not_in_snapshot=sum(len(gap.rows) for gap in gaps if gap.is_complete),
        incomplete_snapshots=tuple(sorted(gap.partition for gap in gaps if not gap.is_complete)),
    )


@dataclass(slots=True)
class SourceDescriptions:
    """Describes the sources of a topic again and again; keys are read only while a snapshot may lack rows, once a minute at most."""

    log: TopicLog
    _gaps: list[SnapshotGap] = field(default_factory=list)
    _counted_ms: int = -_RECOUNT_MS
    _open: frozenset[tuple[str, str, str]] = frozenset()

    def collect(self, *, now_ms: int) -> tuple[SourceDescription, ...]:
        """Return what `describe_sources` does; how many rows a snapshot lacks may be a minute old."""
        there = frozenset((*place, begin_of(snapshot)) for place, snapshot in open_snapshots(self.log.decisions()))
        is_settled = there == self._open and all(gap.is_complete and not len(gap.rows) for gap in self._gaps)
        if there != self._open or (not is_settled and now_ms - self._counted_ms >= _RECOUNT_MS):
            self._gaps, self._counted_ms, self._open = read_gaps(self.log.at()), now_ms, there
        return describe_sources(self.log, self._gaps)


def begin_epoch(log: TopicLog, name: str, *, now_ms: int) -> int:
    """Begin a new epoch of a source with its next events, and return its number. Raises `UserError` for a source that is not known."""
    scope = _scope_of(log, name)

    def begin(today: Decisions) -> tuple[list[Decision], int]:
        epoch = today.epochs.highest_epoch(scope) + 1
        return [new_epoch_decision(scope, epoch, now_ms=now_ms)], epoch

    return log.ledger.decide(begin)


def retire(log: TopicLog, name: str, *, is_retired: bool, now_ms: int) -> bool:
    """Retire a source, or take it back, and return whether that changed anything. Raises `UserError` for a source that is not known.

    A snapshot that came while it was retired lacks what was left out of it: it is not swept any more.
    """
    scope, version = _scope_of(log, name), log.snapshot().version

    def change(today: Decisions) -> tuple[list[Decision], bool]:
        state = today.sources.get(scope, SourceState(scope=scope, since_ms=now_ms))
        if state.is_retired == is_retired:
            return [], False
        snapshots = [] if is_retired else [(place, snapshot) for place, snapshot in open_snapshots(today) if place[0] == scope]
        closed = [sweep_decision(place, snapshot, rows=0, table_version=version, now_ms=now_ms) for place, snapshot in snapshots]
        return [*closed, source_decision(replace(state, is_retired=is_retired), now_ms=now_ms)], True

    return log.ledger.decide(change)


def sweep_source(log: TopicLog, name: str, *, incomplete: bool, now_ms: int) -> int:
    """Delete the rows that the newest snapshots of a source lack, and return how many.

    Raises `UserError` for a source that is not known, and, unless `incomplete`, for one with a snapshot that may not be complete.
    """
    scope = _scope_of(log, name)
    unsure = sorted({gap.partition or "-" for gap in read_gaps(log.at()) if gap.scope == scope and not gap.is_complete})
    if unsure and not incomplete:
        message = (
            f"topic {log.name}: the snapshot of {name} may not be complete: no change has come behind it in Kafka's partition "
            f"{', '.join(unsure)}; wait for one, or sweep it as it is (--incomplete): rows that it brings later come back"
        )
        raise UserError(message)
    return sweep(log, lambda gap: gap.scope == scope, now_ms=now_ms)


def _scope_of(log: TopicLog, name: str) -> str:
    """Return the scope of a source of a topic by its name; raise `UserError` naming those that there are."""
    scope_by_name = {source_name(scope): scope for scope in _read_scopes(log.at())}
    scope = scope_by_name.get(name) or scope_by_name.get(quote(name, safe=".%"))
    if scope is None:
        known = ", ".join(sorted(scope_by_name)) or "none"
        message = f"topic {log.name} has no source {name!r}; its sources are: {known}"
        raise UserError(message)
    return scope


def _read_scopes(state: LogState) -> set[str]:
    """Return the scopes of the sources of a topic: those in its ledger, and those in its files."""
    in_files = {scope for highest in state.snapshot.highest_sequences(state.partitions) for scope in highest}
    return (in_files | {*state.decisions.sources}) - _NO_SOURCES
