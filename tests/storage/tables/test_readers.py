"""Spark and delta-rs as readers and writers of a kept table: what they see, and what a step finds after them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from lastword.compaction.errors import UserError
from lastword.storage.tables.table_options import TableOptions
from tests.storage.tables.kept import Kept, rows_of
from tests.storage.tables.readers import READERS
from tests.storage.tables.strangers import commit_path, versions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WIDE = "id bigint, n bigint, text string, price decimal(10,2), day date, at timestamp, local timestamp_ntz, good boolean, d double"
_ROW = {
    "text": "é",
    "price": "1.50",
    "day": "0001-01-01",
    "at": "9999-12-31T23:59:59.999999Z",
    "local": "0001-01-01T00:00:00",
    "good": True,
    "d": 0.0,
}


def _wide(folder: Path, *, history: bool = False) -> Kept:
    """Return a table of all types, some rows of which are marked."""
    kept = Kept(folder, value_ddl=_WIDE, history=history)
    kept.append(*((number, {"id": number, "n": 0, **_ROW}) for number in range(20)))
    kept.table.step()
    kept.append((1, None), (2, {"id": 2, "n": 2, **_ROW}), ('{"id": 3}', {"id": 3, "n": 33}))
    kept.table.step()
    return kept


_EXPECTED = sorted([(number, 0) for number in range(20) if number not in {1, 2}] + [(2, 2), (3, 33)], key=repr)


def _spark_rows(spark: SparkSession, location: str) -> list[tuple[Any, ...]]:
    return sorted(((row["id"], row["n"]) for row in spark.read.format("delta").load(location).collect()), key=repr)


def test_spark_reads_a_kept_table(spark: SparkSession, tmp_path: Path) -> None:
    """Whole, counted, filtered by statistics, and at an older version."""
    kept = _wide(tmp_path)
    frame = spark.read.format("delta").load(kept.location)
    assert _spark_rows(spark, kept.location) == _EXPECTED
    assert frame.count() == 20
    for condition in ("d = 0.0", "at >= '9999-12-31'", "day < '1000-01-01'", "price = 1.5", "good", "text = 'é'", "local < '1000-01-01'"):
        assert frame.where(condition).count() == 19, condition
    assert frame.agg({"n": "max"}).collect()[0][0] == 33
    assert spark.read.format("delta").option("versionAsOf", 0).load(kept.location).count() == 20


@pytest.mark.parametrize("vectors", [True, False])
def test_the_changes_of_a_table_are_those_of_its_rows(spark: SparkSession, tmp_path: Path, *, vectors: bool) -> None:
    """Spark's batch and stream of the change data feed, and delta-rs' `load_cdf`: exactly what a step did (TABLES B13)."""
    kept = Kept(tmp_path, options=TableOptions(deletion_vectors=vectors, properties={"delta.enableChangeDataFeed": "true"}))
    kept.fill(5)
    kept.append((1, None), (2, 2), (9, 9))
    kept.table.step()
    expected = [("delete", 1, 0), ("delete", 2, 0), ("insert", 2, 2), ("insert", 9, 9)]
    batch = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 1).load(kept.location)
    assert _changes(batch.collect()) == expected
    rows = pa.table(DeltaTable(kept.location).load_cdf(starting_version=1).read_all()).to_pylist()
    assert _changes(rows) == expected
    stream = spark.readStream.format("delta").option("readChangeFeed", "true").option("startingVersion", 1).load(kept.location)
    query = stream.writeStream.format("memory").queryName(f"changes_{vectors}").trigger(availableNow=True).start()
    query.awaitTermination()
    assert _changes(spark.table(f"changes_{vectors}").collect()) == expected


def _changes(rows: list[Any]) -> list[tuple[str, int, int]]:
    """Return changes without the rows that come back unchanged, as after copy on write."""
    found = [(row["_change_type"], row["id"], row["n"]) for row in rows]
    for kind, number, n in list(found):
        if kind == "delete" and ("insert", number, n) in found:
            found.remove(("insert", number, n))
            found.remove(("delete", number, n))
    return sorted(found)


@pytest.mark.parametrize("history", [False, True])
def test_what_spark_writes_again_is_stepped_on(spark: SparkSession, tmp_path: Path, *, history: bool) -> None:
    """OPTIMIZE, OPTIMIZE ZORDER, REORG PURGE and VACUUM change no rows; then vectors, their absence, and all types are read again."""
    kept = _wide(tmp_path, history=history)
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    number = 100
    for statement in ("OPTIMIZE {}", "OPTIMIZE {} ZORDER BY (n)", "REORG TABLE {} APPLY (PURGE)", "VACUUM {} RETAIN 0 HOURS"):
        before = set(kept.rows())
        spark.sql(statement.format(f"delta.`{kept.location}`"))
        assert set(kept.rows()) == before
        number += 1
        kept.append((5, {"id": 5, "n": number, **_ROW}), (6, None), (number, {"id": number, "n": 1, **_ROW}))
        engine = kept.table if number % 2 else kept.engine()
        engine.step()
        current = {(one, n) for one, n, is_current in kept.rows("id n _is_current") if is_current} if history else set(kept.rows())
        assert {(5, number), (number, 1)} <= current
        assert {one for one, _ in current} == {one for one in range(20) if one not in {1, 6}} | set(range(101, number + 1))
    rebuilt = kept.engine(TableOptions(deletion_vectors=False))
    kept.append((7, {"id": 7, "n": 7, **_ROW}))
    rebuilt.step()
    times = [row for row in kept.rows("n at local day") if row[1] is not None]
    assert {(str(at)[:19], str(local), str(day)) for _, at, local, day in times} == {
        ("9999-12-31 23:59:59", "0001-01-01 00:00:00", "0001-01-01")
    }


@pytest.mark.parametrize("statement", ["UPDATE {} SET n = 7 WHERE id = 5", "DELETE FROM {} WHERE id = 5"])
def test_what_spark_changes_ends_the_steps(spark: SparkSession, tmp_path: Path, statement: str) -> None:
    """By a vector of its own; taken back by a RESTORE, the process that knows the files goes on."""
    kept = _wide(tmp_path)
    version = versions(kept.location)[-1]
    spark.sql(statement.format(f"delta.`{kept.location}`"))
    kept.append((5, {"id": 5, "n": 9, **_ROW}))
    for engine in (kept.table, kept.engine()):
        with pytest.raises(UserError, match=r"changed by somebody else: (UPDATE|DELETE)"):
            engine.step()
    spark.sql(f"RESTORE TABLE delta.`{kept.location}` TO VERSION AS OF {version}")
    kept.table.step()
    assert (5, 9) in kept.rows()
    assert len(kept.rows()) == 20


def test_a_checkpoint_of_spark_is_read(spark: SparkSession, tmp_path: Path) -> None:
    """With vectors in its adds, and the commits below it cleaned away; files of several parts, too."""
    kept = _wide(tmp_path)
    for parts in (1, 2):
        spark.conf.set("spark.databricks.delta.checkpoint.partSize", "1" if parts == 2 else "1000000")
        spark.sql(f"ALTER TABLE delta.`{kept.location}` SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
        spark.sql(f"OPTIMIZE delta.`{kept.location}`")
        kept.append((5, {"id": 5, "n": 50 + parts, **_ROW}))
        kept.table.step()
        spark.sql(f"ALTER TABLE delta.`{kept.location}` SET TBLPROPERTIES ('a' = '{parts}')")
        for version in versions(kept.location)[:-2]:
            commit_path(kept.location, version).unlink()
        kept.append((8, {"id": 8, "n": 80 + parts, **_ROW}))
        kept.engine().step()
        for name, read in READERS.items():
            found = rows_of(read(kept.location))
            assert {(5, 50 + parts), (8, 80 + parts)} <= set(found), name
            assert len(found) == 20, name
    assert any(".checkpoint.0000000001." in path.name for path in Path(kept.location, "_delta_log").iterdir())
    spark.conf.unset("spark.databricks.delta.checkpoint.partSize")
