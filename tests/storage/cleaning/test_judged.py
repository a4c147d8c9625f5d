"""Judged positions as bits: where they come to the driver, and where they stay with Spark, they are the same."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from lastword.storage.cleaning.judged import BITS, BLOCK, as_blocks, judged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("gathers", [True, False])
def test_positions_are_bits_of_blocks_wherever_they_are_kept(spark: SparkSession, *, gathers: bool) -> None:
    """One block of partition 1 gets its bits from two parts.

    ```
     partition  offsets                    blocks
     0          0, 63                      0: bits 0 and 63
     1          64, 66  +  65              1: bits 0, 1, 2
     1          (one without an offset)    counted, in no block
    ```
    """
    reads = Mock(spark=spark, few=lambda rows: rows, hold=lambda rows: rows)
    newest = spark.createDataFrame([(0, 0), (0, 63), (1, 64), (1, 66), (1, None)], "partition int, offset bigint")
    clean = spark.createDataFrame([(1, 7, 65)], "partition int, segment bigint, offset bigint")
    parts = [
        judged(reads, [newest], ["partition"], gathers=gathers, span_bits=3),
        judged(reads, [clean], ["partition", "segment"], gathers=gathers, span_bits=3),
    ]

    found = [(partition, rows, ranges.tolist()) for partition, rows, ranges in parts[0].by_partition()]
    exact = [(0, 2, [[0, 0], [63, 63]]), (1, 2, [[64, 64], [66, 66]])]
    assert found == (exact if gathers else [exact[0], (1, 2, [[64, 66]])])
    assert parts[0].counts.column("block").null_count == 1
    assert [(row["segment"], row["rows"]) for row in parts[1].counts.to_pylist()] == [(7, 1)]
    assert (parts[0].positions is None) == gathers
    blocks = {row[BLOCK]: row[BITS] for row in as_blocks(reads, parts).collect()}
    assert blocks == {0: 1 - 2**63, (1 << 42) + 1: 0b111}


def test_no_position_is_no_block(spark: SparkSession) -> None:
    """A dirty range that holds nothing but records without a key."""
    reads = Mock(spark=spark, few=lambda rows: rows)
    keyless = judged(reads, [spark.createDataFrame([(3, None)], "partition int, offset bigint")], ["partition"], gathers=True, span_bits=3)
    assert list(keyless.by_partition()) == []
    assert as_blocks(reads, [keyless]).collect() == []
