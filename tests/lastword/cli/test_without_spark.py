"""What does not stream, where neither Java nor pyspark and delta-spark are to be found."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyarrow import feather

from lastword import LogDir
from lastword.cli import app
from lastword.storage.append.append import append_rows
from lastword.storage.append.requests import AppendStats, MicroBatch
from lastword.storage.append.writing import ArrowRows
from tests.pictures import log, rows
from tests.waiting import PATIENCE_SECONDS, until

if TYPE_CHECKING:
    from pathlib import Path

    from lastword import Topic


_WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"pyspark", "py4j", "delta"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""
_COMMAND = f"{_WITHOUT}\nfrom lastword.cli.app import main\nmain()"
_LIFE = f"""{_WITHOUT}
from lastword import LogDir
logs = LogDir(sys.argv[1])
topic = logs.create_topic("life", partitions=2, config={{"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": 0}})
topic.append([{{"key": "a", "value": "1", "partition": 0}}, {{"key": "b", "value": "1", "partition": 0}}])
with topic.transaction("loader") as transaction:
    transaction.append([{{"key": "a", "value": "2", "partition": 0}}])
topic.alter_config({{"segment.bytes": "1MiB"}})
topic.roll()
assert [receipt.removed for receipt in topic.clean()] == [{{"superseded": 1}}]
assert topic.delete_records({{0: 2}}) == {{0: 2}}
assert topic.purge("a").records_removed == 1
assert topic.verify().ok
assert topic.explain() and topic.describe().record_count is not None and topic.receipts() and topic.pause() and topic.resume()
assert len(topic.latest()) == 0
logs.delete_topic("life")
assert logs.topics() == []
"""


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    """Return a topic with four records in two partitions."""
    found = LogDir(str(tmp_path / "data")).create_topic("fruit", partitions=2, config={"cleanup.policy": "compact"})
    found.append(rows("lime=1 grape=2 lime=∅", partition=0, timestamp_ms=1_000))
    found.append(rows("kiwi=3", partition=1, timestamp_ms=2_000))
    return found


def _run(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LASTWORD_LOG_DIR": str(tmp_path / "data"), "JAVA_HOME": "/nonexistent", "PATH": "", "COLUMNS": "140"}
    return subprocess.run([sys.executable, "-c", _COMMAND, *words], capture_output=True, text=True, env=environment, check=False)  # noqa: S603


def _json(tmp_path: Path, *words: str) -> list[dict[str, Any]]:
    done = _run(tmp_path, *words, "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.long
def test_records_are_read_in_order_and_no_further_than_the_limit(topic: Topic, tmp_path: Path) -> None:
    """By partition and offset; from an offset on; of one partition."""
    found = _json(tmp_path, "records", "fruit")
    assert [(row["partition"], row["offset"], row["key"], row["value"]) for row in found] == [
        (0, 0, "lime", "1"),
        (0, 1, "grape", "2"),
        (0, 2, "lime", None),
        (1, 0, "kiwi", "3"),
    ]
    assert found[0]["timestamp"] == "1970-01-01T00:00:01.000+00:00"
    assert [row["key"] for row in _json(tmp_path, "records", "fruit", "--from-offset", "1")] == ["grape", "lime"]
    assert [row["key"] for row in _json(tmp_path, "records", "fruit", "--partition", "1")] == ["kiwi"]
    assert [row["key"] for row in _json(tmp_path, "records", "fruit", "--limit", "1")] == ["lime"]
    shown = _run(tmp_path, "records", "fruit", "--limit", "2")
    assert "grape" in shown.stdout
    assert "more rows exist" in shown.stdout


@pytest.mark.long
def test_the_latest_record_of_each_key(topic: Topic, tmp_path: Path) -> None:
    """By partition and key; of some keys; no tombstones."""
    assert [(row["key"], row["value"]) for row in _json(tmp_path, "latest", "fruit")] == [("grape", "2"), ("kiwi", "3")]
    assert [row["key"] for row in _json(tmp_path, "latest", "fruit", "--limit", "1")] == ["grape"]
    assert [row["key"] for row in _json(tmp_path, "latest", "fruit", "--key", "kiwi", "--key", "lime")] == ["kiwi"]


@pytest.mark.long
def test_the_past_and_what_changed_since(topic: Topic, tmp_path: Path) -> None:
    """As of a table version; from one offset vector to another."""
    assert [row["key"] for row in _json(tmp_path, "latest", "fruit", "--as-of", "1")] == ["grape"]
    offsets = ("--from", '{"0": 1, "1": 0}', "--to", '{"0": 3, "1": 1}')
    found = _json(tmp_path, "changes", "fruit", *offsets)
    assert [(row["key"], row["change_type"], row["value"]) for row in found] == [
        ("grape", "insert", "2"),
        ("lime", "delete", "1"),
        ("kiwi", "insert", "3"),
    ]
    assert len(_json(tmp_path, "changes", "fruit", *offsets, "--net")) == 3


@pytest.mark.long
def test_verify_and_dead_letters(topic: Topic, tmp_path: Path) -> None:
    """The invariants hold; the newest refusal comes last."""
    stats = AppendStats()
    for number, key in enumerate(["first", "second"]):
        batch = MicroBatch(query_id="q", query_name="files", batch_id=number)
        bad = ArrowRows(pa.table({"key": [None], "value": [key]}))
        append_rows(topic.log, bad, now_ms=1_000 + number, stats=stats, micro_batch=batch)
    assert [row["value"] for row in _json(tmp_path, "dead-letters", "fruit")] == ["first", "second"]
    assert "4 records at table version 2: all invariants hold" in _run(tmp_path, "verify", "fruit").stdout


@pytest.mark.long
def test_files_are_appended_and_one_that_cannot_be_read_appends_nothing(topic: Topic, tmp_path: Path) -> None:
    """Parquet and Arrow, told by what is in them; with an idempotency key each once."""
    table = rows("plum=1 fig=2", partition=1)
    pq.write_table(table, tmp_path / "a.parquet")
    feather.write_feather(table, tmp_path / "b.arrow")
    (tmp_path / "c.csv").write_text("key,value\n")
    files = [str(tmp_path / name) for name in ("a.parquet", "b.arrow")]
    done = _run(tmp_path, "append", "fruit", *files, "--idempotency-key", "monday")
    assert done.returncode == 0, done.stderr
    done = _run(tmp_path, "append", "fruit", *files, "--idempotency-key", "monday")
    assert "was appended before under monday/a.parquet" in done.stderr
    assert log(topic, 1) == ["0 kiwi=3", "1 plum=1", "2 fig=2", "3 plum=1", "4 fig=2"]
    for words, message in (
        ([files[0], str(tmp_path / "c.csv")], "c.csv holds csv: name the columns that are the key, or give an envelope"),
        ([str(tmp_path / "none.parquet")], "there is no file "),
        ([], "FILES = nothing: either FILES"),
        ([files[0], files[0], "--idempotency-key", "k"], "FILES = a.parquet: files of different names"),
        (["--path", "x", "--key", "k", "--idempotency-key", "k"], "--idempotency-key = k: this option with FILES alone"),
    ):
        done = _run(tmp_path, "append", "fruit", *words)
        assert done.returncode == (2 if words[:1] in ([], ["--path"]) or len(words) == 4 else 1)
        assert message in done.stderr
    assert len(log(topic, 1)) == 5


@pytest.mark.long
@pytest.mark.parametrize("words", [["topics", "describe", "fruit"], ["explain", "fruit"], ["clean", "fruit"], ["receipts", "fruit"]])
def test_other_commands_need_no_jvm_either(topic: Topic, tmp_path: Path, words: list[str]) -> None:
    """They end well."""
    done = _run(tmp_path, *words)
    assert done.returncode == 0, done.stderr


_IMPORTED = """
import sys
from lastword.cli.app import main
try:
    main()
