"""Streaming appends: exactly once, in the order of arrival, and nothing of a bad input lost."""

from __future__ import annotations

import json
import os
import shutil
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

from lastword import LogDir, clock
from lastword.compaction.errors import Aborted, CommitConflict, QueryRefused, UnknownTopic, UserError
from lastword.storage.ledger.decisions import Decision, Kind
from lastword.streaming.append.query import _RUNNING, Appender, _check_not_running, stop_append_queries
from lastword.streaming.append.source_settings import FileSource, RateSource, trigger_of
from lastword.streaming.append.sources import open_source
from lastword.streaming.append.upstream import Mirror, Upstream, UpstreamState, check_mirror
from lastword.streaming.cleaning.cleaner import Cleaner
from lastword.streaming.cleaning.maintenance_locks import MaintenanceLocks
from tests.pictures import latest, log
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from lastword import SparkTopic

_COMPACT = {"cleanup.policy": "compact"}
_SCHEMA = "fruit string, price double, op string"
_NOW = {"availableNow": True}


def _source(folder: Path, **settings: Any) -> FileSource:
    return FileSource.model_validate(
        {
            "name": "files",
            "topic": "fruit",
            "format": "json",
            "path": str(folder),
            "key": ["fruit"],
            "tombstone": "op = 'd'",
            "drop": ["op"],
        }
        | {"schema": _SCHEMA}
        | settings
    )


def _run(spark: SparkSession, topic: SparkTopic, source: FileSource, **settings: Any) -> None:
    opened = open_source(spark, source, topic.log, now_ms=clock.now_ms())
    query = topic.append_stream(opened.rows, name=source.name, trigger=_NOW, on_invalid=source.on_invalid, **settings)
    assert query.awaitTermination(60)


def _arrive(folder: Path, name: str, lines: list[Any], second: int) -> None:
    folder.mkdir(exist_ok=True)
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (folder / name).write_text(text + "\n")
    os.utime(folder / name, (1_700_000_000 + second, 1_700_000_000 + second))


def test_files_of_very_different_sizes_in_one_micro_batch_keep_their_order_of_arrival(
    spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path
) -> None:
    """Spark packs files by size; offsets follow modification time, then the line in the file, all the same."""
    topic = logs.create_topic("fruit", config=_COMPACT)
    folder = tmp_path / "incoming"
    counter = 0
    for second, (name, count) in enumerate([("m.json", 500), ("z.json", 20_000), ("a.json", 3)]):
        _arrive(folder, name, [{"fruit": f"f{number % 50}", "price": counter + number} for number in range(count)], second)
        counter += count
    _run(spark, topic, _source(folder))
    prices = [json.loads(bytes(row["value"]))["price"] for row in topic.records().orderBy("offset").select("value").collect()]
    assert prices == list(range(counter))
    assert topic.describe().table_version == 1


def test_a_stream_goes_on_where_it_stopped_and_takes_each_file_once(spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path) -> None:
    """Three starts under one name; a delete is a tombstone; the value is the rest as JSON, nulls included."""
    topic = logs.create_topic("fruit", config=_COMPACT)
    folder = tmp_path / "incoming"
    _arrive(folder, "1.json", [{"fruit": "grape", "price": 1.5, "op": "u"}, {"fruit": "lime", "op": "u"}], 1)
    _run(spark, topic, _source(folder))
    _run(spark, topic, _source(folder))
    _arrive(folder, "2.json", [{"fruit": "grape", "op": "d"}], 2)
    _run(spark, topic, _source(folder))
    assert log(topic) == ['0 grape={"price":1.5}', '1 lime={"price":null}', "2 grape=∅"]
    assert latest(topic) == {"lime": '{"price":null}'}


