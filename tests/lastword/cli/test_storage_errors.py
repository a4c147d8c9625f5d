"""What the storage says is one message of the command line, without a stack trace and without a secret. No JVM."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from lastword import LogDir
from tests.lastword.failing_commands import message_of
from tests.pictures import rows
from tests.processes import ROOT

if TYPE_CHECKING:
    from pathlib import Path

_AWAY = (
    *("AWS_ENDPOINT_URL=http://ann:hunter2@127.0.0.1:1", "AWS_SECRET_ACCESS_KEY=hunter2", "AWS_ACCESS_KEY_ID=ann"),
    *("AWS_REGION=eu-west-1", "AWS_ALLOW_HTTP=true", "max_retries=0"),
)


def _said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str, code: int = 1) -> str:
    """Run a command that fails, and return its message."""
    return message_of(words, capsys, monkeypatch, code=code)


@pytest.mark.parametrize(
    "command", [("topics", "list"), ("topics", "create", "fruit"), ("records", "fruit"), ("verify", "fruit")], ids=" ".join
)
def test_a_store_that_does_not_answer_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """With what was asked for, and without the login in its address."""
    options = [word for one in _AWAY for word in ("--storage-option", one)]
    said = _said(capsys, monkeypatch, *options, *command, "--log-dir", "s3://bucket/logs")
    assert said.startswith("error: ")
    assert "127.0.0.1:1/bucket" in said
    assert (said.count("\n"), "hunter2" in said, "\x1b" in said) == (1, False, False)


def test_a_log_dir_that_may_not_be_written_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A file in its place, a file in the place of a folder above it, a name that is too long."""
    (tmp_path / "file").write_text("")
    for log_dir in ("file", "file/below", "n" * 300):
        said = _said(capsys, monkeypatch, "topics", "create", "fruit", "--log-dir", str(tmp_path / log_dir))
        assert said.startswith("error: ")
        assert (said.count("\n"), log_dir in said) == (1, True)


def test_a_delta_log_that_is_no_json_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whichever command reads it."""
    topic = LogDir(tmp_path).create_topic("fruit")
    topic.append(rows("lime=1"))
    (tmp_path / "fruit/log/_delta_log" / f"{1:020}.json").write_text("no json")
    for command in ("records", "latest", "explain", "verify"):
        said = _said(capsys, monkeypatch, command, "fruit", "--log-dir", str(tmp_path))
        assert (said.startswith("error: "), said.count("\n")) == (True, 1), command


@pytest.mark.parametrize("option", ["hunter2", "=hunter2", " = hunter2", "AWS_SECRET_ACCESS_KEY:hunter2"])
def test_an_option_of_the_wrong_shape_is_not_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """It may be a secret: its number is, and what to write."""
    said = _said(capsys, monkeypatch, "--storage-option", "AWS_REGION=x", "--storage-option", option, "topics", "list", code=2)
    assert "--storage-option number 2 = ***: write KEY=VALUE" in said
    assert "hunter2" not in said


def test_a_program_that_reads_no_more_of_the_output_ends_it_without_a_word(tmp_path: Path) -> None:
    """As `lastword records fruit | head -1` does: no stack trace, and nothing of a file system that failed."""
    LogDir(tmp_path).create_topic("fruit").append(rows("lime=1"))
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "lastword", "records", "fruit", "--json", "--log-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=120, check=False)  # noqa: S603
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")
