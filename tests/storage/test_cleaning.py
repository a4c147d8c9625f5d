"""Cleaning on a real log: the worked examples of the seeds, and of SEMANTICS."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from tests.pictures import latest, rows, text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lastword import LogDir, Topic

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
T0 = 1_700_000_000_000


def picture(topic: Topic, partition: int = 0) -> list[str]:
    """Return every row of a partition: `offset key=value`, `offset CONTROL`, with `@horizon` in ms after T0 where there is one."""
    found = topic.records(include_control=True).where(F.col("partition") == partition)
    found = found.select("offset", "key", "value", "control", F.unix_millis("delete_horizon").alias("horizon")).orderBy("offset")

    def drawn(row: object) -> str:
        offset, key, value, control, horizon = row  # type: ignore[misc]
        body = control or f"{text(key)}={text(value)}"
        return f"{offset} {body}" + ("" if horizon is None else f" @{horizon - T0}")

    return [drawn(row) for row in found.collect()]


def test_the_fruit_prices_of_the_seed_come_out_as_it_says(spark: SparkSession, logs: LogDir) -> None:
    """Two cleanings, a week apart: superseded records go at once, the tombstone when its horizon has passed."""
    topic = logs.create_topic("fruit-prices", config={"cleanup.policy": "compact"})
    topic.append(rows(spark, "grape=1 lime=1 grape=∅ lime=2"), now_ms=T0)
    topic.roll(now_ms=T0)
    topic.append(rows(spark, "lime=3"), now_ms=T0)
    [receipt] = topic.clean(T0)
    assert picture(topic) == [f"2 grape=∅ @{DAY_MS}", "3 lime=2", "4 lime=3"]
    assert (receipt.end_offset, dict(receipt.removed), receipt.map_entries) == (4, {"superseded": 2}, 2)
    topic.append(rows(spark, "guava=1 guava=2 kiwi=1"), now_ms=T0)
    topic.roll(now_ms=T0)
    topic.append(rows(spark, "guava=3"), now_ms=T0)
    assert latest(topic) == {"lime": "3", "guava": "3", "kiwi": "1"}
    [receipt] = topic.clean(T0 + 7 * DAY_MS - HOUR_MS)
    assert picture(topic) == ["4 lime=3", "6 guava=2", "7 kiwi=1", "8 guava=3"]
    assert dict(receipt.removed) == {"superseded": 2, "expired_tombstone": 1}
    assert receipt.highest_removed_tombstone == 2
    assert latest(topic) == {"lime": "3", "guava": "3", "kiwi": "1"}
