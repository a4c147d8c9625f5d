"""Readers of Delta tables that know nothing of us: each returns the rows of the table at a location."""

from __future__ import annotations

from functools import cache
from importlib.metadata import files
from typing import TYPE_CHECKING, Final

import duckdb
import polars as pl
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

if TYPE_CHECKING:
    from collections.abc import Callable


def read_polars(location: str) -> pa.Table:
    """Read with Polars."""
    return pl.scan_delta(location).collect().to_arrow()


def read_delta_rs(location: str) -> pa.Table:
    """Read with delta-rs, by its query engine."""
    return pa.table(QueryBuilder().register("t", DeltaTable(location)).execute("SELECT * FROM t").read_all())


@cache
def _connection() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    (extension,) = (one.locate() for one in files("duckdb-ext-delta") or () if one.name == "delta.duckdb_extension")
    connection.execute(f"LOAD '{extension}'")
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def read_duckdb(location: str, sql: str = "SELECT * FROM {}") -> pa.Table:
    """Read with DuckDB; `{}` in a query is the table."""
    return _connection().execute(sql.format(f"delta_scan('{location}')")).fetch_arrow_table()


READERS: Final[dict[str, Callable[[str], pa.Table]]] = {"polars": read_polars, "delta-rs": read_delta_rs, "duckdb": read_duckdb}
