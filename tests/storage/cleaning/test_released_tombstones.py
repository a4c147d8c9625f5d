"""A tombstone that a purge lets go: in the pass that drops what it supersedes, or in any later one, whoever waits for it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from lastword.compaction.planning.receipt import CleaningReceipt
from lastword.compaction.rows.fates import Removal
from lastword.storage.ledger.decisions import Decision, Kind
from lastword.storage.ledger.ledger import Ledger
from tests.compaction.logs import cleaned, pass_over, rows
from tests.compaction.row_rules import fate

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_CREATED = Decision(kind=Kind.CREATE, time_ms=0, details={"topic_id": "id", "partitions": 2})


@pytest.mark.parametrize(
    ("before", "released", "after"),
    [
        ("0:k=1 1:j=1 2:k=∅", [2], "1:j=1"),
        ("0:j=1 2:k=∅~99", [2], "0:j=1"),
        ("0:k=∅ 1:j=∅", [1], "0:k=∅~10"),
        ("0:k=1 1:k=∅ 2:k=2", [1], "2:k=2"),
        ("0:k=1 1:j=1", [0], "0:k=1 1:j=1"),
    ],
    ids=["with what it supersedes", "before its horizon", "no other one", "written again since", "a record is none"],
)
def test_a_released_tombstone_goes_at_once(before: str, released: list[int], after: str) -> None:
    """It is removed before its horizon and before a registered reader has read it; other records are not affected."""
    assert cleaned(before, now_ms=0, unread=0, released=released) == after


def test_the_receipt_counts_it_apart() -> None:
    """Under a reason of its own."""
    log = [one.row for one in rows("0:k=1 1:k=∅ 2:j=∅~5")]
    cleaning = replace(pass_over(log, first_dirty=0, end=9, now_ms=5, delete_retention_ms=10), released=[1])
    assert [fate(row, cleaning).removal for row in log] == [Removal.SUPERSEDED, Removal.PURGED_TOMBSTONE, Removal.EXPIRED_TOMBSTONE]


def test_a_release_holds_until_a_cleaning_has_passed_it_or_a_restore_made_it_void(tmp_path: Path) -> None:
    """Decided before or after the tombstone was cleaned; offsets that a RESTORE gives again belong to other records."""
    ledger = Ledger(str(tmp_path / "ledger"), "fruit")
    ledger.create([_CREATED])

    def decided(kind: Kind, offset: int | None, version: int, details: Mapping[str, Any] | None = None) -> list[int]:
        partition = None if kind is Kind.RESTORE else 0
        row = Decision(kind=kind, time_ms=0, partition=partition, offset=offset, table_version=version, details=details or {})
        return ledger.append([row]).released_offsets(0)

    assert decided(Kind.PURGE, 7, 1) == [7]
    assert decided(Kind.CLEAN, 5, 2) == [7], "the cleaning did not come so far"
    assert decided(Kind.CLEAN, 8, 3) == []
    assert decided(Kind.PURGE, 3, 4) == [3], "a tombstone of the clean section"
    assert decided(Kind.PURGE, 9, 5) == [3, 9]
    assert decided(Kind.RESTORE, None, 8, {"restored_version": 4}) == [3], "what was decided at version 5 is void"
    assert decided(Kind.CLEAN, 8, 9) == []
    assert ledger.read().released_offsets(1) == []


def test_an_old_receipt_is_read_as_if_every_tombstone_had_expired() -> None:
    """Receipts from before there were purges lie in ledgers and commits."""
    fields = dict.fromkeys(CleaningReceipt.__dataclass_fields__, 0) | {"removed": {}, "highest_removed_tombstone": 4}
    del fields["highest_expired_tombstone"], fields["removed_positions"]
    assert CleaningReceipt.from_details(fields).highest_expired_tombstone == 4
