"""Schemas that were fetched, a small file for each id: with them a topic is read when the registry is away.

```
 <location>/schemas/7.json      {"crc32": …, "body": {"format": 1, "id": 7, "registry": ["http://…"], "kind": "AVRO", "schema": …}}
```

A schema never changes under its id, so a file is written once and needs no registry from then on. A file that is absent or corrupt, that
has another format, or that came from another registry does not count: the schema is fetched again and the file replaced. Delete the folder
when a registry is started afresh under the same URL: the ids then mean other schemas.
"""

from __future__ import annotations

import uuid
from functools import cached_property
from typing import TYPE_CHECKING, Final

from lastword.change_data.registry.schemas import RegisteredSchema
from lastword.storage.files.json_files import read_json_file, write_json_file
from lastword.storage.files.locations import local_path
from lastword.storage.files.paths import filesystem_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyarrow import fs

_FOLDER: Final = "schemas"
#: Counts the forms that a file has had.
_FORMAT: Final = 1


class SchemaStore:
    """The schemas that are kept in a folder of a topic or of a log.dir."""

    def __init__(self, location: str, storage_options: Mapping[str, str], urls: Sequence[str]) -> None:
        """Keep the files below a path or URI; nothing is read yet.

        Args:
            location: The folder that gets a folder `schemas`.
            storage_options: What delta-rs needs to reach an object store.
            urls: The registry's URLs; files from a registry with none of these do not count.
        """
        self._location, self._options, self._urls = location, dict(storage_options), tuple(urls)

    def read(self, schema_id: int) -> RegisteredSchema | None:
        """Return a schema; None if it is not here or its file does not count."""
        try:
            body = read_json_file(self._filesystem, _file(schema_id))
            if body["format"] != _FORMAT or body["id"] != schema_id:
                return None
            if not set(self._urls) & set(body["registry"]):
                return None
            references = tuple((name, text) for name, text in body["references"])
            return RegisteredSchema(id=schema_id, kind=body["kind"], text=body["schema"], references=references)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, schema: RegisteredSchema) -> None:
        """Keep a schema. A file that cannot be written is no reason to fail: the registry has the schema."""
        body = {
            "format": _FORMAT,
            "id": schema.id,
            "registry": list(self._urls),
            "kind": schema.kind,
            "schema": schema.text,
            "references": [list(reference) for reference in schema.references],
        }
        path = _file(schema.id)
        # A store's objects appear whole. On a disk several executors may write the same schema: each its own file, the last one stays.
        unfinished = path if local_path(self._location) is None else f"{path}.{uuid.uuid4().hex}"
        write_json_file(self._filesystem, path, body, unfinished=unfinished)

    @cached_property
    def _filesystem(self) -> fs.FileSystem:
        return filesystem_of(self._location, self._options)


def _file(schema_id: int) -> str:
    return f"{_FOLDER}/{schema_id}.json"
