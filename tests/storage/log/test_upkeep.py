"""Checkpoints of the Delta log: one is written when enough commits came since the last one, and not before."""

from __future__ import annotations

from pathlib import Path

from lastword import LogDir
from lastword.storage.log.upkeep import checkpoint


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
