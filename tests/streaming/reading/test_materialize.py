"""Tables and other sinks as streaming queries: the steps are those of `lastword.storage.tables`, Spark starts, shows and stops them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from lastword import clock
from lastword.compaction.errors import ReaderBehind, UserError
from lastword.storage.delta import crash_points
from lastword.storage.delta.crash_points import CrashPoint
from lastword.topics.tables import TablePaused, keep_table
from tests.clocks import at
from tests.pictures import T0, delete_records, rows, text

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from lastword import LogDir, SparkTopic
    from lastword.compaction.read_positions import Position
    from lastword.topics.tables import TableProgress

_ONCE = {"availableNow": True}
#: A table of any values: keys and values as bytes.
_BYTES: dict[str, Any] = {"record_columns": ["_offset", "_value"]}


@pytest.fixture
def topic(logs: LogDir[SparkTopic]) -> SparkTopic:
    """Return a compacted topic of two partitions whose cleaner waits for nothing."""
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0, "delete.retention.ms": "1h"}
    return at(T0, logs).create_topic("fruit-prices", partitions=2, config=config)


def append(topic: SparkTopic, picture: str) -> None:
    """Append what a picture draws to partition 0, and close the segment."""
    at(T0, topic).append(rows(picture, partition=0))
    at(T0, topic).roll()


def catch_up(topic: SparkTopic, location: str | Path, **options: Any) -> TableProgress:
    """Take all steps that there are, and stop; return what was done."""
    query = topic.materialize(str(location), trigger=_ONCE, **{**_BYTES, **options})
    query.awaitTermination()
    return query.progress


def words(spark: SparkSession, location: str | Path) -> str:
    """Return a table as a picture, by key."""
    found = spark.read.format("delta").load(str(location)).collect()
    return " ".join(sorted(f"{text(row['_key'])}={text(row['_value'])}" for row in found))


def is_right(topic: SparkTopic, spark: SparkSession, location: str | Path) -> None:
    """Check a table against the log at the position that the table has, row by row."""
    position = keep_table(topic.log, str(location), storage_options={}, clock_ms=clock.now_ms, **_BYTES).table.position()
    assert position is not None
    expected = topic.latest(as_of=position).select("partition", "key", "value", "offset").collect()
    found = spark.read.format("delta").load(str(location)).select("_partition", "_key", "_value", "_offset").collect()
    assert sorted(map(tuple, found)) == sorted(map(tuple, expected))


def test_a_table_follows_the_log_over_restarts_and_cleaning(topic: SparkTopic, spark: SparkSession, tmp_path: Path) -> None:
    """Bootstrap, then updates, inserts and deletes; a key that comes back; nothing new is no commit."""
    append(topic, "grape=1 lime=1 grape=2")
    assert catch_up(topic, tmp_path / "table").kind == "bootstrap"
    assert words(spark, tmp_path / "table") == "grape=2 lime=1"

    append(topic, "lime=∅ kiwi=1 grape=3 kiwi=2 fig=∅")
    done = catch_up(topic, tmp_path / "table")
    assert (done.kind, done.steps, done.written_rows, done.deleted_rows, done.position.offsets) == ("step", 1, 2, 2, (8, 0))
    assert words(spark, tmp_path / "table") == "grape=3 kiwi=2"

    at(T0, topic).clean()
    append(topic, "lime=9")
    catch_up(topic, tmp_path / "table")
    assert catch_up(topic, tmp_path / "table").steps == 0
    assert words(spark, tmp_path / "table") == "grape=3 kiwi=2 lime=9"


def test_a_running_query_takes_what_comes_and_ends_after_the_commit_in_hand(topic: SparkTopic, spark: SparkSession, tmp_path: Path) -> None:
    """`processAllAvailable`, `progress` and `stop` are those of a StreamingQuery; a second query of the same table takes no step twice."""
    append(topic, "grape=1")
    query = topic.materialize(str(tmp_path / "table"), **_BYTES)
    try:
        query.processAllAvailable()
        append(topic, "grape=2 lime=1")
        query.processAllAvailable()
        assert words(spark, tmp_path / "table") == "grape=2 lime=1"
        assert (query.isActive, query.progress.steps) == (True, 2)
        append(topic, "fig=1")
        assert catch_up(topic, tmp_path / "table").steps + query.progress.steps in {2, 3}
        query.processAllAvailable()
    finally:
        query.stop()
    assert not query.isActive
    assert words(spark, tmp_path / "table") == "fig=1 grape=2 lime=1"


def test_with_a_schema_rows_have_typed_columns(topic: SparkTopic, spark: SparkSession, tmp_path: Path) -> None:
    """And a value that does not fit ends the query with the error of lastword, or is null."""
    values = {"a": '{"price":1,"name":"fig"}', "b": '{"price":"oops","name":"lime"}'}
    at(T0, topic).append([{"key": key, "value": value, "partition": 0} for key, value in values.items()])
    typed = {"schema": "price int, name string", "record_columns": ()}
    named = 'topic fruit-prices, partition 0, offset 1, key b: column price = "oops": allowed is int'
    with pytest.raises(UserError, match=named):
        catch_up(topic, tmp_path / "table", **typed)
    catch_up(topic, tmp_path / "table", **typed, mode="PERMISSIVE")
    table = spark.read.format("delta").load(str(tmp_path / "table"))
    assert table.columns == ["price", "name", "_partition", "_key"]
    assert sorted(table.select("name", "price").collect()) == [("fig", 1), ("lime", None)]


_POINTS = [CrashPoint.TARGET_PLANNED, CrashPoint.TARGET_MADE, CrashPoint.STEP_PLANNED, CrashPoint.STEP_TAKEN]


@pytest.mark.parametrize("point", _POINTS, ids=lambda point: point.name)
def test_a_crash_at_any_point_loses_and_doubles_nothing(topic: SparkTopic, spark: SparkSession, tmp_path: Path, point: CrashPoint) -> None:
    """Crash in the bootstrap or in a step, start again: an error that is none of lastword is Spark's."""
    append(topic, "a=1 b=1")
    if point in {CrashPoint.STEP_PLANNED, CrashPoint.STEP_TAKEN}:
        catch_up(topic, tmp_path / "table")
        append(topic, "a=2 b=∅ c=1")

    def crash(reached: CrashPoint) -> None:
        if reached is point:
            message = f"crashed: {point.value}"
            raise RuntimeError(message)

    with crash_points.hook(crash), pytest.raises(StreamingQueryException, match="crashed"):
        catch_up(topic, tmp_path / "table")
    append(topic, "d=1")
    catch_up(topic, tmp_path / "table")
    is_right(topic, spark, tmp_path / "table")
    assert "d=1" in words(spark, tmp_path / "table")


