"""Readers under fire: bootstrap and tail beside a running writer, and a materialisation killed with SIGKILL."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.pictures import rows, text
from tests.processes import run_until_killed
from tests.streaming.reading.test_materialize import is_right

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from lastword import LogDir, SparkTopic

_PARTITIONS = 3
_STEPS_PER_MOMENT = 20
_CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0, "segment.bytes": "2KiB"}
Words = dict[tuple[int, str], str]


class Writer(threading.Thread):
    """Appends, commits, aborts and cleans for as long as it is asked to, and knows what the last words are."""

    def __init__(self, topic: SparkTopic, spark: SparkSession, seed: int) -> None:
        """Write to `topic` by chance."""
        super().__init__(daemon=True)
        self.topic, self.spark, self.draw = topic, spark, random.Random(seed)
        self.words: Words = {}
        self.over = threading.Event()
        self.steps = 0
        #: It waits here for the readers, which a busy machine makes slower than it is.
        self.last_step = _STEPS_PER_MOMENT
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Take steps until it is over."""
        try:
            while not self.over.wait(0.2):  # what it writes, Spark reads again and again
                if self.steps < self.last_step:
                    self._step()
                    self.steps += 1
        except BaseException as error:  # noqa: BLE001  the test raises it
            self.failure = error

    def _step(self) -> None:
        kind = self.draw.choice(["append", "append", "commit", "abort", "clean"])
        if kind == "clean":
            self.topic.roll()
            self.topic.clean()
            return
        partition = self.draw.randrange(_PARTITIONS)
        changes = [(f"k{self.draw.randrange(8)}", self.draw.choice([str(self.steps), "∅"])) for _ in range(self.draw.randint(1, 6))]
        picture = rows(" ".join(f"{key}={value}" for key, value in changes), partition=partition)
        if kind == "append":
            self.topic.append(picture)
        else:
            transaction = self.topic.transaction("writer")
            transaction.append(picture)
            if kind == "abort":
                transaction.abort()
                return
            transaction.commit()
        for key, value in changes:
            self.words.pop((partition, key), None)
            if value != "∅":
                self.words[partition, key] = value


class Reader:
    """Bootstraps, then tails; folds what it is given, and complains of a record that comes twice or out of order."""

    def __init__(self, topic: SparkTopic, checkpoint: Path) -> None:
        """Bootstrap now."""
        found = topic.bootstrap()
        self.words: Words = {(row["partition"], text(row["key"])): text(row["value"]) for row in found.rows.collect()}
        self.next = list(found.position.offsets)
        self.tail, self.checkpoint = topic.tail(found.position, max_offsets_per_trigger=30), checkpoint

    def catch_up(self) -> None:
        """Read all there is."""
        query = self.tail.writeStream.foreachBatch(self._take).option("checkpointLocation", str(self.checkpoint))
        query.trigger(availableNow=True).start().awaitTermination()

    def _take(self, micro_batch: DataFrame, _batch_id: int) -> None:
        for row in micro_batch.orderBy("partition", "offset").collect():
            assert row["offset"] >= self.next[row["partition"]], "twice, or out of order"
            self.next[row["partition"]] = row["offset"] + 1
            place = row["partition"], text(row["key"])
            self.words.pop(place, None)
            if row["value"] is not None:
                self.words[place] = text(row["value"])


def _hand_over(spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path, moments: int) -> None:
    seed = int(os.environ.get("LASTWORD_SEED", random.SystemRandom().randrange(10**6)))
    print(f"LASTWORD_SEED={seed}")  # noqa: T201
    topic = logs.create_topic("fruit", partitions=_PARTITIONS, config=_CONFIG)
    writer = Writer(topic, spark, seed)
    writer.start()
    try:
        readers = []
        for number in range(moments):
            while writer.is_alive() and writer.steps <= number:
                time.sleep(0.01)
            readers.append(Reader(topic, tmp_path / f"checkpoint-{number}"))
            readers[-1].catch_up()
            writer.last_step = writer.steps + _STEPS_PER_MOMENT
    finally:
        writer.over.set()
        writer.join()
    assert writer.failure is None
    for reader in readers:
        reader.catch_up()
        assert reader.words == writer.words


@pytest.mark.timeout(600)
def test_bootstrap_and_tail_meet_beside_a_writer(spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path) -> None:
    """At any moment of a writer the rows of both together are complete, without a record twice."""
    _hand_over(spark, logs, tmp_path, moments=3)


@pytest.mark.torture
@pytest.mark.timeout(3_600)
def test_bootstrap_and_tail_meet_at_fifty_moments(spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path) -> None:
    """As the test above, at fifty moments and with kills."""
    _hand_over(spark, logs, tmp_path, moments=50)


_POINTS = ("TARGET_PLANNED", "TARGET_MADE", "STEP_PLANNED", "WRITING", "STEP_TAKEN")


def _storm(spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path, kills: int) -> None:
    seed = int(os.environ.get("LASTWORD_SEED", random.SystemRandom().randrange(10**6)))
    print(f"LASTWORD_SEED={seed}")  # noqa: T201
    draw = random.Random(seed)
    topic = logs.create_topic("fruit", partitions=_PARTITIONS, config=_CONFIG)
    target, killed, drawn = tmp_path / "target", 0, 0
    while killed < kills:
        for _ in range(2):
            changes = " ".join(f"k{draw.randrange(40)}={draw.choice([str(drawn), '∅'])}" for _ in range(30))
            topic.append(rows(changes))
            drawn += 1
        if draw.random() < 0.3:
            topic.roll()
            topic.clean()
        point = _POINTS[killed] if killed < len(_POINTS) else draw.choice(_POINTS[2:])
        killed += _application(logs.location, target, point, 1 if killed < len(_POINTS) else draw.randint(1, 2)) == -signal.SIGKILL
        if target.exists() and any((target / "_delta_log").glob("*.json")):
            is_right(topic, spark, target)
    assert _application(logs.location, target, "NONE", 1) == 0
    is_right(topic, spark, target)
    assert topic.latest().count() == spark.read.format("delta").load(str(target)).count()


def _application(log_dir: str, target: Path, point: str, nth: int) -> int:
    return run_until_killed("tests.materialize_app", log_dir, "fruit", str(target), point, str(nth))


@pytest.mark.torture
@pytest.mark.timeout(3_600)
def test_a_materialisation_killed_twenty_times_is_right_each_time(spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path) -> None:
    """At every point, then at random ones; all but WRITING are crashed inside of the test's process, too (`test_materialize`)."""
    _storm(spark, logs, tmp_path, kills=20)
