"""Small files of JSON with a checksum: what is cut or garbled does not count, and what is written is whole or not there.

```
 readers/orders-cache.json    {"crc32": 1234567890, "body": {"format": 1, …}}
```
"""

from __future__ import annotations

import json
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from pyarrow import fs


def read_json_file(filesystem: fs.FileSystem, path: str) -> Any:
    """Return the body of a file.

    Raises `OSError` when it cannot be read, and `ValueError`, `KeyError` or `TypeError` for one that `write_json_file` has not written.
    """
    with filesystem.open_input_file(path) as file:
        kept = json.loads(file.read())
    if kept["crc32"] != _checksum(kept["body"]):
        raise ValueError(path)
    return kept["body"]


def write_json_file(filesystem: fs.FileSystem, path: str, body: dict[str, Any], *, unfinished: str) -> None:
    """Replace a file as `replace_file` does; a file that cannot be written stays as it is, and that is no error."""
    with suppress(OSError, NotImplementedError):
        filesystem.create_dir(path.rpartition("/")[0], recursive=True)
        replace_file(filesystem, path, json_file(body), unfinished=unfinished)


def replace_file(
    filesystem: fs.FileSystem,
    path: str,
    content: bytes,
    *,
    unfinished: str,
    open_file: Callable[[str], AbstractContextManager[Any]] | None = None,
) -> None:
    """Write a file whole: a reader sees the content before or this one, never a part.

    It is written to `unfinished` and moved, unless that is `path` itself: the objects of a store appear whole. `open_file` opens a path for
    writing, by default without a flush to the disk.
    """
    with (open_file or filesystem.open_output_stream)(unfinished) as file:
        file.write(content)
    if unfinished != path:
        filesystem.move(unfinished, path)


def json_file(body: dict[str, Any]) -> bytes:
    """Return the content of a file with a body."""
    return json.dumps({"crc32": _checksum(body), "body": body}).encode()


def _checksum(body: Any) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())
