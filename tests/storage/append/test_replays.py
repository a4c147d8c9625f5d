"""A micro-batch that is run again after a crash, under other settings: each row is in the log or among the dead letters, once. No JVM."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from lastword import ArrowTopic, InvalidRecords, LogDir
from lastword.storage.append.append import append_rows
from lastword.storage.append.requests import AppendStats, MicroBatch
from lastword.storage.append.writing import ArrowRows
from lastword.storage.delta import crash_points
from lastword.storage.delta.crash_points import CrashPoint
from lastword.storage.ledger.decisions import Decision, Kind
from tests.other_processes import in_another_process

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lastword.storage.append.plan import AppendPlan, Written

#: Many of these take half a second or more; `make quick` leaves them to `make test`.
pytestmark = pytest.mark.long

_BATCH: Final = MicroBatch(query_id="q", query_name="files", batch_id=0)
_DAY_MS: Final = 86_400_000
#: Rows that are taken under some settings and refused under others, told apart by how their values begin.
_ROWS: Final = pa.table(
    {
        "key": pa.array(["a", None, "b", "c", "d", None]),
        "value": pa.array(["plain", "keyless", "large" + "x" * 2_000, "old", "elsewhere", "keyless and large" + "x" * 2_000]),
        "partition": pa.array([0, 0, 0, 1, 5, 1], pa.int32()),
    }
)
_STRICT: Final = {"cleanup.policy": "compact", "max.message.bytes": 1_000}
_LAX: Final = {"cleanup.policy": "delete", "max.message.bytes": 100_000}

#: From which settings to which the topic changes between the two attempts.
_CHANGES: Final[Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]]] = {
    "more is refused": (_LAX, _STRICT),
    "less is refused": (_STRICT, _LAX),
    "keys are asked for": (_LAX, {**_LAX, "cleanup.policy": "compact"}),
    "size for keys": ({**_LAX, "max.message.bytes": 1_000}, {**_STRICT, "max.message.bytes": 100_000}),
    "the same": (_STRICT, _STRICT),
}


class _Crash(Exception):
    pass


def _run(topic: ArrowTopic, stats: AppendStats, micro_batch: MicroBatch = _BATCH) -> None:
    append_rows(topic.log, ArrowRows(_ROWS), now_ms=_DAY_MS, stats=stats, micro_batch=micro_batch)


def _found(topic: ArrowTopic) -> Counter[str]:
    """Return how often each row is in the log or among the dead letters."""
    values = [*topic.records().column("value").to_pylist(), *topic.dead_letters().column("value").to_pylist()]
    return Counter(value.decode().rstrip("x") for value in values)


def _run_until(topic: ArrowTopic, point: CrashPoint) -> None:
    """Run the micro-batch in a process that dies at a point."""

    def reached(found: CrashPoint) -> None:
        if found is point:
            raise _Crash

    with crash_points.hook(reached), pytest.raises(_Crash):
        _run(topic, AppendStats())


@pytest.fixture(name="made")
def _made(tmp_path: Path) -> Callable[[Mapping[str, Any]], ArrowTopic]:
    def make(config: Mapping[str, Any]) -> ArrowTopic:
        topic = LogDir(tmp_path).create_topic("fruit", partitions=2, config=config)
        topic.log.ledger.append([Decision(kind=Kind.QUERY, time_ms=0, name="files", details={"query_id": "q"})])
        return topic

    return make


@pytest.mark.parametrize("point", [CrashPoint.APPEND_PLANNED, CrashPoint.DEAD_LETTERS_WRITTEN, CrashPoint.APPEND_COMMITTED])
@pytest.mark.parametrize("change", _CHANGES.values(), ids=list(_CHANGES))
def test_a_replay_under_other_settings_loses_and_doubles_no_row(
    made: Callable[[Mapping[str, Any]], ArrowTopic],
    point: CrashPoint,
    change: tuple[Mapping[str, Any], Mapping[str, Any]],
) -> None:
    """In a new process, and once more in another."""
    topic = made(change[0])
    _run_until(topic, point)
    topic.alter_config(change[1])
    for _ in range(2):
        _run(topic, AppendStats())
        assert set(_found(topic).values()) == {1}
        assert len(_found(topic)) == len(_ROWS)


@pytest.mark.parametrize("change", _CHANGES.values(), ids=list(_CHANGES))
def test_an_attempt_that_is_overtaken_refuses_by_the_newest_settings(
    made: Callable[[Mapping[str, Any]], ArrowTopic], change: tuple[Mapping[str, Any], Mapping[str, Any]]
) -> None:
    """Another appender commits and the settings change after the dead letters are written and before the log is."""
    topic = made(change[0])
    came: list[CrashPoint] = []

    def reached(point: CrashPoint) -> None:
        if point is CrashPoint.DEAD_LETTERS_WRITTEN and not came:
            came.append(point)
            topic.alter_config(change[1])
            topic.append([{"key": "other", "value": "other"}])

    with crash_points.hook(reached):
        _run(topic, AppendStats())
    found = _found(topic)
    assert set(found.values()) == {1}
    assert len(found) == len(_ROWS) + len(came)


def test_a_query_that_is_told_to_fail_meanwhile_leaves_its_first_dead_letters_until_it_goes_on(
    made: Callable[[Mapping[str, Any]], ArrowTopic],
) -> None:
    """on.invalid = fail at the second attempt, dead-letter at the third."""
    topic = made(_STRICT)
    _run_until(topic, CrashPoint.DEAD_LETTERS_WRITTEN)
    failing = MicroBatch(query_id="q", query_name="files", batch_id=0, fail_on_invalid=True)
    with pytest.raises(InvalidRecords):
        _run(topic, AppendStats(), failing)
    assert topic.records().num_rows == 0
    _run(topic, AppendStats())
    assert set(_found(topic).values()) == {1}
    assert len(_found(topic)) == len(_ROWS)


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"delta.setTransactionRetentionDuration": "interval 0 hours"},
        {"delta.checkpointPolicy": "v2"},
        {"delta.logRetentionDuration": "interval 0 hours"},
    ],
    ids=["plain", "application ids expire", "other checkpoints", "no history"],
)
def test_what_was_appended_is_known_when_its_commit_is_gone(
    made: Callable[[Mapping[str, Any]], ArrowTopic], properties: dict[str, str]
) -> None:
    """The micro-batch of a query and the key of a batch call, by a checkpoint of Delta alone, whatever somebody set on the table.

    By who opens the topic then, and by who has had it open since.
    """
    topic = made(_LAX)
    _run(topic, AppendStats(), MicroBatch(query_id="q", query_name="files", batch_id=7))
    topic.append(_ROWS[:1], idempotency_key="load-7")
    if properties:
        DeltaTable(topic.log.paths.log).alter.set_table_properties(properties)
    topic.append(_ROWS[:1])
    DeltaTable(topic.log.paths.log).create_checkpoint()
    for commit in sorted(Path(topic.log.paths.log, "_delta_log").glob("*.json"))[:-1]:
        commit.unlink()
    before = topic.records().num_rows
    for number in (7, 6):
        again = LogDir(Path(topic.log.paths.root).parent).topic("fruit")
        _run(again, AppendStats(), MicroBatch(query_id="q", query_name="files", batch_id=number))
        assert again.append(_ROWS[:1], idempotency_key="load-7").replayed
    assert topic.records().num_rows == before
    _run(topic, AppendStats(), MicroBatch(query_id="q", query_name="files", batch_id=8))
    assert topic.records().num_rows > before


class _Overtaken(ArrowRows):
    """Rows of a micro-batch that another process commits as soon as this one has written them, and before it has committed any."""

    other: ArrowTopic | None = None

    def write(self, plan: AppendPlan) -> Written:
        """Write them, and let the other process be faster, once."""
        written = super().write(plan)
        if self.other is not None:
            other, self.other = self.other, None
            _run(other, AppendStats())
        return written


@pytest.mark.parametrize("count", [1, len(_ROWS)], ids=["no row refused", "some rows refused"])
def test_a_micro_batch_that_another_process_commits_meanwhile_has_its_dead_letters_once(
    made: Callable[[Mapping[str, Any]], ArrowTopic], count: int
) -> None:
    """Those of the other process count: this one puts none in their place, and takes none away."""
    topic = made(_STRICT)
    rows = _Overtaken(_ROWS[:count])
    rows.other = in_another_process(LogDir(Path(topic.log.paths.root).parent), "fruit")
    assert append_rows(topic.log, rows, now_ms=2 * _DAY_MS, stats=AppendStats(), micro_batch=_BATCH).replayed
    assert _found(topic) == dict.fromkeys(("plain", "keyless", "large", "old", "elsewhere", "keyless and large"), 1)
    assert {letter["refused_at"].timestamp() for letter in topic.dead_letters().to_pylist()} == {_DAY_MS / 1_000}
