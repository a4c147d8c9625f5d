"""Input rows and what is wrong with them: any DataFrame in, one shape out, nothing lost.

```
 input row     key, value [, headers, timestamp, partition, offset]         what people send
     │ shape_of: are these columns, with these types?                        an error before anything is read
     ▼
 checked row   partition, offset, timestamp, key, value, headers,            what the log takes
               __order_*  source order                                       explicit, or the DataFrame's own
               __reason, __detail                                            null, or why the log may not take it
               __raw                                                         the text of a row that could not be parsed
```

A row is refused for the first reason that holds. No row is looked at by Python: all of it is Spark expressions.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F
from pyspark.sql import types as T

from lastword.compaction.errors import InvalidRecords
from lastword.storage.append.partitioners import with_hash
from lastword.storage.delta.plan_values import bigints, looked_up
from lastword.storage.files.schema import HEADERS_TYPE, OFFSET_BITS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

    from lastword.compaction.config.topic_config import TopicConfig

#: A source puts its own order here, as many columns as it needs, compared from left to right.
ORDER_PREFIX: Final = "__order_"
#: A source puts the text of a row that it could not parse here.
MALFORMED: Final = "__malformed"
REASON: Final = "__reason"
DETAIL: Final = "__detail"
RAW: Final = "__raw"

#: Columns of Spark's Kafka source that say nothing about the record.
_IGNORED: Final = ("topic", "timestampType")
#: delta-rs' statistics overflow beyond this instant, so a later timestamp would make the table unreadable for it.
LAST_TIMESTAMP_MS: Final = 9_223_372_036_854
#: The last offset that a row may bring: partition and offset share one long (`OFFSET_BITS`), with room for as many offsets after it.
LAST_OFFSET: Final = 2 ** (OFFSET_BITS - 1) - 1


#: Epochs are 16-bit in Kafka.
MAX_EPOCH: Final = 32_767


class Reason(str, Enum):
    """Why a row is refused; the value stands in `dead_letters.reason`."""

    MALFORMED = "malformed"
    KEYLESS = "keyless"
    UNKNOWN_PARTITION = "unknown_partition"
    NO_OFFSET = "no_offset"
    BELOW_LOG_END = "below_log_end"
    OVERSIZED = "oversized"
    INVALID_PRODUCER = "invalid_producer"
    NEGATIVE_TIMESTAMP = "negative_timestamp"
    TIMESTAMP_OUT_OF_RANGE = "timestamp_out_of_range"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Which of the optional columns an input has, and the names of its order columns."""

    columns: frozenset[str]
    order: tuple[str, ...]

    @property
    def has_producers(self) -> bool:
        """Tell whether the rows may carry their producer (idempotent, or transactional)."""
        return "producer_id" in self.columns

    @property
    def has_offsets(self) -> bool:
        """Tell whether the rows bring their own offsets (a mirror, or a log restored from elsewhere)."""
        return "offset" in self.columns


_BYTES: Final = (T.BinaryType, T.StringType)
_WHOLE: Final = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_ALLOWED: Final[dict[str, tuple[tuple[type[T.DataType], ...], str]]] = {
    "key": (_BYTES, "binary or string (UTF-8)"),
    "value": (_BYTES, "binary or string (UTF-8); null is a tombstone"),
    "headers": ((T.ArrayType,), HEADERS_TYPE),
    "timestamp": ((T.TimestampType, T.LongType), "timestamp, or bigint milliseconds since the epoch"),
    "partition": (_WHOLE, "int"),
    "offset": (_WHOLE, "bigint"),
    "producer_id": (_WHOLE, "bigint"),
    "producer_epoch": (_WHOLE, "int"),
    "sequence": (_WHOLE, "int"),
    "transactional": ((T.BooleanType,), "boolean"),
    "control": ((T.StringType,), "string: COMMIT or ABORT; null for data"),
}
_PRODUCER: Final = {"producer_id": "bigint", "producer_epoch": "int", "sequence": "int", "transactional": "boolean", "control": "string"}


