"""Rows of a cleaning: `compaction.record_retention.fate` as Spark expressions over whole segments.

```
 position = partition << 48 | offset                one long identifies a row of the topic

 dirty range   a row stays if it is the newest of its key         position ∈ judged
 clean section a row goes if a newer one came in the dirty range   position ∈ judged
```

So one set of positions, the *judged* ones, decides both: at most two for each key of the offset map, whatever the clean section holds.
It is kept as bits, 64 neighbouring positions in a long: the rows of a file ascend, so many of them ask for the same one.

```
 block = position >> 6      bits = one for each judged position of the block, that of offset & 63
```

Nothing here runs a job.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from compaction.producers import Control
from compaction.record_retention import Removal
from storage.envelope import LAST_TIMESTAMP_MS
from storage.plan_values import bigints, listed_by_partition, looked_up
from storage.schema import TRANSACTION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

#: Columns that `with_fate` adds.
REMOVAL: Final = "__removal"
KEEPS_PLACE: Final = "__keeps_place"
STAMPED: Final = "__stamped"
_JUDGED: Final = "__judged"
_BLOCK: Final = "__block"
_BITS: Final = "__bits"
_BLOCK_BITS: Final = 6
_ABORTED: Final = "__aborted"
_PINNED: Final = "__pinned"
_PLACE: Final = "__place"
OFFSET_BITS: Final = 48
#: So many positions are compared one by one; a longer list is a hash set, which is no part of the generated code either.
_LOOKED_UP: Final = 10


def position(partition: str = "partition", offset: str = "offset") -> Column:
    """Return the row's position: partition and offset in one long."""
    return F.shiftleft(F.col(partition).cast("bigint"), OFFSET_BITS).bitwiseOR(F.col(offset))


def blocks(positions: DataFrame) -> DataFrame:
    """Return distinct positions (a column of longs) as blocks of bits, for `Judgement.judged`."""
    at = F.col("position")
    bit = F.expr(f"shiftleft(1L, cast(position & {2**_BLOCK_BITS - 1} AS int))")
    return positions.groupBy(F.shiftright(at, _BLOCK_BITS).alias(_BLOCK)).agg(F.bit_or(bit).alias(_BITS))


def with_newer(rows: DataFrame, newest: DataFrame, *, broadcast: bool) -> DataFrame:
    """Return the rows (partition, key and more) whose key is in the offset map `newest`.

    Most rows of a clean section are not: a 64-bit hash says so cheaply, and only what it lets through is compared by its key.
    """
    by_hash, by_key = newest.select(_key_hash().alias("__hash")), newest.select("partition", "key")
    if not broadcast:
        return rows.join(by_key, ["partition", "key"], "left_semi")
    likely = rows.withColumn("__hash", _key_hash()).join(F.broadcast(by_hash), "__hash", "left_semi").drop("__hash")
    return likely.join(F.broadcast(by_key), ["partition", "key"], "left_semi")


