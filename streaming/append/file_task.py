"""What a task of a file source does: it reads files, and says of each that cannot be read what is wrong.

It runs on executors, which have nothing of the service's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from lastword.change_data.columns.json_rows import NoEvent
from lastword.change_data.events.event_rows import line_events
from lastword.change_data.files.file_rows import CorruptFile
from lastword.compaction.rows.input_columns import MALFORMED, ORDER_PREFIX, REFUSAL
from lastword.compaction.rows.validation import Reason
from lastword.storage.files.source_files import is_away, read_lines, read_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lastword.change_data.files.file_rows import FileColumns
    from lastword.storage.files.file_format import FileFormat

    #: Gives the rows of one file.
    Read = Callable[[str], Iterator[pa.RecordBatch]]

#: The columns beside those of the rows: what is wrong with a row, and its place.
FILE, ROW = f"{ORDER_PREFIX}1_file", f"{ORDER_PREFIX}2_row"
PLACE: Final = {MALFORMED: "string", REFUSAL: "string", FILE: "int", ROW: "bigint"}
#: Key, value and JSON text of a row.
KEY, VALUE, TEXT = "__key", "__value", "__text"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTask:
    """Reads the files of some parts; one that cannot be read is a row that says so, and with `stops` ends the query."""

    parts: Sequence[Sequence[tuple[int, str]]]
    read: Read
    root: str
    schema: pa.Schema
    stops: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the parts whose numbers are the column `id`, in the columns of `schema`."""
        for batch in batches:
            for part in batch.column("id").to_pylist():
                for number, path in self.parts[part]:
                    yield from self._file(number, path)

    def _file(self, number: int, path: str) -> Iterator[pa.RecordBatch]:
        count = 0
        try:
            for rows in self.read(path):
                yield _add_places(rows, number, count, self.schema)
                count += len(rows)
        except CorruptFile as error:
            why = str(error)
        except FileNotFoundError:
            if is_away(self.root, path):
                raise
            why = "it is gone since it was listed"
        else:
            return
        yield _add_places(_corrupt(path, why, stops=self.stops), number, count, self.schema)


def _add_places(rows: pa.RecordBatch, number: int, first: int, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows of a file in the columns of a schema: with their place, and null in those that they lack."""
    place = {FILE: pa.array(np.full(len(rows), number, dtype=np.int32)), ROW: pa.array(np.arange(first, first + len(rows)))}
    there = {**{name: rows.column(name) for name in rows.schema.names}, **place}
    columns = [there[field.name].cast(field.type) if field.name in there else pa.nulls(len(rows), field.type) for field in schema]
    return pa.record_batch(columns, schema=schema)


def _corrupt(path: str, why: str, *, stops: bool) -> pa.RecordBatch:
    """Return the row that stands for a file of which no row is taken."""
    ways = (
        "mend it, or set on.corrupt.file = skip, which leaves it out"
        if stops
        else "none of its rows is in the log; mend it, and give it to the source under another name"
    )
    reason = Reason.STOPPING_FILE if stops else Reason.CORRUPT_FILE
    return pa.record_batch({MALFORMED: pa.array([path]), REFUSAL: pa.array([f"{reason.value}: file {path} cannot be read: {why}; {ways}"])})


def event_lines(options: Mapping[str, str], are_records: bool | None, path: str) -> Iterator[pa.RecordBatch]:  # noqa: FBT001
    """Yield the lines of a file as change events with key, value and headers; `are_records` as `line_events` takes it."""
    for lines in read_lines(path, options):
        yield line_events(pa.record_batch({"value": pa.array(lines, pa.binary())}), are_records=are_records)


def read_as_they_stand(
    file_format: FileFormat, options: Mapping[str, str], columns: FileColumns | None, path: str
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file as texts of JSON, and with `columns` as keys and values."""
    for rows in read_texts(path, file_format, options):
        refused = {at: (row.malformed, row.detail) for at, row in enumerate(rows) if row.malformed is not None}
        keys, values = list[bytes | None]([None] * len(rows)), list[bytes | None]([None] * len(rows))
        for at, row in enumerate(rows):
            if columns is None or row.malformed is not None:
                continue
            try:
                keys[at], values[at] = columns.key_of(row.fields), columns.value_of(row.fields)
            except NoEvent as error:
                refused[at] = row.text.decode(), str(error)
        texts = [None if at in refused else row.text for at, row in enumerate(rows)]
        malformed = [refused[at][0] if at in refused else None for at in range(len(rows))]
        made = {name: pa.array(column, pa.binary()) for name, column in ((KEY, keys), (VALUE, values), (TEXT, texts))}
        made[TEXT] = made[TEXT].cast(pa.string())
        reasons = [f"{Reason.MALFORMED.value}: {refused[at][1]}" if at in refused else None for at in range(len(rows))]
        yield pa.record_batch({**made, MALFORMED: pa.array(malformed, pa.string()), REFUSAL: pa.array(reasons, pa.string())})
