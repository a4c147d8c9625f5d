"""The checker of the invariants, for users and, after every storage test, for us.

It trusts nothing that the writer trusted: offsets are read from the files and compared with the statistics, the history of the table is
read for commits that are not ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from deltalake import DeltaTable
from pyspark.sql import Window
from pyspark.sql import functions as F

from compaction.producers import Control
from storage.envelope import by_partition
from storage.schema import LOG_COLUMNS
from storage.snapshot import CommitMetadata

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from storage.ledger import Decisions
    from storage.topic_log import TopicLog

#: Commits that change no record and so may stand in the history beside ours.
_HARMLESS: Final = ("CREATE TABLE", "VACUUM START", "VACUUM END", "OPTIMIZE", "RESTORE")
_KINDS: Final = ("append", "clean", "retention", "merge")
_TRANSACTION: Final = ("partition", "producer_id", "txn_first_offset")
_SHOWN: Final = 5


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
    """Check one topic; runs a few Spark jobs over narrow columns."""
    snapshot, decisions = log.snapshot(), log.decisions()
    rows = spark.read.format("delta").option("versionAsOf", snapshot.version).load(log.paths.log)
    log.look_back()
    decisions = log.decisions()
    problems = [
        *_check_columns(rows),
        *_check_places(snapshot.files.partition.tolist(), decisions.partitions),
        *_check_slices(log),
        *_check_offsets(rows),
        *_check_files(rows),
        *_check_decisions(decisions, snapshot.log_end_offsets(decisions.partitions)),
        *_check_clean_section(rows, decisions),
        *_check_history(log),
    ]
    return VerifyReport(table_version=snapshot.version, record_count=int(snapshot.files.record_count.sum()), problems=tuple(problems))


def _check_columns(rows: DataFrame) -> list[str]:
    return [] if tuple(rows.columns) == LOG_COLUMNS else [f"the log table has the columns {rows.columns}, expected {list(LOG_COLUMNS)}"]


def _check_places(found: list[int], partitions: int) -> list[str]:
    strange = sorted({partition for partition in found if not 0 <= partition < partitions})
    return [f"records in partitions {strange}, but the topic has partitions 0 to {partitions - 1}"] if strange else []


def _check_slices(log: TopicLog) -> list[str]:
    """Slices of a partition are disjoint and ordered, and no record lies below the label of its segment or slice."""
    files = log.snapshot().files
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


def _check_offsets(rows: DataFrame) -> list[str]:
    doubled = rows.groupBy("partition", "offset").count().where("count > 1").orderBy("partition", "offset").limit(_SHOWN).collect()
    return [f"partition {row['partition']}: offset {row['offset']} stands {row['count']} times" for row in doubled]


def _check_files(rows: DataFrame) -> list[str]:
    """Offsets ascend inside each file, in the order in which it is read."""
    placed = rows.select(F.input_file_name().alias("file"), F.monotonically_increasing_id().alias("row"), "partition", "offset")
    before = F.lag("offset").over(Window.partitionBy("file").orderBy("row"))
    wrong = placed.withColumn("before", before).where(F.col("offset") <= F.col("before")).limit(_SHOWN).collect()
    return [f"partition {row['partition']}: offset {row['offset']} stands after {row['before']} in {row['file']}" for row in wrong]


def _check_decisions(decisions: Decisions, log_ends: list[int]) -> list[str]:
    """Checkpoints and log starts lie in the log, so no offset that a decision speaks of will be given again."""
    problems = []
    for partition, end in enumerate(log_ends):
        start, checkpoint = decisions.log_start_offset(partition), decisions.cleaner_checkpoint(partition)
        if start > end:
            problems.append(f"partition {partition}: the log start offset {start} lies past the log end {end}")
        if checkpoint is not None and checkpoint > end:
            problems.append(f"partition {partition}: the cleaner checkpoint {checkpoint} lies past the log end {end}")
    return problems[:_SHOWN]


def _check_clean_section(rows: DataFrame, decisions: Decisions) -> list[str]:
    """Below the checkpoint a key stands once, nothing is aborted, and every marker waits for its data or for its horizon."""
    checkpoints = [decisions.cleaner_checkpoint(partition) or 0 for partition in range(decisions.partitions)]
    starts = [decisions.log_start_offset(partition) for partition in range(decisions.partitions)]
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
    ends = rows.where(F.col("control").isin(Control.COMMIT.value, Control.ABORT.value) & F.col("txn_first_offset").isNotNull())
    if ends.isEmpty():
        return problems
    aborted = ends.where(F.col("control") == Control.ABORT.value).select(*_TRANSACTION).distinct()
    problems += [
        f"partition {row['partition']}: offset {row['offset']} of an aborted transaction stands below the cleaner checkpoint"
        for row in data.join(aborted, list(_TRANSACTION), "left_semi").limit(_SHOWN).collect()
    ]
    pinned = rows.where(F.col("control").isNull() & F.col("txn_first_offset").isNotNull()).select(*_TRANSACTION)
    marked = clean.where(F.col("control").isin(Control.COMMIT.value, Control.ABORT.value) & F.col("delete_horizon").isNull())
    problems += [
        f"partition {row['partition']}: the marker at offset {row['offset']} has neither a record of its transaction nor a delete horizon"
        for row in marked.join(pinned, list(_TRANSACTION), "left_anti").limit(_SHOWN).collect()
    ]
    return problems


def _check_history(log: TopicLog) -> list[str]:
    table = DeltaTable(log.paths.log, storage_options=dict(log.storage_options))
    strange = []
    for entry in table.history():
        metadata, operation = CommitMetadata.from_json(entry.get("userMetadata")), entry.get("operation")
        if metadata is None and operation not in _HARMLESS:
            strange.append(f"table version {entry.get('version')} was written by somebody else: {operation}")
        elif metadata is not None and metadata.kind not in _KINDS:
            strange.append(f"table version {entry.get('version')} is of an unknown kind: {metadata.kind}")
    return strange[:_SHOWN]
