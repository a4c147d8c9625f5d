"""Change events that are alike, many at a time: what a batch of Debezium's raw events says, without a look at each one in Python.

```
 an event     {"before":null,"after":{"id":1,"v":"a"},"source":{"connector":"postgresql","lsn":27330312},"op":"u","ts_ms":1700000000000}
 its template {"before":null,"after":      row       ,"source":{"connector":"postgresql","lsn":########},"op":"u","ts_ms":#############}
```

A template is learnt from one event, as `lastword.change_data.events.debezium` reads it, and then compared with all others by their bytes.
An event that fits differs from it in the row and in the digits of numbers alone. So if the row by itself is JSON, the event is read as the
first one was. Any event that fits no template, or of which more is to be said, is left to be read by itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from lastword.change_data.columns.json_rows import CANONICAL, NULL, NoEvent
from lastword.change_data.events.debezium import read_events, typed_rows
from lastword.change_data.events.envelopes import signs_of
from lastword.change_data.events.event_keys import KeyReader
from lastword.change_data.events.event_positions import DIGITS
from lastword.compaction.order.sequences import highest
from lastword.compaction.order.source_positions import SourcePosition

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from lastword.change_data.events.envelopes import Envelope
    from lastword.change_data.events.event_keys import KeyFormat

    Mask = NDArray[np.bool_]
    Bytes = NDArray[np.uint8]
    #: What makes a row canonical, by Connect's schema of its event.
    Typed = Callable[[bytes, bytes], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlikeLimits:
    """When events are read together; their rows are the same whatever the limits are."""

    #: To learn a template costs as much as to read so many events by themselves: it is worth it if as many fit.
    min_events: int = 16
    #: And if one in so many of the events that are left fits …
    min_share: int = 16
    #: … by a sample of so many of them.
    sampled_events: int = 256
    #: After so many templates in a row that were not worth it, the rest of a batch is read event by event.
    max_misses: int = 4
    #: So many bytes are compared at a time: they stay in the processor's cache.
    compared_bytes: int = 2**17


_LIMITS: Final = AlikeLimits()
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[-+.0-9eE]+')
_NUMBER: Final = re.compile(rb"[1-9][0-9]{0,17}").fullmatch
_DIGIT: Final = re.compile(rb"[0-9]")
#: What a field of a position is written as: a number, or a text that is one; a text that ends with one; a text of a list that begins so.
_WHOLE, _TRAILING = re.compile(rb'"?([0-9]{1,20})"?'), re.compile(rb'"(?:.*[^0-9])?([0-9]{1,20})"')
_MILLISECONDS: Final = re.compile(rb"[1-9][0-9]{0,13}")
_FIRST: Final = re.compile(rb'"\[\\"([0-9]{1,20})\\".*"')
_FORMS: Final = {"file": _TRAILING, "sequence": _FIRST}
#: The fields whose numbers are the order and the identity of a position, by connector, where they are numbers alone.
_NUMBERED: Final = {
    "postgresql": (("sequence",), ("lsn",)),
    "mysql": (("file", "pos"), ("row",)),
    "mariadb": (("file", "pos"), ("row",)),
}
#: The fields that say of which scope and table a position is.
_NAMES: Final = ("name", "db", "schema", "table")


class _RawSourceBlock(msgspec.Struct):
    """The texts of a position, where they stand in the event."""

    connector: Any = None
    name: msgspec.Raw = msgspec.Raw()
    db: msgspec.Raw = msgspec.Raw()
    schema: msgspec.Raw = msgspec.Raw()
    table: msgspec.Raw = msgspec.Raw()
    collection: msgspec.Raw = msgspec.Raw()
    sequence: msgspec.Raw = msgspec.Raw()
    commit_lsn: msgspec.Raw = msgspec.Raw()
    lsn: msgspec.Raw = msgspec.Raw()
    file: msgspec.Raw = msgspec.Raw()
    pos: msgspec.Raw = msgspec.Raw()
    row: msgspec.Raw = msgspec.Raw()
    ts_ms: msgspec.Raw = msgspec.Raw()


class _RawEvent(msgspec.Struct):
    """The texts of an envelope, where they stand in the event."""

    op: Any = None
    before: msgspec.Raw = msgspec.Raw()
    after: msgspec.Raw = msgspec.Raw()
    source: _RawSourceBlock | None = None
    schema: msgspec.Raw = msgspec.Raw()
    payload: msgspec.Raw = msgspec.Raw()


_EVENT: Final = msgspec.json.Decoder(_RawEvent).decode
_VALUES: Final = msgspec.json.Decoder(msgspec.Raw).decode_lines


@dataclass(frozen=True, slots=True)
class AlikeEvents:
    """Events of a batch as rows of a log, one each: `row` is the number of the event in the batch, ascending; the columns are Arrow's."""

    row: NDArray[np.int64]
    key: pa.Array
    value: pa.Array
    sequence: pa.Array
    #: When the event happened in its source, in ms (int64); null where it does not say so.
    time: pa.Array


