"""What others do to a materialized table: it goes on, or one error says what happened; and a rebuild is right in each of these states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest
from deltalake import DeltaTable

from lastword import UserError
from lastword.storage.key_search import WantedKey
from lastword.streaming.reading.materialize import TableShape, materialize_table
from lastword.streaming.reading.tail import TailOptions
from lastword.streaming.reading.target import Target
from tests.clocks import at
from tests.pictures import T0, rows, text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from lastword import LogDir, SparkTopic

_ONCE = {"availableNow": True}
_MAPPED = "ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
_VECTORS = "ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"

#: What keeps the rows; one after the other on one table, with a step after each.
_HARMLESS = (
    "OPTIMIZE {t}",
    "OPTIMIZE {t} ZORDER BY (offset)",
    "VACUUM {t}",
    "ALTER TABLE {t} SET TBLPROPERTIES ('delta.deletedFileRetentionDuration' = 'interval 2 days', 'team' = 'they')",
    "COMMENT ON TABLE {t} IS 'prices'",
    "ALTER TABLE {t} CLUSTER BY (offset)",
    _VECTORS,
    "REORG TABLE {t} APPLY (PURGE)",
    _MAPPED,
)
_ADDED = "ALTER TABLE {t} ADD COLUMNS (checked boolean)"
#: What does harm: each on the table that a rebuild left after the one before; the operation that the error names.
_HARMFUL: Final[Mapping[tuple[str, ...], str]] = {
    ("DELETE FROM {t} WHERE CAST(key AS STRING) = 'a'",): r"version \d+ \(DELETE\) changed its rows",
    ("UPDATE {t} SET value = CAST('x' AS BINARY)",): r"\(UPDATE\) changed its rows",
    ("INSERT INTO {t} SELECT * FROM {t} LIMIT 1",): r"\(WRITE\) changed its rows",
    ("INSERT OVERWRITE {t} SELECT * FROM {t} WHERE false",): r"\(WRITE\) changed its rows",
    ("MERGE INTO {t} t USING (SELECT 0 AS p) s ON t.partition = s.p WHEN MATCHED THEN DELETE",): r"\(MERGE\) changed its rows",
    ("TRUNCATE TABLE {t}",): r"\((TRUNCATE|DELETE)\) changed its rows",
    (_VECTORS, "DELETE FROM {t} WHERE CAST(key AS STRING) = 'a'"): r"\(DELETE\) changed its rows",
    (_MAPPED, "ALTER TABLE {t} RENAME COLUMN value TO word"): "column value is not there",
    (_MAPPED, "ALTER TABLE {t} DROP COLUMN headers"): "column headers is not there",
    ("ALTER TABLE {t} SET TBLPROPERTIES ('delta.appendOnly' = 'true')",): "takes no steps with delta.appendOnly = true",
    (
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.setTransactionRetentionDuration' = 'interval 1 day')",
    ): "takes no steps with delta.setTransactionRetentionDuration = interval 1 day",
    ("ALTER TABLE {t} ADD CONSTRAINT early CHECK (offset < 1000)",): "takes no steps with delta.constraints.early",
}


@pytest.fixture
def topic(logs: LogDir[SparkTopic]) -> SparkTopic:
    """Return a compacted topic of one partition."""
    return at(T0, logs).create_topic("fruit", config={"cleanup.policy": "compact"})


def catch_up(topic: SparkTopic, location: Path, **options: Any) -> None:
    """Materialise all that there is, and stop."""
    topic.materialize(str(location), trigger=_ONCE, **options).awaitTermination()


def shown(spark: SparkSession, location: Path) -> str:
    """Return a table as a picture, by key."""
    found = spark.read.format("delta").load(str(location)).collect()
    return " ".join(sorted(f"{text(row['key'])}={text(row['value'])}" for row in found))


def run(spark: SparkSession, location: Path, *statements: str) -> None:
    """Do to a table what somebody else does."""
    for statement in statements:
        spark.sql(statement.format(t=f"delta.`{location}`")).collect()


@pytest.mark.parametrize("statements", [_HARMLESS[::3], pytest.param(_HARMLESS, marks=pytest.mark.torture)], ids=["some", "all"])
def test_what_keeps_the_rows_is_looked_past(topic: SparkTopic, spark: SparkSession, tmp_path: Path, statements: Sequence[str]) -> None:
    """Whatever others do to files, settings and columns of their own: the steps go on, by MERGE or not, and a new column is null."""
    location = tmp_path / "target"
    at(T0, topic).append(rows("a=1 b=1 c=1"))
    catch_up(topic, location)
    run(spark, location, _ADDED)
    for number, statement in enumerate(statements):
        run(spark, location, statement)
        at(T0, topic).append(rows(f"a={number} d={number}"))
        target = Target(str(location), topic_id=topic.log.decisions().topic_id, rewrite_share=number % 2 * 10**9)
        started = materialize_table(
            topic.log, spark, target, options=TailOptions(), shape=TableShape(), trigger=_ONCE, rebuild=False, clock_ms=lambda: T0
        )
        started.awaitTermination()
        assert shown(spark, location) == f"a={number} b=1 c=1 d={number}", statement
    assert spark.read.format("delta").load(str(location)).where("checked IS NOT NULL").isEmpty()


@pytest.mark.parametrize("named", [list(_HARMFUL)[::5], pytest.param(list(_HARMFUL), marks=pytest.mark.torture)], ids=["some", "all"])
def test_what_changes_rows_is_named_and_a_rebuild_is_right(
    topic: SparkTopic, spark: SparkSession, tmp_path: Path, named: Sequence[tuple[str, ...]]
) -> None:
    """One error that says the operation and the version, again at each start; nothing is put on top of it."""
    location = tmp_path / "target"
    at(T0, topic).append(rows("a=1 b=1 c=1"))
    catch_up(topic, location)
    for number, statements in enumerate(named):
        run(spark, location, *statements)
        at(T0, topic).append(rows(f"b={number}"))
        version = DeltaTable(location).version()
        for _ in range(2):
            with pytest.raises(UserError, match=rf"{_HARMFUL[statements]}.*--rebuild"):
                catch_up(topic, location)
        assert DeltaTable(location).version() == version, statements
        catch_up(topic, location, rebuild=True)
        assert shown(spark, location) == f"a=1 b={number} c=1", statements
    at(T0, topic).append(rows("d=1"))
    catch_up(topic, location)
    assert shown(spark, location).endswith("d=1")


def test_a_restore_is_noticed_and_one_that_takes_harm_back_is_none(topic: SparkTopic, spark: SparkSession, tmp_path: Path) -> None:
    """An older version is not what the position says; the version that the last step left is."""
    location = tmp_path / "target"
    for picture in ("a=1", "b=1", "c=1"):
        at(T0, topic).append(rows(picture))
        catch_up(topic, location)
    run(spark, location, "DELETE FROM {t} WHERE offset = 0", "RESTORE TABLE {t} TO VERSION AS OF 2")
    catch_up(topic, location)
    run(spark, location, "RESTORE TABLE {t} TO VERSION AS OF 0")
    at(T0, topic).append(rows("d=1"))
    with pytest.raises(UserError, match=r"version 5 \(RESTORE\) changed its rows"):
        catch_up(topic, location)
    catch_up(topic, location, rebuild=True)
    assert shown(spark, location) == "a=1 b=1 c=1 d=1"


def test_the_position_outlives_the_commits_of_the_delta_log(topic: SparkTopic, spark: SparkSession, tmp_path: Path) -> None:
    """Others commit, and the Delta log is cut: it goes on if the files are the same, or else says that it cannot know."""
    location = tmp_path / "target"
    at(T0, topic).append(rows("a=1 b=1"))
    catch_up(topic, location)
    at(T0, topic).append(rows("a=2"))
    catch_up(topic, location)
    for number in range(24):
        DeltaTable(location).alter.set_table_properties({"delta.logRetentionDuration": f"interval {number + 31} days"})
    cut(location)
    at(T0, topic).append(rows("c=1"))
    catch_up(topic, location)
    assert shown(spark, location) == "a=2 b=1 c=1"

    run(spark, location, "OPTIMIZE {t}", "VACUUM {t}")
    cut(location)
    with pytest.raises(UserError, match=r"version \d+ is not in the Delta log any more.*--rebuild"):
        catch_up(topic, location)
    for path in location.glob("_lastword/*"):
        path.unlink()
    with pytest.raises(UserError, match="bootstrap it anew with rebuild=True"):
        catch_up(topic, location)
    catch_up(topic, location, rebuild=True)
    assert shown(spark, location) == "a=2 b=1 c=1"


def test_a_table_in_the_place_of_a_target(topic: SparkTopic, spark: SparkSession, tmp_path: Path) -> None:
    """It is refused until a rebuild is asked for, which replaces it: rows, columns and partitioning; a stranger's is never replaced."""
    location = tmp_path / "target"
    at(T0, topic).append(rows("a=1"))
    catch_up(topic, location)
    for path in sorted(location.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    spark.range(4).selectExpr("id AS key", "id % 2 AS half").write.format("delta").partitionBy("half").save(str(location))
    with pytest.raises(UserError, match="this topic was not materialised into it"):
        catch_up(topic, location)
    catch_up(topic, location, rebuild=True)
    assert shown(spark, location) == "a=1"
    spark.range(3).write.format("delta").save(str(tmp_path / "theirs"))
    with pytest.raises(UserError, match="this topic was not materialised into it"):
        catch_up(topic, tmp_path / "theirs", rebuild=True)
    catch_up(topic, location, rebuild=True, history=True)
    assert "_valid_from" in spark.read.format("delta").load(str(location)).columns


def cut(location: Path) -> None:
    """Let the commits of a Delta log expire: a checkpoint says all that they did."""
    table = DeltaTable(location)
    table.create_checkpoint()
    for path in (location / "_delta_log").glob("*.json"):
        if path.name[0].isdigit() and int(path.stem.split(".")[0]) < table.version():
            path.unlink()


def test_a_target_whose_keys_somebody_dropped_has_no_row_of_a_key(spark: SparkSession, tmp_path: Path) -> None:
    """Nothing is deleted there, and no commit made."""
    spark.range(3).write.format("delta").save(str(tmp_path / "target"))
    target = Target(str(tmp_path / "target"), topic_id="id")
    assert target.erase(spark, WantedKey(key=b"1")) == 0
    assert DeltaTable(tmp_path / "target").version() == 0
