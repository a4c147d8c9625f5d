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
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow import fs
from pyspark.sql import Window
from pyspark.sql import functions as F

from lastword.compaction.errors import first_line
from lastword.compaction.producers import Control
from lastword.storage.delta.history import commits_since
from lastword.storage.delta.plan_values import by_partition
from lastword.storage.delta.snapshot import Files
from lastword.storage.files.paths import filesystem_of
from lastword.storage.files.schema import LOG_COLUMNS, PLACE_COLUMNS, TRANSACTION

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from lastword.storage.delta.history import Commit
    from lastword.storage.delta.snapshot import LogSnapshot
    from lastword.storage.ledger.decisions import Decisions
    from lastword.storage.log.topic_log import TopicLog

#: Commits that change no record and so may stand in the history beside ours.
_HARMLESS: Final = ("CREATE TABLE", "VACUUM START", "VACUUM END", "OPTIMIZE", "RESTORE")
_KINDS: Final = ("append", "clean", "retention", "merge")
_SAID: Final = (*PLACE_COLUMNS, "first_offset", "last_offset", "record_count")
_NAMED: Final = ("path", "partition", "first_offset", "last_offset")
_SHOWN: Final = 5
_DELTA_LOG: Final = "_delta_log"
_VERSION_DIGITS: Final = 20
#: Commits are small files; on an object store each takes a request.
_COMMITS_AT_A_TIME: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What `verify` looked at and what it found; `problems` is empty when every invariant holds."""

    table_version: int
    record_count: int
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Tell whether every invariant holds."""
        return not self.problems


def verify(spark: SparkSession, log: TopicLog) -> VerifyReport:
    """Check one topic; runs up to three Spark jobs over narrow columns. A file that cannot be read is a problem like any other.

    Others may append to it and clean it meanwhile: the decisions are those of a moment before the snapshot, so it has all they speak of.
    """
    log.sync_ledger_with_history()
    decisions = log.decisions()
    snapshot = log.snapshot()
    rows = spark.read.format("delta").option("versionAsOf", snapshot.version).load(log.paths.log)
    overlapping = _check_slices(snapshot)
    problems = [
        *_check_columns(rows),
        *_check_places(snapshot.files.partition.tolist(), decisions.partitions),
        *overlapping,
        *_check_decisions(decisions, _log_ends(snapshot.files)),
        *_check_history(log, snapshot),
    ]
    try:
        problems += _check_files(rows, snapshot)
        problems += _check_unique(rows) if overlapping else []
        problems += _check_clean_section(rows, snapshot, decisions)
    except Exception as error:  # noqa: BLE001  whatever a broken file makes Spark raise, its reader wants to know which one
        problems += _unreadable(log, snapshot) or [f"the records cannot be read, so they were not checked: {first_line(error)}"]
    return VerifyReport(table_version=snapshot.version, record_count=int(snapshot.files.record_count.sum()), problems=tuple(problems))


def _unreadable(log: TopicLog, snapshot: LogSnapshot) -> list[str]:
    """Name the files of a snapshot that are gone or are no Parquet files."""
    filesystem = filesystem_of(log.paths.log, log.storage_options)
    problems = []
    for path, partition, first, last in zip(*(getattr(snapshot.files, name) for name in _NAMED), strict=True):
        try:
            pq.read_metadata(str(path), filesystem=filesystem)
        except (OSError, pa.ArrowException) as error:
            problems.append(f"partition {partition}: offsets {first} to {last} cannot be read, in {path}: {first_line(error)}")
    return problems


def _check_columns(rows: DataFrame) -> list[str]:
    return [] if tuple(rows.columns) == LOG_COLUMNS else [f"the log table has the columns {rows.columns}, expected {list(LOG_COLUMNS)}"]


def _check_places(found: list[int], partitions: int) -> list[str]:
    strange = sorted({partition for partition in found if not 0 <= partition < partitions})
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


