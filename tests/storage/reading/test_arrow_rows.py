"""The same answer from everybody: Spark, Arrow, Polars, and DuckDB with plain SQL, at every stage of a log's life."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F

from lastword import ArrowTopic, LogDir, latest_sql
from lastword.compaction.errors import UserError
from lastword.storage.log.topic_log import open_log
from lastword.storage.reading.view import newest_view
from tests.clocks import at
from tests.pictures import T0, by_arrow, delete_records, frame, latest, rows, text
from tests.test_cleaning_equality import _Lives
from tests.test_model_equality import seed_of_this_run

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from pyarrow import Table
    from pyspark.sql import DataFrame, SparkSession

    from lastword import SparkTopic
    from lastword.storage.reading.view import View

Words = dict[tuple[int, bytes], tuple[int, bytes]]


def words(table: Table) -> Words:
    """Return {(partition, key): (offset, value)} of last words, each of them once."""
    found = [(row["partition"], row["key"], row["offset"], row["value"]) for row in table.to_pylist()]
    assert len({row[:2] for row in found}) == len(found), "a key has two last words"
    return {(partition, bytes(key)): (offset, bytes(value)) for partition, key, offset, value in found}


def words_of_spark(frame: DataFrame) -> Words:
    """Return the same of Spark's rows."""
    shown = frame.select("partition", "key", "offset", "value").collect()
    return {(row["partition"], bytes(row["key"])): (row["offset"], bytes(row["value"])) for row in shown}


def words_of_sql(topic: str, isolation: str) -> Words:
    """Return the same from DuckDB, which is told of the log's files and the log start offsets, and of nothing else."""
    starts = {partition: one.log_start for partition, one in by_arrow(topic).offsets().items()}
    source = f"read_parquet({DeltaTable(f'{topic}/log').file_uris()}, hive_partitioning = true)"
    found = duckdb.sql(latest_sql(source, isolation=isolation, log_start_offsets=starts))
    assert found is not None
    return words(found.to_arrow_table())


class _Read(_Lives):
    """Lives that are looked at by readers without a JVM."""

    def compare(self) -> None:
        """Compare last words, records and offsets of both isolations with the model, engine by engine."""
        self.adopt()
        path = self.topic.log.paths.root
        for isolation in ("read_committed", "read_uncommitted"):
            expected = self.expected(isolation)
            assert words(by_arrow(path).latest(isolation=isolation)) == expected, self.done
            assert words(by_arrow(path).scan_latest(isolation=isolation).collect().to_arrow()) == expected, self.done
            assert words_of_sql(path, isolation) == expected, self.done
            self.compare_records(path, isolation)
        for partition, found in by_arrow(path).offsets().items():
            end = len(self.model.history[partition])
            assert found == (self.model.log_start_offsets[partition], self.model.last_stable_offset(partition), end), (partition, self.done)

    def seen(self, partition: int, isolation: str) -> list[tuple[int, bytes | None, bytes | None]]:
        """Return offset, key and value of the data records that a reader sees of a partition."""
        rows = self.model.logs[partition] if isolation == "read_uncommitted" else self.model.read_committed(partition)
        start = self.model.log_start_offsets[partition]
        return [(row.offset, row.key, row.value) for row in rows if row.offset >= start and row.control is None]

    def expected(self, isolation: str) -> Words:
        """Return the last words by the simplest rule there is."""
        last = {
            (partition, key): (offset, value)
            for partition in range(self.model.partitions)
            for offset, key, value in self.seen(partition, isolation)
            if key is not None
        }
        return {place: (offset, value) for place, (offset, value) in last.items() if value is not None}

    def compare_records(self, path: str, isolation: str) -> None:
        """Compare the records themselves, all of them and those of random offset ranges."""
        columns = ["partition", "offset", "key", "value"]
        ends = [len(self.model.history[partition]) for partition in range(self.model.partitions)]
        begin = [self.chance.randint(0, end) for end in ends]
        end = [self.chance.randint(low, high) for low, high in zip(begin, ends, strict=True)]
        for first, last in (([0] * len(ends), ends), (begin, end)):
            expected = [
                (partition, *row)
                for partition in range(self.model.partitions)
                for row in self.seen(partition, isolation)
                if first[partition] <= row[0] < last[partition]
            ]
            table = by_arrow(path).records(isolation=isolation, columns=columns, from_offsets=first, to_offsets=last)
            lazy = by_arrow(path).scan_records(isolation=isolation, columns=columns, from_offsets=first, to_offsets=last).collect()
            assert [tuple(row.values()) for row in table.to_pylist()] == expected, self.done
            assert sorted(lazy.rows()) == sorted(expected), self.done


