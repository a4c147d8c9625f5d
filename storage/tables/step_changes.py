"""What one step changes in a table: new rows as files, and rows of files that are deleted. Nothing is committed here.

```
 records of a step, a chunk at a time           newest of each key
   keys in the index   → (file, row)            rows that are deleted       files of the table, and those of the chunks before
   rows with a value   → a new file
 at the end, of each file that lost rows        a deletion vector, or the file is written again without them
```

All rows of a chunk are of one partition each time that they are compared: identity is (partition, key).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from lastword.storage.tables.key_index import WantedKeys, find_keys
from lastword.storage.tables.periods import periods_of
from lastword.storage.tables.table_log import FileChanges
from lastword.storage.tables.table_rows import CURRENT, KEY, PARTITION, PERIOD, VALID_FROM, VALID_TO, boolean_mask, newest_of_each_key
from lastword.storage.tables.vectors import read_vector, write_vectors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from lastword.change_data.columns.table_columns import RowMisfit
    from lastword.storage.tables.key_index import FileKeys, KeyIndex
    from lastword.storage.tables.table_files import TableFiles
    from lastword.storage.tables.table_rows import RecordKeys, RowMaker
    from lastword.storage.tables.table_state import TableFile
    from lastword.storage.tables.vectors import Vector

    Numbers = NDArray[np.int64]


class Vectors:
    """The deletion vectors of the files of a table, as far as they were read."""

    def __init__(self, files: TableFiles) -> None:
        """Read them from a table's folder."""
        self._filesystem = files.filesystem
        self._read: dict[str, tuple[Vector, BitMap]] = {}

    def of(self, file: TableFile) -> BitMap:
        """Return the deleted rows of a file; not to be changed."""
        if file.vector is None:
            return BitMap()
        known = self._read.get(file.path)
        if known is None or known[0] != file.vector:
            known = self._read[file.path] = file.vector, read_vector(self._filesystem, file.vector)
        return known[1]

    def keep(self, files: Mapping[str, TableFile]) -> None:
        """Forget those of other files."""
        self._read = {path: known for path, known in self._read.items() if path in files}


