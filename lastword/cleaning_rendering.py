"""Cleanings and their plans for people: tables of receipts and explanations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from lastword.rendering import instant, size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lastword.explanation import PartitionReport

_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS
_DAY_MS = 24 * _HOUR_MS


def receipts_table(receipts: Sequence[Mapping[str, Any]], title: str) -> Table:
    """Return receipts (as JSON's types) as a table: what went by reason, records and bytes before and after."""
    table = _table(title)
    for name in ("part", "dirty section", "why", "records", "size", "segments", "removed", "map", "notes"):
        table.add_column(name, justify="left" if name in {"dirty section", "why", "removed", "notes"} else "right")
    for one in receipts:
        after = "" if one["bytes_after"] is None else f" → {size(one['bytes_after'])} ({_less(one['bytes_after'], one['bytes_before'])})"
        table.add_row(
            str(one["partition"]),
            f"{one['first_dirty_offset']} … {one['end_offset']}",
            one["trigger"].replace("_", " "),
            f"{one['records_before']:,} → {one['records_after']:,} ({_less(one['records_after'], one['records_before'])})",
            f"{size(one['bytes_before'])}{after}",
            f"{one['segments_before']} → {one['groups']}",
            ", ".join(f"{reason.replace('_', ' ')} {count:,}" for reason, count in one["removed"].items()) or "nothing",
            f"{100 * one['map_utilization']:.1f} %",
            f"cut by the map budget, {one['rounds_left']} rounds left" if one["rounds_left"] else "",
        )
    return table


def explanation_table(reports: Sequence[PartitionReport], topic: str, now_ms: int) -> Table:
    """Return for each partition whether it is eligible and why, or what holds it back and until when."""
    table = _table(f"{topic}: what would be cleaned")
    for name in ("part", "verdict", "dirty ratio", "dirty from", "cleanable to", "held by", "eligible"):
        table.add_column(name, justify="left" if name in {"verdict", "held by", "eligible"} else "right")
    for one in reports:
        verdict = f"[green]eligible[/green]: {one.trigger}" if one.eligible else one.obstacle or ""
        notes = [one.uncleanable_reason, one.checkpoint_reset and f"cleaner checkpoint reset: {one.checkpoint_reset}"]
        table.add_row(
            str(one.partition),
            "\n".join([verdict, *(note for note in notes if note)]),
            f"{one.ratio:.2f} of {one.threshold:.2f}",
            str(one.first_dirty_offset),
            str(one.first_uncleanable_offset),
            one.bound_detail,
            "now" if one.eligible else when(one.eligible_at_ms, now_ms),
        )
    return table


def when(moment_ms: int | None, now_ms: int) -> str:
    """Return an instant and how far away it is; "" when nobody knows."""
    if moment_ms is None:
        return ""
    left = moment_ms - now_ms
    unit, name = next(((unit, name) for unit, name in ((_DAY_MS, "d"), (_HOUR_MS, "h"), (_MINUTE_MS, "min")) if left >= unit), (1000, "s"))
    return f"{instant(moment_ms)} (in {left / unit:.1f} {name})"


def _less(after: int, before: int) -> str:
    return f"−{100 * (1 - after / before):.1f} %" if before else "−"


def _table(title: str) -> Table:
    return Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left", header_style="bold")
