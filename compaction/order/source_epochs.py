"""Snapshots of sources and the epochs that they begin: after a failover positions may start again from lower ones.

```
 Kafka's partition 0   r 100  r 100  u 130  u 150 │ r 40  r 40  u 45        a failover: the new server counts from lower positions
 epoch                 1 ─────────────────────────│ 2 ─────────────
```

A partition of Kafka enters a new epoch of its source with the first row of a snapshot below the highest position that it had before.
Epochs are named by the position of their snapshot, so all partitions have the same. An incremental snapshot is no snapshot here: its rows
are changes in the stream.

PostgreSQL says of a change the commit before it. So a change that comes behind the rows of a snapshot, and is from before it by that, is
put at the snapshot's position: its transaction was open when the snapshot was taken.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from lastword.compaction.order.source_positions import (
    AT_LEAST,
    CHANGE,
    POSTGRESQL,
    SNAPSHOT,
    SourcePosition,
    commits_of_one_scope,
    epoch_text,
    parts_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

_SNAPSHOT_MARK: Final = f"{SNAPSHOT}/"
#: A place is a scope and one of Kafka's partitions.
Place = tuple[str, str]
#: In the place of a partition: all of them, of which a new epoch may be said to begin with all that comes from then on.
EVERY_PARTITION: Final = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A snapshot in one partition of Kafka: its position, its epoch, and the offset of its first row there, if offsets are known.

    Without a position it is none, but a new epoch that somebody has said to begin with the next events. `row` is the number of that row
    in the append which brings it, while that is under way. `is_first` tells that nothing was in this place before it,
    `begun_ms` when its first row came.
    """

    position: str
    epoch: int
    offset: int | None = None
    row: int | None = None
    is_first: bool = False
    begun_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSnapshot:
    """A snapshot among the events of an append that the log has not seen in this place.

    `row` is the number of its first row in the append, `before` the highest order of the place's events before it in the append, from
    its last snapshot on.
    """

    scope: str
    partition: str
    position: str
    row: int
    offset: int | None = None
    before: str = ""

    @property
    def begin(self) -> int:
        """Where it begins, among the snapshots of its place."""
        return self.row if self.offset is None else self.offset


