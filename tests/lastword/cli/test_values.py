"""What the commands show of keys and values: JSON by itself for people, text for scripts, and more by `--decode`. No JVM."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pytest
from typer.testing import CliRunner

from lastword import InvalidConfiguration, LogDir
from lastword.cli import app as cli
from lastword.cli.values import one_line
from tests.lastword.cli.widths import terminal_of
from tests.storage.schema_registry.registries import Registry, avro_frame, basic, running

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from typer.testing import Result

_SPREAD: Final = '{\n  "price": 1.10,\n  "note": "two  words",\n  "id": 12345678901234567890123\n}'
_RECORD: Final = {"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}


@pytest.fixture(name="run")
def _run(tmp_path: Path) -> Callable[..., Result]:
    """Return what runs a command on a topic with values of each kind."""
    topic = LogDir(tmp_path).create_topic("fruit", config={"cleanup.policy": "compact"})
    values: list[tuple[str | bytes, bytes | None]] = [
        ('{"id": 7}', _SPREAD.encode()),
        ("007", b"1.10"),
        (b"\xff", b'"text"'),
        ("gone", None),
        ("plain", b"no {JSON}"),
    ]
    topic.append([{"key": key if isinstance(key, bytes) else key.encode(), "value": value} for key, value in values])
    environment = {"LASTWORD_LOG_DIR": str(tmp_path)}
    return lambda *words: CliRunner(env=environment).invoke(cli.app, list(words))


def _pairs(done: Result) -> list[tuple[Any, Any]]:
    assert done.exit_code == 0, done.output
    return [(row["key"], row["value"]) for row in map(json.loads, done.stdout.splitlines())]


def test_json_lines_have_text_whatever_a_value_holds(run: Callable[..., Result]) -> None:
    """A member of `--json` has the same type in every record; bytes that are not UTF-8 are base64 in an object."""
    shown = _pairs(run("records", "fruit", "--json"))

    assert shown == [('{"id": 7}', _SPREAD), ("007", "1.10"), ({"base64": "/w=="}, '"text"'), ("gone", None), ("plain", "no {JSON}")]


def test_json_lines_have_json_when_it_is_asked_for(run: Callable[..., Result]) -> None:
    """A key that is an object becomes one; one that is a number stays text, as 007 and 7 are two keys."""
    shown = _pairs(run("records", "fruit", "--json", "--decode", "json"))

    assert shown[0] == ({"id": 7}, {"price": 1.1, "note": "two  words", "id": 12345678901234567890123})
    assert shown[1:] == [("007", 1.1), ({"base64": "/w=="}, "text"), ("gone", None), ("plain", "no {JSON}")]
    assert _pairs(run("records", "fruit", "--json", "--decode", "base64"))[1:3] == [("MDA3", "MS4xMA=="), ("/w==", "InRleHQi")]


def test_a_table_has_json_on_one_line_digit_by_digit(run: Callable[..., Result]) -> None:
    """Nothing is decoded that would change a number; `utf8` shows the text as it stands."""
    with terminal_of(200):
        for command in ("records", "latest"):
            assert '{"price":1.10,"note":"two  words","id":1234567890123456789' in run(command, "fruit").stdout
        assert "{\ufffd" in run("records", "fruit", "--decode", "utf8").stdout
        assert "/w==" in run("records", "fruit", "--decode", "base64").stdout


def test_frames_of_a_registry_are_shown_as_json(tmp_path: Path, run: Callable[..., Result]) -> None:
    """By the URL of the registry; what is no frame is shown as it is."""
    registry = Registry()
    with running(registry):
        frame = avro_frame(registry.add(_RECORD), _RECORD, {"id": 5})
        LogDir(tmp_path).topic("fruit").append([{"key": frame, "value": frame}])
        shown = _pairs(run("records", "fruit", "--json", "--decode", registry.url))
        with terminal_of(200):
            assert '{"id":5}' in run("latest", "fruit", "--decode", registry.url).stdout
    assert shown[-1] == ({"id": 5}, {"id": 5})
    assert shown[1] == ("007", 1.1)


def test_a_registry_with_a_login_is_asked_as_the_source_of_the_file_does(tmp_path: Path, run: Callable[..., Result]) -> None:
    """Only where the URL is the source's; without the file the registry refuses, and its answer is the message."""
    registry = Registry(login=basic("key", "s3cret"))
    with running(registry):
        frame = avro_frame(registry.add(_RECORD), _RECORD, {"id": 5})
        LogDir(tmp_path).topic("fruit").append([{"key": frame, "value": frame}])
        config = tmp_path / "lastword.toml"
        config.write_text(
            f'[[source]]\nname = "s"\ntopic = "t"\nformat = "kafka"\nbootstrap.servers = "b:1"\nsubscribe = "t"\nenvelope = "debezium"\n'
            f'schema.registry.url = "http://elsewhere:1, {registry.url}/"\nschema.registry.basic.auth.user.info = "key:s3cret"\n',
            encoding="utf-8",
        )

        refused = run("records", "fruit", "--json", "--decode", registry.url)
        shown = _pairs(run("-c", str(config), "records", "fruit", "--json", "--decode", registry.url))

    assert shown[-1] == ({"id": 5}, {"id": 5})
    assert "401" in str(refused.exception)
    assert "s3cret" not in refused.output


def test_dead_letters_are_decoded_too(tmp_path: Path, run: Callable[..., Result]) -> None:
    """Keys and values as the source wrote them."""
    LogDir(tmp_path).topic("fruit").append([{"key": None, "value": b'{"a": 1}'}], on_invalid="dead-letter")

    assert _pairs(run("dead-letters", "fruit", "--json")) == [(None, '{"a": 1}')]
    assert _pairs(run("dead-letters", "fruit", "--json", "--decode", "json")) == [(None, {"a": 1})]


@pytest.mark.parametrize("decode", ["yaml", "http://user:secret@registry", "ftp://registry"])
def test_what_is_no_format_is_refused(run: Callable[..., Result], decode: str) -> None:
    """By name, with what is allowed, and without a login."""
    done = run("latest", "fruit", "--decode", decode)

    assert isinstance(done.exception, InvalidConfiguration)
    assert "--decode" in str(done.exception)
    assert "secret" not in str(done.exception)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{ "a" :\n [1,  2] }', '{"a":[1,2]}'),
        ('{"a \\" b":\n"c\\\\"}', '{"a \\" b":"c\\\\"}'),
        ("no\njson", "no\njson"),
        ('"a\\nb"\n', '"a\\nb"\n'),
        ("[" * 100_000 + "\n", "[" * 100_000 + "\n"),
    ],
)
def test_white_space_in_texts_of_json_stays(text: str, shown: str) -> None:
    """And what is no object or array stays as it is."""
    assert one_line(text) == shown
