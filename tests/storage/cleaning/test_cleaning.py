"""Cleaning on a real log: the worked examples (docs/semantics.md#B), row by row, horizons included."""

from __future__ import annotations

import logging
import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from delta.tables import DeltaTable
from pyspark.sql import functions as F

from lastword import LogDir
from lastword.compaction.errors import CommitConflict, CorruptLog, UserError
from lastword.compaction.moments import instant
from lastword.compaction.planning.planner import Obstacle
from lastword.compaction.planning.receipt import CleaningReceipt
from lastword.storage.cleaning.cleaning import Cleaning
from lastword.storage.cleaning.offset_map import PLAIN_COLUMNS
from lastword.storage.delta import crash_points
from lastword.storage.delta.crash_points import CrashPoint
from lastword.storage.files.data_reader import row_groups
from lastword.storage.files.schema import DATA_SCHEMA
from lastword.storage.ledger.decisions import Decision, Kind
from lastword.streaming.cleaning.cleaner import Cleaner, report_cleaning
from lastword.streaming.cleaning.maintenance_locks import MaintenanceLocks
from tests.clocks import at
from tests.divisions import DIVISIONS
from tests.pictures import DAY_MS, HOUR_MS, T0, delete_records, frame, history, latest, rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    from lastword import Topic

_COMPACT = {"cleanup.policy": "compact"}
_EAGER = {**_COMPACT, "min.cleanable.dirty.ratio": 0}


def _closed(topic: Topic, *frames: Any, now_ms: int = T0) -> None:
    """Append each frame into a segment of its own, all of them closed."""
    for given in frames:
        at(now_ms, topic).append(given)
        at(now_ms, topic).roll()


def test_the_fruit_prices_come_out_as_the_worked_example_says(spark: SparkSession, logs: LogDir) -> None:
    """Two cleanings, a week apart: superseded records go at once, the tombstone when its horizon has passed.

    They are docs/semantics.md#B.4 and docs/semantics.md#B.5.
    """
    topic = logs.create_topic("fruit-prices", config=_COMPACT)
    _closed(topic, rows("grape=1 lime=1 grape=∅ lime=2"))
    at(T0, topic).append(rows("lime=3"))
    [receipt] = at(T0, topic).clean()
    assert history(topic) == [f"2 grape=∅ @{DAY_MS}", "3 lime=2", "4 lime=3"]
    assert (receipt.end_offset, dict(receipt.removed), receipt.map_entries) == (4, {"superseded": 2}, 2)
    assert (receipt.records_before, receipt.records_after, receipt.groups, receipt.emptied) == (4, 2, 1, 0)
    _closed(topic, rows("guava=1 guava=2 kiwi=1"))
    at(T0, topic).append(rows("guava=3"))
    assert latest(topic) == {"lime": "3", "guava": "3", "kiwi": "1"}
    [receipt] = at(T0 + 7 * DAY_MS - HOUR_MS, topic).clean()
    assert history(topic) == ["4 lime=3", "6 guava=2", "7 kiwi=1", "8 guava=3"]
    assert dict(receipt.removed) == {"superseded": 2, "expired_tombstone": 1}
    assert receipt.highest_removed_tombstone == 2
    assert latest(topic) == {"lime": "3", "guava": "3", "kiwi": "1"}
    assert [one.end_offset for one in topic.receipts()] == [4, 8]


@pytest.mark.parametrize("clean", ["a=1 b=1", "a=1 b=1 c=1 d=1 e=1"], ids=["no larger than the dirty one", "larger"])
def test_a_clean_section_gives_way_to_the_dirty_one(spark: SparkSession, logs: LogDir, clean: str) -> None:
    """Mapped along with the dirty range, or asked for each of its keys; the same key in another partition is another one."""
    topic = logs.create_topic(f"sections-{len(clean)}", partitions=2, config=_EAGER)
    _closed(topic, frame(spark, clean).withColumn("partition", F.lit(0)), frame(spark, "a=0").withColumn("partition", F.lit(1)))
    at(T0, topic).clean()
    _closed(topic, frame(spark, "a=2 b=∅ f=1").withColumn("partition", F.lit(0)))
    [receipt] = at(T0, topic).clean()
    kept = [one for one in enumerate(clean.split()) if one[1][0] not in "ab"]
    end = len(clean.split())
    assert history(topic, partition=0) == [f"{at} {one}" for at, one in kept] + [f"{end} a=2", f"{end + 1} b=∅ @{DAY_MS}", f"{end + 2} f=1"]
    assert history(topic, partition=1) == ["0 a=0"]
    assert (dict(receipt.removed), receipt.map_entries) == ({"superseded": 2}, 3)


def test_a_clean_section_that_was_not_clean_loses_every_older_record_of_a_key(spark: SparkSession, logs: LogDir) -> None:
    """A checkpoint in the ledger that says too much."""
    topic = logs.create_topic("boast", config=_EAGER)
    _closed(topic, rows("a=1 a=2 b=1"))
    said = {"first_dirty_offset": 0, "end_offset": 3, "removed": {}}
    version = topic.log.snapshot().version
    topic.log.ledger.append([Decision(kind=Kind.CLEAN, time_ms=T0, partition=0, offset=3, table_version=version, details=said)])
    _closed(topic, rows("a=3 c=1 d=1"))
    [receipt] = at(T0, topic).clean()
    assert receipt.first_dirty_offset == 3
    assert history(topic) == ["2 b=1", "3 a=3", "4 c=1", "5 d=1"]
    assert dict(receipt.removed) == {"superseded": 2}


