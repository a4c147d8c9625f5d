"""The streaming application as a process that a test kills.

`python -m tests.kill_app LOG_DIR INPUT POINT NTH [group|python|terminate] [cleaning] [follow]`

It runs the real service over the files in INPUT and kills itself with SIGKILL when POINT is reached for the NTH time: the whole process
group, or Python alone, so that its JVM is an orphan for a while; `terminate` sends the group SIGTERM instead. POINT is a name of
`CrashPoint`, `WRITING` (data files of a micro-batch are on disk, its commit is not), `SWAPPING` (those of a cleaning are), `TIME` (NTH
milliseconds after the first micro-batch) or `NONE` (run to the end). With `cleaning` the cleaner is eager: tiny segments, a round as soon
as anything is dirty. With `follow` it waits for further files and has no end.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from lastword.service.service import Service
from lastword.service.settings import Settings
from lastword.storage.delta import crash_points
from lastword.storage.delta.crash_points import CrashPoint

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

TOPIC = "fruit"
PARTITIONS = 3
CALM = {"cleanup.policy": "compact", "segment.bytes": "16KiB", "min.cleanable.dirty.ratio": 1}
#: Settings of Spark for a process of its own.
SESSION = {"spark.master": "local[2]", "spark.log.level": "OFF", "spark.driver.memory": "1g"}
EAGER = CALM | {"segment.bytes": "1KiB", "min.cleanable.dirty.ratio": 0, "delete.retention.ms": "1000d"}


def main(log_dir: str, folder: str, kill_at: str, nth: int, whom: str, *, cleaning: bool, trigger: str) -> None:
    """Run until the end or the kill."""
    with kill_when_reached(kill_at, nth, whom, Path(log_dir, TOPIC, "log")):
        service(log_dir, folder, cleaning=cleaning, session=SESSION, trigger=trigger).run_until_signal()


def kill_when_reached(kill_at: str, nth: int, whom: str, log: Path) -> AbstractContextManager[None]:
    """Let this process, or its group, be killed when a point is reached for the nth time; `log` is the topic's folder of data files."""
    seen = 0
    writing = {"WRITING": CrashPoint.APPEND_PLANNED, "SWAPPING": CrashPoint.CLEANING_PLANNED}

    def kill() -> None:
        if whom == "terminate":
            os.killpg(os.getpgid(0), signal.SIGTERM)
            return
        if whom == "group":
            os.killpg(os.getpgid(0), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    def reached(point: CrashPoint) -> None:
        nonlocal seen
        if writing.get(kill_at) is point:
            seen += 1
            if seen == nth:
                threading.Thread(target=_kill_at_the_first_file, args=(log, kill), daemon=True).start()
        elif kill_at == "TIME" and point is CrashPoint.APPEND_PLANNED and not seen:
            seen = 1
            threading.Timer(nth / 1000, kill).start()
        elif point.name == kill_at:
            seen += 1
            if seen == nth:
                kill()

    return crash_points.hook(reached)


def service(
    log_dir: str, folder: str, *, cleaning: bool, session: Mapping[str, str] | None = None, trigger: str = "available-now"
) -> Service:
    """Return the service; it ends when it has taken the files. `session` are settings of Spark, for a process that has no session yet."""
    source = {
        "name": "files",
        "topic": TOPIC,
        "format": "json",
        "path": folder,
        "key": ["fruit"],
        "value": "value",
        "tombstone": "value = ''",
        "schema": "fruit string, value string",
        "max.files.per.trigger": 1,
        "trigger": trigger,
    }
    settings = {
        "log_dir": log_dir,
        "broker": {"log.cleaner.backoff.ms": 50},
        "topics": {TOPIC: {"partitions": PARTITIONS, "config": EAGER if cleaning else CALM}},
        "sources": [source],
        "http": {"listen": ""},
        "spark": dict(session or {}),
    }
    return Service(Settings.model_validate(settings))


def _kill_at_the_first_file(log: Path, kill: object) -> None:
    before = set(log.rglob("*.parquet"))
    while not set(log.rglob("*.parquet")) - before:
        time.sleep(0.001)
    kill()  # type: ignore[operator]


if __name__ == "__main__":
    main(
        sys.argv[1],
        sys.argv[2],
        sys.argv[3],
        int(sys.argv[4]),
        sys.argv[5] if len(sys.argv) > 5 else "group",
        cleaning="cleaning" in sys.argv[6:],
        trigger="100 milliseconds" if "follow" in sys.argv[6:] else "available-now",
    )
