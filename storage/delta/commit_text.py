r"""The text of a commit, as Delta's protocol writes it: an action a line.

```
 {"commitInfo":{…,"userMetadata":"{…,\"token\":\"…\"}"}}     who wrote it, and what makes it recognisable
 {"protocol":{…}}  {"metaData":{…}}                          the first commit of a table alone
 {"remove":{…}}  {"add":{…}}                                 files that leave and come
 {"txn":{"appId":"lastword-append","version":7}}             what the next writer compares and sets
```
"""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from lastword.storage.files.row_files import installed_version

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltalake import Schema

    from lastword.storage.delta.history import CommitMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class Add:
    """A file that comes into the table; `stats` are Delta's, as JSON text. `data_change`: it has rows that the table had not before."""

    path: str
    size_bytes: int
    stats: str
    data_change: bool
    partition_values: Mapping[str, str | None]
    #: What the protocol calls the descriptor of a deletion vector: which rows of the file are deleted.
    deletion_vector: Mapping[str, Any] | None = None

    def action(self, time_ms: int) -> dict[str, Any]:
        """Return the action of the commit."""
        return {
            "add": {
                "path": _encode_path(self.path),
                "partitionValues": dict(self.partition_values),
                "size": self.size_bytes,
                "modificationTime": time_ms,
                "dataChange": self.data_change,
                "stats": self.stats,
                **_vector_field(self.deletion_vector),
            }
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Remove:
    """A file that leaves the table. `data_change`: rows leave with it that no other file has."""

    path: str
    size_bytes: int
    data_change: bool
    partition_values: Mapping[str, str | None]
    #: As in `Add`: that of the file as it was.
    deletion_vector: Mapping[str, Any] | None = None

    def action(self, time_ms: int) -> dict[str, Any]:
        """Return the action of the commit."""
        return {
            "remove": {
                "path": _encode_path(self.path),
                "dataChange": self.data_change,
                "deletionTimestamp": time_ms,
                "extendedFileMetadata": True,
                "partitionValues": dict(self.partition_values),
                "size": self.size_bytes,
                **_vector_field(self.deletion_vector),
            }
        }


def _vector_field(vector: Mapping[str, Any] | None) -> dict[str, Any]:
    return {} if vector is None else {"deletionVector": dict(vector)}


def action_time_ms() -> int:
    """Return when a file comes or leaves, in milliseconds by the wall clock, as Delta's actions say it: VACUUM goes by it."""
    return int(time.time() * 1000)


def commit_text(
    files: Sequence[Add | Remove],
    *,
    metadata: CommitMetadata | None,
    time_ms: int,
    transactions: Mapping[str, int],
    table: Sequence[Mapping[str, Any]] = (),
    operation: str = "",
) -> bytes:
    """Return the text of a commit.

    `transactions` are the versions of application ids that it sets, `table` the `first_actions` of a new table or later ones of these.
    `operation` is Delta's name of what was done; empty: CREATE TABLE with `table`, else WRITE.
    """
    named = operation or ("CREATE TABLE" if table else "WRITE")
    info = {
        "timestamp": time_ms,
        "operation": named,
        "operationParameters": {"mode": "Append", "partitionBy": "[]"} if named == "WRITE" else {},
        "engineInfo": _engine(),
        **({} if metadata is None else {"userMetadata": metadata.to_json()}),
    }
    actions = [
        {"commitInfo": info},
        *table,
        *(file.action(time_ms) for file in files),
        *({"txn": {"appId": name, "version": number}} for name, number in transactions.items()),
    ]
    return b"".join(json.dumps(action, separators=(",", ":")).encode() + b"\n" for action in actions)


def first_actions(
    columns: Schema, properties: Mapping[str, str], *, partition_by: Sequence[str] = (), time_ms: int
) -> list[dict[str, Any]]:
    """Return the actions that make a table. The versions of the protocol are properties, as in `CREATE TABLE`."""
    protocol = {
        "minReaderVersion": int(properties["delta.minReaderVersion"]),
        "minWriterVersion": int(properties["delta.minWriterVersion"]),
    }
    metadata = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": columns.to_json(),
        "partitionColumns": list(partition_by),
        "configuration": dict(properties),
        "createdTime": time_ms,
    }
    return [{"protocol": protocol}, {"metaData": metadata}]


def _encode_path(path: str) -> str:
    """Return the path of a file as the protocol asks for it: URL-encoded. What lastword calls its files is the same either way."""
    return quote(path, safe="/=")


def _engine() -> str:
    """Return how commits name their writer."""
    version = installed_version()
    return "lastword" if version is None else f"lastword-{version}"
