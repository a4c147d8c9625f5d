"""Erasing a key: where the log holds it, out of the dead letters, and out of files that no table version of today needs.

```
 rows       of the key in each partition, its newest among them      one Spark job, key and offset alone
 dead       letters of the key leave their table                      by files: no predicate stands in a Delta log
 files      that hold the key and are in no current version go now    the others stay: time travel to them still works
```

VACUUM at a retention of 0 would take every old file, and those of commits in flight. Here a file goes for what is in it. One that no commit
names is what a crash left, or what a commit in flight is about to name, of this process or of another. In the log the offsets tell them
apart: an append in flight begins at the log end, or its commit is refused; a swap in flight was planned before the key left the log, and is
refused, or after, and does not hold it. In the dead letters and in targets such a file is left alone for 24 h. A file that cannot be
decoded is nobody's to delete if a commit ever named it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import functions as F

from lastword.compaction.config.keys import DAY_MS
from lastword.storage.append.dead_letters import delete_dead_letters
from lastword.storage.delta.snapshot import LogSnapshot
from lastword.storage.files.data_reader import read_columns
from lastword.storage.files.paths import filesystem_of
from lastword.storage.key_search import PARTITION, KeySearch
from lastword.storage.log.producer_states import has_producers
from lastword.storage.reading.dataframes import ABORTED, flagged_aborted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import SparkSession

    from lastword.storage.key_search import FoundIn, WantedKey
    from lastword.storage.log.topic_log import TopicLog


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRows:
    """What one partition holds of a key: `rows` records, the last at `last_offset`.

    `newest_*` are of the newest that was not aborted, None when all were.
    """

    partition: int
    rows: int
    last_offset: int
    newest_offset: int | None
    newest_is_tombstone: bool
    newest_ms: int


def rows_of_key(log: TopicLog, spark: SparkSession, snapshot: LogSnapshot, key: bytes) -> list[KeyRows]:
    """Return the partitions that hold a key at a snapshot, by partition; records below the log start count, they are in the files."""
    table = spark.read.format("delta").option("versionAsOf", snapshot.version).load(log.paths.log)
    rows = table.where(F.col("control").isNull() & (F.col("key") == F.lit(key)))
    if has_producers(snapshot, (0,) * log.decisions().partitions):
        rows = flagged_aborted(rows, table)
    else:
        rows = rows.withColumn(ABORTED, F.lit(None).cast("boolean"))
    newest = F.struct("offset", F.col("value").isNull().alias("tombstone"), F.unix_millis("timestamp").alias("ms"))
    found = rows.groupBy("partition").agg(
        F.count(F.lit(1)).alias("rows"),
        F.max("offset").alias("last"),
        F.max_by(newest, F.when(F.col(ABORTED).isNull(), F.col("offset"))).alias("newest"),
    )
    return [
        KeyRows(
            partition=row["partition"],
            rows=row["rows"],
            last_offset=row["last"],
            newest_offset=None if row["newest"] is None else row["newest"]["offset"],
            newest_is_tombstone=row["newest"] is not None and row["newest"]["tombstone"],
            newest_ms=0 if row["newest"] is None else row["newest"]["ms"] or 0,
        )
        for row in found.orderBy("partition").collect()
    ]


def erase_dead_letters(location: str, storage_options: Mapping[str, str], wanted: WantedKey) -> int:
    """Delete the dead letters whose key is the key or whose text names it; return how many."""
    return delete_dead_letters(location, storage_options, KeySearch(location, storage_options, wanted, texts=True).letters_naming)


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What became of the files that held the key: how many are gone, and those that are there still, with the reason."""

    removed: int
    left: tuple[tuple[FoundIn, str], ...]


def sweep(search: KeySearch, location: str, storage_options: Mapping[str, str], *, now_ms: int, is_log: bool = False) -> Swept:
    """Delete the files that hold the key and are in no current version of a table, until a look finds no other.

    `is_log`: the table is a log, in which offsets tell whether a file that no commit names can still be committed.
    """
    removed: set[str] = set()
    while True:
        found = search.look()
        table = DeltaTable(location, storage_options=dict(storage_options))  # after the look: what was in flight then is in it
        current = set(pa.table(table.get_add_actions(flatten=True)).column("path").to_pylist())
        named = set(table.vacuum(retention_hours=0, dry_run=True, enforce_retention_duration=False))
        left = []
        going = []
        for one in found:
            if one.path in current:
                left.append((one, f"cannot be decoded: {one.why}" if one.rows is None else "is in the newest table version"))
            elif one.rows is None and one.path in named:
                left.append((one, f"cannot be decoded: {one.why}; older table versions name it"))
            elif one.path in named or one.written_ms < now_ms - DAY_MS or (is_log and _is_behind(one, table, location, storage_options)):
                going.append(one.path)
            else:
                left.append((one, "no commit names it, and a commit in flight may be about to: purge again a day after it was written"))
        if not going or removed.issuperset(going):
            left += [(one, "could not be deleted") for one in found if one.path in removed]
            return Swept(removed=len(removed), left=tuple(left))
        _delete(location, storage_options, going)
        removed.update(going)


def _is_behind(one: FoundIn, table: DeltaTable, location: str, storage_options: Mapping[str, str]) -> bool:
    """Tell whether the rows of a file lie below the log end of their partition, where no append puts any more."""
    place = PARTITION.search(one.path)
    if place is None:
        return False
    partition = int(place.group(1))
    ends = LogSnapshot.of(table).log_end_offsets(partition + 1)
    offsets = read_columns(location, storage_options, one.path, ["offset"]).column("offset").to_numpy()
    return bool(offsets[0] < ends[partition])


def _delete(location: str, storage_options: Mapping[str, str], paths: Iterable[str]) -> None:
    """Delete files, and the checksums that Hadoop puts beside them on a local disk."""
    files = filesystem_of(location, storage_options)
    for path in paths:
        folder, _, name = path.rpartition("/")
        for each in (path, f"{folder}/.{name}.crc" if folder else f".{name}.crc"):
            try:
                files.delete_file(each)
            except FileNotFoundError:
                continue
