"""Requests to the process that holds the log.dir: each is carried out once, or withdrawn, or refused; none stops the service."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lastword import LogDir, clock
from lastword.compaction.errors import CommitConflict, CommitStateUnknown
from lastword.service import requests
from lastword.service.requests import AbortTransaction, ApplyRetention, Clean, DeleteRecords, DeleteTopic, NoAnswer, Request
from tests.pictures import history, latest, rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

_EAGER = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}
_ROOT = Path(__file__).resolve().parents[3]


@contextmanager
def _served(logs: LogDir) -> Iterator[None]:
    """Serve requests in a thread, as the service does."""
    over = threading.Event()

    def service() -> None:
        while not over.wait(0.05):
            requests.serve(logs, clock.now_ms)

    running = threading.Thread(target=service)
    running.start()
    try:
        yield
    finally:
        over.set()
        running.join()


def _command(logs: LogDir, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command line as a process of its own, beside this one, which holds the lock; it can start no Spark."""
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "LASTWORD_LOG_DIR": logs.location, "LASTWORD_JARS": "none", "COLUMNS": "200"}
    return subprocess.run(  # noqa: S603  our own interpreter
        [sys.executable, "-c", "from lastword.cli.app import main; main()", *words],
        cwd=_ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def _folder(logs: LogDir) -> Path:
    folder = Path(logs.location) / ".requests"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _put(logs: LogDir, name: str, request: Request | str, *, asked_at_ms: int | None = None) -> None:
    """Lay a request into the folder, asked just now by somebody who waits a minute; text as it is."""
    moment_ms = clock.now_ms() if asked_at_ms is None else asked_at_ms
    letter = {"asked_at_ms": moment_ms, "timeout_ms": 60_000}
    text = request if isinstance(request, str) else json.dumps({**letter, "request": request.model_dump()})
    (_folder(logs) / f"{name}.request.json").write_text(text)


def _answers(logs: LogDir) -> dict[str, Any]:
    """Return the answers that lie in the folder, and see that nothing else does; take them away."""
    found = {}
    for path in _folder(logs).iterdir():
        assert path.name.endswith(".answer.json")
        found[path.name.removesuffix(".answer.json")] = json.loads(path.read_text())
        path.unlink()
    return found


def test_a_command_of_another_process_is_carried_out_by_the_one_that_holds_the_log_dir(spark: SparkSession, logs: LogDir) -> None:
    """A real second process; a mistake has the same message there as here, and silence names the holder."""
    topic = logs.create_topic("fruit", partitions=2, config=_EAGER)
    topic.append(rows(spark, "a=1 a=2", partition=0))
    topic.roll()
    with _served(logs):
        cleaned = _command(logs, "clean", "fruit", "--json")
        assert (cleaned.returncode, json.loads(cleaned.stdout)["removed"]) == (0, {"superseded": 1}), cleaned.stderr
        refused = _command(logs, "delete-records", "fruit", "0:9")
        assert (refused.returncode, refused.stdout) == (1, "")
        assert "offset 9; allowed is 0 to 2" in refused.stderr
    alone = _command(logs, "retention", "fruit", "--timeout", "0.3")
    assert (alone.returncode, alone.stdout) == (1, "")
    assert "no answer came within 0.3 s; the request is withdrawn and nothing was done" in alone.stderr
    assert f"is held by process {os.getpid()}" in alone.stderr
    assert _answers(logs) == {}
    assert history(topic) == ["1 a=2"]


def test_every_verb_is_carried_out_by_serve(spark: SparkSession, logs: LogDir) -> None:
    """In the order in which they came; the answer to the deletion of a topic outlives the topic."""
    topic = logs.create_topic("fruit", partitions=2, config=_EAGER)
    topic.append(rows(spark, "a=1 a=2", partition=0))
    topic.roll()
    writer = topic.transaction("loader")
    writer.append(rows(spark, "c=1", partition=1))
    asked: dict[str, Request] = {
        "1": AbortTransaction(topic="fruit", producer_id=0),
        "2": Clean(topic="fruit", force=True),
        "3": DeleteRecords(topic="fruit", before={0: -1}),
        "4": ApplyRetention(topic="fruit"),
    }
    for name, request in asked.items():
        _put(logs, name, request)
    assert requests.serve(logs, clock.now_ms) == 4
    found = _answers(logs)
    assert found["1"]["result"] == {"partitions": [1], "table_version": 3}
    assert [one["removed"] for one in found["2"]["result"]["receipts"]] == [{"superseded": 1}]
    assert (found["3"]["result"], found["4"]["result"]) == ([{"partition": 0, "log_start_offset": 2}], [])
    assert latest(topic) == {}
    topic.alter_config({"cleanup.policy": "delete", "retention.ms": 0})
    _put(logs, "5", ApplyRetention(topic="fruit"))
    _put(logs, "6", DeleteTopic(topic="fruit"))
    assert requests.serve(logs, clock.now_ms) == 2
    found = _answers(logs)
    assert [(one["partition"], segment["reason"]) for one in found["5"]["result"] for segment in one["segments"]] == [(1, "retention.ms")]
    assert (found["6"]["ok"], found["6"]["result"], logs.topics()) == (True, None, [])


def test_what_cannot_be_carried_out_gets_an_error_and_stops_nothing(
    spark: SparkSession, logs: LogDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nonsense, unknown verbs and arguments, names that lead elsewhere, what expired, mistakes and bugs."""
    logs.create_topic("fruit")
    fields = '"asked_at_ms": 1, "timeout_ms": 9999999999999'
    given = {
        "empty": "",
        "text": "clean fruit",
        "long": " " * 2_000_000,
        "deep": "[" * 100_000,
        "verb": f'{{{fields}, "request": {{"verb": "drop everything", "topic": "fruit"}}}}',
        "argument": f'{{{fields}, "request": {{"verb": "clean", "topic": "fruit", "path": "/"}}}}',
        "type": f'{{{fields}, "request": {{"verb": "clean", "topic": "fruit", "force": "yes"}}}}',
        "elsewhere": f'{{{fields}, "request": {{"verb": "topics delete", "topic": "../logs/fruit"}}}}',
        "undated": '{"request": {"verb": "topics delete", "topic": "fruit"}}',
    }
    for name, text in given.items():
        _put(logs, name, text)
    _put(logs, "late", DeleteTopic(topic="fruit"), asked_at_ms=clock.now_ms() - 61_000)
    _put(logs, "unknown", Clean(topic="frut"))
    _put(logs, "mistake", AbortTransaction(topic="fruit", producer_id=3))
    (_folder(logs) / "left.begun.json").write_text("{}")
    (_folder(logs) / "folder.request.json").mkdir()
    assert requests.serve(logs, clock.now_ms) == len(given) + 3
    (_folder(logs) / "folder.request.json").rmdir()
    found = _answers(logs)
    assert not any(one["ok"] for one in found.values())
    kinds = {name: one["error"] for name, one in found.items()}
    assert kinds.pop("late") == "Expired"
    assert (kinds.pop("left"), kinds.pop("unknown"), kinds.pop("mistake")) == ("Interrupted", "UnknownTopic", "UserError")
    assert set(kinds.values()) == {"InvalidRequest"}
    assert logs.topics() == ["fruit"]

    def broken(*_: Any) -> None:
        message = "a bug\nand its stack"
        raise RuntimeError(message)

    monkeypatch.setattr(ApplyRetention, "carry_out", broken)
    _put(logs, "bug", ApplyRetention(topic="fruit"))
    assert requests.serve(logs, clock.now_ms) == 1
    assert _answers(logs)["bug"]["message"] == "RuntimeError: a bug"


def test_the_fates_of_a_commit_are_heeded(spark: SparkSession, logs: LogDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """A conflict waits for its next chance until it expires; an unknown state is answered, and stops the caller."""
    logs.create_topic("fruit")

    def conflict(*_: Any) -> None:
        message = "another thread works on partitions [0]"
        raise CommitConflict(message)

    def unknown(*_: Any) -> None:
        message = "nobody can say"
        raise CommitStateUnknown(message)

    monkeypatch.setattr(Clean, "carry_out", conflict)
    _put(logs, "busy", Clean(topic="fruit"))
    assert requests.serve(logs, clock.now_ms) == 0
    assert [path.name for path in _folder(logs).iterdir()] == ["busy.request.json"]
    assert requests.serve(logs, lambda: clock.now_ms() + 120_000) == 1
    assert _answers(logs)["busy"]["error"] == "Expired"
    monkeypatch.setattr(Clean, "carry_out", unknown)
    _put(logs, "unknown", Clean(topic="fruit"))
    with pytest.raises(CommitStateUnknown):
        requests.serve(logs, clock.now_ms)
    assert _answers(logs)["unknown"]["error"] == "CommitStateUnknown"


def test_a_service_that_stops_begins_no_request_and_the_next_one_does(spark: SparkSession, logs: LogDir) -> None:
    """What it had just begun to clean is put back: its cleaner did nothing."""
    topic = logs.create_topic("fruit", config=_EAGER)
    topic.append(rows(spark, "a=1 a=2"))
    topic.roll()
    _put(logs, "waits", Clean(topic="fruit"))

    class SetOnceLookedAt(threading.Event):
        """SIGTERM comes when the request has just been begun."""

        def is_set(self) -> bool:
            was = super().is_set()
            self.set()
            return was

    stopped = threading.Event()
    stopped.set()
    for stopping in (stopped, SetOnceLookedAt()):
        logs.cleaner.stopping = stopping
        assert requests.serve(logs, clock.now_ms) == 0
        assert [path.name for path in _folder(logs).iterdir()] == ["waits.request.json"]
        assert len(history(topic)) == 2
    logs.cleaner.stopping = threading.Event()
    assert requests.serve(logs, clock.now_ms) == 1
    assert (_answers(logs)["waits"]["ok"], history(topic)) == (True, ["1 a=2"])


def test_an_answer_that_nobody_fetches_goes_after_an_hour(logs: LogDir) -> None:
    """And so does a file that was never finished; a folder that does not exist costs nothing."""
    assert requests.serve(logs, clock.now_ms) == 0
    assert not Path(logs.location).exists()
    for name in ("one.answer.json", "two.tmp"):
        (_folder(logs) / name).write_text("{}")
    requests.serve(logs, clock.now_ms)
    assert len(list(_folder(logs).iterdir())) == 2
    requests.serve(logs, lambda: clock.now_ms() + 3_700_000)
    assert list(_folder(logs).iterdir()) == []


def test_who_asks_gets_the_answer_or_says_what_became_of_the_request(spark: SparkSession, logs: LogDir) -> None:
    """Withdrawn when nobody began it; what has begun goes on, and its answer waits in the folder."""
    logs.create_topic("fruit")
    with _served(logs):
        answer = requests.ask(logs.location, DeleteRecords(topic="fruit", before={0: -1}), 60)
    assert (answer.ok, answer.result) == (True, [{"partition": 0, "log_start_offset": 0}])
    with pytest.raises(NoAnswer, match="withdrawn and nothing was done") as withdrawn:
        requests.ask(logs.location, DeleteTopic(topic="fruit"), 0)
    assert not withdrawn.value.begun
    assert requests.serve(logs, clock.now_ms) == 0
    assert logs.topics() == ["fruit"]

    def begins() -> None:
        while not (waiting := list(_folder(logs).glob("*.request.json"))):
            time.sleep(0.01)
        waiting[0].rename(waiting[0].with_name("taken.begun.json"))

    service = threading.Thread(target=begins)
    service.start()
    with pytest.raises(NoAnswer, match="the service is executing the request") as begun:
        requests.ask(logs.location, DeleteTopic(topic="fruit"), 1)
    service.join()
    assert begun.value.begun
