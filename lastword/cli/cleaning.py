"""Commands about cleaning and deletion: clean, explain, receipts, pause, resume, roll, retention, delete-records."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastword import clock
from lastword.cli import cleaning_tables
from lastword.cli.options import (
    Json,
    LogDirOption,
    Partition,
    Topic,
    Yes,
    confirm,
    open_log_dir,
    out,
    tell,
)
from lastword.compaction.errors import InvalidConfiguration, Violation
from lastword.text import size

if TYPE_CHECKING:
    from lastword.compaction.planning.log_retention import Deletion


def roll(
    topic: Topic,
    partition: Partition = None,
    as_json: Json = False,
    log_dir: LogDirOption = "",
) -> None:
    """Close the active segments. Example: lastword roll fruit-prices --partition 0."""
    for number, offset in open_log_dir(log_dir).topic(topic).roll(partition).items():
        facts = {"topic": topic, "partition": number, "offset": offset}
        tell(f"partition {number}: the next segment begins at offset {offset}", facts, as_json=as_json)


def clean(
    topic: Topic,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report rows and bytes that would be removed, by reason.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Ignore the dirty ratio, and try at once what failed before.")] = False,
    as_json: Json = False,
    log_dir: LogDirOption = "",
) -> None:
    """Clean the eligible partitions: remove superseded and aborted records, and expired tombstones and markers.

    Works beside a running service. Exit code 1 means that a partition cannot be cleaned.

    Example: lastword clean fruit-prices --dry-run
    """
    one = open_log_dir(log_dir).topic(topic)
    found = one.preview_clean(force=force) if dry_run else one.clean(force=force)
    receipts, reports = [receipt.to_details() for receipt in found], one.explain(force=force and dry_run)
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


def explain(topic: Topic, as_json: Json = False, log_dir: LogDirOption = "") -> None:
    """Show for each partition whether it is eligible for cleaning, or what holds it back and until when. Writes no records.

    Example: lastword explain fruit-prices
    """
    now_ms = clock.now_ms()
    reports = open_log_dir(log_dir).topic(topic).explain()
    if as_json:
        for report in reports:
            sys.stdout.write(json.dumps(dataclasses.asdict(report)) + "\n")
    else:
        out.print(cleaning_tables.explanation_table(reports, f"{topic}: cleaning status", now_ms))


def receipts(topic: Topic, partition: Partition = None, as_json: Json = False, log_dir: LogDirOption = "") -> None:
    """Show the receipts of past cleanings, oldest first. Example: lastword receipts fruit-prices --partition 0."""
    found = [receipt.to_details() for receipt in open_log_dir(log_dir).topic(topic).receipts(partition)]
    if as_json:
        for receipt in found:
            sys.stdout.write(json.dumps(receipt) + "\n")
    else:
        out.print(cleaning_tables.receipts_table(found, f"{topic}: receipts"))


def pause(topic: Topic, partition: Partition = None, as_json: Json = False, log_dir: LogDirOption = "") -> None:
    """Pause cleaning and retention. Takes effect at the next round. Example: lastword pause fruit-prices --partition 0."""
    for one, count in open_log_dir(log_dir).topic(topic).pause(partition).items():
        facts = {"topic": topic, "partition": one, "pauses": count}
        tell(f"partition {one}: paused {_times(count)}", facts, as_json=as_json)


def resume(topic: Topic, partition: Partition = None, as_json: Json = False, log_dir: LogDirOption = "") -> None:
    """Remove one pause. Example: lastword resume fruit-prices."""
    for one, count in open_log_dir(log_dir).topic(topic).resume(partition).items():
        facts = {"topic": topic, "partition": one, "pauses": count}
        tell(f"partition {one}: {f'still paused {_times(count)}' if count else 'resumed'}", facts, as_json=as_json)


def retention(topic: Topic, as_json: Json = False, log_dir: LogDirOption = "") -> None:
    """Apply retention: delete segments by log start offset, retention.bytes and retention.ms. Example: lastword retention fruit-prices."""
    gone = open_log_dir(log_dir).topic(topic).apply_retention()
    if as_json:
        for partition, deletion in sorted(gone.items()):
            sys.stdout.write(json.dumps(_deletion(partition, deletion)) + "\n")
        return
    for partition, one in sorted(gone.items()):
        why = ", ".join(sorted({breach.value for _, breach in one.segments}))
        freed = size(sum(segment.size_bytes for segment, _ in one.segments))
        segments = f"{len(one.segments)} segment{'s' if len(one.segments) > 1 else ''}"
        out.print(f"partition {partition}: deleted {segments}, {freed} ({why}); the log starts at offset {one.log_start_offset}")
    if not gone:
        out.print(f"{topic}: nothing to delete")


def delete_records(
    topic: Topic,
    before: Annotated[list[str], typer.Argument(help="PARTITION:OFFSET, e.g. 0:1500. Offset -1 is the log end.")],
    yes: Yes = False,
    as_json: Json = False,
    log_dir: LogDirOption = "",
) -> None:
    """Delete the records below an offset permanently, for all readers. Example: lastword delete-records fruit-prices 0:1500 1:-1 --yes."""
    pairs = _read_offsets(before)
    log = open_log_dir(log_dir).topic(topic)
    confirm(f"Delete the records of topic {topic} below {', '.join(before)} for good?", yes=yes)
    for number, start in sorted(log.delete_records(pairs).items()):
        facts = {"topic": topic, "partition": number, "log_start_offset": start}
        tell(f"partition {number}: the log starts at offset {start}", facts, as_json=as_json)


def _read_offsets(texts: list[str]) -> dict[int, int]:
    """Return the offsets that PARTITION:OFFSET texts name, by partition; raise `InvalidConfiguration` for one that is no such text."""
    pairs: dict[int, int] = {}
    subject = "the command line"
    for text in texts:
        partition, _, offset = text.partition(":")
        try:
            number, start = int(partition), int(offset)
        except ValueError:
            raise InvalidConfiguration(subject, [Violation(key="delete-records", value=text, allowed="PARTITION:OFFSET")]) from None
        if number in pairs:
            raise InvalidConfiguration(subject, [Violation(key="delete-records", value=text, allowed="name each partition once")])
        pairs[number] = start
    return pairs


def _deletion(partition: int, one: Deletion) -> dict[str, Any]:
    """Return what retention took from a partition, with JSON's types alone."""
    return {
        "partition": partition,
        "log_start_offset": one.log_start_offset,
        "segments": [
            {
                "base_offset": segment.base_offset,
                "last_offset": segment.last_offset,
                "record_count": segment.record_count,
                "size_bytes": segment.size_bytes,
                "reason": breach.value,
            }
            for segment, breach in one.segments
        ],
    }


def _times(count: int) -> str:
    return f"{count} time{'s' if count > 1 else ''}"
