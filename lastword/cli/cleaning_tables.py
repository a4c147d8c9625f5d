"""Terminal tables of receipts and of the cleaning status of partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rich import box
from rich.table import Table
from rich.text import Text

from lastword.cli.tables import second
from lastword.compaction.planning.planner import Obstacle
from lastword.text import size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lastword.topics.explanation import PartitionReport

_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS
_DAY_MS = 24 * _HOUR_MS


def receipts_table(receipts: Sequence[Mapping[str, Any]], title: str) -> Table:
    """Return receipts (dicts as in JSON) as a table: what was cleaned and when, records and bytes before and after, removed by reason.

    The bytes of a reason are an estimate.
    """
    table = _table(title, ("part", "dirty section", "records", "size", "segments", "removed"), left={"dirty section", "removed"})
    for receipt in receipts:
        about = {reason: f"\n≈ {size(taken)}" for reason, taken in receipt.get("removed_bytes", {}).items()}
        removed = [f"{reason.replace('_', ' ')} {count:,}{about.get(reason, '')}" for reason, count in receipt["removed"].items()]
        notes, trigger = removed or ["nothing"], receipt["trigger"].replace("_", " ")
        if receipt["rounds_left"]:
            more = f"{receipt['rounds_left']} more round{'s' if receipt['rounds_left'] > 1 else ''}"
            notes.append(f"cut by the map budget ({100 * receipt['map_utilization']:.0f} % full), {more}")
        after = (
            ""
            if receipt["bytes_after"] is None
            else f"\n→ {size(receipt['bytes_after'])}\n{_less(receipt['bytes_after'], receipt['bytes_before'])}"
        )
        table.add_row(
            str(receipt["partition"]),
            f"[{receipt['first_dirty_offset']}, {receipt['end_offset']})\n{trigger}\n{second(receipt['now_ms'])}",
            f"{receipt['records_before']:,}\n→ {receipt['records_after']:,}\n{_less(receipt['records_after'], receipt['records_before'])}",
            f"{size(receipt['bytes_before'])}{after}",
            f"{receipt['segments_before']} → {receipt['groups']}",
            "\n".join(notes),
        )
    return table


def first_round_only(receipts: Sequence[Mapping[str, Any]], reports: Sequence[PartitionReport]) -> str:
    """Return the note of a dry run whose cleaning needs more than one round; "" if one round is enough."""
    waiting = {report.partition for report in reports if report.obstacle == Obstacle.NO_ROOM.value} - {
        receipt["partition"] for receipt in receipts
    }
    left = sorted(waiting | {receipt["partition"] for receipt in receipts if receipt["rounds_left"]})
    if not left:
        return ""
    return f"only the first round is shown: the map budget requires more rounds for partitions {', '.join(map(str, left))}"


def explanation_table(reports: Sequence[PartitionReport], title: str, now_ms: int) -> Table:
    """Return a table with one row per partition: why it is eligible, or what holds it back and until when."""
    table = _table(title, ("part", "status", "dirty ratio", "threshold", "cleanable"), left={"status", "cleanable"})
    for report in reports:
        lines = [f"eligible: {report.trigger}" if report.eligible else f"held back: {report.obstacle}"]
        lines += [reason for reason in (report.uncleanable_reason, report.failure) if reason]
        lines += [f"cleaner checkpoint reset: {report.checkpoint_reset}"] if report.checkpoint_reset else []
        lines += [] if report.eligible or report.eligible_at_ms is None else [f"eligible at {when(report.eligible_at_ms, now_ms)}"]
        table.add_row(
            str(report.partition),
            Text("\n".join(lines)),
            f"{report.ratio:.3g}",
            f"> {report.threshold:.3g}",
            Text(f"offsets [{report.first_dirty_offset}, {report.first_uncleanable_offset})\n{report.bound_detail}"),
        )
    return table


def when(moment_ms: int, now_ms: int) -> str:
    """Return an instant and the time until then."""
    left = moment_ms - now_ms
    unit, name = next(((unit, name) for unit, name in ((_DAY_MS, "d"), (_HOUR_MS, "h"), (_MINUTE_MS, "min")) if left >= unit), (1000, "s"))
    return f"{second(moment_ms)} (in {left / unit:.1f} {name})"


def _less(after: int, before: int) -> str:
    return f"−{100 * (1 - after / before):.1f} %" if before else "−"


_WHOLE: Final = frozenset({"part", "dirty section", "records", "size", "segments"})


def _table(title: str, columns: Sequence[str], *, left: set[str]) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left", header_style="bold")
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right", overflow="fold", no_wrap=name in _WHOLE)
    return table
