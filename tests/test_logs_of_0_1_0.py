"""Topics with source sequences of before the order became that of commits (ADR 0044) are read, appended to, cleaned and verified.

What is in them, and how it was written: tests/logs_of_0_1_0/README.md.
"""

from __future__ import annotations

import json
import tarfile
from typing import TYPE_CHECKING

import pytest

from lastword import ArrowTopic, InvalidRecords, LogDir
from tests.logs_of_0_1_0.write import ARCHIVE, DAY_MS, NEWEST, ROWS, SOURCES, T0, TRUNCATES, append, at

if TYPE_CHECKING:
    from pathlib import Path

#: Many of these take half a second; `make quick` leaves them to `make test`.
pytestmark = pytest.mark.long

_NOW_MS = T0 + 3 * DAY_MS


_OF_EVENTS = pytest.mark.parametrize("topic", SOURCES, indirect=True)


@pytest.fixture(params=[*SOURCES, ROWS])
def topic(request: pytest.FixtureRequest, tmp_path: Path) -> ArrowTopic:
    """A topic of a copy of the log.dir."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return LogDir(tmp_path / "log_dir").topic(request.param)


def _newest(topic: ArrowTopic) -> dict[int, str]:
    return {json.loads(row["key"])["id"]: json.loads(row["value"])["v"] for row in topic.latest().to_pylist()}


def _clean(topic: ArrowTopic) -> None:
    """Close the segments and clean twice, so that tombstones go."""
    at(_NOW_MS, topic).roll()
    for day in (0, 2):
        at(_NOW_MS + day * DAY_MS, topic).clean()


def test_it_is_as_it_was(topic: ArrowTopic) -> None:
    """The newest rows, a deletion that is still there, what cleaning did, and a TRUNCATE."""
    assert _newest(topic) == NEWEST
    assert topic.verify().problems == ()
    assert len(topic.records()) == 7
    assert bool(topic.log.decisions().truncations) == (topic.name in TRUNCATES)


def test_cleaning_goes_on(topic: ArrowTopic) -> None:
    """The deletion leaves, and no row does."""
    _clean(topic)
    assert _newest(topic) == NEWEST
    assert len(topic.records()) == len(NEWEST)
    assert topic.verify().problems == ()


@_OF_EVENTS
def test_events_of_today_are_newer_than_all_that_is_there(topic: ArrowTopic) -> None:
    """Then one that is late is left out; a TRUNCATE deletes rows of before, too."""
    done = append(topic, [("u", 1, "third", 20), ("c", 7, "new", 20), ("d", 6, None, 21), ("c", 3, "again", 22)], _NOW_MS)
    assert (done.late, done.refused) == (0, {})
    now = {1: "third", 2: "second", 3: "again", 4: "second", 7: "new"}
    assert _newest(topic) == now
    assert append(topic, [("u", 1, "late", 19), ("d", 7, None, 18), ("u", 3, "late", 5)], _NOW_MS).late == 3
    assert _newest(topic) == now
    _clean(topic)
    assert _newest(topic) == now
    assert append(topic, [("u", 2, "third", 30)], _NOW_MS).late == 0
    if topic.name in TRUNCATES:
        append(topic, [("t", None, None, 40), ("c", 8, "after", 41)], _NOW_MS)
        assert append(topic, [("u", 4, "late", 39)], _NOW_MS).late == 1
        now = {8: "after"}
    else:
        now = {**now, 2: "third"}
    _clean(topic)
    assert _newest(topic) == now
    assert topic.verify().problems == ()


@_OF_EVENTS
def test_events_that_come_again_across_the_upgrade_end_as_they_did(topic: ArrowTopic) -> None:
    """The connector begins again before it: such events count as newer, until the last one of each key has come again.

    A deletion whose tombstone was removed, and a TRUNCATE, come again as well.
    """
    again = [("u", 1, "second", 4), ("u", 2, "second", 4), ("d", 3, None, 4), ("u", 4, "second", 6), ("d", 5, None, 6)]
    truncate = [("t", None, None, 2)] if topic.name in TRUNCATES else [("d", 90, None, 2)]
    rows = [("c", row, "first", 3) for row in range(1, 7)]
    for change in [*truncate, *rows, *again]:
        done = append(topic, [change], _NOW_MS)
        assert (done.late, done.refused) == (0, {})
    assert _newest(topic) == NEWEST
    _clean(topic)
    assert _newest(topic) == NEWEST
    assert topic.verify().problems == ()


@pytest.mark.parametrize("topic", [ROWS], indirect=True)
def test_rows_with_their_own_sequence_have_one_order_before_and_after(topic: ArrowTopic) -> None:
    """Numbers are what they were: what was late is late, and a key of which a deletion was removed is not guessed."""
    assert append(topic, [("u", 1, "late", 3), ("u", 5, "late", 5)], _NOW_MS).late == 2
    with pytest.raises(InvalidRecords, match="unknown_order"):
        append(topic, [("u", 3, "before its deletion", 3)], _NOW_MS)
    assert append(topic, [("u", 1, "third", 7), ("d", 6, None, 7), ("c", 3, "again", 7)], _NOW_MS).late == 0
    _clean(topic)
    assert _newest(topic) == {1: "third", 2: "second", 3: "again", 4: "second"}
    assert topic.verify().problems == ()
