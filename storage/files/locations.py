"""Where a path or URI leads: one answer for Arrow, delta-rs and Spark, which would each read some of them differently.

| given | is |
|---|---|
| `data`, `./data/`, `/a b/50%/ü` | a folder of the local disk, as it is written; relative to the working directory |
| `~/data` | a folder of the home directory |
| `file:/a b`, `file:///a%20b` | `/a b` |
| `s3://bucket/logs/` | `s3://bucket/logs` |
| `file:data`, `file://host/data`, `dbfs:/mnt/x`, `hdfs://…`, `/a%20b` | an error that says what is allowed |

A plain path is one of the local disk, whatever the default file system of a cluster is: Spark gets it with `file://` in front
(`spark_location`).
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from lastword.compaction.errors import UserError

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
#: Stores whose put of a commit that is there already fails, and which Spark and delta-rs both reach.
_STORES: Final = ("s3", "s3a", "abfs", "abfss", "az", "gs", "gcs")
#: What Hadoop takes as it is written, and delta-rs as a part of a URL.
_AMBIGUOUS: Final = re.compile(r"[%?#\\]")
#: What delta-rs decodes in a path of the local disk.
_MISREAD: Final = re.compile(r"%[0-9A-Fa-f]{2}|\\")
_LOCAL: Final = "file:"


def location_of(given: str, *, is_pattern: bool = False) -> str:
    """Return the absolute path on the local disk, or the URI of an object store without a slash at its end.

    `is_pattern`: it names files to be read, and may have the characters of a glob. Raises `UserError` for what is neither.
    """
    if not given.strip() or "\0" in given:
        raise _refusal(given, "it is empty" if not given.strip() else "it has a null character")
    if not _SCHEME.match(given):
        return _local(given, is_pattern=is_pattern)
    scheme, _, rest = given.partition(":")
    if given.startswith(_LOCAL):
        return _of_file_uri(given, rest, is_pattern=is_pattern)
    if scheme not in _STORES:
        raise _refusal(given, f"there is no way to commit to {scheme}:; for a local folder of this name write ./{given}")
    bucket, _, path = rest.removeprefix("//").partition("/")
    if not rest.startswith("//") or not bucket:
        raise _refusal(given, "it names no bucket")
    if "@" in bucket and scheme not in {"abfs", "abfss"}:
        raise _refusal(given, "credentials are options of the store, and no part of its URI")
    ambiguous = None if is_pattern else _AMBIGUOUS.search(path)
    if ambiguous is not None:
        raise _refusal(given, f"Spark and delta-rs do not agree what {ambiguous[0]} means in a URI")
    return given.rstrip("/")


def path_below(folder: Path, given: str) -> str:
    """Return a relative path as it is below a folder; absolute paths, those of the home directory, URIs and an empty text as they are."""
    if not given.strip() or given.startswith(("/", "~")) or _SCHEME.match(given):
        return given
    below = os.path.normpath(folder / given)
    return f"./{below}" if _SCHEME.match(below) else below


def local_path(location: str) -> Path | None:
    """Return the local folder that a path or a file: URI names; None for an object store."""
    if "://" in location and not location.startswith((_LOCAL, "/")):
        return None
    return Path(location if location.startswith("/") else location_of(location, is_pattern=True))


def spark_location(location: str) -> str:
    """Return a location as Spark is given it: a path alone would be one of the default file system of the cluster."""
    return f"file://{location}" if location.startswith("/") else location


def _of_file_uri(given: str, rest: str, *, is_pattern: bool) -> str:
    host, _, path = rest[2:].partition("/") if rest.startswith("//") else ("", "", rest[1:] if rest.startswith("/") else None)
    if path is None or host not in {"", "localhost"}:
        raise _refusal(given, "a file: URI names an absolute path of this machine, as in file:///var/lib/lastword")
    return _local(f"/{unquote(path)}", is_pattern=is_pattern)


def _local(given: str, *, is_pattern: bool) -> str:
    try:
        path = str((Path(given).expanduser() if given.startswith("~") else Path(given)).absolute())
    except RuntimeError as error:
        raise _refusal(given, f"{error}".rstrip(".")) from error
    misread = None if is_pattern else _MISREAD.search(path)
    if misread is not None:
        raise _refusal(given, f"delta-rs reads {misread[0]} in a path as another character")
    return path


def _refusal(given: str, why: str) -> UserError:
    message = f"location {given!r}: {why}. Allowed are a path, a file: URI, and URIs of {', '.join(f'{store}:' for store in _STORES)}"
    return UserError(message)
