"""What the log knows of its producers: rebuilt from the rows that carry one, then kept up with what is appended.

Only files that hold such a row are read (Delta skips the others by their statistics), only narrow columns of them, and only one row a
(partition, producer) comes to the driver.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

from pyspark.sql import functions as F

from compaction.producers import ProducerSnapshot, ProducerState, merged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from storage.snapshot import LogSnapshot

States = Mapping[tuple[int, int], ProducerState]
_IS_MARKER: Final = "control IN ('COMMIT', 'ABORT')"
#: What remains of a marker is an EMPTY row too, but carries no sequence.
_IS_DATA_OR_ITS_PLACE: Final = "control IS NULL OR (control = 'EMPTY' AND sequence IS NOT NULL)"
_IS_TXN_DATA: Final = "control IS NULL AND txn_first_offset IS NOT NULL"


class ProducerCache(Protocol):
    """Where a snapshot of the states is kept between processes; it may be lost or spoilt at any time."""

    def load(self) -> ProducerSnapshot | None:
        """Return what is kept, or None when there is nothing that can be trusted."""

    def save(self, snapshot: ProducerSnapshot) -> None:
        """Keep a snapshot."""


def read_states(
    spark: SparkSession, location: str, snapshot: LogSnapshot, partitions: int, since: ProducerSnapshot | None = None
) -> ProducerSnapshot:
    """Return the producers' states at `snapshot`: all of the log, or what came after `since`.

    A log that is shorter than `since` knew it (a RESTORE) is read from its beginning.
    """
    ends = tuple(snapshot.log_end_offsets(partitions))
    if since is not None and (since.table_version > snapshot.version or any(map(int.__gt__, since.log_end_offsets, ends))):
        since = None
    starts = since.log_end_offsets if since is not None else (0,) * partitions
    states = dict(since.states) if since is not None else {}
    if has_producers(snapshot, starts):
        rows = spark.read.format("delta").option("versionAsOf", snapshot.version).load(location).where("producer_id IS NOT NULL")
        if since is not None:
            rows = rows.where(_past(starts))
        for new, ended in summaries(rows):
            place = new.partition, new.producer_id
            states[place] = merged(states.get(place), new, ended=ended)
    return ProducerSnapshot(table_version=snapshot.version, log_end_offsets=ends, states=states)


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