def test_random_logs_read_the_same_in_every_engine(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """Sixteen histories in one topic, looked at before and after the first cleaning, horizons, retention and purge: LASTWORD_SEED."""
    chance = random.Random(seed_of_this_run())
    lives = _Read(spark, logs, chance, "lives", 16)
    stages = (
        "append",
        "append",
        "roll",
        "append",
        "compare",
        "clean",
        "append",
        "advance",
        "append",
        "roll",
        "clean",
        "purge",
        "append",
        "retain",
    )
    for step in stages:
        lives.done.append(step)
        getattr(lives, step)()
        lives.compare()
    for isolation in ("read_committed", "read_uncommitted"):
        assert words_of_spark(lives.topic.latest(isolation=isolation)) == lives.expected(isolation)
        query = latest_sql(f"delta.`{lives.topic.log.paths.log}`", isolation=isolation, log_start_offsets=lives.model.log_start_offsets)
        assert words_of_spark(spark.sql(query)) == lives.expected(isolation)


@pytest.fixture
def fruit(spark: SparkSession, logs: LogDir[SparkTopic]) -> SparkTopic:
    """Return a cleaned topic with a dirty section and an open transaction: grape, lime and kiwi are clean, lime came again."""
    topic = logs.create_topic("fruit", config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01})
    at(T0, topic).append(rows("grape=1 lime=1 kiwi=1 grape=2 fig=∅", timestamp_ms=T0))
    at(T0, topic).roll()
    at(T0, topic).append(rows("lime=2", timestamp_ms=T0))
    at(T0, topic).clean(force=True)
    stamp = at(T0, topic).transaction("loader")
    stamp.__enter__()
    at(T0, stamp).append(rows("kiwi=9", timestamp_ms=T0))
    return topic


def said(table: pa.Table) -> dict[str, str]:
    """Return last words as they are drawn."""
    return {text(row["key"]): text(row["value"]) for row in table.to_pylist()}


def test_an_open_transaction_does_not_hide_the_clean_section(fruit: SparkTopic) -> None:
    """What is not decided is not there for read_committed, also not to supersede what is."""
    path = fruit.log.paths.root

    assert said(by_arrow(path).latest()) == {"grape": "2", "lime": "2", "kiwi": "1"}
    assert said(by_arrow(path).latest(isolation="read_uncommitted")) == {"grape": "2", "lime": "2", "kiwi": "9"}
    assert by_arrow(path).offsets() == {0: (0, 6, 7)}
    assert newest_view(open_log(path), "read_committed").first_dirty == (5,)


def test_latest_shows_the_columns_partitions_and_keys_that_are_asked_for(fruit: SparkTopic) -> None:
    """Types are those of Spark's; a key that is not there is not an error."""
    path = fruit.log.paths.root
    everything = by_arrow(path).latest()

    assert [f"{field.name} {field.type}" for field in everything.schema] == [
        "partition int32",
        "key binary",
        "value binary",
        "headers list<element: struct<key: string, value: binary>>",
        "timestamp timestamp[us, tz=UTC]",
        "offset int64",
    ]
    assert by_arrow(path).latest(keys=["lime", b"kiwi", "plum"], columns=["key", "offset"]).to_pylist() == [
        {"key": b"kiwi", "offset": 2},
        {"key": b"lime", "offset": 5},
    ]
    assert by_arrow(path).scan_latest(keys=["lime"], columns=["offset"]).collect().rows() == [(5,)]
    assert by_arrow(path).latest(partitions=[]).num_rows == 0
    assert by_arrow(path).latest(partitions=[0]) == everything


