"""Transactions on a real log: all or nothing in every partition, at every table version."""

from __future__ import annotations

import json
import random
import shutil
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from lastword import LogDir, SparkTopic
from lastword.compaction.errors import InvalidRecords, InvalidTransactionState, ProducerFenced, UserError
from lastword.storage.append import transactions
from lastword.storage.append.append import append_rows
from lastword.storage.append.requests import AppendStats, MicroBatch
from lastword.storage.delta import crash_points
from lastword.storage.delta.crash_points import CrashPoint
from lastword.storage.ledger.ledger import Ledger
from lastword.storage.log.topic_log import TopicLog
from lastword.storage.log.upkeep import compact_ledger
from lastword.streaming.append.dataframes import DataFrameRows
from tests.clocks import at
from tests.model import ModelTopic
from tests.other_processes import in_another_process
from tests.pictures import by_arrow, delete_records, latest, rows, text

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from lastword.storage.ledger.decisions import Decision, Decisions
    from lastword.storage.log.topic_log import LogState
    from lastword.transaction import Transaction

_COMPACT = {"cleanup.policy": "compact"}
_PRODUCED = pa.schema(
    {
        "key": pa.string(),
        "value": pa.string(),
        "partition": pa.int32(),
        "producer_id": pa.int64(),
        "producer_epoch": pa.int32(),
        "sequence": pa.int32(),
        "transactional": pa.bool_(),
        "control": pa.string(),
    }
)


def _picture(topic: SparkTopic, partition: int = 0, isolation: str = "read_uncommitted", *, control: bool = True) -> list[str]:
    """Return `offset key=value` for data, `offset COMMIT` for markers."""
    found = by_arrow(topic).records(isolation=isolation, include_control=control, partitions=[partition]).to_pylist()
    return [f"{row['offset']} {row['control'] or text(row['key']) + '=' + text(row['value'])}" for row in found]


def _produced(drawn: str, *, partition: int = 0) -> pa.Table:
    """Rows drawn with `|` between: `7.0.3 grape=1` (producer, epoch, sequence), `7.0t3 …` (transactional), `7.0 COMMIT`, `grape=1`."""
    drawn_rows: list[tuple[Any, ...]] = []
    for word in drawn.split("|"):
        *who, what = word.split()
        key, _, value = what.partition("=")
        given = None if value == "∅" else value
        if not who:
            drawn_rows.append((key, given, partition, None, None, None, None, None))
            continue
        producer, _, rest = who[0].partition(".")
        if what in {"COMMIT", "ABORT"}:
            drawn_rows.append((None, None, partition, int(producer), int(rest), None, True, what))
            continue
        epoch, separator, sequence = rest.partition("t" if "t" in rest else ".")
        drawn_rows.append((key, given, partition, int(producer), int(epoch), int(sequence), separator == "t", None))
    return _table(drawn_rows)


def _table(given: list[tuple[Any, ...]]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(_PRODUCED.names, row, strict=True)) for row in given], schema=_PRODUCED)


