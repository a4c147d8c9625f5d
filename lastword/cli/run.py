"""The commands that run append queries: `append` (files) and `run` (the service)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from lastword.cli.options import (
    Json,
    LogDirOption,
    Topic,
    tell,
)
from lastword.service.service import Service
from lastword.service.settings import checked_settings, load_settings


def append(
    topic: Topic,
    path: Annotated[str, typer.Option(help="Directory or glob of the files.")],
    key: Annotated[list[str], typer.Option(help="Key column. May be repeated.")],
    file_format: Annotated[str, typer.Option("--format", help="File format: json, csv or parquet.")] = "json",
    value: Annotated[str, typer.Option(help="Value column. Default: all other columns as JSON.")] = "",
    tombstone: Annotated[str, typer.Option(help="SQL condition for deletes, e.g. \"op = 'd'\".")] = "",
    drop: Annotated[list[str] | None, typer.Option(help="Column to omit from the JSON value. May be repeated.")] = None,
    timestamp: Annotated[str, typer.Option(help="Column of the record timestamp.")] = "",
    schema: Annotated[str, typer.Option(help="Columns as SQL DDL. Default: inferred once.")] = "",
    name: Annotated[str, typer.Option(help="Name of the query; a query with the same name resumes where it stopped.")] = "append",
    follow: Annotated[bool, typer.Option("--follow", help="Keep running, and append new files as they arrive.")] = False,
    as_json: Json = False,
    log_dir: LogDirOption = "data",
) -> None:
    """Append new files. Each file is appended exactly once, also after a crash.

    Example: lastword append fruit-prices --path 'incoming/*.json' --key fruit --tombstone "op = 'd'" --drop op
    """
    source: dict[str, Any] = {
        "name": name,
        "topic": topic,
        "format": file_format,
        "path": path,
        "key": key,
        "value": value,
        "tombstone": tombstone,
        "drop": drop or [],
        "timestamp": timestamp,
        "schema": schema,
        "trigger": "" if follow else "available-now",
    }
    settings = {"log_dir": log_dir, "sources": [source], "http": {"listen": ""}, "spark": {"spark.log.level": "ERROR"}}
    service = Service(checked_settings(settings, subject="the command line"), cleaning=False)
    log = service.logs.topic(topic).log
    before = sum(log.log_end_offsets())
    service.run_until_signal()
    grown = sum(log.log_end_offsets()) - before
    tell(f"appended {grown:,} records to {topic}", {"topic": topic, "records": grown}, as_json=as_json)


def run(config: Annotated[Path, typer.Option("--config", "-c", help="Configuration file.")] = Path("conf/lastword.toml")) -> None:
    """Run the service: an append query for every source, and the cleaner. Example: lastword run -c conf/lastword.toml."""
    Service(load_settings(config)).run_until_signal()
