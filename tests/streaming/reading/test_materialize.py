"""A table kept in step with a log: whatever happens when, it is what the log says at the position that stands in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

from lastword.compaction.errors import CommitConflict, ReaderBehind, UserError
from lastword.storage.delta import crash_points
from lastword.storage.delta.crash_points import CrashPoint
from lastword.streaming.reading.materialize import TableShape, materialize_table
from lastword.streaming.reading.tail import TailOptions
from lastword.streaming.reading.target import Target
from tests.clocks import at
from tests.pictures import T0, delete_records, rows, text

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from lastword import LogDir, SparkTopic
    from lastword.compaction.read_positions import Position

_ONCE = {"availableNow": True}


@pytest.fixture
def topic(logs: LogDir[SparkTopic]) -> SparkTopic:
    """Return a compacted topic of two partitions whose cleaner waits for nothing."""
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0, "delete.retention.ms": "1h"}
    return at(T0, logs).create_topic("fruit-prices", partitions=2, config=config)


def append(topic: SparkTopic, spark: SparkSession, picture: str) -> None:
    """Append what a picture draws to partition 0, and close the segment."""
    at(T0, topic).append(rows(picture, partition=0))
    at(T0, topic).roll()


def catch_up(topic: SparkTopic, location: str | Path, **options: Any) -> None:
    """Materialise all that there is, and stop."""
    topic.materialize(str(location), trigger=_ONCE, **options).awaitTermination()


def catch_up_in_steps_of(topic: SparkTopic, spark: SparkSession, location: Path, rewrite_share: int) -> list[str]:
    """Materialise all that there is, stop, and return the operations of the commits that this made, newest first."""
    before = DeltaTable(location).version() if DeltaTable.is_deltatable(str(location)) else -1
    target = Target(str(location), topic_id=topic.log.decisions().topic_id, rewrite_share=rewrite_share)
    query = materialize_table(
        topic.log, spark, target, options=TailOptions(), shape=TableShape(), trigger=_ONCE, rebuild=False, clock_ms=lambda: T0
    )
    query.awaitTermination()
    return [commit["operation"] for commit in DeltaTable(location).history() if commit["version"] > before]


def words(spark: SparkSession, location: str | Path) -> str:
    """Return a target as a picture, by key."""
    found = spark.read.format("delta").load(str(location)).collect()
    return " ".join(sorted(f"{text(row['key'])}={text(row['value'])}" for row in found))


def is_right(topic: SparkTopic, spark: SparkSession, location: str | Path) -> None:
    """Check a target against the log at the position that stands in it, row by row."""
    standing = Target(str(location), topic_id=topic.log.decisions().topic_id).standing()
    assert standing is not None
    expected = sorted(topic.latest(as_of=standing.position).collect())
    assert (
        sorted(
            spark.read.format("delta").load(str(location)).select("partition", "key", "value", "headers", "timestamp", "offset").collect()
        )
        == expected
    )


@pytest.mark.parametrize("share", [0, 1, 2, 10**9], ids=["by MERGE", "by both", "written anew at the limit", "written anew"])
def test_a_target_follows_the_log_over_restarts_and_cleaning(topic: SparkTopic, spark: SparkSession, tmp_path: Path, share: int) -> None:
    """Bootstrap, then updates, inserts and deletes; a word that comes back; nothing new is no commit."""
    append(topic, spark, "grape=1 lime=1 grape=2")
    catch_up_in_steps_of(topic, spark, tmp_path / "target", share)
    assert words(spark, tmp_path / "target") == "grape=2 lime=1"

    append(topic, spark, "lime=∅ kiwi=1 grape=3 kiwi=2 fig=∅")
    assert ("MERGE" in catch_up_in_steps_of(topic, spark, tmp_path / "target", share)) == (share == 0)
    assert words(spark, tmp_path / "target") == "grape=3 kiwi=2"
    is_right(topic, spark, tmp_path / "target")

    at(T0, topic).clean()
    append(topic, spark, "lime=9")
    assert ("MERGE" in catch_up_in_steps_of(topic, spark, tmp_path / "target", share)) == (share < 2)
    assert catch_up_in_steps_of(topic, spark, tmp_path / "target", share) == []
    assert words(spark, tmp_path / "target") == "grape=3 kiwi=2 lime=9"
    assert len(_steps(topic, tmp_path / "target")) == 3


def test_columns_are_typed_by_a_schema(topic: SparkTopic, spark: SparkSession, tmp_path: Path) -> None:
    """The fields of the value beside columns with an underscore; keys as text; a tombstone deletes."""
    typed = {"key_format": "utf8", "value_format": "json", "schema": "price int, key string"}
    at(T0, topic).append(_json(spark, [("a", 1), ("b", 2)]))
    catch_up(topic, tmp_path / "target", **typed)
    at(T0, topic).append(_json(spark, [("a", 3), ("c", 4)]))
    at(T0, topic).append(rows("b=∅"))
    catch_up(topic, tmp_path / "target", **typed)
    table = spark.read.format("delta").load(str(tmp_path / "target"))
    assert table.columns == ["_partition", "_key", "_offset", "_timestamp", "_headers", "price", "key"]
    assert sorted(table.select("_key", "price").collect()) == [("a", 3), ("c", 4)]
    with pytest.raises(UserError, match="the fields _key have the names of columns that a target adds"):
        catch_up(topic, tmp_path / "other", value_format="json", schema="_key string")


def test_periods_of_a_history_never_overlap_wherever_timestamps_go_back(topic: SparkTopic, spark: SparkSession, tmp_path: Path) -> None:
    """No word begins before the word before it, in one micro-batch or over several, past tombstones: at most one holds at any moment."""
    catch_up(topic, tmp_path / "target", history=True)
    batches = (
        "a=10 a=9 a=11 b=10 c=10 c=9 d=10 e=10 e=∅9 f=10 f=∅12 g=10",
        "b=9 b=11 c=11 d=9 e=8 f=11 f=13 g=∅9",
        "d=8 d=12 g=9 g=9",
    )
    for picture in batches:
        for word in picture.split():
            key, _, moment = word.partition("=")
            drawn = f"{key}={'∅' if moment[0] == '∅' else moment}"
            at(T0, topic).append(rows(drawn, partition=0, timestamp_ms=T0 + 3_600_000 * int(moment.lstrip("∅"))))
        catch_up(topic, tmp_path / "target", history=True)
    table = spark.read.format("delta").load(str(tmp_path / "target"))
    held = [F.expr(f"(unix_millis({name}) - {T0}) DIV 3600000") for name in ("_valid_from", "_valid_to")]
    found: dict[str, list[str]] = {}
    for key, begin, end in table.orderBy("offset").select("key", *held).collect():
        found.setdefault(text(key), []).append(f"{begin}-{'' if end is None else end}")
    assert found == {
        "a": ["10-10", "10-11", "11-"],
        "b": ["10-10", "10-11", "11-"],
        "c": ["10-10", "10-11", "11-"],
        "d": ["10-10", "10-10", "10-12", "12-"],
        "e": ["10-10", "10-"],
        "f": ["10-12", "12-13", "13-"],
        "g": ["10-10", "10-10", "10-"],
    }


def test_history_keeps_every_word_and_when_it_held(topic: SparkTopic, spark: SparkSession, tmp_path: Path) -> None:
    """SCD type 2: a word holds from its record to the next of its key, over micro-batches; a tombstone ends it."""
    for step, picture in enumerate(("a=1 b=1", "a=2 a=3 c=1 b=∅", "a=∅ b=5")):
        at(T0, topic).append(rows(picture, partition=0, timestamp_ms=T0 + 1000 * step))
        catch_up(topic, tmp_path / "target", history=True)
    table = spark.read.format("delta").load(str(tmp_path / "target"))
    seconds = [F.expr(f"(unix_millis({name}) - {T0}) DIV 1000") for name in ("_valid_from", "_valid_to")]
    found = table.orderBy("offset").select("key", "value", *seconds, "_is_current").collect()
    assert [(text(row[0]), text(row[1]), *row[2:]) for row in found] == [
        ("a", "1", 0, 1, False),
        ("b", "1", 0, 1, False),
        ("a", "2", 1, 1, False),
        ("a", "3", 1, 2, False),
        ("c", "1", 1, None, True),
        ("b", "5", 2, None, True),
    ]


_POINTS = [CrashPoint.TARGET_PLANNED, CrashPoint.TARGET_MADE, CrashPoint.STEP_PLANNED, CrashPoint.STEP_TAKEN]


@pytest.mark.parametrize("point", _POINTS, ids=lambda point: point.name)
def test_a_crash_at_any_point_loses_and_doubles_nothing(topic: SparkTopic, spark: SparkSession, tmp_path: Path, point: CrashPoint) -> None:
    """Crash in the bootstrap or in a step, start again: the target is right at every moment that there is one."""
    append(topic, spark, "a=1 b=1")
    if point in {CrashPoint.STEP_PLANNED, CrashPoint.STEP_TAKEN}:
        catch_up(topic, tmp_path / "target")
        append(topic, spark, "a=2 b=∅ c=1")

    def crash(reached: CrashPoint) -> None:
        if reached is point:
            message = f"crashed: {point.value}"
            raise RuntimeError(message)

    with crash_points.hook(crash), pytest.raises((RuntimeError, StreamingQueryException), match="crashed"):
        catch_up(topic, tmp_path / "target")
    if (tmp_path / "target").exists():
        is_right(topic, spark, tmp_path / "target")
    append(topic, spark, "d=1")
    catch_up(topic, tmp_path / "target")
    is_right(topic, spark, tmp_path / "target")
    assert "d=1" in words(spark, tmp_path / "target")


def test_a_second_writer_cannot_take_the_same_step(topic: SparkTopic, spark: SparkSession, tmp_path: Path) -> None:
    """Both come from the same position; one of them is refused, and the target has the step once."""
    append(topic, spark, "a=1")
    catch_up(topic, tmp_path / "target")
    mine = Target(str(tmp_path / "target"), topic_id=topic.log.decisions().topic_id)
    standing = mine.standing()
    assert standing is not None
    append(topic, spark, "a=2")
    catch_up(topic, tmp_path / "target")
    late = topic.bootstrap()
    with pytest.raises(CommitConflict, match="another writer came before step 1"):
        mine.step(late.rows.withColumn("live", F.lit(True)), standing, late.position)
    late = topic.bootstrap()
    with pytest.raises(CommitConflict, match="another writer came before step 0"):
        mine.create(late.rows, late.position)
    is_right(topic, spark, tmp_path / "target")


def test_a_rebuild_takes_the_place_of_a_target_that_was_overtaken(topic: SparkTopic, spark: SparkSession, tmp_path: Path) -> None:
    """Records were deleted before the target had them: the query ends and says so; the rebuild is right again, in one commit."""
    append(topic, spark, "a=1")
    catch_up(topic, tmp_path / "target")
    append(topic, spark, "b=1 c=1")
    delete_records(at(T0, topic), {0: 2})
    with pytest.raises(ReaderBehind, match="the records 1 to 1 were deleted; the log starts at 2"):
        catch_up(topic, tmp_path / "target")
    catch_up(topic, tmp_path / "target", rebuild=True)
    assert words(spark, tmp_path / "target") == "c=1"
    is_right(topic, spark, tmp_path / "target")


def test_what_is_no_target_of_the_topic_is_refused(
    topic: SparkTopic, logs: LogDir[SparkTopic], spark: SparkSession, tmp_path: Path
) -> None:
    """Another table, another topic's target, one with history: nothing of them is touched."""
    spark.range(3).write.format("delta").save(str(tmp_path / "theirs"))
    with pytest.raises(UserError, match="this topic was not materialised into it"):
        topic.materialize(str(tmp_path / "theirs"))
    catch_up(topic, tmp_path / "target")
    with pytest.raises(UserError, match="not materialised into it"):
        topic.materialize(str(tmp_path / "target"), history=True)
    with pytest.raises(UserError, match="not materialised into it"):
        logs.create_topic("other").materialize(str(tmp_path / "target"))
    with pytest.raises(UserError, match="a function as target needs checkpoint_location"):
        topic.materialize(lambda *_: None)
    with pytest.raises(UserError, match=f"checkpoint_location = {tmp_path}/query: a table needs none, its position stands in it"):
        topic.materialize(str(tmp_path / "target"), checkpoint_location=f"{tmp_path}/query")
    with pytest.raises(UserError, match="key_format = 'utf16': allowed is utf8, or None for bytes"):
        topic.materialize(str(tmp_path / "target"), key_format="utf16")
    with pytest.raises(UserError, match="mode = 'PERMISSIVE' needs value_format: nothing is decoded without"):
        topic.latest(mode="PERMISSIVE")
    late = topic.bootstrap()
    with pytest.raises(CommitConflict, match="theirs was made by somebody else meanwhile"):
        Target(str(tmp_path / "theirs"), topic_id=topic.log.decisions().topic_id).create(late.rows, late.position)
    assert spark.read.format("delta").load(str(tmp_path / "theirs")).count() == 3


