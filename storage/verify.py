"""The checker of the invariants, for users and, after every storage test, for us.

It trusts nothing that the writer trusted: offsets are read from the files and compared with the statistics, the history of the table is
read for commits that are not ours and for offsets that were given twice. The history is what the Delta log still has of it:

```
 version   7       8       9       10        11           12
           append  append  swap    append    RESTORE to 8 append       newest version
           0 to 4  5 to 9  …       10 to 12               10 to 11     12, 11 (RESTORE), 8, 7: 10 and 11 were given once
```
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError
from pyarrow import fs

from lastword.compaction.display import Displayed
from lastword.compaction.errors import CorruptLog, first_line
from lastword.compaction.producers import Control
from lastword.storage.delta.history import commit_actions, commits_since
from lastword.storage.delta.snapshot import Files
from lastword.storage.delta.tables import open_table
from lastword.storage.files.data_reader import row_groups
from lastword.storage.files.paths import filesystem_of
from lastword.storage.files.schema import ADDED_COLUMNS, LOG_COLUMNS
from lastword.storage.progress import work

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from lastword.storage.delta.history import Commit
    from lastword.storage.delta.snapshot import LogSnapshot
    from lastword.storage.ledger.decisions import Decisions
    from lastword.storage.log.topic_log import TopicLog

#: Commits that change no record and so may stand in the history beside ours.
_HARMLESS: Final = ("CREATE TABLE", "VACUUM START", "VACUUM END", "OPTIMIZE", "RESTORE")
_KINDS: Final = ("append", "clean", "retention", "merge")
_MARKERS: Final = (Control.COMMIT.value, Control.ABORT.value)
_SHOWN: Final = 5
_DELTA_LOG: Final = "_delta_log"
_VERSION_DIGITS: Final = 20
#: Commits are small files; on an object store each takes a request.
_COMMITS_AT_A_TIME: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class VerifyReport(Displayed):
    """What `verify` looked at and what it found; `problems` is empty when every invariant holds."""

    table_version: int
    record_count: int
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Tell whether every invariant holds."""
        return not self.problems


def verify(log: TopicLog) -> VerifyReport:
    """Check one topic; reads narrow columns of every file. A file that cannot be read is a problem like any other.

    Others may append to it and clean it meanwhile: the decisions are those of a moment before the snapshot, so it has all they speak of.
    """
    log.sync_ledger_with_history()
    decisions = log.decisions()
    snapshot = log.snapshot()
    overlapping = _check_slices(snapshot)
    problems = [
        *_check_columns(log, snapshot),
        *_check_places(snapshot.files.partition.tolist(), decisions.partitions),
        *overlapping,
        *_check_decisions(decisions, _log_ends(snapshot.files)),
        *_check_history(log, snapshot),
        *_check_records(log, snapshot, decisions, is_overlapping=bool(overlapping)),
    ]
    return VerifyReport(table_version=snapshot.version, record_count=int(snapshot.files.record_count.sum()), problems=tuple(problems))


def _check_columns(log: TopicLog, snapshot: LogSnapshot) -> list[str]:
    table = open_table(log.paths.log, log.storage_options, version=snapshot.version)
    names = [field.name for field in table.schema().fields]
    older = tuple(name for name in LOG_COLUMNS if name not in ADDED_COLUMNS)
    return [] if tuple(names) in {LOG_COLUMNS, older} else [f"the log table has the columns {names}, expected {list(LOG_COLUMNS)}"]


def _check_places(partitions_of_files: list[int], partitions: int) -> list[str]:
    strange = sorted({partition for partition in partitions_of_files if not 0 <= partition < partitions})
    return [f"records in partitions {strange}, but the topic has partitions 0 to {partitions - 1}"] if strange else []


def _check_slices(snapshot: LogSnapshot) -> list[str]:
    """Slices of a partition are disjoint and ordered, and no record lies below the label of its segment or slice."""
    files = snapshot.files
    problems = []
    for row in range(len(files.partition)):
        place = f"partition {files.partition[row]}, segment {files.segment[row]}, slice {files.slice[row]}"
        if files.slice[row] < files.segment[row] or files.first_offset[row] < files.slice[row]:
            problems.append(f"{place}: holds offset {files.first_offset[row]}, below its label")
        if row and files.partition[row] == files.partition[row - 1] and files.first_offset[row] <= files.last_offset[row - 1]:
            problems.append(
                f"{place}: begins at offset {files.first_offset[row]}, but the slice before ends at {files.last_offset[row - 1]}"
            )
    return problems[:_SHOWN]