def shape_of(schema: T.StructType, *, topic: str) -> Shape:
    """Return the shape of an input; raise `InvalidRecords` naming every column that is missing, unknown or of a wrong type."""
    wrong: list[str] = []
    types = {field.name: field.dataType for field in schema.fields}
    wrong += [f"column {name} is missing: {_ALLOWED[name][1]}" for name in ("key", "value") if name not in types]
    order = tuple(sorted(name for name in types if name.startswith(ORDER_PREFIX)))
    for name, data_type in types.items():
        if name in order or name == MALFORMED or name in _IGNORED:
            continue
        if name not in _ALLOWED:
            wrong.append(f"column {name} is unknown: allowed are {', '.join(_ALLOWED)}")
        elif isinstance(data_type, T.NullType):
            continue  # `lit(None)`: a column of nulls
        elif not isinstance(data_type, _ALLOWED[name][0]) or (name == "headers" and data_type.simpleString() != HEADERS_TYPE):
            wrong.append(f"column {name} is {data_type.simpleString()}: allowed is {_ALLOWED[name][1]}")
    if "offset" in types and "partition" not in types:
        wrong.append("column offset needs a column partition beside it: an offset is a position in a partition")
    lone = sorted(set(types) & {"producer_epoch", "sequence", "transactional", "control"})
    if lone and "producer_id" not in types:
        wrong.append(f"column {lone[0]} needs a column producer_id beside it: it belongs to a producer")
    if "producer_id" in types and "producer_epoch" not in types:
        wrong.append("column producer_id needs a column producer_epoch beside it")
    if wrong:
        message = f"topic {topic} cannot take these rows:\n" + "\n".join(f"  {line}" for line in wrong)
        raise InvalidRecords(message)
    return Shape(columns=frozenset(types) & frozenset(_ALLOWED), order=order)


def checked(rows: DataFrame, *, topic: str, config: TopicConfig, partitions: int, log_end_offsets: Sequence[int], now_ms: int) -> DataFrame:
    """Return `rows` as checked rows: typed, partitioned, in explicit source order, each with the reason why it is refused or null.

    Columns: partition int, offset bigint (null: to be given), timestamp timestamp (ms precision; `now_ms` where the source has none),
    key binary, value binary, headers, the order columns, __reason string, __detail string, __raw string.
    """
    shape = shape_of(rows.schema, topic=topic)
    key, value = "CAST(key AS BINARY)", "CAST(value AS BINARY)"
    if shape.has_producers:
        rows = rows.withColumns(
            {name: (F.col(name) if name in shape.columns else F.lit(None)).try_cast(kind) for name, kind in _PRODUCER.items()}
        ).withColumn("transactional", F.coalesce("transactional", F.col("control").isNotNull()))
    given = "try_cast(partition AS INT)"
    if shape.has_offsets:
        partition, misplaced = given, f"{given} IS NULL OR {given} NOT BETWEEN 0 AND {partitions - 1}"
    else:
        rows, partition = with_hash(rows, key, value, partitions=partitions, partitioner=config.partitioner)
        misplaced = f"partition IS NOT NULL AND ({given} IS NULL OR {given} NOT BETWEEN 0 AND {partitions - 1})"
        if "partition" in shape.columns:
            partition = f"CASE WHEN partition IS NULL THEN {partition} ELSE {given} END"
    headers = f"CAST({'headers' if 'headers' in shape.columns else 'NULL'} AS {HEADERS_TYPE})"
    malformed = MALFORMED if MALFORMED in rows.columns else "CAST(NULL AS STRING)"
    size = record_bytes(key, value, headers if "headers" in shape.columns else None)
    stamp_ms = _timestamp_ms(rows, shape, now_ms)
    reason, detail = _reasons(
        {
            Reason.MALFORMED: (f"{malformed} IS NOT NULL", "'the row could not be parsed with the schema of its source'"),
            **(
                {
                    Reason.KEYLESS: (
                        "key IS NULL AND control IS NULL" if shape.has_producers else "key IS NULL",
                        f"'key is null, and {topic} is compacted: each record needs a key'",
                    )
                }
                if config.compacted
                else {}
            ),
            **(
                {
                    Reason.UNKNOWN_PARTITION: (
                        misplaced,
                        f"format_string('partition %s: allowed is 0 to {partitions - 1}', CAST(partition AS STRING))",
                    )
                }
                if "partition" in shape.columns
                else {}
            ),
            **(_offset_rules(f"get({bigints(log_end_offsets)}, {partition})") if shape.has_offsets else {}),
            **(_producer_rule(shape) if shape.has_producers else {}),
            Reason.OVERSIZED: (
                f"{size} > {config.max_message_bytes}",
                f"format_string('%d bytes of key, value and headers: allowed are {config.max_message_bytes} (max.message.bytes)', {size})",
            ),
            **(_timestamp_rules(stamp_ms) if "timestamp" in shape.columns else {}),
        }
    )
    return rows.selectExpr(
        f"{partition} AS partition",
        f"CAST({'offset' if shape.has_offsets else 'NULL'} AS BIGINT) AS offset",
        f"timestamp_millis(greatest(least({stamp_ms}, {LAST_TIMESTAMP_MS}L), -1L)) AS timestamp",  # refused ones overflow
        f"{key} AS key",
        f"{value} AS value",
        f"{headers} AS headers",
        *(_PRODUCER if shape.has_producers else ()),
        *(f"`{name}`" for name in shape.order),
        f"monotonically_increasing_id() AS `{ORDER_PREFIX}~position`",
        f"{reason} AS {REASON}",
        f"{detail} AS {DETAIL}",
        f"{malformed} AS {RAW}",
    )


