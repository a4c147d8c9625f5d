"""The settings of sources: what a `[[source]]` of the configuration file, or `lastword append`, may say.

| format              | key                      | value                          | order                                        |
|---------------------|--------------------------|--------------------------------|----------------------------------------------|
| json, csv, parquet  | one column, or several   | the rest as JSON, or a column  | modification time, path, row of the file     |
| kafka               | the record's             | the record's                   | partition and offset, which the topic keeps  |
| … with a `schema`   | columns, or the record's | columns as JSON, or a column   | partition and offset, in headers             |
| … with an envelope  | the event's, canonical   | the row                        | partition and offset, in headers             |
| rate                | a counter modulo `keys`  | JSON                           | the counter                                  |

Keys and values of columns: `lastword.streaming.append.change_rows`; of envelopes: `lastword.change_data.events.envelopes`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationInfo, field_validator, model_validator

from lastword.change_data.events.envelopes import PLACEHOLDER, Connector, DeleteTombstoneHandling, Envelope, TimePrecision
from lastword.change_data.events.event_keys import KeyFormat
from lastword.change_data.frames.row_words import RowWords, check_named_once, check_row_words
from lastword.compaction.config.keys import interval_ms
from lastword.storage.files.file_format import FILE_OPTIONS, check_file_options
from lastword.storage.schema_registry.client import RegistryConfig

if TYPE_CHECKING:
    from lastword.change_data.events.envelopes import Kind, Truncate

#: What a TRUNCATE of an envelope does.
_TRUNCATE_POLICIES: Final = ("delete-all", "alert", "ignore")
#: The options of Spark's Kafka source that a source has; the Kafka client has any option that begins with `kafka.`.
_KAFKA_OPTIONS: Final = (
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "maxRecordsPerPartition",
    "maxTriggerDelay",
    "minOffsetsPerTrigger",
    "minPartitions",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "startingTimestamp",
)
#: Options of Spark's sources that a setting of ours says, by their names in small letters.
_SAID_BY_SETTINGS: Final = {
    "failondataloss": "on.data.loss (fail or go-on)",
    "kafka.bootstrap.servers": "bootstrap.servers",
    "kafka.isolation.level": "isolation.level",
    "maxoffsetspertrigger": "max.offsets.per.trigger",
    "rowspersecond": "rows.per.second",
    "startingoffsets": "starting.offsets",
    "subscribe": "subscribe",
    "subscribepattern": "topics.pattern",
}
_RATE_OPTIONS: Final = ("numPartitions", "rampUpTime")
#: Settings of the connector, which say how the values of its events are to be read; and of the flat form alone.
_OF_ENVELOPES: Final = (
    "decimal_handling_mode",
    "time_precision_mode",
    "binary_handling_mode",
    "unavailable_value_placeholder",
    "on_unresolved",
    "on_misfit",
    "connector",
    "scope",
    "on_snapshot",
)
_OF_FLAT: Final = ("add_fields", "add_fields_prefix", "add_headers", "add_headers_prefix", "delete_tombstone_handling_mode")
#: Settings of rows whose columns are the key and the value; an envelope says these things itself.
_OF_ROWS: Final = ("value", "columns", "drop", "tombstone", "timestamp")


def _check_options(options: dict[str, str], allowed: tuple[str, ...], what: str) -> None:
    """Raise `ValueError` for options that another setting says, and for those that Spark would ignore."""
    for name in options:
        if setting := _SAID_BY_SETTINGS.get(name.lower()):
            message = f"options.{name}: {setting} says this; leave the option out"
            raise ValueError(message)
    known = {name.lower() for name in allowed}
    unknown = [name for name in options if name.lower() not in known and not (what == "kafka" and name.startswith("kafka."))]
    if unknown:
        own = ", and those of the Kafka client, which begin with kafka." if what == "kafka" else ""
        message = f"options {', '.join(unknown)}: of a source of {what} allowed are {', '.join(allowed)}{own}"
        raise ValueError(message)


class _SourceSettings(BaseModel):
    """What all sources have."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, alias_generator=lambda name: name.replace("_", "."))

    name: Annotated[str, Field(description="The query's name; its position in the source belongs to it")]
    topic: Annotated[str, Field(description="The topic that it fills")]
    trigger: Annotated[
        str, Field(description="`available-now` (take what is there and stop) or an interval such as `5 seconds`; empty: at once, for ever")
    ] = ""
    on_invalid: Annotated[Literal["dead-letter", "fail"], Field(description="What a refused row does")] = "dead-letter"
    options: Annotated[dict[str, str], Field(description="Further options of Spark's reader")] = {}

    @property
    def filled_topic(self) -> str:
        """The name of the topic that it fills."""
        return self.topic

    @field_validator("trigger")
    @classmethod
    def _has_interval(cls, trigger: str) -> str:
        """Refuse an interval that Spark could not read."""
        trigger_of(trigger)
        return trigger