def test_a_table_that_was_overtaken_says_so_until_it_is_rebuilt(topic: SparkTopic, spark: SparkSession, tmp_path: Path) -> None:
    """Records were deleted before the table had them."""
    append(topic, "a=1")
    catch_up(topic, tmp_path / "table")
    append(topic, "b=1 c=1")
    delete_records(at(T0, topic), {0: 2})
    with pytest.raises(ReaderBehind, match="the records 1 to 1 were deleted; the log starts at 2"):
        catch_up(topic, tmp_path / "table")
    assert catch_up(topic, tmp_path / "table", rebuild=True).kind == "rebuild"
    assert words(spark, tmp_path / "table") == "c=1"
    is_right(topic, spark, tmp_path / "table")


def test_a_paused_table_ends_the_query(topic: SparkTopic, tmp_path: Path) -> None:
    """With Spark as without it."""
    append(topic, "a=1")
    catch_up(topic, tmp_path / "table")
    topic.pause_table(str(tmp_path / "table"))
    with pytest.raises(TablePaused, match="is paused: lastword tables resume goes on with it"):
        catch_up(topic, tmp_path / "table")


def test_a_topic_that_is_deleted_ends_the_query(topic: SparkTopic, logs: LogDir[SparkTopic], tmp_path: Path) -> None:
    """The error is that of lastword, wherever the query sees it first."""
    append(topic, "a=1")
    query = topic.materialize(str(tmp_path / "table"), **_BYTES)
    query.processAllAvailable()
    logs.delete_topic("fruit-prices")
    with pytest.raises(UserError, match="fruit-prices"):
        query.awaitTermination(60)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (
            {"record_columns": ()},
            r'no source of the topic says which columns .* or keep the values as they are: record_columns=\["_value"\]',
        ),
        ({"schema": "bigint"}, "schema = 'bigint'"),
        ({"mode": "DROP"}, "mode = 'DROP': allowed is FAILFAST, PERMISSIVE or DROPMALFORMED"),
        ({"trigger": {"processingTime": "now and then"}}, "trigger = .*allowed are"),
        ({"trigger": {"sometimes": True}}, "trigger = .*allowed are"),
        ({"trigger": {"availableNow": True, "processingTime": "1 second"}}, "trigger = .*allowed are"),
        ({"value_format": "json"}, "materialize into a table has no argument value_format: allowed are schema, record_columns"),
        ({"checkpoint_location": "/query"}, "checkpoint_location = /query: a table needs none, its position is in its own commits"),
        ({"isolation": "serializable"}, "isolation 'serializable': allowed is"),
    ],
)
def test_arguments_that_are_not_allowed_make_nothing(topic: SparkTopic, tmp_path: Path, options: dict[str, Any], named: str) -> None:
    """One error, and neither a table nor a row of the ledger."""
    append(topic, "a=1")
    with pytest.raises(UserError, match=named):
        topic.materialize(str(tmp_path / "table"), **{**_BYTES, **options})
    assert not (tmp_path / "table").exists()
    assert topic.log.decisions().targets == {}


