"""The service on a real S3 server while what it needs is taken away and given back, at random: nothing is lost or doubled (`make s3`).

```
 store       ── killed ──────── frozen ──────── requests fail, are late, are done without an answer ──      a proxy is before it
 broker      ──────── killed ──────────── frozen ───────────────────────────────────────────────────
 workers     ─────────────────────────────────────── killed ────────────────────────────────────────      the Python of Spark's tasks
 service     ────────── killed ──────────────────────────────── stopped ────────────────────────────      and started again
```

Kafka and files on the store are its sources; a mirror, rows and a typed table are on the store.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl
import pytest

from lastword import LogDir
from lastword.storage.files.paths import filesystem_of
from tests.failing_store import ANY, FAULTS, LATE, FailingStore
from tests.kafka_broker import KafkaBroker, Record
from tests.processes import ROOT
from tests.s3_server import BUCKET, S3Server, spark_settings_of, storage_options_of
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lastword import ArrowTopic

pytestmark = [pytest.mark.s3, pytest.mark.jvm, pytest.mark.kafka]
_PLACE: Final = f"s3a://{BUCKET}/storm"
_PARTITIONS: Final = 2
_TAKEN: Final = (
    "store killed",
    "store frozen",
    "requests",
    "broker killed",
    "broker frozen",
    "workers",
    "service killed",
    "service stopped",
)
_CONFIG: Final = """
log.dir = "{place}/topics"
log.cleaner.backoff.ms = "1s"
log.initial.task.delay.ms = 0
log.retention.check.interval.ms = "5s"

[http]
listen = ""

[topic.mirror]
partitions = 2
cleanup.policy = "compact"
min.cleanable.dirty.ratio = 0.3
segment.bytes = "16KiB"

[topic.rows]
cleanup.policy = "compact"
min.cleanable.dirty.ratio = 0.3
segment.bytes = "16KiB"

[[source]]
name = "kafka"
topic = "mirror"
format = "kafka"
"bootstrap.servers" = "{servers}"
subscribe = "prices"
trigger = "1 second"

[[source]]
name = "files"
topic = "rows"
format = "json"
path = "{place}/incoming"
key = ["id"]
schema = "id int, n int"
trigger = "1 second"

[[table]]
topic = "rows"
path = "{place}/table"
every = "2s"

[spark]
"spark.master" = "local[2]"
"spark.driver.memory" = "1g"
"spark.log.level" = "OFF"
{settings}
"""


@dataclass
class _World:
    """What the service needs, what can be taken of it, and what was sent."""

    folder: Path
    server: S3Server
    proxy: FailingStore
    broker: KafkaBroker
    sent: dict[tuple[int, int], tuple[str, str]] = field(default_factory=dict)
    rows: int = 0
    stop: threading.Event = field(default_factory=threading.Event)
    #: Nobody sends to what is taken.
    store_lock: threading.Lock = field(default_factory=threading.Lock)
    broker_lock: threading.Lock = field(default_factory=threading.Lock)
    service: subprocess.Popen[bytes] | None = None
    ended: int = 0

    @property
    def options(self) -> dict[str, str]:
        """What delta-rs needs to reach the store without the proxy."""
        return storage_options_of(self.server.endpoint)

    def topic(self, name: str) -> ArrowTopic:
        """Open a topic without the proxy."""
        return LogDir(f"{_PLACE}/topics", storage_options=self.options).topic(name)

    def send(self) -> None:
        """Send records and files until `stop`."""
        files = filesystem_of(_PLACE, self.options)
        while not self.stop.wait(1):
            with self.broker_lock:
                number = len(self.sent)
                records = [Record(one % _PARTITIONS, f"k{one % 50}".encode(), str(one).encode()) for one in range(number, number + 7)]
                for record, offset in zip(records, self.broker.produce("prices", records), strict=True):
                    self.sent[record.partition, offset] = (record.key or b"").decode(), (record.value or b"").decode()
            with self.store_lock:
                lines = "".join(json.dumps({"id": one % 9, "n": one}) + "\n" for one in range(self.rows, self.rows + 5))
                with files.open_output_stream(f"incoming/{self.rows:08}.json", compression=None) as file:
                    file.write(lines.encode())
                self.rows += 5

    def start(self) -> None:
        """Start the service, or start it again."""
        with (self.folder / "service.log").open("ab") as stream:
            command = [sys.executable, "-m", "lastword", "run", "-c", str(self.folder / "lastword.toml")]
            self.service = subprocess.Popen(command, cwd=ROOT, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True)  # noqa: S603

    def watch(self) -> None:
        """Start the service again if it has ended by itself, as whoever runs it would."""
        if self.service is not None and self.service.poll() is not None:
            self.ended += 1
            self.start()

    def end(self, number: signal.Signals) -> None:
        """Kill the service with all its processes, or ask it to stop."""
        assert self.service is not None
        with suppress(ProcessLookupError):
            if number is signal.SIGKILL:
                os.killpg(self.service.pid, number)
            else:
                self.service.send_signal(number)
        code = self.service.wait(180)
        assert number is signal.SIGKILL or code == 0, f"SIGTERM ended the service with {code}"

    def kill_workers(self) -> int:
        """Kill the Python processes of Spark's tasks and return how many there were; they are of the session of the service."""
        assert self.service is not None
        killed = 0
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                session = int((process / "stat").read_text().rpartition(")")[2].split()[3])
                if session == self.service.pid and b"pyspark.daemon" in (process / "cmdline").read_bytes():
                    os.kill(int(process.name), signal.SIGKILL)
                    killed += 1
        return killed

    @contextmanager
    def without(self, what: str, fault: str) -> Iterator[None]:
        """Take something away for as long as the block lasts."""
        if what == "requests":
            with self.proxy.failing(ANY, fault, 1, last=40):
                yield
            return
        steps: dict[str, tuple[threading.Lock | None, Callable[[], Any], Callable[[], Any]]] = {
            "store killed": (self.store_lock, self.server.kill, self.server.start),
            "store frozen": (self.store_lock, lambda: self.server.freeze(frozen=True), lambda: self.server.freeze(frozen=False)),
            "broker killed": (self.broker_lock, self.broker.kill, self.broker.start_again),
            "broker frozen": (self.broker_lock, lambda: self.broker.freeze(frozen=True), lambda: self.broker.freeze(frozen=False)),
            "workers": (None, lambda: until(self.kill_workers, "no Python of a task"), self.kill_workers),
            "service killed": (None, lambda: self.end(signal.SIGKILL), self.start),
            "service stopped": (None, lambda: self.end(signal.SIGTERM), self.start),
        }
        lock, take, give_back = steps[what]
        with lock or threading.Lock():
            take()
            try:
                yield
            finally:
                give_back()


