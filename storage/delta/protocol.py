"""What a table asks of those who write to it, by Delta's protocol, and which of it lastword does.

lastword gives its tables reader version 1 and writer version 2. Another writer may ask for more. What is on the list asks nothing of a
commit that adds and removes whole files, and lastword goes on. Anything else stops the commit: one that does not do what is asked damages
the table for those who rely on it. The list is that of delta-rs 1.6, which made these commits before (ADR 0046).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lastword.compaction.errors import CorruptLog

if TYPE_CHECKING:
    from deltalake import DeltaTable

#: Features of writer version 7. Rows are not checked against constraints, as before: they come from the log's own writers.
_FEATURES: Final = frozenset(
    [
        *("appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns", "columnMapping", "deletionVectors"),
        *("timestampNtz", "v2Checkpoint", "variantType", "variantType-preview"),
    ]
)
#: Version 6 asks for identity columns; the versions before it for features of the list.
_MAX_LISTED: Final = 5
_BY_FEATURES: Final = 7


def unknown_features(table: DeltaTable) -> tuple[str, ...]:
    """Return what a table asks of its writers and lastword does not do, sorted; nothing for a table that it may write to."""
    protocol = table.protocol()
    version = protocol.min_writer_version
    if version == _BY_FEATURES:
        return tuple(sorted({*(protocol.writer_features or ()), *(protocol.reader_features or ())} - _FEATURES))
    return () if version <= _MAX_LISTED else (f"writer version {version}",)


def check_features(location: str, features: tuple[str, ...]) -> None:
    """Raise `CorruptLog` for what `unknown_features` returns of a table."""
    if features:
        message = (
            f"{location}: another writer changed the table's protocol: it asks for {', '.join(features)}, which lastword does not do. "
            "Nothing of this commit was written. Take it back by ALTER TABLE … DROP FEATURE"
        )
        raise CorruptLog(message)


def check_removes(table: DeltaTable) -> None:
    """Raise `CorruptLog` for a table from which no row may be removed."""
    if table.metadata().configuration.get("delta.appendOnly", "").lower() == "true":
        message = f"{table.table_uri}: another writer set delta.appendOnly: no row can leave it. Nothing of this commit was written"
        raise CorruptLog(message)