@dataclass(frozen=True)
class SourceEpochs:
    """The snapshots of each place that the log has seen, oldest first; the last one is that which its events are behind."""

    snapshots: Mapping[Place, tuple[Snapshot, ...]] = field(default_factory=dict)

    @cached_property
    def _by_scope(self) -> Mapping[str, Mapping[Place, tuple[Snapshot, ...]]]:
        """The snapshots of each scope: there may be hundreds."""
        grouped: dict[str, dict[Place, tuple[Snapshot, ...]]] = {}
        for place, known in self.snapshots.items():
            grouped.setdefault(place[0], {})[place] = known
        return grouped

    @staticmethod
    def after(snapshots: Iterable[tuple[Place, Snapshot]]) -> SourceEpochs:
        """Return some snapshots and their places, which come oldest first, as `with_snapshot` adds them."""
        grouped: dict[str, SourceEpochs] = {}
        for place, snapshot in snapshots:
            grouped[place[0]] = grouped.get(place[0], SourceEpochs()).with_snapshot(place, snapshot)
        return SourceEpochs({place: known for epochs in grouped.values() for place, known in epochs.snapshots.items()})

    def of(self, place: Place) -> tuple[Snapshot, ...]:
        """Return the snapshots of a place; of one that has seen none, those of all places of its scope."""
        return self.snapshots.get(place, self.snapshots.get((place[0], EVERY_PARTITION), ()))

    def epoch(self, place: Place) -> int:
        """Return the source epoch of a place (a scope and a Kafka partition); 1 if the log has seen no snapshot there."""
        known = self.of(place)
        return known[-1].epoch if known else 1

    def highest_epoch(self, scope: str) -> int:
        """Return the highest epoch of a scope in any place."""
        return max([1, *self.of_scope(scope).values()])

    def with_snapshot(self, place: Place, snapshot: Snapshot) -> SourceEpochs:
        """Return these snapshots and one more, in one place or in all places of a scope (`EVERY_PARTITION`)."""
        places = [place]
        if place[1] == EVERY_PARTITION:
            places += [other for other in self.snapshots if other[0] == place[0] and other != place]
        return SourceEpochs({**self.snapshots, **{place: (*self.of(place), snapshot) for place in places}})

    def of_scope(self, scope: str) -> dict[str, int]:
        """Return the epoch of each snapshot of a scope, in whichever place it was seen, by position."""
        epochs: dict[str, int] = {}
        for snapshot in (snapshot for known in self._by_scope.get(scope, {}).values() for snapshot in known):
            epochs[snapshot.position] = max(snapshot.epoch, epochs.get(snapshot.position, 0))
        return epochs

    def is_known(self, place: Place, position: str) -> bool:
        """Tell whether a snapshot says nothing new: it was seen in this place, or it is of an epoch before that of the place."""
        if any(snapshot.position == position for snapshot in _since_epoch(self.of(place))):
            return True
        others = (snapshot for known in self._by_scope.get(place[0], {}).values() for snapshot in _since_epoch(known))
        epoch = max((other.epoch for other in others if other.position == position), default=None)
        return epoch is not None and epoch < self.epoch(place)

    def epoch_of(self, new: NewSnapshot, highest: str) -> int:
        """Return the epoch that a new snapshot begins or belongs to; `highest` is the highest order of its place in the log."""
        place = new.scope, new.partition
        known, now = self.of_scope(new.scope), self.epoch(place)
        in_log, in_append = map(SourcePosition.of_commit, (highest, new.before))
        before = max(in_append.order, in_log.order if in_log.epoch == now else "")
        elsewhere = known.get(new.position, now)
        if elsewhere > now or before <= f"{new.position}{SNAPSHOT}":
            return max(elsewhere, now)
        return max([now, *known.values()]) + 1

    def epochs_of_new(self, new: Iterable[NewSnapshot], highest: Mapping[Place, str]) -> list[tuple[NewSnapshot, int]]:
        """Return those of some snapshots that say something new, in the order in which they began, and the epoch of each.

        `highest` are the highest orders of their places, where the log has any.
        """
        of_scope, found = dict[str, SourceEpochs](), list[tuple[NewSnapshot, int]]()
        for snapshot in sorted(new, key=lambda snapshot: (snapshot.scope, snapshot.partition, snapshot.begin)):
            place = snapshot.scope, snapshot.partition
            epochs = of_scope.setdefault(snapshot.scope, SourceEpochs(self._by_scope.get(snapshot.scope, {})))
            if not epochs.is_known(place, snapshot.position):
                epoch = epochs.epoch_of(snapshot, highest.get(place, ""))
                begun = Snapshot(position=snapshot.position, epoch=epoch, offset=snapshot.offset)
                of_scope[snapshot.scope] = epochs.with_snapshot(place, begun)
                found.append((snapshot, epoch))
        return found

    def with_rows(self, new: Iterable[NewSnapshot]) -> SourceEpochs:
        """Return these snapshots with the row numbers at which some of them begin in an append."""
        row_of = {(snapshot.scope, snapshot.partition, snapshot.position): snapshot.row for snapshot in new}
        begun = {(scope, partition) for scope, partition, _ in row_of}
        return SourceEpochs(
            {
                place: tuple(replace(snapshot, row=row_of.get((*place, snapshot.position))) for snapshot in known)
                if place in begun
                else known
                for place, known in self.snapshots.items()
            }
        )

    def with_epochs(self, texts: pa.Array, offsets: pa.Array | None, first_row: int = 0) -> pa.Array:
        """Return source sequences in the epochs of their places, and not below the snapshots that they are behind.

        `offsets` are Kafka's, if they are known; `first_row` is the number of the first row in the append. Where neither says at which
        row a snapshot begins it is the first of its rows here; what comes before it is of the snapshot before it.
        """
        if not self.snapshots or not len(texts) or not self._may_change(texts):
            return texts
        rows = parts_of(texts)
        order, behind, begun = rows["order"].to_numpy(), np.full(len(texts), -1), list[tuple[str, Snapshot]]()
        row_of_place = rows.with_row_index("row").group_by("scope", "partition").agg("row")
        for scope, partition, listed in row_of_place.iter_rows():
            at = np.array(listed, dtype=np.int64)
            for begin, end, snapshot in _stretches(self.of((scope, partition)), at, order, offsets, first_row):
                behind[at[begin:end]] = len(begun)
                begun.append((scope, snapshot))
        if not begun:
            return texts
        epoch = pl.Series([epoch_text(known.epoch) for _, known in begun] + [""])[behind]
        floor = pl.Series([f"{known.position}{CHANGE}" if scope.startswith(POSTGRESQL) else "" for scope, known in begun] + [""])[behind]
        is_unknown = pl.col("order").str.starts_with(AT_LEAST)
        is_below = pl.col("order").str.ends_with(CHANGE) & (pl.col("order") < floor)
        placed = pl.when(is_unknown).then(pl.concat_str(pl.lit(AT_LEAST), floor)).when(is_below).then(floor).otherwise("order")
        made = pl.concat_str(
            "scope", epoch, pl.lit("/"), placed, pl.lit("/"), pl.concat_str(["identity", "table", "partition"], separator="/")
        )
        is_behind = pl.Series((behind >= 0) & (order != ""))
        return rows.select(pl.when(is_behind).then(made).otherwise("text").alias("text"))["text"].to_arrow().cast(pa.string())

    def truncate_position(self, text: str) -> str:
        """Return the position of a TRUNCATE; one whose order is not known gets that of the last snapshot of its scope and epoch."""
        position = SourcePosition.of(text)
        if position.order or not position.floor:
            return text
        snapshots = (snapshot for known in self._by_scope.get(position.scope, {}).values() for snapshot in known)
        behind = (f"{snapshot.position}{CHANGE}" for snapshot in snapshots if snapshot.epoch == position.epoch)
        return replace(position, order=max(position.floor, *behind, ""), floor="").text

    def floors(self, *, newest: bool = False) -> frozenset[str]:
        """Return the orders that changes of PostgreSQL have at least, behind a snapshot or behind the newest one of a place."""
        return frozenset(
            SourcePosition(scope=scope, epoch=snapshot.epoch, order=f"{snapshot.position}{CHANGE}").commit
            for (scope, _), known in self.snapshots.items()
            if scope.startswith(POSTGRESQL)
            for snapshot in (known[-1:] if newest else known)
        )

    def _may_change(self, texts: pa.Array) -> bool:
        """Tell whether a source sequence may need another epoch than the first, or the position of a snapshot."""
        if any(known[-1].epoch > 1 for known in self.snapshots.values()):
            return True
        floor = max(self.floors(newest=True), default="")
        alike = commits_of_one_scope(texts) if floor else None
        return bool(floor) and (alike is None or pc.min(alike[1]).as_py() < floor)


