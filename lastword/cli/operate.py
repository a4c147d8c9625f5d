"""The commands of an operator: `top`, the live table, and `plot`, the log as an SVG drawing."""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lastword import clock
from lastword.cli import tables
from lastword.cli.mistakes import EXIT_FINDING, usage_mistake
from lastword.cli.options import (
    Json,
    LogDirOption,
    Topic,
    open_log_dir,
    out,
    print_json_lines,
    refuse_options,
    service_address,
    tell,
)
from lastword.compaction.moments import instant
from lastword.plotting import plot_log
from lastword.status.listen import parse_listen
from lastword.status.server import status_json
from lastword.status.troubles import duration
from lastword.status.watcher import Watcher
from lastword.text import printable, size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_SERVICE = "http://127.0.0.1:9464"
_ANSWER_SECONDS = 5.0
_BAR = 24
#: Kafka has two kinds of lag: this one is the age of what has not been cleaned.
_LAG = "compaction\nlag"
_COLUMNS = ("topic", "part", "log", "dirty", _LAG, "records", "size", "status")
#: A terminal with room for all columns, and a name that leaves room for them in a narrower one.
_WIDE, _SHORT_NAME = 120, 12
#: The character and style of each section kind in a terminal.
_SHADES = {"clean": ("█", "green"), "cleanable": ("█", "yellow"), "uncleanable": ("▒", "bright_black"), "active": ("█", "blue")}


def top(
    ctx: typer.Context,
    url: Annotated[
        str | None,
        typer.Option(
            help='URL of the service; "" reads the log.dir alone. Default: http.listen of the configuration file (-c).',
            envvar="LASTWORD_URL",
            show_default=_SERVICE,
        ),
    ] = None,
    every: Annotated[float, typer.Option(min=0.2, help="Refresh interval in seconds.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit; exit code 3 if there is a critical issue.")] = False,
    as_json: Json = False,
    log_dir: LogDirOption = "",
) -> None:
    """Show every topic live: sections, dirty ratio, compaction lag, dead letters, late rows, transactions, typed tables and open issues.

    Asks the running service, and reads the metadata of the log.dir if none answers: sources and the cleaner are not known then, which is a
    critical issue. With --once or --json it prints once, and exit code 3 means that there is a critical issue.

    Example: lastword top --once --json | jq '.troubles'
    """
    if once or as_json:
        refuse_options(ctx, {"every": "--every"}, "only without --once and --json, which print once")
    collect = _status_collector(url, log_dir)
    status = collect()
    if as_json:
        print_json_lines([status])
    elif once:
        out.print(_screen(status))
    else:
        with Live(_screen(status), console=out, screen=out.is_terminal, auto_refresh=False) as live:
            try:
                while True:
                    time.sleep(every)
                    live.update(_screen(collect()), refresh=True)
            except KeyboardInterrupt:
                return
    critical = any(issue["critical"] for issue in status["troubles"])
    raise typer.Exit(EXIT_FINDING if critical else 0)


def plot(
    topic: Topic,
    output: Annotated[Path, typer.Option("--output", "-o", help="SVG file to write; - is standard output.")] = Path("-"),
    as_json: Json = False,
    log_dir: LogDirOption = "",
) -> None:
    """Draw the log of a topic to scale as SVG: clean, cleanable, uncleanable and active sections, readers, last stable offset.

    Example: lastword plot fruit-prices -o log.svg
    """
    if str(output) == "-" and as_json:
        raise usage_mistake(name="--output", value="-", allowed="with --json name a FILE: standard output is the drawing otherwise")
    logs = open_log_dir(log_dir)
    plot = plot_log(logs, topic)
    if str(output) == "-":
        sys.stdout.write(plot.svg + "\n")
        return
    plot.save(output)
    tell(f"wrote the drawing of {topic} to {output}", {"topic": topic, "output": str(output)}, as_json=as_json)


def _status_collector(url: str | None, log_dir: str) -> Callable[[], dict[str, Any]]:
    """Return a function that returns the status as a dict: what the service answers, or what the log.dir itself holds."""
    logs = open_log_dir(log_dir)
    address = _service_url() if url is None else url
    logs_by_name: dict[str, Any] = {}

    def topics() -> list[Any]:
        names = logs.topics()
        for name in names:
            logs_by_name.setdefault(name, logs.topic(name).log)
        return [logs_by_name[name] for name in names]

    watcher = Watcher(log_dir=logs.location, topics=topics, cleaner=logs.cleaner, clock_ms=clock.now_ms)

    def collect() -> dict[str, Any]:
        unknown = "its sources and its cleaner are not known"
        if not address and url is None:
            issue = f'the service has no HTTP address (http.listen = ""): {unknown}'
        elif address:
            answer = _ask(address)
            if answer is not None and answer["log_dir"] == logs.location:
                return answer
            issue = f"no service answers at {address}: {unknown}; name its address by --url or by its configuration file (-c)"
            if answer is not None:
                issue = f"the service at {address} serves another log.dir, {answer['log_dir']}: that of {logs.location} is not known"
        else:
            issue = ""
        status: dict[str, Any] = json.loads(status_json(watcher.look(), clock.now_ms()))
        if issue:
            status["troubles"].insert(0, {"critical": True, "text": issue, "topic": "", "partition": None})
        return status

    return collect


