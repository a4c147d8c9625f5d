"""`verify` is asked when something is broken, so broken files are an answer, not an error; and every promise of it can be broken."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from delta.tables import DeltaTable
from deltalake import DeltaTable as ArrowTable
from pyspark.sql import functions as F

from lastword import LogDir
from lastword.storage.files.data_reader import row_groups
from lastword.storage.files.paths import filesystem_of
from lastword.storage.files.schema import LOG_COLUMNS, PLACE_COLUMNS
from lastword.storage.ledger.decisions import Decision, Kind
from lastword.storage.log.topic_log import TopicLog
from lastword.storage.verify import _appended_ranges
from tests.clocks import at
from tests.commits import commit_append, commit_swap
from tests.other_processes import in_another_process
from tests.pictures import T0, history, rows

if TYPE_CHECKING:
    import pytest
    from pyspark.sql import DataFrame, SparkSession

    from lastword import Topic
    from lastword.storage.delta.snapshot import LogSnapshot

_EAGER: Final = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}

#: A partition each: its slices as `segment/slice: offset key=value`, and what is wrong with it when it is clean up to its log end. `~0` is
#: of the transaction that began at offset 0, `!` has a delete horizon. Offsets stand in the file as they are drawn.
_LOGS: Final = (
    ("0/0: 0 a=1, 2 EMPTY~0, 4 b=1~4 ; 0/5: 5 COMMIT~4, 6 ABORT~0!, 7 a=∅~7!, 8 c=1", [": the key of offset 7 stands 2 times"]),
    ("0/0: 0 a=1, 1 b=1 ; 2/2: 2 a=2 ; 2/3: 3 a=3", [": the key of offset 3 stands 3 times below the cleaner checkpoint"]),
    ("0/0: 0 a=1~0, 1 b=1, 2 ABORT~0", [": offset 0 of an aborted transaction stands below the cleaner checkpoint"]),
    ("0/0: 0 a=1, 1 COMMIT~0", [": the marker at offset 1 has neither a record of its transaction nor a delete horizon"]),
    ("0/0: 0 a=1~0, 1 b=1~1, 2 COMMIT~0, 3 ABORT~3, 4 COMMIT~1", [": the marker at offset 3 has neither a record of its transaction"]),
    ("0/0: 0 a=1, 2 b=1, 1 c=1", [": offset 1 stands after 2 in partition=5/segment=0/slice=0/"]),
    ("5/5: 4 a=1, 6 b=1", [", segment 5, slice 5: holds offset 4, below its label"]),
    ("5/4: 5 a=1", [", segment 5, slice 4: holds offset 5, below its label"]),
    ("0/0: 0 a=1, 4 b=1 ; 2/2: 2 c=1, 5 d=1", [", segment 2, slice 2: begins at offset 2, but the slice before ends at 4"]),
    (
        "0/0: 0 a=1, 1 b=1 ; 0/1: 1 c=1",
        [", segment 0, slice 1: begins at offset 1, but the slice before ends at 1", ": offset 1 stands 2 times"],
    ),
)


def _drawn(spark: SparkSession, pictures: list[tuple[int, str]]) -> DataFrame:
    """Return rows of the log table as (partition, picture) draw them, one file a slice."""
    drawn: list[tuple[Any, ...]] = []
    for partition, picture in pictures:
        for part in picture.split(" ; "):
            place, _, records = part.partition(": ")
            segment, at = map(int, place.split("/"))
            for word in records.split(", "):
                offset, _, rest = word.partition(" ")
                begun = rest.rstrip("!").partition("~")
                key, is_data, value = begun[0].partition("=")
                first = int(begun[2]) if begun[2] else None
                record = (key, None if value == "∅" else value, None) if is_data else (None, None, key)
                drawn.append((len(drawn), partition, segment, at, int(offset), *record, first, rest.endswith("!")))
    names = "row int, partition int, segment bigint, slice bigint, offset bigint, key string, value string, control string"
    frame = spark.createDataFrame(drawn, f"{names}, txn_first_offset bigint, horizon boolean")
    moment = F.timestamp_millis(F.lit(T0))
    made = {
        "key": F.col("key").cast("binary"),
        "value": F.col("value").cast("binary"),
        "headers": F.lit(None).cast("array<struct<key:string,value:binary>>"),
        "timestamp": moment,
        "appended_at": moment,
        "delete_horizon": F.when(F.col("horizon"), moment),
        "producer_id": F.when(F.col("txn_first_offset").isNotNull(), F.lit(7)).cast("bigint"),
        "producer_epoch": F.when(F.col("txn_first_offset").isNotNull(), F.lit(0)),
        "sequence": F.lit(None).cast("int"),
        "source_sequence": F.lit(None).cast("string"),
    }
    return frame.coalesce(1).withColumns(made).sortWithinPartitions(*PLACE_COLUMNS, "row").select(*LOG_COLUMNS)


def _said_clean(topic: Topic, checkpoints: dict[int, int]) -> None:
    """Write receipts of cleanings that never were."""
    version = topic.log.snapshot().version
    topic.log.ledger.append(
        [
            Decision(
                kind=Kind.CLEAN,
                time_ms=T0,
                partition=partition,
                offset=offset,
                table_version=version,
                details={"first_dirty_offset": 0, "end_offset": offset, "removed": {}},
            )
            for partition, offset in checkpoints.items()
        ]
    )


def test_every_broken_invariant_of_the_records_is_told_of_its_partition(spark: SparkSession, logs: LogDir) -> None:
    """One log, a partition for each; the first has one of everything that may stay below a checkpoint, and a key too many."""
    count = len(_LOGS)
    topic = logs.create_topic("broken", partitions=count + 2, config=_EAGER)
    pictures = [(partition, picture) for partition, (picture, _) in enumerate(_LOGS)]
    commit_append(topic.log, _drawn(spark, [*pictures, (count, "0/0: 0 a=1"), (count + 2, "0/0: 0 a=1")]))
    ends = topic.log.snapshot().log_end_offsets(count + 3)
    _said_clean(topic, {**dict(enumerate(ends[:count])), count: 2})
    start = Decision(kind=Kind.START, time_ms=T0, partition=count + 1, offset=5, table_version=topic.log.snapshot().version)
    topic.log.ledger.append([start])
    problems = list(topic.verify().problems)
    for partition, (picture, expected) in enumerate(_LOGS):
        mine = [one for one in problems if one.startswith((f"partition {partition}:", f"partition {partition},"))]
        assert [told[: len(f"partition {partition}{one}")] for told, one in zip(mine, expected, strict=True)] == [
            f"partition {partition}{one}" for one in expected
        ], picture
        problems = [one for one in problems if one not in mine]
    assert problems == [
        f"records in partitions [{count + 2}], but the topic has partitions 0 to {count + 1}",
        f"partition {count}: the cleaner checkpoint 2 lies past the log end 1",
        f"partition {count + 1}: the log start offset 5 lies past the log end 0",
    ]
    logs.delete_topic("broken")


def test_commits_that_are_not_ours_other_columns_and_false_statistics_are_told(spark: SparkSession, logs: LogDir) -> None:
    """A swap of no known kind, an ALTER and a DELETE by hand, and a file of which the Delta log says too much."""
    topic = logs.create_topic("foreign")
    for picture in ("a=1 b=1", "c=1"):
        at(T0, topic).append(rows(picture))
    commit_swap(topic.log, _drawn(spark, [(0, "0/0: 0 a=1, 1 b=1")]), [(0, 0)], kind="polish")
    spark.sql(f"ALTER TABLE delta.`{topic.log.paths.log}` ADD COLUMNS (colour string)")
    DeltaTable.forPath(spark, topic.log.paths.log).delete("offset = 0")
    commit = Path(topic.log.paths.log, "_delta_log", f"{2:020}.json")
    commit.write_text(commit.read_text().replace(r"\"maxValues\":{\"offset\":2", r"\"maxValues\":{\"offset\":3"))
    commit.with_name(f".{commit.name}.crc").unlink(missing_ok=True)
    assert list(LogDir(spark, logs.location).topic("foreign").verify().problems) == [
        f"the log table has the columns {[*LOG_COLUMNS, 'colour']}, expected {list(LOG_COLUMNS)}",
        "table version 5 was written by somebody else: DELETE",
        "table version 4 was written by somebody else: ADD COLUMNS",
        "table version 3 is of an unknown kind: polish",
        "partition 0, segment 0, slice 2: no file holds the 1 records from offset 2 to 3 that its statistics say",
    ]
    lines = commit.read_text().splitlines()
    commit.write_text("\n".join(line for line in lines if "commitInfo" not in line))
    assert LogDir(spark, logs.location).topic("foreign").verify().problems[1] == "1 table versions from 0 on do not say what wrote them"
    logs.delete_topic("foreign")


def test_offsets_that_are_given_twice_are_told_and_those_that_a_restore_took_back_are_not(spark: SparkSession, logs: LogDir) -> None:
    """A swap loses the last slice: first the log end has fallen back, then the next append begins there.

    ```
     version   1       2     3            4     5              6     7              8
               a=1 b=1 c=1   loses 2      d=1   RESTORE to 2   e=1   RESTORE to 4   RESTORE to 6
               0   1   2                  2                    3
    ```
    """
    topic = logs.create_topic("twice", partitions=2)
    for picture in ("a=1 b=1", "c=1"):
        at(T0, topic).append(rows(picture, partition=1))
    commit_swap(topic.log, _drawn(spark, [(1, "0/2: 2 c=1")]).where("false"), [(1, 2)])
    fallen = "partition 1: the log ends at offset 2, but offsets up to 2 were given before"
    again = "partition 1: table version 4 appended from offset 2 on, but offsets up to 2 were given before"
    assert topic.verify().problems == (fallen,)
    at(T0, topic).append(rows("d=1", partition=1))
    assert topic.verify().problems == (again,)
    DeltaTable.forPath(spark, topic.log.paths.log).restoreToVersion(2)
    at(T0, topic).append(rows("e=1", partition=1))
    assert history(topic, 1) == ["0 a=1", "1 b=1", "2 c=1", "3 e=1"]
    assert topic.verify().ok
    ArrowTable(topic.log.paths.log).restore(4)
    assert topic.verify().problems == (again,), "the RESTORE went back to where it had happened"
    ArrowTable(topic.log.paths.log).restore(6)


def test_offsets_are_compared_with_what_is_left_of_the_history(spark: SparkSession, logs: LogDir) -> None:
    """Old commits are gone, and so is the version that a RESTORE went back to: what they left is read where it still can be.

    ```
     version   1       2     3              4     5         6
               a=1 b=1 c=1   RESTORE to 1   d=1   loses 2   e=1
               0   1   2                    2               2
                       ^ the Delta log begins here, or at 4, or at 6
    ```
    """
    topic = logs.create_topic("left", config=_EAGER)
    for picture in ("a=1 b=1", "c=1"):
        at(T0, topic).append(rows(picture))
    DeltaTable.forPath(spark, topic.log.paths.log).restoreToVersion(1)
    at(T0, topic).append(rows("d=1"))
    assert topic.verify().ok
    commit_swap(topic.log, _drawn(spark, [(0, "0/2: 2 d=1")]).where("false"), [(0, 2)])
    at(T0, topic).append(rows("e=1"))
    told = ("partition 0: table version 6 appended from offset 2 on, but offsets up to 2 were given before",)
    folder = Path(topic.log.paths.log, "_delta_log")
    assert topic.verify().problems == told
    for oldest, expected in ((2, told), (4, told), (6, ())):
        ArrowTable(topic.log.paths.log, version=oldest).create_checkpoint()
        for version in range(oldest):
            (folder / f"{version:020}.json").unlink(missing_ok=True)
        assert topic.verify().problems == expected
    assert json.loads((folder / "_last_checkpoint").read_text())["version"] == 6


def test_a_log_that_is_cleaned_meanwhile_is_not_blamed(spark: SparkSession, logs: LogDir) -> None:
    """The receipt of a cleaning after the snapshot speaks of another log than it."""
    topic = logs.create_topic("meanwhile", config=_EAGER)
    at(T0, topic).append(rows("a=1 a=2"))
    at(T0, topic).roll()

    class CleanedMeanwhile(TopicLog):
        def snapshot(self) -> LogSnapshot:
            found = super().snapshot()
            at(T0, LogDir(spark, logs.location).topic("meanwhile")).clean()
            return found

    assert in_another_process(logs, "meanwhile", kind=CleanedMeanwhile).verify().ok
    assert history(topic) == ["1 a=2"]


def test_files_that_cannot_be_read_are_named_with_their_offsets(spark: SparkSession, logs: LogDir) -> None:
    """One is gone, one is cut, and one is whole but for its pages."""
    topic = logs.create_topic("fruit")
    for picture in ("lime=1 kiwi=1", "lime=2", "kiwi=2"):
        topic.append(rows(picture))
    assert topic.verify().ok
    gone, cut, garbled = (Path(topic.log.paths.log, str(path)) for path in topic.log.snapshot().files.path)
    whole = garbled.read_bytes()
    garbled.write_bytes(whole[:4] + bytes(200) + whole[204:])
    garbled.with_name(f".{garbled.name}.crc").unlink(missing_ok=True)
    report = topic.verify()
    assert len(report.problems) == 1
    assert report.problems[0].startswith("partition 0: offsets 3 to 3 cannot be read, in partition=0/segment=0/slice=3/")

    garbled.write_bytes(whole)
    gone.unlink()
    cut.write_bytes(cut.read_bytes()[:100])
    report = topic.verify()

    assert len(report.problems) == 2
    assert report.problems[0].startswith("partition 0: offsets 0 to 1 cannot be read, in partition=0/segment=0/slice=0/")
    assert report.problems[1].startswith("partition 0: offsets 2 to 2 cannot be read, in partition=0/segment=0/slice=2/")
    logs.delete_topic("fruit")


def test_a_commit_that_is_gone_or_says_nothing_of_offsets_tells_none(tmp_path: Path) -> None:
    """Nothing is said of what nobody knows."""
    topic = LogDir(tmp_path).create_topic("fruit")
    topic.append([{"key": "a", "value": "1"}])
    log = Path(topic.log.paths.log)
    files = filesystem_of(str(log), {})
    assert (_appended_ranges(files, 1), _appended_ranges(files, 2)) == ({0: (0, 0)}, {})
    commit = log / "_delta_log" / f"{1:020}.json"
    actions = [json.loads(line) for line in commit.read_text(encoding="utf-8").splitlines()]
    for action in actions:
        if "add" in action:
            action["add"]["stats"] = '{"numRecords":1}'
    commit.write_text("".join(f"{json.dumps(action)}\n" for action in actions), encoding="utf-8")
    assert _appended_ranges(files, 1) == {}


def test_a_file_that_the_storage_gives_at_a_second_look_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it does not give then either is a problem of the log, with its offsets."""
    topic = LogDir(tmp_path).create_topic("fruit")
    topic.append(rows("a=1 b=1"))
    left, read = [1], row_groups

    def failing(*given: Any, **more: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.EIO, "no answer")
        return read(*given, **more)

    monkeypatch.setattr("lastword.storage.verify.row_groups", failing)
    assert topic.verify().ok
    assert left == [0]
    left[0] = 2
    [problem] = topic.verify().problems
    assert problem.startswith("partition 0: offsets 0 to 1 cannot be read, in partition=0/segment=0/slice=0/")
    assert "no answer" in problem
