"""Change events from Kafka exactly once under fire: the service killed with SIGKILL, and the log compared with what was sent.

```
 events ── life 1 ✗ ── life 2 ✗ ── the checkpoint is deleted ── life 3 ✗ ── … ── the last life     ─►   each event once, or late
```
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pytest

from lastword import LogDir
from lastword.storage.delta import crash_points
from lastword.storage.delta.crash_points import CrashPoint
from tests.kafka_broker import KafkaBroker, Record
from tests.kafka_kill_app import BATCH, NAME, TOPIC, service
from tests.pictures import by_arrow
from tests.processes import run_until_killed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from lastword import ArrowTopic

pytestmark = pytest.mark.kafka
_PARTITIONS: Final = 2
_NO_EVENT: Final = b"{cut"
#: Each named point that an append from Kafka passes, and once in between, while it writes.
_POINTS: Final = ("APPEND_PLANNED", "WRITING", "DEAD_LETTERS_WRITTEN", "APPEND_COMMITTED")


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    """Return a real broker for the tests of this module."""
    with KafkaBroker() as running:
        yield running


@dataclass
class _Sent:
    """What a connector has sent: the table at the end, and by partition and offset what becomes of each event."""

    chance: random.Random
    table: dict[int, Any] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    rows: set[tuple[int, int]] = field(default_factory=set)
    letters: set[tuple[int, int]] = field(default_factory=set)
    ends: Counter[int] = field(default_factory=Counter)
    lsn: int = 1_000

    def send(self, count: int) -> list[Record]:
        """Make events, and return them: rows, deletions with their tombstones, what is no event, and old events once more."""
        begin = len(self.records)
        while len(self.records) < begin + count:
            self.lsn += 8
            row_id, drawn = self.chance.randrange(20), self.chance.random()
            if drawn < 0.08:
                self._add(row_id, _NO_EVENT, self.letters)
            elif drawn < 0.2 and self.table.pop(row_id, None):
                self._add(row_id, self._event("d", None), self.rows)
                self._add(row_id, None)
            elif drawn < 0.3 and begin > 40:
                old = self.chance.choice([one for one in self.records[: begin - 20] if one.value != _NO_EVENT])
                self._add_to(old.partition, old.key, old.value)
            else:
                self.table[row_id] = {"id": row_id, "n": self.lsn}
                self._add(row_id, self._event("u", self.table[row_id]), self.rows)
        return self.records[begin:]

    def _event(self, op: str, after: Any) -> bytes:
        return json.dumps({"op": op, "before": None, "after": after, "source": {"connector": "postgresql", "lsn": self.lsn}}).encode()

    def _add(self, row_id: int, value: bytes | None, places: set[tuple[int, int]] | None = None) -> None:
        place = self._add_to(row_id % _PARTITIONS, json.dumps({"id": row_id}).encode(), value)
        if places is not None:
            places.add(place)

    def _add_to(self, partition: int, key: bytes | None, value: bytes | None) -> tuple[int, int]:
        self.records.append(Record(partition, key, value))
        self.ends[partition] += 1
        return partition, self.ends[partition] - 1


def _last_life(log_dir: Path, broker: KafkaBroker) -> None:
    """Run the service to its end in this process, whose session is warm."""
    running = service(str(log_dir), broker.bootstrap_servers)
    with ThreadPoolExecutor(1) as thread:  # what it sets of Spark's is the thread's own
        thread.submit(running.run).result(timeout=1_800)


def _places(rows: list[dict[str, Any]]) -> Counter[tuple[int, int]]:
    """Return how often each event stands there, by its partition and offset in Kafka."""
    headers = [{header["key"]: bytes(header["value"]) for header in row["headers"]} for row in rows]
    return Counter((int(one["source.partition"]), int(one["source.offset"])) for one in headers)


def _check(topic: ArrowTopic, sent: _Sent, *, letters: int = 1) -> None:
    """Each event that is a row stands in the log once and nowhere else; the newest rows are the table.

    Each dead letter is there, at most `letters` times: a checkpoint that is deleted between the dead letters of a micro-batch and its
    commit makes another micro-batch of them (docs/limits.md).
    """
    logged = _places(topic.records().to_pylist())
    assert set(logged.values()) == {1}
    assert set(logged) >= sent.rows, "no event is lost"
    assert not set(logged) & sent.letters
    assert {json.loads(row["key"])["id"]: json.loads(row["value"]) for row in topic.latest().to_pylist()} == sent.table
    found = _places(topic.dead_letters().to_pylist())
    assert set(found) == sent.letters
    assert max(found.values()) <= letters
    assert topic.verify().ok, topic.verify().problems


def _life(log_dir: Path, broker: KafkaBroker, point: str, nth: int, whom: str) -> bool:
    """Live until the point, and tell whether it was reached."""
    return run_until_killed("tests.kafka_kill_app", str(log_dir), broker.bootstrap_servers, point, str(nth), whom) == -signal.SIGKILL


def test_the_points_are_all_that_an_append_from_kafka_passes(spark: SparkSession, tmp_path: Path, broker: KafkaBroker) -> None:
    """A new one must be killed at as well."""
    passed = set[CrashPoint]()
    sent = _Sent(random.Random(1))
    broker.create_topic(TOPIC, _PARTITIONS)
    try:
        broker.produce(TOPIC, sent.send(2 * BATCH))
        with crash_points.hook(passed.add):
            _last_life(tmp_path, broker)
        _check(by_arrow(LogDir(spark, str(tmp_path)).topic(TOPIC)), sent)
    finally:
        broker.delete_topic(TOPIC)
    assert {point.name for point in passed} == set(_POINTS) - {"WRITING"}


@pytest.mark.timeout(1_200)
def test_killed_at_each_point_each_event_is_in_the_log_once(spark: SparkSession, tmp_path: Path, broker: KafkaBroker) -> None:
    """One life for each point over one input; the checkpoint is deleted in the middle, so all is read once more."""
    sent = _Sent(random.Random(2))
    broker.create_topic(TOPIC, _PARTITIONS)
    try:
        broker.produce(TOPIC, sent.send(10 * BATCH))
        for number, point in enumerate(_POINTS):
            assert _life(tmp_path, broker, point, 1, "python" if point == "APPEND_COMMITTED" else "group")
            if number == 1:
                shutil.rmtree(tmp_path / TOPIC / "queries" / NAME)
        _last_life(tmp_path, broker)
    finally:
        broker.delete_topic(TOPIC)
    _check(by_arrow(LogDir(spark, str(tmp_path)).topic(TOPIC)), sent)


@pytest.mark.torture
@pytest.mark.timeout(3_600)
def test_killed_twenty_times_while_more_events_come(spark: SparkSession, tmp_path: Path, broker: KafkaBroker) -> None:
    """At random points, with checkpoints that are deleted and old events that come again, from a printed seed."""
    seed = int(os.environ.get("LASTWORD_SEED", random.SystemRandom().randrange(10**6)))
    print(f"LASTWORD_SEED={seed}")  # noqa: T201
    chance = random.Random(seed)
    sent, killed, deleted = _Sent(chance), 0, 0
    broker.create_topic(TOPIC, _PARTITIONS)
    try:
        for _ in range(20):
            broker.produce(TOPIC, sent.send(chance.randrange(BATCH, 5 * BATCH)))
            point, nth = chance.choice([*((one, chance.randint(1, 3)) for one in _POINTS), ("TIME", chance.randrange(4_000))])
            killed += _life(tmp_path, broker, point, nth, chance.choice(("group", "python")))
            checkpoint = tmp_path / TOPIC / "queries" / NAME
            if chance.random() < 0.3 and checkpoint.is_dir():
                shutil.rmtree(checkpoint)
                deleted += 1
        assert killed >= 8
        _last_life(tmp_path, broker)
    finally:
        broker.delete_topic(TOPIC)
    _check(by_arrow(LogDir(spark, str(tmp_path)).topic(TOPIC)), sent, letters=1 + deleted)
