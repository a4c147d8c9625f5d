"""Rows of a DataFrame as data files: the last stage of an append, in Spark's tasks.

Every task writes its rows with the same writer as a process without Spark (`lastword.storage.files.data_files`) and returns what it has
written; no row comes to the driver. A task that fails, or is run twice, leaves files that no commit names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lastword.storage.files.data_files import FILE_DDL, from_rows, to_batch, write_slices

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from lastword.storage.files.data_files import DataFile


def write_rows(rows: DataFrame, location: str, storage_options: Mapping[str, str], *, codec: str) -> list[DataFile]:
    """Write rows of the log table into the table at `location`, a file for each slice of each task, and return the files; commits nothing.

    In every Spark partition the rows are ordered by partition, segment, slice and offset. Runs one job.
    """
    options = dict(storage_options)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield to_batch(list(write_slices(batches, location, options, codec=codec)))

    return from_rows(row.asDict() for row in rows.mapInArrow(write, FILE_DDL).collect())