class StepChanges:
    """The changes of one step; add chunks of records, then ask for the changes of the files."""

    def __init__(
        self,
        there: Mapping[str, TableFile],
        files: TableFiles,
        index: KeyIndex | None,
        vectors: Vectors,
        rows: RowMaker,
        *,
        refuse: Callable[[pa.Table, Sequence[RowMisfit]], None] | None = None,
    ) -> None:
        """Change the files of a table. Without an index no key is looked up: a table that is made has none, and none comes twice.

        `refuse` takes records with a value that does not fit, of which the table then gets no row.
        """
        self._there, self._files, self._index, self._vectors, self._rows = dict(there), files, index, vectors, rows
        self._history = rows.layout.history
        #: Files of this step with the rows of them that a later chunk deletes.
        self._new: dict[str, TableFile] = {}
        self._deleted: dict[str, BitMap] = {}
        self._refuse = refuse
        self.written_rows = self.deleted_rows = self.misfit_rows = 0

    def add(self, records: pa.Table) -> None:
        """Take records (partition, offset, key, value, timestamp, headers) in the order of the log.

        Raises `UserError` for a value that does not fit its column.
        """
        if not len(records):
            return
        chosen = records if self._history or self._index is None else newest_of_each_key(records)
        keys = self._rows.keys(chosen)
        if self._history:
            self._add_history(chosen, keys)
            return
        for path, _, rows, _ in self._find(keys):
            self._delete(path, rows)
        is_live = pc.is_valid(chosen.column("value"))
        if pc.all(is_live).as_py():
            self._write(self._make(chosen, keys)[0])
        else:
            live = np.flatnonzero(boolean_mask(is_live))
            self._write(self._make(chosen.take(pa.array(live)), _take_keys(keys, live))[0])

    def _make(self, records: pa.Table, keys: RecordKeys) -> tuple[pa.Table, NDArray[np.bool_]]:
        """Return records with a value as rows, and which of the records are rows: the others were refused."""
        made, is_kept = self._rows.rows(records, keys), np.ones(len(records), dtype=np.bool_)
        misfits = {misfit.row: misfit for misfit in made.misfits}
        self.misfit_rows += len(misfits)
        if self._refuse is None or not misfits:
            return made.rows, is_kept
        is_kept[list(misfits)] = False
        self._refuse(records, list(misfits.values()))
        return made.rows.filter(pa.array(is_kept)), is_kept

    def discard(self, changes: FileChanges) -> None:
        """Delete the files of a step that was not committed."""
        marked = [after.vector for _, after in changes.marked] + [file.vector for file in changes.added]
        vectors = {vector.path for vector in marked if vector is not None and vector.path is not None}
        written = {*self._new, *(file.path for file in changes.added)} - set(self._there)
        self._files.delete([*written, *sorted(vectors)])
        if self._index is not None:
            self._index.drop(list(written))

    def files(self, *, deletion_vectors: bool) -> FileChanges:
        """Return what a commit does to the files: rows are marked in deletion vectors, or their files are written again."""
        changes = FileChanges()
        deleted = {path: rows for path, rows in self._deleted.items() if rows}
        vectors = write_vectors(self._files.location, self._files.options, self._partly_deleted(deleted)) if deletion_vectors else {}
        for path, file in self._new.items():
            if path not in deleted:
                changes.added.append(file)
            elif path in vectors:
                changes.added.append(replace(file, vector=vectors[path]))
            else:
                changes.added += self._rewrite(path, deleted[path])
        for path, rows in deleted.items():
            before = self._there.get(path)
            if before is None:
                continue
            if path in vectors:
                changes.marked.append((before, replace(before, vector=vectors[path])))
            else:
                changes.removed.append(before)
                changes.added += self._rewrite(path, rows | self._vectors.of(before))
        return changes

    def _partly_deleted(self, deleted: Mapping[str, BitMap]) -> dict[str, BitMap]:
        """Return all deleted rows of the files of which some rows are left; readers ask a marked file how many rows it has.

        A file whose path has a percent sign, as of a partition, is written again: Polars looks for its vector under another path.
        """
        deleted_by_file = dict[str, BitMap]()
        for path, rows in deleted.items():
            file = self._there.get(path) or self._new[path]
            together = rows | self._vectors.of(file)
            if file.rows is not None and len(together) < file.rows and "%" not in path:
                deleted_by_file[path] = together
        return deleted_by_file

    def _rewrite(self, path: str, deleted: BitMap) -> list[TableFile]:
        """Write the rows of a file that are not deleted as a new file; return it, or nothing when none is left."""
        file = self._there.get(path) or self._new[path]
        if file.rows is not None and len(deleted) >= file.rows:
            return []
        rows = pa.concat_tables([self._files.schema.empty_table(), *self._files.live_rows(path, deleted)])
        return [written for written, _ in self._files.write(rows)]

    def _find(self, keys: RecordKeys) -> list[tuple[str, Numbers, Numbers, FileKeys]]:
        """Return by file the numbers of keys, the rows that are theirs and are not deleted, and what is known of its rows."""
        hits_by_file: list[tuple[str, Numbers, Numbers, FileKeys]] = []
        if self._index is None:
            return hits_by_file
        wanted = WantedKeys.of(keys)
        for path, file in {**self._there, **self._new}.items():
            known = self._index.of(path)
            which, rows = find_keys(known, wanted, has_plain_alone=file.has_only_nulls(KEY))
            if not len(rows):
                continue
            gone = self._vectors.of(file), self._deleted.get(path, BitMap())
            if any(gone):
                live = np.fromiter((row not in gone[0] and row not in gone[1] for row in rows.tolist()), np.bool_, len(rows))
                which, rows = which[live], rows[live]
            if len(rows):
                hits_by_file.append((path, which, rows, known))
        return hits_by_file

    def _delete(self, path: str, rows: Numbers) -> None:
        self._deleted.setdefault(path, BitMap()).update(rows.astype(np.uint32))
        self.deleted_rows += len(rows)

    def _write(self, rows: pa.Table) -> None:
        for file, part in self._files.write(self._files.align(rows)):
            self._new[file.path] = file
            self.written_rows += len(part)
            if self._index is not None:
                self._index.put(file.path, self._files.keys_of(part))

    def _add_history(self, records: pa.Table, keys: RecordKeys) -> None:
        """End the periods of the rows before the records, and write the records as rows with theirs."""
        numbers, is_live = _number_keys(keys), boolean_mask(pc.is_valid(records.column("value")))
        live = np.flatnonzero(is_live)
        rows, is_kept = self._make(records.take(pa.array(live)), _take_keys(keys, live))
        is_live[live[~is_kept]] = False
        last, rows_before = self._last_rows(keys, numbers)
        known = pl.DataFrame({"key": numbers}).join(last, on="key", how="left", maintain_order="left")
        begin, end = periods_of(
            numbers,
            records.column("timestamp").combine_chunks(),
            tombstones=~is_live,
            floors=known["floor"].to_arrow(),
            open_rows=known["is_open"].fill_null(value=False).to_arrow(),
        )
        ended = self._end_periods(last, rows_before, numbers, begin)
        kept = pa.array(np.flatnonzero(is_live))
        until = end.take(kept)
        written = _with(self._files.align(rows), {VALID_FROM: begin.take(kept), VALID_TO: until, CURRENT: pc.is_null(until)})
        self._write(pa.concat_tables([ended, written]).combine_chunks())

    def _last_rows(self, keys: RecordKeys, numbers: Numbers) -> tuple[pl.DataFrame, pa.Table]:
        """Return the last row of each key that the table has, ended or not, as key (its number), path, row, floor, is_open; and whole."""
        hits = [pl.DataFrame(schema={"key": pl.Int64, "path": pl.String, "row": pl.Int64, "offset": pl.Int64})]
        for path, which, rows, known in self._find(keys):
            hits.append(
                pl.DataFrame({"key": numbers[which], "row": rows, "offset": known.offsets_of(rows)}).select(
                    "key", pl.lit(path).alias("path"), "row", "offset"
                )
            )
        last = pl.concat(hits).sort("offset").group_by("key").last().sort("path", "row")
        by_file = last.partition_by("path", as_dict=True, maintain_order=True)
        parts = [self._files.take(str(path), part["row"].to_numpy()) for (path,), part in by_file.items()]
        rows_whole = pa.concat_tables([self._files.schema.empty_table(), *parts])
        ends = pl.DataFrame({name: pl.Series(rows_whole.column(name)) for name in PERIOD})
        periods = ends.select(floor=pl.max_horizontal(VALID_FROM, VALID_TO), is_open=pl.col(CURRENT).fill_null(value=False))
        return pl.concat([last, periods], how="horizontal"), rows_whole

    def _end_periods(self, last: pl.DataFrame, rows: pa.Table, numbers: Numbers, begin: pa.Array) -> pa.Table:
        """Return those of the last rows that hold no more, with the ends of their periods, and delete them as they were."""
        current = last.with_row_index("at").filter("is_open")
        for (path,), part in current.partition_by("path", as_dict=True).items():
            self._delete(str(path), part["row"].to_numpy())
        firsts = np.unique(numbers, return_index=True)[1]  # the numbers are 0, 1, 2 …
        ends = begin.take(pa.array(firsts[current["key"].to_numpy()]))
        ended = rows.take(current["at"].to_arrow())
        return _with(ended, {VALID_TO: ends, CURRENT: pa.repeat(pa.scalar(value=False), len(ended))})


def _take_keys(keys: RecordKeys, rows: Numbers) -> RecordKeys:
    return replace(keys, columns=keys.columns.take(pa.array(rows)), plain=keys.plain[rows])


def _number_keys(keys: RecordKeys) -> Numbers:
    """Return a number for each record, the same for those of one (partition, key)."""
    columns = [pl.Series(name, keys.columns.column(name).combine_chunks()) for name in (PARTITION, KEY)]
    numbers: Numbers = pl.DataFrame(columns).select(pl.struct(PARTITION, KEY).rank("dense")).to_series().to_numpy().astype(np.int64) - 1
    return numbers


def _with(rows: pa.Table, columns: Mapping[str, pa.Array]) -> pa.Table:
    for name, values in columns.items():
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, pa.field(name, PERIOD[name]), pa.chunked_array([values]).cast(PERIOD[name]))
    return rows
