"""Change events through Spark: DataFrames, files, and every Kafka topic of a connector by one source."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from lastword import Envelope, LogDir, UserError
from lastword.service.service import Service
from lastword.service.settings import Settings
from lastword.storage.append.requests import AppendStats, EventSource
from lastword.storage.files.schema import RECORD_COLUMNS
from lastword.streaming.append.source_settings import FileSource, KafkaSource
from lastword.streaming.append.sources import _kafka_columns, open_source
from tests.kafka_broker import KafkaBroker, Record
from tests.pictures import by_arrow
from tests.test_event_histories import source_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from lastword import SparkTopic, Topic

_CONFIG = {"cleanup.policy": "compact"}
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def _table(events: Sequence[dict[str, Any]]) -> pa.Table:
    columns: dict[str, list[Any]] = {name: [event[name] for event in events] for name in ("key", "value", "headers")}
    return pa.table(
        {
            "key": pa.array(columns["key"], pa.string()),
            "value": pa.array(columns["value"], pa.string()),
            "headers": pa.array(columns["headers"], _HEADERS),
        }
    )


def _rows(topic: Topic) -> dict[int, Any]:
    found = by_arrow(topic).latest().to_pylist()
    return _not_stale(topic, {json.loads(row["key"])["id"]: json.loads(row["value"]) for row in found})


def _not_stale(topic: Topic, rows: dict[int, Any]) -> dict[int, Any]:
    """Return rows without those of stale keys: of a changed key the event that leaves out columns may be a dead letter."""
    stale = {json.loads(one.key)["id"] for one in topic.stale_keys()}
    return {key: row for key, row in rows.items() if key not in stale}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("is_large", [False, True])
def test_spark_makes_the_same_log_of_events_as_arrow(spark: SparkSession, logs: LogDir[SparkTopic], seed: int, *, is_large: bool) -> None:
    """In this process and in tasks; with late events, TRUNCATE, columns that are left out, and changed keys, which are two rows each.

    The DataFrame has one partition, or as many as Spark makes of it: in their order.
    """
    source = source_of(random.Random(seed), changes=60)
    events = source.arrivals()
    doors = [logs.create_topic(name, partitions=2, config=_CONFIG) for name in ("spark", "arrow")]
    for start in range(0, len(events), 40):
        rows = _table(events[start : start + 40])
        doors[0]._stats = AppendStats(is_large=is_large)  # noqa: SLF001
        frame = spark.createDataFrame(rows)
        done = doors[0].append(frame.coalesce(1) if seed == 0 else frame, envelope=Envelope(), on_invalid="dead-letter")
        again = by_arrow(doors[1]).append(rows, envelope=Envelope(), on_invalid="dead-letter")
        assert (done.late, done.skipped, done.record_count) == (again.late, again.skipped, again.record_count)
        assert done.refused == again.refused
    columns = [name for name in RECORD_COLUMNS if name not in {"timestamp", "appended_at"}]
    logged = [by_arrow(topic).records(columns=columns).to_pylist() for topic in doors]
    assert logged[0] == logged[1]
    assert _rows(doors[0]) == _not_stale(doors[0], source.table)


def test_files_of_events(spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path) -> None:
    """Lines as records of Kafka, or the events alone with a key from their rows; lines that are no events are dead letters."""
    folder = tmp_path / "incoming"
    folder.mkdir()
    change = {"op": "c", "before": None, "after": {"id": 1, "price": "NA==", "at": 1_700_000_000_000_001}, "source": {"lsn": 5}}
    lines = [
        json.dumps({"key": {"id": 1}, "value": change, "headers": [["h", "x"]]}),
        json.dumps({"key": json.dumps({"id": 2}), "value": json.dumps({**change, "after": {"id": 2, "price": "oops!", "at": None}})}),
        json.dumps({"key": '{"id":3}', "value": json.dumps({**change, "after": {"id": 3, "price": None, "at": None}})}),
        "{no json",
        json.dumps({"key": '{"id":3}', "value": None}),
    ]
    (folder / "[a] 1.json").write_text("\n".join(lines) + "\n")
    topic = logs.create_topic("prices", config=_CONFIG)
    given = {"name": "files", "topic": "prices", "format": "json", "path": str(folder), "envelope": "debezium"}
    source = FileSource.model_validate({**given, "schema": "id int, price decimal(10,2), at timestamp"})
    opened = open_source(spark, source, topic.log, now_ms=0)
    query = topic.append_stream(opened.rows, name=source.name, trigger={"availableNow": True}, envelope=opened.envelope)
    assert query.awaitTermination(90)
    assert _rows(topic) == {
        1: {"id": 1, "price": "0.52", "at": "2023-11-14T22:13:20.000001Z"},
        3: {"id": 3, "price": None, "at": None},
    }
    letters = sorted(by_arrow(topic).dead_letters().to_pylist(), key=lambda one: one["detail"])
    assert [one["reason"] for one in letters] == ["no_event", "no_event"]
    assert letters[0]["detail"].startswith('column price = "oops!": allowed is decimal(10,2)')
    assert (bytes(letters[0]["key"]), letters[1]["detail"][:35]) == (b'{"id": 2}', "the value is no envelope of Debeziu")
    typed = topic.latest(value_format="json", schema="id int, price decimal(10,2), at timestamp").select("value.*").orderBy("id").collect()
    assert [(row["id"], row["price"] if row["price"] is None else str(row["price"])) for row in typed] == [(1, "0.52"), (3, None)]
    assert typed[0]["at"].microsecond == 1


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "give either subscribe"),
        ({"subscribe": "a", "topics.pattern": "b", "topic": "t"}, "give either subscribe"),
        ({"topics.pattern": "b", "topic": "t"}, "topic = 't': with topics.pattern each topic has the name of its Kafka topic"),
        ({"subscribe": "a", "topic": "t", "partitions": 3}, "partitions = 3: topic t has its partitions"),
        ({"topics.pattern": "("}, "is no regular expression"),
        ({"subscribe": "a", "topic": "t", "envelope": "maxwell"}, "'debezium' or 'debezium-flat'"),
    ],
)
def test_a_source_of_events_says_what_is_allowed(settings: dict[str, Any], said: str) -> None:
    """Before anything is started."""
    with pytest.raises(ValidationError, match=said):
        KafkaSource.model_validate({"name": "s", "format": "kafka", "bootstrap.servers": "x:1", **settings})


@pytest.mark.kafka
def test_one_source_takes_every_topic_of_a_connector(spark: SparkSession, tmp_path: Path) -> None:
    """Each into a topic of its own; a lost checkpoint reads all again and doubles nothing, whatever comes meanwhile."""
    sources = {name: source_of(random.Random(number), changes=50) for number, name in enumerate(("shop.orders", "shop.lines"))}
    settings = Settings.model_validate(
        {
            "log_dir": str(tmp_path / "logs"),
            "sources": [
                {
                    "name": "shop",
                    "format": "kafka",
                    "bootstrap.servers": "",
                    "topics.pattern": r"shop\..*",
                    "envelope": "debezium",
                    "trigger": "available-now",
                }
            ],
        }
    )
    with KafkaBroker() as broker:
        for name, source in sources.items():
            broker.create_topic(name, 2)
            broker.produce(name, _records(source.partitions))
        broker.create_topic("other")
        one = settings.sources[0].model_copy(update={"bootstrap_servers": broker.bootstrap_servers})
        settings = settings.model_copy(update={"sources": [one]})
        Service(settings, cleaning=False).run()
        logs = LogDir(spark, settings.log_dir)
        assert logs.topics() == sorted(sources)
        counts = {name: logs.topic(name).describe().record_count for name in sources}
        for name, source in sources.items():
            assert _rows(logs.topic(name)) == _not_stale(logs.topic(name), source.table)
            assert logs.topic(name).partitions == 2
        shutil.rmtree(Path(settings.log_dir) / "shop.orders" / "queries" / "shop")
        Service(settings, cleaning=False).run()
        assert logs.topic("shop.orders").describe().record_count == counts["shop.orders"]
        headers = {header["key"] for row in by_arrow(logs.topic("shop.lines")).records().to_pylist() for header in row["headers"]}
        assert {"source.partition", "source.offset"} <= headers


def _records(partitions: Sequence[Sequence[dict[str, Any]]]) -> list[Record]:
    return [
        Record(
            number,
            None if event["key"] is None else event["key"].encode(),
            None if event["value"] is None else event["value"].encode(),
            tuple((header["key"], header["value"]) for header in event["headers"]),
        )
        for number, events in enumerate(partitions)
        for event in events
    ]


def test_change_events_are_no_mirror(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """Nor a part of a transaction."""
    topic = logs.create_topic("t", config=_CONFIG)
    stream = spark.readStream.format("rate").load().selectExpr("CAST(value AS STRING) AS key", "CAST(value AS STRING) AS value")
    with pytest.raises(UserError, match="change events are no mirror and no transactions"):
        topic.append_stream(stream, name="q", envelope=Envelope(), transactional_id="x")


@pytest.mark.parametrize(
    ("schema", "setting", "said"),
    [
        ("id int, _kafka string", "false", "the column _kafka of the schema has the name of what stands for the record itself"),
        ("id int, m map<int, string>", "false", "its columns id, m cannot be read: "),
        ("id int, ID int", "false", "columns ID, id differ in case alone"),
    ],
)
def test_columns_of_kafka_that_cannot_be_read_are_named(spark: SparkSession, tmp_path: Path, schema: str, setting: str, said: str) -> None:
    """Before the query starts."""
    topic = LogDir(str(tmp_path)).create_topic("fruit", config=_CONFIG)
    given = {"name": "k", "topic": "fruit", "format": "kafka", "bootstrap.servers": "nowhere:1", "subscribe": "t"}
    source = KafkaSource.model_validate({**given, "schema": schema, "key": ["id"]})
    columns = "key binary, value binary, headers array<struct<key:string,value:binary>>, timestamp timestamp, partition int, offset bigint"
    rows = spark.createDataFrame([], columns)
    spark.conf.set("spark.sql.caseSensitive", setting)
    try:
        with pytest.raises(UserError, match=f"source k: {said}"):
            _kafka_columns(rows, source, topic.log, 0, EventSource("t", 1))
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
