"""How far long work is, and who sees it."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from lastword import InvalidRecords, LogDir, copy_topic
from lastword.compaction.planning.rate_limiter import spend_freely
from lastword.progress_bars import is_terminal, never_show, show, show_where_seen
from lastword.storage.progress import work
from lastword.storage.tasks import run_tasks
from tests.pictures import rows
from tests.progress import Shown, shown_work

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_COMPACT = {"cleanup.policy": "compact"}


@pytest.fixture(autouse=True)
def _nobody_looks() -> Iterator[None]:
    never_show()
    yield
    never_show()


def test_each_long_job_says_how_far_it_is_and_ends_at_its_total(tmp_path: Path) -> None:
    """Each piece of work is told once, with what it is and of how much, and is closed."""
    logs = LogDir(tmp_path)
    topic = logs.create_topic("fruit", partitions=2, config=_COMPACT)
    (tmp_path / "more.csv").write_text("fruit,price\nlime,1\nplum,2\n", encoding="utf-8")

    def told(do: Any, *parts: Any) -> list[Shown]:
        with shown_work() as works:
            do(*parts)
        assert all(one.is_closed for one in works)
        assert all(one.total is None or one.done == one.total for one in works)
        return works

    assert told(topic.append, rows("lime=1 kiwi=1 lime=2 plum=1")) == [Shown("append fruit", 4, "rows", 4, is_closed=True)]
    assert told(lambda: topic.append_file(tmp_path / "more.csv", key="fruit")) == [Shown("append fruit", None, "rows", 2, is_closed=True)]
    files = len(topic.log.snapshot().files.path)
    assert told(topic.verify) == [Shown("verify fruit", files, "files", files, is_closed=True)]
    assert told(topic.bootstrap) == [Shown("read", files, "files", files, is_closed=True)]
    assert [one.what for one in told(lambda: topic.materialize(str(tmp_path / "table"), record_columns=["_value"]))] == [
        f"write {tmp_path / 'table'}"
    ]
    copied = told(lambda: copy_topic(logs, "fruit", "copy", partitions=1))
    assert copied[0] == Shown("copy fruit to copy", 6, "offsets", 6, is_closed=True)
    topic.roll()
    assert {(one.what, one.unit) for one in told(topic.clean)} == {("clean fruit", "B")}
    assert {one.what for one in told(topic.purge, "lime")} >= {"append fruit", "clean fruit", "search a key"}


def test_work_that_fails_is_shown_no_longer(tmp_path: Path) -> None:
    """Rows that are refused are an error, and the bar goes."""
    topic = LogDir(tmp_path).create_topic("fruit", config=_COMPACT)
    with shown_work() as works, pytest.raises(InvalidRecords):
        topic.append([{"key": None, "value": "1"}])

    assert [(one.what, one.is_closed) for one in works] == [("append fruit", True)]


def test_a_task_is_as_far_as_what_it_has_spent_and_full_at_its_end() -> None:
    """A task that spends more than its bytes thrice is not more than done; one that spends nothing is done at its end."""
    steps = list[float]()

    class Task:
        size_bytes = 90

        def run(self, spend: Any) -> None:
            for counted in (30, 60, 600):
                spend(counted)
                steps.append(works[0].done)

    with shown_work() as works:
        run_tasks([Task()], spend_freely, what="clean", is_limited=False, cluster=None, parallelism=1, spread_bytes=0)

    assert steps == [10, 30, 90]
    assert works == [Shown("clean", 90, "B", 90, is_closed=True)]


def test_nobody_is_told_where_nobody_looks() -> None:
    """Nor is anything counted."""
    with work("verify fruit", total=1, unit="files") as advance:
        advance(1)


@pytest.mark.parametrize(("unit", "shown"), [("rows", "50.0/100 rows"), ("B", "50.0/100B")])
def test_a_bar_says_what_and_how_far(unit: str, shown: str) -> None:
    """It leaves nothing behind."""
    stream = io.StringIO()
    show(stream=stream, delay_seconds=0)
    with work("append fruit", total=100, unit=unit) as advance:
        advance(50)

    text = stream.getvalue()
    assert "append fruit:" in text
    assert text.endswith("\r")


def test_short_work_shows_nothing() -> None:
    """A bar that flickers tells nobody anything."""
    stream = io.StringIO()
    show(stream=stream, delay_seconds=5)
    with work("append fruit", total=100, unit="rows") as advance:
        advance(100)

    assert stream.getvalue().strip() == ""


_JOB = """
import sys, time
from lastword import LogDir
from lastword.progress_bars import show_where_seen
from lastword.storage.progress import work
LogDir(sys.argv[1])
with work("verify fruit", total=4, unit="files") as advance:
    for _ in range(4):
        time.sleep(0.4)
        advance(1)
print("done")
"""


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_sees_a_bar_and_a_pipe_does_not(tmp_path: Path, *, is_terminal: bool) -> None:
    """Standard output is the program's in either case."""
    near, far = pty.openpty() if is_terminal else os.pipe()
    if is_terminal:
        fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-c", _JOB, str(tmp_path)]
    out = subprocess.run(command, stdout=subprocess.PIPE, stderr=far, text=True, check=True, timeout=60).stdout  # noqa: S603
    os.set_blocking(near, False)
    said = b""
    with suppress(BlockingIOError):
        said = os.read(near, 100_000)
    os.close(far)
    os.close(near)

    assert out == "done\n"
    assert (b"verify fruit:" in said) is is_terminal
    assert is_terminal or said == b""


def test_a_notebook_sees_a_bar_and_the_service_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is decided first holds in the process."""
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=1)))
    show_where_seen()  # never_show() came first
    with work("verify fruit", total=1, unit="files") as advance:
        assert advance.__qualname__ == "_ignore"


def test_standard_error_may_be_anything() -> None:
    """A process without a console has none; a daemon may have closed it."""
    closed = io.StringIO()
    closed.close()

    assert [is_terminal(stream) for stream in (None, closed, io.StringIO())] == [False] * 3


def test_frames_without_rows_are_told_as_nothing(tmp_path: Path) -> None:
    """A total of 0 is reached at once."""
    topic = LogDir(tmp_path).create_topic("fruit", config=_COMPACT)
    with shown_work() as works:
        topic.append(pl.DataFrame({"key": [], "value": []}, schema={"key": pl.String, "value": pl.String}))

    assert all(one.done == one.total == 0 for one in works)
