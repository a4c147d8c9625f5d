"""The source sequences of a partition that a log knows without reading its records; appends compare their rows with them first."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lastword.compaction.order.source_positions import UNNAMED_BELOW, SourcePosition, scope_of

if TYPE_CHECKING:
    from collections.abc import Mapping

#: A text that sorts after every order.
_ABOVE_ALL: Final = "~"


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceBounds:
    """The source sequences of a partition, as far as the files' metadata and the ledger know them.

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
        """Return the highest order of a scope. It is above every order if a file written by an older version may hold the scope unnamed."""
        below = self.highest.get(UNNAMED_BELOW, "")
        if scope < below and scope_of(below) != scope:
            return _ABOVE_ALL
        return SourcePosition.of(self.highest.get(scope, "")).commit

    def highest_removed_by_scope(self) -> dict[str, str]:
        """Return by scope the highest order of a deletion that cleaning has removed, over all of Kafka's partitions."""
        removed: dict[str, str] = {}
        for (scope, _), commit in self.removed.items():
            removed[scope] = max(commit, removed.get(scope, ""))
        return removed

    def last_truncate_of(self, scope: str) -> str:
        """Return the highest order of a TRUNCATE of any table in a scope; empty if there is none. Rows with a higher order follow it."""
        ends = [SourcePosition.of(text) for (name, _), text in self.truncated.items() if name == scope]
        return max((text for end in ends for text in (end.commit, end.in_table)), default="")
