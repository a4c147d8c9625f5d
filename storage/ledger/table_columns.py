"""The columns of the table whose rows a topic holds, as its ledger keeps them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lastword.storage.ledger.decisions import Decision, Kind

if TYPE_CHECKING:
    from lastword.compaction.rows.table_columns import TableColumns
    from lastword.storage.ledger.decisions import Decisions
    from lastword.storage.ledger.ledger import Ledger


def keep_columns(ledger: Ledger, columns: TableColumns, *, now_ms: int, sequence: str = "") -> None:
    """Write columns into the ledger, unless it has them, or those of a later source sequence."""
    details = columns.as_details()
    row = Decision(kind=Kind.COLUMNS, time_ms=now_ms, details={**details, "sequence": sequence})

    def chosen(today: Decisions) -> list[Decision]:
        known = dict(today.columns or {})
        is_older = sequence < known.pop("sequence", "")
        return [] if is_older or known == details else [row]

    if chosen(ledger.read()):
        ledger.decide(chosen)
