"""What a log knows of the source sequences of a partition before an append, without a look at its records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lastword.compaction.order.source_positions import UNNAMED_BELOW, SourcePosition, scope_of

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Above each order.
_ABOVE_ALL: Final = "~"


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceBounds:
    """What is known of the source sequences of one partition.

    `highest` are the highest in its files, by scope. `removed` are the highest orders of the removed deletions, by scope and Kafka's
    partition. `truncated` are the positions of TRUNCATEs, by scope and table. `floors` are the orders that changes of PostgreSQL have at
    least, behind the snapshots. The events of `retired` scopes are all late.
    """

    highest: Mapping[str, str] = field(default_factory=dict)
    removed: Mapping[tuple[str, str], str] = field(default_factory=dict)
    truncated: Mapping[tuple[str, str], str] = field(default_factory=dict)
    floors: frozenset[str] = frozenset()
    retired: frozenset[str] = frozenset()

    def highest_of(self, scope: str) -> str:
        """Return the highest order of a scope; one above all where a file of an older version may have it and does not say so."""
        below = self.highest.get(UNNAMED_BELOW, "")
        if scope < below and scope_of(below) != scope:
            return _ABOVE_ALL
        return SourcePosition.of(self.highest.get(scope, "")).commit

    def removed_by_scope(self) -> dict[str, str]:
        """Return the highest order of the removed deletions of each scope, from whichever of Kafka's partitions."""
        removed: dict[str, str] = {}
        for (scope, _), commit in self.removed.items():
            removed[scope] = max(commit, removed.get(scope, ""))
        return removed

    def passed_of(self, scope: str) -> str:
        """Return the order above which every row of a scope is newer than all TRUNCATEs; empty where there is none."""
        ends = [SourcePosition.of(text) for (name, _), text in self.truncated.items() if name == scope]
        return max((text for end in ends for text in (end.commit, end.in_table)), default="")