NO_EVENTS: Final = AlikeEvents(
    np.empty(0, np.int64), pa.nulls(0, pa.binary()), pa.nulls(0, pa.binary()), pa.nulls(0, pa.string()), pa.nulls(0, pa.int64())
)


def alike_events(
    keys: pa.Array, values: pa.Array, envelope: Envelope, others: Sequence[int] = (), *, limits: AlikeLimits = _LIMITS
) -> AlikeEvents:
    """Return the events of a batch, keys and values in binary, that are alike; `others` are rows to leave out."""
    is_plain = envelope.kind == "debezium" and not (envelope.key or envelope.sequence)
    left = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False)) if is_plain else np.empty(0, np.int64)
    left = left[~np.isin(left, others)] if len(others) else left
    texts = values if len(left) == len(values) else values.take(pa.array(left))
    taken, misses, typed = list[_Taken](), 0, typed_rows(envelope)
    while len(left) >= limits.min_events and misses < limits.max_misses:
        template = _learn(texts[len(left) * (misses + 1) // (limits.max_misses + 1)].as_py(), envelope)
        if template is None or not _is_worth(template, texts, limits):
            misses += 1
            continue
        fits, misses = template.fits(texts, limits.compared_bytes), 0
        taken.append(template.take(_those(texts, fits), left[fits], envelope, typed))
        left, texts = left[~fits], texts if fits.all() else texts.filter(pa.array(~fits))
    return _in_order(taken or [_Taken.nothing()], keys, envelope.key_format)


def _is_worth(template: _Template, texts: pa.Array, limits: AlikeLimits) -> bool:
    sample = np.unique(np.linspace(0, len(texts) - 1, limits.sampled_events).astype(np.int64))
    expected = template.fits(texts.take(pa.array(sample)), limits.compared_bytes).mean() * len(texts)
    return bool(expected >= max(limits.min_events, len(texts) // limits.min_share))


def _those(column: pa.Array, which: Mask) -> pa.Array:
    return column if which.all() else column.filter(pa.array(which))


@dataclass(frozen=True, slots=True)
class _Taken:
    """Events that fit one template."""

    row: NDArray[np.int64]
    value: pa.Array
    sequence: pa.Array
    time: pa.Array

    def without_newest(self) -> _Taken:
        """Return all but the last one of the highest sequence: read by itself, it tells which columns its schema names."""
        is_older = np.ones(len(self.row), dtype=np.bool_)
        is_older[np.flatnonzero(pc.equal(self.sequence, highest(self.sequence)).to_numpy(zero_copy_only=False))[-1]] = False
        return _Taken(self.row[is_older], *(_those(column, is_older) for column in (self.value, self.sequence, self.time)))

    @staticmethod
    def nothing() -> _Taken:
        return _Taken(np.empty(0, np.int64), pa.nulls(0, pa.binary()), pa.nulls(0, pa.string()), pa.nulls(0, pa.int64()))


def _in_order(taken: Sequence[_Taken], keys: pa.Array, key_format: KeyFormat) -> AlikeEvents:
    """Return the events of several templates in the order of the batch, with their keys; one whose key cannot be read is left out."""
    rows = np.concatenate([part.row for part in taken])
    columns = [_join(column) for column in zip(*((part.value, part.sequence, part.time) for part in taken), strict=True)]
    if (np.diff(rows) < 0).any():
        order = np.argsort(rows)
        rows, columns = rows[order], [column.take(pa.array(order)) for column in columns]
    key, is_known = _canonical(keys if len(rows) == len(keys) else keys.take(pa.array(rows)), key_format)
    return AlikeEvents(rows[is_known], *(_those(column, is_known) for column in (key, *columns)))


def _join(parts: Sequence[pa.Array]) -> pa.Array:
    return parts[0] if len(parts) == 1 else pa.concat_arrays(list(parts))


def _canonical(keys: pa.Array, key_format: KeyFormat) -> tuple[pa.Array, Mask]:
    """Return keys in their canonical form, and which of them can be read."""
    is_known = np.ones(len(keys), dtype=np.bool_)
    others = np.ones(len(keys), dtype=np.bool_)
    if key_format in {"", "json"}:
        others = ~pc.match_substring_regex(keys, rf"\A(?:{CANONICAL})\z").fill_null(True).to_numpy(zero_copy_only=False)  # noqa: FBT003
    if not others.any():
        return keys, is_known
    at, texts, reader = np.flatnonzero(others), list[bytes | None](), KeyReader(key_format)
    for row, key in zip(at.tolist(), keys.take(pa.array(at)).to_pylist(), strict=True):
        try:
            text = NULL if key is None else reader.read(key)
            texts.append(text if text != NULL else None)
        except (NoEvent, RecursionError):
            texts.append(None)
            is_known[row] = False
    return pc.replace_with_mask(keys, pa.array(others), pa.array(texts, pa.binary())), is_known


@dataclass(frozen=True, slots=True)
class _Text:
    """A text of a template: each of its bytes is at least `lowest`, and at most `span` above it."""

    lowest: Bytes
    span: Bytes

    @staticmethod
    def of(text: bytes, fixed: Sequence[slice] = ()) -> _Text:
        """Return a piece of an event, in which digits of numbers and of texts may be others, but for the parts that are fixed."""
        lowest, span = np.frombuffer(text, np.uint8).copy(), np.zeros(len(text), np.uint8)
        for token in _TOKEN.finditer(text):
            is_text = token[0].startswith(b'"') and b"\\u" not in token[0]
            if is_text or _NUMBER(token[0]):
                digits = [token.start() + digit.start() for digit in _DIGIT.finditer(token[0])]
                lowest[digits], span[digits] = ord("0"), 9
                if not is_text and len(digits) > 1:  # such a number does not begin with 0
                    lowest[token.start()], span[token.start()] = ord("1"), 8
        for part in fixed:
            lowest[part], span[part] = np.frombuffer(text, np.uint8)[part], 0
        return _Text(lowest, span)

    def fits(self, texts: pa.Array, compared_bytes: int) -> Mask:
        """Tell which of some texts of this length fit; about `compared_bytes` of them are compared at a time."""
        matrix, fits = _matrix(texts, len(self.span)), np.ones(len(texts), dtype=np.bool_)
        step = max(1, compared_bytes // len(self.span))
        for start in range(0, len(texts), step):
            inside = matrix[start : start + step] - self.lowest <= self.span
            if not inside.all():
                fits[start : start + step] = inside.all(axis=1)
        return fits


@dataclass(frozen=True, slots=True)
class _Template:
    """What events that are alike have in common.

    `head` and `tail` are the texts before and behind their rows; of two rows, `between` is what parts them. `row` tells which of them is
    the row of the log, none of a deletion; `schema` is Connect's, if they carry it. `sequence` is that of the event from which it was
    learnt, and `digits` are the places of its numbers: where one begins in it, and where it begins and ends in the event, from the end.
    """

    head: _Text
    between: bytes
    tail: _Text
    row: int | None
    schema: bytes
    sequence: str
    digits: tuple[tuple[int, int, int], ...]
    #: Where the number of `source.ts_ms` begins and ends in the event, from the end; None where it has none behind its rows.
    time: tuple[int, int] | None

    def fits(self, texts: pa.Array, compared_bytes: int) -> Mask:
        """Tell which events have this form, whatever is in the place of their rows."""
        head, tail = len(self.head.span), len(self.tail.span)
        fits: Mask = pc.binary_length(texts).to_numpy() > head + tail
        for part, start, stop in ((self.tail, -tail, None), (self.head, 0, head)):
            fits[fits] = part.fits(pc.binary_slice(_those(texts, fits), start, stop), compared_bytes)
        return fits

    def take(self, texts: pa.Array, row: NDArray[np.int64], envelope: Envelope, typed: Typed) -> _Taken:
        """Return those of some events of this form that are to be read as the one from which it was learnt."""
        good = np.ones(len(texts), dtype=np.bool_)
        rows, each = pc.binary_slice(texts, len(self.head.span), -len(self.tail.span)), 1
        if self.between:
            parts, each = pc.split_pattern(rows, pattern=self.between, max_splits=1), 2
            good = pc.equal(pc.list_value_length(parts), each).to_numpy(zero_copy_only=False)
            rows = parts.filter(pa.array(good)).flatten()
        is_row: Mask = np.logical_and.reduce(_are_objects(rows).reshape(-1, each), axis=1)
        good[good] = is_row
        if self.row is None:
            value = pa.nulls(int(is_row.sum()), pa.binary())
        else:
            value = _those(rows if each == 1 else rows.take(pa.array(np.arange(self.row, len(rows), each))), is_row)
            if envelope.schema or self.schema:
                value = _cast(value, self.schema, typed)
            is_whole: Mask = value.is_valid().to_numpy(zero_copy_only=False) & ~_have_sign(value, signs_of(envelope))
            good[good], value = is_whole, _those(value, is_whole)
        if not good.any():
            return _Taken.nothing()
        whole = _those(texts, good)
        events = _Taken(row[good], value, self._sequences(whole), self._times(whole))
        return events.without_newest() if self.schema and self.row is not None else events

    def _times(self, texts: pa.Array) -> pa.Array:
        if self.time is None:
            return pa.nulls(len(texts), pa.int64())
        start, stop = self.time
        digits = _matrix(pc.binary_slice(texts, start, stop), stop - start)
        return pa.array((digits - ord("0")).astype(np.int64) @ 10 ** np.arange(stop - start - 1, -1, -1, dtype=np.int64))

    def _sequences(self, texts: pa.Array) -> pa.Array:
        characters = np.tile(np.frombuffer(self.sequence.encode(), np.uint8), (len(texts), 1))
        for at, start, stop in self.digits:
            characters[:, at : at + stop - start] = _matrix(pc.binary_slice(texts, start, stop), stop - start)
        offsets = np.arange(len(texts) + 1, dtype=np.int32) * len(self.sequence)
        return pa.StringArray.from_buffers(len(texts), pa.py_buffer(offsets), pa.py_buffer(characters))


def _learn(value: bytes, envelope: Envelope) -> _Template | None:
    """Return the template of an event; None for one that is no row of the log by itself, or whose position is not known."""
    events = read_events([None], [value], envelope)
    if len(events.row) != 1:
        return None
    position = SourcePosition.of(events.sequence[0])
    if not (position.scope and position.order):
        return None
    event = _EVENT(value)
    schema = _place(event.schema, value) if bytes(event.schema) not in {b"", NULL} else slice(0, 0)
    if event.op is None:
        event = _EVENT(event.payload)
    row = event.before if events.value[0] is None else event.after
    rows = _places_of_rows(event, value)
    if event.source is None or not bytes(row).startswith(b"{") or schema.stop > rows[0].start:
        return None
    tail = rows[-1].stop
    names = [_place(name, value) for name in (getattr(event.source, name) for name in (*_NAMES, "collection")) if len(name)]
    digits = _digits_of(event.source, position, value, tail)
    if digits is None or any(name.start < tail for name in names):
        return None
    return _Template(
        head=_Text.of(value[: rows[0].start], [schema]),
        between=value[rows[0].stop : rows[-1].start],
        tail=_Text.of(value[tail:], [slice(name.start - tail, name.stop - tail) for name in names]),
        row=None if events.value[0] is None else rows.index(_place(row, value)),
        schema=value[schema],
        sequence=events.sequence[0],
        digits=digits,
        time=_time_of(event.source, value, tail),
    )


def _place(part: msgspec.Raw, value: bytes) -> slice:
    """Return where a part of an event stands in the text of the event."""
    start = pa.py_buffer(part).address - pa.py_buffer(value).address
    return slice(start, start + len(part))


def _places_of_rows(event: _RawEvent, value: bytes) -> list[slice]:
    """Return where the row before and the row after a change stand in an event, in the order of its text; null has no place."""
    rows = (_place(row, value) for row in (event.before, event.after) if bytes(row).startswith(b"{"))
    return sorted(rows, key=attrgetter("start"))


def _time_of(source: _RawSourceBlock, value: bytes, tail: int) -> tuple[int, int] | None:
    """Return where the milliseconds of an event stand, as `_Template.time`; None where they are no number, or before the rows."""
    if _MILLISECONDS.fullmatch(bytes(source.ts_ms)) is None:
        return None
    place = _place(source.ts_ms, value)
    return (place.start - len(value), place.stop - len(value)) if place.start >= tail else None


def _digits_of(source: _RawSourceBlock, position: SourcePosition, value: bytes, tail: int) -> tuple[tuple[int, int, int], ...] | None:
    """Return where the numbers of a position stand, as `_Template.digits`; None where they stand before the rows, or otherwise."""
    order, identity = _NUMBERED.get(source.connector, ((), ())) if isinstance(source.connector, str) else ((), ())
    if len(source.commit_lsn) or not order:
        return None
    if order == ("sequence",) and _FIRST.fullmatch(bytes(source.sequence)) is None:
        order = identity  # PostgreSQL's rows of a snapshot, and events of old versions
    places = list[tuple[int, int, int]]()
    begin = position.text.index("/") + 1
    for fields, text in ((order, position.order), (identity, position.identity)):
        for number, name in enumerate(fields):
            raw, at = getattr(source, name), number * (DIGITS + 1)
            digits = _FORMS.get(name, _WHOLE).fullmatch(bytes(raw))
            if digits is None or text[at : at + DIGITS] != digits[1].decode().zfill(DIGITS):
                return None
            start = _place(raw, value).start + digits.start(1) - len(value)
            if start < tail - len(value):
                return None
            places.append((begin + at + DIGITS - len(digits[1]), start, start + len(digits[1])))
        begin += len(text) + 1
    return tuple(places)


def _matrix(texts: pa.Array, width: int) -> Bytes:
    """Return texts of one width, which no other array shares, as rows of bytes."""
    return np.frombuffer(texts.buffers()[2], np.uint8, len(texts) * width).reshape(len(texts), width)


def _ends(texts: pa.Array) -> NDArray[np.int32]:
    """Return where each text begins in the buffer, and where the last one ends."""
    return np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]


def _are_objects(texts: pa.Array) -> Mask:
    """Tell which of some texts are one JSON object each, with nothing around it."""
    ends = _ends(texts)
    data = memoryview(texts.buffers()[2])[ends[0] : ends[-1]]
    try:
        texts.cast(pa.string())  # msgspec does not look whether texts that it skips are UTF-8
        values = _VALUES(data)
    except (pa.ArrowInvalid, msgspec.DecodeError, RecursionError):
        values = []
    # Objects of these lengths, one behind the other, begin and end where the texts do.
    lengths = np.fromiter(map(len, values), np.int32, len(values))
    begins: Mask = np.frombuffer(data, np.uint8)[np.minimum(ends[:-1] - ends[0], len(data) - 1)] == ord("{")
    if begins.all() and np.array_equal(lengths, np.diff(ends)):
        return begins
    if len(texts) == 1:
        return np.zeros(1, dtype=np.bool_)
    half = len(texts) // 2
    return np.concatenate([_are_objects(texts[:half]), _are_objects(texts[half:])])


def _cast(rows: pa.Array, schema: bytes, typed: Typed) -> pa.Array:
    """Return rows by the columns that are given or that a schema names; null in the place of those that do not fit."""
    values = list[bytes | None]()
    for row in rows.to_pylist():
        try:
            values.append(typed(row, schema))
        except (NoEvent, RecursionError):
            values.append(None)
    return pa.array(values, pa.binary())


def _have_sign(texts: pa.Array, signs: frozenset[bytes]) -> Mask:
    """Tell which texts may contain one of some signs."""
    may_contain = pl.Series(texts.cast(pa.string())).str.contains("|".join(re.escape(sign.decode()) for sign in signs))
    return may_contain.fill_null(value=True).to_numpy()
