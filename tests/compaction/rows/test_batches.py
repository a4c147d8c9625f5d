"""Batches of a bounded size: cut, joined, divided by partition; the rows and their order stay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from lastword.compaction.rows.batches import BatchLimits, by_partition, in_batches, in_threads, join_batches


@pytest.mark.parametrize(
    ("limits", "sizes"),
    [
        (BatchLimits(), [8]),
        (BatchLimits(batch_rows=3), [3, 3, 2]),
        (BatchLimits(batch_rows=3, max_combined_bytes=0), [2, 2, 2, 2]),
        (BatchLimits(batch_bytes=16), [2, 2, 2, 2]),
        (BatchLimits(batch_bytes=0), [1] * 8),
    ],
)
def test_a_table_is_cut_by_rows_and_bytes(limits: BatchLimits, sizes: list[int]) -> None:
    """Its chunks, two rows each, are one first, if the table is not large."""
    table = pa.table({"n": pa.chunked_array([pa.array([at, at + 1], pa.int64()) for at in range(0, 8, 2)])})
    batches = in_batches(table, limits)
    assert [len(batch) for batch in batches] == sizes
    assert pa.Table.from_batches(batches).column("n").to_pylist() == list(range(8))
    assert in_batches(table.slice(0, 0)) == []


def test_batches_are_joined_up_to_a_number_of_rows_or_bytes() -> None:
    """One more row, or byte, begins the next."""
    batches = [pa.record_batch({"n": pa.array([number, number], pa.int64())}) for number in range(4)]
    sizes = [
        [len(batch) for batch in join_batches(batches, limits)]
        for limits in (
            BatchLimits(),
            BatchLimits(joined_rows=4),
            BatchLimits(joined_rows=3),
            BatchLimits(batch_bytes=32),
            replace(BatchLimits(), batch_bytes=31),
        )
    ]
    assert sizes == [[8], [4, 4], [2, 2, 2, 2], [4, 4], [2, 2, 2, 2]]
    assert list(join_batches([])) == []


def test_rows_are_divided_by_partition_in_their_order() -> None:
    """Those that are not wanted are left out."""
    rows = pa.record_batch({"partition": pa.array([1, 0, 1, 0, 2], pa.int32()), "n": pa.array(range(5), pa.int64())})
    wanted = np.array([True, True, True, False, True])
    assert [(number, mine.column("n").to_pylist()) for number, mine in by_partition(rows, wanted)] == [(0, [1]), (1, [0, 2]), (2, [4])]
    assert by_partition(rows, np.zeros(5, dtype=np.bool_)) == []
    one = rows.slice(0, 1)
    assert by_partition(one, np.ones(1, dtype=np.bool_)) == [(1, one)]


@pytest.mark.parametrize("count", [0, 1, 5])
def test_results_come_in_the_order_of_what_is_given(count: int) -> None:
    """Whichever is done first."""
    assert list(in_threads(lambda number: number * 2, list(range(count)))) == [number * 2 for number in range(count)]
