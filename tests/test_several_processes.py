"""Several processes on one log.dir, killed and started again: nothing is lost or doubled. In one of the storms a service is among them."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest

from lastword import LogDir
from tests.object_store import URI, running_store, storage_options_of
from tests.processes import ROOT
from tests.storm import KEYS, PARTITIONS, TOPIC

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lastword import ArrowTopic

#: How long each lives, in seconds on the average; an application from its first append on, as a JVM takes long to start.
_MANY = {"spark 1": 10.0, "spark 2": 10.0, "clean 3": 4.0, "clean 4": 4.0, "retain 5": 6.0}
_FEW = {"spark 1": 6.0, "clean 3": 8.0, "clean 4": 8.0, "retain 5": 8.0}
#: Seven without a JVM, of which one is killed every two seconds.
_PLAIN = {"arrow 1": 14.0, "arrow 2": 14.0, "arrow 3": 14.0, "arrow 4": 14.0, "clean 5": 14.0, "clean 6": 14.0, "retain 7": 14.0}
_PLAIN_FEW = {"arrow 1": 4.0, "arrow 2": 6.0, "clean 5": 6.0, "retain 7": 6.0}
#: The same beside a service, which cleans, too, and has an append query of its own.
_SERVED = {**_PLAIN, "service 8": 25.0}
_SERVED_FEW = {"arrow 1": 6.0, "clean 5": 8.0, "retain 7": 8.0, "service 8": 15.0}
_SERVICE = """
log.dir = "{place}"
log.cleaner.backoff.ms = 500
log.initial.task.delay.ms = 0
log.retention.check.interval.ms = 1000

[[source]]
name = "files"
topic = "{topic}"
format = "json"
path = "{folder}/incoming"
key = ["key"]
value = "value"
schema = "key string, value string"
max.files.per.trigger = {most}
trigger = "{trigger}"

[http]
listen = ""

