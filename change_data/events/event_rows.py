"""Change events as the input rows of an append: at least one for each event, with what the event says beside its row.

```
 event                                     row
 key, value, partition 1, offset 7         key, value, source_sequence, headers source.partition 1, source.offset 7
 a heartbeat, a TRUNCATE, a tombstone      __event says so
 no JSON                                   __refusal says why
 columns left out, a changed key           __unchanged
```
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lastword.change_data.columns.json_rows import NULL, NoEvent, fields_of
from lastword.change_data.columns.table_columns import ddl_text
from lastword.change_data.events.alike_events import NO_EVENTS, alike_events
from lastword.change_data.events.debezium import read_events
from lastword.change_data.events.event_headers import added_headers
from lastword.change_data.events.event_keys import FrameType, canonical_key
from lastword.compaction.order.source_positions import with_partitions
from lastword.compaction.rows.batches import BatchLimits, in_batches, in_threads
from lastword.compaction.rows.input_columns import (
    COLUMNS,
    EVENT,
    HEADERS,
    RECORD_KEY,
    REFUSAL,
    SOURCE_PARTITION,
    SOURCE_TIME,
    UNCHANGED,
    cast_column,
    check_event_columns,
    columns_of,
    plain_batch,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from lastword.change_data.columns.column_types import DataType
    from lastword.change_data.events.envelopes import Envelope, Events
    from lastword.change_data.events.event_headers import Headers

    #: The keys that headers name, by header and row number.
    _Moves = Mapping[str, Mapping[int, str]]

#: Where an event stands in its source, which becomes headers of its rows.
_PLACE: Final = ("partition", "offset")
#: The fields of a record of Kafka in a line of a file.
RECORD_FIELDS: Final = frozenset({"topic", "partition", "offset", "timestamp", "timestampType", "key", "value", "headers"})
#: Debezium's headers of the two events of a changed key.
_OLD_KEY, _NEW_KEY = "__debezium.oldkey", "__debezium.newkey"


class Frames(Protocol):
    """A column of messages in the wire format of a schema registry: magic byte, schema id, payload."""

    @property
    def values(self) -> pa.Array:
        """The decoded messages as JSON text; null where a message is null or cannot be decoded."""

    @property
    def reasons(self) -> Mapping[int, str]:
        """Why a frame cannot be decoded, by row number."""

    @property
    def schemas(self) -> Mapping[int, Any]:
        """What each decoded frame was written with, by row number: the arguments of `FrameDecoder.data_type`."""


class FrameDecoder(Protocol):
    """What decodes keys and values that are framed for a schema registry."""

    def decode_column(self, column: pa.Array) -> Frames:
        """Return a column of frames as JSON."""

    def data_type(self, schema_id: int, message: tuple[int, ...] = ...) -> DataType:
        """Return the type of a column whose values are written with a schema; raise `ValueError` if there is none."""


def event_rows(batch: pa.RecordBatch, envelope: Envelope, decoder: FrameDecoder | None = None) -> pa.RecordBatch:
    """Return the events of a batch as input rows of an append, at least one for each event, in the order of the batch.

    `batch` has key and value (JSON; text or binary), and may have headers, timestamp, order columns, and the partition and offset of the
    source. Columns of the result: key, value, source_sequence, what an envelope says beside the row (`EVENT`, `REFUSAL`, `UNCHANGED`,
    `COLUMNS`, `SOURCE_TIME`), and the others as they were; the source's partition and offset are headers (`source.partition`,
    `source.offset`). An event that becomes no row keeps its own key and value. With a `decoder` key and value are framed for a schema
    registry.
    """
    columns_in = {name: cast_column(batch.column(name), pa.binary()) for name in ("key", "value")}
    moves, is_left = _changed_keys(batch), np.ones(len(batch), dtype=np.bool_)
    alike = alike_events(columns_in["key"], columns_in["value"], envelope, list(moves[_NEW_KEY])) if decoder is None else NO_EVENTS
    is_left[alike.row] = False
    columns = {name: pa.nulls(len(alike.row), pa.string()) for name in (EVENT, REFUSAL, UNCHANGED, COLUMNS)}
    columns[RECORD_KEY] = pa.nulls(len(alike.row), pa.binary())
    made = {"row": pa.array(alike.row), "key": alike.key, "value": alike.value, "source_sequence": alike.sequence, **columns}
    made[SOURCE_TIME] = alike.time
    if len(alike.row) < len(batch):
        texts = {name: column.filter(pa.array(is_left)) for name, column in columns_in.items()}
        headers = added_headers(cast_column(batch.column("headers"), HEADERS), envelope) if "headers" in batch.schema.names else {}
        if decoder is None:
            events = read_events(texts["key"].to_pylist(), texts["value"].to_pylist(), envelope, headers=headers)
        else:
            events = _framed_events(texts, envelope, decoder, headers)
        others = _rows_of(events, texts, np.flatnonzero(is_left), moves)
        made = {name: pa.concat_arrays([column, others[name]]) for name, column in made.items()}
    kept = {name: batch.column(name) for name in batch.schema.names if name not in {"key", "value", "headers", *_PLACE}}
    kept = {"headers": _headers(batch), **kept}
    if REFUSAL in kept:  # a source says of its own what is wrong
        made[REFUSAL] = pc.coalesce(kept.pop(REFUSAL).take(made["row"]), made[REFUSAL])
    places = [name for name in ("partition", SOURCE_PARTITION) if name in batch.schema.names]
    if places:
        partitions = batch.column(places[0]).cast(pa.string()).take(made["row"])
        made["source_sequence"] = with_partitions(made["source_sequence"], partitions)
    numbers = made.pop("row").to_numpy()
    if not np.array_equal(numbers, np.arange(len(batch))):
        order = np.argsort(numbers, kind="stable")
        made = {name: column.take(pa.array(order)) for name, column in made.items()}
        kept = {name: column.take(pa.array(numbers[order])) for name, column in kept.items()}
    return pa.record_batch({**made, **kept})


_LIMITS: Final = BatchLimits()


def event_table(
    table: pa.Table, envelope: Envelope, decoder: FrameDecoder | None = None, *, topic: str, limits: BatchLimits = _LIMITS
) -> pa.Table:
    """Return a table of events as the input rows of an append (`event_rows`), several batches at once.

    Raises `InvalidRecords` for a table without the columns key and value.
    """
    check_event_columns(columns_of(table.schema), topic=topic)
    given, read = list(map(plain_batch, in_batches(table, limits))), partial(event_rows, envelope=envelope, decoder=decoder)
    batches = list(map(read, given) if decoder else in_threads(read, given))
    return pa.Table.from_batches(batches or [read(pa.RecordBatch.from_pylist([], table.schema))])


def _rows_of(events: Events, texts: Mapping[str, pa.Array], numbers: NDArray[np.int64], moves: _Moves) -> dict[str, pa.Array]:
    """Return events that were read one by one: their rows, and behind them those that are none; `numbers` are theirs in the batch."""
    rows, others = numbers[np.array(events.row, dtype=np.int64)], sorted([*events.refused, *events.others])
    at, nothing = pa.array(others, pa.int64()), [None] * len(rows)
    columns = {
        "row": (pa.array(rows), pa.array(numbers).take(at)),
        **{name: (pa.array(column, pa.binary()), texts[name].take(at)) for name, column in (("key", events.key), ("value", events.value))},
        "source_sequence": (pa.array([*events.sequence, *(events.positions.get(row, "") for row in others)], pa.string()),),
        EVENT: (pa.array([*nothing, *(events.others.get(row) for row in others)], pa.string()),),
        REFUSAL: (pa.array([*nothing, *(events.refused.get(row) for row in others)], pa.string()),),
        RECORD_KEY: (pa.array([*nothing, *(events.refused_keys.get(row) for row in others)], pa.binary()),),
        UNCHANGED: (pa.array([*_notes(events, rows.tolist(), moves), *[None] * len(others)], pa.string()),),
        COLUMNS: (_learn(events, len(rows) + len(others)),),
        SOURCE_TIME: (pa.array([*map(events.times.get, events.row), *map(events.times.get, others)], pa.int64()),),
    }
    return {name: pa.concat_arrays(list(parts)) for name, parts in columns.items()}


def _framed_events(columns: Mapping[str, pa.Array], envelope: Envelope, decoder: FrameDecoder, headers: Headers) -> Events:
    """Return the events of framed keys and values; a frame that cannot be decoded is refused with its reason."""
    values = decoder.decode_column(columns["value"])
    reasons, schemas = dict(values.reasons), dict[int, FrameType]()
    keys, key_schemas = columns["key"].to_pylist(), dict[int, FrameType]()
    if not (envelope.key_format or envelope.key):
        framed = decoder.decode_column(columns["key"])
        reasons = {**{row: f"key: {reason}" for row, reason in framed.reasons.items()}, **reasons}
        keys, key_schemas = framed.values.to_pylist(), _frame_types(framed, decoder, reasons)
    if not envelope.schema:
        schemas = _frame_types(values, decoder, reasons)
    texts = [b"" if row in reasons else value for row, value in enumerate(values.values.to_pylist())]
    events = read_events(keys, texts, envelope, schemas, key_schemas=key_schemas, headers=headers)
    events.refused |= reasons
    return events


def _frame_types(frames: Frames, decoder: FrameDecoder, reasons: dict[int, str]) -> dict[int, FrameType]:
    """Return the types of decoded frames, by row number; a frame whose schema gives none gets its reason."""
    known: dict[Any, FrameType | str] = {}
    for writer in dict.fromkeys(frames.schemas.values()):
        try:
            known[writer] = FrameType(decoder.data_type(*writer))
        except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
            known[writer] = f"its schema cannot be read: {error}"
    reasons.update({row: text for row, writer in frames.schemas.items() if isinstance(text := known[writer], str)})
    return {row: frame for row, writer in frames.schemas.items() if isinstance(frame := known[writer], FrameType)}


def _learn(events: Events, count: int) -> pa.Array:
    """Return the columns that the newest schema of the events names, on the row of that event; null on all others."""
    if events.learnt is None:
        return pa.nulls(count, pa.string())
    texts: list[str | None] = [None] * count
    texts[events.row.index(events.learnt.row)] = ddl_text(events.learnt.columns)
    return pa.array(texts, pa.string())


def _changed_keys(batch: pa.RecordBatch) -> _Moves:
    """Return the old and the new keys that the headers of a batch name, in their canonical form; one that cannot be read is none."""
    keys: dict[str, dict[int, str]] = {_OLD_KEY: {}, _NEW_KEY: {}}
    headers = cast_column(batch.column("headers"), HEADERS) if "headers" in batch.schema.names else None
    if headers is not None and headers.null_count < len(headers):
        names = pc.struct_field(pc.list_flatten(headers), "key")
        if pc.any(pc.is_in(names, value_set=pa.array([_OLD_KEY, _NEW_KEY], names.type))).as_py():
            for row, listed in enumerate(headers.to_pylist()):
                for header in listed or []:
                    if header["key"] in keys and header["value"] is not None:
                        with suppress(NoEvent, RecursionError):
                            keys[header["key"]][row] = canonical_key(bytes(header["value"])).decode()
    return keys


def _notes(events: Events, rows: Sequence[int], moves: _Moves) -> list[str | None]:
    """Return what each row's event says of it beside the row: columns left out, and a change of its key, which is in its headers."""
    notes: list[str | None] = []
    for at, (row, value, columns) in enumerate(zip(rows, events.value, events.unresolved, strict=True)):
        old_key = moves[_OLD_KEY].get(row) if columns else None
        new_key = moves[_NEW_KEY].get(row) if value is None else None
        note = {"columns": columns, "old_key": old_key, "new_key": new_key, **({"is_guessed": True} if at in events.guessed else {})}
        notes.append(msgspec.json.encode(note).decode() if columns or new_key else None)
    return notes


