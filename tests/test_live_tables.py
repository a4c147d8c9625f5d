"""The real thing for typed tables: 20,000 statements, everything killed in turn, and at 20 moments the rows of the database.

A moment: the clients pause, the connector has sent a mark that was written behind all they did, and each table is at the end of what Kafka
has. Then, at once, the tables have the rows of the database, value by value, and so have the histories today. LASTWORD_SEED fixes what
is drawn. It needs the programs of PostgreSQL (Debian: `apt install postgresql`); jars are downloaded once.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import polars as pl
import pytest

from lastword import LogDir
from lastword.compaction.errors import UserError
from lastword.spark.jars import resolve
from lastword.storage.tables.table_log import TableLog
from lastword.storage.tables.table_properties import position_of
from tests.debezium_engine import DebeziumEngine
from tests.kafka_broker import KafkaBroker
from tests.live_postgres import Postgres, programs
from tests.live_tables import NAMES, PARTITIONS, Bridge, ServiceProcess, Workload, ddl, of_database, of_table
from tests.test_model_equality import seed_of_this_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_PROGRAMS: Final = programs()
_MOMENTS: Final = 20
_STATEMENTS: Final = 1_000
_CLIENTS: Final = 4
_PATIENCE_SECONDS: Final = 300
#: How long a mark is waited for before the next one is written.
_MARK_SECONDS: Final = 10
_DATABASE: Final = "shop"

pytestmark = [
    pytest.mark.torture,
    pytest.mark.jvm,
    pytest.mark.timeout(7_200),
    pytest.mark.skipif(_PROGRAMS is None, reason="no PostgreSQL that can be started here (Debian: apt install postgresql)"),
]


def test_tables_are_those_of_the_database_whatever_is_killed(tmp_path: Path) -> None:
    """The connector, the service and the server's walsender, in the middle of what they do."""
    try:
        resolve(("debezium",))
    except UserError as error:
        pytest.skip(str(error))
    assert _PROGRAMS is not None
    with Postgres(_PROGRAMS) as server, KafkaBroker() as broker:
        server.run("postgres", f"CREATE DATABASE {_DATABASE};")
        server.run(_DATABASE, ddl())
        live = _Live(server, broker, tmp_path)
        try:
            for moment in range(1, _MOMENTS + 1):
                live.stretch(moment)
                live.compare(moment)
        finally:
            live.stop()


