"""The service over change events in Kafka, as a process that a test kills.

`python -m tests.kafka_kill_app LOG_DIR SERVERS POINT NTH [group|python]`

It takes the events of the Kafka topic `events`, a few in each micro-batch, and is killed as `tests.kill_app` is; `NONE` runs to the end.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lastword.service.service import Service
from lastword.service.settings import Settings
from tests.kill_app import SESSION, kill_when_reached

if TYPE_CHECKING:
    from collections.abc import Mapping

TOPIC: Final = "events"
NAME: Final = "connector"
#: Events of a micro-batch.
BATCH: Final = 12


def service(log_dir: str, servers: str, session: Mapping[str, str] | None = None) -> Service:
    """Return the service; it ends when it has taken the events. `session` are settings of Spark, for a process that has no session yet."""
    source = {
        "name": NAME,
        "format": "kafka",
        "bootstrap.servers": servers,
        "topics.pattern": TOPIC,
        "envelope": "debezium",
        "max.offsets.per.trigger": BATCH,
        "trigger": "available-now",
    }
    settings = {"log_dir": log_dir, "sources": [source], "http": {"listen": ""}, "spark": dict(session or {})}
    return Service(Settings.model_validate(settings), cleaning=False)


if __name__ == "__main__":
    with kill_when_reached(sys.argv[3], int(sys.argv[4]), sys.argv[5], Path(sys.argv[1], TOPIC, "log")):
        service(sys.argv[1], sys.argv[2], SESSION).run_until_signal()
