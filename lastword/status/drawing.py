"""SVG drawings of a log: sections to scale with their offsets (XML by the standard library, so that every text is escaped).

The status page, `lastword plot` and the documentation use the same drawing.
"""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Final
from xml.etree.ElementTree import Element, SubElement, tostring

from lastword.status.standing import SectionKind
from lastword.text import printable, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lastword.compaction.planning.receipt import CleaningReceipt
    from lastword.status.standing import PartitionStanding, TopicStanding
    from lastword.status.watcher import Sample

_WIDTH: Final = 960
_LEFT: Final = 48
_BAR: Final = 26
_ROW: Final = 92
_LEAST_LABEL: Final = 56
#: The style of a drawing in a file of its own; the status page links it.
STYLE: Final = files("lastword.status").joinpath("static/picture.css").read_text(encoding="utf-8")


def draw_topic(topic: TopicStanding, *, alone: bool = True) -> str:
    """Return the partitions of a topic as one SVG, each to its own scale. `alone` adds the style, for a file of its own."""
    height = 34 + _ROW * len(topic.partitions)
    svg = _svg(_WIDTH, height, f"Log of {printable(topic.name, 249)}: {len(topic.partitions)} partitions")
    if alone:
        SubElement(svg, "style").text = STYLE
        SubElement(svg, "rect", {"width": "100%", "height": "100%", "style": "fill:var(--paper)"})
    x = 0
    for kind in SectionKind:
        SubElement(svg, "rect", {"x": str(x), "y": "4", "width": "12", "height": "12", "class": kind.value})
        _text(svg, x + 18, 14, kind.value)
        x += 120
    _text(svg, x, 14, "▼ reader   ┃ last stable offset", "soft")
    for row, partition in enumerate(topic.partitions):
        group = SubElement(svg, "g", {"transform": f"translate(0 {34 + row * _ROW})"})
        readers = [
            (reader.name, reader.offsets[partition.partition]) for reader in topic.readers if partition.partition < len(reader.offsets)
        ]
        _draw_partition(group, partition, readers)
    return tostring(svg, encoding="unicode")


def draw_bar(partition: PartitionStanding, *, width: int = 240, height: int = 12) -> str:
    """Return one partition as a bar without labels; its title lists the sections."""
    svg = _svg(width, height, _summary(partition))
    svg.set("preserveAspectRatio", "none")
    begin, end = partition.report.log_start_offset, partition.report.log_end_offset
    scale = width / max(1, end - begin)
    for section in partition.sections:
        x, w = (section.begin - begin) * scale, max(1.0, (section.end - section.begin) * scale)
        SubElement(svg, "rect", {"x": f"{x:.1f}", "width": f"{w:.1f}", "height": str(height), "class": section.kind.value})
    if partition.report.last_stable_offset < end:
        x = (partition.report.last_stable_offset - begin) * scale
        SubElement(svg, "path", {"d": f"M{x:.1f} 0V{height}", "class": "stable"})
    return tostring(svg, encoding="unicode")


def draw_history(samples: Sequence[Sample], *, width: int = 460, height: int = 120) -> str:
    """Return a plot of size and cleanable bytes of a topic over time."""
    svg = _svg(width, height, "Size over time: total and cleanable bytes")
    most = max((sample.size_bytes for sample in samples), default=0) or 1
    if len(samples) > 1:
        first, last = samples[0].time_ms, samples[-1].time_ms
        for name, values in (
            ("line", [sample.size_bytes for sample in samples]),
            ("line cleanable", [sample.cleanable_bytes for sample in samples]),
        ):
            points = (
                f"{(sample.time_ms - first) / max(1, last - first) * width:.1f},{height - 18 - value / most * (height - 34):.1f}"
                for sample, value in zip(samples, values, strict=True)
            )
            SubElement(svg, "polyline", {"points": " ".join(points), "class": name})
        _text(svg, 0, height - 4, f"{(last - first) / 60_000:.0f} min ago", "soft")
        _text(svg, width, height - 4, "now", "soft", anchor="end")
    else:
        _text(svg, 0, height / 2, "one sample per minute; not enough samples yet", "soft")
    SubElement(svg, "path", {"d": f"M0 {height - 18}H{width}", "class": "axis"})
    _text(svg, 0, 10, size(most), "soft")
    return tostring(svg, encoding="unicode")


#: Reasons in stacking order, with the CSS class of their color.
_REASONS: Final = {
    "superseded": "clean",
    "aborted": "alarm",
    "expired_tombstone": "uncleanable",
    "expired_marker": "active",
    "keyless": "cleanable",
}