def test_bootstrap_and_records_meet_without_a_gap(fruit: SparkTopic, spark: SparkSession) -> None:
    """The words and the offsets are of one table version; what comes later is read from there."""
    path = fruit.log.paths.root
    words_then = by_arrow(path).bootstrap()
    at(T0, fruit).abort_transaction(fruit.open_transactions()[0].producer_id)
    at(T0, fruit).append(rows("plum=1", timestamp_ms=T0))

    assert (words_then.position.vector(), said(words_then.rows)) == ({0: 6}, {"grape": "2", "lime": "2", "kiwi": "1"})
    later = by_arrow(path).records(isolation="read_committed", from_offsets=words_then.position)
    assert [(row["offset"], row["key"]) for row in later.to_pylist()] == [(8, b"plum")]
    shown = by_arrow(path).records(include_control=True, from_offsets=words_then.position, columns=["offset", "control"])
    assert shown.to_pylist() == [{"offset": 6, "control": None}, {"offset": 7, "control": "ABORT"}, {"offset": 8, "control": None}]


def test_a_log_that_begins_with_a_marker_or_a_keyless_row_has_no_last_words(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """The log start lies in the middle of a file of which no key is left.

    ```
      0 lime=1    1 COMMIT    ]   partition 0, log start 1
      0 lime=1    1 (no key)  ]   partition 1, log start 1
    ```
    """
    topic = logs.create_topic("fruit", partitions=2)
    with at(T0, topic).transaction("loader") as txn:
        at(T0, txn).append(rows("lime=1", partition=0, timestamp_ms=T0))
    one_keyless = frame(spark, "lime=1 kiwi=1", partition=1, timestamp_ms=T0).withColumn("key", F.expr("nullif(key, 'kiwi')"))
    at(T0, topic).append(one_keyless)
    delete_records(at(T0, topic), {0: 1, 1: 1})

    for isolation in ("read_committed", "read_uncommitted"):
        assert by_arrow(topic).latest(isolation=isolation).num_rows == 0
        assert by_arrow(topic).scan_latest(isolation=isolation).collect().height == 0


def test_a_transaction_that_was_deleted_whole_holds_nothing_back(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """For any reader, whether retention has removed its rows or not, and whether the writer remembers it or not.

    ```
      0 lime=1 (loader)   1 kiwi=1   2 lime=2 (loader)   3 plum=1       loader's transaction is open
                        [ log start 1                                   last stable offset 1
                                                       [ log start 3    last stable offset 4: plum is the last word on plum
      4 lime=3 (loader)                                                 the transaction begins anew: last stable offset 4
      5 COMMIT                                                          lime=3
    ```
    """
    topic = logs.create_topic("fruit")
    path = topic.log.paths.root
    txn = at(T0, topic).transaction("loader")

    def stands() -> tuple[int, int, int]:
        forgetful = LogDir(spark, logs.location).topic("fruit")
        shutil.rmtree(forgetful.log.paths.producers, ignore_errors=True)
        seen = by_arrow(path).offsets()[0]
        for one in (topic, forgetful):
            (described,) = one.describe().partitions
            assert (described.log_start_offset, described.last_stable_offset, described.log_end_offset) == seen
            assert latest(one) == said(by_arrow(path).latest())
        assert words_of_sql(path, "read_committed") == words(by_arrow(path).latest())
        return seen

    at(T0, txn).append(rows("lime=1", timestamp_ms=T0))
    at(T0, topic).append(rows("kiwi=1", timestamp_ms=T0))
    at(T0, txn).append(rows("lime=2", timestamp_ms=T0))
    at(T0, topic).append(rows("plum=1", timestamp_ms=T0))
    assert stands() == (0, 0, 4)
    delete_records(at(T0, topic), {0: 1})
    assert stands() == (1, 1, 4)
    delete_records(at(T0, topic), {0: 3})
    assert stands() == (3, 4, 4)
    assert latest(topic) == {"plum": "1"}
    at(T0, txn).append(rows("lime=3", timestamp_ms=T0))
    assert stands() == (3, 4, 5)
    txn.commit()
    assert stands() == (3, 6, 6)
    assert latest(topic) == {"plum": "1", "lime": "3"}
    at(T0, topic).roll()
    delete_records(at(T0, topic), {0: 6})
    at(T0, topic).apply_retention()
    assert stands() == (6, 6, 6)


def test_a_restore_that_nobody_has_looked_back_at_does_not_make_dirty_records_clean(fruit: SparkTopic, spark: SparkSession) -> None:
    """The receipt's swap was taken back: everything is folded, though the ledger does not know it yet."""
    version = fruit.receipts()[0].table_version
    assert version is not None
    spark.sql(f"RESTORE delta.`{fruit.log.paths.log}` TO VERSION AS OF {version - 1}")

    assert newest_view(open_log(fruit.log.paths.root), "read_committed").first_dirty == (0,)
    assert said(by_arrow(fruit).latest()) == {"grape": "2", "lime": "2", "kiwi": "1"}


def test_a_restore_that_nobody_has_looked_back_at_brings_deleted_records_back(fruit: SparkTopic, spark: SparkSession) -> None:
    """As Spark's readers see it: a log start that was decided since is void."""
    at(T0, fruit).abort_transaction(fruit.open_transactions()[0].producer_id)
    version = fruit.log.snapshot().version
    delete_records(at(T0, fruit), {0: 6})
    path = fruit.log.paths.root
    log = open_log(path)
    assert (log.at().log_start_offsets, said(by_arrow(path).latest())) == ((6,), {})
    spark.sql(f"RESTORE delta.`{fruit.log.paths.log}` TO VERSION AS OF {version}")

    assert log.at().log_start_offsets == open_log(path).at().log_start_offsets == (0,)
    assert said(by_arrow(path).latest()) == {"grape": "2", "lime": "2", "kiwi": "1"}
    assert latest(fruit) == {"grape": "2", "lime": "2", "kiwi": "1"}


def test_a_log_dir_may_lie_below_folders_that_look_like_partitions(spark: SparkSession, tmp_path: Path) -> None:
    """`name=value` in a path is a column for whoever reads Hive's layout."""
    topic = LogDir(spark, str(tmp_path / "env=prod" / "partition=7")).create_topic("fruit", partitions=2)
    at(T0, topic).append(rows("lime=1 kiwi=2", partition=1, timestamp_ms=T0))

    assert said(by_arrow(topic).latest()) == {"lime": "1", "kiwi": "2"}
    found = by_arrow(topic).scan_records().select("partition", "offset", "value").collect()
    assert sorted(found.rows()) == [(1, 0, b"1"), (1, 1, b"2")]


_READS: dict[str, Callable[[ArrowTopic], Any]] = {
    "latest": lambda topic: topic.latest(),
    "a query of the lazy frame": lambda topic: topic.collect_latest(lambda words: words.collect().to_arrow()),
    "bootstrap": lambda topic: topic.bootstrap().rows,
}


@pytest.mark.parametrize("read", _READS.values(), ids=_READS)
def test_a_reader_whose_files_are_vacuumed_meanwhile_reads_the_newest_version(read: Callable[[ArrowTopic], Any], fruit: SparkTopic) -> None:
    """The first look finds a file gone; the second has another version."""
    looks = list[str]()

    class Stale(ArrowTopic):
        def _view(self, isolation: str) -> View:
            looks.append(isolation)
            view = super()._view(isolation)
            if len(looks) > 1:
                return view
            snapshot = view.state.snapshot
            files = replace(snapshot.files, path=np.full(len(snapshot.files.path), "gone.parquet", dtype=object))
            return replace(view, state=replace(view.state, snapshot=replace(snapshot, files=files)))

    logs = LogDir(Path(fruit.log.paths.root).parent)
    assert said(read(Stale(logs, logs.log("fruit")))) == {"grape": "2", "lime": "2", "kiwi": "1"}
    assert len(looks) == 2


def test_a_value_that_is_not_allowed_is_named_with_what_is(fruit: SparkTopic) -> None:
    """Nothing is guessed."""
    refusals: dict[str, dict[str, Any]] = {
        "isolation 'committed': allowed is read_committed or read_uncommitted": {"isolation": "committed"},
        "unknown column 'price': allowed are partition, offset": {"columns": ["price"]},
        "topic fruit has no partition 3: allowed is 0 to 0": {"partitions": [3]},
    }
    for told, asked in refusals.items():
        topic = by_arrow(fruit)
        for read in (topic.latest, topic.scan_latest, topic.records, topic.scan_records):
            with pytest.raises(UserError, match=told):
                read(**asked)


@pytest.mark.torture
@pytest.mark.timeout(3_600)
def test_many_random_logs_read_the_same_in_every_engine(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """Forty histories of thirty random steps."""
    _Read(spark, logs, random.Random(seed_of_this_run()), "lives", 40).live(30)
