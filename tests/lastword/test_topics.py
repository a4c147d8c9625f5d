"""Topics through the API: made, listed, described, altered, deleted and copied; only records need Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from lastword import LogDir
from lastword.compaction.errors import InvalidConfiguration, InvalidRecords, InvalidTopic, TopicExists, UnknownTopic, UserError
from lastword.copying import copy_topic
from lastword.storage.ledger.decisions import Decision, Kind
from lastword.storage.ledger.ledger import Ledger
from tests.clocks import at
from tests.pictures import DAY_MS, latest, log, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lastword import ArrowTopic, SparkTopic

_COMPACT = {"cleanup.policy": "compact"}
_HOUR_MS = 3_600_000
_ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def dry(tmp_path: Path) -> LogDir[ArrowTopic]:
    """Return an empty log.dir without a Spark session."""
    return LogDir(str(tmp_path / "dry"))


def _refused(attempt: Any) -> dict[str, str]:
    """Return what is allowed for every key that `attempt` is refused for."""
    with pytest.raises(InvalidConfiguration) as caught:
        attempt()
    return {violation.key: violation.allowed for violation in caught.value.violations}


# --- names and partitions -----------------------------------------------------------------------------------------------------------


def test_a_created_topic_is_listed_described_and_found_again(dry: LogDir[ArrowTopic]) -> None:
    """Also from another LogDir on the same path; the list is sorted."""
    at(5, dry).create_topic("prices", partitions=3, config={**_COMPACT, "segment.bytes": "128MiB"})
    dry.create_topic("fruit")
    other = LogDir(dry.location)
    assert other.topics() == ["fruit", "prices"]
    topic = other.topic("prices")
    assert (topic.name, topic.partitions, topic.config.compacted, topic.config.segment_bytes) == ("prices", 3, True, 134_217_728)
    assert topic.log.decisions().created_ms == 5


def test_a_log_dir_that_does_not_exist_yet_has_no_topics(dry: LogDir[ArrowTopic]) -> None:
    """Looking at it does not make it."""
    assert dry.topics() == []
    assert dry.purge_deleted() == []
    assert not Path(dry.location).exists()


@pytest.mark.parametrize("name", ["a", "fruit-prices", "A_b.c-1", "__consumer_offsets", "9", "a..b", "-", "x" * 249])
def test_kafka_s_topic_names_are_allowed(dry: LogDir[ArrowTopic], name: str) -> None:
    """Letters, digits, dot, underscore and hyphen, up to 249 of them."""
    dry.create_topic(name)
    assert dry.topics() == [name]


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "../a", "a b", "a\n", "pêche", "a:b", "a\0", "x" * 250])
def test_other_names_are_refused_and_nothing_is_made(dry: LogDir[ArrowTopic], name: str) -> None:
    """A leading dot is lastword's own, besides what Kafka refuses."""
    with pytest.raises(InvalidTopic, match="1 to 249 of the characters"):
        dry.create_topic(name)
    assert not Path(dry.location).exists()


def test_a_topic_has_1_to_10000_partitions(dry: LogDir[ArrowTopic]) -> None:
    """1 and 10,000 are allowed; booleans and fractions are refused."""
    assert dry.create_topic("one").partitions == 1
    assert dry.create_topic("many", partitions=10_000).partitions == 10_000
    refused: list[Any] = [0, -1, 10_001, True, 1.5, "4"]
    for partitions in refused:
        with pytest.raises(InvalidTopic, match="allowed is a whole number from 1 to 10000"):
            dry.create_topic("wrong", partitions=partitions)
    assert dry.topics() == ["many", "one"]


def test_a_taken_name_is_refused_and_the_topic_stays_as_it_was(dry: LogDir[ArrowTopic]) -> None:
    """`TopicExists`; an invalid configuration is reported first."""
    topic = dry.create_topic("fruit", partitions=2, config=_COMPACT)
    with pytest.raises(TopicExists, match="topic fruit exists already in"):
        dry.create_topic("fruit", partitions=5)
    assert (topic.partitions, dict(topic.describe().overrides)) == (2, {"cleanup.policy": "compact"})


def test_of_many_who_create_one_topic_at_once_exactly_one_does(dry: LogDir[ArrowTopic]) -> None:
    """Four threads, each with a LogDir of its own."""
    start = Barrier(4)

    def create(partitions: int) -> int | None:
        start.wait()
        try:
            return LogDir(dry.location).create_topic("fruit", partitions=partitions).partitions
        except TopicExists:
            return None

    with ThreadPoolExecutor(4) as pool:
        made = [partitions for partitions in pool.map(create, (1, 2, 3, 4)) if partitions is not None]
    assert made == [dry.topic("fruit").partitions]


