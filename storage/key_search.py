"""Whether a key is still in the files of a table: every Parquet file that lies there is decoded, in the current version or not.

```
 file                     in the current version   rows of the key
 slice=0/part-a.parquet   yes                      0
 slice=7/part-b.parquet   no, removed              3     an older version still shows them, until the file is deleted
 slice=9/part-c.parquet   no, never committed      1     what a crash left behind
```

A search for bytes would find nothing: pages are compressed, keys stand in dictionaries. Files are read a few megabytes at a time. In the
log a row is found by its key column; a dead letter also when its text names the key as a word of its own, as the column of its key is
unknown. No Spark, and no predicate that Delta would write into a commit: the key stands in no file because of us.
"""

from __future__ import annotations

import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from lastword.storage.files.paths import filesystem_of, storage_faults
from lastword.storage.progress import work

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

_BATCH_BYTES: Final = 16 * 2**20
_BATCH_ROWS: Final = 65_536
_WORD: Final = "[0-9A-Za-z_]"
#: The partition of a file of the log stands in its path.
PARTITION: Final = re.compile(r"(?:^|/)partition=(\d+)/")
#: The columns of a dead letter that hold text in which a key may stand.
#: The columns of dead letters that hold a key: as the source wrote it, and as the log has it.
LETTER_KEYS: Final = ("key", "record_key")
TEXT_COLUMNS: Final = ("value", "raw", "detail", "reason")


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedKey:
    """What is searched for: a key, but for the records at `kept` (partition, offset), and dead letters refused at `before_ms` or later."""

    key: bytes
    kept: frozenset[tuple[int, int]] = frozenset()
    before_ms: int | None = None

    @property
    def pattern(self) -> str | None:
        """The regular expression (of Python and of Java alike) that finds the key in a text as a word of its own; None for the empty key.

        For texts whose bytes are taken for ISO-8859-1, so that every byte is a character. JSON may write the key in other ways.
        """
        forms = [self.key]
        try:
            text = self.key.decode()
            forms += [json.dumps(text, ensure_ascii=ascii_only)[1:-1].encode() for ascii_only in (True, False)]
        except UnicodeDecodeError:
            pass
        patterns = sorted({"".join(f"\\x{byte:02x}" for byte in form) for form in forms if form})
        return f"(?<!{_WORD})(?:{'|'.join(patterns)})(?!{_WORD})" if patterns else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundIn:
    """A file that holds the key: how many rows of it (None: it cannot be decoded, `why`), and when it was written."""

    path: str
    rows: int | None
    written_ms: int
    why: str = ""


