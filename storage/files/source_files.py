"""The files that a source's path names, and their rows.

```
 incoming                every file below the folder
 incoming/monday.json    this file, whatever characters its name has
 incoming/*/[ab]*.csv    a glob: *, ?, [ab], {x,y}, and ** for any folders
```

Files and folders whose names begin with `_` or `.` are others' (unfinished, or markers), as Spark has it. A file is read whole before a row
of it is given: one that is damaged gives none (`CorruptFile`). What the disk or the network does is an `OSError`, and no damage.
"""

from __future__ import annotations

import fnmatch
import re
import time
import weakref
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, cast

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from pyarrow import fs

from lastword.change_data.files.file_rows import (
    CorruptFile,
    RowText,
    csv_header,
    csv_misfit,
    csv_row,
    cut_into_blocks,
    decode_json_document,
    decode_json_lines,
    without_mark,
)
from lastword.compaction.errors import UserError
from lastword.storage.files.locations import local_path, location_of
from lastword.storage.files.paths import filesystem_of
from lastword.storage.files.source_streams import RawFile, naming_damage, open_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from lastword.storage.files.file_format import FileFormat

_MAGIC: Final = re.compile(r"[*?\[{]")
#: An encoding in which each byte is a character.
_BYTES: Final = "ISO-8859-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReadLimits:
    """How much of a file is read and held at a time; its rows are the same whatever the limits are."""

    #: A row of CSV that is longer than this may be an error.
    block_bytes: int = 2**24
    #: Rows of a file are held until all of it was read, up to so many bytes of it; a larger one is read twice.
    held_bytes: int = 2**26


_LIMITS: Final = FileReadLimits()


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file: its path or URI, its size and when it was modified, in ns since the epoch."""

    path: str
    size_bytes: int
    modified_ns: int


def find_files(path: str, storage_options: Mapping[str, str], *, name_filter: str = "") -> list[FoundFile]:
    """Return the files that a path names, those that were modified first at the head.

    Raises `FileNotFoundError` for a folder that is not there.
    """
    uri = location_of(path, is_pattern=True)
    folder, _, name = uri.rpartition("/")
    if name and not folder.endswith("/"):  # a bucket is no file
        lone = filesystem_of(folder or "/", storage_options).get_file_info(name)
        if lone.type is fs.FileType.File:
            return [_to_found_file(folder, lone)]
    root, pattern = uri, ""
    if not _is_folder(uri, storage_options):
        root, pattern = _split(uri)
        if not pattern:
            message = f"there is no file and no folder {path}"
            raise FileNotFoundError(message)
        if not _is_folder(root, storage_options):
            message = f"there is no folder {root}, in which {pattern} could be found"
            raise FileNotFoundError(message)
    matches = _matching(pattern)
    listed = filesystem_of(root, storage_options).get_file_info(fs.FileSelector("", recursive=True))
    files = [
        _to_found_file(root, info)
        for info in listed
        if info.type is fs.FileType.File
        and not any(part.startswith(("_", ".")) for part in info.path.split("/"))
        and not info.path.endswith("._COPYING_")
        and matches(info.path)
        and fnmatch.fnmatchcase(info.base_name, name_filter or "*")
    ]
    return sorted(files, key=lambda file: (file.modified_ns, file.path))


def is_away(path: str, file: str) -> bool:
    """Tell whether a file that `find_files` found at a local path was not found because all that the path names was away.

    A folder without anything in it may be one on which nothing is mounted now, and a file that is there by now was away with its folder a
    moment ago. Of the objects of a store each is there or gone by itself.
    """
    local = local_path(path)
    if local is None:
        return False
    root = str(local) if file.startswith(f"{local}/") else _split(str(local))[0]
    folder = local.parent if file == str(local) else Path(root)
    return not folder.is_dir() or not any(folder.iterdir()) or Path(file).exists()


def check_apart(path: str, log_dir: str, files: Sequence[FoundFile]) -> None:
    """Raise `UserError` where the files that a path names are, or may come to be, those of a log.dir: it would be fed with itself.

    ```
     log.dir /data/logs      refused  /data   /data/logs/fruit   /data/*/*.json   /in, where /in/x is a link to /data/logs
                             allowed  /data/*.json   /data/in
    ```
    """
    uri = location_of(path, is_pattern=True)
    root, pattern = (uri, "") if Path(uri).exists() else _split(uri)
    if local_path(uri) is None or local_path(log_dir) is None:
        place, home = (uri.replace("s3a://", "s3://", 1).split("/") for uri in (root, log_dir))
        inside, above = place[: len(home)] == home, home[: len(place)] == place
        below = home[len(place) :]
    else:
        real, folder = Path(root).resolve(), Path(log_dir).resolve()
        inside = any(place.is_relative_to(folder) for place in {real, *(Path(file.path).parent.resolve() for file in files)})
        above = folder.is_relative_to(real)
        below = list(folder.parts[len(real.parts) :])
    if inside or (above and _reaches(pattern, below)):
        message = f"{path} names files of the log.dir {log_dir}, or may come to: the log would be fed with itself. Let them lie apart"
        raise UserError(message)


def _reaches(pattern: str, parts: Sequence[str]) -> bool:
    """Tell whether a pattern may match a folder, given by its parts, or something in it."""
    if any(part.startswith(("_", ".")) for part in parts):
        return False
    if "**" in pattern or re.search(r"\{[^}]*/", pattern):
        return True
    return all(re.fullmatch(_regex(wanted), part) for wanted, part in zip(pattern.split("/"), parts, strict=False)) if pattern else True


def _is_folder(uri: str, storage_options: Mapping[str, str]) -> bool:
    local = local_path(uri)
    if local is not None:
        return local.is_dir()
    return bool(filesystem_of(uri, storage_options).get_file_info(fs.FileSelector("", allow_not_found=True)))


def _to_found_file(root: str, info: fs.FileInfo) -> FoundFile:
    return FoundFile(f"{root.rstrip('/')}/{info.path}", info.size, info.mtime_ns)


def _split(uri: str) -> tuple[str, str]:
    """Return the folder before the first part of a path that is a pattern, and the pattern; the empty one if it is none."""
    magic = _MAGIC.search(uri, uri.find("://") + 3 if "://" in uri else 0)
    if magic is None:
        return uri, ""
    folder, _, _ = uri[: magic.start()].rpartition("/")
    return folder or "/", uri[len(folder) + 1 :]


def _matching(pattern: str) -> Callable[[str], bool]:
    """Return a test for the path of a file below the root: it matches, or a folder that it is in does."""
    if not pattern:
        return lambda _: True
    expression = re.compile(_regex(pattern), re.DOTALL)

    def matches(path: str) -> bool:
        parts = path.split("/")
        return any(expression.fullmatch("/".join(parts[: number + 1])) for number in range(len(parts)))

    return matches


def _regex(pattern: str) -> str:
    """Return a glob as a regular expression; a bracket or brace that nothing closes is itself."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[!^]?[^\]/]+\]|\{[^{}]*\})", pattern)
    return "".join(re.escape(part) if number % 2 == 0 else _special(part) for number, part in enumerate(parts))


