"""Cleanings that fail, without Spark: tried again with backoff, quarantined for damage, known to every process; retention goes on."""

from __future__ import annotations

import errno
import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from lastword import LogDir
from lastword.compaction.config.topic_config import parse_service_config
from lastword.compaction.errors import CommitStateUnknown, CorruptLog
from lastword.storage.cleaning import task
from lastword.storage.cleaning.log_starts import raise_log_starts
from lastword.storage.delta import crash_points
from lastword.storage.files.data_reader import row_groups
from lastword.storage.ledger.decisions import Decision, Kind
from lastword.streaming.cleaning.cleaner import Cleaner, _together_or_apart
from lastword.streaming.cleaning.maintenance_locks import MaintenanceLocks
from lastword.topics.explanation import partition_reports
from tests.clocks import at
from tests.storage.logs import DiskLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lastword.compaction.planning.receipt import CleaningReceipt
    from lastword.storage.delta.crash_points import CrashPoint
    from lastword.storage.log.topic_log import TopicLog
    from lastword.topics.explanation import PartitionReport

#: Many of these take half a second or more; `make quick` leaves them to `make test`.
pytestmark = pytest.mark.long

_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS
T0 = 1_700_000_000_000


class Process:
    """What one process knows of a topic: its log and its cleaner. Its clock is `now_ms`."""

    def __init__(self, folder: Path, *, max_failures: int = 10) -> None:
        """Open the topic of two partitions; create it if it does not exist."""
        logs = LogDir(str(folder))
        if "fruit" not in logs.topics():
            config = {"cleanup.policy": "compact,delete", "retention.ms": -1, "min.cleanable.dirty.ratio": 0}
            at(T0, logs).create_topic("fruit", partitions=2, config=config)
        settings, _ = parse_service_config({"log.cleaner.max.failures": max_failures})
        self.log: TopicLog = logs.log("fruit")
        self.disk = DiskLog(self.log.paths.log)
        self.cleaner = Cleaner(settings, locks=MaintenanceLocks())
        self.now_ms = T0

    def append(self) -> None:
        """Append two closed segments, and the active one, to both partitions."""
        for partition in range(2):
            for base in (0, 10):
                self.disk.append_each([f"{base}:a=1 {base + 1}:b=1", f"{base + 2}:a=2"], partition=partition, segment=base, now_ms=T0)
                roll = Decision(kind=Kind.ROLL, time_ms=T0, partition=partition, offset=base + 3, table_version=1)
                self.log.ledger.append([roll])
            self.disk.append_each(["20:c=1"], partition=partition, segment=20, now_ms=T0)

    def clean(self, *, force: bool = False) -> list[int]:
        """Clean what is eligible now; return the partitions."""
        receipts: list[CleaningReceipt] = self.cleaner.clean(
            self.log,
            None,
            clock_ms=lambda: self.now_ms,
            force=force,
        )
        return sorted(one.partition for one in receipts)

    def retained(self) -> dict[int, list[int]]:
        """Apply retention; return the bases of the segments that went by partition."""
        found = self.cleaner.apply_retention(self.log, now_ms=self.now_ms)
        return {partition: [one.base_offset for one, _ in deletion.segments] for partition, deletion in found.items()}

    def report(self, partition: int) -> PartitionReport:
        """Return what `explain` says of a partition now."""
        plan, _ = self.cleaner.plan(self.log, now_ms=self.now_ms)
        return partition_reports(plan, self.log.decisions().cleaning_failures())[partition]

    def file(self, partition: int) -> Path:
        """Return the oldest file of a partition."""
        files = self.log.snapshot().files
        return Path(self.log.paths.log, str(files.path[files.partition == partition][0]))


