"""The service as a whole: appends and cleaning side by side, changed while they run, killed while they work."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from lastword import LogDir, clock
from lastword.compaction.errors import Aborted, CommitStateUnknown, InvalidConfiguration, LogDirUnreachable, UserError
from lastword.service.service import Service
from lastword.service.settings import Settings
from lastword.status.health import ready
from lastword.status.troubles import troubles
from lastword.streaming.append.source_settings import RateSource
from tests.kill_app import EAGER, PARTITIONS, TOPIC
from tests.pictures import history, latest, rows
from tests.processes import ROOT
from tests.streaming.append.test_exactly_once import application, next_start, write_input
from tests.waiting import PATIENCE_SECONDS, until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from lastword.storage.log.topic_log import TopicLog

_EAGER = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}


#: A source for which Spark is started; it appends nothing for an hour.
_IDLE: dict[str, Any] = {"name": "idle", "topic": "idle", "format": "rate", "trigger": "1 hour"}


@pytest.mark.parametrize("sources", [[], [_IDLE]], ids=["no JVM", "Spark"])
def test_the_service_cleans_what_is_appended_and_heeds_what_is_changed_meanwhile(
    spark: SparkSession, tmp_path: Path, sources: list[dict[str, Any]]
) -> None:
    """At a tick of 100 ms, by a thread or a query; paused, resumed, with another policy; a cleaner that dies is started again."""
    settings = {
        "log_dir": str(tmp_path / "logs"),
        "broker": {
            "log.cleaner.backoff.ms": 100,
            "log.cleaner.threads": 2,
            "log.initial.task.delay.ms": 0,
            "log.retention.check.interval.ms": 200,
        },
        "topics": {
            "compacted": {"partitions": 2, "config": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}},
            "deleted": {"config": {"cleanup.policy": "delete", "retention.ms": "1h"}},
            "idle": {},
        },
        "sources": sources,
    }
    service = Service(Settings.model_validate(settings))
    assert (service.logs.session is None) is (not sources)
    running = threading.Thread(target=service.run)
    running.start()
    try:
        topic, old = service.logs.topic("compacted"), service.logs.topic("deleted")
        old.append(rows("a=1", timestamp_ms=1_000))
        topic.append(rows("a=1 a=2", partition=0))
        topic.roll()
        until(lambda: history(topic, 0) == ["1 a=2"])
        until(lambda: history(old) == [])

        topic.pause(1)
        topic.append(pa.concat_tables([rows("b=1 b=2", partition=1), rows("a=3", partition=0)]))
        topic.roll()
        until(lambda: history(topic, 0) == ["2 a=3"])
        assert len(history(topic, 1)) == 2
        topic.resume(1)
        until(lambda: history(topic, 1) == ["1 b=2"])

        topics, times = service.scheduler.topics, itertools.count()

        def dying() -> Sequence[TopicLog]:
            if next(times) == 0:
                message = "whether the swap was written cannot be found out"
                raise CommitStateUnknown(message)
            return topics()

        service.scheduler.topics = dying
        until(lambda: service.dead_cleaners == 1)
        topic.append(rows("a=4", partition=0))
        topic.roll()
        until(lambda: history(topic, 0) == ["3 a=4"])
        assert service.scheduler.counts.failures == 0
        service.logs.delete_topic("compacted")
        until(lambda: len(service.scheduler.topics()) == 2)
    finally:
        service.stop()
        running.join(PATIENCE_SECONDS)
    assert not running.is_alive()


def test_a_topic_that_cannot_be_read_holds_up_no_other_and_a_log_dir_that_goes_away_ends_the_service(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A spoilt ledger is that topic's trouble; without the log.dir there is nothing left to do."""
    folder = tmp_path / "logs"
    settings = {"log_dir": str(folder), "broker": {"log.cleaner.backoff.ms": 100}, "topics": {"good": {"config": _EAGER}, "spoilt": {}}}
    service = Service(Settings.model_validate(settings))
    for file in (folder / "spoilt" / "ledger").glob("*.parquet"):
        file.write_bytes(b"no Parquet")
    service = Service(Settings.model_validate(settings))
    ended: list[BaseException] = []

    def run() -> None:
        try:
            service.run()
        except UserError as error:
            ended.append(error)

    running = threading.Thread(target=run)
    running.start()
    try:
        topic = service.logs.topic("good")
        topic.append(rows("a=1 a=2", partition=0))
        topic.roll()
        until(lambda: history(topic, 0) == ["1 a=2"])
        until(lambda: [one.name for one in service.watcher.standing.topics if one.error is not None] == ["spoilt"])
        assert service.watcher.standing.offline is None
        assert service.dead_cleaners == 0
        folder.rename(tmp_path / "elsewhere")
        running.join(PATIENCE_SECONDS)
        assert not running.is_alive()
        assert isinstance(ended[0], LogDirUnreachable)
        assert f"log.dir {folder} is not there any more" in str(ended[0])
    finally:
        service.stop()
        running.join(PATIENCE_SECONDS)


