"""Commands about cleaning and deletion: clean, explain, receipts, pause, resume, roll, retention, delete-records."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Annotated

import typer

from lastword import clock
from lastword.cli import cleaning_tables
from lastword.cli.options import (
    ANSWER_SECONDS,
    QUIET,
    Json,
    LogDirOption,
    Partition,
    Timeout,
    Topic,
    out,
    tell,
    with_spark,
)
from lastword.cli.requests import carried_out
from lastword.compaction.errors import InvalidConfiguration, Violation
from lastword.log_dir import LogDir
from lastword.service import requests
from lastword.text import size
from lastword.topics.explanation import PartitionReport


def roll(
    topic: Topic,
    partition: Partition = None,
    as_json: Json = False,
    log_dir: LogDirOption = "data",
) -> None:
    """Close the active segments. Example: lastword roll fruit-prices --partition 0."""
    for one, offset in LogDir(None, log_dir).topic(topic).roll(partition).items():
        facts = {"topic": topic, "partition": one, "offset": offset}
        tell(f"partition {one}: the next segment begins at offset {offset}", facts, as_json=as_json)


def clean(
    topic: Topic,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report rows and bytes that would be removed, by reason.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Ignore the dirty ratio, and try at once what failed before.")] = False,
    as_json: Json = False,
    timeout: Timeout = ANSWER_SECONDS,
    log_dir: LogDirOption = "data",
) -> None:
    """Clean the eligible partitions: remove superseded and aborted records, and expired tombstones and markers.

    If a service is running, the service executes the command. Exit code 1 means that a partition cannot be cleaned.

    Example: lastword clean fruit-prices --dry-run
    """
    if dry_run:
        one = with_spark(log_dir).topic(topic)
        receipts = [receipt.to_details() for receipt in one.preview_clean(force=force)]
        reports = one.explain(force=force)
    else:
        result = carried_out(requests.Clean(topic=topic, force=force), log_dir, timeout)
        receipts, reports = result["receipts"], [PartitionReport(**report) for report in result["reports"]]
    failed = any(report.uncleanable_reason or report.failure for report in reports)
    if as_json:
        for receipt in receipts:
            sys.stdout.write(json.dumps(receipt) + "\n")
    elif receipts:
        out.print(cleaning_tables.receipts_table(receipts, f"{topic}: {'would be cleaned' if dry_run else 'cleaned'}"))
        if dry_run and (more := cleaning_tables.first_round_only(receipts, reports)):
            out.print(more)
    if not as_json and (failed or not receipts):
        title = f"{topic}: {'partition status' if receipts else 'nothing to clean'}"
        out.print(cleaning_tables.explanation_table(reports, title, clock.now_ms()))
    raise typer.Exit(1 if failed else 0)


def explain(topic: Topic, as_json: Json = False, log_dir: LogDirOption = "data") -> None:
    """Show for each partition whether it is eligible for cleaning, or what holds it back and until when. Writes no records.

    Example: lastword explain fruit-prices
    """
    now_ms = clock.now_ms()
    reports = LogDir(None, log_dir, session_settings=QUIET).topic(topic).explain(now_ms)
    if as_json:
        for one in reports:
            sys.stdout.write(json.dumps(dataclasses.asdict(one)) + "\n")
    else:
        out.print(cleaning_tables.explanation_table(reports, f"{topic}: cleaning status", now_ms))


def receipts(topic: Topic, partition: Partition = None, as_json: Json = False, log_dir: LogDirOption = "data") -> None:
    """Show the receipts of past cleanings, oldest first. Example: lastword receipts fruit-prices --partition 0."""
    found = [one.to_details() for one in LogDir(None, log_dir).topic(topic).receipts(partition)]
    if as_json:
        for one in found:
            sys.stdout.write(json.dumps(one) + "\n")
    else:
        out.print(cleaning_tables.receipts_table(found, f"{topic}: receipts"))


def pause(topic: Topic, partition: Partition = None, as_json: Json = False, log_dir: LogDirOption = "data") -> None:
    """Pause cleaning and retention. Takes effect at the next round. Example: lastword pause fruit-prices --partition 0."""
    for one, count in LogDir(None, log_dir).topic(topic).pause(partition).items():
        facts = {"topic": topic, "partition": one, "pauses": count}
        tell(f"partition {one}: paused {_times(count)}", facts, as_json=as_json)


def resume(topic: Topic, partition: Partition = None, as_json: Json = False, log_dir: LogDirOption = "data") -> None:
    """Remove one pause. Example: lastword resume fruit-prices."""
    for one, count in LogDir(None, log_dir).topic(topic).resume(partition).items():
        facts = {"topic": topic, "partition": one, "pauses": count}
        tell(f"partition {one}: {f'still paused {_times(count)}' if count else 'resumed'}", facts, as_json=as_json)


def retention(topic: Topic, as_json: Json = False, timeout: Timeout = ANSWER_SECONDS, log_dir: LogDirOption = "data") -> None:
    """Apply retention: delete segments by log start offset, retention.bytes and retention.ms. Example: lastword retention fruit-prices."""
    gone = carried_out(requests.ApplyRetention(topic=topic), log_dir, timeout)
    if as_json:
        for one in gone:
            sys.stdout.write(json.dumps(one) + "\n")
        return
    for one in gone:
        why = ", ".join(sorted({segment["reason"] for segment in one["segments"]}))
        freed = size(sum(segment["size_bytes"] for segment in one["segments"]))
        count, start = len(one["segments"]), one["log_start_offset"]
        segments = f"{count} segment{'s' if count > 1 else ''}"
        out.print(f"partition {one['partition']}: deleted {segments}, {freed} ({why}); the log starts at offset {start}")
    if not gone:
        out.print(f"{topic}: nothing to delete")


def delete_records(
    topic: Topic,
    before: Annotated[list[str], typer.Argument(help="PARTITION:OFFSET, e.g. 0:1500. Offset -1 is the log end.")],
    timeout: Timeout = ANSWER_SECONDS,
    as_json: Json = False,
    log_dir: LogDirOption = "data",
) -> None:
    """Delete the records below an offset permanently, for all readers. Example: lastword delete-records fruit-prices 0:1500 1:-1."""
    pairs: dict[int, int] = {}
    for text in before:
        partition, _, offset = text.partition(":")
        try:
            pairs[int(partition)] = int(offset)
        except ValueError:
            subject = "the command line"
            raise InvalidConfiguration(subject, [Violation(key="delete-records", value=text, allowed="PARTITION:OFFSET")]) from None
    for one in carried_out(requests.DeleteRecords(topic=topic, before=pairs), log_dir, timeout):
        text = f"partition {one['partition']}: the log starts at offset {one['log_start_offset']}"
        tell(text, {"topic": topic, **one}, as_json=as_json)


def _times(count: int) -> str:
    return f"{count} time{'s' if count > 1 else ''}"
