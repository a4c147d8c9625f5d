"""Positions of registered readers: a small file each beside the log, replaced in place while the reader moves.

```
 ledger                    12  reader  orders-cache  offsets 4 4      registration: read up to 4 when it was written
 readers/orders-cache.json     registration 12       offsets 9 7      where it is now: counts as long as row 12 is its newest row
```

A reader that moves costs no row of the ledger. A row is written when the reader registers, when its expiration changes, and when half of
its expiration has passed since the last row. A position file that is absent or cannot be read, that is of another topic or of an earlier
registration does not count. Then the row counts, and it expires by as much later as the reader may have been seen without a further row:
more is kept for the reader than it needs, never less.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from pyarrow import fs

from lastword.compaction.readers import Reader, renewal_ms
from lastword.storage.files.json_files import read_json_file, write_json_file
from lastword.storage.files.locations import local_path
from lastword.storage.files.paths import filesystem_of
from lastword.storage.ledger.decisions import Decision, Kind

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from lastword.storage.ledger.decisions import Decisions
    from lastword.storage.ledger.ledger import Ledger

_FOLDER: Final = "readers"
#: Counts the shapes that a position file has had.
_FORMAT: Final = 1
#: File systems allow 255 bytes in a file's name; a longer name is cut and told from others by its hash.
_MAX_NAME: Final = 180


class ReaderPositions:
    """The position files of one topic."""

    def __init__(self, root: str, storage_options: Mapping[str, str]) -> None:
        """Keep the files in the topic's folder `root`; nothing is read yet."""
        self._root, self._options = root, dict(storage_options)

    def newest(self, decisions: Decisions) -> dict[str, Reader]:
        """Return the registered readers by name, each where it was when it was seen last."""
        return {name: self._read(reader, decisions.topic_id) for name, reader in decisions.readers.items()}

    def write(self, reader: Reader, ledger: Ledger) -> None:
        """Keep where a reader is; it is registered in the ledger, or its registration renewed, if that is due."""
        today = ledger.read()
        registered = today.readers.get(reader.name)
        if (
            registered is None
            or registered.expiration_ms != reader.expiration_ms
            or registered.is_due(reader.seen_ms)
            or self._goes_back(reader, registered, today.topic_id)
        ):
            row = Decision(kind=Kind.READER, time_ms=reader.seen_ms, name=reader.name, details=reader.to_details())
            today = ledger.append([row])
            if registered is None:
                self._forget_others(today.readers)
            registered = today.readers.get(reader.name)
        if registered is not None:
            self._write(replace(reader, registration=registered.registration), today.topic_id)

    def _goes_back(self, reader: Reader, registered: Reader, topic_id: str) -> bool:
        """Tell whether a reader is behind where it was: a file that cannot be replaced then would count, and let tombstones go."""
        known = self._read(registered, topic_id).position.offsets
        return any(map(int.__lt__, reader.position.offsets, known))

    def drop(self, name: str) -> None:
        """Delete the position of a reader that is dropped."""
        with suppress(OSError):
            self._filesystem.delete_file(_file(name))

    def _read(self, registered: Reader, topic_id: str) -> Reader:
        try:
            body = read_json_file(self._filesystem, _file(registered.name))
            expected = _FORMAT, topic_id, registered.name, registered.registration
            if tuple(body[name] for name in ("format", "topic_id", "name", "registration")) == expected:
                position = Reader.from_details(registered.name, body, body["seen_ms"], registered.registration)
                if position is not None:
                    return replace(position, expiration_ms=registered.expiration_ms)
        except (OSError, ValueError, KeyError, TypeError):
            pass  # the registration counts
        return replace(registered, expiration_ms=registered.expiration_ms + renewal_ms(registered.expiration_ms))

    def _write(self, reader: Reader, topic_id: str) -> None:
        """Replace the position file; one that cannot be written is no reason to fail, as the registration counts then."""
        body = {
            "format": _FORMAT,
            "topic_id": topic_id,
            "name": reader.name,
            "registration": reader.registration,
            "seen_ms": reader.seen_ms,
            **reader.to_details(),
        }
        path = _file(reader.name)
        unfinished = path if local_path(self._root) is None else f"{path}.new"  # a store's objects appear whole
        write_json_file(self._filesystem, path, body, unfinished=unfinished)

    def _forget_others(self, names: Collection[str]) -> None:
        """Delete the files of readers that are not registered any more, so that names which are used once do not accumulate."""
        kept = set(map(_file, names))
        with suppress(OSError):
            for info in self._filesystem.get_file_info(fs.FileSelector(_FOLDER, allow_not_found=True)):
                if f"{_FOLDER}/{info.base_name.removesuffix('.new')}" not in kept:
                    self._filesystem.delete_file(f"{_FOLDER}/{info.base_name}")

    @cached_property
    def _filesystem(self) -> fs.FileSystem:
        return filesystem_of(self._root, self._options)


def _file(name: str) -> str:
    quoted = quote(name, safe="")
    if len(quoted) > _MAX_NAME:
        quoted = f"{quoted[: _MAX_NAME - 65]}-{hashlib.sha256(name.encode()).hexdigest()}"
    return f"{_FOLDER}/{quoted}.json"
