"""What a Spark checkpoint says of a query: its name, and where its micro-batches begin."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lastword.checkpoints.queries import check_query_name, remove_unfinished_batch, stored_micro_batch, stored_positions, stored_query_id
from lastword.compaction.errors import QueryRefused
from lastword.storage.files.paths import filesystem_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", ["", ".files", "a/b", "a b", "größe", "a" * 250])
def test_what_can_name_no_folder_is_no_name_of_a_query(name: str) -> None:
    """The message says what is allowed."""
    with pytest.raises(QueryRefused, match=r"1 to 249 of the characters a-z, A-Z, 0-9, '\.', '_' and '-' are allowed"):
        check_query_name(name)
    assert check_query_name("Files_2.of-fruit") == "Files_2.of-fruit"


def test_a_micro_batch_of_kafka_begins_where_the_one_before_it_ended(tmp_path: Path) -> None:
    """By partition; of another Kafka topic, of another source and of a checkpoint that is cut nothing is said."""
    (tmp_path / "offsets").mkdir()
    texts = ('{"prices":{"0":17,"1":4}}', '{"files":3}', "", "{", '{"a":{"0":1},"b":{"0":1}}')
    for number, text in enumerate(texts):
        (tmp_path / "offsets" / str(number)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{text}', encoding="utf-8")
    files = filesystem_of(str(tmp_path), {})
    assert stored_micro_batch(files) == len(texts) - 1
    assert stored_positions(files, 1) == stored_positions(files, 1, topic="prices") == {0: 17, 1: 4}
    assert stored_positions(files, 1, topic="plums") is None
    assert [stored_positions(files, number) for number in (0, 2, 3, 4, 5, 9)] == [None] * 6


def test_a_first_micro_batch_that_was_not_written_whole_is_removed(tmp_path: Path) -> None:
    """A checkpoint that knows a micro-batch is left alone, whatever lies beside it."""
    files = filesystem_of(str(tmp_path), {})
    assert (stored_query_id(files), stored_micro_batch(files)) == (None, -1)
    for name in ("offsets/.0.1a2b.tmp", "commits/.0.3c4d.tmp"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"v")
    remove_unfinished_batch(files)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    for name in ("offsets/0", "offsets/.1.1a2b.tmp"):
        (tmp_path / name).write_bytes(b"v1")
    remove_unfinished_batch(files)
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == [".1.1a2b.tmp", "0"]
