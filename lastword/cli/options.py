"""Options, consoles and output functions that the commands share."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from lastword.cli import tables
from lastword.compaction.errors import InvalidConfiguration, LastwordError, Violation
from lastword.log_dir import LogDir
from lastword.spark.session import spark_session

if TYPE_CHECKING:
    from collections.abc import Mapping


def _topics_beginning_with(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the topics for shell completion, from the log.dir that the incomplete command line names."""
    try:
        return [name for name in LogDir(None, ctx.params.get("log_dir") or "data").topics() if name.startswith(incomplete)]
    except (LastwordError, OSError):
        return []


LogDirOption = Annotated[str, typer.Option("--log-dir", envvar="LASTWORD_LOG_DIR", help="Directory of the topics: a path or a URI.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON Lines instead of text.")]
Config = Annotated[list[str] | None, typer.Option("--config", help="Topic setting, e.g. cleanup.policy=compact. May be repeated.")]
Topic = Annotated[str, typer.Argument(help="Name of the topic.", autocompletion=_topics_beginning_with, show_default=False)]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="Maximum number of rows.")]
Decode = Annotated[str, typer.Option("--decode", help="Decode values as utf8 or json.", metavar="[utf8|json]")]
Partition = Annotated[int | None, typer.Option("--partition", help="Only this partition.")]
QUIET = {"spark.log.level": "ERROR"}
RECORD_SHOWN = ("partition", "offset", "timestamp", "key", "value")
_DEFAULT_LIMIT = 50

out = Console()
notes = Console(stderr=True)


def with_spark(log_dir: str) -> LogDir:
    """Return a log.dir with a Spark session that logs errors only."""
    return LogDir(spark_session(settings=QUIET), log_dir)


def tell(text: str, facts: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the result of a command: `text`, or `facts` as one line of JSON."""
    if as_json:
        sys.stdout.write(json.dumps(facts, default=str) + "\n")
    else:
        out.print(text, soft_wrap=True)


def show(rows: Any, columns: tuple[str, ...], title: str, limit: int | None, decode: str, *, as_json: bool) -> None:
    """Print rows as a table of at most `limit` rows, or as JSON Lines (all rows if there is no limit)."""
    if decode not in {"utf8", "json"}:
        subject = "the command line"
        raise InvalidConfiguration(subject, [Violation(key="--decode", value=decode, allowed="utf8 or json")])
    if as_json:
        for row in (rows if limit is None else rows.limit(limit)).toLocalIterator():
            sys.stdout.write(tables.json_line(tables.plain(row.asDict(recursive=True), decode)) + "\n")
        return
    most = limit or _DEFAULT_LIMIT
    found = [tables.plain(row.asDict(recursive=True), decode) for row in rows.limit(most + 1).collect()]
    out.print(tables.records_table(found[:most], columns, title))
    if len(found) > most:
        out.print(f"[dim]… more rows exist. Use --limit for more than {most} rows, or --json for all.[/dim]")


def config_pairs(config: list[str] | None) -> dict[str, object]:
    """Return `--config key=value` options as a mapping. Raises `InvalidConfiguration` with each option that has no `=`."""
    pairs: dict[str, object] = {}
    violations = []
    for text in config or []:
        key, separator, value = text.partition("=")
        if not separator:
            violations.append(Violation(key=text, value="nothing", allowed="write key=value"))
        pairs[key.strip()] = value.strip()
    if violations:
        subject = "the command line"
        raise InvalidConfiguration(subject, violations)
    return pairs