def _log_ends(files: Files) -> dict[int, int]:
    """Return the log end of each partition that has a record, whether the topic has that partition or not."""
    ends: dict[int, int] = {}
    for partition, last in zip(files.partition.tolist(), files.last_offset.tolist(), strict=True):
        ends[partition] = max(last + 1, ends.get(partition, 0))
    return ends


def _check_decisions(decisions: Decisions, log_ends: Mapping[int, int]) -> list[str]:
    """Checkpoints and log starts lie in the log, so no offset that a decision speaks of will be given again."""
    problems = []
    for partition in range(decisions.partitions):
        end = log_ends.get(partition, 0)
        start, checkpoint = decisions.log_start_offset(partition), decisions.cleaner_checkpoint(partition)
        if start > end:
            problems.append(f"partition {partition}: the log start offset {start} lies past the log end {end}")
        if checkpoint is not None and checkpoint > end:
            problems.append(f"partition {partition}: the cleaner checkpoint {checkpoint} lies past the log end {end}")
    return problems[:_SHOWN]


@dataclass(slots=True)
class _Problems:
    """What is wrong with the records, by kind; of each kind the first few are told."""

    files: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    markers: list[str] = field(default_factory=list)

    def to_texts(self) -> list[str]:
        kinds = (self.files, self.doubled, self.keys, self.aborted, self.markers)
        return [problem for kind in kinds for problem in kind[:_SHOWN]]


def _check_records(log: TopicLog, snapshot: LogSnapshot, decisions: Decisions, *, is_overlapping: bool) -> list[str]:
    """Check what the files hold, partition by partition; the files of a partition are read side by side."""
    files, problems = snapshot.files, _Problems()

    def look(file: int) -> _Look:
        seen = _look(log, files, file, start, checkpoint)
        advance(1)
        return seen

    with ThreadPoolExecutor(os.cpu_count()) as threads, work(f"verify {log.name}", total=len(files.path), unit="files") as advance:
        for partition in sorted(set(files.partition.tolist())):
            known = 0 <= partition < decisions.partitions
            start, checkpoint = (decisions.log_start_offset(partition), decisions.cleaner_checkpoint(partition) or 0) if known else (0, 0)
            mine = np.flatnonzero(files.partition == partition).tolist()
            looks = list(threads.map(look, mine))
            problems.files += [text for look in looks for text in look.problems]
            if is_overlapping:
                offsets, counts = np.unique(np.concatenate([look.offsets for look in looks]), return_counts=True)
                problems.doubled += [
                    f"partition {partition}: offset {offset} stands {count} times"
                    for offset, count in zip(offsets[counts > 1].tolist(), counts[counts > 1].tolist(), strict=True)
                ]
            if checkpoint and all(look.is_read for look in looks):
                _check_clean_section(partition, looks, start, problems)
    return problems.to_texts()


@dataclass(slots=True)
class _Look:
    """What was seen in a file: its offsets, the keys of data in the clean section as hashes of 128 bits, and its transactions.

    Transactions are (producer id, first offset): `data` those of which it holds a record; `clean_data` those of which one lies in the clean
    section, with its offset; `aborted` those that a marker aborts; `unstamped` those of markers in the clean section without a horizon.
    """

    problems: list[str] = field(default_factory=list)
    is_read: bool = True
    offsets: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    keys: list[pl.DataFrame] = field(default_factory=list)
    data: set[tuple[int, int]] = field(default_factory=set)
    clean_data: dict[tuple[int, int], int] = field(default_factory=dict)
    aborted: set[tuple[int, int]] = field(default_factory=set)
    unstamped: dict[tuple[int, int], int] = field(default_factory=dict)


