"""Rows with a source sequence: which of them an append takes, so that no event puts an older state over a newer one.

```
 log           k: 20      j: 35      highest 35, removed deletions up to 12
 rows          k 36 │ k 21 │ j 30 │ k 36 │ x 30 │ x 11
 verdict       ok   │ late │ late │ ok   │ ok   │ unknown: a deletion of x after 11 may have been removed
```

A row is late if a record of its key with a higher order is in the log, or comes before it in the append, or if its table was truncated at
a higher position; an equal order is not late, the record that comes last counts. Of two changes of one commit of PostgreSQL the one with
the lower LSN is late: it comes again. Orders of two scopes are not compared (`lastword.compaction.order.source_positions`): between them
arrival counts.

A row that is not below the highest order of its partition needs no look at the log; any other asks for the records of its own key. Whether
a key that the log does not know was deleted can be told only from the highest order of the deletions that cleaning has removed on. Below
it a row of an unknown key is late if that deletion came from the same partition of Kafka, which brings its events in their order: it comes
again. Otherwise it is refused.

A row without an order gets the highest one of its key; of a key that has none arrival counts.

Inside a commit arrival counts. So a deletion that comes again wins over the row that its commit wrote behind it, until that comes, too:

```
 source       commit 3: k = ∅, k = 7     commit 4: j = ∅
 arrive       k = ∅ (3)   k = 7 (3)   j = ∅ (4)    begins again    k = ∅ (3)    a long pause    k = 7 (3)   j = ∅ (4)
 log          k = 7 from here on                                   k = ∅, kept                  k = 7
```

If cleaning removed its tombstone meanwhile, the row behind it would be taken for one from before a removed deletion. So it is kept, unless
the same batch has a later commit of its table from its partition of Kafka, as the rest of its commit has come then.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from lastword.compaction.order.sequences import ranks
from lastword.compaction.order.source_positions import (
    CHANGE,
    FIRST_SCOPE,
    NO_SCOPE,
    POSTGRESQL,
    SNAPSHOT,
    Positions,
    SourcePosition,
    commits_of_one_scope,
    is_order_of_event,
    shown_position,
    with_commits,
)
from lastword.compaction.order.source_states import NEW_EPOCH_MS, SourceCounts
from lastword.compaction.rows.input_columns import SOURCE_TIME

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from lastword.compaction.rows.sequence_bounds import SequenceBounds

    Mask = NDArray[np.bool_]

#: The reason of a row of which `SequenceChecks` cannot tell whether it is late.
UNKNOWN_ORDER: Final = "unknown_order"
_TAKEN: Final = {"key": pl.Binary, "scope": pl.String, "commit": pl.String, "text": pl.String}
_SCOPES: Final = dict.fromkeys(("scope", "highest", "removed", "taken"), pl.String) | {"is_retired": pl.Boolean}
#: The newest records of some keys; `last` is the offset of the last one.
NEWEST: Final = {"key": pl.Binary, "scope": pl.String, "newest": pl.String, "time": pl.Int64, "last": pl.Int64}
#: What a change of PostgreSQL has to be compared with others of its commit: its LSN, as `in_table`.
_WRITTEN: Final = (
    pl.when(
        pl.any_horizontal(*(pl.col("scope").str.starts_with(begin) for begin in POSTGRESQL))
        & pl.col("commit").str.ends_with(CHANGE)
        & pl.col("in_table").str.ends_with(CHANGE)
    )
    .then("in_table")
    .otherwise(pl.lit(""))
    .alias("written")
)
#: Whether an event is older than the newest record of its key, or was written before it by the same transaction.
_IS_BEHIND: Final = (pl.col("reach") < pl.col("newest")) | (
    (pl.col("commit") == pl.col("newest")) & (pl.col("written") != "") & (pl.col("written") < pl.col("newest_written"))
)
#: The scopes of rows that do not name their source.
_NO_SCOPES: Final = frozenset({"", NO_SCOPE})


class NewestSequences(Protocol):
    """The way to the records of a partition."""

    def __call__(self, keys: pa.Array, at_least: str) -> pl.DataFrame:
        """Return the highest sequence of each of some keys in each scope, and the time of the newest of its records: `NEWEST`.

        Sequences from `at_least` on count. Keys that have none may be left out. The time is in ms since the epoch.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A batch of rows, with the order of its key where a row came without one: which are late, and which of unknown order.

    `kept` are deletions whose tombstones no cleaning may remove. `counts` are what it has of each source, by scope.
    """

    rows: pa.RecordBatch
    late: Mask
    unknown: Mask
    kept: Mask
    counts: Mapping[str, SourceCounts]


class SequenceChecks:
    """The source sequences of one partition during one append; `take` takes its batches one after the other."""

    def __init__(self, bounds: SequenceBounds, newest: NewestSequences) -> None:
        """Begin with what the log knows of the partition."""
        self._bounds, self._newest, self._removed = bounds, newest, bounds.highest_removed_by_scope()
        #: Keys, scopes, orders and sequences of the rows that were taken: the scope of all of them, or one for each (`_taken_of`).
        self._taken: list[tuple[pa.Array, str | pl.Series, pa.Array, pa.Array]] = []
        #: The highest order of them, by scope.
        self._highest: dict[str, str] = {}
        #: Orders that several transactions of PostgreSQL share: that of a snapshot is given to what committed before it.
        self._shared = set(bounds.floors)

    def take_if_in_order(self, rows: pa.RecordBatch) -> Checked | None:
        """Take a batch of rows, as `take` does, if it is of one source, in order, and above all that is known; else return None."""
        keys, texts = rows.column("key"), rows.column("source_sequence")
        alike = commits_of_one_scope(texts) if len(rows) else None
        if alike is None or not self._are_in_order(*alike):
            return None
        scope, commits = alike
        if scope.startswith(POSTGRESQL):
            self._note_snapshots(_column(commits.filter(pc.ends_with(commits, SNAPSHOT))))
        self._taken.append((keys, scope, commits, texts))
        self._highest[scope] = max(self._highest.get(scope, ""), commits[-1].as_py())
        counts = SourceCounts(rows=len(rows), is_by_lsn=is_order_of_event(texts[0].as_py()))
        nothing = np.zeros(len(rows), dtype=np.bool_)
        return Checked(rows=rows, late=nothing, unknown=nothing, kept=nothing, counts={scope: counts} if scope else {})

    def _note_snapshots(self, commits: pl.Series) -> None:
        """Remember the orders that changes get which committed before a snapshot; `commits` are those of the snapshots' rows."""
        self._shared.update(f"{commit.removesuffix(SNAPSHOT)}{CHANGE}" for commit in commits.unique())

    def _find_highest(self, scope: str) -> str:
        """Return the highest order of a scope in the log, among the removed deletions, and in this append so far."""
        return max(self._bounds.highest_of(scope), self._removed.get(scope, ""), self._highest.get(scope, ""))

    def _are_in_order(self, scope: str, commits: pa.Array) -> bool:
        """Tell whether the orders of some rows of a scope ascend, and are above all that is known."""
        begins, passed = commits[0].as_py(), self._bounds.last_truncate_of(scope)
        if scope in self._bounds.retired or begins < self._find_highest(scope):
            return False
        return not (passed and begins <= passed) and (len(commits) == 1 or pc.all(pc.greater_equal(commits[1:], commits[:-1])).as_py())

    def take(self, rows: pa.RecordBatch) -> Checked:
        """Take a batch of rows, and return which of them put an older state over a newer one.

        Columns: key, source_sequence (string, not null), and if the rows are events `SOURCE_TIME`. A row without an order gets the highest
        one of its key so far, if there is one: that of its scope, or, without a scope, as a flat tombstone, the highest of all. The log is
        asked at most once for the keys of a batch.
        """
        in_order = self.take_if_in_order(rows)
        if in_order is not None:
            return in_order
        some = self._find_out_of_order(rows)
        if 2 * some.sum() > len(rows):
            return self._take_any(rows)
        self.take_if_in_order(rows.filter(pa.array(~some)))
        checked, late, unknown = self._take_any(rows.filter(pa.array(some))), some.copy(), some.copy()
        late[some], unknown[some] = checked.late, checked.unknown
        return replace(checked, rows=rows, late=late, unknown=unknown, kept=np.zeros(len(rows), dtype=np.bool_))

    def _find_out_of_order(self, rows: pa.RecordBatch) -> Mask:
        """Return a mask of all rows whose key has a row out of order: whether a row is late depends only on the rows of its key.

        Where the rows name their source it may depend on rows of other keys, too, so these are all rows.
        """
        alike = commits_of_one_scope(rows.column("source_sequence")) if len(rows) else None
        scope, commits = alike or (NO_SCOPE, rows.column("source_sequence"))
        if scope or scope in self._bounds.retired:
            return np.ones(len(rows), dtype=np.bool_)
        ranked = ranks(commits)
        is_behind = pc.or_(pc.less(commits, self._find_highest(scope)), pc.less_equal(commits, self._bounds.last_truncate_of(scope)))
        is_behind = pc.or_(is_behind, pa.array(ranked < np.maximum.accumulate(ranked)))
        return np.asarray(pc.is_in(rows.column("key"), value_set=rows.column("key").filter(is_behind)))

    def _take_any(self, rows: pa.RecordBatch) -> Checked:
        texts, nothing = rows.column("source_sequence"), np.zeros(len(rows), dtype=np.bool_)
        if not len(rows):
            return Checked(rows=rows, late=nothing, unknown=nothing, kept=nothing, counts={})
        positions, records = Positions.of(texts), None
        without = pc.equal(positions.commit, "").to_numpy(zero_copy_only=False)
        if without.any():
            rows, records = self._in_arrival_order(rows, positions, without)
            texts = rows.column("source_sequence")
            positions = Positions.of(texts)
        events = _events_of(rows, positions)
        self._note_snapshots(events.filter(pl.col("commit").str.ends_with(SNAPSHOT))["commit"])
        is_shared = pl.col("commit").is_in(list(self._shared))
        events = events.with_columns(written=pl.when(is_shared).then(pl.lit("")).otherwise("written"))
        events = events.join(self._bounds_frame(events["scope"]), on="scope", maintain_order="left")
        events, has_order = _with_ranks(events), pl.col("commit") != ""
        late = self._is_late_in_append(events) | self._is_truncated(events)
        late = events.select((pl.Series(late) & has_order) | pl.col("is_retired")).to_series().to_numpy(writable=True)
        events = events.with_columns(may_be_kept=pl.Series(_candidates_to_keep(events) & ~late))
        asked = events.filter(pl.Series(~late) & has_order & ((pl.col("reach") < pl.col("known")) | pl.col("may_be_kept")))
        if records is None:
            records = self._look_up(asked)
        behind = asked.join(records, on=["key", "scope"]).filter(_IS_BEHIND)
        late[behind["row"].to_numpy()] = True
        is_younger = behind["source_time"] > behind["time"] + NEW_EPOCH_MS
        lower = behind.filter(is_younger.fill_null(value=False))["row"].unique()
        again, unknown = self._of_no_record(events, asked, records), nothing.copy()
        late[again.filter("comes_again")["row"].to_numpy()] = True
        unknown[again["row"].to_numpy()] = True
        unknown &= ~late
        kept = self._tombstones_to_keep(events, records) & ~late & ~unknown
        is_taken = ~(late | unknown)
        self._take(events.filter(pl.Series(is_taken)), texts.filter(pa.array(is_taken)))
        events = events.with_columns(is_late=late, is_without=without, is_lower=pl.col("row").is_in(lower.implode()))
        return Checked(rows=rows, late=late, unknown=unknown, kept=kept, counts=_counts_of(events, texts))

    def _bounds_frame(self, scopes: pl.Series) -> pl.DataFrame:
        """Return what is known of some scopes: scope, highest, removed, taken, known, is_retired.

        From the order `known` on a row is newer than all records of its scope, so that the log need not be read for its key.
        """
        bounds = self._bounds
        rows = [
            (scope, bounds.highest_of(scope), self._removed.get(scope, ""), self._highest.get(scope, ""), scope in bounds.retired)
            for scope in scopes.unique().to_list()
        ]
        return pl.DataFrame(rows, schema=_SCOPES, orient="row").with_columns(known=pl.max_horizontal("highest", "removed"))

    def _look_up(self, asked: pl.DataFrame) -> pl.DataFrame:
        """Return the newest records of the keys of some events: key, scope, newest (the order), time.

        Below a removed deletion any record of the key counts: while one is there, no deletion after it was removed.
        """
        asked = asked.filter((pl.col("highest") != "") | (pl.col("reach") < pl.col("removed")))
        if not len(asked):
            return _orders_of(pl.DataFrame(schema=NEWEST))
        lowest = pl.when(pl.col("reach") < pl.col("removed")).then("scope").when(pl.col("written") != "").then("commit").otherwise("reach")
        return _orders_of(self._newest(_binary(asked["key"]), asked.select(lowest.min()).item()))

    def _of_no_record(self, events: pl.DataFrame, asked: pl.DataFrame, found: pl.DataFrame) -> pl.DataFrame:
        """Return the rows below a removed deletion whose key has no record, in the log or in the append: row, comes_again.

        A change that comes again is not among them where PostgreSQL's LSN alone orders the events: it may be the first of its key, of a
        transaction that wrote before the deletion and committed after it. If it does come again, its deletion comes again behind it.
        """
        doubtful = asked.filter(pl.col("reach") < pl.col("removed"))
        if not len(doubtful):
            return doubtful.select("row", comes_again=pl.lit(value=False))
        taken = self._taken_of(doubtful["key"]).filter(pl.col("commit") != "")
        missing = doubtful.join(found, on=["key", "scope"], how="anti").join(taken, on=["key", "scope"], how="anti")
        removed = [(*place, commit) for place, commit in self._bounds.removed.items()]
        own = pl.DataFrame(removed, schema=dict.fromkeys(("scope", "partition", "own"), pl.String), orient="row")
        is_behind = (pl.col("partition") != "") & (pl.col("reach") < pl.col("own").fill_null(""))
        missing = missing.join(own, on=["scope", "partition"], how="left").with_columns(comes_again=is_behind)
        is_by_lsn = pl.col("scope").is_in(self._scopes_by_lsn(events)) & pl.col("commit").str.ends_with(CHANGE)
        return missing.filter(~(pl.col("comes_again") & is_by_lsn)).select("row", "comes_again")

    def _tombstones_to_keep(self, events: pl.DataFrame, records: pl.DataFrame) -> Mask:
        """Tell which deletions have a record of the same commit before them, in the log or the append: their tombstones are kept."""
        kept, some = np.zeros(len(events), dtype=np.bool_), events.filter("may_be_kept")
        if len(some):
            place = ["key", "scope", "commit"]
            in_log = records.select("key", "scope", pl.col("newest").alias("commit"))
            known = pl.concat([in_log, self._taken_of(some["key"]).select(place)])
            earlier = some.join(events.select("row", *place), on=place, suffix="_before").filter(pl.col("row_before") < pl.col("row"))
            kept[some.join(known, on=place, how="semi")["row"].to_numpy()] = True
            kept[earlier["row"].to_numpy()] = True
        return kept

    def _scopes_by_lsn(self, events: pl.DataFrame) -> list[str]:
        """Return the scopes of PostgreSQL in which the LSN of each change is its order, among some events and in the newest record."""
        is_change = pl.col("commit").str.ends_with(CHANGE) & ~pl.col("in_table").str.ends_with("/")  # of a tombstone no LSN may be known
        is_other = is_change & (pl.col("commit") != pl.col("in_table")) & ~pl.col("commit").is_in(list(self._bounds.floors))
        others = set(events.filter(is_other)["scope"].to_list())
        scopes = [scope for scope in events["scope"].unique().to_list() if scope.startswith(POSTGRESQL) and scope not in others]
        newest = {scope: SourcePosition.of(self._bounds.highest.get(scope, "")) for scope in scopes}
        floors = self._bounds.floors
        return [scope for scope, at in newest.items() if at.commit in floors or at.in_table in {at.commit, at.exact}]

    def _take(self, taken: pl.DataFrame, texts: pa.Array) -> None:
        """Take rows that are neither late nor of unknown order."""
        if len(taken):
            keys, commits = taken["key"].to_arrow().cast(pa.binary()), taken["commit"].to_arrow().cast(pa.string())
            self._taken.append((keys, taken["scope"], commits, texts))
            for scope, commit in taken.group_by("scope").agg(pl.col("commit").max()).iter_rows():
                self._highest[scope] = max(self._highest.get(scope, ""), commit)

    def _taken_of(self, keys: pl.Series) -> pl.DataFrame:
        """Return the rows of some keys that the append has taken so far, in the order of arrival: key, scope, commit, text."""
        wanted = pl.DataFrame({"key": keys.unique()}, schema={"key": pl.Binary})
        frames = [
            pl.DataFrame({"key": _column(taken), "commit": _column(commits), "text": _column(texts)}).select(
                "key", (pl.lit(scope) if isinstance(scope, str) else scope).alias("scope"), "commit", "text"
            )
            for taken, scope, commits, texts in self._taken
        ]
        return pl.concat([pl.DataFrame(schema=_TAKEN), *frames]).join(wanted, on="key", how="semi", maintain_order="left")

    def _is_late_in_append(self, events: pl.DataFrame) -> Mask:
        """Tell which rows come after one of their key and scope with a higher order, in this batch or in those before it."""
        # Nothing else can come after a row of its key with a higher order.
        behind_any = events["reach_rank"].to_numpy() < np.maximum.accumulate(events["commit_rank"].to_numpy())
        late = np.zeros(len(events), dtype=np.bool_)
        if behind_any.any():
            keys = events.filter(pl.Series(behind_any)).select("key").unique()
            some = events.join(keys, on="key", how="semi")
            found = some.sort("row").filter(pl.col("reach_rank") < pl.col("commit_rank").cum_max().over("scope", "key"))
            late[found["row"].to_numpy()] = True
        written = ranks(events["written"].to_arrow().cast(pa.string()))
        again = (written < np.maximum.accumulate(written)) & (events["written"] != "").to_numpy()
        if again.any():
            keys = events.filter(pl.Series(again)).select("key").unique()
            some = events.with_columns(pl.Series("written_rank", written)).filter(pl.col("written") != "").join(keys, on="key", how="semi")
            lower = some.sort("row").filter(pl.col("written_rank") < pl.col("written_rank").cum_max().over("scope", "key", "commit"))
            late[lower["row"].to_numpy()] = True
        behind = events.filter((pl.col("reach") < pl.col("taken")) | ((pl.col("written") != "") & (pl.col("commit") <= pl.col("taken"))))
        if len(behind):
            before = self._taken_of(behind["key"]).rename({"text": "newest"}).sort("commit", "newest")
            newest = _orders_of(before.group_by("key", "scope").agg(pl.col("newest").last()))
            late[behind.join(newest, on=["key", "scope"]).filter(_IS_BEHIND)["row"].to_numpy()] = True
        return late

    def _is_truncated(self, events: pl.DataFrame) -> Mask:
        """Tell which rows are from before a TRUNCATE of their table."""
        truncated = np.zeros(len(events), dtype=np.bool_)
        ends = [(scope, table, SourcePosition.of(text).in_table) for (scope, table), text in self._bounds.truncated.items()]
        if ends:
            names = ("scope", "end_table", "end")
            rows = events.join(pl.DataFrame(ends, schema=dict.fromkeys(names, pl.String), orient="row"), on="scope")
            is_same = (pl.col("table") == pl.col("end_table")) | (pl.col("table") == "") | (pl.col("end_table") == "")
            truncated[rows.filter(is_same & (pl.col("in_table") < pl.col("end")))["row"].to_numpy()] = True
        return truncated

    def _in_arrival_order(self, rows: pa.RecordBatch, positions: Positions, without: Mask) -> tuple[pa.RecordBatch, pl.DataFrame]:
        """Return rows in which each without an order has the highest one of its key so far, if there is one, and what the log has.

        The log is asked for all keys of the batch of which anything must be known.
        """
        events = _events_of(rows, positions).with_columns(pl.Series("is_without", without))
        events = events.join(self._bounds_frame(events["scope"]), on="scope", maintain_order="left")
        is_below = pl.col("reach") <= pl.col("known")
        records = _orders_of(pl.DataFrame(schema=NEWEST))
        if any(SourcePosition.of(text).order for text in self._bounds.highest.values()):
            records = _orders_of(self._newest(_binary(events.filter(pl.col("is_without") | is_below)["key"]), ""))
        mine = events.filter(pl.col("key").is_in(events.filter("is_without")["key"].implode()))
        newest = _HighestOrders()
        for key, commit in records.sort("last").select("key", "newest").iter_rows():
            newest.add(key, commit)
        for key, commit in self._taken_of(mine["key"]).select("key", "commit").iter_rows():
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


