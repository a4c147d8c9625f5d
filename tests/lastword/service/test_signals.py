"""SIGTERM and Ctrl-C set a flag and nothing else, also while Spark starts; the command ends with one line and exit code 0. No JVM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from lastword.cli import app
from lastword.service.signals import Stopped, StopSignals, start_session
from tests.processes import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_sets_the_flag_and_the_handlers_of_before_come_back(number: signal.Signals) -> None:
    """Twice as well: an impatient user presses the keys again."""
    before = signal.getsignal(number)
    with StopSignals() as stop:
        stop.check("the query")
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)
        assert stop.received is number
        with pytest.raises(Stopped, match=f"stopped by {number.name} before the query was started; nothing was changed"):
            stop.check("the query")
    assert signal.getsignal(number) is before


def test_a_signal_while_spark_starts_is_received_and_pyspark_installs_no_handler() -> None:
    """PySpark installs one for SIGINT in the main thread alone; its start goes on, and what was there before is there again."""
    threads = []

    def starting(*, master: str | None, settings: Mapping[str, str]) -> Any:
        threads.append(threading.current_thread() is threading.main_thread())
        os.kill(os.getpid(), signal.SIGINT)
        return f"session {master} {dict(settings)}"

    before = signal.getsignal(signal.SIGINT)
    stop = StopSignals()
    session: Any = start_session({"spark.master": "local"}, stop, start=starting)
    assert session == "session local {'spark.master': 'local'}"
    assert (threads, stop.received, signal.getsignal(signal.SIGINT)) == ([False], signal.SIGINT, before)


def test_what_the_start_of_spark_fails_of_is_raised() -> None:
    """The error is raised unchanged, and the previous signal handlers are back."""

    def failing(**_: object) -> Any:
        message = "no Java"
        raise RuntimeError(message)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(RuntimeError, match="no Java"):
        start_session({}, StopSignals(), start=failing)
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_command_that_is_stopped_before_its_query_started_ends_with_one_line_and_0(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing went wrong."""

    def stopped() -> None:
        stop = StopSignals()
        stop.received = signal.SIGINT
        stop.check("query append")

    monkeypatch.setattr(app, "app", stopped)
    app.main()
    assert capsys.readouterr().err == "stopped by SIGINT before query append was started; nothing was changed\n"


def test_a_process_that_is_forked_while_spark_starts_ignores_sigterm_and_no_other_does() -> None:
    """It becomes the JVM, which a `kill` of the whole group would end before the queries are stopped."""
    script = """
import os, signal
from lastword.service import signals
for is_starting in (False, True):
    if is_starting:
        signals._STARTING.set()
    child = os.fork()
    if not child:
        os._exit(signal.getsignal(signal.SIGTERM) is signal.SIG_IGN)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), signal.getsignal(signal.SIGTERM) is signal.SIG_IGN)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)  # noqa: S603
    assert done.stdout.splitlines() == ["0 False", "1 False"]
