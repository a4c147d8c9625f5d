"""Which files a query has taken: beside Spark's checkpoint, and gone with it.

```
 queries/orders/files/0000000001.json    entry 1: the files of one micro-batch
 queries/orders/files/0000000064.json    entry 64, and all files of the entries before it, which are deleted
```

The source offset of a micro-batch is the number of its entry. An entry is written before Spark is told of it, and never changed, so that a
micro-batch that is run again has the same files. No file is forgotten, however old it is: memory and entries grow with their number.
"""

from __future__ import annotations

import uuid
from dataclasses import astuple
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pyarrow import fs

from lastword.compaction.errors import UnknownFormat, UserError
from lastword.storage.files.data_files import output_file
from lastword.storage.files.json_files import json_file, read_json_file, replace_file
from lastword.storage.files.locations import local_path
from lastword.storage.files.paths import filesystem_of
from lastword.storage.files.source_files import FoundFile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_FORMAT: Final = 1
#: So many entries go into one, or a thousandth of the files that are known, whichever is more.
_ENTRIES: Final = 64
_KEPT: Final = 8


class FileListing:
    """The files that a query has taken, by entry."""

    def __init__(self, checkpoint: str, storage_options: Mapping[str, str]) -> None:
        """Read what is there in the folder of a query's checkpoint.

        Raises `UnknownFormat` for what another version wrote, and `UserError` for damage.
        """
        self._location, self._options = f"{checkpoint}/files", dict(storage_options)
        self._filesystem = filesystem_of(self._location, self._options)
        self.last = 0
        self._whole = 0
        self.known: dict[str, FoundFile] = {}
        self._load()

    def _load(self) -> None:
        numbers = self._numbers()
        self.last = max(numbers, default=0)
        for number in sorted(numbers, reverse=True):
            body = self._body(number)
            for file in (*_files(body["files"]), *_files(body.get("before", []))):
                self.known.setdefault(file.path, file)
            if "before" in body:
                self._whole = number
                break

    def _numbers(self) -> list[int]:
        infos = self._filesystem.get_file_info(fs.FileSelector("", allow_not_found=True))
        return [int(info.base_name[:-5]) for info in infos if info.base_name[:-5].isdigit()]

    def files(self, number: int) -> list[FoundFile]:
        """Return the files of an entry, in the order in which they are read."""
        return _files(self._body(number)["files"])

    def add(self, files: Sequence[FoundFile]) -> int:
        """Write the next entry, and return its number."""
        number = self.last + 1
        body: dict[str, Any] = {"format": _FORMAT, "files": [astuple(file) for file in files]}
        is_whole = number - self._whole >= max(_ENTRIES, len(self.known) // 1000)
        if is_whole:
            body["before"] = [astuple(file) for file in self.known.values()]
        self._write(number, body)
        self.last = number
        self.known.update((file.path, file) for file in files)
        if is_whole:
            self._whole = number
            for old in self._numbers():
                if old < number - _KEPT:
                    self._filesystem.delete_file(_name(old))
        return number

    def _body(self, number: int) -> Any:
        path = _name(number)
        try:
            body = read_json_file(self._filesystem, path)
        except (ValueError, KeyError, TypeError):
            message = f"{self._location}/{path} is damaged: restore it, or the whole folder of the query; nothing was read"
            raise UserError(message) from None
        if body["format"] != _FORMAT:
            message = (
                f"{self._location}/{path} has format {body['format']}, and this version of lastword reads {_FORMAT}: a later version has "
                "run the query; use that one or a later one"
            )
            raise UnknownFormat(message)
        return body

    def _write(self, number: int, body: dict[str, Any]) -> None:
        """Write an entry whole: on a local disk under another name first, and flushed; the objects of a store appear whole."""
        path = _name(number)
        unfinished = path if local_path(self._location) is None else f".{path}.{uuid.uuid4().hex}"
        replace_file(
            self._filesystem, path, json_file(body), unfinished=unfinished, open_file=partial(output_file, self._location, self._options)
        )


def _name(number: int) -> str:
    return f"{number:010d}.json"


def _files(rows: Sequence[Sequence[Any]]) -> list[FoundFile]:
    return [FoundFile(str(path), int(size), int(modified)) for path, size, modified in rows]
