"""Options of the command line: each is used or refused; what is deleted for good is asked about first. No JVM."""

from __future__ import annotations

import json
import math
from datetime import date, datetime, time, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from lastword import LogDir
from lastword.change_data.columns.connect_schema import columns_of_ddl
from lastword.change_data.columns.table_columns import TableColumns
from lastword.cli import tables
from lastword.cli.app import app
from lastword.compaction.errors import InvalidConfiguration, UserError
from lastword.copying import copy_topic
from lastword.storage.ledger.table_columns import keep_columns
from tests.pictures import log, rows

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result

    from lastword import ArrowTopic

#: Many of these take half a second or more; `make quick` leaves them to `make test`.
pytestmark = pytest.mark.long

_COMPACT = {"cleanup.policy": "compact,delete"}


@pytest.fixture
def topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ArrowTopic:
    """Return a topic with two records in the log.dir of the commands."""
    monkeypatch.setenv("LASTWORD_LOG_DIR", str(tmp_path / "data"))
    topic = LogDir(str(tmp_path / "data")).create_topic("fruit", config=_COMPACT)
    topic.append(rows("lime=1 grape=2"))
    return topic


def _run(*words: str, **more: Any) -> Result:
    return CliRunner().invoke(app, list(words), **more)


def _refused(*words: str) -> str:
    """Return the message of a command that refuses its options."""
    done = _run(*words)
    assert (done.exit_code, isinstance(done.exception, UserError)) == (1, True), done.output
    return str(done.exception)


@pytest.mark.parametrize(
    "option",
    [
        ("--on-corrupt-file", "fail"),
        ("--name", "append"),
        ("--follow",),
    ],
    ids=lambda option: option[0],
)
def test_an_option_of_a_query_is_refused_beside_files(topic: ArrowTopic, tmp_path: Path, option: tuple[str, ...]) -> None:
    """It says nothing of a file that is appended in one commit. Nothing is appended."""
    pq.write_table(rows("fig=3"), tmp_path / "a.parquet")
    message = _refused("append", "fruit", str(tmp_path / "a.parquet"), *option)
    assert f"{option[0]} = " in message
    assert "only with --path" in message
    assert log(topic) == ["0 lime=1", "1 grape=2"]


def test_all_options_that_do_nothing_are_named_at_once(topic: ArrowTopic, tmp_path: Path) -> None:
    """The message has a line for each of them."""
    pq.write_table(rows("fig=3"), tmp_path / "a.parquet")
    message = _refused("append", "fruit", str(tmp_path / "a.parquet"), "--name", "q", "--follow")
    assert [line.split(" = ")[0].strip() for line in message.splitlines()[1:]] == ["--name", "--follow"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("topics", "alter", "fruit"), "name a setting to change"),
        (("topics", "alter", "fruit", "--config", "segment.ms=1h", "--delete-config", "segment.ms"), "segment.ms: give --config to change"),
        (("topics", "alter", "fruit", "--config", "segment.ms=1h", "--config", "segment.ms=2h"), "segment.ms = 2h: give each key once"),
        (("top", "--once", "--every", "5"), "--every = 5.0: only without --once and --json"),
        (("top", "--json", "--every", "5"), "--every = 5.0"),
        (("plot", "fruit", "--json"), "with --json name a FILE"),
        (("delete-records", "fruit", "0:1", "0:2", "--yes"), "name each partition once"),
        (("materialize", "fruit", "t", "--once", "--every", "5"), "--every = 5.0: only without --once"),
        (("receipts", "fruit", "--partition", "7"), "topic fruit has no partition 7"),
        (("purge", "fruit", "--key", "a", "--key-base64", "YQ==", "--yes"), "with either --key"),
        (("-c", "a.toml", "run", "-c", "b.toml"), "-c a.toml and -c b.toml: the service has one configuration file"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, tuple) else "",
)
def test_options_that_exclude_each_other_are_refused(topic: ArrowTopic, words: tuple[str, ...], message: str) -> None:
    """One of them would do nothing."""
    assert message in _refused(*words)
    assert dict(topic.describe().overrides) == _COMPACT


@pytest.mark.parametrize(
    ("words", "question"),
    [
        (("purge", "fruit", "--key", "lime"), "Erase the key 'lime' of topic fruit for good?"),
        (("purge", "fruit", "--key", "lime", "--before", "2020-01-01"), "of topic fruit where it is older than 2020-01-01 for good?"),
        (("topics", "delete", "fruit"), "Delete topic fruit of"),
        (("delete-records", "fruit", "0:1"), "Delete the records of topic fruit below 0:1 for good?"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, tuple) else "",
)
def test_what_is_deleted_for_good_is_asked_about(
    topic: ArrowTopic, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], question: str
) -> None:
    """Without a terminal nobody can answer: `--yes` is required, in one line. The answer no deletes nothing, yes deletes."""
    message = _refused(*words)
    assert question in message
    assert message.endswith("There is no terminal to ask at: add --yes to do it")
    assert "\n" not in message
    monkeypatch.setattr("lastword.cli.options.is_interactive", lambda: True)
    done = _run(*words, input="n\n")
    assert (done.exit_code, str(done.exception), question in done.output) == (1, "nothing is deleted", True)
    assert log(topic) == ["0 lime=1", "1 grape=2"]
    done = _run(*words, input="y\n")
    assert (done.exit_code, question in done.output) == (0, True), done.output
    assert _run(*words, "--yes").exit_code in {0, 1, 3}


