"""Ledgers that another version wrote: what this version does with a kind, a member or a setting that it does not know."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from lastword import InvalidConfiguration, LogDir, UnknownFormat
from lastword.storage.ledger.decisions import Decision, Kind, fold
from tests.golden import frozen_clock
from tests.pictures import T0, rows
from tests.stability.lives import LIVES

if TYPE_CHECKING:
    from pathlib import Path

#: Of these a member that is not known may say what must not be missed.
_STRICT = {Kind.PRODUCER}


@pytest.fixture
def logs(tmp_path: Path) -> LogDir:
    """Return a log.dir with two topics."""
    logs = LogDir(tmp_path)
    for name in ("fruit", "other"):
        logs.create_topic(name, config={"cleanup.policy": "compact"}).append(rows("lime=1"))
    return logs


def test_an_unknown_kind_stops_its_topic_and_no_other(logs: LogDir) -> None:
    """Reads, too: who may read what is decided in the ledger."""
    later: Any = SimpleNamespace(value="lease")
    with pytest.raises(UnknownFormat):
        logs.topic("fruit").log.ledger.append([Decision(kind=later, time_ms=T0)])
    topic = LogDir(logs.location).topic("fruit")
    methods = ("latest", "records", "offsets", "explain", "clean", "roll", "describe", "receipts", "readers", "stale_keys", "verify")
    for name in methods:
        with pytest.raises(UnknownFormat, match=r"does not know \(lease; .*nothing is damaged or changed"):
            getattr(topic, name)()
    with pytest.raises(UnknownFormat):
        topic.append(rows("lime=2"))
    assert logs.topics() == ["fruit", "other"]
    assert logs.topic("other").append(rows("lime=2")).record_count == 1


def test_a_member_that_is_not_known_is_passed_over(tmp_path: Path) -> None:
    """In rows of each kind but of `producer`."""
    with frozen_clock(T0):
        logs = LogDir(tmp_path)
        ledgers = [life(logs).log.ledger.rows() for life in LIVES]
    refused, seen = set(), set()
    for ledger in ledgers:
        for kind in {row.kind for row in ledger if row.kind is not Kind.CONFIG}:  # whose members are the settings
            seen.add(kind)
            try:
                fold([replace(row, details={**row.details, "added_later": 1}) if row.kind is kind else row for row in ledger])
            except TypeError:
                refused.add(kind)
    assert refused == _STRICT
    assert seen == set(Kind) - {Kind.CONFIG}


@pytest.mark.parametrize("details", [{"segment.color": "red"}, {"cleanup.policy": "squeeze"}])
def test_a_setting_that_is_not_known_stops_appends_and_not_reads(logs: LogDir, details: dict[str, str]) -> None:
    """Also a value that is not known. Only a version that knows the setting takes it back."""
    [setting] = details
    logs.topic("fruit").log.ledger.append([Decision(kind=Kind.CONFIG, time_ms=T0, details=details)])
    topic = LogDir(logs.location).topic("fruit")
    assert len(topic.latest()) == 1
    with pytest.raises(InvalidConfiguration, match=setting):
        topic.append(rows("lime=2"))
    for changes in ({"segment.ms": "1h"}, {setting: None}):
        with pytest.raises(InvalidConfiguration, match=setting):
            topic.alter_config(changes)
