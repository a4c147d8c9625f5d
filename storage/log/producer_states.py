"""What the log knows of its producers: rebuilt from the rows that carry one, then kept up with what is appended.

Only files that hold such a row are read (Delta skips the others by their statistics), only narrow columns of them, and only one row a
(partition, producer) comes to the driver. A file that cannot be read makes the states of its partition unknown, and of no other:

```
 partition 0   read up to its log end       its states are known
 partition 1   a file cannot be read        nothing of it is known; it is tried again after a while, and whenever somebody asks for it
```
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from pyspark.sql import functions as F

from lastword.compaction.errors import SparkNeeded, first_line
from lastword.compaction.producers import ProducerSnapshot, ProducerState, in_sight, merged, remembered
from lastword.storage.delta.history import commits_since

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from deltalake import DeltaTable
    from pyspark.sql import Column, DataFrame, SparkSession

    from lastword.storage.delta.snapshot import LogSnapshot

States = Mapping[tuple[int, int], ProducerState]
_IS_MARKER: Final = "control IN ('COMMIT', 'ABORT')"
#: What remains of a marker is an EMPTY row too, but carries no sequence.
_IS_DATA_OR_ITS_PLACE: Final = "control IS NULL OR (control = 'EMPTY' AND sequence IS NOT NULL)"
_IS_TXN_DATA: Final = "control IS NULL AND txn_first_offset IS NOT NULL"
#: A marker goes in the second cleaning that comes by it, at the earliest.
_LEAST_CLEANINGS: Final = 2
#: A partition that could not be read is left alone for so long.
RETRY_SECONDS: Final = 30.0
#: The condition of Spark's errors that name a file: it is spoilt, missing, or the storage did not give it.
_UNREADABLE: Final = "FAILED_READ_FILE"


class ProducerCache(Protocol):
    """Where a snapshot of the states is kept between processes; it may be lost or spoilt at any time."""

    def load(self) -> ProducerSnapshot | None:
        """Return what is kept, or None when there is nothing that can be trusted."""

    def save(self, snapshot: ProducerSnapshot) -> None:
        """Keep a snapshot."""


class ProducerLog:
    """The states of one log's producers, kept between calls and, through a cache, between processes; for one thread at a time."""

    def __init__(
        self, name: str, location: str, *, table: Callable[[], DeltaTable], partitions: Callable[[], int], cache: ProducerCache
    ) -> None:
        """Read nothing yet. `table` returns the newest state of the Delta table at `location`, `partitions` how many the topic has."""
        self._name, self._location, self._table, self._partitions, self._cache = name, location, table, partitions, cache
        self._held: ProducerSnapshot | None = None
        #: The newest of which every partition could be read: from there a partition goes on that can be read again.
        self._whole: ProducerSnapshot | None = None
        self._unreadable: dict[int, Exception] = {}
        self._retry_at = 0.0
        self._useless: set[ProducerState] = set()

    def states(self, spark: SparkSession | None, at: LogSnapshot, of: Collection[int] | None = None) -> States:
        """Return the states of the partitions `of` (default: all) at a snapshot.

        Runs a Spark job when rows with a producer were appended since the last call; raises `SparkNeeded` when `spark` is None then, and
        what Spark raises when a file of one of `of` cannot be read.
        """
        found, unreadable = self._read(spark, at, again=of)
        for partition in sorted(unreadable if of is None else unreadable.keys() & set(of)):
            raise unreadable[partition]
        return found if of is None else {place: state for place, state in found.items() if place[0] in of}

    def readable(self, spark: SparkSession | None, at: LogSnapshot, *, again: bool) -> tuple[States, dict[int, str]]:
        """Return the states at a snapshot, and by partition why those of the others cannot be read.

        One that could not be read is tried again after a while, at once with `again`. Errors as `states`.
        """
        found, unreadable = self._read(spark, at, again=None if again or time.monotonic() >= self._retry_at else ())
        return found, {partition: first_line(error) for partition, error in unreadable.items()}

    def forget(self, log_start_offsets: Sequence[int], *, now_ms: int, expiration_ms: int) -> int:
        """Forget the states that are of no use any more (`remembered`), and return how many; runs no Spark job.

        One is forgotten that was of no use at the last call already: a clock that jumps and comes back between two calls forgets nobody.
        """
        if self._held is None:
            return 0
        seen = replace(self._held, states=in_sight(self._held.states, log_start_offsets))
        kept = remembered(seen, now_ms=now_ms, expiration_ms=expiration_ms).states
        useless = {state for place, state in self._held.states.items() if place not in kept}
        forgotten, self._useless = useless & self._useless, useless
        if forgotten:
            self._keep(replace(self._held, states={place: one for place, one in self._held.states.items() if one not in forgotten}))
        return len(forgotten)

    def _read(
        self, spark: SparkSession | None, at: LogSnapshot, *, again: Collection[int] | None
    ) -> tuple[States, Mapping[int, Exception]]:
        """Return the states that can be read, and by partition why the others cannot; those `again` (None: all) are tried in any case."""
        if self._held is None:
            self._held = self._whole = self._cache.load()
        retried = self._unreadable.keys() if again is None else self._unreadable.keys() & set(again)
        if self._held is not None and self._held.table_version == at.version and not retried:
            return self._held.states, self._unreadable
        partitions = self._partitions()
        if not has_producers(at, (0,) * partitions):
            return {}, {}
        if spark is None:
            message = f"topic {self._name}: its producers' states have to be read from the log"
            raise SparkNeeded(message)
        self._held = self._followed(self._held)
        is_past = self._held is not None and self._held.table_version > at.version
        left_out = {one: error for one, error in self._unreadable.items() if one not in retried}
        since = None if is_past else self._followed(self._whole) if retried else self._held
        only = [one for one in range(partitions) if one not in left_out]
        found, failed = _read_apart(spark, self._location, at, partitions, since, only=only)
        if not is_past:
            self._unreadable = left_out | failed
            self._retry_at = time.monotonic() + RETRY_SECONDS if failed else self._retry_at
            self._keep(found)
        return found.states, left_out | failed

    def _keep(self, snapshot: ProducerSnapshot) -> None:
        """Hold a snapshot; other processes get it if it is whole."""
        self._held = snapshot
        if not self._unreadable:
            self._whole = snapshot
            self._cache.save(snapshot)

    def _followed(self, known: ProducerSnapshot | None) -> ProducerSnapshot | None:
        """Return some states if what came after them is all in the rows past them, otherwise None.

        Not after a RESTORE. Nor where two cleanings may have removed a marker: the first gives it a horizon, a later one takes it away.
        """
        if known is None:
            return None
        table = self._table()
        commits = commits_since(table, known.table_version)
        if len(commits) < table.version() - known.table_version or any(one.restored_version is not None for one in commits):
            return None
        has_open = any(one.open_first_offset is not None for one in known.states.values())
        cleanings = sum(one.metadata is not None and bool(one.metadata.receipts) for one in commits)
        return known if not has_open or cleanings < _LEAST_CLEANINGS else None