def test_interleaved_producers_with_commits_and_aborts_in_one_partition(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """Plain, idempotent and transactional records mixed; three appends; the last stable offset moves as transactions end."""
    topic = logs.create_topic("fruit", config=_COMPACT)
    topic.append(_produced("1.0t0 grape=1 | lime=1 | 2.0t0 kiwi=1 | 1.0t1 grape=2 | 9.0.0 fig=1"))
    assert topic.describe().partitions[0].last_stable_offset == 0
    assert _picture(topic, isolation="read_committed") == []
    topic.append(_produced("2.0 COMMIT | 2.0t1 kiwi=2 | lime=2"))
    assert topic.describe().partitions[0].last_stable_offset == 0
    topic.append(_produced("1.0 ABORT | 9.0.1 fig=2"))
    assert topic.describe().partitions[0].last_stable_offset == 6
    assert _picture(topic) == [
        "0 grape=1",
        "1 lime=1",
        "2 kiwi=1",
        "3 grape=2",
        "4 fig=1",
        "5 COMMIT",
        "6 kiwi=2",
        "7 lime=2",
        "8 ABORT",
        "9 fig=2",
    ]
    assert _picture(topic, isolation="read_committed", control=False) == ["1 lime=1", "2 kiwi=1", "4 fig=1"]
    assert latest(topic) == {"lime": "1", "kiwi": "1", "fig": "1"}
    topic.append(_produced("2.0 ABORT"))
    assert _picture(topic, isolation="read_committed", control=False) == ["1 lime=1", "2 kiwi=1", "4 fig=1", "7 lime=2", "9 fig=2"]
    firsts = by_arrow(topic).records(include_control=True).column("txn_first_offset").to_pylist()
    assert firsts == [0, None, 2, 0, None, 2, 6, None, 0, None, 6]


def test_a_transaction_spans_segments_partitions_and_appends_and_appears_at_one_version(
    spark: SparkSession, logs: LogDir[SparkTopic]
) -> None:
    """The API; a tombstone inside an aborted one; markers in every touched partition and in no other."""
    topic = logs.create_topic("fruit", partitions=3, config={**_COMPACT, "segment.bytes": "1KiB"})
    topic.append(rows("grape=0", partition=0))
    with topic.transaction("loader") as txn:
        txn.append(rows("grape=1 lime=1", partition=0))
        txn.append(rows("kiwi=1", partition=1))
        txn.append(rows("lime=2", partition=0))
        assert latest(topic) == {"grape": "0"}
    assert latest(topic) == {"grape": "1", "lime": "2", "kiwi": "1"}

    def fails() -> None:
        with topic.transaction("loader") as txn:
            txn.append(rows("grape=∅ lime=∅", partition=0))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert latest(topic) == {"grape": "1", "lime": "2", "kiwi": "1"}
    assert _picture(topic, 0)[-3:] == ["5 grape=∅", "6 lime=∅", "7 ABORT"]
    assert _picture(topic, 1) == ["0 kiwi=1", "1 COMMIT"]
    assert _picture(topic, 2) == []
    assert len(topic.describe().partitions[0].segments) == 6
    for version in range(topic.describe().table_version + 1):
        shown = {text(row["key"]): text(row["value"]) for row in by_arrow(topic).latest(as_of=version).to_pylist()}
        assert shown in ({}, {"grape": "0"}, {"grape": "1", "lime": "2", "kiwi": "1"}), version


def test_a_second_instance_fences_the_first_and_aborts_what_it_left_open(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """The zombie's appends and its late commit are refused; the id is the same, the epoch one higher."""
    topic = logs.create_topic("fruit", partitions=2, config=_COMPACT)
    zombie = topic.transaction("loader")
    zombie.append(rows("grape=zombie", partition=0))
    with logs.topic("fruit").transaction("loader") as txn:
        assert (txn.producer_id, txn.epoch) == (zombie.producer_id, zombie.epoch + 1)
        txn.append(rows("grape=new", partition=1))
        late_acts: list[Callable[[], object]] = [
            zombie.commit,
            zombie.abort,
            partial(zombie.append, rows("lime=zombie", partition=0)),
        ]
        for late in late_acts:
            with pytest.raises(ProducerFenced, match="loader was taken over"):
                late()
    assert _picture(topic, 0) == ["0 grape=zombie", "1 ABORT"]
    assert latest(topic) == {"grape": "new"}
    with pytest.raises(InvalidTransactionState, match="it was ended by COMMIT"):
        txn.append(rows("grape=1"))
    other = topic.transaction("another")
    assert other.producer_id == zombie.producer_id + 1
    other.abort()
    with pytest.raises(UserError, match=r"a transactional\.id must not be empty"):
        topic.transaction("")


def test_a_refused_append_leaves_the_transaction_open_and_whole(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """Nothing of the call is written; sequences go on without a gap; rows may not bring a producer of their own."""
    topic = logs.create_topic("fruit", config=_COMPACT)
    with topic.transaction("loader") as txn:
        txn.append(rows("grape=1"))
        with pytest.raises(InvalidRecords, match="1 × keyless"):
            txn.append([{"key": "lime", "value": "1"}, {"key": None, "value": "1"}])
        with pytest.raises(InvalidRecords, match="get their producer and offsets from it"):
            txn.append(_produced("7.0.0 grape=1"))
        txn.append(rows("lime=2"))
    assert latest(topic) == {"grape": "1", "lime": "2"}
    assert by_arrow(topic).records().column("sequence").to_pylist() == [0, 1]


def test_rows_with_a_producer_are_judged_and_a_batch_call_with_a_gap_writes_nothing(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """Duplicates are dropped and counted, gaps and zombies refused, a new epoch starts at 0."""
    topic = logs.create_topic("fruit", config=_COMPACT)
    assert topic.append(_produced("7.1.5 grape=5 | 7.1.6 grape=6 | 7.1.5 grape=5 | 7.1.7 grape=7")).duplicates == 1
    assert topic.append(_produced("7.1.6 grape=6 | 7.1.7 grape=7 | 7.1.8 grape=8")).duplicates == 2
    assert _picture(topic) == ["0 grape=5", "1 grape=6", "2 grape=7", "3 grape=8"]
    version = topic.describe().table_version
    for drawn, message in {
        "7.1.10 grape=10": "sequence 10 of producer 7: expected 9",
        "7.0.9 grape=9": "epoch 0 of producer 7: allowed is 1 or later",
        "7.2.1 grape=1": "sequence 1 of producer 7: expected 0",
        "7.1t9 grape=9 | 7.1.10 grape=10": "producer 7 has a transaction open",
        "lime=1 | 7.0 COMMIT": "epoch 0 of producer 7",
    }.items():
        with pytest.raises(InvalidRecords, match=message):
            topic.append(_produced(drawn))
    assert topic.describe().table_version == version
    topic.append(_produced("7.2.0 grape=0 | 7.2.1 grape=1"))
    wrong: tuple[tuple[str, Any], ...] = (("control", "MAYBE"), ("sequence", -1), ("producer_epoch", None), ("producer_id", -4))
    for column, value in (*wrong, ("producer_epoch", 40_000)):
        (row,) = _produced("8.0.0 grape=1").to_pylist()
        with pytest.raises(InvalidRecords, match="invalid_producer: producer_id"):
            topic.append(pa.Table.from_pylist([{**row, column: value}], schema=_PRODUCED))
    with pytest.raises(InvalidRecords, match="column sequence needs a column producer_id"):
        topic.append([{"key": "grape", "value": "1", "sequence": 1}])


class _CrashedError(Exception):
    """The process is gone."""


_POINTS = [CrashPoint.PRODUCER_REGISTERED, CrashPoint.APPEND_PLANNED, CrashPoint.APPEND_COMMITTED, CrashPoint.MARKERS_PLANNED]


@pytest.mark.parametrize("ending", ["commit", "abort"])
def test_crashed_at_every_named_point_a_transaction_is_wholly_there_or_wholly_not(
    spark: SparkSession, logs: LogDir[SparkTopic], ending: str
) -> None:
    """Crash, restart, begin again; then every table version is read and shows a transaction in all partitions or in none."""
    topic = logs.create_topic("fruit", partitions=2, config=_COMPACT)
    generation = 0

    def load(number: int) -> None:
        fresh = LogDir(spark, logs.location).topic("fruit")
        txn = fresh.transaction("loader")
        txn.append(rows(f"a={number} b={number}", partition=0))
        txn.append(rows(f"c={number}", partition=1))
        txn.commit() if ending == "commit" else txn.abort()

    # A point may be reached several times in one load: crash at each of them.
    for point, times in {
        **dict.fromkeys(_POINTS, 1),
        CrashPoint.APPEND_PLANNED: 3,
        CrashPoint.APPEND_COMMITTED: 3,
        CrashPoint.MARKERS_COMMITTED: 1,
    }.items():
        for nth in range(1, times + 1):
            reached = 0

            def crash(now: CrashPoint, point: CrashPoint = point, nth: int = nth) -> None:
                nonlocal reached
                reached += now is point
                if reached == nth:
                    raise _CrashedError

            generation += 1
            with crash_points.hook(crash), pytest.raises(_CrashedError):
                load(generation)
    load(generation + 1)
    seen = []
    for version in range(topic.describe().table_version + 1):
        shown = {text(row["key"]): text(row["value"]) for row in by_arrow(topic).latest(as_of=version).to_pylist()}
        assert len(set(shown.values())) <= 1, f"version {version} shows a part of a transaction: {shown}"
        assert len(shown) in {0, 3}
        seen.append(next(iter(shown.values()), None))
    assert seen[-1] == (str(generation + 1) if ending == "commit" else None)
    assert topic.open_transactions() == []


def test_a_commit_is_refused_when_another_process_has_ended_the_transaction(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """The other one, which does not wait for our lock, aborts between our look at what is open and our markers."""
    topic = logs.create_topic("fruit", config=_COMPACT)
    txn = at(5_000, topic).transaction("loader")
    at(5_000, txn).append(rows("lime=1"))
    other = LogDir(spark, logs.location).topic("fruit")

    aborted: list[CrashPoint] = []

    def abort(now: CrashPoint) -> None:
        if now is CrashPoint.MARKERS_PLANNED and not aborted:
            aborted.append(now)
            transactions.end_for_others(other.log, other.open_transactions()[0], now_ms=6_000)

    with crash_points.hook(abort), pytest.raises(ProducerFenced):
        txn.commit()
    assert _picture(topic) == ["0 lime=1", "1 ABORT"]
    assert latest(topic) == {}


def test_instances_in_processes_that_do_not_wait_for_each_other(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """Nothing is in the log when the new one begins; what the old one commits a moment later is aborted, also if it went elsewhere.

    ```
     old    ledger: epoch 0                            commits lime to partitions 0 and 1
     new                     ledger: epoch 1, nothing open                             grape in partition 0, COMMIT
    ```
    """
    topic = logs.create_topic("fruit", partitions=2, config=_COMPACT)
    beside = in_another_process(LogDir(spark, logs.location), "fruit")
    for name, appends in (("one", True), ("two", False)):
        old = topic.transaction(name)
        begun: list[Transaction] = []

        def begin(now: CrashPoint, name: str = name, begun: list[Transaction] = begun) -> None:
            if now is CrashPoint.APPEND_PLANNED and not begun:
                begun.append(beside.transaction(name))

        with crash_points.hook(begin):
            late = pa.concat_tables([rows("lime=zombie", partition=0), rows("kiwi=zombie", partition=1)])
            assert old.append(late).record_count == 2
        (new,) = begun
        assert (new.producer_id, new.epoch) == (old.producer_id, old.epoch + 1)
        if appends:
            new.append(rows("grape=new", partition=0))
        new.commit()
        assert latest(topic) == {"grape": "new"}
        assert topic.open_transactions() == []
    assert _picture(topic, 1) == ["0 kiwi=zombie", "1 ABORT", "2 kiwi=zombie", "3 ABORT"]
    assert topic.verify().ok


def test_a_commit_that_comes_after_a_takeover_is_refused_not_taken_for_done(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """The new instance begins, and aborts what is open, between the old one's looks at ledger and log."""
    topic = logs.create_topic("fruit", config=_COMPACT)
    beside = in_another_process(LogDir(spark, logs.location), "fruit")
    looks: list[str] = []

    class Overtaken(TopicLog):
        def at(self, version: int | None = None) -> LogState:
            state = super().at(version)
            if looks and looks.pop() == "for its own transaction":
                beside.transaction("loader")
            return state

    old = in_another_process(LogDir(spark, logs.location), "fruit", kind=Overtaken).transaction("loader")
    old.append(rows("lime=zombie"))
    looks += ["for its own transaction", "for that of an older instance"]
    with pytest.raises(ProducerFenced, match="loader was taken over"):
        old.commit()
    assert _picture(topic) == ["0 lime=zombie", "1 ABORT"]


def test_two_who_begin_at_once_never_get_the_same_epoch_nor_two_ids_the_same_producer(
    spark: SparkSession, logs: LogDir[SparkTopic]
) -> None:
    """In processes that do not wait for each other: the later one reads the ledger again."""
    logs.create_topic("fruit", config=_COMPACT)
    beside = in_another_process(LogDir(spark, logs.location), "fruit")
    first: list[Transaction] = []

    class OvertakenLedger(Ledger):
        def _append_once(self, decisions: list[Decision], today: Decisions, expected: int) -> None:
            if len(first) < 3:  # the choice is made and nothing written
                first.append(beside.transaction(["loader", "other", "loader"][len(first)]))
            super()._append_once(decisions, today, expected)

    class Overtaken(TopicLog):
        def __init__(self, *given: Any, **settings: Any) -> None:
            super().__init__(*given, **settings)
            self.ledger = OvertakenLedger(self.paths.ledger, self.name, self.storage_options, lock_seconds=0.05)

    topic = in_another_process(LogDir(spark, logs.location), "fruit", kind=Overtaken)
    second = [topic.transaction("loader") for _ in range(3)]
    found = [(one.producer_id, one.epoch) for one in (*first, *second)]
    assert len(set(found)) == 6
    assert {producer for producer, _ in found} == {0, 1}
    with pytest.raises(ProducerFenced):
        first[0].commit()


def test_an_id_whose_first_append_is_under_way_is_not_forgotten(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """It was begun longer ago than `transactional.id.expiration.ms`, and nothing is open yet: forgetting waits for its lock."""
    topic = logs.create_topic("fruit", config=_COMPACT)
    slow = at(5_000, topic).transaction("slow")
    at(5_000, topic).transaction("highest").abort()
    tidying = threading.Thread(target=lambda: compact_ledger(topic.log, now_ms=9_000, id_expiration_ms=1_000, least_files=1), daemon=True)

    def tidy(now: CrashPoint) -> None:
        if now is CrashPoint.APPEND_PLANNED and not tidying.ident:
            tidying.start()
            tidying.join(1.5)

    with crash_points.hook(tidy):
        slow.append(rows("lime=1"))
    tidying.join()
    slow.commit()
    assert latest(topic) == {"lime": "1"}


def test_random_histories_of_many_producers_go_through_spark_as_through_the_model(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """40 histories at once, each a partition of one topic: verdicts, rows, transactions, last stable offset and read_committed."""
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed={seed}")  # noqa: T201
    _histories(spark, logs, seed=seed, partitions=40, appends=6)


@pytest.mark.torture
@pytest.mark.timeout(1_800)
def test_many_more_random_histories(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """The long version."""
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed={seed}")  # noqa: T201
    _histories(spark, logs, seed=seed, partitions=300, appends=20)


def _histories(spark: SparkSession, logs: LogDir[SparkTopic], *, seed: int, partitions: int, appends: int) -> None:
    draw = random.Random(seed)
    topic = logs.create_topic("fruit", partitions=partitions, config=_COMPACT)
    model = ModelTopic(partitions)
    for number in range(appends):
        offered: list[tuple[Any, ...]] = []
        verdicts: dict[str, int] = {}
        for partition in range(partitions):
            stopped: set[int] = set()
            for _ in range(draw.randrange(8)):
                row = _random_row(draw, model, partition)
                key, value, _, producer, epoch, sequence, transactional, control = row
                if producer is None:
                    model.append(partition, key.encode(), None if value is None else value.encode(), 0)
                    offered.append(row)
                    continue
                if producer in stopped:
                    continue  # after a refusal, what the producer still brings in the same micro-batch is refused as well
                verdict = model.offer(
                    partition,
                    None if key is None else key.encode(),
                    None if value is None else value.encode(),
                    producer_id=producer,
                    epoch=epoch,
                    sequence=sequence,
                    transactional=transactional,
                    control=control,
                )
                offered.append(row)
                verdicts[verdict] = verdicts.get(verdict, 0) + 1
                if verdict in {"sequence_gap", "invalid_txn_state"}:
                    stopped.add(producer)
        result = _append_as_micro_batch(topic, spark.createDataFrame(_table(offered)), number)
        assert result.duplicates == verdicts.pop("duplicate_sequence", 0)
        verdicts.pop("accepted", None)
        assert dict(result.refused) == verdicts
    _compare(topic, model)


def _random_row(draw: random.Random, model: ModelTopic, partition: int) -> tuple[Any, ...]:
    key, value = f"k{draw.randrange(5)}", draw.choice([None, str(draw.randrange(1_000))])
    producer = draw.choice([None, 1, 2, 3])
    if producer is None:
        return (key, value, partition, None, None, None, None, None)
    mine = [row for row in model.logs[partition] if row.producer_id == producer]
    newest = max((row.epoch or 0 for row in mine), default=0)
    epoch = max(0, newest + draw.choice([0, 0, 0, 0, 0, 0, 1, -1]))
    if draw.random() < 0.25:
        return (None, None, partition, producer, epoch, None, True, draw.choice(["COMMIT", "ABORT"]))
    given = [row.sequence for row in mine if row.epoch == epoch and row.sequence is not None]
    sequence = max(0, (given[-1] + 1 if given else 0) + draw.choice([0, 0, 0, 0, 0, 0, -1, 1]))
    return (key, value, partition, producer, epoch, sequence, draw.random() < 0.8, None)


def _append_as_micro_batch(topic: SparkTopic, frame: DataFrame, number: int) -> Any:
    stats, micro_batch = AppendStats(), MicroBatch(query_id=f"q{number}", query_name="q", batch_id=0)
    return append_rows(topic.log, DataFrameRows(frame, stats), now_ms=number, stats=stats, micro_batch=micro_batch)


def _compare(topic: SparkTopic, model: ModelTopic) -> None:
    columns = ["partition", "offset", "key", "value", "producer_id", "producer_epoch", "sequence", "control", "txn_first_offset"]

    def plain(row: Any) -> tuple[Any, ...]:
        return tuple(bytes(value) if isinstance(value, bytearray) else value for value in row)

    found = [plain(row) for row in topic.records(include_control=True).select(*columns).orderBy("partition", "offset").collect()]
    expected = [
        (
            partition,
            row.offset,
            row.key,
            row.value,
            row.producer_id,
            row.epoch,
            row.sequence,
            row.control,
            model.transaction_of(partition, row),
        )
        for partition, log in model.logs.items()
        for row in log
    ]
    assert found == expected
    stable = [partition.last_stable_offset for partition in topic.describe().partitions]
    assert stable == [model.last_stable_offset(partition) for partition in range(model.partitions)]
    committed = [
        tuple(row)
        for row in topic.records(isolation="read_committed").select("partition", "offset").orderBy("partition", "offset").collect()
    ]
    assert committed == [(partition, row.offset) for partition in model.logs for row in model.read_committed(partition)]
    newest = {(row["partition"], bytes(row["key"])): row["offset"] for row in topic.latest().collect()}
    assert newest == {place: row.offset for place, row in model.latest().items()}


def test_the_state_is_rebuilt_from_the_log_when_the_cache_is_gone_spoilt_or_of_another_topic(
    spark: SparkSession, logs: LogDir[SparkTopic]
) -> None:
    """The cache only makes it faster."""
    topic = logs.create_topic("fruit", partitions=2, config=_COMPACT)
    topic.append(_produced("7.0t0 grape=1 | 7.0t1 lime=1"))
    states = topic.log.at().producer_states()
    file = Path(topic.log.paths.producers) / "state.json"
    kept = file.read_text()

    def fresh() -> TopicLog:
        return LogDir(spark, logs.location).topic("fruit").log

    assert fresh().at().producer_states() == states, "from the cache"
    for spoilt in ("", "not json", kept.replace('"epoch": 0', '"epoch": 9'), kept.replace('"crc32": ', '"crc32": 1'), '{"body": {}}'):
        file.write_text(spoilt)
        assert fresh().at().producer_states() == states
        assert file.read_text() == kept, "written anew"
    file.unlink()
    assert fresh().at().producer_states() == states
    file.write_text(kept)
    topic.append(_produced("7.0 COMMIT | 7.0t2 fig=1"))
    file.write_text(kept)
    behind = fresh().at().producer_states()
    shutil.rmtree(file.parent)
    assert behind == fresh().at().producer_states(), "an old cache and what came since is the same as all of the log"
    assert behind[0, 7].open_first_offset == 3


def test_a_lost_ledger_never_hands_out_an_id_that_the_log_has_seen(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """The log's own statistics know the highest."""
    topic = logs.create_topic("fruit", config=_COMPACT)
    topic.append(_produced("41.3.0 grape=1"))
    assert topic.transaction("loader").producer_id == 42


def test_idle_producers_are_forgotten_and_may_start_anywhere(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """`producer.id.expiration.ms`."""
    topic = logs.create_topic("fruit", config={**_COMPACT, "producer.id.expiration.ms": 1_000})
    at(10_000, topic).append(_produced("7.0.0 grape=1"))
    with pytest.raises(InvalidRecords, match="sequence_gap"):
        at(10_999, topic).append(_produced("7.0.50 grape=2"))
    assert at(11_000, topic).append(_produced("7.0.50 grape=2")).record_count == 1


def test_forgotten_producers_leave_memory_and_cache(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """Else a run with a new producer id each time leaves a state for ever; what is read anew from the log is no different to an append."""
    topic = logs.create_topic("fruit", config={**_COMPACT, "producer.id.expiration.ms": 1_000})
    file = Path(topic.log.paths.producers) / "state.json"
    assert topic.log.forget_producers(now_ms=10_000) == 0, "of nobody"
    at(10_000, topic).append(_produced("7.0.0 grape=1 | 8.0t0 lime=1"))
    at(11_000, topic).append(_produced("9.0.0 fig=1"))
    assert set(topic.log.at().producer_states()) == {(0, 7), (0, 8), (0, 9)}
    assert topic.log.forget_producers(now_ms=99_000) == 0, "a clock that jumps,"
    assert topic.log.forget_producers(now_ms=10_999) == 0, "and comes back"
    assert topic.log.forget_producers(now_ms=12_000) == 0
    assert topic.log.forget_producers(now_ms=99_000) == 1, "not 8, whose transaction is open, and not 9, which no clock is far past"
    assert set(topic.log.at().producer_states()) == {(0, 8), (0, 9)}
    assert set(LogDir(spark, logs.location).topic("fruit").log.at().producer_states()) == {(0, 8), (0, 9)}, "from the cache"
    file.unlink()
    assert set(LogDir(spark, logs.location).topic("fruit").log.at().producer_states()) == {(0, 7), (0, 8), (0, 9)}, "from the log"
    delete_records(at(11_000, topic), {0: 2})
    assert [topic.log.forget_producers(now_ms=99_000) for _ in range(2)] == [0, 1], "8: its transaction lies below the log start"
    assert at(11_001, topic).append(_produced("7.0.50 grape=2")).record_count == 1


def test_a_transactional_id_that_expired_begins_with_a_new_producer_and_its_old_instance_is_fenced(
    spark: SparkSession, logs: LogDir[SparkTopic]
) -> None:
    """By when its last transaction began; one that is open does not expire, nor the highest producer id: none is given twice."""
    topic = logs.create_topic("fruit", config=_COMPACT)
    nightly, held, silent, highest = (at(5_000, topic).transaction(name) for name in ("nightly", "held", "silent", "highest"))
    for one in (nightly, held):
        at(5_000, one).append(rows(f"grape={one.producer_id}"))
    at(5_000, nightly).commit()
    assert compact_ledger(topic.log, now_ms=6_000, id_expiration_ms=1_000, least_files=1) == 0
    assert compact_ledger(topic.log, now_ms=6_001, id_expiration_ms=1_000, least_files=1) == 2
    with pytest.raises(ProducerFenced, match="silent is not known any more"):
        silent.append(rows("grape=zombie"))
    again = at(6_001, topic).transaction("nightly")
    assert (again.producer_id, again.epoch) == (highest.producer_id + 1, 0)
    again.append(rows("grape=again"))
    again.commit()
    held.commit()
    assert latest(topic) == {"grape": "again"}


def test_a_hanging_transaction_is_aborted_with_a_new_epoch_and_its_writer_fenced(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """SparkTopic's timeout, the producer's own, and a producer that came as rows."""
    topic = logs.create_topic("fruit", partitions=2, config={**_COMPACT, "transaction.timeout.ms": 1_000})
    slow = at(5_000, topic).transaction("slow")
    at(5_000, slow).append(rows("grape=slow", partition=0))
    patient = at(5_000, topic).transaction("patient", timeout_ms=60_000)
    at(5_000, patient).append(rows("lime=patient", partition=1))
    at(5_000, topic).append(_produced("70.0t0 fig=raw", partition=1))
    assert transactions.end_hanging(topic.log, now_ms=6_000) == []
    ended = transactions.end_hanging(topic.log, now_ms=6_001)
    assert [(one.producer_id, one.transactional_id, dict(one.first_offsets)) for one in ended] == [
        (slow.producer_id, "slow", {0: 0}),
        (70, None, {1: 1}),
    ]
    assert [one.transactional_id for one in topic.open_transactions()] == ["patient"]
    with pytest.raises(ProducerFenced):
        slow.commit()
    with pytest.raises(InvalidRecords, match="producer_fenced"):
        at(6_002, topic).append(_produced("70.0t1 fig=raw", partition=1))
    patient.commit()
    assert latest(topic) == {"lime": "patient"}
    with pytest.raises(UserError, match="producer 70 has no open transaction; open ones are of producers: none"):
        topic.abort_transaction(70)


def test_readers_at_read_committed_never_see_a_part_while_a_writer_runs(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """Reads against a running writer of transactions over two partitions: always all rows of one generation."""
    _read_beside_a_writer(spark, logs, least_reads=15)


@pytest.mark.torture
@pytest.mark.timeout(1_800)
def test_a_hundred_reads_beside_a_writer(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """The long version."""
    _read_beside_a_writer(spark, logs, least_reads=100)


def _read_beside_a_writer(spark: SparkSession, logs: LogDir[SparkTopic], *, least_reads: int) -> None:
    topic = logs.create_topic("fruit", partitions=2, config=_COMPACT)
    enough, done = threading.Event(), threading.Event()
    failures: list[BaseException] = []

    def write() -> None:
        try:
            number = 0
            while not enough.is_set():
                number += 1
                with logs.topic("fruit").transaction("writer") as txn:
                    txn.append(rows(f"a={number} b={number}", partition=0))
                    txn.append(rows(f"c={number}", partition=1))
        except BaseException as error:  # noqa: BLE001  shown by the test
            failures.append(error)
        finally:
            done.set()

    writer = threading.Thread(target=write)
    writer.start()
    reads, generations = 0, set()
    while not done.is_set():
        shown = latest(logs.topic("fruit"))
        assert len(shown) in {0, 3}, shown
        assert len(set(shown.values())) <= 1, shown
        generations |= set(shown.values())
        reads += 1
        if reads >= least_reads and len(generations) > 2:
            enough.set()
    writer.join()
    assert not failures
    last = max(map(int, generations))
    assert set(map(int, latest(topic).values())) in ({last}, {last + 1})
    assert reads >= least_reads


def test_a_stream_makes_transactions_of_its_micro_batches(spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path) -> None:
    """Each alone, or three at a time; the last, incomplete one is committed when the stream ends by itself."""
    folder = tmp_path / "input"
    folder.mkdir()
    for number in range(5):
        (folder / f"{number}.json").write_text(json.dumps({"key": f"k{number}", "value": "v"}))
    source = spark.readStream.schema("key string, value string").option("maxFilesPerTrigger", 1).json(str(folder))
    for micro_batches, markers in ((1, 5), (3, 2)):
        topic = logs.create_topic(f"fruit-{micro_batches}", config=_COMPACT)
        query = topic.append_stream(
            source, name="files", trigger={"availableNow": True}, transactional_id="loader", micro_batches_per_transaction=micro_batches
        )
        query.awaitTermination()
        for _ in range(100):
            if not topic.open_transactions():
                break
            threading.Event().wait(0.1)
        shown = topic.records(include_control=True)
        assert shown.where("control = 'COMMIT'").count() == markers
        assert topic.records(isolation="read_committed").count() == 5
    with pytest.raises(UserError, match="micro_batches_per_transaction = 0: 1 or more"):
        logs.topic("fruit-1").append_stream(source, name="other", transactional_id="x", micro_batches_per_transaction=0)
