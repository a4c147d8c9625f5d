"""Avro's binary form, read into what JSON has: one function for each type of a schema, made once for the schema.

```
 record {id: long, note: union(null, string)}              data  06 02 04 68 69
   read(data, at) ──► id: long(data, 0) ──► 3, 1
                      note: nullable string(data, 1) ──► "hi", 5            ──► {"id": 3, "note": "hi"}, 5
```

A reader takes the data and a position, and returns the value and the position behind it. Logical types are not applied: a value stays the
number, text or bytes that Connect's JsonConverter writes for it, and nothing of it is lost. Of a float it takes the shortest decimal
number that means the same float, as Java does.

Data may be anything. A reader ends with a `ValueError`, an `IndexError` or a `RecursionError` if the data does not fit the schema: a length
below zero, a branch or symbol that there is not, an end that comes too early. fastavro's compiled reader lets a negative branch count from
the end, and overflows the C stack, which ends the process, on data that nests a recursive record some thousand times.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from lastword.change_data.registry.floats import shortest_float, special_number

if TYPE_CHECKING:
    from lastword.change_data.registry.avro import AvroType

#: Takes the data and a position; returns the value and the position behind it.
Reader: TypeAlias = Callable[[bytes, int], tuple[Any, int]]

_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")
_MAX_INT: Final = 2**31
_LONG_BITS: Final = 64
_LONG_BYTES: Final = 10
#: An array may have more items than bytes if its items take none; a number beyond this is no number of items.
_MAX_EMPTY_ITEMS: Final = 1_000_000


def reader_of(schema: AvroType) -> Reader:
    """Return the function that reads data of a schema."""
    return _AvroReaders().reader(schema)


class _AvroReaders:
    """Makes the readers of one schema."""

    def __init__(self) -> None:
        self._records: dict[int, Reader] = {}

    def reader(self, schema: AvroType) -> Reader:  # noqa: PLR0911  one for each kind of type
        kind = schema.kind
        if kind in _PRIMITIVES:
            return _PRIMITIVES[kind]
        if kind == "record":
            return self._records.get(id(schema)) or self._record(schema)
        if kind == "enum":
            return _enum(schema.attributes["symbols"])
        if kind == "fixed":
            return _read_fixed_bytes(schema.attributes["size"])
        if kind == "union":
            return self._union(schema)
        inner = self.reader(schema.inner[0])
        if kind == "map":
            return _blocks(_entry(inner), dict)
        entry = schema.inner[0]
        if entry.is_map_entry:
            return self._map_of_entries(entry)
        return _blocks(inner, list)

    def _record(self, schema: AvroType) -> Reader:
        fields: list[tuple[str, Reader]] = []

        def read_record(data: bytes, at: int) -> tuple[Any, int]:
            record = {}
            for name, read in fields:
                record[name], at = read(data, at)
            return record, at

        self._records[id(schema)] = read_record  # a field may be the record itself
        fields += [(field.name, self.reader(field.type)) for field in schema.fields]
        return read_record

    def _union(self, schema: AvroType) -> Reader:
        other = schema.nullable
        if other is not None:
            return _nullable(self.reader(other), null=[branch.kind for branch in schema.inner].index("null"))
        if len(schema.inner) == 1:
            return _branches([self.reader(schema.inner[0])])
        nothing = dict.fromkeys(schema.branch_names)
        names = iter(nothing)
        return _branches(
            [_read_null if branch.kind == "null" else _named_reader(next(names), nothing, self.reader(branch)) for branch in schema.inner]
        )

    def _map_of_entries(self, entry: AvroType) -> Reader:
        """Read a map whose keys are not plain texts; JsonConverter writes pairs, and an object only if the keys are texts."""
        read_entries = _blocks(self.reader(entry), list)
        key = next(field.type for field in entry.fields if field.name == "key")
        as_object = (key.nullable or key).kind in {"string", "enum"}

        def read_map(data: bytes, at: int) -> tuple[Any, int]:
            entries, at = read_entries(data, at)
            if as_object:
                return {"null" if entry["key"] is None else entry["key"]: entry["value"] for entry in entries}, at
            return [[entry["key"], entry["value"]] for entry in entries], at

        return read_map


def _read_null(_data: bytes, at: int) -> tuple[Any, int]:
    return None, at


def _read_boolean(data: bytes, at: int) -> tuple[Any, int]:
    byte = data[at]
    if byte > 1:
        message = f"a boolean is 0 or 1, not {byte} (byte {at})"
        raise ValueError(message)
    return byte == 1, at + 1


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """Read a number in zigzag form, seven bits a byte, the lowest first."""
    byte = data[at]
    if byte < 128:  # noqa: PLR2004  the last byte has no continuation bit
        return (byte >> 1) ^ -(byte & 1), at + 1
    number, shift, end = byte & 127, 7, at + 1
    for byte in data[end : at + _LONG_BYTES]:
        number |= (byte & 127) << shift
        end += 1
        if byte < 128:  # noqa: PLR2004
            break
        shift += 7
    else:
        if end == len(data):
            raise IndexError
        number = 1 << _LONG_BITS
    if number >> _LONG_BITS:
        message = f"a number has more than 64 bits (byte {at})"
        raise ValueError(message)
    return (number >> 1) ^ -(number & 1), end


def _read_int(data: bytes, at: int) -> tuple[Any, int]:
    number, end = read_long(data, at)
    if not -_MAX_INT <= number < _MAX_INT:
        message = f"an int has more than 32 bits: {number} (byte {at})"
        raise ValueError(message)
    return number, end


def _read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = read_long(data, at)
    end = at + size
    if size < 0 or end > len(data):
        message = f"{size} bytes cannot follow byte {at} of {len(data)}"
        raise ValueError(message)
    return data[at:end], end


def _read_string(data: bytes, at: int) -> tuple[Any, int]:
    size = data[at]
    if size < 128:  # noqa: PLR2004  most texts are short: their size is one byte
        size, at = (size >> 1) ^ -(size & 1), at + 1
    else:
        size, at = read_long(data, at)
    end = at + size
    if size < 0 or end > len(data):
        message = f"a text of {size} bytes cannot follow byte {at} of {len(data)}"
        raise ValueError(message)
    return data[at:end].decode(), end


def _read_float(data: bytes, at: int) -> tuple[Any, int]:
    if at + 4 > len(data):
        raise IndexError
    return shortest_float(_FLOAT.unpack_from(data, at)[0]), at + 4


def _read_double(data: bytes, at: int) -> tuple[Any, int]:
    if at + 8 > len(data):
        raise IndexError
    value = _DOUBLE.unpack_from(data, at)[0]
    return value if value - value == 0.0 else special_number(value), at + 8


_PRIMITIVES: Final[dict[str, Reader]] = {
    "null": _read_null,
    "boolean": _read_boolean,
    "int": _read_int,
    "long": read_long,
    "float": _read_float,
    "double": _read_double,
    "bytes": _read_bytes,
    "string": _read_string,
}


def _enum(symbols: list[str]) -> Reader:
    def read_enum(data: bytes, at: int) -> tuple[Any, int]:
        index, end = read_long(data, at)
        if not 0 <= index < len(symbols):
            message = f"there is no symbol {index} of {len(symbols)} (byte {at})"
            raise ValueError(message)
        return symbols[index], end

    return read_enum


def _read_fixed_bytes(size: int) -> Reader:
    def read_fixed(data: bytes, at: int) -> tuple[Any, int]:
        end = at + size
        if end > len(data):
            raise IndexError
        return data[at:end], end

    return read_fixed


def _nullable(read_other: Reader, *, null: int) -> Reader:
    """Read a union of null and one other type; the null is branch 0 or 1, which is written as byte 0 or 2."""
    nothing, something = (0, 2) if null == 0 else (2, 0)

    def read_nullable(data: bytes, at: int) -> tuple[Any, int]:
        byte = data[at]
        if byte == something:
            return read_other(data, at + 1)
        if byte == nothing:
            return None, at + 1
        message = f"a union of 2 has no such branch: byte {byte} (byte {at})"
        raise ValueError(message)

    return read_nullable


def _branches(readers: list[Reader]) -> Reader:
    def read_union(data: bytes, at: int) -> tuple[Any, int]:
        index, end = read_long(data, at)
        if not 0 <= index < len(readers):
            message = f"a union of {len(readers)} has no branch {index} (byte {at})"
            raise ValueError(message)
        return readers[index](data, end)

    return read_union


def _named_reader(name: str, nothing: dict[str, None], read: Reader) -> Reader:
    """Read a branch of a union of several types: Connect makes it a struct with one field for each type, of which one is set."""

    def read_branch(data: bytes, at: int) -> tuple[Any, int]:
        value, at = read(data, at)
        return {**nothing, name: value}, at

    return read_branch


def _entry(read_value: Reader) -> Reader:
    def read_entry(data: bytes, at: int) -> tuple[Any, int]:
        key, at = _read_string(data, at)
        value, at = read_value(data, at)
        return (key, value), at

    return read_entry


def _blocks(read_item: Reader, collect: Callable[[list[Any]], Any]) -> Reader:
    """Return a reader of an array or a map: blocks of items, the last one empty; behind a negative count stands the size in bytes."""

    def read_blocks(data: bytes, at: int) -> tuple[Any, int]:
        items: list[Any] = []
        while True:
            count, at = read_long(data, at)
            if count == 0:
                return collect(items), at
            if count < 0:
                count = -count
                _, at = read_long(data, at)
            if count > len(data) + _MAX_EMPTY_ITEMS:
                message = f"{count} items cannot follow byte {at} of {len(data)}"
                raise ValueError(message)
            for _ in range(count):
                item, at = read_item(data, at)
                items.append(item)

    return read_blocks
