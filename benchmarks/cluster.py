"""(i) A round of 16 partitions on a standalone cluster of two workers: both clean, and the driver's memory does not grow with the records.

Each log is filled without Spark and cleaned in a process of its own, whose session has one executor of one core on each worker. The tasks
of each executor are counted by Spark's own interface.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark

from benchmarks.measure import WHOLE, Scale, report
from benchmarks.memory import changes, read_resident_mib
from lastword import LogDir, spark_session
from tests.processes import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

_PARTITIONS = 16
_MIB = 2**20


def run(scale: Scale = WHOLE) -> None:
    """Measure and print."""
    rows = []
    with tempfile.TemporaryDirectory() as folder, _cluster(Path(folder)) as master:
        for count in scale.sizes((2_000_000, 8_000_000)):
            place, appends = f"{folder}/{count}", scale.rows(count // 500_000, least=2)
            each, keys = scale.rows(500_000), scale.rows(count // 4)
            topic = LogDir(place).create_topic("spread", partitions=_PARTITIONS, config={"cleanup.policy": "compact"})
            for number in range(appends):
                topic.append(changes(each, 0, keys, number))
            topic.roll()
            command = [sys.executable, "-m", "benchmarks.cluster", master, place]
            done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603  our own interpreter
            found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
            tasks = " + ".join(str(one) for one in found["tasks"])
            rows.append([f"{count:,}", f"{found['seconds']:.1f}", tasks, *(f"{found[name]:.0f}" for name in ("before", "peak", "heap"))])
    columns = ["records", "s", "tasks by executor", "driver before, MiB", "driver peak, MiB", "JVM's heap after, MiB"]
    report("(i) a round of 16 partitions on two workers", rows, columns)


@contextlib.contextmanager
def _cluster(folder: Path) -> Iterator[str]:
    """Start a master and two workers of one core each, and return the master's address."""
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    commands = [["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(free_port())]]
    for number in range(2):
        work = ["--host", "127.0.0.1", "--cores", "1", "--memory", "2g", "--webui-port", "0", "--work-dir", str(folder / f"work-{number}")]
        commands.append(["org.apache.spark.deploy.worker.Worker", *work, master])
    spark_class = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    with contextlib.ExitStack() as stack:
        log = stack.enter_context((folder / "cluster.log").open("wb"))
        for command in commands:
            process = subprocess.Popen([spark_class, *command], stdout=log, stderr=log, cwd=os.getcwd())  # noqa: S603, PTH109
            stack.callback(process.wait)
            stack.callback(process.kill)
            time.sleep(4)
        yield master


def _clean(master: str, place: str) -> dict[str, Any]:
    settings = {
        "spark.log.level": "ERROR",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.executor.memory": "1g",
        "spark.executor.cores": "1",
        "spark.cores.max": "2",
        "spark.ui.enabled": "true",
        "spark.ui.port": str(free_port()),
    }
    spark = spark_session("lastword-cluster", master=master, settings=settings)
    spark.range(1_000).repartition(4).mapInArrow(lambda batches: batches, "id bigint").count()  # executors and their Python are there
    topic = LogDir(spark, place).topic("spread")
    topic.describe()
    known, before = _tasks(spark.sparkContext.uiWebUrl), read_resident_mib()
    begun = time.perf_counter()
    receipts = topic.clean()
    seconds = time.perf_counter() - begun
    assert len(receipts) == _PARTITIONS  # noqa: S101  one round
    tasks = _tasks(spark.sparkContext.uiWebUrl)
    runtime = spark.sparkContext._jvm.java.lang  # type: ignore[union-attr]  # noqa: SLF001
    runtime.System.gc()
    heap = runtime.Runtime.getRuntime()
    counts = [tasks[name] - known.get(name, 0) for name in sorted(tasks)]
    used = (heap.totalMemory() - heap.freeMemory()) / _MIB
    return {"seconds": seconds, "tasks": counts, "before": before, "peak": read_resident_mib(), "heap": used}


def _tasks(ui: str | None) -> dict[str, int]:
    """Return how many tasks each executor has completed."""
    with urllib.request.urlopen(f"{ui}/api/v1/applications", timeout=10) as answer:  # noqa: S310  loopback
        application = json.load(answer)[0]["id"]
    with urllib.request.urlopen(f"{ui}/api/v1/applications/{application}/executors", timeout=10) as answer:  # noqa: S310  as above
        return {one["id"]: one["completedTasks"] for one in json.load(answer) if one["id"] != "driver"}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_clean(*sys.argv[1:])) + "\n")
