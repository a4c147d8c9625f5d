"""The columns of the table whose rows a topic holds, as its ledger keeps them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lastword.storage.ledger.decisions import Decision, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lastword.storage.ledger.decisions import Decisions
    from lastword.storage.ledger.ledger import Ledger


def keep_value_columns(ledger: Ledger, ddl: str, *, now_ms: int, sequence: str = "") -> None:
    """Write the columns of values into the ledger, as DDL, as `keep_columns` does."""
    keep_columns(ledger, {"key": "", "key_is_text": False, "value": ddl}, now_ms=now_ms, sequence=sequence)


def keep_columns(ledger: Ledger, details: Mapping[str, Any], *, now_ms: int, sequence: str = "") -> None:
    """Write columns into the ledger, unless it has them, or those of a later source sequence.

    `details` are those of `lastword.change_data.columns.table_columns.TableColumns.as_details`.
    """
    row = Decision(kind=Kind.COLUMNS, time_ms=now_ms, details={**details, "sequence": sequence})

    def newer(today: Decisions) -> list[Decision]:
        known = dict(today.columns or {})
        is_older = sequence < known.pop("sequence", "")
        return [] if is_older or known == details else [row]

    if newer(ledger.read()):
        ledger.decide(lambda today: (newer(today), None))
