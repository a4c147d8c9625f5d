"""The command line: the verbs of the API for people and for pipes; a mistake is one message, never a stack trace."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer
from typer.testing import CliRunner

from lastword import LogDir
from lastword.cli import app as cli
from lastword.cli import options as cli_options
from lastword.compaction.errors import InvalidConfiguration, ProducerFenced, UnknownTopic, UserError
from lastword.storage.ledger.decisions import Decision, Kind
from tests.clocks import at
from tests.pictures import latest, log, rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession
    from typer.testing import Result


_COMPACT = {"cleanup.policy": "compact"}
_ROOT = Path(__file__).resolve().parents[3]


class Shell:
    """Runs commands against one log.dir, in this process and its Spark session."""

    def __init__(self, logs: LogDir) -> None:
        """Name the log.dir."""
        self._environment = {"LASTWORD_LOG_DIR": logs.location}

    def __call__(self, *words: str) -> str:
        """Return what a command that must succeed prints."""
        done = self.run(*words)
        assert done.exit_code == 0, f"{words}: {done.output}{done.exception!r}"
        return done.stdout

    def json(self, *words: str) -> list[dict[str, Any]]:
        """Return the JSON Lines that a command prints."""
        text = self(*words, "--json")
        assert text == "" or text.endswith("\n")
        return [json.loads(line) for line in text.split("\n")[:-1]]

    def error(self, kind: type[UserError], *words: str) -> str:
        """Return the message of a command that must fail by the user's mistake."""
        done = self.run(*words)
        assert done.exit_code == 1
        assert isinstance(done.exception, kind)
        return str(done.exception)

    def run(self, *words: str) -> Result:
        """Run a command whatever comes of it."""
        return CliRunner(env=self._environment).invoke(cli.app, list(words))


@pytest.fixture
def lastword(spark: SparkSession, logs: LogDir) -> Iterator[Shell]:
    """Return the command line of an empty log.dir; the handlers that a service sets for signals go with it."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield Shell(logs)
    for number, handler in before.items():
        signal.signal(number, handler)


def _process(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the command line as a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    return subprocess.run(  # noqa: S603  our own interpreter
        [sys.executable, "-c", "from lastword.cli.app import main; main()", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


# --- topics -------------------------------------------------------------------------------------------------------------------------


def test_topics_are_created_listed_altered_and_deleted(lastword: Shell, logs: LogDir) -> None:
    """No record, no Spark; settings as key=value, in human units."""
    created = lastword(
        "topics", "create", "fruit", "--partitions", "4", "--config", "cleanup.policy=compact", "--config", "segment.bytes=1MiB"
    )
    assert created == "created topic fruit with 4 partitions\n"
    assert lastword("topics", "create", "prices") == "created topic prices with 1 partition\n"
    assert re.search(r"fruit +4 +0 +0 B +never\s+prices +1 +0 +0 B +never", lastword("topics", "list"))
    nothing = {"records": 0, "size_bytes": 0, "last_append_ms": None, "error": None}
    listed = [{"topic": "fruit", "partitions": 4, **nothing}, {"topic": "prices", "partitions": 1, **nothing}]
    assert lastword.json("topics", "list") == listed
    assert (logs.topic("fruit").partitions, logs.topic("fruit").config.segment_bytes) == (4, 1_048_576)
    altered = ("topics", "alter", "fruit", "--config", "segment.ms=12h", "--config", "retention.ms = 5", "--delete-config", "segment.bytes")
    assert lastword(*altered) == "altered topic fruit\n"
    assert dict(logs.topic("fruit").describe().overrides) == {"cleanup.policy": "compact", "segment.ms": "43200000", "retention.ms": "5"}
    assert lastword("topics", "delete", "prices", "--yes") == "deleted topic prices\n"
    assert [row["topic"] for row in lastword.json("topics", "list")] == ["fruit"]


def test_describe_shows_partitions_segments_and_settings(
    lastword: Shell, logs: LogDir, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For people as tables, for pipes as one JSON object."""
    monkeypatch.setattr(cli_options.out, "width", 140)
    topic = logs.create_topic("fruit", partitions=2, config=_COMPACT)
    topic.append(rows("grape=1 lime=1 grape=2", partition=1, timestamp_ms=1_700_000_000_123))
    assert lastword("roll", "fruit", "--partition", "1") == "partition 1: the next segment begins at offset 3\n"
    assert lastword("roll", "fruit") == ""
    topic.append(rows("lime=∅", partition=1, timestamp_ms=0))
    text = lastword("topics", "describe", "fruit")
    assert re.search(r"fruit +4 records, .* KiB, table version\s+2", text)
    assert "cleanup.policy = compact" in text
    assert "2023-11-14" not in text
    with_segments = lastword("topics", "describe", "fruit", "--segments")
    assert re.search(r"1 +0 +0 … 2 +3 .* closed", with_segments)
    assert re.search(r"1 +3 +3 … 3 +1 .* active", with_segments)
    (found,) = lastword.json("topics", "describe", "fruit")
    assert (found["name"], found["table_version"], found["overrides"]) == ("fruit", 2, _COMPACT)
    assert [(one["partition"], one["log_end_offset"], one["record_count"]) for one in found["partitions"]] == [(0, 0, 0), (1, 4, 4)]
    assert [one["max_timestamp_ms"] for one in found["partitions"][1]["segments"]] == [1_700_000_000_123, 0]