def test_a_service_goes_on_when_the_topics_of_all_its_sources_are_deleted(spark: SparkSession, tmp_path: Path) -> None:
    """By another process. The other topics still need the service; nobody is told that the sources do not run."""
    settings = {
        "log_dir": str(tmp_path / "logs"),
        "broker": {"log.cleaner.backoff.ms": 100},
        "topics": {"idle": {}, "busy": {}, "kept": {"config": _EAGER}},
        "sources": [
            {"name": "idle", "topic": "idle", "format": "rate", "trigger": "1 hour"},
            {"name": "busy", "topic": "busy", "format": "rate"},
        ],
    }
    service = Service(Settings.model_validate(settings))
    service.watcher.interval_seconds = 0.2
    running = threading.Thread(target=service.run)
    running.start()
    try:
        until(lambda: [one.progressed_ms is not None for one in service.watcher.standing.queries] == [True, True])
        for name in ("idle", "busy"):
            command = [sys.executable, "-m", "lastword", "topics", "delete", name, "--yes", "--log-dir", service.logs.location]
            subprocess.run(command, cwd=ROOT, timeout=PATIENCE_SECONDS, check=True)  # noqa: S603
        topic = service.logs.topic("kept")
        topic.append(rows("a=1 a=2", partition=0))
        topic.roll()
        until(lambda: history(topic, 0) == ["1 a=2"] or not running.is_alive())
        assert running.is_alive()
        until(lambda: not service.watcher.standing.queries)
    finally:
        service.stop()
        running.join(PATIENCE_SECONDS)
    assert not running.is_alive()


def test_a_source_that_fails_is_named_and_comes_back_by_itself_beside_the_others(spark: SparkSession, tmp_path: Path) -> None:
    """A folder and a topic that are made later, rows that stop a query until its setting is another one; the others append meanwhile."""
    folder = tmp_path / "later"
    files = {"format": "json", "key": ["id"], "schema": "id string"}
    settings = {
        "log_dir": str(tmp_path / "logs"),
        "topics": {"fruit": {"config": {"cleanup.policy": "compact"}}},
        "sources": [
            {"name": "made-up", "topic": "fruit", "format": "rate"},
            {"name": "no-folder", "topic": "fruit", "path": str(folder), **files},
            {"name": "no-topic", "topic": "later", "format": "rate"},
            {"name": "bad-condition", "topic": "fruit", "path": str(tmp_path), "tombstone": "id = = 1", **files},
        ],
    }
    service = Service(Settings.model_validate(settings), longest_restart_seconds=1)
    service.watcher.interval_seconds = 0.2
    running = threading.Thread(target=service.run)
    running.start()

    def down() -> set[str]:
        return {one.name for one in service.watcher.standing.queries if not one.active}

    try:
        until(lambda: down() == {"no-folder", "no-topic", "bad-condition"})
        reasons = " ".join(ready(service.watcher.standing, heartbeat_ms=clock.now_ms(), now_ms=clock.now_ms()).reasons)
        assert "append query no-folder of topic fruit is not running: " in reasons
        assert "topic later does not exist" in reasons
        found = [one.text for one in troubles(service.watcher.standing, clock.now_ms())]
        assert len([text for text in found if "in a row; the next start is at " in text]) >= 1
        folder.mkdir()
        (folder / "a.json").write_text('{"id":"from a file"}\n')
        service.logs.create_topic("later")
        until(lambda: down() == {"bad-condition"})
        until(lambda: "from a file" in latest(service.logs.topic("fruit")))
        assert running.is_alive()
    finally:
        service.stop()
        running.join(PATIENCE_SECONDS)
    assert not running.is_alive()


