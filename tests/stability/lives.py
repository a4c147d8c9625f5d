"""Lives of topics, without a JVM, that leave a row of each kind in their ledgers: what people, sources, queries and the cleaner decide."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from deltalake import DeltaTable
from pyspark.sql import types as T

from lastword import Envelope, LogDir, Mirror, Upstream, UpstreamState
from lastword.compaction.config.topic_config import parse_service_config
from lastword.compaction.read_positions import Position
from lastword.compaction.readers import EXPIRATION_MS, Reader
from lastword.storage.ledger.decisions import Decision, Kind
from lastword.streaming.append.query import Appender
from lastword.streaming.cleaning.claims import Claims
from lastword.streaming.cleaning.cleaner import Cleaner
from lastword.streaming.cleaning.scheduler import MaintenanceScheduler
from lastword.topics.tables import decide_table
from tests.change_events import append, change
from tests.clocks import at
from tests.pictures import DAY_MS, HOUR_MS, T0, rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lastword import ArrowTopic, Topic
    from lastword.storage.log.topic_log import TopicLog

EAGER: Final = {"cleanup.policy": "compact,delete", "retention.ms": -1, "min.cleanable.dirty.ratio": 0}
#: A change comes to these columns when the schema of the source does.
_SCHEMA: Final = "id bigint, price decimal(10,2), at timestamp"
_TABLE: Final = {"connector": "mysql", "name": "shop", "db": "d", "table": "orders", "row": 0}


def of_people(logs: LogDir) -> Topic:
    """Create and alter a topic; append, roll, pause, delete, purge, clean; a transaction, a dead letter."""
    topic = at(T0, logs).create_topic("fruit", partitions=2, config={**EAGER, "segment.bytes": "64MiB"})
    topic = at(T0, topic)
    topic.append(rows("lime=1 kiwi=1 lime=2 kiwi=∅ fig=1", partition=0, timestamp_ms=T0))
    with topic.transaction("prices-loader", timeout_ms=60_000) as transaction:
        transaction.append(rows("plum=1", partition=0))
    topic.alter_config({"segment.bytes": None, "delete.retention.ms": 0})
    topic.roll()
    topic.clean()
    topic.pause(0)
    topic.resume(0)
    topic.append(rows("pear=1", partition=1, timestamp_ms=T0))
    topic.roll(1)
    topic.delete_records({1: 1})
    topic.purge("fig")
    topic.append([{"key": None, "value": "no key"}], on_invalid="dead-letter")
    return topic


def of_an_open_transaction(logs: LogDir) -> Topic:
    """Append by a transaction that is left open."""
    topic = at(T0, at(T0, logs).create_topic("open", config=EAGER))
    topic.append(rows("a=1", timestamp_ms=T0))
    topic.transaction("prices-loader", timeout_ms=60_000).append(rows("b=1"))
    topic.open_transactions()
    return topic


def of_retention(logs: LogDir) -> Topic:
    """Delete a closed segment by age."""
    topic = at(T0, logs).create_topic("days", config={"cleanup.policy": "delete", "retention.ms": "1d"})
    topic.append(rows("mon=1 tue=2", timestamp_ms=T0))
    at(T0, topic).roll()
    at(T0 + 2 * DAY_MS, topic).apply_retention()
    return topic


def of_readers_and_tables(logs: LogDir) -> Topic:
    """Register two readers, of which one is dropped later, and a table that follows the topic."""
    topic = at(T0, logs).create_topic("read")
    at(T0, topic).append(rows("a=1 b=2", timestamp_ms=T0))
    position = Position(offsets=(2,), table_version=1, since_version=1)
    reader = Reader(name="orders-cache", position=position, seen_ms=T0, expiration_ms=EXPIRATION_MS)
    for name in ("orders-cache", "search-index"):
        topic.log.reader_positions.write(replace(reader, name=name), topic.log.ledger)
    at(T0 + DAY_MS, topic).drop_reader("orders-cache")
    decide_table(topic.log, "/tables/read", {"history": True}, now_ms=T0)
    return topic


def of_queries(logs: LogDir) -> Topic:
    """Bind a streaming query to its id, forget it, mirror a topic; the columns of files are those that Spark would infer."""
    topic = at(T0, logs).create_topic("streamed")
    appender(topic, "files", Upstream(source="/in/*.json", reads="files /in/*.json")).bind("11111111-2222-3333-4444-555555555555")
    schema = T.StructType([T.StructField("fruit", T.StringType()), T.StructField("price", T.DoubleType(), nullable=False)])
    topic.log.ledger.append([Decision(kind=Kind.SCHEMA, time_ms=T0, name="files", details=schema.jsonValue())])
    at(T0 + HOUR_MS, topic).forget_query("files")
    mirror = Mirror(source="kafka:fruit", ask=lambda: UpstreamState(identity="k9", partitions=1, log_starts={0: 0}, log_ends={0: 7}))
    appender(topic, "mirror", mirror).claim_mirror()
    return topic


def appender(topic: Topic, name: str, upstream: Upstream) -> Appender:
    """Return what an append query of a topic does in each micro-batch; Spark starts it."""
    return Appender(topic.log, name=name, fail_on_invalid=False, upstream=upstream, clock_ms=lambda: T0, grouping=None)


def of_the_cleaner(logs: LogDir) -> Topic:
    """Claim a topic, fail, succeed, keep it tidy."""
    topic = at(T0, logs).create_topic("damaged", config=EAGER)
    at(T0, topic).append(rows("a=1 a=2", timestamp_ms=T0))
    at(T0, topic).roll()
    claims = Claims(claimed_bytes=0, clock_ms=lambda: T0)
    claims.owner = "host/4711/0123456789ab"
    with claims.hold(topic.log, 1):
        pass
    cleaner = Cleaner(parse_service_config({"log.cleaner.max.failures": 1})[0])
    with _damaged(topic):
        cleaner.clean(topic.log, None, clock_ms=lambda: T0)
    cleaner.clean(topic.log, None, clock_ms=lambda: T0 + HOUR_MS, force=True)
    _keep_tidy(topic.log)
    return topic


@contextmanager
def _damaged(topic: Topic) -> Iterator[None]:
    """Garble the data files of a topic for a while."""
    whole = {path: path.read_bytes() for path in Path(topic.log.paths.log).rglob("*.parquet")}
    for path, content in whole.items():
        path.write_bytes(bytes(len(content)))
    yield
    for path, content in whole.items():
        path.write_bytes(content)


def _keep_tidy(log: TopicLog) -> None:
    """Remove the files that no table version needs, as the service does once a day."""
    config, _ = parse_service_config({})
    no_spark: Any = None
    scheduler = MaintenanceScheduler(spark=no_spark, cleaner=Cleaner(config), config=config, topics=lambda: [log], clock_ms=lambda: T0)
    scheduler._vacuum(log, T0)  # noqa: SLF001  a tick needs Spark


def of_a_restore(logs: LogDir) -> Topic:
    """Take the newest append back with Delta's RESTORE."""
    topic = at(T0, logs).create_topic("restored")
    for picture in ("a=1", "a=2"):
        at(T0, topic).append(rows(picture, timestamp_ms=T0))
    DeltaTable(topic.log.paths.log).restore(1)
    LogDir(logs.location).topic("restored").log.sync_ledger_with_history(tell=True)
    return topic