def _special(part: str) -> str:
    known = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    if part in known:
        return known[part]
    if part.startswith("{"):
        return f"(?:{'|'.join(_regex(choice) for choice in part[1:-1].split(','))})"
    negated = part[1] in "!^"
    inner = re.sub(r"([\\\[&~|^])", r"\\\1", part[2 if negated else 1 : -1])
    return f"[{'^' if negated else ''}{inner}]"


def read_texts(
    path: str, file_format: FileFormat, storage_options: Mapping[str, str], *, limits: FileReadLimits = _LIMITS
) -> Iterator[list[RowText]]:
    """Yield the rows of a file of JSON or CSV, some at a time, after the whole file was read without an error.

    Else it raises `CorruptFile` or `OSError`, and yields nothing.
    """

    def texts() -> Iterator[list[RowText]]:
        with open_stream(path, storage_options, block_bytes=limits.block_bytes) as file:
            yield from _texts(file, file_format, limits.block_bytes)

    return _whole(texts, lambda rows: sum(len(row.text) + 100 for row in rows), limits.held_bytes)


def read_first_texts(
    path: str, file_format: FileFormat, storage_options: Mapping[str, str], *, limits: FileReadLimits = _LIMITS
) -> list[RowText]:
    """Return the first rows of a JSON or CSV file without reading the rest of it. Errors as `read_texts`."""
    with open_stream(path, storage_options, block_bytes=limits.block_bytes) as file:
        return next(_texts(file, file_format, limits.block_bytes), [])


def read_lines(path: str, storage_options: Mapping[str, str], *, limits: FileReadLimits = _LIMITS) -> Iterator[list[bytes]]:
    """Yield the lines of a file, some at a time, after the whole file was read without an error. Errors as `read_texts`."""

    def lines() -> Iterator[list[bytes]]:
        with open_stream(path, storage_options, block_bytes=limits.block_bytes) as file:
            yield from cut_into_blocks((line.rstrip(b"\r\n") for line in file if line.strip()), len)

    return _whole(lines, lambda rows: sum(map(len, rows)), limits.held_bytes)


