"""Random histories of a topic against the executable specification: whatever is done in between, a reader sees what the model says."""

from __future__ import annotations

import os
import random
import sys
from typing import TYPE_CHECKING, Final

import pytest
from pyspark.sql import functions as F

from tests.clocks import at
from tests.model import ModelTopic, Record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lastword import LogDir, SparkTopic

#: Forty partitions are forty histories in one job.
_PARTITIONS: Final = 40
_SCHEMA: Final = "partition int, key binary, value binary, timestamp bigint"
_KEYS: Final = (b"", b"\0", b"\xff\xfe", b"grape", b"Grape", "pêche".encode(), *(f"key {number}".encode() for number in range(14)))
_SEGMENT_BYTES: Final = ("1KiB", "6KiB", "20KiB", "1GiB")
_LAST_DAY_MS: Final = 9_223_286_400_000


def seed_of_this_run() -> int:
    """Return the seed of this run, LASTWORD_SEED or a new one, and print it: pytest shows it when the test fails."""
    seed = int(os.environ.get("LASTWORD_SEED") or random.SystemRandom().randrange(2**32))
    sys.stdout.write(f"LASTWORD_SEED={seed}\n")
    return seed


def _value(chance: random.Random) -> bytes | None:
    """Return a tombstone, an empty value (which is none), or bytes that hardly compress."""
    return chance.choice((None, b"", b"\0", chance.randbytes(chance.randrange(1, 200)), chance.randbytes(chance.randrange(1, 200))))


def _timestamp_ms(chance: random.Random) -> int | None:
    """Return a record time in any order, from the first to nearly the last possible; None takes the time of the append."""
    return chance.choice((None, 0, chance.randrange(10**9), 1_700_000_000_000 + chance.randrange(10**9), _LAST_DAY_MS))


def _rows(chance: random.Random) -> list[tuple[int, bytes, bytes | None, int | None]]:
    """Return the rows of one append: none, one or many for each partition, those of different partitions mixed."""
    most = chance.choice((1, 4, 60))
    counts = {partition: chance.choice((0, 1, chance.randrange(most + 1))) for partition in range(_PARTITIONS)}
    places = [partition for partition, count in counts.items() for _ in range(count)]
    chance.shuffle(places)
    return [(partition, chance.choice(_KEYS), _value(chance), _timestamp_ms(chance)) for partition in places]


def _live(spark: SparkSession, logs: LogDir[SparkTopic], chance: random.Random, name: str, appends: int) -> tuple[SparkTopic, ModelTopic]:
    """Live through a random history: appends, with rolls, other settings and a new start between them."""
    model = ModelTopic(_PARTITIONS)
    topic = logs.create_topic(name, partitions=_PARTITIONS, config={"cleanup.policy": "compact", "segment.bytes": "6KiB"})
    now_ms = 1_700_000_000_000
    for _ in range(appends):
        now_ms += chance.choice((0, 1, 3_600_000, 8 * 86_400_000))
        drawn = _rows(chance)
        for partition, key, value, timestamp_ms in drawn:
            model.append(partition, key, value, now_ms if timestamp_ms is None else timestamp_ms)
        assert at(now_ms, topic).append(spark.createDataFrame(drawn, _SCHEMA)).record_count == len(drawn)
        match chance.randrange(4):
            case 0:
                at(now_ms, topic).roll()
            case 1:
                at(now_ms, topic).roll(chance.randrange(_PARTITIONS))
            case 2:
                at(now_ms, topic).alter_config({"segment.bytes": chance.choice(_SEGMENT_BYTES), "segment.ms": chance.choice((None, "1h"))})
            case _:
                topic = logs.topic(name)  # as after a restart: nothing is remembered
    return topic, model


def _records(rows: DataFrame) -> list[tuple[int, Record]]:
    """Return rows of a topic as the model writes them, with their partitions, in order."""
    shown = rows.select("partition", "offset", "key", "value", F.unix_millis("timestamp")).orderBy("partition", "offset").collect()
    return [
        (partition, Record(offset, bytes(key), None if value is None else bytes(value), timestamp_ms))
        for partition, offset, key, value, timestamp_ms in shown
    ]


def _check(topic: SparkTopic, model: ModelTopic) -> None:
    """Compare everything that a reader can see."""
    found: dict[int, list[Record]] = {partition: [] for partition in range(_PARTITIONS)}
    for partition, record in _records(topic.records()):
        found[partition].append(record)
    for partition in range(_PARTITIONS):
        assert model.logs[partition] == found[partition], f"partition {partition}"
    assert model.latest() == {(partition, record.key): record for partition, record in _records(topic.latest())}
    described = topic.describe().partitions
    assert [len(one) for one in model.logs.values()] == [one.record_count for one in described] == [one.log_end_offset for one in described]


def _rounds(spark: SparkSession, logs: LogDir[SparkTopic], *, rounds: int, appends: int) -> None:
    chance = random.Random(seed_of_this_run())
    for number in range(rounds):
        topic, model = _live(spark, logs, chance, f"round-{number}", appends)
        _check(topic, model)


def test_forty_random_histories_read_as_the_model_says(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """One topic, six appends; the same seed gives the same histories: LASTWORD_SEED."""
    _rounds(spark, logs, rounds=1, appends=6)


@pytest.mark.torture
@pytest.mark.timeout(3_600)
def test_many_long_random_histories_read_as_the_model_says(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """LASTWORD_ROUNDS times forty histories of 25 appends."""
    _rounds(spark, logs, rounds=int(os.environ.get("LASTWORD_ROUNDS", "10")), appends=25)
