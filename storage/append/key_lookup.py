"""Records of some keys in one partition, looked up by an append: their source sequences, and the values that an event left out.

```
 late row, sequence 30      files by their highest sequence    20    28    35    41
                            read: key, source_sequence                     ×     ×       of these the row groups that reach 30
```

A `KeyLookup` is a picklable value, so that Spark's tasks ask as this process does.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from lastword.compaction.rows.sequence_checks import SequenceBounds
from lastword.compaction.rows.source_positions import SourcePosition, highest_by_place, is_of_truncated, parse_place, place_name
from lastword.compaction.rows.unchanged_columns import PENDING, LastRecord
from lastword.storage.files.data_reader import row_groups
from lastword.storage.files.locations import local_path

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from lastword.storage.delta.snapshot import Files, LogSnapshot
    from lastword.storage.ledger.decisions import Decisions

_COLUMNS: Final = ("key", "source_sequence")
_SCHEMA: Final = {"key": pl.Binary, "newest": pl.String}


def sequence_bounds(snapshot: LogSnapshot, decisions: Decisions) -> list[SequenceBounds]:
    """Return what is known of the source sequences of each partition."""
    highest = snapshot.highest_sequences(decisions.partitions)
    truncated = {table: one.position for table, one in decisions.truncations.items()}
    return [
        SequenceBounds(highest=highest[partition], removed=_removed(decisions, partition), truncated=truncated)
        for partition in range(len(highest))
    ]


def _removed(decisions: Decisions, partition: int) -> dict[tuple[str, str], str]:
    return {parse_place(place): commit for place, commit in decisions.removed_positions(partition).items()}


def is_sequenced(snapshot: LogSnapshot, decisions: Decisions) -> bool:
    """Tell whether a topic orders its records by the sequences of their source, so that it takes no rows without."""
    return any(SourcePosition.of(bounds.highest).order or bounds.removed for bounds in sequence_bounds(snapshot, decisions))


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLookup:
    """The files of one partition at the version of an append's plan, by offset: paths, and the highest source sequence of each."""

    location: str = ""
    storage_options: Mapping[str, str] = field(default_factory=dict)
    paths: tuple[str, ...] = ()
    highest: tuple[str, ...] = ()

    @staticmethod
    def of(location: str, storage_options: Mapping[str, str], files: Files, partition: int) -> KeyLookup:
        """Return the lookup of a partition."""
        begin, end = np.searchsorted(files.partition, [partition, partition + 1]).tolist()
        at = begin + np.argsort(files.first_offset[begin:end], kind="stable")
        return KeyLookup(
            location=location,
            storage_options=dict(storage_options),
            paths=tuple(files.path[at].tolist()),
            highest=tuple(files.max_sequence[at].tolist()),
        )

    def newest(self, keys: pa.Array, at_least: str, below: str = "") -> pl.DataFrame:
        """Return the highest sequence of each key; see `lastword.compaction.rows.sequence_checks.NewestSequences`.

        Raises `CorruptLog` naming a file that cannot be read.
        """
        paths = [path for path, highest in zip(self.paths, self.highest, strict=True) if highest and highest >= at_least]
        folder = local_path(self.location)
        if folder is not None and paths:
            with suppress(pl.exceptions.PolarsError, OSError):
                return _scanned([folder / path for path in paths], keys, at_least, below)

        def read(path: str) -> list[pl.DataFrame]:
            return self._read(path, keys, at_least, below)

        if len(paths) <= 1:
            found = [frame for path in paths for frame in read(path)]
        else:
            with ThreadPoolExecutor(min(len(paths), 2 * (os.cpu_count() or 1)), "lookup") as threads:
                found = [frame for frames in threads.map(read, paths) for frame in frames]
        return pl.concat([pl.DataFrame(schema=_SCHEMA), *found]).group_by("key").agg(pl.col("newest").max())

    def records(self, keys: Collection[bytes]) -> dict[bytes, LastRecord]:
        """Return the last record of each key that the partition has. Errors as `newest`."""
        found: dict[bytes, LastRecord] = {}
        for path in reversed(self.paths):
            wanted = pa.array([key for key in keys if key not in found], pa.binary())
            if not len(wanted):
                break
            found |= self._records(path, wanted)
        return found

    def _records(self, path: str, keys: pa.Array) -> dict[bytes, LastRecord]:
        """Return the last records of keys in one file; values are read only of row groups that have one of them."""
        hits = [_has(group.read(), keys) for group in row_groups(self.location, self.storage_options, path, ("key", "control"))]
        if not any(hits):
            return {}
        found: dict[bytes, LastRecord] = {}
        groups = row_groups(self.location, self.storage_options, path, ("key", "value", "control", "headers", "source_sequence"))
        for group, is_hit in zip(groups, hits, strict=True):
            if is_hit:
                rows = _data_of(group.read(), keys)
                found |= {row["key"]: LastRecord.of(row["value"], row["source_sequence"], row["headers"]) for row in rows.to_pylist()}
        return found

    def waiting(self, old_keys: Collection[bytes]) -> dict[bytes, LastRecord]:
        """Return the last records that wait for columns of a row which had one of some keys. Errors as `newest`."""
        keys, wanted = set[bytes](), {key.decode() for key in old_keys}
        for path in self.paths:
            for group in row_groups(self.location, self.storage_options, path, ("key", "headers", "control")):
                rows = group.read()
                names = pc.struct_field(pc.list_flatten(rows.column("headers")), "key")
                if pc.any(pc.equal(names, PENDING)).as_py():
                    found = (LastRecord.of(None, None, headers) for headers in rows.column("headers").to_pylist())
                    waits = (any(origin in wanted for origin, _ in record.pending.values()) for record in found)
                    keys |= {key for key, is_waiting in zip(rows.column("key").to_pylist(), waits, strict=True) if is_waiting}
        return {key: record for key, record in self.records(keys).items() if record.pending} if keys else {}

    def highest_in(self, scope: str, partition: str) -> str:
        """Return the highest order of the records of a scope and one of Kafka's partitions; empty for none. Errors as `newest`."""
        found, place = "", place_name(scope, partition)
        for path, highest in zip(self.paths, self.highest, strict=True):
            if highest >= scope:
                for group in row_groups(self.location, self.storage_options, path, ("source_sequence",)):
                    found = max(found, highest_by_place(group.read().column("source_sequence").combine_chunks()).get(place, ""))
        return found

    def live(self, truncated: str) -> pa.Array:
        """Return the keys whose last record is no tombstone, and from before a TRUNCATE of its table, or has no sequence.

        Errors as `newest`.
        """
        last: dict[bytes, tuple[bool, str]] = {}
        for path in self.paths:
            for group in row_groups(self.location, self.storage_options, path, ("key", "value", "control", "source_sequence")):
                rows = group.read()
                rows = rows.filter(pc.and_(pc.is_valid(rows.column("key")), pc.is_null(rows.column("control"))))
                is_live = pc.is_valid(rows.column("value")).to_pylist()
                sequences = pc.fill_null(rows.column("source_sequence"), "").to_pylist()
                last |= dict(zip(rows.column("key").to_pylist(), zip(is_live, sequences, strict=True), strict=True))
        gone = [key for key, (is_live, sequence) in last.items() if is_live and (not sequence or is_of_truncated(sequence, truncated))]
        return pa.array(gone, pa.binary())

    def _read(self, path: str, keys: pa.Array, at_least: str, below: str) -> list[pl.DataFrame]:
        frames = []
        for group in row_groups(self.location, self.storage_options, path, _COLUMNS):
            highest = group.greatest("source_sequence")
            if highest is not None and highest < at_least:
                continue
            rows = group.read()
            rows = rows.filter(pc.and_(pc.is_in(rows.column("key"), value_set=keys), pc.is_valid(rows.column("source_sequence"))))
            if len(rows):
                frame = pl.from_arrow(rows.select(["key", "source_sequence"]))
                assert isinstance(frame, pl.DataFrame)  # noqa: S101  two columns
                found = frame.rename({"source_sequence": "newest"})
                frames.append(found.filter(pl.col("newest") < below) if below else found)
        return frames


def _scanned(files: list[Path], keys: pa.Array, at_least: str, below: str) -> pl.DataFrame:
    """Return the highest sequence of each key, from one on and below another, in local files: Polars decodes those of these keys alone.

    It may raise for a file that is damaged, or that another writer left in other types; read by row groups, either is told apart.
    """
    wanted = pl.Series(keys, dtype=pl.Binary).implode()
    rows = pl.scan_parquet(files, glob=False, hive_partitioning=False).filter(
        pl.col("key").is_in(wanted) & (pl.col("source_sequence") >= at_least)
    )
    rows = rows.filter(pl.col("source_sequence") < below) if below else rows
    return rows.group_by("key").agg(pl.col("source_sequence").max().alias("newest")).collect()


def _data_of(rows: pa.Table, keys: pa.Array) -> pa.Table:
    """Return the data records of some keys."""
    return rows.filter(pc.and_(pc.is_in(rows.column("key"), value_set=keys), pc.is_null(rows.column("control"))))


def _has(rows: pa.Table, keys: pa.Array) -> bool:
    return len(_data_of(rows, keys)) > 0
