"""The log at one table version, from the Delta log alone: no Spark job, no record read.

Everything here comes from the add actions of the Delta log (sizes, record counts, minima and maxima of the columns named in
`delta.dataSkippingStatsColumns`), the newest commit's `userMetadata` and the table's transaction versions. Opening costs tens of
milliseconds, refreshing after a commit a few.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from compaction.moments import moment_ms
from compaction.segments import NO_TIMESTAMP, Segment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltalake import DeltaTable
    from numpy.typing import NDArray

#: All appenders of a topic share this application id; its version is their compare-and-set (DESIGN §6).
APPEND_APP_ID: Final = "lastword-append"
#: Every commit that is not an append (swap, retention, delete_records) shares this one (DESIGN §7).
MAINTENANCE_APP_ID: Final = "lastword-maintenance"

_ABSENT: Final = np.iinfo(np.int64).min
_MOST: Final = np.iinfo(np.int64).max
_HISTORY_STEPS: Final = (1, 20, 1_000, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitMetadata:
    """What every commit of ours writes into its `userMetadata`.

    `token` makes the commit recognisable as ours whatever the writer was told; `queries` carries the last micro-batch of each
    streaming query forward, so that a replayed one is recognised by its id, as of the append with the txn version `append_txn`;
    `receipts` are those of a cleaning.
    """

    token: str
    kind: str
    queries: Mapping[str, int] = field(default_factory=dict)
    append_txn: int = -1
    receipts: tuple[Mapping[str, Any], ...] = ()

    def to_json(self) -> str:
        """Return the JSON text for `userMetadata`."""
        body: dict[str, Any] = {"lastword": 1, "kind": self.kind, "token": self.token, "queries": dict(self.queries)}
        if self.append_txn >= 0:
            body["append_txn"] = self.append_txn
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
        if not isinstance(body, dict) or not {"lastword", "token", "kind"} <= set(body):
            return None
        return CommitMetadata(
            token=body["token"],
            kind=body["kind"],
            queries=body.get("queries", {}),
            append_txn=body.get("append_txn", -1),
            receipts=tuple(body.get("receipts", ())),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One commit in the history of the log: its operation as Delta names it, and what of ours it carries, if it is ours.

    `time_ms` is Delta's time of the commit. `restored_version` is the version that a RESTORE went back to; -1 when the history does not
    say, None for every other commit.
    """

    version: int
    time_ms: int
    operation: str
    metadata: CommitMetadata | None
    restored_version: int | None = None


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
    empty_rows: NDArray[np.int64]
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
            "empty_rows": np.where(untimed == _ABSENT, 0, untimed),
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
        append_txn = _txn_version(table, APPEND_APP_ID)
        newest = newest_metadata(table, append_txn)
        return LogSnapshot(
            version=table.version(),
            append_txn=append_txn,
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
        if not len(files.partition):
            return {}
        ends = np.append(np.flatnonzero(np.diff(files.partition)) + 1, len(files.partition))
        firsts = [int(np.searchsorted(files.partition, files.partition[end - 1])) for end in ends]
        starts = [
            first + int(np.searchsorted(files.segment[first:end], files.segment[end - 1])) for first, end in zip(firsts, ends, strict=True)
        ]
        found = [_segments(files, np.array([start]), int(end))[0] for start, end in zip(starts, ends, strict=True)]
        return {segment.partition: segment for segment in found}

    def segments(self, partition: int | None = None) -> list[Segment]:
        """Return all segments, ordered by partition and label."""
        files = self.files
        if not len(files.partition):
            return []
        begins = (np.diff(files.partition) != 0) | (np.diff(files.segment) != 0)
        starts = np.append(0, np.flatnonzero(begins) + 1)
        segments = _segments(files, starts, len(files.partition))
        return segments if partition is None else [one for one in segments if one.partition == partition]


def _segments(files: Files, starts: NDArray[np.int64], end: int) -> list[Segment]:
    """Fold files into segments: each begins at one of `starts`, the last reaches to `end`; all of them at once, column by column."""

    def least(values: NDArray[np.int64]) -> list[int | None]:
        """Return the least of each segment's values that are there."""
        reduced = np.minimum.reduceat(np.where(values[:end] == _ABSENT, _MOST, values[:end]), starts)
        return [None if value == _MOST else value for value in reduced.tolist()]

    def total(values: NDArray[np.int64]) -> list[int]:
        sums: list[int] = np.add.reduceat(values[:end], starts).tolist()
        return sums

    ends = [*starts[1:].tolist(), end]
    slices = files.slice.tolist()
    timed = np.minimum.reduceat(np.where(files.min_timestamp_ms[:end] == _ABSENT, _MOST, np.arange(end)), starts)
    timed = np.where(timed == _MOST, starts, timed)  # the first file with a timestamp: those before hold EMPTY rows alone
    columns = zip(
        files.partition[starts].tolist(),
        files.segment[starts].tolist(),
        files.slice[starts].tolist(),
        (tuple(dict.fromkeys(slices[start:stop])) for start, stop in zip(starts.tolist(), ends, strict=True)),
        total(files.size_bytes),
        total(files.record_count),
        least(files.first_offset),
        np.maximum.reduceat(files.last_offset[:end], starts).tolist(),
        least(files.min_timestamp_ms),
        np.maximum(np.maximum.reduceat(files.max_timestamp_ms[:end], starts), NO_TIMESTAMP).tolist(),
        np.maximum(files.min_timestamp_ms[timed], NO_TIMESTAMP).tolist(),
        files.appended_at_ms[starts].tolist(),
        least(files.delete_horizon_ms),
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
        ) in columns
    ]


