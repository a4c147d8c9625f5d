"""Headers of records to which a connector adds fields of a flattened event (`add.headers`), as the position of a tombstone.

```
 header          bytes                                         written by                         field
 __op            d                                             SimpleHeaderConverter              op: d
 __source_lsn    27330312                                      SimpleHeaderConverter, JSON        source_lsn: 27330312
 __source_lsn    {"schema":{"type":"int64"},"payload":27330312}  JsonConverter with schemas       source_lsn: 27330312
 __source_file   "bin.000003"                                  JsonConverter                      source_file: bin.000003
 __source_lsn    00 00 00 00 05 ...                            a converter of a schema registry   not read: the event is refused
```

Only fields that say what an event is and where it stands are read: `op`, and those of `event_positions.SourceBlock`.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lastword.change_data.columns.json_rows import NULL, SHOWN_CHARACTERS, NoEvent, split_schema
from lastword.change_data.events.envelopes import USUAL_ADDED_FIELDS, Envelope, names_of_headers
from lastword.change_data.events.event_positions import SourceBlock
from lastword.compaction.rows.input_columns import HEADERS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    #: The headers of some records, each with its name, by row number; a name may come more than once.
    Headers = Mapping[int, Sequence[tuple[str, bytes | None]]]

_ANY: Final = msgspec.json.Decoder()
_WHOLE: Final = re.compile(rb"0|-?[1-9][0-9]{0,17}").fullmatch


def header_names(envelope: Envelope) -> dict[str, str]:
    """Return the names of the headers that are read, each with the field that it is: {"__source_lsn": "source_lsn"}."""
    if envelope.kind != "debezium-flat":
        return {}
    names = names_of_headers(envelope)
    if not names and envelope.headers_prefix:
        names = {f"{envelope.headers_prefix}{field}": field for field in USUAL_ADDED_FIELDS}
    fields = SourceBlock.__struct_fields__
    return {name: field for name, field in names.items() if field == "op" or field.removeprefix("source_") in fields}


def added_headers(column: pa.Array, envelope: Envelope) -> Headers:
    """Return those of the headers of some records that are read, by row number."""
    names = header_names(envelope)
    if not names or column.null_count == len(column):
        return {}
    headers = column.cast(HEADERS)
    name, value = pc.list_flatten(headers).flatten()
    is_read = pc.is_in(name, value_set=pa.array(list(names), pa.string()))
    headers_of_rows: dict[int, list[tuple[str, bytes | None]]] = {}
    columns = (pc.list_parent_indices(headers), name, value)
    for row, *header in zip(*(column.filter(is_read).to_pylist() for column in columns), strict=True):
        headers_of_rows.setdefault(row, []).append((header[0], header[1]))
    return headers_of_rows


def header_fields(headers: Sequence[tuple[str, bytes | None]], names: Mapping[str, str], known: Collection[str]) -> dict[str, Any]:
    """Return the fields of an event in the headers of its record, but for those that are `known` from its value.

    Raises `NoEvent` for a header that cannot be read, and for one that comes twice with different values.
    """
    texts: dict[str, bytes | None] = {}
    for name, text in headers:
        if name in texts and texts[name] != text and names[name] not in known:
            message = f"header {name} comes twice, as {_format(texts[name])} and as {_format(text)}: which of them counts cannot be told"
            raise NoEvent(message)
        texts[name] = text
    return {names[name]: _value(name, text) for name, text in texts.items() if names[name] not in known}


def _value(name: str, text: bytes | None) -> Any:
    """Return the value of a header: a whole number, a text, or None; what is no JSON is a text as it stands."""
    value = text or b""
    with suppress(NoEvent, ValueError, msgspec.DecodeError):
        if value[:1] == b"{":
            value = split_schema(value)[0]
        if text is None or value == NULL:
            return None
        if value[:1] not in {b"{", b"\0"}:
            return _ANY.decode(value) if value[:1] == b'"' or _WHOLE(value) else value.decode()
    message = (
        f"header {name} = {_format(text)}: allowed is a text or JSON, as the connector's header.converter SimpleHeaderConverter or "
        "JsonConverter writes it; frames of a schema registry are not read"
    )
    raise NoEvent(message)


def _format(text: bytes | None) -> str:
    return "null" if text is None else repr(text[:SHOWN_CHARACTERS])[1:]
