"""Framed keys and values become JSON text, as Kafka Connect's JsonConverter writes it.

```
 00 00 00 00 07 │ payload        header ──► format 7 (made once in a process) ──► JSON text
 └ magic ┘└ id ┘                              │ none yet: store, else registry
                                              │ no such schema: UnknownSchema, asked again later (unknown_s)
                                              └ a schema that cannot be read: UndecodableFrame for each of its frames
```

A frame that cannot be decoded has a reason and becomes a dead letter. A registry that refuses or does not answer is an error of the stream.
"""

from __future__ import annotations

import time
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from lastword.change_data.registry.formats import DOES_NOT_FIT, HEADER_BYTES, Format, WriterSchema, format_of, undecodable
from lastword.change_data.registry.schemas import UndecodableFrame
from lastword.storage.schema_registry.client import RegistryClient, RegistryConfig, UnknownSchema
from lastword.storage.schema_registry.store import SchemaStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lastword.change_data.columns.column_types import DataType


#: More ids than this are those of garbage; to forget them costs no more than a request for each.
_MAX_UNKNOWN_IDS: Final = 10_000


class DecodedColumn(NamedTuple):
    """A column of frames as JSON.

    Attributes:
        values: JSON text (binary), null where the frame is null or cannot be decoded.
        reasons: Why a frame cannot be decoded, by row number.
        schemas: What each decoded frame was written with, by row number.
    """

    values: pa.Array
    reasons: dict[int, str]
    schemas: dict[int, WriterSchema]


class RegistryDecoder:
    """Decodes frames; it can be pickled, and what it learned stays in the process, shared by all decoders with the same settings.

    Example:
        >>> decoder = RegistryDecoder(RegistryConfig(urls=("http://localhost:8081",)), "/data/logs/orders")
        >>> decoded = decoder.decode_column(batch.column("value"))
    """

    def __init__(self, config: RegistryConfig, location: str, storage_options: Mapping[str, str] | None = None) -> None:
        """Take the registry and the folder in which schemas are kept; nothing is connected or read yet.

        Args:
            config: The registry.
            location: Path or URI of a topic's folder or a log.dir; schemas are kept below it.
            storage_options: What delta-rs needs to reach an object store.
        """
        self._config, self._location = config, location
        self._options = tuple(sorted((storage_options or {}).items()))

    def decode(self, data: bytes | None) -> bytes | None:
        """Return a frame as JSON text; None stays None.

        Raises:
            UndecodableFrame: It is cut, has another magic byte, or does not fit its schema.
            UnknownSchema: The registry does not know its schema.
            SchemaRegistryUnreachable: The schema is not in the store, and no URL of the registry answers.
            SchemaRegistryError: The registry refuses the request.
        """
        return None if data is None else self._formats().read(data)[0]

    def decode_column(self, column: pa.Array | pa.ChunkedArray) -> DecodedColumn:
        """Return a column of frames as JSON.

        Args:
            column: Frames, binary; null stays null.

        Raises:
            SchemaRegistryUnreachable: A schema is not in the store, and no URL of the registry answers.
            SchemaRegistryError: The registry refuses a request.
        """
        read = self._formats().read
        values: list[bytes | None] = []
        reasons: dict[int, str] = {}
        schemas: dict[int, WriterSchema] = {}
        for row, data in enumerate(column.cast(pa.binary()).to_pylist()):
            value = None
            if data is not None:
                try:
                    value, schemas[row] = read(data)
                except UndecodableFrame as error:
                    reasons[row] = str(error)
            values.append(value)
        return DecodedColumn(pa.array(values, pa.binary()), reasons, schemas)

    def data_type(self, schema_id: int, message: tuple[int, ...] = (0,)) -> DataType:
        """Return the type of a column whose values are written with a schema.

        Args:
            schema_id: The schema's id.
            message: Of Protobuf the index of the message, as in `WriterSchema`; without one, the first.

        Raises:
            UndecodableFrame: The schema cannot be read.
            UnknownSchema: The registry does not know it.
            SchemaRegistryUnreachable: It is not in the store, and no URL of the registry answers.
            SchemaRegistryError: The registry refuses the request.
        """
        try:
            return self._formats().of(schema_id).data_type(message or (0,))
        except UndecodableFrame:
            raise
        except (*DOES_NOT_FIT, AttributeError, KeyError, TypeError) as error:
            raise undecodable(schema_id, error) from None

    def _formats(self) -> _Formats:
        return _formats_of(self._config, self._location, self._options)


class _Formats:
    """The formats of one registry that this process knows."""

    def __init__(self, config: RegistryConfig, store: SchemaStore) -> None:
        self._client, self._store, self._unknown = RegistryClient(config), store, UnknownIds(config.unknown_s)
        self._formats: dict[bytes, Format] = {}

    def read(self, data: bytes) -> tuple[bytes, WriterSchema]:
        """Return a frame as JSON, and what it was written with."""
        known = self._formats.get(data[:HEADER_BYTES])
        return (known or self.of(_id_of(data))).read(data)

    def of(self, schema_id: int) -> Format:
        """Return the format of a schema."""
        header = b"\0" + schema_id.to_bytes(4, "big")
        known = self._formats.get(header)
        if known is not None:
            return known
        self._unknown.check(schema_id)
        schema = self._store.read(schema_id)
        if schema is None:
            try:
                schema = self._client.fetch(schema_id)
            except UnknownSchema as error:
                self._unknown.add(schema_id, str(error))
                raise
            self._store.write(schema)
        made = self._formats[header] = format_of(schema)
        return made


class UnknownIds:
    """Ids that a registry did not know: it is asked for each of them again after some seconds, and not before."""

    def __init__(self, seconds: float, *, max_ids: int = _MAX_UNKNOWN_IDS, clock: Callable[[], float] = time.monotonic) -> None:
        """Know none. When `max_ids` are known, the next one replaces all of them."""
        self._seconds, self._max_ids, self._clock = seconds, max_ids, clock
        #: By id: the error of the registry, and the time when it is asked again.
        self._errors: dict[int, tuple[str, float]] = {}

    def add(self, schema_id: int, error: str) -> None:
        """Add an id with the error that the registry gave for it."""
        if len(self._errors) >= self._max_ids:
            self._errors.clear()
        self._errors[schema_id] = error, self._clock() + self._seconds

    def check(self, schema_id: int) -> None:
        """Raise `UnknownSchema` with the error that the registry gave for an id, until its time is over."""
        error, until = self._errors.get(schema_id, ("", 0.0))
        if error and self._clock() < until:
            raise UnknownSchema(error)


def forget_schemas() -> None:
    """Forget all schemas that this process knows; those in the stores stay."""
    _formats_of.cache_clear()


@lru_cache(maxsize=64)
def _formats_of(config: RegistryConfig, location: str, options: tuple[tuple[str, str], ...]) -> _Formats:
    return _Formats(config, SchemaStore(location, dict(options), config.urls))


def _id_of(data: bytes) -> int:
    """Return the schema id of a frame."""
    if data[:1] == b"\x01":
        message = "the frame names its schema by a GUID (magic byte 1); only ids are read (magic byte 0)"
        raise UndecodableFrame(message)
    if data and data[0] != 0:
        message = f"the frame begins with byte {data[0]:#04x}, not with the magic byte 0 of a schema registry"
        raise UndecodableFrame(message)
    if len(data) < HEADER_BYTES:
        message = f"the frame is cut: {len(data)} bytes, and 5 are its magic byte and schema id"
        raise UndecodableFrame(message)
    return int.from_bytes(data[1:HEADER_BYTES], "big")
