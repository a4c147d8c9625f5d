"""Sources: what people have, turned into input rows with a key, a value and an explicit order.

| format              | key                      | value                          | order                                        |
|---------------------|--------------------------|--------------------------------|----------------------------------------------|
| json, csv, parquet  | one column, or several   | the rest as JSON, or a column  | modification time, path, block, line         |
| kafka               | the record's             | the record's                   | partition and offset, which the topic keeps  |
| … with an envelope  | the event's, canonical   | the row                        | partition and offset, in headers             |
| rate                | a counter modulo `keys`  | JSON                           | the counter                                  |

A key of one column is its text; of several, a JSON object of them. A row whose `tombstone` expression is true gets a null value.
A line that does not fit the schema goes on as a malformed row, with its text, and ends among the dead letters.

With `topics.pattern` a Kafka source is one for each topic that the pattern matches (`matching_sources`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationInfo, field_validator, model_validator
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lastword.compaction.errors import UserError
from lastword.compaction.rows.envelopes import PLACEHOLDER, Envelope, TimePrecision
from lastword.compaction.rows.event_rows import line_events
from lastword.compaction.rows.input_columns import MALFORMED, ORDER_PREFIX, SOURCE_OFFSET, SOURCE_PARTITION
from lastword.storage.append.append import EventSource
from lastword.storage.append.schema_registry.client import RegistryConfig
from lastword.storage.append.schema_registry.decoder import RegistryDecoder
from lastword.storage.files.schema import HEADERS_TYPE
from lastword.storage.ledger.decisions import Decision, Kind
from lastword.streaming.append.kafka_topics import KafkaTopics
from lastword.streaming.append.query import Mirror

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

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


class _Events(_Source):
    """What sources of change events have; see `lastword.compaction.rows.envelopes.Envelope`."""

    envelope: Annotated[
        Literal["", "debezium", "debezium-flat"],
        Field(description="The values are change events of Debezium, as they are sent, or flattened by ExtractNewRecordState"),
    ] = ""
    sequence: Annotated[
        list[str], Field(description="Fields by which the events of a key are ordered; empty: the position that Debezium gives")
    ] = []
    truncate: Annotated[
        Literal["delete-all", "alert", "ignore"], Field(description="What a TRUNCATE does: deletes all rows before it, or is a dead letter")
    ] = "delete-all"
    decimal_handling_mode: Annotated[Literal["precise", "double", "string"], Field(description="The connector's setting")] = "precise"
    time_precision_mode: Annotated[TimePrecision, Field(description="The connector's setting")] = "adaptive"
    binary_handling_mode: Annotated[Literal["bytes", "base64", "base64-url-safe", "hex"], Field(description="The connector's setting")] = (
        "bytes"
    )
    unavailable_value_placeholder: Annotated[str, Field(description="The connector's setting")] = PLACEHOLDER
    add_fields_prefix: Annotated[str, Field(description="ExtractNewRecordState's setting; for debezium-flat")] = "__"
    on_unresolved: Annotated[
        Literal["dead-letter", "null"], Field(description="What an event does that leaves out a column which no record of its key has")
    ] = "dead-letter"
    on_misfit: Annotated[
        Literal["dead-letter", "null"], Field(description="What an event does of which a value does not fit its column's type")
    ] = "dead-letter"


class FileSource(_Events):
    """A directory that files arrive in."""

    format: Literal["json", "csv", "parquet"]
    path: Annotated[str, Field(description="The directory, or a glob")]
    key: Annotated[
        list[str], Field(description="The key's columns; with an envelope empty for the event's own key", validate_default=True)
    ] = []
    value: Annotated[str, Field(description="The value's column; empty: all other columns as a JSON object")] = ""
    drop: Annotated[list[str], Field(description="Columns that are left out of the JSON value")] = []
    tombstone: Annotated[str, Field(description="A SQL condition; a row for which it is true is a tombstone")] = ""
    timestamp: Annotated[str, Field(description="The record time's column; empty: the time of the append")] = ""
    schema_ddl: Annotated[
        str, Field(alias="schema", description="The columns as SQL DDL; empty: inferred once, from what is there at the first start")
    ] = ""
    max_files_per_trigger: Annotated[int, Field(description="Files a micro-batch takes at the most; 0: all", ge=0)] = 0

    @field_validator("key")
    @classmethod
    def _has_key(cls, key: list[str], info: ValidationInfo) -> list[str]:
        """Refuse rows without a key."""
        if not key and not info.data.get("envelope"):
            message = "name the key's columns, or give an envelope"
            raise ValueError(message)
        return key


class KafkaSource(_Events):
    """A Kafka topic, whose partitions and offsets the topic keeps (`mirror`), or hashes anew; or the change events of several."""

    topic: Annotated[
        str, Field(description="The topic that it fills; with `topics.pattern` none: each has the name of its Kafka topic")
    ] = ""
    format: Literal["kafka"]
    bootstrap_servers: Annotated[str, Field(description="host:port[,host:port]")]
    subscribe: Annotated[str, Field(description="The Kafka topic")] = ""
    topics_pattern: Annotated[str, Field(description="A regular expression of Kafka topics, each of which fills a topic of its own")] = ""
    schema_registry_url: Annotated[
        str,
        Field(description="With an envelope: keys and values are Avro, JSON Schema or Protobuf, framed for this registry; URLs by commas"),
    ] = ""
    schema_registry_basic_auth_user_info: Annotated[SecretStr, Field(description="user:password for the registry")] = SecretStr("")
    schema_registry_ssl_ca_location: Annotated[str, Field(description="A PEM file with certificates to trust, on each executor")] = ""
    partitions: Annotated[int, Field(description="Partitions of the topics that `topics.pattern` makes; 0: as many as in Kafka", ge=0)] = 0
    key: Annotated[list[str], Field(description="With an envelope: columns of the row that are the key; empty: the event's own key")] = []
    schema_ddl: Annotated[
        str, Field(alias="schema", description="With an envelope: the columns as SQL DDL; empty: those that an event's schema names")
    ] = ""
    isolation_level: Annotated[Literal["read_committed", "read_uncommitted"], Field(description="Which transactions are taken")] = (
        "read_committed"
    )
    starting_offsets: Annotated[str, Field(description="earliest, latest or Spark's JSON; for the first start only")] = "earliest"
    max_offsets_per_trigger: Annotated[int, Field(description="Records a micro-batch takes at the most; 0: all", ge=0)] = 0
    mirror: Annotated[bool, Field(description="Keep Kafka's partitions and offsets; not with an envelope")] = True

    @model_validator(mode="after")
    def _is_whole(self) -> KafkaSource:
        """Refuse settings that exclude each other."""
        if bool(self.subscribe) == bool(self.topics_pattern):
            message = "give subscribe (one Kafka topic) or topics.pattern (several)"
            raise ValueError(message)
        if bool(self.subscribe) != bool(self.topic):
            message = "topic goes with subscribe; with topics.pattern each topic has the name of its Kafka topic"
            raise ValueError(message)
        if self.schema_registry_url and not self.envelope:
            message = "schema.registry.url goes with an envelope: without one keys and values are kept as they are"
            raise ValueError(message)
        try:
            re.compile(self.topics_pattern)
        except re.error as error:
            message = f"topics.pattern {self.topics_pattern!r} is no regular expression: {error}"
            raise ValueError(message) from None
        return self


class RateSource(_Source):
    """Made-up changes, for trials."""

    format: Literal["rate"]
    rows_per_second: Annotated[int, Field(description="Rows that are made in a second", ge=1)] = 10
    keys: Annotated[int, Field(description="How many keys there are", ge=1)] = 1_000


Source = Annotated[FileSource | KafkaSource | RateSource, Field(discriminator="format")]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSource:
    """A streaming DataFrame of input rows, and the mirror that it is, if it is one; or of change events, and how they are read."""

    rows: DataFrame
    mirror: Mirror | None = None
    envelope: Envelope | None = None
    events: EventSource | None = None
    decoder: RegistryDecoder | None = None


def open_source(spark: SparkSession, source: FileSource | KafkaSource | RateSource, log: TopicLog, *, now_ms: int) -> OpenSource:
    """Open a source as a streaming DataFrame of input rows (columns as `Topic.append` takes them, and the order columns).

    Raises `UserError` naming what the source lacks: a column, a schema that cannot be inferred, a Kafka topic that is not there.
    """
    match source:
        case FileSource():
            if source.envelope:
                return OpenSource(rows=_event_files(spark, source), envelope=_envelope(source))
            return OpenSource(rows=_files(spark, source, log, now_ms))
        case KafkaSource():
            return _kafka(spark, source, log)
        case RateSource():
            return OpenSource(rows=_rate(spark, source))


def matching_sources(spark: SparkSession, source: KafkaSource) -> list[tuple[KafkaSource, int]]:
    """Return a source for each Kafka topic that a pattern matches now, and the partitions of the topic that it fills.

    Raises `UserError` when the cluster cannot be reached.
    """
    topics, pattern = _kafka_topics(spark, source), re.compile(source.topics_pattern)
    names = [name for name in topics.names() if pattern.fullmatch(name)]
    return [
        (
            source.model_copy(update={"topic": name, "subscribe": name, "topics_pattern": ""}),
            source.partitions or topics.describe(name).partitions,
        )
        for name in names
    ]


def _envelope(source: FileSource | KafkaSource) -> Envelope | None:
    """Return how the change events of a source are to be read; None for one of rows. Raises `InvalidConfiguration`."""
    if not source.envelope:
        return None
    return Envelope(
        kind=source.envelope,
        key=tuple(source.key),
        sequence=tuple(source.sequence),
        truncate=source.truncate,
        prefix=source.add_fields_prefix,
        placeholder=source.unavailable_value_placeholder,
        unresolved=source.on_unresolved,
        schema=source.schema_ddl,
        decimal_handling_mode=source.decimal_handling_mode,
        time_precision_mode=source.time_precision_mode,
        binary_handling_mode=source.binary_handling_mode,
        misfit=source.on_misfit,
    )


def trigger_of(text: str) -> dict[str, Any]:
    """Return the arguments of Spark's `trigger()` for `available-now`, an interval, or an empty text (at once, for ever)."""
    if not text:
        return {}
    return {"availableNow": True} if text == "available-now" else {"processingTime": text}