def test_a_purge_of_a_key_that_nothing_contains_says_so(topic: ArrowTopic) -> None:
    """By its text, by `found` in JSON and by exit code 3; a key that was there ends with 0, and with 3 when it is purged again."""
    done = _run("purge", "fruit", "--key", "zzz", "--yes")
    assert (done.exit_code, done.stdout.startswith("fruit: no file contains the key; nothing was erased (")) == (3, True)
    done = _run("purge", "fruit", "--key", "zzz", "--yes", "--json")
    assert (done.exit_code, json.loads(done.stdout)["found"]) == (3, False)
    done = _run("purge", "fruit", "--key", "lime", "--yes", "--json")
    assert (done.exit_code, json.loads(done.stdout)["found"]) == (0, True)
    assert _run("purge", "fruit", "--key", "lime", "--yes").exit_code == 3
    assert topic.purge("grape").was_found


_COMMANDS = [
    ("topics", "list"),
    ("topics", "describe", "fruit"),
    ("topics", "alter", "fruit", "--config", "segment.ms=1h"),
    ("topics", "delete", "fruit", "--yes"),
    ("topics", "copy", "fruit", "wide"),
    ("queries", "list", "fruit"),
    ("readers", "list", "fruit"),
    ("transactions", "list", "fruit"),
    ("top", "--once"),
    ("plot", "fruit"),
    ("latest", "fruit"),
    ("table", "fruit"),
    ("records", "fruit"),
    ("changes", "fruit", "--from", '{"0":0}', "--to", '{"0":1}'),
    ("dead-letters", "fruit"),
    ("explain", "fruit"),
    ("clean", "fruit"),
    ("roll", "fruit"),
    ("retention", "fruit"),
    ("verify", "fruit"),
    ("purge", "fruit", "--key", "a", "--yes"),
    ("append", "fruit", "--path", "incoming", "--key", "id"),
    ("materialize", "fruit", "target"),
]


@pytest.mark.parametrize("words", _COMMANDS, ids=" ".join)
def test_a_log_dir_that_does_not_exist_is_an_error_of_every_command(tmp_path: Path, words: tuple[str, ...]) -> None:
    """It is not taken for one without topics, and it is not made; neither is a file taken for one."""
    place = ("--log-dir", str(tmp_path / "mistyped"))
    message = _refused(*words, *place)
    assert message.startswith(f"log.dir {tmp_path / 'mistyped'} does not exist: ")
    assert "\n" not in message
    assert not (tmp_path / "mistyped").exists()
    (tmp_path / "mistyped").write_text("")
    assert _refused(*words, *place) == f"log.dir {tmp_path / 'mistyped'} is a file: allowed is a directory"


def test_the_first_topic_makes_its_log_dir(tmp_path: Path) -> None:
    """The commands after it find an empty log.dir once the topic is deleted."""
    place = ("--log-dir", str(tmp_path / "new"))
    assert _run("topics", "create", "fruit", *place).exit_code == 0
    assert _run("topics", "delete", "fruit", "--yes", *place).exit_code == 0
    done = _run("topics", "list", *place)
    assert (done.exit_code, "no topics; to make one: lastword topics create NAME" in done.stdout) == (0, True)


def test_typed_rows_are_strict_json(tmp_path: Path, topic: ArrowTopic) -> None:
    """NaN and the infinities are texts, in nested fields too; a parser that knows no such numbers reads the line."""
    row = {
        "a": math.nan,
        "b": [math.inf, {"c": -math.inf}],
        "d": 1.5,
        "e": Decimal("1.10"),
        "f": date(2026, 1, 2),
        "g": datetime(2026, 1, 2, tzinfo=timezone.utc),
        "h": time(1),
        "i": b"\xff",
        "j": None,
    }
    line = tables.json_line({name: tables.typed(value) for name, value in row.items()})
    assert json.loads(line, parse_constant=pytest.fail) == {
        "a": "NaN",
        "b": ["Infinity", {"c": "-Infinity"}],
        "d": 1.5,
        "e": "1.10",
        "f": "2026-01-02",
        "g": "2026-01-02T00:00:00+00:00",
        "h": "01:00:00",
        "i": "/w==",
        "j": None,
    }
    topic.append([{"key": "k", "value": '{"x":"NaN","y":["Infinity"]}'}])
    done = _run("table", "fruit", "--schema", "x double, y array<double>", "--key", "k", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout, parse_constant=pytest.fail) == {"x": "NaN", "y": ["Infinity"]}


def test_a_copy_knows_the_columns_of_its_source(topic: ArrowTopic, tmp_path: Path) -> None:
    """`table()` of the copy needs no schema, as that of the source; a source without columns gives none."""
    logs = LogDir(str(tmp_path / "data"))
    copy_topic(logs, "fruit", "plain", partitions=2)
    assert logs.topic("plain").log.decisions().columns is None
    known = logs.topic("fruit")
    known.append([{"key": '{"id":1}', "value": '{"price":2.5}'}])
    keep_columns(known.log.ledger, TableColumns(value=columns_of_ddl("price double")).as_details(), now_ms=0, sequence="7")
    copy_topic(logs, "fruit", "typed", partitions=2)
    assert logs.topic("typed").log.decisions().columns == known.log.decisions().columns
    assert logs.topic("typed").table(keys='{"id":1}')["price"].to_pylist() == [2.5]


def test_a_setting_without_a_value_is_refused_with_its_place() -> None:
    """If several `--config` options are wrong, each one is named."""
    message = _refused("topics", "create", "new", "--config", "a", "--config", "=b")
    assert message.count("write KEY=VALUE") == 2
    assert isinstance(_run("topics", "create", "new", "--config", "a").exception, InvalidConfiguration)
