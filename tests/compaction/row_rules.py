"""What a cleaning does with one row of the log, and why: the specification, one row at a time.

Production applies the same rule to batches of rows (`lastword.compaction.rows.fates`); tests compare the two.

```
 offset   0        1      2        3    4       5    6        first cleaning, now = 0, delete.retention.ms = 10
 row      p:k=1    k=2    j=∅      p:j=3  pABORT  k=4  last
 fate     aborted  super- stamped  aborted stamped keep keep    2 and 4 get the horizon 10; a cleaning at 10 or later drops them
                   seded
```

Kafka's rules (docs/semantics.md#8 to docs/semantics.md#11) hold for rows in the place of batches (docs/semantics.md#A.1). A row that
goes but still holds a place (an active producer's last data record, a marker that alone carries a producer's newest epoch, the last record
of the partition) stays as an EMPTY row (docs/semantics.md#A.3).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lastword.compaction.producers import Control
from lastword.compaction.rows.fates import Removal

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What the rule looks at: a row of the log without its value's bytes. A control row has neither key nor value."""

    offset: int
    key: bytes | None = None
    has_value: bool = True
    producer_id: int | None = None
    epoch: int | None = None
    sequence: int | None = None
    txn_first_offset: int | None = None
    control: Control | None = None
    delete_horizon_ms: int | None = None

    @property
    def is_tombstone(self) -> bool:
        """Tell whether it is a keyed record with a null value; an empty value is none."""
        return self.control is None and self.key is not None and not self.has_value


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What one cleaning of a partition knows when it judges a row.

    `end_offset` is one past the offset map's latest offset. `newest` is the map: the latest offset of each key in the dirty range.
    `aborted` and `pinned` are transactions as (producer id, first offset): those that ended with an ABORT marker, and those of which
    a data row is left after this pass. `places` are the offsets that must stay, if only as EMPTY rows. Tombstones from `unread_offset` on
    stay, as a registered reader has not read them yet. The tombstones at `released` go whatever their horizon and whoever waits for them:
    a purge has decided so, and they go in the same pass as all that they supersede (ADR 0013).
    """

    now_ms: int
    delete_retention_ms: int
    end_offset: int
    newest: Mapping[bytes, int]
    aborted: Collection[tuple[int, int]]
    pinned: Collection[tuple[int, int]]
    places: Collection[int]
    unread_offset: int | None = None
    released: Collection[int] = ()

    def expires(self, row: Row) -> bool:
        """Tell whether the horizon of a tombstone has passed, and nobody waits for it."""
        read = self.unread_offset is None or row.offset < self.unread_offset
        return read and row.delete_horizon_ms is not None and self.now_ms >= row.delete_horizon_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What becomes of a row: it goes (`removal`), perhaps leaving an EMPTY row (`keeps_place`), or stays, perhaps with a new horizon."""

    removal: Removal | None = None
    keeps_place: bool = False
    new_horizon_ms: int | None = None


def removal_of_data(row: Row, cleaning: Pass) -> Removal | None:
    """Return why a data row goes, None when it stays (Cleaner.shouldRetainRecord)."""
    transaction = _transaction(row)
    if transaction is not None and transaction in cleaning.aborted:
        return Removal.ABORTED
    if row.offset >= cleaning.end_offset:
        return None
    if row.key is None:
        return Removal.KEYLESS
    if cleaning.newest.get(row.key, -1) > row.offset:
        return Removal.SUPERSEDED
    released = row.offset in cleaning.released
    if row.is_tombstone and (released or cleaning.expires(row)):
        return Removal.PURGED_TOMBSTONE if released else Removal.EXPIRED_TOMBSTONE
    return None


def fate(row: Row, cleaning: Pass) -> Fate:
    """Return what a cleaning does with a row."""
    place = row.offset in cleaning.places
    horizon_ms = cleaning.now_ms + cleaning.delete_retention_ms
    if row.control is Control.EMPTY:
        return Fate() if place else Fate(removal=Removal.EMPTY)
    if row.control is not None:
        if _transaction(row) in cleaning.pinned:
            return Fate()
        if row.delete_horizon_ms is None:
            return Fate(new_horizon_ms=horizon_ms)
        return Fate(removal=Removal.EXPIRED_MARKER, keeps_place=place) if cleaning.now_ms >= row.delete_horizon_ms else Fate()
    removal = removal_of_data(row, cleaning)
    if removal is not None:
        return Fate(removal=removal, keeps_place=place)
    return Fate(new_horizon_ms=horizon_ms) if row.is_tombstone and row.delete_horizon_ms is None else Fate()


def pinned_transactions(rows: Iterable[Row], cleaning: Pass) -> set[tuple[int, int]]:
    """Return the transactions that have a data row left after the pass; EMPTY rows and markers do not count."""
    data = ((row, _transaction(row)) for row in rows if row.control is None)
    return {transaction for row, transaction in data if transaction is not None and removal_of_data(row, cleaning) is None}


def last_rows_of_producers(rows: Iterable[Row], active: Collection[int]) -> set[int]:
    """Return the offsets that hold a place for the `active` producers (UnifiedLog.lastRecordsOfActiveProducers); `rows` are in order.

    For each: its last data record (or what remains of it, with its sequence) in its newest epoch; when it has none there, its last marker
    of that epoch. The newest epoch is that of its last row: a producer that was forgotten may have come back with a lower one.
    """
    places: dict[int, tuple[int, bool, int]] = {}
    for row in rows:
        if row.producer_id is not None and row.producer_id in active and row.epoch is not None:
            is_data = row.control is None or (row.control is Control.EMPTY and row.sequence is not None)
            epoch, held_by_data, _ = places.get(row.producer_id, (row.epoch, False, row.offset))
            if is_data or row.epoch != epoch or not held_by_data:
                places[row.producer_id] = (row.epoch, is_data, row.offset)
    return {offset for _, _, offset in places.values()}


def _transaction(row: Row) -> tuple[int, int] | None:
    """Return the transaction that a row belongs to, as (producer id, first offset in the partition)."""
    if row.producer_id is None or row.txn_first_offset is None:
        return None
    return row.producer_id, row.txn_first_offset


def after(row: Row, cleaning: Pass) -> Row | None:
    """Return what a cleaning leaves of a row: itself, perhaps with a horizon, an EMPTY row, or nothing."""
    found = fate(row, cleaning)
    if found.removal is None:
        return row if found.new_horizon_ms is None else replace(row, delete_horizon_ms=found.new_horizon_ms)
    if not found.keeps_place:
        return None
    return Row(
        offset=row.offset,
        has_value=False,
        producer_id=row.producer_id,
        epoch=row.epoch,
        sequence=row.sequence,
        control=Control.EMPTY,
    )