def test_an_aborted_record_below_the_log_start_is_counted_once(spark: SparkSession, logs: LogDir) -> None:
    """The log start stands inside the transaction; the key of its records comes again.

    ```
      0 k=1 (aborted)  [ log start 1   1 a=1   2 k=2 (aborted)   3 ABORT   4 k=3   5 z=1
    ```
    """
    topic = logs.create_topic("start", config=_EAGER)
    txn = at(T0, topic).transaction("loader")
    at(T0, txn).append(rows("k=1"))
    at(T0, topic).append(rows("a=1"))
    at(T0, txn).append(rows("k=2"))
    delete_records(at(T0, topic), {0: 1})
    at(T0, txn).abort()
    _closed(topic, rows("k=3 z=1"))
    [receipt] = at(T0, topic).clean()
    assert receipt.removed == {"aborted": 2}
    assert receipt.records_after == receipt.records_before - 2 + receipt.emptied
    assert latest(topic) == {"a": "1", "k": "3", "z": "1"}
    assert topic.verify().ok


def _column_bytes(topic: Topic, columns: Sequence[str] = DATA_SCHEMA.names) -> list[int]:
    """Return what some columns of each file take, in the order of the log."""
    location, files = topic.log.paths.log, topic.log.snapshot().files.path
    return [sum(group.size_bytes for group in row_groups(location, {}, str(path), columns)) for path in files]


def test_slices_of_which_nothing_is_left_are_not_read_again(spark: SparkSession, logs: LogDir) -> None:
    """One segment of four micro-batches, the first and the third of them superseded."""
    topic = logs.create_topic("slices", config=_EAGER)
    for picture in ("a=1 b=1", "c=1 a=2", "b=2 a=3", "a=4 b=4"):
        at(T0, topic).append(rows(picture))
    at(T0, topic).roll()
    narrow, whole = _column_bytes(topic, PLAIN_COLUMNS), _column_bytes(topic)
    [receipt] = at(T0, topic).clean()
    assert history(topic) == ["2 c=1", "6 a=4", "7 b=4"]
    assert (receipt.indexed_bytes, receipt.read_bytes) == (sum(narrow), sum(narrow) + whole[1] + whole[3])


def test_segments_of_which_nothing_is_left_are_replaced_unread(spark: SparkSession, logs: LogDir) -> None:
    """A reload of everything supersedes whole segments, dirty ones and then clean ones; what one row is left of is read."""
    topic = logs.create_topic("reloaded", config=_EAGER)
    _closed(topic, rows("a=1 b=1"), rows("a=2 b=2 c=1"), rows("a=3 b=3"))
    narrow, whole = _column_bytes(topic, PLAIN_COLUMNS), _column_bytes(topic)
    [receipt] = at(T0, topic).clean()
    assert history(topic) == ["4 c=1", "5 a=3", "6 b=3"]
    assert (receipt.records_before, receipt.records_after, dict(receipt.removed)) == (7, 3, {"superseded": 4})
    assert (receipt.indexed_bytes, receipt.read_bytes) == (sum(narrow), sum(narrow) + sum(whole[1:]))
    _closed(topic, rows("c=2 a=4 b=4"))
    narrow, (_, dirty) = _column_bytes(topic, PLAIN_COLUMNS), _column_bytes(topic)
    [receipt] = at(T0, topic).clean()
    assert history(topic) == ["7 c=2", "8 a=4", "9 b=4"]
    assert receipt.read_bytes == sum(narrow) + dirty
    assert latest(topic) == {"a": "4", "b": "4", "c": "2"}


def test_the_users_and_the_letters_keep_their_newest_offsets(spark: SparkSession, logs: LogDir) -> None:
    """Two examples (docs/semantics.md#B.6, docs/semantics.md#B.8) as two partitions, with the offsets that they name."""
    topic = logs.create_topic("examples", partitions=2, config=_COMPACT)
    users = [(100, "user1", "a"), (101, "user2", "b"), (150, "user1", "c"), (175, "user3", None), (190, "user2", "d"), (195, "user1", "e")]
    letters = [(1, "A", "1"), (2, "B", "2"), (3, "A", "3"), (4, "C", "4"), (5, "A", "5")]
    drawn = [(0, *one) for one in users] + [(1, *one) for one in letters]
    _closed(topic, spark.createDataFrame(drawn, "partition int, offset bigint, key string, value string"))
    receipts = {one.partition: one for one in at(T0, topic).clean()}
    assert history(topic, 0) == [f"175 user3=∅ @{DAY_MS}", "190 user2=d", "195 user1=e"]
    assert history(topic, 1) == ["2 B=2", "4 C=4", "5 A=5"]
    assert receipts[0].records_after / receipts[0].records_before == 0.5


