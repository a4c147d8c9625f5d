"""JSON Schema of a registry: what Connect would call the values of a schema, whoever wrote it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lastword.change_data.columns.connect_schema import columns_of_connect_schema
from lastword.change_data.registry.json_schema import connect_schema_of


def converted(schema: Any, **references: Any) -> dict[str, Any]:
    """Return the Connect schema of a JSON Schema."""
    return connect_schema_of(json.dumps(schema), [(name, json.dumps(part)) for name, part in references.items()])


def fields_of(schema: Any, **references: Any) -> dict[str, dict[str, Any]]:
    """Return the fields of a struct by name."""
    return {field.pop("field"): field for field in converted(schema, **references)["fields"]}


def test_a_schema_that_connect_wrote() -> None:
    """Types, names, versions, parameters, defaults and the order of fields come from its own properties."""
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
    whole = converted(schema)
    assert (whole["name"], whole["version"]) == ("shop.Value", 3)
    assert [field["field"] for field in whole["fields"]] == ["id", "weight", "price", "tags", "pairs", "list"]
    fields = fields_of(schema)
    assert fields["id"] == {"type": "int16", "optional": False, "default": 4}
    assert fields["weight"] == {"type": "float", "optional": False}
    assert fields["price"] == {
        "type": "bytes",
        "optional": True,
        "name": "org.apache.kafka.connect.data.Decimal",
        "version": 1,
        "parameters": {"scale": "2"},
    }
    assert fields["tags"]["keys"] == {"type": "string", "optional": False}
    assert fields["pairs"]["keys"] == {"type": "int64", "optional": False}
    assert fields["pairs"]["values"] == {"type": "boolean", "optional": False}
    assert fields["list"]["items"] == {"type": "int64", "optional": True}


def test_a_schema_that_a_person_wrote() -> None:
    """Fields that are not required may be absent; types of JSON Schema alone."""
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
    assert [name for name, field in fields.items() if not field["optional"]] == ["id", "state"]
    assert {name: field["type"] for name, field in fields.items() if field.get("name") != "lastword.AnyValue"} == {
        "id": "int64",
        "size": "double",
        "name": "string",
        "state": "string",
        "gone": "string",
        "map": "map",
        "inner": "struct",
        "tuple": "array",
        "old": "string",
    }
    assert fields["inner"]["fields"] == [{"type": "boolean", "optional": False, "field": "x"}]
    assert str(columns_of_connect_schema({"type": "struct", "fields": [{**fields["any"], "field": "x"}]})[0].data_type) == "json"


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
    assert fields["a"]["name"] == "Money"
    assert (fields["b"]["type"], fields["c"]["type"]) == ("string", "boolean")
    assert fields["e"]["type"] == "boolean", "an id may stand in a list"
    inner = {field["field"]: field for field in fields["d"]["fields"]}
    assert (inner["next"]["name"], inner["value"]["type"]) == ("lastword.AnyValue", "string")


def test_all_of_is_a_struct_with_the_fields_of_all() -> None:
    """Wherever the parts are."""
    schema = {
        "title": "Whole",
        "allOf": [{"$ref": "base.json"}, {"properties": {"b": {"type": "string"}}}],
        "properties": {"c": {"type": "boolean"}},
    }
    fields = fields_of(schema, **{"base.json": {"title": "Base", "type": "object", "properties": {"a": {"type": "integer"}}}})
    assert {name: field["type"] for name, field in fields.items()} == {"a": "int64", "b": "string", "c": "boolean"}
    assert converted({"allOf": [{"type": "string"}]}) == {"type": "string", "optional": False}
    assert converted({"allOf": [{}]})["name"] == "lastword.AnyValue"


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