def _read_apart(
    spark: SparkSession, location: str, at: LogSnapshot, partitions: int, since: ProducerSnapshot | None, *, only: Sequence[int]
) -> tuple[ProducerSnapshot, dict[int, Exception]]:
    """Return what `read_states` does, of the partitions whose files can be read, and why those of the others cannot.

    They are found by halves. Raises what has nothing to do with a file.
    """
    try:
        return read_states(spark, location, at, partitions, since, only=only), {}
    except Exception as error:
        if _UNREADABLE not in str(error):
            raise
        if len(only) == 1:
            nothing = ProducerSnapshot(table_version=at.version, log_end_offsets=(0,) * partitions, states={})
            return nothing, {only[0]: error.with_traceback(None)}
    halves = only[: len(only) // 2], only[len(only) // 2 :]
    (one, failed), (other, failed_too) = (_read_apart(spark, location, at, partitions, since, only=half) for half in halves)
    ends = tuple(map(max, one.log_end_offsets, other.log_end_offsets))
    found = ProducerSnapshot(table_version=at.version, log_end_offsets=ends, states={**one.states, **other.states})
    return found, failed | failed_too


def read_states(
    spark: SparkSession,
    location: str,
    snapshot: LogSnapshot,
    partitions: int,
    since: ProducerSnapshot | None = None,
    *,
    only: Collection[int] | None = None,
) -> ProducerSnapshot:
    """Return the producers' states at `snapshot`: all of the log, or what came after `since`.

    A log that is shorter than `since` knew it (a RESTORE) is read from its beginning. Of partitions other than `only` nothing is read, nor
    returned: they reach to offset 0.
    """
    chosen = set(range(partitions) if only is None else only)
    ends = tuple(snapshot.log_end_offsets(partitions))
    if since is not None and (since.table_version > snapshot.version or any(map(int.__gt__, since.log_end_offsets, ends))):
        since = None
    starts = since.log_end_offsets if since is not None else (0,) * partitions
    starts = tuple(start if one in chosen else ends[one] for one, start in enumerate(starts))
    states = {place: state for place, state in since.states.items() if place[0] in chosen} if since is not None else {}
    if has_producers(snapshot, starts):
        rows = spark.read.format("delta").option("versionAsOf", snapshot.version).load(location).where("producer_id IS NOT NULL")
        if len(chosen) < partitions:  # by itself, so that no file of another partition is opened
            rows = rows.where(F.col("partition").isin(sorted(chosen)))
        if since is not None:
            rows = rows.where(_past(starts))
        for new, ended in summaries(rows):
            place = new.partition, new.producer_id
            states[place] = merged(states.get(place), new, ended=ended)
    reached = tuple(end if one in chosen else 0 for one, end in enumerate(ends))
    return ProducerSnapshot(table_version=snapshot.version, log_end_offsets=reached, states=states)


def has_producers(snapshot: LogSnapshot, starts: Sequence[int]) -> bool:
    """Tell from the statistics whether a row at or past `starts` may carry a producer."""
    files = snapshot.files
    if not len(files.partition):
        return False
    from_here = [starts[partition] for partition in files.partition]
    return bool(((files.producer_rows > 0) & (files.last_offset >= from_here)).any())


def _past(starts: Sequence[int]) -> Column:
    """Return the condition that a row lies past the start of its partition: by its offset, as a swap may give it an older slice."""
    condition = F.lit(False)
    for partition, start in enumerate(starts):
        condition = condition | ((F.col("partition") == partition) & (F.col("offset") >= start))
    return condition


def summaries(rows: DataFrame) -> list[tuple[ProducerState, bool]]:
    """Fold rows to one state a (partition, producer), and whether a marker of the producer is among them."""
    found = (
        rows.groupBy("partition", "producer_id")
        .agg(
            F.expr("max_by(producer_epoch, offset)").alias("epoch"),
            F.expr("unix_millis(max_by(appended_at, offset))").alias("last_appended_ms"),
            F.expr(f"max_by(struct(producer_epoch, offset), offset) FILTER (WHERE {_IS_DATA_OR_ITS_PLACE})").alias("place"),
            F.expr("max(offset)").alias("last_offset"),
            F.expr("max_by(struct(producer_epoch, sequence), offset) FILTER (WHERE sequence IS NOT NULL)").alias("data"),
            F.expr(f"max(offset) FILTER (WHERE {_IS_MARKER})").alias("marker"),
            F.expr(f"max_by(struct(offset, txn_first_offset), offset) FILTER (WHERE {_IS_TXN_DATA})").alias("txn"),
            F.expr(f"unix_millis(max_by(appended_at, offset) FILTER (WHERE {_IS_TXN_DATA} AND offset = txn_first_offset))").alias(
                "since_ms"
            ),
        )
        .collect()
    )
    result = []
    for row in found:
        is_open = row["txn"] is not None and (row["marker"] is None or row["txn"]["offset"] > row["marker"])
        data, place = row["data"], row["place"]
        held_by_data = place is not None and place["producer_epoch"] == row["epoch"]
        state = ProducerState(
            partition=row["partition"],
            producer_id=row["producer_id"],
            epoch=row["epoch"],
            last_sequence=data["sequence"] if data is not None and data["producer_epoch"] == row["epoch"] else None,
            last_appended_ms=row["last_appended_ms"],
            open_first_offset=row["txn"]["txn_first_offset"] if is_open else None,
            open_last_offset=row["txn"]["offset"] if is_open else None,
            open_since_ms=(row["last_appended_ms"] if row["since_ms"] is None else row["since_ms"]) if is_open else None,
            place_offset=place["offset"] if held_by_data else row["last_offset"],
            place_is_data=held_by_data,
        )
        result.append((state, row["marker"] is not None))
    return result


def states_of(producer_id: int, states: Mapping[tuple[int, int], ProducerState]) -> dict[int, ProducerState]:
    """Return the states of one producer by partition."""
    return {partition: state for (partition, one), state in states.items() if one == producer_id}