class _RowSettings(_SourceSettings):
    """What sources have whose rows have columns, or whose values are change events."""

    envelope: Annotated[
        Literal["", "debezium", "debezium-flat"],
        Field(description="The values are change events of Debezium, as they are sent, or flattened by ExtractNewRecordState"),
    ] = ""
    key: Annotated[
        list[str], Field(description="The key's columns; empty for the record's or the event's own key", validate_default=True)
    ] = []
    key_format: Annotated[
        KeyFormat,
        Field(
            description="The serializer of the record's own key: json, string, short, integer, long, float, double or bytes; empty: "
            "json, or with a schema registry its frames"
        ),
    ] = ""
    value: Annotated[str, Field(description="The value's column; empty: columns as a JSON object")] = ""
    columns: Annotated[list[str], Field(description="Columns of the JSON value; empty: all (of files without the key's)")] = []
    drop: Annotated[list[str], Field(description="Columns that are left out of the JSON value")] = []
    tombstone: Annotated[str, Field(description="A SQL condition; a row for which it is true is a tombstone")] = ""
    sequence: Annotated[
        list[str],
        Field(
            description="SQL expressions (of an envelope: fields) by which the rows of a key are ordered; of an envelope else its position"
        ),
    ] = []
    sequence_as: Annotated[
        Literal["", "text", "number", "time"],
        Field(description="What a text of sequence is compared as: text, number or time; empty: a text is refused"),
    ] = ""
    connector: Annotated[
        Connector, Field(description="The connector whose events say it not themselves, as flat ones without source.connector")
    ] = ""
    scope: Annotated[
        str,
        Field(description="The source's name in place of source.name: positions are compared with those of one connector and name alone"),
    ] = ""
    on_snapshot: Annotated[
        Literal["keep", "replace"],
        Field(
            description="What rows do that a later snapshot of the source lacks: they stay, or are deleted once the snapshot is complete; "
            "replace only where snapshots are always of whole tables"
        ),
    ] = "keep"
    truncate: Annotated[
        str,
        Field(
            description="A SQL condition; a row for which it is true deletes every key before it. With an envelope: `delete-all`, `alert` "
            "(TRUNCATE is a dead letter) or `ignore`"
        ),
    ] = ""
    timestamp: Annotated[str, Field(description="The record time's column; empty: that of the Kafka record, or of the append")] = ""
    on_null: Annotated[
        Literal["null", "keep"],
        Field(description="What a column does that is null or missing: it is null, or keeps the value of the key's last record"),
    ] = "null"
    schema_ddl: Annotated[
        str,
        Field(
            alias="schema",
            description="The columns as SQL DDL; empty: those that an event's schema names, and of files what stands in them",
        ),
    ] = ""
    decimal_handling_mode: Annotated[Literal["precise", "double", "string"], Field(description="The connector's setting")] = "precise"
    time_precision_mode: Annotated[TimePrecision, Field(description="The connector's setting")] = "adaptive"
    binary_handling_mode: Annotated[Literal["bytes", "base64", "base64-url-safe", "hex"], Field(description="The connector's setting")] = (
        "bytes"
    )
    unavailable_value_placeholder: Annotated[str, Field(description="The connector's setting")] = PLACEHOLDER
    add_fields_prefix: Annotated[str, Field(description="ExtractNewRecordState's setting; for debezium-flat")] = "__"
    add_fields: Annotated[
        list[str],
        Field(
            description="ExtractNewRecordState's setting; for debezium-flat: the fields that it adds, so that no column is taken for one; "
            "empty: the usual ones"
        ),
    ] = []
    add_headers_prefix: Annotated[str, Field(description="ExtractNewRecordState's setting; for debezium-flat")] = "__"
    add_headers: Annotated[
        list[str],
        Field(
            description="ExtractNewRecordState's setting; for debezium-flat: the fields that it adds as headers of the record, of which "
            "those of its position are read; empty: the usual ones"
        ),
    ] = []
    delete_tombstone_handling_mode: Annotated[
        DeleteTombstoneHandling,
        Field(
            description="ExtractNewRecordState's setting; for debezium-flat: with rewrite-with-tombstone null values are no deletions, "
            "else they are"
        ),
    ] = ""
    on_unresolved: Annotated[
        Literal["dead-letter", "null"], Field(description="What an event does that leaves out a column which no record of its key has")
    ] = "dead-letter"
    on_misfit: Annotated[
        Literal["dead-letter", "null"], Field(description="What an event does of which a value does not fit its column's type")
    ] = "dead-letter"

    @field_validator("key", "columns", "drop", "sequence", "add_fields", "add_headers")
    @classmethod
    def _are_named_once(cls, names: list[str]) -> list[str]:
        """Refuse a name that comes twice, or is empty."""
        check_named_once(names)
        return names

    def _non_defaults(self, *names: str) -> list[str]:
        """Return those of some settings whose value is not the default, by the names that a user writes."""
        fields = type(self).model_fields
        return [fields[name].alias or name for name in names if getattr(self, name) != fields[name].default]

    @model_validator(mode="after")
    def _are_of_one_kind(self) -> _RowSettings:
        """Refuse settings of rows beside an envelope, and those that exclude each other."""
        if not self.envelope and (given := self._non_defaults(*_OF_ENVELOPES)):
            message = f"{', '.join(given)}: only with an envelope, whose events they are for; leave it out, or give the envelope"
            raise ValueError(message)
        if self.envelope != "debezium-flat" and (given := self._non_defaults(*_OF_FLAT)):
            message = f"{', '.join(given)}: only with envelope = debezium-flat: other values have no such fields"
            raise ValueError(message)
        if self.envelope:
            given = [name for name in _OF_ROWS if getattr(self, name)] + (["on.null"] if self.on_null == "keep" else [])
            if given:
                message = f"{', '.join(given)}: the events of an envelope say this themselves; leave it out, or leave out the envelope"
                raise ValueError(message)
            if self.truncate not in {"", *_TRUNCATE_POLICIES}:
                message = f"truncate = {self.truncate!r}: with an envelope allowed are {', '.join(_TRUNCATE_POLICIES)}"
                raise ValueError(message)
        self._check_columns()
        return self

    def _check_columns(self) -> None:
        """Raise `ValueError` for settings of the key and the value that exclude each other."""
        if self.key_format and (self.key or not (self.envelope or self.schema_ddl)):
            message = (
                f"key.format = {self.key_format!r} is how the record's own key is read for an envelope or a schema; leave it out where "
                "key names columns, or where keys are kept as they are"
            )
            raise ValueError(message)
        check_row_words(replace(self.words, truncate="") if self.envelope else self.words)

    @property
    def words(self) -> RowWords:
        """What the columns of rows mean."""
        return RowWords(
            key=tuple(self.key),
            value=self.value,
            columns=tuple(self.columns),
            drop=tuple(self.drop),
            tombstone=self.tombstone,
            sequence=tuple(self.sequence),
            sequence_as=self.sequence_as,
            truncate=self.truncate,
            timestamp=self.timestamp,
            on_null=self.on_null,
        )

    @property
    def events(self) -> Envelope:
        """How change events are to be read, of a source that has an envelope. Raises `InvalidConfiguration`."""
        return Envelope(
            kind=cast("Kind", self.envelope),
            key=tuple(self.key),
            key_format=self.key_format,
            sequence=tuple(self.sequence),
            sequence_as=self.sequence_as,
            connector=self.connector,
            scope=self.scope,
            truncate=cast("Truncate", self.truncate or "delete-all"),
            on_snapshot=self.on_snapshot,
            prefix=self.add_fields_prefix,
            add_fields=tuple(self.add_fields),
            headers_prefix=self.add_headers_prefix,
            add_headers=tuple(self.add_headers),
            delete_tombstone_handling_mode=self.delete_tombstone_handling_mode,
            placeholder=self.unavailable_value_placeholder,
            unresolved=self.on_unresolved,
            schema=self.schema_ddl,
            decimal_handling_mode=self.decimal_handling_mode,
            time_precision_mode=self.time_precision_mode,
            binary_handling_mode=self.binary_handling_mode,
            misfit=self.on_misfit,
        )


