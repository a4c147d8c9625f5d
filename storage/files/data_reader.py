"""Reading data files: row group by row group, some columns at a time, in the thread that asks.

Rows have the types of `DATA_SCHEMA` and ascending offsets, even if another writer has rewritten the file with INT96
timestamps, views in the place of strings, or in another order. The last is an error, because every reader of a log relies on the order.

Damage is what is found twice: a disk or a network that gave less of a file than there is gives all of it the second time.
"""

from __future__ import annotations

import errno
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from polars.exceptions import ComputeError

from lastword.compaction.errors import CorruptLog
from lastword.storage.files.locations import local_path
from lastword.storage.files.paths import filesystem_of, is_storage_fault
from lastword.storage.files.schema import ADDED_COLUMNS, DATA_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

T = TypeVar("T")
#: What pyarrow raises when there is no memory, or it was interrupted: nothing of the file's.
_NO_DAMAGE = (pa.ArrowMemoryError, pa.ArrowCancelled)


@dataclass(slots=True)
class _OpenFile:
    """A data file that is read, and the last offset that was."""

    place: str
    opened: Callable[[], pq.ParquetFile]
    columns: Sequence[str]
    checks_order: bool
    last_offset: int = field(default=-1)
    file: pq.ParquetFile = field(init=False)

    def __post_init__(self) -> None:
        self.file = second_look(self._opened_again)

    def _opened_again(self) -> pq.ParquetFile:
        with named_errors(self.place):
            return self.opened()

    def read(self, number: int) -> pa.Table:
        try:
            rows = self._row_group(number)
        except CorruptLog:
            self.file = self._opened_again()
            rows = self._row_group(number)
        if self.checks_order and "offset" in self.columns:
            self.last_offset = check_order(rows.column("offset").to_numpy(), self.last_offset, self.place)
        return rows

    def _row_group(self, number: int) -> pa.Table:
        with named_errors(self.place):
            rows = self.file.read_row_group(number, columns=list(self.columns), use_threads=False)
            for name in ADDED_COLUMNS:
                if name in self.columns and name not in rows.column_names:
                    rows = rows.append_column(name, pa.nulls(len(rows), DATA_SCHEMA.field(name).type))
            lacking = sorted(set(self.columns) - set(rows.column_names))
            if lacking:
                message = f"{self.place} has no column {', '.join(lacking)}; no writer of lastword leaves such a file"
                raise CorruptLog(message)
            return pa.table({name: _cast(rows.column(name), DATA_SCHEMA.field(name).type) for name in self.columns})


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group of an open file, to be read in order: `size_bytes` are its compressed bytes of the wanted columns."""

    rows: int
    size_bytes: int
    _file: _OpenFile
    _number: int

    def read(self) -> pa.Table:
        """Return its rows in the wanted columns; errors as `row_groups`."""
        return self._file.read(self._number)

    def greatest(self, name: str) -> Any:
        """Return the greatest value of a column as the file's own statistics have it; None where they say nothing."""
        group = self._file.file.metadata.row_group(self._number)
        chunk = next(part for part in (group.column(at) for at in range(group.num_columns)) if part.path_in_schema == name)
        return chunk.statistics.max if chunk.statistics is not None and chunk.statistics.has_min_max else None


def row_groups(
    location: str, storage_options: Mapping[str, str], path: str, columns: Sequence[str], *, checks_order: bool = True
) -> Iterator[RowGroup]:
    """Yield the row groups of a data file of the table at `location`, in order.

    Raises `CorruptLog` naming the file when it is not there, is no Parquet file, lacks a column, or is not in offset order (unless
    `checks_order` is False); `OSError` when the storage does not give it now.
    """
    place, wanted = f"{location}/{path}", set(columns)
    with ExitStack() as opened:
        reading = _OpenFile(place, lambda: opened.enter_context(_open(location, storage_options, path)), columns, checks_order)
        metadata = reading.file.metadata
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            parts = (group.column(at) for at in range(group.num_columns))
            size = sum(part.total_compressed_size for part in parts if part.path_in_schema.split(".")[0] in wanted)
            yield RowGroup(group.num_rows, size, reading, number)


def read_columns(location: str, storage_options: Mapping[str, str], path: str, columns: Sequence[str]) -> pa.Table:
    """Return some columns of a whole data file; errors as `row_groups`."""
    groups = [group.read() for group in row_groups(location, storage_options, path, columns)]
    return pa.concat_tables(groups)


def check_order(offsets: NDArray[np.int64], last: int, place: str) -> int:
    """Return the last of the offsets that follow `last` in a data file; raise `CorruptLog` naming it where they do not ascend."""
    if not len(offsets):
        return last
    wrong = np.flatnonzero(np.diff(offsets, prepend=last) <= 0)
    if len(wrong):
        before = int(offsets[wrong[0] - 1]) if wrong[0] else last
        message = (
            f"{place}: offsets do not ascend after {before}; no writer of lastword leaves such a file, so another one rewrote it: "
            "RESTORE the table to the version before"
        )
        raise CorruptLog(message)
    return int(offsets[-1])


def _cast(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    return column if column.type == wanted else column.cast(wanted, safe=False)


def second_look(read: Callable[[], T]) -> T:
    """Do something that reads a file, and once more if it finds damage."""
    try:
        return read()
    except (CorruptLog, pa.ArrowException, OSError) as error:
        if isinstance(error, (FileNotFoundError, *_NO_DAMAGE)) or not _is_damage(error):
            raise
    return read()


@contextmanager
def named_errors(place: str, *, may_be_gone: bool = False) -> Iterator[None]:
    """Tell damage of a file, or of one of the files of a table, from a storage that does not give it now.

    Raises `CorruptLog` naming `place` for damage, and `OSError` with a number for the storage. A file that is gone is damage, unless it
    `may_be_gone`: `FileNotFoundError` then.
    """
    try:
        yield
    except _NO_DAMAGE:
        raise
    except (pa.ArrowException, OSError, ComputeError) as error:
        is_gone = isinstance(error, FileNotFoundError)  # Polars gives it no number
        if is_storage_fault(error) and getattr(error, "errno", None) is None and not is_gone:
            raise OSError(errno.EIO, f"{place}: {error}") from error
        if not _is_damage(error) or (may_be_gone and is_gone):
            raise
        message = f"{place} cannot be read: {error}"
        raise CorruptLog(message) from error


def _is_damage(error: Exception) -> bool:
    """Tell an error that names a file which is cut, garbled or not there from one of the storage that holds it.

    An error of the storage has a number or a class of its own; what pyarrow says of bytes that are no Parquet is a plain `OSError` or one
    of Arrow's.
    """
    if isinstance(error, FileNotFoundError) or not isinstance(error, OSError):
        return True
    return type(error) is OSError and error.errno is None


@contextmanager
def _open(location: str, storage_options: Mapping[str, str], path: str) -> Iterator[Any]:
    folder = local_path(location)
    if folder is not None:
        with pq.ParquetFile(str(folder / path)) as file:
            yield file
        return
    with filesystem_of(location, storage_options).open_input_file(path) as source, pq.ParquetFile(source) as file:
        yield file
