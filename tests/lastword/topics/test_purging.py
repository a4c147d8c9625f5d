"""Erasing a key: a receipt says that no file holds it any more, and every test decodes all files again by itself."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from delta.tables import DeltaTable as SparkTable
from pyspark.errors import StreamingQueryException

from lastword import Envelope, LogDir, clock
from lastword.compaction.errors import Aborted, InvalidRecords, PurgeIncomplete, UserError
from lastword.storage.delta import crash_points
from lastword.storage.delta.crash_points import CrashPoint
from lastword.storage.erasure import rows_of_key
from lastword.storage.files.data_files import RowGroupLimits
from lastword.storage.key_search import KeySearch, WantedKey
from lastword.storage.ledger.decisions import Decision, Kind
from lastword.storage.log.limits import LogLimits
from lastword.topics.purging import PurgeReceipt, before_as_ms
from tests.clocks import at
from tests.lastword.cli.test_cli import Shell
from tests.pictures import DAY_MS, HOUR_MS, T0, delete_records, frame, history, latest, log, rows

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

    from lastword import SparkTopic

#: Many of these take half a second or more; `make quick` leaves them to `make test`.
pytestmark = pytest.mark.long

_EAGER = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}
_ONCE = {"availableNow": True}
_KEY = "grape-4711"
#: A table of any values: keys and values as bytes.
_BYTES: Any = {"record_columns": ["_offset", "_value"]}
#: The types of a change: key, value, source_sequence.
_CHANGE = (pa.string(), pa.string(), pa.int64())


def holders(*folders: str | Path, key: bytes = _KEY.encode()) -> list[str]:
    """Return every Parquet file below some folders that holds a key in any column, and every other file that holds its bytes.

    Independent of what is tested: whole files, decoded value by value.
    """
    found = []
    for path in sorted(one for folder in folders for one in Path(folder).rglob("*") if one.is_file()):
        if path.suffix != ".parquet":
            found += [str(path)] if key in path.read_bytes() else []
        elif key in repr(pq.ParquetFile(path).read().to_pylist()).encode():
            found.append(str(path))
    return found


def closed(topic: SparkTopic, spark: SparkSession, *pictures: str, partition: int = 0, now_ms: int = T0) -> None:
    """Append each picture as a segment of its own."""
    for picture in pictures:
        at(now_ms, topic).append(rows(picture, partition=partition, timestamp_ms=now_ms))
        at(now_ms, topic).roll(partition)


def read_up_to(topic: SparkTopic, name: str, *offsets: int) -> None:
    """Register a reader that has read so far."""
    position = {"offsets": list(offsets), "table_version": 1, "since_version": 1, "expiration_ms": DAY_MS}
    topic.log.ledger.append([Decision(kind=Kind.READER, time_ms=T0, name=name, details=position)])


def refuse(topic: SparkTopic, spark: SparkSession, folder: Path, letters: list[tuple[str | None, str, int]]) -> None:
    """Let a stream bring rows (key, value, partition), those of partition 9 and without a key to be refused."""
    schema = "key string, value string, partition int"
    spark.createDataFrame(letters, schema).coalesce(1).write.mode("append").parquet(str(folder))
    query = topic.append_stream(spark.readStream.schema(schema).parquet(str(folder)), name="letters", trigger=_ONCE)
    assert query.awaitTermination(60)


def test_a_search_decodes_what_a_search_for_bytes_does_not_find(tmp_path: Path) -> None:
    """Dictionaries and plain pages, every codec, keys as text and as bytes, records that are to stay, what cannot be decoded."""
    many = [f"key-{number % 700}" for number in range(70_000)]
    tables = {
        f"partition=3/{codec}-{dictionary}.parquet": (codec, dictionary)
        for codec in ("zstd", "snappy", "gzip", "none")
        for dictionary in (True, False)
    }
    (tmp_path / "partition=3").mkdir()
    for name, (codec, dictionary) in tables.items():
        kind = pa.string() if dictionary else pa.binary()
        keys = pa.array([one.encode() for one in many], pa.binary()).cast(kind)
        table = pa.table({"key": keys, "offset": pa.array(range(70_000), pa.int64())})
        pq.write_table(table, tmp_path / name, compression=codec, use_dictionary=dictionary, row_group_size=20_000)
    assert b"key-699" not in (tmp_path / "partition=3/zstd-True.parquet").read_bytes().rpartition(b"PAR1")[0][:-4096], (
        "or the search proves nothing"
    )
    search = KeySearch(str(tmp_path), {}, WantedKey(key=b"key-699"))
    assert {one.path: one.rows for one in search.look()} == dict.fromkeys(tables, 100)
    kept = frozenset((3, offset) for offset in range(699, 70_000, 700))
    assert KeySearch(str(tmp_path), {}, WantedKey(key=b"key-699", kept=kept)).look() == []
    assert [one.rows for one in KeySearch(str(tmp_path), {}, WantedKey(key=b"key-699", kept=kept - {(3, 699)})).look()] == [1] * 8
    absent = KeySearch(str(tmp_path), {}, WantedKey(key=b"key-70"))
    assert (len(absent.look()), absent.decoded) == (8, 0), "key-70 is there"
    absent = KeySearch(str(tmp_path), {}, WantedKey(key=b"key-7000"))
    assert (absent.look(), absent.decoded) == ([], 8)
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "partition=3/zstd-True.parquet").read_bytes()[:500])
    [cut] = absent.look()
    assert (cut.path, cut.rows, absent.decoded) == ("cut.parquet", None, 8)


@pytest.mark.parametrize(
    ("key", "text", "named"),
    [
        (b"lime", '{"fruit": "lime"}', True),
        (b"lime", '{"fruit": "limes"}', False),
        (b"a.c", "abc", False),
        (b"a.c", "/a.c?", True),
        (b'say "hi"', '{"key": "say \\"hi\\""}', True),
        ("crème".encode(), '{"key": "cr\\u00e8me"}', True),
        ("crème".encode(), "une crème brûlée", True),
        (b"\\E(", "x \\E( y", True),
        (b"\xff\xfe", "ÿþ", False),
        (b"", "anything", False),
    ],
)
def test_a_text_names_a_key_as_a_word_of_its_own(key: bytes, text: str, named: bool) -> None:  # noqa: FBT001  a table of cases
    """Also as JSON writes it; nothing of the key is a regular expression."""
    pattern = WantedKey(key=key).pattern

    assert (pattern is not None and re.search(pattern.encode(), text.encode()) is not None) == named


def test_a_key_goes_from_everywhere_and_nothing_else_does(spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path) -> None:
    """Two partitions, aborted records, old versions, tables of three kinds, one of them behind, dead letters, readers."""
    topic = at(T0, logs).create_topic("fruit", partitions=3, config=_EAGER)
    closed(topic, spark, f"{_KEY}=1 lime=1", f"{_KEY}=2 kiwi=1")
    closed(topic, spark, f"{_KEY}=7 plum=1", partition=2)
    behind = tmp_path / "behind"
    topic.materialize(str(behind), trigger=_ONCE, **_BYTES).awaitTermination()
    at(T0, topic).clean(force=True)
    writer = at(T0, topic).transaction("loader")
    at(T0, writer).append(rows(f"{_KEY}=aborted fig=aborted", partition=1))
    at(T0, writer).abort()
    closed(topic, spark, f"{_KEY}=3 lime=2")
    copied, past = tmp_path / "copied", tmp_path / "past"
    for table, how in ((copied, {"deletion_vectors": False}), (past, {"history": True})):
        topic.materialize(str(table), trigger=_ONCE, **{**_BYTES, **how}).awaitTermination()
    closed(topic, spark, f"{_KEY}=4")
    topic.materialize(str(past), trigger=_ONCE, history=True, **_BYTES).awaitTermination()
    refused = [(_KEY, "x", 9), ("lime", "x", 9), (None, f'{{"fruit": "{_KEY}"}}', 0), (None, f'{{"fruit": "{_KEY}8"}}', 0)]
    refuse(topic, spark, tmp_path / "incoming", refused)
    read_up_to(topic, "slow", 9, 9, 0)
    read_up_to(topic, "quick", 99, 99, 99)
    assert sorted(topic.log.decisions().targets) == sorted(map(str, (behind, copied, past)))
    found = len(KeySearch(topic.log.paths.log, {}, WantedKey(key=_KEY.encode())).look())
    current = len(topic.records().where(f"key = '{_KEY}'").inputFiles())
    assert found > current, "files of old versions are among them"
    before, position = latest(topic), topic.bootstrap().position

    receipt = at(T0, topic).purge(_KEY)

    assert [*holders(logs.location, behind, copied, past, key=_KEY.encode() + b"'")] == []
    assert (receipt.tombstones, receipt.records_removed) == ({0: 7, 2: 2}, 5)
    assert receipt.target_rows_removed == {str(behind): 2, str(copied): 2, str(past): 3}
    assert (receipt.dead_letters_removed, receipt.readers, receipt.kept) == (2, ("slow",), {})
    assert (receipt.table_version, receipt.absent_targets) == (topic.describe().table_version, ())
    assert receipt.files_removed > current
    assert latest(topic) == {key: value for key, value in before.items() if key != _KEY}
    assert history(topic, 2) == ["1 plum=1", "2 EMPTY"]
    assert (
        sorted(row["reason"] for row in topic.dead_letters().collect()) == ["no key", "unknown partition"]
        or topic.dead_letters().count() == 2
    )
    assert PurgeReceipt.from_details(json.loads(json.dumps(receipt.to_details()))) == receipt
    assert (receipt.statistics, receipt.statistics_until_ms) == ((), None), "no Delta log names a key"
    assert "purged_tombstone" in {reason for one in topic.receipts() for reason in one.removed}

    closed(topic, spark, "melon=1")
    topic.materialize(str(behind), trigger=_ONCE, **_BYTES).awaitTermination()
    found_words = {bytes(row["_key"]).decode() for row in spark.read.format("delta").load(str(behind)).collect()}
    assert found_words == {*latest(topic)}, "what was erased there is not missed"
    with pytest.raises(StreamingQueryException, match="tombstones up to offset 7 were removed before they were read"):
        topic.tail(position).writeStream.foreachBatch(lambda *_: None).trigger(**_ONCE).start().awaitTermination()


_POINTS = (
    CrashPoint.PURGE_TOMBSTONE_WRITTEN,
    CrashPoint.PURGE_DECIDED,
    CrashPoint.SWAP_COMMITTED,
    CrashPoint.PURGE_CLEANED,
    CrashPoint.PURGE_ERASED,
    CrashPoint.PURGE_SWEPT,
)


def test_a_key_goes_from_segments_below_the_log_start_too(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """No round of cleaning looks at them; retention, which was kept away when the records were deleted, takes them first."""
    topic = logs.create_topic("deleted", config={"cleanup.policy": "compact"})
    closed(topic, spark, f"{_KEY}=1 a=1", "b=1")
    with logs.cleaner.locks.hold(topic.log):  # a round
        delete_records(at(T0, topic), {0: 2})
    at(T0, topic).purge(_KEY)
    assert holders(topic.log.paths.log) == []
    assert latest(topic) == {"b": "1"}


def test_a_purge_that_a_stopping_service_cuts_short_goes_on_with_the_next(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """The tombstone stands, no round begins any more, and no receipt says that the key is gone."""
    topic = logs.create_topic("stopping", config={"cleanup.policy": "compact"})
    closed(topic, spark, f"{_KEY}=1 a=1", "b=1")
    logs.cleaner.stopping.set()
    with pytest.raises(Aborted, match="the service stops; to purge again goes on from there"):
        at(T0, topic).purge(_KEY)
    assert (latest(topic), holders(topic.log.paths.log) != []) == ({"a": "1", "b": "1"}, True)
    logs.cleaner.stopping.clear()
    receipt = at(T0, topic).purge(_KEY)
    assert (receipt.tombstones, receipt.records_removed) == ({0: 3}, 2), "the tombstone of before, and the record"
    assert (holders(logs.location), latest(topic)) == ([], {"a": "1", "b": "1"})


def test_a_purge_that_crashed_between_any_two_steps_is_completed_by_the_next(
    spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path
) -> None:
    """Each goes on from where the one before crashed and gets as far as the next point; readers see the last word or none all the while."""
    topic = at(T0, logs).create_topic("fruit", config=_EAGER)
    target = str(tmp_path / "target")
    closed(topic, spark, f"{_KEY}=1 lime=1")
    topic.materialize(target, trigger=_ONCE, **_BYTES).awaitTermination()
    closed(topic, spark, f"{_KEY}=2")
    for point in _POINTS:

        def crash(reached: CrashPoint, point: CrashPoint = point) -> None:
            if reached is point:
                message = f"crashed: {point.value}"
                raise SystemExit(message)  # what no handler of errors catches

        with crash_points.hook(crash), pytest.raises(SystemExit, match="crashed"):
            at(T0, topic).purge(_KEY)
        topic = logs.topic("fruit")
        assert latest(topic) == {"lime": "1"}, point
        assert (holders(logs.location, target) == []) == (point is CrashPoint.PURGE_SWEPT), point
    receipt = at(T0, topic).purge(_KEY)
    assert (holders(logs.location, target), latest(topic), receipt.files_searched >= 2) == ([], {"lime": "1"}, True)
    decided = [(row.offset, row.details) for row in topic.log.ledger.rows() if row.kind is Kind.PURGE]
    assert decided == [(3, {})], "once, and without the key"
    assert topic.log.decisions().cleaner_checkpoint(0) == 4, "the receipt of the swap was taken from the swap"


def test_a_step_that_was_planned_before_a_purge_does_not_bring_the_key_back(
    spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path
) -> None:
    """It is taken again without the key; a query that was between two steps does not notice."""
    topic = at(T0, logs).create_topic("fruit", config=_EAGER)
    closed(topic, spark, "lime=1")
    table = str(tmp_path / "table")
    topic.materialize(table, trigger=_ONCE, **_BYTES).awaitTermination()

    def purge_at(point: CrashPoint) -> AbstractContextManager[None]:
        waiting = [point]

        def reached(here: CrashPoint) -> None:
            if here in waiting:
                waiting.clear()
                at(T0, topic).purge(_KEY)

        return crash_points.hook(reached)

    closed(topic, spark, f"{_KEY}=1")
    with purge_at(CrashPoint.STEP_PLANNED):
        topic.materialize(table, trigger=_ONCE, **_BYTES).awaitTermination()
    assert holders(logs.location, table) == []
    closed(topic, spark, f"{_KEY}=2 fig=1")
    query = topic.materialize(table, **_BYTES)
    try:
        with purge_at(CrashPoint.STEP_TAKEN):
            query.processAllAvailable()
        closed(topic, spark, "kiwi=1")
        query.processAllAvailable()
    finally:
        query.stop()
    assert {bytes(row["_key"]) for row in spark.read.format("delta").load(table).collect()} == {b"lime", b"fig", b"kiwi"}
    assert holders(logs.location, table) == []


def test_what_holds_a_purge_back_is_named_and_there_is_no_receipt(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """An open transaction with its producer, min.compaction.lag.ms with its end, a pause; the tombstone holds all the same."""
    topic = at(T0, logs).create_topic("held", config=_EAGER)
    closed(topic, spark, f"{_KEY}=1 lime=1")
    writer = at(T0, topic).transaction("loader")
    at(T0, writer).append(rows(f"fig=1 {_KEY}=2"))
    with pytest.raises(PurgeIncomplete, match=r"partition 0: .* open transaction of producer 0 \(loader\).* since offset 2") as held:
        at(T0, topic).purge(_KEY)
    assert _KEY not in str(held.value)
    assert latest(topic) == {_KEY: "1", "lime": "1"}, "the tombstone lies past the last stable offset"
    at(T0, writer).commit()
    assert latest(topic) == {"lime": "1", "fig": "1"}
    topic.alter_config({"min.compaction.lag.ms": "1h"})
    with pytest.raises(PurgeIncomplete, match=r"younger than min\.compaction\.lag\.ms = 3600000, until 2023-11-14T23:13:20"):
        at(T0 + 1, topic).purge(_KEY)
    later = T0 + HOUR_MS + 1
    topic.pause(0)
    with pytest.raises(PurgeIncomplete, match="paused; lastword resume"):
        at(later, topic).purge(_KEY)
    topic.resume(0)
    receipt = at(later, topic).purge(_KEY)
    assert (receipt.tombstones, receipt.records_removed) == ({0: 4}, 3)
    assert (holders(logs.location), latest(topic)) == ([], {"lime": "1", "fig": "1"})


def test_before_keeps_a_newest_record_that_is_not_older(spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path) -> None:
    """In one partition the newest is young and stays alone; in the other all are old and go; dead letters by the time of their refusal."""
    topic = at(T0, logs).create_topic("dated", partitions=2, config=_EAGER)
    for partition, days in ((0, (0, 3)), (1, (0, 1))):
        for day in days:
            closed(topic, spark, f"{_KEY}={day}", partition=partition, now_ms=T0 + day * DAY_MS)
    past = str(tmp_path / "past")
    topic.materialize(past, trigger=_ONCE, history=True, **_BYTES).awaitTermination()
    refuse(topic, spark, tmp_path / "incoming", [(_KEY, "x", 9)])
    receipt = at(T0 + 4 * DAY_MS, topic).purge(_KEY, before=T0 + 2 * DAY_MS)
    assert (receipt.tombstones, receipt.kept, receipt.records_removed) == ({1: 2}, {0: 1}, 3)
    assert (receipt.dead_letters_removed, receipt.target_rows_removed) == (0, {past: 1})
    assert (log(topic, 0), log(topic, 1)) == ([f"1 {_KEY}=3"], [])
    assert spark.read.format("delta").load(past).select("_partition", "_offset").collect() == [(0, 1)]
    files = [one for one in holders(logs.location) if "dead_letters" not in one]
    offsets = {row["offset"] for one in files for row in pq.ParquetFile(one).read().to_pylist() if row["key"] == _KEY.encode()}
    assert offsets == {1}, "old files that hold nothing else of the key may stay"
    assert at(T0 + 4 * DAY_MS, topic).purge(_KEY).dead_letters_removed == 1
    assert holders(logs.location, past) == []


def test_hostile_keys_and_absent_ones(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """Quotes, wildcards, bytes that are no text, the empty key, a long one: each goes alone; for what is not there a receipt of nothing."""
    keys = [b"", b"'; DROP TABLE log --%_\\E\n\"", b"\xff\x00\xfe", b"x" * 100_000]
    topic = at(T0, logs).create_topic("hostile", config=_EAGER)
    frame = spark.createDataFrame([(bytearray(key), bytearray(b"v")) for key in keys * 2], "key binary, value binary")
    at(T0, topic).append(frame)
    for number, key in enumerate(keys):
        receipt = at(T0, topic).purge(key)
        assert (receipt.records_removed, receipt.tombstones) == (1 if number else 2, {0: 8 + number}), "the first cleaning took the doubles"
        left = {bytes(row["key"]) for row in topic.records().collect()}
        assert left == set(keys[number + 1 :])
    assert holders(logs.location, key=b"DROP TABLE") == []
    receipt = at(T0, topic).purge("never there")
    assert (receipt.records_removed, receipt.tombstones, receipt.files_removed, receipt.readers) == (0, {}, 0, ())
    assert receipt.files_searched >= 1


def test_what_remains_is_named(spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path) -> None:
    """A bootstrap that was cut short; a table of somebody else in a table's place, and one that is gone, are absent."""
    topic = at(T0, logs).create_topic("fruit", config=_EAGER)
    closed(topic, spark, "lime=1", f"{_KEY}=1")
    for name in ("theirs", "unborn", "gone"):
        details = {"history": False, "typed": True}
        topic.log.ledger.append([Decision(kind=Kind.TARGET, time_ms=T0, name=str(tmp_path / name), details=details)])
    frame(spark, f"{_KEY}=1").write.format("delta").save(str(tmp_path / "theirs"))
    unborn = frame(spark, f"{_KEY}=1").selectExpr("0 AS _partition", "CAST(key AS BINARY) AS _key")
    unborn.coalesce(1).write.parquet(str(tmp_path / "unborn"))
    with pytest.raises(PurgeIncomplete) as incomplete:
        at(T0, topic).purge(_KEY)
    [remains] = incomplete.value.remains
    assert remains.startswith(str(tmp_path / "unborn"))
    for path in (tmp_path / "unborn").rglob("*"):
        path.unlink()
    receipt = at(T0, topic).purge(_KEY)
    assert receipt.absent_targets == tuple(sorted(str(tmp_path / name) for name in ("theirs", "unborn", "gone")))