@pytest.mark.parametrize("rebuild", [False, True])
def test_a_table_of_somebody_else_is_refused_at_once(topic: SparkTopic, spark: SparkSession, tmp_path: Path, *, rebuild: bool) -> None:
    """It is not touched, and not registered."""
    append(topic, "a=1")
    spark.range(3).write.format("delta").save(str(tmp_path / "theirs"))
    with pytest.raises(UserError, match="is a Delta table that topic fruit-prices was not materialized into"):
        topic.materialize(str(tmp_path / "theirs"), rebuild=rebuild, **_BYTES)
    assert spark.read.format("delta").load(str(tmp_path / "theirs")).count() == 3
    assert topic.log.decisions().targets == {}


def test_a_sink_of_ones_own_gets_each_key_once_a_micro_batch_with_the_position(topic: SparkTopic, tmp_path: Path) -> None:
    """From the log start on; tombstones as rows that do not live; its progress is in the query checkpoint."""
    given: list[tuple[list[str], tuple[int, ...]]] = []

    def sink(newest: DataFrame, position: Position) -> None:
        found = newest.orderBy("offset").collect()
        given.append(([f"{row['key']}={text(row['value']) if row['live'] else '∅'}" for row in found], position.offsets))

    def run() -> None:
        topic.materialize(sink, trigger=_ONCE, checkpoint_location=str(tmp_path / "checkpoint"), key_format="utf8").awaitTermination()

    append(topic, "a=1 b=1 a=2")
    run()
    append(topic, "b=∅ a=3")
    run()
    run()
    assert given == [(["b=1", "a=2"], (3, 0)), (["b=∅", "a=3"], (5, 0))]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"checkpoint_location": None}, "a function needs checkpoint_location, where its progress is kept"),
        ({"history": True}, "materialize into a function has no argument history: allowed are key_format, value_format"),
        ({"key_format": "utf16"}, "key_format = 'utf16': allowed is utf8, or None for bytes"),
        ({"mode": "PERMISSIVE"}, "mode = 'PERMISSIVE' needs value_format: nothing is decoded without"),
        ({"schema": "a int"}, "schema = a int: a schema needs value_format"),
        ({"value_format": "json", "schema": "a nosuchtype"}, "schema 'a nosuchtype' is not SQL DDL"),
        ({"trigger": {"sometimes": True}}, "trigger = .*allowed are"),
        ({"max_offsets_per_trigger": 0}, "max_offsets_per_trigger"),
    ],
)
def test_arguments_that_a_sink_does_not_take_start_nothing(topic: SparkTopic, tmp_path: Path, options: dict[str, Any], named: str) -> None:
    """One error, and no checkpoint."""
    with pytest.raises(UserError, match=named):
        topic.materialize(lambda *_: None, **{"checkpoint_location": str(tmp_path / "query"), **options})
    assert not (tmp_path / "query").exists()


def test_a_checkpoint_on_a_file_system_of_sparks_is_left_to_spark(topic: SparkTopic) -> None:
    """What Spark says of one that it does not have is what the caller gets."""
    append(topic, "grape=1")
    with pytest.raises(Exception, match='No FileSystem for scheme "nofs"'):
        topic.materialize(lambda *_: None, checkpoint_location="nofs://place/of/checkpoints", trigger=_ONCE)