def test_an_unknown_topic_is_an_error_that_names_the_existing_ones(dry: LogDir[ArrowTopic]) -> None:
    """By every verb that takes a name."""
    with pytest.raises(UnknownTopic, match=r"topic frut does not exist in .*; existing: none"):
        dry.topic("frut")
    dry.create_topic("prices")
    dry.create_topic("fruit")
    for verb in (dry.topic, dry.delete_topic):
        with pytest.raises(UnknownTopic, match="existing: fruit, prices"):
            verb("frut")


# --- configuration ------------------------------------------------------------------------------------------------------------------


def test_every_violation_of_a_configuration_is_named_at_once_and_nothing_is_made(dry: LogDir[ArrowTopic]) -> None:
    """A value out of range, a wrong choice, a misspelt key with the nearest right one, a key of Kafka that is not here."""
    wrong = {"segment.bytes": 5, "cleanup.policy": "compacted", "retention.mss": 1, "flush.ms": 1}
    with pytest.raises(InvalidConfiguration) as caught:
        dry.create_topic("fruit", config=wrong)
    allowed = {violation.key: violation.allowed for violation in caught.value.violations}
    assert set(allowed) == set(wrong)
    assert "at least 1024" in allowed["segment.bytes"]
    assert "any of compact, delete" in allowed["cleanup.policy"]
    assert allowed["retention.mss"] == "unknown; did you mean retention.ms?"
    assert "nothing to flush" in allowed["flush.ms"]
    assert str(caught.value).startswith("invalid configuration of topic fruit:\n  segment.bytes = 5: ")
    assert not Path(dry.location).exists()


def test_alter_changes_some_settings_and_none_takes_one_away(dry: LogDir[ArrowTopic]) -> None:
    """What is not named stays; another handle of the topic sees the change."""
    topic = dry.create_topic("fruit", config={**_COMPACT, "segment.ms": "12h"})
    other = dry.topic("fruit")
    assert other.config.segment_ms == 12 * _HOUR_MS
    assert topic.alter_config({"retention.ms": "1h", "segment.ms": None}).segment_ms == 7 * 24 * _HOUR_MS
    assert (other.config.segment_ms, other.config.retention_ms, other.config.compacted) == (7 * 24 * _HOUR_MS, _HOUR_MS, True)
    assert dict(other.describe().overrides) == {"cleanup.policy": "compact", "retention.ms": str(_HOUR_MS)}
    topic.alter_config({"delete.retention.ms": None})  # was not set
    assert topic.alter_config({"retention.ms": None, "cleanup.policy": None}).deletes
    assert dict(other.describe().overrides) == {}


def test_an_alter_with_violations_names_all_of_them_and_changes_nothing(dry: LogDir[ArrowTopic]) -> None:
    """Also those that only appear beside what is set already, and a setting to take away that there is not."""
    topic = dry.create_topic("fruit", config={"min.compaction.lag.ms": "2h"})
    assert set(_refused(lambda: topic.alter_config({"segment.bytes": 5, "segment.ms": 0, "retention.ms": 1}))) == {
        "segment.bytes",
        "segment.ms",
    }
    assert _refused(lambda: topic.alter_config({"max.compaction.lag.ms": "1h"})) == {
        "min.compaction.lag.ms": f"at most max.compaction.lag.ms, which is {_HOUR_MS}"
    }
    assert _refused(lambda: topic.alter_config({"retention.mss": None})) == {"retention.mss": "unknown; did you mean retention.ms?"}
    assert dict(topic.describe().overrides) == {"min.compaction.lag.ms": str(2 * _HOUR_MS)}


def test_alter_refuses_the_number_of_partitions_says_why_and_names_the_way_out(dry: LogDir[ArrowTopic]) -> None:
    """Keys would move: `topics copy` re-hashes them."""
    topic = dry.create_topic("fruit", partitions=2)
    (allowed,) = _refused(lambda: topic.alter_config({"partitions": 8})).values()
    assert "fixed at creation: keys would move to other partitions and lose their order" in allowed
    assert "lastword topics copy fruit NEW --partitions 8" in allowed
    assert topic.partitions == 2


