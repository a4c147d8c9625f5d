"""The tail: from an offset vector on, over cleaning, VACUUM, RESTORE and restarts, as a stream that Spark treats like any other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from delta.tables import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

from lastword.compaction.errors import InvalidConfiguration, OffsetOutOfRange, UserError
from tests.clocks import at
from tests.pictures import DAY_MS, HOUR_MS, T0, delete_records, log, rows, text, vacuum

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from lastword import LogDir, SparkTopic


class Reader:
    """A query over a tail that keeps what it was given, micro-batch by micro-batch, and can be stopped and started again."""

    def __init__(self, tail: DataFrame, checkpoint: Path) -> None:
        """Read `tail` with its progress in `checkpoint`."""
        self.tail, self.checkpoint = tail, checkpoint
        self.micro_batches: list[list[str]] = []

    def catch_up(self, tail: DataFrame | None = None) -> list[list[str]]:
        """Read all there is, and return the micro-batches that this start brought, as `offset key=value`."""
        begun = len(self.micro_batches)
        query = (tail or self.tail).writeStream.foreachBatch(self._take).option("checkpointLocation", str(self.checkpoint))
        query.trigger(availableNow=True).start().awaitTermination()
        return self.micro_batches[begun:]

    def _take(self, micro_batch: DataFrame, _batch_id: int) -> None:
        found = micro_batch.orderBy("partition", "offset").collect()
        self.micro_batches.append([f"{row['offset']} {text(row['key'])}={text(row['value'])}" for row in found])


@pytest.fixture
def topic(logs: LogDir[SparkTopic]) -> SparkTopic:
    """Return a compacted topic of one partition whose cleaner waits for nothing."""
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0, "delete.retention.ms": "1h"}
    return at(T0, logs).create_topic("fruit-prices", config=config)


def append(topic: SparkTopic, spark: SparkSession, picture: str, *, now_ms: int = T0, roll: bool = True) -> None:
    """Append what a picture draws, and close the segment."""
    at(now_ms, topic).append(rows(picture))
    if roll:
        at(now_ms, topic).roll()


def test_a_tail_goes_on_exactly_where_the_bootstrap_ended(topic: SparkTopic, spark: SparkSession, tmp_path: Path) -> None:
    """Bootstrap at a table version, then every record after it once: in micro-batches, over a restart, tombstones included."""
    append(topic, spark, "grape=1 lime=1 grape=2")
    bootstrap = topic.bootstrap()
    append(topic, spark, "lime=∅ kiwi=1")

    assert {text(row["key"]): text(row["value"]) for row in bootstrap.rows.collect()} == {"grape": "2", "lime": "1"}
    reader = Reader(topic.tail(bootstrap.position), tmp_path / "checkpoint")
    assert reader.catch_up() == [["3 lime=∅", "4 kiwi=1"]]

    append(topic, spark, "kiwi=2")
    assert reader.catch_up() == [["5 kiwi=2"]]
    assert reader.catch_up() == []


def test_starting_points_are_those_of_the_kafka_source(topic: SparkTopic, spark: SparkSession, tmp_path: Path) -> None:
    """Earliest, latest as of the call, an offset for each partition as mapping or JSON, and a moment."""
    at(T0, topic).append(rows("a=1 b=1", timestamp_ms=T0))
    at(T0, topic).append(rows("c=1 d=1", timestamp_ms=T0 + HOUR_MS))
    latest = topic.tail("latest")
    at(T0, topic).append(rows("e=1", timestamp_ms=T0))

    def first(tail: DataFrame, name: str) -> list[str]:
        return [record for micro_batch in Reader(tail, tmp_path / name).catch_up() for record in micro_batch]

    everything = ["0 a=1", "1 b=1", "2 c=1", "3 d=1", "4 e=1"]
    assert first(topic.tail(), "earliest") == everything
    assert first(latest, "latest") == everything[4:]
    assert first(topic.tail({0: 1}), "mapping") == everything[1:]
    assert first(topic.tail('{"0": -2}'), "json") == everything
    assert first(topic.tail(starting_timestamp=T0 + 1), "timestamp") == everything[2:]
    assert first(topic.tail(starting_timestamp=T0 + DAY_MS), "none so young") == []


def test_a_moment_is_found_behind_records_that_are_not_seen(topic: SparkTopic, spark: SparkSession, tmp_path: Path) -> None:
    """The first file that reaches so far was deleted, or holds nothing but what was aborted: Kafka's offsetsForTimes goes on."""
    for offset, picture in enumerate(("a=1 a=2", "b=1", "c=1")):
        at(T0, topic).append(rows(picture, timestamp_ms=T0 + offset))
    delete_records(at(T0, topic), {0: 1})
    aborted = at(T0, topic).transaction("loader-1")
    at(T0, aborted).append(rows("d=1", timestamp_ms=T0 + HOUR_MS))
    at(T0, aborted).abort()
    at(T0, topic).append(rows("e=1", timestamp_ms=T0 + HOUR_MS))

    def first(moment_ms: int) -> str:
        [[record, *_]] = Reader(topic.tail(starting_timestamp=moment_ms), tmp_path / str(moment_ms)).catch_up()
        return record

    assert [first(T0), first(T0 + 1), first(T0 + HOUR_MS)] == ["1 a=2", "2 b=1", "6 e=1"]
    delete_records(at(T0, topic), {0: 2})
    assert first(T0 - 1) == "2 b=1"


