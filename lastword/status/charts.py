"""Charts of a topic as SVG: trends with labelled axes, sparklines, and the records that cleanings removed.

XML by the standard library, so that every text is escaped; colors and fonts are those of static/picture.css.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final
from xml.etree.ElementTree import SubElement, tostring

from lastword.status.drawing import add_text, make_svg

if TYPE_CHECKING:
    from collections.abc import Sequence
    from xml.etree.ElementTree import Element

    from lastword.compaction.planning.receipt import CleaningReceipt
    from lastword.status.trends import Line, Point, Trend

_WIDTH: Final = 340
_HEIGHT: Final = 132
#: The room beside the plot: for the values on the left, and the times below.
_LEFT, _TOP, _BOTTOM = 68, 8, 20
_SPARK_POINTS: Final = 60
#: Reasons in stacking order, with the CSS class of their color.
_REASONS: Final = {
    "superseded": "clean",
    "aborted": "alarm",
    "expired_tombstone": "uncleanable",
    "expired_marker": "active",
    "keyless": "cleanable",
}


def draw_trend(trend: Trend) -> str:
    """Return a trend as a chart: time in UTC from left to right, values from 0 to a round number above the highest."""
    svg = make_svg(_WIDTH, _HEIGHT, trend.summary)
    points = [point for line in trend.lines for point in line.points]
    floor = _HEIGHT - _BOTTOM
    if not points:
        SubElement(svg, "path", {"d": f"M0 {floor}H{_WIDTH}", "class": "axis"})
        add_text(svg, 0, _HEIGHT / 2, "not enough samples yet: one each minute", "soft")
        return tostring(svg, encoding="unicode")
    top = trend.unit.ceiling(max(value for _, value in points))
    for share in (0.0, 0.5, 1.0):
        y = floor - share * (floor - _TOP)
        SubElement(svg, "path", {"d": f"M{_LEFT} {y:.1f}H{_WIDTH}", "class": "axis" if share == 0 else "grid"})
        add_text(svg, _LEFT - 6, y + 4, trend.unit.axis_text(share * top), "soft", anchor="end")
    first, last = min(time_ms for time_ms, _ in points), max(time_ms for time_ms, _ in points)
    for line in trend.lines:
        _add_line(svg, line, (first, last), top)
    for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        time_ms = first + share * (last - first)
        if share in {0.0, 1.0} or last > first:
            add_text(
                svg, _LEFT + share * (_WIDTH - _LEFT), _HEIGHT - 4, _clock(time_ms) + (" UTC" if share == 1 else ""), "soft", anchor=anchor
            )
    return tostring(svg, encoding="unicode")


def draw_sparkline(trend: Trend, *, width: int = 120, height: int = 28) -> str:
    """Return a trend as a line without axes, for a row of a table; its title has the newest and the highest value."""
    svg = make_svg(width, height, trend.summary)
    line = replace(trend.lines[0], pieces=tuple(map(_average, trend.lines[0].pieces)))
    points = line.points
    if points:
        top = max(value for _, value in points) or 1.0
        _add_line(svg, line, (points[0][0], points[-1][0]), top, box=(0, width, 2, height - 2))
    SubElement(svg, "path", {"d": f"M0 {height - 1}H{width}", "class": "axis"})
    return tostring(svg, encoding="unicode")


def _average(piece: Sequence[Point]) -> tuple[Point, ...]:
    """Return a piece of a line with at most a few dozen points, each the average of its neighbors: the row of a table shows no more."""
    width = -(-len(piece) // _SPARK_POINTS)
    parts = [piece[start : start + width] for start in range(0, len(piece), max(1, width))]
    return tuple((part[-1][0], sum(value for _, value in part) / len(part)) for part in parts)


def _add_line(
    svg: Element,
    line: Line,
    times: tuple[int, int],
    top: float,
    *,
    box: tuple[int, int, int, int] = (_LEFT, _WIDTH, _TOP, _HEIGHT - _BOTTOM),
) -> None:
    """Draw the pieces of a line into a box (left, right, top, bottom); a piece of one point is a dot."""
    (first, last), (left, right, ceiling, floor) = times, box

    def at(time_ms: int, value: float) -> tuple[float, float]:
        return left + (time_ms - first) / max(1, last - first) * (right - left), floor - value / top * (floor - ceiling)

    for piece in line.pieces:
        places = [at(*point) for point in piece]
        if len(places) == 1:
            x, y = places[0]
            SubElement(svg, "circle", {"cx": f"{min(max(x, left + 2), right - 2):.1f}", "cy": f"{y:.1f}", "r": "2", "class": "dot"})
        else:
            SubElement(svg, "polyline", {"points": " ".join(f"{x:.1f},{y:.1f}" for x, y in places), "class": line.style})


def _clock(time_ms: float) -> str:
    return datetime.fromtimestamp(time_ms / 1000, timezone.utc).strftime("%H:%M")


def draw_removals(receipts: Sequence[CleaningReceipt], *, most_bars: int = 34) -> str:
    """Return the records that the newest cleanings removed, by reason, as stacked bars; the oldest cleaning is on the left."""
    shown = [receipt for receipt in receipts if receipt.removed_count][-most_bars:]
    most = max((receipt.removed_count for receipt in shown), default=0)
    reasons = " · ".join(reason.replace("_", " ") for reason in _REASONS if any(reason in receipt.removed for receipt in shown))
    svg = make_svg(_WIDTH, _HEIGHT, f"Records removed by the newest {len(shown)} cleanings, at most {most:,} by one: {reasons or 'none'}")
    floor = float(_HEIGHT - _BOTTOM)
    for number, receipt in enumerate(shown):
        y = floor
        for reason, style in _REASONS.items():
            tall = receipt.removed.get(reason, 0) / most * (floor - _TOP - 10)
            y -= tall
            if tall:
                bar = SubElement(
                    svg, "rect", {"x": str(number * 10), "y": f"{y:.1f}", "width": "8", "height": f"{tall:.1f}", "class": style}
                )
                SubElement(bar, "title").text = f"partition {receipt.partition}: {receipt.removed[reason]:,} {reason.replace('_', ' ')}"
    SubElement(svg, "path", {"d": f"M0 {floor:.0f}H{_WIDTH}", "class": "axis"})
    add_text(svg, 0, _TOP + 3, f"{most:,} records" if shown else "no records removed yet", "soft")
    if shown:
        x = 0.0
        for reason, style in _REASONS.items():
            if any(reason in receipt.removed for receipt in shown):
                name = reason.replace("_", " ")
                SubElement(svg, "rect", {"x": f"{x:.1f}", "y": str(_HEIGHT - 13), "width": "9", "height": "9", "class": style})
                add_text(svg, x + 12, _HEIGHT - 4, name, "soft")
                x += 20 + 7.3 * len(name)
    return tostring(svg, encoding="unicode")
