"""The commands that list what belongs to a topic: of one topic, or of all of them. No JVM."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import pytest
from typer.testing import CliRunner

from lastword import LogDir, Position
from lastword.cli import app as cli
from lastword.compaction.readers import EXPIRATION_MS, Reader
from tests.change_events import append, change
from tests.lastword.cli.widths import terminal_of

if TYPE_CHECKING:
    from pathlib import Path

    from lastword import ArrowTopic

_LISTS: Final = {
    "tables list": "no tables; to make one: lastword materialize TOPIC TABLE",
    "sources list": "no sources: no record has a position of change events",
    "readers list": "no registered readers",
    "transactions list": "no open transactions",
}


def _fill(topic: ArrowTopic, folder: Path) -> None:
    """Give a topic a table, a source, a reader and an open transaction."""
    topic.transaction("loader").append([{"key": "q", "value": "1"}])
    append(topic, change("c", 1, {"connector": "mysql", "name": "shop", "file": "bin.1", "pos": 10, "row": 0}, {"id": 1}))
    topic.materialize(str(folder / topic.name), schema="id int")
    position = Position(offsets=(1,), table_version=1, since_version=1)
    reader = Reader(name="cache", position=position, seen_ms=0, expiration_ms=EXPIRATION_MS)
    topic.log.reader_positions.write(reader, topic.log.ledger)


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a log.dir of three topics, of which two have what is listed."""
    folder = tmp_path_factory.mktemp("lists") / "data"
    for name in ("empty", "orders", "prices"):
        topic = LogDir(folder).create_topic(name, config={"cleanup.policy": "compact"})
        if name != "empty":
            _fill(topic, folder.parent)
    return folder


def _run(folder: Path, *words: str) -> str:
    with terminal_of(200):
        result = CliRunner(env={"LASTWORD_LOG_DIR": str(folder)}).invoke(cli.app, list(words))
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("words", _LISTS)
def test_without_a_topic_those_of_all_topics_are_listed(folder: Path, words: str) -> None:
    """A table for each topic that has any; rows of JSON say of which topic they are, with a topic and without."""
    shown = _run(folder, *words.split())
    rows = [json.loads(line) for line in _run(folder, *words.split(), "--json").splitlines()]
    of_one = [json.loads(line) for line in _run(folder, *words.split(), "orders", "--json").splitlines()]

    assert ["orders: " in shown, "prices: " in shown, "empty: " in shown] == [True, True, False]
    assert {row["topic"] for row in rows} == {"orders", "prices"}
    assert [row["topic"] for row in of_one] == ["orders"] * (len(rows) // 2)
    assert next(iter(of_one[0])) == "topic"
    assert "prices: " not in _run(folder, *words.split(), "orders")


@pytest.mark.parametrize(("words", "nothing"), _LISTS.items())
def test_where_there_is_none_one_line_says_so(folder: Path, tmp_path: Path, words: str, nothing: str) -> None:
    """An empty list of a topic, or of all topics, is one line; with `--json` nothing is printed."""
    LogDir(tmp_path).create_topic("a")
    LogDir(tmp_path).create_topic("b")

    assert _run(folder, *words.split(), "empty").strip() == f"empty: {nothing.replace('TOPIC', 'empty')}"
    assert _run(tmp_path, *words.split()).strip() == f"all topics: {nothing}"
    assert _run(tmp_path, *words.split(), "--json") == ""