def _check_files(rows: DataFrame, snapshot: LogSnapshot) -> list[str]:
    """Offsets ascend inside each file, in the order in which it is read, and are those that its statistics say.

    So they are unique too, unless files overlap, which `_check_slices` says.
    """
    placed = rows.select(F.input_file_name().alias("file"), F.monotonically_increasing_id().alias("row"), *PLACE_COLUMNS, "offset")
    before = F.lag("offset").over(Window.partitionBy("file").orderBy("row"))
    offset, before_it = F.col("offset"), F.col("before")
    summaries = (
        placed.withColumn("before", before)
        .groupBy("file", *PLACE_COLUMNS)
        .agg(
            F.min("offset").alias("first"),
            F.max("offset").alias("last"),
            F.count(F.lit(1)).alias("records"),
            F.min(F.when(offset <= before_it, F.struct(offset.alias("offset"), before_it.alias("before")))).alias("fallen"),
        )
        .collect()
    )
    wrong = [
        f"partition {row['partition']}: offset {row['fallen']['offset']} stands after {row['fallen']['before']} in {row['file']}"
        for row in summaries
        if row["fallen"] is not None
    ]
    files = snapshot.files
    said = Counter(zip(*(getattr(files, name).tolist() for name in _SAID), strict=True))
    found = Counter((*(row[name] for name in PLACE_COLUMNS), row["first"], row["last"], row["records"]) for row in summaries)
    for partition, segment, label, first, last, records in said - found:
        place = f"partition {partition}, segment {segment}, slice {label}"
        wrong.append(f"{place}: no file holds the {records} records from offset {first} to {last} that its statistics say")
    return wrong[:_SHOWN]


def _check_unique(rows: DataFrame) -> list[str]:
    doubled = rows.groupBy("partition", "offset").count().where("count > 1").orderBy("partition", "offset").limit(_SHOWN).collect()
    return [f"partition {row['partition']}: offset {row['offset']} stands {row['count']} times" for row in doubled]


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


def _check_clean_section(rows: DataFrame, snapshot: LogSnapshot, decisions: Decisions) -> list[str]:
    """Below the checkpoint a key stands once, nothing is aborted, and every marker waits for its data or for its horizon."""
    checkpoints = [decisions.cleaner_checkpoint(partition) or 0 for partition in range(decisions.partitions)]
    starts = decisions.log_start_offsets()
    if not any(checkpoints):
        return []
    partition = F.col("partition")
    clean = rows.where((F.col("offset") < by_partition(checkpoints, partition)) & (F.col("offset") >= by_partition(starts, partition)))
    data = clean.where(F.col("control").isNull())
    keys = (
        data.where(F.col("key").isNotNull()).groupBy("partition", "key").agg(F.count(F.lit(1)).alias("count"), F.max("offset").alias("at"))
    )
    problems = [
        f"partition {row['partition']}: the key of offset {row['at']} stands {row['count']} times below the cleaner checkpoint"
        for row in keys.where("count > 1").limit(_SHOWN).collect()
    ]
    if not (snapshot.files.producer_rows > 0).any():
        return problems
    ends = rows.where(F.col("control").isin(Control.COMMIT.value, Control.ABORT.value) & F.col("txn_first_offset").isNotNull())
    aborted = ends.where(F.col("control") == Control.ABORT.value).select(*TRANSACTION).distinct()
    problems += [
        f"partition {row['partition']}: offset {row['offset']} of an aborted transaction stands below the cleaner checkpoint"
        for row in data.join(aborted, list(TRANSACTION), "left_semi").limit(_SHOWN).collect()
    ]
    pinned = rows.where(F.col("control").isNull() & F.col("txn_first_offset").isNotNull()).select(*TRANSACTION)
    marked = clean.where(F.col("control").isin(Control.COMMIT.value, Control.ABORT.value) & F.col("delete_horizon").isNull())
    marked = marked.where(F.col("txn_first_offset") >= by_partition(starts, partition))  # else its records were deleted since
    problems += [
        f"partition {row['partition']}: the marker at offset {row['offset']} has neither a record of its transaction nor a delete horizon"
        for row in marked.join(pinned, list(TRANSACTION), "left_anti").limit(_SHOWN).collect()
    ]
    return problems


