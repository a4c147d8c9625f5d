"""Keys of Kafka records beside JSON values or frames of a registry: each serializer, and frames that are told from numbers."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from lastword.compaction.rows.input_columns import REFUSAL
from lastword.streaming.append.sources import _read_frames

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lastword.change_data.events.event_keys import KeyFormat


class _Decoder:
    """Decodes frames of a zero byte and JSON."""

    def decode_column(self, column: pa.Array) -> Any:
        texts = column.to_pylist()
        is_frame = [text is not None and text[:1] == b"\0" and text[1:2] in {b"{", b"1"} for text in texts]
        values = [text[1:] if fits else None for text, fits in zip(texts, is_frame, strict=True)]
        reasons = {row: "no frame" for row, text in enumerate(texts) if text is not None and not is_frame[row]}
        return type("Column", (), {"values": pa.array(values, pa.binary()), "reasons": reasons})


def _read(keys: Sequence[bytes | None], key_format: KeyFormat, *, has_own_key: bool = True, decoder: Any = None) -> list[tuple[Any, Any]]:
    """Return key and refusal of each record, whose value is a frame."""
    values = [b'\0{"v":1}'] * len(keys)
    batch = pa.record_batch({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})
    (read,) = _read_frames(decoder, key_format, has_own_key, iter([batch]))
    return list(zip(read.column("key").to_pylist(), read.column(REFUSAL).to_pylist(), strict=True))


@pytest.mark.parametrize(
    ("key_format", "key", "text"),
    [
        ("long", struct.pack(">q", 5), b"5"),
        ("long", struct.pack(">q", -1), b"-1"),
        ("integer", struct.pack(">i", 7), b"7"),
        ("double", struct.pack(">d", 1.5), b"1.5"),
        ("string", b"1.10", b"1.10"),
        ("string", b"\0text", b"\0text"),
        ("json", b'{"b":1, "a":2}', b'{"a":2,"b":1}'),
        ("bytes", b"\0\xff", b"\0\xff"),
    ],
)
def test_a_key_of_each_serializer_is_a_text(key_format: KeyFormat, key: bytes, text: bytes) -> None:
    """With a registry and without; a number that begins with a zero byte is no frame then."""
    for decoder in (None, _Decoder()):
        assert _read([key, None], key_format, decoder=decoder) == [(text, None), (None, None)]


def test_a_key_of_another_serializer_is_a_dead_letter() -> None:
    """It keeps its bytes; the others are read."""
    ((first, _), (second, reason)) = _read([struct.pack(">q", 1), b"short"], "long")
    assert (first, second) == (b"1", b"short")
    assert "the key has 5 bytes, and key.format = long asks for 8" in reason


def test_without_a_format_keys_that_begin_as_frames_are_frames() -> None:
    """Others stay as they are; with columns of the row as the key the record's is not looked at."""
    keys = [b'\0{"id":1}', b"plain", b"\0\0"]
    assert _read(keys, "", decoder=_Decoder()) == [(b'{"id":1}', None), (b"plain", None), (b"\0\0", "key: no frame")]
    assert _read(keys, "", decoder=_Decoder(), has_own_key=False) == [(key, None) for key in keys]
    assert _read(keys, "") == [(key, None) for key in keys]
