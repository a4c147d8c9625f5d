"""`lastword top` and `lastword plot`, over a log.dir that is there and over a service that answers; no Spark."""

from __future__ import annotations

import http.server
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

from lastword import LogDir
from lastword.cli.app import app
from lastword.compaction.errors import UserError
from lastword.status.server import StatusApp, StatusServer, status_json
from lastword.status.standing import AppendCounts, QueryStanding, TableStanding
from tests.lastword.status.standings import NOW_MS, partition, standing, topic, transaction
from tests.lastword.status.test_pages import _Fixed

#: Many of these take half a second or more; `make quick` leaves them to `make test`.
pytestmark = pytest.mark.long


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
    done = _run("top", "--json", "--url", "http://127.0.0.1:9", *here)
    found = json.loads(done.output)
    assert done.exit_code == 3
    assert [issue["text"].partition(":")[0] for issue in found["troubles"]] == ["no service answers at http"]
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
    """`top` shows the sentences of the status page; an answer about another log.dir is not used."""
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
        (tmp_path / "other").mkdir()
        other = _run("top", "--once", "--url", server.url, "--log-dir", str(tmp_path / "other"))
        assert other.exit_code == 3
        shown = " ".join(other.output.split())  # however long the path is
        assert "0 topics" in shown
        assert f"the service at {server.url} serves another log.dir" in shown
    finally:
        server.stop()
    words = ["top", "--once", "--url", "file:///etc/passwd", "--log-dir", str(tmp_path)]
    with pytest.raises(UserError, match="allowed is http"):
        CliRunner().invoke(app, words, catch_exceptions=False)


def _serve(folder: Path) -> StatusServer:
    """Serve the status of a log.dir in which an append query failed, at any free port."""
    log_dir = LogDir(str(folder))
    log_dir.create_topic("fruit")
    failed = QueryStanding(name="files", topic="fruit", active=False, message="the folder is away")
    held = topic(appends=AppendCounts(late=558, appended=1_442))
    behind = TableStanding(topic="fruit", path="/tables/fruit", lag_offsets=1_234, lag_ms=5_000, steps=7, misfit_rows=2, step_ms=60)
    kept = (
        behind,
        TableStanding(topic="fruit", path="/tables/bad", message="was changed"),
        TableStanding(topic="fruit", path="/tables/in-step"),
    )
    watcher: Any = _Fixed(standing(held, log_dir=log_dir.location, queries=(failed,), tables=kept))
    server = StatusServer(StatusApp(watcher=watcher, now_ms=lambda: NOW_MS, heartbeat_ms=lambda: NOW_MS), "127.0.0.1:0")
    server.start()
    return server


def test_top_asks_the_service_of_the_configuration_file(tmp_path: Path) -> None:
    """Its port is not the default one; an address of all interfaces is asked on loopback."""
    server = _serve(tmp_path / "data")
    try:
        for host in ("127.0.0.1", "0.0.0.0"):  # noqa: S104  the address of a service
            file = tmp_path / "lastword.toml"
            file.write_text(f'log.dir = "{tmp_path / "data"}"\n[http]\nlisten = "{host}:{server.port}"\n')
            done = _run("-c", str(file), "top", "--once")
            assert (done.exit_code, "append query files is not running: the folder is away" in done.output) == (3, True), done.output
            assert "no service answers" not in done.output
            tables = [line.split() for line in done.output.splitlines() if line.strip().startswith("/tables/")]
            assert [line[:4] for line in tables] == [
                ["/tables/fruit", "fruit", "behind", "1,234"],
                ["/tables/bad", "fruit", "failed", "0"],
                ["/tables/in-step", "fruit", "in", "step"],
            ]
            assert "fruit: 0 dead letters; 558 late rows and 1,442 appended records since the start of the service" in " ".join(
                done.output.split()
            )
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("listen", "issue"),
    [
        ('listen = ""', "the service has no HTTP address"),
        ('listen = "127.0.0.1:9"', "no service answers at http://127.0.0.1:9"),
        ('listen = "[::1]:9"', "no service answers at http://[::1]:9"),
    ],
)
def test_top_says_which_service_it_could_not_ask_and_ends_with_3(tmp_path: Path, listen: str, issue: str) -> None:
    """The topics are read from the log.dir; without issues of the service nobody could tell that its sources work."""
    LogDir(str(tmp_path / "data")).create_topic("fruit")
    file = tmp_path / "lastword.toml"
    file.write_text(f'log.dir = "{tmp_path / "data"}"\n[http]\n{listen}\n')
    for words in (("--once",), ("--json",), ("--once", "--json")):
        done = _run("-c", str(file), "top", *words)
        assert done.exit_code == 3
        assert issue in done.output
        assert "fruit" in done.output
        assert "no issues" not in done.output


