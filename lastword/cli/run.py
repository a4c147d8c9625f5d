"""Commands that run append queries: append (files, once or followed) and run (the service)."""

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
    path: Annotated[str, typer.Option(help="The directory or glob of files.")],
    key: Annotated[list[str], typer.Option(help="A column of the key; may be repeated.")],
    file_format: Annotated[str, typer.Option("--format", help="json, csv or parquet.")] = "json",
    value: Annotated[str, typer.Option(help="The value's column; else all others as JSON.")] = "",
    tombstone: Annotated[str, typer.Option(help="A SQL condition for deletes, e.g. \"op = 'd'\".")] = "",
    drop: Annotated[list[str] | None, typer.Option(help="A column to leave out of the JSON value.")] = None,
    timestamp: Annotated[str, typer.Option(help="The record time's column.")] = "",
    schema: Annotated[str, typer.Option(help="The columns as SQL DDL; else inferred once.")] = "",
    name: Annotated[str, typer.Option(help="The query's name: the same name goes on where it stopped.")] = "append",
    follow: Annotated[bool, typer.Option("--follow", help="Stay and take new files as they come.")] = False,
    as_json: Json = False,
    log_dir: LogDirOption = "data",
) -> None:
    """Append files that were not appended before; each once, also after a crash.

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


def run(config: Annotated[Path, typer.Option("--config", "-c", help="The configuration file.")] = Path("conf/lastword.toml")) -> None:
    """Run the service: an append query for every source, and the cleaner. Example: lastword run -c conf/lastword.toml."""
    Service(load_settings(config)).run_until_signal()
