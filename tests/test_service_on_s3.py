"""The service, Spark, commands and several processes on a real S3 server, which is killed at and whose requests fail (`make s3`)."""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pytest

from examples.airports.demo import newest_release
from lastword import LogDir
from lastword.storage.files.paths import filesystem_of
from tests.airports import AIRPORTS, CHANGES, check_airports
from tests.failing_store import ANY, FAULTS, LATE, FailingStore
from tests.processes import ROOT, free_port, running
from tests.s3_server import BUCKET, running_store, spark_settings_of, storage_options_of
from tests.test_model_equality import seed_of_this_run
from tests.waiting import PATIENCE_SECONDS, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

pytestmark = [pytest.mark.s3, pytest.mark.jvm, pytest.mark.timeout(1_800)]
_CONFIG: Final = """{airports}
[http]
listen = "127.0.0.1:{port}"

[spark]
"spark.master" = "local[2]"
"spark.driver.memory" = "1g"
"spark.log.level" = "ERROR"
{settings}
"""


@dataclass
class _Served:
    """A service whose log.dir, source and table lie on a store; `sound` is the store itself, the service may reach it by a proxy."""

    folder: Path
    sound: str
    endpoint: str
    place: str = field(default_factory=lambda: f"s3a://{BUCKET}/{uuid.uuid4().hex}")
    starts: int = 0

    def __post_init__(self) -> None:
        """Put the changes of the airports where the source finds them, in their order, and write the configuration."""
        files = filesystem_of(self.place, self.options)
        for path in CHANGES:
            with files.open_output_stream(f"incoming/{path.name}", compression=None) as file:
                file.write(path.read_bytes())
            time.sleep(0.01)
        self.port = free_port()
        settings = "\n".join(f'"{name}" = "{value}"' for name, value in spark_settings_of(self.endpoint).items())
        self.config = self.folder / "lastword.toml"
        place = self.place
        airports = AIRPORTS.format(log_dir=f"{place}/topics", incoming=f"{place}/incoming", table=f"{place}/table", files=1)
        self.config.write_text(_CONFIG.format(airports=airports, port=self.port, settings=settings))

    @property
    def options(self) -> dict[str, str]:
        """What delta-rs needs to reach the store without a proxy."""
        return storage_options_of(self.sound)

    def running(self) -> AbstractContextManager[subprocess.Popen[bytes]]:
        """Run the service for as long as the block lasts."""
        self.starts += 1
        return running([sys.executable, "-m", "lastword", "run", "-c", str(self.config)], self.folder / f"service-{self.starts}.log")

    def appended(self) -> int:
        """Return how many records were appended, by what the service says of itself; -1 while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/status.json", timeout=5) as answer:
                topics = json.loads(answer.read())["topics"]
        except (OSError, ValueError):
            return -1
        partitions: list[dict[str, Any]] = topics[0]["partitions"] if topics else []
        return sum(partition["report"]["log_end_offset"] for partition in partitions)

    def command(self, *words: str) -> str:
        """Run a command with the configuration of the service."""
        arguments = [sys.executable, "-m", "lastword", "--config", str(self.config), *words]
        done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)  # noqa: S603
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def check(self) -> None:
        """Compare what is on the store with the newest release: records, table, invariants."""
        topic = LogDir(f"{self.place}/topics", storage_options=self.options).topic("airports")
        assert sum(ends.log_end for ends in topic.offsets().values()) == _LINES, "each row was appended once"
        report = topic.verify()
        assert report.ok, report.problems
        topic.materialize(f"{self.place}/table")
        check_airports(topic, f"{self.place}/table", self.options)


_LINES: Final = sum(len(gzip.decompress(path.read_bytes()).splitlines()) for path in CHANGES)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """A server for all tests."""
    with running_store() as running:
        yield running


def test_the_service_is_killed_again_and_again_and_no_row_is_lost_or_doubled(tmp_path: Path, endpoint: str) -> None:
    """Source, log.dir and table are on the store. SIGKILL comes at points that are drawn; the last start ends by SIGTERM with 0."""
    served, draw = _Served(tmp_path, endpoint, endpoint), random.Random(seed_of_this_run())
    for aim in (1, _LINES // 4, _LINES // 2, 3 * _LINES // 4):
        with served.running() as process:
            until(lambda aim=aim: served.appended() >= aim, f"{aim} records were not appended")  # type: ignore[misc]
            time.sleep(draw.uniform(0, 2))
            os.killpg(process.pid, signal.SIGKILL)
    with served.running() as process:
        until(lambda: served.appended() == _LINES, "not every record was appended")
        until(lambda: '"lag": 0' in served.command("tables", "list", "airports", "--json"), "the table is not kept")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0
    assert served.command("receipts", "airports", "--json")
    served.check()


def test_requests_that_fail_are_slow_or_answered_twice_change_nothing(tmp_path: Path, endpoint: str) -> None:
    """Some requests of each kind fail in each way, while files are read, appended, cleaned and made a table; then the store is sound."""
    proxy = FailingStore(endpoint)
    try:
        served = _Served(tmp_path, endpoint, proxy.endpoint)
        failed = 0
        with served.running() as process:
            until(lambda: served.appended() >= 1, "nothing was appended")
            for fault in (*FAULTS, LATE):
                with proxy.failing(ANY, fault, 1, last=15):
                    time.sleep(3)
                failed += proxy.failed
            until(lambda: served.appended() == _LINES, "not every record was appended")
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_SECONDS) == 0
        assert failed >= 60
        served.check()
    finally:
        proxy.stop()


def test_commands_and_a_second_service_work_beside_the_service(tmp_path: Path, endpoint: str) -> None:
    """The second one has another source and cleans the same topics; commands append, clean, read, purge, pause and delete."""
    served = _Served(tmp_path, endpoint, endpoint)
    (tmp_path / "second").mkdir()
    second = _Served(tmp_path / "second", endpoint, endpoint, place=served.place)
    text = second.config.read_text().replace("airports-files", "second").replace('topic = "airports"\nformat', 'topic = "more"\nformat')
    second.config.write_text(text.replace("[topic.airports]", "[topic.more]\ncleanup.policy = 'compact'\n\n[topic.airports]"))
    with served.running() as first, second.running() as other:
        until(lambda: served.appended() >= 1, "nothing was appended")
        served.command("topics", "create", "fruit", "--config", "cleanup.policy=compact")
        (tmp_path / "fruit.jsonl").write_text('{"fruit":"fig","price":1}\n{"fruit":"lime","price":2}\n{"fruit":"fig","price":3}\n')
        served.command("append", "fruit", str(tmp_path / "fruit.jsonl"), "--key", "fruit", "--schema", "fruit string, price int")
        served.command("roll", "fruit")
        served.command("clean", "fruit", "--force")
        rows = [json.loads(line) for line in served.command("sql", "select fruit, price from fruit order by fruit", "--json").splitlines()]
        assert rows == [{"fruit": "fig", "price": 3}, {"fruit": "lime", "price": 2}]
        served.command("purge", "fruit", "--key", "fig", "--yes")
        assert [json.loads(line)["key"] for line in served.command("latest", "fruit", "--json").splitlines()] == ["lime"]
        served.command("pause", "airports")
        served.command("resume", "airports")
        served.command("topics", "delete", "fruit", "--yes")
        logs = LogDir(f"{served.place}/topics", storage_options=served.options)
        until(lambda: sum(ends.log_end for ends in logs.topic("airports").offsets().values()) == _LINES, "the first one did not end")
        until(lambda: sum(ends.log_end for ends in logs.topic("more").offsets().values()) == _LINES, "the second one did not end")
        for process in (first, other):
            process.send_signal(signal.SIGTERM)
        assert (first.wait(PATIENCE_SECONDS), other.wait(PATIENCE_SECONDS)) == (0, 0)
    served.check()
    assert sorted(logs.topics()) == ["airports", "more"]
    assert logs.topic("more").latest().num_rows == len(newest_release())


def test_a_spark_session_does_on_a_store_what_it_does_on_a_disk(endpoint: str) -> None:
    """Appends, streams, cleaning, latest, the past, tail, tables, `format("lastword")`, purge, retention, copies, deletion."""
    command = [sys.executable, "-m", "tests.s3_session_app", endpoint, f"s3a://{BUCKET}/{uuid.uuid4().hex}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)  # noqa: S603
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