def test_a_tombstone_of_an_idle_partition_goes_at_its_horizon_and_not_before(spark: SparkSession, logs: LogDir) -> None:
    """Written at 0, cleaned at 1 h, delete.retention.ms 24 h: a round at 24 h keeps it, one at 25 h drops it."""
    topic = logs.create_topic("idle", config=_COMPACT)
    _closed(topic, rows("grape=1 grape=∅ kiwi=1"))
    at(T0 + HOUR_MS, topic).clean()
    stamped = [f"1 grape=∅ @{25 * HOUR_MS}", "2 kiwi=1"]
    assert history(topic) == stamped
    [report] = at(T0 + 24 * HOUR_MS, topic).explain()
    assert (report.eligible, report.obstacle, report.eligible_at_ms) == (False, "nothing cleanable", T0 + 25 * HOUR_MS)
    assert at(T0 + 24 * HOUR_MS, topic).clean() == []
    topic.alter_config({"delete.retention.ms": "100d"})
    [receipt] = at(T0 + 25 * HOUR_MS, topic).clean()
    assert (receipt.trigger, dict(receipt.removed)) == ("delete_horizon", {"expired_tombstone": 1})
    assert history(topic) == ["2 kiwi=1"], "a horizon is never stamped anew"


def test_markers_go_in_two_phases_and_an_active_producer_keeps_its_place(spark: SparkSession, logs: LogDir) -> None:
    """Aborted data goes at once; a marker is stamped when no data of its transaction is left, and goes when its horizon has passed."""
    topic = logs.create_topic("txn", config=_EAGER)
    with at(T0, topic).transaction("committed") as txn:
        at(T0, txn).append(rows("a=1 b=1"))
        at(T0, txn).commit()
    other = at(T0, topic).transaction("aborted")
    at(T0, other).append(rows("a=2 c=∅"))
    at(T0, other).abort()
    _closed(topic, rows("a=3"))
    at(T0, topic).append(rows("b=2"))
    assert history(topic) == ["0 a=1", "1 b=1", "2 COMMIT", "3 a=2", "4 c=∅", "5 ABORT", "6 a=3", "7 b=2"]
    [receipt] = at(T0, topic).clean()
    assert history(topic) == ["1 b=1", "2 COMMIT", "4 EMPTY", f"5 ABORT @{DAY_MS}", "6 a=3", "7 b=2"]
    assert (dict(receipt.removed), receipt.emptied) == ({"aborted": 2, "superseded": 1}, 1)
    at(T0, topic).roll()
    at(T0, topic).append(rows("z=1"))
    [receipt] = at(T0 + HOUR_MS, topic).clean()
    gone = ["1 EMPTY", f"2 COMMIT @{25 * HOUR_MS}", "4 EMPTY", f"5 ABORT @{DAY_MS}", "6 a=3", "7 b=2", "8 z=1"]
    assert history(topic) == gone, "b=1 is superseded, but its producer may come again"
    [receipt] = at(T0 + 25 * HOUR_MS, topic).clean()
    assert history(topic) == ["6 a=3", "7 b=2", "8 z=1"], "producers expired, horizons passed"
    assert dict(receipt.removed) == {"empty": 2, "expired_marker": 2}
    assert latest(topic) == {"a": "3", "b": "2", "z": "1"}


def test_a_restart_after_cleaning_finds_the_same_producers(spark: SparkSession, logs: LogDir) -> None:
    """Sequences and epochs live on in EMPTY rows: a duplicate is known, the next sequence is accepted."""
    topic = logs.create_topic("idempotent", config=_EAGER)

    def send(*sequences: int, key: str = "k") -> Any:
        drawn = [(key, "v", 7, 0, sequence) for sequence in sequences]
        frame = spark.createDataFrame(drawn, "key string, value string, producer_id bigint, producer_epoch int, sequence int")
        return at(T0, topic).append(frame)

    send(0, 1, 2)
    _closed(topic, rows("k=new"))
    at(T0, topic).clean()
    assert history(topic) == ["2 EMPTY", "3 k=new"]
    shutil.rmtree(Path(topic.log.paths.producers), ignore_errors=True)
    topic = LogDir(spark, logs.location).topic("idempotent")
    assert send(1, 2).duplicates == 2
    assert send(3, key="j").record_count == 1
    _closed(topic)
    at(T0, topic).roll()
    at(T0, topic).clean()
    assert history(topic) == ["3 k=new", "4 j=v"], "a newer record of the producer releases the place"


def test_keyless_records_below_a_log_start_inside_a_segment_are_counted(spark: SparkSession, logs: LogDir) -> None:
    """They go with the segment that is written again, though what lies below the log start is not mapped."""
    topic = logs.create_topic("middle", config={**_EAGER, "cleanup.policy": "delete"})
    frame = spark.createDataFrame([(None, "1"), ("a", "1"), (None, "2"), (None, "3"), ("a", "2"), ("b", "1")], "key string, value string")
    _closed(topic, frame)
    delete_records(at(T0, topic), {0: 3})
    topic.alter_config(_EAGER)
    [foreseen] = at(T0, topic).preview_clean()
    [receipt] = at(T0, topic).clean()
    assert history(topic) == ["4 a=2", "5 b=1"]
    assert (dict(receipt.removed), receipt.emptied) == ({"keyless": 3, "superseded": 1}, 0)
    assert (foreseen.removed, foreseen.records_after) == (receipt.removed, receipt.records_after)


