"""Input rows and what is wrong with them: any DataFrame in, one shape out, nothing lost.

```
 input row     key, value [, headers, timestamp, partition, offset]         what people send (DESIGN §10)
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

from compaction.errors import InvalidRecords
from storage.partitioners import partition_of
from storage.plan_values import by_partition, looked_up
from storage.schema import HEADERS_TYPE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

    from compaction.config import TopicConfig

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
    key, value = F.col("key").cast("binary"), F.col("value").cast("binary")
    if shape.has_producers:
        rows = rows.withColumns(
            {name: (F.col(name) if name in shape.columns else F.lit(None)).try_cast(kind) for name, kind in _PRODUCER.items()}
        ).withColumn("transactional", F.coalesce("transactional", F.col("control").isNotNull()))
    headers = (F.col("headers") if "headers" in shape.columns else F.lit(None)).cast(HEADERS_TYPE)
    stamp_ms = _timestamp_ms(rows, shape, now_ms)
    given = F.col("partition").try_cast("int") if "partition" in shape.columns else None
    hashed = partition_of(key, value, partitions=partitions, partitioner=config.partitioner)
    partition = hashed if given is None else given if shape.has_offsets else F.when(F.col("partition").isNull(), hashed).otherwise(given)
    log_end = by_partition(log_end_offsets, partition)
    malformed = F.col(MALFORMED) if MALFORMED in rows.columns else F.lit(None).cast("string")
    size = record_bytes(key, value, headers) if "headers" in shape.columns else record_bytes(key, value, None)
    reason = _reasons(
        {
            Reason.MALFORMED: (malformed.isNotNull(), F.lit("the row could not be parsed with the schema of its source")),
            **(
                {Reason.KEYLESS: (key.isNull() & _is_data(shape), F.lit(f"key is null, and {topic} is compacted: each record needs a key"))}
                if config.compacted
                else {}
            ),
            **(
                {
                    Reason.UNKNOWN_PARTITION: (
                        partition.isNull() | ~partition.between(0, partitions - 1),
                        F.format_string(f"partition %s: allowed is 0 to {partitions - 1}", F.col("partition").cast("string")),
                    )
                }
                if given is not None
                else {}
            ),
            **(
                {
                    Reason.NO_OFFSET: (
                        F.col("offset").isNull() | (F.col("offset") < 0),
                        F.format_string("offset %s: all rows or none carry an offset of 0 or more", F.col("offset").cast("string")),
                    ),
                    Reason.BELOW_LOG_END: (
                        F.col("offset") < log_end,
                        F.format_string("offset %d: the log of the partition ends at %d, and offsets ascend", F.col("offset"), log_end),
                    ),
                }
                if shape.has_offsets
                else {}
            ),
            **(_producer_rules(rows) if shape.has_producers else {}),
            Reason.OVERSIZED: (
                size > config.max_message_bytes,
                F.format_string(f"%d bytes of key, value and headers: allowed are {config.max_message_bytes} (max.message.bytes)", size),
            ),
            **(
                {
                    Reason.NEGATIVE_TIMESTAMP: (
                        stamp_ms < 0,
                        F.format_string("timestamp %d ms: allowed is 0 (1970-01-01) or later", stamp_ms),
                    ),
                    Reason.TIMESTAMP_OUT_OF_RANGE: (
                        stamp_ms > LAST_TIMESTAMP_MS,
                        F.format_string(f"timestamp %d ms: allowed is up to {LAST_TIMESTAMP_MS} (the year 2262)", stamp_ms),
                    ),
                }
                if "timestamp" in shape.columns
                else {}
            ),
        }
    )
    order = [F.col(name) for name in shape.order]
    return rows.select(
        partition.alias("partition"),
        (F.col("offset").cast("bigint") if shape.has_offsets else F.lit(None).cast("bigint")).alias("offset"),
        F.timestamp_millis(F.greatest(F.least(stamp_ms, F.lit(LAST_TIMESTAMP_MS)), F.lit(-1))).alias("timestamp"),  # refused ones overflow
        key.alias("key"),
        value.alias("value"),
        headers.alias("headers"),
        *(_PRODUCER if shape.has_producers else ()),
        *order,
        F.monotonically_increasing_id().alias(f"{ORDER_PREFIX}~position"),
        reason[0].alias(REASON),
        reason[1].alias(DETAIL),
        malformed.alias(RAW),
    )


def _is_data(shape: Shape) -> Column:
    return F.col("control").isNull() if shape.has_producers else F.lit(True)


def _producer_rules(rows: DataFrame) -> dict[Reason, tuple[Column, Column]]:
    """Return the rule of the producer's columns: whole, in range, and a marker is nothing but a marker."""
    producer, epoch, sequence, control = F.col("producer_id"), F.col("producer_epoch"), F.col("sequence"), F.col("control")
    alone = producer.isNull() & (epoch.isNotNull() | sequence.isNotNull() | control.isNotNull() | F.col("transactional"))
    wrong = (producer < 0) | epoch.isNull() | (epoch < 0) | (epoch > MAX_EPOCH)
    unknown = control.isNotNull() & ~control.isin("COMMIT", "ABORT")
    marker = control.isNotNull() & (sequence.isNotNull() | F.col("key").isNotNull() | F.col("value").isNotNull())
    placeless = control.isNotNull() & (F.col("partition").isNull() if "partition" in rows.columns else F.lit(True))
    unnumbered = control.isNull() & (sequence.isNull() | (sequence < 0))
    holds = alone | (producer.isNotNull() & (wrong | unknown | marker | placeless | unnumbered))
    shown = F.format_string(
        "producer_id %s, producer_epoch %s, sequence %s, control %s: allowed are all null, or an id of 0 or more with an epoch of 0 to "
        f"{MAX_EPOCH} and, for data, a sequence of 0 or more, for a marker COMMIT or ABORT with a partition and no sequence, key or value",
        *(column.cast("string") for column in (producer, epoch, sequence, control)),
    )
    return {Reason.INVALID_PRODUCER: (holds, shown)}


def record_bytes(key: Column, value: Column, headers: Column | None) -> Column:
    """Return the size of a record as `max.message.bytes` and the split of a segment count it: key, value and headers, uncompressed."""
    total = F.coalesce(F.octet_length(key), F.lit(0)) + F.coalesce(F.octet_length(value), F.lit(0))
    if headers is None:
        return total

    def add(sum_bytes: Column, header: Column) -> Column:
        return sum_bytes + F.coalesce(F.octet_length(header["key"]), F.lit(0)) + F.coalesce(F.octet_length(header["value"]), F.lit(0))

    return total + F.coalesce(F.aggregate(headers, F.lit(0), add), F.lit(0))


def _timestamp_ms(rows: DataFrame, shape: Shape, now_ms: int) -> Column:
    now = F.expr(looked_up(f"{now_ms}L", at="octet_length(key)"))
    if "timestamp" not in shape.columns:
        return now
    column = F.col("timestamp")
    given = F.unix_millis(column) if isinstance(rows.schema["timestamp"].dataType, T.TimestampType) else column.cast("bigint")
    return F.coalesce(given, now)


def _reasons(rules: dict[Reason, tuple[Column, Column]]) -> tuple[Column, Column]:
    """Return (reason, detail) of the first rule that holds, both null when none does."""
    reason: Column | None = None
    detail: Column | None = None
    for name, (holds, text) in rules.items():
        reason = F.when(holds, name.value) if reason is None else reason.when(holds, name.value)
        detail = F.when(holds, text) if detail is None else detail.when(holds, text)
    assert reason is not None and detail is not None  # noqa: S101, PT018  there is always a rule
    return reason, detail
