"""The settings of sources: what a `[[source]]` of the configuration file, or `lastword append`, may say.

| format              | key                      | value                          | order                                        |
|---------------------|--------------------------|--------------------------------|----------------------------------------------|
| json, csv, parquet  | one column, or several   | the rest as JSON, or a column  | modification time, path, row of the file     |
| kafka               | the record's             | the record's                   | partition and offset, which the topic keeps  |
| … with a `schema`   | columns, or the record's | columns as JSON, or a column   | partition and offset, in headers             |
| … with an envelope  | the event's, canonical   | the row                        | partition and offset, in headers             |
| rate                | a counter modulo `keys`  | JSON                           | the counter                                  |

Keys and values of columns: `lastword.streaming.append.change_rows`; of envelopes: `lastword.compaction.rows.envelopes`.
"""

from __future__ import annotations

import codecs
import re
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationInfo, field_validator, model_validator

from lastword.compaction.rows.envelopes import PLACEHOLDER, TimePrecision
from lastword.compaction.rows.event_keys import KeyFormat

#: What a TRUNCATE of an envelope does.
_TRUNCATE_POLICIES: Final = ("delete-all", "alert", "ignore")
#: The options of Spark's readers that file sources have.
_FILE_OPTIONS: Final = {
    "json": ("encoding", "charset", "multiLine", "pathGlobFilter"),
    "csv": ("sep", "delimiter", "quote", "escape", "header", "encoding", "charset", "pathGlobFilter"),
    "parquet": ("pathGlobFilter",),
}
#: Settings of rows whose columns are the key and the value; an envelope says these things itself.
_OF_ROWS: Final = ("value", "columns", "drop", "tombstone", "timestamp")


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


class _Rows(_Source):
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
    on_unresolved: Annotated[
        Literal["dead-letter", "null"], Field(description="What an event does that leaves out a column which no record of its key has")
    ] = "dead-letter"
    on_misfit: Annotated[
        Literal["dead-letter", "null"], Field(description="What an event does of which a value does not fit its column's type")
    ] = "dead-letter"

    @field_validator("key", "columns", "drop", "sequence", "add_fields")
    @classmethod
    def _are_named_once(cls, names: list[str]) -> list[str]:
        """Refuse a name that comes twice, or is empty."""
        twice = sorted({name for name in names if names.count(name) > 1 or not name})
        if twice:
            message = f"{', '.join(map(repr, twice))}: each name is allowed once, and not empty"
            raise ValueError(message)
        return names

    @model_validator(mode="after")
    def _are_of_one_kind(self) -> _Rows:
        """Refuse settings of rows beside an envelope, and those that exclude each other."""
        if self.envelope:
            given = [name for name in _OF_ROWS if getattr(self, name)] + (["on.null"] if self.on_null == "keep" else [])
            if given:
                message = f"{', '.join(given)}: the events of an envelope say this themselves; leave it out, or leave out the envelope"
                raise ValueError(message)
            if self.truncate not in {"", *_TRUNCATE_POLICIES}:
                message = f"truncate = {self.truncate!r}: with an envelope allowed are {', '.join(_TRUNCATE_POLICIES)}"
                raise ValueError(message)
        elif self.truncate and not self.sequence:
            message = "truncate deletes every key before it, so it needs a sequence, which says what came before"
            raise ValueError(message)
        if self.envelope != "debezium-flat" and (self.add_fields or self.add_fields_prefix != "__"):
            message = "add.fields, add.fields.prefix: they are of rows that ExtractNewRecordState flattened: envelope = debezium-flat"
            raise ValueError(message)
        if self.key_format and (self.key or not (self.envelope or self.schema_ddl)):
            message = (
                f"key.format = {self.key_format!r} is how the record's own key is read for an envelope or a schema; leave it out where "
                "key names columns, or where keys are kept as they are"
            )
            raise ValueError(message)
        if self.columns and self.drop:
            message = "columns and drop exclude each other: give the columns of the value, or those that are left out"
            raise ValueError(message)
        if self.value and (self.columns or self.drop or self.on_null == "keep"):
            message = "value takes one column as it is, so columns, drop and on.null = keep say nothing; leave them out"
            raise ValueError(message)
        return self


class FileSource(_Rows):
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
        options, allowed = self.options, _FILE_OPTIONS[self.format]
        unknown = [name for name in options if name.lower() not in {one.lower() for one in allowed}]
        if unknown:
            message = f"options {', '.join(unknown)}: of {self.format} files allowed are {', '.join(allowed)}"
            raise ValueError(message)
        given = {name.lower(): value for name, value in options.items()}
        for name in ("encoding", "charset"):
            try:
                codecs.lookup(given.get(name, "UTF-8"))
            except LookupError:
                message = f"{name} = {given[name]!r}: no such encoding; allowed is a name of Python's codecs, e.g. ISO-8859-1"
                raise ValueError(message) from None
        for name in ("multiline", "header"):
            if given.get(name, "true").lower() not in {"true", "false"}:
                message = f"{name} = {given[name]!r}: allowed are true and false"
                raise ValueError(message)
        for name, least in (("sep", 1), ("delimiter", 1), ("quote", 0), ("escape", 0)):
            text = given.get(name, ",").replace("\\t", "\t")
            if not least <= len(text) <= 1 or not text.isascii():
                message = f"{name} = {given[name]!r}: allowed is one ASCII character{'' if least else ', or none'}"
                raise ValueError(message)
        return self


class KafkaSource(_Rows):
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
        Field(description="Keys and values are Avro, JSON Schema or Protobuf, framed for this registry; URLs by commas"),
    ] = ""
    schema_registry_basic_auth_user_info: Annotated[SecretStr, Field(description="user:password for the registry")] = SecretStr("")
    schema_registry_ssl_ca_location: Annotated[str, Field(description="A PEM file with certificates to trust, on each executor")] = ""
    partitions: Annotated[int, Field(description="Partitions of the topics that `topics.pattern` makes; 0: as many as in Kafka", ge=0)] = 0
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
    def has_columns(self) -> bool:
        """Whether the values are JSON objects, of which columns become key and value."""
        return bool(self.schema_ddl) and not self.envelope

    @model_validator(mode="after")
    def _is_whole(self) -> KafkaSource:
        """Refuse settings that exclude each other."""
        if bool(self.subscribe) == bool(self.topics_pattern):
            message = "give subscribe (one Kafka topic) or topics.pattern (several)"
            raise ValueError(message)
        if bool(self.subscribe) != bool(self.topic):
            message = "topic goes with subscribe; with topics.pattern each topic has the name of its Kafka topic"
            raise ValueError(message)
        of_columns = [name for name in (*_OF_ROWS, "key", "sequence", "truncate") if getattr(self, name)]
        of_columns += ["on.null"] if self.on_null == "keep" else []
        if of_columns and not self.envelope and not self.schema_ddl:
            message = f"{', '.join(of_columns)}: which columns the JSON values have says schema (SQL DDL); give it"
            raise ValueError(message)
        if self.schema_registry_url and not self.envelope and not self.schema_ddl:
            message = "schema.registry.url goes with an envelope or a schema: without them keys and values are kept as they are"
            raise ValueError(message)
        if any(key.lower() == "failondataloss" for key in self.options):
            message = "options.failOnDataLoss: on.data.loss (fail or go-on) says this; leave the option out"
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
