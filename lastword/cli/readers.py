"""The commands that read a topic, `latest`, `table`, `changes` and `materialize`, and `readers` for the registered ones."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated, Any

import polars as pl
import typer

from lastword.cli import tables
from lastword.cli.options import (
    RECORD_SHOWN,
    AnyTopic,
    Decode,
    Json,
    Limit,
    LogDirOption,
    Topic,
    config_pairs,
    find_registry,
    list_by_topic,
    notes,
    open_log_dir,
    print_rows,
    read_limit,
    refuse_options,
    show,
    tell,
    topics_to_list,
)
from lastword.cli.values import ValueReader
from lastword.compaction.errors import UserError
from lastword.service.signals import POLL_SECONDS, StopSignals

if TYPE_CHECKING:
    from lastword.topics.tables import TableProgress

readers_app = typer.Typer(help="List and remove registered readers.", no_args_is_help=True)


def latest(
    topic: Topic,
    as_of: Annotated[str | None, typer.Option(help="Table version, time (ISO 8601), or offsets as JSON: '{\"0\": 42}'.")] = None,
    key: Annotated[list[str] | None, typer.Option(help="Only this key. May be repeated.")] = None,
    partition: Annotated[list[int] | None, typer.Option(help="Only this partition. May be repeated.")] = None,
    limit: Limit = None,
    decode: Decode = None,
    as_json: Json = False,
    log_dir: LogDirOption = "",
) -> None:
    """Show the latest record of every key, now or in the past. Example: lastword latest fruit-prices --json | jq .value."""
    one, most = open_log_dir(log_dir).topic(topic), read_limit(limit, as_json=as_json)
    reader = ValueReader.of(decode, one.log, find_registry, as_json=as_json)

    def collected(words: pl.LazyFrame) -> pl.DataFrame:
        ordered = words.sort("partition", "key")
        return (ordered if most is None else ordered.head(most)).collect(engine="streaming")

    if as_of is None:
        rows = one.collect_latest(collected, partitions=partition, keys=key)
    else:
        rows = collected(pl.LazyFrame(one.latest(as_of=_as_of(as_of), partitions=partition, keys=key)))
    show(rows.iter_rows(named=True), RECORD_SHOWN, f"{topic}: latest", limit, reader, as_json=as_json)


def table(
    topic: Topic,
    schema: Annotated[
        str | None, typer.Option(help="Columns of a value as SQL DDL. Default: the columns that the topic's sources have named.")
    ] = None,
    as_of: Annotated[str | None, typer.Option(help="Table version, time (ISO 8601), or offsets as JSON: '{\"0\": 42}'.")] = None,
    key: Annotated[list[str] | None, typer.Option(help="Only this key. May be repeated.")] = None,
    partition: Annotated[list[int] | None, typer.Option(help="Only this partition. May be repeated.")] = None,
    mode: Annotated[str, typer.Option(help="FAILFAST: stop at a value that does not fit its column. PERMISSIVE: show null.")] = "FAILFAST",
    limit: Limit = None,
    as_json: Json = False,
    log_dir: LogDirOption = "",
) -> None:
    """Show the latest row of every key with a typed column for each column. Example: lastword table shop.orders --limit 20."""
    one = open_log_dir(log_dir).topic(topic)
    most = read_limit(limit, as_json=as_json)
    found = one.table(schema=schema, as_of=_as_of(as_of), partitions=partition, keys=key, mode=mode, limit=most)
    rows = map(tables.typed, found.to_pylist())
    print_rows(rows, found.schema.names, f"{topic}: table", limit, as_json=as_json)


def changes(
    topic: Topic,
    begin: Annotated[
        str, typer.Option("--from", help="earliest, latest, a time (ISO 8601, UTC), or offsets as JSON: '{\"0\": 42}'.")
    ] = "earliest",
    end: Annotated[str, typer.Option("--to", help="As --from, exclusive.")] = "latest",
    net: Annotated[bool, typer.Option("--net", help="Show at most one change per key.")] = False,
    limit: Limit = None,
    decode: Decode = None,
    as_json: Json = False,
    log_dir: LogDirOption = "",
) -> None:
    """Show the changes between two points of the log, with the previous values.

    Example: lastword changes fruit-prices --from 2026-11-01T08:00 --to latest
    """
    opened = open_log_dir(log_dir).topic(topic)
    reader = ValueReader.of(decode, opened.log, find_registry, as_json=as_json)
    rows = opened.changes(begin, end, net=net)
    shown = ("partition", "offset", "timestamp", "change_type", "key", "value")
    show(iter(rows.to_pylist()), shown, f"{topic}: changes", limit, reader, as_json=as_json)


_Mode = Annotated[
    str, typer.Option(help="FAILFAST: stop at a value that does not fit its column. PERMISSIVE: store null. DROPMALFORMED: dead letter.")
]
_PartitionBy = Annotated[list[str] | None, typer.Option(help="Partition column of the Delta table when it is made. May be repeated.")]
_Property = Annotated[
    list[str] | None, typer.Option("--property", help="Property of the Delta table when it is made, NAME=VALUE. May be repeated.")
]
_DeletionVectors = Annotated[
    bool, typer.Option(help="Mark deleted rows in deletion vectors. Without them a step rewrites files, and any reader reads the table.")
]
_ColumnMapping = Annotated[
    bool, typer.Option(help="Give names with spaces and the like Delta's column mapping. Without it underscores replace the characters.")
]


def materialize(
    ctx: typer.Context,
    topic: Topic,
    path: Annotated[str, typer.Argument(metavar="TABLE", help="Delta table to maintain: a path or a URI. Created if it does not exist.")],
    once: Annotated[bool, typer.Option("--once", help="Process the available records and exit.")] = False,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks at the topic.")] = 1.0,
    schema: Annotated[
        str | None, typer.Option(help="Columns of a value as SQL DDL. Default: the columns that the topic's sources have named.")
    ] = None,
    column: Annotated[
        list[str] | None, typer.Option(help="Also this column of the record: _offset, _timestamp, _headers, _value. May be repeated.")
    ] = None,
    history: Annotated[
        bool, typer.Option("--history", help="Keep all versions of each key with their validity period (SCD type 2).")
    ] = False,
    mode: _Mode = "FAILFAST",
    on_type_change: Annotated[
        str, typer.Option(help="When the type of a column changes. rebuild: write the table anew. fail: stop.")
    ] = "rebuild",
    partition_by: _PartitionBy = None,
    table_property: _Property = None,
    deletion_vectors: _DeletionVectors = True,
    column_mapping: _ColumnMapping = True,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Bootstrap again and replace the existing table.")] = False,
    isolation: Annotated[str, typer.Option(help="Isolation level: read_committed or read_uncommitted.")] = "read_committed",
    max_offsets_per_step: Annotated[int | None, typer.Option(min=1, help="Approximate maximum of offsets per commit.")] = None,
    as_json: Json = False,
    log_dir: LogDirOption = "",
) -> None:
    """Maintain a Delta table with the latest row of every key, typed, exactly once. Resumes after a stop or crash. Starts no JVM.

    Example: lastword materialize fruit-prices tables/prices --schema "price double" --once
    """
    if once:
        refuse_options(ctx, {"every": "--every"}, "only without --once")
    with StopSignals() as signals, notes.status(f"{topic} → {path}"):
        follower = (
            open_log_dir(log_dir)
            .topic(topic)
            .materialize(
                path,
                schema=schema,
                record_columns=column or (),
                history=history,
                mode=mode,
                on_type_change=on_type_change,
                partition_by=partition_by or (),
                properties={name: str(value) for name, value in config_pairs(table_property, "--property").items()},
                deletion_vectors=deletion_vectors,
                column_mapping=column_mapping,
                rebuild=rebuild,
                isolation=isolation,
                max_offsets_per_step=max_offsets_per_step,
                every_seconds=every,
                follow=True,
            )
        )
        while signals.received is None and not (once and follower.is_in_step) and not follower.wait(POLL_SECONDS):
            pass
        done = follower.stop()
    _report_table(topic, path, done, in_step=once and follower.is_in_step, as_json=as_json)


def _report_table(topic: str, path: str, done: TableProgress, *, in_step: bool, as_json: bool) -> None:
    """Print what was done to a table."""
    text = f"{path} is up to date with {topic}" if in_step else "stopped; the next run resumes from the stored position"
    rows = f": {done.written_rows} rows written, {done.deleted_rows} deleted" if done.steps else ""
    rows += f", {done.misfit_rows} records with a value that does not fit" if done.misfit_rows else ""
    tell(
        text + rows,
        {
            "topic": topic,
            "table": path,
            "in_step": in_step,
            "did": done.kind or "nothing",
            "written_rows": done.written_rows,
            "deleted_rows": done.deleted_rows,
            "misfit_rows": done.misfit_rows,
            "table_version": done.table_version,
            "offsets": dict(enumerate(done.position.offsets)),
        },
        as_json=as_json,
    )


@readers_app.command("list")
def readers_list(topic: AnyTopic = None, as_json: Json = False, log_dir: LogDirOption = "") -> None:
    """List the registered readers: position, consumer lag, last seen, expiration. Example: lastword readers list fruit-prices."""
    by_topic = {opened.name: [dataclasses.asdict(reader) for reader in opened.readers()] for opened in topics_to_list(log_dir, topic)}
    list_by_topic(by_topic, tables.readers_table, nothing="no registered readers", as_json=as_json)


@readers_app.command("drop")
def readers_drop(topic: Topic, name: str, as_json: Json = False, log_dir: LogDirOption = "") -> None:
    """Remove a registered reader; nothing is kept for it any longer. Example: lastword readers drop fruit-prices orders-cache."""
    open_log_dir(log_dir).topic(topic).drop_reader(name)
    tell(f"{topic}: dropped reader {name}", {"topic": topic, "reader": name}, as_json=as_json)


def _as_of(text: str | None) -> Any:
    if text is None:
        return None
    if text.isdigit():
        return int(text)
    return _offsets(text, "--as-of") if text.lstrip().startswith("{") else text


def _offsets(text: str, option: str) -> dict[int, int]:
    try:
        return {int(partition): int(offset) for partition, offset in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError):
        message = f'{option} {text}: allowed are offsets by partition as JSON, such as {{"0": 42}}'
        raise UserError(message) from None
