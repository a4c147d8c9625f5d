"""A format for each schema: what is read, and why a frame or a schema cannot be."""

from __future__ import annotations

import pytest

from lastword.change_data.registry.formats import WriterSchema, format_of
from lastword.change_data.registry.schemas import RegisteredSchema, UndecodableFrame

_HEADER = b"\0\0\0\0\x07"


def _schema(kind: str, text: str) -> RegisteredSchema:
    return RegisteredSchema(id=7, kind=kind, text=text)


def test_json_is_its_own_text() -> None:
    """As the producer wrote it; the schema says the columns."""
    made = format_of(_schema("JSON", '{"type":"object","properties":{"é":{"type":"integer"}}}'))
    for text in ('{"é": 1}', '{"a":1}'):
        assert made.read(_HEADER + text.encode()) == (text.encode(), WriterSchema(7))
    assert str(made.data_type(())) == "struct<`é`: bigint>"


@pytest.mark.parametrize("payload", [b"{", b'{"a":"\xff"}', b""])
def test_a_payload_that_is_no_json_is_refused(payload: bytes) -> None:
    """With the schema's id."""
    with pytest.raises(UndecodableFrame, match="schema 7: the payload is no JSON"):
        format_of(_schema("JSON", "{}")).read(_HEADER + payload)


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("AVRO", "{", "the schema is no JSON"),
        ("XML", "", "its type is XML; AVRO, JSON and PROTOBUF can be read"),
        ("PROTOBUF", "x", "the schema is no serialized file descriptor"),
    ],
)
def test_a_schema_that_cannot_be_read_is_named_for_each_frame(kind: str, text: str, reason: str) -> None:
    """Its columns cannot be known either."""
    made = format_of(_schema(kind, text))
    for ask in (lambda: made.read(_HEADER), lambda: made.data_type(())):
        with pytest.raises(UndecodableFrame, match=rf"schema 7 cannot be read: .*{reason}"):
            ask()
