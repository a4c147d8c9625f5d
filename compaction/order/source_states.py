"""Sources of change events as a topic sees them: what an append counts of each, and what is kept of it in the ledger.

```
 append    postgresql.shop   120 rows, 3 late, 1 without a position        counted by the append
 ledger    postgresql.shop   retired, by LSN alone, lower positions in epoch 1    a row when one of these changes
```

A late event is usually one that comes again after a restart of the connector. One that is more than a minute younger in the source than
the record above it cannot be that: the source counts from lower positions, as after a failover. Rule: docs/semantics.md#A.61.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from lastword.compaction.order.source_positions import NO_SCOPE, scope_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

#: A late event is taken for one of a new epoch if it is so much younger than the record above it.
NEW_EPOCH_MS: Final = 60_000
#: The name under which events are counted that do not name their source.
UNNAMED: Final = "(unnamed)"
#: How many other sources a note names.
_NAMED: Final = 5


def source_name(scope: str) -> str:
    """Return the name under which a scope is shown: `postgresql.shop`."""
    return UNNAMED if scope == NO_SCOPE else scope_name(scope)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCounts:
    """What one append did with the events of one source.

    `rows` came in, of which `late` were left out, `without_position` had no position of their own, and `lower_positions` are late ones
    that are younger than the record above them. `example` is the position of one of the last. `is_by_lsn` tells that PostgreSQL's LSN is
    all that is known of the order.
    """

    rows: int = 0
    late: int = 0
    without_position: int = 0
    lower_positions: int = 0
    example: str = ""
    is_by_lsn: bool = False

    def plus(self, other: SourceCounts) -> SourceCounts:
        """Return the sum of these counts and others."""
        return SourceCounts(
            rows=self.rows + other.rows,
            late=self.late + other.late,
            without_position=self.without_position + other.without_position,
            lower_positions=self.lower_positions + other.lower_positions,
            example=self.example or other.example,
            is_by_lsn=self.is_by_lsn or other.is_by_lsn,
        )


def sum_counts(parts: Iterable[Mapping[str, SourceCounts]]) -> dict[str, SourceCounts]:
    """Return the sums of several counts, by scope."""
    sums: dict[str, SourceCounts] = {}
    for part in parts:
        for scope, counts in part.items():
            sums[scope] = sums.get(scope, SourceCounts()).plus(counts)
    return dict(sorted(sums.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceState:
    """What the ledger keeps of one source of a topic.

    `is_retired`: its events are late, whatever their position. `lower_epoch` is the newest epoch in which events came at lower positions
    that were younger, 0 for none, and `lower_example` the position of one of them. `is_by_lsn` as in `SourceCounts`.
    """

    scope: str
    since_ms: int
    is_retired: bool = False
    is_by_lsn: bool = False
    lower_epoch: int = 0
    lower_example: str = ""

    @property
    def name(self) -> str:
        """The name under which the source is shown."""
        return source_name(self.scope)

    def after(self, counts: SourceCounts, epoch: int) -> SourceState:
        """Return the state after an append of its events, in an epoch."""
        state = replace(self, is_by_lsn=self.is_by_lsn or counts.is_by_lsn)
        if counts.lower_positions and not self.is_retired and epoch > self.lower_epoch:
            state = replace(state, lower_epoch=epoch, lower_example=counts.example)
        return state

    def has_lower_positions(self, epoch: int) -> bool:
        """Return True if the source may have begun a new epoch that was not declared."""
        return not self.is_retired and self.lower_epoch >= epoch

    def to_details(self) -> dict[str, Any]:
        """Return it as the details of a row of the ledger."""
        return {
            "scope": self.scope,
            "since_ms": self.since_ms,
            "retired": self.is_retired,
            "by_lsn": self.is_by_lsn,
            "lower_epoch": self.lower_epoch,
            "lower_example": self.lower_example,
        }

    @staticmethod
    def of_details(details: Mapping[str, Any]) -> SourceState:
        """Return the state that `to_details` describes."""
        return SourceState(
            scope=details["scope"],
            since_ms=details["since_ms"],
            is_retired=details["retired"],
            is_by_lsn=details["by_lsn"],
            lower_epoch=details["lower_epoch"],
            lower_example=details["lower_example"],
        )


#: What to do for a topic of change events whose columns are unknown.
ADD_SCHEMA: Final = (
    "let the connector send schemas (value.converter.schemas.enable = true, or a schema registry), or give the columns as SQL DDL where "
    "the events are appended: schema in the [[source]] block, Envelope(schema=…), --schema"
)


def notes_of(
    before: SourceState | None, after: SourceState, others: Collection[SourceState], *, topic: str, has_columns: bool
) -> list[str]:
    """Return what is new of a source, as texts for its operator; `others` are the sources that the topic had already.

    Some of them are named: a topic may have hundreds. `has_columns` tells whether a schema has said which columns the topic's rows have.
    """
    notes = []
    if before is None and not others and not has_columns:
        notes.append(
            f"source {after.name}: no event so far carried a schema, so decimals, times and bytes stay as the connector encoded them, and "
            f"topic {topic} has no columns for a table; {ADD_SCHEMA}"
        )
    if before is None and others:
        known = sorted(state.name for state in islice(others, _NAMED))
        rest = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
        notes.append(
            f"source {after.name} is another one beside {', '.join(known)}{rest}: positions are compared within a source alone, and "
            f"arrival counts between them; if it takes the place of another one: lastword sources retire {topic} {known[0]}"
        )
    if after.is_by_lsn and not (before is not None and before.is_by_lsn):
        notes.append(
            f"source {after.name}: its events have no source.sequence, so the LSN of each change orders them, not its commit: of "
            "transactions that run at once a row may go back; let the connector send it (add.fields = source.sequence), or raw events"
        )
    if after.lower_epoch and after.lower_epoch != (0 if before is None else before.lower_epoch):
        notes.append(lower_positions_text(after, topic=topic))
    return notes


def lower_positions_text(state: SourceState, *, topic: str) -> str:
    """Return the issue of a source that may count from lower positions, and what to do."""
    return (
        f"source {state.name}: late events are more than a minute younger than the records above them (position {state.lower_example}), so "
        "the source may count from lower positions, as after a failover; what came is left out until you say so: "
        f"lastword sources new-epoch {topic} {state.name}, and then let the connector take a snapshot"
    )
