"""Rows of text files, as they stand there: which of their columns are the key and the value; nothing is given another type.

```
 {"id":"007","price":1.50}       key = id      007 = {"price":1.50}
 {"id":{"b":1,"a":2},"x":null}   key = id      {"a":2,"b":1} = {"x":null}
 id,price  007,1.50              key = id      007 = {"price":"1.50"}
```

The key of one column is its text, or canonical JSON of an object, an array or a number with a fraction; of several, a canonical JSON object
of them. Null and missing are no key. The value is a JSON object of the other columns, each with the text that it has in the file, or the
text of one column.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from lastword.change_data.columns.json_rows import NULL, NoEvent, canonical_object, canonical_value, excerpt, fields_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    #: The columns of a row, each as JSON text.
    Fields = Mapping[str, msgspec.Raw]

T = TypeVar("T")
_is_whole: Final = re.compile(rb"0|-?[1-9]\d*").fullmatch
_SPACED_COLON: Final = re.compile(rb'"[ \t\r\n]+:')
_LIST: Final = msgspec.json.Decoder(list[msgspec.Raw])
_OBJECTS: Final = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_PLAIN: Final = msgspec.json.Encoder()
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
#: What files in two bytes a character begin with.
_WIDE_MARKS: Final = (b"\xff\xfe", b"\xfe\xff")


class CorruptFile(Exception):
    """A file that is not what its source says it is; the text says why."""


class RowText(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A row of a file: its JSON object, and the columns of it; or its text, and what is wrong with it."""

    text: bytes = b""
    fields: Fields = {}
    malformed: str | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileColumns:
    """What of a row is the key and the value: the column `value`, or an object of `columns`; none: of all but the key's and `drop`."""

    key: Sequence[str]
    value: str = ""
    columns: Sequence[str] = ()
    drop: Sequence[str] = ()

    def key_of(self, fields: Fields) -> bytes | None:
        """Return the key of a row; None where no column of it has a value. Raises `NoEvent` for a number that cannot be computed with."""
        try:
            if len(self.key) == 1:
                text = _present(fields, self.key[0])
                return None if text is None else _text(text)
            columns = {name: _present(fields, name) for name in self.key}
            return canonical_object(columns) if any(columns.values()) else None
        except (msgspec.DecodeError, ArithmeticError, RecursionError) as error:
            values = ", ".join(f"{name} = {excerpt(text)}" for name in self.key if (text := _present(fields, name)) is not None)
            message = f"the key's column {values}: it cannot be a key ({error})"
            raise NoEvent(message) from None

    def value_of(self, fields: Fields) -> bytes | None:
        """Return the value of a row; None for the column of a value that is null or missing."""
        if self.value:
            text = _present(fields, self.value)
            return None if text is None else _plain(text)
        if self.columns:
            return _PLAIN.encode({name: fields.get(name) for name in self.columns})
        rest = dict(fields)
        for name in (*self.key, *self.drop):
            rest.pop(name, None)
        return _PLAIN.encode(rest)


def _present(fields: Fields, name: str) -> bytes | None:
    """Return the JSON text of a column; None for one that is null or missing."""
    raw = fields.get(name)
    text = b"" if raw is None else bytes(raw).strip()
    return None if text in {b"", NULL} else text


def _plain(text: bytes) -> bytes:
    """Return the characters of a JSON string, and any other JSON as it is."""
    return str(msgspec.json.decode(text)).encode() if text.startswith(b'"') else text


def _text(text: bytes) -> bytes:
    return _plain(text) if text.startswith(b'"') or _is_whole(text) else canonical_value(text)


def fields_of_row(text: bytes) -> Fields:
    """Return the columns of a JSON object; raise `NoEvent` for what is none, and for one that has a column twice."""
    fields = fields_of(text, "the row")
    _check_names(text, fields)
    return fields


def _check_names(text: bytes, fields: Fields) -> None:
    if _has_more_names(text, len(fields)) and (b"\\" in text or any(text.count(f'"{name}"'.encode()) > 1 for name in fields)):
        names = [name for name, _ in json.loads(text, object_pairs_hook=list, parse_int=str, parse_float=str)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            message = f"column {', '.join(twice)} comes twice in the row: {excerpt(text)}"
            raise NoEvent(message)


def _has_more_names(text: bytes, count: int) -> bool:
    """Tell whether a JSON object may have more names than `count`, here or in what it holds: each has a colon of its own."""
    return text.count(b":") > count and (text.count(b'":') > count or _SPACED_COLON.search(text) is not None)


def decode_json_lines(
    lines: Iterable[bytes], encoding: str, *, lines_at_a_time: int = 10_000, bytes_at_a_time: int = 2**24
) -> Iterator[list[RowText]]:
    """Yield the rows of a file with a JSON object in each line, a list at a time; blank lines are skipped.

    Raises `CorruptFile` for another encoding.
    """
    number = 1
    for block in cut_into_blocks(lines, len, most_items=lines_at_a_time, most_bytes=bytes_at_a_time):
        if number == 1:
            block[0] = without_mark(block[0], encoding)  # the mark belongs to the file
        texts = [line.rstrip(b"\r\n") for line in block]
        rows = _decode_together([text for text in texts if text.strip()], encoding)
        if rows is None:
            rows = [_decode_line(at, text, encoding) for at, text in enumerate(texts, start=number) if text.strip()]
        if rows:
            yield rows
        number += len(block)


def cut_into_blocks(
    items: Iterable[T], bytes_of: Callable[[T], int], *, most_items: int = 10_000, most_bytes: int = 2**24
) -> Iterator[list[T]]:
    """Yield items in lists; a list ends at `most_items`, or with the item that brings it to `most_bytes`."""
    block, size = list[T](), 0
    for item in items:
        block.append(item)
        size += bytes_of(item)
        if len(block) == most_items or size >= most_bytes:
            yield block
            block, size = [], 0
    if block:
        yield block


def _decode_line(number: int, text: bytes, encoding: str) -> RowText:
    row = _decode_row(text, encoding)
    return row if row.malformed is None else RowText(malformed=row.malformed, detail=f"line {number}: {row.detail}")


def _decode_together(texts: Sequence[bytes], encoding: str) -> list[RowText] | None:
    """Return the rows of some lines, decoded as one array, which is faster; None if anything may be wrong with a line."""
    if encoding.upper() != "UTF-8":
        return None
    array = b"[" + b",".join(texts) + b"]"
    try:
        array.decode()
        if [bytes(text) for text in _LIST.decode(array)] != texts:  # a line may hold two rows, or half a row
            return None
        rows = _OBJECTS.decode(array)
        if array.count(b'":') > sum(map(len, rows)) or _SPACED_COLON.search(array):
            for text, fields in zip(texts, rows, strict=True):
                _check_names(text, fields)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, NoEvent):
        return None
    return [RowText(text=text, fields=fields) for text, fields in zip(texts, rows, strict=True)]


