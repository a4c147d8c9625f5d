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
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from lastword.compaction.order.source_epochs import Place
from lastword.compaction.order.source_positions import (
    NO_SCOPE,
    SCOPE_FORM,
    SourcePosition,
    highest_by_place,
    is_before_truncate,
    parse_place,
    place_name,
    scope_of,
)
from lastword.compaction.rows.sequence_bounds import SequenceBounds
from lastword.compaction.rows.sequence_checks import NEWEST
from lastword.compaction.rows.unchanged_columns import LastRecord
from lastword.storage.files.data_reader import row_groups
from lastword.storage.files.locations import local_path

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from lastword.storage.delta.snapshot import Files, LogSnapshot
    from lastword.storage.ledger.decisions import Decisions

_COLUMNS: Final = ("key", "source_sequence", "timestamp", "offset")
_KEY_COLUMNS: Final = ("key", "value", "control", "source_sequence", "appended_at")
_KEYS: Final = pl.Schema([("key", pl.Binary()), ("is_live", pl.Boolean()), ("source_sequence", pl.String()), ("appended_ms", pl.Int64())])
_SCHEMA: Final = pl.Schema(
    [("key", pl.Binary()), ("source_sequence", pl.String()), ("timestamp", pl.Datetime("us", "UTC")), ("offset", pl.Int64())]
)


def sequence_bounds(snapshot: LogSnapshot, decisions: Decisions, *, are_events: bool = False) -> list[SequenceBounds]:
    """Return what is known of the source sequences of each partition; what is retired is left out of events alone."""
    highest = snapshot.highest_sequences(decisions.partitions)
    truncated = {table: truncation.position for table, truncation in decisions.truncations.items()}
    retired = frozenset(scope for scope, source in decisions.sources.items() if source.is_retired and are_events)
    bounds = SequenceBounds(truncated=truncated, floors=decisions.epochs.floors(), retired=retired)
    removed = [
        {parse_place(place): commit for place, commit in decisions.removed_positions(partition).items()}
        for partition in range(len(highest))
    ]
    return [replace(bounds, highest=highest[partition], removed=removed[partition]) for partition in range(len(highest))]


