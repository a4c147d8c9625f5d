"""`python -m examples.change_events.demo` (or `make demo-cdc`): recorded change events to typed tables, by the service and one file.

The service reads the recorded events of a PostgreSQL, keeps a typed table for each topic, and ends, as its sources have an end. Then each
table is compared with the rows that the database had.
"""

from __future__ import annotations

import gzip
import json
import shutil
import sys
import time
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Final

import polars as pl
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from lastword.service.service import Service
from lastword.service.settings import load_settings

_HERE: Final = Path(__file__).parent
_TABLES: Final = {"order_lines": ("order_id", "line_no"), "sessions": ("id",)}
_SHOWN: Final = 5
_WIDEST: Final = 26
_TYPES: Final = {pl.Int32: "int", pl.Int64: "bigint", pl.Decimal: "decimal", pl.Datetime: "timestamp"}
#: Intervals of the recorded rows, in microseconds.
_INTERVALS: Final = {"1 year 2 days 03:00:00": 31_741_200_000_000}

out = Console()


def main(folder: Annotated[Path, typer.Option("--dir", help="Where the demo works; wiped first.")] = Path(".demo-cdc")) -> None:
    """Run the service, show the tables, compare."""
    begun = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "incoming").mkdir(parents=True)
    for name in _TABLES:
        shutil.copy(_HERE / f"{name}.jsonl.gz", folder / "incoming")
    shutil.copy(_HERE / "lastword.toml", folder)
    settings = load_settings(folder / "lastword.toml").model_copy(update={"spark": {"spark.log.level": "OFF"}})
    out.print(f"[dim]lastword run -c {_HERE / 'lastword.toml'} …[/dim]")
    Service(settings).run()
    equal = [_compare(folder / "tables", name, keys) for name, keys in _TABLES.items()]
    out.print(f"\ndone in {time.monotonic() - begun:.0f} s. Next:")
    out.print(f"  LASTWORD_LOG_DIR={folder / 'data'} lastword tables list shop.order_lines")
    out.print(f"  LASTWORD_LOG_DIR={folder / 'data'} lastword records shop.order_lines --limit 5")
    sys.exit(0 if all(equal) else 1)


def _compare(tables: Path, name: str, keys: tuple[str, ...]) -> bool:
    """Show some rows of a table, and tell whether it has the rows of the database."""
    found = pl.read_delta(str(tables / f"shop.{name}")).sort(keys)
    with gzip.open(_HERE / f"{name}.expected.jsonl.gz", "rt", encoding="utf-8") as lines:
        expected = [json.loads(line, parse_float=Decimal) for line in lines if line.strip()]
    columns = list(expected[0])
    shown = Table(title=f"tables/shop.{name}: {len(found)} rows", box=box.SIMPLE_HEAD, title_justify="left")
    for column in columns:
        shown.add_column(f"{column}\n[dim]{_TYPES.get(type(found.schema[column]), 'string')}[/dim]", overflow="fold")
    for row in found.select(columns).tail(_SHOWN).iter_rows():
        shown.add_row(*("" if value is None else str(value)[:_WIDEST] for value in row))
    out.print(shown)
    ours = [plain(row) for row in found.select(columns).to_dicts()]
    theirs = sorted((of_database(row) for row in expected), key=lambda row: tuple(row[key] for key in keys))
    different = [(mine, other) for mine, other in zip(ours, theirs, strict=False) if mine != other]
    is_equal = len(ours) == len(theirs) and not different
    if is_equal:
        out.print(f"[green]equal to the database's own {len(theirs)} rows, value by value[/green]")
    else:
        out.print(f"[red]{len(ours)} rows, {len(theirs)} in the database; different: {different[:_SHOWN]}[/red]")
    return is_equal


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of a table as it is compared: moments as text in UTC, JSON parsed."""
    plain = {name: value.isoformat() if isinstance(value, datetime) else value for name, value in row.items()}
    return plain | {"payload": json.loads(row["payload"])} if row.get("payload") is not None else plain


def of_database(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of `row_to_json` as it is compared. Debezium sends an interval in microseconds, a year as 365.25 days."""
    moments = {name: datetime.fromisoformat(row[name]).isoformat() for name in ("started", "local_ts") if row.get(name) is not None}
    return row | moments | ({"dur": _INTERVALS[row["dur"]]} if row.get("dur") is not None else {})


if __name__ == "__main__":
    typer.run(main)