def _since_epoch(known: Sequence[Snapshot]) -> Sequence[Snapshot]:
    """Return the snapshots of a place from the last epoch on that somebody has said to begin, or all of them."""
    return known[max((number for number, snapshot in enumerate(known) if not snapshot.position), default=0) :]


def _stretches(
    known: Sequence[Snapshot], at: NDArray[np.int64], order: NDArray[np.object_], offsets: pa.Array | None, first_row: int
) -> Iterator[tuple[int, int, Snapshot]]:
    """Yield which of the rows `at`, of one place, are behind which of its snapshots, as begin and end; none where it is behind none."""
    if not known:
        return
    known = _since_epoch(known)
    if offsets is not None:
        places = offsets.take(pa.array(at)).to_numpy(zero_copy_only=False)
        begins = np.searchsorted(places, [snapshot.offset or 0 for snapshot in known]).tolist()
    elif any(snapshot.row is not None for snapshot in known):
        begins = np.searchsorted(at + first_row, [snapshot.row or 0 for snapshot in known]).tolist()
    else:
        here = [np.flatnonzero(order[at] == f"{snapshot.position}{SNAPSHOT}") for snapshot in known]
        first = next((number for number, rows in enumerate(here) if len(rows)), len(known))
        begins = [0 if number < first else int(rows[0]) if len(rows) else len(at) for number, rows in enumerate(here)]
    for number, (begin, end) in enumerate(pairwise([*begins, len(at)])):
        if end > begin:
            yield begin, end, known[number]


