"""Random histories without Spark: appends, transactions, cleaning, retention, crashes and two processes, against the specification.

Every partition of a topic is a history of its own.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa
import pytest

from lastword import LogDir
from lastword.storage.delta.crash_points import CrashPoint
from lastword.storage.files.data_reader import read_columns
from lastword.storage.files.schema import DATA_SCHEMA
from tests.clocks import at
from tests.lives import Crash, Lives, crashing
from tests.model import Record
from tests.pictures import by_arrow
from tests.test_model_equality import seed_of_this_run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from lastword import Topic

_PARTITIONS: Final = 100
_STEPS: Final = 12
_COLUMNS: Final = {
    "partition": pa.int32(),
    "key": pa.binary(),
    "value": pa.binary(),
    "timestamp": pa.int64(),
    "producer_id": pa.int64(),
    "producer_epoch": pa.int32(),
    "sequence": pa.int32(),
    "transactional": pa.bool_(),
    "control": pa.string(),
}


class DiskLives(Lives):
    """Lives without Spark, in two processes that know nothing of each other: each step is taken by one of them."""

    compared: ClassVar[frozenset[str]] = frozenset({"clean", "retain", "purge", "merge"})

    def __init__(self, *args: Any, **options: Any) -> None:
        """Begin with two processes."""
        self._others: list[tuple[LogDir, Topic]] = []
        self._written = 0
        super().__init__(*args, **options)
        logs = self.opened()
        self._others.append((logs, logs.topic(self.topic.name)))

    def live(self, steps: int) -> None:
        """Take each step by one of the processes."""
        for _ in range(steps):
            if self.chance.random() < 0.4:
                self._others.append((self.logs, self.topic))
                self.logs, self.topic = self._others.pop(0)
            super().live(1)

    def opened(self) -> LogDir:
        """Open the log.dir again."""
        return LogDir(self.logs.location)

    def appended(self, drawn: Sequence[tuple[Any, ...]]) -> None:
        """Append; now and then the process dies of it, and the append is repeated."""
        table = self.table(drawn)
        crash = self.chance.choice((*[None] * 8, CrashPoint.APPEND_PLANNED, CrashPoint.APPEND_COMMITTED))
        self._written += 1
        try:
            with crashing(crash):
                at(self.now_ms, self.topic).append(table, idempotency_key=str(self._written))
        except Crash:
            self.done.append(f"crash at {crash}")
            self.restart()
            again = at(self.now_ms, self.topic).append(table, idempotency_key=str(self._written))
            assert again.replayed == (crash is CrashPoint.APPEND_COMMITTED)
        self.adopt()  # an append closes segments by record time, which the model takes over

    def table(self, drawn: Sequence[tuple[Any, ...]]) -> pa.Table:
        """Return rows as they are appended."""
        return pa.table({name: pa.array(column, of) for (name, of), column in zip(_COLUMNS.items(), zip(*drawn, strict=True), strict=True)})

    def rows(self) -> dict[int, list[Record]]:
        """Read the data files."""
        found: dict[int, list[Record]] = {partition: [] for partition in range(self.model.partitions)}
        files = self.topic.log.snapshot().files
        for partition, path in zip(files.partition.tolist(), files.path, strict=True):
            found[partition] += _records(read_columns(self.topic.log.paths.log, {}, path, DATA_SCHEMA.names))
        return found

    def words(self) -> dict[tuple[int, bytes], tuple[int, bytes]]:
        """Read `latest()`."""
        shown = by_arrow(self.topic).latest().select(["partition", "key", "offset", "value"]).to_pylist()
        return {(row["partition"], row["key"]): (row["offset"], row["value"]) for row in shown}


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
        lives = DiskLives(LogDir(str(folder / f"logs-{number}")), chance, f"lives-{number}", _PARTITIONS, slots=slots)
        lives.live(_STEPS)
        lives.compare()


@pytest.mark.long
def test_two_thousand_random_histories_without_spark_hold_what_the_model_says(tmp_path: Path) -> None:
    """LASTWORD_SEED repeats the histories of a run."""
    _live(tmp_path, 2_000)


@pytest.mark.torture
@pytest.mark.timeout(14_400)
def test_a_hundred_thousand_random_histories_without_spark_hold_what_the_model_says(tmp_path: Path) -> None:
    """LASTWORD_HISTORIES says how many."""
    _live(tmp_path, int(os.environ.get("LASTWORD_HISTORIES", "100000")))
