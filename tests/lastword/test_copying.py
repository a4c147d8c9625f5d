"""A copy is made in commits of about so many bytes; how many makes no difference to its records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from lastword import LogDir, copy_topic

if TYPE_CHECKING:
    from pathlib import Path

#: Many of these take half a second or more; `make quick` leaves them to `make test`.
pytestmark = pytest.mark.long

_CONFIG: Final = {"cleanup.policy": "compact"}


@pytest.mark.parametrize("has_sequences", [False, True])
@pytest.mark.parametrize("chunk_bytes", [1, 2**20])
def test_a_copy_in_one_commit_and_in_many_has_the_same_records(tmp_path: Path, chunk_bytes: int, *, has_sequences: bool) -> None:
    """Late events are late in the copy, too, when their key came in an earlier commit."""
    logs = LogDir(str(tmp_path))
    source = logs.create_topic("fruit", partitions=3, config=_CONFIG)
    for number in range(4):
        sequences = [{"source_sequence": 10 * number + key} if has_sequences else {} for key in range(5)]
        source.append([{"key": f"k{key}", "value": f"{number}-{key}", **sequences[key]} for key in range(5)])
    assert copy_topic(logs, "fruit", "copy", partitions=2, chunk_bytes=chunk_bytes) == 20
    copy = logs.topic("copy")
    newest = {(row["key"], row["value"]) for row in source.latest().to_pylist()}
    assert {(row["key"], row["value"]) for row in copy.latest().to_pylist()} == newest
    assert (copy.log.snapshot().append_txn > 1) == (chunk_bytes == 1)
    if has_sequences:
        assert copy.append([{"key": "k1", "value": "old", "source_sequence": 1}]).late == 1


def test_a_copy_of_an_empty_topic_commits_nothing(tmp_path: Path) -> None:
    """With any size of a commit."""
    logs = LogDir(str(tmp_path))
    logs.create_topic("fruit", config=_CONFIG)
    assert copy_topic(logs, "fruit", "copy", partitions=2, chunk_bytes=1) == 0
    assert logs.topic("copy").describe().record_count == 0
