"""The columns of an append's input: their names and types, and the shape that they make.

```
 key, value                                          what each input has
 headers, timestamp, partition, offset               what it may have
 producer_id, producer_epoch, sequence, …            rows of a producer
 source_sequence                                     rows that say where they stand in their source
 __order_…, __malformed, __event, …                  what a source says beside the row
```
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.types as pt

from lastword.compaction.errors import InvalidRecords
from lastword.compaction.order.sequences import ALLOWED, is_orderable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

#: A source puts its own order here, as many columns as it needs, compared from left to right.
ORDER_PREFIX: Final = "__order_"
#: Order columns of a source of change events: they tell which of its events are in the log.
SOURCE_PARTITION, SOURCE_OFFSET = f"{ORDER_PREFIX}1_partition", f"{ORDER_PREFIX}2_offset"
#: A source puts the text of a row that it could not parse here.
MALFORMED: Final = "__malformed"
#: What an envelope says of its event, beside the row (`lastword.change_data.events.event_rows`): why it is none, what it is instead
#: of a row, and what it says of its columns and its key (`lastword.compaction.rows.unchanged_columns.Unchanged`).
REFUSAL, EVENT, UNCHANGED = "__refusal", "__event", "__unchanged"
#: The canonical key of an event that is refused: the last record of this key is stale from then on.
RECORD_KEY: Final = "__record_key"
#: On one row of a batch the columns that the newest schema of its events names, as DDL.
COLUMNS: Final = "__columns"
#: When the event happened in its source, in milliseconds since the epoch (int64); null where that is not known.
SOURCE_TIME: Final = "__source_time"
#: An `EVENT` that begins so is a TRUNCATE that becomes a dead letter; the rest of it says why.
ALERT: Final = "alert:"
#: The `EVENT` of a TRUNCATE that deletes the rows of its table.
TRUNCATED: Final = "truncate"
#: The columns of a source beside the record, but for its order.
_SIDE_COLUMNS: Final = (MALFORMED, REFUSAL, EVENT, UNCHANGED, COLUMNS, RECORD_KEY, SOURCE_TIME)
#: Columns of Spark's Kafka source that say nothing about the record.
IGNORED_COLUMNS: Final = ("topic", "timestampType")
#: The type of `headers`.
HEADERS: Final = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
TIMESTAMP: Final = pa.timestamp("us", "UTC")


class ColumnKind(Enum):
    """What a column of an input holds, whichever engine it comes from."""

    BYTES = "bytes"
    TEXT = "text"
    WHOLE = "whole number"
    TIME = "time"
    FLAG = "boolean"
    HEADERS = "headers"
    NULL = "null"
    ORDERED = "orderable"
    ORDERED_TEXT = "orderable, with a text in it"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class InputColumn:
    """The type of an input column: what it holds, and its name in the input's engine."""

    kind: ColumnKind
    type_name: str


_BYTES: Final = (ColumnKind.BYTES, ColumnKind.TEXT)
#: What a source sequence is that is compared as a text, or of which a part is.
_TEXTS: Final = (ColumnKind.TEXT, ColumnKind.ORDERED_TEXT)
INPUT_COLUMNS: Final[dict[str, tuple[tuple[ColumnKind, ...], str]]] = {
    "key": (_BYTES, "binary or string (UTF-8)"),
    "value": (_BYTES, "binary or string (UTF-8); null is a tombstone"),
    "headers": ((ColumnKind.HEADERS,), "array<struct<key:string,value:binary>>"),
    "timestamp": ((ColumnKind.TIME, ColumnKind.WHOLE), "timestamp, or bigint milliseconds since the epoch"),
    "partition": ((ColumnKind.WHOLE,), "int"),
    "offset": ((ColumnKind.WHOLE,), "bigint"),
    "producer_id": ((ColumnKind.WHOLE,), "bigint"),
    "producer_epoch": ((ColumnKind.WHOLE,), "int"),
    "sequence": ((ColumnKind.WHOLE,), "int"),
    "transactional": ((ColumnKind.FLAG,), "boolean"),
    "control": ((ColumnKind.TEXT,), "string: COMMIT or ABORT; null for data"),
    "source_sequence": (
        (*_TEXTS, ColumnKind.WHOLE, ColumnKind.TIME, ColumnKind.BYTES, ColumnKind.FLAG, ColumnKind.ORDERED),
        ALLOWED,
    ),
}


