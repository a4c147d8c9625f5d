"""Numbers in a plan that are others in the next run: log ends, the time, what a record takes.

```
 offset + 4711                      a constant is written into the generated code: each run compiles a class of its own, and the JVM
                                    begins to warm it up, while the micro-batch goes through the interpreter
 offset + get(array(4711), ...)     an element of a list is looked up: the class is that of the last run, and warm
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column


def by_partition(values: Sequence[int], partition: Column) -> Column:
    """Return the value (bigint) that belongs to a row's partition, from a list with one number a partition; null outside of it.

    Equal numbers fold into a constant, which Spark can push down to files.
    """
    if len(set(values)) == 1:
        return F.lit(values[0]).cast("bigint")
    return F.get(F.expr(bigints(values)), partition)


def listed_by_partition(values: Sequence[int | None]) -> str:
    """Return the SQL of the value (bigint) that belongs to a row's `partition`, from a list as in `by_partition`; never a constant."""
    return f"get({bigints(values)}, partition)"


def bigints(values: Sequence[int | None]) -> str:
    """Return the SQL of a list of numbers (array<bigint>), one a partition; None is null."""
    return f"array({','.join('CAST(NULL AS BIGINT)' if value is None else f'{value}L' for value in values)})"


def looked_up(constant: str, at: str = "partition") -> str:
    """Return the SQL of a constant (SQL too) that is looked up at run time; `at` is any column of whole numbers."""
    return f"get(array({constant}), coalesce(CAST(pmod({at}, 1) AS INT), 0))"