def _txn_version(table: DeltaTable, app_id: str) -> int:
    version = table.transaction_version(app_id)
    return -1 if version is None else version


def newest_metadata(table: DeltaTable, append_txn: int = -1) -> CommitMetadata | None:
    """Return what the newest commit of ours carries that knows of the append `append_txn`.

    Commits that are not ours (an OPTIMIZE by hand, say) are looked past, and so is a cleaning that was planned before that append and
    committed after it: the queries that it carries forward are old ones.
    """
    for limit in _HISTORY_STEPS:
        found = _history(table, limit)
        for commit in found:
            if commit.metadata is not None and (commit.metadata.append_txn >= append_txn or commit.metadata.kind == "append"):
                return commit.metadata
        if limit is None or len(found) < limit:
            break
    return None


def find_token(table: DeltaTable, token: str, since_version: int) -> int | None:
    """Return the table version whose commit carries `token`, looking at the commits after `since_version`; None when none does."""
    found = commits_since(table, since_version)
    return next((one.version for one in found if one.metadata is not None and one.metadata.token == token), None)


def commits_since(table: DeltaTable, since_version: int) -> list[Commit]:
    """Return the commits after `since_version` up to the version that `table` has loaded, newest first; those that Delta still has."""
    behind = table.version() - since_version
    return _history(table, behind) if behind > 0 else []


def _history(table: DeltaTable, limit: int | None) -> list[Commit]:
    """Return the newest `limit` commits of the version that `table` has loaded, newest first, with their versions.

    delta-rs shows the commits that came after that version too, and numbers all of them as if they had not come. How many came its number
    of entries does not tell, as old commits may be gone: the oldest entry from the loaded version on is the one of that version.

    ```
     Delta log            3 4 5 6 7        version 5 is loaded, 0 to 2 are gone
     history(6)           7 6 5 4 3        named 5 4 3 2 1
     history(1)           7 6 5            so two came after it
    ```
    """
    found = _unnumbered(table.history(limit))
    loaded = (found if limit == 1 else _unnumbered(table.history(1)))[-1:]
    newer = found.index(loaded[0]) if loaded and loaded[0] in found else 0
    entries = [{**entry, "version": table.version() - behind} for behind, entry in enumerate(found[newer:])]
    return [
        Commit(
            version=entry["version"],
            time_ms=int(entry.get("timestamp", 0)),
            operation=entry.get("operation", ""),
            metadata=CommitMetadata.from_json(entry.get("userMetadata")),
            restored_version=_restored_version(entry, entries),
        )
        for entry in entries
    ]


def _unnumbered(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return entries of the history as their commits have them."""
    return [{name: value for name, value in entry.items() if name != "version"} for entry in entries]


def _restored_version(entry: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the version that a RESTORE went back to: named in its parameters, or the newest at the time that they name."""
    if entry.get("operation") != "RESTORE":
        return None
    parameters = entry.get("operationParameters") or {}
    try:
        return int(parameters["version"])
    except (KeyError, TypeError, ValueError):
        pass
    try:
        moment = moment_ms(str(parameters["timestamp"]).strip('"'))
    except (KeyError, ValueError):
        return -1
    before = [one["version"] for one in entries if one.get("timestamp", math.inf) <= moment]
    return max(before, default=-1)