def test_copy_makes_a_topic_with_another_number_of_partitions(lastword: Shell, logs: LogDir, spark: SparkSession) -> None:
    """And says how many records came along."""
    logs.create_topic("fruit", config=_COMPACT).append(rows("grape=1 lime=1 grape=2 kiwi=∅"))
    assert lastword("topics", "copy", "fruit", "wide", "--partitions", "3") == "copied 4 records from fruit to wide\n"
    assert (logs.topic("wide").partitions, latest(logs.topic("wide"))) == (3, {"grape": "2", "lime": "1"})


# --- records ------------------------------------------------------------------------------------------------------------------------


def test_records_and_latest_are_shown_in_order_and_as_json_lines(lastword: Shell, logs: LogDir, spark: SparkSession) -> None:
    """By partition, from an offset, up to a limit; tombstones are null, and said to be tombstones in a table."""
    topic = logs.create_topic("fruit", partitions=2, config=_COMPACT)
    given = [("grape", '{"price":1.5}', 0), ("lime", "plain", 0), ("grape", None, 0), ("kiwi", "[1,2]", 1), ("fig", '"text"', 1)]
    schema = "key string, value string, partition int, timestamp bigint, headers array<struct<key:string,value:binary>>"
    headers = [("source", bytearray(b"orchard")), ("raw", bytearray(b"\xff"))]
    at(0, topic).append(spark.createDataFrame([(*row, 1_700_000_000_123, headers) for row in given], schema))

    found = lastword.json("records", "fruit")
    assert [(row["partition"], row["offset"], row["key"], row["value"]) for row in found] == [
        (0, 0, "grape", '{"price":1.5}'),
        (0, 1, "lime", "plain"),
        (0, 2, "grape", None),
        (1, 0, "kiwi", "[1,2]"),
        (1, 1, "fig", '"text"'),
    ]
    assert (found[0]["timestamp"], found[0]["appended_at"]) == ("2023-11-14T22:13:20.123+00:00", "1970-01-01T00:00:00.000+00:00")
    assert found[0]["headers"] == [{"key": "source", "value": "orchard"}, {"key": "raw", "value": {"base64": "/w=="}}]

    def places(*options: str) -> list[tuple[int, int]]:
        return [(row["partition"], row["offset"]) for row in lastword.json("records", "fruit", *options)]

    assert places("--partition", "1") == [(1, 0), (1, 1)]
    assert places("--from-offset", "1") == [(0, 1), (0, 2), (1, 1)]
    assert places("--partition", "0", "--from-offset", "1", "--limit", "1") == [(0, 1)]
    assert "no partition 9: allowed is 0 to 1" in lastword.error(UserError, "records", "fruit", "--partition", "9")
    decoded = lastword.json("records", "fruit", "--decode", "json")
    assert [row["value"] for row in decoded] == [{"price": 1.5}, "plain", None, [1, 2], "text"]
    newest = lastword.json("latest", "fruit", "--decode", "json")
    assert [(row["key"], row["value"], row["offset"]) for row in newest] == [("lime", "plain", 1), ("fig", "text", 1), ("kiwi", [1, 2], 0)]
    assert len(lastword.json("latest", "fruit", "--limit", "2")) == 2

    text = lastword("records", "fruit", "--limit", "3")
    assert re.search(r"0 +2 +2023-11-14\S* +grape +tombstone", text)
    assert "kiwi" not in text
    assert "… more rows exist. Use --limit for more than 3 rows, or --json for all." in text
    assert "more rows" not in lastword("latest", "fruit", "--limit", "3")


