"""What all sources with columns share: an open source, the columns of its settings, and JSON texts with a schema."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lastword.change_data.columns.column_types import with_time_zones
from lastword.compaction.errors import UserError, said_by_spark
from lastword.compaction.rows.input_columns import COLUMNS, EVENT, MALFORMED, ORDER_PREFIX, RECORD_KEY, REFUSAL, SOURCE_TIME, UNCHANGED
from lastword.storage.ledger.table_columns import keep_columns
from lastword.streaming.append.change_rows import ChangeColumns, change_rows, table_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

    from lastword.change_data.events.envelopes import Envelope
    from lastword.change_data.frames.row_words import RowWords
    from lastword.storage.append.requests import EventSource
    from lastword.storage.log.topic_log import TopicLog
    from lastword.storage.schema_registry.decoder import RegistryDecoder
    from lastword.streaming.append.change_rows import SequenceAs
    from lastword.streaming.append.source_settings import FileSource, KafkaSource
    from lastword.streaming.append.upstream import Mirror, Upstream

_OWN: frozenset[str] = frozenset({MALFORMED, REFUSAL, EVENT, UNCHANGED, COLUMNS, RECORD_KEY, SOURCE_TIME})


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSource:
    """A streaming DataFrame of input rows, and the mirror that it is, if it is one; or of change events, and how they are read."""

    rows: DataFrame
    mirror: Mirror | None = None
    upstream: Upstream | None = None
    envelope: Envelope | None = None
    events: EventSource | None = None
    decoder: RegistryDecoder | None = None


def change_columns(source: FileSource | KafkaSource, names: Sequence[str], otherwise: Sequence[str]) -> ChangeColumns:
    """Return what the columns of a source mean; `otherwise` are those of the value where no setting says it."""
    return columns_of_words(source.words, names, otherwise, subject=f"source {source.name}")


def columns_of_words(words: RowWords, names: Sequence[str], otherwise: Sequence[str], *, subject: str) -> ChangeColumns:
    """Return what columns mean by the settings of a user; raise `UserError` for a column of `drop` that is not there."""
    unknown = [name for name in words.drop if name not in names]
    if unknown:
        message = f"{subject}: no column {', '.join(unknown)}; there are {', '.join(names)}"
        raise UserError(message)
    return ChangeColumns(
        keys=words.key,
        columns=() if words.value else tuple(words.columns or (name for name in otherwise if name not in words.drop)),
        value=words.value,
        sequence_by=words.sequence,
        apply_as_deletes=words.tombstone or None,
        apply_as_truncates=words.truncate or None,
        keeps_nulls=words.on_null == "keep",
        timestamp=words.timestamp,
        sequence_as=cast("SequenceAs", words.sequence_as),
    )


def open_rows(
    rows: DataFrame,
    changes: ChangeColumns,
    source: FileSource | KafkaSource,
    log: TopicLog,
    now_ms: int,
    *,
    beside: Sequence[Column],
    events: EventSource | None = None,
) -> OpenSource:
    """Return rows with columns as an open source; the topic's ledger says from now on which columns they have."""
    made = change_rows(rows, changes, subject=f"source {source.name}", beside=beside)
    keep_columns(log.ledger, table_columns(rows, changes).as_details(), now_ms=now_ms)
    return OpenSource(rows=made, envelope=changes.envelope, events=events)


def given_schema(source: FileSource | KafkaSource) -> T.StructType:
    """Return the schema of a source's settings; raise `UserError` for one that is no DDL, or has names that are not to be had."""
    try:
        given = T.DataType.fromDDL(with_time_zones(source.schema_ddl))
    except ParseException as error:
        message = (
            f"source {source.name}: schema {source.schema_ddl!r} is not SQL DDL (icao string, elevation double): {said_by_spark(error)}"
        )
        raise UserError(message) from error
    schema = given if isinstance(given, T.StructType) else T.StructType([T.StructField("value", given)])
    own = [name for name in schema.names if name in _OWN or name.startswith(ORDER_PREFIX)]
    if own:
        message = f"source {source.name}: columns of these names are lastword's own: {', '.join(own)}; leave them out of the schema"
        raise UserError(message)
    return schema


def parsed_json(rows: DataFrame, text: Column, schema: T.StructType, beside: Sequence[Column], *, subject: str) -> DataFrame:
    """Return rows with the columns of JSON objects, `MALFORMED` (the text of one that does not fit the schema), and those `beside`.

    Raises `UserError` for a schema that Spark does not take, e.g. with two names that differ in case alone.
    """
    whole = T.StructType([*schema.fields, T.StructField(MALFORMED, T.StringType())])
    known = F.from_json(text, whole, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": MALFORMED})
    alike = sorted({name for name in schema.names if [name.casefold() for name in schema.names].count(name.casefold()) > 1})
    try:
        if alike and rows.sparkSession.conf.get("spark.sql.caseSensitive") != "true":
            message = f"{subject}: columns {', '.join(alike)} differ in case alone; leave one out, or set spark.sql.caseSensitive = true"
            raise UserError(message)
        return rows.select(known.alias("row"), *beside).select("row.*", *[F.col(name) for name in rows.select(*beside).columns])
    except (AnalysisException, ParseException) as error:
        message = f"{subject}: its columns {', '.join(schema.names)} cannot be read: {said_by_spark(error)}"
        raise UserError(message) from error
