"""No setting of a caller's session changes what is written to a log or read from it."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from delta.tables import DeltaTable
from deltalake import DeltaTable as DeltaTableRs
from pyspark.sql import functions as F

from lastword import InvalidConfiguration, LogDir
from pyspark_lastword import DefaultSource
from tests.clocks import at
from tests.pictures import T0, by_arrow

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from lastword import SparkTopic

#: Settings that change how Spark and Delta write and read, what a new table is like, and how values are cast and shown.
_HOSTILE: Final[Mapping[str, Mapping[str, str]]] = {
    "no statistics": {
        "spark.databricks.delta.stats.collect": "false",
        "spark.databricks.delta.properties.defaults.dataSkippingNumIndexedCols": "0",
    },
    "other files": {
        "spark.sql.files.maxRecordsPerFile": "25",
        "spark.databricks.delta.optimizeWrite.enabled": "true",
        "spark.databricks.delta.autoCompact.enabled": "true",
        "spark.sql.shuffle.partitions": "7",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "3",
        "spark.sql.sources.default": "csv",
    },
    "other encodings": {
        "spark.sql.parquet.outputTimestampType": "INT96",
        "spark.sql.parquet.compression.codec": "gzip",
        "spark.sql.parquet.writeLegacyFormat": "true",
        "spark.sql.session.timeZone": "Pacific/Apia",
        "spark.sql.execution.arrow.useLargeVarTypes": "true",
    },
    "other tables": {
        "spark.databricks.delta.properties.defaults.columnMapping.mode": "name",
        "spark.databricks.delta.properties.defaults.enableDeletionVectors": "true",
        "spark.databricks.delta.properties.defaults.enableChangeDataFeed": "true",
        "spark.databricks.delta.properties.defaults.appendOnly": "true",
        "spark.databricks.delta.properties.defaults.logRetentionDuration": "interval 0 hours",
        "spark.databricks.delta.properties.defaults.setTransactionRetentionDuration": "interval 0 hours",
        "spark.databricks.delta.properties.defaults.checkpointPolicy": "v2",
    },
    "other SQL": {
        "spark.sql.caseSensitive": "true",
        "spark.sql.ansi.enabled": "false",
        "spark.sql.legacy.timeParserPolicy": "LEGACY",
        "spark.sql.storeAssignmentPolicy": "LEGACY",
        "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
        "spark.sql.legacy.charVarcharAsString": "true",
        "spark.sql.legacy.sizeOfNull": "true",
        "spark.sql.parquet.binaryAsString": "true",
        "spark.sql.session.timeZone": "America/St_Johns",
    },
    "other catalog": {
        "spark.sql.defaultCatalog": "theirs",
        "spark.sql.catalog.theirs": "org.apache.spark.sql.execution.datasources.v2.jdbc.JDBCTableCatalog",
        "spark.sql.catalog.theirs.url": "jdbc:none",
        "spark.sql.session.timeZone": "Asia/Kathmandu",
        "spark.sql.crossJoin.enabled": "false",
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        "spark.sql.join.preferSortMergeJoin": "true",
        "spark.sql.columnNameOfCorruptRecord": "value",
        "spark.sql.jsonGenerator.ignoreNullFields": "false",
    },
}
_NOW: Final = {"availableNow": True}


@contextmanager
def _session(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    before: dict[str, str | None] = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, was in before.items():
            if was is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, was)


def _rows(spark: SparkSession, count: int, value: str) -> DataFrame:
    """Return records in three tasks, in the order of their numbers."""
    numbers = spark.range(0, count, 1, 3)
    return numbers.select(
        F.concat(F.lit("k"), F.col("id") % 40).alias("key"),
        F.concat(F.lit(value), F.col("id")).alias("value"),
        F.timestamp_millis(F.lit(T0) + F.col("id")).alias("timestamp"),
        F.array(F.struct(F.lit("h").alias("key"), F.col("id").cast("string").cast("binary").alias("value"))).alias("headers"),
        (F.col("id") % 2).cast("int").alias("partition"),
    )


def _lived(spark: SparkSession, logs: LogDir[SparkTopic], name: str) -> SparkTopic:
    """Append, clean, append again, all in the session as it is."""
    topic = logs.create_topic(name, partitions=2, config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})
    at(T0, topic).append(_rows(spark, 300, "a"))
    at(T0, topic).append(_rows(spark, 90, "b"))
    at(T0, topic).roll()
    at(T0, topic).clean()
    at(T0, topic).append(_rows(spark, 60, "c"))
    return topic


def _shown(rows: DataFrame) -> list[tuple[Any, ...]]:
    rows = rows.select("partition", "offset", "key", "value", F.unix_millis("timestamp"), F.col("headers").cast("string"))
    return sorted(tuple(bytes(one) if isinstance(one, bytearray) else one for one in row) for row in rows.collect())


def _toured(spark: SparkSession, settings: Mapping[str, str], place: Path) -> dict[str, Any]:
    """Do everything with a topic in a session of these settings, and return what each reader showed."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    for name, value in settings.items():
        session.conf.set(name, value)
    logs = LogDir(session, str(place / "logs"))
    topic = _lived(session, logs, "records")
    begin = topic.bootstrap().position
    shown: dict[str, Any] = {}

    with at(T0, topic).transaction("order-1") as transaction:
        transaction.append(_rows(session, 4, "d"))
    gone = session.createDataFrame([("k0", None, 0)], "key string, value string, partition int")
    at(T0, topic).append(gone)
    end = topic.bootstrap().position
    shown |= {"records": _shown(topic.records()), "latest": _shown(topic.latest()), "as of": _shown(topic.latest(as_of=begin.vector()))}
    columns = ("partition", "key", "offset", "value", "change_type")
    shown["changes"] = sorted(map(repr, topic.changes(begin.vector(), end.vector()).select(*columns).collect()))
    read: list[str] = []
    query = topic.tail(begin).writeStream.foreachBatch(lambda rows, _: read.extend(repr(one) for one in _shown(rows))).trigger(**_NOW)
    query.start().awaitTermination()
    shown["tail"] = sorted(read)
    session.dataSource.register(DefaultSource)
    source = session.read.format("lastword").load(topic.log.paths.root)
    shown["format"] = sorted(map(repr, source.selectExpr("partition", "offset", "key", "value", "unix_millis(timestamp)").collect()))

    flow = logs.create_topic("rows", config={"cleanup.policy": "compact"})
    for number, lines in enumerate((_CHANGES[:3], _CHANGES[3:])):
        (place / "in").mkdir(exist_ok=True)
        (place / "in" / f"{number}.json").write_text("\n".join(lines))
        stream = session.readStream.schema("id int, name string, at string, `Unit Price` decimal(9,2), seq int, op string")
        changes = stream.json(str(place / "in")).withColumn("at", F.col("at").cast("timestamp"))
        kept = at(T0, flow).create_auto_cdc_flow(
            changes,
            ["id"],
            "seq",
            apply_as_deletes="op = 'd'",
            except_column_list=["op", "seq"],
            stored_as_scd_type=2,
            table=str(place / "past"),
            trigger=_NOW,
        )
        assert kept.await_termination(90)
        flow.materialize(
            str(place / "now"), trigger=_NOW, value_format="json", schema="name string, at timestamp, `Unit Price` double"
        ).awaitTermination()
    micros = "unix_micros(at) AS at"
    shown["table"] = sorted(map(repr, flow.table().selectExpr("id", "name", micros, "`Unit Price`").collect()))
    shown["files"] = flow.latest().count()
    for name in ("now", "past"):
        frame = session.read.format("delta").load(str(place / name))
        periods = ["_is_current", "_valid_to IS NULL"] if name == "past" else []
        shown[name] = sorted(
            map(repr, frame.selectExpr("CAST(_key AS STRING)", "_offset", "name", micros, "`Unit Price`", *periods).collect())
        )
        detail = DeltaTableRs(str(place / name))
        shown[f"{name} settings"] = {key: value for key, value in detail.metadata().configuration.items() if "maxColumnId" not in key}
    receipt = flow.purge('{"id":1}')
    shown["purge"] = (receipt.records_removed, sorted(receipt.target_rows_removed.values()), flow.latest().count())
    words = by_arrow(topic).latest()
    pairs = sorted(zip(words["partition"].to_pylist(), words["offset"].to_pylist(), strict=True))
    assert pairs == [row[:2] for row in shown["latest"]]
    assert (topic.log.snapshot().files.record_count > 0).all()
    assert topic.verify().ok
    assert flow.verify().ok
    return shown


