"""What becomes of each record in a cleaning: the rule, over a batch of rows of one partition at a time.

```
 offset   0        1      2        3    4       5    6        first cleaning, now = 0, delete.retention.ms = 10
 row      p:k=1    k=2    j=∅      p:j=3  pABORT  k=4  last
 fate     aborted  super- stamped  aborted stamped stay stay    2 and 4 get the horizon 10; a cleaning at 10 or later removes them
                   seded
```

Kafka's rules (docs/semantics.md#8 to docs/semantics.md#11) for rows in the place of batches (docs/semantics.md#A.1). A row that is removed
but still holds a place (an active producer's last data record, a marker that alone carries a producer's newest epoch, the last record of
the partition) stays as an EMPTY row (docs/semantics.md#A.2).

The rows come in offset order. Two ascending lists of offsets say what the offset map knows: `newest`, the newest record of each key in
the dirty range, and `superseded`, the records of the clean section whose key came again. In the dirty range a record stays if it is in the
first list; in the clean section it is removed if it is in the second.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lastword.compaction.producers import Control

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

#: The columns that the rule looks at; `key` and `value` may be missing from a batch (`fates`).
RULE_COLUMNS: Final = ("offset", "control", "producer_id", "txn_first_offset", "delete_horizon")
#: The delete horizon of a tombstone that stays until its key comes again, in microseconds: 9999-12-31.
KEPT_UNTIL_US: Final = 253_402_214_400_000_000
#: What is left of a row that only holds a place, beside `control`.
_PLACE_COLUMNS: Final = frozenset({"offset", "producer_id", "producer_epoch", "sequence", "appended_at"})


class Removal(str, Enum):
    """Why a row goes; the values stand in receipts."""

    SUPERSEDED = "superseded"
    ABORTED = "aborted"
    KEYLESS = "keyless"
    EXPIRED_TOMBSTONE = "expired_tombstone"
    PURGED_TOMBSTONE = "purged_tombstone"
    EXPIRED_MARKER = "expired_marker"
    EMPTY = "empty"


_REASONS: Final = tuple(Removal)
_CODES: Final = {reason: number + 1 for number, reason in enumerate(_REASONS)}


def _nothing() -> NDArray[np.int64]:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningPass:
    """What one cleaning of a partition knows when it judges a row.

    `end_offset` is one past the offset map's latest offset. `newest`, `superseded`, `places` and `released` are ascending offsets.
    `aborted` and `pinned` are transactions as (producer id, first offset): those that ended with an ABORT marker, and those of which a data
    row is left after this pass. Rows at `places` stay, if only as EMPTY rows. Tombstones from `unread_offset` on stay, as a registered
    reader has not read them yet. The tombstones at `released` are removed whatever their horizon (ADR 0013). `horizon_ms` is what a
    tombstone or marker is stamped with.
    """

    now_ms: int
    horizon_ms: int
    first_dirty_offset: int
    end_offset: int
    newest: NDArray[np.int64] = field(default_factory=_nothing)
    superseded: NDArray[np.int64] = field(default_factory=_nothing)
    aborted: frozenset[tuple[int, int]] = frozenset()
    pinned: frozenset[tuple[int, int]] = frozenset()
    places: NDArray[np.int64] = field(default_factory=_nothing)
    released: NDArray[np.int64] = field(default_factory=_nothing)
    unread_offset: int | None = None


@dataclass(frozen=True, slots=True)
class Fates:
    """What becomes of the rows of a batch: `code` is 0 for a row that stays, else that of its reason; the rest are flags by row."""

    code: NDArray[np.int8]
    keeps_place: NDArray[np.bool_]
    stamped: NDArray[np.bool_]

    @property
    def written(self) -> NDArray[np.bool_]:
        """The rows that are written again, as they were or as EMPTY rows."""
        mask: NDArray[np.bool_] = (self.code == 0) | self.keeps_place
        return mask

    @property
    def changes(self) -> bool:
        """Whether a row is removed, emptied or stamped."""
        return bool(self.code.any() or self.stamped.any())

    def counts(self) -> dict[str, int]:
        """Return the number of removed rows by reason, reasons without a row left out."""
        counts = np.bincount(self.code, minlength=len(_REASONS) + 1)[1:]
        return {reason.value: int(count) for reason, count in zip(_REASONS, counts.tolist(), strict=True) if count}

    def removed_for(self, reason: Removal) -> NDArray[np.bool_]:
        """Return the rows that are removed for one reason."""
        mask: NDArray[np.bool_] = self.code == _CODES[reason]
        return mask


def fates(rows: pa.Table, cleaning: CleaningPass) -> Fates:
    """Return what a cleaning does with each row of a batch in offset order.

    `rows` has `RULE_COLUMNS`, and `key` and `value` for a whole answer. Without `key` a record without one counts as superseded in the
    dirty range; without `value` no tombstone is stamped, and a released offset counts as a tombstone.
    """
    offset = rows.column("offset").to_numpy()
    code = np.zeros(len(offset), dtype=np.int8)
    mapped = offset < cleaning.end_offset
    dirty = offset >= cleaning.first_dirty_offset
    code[mapped & dirty & ~among(offset, cleaning.newest)] = _CODES[Removal.SUPERSEDED]
    code[mapped & ~dirty & among(offset, cleaning.superseded)] = _CODES[Removal.SUPERSEDED]
    keyless = _nulls(rows, "key", otherwise=False)
    code[mapped & keyless] = _CODES[Removal.KEYLESS]

    horizon = rows.column("delete_horizon")
    stampable = _nulls(rows, "delete_horizon", otherwise=True)
    due = _due(horizon, cleaning.now_ms)
    valueless = _nulls(rows, "value", otherwise=True)
    expired = due & valueless & (mapped if cleaning.unread_offset is None else mapped & (offset < cleaning.unread_offset))
    code[expired & (code == 0)] = _CODES[Removal.EXPIRED_TOMBSTONE]
    released = mapped & among(offset, cleaning.released) & valueless & ~keyless
    code[released & ((code == 0) | (code == _CODES[Removal.EXPIRED_TOMBSTONE]))] = _CODES[Removal.PURGED_TOMBSTONE]

    is_data = np.ones(len(offset), dtype=np.bool_)
    is_marker = np.zeros(len(offset), dtype=np.bool_)
    pinned = is_marker
    places = among(offset, cleaning.places)
    txn_first_offset, control = rows.column("txn_first_offset"), rows.column("control")
    if txn_first_offset.null_count < len(offset):
        transactions = _transactions(rows)
        code[_in_transactions(transactions, cleaning.aborted, len(offset))] = _CODES[Removal.ABORTED]
        pinned = _in_transactions(transactions, cleaning.pinned, len(offset))
    if control.null_count < len(offset):
        is_data = pc.is_null(control).to_numpy(zero_copy_only=False)
        is_empty = pc.fill_null(pc.equal(control, Control.EMPTY.value), False).to_numpy(zero_copy_only=False)  # noqa: FBT003
        is_marker = ~is_data & ~is_empty
        code[~is_data] = 0
        code[is_empty & ~places] = _CODES[Removal.EMPTY]
        code[is_marker & ~pinned & due] = _CODES[Removal.EXPIRED_MARKER]
    stays = code == 0
    tombstone = is_data & _nulls(rows, "value", otherwise=False) & ~keyless
    stamped = stays & stampable & (tombstone | (is_marker & ~pinned))
    return Fates(code, ~stays & places, stamped)


def survivors(rows: pa.Table, row_fates: Fates, cleaning: CleaningPass) -> pa.Table:
    """Return what is written of rows with their fates: those that stay, stamped where they must be, and EMPTY rows for kept places."""
    written = row_fates.written
    kept = rows if written.all() else rows.filter(pa.array(written))
    if row_fates.stamped.any():
        at = kept.schema.get_field_index("delete_horizon")
        field = kept.schema.field(at)
        horizon = pa.scalar(cleaning.horizon_ms * 1000, pa.int64()).cast(field.type)
        kept = kept.set_column(at, field, pc.if_else(pa.array(row_fates.stamped[written]), horizon, kept.column(at)))
    if row_fates.keeps_place.any():
        kept = _empty_rows(kept, pa.array(row_fates.keeps_place[written]))
    return kept


def among(offset: NDArray[np.int64], ascending: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Tell for each offset whether it is one of some ascending ones."""
    if not len(ascending) or not len(offset) or offset[0] > ascending[-1] or offset[-1] < ascending[0]:
        return np.zeros(len(offset), dtype=np.bool_)
    at = np.searchsorted(ascending, offset)
    mask: NDArray[np.bool_] = ascending[np.minimum(at, len(ascending) - 1)] == offset
    return mask


