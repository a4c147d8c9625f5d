"""Debezium's engine with its PostgreSQL connector as a process of its own, which a test kills and starts again.

```python
engine = DebeziumEngine(folder, server.port, "shop", {"offset.flush.interval.ms": "200"})
engine.start()
engine.events()      # what it has sent until now, in the order of arrival
engine.kill()        # its offsets stay; `forget` removes them
```

What it sends is what Kafka Connect sends: keys and values in JSON without schemas, each at least once. The jars are the group `debezium` of
`lastword/spark/jars.lock`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Final, NamedTuple

from lastword.spark.jars import resolve
from tests.processes import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PREFIX: Final = "live"
SLOT_PREFIX: Final = "slot_of_"
_LOG_TAIL_LINES: Final = 40
_SETTINGS: Final = {
    "name": PREFIX,
    "topic.prefix": PREFIX,
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
    "database.hostname": "127.0.0.1",
    "database.user": "postgres",
    "database.password": "none",
    "plugin.name": "pgoutput",
    "publication.name": "everything",
    "publication.autocreate.mode": "disabled",
    "slot.drop.on.stop": "false",
    "slot.retry.delay.ms": "500",
    "key.converter.schemas.enable": "false",
    "value.converter.schemas.enable": "false",
    "header.converter.schemas.enable": "false",
    "extended.headers.enabled": "false",
    "skipped.operations": "none",
    "signal.data.collection": "public.signals",
    "signal.poll.interval.ms": "200",
    "incremental.snapshot.chunk.size": "2",
    "poll.interval.ms": "20",
    "errors.max.retries": "0",
}


class Sent(NamedTuple):
    """What the connector sends, as Kafka gets it."""

    topic: str
    key: str | None
    value: str | None
    #: Those of a changed key.
    headers: list[tuple[str, str]]


class DebeziumEngine:
    """An engine for one database; its files are in a folder of its own."""

    def __init__(self, folder: Path, port: int, database: str, settings: Mapping[str, str]) -> None:
        """Remember the settings, which win over those above; nothing runs yet."""
        folder.mkdir()
        self.slot = f"{SLOT_PREFIX}{database}"
        self._offsets, self._events, self._log = folder / "offsets", folder / "events.jsonl", folder / "log"
        own = {
            "database.port": str(port),
            "database.dbname": database,
            "slot.name": self.slot,
            "offset.storage.file.filename": str(self._offsets),
        }
        self._settings = folder / "settings.json"
        self._settings.write_text(json.dumps({**_SETTINGS, **own, **settings}), encoding="utf-8")
        self._process: subprocess.Popen[bytes] | None = None
        self._seen: list[Sent] = []
        self._read_bytes = 0

    def start(self) -> None:
        """Start the process; it goes on from its offsets."""
        class_path = os.pathsep.join(str(jar.resolve()) for jar in resolve(("debezium",)))
        command = [sys.executable, "-m", "tests.debezium_app", str(self._settings), class_path, str(self._events)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603  our own interpreter
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def kill(self) -> None:
        """Kill the process and its JVM, wherever they are."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def forget(self) -> None:
        """Lose the offsets of an engine that does not run: the next one takes a snapshot."""
        self._offsets.unlink(missing_ok=True)

    def has_ended(self) -> bool:
        """Return whether the process has ended by itself."""
        return self._process is not None and self._process.poll() is not None

    def events(self) -> list[Sent]:
        """Return all that has been sent until now."""
        if self._events.exists():
            with self._events.open("rb") as file:
                file.seek(self._read_bytes)
                whole = file.read().rpartition(b"\n")[0]
            if whole:
                self._read_bytes += len(whole) + 1
                self._seen += [Sent(*json.loads(line)) for line in whole.split(b"\n")]
        return self._seen

    def failures(self) -> int:
        """Return how often a connector has said that it stops; the process may go on without one."""
        return self._log.read_text(encoding="utf-8", errors="replace").count("This connector will be stopped") if self._log.is_file() else 0

    def log_tail(self) -> str:
        """Return the end of what the process and its JVM have printed."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines() if self._log.is_file() else []
        return "\n".join(lines[-_LOG_TAIL_LINES:])