def _storm(folder: Path, *, seconds: float, seed: int, pause: tuple[float, float]) -> None:
    chance = random.Random(seed)
    with ExitStack() as stack, KafkaBroker() as broker:
        server = S3Server(folder / "store")
        stack.callback(server.kill)
        proxy = FailingStore(server.endpoint)
        stack.callback(proxy.stop)
        broker.create_topic("prices", _PARTITIONS)
        world = _World(folder, server, proxy, broker)
        settings = "\n".join(f'"{name}" = "{value}"' for name, value in spark_settings_of(proxy.endpoint).items())
        (folder / "lastword.toml").write_text(_CONFIG.format(place=_PLACE, servers=broker.bootstrap_servers, settings=settings))
        sender, taken = threading.Thread(target=world.send), Counter[str]()
        world.start()
        sender.start()
        try:
            until(lambda: world.sent and world.rows and _log_ends(world, "mirror", "rows") > 0, "the service does not begin")
            end = time.monotonic() + seconds
            while time.monotonic() < end or len(taken) < len(_TAKEN):
                what = next((one for one in chance.sample(_TAKEN, len(_TAKEN)) if not taken[one]), chance.choice(_TAKEN))
                with world.without(what, chance.choice((*FAULTS, LATE))):
                    time.sleep(chance.uniform(*pause))
                taken[what] += 1
                time.sleep(chance.uniform(*pause))
                world.watch()
            world.stop.set()
            sender.join()
            _check(world)
        except BaseException:
            print((folder / "service.log").read_text(errors="replace")[-8000:])  # noqa: T201  pytest shows it with the failure
            raise
        finally:
            world.stop.set()
            sender.join()
            world.end(signal.SIGKILL)
    print(f"taken away: {dict(taken)}, sent {len(world.sent)} records and {world.rows} rows, the service ended {world.ended} times")  # noqa: T201


def _log_ends(world: _World, *names: str) -> int:
    """Return how many offsets the topics have; 0 while one of them is not there."""
    logs = LogDir(f"{_PLACE}/topics", storage_options=world.options)
    known = logs.topics()
    return sum(sum(logs.topic(name).log.at().log_end_offsets) for name in names) if set(names) <= set(known) else 0


def _check(world: _World) -> None:
    """Everything comes, by itself; no record is lost or doubled; the table is the newest rows."""

    def has_come() -> bool:
        world.watch()
        return _log_ends(world, "mirror") == len(world.sent) and _log_ends(world, "rows") == world.rows

    until(has_come, "not all comes")
    until(lambda: world.topic("rows").tables()[0].lag == 0, "the table is not kept")
    world.end(signal.SIGTERM)
    assert world.service is not None
    assert world.service.returncode == 0
    mirror, rows = world.topic("mirror"), world.topic("rows")
    found = {(row["partition"], row["offset"]): (row["key"].decode(), row["value"].decode()) for row in mirror.records().to_pylist()}
    assert {place: world.sent[place] for place in found} == found
    newest = {key: value for _, (key, value) in sorted(world.sent.items())}
    assert {row["key"].decode(): row["value"].decode() for row in mirror.latest().to_pylist()} == newest
    last = {number % 9: number for number in range(world.rows)}
    assert {row["id"]: row["n"] for row in rows.table().to_pylist()} == last
    table = pl.read_delta(f"{_PLACE}/table".replace("s3a:", "s3:"), storage_options=world.options)
    assert dict(table.select("id", "n").iter_rows()) == last
    for topic in (mirror, rows):
        report = topic.verify()
        assert report.ok, report.problems
        assert topic.dead_letters().num_rows == 0
        assert not topic.log.decisions().cleaning_failures()


@pytest.mark.timeout(1_200)
def test_what_is_taken_away_for_a_while_is_ridden_out_on_a_store(tmp_path: Path) -> None:
    """Each thing once, for some seconds."""
    _storm(tmp_path, seconds=0, seed=5, pause=(1.5, 3))


@pytest.mark.torture
@pytest.mark.timeout(7_200)
def test_what_is_taken_away_for_half_an_hour_is_ridden_out_on_a_store(tmp_path: Path) -> None:
    """At random, from a printed seed; LASTWORD_SECONDS says for how long."""
    seed = int(os.environ.get("LASTWORD_SEED", random.SystemRandom().randrange(10**6)))
    print(f"LASTWORD_SEED={seed}")  # noqa: T201
    _storm(tmp_path, seconds=float(os.environ.get("LASTWORD_SECONDS", "1800")), seed=seed, pause=(0.5, 20))
