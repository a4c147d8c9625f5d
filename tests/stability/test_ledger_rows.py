"""The rows of the ledger, one golden file a kind: a later version folds them, and tools read them as a Delta table."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from lastword import LogDir
from lastword.storage.ledger.decisions import Kind
from tests.golden import files, frozen_clock
from tests.pictures import T0
from tests.stability.lives import LIVES

if TYPE_CHECKING:
    from tests.golden import Golden


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of all ledgers by kind, as the Delta tables have them."""
    with frozen_clock(T0):
        logs = LogDir(tmp_path_factory.mktemp("lives", numbered=False))
        topics = [life(logs) for life in LIVES]
    found: dict[str, list[dict[str, Any]]] = {}
    for topic in topics:
        rows = DeltaTable(topic.log.paths.ledger).to_pyarrow_table().to_pylist()
        for row in sorted(rows, key=lambda row: row["sequence"]):
            row["time"] = round(row["time"].timestamp() * 1000)
            found.setdefault(row["kind"], []).append({"topic": topic.name, **row})
    return found


def _shape(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return what a row has: of rows that have the same, the first is enough."""
    members = [*row.items(), *row["details"].items()]
    return tuple((name, type(value), bool(value)) for name, value in members)


@pytest.mark.parametrize("kind", [kind.value for kind in Kind])
def test_a_row_of_each_kind_is_what_it_was(stored: dict[str, list[dict[str, Any]]], golden: Golden, kind: str) -> None:
    """Rows of before are not written again: a kind, a column or a member of `details` that changes its meaning breaks old ledgers."""
    rows = [{**row, "details": json.loads(row["details"])} for row in stored[kind]]
    golden.check(f"ledger/{kind}.json", list({_shape(row): row for row in reversed(rows)}.values())[::-1])


def test_there_is_no_golden_of_a_kind_that_is_not_there() -> None:
    """A kind that ends leaves rows in ledgers of before: it stays in `Kind`."""
    assert files("ledger") == {kind.value for kind in Kind}


def test_details_are_one_canonical_text(stored: dict[str, list[dict[str, Any]]]) -> None:
    """Sorted, and without spaces."""
    for row in (row for rows in stored.values() for row in rows):
        assert row["details"] == json.dumps(json.loads(row["details"]), separators=(",", ":"), sort_keys=True)
