"""Where a reader begins: names and moments as offset vectors."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import numpy as np
from pyspark.sql import functions as F

from lastword.compaction.errors import OffsetOutOfRange, UserError
from lastword.compaction.read_positions import Position, parse_offsets
from lastword.storage.reading.dataframes import data_records, log_records, view_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lastword.storage.log.topic_log import TopicLog
    from lastword.storage.reading.dataframes import View


def starting_position(
    log: TopicLog, spark: SparkSession, starting_offsets: object, starting_timestamp: int | datetime | None, isolation: str
) -> Position:
    """Return where a reader begins that asks for `starting_offsets` or `starting_timestamp` (which wins), at the newest table version.

    Of offsets that somebody remembers nobody knows which version they are from (unless they are a `Position`, or the ends of the log, where
    a new reader begins): every tombstone at or past them counts as missed once it was removed. Raises `UserError` for what is no position,
    `OffsetOutOfRange` for one past the log end.
    """
    view = view_of(log, log.snapshot(), isolation)
    if starting_timestamp is not None:
        return replace(view.position, offsets=_offsets_at(log, spark, view, _millis(starting_timestamp)))
    if isinstance(starting_offsets, Position):
        offsets, seen = starting_offsets.offsets, starting_offsets
        if len(offsets) != view.partitions:
            message = f"topic {log.name}: a position of {len(offsets)} partitions; the topic has {view.partitions}"
            raise UserError(message)
    else:
        option = "starting_offsets"
        offsets = parse_offsets(starting_offsets, option=option, partitions=view.partitions, earliest=view.start, latest=view.end)
        new = all(at <= first or at >= last for at, first, last in zip(offsets, view.start, view.end, strict=True))
        seen = replace(view.position, offsets=offsets, since_version=view.snapshot.version if new else -1)
        ends = view.snapshot.log_end_offsets(view.partitions)
        past = {one: offset for one, (offset, end) in enumerate(zip(offsets, ends, strict=True)) if offset > end}
        if past:
            allowed = ", ".join(f"partition {one} up to {ends[one]}" for one in past)
            message = f"topic {log.name}: starting_offsets {past}: allowed is {allowed} (log end offset)"
            raise OffsetOutOfRange(message)
    return seen


def _offsets_at(log: TopicLog, spark: SparkSession, view: View, moment_ms: int) -> tuple[int, ...]:
    """Return for each partition the first offset seen whose timestamp is not older than a moment, its end where there is none.

    Kafka's offsetsForTimes, and `startingOffsetsByTimestampStrategy=latest` of Spark's Kafka source. Of each partition one file is read:
    the first whose statistics reach that far; all behind it only when what reaches that far there is not seen (aborted, say).
    """
    files = view.snapshot.files
    reached = np.flatnonzero((files.max_timestamp_ms >= moment_ms) & (files.last_offset >= np.asarray(view.start)[files.partition]))
    found: dict[int, int] = {}
    for only_first in (True, False):
        begin, end = list(view.end), list(view.end)
        for file in reached[::-1].tolist():  # the first of a partition comes last
            partition = int(files.partition[file])
            if partition not in found:
                begin[partition] = max(int(files.first_offset[file]), view.start[partition])
                end[partition] = int(files.last_offset[file]) + 1 if only_first else view.end[partition]
        if all(map(int.__ge__, begin, view.end)):
            break
        rows = log_records(spark, log, view, begin=begin).where(F.unix_millis("timestamp") >= moment_ms)
        ends = F.get(F.array(*[F.lit(one).cast("bigint") for one in end]), F.col("partition"))
        firsts = data_records(rows).where(F.col("offset") < ends).groupBy("partition").agg(F.min("offset").alias("offset"))
        found |= {row["partition"]: row["offset"] for row in firsts.collect()}
    return tuple(found.get(partition, end) for partition, end in enumerate(view.end))


def _millis(moment: int | datetime) -> int:
    if isinstance(moment, datetime):
        return int((moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp() * 1000)
    if isinstance(moment, bool) or not isinstance(moment, int):
        message = f"starting_timestamp = {moment!r}: allowed is milliseconds since 1970, or a datetime"
        raise UserError(message)
    return moment
