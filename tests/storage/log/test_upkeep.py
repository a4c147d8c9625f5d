"""Checkpoints of the Delta log: one is written when enough commits came since the last one, and not before."""

from __future__ import annotations

import json
from pathlib import Path

from lastword import LogDir, clock
from lastword.storage.ledger.decisions import Decision, Kind
from lastword.storage.log.upkeep import checkpoint, vacuum
from tests.pictures import HOUR_MS


def test_a_checkpoint_is_written_after_so_many_commits(tmp_path: Path) -> None:
    """A table without a checkpoint counts from before version 0; the commit before the last one writes none."""
    topic = LogDir(tmp_path).create_topic("fruit")
    newest = []
    for number in range(6):
        topic.append([{"key": "a", "value": str(number)}])
        newest.append(checkpoint(topic.log, after_commits=3))
    assert newest == [-1, 2, 2, 2, 5, 5]
    written = Path(topic.log.paths.log, "_delta_log").glob("*.checkpoint.parquet")
    assert sorted(int(path.name.split(".")[0]) for path in written) == [2, 5]
    assert checkpoint(topic.log) == 5, "by default after 100 commits"


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
