"""Ranges of slices: as few as name them, and the condition that finds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lastword.storage.delta.slice_ranges import SliceRange, any_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SLICES = [(partition, slice_) for partition in range(5) for slice_ in range(0, 200, 10)]
_FIRST, _SECOND = SliceRange(partition=1, first_slice=10, last_slice=30), SliceRange(partition=3, first_slice=0, last_slice=0)
_SETS = {
    "none": [],
    "one": [_FIRST],
    "one each of two partitions": [_FIRST, _SECOND],
    "two of one partition, one of another": [_FIRST, SliceRange(partition=1, first_slice=60, last_slice=90), _SECOND],
    "as many as there are, each by itself": [SliceRange(partition=2, first_slice=one, last_slice=one) for one in range(0, 200, 20)],
}


def test_the_condition_holds_for_the_slices_named_and_no_others(spark: SparkSession) -> None:
    """Whether bounds are looked up or, where a partition has many ranges, written one by one."""
    slices = spark.createDataFrame(_SLICES, "partition int, slice bigint")
    told = slices.select("*", *[F.expr(any_of(ranges)).alias(name) for name, ranges in _SETS.items()]).collect()
    for name, ranges in _SETS.items():
        named = {
            (partition, slice_)
            for partition, slice_ in _SLICES
            if any(one.partition == partition and one.first_slice <= slice_ <= one.last_slice for one in ranges)
        }
        assert {(row["partition"], row["slice"]) for row in told if row[name]} == named, name


def test_few_ranges_of_a_partition_leave_no_number_in_the_condition_that_another_round_would_have_elsewhere() -> None:
    """The generated code is that of the last round then: what differs stands in lists."""
    assert any_of([_FIRST, _SECOND]) == (
        "(slice >= get(array(CAST(NULL AS BIGINT),10L,CAST(NULL AS BIGINT),0L), partition)"
        " AND slice <= get(array(CAST(NULL AS BIGINT),30L,CAST(NULL AS BIGINT),0L), partition))"
    )
