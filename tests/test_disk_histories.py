"""Random histories without Spark: appends, transactions, cleaning, retention, crashes and two processes, against the specification.

Every partition of a topic is a history of its own. What the model has appended is written as an append writes it: the data files of each
partition go into its active segment, and one commit of the family of appends names them.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa
import pytest

from lastword import LogDir, arrow
from lastword.compaction.log.segments import next_append
from lastword.storage.delta.commit import new_token
from lastword.storage.delta.history import CommitMetadata
from lastword.storage.delta.snapshot import APPEND_APP_ID
from lastword.storage.files.data_files import SliceWriter, complete
from lastword.storage.files.data_reader import read_columns
from lastword.storage.files.schema import DATA_SCHEMA
from tests.lives import Lives
from tests.model import Record
from tests.test_model_equality import seed_of_this_run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from lastword import Topic
    from lastword.storage.files.data_files import DataFile

_PARTITIONS: Final = 100
_STEPS: Final = 12


class _Lives(Lives):
    """Lives without Spark, in two processes that know nothing of each other: each step is taken by one of them."""

    compared: ClassVar[frozenset[str]] = frozenset({"clean", "retain", "purge", "merge"})

    def __init__(self, *args: Any, **options: Any) -> None:
        self._others: list[tuple[LogDir, Topic]] = []
        self._written = 0
        super().__init__(*args, **options)
        logs = self.opened()
        self._others.append((logs, logs.topic(self.topic.name)))

    def live(self, steps: int) -> None:
        for _ in range(steps):
            if self.chance.random() < 0.4:
                self._others.append((self.logs, self.topic))
                self.logs, self.topic = self._others.pop(0)
            super().live(1)

    def opened(self) -> LogDir:
        return LogDir(None, self.logs.location)

    def appended(self, drawn: Sequence[tuple[Any, ...]]) -> None:
        log, now_ms = self.topic.log, self.now_ms
        snapshot, decisions = log.snapshot(), log.decisions()
        config, ends = log.config(decisions), snapshot.log_end_offsets(decisions.partitions)
        last = snapshot.last_segments()
        files = []
        for partition, end in enumerate(ends):
            rows = [one for one in self.model.logs[partition] if one.offset >= end]
            if rows:
                rolled = decisions.closed_offset(partition, end)
                active = next_append(
                    last.get(partition), config, partition=partition, log_end_offset=end, rolled_offset=rolled, now_ms=now_ms
                )
                files.append(_written(log.paths.log, partition, active.label, end, rows))
        if self.chance.random() < 0.1:  # a process that dies before the commit leaves files that nobody names; the next one writes its own
            self.done.append("crash before the commit")
            self.appended(drawn)
            return
        log.commit(snapshot, family=APPEND_APP_ID, metadata=CommitMetadata(token=new_token(), kind="append"), adds=files)

    def rows(self) -> dict[int, list[Record]]:
        found: dict[int, list[Record]] = {partition: [] for partition in range(self.model.partitions)}
        files = self.topic.log.snapshot().files
        for partition, path in zip(files.partition.tolist(), files.path, strict=True):
            found[partition] += _records(read_columns(self.topic.log.paths.log, {}, path, DATA_SCHEMA.names))
        return found

    def words(self) -> dict[tuple[int, bytes], tuple[int, bytes]]:
        shown = arrow.latest(self.topic.log.paths.root).select(["partition", "key", "offset", "value"]).to_pylist()
        return {(row["partition"], row["key"]): (row["offset"], row["value"]) for row in shown}


def _written(location: str, partition: int, segment: int, slice_: int, rows: Sequence[Record]) -> DataFile:
    """Write rows of the model as a slice."""
    table = pa.table(
        {
            "offset": pa.array([one.offset for one in rows], pa.int64()),
            "timestamp": _times([one.timestamp_ms for one in rows]),
            "key": pa.array([one.key for one in rows], pa.binary()),
            "value": pa.array([one.value for one in rows], pa.binary()),
            "producer_id": pa.array([one.producer_id for one in rows], pa.int64()),
            "producer_epoch": pa.array([one.epoch for one in rows], pa.int32()),
            "sequence": pa.array([one.sequence for one in rows], pa.int32()),
            "control": pa.array([one.control for one in rows], pa.string()),
            "txn_first_offset": pa.array([one.txn_first_offset for one in rows], pa.int64()),
            "appended_at": _times([one.appended_at_ms for one in rows]),
        }
    )
    writer = SliceWriter(location, {}, partition=partition, segment=segment, slice_=slice_, codec="zstd")
    writer.write(complete(table))
    return writer.close()


def _times(times_ms: Sequence[int | None]) -> pa.Array:
    return pa.array([None if one is None else one * 1000 for one in times_ms], pa.int64()).cast(pa.timestamp("us", "UTC"))


def _records(rows: pa.Table) -> list[Record]:
    """Return rows of a data file as the model writes them."""
    for name in ("timestamp", "delete_horizon", "appended_at"):
        rows = rows.set_column(rows.schema.get_field_index(name), name, rows.column(name).cast(pa.int64()))
    return [
        Record(
            row["offset"],
            row["key"],
            row["value"],
            None if row["timestamp"] is None else row["timestamp"] // 1000,
            row["producer_id"],
            row["producer_epoch"],
            row["sequence"],
            control=row["control"],
            txn_first_offset=row["txn_first_offset"],
            delete_horizon_ms=None if row["delete_horizon"] is None else row["delete_horizon"] // 1000,
            appended_at_ms=row["appended_at"] // 1000,
        )
        for row in rows.to_pylist()
    ]


def _live(folder: Path, histories: int) -> None:
    """Live through so many histories, a topic of `_PARTITIONS` at a time; every fifth of them with maps of a few entries."""
    chance = random.Random(seed_of_this_run())
    for number in range(-(-histories // _PARTITIONS)):
        slots = [3, 6, 10_000] if number % 5 == 4 else [10_000]
        lives = _Lives(LogDir(None, str(folder / f"logs-{number}")), chance, f"lives-{number}", _PARTITIONS, slots=slots)
        lives.live(_STEPS)
        lives.compare()


@pytest.mark.long
def test_two_thousand_random_histories_without_spark_hold_what_the_model_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same seed gives the same histories: LASTWORD_SEED. Nothing is flushed to the disk: no power is cut here."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    _live(tmp_path, 2_000)


@pytest.mark.torture
@pytest.mark.timeout(14_400)
def test_a_hundred_thousand_random_histories_without_spark_hold_what_the_model_says(tmp_path: Path) -> None:
    """LASTWORD_HISTORIES says how many."""
    _live(tmp_path, int(os.environ.get("LASTWORD_HISTORIES", "100000")))
