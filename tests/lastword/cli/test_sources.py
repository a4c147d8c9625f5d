"""Sources of change events as an operator sees them: `lastword sources`, `topics describe`, the page, metrics, /readyz, issues."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from lastword.cli import app as cli
from lastword.compaction.order.source_states import SourceCounts
from lastword.status import health
from lastword.status.standing import AppendCounts
from lastword.status.troubles import troubles
from lastword.storage.ledger.decisions import Kind
from lastword.streaming import metrics
from tests.change_events import append, change, topic_in
from tests.lastword.status.standings import source, standing
from tests.lastword.status.standings import topic as topic_standing
from tests.lastword.status.test_metrics import scraped
from tests.lastword.status.test_pages import client

if TYPE_CHECKING:
    from pathlib import Path

    from lastword import ArrowTopic

_LOW = source("mysql.<shop>", epoch=2, lower_positions="0007.1", rows_not_in_snapshot=3)


@pytest.fixture(name="topic")
def _topic(tmp_path: Path) -> ArrowTopic:
    """Return a topic of two sources, of which one has had a gap and a snapshot."""
    topic = topic_in(tmp_path)
    old = {"connector": "mysql", "name": "shop", "file": "bin.1", "row": 0, "table": "t"}
    append(topic, change("c", 1, {**old, "pos": 10}, {"id": 1}), change("c", 2, {"connector": "postgresql", "lsn": 7}, {"id": 2}))
    new = {**old, "file": "bin.2", "snapshot": "true"}
    append(topic, change("r", 3, {**new, "pos": 10}, {"id": 3}), change("u", 3, {**new, "pos": 20, "snapshot": "false"}, {"id": 3}))
    return topic


def _run(folder: Path, *arguments: str, code: int = 0) -> str:
    result = CliRunner(env={"LASTWORD_LOG_DIR": str(folder), "COLUMNS": "200"}).invoke(cli.app, list(arguments))
    assert result.exit_code == code, result.output
    return result.output


def test_the_list_says_what_is_to_be_done(topic: ArrowTopic, tmp_path: Path) -> None:
    """`sources list` shows for each source what to do, for people and as JSON; `describe` shows the same."""
    shown = _run(tmp_path, "sources", "list", topic.name)
    assert "lastword sources sweep t mysql.shop" in shown
    assert "ordered by source.lsn alone" in shown
    found = [json.loads(line) for line in _run(tmp_path, "sources", "list", topic.name, "--json").splitlines()]
    assert {one["name"]: one["rows_not_in_snapshot"] for one in found} == {"mysql.shop": 1, "postgresql": 0}
    described = _run(tmp_path, "topics", "describe", topic.name)
    assert "source mysql.shop: epoch 1" in described
    assert "lastword sources sweep t mysql.shop" in described
    described_sources = json.loads(_run(tmp_path, "topics", "describe", topic.name, "--json"))["sources"]
    assert [{"topic": topic.name, **one} for one in described_sources] == found


def test_a_topic_of_plain_rows_has_no_sources(tmp_path: Path) -> None:
    """And says so."""
    topic_in(tmp_path).append([{"key": "a", "value": "1"}])
    assert "no sources" in _run(tmp_path, "sources", "list", "t")
    assert _run(tmp_path, "sources", "list", "t", "--json") == ""


def test_each_decision_is_made_by_a_command(topic: ArrowTopic, tmp_path: Path) -> None:
    """And is a row of the ledger; what is decided already changes nothing."""
    assert "deleted 1 rows" in _run(tmp_path, "sources", "sweep", "t", "mysql.shop", "--yes")
    again = json.loads(_run(tmp_path, "sources", "sweep", "t", "mysql.shop", "--yes", "--json"))
    assert again == {"topic": "t", "source": "mysql.shop", "deleted": 0}
    assert "is in epoch 2" in _run(tmp_path, "sources", "new-epoch", "t", "mysql.shop", "--yes")
    assert "is retired" in _run(tmp_path, "sources", "retire", "t", "postgresql", "--yes")
    assert "nothing to do" in _run(tmp_path, "sources", "retire", "t", "postgresql", "--yes")
    assert "retired" in _run(tmp_path, "sources", "list", "t")
    assert "source postgresql: retired" in _run(tmp_path, "topics", "describe", "t")
    back = json.loads(_run(tmp_path, "sources", "retire", "t", "postgresql", "--undo", "--yes", "--json"))
    assert back == {"topic": "t", "source": "postgresql", "retired": False, "changed": True}
    kinds = {row.kind for row in topic.log.ledger.rows()}
    assert {Kind.SOURCE, Kind.SWEEP, Kind.SNAPSHOT} <= kinds


def test_lower_positions_are_an_issue_everywhere(tmp_path: Path) -> None:
    """Issues, /readyz, the page, the metrics; a name of a source is no markup."""
    now = standing(topic_standing(sources=(_LOW,)))
    texts = [one.text for one in troubles(now, now.taken_ms) if one.critical]
    assert any("lastword sources new-epoch" in text for text in texts)
    assert any("3 rows of source mysql.<shop>" in one.text for one in troubles(now, now.taken_ms))
    reasons = health.ready(now, heartbeat_ms=now.taken_ms, now_ms=now.taken_ms).reasons
    assert any("mysql.<shop>" in reason for reason in reasons)
    fine = standing(topic_standing(sources=(replace(_LOW, lower_positions="", rows_not_in_snapshot=0),)))
    assert not [one for one in troubles(fine, fine.taken_ms) if "source" in one.text]
    counts = AppendCounts(sources={_LOW.name: SourceCounts(rows=1_234, late=56)})
    page = client(standing(topic_standing(sources=(_LOW, replace(_LOW, name="b", retired=True)), appends=counts))).get("/topics/fruit").text
    assert "mysql.&lt;shop&gt;" in page
    assert ">1,234<" in page
    assert "retired" in page
    values, labels = scraped(now), (("source", "mysql.<shop>"), ("topic", "fruit"))
    assert [values[f"lastword_source_{name}", labels] for name in ("epoch", "needs_epoch", "rows_not_in_snapshot")] == [2, 1, 3]


def test_sources_are_counted_by_name_up_to_a_limit() -> None:
    """All others are one, so that the number of series stays bounded."""
    name = "of many sources"
    metrics.count_sources(name, {"a": SourceCounts(rows=3, late=1, without_position=1, lower_positions=1), "b": SourceCounts(rows=1)})
    metrics.count_sources(name, {f"{number}": SourceCounts(rows=1) for number in range(metrics.MAX_SOURCES + 5)})
    found = metrics.source_counts()[name]
    assert found["a"] == SourceCounts(rows=3, late=1, without_position=1, lower_positions=1)
    assert len(found) == metrics.MAX_SOURCES + 1
    assert found[metrics.OTHER_SOURCES].rows == 7
    metrics.forget_topic(name)
    assert name not in metrics.source_counts()
