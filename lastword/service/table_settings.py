r"""What a `[[table]]` of the configuration file may say: a typed Delta table that the service keeps in step with a topic.

```toml
[[table]]
topics.pattern = "shop\\..*"         # or topic = "shop.orders"
path = "tables/{topic}"              # a table for each topic
every = 10                           # seconds between two looks at the topic
```
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from lastword.change_data.columns.connect_schema import columns_of_ddl
from lastword.compaction.config.keys import interval_ms
from lastword.compaction.errors import UserError, Violation
from lastword.storage.files.locations import location_of
from lastword.storage.tables.table_rows import RECORD_COLUMNS

#: What stands for the name of the topic in a path.
_TOPIC: str = "{topic}"


def _seconds(given: object) -> object:
    """Return the seconds of a text as `10s`; any other value as it is. Raises `ValueError` for a text of another form."""
    if not isinstance(given, str):
        return given
    interval = interval_ms(given)
    if interval is None:
        message = "allowed are a number of seconds, and an interval as 10s or 1 minute 30 seconds"
        raise ValueError(message)
    return interval / 1000


class TableSettings(BaseModel):
    """One table, or one for each topic that a pattern matches."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, alias_generator=lambda name: name.replace("_", "."))

    topic: Annotated[str, Field(description="The topic that it follows")] = ""
    topics_pattern: Annotated[str, Field(description="A regular expression of whole names: a table for each topic that it matches")] = ""
    path: Annotated[str, Field(description="The path or URI of the Delta table; {topic} stands for the topic's name")]
    every: Annotated[
        float, BeforeValidator(_seconds), Field(gt=0, description="Seconds between two looks at the topic, or an interval as 1 min")
    ] = 10.0
    columns: Annotated[str, Field(alias="schema", description="Columns as SQL DDL; empty: those that the topic's sources say")] = ""
    record_columns: Annotated[list[str], Field(description="Also these columns of the record: _offset, _timestamp, _headers, _value")] = []
    history: Annotated[bool, Field(description="Keep every row with the period in which it was valid (SCD type 2)")] = False
    mode: Annotated[
        Literal["FAILFAST", "PERMISSIVE", "DROPMALFORMED"],
        Field(description="A value that does not fit its column: ends the step, is null, or makes its record a dead letter of the topic"),
    ] = "FAILFAST"
    on_type_change: Annotated[
        Literal["rebuild", "fail"], Field(description="When the type of a column changes: write the table anew, or stop")
    ] = "rebuild"
    partition_by: Annotated[
        list[str], Field(description="Partition columns of the Delta table when it is made; none: it stays as it is")
    ] = []
    deletion_vectors: Annotated[bool, Field(description="false for readers that do not know them: a step then rewrites files")] = True
    column_mapping: Annotated[
        bool, Field(description="false: characters that need Delta's column mapping are replaced by underscores in names of columns")
    ] = True
    isolation: Annotated[Literal["read_committed", "read_uncommitted"], Field(description="Kafka's isolation.level")] = "read_committed"
    max_offsets_per_step: Annotated[int, Field(ge=0, description="Offsets that a commit takes at the most, about; 0: all")] = 0
    properties: Annotated[dict[str, str], Field(description="Properties of the Delta table when it is made")] = {}

    @field_validator("columns")
    @classmethod
    def _check_columns(cls, given: str) -> str:
        if given:
            columns_of_ddl(given)
        return given

    @field_validator("record_columns")
    @classmethod
    def _check_record_columns(cls, given: list[str]) -> list[str]:
        unknown = [name for name in given if name not in RECORD_COLUMNS]
        if unknown:
            message = f"{', '.join(unknown)}: allowed are {', '.join(RECORD_COLUMNS)}"
            raise ValueError(message)
        return given

    @field_validator("path")
    @classmethod
    def _check_path(cls, given: str) -> str:
        try:
            location_of(given.replace(_TOPIC, "topic"))
        except UserError as error:
            raise ValueError(str(error)) from None
        return given

    @model_validator(mode="after")
    def _check_topics(self) -> TableSettings:
        if bool(self.topic) == bool(self.topics_pattern):
            message = "give either topic or topics.pattern"
            raise ValueError(message)
        if self.topics_pattern:
            try:
                re.compile(self.topics_pattern)
            except re.error as error:
                message = f"topics.pattern = {self.topics_pattern!r} is no regular expression: {error}"
                raise ValueError(message) from None
            if _TOPIC not in self.path:
                message = f"path = {self.path!r}: with topics.pattern it names a table for each topic: write {_TOPIC} in it"
                raise ValueError(message)
        return self

    def path_of(self, topic: str) -> str:
        """Return the place of the table of a topic."""
        return self.path.replace(_TOPIC, topic)

    def matches(self, topic: str) -> bool:
        """Tell whether this block applies to a topic: `topic` names it, or `topics.pattern` matches its whole name."""
        return topic == self.topic if self.topic else re.fullmatch(self.topics_pattern, topic) is not None


def doubled_tables(tables: list[TableSettings]) -> list[Violation]:
    """Return a violation for each path that two `[[table]]` blocks name."""
    places = Counter(location_of(table.path_of(table.topic or "{topic}").replace("{", "").replace("}", "")) for table in tables)
    return [
        Violation(key="table.path", value=place, allowed="another [[table]] has this path; a table follows one topic")
        for place, count in places.items()
        if count > 1
    ]
