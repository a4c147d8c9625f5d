"""The service while what it needs is taken away and given back, at random: afterwards nothing is lost or doubled, and nobody did anything.

```
 broker      ──── killed ──────── frozen ───────────────────────────────
 folder      ──────────────────────────────── moved away ───────────────      of the file source
 log.dir     ── read-only ───────────────────────────────── disk full ──      Spark's checkpoints are in it, too
 workers     ────────────────────────────────── killed ─────────────────      the Python processes of Spark's tasks
 service     ───────────────────────────────────────────────────────────      one process, never started again
```

The log.dir is a small file system of its own where the test may mount one; else a switch at the crash points raises what a disk would.
"""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from lastword import clock
from lastword.service.service import Service
from lastword.service.settings import Settings
from lastword.status.health import ready
from lastword.storage.delta import crash_points
from tests.kafka_broker import KafkaBroker, Record
from tests.pictures import by_arrow
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.kafka
_DISK_BYTES: Final = 256 * 2**20
_PARTITIONS: Final = 2
_TAKEN: Final = ("killed", "frozen", "folder", "read-only", "full", "workers")


def _kill_workers() -> None:
    """Kill each Python process that runs a task of Spark for this process, and those that make them."""
    parents, daemons = dict[int, int](), set[int]()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            number = int(process.name)
            parents[number] = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            if b"pyspark.daemon" in (process / "cmdline").read_bytes():
                daemons.add(number)

    def is_ours(number: int) -> bool:
        while number > 1 and number != os.getpid():
            number = parents.get(number, 0)
        return number == os.getpid()

    for number in filter(is_ours, daemons):
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


class Disk:
    """A disk that can be made read-only and full: a mounted one, or one that crash points pretend."""

    def __init__(self, folder: Path) -> None:
        """Mount one at a folder if that is allowed here."""
        self.folder = folder
        folder.mkdir()
        self.is_mounted = self._mount("-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "tmpfs", str(folder))
        self._number: int | None = None

    @staticmethod
    def _mount(*arguments: str) -> bool:
        return subprocess.run(["mount", *arguments], check=False, capture_output=True).returncode == 0  # noqa: S603, S607

    def reached(self, _point: object) -> None:
        """Fail at a crash point as a disk does that was taken away, if it is not mounted."""
        if self._number is not None:
            raise OSError(self._number, os.strerror(self._number))

    def read_only(self, *, taken: bool) -> None:
        """Let nobody write: a read-only view of the folder lies over it, as the disk itself is busy as long as a file is open."""
        if not self.is_mounted:
            self._number = errno.EROFS if taken else None
        elif taken:
            view = self.folder.with_name(f"{self.folder.name}, read-only")
            view.mkdir(exist_ok=True)
            assert self._mount("--bind", str(self.folder), str(view))
            assert self._mount("-o", "remount,bind,ro", str(view))
            assert self._mount("--bind", str(view), str(self.folder))
            self._unmount(view)
        else:
            self.unmount()

    def full(self, *, taken: bool) -> None:
        """Leave no byte free."""
        if not self.is_mounted:
            self._number = errno.ENOSPC if taken else None
            return
        ballast = self.folder / ".ballast"
        if not taken:
            ballast.unlink()
            return
        with suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(2**16))

    def unmount(self) -> None:
        """Let it go."""
        if self.is_mounted:
            self._unmount(self.folder)

    @staticmethod
    def _unmount(folder: Path) -> None:
        subprocess.run(["umount", "-l", str(folder)], check=True, capture_output=True)  # noqa: S603, S607


@dataclass
class World:
    """What the service needs, what can be taken of it, and what was sent."""

    broker: KafkaBroker
    incoming: Path
    disk: Disk
    topic: str
    sent: dict[tuple[int, int], tuple[str, str]] = field(default_factory=dict)
    latest: dict[str, str] = field(default_factory=dict)
    rows: set[int] = field(default_factory=set)
    stop: threading.Event = field(default_factory=threading.Event)
    #: Nobody sends to what is taken.
    broker_lock: threading.Lock = field(default_factory=threading.Lock)
    folder_lock: threading.Lock = field(default_factory=threading.Lock)

    def send(self) -> None:
        """Send records and files until `stop`."""
        while not self.stop.wait(0.4):
            with self.broker_lock:
                number = len(self.sent)
                records = [Record(one % _PARTITIONS, f"k{one % 50}".encode(), str(one).encode()) for one in range(number, number + 7)]
                for record, offset in zip(records, self.broker.produce(self.topic, records), strict=True):
                    key, value = (record.key or b"").decode(), (record.value or b"").decode()
                    self.sent[record.partition, offset] = key, value
                    self.latest[key] = value
            with self.folder_lock:
                new = range(len(self.rows), len(self.rows) + 5)
                file = self.incoming.parent / f"{new[0]}.json"
                file.write_text("".join(json.dumps({"id": one % 9, "n": one}) + "\n" for one in new))
                file.rename(self.incoming / file.name)
                self.rows |= set(new)

    @contextmanager
    def without(self, what: str) -> Iterator[None]:
        """Take something away for as long as the block lasts."""
        elsewhere = self.incoming.with_name("elsewhere")
        steps: dict[str, tuple[threading.Lock | None, Callable[[], Any], Callable[[], Any]]] = {
            "killed": (self.broker_lock, self.broker.kill, self.broker.start_again),
            "frozen": (self.broker_lock, lambda: self.broker.freeze(frozen=True), lambda: self.broker.freeze(frozen=False)),
            "folder": (self.folder_lock, lambda: self.incoming.rename(elsewhere), lambda: elsewhere.rename(self.incoming)),
            "read-only": (None, lambda: self.disk.read_only(taken=True), lambda: self.disk.read_only(taken=False)),
            "full": (None, lambda: self.disk.full(taken=True), lambda: self.disk.full(taken=False)),
            "workers": (None, _kill_workers, _kill_workers),
        }
        lock, take, give_back = steps[what]
        with lock or threading.Lock():
            take()
            try:
                yield
            finally:
                give_back()