def read_columns_of(
    path: str, schema: pa.Schema, storage_options: Mapping[str, str], *, may_have_more: bool, limits: FileReadLimits = _LIMITS
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file with the columns of `schema`, after the whole file was read without an error.

    A column that the file lacks is null. A file with columns that the schema does not have is corrupt, unless it `may_have_more`.
    """

    def batches() -> Iterator[pa.RecordBatch]:
        with naming_damage(), pq.ParquetFile(pa.PythonFile(RawFile(path, storage_options), mode="r")) as file:
            there = file.schema_arrow
            names = {name: _same_name(name, there.names) for name in schema.names}
            more = sorted(set(there.names) - set(names.values()))
            if more and not may_have_more:
                message = (
                    f"it has columns that the files before did not have: {', '.join(more)}. Give the source a schema: with these columns, "
                    "or without them to leave them out"
                )
                raise CorruptFile(message)
            for batch in file.iter_batches(columns=[name for name in names.values() if name is not None], use_threads=False):
                yield pa.record_batch([_cast(batch, names[field.name], field) for field in schema], schema=schema)

    return _whole(batches, lambda batch: batch.nbytes, limits.held_bytes)


def parquet_schema(path: str, storage_options: Mapping[str, str]) -> pa.Schema:
    """Return the columns of a Parquet file; raises `CorruptFile` or `OSError`."""
    with naming_damage(), pq.ParquetFile(pa.PythonFile(RawFile(path, storage_options), mode="r")) as file:
        return file.schema_arrow


def _same_name(name: str, names: list[str]) -> str | None:
    """Return the column of a name: the very same, or the only one that differs in case alone."""
    if name in names:
        return name
    alike = [column for column in names if column.casefold() == name.casefold()]
    return alike[0] if len(alike) == 1 else None


def _cast(batch: pa.RecordBatch, name: str | None, field: pa.Field) -> pa.Array:
    if name is None:
        return pa.nulls(len(batch), field.type)
    try:
        return batch.column(name).cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        message = f"column {name} is {batch.column(name).type}, and cannot be taken as {field.type}: {error}"
        raise CorruptFile(message) from None


def _whole(read: Callable[[], Iterator[Any]], size: Callable[[Any], int], max_bytes: int) -> Iterator[Any]:
    """Yield what `read()` gives when it has come to its end: held until then, or, if it is larger than `max_bytes`, read a second time."""
    held, held_bytes, parts = list[Any](), 0, read()
    for part in parts:
        held.append(part)
        held_bytes += size(part)
        if held_bytes > max_bytes:
            held = []
            for _ in parts:
                pass
            yield from read()
            return
    yield from held


def _texts(file: IO[bytes], file_format: FileFormat, block_bytes: int) -> Iterator[list[RowText]]:
    if file_format.name == "csv":
        yield from _csv(file, file_format, block_bytes)
    elif file_format.multi_line:
        yield from cut_into_blocks(decode_json_document(file.read(), file_format.encoding), lambda row: len(row.text))
    else:
        lines, encoding = _decode(file, file_format.encoding)
        yield from decode_json_lines(lines, encoding)


def _decode(file: IO[bytes], encoding: str) -> tuple[Iterable[bytes], str]:
    """Return the lines of a file; one in two or four bytes a character is decoded whole, as its lines cannot be told before."""
    if not encoding.upper().replace("_", "-").startswith(("UTF-16", "UTF-32")):
        return file, encoding
    try:
        return file.read().decode(encoding).encode().splitlines(keepends=True), "UTF-8"
    except UnicodeDecodeError as error:
        message = f"it is not {encoding}: {error}"
        raise CorruptFile(message) from None


def _csv(file: IO[bytes], file_format: FileFormat, block_bytes: int) -> Iterator[list[RowText]]:
    """Yield the rows of a CSV file by its own header."""
    encoding, quote = file_format.encoding, file_format.quote
    if encoding.upper().replace("_", "-").startswith(("UTF-16", "UTF-32")):
        lines, encoding = _decode(file, encoding)
        source = _PutBackStream(pa.BufferReader(b"".join(lines)), quote, block_bytes)
    else:
        source = _PutBackStream(file, quote, block_bytes)
    begin = without_mark(source.read(block_bytes), encoding)
    if not begin.strip():
        return
    source.put_back(begin)
    invalid, header = list[pa_csv.InvalidRow](), list[str]()
    for batch in _csv_batches(begin, source, file_format, invalid, block_bytes):
        rows: Iterator[tuple[str | None, ...]] = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        texts = list[RowText]()
        if not header:
            first = next(rows)
            header = csv_header(first if file_format.header else [f"_c{at}" for at in range(len(first))], encoding)
            rows = rows if file_format.header else chain([first], rows)
        texts += [csv_row(header, row, encoding) for row in rows]
        texts += [csv_misfit(row.text, row.actual_columns, header, encoding) for row in invalid]
        invalid.clear()
        yield texts
    yield [csv_misfit(row.text, row.actual_columns, header, encoding) for row in invalid]
    if source.quotes % 2 and not file_format.escape:
        raise CorruptFile(_unclosed_quote(quote))


def _csv_batches(
    begin: bytes, source: _PutBackStream, file_format: FileFormat, invalid: list[pa_csv.InvalidRow], block_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a CSV file, its header as the first of them, all fields texts.

    Bytes are taken for ISO-8859-1, in which each is a character, so that none is lost: what they are says the caller.
    """

    def skip(row: pa_csv.InvalidRow) -> str:  # pragma: no cover  in a thread of Arrow's, which coverage.py does not see
        invalid.append(row)
        return "skip"

    def parse(on_invalid: Callable[[pa_csv.InvalidRow], str]) -> pa_csv.ParseOptions:
        return pa_csv.ParseOptions(
            delimiter=file_format.separator,
            quote_char=file_format.quote or False,
            escape_char=file_format.escape or False,
            newlines_in_values=True,
            invalid_row_handler=on_invalid,
        )

    guess = pa_csv.ReadOptions(autogenerate_column_names=True, block_size=len(begin) + 1, use_threads=False, encoding=_BYTES)
    too_long = f"it has a row of more than {block_bytes} bytes, which is too long for CSV; often a quote that nothing closes is the cause"
    quote = file_format.quote
    has_open_quote = bool(quote) and begin.count(quote.encode()) % 2 == 1
    of_whole_file = _unclosed_quote(quote) if has_open_quote else "its first row does not end: an escape is its last character"
    with _explaining(of_whole_file if len(begin) < block_bytes else too_long):
        names = pa_csv.read_csv(pa.BufferReader(begin), guess, parse(lambda _: "skip")).schema.names
    convert = pa_csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()), null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
    )
    read = pa_csv.ReadOptions(column_names=names, block_size=block_bytes, use_threads=False, encoding=_BYTES)
    lent = _LentStream(source)
    references: list[weakref.ref[Any]] = [weakref.ref(lent), weakref.ref(skip)]
    batches: Any = None
    try:
        with _explaining(too_long):
            batches = pa_csv.open_csv(pa.PythonFile(lent, mode="r"), read, parse(skip), convert)
            for batch in batches:
                if len(batch):
                    yield batch
    finally:
        del batches, lent, skip
        _wait_for_release(references)


