"""SVG drawings of a log: sections to scale with their offsets (XML by the standard library, so that every text is escaped).

The status page, `lastword plot` and the documentation use the same drawing.
"""

from __future__ import annotations

from importlib.resources import files
from textwrap import wrap
from typing import TYPE_CHECKING, Final
from xml.etree.ElementTree import Element, SubElement, tostring

from lastword.status.standing import SectionKind
from lastword.text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lastword.status.standing import PartitionStanding, TopicStanding

_WIDTH: Final = 960
_LEFT: Final = 48
_BAR: Final = 26
_ROW: Final = 88
_LINE: Final = 15
#: Characters of the text below a bar that fit into a line, and how many lines there are at the most.
_LINE_CHARACTERS: Final = 122
_MAX_LINES: Final = 4
_LEAST_LABEL: Final = 56
#: The style of a drawing in a file of its own; the status page links it.
STYLE: Final = files("lastword.status").joinpath("static/picture.css").read_text(encoding="utf-8")


def draw_topic(topic: TopicStanding, *, alone: bool = True) -> str:
    """Return the partitions of a topic as one SVG, each to its own scale. `alone` adds the style, for a file of its own."""
    texts = [_wrap(_verdict(partition)) for partition in topic.partitions]
    heights = [_ROW + _LINE * (len(lines) - 1) for lines in texts]
    height = 34 + sum(heights)
    svg = make_svg(_WIDTH, height, f"Log of {printable(topic.name, 249)}: {len(topic.partitions)} partitions")
    if alone:
        SubElement(svg, "style").text = STYLE
        SubElement(svg, "rect", {"width": "100%", "height": "100%", "style": "fill:var(--paper)"})
    x = 0
    for kind in SectionKind:
        SubElement(svg, "rect", {"x": str(x), "y": "4", "width": "12", "height": "12", "class": kind.value})
        add_text(svg, x + 18, 14, kind.value)
        x += 120
    add_text(svg, x, 14, "▼ reader   ┃ last stable offset", "soft")
    y = 34
    for partition, lines, tall in zip(topic.partitions, texts, heights, strict=True):
        group = SubElement(svg, "g", {"transform": f"translate(0 {y})"})
        y += tall
        readers = [
            (reader.name, reader.offsets[partition.partition]) for reader in topic.readers if partition.partition < len(reader.offsets)
        ]
        _draw_partition(group, partition, readers, lines)
    return tostring(svg, encoding="unicode")


def draw_bar(partition: PartitionStanding, *, width: int = 240, height: int = 12) -> str:
    """Return one partition as a bar without labels; its title lists the sections."""
    svg = make_svg(width, height, _summary(partition))
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


def _draw_partition(group: Element, partition: PartitionStanding, readers: Sequence[tuple[str, int]], lines: Sequence[str]) -> None:
    report = partition.report
    begin, end = report.log_start_offset, report.log_end_offset
    scale = (_WIDTH - _LEFT - 8) / max(1, end - begin)

    def at(offset: int) -> float:
        return _LEFT + (min(max(offset, begin), end) - begin) * scale

    SubElement(group, "title").text = _summary(partition)
    add_text(group, 0, 34, str(partition.partition))
    for section in partition.sections:
        x, width = at(section.begin), max(1.0, (section.end - section.begin) * scale)
        SubElement(group, "rect", {"x": f"{x:.1f}", "y": "16", "width": f"{width:.1f}", "height": str(_BAR), "class": section.kind.value})
        if width >= _LEAST_LABEL + 8 * len(section.kind.value):
            add_text(group, x + 6, 33, section.kind.value, f"on of-{section.kind.value}")
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
    style = "soft" if report.eligible or not report.uncleanable_reason else "alarm"
    for number, line in enumerate(lines):
        add_text(group, _LEFT, 74 + _LINE * number, line, style)


def _offset_labels(group: Element, offsets: Sequence[int], at) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001  a closure
    """Write offsets below the bar. Labels that would overlap are omitted; the log end is always shown."""
    free_from = float("-inf")
    last = at(offsets[-1]) - 8 * len(str(offsets[-1]))
    for offset in offsets[:-1]:
        x = at(offset)
        if x >= free_from and x + 8 * len(str(offset)) < last:
            add_text(group, x, 56, str(offset), "soft")
            free_from = x + 8 * len(str(offset)) + 8
    add_text(group, at(offsets[-1]), 56, str(offsets[-1]), "soft", anchor="end" if len(offsets) > 1 else "start")


def _verdict(partition: PartitionStanding) -> str:
    report = partition.report
    ratio = f"dirty {100 * report.ratio:.0f} % (threshold {100 * report.threshold:.0f} %)"
    if report.uncleanable_reason:
        return printable(f"uncleanable: {report.uncleanable_reason}", _MAX_LINES * _LINE_CHARACTERS)
    verdict = f"eligible: {report.trigger}" if report.eligible else f"{report.obstacle}"
    return printable(f"{ratio} · {verdict} · {report.bound_detail}", _MAX_LINES * _LINE_CHARACTERS)


def _wrap(text: str) -> list[str]:
    """Return a text in lines that fit below the bar; what does not fit into the last one ends in an ellipsis."""
    return wrap(text, _LINE_CHARACTERS, max_lines=_MAX_LINES, placeholder=" …") or [""]


def _summary(partition: PartitionStanding) -> str:
    parts = ", ".join(f"{section.kind.value} [{section.begin}, {section.end})" for section in partition.sections) or "empty"
    return f"partition {partition.partition}: {parts}; {_verdict(partition)}"


def make_svg(width: int, height: int, title: str) -> Element:
    """Return an empty drawing, whose title is read out in its place."""
    svg = Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {width} {height}", "role": "img", "width": str(width)})
    SubElement(svg, "title").text = title
    return svg


def add_text(parent: Element, x: float, y: float, text: str, style: str = "", *, anchor: str = "start") -> None:
    """Add a text at a place; `anchor` says which end of it lies there."""
    SubElement(parent, "text", {"x": f"{x:.1f}", "y": f"{y:.1f}", "class": style, "text-anchor": anchor}).text = text
