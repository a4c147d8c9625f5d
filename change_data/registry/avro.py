"""An Avro schema as a tree of types: names resolved, one node for each named type, however often it is used.

```
 {"type":"record","name":"Envelope","namespace":"s.t","fields":[               record s.t.Envelope
   {"name":"before","type":["null",{"type":"record","name":"Value",…}]},         before: union(null, ●) ──► record s.t.Value
   {"name":"after","type":["null","Value"]}]}                                    after:  union(null, ●) ──────┘
```

A record that contains itself is a circle in the tree. Names need not keep to Avro's rules for names: registries have schemas that do not.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
#: Where Connect's Avro converter keeps what Avro has no words for.
CONNECT: Final = "io.confluent.connect.avro"
_RECORDS: Final = frozenset({"record", "error"})
_MAP_ENTRY: Final = "MapEntry"
_MAX_DEPTH: Final = 200


@dataclass(slots=True, eq=False)
class AvroField:
    """A field of a record; `attributes` is the field as it is in the schema."""

    name: str
    type: AvroType
    attributes: Mapping[str, Any]


@dataclass(slots=True, eq=False)
class AvroType:
    """A type.

    Attributes:
        kind: A primitive type, `record`, `enum`, `fixed`, `array`, `map` or `union`.
        name: Full name of a record, an enum or a fixed.
        attributes: The type as it is in the schema.
        fields: Of a record.
        inner: Items of an array, values of a map, branches of a union.
    """

    kind: str
    name: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    fields: list[AvroField] = field(default_factory=list)
    inner: list[AvroType] = field(default_factory=list)

    @property
    def nullable(self) -> AvroType | None:
        """The type beside null, of a union of null and one other type; None of any other type."""
        if self.kind != "union":
            return None
        others = [branch for branch in self.inner if branch.kind != "null"]
        return others[0] if len(others) == 1 and len(self.inner) == 2 else None  # noqa: PLR2004  null and the other one

    @property
    def branch_names(self) -> list[str]:
        """The fields of the struct that Connect makes of a union of several types: one for each type but null, in their order."""
        branches = [branch for branch in self.inner if branch.kind != "null"]
        short = [branch.name.rpartition(".")[2] or branch.kind for branch in branches]
        return [branch.name or name if short.count(name) > 1 else name for branch, name in zip(branches, short, strict=True)]

    @property
    def is_map_entry(self) -> bool:
        """Whether this is an entry of a map whose keys are not texts: Connect writes such a map as an array of entries."""
        if self.kind != "record" or {field.name for field in self.fields} != {"key", "value"}:
            return False
        return self.name == f"{CONNECT}.{_MAP_ENTRY}" or self.attributes.get("connect.internal.type") == _MAP_ENTRY


def parse_avro(text: str, references: Sequence[tuple[str, str]] = ()) -> AvroType:
    """Return a schema as a tree.

    Args:
        text: The schema, JSON.
        references: Name and text of each schema whose types it uses, each behind those that it needs itself.

    Raises:
        ValueError: It is no Avro schema.
    """
    parser = _Parser()
    for name, reference in references:
        parser.parse(_json(reference, f"the reference {name}"), "", 0)
    return parser.parse(_json(text, "the schema"), "", 0)


def _json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        message = f"{what} is no JSON ({error})"
        raise ValueError(message) from None


class _Parser:
    def __init__(self) -> None:
        self._named: dict[str, AvroType] = {}

    def parse(self, schema: Any, namespace: str, depth: int) -> AvroType:  # noqa: PLR0911  one for each form of a type
        if depth > _MAX_DEPTH:
            message = f"the schema is nested more than {_MAX_DEPTH} deep"
            raise ValueError(message)
        if isinstance(schema, str):
            return self._reference(schema, namespace, {})
        if isinstance(schema, list):
            return AvroType("union", inner=[self.parse(branch, namespace, depth + 1) for branch in schema])
        if not isinstance(schema, dict) or "type" not in schema:
            message = f"{json.dumps(schema)[:80]} is no type of Avro"
            raise ValueError(message)
        kind = schema["type"]
        if not isinstance(kind, str):  # {"type": {"type": "int"}}
            return self.parse(kind, namespace, depth + 1)
        if kind in _RECORDS:
            return self._record(schema, namespace, depth)
        if kind in {"enum", "fixed"}:
            return self._name(AvroType(kind, attributes=schema), namespace)[0]
        if kind in {"array", "map"}:
            inner = self.parse(_part(schema, "items" if kind == "array" else "values"), namespace, depth + 1)
            return AvroType(kind, attributes=schema, inner=[inner])
        return self._reference(kind, namespace, schema)

    def _reference(self, name: str, namespace: str, attributes: Mapping[str, Any]) -> AvroType:
        """Return a primitive type, or the type that a name stands for."""
        if name in PRIMITIVES:
            return AvroType(name, attributes=attributes)
        for full in (f"{namespace}.{name}" if namespace and "." not in name else name, name):
            if full in self._named:
                return self._named[full]
        message = f"the type {name!r} is not defined before it is used"
        raise ValueError(message)

    def _record(self, schema: Mapping[str, Any], namespace: str, depth: int) -> AvroType:
        record, own = self._name(AvroType("record", attributes=schema), namespace)
        fields = _part(schema, "fields")
        if not isinstance(fields, list):
            message = f"the fields of {record.name} are no list"
            raise ValueError(message)  # noqa: TRY004  a wrong schema, not a wrong argument
        for part in fields:
            if not isinstance(part, dict) or not isinstance(part.get("name"), str):
                message = f"a field of {record.name} has no name"
                raise ValueError(message)  # noqa: TRY004  as above
            record.fields.append(AvroField(part["name"], self.parse(_part(part, "type"), own, depth + 1), part))
        return record

    def _name(self, named: AvroType, namespace: str) -> tuple[AvroType, str]:
        """Give a type its full name; return it and the namespace of the names within it."""
        name = _part(named.attributes, "name")
        if not isinstance(name, str):
            message = f"{json.dumps(name)} is no name"
            raise ValueError(message)  # noqa: TRY004  a wrong schema, not a wrong argument
        if named.kind == "enum" and not isinstance(named.attributes.get("symbols"), list):
            message = f"the enum {name} has no symbols"
            raise ValueError(message)
        if named.kind == "fixed" and not isinstance(named.attributes.get("size"), int):
            message = f"the fixed {name} has no size"
            raise ValueError(message)
        own = str(named.attributes.get("namespace", namespace) or "")
        named.name = name if "." in name or not own else f"{own}.{name}"
        self._named[named.name] = named
        return named, named.name.rpartition(".")[0]


def _part(schema: Mapping[str, Any], name: str) -> Any:
    if name not in schema:
        message = f"{json.dumps(dict(schema))[:80]} has no {name!r}"
        raise ValueError(message)
    return schema[name]