class FileSource(_RowSettings):
    """Files, or a directory that they arrive in."""

    format: Literal["json", "csv", "parquet"]
    path: Annotated[str, Field(description="A directory, a file, or a glob: *, ?, [ab], {x,y}, **")]
    max_files_per_trigger: Annotated[int, Field(description="Files a micro-batch takes at the most; 0: all", ge=0)] = 0
    on_corrupt_file: Annotated[
        Literal["skip", "fail"],
        Field(description="What a file does that cannot be read: none of its rows is taken, and a dead letter names it; or the query ends"),
    ] = "skip"

    lines: Annotated[
        Literal["", "records", "values"],
        Field(
            description="With an envelope, what a line is: a record of Kafka (an object with key, value, headers), or an event's value; "
            "empty: a record if it has no other fields, but a value where key names columns of flattened rows"
        ),
    ] = ""

    @property
    def are_records(self) -> bool | None:
        """Whether the lines are records of Kafka; None where each line says so."""
        if self.lines:
            return self.lines == "records"
        return False if self.envelope == "debezium-flat" and self.key else None

    @field_validator("key")
    @classmethod
    def _has_key(cls, key: list[str], info: ValidationInfo) -> list[str]:
        """Refuse rows without a key."""
        if not key and not info.data.get("envelope"):
            message = "name the key's columns, or give an envelope"
            raise ValueError(message)
        return key

    @model_validator(mode="after")
    def _has_options_that_do_something(self) -> FileSource:
        """Refuse options that would do nothing, or say nothing that can be done."""
        if self.lines and not self.envelope:
            message = f"lines = {self.lines!r}: it says what a line of change events is; give an envelope, or leave it out"
            raise ValueError(message)
        if self.key_format and self.are_records is False:
            message = f"key.format = {self.key_format!r}: lines that are values have no key of their own; leave it out"
            raise ValueError(message)
        if self.envelope and self.format != "json":
            message = f"format = {self.format!r}: with an envelope each line of a file is an event in JSON; allowed is json"
            raise ValueError(message)
        allowed = () if self.envelope else FILE_OPTIONS.get(self.format, ())
        check_file_options(self.options, (*allowed, "pathGlobFilter"), "change events" if self.envelope else f"{self.format} files")
        return self