def _empty_rows(rows: pa.Table, mask: pa.Array) -> pa.Table:
    columns: dict[str, pa.ChunkedArray] = {}
    for name in rows.schema.names:
        column = rows.column(name)
        if name == "control":
            column = pc.if_else(mask, pa.scalar(Control.EMPTY.value, column.type), column)
        elif name not in _PLACE_COLUMNS:
            column = pc.if_else(mask, pa.scalar(None, column.type), column)
        columns[name] = column
    return pa.table(columns, schema=rows.schema)


def _nulls(rows: pa.Table, name: str, *, otherwise: bool) -> NDArray[np.bool_]:
    """Tell for each row whether a column is null; `otherwise` for all of them when the batch does not have it."""
    if name not in rows.schema.names:
        return np.full(len(rows), otherwise)
    column = rows.column(name)
    if not column.null_count:
        return np.zeros(len(rows), dtype=np.bool_)
    mask: NDArray[np.bool_] = pc.is_null(column).to_numpy(zero_copy_only=False)
    return mask


def _due(horizon: pa.ChunkedArray, now_ms: int) -> NDArray[np.bool_]:
    if horizon.null_count == len(horizon):
        return np.zeros(len(horizon), dtype=np.bool_)
    reached = pc.less_equal(horizon.cast(pa.int64()), now_ms * 1000)
    mask: NDArray[np.bool_] = pc.fill_null(reached, False).to_numpy(zero_copy_only=False)  # noqa: FBT003
    return mask