class KeySearch:
    """The search through the data files of one table; a file is decoded once, as its path is never written again."""

    def __init__(
        self,
        location: str,
        storage_options: Mapping[str, str],
        wanted: WantedKey,
        *,
        texts: bool = False,
        batch_bytes: int = _BATCH_BYTES,
        batch_rows: int = _BATCH_ROWS,
    ) -> None:
        """Look for `wanted` in the files of a table, so many rows or about so many bytes at a time; with `texts` as in dead letters."""
        self._batch_bytes, self._batch_rows = batch_bytes, batch_rows
        self._files, self._wanted, self._texts = filesystem_of(location, storage_options), wanted, texts
        self._pattern = re.compile(wanted.pattern.encode()) if texts and wanted.pattern else None
        self._clean: set[str] = set()

    @property
    def decoded(self) -> int:
        """The number of files that were decoded and do not hold the key."""
        return len(self._clean)

    def look(self) -> list[FoundIn]:
        """Decode the files that lie there now and were not decoded before; return those that hold the key, by path."""
        there = [
            file
            for file in self._files.get_file_info(fs.FileSelector("", recursive=True, allow_not_found=True))
            if file.type == fs.FileType.File and file.path.endswith(".parquet") and not file.path.startswith("_delta_log/")
        ]
        self._clean &= {file.path for file in there}
        waiting = sorted((file for file in there if file.path not in self._clean), key=lambda file: file.path)

        def decode(info: fs.FileInfo) -> FoundIn | None:
            rows = self._decode(info)
            advance(1)
            return rows

        workers = min(4, os.cpu_count() or 1)
        with ThreadPoolExecutor(workers, "key-search") as threads, work("search a key", total=len(waiting), unit="files") as advance:
            files = [file for file in threads.map(decode, waiting) if file is not None]
        self._clean |= {file.path for file in waiting} - {file.path for file in files}
        return [file for file in files if file.rows is None or file.rows]

    def _decode(self, info: fs.FileInfo) -> FoundIn | None:
        """Return what a file holds of the key; None when it holds nothing."""
        written_ms = (info.mtime_ns or 0) // 1_000_000
        try:
            rows = self._rows(info.path)
        except FileNotFoundError:
            return FoundIn(path=info.path, rows=0, written_ms=written_ms)  # somebody else deleted it meanwhile
        except (OSError, ValueError, pa.ArrowException) as error:
            return FoundIn(path=info.path, rows=None, written_ms=written_ms, why=str(error).partition("\n")[0])
        return FoundIn(path=info.path, rows=rows, written_ms=written_ms) if rows else None

    def _rows(self, path: str) -> int:
        """Count the rows of the key in one file."""
        with self._files.open_input_file(path) as source:
            names = pq.read_schema(source).names
        texts = [name for name in TEXT_COLUMNS if name in names] if self._texts else []
        if "key" not in names:
            message = "has no column key"
            raise ValueError(message)
        beside = ["headers", "refused_at", "record_key"] if self._texts else ["offset"] if self._wanted.kept else []
        columns = [name for name in dict.fromkeys(["key", *texts, *beside]) if name in names]
        partition = PARTITION.search(path)
        total = 0
        with self._files.open_input_file(path) as source:
            file = pq.ParquetFile(source, read_dictionary=["key", *texts])
            for batch in _batches(file, columns, self._batch_bytes, self._batch_rows):
                if self._texts:
                    total += int(self.letters_naming(batch).sum())
                    continue
                mask = _is(_encode(batch.column("key")), self._wanted.key)
                if self._wanted.kept and partition is not None and mask.any():
                    mask = mask & ~self._kept_rows(batch, int(partition.group(1)))
                total += int(mask.sum())
        return total

    def letters_naming(self, letters: pa.RecordBatch | pa.Table) -> NDArray[np.bool_]:
        """Tell which dead letters have the key, or name it in a text or a header, and were not refused too late to go."""
        naming = np.zeros(letters.num_rows, dtype=np.bool_)
        at = 0
        for batch in [letters] if isinstance(letters, pa.RecordBatch) else letters.to_batches():
            texts = [name for name in TEXT_COLUMNS if name in batch.schema.names]
            mask = self._find_mentions(batch, texts)
            for name in LETTER_KEYS:
                if name in batch.schema.names:
                    mask = mask | _is(_encode(batch.column(name)), self._wanted.key)
            naming[at : at + batch.num_rows] = self._without_spared_rows(batch, mask)
            at += batch.num_rows
        return naming

    def _kept_rows(self, batch: pa.RecordBatch, partition: int) -> NDArray[np.bool_]:
        """Tell which rows of a partition are records that are to stay."""
        return np.array([(partition, offset) in self._wanted.kept for offset in batch.column("offset").to_pylist()], dtype=np.bool_)

    def _find_mentions(self, batch: pa.RecordBatch, texts: Sequence[str]) -> NDArray[np.bool_]:
        """Tell which dead letters name the key in a text, or in a header."""
        mentions = np.zeros(batch.num_rows, dtype=np.bool_)
        if self._pattern is None:
            return mentions
        for name in texts:
            column = _encode(batch.column(name))
            named = [self._does_name(value) for value in column.dictionary.cast(pa.binary()).to_pylist()]
            indices = column.indices.fill_null(-1).to_numpy(zero_copy_only=False)
            mentions |= np.array([*named, False], dtype=np.bool_)[indices]
        if "headers" in batch.schema.names:
            headers = batch.column("headers").to_pylist()
            mentions |= np.array(
                [any(self._does_name(part) for header in row or () for part in header.values()) for row in headers], dtype=np.bool_
            )
        return mentions

    def _does_name(self, value: bytes | str | None) -> bool:
        if value is None or self._pattern is None:
            return False
        return self._pattern.search(value.encode() if isinstance(value, str) else value) is not None

    def _without_spared_rows(self, batch: pa.RecordBatch, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Leave out what was refused too late to go."""
        if self._wanted.before_ms is None or "refused_at" not in batch.schema.names:
            return mask
        micros = batch.column("refused_at").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        late = pc.greater_equal(micros, self._wanted.before_ms * 1000).fill_null(False)  # noqa: FBT003  what null becomes
        early: NDArray[np.bool_] = ~late.to_numpy(zero_copy_only=False)
        return mask & early


def statistics_naming(location: str, storage_options: Mapping[str, str], wanted: WantedKey) -> list[tuple[str, int]]:
    """Return the files of a Delta log whose column statistics name the key, with the time at which each was written.

    The minimum or maximum of a text column stands in the commit that added a file. Commits cannot be changed; they go in their time.
    """
    files = filesystem_of(location, storage_options)
    paths = []
    for info in files.get_file_info(fs.FileSelector("_delta_log", recursive=True, allow_not_found=True)):
        if info.type != fs.FileType.File:
            continue
        with storage_faults(f"{location}/{info.path}"), files.open_input_file(info.path) as source:
            texts = _stored_statistics(source) if info.path.endswith(".parquet") else _written_statistics(source)
            if any(_tells(json.loads(text), wanted) for text in texts):
                paths.append((info.path, (info.mtime_ns or 0) // 1_000_000))
    return sorted(paths)


def _written_statistics(source: Any) -> Iterator[str]:
    """Return the statistics in a file of JSON lines: commits, and checksums with all files."""
    for line in source.read().splitlines():
        try:
            yield from _stats_in(json.loads(line))
        except ValueError:
            continue


def _stats_in(body: object) -> Iterator[str]:
    if isinstance(body, dict):
        for name, value in body.items():
            if name == "stats" and isinstance(value, str):
                yield value
            else:
                yield from _stats_in(value)
    elif isinstance(body, list):
        for element in body:
            yield from _stats_in(element)


def _stored_statistics(source: Any) -> Iterator[str]:
    """Return the statistics in a Delta log checkpoint."""
    file = pq.ParquetFile(source)
    if "add" not in file.schema_arrow.names:
        return
    for batch in file.iter_batches(batch_size=1024, columns=["add"]):
        for row in batch.column("add").to_pylist():
            if row is not None and row.get("stats"):
                yield row["stats"]


def _tells(statistics: object, wanted: WantedKey) -> bool:
    """Tell whether a minimum or maximum is the key, or of a dead letter's text names it."""
    body = statistics if isinstance(statistics, dict) else {}
    values = [pair for bound in ("minValues", "maxValues") for pair in (body.get(bound) or {}).items()]
    pattern = re.compile(wanted.pattern.encode()) if wanted.pattern else None
    for name, value in values:
        if not isinstance(value, str):
            continue
        if value.encode() == wanted.key or (pattern is not None and name in TEXT_COLUMNS and pattern.search(value.encode())):
            return True
    return False


def _batches(file: pq.ParquetFile, columns: Sequence[str], batch_bytes: int, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Return columns of a file in batches of at most so many rows, and of about so many bytes."""
    metadata, raw = file.metadata, 0
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            column = metadata.row_group(group).column(number)
            raw += column.total_uncompressed_size if column.path_in_schema.split(".")[0] in columns else 0
    most = batch_bytes * max(1, metadata.num_rows) // max(1, raw)
    yield from file.iter_batches(batch_size=max(1, min(batch_rows, most)), columns=list(columns))


def _encode(column: pa.Array) -> pa.DictionaryArray:
    """Return a column by dictionary, as it should have been read: a null type and old writers' types are not."""
    return column if pa.types.is_dictionary(column.type) else column.dictionary_encode()


def _is(column: pa.DictionaryArray, key: bytes) -> NDArray[np.bool_]:
    """Tell which rows hold the key; the values of a dictionary are distinct."""
    at = pc.index(column.dictionary.cast(pa.binary()), pa.scalar(key, pa.binary())).as_py()
    if at < 0:
        return np.zeros(len(column), dtype=np.bool_)
    indices: NDArray[np.int32] = column.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    matches: NDArray[np.bool_] = indices == at
    return matches
