"""A range of offsets is read as the same records, however many rows are read at a time and however it is split."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from lastword import ArrowTopic, LogDir
from lastword.compaction.errors import CorruptLog, UnknownTopic
from lastword.storage.log.topic_log import open_log
from lastword.storage.reading.arrow_ranges import read_split, split_range
from lastword.storage.reading.view import newest_view

_EXPECTED = [(0, b"a"), (1, b"b"), (2, b"c"), (5, b"f"), (7, b"g"), (8, b"h")]


@pytest.fixture
def topic(tmp_path: Path) -> ArrowTopic:
    """Return a topic of one partition: two slices, an aborted transaction and a committed one between them."""
    topic = LogDir(tmp_path).create_topic("fruit")
    topic.append([{"key": key, "value": "1"} for key in "abc"])
    transaction = topic.transaction("till")
    transaction.append([{"key": "d", "value": "1"}])
    transaction.abort()
    transaction = topic.transaction("till")
    transaction.append([{"key": "f", "value": "1"}])
    transaction.commit()
    topic.append([{"key": key, "value": "1"} for key in "gh"])
    return topic


def _records(topic: ArrowTopic, *, batch_rows: int, split_bytes: int) -> tuple[list[tuple[int, bytes]], int, int]:
    """Return offset and key of each record, the most rows of a batch, and the number of splits."""
    root = topic.log.paths.root
    view = newest_view(open_log(root), "read_committed")
    splits = split_range(view, root, [0], list(topic.log.at().log_end_offsets), split_bytes=split_bytes)
    batches = [batch for split in splits for batch in read_split(split, ["offset", "key"], batch_rows=batch_rows)]
    return [(row["offset"], row["key"]) for batch in batches for row in batch.to_pylist()], max(map(len, batches)), len(splits)


@pytest.mark.parametrize(("batch_rows", "most"), [(1, 1), (2, 2), (3, 3), (16_384, 3)])
@pytest.mark.parametrize(("split_bytes", "is_split"), [(1, True), (64 * 2**20, False)])
def test_records_are_the_same_however_they_are_read(
    topic: ArrowTopic, batch_rows: int, most: int, split_bytes: int, *, is_split: bool
) -> None:
    """Without the aborted transaction and the markers."""
    records, largest, splits = _records(topic, batch_rows=batch_rows, split_bytes=split_bytes)
    assert records == _EXPECTED
    assert (largest, splits > 1) == (most, is_split)


@pytest.mark.parametrize("batch_rows", [1, 2, 3])
def test_rows_that_are_not_in_order_are_damage_also_from_one_batch_to_the_next(topic: ArrowTopic, batch_rows: int) -> None:
    """The last two rows of a file have changed places; the offset before them is named."""
    path = Path(topic.log.paths.log, str(topic.log.snapshot().files.path[0]))
    pq.write_table(pq.ParquetFile(path).read().take([0, 2, 1]), path)
    with pytest.raises(CorruptLog, match="offsets do not ascend after 2"):
        _records(topic, batch_rows=batch_rows, split_bytes=1)


def test_a_split_whose_file_is_gone_from_the_newest_version_is_an_error(topic: ArrowTopic) -> None:
    """No newer version could have it under another name."""
    root = topic.log.paths.root
    [split] = split_range(newest_view(open_log(root), "read_committed"), root, [7], [9])
    Path(topic.log.paths.log, split.files[0].path).unlink()
    with pytest.raises(FileNotFoundError):
        list(read_split(split, ["offset"]))


def test_a_topic_without_its_log_says_which_folder_is_asked_for(topic: ArrowTopic) -> None:
    """If a folder is no topic, the message says which folder to give."""
    shutil.rmtree(topic.log.paths.log)
    with pytest.raises(UnknownTopic, match=r"topic fruit does not exist \(no log at .*\): give the folder <log.dir>/<topic>"):
        newest_view(open_log(topic.log.paths.root), "read_committed")
