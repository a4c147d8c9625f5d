"""Sources: what people have, turned into input rows with a key, a value and an explicit order.

| format              | key                      | value                          | order                                        |
|---------------------|--------------------------|--------------------------------|----------------------------------------------|
| json, csv, parquet  | one column, or several   | the rest as JSON, or a column  | modification time, path, block, line         |
| kafka               | the record's             | the record's                   | partition and offset, which the topic keeps  |
| rate                | a counter modulo `keys`  | JSON                           | the counter                                  |

A key of one column is its text; of several, a JSON object of them. A row whose `tombstone` expression is true gets a null value.
A line that does not fit the schema goes on as a malformed row, with its text, and ends among the dead letters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lastword.compaction.errors import UserError
from lastword.compaction.rows.validation import MALFORMED, ORDER_PREFIX
from lastword.storage.ledger.decisions import Decision, Kind
from lastword.streaming.append.kafka_topics import KafkaTopics
from lastword.streaming.append.query import Mirror

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame, SparkSession

    from lastword.storage.log.topic_log import TopicLog

_TIME: Final = f"{ORDER_PREFIX}1_modification_time"
_PATH: Final = f"{ORDER_PREFIX}2_path"
_BLOCK: Final = f"{ORDER_PREFIX}3_block_start"


class _Source(BaseModel):
    """What all sources have."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, alias_generator=lambda name: name.replace("_", "."))

    name: Annotated[str, Field(description="The query's name; its position in the source belongs to it")]
    topic: Annotated[str, Field(description="The topic that it fills")]
    trigger: Annotated[
        str, Field(description="`available-now` (take what is there and stop) or an interval such as `5 seconds`; empty: at once, for ever")
    ] = ""
    on_invalid: Annotated[Literal["dead-letter", "fail"], Field(description="What a refused row does")] = "dead-letter"
    options: Annotated[dict[str, str], Field(description="Further options of Spark's reader")] = {}


class FileSource(_Source):
    """A directory that files arrive in."""

    format: Literal["json", "csv", "parquet"]
    path: Annotated[str, Field(description="The directory, or a glob")]
    key: Annotated[list[str], Field(description="The key's columns", min_length=1)]
    value: Annotated[str, Field(description="The value's column; empty: all other columns as a JSON object")] = ""
    drop: Annotated[list[str], Field(description="Columns that are left out of the JSON value")] = []
    tombstone: Annotated[str, Field(description="A SQL condition; a row for which it is true is a tombstone")] = ""
    timestamp: Annotated[str, Field(description="The record time's column; empty: the time of the append")] = ""
    schema_ddl: Annotated[
        str, Field(alias="schema", description="The columns as SQL DDL; empty: inferred once, from what is there at the first start")
    ] = ""
    max_files_per_trigger: Annotated[int, Field(description="Files a micro-batch takes at the most; 0: all", ge=0)] = 0


class KafkaSource(_Source):
    """A Kafka topic, whose partitions and offsets the topic keeps (`mirror`), or hashes anew."""

    format: Literal["kafka"]
    bootstrap_servers: Annotated[str, Field(description="host:port[,host:port]")]
    subscribe: Annotated[str, Field(description="The Kafka topic")]
    isolation_level: Annotated[Literal["read_committed", "read_uncommitted"], Field(description="Which transactions are taken")] = (
        "read_committed"
    )
    starting_offsets: Annotated[str, Field(description="earliest, latest or Spark's JSON; for the first start only")] = "earliest"
    max_offsets_per_trigger: Annotated[int, Field(description="Records a micro-batch takes at the most; 0: all", ge=0)] = 0
    mirror: Annotated[bool, Field(description="Keep Kafka's partitions and offsets")] = True


class RateSource(_Source):
    """Made-up changes, for trials."""

    format: Literal["rate"]
    rows_per_second: Annotated[int, Field(description="Rows that are made in a second", ge=1)] = 10
    keys: Annotated[int, Field(description="How many keys there are", ge=1)] = 1_000


Source = Annotated[FileSource | KafkaSource | RateSource, Field(discriminator="format")]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSource:
    """A streaming DataFrame of input rows, and the mirror that it is, if it is one."""

    rows: DataFrame
    mirror: Mirror | None = None


def open_source(spark: SparkSession, source: FileSource | KafkaSource | RateSource, log: TopicLog, *, now_ms: int) -> OpenSource:
    """Open a source as a streaming DataFrame of input rows (columns as `Topic.append` takes them, and the order columns).

    Raises `UserError` naming what the source lacks: a column, a schema that cannot be inferred, a Kafka topic that is not there.
    """
    match source:
        case FileSource():
            return OpenSource(rows=_files(spark, source, log, now_ms))
        case KafkaSource():
            return _kafka(spark, source)
        case RateSource():
            return OpenSource(rows=_rate(spark, source))


def trigger_of(text: str) -> dict[str, Any]:
    """Return the arguments of Spark's `trigger()` for `available-now`, an interval, or an empty text (at once, for ever)."""
    if not text:
        return {}
    return {"availableNow": True} if text == "available-now" else {"processingTime": text}