def test_keyless_records_of_an_older_policy_are_dropped_and_counted(spark: SparkSession, logs: LogDir) -> None:
    """Delete → compact on a live topic; back again, the cleaner leaves it alone. The last one stays as an EMPTY row: it holds the end."""
    topic = logs.create_topic("policy", config={"cleanup.policy": "delete"})
    frame = spark.createDataFrame([("a", "1"), (None, "lost"), ("a", "2"), (None, "last")], "key string, value string")
    _closed(topic, frame)
    [report] = at(T0, topic).explain()
    assert report.obstacle == "cleanup.policy does not include compact"
    assert at(T0, topic).clean() == []
    topic.alter_config({"cleanup.policy": "compact"})
    [foreseen] = at(T0, topic).preview_clean()
    [receipt] = at(T0, topic).clean()
    assert (history(topic), dict(receipt.removed)) == (["2 a=2", "3 EMPTY"], {"keyless": 2, "superseded": 1})
    assert (foreseen.removed, foreseen.emptied, foreseen.records_after) == (receipt.removed, 1, 2)
    assert at(T0, topic).append(rows("b=1")).ranges[0].first_offset == 4
    topic.alter_config({"cleanup.policy": "delete"})
    at(T0, topic).roll()
    assert at(T0, topic).clean(force=True) == []


def test_what_holds_the_cleaner_back_is_named(spark: SparkSession, logs: LogDir) -> None:
    """Last stable offset in mid-segment, a young segment before old ones, the active segment, the ratio: four partitions."""
    topic = logs.create_topic("bounds", partitions=4, config={**_COMPACT, "min.compaction.lag.ms": "1h", "min.cleanable.dirty.ratio": 0.5})
    old, young = T0 - 2 * HOUR_MS, T0 - HOUR_MS + 1

    def both(partition: int, timestamp_ms: int, text: str = "a=1 a=2") -> Any:
        return rows(text, partition=partition, timestamp_ms=timestamp_ms)

    _closed(topic, pa.concat_tables([both(0, old, "a=1 a=2 a=3"), both(1, old), both(3, old)]))
    held = at(T0, topic).transaction("loader")
    at(T0, held).append(rows("b=1", partition=0))
    at(T0, topic).append(pa.concat_tables([both(0, old), both(1, young)]))
    at(T0, topic).roll()
    _closed(topic, both(1, old))
    at(T0, topic).append(both(2, old))
    reports = {one.partition: one for one in at(T0, topic).explain()}
    assert (reports[0].bound, reports[0].first_uncleanable_offset, reports[0].eligible) == ("last stable offset", 3, True)
    assert reports[0].bound_detail == f"open transaction of producer 0 (loader), begun {instant(T0)}, since offset 3"
    assert (reports[1].bound, reports[1].first_uncleanable_offset) == ("min.compaction.lag.ms", 2)
    assert reports[1].bound_detail == f"segment 2 is younger than min.compaction.lag.ms = {HOUR_MS}, until {instant(T0 + 1)}"
    assert (reports[2].bound, reports[2].obstacle) == ("active segment", "nothing cleanable")
    assert sorted(one.partition for one in at(T0, topic).clean()) == [0, 1, 3]
    assert history(topic, 0)[0] == "2 a=3"
    assert history(topic, 1) == ["1 a=2", "2 a=1", "3 a=2", "4 a=1", "5 a=2"], "the young segment holds back the old one after it"
    assert at(T0 + 1, topic).clean()[0].end_offset == 6, "at exactly the lag it is cleanable"
    assert history(topic, 1) == ["5 a=2"]
    at(T0, held).abort()


def test_pauses_are_counted_and_a_paused_partition_is_left_alone(spark: SparkSession, logs: LogDir) -> None:
    """Two pauses need two resumes; retention is paused too."""
    topic = logs.create_topic("paused", partitions=2, config={"cleanup.policy": "compact,delete", "retention.ms": "1h"})
    _closed(topic, pa.concat_tables([rows("a=1 a=2", partition=partition, timestamp_ms=T0) for partition in (0, 1)]))
    assert topic.pause(0) == {0: 1}
    assert topic.pause() == {0: 2, 1: 1}
    assert topic.resume(1) == {1: 0}
    assert [one.partition for one in at(T0, topic).clean()] == [1]
    assert next(one.obstacle for one in at(T0, topic).explain()) == "paused"
    assert list(at(T0 + 2 * HOUR_MS, topic).apply_retention()) == [1]
    assert topic.resume() == {0: 1}
    assert topic.resume() == {0: 0}
    with pytest.raises(UserError, match="nothing is paused"):
        topic.resume()
    assert list(at(T0 + 2 * HOUR_MS, topic).apply_retention()) == [0]
    assert (history(topic, 0), history(topic, 1)) == ([], []), "the EMPTY rows that keep the log end lie below the log start"
    assert [one.log_end_offset for one in topic.describe().partitions] == [2, 2]


def test_a_stale_plan_is_refused_and_changes_nothing(spark: SparkSession, logs: LogDir) -> None:
    """Executed after another round's swap it would bring removed records back: the compare-and-set does not let it."""
    topic = logs.create_topic("stale", config=_COMPACT)
    _closed(topic, rows("a=1 a=2 b=1"))
    plan, state = logs.cleaner.plan(topic.log, now_ms=T0)
    at(T0, topic).clean()
    delete_records(at(T0, topic), {0: 2})
    cleaned = history(topic)
    with pytest.raises(CommitConflict, match="nothing of this one was written"):
        Cleaning(state, None, plan, slots=100).run()
    assert history(topic) == cleaned == ["2 b=1"]
    assert len(topic.receipts()) == 1