def draw_removals(receipts: Sequence[CleaningReceipt], *, width: int = 460, height: int = 120, most_bars: int = 46) -> str:
    """Return the records that the newest cleanings removed, by reason, as stacked bars; the oldest cleaning is on the left."""
    shown = [receipt for receipt in receipts if receipt.removed_count][-most_bars:]
    svg = _svg(width, height, "Records removed by the newest cleanings, by reason")
    most = max((receipt.removed_count for receipt in shown), default=0)
    for number, receipt in enumerate(shown):
        y = float(height - 18)
        for reason, style in _REASONS.items():
            tall = receipt.removed.get(reason, 0) / most * (height - 34)
            y -= tall
            if tall:
                bar = SubElement(
                    svg, "rect", {"x": str(number * 10), "y": f"{y:.1f}", "width": "8", "height": f"{tall:.1f}", "class": style}
                )
                SubElement(bar, "title").text = f"partition {receipt.partition}: {receipt.removed[reason]:,} {reason.replace('_', ' ')}"
    SubElement(svg, "path", {"d": f"M0 {height - 18}H{width}", "class": "axis"})
    _text(svg, 0, 10, f"{most:,} records" if shown else "no records removed yet", "soft")
    if shown:
        _text(
            svg,
            0,
            height - 4,
            " · ".join(reason.replace("_", " ") for reason in _REASONS if any(reason in receipt.removed for receipt in shown)),
            "soft",
        )
    return tostring(svg, encoding="unicode")


def _draw_partition(group: Element, partition: PartitionStanding, readers: Sequence[tuple[str, int]]) -> None:
    report = partition.report
    begin, end = report.log_start_offset, report.log_end_offset
    scale = (_WIDTH - _LEFT - 8) / max(1, end - begin)

    def at(offset: int) -> float:
        return _LEFT + (min(max(offset, begin), end) - begin) * scale

    SubElement(group, "title").text = _summary(partition)
    _text(group, 0, 34, str(partition.partition))
    for section in partition.sections:
        x, width = at(section.begin), max(1.0, (section.end - section.begin) * scale)
        SubElement(group, "rect", {"x": f"{x:.1f}", "y": "16", "width": f"{width:.1f}", "height": str(_BAR), "class": section.kind.value})
        if width >= _LEAST_LABEL + 8 * len(section.kind.value):
            _text(group, x + 6, 33, section.kind.value, "on")
    for segment in partition.segments[1:200]:
        x = at(segment.base_offset)
        SubElement(group, "path", {"d": f"M{x:.1f} 16v{_BAR}", "class": "edge"})
    for name, offset in readers[:20]:
        x = at(offset)
        SubElement(group, "path", {"d": f"M{x:.1f} 15l-4 -7h8z", "class": "reader"})
        SubElement(group[-1], "title").text = f"reader {printable(name, 80)} at {offset}"
    if report.last_stable_offset < end:
        x = at(report.last_stable_offset)
        SubElement(group, "path", {"d": f"M{x:.1f} 10v{_BAR + 12}", "class": "stable"})
    _offset_labels(group, [begin, *(section.end for section in partition.sections)] if partition.sections else [begin], at)
    _text(group, _LEFT, 74, f"{_verdict(partition)}", "soft" if report.eligible or not report.uncleanable_reason else "alarm")


def _offset_labels(group: Element, offsets: Sequence[int], at) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001  a closure
    """Write offsets below the bar. Labels that would overlap are omitted; the log end is always shown."""
    free_from = float("-inf")
    last = at(offsets[-1]) - 8 * len(str(offsets[-1]))
    for offset in offsets[:-1]:
        x = at(offset)
        if x >= free_from and x + 8 * len(str(offset)) < last:
            _text(group, x, 56, str(offset), "soft")
            free_from = x + 8 * len(str(offset)) + 8
    _text(group, at(offsets[-1]), 56, str(offsets[-1]), "soft", anchor="end" if len(offsets) > 1 else "start")


def _verdict(partition: PartitionStanding) -> str:
    report = partition.report
    ratio = f"dirty {100 * report.ratio:.0f} % (threshold {100 * report.threshold:.0f} %)"
    if report.uncleanable_reason:
        return printable(f"uncleanable: {report.uncleanable_reason}", 120)
    verdict = f"eligible: {report.trigger}" if report.eligible else f"{report.obstacle}"
    return printable(f"{ratio} · {verdict} · {report.bound_detail}", 130)


def _summary(partition: PartitionStanding) -> str:
    parts = ", ".join(f"{section.kind.value} [{section.begin}, {section.end})" for section in partition.sections) or "empty"
    return f"partition {partition.partition}: {parts}; {_verdict(partition)}"


def _svg(width: int, height: int, title: str) -> Element:
    svg = Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {width} {height}", "role": "img", "width": str(width)})
    SubElement(svg, "title").text = title
    return svg


def _text(parent: Element, x: float, y: float, text: str, style: str = "", *, anchor: str = "start") -> None:
    SubElement(parent, "text", {"x": f"{x:.1f}", "y": f"{y:.1f}", "class": style, "text-anchor": anchor}).text = text