def is_sequenced(snapshot: LogSnapshot, decisions: Decisions) -> bool:
    """Tell whether a topic orders its records by the sequences of their source, so that it takes no rows without."""
    return any(
        bounds.removed or any(SourcePosition.of(text).order for text in bounds.highest.values())
        for bounds in sequence_bounds(snapshot, decisions)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLookup:
    """The files of one partition at the version of an append's plan, by offset: paths, and the highest sequence of each."""

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

    def newest(self, keys: pa.Array, at_least: str) -> pl.DataFrame:
        """Return the highest sequence of each key in each scope; see `lastword.compaction.rows.sequence_checks.NewestSequences`.

        Raises `CorruptLog` naming a file that cannot be read.
        """
        paths = [path for path, highest in zip(self.paths, self.highest, strict=True) if highest and highest >= at_least]
        folder = local_path(self.location)
        if folder is not None and paths:
            with suppress(pl.exceptions.PolarsError, OSError):
                return _scan([folder / path for path in paths], keys, at_least)

        def read(path: str) -> list[pl.DataFrame]:
            return self._read(path, keys, at_least)

        if len(paths) <= 1:
            frames = [frame for path in paths for frame in read(path)]
        else:
            with ThreadPoolExecutor(min(len(paths), 2 * (os.cpu_count() or 1)), "lookup") as threads:
                frames = [frame for of_path in threads.map(read, paths) for frame in of_path]
        return _newest_of(pl.concat([pl.LazyFrame(schema=_SCHEMA), *(frame.lazy() for frame in frames)])).collect()

    def records(self, keys: Collection[bytes], *, moved: AbstractSet[bytes] = frozenset()) -> dict[bytes, LastRecord]:
        """Return the last record of each key that the partition has; see `lastword.compaction.rows.unchanged_columns.Records`.

        Errors as `newest`.
        """
        records, unsettled = dict[bytes, LastRecord](), set(keys)
        for path in reversed(self.paths):
            if not unsettled:
                break
            of_file, settled = self._records(path, pa.array(list(unsettled), pa.binary()))
            records |= {key: records[key].inherit_row(record) if key in records else record for key, record in of_file.items()}
            unsettled -= settled | (of_file.keys() - moved)
        return records

    def _records(self, path: str, keys: pa.Array) -> tuple[dict[bytes, LastRecord], set[bytes]]:
        """Return the last records of keys in one file, and the keys for which no earlier file matters (`LastRecord.inherit_row`).

        Values are read only of row groups that hold any of the keys.
        """
        narrow = row_groups(self.location, self.storage_options, path, ("key", "control"))
        hits = [len(_data_of(group.read(), keys)) > 0 for group in narrow]
        records, settled = dict[bytes, LastRecord](), set[bytes]()
        if not any(hits):
            return records, settled
        groups = row_groups(self.location, self.storage_options, path, ("key", "value", "control", "headers", "source_sequence"))
        for group, is_hit in zip(groups, hits, strict=True):
            for row in _data_of(group.read(), keys).to_pylist() if is_hit else ():
                record = LastRecord.of(row["value"], row["source_sequence"], row["headers"])
                records[row["key"]] = record.inherit_row(records.get(row["key"]))
                if not record.may_inherit:
                    settled.add(row["key"])
        return records, settled

    def highest_in(self, places: Collection[Place]) -> dict[Place, str]:
        """Return the highest order of the records of each of some scopes and Kafka partitions, if it has one. Errors as `newest`.

        A change of PostgreSQL whose commit was not known has an order below its own LSN, which counts: the source had come so far.
        """
        lowest, found = min((scope for scope, _ in places), default=""), dict[Place, str]()
        wanted = {place_name(*place): place for place in places}
        for path, highest in zip(self.paths, self.highest, strict=True) if places else ():
            if highest >= lowest:
                for group in row_groups(self.location, self.storage_options, path, ("source_sequence",)):
                    texts = group.read().column("source_sequence").combine_chunks()
                    there = highest_by_place(texts, by="reach")
                    found |= {wanted[name]: max(there[name], found.get(wanted[name], "")) for name in there.keys() & wanted.keys()}
        return found

    def key_batches(self) -> Iterator[pl.DataFrame]:
        """Yield the data records in the order of their offsets: key, is_live (no tombstone), source_sequence (empty for none), appended_ms.

        Errors as `newest`.
        """
        for path in self.paths:
            for group in row_groups(self.location, self.storage_options, path, _KEY_COLUMNS):
                rows = group.read()
                rows = rows.filter(pc.and_(pc.is_valid(rows.column("key")), pc.is_null(rows.column("control"))))
                columns = {
                    "key": rows.column("key"),
                    "is_live": pc.is_valid(rows.column("value")),
                    "source_sequence": pc.fill_null(rows.column("source_sequence"), ""),
                    "appended_ms": pc.divide(rows.column("appended_at").cast(pa.int64()), 1000),
                }
                yield pl.DataFrame({name: pl.from_arrow(column) for name, column in columns.items()}, schema=_KEYS)

    def live_before(self, truncated: Sequence[str]) -> tuple[pa.Array, list[str]]:
        """Return the keys whose last record is no tombstone, and from before a TRUNCATE at one of some positions, and that position.

        A record without a sequence is from before each of them. Errors as `newest`.
        """
        of_scope: dict[str, list[str]] = {}
        for position in truncated:
            of_scope.setdefault(scope_of(position), []).append(position)
        keys, positions = list[bytes](), list[str]()
        for key, sequence in last_of_keys(self.key_batches()).filter("is_live").select("key", "source_sequence").iter_rows():
            scope = scope_of(sequence)
            ends = truncated if scope in {"", NO_SCOPE} else of_scope.get(scope, ())
            before = next((end for end in ends if not sequence or is_before_truncate(sequence, end)), None)
            if before is not None:
                keys.append(key)
                positions.append(before)
        return pa.array(keys, pa.binary()), positions

    def _read(self, path: str, keys: pa.Array, at_least: str) -> list[pl.DataFrame]:
        frames = []
        for group in row_groups(self.location, self.storage_options, path, _COLUMNS):
            highest = group.greatest("source_sequence")
            if highest is not None and highest < at_least:
                continue
            rows = group.read()
            is_above = pc.greater_equal(rows.column("source_sequence"), at_least)
            rows = rows.filter(pc.and_(pc.is_in(rows.column("key"), value_set=keys), is_above))
            if len(rows):
                frame = pl.DataFrame(rows.select(list(_COLUMNS)))
                frames.append(frame)
        return frames


def last_of_keys(batches: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Return the last record of each key among those of `KeyLookup.key_batches`."""
    return pl.concat([pl.DataFrame(schema=_KEYS), *batches]).unique("key", keep="last", maintain_order=True)


def _scan(files: list[Path], keys: pa.Array, at_least: str) -> pl.DataFrame:
    """Return the newest records of some keys, from one sequence on, in local files: Polars decodes those of these keys alone.

    It may raise for a file that is damaged, or that another writer left in other types; read by row groups, either is told apart.
    """
    wanted = pl.Series(keys, dtype=pl.Binary).implode()
    rows = pl.scan_parquet(files, glob=False, hive_partitioning=False).filter(
        pl.col("key").is_in(wanted) & (pl.col("source_sequence") >= at_least)
    )
    return _newest_of(rows.select(_COLUMNS)).collect()


def _newest_of(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Return of some records (`_COLUMNS`) the highest sequence of each key in each scope, and the time of the newest: `NEWEST`."""
    return (
        rows.group_by("key", pl.col("source_sequence").str.extract(SCOPE_FORM).fill_null("").alias("scope"))
        .agg(
            pl.col("source_sequence").max().alias("newest"),
            pl.col("timestamp").max().dt.epoch("ms").alias("time"),
            pl.col("offset").max().alias("last"),
        )
        .select(list(NEWEST))
    )


def _data_of(rows: pa.Table, keys: pa.Array) -> pa.Table:
    """Return the data records of some keys."""
    return rows.filter(pc.and_(pc.is_in(rows.column("key"), value_set=keys), pc.is_null(rows.column("control"))))