def of_sources(logs: LogDir) -> ArrowTopic:
    """Truncate a table; take a snapshot that lacks a row, and sweep; begin an epoch; retire the source."""
    topic: Any = at(T0, logs).create_topic("orders", config={"cleanup.policy": "compact"})
    topic, envelope = at(T0, topic), Envelope(schema=_SCHEMA, decimal_handling_mode="string")
    append(topic, change("t", None, source(1, 90)), envelope=envelope)
    append(topic, *(change("c", one, source(1, 100 + one), order(one)) for one in (1, 2, 3)), envelope=envelope)
    topic = at(T0 + HOUR_MS, topic)
    append(topic, *(change("r", one, source(2, 50, snapshot="true"), order(one)) for one in (2, 3)), envelope=envelope)
    append(topic, change("u", 3, source(2, 60), order(3)), envelope=envelope)
    append(topic, change("u", 3, source(1, 95, ts_ms=T0 + HOUR_MS), order(3)), envelope=envelope)
    topic.sweep_source("mysql.shop")
    topic.new_epoch("mysql.shop")
    topic.retire_source("mysql.shop")
    return topic  # type: ignore[no-any-return]


def source(file: int, pos: int, **fields: Any) -> dict[str, Any]:
    """Return the block `source` of an event of MySQL."""
    return {**_TABLE, "file": f"bin.{file:06}", "pos": pos, "ts_ms": T0, **fields}


def order(number: int) -> dict[str, Any]:
    """Return a row of the table of orders."""
    return {"id": number, "price": "9.50", "at": T0}


LIVES: Final = (
    of_people,
    of_an_open_transaction,
    of_retention,
    of_readers_and_tables,
    of_queries,
    of_the_cleaner,
    of_a_restore,
    of_sources,
)