class Storage:
    """Reads of a partition that fail so many times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, partition: int, error: Exception, times: int) -> None:
        """Fail from now on."""
        self.times, self._partition, self._error = times, partition, error
        monkeypatch.setattr(task, "row_groups", self._read)

    def _read(self, location: str, options: Any, path: str, columns: Any) -> Iterator[Any]:
        if path.startswith(f"partition={self._partition}/") and self.times:
            self.times -= 1
            raise self._error
        return row_groups(location, options, path, columns)


@pytest.fixture
def process(tmp_path: Path) -> Process:
    """A process with a topic of two partitions, of which all but the active segments may be cleaned."""
    made = Process(tmp_path)
    made.append()
    return made


_NO_ANSWER = OSError(errno.EIO, "the storage did not answer")


def test_a_read_error_that_passes_is_not_noticed_but_for_a_round_by_itself(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """The round fails, and each partition is cleaned alone at once."""
    Storage(monkeypatch, 1, _NO_ANSWER, 1)
    assert process.clean() == [0, 1]
    assert process.log.decisions().cleaning_failures() == {}


def test_a_transient_failure_is_tried_again_with_backoff_after_a_restart_too(
    process: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Reported with the reason and the moment of the next try, which another process knows; a success ends it."""
    storage = Storage(monkeypatch, 1, _NO_ANSWER, 3)
    with caplog.at_level(logging.WARNING):
        assert process.clean() == [0], "the round failed, then partition 1 alone"
    assert [one.getMessage() for one in caplog.records if "cleaning failed" in one.getMessage()] != []
    assert process.clean() == []
    assert storage.times == 1, "nothing is read before the next try"
    report = process.report(1)
    assert (report.obstacle, report.eligible_at_ms) == ("waiting for the next try after a failure", T0 + _MINUTE_MS)
    assert report.failure == "failed 1 in a row: OSError: [Errno 5] the storage did not answer"
    assert report.uncleanable_reason is None

    restarted = Process(tmp_path)
    restarted.now_ms = T0 + _MINUTE_MS - 1
    assert (restarted.clean(), restarted.report(1).failure) == ([], report.failure)
    restarted.now_ms = T0 + _MINUTE_MS
    assert (restarted.clean(), storage.times) == ([], 0)
    assert restarted.report(1).eligible_at_ms == T0 + 3 * _MINUTE_MS
    process.now_ms = restarted.now_ms
    assert process.report(1).failure == "failed 2 in a row: OSError: [Errno 5] the storage did not answer"
    again = Process(tmp_path)
    again.now_ms = T0 + 3 * _MINUTE_MS
    assert again.clean() == [1]
    assert process.log.decisions().cleaning_failures() == {}
    assert (again.report(1).failure, again.report(1).obstacle) == (None, "nothing cleanable")


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EROFS, "Read-only file system"),
        OSError(errno.ESTALE, "Stale file handle"),
        TimeoutError("timed out"),
        ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
        PermissionError(errno.EACCES, "credentials have expired"),
        RuntimeError("SlowDown: please reduce your request rate"),
        MemoryError(),
    ],
    ids=lambda error: type(error).__name__ + str(getattr(error, "errno", "")),
)
def test_what_the_machine_or_the_store_does_for_a_while_is_no_quarantine_and_holds_up_no_retention(
    process: Process, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A full disk, expired credentials, a store that throttles: the next try is a minute later, and segments are deleted meanwhile."""
    Storage(monkeypatch, 1, error, 2)
    assert process.clean() == [0]
    assert (process.report(1).uncleanable_reason, process.report(1).eligible_at_ms) == (None, T0 + _MINUTE_MS)
    raise_log_starts(process.log, {1: 10}, why="delete_records", now_ms=T0)
    assert process.retained() == {1: [0]}
    process.now_ms = T0 + _MINUTE_MS
    assert process.clean() == [1]
    assert process.log.decisions().cleaning_failures() == {}


def test_force_tries_at_once(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """And ends the failures."""
    storage = Storage(monkeypatch, 1, TimeoutError("no answer"), 2)
    assert (process.clean(), storage.times) == ([0], 0)
    assert process.clean() == []
    assert process.clean(force=True) == [1]
    assert process.log.decisions().cleaning_failures() == {}


def test_so_many_failures_in_a_row_are_quarantine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Then it is tried no more by itself, and an alert names it; the other partition is cleaned, and not thrown away with it."""
    process = Process(tmp_path, max_failures=2)
    process.append()
    Storage(monkeypatch, 1, _NO_ANSWER, 100)
    assert process.clean() == [0]
    process.now_ms += _MINUTE_MS
    with caplog.at_level(logging.ERROR):
        assert process.clean() == []
    assert sum("partition uncleanable" in one.getMessage() for one in caplog.records) == 1
    process.now_ms += 100 * _HOUR_MS
    assert process.clean() == []
    report = process.report(1)
    assert (report.obstacle, report.eligible_at_ms, report.failure) == ("uncleanable after a failure", None, None)
    assert report.uncleanable_reason == "OSError: [Errno 5] the storage did not answer"


@pytest.mark.parametrize("damage", [b"spoilt", None])
def test_damage_is_quarantined_at_once_and_the_copy_brings_it_back(process: Process, tmp_path: Path, damage: bytes | None) -> None:
    """A file that is no Parquet file, or is not there; after a restart it is as well known."""
    file = process.file(1)
    good = file.read_bytes()
    file.unlink() if damage is None else file.write_bytes(damage)
    assert process.clean() == [0]
    restarted = Process(tmp_path)
    restarted.now_ms += 100 * _HOUR_MS
    assert restarted.clean() == []
    assert restarted.report(1).obstacle == "uncleanable after a failure"
    assert file.name in str(restarted.report(1).uncleanable_reason)
    assert restarted.clean(force=True) == []
    file.write_bytes(good)
    assert restarted.clean() == []
    assert restarted.clean(force=True) == [1]
    assert restarted.log.decisions().cleaning_failures() == {}


def test_records_that_do_not_add_up_are_damage(process: Process) -> None:
    """What was read is not what the Delta log says."""
    files = process.log.snapshot().files
    for path in files.path[files.first_offset == 10].tolist():
        file = Path(process.log.paths.log, path)
        pq.write_table(pq.ParquetFile(file).read().slice(1), file)
    assert process.clean() == []
    assert {one.retry_ms for one in process.log.decisions().cleaning_failures().values()} == {None}


def test_retention_goes_on_in_a_partition_that_fails_and_may_remove_the_damage(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """By log start and by time; whole segments go without being read. What is left is cleaned by force."""
    file = process.file(1)
    file.write_bytes(b"spoilt")
    assert process.clean() == [0]
    assert process.retained() == {}
    start = Decision(kind=Kind.START, time_ms=T0, partition=1, offset=10, table_version=process.log.snapshot().version)
    process.log.ledger.append([start])
    assert process.retained() == {1: [0]}
    assert process.clean() == [], "nobody has looked again"
    assert process.clean(force=True) == [1]

    Storage(monkeypatch, 1, _NO_ANSWER, 100)
    process.disk.append_each(["30:a=3"], partition=1, segment=20, now_ms=T0)
    process.log.ledger.append([Decision(kind=Kind.ROLL, time_ms=T0, partition=1, offset=31, table_version=1)])
    assert (process.clean(), process.report(1).obstacle) == ([], "waiting for the next try after a failure")
    settings = {"cleanup.policy": "compact,delete", "retention.ms": str(_HOUR_MS)}
    process.log.ledger.append([Decision(kind=Kind.CONFIG, time_ms=T0, details=settings)])
    process.now_ms += _HOUR_MS + 1
    assert process.retained()[1] == [10, 20]


def test_a_last_row_that_cannot_be_read_keeps_the_log_start_and_its_partition(process: Process) -> None:
    """It would be the only one that knows the log end offset; the other partition loses what it is to lose."""
    files = process.log.snapshot().files
    last = Path(process.log.paths.log, str(files.path[files.partition == 1][-1]))
    last.write_bytes(b"spoilt")
    starts = [Decision(kind=Kind.START, time_ms=T0, partition=one, offset=3, table_version=10) for one in range(2)]
    process.log.ledger.append(starts)
    process.log.ledger.append([Decision(kind=Kind.ROLL, time_ms=T0, partition=one, offset=21, table_version=10) for one in range(2)])
    settings = {"cleanup.policy": "compact,delete", "retention.ms": str(_HOUR_MS)}
    process.log.ledger.append([Decision(kind=Kind.CONFIG, time_ms=T0, details=settings)])
    process.now_ms += _HOUR_MS + 1
    with pytest.raises(CorruptLog, match=last.name):
        process.retained()
    assert process.log.decisions().log_start_offsets() == [21, 3]


def test_a_restore_makes_quarantine_void(process: Process) -> None:
    """The log is another one: it is tried, and if it fails again it is quarantined again."""
    version = process.log.snapshot().version
    process.disk.append_each(["30:d=1"], partition=1, segment=20, now_ms=T0)
    process.file(1).write_bytes(b"spoilt")
    assert process.clean() == [0]
    assert list(process.log.decisions().cleaning_failures()) == [1]
    process.disk.table().restore(version)
    process.log.sync_ledger_with_history()
    assert process.log.decisions().cleaning_failures() == {}
    assert process.clean() == [0]
    assert list(process.log.decisions().cleaning_failures()) == [1]


def test_small_files_of_the_other_partitions_are_merged(process: Process) -> None:
    """One that cannot be read is named; a partition whose cleaning failed is left alone."""
    for partition in range(2):
        process.disk.append_each([f"{offset}:a=1" for offset in range(30, 46)], partition=partition, segment=20, now_ms=T0)
    files = process.log.snapshot().files
    spoilt = Path(process.log.paths.log, str(files.path[(files.partition == 0) & (files.slice == 35)][0]))
    spoilt.write_bytes(b"spoilt")

    def merged() -> int:
        return process.cleaner.merge(process.log, None, now_ms=T0)

    with pytest.raises(CorruptLog, match=spoilt.name):
        merged()
    last = process.log.snapshot().last_segments()
    assert [len(last[partition].slices) for partition in range(2)] == [17, 3]
    details = {"failures": 1, "reason": "poisoned", "retry_ms": None}
    process.log.ledger.append([Decision(kind=Kind.FAILURE, time_ms=T0, partition=0, table_version=1, details=details)])
    assert merged() == 0


def test_a_plan_that_another_process_has_overtaken_is_no_failure(tmp_path: Path) -> None:
    """It deleted the old files, as a purge does: what is missing then is no damage, and the next plan goes on from the newest version."""
    one, other = Process(tmp_path), Process(tmp_path)
    one.append()
    assert other.log.snapshot().version == one.log.snapshot().version
    planned, cleaned, alone = one.log.snapshot().files.path.tolist(), list[list[int]](), threading.Lock()

    def overtaken(_point: CrashPoint) -> None:
        with alone, crash_points.hook(lambda _: None):  # each partition comes here, in a thread of its own
            if not cleaned:
                cleaned.append(other.clean(force=True))
                for path in set(planned) - set(other.log.snapshot().files.path.tolist()):
                    Path(other.log.paths.log, path).unlink()

    with crash_points.hook(overtaken):
        one.clean(force=True)
    assert cleaned == [[0, 1]]
    assert one.log.decisions().cleaning_failures() == {}


def test_what_fails_for_no_partition_is_not_tried_partition_by_partition(tmp_path: Path) -> None:
    """Nobody knows what became of a commit: whoever goes on might do it twice. Anything else holds up its own partition alone."""
    log = LogDir(tmp_path).create_topic("fruit", partitions=3).log
    asked: list[int | None] = []

    def failing(**errors: Exception) -> Callable[[int | None], int | None]:
        asked.clear()

        def once(only: int | None) -> int | None:
            asked.append(only)
            if f"of_{only}" in errors:
                raise errors[f"of_{only}"]
            return only

        return once

    unknown, damaged = CommitStateUnknown("nobody knows"), ValueError("damaged")
    with pytest.raises(CommitStateUnknown):
        _together_or_apart(log, failing(of_None=unknown))
    assert asked == [None]
    with pytest.raises(CommitStateUnknown):
        _together_or_apart(log, failing(of_None=damaged, of_1=unknown))
    assert asked == [None, 0, 1]
    assert _together_or_apart(log, failing(of_None=ValueError("all"), of_1=damaged)) == ([0, 2], damaged)
    assert _together_or_apart(log, failing()) == ([None], None)


def test_a_cleaner_that_is_to_stop_merges_nothing(tmp_path: Path) -> None:
    """Nor does it begin a round."""
    logs = LogDir(tmp_path)
    topic = logs.create_topic("fruit", config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})
    for number in range(9):
        topic.append([{"key": "a", "value": str(number)}])
    logs.cleaner.stopping.set()
    assert logs.cleaner.merge(topic.log, None, now_ms=topic.log.decisions().created_ms) == 0
    assert topic.clean(force=True) == []
    assert len(topic.log.snapshot().files.path) == 9
