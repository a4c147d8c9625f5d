"""Judged positions: the rows that a round of cleaning speaks of, as a set of bits.

```
 position = partition << 48 | offset                 one long identifies a row of the topic
 block    = position >> 6                            64 neighbouring positions share one
 bits     = one for each judged position of the block, that of offset & 63
```

The rows of a file ascend, so many of them ask for the same block. While there can only be few blocks they come to the driver, counted in
the same job, and go out again as a part of each plan that asks. Otherwise they stay where they are. Neither keys nor records ever come to
the driver.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lastword.storage.files.schema import OFFSET_BITS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray
    from pyspark.sql import Column

    from lastword.storage.cleaning.cleaning_reads import RoundReads

BLOCK_BITS: Final = 6
#: Columns of `as_blocks`.
BLOCK: Final = "__block"
BITS: Final = "__bits"
_BIT_NUMBER: Final = f"CAST(offset & {2**BLOCK_BITS - 1} AS INT)"
_BIT: Final = f"shiftleft(1L, {_BIT_NUMBER})"
#: Tells of a row that was joined with `as_blocks` by its block, outer, whether its position is judged.
IS_JUDGED: Final = f"coalesce(getbit({BITS}, {_BIT_NUMBER}), 0) = 1"
#: The offsets of so many blocks are told one by one.
_FEW_BLOCKS: Final = 4096
_BLOCKS: Final = pa.schema([(BLOCK, pa.int64()), (BITS, pa.int64())])


def position(partition: str = "partition", offset: str = "offset") -> Column:
    """Return the row's position: partition and offset in one long."""
    return F.expr(position_sql(partition, offset))


def position_sql(partition: str = "partition", offset: str = "offset") -> str:
    """Return the SQL of the row's position."""
    return f"(shiftleft(CAST({partition} AS BIGINT), {OFFSET_BITS}) | `{offset}`)"


@dataclass(frozen=True, slots=True)
class Judged:
    """Some judged positions: `counts` of them, and the positions themselves where they stayed with Spark.

    `counts` has the columns that they were counted by, `block` (null for what was only counted), `rows`, `first` and `last` offset, and
    `bits` where the blocks came to the driver.
    """

    counts: pa.Table
    positions: DataFrame | None

    def by_partition(self) -> Iterator[tuple[int, int, NDArray[np.int64]]]:
        """Return partition, number of positions, and ranges (first and last offset) that hold them, ascending; exact while they are few."""
        counts = self.counts.filter(self.counts.column("block").is_valid())
        partition, rows, first, last = (counts.column(name).to_numpy() for name in ("partition", "rows", "first", "last"))
        bits = counts.column("bits").to_numpy() if self.positions is None and len(counts) <= _FEW_BLOCKS else None
        for one in np.unique(partition).tolist():
            mine = np.flatnonzero(partition == one)
            mine = mine[np.argsort(first[mine])]
            if bits is not None:
                at, bit = np.nonzero(np.unpackbits(bits[mine].view(np.uint8).reshape(-1, 8), axis=1, bitorder="little"))
                offsets = (first[mine][at] >> BLOCK_BITS << BLOCK_BITS) + bit
                yield one, int(rows[mine].sum()), np.column_stack((offsets, offsets))
            else:
                yield one, int(rows[mine].sum()), np.column_stack((first[mine], last[mine]))


def judged(reads: RoundReads, rows: Sequence[DataFrame], by: Sequence[str], *, gathers: bool, span_bits: int) -> Judged:
    """Count rows (partition, offset and the columns `by`) and keep their positions; one without an offset is only counted.

    `rows` are those of each lane; what one task has of a lane needs no shuffle to be counted. With `gathers` they are counted by block,
    otherwise by spans of 2 ** `span_bits` offsets; `rows` should be held then.
    """
    shift = BLOCK_BITS if gathers else span_bits
    bits = [F.expr(f"bit_or({_BIT})").alias("bits")] if gathers else []
    counts = [F.count(F.lit(1)).alias("rows"), F.min("offset").alias("first"), F.max("offset").alias("last"), *bits]
    counted = [one.groupBy(*by, F.shiftright(position(), shift).alias("block")).agg(*counts) for one in rows]
    positions = None if gathers else joined(rows).where("offset IS NOT NULL").select("partition", "offset")
    return Judged(reads.few(joined(counted)).toArrow(), positions)


def joined(lanes: Sequence[DataFrame]) -> DataFrame:
    """Return the rows of all lanes, or other rows of the same columns."""
    return reduce(DataFrame.union, lanes)


def as_blocks(reads: RoundReads, parts: Sequence[Judged]) -> DataFrame:
    """Return all positions of `parts`, which are disjoint, as `BLOCK` and `BITS`."""
    stayed = [one.positions for one in parts if one.positions is not None]
    if stayed:
        grouped = joined(stayed).groupBy(F.shiftright(position(), BLOCK_BITS).alias(BLOCK)).agg(F.expr(f"bit_or({_BIT})").alias(BITS))
        return reads.hold(grouped)
    found = pa.concat_tables([one.counts.select(["block", "bits"]) for one in parts]).drop_null()
    block, bits = found.column("block").to_numpy(), found.column("bits").to_numpy()
    order = np.argsort(block, kind="stable")
    blocks, begins = np.unique(block[order], return_index=True)
    merged = np.bitwise_or.reduceat(bits[order], begins) if len(begins) else bits
    return reads.spark.createDataFrame(pa.table([blocks, merged], schema=_BLOCKS))