def _look(log: TopicLog, files: Files, file: int, start: int, checkpoint: int) -> _Look:
    """Read a file, and compare it with its statistics: offsets ascend, and are those that the Delta log says."""
    partition, path = int(files.partition[file]), str(files.path[file])
    first, last, count = int(files.first_offset[file]), int(files.last_offset[file]), int(files.record_count[file])
    columns = ["offset"]
    if first < checkpoint:
        columns += ["key", "control"]
    if files.producer_rows[file]:
        columns += [name for name in ("control", "producer_id", "txn_first_offset", "delete_horizon") if name not in columns]

    def read() -> _Look:
        look = _Look()
        for group in row_groups(log.paths.log, log.storage_options, path, columns, checks_order=False):
            _add(look, group.read(), start, checkpoint)
        return look

    try:
        try:
            look = read()
        except OSError:  # of the storage: what it does not give at a second look either is a problem
            look = read()
    except (CorruptLog, OSError) as error:
        problem = f"partition {partition}: offsets {first} to {last} cannot be read, in {path}: {first_line(error)}"
        return _Look(is_read=False, problems=[problem])
    offsets = look.offsets
    fallen = np.flatnonzero(np.diff(offsets) <= 0)
    if len(fallen):
        at = int(fallen[0])
        look.problems.append(f"partition {partition}: offset {offsets[at + 1]} stands after {offsets[at]} in {path}")
    if not len(offsets) or (int(offsets.min()), int(offsets.max()), len(offsets)) != (first, last, count):
        place = f"partition {partition}, segment {files.segment[file]}, slice {files.slice[file]}"
        look.problems.append(f"{place}: no file holds the {count} records from offset {first} to {last} that its statistics say")
    return look


def _add(look: _Look, rows: pa.Table, start: int, checkpoint: int) -> None:
    offset = rows.column("offset").to_numpy()
    look.offsets = np.append(look.offsets, offset)
    if "control" not in rows.column_names:
        return
    is_clean = (offset >= start) & (offset < checkpoint)
    is_data = pc.is_null(rows.column("control")).to_numpy()
    if "key" in rows.column_names:
        keyed = rows.select(["key", "offset"]).filter(pa.array(is_clean & is_data & pc.is_valid(rows.column("key")).to_numpy()))
        key = pl.col("key")
        look.keys.append(pl.DataFrame(keyed).select(key.hash(0).alias("low"), key.hash(1).alias("high"), "offset"))
    if "txn_first_offset" not in rows.column_names:
        return
    at = np.flatnonzero(pc.is_valid(rows.column("txn_first_offset")).to_numpy())
    taken = rows.select(["producer_id", "txn_first_offset", "control", "delete_horizon"]).take(pa.array(at))
    for row, (producer, begun, control, horizon) in zip(
        at.tolist(), zip(*(column.to_pylist() for column in taken.columns), strict=True), strict=True
    ):
        transaction = producer, begun
        if control is None:
            look.data.add(transaction)
            if is_clean[row]:
                look.clean_data.setdefault(transaction, int(offset[row]))
        elif control == Control.ABORT.value:
            look.aborted.add(transaction)
        if control in _MARKERS and is_clean[row] and horizon is None:
            look.unstamped.setdefault(transaction, int(offset[row]))


def _check_clean_section(partition: int, looks: Sequence[_Look], start: int, problems: _Problems) -> None:
    """Below the checkpoint a key stands once, nothing is aborted, and every marker waits for its data or for its horizon."""
    hashes = [frame for look in looks for frame in look.keys]
    if hashes:
        keys = pl.concat(hashes).group_by("low", "high").agg(pl.len().alias("count"), pl.col("offset").max())
        problems.keys += [
            f"partition {partition}: the key of offset {offset} stands {count} times below the cleaner checkpoint"
            for count, offset in keys.filter(pl.col("count") > 1).sort("offset").select("count", "offset").rows()
        ]
    data = set().union(*(look.data for look in looks))
    aborted = set().union(*(look.aborted for look in looks))
    for look in looks:
        problems.aborted += [
            f"partition {partition}: offset {offset} of an aborted transaction stands below the cleaner checkpoint"
            for transaction, offset in look.clean_data.items()
            if transaction in aborted
        ]
        problems.markers += [
            f"partition {partition}: the marker at offset {offset} has neither a record of its transaction nor a delete horizon"
            for transaction, offset in look.unstamped.items()
            if transaction not in data and transaction[1] >= start  # else its records were deleted since
        ]


