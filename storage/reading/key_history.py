"""The records of one key that are still in the log, and what each of them is to a reader and to the cleaner.

```
 offset   0 … first dirty …          last stable …  end
 k        4           9   12  15     20  21
 status   superseded  superseded     open waiting            12 is of an aborted transaction, 15 the latest
```

Two reads: key, offset and transaction of all files, of which Polars decodes what the statistics and the key leave; then the values of the
newest records alone. In memory are 12 bytes for each record of the key, and the rows that are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np
import polars as pl
import pyarrow as pa

from lastword.compaction.display import Displayed
from lastword.storage.files.paths import filesystem_of
from lastword.storage.reading.arrow_frames import collect_rows, scan_records
from lastword.storage.reading.arrow_rows import file_ranges, range_batches
from lastword.storage.reading.view import view_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from numpy.typing import NDArray

    from lastword.storage.reading.view import View

    Longs = NDArray[np.int64]

_COLUMNS: Final = ("offset", "timestamp", "key", "value", "headers", "producer_id", "txn_first_offset")


class KeyStatus(str, Enum):
    """What a record is to a reader of `read_committed`."""

    #: The newest record of its key; a tombstone, too.
    LATEST = "latest"
    #: A newer record of its key is there.
    SUPERSEDED = "superseded"
    #: Its transaction was aborted: no reader sees it.
    ABORTED = "aborted"
    #: Its transaction is open: no reader sees it yet.
    OPEN = "open"
    #: It is at or past the last stable offset, which an open transaction holds back: no reader sees it yet.
    WAITING = "waiting"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class KeyRecord(Displayed):
    """A record of a key and where it is in the log.

    `segment` is the base offset of its segment. `is_clean` tells whether it lies below the cleaner checkpoint. `value` is None for a
    tombstone.
    """

    BRIEF: ClassVar = ("partition", "offset", "timestamp", "value", "status")

    partition: int
    offset: int
    segment: int
    timestamp: datetime
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    status: KeyStatus
    is_clean: bool
    producer_id: int | None

    @property
    def is_tombstone(self) -> bool:
        """Whether the record deletes its key."""
        return self.value is None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class KeyHistory(Displayed):
    """The records of a key in one partition that the log still has, oldest first, at one table version.

    `records` are the newest of `record_count`. `latest` is what a reader of `read_committed` sees of the key, None when nothing of it is
    visible; a tombstone is one.
    """

    BRIEF: ClassVar = ("topic", "key", "partition", "record_count", "latest")

    topic: str
    key: bytes
    partition: int
    table_version: int
    cleaner_checkpoint: int
    record_count: int
    records: tuple[KeyRecord, ...]
    latest: KeyRecord | None


def key_histories(view: View, keys: Sequence[bytes], *, partitions: Iterable[int] | None, limit: int) -> list[KeyHistory]:
    """Return the history of each of `keys` in each partition that has records of it, of `limit` records each.

    `view` is that of `read_committed`. Raises FileNotFoundError when a file is gone, as other reads of a view.
    """
    everything = view_of(view.state, "read_uncommitted")
    rows = scan_records(everything, ("partition", "key", "offset", "txn_first_offset"), partitions=partitions)
    wanted = rows.filter(pl.col("key").is_in(pl.Series(list(keys), dtype=pl.Binary).implode()))
    places = collect_rows(everything, file_ranges(everything, everything.start, everything.end, partitions), wanted)
    opened: set[tuple[int, int]] = set()
    if view.end != everything.end:
        opened = {place for transaction in view.state.open_transactions() for place in transaction.first_offsets.items()}
    histories = []
    for (partition, key), rows_of_key in sorted(places.partition_by("partition", "key", as_dict=True).items()):
        ordered = rows_of_key.sort("offset")
        offsets, firsts = ordered["offset"].to_numpy(), ordered["txn_first_offset"].fill_null(-1).to_numpy()
        statuses = _statuses(view, int(partition), offsets, firsts, {first for at, first in opened if at == partition})
        histories.append(_history(everything, int(partition), key, offsets, statuses, limit=limit))
    return histories


def _statuses(view: View, partition: int, offsets: Longs, firsts: Longs, opened: set[int]) -> list[KeyStatus]:
    """Return the status of each record of a key, which ascend by offset."""
    aborted = np.isin(firsts, view.aborted[partition])
    is_open = np.isin(firsts, list(opened))
    visible = np.flatnonzero(~aborted & (offsets < view.end[partition]))
    latest = int(visible[-1]) if len(visible) else -1
    statuses = []
    for row, offset in enumerate(offsets.tolist()):
        if aborted[row]:
            statuses.append(KeyStatus.ABORTED)
        elif is_open[row]:
            statuses.append(KeyStatus.OPEN)
        elif offset >= view.end[partition]:
            statuses.append(KeyStatus.WAITING)
        else:
            statuses.append(KeyStatus.LATEST if row == latest else KeyStatus.SUPERSEDED)
    return statuses


def _history(view: View, partition: int, key: bytes, offsets: Longs, statuses: Sequence[KeyStatus], *, limit: int) -> KeyHistory:
    """Read the newest records of a key, and the latest one wherever it is."""
    latest = statuses.index(KeyStatus.LATEST) if KeyStatus.LATEST in statuses else None
    chosen = sorted({*range(max(0, len(offsets) - limit), len(offsets)), *(() if latest is None else (latest,))})
    status_of = {int(offsets[row]): statuses[row] for row in chosen}
    records = {record.offset: record for record in _read_records(view, partition, status_of)}
    return KeyHistory(
        topic=view.topic,
        key=key,
        partition=partition,
        table_version=view.version,
        cleaner_checkpoint=view.first_dirty[partition],
        record_count=len(offsets),
        records=tuple(records[offset] for offset in offsets[len(offsets) - limit if limit < len(offsets) else 0 :].tolist()),
        latest=None if latest is None else records[int(offsets[latest])],
    )


def _read_records(view: View, partition: int, status_of: dict[int, KeyStatus]) -> Iterable[KeyRecord]:
    """Yield the records at some offsets of a partition; of a file the row groups alone that reach from the first to the last of them."""
    wanted = np.array(sorted(status_of), dtype=np.int64)
    segments = dict(zip(view.files.path.tolist(), view.files.segment.tolist(), strict=True))
    filesystem = filesystem_of(view.location, view.storage_options)
    for file in file_ranges(view, view.start, view.end, [partition]):
        mine = wanted[(wanted >= file.first_offset) & (wanted <= file.last_offset)]
        if not len(mine):
            continue
        narrow = replace(file, begin=int(mine[0]), end=int(mine[-1]) + 1)
        batches = range_batches(filesystem, [narrow], _COLUMNS, keep=lambda batch, _: np.isin(batch.column("offset").to_numpy(), wanted))
        for row in pa.Table.from_batches(batches).to_pylist():
            yield KeyRecord(
                partition=partition,
                offset=row["offset"],
                segment=segments[file.path],
                timestamp=row["timestamp"],
                value=row["value"],
                headers=tuple((header["key"], header["value"]) for header in row["headers"] or ()),
                status=status_of[row["offset"]],
                is_clean=not view.is_dirty(partition, row["offset"]),
                producer_id=row["producer_id"],
            )
