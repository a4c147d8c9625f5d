"""Rejected rows and stale keys, as a user sees them: commands, the status page, the metrics."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from lastword import ArrowTopic, InvalidRecords, LogDir
from lastword.cli import app as cli
from tests.lastword.status.standings import standing
from tests.lastword.status.standings import topic as topic_standing
from tests.lastword.status.test_metrics import scraped
from tests.lastword.status.test_pages import client

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(name="topic")
def _topic(tmp_path: Path) -> ArrowTopic:
    """Return a topic whose key a is stale: its newer row is too large."""
    topic = LogDir(tmp_path).create_topic("fruit", config={"cleanup.policy": "compact", "max.message.bytes": "50"})
    topic.append([{"key": "a", "value": "1"}, {"key": "b", "value": "1"}])
    topic.append([{"key": "a", "value": "2" * 60}, {"key": None, "value": "3"}], on_invalid="dead-letter")
    return topic


def _run(folder: Path, *arguments: str) -> str:
    result = CliRunner(env={"LASTWORD_LOG_DIR": str(folder), "COLUMNS": "200"}).invoke(cli.app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


def test_dead_letters_say_which_keys_are_stale(topic: ArrowTopic, tmp_path: Path) -> None:
    """All of them, or those alone that make a key stale."""
    shown = [json.loads(line) for line in _run(tmp_path, "dead-letters", "fruit", "--json").splitlines()]
    assert [(letter["reason"], letter["record_key"], letter["stale"]) for letter in shown] == [
        ("oversized", "a", True),
        ("keyless", None, False),
    ]
    shown = [json.loads(line) for line in _run(tmp_path, "dead-letters", "fruit", "--stale", "--json").splitlines()]
    assert [letter["record_key"] for letter in shown] == ["a"]
    topic.append([{"key": "a", "value": "4"}])
    assert _run(tmp_path, "dead-letters", "fruit", "--stale", "--json") == ""


def test_describe_counts_stale_keys(topic: ArrowTopic, tmp_path: Path) -> None:
    """In words and in JSON."""
    assert "1 stale keys" in _run(tmp_path, "topics", "describe", "fruit")
    assert json.loads(_run(tmp_path, "topics", "describe", "fruit", "--json"))["stale_keys"] == 1


def test_the_page_and_the_metrics_count_stale_keys() -> None:
    """And the page says how to see them."""
    of = standing(topic_standing(stale_keys=3))
    assert scraped(of)["lastword_stale_keys", (("topic", "fruit"),)] == 3
    for path in ("/", "/topics/fruit"):
        page = client(of).get(path).text
        assert "3 keys are stale" in page
        assert "lastword dead-letters fruit --stale" in page
    assert client(of).get("/status.json").json()["topics"][0]["stale_keys"] == 3


def test_files_with_a_row_that_is_rejected(topic: ArrowTopic, tmp_path: Path) -> None:
    """Nothing of the file by default; with dead letters all other rows, and the result counts the rejected ones."""
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"key": ["c", "d"], "value": ["5", "6" * 60]}), file)
    refused = CliRunner(env={"LASTWORD_LOG_DIR": str(tmp_path)}).invoke(cli.app, ["append", "fruit", str(file)])
    assert isinstance(refused.exception, InvalidRecords)
    before = topic.records().num_rows
    told = json.loads(_run(tmp_path, "append", "fruit", str(file), "--on-invalid", "dead-letter", "--json"))
    assert told == {"topic": "fruit", "records": 1, "refused": {"oversized": 1}}
    assert topic.records().num_rows == before + 1
