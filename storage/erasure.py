"""Erasing a key: where the log holds it, out of the dead letters, and out of files that no table version of today needs.

```
 rows       of the key in each partition, its newest among them      narrow columns of every file
 dead       letters of the key leave their table                      by files: no predicate stands in a Delta log
 files      that hold the key and are in no current version go now    the others stay: time travel to them still works
```

VACUUM at a retention of 0 would take every old file, and those of commits in flight. Here a file goes for what is in it. One that no commit
names is what a crash left, or what a commit in flight is about to name, of this process or of another. In the log the offsets tell them
apart: an append in flight begins at the log end, or its commit is refused; a swap in flight was planned before the key left the log, and is
refused, or after, and does not hold it. In the dead letters and in targets such a file is left alone for 24 h. A file that cannot be
decoded is not deleted if a commit ever named it.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lastword.compaction.config.keys import DAY_MS
from lastword.compaction.errors import CorruptLog
from lastword.compaction.producers import Control
from lastword.storage.append.dead_letters import delete_dead_letters
from lastword.storage.delta.snapshot import LogSnapshot
from lastword.storage.delta.tables import open_table
from lastword.storage.files.data_reader import read_columns, row_groups
from lastword.storage.files.paths import filesystem_of, storage_faults
from lastword.storage.key_search import PARTITION, KeySearch

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from lastword.storage.key_search import FoundIn, WantedKey
    from lastword.storage.log.topic_log import TopicLog


_PLACE_COLUMNS: Final = ("offset", "timestamp", "key", "producer_id", "txn_first_offset", "control")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRows:
    """What one partition holds of a key: `rows` records, the last at `last_offset`.

    `newest_*` are of the newest that was not aborted, None when all were.
    """

    partition: int
    rows: int
    last_offset: int
    newest_offset: int | None
    newest_is_tombstone: bool
    newest_ms: int


def rows_of_key(log: TopicLog, snapshot: LogSnapshot, key: bytes) -> list[KeyRows]:
    """Return the partitions that hold a key at a snapshot, by partition; records below the log start count, they are in the files.

    Every file is read, in narrow columns, by threads of this process. Raises `CorruptLog` naming one that cannot be read.
    """
    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1), thread_name_prefix="key-rows") as threads:
        per_partition = threads.map(lambda partition: _in_partition(log, snapshot, partition, key), snapshot.partitions())
        return [file for file in per_partition if file is not None]


def _in_partition(log: TopicLog, snapshot: LogSnapshot, partition: int, key: bytes) -> KeyRows | None:
    """Return what one partition holds of a key; None when it holds nothing."""
    files, location, options = snapshot.files, log.paths.log, log.storage_options
    mine = np.flatnonzero(files.partition == partition)
    mine = mine[np.argsort(files.first_offset[mine], kind="stable")]
    rows_of_files, aborted = list[tuple[str, pa.Table]](), set[tuple[int, int]]()
    for path in files.path[mine]:
        for group in row_groups(location, options, path, _PLACE_COLUMNS):
            rows = group.read()
            aborts = rows.filter(pc.fill_null(pc.equal(rows.column("control"), Control.ABORT.value), False))  # noqa: FBT003
            aborted |= set(zip(aborts.column("producer_id").to_pylist(), aborts.column("txn_first_offset").to_pylist(), strict=True))
            same = pc.and_(pc.is_null(rows.column("control")), pc.fill_null(pc.equal(rows.column("key"), pa.scalar(key)), False))  # noqa: FBT003
            mentions = rows.filter(same).drop_columns(["key", "control"])
            if len(mentions):
                rows_of_files.append((path, mentions))
    if not rows_of_files:
        return None
    newest = _newest(rows_of_files, aborted)
    return KeyRows(
        partition=partition,
        rows=sum(len(rows) for _, rows in rows_of_files),
        last_offset=rows_of_files[-1][1].column("offset")[-1].as_py(),
        newest_offset=None if newest is None else newest[1]["offset"],
        newest_is_tombstone=newest is not None and _is_tombstone(location, options, newest[0], newest[1]["offset"]),
        newest_ms=0 if newest is None else int((newest[1]["timestamp"] or _EPOCH).timestamp() * 1000),
    )


def _newest(rows_of_files: Sequence[tuple[str, pa.Table]], aborted: Container[tuple[int, int]]) -> tuple[str, dict[str, Any]] | None:
    """Return the last row that was not aborted, and its file, of rows by file in offset order; None when all were."""
    for path, rows in reversed(rows_of_files):
        for at in range(len(rows) - 1, -1, -1):
            (row,) = rows.slice(at, 1).to_pylist()
            if (row["producer_id"], row["txn_first_offset"]) not in aborted:
                return path, row
    return None


def _is_tombstone(location: str, storage_options: Mapping[str, str], path: str, offset: int) -> bool:
    """Tell whether the record at an offset of a file has no value."""
    for group in row_groups(location, storage_options, path, ("offset", "value")):
        rows = group.read()
        offsets = rows.column("offset").to_numpy()
        at = int(np.searchsorted(offsets, offset))
        if at < len(offsets) and offsets[at] == offset:
            return not rows.column("value")[at].is_valid
    message = f"{location}/{path}: offset {offset} is not there any more"
    raise CorruptLog(message)


def erase_dead_letters(location: str, storage_options: Mapping[str, str], wanted: WantedKey) -> int:
    """Delete the dead letters whose key is the key or whose text names it; return how many."""
    return delete_dead_letters(location, storage_options, KeySearch(location, storage_options, wanted, texts=True).letters_naming)


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What became of the files that held the key: how many are gone, and those that are there still, with the reason."""

    removed: int
    left: tuple[tuple[FoundIn, str], ...]