def test_a_sink_of_ones_own_gets_each_key_once_a_micro_batch_with_the_position(
    topic: SparkTopic, spark: SparkSession, tmp_path: Path
) -> None:
    """From the log start on; tombstones as rows that do not live; its progress is in the query checkpoint."""
    given: list[tuple[list[str], tuple[int, ...]]] = []

    def sink(newest: DataFrame, position: Position) -> None:
        found = newest.orderBy("offset").collect()
        given.append(([f"{text(row['key'])}={text(row['value']) if row['live'] else '∅'}" for row in found], position.offsets))

    def run() -> None:
        topic.materialize(sink, trigger=_ONCE, checkpoint_location=str(tmp_path / "checkpoint")).awaitTermination()

    append(topic, spark, "a=1 b=1 a=2")
    run()
    append(topic, spark, "b=∅ a=3")
    run()
    run()
    assert given == [(["b=1", "a=2"], (3, 0)), (["b=∅", "a=3"], (5, 0))]


def _json(spark: SparkSession, prices: list[tuple[str, int]]) -> DataFrame:
    frame = spark.createDataFrame(prices, "key string, price int")
    return frame.select("key", F.to_json(F.struct("price", F.col("key"))).alias("value"))


def _steps(topic: SparkTopic, location: Path) -> range:
    standing = Target(str(location), topic_id=topic.log.decisions().topic_id).standing()
    assert standing is not None
    return range(standing.steps + 1)