def new_snapshots(
    texts: pa.Array, offsets: pa.Array | None, epochs: SourceEpochs, *, seen: int = 0, highest: str = ""
) -> list[NewSnapshot]:
    """Return the snapshots among events that say something new.

    `seen` is the number of the events before these, and `highest` the highest order among them.
    """
    is_row = pc.fill_null(pc.match_substring(texts, _SNAPSHOT_MARK), False).to_numpy(zero_copy_only=False)  # noqa: FBT003
    if not is_row.any():
        return []
    rows = parts_of(texts).with_row_index("row")
    marked = rows.filter(pl.Series(is_row) & pl.col("order").str.ends_with(SNAPSHOT))
    firsts = marked.group_by("scope", "partition", "order").agg(pl.col("row").min()).sort("row")
    begins = [
        ((scope, partition), order.removesuffix(SNAPSHOT), row)
        for scope, partition, order, row in firsts.iter_rows()
        if not epochs.is_known((scope, partition), order.removesuffix(SNAPSHOT))
    ]
    events = _reached_by_place(rows, {place for place, _, _ in begins}) if begins else {}
    found, after = list[NewSnapshot](), dict[Place, int]()
    for place, position, row in begins:
        scope, partition = place
        between = max((order for number, order in events[place] if after.get(place, 0) <= number < row), default="")
        before = SourcePosition(scope=scope, order=between).commit
        if place not in after and highest.startswith(scope):
            before = max(before, highest)
        after[place] = row
        offset = None if offsets is None else offsets[row].as_py()
        new = NewSnapshot(scope=scope, partition=partition, position=position, row=seen + row, offset=offset, before=before)
        found.append(new)
    return found


def _reached_by_place(rows: pl.DataFrame, places: Iterable[Place]) -> dict[Place, list[tuple[int, str]]]:
    """Return the row numbers of the events of some places, and how far the source had come with each, as an order."""
    is_unknown = pl.col("order").str.starts_with(AT_LEAST)  # such an event has an LSN, which is above the snapshot before it
    reached = pl.when(is_unknown).then(pl.col("identity") + CHANGE).otherwise("order").alias("reached")
    wanted = pl.DataFrame(list(places), schema=dict.fromkeys(("scope", "partition"), pl.String), orient="row")
    found = rows.join(wanted, on=["scope", "partition"], how="semi").group_by("scope", "partition").agg("row", reached)
    return {(scope, partition): list(zip(numbers, orders, strict=True)) for scope, partition, numbers, orders in found.iter_rows()}


def places_of_changes(texts: pa.Array, begins: Mapping[Place, str]) -> frozenset[Place]:
    """Return those of some places that have a change behind the snapshot which begins at an order there, among source sequences."""
    changes = parts_of(texts).filter(pl.col("order").str.ends_with(CHANGE) & (pl.col("scope") != ""))
    order = pl.when(pl.col("order").str.starts_with(AT_LEAST)).then(pl.col("order").str.slice(1)).otherwise("order")
    highest = changes.group_by("scope", "partition").agg(pl.concat_str("epoch", pl.lit("/"), order).max())
    there = {(scope, partition): commit for scope, partition, commit in highest.iter_rows()}
    return frozenset(place for place, begin in begins.items() if there.get(place, "") > begin)


def merge_snapshots(snapshots: Iterable[NewSnapshot]) -> tuple[NewSnapshot, ...]:
    """Return the new snapshots that several tasks saw, each once."""
    merged: dict[tuple[str, str, str], NewSnapshot] = {}
    for snapshot in snapshots:
        place = snapshot.scope, snapshot.partition, snapshot.position
        other = merged.get(place, snapshot)
        first = min(snapshot, other, key=lambda snapshot: snapshot.begin)
        merged[place] = replace(first, before=max(snapshot.before, other.before))
    return tuple(merged[place] for place in sorted(merged))
