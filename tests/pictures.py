"""Logs as text, for tests that read like the documentation.

One line a record, `offset key=value`; a tombstone is `key=∅`. What a test appends is written the same way without offsets:
`"grape=1 lime=2 grape=∅"`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from delta.tables import DeltaTable

from lastword import LogDir

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from lastword import ArrowTopic, Topic

_TOMBSTONE = "∅"


def rows(picture: str, *, partition: int | None = None, timestamp_ms: int | None = None) -> pa.Table:
    """Return the rows that a picture draws, in its order, optionally all for one partition and at one record time."""
    drawn = [(key, None if value == _TOMBSTONE else value) for key, _, value in (word.partition("=") for word in picture.split())]
    keys, values = zip(*drawn, strict=True) if drawn else ((), ())
    columns = {"key": pa.array(keys, pa.string()), "value": pa.array(values, pa.string())}
    if partition is not None:
        columns["partition"] = pa.array([partition] * len(drawn), pa.int32())
    if timestamp_ms is not None:
        columns["timestamp"] = pa.array([timestamp_ms] * len(drawn), pa.int64())
    return pa.table(columns)


def frame(spark: SparkSession, picture: str, *, partition: int | None = None, timestamp_ms: int | None = None) -> DataFrame:
    """Return `rows` as a DataFrame, in one Spark partition."""
    return spark.createDataFrame(rows(picture, partition=partition, timestamp_ms=timestamp_ms)).coalesce(1)


def text(value: bytes | bytearray | None) -> str:
    """Return a value as it is drawn."""
    return _TOMBSTONE if value is None else bytes(value).decode()


def delete_records(topic: Topic, before: Mapping[int, int]) -> dict[int, int]:
    """Delete records by offset; for a topic that is compacted alone its policy, which does not allow it, is another one meanwhile."""
    if topic.config.cleanup_policy != {"compact"}:
        return topic.delete_records(before)
    own = topic.log.decisions().overrides
    topic.alter_config({"cleanup.policy": "compact,delete", "retention.ms": -1, "retention.bytes": -1})
    try:
        return topic.delete_records(before)
    finally:
        topic.alter_config({key: own.get(key) for key in ("cleanup.policy", "retention.ms", "retention.bytes")})


def by_arrow(topic: Topic | str) -> ArrowTopic:
    """Return a topic, or the one whose folder is named, as `LogDir(location)` opens it anew: without Spark, and nothing is remembered."""
    root, options = (topic, None) if isinstance(topic, str) else (topic.log.paths.root, topic.log.storage_options)
    log_dir, _, name = root.rpartition("/")
    return LogDir(log_dir, storage_options=options).topic(name)


def log(topic: Topic, partition: int = 0) -> list[str]:
    """Return the data records of a partition as they are drawn."""
    found = by_arrow(topic).records(partitions=[partition]).to_pylist()
    return [f"{row['offset']} {text(row['key'])}={text(row['value'])}" for row in found]


def latest(topic: Topic) -> dict[str, str]:
    """Return the last word on every key; the keys of a test belong to one partition each."""
    found = by_arrow(topic).latest().to_pylist()
    return {text(row["key"]): text(row["value"]) for row in found}


def segments(topic: Topic, partition: int = 0) -> list[tuple[int, int, int]]:
    """Return (label, first offset, last offset) of every segment of a partition."""
    return [(one.label, one.first_offset, one.last_offset) for one in topic.describe().partitions[partition].segments]


#: Where the clock of a worked example begins.
T0 = 1_700_000_000_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def history(topic: Topic, partition: int = 0) -> list[str]:
    """Return every row of a partition: `offset key=value` or `offset CONTROL`, and `@horizon` in ms after T0 where there is one."""
    found = by_arrow(topic).records(include_control=True, partitions=[partition])
    horizons = found.column("delete_horizon").cast("int64").to_pylist()
    return [
        f"{row['offset']} {row['control'] or text(row['key']) + '=' + text(row['value'])}"
        + ("" if horizon is None else f" @{horizon // 1000 - T0}")
        for row, horizon in zip(found.to_pylist(), horizons, strict=True)
    ]


def vacuum(topic: Topic, spark: SparkSession) -> None:
    """Delete every file that the newest table version does not need, at once."""
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    try:
        DeltaTable.forPath(spark, topic.log.paths.log).vacuum(0)
    finally:
        spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
