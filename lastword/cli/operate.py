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
from lastword.cli.options import Json, LogDirOption, Topic, open_log_dir, out, tell
from lastword.compaction.errors import UserError
from lastword.compaction.moments import instant
from lastword.status.drawing import draw_topic
from lastword.status.server import status_json
from lastword.status.standing import Looker, TopicStanding
from lastword.status.troubles import duration
from lastword.status.watcher import Watcher
from lastword.text import printable, size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_SERVICE = "http://127.0.0.1:9464"
_ANSWER_SECONDS = 5.0
_BAR = 24
#: The character and style of each section kind in a terminal.
_SHADES = {"clean": ("█", "green"), "cleanable": ("█", "yellow"), "uncleanable": ("▒", "bright_black"), "active": ("█", "blue")}
_CRITICAL_EXIT_CODE = 3


def top(
    url: Annotated[str, typer.Option(help='URL of the service; "" reads the log.dir directly.', envvar="LASTWORD_URL")] = _SERVICE,
    every: Annotated[float, typer.Option(min=0.2, help="Refresh interval in seconds.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit; exit code 3 if there is a critical issue.")] = False,
    as_json: Json = False,
    log_dir: LogDirOption = "",
) -> None:
    """Show every topic live: sections, dirty ratio, lag, open transactions and open issues.

    Reads from the running service, or from the metadata of the log.dir if none runs. With --once or --json it prints once.

    Example: lastword top --once --json | jq '.troubles'
    """
    look = _looking(url, log_dir)
    found = look()
    if as_json:
        sys.stdout.write(json.dumps(found) + "\n")
    elif once:
        out.print(_screen(found))
    else:
        with Live(_screen(found), console=out, screen=out.is_terminal, auto_refresh=False) as live:
            try:
                while True:
                    time.sleep(every)
                    live.update(_screen(look()), refresh=True)
            except KeyboardInterrupt:
                return
    critical = any(one["critical"] for one in found["troubles"])
    raise typer.Exit(_CRITICAL_EXIT_CODE if critical and once else 0)


def plot(
    topic: Topic,
    output: Annotated[Path, typer.Option("--output", "-o", help="SVG file to write; - is standard output.")] = Path("-"),
    as_json: Json = False,
    log_dir: LogDirOption = "",
) -> None:
    """Draw the log of a topic to scale as SVG: clean, cleanable, uncleanable and active sections, readers, last stable offset.

    Example: lastword plot fruit-prices -o log.svg
    """
    logs = open_log_dir(log_dir)
    picture = draw_topic(_look(Looker(logs.topic(topic).log, logs.cleaner)))
    if str(output) == "-":
        sys.stdout.write(picture + "\n")
        return
    try:
        output.write_text(picture, encoding="utf-8")
    except OSError as error:
        message = f"cannot write {output}: {error.strerror}"
        raise UserError(message) from error
    tell(f"wrote the drawing of {topic} to {output}", {"topic": topic, "output": str(output)}, as_json=as_json)


def _looking(url: str, log_dir: str) -> Callable[[], dict[str, Any]]:
    """Return a function that reads the status as a dict: from the service if it serves this log.dir, else from the log.dir itself."""
    logs = open_log_dir(log_dir)
    if url:
        found = _asked(url)
        if found is not None and found["log_dir"] == logs.location:
            return lambda: _asked(url) or found | {"troubles": [{"critical": True, "text": f"{url} no longer responds", "topic": ""}]}
    known: dict[str, Any] = {}

    def topics() -> list[Any]:
        names = logs.topics()
        for name in names:
            known.setdefault(name, logs.topic(name).log)
        return [known[name] for name in names]

    watcher = Watcher(log_dir=logs.location, topics=topics, cleaner=logs.cleaner, clock_ms=clock.now_ms)

    def look() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(status_json(watcher.look(), clock.now_ms()))
        return found

    return look


def _asked(url: str) -> dict[str, Any] | None:
    """Return the /status.json of a service; None if it does not respond."""
    if not url.startswith(("http://", "https://")):
        message = f"--url {url}: allowed is http://HOST:PORT"
        raise UserError(message)
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/status.json", timeout=_ANSWER_SECONDS) as answer:  # noqa: S310  checked above
            found: dict[str, Any] = json.load(answer)
    except (OSError, urllib.error.URLError, ValueError):
        return None
    return found


def _look(looker: Looker) -> TopicStanding:
    found = looker.look(now_ms=clock.now_ms())
    if found.error is not None:
        raise UserError(found.error)
    return found


def _screen(found: Mapping[str, Any]) -> Group:
    """Return the live table with its issues above it."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), header_style="bold")
    for name in ("topic", "part", "log", "dirty", "lag", "records", "size", "status"):
        right = name in {"part", "dirty", "lag", "records", "size"}
        table.add_column(name, justify="right" if right else "left", no_wrap=name != "status")
    for topic in found["topics"]:
        for one in topic["partitions"]:
            table.add_row(*_row(topic["name"], one))
    when = instant(found["taken_ms"])
    lines = [Text(f"{found['log_dir']}  {len(found['topics'])} topics, data from {when}", style="bold")]
    for one in found["troubles"]:
        text = f"{'CRITICAL' if one['critical'] else 'warning'}  {_place(one)}{one['text']}"
        lines.append(Text(printable(text, 400), style="red" if one["critical"] else "yellow"))
    if not found["troubles"]:
        lines.append(Text("no issues", style="green"))
    return Group(*lines, table)


def _place(trouble: Mapping[str, Any]) -> str:
    if not trouble["topic"]:
        return ""
    partition = trouble.get("partition")
    return f"{trouble['topic']}{'' if partition is None else f' partition {partition}'}: "


def _row(topic: str, one: Mapping[str, Any]) -> tuple[str | Text, ...]:
    report = one["report"]
    verdict = f"eligible: {report['trigger']}" if report["eligible"] else f"{report['obstacle']}; {report['bound_detail']}"
    why = report["uncleanable_reason"] or report["failure"] or verdict
    return (
        Text(printable(topic, 40)),
        str(report["partition"]),
        _bar(one["sections"]),
        f"{100 * report['ratio']:.0f}/{100 * report['threshold']:.0f} %",
        duration(one["compaction_lag_ms"]) if one["compaction_lag_ms"] else "",
        f"{one['record_count']:,}",
        size(one["size_bytes"]),
        Text(printable(why, 120), style="red" if report["uncleanable_reason"] else ""),
    )


def _bar(sections: list[Mapping[str, Any]]) -> Text:
    """Return a partition as a bar of blocks to scale; each section has at least one block."""
    bar = Text()
    length = sum(one["end"] - one["begin"] for one in sections)
    for one in sections:
        block, style = _SHADES[one["kind"]]
        bar.append(block * max(1, round(_BAR * (one["end"] - one["begin"]) / length)), style=style)
    return bar