finally:
    print("imported:", *sorted({name.partition(".")[0] for name in sys.modules if sys.modules[name] is not None}), file=sys.stderr)
"""


@pytest.mark.long
def test_a_command_imports_neither_pandas_nor_what_another_command_needs(topic: Topic, tmp_path: Path) -> None:
    """It would take half of the time that a quick command takes; with `lastword[spark]` pandas is installed."""
    for words in (["topics", "list"], ["latest", "fruit", "--json"], ["records", "fruit"]):
        run = [sys.executable, "-c", _IMPORTED, *words, "--log-dir", str(tmp_path / "data")]
        done = subprocess.run(run, capture_output=True, text=True, check=False)  # noqa: S603  our own interpreter
        assert done.returncode == 0, done.stderr
        imported = set(done.stderr.partition("imported: ")[2].split())
        assert {"pyarrow", "polars"} <= imported
        assert imported & {"pandas", "pyspark", "py4j", "uvicorn", "starlette", "google"} == set()


def test_a_topic_lives_without_spark(tmp_path: Path) -> None:
    """Appends, a transaction, a cleaning, a deletion, a purge, the end."""
    done = subprocess.run([sys.executable, "-c", _LIFE, str(tmp_path / "logs")], capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EIO, "Input/output error"),
        OSError(errno.ENOSPC, "No space left on device"),
        TimeoutError("late"),
        ConnectionResetError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_storage_that_fails_is_one_message(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: OSError) -> None:
    """No traceback, and nothing that sounds as if a topic were damaged."""

    def fails() -> None:
        raise error

    monkeypatch.setattr(app, "app", fails)
    with pytest.raises(SystemExit) as ended:
        app.main()
    told = capsys.readouterr().err
    assert (ended.value.code, told.count("\n")) == (1, 1)
    assert told.startswith(f"error: {str(error) or type(error).__name__} (")
    assert told.endswith("no topic is damaged by that)\n")


@pytest.mark.long
def test_the_command_line_does_not_break_the_loggers_of_pyspark() -> None:
    """Its query context loggers accept keyword arguments that a logger of Python rejects, so the command line must not replace them."""
    code = """
