"""A spoilt file that holds rows of producers: nothing is known of its partition's transactions, and the other partitions go on."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lastword import LogDir
from lastword.compaction.errors import CorruptLog
from lastword.status.standing import Looker
from lastword.storage.files.data_reader import row_groups
from lastword.storage.log import producer_states
from lastword.storage.log.limits import LogLimits
from lastword.streaming.cleaning.scheduler import MaintenanceScheduler
from tests.clocks import at
from tests.pictures import DAY_MS, T0, delete_records, history, rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from lastword import Topic

_PRODUCED = (
    "key string, value string, partition int, producer_id bigint, producer_epoch int, sequence int, transactional boolean, control string"
)
_EAGER = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}


def _written(spark: SparkSession, sequence: int, partitions: Sequence[int] = (0, 1, 2), *, transactional: bool = False) -> DataFrame:
    """Return two values of one key in each partition, by one producer: `a=0 a=1`."""
    found = [("a", str(one), partition, 7, 0, one, transactional, None) for partition in partitions for one in (sequence, sequence + 1)]
    return spark.createDataFrame(found, _PRODUCED)


def _sequences(topic: Topic, spark: SparkSession, of: Sequence[int] | None = None) -> dict[int, int | None]:
    """Return the last sequence of producer 7 by partition."""
    return {partition: one.last_sequence for (partition, _), one in topic.log.at().producer_states(of=of).items()}


class _Spoilt:
    """The oldest file of partition 1, spoilt, and a process that knows nothing of the topic's producers yet, or what is in the cache."""

    def __init__(self, spark: SparkSession, logs: LogDir, topic: Topic, *, cached: bool = False) -> None:
        self.file = min(Path(topic.log.paths.log).glob("partition=1/**/*.parquet"), key=lambda one: one.stat().st_mtime_ns)
        self._good = self.file.read_bytes()
        self.file.write_bytes(b"PAR1" + b"\0" * (len(self._good) - 8) + b"PAR1")
        self.file.with_name(f".{self.file.name}.crc").unlink(missing_ok=True)
        self.cache = Path(topic.log.paths.producers) / "state.json"
        if not cached:
            self.cache.unlink(missing_ok=True)
        self.logs = LogDir(spark, logs.location)
        self.topic = self.logs.topic(topic.name)
        for one in (topic, self.topic):  # no second try, however slow the machine is
            one.log.limits = LogLimits(retry_seconds=1e9)

    def mend(self) -> None:
        """Put back the copy."""
        self.file.write_bytes(self._good)


def test_the_other_partitions_are_cleaned_and_the_spoilt_one_comes_back_when_it_can_be_read(
    spark: SparkSession, logs: LogDir, caplog: pytest.LogCaptureFixture
) -> None:
    """By force it is tried again at once; nothing that is not whole is kept for other processes."""
    topic = logs.create_topic("spoilt", partitions=3, config={**_EAGER, "producer.id.expiration.ms": 1_000})
    at(T0, topic).append(_written(spark, 0))
    at(T0, topic).roll()
    spoilt = _Spoilt(spark, logs, topic)
    topic = spoilt.topic
    with caplog.at_level(logging.ERROR):
        assert [sorted(one.partition for one in at(T0, topic).clean()) for _ in range(2)] == [[0, 2], []]
    assert sum("partition uncleanable" in one.getMessage() for one in caplog.records) == 1, "said once"
    assert [history(topic, one) for one in (0, 2)] == [["1 a=1"], ["1 a=1"]]
    for force in (False, True):
        report = at(T0, topic).explain(force=force)[1]
        assert (report.obstacle, report.eligible) == ("uncleanable after a failure", False)
        assert spoilt.file.name in str(report.uncleanable_reason)
        assert "is unknown" in report.bound_detail
    assert 1 not in {one.partition for one in at(T0, topic).clean(force=True)}
    with pytest.raises(CorruptLog, match=f"{spoilt.file.name} cannot be read"):
        at(T0, topic).append(_written(spark, 2, [0]))  # who may append is not known
    assert [topic.log.forget_producers(now_ms=T0 + DAY_MS) for _ in range(2)] == [0, 0]
    assert not spoilt.cache.exists()

    spoilt.mend()
    assert at(T0, topic).clean() == [], "not yet"
    assert 1 in {one.partition for one in at(T0, topic).clean(force=True)}
    assert history(topic, 1) == ["1 a=1"]
    assert topic.log.at().producer_states() == LogDir(spark, logs.location).topic("spoilt").log.at().producer_states(), (
        "from the cache, and from the log"
    )
    at(T0, topic).append(_written(spark, 2))


