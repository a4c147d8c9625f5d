"""Terminal tables of receipts and of the cleaning status of partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from lastword.compaction.moments import instant
from lastword.compaction.planning.planner import Obstacle
from lastword.text import size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lastword.topics.explanation import PartitionReport

_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS
_DAY_MS = 24 * _HOUR_MS


def receipts_table(receipts: Sequence[Mapping[str, Any]], title: str) -> Table:
    """Return receipts (dicts as in JSON) as a table: records and bytes before and after, and removed by reason (bytes are estimates)."""
    table = _table(title, ("part", "dirty section", "records", "size", "segments", "removed"), left={"dirty section", "removed"})
    for one in receipts:
        about = {reason: f"\n≈ {size(taken)}" for reason, taken in one.get("removed_bytes", {}).items()}
        removed = [f"{reason.replace('_', ' ')} {count:,}{about.get(reason, '')}" for reason, count in one["removed"].items()]
        notes = removed or ["nothing"]
        if one["rounds_left"]:
            more = f"{one['rounds_left']} more round{'s' if one['rounds_left'] > 1 else ''}"
            notes.append(f"cut by the map budget ({100 * one['map_utilization']:.0f} % full), {more}")
        after = "" if one["bytes_after"] is None else f" → {size(one['bytes_after'])}\n{_less(one['bytes_after'], one['bytes_before'])}"
        table.add_row(
            str(one["partition"]),
            f"[{one['first_dirty_offset']}, {one['end_offset']})\n{one['trigger'].replace('_', ' ')}",
            f"{one['records_before']:,} → {one['records_after']:,}\n{_less(one['records_after'], one['records_before'])}",
            f"{size(one['bytes_before'])}{after}",
            f"{one['segments_before']} → {one['groups']}",
            "\n".join(notes),
        )
    return table


def first_round_only(receipts: Sequence[Mapping[str, Any]], reports: Sequence[PartitionReport]) -> str:
    """Return the note of a dry run whose cleaning needs more than one round; "" if one round is enough."""
    waiting = {one.partition for one in reports if one.obstacle == Obstacle.NO_ROOM.value} - {one["partition"] for one in receipts}
    left = sorted(waiting | {one["partition"] for one in receipts if one["rounds_left"]})
    if not left:
        return ""
    return f"only the first round is shown: the map budget requires more rounds for partitions {', '.join(map(str, left))}"


def explanation_table(reports: Sequence[PartitionReport], title: str, now_ms: int) -> Table:
    """Return a table with one row per partition: why it is eligible, or what holds it back and until when."""
    table = _table(title, ("part", "status", "dirty ratio", "threshold", "cleanable"), left={"status", "cleanable"})
    for one in reports:
        lines = [f"eligible: {one.trigger}" if one.eligible else f"held back: {one.obstacle}"]
        lines += [reason for reason in (one.uncleanable_reason, one.failure) if reason]
        lines += [f"cleaner checkpoint reset: {one.checkpoint_reset}"] if one.checkpoint_reset else []
        lines += [] if one.eligible or one.eligible_at_ms is None else [f"eligible at {when(one.eligible_at_ms, now_ms)}"]
        table.add_row(
            str(one.partition),
            Text("\n".join(lines)),
            f"{one.ratio:.3g}",
            f"> {one.threshold:.3g}",
            Text(f"offsets [{one.first_dirty_offset}, {one.first_uncleanable_offset})\n{one.bound_detail}"),
        )
    return table


def when(moment_ms: int, now_ms: int) -> str:
    """Return an instant and the time until then."""
    left = moment_ms - now_ms
    unit, name = next(((unit, name) for unit, name in ((_DAY_MS, "d"), (_HOUR_MS, "h"), (_MINUTE_MS, "min")) if left >= unit), (1000, "s"))
    return f"{instant(moment_ms)} (in {left / unit:.1f} {name})"


def _less(after: int, before: int) -> str:
    return f"−{100 * (1 - after / before):.1f} %" if before else "−"


def _table(title: str, columns: Sequence[str], *, left: set[str]) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left", header_style="bold")
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=name in {"part", "records", "segments"})
    return table
