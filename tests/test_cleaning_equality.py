"""Random histories with cleaning and retention against the executable specification: after every step the log holds what the model says.

Every partition of a topic is a history of its own; all of them go through the same few Spark jobs.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any, Final

import pytest
from pyspark.sql import functions as F

from lastword import LogDir
from tests.clocks import at
from tests.lives import Lives
from tests.model import Record
from tests.test_model_equality import seed_of_this_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from lastword import SparkTopic

_SCHEMA: Final = (
    "partition int, key binary, value binary, timestamp bigint, producer_id bigint, producer_epoch int, sequence int, "
    "transactional boolean, control string"
)


class _Lives(Lives):
    """Lives that append DataFrames and read with Spark."""

    topic: SparkTopic

    def __init__(self, spark: SparkSession, *args: Any, **options: Any) -> None:
        self.spark = spark
        super().__init__(*args, **options)

    def appended(self, drawn: Sequence[tuple[Any, ...]]) -> None:
        at(self.now_ms, self.topic).append(self.spark.createDataFrame(drawn, _SCHEMA))

    def opened(self) -> LogDir[SparkTopic]:
        return LogDir(self.spark, self.logs.location)

    def rows(self) -> dict[int, list[Record]]:
        return _rows(self.spark, self.topic, self.model.partitions)

    def words(self) -> dict[tuple[int, bytes], tuple[int, bytes]]:
        shown = self.topic.latest().select("partition", "key", "value", "offset").collect()
        return {(row["partition"], bytes(row["key"])): (row["offset"], bytes(row["value"])) for row in shown}


def _rows(spark: SparkSession, topic: SparkTopic, partitions: int) -> dict[int, list[Record]]:
    """Return every row of the log table as the model writes it."""
    table = spark.read.format("delta").load(topic.log.paths.log)
    shown = table.select(
        "partition",
        "offset",
        "key",
        "value",
        F.unix_millis("timestamp").alias("timestamp"),
        "producer_id",
        "producer_epoch",
        "sequence",
        "control",
        "txn_first_offset",
        F.unix_millis("delete_horizon").alias("horizon"),
        F.unix_millis("appended_at").alias("appended"),
    )
    found: dict[int, list[Record]] = {partition: [] for partition in range(partitions)}
    for row in shown.orderBy("partition", "offset").collect():
        found[row["partition"]].append(
            Record(
                row["offset"],
                None if row["key"] is None else bytes(row["key"]),
                None if row["value"] is None else bytes(row["value"]),
                row["timestamp"],
                row["producer_id"],
                row["producer_epoch"],
                row["sequence"],
                control=row["control"],
                txn_first_offset=row["txn_first_offset"],
                delete_horizon_ms=row["horizon"],
                appended_at_ms=row["appended"],
            )
        )
    return found


def test_forty_random_histories_with_cleaning_hold_what_the_model_says(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """One topic of forty partitions; the same seed gives the same histories: LASTWORD_SEED."""
    _Lives(spark, logs, random.Random(seed_of_this_run()), "lives", 40).live(12)


def test_random_histories_with_a_small_map_hold_what_the_model_says(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """Most rounds are cut: a key may have several records in the clean section, and a segment be clean and dirty at once."""
    _Lives(spark, logs, random.Random(seed_of_this_run()), "cut", 3, slots=[3, 6]).live(12)


@pytest.mark.torture
@pytest.mark.timeout(7_200)
def test_five_hundred_random_histories_with_cleaning_hold_what_the_model_says(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """Five topics of 120 partitions, and as many of 5 with small maps; LASTWORD_ROUNDS says how many topics."""
    chance = random.Random(seed_of_this_run())
    for number in range(int(os.environ.get("LASTWORD_ROUNDS", "5"))):
        _Lives(spark, logs, chance, f"lives-{number}", 120).live(40)
        _Lives(spark, logs, chance, f"cut-{number}", 5, slots=[3, 6, 12, 10_000]).live(40)
