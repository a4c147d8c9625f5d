"""Rows of a cleaning: `fate` of tests/compaction/row_rules.py as Spark expressions over whole segments.

```
 dirty range   a row stays if it is the newest of its key         position ∈ judged
 clean section a row goes if a newer one came in the dirty range   position ∈ judged
```

So one set of positions, the *judged* ones (`lastword.storage.cleaning.judged`), decides both: at most two for each key of the offset
map, whatever the clean section holds.

Nothing here runs a job.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from lastword.compaction.producers import Control
from lastword.compaction.rows.removal import Removal
from lastword.storage.append.validation import LAST_TIMESTAMP_MS
from lastword.storage.cleaning.judged import BLOCK, BLOCK_BITS, IS_JUDGED, position, position_sql
from lastword.storage.delta.plan_values import bigints, listed_by_partition, looked_up
from lastword.storage.files.schema import TRANSACTION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

#: Columns that `with_fate` adds.
REMOVAL: Final = "__removal"
KEEPS_PLACE: Final = "__keeps_place"
STAMPED: Final = "__stamped"
_ABORTED: Final = "__aborted"
_PINNED: Final = "__pinned"
_PLACE: Final = "__place"
#: So many positions are compared one by one; a longer list is a hash set, which is no part of the generated code either.
_LOOKED_UP: Final = 10


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

    `first_dirty` and `end` are offsets by partition. `judged` are `as_blocks` (None when nothing was mapped), `aborted` and `pinned`
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


def without_aborted(rows: DataFrame, aborted: DataFrame | None) -> DataFrame:
    """Return rows without the data of aborted transactions."""
    return rows if aborted is None else rows.join(F.broadcast(aborted), list(TRANSACTION), "left_anti")


def with_fate(rows: DataFrame, judgement: Judgement, *, keys: bool = True, values: bool = True) -> DataFrame:
    """Return rows with `REMOVAL` (a `Removal` value, null when the row stays), `KEEPS_PLACE` and `STAMPED`.

    Needs the columns partition, offset, control, producer_id, txn_first_offset, delete_horizon; key unless `keys` is False (no row is
    keyless then), value unless `values` is False (no tombstone is stamped then).
    """
    # As few calls as can be: at each of them Spark analyzes the whole plan. Later columns of a call may name earlier ones.
    marked, is_judged = rows, "false"
    if judgement.judged is not None:
        judged = F.broadcast(judgement.judged) if judgement.broadcast else judgement.judged
        marked = marked.join(judged, F.shiftright(position(), BLOCK_BITS) == F.col(BLOCK), "left")
        is_judged = IS_JUDGED
    for name, transactions in ((_ABORTED, judgement.aborted), (_PINNED, judgement.pinned)):
        if transactions is not None:
            flagged = transactions.select(*TRANSACTION, F.lit(True).alias(name))
            marked = marked.join(F.broadcast(flagged), list(TRANSACTION), "left")
    is_aborted = "false" if judgement.aborted is None else f"{_ABORTED} IS NOT NULL"
    is_pinned = "false" if judgement.pinned is None else f"{_PINNED} IS NOT NULL"

    is_keyless = "key IS NULL" if keys else "false"
    is_tombstone = f"(control IS NULL AND value IS NULL AND NOT {is_keyless})" if values else "false"
    is_marker = "control IN ('COMMIT', 'ABORT')"
    is_dirty = f"(offset >= {listed_by_partition(judgement.first_dirty)})"
    is_expired = f"(delete_horizon <= timestamp_millis({looked_up(f'{judgement.now_ms}L')}))"
    is_released = f"({_among(judgement.released)} AND {'value IS NULL' if values else 'true'})"
    removal = f"""CASE
        WHEN control = '{Control.EMPTY.value}' THEN CASE WHEN NOT {_PLACE} THEN '{Removal.EMPTY.value}' END
        WHEN {is_marker} THEN CASE WHEN NOT {is_pinned} AND {is_expired} THEN '{Removal.EXPIRED_MARKER.value}' END
        WHEN {is_aborted} THEN '{Removal.ABORTED.value}'
        WHEN offset >= {listed_by_partition(judgement.end)} THEN NULL
        WHEN {is_keyless} THEN '{Removal.KEYLESS.value}'
        WHEN ({is_judged}) != {is_dirty} THEN '{Removal.SUPERSEDED.value}'
        WHEN {is_released} THEN '{Removal.PURGED_TOMBSTONE.value}'
        WHEN {is_expired} AND offset < {listed_by_partition(judgement.unread)} THEN '{Removal.EXPIRED_TOMBSTONE.value}'
    END"""
    dies = f"({is_tombstone} OR ({is_marker} AND NOT {is_pinned}))"
    return marked.selectExpr(
        *rows.columns,
        f"{_among(judgement.places)} AS {_PLACE}",
        f"{removal} AS {REMOVAL}",
        f"{REMOVAL} IS NOT NULL AND {_PLACE} AS {KEEPS_PLACE}",
        f"{REMOVAL} IS NULL AND {dies} AND delete_horizon IS NULL AS {STAMPED}",
    )


def _among(positions: Sequence[int]) -> str:
    """Tell whether a row's position is one of some; few of them are looked up, as Spark writes a short list into the generated code."""
    if not positions:
        return "false"
    if len(positions) <= _LOOKED_UP:
        return f"array_contains({bigints(positions)}, {position_sql()})"
    return f"({position_sql()} IN ({', '.join(f'{one}L' for one in positions)}))"


def survivors(fated: DataFrame, judgement: Judgement, columns: Sequence[str]) -> DataFrame:
    """Return what is written of rows with their fate: those that stay, stamped where they must be, and EMPTY rows for kept places."""
    kept_when_empty = {"partition", "segment", "slice", "offset", "producer_id", "producer_epoch", "sequence", "appended_at"}
    horizon_ms = min(judgement.now_ms + judgement.delete_retention_ms, LAST_TIMESTAMP_MS)
    horizon = f"timestamp_millis({looked_up(f'{horizon_ms}L')})"
    special = {
        "control": f"if({KEEPS_PLACE}, '{Control.EMPTY.value}', control)",
        "delete_horizon": f"CASE WHEN {KEEPS_PLACE} THEN NULL WHEN {STAMPED} THEN {horizon} ELSE delete_horizon END",
    }

    def column(name: str) -> str:
        value = special.get(name, f"if({KEEPS_PLACE}, NULL, {name})")
        return name if name in kept_when_empty else f"{value} AS {name}"

    return fated.where(f"{REMOVAL} IS NULL OR {KEEPS_PLACE}").selectExpr(*[column(name) for name in columns])
