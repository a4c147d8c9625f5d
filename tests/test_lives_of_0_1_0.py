"""A log.dir with rows of every kind in its ledgers, as version 0.1.0 wrote it, is what it was, and goes on.

What is in it, and how it was written: tests/logs_of_0_1_0/README.md.
"""

from __future__ import annotations

import dataclasses
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from lastword import LogDir
from lastword.storage.ledger.decisions import Kind
from tests.change_events import append, change
from tests.clocks import at
from tests.golden import files
from tests.logs_of_0_1_0.write_lives import ARCHIVE
from tests.pictures import DAY_MS, T0, latest, rows
from tests.stability.lives import order, source

if TYPE_CHECKING:
    from pathlib import Path

    from lastword import Topic
    from tests.golden import Golden

_TOPICS = ("damaged", "days", "fruit", "open", "orders", "read", "restored", "streamed")
#: These take half a second together with those of the other log.dir; `make quick` leaves them to `make test`.
pytestmark = pytest.mark.long


@pytest.fixture
def logs(tmp_path: Path) -> LogDir:
    """Return a copy of the log.dir."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return LogDir(tmp_path / "log_dir")


def _told(topic: Topic) -> dict[str, Any]:
    """Return what a topic says of itself."""
    description = dataclasses.asdict(topic.describe())
    del description["location"]
    return {
        "description": description,
        "receipts": [receipt.to_details() for receipt in topic.receipts()],
        "sources": [dataclasses.asdict(source) for source in topic.sources()],
        "readers": [dataclasses.asdict(reader) for reader in topic.readers()],
        "open transactions": [dataclasses.asdict(transaction) for transaction in topic.open_transactions()],
        "explain": [dataclasses.asdict(report) for report in topic.explain()],
        "latest": latest(topic),
        "schemas": topic.log.decisions().schemas,
        "targets": topic.log.decisions().targets,
        "columns": topic.log.decisions().columns,
    }


@pytest.mark.parametrize("name", _TOPICS)
def test_a_topic_is_what_it_was(logs: LogDir, golden: Golden, name: str) -> None:
    """What its ledger, its log and the files beside them say, after an upgrade; the golden file is not to change for what is there."""
    topic = at(T0, logs.topic(name))
    assert topic.verify().problems == ()
    golden.check(f"lives_of_0_1_0/{name}.json", _told(topic))


def test_the_ledgers_have_rows_of_every_kind(logs: LogDir) -> None:
    """A kind that comes later is in the log.dir of a later version."""
    assert tuple(logs.topics()) == _TOPICS
    assert files("lives_of_0_1_0") == set(_TOPICS)
    found = {row.kind for name in logs.topics() for row in logs.topic(name).log.ledger.rows()}
    assert found == set(Kind)


@pytest.mark.parametrize("name", [name for name in _TOPICS if name not in {"streamed", "orders"}])
def test_a_topic_goes_on(logs: LogDir, name: str) -> None:
    """It is appended to, rolled, cleaned and verified; an open transaction is ended."""
    topic = at(T0 + DAY_MS, logs.topic(name))
    for transaction in topic.open_transactions():
        topic.abort_transaction(transaction.producer_id)
    before = latest(topic)
    topic.append(rows("new=1 new=2", partition=0, timestamp_ms=T0 + DAY_MS))
    topic.roll()
    topic.clean(force=True)
    assert latest(topic) == {**before, "new": "2"}
    assert topic.verify().problems == ()


def test_a_topic_of_change_events_goes_on(logs: LogDir) -> None:
    """Its source is retired, and is taken again in the epoch that was begun."""
    topic: Any = at(T0 + DAY_MS, logs.topic("orders"))
    event = change("u", 3, source(1, 10), order(3))
    assert append(topic, event).late == 1
    topic.retire_source("mysql.shop", undo=True)
    assert append(topic, event).late == 0
    topic.roll()
    assert [receipt.removed["superseded"] for receipt in topic.clean(force=True)] == [5]
    assert set(latest(topic)) == {'{"id":2}', '{"id":3}'}
    assert topic.verify().problems == ()


def test_a_mirror_stays_one(logs: LogDir) -> None:
    """It knows its source, and takes no offsets of its own."""
    mirror = logs.topic("streamed").log.decisions().mirror
    assert mirror == {"identity": "k9", "query": "mirror", "source": "kafka:fruit"}
