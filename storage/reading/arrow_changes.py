"""What changed between two offset vectors, without a JVM: the rows of `lastword.streaming.reading.changes`, by Polars."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl
import pyarrow as pa

from lastword.storage.reading import arrow_frames, arrow_rows
from lastword.storage.reading.time_travel import change_witnesses, check_range, witnesses
from lastword.storage.reading.view import CHANGE_COLUMNS, LATEST_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lastword.storage.log.topic_log import TopicLog

_KEY: Final = ("partition", "key")
_WORD: Final = ("value", "headers", "timestamp", "offset")
_SCHEMA: Final = pa.schema([*arrow_rows.schema_of(CHANGE_COLUMNS[:-1]), ("change_type", pa.string())])


def changes(log: TopicLog, begin: Sequence[int], end: Sequence[int], *, isolation: str) -> pa.Table:
    """Return every change from `begin` to `end` (exclusive) by partition and offset; as `lastword.streaming.reading.changes.changes`."""
    parts = []
    for witness in change_witnesses(log, begin, end, isolation):
        view = witness.below(end)
        rows = _frame(arrow_rows.records(view, LATEST_COLUMNS, begin=begin)).filter(pl.col("key").is_not_null())
        before = _frame(arrow_frames.latest(witness.below(begin))).join(rows, on=_KEY, how="semi")
        parts += [rows.with_columns(asked=pl.lit(value=True)), before.with_columns(asked=pl.lit(value=False))]
    word = pl.struct(_WORD)
    steps = pl.concat(parts).sort("partition", "key", "offset").with_columns(after=word, before=word.shift().over(_KEY))
    return _changes_of(steps.filter("asked"))


def net_changes(log: TopicLog, begin: Sequence[int], end: Sequence[int], *, isolation: str) -> pa.Table:
    """Return what the keys say at `end` and did not say at `begin`; as `lastword.streaming.reading.changes.net_changes`."""
    check_range(log, begin, end)
    tables = []
    for name, vector in (("before", begin), ("after", end)):
        views = [witness.below(vector) for witness in witnesses(log, vector, isolation, asked="changes")]
        words = pl.concat([_frame(arrow_frames.latest(view)) for view in views])
        tables.append(words.select(*_KEY, pl.struct(_WORD).alias(name)))
    both = tables[0].join(tables[1], on=_KEY, how="full", coalesce=True)
    return _changes_of(both.filter(~pl.col("before").struct.field("offset").eq_missing(pl.col("after").struct.field("offset"))))


def _frame(rows: pa.Table) -> pl.DataFrame:
    return pl.DataFrame(rows).select(LATEST_COLUMNS)


def _changes_of(steps: pl.DataFrame) -> pa.Table:
    """Return the changes that steps (partition, key, before, after) make; a word that is null, or has a null value, is not there."""
    was, is_there = (pl.col(name).struct.field("value").is_not_null() for name in ("before", "after"))
    has_record = pl.col("after").struct.field("offset").is_not_null()

    def change(which: pl.Expr, kind: str, word: str, moment: str) -> pl.DataFrame:
        fields = [pl.col(word).struct.field(name) for name in ("value", "headers")]
        fields += [pl.col(moment).struct.field(name) for name in ("timestamp", "offset")]
        return steps.filter(which).select(*_KEY, *fields, change_type=pl.lit(kind))

    changes = pl.concat(
        [
            change(was & is_there, "update_before", "before", "after"),
            change(was & is_there, "update_after", "after", "after"),
            change(was & ~is_there & has_record, "delete", "before", "after"),
            change(was & ~has_record, "delete", "before", "before"),
            change(~was & is_there, "insert", "after", "after"),
        ]
    )
    return changes.sort("partition", "offset", maintain_order=True).select(CHANGE_COLUMNS).to_arrow().cast(_SCHEMA)
