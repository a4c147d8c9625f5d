"""The tables of a topic: their columns, their properties, and nothing that moves.

```
<log.dir>/<topic>/
  log/            records      Delta, partitioned by (partition, segment, slice)
  ledger/         decisions    Delta, append-only
  dead_letters/   refusals     Delta, append-only
```

The metadata of `log/` is fixed at creation: an ALTER, even of a custom property, makes every append and swap in flight fail. What may
change (the topic's configuration) is therefore a row in the ledger. Readers need Delta reader protocol 1 and no reader feature.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from deltalake import Field, Schema
from deltalake.schema import ArrayType, PrimitiveType, StructType

from lastword.compaction.rows.input_columns import HEADERS, TIMESTAMP
from lastword.compaction.rows.validation import LAST_OFFSET

_LONG = PrimitiveType("long")
_INT = PrimitiveType("integer")
_STRING = PrimitiveType("string")
_BINARY = PrimitiveType("binary")
_TIMESTAMP = PrimitiveType("timestamp")
_HEADERS = ArrayType(StructType([Field("key", _STRING), Field("value", _BINARY)]), contains_null=True)

#: Where a record stands: the Delta partition columns of `log/`.
PLACE_COLUMNS: Final = ("partition", "segment", "slice")

#: `partition << OFFSET_BITS | offset` identifies a row of a topic in one long.
OFFSET_BITS: Final = LAST_OFFSET.bit_length() + 1

#: What names a transaction of a partition: its marker carries them as its records do.
TRANSACTION: Final = ("partition", "producer_id", "txn_first_offset")

#: What a record is, in the order of the log table (docs/how-it-works.md#on-storage).
LOG_FIELDS: Final = (
    Field("partition", _INT),
    Field("segment", _LONG),
    Field("slice", _LONG),
    Field("offset", _LONG),
    Field("timestamp", _TIMESTAMP),
    Field("key", _BINARY),
    Field("value", _BINARY),
    Field("headers", _HEADERS),
    Field("producer_id", _LONG),
    Field("producer_epoch", _INT),
    Field("sequence", _INT),
    Field("txn_first_offset", _LONG),
    Field("control", _STRING),
    Field("appended_at", _TIMESTAMP),
    Field("delete_horizon", _TIMESTAMP),
    Field("source_sequence", _STRING),
)
LOG_COLUMNS: Final = tuple(field.name for field in LOG_FIELDS)

#: The columns of a data file, as Arrow: those of the table without the ones that name its folders.
DATA_SCHEMA: Final = pa.schema(
    [
        ("offset", pa.int64()),
        ("timestamp", TIMESTAMP),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("producer_id", pa.int64()),
        ("producer_epoch", pa.int32()),
        ("sequence", pa.int32()),
        ("txn_first_offset", pa.int64()),
        ("control", pa.string()),
        ("appended_at", TIMESTAMP),
        ("delete_horizon", TIMESTAMP),
        ("source_sequence", pa.string()),
    ]
)
#: Columns that the topics of an older version do not have: null there.
ADDED_COLUMNS: Final = ("source_sequence",)

#: What the Delta log says of each data file: all that the control plane asks for; never of key or value, which do not belong there.
STATISTICS_COLUMNS: Final = ("offset", "timestamp", "appended_at", "delete_horizon", "producer_id", "source_sequence")

#: The columns that `records()` shows: all but the two that only say in which file a record lies.
RECORD_COLUMNS: Final = tuple(name for name in LOG_COLUMNS if name not in {"segment", "slice"})

#: Spark's type of `headers`, the same as that of its Kafka source.
HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"

DEAD_LETTER_FIELDS: Final = (
    Field("refused_at", _TIMESTAMP),
    Field("source", _STRING),
    Field("query_id", _STRING),
    Field("batch_id", _LONG),
    Field("reason", _STRING),
    Field("detail", _STRING),
    Field("partition", _INT),
    Field("offset", _LONG),
    Field("timestamp", _TIMESTAMP),
    Field("key", _BINARY),
    Field("value", _BINARY),
    Field("headers", _HEADERS),
    Field("raw", _STRING),
    # The key whose last record is stale by this row, as the log has it, and where the row stands in its source. Tables of an older version
    # do not have these two columns; their files do, from now on.
    Field("record_key", _BINARY),
    Field("source_sequence", _STRING),
)

LEDGER_FIELDS: Final = (
    Field("sequence", _LONG),
    Field("kind", _STRING),
    Field("partition", _INT),
    Field("name", _STRING),
    Field("offset", _LONG),
    Field("table_version", _LONG),
    Field("time", _TIMESTAMP),
    Field("details", _STRING),
)

#: Commits of the log after which a checkpoint of the Delta log is written, where no service does it.
CHECKPOINT_INTERVAL: Final = 500

_LOG_PROPERTIES: Final = {
    "delta.dataSkippingStatsColumns": ",".join(STATISTICS_COLUMNS),
    # The commit that writes one takes a second longer; the service writes them more often, beside the appends
    # (`lastword.storage.log.upkeep.checkpoint`, ADR 0024).
    "delta.checkpointInterval": str(CHECKPOINT_INTERVAL),
    "delta.logRetentionDuration": "interval 7 days",
    "delta.minReaderVersion": "1",
    "delta.minWriterVersion": "2",
}
_SMALL_TABLE_PROPERTIES: Final = {
    "delta.checkpointInterval": "100",
    "delta.logRetentionDuration": "interval 7 days",
    "delta.minReaderVersion": "1",
    "delta.minWriterVersion": "2",
}

#: Delta would write the least and the greatest of the refused texts into its log, where no erasure reaches them.
_DEAD_LETTER_PROPERTIES: Final = {**_SMALL_TABLE_PROPERTIES, "delta.dataSkippingStatsColumns": "refused_at,batch_id"}


def log_schema() -> Schema:
    """Return the Delta schema of `log/`."""
    return Schema(list(LOG_FIELDS))


def dead_letter_schema() -> Schema:
    """Return the Delta schema of `dead_letters/`."""
    return Schema(list(DEAD_LETTER_FIELDS))


def dead_letter_arrow_schema() -> pa.Schema:
    """Return the Arrow schema of `dead_letters/`."""
    return pa.schema(dead_letter_schema().to_arrow())


def ledger_schema() -> Schema:
    """Return the Delta schema of `ledger/`."""
    return Schema(list(LEDGER_FIELDS))


def log_properties() -> dict[str, str]:
    """Return the table properties of `log/`, fixed at creation."""
    return dict(_LOG_PROPERTIES)


def small_table_properties() -> dict[str, str]:
    """Return the table properties of `ledger/`."""
    return dict(_SMALL_TABLE_PROPERTIES)


def dead_letter_properties() -> dict[str, str]:
    """Return the table properties of `dead_letters/`."""
    return dict(_DEAD_LETTER_PROPERTIES)
