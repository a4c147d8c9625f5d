"""The streaming application as a process that a test kills: `python -m tests.kill_app LOG_DIR INPUT POINT NTH [group|python]`.

It runs the real service over the files in INPUT and kills itself with SIGKILL when POINT is reached for the NTH time: the whole process
group, or Python alone, so that its JVM is an orphan for a while. POINT is a name of `CrashPoint`, `WRITING` (data files of a micro-batch
are on disk, its commit is not), or `NONE` (run to the end).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

from lastword.service import Service
from lastword.settings import Settings
from storage import crash_points
from storage.crash_points import CrashPoint

TOPIC = "fruit"
PARTITIONS = 3


def main(log_dir: str, folder: str, kill_at: str, nth: int, whom: str) -> None:
    """Run until the end or the kill."""
    seen = 0

    def kill() -> None:
        if whom == "group":
            os.killpg(os.getpgid(0), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    def reached(point: CrashPoint) -> None:
        nonlocal seen
        if kill_at == "WRITING" and point is CrashPoint.APPEND_PLANNED:
            seen += 1
            if seen == nth:
                threading.Thread(target=_kill_at_the_first_file, args=(Path(log_dir, TOPIC, "log"), kill), daemon=True).start()
        elif point.name == kill_at:
            seen += 1
            if seen == nth:
                kill()

    crash_points.reached = reached
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
        "trigger": "available-now",
    }
    settings = {
        "log_dir": log_dir,
        "topics": {TOPIC: {"partitions": PARTITIONS, "config": {"cleanup.policy": "compact", "segment.bytes": "16KiB"}}},
        "sources": [source],
        "spark": {"spark.master": "local[2]", "spark.log.level": "OFF", "spark.driver.memory": "1g"},
    }
    Service(Settings.model_validate(settings)).run_until_signal()


def _kill_at_the_first_file(log: Path, kill: object) -> None:
    before = set(log.rglob("*.parquet"))
    while not set(log.rglob("*.parquet")) - before:
        time.sleep(0.001)
    kill()  # type: ignore[operator]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5] if len(sys.argv) > 5 else "group")
