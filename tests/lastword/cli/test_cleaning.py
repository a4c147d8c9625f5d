"""The verbs of cleaning on the command line, alone and beside a running service."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from lastword import LogDir
from lastword.compaction.errors import PolicyViolation, UserError
from lastword.service.service import Service
from lastword.service.settings import Settings
from lastword.text import size
from tests.lastword.cli.test_cli import Shell
from tests.pictures import HOUR_MS, history, rows
from tests.processes import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

_EAGER = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}


@pytest.fixture
def lastword(spark: SparkSession, logs: LogDir) -> Shell:
    """Return the command line of an empty log.dir."""
    return Shell(logs)


def test_explain_clean_receipts_and_pauses_read_as_a_story(spark: SparkSession, logs: LogDir, lastword: Shell) -> None:
    """What would go, what went, what holds the rest back."""
    topic = logs.create_topic("fruit", partitions=2, config=_EAGER)
    topic.append(pa.concat_tables([rows("a=1 a=2 b=∅", partition=0), rows("c=1", partition=1)]))
    topic.roll(0)
    first, second = lastword.json("explain", "fruit")
    assert (first["eligible"], first["trigger"]) == (True, "above min.cleanable.dirty.ratio")
    assert (second["obstacle"], second["bound_detail"]) == ("nothing cleanable", "active segment begins at offset 0")
    assert "eligible:" in lastword("explain", "fruit")
    [dry] = lastword.json("clean", "fruit", "--dry-run")
    assert (dry["removed"], dry["records_before"], dry["records_after"]) == ({"superseded": 1}, 3, 2)
    assert len(history(topic)) == 3, "the dry run wrote nothing"
    assert lastword("pause", "fruit", "--partition", "0") == "partition 0: paused 1 time\n"
    assert "nothing to clean" in lastword("clean", "fruit")
    assert lastword("resume", "fruit") == "partition 0: resumed\n"
    shown = lastword("clean", "fruit")
    assert "superseded 1" in shown
    assert re.search(r"(?m) 3 .*\n.*→ 2 ", shown), shown
    assert "−33.3 %" in shown
    [receipt] = lastword.json("receipts", "fruit", "--partition", "0")
    assert (receipt["removed"], receipt["end_offset"]) == ({"superseded": 1}, 3)
    assert lastword.json("explain", "fruit")[0]["eligible_at_ms"] == receipt["now_ms"] + 24 * HOUR_MS
    assert "held back: nothing" in lastword("explain", "fruit")
    assert "cleanup.policy = compact does not allow" in lastword.error(PolicyViolation, "delete-records", "fruit", "0:2", "--yes")
    lastword("topics", "alter", "fruit", "--config", "cleanup.policy=compact,delete", "--config", "retention.ms=-1")
    starts = lastword("delete-records", "fruit", "0:2", "1:-1", "--yes").splitlines()
    assert starts == ["partition 0: the log starts at offset 2", "partition 1: the log starts at offset 1"]
    assert "PARTITION:OFFSET" in lastword.error(UserError, "delete-records", "fruit", "zero")
    assert "allowed is 0 to 3" in lastword.error(UserError, "delete-records", "fruit", "0:9", "--yes")
    assert "nothing to delete" in lastword("retention", "fruit")
    lastword("topics", "alter", "fruit", "--config", "cleanup.policy=compact,delete", "--config", "retention.ms=0")
    assert lastword.json("retention", "fruit")[0]["log_start_offset"] == 3
    assert "all invariants hold" in lastword("verify", "fruit")


def test_a_dry_run_says_rows_and_bytes_to_go_by_reason(
    spark: SparkSession, logs: LogDir, lastword: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of three clean records and one of three dirty ones; the receipt keeps the estimate."""
    topic = logs.create_topic("fruit", partitions=2, config=_EAGER)
    for picture in ("a=1 b=1 c=1", "a=2 b=2 a=3"):
        topic.append(rows(picture, partition=0))
        topic.roll(0)
        if picture.startswith("a=1"):
            assert lastword.json("clean", "fruit")[0]["removed_bytes"] == {}
    clean, dirty = (one.size_bytes / one.record_count for one in topic.describe().partitions[0].segments)
    about = round(2 * clean + dirty)
    [dry] = lastword.json("clean", "fruit", "--dry-run")
    assert (dry["removed"], dry["removed_bytes"], dry["rounds_left"]) == ({"superseded": 3}, {"superseded": about}, 0)
    shown = lastword("clean", "fruit", "--dry-run")
    assert "superseded 3" in shown
    assert f"≈ {size(about)}" in shown
    assert "first round" not in shown

    topic.append(rows("d=1 e=1 d=2", partition=1))
    topic.roll(1)
    monkeypatch.setattr("lastword.streaming.cleaning.cleaner.map_entries", lambda _: 2)
    shown = lastword("clean", "fruit", "--dry-run")
    assert "1 more round" in " ".join(shown.split())
    not_all = "only the first round is shown: the map budget requires more rounds for partitions 0, 1"
    assert not_all in " ".join(shown.split())
    topic.alter_config({"min.cleanable.dirty.ratio": 1})
    assert "nothing to clean" in lastword("clean", "fruit", "--dry-run")
    assert not_all in " ".join(lastword("clean", "fruit", "--dry-run", "--force").split())
    topic.alter_config(_EAGER)
    monkeypatch.undo()
    assert f"≈ {size(about)}" in lastword("clean", "fruit")
    assert [one["removed_bytes"] for one in lastword.json("receipts", "fruit", "--partition", "0")] == [{}, {"superseded": about}]