def test_a_reader_of_a_topic_that_was_created_anew_is_told_and_pins_nothing_there(
    topic: SparkTopic, logs: LogDir[SparkTopic], spark: SparkSession, tmp_path: Path
) -> None:
    """Its offsets mean nothing in the new log, whatever that has by then; it begins there when it accepts the loss."""
    append(topic, spark, "a=1 b=1")
    reader = Reader(topic.tail(reader="loader"), tmp_path / "checkpoint")
    assert reader.catch_up() == [["0 a=1", "1 b=1"]]

    at(T0, logs).delete_topic("fruit-prices")
    anew = at(T0, logs).create_topic("fruit-prices", partitions=2)
    for key in "cde":
        at(T0, anew).append(rows(f"{key}=1", partition=0))
    with pytest.raises(StreamingQueryException, match="the topic was deleted, and another was created under its name"):
        reader.catch_up(anew.tail(reader="loader"))
    assert [anew.readers(), at(T0, anew).explain()[0].partition] == [[], 0]

    accepting = anew.tail(reader="loader", fail_on_data_loss=False)
    assert reader.catch_up(accepting) == [["0 c=1", "1 d=1", "2 e=1"]]
    [known] = anew.readers()
    assert known.offsets == (3, 0)


def test_a_micro_batch_has_no_more_offsets_than_it_may(topic: SparkTopic, spark: SparkSession, tmp_path: Path) -> None:
    """Three offsets at a time; the order of a partition holds from one micro-batch to the next."""
    append(topic, spark, "a=1 b=2 c=3 d=4 e=5 f=6 g=7")
    found = Reader(topic.tail(max_offsets_per_trigger=3), tmp_path / "checkpoint").catch_up()
    assert found == [["0 a=1", "1 b=2", "2 c=3"], ["3 d=4", "4 e=5", "5 f=6"], ["6 g=7"]]


def test_what_was_compacted_away_is_skipped_and_nothing_that_survived_is_missed(
    topic: SparkTopic, spark: SparkSession, tmp_path: Path
) -> None:
    """A reader sleeps through a cleaning and a VACUUM of everything that it had seen."""
    append(topic, spark, "a=1 b=1")
    reader = Reader(topic.tail(max_offsets_per_trigger=1), tmp_path / "checkpoint")
    assert reader.catch_up() == [["0 a=1"], ["1 b=1"]]

    append(topic, spark, "a=2 b=2 a=3")
    append(topic, spark, "c=1", roll=False)
    at(T0, topic).clean()
    vacuum(topic, spark)

    assert log(topic) == ["3 b=2", "4 a=3", "5 c=1"]
    assert [record for one in reader.catch_up() for record in one] == ["3 b=2", "4 a=3", "5 c=1"]


def test_a_read_committed_tail_ends_at_the_last_stable_offset(topic: SparkTopic, spark: SparkSession, tmp_path: Path) -> None:
    """Nothing of an open transaction, nothing of an aborted one, and what stands behind an open one waits with it."""
    committed = Reader(topic.tail(), tmp_path / "committed")
    uncommitted = Reader(topic.tail(isolation="read_uncommitted"), tmp_path / "uncommitted")
    aborted = at(T0, topic).transaction("loader-1")
    at(T0, aborted).append(rows("a=1"))
    at(T0, topic).append(rows("b=1"))
    assert committed.catch_up() == [[]]
    assert uncommitted.catch_up() == [["0 a=1", "1 b=1"]]

    at(T0, aborted).abort()
    assert committed.catch_up() == [["1 b=1"]]
    with at(T0, topic).transaction("loader-1") as transaction:
        at(T0, transaction).append(rows("c=1"))
        assert committed.catch_up() == []
    assert committed.catch_up() == [["3 c=1"]]


