"""The log at one table version, from the Delta log alone: no Spark job, no record read.

Everything here comes from the add actions of the Delta log (sizes, record counts, minima and maxima of the columns named in
`delta.dataSkippingStatsColumns`) and the table's transaction versions. `LogSnapshot.of` reads all of them;
`lastword.storage.delta.following` makes the snapshot of the newest version from an older one.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
from deltalake.exceptions import DeltaError

from lastword.compaction.errors import CorruptLog
from lastword.compaction.log.segments import NO_TIMESTAMP, Segment, Span
from lastword.compaction.order.source_positions import parse_highest
from lastword.storage.delta.history import check_commits
from lastword.storage.delta.protocol import unknown_features
from lastword.storage.delta.tables import txn_version

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from deltalake import DeltaTable
    from numpy.typing import NDArray

#: All appenders of a topic share this application id; its version is their compare-and-set (ADR 0002).
APPEND_APP_ID: Final = "lastword-append"
#: Every commit that is not an append (swap, retention, delete_records) shares this one (ADR 0010).
MAINTENANCE_APP_ID: Final = "lastword-maintenance"

#: Stands for null in the arrays of `Files`.
ABSENT: Final = np.iinfo(np.int64).min
_MOST: Final = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """The files of a table version as parallel arrays, ordered by partition, segment, slice; `ABSENT` stands for null."""

    partition: NDArray[np.int64]
    segment: NDArray[np.int64]
    slice: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    record_count: NDArray[np.int64]
    first_offset: NDArray[np.int64]
    last_offset: NDArray[np.int64]
    min_timestamp_ms: NDArray[np.int64]
    max_timestamp_ms: NDArray[np.int64]
    appended_at_ms: NDArray[np.int64]
    delete_horizon_ms: NDArray[np.int64]
    empty_rows: NDArray[np.int64]
    producer_rows: NDArray[np.int64]
    max_producer_id: NDArray[np.int64]
    #: The empty text stands for none.
    max_sequence: NDArray[np.object_]
    path: NDArray[np.object_]

    @staticmethod
    def of(table: DeltaTable) -> Files:
        """Read them from the add actions of a table; raise `CorruptLog` for files that no writer of lastword leaves so."""
        _check_whole_files(table)
        actions = pa.table(table.get_add_actions(flatten=True)).combine_chunks()
        column = {name: actions.column(name) for name in actions.schema.names}

        def longs(name: str) -> NDArray[np.int64]:
            values = column[name]
            if pa.types.is_timestamp(values.type):
                values = values.cast(pa.timestamp("us", "UTC"))
            numbers: NDArray[np.int64] = values.cast(pa.int64()).fill_null(ABSENT).to_numpy(zero_copy_only=False).astype(np.int64)
            return numbers

        def millis(name: str) -> NDArray[np.int64]:
            micros = longs(name)
            return np.where(micros == ABSENT, ABSENT, micros // 1000)

        _check_statistics(table, column)
        partition, segment, slice_ = longs("partition.partition"), longs("partition.segment"), longs("partition.slice")
        order = np.lexsort((longs("min.offset"), slice_, segment, partition))
        records, nulls, untimed = longs("num_records"), longs("null_count.producer_id"), longs("null_count.timestamp")
        arrays = {
            "partition": partition,
            "segment": segment,
            "slice": slice_,
            "size_bytes": longs("size_bytes"),
            "record_count": records,
            "first_offset": longs("min.offset"),
            "last_offset": longs("max.offset"),
            "min_timestamp_ms": millis("min.timestamp"),
            "max_timestamp_ms": millis("max.timestamp"),
            "empty_rows": np.where(untimed == ABSENT, 0, untimed),
            "appended_at_ms": millis("min.appended_at"),
            "delete_horizon_ms": millis("min.delete_horizon"),
            "producer_rows": np.where(nulls == ABSENT, records, records - nulls),
            "max_producer_id": longs("max.producer_id"),
        }
        paths = np.array(column["path"].to_pylist(), dtype=object)
        sequences = np.array([""] * len(paths), dtype=object)
        if "max.source_sequence" in column:  # not in a topic of an older version
            sequences = np.array(column["max.source_sequence"].cast(pa.string()).fill_null("").to_pylist(), dtype=object)
        return Files(path=paths[order], max_sequence=sequences[order], **{name: values[order] for name, values in arrays.items()})

    def select(self, indexes: NDArray[np.int64]) -> Files:
        """Return some of the files, in the order of their indexes."""
        return Files(**{field.name: getattr(self, field.name)[indexes] for field in fields(self)})


def _check_statistics(table: DeltaTable, column: Mapping[str, pa.Array]) -> None:
    """Raise `CorruptLog` for a file without the statistics that offsets are assigned by."""
    for name in ("num_records", "min.offset", "max.offset", "null_count.producer_id", "null_count.timestamp"):
        values = column.get(name)
        if len(column["path"]) and (values is None or values.null_count):
            lacking = column["path"] if values is None else column["path"].filter(values.is_null())
            message = (
                f"{table.table_uri} version {table.version()}: {len(lacking)} files have no statistics ({name}), such as {lacking[0]}; "
                "lastword writes them for every file, so another writer added or rewrote these. RESTORE the table to the version before"
            )
            raise CorruptLog(message)


def _check_whole_files(table: DeltaTable) -> None:
    """Raise `CorruptLog` for files of which another writer deleted rows by deletion vectors: not every reader of Parquet sees these."""
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return
    try:
        paths = pa.table(table.deletion_vectors()).column("filepath").to_pylist()
    except DeltaError as error:
        paths = [f"one that cannot be read ({error})"]
    if paths:
        message = (
            f"{table.table_uri} version {table.version()}: files have deletion vectors ({len(paths)}), such as {paths[0]}: another writer "
            "deleted rows. RESTORE the table to the version before"
        )
        raise CorruptLog(message)


def has_sequences(table: DeltaTable) -> bool:
    """Tell whether a log table has the column source_sequence; that of a topic of an older version has none."""
    return any(field.name == "source_sequence" for field in table.schema().fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSnapshot:
    """The log at `version`: its files, and the compare-and-set counters of the two families of commits."""

    version: int
    append_txn: int
    maintenance_txn: int
    files: Files
    #: Whether the table has the column source_sequence; one of an older version has none.
    has_sequences: bool = True
    #: Where the table is.
    location: str = ""
    #: What the table asks of its writers and lastword does not do.
    unknown_features: tuple[str, ...] = ()

    @staticmethod
    def of(table: DeltaTable) -> LogSnapshot:
        """Take a snapshot of the version that `table` has loaded; raise `CorruptLog` for a damaged Delta log."""
        check_commits(table)
        return LogSnapshot(
            version=table.version(),
            append_txn=txn_version(table, APPEND_APP_ID),
            maintenance_txn=txn_version(table, MAINTENANCE_APP_ID),
            files=Files.of(table),
            has_sequences=has_sequences(table),
            location=table.table_uri,
            unknown_features=unknown_features(table),
        )

    def txn(self, family: str) -> int:
        """Return the compare-and-set counter of a family of commits."""
        return self.append_txn if family == APPEND_APP_ID else self.maintenance_txn

    def partitions(self) -> list[int]:
        """Return the partitions that hold at least one record."""
        return [int(value) for value in np.unique(self.files.partition)]

    def log_end_offsets(self, partitions: int) -> list[int]:
        """Return the next offset of every partition, 0 where nothing was appended yet."""
        ends = np.zeros(partitions, dtype=np.int64)
        np.maximum.at(ends, self.files.partition, self.files.last_offset + 1)
        return [int(value) for value in ends]

    def highest_producer_id(self) -> int:
        """Return the highest producer id that a record carries, -1 when none does."""
        return max(-1, int(self.files.max_producer_id.max(initial=-1)))

    def highest_sequences(self, partitions: int) -> list[dict[str, str]]:
        """Return the highest source sequence of each scope in each partition."""
        highest: list[dict[str, str]] = [{} for _ in range(partitions)]
        for at in np.flatnonzero(self.files.max_sequence != "").tolist():
            mine = highest[int(self.files.partition[at])]
            for scope, sequence in parse_highest(self.files.max_sequence[at]).items():
                mine[scope] = max(sequence, mine.get(scope, ""))
        return highest

    def last_segments(self) -> dict[int, Segment]:
        """Return the last segment of every partition that holds a record: the active one, unless it counts as closed."""
        files = self.files
        if not len(files.partition):
            return {}
        ends = np.append(np.flatnonzero(np.diff(files.partition)) + 1, len(files.partition))
        firsts = [int(np.searchsorted(files.partition, files.partition[end - 1])) for end in ends]
        starts = [
            first + int(np.searchsorted(files.segment[first:end], files.segment[end - 1])) for first, end in zip(firsts, ends, strict=True)
        ]
        of_last = np.concatenate([np.arange(start, end) for start, end in zip(starts, ends, strict=True)])
        counts = [int(end) - start for start, end in zip(starts, ends, strict=True)]
        segments = _segments(files.select(of_last), np.cumsum([0, *counts[:-1]]), len(of_last))
        return {segment.partition: segment for segment in segments}

    def segments(self, partition: int | None = None) -> list[Segment]:
        """Return all segments, ordered by partition and label."""
        files = self.files
        if not len(files.partition):
            return []
        begins = (np.diff(files.partition) != 0) | (np.diff(files.segment) != 0)
        starts = np.append(0, np.flatnonzero(begins) + 1)
        segments = _segments(files, starts, len(files.partition))
        return segments if partition is None else [segment for segment in segments if segment.partition == partition]


class _Runs(NamedTuple):
    """Consecutive files by segment: the files of each begin at one of `starts`, and those of the last reach to `end`."""

    starts: NDArray[np.int64]
    end: int

    def minimum(self, values: NDArray[np.int64]) -> list[int | None]:
        """Return the least value of each segment, without the files that have none; None where no file has one."""
        reduced = np.minimum.reduceat(np.where(values[: self.end] == ABSENT, _MOST, values[: self.end]), self.starts)
        return [None if value == _MOST else value for value in reduced.tolist()]

    def maximum(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the greatest value of each segment."""
        return np.maximum.reduceat(values[: self.end], self.starts)

    def total(self, values: NDArray[np.int64]) -> list[int]:
        """Return the sum of each segment's values."""
        sums: list[int] = np.add.reduceat(values[: self.end], self.starts).tolist()
        return sums