def _check_history(log: TopicLog, snapshot: LogSnapshot) -> list[str]:
    """Every commit is of a kind that we know, and no offset was given twice, as far as the Delta log still has the commits."""
    filesystem = filesystem_of(log.paths.log, log.storage_options)
    oldest = _oldest_version(filesystem)
    table = DeltaTable(log.paths.log, version=snapshot.version, storage_options=dict(log.storage_options))
    commits = commits_since(table, oldest - 1)
    unsigned = snapshot.version - oldest + 1 - len(commits)
    if unsigned:  # then nobody knows which version an entry of the history is
        still = oldest == _oldest_version(filesystem)
        return [f"{unsigned} table versions from {oldest} on do not say what wrote them"] if still else []
    strange = []
    for one in commits:
        if one.metadata is None and one.operation not in _HARMLESS:
            strange.append(f"table version {one.version} was written by somebody else: {one.operation}")
        elif one.metadata is not None and one.metadata.kind not in _KINDS:
            strange.append(f"table version {one.version} is of an unknown kind: {one.metadata.kind}")
    return [*strange[:_SHOWN], *_check_given_once(log, snapshot, filesystem, _not_taken_back(commits))]


def _oldest_version(filesystem: fs.FileSystem) -> int:
    """Return the oldest table version whose commit the Delta log still has."""
    names = [one.base_name.removesuffix(".json") for one in filesystem.get_file_info(fs.FileSelector(_DELTA_LOG))]
    return min(int(name) for name in names if len(name) == _VERSION_DIGITS and name.isdigit())


def _not_taken_back(newest_first: Sequence[Commit]) -> list[Commit]:
    """Return the commits that the newest version stands on, oldest first: a RESTORE goes on from the version that it went back to."""
    found: list[Commit] = []
    below = newest_first[0].version + 1
    for one in newest_first:
        if one.version < below:
            found.append(one)
            below = one.version if one.restored_version is None else one.restored_version + 1
    return found[::-1]


def _check_given_once(log: TopicLog, snapshot: LogSnapshot, filesystem: fs.FileSystem, commits: Sequence[Commit]) -> list[str]:
    """Every append began past all that was appended before, and the next one will: a RESTORE alone takes offsets back.

    What the oldest commit left is taken from its table version, if that can still be read.
    """
    base = commits[0].version
    appends = [one.version for one in commits[1:] if one.metadata is not None and one.metadata.kind == "append"]
    try:
        ends = _log_ends(Files.of(DeltaTable(log.paths.log, version=base, storage_options=dict(log.storage_options)))) if base else {}
    except (DeltaError, OSError):
        ends = {}
    with ThreadPoolExecutor(_COMMITS_AT_A_TIME) as threads:
        added = list(threads.map(lambda version: _appended(filesystem, version), appends))
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


def _appended(filesystem: fs.FileSystem, version: int) -> dict[int, tuple[int, int]]:
    """Return the first and the last offset that a commit added to each partition; nothing when the Delta log has it no more."""
    try:
        with filesystem.open_input_file(f"{_DELTA_LOG}/{version:0{_VERSION_DIGITS}}.json") as file:
            actions = [json.loads(line) for line in file.readall().splitlines() if line.strip()]
    except OSError:
        return {}
    ranges: dict[int, tuple[int, int]] = {}
    for add in (one["add"] for one in actions if "add" in one):
        partition, stats = int(add["partitionValues"]["partition"]), json.loads(add.get("stats") or "{}")
        first, last = (stats.get(least_or_most, {}).get("offset") for least_or_most in ("minValues", "maxValues"))
        if first is None or last is None:
            continue
        known = ranges.get(partition, (first, last))
        ranges[partition] = min(first, known[0]), max(last, known[1])
    return ranges