def _service_url() -> str:
    """Return where the service of the configuration file answers, "" if nowhere; without a file the default address."""
    listen = service_address()
    if listen is None:
        return _SERVICE
    if not listen:
        return ""
    host, port = parse_listen(listen)
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104  all addresses: this machine's is one
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _ask(url: str) -> dict[str, Any] | None:
    """Return the /status.json of a service; None if it does not respond."""
    if not url.startswith(("http://", "https://")):
        raise usage_mistake(name="--url", value=url, allowed="allowed is http://HOST:PORT")
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/status.json", timeout=_ANSWER_SECONDS) as answer:  # noqa: S310  checked above
            status: Any = json.load(answer)
    except (OSError, urllib.error.URLError, ValueError):
        return None
    return status if isinstance(status, dict) and {"log_dir", "topics", "troubles"} <= set(status) else None


def _screen(status: Mapping[str, Any]) -> Group:
    """Return the live table with its issues above it."""
    table = _screen_of_topics(status["topics"])
    when = instant(status["taken_ms"])
    lines = [Text(f"{status['log_dir']}  {len(status['topics'])} topics, data from {when}", style="bold")]
    for issue in status["troubles"]:
        text = f"{'CRITICAL' if issue['critical'] else 'warning'}  {_place(issue)}{issue['text']}"
        lines.append(Text(printable(text, 400), style="red" if issue["critical"] else "yellow"))
    if not status["troubles"]:
        lines.append(Text("no issues", style="green"))
    typed = [_screen_of_tables(status["tables"])] if status.get("tables") else []
    return Group(*lines, table, *typed, *_rows_left_out(status["topics"]))


def _screen_of_topics(topics: Sequence[Mapping[str, Any]]) -> Table:
    """Return the partitions as a table; where long names leave no room for the status, it stands below the name."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), header_style="bold")
    is_narrow = out.width < _WIDE and any(len(topic["name"]) > _SHORT_NAME for topic in topics)
    for name in ("topic and status", "part", "log", "dirty", _LAG, "records", "size") if is_narrow else _COLUMNS:
        right = name in {"part", "dirty", _LAG, "records", "size"}
        table.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=name not in {"status", "topic and status"})
    for topic in topics:
        for partition in topic["partitions"]:
            (shown, *cells, why) = _row(topic["name"], partition, bar=_BAR // 3 if is_narrow else _BAR)
            if is_narrow:
                table.add_row(Text.assemble(tables.name_cell(topic["name"], _BAR), "\n", why), *cells)
            else:
                table.add_row(shown, *cells, why)
    return table


def _screen_of_tables(kept: Sequence[Mapping[str, Any]]) -> Table:
    """Return the typed tables that the service keeps, as a table."""
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), header_style="bold")
    for name in ("table", "topic", "state", "consumer\nlag", "lag\ntime", "steps", "misfits", "step\ntime"):
        is_text = name in {"table", "topic", "state"}
        shown.add_column(name, justify="left" if is_text else "right", overflow="fold", no_wrap=not is_text)
    for table in kept:
        state = "failed" if table["message"] else "paused" if table["paused"] else "behind" if table["lag_offsets"] else "in step"
        shown.add_row(
            tables.name_cell(table["path"], _BAR),
            tables.name_cell(table["topic"], _BAR),
            Text(state, style={"failed": "red", "paused": "yellow"}.get(state, "")),
            f"{table['lag_offsets']:,}",
            duration(table["lag_ms"]) if table["lag_ms"] else "",
            f"{table['steps']:,}",
            f"{table['misfit_rows']:,}",
            duration(table["step_ms"]),
        )
    return shown


def _rows_left_out(topics: list[Mapping[str, Any]]) -> Iterator[Text]:
    """Yield a line for each topic that has dead letters or late rows."""
    for topic in topics:
        letters, counts = (topic["dead_letters"] or {}).get("count", 0), topic["appends"]
        if letters or counts["late"]:
            stale = f" ({topic['stale_keys']:,} stale keys)" if topic["stale_keys"] else ""
            since_start = f"{counts['late']:,} late rows and {counts['appended']:,} appended records since the start of the service"
            yield Text(printable(f"{topic['name']}: {letters:,} dead letters{stale}; {since_start}", 400), style="yellow")


def _place(trouble: Mapping[str, Any]) -> str:
    if not trouble["topic"]:
        return ""
    partition = trouble.get("partition")
    return f"{trouble['topic']}{'' if partition is None else f' partition {partition}'}: "


def _row(topic: str, partition: Mapping[str, Any], *, bar: int) -> tuple[str | Text, ...]:
    report = partition["report"]
    verdict = f"eligible: {report['trigger']}" if report["eligible"] else f"{report['obstacle']}; {report['bound_detail']}"
    why = report["uncleanable_reason"] or report["failure"] or verdict
    return (
        Text(printable(topic, 40)),
        str(report["partition"]),
        _bar(partition["sections"], bar),
        f"{100 * report['ratio']:.0f}/{100 * report['threshold']:.0f} %",
        duration(partition["compaction_lag_ms"]) if partition["compaction_lag_ms"] else "",
        f"{partition['record_count']:,}",
        size(partition["size_bytes"]),
        Text(printable(why, 400), style="red" if report["uncleanable_reason"] else ""),
    )


def _bar(sections: list[Mapping[str, Any]], blocks: int) -> Text:
    """Return a partition as a bar of so many blocks to scale; each section has at least one block."""
    bar = Text()
    length = sum(section["end"] - section["begin"] for section in sections)
    for section in sections:
        block, style = _SHADES[section["kind"]]
        bar.append(block * max(1, round(blocks * (section["end"] - section["begin"]) / length)), style=style)
    return bar