def decode_json_document(text: bytes, encoding: str) -> Iterator[RowText]:
    """Yield the rows of a file that is one JSON object, or an array of them. Raises `CorruptFile` for one that is neither."""
    text = without_mark(text, encoding)
    try:
        whole = text.decode(encoding).encode().strip()
        rows = [bytes(row).strip() for row in _LIST.decode(whole)] if whole.startswith(b"[") else [whole]
        if not whole.startswith(b"["):
            fields_of(whole, "the file")
    except UnicodeDecodeError as error:
        raise CorruptFile(_decoding_error(error, encoding)) from None
    except (msgspec.DecodeError, NoEvent, RecursionError) as error:
        message = f"it is neither one JSON object nor an array of them (multiLine): {error}"
        raise CorruptFile(message) from None
    yield from (_decode_row(row, "UTF-8") for row in rows)


def _decode_row(text: bytes, encoding: str) -> RowText:
    try:
        decoded = text.decode(encoding)
    except UnicodeDecodeError as error:
        return RowText(malformed=text.decode(encoding, "backslashreplace"), detail=_decoding_error(error, encoding))
    row = text if encoding == "UTF-8" else decoded.encode()
    try:
        return RowText(text=row, fields=fields_of_row(row))
    except NoEvent as error:
        return RowText(malformed=decoded, detail=str(error))


def without_mark(text: bytes, encoding: str) -> bytes:
    """Return the begin of a file without UTF-8's mark; raise `CorruptFile` for that of another encoding than is expected."""
    if text.startswith(_WIDE_MARKS) and encoding.upper() == "UTF-8":
        message = (
            'it begins as a file in UTF-16 does, and is read as UTF-8; set the option encoding, e.g. options = { encoding = "UTF-16" }'
        )
        raise CorruptFile(message)
    return text.removeprefix(_BYTE_ORDER_MARK)


def _decoding_error(error: UnicodeDecodeError, encoding: str) -> str:
    wrong = error.object[error.start : error.start + 1]
    return f"byte {wrong!r} at {error.start} is not {encoding}; the option encoding says how the files are encoded (e.g. ISO-8859-1)"


def csv_header(names: Sequence[str | None], encoding: str) -> list[str]:
    """Return the columns that the first row of a CSV file names; raise `CorruptFile` for one that names none, or one twice."""
    try:
        texts = [_decode(name or "", encoding) for name in names]
    except UnicodeDecodeError as error:
        message = f"its header: {_decoding_error(error, encoding)}"
        raise CorruptFile(message) from None
    twice = sorted({name for name in texts if texts.count(name) > 1})
    if twice:
        message = f"its header names a column twice: {', '.join(map(repr, twice))}"
        raise CorruptFile(message)
    return texts


def csv_row(header: Sequence[str], fields: Sequence[str | None], encoding: str) -> RowText:
    """Return a row of a CSV file as an object of texts; a field with nothing in it, not even quotes, is null.

    The characters of `fields` are the bytes of the file, in ISO-8859-1.
    """
    try:
        texts = [None if field is None else _decode(field, encoding) for field in fields]
    except UnicodeDecodeError as error:
        return RowText(malformed=_escape(",".join(field or "" for field in fields), encoding), detail=_decoding_error(error, encoding))
    columns = {name: msgspec.Raw(_PLAIN.encode(text)) for name, text in zip(header, texts, strict=True)}
    return RowText(text=_PLAIN.encode(columns), fields=columns)


def csv_misfit(text: str, count: int, header: Sequence[str], encoding: str) -> RowText:
    """Return the malformed row of a CSV line that has more or fewer fields than the header has columns."""
    shown = _escape(text, encoding)
    detail = f"the row has {count} fields, and the header names {len(header)} columns: {excerpt(shown.encode())}"
    return RowText(malformed=shown, detail=detail)


def _decode(field: str, encoding: str) -> str:
    return field if field.isascii() else field.encode("ISO-8859-1").decode(encoding)


def _escape(text: str, encoding: str) -> str:
    return text.encode("ISO-8859-1").decode(encoding, "backslashreplace")
