"""What a typed table costs: the same updates by a step of ours, and by Spark's MERGE with deletion vectors and without.

A step reads the log, decodes JSON rows to columns, writes them and marks the old ones; its upkeep is counted. MERGE parses the same JSON
and merges it by key. The better of the two MERGEs counts.

| keys | updates | at least |
|---|---|---|
| 400,000 | 200,000, at random | 4× |
| 4,000,000 | 200,000, at random | 5× |
| 4,000,000 | 200, at random | 20× |

Without deletion vectors a step of ours writes the files again that lose rows: at least 3× faster than MERGE without them. A table is read
by Polars and by Spark with vectors and without, after the updates and after upkeep.
"""

from __future__ import annotations

import tempfile
import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.sql import functions as F

from benchmarks.measure import WHOLE, Scale, headline, report
from lastword import LogDir, spark_session
from lastword.change_data.columns.connect_schema import columns_of_ddl
from lastword.change_data.columns.table_columns import TableColumns
from lastword.storage.tables.table import MaterializedTable
from lastword.storage.tables.table_options import TableOptions
from lastword.storage.tables.table_rows import TableLayout

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from lastword import ArrowTopic

_REWRITING_GOAL: Final = 3
#: Keys of the table, updates of a step, how often, and the goal.
_SIZES: Final = ((400_000, 200_000, 10, 4), (4_000_000, 200_000, 5, 5), (4_000_000, 200, 10, 20))
#: So many updates of a step are few: its table is read as it was.
_FEW: Final = 1_000
_DDL: Final = "id bigint, name string, price decimal(18,2), note string, at timestamp"
_COLUMNS: Final = TableColumns(key=columns_of_ddl("id bigint"), value=columns_of_ddl(_DDL))
_APPEND_ROWS: Final = 500_000


def run(scale: Scale = WHOLE) -> None:
    """Measure and print everything; minutes."""
    spark = spark_session("lastword-bench", settings={"spark.log.level": "ERROR", "spark.driver.memory": "6g"})
    reads: list[list[str]] = []
    rows = [_measure(spark, scale, size, reads) for size in scale.sizes(_SIZES)]
    columns = [
        "keys",
        "updates",
        "MERGE s",
        "MERGE with vectors s",
        "ours s",
        "of it upkeep s",
        "times faster",
        "goal",
        "ours without vectors s",
    ]
    report("a typed table", rows, columns)
    report("reading it whole, s", reads, ["keys", "table", "Polars, updated", "after upkeep", "Spark, updated", "after upkeep"])


def _measure(spark: SparkSession, scale: Scale, size: tuple[int, int, int, int], reads: list[list[str]]) -> list[str]:
    """Return the row of a size, and add those of its reads."""
    chance, keys, updates = np.random.default_rng(7), scale.rows(size[0]), scale.rows(size[1], 2)
    turns, goal = size[2:]
    with tempfile.TemporaryDirectory() as folder:
        topic = LogDir(f"{folder}/logs").create_topic("t", partitions=4, config={"cleanup.policy": "compact"})
        for begin in range(0, keys, _APPEND_ROWS):
            topic.append(_rows(np.arange(begin, min(keys, begin + _APPEND_ROWS)), chance))
        ours, rewriting = (
            MaterializedTable(topic.log, f"{folder}/{name}", lambda: TableLayout(columns=_COLUMNS), options, {})
            for name, options in (("ours", TableOptions()), ("rewriting", TableOptions(deletion_vectors=False)))
        )
        ours.step()
        rewriting.step()
        theirs = {name: _merged_table(spark, topic, f"{folder}/{name}", name) for name in ("plain", "vectors")}
        seconds: dict[str, list[float]] = {"plain": [], "vectors": [], "ours": [], "rewriting": []}
        upkeep = 0.0
        for _ in range(scale.turns(turns) + scale.warm_up(1)):
            changes = _rows(np.unique(chance.integers(0, keys, updates)), chance)
            topic.append(changes)
            frame = spark.createDataFrame(changes).cache()
            frame.count()
            for name, table in theirs.items():
                seconds[name].append(_seconds(lambda table=table, frame=frame: _merge(table, frame)))  # type: ignore[misc]
            began = time.perf_counter()
            ours.step()
            stepped = time.perf_counter()
            ours.upkeep(now_ms=round(time.time() * 1000))
            seconds["ours"].append(time.perf_counter() - began)
            upkeep += time.perf_counter() - stepped
            seconds["rewriting"].append(_seconds(lambda: (rewriting.step(), rewriting.upkeep(now_ms=round(time.time() * 1000)))))
            frame.unpersist()
        if size[1] > _FEW:
            reads += _reads(spark, folder, topic, (ours, rewriting), _rows(np.unique(chance.integers(0, keys, updates)), chance))
        counts = {spark.read.format("delta").load(f"{folder}/{name}").count() for name in seconds}
        assert counts == {keys}, counts  # noqa: S101
    first = scale.warm_up(1)
    means = {name: sum(times[first:]) / len(times[first:]) for name, times in seconds.items()}
    best = min(("plain", "vectors"), key=lambda name: means[name])
    headline(f"a table of {keys:,} keys, {updates:,} updates", "MERGE", seconds[best][first:], seconds["ours"][first:], goal=goal)
    plain, rewritten = seconds["plain"][first:], seconds["rewriting"][first:]
    headline(f"the same without deletion vectors, {keys:,} keys, {updates:,} updates", "MERGE", plain, rewritten, goal=_REWRITING_GOAL)
    figures = [f"{means[name]:.3f}" for name in ("plain", "vectors", "ours")]
    share = [f"{upkeep / len(seconds['ours']):.3f}", f"{means[best] / means['ours']:.1f}", f"≥ {goal}"]
    return [f"{keys:,}", f"{updates:,}", *figures, *share, f"{means['rewriting']:.3f}"]


