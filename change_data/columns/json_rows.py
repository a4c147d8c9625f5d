"""JSON rows and keys of change events, field by field: what is not touched keeps its text, so numbers keep their digits.

```
 {"schema":{…},"payload":{"id":5}}    payload_of      {"id":5}
 {"b":1, "a":1.0}                     canonical_json  {"a":1,"b":1}     the same key for every writer
```
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

SHOWN_CHARACTERS: Final = 120
NULL: Final = b"null"
#: Why an event is refused whose brackets no parser follows.
NESTED: Final = "its JSON is nested too deeply"
_RAW_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ANY: Final = msgspec.json.Decoder()
#: The most common keys are canonical as they come: one column, a whole number or a text of plain characters.
CANONICAL: Final = r'\{"[A-Za-z0-9_]+":(?:0|-?[1-9][0-9]{0,17}|"[ !#-\[\]-~]*")\}'
CANONICAL_KEY: Final = re.compile(CANONICAL.encode()).fullmatch
#: Numbers with more zeros between their digits and the point are written with an exponent.
_PLAIN_ZEROS: Final = 40
_NO_FIELD_NAME: Final = re.compile(r'["\\\x00-\x1f]').search
_SORTED: Final = msgspec.json.Encoder(order="sorted")
_PLAIN: Final = msgspec.json.Encoder()


def can_name_a_field(name: str) -> bool:
    """Tell whether msgspec decodes a JSON field of this name into the field of a class."""
    return _NO_FIELD_NAME(name) is None


class NoEvent(Exception):
    """An event that cannot be read; the text says why."""


def canonical_json(text: bytes) -> bytes:
    """Return a key as canonical JSON: fields in the order of their names, no spaces, whole numbers as such, all digits of other numbers.

    A number by itself stays as it is written, as it may be a text. What is no JSON is a text: its JSON string.
    """
    try:
        value = _EXACT.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, InvalidOperation):
        try:
            return json_text(text.decode())
        except UnicodeDecodeError:
            message = f"the key is neither JSON nor UTF-8: {text[:SHOWN_CHARACTERS]!r}"
            raise NoEvent(message) from None
    if isinstance(value, (dict, list, str)) or value is None:
        return _SORTED.encode(value)
    return text if text == text.strip() else json_text(text.decode())


def canonical_object(fields: Mapping[str, bytes | None]) -> bytes:
    """Return an object of JSON texts as canonical JSON; None is null."""
    return _SORTED.encode({name: None if text is None else _EXACT.decode(text) for name, text in fields.items()})


def canonical_value(text: bytes) -> bytes:
    """Return a JSON value as canonical JSON, also a number by itself."""
    return _SORTED.encode(_EXACT.decode(text))


def json_text(value: str | float) -> bytes:
    """Return a text or a number as JSON."""
    return _PLAIN.encode(value)


def _exact_number(text: str) -> float | msgspec.Raw:
    """Return a number with a point or an exponent so that JSON has all its digits; a whole number as such."""
    number, exact = float(text), Decimal(text)
    sign, digits, exponent = exact.as_tuple()
    shortest = "".join(map(str, digits)).rstrip("0") or "0"
    power = int(exponent) + len(digits) - len(shortest) if exact else 0
    if Decimal(repr(number)) == exact and not 0 <= power <= _PLAIN_ZEROS:
        return number
    if shortest == "0":
        return 0
    if 0 <= power <= _PLAIN_ZEROS:
        plain = shortest + "0" * power
    elif -_PLAIN_ZEROS <= power < 0:
        padded = shortest.zfill(1 - power)
        plain = f"{padded[:power]}.{padded[power:]}"
    else:
        plain = f"{shortest}e{power}"
    return msgspec.Raw(f"{'-' if sign else ''}{plain}".encode())


def split_schema(value: bytes) -> tuple[bytes, bytes]:
    """Return a value without Connect's schema, and the schema; the empty text if it carries none."""
    if b'"payload"' not in value:
        return value.strip(), b""
    fields = fields_of(value, "the value")
    schema = bytes(fields.get("schema", b"")).strip()
    if set(fields) != {"schema", "payload"} or not (schema == NULL or (schema[:1] == b"{" and b'"type"' in schema)):
        return value, b""
    return bytes(fields["payload"]).strip(), schema


def fields_of(text: bytes, what: str) -> dict[str, msgspec.Raw]:
    """Return the fields of a JSON object, each as its text."""
    try:
        return _RAW_FIELDS.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message = f"{what} is no JSON object ({error}): {excerpt(text)}"
        raise NoEvent(message) from None
    except RecursionError:
        raise NoEvent(NESTED) from None


def document(text: bytes) -> bytes:
    """Return a row that is a JSON object, or a JSON text that holds one, as a document store's is sent."""
    inner = _ANY.decode(text).encode() if text[:1] == b'"' else text
    fields_of(inner, "the row")
    return bytes(inner)


def excerpt(text: bytes) -> str:
    """Return the beginning of a text, for messages."""
    return text[:SHOWN_CHARACTERS].decode("utf-8", "replace") + ("…" if len(text) > SHOWN_CHARACTERS else "")


_EXACT: Final = msgspec.json.Decoder(float_hook=_exact_number)