def _event_files(spark: SparkSession, source: FileSource) -> DataFrame:
    """Return the lines of JSON files as change events with key and value (`line_events`)."""
    if source.format != "json":
        message = f"source {source.name}: envelope {source.envelope} reads JSON files, an event a line; allowed is format = json"
        raise UserError(message)
    lines = _loaded(spark.readStream.format("text"), source)
    rows = lines.select("value", *_file_order())

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield line_events(batch)

    places = ", ".join(f"`{name}` {rows.schema[name].dataType.simpleString()}" for name in (_TIME, _PATH, _BLOCK))
    return rows.mapInArrow(read, f"key binary, value binary, headers {HEADERS_TYPE}, {places}")


def _file_order() -> list[Column]:
    """Return the order columns of files: modification time, path, and block; lines follow in their order."""
    names = {_TIME: "file_modification_time", _PATH: "file_path", _BLOCK: "file_block_start"}
    return [F.col(f"_metadata.{column}").alias(name) for name, column in names.items()]


def _loaded(reader: DataStreamReader, source: FileSource) -> DataFrame:
    """Return the rows of a source's files; raise `UserError` for a path that cannot be read."""
    if source.max_files_per_trigger:
        reader = reader.option("maxFilesPerTrigger", source.max_files_per_trigger)
    try:
        return reader.options(**source.options).load(source.path)
    except AnalysisException as error:
        message = f"source {source.name}: {source.path} cannot be read ({error}); make the folder first"
        raise UserError(message) from error


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
    rows = _loaded(reader, source)
    columns = [
        _key(source.key).alias("key"),
        _value(source, [name for name in schema.names if name != MALFORMED]).alias("value"),
        *([F.col(source.timestamp).alias("timestamp")] if source.timestamp else []),
        *([F.col(MALFORMED)] if text else []),
        *_file_order(),
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


def _registry(source: KafkaSource, log: TopicLog) -> RegistryDecoder | None:
    """Return the decoder of a source's frames; what it learns stays in the topic's folder. Raises `InvalidConfiguration`."""
    if not source.schema_registry_url:
        return None
    user, _, password = source.schema_registry_basic_auth_user_info.get_secret_value().partition(":")
    config = RegistryConfig(
        urls=tuple(url.strip() for url in source.schema_registry_url.split(",")),
        user=user or None,
        password=password if user else None,
        ca_file=source.schema_registry_ssl_ca_location or None,
    )
    return RegistryDecoder(config, log.paths.root, log.storage_options)


def _kafka(spark: SparkSession, source: KafkaSource, log: TopicLog) -> OpenSource:
    topics = _kafka_topics(spark, source)
    described = topics.describe(source.subscribe)
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
    if source.envelope:
        places = [F.col("partition").alias(SOURCE_PARTITION), F.col("offset").alias(SOURCE_OFFSET)]
        events = EventSource(described.topic_id or source.subscribe, described.partitions)
        rows = rows.select("key", "value", "headers", "timestamp", "partition", "offset", *places)
        return OpenSource(rows=rows, envelope=_envelope(source), events=events, decoder=_registry(source, log))
    if not source.mirror:
        order = [F.col("partition").alias(f"{ORDER_PREFIX}1_partition"), F.col("offset").alias(f"{ORDER_PREFIX}2_offset")]
        return OpenSource(rows=rows.select("key", "value", "headers", "timestamp", *order))
    mirror = Mirror(
        source=f"Kafka topic {source.subscribe}",
        identity=_asked(topics, source.subscribe, lambda found: found.topic_id),
        partitions=_asked(topics, source.subscribe, lambda found: found.partitions),
    )
    return OpenSource(rows=rows.select("partition", "offset", "key", "value", "headers", "timestamp"), mirror=mirror)


def _kafka_topics(spark: SparkSession, source: KafkaSource) -> KafkaTopics:
    client = {key.removeprefix("kafka."): value for key, value in source.options.items() if key.startswith("kafka.")}
    return KafkaTopics(spark, source.bootstrap_servers, client)


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
