"""The commands `records`, `dead-letters` and `verify`, which read a log."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from lastword.cli.mistakes import EXIT_FAILED
from lastword.cli.options import (
    RECORD_SHOWN,
    Decode,
    Json,
    Limit,
    LogDirOption,
    Partition,
    Topic,
    find_registry,
    open_log_dir,
    out,
    print_json_lines,
    show,
)
from lastword.cli.tables import letters_grid
from lastword.cli.values import ValueReader
from lastword.storage.append.dead_letters import read_dead_letters


def records(
    topic: Topic,
    limit: Limit = None,
    decode: Decode = None,
    partition: Partition = None,
    from_offset: Annotated[int, typer.Option(help="Only this offset and later ones.")] = 0,
    control: Annotated[bool, typer.Option("--control", help="Include control rows.")] = False,
    as_json: Json = False,
    log_dir: LogDirOption = "",
) -> None:
    """Show the records of the log in offset order. Example: lastword records fruit-prices --limit 20 --decode json."""
    log = open_log_dir(log_dir).topic(topic)
    reader = ValueReader.of(decode, log.log, find_registry, as_json=as_json)
    batches = log.record_batches(
        include_control=control,
        partitions=None if partition is None else [partition],
        from_offsets=[from_offset] * log.partitions,
    )
    shown = (*RECORD_SHOWN, "control") if control else RECORD_SHOWN
    rows = (row for batch in batches for row in batch.to_pylist())
    show(rows, shown, f"{topic}: records", limit, reader, as_json=as_json)


def dead_letters(
    topic: Topic,
    limit: Limit = None,
    stale: Annotated[
        bool, typer.Option("--stale", help="Only those that make a key stale: the log has no newer record of the key yet.")
    ] = False,
    decode: Decode = None,
    as_json: Json = False,
    log_dir: LogDirOption = "",
) -> None:
    """Show the rejected rows, and which keys are stale by them. Example: lastword dead-letters fruit-prices --limit 5."""
    opened = open_log_dir(log_dir).topic(topic)
    reader = ValueReader.of(decode, opened.log, find_registry, as_json=as_json)
    stale_since = {key.key: key.refused_at for key in opened.stale_keys()}
    letters = read_dead_letters(opened.log.paths.dead_letters, opened.log.storage_options)
    marked = ({**letter, "stale": stale_since.get(letter["record_key"]) == letter["refused_at"]} for letter in letters)
    rows = (letter for letter in marked if letter["stale"]) if stale else marked
    shown = ("detail", "source", "record_key", "value", "raw")
    show(rows, shown, f"{topic}: dead letters", limit, reader, as_json=as_json, layout=letters_grid)


def verify(topic: Topic, as_json: Json = False, log_dir: LogDirOption = "") -> None:
    """Check the invariants of a log; exit code 1 if one is violated. Example: lastword verify fruit-prices."""
    report = open_log_dir(log_dir).topic(topic).verify()
    if as_json:
        print_json_lines([dataclasses.asdict(report)])
    else:
        out.print(f"{topic}: {report.record_count:,} records at table version {report.table_version}: ", end="")
        out.print("all invariants hold" if report.ok else "\n".join(["", *report.problems]))
    raise typer.Exit(0 if report.ok else EXIT_FAILED)
