"""What a log does again after so many commits, or writes in so many rows, on both sides of the limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from lastword import LogDir
from lastword.storage.files.data_files import RowGroupLimits
from lastword.storage.log.limits import LogLimits

if TYPE_CHECKING:
    from pathlib import Path


def _rows(count: int, size: int = 1) -> list[dict[str, str]]:
    return [{"key": f"k{number}", "value": f"{number % 10}" * size} for number in range(count)]


@pytest.mark.parametrize(("checkpoint_commits", "written"), [(3, 1), (4, 0)], ids=["as many commits", "one commit fewer"])
def test_a_checkpoint_is_written_after_so_many_commits(tmp_path: Path, checkpoint_commits: int, written: int) -> None:
    """The table's own property asks for one after 500, which no test waits for."""
    topic = LogDir(tmp_path).create_topic("fruit")
    topic.log.limits = LogLimits(checkpoint_commits=checkpoint_commits)
    while topic.log.snapshot().version < 3:
        topic.append(_rows(1))
    found = [path.name for path in (tmp_path / "fruit" / "log" / "_delta_log").glob("*.checkpoint.parquet")]
    assert len(found) == written, found


@pytest.mark.parametrize(("compression_commits", "is_new"), [(1, True), (2, False)], ids=["as many commits", "one commit fewer"])
def test_the_room_of_a_record_is_read_again_after_so_many_commits(tmp_path: Path, compression_commits: int, *, is_new: bool) -> None:
    """Records that compress better make segments that hold more of them."""
    topic = LogDir(tmp_path).create_topic("fruit")
    topic.log.limits = LogLimits(compression_commits=compression_commits)
    topic.append(_rows(40))
    first = topic.log.compression(topic.log.snapshot())
    topic.append(_rows(40, size=1_000))
    assert (topic.log.compression(topic.log.snapshot()) != first) is is_new


@pytest.mark.parametrize(("max_rows", "groups"), [(10, [10]), (9, [9, 1])], ids=["as many rows", "one row more"])
def test_an_append_begins_another_row_group_after_so_many_rows(tmp_path: Path, max_rows: int, groups: list[int]) -> None:
    """Rows come to the writer in batches, which are not cut."""
    topic = LogDir(tmp_path).create_topic("fruit")
    topic.log.limits = LogLimits(row_groups=RowGroupLimits(max_rows=max_rows))
    topic.append(_rows(10))
    (path,) = topic.log.snapshot().files.path.tolist()
    metadata = pq.read_metadata(tmp_path / "fruit" / "log" / path)
    assert [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)] == groups