def sweep(search: KeySearch, location: str, storage_options: Mapping[str, str], *, now_ms: int, is_log: bool = False) -> Swept:
    """Delete the files that hold the key and are in no current version of a table, until a look finds no other.

    `is_log`: the table is a log, in which offsets tell whether a file that no commit names can still be committed.
    """
    removed: set[str] = set()
    while True:
        files = search.look()
        table = open_table(location, storage_options)  # after the look: what was in flight then is in it
        snapshot = LogSnapshot.of(table) if is_log else None
        current = set(pa.table(table.get_add_actions(flatten=True)).column("path").to_pylist())
        with storage_faults(location):
            named = set(table.vacuum(retention_hours=0, dry_run=True, enforce_retention_duration=False))
        left = []
        going = []
        for file in files:
            if file.path in current:
                left.append((file, f"cannot be decoded: {file.why}" if file.rows is None else "is in the newest table version"))
            elif file.rows is None and file.path in named:
                left.append((file, f"cannot be decoded: {file.why}; older table versions name it"))
            elif (
                file.path in named
                or file.written_ms < now_ms - DAY_MS
                or (snapshot is not None and _is_behind(file, snapshot, location, storage_options))
            ):
                going.append(file.path)
            else:
                left.append((file, "no commit names it, and a commit in flight may be about to: purge again a day after it was written"))
        if not going or removed.issuperset(going):
            left += [(file, "could not be deleted") for file in files if file.path in removed]
            return Swept(removed=len(removed), left=tuple(left))
        _delete(location, storage_options, going)
        removed.update(going)


def _is_behind(file: FoundIn, snapshot: LogSnapshot, location: str, storage_options: Mapping[str, str]) -> bool:
    """Tell whether the rows of a file lie below the log end of their partition, where no append puts any more."""
    place = PARTITION.search(file.path)
    if place is None or file.rows is None:
        return False
    partition = int(place.group(1))
    end = int(snapshot.files.last_offset[snapshot.files.partition == partition].max(initial=-1)) + 1
    offsets = read_columns(location, storage_options, file.path, ["offset"]).column("offset").to_numpy()
    return bool(offsets[0] < end)


def _delete(location: str, storage_options: Mapping[str, str], paths: Iterable[str]) -> None:
    """Delete files, and the checksums that Hadoop puts beside them on a local disk."""
    files = filesystem_of(location, storage_options)
    for path in paths:
        folder, _, name = path.rpartition("/")
        for each in (path, f"{folder}/.{name}.crc" if folder else f".{name}.crc"):
            try:
                files.delete_file(each)
            except FileNotFoundError:
                continue
