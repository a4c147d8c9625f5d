"""Retention on a real log: segments that go whole, log starts that hold, files and decisions that do not pile up."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F

from lastword import LogDir, clock
from lastword.compaction.errors import CorruptLog, InvalidRecords, OffsetOutOfRange, UserError
from lastword.storage.append.dead_letters import expire_dead_letters
from lastword.storage.delta import crash_points
from lastword.storage.delta.crash_points import CrashPoint
from lastword.storage.delta.history import commits_since
from lastword.storage.ledger.decisions import Decision, Kind
from lastword.storage.log import topic_log, unrecorded
from lastword.storage.log.topic_log import TopicLog
from lastword.storage.log.upkeep import compact_ledger, vacuum
from tests.change_events import append, change, rows_of, topic_in
from tests.clocks import at
from tests.other_processes import in_another_process
from tests.pictures import DAY_MS, HOUR_MS, T0, delete_records, history, log, rows, segments

if TYPE_CHECKING:
    from typing import Any

    from pyspark.sql import SparkSession

    from lastword import SparkTopic
    from lastword.storage.delta.history import Commit

_DELETE = {"cleanup.policy": "delete", "retention.ms": "1h"}


def _segments(topic: SparkTopic, spark: SparkSession, *stamps: int, partition: int = 0) -> None:
    """Append two records into a segment of its own for each record time."""
    for number, stamp in enumerate(stamps):
        at(T0, topic).append(rows(f"k{number}=1 k{number}=2", partition=partition, timestamp_ms=stamp))
        at(T0, topic).roll(partition)


def _offsets(topic: SparkTopic, partition: int = 0) -> list[int]:
    return [int(line.split()[0]) for line in log(topic, partition)]


def test_old_segments_go_whole_from_the_oldest_and_a_future_one_blocks(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """By time, strictly older; by size, never below retention.bytes; both at once in Kafka's order; one topic for each."""
    by_time = logs.create_topic("by-time", partitions=3, config=_DELETE)
    _segments(by_time, spark, T0 - 2, T0 - 1, T0 + 1)
    _segments(by_time, spark, T0 + 5 * HOUR_MS, T0 - 1, partition=1)
    assert at(T0 + HOUR_MS - 2, by_time).apply_retention() == {}
    gone = at(T0 + HOUR_MS, by_time).apply_retention()
    assert {partition: [one.base_offset for one, _ in deletion.segments] for partition, deletion in gone.items()} == {0: [0, 2]}
    assert (_offsets(by_time), _offsets(by_time, 1)) == ([4, 5], [0, 1, 2, 3])
    assert [one.log_start_offset for one in by_time.describe().partitions] == [4, 0, 0]
    assert at(T0 + DAY_MS, by_time).apply_retention().keys() == {0, 1}
    assert (_offsets(by_time), _offsets(by_time, 1)) == ([], [])
    assert at(T0 + DAY_MS, by_time).append(rows("a=1", partition=0)).ranges[0].first_offset == 6, "no offset is given twice"
    assert (segments(by_time)[-1], _offsets(by_time)) == ((6, 6, 6), [6])
    assert list(at(T0 + DAY_MS + 1, by_time).apply_retention()) == [0], "an EMPTY row that no longer keeps the log end"
    assert at(T0 + 2 * HOUR_MS, by_time).apply_retention() == {}, "one that does is not deletable"
    assert [one.record_count for one in by_time.describe().partitions] == [1, 1, 0]

    by_size = logs.create_topic("by-size", config={"cleanup.policy": "delete", "retention.ms": -1})
    _segments(by_size, spark, T0, T0, T0)
    sizes = [one.size_bytes for one in by_size.describe().partitions[0].segments]
    by_size.alter_config({"retention.bytes": sum(sizes) - sizes[0]})
    at(T0, by_size).apply_retention()
    assert _offsets(by_size) == [2, 3, 4, 5], "what is left is exactly retention.bytes"
    by_size.alter_config({"retention.bytes": sizes[1] + sizes[2] - 1})
    at(T0, by_size).apply_retention()
    assert _offsets(by_size) == [2, 3, 4, 5], "one more would leave less"


