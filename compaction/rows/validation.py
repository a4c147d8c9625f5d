"""Input rows and what is wrong with them: Arrow batches in, one shape out, no row lost.

```
 input row       key, value [, headers, timestamp, partition, offset, producer…]   what people send
     │ shape_of: are these columns, with these types?                              an error before a row is read
     ▼
 validated row   partition, offset, timestamp, key, value, headers, producer…      what the log takes
                 __order_*                                                         the source's order, where it has one
                 reason, detail                                                    null, or why the log does not take the row
                 raw                                                               the text of a row that could not be parsed
```

A row is refused for the first reason that applies. Rules: docs/semantics.md#A.14, docs/semantics.md#A.15; Kafka's LogValidator refuses the
whole record batch, as a batch call does here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from lastword.compaction.errors import InvalidRecords
from lastword.compaction.order.sequences import sequence_texts
from lastword.compaction.rows.input_columns import (
    ALERT,
    COLUMNS,
    EVENT,
    HEADERS,
    MALFORMED,
    RECORD_KEY,
    REFUSAL,
    SOURCE_OFFSET,
    SOURCE_PARTITION,
    SOURCE_TIME,
    TIMESTAMP,
    UNCHANGED,
    cast_column,
    plain_batch,
)
from lastword.compaction.rows.partitioners import partitions_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from lastword.compaction.rows.input_columns import Shape

    Mask = NDArray[np.bool_]

#: delta-rs' statistics overflow beyond this instant, so a later timestamp would make the table unreadable for it.
LAST_TIMESTAMP_MS: Final = 9_223_372_036_854
#: The last offset that a row may bring: partition and offset share one long, with room for as many offsets after it.
LAST_OFFSET: Final = 2**47 - 1
#: Epochs are 16-bit in Kafka.
MAX_EPOCH: Final = 32_767
_PRODUCER: Final = {
    "producer_id": pa.int64(),
    "producer_epoch": pa.int32(),
    "sequence": pa.int32(),
    "transactional": pa.bool_(),
    "control": pa.string(),
}
_MAX_INT: Final = 2**31 - 1
_SHOWN_CHARACTERS: Final = 80


class Reason(str, Enum):
    """Why a row is refused; the value stands in `dead_letters.reason`."""

    MALFORMED = "malformed"
    KEYLESS = "keyless"
    UNKNOWN_PARTITION = "unknown_partition"
    NO_OFFSET = "no_offset"
    BELOW_LOG_END = "below_log_end"
    INVALID_PRODUCER = "invalid_producer"
    OVERSIZED = "oversized"
    NEGATIVE_TIMESTAMP = "negative_timestamp"
    TIMESTAMP_OUT_OF_RANGE = "timestamp_out_of_range"
    NO_SEQUENCE = "no_sequence"
    NO_EVENT = "no_event"
    #: A whole file that a source could not read; none of its rows is in the log.
    CORRUPT_FILE = "corrupt_file"
    #: The same, of a source that wants the query to end then (`on.corrupt.file = fail`): no dead letter.
    STOPPING_FILE = "stopping_file"
    #: A condition or another expression of a source that cannot be computed for the row.
    FAILED_EXPRESSION = "failed_expression"
    #: Not refused: an event of the source that is in the log. It is counted.
    KNOWN_EVENT = "known_event"
    TRUNCATE = "truncate"
    #: Not refused: an event that is no row, such as a heartbeat. It is counted.
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRules:
    """What a topic takes at the moment of an append: its settings, its partitions, and where their logs end."""

    topic: str
    shape: Shape
    is_compacted: bool
    partitioner: str
    max_message_bytes: int
    log_end_offsets: tuple[int, ...]
    now_ms: int
    #: Of change events from a source with offsets: the last offset of each of its partitions that is in the log.
    source_offsets: Mapping[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Validated:
    """A batch of validated rows: `code` is 0 for a row that the log takes, else that of its `Reason`; `details` are by row number.

    Columns of `rows`: partition int32, offset int64 (null: to be given), timestamp (`now_ms` where the source has none), key and value
    binary, headers, the producer's columns and source_sequence (string) if the input has them, the order columns, and raw string.
    """

    rows: pa.RecordBatch
    code: NDArray[np.int8]
    details: Mapping[int, str]

    def reason(self, row: int) -> Reason:
        """Return why a refused row is refused."""
        return _REASONS[int(self.code[row]) - 1]


_REASONS: Final = tuple(Reason)
_CODES: Final = {reason: number + 1 for number, reason in enumerate(_REASONS)}


def validate(batch: pa.RecordBatch, rules: InputRules) -> Validated:
    """Return a batch of the shape `rules.shape` as validated rows, in the order of the batch."""
    return _Validation(batch, rules).run()


class _Validation:
    """The validation of one batch."""

    def __init__(self, batch: pa.RecordBatch, rules: InputRules) -> None:
        self.batch, self.rules, self.shape = plain_batch(batch), rules, rules.shape
        self.code = np.zeros(len(batch), dtype=np.int8)
        self.details: dict[int, str] = {}
        self.key, self.value = self._binary("key"), self._binary("value")
        self.headers = cast_column(self._column("headers", HEADERS), HEADERS)

    def run(self) -> Validated:
        raw = cast_column(self._column(MALFORMED, pa.string()), pa.string())
        if self.rules.source_offsets:
            self._leave_out_known(self.rules.source_offsets)
        self._refuse_by_source()
        self._refuse(Reason.MALFORMED, _valid(raw), lambda _: "the row could not be parsed with the schema of its source")
        if self.shape.has_events:
            self._check_events()
        producers = self._producers() if self.shape.has_producers else {}
        if self.rules.is_compacted:
            keyless = _null(self.key) & (_null(producers["control"]) if producers else True)
            self._refuse(Reason.KEYLESS, keyless, lambda _: f"key is null, and {self.rules.topic} is compacted: each record needs a key")
        partition, chosen = self._partition()
        offset = self._offset(chosen)
        if producers:
            self._check_producers(producers)
        self._check_sizes()
        columns = {
            "partition": partition,
            "offset": offset,
            "timestamp": self._timestamp(),
            "key": self.key,
            "value": self.value,
            "headers": self.headers,
            **producers,
            **({"source_sequence": self._sequence()} if self.shape.has_sequences else {}),
            **({name: self._column(name, pa.string()) for name in (UNCHANGED, COLUMNS)} if self.shape.has_events else {}),
            **({SOURCE_TIME: self._column(SOURCE_TIME, pa.int64())} if self.shape.has_events else {}),
            **{name: self.batch.column(name) for name in self.shape.order},
            "raw": raw,
        }
        columns[RECORD_KEY] = self._record_keys()
        return Validated(pa.record_batch(columns), self.code, self.details)

    def _record_keys(self) -> pa.Array:
        """Return the keys that refused rows leave stale, null for other rows; of an event that is no row its own, if that can be read."""
        keys = self.key
        if self.shape.has_events:
            is_event = pc.or_(pc.is_valid(self._column(REFUSAL, pa.string())), pc.is_valid(self._column(EVENT, pa.string())))
            keys = pc.if_else(is_event, cast_column(self._column(RECORD_KEY, pa.binary()), pa.binary()), keys)
        return pc.if_else(pa.array(self.code != 0), keys, pa.scalar(None, pa.binary()))

    def _leave_out_known(self, source_offsets: Mapping[int, int]) -> None:
        """Take events out that are in the log."""
        partition, offset = (self.batch.column(name).to_numpy(zero_copy_only=False) for name in (SOURCE_PARTITION, SOURCE_OFFSET))
        last = np.full(len(self.batch), -1)
        for number, committed in source_offsets.items():
            last[partition == number] = committed
        self._refuse(Reason.KNOWN_EVENT, offset <= last, lambda row: f"offset {offset[row]} of partition {partition[row]} is in the log")

    def _refuse_by_source(self) -> None:
        """Refuse rows of which their source says what is wrong: a reason and a detail, or what an envelope could not read."""
        refusal = self._column(REFUSAL, pa.string())
        known = {
            f"{reason.value}: ": reason
            for reason in (Reason.CORRUPT_FILE, Reason.STOPPING_FILE, Reason.MALFORMED, Reason.FAILED_EXPRESSION)
        }
        for prefix, reason in known.items():
            which = pc.fill_null(pc.starts_with(refusal, prefix), False).to_numpy(zero_copy_only=False)  # noqa: FBT003
            self._refuse(reason, which, lambda row, prefix=prefix: refusal[row].as_py().removeprefix(prefix))  # type: ignore[misc]
        self._refuse(Reason.NO_EVENT, _valid(refusal), lambda row: str(refusal[row].as_py()))

    def _check_events(self) -> None:
        """Take events that are no rows out."""
        event = self._column(EVENT, pa.string())
        alerts = pc.fill_null(pc.starts_with(event, ALERT), False).to_numpy(zero_copy_only=False)  # noqa: FBT003
        self._refuse(Reason.TRUNCATE, alerts, lambda row: event[row].as_py().removeprefix(ALERT))
        self._refuse(Reason.SKIPPED, _valid(event), lambda row: str(event[row].as_py()))

    def _column(self, name: str, otherwise: pa.DataType) -> pa.Array:
        names = self.batch.schema.names
        return self.batch.column(name) if name in names else pa.nulls(len(self.batch), otherwise)

    def _binary(self, name: str) -> pa.Array:
        return cast_column(self.batch.column(name), pa.binary())

    def _refuse(self, reason: Reason, which: Mask, detail: Callable[[int], str]) -> None:
        """Refuse some rows that are not refused yet."""
        fresh = np.flatnonzero(which & (self.code == 0))
        self.code[fresh] = _CODES[reason]
        self.details.update((row, detail(row)) for row in fresh.tolist())

    def _numbers(self, name: str) -> tuple[NDArray[np.int64], Mask]:
        """Return a column of whole numbers, and where it holds one; a number past 63 bits is as good as none."""
        column = self.batch.column(name)
        if pt.is_uint64(column.type):
            column = pc.if_else(pc.less_equal(column, pa.scalar(2**63 - 1, pa.uint64())), column, None)
        column = cast_column(column, pa.int64())
        return column.fill_null(-1).to_numpy(zero_copy_only=False), _valid(column)

    def _format(self, name: str, row: int) -> str:
        value = self.batch.column(name)[row].as_py()
        return "null" if value is None else str(value)[:_SHOWN_CHARACTERS]

    def _partition(self) -> tuple[pa.Array, NDArray[np.int32]]:
        """Return the partition of each row, the one that it names or the partitioner's, and refuse rows that name one that is not there.

        The second is the same with 0 in the place of those.
        """
        count = len(self.rules.log_end_offsets)
        if "partition" not in self.shape.columns:
            chosen = self._partition_rows(np.arange(len(self.batch)))
            return pa.array(chosen, pa.int32()), chosen
        given, is_given = self._numbers("partition")
        free = np.zeros(len(self.batch), dtype=np.bool_) if self.shape.has_offsets else _null(self.batch.column("partition"))
        known = is_given & (given >= 0) & (given < count)
        self._refuse(
            Reason.UNKNOWN_PARTITION,
            ~known & ~free,
            lambda row: f"partition {self._format('partition', row)}: allowed is 0 to {count - 1}",
        )
        chosen = np.where(known, given, 0).astype(np.int32)
        chosen[free] = self._partition_rows(np.flatnonzero(free))
        fits = is_given & (np.abs(given) <= _MAX_INT)
        return pa.array(np.where(free, chosen, given), pa.int64(), mask=~fits & ~free).cast(pa.int32()), chosen

    def _partition_rows(self, rows: NDArray[np.intp]) -> NDArray[np.int32]:
        at = pa.array(rows)
        keys, values = (self.key, self.value) if len(rows) == len(self.batch) else (self.key.take(at), self.value.take(at))
        return partitions_of(keys, values, partitions=len(self.rules.log_end_offsets), partitioner=self.rules.partitioner)

    def _offset(self, partition: NDArray[np.int32]) -> pa.Array:
        if not self.shape.has_offsets:
            return pa.nulls(len(self.batch), pa.int64())
        offset, is_given = self._numbers("offset")
        self._refuse(
            Reason.NO_OFFSET,
            ~is_given | (offset < 0) | (offset > LAST_OFFSET),
            lambda row: f"offset {self._format('offset', row)}: all rows or none carry an offset of 0 to {LAST_OFFSET}",
        )
        log_end = np.asarray(self.rules.log_end_offsets, dtype=np.int64)[partition]
        self._refuse(
            Reason.BELOW_LOG_END,
            offset < log_end,
            lambda row: f"offset {offset[row]}: the log of the partition ends at {log_end[row]}, and offsets ascend",
        )
        return pa.array(offset, mask=~is_given)

    def _producers(self) -> dict[str, pa.Array]:
        """Return the producer's columns; a number that its type does not hold is null."""
        columns: dict[str, pa.Array] = {}
        for name, data_type in _PRODUCER.items():
            if name not in self.shape.columns:
                columns[name] = pa.nulls(len(self.batch), data_type)
            elif pa.types.is_integer(data_type):
                numbers, is_given = self._numbers(name)
                limit = _MAX_INT if data_type == pa.int32() else 2**63 - 1
                columns[name] = pa.array(numbers, mask=~is_given | (numbers > limit) | (numbers < -limit)).cast(data_type)
            else:
                columns[name] = cast_column(self.batch.column(name), data_type)
        columns["transactional"] = pc.coalesce(columns["transactional"], pc.is_valid(columns["control"]))
        return columns

    def _check_producers(self, columns: Mapping[str, pa.Array]) -> None:
        """Refuse rows whose producer's columns are not whole or out of range; a marker is nothing but a marker."""
        producer, epoch, sequence = (columns[name].fill_null(-1).to_numpy() for name in ("producer_id", "producer_epoch", "sequence"))
        has = {name: _valid(column) for name, column in columns.items()}
        transactional = columns["transactional"].to_numpy(zero_copy_only=False).astype(np.bool_)
        alone = ~has["producer_id"] & (has["producer_epoch"] | has["sequence"] | has["control"] | transactional)
        wrong = (producer < 0) | ~has["producer_epoch"] | (epoch < 0) | (epoch > MAX_EPOCH)
        is_marker = pc.is_in(columns["control"], pa.array(["COMMIT", "ABORT"])).to_numpy(zero_copy_only=False)
        placed = _valid(self.batch.column("partition")) if "partition" in self.shape.columns else np.zeros(len(self.batch), dtype=np.bool_)
        no_marker = has["control"] & ~(is_marker & ~has["sequence"] & _null(self.key) & _null(self.value) & placed)
        unnumbered = ~has["control"] & (~has["sequence"] | (sequence < 0))
        names = ("producer_id", "producer_epoch", "sequence", "control")
        allowed = (
            f"allowed are all null, or an id of 0 or more with an epoch of 0 to {MAX_EPOCH} and, for data, a sequence of 0 or more, for a "
            "marker COMMIT or ABORT with a partition and no sequence, key or value"
        )
        self._refuse(
            Reason.INVALID_PRODUCER,
            alone | (has["producer_id"] & (wrong | no_marker | unnumbered)),
            lambda row: ", ".join(f"{name} {_text(columns[name][row])}" for name in names) + f": {allowed}",
        )

    def _check_sizes(self) -> None:
        size = record_bytes(self.key, self.value, self.headers)
        limit = self.rules.max_message_bytes
        self._refuse(
            Reason.OVERSIZED,
            size > limit,
            lambda row: f"{size[row]} bytes of key, value and headers: allowed are {limit} (max.message.bytes)",
        )

    def _sequence(self) -> pa.Array:
        """Return where each row stands in its source, and refuse rows that do not say so."""
        column = self.batch.column("source_sequence")
        texts = pa.nulls(len(self.batch), pa.string()) if pt.is_null(column.type) else sequence_texts(column)
        self._refuse(
            Reason.NO_SEQUENCE,
            _null(texts),
            lambda row: f"source_sequence {self._format('source_sequence', row)}: allowed is a value that has an order, in each part of it",
        )
        return texts

    def _timestamp(self) -> pa.Array:
        """Return the time of each record, that of the append where it has none, and refuse times that the log does not take."""
        now_ms = self.rules.now_ms
        if "timestamp" not in self.shape.columns:
            return pa.array(np.full(len(self.batch), now_ms * 1000)).cast(TIMESTAMP)
        column = self.batch.column("timestamp")
        if pt.is_timestamp(column.type):
            in_unit = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
            given_ms = _milliseconds(in_unit, column.type.unit)
            is_given = _valid(column)
        else:
            given_ms, is_given = self._numbers("timestamp")
        time_ms = np.where(is_given, given_ms, now_ms)
        self._refuse(
            Reason.NEGATIVE_TIMESTAMP,
            is_given & (time_ms < 0),
            lambda row: f"timestamp {time_ms[row]} ms: allowed is 0 (1970-01-01) or later",
        )
        self._refuse(
            Reason.TIMESTAMP_OUT_OF_RANGE,
            is_given & (time_ms > LAST_TIMESTAMP_MS),
            lambda row: f"timestamp {time_ms[row]} ms: allowed is up to {LAST_TIMESTAMP_MS} (the year 2262)",
        )
        return pa.array(np.clip(time_ms, -1, LAST_TIMESTAMP_MS) * 1000).cast(TIMESTAMP)  # what is refused may not fit