def _counts_of(events: pl.DataFrame, texts: pa.Array) -> dict[str, SourceCounts]:
    """Return the counts of a batch by scope, but for rows that no source sent; columns besides: is_late, is_without, is_lower."""
    lowers = pl.col("row").filter("is_lower").first()
    counted = (
        events.filter(pl.col("scope") != "")
        .group_by("scope")
        .agg(
            pl.len(),
            pl.col("is_late").sum(),
            pl.col("is_without").sum(),
            pl.col("is_lower").sum(),
            pl.col("row").first(),
            lowers.alias("example"),
        )
    )
    return {
        scope: SourceCounts(
            rows=rows,
            late=late,
            without_position=without,
            lower_positions=lower,
            example="" if example is None else shown_position(SourcePosition.of(texts[example].as_py()).order),
            is_by_lsn=is_order_of_event(texts[first].as_py()),
        )
        for scope, rows, late, without, lower, first, example in counted.iter_rows()
    }


def _events_of(rows: pa.RecordBatch, positions: Positions) -> pl.DataFrame:
    """Return rows as a frame: row, key, the parts of their positions, source_time (ms, null if it is not known)."""
    times = rows.column(SOURCE_TIME) if SOURCE_TIME in rows.schema.names else pa.nulls(len(rows), pa.int64())
    names = ("scope", "commit", "reach", "in_table", "partition", "table")
    deletions = pc.is_null(rows.column("value")) if "value" in rows.schema.names else pa.repeat(pa.scalar(value=False), len(rows))
    columns = {"key": rows.column("key"), "is_deletion": deletions, **{name: getattr(positions, name) for name in names}}
    columns["source_time"] = times
    return pl.DataFrame({name: _column(column) for name, column in columns.items()}).with_columns(_WRITTEN).with_row_index("row")


