"""Reading data files: row group by row group, some columns at a time, in the thread that asks."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from lastword.compaction.errors import CorruptLog
from lastword.storage.files.paths import filesystem_of, local_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

#: What pyarrow raises for a file that is cut, garbled, or not there.
_DAMAGE = (pa.ArrowInvalid, OSError)


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group of an open file: `size_bytes` are its compressed bytes of the wanted columns."""

    rows: int
    size_bytes: int
    _place: str
    _file: pq.ParquetFile
    _number: int
    _columns: Sequence[str]

    def read(self) -> pa.Table:
        """Return its rows in the wanted columns; errors as `row_groups`."""
        with _damage_named(self._place):
            return self._file.read_row_group(self._number, columns=list(self._columns), use_threads=False)


def row_groups(location: str, storage_options: Mapping[str, str], path: str, columns: Sequence[str]) -> Iterator[RowGroup]:
    """Yield the row groups of a data file of the table at `location`, in order.

    Raises `CorruptLog` naming the file when it is not there or cannot be read.
    """
    place, wanted = f"{location}/{path}", set(columns)
    with ExitStack() as opened:
        with _damage_named(place):
            file = opened.enter_context(_opened(location, storage_options, path))
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            parts = (group.column(at) for at in range(group.num_columns))
            size = sum(one.total_compressed_size for one in parts if one.path_in_schema.split(".")[0] in wanted)
            yield RowGroup(group.num_rows, size, place, file, number, columns)


def read_columns(location: str, storage_options: Mapping[str, str], path: str, columns: Sequence[str]) -> pa.Table:
    """Return some columns of a whole data file; errors as `row_groups`."""
    found = [group.read() for group in row_groups(location, storage_options, path, columns)]
    return pa.concat_tables(found)


@contextmanager
def _damage_named(place: str) -> Iterator[None]:
    try:
        yield
    except _DAMAGE as error:
        message = f"{place} cannot be read: {error}"
        raise CorruptLog(message) from error


@contextmanager
def _opened(location: str, storage_options: Mapping[str, str], path: str) -> Iterator[Any]:
    folder = local_path(location)
    source = str(folder / path) if folder is not None else filesystem_of(location, storage_options).open_input_file(path)
    with pq.ParquetFile(source) as file:
        yield file
