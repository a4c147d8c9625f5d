"""Reads without a JVM of files and versions that somebody took away: one error that says what became of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from deltalake import DeltaTable

from lastword import HistoryCleaned, LogDir, UserError
from lastword.compaction.errors import CorruptLog
from lastword.storage.delta.snapshot import LogSnapshot
from lastword.storage.log.producer_states import read_states
from lastword.storage.log.topic_log import TopicLog, open_log
from lastword.storage.reading.arrow_frames import collect_rows
from lastword.storage.reading.arrow_rows import file_ranges
from lastword.storage.reading.view import newest_view
from tests.other_processes import in_another_process

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lastword import ArrowTopic


@pytest.fixture
def topic(tmp_path: Path) -> ArrowTopic:
    """Return a topic of three files, a record each: table versions 1 to 3."""
    topic = LogDir(tmp_path).create_topic("fruit", config={"cleanup.policy": "compact"})
    for key in "abc":
        topic.append([{"key": key, "value": "1"}])
    return topic


def _file(topic: ArrowTopic, number: int) -> Path:
    return Path(topic.log.paths.log, str(topic.log.snapshot().files.path[number]))


@pytest.mark.parametrize("read", [lambda topic: topic.latest(), lambda topic: topic.records(), lambda topic: topic.bootstrap().rows])
def test_a_file_of_the_newest_version_that_is_gone_is_named(topic: ArrowTopic, read: Callable[[ArrowTopic], Any]) -> None:
    """No VACUUM takes one: somebody changed the folder by hand."""
    assert read(topic).num_rows == 3
    _file(topic, 1).unlink()
    with pytest.raises(HistoryCleaned, match=r"topic fruit: files of the newest table version are not there; .*changed by hand"):
        read(topic)


def test_batches_whose_next_file_is_gone_say_which_version_it_was(topic: ArrowTopic) -> None:
    """What was given out stays right; to read again begins at the newest version."""
    batches = topic.record_batches(columns=["offset"])
    assert next(batches).to_pylist() == [{"offset": 0}]
    _file(topic, 2).unlink()
    with pytest.raises(HistoryCleaned, match="VACUUM removed files of table version 3 while it was read"):
        list(batches)


def test_a_file_of_an_old_version_that_vacuum_takes_while_it_is_read_is_told_apart_from_damage(topic: ArrowTopic) -> None:
    """Asked again, the answer is that the version is gone; the newest one needs the file no more."""
    topic.roll()
    topic.append([{"key": "a", "value": "2"}])
    before = topic.log.snapshot()
    old = {str(path) for path in before.files.path}
    topic.clean(force=True)
    gone = old - {str(path) for path in topic.log.snapshot().files.path}

    class Vacuumed(TopicLog):
        def missing_files(self, paths: Sequence[str], **options: Any) -> list[str]:
            missing = super().missing_files(paths, **options)
            for path in gone:
                Path(self.paths.log, path).unlink(missing_ok=True)
            return missing

    topic = in_another_process(LogDir(Path(topic.log.paths.root).parent), "fruit", kind=Vacuumed)
    with pytest.raises(HistoryCleaned, match=r"VACUUM removed files of an old table version while they were read .*; ask again"):
        topic.records(as_of=before.version)
    with pytest.raises(HistoryCleaned, match="VACUUM took 3 of the 3 files of table version 4"):
        topic.records(as_of=before.version)
    assert topic.latest().num_rows == 3


def test_a_version_whose_commits_are_gone_cannot_be_read_any_more(topic: ArrowTopic) -> None:
    """Delta keeps them for some days; the newest version is in a checkpoint."""
    assert topic.latest(as_of=1).num_rows == 1
    DeltaTable(topic.log.paths.log).create_checkpoint()
    for version in (0, 1):
        Path(topic.log.paths.log, "_delta_log", f"{version:020}.json").unlink()
    topic = LogDir(Path(topic.log.paths.root).parent).topic("fruit")
    with pytest.raises(HistoryCleaned, match="as_of table version 1: table version 1 cannot be read any more"):
        topic.latest(as_of=1)
    assert topic.latest().num_rows == topic.latest(as_of=3).num_rows == 3


def test_a_moment_is_a_version_a_datetime_or_its_text(topic: ArrowTopic) -> None:
    """Nothing is guessed."""
    for as_of in (1.5, b"1", "soon", object()):
        with pytest.raises(UserError, match=r"as_of = .*: allowed is a table version, a datetime"):
            topic.latest(as_of=as_of)  # type: ignore[arg-type]


def test_a_query_that_polars_refuses_is_its_own_error(topic: ArrowTopic) -> None:
    """No file is gone: it would be refused again."""
    with pytest.raises(pl.exceptions.ColumnNotFoundError, match="price"):
        topic.collect_latest(lambda frame: frame.select("price").collect())
    assert topic.collect_latest(lambda frame: frame.select("key").collect()).height == 3


def test_an_error_of_polars_that_no_file_is_the_cause_of_stays_what_it_is(topic: ArrowTopic) -> None:
    """The files are read once more by pyarrow, which names a damaged one."""
    view = newest_view(open_log(topic.log.paths.root), "read_committed")
    ranges = file_ranges(view, view.start, view.end)
    wrong = pl.LazyFrame({"key": [b"a"]}).select("price")
    with pytest.raises(pl.exceptions.ColumnNotFoundError):
        collect_rows(view, ranges, wrong)
    damaged = _file(topic, 1)
    damaged.write_bytes(damaged.read_bytes()[:-9])
    with pytest.raises(CorruptLog, match=damaged.name):
        collect_rows(view, ranges, wrong)


def test_producers_of_a_log_that_a_restore_made_shorter_are_read_from_its_beginning(tmp_path: Path) -> None:
    """What was known of the longer one says nothing of the shorter one."""
    topic = LogDir(tmp_path).create_topic("fruit")
    for number in range(2):
        topic.append([{"key": "a", "value": str(number), "producer_id": 7, "producer_epoch": 0, "sequence": number}])
    log, table = topic.log, DeltaTable(topic.log.paths.log)
    known, _ = read_states(log.paths.log, {}, log.snapshot(), 1)
    shorter = LogSnapshot.of(DeltaTable(log.paths.log, version=1))
    table.restore(1)
    restored = LogSnapshot.of(DeltaTable(log.paths.log))
    for snapshot in (shorter, restored):
        found, failed = read_states(log.paths.log, {}, snapshot, 1, since=known)
        assert (found.log_end_offsets, found.states[0, 7].last_sequence, failed) == ((1,), 0, {})
    assert (known.log_end_offsets, known.states[0, 7].last_sequence) == ((2,), 1)
