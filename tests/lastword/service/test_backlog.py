"""What waits in a source, from progress as Spark reports it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from lastword.service.backlog import read_backlog
from lastword.status.standing import Backlog


def _source(end: Any = None, latest: Any = None, **metrics: str) -> Any:
    texts = [json.dumps(offset) if isinstance(offset, dict) else offset for offset in (end, latest)]
    return SimpleNamespace(endOffset=texts[0], latestOffset=texts[1], metrics=metrics)


@pytest.mark.parametrize(
    ("source", "backlog"),
    [
        (_source({"t": {"0": 5, "1": 7}}, {"t": {"0": 15, "1": 7}}), Backlog(count=10, unit="offsets")),
        (_source({"t": {"0": 5}}, {"t": {"0": 5, "1": 3}, "u": {"0": 2}}), Backlog(count=5, unit="offsets")),
        (_source({"t": {"0": 5}}, {"t": {"0": 4}}), Backlog(count=0, unit="offsets")),
        (_source(None, {"t": {"0": 4}}), Backlog(count=4, unit="offsets")),
        (_source({"t": {"0": 5}}, None, maxOffsetsBehindLatest="12"), Backlog(count=12, unit="offsets")),
        (_source({"t": {"0": 5}}, None, maxOffsetsBehindLatest="NaN"), None),
        (_source({"files": 3}, {"files": 4, "waiting": 17}), Backlog(count=17, unit="files")),
        (_source("{'t': {'0': 5, '1': 7}}", "{'t': {'0': 15, '1': 7}}", maxOffsetsBehindLatest="3"), Backlog(count=10, unit="offsets")),
        (_source("{'files': 3}", "{'files': 4, 'waiting': 17}"), Backlog(count=17, unit="files")),
        (_source({"files": 3}, None), None),
        (_source("{[]: 1}", "{[]: 1}"), None),
        (_source("5", "6"), None),
        (_source("no JSON", "null"), None),
    ],
)
def test_the_backlog_of_a_source(source: Any, backlog: Backlog | None) -> None:
    """Kafka's positions, the metric of its source, the file source, and sources that report nothing of the kind.

    Offsets are JSON, as of Spark 4.2, or what Python writes, as of Spark 4.0 and 4.1.
    """
    assert read_backlog([source]) == backlog


def test_the_backlogs_of_several_sources_are_added() -> None:
    """A source that reports none adds none."""
    one = _source({"t": {"0": 0}}, {"t": {"0": 2}})
    assert read_backlog([one, _source(), one]) == Backlog(count=4, unit="offsets")
    assert read_backlog([]) is None
