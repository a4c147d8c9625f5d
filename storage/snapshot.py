"""The log at one table version, from the Delta log alone: no Spark job, no record read.

Everything here comes from the add actions of the Delta log (sizes, record counts, minima and maxima of the columns named in
`delta.dataSkippingStatsColumns`), the newest commit's `userMetadata` and the table's transaction versions. Opening costs tens of
milliseconds, refreshing after a commit a few.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from compaction.segments import Segment

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from deltalake import DeltaTable
    from numpy.typing import NDArray

#: All appenders of a topic share this application id; its version is their compare-and-set (DESIGN §6).
APPEND_APP_ID: Final = "lastword-append"
#: Every commit that is not an append (swap, retention, delete_records) shares this one (DESIGN §7).
MAINTENANCE_APP_ID: Final = "lastword-maintenance"

_ABSENT: Final = np.iinfo(np.int64).min
_HISTORY_STEPS: Final = (1, 20, 1_000, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitMetadata:
    """What every commit of ours writes into its `userMetadata`.

    `token` makes the commit recognisable as ours whatever the writer was told; `queries` carries the last micro-batch of each
    streaming query forward, so that a replayed one is recognised by its id; `receipts` those of a cleaning.
    """

    token: str
    kind: str
    queries: Mapping[str, int] = field(default_factory=dict)
    receipts: tuple[Mapping[str, Any], ...] = ()

    def to_json(self) -> str:
        """Return the JSON text for `userMetadata`."""
        body: dict[str, Any] = {"lastword": 1, "kind": self.kind, "token": self.token, "queries": dict(self.queries)}
        if self.receipts:
            body["receipts"] = [dict(receipt) for receipt in self.receipts]
        return json.dumps(body, separators=(",", ":"))

    @staticmethod
    def from_json(text: str | None) -> CommitMetadata | None:
        """Return what a commit of ours carries, or None for a commit that is not ours."""
        try:
            body = json.loads(text or "")
        except ValueError:
            return None
        if not isinstance(body, dict) or "lastword" not in body:
            return None
        return CommitMetadata(
            token=body["token"], kind=body["kind"], queries=body.get("queries", {}), receipts=tuple(body.get("receipts", ()))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """The files of a table version as parallel arrays, ordered by partition, segment, slice; `_ABSENT` stands for null."""

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
    producer_rows: NDArray[np.int64]
    max_producer_id: NDArray[np.int64]
    path: NDArray[np.object_]

    @staticmethod
    def of(table: DeltaTable) -> Files:
        """Read them from the add actions of a table."""
        actions = pa.table(table.get_add_actions(flatten=True)).combine_chunks()
        column = {name: actions.column(name) for name in actions.schema.names}

        def longs(name: str) -> NDArray[np.int64]:
            values = column[name]
            if pa.types.is_timestamp(values.type):
                values = values.cast(pa.timestamp("us", "UTC"))
            numbers: NDArray[np.int64] = values.cast(pa.int64()).fill_null(_ABSENT).to_numpy(zero_copy_only=False).astype(np.int64)
            return numbers

        def millis(name: str) -> NDArray[np.int64]:
            micros = longs(name)
            return np.where(micros == _ABSENT, _ABSENT, micros // 1000)

        partition, segment, slice_ = longs("partition.partition"), longs("partition.segment"), longs("partition.slice")
        order = np.lexsort((longs("min.offset"), slice_, segment, partition))
        records, nulls = longs("num_records"), longs("null_count.producer_id")
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
            "appended_at_ms": millis("min.appended_at"),
            "delete_horizon_ms": millis("min.delete_horizon"),
            "producer_rows": np.where(nulls == _ABSENT, records, records - nulls),
            "max_producer_id": longs("max.producer_id"),
        }
        paths = np.array(column["path"].to_pylist(), dtype=object)
        return Files(path=paths[order], **{name: values[order] for name, values in arrays.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSnapshot:
    """The log at `version`: files, the two compare-and-set counters, and where each streaming query stands."""

    version: int
    append_txn: int
    maintenance_txn: int
    queries: Mapping[str, int]
    files: Files

    @staticmethod
    def of(table: DeltaTable) -> LogSnapshot:
        """Take a snapshot of the version that `table` has loaded."""
        newest = newest_metadata(table)
        return LogSnapshot(
            version=table.version(),
            append_txn=_txn_version(table, APPEND_APP_ID),
            maintenance_txn=_txn_version(table, MAINTENANCE_APP_ID),
            queries=dict(newest.queries) if newest else {},
            files=Files.of(table),
        )

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

    def last_segments(self) -> dict[int, Segment]:
        """Return the last segment of every partition that holds a record: the active one, unless it counts as closed."""
        files = self.files
        found: dict[int, Segment] = {}
        for partition in self.partitions():
            first, end = np.searchsorted(files.partition, [partition, partition + 1])
            start = first + int(np.searchsorted(files.segment[first:end], files.segment[end - 1]))
            found[partition] = _segment(files, int(start), int(end))
        return found

    def segments(self, partition: int | None = None) -> list[Segment]:
        """Return all segments, ordered by partition and label."""
        return list(self._segments(partition))

    def _segments(self, partition: int | None) -> Iterator[Segment]:
        files = self.files
        if not len(files.partition):
            return
        place = np.stack([files.partition, files.segment])
        starts = np.flatnonzero(np.any(place[:, 1:] != place[:, :-1], axis=0)) + 1
        bounds = [0, *(int(start) for start in starts), len(files.partition)]
        for start, end in pairwise(bounds):
            if partition is None or files.partition[start] == partition:
                yield _segment(files, start, end)


def _segment(files: Files, start: int, end: int) -> Segment:
    """Fold the files `start` to `end`, which are all of one segment, into its metadata."""
    rows = slice(start, end)
    horizons = files.delete_horizon_ms[rows]
    horizons = horizons[horizons != _ABSENT]
    return Segment(
        partition=int(files.partition[start]),
        label=int(files.segment[start]),
        base_offset=int(files.slice[start]),
        slices=tuple(int(value) for value in np.unique(files.slice[rows])),
        size_bytes=int(files.size_bytes[rows].sum()),
        record_count=int(files.record_count[rows].sum()),
        first_offset=int(files.first_offset[rows].min()),
        last_offset=int(files.last_offset[rows].max()),
        min_timestamp_ms=int(files.min_timestamp_ms[rows].min()),
        max_timestamp_ms=int(files.max_timestamp_ms[rows].max()),
        first_timestamp_ms=int(files.min_timestamp_ms[start]),
        appended_at_ms=int(files.appended_at_ms[start]),
        delete_horizon_ms=int(horizons.min()) if len(horizons) else None,
    )


def _txn_version(table: DeltaTable, app_id: str) -> int:
    version = table.transaction_version(app_id)
    return -1 if version is None else version


def newest_metadata(table: DeltaTable) -> CommitMetadata | None:
    """Return what the newest commit of ours carries, looking past commits that are not ours (an OPTIMIZE by hand, say)."""
    for limit in _HISTORY_STEPS:
        found = _history(table, limit)
        for _, metadata in found:
            if metadata is not None:
                return metadata
        if limit is None or len(found) < limit:
            break
    return None


def find_token(table: DeltaTable, token: str, since_version: int) -> int | None:
    """Return the table version whose commit carries `token`, looking at the commits after `since_version`; None when none does."""
    behind = table.version() - since_version
    if behind <= 0:
        return None
    return next((version for version, metadata in _history(table, behind) if metadata is not None and metadata.token == token), None)


def _history(table: DeltaTable, limit: int | None) -> list[tuple[int, CommitMetadata | None]]:
    """Return the newest `limit` commits of the version that `table` has loaded, newest first, with their versions.

    delta-rs shows the commits that came after that version too, and numbers all of them as if they had not come.
    """
    loaded = table.version()
    entries = table.history(limit)
    newer = max(0, len(entries) - (loaded + 1 if limit is None else min(limit, loaded + 1)))
    return [(loaded - at, CommitMetadata.from_json(entry.get("userMetadata"))) for at, entry in enumerate(entries[newer:])]
