"""`explain` of a topic in the states that its partitions can be in: the words that people and alerts read."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

import pytest

from lastword import LogDir
from lastword.compaction.planning.bounds import Bound, CheckpointReset
from lastword.compaction.planning.planner import Obstacle, Trigger
from lastword.streaming.cleaning.claims import Claims
from lastword.streaming.cleaning.failures import record_failure
from tests.clocks import at
from tests.pictures import DAY_MS, HOUR_MS, T0, rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from enum import Enum
    from pathlib import Path

    from lastword import PartitionReport, Topic
    from tests.golden import Golden

_COMPACT: Final = {"cleanup.policy": "compact"}
_EAGER: Final = {**_COMPACT, "min.cleanable.dirty.ratio": 0}


def _topic(folder: Path, **config: object) -> Topic:
    """Return a topic with a closed segment of two records of a key."""
    settings = {name.replace("_", "."): value for name, value in config.items()}
    topic = at(T0, at(T0, LogDir(folder)).create_topic("fruit", config={**_EAGER, **settings}))
    topic.append(rows("lime=1 lime=2", timestamp_ms=T0))
    topic.roll()
    return topic


def _eligible(folder: Path) -> list[PartitionReport]:
    return _topic(folder).explain()


def _overdue(folder: Path) -> list[PartitionReport]:
    topic = _topic(folder, min_cleanable_dirty_ratio=1, max_compaction_lag_ms="1h")
    return at(T0 + 2 * HOUR_MS, topic).explain()


def _horizon(folder: Path) -> list[PartitionReport]:
    topic = _topic(folder)
    topic.append(rows("lime=∅", timestamp_ms=T0))
    topic.roll()
    topic.clean()
    return at(T0 + 2 * DAY_MS, topic).explain()


def _forced(folder: Path) -> list[PartitionReport]:
    return _topic(folder, min_cleanable_dirty_ratio=1).explain(force=True)


def _below_ratio(folder: Path) -> list[PartitionReport]:
    return _topic(folder, min_cleanable_dirty_ratio=1).explain()


def _active(folder: Path) -> list[PartitionReport]:
    topic = at(T0, at(T0, LogDir(folder)).create_topic("fruit", config=_EAGER))
    topic.append(rows("lime=1 lime=2", timestamp_ms=T0))
    return topic.explain()


def _young(folder: Path) -> list[PartitionReport]:
    return _topic(folder, min_compaction_lag_ms="1h").explain()


def _open(folder: Path) -> list[PartitionReport]:
    topic = at(T0, at(T0, LogDir(folder)).create_topic("fruit", config=_EAGER))
    topic.transaction("prices-loader").append(rows("lime=1"))
    topic.roll()
    return topic.explain()


def _not_compacted(folder: Path) -> list[PartitionReport]:
    return _topic(folder, cleanup_policy="delete").explain()


def _paused(folder: Path) -> list[PartitionReport]:
    topic = _topic(folder)
    topic.pause()
    return topic.explain()


def _claimed(folder: Path) -> list[PartitionReport]:
    topic = _topic(folder)
    with Claims(claimed_bytes=0).hold(topic.log, 1):
        return at(T0, LogDir(folder).topic("fruit")).explain()


def _failed(folder: Path, *, max_failures: int = 9) -> list[PartitionReport]:
    topic = _topic(folder)
    state = topic.log.at()
    [partition] = state.partition_logs(now_ms=T0)
    error = OSError(5, "i/o error")
    record_failure(topic.log, partition, error, table_version=state.version, now_ms=T0, max_failures=max_failures)
    return topic.explain()


def _quarantined(folder: Path) -> list[PartitionReport]:
    return _failed(folder, max_failures=1)


_STATES: Final[dict[str, Callable[[Path], list[PartitionReport]]]] = {
    "eligible by its dirty ratio": _eligible,
    "overdue": _overdue,
    "a tombstone may go": _horizon,
    "forced": _forced,
    "below the dirty ratio": _below_ratio,
    "all in the active segment": _active,
    "younger than min.compaction.lag.ms": _young,
    "behind an open transaction": _open,
    "not compacted": _not_compacted,
    "paused": _paused,
    "claimed by another cleaner": _claimed,
    "waiting after a failure": _failed,
    "uncleanable": _quarantined,
}

#: The members of a report that have a fixed set of words.
_WORDS: Final[dict[str, type[Enum]]] = {"trigger": Trigger, "obstacle": Obstacle, "bound": Bound, "checkpoint_reset": CheckpointReset}


@pytest.mark.parametrize("state", _STATES)
def test_a_state_is_explained_as_it_was(tmp_path: Path, golden: Golden, state: str) -> None:
    """Each member of `PartitionReport`, as `explain --json` prints it."""
    golden.check(
        f"explain/{state.replace(' ', '-').replace('.', '-')}.json", [dataclasses.asdict(report) for report in _STATES[state](tmp_path)]
    )


def test_the_words_of_a_report(golden: Golden) -> None:
    """Every trigger, obstacle and bound, also those that need a lack of memory; receipts say the name of a trigger in small letters."""
    words = {name: {member.name.lower(): member.value for member in kind} for name, kind in _WORDS.items()}
    golden.check("explain/words.json", words)
