"""Sources: what people have, turned into input rows of an append with a key, a value and an explicit order.

What a source may say is in `lastword.streaming.append.source_settings`. A line that does not fit the schema goes on as a malformed row,
with its text, and ends among the dead letters. With `topics.pattern` a Kafka source is one for each topic that the pattern matches
(`matching_sources`).
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from lastword.change_data.columns.json_rows import NoEvent
from lastword.change_data.events.event_keys import plain_key
from lastword.checkpoints.queries import stored_micro_batch, stored_positions
from lastword.compaction.errors import UserError
from lastword.compaction.rows.input_columns import MALFORMED, ORDER_PREFIX, REFUSAL, SOURCE_OFFSET, SOURCE_PARTITION
from lastword.storage.append.requests import EventSource
from lastword.storage.files.paths import filesystem_of
from lastword.storage.files.schema import HEADERS_TYPE
from lastword.storage.schema_registry.decoder import RegistryDecoder
from lastword.streaming.append.file_source import open_files
from lastword.streaming.append.kafka_topics import KafkaTopics, KafkaUnreachable
from lastword.streaming.append.source_issues import set_source_issue
from lastword.streaming.append.source_rows import OpenSource, change_columns, given_schema, open_rows, parsed_json
from lastword.streaming.append.source_settings import FileSource, KafkaSource, RateSource
from lastword.streaming.append.upstream import Mirror, Upstream, UpstreamState, check_same_source
from lastword.streaming.events import logger

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from lastword.change_data.events.event_keys import KeyFormat
    from lastword.storage.log.topic_log import TopicLog

#: The record of Kafka beside the columns of its value, for expressions: key, value, headers, timestamp, partition, offset.
KAFKA_RECORD: Final = "_kafka"
_RAW_VALUE: Final = "__raw_value"
_LOG: Final = logger("appender")


def open_source(spark: SparkSession, source: FileSource | KafkaSource | RateSource, log: TopicLog, *, now_ms: int) -> OpenSource:
    """Open a source as a streaming DataFrame of input rows (columns as `Topic.append` takes them, and the order columns).

    Raises `UserError` naming what the source lacks: a column, a schema that cannot be inferred, a Kafka topic that is not there.
    """
    match source:
        case FileSource():
            files = open_files(spark, source, log, now_ms=now_ms)
            return replace(files, envelope=source.events) if source.envelope else files
        case KafkaSource():
            return _kafka(spark, source, log, now_ms)
        case _:
            return OpenSource(rows=_rate(spark, source))


def matching_sources(spark: SparkSession, source: KafkaSource) -> list[tuple[KafkaSource, int]]:
    """Return a source for each Kafka topic that a source reads now, and the number of partitions of the topic that it fills.

    Raises `UserError` when the cluster cannot be reached, or has no topic of the name that `subscribe` gives.
    """
    topics, pattern = _kafka_topics(spark, source), re.compile(source.topics_pattern)
    names = [source.subscribe] if source.subscribe else [name for name in topics.names() if pattern.fullmatch(name)]
    return [
        (
            source.model_copy(update={"topic": name, "subscribe": name, "topics_pattern": ""}),
            source.partitions or topics.describe(name).partitions,
        )
        for name in names
    ]


def _registry(source: KafkaSource, log: TopicLog) -> RegistryDecoder | None:
    """Return the decoder of a source's frames; what it learns stays in the topic's folder. Raises `InvalidConfiguration`."""
    config = source.registry()
    return None if config is None else RegistryDecoder(config, log.paths.root, log.storage_options)


def _kafka(spark: SparkSession, source: KafkaSource, log: TopicLog, now_ms: int) -> OpenSource:
    topics = _kafka_topics(spark, source)
    described = topics.describe(source.subscribe)
    upstream = _upstream(topics, source, log, described.topic_id)
    reader = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", source.bootstrap_servers)
        .option("subscribe", source.subscribe)
        .option("startingOffsets", "earliest" if upstream.begins_anew else source.starting_offsets)
        .option("kafka.isolation.level", source.isolation_level)
        .option("failOnDataLoss", str(source.on_data_loss == "fail").lower())
        .option("includeHeaders", "true")
    )
    if source.max_offsets_per_trigger:
        reader = reader.option("maxOffsetsPerTrigger", source.max_offsets_per_trigger)
    rows = reader.options(**source.options).load()
    # Kafka writes -1 for "no timestamp": such a record gets the time of its append.
    rows = rows.withColumn("timestamp", F.when(F.unix_millis("timestamp") != -1, F.col("timestamp")))
    places = [F.col("partition").alias(SOURCE_PARTITION), F.col("offset").alias(SOURCE_OFFSET)]
    events = EventSource(described.topic_id or source.subscribe, described.partitions)
    if source.has_columns:
        columns = rows.select("key", "value", "headers", "timestamp", "partition", "offset")
        return replace(_kafka_columns(columns, source, log, now_ms, events), upstream=upstream)
    if source.envelope:
        rows = rows.select("key", "value", "headers", "timestamp", "partition", "offset", *places)
        return OpenSource(rows=rows, envelope=source.events, events=events, decoder=_registry(source, log), upstream=upstream)
    if not source.mirror:
        return OpenSource(rows=rows.select("key", "value", "headers", "timestamp", *places), upstream=upstream)
    if source.isolation_level == "read_uncommitted":
        kept = "records of transactions that are aborted after they were read stay in the mirror, as plain records"
        _LOG.warning("a mirror reads uncommitted records", source=source.name, topic=source.topic, consequence=kept)
    mirror = Mirror(source=upstream.source, ask=upstream.ask, on_data_loss=source.on_data_loss)
    return OpenSource(rows=rows.select("partition", "offset", "key", "value", "headers", "timestamp"), mirror=mirror)


def _upstream(topics: KafkaTopics, source: KafkaSource, log: TopicLog, topic_id: str) -> Upstream:
    """Return what the query of a source knows of its Kafka topic, and whether that was deleted and created again since.

    Raises `QueryRefused` if it was, and `on.data.loss` is fail. A mirror keeps offsets for ever: it goes on with no other topic.
    """
    name = f"Kafka topic {source.subscribe}"
    reads = f"{name} (id {topic_id})" if topic_id else f"{name} at {source.bootstrap_servers}"
    ask = partial(_ask_kafka, topics, source, log.paths.root)
    upstream = Upstream(source=name, reads=reads, identity=topic_id, ask=ask, on_data_loss=source.on_data_loss)
    if source.mirror and not source.envelope and not source.has_columns:
        return upstream
    checkpoint = filesystem_of(log.paths.query(source.name), log.storage_options)
    positions = stored_positions(checkpoint, stored_micro_batch(checkpoint) + 1, topic=source.subscribe)
    known = log.decisions().query_sources.get(source.name, "")
    before = known.removeprefix(f"{name} (id ").removesuffix(")") if known.startswith(f"{name} (id ") else ""
    state = None if positions is None else ask()
    if positions is None or state is None:
        return upstream
    is_new = check_same_source(replace(upstream, identity=before), state, positions, topic=log.name, query=source.name)
    return replace(upstream, begins_anew=is_new)


def _kafka_columns(rows: DataFrame, source: KafkaSource, log: TopicLog, now_ms: int, events: EventSource) -> OpenSource:
    """Open records whose values are JSON objects, or frames of a registry: their columns are key, value, sequence and conditions."""
    schema, registry = given_schema(source), _registry(source, log)
    rows = rows.withColumn(REFUSAL, F.lit(None).cast("string"))
    if registry is not None or source.key_format:
        rows = rows.mapInArrow(partial(_read_frames, registry, source.key_format, not source.key), rows.schema)
    if KAFKA_RECORD in schema.names:
        message = f"source {source.name}: the column {KAFKA_RECORD} of the schema has the name of what stands for the record itself"
        raise UserError(message)
    is_read = F.col(REFUSAL).isNull()
    text = F.when(is_read, F.col("value").cast("string"))
    record = F.struct("key", "value", "headers", "timestamp", "partition", "offset").alias(KAFKA_RECORD)
    rows = parsed_json(rows, text, schema, [record, F.col(REFUSAL)], subject=f"source {source.name}")
    changes = change_columns(source, schema.names, schema.names)
    deletes = f"{KAFKA_RECORD}.value IS NULL" + (f" OR ({source.tombstone})" if source.tombstone else "")
    place = [
        F.struct(F.lit(f"source.{name}").alias("key"), F.col(f"{KAFKA_RECORD}.{name}").cast("string").cast("binary").alias("value"))
        for name in ("partition", "offset")
    ]
    headers = F.concat(F.coalesce(F.col(f"{KAFKA_RECORD}.headers"), F.array().cast(HEADERS_TYPE)), F.array(*place))
    source_rows = open_rows(
        rows,
        replace(changes, apply_as_deletes=deletes, own_key=f"{KAFKA_RECORD}.key", is_event=True),
        source,
        log,
        now_ms,
        beside=[
            F.col(MALFORMED),
            F.col(f"{KAFKA_RECORD}.value").alias(_RAW_VALUE),
            headers.alias("headers"),
            *([] if source.timestamp else [F.col(f"{KAFKA_RECORD}.timestamp")]),
            F.col(f"{KAFKA_RECORD}.partition").alias(SOURCE_PARTITION),
            F.col(f"{KAFKA_RECORD}.offset").alias(SOURCE_OFFSET),
        ],
        events=events,
    )
    value = F.when(is_read, F.col("value").cast("binary")).otherwise(F.col(_RAW_VALUE))  # the dead letter of a frame has it as it came
    return replace(source_rows, rows=source_rows.rows.withColumn("value", value).drop(_RAW_VALUE))


def _read_frames(
    decoder: RegistryDecoder | None,
    key_format: KeyFormat,
    has_own_key: bool,  # noqa: FBT001
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Decode registry frames in values and keys (without `key_format`) in a task; a row that cannot be decoded becomes a refusal."""
    for batch in batches:
        reasons = dict[int, str]()
        columns = {name: batch.column(name) for name in batch.schema.names}
        if has_own_key:
            key = columns["key"].cast(pa.binary())
            is_frame = pc.fill_null(pc.equal(pc.binary_slice(key, 0, 1), b"\0"), False)  # noqa: FBT003
            columns["key"] = _plain_keys(key, key_format, reasons) if key_format else _decode_frames("key", key, is_frame, decoder, reasons)
        if decoder is not None:
            value = columns["value"].cast(pa.binary())
            columns["value"] = _decode_frames("value", value, pa.array(np.ones(len(batch), dtype=np.bool_)), decoder, reasons)
        columns[REFUSAL] = pa.array([reasons.get(row) for row in range(len(batch))], pa.string())
        yield pa.record_batch(columns)