def test_a_command_ends_with_the_error_of_its_source(spark: SparkSession, tmp_path: Path) -> None:
    """One that cannot be started, one whose query dies: one clear error, as the others have come to their end."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"id":"1"}\n{"id":null}\n')
    files = {
        "topic": "fruit",
        "format": "json",
        "key": ["id"],
        "schema": "id string",
        "trigger": "available-now",
        "path": str(tmp_path / "in"),
    }
    logs = LogDir(spark, str(tmp_path / "logs"))
    logs.create_topic("fruit", config={"cleanup.policy": "compact"})

    def run(*sources: dict[str, Any]) -> str:
        settings = {"log_dir": logs.location, "sources": list(sources), "http": {"listen": ""}}
        with pytest.raises(UserError) as caught:
            Service(Settings.model_validate(settings), cleaning=False).run()
        return str(caught.value)

    assert "cannot be read" in run({**files, "name": "nowhere", "path": str(tmp_path / "nothing")}, {**files, "name": "works"})
    assert latest(logs.topic("fruit")).keys() == {"1"}
    assert "\n" not in run({**files, "name": "strict", "on.invalid": "fail"})
    assert "nothing" in run({**files, "name": "follows", "path": str(tmp_path / "nothing"), "trigger": "1 second"})


def test_the_settings_of_a_topic_in_the_file_are_applied_at_each_start(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With old and new value; what the file does not name stays, and wrong partitions are refused with what to do."""

    def start(partitions: int | None = None, **config: Any) -> Service:
        named = {key.replace("_", "."): value for key, value in config.items()}
        topics = {"fruit": {"config": named} if partitions is None else {"partitions": partitions, "config": named}}
        return Service(Settings.model_validate({"log_dir": str(tmp_path / "logs"), "topics": topics}))

    topic = start(2, cleanup_policy="compact", retention_ms="7d").logs.topic("fruit")
    topic.alter_config({"retention.ms": "1d", "segment.bytes": "1MiB"})
    with caplog.at_level("WARNING"):
        start(cleanup_policy="compact,delete", retention_ms="1h")
    own = topic.log.decisions().overrides
    assert own == {"cleanup.policy": "compact,delete", "retention.ms": "3600000", "segment.bytes": "1048576"}
    assert "key=retention.ms old=86400000 new=3600000" in caplog.text
    assert "key=cleanup.policy old=compact new=compact,delete" in caplog.text
    sequence = topic.log.decisions().sequence
    start(2, cleanup_policy=["delete", "compact"], retention_ms=3_600_000)
    assert topic.log.decisions().sequence == sequence, "nothing is written that is so already"
    with pytest.raises(
        InvalidConfiguration, match=r"topic\.fruit\.partitions = 3: topic fruit has 2.*topics copy fruit NEW --partitions 3"
    ):
        start(3)

    def full(*_: object, **__: object) -> None:
        message = "No space left on device"
        raise OSError(28, message)

    with monkeypatch.context() as patch:
        patch.setattr(LogDir, "keep_settings", full)
        service = start(retention_ms="2h")
    assert topic.config.retention_ms == 3_600_000
    service._tidy()  # noqa: SLF001  what the loop does every ten seconds
    assert topic.config.retention_ms == 7_200_000


@pytest.mark.parametrize(
    ("triggers", "cleaning", "outlives"),
    [
        ((), True, True),
        (("available-now",), True, False),
        (("available-now", "5 seconds"), True, True),
        (("",), True, True),
        (("",), False, False),
    ],
)
def test_a_service_outlives_its_sources_unless_all_have_an_end_or_it_does_not_clean(
    spark: SparkSession, tmp_path: Path, triggers: tuple[str, ...], *, cleaning: bool, outlives: bool
) -> None:
    """A query without an end does not end by itself: its topic was deleted. `append --follow` has nothing else to do then."""
    sources = [{"name": f"made-up-{one}", "topic": "fruit", "format": "rate", "trigger": trigger} for one, trigger in enumerate(triggers)]
    service = Service(Settings.model_validate({"log_dir": str(tmp_path / "logs"), "sources": sources}), cleaning=cleaning)
    assert service.outlives_sources == outlives