def test_times_are_utc_wherever_the_machine_is(lastword: Shell, logs: LogDir, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark hands out times of the machine's zone; an hour that a change of clocks doubles stays two hours."""
    topic = logs.create_topic("fruit", config=_COMPACT)
    twice_half_past_one_ms = (1_699_162_200_000, 1_699_165_800_000)  # 2023-11-05, New York: summer time, then winter time
    for timestamp_ms in twice_half_past_one_ms:
        at(0, topic).append(rows("grape=1", timestamp_ms=timestamp_ms))
    import time  # noqa: PLC0415  only this test turns the clock

    try:
        with monkeypatch.context() as patch:
            patch.setenv("TZ", "America/New_York")
            time.tzset()
            found = lastword.json("records", "fruit")
    finally:
        time.tzset()
    assert [row["timestamp"] for row in found] == ["2023-11-05T05:30:00.000+00:00", "2023-11-05T06:30:00.000+00:00"]
    assert {row["appended_at"] for row in found} == {"1970-01-01T00:00:00.000+00:00"}


_HOSTILE_KEYS = [
    b"",
    b"\x1b[31mred\x1b[0m",
    b"a\nb\r\tc\x00\x07\x7f",
    b"\xff\xfe not UTF-8 \x80",
    "\u202egnp.exe \u2028 \u0085 \ufeff".encode(),
    b"[bold]not markup[/bold] [/] :smile:",
    b"k" * 5_000,
    "\U0001f34e 苹果 é".encode(),
]
_HOSTILE_VALUES = [
    b'"\\ud800"',
    b"NaN",
    b'{"a": [1e999, -Infinity]}',
    b"[" * 100_000,
    b"9" * 5_000,
    b'{"a":',
    b"\xff",
    b'{"\\u0000": null}',
]


def test_hostile_keys_and_values_break_neither_the_table_nor_the_json(lastword: Shell, logs: LogDir, spark: SparkSession) -> None:
    """Control characters, escape sequences, invalid UTF-8, markup; JSON that cannot be written again is shown as its text."""
    topic = logs.create_topic("fruit", config=_COMPACT)
    given = [(bytearray(key), bytearray(value)) for key, value in zip(_HOSTILE_KEYS, _HOSTILE_VALUES, strict=True)]
    topic.append(spark.createDataFrame(given, "key binary, value binary"))
    for decode in ("utf8", "json"):
        text = lastword("records", "fruit", "--decode", decode, "--json")
        text.encode()  # no lone surrogates
        found = [json.loads(line, parse_constant=pytest.fail) for line in text.split("\n")[:-1]]
        assert len(found) == len(given)
        for key, row in zip(_HOSTILE_KEYS, found, strict=True):
            shown = row["key"]
            assert shown == key.decode() if isinstance(shown, str) else set(shown) == {"base64"}
        assert [row["value"] for row in found[:6]] == [value.decode() for value in _HOSTILE_VALUES[:6]]
        assert found[6]["value"] == {"base64": "/w=="}
        assert found[7]["value"] == ({"\0": None} if decode == "json" else '{"\\u0000": null}')
        for verb in ("records", "latest"):
            table = lastword(verb, "fruit", "--decode", decode)
            assert all(character.isprintable() for character in table.replace("\n", "")), table
            assert all(len(line) <= 80 for line in table.split("\n"))
    assert "[bold]not markup" in lastword("records", "fruit")


# --- append, dead letters, queries, verify ------------------------------------------------------------------------------------------


def test_files_are_appended_once_each_and_the_refused_lines_are_shown(lastword: Shell, logs: LogDir, tmp_path: Path) -> None:
    """Twice over one folder, then with a new file; the query has a name and can be forgotten."""
    logs.create_topic("fruit", config=_COMPACT)
    folder = tmp_path / "incoming"
    folder.mkdir()
    (folder / "1.json").write_text(
        '{"fruit":"grape","price":1,"op":"u"}\n{"fruit":"lime","price":2,"op":"u"}\n{"price":3,"op":"u"}\n{"fruit":\n'
    )
    command = ("append", "fruit", "--path", str(folder), "--key", "fruit", "--tombstone", "op = 'd'", "--drop", "op")
    lastword(*command)
    lastword(*command)
    assert log(logs.topic("fruit")) == ['0 grape={"price":1}', '1 lime={"price":2}']
    (folder / "2.json").write_text('{"fruit":"grape","op":"d"}\n')
    lastword(*command)
    assert log(logs.topic("fruit"))[2:] == ["2 grape=∅"]

    refused = lastword.json("dead-letters", "fruit")
    assert sorted((row["reason"], row["source"], row["raw"]) for row in refused) == [
        ("keyless", "append", None),
        ("malformed", "append", '{"fruit":'),
    ]
    assert [row["value"] for row in refused if row["reason"] == "keyless"] == ['{"price":3}']
    assert len(lastword.json("dead-letters", "fruit", "--limit", "1")) == 1
    assert "dead letters" in lastword("dead-letters", "fruit")

    ((name, query_id),) = logs.topic("fruit").describe().queries.items()
    assert lastword.json("queries", "list", "fruit") == [{"query": name, "id": query_id}]
    assert lastword("queries", "list", "fruit") == f"append  {query_id}\n"
    assert lastword("queries", "forget", "fruit", "append") == "forgot query append of topic fruit\n"
    assert lastword("queries", "list", "fruit") == ""
    assert "knows no query 'files'; known: append" in lastword.error(UserError, "queries", "forget", "fruit", "files")

    assert "3 records at table version" in lastword("verify", "fruit")
    (report,) = lastword.json("verify", "fruit")
    assert (report["record_count"], report["problems"]) == (3, [])


def test_verify_of_a_broken_log_says_what_is_wrong_and_ends_with_1(lastword: Shell, logs: LogDir, spark: SparkSession) -> None:
    """Somebody else wrote the same offset once more, past us."""
    topic = logs.create_topic("fruit", config=_COMPACT)
    topic.append(rows("grape=1"))
    spark.read.format("delta").load(topic.log.paths.log).write.format("delta").mode("append").save(topic.log.paths.log)
    done = lastword.run("verify", "fruit")
    assert done.exit_code == 1
    assert "partition 0: offset 0 stands 2 times" in done.stdout
    assert "table version 2 was written by somebody else: WRITE" in done.stdout
    as_json = lastword.run("verify", "fruit", "--json")
    assert as_json.exit_code == 1
    assert len(json.loads(as_json.stdout)["problems"]) >= 2
    logs.delete_topic("fruit")


# --- mistakes -----------------------------------------------------------------------------------------------------------------------


def test_a_mistake_is_one_clear_message(lastword: Shell, logs: LogDir) -> None:
    """Each command answers a mistake with one message and changes nothing."""
    logs.create_topic("fruit")
    for words in (("topics", "describe"), ("topics", "delete"), ("records",), ("latest",), ("verify",), ("roll",), ("queries", "list")):
        assert "topic frut does not exist" in lastword.error(UnknownTopic, *words, "frut")
    assert "existing: fruit" in lastword.error(UnknownTopic, "append", "frut", "--path", "x", "--key", "k", "--schema", "k string")
    bad = ("--config", "segment.bytes=5", "--config", "retention.mss=1")
    message = lastword.error(InvalidConfiguration, "topics", "create", "new", *bad)
    assert "segment.bytes = 5" in message
    assert "did you mean retention.ms?" in message
    said = lastword.error(InvalidConfiguration, "topics", "create", "new", "--config", "cleanup.policy")
    assert "--config = cleanup.policy: write KEY=VALUE" in said
    assert "topics copy fruit NEW" in lastword.error(InvalidConfiguration, "topics", "alter", "fruit", "--config", "partitions=2")
    assert "--decode = yaml: allowed is utf8, json" in lastword.error(InvalidConfiguration, "records", "fruit", "--decode", "yaml")
    assert "cannot read" in lastword.error(UserError, "run", "--config", "none.toml")
    assert "--key = nothing: at least one column" in lastword.error(InvalidConfiguration, "append", "fruit", "--path", "x")
    for wrong in (("records", "fruit", "--limit", "0"), ("records",), ("record",)):
        assert lastword.run(*wrong).exit_code == 2, "what the words themselves get wrong"
    assert [row["topic"] for row in lastword.json("topics", "list")] == ["fruit"]
    assert dict(logs.topic("fruit").describe().overrides) == {}


def test_a_format_that_there_is_not_is_a_mistake_like_others(lastword: Shell, logs: LogDir) -> None:
    """The command line makes a source of its options, and checks it as the configuration file is checked."""
    logs.create_topic("fruit")
    message = lastword.error(InvalidConfiguration, "append", "fruit", "--path", "x", "--key", "k", "--format", "xml")
    assert "format = 'xml': allowed are json, csv, parquet" in message


@pytest.mark.long
def test_the_process_ends_with_1_and_its_message_on_standard_error(tmp_path: Path) -> None:
    """No stack trace, nothing on standard output; and with 0 when all is well."""
    made = _process("topics", "create", "fruit", "--config", "cleanup.policy=compact", folder=tmp_path)
    assert (made.returncode, made.stdout, made.stderr) == (0, "created topic fruit with 1 partition\n", "")
    assert (tmp_path / "data" / "fruit" / "ledger").is_dir()
    unknown = _process("topics", "describe", "frut", folder=tmp_path)
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert re.fullmatch(r"error: topic frut does not exist in \S+; existing: fruit\n", unknown.stderr)


@pytest.mark.parametrize("words", [(), ("topics",), ("queries",)])
def test_without_a_verb_the_help_is_shown(words: tuple[str, ...]) -> None:
    """Every command of a group, with what it does."""
    done = CliRunner().invoke(cli.app, list(words))
    assert "Usage" in done.output
    assert "list" in done.output or "records" in done.output


def test_open_transactions_are_listed_described_and_ended(lastword: Shell, logs: LogDir, spark: SparkSession) -> None:
    """Producer, partitions, first offsets, age, and what they hold back; ending one fences its writer."""
    topic = logs.create_topic("fruit", partitions=2, config={"cleanup.policy": "compact"})
    assert "no open transactions" in lastword("transactions", "list", "fruit")
    topic.append(rows("grape=1", partition=0))
    writer = topic.transaction("loader")
    writer.append(rows("grape=2 lime=1", partition=0))
    writer.append(rows("kiwi=1", partition=1))
    (one,) = lastword.json("transactions", "list", "fruit")
    assert (one["producer_id"], one["transactional_id"], one["first_offsets"], one["hangs"]) == (0, "loader", {"0": 1, "1": 0}, False)
    assert "loader" in lastword("transactions", "list", "fruit")
    (described,) = lastword.json("transactions", "describe", "fruit", "0")
    assert described["partitions"][0] == {"partition": 0, "first_offset": 1, "last_stable_offset": 1, "log_end_offset": 3, "held_back": 2}
    assert "partition 1: 1 offsets from 0 on are held back" in lastword("transactions", "describe", "fruit", "0")
    assert "producer 9 has no open transaction" in lastword.error(UserError, "transactions", "describe", "fruit", "9")
    assert "ended the transaction of producer 0 in 2 partitions" in lastword("transactions", "abort", "fruit", "0")
    with pytest.raises(ProducerFenced):
        writer.commit()
    assert latest(topic) == {"grape": "1"}
    assert "open ones are of producers: none" in lastword.error(UserError, "transactions", "abort", "fruit", "0")


def test_every_command_has_an_example_and_json() -> None:
    """For a person in a hurry, and for scripts; the service alone has nothing to print."""

    def commands(one: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
        for name, command in getattr(one, "commands", {}).items():
            yield from commands(command, (*path, name))
        if not hasattr(one, "commands"):
            yield " ".join(path), one

    found = dict(commands(typer.main.get_command(cli.app)))
    assert len(found) > 25
    for name, command in found.items():
        assert f"Example: lastword {name}" in command.help, name
        options = {option for parameter in command.params for option in parameter.opts}
        assert ("--json" in options) == (name != "run"), name


def test_completion_is_installed_by_the_program_alone() -> None:
    """A group of commands has no option for it."""
    program = typer.main.get_command(cli.app)
    groups: dict[str, Any] = {name: command for name, command in getattr(program, "commands", {}).items() if hasattr(command, "commands")}

    assert set(groups) == {"topics", "queries", "transactions", "readers", "sources", "tables"}
    for command in (program, *groups.values()):
        options = {option for parameter in command.params for option in parameter.opts}
        assert ("--install-completion" in options) == (command is program)


def test_describe_names_the_source_of_a_mirror(tmp_path: Path) -> None:
    """And the query that brings it; a topic of one's own has no such line."""
    logs = LogDir(tmp_path)
    for name in ("orders", "own"):
        logs.create_topic(name)
    details = {"query": "q", "source": "shop.orders", "identity": "1"}
    logs.topic("orders").log.ledger.append([Decision(kind=Kind.MIRROR, time_ms=0, details=details)])
    shell = Shell(logs)
    assert "mirror of shop.orders (query q)" in shell("topics", "describe", "orders")
    assert "mirror" not in shell("topics", "describe", "own")
