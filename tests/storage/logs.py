"""Logs without Spark, on a disk or an object store: drawn rows as data files of a Delta table, committed as an append commits them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable

from lastword.storage.delta.commit import commit_files, new_token
from lastword.storage.delta.history import CommitMetadata
from lastword.storage.delta.snapshot import APPEND_APP_ID, LogSnapshot
from lastword.storage.files.data_files import SliceWriter, complete
from lastword.storage.files.data_reader import read_columns
from lastword.storage.files.schema import DATA_SCHEMA, PLACE_COLUMNS, log_properties, log_schema
from tests.compaction.logs import DrawnRow, arrow_rows, drawn_rows
from tests.compaction.logs import rows as drawn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from lastword.storage.files.data_files import DataFile


@dataclass
class DiskLog:
    """The log table of a topic at `location`."""

    location: str
    storage_options: dict[str, str] = field(default_factory=dict)

    @classmethod
    def create(cls, location: Path | str, storage_options: dict[str, str] | None = None) -> DiskLog:
        """Create an empty table."""
        log = cls(str(location), storage_options or {})
        DeltaTable.create(
            log.location,
            log_schema(),
            partition_by=list(PLACE_COLUMNS),
            configuration=log_properties(),
            storage_options=log.storage_options,
        )
        return log

    def table(self) -> DeltaTable:
        """Return the table at its newest version."""
        return DeltaTable(self.location, storage_options=self.storage_options)

    def snapshot(self) -> LogSnapshot:
        """Return the newest snapshot."""
        return LogSnapshot.of(self.table())

    def written(self, rows: Sequence[DrawnRow], *, partition: int = 0, segment: int, now_ms: int = 0) -> DataFile:
        """Write rows as a slice that is named by its first offset, and return the file; it is in no commit yet."""
        writer = SliceWriter(
            self.location, self.storage_options, partition=partition, segment=segment, slice_=rows[0].row.offset, codec="zstd"
        )
        table = complete(arrow_rows(rows))
        times = pa.array([None if one.row.control else now_ms * 1000 for one in rows], pa.int64()).cast(pa.timestamp("us", "UTC"))
        table = table.set_column(table.schema.get_field_index("timestamp"), DATA_SCHEMA.field("timestamp"), times)
        appended = pa.array([now_ms * 1000] * len(rows), pa.int64()).cast(pa.timestamp("us", "UTC"))
        table = table.set_column(table.schema.get_field_index("appended_at"), DATA_SCHEMA.field("appended_at"), appended)
        writer.write(table)
        return writer.close()

    def append(self, files: Sequence[DataFile], snapshot: LogSnapshot | None = None, transactions: Mapping[str, int] | None = None) -> int:
        """Commit files as an append that was planned with a snapshot (default: the newest)."""
        metadata, planned = CommitMetadata(token=new_token(), kind="append"), snapshot or self.snapshot()
        return commit_files(
            self.snapshot, planned, self.storage_options, family=APPEND_APP_ID, metadata=metadata, adds=files, transactions=transactions
        )

    def append_each(self, pictures: Sequence[str], *, partition: int = 0, segment: int, now_ms: int = 0) -> None:
        """Commit the rows of each picture as a slice of its own."""
        for picture in pictures:
            self.append([self.written(drawn(picture), partition=partition, segment=segment, now_ms=now_ms)])

    def rows(self) -> list[DrawnRow]:
        """Return the rows of the newest version, in the order of the log."""
        files = self.snapshot().files.path
        return [
            row for path in files for row in drawn_rows(read_columns(self.location, self.storage_options, str(path), DATA_SCHEMA.names))
        ]


def offsets(log: DiskLog) -> list[int]:
    """Return the offsets of the newest version, in the order of the log."""
    return [one.row.offset for one in log.rows()]
