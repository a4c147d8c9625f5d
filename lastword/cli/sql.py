"""The command `sql`: a query over topics as tables."""

from __future__ import annotations

from typing import Annotated

import typer

from lastword.cli import tables
from lastword.cli.options import Json, Limit, LogDirOption, open_log_dir, print_rows, read_limit


def sql(
    query: Annotated[str, typer.Argument(help="A SELECT of Polars' SQL; each topic is a table.")],
    limit: Limit = None,
    as_json: Json = False,
    log_dir: LogDirOption = "",
) -> None:
    """Run a SQL query over topics: each is a table of its newest rows, typed where its sources have named columns.

    Any other topic has partition, key, value, headers, timestamp and offset. Nothing can be written. Starts no JVM.

    Example: lastword sql 'select key, value from "fruit-prices" order by key' --limit 20
    """
    rows = open_log_dir(log_dir).sql(query, limit=read_limit(limit, as_json=as_json))
    print_rows(map(tables.typed, rows.iter_rows(named=True)), rows.columns, "", limit, as_json=as_json)
