"""How results show themselves: in a line, and as tables of HTML."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone
from typing import TYPE_CHECKING, ClassVar

import pytest

from lastword.compaction.display import Displayed, ResultList, ResultTuple, html_of_results
from lastword.compaction.planning.receipt import CleaningReceipt

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class _Range(Displayed):
    partition: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class _Result(Displayed):
    topic: str
    key: bytes | None = None
    now_ms: int = 0
    total_ms: int = 12
    ratio: float = 0.5
    seen: datetime | None = None
    removed: Mapping[str, int] = field(default_factory=dict)
    ranges: Mapping[int, _Range] = field(default_factory=dict)
    parts: tuple[_Range, ...] = ()
    names: frozenset[str] = frozenset()
    nested: _Range | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class _Wide(Displayed):
    BRIEF: ClassVar = ("topic", "records")

    topic: str
    records: int
    hidden: str = "not shown in a line"


def _cells(html: str) -> list[str]:
    """Return the texts of the cells of HTML, heads included, without those of tables inside."""
    return [re.sub(r"<[^>]+>", "", cell) for cell in re.findall(r"<t[hd]>(.*?)</t[hd]>", html)]


def test_a_line_leaves_out_defaults_or_names_the_fields_that_matter() -> None:
    """A `…` tells that a class chose its fields."""
    assert repr(_Result(topic="fruit", total_ms=3)) == "_Result(topic='fruit', total_ms=3)"
    assert repr(_Wide(topic="fruit", records=2)) == "_Wide(topic='fruit', records=2, …)"


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("key", b"plum", "plum"),
        ("key", b"\xff\x00", "base64:/wA="),
        ("key", b"<script>", "&lt;script&gt;"),
        ("key", b"a\nb", "a�b"),
        ("key", b"x" * 500, "x" * 199 + "…"),
        ("key", None, "–"),
        ("topic", "", "–"),
        ("topic", "<b>&amp;", "&lt;b&gt;&amp;amp;"),
        ("now_ms", 1_769_860_800_123, "2026-01-31T12:00:00.123Z"),
        ("now_ms", None, "–"),
        ("total_ms", 12, "12"),
        ("ratio", 0.123456, "0.123"),
        ("seen", datetime(2026, 1, 31, tzinfo=timezone.utc), "2026-01-31 00:00:00+00:00"),
        ("removed", {"superseded": 3, "<i>": 1}, "superseded: 3&lt;i&gt;: 1"),
        ("removed", {}, "–"),
        ("names", frozenset({"b", "<a>"}), "&lt;a&gt;, b"),
        ("names", frozenset(), "–"),
    ],
)
def test_a_value_is_shown_as_text_that_is_escaped(name: str, value: object, shown: str) -> None:
    """Keys and values may hold any bytes: none becomes part of the page."""
    fields = {"topic": "t", name: value}

    cells = _cells(_Result(**fields)._repr_html_())  # type: ignore[arg-type]

    assert cells[cells.index(name) + 1] == shown


def test_results_inside_a_result_are_tables() -> None:
    """In a mapping, in a sequence, or one by itself."""
    part = _Range(partition=1, size_bytes=2048)

    for inside in ({"ranges": {1: part}}, {"parts": (part,)}):
        html = _Result(topic="t", **inside)._repr_html_()
        assert "<thead><tr><th>partition</th><th>size_bytes</th></tr></thead><tbody><tr><td>1</td><td>2.0 KiB</td></tr>" in html
    html = _Result(topic="t", nested=part)._repr_html_()
    assert "<tr><th>partition</th><td>1</td></tr><tr><th>size_bytes</th><td>2.0 KiB</td></tr>" in html


@pytest.mark.parametrize("kind", [ResultList, ResultTuple])
def test_several_results_are_a_table_with_the_chosen_columns(kind: type[ResultList[_Wide]]) -> None:
    """They are what they were before: a list, a tuple."""
    results = kind([_Wide(topic="a", records=1), _Wide(topic="b", records=2)])

    assert _cells(results._repr_html_()) == ["topic", "records", "a", "1", "b", "2"]
    assert results == kind.__bases__[0](results)
    assert kind()._repr_html_() == "<p>none</p>"


@pytest.mark.parametrize(("count", "rows", "note"), [(60, 60, None), (61, 60, "1 of 61"), (5000, 60, "4,940 of 5,000")])
def test_a_long_table_shows_its_beginning_and_its_end(count: int, rows: int, note: str | None) -> None:
    """What is left out is counted."""
    html = html_of_results([_Range(partition=number, size_bytes=0) for number in range(count)])

    assert html.count("<tr><td>") == rows
    assert f"<td>{count - 1}</td>" in html
    assert ("<p>" in html) is (note is not None)
    assert note is None or f"<p>{note} in the middle are not shown</p>" in html


def test_a_receipt_of_25_fields_is_a_short_line() -> None:
    """All fields are in its table."""
    names = [one.name for one in fields(CleaningReceipt)]
    given = dict.fromkeys(names, 0) | {"topic": "fruit", "trigger": "dirty ratio", "removed": {"superseded": 7}}

    receipt = CleaningReceipt(**given)  # type: ignore[arg-type]

    assert repr(receipt) == (
        "CleaningReceipt(topic='fruit', partition=0, trigger='dirty ratio', first_dirty_offset=0, end_offset=0, records_before=0, "
        "records_after=0, removed={'superseded': 7}, now_ms=0, …)"
    )
    assert _cells(receipt._repr_html_())[::2] == names
