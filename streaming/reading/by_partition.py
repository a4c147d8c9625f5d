"""Numbers of a partition in a Spark plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column


def by_partition(values: Sequence[int], partition: Column) -> Column:
    """Return the value (bigint) that belongs to a row's partition, from a list with one number a partition; null outside of it.

    Equal numbers fold into a constant, which Spark can push down to files. Others are looked up in a list: a constant would be written into
    the generated code, and each run would compile a class of its own.
    """
    if len(set(values)) == 1:
        return F.lit(values[0]).cast("bigint")
    listed = ",".join(f"{value}L" for value in values)
    return F.get(F.expr(f"array({listed})"), partition)