def _transactions(rows: pa.Table) -> Mapping[tuple[int, int], NDArray[np.int64]]:
    """Return the row numbers of each transaction, as (producer id, first offset)."""
    producer, first = rows.column("producer_id"), rows.column("txn_first_offset")
    at = np.flatnonzero(pc.and_(pc.is_valid(producer), pc.is_valid(first)).to_numpy(zero_copy_only=False))
    if not len(at):
        return {}
    taken = pa.array(at)
    pairs = np.stack([producer.take(taken).to_numpy(), first.take(taken).to_numpy()], axis=1)
    transactions, which = np.unique(pairs, axis=0, return_inverse=True)
    order = np.argsort(which.reshape(-1), kind="stable")
    cuts = np.searchsorted(which.reshape(-1)[order], np.arange(1, len(transactions)))
    return {(number, begin): mine for (number, begin), mine in zip(transactions.tolist(), np.split(at[order], cuts), strict=True)}


def _in_transactions(
    rows: Mapping[tuple[int, int], NDArray[np.int64]], wanted: frozenset[tuple[int, int]], length: int
) -> NDArray[np.bool_]:
    """Tell for each of `length` rows whether it belongs to one of some transactions."""
    mask = np.zeros(length, dtype=np.bool_)
    for transaction, numbers in rows.items():
        if transaction in wanted:
            mask[numbers] = True
    return mask
