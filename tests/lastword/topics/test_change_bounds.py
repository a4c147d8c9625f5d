"""The two ends of `changes`: by name, by time, and by offsets, in Python and on the command line. No JVM."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from lastword import LogDir, UserError
from lastword.cli import app as cli

if TYPE_CHECKING:
    from pathlib import Path

    from lastword import ArrowTopic

_NOON_MS = 1_700_000_000_000
_NOON = datetime.fromtimestamp(_NOON_MS / 1000, tz=timezone.utc)


@pytest.fixture(name="topic")
def _topic(tmp_path: Path) -> ArrowTopic:
    """Return a topic with three records of one key, a second apart, and one in another partition."""
    topic = LogDir(tmp_path).create_topic("fruit", partitions=2, config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})
    for second in range(3):
        topic.append([{"key": "lime", "value": str(second), "partition": 0, "timestamp": _NOON_MS + 1000 * second}])
    topic.append([{"key": "fig", "value": "9", "partition": 1, "timestamp": _NOON_MS}])
    return topic


def _drawn(rows: Any) -> list[str]:
    return [f"{row['partition']}:{row['offset']} {row['change_type']} {row['value'].decode()}" for row in rows.to_pylist()]


def test_everything_is_between_earliest_and_latest(topic: ArrowTopic) -> None:
    """Which are the defaults."""
    whole = ["0:0 insert 0", "0:1 update_before 0", "0:1 update_after 1", "0:2 update_before 1", "0:2 update_after 2", "1:0 insert 9"]

    assert _drawn(topic.changes()) == _drawn(topic.changes("earliest", "latest")) == _drawn(topic.changes([0, 0], {0: 3, 1: 1})) == whole
    assert _drawn(topic.changes("latest")) == []


@pytest.mark.parametrize("begin", ["2023-11-14T22:13:21Z", "2023-11-14 22:13:20.001", _NOON.replace(second=21)])
def test_a_time_is_the_first_record_that_is_not_older(topic: ArrowTopic, begin: str | datetime) -> None:
    """ISO 8601, in UTC where it names no zone, or a datetime; exclusive as an end."""
    assert _drawn(topic.changes(begin)) == ["0:1 update_before 0", "0:1 update_after 1", "0:2 update_before 1", "0:2 update_after 2"]
    assert _drawn(topic.changes("earliest", begin)) == ["0:0 insert 0", "1:0 insert 9"]


def test_a_time_before_all_records_is_the_log_start_after_a_cleaning_too(topic: ArrowTopic) -> None:
    """The first record that is left is not the first that was there."""
    topic.roll()
    topic.clean()

    assert _drawn(topic.changes("2020-01-01", net=True)) == _drawn(topic.changes("earliest", net=True)) == ["0:2 insert 2", "1:0 insert 9"]


@pytest.mark.parametrize("wrong", ["yesterday", "2023-13-01", 7, [0], {"0": "x"}, None])
def test_what_is_no_point_of_the_log_is_refused(topic: ArrowTopic, wrong: Any) -> None:
    """In one line that names the argument and what is allowed."""
    with pytest.raises(UserError, match=r"begin = .*allowed is") as raised:
        topic.changes(wrong)
    assert "\n" not in str(raised.value)


def test_the_command_takes_the_same_words(topic: ArrowTopic, tmp_path: Path) -> None:
    """And needs neither end."""

    def offsets(*words: str) -> list[int]:
        done = CliRunner(env={"LASTWORD_LOG_DIR": str(tmp_path)}).invoke(cli.app, ["changes", "fruit", "--json", "--net", *words])
        return [json.loads(line)["offset"] for line in done.stdout.splitlines()]

    assert offsets() == [2, 0]
    assert offsets("--from", "2023-11-14T22:13:21Z", "--to", "latest") == [2, 2]
    assert offsets("--from", '{"0": 0, "1": 1}', "--to", "2023-11-14T22:13:22Z") == [1]
