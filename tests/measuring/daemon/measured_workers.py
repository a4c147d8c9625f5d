"""The daemon of Spark's Python workers while branches are counted: a worker saves what it has counted when a task ends.

A worker serves many tasks and ends by a signal, at which coverage.py saves nothing. Spark starts this module instead of `pyspark.daemon`
because `spark.python.daemon.module` names it. It lies alone in its folder: workers can import it, and nothing else of the tests.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from pyspark import daemon

if TYPE_CHECKING:
    import socket

_run_task = daemon.worker


def run_measured_task(sock: socket.socket, authenticated: bool) -> int:  # noqa: FBT001  PySpark's signature
    """Run a task as PySpark does, then save what it has counted; a Python without coverage.py counts nothing."""
    try:
        return _run_task(sock, authenticated)
    finally:
        with suppress(ImportError):
            from coverage import Coverage  # noqa: PLC0415  the executors of a cluster may lack it

            if running := Coverage.current():
                running.save()


if __name__ == "__main__":
    daemon.worker = run_measured_task
    daemon.manager()