def test_alters_at_the_same_time_all_hold(dry: LogDir[ArrowTopic]) -> None:
    """Four threads, each with its own handle and its own key: none undoes another's."""
    dry.create_topic("fruit")
    changes = {"segment.ms": "1", "retention.ms": "2", "delete.retention.ms": "3", "max.message.bytes": "4"}
    start = Barrier(len(changes))

    def alter(change: tuple[str, str]) -> None:
        topic = LogDir(dry.location).topic("fruit")
        start.wait()
        topic.alter_config(dict([change]))

    with ThreadPoolExecutor(len(changes)) as pool:
        list(pool.map(alter, changes.items()))
    assert dict(dry.topic("fruit").describe().overrides) == changes


def test_broker_settings_hold_for_topics_without_their_own(dry: LogDir[ArrowTopic]) -> None:
    """Kafka's precedence: ms over minutes over hours, the topic's own over all; they belong to the service, not to the topic."""
    plain = dry.create_topic("plain")
    own = dry.create_topic("own", config={"retention.ms": 5})
    service = LogDir(dry.location, settings={"log.retention.hours": 1, "log.cleaner.threads": 2})
    assert service.topic("plain").config.retention_ms == _HOUR_MS
    assert service.topic("own").config.retention_ms == 5
    assert service.service_config.log_cleaner_threads == 2
    assert service.topic("own").alter_config({"retention.ms": None}).retention_ms == _HOUR_MS
    minutes = LogDir(dry.location, settings={"log.retention.hours": 1, "log.retention.minutes": 2})
    assert minutes.topic("plain").config.retention_ms == 120_000
    assert (plain.config.retention_ms, own.config.retention_ms) == (7 * 24 * _HOUR_MS, 7 * 24 * _HOUR_MS)


def test_who_opens_a_log_dir_without_settings_works_with_those_of_the_last_service(dry: LogDir[ArrowTopic]) -> None:
    """Retention by hand takes what the service would take, and no more; who names settings, even none, means them."""
    dry.create_topic("plain")
    dry.create_topic("own", config={"retention.ms": 5})
    assert dry.topic("plain").config.retention_ms == 7 * DAY_MS
    for kept in ({"log.retention.ms": 5}, {"log.retention.hours": -1, "log.cleanup.policy": "compact", "log.cleaner.threads": 2}):
        LogDir(dry.location, settings=kept).keep_settings()
    opened = LogDir(dry.location)
    assert opened.service_config.log_cleaner_threads == 2
    plain, own = opened.topic("plain").config, opened.topic("own").config
    assert (plain.compacted, plain.deletes, plain.retention_ms, own.retention_ms) == (True, False, -1, 5)
    assert LogDir(dry.location, settings={}).topic("plain").config.retention_ms == 7 * DAY_MS
    assert opened.topics() == ["own", "plain"]


@pytest.mark.parametrize("spoilt", ["{", "[]", '{"log.retention.hour": 1}'])
def test_kept_settings_that_cannot_be_read_are_an_error_and_not_the_defaults(dry: LogDir[ArrowTopic], spoilt: str) -> None:
    """A default may delete what the service keeps."""
    dry.create_topic("plain")
    Path(dry.location, ".settings.json").write_text(spoilt, encoding="utf-8")
    with pytest.raises(UserError, match=r"settings\.json|log\.retention\.hour"):
        LogDir(dry.location).topic("plain").apply_retention()


def test_wrong_broker_settings_are_refused_before_anything_else(tmp_path: Path) -> None:
    """All at once, with the nearest right key."""
    settings = {"log.retention.hour": 1, "log.cleaner.threads": 0, "log.retention.ms": "soon"}
    allowed = _refused(lambda: LogDir(str(tmp_path), settings=settings))
    assert set(allowed) == set(settings)
    assert allowed["log.retention.hour"] == "unknown; did you mean log.retention.hours?"


def test_a_broker_setting_that_contradicts_a_topic_s_own_is_refused_for_that_topic(dry: LogDir[ArrowTopic]) -> None:
    """max.compaction.lag.ms of the service below min.compaction.lag.ms of the topic."""
    service = LogDir(dry.location, settings={"log.cleaner.max.compaction.lag.ms": _HOUR_MS})
    allowed = _refused(lambda: service.create_topic("fruit", config={"min.compaction.lag.ms": "2h"}))
    assert set(allowed) == {"min.compaction.lag.ms"}
    assert dry.topics() == []


# --- describe -----------------------------------------------------------------------------------------------------------------------


