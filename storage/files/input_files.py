"""Reads one file as the input of an append: what it holds, and its rows in batches of a bounded size.

```
 orders.parquet  orders.arrow  orders.feather            typed rows; told by what they begin with
 orders.json  .jsonl  .ndjson  .csv, and .gz .bz2 …      rows of text; told by the name, or by `format`
```
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from lastword.change_data.files.file_rows import CorruptFile
from lastword.compaction.errors import UserError
from lastword.storage.files.locations import local_path
from lastword.storage.files.source_streams import COMPRESSIONS, RawFile, Unreachable, naming_damage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MAGICS: Final = {b"PAR1": "parquet", b"ARROW1": "arrow"}
#: What a file of a format is called whose first bytes say it.
_BEGINS: Final = {"parquet": "a Parquet file", "arrow": "an Arrow file or stream"}
#: What a stream of Arrow begins with: a message follows.
_ARROW_STREAM: Final = b"\xff\xff\xff\xff"
_ENDINGS: Final = {
    "json": "json",
    "jsonl": "json",
    "ndjson": "json",
    "csv": "csv",
    "parquet": "parquet",
    "arrow": "arrow",
    "feather": "arrow",
    "ipc": "arrow",
}
#: What compressed files begin with, and the endings of their names.
_COMPRESSED: Final = {b"\x1f\x8b": "gz", b"BZh": "bz2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zst", b"\x04\x22\x4d\x18": "lz4"}
_MAX_MAGIC_BYTES: Final = 6
FORMATS: Final = ("parquet", "arrow", "json", "csv")
#: So many rows of a file are read at a time.
_BATCH_ROWS: Final = 2**16


@contextmanager
def naming_file(path: str) -> Iterator[None]:
    """Say as one `UserError` that names the file what is wrong with it, or that it cannot be read."""
    try:
        yield
    except FileNotFoundError:
        message = f"there is no file {path}"
        raise UserError(message) from None
    except Unreachable as error:
        message = f"{path} cannot be read: {error}"
        raise UserError(message) from error
    except CorruptFile as error:
        message = f"{path} cannot be read: {error}; nothing of it was appended"
        raise UserError(message) from error


@contextmanager
def spool(stream: IO[bytes]) -> Iterator[str]:
    """Copy a stream, which can be read once alone, to a file that can be read again, and return its path; it is deleted at the end."""
    begin = stream.read(_MAX_MAGIC_BYTES)
    ending = next((name for magic, name in _COMPRESSED.items() if begin.startswith(magic)), "")
    with tempfile.TemporaryDirectory(prefix="lastword-") as folder:
        path = Path(folder) / f"rows{'.' if ending else ''}{ending}"
        with path.open("wb") as file:
            file.write(begin)
            shutil.copyfileobj(stream, file)
        yield str(path)


def find_format(path: str, location: str, given: str, storage_options: Mapping[str, str]) -> str:
    """Return what a file holds: parquet, arrow, json or csv. Raises `UserError` for a folder, and for what is none of them.

    `path` is how the user names the file at `location`.
    """
    if given not in {"", *FORMATS}:
        message = f"format = {given!r}: allowed are {', '.join(FORMATS)}"
        raise UserError(message)
    local = local_path(location)
    if local is not None and local.is_dir():
        message = f"{path} is a folder: name its files, or let a query read it (lastword append --path)"
        raise UserError(message)
    with naming_file(path), naming_damage():
        begin = RawFile(location, storage_options).read(_MAX_MAGIC_BYTES)
    known = next((name for magic, name in _MAGICS.items() if begin.startswith(magic)), "")
    if known and given not in {"", known}:
        message = f"{path} is a file of {known}, and format says {given}"
        raise UserError(message)
    *_, stem, ending = ("", *path.rpartition("/")[2].lower().split("."))
    by_name = _ENDINGS.get(stem if ending in COMPRESSIONS else ending, "")
    kind = known or given or by_name or ("arrow" if begin.startswith(_ARROW_STREAM) else "")
    if not kind:
        endings = ", ".join(f".{name}" for name in _ENDINGS)
        allowed = f"{endings}, compressed or not, or say its format: {', '.join(FORMATS)}"
        message = f"{path}: its name does not say what it holds; allowed are {allowed}"
        raise UserError(message)
    if not known and kind in _BEGINS and not begin.startswith(_ARROW_STREAM):
        message = f"{path} cannot be read: it does not begin as {_BEGINS[kind]} does; nothing of it was appended"
        raise UserError(message)
    return kind


def typed_schema(path: str, kind: str, storage_options: Mapping[str, str]) -> pa.Schema:
    """Return the columns of a Parquet or Arrow file. Raises `CorruptFile` or `OSError`."""
    with _open(path, kind, storage_options) as (schema, _):
        return schema


def typed_batches(path: str, kind: str, storage_options: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet or Arrow file. Raises `CorruptFile` or `OSError`."""
    with _open(path, kind, storage_options) as (_, batches):
        for batch in batches:
            yield from (batch.slice(start, _BATCH_ROWS) for start in range(0, len(batch), _BATCH_ROWS))


@contextmanager
def _open(path: str, kind: str, storage_options: Mapping[str, str]) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    with naming_damage():
        stream: Any = pa.PythonFile(RawFile(path, storage_options), mode="r")
        if kind == "parquet":
            with pq.ParquetFile(stream) as file:
                yield file.schema_arrow, file.iter_batches(batch_size=_BATCH_ROWS, use_threads=False)
            return
        if _MAGICS.get(RawFile(path, storage_options).read(_MAX_MAGIC_BYTES)) == "arrow":
            with pa.ipc.open_file(stream) as file:
                yield file.schema, (file.get_batch(number) for number in range(file.num_record_batches))
        else:
            with pa.ipc.open_stream(stream) as reader:
                yield reader.schema, iter(reader)