def record_bytes(key: pa.Array, value: pa.Array, headers: pa.Array) -> NDArray[np.int64]:
    """Return the size of each record as `max.message.bytes` and the split of segments count it: key, value and headers, uncompressed."""
    return _lengths(key) + rest_bytes(value, headers)


def rest_bytes(value: pa.Array, headers: pa.Array) -> NDArray[np.int64]:
    """Return the bytes of the value and the headers of each record."""
    size = _lengths(value)
    if headers.null_count < len(headers):
        items = pc.list_flatten(headers)
        of_items = _lengths(pc.struct_field(items, "key")) + _lengths(pc.struct_field(items, "value"))
        owners = np.repeat(np.arange(len(headers)), pc.list_value_length(headers).fill_null(0).to_numpy(zero_copy_only=False))
        size += np.bincount(owners, weights=of_items, minlength=len(headers)).astype(np.int64)
    return size


def _lengths(column: pa.Array) -> NDArray[np.int64]:
    lengths: NDArray[np.int64] = pc.binary_length(column).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return lengths


def _milliseconds(times: NDArray[np.int64], unit: str) -> NDArray[np.int64]:
    """Return times in a unit as milliseconds, rounded down; seconds past what a long holds become the latest time."""
    if unit == "s":
        limit = (2**63 - 1) // 1000
        return np.clip(times, -limit, limit) * 1000
    return times // {"ms": 1, "us": 1_000, "ns": 1_000_000}[unit]


def _valid(column: pa.Array) -> Mask:
    if not column.null_count:
        return np.ones(len(column), dtype=np.bool_)
    mask: Mask = column.is_valid().to_numpy(zero_copy_only=False)
    return mask


def _null(column: pa.Array) -> Mask:
    return ~_valid(column)


def _text(value: Any) -> str:
    return "null" if value.as_py() is None else str(value.as_py())


def refusal(topic: str, counts: Mapping[str, int], examples: Mapping[str, str]) -> InvalidRecords:
    """Return the error of a batch call: each reason with its count and an example, the most frequent first."""
    by_count = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    lines = [f"  {count} × {reason}: {examples[reason]}" for reason, count in by_count]
    message = f"topic {topic} cannot take these rows; nothing was appended:\n" + "\n".join(lines)
    return InvalidRecords(message)