class KafkaSource(_RowSettings):
    """A Kafka topic, whose partitions and offsets the topic keeps (`mirror`), or hashes anew; or the change events of several."""

    topic: Annotated[
        str,
        Field(description="The topic that it fills; empty: it makes a topic of the same name for each Kafka topic that it reads"),
    ] = ""
    format: Literal["kafka"]
    bootstrap_servers: Annotated[str, Field(description="host:port[,host:port]")]
    subscribe: Annotated[str, Field(description="The Kafka topic")] = ""
    topics_pattern: Annotated[str, Field(description="A regular expression of Kafka topics, each of which fills a topic of its own")] = ""
    schema_registry_url: Annotated[
        str,
        Field(description="Keys and values are Avro, JSON Schema or Protobuf, framed for this registry; URLs by commas"),
    ] = ""
    schema_registry_basic_auth_user_info: Annotated[SecretStr, Field(description="user:password for the registry")] = SecretStr("")
    schema_registry_ssl_ca_location: Annotated[str, Field(description="A PEM file with certificates to trust, on each executor")] = ""
    partitions: Annotated[int, Field(description="Partitions of the topics that it makes; 0: as many as in Kafka", ge=0)] = 0
    isolation_level: Annotated[Literal["read_committed", "read_uncommitted"], Field(description="Which transactions are taken")] = (
        "read_committed"
    )
    starting_offsets: Annotated[str, Field(description="earliest, latest or Spark's JSON; for the first start only")] = "earliest"
    max_offsets_per_trigger: Annotated[int, Field(description="Records a micro-batch takes at the most; 0: all", ge=0)] = 0
    on_data_loss: Annotated[
        Literal["fail", "go-on"], Field(description="What happens when Kafka deleted records before they were read")
    ] = "fail"
    mirror: Annotated[bool, Field(description="Keep Kafka's partitions and offsets; not with an envelope or a schema")] = True

    @property
    def filled_topic(self) -> str:
        """The name of the topic that it fills; empty for the topics of a pattern."""
        return self.topic or self.subscribe

    @property
    def makes_topics(self) -> bool:
        """Whether it makes the topics that it fills, each with the name and the partitions of its Kafka topic."""
        return not self.topic

    @property
    def has_columns(self) -> bool:
        """Whether the values are JSON objects, of which columns become key and value."""
        return bool(self.schema_ddl) and not self.envelope

    def registry(self) -> RegistryConfig | None:
        """Return the schema registry of the frames, with its login; None without one. Raises `InvalidConfiguration`."""
        if not self.schema_registry_url:
            return None
        user, _, password = self.schema_registry_basic_auth_user_info.get_secret_value().partition(":")
        return RegistryConfig(
            urls=tuple(url.strip() for url in self.schema_registry_url.split(",")),
            user=user or None,
            password=password if user else None,
            ca_file=self.schema_registry_ssl_ca_location or None,
        )

    @model_validator(mode="after")
    def _is_whole(self) -> KafkaSource:
        """Refuse settings that exclude each other."""
        self._check_topics()
        of_columns = [name for name in (*_OF_ROWS, "key", "sequence", "truncate") if getattr(self, name)]
        of_columns += ["on.null"] if self.on_null == "keep" else []
        if of_columns and not self.envelope and not self.schema_ddl:
            message = f"{', '.join(of_columns)}: which columns the JSON values have says schema (SQL DDL); give it"
            raise ValueError(message)
        if self.schema_registry_url and not self.envelope and not self.schema_ddl:
            message = "schema.registry.url goes with an envelope or a schema: without them keys and values are kept as they are"
            raise ValueError(message)
        registry = self._non_defaults("schema_registry_basic_auth_user_info", "schema_registry_ssl_ca_location")
        if registry and not self.schema_registry_url:
            message = f"{', '.join(registry)} without schema.registry.url does nothing; leave it out, or give the URL"
            raise ValueError(message)
        if self.partitions and self.topic:
            message = f"partitions = {self.partitions}: topic {self.topic} has its partitions, which stand in [topic.NAME]; leave one out"
            raise ValueError(message)
        if self.mirror and "mirror" in self.model_fields_set and (self.envelope or self.schema_ddl):
            message = "mirror = true: not with an envelope or a schema, whose rows are hashed anew; leave it out"
            raise ValueError(message)
        _check_options(self.options, _KAFKA_OPTIONS, "kafka")
        try:
            re.compile(self.topics_pattern)
        except re.error as error:
            message = f"topics.pattern {self.topics_pattern!r} is no regular expression: {error}"
            raise ValueError(message) from None
        return self

    def _check_topics(self) -> None:
        """Raise `ValueError` unless the source reads one Kafka topic, or those of a pattern each into a topic of its own."""
        if bool(self.subscribe) == bool(self.topics_pattern):
            message = "give either subscribe (one Kafka topic) or topics.pattern (several)"
            raise ValueError(message)
        if self.topics_pattern and self.topic:
            message = f"topic = {self.topic!r}: with topics.pattern each topic has the name of its Kafka topic; leave it out"
            raise ValueError(message)


class RateSource(_SourceSettings):
    """Made-up changes, for trials."""

    format: Literal["rate"]
    rows_per_second: Annotated[int, Field(description="Rows that are made in a second", ge=1)] = 10
    keys: Annotated[int, Field(description="How many keys there are", ge=1)] = 1_000

    @model_validator(mode="after")
    def _has_known_options(self) -> RateSource:
        """Refuse options that would do nothing."""
        _check_options(self.options, _RATE_OPTIONS, "rate")
        return self


Source = Annotated[FileSource | KafkaSource | RateSource, Field(discriminator="format")]


def trigger_of(text: str) -> dict[str, Any]:
    """Return the arguments of Spark's `trigger()` for `available-now`, an interval, or an empty text (at once, for ever).

    Raises `ValueError` for any other text.
    """
    if not text:
        return {}
    if text == "available-now":
        return {"availableNow": True}
    interval = interval_ms(text)
    if interval is None:
        message = "allowed are available-now, and an interval as 10s, 5 seconds or 1 minute 30 seconds; empty: at once, for ever"
        raise ValueError(message)
    return {"processingTime": f"{interval} milliseconds"}