def _plain_keys(column: pa.Array, key_format: KeyFormat, reasons: dict[int, str]) -> pa.Array:
    """Return keys as the texts that other sources have; one of another format keeps its bytes, and gets its reason."""
    keys = column.to_pylist()
    for row, key in enumerate(keys):
        try:
            keys[row] = None if key is None else plain_key(key, key_format)
        except NoEvent as error:
            reasons[row] = str(error)
    return pa.array(keys, pa.binary())


def _decode_frames(name: str, column: pa.Array, is_frame: pa.Array, decoder: RegistryDecoder | None, reasons: dict[int, str]) -> pa.Array:
    """Return a column with the frames of a registry as JSON; a frame that cannot be decoded stays, and gets its reason."""
    if decoder is None:
        return column
    framed = is_frame.to_numpy(zero_copy_only=False)
    at = np.flatnonzero(framed)
    decoded = decoder.decode_column(column.take(pa.array(at)))
    reasons.update({int(at[row]): f"{name}: {reason}" for row, reason in decoded.reasons.items()})
    is_read = framed.copy()
    is_read[list(reasons)] = False
    texts = decoded.values.cast(pa.binary()).filter(pa.array(is_read[at]))
    return pc.replace_with_mask(column, pa.array(is_read), texts)


def _kafka_topics(spark: SparkSession, source: KafkaSource) -> KafkaTopics:
    client = {key.removeprefix("kafka."): value for key, value in source.options.items() if key.startswith("kafka.")}
    return KafkaTopics(spark, source.bootstrap_servers, client)