class _LentStream:
    """Wraps a stream for Arrow's threads: a weak reference to this object tells when they have released it."""

    closed = False

    def __init__(self, source: _PutBackStream) -> None:
        self.read = source.read


def _wait_for_release(references: Sequence[weakref.ref[Any]], *, seconds: float = 1.0) -> None:
    """Wait until Arrow's threads have let go of Python's objects; for a second at most.

    A thread that does so while the process ends aborts it (SIGABRT), whatever its exit code would have been.
    """
    end = time.monotonic() + seconds
    while any(reference() is not None for reference in references) and time.monotonic() < end:
        time.sleep(0.001)


@contextmanager
def _explaining(message: str) -> Iterator[None]:
    """Turn what Arrow says of a row that does not end, in its block or in the next one, into a `CorruptFile` with the message."""
    try:
        yield
    except pa.ArrowInvalid as error:
        if "straddling" in str(error) or "Empty CSV file or block" in str(error):
            raise CorruptFile(message) from error
        raise


def _unclosed_quote(quote: str) -> str:
    return f"it has a quote ({quote}) that nothing closes; if they are no quotes, set the option quote to an empty text"


class _PutBackStream:
    """A stream of which a part can be put back, and whose quotes are counted."""

    def __init__(self, stream: Any, quote: str, block_bytes: int) -> None:
        self._stream, self._quote, self._begin, self._block_bytes = stream, quote.encode(), b"", block_bytes
        self.quotes, self.closed = 0, False

    def put_back(self, begin: bytes) -> None:
        self._begin = begin

    def read(self, size: int = -1) -> bytes:
        """Return so many bytes, and fewer only at the end: Arrow takes a short block for the last one."""
        parts, self._begin = [self._begin], b""
        missing = size - len(parts[0])
        while (size < 0 or missing > 0) and (part := self._stream.read(self._block_bytes if size < 0 else missing)):
            self.quotes += part.count(self._quote) if self._quote else 0
            parts.append(cast("bytes", part))
            missing -= len(part)
        data = b"".join(parts)
        if data and (size < 0 or len(data) < size) and not data.endswith(b"\n"):
            data += b"\n"  # Arrow does not take a lone row for one without it
        if 0 <= size < len(data):
            data, self._begin = data[:size], data[size:]
        return data