def _files(spark: SparkSession, source: FileSource, log: TopicLog, now_ms: int) -> DataFrame:
    schema = _schema(spark, source, log, now_ms)
    wanted = [*source.key, *([source.value] if source.value else []), *([source.timestamp] if source.timestamp else []), *source.drop]
    missing = [name for name in wanted if name not in schema.names]
    if missing:
        message = f"source {source.name}: no column {', '.join(missing)} in {source.path}; there are {', '.join(schema.names)}"
        raise UserError(message)
    text = source.format in {"json", "csv"}
    reader = spark.readStream.format(source.format).schema(schema.add(MALFORMED, T.StringType()) if text else schema)
    if text:
        reader = reader.option("columnNameOfCorruptRecord", MALFORMED).option("mode", "PERMISSIVE")
    if source.format == "csv":
        reader = reader.option("header", "true")
    if source.max_files_per_trigger:
        reader = reader.option("maxFilesPerTrigger", source.max_files_per_trigger)
    try:
        rows = reader.options(**source.options).load(source.path)
    except AnalysisException as error:
        message = f"source {source.name}: {source.path} cannot be read ({error}); make the folder first"
        raise UserError(message) from error
    columns = [
        _key(source.key).alias("key"),
        _value(source, [name for name in schema.names if name != MALFORMED]).alias("value"),
        *([F.col(source.timestamp).alias("timestamp")] if source.timestamp else []),
        *([F.col(MALFORMED)] if text else []),
        F.col("_metadata.file_modification_time").alias(_TIME),
        F.col("_metadata.file_path").alias(_PATH),
        F.col("_metadata.file_block_start").alias(_BLOCK),
    ]
    try:
        return rows.select(*columns)
    except (AnalysisException, ParseException) as error:
        message = f"source {source.name}: {source.tombstone!r} is not a SQL condition over its columns: {error}"
        raise UserError(message) from error


def _schema(spark: SparkSession, source: FileSource, log: TopicLog, now_ms: int) -> T.StructType:
    """Return the given schema, or the one that was inferred at the first start, or infer it now and remember it in the ledger."""
    if source.schema_ddl:
        try:
            given = T.DataType.fromDDL(source.schema_ddl)
        except ParseException as error:
            message = f"source {source.name}: schema {source.schema_ddl!r} is not SQL DDL (icao string, elevation double): {error}"
            raise UserError(message) from error
        return given if isinstance(given, T.StructType) else T.StructType([T.StructField("value", given)])
    known = log.decisions().schemas.get(source.name)
    if known is not None:
        return T.StructType.fromJson(dict(known))
    reader = spark.read.format(source.format).options(**source.options)
    if source.format == "csv":
        reader = reader.option("header", "true").option("inferSchema", "true")
    try:
        schema = reader.load(source.path).schema
    except AnalysisException as error:
        message = f"source {source.name}: the schema of {source.path} cannot be inferred ({error}); put files there first, or give `schema`"
        raise UserError(message) from error
    if not schema.fields:
        message = f"source {source.name}: there is nothing in {source.path} to infer a schema from; put files there first, or give `schema`"
        raise UserError(message)
    kept = T.StructType([field for field in schema.fields if field.name != "_corrupt_record"])
    log.ledger.append([Decision(kind=Kind.SCHEMA, time_ms=now_ms, name=source.name, details=kept.jsonValue())])
    return kept


def _key(names: list[str]) -> Column:
    if len(names) == 1:
        return F.col(names[0]).cast("string")
    complete = F.lit(True)
    for name in names:
        complete = complete & F.col(name).isNotNull()
    return F.when(complete, F.to_json(F.struct(*names)))


def _value(source: FileSource, columns: list[str]) -> Column:
    if source.value:
        value = F.col(source.value).cast("string")
    else:
        rest = [name for name in columns if name not in source.key and name not in source.drop]
        value = F.to_json(F.struct(*rest), {"ignoreNullFields": "false"}) if rest else F.lit("{}")
    return F.when(~F.coalesce(F.expr(source.tombstone), F.lit(False)), value) if source.tombstone else value


def _kafka(spark: SparkSession, source: KafkaSource) -> OpenSource:
    client = {key: value for key, value in source.options.items() if key.startswith("kafka.")}
    topics = KafkaTopics(spark, source.bootstrap_servers, {key.removeprefix("kafka."): value for key, value in client.items()})
    topics.describe(source.subscribe)
    reader = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", source.bootstrap_servers)
        .option("subscribe", source.subscribe)
        .option("startingOffsets", source.starting_offsets)
        .option("kafka.isolation.level", source.isolation_level)
        .option("includeHeaders", "true")
    )
    if source.max_offsets_per_trigger:
        reader = reader.option("maxOffsetsPerTrigger", source.max_offsets_per_trigger)
    rows = reader.options(**source.options).load()
    # Kafka writes -1 for "no timestamp": such a record gets the time of its append.
    rows = rows.withColumn("timestamp", F.when(F.unix_millis("timestamp") != -1, F.col("timestamp")))
    if not source.mirror:
        order = [F.col("partition").alias(f"{ORDER_PREFIX}1_partition"), F.col("offset").alias(f"{ORDER_PREFIX}2_offset")]
        return OpenSource(rows=rows.select("key", "value", "headers", "timestamp", *order))
    mirror = Mirror(
        source=f"Kafka topic {source.subscribe}",
        identity=_asked(topics, source.subscribe, lambda found: found.topic_id),
        partitions=_asked(topics, source.subscribe, lambda found: found.partitions),
    )
    return OpenSource(rows=rows.select("partition", "offset", "key", "value", "headers", "timestamp"), mirror=mirror)


def _asked(topics: KafkaTopics, name: str, pick: Callable[[Any], Any]) -> Callable[[], Any]:
    return lambda: pick(topics.describe(name))


def _rate(spark: SparkSession, source: RateSource) -> DataFrame:
    rows = spark.readStream.format("rate").option("rowsPerSecond", source.rows_per_second).options(**source.options).load()
    return rows.select(
        F.concat(F.lit("key-"), F.pmod("value", F.lit(source.keys)).cast("string")).alias("key"),
        F.to_json(F.struct(F.col("value").alias("counter"), F.col("timestamp").alias("made_at"))).alias("value"),
        "timestamp",
        F.col("value").alias(f"{ORDER_PREFIX}1_counter"),
    )
