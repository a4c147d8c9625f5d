"""Groups of segments written in several turns and slices, and still in one commit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from lastword.storage.cleaning import swap
from lastword.storage.cleaning.swap import Rewrite
from tests.pictures import T0, history

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from lastword import LogDir, Topic

_EAGER = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}
_KEYS = 60


def _appended(spark: SparkSession, topic: Topic, seed: int) -> None:
    """Append 60 keys with values that cannot be compressed, into a slice of its own."""
    value = F.substring(F.sha2(F.concat_ws("-", "id", F.lit(seed)), 256), 1, 32)
    topic.append(spark.range(_KEYS).select(F.concat(F.lit(f"{seed}-"), "id").alias("key"), value.alias("value")), now_ms=T0)


@pytest.fixture
def topic(spark: SparkSession, logs: LogDir) -> Topic:
    """Six slices of the same size in three segments, of keys that do not come again."""
    made = logs.create_topic("turns", config=_EAGER)
    for number in range(6):
        _appended(spark, made, number)
        if number % 2:
            made.roll(now_ms=T0)
    return made


def _places(topic: Topic) -> list[tuple[int, int, int]]:
    """Return label, slice and number of records of each file."""
    files = topic.log.snapshot().files
    return list(zip(files.segment.tolist(), files.slice.tolist(), files.record_count.tolist(), strict=True))


def test_a_large_group_becomes_slices_of_one_segment_in_one_commit(
    spark: SparkSession, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slice for every two, across the segments that there were; left alone afterwards, and written again with what comes later."""
    before = topic.log.snapshot()
    rows = history(topic)
    monkeypatch.setattr(swap, "MOST_BYTES", int(2.2 * before.files.size_bytes[0]))
    [receipt] = topic.clean(T0)
    assert _places(topic) == [(0, 0, 120), (0, 120, 120), (0, 240, 120)]
    assert topic.log.snapshot().version == before.version + 1
    assert (receipt.records_before, receipt.records_after, receipt.groups, receipt.segments_before) == (360, 360, 1, 3)
    assert receipt.bytes_after == topic.log.snapshot().files.size_bytes.sum()
    assert history(topic) == rows
    assert topic.verify().ok
    assert topic.clean(T0) == []
    _appended(spark, topic, 4)
    topic.roll(now_ms=T0)
    [receipt] = topic.clean(T0)
    assert dict(receipt.removed) == {"superseded": 60}
    labels, _, records = zip(*_places(topic), strict=True)
    assert (set(labels), len(labels) > 1, sum(records)) == ({0}, True, 360)
    assert sorted(one.partition(" ")[2] for one in history(topic)) == sorted(one.partition(" ")[2] for one in rows)
    assert topic.verify().ok


@pytest.mark.parametrize(
    ("tasks", "slices", "expected"),
    [
        pytest.param(1, 2.2, [[0], [120], [240]], id="a turn for each slice"),
        pytest.param(2, 2.2, [[0, 120], [240]], id="two slices in a turn, as far as they go"),
        pytest.param(2, 0.5, [[0, 60], [120, 180], [240, 300]], id="a slice that is too large by itself is one of two all the same"),
    ],
)
def test_tasks_write_in_turns_what_they_may_hold(
    topic: Topic, monkeypatch: pytest.MonkeyPatch, tasks: int, slices: float, expected: list[list[int]]
) -> None:
    """`slices` say how many of those that were appended are as much as a task may write."""
    turns: list[list[int]] = []
    written = Rewrite._written  # noqa: SLF001

    def watched(self: Rewrite, turn: list[swap._Target]) -> DataFrame:
        turns.append([one.first_slice for one in turn])
        return written(self, turn)

    monkeypatch.setattr(Rewrite, "_written", watched)
    monkeypatch.setattr(swap, "MOST_BYTES", int(slices * topic.log.snapshot().files.size_bytes[0]))
    monkeypatch.setattr(topic._log_dir.cleaner, "_parallelism", tasks)  # noqa: SLF001
    topic.clean(T0)
    assert turns == expected
    assert [place for _, place, _ in _places(topic)] == [one for turn in expected for one in turn]


def test_a_crash_in_a_later_turn_leaves_the_log_as_it_was(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first turn wrote is in no commit; the next cleaning does all of it."""
    before, rows = topic.log.snapshot(), history(topic)
    monkeypatch.setattr(swap, "MOST_BYTES", 1)
    all_turns = Rewrite._turns  # noqa: SLF001

    def cut(self: Rewrite) -> Iterator[tuple[DataFrame, str]]:
        yield next(all_turns(self))
        assert len(list(Path(self.log.paths.log).rglob("*.parquet"))) > len(before.files.path)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Rewrite, "_turns", cut)
        with pytest.raises(KeyboardInterrupt):
            topic.clean(T0)
    assert topic.log.snapshot().version == before.version
    assert history(topic) == rows
    assert topic.receipts() == []
    [receipt] = topic.clean(T0)
    assert receipt.end_offset == 360
    assert history(topic) == rows
    assert topic.verify().ok
