"""`format("lastword")`: batches and streams of a topic, through cleaning, VACUUM, restarts, deletions and RESTORE."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

import pyspark_lastword
from lastword.compaction.errors import UserError
from lastword.storage.log.topic_log import open_log
from lastword.storage.reading.arrow_ranges import read_split, split_range
from lastword.storage.reading.view import newest_view
from pyspark_lastword import DefaultSource
from tests.clocks import at
from tests.pictures import DAY_MS, T0, by_arrow, delete_records, frame, rows, text, vacuum
from tests.releases import streams_of_the_format

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from lastword import LogDir, Topic
    from lastword.storage.reading.arrow_ranges import RangeSplit

_COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01}


def drawn(frame: DataFrame) -> list[str]:
    """Return rows in the order in which Spark gives them."""
    return [f"{row['offset']} {text(row['key'])}={text(row['value'])}" for row in frame.collect()]


class Reader:
    """A streaming query that goes on where it stopped, and keeps what it read, micro-batch by micro-batch."""

    def __init__(self, spark: SparkSession, topic: Topic, folder: Path, **options: Any) -> None:
        """Read a topic with the options of the source, earliest first."""
        self.spark, self.topic, self.folder = spark, topic, folder
        self.options = {"startingOffsets": "earliest", **options}
        self.read: list[list[str]] = []

    def catch_up(self, **options: Any) -> list[str]:
        """Read everything that is there, stop, and return it."""
        before = len(self.read)
        source = self.spark.readStream.format("lastword").options(**self.options, **options).load(self.topic.log.paths.root)
        writer = source.writeStream.option("checkpointLocation", str(self.folder)).trigger(availableNow=True)
        writer.foreachBatch(lambda frame, _: self.read.append(drawn(frame))).start().awaitTermination()
        return [row for batch in self.read[before:] for row in batch]


@pytest.fixture
def fruit(spark: SparkSession, logs: LogDir) -> Topic:
    """Return a topic with grape, lime and a deleted kiwi in a closed segment, and lime once more: 0 to 4."""
    topic = logs.create_topic("fruit", config=_COMPACT)
    at(T0, topic).append(rows("grape=1 lime=1 kiwi=∅ grape=2", timestamp_ms=T0))
    at(T0, topic).roll()
    at(T0, topic).append(rows("lime=2", timestamp_ms=T0 + 10))
    return topic


def test_a_batch_has_the_columns_of_the_kafka_source(spark: SparkSession, fruit: Topic) -> None:
    """Names, types and values; headers on request; a range by offsets and by timestamp."""
    source = spark.read.format("lastword")
    path = fruit.log.paths.root
    everything = source.load(path)

    assert everything.dtypes == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
    ]
    assert drawn(everything) == ["0 grape=1", "1 lime=1", "2 kiwi=∅", "3 grape=2", "4 lime=2"]
    shown = everything.select("topic", "partition", F.unix_millis("timestamp"), "timestampType").first()
    assert shown is not None
    assert tuple(shown) == ("fruit", 0, T0, 0)
    assert source.option("includeHeaders", "true").load(path).dtypes[-1] == ("headers", "array<struct<key:string,value:binary>>")
    by_offset = spark.read.format("lastword").option("startingOffsets", '{"0": 1}').option("endingOffsets", '{"0": 3}')
    assert drawn(by_offset.load(path)) == ["1 lime=1", "2 kiwi=∅"]
    assert drawn(spark.read.format("lastword").option("startingTimestamp", T0 + 1).load(path)) == ["4 lime=2"]


def test_a_topic_is_a_view_of_spark_sql(spark: SparkSession, fruit: Topic, logs: LogDir) -> None:
    """By its folder, or by log.dir and name."""
    for number, options in enumerate((f"path '{fruit.log.paths.root}'", f"path '{logs.location}', topic 'fruit'")):
        spark.sql(f"CREATE TEMPORARY VIEW fruit_{number} USING lastword OPTIONS ({options})")
        assert spark.sql(f"SELECT max(offset), count(*) FROM fruit_{number}").first() == (4, 5)  # noqa: S608  a name of ours
        spark.catalog.dropTempView(f"fruit_{number}")


def test_a_batch_agrees_with_arrow_on_transactions_and_headers(spark: SparkSession, logs: LogDir) -> None:
    """Two partitions, an aborted transaction and an open one, a record with headers."""
    topic = logs.create_topic("mixed", partitions=2, config=_COMPACT)
    headed = frame(spark, "a=1 b=1 c=1 d=1").withColumn(
        "headers", F.expr("array(named_struct('key', 'h', 'value', CAST('x' AS BINARY)), named_struct('key', 'n', 'value', NULL))")
    )
    topic.append(headed.withColumn("partition", F.expr("CAST(ascii(key) % 2 AS INT)")))
    topic.transaction("aborts").__enter__().append(rows("a=2 b=2 c=2"))
    topic.abort_transaction(topic.open_transactions()[0].producer_id)
    topic.transaction("stays-open").__enter__().append(rows("d=3", partition=1))
    topic.append(rows("e=4", partition=1))
    path = topic.log.paths.root

    for isolation in ("read_committed", "read_uncommitted"):
        found = spark.read.format("lastword").option("isolation", isolation).option("includeHeaders", "true").load(path)
        columns = ["partition", "offset", "key", "value", "headers"]
        expected = by_arrow(path).records(isolation=isolation, columns=columns).to_pylist()
        assert [row.asDict(recursive=True) for row in found.select(columns).collect()] == expected
    assert {row["key"] for row in by_arrow(path).records(isolation="read_committed").to_pylist()} == {b"a", b"b", b"c", b"d"}


@streams_of_the_format
def test_a_stream_survives_cleaning_vacuum_and_restarts(spark: SparkSession, fruit: Topic, tmp_path: Path) -> None:
    """It goes on by offset: what was compacted away is skipped, what survived comes, once and in order."""
    reader = Reader(spark, fruit, tmp_path, maxOffsetsPerTrigger=2)

    assert reader.catch_up() == ["0 grape=1", "1 lime=1", "2 kiwi=∅", "3 grape=2", "4 lime=2"]
    assert [len(batch) for batch in reader.read] == [2, 2, 1]
    at(T0, fruit).append(rows("fig=1 fig=2 lime=3", timestamp_ms=T0))
    at(T0, fruit).roll()
    at(T0, fruit).append(rows("plum=1", timestamp_ms=T0))
    at(T0, fruit).clean(force=True)
    vacuum(fruit, spark)
    assert reader.catch_up() == ["6 fig=2", "7 lime=3", "8 plum=1"]
    assert reader.catch_up() == []


@streams_of_the_format
def test_a_micro_batch_that_comes_again_after_a_cleaning_reads_what_survives_of_it(
    spark: SparkSession, fruit: Topic, tmp_path: Path
) -> None:
    """It fails once; then the log is cleaned and vacuumed, and has grown: the same offsets come again, then what is new."""
    source = spark.readStream.format("lastword").option("startingOffsets", "earliest").load(fruit.log.paths.root)

    def fail(_frame: DataFrame, _number: int) -> None:
        raise ZeroDivisionError

    writer = source.writeStream.option("checkpointLocation", str(tmp_path / "query")).trigger(availableNow=True)
    with pytest.raises(StreamingQueryException, match="ZeroDivisionError"):
        writer.foreachBatch(fail).start().awaitTermination()
    at(T0, fruit).append(rows("fig=1", timestamp_ms=T0))
    at(T0, fruit).clean(force=True)
    vacuum(fruit, spark)

    reader = Reader(spark, fruit, tmp_path / "query")
    reader.catch_up()
    assert reader.read == [["1 lime=1", "2 kiwi=∅", "3 grape=2", "4 lime=2"], ["5 fig=1"]]


@streams_of_the_format
def test_a_stream_ends_its_micro_batches_at_the_last_stable_offset(spark: SparkSession, fruit: Topic, tmp_path: Path) -> None:
    """What is open waits; what was aborted never comes; a read_uncommitted stream sees both. A new stream starts at the latest offsets."""
    committed, uncommitted = Reader(spark, fruit, tmp_path / "a"), Reader(spark, fruit, tmp_path / "b", isolation="read_uncommitted")
    late = Reader(spark, fruit, tmp_path / "c", startingOffsets="latest")
    assert (len(committed.catch_up()), len(uncommitted.catch_up()), late.catch_up()) == (5, 5, [])
    opened = at(T0, fruit).transaction("loader")
    at(T0, opened.__enter__()).append(rows("fig=1"))
    at(T0, fruit).append(rows("plum=1"))

    assert (committed.catch_up(), uncommitted.catch_up()) == ([], ["5 fig=1", "6 plum=1"])
    at(T0, fruit).abort_transaction(fruit.open_transactions()[0].producer_id)
    assert (committed.catch_up(), uncommitted.catch_up(), late.catch_up()) == (["6 plum=1"], [], ["6 plum=1"])


@streams_of_the_format
def test_a_reader_that_missed_a_tombstone_is_told_and_may_go_on(spark: SparkSession, fruit: Topic, tmp_path: Path) -> None:
    """Kafka does not notice: the reader would keep kiwi for ever. It is told before it reads on, with partition, offset and the way out."""
    reader = Reader(spark, fruit, tmp_path)
    reader.catch_up()
    at(T0, fruit).append(rows("lime=∅ fig=1", timestamp_ms=T0))
    at(T0, fruit).roll()
    at(T0, fruit).append(rows("fig=2", timestamp_ms=T0))
    at(T0, fruit).clean(force=True)
    at(T0 + 2 * DAY_MS, fruit).clean()

    told = r"partition 0, offset 5: tombstones up to offset 5 were removed(.|\n)*bootstrap(.|\n)*onMissedTombstones=warn"
    with pytest.raises(StreamingQueryException, match=told):
        reader.catch_up()
    assert reader.catch_up(onMissedTombstones="warn") == ["6 fig=1", "7 fig=2"]
    at(T0, fruit).append(rows("fig=3"))
    assert reader.catch_up() == ["8 fig=3"], "it was told once"

    with pytest.raises(StreamingQueryException, match=r"partition 0, offset 1: tombstones up to offset 5 were removed"):
        Reader(spark, fruit, tmp_path / "remembered", startingOffsets='{"0": 1}').catch_up()
    assert Reader(spark, fruit, tmp_path / "anew", startingOffsets='{"0": 0}').catch_up()[-1] == "8 fig=3", "it holds nothing yet"


@streams_of_the_format
def test_deleted_and_restored_records_are_data_loss(spark: SparkSession, fruit: Topic, tmp_path: Path) -> None:
    """Records below the log start before they were read; records that a RESTORE took back after they were."""
    behind, ahead = Reader(spark, fruit, tmp_path / "a", startingOffsets='{"0": 1}'), Reader(spark, fruit, tmp_path / "b")
    behind.catch_up(), ahead.catch_up()
    version = fruit.log.snapshot().version
    at(T0, fruit).append(rows("fig=1 fig=2"))
    ahead.catch_up()
    delete_records(at(T0, fruit), {0: 6})

    with pytest.raises(StreamingQueryException, match=r"the records 5 to 5 were deleted; the log starts at 6(.|\n)*failOnDataLoss=false"):
        behind.catch_up()
    assert behind.catch_up(failOnDataLoss="false") == ["6 fig=2"]
    spark.sql(f"RESTORE delta.`{fruit.log.paths.log}` TO VERSION AS OF {version}")
    at(T0, fruit).append(rows("plum=1 plum=2 plum=3"))
    with pytest.raises(StreamingQueryException, match=r"the log was taken back to offset 5 by a RESTORE"):
        ahead.catch_up()
    assert ahead.catch_up(failOnDataLoss="false") == [row for row in ("5 plum=1", "6 plum=2", "7 plum=3") if row[0] >= str(start(fruit))]


@streams_of_the_format
def test_a_stream_of_a_topic_that_was_created_anew_is_told(spark: SparkSession, logs: LogDir, fruit: Topic, tmp_path: Path) -> None:
    """Its offsets mean nothing in the new log, whatever that has by then; it begins there when it accepts the loss."""
    reader = Reader(spark, fruit, tmp_path)
    reader.catch_up()
    at(T0, logs).delete_topic("fruit")
    at(T0, at(T0, logs).create_topic("fruit")).append(rows("fig=1"))

    with pytest.raises(StreamingQueryException, match="the topic was deleted, and another was created under its name"):
        reader.catch_up()
    assert reader.catch_up(failOnDataLoss="false") == ["0 fig=1"]


def test_a_spark_that_does_not_say_where_a_stream_is_is_told_to_use_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark 4.0 and 4.1 have no such interface; batches need none of it."""
    monkeypatch.delitem(sys.modules, "pyspark_lastword.stream", raising=False)
    monkeypatch.delattr(pyspark_lastword, "stream", raising=False)
    monkeypatch.setattr(sys, "meta_path", [_Without("pyspark.sql.streaming.datasource"), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "pyspark.sql.streaming.datasource", raising=False)
    source = DefaultSource({"path": "data/fruit"})

    with pytest.raises(UserError, match=r"streams on Spark 4\.2 .*use SparkTopic\.tail\(\)"):
        source.streamReader(StructType([]))
    assert vars(source.reader(StructType([])))["columns"] == ()
    monkeypatch.setattr(sys, "meta_path", [_Without("pyspark_lastword.stream"), *sys.meta_path])
    with pytest.raises(ModuleNotFoundError) as broken:
        source.streamReader(StructType([]))
    assert broken.value.name == "pyspark_lastword.stream", "what else is missing is no matter of the release"


class _Without:
    """An import system in which a module is not there."""

    def __init__(self, name: str) -> None:
        """Take the name of the module."""
        self.name = name

    def find_spec(self, name: str, *_: Any) -> None:
        """Raise for that module what Python raises; leave the others to the next finder."""
        if name == self.name:
            raise ModuleNotFoundError(name=name)


def start(topic: Topic) -> int:
    """Return the log start offset."""
    return by_arrow(topic).offsets()[0].log_start


def test_a_planned_split_whose_files_are_gone_is_read_from_the_newest_version(spark: SparkSession, fruit: Topic) -> None:
    """Swapped and vacuumed between planning and reading, and in the middle of reading: no row is lost, none comes twice."""
    root = fruit.log.paths.root
    view = newest_view(open_log(root), "read_committed")
    whole = split_range(view, root, [0], [5])
    tiles = split_range(view, root, [0], [5], split_bytes=1)
    assert [(one.begin, one.end) for one in tiles] == [(0, 4), (4, 5)]
    started = read_split(tiles[0], ["offset"], batch_rows=1)
    first = next(started).to_pylist()
    at(T0, fruit).clean(force=True)
    vacuum(fruit, spark)

    def left(split: RangeSplit) -> list[int]:
        return [row["offset"] for batch in read_split(split, ["offset"], batch_rows=1) for row in batch.to_pylist()]

    assert left(whole[0]) == [1, 2, 3, 4]
    assert [left(one) for one in tiles] == [[1, 2, 3], [4]]
    assert first == [{"offset": 0}]
    assert [row["offset"] for batch in started for row in batch.to_pylist()] == [1, 2, 3], "the open file is read to its end"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"startingOffset": "earliest"}, "startingoffset = earliest: unknown option; did you mean startingOffsets"),
        ({"isolation": "committed"}, "isolation = committed: allowed is read_committed or read_uncommitted"),
        ({"failOnDataLoss": "no"}, "failOnDataLoss = no: allowed is true or false"),
    ],
)
def test_an_option_that_is_not_allowed_is_named_with_what_is(spark: SparkSession, fruit: Topic, options: dict[str, Any], told: str) -> None:
    """As soon as the source is loaded."""
    with pytest.raises(AnalysisException, match=told):
        spark.read.format("lastword").options(**options).load(fruit.log.paths.root)


def test_offsets_that_are_not_there_and_options_of_the_other_kind_are_refused(spark: SparkSession, fruit: Topic) -> None:
    """The message names the value and what is allowed."""
    batch = spark.read.format("lastword")
    for options, told in (
        ({"startingOffsets": '{"0": 99}'}, r"startingOffsets \{0: 99\}: allowed is partition 0 up to 5"),
        ({"startingOffsets": '{"0": 0, "7": 0}'}, "unknown partition 7"),
        ({"startingOffsets": "latest"}, "allowed is earliest or JSON"),
        ({"maxOffsetsPerTrigger": "5"}, "a batch has no triggers"),
    ):
        with pytest.raises(PySparkException, match=told):
            batch.options(**options).load(fruit.log.paths.root).collect()
        batch = spark.read.format("lastword")