def test_bad_rows_become_dead_letters_with_their_reason_and_the_good_ones_are_in_the_log(
    spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path
) -> None:
    """Keyless, malformed, wrong type, oversized and negative timestamp in one file; the next file comes after them as usual."""
    topic = logs.create_topic("fruit", config={**_COMPACT, "max.message.bytes": 1_000})
    folder = tmp_path / "incoming"
    _arrive(
        folder,
        "1.json",
        [
            {"fruit": "grape", "note": "ok", "at": 5},
            {"note": "no key", "at": 5},
            '{"fruit": "lime", "note": ',
            {"fruit": "lime", "note": "x" * 2_000, "at": 5},
            {"fruit": "kiwi", "note": "early", "at": -7},
            {"fruit": "plum", "note": "wrong type", "at": "yesterday"},
            {"fruit": "fig", "note": "ok too", "at": 6},
        ],
        1,
    )
    source = _source(folder, schema="fruit string, note string, at bigint", timestamp="at", tombstone="", drop=[], value="note")
    _run(spark, topic, source)
    assert log(topic) == ["0 grape=ok", "1 fig=ok too"]
    refused = {row["reason"]: row for row in topic.dead_letters().collect()}
    assert sorted(refused) == ["keyless", "malformed", "negative_timestamp", "oversized"]
    assert refused["negative_timestamp"]["detail"] == "timestamp -7 ms: allowed is 0 (1970-01-01) or later"
    assert bytes(refused["keyless"]["value"]) == b"no key"
    raws = [row["raw"] for row in topic.dead_letters().where("reason = 'malformed'").orderBy("raw").collect()]
    assert raws == ['{"fruit": "lime", "note": ', '{"fruit": "plum", "note": "wrong type", "at": "yesterday"}']
    assert refused["oversized"]["source"] == "files"
    _arrive(folder, "2.json", [{"fruit": "grape", "note": "more"}], 2)
    _run(spark, topic, source)
    assert log(topic)[2:] == ["2 grape=more"]
    assert topic.dead_letters().count() == 5


def test_on_invalid_fail_stops_the_query_and_appends_nothing_of_the_micro_batch(
    spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path
) -> None:
    """The error names the reason; after the row is mended the query goes on."""
    topic = logs.create_topic("fruit", config=_COMPACT)
    folder = tmp_path / "incoming"
    _arrive(folder, "1.json", [{"fruit": "grape", "price": 1.0}, {"price": 2.0}], 1)
    source = _source(folder).model_copy(update={"on_invalid": "fail"})
    with pytest.raises(StreamingQueryException, match="1 × keyless"):
        _run(spark, topic, source)
    assert topic.describe().record_count == 0
    assert topic.dead_letters().count() == 0
    topic.alter_config({"cleanup.policy": "delete"})
    _run(spark, topic, source)
    assert topic.describe().record_count == 2


def test_a_stream_with_a_wrong_column_is_refused_before_it_starts(spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path) -> None:
    """The schema of a stream is known; so are a missing key column and a bad condition."""
    topic = logs.create_topic("fruit", config=_COMPACT)
    (tmp_path / "incoming").mkdir()
    stream = spark.readStream.format("rate").load().select(F.col("value").alias("key"), F.lit("x").alias("value"))
    with pytest.raises(UserError, match="column key is bigint"):
        topic.append_stream(stream, name="rate")
    with pytest.raises(UserError, match=r"source files: no column frut; there are fruit, price, op$"):
        open_source(spark, _source(tmp_path / "incoming", key=["frut"]), topic.log, now_ms=0)
    with pytest.raises(UserError, match="not a SQL condition"):
        open_source(spark, _source(tmp_path / "incoming", tombstone="op = = 'd'"), topic.log, now_ms=0)
    assert open_source(spark, _source(tmp_path / "incoming", schema=""), topic.log, now_ms=0).rows.isStreaming, "no file is needed"
    with pytest.raises(UserError, match="use append for a batch"):
        topic.append_stream(spark.range(1), name="batch")


