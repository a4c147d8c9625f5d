"""What the metadata of an append costs in a log of many files: no Spark, and no data file is written, as none is read.

Another process has committed a file for each of 100 partitions. Then an append reads the decisions, follows the log to its newest version,
and asks for the log ends, the last segments and the last micro-batch of a query: at most 50 ms at 60,000 files in all (600 a partition).
The full read is what a process needs for its first snapshot. The commit is made by delta-rs, which replays all files of the table before it
and after it; it is not part of the 50 ms.
"""

from __future__ import annotations

import gc
import json
import statistics
import tempfile
import time
from typing import TYPE_CHECKING

from benchmarks.measure import WHOLE, Scale, report
from lastword import LogDir
from lastword.storage.delta.commit import new_token
from lastword.storage.delta.history import CommitMetadata
from lastword.storage.delta.snapshot import APPEND_APP_ID
from lastword.storage.files.data_files import DataFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from lastword.storage.log.topic_log import TopicLog

_PARTITIONS = 100
_RECORDS = 1_000
_SLICES = 10
_FILES_A_COMMIT = 60_000
_WARM_UP = 2
_ROUNDS = 9


def run(scale: Scale = WHOLE) -> None:
    """Measure and print it."""
    rows = [_measured(scale.rows(files, least=_PARTITIONS), scale) for files in (60_000, 600_000)]
    columns = ["partitions × files each", "files", "append's metadata ms", "full read ms", "commit by delta-rs ms", "bound"]
    report("metadata of an append after the commit of another process", rows, columns)


def _measured(files: int, scale: Scale) -> list[str]:
    warm_up, rounds = scale.warm_up(_WARM_UP), scale.turns(_ROUNDS)
    with tempfile.TemporaryDirectory() as folder:
        other = LogDir(f"{folder}/logs").create_topic("m", partitions=_PARTITIONS).log
        each = files // _PARTITIONS
        step = _FILES_A_COMMIT // _PARTITIONS
        for first in range(0, each, step):
            _commit(other, first, min(step, each - first))
        log = LogDir(f"{folder}/logs").topic("m").log
        full = _seconds(log.snapshot)
        spent, commits = [], []
        for number in range(warm_up + rounds):
            other.snapshot()
            commits.append(_seconds(lambda at=each + number: _commit(other, at, 1)))  # type: ignore[misc]
            spent.append(_seconds(lambda: _metadata(log)))
        assert log.snapshot().log_end_offsets(_PARTITIONS)[0] == (each + warm_up + rounds) * _RECORDS  # noqa: S101
    return [
        f"{_PARTITIONS} × {each:,}",
        f"{files:,}",
        _text(spent[warm_up:]),
        f"{1000 * full:.0f}",
        _text(commits[warm_up:]),
        "≤ 50 ms" if files <= _FILES_A_COMMIT else "",
    ]


def _metadata(log: TopicLog) -> None:
    log.decisions()
    snapshot, decisions = log.snapshot(), log.decisions()
    log.config(decisions)
    snapshot.log_end_offsets(decisions.partitions)
    snapshot.last_segments()
    log.committed_micro_batch("a-query")


def _commit(log: TopicLog, first: int, count: int) -> None:
    """Commit files number `first` and on of each partition, which are named and never written."""
    files = [_file(partition, first + number) for partition in range(_PARTITIONS) for number in range(count)]
    log.commit(log.snapshot(), family=APPEND_APP_ID, metadata=CommitMetadata(token=new_token(), kind="append"), adds=files)


def _file(partition: int, number: int) -> DataFile:
    first, segment, now = number * _RECORDS, number // _SLICES * _SLICES * _RECORDS, "2026-11-25T12:00:00.000Z"
    last = first + _RECORDS - 1
    stats = {
        "numRecords": _RECORDS,
        "minValues": {"offset": first, "timestamp": now, "appended_at": now},
        "maxValues": {"offset": last, "timestamp": now, "appended_at": now},
        "nullCount": {"offset": 0, "timestamp": 0, "appended_at": 0, "delete_horizon": _RECORDS, "producer_id": _RECORDS},
    }
    return DataFile(
        path=f"partition={partition}/segment={segment}/slice={first}/part-{partition:08x}-{number:08x}-0000-0000-000000000000.zstd.parquet",
        partition=partition,
        segment=segment,
        slice=first,
        size_bytes=100_000,
        record_count=_RECORDS,
        first_offset=first,
        last_offset=last,
        stats=json.dumps(stats, separators=(",", ":")),
    )


def _seconds(thing: Callable[[], object]) -> float:
    gc.collect()
    begun = time.perf_counter()
    thing()
    return time.perf_counter() - begun


def _text(seconds: list[float]) -> str:
    return f"{1000 * statistics.median(seconds):.1f} [{1000 * min(seconds):.1f}–{1000 * max(seconds):.1f}]"
