"""JSON rows and keys of change events, field by field: what is not touched keeps its text, so numbers keep their digits.

```
 {"schema":{…},"payload":{"id":5}}    payload_of      {"id":5}
 {"b":1, "a":1.0}                     canonical_key   {"a":1,"b":1}     the same key, whoever wrote it
```
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

SHOWN_CHARACTERS: Final = 120
NULL: Final = b"null"
#: Why an event is refused whose brackets no parser follows.
NESTED: Final = "its JSON is nested too deeply"
_RAW_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ANY: Final = msgspec.json.Decoder()
#: The most common keys are canonical as they come: one column, a whole number or a text of plain characters.
CANONICAL: Final = r'\{"[A-Za-z0-9_]+":(?:0|-?[1-9][0-9]{0,17}|"[ !#-\[\]-~]*")\}'
_IS_CANONICAL: Final = re.compile(CANONICAL.encode()).fullmatch
_NO_FIELD_NAME: Final = re.compile(r'["\\\x00-\x1f]').search
_SORTED: Final = msgspec.json.Encoder(order="sorted")
_PLAIN: Final = msgspec.json.Encoder()


def can_name_a_field(name: str) -> bool:
    """Tell whether msgspec decodes a JSON field of this name into the field of a class."""
    return _NO_FIELD_NAME(name) is None


class NoEvent(Exception):
    """An event that cannot be read; the text says why."""


def canonical_key(key: bytes) -> bytes:
    """Return a key as canonical JSON: without Connect's schema, fields in the order of their names, no spaces, whole numbers as such.

    A key that is no JSON is a text: its JSON string.
    """
    if _IS_CANONICAL(key):
        return key
    try:
        found = _ANY.decode(key)
    except (msgspec.DecodeError, UnicodeDecodeError):
        try:
            return _SORTED.encode(key.decode())
        except UnicodeDecodeError:
            message = f"the key is neither JSON nor UTF-8: {key[:SHOWN_CHARACTERS]!r}"
            raise NoEvent(message) from None
    if isinstance(found, dict) and set(found) == {"schema", "payload"}:
        found = found["payload"]
    return canonical_text(found)


def canonical_text(value: Any) -> bytes:
    """Return a value as canonical JSON."""
    return _SORTED.encode(_canonical(value))


def _canonical(value: Any) -> Any:
    """Return a JSON value in which whole numbers are written as such."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, dict):
        return {name: _canonical(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_canonical(one) for one in value]
    return value


def unwrapped(value: bytes) -> tuple[bytes, bytes]:
    """Return a value without Connect's schema, and the schema; the empty text if it carries none."""
    if b'"payload"' not in value:
        return value.strip(), b""
    fields = fields_of(value, "the value")
    if set(fields) != {"schema", "payload"}:
        return value, b""
    return bytes(fields["payload"]).strip(), bytes(fields["schema"])


def fields_of(text: bytes, what: str) -> dict[str, msgspec.Raw]:
    """Return the fields of a JSON object, each as its text."""
    try:
        return _RAW_FIELDS.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message = f"{what} is no JSON object ({error}): {shown(text)}"
        raise NoEvent(message) from None
    except RecursionError:
        raise NoEvent(NESTED) from None


def document(text: bytes) -> bytes:
    """Return a row that is a JSON object, or a JSON text that holds one, as a document store's is sent."""
    found = _ANY.decode(text).encode() if text[:1] == b'"' else text
    fields_of(found, "the row")
    return bytes(found)


def resolved(row: bytes, names: Sequence[str], known: bytes | None, placeholders: frozenset[bytes]) -> tuple[bytes, tuple[str, ...]]:
    """Return a row with the columns that it leaves out from another one of its key, and the names of those that this one lacks too.

    `row` and `known` are JSON objects; `placeholders` are the texts that stand for a value that was left out.
    """
    if known is None:
        return row, tuple(names)
    fields, others = fields_of(row, "the row"), fields_of(known, "the row")
    found = {name: others[name] for name in names if name in others and not is_one_of(bytes(others[name]), placeholders)}
    return (_PLAIN.encode({**fields, **found}) if found else row), tuple(name for name in names if name not in found)


def without(row: bytes, names: Sequence[str]) -> bytes:
    """Return a row with null in some columns."""
    return _PLAIN.encode({**fields_of(row, "the row"), **dict.fromkeys(names)})


def is_one_of(text: bytes, texts: frozenset[bytes]) -> bool:
    """Tell whether a JSON text is one of some compact ones, whatever its spaces."""
    text = text.strip()
    return text in texts or (text[:1] in {b"[", b"{"} and _PLAIN.encode(_ANY.decode(text)) in texts)


def shown(text: bytes) -> str:
    """Return the beginning of a text, for messages."""
    return text[:SHOWN_CHARACTERS].decode("utf-8", "replace") + ("…" if len(text) > SHOWN_CHARACTERS else "")