def test_arguments_of_a_stream_that_do_not_go_together_are_refused(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """Before anything is started; a mirror begins when its source answers."""
    topic = logs.create_topic("fruit", config=_COMPACT)
    rate = spark.readStream.format("rate").load()
    plain = rate.select(F.lit("a").alias("key"), F.lit("x").alias("value"))
    placed = rate.select(F.lit("a").alias("key"), F.lit("x").alias("value"), F.lit(0).alias("partition"), F.col("value").alias("offset"))
    silent = Mirror(source="kafka:fruit", ask=lambda: None)
    cases: list[tuple[DataFrame, dict[str, Any], str]] = [
        (plain, {"micro_batches_per_transaction": 3}, "micro_batches_per_transaction = 3 needs a transactional_id"),
        (placed, {"mirror": silent, "upstream": Upstream(source="kafka:fruit")}, "a mirror is the upstream of its topic; give mirror or"),
        (placed, {"transactional_id": "loader"}, "get their producer and offsets from it; leave those columns out"),
        (plain, {"mirror": silent}, "its rows need the columns partition and offset"),
        (placed, {"mirror": silent}, "kafka:fruit does not answer now; the topic mirrors it once it does"),
        (plain, {"name": ".files"}, "query name '.files': 1 to 249 of the characters"),
    ]
    for rows, arguments, said in cases:
        with pytest.raises(UserError, match=said):
            topic.append_stream(rows, **{"name": "made-up", **arguments})
    assert (topic.log.decisions().queries, topic.log.decisions().mirror, spark.streams.active) == ({}, None, [])


def test_a_topic_is_the_mirror_of_one_source_by_one_query(tmp_path: Path) -> None:
    """Another query, or another source, would assign offsets twice, so it is refused."""
    log = LogDir(tmp_path).create_topic("fruit").log
    log.ledger.append([Decision(kind=Kind.MIRROR, time_ms=0, details={"source": "kafka:fruit", "query": "mirror", "identity": "1"})])
    check_mirror(log, Mirror(source="kafka:fruit"), UpstreamState(identity="1"), query="mirror")
    for source, query in (("kafka:fruit", "other"), ("kafka:plums", "mirror")):
        with pytest.raises(QueryRefused, match=rf"mirrors kafka:fruit \(query mirror\); it cannot mirror {source} \(query {query}\)"):
            check_mirror(log, Mirror(source=source), UpstreamState(identity="1"), query=query)


def test_a_micro_batch_that_must_not_be_taken_comes_again(tmp_path: Path) -> None:
    """A query that cannot start, is stopping, or whose source was created again writes nothing and reads nothing."""
    log = LogDir(tmp_path).create_topic("fruit").log
    version, unread = log.snapshot().version, cast("DataFrame", None)

    def appender(name: str, **upstream: Any) -> Appender:
        reads = Upstream(source="kafka:fruit", reads="kafka:fruit", **upstream)
        return Appender(log, name=name, fail_on_invalid=False, upstream=reads, clock_ms=lambda: 0, grouping=None)

    first = appender("first", identity="1", ask=lambda: UpstreamState(identity="2"), on_data_loss="go-on")
    first.bind("an id")
    with pytest.raises(QueryRefused, match="kafka:fruit was deleted and created again; query first begins at its start"):
        first.append_micro_batch(unread, 3)
    strict = appender("first", identity="1", ask=lambda: UpstreamState(identity="2"))
    strict.bind("an id")
    with pytest.raises(QueryRefused, match=r"To read what it has now from its start set on\.data\.loss = go-on"):
        strict.append_micro_batch(unread, 3)
    first.finish()
    with pytest.raises(Aborted, match="query first is stopping: micro-batch 4 comes again at the next start"):
        first.append_micro_batch(unread, 4)
    second = appender("second")
    with pytest.raises(QueryRefused, match="kafka:fruit"):
        second.bind("another id")
    with pytest.raises(Aborted, match="query second: it could not be started; micro-batch 0 comes again at the next start"):
        second.append_micro_batch(unread, 0)
    running: Any = "another topic's query"
    _RUNNING[running] = running, second
    try:
        stop_append_queries(LogDir(tmp_path).create_topic("other").log)
        assert (running in _RUNNING, second.finishing) == (True, False), "it goes on while another topic is deleted"
    finally:
        del _RUNNING[running]
    for one in (first, second):  # neither has a transaction, nor, on an object store, a lock
        one.end_transaction()
        one.let_go()
    assert (log.snapshot().version, log.decisions().queries) == (version, {"first": "an id"})


def test_a_deleted_checkpoint_is_refused_with_the_ways_out(spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path) -> None:
    """Never doubles in silence: restore it, take a new name, or say that the rows shall come again."""
    topic = logs.create_topic("fruit", config=_COMPACT)
    folder = tmp_path / "incoming"
    _arrive(folder, "1.json", [{"fruit": "grape", "price": 1.0}], 1)
    _run(spark, topic, _source(folder))
    shutil.rmtree(topic.log.paths.query("files"))
    with pytest.raises(QueryRefused, match="lastword queries forget fruit files"):
        _run(spark, topic, _source(folder))
    assert len(log(topic)) == 1
    topic.forget_query("files")
    _run(spark, topic, _source(folder))
    assert log(topic) == ['0 grape={"price":1.0}', '1 grape={"price":1.0}']


def test_a_mirror_keeps_offsets_and_drops_what_it_brings_again(spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path) -> None:
    """A stream with an offset column; its checkpoint may be deleted, nobody else may append."""
    topic = logs.create_topic("fruit", partitions=2, config=_COMPACT)
    folder = tmp_path / "incoming"
    schema = "key string, value string, partition int, offset bigint"
    first = [{"key": "grape", "value": str(at), "partition": at % 2, "offset": 10 + at} for at in range(6)]
    _arrive(folder, "1.json", first, 1)

    def run() -> None:
        topic.append_stream(spark.readStream.schema(schema).json(str(folder)), name="mirror", trigger=_NOW).awaitTermination(60)

    run()
    expected = ["10 grape=0", "12 grape=2", "14 grape=4"]
    assert log(topic, 0) == expected
    shutil.rmtree(topic.log.paths.query("mirror"))
    _arrive(folder, "2.json", [{"key": "lime", "value": "new", "partition": 0, "offset": 20}], 2)
    run()
    assert log(topic, 0) == [*expected, "20 lime=new"]
    assert topic.dead_letters().count() == 0
    with pytest.raises(UserError, match="takes records from there alone"):
        topic.append(spark.createDataFrame([("a", "b")], "key string, value string"))
    other = logs.create_topic("other", config=_COMPACT)
    other.append(spark.createDataFrame([("a", "b")], "key string, value string"))
    with pytest.raises(QueryRefused, match="holds records of its own"):
        other.append_stream(spark.readStream.schema(schema).json(str(folder)), name="mirror")


def test_config_changes_while_a_stream_runs_and_a_deleted_topic_ends_it(
    spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path
) -> None:
    """One query; the change holds at the next micro-batch; another topic of the same name is another topic.

    A deletion that cannot be, as a round takes too long, leaves the query running.
    """
    logs._cleaner = Cleaner(logs.service_config, locks=MaintenanceLocks(max_wait_seconds=0.1))  # noqa: SLF001  those of a process wait long
    topic = logs.create_topic("fruit", config=_COMPACT)
    folder = tmp_path / "incoming"
    _arrive(folder, "1.json", [{"fruit": "grape", "price": 1.0}], 1)
    opened = open_source(spark, _source(folder), topic.log, now_ms=0)
    query = topic.append_stream(opened.rows, name="files", trigger=trigger_of("100 milliseconds"))
    try:
        query.processAllAvailable()
        with pytest.raises(QueryRefused, match="query files of topic fruit runs already"):
            topic.append_stream(opened.rows, name="files")
        logs.topic("fruit").alter_config({"segment.bytes": "1KiB"})
        for number in (2, 3):
            _arrive(folder, f"{number}.json", [{"fruit": "grape", "price": 2.0}], number)
            query.processAllAvailable()
        assert [segment.label for segment in topic.describe().partitions[0].segments] == [0, 1, 2]
        with logs.cleaner.locks.hold(topic.log), pytest.raises(CommitConflict, match="topic fruit"):
            logs.delete_topic("fruit")
        _arrive(folder, "4.json", [{"fruit": "grape", "price": 3.0}], 4)
        query.processAllAvailable()
        assert (query.isActive, topic.describe().record_count) == (True, 4)
        logs.delete_topic("fruit")
        logs.create_topic("fruit", config=_COMPACT)
        assert (query.isActive, query.exception()) == (False, None)
        with pytest.raises(UnknownTopic, match="was deleted and another one created under its name"):
            topic.append(spark.createDataFrame([("a", "b")], "key string, value string"))
        assert logs.topic("fruit").describe().record_count == 0
    finally:
        query.stop()


def test_csv_parquet_and_rate_sources(spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path) -> None:
    """Two key columns make a JSON key; without a schema keys and values are what stands in the file."""
    topic = logs.create_topic("fruit", config=_COMPACT)
    folder = tmp_path / "csv"
    _arrive(folder, "1.csv", ["fruit,kind,price", "grape,red,5"], 1)
    settings = {"name": "csv", "format": "csv", "key": ["fruit", "kind"], "value": "price", "tombstone": "", "drop": [], "schema": ""}
    _run(spark, topic, _source(folder, **settings))
    _arrive(folder, "2.csv", ["fruit,kind,price", "lime,,7", "fig,blue,cheap", ",,9"], 2)
    _run(spark, topic, _source(folder, **settings))
    expected = ['0 {"fruit":"grape","kind":"red"}=5', '1 {"fruit":"lime","kind":null}=7', '2 {"fruit":"fig","kind":"blue"}=cheap']
    assert log(topic) == expected
    assert [row["reason"] for row in topic.dead_letters().collect()] == ["keyless"]
    columns = "struct<fruit:string,price:double,op:string>"
    spark.createDataFrame([("kiwi", 1.0, "u")], columns).write.parquet(str(tmp_path / "parquet"))
    _run(spark, topic, _source(tmp_path / "parquet", name="parquet", format="parquet"))
    assert log(topic)[3:] == ['3 kiwi={"price":1.0}']
    rate = RateSource.model_validate({"name": "rate", "topic": "fruit", "format": "rate", "rows.per.second": 50, "keys": 5})
    query = topic.append_stream(open_source(spark, rate, topic.log, now_ms=0).rows, name="rate")
    try:
        while topic.describe().record_count < 20 and query.isActive:
            query.awaitTermination(1)
    finally:
        query.stop()
    assert {key.split("-")[0] for key in latest(topic) if key.startswith("key-")} == {"key"}
    until(lambda: query.runId not in _RUNNING, "a query that ended is remembered")


def test_a_query_that_has_ended_is_let_go_of_by_its_next_start(tmp_path: Path) -> None:
    """Its own thread may not have come to that yet; a query of another name or topic is nothing to it."""
    topic, let_go = LogDir(str(tmp_path)).create_topic("fruit"), list[str]()

    def running(name: str, location: str, *, is_active: bool) -> Any:
        appender = SimpleNamespace(name=name, location=location, let_go=lambda: let_go.append(name))
        return SimpleNamespace(isActive=is_active, runId=name), appender

    root = topic.log.paths.root
    found = {
        "ended": running("files", root, is_active=False),
        "other name": running("more", root, is_active=True),
        "other topic": running("files", "/elsewhere", is_active=True),
    }
    _check_not_running(topic.log, "files", found)
    assert let_go == ["files"]
    found["again"] = running("files", root, is_active=True)
    with pytest.raises(QueryRefused, match="query files of topic fruit runs already"):
        _check_not_running(topic.log, "files", found)


@pytest.mark.parametrize("is_local", [True, False], ids=["with a lock", "on an object store"])
def test_a_query_whose_start_fails_can_be_started_again(
    spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_local: bool
) -> None:
    """At once and under the same name: it holds nothing."""
    topic = logs.create_topic("fruit", config=_COMPACT)
    if not is_local:
        monkeypatch.setattr("lastword.streaming.append.query.local_path", lambda _: None)
    _arrive(tmp_path / "in", "a.json", [{"key": "lime", "value": "1"}], 1)
    stream = spark.readStream.schema("key string, value string").json(str(tmp_path / "in"))
    with pytest.raises(Exception, match="soon"):
        topic.append_stream(stream, name="files", trigger={"processingTime": "soon"})
    assert topic.append_stream(stream, name="files", trigger=_NOW).awaitTermination(60)
    assert latest(topic) == {"lime": "1"}
