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

from storage.schema import LOG_COLUMNS
from storage.snapshot import CommitMetadata

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from storage.topic_log import TopicLog

#: Commits that change no record and so may stand in the history beside ours.
_HARMLESS: Final = ("CREATE TABLE", "VACUUM START", "VACUUM END", "OPTIMIZE")
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
    """Check one topic; runs two Spark jobs over narrow columns."""
    snapshot, decisions = log.snapshot(), log.decisions()
    rows = spark.read.format("delta").option("versionAsOf", snapshot.version).load(log.paths.log)
    problems = [
        *_check_columns(rows),
        *_check_places(snapshot.files.partition.tolist(), decisions.partitions),
        *_check_slices(log),
        *_check_offsets(rows),
        *_check_files(rows),
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


def _check_history(log: TopicLog) -> list[str]:
    table = DeltaTable(log.paths.log)
    strange = [
        f"table version {entry['version']} was written by somebody else: {entry.get('operation')}"
        for entry in table.history()
        if CommitMetadata.from_json(entry.get("userMetadata")) is None and entry.get("operation") not in _HARMLESS
    ]
    return strange[:_SHOWN]