def test_what_is_appended_meanwhile_is_known_of_the_partitions_that_can_be_read(spark: SparkSession, logs: LogDir) -> None:
    """A transaction that opens holds back its own partition, and is aborted there when it hangs; where the file is, once that is mended."""
    topic = logs.create_topic("meanwhile", partitions=3, config={**_EAGER, "transaction.timeout.ms": 1_000})
    at(T0, topic).append(_written(spark, 0, transactional=True))
    at(T0, topic).roll()
    topic.open_transactions()
    spoilt = _Spoilt(spark, logs, topic)
    other, topic = topic, spoilt.topic
    assert topic.log.at().readable_states()[1].keys() == {1}
    at(T0, other).append(_written(spark, 2, [0, 2], transactional=True))  # it has read the states before
    reports = at(T0, topic).explain()
    assert [one.last_stable_offset for one in reports] == [0, 0, 0]
    assert ["producer 7" in one.bound_detail for one in reports] == [True, False, True]
    assert _sequences(topic, spark, of=[0, 2]) == {0: 3, 2: 3}
    cleaner = spoilt.logs.cleaner
    seen = Looker(topic.log, cleaner).look(now_ms=T0)
    assert ([one.first_offsets for one in seen.transactions], seen.error) == ([{0: 0, 2: 0}], None)
    assert [one.partition for one in seen.uncleanable] == [1]

    now_ms = [T0 + DAY_MS]
    scheduler = MaintenanceScheduler(
        spark=spark, cleaner=cleaner, config=cleaner.config, topics=lambda: [topic.log], clock_ms=lambda: now_ms[0]
    )
    scheduler.tick()
    assert topic.log.at().readable_transactions() == []
    assert [history(topic, one)[-1].split()[1] for one in (0, 2)] == ["ABORT", "ABORT"]
    spoilt.mend()
    assert _sequences(topic, spark) == {0: None, 1: 1, 2: None}, "fenced, by a new epoch"
    assert [one.first_offsets for one in topic.open_transactions()] == [{1: 0}]
    now_ms[0] += DAY_MS
    scheduler.tick()
    assert topic.open_transactions() == []
    assert history(topic, 1)[-1].split()[1] == "ABORT"
    assert (scheduler.counts.failures, scheduler.counts.last_failure) == (0, None)