class _Live:
    """All that runs."""

    def __init__(self, server: Postgres, broker: KafkaBroker, folder: Path) -> None:
        self._server, self._folder, self._seed = server, folder, seed_of_this_run()
        self._chance, self._marks, self._failures = random.Random(self._seed), 0, 0
        self._workload = Workload(random.Random(f"{self._seed} columns"))
        schemas = {"key.converter.schemas.enable": "true", "value.converter.schemas.enable": "true"}
        self._engine = DebeziumEngine(folder / "engine", server.port, _DATABASE, schemas)
        self._bridge = Bridge(self._engine, broker)
        self._service = ServiceProcess(folder, broker.bootstrap_servers)
        self._engine.start()
        self._service.start()

    def stop(self) -> None:
        self._service.kill()
        self._engine.kill()
        self._bridge.stop()

    def stretch(self, moment: int) -> None:
        """Let clients write, and kill this and that meanwhile."""
        if moment % 5 == 0:
            self._server.run(_DATABASE, self._workload.column())
        clients = [Workload(random.Random(f"{self._seed} {moment} {number}"), self._workload.added) for number in range(_CLIENTS)]
        scripts = [client.script(_STATEMENTS // _CLIENTS) for client in clients]
        kills = self._chance.sample(("connector", "walsender", "service", "service ends"), self._chance.choice((0, 1, 2, 3)))
        with ThreadPoolExecutor(_CLIENTS) as threads:
            running = [threads.submit(self._server.psql, _DATABASE, script, stops=False) for script in scripts]
            for killed in kills:
                time.sleep(self._chance.uniform(0, 3))
                self._kill(killed)
            said = "".join(one.result() for one in running)
        errors = [line for line in said.splitlines() if "ERROR" in line and "aborted" not in line]
        sys.stdout.write(f"moment {moment}: {', '.join(kills) or 'nothing'} killed; {len(errors)} errors of clients, as {errors[:1]}\n")

    def _kill(self, what: str) -> None:
        if what == "connector":
            self._engine.kill()
            self._engine.start()
        elif what == "walsender":
            self._server.run("postgres", "SELECT pg_terminate_backend(pid) FROM pg_stat_replication;")
        else:
            self._service.kill(signal.SIGTERM if what == "service ends" else signal.SIGKILL)
            self._service.start()

    def compare(self, moment: int) -> None:
        """Compare every table with the database when all has arrived."""
        begun = time.monotonic()
        self._catch_up()
        ends = {name: list(offsets) for name, offsets in self._bridge.ends.items()}
        logs = LogDir(self._folder / "data")
        for name in NAMES:
            self._wait(f"{name} at {ends[name]}", partial(self._has_appended, name, ends[name]))
            log_end = [partition.log_end_offset for partition in logs.topic(name).describe().partitions]
            for kind in ("tables", "history"):
                self._wait(f"{kind}/{name} at {log_end}", partial(self._is_at, logs, kind, name, log_end))
        rows, wrong = 0, list[str]()
        for name in NAMES:
            truth = [json.loads(one, parse_float=Decimal) for one in self._printed(name)]
            expected = sorted(map(str, (of_database(name, row) for row in truth)))
            rows += len(expected)
            for kind in ("tables", "history"):
                frame = pl.read_delta(str(self._folder / kind / name))
                frame = frame.filter("_is_current") if kind == "history" else frame
                added = [column for column in truth[0] if column not in frame.columns] if truth else []
                assert set(added) <= {"added"}, f"{kind}/{name} has no columns {added}"
                columns = [column for column in truth[0] if column in frame.columns] if truth else frame.columns
                found = sorted(str(of_table(name, row) | dict.fromkeys(added)) for row in frame.select(columns).to_dicts())
                missing, more = sorted({*expected} - {*found}), sorted({*found} - {*expected})
                if found != expected:
                    wrong.append("\n".join([f"{kind}/{name}: the database has", *missing[:5], "the table has", *more[:5]]))
            topic = logs.topic(name)
            refused = set(topic.dead_letters().column("error").to_pylist()) if topic.dead_letters().num_rows else set()
            assert not topic.stale_keys(), f"{name}: {topic.stale_keys()[:3]}, {refused}"
        if wrong:
            pytest.fail("\n".join([f"seed {self._seed}, moment {moment}", *wrong]))
        sys.stdout.write(f"moment {moment}: {rows} rows equal after {time.monotonic() - begun:.1f} s, offsets {ends}\n")

    def _catch_up(self) -> None:
        """Return when all has been sent that was committed before: a mark has come that is no row of the snapshot."""
        first, written = self._marks + 1, float("-inf")

        def is_sent() -> bool:
            nonlocal written
            if time.monotonic() - written > _MARK_SECONDS:
                self._marks += 1
                self._server.run(_DATABASE, f"INSERT INTO marks VALUES ({self._marks});")  # noqa: S608
                written = time.monotonic()
            return any(mark >= first for mark in self._bridge.marks)

        self._wait(f"mark {first}", is_sent)

    def _printed(self, name: str) -> list[str]:
        return self._server.run(_DATABASE, f"SELECT row_to_json(one) FROM {name} AS one;").splitlines()  # noqa: S608

    def _has_appended(self, name: str, ends: list[int]) -> bool:
        """Tell whether the service has appended a topic up to some offsets of Kafka, by the checkpoint of its query."""
        query = self._folder / "data" / name / "queries" / name
        newest = max((int(one.name) for one in (query / "commits").glob("[0-9]*")), default=None)
        if newest is None:
            return False
        [offsets] = json.loads((query / "offsets" / str(newest)).read_text(encoding="utf-8").splitlines()[-1]).values()
        return [offsets[str(partition)] for partition in range(PARTITIONS)] == ends

    def _is_at(self, logs: LogDir, kind: str, name: str, log_end: list[int]) -> bool:
        """Tell whether a table has read its topic up to some offsets."""
        path = self._folder / kind / name
        state = TableLog(str(path), {}).state() if (path / "_delta_log").is_dir() else None
        return state is not None and list(position_of(state, logs.topic(name).describe().topic_id).offsets) == log_end

    def _wait(self, what: str, holds: Callable[[], Any]) -> None:
        end = time.monotonic() + _PATIENCE_SECONDS
        while not holds():
            if self._engine.has_ended() or self._engine.failures() > self._failures:  # as a supervisor does: its walsender was killed
                self._failures = self._engine.failures()
                self._kill("connector")
            assert self._bridge.error is None, self._bridge.error
            assert not self._service.has_ended(), f"the service ended:\n{self._service.log_tail()}"
            assert time.monotonic() < end, f"{what} never came\n{self._service.log_tail()}\n{self._engine.log_tail()}"
            time.sleep(0.2)