def test_a_table_that_a_former_version_kept_is_dropped_before_a_purge(
    spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path
) -> None:
    """Nothing is written before it: its rows hold the key, and no receipt may say otherwise."""
    topic = at(T0, logs).create_topic("fruit", config=_EAGER)
    closed(topic, spark, "lime=1", f"{_KEY}=1")
    former = tmp_path / "former"
    topic.log.ledger.append([Decision(kind=Kind.TARGET, time_ms=T0, name=str(former), details={"history": False})])
    frame(spark, f"{_KEY}=1").write.format("delta").save(str(former))
    with pytest.raises(UserError, match=f"a former version of lastword kept the table {former}; this one cannot erase a key from it: drop"):
        at(T0, topic).purge(_KEY)
    assert latest(topic) == {"lime": "1", _KEY: "1"}
    shutil.rmtree(former)
    assert at(T0, topic).purge(_KEY).absent_targets == (str(former),)


def test_a_file_that_cannot_be_decoded_is_nobody_s_to_delete_unless_a_crash_left_it(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """An old file may be there for time travel alone; half a file that no commit names for a day was never more."""
    topic = at(T0, logs).create_topic("fruit", config=_EAGER)
    closed(topic, spark, f"{_KEY}=1 lime=1")
    [old] = (Path(topic.log.paths.log, str(path)) for path in topic.log.snapshot().files.path)
    closed(topic, spark, f"{_KEY}=2")
    at(T0, topic).clean(force=True)
    whole, half = old.read_bytes(), old.with_name("half.parquet")
    old.write_bytes(whole[:-1])
    half.write_bytes(whole[:100])
    with pytest.raises(PurgeIncomplete) as incomplete:
        at(T0, topic).purge(_KEY)
    found = sorted(incomplete.value.remains, key=lambda one: half.name in one)
    assert all(one.startswith(f"{topic.log.paths.log}/partition=0/segment=0/slice=0/") for one in found)
    assert ["older table versions name it" in one for one in found] == [True, False]
    assert "a commit in flight may be about to" in found[1], "another process may be writing it"
    os.utime(half, (T0 / 1000 - 86_401, T0 / 1000 - 86_401))
    with pytest.raises(PurgeIncomplete):
        at(T0, topic).purge(_KEY)
    assert [old.exists(), half.exists()] == [True, False]
    old.write_bytes(whole)
    at(T0, topic).purge(_KEY)
    assert not old.exists()
    assert holders(topic.log.paths.root) == []


def test_a_topic_that_cannot_erase_says_what_to_do(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """A mirror keeps another's offsets; without compaction nothing supersedes; a moment has to be one."""
    topic = at(T0, logs).create_topic("plain")
    with pytest.raises(UserError, match=r"cleanup\.policy=compact,delete, and purge again"):
        at(T0, topic).purge("a")
    topic.alter_config({"cleanup.policy": "compact"})
    topic.log.ledger.append([Decision(kind=Kind.MIRROR, time_ms=T0, details={"source": "kafka:fruit", "query": "mirror"})])
    with pytest.raises(UserError, match="topic plain mirrors kafka:fruit"):
        at(T0, topic).purge("a")
    with pytest.raises(UserError, match="before = soon: allowed is a date or a moment"):
        at(T0, topic).purge("a", before="soon")
    assert [before_as_ms(one) for one in ("1970-01-02", "1970-01-01T01:00:00Z", 7, None)] == [DAY_MS, HOUR_MS, 7, None]


def test_the_command_line_erases_and_so_does_a_running_service(spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path) -> None:
    """A receipt for people and for pipes; exit code 1 with what remains; as a request, of which nothing is left with the key in it."""
    lastword = Shell(logs)
    topic = logs.create_topic("fruit", config=_EAGER)
    topic.append(rows(f"{_KEY}=1 {_KEY}=2 lime=1 kiwi=1"))
    shown = lastword("purge", "fruit", "--key", _KEY, "--yes")
    assert "fruit: the key is erased; " in shown
    assert "partition 0: superseded by the tombstone at offset 4, which was removed too" in shown
    assert "removed: 2 records, 0 dead letters, " in shown
    assert "no older table version contains it" in shown
    [found] = lastword.json("purge", "fruit", "--key-base64", base64.b64encode(b"lime").decode(), "--yes")
    assert (found["receipt"]["records_removed"], found["found"], found["remains"]) == (1, True, [])
    assert "specify the key" in lastword.error(UserError, "purge", "fruit")
    assert "invalid base64" in lastword.error(UserError, "purge", "fruit", "--key-base64", "?")
    assert "ISO 8601" in lastword.error(UserError, "purge", "fruit", "--key", "a", "--before", "soon")
    topic.pause(0)
    done = lastword.run("purge", "fruit", "--key", "kiwi", "--yes")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "the key is not erased yet:" in done.stderr
    assert "paused; lastword resume" in done.stderr
    topic.resume(0)
    [found] = lastword.json("purge", "fruit", "--key", "kiwi", "--yes")
    assert found["receipt"]["records_removed"] == 2, "with the tombstone that was there already"
    assert holders(logs.location, key=b"kiwi") == []


def test_the_command_line_names_tables_readers_and_statistics(spark: SparkSession, logs: LogDir[SparkTopic], tmp_path: Path) -> None:
    """What was erased from, what was not searched, who may still hold the key, and what names it until its time comes."""
    topic, (words, gone) = logs.create_topic("fruit", config=_EAGER), (tmp_path / "words", tmp_path / "gone")
    topic.append([{"key": key, "value": json.dumps({"name": key})} for key in (_KEY, "lime")])
    topic.materialize(str(words), trigger=_ONCE, schema="name string").awaitTermination()
    now_ms, position = clock.now_ms(), {"offsets": [1], "table_version": 1, "since_version": 1, "expiration_ms": DAY_MS}
    topic.log.ledger.append([Decision(kind=Kind.TARGET, time_ms=now_ms, name=str(gone), details={"history": False, "typed": True})])
    topic.log.ledger.append([Decision(kind=Kind.READER, time_ms=now_ms, name="slow", details=position)])
    shown = Shell(logs)("purge", "fruit", "--key", _KEY, "--yes").splitlines()
    assert f"  removed from {words}: 1 rows" in shown
    assert f"  not searched, no longer a table of this topic: {gone}" in shown
    assert "  reader slow had not read the tombstone and may still hold the key; it is notified when it resumes" in shown
    [at] = [number for number, line in enumerate(shown) if "statistics in Delta logs do until" in line]
    assert shown[at + 1].startswith(f"    {words}/_delta_log/")
    assert "no older table version contains it" not in [line.strip() for line in shown]


def test_a_purge_that_is_held_back_names_the_partitions_of_the_key_alone(tmp_path: Path) -> None:
    """The others have nothing to do with it; no Spark is needed to say so."""
    topic = at(T0, LogDir(tmp_path)).create_topic("fruit", partitions=3, config=_EAGER)
    for partition in range(3):
        topic.append(rows(f"{_KEY}=1" if partition == 1 else "lime=1", partition=partition))
        topic.pause(partition)
    with pytest.raises(PurgeIncomplete) as incomplete:
        topic.purge(_KEY)
    [remains] = incomplete.value.remains
    assert remains.startswith("partition 1: the cleaner is held back")
    assert "paused; lastword resume" in remains
    topic.resume(1)
    assert topic.purge(_KEY).records_removed == 2, "with the tombstone of the purge before"


def test_a_key_whose_producer_goes_on_is_not_purged_until_it_stops(tmp_path: Path) -> None:
    """A purge does not go on for ever, and its message says what to stop."""
    topic = at(T0, LogDir(tmp_path)).create_topic("fruit", config=_EAGER)
    topic.append(rows(f"{_KEY}=1 lime=1"))

    def produce(point: CrashPoint) -> None:
        if point is CrashPoint.PURGE_TOMBSTONE_WRITTEN:
            topic.append(rows(f"{_KEY}=again"))

    with crash_points.hook(produce), pytest.raises(PurgeIncomplete) as incomplete:
        topic.purge(_KEY)
    [remains] = incomplete.value.remains
    assert remains.endswith("rounds of cleaning went by, and it is there still: stop its producer, if it has one, and purge again")
    assert topic.purge(_KEY).was_found
    assert (latest(topic), holders(topic.log.paths.root)) == ({"lime": "1"}, [])


def test_a_key_is_found_in_whichever_part_of_a_file_it_is(tmp_path: Path) -> None:
    """The newest record of the key, a tombstone or not, may stand in any row group."""
    topic = at(T0, LogDir(tmp_path)).create_topic("fruit", config=_EAGER)
    topic.log.limits = LogLimits(row_groups=RowGroupLimits(max_rows=2))
    topic.append(rows(f"a=1 b=1 {_KEY}=1 d=1 e=1 {_KEY}=∅ f=1"))
    [found] = rows_of_key(topic.log, topic.log.snapshot(), _KEY.encode())
    assert (found.rows, found.newest_offset, found.newest_is_tombstone) == (2, 5, True)
    assert topic.purge(_KEY).records_removed == 2
    assert sorted(latest(topic)) == ["a", "b", "d", "e", "f"]


@pytest.mark.parametrize(
    ("setting", "history"),
    [(("columnMapping.mode", "name"), False), (("enableDeletionVectors", "true"), True)],
    ids=["column mapping", "deletion vectors"],
)
def test_a_key_goes_from_tables_whose_files_do_not_say_what_the_table_says(
    spark: SparkSession,
    logs: LogDir[SparkTopic],
    tmp_path: Path,
    setting: tuple[str, str],
    history: bool,  # noqa: FBT001  a table of cases
) -> None:
    """Files may call the columns by other names, and hold rows that the table has deleted: the receipt is about the files."""
    topic = logs.create_topic("fruit", config=_EAGER)
    topic.append(rows("kiwi=1 lime=1 fig=1 date=1 plum=1"))
    target = str(tmp_path / "target")
    topic.materialize(target, trigger=_ONCE, history=history, **_BYTES).awaitTermination()
    topic.append(rows("kiwi=2"))
    topic.materialize(target, trigger=_ONCE, history=history, **_BYTES).awaitTermination()
    name, value = setting
    spark.sql(f"ALTER TABLE delta.`{target}` SET TBLPROPERTIES ('delta.{name}' = '{value}')")
    SparkTable.forPath(spark, target).delete("CAST(_key AS STRING) = 'lime'")
    receipt = topic.purge("kiwi")
    assert receipt.target_rows_removed == {target: 2 if history else 1}
    assert holders(target, key=b"kiwi") == []
    assert sorted(bytes(row["_key"]) for row in spark.read.format("delta").load(target).collect()) == [b"date", b"fig", b"plum"]


@pytest.mark.parametrize(
    "changes",
    [
        [("a", "1", 3), ("b", "1", 5)],
        [("b", "1", 5), ("a", "1", 7), ("a", "2", 8)],
        [("a", "1", 3), ("a", None, 4), ("b", "1", 5)],
        [("c", "1", 1), ("c", None, 9), ("a", "1", 9), ("b", "1", 9)],
    ],
    ids=["lower than others", "highest", "deleted", "equal to others"],
)
def test_a_key_goes_from_a_topic_that_orders_by_the_sequences_of_its_source(
    tmp_path: Path, changes: list[tuple[str, str | None, int]]
) -> None:
    """Its tombstone has the sequence of its newest record: an earlier change that comes again is reported, the next one is taken."""

    def append(changes: list[tuple[str, str | None, int]]) -> None:
        names = ("key", "value", "source_sequence")
        topic.append(pa.table([pa.array([row[at] for row in changes], kind) for at, kind in enumerate(_CHANGE)], names))

    topic = at(T0, LogDir(tmp_path)).create_topic("t", config=_EAGER)
    append(changes)
    newest = max(sequence for key, _, sequence in changes if key == "a")
    receipt = topic.purge("a")
    assert receipt.records_removed == sum(key == "a" for key, *_ in changes)
    assert {bytes(row["key"]) for row in topic.records().to_pylist()} == {key.encode() for key, *_ in changes} - {b"a"}
    with pytest.raises(InvalidRecords, match="unknown_order"):
        append([("a", "again", newest - 1)])
    append([("a", "next", newest + 1)])
    assert [row["value"] for row in topic.latest(keys=["a"]).to_pylist()] == [b"next"]
    assert topic.verify().ok


@pytest.mark.parametrize("kind", ["without a position", "with one"])
def test_a_key_of_change_events_goes(tmp_path: Path, kind: str) -> None:
    """As Debezium sends them: the purge needs nothing of the source."""
    source = '{"connector":"postgresql","lsn":%d}' if kind == "with one" else '{"connector":"unknown"}'
    texts = [f'{{"op":"c","before":null,"after":{{"id":{n}}},"source":{source % n if "%" in source else source}}}' for n in (1, 2)]
    topic = at(T0, LogDir(tmp_path)).create_topic("t", config=_EAGER)
    topic.append(pa.table({"key": ['{"id":1}', '{"id":2}'], "value": texts}), envelope=Envelope())
    key = bytes(topic.latest().to_pylist()[0]["key"])
    assert topic.purge(key).records_removed == 1
    assert key not in {bytes(row["key"]) for row in topic.records().to_pylist()}
    assert topic.latest().num_rows == 1
    assert topic.verify().ok


@pytest.mark.parametrize(
    "named",
    [
        '{"line_no":1,"order_id":8}',
        b'{"order_id": 8, "line_no": 1}',
        {"order_id": 8, "line_no": 1},
    ],
    ids=["as it stands", "in another order", "by its columns"],
)
def test_a_key_of_several_columns_is_erased_in_whichever_order_they_are_named(tmp_path: Path, named: Any) -> None:
    """As `get` finds it; a key that no file has in any form is not found, and one that stands as it is given goes alone."""
    topic = at(T0, LogDir(tmp_path)).create_topic("t", config=_EAGER)
    stands, other = '{"line_no":1,"order_id":8}', '{"line_no":2,"order_id":8}'
    topic.append([{"key": stands, "value": "1"}, {"key": other, "value": "2"}])

    receipt = topic.purge(named)

    assert (receipt.was_found, receipt.records_removed) == (True, 1)
    assert [row["key"] for row in topic.records().to_pylist()] == [other.encode()]
    assert not topic.purge({"line_no": 3, "order_id": 8}).was_found
    topic.append([{"key": '{"b":1,"a":2}', "value": "raw"}, {"key": '{"a":2,"b":1}', "value": "canonical"}])
    assert topic.purge('{"b":1,"a":2}').records_removed == 1
    assert [row["value"] for row in topic.records().to_pylist()] == [b"2", b"canonical"]


def test_the_command_line_erases_a_key_in_whichever_order_its_columns_are_named(tmp_path: Path) -> None:
    """And says that it did."""
    logs = at(T0, LogDir(tmp_path))
    logs.create_topic("t", config=_EAGER).append([{"key": '{"a":1,"b":2}', "value": "1"}])

    assert "the key is erased" in Shell(logs)("purge", "t", "--key", '{"b": 2, "a": 1}', "--yes")


def test_a_key_that_is_nested_too_deeply_to_be_read_as_json_is_erased_as_it_is_given(tmp_path: Path) -> None:
    """It is bytes like any other key, for `get` too."""
    topic = at(T0, LogDir(tmp_path)).create_topic("t", config=_EAGER)
    deep = '{"a":' * 5_000 + "1" + "}" * 5_000
    topic.append([{"key": deep, "value": "1"}])

    assert topic.get(deep) is not None
    assert topic.purge(deep).records_removed == 1
    assert topic.records().num_rows == 0