import sys
from lastword.cli import app
sys.argv = ["lastword", "--help"]
try:
    app.main()
except SystemExit:
    from pyspark.logger import PySparkLogger
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).error("told", errorClass="X")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr
    assert done.stderr.count('"told"') == 2


def test_a_service_without_sources_keeps_tables_and_cleans(tmp_path: Path) -> None:
    """The cleaner and the tables are threads; SIGTERM ends it with exit code 0."""
    (tmp_path / "lastword.toml").write_text(
        f"""
log.dir = "{tmp_path}/data"
log.cleaner.backoff.ms = 100
[topic.fruit]
cleanup.policy = "compact"
min.cleanable.dirty.ratio = 0
[[table]]
topic = "fruit"
path = "{tmp_path}/prices"
schema = "price int"
every = 0.1
[http]
listen = ""
"""
    )
    logs = LogDir(str(tmp_path / "data"))
    words = [sys.executable, "-c", _COMMAND, "run", "-c", str(tmp_path / "lastword.toml")]
    environment = {**os.environ, "JAVA_HOME": "/nonexistent", "PATH": ""}
    with subprocess.Popen(words, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as service:  # noqa: S603  our own
        try:
            until(lambda: "fruit" in logs.topics())
            topic = logs.topic("fruit")
            topic.append([{"key": "fig", "value": '{"price":1}'}, {"key": "fig", "value": '{"price":2}'}])
            topic.roll()
            until(lambda: [receipt.removed for receipt in topic.receipts()] == [{"superseded": 1}])
            until(lambda: DeltaTable.is_deltatable(str(tmp_path / "prices")))
            until(lambda: [row["price"] for row in pl.read_delta(str(tmp_path / "prices")).to_dicts()] == [2])
        finally:
            service.terminate()
            errors = service.communicate(timeout=PATIENCE_SECONDS)[1]
    assert service.returncode == 0, errors