def _key_hash() -> Column:
    return F.xxhash64("partition", "key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What a round knows of the rows that it looks at, per partition of the topic and as sets.

    `first_dirty` and `end` are offsets by partition. `judged` are `blocks` (None when nothing was mapped), `aborted` and `pinned`
    transactions; each None when there are none. `places` are the positions that must stay, one a partition and active producer.
    Tombstones from `unread` on stay, but for those at the positions `released`, which go. `broadcast` tells whether `judged` is small
    enough to be sent to every task.
    """

    now_ms: int
    delete_retention_ms: int
    first_dirty: Sequence[int]
    end: Sequence[int]
    judged: DataFrame | None
    aborted: DataFrame | None
    pinned: DataFrame | None
    places: Sequence[int]
    unread: Sequence[int]
    released: Sequence[int]
    broadcast: bool


def is_dirty(judgement: Judgement) -> Column:
    """Tell whether a row lies in the dirty range or past it."""
    return F.col("offset") >= listed_by_partition(judgement.first_dirty, F.col("partition"))


def without_aborted(rows: DataFrame, aborted: DataFrame | None) -> DataFrame:
    """Return rows without the data of aborted transactions."""
    return rows if aborted is None else rows.join(F.broadcast(aborted), list(TRANSACTION), "left_anti")


def with_fate(rows: DataFrame, judgement: Judgement, *, keys: bool = True, values: bool = True) -> DataFrame:
    """Return rows with `REMOVAL` (a `Removal` value, null when the row stays), `KEEPS_PLACE` and `STAMPED`.

    Needs the columns partition, offset, control, producer_id, txn_first_offset, delete_horizon; key unless `keys` is False (no row is
    keyless then), value unless `values` is False (no tombstone is stamped then).
    """
    marked = rows.withColumn("__position", position())
    if judgement.judged is None:
        marked = marked.withColumn(_JUDGED, F.lit(False))
    else:
        judged = F.broadcast(judgement.judged) if judgement.broadcast else judgement.judged
        marked = marked.withColumn(_BLOCK, F.shiftright(F.col("__position"), _BLOCK_BITS)).join(judged, _BLOCK, "left")
        bit = F.getbit(_BITS, F.expr(f"cast(offset & {2**_BLOCK_BITS - 1} AS int)"))
        marked = marked.withColumn(_JUDGED, F.coalesce(bit, F.lit(0)) == 1).drop(_BLOCK, _BITS)
    for name, transactions in ((_ABORTED, judgement.aborted), (_PINNED, judgement.pinned)):
        if transactions is None:
            marked = marked.withColumn(name, F.lit(False))
        else:
            flagged = transactions.select(*TRANSACTION, F.lit(True).alias(name))
            marked = marked.join(F.broadcast(flagged), list(TRANSACTION), "left").withColumn(name, F.col(name).isNotNull())
    marked = marked.withColumn(_PLACE, _among(judgement.places))

    data = F.col("control").isNull()
    empty = F.col("control") == Control.EMPTY.value
    keyless = F.col("key").isNull() if keys else F.lit(False)
    mapped = F.col("offset") < listed_by_partition(judgement.end, F.col("partition"))
    expired = F.col("delete_horizon") <= F.expr(f"timestamp_millis({looked_up(f'{judgement.now_ms}L')})")
    superseded = F.col(_JUDGED) != is_dirty(judgement)
    released = F.col("__position").isin(list(judgement.released)) & (F.col("value").isNull() if values else F.lit(True))
    removal = (
        F.when(empty, F.when(~F.col(_PLACE), Removal.EMPTY.value))
        .when(~data, F.when(~F.col(_PINNED) & expired, Removal.EXPIRED_MARKER.value))
        .when(F.col(_ABORTED), Removal.ABORTED.value)
        .when(~mapped, F.lit(None).cast("string"))
        .when(keyless, Removal.KEYLESS.value)
        .when(superseded, Removal.SUPERSEDED.value)
        .when(released, Removal.PURGED_TOMBSTONE.value)
        .when(expired & (F.col("offset") < listed_by_partition(judgement.unread, F.col("partition"))), Removal.EXPIRED_TOMBSTONE.value)
    )
    tombstone = data & F.col("value").isNull() & ~keyless if values else F.lit(False)
    dying = tombstone | (~data & ~empty & ~F.col(_PINNED))
    fated = marked.withColumn(REMOVAL, removal)
    return fated.withColumns(
        {
            KEEPS_PLACE: F.col(REMOVAL).isNotNull() & F.col(_PLACE),
            STAMPED: F.col(REMOVAL).isNull() & dying & F.col("delete_horizon").isNull(),
        }
    ).drop("__position", _JUDGED, _ABORTED, _PINNED, _PLACE)


def _among(positions: Sequence[int]) -> Column:
    """Tell whether a row's position is one of some; few of them are looked up, as Spark writes a short list into the generated code."""
    if not positions:
        return F.lit(False)
    return (
        F.col("__position").isin(list(positions))
        if len(positions) > _LOOKED_UP
        else F.array_contains(F.expr(bigints(positions)), F.col("__position"))
    )


def survivors(fated: DataFrame, judgement: Judgement, columns: Sequence[str]) -> DataFrame:
    """Return what is written of rows with their fate: those that stay, stamped where they must be, and EMPTY rows for kept places."""
    emptied = F.col(KEEPS_PLACE)
    kept_when_empty = {"partition", "segment", "slice", "offset", "producer_id", "producer_epoch", "sequence", "appended_at"}
    horizon_ms = min(judgement.now_ms + judgement.delete_retention_ms, LAST_TIMESTAMP_MS)
    horizon = F.expr(f"timestamp_millis({looked_up(f'{horizon_ms}L')})")

    def column(name: str) -> Column:
        value = F.col(name)
        if name == "delete_horizon":
            value = F.when(F.col(STAMPED), horizon).otherwise(value)
        if name == "control":
            return F.when(emptied, Control.EMPTY.value).otherwise(value).alias(name)
        return (value if name in kept_when_empty else F.when(~emptied, value)).alias(name)

    return fated.where(F.col(REMOVAL).isNull() | emptied).select(*[column(name) for name in columns])
