"""Rows with a source sequence: which of them an append takes, so that no event puts an older state over a newer one.

```
 log           k: 20      j: 35      highest 35, removed deletions up to 12
 rows          k 36 │ k 21 │ j 30 │ k 36 │ x 30 │ x 11
 verdict       ok   │ late │ late │ ok   │ ok   │ unknown: a deletion of x after 11 may have been removed
```

A row is late if a record of its key with a higher sequence is in the log, or comes before it in the append, or if its table was truncated
at a higher one; an equal sequence is not late, the record that comes last counts. A row that is not below the highest sequence of its
partition needs no look at the log; any other asks for the records of its own key. Whether a key that the log does not know was deleted can
be told only from the highest sequence of the deletions that cleaning has removed on: a row below it, of an unknown key, is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from lastword.compaction.rows.sequences import highest, ranks

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The reason of a row of which `SequenceChecks` cannot tell whether it is late.
UNKNOWN_ORDER: Final = "unknown_order"


class NewestSequences(Protocol):
    """The way to the records of a partition."""

    def __call__(self, keys: pa.Array, at_least: str) -> pl.DataFrame:
        """Return the highest sequence of each of some keys: `key` (binary), `newest` (string).

        Keys of which no record has a sequence of `at_least` may be left out.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceBounds:
    """What is known of the source sequences of one partition: the highest in its files, that of the removed deletions, that of a TRUNCATE.

    The empty text stands for none.
    """

    highest: str = ""
    removed: str = ""
    truncated: str = ""


class SequenceChecks:
    """The source sequences of one partition during one append; `check` takes its batches one after the other."""

    def __init__(self, bounds: SequenceBounds, newest: NewestSequences) -> None:
        """Begin with what the log knows of the partition."""
        self._bounds, self._newest = bounds, newest
        self._highest = ""
        self._taken: list[pa.RecordBatch] = []

    def in_arrival_order(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows in which each that does not know its position, the empty text, has the highest sequence of its key so far."""
        texts = rows.column("source_sequence")
        if not pc.any(pc.equal(texts, "")).as_py() or not (highest(texts) or self._highest or self._bounds.highest):
            return rows
        keys, given = rows.column("key").to_pylist(), texts.to_pylist()
        asked = pl.Series("key", [key for key, text in zip(keys, given, strict=True) if not text], pl.Binary)
        frames = [self._look_up(asked, "").rename({"newest": "sequence"})]
        known: dict[bytes, str] = {}
        for key, text in pl.concat([*frames, self._taken_of(asked)]).iter_rows():
            known[key] = max(text, known.get(key, ""))
        for row, (key, text) in enumerate(zip(keys, given, strict=True)):
            given[row] = text or known.get(key, "")
            known[key] = max(given[row], known.get(key, ""))
        at = rows.schema.get_field_index("source_sequence")
        return rows.set_column(at, "source_sequence", pa.array(given, pa.string()))

    def check(self, rows: pa.RecordBatch) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return which rows of a batch are late, and which are of unknown order.

        Columns: key, source_sequence (string, not null).
        """
        texts, known = rows.column("source_sequence"), max(self._bounds.highest, self._bounds.removed, self._bounds.truncated)
        nothing = np.zeros(len(rows), dtype=np.bool_)
        if not len(rows):
            return nothing, nothing
        begins = texts[0].as_py()
        is_ascending = len(rows) == 1 or pc.all(pc.greater_equal(texts[1:], texts[:-1])).as_py()
        if is_ascending and begins >= known and begins >= self._highest:
            self._take(rows, texts[-1].as_py())
            return nothing, nothing
        events = pl.DataFrame({"key": _column(rows.column("key")), "sequence": _column(texts), "row": np.arange(len(rows))})
        late = self._is_late_in_append(events, texts) | (events["sequence"] < self._bounds.truncated).to_numpy()
        unknown = self._compare(events, late)
        taken = rows.filter(pa.array(~(late | unknown)))
        self._take(taken, highest(taken.column("source_sequence")))
        return late, unknown & ~late

    def _take(self, rows: pa.RecordBatch, last: str) -> None:
        self._taken.append(rows.select(["key", "source_sequence"]))
        self._highest = max(self._highest, last)

    def _taken_of(self, keys: pl.Series) -> pl.DataFrame:
        """Return the rows of some keys that the append has taken so far: key, sequence."""
        frames = [
            pl.DataFrame({"key": _column(one.column("key")), "sequence": _column(one.column("source_sequence"))}) for one in self._taken
        ]
        wanted = pl.DataFrame({"key": keys.unique()})
        schema = {"key": pl.Binary, "sequence": pl.String}
        return pl.concat([pl.DataFrame(schema=schema), *frames]).join(wanted, on="key", how="semi")

    def _is_late_in_append(self, events: pl.DataFrame, texts: pa.Array) -> NDArray[np.bool_]:
        """Tell which rows come after one of their key with a higher sequence, in this batch or in those before it."""
        ranked = ranks(texts)
        behind_any = ranked < np.maximum.accumulate(ranked)  # nothing else can come after one of its key with a higher sequence
        late = np.zeros(len(events), dtype=np.bool_)
        if behind_any.any():
            keys = events.filter(pl.Series(behind_any)).select("key").unique()
            some = events.with_columns(pl.Series("rank", ranked)).join(keys, on="key", how="semi").sort("row")
            found = some.filter(pl.col("rank") < pl.col("rank").cum_max().over("key"))
            late[found["row"].to_numpy()] = True
        behind = events.filter(pl.col("sequence") < self._highest)
        if len(behind):
            before = self._taken_of(behind["key"])
            self._mark(behind, before.group_by("key").agg(pl.col("sequence").max().alias("newest")), late)
        return late

    def _compare(self, events: pl.DataFrame, late: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Compare rows below the highest sequence of the log with the records of their keys; return those whose order is not known."""
        bounds, unknown = self._bounds, np.zeros(len(events), dtype=np.bool_)
        asked = events.filter(pl.lit(~late) & (pl.col("sequence") < max(bounds.highest, bounds.removed)))
        if not len(asked):
            return unknown
        doubtful = asked.filter((pl.col("sequence") < bounds.removed) & (pl.col("sequence") != ""))
        others = asked.filter(pl.col("sequence") >= bounds.removed)
        if len(others):
            self._mark(others, self._look_up(others["key"], str(others["sequence"].min())), late)
        if len(doubtful):
            # Any record of the key counts: while one is there, no deletion after it was removed.
            found = self._look_up(doubtful["key"], "")
            self._mark(doubtful, found, late)
            missing = doubtful.join(found, on="key", how="anti")
            missing = missing.join(self._taken_of(missing["key"]), on="key", how="anti")
            unknown[missing["row"].to_numpy()] = True
        return unknown

    def _look_up(self, keys: pl.Series, at_least: str) -> pl.DataFrame:
        """Return the highest sequences of some keys in the log: key, newest."""
        return self._newest(pa.array(keys.unique().to_arrow().cast(pa.binary())), at_least)

    @staticmethod
    def _mark(events: pl.DataFrame, newest: pl.DataFrame, late: NDArray[np.bool_]) -> None:
        behind = events.join(newest, on="key").filter(pl.col("sequence") < pl.col("newest"))
        late[behind["row"].to_numpy()] = True


def _column(values: pa.Array) -> pl.Series:
    found = pl.from_arrow(values)
    assert isinstance(found, pl.Series)  # noqa: S101  an array, no table
    return found