def test_a_plan_that_a_restore_overtook_is_refused(spark: SparkSession, logs: LogDir) -> None:
    """It would bring back what was truncated."""
    topic = logs.create_topic("truncated", config=_COMPACT)
    _closed(topic, rows("a=1 a=2"))
    version = topic.log.snapshot().version
    _closed(topic, rows("b=1 a=3"))
    plan, state = logs.cleaner.plan(topic.log, now_ms=T0)
    DeltaTable.forPath(spark, topic.log.paths.log).restoreToVersion(version)
    with pytest.raises(CommitConflict, match="nothing of this one was written"):
        Cleaning(state, None, plan, slots=100).run()
    assert history(topic) == ["0 a=1", "1 a=2"]


def test_one_poisoned_partition_is_quarantined_and_the_others_go_on(spark: SparkSession, logs: LogDir) -> None:
    """A file that cannot be read: that partition is uncleanable, says why, keeps its segments, and comes back by force.

    It is the newest and the largest, of which one would ask what records take. Appends go on, too.
    """
    topic = logs.create_topic("poison", partitions=3, config={"cleanup.policy": "compact,delete", "retention.ms": "1h"})
    frames = {0: "a=1 a=2", 2: "a=1 a=2", 1: "a=1 " * 39 + "a=2"}
    _closed(topic, *(rows(frame, partition=partition, timestamp_ms=T0) for partition, frame in frames.items()))
    [file] = Path(topic.log.paths.log).glob("partition=1/**/*.parquet")
    good = file.read_bytes()
    file.write_bytes(b"PAR1" + b"\0" * (len(good) - 8) + b"PAR1")
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    assert sorted(one.partition for one in at(T0, topic).clean()) == [0, 2]
    at(T0, topic).append(rows("b=1", partition=0))
    report = at(T0, topic).explain()[1]
    assert (report.obstacle, at(T0, topic).clean()) == ("uncleanable after a failure", [])
    assert report.uncleanable_reason
    with pytest.raises(CorruptLog, match=file.name):  # its last row is in the file
        at(T0 + 2 * HOUR_MS, topic).apply_retention()
    assert [history(topic, one) for one in (0, 2)] == [[], []]
    file.write_bytes(good)
    assert [one.partition for one in at(T0, topic).clean(force=True)] == [1]
    assert history(topic, 1) == ["39 a=2"]
    assert at(T0, topic).explain()[1].obstacle == "nothing cleanable"


def test_segments_that_lie_among_each_other_are_quarantined_and_the_others_go_on(spark: SparkSession, logs: LogDir) -> None:
    """No writer of ours makes such a log; what lies between would be replaced without being read."""
    topic = logs.create_topic("mixed-up", partitions=2, config=_COMPACT)
    for _ in range(3):
        at(T0, topic).append(pa.concat_tables([rows("a=1", partition=0), rows("a=1", partition=1)]))
    at(T0, topic).roll()
    DeltaTable.forPath(spark, topic.log.paths.log).update("partition = 0 AND slice = 1", {"segment": "1"})
    assert [one.partition for one in at(T0, topic).clean()] == [1]
    assert (len(history(topic, 0)), history(topic, 1)) == (3, ["2 a=1"])
    assert "segments [0, 1] with slices [0, 2, 1]" in str(at(T0, topic).explain()[0].uncleanable_reason)
    logs.delete_topic("mixed-up")


def test_restore_is_truncation_and_the_checkpoint_falls_back(spark: SparkSession, logs: LogDir) -> None:
    """Receipts whose swap the restored log does not contain are void; offsets past its end are given again."""
    topic = logs.create_topic("restored", config=_COMPACT)
    _closed(topic, rows("a=1 a=2"))
    at(T0, topic).clean()
    _closed(topic, rows("b=1 b=2"))
    version = topic.log.snapshot().version
    at(T0, topic).clean()
    delete_records(at(T0, topic), {0: 3})
    assert history(topic) == ["3 b=2"]
    DeltaTable.forPath(spark, topic.log.paths.log).restoreToVersion(version)
    topic = LogDir(spark, logs.location).topic("restored")
    assert [one.first_dirty_offset for one in at(T0, topic).explain()] == [2]
    assert history(topic) == ["1 a=2", "2 b=1", "3 b=2"]
    at(T0, topic).clean()
    assert history(topic) == ["1 a=2", "3 b=2"]
    assert [one.end_offset for one in topic.receipts()] == [2, 4]


def test_a_lost_ledger_costs_decisions_and_never_a_record(spark: SparkSession, logs: LogDir) -> None:
    """Created again over its log the topic has every record; receipts come back from the swaps themselves."""
    topic = logs.create_topic("lost", config=_COMPACT)
    _closed(topic, rows("a=1 a=2 b=∅"), rows("c=1"))
    at(T0, topic).clean()
    at(T0, topic).append(rows("d=1"))
    before = history(topic)
    shutil.rmtree(topic.log.paths.ledger)
    assert logs.topics() == []
    topic = logs.create_topic("lost", config=_COMPACT)
    assert history(topic) == before
    assert [one.first_dirty_offset for one in at(T0, topic).explain()] == [4]
    at(T0, topic).roll()
    at(T0, topic).clean()
    assert history(topic) == before


