"""DataFrames as the input of an append: through this process and through tasks, with the same outcome."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from lastword import LogDir
from lastword.compaction.errors import InvalidRecords
from lastword.compaction.rows.input_columns import columns_of, shape_of
from lastword.storage.append.append import Append, append_rows
from lastword.storage.append.plan import Written
from lastword.storage.append.requests import AppendStats, MicroBatch
from lastword.storage.append.writing import ArrowRows, validated_events
from lastword.streaming.append import dataframes
from lastword.streaming.append.dataframes import DataFrameRows
from tests.clocks import at
from tests.pictures import by_arrow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from lastword import ArrowTopic, SparkTopic
    from lastword.storage.append.plan import AppendPlan

_DDL = (
    "key string, value string, headers array<struct<key:string,value:binary>>, partition int, timestamp bigint, "
    "producer_id bigint, producer_epoch int, sequence int, transactional boolean, control string, __order_at bigint"
)
_NAMES = [word.strip().split()[0] for word in _DDL.replace("key:string,value:binary", "").split(",")]
_CONFIG = {"cleanup.policy": "compact", "segment.bytes": "1KiB", "max.message.bytes": 40, "segment.ms": "1h"}


def _random_rows(chance: random.Random, count: int) -> list[tuple[Any, ...]]:
    """Return rows of which some are refused: keyless, oversized, of unknown partitions, with gaps in their sequences."""
    rows, sequence = list[tuple[Any, ...]](), 0
    for number in range(count):
        key = None if chance.random() < 0.03 else f"k{chance.randrange(20)}"
        value = chance.choice([None, "v" * chance.randrange(12), "v" * (60 if chance.random() < 0.1 else 3)])
        headers = [("h", bytearray(b"1"))] if chance.random() < 0.2 else None
        partition = chance.choice([None, None, 0, 1, 2, 9 if chance.random() < 0.1 else None])
        at = chance.choice([None, 1_000, 9_000_000])
        producer: tuple[Any, ...] = (None,) * 5
        if partition == 1 and chance.random() < 0.5:
            producer = (7, 0, sequence, chance.random() < 0.02, None)
            sequence += 2 if chance.random() < 0.02 else 1
        rows.append((key, value, headers, partition, at, *producer, number))
    return rows


def _content(topic: SparkTopic) -> tuple[list[Any], list[Any]]:
    """Return the rows of the log with their segments and slices, and the dead letters."""
    rows = by_arrow(topic).records(include_control=True).to_pylist()
    letters = [row.asDict() | {"detail": row.detail.replace(topic.name, "fruit")} for row in topic.dead_letters().collect()]
    return [rows, sorted(_slices(topic))], sorted(letters, key=str)


def _slices(topic: SparkTopic) -> list[tuple[int, int, int, int, int]]:
    files = topic.log.snapshot().files
    columns = (files.partition, files.segment, files.slice, files.first_offset, files.record_count)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _append(topic: SparkTopic, rows: Any, stats: AppendStats, number: int) -> Any:
    batch = MicroBatch(query_id="q", query_name="files", batch_id=number)
    return append_rows(topic.log, rows, now_ms=5_000 + number, stats=stats, micro_batch=batch)


@pytest.mark.parametrize("seed", range(4))
def test_the_same_rows_through_each_door_give_the_same_log(spark: SparkSession, logs: LogDir[SparkTopic], seed: int) -> None:
    """Arrow, a DataFrame that comes here, one that tasks write: rows, offsets, segments, slices, dead letters and counts."""
    chance = random.Random(seed)
    topics = [logs.create_topic(name, partitions=3, config=_CONFIG) for name in ("arrow", "small", "large")]
    stats = [AppendStats() for _ in topics]
    for number in range(3):
        rows = _random_rows(chance, 150)
        frame = spark.createDataFrame(rows, _DDL).repartition(3, "value")  # the source's own order puts them right
        table = pa.Table.from_pylist([dict(zip(_NAMES, row, strict=True)) for row in rows], schema=frame.toArrow().schema)
        stats[2].is_large = True
        inputs = [ArrowRows(table), DataFrameRows(frame, stats[1]), DataFrameRows(frame, stats[2])]
        results = [_append(topic, given, mine, number) for topic, given, mine in zip(topics, inputs, stats, strict=True)]
        assert results[0] == results[1]
        assert (results[0].refused, results[0].duplicates) == (results[2].refused, results[2].duplicates)
        assert [(one.first_offset, one.last_offset) for one in results[0].ranges.values()] == [
            (one.first_offset, one.last_offset) for one in results[2].ranges.values()
        ]
        assert results[0].refused
    by_arrow, small, large = (_content(topic) for topic in topics)
    assert by_arrow == small == large


@pytest.mark.parametrize(
    ("rows", "slices", "large"),
    [
        ([10, 5_000, 5_000, 1_000, 1_000, 10], 2, [False, True, True, False, False, False]),
        ([1_000, 1_000, 1_000, 1_000, 1_000, 10, 10], 1, [True, True, False, True, True, False, False]),
    ],
    ids=["more than fits", "more than the share of one task"],
)
def test_rows_that_are_too_large_to_come_here_are_written_by_tasks_until_they_are_fewer(
    spark: SparkSession, logs: LogDir[SparkTopic], rows: list[int], slices: int, large: list[bool]
) -> None:
    """A row takes some 200 bytes, and 300 in a task; each of two tasks may hand over 200,000. After each append: is the next one large?

    ```
     5,000 rows      too many for both                      tasks write them, and the next ones
     1,000           do not exceed 400,000 bytes in tasks   the next ones come here
     1,000, one task too many for the share of one          tasks write the next two, then it is tried again, then they write four
     10              fit into the share of one              the next ones come here
    ```
    """
    stats = AppendStats()
    topic, seen = logs.create_topic("fruit", partitions=2, config={"cleanup.policy": "compact"}), list[bool]()
    for count in rows:
        frame = spark.range(0, count, 1, slices).selectExpr("sha2(string(id), 256) AS key", "sha2(string(id + 1), 512) AS value")
        append_rows(topic.log, DataFrameRows(frame, stats, max_collected_bytes=400_000), now_ms=5_000, stats=stats)
        seen.append(stats.is_large)
    assert seen == large
    assert topic.describe().record_count == sum(rows)


class _Overtaken:
    """An input that another append overtakes each time that it has been written, `times` times."""

    def __init__(self, rows: DataFrameRows, other: SparkTopic, times: int) -> None:
        self.rows, self.other, self.left, self.columns = rows, other, times, rows.columns
        self.policy = rows.policy

    def write(self, plan: AppendPlan) -> Written:
        written = self.rows.write(plan)
        if self.left:
            self.left -= 1
            at(5_000, self.other).append([{"key": "other", "value": "x" * 30, "partition": 0}])
        return written


@pytest.mark.parametrize("is_large", [False, True])
def test_an_append_that_is_overtaken_is_numbered_again(spark: SparkSession, logs: LogDir[SparkTopic], *, is_large: bool) -> None:
    """Twice, a large one by tasks at first; its refused rows are dead letters once, and the files of the attempts are gone."""
    topic = logs.create_topic("fruit", partitions=2, config=_CONFIG)
    computed = spark.sparkContext.accumulator(0)

    def counting(batches: Any) -> Any:
        for batch in batches:
            computed.add(batch.num_rows)
            yield batch

    drawn = [(f"k{number}", "v" * 20, number % 2) for number in range(30)] + [(None, "1", 0)]
    frame: DataFrame = spark.createDataFrame(drawn, "key string, value string, partition int").coalesce(1)
    frame = frame.mapInArrow(counting, frame.schema)
    stats = AppendStats(is_large=is_large)
    rows = _Overtaken(DataFrameRows(frame, stats), logs.topic("fruit"), 2)
    result = append_rows(topic.log, rows, now_ms=5_000, stats=stats, micro_batch=MicroBatch(query_id="q", query_name="files", batch_id=0))
    assert computed.value == len(drawn) * (2 if is_large else 1)
    assert {one.partition: (one.first_offset, one.last_offset) for one in result.ranges.values()} == {0: (2, 16), 1: (0, 14)}
    assert (result.refused, topic.dead_letters().count()) == ({"keyless": 1}, 1)
    found = by_arrow(topic).records().to_pylist()
    assert [row["key"] for row in found if row["partition"] == 0][2:] == [f"k{number}".encode() for number in range(0, 30, 2)]
    there = {path.name for path in Path(topic.log.paths.log).rglob("*.parquet")}
    assert there == {path.rsplit("/", 1)[1] for path in topic.log.snapshot().files.path.tolist()}


@pytest.mark.parametrize("is_large", [False, True])
def test_a_batch_call_with_a_wrong_row_leaves_nothing_behind(spark: SparkSession, logs: LogDir[SparkTopic], *, is_large: bool) -> None:
    """No commit and no file, on either path of an append."""
    topic = logs.create_topic("fruit", partitions=2, config=_CONFIG)
    topic._stats.is_large = is_large  # noqa: SLF001
    with pytest.raises(InvalidRecords, match="1 × keyless: key is null"):
        topic.append(spark.createDataFrame([("a", "1"), (None, "2")], "key string, value string"))
    topic._stats.is_large = is_large  # noqa: SLF001
    with pytest.raises(InvalidRecords, match="two rows carry the same partition and offset"):
        topic.append(spark.createDataFrame([("a", "1", 0, 5), ("a", "2", 0, 5)], "key string, value string, partition int, offset bigint"))
    assert topic.describe().table_version == 0
    assert list(Path(topic.log.paths.log).rglob("*.parquet")) == []


def test_a_text_that_orders_rows_is_refused_until_somebody_says_so(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """As a column, and in a struct; in one append and in a stream. Numbers need no word."""
    topic = logs.create_topic("t", config={"cleanup.policy": "compact"})
    for number, sequence in enumerate(("'10'", "struct(1, '10')")):
        rows = spark.sql(f"SELECT 'a{number}' AS key, 'x' AS value, {sequence} AS source_sequence")
        for append in (topic.append, lambda given: topic.append_stream(given, name="q")):
            with pytest.raises(InvalidRecords, match=r"column source_sequence is .*string.*, and of texts 10 is below 9"):
                append(rows)
        assert topic.append(rows, sequence_as="text").record_count == 1
    rows = spark.sql("SELECT 'b' AS key, 'x' AS value, struct(1, 10) AS source_sequence")
    assert topic.append(rows).record_count == 1


def _validated(topic: ArrowTopic, count: int) -> tuple[AppendPlan, pa.RecordBatch]:
    """Return a plan for so many rows of partition 0, and the rows as a task has them when it begins to write."""
    table = pa.table({"key": [f"k{number}" for number in range(count)], "value": ["1"] * count})
    plan = Append(topic.log, now_ms=5_000, stats=AppendStats()).plan(shape_of(columns_of(table.schema), topic=topic.name))
    return plan, validated_events(table.to_batches()[0], plan).rows


def test_batches_of_a_partition_are_written_one_behind_the_other(tmp_path: Path) -> None:
    """By a task, however many batches they come in: into one file, by ascending offsets."""
    topic = LogDir(tmp_path).create_topic("fruit")
    plan, batch = _validated(topic, 6)
    [file] = dataframes._written_in_order(plan, iter([(0, batch.slice(0, 1)), (0, batch.slice(1, 3)), (0, batch.slice(4))])).files  # noqa: SLF001
    assert (file.record_count, file.first_offset, file.last_offset) == (6, 0, 5)


@pytest.mark.parametrize("count", [0, 1], ids=["at once", "behind a batch"])
def test_a_task_whose_input_fails_leaves_no_file(tmp_path: Path, count: int) -> None:
    """Nobody would commit it."""
    topic = LogDir(tmp_path).create_topic("fruit")
    plan, batch = _validated(topic, 2)

    def failing() -> Iterator[tuple[int, pa.RecordBatch]]:
        yield from [(0, batch)] * count
        raise ConnectionError

    with pytest.raises(ConnectionError):
        dataframes._written_in_order(plan, failing())  # noqa: SLF001
    assert list(Path(topic.log.paths.log).rglob("*.parquet")) == []


def test_the_offsets_of_a_source_that_several_tasks_read_are_the_highest_of_each_partition() -> None:
    """A partition of the source may be in the rows of several tasks, and a task may have rows of several."""
    parts = [Written(source_offsets=offsets) for offsets in ({0: 7, 1: 3}, {}, {0: 5, 1: 9, 2: 0})]
    assert Written.together(parts).source_offsets == {0: 7, 1: 9, 2: 0}
