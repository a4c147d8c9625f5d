"""One round of a real source: clients of a database write, a connector sends, is killed, loses its slot, takes snapshots.

```
 stretch     clients write at the same time; meanwhile the connector is killed and starts again, and clients ask for ad-hoc snapshots
 between     nothing, or the connector loses its offsets, or its slot
 at the end  a mark is written: once it has been sent as a change, all has been sent
```

Deletions that were not sent when the slot or the offsets are lost never will be (docs/limits.md): with new offsets the connector goes on
from its new snapshot. So all has been sent before, and clients delete nothing until the next snapshot has begun to be sent.
"""

# ruff: noqa: S608  the statements are for a database of our own

from __future__ import annotations

import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tests.debezium_engine import PREFIX, DebeziumEngine
from tests.source_clients import SCHEMA, TABLES, Client

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.debezium_engine import Sent
    from tests.live_postgres import Postgres

_PATIENCE_SECONDS: Final = 240
#: How long a mark is waited for before the next one is written.
_MARK_SECONDS: Final = 10
_MARKS: Final = f"{PREFIX}.public.marks"


@dataclass
class Round:
    """A round: its database, its connector, and what happened, in words."""

    seed: int
    server: Postgres
    folder: Path
    happened: list[str] = field(default_factory=list)
    _marks: int = 0

    def __post_init__(self) -> None:
        """Draw what is random beside the clients."""
        self._chance = random.Random(self.seed)
        self._database = f"round_{self.seed}"
        settings = {
            "offset.flush.interval.ms": self._chance.choice(("100", "1000", "60000")),
            "max.batch.size": self._chance.choice(("7", "100", "2048")),
            "tombstones.on.delete": self._chance.choice(("true", "false")),
            "snapshot.mode": self._chance.choice(("initial", "when_needed")),
            "provide.transaction.metadata": self._chance.choice(("true", "false")),
        }
        self._settings = settings
        self._engine = DebeziumEngine(self.folder, self.server.port, self._database, settings)
        self.happened.append(str(settings))

    def play(self) -> tuple[list[Sent], dict[str, dict[int, dict[str, Any]]]]:
        """Return what the connector sent, and the rows of each table at the end."""
        self.server.run("postgres", f"CREATE DATABASE {self._database};")
        try:
            self.server.run(self._database, SCHEMA)
            self._engine.start()
            if self._chance.random() < 0.5:
                self._wait("a row of the first snapshot", self._engine.events)
            self._stretch(may_delete=True)
            for _ in range(self._chance.randint(1, 2)):
                self._between()
                self._stretch(may_delete=True)
            self._catch_up()
            tables = {name: {row["id"]: row for row in self.server.rows(self._database, f"SELECT * FROM {name}")} for name in TABLES}
            return list(self._engine.events()), tables
        finally:
            self._engine.kill()
            self._drop_slot()
            self.server.run("postgres", f"DROP DATABASE {self._database} WITH (FORCE);")

    def _stretch(self, *, may_delete: bool) -> None:
        """Let clients write, and kill the connector meanwhile."""
        stretch = len(self.happened)
        clients = [Client(random.Random(f"{self.seed} {stretch} {number}"), f"{stretch} {number}", may_delete) for number in range(4)]
        scripts = [client.script(self._chance.randint(30, 90), signals=number == 0 and may_delete) for number, client in enumerate(clients)]
        kills = [self._chance.uniform(0.3, 6) for _ in range(self._chance.choice((0, 1, 1, 2)))] if may_delete else []
        begun = time.monotonic()
        with ThreadPoolExecutor(len(clients)) as threads:
            running = [threads.submit(self.server.psql, self._database, script, stops=False) for script in scripts]
            for seconds in kills:
                time.sleep(seconds)
                self._kill_and_start()
            said = "".join(one.result() for one in running)
        failed = sum("ERROR" in line for line in said.splitlines())
        what = "clients" if may_delete else "clients without deletions"
        sent = len(self._engine.events())
        self.happened.append(f"{what}: {time.monotonic() - begun:.1f} s, {failed} errors, {len(kills)} kills, {sent} sent by then")

    def _between(self) -> None:
        drawn = self._chance.random()
        if drawn < 0.25:
            return
        self._catch_up()
        self._engine.kill()
        if drawn < 0.5:
            self._engine.forget()
            self.happened.append("the connector loses its offsets")
        else:
            self._lose_slot()
        sent = len(self._engine.events())
        self._stretch(may_delete=False)
        self._engine.start()
        self._stretch(may_delete=False)
        self._wait("the next snapshot", lambda: len(self._engine.events()) > sent)

    def _lose_slot(self) -> None:
        self._drop_slot()
        if self._settings["snapshot.mode"] == "initial" or self._chance.random() < 0.5:
            self._engine.forget()
            self.happened.append("the slot and the offsets are lost")
        else:
            self.happened.append("the slot is lost")

    def _kill_and_start(self) -> None:
        self._engine.kill()
        self._engine.start()

    def _catch_up(self) -> None:
        """Return when all has been sent that was committed before; now and then the connector is killed shortly before that.

        A mark that comes as a row of a snapshot says nothing: changes from before the snapshot may come behind it. One that comes in no
        other way, as there was no slot when it was written, is followed by another.
        """
        first, written = self._marks + 1, float("-inf")

        def is_sent() -> bool:
            nonlocal written
            if time.monotonic() - written > _MARK_SECONDS:
                self._marks += 1
                self.server.run(self._database, f"INSERT INTO marks VALUES ({self._marks});")
                written = time.monotonic()
            marks = [json.loads(one.value) for one in self._engine.events() if one.topic == _MARKS and one.value]
            return any(one["op"] == "c" and one["after"]["id"] >= first for one in marks)

        if not is_sent() and self._chance.random() < 0.5:
            time.sleep(self._chance.uniform(0.5, 5))
            self._kill_and_start()
        self._wait(f"mark {first}", is_sent)

    def _wait(self, what: str, holds: Callable[[], object]) -> None:
        end, starts = time.monotonic() + _PATIENCE_SECONDS, 0
        while not holds():
            if self._engine.has_ended() and starts < 5:  # as a supervisor does: the slot may still be that of the one before
                starts += 1
                self._kill_and_start()
            assert time.monotonic() < end, f"{what} was not sent: {self.happened}\n{self._engine.log_tail()}"
            time.sleep(0.1)
        if starts:
            self.happened.append(f"the engine ended by itself {starts} times")

    def _drop_slot(self) -> None:
        """Drop the slot once the server has seen that the connector is gone; there may be none."""
        mine, end = f"FROM pg_replication_slots WHERE slot_name = '{self._engine.slot}'", time.monotonic() + _PATIENCE_SECONDS
        while self.server.run("postgres", f"SELECT 1 {mine};"):
            self.server.psql("postgres", f"SELECT pg_drop_replication_slot(slot_name) {mine} AND NOT active;", stops=False)
            assert time.monotonic() < end, "the slot is still in use"
            time.sleep(0.1)
