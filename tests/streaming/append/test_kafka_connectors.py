"""A connector with three tables, through a real broker, by one source of at most ten lines: the tables are what they were.

```
 JSON with schemas │ Avro, framed for a registry │ flattened    ─►    one [[source]]    ─►    topic.table()
```
"""

from __future__ import annotations

import json
from datetime import datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pytest
from pyspark.sql.types import VariantVal

from lastword import LogDir
from lastword.compaction.errors import UserError
from lastword.service.service import Service
from lastword.service.settings import load_settings
from lastword.status.watcher import Watcher
from tests.kafka_broker import KafkaBroker, Record
from tests.pictures import by_arrow
from tests.storage.schema_registry.registries import Registry, header, running
from tests.streaming.append.connectors import NUMBER, TEXT, Table, as_avro, as_json, connector, flattened
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from lastword import SparkTopic

pytestmark = pytest.mark.kafka
_MOST_LINES: Final = 10
#: A record that is no event, and an id that no registry knows.
_NO_EVENT, _UNKNOWN_ID = b"{cut", 999


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    """Return a real broker for the tests of this module."""
    with KafkaBroker() as running_broker:
        yield running_broker


def _take(folder: Path, broker: KafkaBroker, prefix: str, *lines: str, subscribe: str = "") -> str:
    """Run the service with one source for all tables whose topics have a prefix, until it has taken what is there; return the log.dir.

    With `subscribe` the source reads this topic alone.
    """
    source = [
        "[[source]]",
        'name = "shop"',
        'format = "kafka"',
        f'bootstrap.servers = "{broker.bootstrap_servers}"',
        f'subscribe = "{subscribe}"' if subscribe else rf"topics.pattern = '{prefix}\..*'",
        'trigger = "available-now"',
        *lines,
    ]
    assert len(source) <= _MOST_LINES
    path = folder / "lastword.toml"
    path.write_text("\n".join([f'log.dir = "{folder / "logs"}"', *source, "[http]", 'listen = ""']) + "\n")
    settings = load_settings(path)
    Service(settings, cleaning=False).run()
    return settings.log_dir


def _produce(broker: KafkaBroker, records: dict[str, list[Record]]) -> None:
    for name, some in records.items():
        broker.create_topic(name, 2)
        broker.produce(name, some)


def _of_spark(column: str, value: Any) -> Any:
    """Return a value of Spark as Arrow has it: bytes, JSON as text, an instant in UTC."""
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, VariantVal):
        return json.dumps(value.toPython(), separators=(",", ":"))
    return value.astimezone(timezone.utc) if column == "seen" and isinstance(value, datetime) else value


def _check(topic: SparkTopic, table: Table) -> None:
    """Compare a topic with its table, by Arrow and by Spark, value by value and type by type."""
    found = by_arrow(topic).table()
    assert found.schema.names == list(table.columns)
    by_spark = [{name: _of_spark(name, value) for name, value in row.asDict().items()} for row in topic.table().collect()]
    for rows in (_in_utc(found.to_pylist()), by_spark):
        by_key = {tuple(row[name] for name in table.key): row for row in rows}
        assert len(by_key) == len(rows) == len(table.rows)
        for key, row in table.rows.items():
            assert by_key[key] == row
            assert {name: type(value) for name, value in by_key[key].items()} == {name: type(value) for name, value in row.items()}


def _in_utc(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {name: one.astimezone(timezone.utc) if name == "seen" and one is not None else one for name, one in row.items()} for row in rows
    ]


def _letters(topic: SparkTopic) -> list[tuple[bytes | None, str]]:
    return [(row["value"], row["detail"]) for row in by_arrow(topic).dead_letters().to_pylist()]


@pytest.mark.usefixtures("spark")
def test_a_source_makes_the_topic_of_the_kafka_topic_that_it_reads(tmp_path: Path, broker: KafkaBroker) -> None:
    """With as many partitions, for a mirror and for events; a Kafka topic that is not there is named, and no topic is made."""
    event = b'{"before":null,"after":{"id":1,"price":"ZA=="},"op":"c","source":{"connector":"postgresql","name":"a","lsn":90}}'
    _produce(broker, {"own.plain": [Record(1, b"k", b"v")], "own.rows": [Record(0, b'{"id":1}', event)]})

    logs = LogDir(_take(tmp_path, broker, "", subscribe="own.plain"))
    _take(tmp_path, broker, "", 'envelope = "debezium"', 'schema = "id int, price decimal(10,2)"', subscribe="own.rows")

    assert {name: logs.topic(name).partitions for name in logs.topics()} == {"own.plain": 2, "own.rows": 2}
    assert logs.topic("own.plain").records().select(["partition", "key", "value"]).to_pylist() == [
        {"partition": 1, "key": b"k", "value": b"v"}
    ]
    assert logs.topic("own.rows").table().to_pylist() == [{"id": 1, "price": Decimal("1.00")}]
    with pytest.raises(UserError, match=r"own\.nothing"):
        _take(tmp_path, broker, "", subscribe="own.nothing")
    assert "own.nothing" not in logs.topics()


