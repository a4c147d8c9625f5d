"""Rows with a source sequence: which of them an append takes, so that no event puts an older state over a newer one.

```
 log           k: 20      j: 35      highest 35, removed deletions up to 12
 rows          k 36 │ k 21 │ j 30 │ k 36 │ x 30 │ x 11
 verdict       ok   │ late │ late │ ok   │ ok   │ unknown: a deletion of x after 11 may have been removed
```

A row is late if a record of its key with a higher order is in the log, or comes before it in the append, or if its table was truncated at
a higher position; an equal order is not late, the record that comes last counts. Orders of two scopes are not compared
(`lastword.compaction.order.source_positions`): between them arrival counts.

A row that is not below the highest order of its partition needs no look at the log; any other asks for the records of its own key. Whether
a key that the log does not know was deleted can be told only from the highest order of the deletions that cleaning has removed on. Below
it a row of an unknown key is late if that deletion came from the same partition of Kafka, which brings its events in their order: it comes
again. Otherwise it is refused.

A row without an order gets the highest one of its key; of a key that has none arrival counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from lastword.compaction.order.sequences import highest, ranks
from lastword.compaction.order.source_positions import (
    NO_SCOPE,
    UNNAMED_BELOW,
    Positions,
    SourcePosition,
    commits_of_one_scope,
    is_order_of_event,
    scope_of,
    shown_position,
    with_commits,
)
from lastword.compaction.order.source_states import NEW_EPOCH_MS, SourceCounts, sum_counts
from lastword.compaction.rows.input_columns import SOURCE_TIME

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Mask = NDArray[np.bool_]

#: The reason of a row of which `SequenceChecks` cannot tell whether it is late.
UNKNOWN_ORDER: Final = "unknown_order"
_SCHEMA: Final = {"key": pl.Binary, "commit": pl.String}
#: Above each order.
_ABOVE_ALL: Final = "~"
#: The newest records of some keys; `last` is the offset of the last one.
NEWEST: Final = {"key": pl.Binary, "scope": pl.String, "newest": pl.String, "time": pl.Int64, "last": pl.Int64}
#: The scopes of rows that do not name their source.
_NO_SCOPES: Final = frozenset({"", NO_SCOPE})


class NewestSequences(Protocol):
    """The way to the records of a partition."""

    def __call__(self, keys: pa.Array, at_least: str) -> pl.DataFrame:
        """Return the highest sequence of each of some keys in each scope, and the time of the newest of its records: `NEWEST`.

        Sequences from `at_least` on count. Keys that have none may be left out. The time is in ms since the epoch.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceBounds:
    """What is known of the source sequences of one partition.

    `highest` are the highest in its files, by scope. `removed` are the highest orders of the removed deletions, by scope and Kafka's
    partition. `truncated` are the positions of TRUNCATEs, by scope and table. The events of `retired` scopes are all late.
    """

    highest: Mapping[str, str] = field(default_factory=dict)
    removed: Mapping[tuple[str, str], str] = field(default_factory=dict)
    truncated: Mapping[tuple[str, str], str] = field(default_factory=dict)
    retired: frozenset[str] = frozenset()

    def highest_of(self, scope: str) -> str:
        """Return the highest order of a scope; one above all where a file of an older version may have it and does not say so."""
        below = self.highest.get(UNNAMED_BELOW, "")
        if scope < below and scope_of(below) != scope:
            return _ABOVE_ALL
        return SourcePosition.of(self.highest.get(scope, "")).commit

    def of(self, scope: str) -> _Bounds:
        """Return what is known of one scope."""
        return _Bounds(
            highest=self.highest_of(scope),
            removed={partition: commit for (name, partition), commit in self.removed.items() if name == scope},
            truncated={table: text for (name, table), text in self.truncated.items() if name == scope},
            is_retired=scope in self.retired,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bounds:
    """The bounds of one scope."""

    highest: str
    removed: Mapping[str, str]
    truncated: Mapping[str, str]
    is_retired: bool

    @property
    def known(self) -> str:
        """The lowest order at which a row is newer than all records of its scope, so that the log need not be read for its key."""
        return max([self.highest, *self.removed.values()])

    @property
    def passed(self) -> str:
        """The order above which every row is newer than all TRUNCATEs."""
        ends = [SourcePosition.of(text) for text in self.truncated.values()]
        return max((text for end in ends for text in (end.commit, end.in_table)), default="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A batch of rows, with the order of its key where a row came without one: which are late, and which of unknown order.

    `counts` are what it has of each source, by scope.
    """

    rows: pa.RecordBatch
    late: Mask
    unknown: Mask
    counts: Mapping[str, SourceCounts]


class SequenceChecks:
    """The source sequences of one partition during one append; `take` takes its batches one after the other."""

    def __init__(self, bounds: SequenceBounds, newest: NewestSequences) -> None:
        """Begin with what the log knows of the partition."""
        self._bounds, self._newest = bounds, newest
        self._scopes: dict[str, _ScopeChecks] = {}

    def take_if_in_order(self, rows: pa.RecordBatch) -> Checked | None:
        """Take a batch of rows, as `take` does, if it is of one source, in order, and above all that is known; else return None."""
        keys, texts = rows.column("key"), rows.column("source_sequence")
        alike = commits_of_one_scope(texts) if len(rows) else None
        if alike is None or not self._of(alike[0]).take_if_in_order(keys, alike[1]):
            return None
        counts = SourceCounts(rows=len(rows), is_by_lsn=is_order_of_event(texts[0].as_py()))
        nothing = np.zeros(len(rows), dtype=np.bool_)
        return Checked(rows=rows, late=nothing, unknown=nothing, counts={alike[0]: counts} if alike[0] else {})

    def take(self, rows: pa.RecordBatch) -> Checked:
        """Take a batch of rows, and return which of them put an older state over a newer one.

        Columns: key, source_sequence (string, not null), and if the rows are events `SOURCE_TIME`. A row without an order gets the highest
        one of its key so far, if there is one: that of its scope, or, without a scope, as a flat tombstone, the highest of all. The log is
        asked at most once for the keys of a batch.
        """
        in_order, texts = self.take_if_in_order(rows), rows.column("source_sequence")
        if in_order is not None:
            return in_order
        late, unknown = np.zeros(len(rows), dtype=np.bool_), np.zeros(len(rows), dtype=np.bool_)
        if not len(rows):
            return Checked(rows=rows, late=late, unknown=unknown, counts={})
        positions, records = Positions.of(texts), None
        without = pc.equal(positions.commit, "").to_numpy(zero_copy_only=False)
        if without.any():
            rows, records = self._in_arrival_order(rows, positions, without)
            texts = rows.column("source_sequence")
            positions = Positions.of(texts)
        events = _events_of(rows, positions)
        parts = [self._of(str(scope)).begin(part) for (scope,), part in events.partition_by("scope", as_dict=True).items()]
        if records is None:
            records = self._look_up([part.asked for part in parts])
        for part in parts:
            part.checks.compare(part, records)
            late[part.rows], unknown[part.rows] = part.late, part.unknown
        counts = sum_counts(part.counts(texts, without) for part in parts)
        return Checked(rows=rows, late=late, unknown=unknown, counts=counts)

    def _of(self, scope: str) -> _ScopeChecks:
        if scope not in self._scopes:
            self._scopes[scope] = _ScopeChecks(scope, self._bounds.of(scope))
        return self._scopes[scope]

    def _look_up(self, asked: Sequence[pl.DataFrame]) -> pl.DataFrame:
        """Return the newest records of the keys of some events: key, scope, newest (the order), time."""
        events = pl.concat(asked)
        if not len(events):
            return pl.DataFrame(schema=NEWEST)
        return _orders_of(self._newest(_binary(events["key"]), str(events["at_least"].min())))

    def _in_arrival_order(self, rows: pa.RecordBatch, positions: Positions, without: Mask) -> tuple[pa.RecordBatch, pl.DataFrame]:
        """Return rows in which each without an order has the highest one of its key so far, if there is one, and what the log has.

        The log is asked for all keys of the batch of which anything must be known.
        """
        events = _events_of(rows, positions).with_columns(pl.Series("is_without", without))
        known_of_scope = {scope: self._of(scope).bounds.known for scope in events["scope"].unique().to_list()}
        is_below = pl.col("reach") < pl.col("scope").replace_strict(known_of_scope, return_dtype=pl.String)
        records = pl.DataFrame(schema=NEWEST)
        if any(SourcePosition.of(text).order for text in self._bounds.highest.values()):
            records = _orders_of(self._newest(_binary(events.filter(pl.col("is_without") | is_below)["key"]), ""))
        mine = events.filter(pl.col("key").is_in(events.filter("is_without")["key"].implode()))
        newest = _HighestOrders()
        for key, commit in records.sort("last").select("key", "newest").iter_rows():
            newest.add(key, commit)
        for checks in self._scopes.values():
            for key, commit in checks.taken_of(mine["key"]).iter_rows():
                newest.add(key, commit)
        orders, texts = dict[int, str](), rows.column("source_sequence")
        for row, key, scope, commit in mine.select("row", "key", "scope", "commit").iter_rows():
            order = commit or newest.of(key, scope, SourcePosition.of(texts[row].as_py()))
            if order:
                newest.add(key, order)
            if order and not commit:
                orders[row] = order
        if orders:
            texts = with_commits(texts, np.array(list(orders)), list(orders.values()))
            rows = rows.set_column(rows.schema.get_field_index("source_sequence"), "source_sequence", texts)
        return rows, records


class _HighestOrders:
    """The highest order so far of each key in each scope; add events as they come, as between scopes arrival counts."""

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, str], str] = {}
        #: That of the scope which came last.
        self._last: dict[bytes, str] = {}

    def add(self, key: bytes, commit: str) -> None:
        """Add the order of an event of a key; one that is late in its scope changes nothing."""
        scope = SourcePosition.of_commit(commit).scope
        if commit >= self._known.get((key, scope), ""):
            self._known[key, scope] = self._last[key] = commit

    def of(self, key: bytes, scope: str, position: SourcePosition) -> str:
        """Return the order of an event without one: the highest of its key, and not below that which it has at least; empty for none.

        Behind a record of a later epoch of its source it stays in its own.
        """
        newest = self._last.get(key, "") if scope in _NO_SCOPES else self._known.get((key, scope), "")
        least = replace(position, order=position.floor).commit
        return least if least and SourcePosition.of_commit(newest).epoch > position.epoch else max(newest, least)


@dataclass(slots=True, kw_only=True)
class _Part:
    """The rows of one scope in a batch: which are late, and of which the log is asked (`asked`: key, at_least)."""

    checks: _ScopeChecks
    events: pl.DataFrame
    rows: NDArray[np.int64]
    late: Mask
    unknown: Mask
    asked: pl.DataFrame
    #: Which are late, and younger than the record above them.
    lower: Mask

    def counts(self, texts: pa.Array, without: Mask) -> dict[str, SourceCounts]:
        """Return the counts of the batch for this source, by scope; an empty mapping for rows that no source sent."""
        if not self.checks.scope:
            return {}
        lower = np.flatnonzero(self.lower)
        counts = SourceCounts(
            rows=len(self.rows),
            late=int(self.late.sum()),
            without_position=int(without[self.rows].sum()),
            lower_positions=len(lower),
            example=shown_position(SourcePosition.of(texts[int(self.rows[lower[0]])].as_py()).order) if len(lower) else "",
            is_by_lsn=is_order_of_event(texts[int(self.rows[0])].as_py()),
        )
        return {self.checks.scope: counts}


class _ScopeChecks:
    """The rows of one scope during one append."""

    def __init__(self, scope: str, bounds: _Bounds) -> None:
        self.scope, self.bounds = scope, bounds
        self._highest = ""
        #: Keys and orders of the rows that were taken; `taken_of` makes frames of them.
        self._taken: list[tuple[pa.Array, pa.Array]] = []

    def take_if_in_order(self, keys: pa.Array, commits: pa.Array) -> bool:
        """Take rows that are in order, and above all that is known; tell whether they are."""
        begins, bounds = commits[0].as_py(), self.bounds
        if bounds.is_retired or begins < bounds.known or begins < self._highest or (bounds.truncated and begins <= bounds.passed):
            return False
        if len(commits) > 1 and not pc.all(pc.greater_equal(commits[1:], commits[:-1])).as_py():
            return False
        self._take(keys, commits, commits[-1].as_py())
        return True

    def begin(self, events: pl.DataFrame) -> _Part:
        """Find the rows of a batch that are late by the batch itself and by TRUNCATEs, and those to look up in the log."""
        rows, nothing = events["row"].to_numpy(), np.zeros(len(events), dtype=np.bool_)
        events = events.drop("row").with_row_index("row")
        part = _Part(
            checks=self,
            events=events,
            rows=rows,
            late=nothing,
            unknown=nothing.copy(),
            asked=_events_to_ask(events.clear(), ""),
            lower=nothing.copy(),
        )
        if self.bounds.is_retired:
            part.late = np.ones(len(events), dtype=np.bool_)
            return part
        has_order = (events["commit"] != "").to_numpy()
        part.late = (self._is_late_in_append(events) | self._is_truncated(events)) & has_order
        removed = max(self.bounds.removed.values(), default="")
        asked = events.filter(pl.Series(~part.late & has_order) & (pl.col("reach") < self.bounds.known))
        asked = asked if self.bounds.highest else asked.filter(pl.col("reach") < removed)
        if len(asked):
            lowest = str(asked["reach"].min())
            # Below a removed deletion any record of the key counts: while one is there, no deletion after it was removed.
            part.asked = _events_to_ask(asked, self.scope if lowest < removed else lowest)
        return part

    def compare(self, part: _Part, records: pl.DataFrame) -> None:
        """Compare rows with the newest records of their keys in the log, and take those that are neither late nor of unknown order."""
        events, removed = part.events, max(self.bounds.removed.values(), default="")
        newest = records.filter(pl.col("scope") == self.scope)
        if not self.bounds.is_retired:
            asked = events.filter(pl.Series(~part.late) & (pl.col("commit") != "") & (pl.col("reach") < self.bounds.known))
            behind = asked.join(newest, on="key").filter(pl.col("reach") < pl.col("newest"))
            part.late[behind["row"].to_numpy()] = True
            is_younger = behind["source_time"] > behind["time"] + NEW_EPOCH_MS
            part.lower[behind.filter(is_younger.fill_null(value=False))["row"].to_numpy()] = True
            doubtful = asked.filter(pl.col("reach") < removed)
            if len(doubtful):
                missing = doubtful.join(newest, on="key", how="anti")
                missing = missing.join(self.taken_of(missing["key"]).filter(pl.col("commit") != ""), on="key", how="anti")
                own = pl.col("partition").replace_strict(dict(self.bounds.removed), default="", return_dtype=pl.String)
                comes_again = missing.filter((pl.col("reach") < own) & (pl.col("partition") != ""))
                part.late[comes_again["row"].to_numpy()] = True
                part.unknown[missing["row"].to_numpy()] = True
        part.unknown &= ~part.late
        taken = events.filter(pl.Series(~(part.late | part.unknown)))
        if len(taken):
            commits = taken["commit"].to_arrow().cast(pa.string())
            self._take(taken["key"].to_arrow().cast(pa.binary()), commits, highest(commits))

    def _take(self, keys: pa.Array, commits: pa.Array, last: str) -> None:
        self._taken.append((keys, commits))
        self._highest = max(self._highest, last)

    def taken_of(self, keys: pl.Series) -> pl.DataFrame:
        """Return the rows of some keys that the append has taken so far: key, commit."""
        wanted = pl.DataFrame({"key": keys.unique()})
        frames = [pl.DataFrame({"key": _column(taken), "commit": _column(commits)}) for taken, commits in self._taken]
        return pl.concat([pl.DataFrame(schema=_SCHEMA), *frames]).join(wanted, on="key", how="semi")

    def _is_late_in_append(self, events: pl.DataFrame) -> Mask:
        """Tell which rows come after one of their key with a higher order, in this batch or in those before it."""
        count = len(events)
        ranked = ranks(pl.concat([events["commit"], events["reach"]]).to_arrow().cast(pa.string()))
        commit, reach = ranked[:count], ranked[count:]
        behind_any = reach < np.maximum.accumulate(commit)  # nothing else can come after one of its key with a higher order
        late = np.zeros(count, dtype=np.bool_)
        if behind_any.any():
            keys = events.filter(pl.Series(behind_any)).select("key").unique()
            some = events.with_columns(pl.Series("commit_rank", commit), pl.Series("reach_rank", reach)).join(keys, on="key", how="semi")
            behind_here = some.sort("row").filter(pl.col("reach_rank") < pl.col("commit_rank").cum_max().over("key"))
            late[behind_here["row"].to_numpy()] = True
        behind = events.filter(pl.col("reach") < self._highest)
        if len(behind):
            before = self.taken_of(behind["key"]).group_by("key").agg(pl.col("commit").max().alias("newest"))
            late[behind.join(before, on="key").filter(pl.col("reach") < pl.col("newest"))["row"].to_numpy()] = True
        return late

    def _is_truncated(self, events: pl.DataFrame) -> Mask:
        """Tell which rows are from before a TRUNCATE of their table."""
        truncated = np.zeros(len(events), dtype=np.bool_)
        for table, text in self.bounds.truncated.items():
            end = SourcePosition.of(text).in_table
            is_same = (events["table"] == table) | (events["table"] == "") | pl.lit(value=not table)
            truncated |= events.select(is_same & (pl.col("in_table") < end)).to_series().to_numpy()
        return truncated


def _events_of(rows: pa.RecordBatch, positions: Positions) -> pl.DataFrame:
    """Return rows as a frame: row, key, the parts of their positions, source_time (ms, null if it is not known)."""
    times = rows.column(SOURCE_TIME) if SOURCE_TIME in rows.schema.names else pa.nulls(len(rows), pa.int64())
    names = ("scope", "commit", "reach", "in_table", "partition", "table")
    columns = {"key": rows.column("key"), **{name: getattr(positions, name) for name in names}, "source_time": times}
    return pl.DataFrame({name: _column(column) for name, column in columns.items()}).with_row_index("row")


def _events_to_ask(events: pl.DataFrame, at_least: str) -> pl.DataFrame:
    return events.select("key", pl.lit(at_least).alias("at_least"))


def _orders_of(newest: pl.DataFrame) -> pl.DataFrame:
    """Return the newest records of keys with their orders as `newest`; without those whose order is not known."""
    commits = Positions.of(newest["newest"].to_arrow().cast(pa.string())).commit
    return newest.with_columns(_column(commits).alias("newest")).filter(pl.col("newest") != "")


def _binary(keys: pl.Series) -> pa.Array:
    return pa.array(keys.unique().to_arrow().cast(pa.binary()))


def _column(values: pa.Array) -> pl.Series:
    series = pl.from_arrow(values)
    assert isinstance(series, pl.Series)  # noqa: S101  an array, no table
    return series