#: Columns that say nothing without another one beside them, which one that is, and why.
_COMPANIONS: Final = (
    (("offset",), "partition", ": an offset is a position in a partition"),
    (("control", "producer_epoch", "sequence", "transactional"), "producer_id", ": it belongs to a producer"),
    (("producer_id",), "producer_epoch", ""),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPolicy:
    """What an append does with change events beyond their rows.

    `placeholders` are the JSON texts that stand for a column that the source left out. A column that no record of its key has is null
    (`null_unresolved`), or its event is refused. With `replace_on_snapshot` rows that a later snapshot of the source lacks are deleted
    once it is complete. `columns` are those of the rows as DDL, where a user gives them.
    """

    placeholders: frozenset[bytes] = frozenset()
    null_unresolved: bool = False
    replace_on_snapshot: bool = False
    columns: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Which of the columns of a record an input has, and the names of its order columns."""

    columns: frozenset[str]
    order: tuple[str, ...]
    #: Whether the rows come from an envelope.
    has_events: bool = False

    @property
    def has_producers(self) -> bool:
        """Whether the rows may carry their producer (idempotent, or transactional)."""
        return "producer_id" in self.columns

    @property
    def has_offsets(self) -> bool:
        """Whether the rows bring their own offsets (a mirror, or a log restored from elsewhere)."""
        return "offset" in self.columns

    @property
    def has_sequences(self) -> bool:
        """Whether the rows say where they stand in their source."""
        return "source_sequence" in self.columns


def shape_of(columns: Mapping[str, InputColumn], *, topic: str) -> Shape:
    """Return the shape of an input; raise `InvalidRecords` that names each column that is missing, unknown or of a wrong type."""
    wrong = [f"column {name} is missing: {INPUT_COLUMNS[name][1]}" for name in ("key", "value") if name not in columns]
    order = tuple(sorted(name for name in columns if name.startswith(ORDER_PREFIX)))
    wrong += _wrong_types({name: column for name, column in columns.items() if name not in {*order, *_SIDE_COLUMNS, *IGNORED_COLUMNS}})
    for names, companion, why in _COMPANIONS:
        lone = [name for name in names if name in columns]
        if lone and companion not in columns:
            wrong.append(f"column {lone[0]} needs a column {companion} beside it{why}")
    if "source_sequence" in columns and "producer_id" in columns:
        wrong.append("columns source_sequence and producer_id exclude each other: a producer's sequence orders its records")
    if wrong:
        message = f"topic {topic} cannot take these rows:\n" + "\n".join(f"  {line}" for line in wrong)
        raise InvalidRecords(message)
    return Shape(columns=frozenset(columns) & frozenset(INPUT_COLUMNS), order=order, has_events=EVENT in columns)


def _wrong_types(columns: Mapping[str, InputColumn]) -> list[str]:
    """Return what is wrong with the names and the types of the columns of records."""
    wrong = list[str]()
    for name, column in columns.items():
        if name not in INPUT_COLUMNS:
            wrong.append(f"column {name or repr(name)} is unknown: allowed are {', '.join(INPUT_COLUMNS)}")
        elif column.kind is not ColumnKind.NULL and column.kind not in INPUT_COLUMNS[name][0]:
            wrong.append(f"column {name} is {column.type_name}: allowed is {INPUT_COLUMNS[name][1]}")
    return wrong


def check_sequence_column(columns: Mapping[str, InputColumn], sequence_as: object, *, topic: str) -> None:
    """Raise `InvalidRecords` for a source sequence that is a text, or has one in it, unless `sequence_as` is `text`."""
    if sequence_as not in {"", "text"}:
        message = f"topic {topic}: sequence_as = {sequence_as!r}: allowed is text; numbers and times say by their type what they are"
        raise InvalidRecords(message)
    column = columns.get("source_sequence")
    if column is not None and column.kind in _TEXTS and not sequence_as:
        message = (
            f"topic {topic} cannot take these rows:\n  column source_sequence is {column.type_name}, and of texts 10 is below 9: give "
            "numbers or times, or say sequence_as = 'text'"
        )
        raise InvalidRecords(message)


def check_event_columns(columns: Mapping[str, InputColumn], *, topic: str) -> None:
    """Raise `InvalidRecords` that names what an input of events in an envelope lacks: key and value, as text or binary."""
    wrong = [name for name in ("key", "value") if name not in columns or columns[name].kind not in {*_BYTES, ColumnKind.NULL}]
    lines = [f"  column {name} is missing, or neither text nor binary: events in an envelope have a key and a value" for name in wrong]
    if "headers" in columns and columns["headers"].kind not in {ColumnKind.HEADERS, ColumnKind.NULL}:
        lines.append(f"  column headers is {columns['headers'].type_name}: allowed is {INPUT_COLUMNS['headers'][1]}")
    if "source_sequence" in columns:
        lines.append("  column source_sequence: events in an envelope say themselves where they stand (Envelope.sequence); leave it out")
    if lines:
        message = f"topic {topic} cannot take these rows:\n" + "\n".join(lines)
        raise InvalidRecords(message)


def plain_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch whose dictionary-encoded columns are plain ones."""
    if not any(pt.is_dictionary(field.type) for field in batch.schema):
        return batch
    columns = [_decode_dictionary(column) if pt.is_dictionary(column.type) else column for column in batch.columns]
    return pa.record_batch(columns, names=batch.schema.names)


def _decode_dictionary(column: pa.DictionaryArray) -> pa.Array:
    values = column.dictionary
    views = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    if values.type in views:  # Arrow takes no values out of an array of views
        return values.cast(views[values.type]).take(column.indices)
    return column.dictionary_decode()


def cast_column(column: pa.Array, data_type: pa.DataType) -> pa.Array:
    """Return a column in a type of the log, whichever of Arrow's layouts it has.

    A slice of an array of more than 2 GiB is cast as if it had all of that; so what does not fit is copied first.
    """
    if column.type == data_type:
        return column
    try:
        return column.cast(data_type)
    except pa.ArrowInvalid:
        if not (pt.is_large_string(column.type) or pt.is_large_binary(column.type)):
            raise
        return column.take(pa.array(range(len(column)), pa.int64())).cast(data_type)


def check_names(names: Sequence[str]) -> None:
    """Raise `InvalidRecords` for a column that comes more than once."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        message = f"column {', '.join(twice)} comes more than once: each column of the rows needs a name of its own"
        raise InvalidRecords(message)


def columns_of(schema: pa.Schema) -> dict[str, InputColumn]:
    """Return the columns of an Arrow schema; raises `InvalidRecords` for one that comes more than once."""
    check_names(schema.names)
    return {field.name: InputColumn(_kind(field.type), str(field.type)) for field in schema}


def _kind(data_type: pa.DataType) -> ColumnKind:
    if pt.is_dictionary(data_type):
        data_type = data_type.value_type
    checks: tuple[tuple[Callable[[pa.DataType], bool], ColumnKind], ...] = (
        (pt.is_null, ColumnKind.NULL),
        (pt.is_integer, ColumnKind.WHOLE),
        (pt.is_timestamp, ColumnKind.TIME),
        (pt.is_boolean, ColumnKind.FLAG),
        (_is_text, ColumnKind.TEXT),
        (_is_bytes, ColumnKind.BYTES),
        (_is_headers, ColumnKind.HEADERS),
        (_is_ordered_text, ColumnKind.ORDERED_TEXT),
        (is_orderable, ColumnKind.ORDERED),
    )
    return next((kind for holds, kind in checks if holds(data_type)), ColumnKind.OTHER)


def _is_text(data_type: pa.DataType) -> bool:
    return bool(pt.is_string(data_type) or pt.is_large_string(data_type) or pt.is_string_view(data_type))


def _is_ordered_text(data_type: pa.DataType) -> bool:
    is_struct = pt.is_struct(data_type) and is_orderable(data_type)
    return is_struct and any(_is_text(data_type.field(number).type) for number in range(data_type.num_fields))


def _is_bytes(data_type: pa.DataType) -> bool:
    return bool(
        pt.is_binary(data_type) or pt.is_large_binary(data_type) or pt.is_binary_view(data_type) or pt.is_fixed_size_binary(data_type)
    )


def _is_headers(data_type: pa.DataType) -> bool:
    if not (pt.is_list(data_type) or pt.is_large_list(data_type)):
        return False
    item = data_type.value_type
    if pt.is_null(item):
        return True
    if not pt.is_struct(item) or [item.field(number).name for number in range(item.num_fields)] != ["key", "value"]:
        return False
    key, value = item.field(0).type, item.field(1).type
    return (_is_text(key) or pt.is_null(key)) and (_is_text(value) or _is_bytes(value) or pt.is_null(value))
