"""The commands `lastword topics` and `lastword queries`."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Annotated

import typer

from lastword import clock
from lastword.cli import tables
from lastword.cli.mistakes import usage_mistake
from lastword.cli.options import (
    Config,
    Json,
    LogDirOption,
    Topic,
    Yes,
    config_pairs,
    confirm,
    notes,
    open_log_dir,
    out,
    print_json_lines,
    tell,
)
from lastword.copying import copy_topic
from lastword.topics.description import summarize

topics_app = typer.Typer(help="Create, list, describe, alter, delete and copy topics.", no_args_is_help=True)
queries_app = typer.Typer(help="List and forget the streaming queries of a topic.", no_args_is_help=True)


@topics_app.command("create")
def topics_create(
    name: str,
    partitions: Annotated[int, typer.Option(help="Number of partitions; cannot be changed.")] = 1,
    config: Config = None,
    as_json: Json = False,
    log_dir: LogDirOption = "",
) -> None:
    """Create a topic.

    Example: lastword topics create fruit-prices --partitions 4 --config cleanup.policy=compact --config segment.bytes=128MiB
    """
    open_log_dir(log_dir, must_exist=False).create_topic(name, partitions=partitions, config=config_pairs(config))
    text = f"created topic {name} with {partitions} partition{'s' if partitions > 1 else ''}"
    tell(text, {"topic": name, "partitions": partitions}, as_json=as_json)


@topics_app.command("list")
def topics_list(as_json: Json = False, log_dir: LogDirOption = "") -> None:
    """List the topics with partitions, records, size and time of the last append. Example: lastword topics list --json."""
    logs = open_log_dir(log_dir)
    summaries = [summarize(logs.log(name)) for name in logs.topics()]
    if as_json:
        print_json_lines(map(dataclasses.asdict, summaries))
    elif summaries:
        out.print(tables.topics_table(summaries, clock.now_ms()))
    else:
        out.print(f"{logs.location}: no topics; to make one: lastword topics create NAME", soft_wrap=True)


@topics_app.command("describe")
def topics_describe(
    name: str,
    segments: Annotated[bool, typer.Option("--segments", help="Also list every segment.")] = False,
    as_json: Json = False,
    log_dir: LogDirOption = "",
) -> None:
    """Show partitions, segments, sizes, offsets, record counts, sources, stale keys and settings.

    Records are read only to look for stale keys, and for rows that a snapshot of a source lacks.

    Example: lastword topics describe fruit-prices --segments
    """
    description = open_log_dir(log_dir).topic(name).describe()
    if as_json:
        print_json_lines([dataclasses.asdict(description)])
        return
    out.print(tables.description_table(description))
    if segments:
        out.print(tables.segments_table(description))
    if description.stale_keys:
        out.print(f"  {description.stale_keys:,} stale keys: a newer row is a dead letter (lastword dead-letters {name} --stale)")
    for source in description.sources:
        state = "retired" if source.retired else f"epoch {source.epoch}"
        out.print(f"  source {source.name}: {state}", soft_wrap=True, markup=False, highlight=False)
        for line in tables.source_remarks(source, name):
            out.print(f"  {line}", soft_wrap=True, markup=False, highlight=False)
    for key, value in description.config.items():
        if key in description.overrides:
            out.print(f"  {key} = {value}")
    if description.mirror:
        out.print(f"  mirror of {description.mirror['source']} (query {description.mirror['query']})")


@topics_app.command("alter")
def topics_alter(
    name: str,
    config: Config = None,
    delete_config: Annotated[list[str] | None, typer.Option("--delete-config", help="Setting to reset. May be repeated.")] = None,
    as_json: Json = False,
    log_dir: LogDirOption = "",
) -> None:
    """Change settings. A running service applies them at its next micro-batch.

    Example: lastword topics alter fruit-prices --config segment.ms=12h --delete-config retention.ms
    """
    wanted, reset = config_pairs(config), dict.fromkeys(delete_config or [])
    if not wanted and not reset:
        raise usage_mistake(
            name="--config", value="nothing", allowed="name a setting to change (--config KEY=VALUE) or to reset (--delete-config KEY)"
        )
    if twice := sorted(set(wanted) & set(reset)):
        allowed = "give --config to change a setting or --delete-config to reset it, not both"
        raise usage_mistake(name="--delete-config", value=", ".join(twice), allowed=allowed)
    changes: dict[str, object] = {**wanted, **reset}
    topic = open_log_dir(log_dir).topic(name)
    topic.alter_config(changes)
    tell(f"altered topic {name}", {"topic": name, "overrides": dict(topic.log.decisions().overrides)}, as_json=as_json)


@topics_app.command("delete")
def topics_delete(name: str, yes: Yes = False, as_json: Json = False, log_dir: LogDirOption = "") -> None:
    """Delete a topic. Its files are removed after file.delete.delay.ms. Example: lastword topics delete fruit-prices --yes."""
    logs = open_log_dir(log_dir)
    logs.topic(name)  # a name that is mistyped is not asked about
    confirm(f"Delete topic {name} of {logs.location} with all its records?", yes=yes)
    logs.delete_topic(name)
    logs.purge_deleted()
    tell(f"deleted topic {name}", {"topic": name}, as_json=as_json)


@topics_app.command("copy")
def topics_copy(
    source: str,
    target: str,
    partitions: Annotated[int, typer.Option(help="Number of partitions of the copy.")] = 1,
    as_json: Json = False,
    log_dir: LogDirOption = "",
) -> None:
    """Copy a topic into a new one with another number of partitions; keys are hashed again.

    Example: lastword topics copy fruit-prices fruit-prices-16 --partitions 16
    """
    with notes.status(f"copying {source} to {target}"):
        copied = copy_topic(open_log_dir(log_dir), source, target, partitions=partitions)
    facts = {"source": source, "target": target, "records": copied}
    tell(f"copied {copied:,} records from {source} to {target}", facts, as_json=as_json)


@queries_app.command("list")
def queries_list(topic: Topic, as_json: Json = False, log_dir: LogDirOption = "") -> None:
    """List the streaming queries of a topic. Example: lastword queries list fruit-prices."""
    for name, query_id in open_log_dir(log_dir).topic(topic).describe().queries.items():
        sys.stdout.write(f"{json.dumps({'query': name, 'id': query_id})}\n" if as_json else f"{name}  {query_id}\n")


@queries_app.command("forget")
def queries_forget(topic: Topic, name: str, as_json: Json = False, log_dir: LogDirOption = "") -> None:
    """Remove a query whose checkpoint is lost; if it is started again, it appends its source from the beginning.

    Example: lastword queries forget fruit-prices files
    """
    open_log_dir(log_dir).topic(topic).forget_query(name)
    tell(f"forgot query {name} of topic {topic}", {"topic": topic, "query": name}, as_json=as_json)