def test_a_reader_paused_in_front_of_a_tombstone_is_told_once_it_is_gone(topic: SparkTopic, spark: SparkSession, tmp_path: Path) -> None:
    """The tombstone is written behind the reader's back, cleaned and kept (still readable), and at last removed: then it is told.

    It is docs/semantics.md#B.12.
    """
    append(topic, spark, "grape=1 lime=1")
    early, late = (Reader(topic.tail(), tmp_path / name) for name in ("early", "late"))
    for reader in (early, late):
        assert reader.catch_up() == [["0 grape=1", "1 lime=1"]]

    append(topic, spark, "grape=∅ kiwi=1")
    append(topic, spark, "fig=1", roll=False)
    at(T0, topic).clean()
    assert early.catch_up() == [["2 grape=∅", "3 kiwi=1", "4 fig=1"]]

    at(T0 + HOUR_MS, topic).clean()
    assert log(topic) == ["1 lime=1", "3 kiwi=1", "4 fig=1"]
    with pytest.raises(StreamingQueryException, match=r"partition 0, offset 2: tombstones up to offset 2 were removed .*\n.*[Bb]ootstrap"):
        late.catch_up()
    assert early.catch_up() == []

    told = late.catch_up(topic.tail(on_missed_tombstones="warn"))
    assert told == [["3 kiwi=1", "4 fig=1"]]
    assert late.catch_up() == []


def test_a_registered_reader_pins_the_tombstones_that_it_has_not_read(topic: SparkTopic, spark: SparkSession, tmp_path: Path) -> None:
    """Until it has read them; or has not been seen for its expiration; or is dropped."""
    moment = T0
    tail = at(lambda: moment, topic).tail(reader="orders-cache", reader_expiration_ms=DAY_MS)
    append(topic, spark, "grape=1 lime=1")
    reader = Reader(tail, tmp_path / "checkpoint")
    assert reader.catch_up() == [["0 grape=1", "1 lime=1"]]
    assert [(one.name, one.offsets, one.lag, one.expired) for one in at(T0, topic).readers()] == [("orders-cache", (2,), 0, False)]

    append(topic, spark, "grape=∅")
    append(topic, spark, "fig=1", roll=False)
    at(T0, topic).clean()
    assert at(T0 + 2 * HOUR_MS, topic).clean() == [], "the tombstone's horizon has passed, but the reader waits for it"
    assert [one.lag for one in at(T0, topic).readers()] == [2]
    moment = T0 + 2 * HOUR_MS
    assert reader.catch_up() == [["2 grape=∅", "3 fig=1"]]
    assert [one.removed for one in at(moment, topic).clean()] == [{"expired_tombstone": 1}]

    append(topic, spark, "lime=∅")
    append(topic, spark, "kiwi=1", roll=False)
    at(moment, topic).clean()
    assert at(moment + DAY_MS - 1, topic).clean() == []
    topic.drop_reader("orders-cache")
    assert [one.removed for one in at(moment + DAY_MS - 1, topic).clean()] == [{"expired_tombstone": 1}]
    with pytest.raises(UserError, match="knows no reader 'orders-cache'; known: none"):
        topic.drop_reader("orders-cache")


def test_a_fresh_reader_is_not_told_of_tombstones_that_went_before_it_came(topic: SparkTopic, spark: SparkSession, tmp_path: Path) -> None:
    """It never saw the key that they deleted."""
    append(topic, spark, "grape=1 grape=∅ lime=1")
    append(topic, spark, "fig=1", roll=False)
    at(T0, topic).clean()
    at(T0 + HOUR_MS, topic).clean()
    assert Reader(topic.tail(), tmp_path / "checkpoint").catch_up() == [["2 lime=1", "3 fig=1"]]