def test_a_failure_that_passes_makes_nothing_unknown_that_was_known(
    spark: SparkSession, logs: LogDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old file that nobody needs any more may be spoilt: from what was known of all partitions it goes on."""
    topic = logs.create_topic("passing", partitions=3, config=_EAGER)
    at(T0, topic).append(_written(spark, 0))
    assert _sequences(topic, spark) == {0: 1, 1: 1, 2: 1}
    spoilt = _Spoilt(spark, logs, topic, cached=True)
    at(T0, topic).append(_written(spark, 2, [0, 1]))
    with monkeypatch.context() as patch:

        def fails(*_: Any) -> Any:
            message = "the storage does not answer"
            raise OSError(message)

        patch.setattr(producer_states, "row_groups", fails)
        assert topic.log.at().readable_states()[1].keys() == {0, 1}, "nobody has written to 2"
        patch.setattr(producer_states, "row_groups", row_groups)
        assert topic.log.at().readable_states()[1].keys() == {0, 1}, "not tried yet"
        topic.log.limits = LogLimits(retry_seconds=0)
        assert topic.log.at().readable_states(again=True)[1] == {}
    assert _sequences(topic, spark) == {0: 3, 1: 3, 2: 1}

    at(T0, topic).append(_written(spark, 4, [1]))

    def breaks(*_: Any) -> Any:
        message = "no more memory"
        raise RuntimeError(message)

    with monkeypatch.context() as patch:
        patch.setattr(producer_states, "row_groups", breaks)
        with pytest.raises(RuntimeError, match="no more memory"):
            at(T0, topic).explain()
    assert _sequences(topic, spark) == {0: 3, 1: 5, 2: 1}
    spoilt.mend()


def test_it_is_tried_again_after_a_while(spark: SparkSession, logs: LogDir) -> None:
    """Half a minute; the other partitions are read as they grow meanwhile."""
    topic = logs.create_topic("again", partitions=3, config=_EAGER)
    at(T0, topic).append(_written(spark, 0))
    spoilt = _Spoilt(spark, logs, topic)
    log = spoilt.topic.log
    assert log.at().readable_states()[1].keys() == {1}
    spoilt.mend()
    at(T0, topic).append(_written(spark, 2))
    states, unreadable = log.at().readable_states()
    assert unreadable.keys() == {1}
    assert {place[0]: one.last_sequence for place, one in states.items()} == {0: 3, 2: 3}
    log.limits = LogLimits(retry_seconds=0)  # the while is over
    assert log.at().readable_states()[1] == {}
    assert _sequences(spoilt.topic, spark) == {0: 3, 1: 3, 2: 3}


def test_a_log_start_behind_the_spoilt_file_is_a_way_out(spark: SparkSession, logs: LogDir) -> None:
    """Nothing of the file is read to take it away."""
    topic = logs.create_topic("lost", partitions=3, config=_EAGER)
    for sequence, partitions in ((0, [0, 1, 2]), (2, [1])):
        at(T0, topic).append(_written(spark, sequence, partitions))
        at(T0, topic).roll()
    topic = _Spoilt(spark, logs, topic).topic
    described = topic.describe().partitions[1]
    assert ([one.last_offset for one in described.segments], described.last_stable_offset) == ([1, 3], 0)
    delete_records(at(T0, topic), {1: 2})
    assert topic.log.at().readable_states(again=True)[1] == {}
    assert sorted(one.partition for one in at(T0, topic).clean()) == [0, 1, 2]
    assert history(topic, 1) == ["3 a=3"]
    assert topic.verify().ok


def test_retention_goes_on_beside_it_and_says_so_where_nothing_is_compacted(
    spark: SparkSession, logs: LogDir, caplog: pytest.LogCaptureFixture
) -> None:
    """The last file of a partition has to be read, as its last row keeps the log end: the others lose what they are to lose."""
    topic = logs.create_topic("deleted", partitions=3, config={"cleanup.policy": "delete", "retention.ms": "1h"})
    at(T0 - DAY_MS, topic).append(_written(spark, 0))
    at(T0 - DAY_MS, topic).roll()
    at(T0, topic).append(rows("b=1", partition=0))
    spoilt = _Spoilt(spark, logs, topic)
    topic = spoilt.topic
    with caplog.at_level(logging.ERROR), pytest.raises(CorruptLog, match=f"{spoilt.file.name} cannot be read"):
        at(T0, topic).apply_retention()
    assert sum("partition uncleanable" in one.getMessage() for one in caplog.records) == 1
    assert [len(one.segments) for one in topic.describe().partitions] == [1, 1, 1]
    assert (history(topic, 0), history(topic, 2)) == (["2 b=1"], [])
    report = at(T0, topic).explain()[1]
    assert report.obstacle == "cleanup.policy does not include compact"
    assert spoilt.file.name in str(report.uncleanable_reason)
    spoilt.mend()
    at(T0, topic).apply_retention()
    assert history(topic, 1) == []


def test_a_cache_of_producers_that_cannot_be_written_is_no_failure(tmp_path: Path) -> None:
    """Their states are read from the log then: rows that come again are known, and a gap is refused."""
    topic = LogDir(tmp_path).create_topic("fruit")
    Path(topic.log.paths.producers).write_text("a file in the place of the folder", encoding="utf-8")
    duplicates = list[int]()
    for sequence in (0, 1, 0, 1):
        row = {"key": "a", "value": "1", "producer_id": 7, "producer_epoch": 0, "sequence": sequence}
        duplicates.append(LogDir(tmp_path).topic("fruit").append([row]).duplicates)
    assert duplicates == [0, 0, 1, 1]
    assert Path(topic.log.paths.producers).is_file()
