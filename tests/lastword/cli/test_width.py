"""The tables of the commands in a terminal of 80 columns, with long names: nothing is cut, no word stands one letter a line. No JVM."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

import pytest
from typer.testing import CliRunner

from lastword import LogDir, Position
from lastword.cli import app as cli
from lastword.compaction.readers import EXPIRATION_MS, Reader
from lastword.text import fold
from tests.lastword.cli.widths import terminal_of

if TYPE_CHECKING:
    from pathlib import Path

_NAME: Final = "postgres.production.inventory.order_line_items_of_customers_abroad"
_COMMANDS: Final = (
    "topics list",
    "topics describe",
    "receipts",
    "explain",
    "readers list",
    "transactions list",
    "tables list",
    "top --once",
    "dead-letters",
)


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a log.dir whose topic has a bit of everything, under long names."""
    folder = tmp_path_factory.mktemp("width", numbered=False) / "data"
    topic = LogDir(folder).create_topic(_NAME, partitions=2, config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})
    topic.append([{"key": f"k{number % 50}", "value": '{"a": "b"}'} for number in range(5_000)])
    topic.roll()
    topic.clean()
    topic.materialize(str(folder.parent / "tables/production/order_line_items_of_customers_abroad"), schema="a string")
    position = Position(offsets=(1_234_567, 7_654_321), table_version=1, since_version=1)
    reader = Reader(name="the-cache-of-orders-in-the-web-shop", position=position, seen_ms=0, expiration_ms=EXPIRATION_MS)
    topic.log.reader_positions.write(reader, topic.log.ledger)
    wrong = {"order_line_id": 4711, "comment": "a text that goes on for longer than a line of a terminal is " * 3}
    topic.append([{"key": None, "value": json.dumps(wrong)}, {"key": "k1", "value": "2", "partition": 7}], on_invalid="dead-letter")
    topic.transaction("a-transactional-id-of-a-loader-with-a-long-name").append([{"key": "q", "value": "1"}])
    return folder


@pytest.mark.parametrize("words", _COMMANDS)
def test_a_table_is_readable_at_80_columns(folder: Path, words: str) -> None:
    """No cell is cut, no line is longer, and no row of the table has a line of one or two letters for a word."""
    environment = {"LASTWORD_LOG_DIR": str(folder), "LASTWORD_URL": ""}
    with terminal_of(80):
        topic = [] if words in {"topics list", "top --once"} else [_NAME]
        shown = CliRunner(env=environment).invoke(cli.app, [*words.split(), *topic]).stdout

    assert "\u2026" not in shown.replace(" \u2026 ", "")
    assert all(len(line) <= 80 for line in shown.splitlines())


def test_dead_letters_stand_one_below_the_other(folder: Path) -> None:
    """The time, the reason and whether the key is stale; then each column by its name, folded where a line ends, cut at 400 characters."""
    runner = CliRunner(env={"LASTWORD_LOG_DIR": str(folder)})

    with terminal_of(80):
        shown = runner.invoke(cli.app, ["dead-letters", _NAME]).stdout
    lines = shown.splitlines()
    assert [re.sub(r"^\S+Z ", "", line) for line in lines if re.match(r"\d{4}-\d\d-\d\dT", line)] == [
        "keyless",
        "unknown_partition, its key is stale",
    ]
    names = [line.split()[0] for line in lines if re.match(r"  \w", line)]
    assert names == ["detail", "source", "value", "detail", "source", "record_key", "value"]
    assert " ".join(shown.split()).count("a text that goes on for longer than a line") == 3


def test_receipts_say_when_the_cleaning_took_place(folder: Path) -> None:
    """In UTC, to the second; as JSON to the millisecond."""
    runner = CliRunner(env={"LASTWORD_LOG_DIR": str(folder)})

    with terminal_of(80):
        assert re.search(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", runner.invoke(cli.app, ["receipts", _NAME]).stdout)
    assert re.search(r'"cleaned_at": "\d{4}-\d\d-\d\dT[\d:.]{12}Z"', runner.invoke(cli.app, ["receipts", _NAME, "--json"]).stdout)


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("short", ["short"]),
        ("shop.order_lines", ["shop.", "order_", "lines"]),
        ("abcdefghijklmnop", ["abcdefgh", "ijklmnop"]),
        ("a.bcdefghijk", ["a.bcdefg", "hijk"]),
    ],
)
def test_a_long_name_is_broken_behind_its_separators(name: str, lines: list[str]) -> None:
    """And elsewhere only if none of them is near."""
    assert fold(name, 8).split("\n") == lines
    assert fold(name, 8).replace("\n", "") == name
