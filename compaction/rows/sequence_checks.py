"""Rows with a source sequence: which of them an append takes, so that no event puts an older state over a newer one.

```
 log           k: 20      j: 35      highest 35, removed deletions up to 12
 rows          k 36 │ k 21 │ j 30 │ k 36 │ x 30 │ x 11
 verdict       ok   │ late │ late │ ok   │ ok   │ unknown: a deletion of x after 11 may have been removed
```

A row is late if a record of its key with a higher order is in the log, or comes before it in the append, or if its table was truncated at
a higher position; an equal order is not late, the record that comes last counts. Orders of two scopes are not compared
(`lastword.compaction.rows.source_positions`): between them arrival counts.

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

from lastword.compaction.rows.sequences import highest, ranks
from lastword.compaction.rows.source_positions import (
    CHANGE,
    NO_SCOPE,
    Positions,
    SourcePosition,
    commits_of_one_scope,
    with_commits,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Mask = NDArray[np.bool_]

#: The reason of a row of which `SequenceChecks` cannot tell whether it is late.
UNKNOWN_ORDER: Final = "unknown_order"
_SCHEMA: Final = {"key": pl.Binary, "commit": pl.String}
#: Greater than each order of a scope, as `:` ends it.
_END_OF_SCOPE: Final = ";"
#: The scopes of rows that do not name their source.
_NO_SCOPES: Final = frozenset({"", NO_SCOPE})


class NewestSequences(Protocol):
    """The way to the records of a partition."""

    def __call__(self, keys: pa.Array, at_least: str, below: str) -> pl.DataFrame:
        """Return the highest sequence of each of some keys: `key` (binary), `newest` (string).

        Sequences from `at_least` on count, and below `below`, if it is not empty. Keys that have none may be left out.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceBounds:
    """What is known of the source sequences of one partition.

    `highest` is the highest in its files; of a scope that sorts before that of `highest`, nothing is known but that. `removed` are the
    highest orders of the removed deletions, by scope and Kafka's partition. `truncated` are the positions of TRUNCATEs, by scope and table.
    """

    highest: str = ""
    removed: Mapping[tuple[str, str], str] = field(default_factory=dict)
    truncated: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def of(self, scope: str) -> _Bounds:
        """Return what is known of one scope."""
        newest = SourcePosition.of(self.highest)
        is_known = newest.scope == scope or self.highest < scope
        return _Bounds(
            highest=newest.commit if newest.scope == scope else "" if is_known else None,
            removed={partition: commit for (name, partition), commit in self.removed.items() if name == scope},
            truncated={table: text for (name, table), text in self.truncated.items() if name == scope},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bounds:
    """The bounds of one scope; `highest` is None if it is not known."""

    highest: str | None
    removed: Mapping[str, str]
    truncated: Mapping[str, str]

    @property
    def known(self) -> str | None:
        """The order from which on a row needs no look at the log; None for a look at each."""
        if self.highest is None:
            return None
        return max([self.highest, *self.removed.values()])

    @property
    def passed(self) -> str:
        """The order above which every row is newer than all TRUNCATEs."""
        ends = [SourcePosition.of(text) for text in self.truncated.values()]
        return max((text for end in ends for text in (end.commit, f"{end.in_table}{CHANGE}")), default="")


class SequenceChecks:
    """The source sequences of one partition during one append; `check` takes its batches one after the other."""

    def __init__(self, bounds: SequenceBounds, newest: NewestSequences) -> None:
        """Begin with what the log knows of the partition."""
        self._bounds, self._newest = bounds, newest
        self._scopes: dict[str, _ScopeChecks] = {}

    def in_arrival_order(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows in which each whose order is not known has the highest one of its key so far, if there is one.

        Of a row with a scope that is the highest of its scope; of one without, as a flat tombstone, the highest of all.
        """
        texts = rows.column("source_sequence")
        if not len(texts) or commits_of_one_scope(texts) is not None:
            return rows
        positions = Positions.of(texts)
        is_unknown = pc.equal(positions.commit, "").to_numpy(zero_copy_only=False)
        if not is_unknown.any():
            return rows
        at = np.flatnonzero(is_unknown)
        asked = _column(rows.column("key").take(pa.array(at))).unique()
        columns = {"key": rows.column("key"), "scope": positions.scope, "commit": positions.commit, "text": texts}
        events = pl.DataFrame({name: _column(column) for name, column in columns.items()})
        mine = events.with_row_index("row").filter(pl.col("key").is_in(asked.implode()))
        known = self._known_of(asked, [scope for scope in mine["scope"].unique().to_list() if scope not in _NO_SCOPES])
        found: dict[int, str] = {}
        for row, key, scope, commit, text in mine.select("row", "key", "scope", "commit", "text").iter_rows():
            newest = known.get((key, "" if scope in _NO_SCOPES else scope), "")
            given = commit or newest
            if not commit:
                position = SourcePosition.of(text)
                given = max(newest, replace(position, order=position.floor).commit)
            if not commit and given:
                found[row] = given
            if given:
                for place in {SourcePosition.of_commit(given).scope, ""}:
                    known[key, place] = max(given, known.get((key, place), ""))
        if not found:
            return rows
        texts = with_commits(texts, np.array(list(found)), list(found.values()))
        return rows.set_column(rows.schema.get_field_index("source_sequence"), "source_sequence", texts)

    def _known_of(self, keys: pl.Series, scopes: list[str]) -> dict[tuple[bytes, str], str]:
        """Return the highest orders of some keys, in the log and in the append so far, by key and scope; of all under the empty text."""
        known: dict[tuple[bytes, str], str] = {}
        for scope in (*scopes, ""):
            has_order = self._bounds.of(scope).highest != "" if scope else SourcePosition.of(self._bounds.highest).commit
            if has_order:
                for key, newest in self._newest(_binary(keys), scope, _end_of(scope)).iter_rows():
                    known[key, scope] = SourcePosition.of(newest).commit
        for scope, checks in self._scopes.items():
            for key, commit in checks.taken_of(keys).iter_rows():
                for place in (scope, ""):
                    known[key, place] = max(commit, known.get((key, place), ""))
        return known

    def check(self, rows: pa.RecordBatch) -> tuple[Mask, Mask]:
        """Return which rows of a batch are late, and which are of unknown order.

        Columns: key, source_sequence (string, not null).
        """
        late, unknown = np.zeros(len(rows), dtype=np.bool_), np.zeros(len(rows), dtype=np.bool_)
        if not len(rows):
            return late, unknown
        keys, texts = rows.column("key"), rows.column("source_sequence")
        alike = commits_of_one_scope(texts)
        if alike is not None and self._of(alike[0]).take_if_in_order(keys, alike[1]):
            return late, unknown
        positions = Positions.of(texts)
        for scope in pc.unique(positions.scope).to_pylist():
            at = np.flatnonzero(pc.equal(positions.scope, scope).to_numpy(zero_copy_only=False))
            taken = pa.array(at)
            columns = (getattr(positions, name).take(taken) for name in ("commit", "in_table", "partition", "table"))
            late[at], unknown[at] = self._of(scope).check(keys.take(taken), *columns)
        return late, unknown

    def _of(self, scope: str) -> _ScopeChecks:
        if scope not in self._scopes:
            self._scopes[scope] = _ScopeChecks(scope, self._bounds.of(scope), self._newest)
        return self._scopes[scope]


class _ScopeChecks:
    """The rows of one scope during one append."""

    def __init__(self, scope: str, bounds: _Bounds, newest: NewestSequences) -> None:
        self._scope, self._bounds, self._newest = scope, bounds, newest
        self._highest = ""
        #: Keys and orders of the rows that were taken; `taken_of` makes frames of them.
        self._taken: list[tuple[pa.Array, pa.Array]] = []

    def take_if_in_order(self, keys: pa.Array, commits: pa.Array) -> bool:
        """Take rows that are in order, and above all that is known; tell whether they are."""
        begins, known = commits[0].as_py(), self._bounds.known
        is_ascending = len(commits) == 1 or pc.all(pc.greater_equal(commits[1:], commits[:-1])).as_py()
        is_above = known is not None and begins >= known and begins >= self._highest
        if not (is_ascending and is_above and (begins > self._bounds.passed or not self._bounds.truncated)):
            return False
        self._take(keys, commits, commits[-1].as_py())
        return True

    def check(self, keys: pa.Array, commits: pa.Array, in_table: pa.Array, partitions: pa.Array, tables: pa.Array) -> tuple[Mask, Mask]:
        """Return which rows are late, and which are of unknown order; one without an order is neither."""
        if len(commits) and self.take_if_in_order(keys, commits):
            return np.zeros(len(keys), dtype=np.bool_), np.zeros(len(keys), dtype=np.bool_)
        columns = {"key": keys, "commit": commits, "in_table": in_table, "partition": partitions, "table": tables}
        events = pl.DataFrame({name: _column(column) for name, column in columns.items()}).with_row_index("row")
        late = self._is_late_in_append(events, commits) | self._is_truncated(events)
        late &= (events["commit"] != "").to_numpy()
        unknown = self._compare(events, late)
        taken = pa.array(~(late | unknown))
        self._take(keys.filter(taken), commits.filter(taken), highest(commits.filter(taken)))
        return late, unknown & ~late

    def _take(self, keys: pa.Array, commits: pa.Array, last: str) -> None:
        self._taken.append((keys, commits))
        self._highest = max(self._highest, last)

    def taken_of(self, keys: pl.Series) -> pl.DataFrame:
        """Return the rows of some keys that the append has taken so far: key, commit."""
        wanted = pl.DataFrame({"key": keys.unique()})
        frames = [pl.DataFrame({"key": _column(taken), "commit": _column(commits)}) for taken, commits in self._taken]
        return pl.concat([pl.DataFrame(schema=_SCHEMA), *frames]).join(wanted, on="key", how="semi")

    def _is_late_in_append(self, events: pl.DataFrame, commits: pa.Array) -> Mask:
        """Tell which rows come after one of their key with a higher order, in this batch or in those before it."""
        ranked = ranks(commits)
        behind_any = ranked < np.maximum.accumulate(ranked)  # nothing else can come after one of its key with a higher order
        late = np.zeros(len(events), dtype=np.bool_)
        if behind_any.any():
            keys = events.filter(pl.Series(behind_any)).select("key").unique()
            some = events.with_columns(pl.Series("rank", ranked)).join(keys, on="key", how="semi").sort("row")
            found = some.filter(pl.col("rank") < pl.col("rank").cum_max().over("key"))
            late[found["row"].to_numpy()] = True
        behind = events.filter(pl.col("commit") < self._highest)
        if len(behind):
            before = self.taken_of(behind["key"])
            self._mark(behind, before.group_by("key").agg(pl.col("commit").max().alias("newest")), late)
        return late

    def _is_truncated(self, events: pl.DataFrame) -> Mask:
        """Tell which rows are from before a TRUNCATE of their table."""
        truncated = np.zeros(len(events), dtype=np.bool_)
        for table, text in self._bounds.truncated.items():
            end = SourcePosition.of(text).in_table
            is_same = (events["table"] == table) | (events["table"] == "") | pl.lit(value=not table)
            truncated |= events.select(is_same & (pl.col("in_table") < end)).to_series().to_numpy()
        return truncated

    def _compare(self, events: pl.DataFrame, late: Mask) -> Mask:
        """Compare rows below the highest order of the log with the records of their keys; return those whose order is not known."""
        bounds, unknown = self._bounds, np.zeros(len(events), dtype=np.bool_)
        removed = max(bounds.removed.values(), default="")
        asked = events.filter(pl.lit(~late) & (pl.col("commit") != ""))
        if bounds.known is not None:
            asked = asked.filter(pl.col("commit") < bounds.known)
        if not len(asked):
            return unknown
        doubtful = asked.filter(pl.col("commit") < removed)
        others = asked.filter(pl.col("commit") >= removed)
        if len(others) and bounds.highest != "":
            self._mark(others, self._look_up(others["key"], str(others["commit"].min())), late)
        if len(doubtful):
            # Any record of the key counts: while one is there, no deletion after it was removed.
            found = self._look_up(doubtful["key"], "")
            self._mark(doubtful, found, late)
            missing = doubtful.join(found, on="key", how="anti")
            missing = missing.join(self.taken_of(missing["key"]), on="key", how="anti")
            own = pl.col("partition").replace_strict(dict(bounds.removed), default="", return_dtype=pl.String)
            comes_again = missing.filter((pl.col("commit") < own) & (pl.col("partition") != ""))
            late[comes_again["row"].to_numpy()] = True
            unknown[missing["row"].to_numpy()] = True
        return unknown

    def _look_up(self, keys: pl.Series, at_least: str) -> pl.DataFrame:
        """Return the highest orders of some keys in the log: key, newest."""
        found = self._newest(_binary(keys), at_least or self._scope, _end_of(self._scope))
        newest = Positions.of(found["newest"].to_arrow().cast(pa.string()))
        of_scope = found.with_columns(_column(newest.commit).alias("newest"), _column(newest.scope).alias("scope"))
        return of_scope.filter((pl.col("scope") == self._scope) & (pl.col("newest") != "")).select("key", "newest")

    @staticmethod
    def _mark(events: pl.DataFrame, newest: pl.DataFrame, late: Mask) -> None:
        behind = events.join(newest, on="key").filter(pl.col("commit") < pl.col("newest"))
        late[behind["row"].to_numpy()] = True


def _end_of(scope: str) -> str:
    """Return the text below which the sequences of a scope are; empty for no scope."""
    return f"{scope[:-1]}{_END_OF_SCOPE}" if scope else ""


def _binary(keys: pl.Series) -> pa.Array:
    return pa.array(keys.unique().to_arrow().cast(pa.binary()))


def _column(values: pa.Array) -> pl.Series:
    found = pl.from_arrow(values)
    assert isinstance(found, pl.Series)  # noqa: S101  an array, no table
    return found
