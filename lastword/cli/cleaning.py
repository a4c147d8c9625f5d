"""Commands about cleaning and deletion: clean, explain, receipts, pause, resume, roll, retention, delete-records."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastword import clock
from lastword.cli import cleaning_tables
from lastword.cli.mistakes import EXIT_FAILED, usage_mistake
from lastword.cli.options import (
    Json,
    LogDirOption,
    Partition,
    Topic,
    Yes,
    confirm,
    open_log_dir,
    out,
    print_json_lines,
    tell,
)
from lastword.compaction.moments import instant
from lastword.text import size

if TYPE_CHECKING:
    from lastword.compaction.planning.log_retention import Deletion
    from lastword.compaction.planning.receipt import CleaningReceipt
    from lastword.topics.explanation import PartitionReport


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
    log = open_log_dir(log_dir).topic(topic)
    cleanings = log.preview_clean(force=force) if dry_run else log.clean(force=force)
    receipts, reports = [_details(receipt) for receipt in cleanings], log.explain(force=force and dry_run)
    has_failed = any(report.uncleanable_reason or report.failure for report in reports)
    if as_json:
        print_json_lines(receipts)
    else:
        _print_cleanings(topic, receipts, reports, is_preview=dry_run, with_status=has_failed or not receipts)
    raise typer.Exit(EXIT_FAILED if has_failed else 0)


def _print_cleanings(
    topic: str, receipts: list[dict[str, Any]], reports: list[PartitionReport], *, is_preview: bool, with_status: bool
) -> None:
    """Print the receipts of cleanings as a table, and `with_status` why the partitions are not cleaned."""
    if receipts:
        out.print(cleaning_tables.receipts_table(receipts, f"{topic}: {'would be cleaned' if is_preview else 'cleaned'}"))
        if is_preview and (more := cleaning_tables.first_round_only(receipts, reports)):
            out.print(more)
    if with_status:
        title = f"{topic}: {'partition status' if receipts else 'nothing to clean'}"
        out.print(cleaning_tables.explanation_table(reports, title, clock.now_ms()))


def explain(topic: Topic, as_json: Json = False, log_dir: LogDirOption = "") -> None:
    """Show for each partition whether it is eligible for cleaning, or what holds it back and until when. Writes no records.

    Example: lastword explain fruit-prices
    """
    now_ms = clock.now_ms()
    reports = open_log_dir(log_dir).topic(topic).explain()
    if as_json:
        print_json_lines(map(dataclasses.asdict, reports))
    else:
        out.print(cleaning_tables.explanation_table(reports, f"{topic}: cleaning status", now_ms))


def receipts(topic: Topic, partition: Partition = None, as_json: Json = False, log_dir: LogDirOption = "") -> None:
    """Show the receipts of past cleanings, oldest first, with their times (UTC). Example: lastword receipts fruit-prices --partition 0."""
    receipts = [_details(receipt) for receipt in open_log_dir(log_dir).topic(topic).receipts(partition)]
    if as_json:
        print_json_lines(receipts)
    else:
        out.print(cleaning_tables.receipts_table(receipts, f"{topic}: receipts"))


def pause(topic: Topic, partition: Partition = None, as_json: Json = False, log_dir: LogDirOption = "") -> None:
    """Pause cleaning and retention. Takes effect at the next round. Example: lastword pause fruit-prices --partition 0."""
    for number, count in open_log_dir(log_dir).topic(topic).pause(partition).items():
        facts = {"topic": topic, "partition": number, "pauses": count}
        tell(f"partition {number}: paused {_times(count)}", facts, as_json=as_json)


def resume(topic: Topic, partition: Partition = None, as_json: Json = False, log_dir: LogDirOption = "") -> None:
    """Remove one pause. Example: lastword resume fruit-prices."""
    for number, count in open_log_dir(log_dir).topic(topic).resume(partition).items():
        facts = {"topic": topic, "partition": number, "pauses": count}
        tell(f"partition {number}: {f'still paused {_times(count)}' if count else 'resumed'}", facts, as_json=as_json)


def retention(topic: Topic, as_json: Json = False, log_dir: LogDirOption = "") -> None:
    """Apply retention: delete segments by log start offset, retention.bytes and retention.ms. Example: lastword retention fruit-prices."""
    deletions = sorted(open_log_dir(log_dir).topic(topic).apply_retention().items())
    if as_json:
        print_json_lines(_deletion_details(partition, deletion) for partition, deletion in deletions)
        return
    for partition, deletion in deletions:
        why = ", ".join(sorted({breach.value for _, breach in deletion.segments}))
        freed = size(sum(segment.size_bytes for segment, _ in deletion.segments))
        segments = f"{len(deletion.segments)} segment{'s' if len(deletion.segments) > 1 else ''}"
        out.print(f"partition {partition}: deleted {segments}, {freed} ({why}); the log starts at offset {deletion.log_start_offset}")
    if not deletions:
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
    for text in texts:
        partition, _, offset = text.partition(":")
        try:
            number, start = int(partition), int(offset)
        except ValueError:
            raise usage_mistake(name="delete-records", value=text, allowed="PARTITION:OFFSET") from None
        if number in pairs:
            raise usage_mistake(name="delete-records", value=text, allowed="name each partition once")
        pairs[number] = start
    return pairs


def _details(receipt: CleaningReceipt) -> dict[str, Any]:
    """Return a receipt as JSON has it, with the time of the cleaning in UTC."""
    return {**receipt.to_details(), "cleaned_at": instant(receipt.now_ms)}


def _deletion_details(partition: int, deletion: Deletion) -> dict[str, Any]:
    """Return the segments that retention deleted from a partition, as JSON has them."""
    return {
        "partition": partition,
        "log_start_offset": deletion.log_start_offset,
        "segments": [
            {
                "base_offset": segment.base_offset,
                "last_offset": segment.last_offset,
                "record_count": segment.record_count,
                "size_bytes": segment.size_bytes,
                "reason": breach.value,
            }
            for segment, breach in deletion.segments
        ],
    }


def _times(count: int) -> str:
    return f"{count} time{'s' if count > 1 else ''}"
