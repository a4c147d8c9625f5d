"""The commands `lastword tables`: the typed tables that follow a topic, and whether they take their steps."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from lastword.cli import tables
from lastword.cli.options import (
    AnyTopic,
    Json,
    LogDirOption,
    Topic,
    list_by_topic,
    open_log_dir,
    out,
    print_json_lines,
    tell,
    topics_to_list,
)

tables_app = typer.Typer(help="List and describe the typed tables of a topic; pause, resume, rebuild and drop them.", no_args_is_help=True)

Path = Annotated[str, typer.Argument(metavar="TABLE", help="Path or URI of the table, as `lastword tables list` shows it.")]


@tables_app.command("list")
def tables_list(topic: AnyTopic = None, as_json: Json = False, log_dir: LogDirOption = "") -> None:
    """List the tables: state, offsets behind, when they were heard of last. Example: lastword tables list shop.orders."""
    by_topic = {opened.name: opened.tables() for opened in topics_to_list(log_dir, topic)}
    nothing = f"no tables; to make one: lastword materialize {topic or 'TOPIC'} TABLE"
    list_by_topic(by_topic, tables.typed_tables_table, nothing=nothing, as_json=as_json)


@tables_app.command("describe")
def tables_describe(topic: Topic, path: Path, as_json: Json = False, log_dir: LogDirOption = "") -> None:
    """Show a table: position, lag, version, rows, files and columns. Example: lastword tables describe shop.orders tables/orders."""
    table = open_log_dir(log_dir).topic(topic).describe_table(path)
    if as_json:
        print_json_lines([dataclasses.asdict(table)])
        return
    for line in tables.typed_table_lines(table):
        out.print(line, soft_wrap=True, markup=False, highlight=False)


@tables_app.command("rebuild")
def tables_rebuild(topic: Topic, path: Path, as_json: Json = False, log_dir: LogDirOption = "") -> None:
    """Let the next step write a table anew in one commit, such as that of the service; a follower is needed to take it.

    Example: lastword tables rebuild shop.orders tables/orders
    """
    open_log_dir(log_dir).topic(topic).rebuild_table(path)
    text = f"{topic}: the next step of table {path} writes it anew; lastword materialize --rebuild does it at once"
    tell(text, {"topic": topic, "table": path, "rebuild": True}, as_json=as_json)


@tables_app.command("pause")
def tables_pause(topic: Topic, path: Path, as_json: Json = False, log_dir: LogDirOption = "") -> None:
    """Take no more steps of a table, in the service too, so that another engine may change it.

    Example: lastword tables pause shop.orders tables/orders
    """
    open_log_dir(log_dir).topic(topic).pause_table(path)
    tell(f"{topic}: table {path} is paused", {"topic": topic, "table": path, "paused": True}, as_json=as_json)


@tables_app.command("resume")
def tables_resume(topic: Topic, path: Path, as_json: Json = False, log_dir: LogDirOption = "") -> None:
    """Take the steps of a paused table again. Example: lastword tables resume shop.orders tables/orders."""
    open_log_dir(log_dir).topic(topic).resume_table(path)
    tell(f"{topic}: table {path} goes on", {"topic": topic, "table": path, "paused": False}, as_json=as_json)


@tables_app.command("drop")
def tables_drop(topic: Topic, path: Path, as_json: Json = False, log_dir: LogDirOption = "") -> None:
    """Forget a table: nothing is kept for it, and a purge does not look into it any more. Its files stay.

    Take it out of the service's configuration first. Example: lastword tables drop shop.orders tables/orders
    """
    open_log_dir(log_dir).topic(topic).drop_table(path)
    tell(f"{topic}: table {path} is dropped; its files are still there", {"topic": topic, "table": path, "dropped": True}, as_json=as_json)
