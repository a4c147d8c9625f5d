"""What a table says of itself in its Delta log: whose it is, where its reader is, its columns and its protocol.

```
 property lastword-table              {"format":1,"topic":"orders","topic_id":"6f…","history":false,"key":["id"]}
 transaction versions                 lastword-table/6f…/0 = 7    …/1 = 0    …/version = 4    …/since = 2
```

Neither goes when Delta deletes old commits.
"""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from lastword.compaction.errors import UnknownFormat, UserError
from lastword.compaction.read_positions import Position
from lastword.storage.delta.commit_text import action_time_ms
from lastword.storage.tables.table_schema import has_local_times, map_columns, needs_mapping, schema_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from lastword.storage.tables.table_state import TableState

_PROPERTY: Final = "lastword-table"
_FORMAT: Final = 1
#: Files that left a table, and commits, are kept so long: each step touches many files.
_DEFAULTS: Final = {
    "delta.deletedFileRetentionDuration": "interval 1 days",
    "delta.logRetentionDuration": "interval 2 days",
    "delta.checkpointInterval": "100",
}
#: The features that a version of the protocol without a list of them asks of its writers, and the first such version.
_OF_VERSIONS: Final = {
    "appendOnly": 2,
    "invariants": 2,
    "checkConstraints": 3,
    "changeDataFeed": 4,
    "generatedColumns": 4,
    "columnMapping": 5,
}
#: Features of which a commit that adds, removes and marks rows does all that is asked.
KNOWN_FEATURES: Final = frozenset(
    [
        *("appendOnly", "invariants", "changeDataFeed", "deletionVectors", "timestampNtz", "variantType", "domainMetadata"),
        *("clustering", "generatedColumns", "checkConstraints", "vacuumProtocolCheck", "columnMapping"),
    ]
)
#: Properties with which a step would be refused, or damage the table.
_OBSTACLES: Final = re.compile(
    r"delta\.(constraints\..*|setTransactionRetentionDuration|enableInCommitTimestamps|enableRowTracking|appendOnly)"
    r"|delta\.columnMapping\.(?!mode$|maxColumnId$).*"
)
_NO: Final = frozenset({"", "false", "none"})
_MAPPING: Final = "delta.columnMapping.mode"
_LAST_ID: Final = "delta.columnMapping.maxColumnId"
#: Properties that are not a user's to set.
_OURS: Final = frozenset({_PROPERTY, "delta.enableDeletionVectors", "delta.minReaderVersion", "delta.minWriterVersion"})
_VECTORS: Final = {"delta.enableDeletionVectors": "true", "delta.enableChangeDataFeed": "true"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOwner:
    """Whose a table is: the topic, whether it is a history, and the columns of the key that tell its rows apart."""

    topic: str
    topic_id: str
    history: bool
    key: tuple[str, ...]

    def to_json(self) -> str:
        """Return the value of the property."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, separators=(",", ":"))

    @staticmethod
    def of(state: TableState, location: str) -> TableOwner | None:
        """Return whose a table says it is; None when it is no table of lastword. Raises `UnknownFormat` for one of a later version."""
        try:
            body = json.loads(state.configuration.get(_PROPERTY, ""))
        except ValueError:
            return None
        if body["format"] != _FORMAT:
            message = f"{location} has format {body['format']}, and this version of lastword writes {_FORMAT}: use a later version"
            raise UnknownFormat(message)
        return TableOwner(topic=body["topic"], topic_id=body["topic_id"], history=body["history"], key=tuple(body["key"]))

    def check(self, asked: TableOwner, location: str, *, ways_out: str) -> None:
        """Raise `UserError` for a table of another topic, or of another kind than is asked for."""
        if self.topic_id != asked.topic_id:
            message = f"{location} is the table of another topic, {self.topic}: name another place, or drop the table"
            raise UserError(message)
        if self.history != asked.history:
            kind = "a history" if self.history else "no history"
            message = f"{location} is {kind}, and history = {asked.history} is asked for: name another place, or {ways_out}"
            raise UserError(message)


def is_obstacle(name: str, value: str) -> bool:
    """Tell whether a property of a table keeps it from taking steps."""
    if name == _MAPPING:
        return value.lower() not in {"none", "name"}
    return _OBSTACLES.fullmatch(name) is not None and value.lower() not in _NO


def has_mapping(configuration: Mapping[str, str]) -> bool:
    """Tell whether data files know the columns of a table by stored names."""
    return configuration.get(_MAPPING, "none") == "name"


def check_properties(properties: Mapping[str, str]) -> None:
    """Raise `UserError` for properties that a table which takes steps cannot be made with."""
    wrong = [f"{name} = {value}" for name, value in properties.items() if is_obstacle(name, value) or name in _OURS]
    if wrong:
        message = f"properties {'; '.join(wrong)}: a table that is kept in step cannot have them"
        raise UserError(message)


def position_transactions(position: Position) -> dict[str, int]:
    """Return the transaction versions of a commit that brings a table to a position."""
    name = f"lastword-table/{position.topic_id}"
    by_partition = {f"{name}/{partition}": offset for partition, offset in enumerate(position.offsets)}
    return {**by_partition, f"{name}/version": position.table_version, f"{name}/since": position.since_version}


def position_of(state: TableState, topic_id: str) -> Position:
    """Return the position of the topic that a table has reached."""
    name, versions = f"lastword-table/{topic_id}", state.transactions
    partitions = sum(1 for app_id in versions if app_id.startswith(f"{name}/") and app_id.rpartition("/")[2].isdigit())
    return Position(
        offsets=tuple(versions[f"{name}/{partition}"] for partition in range(partitions)),
        table_version=versions[f"{name}/version"],
        since_version=versions[f"{name}/since"],
        topic_id=topic_id,
    )


def table_actions(
    state: TableState | None,
    schema: pa.Schema,
    owner: TableOwner,
    *,
    deletion_vectors: bool,
    properties: Mapping[str, str],
    partition_by: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Return the actions that make a table, or write it anew: protocol and metadata. Of the properties before, retention alone stays."""
    before = {} if state is None else {name: value for name, value in state.configuration.items() if name in _DEFAULTS}
    vectors = _VECTORS if deletion_vectors else {}
    configuration = {**_DEFAULTS, **vectors, **before, **properties, _PROPERTY: owner.to_json()}
    body = json.loads(schema_text(schema))
    of_state = {} if state is None else state.configuration
    maps = needs_mapping(schema) or has_mapping(of_state) or has_mapping(properties)
    configuration |= _map_columns(body, of_state) if maps else {}
    metadata: dict[str, Any] = {
        "id": str(uuid.uuid4()) if state is None else state.metadata["id"],
        "format": {"provider": "parquet", "options": {}},
        "schemaString": _compact(body),
        "partitionColumns": list(partition_by),
        "configuration": configuration,
        "createdTime": action_time_ms(),
    }
    feeds = deletion_vectors or properties.get("delta.enableChangeDataFeed", "").lower() == "true"
    return [{"protocol": _protocol(schema, state, deletion_vectors=deletion_vectors, feeds=feeds, maps=maps)}, {"metaData": metadata}]


def column_actions(state: TableState, new: pa.Schema, *, deletion_vectors: bool) -> list[dict[str, Any]]:
    """Return the actions that add columns to a table; none for none."""
    if not len(new):
        return []
    body = json.loads(state.metadata["schemaString"])
    body["fields"] += json.loads(schema_text(new))["fields"]
    maps = needs_mapping(new) or has_mapping(state.configuration)
    configuration = {**state.configuration, **(_map_columns(body, state.configuration) if maps else {})}
    metadata = {**state.metadata, "schemaString": _compact(body), "configuration": configuration}
    protocol = _protocol(new, state, deletion_vectors=deletion_vectors, feeds=deletion_vectors, maps=maps)
    return [*([] if protocol == dict(state.protocol) else [{"protocol": protocol}]), {"metaData": metadata}]


def _map_columns(body: dict[str, Any], configuration: Mapping[str, str]) -> dict[str, str]:
    """Give the columns of a Delta schema that have none their stored names; return the properties that say so."""
    return {_MAPPING: "name", _LAST_ID: str(map_columns(body["fields"], int(configuration.get(_LAST_ID, 0))))}


def _compact(body: Any) -> str:
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False)


def _protocol(schema: pa.Schema, state: TableState | None, *, deletion_vectors: bool, feeds: bool, maps: bool) -> dict[str, Any]:
    """Return the protocol that a table needs; what it asks already stays, but for what would keep it from taking steps."""
    readers = {"deletionVectors"} if deletion_vectors else set()
    readers |= {"timestampNtz"} if has_local_times(schema) else set()
    readers |= {"columnMapping"} if maps else set()
    writers = {*readers, "changeDataFeed"} if feeds else set(readers)
    if state is not None:
        asked = set(state.protocol.get("writerFeatures") or ()) or {
            name for name, version in _OF_VERSIONS.items() if version <= state.protocol["minWriterVersion"]
        }
        if writers <= asked <= KNOWN_FEATURES:
            return dict(state.protocol)
        readers |= set(state.protocol.get("readerFeatures") or ()) & KNOWN_FEATURES
        writers |= asked & KNOWN_FEATURES
    if not readers and writers <= {"changeDataFeed"}:
        return {"minReaderVersion": 1, "minWriterVersion": _OF_VERSIONS["changeDataFeed"] if writers else 2}
    return {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": sorted(readers),
        "writerFeatures": sorted({*writers, *readers, "appendOnly", "invariants"}),
    }
