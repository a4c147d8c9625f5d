"""The page on tables: the types of its table are those that a schema gives, and its command registers a table in Spark's catalog."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from lastword.change_data.columns.connect_schema import columns_of_connect_schema, columns_of_ddl
from lastword.change_data.columns.table_columns import TableColumns
from lastword.storage.tables.table_rows import RowMaker, TableLayout
from lastword.storage.tables.table_schema import schema_text
from tests.processes import ROOT
from tests.storage.tables.kept import Kept

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from lastword.change_data.columns.column_types import Column

_PAGE = (ROOT / "docs" / "tables.md").read_text(encoding="utf-8")
_PARAMETERS = {"org.apache.kafka.connect.data.Decimal": {"scale": "2", "connect.decimal.precision": "10"}}
_CONNECT_TYPES = {"Timestamp": "int64", "MicroTimestamp": "int64", "Date": "int32", "MicroTime": "int64", "MicroDuration": "int64"}


def _rows() -> list[tuple[str, str, str]]:
    """Return each logical name or type of Connect with its DDL and the column of the table."""
    section = _PAGE.split("## From the type of the source to the column")[1].split("\n## ")[0]
    found = list[tuple[str, str, str]]()
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        names = re.findall("`([^`]+)`", cells[4]) if len(cells) == 7 else []
        ddl, column = cells[5:7] if names else ("", "")
        alone = len(ddl.split(", ")) == len(names)
        found += [
            (name, ddl.split(", ")[number] if alone else ddl, column.split(", ")[number] if alone else column)
            for number, name in enumerate(names)
        ]
    return found


def _delta_type(column: Column) -> str:
    schema = RowMaker(TableLayout(columns=TableColumns(value=(column,))), topic="t").named_schema
    return schema_text(pa.schema([schema.field(column.name)]))


@pytest.mark.parametrize(("name", "ddl", "column"), _rows(), ids=lambda cell: cell[:40])
def test_a_type_of_connect_becomes_the_column_that_the_page_names(name: str, ddl: str, column: str) -> None:
    """By its schema, and by the DDL."""
    kind = _CONNECT_TYPES.get(name.rpartition(".")[2], "string") if "." in name else name
    field = {"field": "x", "type": kind, **({"name": name, "parameters": _PARAMETERS.get(name, {})} if "." in name else {})}
    (of_schema,) = columns_of_connect_schema({"type": "struct", "fields": [field]})
    (of_ddl,) = columns_of_ddl(f"x {ddl.replace('(p,s)', '(10,2)')}")
    expected = column.split(",", maxsplit=1)[0].split(" ", maxsplit=1)[0] if not column.startswith("decimal") else "decimal(10,2)"
    for made in (of_schema, of_ddl):
        assert f'"type":"{expected}"' in _delta_type(made), made


def test_the_table_has_a_row_for_each_type() -> None:
    """The page was found, and split."""
    assert len(_rows()) == 21


def test_a_table_is_registered_in_the_catalog_of_spark_by_its_path(spark: SparkSession, tmp_path: Path) -> None:
    """Once: columns and rows that come later are seen."""
    kept = Kept(tmp_path)
    kept.fill(3)
    command = re.search("^CREATE TABLE orders USING DELTA LOCATION '[^']*'", _PAGE, re.MULTILINE)
    assert command is not None
    spark.sql(re.sub("'.*'", f"'{kept.location}'", command[0]))
    try:
        assert spark.table("orders").count() == 3
        kept.value_ddl = "id bigint, n bigint, more string"
        kept.append((7, {"id": 7, "n": 0, "more": "x"}))
        kept.table.step()
        assert [row["id"] for row in spark.table("orders").where("more = 'x'").collect()] == [7]
    finally:
        spark.sql("DROP TABLE orders")
