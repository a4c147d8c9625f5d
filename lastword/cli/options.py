"""Options, consoles and output functions that the commands share."""

from __future__ import annotations

import json
import sys
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from lastword.cli import tables
from lastword.compaction.errors import InvalidConfiguration, LastwordError, Violation
from lastword.log_dir import LogDir
from lastword.spark.session import spark_session

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


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


def read_limit(limit: int | None, *, as_json: bool) -> int | None:
    """Return how many rows `show` takes at most, so that no more are read; None for all."""
    return limit if as_json else (limit or _DEFAULT_LIMIT) + 1


def show(rows: Iterable[dict[str, Any]], columns: tuple[str, ...], title: str, limit: int | None, decode: str, *, as_json: bool) -> None:
    """Print rows as a table of at most `limit` rows, or as JSON Lines (all rows if there is no limit)."""
    if decode not in {"utf8", "json"}:
        subject = "the command line"
        raise InvalidConfiguration(subject, [Violation(key="--decode", value=decode, allowed="utf8 or json")])
    taken = (tables.plain(row, decode) for row in islice(rows, read_limit(limit, as_json=as_json)))
    if as_json:
        for row in taken:
            sys.stdout.write(tables.json_line(row) + "\n")
        return
    most, found = limit or _DEFAULT_LIMIT, list(taken)
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