def test_a_lost_ledger_does_not_bring_back_a_checkpoint_over_what_only_its_log_start_hid(spark: SparkSession, logs: LogDir) -> None:
    """Records below the lost log start come back, as nobody knows of it any more; they were never cleaned, so they are dirty.

    ```
     append a=1 a=2 b=1      delete_records 2      clean: dirty is 2 to 3      the ledger is lost
     offset   0   1   2                                                        checkpoint 0, not 3
    ```
    """
    topic = logs.create_topic("lost", config=_COMPACT)
    at(T0, topic).append(rows("a=1 a=2 b=1"))
    delete_records(at(T0, topic), {0: 2})
    at(T0, topic).roll()
    at(T0, topic).clean()
    shutil.rmtree(topic.log.paths.ledger)
    topic = logs.create_topic("lost", config=_COMPACT)
    assert latest(topic) == {"a": "2", "b": "1"}
    assert [one.first_dirty_offset for one in at(T0, topic).explain()] == [0]
    at(T0, topic).roll()
    at(T0, topic).clean()
    assert history(topic) == ["1 a=2", "2 b=1"]
    assert topic.verify().ok


def test_a_marker_whose_records_were_deleted_is_no_problem(spark: SparkSession, logs: LogDir) -> None:
    """It was not stamped, as they were there when it was cleaned; the next cleaning stamps it."""
    topic = logs.create_topic("fruit", config=_COMPACT)
    txn = at(T0, topic).transaction("loader")
    at(T0, txn).append(rows("a=1 b=1"))
    at(T0, topic).roll()
    at(T0, txn).commit()
    at(T0, topic).append(rows("c=1"))
    at(T0, topic).roll()
    topic.alter_config({"segment.bytes": 1_024})
    at(T0, topic).clean(force=True)
    delete_records(at(T0, topic), {0: 2})
    assert history(topic) == ["2 COMMIT", "3 c=1"]
    assert topic.verify().problems == ()


def test_force_does_not_clean_a_partition_that_is_paused_and_quarantined(spark: SparkSession, logs: LogDir) -> None:
    """Force lifts the quarantine alone; the other partitions are cleaned."""
    topic = logs.create_topic("fruit", partitions=2, config=_COMPACT)
    for partition in range(2):
        at(T0, topic).append(rows("a=1 a=2", partition=partition))
    at(T0, topic).roll()
    details = {"failures": 1, "reason": "poisoned", "retry_ms": None}
    topic.log.ledger.append([Decision(kind=Kind.FAILURE, time_ms=T0, partition=0, table_version=1, details=details)])
    at(T0, topic).pause(0)
    assert [one.partition for one in at(T0, topic).clean(force=True)] == [1]
    at(T0, topic).resume(0)
    assert [one.partition for one in at(T0, topic).clean(force=True)] == [0]


def test_a_spoilt_ledger_is_named_with_the_ways_out(spark: SparkSession, logs: LogDir) -> None:
    """Nothing is guessed; moved away and created again, the topic has its records, but not with too few partitions."""
    topic = logs.create_topic("spoilt", partitions=2, config=_COMPACT)
    at(T0, topic).append(rows("a=1", partition=1))
    [file, *_] = Path(topic.log.paths.ledger).glob("*.parquet")
    file.write_bytes(b"no parquet")
    with pytest.raises(UserError, match=r"topic spoilt: the ledger cannot be read .* Put the file back; or move the folder"):
        LogDir(spark, logs.location).topic("spoilt").describe()
    shutil.rmtree(topic.log.paths.ledger)
    with pytest.raises(UserError, match="holds records of partition 1; allowed is 2 or more"):
        logs.create_topic("spoilt", config=_COMPACT)
    assert history(logs.create_topic("spoilt", partitions=2, config=_COMPACT), 1) == ["0 a=1"]


def test_nobody_cleans_a_topic_that_the_cleaner_is_kept_away_from(spark: SparkSession, logs: LogDir) -> None:
    """Keeping it away waits for the running round; other topics are cleaned meanwhile."""
    topic, other = (logs.create_topic(name, config=_EAGER) for name in ("fruit", "other"))
    for one in (topic, other):
        at(T0, one).append(rows("a=1 a=2"))
        at(T0, one).roll()
    cleaner = logs.cleaner
    begun, over = threading.Event(), threading.Event()

    def work() -> None:
        with cleaner.locks.hold(topic.log):  # a round that takes as long as we like
            begun.set()
            over.wait(60)

    with ThreadPoolExecutor() as threads:
        working = threads.submit(work)
        begun.wait(60)
        threading.Timer(0.3, over.set).start()
        with cleaner.locks.reserve(topic.log):
            assert working.done() or over.is_set()
            assert at(T0, topic).clean(force=True) == []
            assert len(at(T0, other).clean(force=True)) == 1
            with pytest.raises(CommitConflict, match="another thread has reserved it"), cleaner.locks.reserve(topic.log):
                pass
    assert len(at(T0, topic).clean(force=True)) == 1