def _headers(batch: pa.RecordBatch) -> pa.Array:
    """Return the headers of the events, and behind them where each stands in its source."""
    names = [name for name in _PLACE if name in batch.schema.names]
    own = batch.column("headers").cast(HEADERS) if "headers" in batch.schema.names else pa.nulls(len(batch), HEADERS)
    if not names:
        return own
    places = [batch.column(name).cast(pa.string()).cast(pa.binary()) for name in names]
    if own.null_count == len(own):
        keys = pa.array([f"source.{name}" for name in names] * len(batch), pa.string())
        values = pa.concat_arrays(places).take(pa.array(np.arange(len(batch) * len(names)).reshape(len(names), -1).T.reshape(-1)))
        pairs = pa.StructArray.from_arrays([keys, values], names=["key", "value"])
        return pa.ListArray.from_arrays(pa.array(np.arange(len(batch) + 1) * len(names), pa.int32()), pairs).cast(HEADERS)
    listed = [entries or [] for entries in own.to_pylist()]
    for name, values in zip(names, places, strict=True):
        for headers, value in zip(listed, values.to_pylist(), strict=True):
            headers.append({"key": f"source.{name}", "value": value})
    return pa.array(listed, HEADERS)


def line_events(batch: pa.RecordBatch, *, are_records: bool | None = None) -> pa.RecordBatch:
    """Return lines of text as change events, the other columns as they are.

    A line is a record of Kafka, with `key`, `value` and `headers` ([[name, value], …]): texts, or JSON as such; or it is the value of an
    event without a key. `are_records` says which; None: a line is a record if it has a value and no other fields than those of a record.
    """
    keys, values, headers = list[bytes | None](), list[bytes | None](), list[list[dict[str, Any]] | None]()
    for line in batch.column("value").cast(pa.binary()).to_pylist():
        record: tuple[bytes | None, bytes | None, list[dict[str, Any]] | None] = None, line, None
        with suppress(NoEvent, TypeError, ValueError):
            fields = fields_of(line, "the line") if line.strip() and are_records is not False else {}
            if "value" in fields and (are_records or set(fields) <= RECORD_FIELDS):
                record = _text(fields.get("key")), _text(fields["value"]), _line_headers(fields.get("headers"))
        keys.append(record[0])
        values.append(record[1])
        headers.append(record[2])
    columns = {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary()), "headers": pa.array(headers, HEADERS)}
    return pa.record_batch({**columns, **{name: batch.column(name) for name in batch.schema.names if name != "value"}})


def _text(field: msgspec.Raw | None) -> bytes | None:
    """Return what a field of a line says: a text's characters, other JSON as it is; null is nothing."""
    if field is None or bytes(field).strip() == NULL:
        return None
    text = bytes(field).strip()
    return str(msgspec.json.decode(text)).encode() if text.startswith(b'"') else text


def _line_headers(field: msgspec.Raw | None) -> list[dict[str, Any]] | None:
    parsed = None if field is None else msgspec.json.decode(field)
    if not isinstance(parsed, list):
        return None
    return [{"key": str(name), "value": _text(msgspec.Raw(msgspec.json.encode(value)))} for name, value in parsed]