def test_json_with_the_schemas_of_connect(spark: SparkSession, tmp_path: Path, broker: KafkaBroker) -> None:
    """Connect's own default; a record that is no event is a dead letter and costs no other one."""
    tables = connector("json")
    _produce(broker, {table.name: as_json(table) for table in tables})
    broker.produce("json.stock", [Record(1, b"k", _NO_EVENT)])
    logs = LogDir(spark, _take(tmp_path, broker, "json", 'envelope = "debezium"'))
    assert logs.topics() == sorted(table.name for table in tables)
    for table in tables:
        _check(logs.topic(table.name), table)
    (letter,) = _letters(logs.topic("json.stock"))
    assert letter[0] == _NO_EVENT
    assert "no envelope of Debezium" in letter[1]
    assert [len(_letters(logs.topic(name))) for name in ("json.prices", "json.notes")] == [0, 0]


def test_avro_in_the_frames_of_a_registry(spark: SparkSession, tmp_path: Path, broker: KafkaBroker) -> None:
    """An id that is unknown is a dead letter and costs no other record; what was decoded once needs no registry any more."""
    tables, registry = connector("avro"), Registry()
    with running(registry) as url:
        _produce(broker, {table.name: as_avro(table, registry) for table in tables})
        unknown = header(_UNKNOWN_ID) + b"\x02"
        broker.produce("avro.prices", [Record(0, unknown, unknown), Record(1, unknown, None)])
        logs = LogDir(spark, _take(tmp_path, broker, "avro", 'envelope = "debezium"', f'schema.registry.url = "{url}"'))
    for table in tables:
        _check(logs.topic(table.name), table)
    letters = _letters(logs.topic("avro.prices"))
    assert [letter[0] for letter in letters] in ([unknown, None], [None, unknown])
    assert all(str(_UNKNOWN_ID) in detail for _, detail in letters)
    assert [len(_letters(logs.topic(name))) for name in ("avro.stock", "avro.notes")] == [0, 0]
    asked = len(registry.requests)

    stock = tables[0]
    before = len(as_avro(stock, Registry()))
    stock.put("u", "north", 2, 7, "later")
    stock.delete("north", 0)
    broker.produce("avro.stock", as_avro(stock, Registry())[before:])  # with the same ids: they are the first table's
    # A second address: what decoders remember in memory is of the first one alone, so the schemas come from the topic's folder.
    _take(tmp_path, broker, "avro", 'envelope = "debezium"', f'schema.registry.url = "{url},{url}/gone"')
    for table in tables:
        _check(logs.topic(table.name), table)
    assert len(registry.requests) == asked


@pytest.mark.parametrize("deletions", ["rows", "nulls"])
def test_flattened_rows(spark: SparkSession, tmp_path: Path, broker: KafkaBroker, deletions: str) -> None:
    """By ExtractNewRecordState, with operation and position; their metadata are no columns. A deletion is null, or a row that says so."""
    tables = connector(deletions)
    _produce(broker, {table.name: flattened(table, nulls=deletions == "nulls") for table in tables})
    broker.produce(f"{deletions}.notes", [Record(0, b'{"id":1}', _NO_EVENT)])
    logs = LogDir(spark, _take(tmp_path, broker, deletions, 'envelope = "debezium-flat"'))
    for table in tables:
        _check(logs.topic(table.name), table)
    ((value, detail),) = _letters(logs.topic(f"{deletions}.notes"))
    assert value == _NO_EVENT
    assert "no JSON object" in detail


def test_a_topic_that_the_service_makes_itself_is_not_taken_for_a_deleted_one(
    spark: SparkSession, tmp_path: Path, broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the watcher had looked for topics before it was there: its source goes on.

    ```
     watcher: no topics │ a pattern finds shop.first │ the topic is made, its query runs │ is it known? not yet
    ```
    """
    table = Table("made.first", ("id",), {"id": NUMBER, "body": TEXT})
    for number in range(30):
        table.put("c", number, "x")
    _produce(broker, {table.name: as_json(table)})
    start = Watcher.start

    def start_and_look(watcher: Watcher) -> None:
        start(watcher)
        until(lambda: watcher.standing.loaded)

    (tmp_path / "logs").mkdir()  # of a folder that is not there yet nothing is known
    monkeypatch.setattr(Watcher, "start", start_and_look)
    logs = LogDir(spark, _take(tmp_path, broker, "made", 'envelope = "debezium"', "max.offsets.per.trigger = 8"))
    _check(logs.topic(table.name), table)


def test_events_that_cannot_be_filled_in_are_dead_letters_alone(spark: SparkSession, tmp_path: Path, broker: KafkaBroker) -> None:
    """A micro-batch of nothing else does not end the query."""
    table = Table("odd.first", ("id",), {"id": NUMBER, "body": TEXT})
    table.put("u", 1, "never seen", left_out="body")
    _produce(broker, {table.name: as_json(table)})
    logs = LogDir(spark, _take(tmp_path, broker, "odd", 'envelope = "debezium"'))
    topic = logs.topic(table.name)
    assert (len(_letters(topic)), topic.describe().record_count) == (1, 0)
    table.put("u", 2, "seen")
    broker.produce(table.name, as_json(table)[1:])
    _take(tmp_path, broker, "odd", 'envelope = "debezium"')
    assert (len(_letters(topic)), topic.describe().record_count) == (1, 1)
