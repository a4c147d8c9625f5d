"""What keeping typed tables takes beside time: a round of many small ones in one service, and the memory of a large one. No JVM.

| what | at most |
|---|---|
| 200 tables, one change each, one service | 15 s |
| a table of 16,000,000 keys, the default settings | measured: a step is bounded by `TableLimits`, a bootstrap by the dirty section |
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from benchmarks.measure import WHOLE, Scale, in_a_process, report
from benchmarks.memory import read_resident_mib
from lastword import LogDir
from lastword.service.table_settings import TableSettings
from lastword.service.tables import TableSupervisor

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

_TABLES, _KEYS, _UPDATES, _EACH = 200, 16_000_000, 200_000, 500_000
_DDL: Final = "id bigint, name string, price double"


def run(scale: Scale = WHOLE) -> None:
    """Measure and print."""
    tables = scale.rows(_TABLES, 2)
    with tempfile.TemporaryDirectory() as folder:
        first, round_seconds = _round(folder, tables)
    report(
        "many tables in one service, s",
        [[f"{tables}", f"{first:.1f}", f"{round_seconds:.1f}", "≤ 15"]],
        ["tables", "made", "a round", "goal"],
    )
    keys, rows = scale.rows(_KEYS), list[list[str]]()
    for count, is_cleaned in ((keys // 16, False), (keys, False), (keys, True)):
        with tempfile.TemporaryDirectory() as folder:
            topic = LogDir(folder).create_topic("t", partitions=2, config={"cleanup.policy": "compact"})
            for begin in range(0, count, _EACH):
                topic.append(_rows(np.arange(begin, min(count, begin + _EACH))))
            if is_cleaned:
                topic.roll()
                topic.clean(force=True)
            made = in_a_process("benchmarks.kept_tables", "make", folder, str(count))
            stepped = in_a_process("benchmarks.kept_tables", "step", folder, str(count))
        rows.append(
            [
                f"{count:,}",
                "cleaned" if is_cleaned else "never cleaned",
                *(f"{found[name]:.0f}" for found in (made, stepped) for name in ("before", "peak", "seconds")),
            ]
        )
    columns = ["keys", "log", "MiB before", "peak, made", "s", "MiB before", "peak, 10 steps of 200,000", "s"]
    report("MiB of a process that keeps a table", rows, columns)


def _round(folder: str, tables: int) -> tuple[float, float]:
    """Return the seconds in which the tables are made, and those of a round in which each topic has one change."""
    logs = LogDir(f"{folder}/logs")
    topics = [logs.create_topic(f"t{number}", config={"cleanup.policy": "compact"}) for number in range(tables)]
    for topic in topics:
        topic.append(_rows(np.arange(100)))
    settings = TableSettings.model_validate({"topics.pattern": "t.*", "path": f"{folder}/tables/{{topic}}", "schema": _DDL, "every": 0.001})
    supervisor = TableSupervisor(
        settings=[settings],
        topics=lambda: {topic.name: topic.log for topic in topics},
        storage_options={},
        clock_ms=lambda: round(time.time() * 1000),
    )
    made = _until_in_step(supervisor, tables)
    for topic in topics:
        topic.append(_rows(np.arange(50, 51)))
    seconds = _until_in_step(supervisor, tables)
    supervisor.stop()
    return made, seconds


def _until_in_step(supervisor: TableSupervisor, tables: int) -> float:
    began = time.perf_counter()
    while True:
        supervisor.step()
        standings = supervisor.standings()
        if len(standings) == tables and all(standing.steps and not standing.lag_offsets for standing in standings):
            return time.perf_counter() - began
        time.sleep(0.05)


def _rows(ids: Any) -> pa.Table:
    number = pl.Series("id", ids).cast(pl.String)
    value = '{"id":' + number + ',"name":"customer number ' + number + '","price":' + (pl.Series(ids) % 977).cast(pl.String) + ".5}"
    return pl.DataFrame({"key": '{"id":' + number + "}", "value": value}).to_arrow()


def _make(folder: str, count: int) -> None:
    LogDir(folder).topic("t").materialize(f"{folder}/table", schema=_DDL)
    assert pl.scan_delta(f"{folder}/table").select(pl.len()).collect().item() == count  # noqa: S101


def _step(folder: str, count: int) -> None:
    topic, chance = LogDir(folder).topic("t"), np.random.default_rng(3)
    for _ in range(10):
        topic.append(_rows(np.unique(chance.integers(0, count, min(_UPDATES, count)))))
        topic.materialize(f"{folder}/table", schema=_DDL)


def _measured(thing: Callable[[str, int], None], folder: str, count: int) -> dict[str, float]:
    LogDir(folder).topic("t").describe()
    before, began = read_resident_mib(), time.perf_counter()
    thing(folder, count)
    return {"before": before, "peak": read_resident_mib(), "seconds": time.perf_counter() - began}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_measured({"make": _make, "step": _step}[sys.argv[1]], sys.argv[2], int(sys.argv[3]))) + "\n")