def test_commands_work_with_the_settings_of_the_service(spark: SparkSession, logs: LogDir, lastword: Shell) -> None:
    """After it as beside it: retention takes what the service would take, explain says what it would say."""
    broker = {"log.retention.ms": -1, "log.cleaner.min.cleanable.ratio": 0.25}
    Service(Settings.model_validate({"log_dir": logs.location, "broker": broker, "topics": {"fruit": {}}}))
    lastword("topics", "create", "nuts", "--config", "cleanup.policy=compact")
    for name in ("fruit", "nuts"):
        logs.topic(name).append(rows("a=1", timestamp_ms=1_000))
        logs.topic(name).roll()
    assert "nothing to delete" in lastword("retention", "fruit")
    assert lastword("delete-records", "fruit", "0:0", "--yes") == "partition 0: the log starts at offset 0\n"
    assert [one["threshold"] for one in lastword.json("explain", "nuts")] == [0.25]


def test_commands_that_commit_need_no_jvm_and_no_service(spark: SparkSession, logs: LogDir, lastword: Shell) -> None:
    """They commit themselves, whatever process appends or cleans beside them; a refusal changes nothing."""
    topic = logs.create_topic("fruit", config=_EAGER)
    topic.append(rows("a=1 a=2"))
    topic.roll()
    assert "does not allow to delete records by offset" in lastword.error(PolicyViolation, "delete-records", "fruit", "0:1", "--yes")
    command = [sys.executable, "-m", "lastword", "clean", "fruit", "--json", "--log-dir", logs.location]
    without_java = {**os.environ, "JAVA_HOME": "/nonexistent", "PATH": ""}
    done = subprocess.run(command, cwd=ROOT, env=without_java, capture_output=True, text=True, timeout=120, check=True)  # noqa: S603
    assert json.loads(done.stdout)["removed"] == {"superseded": 1}
    assert history(topic) == ["1 a=2"], "this process sees it"
    topic.append(rows("b=1"))
    assert history(topic) == ["1 a=2", "2 b=1"]
    assert lastword("topics", "delete", "fruit", "--yes") == "deleted topic fruit\n"
    assert logs.topics() == []


def test_retention_says_what_it_deleted_of_each_partition_and_why(tmp_path: Path) -> None:
    """In words: segments, bytes, the setting that they broke, and where the log starts now."""
    logs = LogDir(tmp_path)
    topic = logs.create_topic("fruit", partitions=3, config={"cleanup.policy": "delete", "retention.ms": -1})
    for picture, partition in (("a=1", 0), ("a=2", 0), ("b=1", 1)):
        topic.append(rows(picture, partition=partition))
        topic.roll(partition)
    sizes = [sum(one.size_bytes for one in partition.segments) for partition in topic.describe().partitions]
    topic.alter_config({"retention.ms": 0})
    lastword = Shell(logs)
    assert " ".join(lastword("retention", "fruit").split()) == (
        f"partition 0: deleted 2 segments, {size(sizes[0])} (retention.ms); the log starts at offset 2 "
        f"partition 1: deleted 1 segment, {size(sizes[1])} (retention.ms); the log starts at offset 1"
    )
    assert lastword("retention", "fruit") == "fruit: nothing to delete\n"
