"""`lastword top` and `lastword plot`, over a log.dir that is there and over a service that answers; no Spark."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

from lastword import LogDir
from lastword.cli.app import app
from lastword.compaction.errors import UserError
from lastword.status.server import StatusApp, StatusServer
from tests.lastword.status.standings import NOW_MS, partition, standing, topic, transaction
from tests.lastword.status.test_pages import _Fixed

if TYPE_CHECKING:
    from pathlib import Path


def _run(*words: str) -> Any:
    return CliRunner().invoke(app, [*words], env={"COLUMNS": "200"})


def test_without_a_service_the_log_dir_is_looked_at(tmp_path: Path) -> None:
    """An empty topic and its picture; a topic that is not there; a file that cannot be written."""
    logs = LogDir(str(tmp_path / "logs"))
    logs.create_topic("fruit", partitions=2, config={"cleanup.policy": "compact"})
    here = ("--log-dir", str(tmp_path / "logs"))
    done = _run("top", "--once", "--url", "", *here)
    assert done.exit_code == 0, done.output
    assert "no issues" in done.output
    assert done.output.count("fruit") == 2
    found = json.loads(_run("top", "--json", "--url", "http://127.0.0.1:9", *here).output)
    assert [one["report"]["partition"] for one in found["topics"][0]["partitions"]] == [0, 1]
    picture = tmp_path / "log.svg"
    assert _run("plot", "fruit", "-o", str(picture), *here).exit_code == 0
    assert ET.parse(picture).getroot().tag.endswith("svg")  # noqa: S314  our own
    assert _run("plot", "fruit", *here).output.startswith("<svg")
    for words, said in (("plums", "topic plums does not exist"), ("fruit", "No such file or directory")):
        done = _run("plot", words, "-o", str(tmp_path / "nowhere" / "log.svg"), *here)
        assert isinstance(done.exception, UserError | Exception)
        assert said in str(done.exception)


def test_a_service_that_answers_is_asked_and_critical_things_are_an_exit_code(tmp_path: Path) -> None:
    """The same sentences as on its page; a service of another log.dir is not believed."""
    LogDir(str(tmp_path)).create_topic("fruit")
    held = topic(logs=[partition(stable=310)], transactions=(transaction(NOW_MS - 20 * 60_000),))
    watcher: Any = _Fixed(standing(held, log_dir=LogDir(str(tmp_path)).location))
    server = StatusServer(StatusApp(watcher=watcher, now_ms=lambda: NOW_MS, heartbeat_ms=lambda: NOW_MS), "127.0.0.1:0")
    server.start()
    try:
        done = _run("top", "--once", "--url", server.url, "--log-dir", str(tmp_path))
        assert done.exit_code == 3, done.output
        assert "CRITICAL" in done.output
        assert "open transaction of producer 7 (loader)" in done.output
        other = _run("top", "--once", "--url", server.url, "--log-dir", str(tmp_path / "other"))
        assert other.exit_code == 0
        assert "0 topics" in " ".join(other.output.split())  # however long the path is
    finally:
        server.stop()
    with pytest.raises(UserError, match="allowed is http"):
        CliRunner().invoke(app, ["top", "--once", "--url", "file:///etc/passwd"], catch_exceptions=False)


def test_a_shell_is_offered_the_topics_that_are_there(tmp_path: Path) -> None:
    """Completion by the program itself, as bash asks for it."""
    for name in ("fruit", "fruit-prices", "pears"):
        LogDir(str(tmp_path)).create_topic(name)
    asked = {"_LASTWORD_COMPLETE": "complete_bash", "COMP_CWORD": "4", "COMP_WORDS": f"lastword plot --log-dir {tmp_path} fr"}
    done = CliRunner().invoke(app, [], prog_name="lastword", env=asked)
    assert done.output.split() == ["fruit", "fruit-prices"]