def _offset_rules(log_end: str) -> dict[Reason, tuple[str, str]]:
    """Return the rules of offsets that rows bring; `log_end` is the SQL of where the log of their partition ends."""
    return {
        Reason.NO_OFFSET: (
            f"offset IS NULL OR offset NOT BETWEEN 0 AND {LAST_OFFSET}",
            f"format_string('offset %s: all rows or none carry an offset of 0 to {LAST_OFFSET}', CAST(offset AS STRING))",
        ),
        Reason.BELOW_LOG_END: (
            f"offset < {log_end}",
            f"format_string('offset %d: the log of the partition ends at %d, and offsets ascend', offset, {log_end})",
        ),
    }


def _producer_rule(shape: Shape) -> dict[Reason, tuple[str, str]]:
    """Return the rule of the producer's columns: whole, in range, and a marker is nothing but a marker."""
    alone = "producer_id IS NULL AND (producer_epoch IS NOT NULL OR sequence IS NOT NULL OR control IS NOT NULL OR transactional)"
    wrong = f"producer_id < 0 OR producer_epoch IS NULL OR producer_epoch NOT BETWEEN 0 AND {MAX_EPOCH}"
    marker = "control NOT IN ('COMMIT', 'ABORT') OR sequence IS NOT NULL OR key IS NOT NULL OR value IS NOT NULL"
    placeless = "partition IS NULL" if "partition" in shape.columns else "true"
    ended = f"control IS NOT NULL AND ({marker} OR {placeless})"
    unnumbered = "control IS NULL AND (sequence IS NULL OR sequence < 0)"
    shown = (
        "format_string('producer_id %s, producer_epoch %s, sequence %s, control %s: allowed are all null, or an id of 0 or more with an "
        f"epoch of 0 to {MAX_EPOCH} and, for data, a sequence of 0 or more, for a marker COMMIT or ABORT with a partition and no sequence, "
        "key or value', CAST(producer_id AS STRING), CAST(producer_epoch AS STRING), CAST(sequence AS STRING), control)"
    )
    return {Reason.INVALID_PRODUCER: (f"({alone}) OR (producer_id IS NOT NULL AND ({wrong} OR ({ended}) OR ({unnumbered})))", shown)}


def _timestamp_rules(stamp_ms: str) -> dict[Reason, tuple[str, str]]:
    """Return the rules of record times that rows bring, in milliseconds."""
    return {
        Reason.NEGATIVE_TIMESTAMP: (
            f"{stamp_ms} < 0",
            f"format_string('timestamp %d ms: allowed is 0 (1970-01-01) or later', {stamp_ms})",
        ),
        Reason.TIMESTAMP_OUT_OF_RANGE: (
            f"{stamp_ms} > {LAST_TIMESTAMP_MS}",
            f"format_string('timestamp %d ms: allowed is up to {LAST_TIMESTAMP_MS} (the year 2262)', {stamp_ms})",
        ),
    }


def record_bytes(key: str, value: str, headers: str | None) -> str:
    """Return the SQL of a record's size as `max.message.bytes` and the split of a segment count it: key, value, headers, uncompressed."""
    total = f"coalesce(octet_length({key}), 0) + coalesce(octet_length({value}), 0)"
    if headers is None:
        return f"({total})"
    header = "coalesce(octet_length(header.key), 0) + coalesce(octet_length(header.value), 0)"
    return f"({total} + coalesce(aggregate({headers}, 0, (sum_bytes, header) -> sum_bytes + {header}), 0))"


def _timestamp_ms(rows: DataFrame, shape: Shape, now_ms: int) -> str:
    now = looked_up(f"{now_ms}L", at="octet_length(key)")
    if "timestamp" not in shape.columns:
        return now
    timed = isinstance(rows.schema["timestamp"].dataType, T.TimestampType)
    return f"coalesce({'unix_millis(timestamp)' if timed else 'CAST(timestamp AS BIGINT)'}, {now})"


def _reasons(rules: Mapping[Reason, tuple[str, str]]) -> tuple[str, str]:
    """Return the SQL of (reason, detail) of the first rule that holds, both null when none does; a rule is a condition and a text."""
    reason = " ".join(f"WHEN {holds} THEN '{name.value}'" for name, (holds, _) in rules.items())
    detail = " ".join(f"WHEN {holds} THEN {text}" for holds, text in rules.values())
    return f"CASE {reason} END", f"CASE {detail} END"
