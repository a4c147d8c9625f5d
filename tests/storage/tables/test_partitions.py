"""Partition columns of a table: who reads it, what moves between partitions, and values that Delta cannot hold."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from deltalake import DeltaTable

from lastword.compaction.errors import UserError
from lastword.storage.tables.table_options import TableLimits, TableOptions
from lastword.storage.tables.upkeep import MergeLimits
from tests.pictures import T0
from tests.storage.tables.kept import Kept, rows_of
from tests.storage.tables.readers import READERS, read_duckdb

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DDL = "id bigint, n bigint, land string, day date, good boolean, price decimal(10,2)"
_ALL = ("land", "day", "n", "good", "price")


def _row(number: int, land: str | None = "NO", **values: Any) -> tuple[int, dict[str, Any]]:
    return number, {"id": number, "n": 0, "land": land, "day": "2026-11-28", "good": True, "price": "1.50", **values}


def _kept(folder: Path, *names: str, **options: Any) -> Kept:
    return Kept(folder, value_ddl=_DDL, options=TableOptions(partition_by=names, **options))


def _values(kept: Kept) -> list[dict[str, str | None]]:
    """Return the partition values of the files, as the Delta log has them."""
    commits = sorted(Path(kept.location, "_delta_log").glob("*.json"))
    actions = [json.loads(line) for commit in commits for line in commit.read_text().splitlines()]
    return [action["add"]["partitionValues"] for action in actions if "add" in action]


@pytest.mark.parametrize("names", [("land",), _ALL], ids=["text", "all types"])
@pytest.mark.parametrize("vectors", [True, False], ids=["deletion vectors", "copy on write"])
def test_each_reader_sees_the_rows_of_a_partitioned_table(
    spark: SparkSession, tmp_path: Path, names: tuple[str, ...], *, vectors: bool
) -> None:
    """With null, odd characters, negative numbers; filtered by a partition column, too; Spark, Polars, delta-rs and DuckDB."""
    kept = _kept(tmp_path, *names, deletion_vectors=vectors)
    lands = ("NO", "a/b=c d%20é", None, " ", "null", "__HIVE_DEFAULT_PARTITION__x")
    kept.append(*(_row(number, land, n=-number, day=f"000{number + 1}-01-01") for number, land in enumerate(lands)))
    kept.append(_row(6, good=None, price="-0.05", day=None))
    kept.table.step()
    kept.append(_row(0, "SE"), (4, None))
    kept.table.step()
    expected = [(0, "SE"), (1, lands[1]), (2, None), (3, " "), (5, lands[5]), (6, "NO")]
    for name, read in READERS.items():
        rows = read(kept.location)
        assert rows_of(rows, "id land") == sorted(expected, key=repr), name
        assert rows_of(rows, "id price")[-1][1].as_tuple() == pl.Series(["-0.05"]).cast(pl.Decimal(10, 2))[0].as_tuple(), name
    frame = spark.read.format("delta").load(kept.location)
    assert sorted(((row["id"], row["land"]) for row in frame.collect()), key=repr) == sorted(expected, key=repr)
    assert [row["id"] for row in frame.where("land = 'SE'").collect()] == [0]
    assert [row["id"] for row in frame.where("land is null").collect()] == [2]
    assert read_duckdb(kept.location, "SELECT id FROM {} WHERE land = 'SE'").to_pylist() == [{"id": 0}]
    assert pl.scan_delta(kept.location).filter(pl.col("land") == "SE").collect()["id"].to_list() == [0]


def test_a_row_moves_to_another_partition(tmp_path: Path) -> None:
    """It leaves the file of the one and comes into a file of the other, in one commit; each file is of one partition."""
    kept = _kept(tmp_path, "land")
    kept.append(_row(1, "NO"), _row(2, "NO"), _row(3, "SE"))
    kept.table.step()
    assert _values(kept) == [{"land": "NO"}, {"land": "SE"}]
    kept.append(_row(1, "SE", n=1))
    done = kept.table.step()
    assert done is not None
    assert (done.written_rows, done.deleted_rows) == (1, 1)
    assert kept.rows("id land n") == [(1, "SE", 1), (2, "NO", 0), (3, "SE", 0)]
    assert kept.table.rebuild().written_rows == 3
    assert sorted(map(str, _values(kept)[-2:])) == ["{'land': 'NO'}", "{'land': 'SE'}"]


def test_the_files_that_others_write_have_no_partition_columns(spark: SparkSession, tmp_path: Path) -> None:
    """OPTIMIZE of Spark and of delta-rs leave them out, a column of the key too: keys are found in them all the same, and erased."""
    kept = Kept(tmp_path, key_ddl="id bigint, land string", value_ddl=_DDL, options=TableOptions(partition_by=("land",)))

    def put(number: int, land: str, n: int | None) -> None:
        key = json.dumps({"id": number, "land": land}, separators=(",", ":"))
        kept.append((key, None if n is None else _row(number, land, n=n)[1]))
        kept.table.step()

    for number in range(4):
        put(number, "NO", 0)
        put(number, "SE", 0)
    spark.sql(f"OPTIMIZE delta.`{kept.location}`")
    put(1, "NO", 7)
    put(2, "SE", None)
    DeltaTable(kept.location).optimize.compact()
    put(0, "SE", 8)
    left = [(number, land, 0) for number in range(4) for land in ("NO", "SE")]
    left = [row for row in left if row[:2] not in {(1, "NO"), (2, "SE"), (0, "SE")}] + [(1, "NO", 7), (0, "SE", 8)]
    assert kept.rows("id land n") == sorted(left, key=repr)
    erased = kept.table.erase(b'{"id":3,"land":"NO"}', kept={})
    assert (erased.rows, erased.left) == (1, ())
    assert kept.rows("id land n") == sorted((row for row in left if row[:2] != (3, "NO")), key=repr)


def test_small_files_are_merged_within_their_partition(tmp_path: Path) -> None:
    """And in the end there is nothing more to merge."""
    kept = _kept(tmp_path, "land", upkeep=MergeLimits(min_files=3))
    for number in range(8):
        kept.append(_row(number, "NO" if number % 2 else "SE"))
        kept.table.step()
    assert kept.table.upkeep(now_ms=T0).merged_files == 8
    assert DeltaTable(kept.location).count() == 8
    assert len(DeltaTable(kept.location).file_uris()) == 2
    assert kept.table.upkeep(now_ms=T0).merged_files == 0


def test_a_history_is_partitioned(tmp_path: Path) -> None:
    """The end of a period is written into the partition of its row."""
    kept = Kept(tmp_path, value_ddl=_DDL, history=True, options=TableOptions(partition_by=("land",), limits=TableLimits(chunk_rows=2)))
    kept.append(_row(1, "NO"), _row(2, "SE"))
    kept.table.step()
    kept.append(_row(1, "SE", n=1), (2, None), time_ms=T0 + 1000)
    kept.table.step()
    found = kept.rows("id land n _is_current")
    assert found == [(1, "NO", 0, False), (1, "SE", 1, True), (2, "SE", 0, False)]


def test_a_name_that_needs_column_mapping_is_a_partition_column(spark: SparkSession, tmp_path: Path) -> None:
    """The Delta log has the values under the stored name."""
    kept = Kept(tmp_path, value_ddl="id bigint, `the land` string", options=TableOptions(partition_by=("the land",)))
    kept.append((1, {"id": 1, "the land": "NO"}), (2, {"id": 2, "the land": None}))
    kept.table.step()
    kept.append((1, {"id": 1, "the land": "SE"}))
    kept.table.step()
    frame = spark.read.format("delta").load(kept.location)
    assert sorted((row["id"], row["the land"]) for row in frame.collect()) == [(1, "SE"), (2, None)]
    assert rows_of(read_duckdb(kept.location), "id") == [(1,), (2,)]


@pytest.mark.parametrize("mode", ["FAILFAST", "PERMISSIVE", "DROPMALFORMED"])
def test_an_empty_text_is_never_null_in_silence(tmp_path: Path, mode: str) -> None:
    """Delta takes an empty partition value for null: an error that names the record, a null that is counted, or a dead letter."""
    kept = _kept(tmp_path, "land", mode=mode)
    kept.append(_row(1, "NO"), _row(2, "SE"))
    kept.table.step()
    kept.append(_row(1, "SE"), _row(2, ""))
    if mode == "FAILFAST":
        with pytest.raises(UserError, match=r'partition 0, offset 3, key \{"id":2\}: column land = "": the table is partitioned by it'):
            kept.table.step()
        assert kept.rows("id land") == [(1, "NO"), (2, "SE")]
        return
    done = kept.table.step()
    assert done is not None
    assert done.misfit_rows == 1
    assert kept.rows("id land") == ([(1, "SE"), (2, None)] if mode == "PERMISSIVE" else [(1, "SE")])
    assert [letter["offset"] for letter in kept.topic.dead_letters().to_pylist()] == ([] if mode == "PERMISSIVE" else [3])


def test_columns_that_a_table_cannot_be_partitioned_by_are_refused_with_those_that_it_can(tmp_path: Path) -> None:
    """One that is not there, a float, bytes, a struct; one given twice; other ones than a table has."""
    topic = Kept(tmp_path, value_ddl="id bigint, d double, land string").topic
    topic.append([{"key": '{"id":1}', "value": '{"id":1,"land":"NO","d":1.5}'}])
    for names in (["nation"], ["d"], ["_key"], ["land", "land"]):
        with pytest.raises(UserError, match=r"partition_by = .*: allowed are .*: id, land, _partition"):
            topic.materialize(str(tmp_path / "x"), schema="id bigint, d double, land string", partition_by=names)
    assert not (tmp_path / "x").exists()
    topic.materialize(str(tmp_path / "x"), schema="id bigint, land string", partition_by="land")
    with pytest.raises(UserError, match=r"is partitioned by \(land\), and \(id\) is asked for: rebuild=True"):
        topic.materialize(str(tmp_path / "x"), schema="id bigint, land string", partition_by="id")
    topic.materialize(str(tmp_path / "x"), schema="id bigint, land string")
    assert topic.materialize(str(tmp_path / "x"), schema="id bigint, land string", partition_by="id", rebuild=True).kind == "rebuild"
    assert DeltaTable(str(tmp_path / "x")).metadata().partition_columns == ["id"]
    assert topic.materialize(str(tmp_path / "x"), schema="id bigint, land string", rebuild=True).kind == "rebuild"
    assert DeltaTable(str(tmp_path / "x")).metadata().partition_columns == ["id"]


def test_a_partition_column_that_the_source_drops_is_null_from_then_on(tmp_path: Path) -> None:
    """As any other one."""
    kept = _kept(tmp_path, "land")
    kept.append(_row(1, "NO"))
    kept.table.step()
    kept.value_ddl = "id bigint, n bigint"
    kept.append((2, 2))
    kept.engine(replace(kept.options, partition_by=())).step()
    assert kept.rows("id land") == [(1, "NO"), (2, None)]


@pytest.mark.parametrize("text", ["é" * 200, "__HIVE_DEFAULT_PARTITION__"])
def test_a_text_that_no_folder_can_be_called_is_a_value_all_the_same(tmp_path: Path, text: str) -> None:
    """File systems take names of up to 255 bytes, and Hive's word for null is one of it; Polars alone does not read such a table."""
    kept = _kept(tmp_path, "land")
    kept.append(_row(1, text), _row(2, "NO"))
    kept.table.step()
    for read in (READERS["delta-rs"], READERS["duckdb"]):
        assert rows_of(read(kept.location), "id land") == [(1, text), (2, "NO")]
    kept.append((2, None))
    kept.table.step()
    assert kept.table.upkeep(now_ms=T0 * 2).deleted_files == 1
    assert list(Path(kept.location, "land=NO").iterdir()) == []