#: Changes of a table by its key, in two files; the price of a row has a name that Delta maps.
_CHANGES: Final = [
    '{"id": 1, "name": "fig", "at": "2026-03-08T07:30:00.123456Z", "Unit Price": 1.5, "seq": 1, "op": "c"}',
    '{"id": 2, "name": "lime", "at": "2026-11-01T05:30:00Z", "Unit Price": 2, "seq": 2, "op": "c"}',
    '{"id": 3, "name": null, "at": null, "Unit Price": null, "seq": 3, "op": "c"}',
    '{"id": 1, "name": "kiwi", "at": "1970-01-01T00:00:00Z", "Unit Price": 0.25, "seq": 4, "op": "u"}',
    '{"id": 2, "seq": 5, "op": "d"}',
    '{"id": 3, "name": "late", "seq": 2, "op": "u"}',
]


@pytest.fixture(scope="module")
def plain(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what is shown of topics that lived in a session without such settings."""
    return _toured(spark, {}, tmp_path_factory.mktemp("plain"))


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("names", [("no statistics", "other files", "other tables"), ("other SQL",)], ids="; ".join)
def test_all_that_is_done_shows_the_same_in_every_session(
    spark: SparkSession, plain: dict[str, Any], tmp_path: Path, names: Sequence[str]
) -> None:
    """Appends, transactions, streams, AUTO CDC, cleaning, every reader, tables, history, a purge: what is shown, and how tables are."""
    settings = {key: value for name in names for key, value in _HOSTILE[name].items()}
    assert _toured(spark, settings, tmp_path) == plain


@pytest.mark.torture
@pytest.mark.parametrize("name", _HOSTILE)
def test_each_kind_of_setting_alone_changes_nothing(spark: SparkSession, plain: dict[str, Any], tmp_path: Path, name: str) -> None:
    """As above, kind by kind."""
    assert _toured(spark, _HOSTILE[name], tmp_path) == plain


def test_a_file_that_cannot_be_read_is_an_error_whatever_the_session_ignores(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """A cleaning names the file and removes nothing; a reader names the setting, as Spark would leave the rows out without a word."""
    topic = logs.create_topic("damaged", config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})
    at(T0, topic).append(spark.createDataFrame([("a", "1"), ("b", "1")], "key string, value string"))
    at(T0, topic).append(spark.createDataFrame([("a", "2")], "key string, value string"))
    at(T0, topic).roll()
    path = Path(topic.log.paths.log, str(topic.log.snapshot().files.path[0]))
    whole, version = path.read_bytes(), topic.log.snapshot().version
    path.write_bytes(whole[: len(whole) // 2])
    with _session(spark, {"spark.sql.files.ignoreCorruptFiles": "true", "spark.sql.files.ignoreMissingFiles": "true"}):
        assert at(T0, topic).clean(force=True) == []
        [report] = at(T0, topic).explain()
        assert path.name in str(report.uncleanable_reason)
        assert topic.log.snapshot().version == version
        for read in (topic.latest, topic.records):
            with pytest.raises(InvalidConfiguration, match=r"spark.sql.files.ignoreCorruptFiles = true: false: rows of the log"):
                read()
    path.write_bytes(whole)
    [receipt] = at(T0, topic).clean(force=True)
    assert receipt.removed == {"superseded": 1}


def test_after_an_optimize_of_another_writer_all_readers_see_the_same(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """Or an error that says what happened: never two truths."""
    with _session(spark, _HOSTILE["other files"]):
        topic = _lived(spark, logs, "optimized")
        before = _shown(topic.latest())
        DeltaTable.forPath(spark, topic.log.paths.log).optimize().executeCompaction()
        assert _shown(LogDir(spark, logs.location).topic("optimized").latest()) == before
    words = by_arrow(topic).latest()
    assert sorted(zip(words["partition"].to_pylist(), words["offset"].to_pylist(), strict=True)) == [row[:2] for row in before]