def test_what_answers_and_is_no_service_is_not_believed(tmp_path: Path) -> None:
    """If another program has the port, its JSON is not taken for a status."""

    class Other(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'["no", "status"]')

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    LogDir(str(tmp_path)).create_topic("fruit")
    with http.server.HTTPServer(("127.0.0.1", 0), Other) as other:
        answering = threading.Thread(target=other.handle_request)
        answering.start()
        done = _run("top", "--once", "--url", f"http://127.0.0.1:{other.server_port}", "--log-dir", str(tmp_path))
        answering.join()
    assert (done.exit_code, "no service answers" in done.output) == (3, True)


def test_a_shell_is_offered_the_topics_that_are_there(tmp_path: Path) -> None:
    """Completion by the program itself, as bash asks for it."""
    for name in ("fruit", "fruit-prices", "pears"):
        LogDir(str(tmp_path)).create_topic(name)
    asked = {"_LASTWORD_COMPLETE": "complete_bash", "COMP_CWORD": "4", "COMP_WORDS": f"lastword plot --log-dir {tmp_path} fr"}
    done = CliRunner().invoke(app, [], prog_name="lastword", env=asked)
    assert done.output.split() == ["fruit", "fruit-prices"]


def test_a_screen_that_goes_on_asks_again_until_it_is_interrupted(tmp_path: Path) -> None:
    """Ctrl-C ends it without an error, however critical things are."""
    logs, asked, again = LogDir(str(tmp_path)), list[str](), threading.Event()
    logs.create_topic("fruit")
    held = topic(transactions=(transaction(NOW_MS - 20 * 60_000),))
    status = status_json(standing(held, log_dir=logs.location), NOW_MS).encode()

    class Counting(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(status)
            asked.append(self.path)
            if len(asked) == 3:
                again.set()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Counting) as server:
        threading.Thread(target=server.serve_forever).start()
        words = ["top", "--every", "0.2", "--url", f"http://127.0.0.1:{server.server_port}", "--log-dir", str(tmp_path)]
        command = [sys.executable, "-m", "lastword", *words]
        try:
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:  # noqa: S603
                assert again.wait(60)
                process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=60)
        finally:
            server.shutdown()
    assert (process.returncode, err) == (0, "")
    assert "fruit" in out


def test_without_a_configuration_file_the_service_is_looked_for_at_its_default_address(tmp_path: Path) -> None:
    """Whether none answers there or that of another log.dir: the message names the address."""
    LogDir(str(tmp_path)).create_topic("fruit")
    done = _run("top", "--json", "--log-dir", str(tmp_path))
    assert done.exit_code == 3
    assert "http://127.0.0.1:9464" in json.loads(done.output)["troubles"][0]["text"]


def test_a_topic_whose_log_cannot_be_read_is_not_drawn(tmp_path: Path) -> None:
    """The error of the look is that of the command."""
    made = LogDir(str(tmp_path)).create_topic("fruit")
    Path(made.log.paths.log, "_delta_log", f"{1:020}.json").write_text("{", encoding="utf-8")
    done = _run("plot", "fruit", "--log-dir", str(tmp_path))
    assert isinstance(done.exception, UserError)
    assert made.log.paths.log in str(done.exception)
