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
    """Replace a file, in one step where `unfinished` is another path: it is written there, and moved.

    The objects of a store appear whole, so there both are one. A file that cannot be written stays as it is, and that is no error.
    """
    with suppress(OSError, NotImplementedError):
        filesystem.create_dir(path.rpartition("/")[0], recursive=True)
        with filesystem.open_output_stream(unfinished) as file:
            file.write(json_file(body))
        if unfinished != path:
            filesystem.move(unfinished, path)


def json_file(body: dict[str, Any]) -> bytes:
    """Return the content of a file with a body."""
    return json.dumps({"crc32": _checksum(body), "body": body}).encode()


def _checksum(body: Any) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())