def test_who_is_kept_away_and_who_waits_is_the_same_for_every_handle_of_a_process(spark: SparkSession, logs: LogDir) -> None:
    """A purge through one handle sweeps files that no commit names: what the cleaner of another one is writing must be committed first."""
    topic = logs.create_topic("shared", config=_EAGER)
    at(T0, topic).append(rows("a=1 a=2"))
    at(T0, topic).roll()
    other = LogDir(spark, logs.location)
    with logs.cleaner.locks.hold(topic.log):
        assert other.cleaner.locks.is_held(other.topic("shared").log)
        assert [one.obstacle for one in at(T0, other.topic("shared")).explain()] == [Obstacle.IN_PROGRESS.value]
    with other.cleaner.locks.reserve(other.topic("shared").log):
        assert at(T0, topic).clean() == []
    spelled = LogDir(spark, Path(logs.location).as_uri())
    with spelled.cleaner.locks.reserve(spelled.topic("shared").log):
        assert at(T0, topic).clean() == [], "whatever the log.dir is called"
    assert len(at(T0, topic).clean()) == 1


def test_two_cleaners_against_each_other_do_the_work_of_one(spark: SparkSession, logs: LogDir) -> None:
    """Each with states of its own, as two processes would have: whoever comes second plans anew; appends go on meanwhile."""
    topic = logs.create_topic("race", partitions=2, config=_EAGER)
    handles = [LogDir(spark, logs.location) for _ in range(2)]
    for handle in handles:
        handle._cleaner = Cleaner(handle.service_config, locks=MaintenanceLocks())  # noqa: SLF001  those of a process share theirs
    others = [handle.topic("race") for handle in handles]
    over = threading.Event()
    receipts: list[CleaningReceipt] = []

    def clean(one: Topic) -> None:
        while not over.is_set():
            receipts.extend(at(T0, one).clean())

    with ThreadPoolExecutor() as threads:
        running = [threads.submit(clean, one) for one in others]
        for number in range(8):
            at(T0, topic).append(rows(f"a={number} b=∅ c={number} b={number}"))
            at(T0, topic).roll()
        over.set()
    for one in running:
        one.result()
    while at(T0, topic).clean(force=True):
        pass
    assert latest(topic) == {"a": "7", "b": "7", "c": "7"}
    assert sum(one.record_count for one in topic.describe().partitions) == 3
    assert sum(one.removed["superseded"] for one in topic.receipts() if "superseded" in one.removed) == 8 * 4 - 3


def test_the_log_line_of_a_cleaning_carries_what_kafka_prints(spark: SparkSession, logs: LogDir, caplog: pytest.LogCaptureFixture) -> None:
    """Dirty section, MB processed and indexed, buffer utilisation, start and end size, reductions; keyless records are a warning."""
    topic = logs.create_topic("lines", config={"cleanup.policy": "delete"})
    _closed(topic, spark.createDataFrame([("a", "1"), (None, "lost"), ("a", "2"), ("b", "3")], "key string, value string"))
    topic.alter_config({"cleanup.policy": "compact"})
    with caplog.at_level(logging.INFO, logger="lastword.cleaner"):
        at(T0, topic).clean()
    [line] = [record.getMessage() for record in caplog.records if record.getMessage().startswith('event="partition cleaned"')]
    fields = dict(re.findall(r"(\w+)=(\[[^\]]*\]|\{[^}]*\}|\"[^\"]*\"|\S+)", line))
    assert {"topic", "partition", "processed_mb", "seconds", "mb_per_second", "indexed_mb", "index_seconds", "index_percent"} <= set(fields)
    assert {"start_size_mb", "end_size_mb", "size_reduction_percent", "buffer_utilization_percent", "clean_seconds"} <= set(fields)
    assert (fields["start_messages"], fields["end_messages"], fields["fewer_messages_percent"]) == ("4", "2", "50.0")
    assert "[0, 4]" in line
    assert any("keyless records removed" in record.getMessage() and "keyless=1" in record.getMessage() for record in caplog.records)


def test_the_log_line_of_the_worked_example_has_the_figures_of_kafkas(caplog: pytest.LogCaptureFixture) -> None:
    """Kafka's own line for 25,706.8 MB: 16.5 MB a second, 31.2 % of the time to index, 48.6 % smaller, 30.8 % fewer messages.

    It is docs/semantics.md#B.13.
    """
    mib = 2**20
    receipt = CleaningReceipt(
        topic="fruit-prices",
        partition=12,
        trigger="dirty_ratio",
        first_dirty_offset=310_715_098,
        end_offset=325_968_881,
        cleanable_ratio=0.5,
        table_version=1,
        segments_before=25,
        groups=13,
        records_before=49_042_590,
        records_after=33_931_680,
        bytes_before=int(25_706.8 * mib),
        bytes_after=int(13_219.4 * mib),
        removed={"superseded": 15_110_910},
        emptied=0,
        map_entries=15_253_783,
        map_utilization=0.9,
        rounds_left=0,
        highest_removed_tombstone=None,
        indexed_bytes=int(12_405.3 * mib),
        read_bytes=0,
        index_ms=484_900,
        total_ms=1_554_600,
        now_ms=T0,
    )
    with caplog.at_level(logging.INFO, logger="lastword.cleaner"):
        report_cleaning(receipt)
    fields = dict(re.findall(r'(\w+)=("[^"]*"|\S+)', caplog.records[0].getMessage()))
    said = {name: fields[name] for name in ("dirty_section", "processed_mb", "seconds", "mb_per_second", "indexed_mb", "index_seconds")}
    assert said == {
        "dirty_section": '"[310715098, 325968881]"',
        "processed_mb": "25706.8",
        "seconds": "1554.6",
        "mb_per_second": "16.5",
        "indexed_mb": "12405.3",
        "index_seconds": "484.9",
    }
    assert (fields["index_percent"], fields["buffer_utilization_percent"], fields["clean_seconds"]) == ("31.2", "90.0", "1069.7")
    assert (fields["start_messages"], fields["end_size_mb"], fields["end_messages"]) == ("49042590", "13219.4", "33931680")
    assert (fields["size_reduction_percent"], fields["fewer_messages_percent"]) == ("48.6", "30.8")


