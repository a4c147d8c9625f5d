"""One key: its records that the log still has, where each is, and what it is to readers and to the cleaner. No JVM."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from lastword import KeyStatus, LogDir, UserError
from lastword.cli import app as cli

if TYPE_CHECKING:
    from pathlib import Path

    from lastword import ArrowTopic, KeyHistory

_CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}


@pytest.fixture(name="topic")
def _topic(tmp_path: Path) -> ArrowTopic:
    """Return a topic in which a key has a record of each status."""
    topic = LogDir(tmp_path).create_topic("fruit", partitions=2, config=_CONFIG)
    _append(topic, grape="1")
    _append(topic, grape="2")
    _append(topic, lime=None)
    topic.roll()
    topic.clean()
    _append(topic, grape="3")
    _append(topic, grape="4")
    broken = topic.transaction("broken")
    broken.append(_rows(grape="5"))
    broken.abort()
    topic.transaction("loader").append(_rows(grape="6"))
    _append(topic, grape="7")
    return topic


def _rows(partition: int = 0, **values: str | None) -> list[dict[str, Any]]:
    return [{"key": key, "value": value, "partition": partition} for key, value in values.items()]


def _append(topic: ArrowTopic, partition: int = 0, **values: str | None) -> None:
    topic.append(_rows(partition, **values))


def _drawn(history: KeyHistory | None) -> list[str]:
    """Return each record as offset, segment, section, status and value."""
    assert history is not None
    return [
        f"{one.offset} {one.segment} {'clean' if one.is_clean else 'dirty'} {one.status.value} {(one.value or b'-').decode()}"
        for one in history.records
    ]


def test_each_record_says_what_it_is_to_a_reader(topic: ArrowTopic) -> None:
    """What cleaning took is gone; the open transaction holds back what came behind it."""
    history = topic.get("grape")

    assert _drawn(history) == [
        "1 0 clean superseded 2",
        "3 3 dirty superseded 3",
        "4 3 dirty latest 4",
        "5 3 dirty aborted 5",
        "7 3 dirty open 6",
        "8 3 dirty waiting 7",
    ]
    assert history is not None
    assert (history.latest or history.records[0]).value == topic.latest(keys="grape")["value"].to_pylist()[0]
    assert (history.record_count, history.cleaner_checkpoint, history.partition) == (6, 3, 0)


def test_a_deleted_key_has_its_tombstone_as_the_latest_record(topic: ArrowTopic) -> None:
    """And a key that was never there has no history."""
    history = topic.get(b"lime")

    assert history is not None
    assert history.latest is not None
    assert (history.latest.is_tombstone, history.latest.status) == (True, KeyStatus.LATEST)
    assert topic.get("nothing") is None
    assert topic.get("grape", partition=1) is None


def test_the_newest_records_are_read_and_all_are_counted(topic: ArrowTopic) -> None:
    """The latest one is there even if it is older than those."""
    history = topic.get("grape", limit=2)

    assert history is not None
    assert [record.offset for record in history.records] == [7, 8]
    assert (history.record_count, history.latest and history.latest.offset) == (6, 4)


def test_a_key_of_several_columns_may_be_written_in_any_order(tmp_path: Path) -> None:
    """As JSON text or as a mapping; one column also stands as its text."""
    topic = LogDir(tmp_path).create_topic("lines", config=_CONFIG)
    topic.append([{"key": key, "value": "x"} for key in ('{"id":7,"line":1}', '{"id":9}', "8", "{no json")])

    for key in ('{"line": 1, "id": 7}', {"line": 1, "id": 7}, '{"id":7,"line":1}', b'{"id":7,"line":1}'):
        assert (topic.get(key) or pytest.fail(f"{key!r}")).key == b'{"id":7,"line":1}'
    assert [(topic.get(key) or pytest.fail(f"{key!r}")).key for key in ({"id": 9}, {"id": 8}, "{no json")] == [
        b'{"id":9}',
        b"8",
        b"{no json",
    ]


def test_a_key_in_two_partitions_needs_a_partition(topic: ArrowTopic) -> None:
    """A key in two partitions is two keys, so `get` asks which one."""
    _append(topic, partition=1, grape="other")

    with pytest.raises(UserError, match=r"the key stands in partitions 0, 1.*name one partition"):
        topic.get("grape")
    assert _drawn(topic.get("grape", partition=1)) == ["0 0 dirty latest other"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"key": 7}, "key = 7: allowed is"),
        ({"key": {"id": object()}}, "key = .*: allowed is a mapping"),
        ({"key": "grape", "limit": 0}, "limit = 0: allowed is"),
        ({"key": "grape", "partition": 9}, "no partition 9: allowed is 0 to 1"),
    ],
)
def test_what_is_no_key_is_refused(topic: ArrowTopic, arguments: dict[str, Any], message: str) -> None:
    """By its name and with what is allowed."""
    with pytest.raises(UserError, match=message):
        topic.get(**arguments)


def test_a_record_in_the_middle_of_one_of_many_files_is_found(tmp_path: Path) -> None:
    """With its own value."""
    topic = LogDir(tmp_path).create_topic("many", config=_CONFIG)
    for number in range(5):
        topic.append([{"key": f"k{number}-{row}", "value": "x" * 100} for row in range(200)])

    assert _drawn(topic.get("k3-150")) == [f"750 0 dirty latest {'x' * 100}"]


def _run(topic: ArrowTopic, *words: str) -> Any:
    return CliRunner(env={"LASTWORD_LOG_DIR": topic.log.paths.root.rsplit("/", 1)[0]}).invoke(cli.app, ["get", topic.name, *words])


def test_the_command_shows_the_value_the_place_and_the_history(topic: ArrowTopic) -> None:
    """For people within 80 columns, for scripts as one object."""
    shown = _run(topic, "grape")
    (found,) = [json.loads(line) for line in _run(topic, "grape", "--json", "--limit", "1").stdout.splitlines()]

    assert shown.stdout.startswith("grape: 4\n  fruit, partition 0, 6 records in the log, cleaner checkpoint 3\n")
    assert all(len(line) <= 80 for line in shown.stdout.splitlines())
    assert "lime: deleted" in _run(topic, "lime").stdout
    assert "… 5 older records" in _run(topic, "grape", "--limit", "1").stdout
    assert (found["key"], found["latest"]["value"], found["record_count"]) == ("grape", "4", 6)
    assert [(row["status"], row["section"], row["tombstone"]) for row in found["records"]] == [("waiting", "dirty", False)]


def test_a_key_that_is_not_there_is_one_line(topic: ArrowTopic) -> None:
    """With exit code 1, and the partition if there was one."""
    assert str(_run(topic, "fig").exception) == "topic fruit has no record of the key 'fig'"
    assert str(_run(topic, "fig", "--partition", "1").exception) == "partition 1 of topic fruit has no record of the key 'fig'"