def _reads(
    spark: SparkSession, folder: str, topic: ArrowTopic, tables: tuple[MaterializedTable, MaterializedTable], changes: pa.Table
) -> list[list[str]]:
    """Return how long both tables are read by Polars and by Spark, when updates have come, and after upkeep of all that there is to do."""
    topic.append(changes)
    found: dict[str, list[str]] = {"ours": ["with vectors"], "rewriting": ["without"]}
    for table in tables:
        table.step()
    for is_kept in (False, True):
        for name, table in zip(found, tables, strict=True):
            while is_kept and table.upkeep(now_ms=round(time.time() * 1000)).merged_files:
                pass
            path = f"{folder}/{name}"
            polars = min(_seconds(lambda path=path: pl.scan_delta(path).select(pl.all().count()).collect()) for _ in range(3))  # type: ignore[misc]
            every = min(_seconds(lambda path=path: _read_by_spark(spark, path)) for _ in range(3))  # type: ignore[misc]
            found[name] += [f"{polars:.2f}", f"{every:.2f}"]
    keys = f"{DeltaTable.forPath(spark, f'{folder}/ours').toDF().count():,}"
    return [[keys, name, before, after, spark_before, spark_after] for name, before, spark_before, after, spark_after in found.values()]


def _read_by_spark(spark: SparkSession, path: str) -> None:
    """Read every column of every row."""
    frame = spark.read.format("delta").load(path)
    frame.select([F.count(name) for name in frame.columns]).collect()


def _rows(ids: Any, chance: np.random.Generator) -> pa.Table:
    """Return changes of some keys: key and value, JSON as an append makes it canonical."""
    number = pl.Series("id", ids).cast(pl.String)
    price = pl.Series(chance.integers(0, 10**8, len(ids)))
    cents = (price % 100).cast(pl.String).str.zfill(2)
    value = (
        '{"id":' + number + ',"name":"customer number ' + number + '","price":"' + (price // 100).cast(pl.String) + "." + cents
        + '","note":"' + pl.Series(["some words that stand in every row of the table"]).new_from_index(0, len(ids))
        + '","at":"2026-03-01T08:30:00.000000Z"}'
    )  # fmt: skip
    return (
        pl.DataFrame({"key": '{"id":' + number + "}", "value": value})
        .to_arrow()
        .cast(pa.schema([("key", pa.string()), ("value", pa.string())]))
    )


def _merged_table(spark: SparkSession, topic: ArrowTopic, path: str, name: str) -> DeltaTable:
    """Return a plain Delta table of the rows of a topic."""
    values = spark.read.format("delta").load(topic.log.paths.log).select(F.col("value").cast("string").alias("value"))
    rows = values.select(F.from_json("value", _DDL).alias("row")).select("row.*").repartition(4, "id")
    rows.write.format("delta").option("delta.enableDeletionVectors", str(name == "vectors").lower()).save(path)
    return DeltaTable.forPath(spark, path)


def _merge(table: DeltaTable, changes: DataFrame) -> None:
    rows = changes.select(F.from_json("value", _DDL).alias("row")).select("row.*").alias("change")
    merge = table.alias("target").merge(rows, "target.id = change.id")
    merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()


def _seconds(thing: Callable[[], object]) -> float:
    began = time.perf_counter()
    thing()
    return time.perf_counter() - began