_CRASHES = [CrashPoint.OFFSET_MAP_BUILT, CrashPoint.CLEANING_PLANNED, CrashPoint.SWAP_COMMITTED, CrashPoint.RECEIPT_WRITTEN]


def test_a_crash_at_any_point_of_a_cleaning_leaves_the_log_of_an_uninterrupted_one(spark: SparkSession, logs: LogDir) -> None:
    """One topic for each point; the process dies there, and the next one cleans again."""

    def dying(at: CrashPoint) -> Callable[[CrashPoint], None]:
        def reached(point: CrashPoint) -> None:
            if point is at:
                raise KeyboardInterrupt

        return reached

    expected = [f"1 a=∅ @{DAY_MS}", "3 b=2"]
    for point in _CRASHES:
        topic = logs.create_topic(point.name.lower(), config=_COMPACT)
        _closed(topic, rows("a=1 a=∅ b=1 b=2"))
        with crash_points.hook(dying(point)), pytest.raises(KeyboardInterrupt):
            at(T0, topic).clean()
        topic = LogDir(spark, logs.location).topic(topic.name)
        at(T0 + HOUR_MS if point in _CRASHES[2:] else T0, topic).clean()
        assert history(topic) == expected, point
        assert [one.end_offset for one in topic.receipts()] == [4], point
        assert topic.verify().ok


def test_many_rounds_of_a_small_map_end_where_one_large_round_does(spark: SparkSession, tmp_path: Path) -> None:
    """The dirty range is cut by the map budget; whatever the number of rounds, segments and tasks, the survivors are the same."""
    drawn = [(n % 2, f"k{(n * 7) % 23}", None if n % 11 == 0 else str(n)) for n in range(240)]
    outcomes = []
    for budget, segment_bytes, how in (
        (1_048_577, "1GiB", "as it is"),
        (25 * 24, "2KiB", "row by row"),
        (1_048_577, "2KiB", "a slice for each row group"),
        (1_048_577, "2KiB", "small batches of keys, small slices"),
        (1_048_577, "1GiB", "a slice for each row group"),
    ):
        logs = LogDir(spark, str(tmp_path / f"{how}-{segment_bytes}"))
        object.__setattr__(logs.service_config, "log_cleaner_dedupe_buffer_size", budget)
        topic = logs.create_topic("map", partitions=2, config={**_COMPACT, "segment.bytes": segment_bytes, "min.cleanable.dirty.ratio": 0})
        _closed(topic, *(spark.createDataFrame(drawn[at : at + 60], "partition int, key string, value string") for at in range(0, 240, 60)))
        rounds = []
        logs.cleaner.limits = DIVISIONS[how]
        while receipts := at(T0, topic).clean():
            rounds += receipts
        assert topic.verify().ok
        newest = topic.latest().select("partition", "key", "value").collect()
        outcomes.append((history(topic, 0), history(topic, 1), sorted((row.partition, bytes(row.key), bytes(row.value)) for row in newest)))
        assert (len(rounds) > 10) == (budget < 1_000)
        assert all(one.map_entries <= 22 for one in rounds) or budget > 1_000
    assert all(one == outcomes[0] for one in outcomes)


def test_each_round_of_a_pass_is_of_the_moment_at_which_it_begins(spark: SparkSession, logs: LogDir) -> None:
    """Else the tombstones that a late round meets would have lost what the rounds before took of their delete.retention.ms."""
    object.__setattr__(logs.service_config, "log_cleaner_dedupe_buffer_size", 4 * 24)
    topic = logs.create_topic("hours", partitions=2, config=_COMPACT)
    _closed(topic, *(rows("a=1 a=2 b=∅", partition=partition) for partition in (0, 1)))
    clock = iter([T0, T0 + HOUR_MS, T0 + 2 * HOUR_MS])
    receipts = logs.cleaner.clean(topic.log, spark, clock_ms=lambda: next(clock))
    assert [(one.partition, one.now_ms - T0) for one in receipts] == [(0, 0), (1, HOUR_MS)]
    assert history(topic, 0) == ["1 a=2", f"2 b=∅ @{DAY_MS}"]
    assert history(topic, 1) == ["1 a=2", f"2 b=∅ @{HOUR_MS + DAY_MS}"]