def test_a_topic_that_took_the_name_of_another_is_tended_as_a_new_one_and_nothing_starts_after_the_end(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What was known of the old one is forgotten first. A log.dir that cannot be tidied is said, and ends nothing."""
    source = {"name": "made-up", "topic": "fruit", "format": "rate"}
    service = Service(Settings.model_validate({"log_dir": str(tmp_path / "logs"), "topics": {"fruit": {}}, "sources": [source]}))
    [old] = service._topic_logs()  # noqa: SLF001  what cleaner and watcher ask
    service.logs.delete_topic("fruit")
    new = service.logs.create_topic("fruit")
    assert service._topic_logs() == []  # noqa: SLF001
    [found] = service._topic_logs()  # noqa: SLF001
    assert found is not old
    assert found.decisions().topic_id == new.log.decisions().topic_id
    deleted = tmp_path / "logs/.deleted"
    deleted.rename(tmp_path / "elsewhere")
    deleted.write_bytes(b"no folder")
    with caplog.at_level("WARNING"):
        service._tidy()  # noqa: SLF001
    assert "the log.dir cannot be tidied" in caplog.text
    service.stop()
    with pytest.raises(Aborted, match="source made-up is not started: the service stops"):
        service._start(RateSource.model_validate(source))  # noqa: SLF001
    assert new.log.decisions().queries == {}


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_sigterm_while_the_session_starts_stops_the_service_once_it_has_started(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No source is started. What PySpark starts, a process with a preexec_fn, ignores the signal; what is started later does not."""

    def is_ignored_by_a_child() -> bool:
        program = "import signal; print(signal.getsignal(signal.SIGTERM) is signal.SIG_IGN)"
        command = [sys.executable, "-S", "-c", program]  # without site-packages: what starts there when it is measured has a handler
        return subprocess.check_output(command, preexec_fn=lambda: None, text=True) == "True\n"  # noqa: S603  as PySpark does

    ignored = []

    def starting(**_: object) -> SparkSession:
        ignored.append(is_ignored_by_a_child())
        os.kill(os.getpid(), signal.SIGTERM)
        return spark

    monkeypatch.setattr("lastword.service.signals.spark_session", starting)
    before = signal.getsignal(signal.SIGTERM)
    source = {"name": "made-up", "topic": "fruit", "format": "rate"}
    service = Service(Settings.model_validate({"log_dir": str(tmp_path / "logs"), "topics": {"fruit": {}}, "sources": [source]}))
    assert (ignored, is_ignored_by_a_child(), signal.getsignal(signal.SIGTERM)) == ([True], False, before)
    running = threading.Thread(target=service.run)
    running.start()
    try:
        running.join(PATIENCE_SECONDS)
        assert not running.is_alive()
    finally:
        service.stop()
        running.join(PATIENCE_SECONDS)
    assert service.logs.topic("fruit").log.decisions().queries == {}


def test_a_cleaner_that_dies_again_and_again_is_started_later_each_time_and_soon_once_it_had_ticked_for_long(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Five minutes at the most, however often; all deaths are counted."""
    service = Service(Settings.model_validate({"log_dir": str(tmp_path / "logs")}))
    dead: Any = SimpleNamespace(error=lambda: None)

    def delays(deaths: int) -> list[float]:
        return [service._count_dead_cleaner(dead) for _ in range(deaths)]  # noqa: SLF001  eleven hundred queries would take an hour

    assert delays(11) == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    assert set(delays(1_100)) == {300}
    service.scheduler.counts.last_tick_ms = clock.now_ms() + 200_000
    assert delays(1) == [300]
    service.scheduler.counts.last_tick_ms = clock.now_ms() + 400_000
    assert delays(1) == [1]
    service.scheduler.counts.last_tick_ms = clock.now_ms()
    assert delays(2) == [2, 4]
    assert service.dead_cleaners == 1_115


_KILLS = [("CLEANING_PLANNED", 1, "group"), ("SWAPPING", 1, "group"), ("SWAP_COMMITTED", 1, "python"), ("RECEIPT_WRITTEN", 1, "group")]
#: From here on each of them hits at least once: it is drawn five times.
_ENOUGH_KILLS = 40


def _survivors(spark: SparkSession, log_dir: Path) -> list[list[str]]:
    """Close and clean what is left, and return what is in the log then, without horizons: when a tombstone was stamped is chance."""
    logs = LogDir(spark, str(log_dir))
    topic = logs.topic(TOPIC)
    topic.roll()
    while topic.clean(force=True):
        pass
    report = topic.verify()
    assert report.ok, report.problems
    assert [one.end_offset for one in topic.receipts()]
    return [[line.split(" @")[0] for line in history(topic, partition)] for partition in range(PARTITIONS)]


def _prepared(spark: SparkSession, log_dir: Path) -> dict[str, str]:
    """Make the topic with a clean section and a dirty one, so that the first tick has a swap to make; return what it holds."""
    topic = LogDir(spark, str(log_dir)).create_topic(TOPIC, partitions=PARTITIONS, config=EAGER)
    topic.append(rows("a=1 b=1 c=1 d=1 a=2"))
    topic.roll()
    topic.clean(force=True)
    topic.append(rows("b=2 e=1 e=2 d=2"))
    topic.roll()
    return latest(topic)


def _storm(spark: SparkSession, tmp_path: Path, files: int, kills: list[tuple[str, int, str]], seed: int) -> list[str]:
    """Run one input twice, with and without kills, and compare the logs; return the points of the kills that hit."""
    fold = write_input(tmp_path / "input", files, seed)
    fold |= _prepared(spark, tmp_path / "prepared")
    for folder in ("logs", "calm"):  # this process holds the lock of the one it wrote
        shutil.copytree(tmp_path / "prepared", tmp_path / folder)
    hits = [
        point
        for point, nth, whom in kills
        if application(tmp_path / "logs", tmp_path / "input", point, nth, whom, "cleaning") == -signal.SIGKILL
    ]
    for folder in ("logs", "calm"):
        next_start(tmp_path / folder, tmp_path / "input", cleaning=True)
    assert latest(LogDir(spark, str(tmp_path / "logs")).topic(TOPIC)) == fold
    assert _survivors(spark, tmp_path / "logs") == _survivors(spark, tmp_path / "calm")
    return hits


def test_killed_around_the_swap_the_log_equals_the_uninterrupted_one(spark: SparkSession, tmp_path: Path) -> None:
    """SIGKILL after its commit with the JVM left behind; every point is crashed in one JVM, and killed in `make torture`."""
    kills = _KILLS[2:3]
    assert _storm(spark, tmp_path, 2, kills, seed=1) == [point for point, _, _ in kills]


@pytest.mark.torture
def test_sigterm_in_the_middle_of_a_swap_lets_it_finish_and_exits_0(spark: SparkSession, tmp_path: Path) -> None:
    """Its receipt is written, and no other round begins: `test_rounds` in a process of its own."""
    write_input(tmp_path / "input", 6, seed=2)
    _prepared(spark, tmp_path / "prepared")
    shutil.copytree(tmp_path / "prepared", tmp_path / "logs")  # this process holds the lock of the one it wrote
    before = len(LogDir(spark, str(tmp_path / "prepared")).topic(TOPIC).receipts())
    assert application(tmp_path / "logs", tmp_path / "input", "SWAPPING", 1, "terminate", "cleaning") == 0
    topic = LogDir(spark, str(tmp_path / "logs")).topic(TOPIC)
    receipts = topic.receipts()[before:]
    assert len({one.table_version for one in receipts}) == 1
    assert all(one.total_ms is not None for one in receipts), "written by the cleaning, not found afterwards"
    assert topic.verify().ok


@pytest.mark.torture
@pytest.mark.timeout(3_600)
def test_killed_fifty_times_during_appends_and_cleaning(spark: SparkSession, tmp_path: Path) -> None:
    """By turns at a random time and at one of `_KILLS`, each of which hits, from a printed seed; LASTWORD_KILLS says how often."""
    seed = int(os.environ.get("LASTWORD_SEED", random.SystemRandom().randrange(10**6)))
    print(f"LASTWORD_SEED={seed}")  # noqa: T201
    draw = random.Random(seed)
    count = int(os.environ.get("LASTWORD_KILLS", "50"))
    kills = []
    for number in range(count):
        point, _, whom = _KILLS[number // 2 % len(_KILLS)] if number % 2 else ("TIME", 0, draw.choice(("group", "python")))
        kills.append((point, draw.randint(0, 4_000) if point == "TIME" else draw.randint(1, 2), whom))
    hits = _storm(spark, tmp_path, 3 * count, kills, seed)
    print(f"hits: {Counter(hits)}")  # noqa: T201
    assert len(hits) >= 0.8 * count
    assert count < _ENOUGH_KILLS or set(hits) == {"TIME", *(point for point, _, _ in _KILLS)}