[spark]
"spark.master" = "local[2]"
"spark.driver.memory" = "1g"
"spark.log.level" = "ERROR"
"""
#: With a JVM.
_HEAVY = frozenset({"spark", "service"})


class _Feed:
    """The files that the service appends: rows whose values are numbered through."""

    writer, rows_a_file = 9_999, 20

    def __init__(self, folder: Path, place: str) -> None:
        self._folder, self._next, self._place = folder, 0.0, place
        self.files = 0
        (folder / "incoming").mkdir()
        for name, trigger, most in (("lastword.toml", "200 milliseconds", 3), ("rest.toml", "available-now", 0)):
            (folder / name).write_text(_SERVICE.format(folder=folder, place=place, topic=TOPIC, trigger=trigger, most=most))

    def look(self) -> None:
        """Put a file there now and then."""
        if time.monotonic() < self._next:
            return
        first = self.files * self.rows_a_file
        rows = [{"key": f"k{number % KEYS}", "value": f"{self.writer}-{number}"} for number in range(first, first + self.rows_a_file)]
        arriving = self._folder / "incoming" / f".{self.files:05}.json"
        arriving.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        os.utime(arriving, (1_700_000_000 + self.files, 1_700_000_000 + self.files))
        arriving.rename(self._folder / "incoming" / f"{self.files:05}.json")
        self.files, self._next = self.files + 1, time.monotonic() + 0.5

    def newest_micro_batch(self) -> int:
        """Return the number of the last micro-batch that the service has done, by its checkpoint; -1 when there is none."""
        done = Path(self._place, TOPIC, "queries", "files", "commits").glob("[0-9]*")
        return max((int(one.name) for one in done), default=-1)

    def finish(self) -> None:
        """Let a service append the rest; then the commits of its query have brought each row once."""
        command = [sys.executable, "-m", "lastword", "run", "-c", str(self._folder / "rest.toml")]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)  # noqa: S603
        assert done.returncode == 0, done.stdout + done.stderr
        topic = LogDir(self._place).topic(TOPIC)
        query_id = topic.describe().queries["files"]
        micro_batches, records = list[int](), 0
        for path in sorted(Path(topic.log.paths.log, "_delta_log").glob("*.json")):
            actions = [json.loads(line) for line in path.read_text().splitlines()]
            mine = [one["txn"]["version"] for one in actions if one.get("txn", {}).get("appId") == query_id]
            micro_batches += mine
            records += sum(json.loads(one["add"]["stats"])["numRecords"] for one in actions if "add" in one and mine)
        assert micro_batches == sorted(set(micro_batches)), "a micro-batch is committed once, and they come in order"
        assert records == self.files * self.rows_a_file, "every row of the source is appended once"


class _Process:
    """One party of the storm, started again when it was killed; any other end of it is a failure."""

    def __init__(
        self,
        name: str,
        lives_seconds: float,
        folder: Path,
        draw: random.Random,
        *,
        place: str,
        options: Mapping[str, str],
        feed: _Feed | None,
    ) -> None:
        self.name, self._lives_seconds, self._folder, self._draw, self._place = name, lives_seconds, folder, draw, place
        self._feed = feed
        self._environment = {"LASTWORD_STORM_OPTIONS": json.dumps(dict(options))}
        self._starts = 0
        #: Whether it has done something since the storm began.
        self.worked = False
        self.kills = 0
        self._start()

    def _start(self) -> None:
        role, number = self.name.split()
        self._starts += 1
        seed = int(number) * 1_000 + self._starts
        self.acknowledged = self._folder / f"acknowledged-{seed}"
        self._output = (self._folder / f"output-{seed}").open("w+")
        self._was_done = -1 if self._feed is None else self._feed.newest_micro_batch()
        words = ["tests.storm", role, self._place, str(self.acknowledged), str(seed)]
        if role == "service":
            words = ["lastword", "run", "-c", str(self._folder / "lastword.toml")]
        self.process = subprocess.Popen(  # noqa: S603  our own interpreter
            [sys.executable, "-m", *words],
            cwd=ROOT,
            env={**os.environ, **({} if role in _HEAVY else {"JAVA_HOME": "/nonexistent", "PATH": ""}), **self._environment},
            start_new_session=True,
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )
        self.dies_at: float | None = None if role in {"spark", "arrow", "service"} else self._end()

    def _end(self) -> float:
        return time.monotonic() + self._lives_seconds * self._draw.uniform(0.5, 1.5)

    def _has_begun(self) -> bool:
        """Tell whether it has appended something since it was started."""
        if self._feed is not None and self.name.startswith("service"):
            return self._feed.newest_micro_batch() > self._was_done
        return self.acknowledged.exists() and self.acknowledged.stat().st_size > 0

    def look(self, *, begun: bool) -> None:
        """Raise what ended it by itself; kill it when it is its time, once all have begun, and start it again."""
        if self.process.poll() is not None:
            self._output.seek(0)
            pytest.fail(f"{self.name} ended with {self.process.returncode}:\n{self._output.read()}")
        self.worked |= self.dies_at is not None
        if self.dies_at is None:
            self.dies_at = self._end() if self._has_begun() else None
        elif not begun:
            self.dies_at = self._end()
        elif time.monotonic() >= self.dies_at:
            self.kill()
            self.kills += 1
            self._start()

    def kill(self) -> None:
        """Kill it and its JVM."""
        with contextlib.suppress(ProcessLookupError):  # it ended by itself
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._output.close()


def _storm(
    folder: Path,
    parties: Mapping[str, float],
    *,
    seconds: float,
    seed: int,
    place: str | None = None,
    options: Mapping[str, str] = MappingProxyType({}),
) -> None:
    logs = LogDir(place or str(folder / "logs"), storage_options=options)
    config = {"cleanup.policy": "compact,delete", "retention.ms": -1, "min.cleanable.dirty.ratio": 0}
    topic = logs.create_topic(TOPIC, partitions=PARTITIONS, config=config)
    draw = random.Random(seed)
    feed = _Feed(folder, logs.location) if any(name.startswith("service") for name in parties) else None
    processes = [
        _Process(name, lives_seconds, folder, draw, place=logs.location, options=options, feed=feed)
        for name, lives_seconds in parties.items()
    ]
    ends = time.monotonic() + 300
    begun = False
    try:
        while time.monotonic() < ends:
            for one in processes:
                one.look(begun=begun)
            if feed is not None:
                feed.look()
            if not begun and all(one.worked for one in processes):
                begun, ends = True, time.monotonic() + seconds
            time.sleep(0.1)
    finally:
        for one in processes:
            one.kill()
    assert begun, "not all of them have begun to work in five minutes"
    if feed is not None:
        feed.finish()
    print({one.name: one.kills for one in processes})  # noqa: T201  how many times each was killed
    _check(topic.log.paths.log, logs, folder)


def _check(location: str, logs: LogDir[ArrowTopic], folder: Path) -> None:
    """Compare what the log holds with what was acknowledged."""
    topic = logs.topic(TOPIC)
    acknowledged = [json.loads(line) for one in folder.glob("acknowledged-*") for line in one.read_text().splitlines()]
    rows = topic.records(columns=["partition", "offset", "key", "value"]).to_pylist()
    held = {(row["partition"], row["offset"]): (row["key"].decode(), row["value"].decode()) for row in rows}
    starts = [one.log_start_offset for one in topic.describe().partitions]
    assert len(acknowledged) == len({(partition, offset) for partition, offset, _, _ in acknowledged}), "an offset is given once"
    assert len(held) == len({value for _, value in held.values()}), "no record is there twice"

    newest: dict[tuple[int, str], int] = {}
    for partition, offset, key, value in acknowledged:
        newest[partition, key] = max(offset, newest.get((partition, key), -1))
        assert held.get((partition, offset), (key, value)) == (key, value), f"offset {offset} of partition {partition} is another record"
    said: dict[tuple[int, str], int] = {}
    for (partition, offset), (key, _) in held.items():
        said[partition, key] = max(offset, said.get((partition, key), -1))
    for (partition, key), offset in newest.items():
        assert offset < starts[partition] or said.get((partition, key), -1) >= offset, f"the last word on {key} is lost"
    for partition, offset, key, _ in acknowledged:
        if offset >= starts[partition] and (partition, offset) not in held:
            assert said.get((partition, key), -1) > offset, f"offset {offset} of partition {partition} is gone, and nothing superseded it"
    latest = topic.latest().to_pylist()
    shown = {(row["partition"], row["key"].decode()): row["offset"] for row in latest}
    assert shown == said, "latest() is the fold"
    by_writer: dict[tuple[str, int, str], list[tuple[int, int]]] = {}
    for (partition, offset), (key, value) in held.items():
        writer, number = value.split("-")
        by_writer.setdefault((writer, partition, key), []).append((offset, int(number)))
    for found in by_writer.values():
        numbers = [number for _, number in sorted(found)]
        assert numbers == sorted(numbers), "a writer's records are in its order"
    report = topic.verify()
    assert report.ok, "\n".join(report.problems)
    assert len(acknowledged) > KEYS, f"little was appended to {location}"


@pytest.mark.jvm
def test_a_storm_of_processes_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """An application appends, two processes clean and one deletes records; each is killed now and then."""
    _storm(tmp_path, _FEW, seconds=10, seed=7)


@pytest.mark.long
def test_a_storm_without_a_jvm_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """Two processes append, one cleans and one deletes records."""
    _storm(tmp_path, _PLAIN_FEW, seconds=10, seed=9)


@pytest.mark.torture
@pytest.mark.jvm
@pytest.mark.timeout(1_800)
def test_a_storm_of_five_minutes(tmp_path: Path) -> None:
    """With two applications."""
    _storm(tmp_path, _MANY, seconds=300, seed=11)


@pytest.mark.torture
@pytest.mark.timeout(1_800)
def test_a_storm_of_five_minutes_without_a_jvm(tmp_path: Path) -> None:
    """Four processes append, two clean and one deletes records; one of them is killed every two seconds."""
    _storm(tmp_path, _PLAIN, seconds=300, seed=13)


@pytest.mark.jvm
def test_a_storm_with_a_service_in_the_middle_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """It cleans, and appends files; a process appends beside it, one cleans and one deletes records. It is killed as the others are."""
    _storm(tmp_path, _SERVED_FEW, seconds=10, seed=19)


@pytest.mark.torture
@pytest.mark.jvm
@pytest.mark.timeout(1_800)
def test_a_storm_of_five_minutes_with_a_service_in_the_middle(tmp_path: Path) -> None:
    """Beside seven without a JVM."""
    _storm(tmp_path, _SERVED, seconds=300, seed=23)


@pytest.mark.s3
@pytest.mark.timeout(1_800)
def test_a_storm_on_an_object_store(tmp_path: Path) -> None:
    """The same on a real S3 server, for LASTWORD_SECONDS or half a minute."""
    with running_store() as endpoint:
        place, seconds = f"{URI}/{uuid.uuid4().hex}", int(os.environ.get("LASTWORD_SECONDS", "30"))
        _storm(tmp_path, _PLAIN, seconds=seconds, seed=17, place=place, options=storage_options_of(endpoint))
