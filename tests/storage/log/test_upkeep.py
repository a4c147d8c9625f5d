"""Checkpoints of the Delta log: one is written when enough commits came since the last one, and not before."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from lastword import LogDir, clock
from lastword.storage.ledger.decisions import Decision, Kind
from lastword.storage.log.limits import LogLimits, UpkeepLimits
from lastword.storage.log.upkeep import checkpoint, vacuum
from tests.pictures import HOUR_MS

if TYPE_CHECKING:
    from lastword.storage.log.topic_log import TopicLog


def _checkpoints(log: TopicLog) -> list[int]:
    """Return the table versions that have a checkpoint."""
    return sorted(int(path.name.split(".")[0]) for path in Path(log.paths.log, "_delta_log").glob("*.checkpoint.parquet"))


def test_a_checkpoint_is_written_after_so_many_commits(tmp_path: Path) -> None:
    """A table without a checkpoint counts from before version 0; the commit before the last one writes none."""
    topic = LogDir(tmp_path).create_topic("fruit")
    newest = []
    for number in range(6):
        topic.append([{"key": "a", "value": str(number)}])
        newest.append(checkpoint(topic.log, limits=UpkeepLimits(checkpoint_commits=3)))
    assert newest == [-1, 2, 2, 2, 5, 5]
    assert _checkpoints(topic.log) == [2, 5]
    assert checkpoint(topic.log) == 5, "by default after 100 commits"


def test_of_old_checkpoints_the_first_of_each_thousand_commits_stays(tmp_path: Path) -> None:
    """With one checkpoint in two commits, the first of ten kept, and the newest two: every table version can be read as before.

    ```
     written by an append     5     10    15    20       each 500th commit, when no limits are given
     by the service         1 3   7 9  12 14  17 19  22 24     two commits after the last one
     left at 24             1       10             20 22 24
    ```
    """
    topic = LogDir(tmp_path).create_topic("fruit")
    topic.log.limits = LogLimits(checkpoint_commits=5)
    limits = UpkeepLimits(checkpoint_commits=2, checkpoint_spacing=10, kept_checkpoints=2)
    kept = dict[int, list[int]]()
    for number in range(24):
        topic.append([{"key": "a", "value": str(number)}])
        newest = checkpoint(topic.log, limits=limits)
        kept[newest] = _checkpoints(topic.log)
    assert [kept[version] for version in (1, 3, 7, 9, 12, 19, 24)] == [
        [1],
        [1, 3],
        [1, 5, 7],
        [1, 7, 9],
        [1, 10, 12],
        [1, 10, 17, 19],
        [1, 10, 20, 22, 24],
    ]
    for version in range(25):
        assert DeltaTable(topic.log.paths.log, version=version).to_pyarrow_table(columns=["offset"]).num_rows == version


def test_the_oldest_commits_can_be_read_when_those_before_them_are_gone(tmp_path: Path) -> None:
    """The first checkpoint that is left is the one that they go on from, and stays with them."""
    topic = LogDir(tmp_path).create_topic("fruit")
    limits = UpkeepLimits(checkpoint_commits=2, checkpoint_spacing=10, kept_checkpoints=1)
    delta_log, month_ago = Path(topic.log.paths.log, "_delta_log"), clock.now_ms() / 1000 - 30 * 86_400
    for number in range(40):
        topic.append([{"key": "a", "value": str(number)}])
        for old in sorted(delta_log.glob("*.json"))[:-6]:
            os.utime(old, (month_ago, month_ago))
        checkpoint(topic.log, limits=limits)
    commits = sorted(int(path.name.split(".")[0]) for path in delta_log.glob("*.json"))
    begin = _checkpoints(topic.log)[0]
    assert 0 < begin <= commits[0], "the first commits are gone, and no other is without a checkpoint before it"
    for version in range(begin, 41):
        assert DeltaTable(topic.log.paths.log, version=version).to_pyarrow_table(columns=["offset"]).num_rows == version


def test_files_are_kept_for_a_reader_that_was_not_seen_for_longer_than_they_are_kept(tmp_path: Path) -> None:
    """It may go on at an old table version, until it expires.

    ```
     hours ago    100 reader seen     50 files left the log     24 ◄── files that left the log are kept for this long
    ```
    """
    topic = LogDir(tmp_path).create_topic("fruit", config={"cleanup.policy": "compact", "file.delete.delay.ms": 0})
    for number in range(2):
        topic.append([{"key": "a", "value": str(number)}])
        topic.roll()
    topic.clean(force=True)
    log = Path(topic.log.paths.log)
    swap = max((log / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for line in swap.read_text(encoding="utf-8").splitlines()]
    left = [action["remove"] for action in actions if "remove" in action]
    now_ms = clock.now_ms()
    for remove in left:
        remove["deletionTimestamp"] = now_ms - 50 * HOUR_MS
    swap.write_text("".join(f"{json.dumps(action)}\n" for action in actions), encoding="utf-8")
    topic = LogDir(tmp_path).topic("fruit")

    def seen(*, hours_ago: int, expires: int) -> None:
        details = {"offsets": [0], "table_version": 1, "since_version": 1, "expiration_ms": expires * HOUR_MS}
        topic.log.ledger.append([Decision(kind=Kind.READER, time_ms=now_ms - hours_ago * HOUR_MS, name="slow", details=details)])

    seen(hours_ago=100, expires=200)
    vacuum(topic.log, now_ms=now_ms)
    assert left
    assert all((log / remove["path"]).exists() for remove in left)
    seen(hours_ago=100, expires=60)
    vacuum(topic.log, now_ms=now_ms)
    assert not any((log / remove["path"]).exists() for remove in left)