def test_an_abort_marker_that_went_is_not_missed(topic: SparkTopic, spark: SparkSession, tmp_path: Path) -> None:
    """A reader between an aborted record and its marker: the cleaner takes the record with the marker's transaction, never half."""
    append(topic, spark, "a=1")
    reader = Reader(topic.tail(max_offsets_per_trigger=1), tmp_path / "checkpoint")
    assert reader.catch_up() == [["0 a=1"]]
    transaction = at(T0, topic).transaction("loader-1")
    at(T0, transaction).append(rows("a=2"))
    at(T0, transaction).abort()
    append(topic, spark, "b=1")
    append(topic, spark, "c=1", roll=False)
    at(T0, topic).clean()
    at(T0 + HOUR_MS, topic).clean()
    at(T0 + 2 * DAY_MS, topic).clean()
    assert [record for one in reader.catch_up() for record in one] == ["3 b=1", "4 c=1"]


def test_records_deleted_before_they_were_read_are_told(topic: SparkTopic, spark: SparkSession, tmp_path: Path) -> None:
    """As failOnDataLoss of Spark's Kafka source: an error that says what is gone, or a warning and the log start."""
    append(topic, spark, "a=1 b=1")
    reader = Reader(topic.tail(), tmp_path / "checkpoint")
    assert reader.catch_up() == [["0 a=1", "1 b=1"]]
    append(topic, spark, "c=1 d=1 e=1")
    delete_records(at(T0, topic), {0: 4})
    with pytest.raises(StreamingQueryException, match=r"partition 0, offset 2: the records 2 to 3 were deleted; the log starts at 4"):
        reader.catch_up()
    assert reader.catch_up(topic.tail(fail_on_data_loss=False)) == [["4 e=1"]]


def test_a_reader_beyond_a_restore_is_told(topic: SparkTopic, spark: SparkSession, tmp_path: Path) -> None:
    """Its records were taken back, and their offsets given again: also when the log has grown past it since."""
    append(topic, spark, "a=1 b=1")
    version = topic.log.snapshot().version
    append(topic, spark, "c=1 d=1")
    reader = Reader(topic.tail(), tmp_path / "checkpoint")
    assert reader.catch_up() == [["0 a=1", "1 b=1", "2 c=1", "3 d=1"]]

    DeltaTable.forPath(spark, topic.log.paths.log).restoreToVersion(version)
    append(topic, spark, "e=1 f=1 g=1")
    with pytest.raises(StreamingQueryException, match=r"partition 0, offset 4: the log was taken back to offset 2 by a RESTORE"):
        reader.catch_up()
    assert reader.catch_up(topic.tail(fail_on_data_loss=False)) == [["2 e=1", "3 f=1", "4 g=1"]]


def test_a_tail_is_a_stream_like_any_other(topic: SparkTopic, spark: SparkSession, tmp_path: Path) -> None:
    """A stateful aggregation, a projection and a processing-time trigger over several partitions."""
    append(topic, spark, "a=1 b=1 a=2")
    counts = topic.tail().groupBy(F.col("key").cast("string").alias("key")).count()
    query: Any = counts.writeStream.format("memory").queryName("tail_counts").outputMode("complete")
    query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(processingTime="0 seconds").start()
    try:
        query.processAllAvailable()
        append(topic, spark, "b=2 c=1")
        query.processAllAvailable()
        assert {row["key"]: row["count"] for row in spark.table("tail_counts").collect()} == {"a": 2, "b": 2, "c": 1}
    finally:
        query.stop()


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        ({"starting_offsets": {0: 9}}, OffsetOutOfRange, r"starting_offsets \{0: 9\}: allowed is partition 0 up to 1"),
        ({"starting_offsets": {1: 0}}, UserError, r"unknown partition 1|no offset for partition 0"),
        ({"starting_offsets": "yesterday"}, UserError, r"'yesterday': allowed is earliest, latest or an offset"),
        ({"isolation": "serializable"}, InvalidConfiguration, r"isolation = serializable: read_committed or read_uncommitted"),
        ({"max_offsets_per_trigger": 0}, InvalidConfiguration, r"max_offsets_per_trigger = 0: 1 or more"),
        ({"on_missed_tombstones": "ignore"}, InvalidConfiguration, r"on_missed_tombstones = ignore: error or warn"),
        ({"starting_timestamp": "noon"}, UserError, r"starting_timestamp = 'noon': allowed is milliseconds"),
    ],
)
def test_options_that_cannot_be_are_named_with_what_is_allowed(
    topic: SparkTopic, spark: SparkSession, given: dict[str, Any], error: type[Exception], told: str
) -> None:
    """Before anything starts."""
    append(topic, spark, "a=1")
    with pytest.raises(error, match=told):
        topic.tail(**given)
