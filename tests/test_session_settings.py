"""No setting of a caller's session changes what is written to a log or read from it."""

from __future__ import annotations

import ast
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from delta.tables import DeltaTable
from deltalake import DeltaTable as DeltaTableRs
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource

from lastword import InvalidConfiguration, LogDir
from lastword.compaction.rows.input_columns import HEADERS
from pyspark_lastword import DefaultSource
from tests.clocks import at
from tests.pictures import T0, by_arrow, rows
from tests.processes import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from lastword import SparkTopic
    from lastword.compaction.read_positions import Position

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
        "spark.sql.timestampType": "TIMESTAMP_NTZ",
        "spark.sql.session.timeZone": "America/St_Johns",
    },
    "other catalog": {
        "spark.sql.defaultCatalog": "theirs",
        "spark.sql.catalog.theirs": "org.apache.spark.sql.execution.datasources.v2.jdbc.JDBCTableCatalog",
        "spark.sql.catalog.theirs.url": "jdbc:derby:memory:theirs;create=true",
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


def _rows(spark: SparkSession | None, count: int, value: str) -> DataFrame | pa.Table:
    """Return records in the order of their numbers: in three tasks, or without Spark."""
    if spark is None:
        numbers = range(count)
        return pa.table(
            {
                "key": [f"k{number % 40}" for number in numbers],
                "value": [f"{value}{number}" for number in numbers],
                "timestamp": pa.array([T0 + number for number in numbers], pa.int64()),
                "headers": pa.array([[{"key": "h", "value": str(number).encode()}] for number in numbers], HEADERS),
                "partition": pa.array([number % 2 for number in numbers], pa.int32()),
            }
        )
    return spark.range(0, count, 1, 3).select(
        F.concat(F.lit("k"), F.col("id") % 40).alias("key"),
        F.concat(F.lit(value), F.col("id")).alias("value"),
        F.timestamp_millis(F.lit(T0) + F.col("id")).alias("timestamp"),
        F.array(F.struct(F.lit("h").alias("key"), F.col("id").cast("string").cast("binary").alias("value"))).alias("headers"),
        (F.col("id") % 2).cast("int").alias("partition"),
    )


def _lived(spark: SparkSession | None, logs: LogDir[Any], name: str) -> Any:
    """Append, clean, append again: all in the session as it is, or without one."""
    topic = logs.create_topic(name, partitions=2, config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})
    at(T0, topic).append(_rows(spark, 300, "a"))
    at(T0, topic).append(_rows(spark, 90, "b"))
    at(T0, topic).roll()
    at(T0, topic).clean()
    at(T0, topic).append(_rows(spark, 60, "c"))
    return topic


def _gone_on(spark: SparkSession | None, topic: Any) -> tuple[Position, Position]:
    """Append a transaction and a tombstone; return the positions before and after them."""
    begin = topic.bootstrap().position
    with at(T0, topic).transaction("order-1") as transaction:
        transaction.append(_rows(spark, 4, "d"))
    gone = rows("k0=∅", partition=0)
    at(T0, topic).append(gone if spark is None else spark.createDataFrame([("k0", None, 0)], "key string, value string, partition int"))
    return begin, topic.bootstrap().position


def _shown(found: DataFrame | pa.Table) -> list[tuple[Any, ...]]:
    """Return records as tuples, by partition and offset."""
    if isinstance(found, pa.Table):
        moments = pc.divide(found.column("timestamp").cast(pa.int64()), 1000).to_pylist()
        drawn = [{**row, "millis": moment} for row, moment in zip(found.to_pylist(), moments, strict=True)]
    else:
        drawn = [row.asDict(recursive=True) for row in found.withColumn("millis", F.unix_millis("timestamp")).collect()]
    return sorted(
        (
            *(row["partition"], row["offset"], _bytes(row["key"]), _bytes(row["value"]), row["millis"]),
            tuple((one["key"], _bytes(one["value"])) for one in row["headers"] or ()),
            row.get("change_type", ""),
        )
        for row in drawn
    )


def _bytes(value: bytes | bytearray | None) -> bytes:
    return b"(null)" if value is None else bytes(value)


class _Foreign(DataSource):
    """A source of somebody else's that has the name of ours."""

    @classmethod
    def name(cls) -> str:
        return "lastword"

    def schema(self) -> str:
        return "theirs int"


def expected(place: Path) -> dict[str, Any]:
    """Return what every session shall show: of the log, what Arrow shows of one that was written without Spark."""
    topic = _lived(None, LogDir(place), "records")
    begin, end = _gone_on(None, topic)
    records = _shown(topic.records())
    return {
        "records": records,
        "latest": _shown(topic.latest()),
        "as of": _shown(topic.latest(as_of=begin.vector())),
        "changes": _shown(topic.changes(begin.vector(), end.vector())),
        "tail": [row for row in records if row[1] >= begin.vector()[row[0]]],
        "format": records,
        **_TABLES,
    }


