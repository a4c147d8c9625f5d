"""Who may end whose transaction: instances that come late, streaming queries, time-outs, mirrors, RESTOREs in between."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from lastword import LogDir, SparkTopic
from lastword.compaction.errors import InvalidTransactionState, ProducerFenced, UserError
from lastword.compaction.producers import Control
from lastword.storage.append import transactions
from lastword.storage.append.append import append_rows
from lastword.storage.append.requests import AppendStats, MicroBatch
from lastword.storage.append.writing import ArrowRows
from lastword.storage.delta import crash_points
from lastword.storage.delta.crash_points import CrashPoint
from lastword.storage.ledger.decisions import Decision, Kind
from lastword.storage.log.topic_log import TopicLog
from tests.clocks import at
from tests.other_processes import in_another_process
from tests.pictures import delete_records, latest, rows

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from lastword.compaction.producers import ProducerStamp
    from lastword.storage.delta.snapshot import LogSnapshot

_COMPACT = {"cleanup.policy": "compact"}
_LATE_MS = 10_000_000


class _CrashedError(Exception):
    """The process is gone."""


def _begin(topic: SparkTopic, spark: SparkSession, query: str | None = "q") -> ProducerStamp:
    """Begin as a streaming query does."""
    return transactions.begin(topic.log, "loader", now_ms=5_000, timeout_ms=None, query=query)


def _rows_and_markers(topic: SparkTopic) -> list[str]:
    found = topic.records(include_control=True).orderBy("offset").collect()
    return [row["control"] or bytes(row["value"]).decode() for row in found]


def test_what_another_instance_left_open_is_never_committed_for_a_streaming_query(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """The query, which has the id now, is idle; only its own transactions end by COMMIT when they take too long.

    ```
     old    ledger: epoch 0                            commits lime
     q                       ledger: epoch 1, no append                 time-out: ABORT, and q goes on as epoch 1
    ```
    """
    topic = logs.create_topic("fruit", config=_COMPACT)
    beside = in_another_process(LogDir(spark, logs.location), "fruit")
    old = at(5_000, topic).transaction("loader")
    begun: list[ProducerStamp] = []

    def begin(now: CrashPoint) -> None:
        if now is CrashPoint.APPEND_PLANNED and not begun:
            begun.append(_begin(beside, spark))

    with crash_points.hook(begin):
        at(5_000, old).append(rows("lime=zombie"))
    [stream] = begun
    assert len(transactions.end_hanging(topic.log, now_ms=_LATE_MS)) == 1
    assert _rows_and_markers(topic) == ["zombie", "ABORT"]

    transactions.append(topic.log, ArrowRows(rows("kiwi=new")), stream, now_ms=_LATE_MS, stats=AppendStats())
    assert len(transactions.end_hanging(topic.log, now_ms=2 * _LATE_MS)) == 1
    assert latest(topic) == {"kiwi": "new"}, "its own, and it was not fenced"


def test_a_query_that_crashed_as_it_began_aborts_what_was_open_before_it(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """It is registered already when it comes back, so it goes on under its own identity."""
    topic = logs.create_topic("fruit", config=_COMPACT)
    topic.transaction("loader").append(rows("lime=abandoned"))

    def crash(now: CrashPoint) -> None:
        if now is CrashPoint.PRODUCER_REGISTERED:
            raise _CrashedError

    with crash_points.hook(crash), pytest.raises(_CrashedError):
        _begin(topic, spark)
    stamp = _begin(topic, spark)
    assert stamp.epoch == 1
    assert _rows_and_markers(topic) == ["abandoned", "ABORT"]
    transactions.append(topic.log, ArrowRows(rows("kiwi=1")), stamp, now_ms=5_000, stats=AppendStats())
    assert _begin(topic, spark) == stamp
    transactions.end(topic.log, stamp, Control.COMMIT, now_ms=5_000)
    assert latest(topic) == {"kiwi": "1"}, "what is its own is not aborted"


def test_the_id_of_a_streaming_query_is_given_to_nobody_else(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """Spark would never bring the micro-batches again that a takeover aborts."""
    topic = logs.create_topic("fruit", config=_COMPACT)
    stamp = _begin(topic, spark)
    transactions.append(topic.log, ArrowRows(rows("lime=1")), stamp, now_ms=5_000, stats=AppendStats())
    for query in (None, "copy"):
        with pytest.raises(UserError, match=r"loader belongs to the streaming query q, .*give this one an id of its own"):
            _begin(topic, spark, query)
    transactions.end(topic.log, stamp, Control.COMMIT, now_ms=5_000)
    assert latest(topic) == {"lime": "1"}


def test_a_transaction_that_is_over_is_not_ended_again_nor_the_next_one_in_its_place(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """Who ends several looked some time ago; meanwhile the producer has committed, and begun anew."""
    topic = logs.create_topic("fruit", config=_COMPACT)
    slow = at(5_000, topic).transaction("loader")
    at(5_000, slow).append(rows("lime=1"))
    [seen] = topic.open_transactions()
    slow.commit()
    healthy = topic.transaction("loader")
    healthy.append(rows("kiwi=1"))
    assert transactions.end_for_others(topic.log, seen, now_ms=_LATE_MS).table_version is None
    healthy.append(rows("fig=1"))
    healthy.commit()
    assert latest(topic) == {"lime": "1", "kiwi": "1", "fig": "1"}


@pytest.mark.parametrize("again", [False, True], ids=["committed as it is", "appended to once more"])
def test_a_transaction_of_which_a_restore_took_a_part_is_not_committed(spark: SparkSession, logs: LogDir[SparkTopic], again: bool) -> None:  # noqa: FBT001
    """Kafka's producer finds out by its sequence; all or nothing holds here too."""
    topic = logs.create_topic("fruit", config=_COMPACT)
    topic.append(rows("grape=0"))
    txn = topic.transaction("loader")
    kept = txn.append(rows("lime=1")).table_version
    txn.append(rows("kiwi=1"))
    spark.sql(f"RESTORE delta.`{topic.log.paths.log}` TO VERSION AS OF {kept}")
    message = "a RESTORE took back records of the transaction of loader"
    if again:
        with pytest.raises(InvalidTransactionState, match=message):
            txn.append(rows("fig=1"))
    with pytest.raises(InvalidTransactionState, match=message):
        txn.commit()
    assert topic.open_transactions() == []
    txn.abort()
    assert latest(topic) == {"grape": "0"}
    assert topic.verify().ok