def _check_history(log: TopicLog, snapshot: LogSnapshot) -> list[str]:
    """Every commit is of a kind that we know, and no offset was given twice, as far as the Delta log still has the commits."""
    filesystem = filesystem_of(log.paths.log, log.storage_options)
    oldest = _oldest_version(filesystem)
    table = open_table(log.paths.log, log.storage_options, version=snapshot.version)
    commits = commits_since(table, oldest - 1)
    unsigned = snapshot.version - oldest + 1 - len(commits)
    if unsigned:  # then the version of an entry of the history is unknown
        still = oldest == _oldest_version(filesystem)
        return [f"{unsigned} table versions from {oldest} on do not say what wrote them"] if still else []
    strange = []
    for commit in commits:
        if commit.metadata is None and commit.operation not in _HARMLESS:
            strange.append(f"table version {commit.version} was written by somebody else: {commit.operation}")
        elif commit.metadata is not None and commit.metadata.kind not in _KINDS:
            strange.append(f"table version {commit.version} is of an unknown kind: {commit.metadata.kind}")
    return [*strange[:_SHOWN], *_check_given_once(log, snapshot, filesystem, _not_taken_back(commits))]


def _oldest_version(filesystem: fs.FileSystem) -> int:
    """Return the oldest table version whose commit the Delta log still has."""
    names = [file.base_name.removesuffix(".json") for file in filesystem.get_file_info(fs.FileSelector(_DELTA_LOG))]
    return min(int(name) for name in names if len(name) == _VERSION_DIGITS and name.isdigit())


def _not_taken_back(newest_first: Sequence[Commit]) -> list[Commit]:
    """Return the commits that the newest version stands on, oldest first: a RESTORE goes on from the version that it went back to."""
    commits: list[Commit] = []
    below = newest_first[0].version + 1
    for commit in newest_first:
        if commit.version < below:
            commits.append(commit)
            below = commit.version if commit.restored_version is None else commit.restored_version + 1
    return commits[::-1]


def _check_given_once(log: TopicLog, snapshot: LogSnapshot, filesystem: fs.FileSystem, commits: Sequence[Commit]) -> list[str]:
    """Every append began past all that was appended before, and the next one will: a RESTORE alone takes offsets back.

    What the oldest commit left is taken from its table version, if that can still be read.
    """
    base = commits[0].version
    appends = [commit.version for commit in commits[1:] if commit.metadata is not None and commit.metadata.kind == "append"]
    try:
        ends = _log_ends(Files.of(open_table(log.paths.log, log.storage_options, version=base))) if base else {}
    except (DeltaError, FileNotFoundError):
        ends = {}
    with ThreadPoolExecutor(_COMMITS_AT_A_TIME) as threads:
        added = list(threads.map(lambda version: _appended_ranges(filesystem, version), appends))
    problems = []
    for version, ranges in zip(appends, added, strict=True):
        for partition, (first, last) in sorted(ranges.items()):
            end = ends.get(partition, 0)
            if first < end:
                problems.append(
                    f"partition {partition}: table version {version} appended from offset {first} on, but offsets up to {end - 1} were "
                    "given before"
                )
            ends[partition] = max(last + 1, end)
    log_ends = _log_ends(snapshot.files)
    problems += [
        f"partition {partition}: the log ends at offset {log_ends.get(partition, 0)}, but offsets up to {end - 1} were given before"
        for partition, end in sorted(ends.items())
        if log_ends.get(partition, 0) < end
    ]
    return problems[:_SHOWN]


def _appended_ranges(filesystem: fs.FileSystem, version: int) -> dict[int, tuple[int, int]]:
    """Return the first and the last offset that a commit added to each partition; nothing when the Delta log has it no more."""
    try:
        actions = commit_actions(filesystem, version)
    except FileNotFoundError:
        return {}
    ranges: dict[int, tuple[int, int]] = {}
    for add in (action["add"] for action in actions if "add" in action):
        partition, stats = int(add["partitionValues"]["partition"]), json.loads(add.get("stats") or "{}")
        first, last = (stats.get(least_or_most, {}).get("offset") for least_or_most in ("minValues", "maxValues"))
        if first is None or last is None:
            continue
        known = ranges.get(partition, (first, last))
        ranges[partition] = min(first, known[0]), max(last, known[1])
    return ranges
