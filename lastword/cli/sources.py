"""The commands `lastword sources`: the sources of change events of a topic, and what is decided of them."""

from __future__ import annotations

from typing import Annotated

import typer

from lastword.cli import tables
from lastword.cli.options import AnyTopic, Json, LogDirOption, Topic, Yes, confirm, list_by_topic, open_log_dir, tell, topics_to_list

sources_app = typer.Typer(help="List the sources of a topic's change events, and decide on their order.", no_args_is_help=True)

Source = Annotated[str, typer.Argument(help="Name of the source as `lastword sources list` shows it, e.g. postgresql.shop.")]


@sources_app.command("list")
def sources_list(topic: AnyTopic = None, as_json: Json = False, log_dir: LogDirOption = "") -> None:
    """List the sources: epoch, snapshots, rows that the newest snapshot lacks, and whether the source needs a decision.

    Keys are read where a snapshot came behind other events. Example: lastword sources list shop.orders
    """
    by_topic = {opened.name: opened.sources() for opened in topics_to_list(log_dir, topic)}
    nothing = "no sources: no record has a position of change events"
    list_by_topic(by_topic, tables.sources_table, nothing=nothing, as_json=as_json, remarks=tables.source_remarks)


@sources_app.command("new-epoch")
def sources_new_epoch(topic: Topic, source: Source, yes: Yes = False, as_json: Json = False, log_dir: LogDirOption = "") -> None:
    """Say that the source counts from lower positions now, as after a failover: all that comes from now on is newer than what is there.

    First let all events of before come in: one that comes later would count as new. Then let the connector take a snapshot, which brings
    what was left out. Example: lastword sources new-epoch shop.orders postgresql.shop
    """
    confirm(f"Is all that comes from {source} from now on newer than what topic {topic} has of it?", yes=yes)
    epoch = open_log_dir(log_dir).topic(topic).new_epoch(source)
    tell(f"{topic}: source {source} is in epoch {epoch}", {"topic": topic, "source": source, "epoch": epoch}, as_json=as_json)


@sources_app.command("retire")
def sources_retire(
    topic: Topic,
    source: Source,
    undo: Annotated[bool, typer.Option("--undo", help="Take the events of a retired source again.")] = False,
    yes: Yes = False,
    as_json: Json = False,
    log_dir: LogDirOption = "",
) -> None:
    """Say that another source has taken the place of this one: its events are late from now on, and are left out.

    Example: lastword sources retire shop.orders postgresql.blue
    """
    what = "Take" if undo else "Leave out"
    confirm(f"{what} all that comes from {source} to topic {topic} from now on?", yes=yes)
    is_changed = open_log_dir(log_dir).topic(topic).retire_source(source, undo=undo)
    state = "is taken again" if undo else "is retired"
    text = f"{topic}: source {source} {state}" if is_changed else f"{topic}: nothing to do: source {source} {state} already"
    tell(text, {"topic": topic, "source": source, "retired": not undo, "changed": is_changed}, as_json=as_json)


@sources_app.command("sweep")
def sources_sweep(
    topic: Topic,
    source: Source,
    incomplete: Annotated[
        bool,
        typer.Option("--incomplete", help="Also by a snapshot behind which no change has come yet; rows that it brings later come back."),
    ] = False,
    yes: Yes = False,
    as_json: Json = False,
    log_dir: LogDirOption = "",
) -> None:
    """Delete the rows that the newest snapshot of the source lacks: they were deleted while the connector did not follow it.

    Only if the snapshot was of whole tables: what a filtered or ad-hoc snapshot leaves out would be deleted, too. Tombstones are written,
    as deletions are. Example: lastword sources sweep shop.orders postgresql.shop
    """
    opened = open_log_dir(log_dir).topic(topic)
    confirm(f"Delete the rows of topic {topic} that the newest snapshot of {source} lacks?", yes=yes)
    count = opened.sweep_source(source, incomplete=incomplete)
    text = f"{topic}: deleted {count:,} rows that the newest snapshot of {source} lacks"
    tell(text, {"topic": topic, "source": source, "deleted": count}, as_json=as_json)
