"""Receipts, as they go into the ledger and come out of it."""

from __future__ import annotations

import json

from lastword.compaction.planning.receipt import CleaningReceipt, estimated_bytes
from tests.compaction.logs import drawn

_RECEIPT = CleaningReceipt(
    topic="fruit",
    partition=0,
    trigger="dirty_ratio",
    first_dirty_offset=0,
    end_offset=4,
    cleanable_ratio=1.0,
    table_version=7,
    segments_before=2,
    groups=1,
    records_before=4,
    records_after=2,
    bytes_before=400,
    bytes_after=200,
    removed={"superseded": 1, "expired_tombstone": 1},
    emptied=0,
    map_entries=3,
    map_utilization=0.5,
    rounds_left=0,
    highest_removed_tombstone=3,
    highest_expired_tombstone=2,
    removed_bytes={"superseded": 100, "expired_tombstone": 100},
    indexed_bytes=400,
    read_bytes=800,
    index_ms=10,
    total_ms=20,
    now_ms=1_000,
)


def test_a_receipt_comes_out_of_the_ledger_as_it_went_in() -> None:
    """As JSON; what went is counted over all reasons."""
    assert CleaningReceipt.from_details(json.loads(json.dumps(_RECEIPT.to_details()))) == _RECEIPT
    assert _RECEIPT.removed_count == 2


def test_a_receipt_of_before_purges_had_no_other_tombstones_than_expired_ones() -> None:
    """Its field is missing; the one beside it said the same then."""
    details = _RECEIPT.to_details()
    del details["highest_expired_tombstone"]
    assert CleaningReceipt.from_details(details).highest_expired_tombstone == 3


def test_a_receipt_of_before_bytes_were_counted_by_reason_has_none() -> None:
    """Its field is missing."""
    details = _RECEIPT.to_details()
    del details["removed_bytes"]
    assert CleaningReceipt.from_details(details).removed_bytes == {}


def test_rows_that_go_take_the_mean_bytes_of_a_record_in_their_segment() -> None:
    """100 records of 10 B, 100 of 25 B, three of 33.3 B: 3 × 10 + 4 × 25 are 130 B, two of the three are 67 B."""
    segments = drawn("0:1000 100:2500 200:100#3 210").segments
    removed = {"superseded": {0: 3, 100: 4}, "expired_tombstone": {200: 2}, "empty": {100: 1}}
    assert estimated_bytes(removed, segments) == {"empty": 25, "expired_tombstone": 67, "superseded": 130}
    assert estimated_bytes({}, segments) == {}
