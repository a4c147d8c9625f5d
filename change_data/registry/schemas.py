"""A schema of a registry with all that is needed to read with it, and what can be wrong with a frame."""

from __future__ import annotations

from dataclasses import dataclass

from lastword.compaction.errors import UserError


class UndecodableFrame(ValueError):
    """A key or value that does not become JSON; the text names the schema id and the reason. Reaction: the row becomes a dead letter."""


class SchemaRegistryError(UserError):
    """The registry refuses the request, or its answer is not that of a schema registry. Nothing can be decoded until this is corrected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredSchema:
    """A schema of a registry with all that is needed to read with it.

    Attributes:
        id: Its id in the registry.
        kind: `AVRO`, `JSON` or `PROTOBUF`; other registries may have more.
        text: The schema; of Protobuf the base64 text of its serialized FileDescriptorProto.
        references: Name and text of each schema that it refers to, directly or not, each behind those that it needs itself.
    """

    id: int
    kind: str
    text: str
    references: tuple[tuple[str, str], ...] = ()