def test_compact_delete_does_both_and_a_closed_old_segment_goes_cleaned_or_not(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """The 72 hours are those of docs/semantics.md#B.11."""
    topic = logs.create_topic(
        "both", partitions=2, config={"cleanup.policy": "compact,delete", "retention.ms": "72h", "min.cleanable.dirty.ratio": 0}
    )
    for partition in range(2):
        _segments(topic, spark, T0, T0 + HOUR_MS, partition=partition)
    topic.pause(1)
    at(T0, topic).clean()
    topic.resume(1)
    assert (_offsets(topic), _offsets(topic, 1)) == ([1, 3], [0, 1, 2, 3])
    at(T0 + 72 * HOUR_MS + 1, topic).apply_retention()
    assert (_offsets(topic), _offsets(topic, 1)) == ([1, 3], [2, 3]), "cleaned into one segment, partition 0 is an hour younger"
    at(T0 + 73 * HOUR_MS + 1, topic).apply_retention()
    assert (_offsets(topic), _offsets(topic, 1)) == ([], [])


def test_deleted_records_never_come_back(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """Not for readers of older versions, not by a crash between decision and commit, not by a cleaning."""
    topic = logs.create_topic("purged", config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})
    at(T0, topic).append(rows("a=1 b=1 a=2"))
    at(T0, topic).roll()
    at(T0, topic).append(rows("a=3 c=1"))
    at(T0, topic).roll()
    before = topic.log.snapshot().version
    for offset in (-2, 6):
        with pytest.raises(OffsetOutOfRange, match=f"offset {offset}; allowed is 0 to 5, or -1 for the log end"):
            delete_records(topic, {0: offset})
    with pytest.raises(UserError, match="no partition 1: allowed is 0 to 0"):
        delete_records(topic, {1: 0})
    assert delete_records(at(T0, topic), {0: 2}) == {0: 2}
    assert (log(topic), topic.records(as_of=before).count()) == (["2 a=2", "3 a=3", "4 c=1"], 3)

    def dying(point: CrashPoint) -> None:
        if point is CrashPoint.LOG_START_DECIDED:
            raise KeyboardInterrupt

    with crash_points.hook(dying), pytest.raises(KeyboardInterrupt):
        delete_records(at(T0, topic), {0: 3})
    assert log(topic) == ["3 a=3", "4 c=1"], "the decision holds"
    topic = LogDir(spark, logs.location).topic("purged")
    assert list(at(T0, topic).apply_retention()) == [0]
    assert segments(topic) == [(3, 3, 4)]
    at(T0, topic).clean()
    assert history(topic) == ["3 a=3", "4 c=1"]
    assert delete_records(at(T0, topic), {0: -1}) == {0: 5}
    assert (log(topic), topic.append(rows("d=1")).ranges[0].first_offset) == ([], 5)
    assert delete_records(at(T0, topic), {0: 1}) == {0: 5}, "the log start never falls"


def test_what_was_deleted_is_not_joined_with_what_stays_when_cleaning_comes_first(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """A crash after the decision, or a round in hand: the segment below the log start waits for retention, which takes it whole.

    ```
     clean     0 a=1 b=1     log start 2
     clean     2 c=1 d=1
     dirty     4 c=2                          cleaned: 3 d=1 4 c=2 in one segment, and not a=1 b=1 with them
    ```
    """
    topic = logs.create_topic("left-to-retention", config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})
    for text in ("a=1 b=1", "c=1 d=1"):
        at(T0, topic).append(rows(text))
        at(T0, topic).roll()
    topic.alter_config({"segment.bytes": 1_024})
    at(T0, topic).clean()
    topic.alter_config({"segment.bytes": None})
    at(T0, topic).append(rows("c=2"))
    at(T0, topic).roll()
    with logs.cleaner.locks.hold(topic.log):  # a round
        delete_records(at(T0, topic), {0: 2})
    at(T0, topic).clean()
    files = topic.log.snapshot().files
    assert sorted(zip(files.first_offset.tolist(), files.last_offset.tolist(), strict=True)) == [(0, 1), (3, 4)]
    assert list(at(T0, topic).apply_retention()) == [0]
    assert (history(topic), topic.log.snapshot().files.first_offset.tolist()) == (["3 d=1", "4 c=2"], [3])
    assert topic.verify().problems == ()


def test_a_restore_takes_a_log_start_back_before_retention_goes_by_it(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """Also on a log of which nothing was ever cleaned or removed; and its segments, which end below that log start, stay."""
    topic = logs.create_topic("fruit", config={"cleanup.policy": "delete", "retention.ms": -1})
    version = at(T0, topic).append(rows("lime=1")).table_version
    at(T0, topic).append(rows("kiwi=1"))
    delete_records(at(T0, topic), {0: 1})
    assert history(topic) == ["1 kiwi=1"]
    spark.sql(f"RESTORE delta.`{topic.log.paths.log}` TO VERSION AS OF {version}")
    assert history(topic) == ["0 lime=1"]

    assert at(T0, topic).apply_retention() == {}
    at(T0, topic).append(rows("plum=1"))
    assert at(T0, topic).apply_retention() == {}
    assert history(topic) == ["0 lime=1", "1 plum=1"]
    assert topic.verify().ok


def test_delete_records_right_after_a_restore_is_not_dropped_for_a_log_start_that_it_made_void(
    spark: SparkSession, logs: LogDir[SparkTopic]
) -> None:
    """The old log start is higher than the log end now."""
    topic = logs.create_topic("fruit", config={"cleanup.policy": "delete", "retention.ms": -1})
    version = at(T0, topic).append(rows("lime=1 kiwi=1 fig=1")).table_version
    at(T0, topic).append(rows("plum=1"))
    assert delete_records(at(T0, topic), {0: -1}) == {0: 4}
    spark.sql(f"RESTORE delta.`{topic.log.paths.log}` TO VERSION AS OF {version}")
    assert delete_records(at(T0, topic), {0: 2}) == {0: 2}
    assert history(topic) == ["2 fig=1"]


def test_retention_keeps_the_records_of_an_append_that_is_in_flight(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """The append got its offsets in the active segment before the records there were deleted. The row that keeps the log end stays.

    ```
     planned   segment 0: 0 1 2      + 3 4 into segment 0, slice 3
     deleted   segment 0:     2                         log start 3
     then      segment 0:     2 3 4
    ```
    """
    topic = logs.create_topic("fruit", config={"cleanup.policy": "compact,delete", "retention.ms": -1})
    at(T0, topic).append(rows("grape=1 lime=1 kiwi=1"))
    beside = LogDir(spark, logs.location).topic("fruit")

    deleted: list[dict[int, int]] = []

    def delete(now: CrashPoint) -> None:
        if now is CrashPoint.APPEND_PLANNED and not deleted:
            deleted.append(delete_records(at(T0, beside), {0: -1}))

    with crash_points.hook(delete):
        at(T0, topic).append(rows("fig=1 fig=2"))
    assert deleted == [{0: 3}]
    at(T0, topic).apply_retention()
    assert history(topic) == ["3 fig=1", "4 fig=2"]
    assert at(T0, topic).append(rows("plum=1")).ranges[0].first_offset == 5
    at(T0, topic).roll()
    at(T0, topic).clean(force=True)
    assert history(topic) == ["4 fig=2", "5 plum=1"]
    assert topic.verify().ok


def test_delete_records_leaves_the_swap_to_a_cleaning_that_is_in_hand(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """The decision holds at once; segments go with the next retention, or hours of a throttled round would be for nothing."""
    topic = logs.create_topic("fruit", partitions=2, config={"cleanup.policy": "compact"})
    at(T0, topic).append(rows("lime=1", partition=1))
    at(T0, topic).roll()
    version = topic.log.snapshot().version
    with logs.cleaner.locks.hold(topic.log):  # a round
        assert delete_records(at(T0, topic), {1: -1}) == {1: 1}
        assert (topic.log.snapshot().version, history(topic, 1)) == (version, [])
    assert list(at(T0, topic).apply_retention()) == [1]


def test_a_restore_that_comes_after_the_look_back_is_seen_by_the_plan(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """Nobody has written it into the ledger when the snapshot is taken."""
    topic = logs.create_topic("fruit", config={"cleanup.policy": "delete", "retention.ms": -1})
    version = at(T0, topic).append(rows("lime=1")).table_version
    at(T0, topic).roll()
    at(T0, topic).append(rows("kiwi=1"))
    topic.log.ledger.append([Decision(kind=Kind.START, time_ms=T0, partition=0, offset=1, table_version=topic.log.snapshot().version)])
    restores = [f"RESTORE delta.`{topic.log.paths.log}` TO VERSION AS OF {version}"]

    class Overtaken(TopicLog):
        def sync_ledger_with_history(self, **options: Any) -> None:
            super().sync_ledger_with_history(**options)
            if restores:
                spark.sql(restores.pop())

    assert at(T0, in_another_process(logs, "fruit", kind=Overtaken)).apply_retention() == {}
    assert restores == []
    assert history(topic) == ["0 lime=1"]


def test_the_history_of_the_log_is_read_once_and_how_far_is_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the log is never cleaned: another process continues where the history was read to."""
    topic = LogDir(tmp_path).create_topic("fruit", config={"cleanup.policy": "delete", "retention.ms": -1})
    read: list[int] = []

    def counted(table: DeltaTable, since_version: int, until_version: int) -> list[Commit]:
        found = commits_since(table, since_version, until_version)
        read.extend(one.version for one in found)
        return found

    for _ in range(2):
        at(T0, topic).append(rows("lime=1"))
    topic = LogDir(tmp_path).topic("fruit")
    for module in (topic_log, unrecorded):
        monkeypatch.setattr(module, "commits_since", counted)
    for _ in range(3):
        topic.log.at()
    topic.log.sync_ledger_with_history(looked_commits=3)
    assert (read, topic.log.decisions().looked_at_version) == ([2, 1], 0)
    newest = at(T0, topic).append(rows("lime=1")).table_version
    topic.log.sync_ledger_with_history(looked_commits=3)
    assert (read, topic.log.decisions().looked_at_version) == ([2, 1, 3, 3], newest)
    LogDir(tmp_path).topic("fruit").log.sync_ledger_with_history(looked_commits=3)
    assert read == [2, 1, 3, 3]


def test_many_small_files_of_a_closed_segment_become_one_without_changing_a_record(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """For topics that the cleaner does not touch; a Delta stream that tails the log sees none of it."""
    topic = logs.create_topic("small", partitions=2, config={"cleanup.policy": "delete", "retention.ms": -1})
    for number in range(6):
        both = [rows(f"a={number} a=∅", partition=partition, timestamp_ms=T0 + number) for partition in range(2)]
        at(T0, topic).append(pa.concat_tables(both))
    at(T0, topic).roll(0)
    full = topic.records().drop("partition").collect()
    version = topic.log.snapshot().version
    assert logs.cleaner.merge(topic.log, spark, now_ms=T0) == 1
    assert [len(one.segments[0].slices) for one in topic.describe().partitions] == [1, 6]
    assert sorted(topic.records().drop("partition").collect()) == sorted(full)
    assert logs.cleaner.merge(topic.log, spark, now_ms=T0) == 0
    at(T0, topic).append(rows("z=1"))
    tail = spark.readStream.format("delta").option("startingVersion", version + 1).load(topic.log.paths.log)
    query = tail.writeStream.format("memory").queryName("tail").trigger(availableNow=True).start()
    query.awaitTermination()
    assert [bytes(row["key"]) for row in spark.table("tail").collect()] == [b"z"]


def test_nothing_piles_up_over_months(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """Files leave by VACUUM, refusals and decisions by their own retention; what the ledger says stays the same.

    A pause that was resumed goes at once; receipts and rolls, which a RESTORE may make void, stay for 7 days.
    """
    topic = logs.create_topic("tidy", config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})
    for number in range(3):
        at(T0 + number * DAY_MS, topic).append(rows(f"a={number} a=∅ b={number}"))
        at(T0, topic).roll()
        at(T0 + number * DAY_MS, topic).clean()
    at(T0, topic).pause(0)
    at(T0, topic).resume(0)
    today, shown = topic.log.decisions(), history(topic)
    assert compact_ledger(topic.log, now_ms=T0, id_expiration_ms=7 * DAY_MS, least_files=1) == 1, "the pause"
    rows_before = len(topic.log.ledger.rows())
    assert compact_ledger(topic.log, now_ms=T0 + 30 * DAY_MS, id_expiration_ms=7 * DAY_MS, least_files=1) == 4
    assert len(topic.log.ledger.rows()) == rows_before - 4
    after = LogDir(spark, logs.location).topic("tidy").log.decisions()
    for name in ("topic_id", "partitions", "overrides", "pauses"):
        assert getattr(after, name) == getattr(today, name), name
    assert after.closed_offset(0, 9) == today.closed_offset(0, 9) == 9
    assert (after.cleaner_checkpoint(0), history(topic)) == (today.cleaner_checkpoint(0), shown)
    anew = LogDir(spark, logs.location).topic("tidy").log
    anew.sync_ledger_with_history()
    assert anew.decisions().cleaner_checkpoint(0) == today.cleaner_checkpoint(0), "receipts that went are not missed"
    assert anew.decisions().cleanings == after.cleanings
    at(T0, topic).append(rows("c=1"))
    assert at(T0 + 30 * DAY_MS, topic).roll() == {0: 10}
    assert topic.log.decisions().closed_offset(0, 10) == 10, "and goes on"

    files = set(Path(topic.log.paths.log).glob("partition=*/**/*.parquet"))
    vacuum(topic.log, now_ms=T0 + 30 * DAY_MS)
    assert set(Path(topic.log.paths.log).glob("partition=*/**/*.parquet")) == files, "nothing is a day old"

    letters = spark.range(2).select(
        F.timestamp_millis(F.lit(T0) + F.col("id") * F.lit(DAY_MS)).alias("refused_at"), F.lit("x").alias("source")
    )
    letters.write.format("delta").mode("append").save(topic.log.paths.dead_letters)
    letters_of = topic.log.paths.dead_letters, topic.log.storage_options
    assert expire_dead_letters(*letters_of, before_ms=T0) == 0
    assert topic.dead_letters().count() == 2
    assert expire_dead_letters(*letters_of, before_ms=T0 + 1) == 1
    assert topic.dead_letters().count() == 1


def test_vacuum_clears_what_a_crash_left_and_goes_on_after_a_gap_in_the_commits(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """A full VACUUM takes files that no commit named, once they are a day old."""
    topic = logs.create_topic("gaps")
    for text in ("a=1", "a=2", "a=3"):
        at(T0, topic).append(rows(text, timestamp_ms=T0))
    folder = Path(topic.log.paths.log)
    (named,) = sorted(folder.glob("partition=0/**/*.parquet"))[:1]
    old, young = named.with_name("part-00000-old.parquet"), named.with_name("part-00000-young.parquet")
    for orphan in (old, young):
        shutil.copyfile(named, orphan)
    two_days_ago = time.time() - 2 * DAY_MS / 1000
    os.utime(old, (two_days_ago, two_days_ago))
    vacuum(topic.log, now_ms=clock.now_ms())
    assert old.exists(), "a lite VACUUM knows of no such file"
    vacuum(topic.log, now_ms=clock.now_ms(), orphans=True)
    assert (old.exists(), young.exists(), named.exists()) == (False, True, True)

    shutil.copyfile(named, old)
    os.utime(old, (two_days_ago, two_days_ago))
    DeltaTable(topic.log.paths.log).create_checkpoint()
    (folder / "_delta_log" / f"{0:020}.json").unlink()
    for commit in (folder / "_delta_log").glob("*.json"):
        os.utime(commit, (two_days_ago, two_days_ago))
    vacuum(topic.log, now_ms=clock.now_ms())
    assert old.exists()
    vacuum(topic.log, now_ms=clock.now_ms(), orphans=True)
    assert (old.exists(), young.exists(), named.exists()) == (False, True, True)
    assert history(topic) == ["0 a=1", "1 a=2", "2 a=3"]


def test_what_a_source_sent_before_records_that_are_gone_has_no_known_order(tmp_path: Path) -> None:
    """The highest position that went with them is in the ledger; what comes above it, or from another source, is taken."""
    topic = topic_in(tmp_path, cleanup_policy="compact,delete", retention_ms="-1")
    append(topic, change("c", 1, 10, {"id": 1}), change("u", 1, 20, {"id": 1, "n": 2}))
    append(topic, change("c", 2, 5, {"id": 2}))
    topic.delete_records({0: -1})
    assert topic.latest().num_rows == 0
    again = LogDir(tmp_path).topic("t")
    with pytest.raises(InvalidRecords, match=r"2 × unknown_order: .*cleaning has removed deletions up to @postgresql"):
        append(again, change("u", 1, 19, {"id": 1, "n": 1}), change("c", 3, 15, {"id": 3}))
    other = {"connector": "postgresql", "name": "other", "lsn": 1}
    append(again, change("u", 1, 21, {"id": 1, "n": 3}), change("c", 4, other, {"id": 4}))
    assert rows_of(again) == {'{"id":1}': {"id": 1, "n": 3}, '{"id":4}': {"id": 4}}


def test_a_last_row_that_its_file_does_not_hold_stops_retention(tmp_path: Path) -> None:
    """Without it the next append would give its offset again; the file is named, and no log start is decided."""
    topic = LogDir(tmp_path).create_topic("fruit", config=_DELETE)
    at(T0, topic).append(rows("lime=1 kiwi=1", timestamp_ms=T0 - DAY_MS))
    [path] = topic.log.snapshot().files.path.tolist()
    file = Path(topic.log.paths.log, path)
    pq.write_table(pq.ParquetFile(file).read().slice(0, 1), file)
    with pytest.raises(CorruptLog, match=f"partition 0: {path} holds 0 rows of offset 1, its last one"):
        at(T0 + DAY_MS, topic).apply_retention()
    assert topic.log.decisions().log_start_offset(0) == 0


def test_a_mirror_deletes_nothing_of_its_own(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """Its records are the source's."""
    topic = logs.create_topic("mirror")
    topic.log.ledger.append([Decision(kind=Kind.MIRROR, time_ms=T0, details={"query": "q", "source": "orders", "identity": "1"})])
    with pytest.raises(UserError, match="mirrors orders: delete records there"):
        delete_records(topic, {0: 0})