@pytest.mark.parametrize("text", ["NO", "a b", "é", "a/b", "100%", "a=b", "a:b", "a~b", None])
@pytest.mark.parametrize("is_optimized", [False, True])
def test_a_row_that_leaves_a_partition_of_any_name_is_gone_for_each_reader(tmp_path: Path, text: str | None, *, is_optimized: bool) -> None:
    """Also from a file that delta-rs wrote: Polars looks for the vector of a file in such a folder under another path."""
    kept = _kept(tmp_path, "land")
    for begin in (0, 4):
        kept.append(*(_row(number, text) for number in range(begin, begin + 4)))
        kept.table.step()
    if is_optimized:
        DeltaTable(kept.location).optimize.compact()
    kept.append((0, None), _row(1, text, n=1), (5, None))
    kept.table.step()
    expected = [(1, 1), *((number, 0) for number in (2, 3, 4, 6, 7))]
    for name, read in READERS.items():
        assert rows_of(read(kept.location)) == expected, name
    assert kept.table.upkeep(now_ms=T0).deleted_files == 0
    assert kept.rows() == expected


def test_a_key_with_an_empty_text_is_one_row_and_can_be_erased(tmp_path: Path) -> None:
    """Its column is null, so the key stands in `_key`."""
    options = TableOptions(partition_by=("land",), mode="PERMISSIVE")
    kept = Kept(tmp_path, key_ddl="id bigint, land string", value_ddl="id bigint, land string, n bigint", options=options)
    key = '{"id":1,"land":""}'
    for n in (0, 1):
        kept.append((key, {"id": 1, "land": "", "n": n}))
        kept.table.step()
        assert kept.rows("id land n _key") == [(1, None, n, key.encode())]
    kept.append((key, None))
    kept.table.step()
    assert kept.rows() == []
    kept.append((key, {"id": 1, "land": "", "n": 2}))
    kept.table.step()
    assert (kept.table.erase(key.encode(), kept={}).rows, kept.rows()) == (1, [])


def test_a_partition_column_has_any_name(tmp_path: Path) -> None:
    """As those that the engine uses inside."""
    kept = Kept(tmp_path, value_ddl="id bigint, row string, `0` string", options=TableOptions(partition_by=("row", "0")))
    kept.append((1, {"id": 1, "row": "a", "0": "b"}))
    kept.table.step()
    assert kept.rows("id row 0") == [(1, "a", "b")]
