"""Data files of a table: written by a step, read for the keys of their rows, for some rows, or for all that are not deleted."""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from lastword.storage.files.data_files import delete_files, output_file
from lastword.storage.files.data_reader import named_errors
from lastword.storage.files.paths import filesystem_of, storage_faults
from lastword.storage.tables.key_index import FileKeys, KeyHashes, WantedKeys, find_keys, hash_keys
from lastword.storage.tables.partitioning import constant_column, is_hidden, partition_folder, split_rows, values_of_path
from lastword.storage.tables.statistics import file_statistics, has_nan
from lastword.storage.tables.table_rows import KEY, PARTITION, boolean_mask
from lastword.storage.tables.table_schema import parquet_schema
from lastword.storage.tables.table_state import TableFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from pyroaring import BitMap

    from lastword.storage.tables.table_log import FileChanges
    from lastword.storage.tables.table_rows import RecordKeys

#: Rows of a row group: so many a reader decodes at a time.
_ROW_GROUP_ROWS: Final = 2**18
#: Few values of these columns differ.
_DICTIONARIES: Final = [PARTITION, KEY]


class TableFiles:
    """The data files of the table at a location, with the columns of `schema`; `key_names` are those of the key."""

    def __init__(
        self,
        location: str,
        storage_options: Mapping[str, str],
        schema: pa.Schema,
        key_names: Sequence[str],
        *,
        partition_by: Sequence[str] = (),
        there: Mapping[str, TableFile] | None = None,
        delta_schema: str | None = None,
    ) -> None:
        """Name them; nothing is read yet. `there` are the files of the table, whose partition values the Delta log has.

        `delta_schema` is Delta's `schemaString`, whose numbers of mapped columns new files have as field ids.
        """
        self.location, self.options, self.schema = location, storage_options, schema
        self._partition_by, self._there = tuple(partition_by), there or {}
        self._field_ids = {} if delta_schema is None else {field.name: field for field in parquet_schema(delta_schema)}
        self._key_names = tuple(key_names)
        self.filesystem = filesystem_of(location, storage_options)

    def write(self, rows: pa.Table) -> list[tuple[TableFile, pa.Table]]:
        """Write rows as files, which no commit names yet, one of each partition; return each with its rows."""
        return [(self._write(part, values), part) for values, part in split_rows(rows, self._partition_by)] if len(rows) else []

    def _write(self, rows: pa.Table, partition_values: Mapping[str, str | None]) -> TableFile:
        path = f"{partition_folder(partition_values)}part-{uuid.uuid4()}.parquet"
        columns = pa.schema([self._field_ids.get(field.name, field) for field in rows.schema])
        with output_file(self.location, self.options, path) as stream:
            pq.write_table(
                rows.cast(columns),
                stream,
                compression="zstd",
                compression_level=1,
                use_dictionary=_DICTIONARIES,
                row_group_size=_ROW_GROUP_ROWS,
                write_statistics=not has_nan(rows),
            )
            size = int(stream.tell())
        stats = file_statistics(rows.drop_columns(list(partition_values)), keys=(*self._key_names, KEY))
        return TableFile(path=path, size_bytes=size, stats=stats, partition_values=partition_values)

    def align(self, rows: pa.Table) -> pa.Table:
        """Return rows with all columns of the table, in its order; one that they lack is null."""
        columns = {name: rows.column(name) for name in rows.schema.names}
        return pa.table({column.name: columns.get(column.name, pa.nulls(len(rows), column.type)) for column in self.schema})

    def keys_of(self, rows: pa.Table) -> FileKeys:
        """Return the keys of rows as they lie in a file."""
        by_key = boolean_mask(pc.is_valid(rows.column(KEY)))
        hashes = hash_keys(rows.select([PARTITION, *self._key_names]), by_key=False)
        if by_key.any():
            other = hash_keys(rows.select([PARTITION, KEY]), by_key=True)
            hashes = KeyHashes(first=np.where(by_key, other.first, hashes.first), second=np.where(by_key, other.second, hashes.second))
        offsets = rows.column("_offset").to_numpy() if "_offset" in rows.schema.names else None
        return FileKeys.of(hashes, offsets)

    def read_keys(self, path: str) -> FileKeys:
        """Return the keys of all rows of a file, deleted ones too."""
        offset = ["_offset"] if "_offset" in self.schema.names else []
        with self._open(path) as file:
            return self.keys_of(self._shape(path, file, None, [PARTITION, *self._key_names, KEY, *offset]))

    def rows_of(self, path: str, wanted: RecordKeys) -> NDArray[np.int64]:
        """Return the numbers of the rows of some keys in a file, deleted ones too."""
        return find_keys(self.read_keys(path), WantedKeys.of(wanted))[1]

    def kept_rows(self, path: str, rows: Sequence[int], kept: Mapping[int, int], position: Sequence[int]) -> set[int]:
        """Return those of some live rows of one key that are the record at the offset that `kept` names for their partition.

        A table without offsets has the newest record alone: it is the one that is kept once the table has read it.
        """
        staying = set[int]()
        if rows and kept:
            newest = self.take(path, np.asarray(sorted(rows), dtype=np.int64))
            offsets = newest.column("_offset").to_pylist() if "_offset" in newest.schema.names else [None] * len(newest)
            for row, partition, offset in zip(sorted(rows), newest.column(PARTITION).to_pylist(), offsets, strict=True):
                wanted = kept.get(partition)
                if wanted is not None and (position[partition] > wanted if offset is None else offset == wanted):
                    staying.add(row)
        return staying

    def list_files(self) -> list[str]:
        """Return the paths of all Parquet files in the folder of the table, whether the table has them or not."""
        with storage_faults(self.location):
            listed = self.filesystem.get_file_info(fs.FileSelector("", recursive=True, allow_not_found=True))
        return sorted(file.path for file in listed if file.path.endswith(".parquet") and not is_hidden(file.path))

    def take(self, path: str, rows: NDArray[np.int64]) -> pa.Table:
        """Return some rows of a file by their numbers, in their order; only row groups that have one of them are read."""
        parts = list[pa.Table]()
        with self._open(path) as file:
            begin = 0
            for number in range(file.metadata.num_row_groups):
                count = file.metadata.row_group(number).num_rows
                mine = rows[(rows >= begin) & (rows < begin + count)] - begin
                if len(mine):
                    parts.append(self._shape(path, file, number).take(pa.array(np.sort(mine))))
                begin += count
        return pa.concat_tables(parts) if parts else self.schema.empty_table()

    def live_rows(self, path: str, deleted: BitMap) -> Iterator[pa.Table]:
        """Yield the rows of a file that are not deleted, a row group at a time."""
        gone, begin = np.asarray(deleted.to_array(), dtype=np.int64), 0
        with self._open(path) as file:
            for number in range(file.metadata.num_row_groups):
                rows = self._shape(path, file, number)
                dead = gone[np.searchsorted(gone, begin) : np.searchsorted(gone, begin + len(rows))] - begin
                begin += len(rows)
                if len(dead):
                    keep = np.ones(len(rows), dtype=np.bool_)
                    keep[dead] = False
                    rows = rows.filter(pa.array(keep))
                if len(rows):
                    yield rows

    def discard(self, changes: FileChanges) -> None:
        """Delete the files that a commit which is not made would have added."""
        self.delete([file.path for file in changes.added])

    def delete(self, paths: Sequence[str]) -> None:
        """Delete files that no commit names."""
        delete_files(self.location, self.options, paths)

    @contextmanager
    def _open(self, path: str) -> Iterator[pq.ParquetFile]:
        with named_errors(f"{self.location}/{path}"), pq.ParquetFile(path, filesystem=self.filesystem) as file:
            yield file

    def _shape(self, path: str, file: pq.ParquetFile, row_group: int | None, names: Sequence[str] = ()) -> pa.Table:
        """Return rows of a file with the columns of the table, or some of them; one that the file lacks is null, or its partition's."""
        wanted = [field for field in self.schema if not names or field.name in names]
        there = [field.name for field in wanted if field.name in file.schema_arrow.names]
        rows = file.read(columns=there) if row_group is None else file.read_row_group(row_group, columns=there)
        count = (file.metadata if row_group is None else file.metadata.row_group(row_group)).num_rows
        columns = {name: rows.column(name) for name in there}
        lacking = [field.name for field in wanted if field.name in self._partition_by and field.name not in there]
        if lacking:
            known = self._there.get(path)
            values = values_of_path(path, lacking, self.location) if known is None else known.partition_values
            columns |= {name: constant_column(values[name], self.schema.field(name).type, count) for name in lacking}
        return pa.table(
            {
                column.name: columns[column.name].cast(column.type) if column.name in columns else pa.nulls(count, column.type)
                for column in wanted
            }
        )