def _settings(world: World, log_dir: Path) -> Settings:
    return Settings.model_validate(
        {
            "log_dir": str(log_dir),
            "broker": {"log.cleaner.backoff.ms": 500, "log.initial.task.delay.ms": 0, "log.retention.check.interval.ms": 2_000},
            "topics": {
                "mirror": {
                    "partitions": _PARTITIONS,
                    "config": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.3, "segment.bytes": "16KiB"},
                },
                "rows": {"config": {"cleanup.policy": "delete", "retention.ms": -1}},
            },
            "sources": [
                {
                    "name": "kafka",
                    "topic": "mirror",
                    "format": "kafka",
                    "bootstrap.servers": world.broker.bootstrap_servers,
                    "subscribe": world.topic,
                    "trigger": "1 second",
                },
                {
                    "name": "files",
                    "topic": "rows",
                    "format": "json",
                    "path": str(world.incoming),
                    "key": ["id"],
                    "schema": "id int, n int",
                    "trigger": "1 second",
                },
            ],
        }
    )


def _storm(spark: SparkSession, tmp_path: Path, *, seconds: float, seed: int, pause: tuple[float, float]) -> None:
    chance, incoming = random.Random(seed), tmp_path / "incoming"
    incoming.mkdir()
    disk = Disk(tmp_path / "disk")
    try:
        with KafkaBroker() as broker, crash_points.hook(disk.reached):
            world = World(broker, incoming, disk, "prices")
            broker.create_topic(world.topic, _PARTITIONS)
            service = Service(_settings(world, disk.folder / "logs"), longest_restart_seconds=4)
            service.watcher.interval_seconds = 1
            threads = [threading.Thread(target=service.run), threading.Thread(target=world.send)]
            for thread in threads:
                thread.start()
            taken = Counter[str]()
            try:
                until(lambda: world.sent and service.watcher.standing.loaded)
                end = time.monotonic() + seconds
                while time.monotonic() < end or len(taken) < len(_TAKEN):
                    what = next((one for one in chance.sample(_TAKEN, len(_TAKEN)) if not taken[one]), chance.choice(_TAKEN))
                    with world.without(what):
                        time.sleep(chance.uniform(*pause))
                    taken[what] += 1
                    time.sleep(chance.uniform(*pause))
                    assert threads[0].is_alive(), f"the service ended; seed {seed}"
                world.stop.set()
                threads[1].join()
                _check_all_arrives(world, service)
            finally:
                world.stop.set()
                service.stop()
                for thread in threads:
                    thread.join()
            print(f"taken away: {dict(taken)}, sent {len(world.sent)} records and {len(world.rows)} rows")  # noqa: T201
            _check_log(world, service)
    finally:
        disk.unmount()


def _check_all_arrives(world: World, service: Service) -> None:
    """Everything comes, and the service says that it works, by itself."""
    logs = service.logs
    until(lambda: sum(logs.topic("mirror").log.at().log_end_offsets) == len(world.sent), "records of Kafka do not come")
    until(lambda: sum(logs.topic("rows").log.at().log_end_offsets) >= len(world.rows), "rows of files do not come")

    def reasons() -> tuple[str, ...]:
        return ready(service.watcher.standing, heartbeat_ms=clock.now_ms(), now_ms=clock.now_ms()).reasons

    until(lambda: not reasons(), "it is not ready again")


def _check_log(world: World, service: Service) -> None:
    """No record is lost or doubled, and the newest of each key is there."""
    mirror, rows = (by_arrow(service.logs.topic(name)) for name in ("mirror", "rows"))
    found = {(row["partition"], row["offset"]): (row["key"].decode(), row["value"].decode()) for row in mirror.records().to_pylist()}
    assert {place: world.sent[place] for place in found} == found
    assert {row["key"].decode(): row["value"].decode() for row in mirror.latest().to_pylist()} == world.latest
    assert Counter(json.loads(row["value"])["n"] for row in rows.records().to_pylist()) == Counter(world.rows)
    assert rows.dead_letters().num_rows == 0
    for topic in (mirror, rows):
        report = topic.verify()
        assert report.ok, report.problems
        assert not topic.log.decisions().cleaning_failures()


@pytest.mark.timeout(600)
def test_what_is_taken_away_for_a_while_is_ridden_out(spark: SparkSession, tmp_path: Path) -> None:
    """Each thing once, for some seconds."""
    _storm(spark, tmp_path, seconds=0, seed=5, pause=(1.5, 3))


@pytest.mark.torture
@pytest.mark.timeout(7_200)
def test_what_is_taken_away_for_half_an_hour_is_ridden_out(spark: SparkSession, tmp_path: Path) -> None:
    """At random, from a printed seed; LASTWORD_SECONDS says for how long."""
    seed = int(os.environ.get("LASTWORD_SEED", random.SystemRandom().randrange(10**6)))
    print(f"LASTWORD_SEED={seed}")  # noqa: T201
    seconds = float(os.environ.get("LASTWORD_SECONDS", "1800"))
    _storm(spark, tmp_path, seconds=seconds, seed=seed, pause=(0.5, 20))
