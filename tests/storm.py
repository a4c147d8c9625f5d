"""Processes of a storm: Spark applications and plain processes that append, cleaners and a retention, all on one log.dir.

`python -m tests.storm ROLE LOG_DIR ACKNOWLEDGED SEED` works until it is killed. A process that appends writes a line of JSON for each
record that was acknowledged, after the append has returned. `LASTWORD_STORM_OPTIONS` has the storage options as JSON.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lastword import LogDir, clock, spark_session
from lastword.compaction.errors import CommitConflict, OffsetOutOfRange

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lastword import Topic
    from lastword.storage.append.requests import AppendResult

TOPIC: Final = "storm"
PARTITIONS: Final = 2
KEYS: Final = 40
_RECORDS: Final = 60


def append_by_spark(log_dir: str, acknowledged: str, seed: int) -> None:
    """Append DataFrames for ever, each to both partitions; acknowledge each record with its offset."""
    spark = spark_session(master="local[1]", settings={"spark.log.level": "ERROR", "spark.ui.enabled": "false"})
    _append(log_dir, acknowledged, seed, lambda rows: spark.createDataFrame(rows, "key string, value string, partition int"), spark)


def append_by_arrow(log_dir: str, acknowledged: str, seed: int) -> None:
    """Append lists of dicts for ever, as `append_by_spark` does, without a JVM."""
    names = ("key", "value", "partition")
    _append(log_dir, acknowledged, seed, lambda rows: [dict(zip(names, row, strict=True)) for row in rows], None)


def _append(log_dir: str, acknowledged: str, seed: int, given: Callable[[list[tuple[str, str, int]]], Any], spark: Any) -> None:
    topic, draw = _topic(log_dir, spark), random.Random(seed)
    with Path(acknowledged).open("a", encoding="utf-8") as file:
        number = 0
        while True:
            rows = [(f"k{draw.randrange(KEYS)}", f"{seed}-{number + at}", at % PARTITIONS) for at in range(_RECORDS)]
            number += len(rows)
            result = topic.append(given(rows))
            file.writelines(f"{line}\n" for line in _lines(rows, result))
            file.flush()
            os.fsync(file.fileno())


def _topic(log_dir: str, spark: Any = None) -> Topic:
    options = json.loads(os.environ.get("LASTWORD_STORM_OPTIONS", "{}"))
    opened = LogDir(log_dir, storage_options=options) if spark is None else LogDir(spark, log_dir, storage_options=options)
    return opened.topic(TOPIC)


def _lines(rows: Sequence[tuple[str, str, int]], result: AppendResult) -> list[str]:
    """Return what is acknowledged: partition, offset, key and value of each record, which are in the order of their partition."""
    following = {partition: one.first_offset for partition, one in result.ranges.items()}
    lines = []
    for key, value, partition in rows:
        lines.append(json.dumps([partition, following[partition], key, value]))
        following[partition] += 1
    return lines


def clean(log_dir: str, _acknowledged: str, seed: int) -> None:
    """Close segments and clean them for ever."""
    topic, draw = _topic(log_dir), random.Random(seed)
    while True:
        if draw.random() < 0.3:
            topic.roll()
        _unless_overtaken(lambda: topic.clean(force=True))


def retain(log_dir: str, _acknowledged: str, seed: int) -> None:
    """Raise log starts for ever, which takes segments away."""
    topic, draw = _topic(log_dir), random.Random(seed)
    while True:
        one = topic.describe().partitions[draw.randrange(PARTITIONS)]
        offset = one.log_start_offset + (one.log_end_offset - one.log_start_offset) // 20

        def delete(partition: int = one.partition, offset: int = offset) -> None:
            topic.delete_records({partition: offset})
            topic.apply_retention()

        _unless_overtaken(delete)


def _unless_overtaken(do: Callable[[], object]) -> None:
    """Do something; that others were first too often is no failure, and neither is a log start that another process has raised."""
    try:
        do()
    except (CommitConflict, OffsetOutOfRange) as error:
        sys.stdout.write(f"{clock.now_ms()} {error}\n")


ROLES: Final = {"spark": append_by_spark, "arrow": append_by_arrow, "clean": clean, "retain": retain}

if __name__ == "__main__":
    role, place, told, chosen = sys.argv[1:]
    ROLES[role](place, told, int(chosen))