def test_a_target_is_exact_at_every_step_also_where_the_log_was_cleaned_behind_it(
    topic: SparkTopic, spark: SparkSession, tmp_path: Path
) -> None:
    """The record that supersedes one of a small step lies behind the step, and cleaning took the older one: no step ends in between."""
    append(topic, spark, "a=1 b=1")
    catch_up(topic, tmp_path / "target")
    append(topic, spark, "a=2 b=2 a=3 c=1 b=∅")
    at(T0, topic).append(rows("d=1", partition=0))
    at(T0, topic).clean()
    seen: list[str] = []

    def watch(point: CrashPoint) -> None:
        if point is CrashPoint.STEP_TAKEN:
            is_right(topic, spark, tmp_path / "target")
            seen.append(words(spark, tmp_path / "target"))

    with crash_points.hook(watch):
        catch_up(topic, tmp_path / "target", max_offsets_per_trigger=1)
    assert seen == ["a=3 c=1", "a=3 c=1 d=1"]


def test_a_step_that_another_process_took_ends_the_query_and_is_not_taken_twice(
    topic: SparkTopic, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no fence of a purge: the target is further than this query knows."""
    location = tmp_path / "target"
    append(topic, spark, "grape=1 lime=1")
    catch_up(topic, location)
    append(topic, spark, "grape=2")
    take = Target.step

    def overtaken(self: Target, *arguments: Any) -> None:
        take(self, *arguments)
        message = "another step came first"
        raise CommitConflict(message)

    with monkeypatch.context() as during:
        during.setattr(Target, "step", overtaken)
        with pytest.raises(CommitConflict, match="another step came first"):
            catch_up(topic, location)
    version = DeltaTable(location).version()
    catch_up(topic, location)
    assert DeltaTable(location).version() == version
    assert {text(row["key"]): text(row["value"]) for row in spark.read.format("delta").load(str(location)).collect()} == {
        "grape": "2",
        "lime": "1",
    }


def test_a_checkpoint_on_a_file_system_of_sparks_is_left_to_spark(topic: SparkTopic, spark: SparkSession) -> None:
    """What Spark says of one that it does not have is what the caller gets."""
    append(topic, spark, "grape=1")
    with pytest.raises(Exception, match='No FileSystem for scheme "nofs"'):
        topic.materialize(lambda *_: None, checkpoint_location="nofs://place/of/checkpoints", trigger=_ONCE)
