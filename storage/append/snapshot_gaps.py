"""Rows that a snapshot of their source lacks: they were deleted while the connector did not follow the source.

```
 log                 id 1 at 80    id 2 at 90                      of which 90 is the highest position before
 a gap               the source deletes id 1; its slot or its binlog is lost
 a new snapshot      id 2 at 200   id 3 at 200
 a change behind it  id 3 at 210                                   so the snapshot is complete
 the gap has left    id 1
```

A snapshot deletes nothing by itself: one that was asked for, or filtered, has a part of the rows. Rule: docs/semantics.md#A.62.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl
import pyarrow as pa

from lastword.compaction.order.source_epochs import EVERY_PARTITION
from lastword.compaction.order.source_positions import AT_LEAST, SNAPSHOT, SWEPT, SourcePosition, epoch_text, parts_of
from lastword.storage.append.key_lookup import KeyLookup, last_of_keys

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from lastword.compaction.order.source_epochs import Place, Snapshot
    from lastword.storage.ledger.decisions import Decisions
    from lastword.storage.log.topic_log import LogState

_PLACE: Final = ("scope", "partition")
_BEGINS: Final = pl.Schema([("scope", pl.String()), ("partition", pl.String()), ("begin", pl.String()), ("begun_ms", pl.Int64())])


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotGap:
    """What the newest snapshot of a source lacks in one of Kafka's partitions.

    `is_complete`: a change has come behind the snapshot. `rows` have log_partition, key and table.
    """

    scope: str
    partition: str
    snapshot: Snapshot
    is_complete: bool
    rows: pl.DataFrame


def open_snapshots(decisions: Decisions) -> list[tuple[Place, Snapshot]]:
    """Return the snapshots, with scope and Kafka's partition, that may lack rows of before and have not been swept; oldest first."""
    swept = decisions.sweeps
    return [
        (place, candidate)
        for place, known in decisions.epochs.snapshots.items()
        if place[1] != EVERY_PARTITION
        for candidate in known
        if candidate.position and not candidate.is_first and (*place, candidate.position, candidate.epoch) not in swept
    ]


def begin_of(snapshot: Snapshot) -> str:
    """Return the epoch and the order of the rows of a snapshot."""
    return f"{epoch_text(snapshot.epoch)}/{snapshot.position}{SNAPSHOT}"


def read_gaps(state: LogState) -> list[SnapshotGap]:
    """Return what snapshots lack, one entry for each that has not been swept; keys are read only where there is one.

    Rows count that are older than the snapshot by position and by the time of their append, and of a table of which it has a row; a row
    counts for the newest of such snapshots. Raises `CorruptLog` naming a file that cannot be read.
    """
    log, decisions = state.log, state.decisions
    places = open_snapshots(decisions)
    if not places:
        return []
    begins = pl.DataFrame([(*place, begin_of(candidate), candidate.begun_ms) for place, candidate in places], schema=_BEGINS, orient="row")
    tables, complete, older = set[tuple[str, str, str]](), set[tuple[str, str, str]](), list[pl.DataFrame]()
    for partition in range(decisions.partitions):
        last = list[pl.DataFrame]()
        for batch in KeyLookup.of(log.paths.log, log.storage_options, state.files, partition).key_batches():
            records = _add_places(batch, begins)
            tables |= {*records.filter(pl.col("commit") == pl.col("begin")).select("scope", "begin", "table").unique().iter_rows()}
            complete |= {*records.filter(pl.col("commit") > pl.col("begin")).select(*_PLACE, "begin").unique().iter_rows()}
            last.append(batch)
        live = _add_places(last_of_keys(last).filter("is_live"), begins)
        live = live.filter((pl.col("commit") < pl.col("begin")) & (pl.col("appended_ms") < pl.col("begun_ms")))
        older.append(live.with_columns(pl.lit(partition).alias("log_partition")))
    named = pl.DataFrame(sorted(tables), schema={"scope": pl.String, "begin": pl.String, "table": pl.String}, orient="row")
    of_tables = pl.concat(older).join(named.filter(pl.col("table") != ""), on=["scope", "begin", "table"], how="semi")
    rows = of_tables.sort("begin").unique(["log_partition", "key"], keep="last", maintain_order=True)
    return [
        SnapshotGap(
            scope=scope,
            partition=kafka_partition,
            snapshot=candidate,
            is_complete=(scope, kafka_partition, begin_of(candidate)) in complete,
            rows=rows.filter(
                (pl.col("scope") == scope) & (pl.col("partition") == kafka_partition) & (pl.col("begin") == begin_of(candidate))
            ).select("log_partition", "key", "table"),
        )
        for (scope, kafka_partition), candidate in places
    ]


def _add_places(batch: pl.DataFrame, begins: pl.DataFrame) -> pl.DataFrame:
    """Return those records that are in the place of a snapshot and have an order, with where that begins and their positions."""
    parts = parts_of(batch["source_sequence"].to_arrow().cast(pa.string()))
    placed = parts.with_columns(batch["key"], batch["appended_ms"], pl.concat_str("epoch", pl.lit("/"), "order").alias("commit"))
    ordered = placed.filter((pl.col("order") != "") & ~pl.col("order").str.starts_with(AT_LEAST))
    return ordered.join(begins, on=list(_PLACE)).select("key", *_PLACE, "table", "commit", "appended_ms", "begin", "begun_ms")


def swept_rows(gap: SnapshotGap, kept: Container[bytes] = ()) -> Iterator[tuple[int, pa.Array, list[str]]]:
    """Yield the keys of a gap by partition of the log, with the position of the deletion of each: before the rows of the snapshot.

    Those that are `kept` are left out.
    """
    gone = gap.rows.filter(pl.Series([key not in kept for key in gap.rows["key"].to_list()], dtype=pl.Boolean))
    for (log_partition,), rows in gone.partition_by("log_partition", as_dict=True).items():
        positions = [
            SourcePosition(
                scope=gap.scope,
                epoch=gap.snapshot.epoch,
                order=f"{gap.snapshot.position}{SWEPT}",
                table=table,
                partition=gap.partition,
            ).text
            for table in rows["table"].to_list()
        ]
        yield int(str(log_partition)), pa.array(rows["key"].to_list(), pa.binary()), positions