def _segments(files: Files, starts: NDArray[np.int64], end: int) -> list[Segment]:
    """Return the segments that files make: each begins at one of `starts`, the last reaches to `end`."""
    runs, ends = _Runs(starts, end), [*starts[1:].tolist(), end]
    slices = files.slice.tolist()
    spans = list(map(Span, files.first_offset.tolist(), files.last_offset.tolist(), files.record_count.tolist()))
    timed = np.minimum.reduceat(np.where(files.min_timestamp_ms[:end] == ABSENT, _MOST, np.arange(end)), starts)
    timed = np.where(timed == _MOST, starts, timed)  # the first file with a timestamp: those before hold EMPTY rows alone
    columns = zip(
        files.partition[starts].tolist(),
        files.segment[starts].tolist(),
        files.slice[starts].tolist(),
        (tuple(dict.fromkeys(slices[start:stop])) for start, stop in zip(starts.tolist(), ends, strict=True)),
        runs.total(files.size_bytes),
        runs.total(files.record_count),
        runs.minimum(files.first_offset),
        runs.maximum(files.last_offset).tolist(),
        runs.minimum(files.min_timestamp_ms),
        np.maximum(runs.maximum(files.max_timestamp_ms), NO_TIMESTAMP).tolist(),
        np.maximum(files.min_timestamp_ms[timed], NO_TIMESTAMP).tolist(),
        files.appended_at_ms[starts].tolist(),
        runs.minimum(files.delete_horizon_ms),
        (tuple(spans[start:stop]) if stop - start > 1 else () for start, stop in zip(starts.tolist(), ends, strict=True)),
        strict=True,
    )
    return [
        Segment(
            partition=partition,
            label=label,
            base_offset=base_offset,
            slices=own_slices,
            size_bytes=size_bytes,
            record_count=record_count,
            first_offset=first_offset or 0,
            last_offset=last_offset,
            min_timestamp_ms=NO_TIMESTAMP if min_timestamp_ms is None else min_timestamp_ms,
            max_timestamp_ms=max_timestamp_ms,
            first_timestamp_ms=first_timestamp_ms,
            appended_at_ms=appended_at_ms,
            delete_horizon_ms=delete_horizon_ms,
            spans=own_spans,
        )
        for (
            partition,
            label,
            base_offset,
            own_slices,
            size_bytes,
            record_count,
            first_offset,
            last_offset,
            min_timestamp_ms,
            max_timestamp_ms,
            first_timestamp_ms,
            appended_at_ms,
            delete_horizon_ms,
            own_spans,
        ) in columns
    ]


def files_in(files: Files, spans: Iterable[tuple[int, int, int]]) -> NDArray[np.bool_]:
    """Tell for every file whether its slice lies in one of some disjoint spans (partition, first slice, last slice)."""
    of_partition: dict[int, list[tuple[int, int]]] = {}
    for partition, first, last in spans:
        of_partition.setdefault(partition, []).append((first, last))
    inside = np.zeros(len(files.partition), dtype=np.bool_)
    for partition, pairs in of_partition.items():
        firsts, lasts = np.asarray(sorted(pairs), dtype=np.int64).T
        mine = np.flatnonzero(files.partition == partition)
        before = np.searchsorted(firsts, files.slice[mine], side="right") - 1
        inside[mine] = (before >= 0) & (files.slice[mine] <= lasts[np.maximum(before, 0)])
    return inside
