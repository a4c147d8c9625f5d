"""A materialisation as a process that a test kills: `python -m tests.materialize_app LOG_DIR TOPIC TARGET POINT NTH`.

It catches up in small micro-batches and kills its process group with SIGKILL when POINT, a name of `CrashPoint`, is reached for the NTH
time; `WRITING` is the first file of a step on disk, before its commit; `NONE` lets it run to the end.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

from lastword import LogDir, spark_session
from lastword.storage.delta import crash_points
from lastword.storage.delta.crash_points import CrashPoint


def main(log_dir: str, name: str, target: str, kill_at: str, nth: int) -> None:
    """Run until the end or the kill."""
    seen = 0

    def kill() -> None:
        os.killpg(os.getpgid(0), signal.SIGKILL)

    def kill_at_the_first_file() -> None:
        before = set(Path(target).glob("*.parquet"))
        while not set(Path(target).glob("*.parquet")) - before:
            time.sleep(0.001)
        kill()

    def reached(point: CrashPoint) -> None:
        nonlocal seen
        wanted = CrashPoint.STEP_PLANNED.name if kill_at == "WRITING" else kill_at
        if point.name == wanted:
            seen += 1
            if seen == nth and kill_at == "WRITING":
                threading.Thread(target=kill_at_the_first_file, daemon=True).start()
            elif seen == nth:
                kill()

    spark = spark_session(master="local[2]", settings={"spark.log.level": "OFF", "spark.driver.memory": "1g"})
    topic = LogDir(spark, log_dir).topic(name)
    with crash_points.hook(reached):
        topic.materialize(
            target, trigger={"availableNow": True}, record_columns=["_offset", "_value"], max_offsets_per_step=20
        ).awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]))