def _ask_kafka(topics: KafkaTopics, source: KafkaSource, topic_folder: str) -> UpstreamState | None:
    """Return what Kafka says of a topic now; None if it does not answer, which is an issue of the source until it does."""
    name = source.subscribe
    try:
        topic = topics.describe(name)
        starts, ends = topics.log_starts(name, topic.partitions), topics.log_ends(name, topic.partitions)
    except KafkaUnreachable as error:
        set_source_issue(topic_folder, source.name, str(error))
        _LOG.warning("the source does not answer", source=name, error=str(error))
        return None
    set_source_issue(topic_folder, source.name, "")
    return UpstreamState(identity=topic.topic_id, partitions=topic.partitions, log_starts=starts, log_ends=ends)


def _rate(spark: SparkSession, source: RateSource) -> DataFrame:
    rows = spark.readStream.format("rate").option("rowsPerSecond", source.rows_per_second).options(**source.options).load()
    return rows.select(
        F.concat(F.lit("key-"), F.pmod("value", F.lit(source.keys)).cast("string")).alias("key"),
        F.to_json(F.struct(F.col("value").alias("counter"), F.col("timestamp").alias("made_at"))).alias("value"),
        "timestamp",
        F.col("value").alias(f"{ORDER_PREFIX}1_counter"),
    )