def test_undoing_a_restore_brings_back_the_log_as_it_was(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """Its log start, and with it what is out of sight: no record of an aborted transaction is shown.

    ```
     version   1        2       (log start 1)  3        4       5              6
               lime=1   kiwi=1                 fig=1    ABORT   RESTORE to 1   RESTORE to 4
               t        plain                  t
    ```
    """
    topic = logs.create_topic("fruit", config=_COMPACT)
    txn = topic.transaction("loader")
    first = txn.append(rows("lime=1")).table_version
    topic.append(rows("kiwi=1"))
    delete_records(topic, {0: 1})
    txn.append(rows("fig=1"))
    last = txn.abort().table_version
    for version in (first, last):
        spark.sql(f"RESTORE delta.`{topic.log.paths.log}` TO VERSION AS OF {version}")
    for _ in range(2):
        assert latest(topic) == {"kiwi": "1"}
        assert [row["offset"] for row in topic.records().orderBy("offset").collect()] == [1, 2]
        topic.log.sync_ledger_with_history()
    assert topic.verify().ok


def test_a_transaction_of_a_mirror_is_ended_by_its_source_alone(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """A marker of ours would take the offset that the source's next record has."""
    topic = logs.create_topic("fruit", config=_COMPACT)
    at(5_000, at(5_000, topic).transaction("loader")).append(rows("lime=1"))
    topic.log.ledger.append([Decision(kind=Kind.MIRROR, time_ms=0, details={"query": "q", "source": "orders", "identity": "1"})])
    assert transactions.end_hanging(topic.log, now_ms=_LATE_MS) == []
    [one] = topic.open_transactions()
    with pytest.raises(UserError, match="topic fruit is a mirror: its transactions are ended by the markers of its source"):
        topic.abort_transaction(one.producer_id)
    assert _rows_and_markers(topic) == ["1"]


def test_a_micro_batch_that_another_process_committed_as_we_looked_is_known_when_it_comes_again(
    spark: SparkSession, logs: LogDir[SparkTopic]
) -> None:
    """An append carries on the micro-batches of all queries that its snapshot knows: also of one that began a moment ago."""
    topic = logs.create_topic("fruit", config=_COMPACT)
    beside = in_another_process(LogDir(spark, logs.location), "fruit")
    coming = ["lime=1"]
    batch: dict[str, Any] = {"now_ms": 5_000, "stats": AppendStats(), "micro_batch": MicroBatch(query_id="id", query_name="q", batch_id=0)}

    class Overtaken(TopicLog):
        def snapshot(self) -> LogSnapshot:
            if coming:
                beside.log.ledger.append([Decision(kind=Kind.QUERY, time_ms=0, name="q", details={"query_id": "id"})])
                append_rows(beside.log, ArrowRows(rows(coming.pop())), **batch)
            return super().snapshot()

    in_another_process(LogDir(spark, logs.location), "fruit", kind=Overtaken).append(rows("kiwi=1"))
    assert append_rows(beside.log, ArrowRows(rows("lime=1")), **batch).replayed
    assert _rows_and_markers(topic) == ["1", "1"]


@pytest.mark.parametrize("cleanings", [1, 2], ids=["the marker moved", "the marker went"])
def test_a_transaction_that_was_cleaned_since_somebody_looked_is_not_taken_for_open(
    spark: SparkSession, logs: LogDir[SparkTopic], cleanings: int
) -> None:
    """A cleaning writes the marker into the slice of its first segment, and a second one takes it away when nothing needs it.

    ```
     a   lime=1 (open)            COMMIT   lime=2   clean: slice 0 holds all      clean: the marker goes
     b                  looks: open                                                                      looks again
    ```
    """
    topic = logs.create_topic("fruit", config={**_COMPACT, "delete.retention.ms": 0})
    beside = LogDir(spark, logs.location).topic("fruit")
    txn = at(5_000, topic).transaction("loader")
    at(5_000, txn).append(rows("lime=1"))
    assert latest(beside) == {}
    at(5_000, txn).commit()
    at(5_000, topic).append(rows("lime=2" if cleanings == 2 else "kiwi=1"))
    at(5_000, topic).roll()
    for number in range(cleanings + (cleanings > 1)):
        at(6_000 + number, topic).clean(force=True)
    assert [row["control"] for row in topic.records(include_control=True).where("control = 'COMMIT'").collect()] == ["COMMIT"] * (
        2 - cleanings
    )
    expected = {"lime": "2"} if cleanings == 2 else {"lime": "1", "kiwi": "1"}
    for again in (beside, LogDir(spark, logs.location).topic("fruit")):
        assert again.open_transactions() == []
        assert transactions.end_hanging(again.log, now_ms=_LATE_MS) == []
        assert latest(again) == expected
    assert beside.verify().ok


def test_an_instance_that_is_overtaken_while_it_begins_takes_nothing_from_the_newest(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """It is registered, has not looked at the log yet, and the next one has begun and appended: that one's records stay its own."""
    topic = logs.create_topic("fruit", config=_COMPACT)
    beside = in_another_process(LogDir(spark, logs.location), "fruit")
    newest: list[Any] = []

    def overtake(now: CrashPoint) -> None:
        if now is CrashPoint.PRODUCER_REGISTERED and not newest:
            newest.append(None)
            newest.append(beside.transaction("loader"))
            newest[1].append(rows("kiwi=1"))

    topic.transaction("loader").append(rows("lime=1"))
    with crash_points.hook(overtake):
        overtaken = topic.transaction("loader")
    with pytest.raises(ProducerFenced):
        overtaken.commit()
    newest[1].commit()
    assert latest(topic) == {"kiwi": "1"}


def test_an_instance_that_was_overtaken_and_commits_as_the_newest_begins_to_append_is_aborted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest has just looked for what the old one left open, and found nothing; it looks again, and goes on.

    ```
     old     epoch 0   lime planned                                        lime committed
     newest                          epoch 1, nothing open    looks again                    ABORT, kiwi
    ```
    """
    topic, beside = LogDir(tmp_path).create_topic("fruit", config=_COMPACT), in_another_process(LogDir(tmp_path), "fruit")
    old, planned, goes_on = topic.transaction("loader"), threading.Event(), threading.Event()
    abort_older = transactions._abort_older  # noqa: SLF001

    def reached(now: CrashPoint) -> None:
        if now is CrashPoint.APPEND_PLANNED and not planned.is_set():
            planned.set()
            assert goes_on.wait(60)

    def looked(*arguments: Any, **settings: Any) -> None:
        abort_older(*arguments, **settings)
        if newest:
            goes_on.set()
            late.join()

    newest: list[Any] = []
    late = threading.Thread(target=lambda: old.append(rows("lime=1")))
    with monkeypatch.context() as during, crash_points.hook(reached):
        during.setattr(transactions, "_abort_older", looked)
        late.start()
        assert planned.wait(60)
        newest.append(beside.transaction("loader"))
        newest[0].append(rows("kiwi=1"))
    newest[0].commit()
    found = beside.records(include_control=True)
    assert [row["control"] or row["key"].decode() for row in found.to_pylist()] == ["lime", "ABORT", "kiwi", "COMMIT"]
    assert beside.latest().column("key").to_pylist() == [b"kiwi"]
