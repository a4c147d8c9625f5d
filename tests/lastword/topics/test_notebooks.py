"""What a notebook shows: topics, a log.dir, results and the drawing of a log."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any
from xml.etree.ElementTree import fromstring

import pytest

import lastword
from lastword import LogDir, UnknownTopic, UserError, plot_log
from lastword.compaction.display import MOMENTS, Displayed
from tests.pictures import T0, rows

if TYPE_CHECKING:
    from pathlib import Path

#: Fields of results that are durations.
_DURATIONS = {"index_ms", "total_ms", "overdue_ms", "timeout_ms"}
#: Public dataclasses that are settings or what somebody gives, not results.
_GIVEN = {"Envelope", "Position", "RegistryConfig", "ServiceConfig", "TopicConfig", "Violation", "Mirror", "Upstream", "UpstreamState"}


def _results() -> list[Any]:
    named = [getattr(lastword, name) for name in lastword.__all__ if name not in _GIVEN]
    return [one for one in named if isinstance(one, type) and dataclasses.is_dataclass(one)]


def test_every_result_shows_itself_and_its_times_as_what_they_are() -> None:
    """A new result, or a new field of one, is decided here: a moment or a duration."""
    without = {one.__name__ for one in _results() if not issubclass(one, Displayed) and not hasattr(one, "_repr_svg_")}
    times = {attribute.name for one in _results() for attribute in dataclasses.fields(one) if attribute.name.endswith("_ms")}

    assert without == {"AppendedRange", "AutoCdcFlow", "Deletion", "SnapshotDescription", "SourceCounts"}  # parts of results, a flow
    assert times - {"future_timestamp_ms"} == (MOMENTS - {"last_append_ms"}) | _DURATIONS
    assert all(set(getattr(one, "BRIEF", ())) <= {part.name for part in dataclasses.fields(one)} for one in _results())


def test_a_topic_is_its_partitions_and_its_own_settings(tmp_path: Path) -> None:
    """Markup in a name of a folder stays text."""
    logs = LogDir(tmp_path / "<i>&")
    topic = logs.create_topic("fruit", partitions=2, config={"cleanup.policy": "compact"})
    topic.append(rows("lime=1 kiwi=1 lime=2"))

    html = topic._repr_html_()

    assert html.startswith(f"<p><b>topic fruit</b> in {tmp_path}/&lt;i&gt;&amp;/fruit: 2 partitions, 3 records, ")
    assert html.count("<tr><td>") == 2
    assert html.endswith("<p>settings: cleanup.policy = compact</p>")
    assert logs.create_topic("plain")._repr_html_().endswith("<p>settings: all by default</p>")


def test_a_topic_that_cannot_be_read_says_why_in_one_line(tmp_path: Path) -> None:
    """By itself and among others; a drawing of it raises the same."""
    logs = LogDir(tmp_path)
    topic = logs.create_topic("fruit")
    topic.append(rows("lime=1"))
    for path in (tmp_path / "fruit" / "log" / "_delta_log").glob("*.json"):
        path.write_text("<no JSON>", encoding="utf-8")
    logs = LogDir(tmp_path)

    html = logs.topic("fruit")._repr_html_()
    assert html.startswith("<p><b>topic fruit</b>")
    assert "<no JSON>" not in html
    assert "<table" not in html
    assert re.search(r"<td>fruit</td><td>–</td><td>–</td><td>–</td><td>–</td><td>[^–<]+", logs._repr_html_())
    with pytest.raises(UserError):
        plot_log(logs, "fruit")


def test_a_log_dir_is_a_table_of_its_topics(tmp_path: Path) -> None:
    """If there are many topics, only the first ones are read and shown."""
    logs = LogDir(tmp_path, clock=lambda: T0)
    assert logs._repr_html_() == f"<p><b>log.dir</b> {tmp_path}: 0 topics</p><p>none</p>"
    for number in range(61):
        logs.create_topic(f"t{number:02}")
    logs.topic("t00").append(rows("lime=1"))

    html = logs._repr_html_()

    assert html.startswith(f"<p><b>log.dir</b> {tmp_path}: 61 topics, the first 60</p>")
    assert html.count("<tr><td>") == 60
    assert "<td>t00</td><td>1</td><td>1</td>" in html


def test_lists_of_results_are_tables(tmp_path: Path) -> None:
    """What cleans, explains or lists."""
    topic = LogDir(tmp_path).create_topic("fruit", config={"cleanup.policy": "compact"})
    topic.append(rows("lime=1 lime=2"))
    topic.roll()
    lists = [topic.explain(), topic.preview_clean(), topic.clean(), topic.receipts(), topic.readers(), topic.tables(), topic.stale_keys()]

    shown = [found._repr_html_() for found in (*lists, topic.sources(), topic.open_transactions())]  # type: ignore[attr-defined]

    assert ["<table" in html for html in shown] == [True] * 4 + [False] * 5


def test_the_drawing_of_a_log_is_shown_and_saved(tmp_path: Path) -> None:
    """As `lastword plot` writes it."""
    logs = LogDir(tmp_path)
    logs.create_topic("fruit").append(rows("lime=1"))

    plot = plot_log(logs, "fruit")
    plot.save(tmp_path / "log.svg")

    assert fromstring(plot._repr_svg_()).tag == "{http://www.w3.org/2000/svg}svg"  # noqa: S314  our own
    assert (tmp_path / "log.svg").read_text(encoding="utf-8") == plot.svg
    assert repr(plot) == "LogPlot(topic='fruit')"
    with pytest.raises(UserError, match=r"cannot write .*no/log.svg: No such file"):
        plot.save(tmp_path / "no" / "log.svg")
    with pytest.raises(UnknownTopic, match="existing: fruit"):
        plot_log(logs, "plum")
