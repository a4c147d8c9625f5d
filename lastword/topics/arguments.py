r"""What the arguments of a topic's methods mean that name keys, partitions and columns.

| argument                            | read as                                     |
|-------------------------------------|---------------------------------------------|
| `keys="lime"`, `keys=b"lime"`       | the one key                                 |
| `keys=["lime", b"\x01"]`            | these keys; a text is its UTF-8             |
| `keys=[1]`, `keys={"id": 1}`        | refused: a key is bytes, and these name none |
| `partitions=0`, `partitions=[0, 2]` | these partitions                            |
| `columns="key"`                     | the one column                              |

A text is a sequence of texts, and bytes are a sequence of numbers, so that Python alone would take either for a list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from lastword.compaction.errors import UserError

_KEYS_ALLOWED: Final = "a text (its UTF-8 is the key), bytes, or a list of those; a key of JSON is its text, such as '{\"id\":1}'"
_BYTES: Final = (bytes, bytearray, memoryview)


def read_key(key: object, *, argument: str = "key") -> bytes:
    """Return a key as bytes; raise `UserError` for what is neither a text nor bytes."""
    if isinstance(key, str):
        try:
            return key.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            message = f"{argument} = {key!r}: a lone surrogate is no character of UTF-8; allowed is {_KEYS_ALLOWED}"
            raise UserError(message) from None
    if isinstance(key, _BYTES):
        return bytes(key)
    message = f"{argument} = {key!r}: allowed is {_KEYS_ALLOWED}"
    raise UserError(message)


def read_keys(keys: object, *, argument: str = "keys") -> list[bytes] | None:
    """Return the keys that an argument names as bytes, None for all; raise `UserError` naming the value that is no key."""
    if keys is None:
        return None
    if isinstance(keys, (str, *_BYTES)):
        return [read_key(keys, argument=argument)]
    return [read_key(key, argument=argument) for key in _read_list(keys, argument, _KEYS_ALLOWED)]


def read_partitions(partitions: object, *, argument: str = "partitions") -> list[int] | None:
    """Return the partitions that an argument names, None for all; whether the topic has them is not checked here."""
    allowed = "the number of a partition, or a list of those"
    if partitions is None:
        return None
    if hasattr(partitions, "__index__") and not isinstance(partitions, bool) and not isinstance(partitions, Iterable):
        return [partitions.__index__()]
    numbers = list[int]()
    for partition in _read_list(partitions, argument, allowed):
        if isinstance(partition, bool) or not hasattr(partition, "__index__"):
            message = f"{argument} = {partition!r}: allowed is {allowed}"
            raise UserError(message)
        numbers.append(partition.__index__())
    return numbers


def read_columns(columns: object, *, argument: str = "columns") -> list[str] | None:
    """Return the columns that an argument names, None for the default ones; whether they exist is not checked here."""
    allowed = "the name of a column, or a list of those"
    if columns is None:
        return None
    if isinstance(columns, str):
        return [columns]
    names = list[str]()
    for column in _read_list(columns, argument, allowed):
        if not isinstance(column, str):
            message = f"{argument} = {column!r}: allowed is {allowed}"
            raise UserError(message)
        names.append(column)
    if not names:
        message = f"{argument} is empty: allowed is {allowed}"
        raise UserError(message)
    return names


def read_offsets_by_partition(offsets: object, *, argument: str) -> dict[int, int]:
    """Return a mapping from partitions to offsets; raise `UserError` for anything else."""
    allowed = "a mapping from partitions to offsets, such as {0: 42}"
    if not isinstance(offsets, Mapping):
        message = f"{argument} = {offsets!r}: allowed is {allowed}"
        raise UserError(message)
    for partition, offset in offsets.items():
        if any(isinstance(number, bool) or not isinstance(number, int) for number in (partition, offset)):
            message = f"{argument}: {partition!r}: {offset!r} is no partition with its offset; allowed is {allowed}"
            raise UserError(message)
    return dict(offsets)


def check_decoder(decoder: object, envelope: object, *, subject: str) -> None:
    """Raise `UserError` for a decoder that would decode nothing, because the rows are no change events."""
    if decoder is not None and envelope is None:
        message = f"{subject}: a decoder decodes change events; give their envelope, e.g. Envelope(), or leave the decoder out"
        raise UserError(message)
    if decoder is not None and not hasattr(decoder, "decode_column"):
        message = f"{subject}: decoder = {decoder!r}: allowed is a RegistryDecoder"
        raise UserError(message)


def _read_list(values: Any, argument: str, allowed: str) -> list[Any]:
    """Return the elements of a list, a tuple, a set, a generator, or a column of Arrow, Polars, pandas or NumPy; not of a mapping."""
    is_table = hasattr(values, "columns")  # it would give the names of its columns
    if isinstance(values, (Mapping, str, *_BYTES)) or not isinstance(values, Iterable) or is_table:
        message = f"{argument} = {values!r}: allowed is {allowed}"
        raise UserError(message)
    if hasattr(values, "to_pylist"):  # the scalars of Arrow are no values of Python
        return list(values.to_pylist())
    return list(values)
