"""JSON Schema of a registry: the types of the columns that a schema describes, whoever wrote it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from lastword.change_data.columns.column_types import DecimalType, StructType
from lastword.change_data.registry.json_schema import data_type_of

if TYPE_CHECKING:
    from lastword.change_data.columns.column_types import DataType


def converted(schema: Any, **references: Any) -> DataType:
    """Return the type of a column that a JSON Schema describes."""
    return data_type_of(json.dumps(schema), [(name, json.dumps(part)) for name, part in references.items()])


def fields_of(schema: Any, **references: Any) -> dict[str, str]:
    """Return the types of the fields of a struct by name."""
    found = converted(schema, **references)
    assert isinstance(found, StructType)
    return {column.name: str(column.data_type) for column in found.fields}


def test_a_schema_that_connect_wrote() -> None:
    """Types, names, parameters and the order of fields come from its own properties."""
    decimal = {
        "type": "string",
        "title": "org.apache.kafka.connect.data.Decimal",
        "connect.type": "bytes",
        "connect.version": 1,
        "connect.parameters": {"scale": "2"},
    }
    schema = {
        "type": "object",
        "title": "shop.Value",
        "connect.version": 3,
        "properties": {
            "price": {"oneOf": [{"type": "null"}, decimal], "connect.index": 2},
            "id": {"type": "integer", "connect.type": "int16", "connect.index": 0, "default": 4},
            "weight": {"type": "number", "connect.type": "float32", "connect.index": 1},
            "tags": {"type": "object", "connect.type": "map", "additionalProperties": {"type": "string"}, "connect.index": 3},
            "pairs": {
                "type": "array",
                "connect.type": "map",
                "items": {"type": "object", "properties": {"key": {"type": "integer"}, "value": {"type": "boolean"}}},
                "connect.index": 4,
            },
            "list": {"type": "array", "items": {"oneOf": [{"type": "null"}, {"type": "integer"}]}, "connect.index": 5},
        },
    }
    assert list(fields_of(schema).items()) == [
        ("id", "smallint"),
        ("weight", "float"),
        ("price", "decimal(38,2)"),
        ("tags", "map<string,string>"),
        ("pairs", "json"),
        ("list", "array<bigint>"),
    ]
    assert converted(decimal) == DecimalType(38, 2)


@pytest.mark.parametrize(
    ("key", "data_type"),
    [
        ({"type": "string"}, "map<string,boolean>"),
        ({"type": "string", "title": "io.debezium.data.Uuid"}, "map<string,boolean>"),
        ({"oneOf": [{"type": "null"}, {"type": "string"}]}, "map<string,boolean>"),
        ({"type": "integer", "title": "io.debezium.time.Date"}, "json"),
        ({}, "json"),
    ],
)
def test_a_map_has_columns_if_its_keys_are_texts(key: Any, data_type: str) -> None:
    """Else it is a value of any kind, as JSON has no such maps."""
    pairs = {"type": "array", "connect.type": "map", "items": {"type": "object", "properties": {"key": key, "value": {"type": "boolean"}}}}
    assert str(converted(pairs)) == data_type


def test_a_schema_that_a_person_wrote() -> None:
    """Types of JSON Schema alone."""
    fields = fields_of(
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "properties": {
                "id": {"type": "integer"},
                "size": {"type": "number"},
                "name": {"type": ["string", "null"]},
                "state": {"enum": ["a", "b"]},
                "gone": {"enum": ["a", None]},
                "any": {},
                "true": True,
                "two": {"type": ["string", "integer"]},
                "choice": {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]},
                "bag": {"type": "object"},
                "map": {"type": "object", "additionalProperties": {"type": "integer"}},
                "inner": {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]},
                "mixed": {"enum": [1, "a"]},
                "tuple": {"type": "array", "items": [{"type": "string"}]},
                "old": {"type": "string", "required": True},
            },
            "required": ["id", "name", "state", "gone"],
        }
    )
    assert fields == {
        "id": "bigint",
        "size": "double",
        "name": "string",
        "state": "string",
        "gone": "string",
        **dict.fromkeys(("any", "true", "two", "choice", "bag", "mixed"), "json"),
        "map": "map<string,bigint>",
        "inner": "struct<x: boolean>",
        "tuple": "array<json>",
        "old": "string",
    }


def test_references_within_and_between_schemas() -> None:
    """By pointer, by id, by the name of another schema, and one within itself."""
    schema = {
        "type": "object",
        "properties": {
            "a": {"$ref": "#/definitions/Money"},
            "b": {"$ref": "state.json"},
            "c": {"$ref": "other.json#/$defs/a~1b"},
            "d": {"$ref": "#tree"},
            "e": {"$ref": "#flag"},
        },
        "allOf": [{"properties": {}}, {"properties": {"f": {"$id": "#flag", "type": "boolean"}}}],
        "definitions": {
            "Money": {"type": "integer", "title": "Money"},
            "Tree": {
                "$id": "#tree",
                "type": "object",
                "title": "Tree",
                "properties": {"next": {"$ref": "#tree"}, "value": {"type": "string"}},
            },
        },
    }
    fields = fields_of(
        schema, **{"state.json": {"type": "string"}, "other.json": {"$defs": {"a/b": {"$ref": "#/x/0"}}, "x": [{"type": "boolean"}]}}
    )
    assert fields == {
        "f": "boolean",
        "a": "bigint",
        "b": "string",
        "c": "boolean",
        "d": "struct<next: json, value: string>",
        "e": "boolean",
    }, "an id may stand in a list"


def test_all_of_is_a_struct_with_the_fields_of_all() -> None:
    """The parts of `allOf` may be inline, in definitions or in other schemas."""
    schema = {
        "title": "Whole",
        "allOf": [{"$ref": "base.json"}, {"properties": {"b": {"type": "string"}}}],
        "properties": {"c": {"type": "boolean"}},
    }
    fields = fields_of(schema, **{"base.json": {"title": "Base", "type": "object", "properties": {"a": {"type": "integer"}}}})
    assert fields == {"a": "bigint", "b": "string", "c": "boolean"}
    cases: list[list[dict[str, Any]]] = [[{"type": "string"}], [{}], [{}, {"type": "integer"}]]
    assert [str(converted({"allOf": parts})) for parts in cases] == [
        "string",
        "json",
        "bigint",
    ]
    scaled = {"type": "string", "connect.type": "bytes", "connect.parameters": {"scale": "3"}}
    assert converted({"title": "org.apache.kafka.connect.data.Decimal", "allOf": [scaled]}) == DecimalType(38, 3)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"$ref": "#/definitions/No"}, "leads nowhere"),
        ({"$ref": "no.json"}, "leads to no schema that this one refers to"),
        ({"type": "integer", "connect.type": "int128"}, "'int128' is no type of Connect"),
        ({"properties": ["a"]}, "not as JSON Schema has it"),
    ],
)
def test_a_schema_that_is_none(schema: Any, reason: str) -> None:
    """A `ValueError` says why."""
    with pytest.raises(ValueError, match=reason):
        converted(schema)
