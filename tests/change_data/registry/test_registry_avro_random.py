"""Random Avro schemas and values, written by another library."""

from __future__ import annotations

import io
import json
import math
import struct
from contextlib import suppress
from typing import Any

import fastavro
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lastword.change_data.registry.avro import parse_avro
from lastword.change_data.registry.avro_reader import reader_of
from lastword.change_data.registry.floats import shortest_float
from lastword.change_data.registry.formats import format_of
from lastword.change_data.registry.schemas import RegisteredSchema, UndecodableFrame
from tests.randomness import examples
from tests.storage.schema_registry.registries import header

_PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "float": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "bytes": st.binary(max_size=200),
    "string": st.text(max_size=200),
}


def _schemas(depth: int) -> st.SearchStrategy[Any]:
    primitive = st.sampled_from(sorted(_PRIMITIVES))
    if depth == 0:
        return primitive
    inner = _schemas(depth - 1)
    return st.one_of(
        primitive,
        st.sampled_from(sorted(set(_PRIMITIVES) - {"null"})).map(lambda kind: ["null", kind]),
        inner.map(lambda items: {"type": "array", "items": items}),
        inner.map(lambda values: {"type": "map", "values": values}),
        st.lists(inner, max_size=4).map(
            lambda kinds: {"type": "record", "fields": [{"name": f"f{at}", "type": kind} for at, kind in enumerate(kinds)]}
        ),
    )


def _named(schema: Any, names: list[str]) -> Any:
    """Give every record a name."""
    if isinstance(schema, list):
        return [_named(branch, names) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    copied = {word: _named(part, names) if word in {"items", "values"} else part for word, part in schema.items()}
    if schema["type"] == "record":
        names.append("")
        copied["name"] = f"r{len(names)}"
        copied["fields"] = [{"name": field["name"], "type": _named(field["type"], names)} for field in schema["fields"]]
    return copied


def _values(schema: Any) -> st.SearchStrategy[Any]:
    if isinstance(schema, str):
        return _PRIMITIVES[schema]
    if isinstance(schema, list):
        return st.one_of([_values(branch) for branch in schema])
    if schema["type"] == "array":
        return st.lists(_values(schema["items"]), max_size=4)
    if schema["type"] == "map":
        return st.dictionaries(st.text(max_size=5), _values(schema["values"]), max_size=4)
    return st.fixed_dictionaries({field["name"]: _values(field["type"]) for field in schema["fields"]})


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_what_fastavro_writes_is_read_back(data: st.DataObject) -> None:
    """Every value of every schema; and any cut of it is refused or is something else, but never an error of another kind."""
    schema = _named(data.draw(_schemas(3)), [])
    value = data.draw(_values(schema))
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    written = stream.getvalue()
    read = reader_of(parse_avro(json.dumps(schema)))
    assert read(written, 0) == (_floats(schema, value), len(written))
    cut = data.draw(st.integers(0, len(written)))
    garbage = header(1) + written[:cut] + data.draw(st.binary(max_size=10))
    with suppress(UndecodableFrame):
        format_of(RegisteredSchema(id=1, kind="AVRO", text=json.dumps(schema))).read(garbage)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=False))
def test_floats_have_their_shortest_number(value: float) -> None:
    """The shortest text of a float is the one that numpy finds."""
    assert shortest_float(value) == float(str(np.float32(value)))


def test_the_smallest_floats_have_at_least_two_digits() -> None:
    """As Java writes them."""
    assert [shortest_float(value * 2.0**-149) for value in (1, 7, -100)] == [1.4e-45, 9.8e-45, -1.4e-43]


def _floats(schema: Any, value: Any) -> Any:
    """Return a value with the shortest number for each float."""
    if schema == "float" and value is not None:
        return next(short for digits in range(2, 18) if _as_float(short := float(f"{value:.{digits}g}")) == value)
    if isinstance(schema, list):
        return None if value is None else _floats(schema[1], value)
    if not isinstance(schema, dict):
        return value
    if schema["type"] == "array":
        return [_floats(schema["items"], item) for item in value]
    if schema["type"] == "map":
        return {name: _floats(schema["values"], item) for name, item in value.items()}
    return {field["name"]: _floats(field["type"], value[field["name"]]) for field in schema["fields"]}


def _as_float(value: float) -> float:
    try:
        number: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.inf
    return number
