"""Processes that append to one log table at once, by commits alone: no Spark, no lock."""

from __future__ import annotations

import multiprocessing
from typing import TYPE_CHECKING

from lastword.storage.delta.commit import retry_on_conflict
from tests.compaction.logs import rows
from tests.storage.logs import DiskLog, offsets

if TYPE_CHECKING:
    from collections.abc import Mapping


def _write(location: str, storage_options: Mapping[str, str], writer: int, commits: int) -> None:
    log = DiskLog(location, dict(storage_options))
    for number in range(commits):

        def once(number: int = number) -> None:
            snapshot = log.snapshot()
            (end,) = snapshot.log_end_offsets(1)
            log.append([log.written(rows(f"{end}:w{writer}={number} {end + 1}:w{writer}={number}"), segment=0)], snapshot)

        retry_on_conflict(once, attempts=1_000)


def storm(log: DiskLog, *, writers: int, commits: int) -> None:
    """Let processes make commits of two records each; every offset is given once, and each writer's records are in its order."""
    context = multiprocessing.get_context("spawn")
    given = (log.location, log.storage_options)
    processes = [context.Process(target=_write, args=(*given, writer, commits)) for writer in range(writers)]
    for one in processes:
        one.start()
    for one in processes:
        one.join()
    assert [one.exitcode for one in processes] == [0] * writers
    assert offsets(log) == list(range(2 * writers * commits))
    words = [(one.row.key, one.value) for one in log.rows()]
    for writer in range(writers):
        mine = [value for key, value in words if key == f"w{writer}".encode()]
        assert mine == [str(number) for number in range(commits) for _ in range(2)], "in the order of its appends"
