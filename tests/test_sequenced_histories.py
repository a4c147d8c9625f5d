"""Events with source sequences in any order and batching, with replays, cleaning and a second process, against a fold in plain Python."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from lastword import InvalidRecords, LogDir, copy_topic
from lastword.storage.log.topic_log import TopicLog
from tests.clocks import at
from tests.other_processes import in_another_process
from tests.pictures import DAY_MS, HOUR_MS, T0, by_arrow, delete_records, latest, log

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from lastword import ArrowTopic
    from lastword.storage.append.requests import AppendResult

Event = tuple[str, int, "str | None"]

_CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.bytes": "4096", "delete.retention.ms": "1d"}


def _append(topic: ArrowTopic, events: Sequence[Event], now_ms: int) -> AppendResult:
    keys, sequences, values = zip(*events, strict=True)
    table = pa.table({"key": pa.array(keys), "value": pa.array(values, pa.string()), "source_sequence": pa.array(sequences, pa.int64())})
    return at(now_ms, topic).append(table)


def _events(drawn: str) -> list[Event]:
    words = [word.partition("@") for word in drawn.split()]
    found = [(key, sequence.partition("=")) for key, _, sequence in words]
    return [(key, int(number), None if value == "∅" else value) for key, (number, _, value) in found]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8))
def test_any_order_and_any_batching_end_in_the_same_table(seed: int, tmp_path: Path) -> None:
    """Any order and any batching end in the same table."""
    chance = random.Random(seed)
    keys = [f"k{number}" for number in range(chance.randrange(1, 15))]
    events: list[Event] = [
        (chance.choice(keys), number, None if chance.random() < 0.2 else f"v{number}") for number in range(chance.randrange(10, 120))
    ]
    truth = {key: value for key, _, value in events}
    truth = {key: value for key, value in truth.items() if value is not None}
    arrivals = [*events, *chance.choices(events, k=len(events) // 3)]
    if chance.random() < 0.3:
        arrivals = [*events, *events[chance.randrange(len(events)) :]]  # a connector that begins again
    else:
        chance.shuffle(arrivals)
    logs = LogDir(tmp_path)
    topic = logs.create_topic("t", partitions=chance.randrange(1, 4), config=_CONFIG)
    doors, now_ms, late, appended = [topic, by_arrow(topic)], T0, 0, 0
    while arrivals:
        size = chance.choice((1, 3, 20))
        batch, arrivals = arrivals[:size], arrivals[size:]
        done = _append(chance.choice(doors), batch, now_ms)
        late, appended = late + done.late, appended + done.record_count
        assert done.late + done.record_count == len(batch)
        now_ms += chance.choice((0, 1000, HOUR_MS // 60))
        if chance.random() < 0.3:
            topic.roll()
        if chance.random() < 0.3:
            at(now_ms, topic).clean()
        if chance.random() < 0.1:
            logs.cleaner.merge(topic.log, None, now_ms=now_ms)
    assert late + appended >= len(events)
    assert latest(topic) == truth
    topic.roll()
    at(now_ms, topic).clean()
    assert latest(topic) == truth
    assert all(topic.records().column("source_sequence").to_pylist())


def test_two_processes_that_append_at_once_put_nothing_back(tmp_path: Path) -> None:
    """Two processes that append at once put nothing back."""
    other = LogDir(tmp_path).create_topic("t", config=_CONFIG)
    coming = ["k@9=new"]

    class Overtaken(TopicLog):
        def commit(self, *arguments: Any, **options: Any) -> int:
            if coming:
                _append(other, _events(coming.pop()), T0)
            return super().commit(*arguments, **options)

    _append(other, _events("k@1=a"), T0)
    topic = in_another_process(LogDir(tmp_path), "t", kind=Overtaken)
    done = _append(topic, _events("k@5=old j@5=j"), T0)
    assert (done.late, done.record_count) == (1, 1)
    assert latest(topic) == {"k": "new", "j": "j"}


def test_a_deletion_is_remembered_until_cleaning_has_removed_it(tmp_path: Path) -> None:
    """A deletion is remembered until cleaning has removed it."""
    topic = LogDir(tmp_path).create_topic("t", config=_CONFIG)
    _append(topic, _events("k@10=a j@11=b k@20=∅"), T0)
    topic.roll()
    at(T0, topic).clean()
    assert _append(topic, _events("k@15=late"), T0).late == 1  # the tombstone is there
    topic.roll()
    at(T0 + 2 * DAY_MS, topic).clean()
    assert log(topic)[0] == "1 j=b"
    with pytest.raises(InvalidRecords, match=r"1 × unknown_order: source_sequence 0+15: the log does not know the key.*up to 0+20"):
        _append(topic, _events("k@15=late"), T0 + 2 * DAY_MS)
    assert _append(topic, _events("j@5=late"), T0 + 2 * DAY_MS).late == 1  # a record of the key is there
    assert _append(topic, _events("k@21=c j@19=d"), T0 + 2 * DAY_MS).record_count == 2
    assert latest(topic) == {"k": "c", "j": "d"}


@pytest.mark.parametrize("way", ["retention", "delete_records"])
def test_what_retention_removed_is_of_unknown_order_too(tmp_path: Path, way: str) -> None:
    """What retention removed is of unknown order too."""
    topic = LogDir(tmp_path).create_topic("t", config={**_CONFIG, "cleanup.policy": "compact,delete", "retention.ms": "1h"})
    _append(topic, _events("k@10=a j@20=b"), T0)
    topic.roll()
    if way == "retention":
        at(T0 + DAY_MS, topic).apply_retention()
    else:
        delete_records(topic, {0: -1})
    with pytest.raises(InvalidRecords, match="unknown_order"):
        _append(by_arrow(topic), _events("k@9=late"), T0 + DAY_MS)
    with pytest.raises(InvalidRecords, match="orders its records by source_sequence"):
        topic.append([{"key": "k", "value": "v"}])
    assert _append(topic, _events("k@20=c"), T0 + DAY_MS).record_count == 1


def test_a_topic_takes_sequences_or_producers(tmp_path: Path) -> None:
    """A topic takes sequences or producers."""
    topic = LogDir(tmp_path).create_topic("t", config=_CONFIG)
    row = {"key": "k", "value": "v", "source_sequence": 1}
    with pytest.raises(InvalidRecords, match="source_sequence and producer_id exclude each other"):
        topic.append([{**row, "producer_id": 1, "producer_epoch": 0, "sequence": 0}])
    with pytest.raises(InvalidRecords, match=r"column source_sequence is list<item: int64>: allowed is whole number"):
        topic.append([{**row, "source_sequence": [1]}])
    with pytest.raises(InvalidRecords, match=r"column source_sequence is string, and of texts 10 is below 9: .* say sequence_as = 'text'"):
        topic.append([{**row, "source_sequence": "10"}])
    with pytest.raises(InvalidRecords, match="sequence_as = 'time': allowed is text"):
        topic.append([row], sequence_as="time")
    with topic.transaction("t1") as transaction, pytest.raises(InvalidRecords, match="rows of a transaction come in its order"):
        transaction.append([row])
    assert topic.append([row]).record_count == 1


def test_a_copy_knows_what_is_late(tmp_path: Path) -> None:
    """By its records, and by the deletions that had left the log."""
    logs = LogDir(tmp_path)
    topic = logs.create_topic("t", config=_CONFIG)
    topic.append([{"key": "first", "value": "v"}])
    _append(topic, _events("k@10=a j@11=b k@20=∅"), T0)
    topic.roll()
    at(T0, topic).clean()
    at(T0 + 2 * DAY_MS, topic).clean()
    topic.roll()
    copy_topic(logs, "t", "u", partitions=3)
    copy = logs.topic("u")
    assert latest(copy) == {"first": "v", "j": "b"}
    assert _append(copy, _events("j@5=late"), T0 + 2 * DAY_MS).late == 1
    with pytest.raises(InvalidRecords, match="unknown_order"):
        _append(copy, _events("k@15=late"), T0 + 2 * DAY_MS)