def toured(spark: SparkSession, settings: Mapping[str, str], place: Path, *, tables: bool = True) -> dict[str, Any]:
    """Do everything with a topic in a session of these settings, and return what each reader showed."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    for name, value in settings.items():
        session.conf.set(name, value)
    with suppress(AnalysisException):  # Spark has found ours already, and lets nobody take its name
        session.dataSource.register(_Foreign)
    logs = LogDir(session, str(place / "logs"))
    topic = _lived(session, logs, "records")
    begin, end = _gone_on(session, topic)
    shown = {"records": _shown(topic.records()), "latest": _shown(topic.latest()), "as of": _shown(topic.latest(as_of=begin.vector()))}
    shown["changes"] = _shown(topic.changes(begin.vector(), end.vector()))
    read: list[tuple[Any, ...]] = []
    query = topic.tail(begin).writeStream.foreachBatch(lambda rows, _: read.extend(_shown(rows))).trigger(**_NOW)
    query.start().awaitTermination()
    shown["tail"] = sorted(read)
    with suppress(AnalysisException):
        session.dataSource.register(DefaultSource)
    source = session.read.format("lastword").option("includeHeaders", "true").load(topic.log.paths.root)
    assert source.schema["timestamp"].dataType.simpleString() == "timestamp"
    shown["format"] = _shown(source)
    words = by_arrow(topic).latest()
    pairs = sorted(zip(words["partition"].to_pylist(), words["offset"].to_pylist(), strict=True))
    assert pairs == [row[:2] for row in shown["latest"]]
    assert (topic.log.snapshot().files.record_count > 0).all()
    assert topic.verify().ok
    return shown | (_tables(session, logs, place) if tables else {})


def _tables(session: SparkSession, logs: LogDir[SparkTopic], place: Path) -> dict[str, Any]:
    """Keep tables of changes by key, purge a key, and return what is shown of them."""
    shown: dict[str, Any] = {}
    flow = logs.create_topic("rows", config={"cleanup.policy": "compact"})
    for number, lines in enumerate((_CHANGES[:3], _CHANGES[3:])):
        (place / "in").mkdir(exist_ok=True)
        (place / "in" / f"{number}.json").write_text("\n".join(lines))
        stream = session.readStream.schema("id int, name string, at string, `Unit Price` decimal(9,2), seq int, op string")
        changes = stream.json((place / "in").as_uri()).withColumn("at", F.col("at").cast("timestamp_ltz"))
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
        flow.materialize(str(place / "now"), trigger=_NOW, record_columns=["_offset"]).awaitTermination()
    micros = "unix_micros(at) AS at"
    shown["table"] = sorted(map(repr, flow.table().selectExpr("id", "name", micros, "`Unit Price`").collect()))
    shown["files"] = flow.latest().count()
    for name in ("now", "past"):
        frame = session.read.format("delta").load((place / name).as_uri())
        periods = ["_is_current", "_valid_to IS NULL AS is_open"] if name == "past" else []
        shown[name] = sorted(
            map(repr, frame.selectExpr("CAST(id AS STRING) AS key", "_offset", "name", micros, "`Unit Price`", *periods).collect())
        )
        detail = DeltaTableRs(str(place / name))
        shown[f"{name} settings"] = {
            key: value for key, value in detail.metadata().configuration.items() if key.startswith("delta.") and "maxColumnId" not in key
        }
    receipt = flow.purge("1")
    shown["purge"] = (receipt.records_removed, sorted(receipt.target_rows_removed.values()), flow.latest().count())
    assert flow.verify().ok
    return shown


_TABLE_SETTINGS: Final = {
    "delta.checkpointInterval": "100",
    "delta.columnMapping.mode": "name",
    "delta.deletedFileRetentionDuration": "interval 1 days",
    "delta.enableChangeDataFeed": "true",
    "delta.enableDeletionVectors": "true",
    "delta.logRetentionDuration": "interval 2 days",
}
#: What every session shall show of the tables: the rows of `_CHANGES` by hand.
_TABLES: Final[Mapping[str, Any]] = {
    "table": ["Row(id=1, name='kiwi', at=0, Unit Price=Decimal('0.25'))", "Row(id=3, name=None, at=None, Unit Price=None)"],
    "files": 2,
    "now": [
        "Row(key='1', _offset=3, name='kiwi', at=0, Unit Price=Decimal('0.25'))",
        "Row(key='3', _offset=2, name=None, at=None, Unit Price=None)",
    ],
    "now settings": _TABLE_SETTINGS,
    "past": [
        "Row(key='1', _offset=0, name='fig', at=1772955000123456, Unit Price=Decimal('1.50'), _is_current=False, is_open=False)",
        "Row(key='1', _offset=3, name='kiwi', at=0, Unit Price=Decimal('0.25'), _is_current=True, is_open=True)",
        "Row(key='2', _offset=1, name='lime', at=1793511000000000, Unit Price=Decimal('2.00'), _is_current=False, is_open=False)",
        "Row(key='3', _offset=2, name=None, at=None, Unit Price=None, _is_current=True, is_open=True)",
    ],
    "past settings": _TABLE_SETTINGS,
    "purge": (2, [1, 2], 1),
}

#: Changes of a table by its key, in two files; the price of a row has a name that Delta maps.
_CHANGES: Final = [
    '{"id": 1, "name": "fig", "at": "2026-03-08T07:30:00.123456Z", "Unit Price": 1.5, "seq": 1, "op": "c"}',
    '{"id": 2, "name": "lime", "at": "2026-11-01T05:30:00Z", "Unit Price": 2, "seq": 2, "op": "c"}',
    '{"id": 3, "name": null, "at": null, "Unit Price": null, "seq": 3, "op": "c"}',
    '{"id": 1, "name": "kiwi", "at": "1970-01-01T00:00:00Z", "Unit Price": 0.25, "seq": 4, "op": "u"}',
    '{"id": 2, "seq": 5, "op": "d"}',
    '{"id": 3, "name": "late", "seq": 2, "op": "u"}',
]


@pytest.fixture(scope="module", name="wanted")
def _wanted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return expected(tmp_path_factory.mktemp("wanted"))


@pytest.mark.timeout(1_200)
def test_all_that_is_done_shows_the_same_in_a_session_of_other_settings(
    spark: SparkSession, wanted: dict[str, Any], tmp_path: Path
) -> None:
    """Appends, transactions, streams, AUTO CDC, cleaning, every reader, tables, history, a purge: what is shown, and how tables are."""
    settings = {key: value for kind in _HOSTILE.values() for key, value in kind.items()}
    assert toured(spark, settings, tmp_path) == wanted


@pytest.mark.torture
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("settings", [{}, *_HOSTILE.values()], ids=["none", *_HOSTILE])
def test_each_kind_of_setting_alone_changes_nothing(
    spark: SparkSession, wanted: dict[str, Any], tmp_path: Path, settings: Mapping[str, str]
) -> None:
    """As above, kind by kind."""
    assert toured(spark, settings, tmp_path) == wanted


@pytest.mark.jvm
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("tables", [False, pytest.param(True, marks=pytest.mark.torture)], ids=["log", "log and tables"])
def test_all_that_is_done_shows_the_same_in_an_application_of_other_settings(
    wanted: dict[str, Any], tmp_path: Path, *, tables: bool
) -> None:
    """Settings that hold for a whole application, in a process of its own (`tests.session_app`)."""
    command = [sys.executable, "-m", "tests.session_app", str(tmp_path), "tables" if tables else "log"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1_150, check=False)  # noqa: S603
    assert done.returncode == 0, done.stdout + done.stderr
    found = ast.literal_eval(done.stdout.splitlines()[-1])
    assert found == (wanted if tables else {key: value for key, value in wanted.items() if key not in _TABLES})


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


def test_a_plain_path_is_one_of_the_local_disk_whatever_the_default_file_system_is(spark: SparkSession, tmp_path: Path) -> None:
    """A cluster's default file system has another folder under the same path: neither log, checkpoint nor table goes there."""
    (tmp_path / "elsewhere").mkdir()
    session = spark.newSession()
    session.conf.set("fs.defaultFS", "viewfs://theirs")
    session.conf.set("fs.viewfs.mounttable.theirs.linkSlash", f"file://{tmp_path}/elsewhere")
    topic = LogDir(session, str(tmp_path / "logs")).create_topic("fruit", config={"cleanup.policy": "compact"})
    topic.append(session.createDataFrame([("a", "1"), ("b", "2")], "key string, value string"))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.csv").write_text("c,3\n")
    stream = session.readStream.schema("key string, value string").csv((tmp_path / "in").as_uri())
    assert topic.append_stream(stream, name="files", trigger=_NOW).awaitTermination(120)
    for _ in range(2):
        topic.materialize(str(tmp_path / "now"), trigger=_NOW, record_columns=["_value"]).awaitTermination()
        topic.append(session.createDataFrame([("a", "4")], "key string, value string"))
    assert (topic.latest().count(), topic.dead_letters().count()) == (3, 0)
    assert spark.read.format("delta").load((tmp_path / "now").as_uri()).count() == 3
    assert Path(topic.log.paths.query("files"), "metadata").is_file()
    assert not list((tmp_path / "elsewhere").rglob("*fruit*"))


def test_after_an_optimize_of_another_writer_all_readers_see_the_same(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """Or all of them raise an error that says what happened."""
    with _session(spark, _HOSTILE["other files"]):
        topic = _lived(spark, logs, "optimized")
        before = _shown(topic.latest())
        DeltaTable.forPath(spark, topic.log.paths.log).optimize().executeCompaction()
        assert _shown(LogDir(spark, logs.location).topic("optimized").latest()) == before
    words = by_arrow(topic).latest()
    assert sorted(zip(words["partition"].to_pylist(), words["offset"].to_pylist(), strict=True)) == [row[:2] for row in before]