def _with_ranks(events: pl.DataFrame) -> pl.DataFrame:
    """Add the columns commit_rank and reach_rank: whole numbers that compare as the texts of `commit` and `reach` do."""
    ranked = ranks(pl.concat([events["commit"], events["reach"]]).to_arrow().cast(pa.string()))
    return events.with_columns(pl.Series("commit_rank", ranked[: len(events)]), pl.Series("reach_rank", ranked[len(events) :]))


def _candidates_to_keep(events: pl.DataFrame) -> Mask:
    """Tell which rows are deletions that come behind a later commit, and before no later commit of their table and Kafka partition.

    Their tombstones are kept if their keys have a record of the same commit. Columns of events besides: known, taken, commit_rank.
    """
    is_change = pl.col("commit").str.starts_with(FIRST_SCOPE) & pl.col("commit").str.ends_with(CHANGE)
    of_change = events.filter("is_deletion").filter(is_change & (pl.col("written") == ""))
    mask = np.zeros(len(events), dtype=np.bool_)
    if len(of_change):
        rank = pl.col("commit_rank")
        before = (rank < rank.cum_max().over("scope")) | (pl.col("commit") < pl.max_horizontal("known", "taken"))
        is_last = rank == rank.cum_max(reverse=True).over("scope", "partition", "table")
        kept = events.filter(before & is_last).join(of_change.select("row"), on="row", how="semi")
        mask[kept["row"].to_numpy()] = True
    return mask


def _orders_of(newest: pl.DataFrame) -> pl.DataFrame:
    """Return the newest records of keys with their orders as `newest`, and `newest_written`; without those whose order is not known."""
    positions = Positions.of(newest["newest"].to_arrow().cast(pa.string()))
    parts = pl.DataFrame({name: _column(getattr(positions, name)) for name in ("scope", "commit", "in_table")})
    orders = newest.with_columns(parts["commit"].alias("newest"), parts.select(_WRITTEN)["written"].alias("newest_written"))
    return orders.filter(pl.col("newest") != "")


def _binary(keys: pl.Series) -> pa.Array:
    return pa.array(keys.unique().to_arrow().cast(pa.binary()))


def _column(values: pa.Array) -> pl.Series:
    series = pl.from_arrow(values)
    assert isinstance(series, pl.Series)  # noqa: S101  an array, no table
    return series