def test_describe_shows_an_empty_topic_with_every_setting(dry: LogDir[ArrowTopic]) -> None:
    """Table version 0, partitions without segments, none of them active."""
    found = dry.create_topic("fruit", partitions=2, config={"retention.ms": "1h"}).describe()
    assert (found.name, found.table_version, found.record_count, found.size_bytes) == ("fruit", 0, 0, 0)
    assert [(one.partition, one.log_end_offset, one.segments, one.active) for one in found.partitions] == [
        (0, 0, (), False),
        (1, 0, (), False),
    ]
    assert (found.config["retention.ms"], found.config["cleanup.policy"]) == (str(_HOUR_MS), "delete")
    assert (dict(found.queries), found.mirror) == ({}, None)


@pytest.mark.long
def test_describe_without_spark_says_the_same_as_with_it(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """Counts, offsets and segments come from the Delta log; a roll without Spark is seen by the next append."""
    topic = logs.create_topic("fruit", partitions=2, config=_COMPACT)
    topic.append(rows("grape=1 lime=1 grape=2", partition=1))
    dry = LogDir(logs.location)
    assert dry.topic("fruit").roll() == {1: 3}
    topic.append(rows("lime=∅", partition=1))
    found = dry.topic("fruit").describe()
    assert found == topic.describe()
    assert (found.record_count, [one.log_end_offset for one in found.partitions]) == (4, [0, 4])
    assert [(one.label, one.record_count) for one in found.partitions[1].segments] == [(0, 3), (3, 1)]
    assert dry.session is None


def test_topics_are_made_altered_described_and_deleted_where_there_is_no_java(tmp_path: Path) -> None:
    """A process that cannot start a JVM: an empty PATH, and a JAVA_HOME that is not there."""
    script = """
from lastword import LogDir
moment = [0]
logs = LogDir("data", clock=lambda: moment[0])
topic = logs.create_topic("fruit", partitions=2, config={"cleanup.policy": "compact"})
topic.alter_config({"retention.ms": "1h"})
assert topic.roll() == {}
assert topic.describe().config["retention.ms"] == "3600000"
logs.delete_topic("fruit")
moment[0] = 60_000
assert logs.topics() == [] and logs.purge_deleted() == ["fruit"]
"""
    environment = {**os.environ, "PATH": "", "JAVA_HOME": str(tmp_path / "none"), "PYTHONPATH": str(_ROOT)}
    done = subprocess.run(  # noqa: S603  our own interpreter
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


# --- delete -------------------------------------------------------------------------------------------------------------------------


def test_a_deleted_topic_is_gone_at_once_and_its_files_stay_for_file_delete_delay_ms(dry: LogDir[ArrowTopic]) -> None:
    """Deleted at 1000 with a delay of 500: there at 1499, gone at 1500. The name is free meanwhile, dots in it or not."""
    trash = Path(dry.location) / ".deleted"
    topic = dry.create_topic("orders.v1", config={"file.delete.delay.ms": 500})
    at(1_000, dry).delete_topic("orders.v1")
    assert dry.topics() == []
    with pytest.raises(UnknownTopic):
        topic.describe()
    with pytest.raises(UnknownTopic):
        topic.alter_config({"retention.ms": 1})
    again = dry.create_topic("orders.v1", partitions=3)
    (folder,) = trash.iterdir()
    assert (folder / "log" / "_delta_log").is_dir()
    assert at(1_499, dry).purge_deleted() == []
    assert folder.exists()
    assert at(1_500, dry).purge_deleted() == ["orders.v1"]
    assert list(trash.iterdir()) == []
    assert (dry.topics(), again.partitions) == (["orders.v1"], 3)


def test_a_handle_of_a_deleted_topic_does_not_touch_its_namesake(dry: LogDir[ArrowTopic]) -> None:
    """A topic that is created under the same name later is another topic."""
    old = dry.create_topic("fruit")
    assert old.partitions == 1
    dry.delete_topic("fruit")
    new = dry.create_topic("fruit", partitions=2)
    with pytest.raises(UnknownTopic, match="was deleted and another one created under its name; open it again"):
        old.alter_config({"retention.ms": 1})
    assert dict(new.describe().overrides) == {}


def test_a_handle_notices_a_namesake_whose_folder_took_the_place_of_the_old_one(dry: LogDir[ArrowTopic]) -> None:
    """The file system gives the inode of a deleted folder to the next one."""
    for partitions in range(1, 5):
        held = dry.create_topic("fruit", partitions=partitions)
        assert held.partitions == partitions
        dry.delete_topic("fruit")
        at(2**62, dry).purge_deleted()
        dry.create_topic("fruit", partitions=9)
        with pytest.raises(UnknownTopic, match="was deleted and another one created under its name"):
            held.describe()
        dry.delete_topic("fruit")


def test_two_deleted_topics_of_one_name_are_purged_each_in_its_time(dry: LogDir[ArrowTopic]) -> None:
    """Delays of 100 and 1000 from the same moment."""
    for delay_ms in (1_000, 100):
        dry.create_topic("fruit", config={"file.delete.delay.ms": delay_ms})
        at(0, dry).delete_topic("fruit")
    assert [at(now_ms, dry).purge_deleted() for now_ms in (99, 100, 999, 1_000)] == [[], ["fruit"], [], ["fruit"]]


def test_records_of_a_deleted_topic_do_not_come_back_under_its_name(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """They come neither from Delta's caches nor from deleted files: offsets begin at 0 again."""
    logs.create_topic("fruit", config=_COMPACT).append(rows("grape=1 lime=1"))
    at(0, logs).delete_topic("fruit")
    topic = logs.create_topic("fruit", config=_COMPACT)
    assert log(topic) == []
    topic.append(rows("kiwi=1"))
    assert log(topic) == ["0 kiwi=1"]


# --- ledger -------------------------------------------------------------------------------------------------------------------------


def test_the_ledger_numbers_decisions_without_a_gap_whoever_makes_them(dry: LogDir[ArrowTopic]) -> None:
    """Four threads, two of them sharing a ledger; one or two decisions a commit; a reader opened before sees all of them."""
    topic = dry.create_topic("fruit")
    path = topic.log.paths.ledger
    reader = Ledger(path, "fruit")
    assert reader.read().sequence == 2  # create, config
    shared = Ledger(path, "fruit")
    writers = [shared, shared, Ledger(path, "fruit"), Ledger(path, "fruit")]
    start = Barrier(len(writers))

    def decide(writer: int) -> None:
        start.wait()
        for number in range(5):
            made = [_query(f"{writer}-{number}-{part}") for part in range(1 + number % 2)]
            assert writers[writer].append(made).queries[f"{writer}-{number}-0"] == "id"

    with ThreadPoolExecutor(len(writers)) as pool:
        list(pool.map(decide, range(len(writers))))
    decisions = reader.rows()
    assert [row.sequence for row in decisions] == list(range(1, 2 + 4 * 7 + 1))
    names = [row.name for row in decisions[2:]]
    assert len(set(names)) == 28
    for writer in range(4):
        mine = [name for name in names if name and name.startswith(f"{writer}-")]
        assert mine == sorted(mine), "a writer's decisions stand in the order in which it made them"
    assert set(reader.read().queries) == set(names)


def test_the_ledger_reads_back_what_was_decided(dry: LogDir[ArrowTopic]) -> None:
    """Every column of a decision, and what the fold makes of several: the newest holds, a roll never goes back."""
    topic = at(7, dry).create_topic("fruit", partitions=2)
    decided = [
        Decision(kind=Kind.ROLL, time_ms=1_700_000_000_123, partition=1, offset=731, table_version=42),
        Decision(kind=Kind.ROLL, time_ms=8, partition=1, offset=5, table_version=43),
        Decision(kind=Kind.QUERY, time_ms=9, name="files", details={"query_id": "1"}),
        Decision(kind=Kind.QUERY, time_ms=10, name="files", details={"query_id": None}),
    ]
    topic.log.ledger.append(decided)
    other = Ledger(topic.log.paths.ledger, "fruit")
    found = other.rows()[2:]
    assert [(row.kind, row.time_ms, row.partition, row.name, row.offset, row.table_version, dict(row.details)) for row in found] == [
        (row.kind, row.time_ms, row.partition, row.name, row.offset, row.table_version, dict(row.details)) for row in decided
    ]
    today = other.read()
    assert (today.closed_offset(0, 900), today.closed_offset(1, 900), today.closed_offset(1, 700)) == (-1, 731, 5)
    assert (today.created_ms, dict(today.queries)) == (7, {"files": None})


def test_a_ledger_that_is_not_there_is_an_unknown_topic(dry: LogDir[ArrowTopic]) -> None:
    """Also one that was deleted while it was open."""
    with pytest.raises(UnknownTopic, match="no ledger at"):
        Ledger(str(Path(dry.location) / "fruit" / "ledger"), "fruit").read()
    ledger = dry.create_topic("fruit").log.ledger
    assert ledger.read().sequence == 2
    dry.delete_topic("fruit")
    with pytest.raises(UnknownTopic):
        ledger.append([_query("late")])


def _query(name: str) -> Decision:
    return Decision(kind=Kind.QUERY, time_ms=0, name=name, details={"query_id": "id"})


# --- copy ---------------------------------------------------------------------------------------------------------------------------


def _by_key(topic: SparkTopic) -> dict[bytes, list[tuple[Any, ...]]]:
    """Return every record of every key in the order of its offsets."""
    found: dict[bytes, list[tuple[Any, ...]]] = defaultdict(list)
    shown = topic.records().orderBy("partition", "offset").select("key", "value", "headers", F.unix_millis("timestamp"))
    for key, value, headers, timestamp_ms in shown.collect():
        found[bytes(key)].append((value, headers, timestamp_ms))
    return found


def test_a_copy_has_every_record_hashed_anew_in_the_order_of_its_key(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """Three partitions to five: values, tombstones, headers, timestamps and settings come along; offsets begin at 0 without a gap."""
    source = logs.create_topic("fruit", partitions=3, config={**_COMPACT, "segment.bytes": "1KiB"})
    schema = "key string, value string, headers array<struct<key:string,value:binary>>, timestamp bigint"
    for step in range(2):
        drawn = [
            (
                f"k{number % 23}",
                None if number % 7 == 0 else f"{step}-{number}",
                [("n", bytearray([number]))] if number % 2 else None,
                9_000 - number,
            )
            for number in range(120)
        ]
        at(1, source).append(spark.createDataFrame(drawn, schema))
        source.roll()
    copied = copy_topic(logs, "fruit", "wide", partitions=5)
    copy = logs.topic("wide")
    assert _by_key(source) == _by_key(copy)
    assert copied == copy.describe().record_count == 240
    assert [one.log_end_offset for one in copy.describe().partitions] == [one.record_count for one in copy.describe().partitions]
    assert (copy.partitions, dict(copy.describe().overrides)) == (5, dict(source.describe().overrides))
    before = copy.records().select("key", "partition").distinct()
    copy.append(spark.createDataFrame([(f"k{number}", "after") for number in range(23)], "key string, value string"))
    assert copy.records().select("key", "partition").distinct().exceptAll(before).count() == 0, "later records join their keys"


def test_a_copy_into_one_partition_an_empty_topic_and_a_taken_name(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """An empty topic gives an empty one; `TopicExists` changes nothing; an unknown source makes nothing."""
    empty = logs.create_topic("empty", partitions=2, config=_COMPACT)
    assert copy_topic(logs, "empty", "also-empty", partitions=3) == 0
    assert logs.topic("also-empty").partitions == 3
    empty.append(rows("grape=1 lime=1 grape=∅"))
    assert copy_topic(logs, "empty", "one", partitions=1) == 3
    assert _by_key(empty) == _by_key(logs.topic("one"))
    with pytest.raises(TopicExists):
        copy_topic(logs, "empty", "one", partitions=1)
    assert logs.topic("one").describe().record_count == 3
    with pytest.raises(UnknownTopic):
        copy_topic(logs, "frut", "new", partitions=1)
    assert logs.topics() == ["also-empty", "empty", "one"]


def test_a_copy_takes_what_was_committed_and_waits_for_what_is_open(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """What was aborted stays aborted: it does not come along."""
    topic = logs.create_topic("fruit", config=_COMPACT)
    topic.append(rows("lime=1"))
    aborted = topic.transaction("loader")
    aborted.append(rows("lime=9 fig=9"))
    with pytest.raises(UserError, match=r"topic fruit: open transactions of producer 0 \(loader\): commit or abort them first"):
        copy_topic(logs, "fruit", "copy", partitions=2)
    assert logs.topics() == ["fruit"]
    aborted.abort()
    with topic.transaction("loader") as committed:
        committed.append(rows("kiwi=1"))

    copied = copy_topic(logs, "fruit", "copy", partitions=2)
    assert copied == 2
    assert latest(logs.topic("copy")) == {"lime": "1", "kiwi": "1"}


def test_a_copy_that_is_refused_leaves_no_topic_behind(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """Keyless records from before the policy was compact: the copy says so, and its name stays free."""
    source = logs.create_topic("events")
    source.append(spark.createDataFrame([(None, "1"), ("a", "2")], "key string, value string"))
    source.alter_config(_COMPACT)
    with pytest.raises(InvalidRecords, match="1 × keyless"):
        copy_topic(logs, "events", "new", partitions=2)
    assert logs.topics() == ["events"]
