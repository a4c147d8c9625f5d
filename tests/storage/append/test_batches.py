"""How much of a table an append takes at a time: the log is the same on both sides of each limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pytest

from lastword import Envelope, InvalidRecords, LogDir
from lastword.change_data.events.event_rows import event_table
from lastword.compaction.rows.batches import BatchLimits, join_batches
from lastword.storage.append.append import append_rows
from lastword.storage.append.requests import AppendStats, MicroBatch
from lastword.storage.append.writing import ArrowRows

if TYPE_CHECKING:
    from pathlib import Path

    from lastword import ArrowTopic

#: Many of these take half a second or more; `make quick` leaves them to `make test`.
pytestmark = pytest.mark.long

_CONFIG: Final = {"cleanup.policy": "compact"}
_LIMITS: Final = (
    BatchLimits(batch_rows=1),
    BatchLimits(batch_rows=3, joined_rows=2),
    BatchLimits(batch_bytes=1),
    BatchLimits(batch_rows=2, max_combined_bytes=0),
    BatchLimits(batch_rows=2, max_combined_bytes=2**20),
)


def _append(topic: ArrowTopic, rows: ArrowRows) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Append rows as a micro-batch, and return the records and the dead letters."""
    batch = MicroBatch(query_id="q", query_name="rows", batch_id=0)
    append_rows(topic.log, rows, now_ms=5_000, stats=AppendStats(), micro_batch=batch)
    letters = topic.dead_letters().select(["reason", "key", "value"]).to_pylist()
    return topic.records().to_pylist(), letters


def _chunked(columns: dict[str, list[object]]) -> pa.Table:
    """Return a table in which each row is a chunk of its own."""
    whole = pa.table(columns)
    return pa.concat_tables([whole.slice(at, 1) for at in range(len(whole))])


@pytest.mark.parametrize("limits", _LIMITS, ids=repr)
@pytest.mark.parametrize("has_sequences", [False, True])
def test_rows_are_the_same_log_whatever_is_taken_at_a_time(tmp_path: Path, limits: BatchLimits, *, has_sequences: bool) -> None:
    """With refused rows, late ones, and rows whose source order is not that of the table."""
    logs = LogDir(str(tmp_path))
    columns: dict[str, list[object]] = {
        "key": ["a", "b", None, "a", "c", "b", "a", "d"],
        "value": ["1", "1", "1", "2", None, "2", "3", "1"],
        "partition": [0, 1, 0, 0, 1, 1, 0, 7],
    }
    if has_sequences:
        columns["source_sequence"] = [5, 6, 7, 4, 9, 8, 11, 12]
    given = _chunked(columns)
    whole, divided = (
        _append(logs.create_topic(name, partitions=2, config=_CONFIG), ArrowRows(given, limits=chosen))
        for name, chosen in (("whole", BatchLimits()), ("divided", limits))
    )
    assert divided == whole
    assert (len(whole[0]), len(whole[1])) == ((5, 2) if has_sequences else (6, 2))


@pytest.mark.parametrize("limits", _LIMITS, ids=repr)
def test_events_are_the_same_log_whatever_is_taken_at_a_time(tmp_path: Path, limits: BatchLimits) -> None:
    """Inserts, updates and a deletion in an envelope of Debezium, and one that is none."""
    logs = LogDir(str(tmp_path))
    keys: list[object] = [f'{{"id":{number % 3}}}' for number in range(7)]
    values: list[object] = [f'{{"op":"u","before":null,"after":{{"id":{at % 3},"n":{at}}},"source":{{"lsn":{at}}}}}' for at in range(6)]
    given = _chunked({"key": keys, "value": [*values, "no event"]})
    whole, divided = (
        _append(
            logs.create_topic(name, partitions=2, config=_CONFIG),
            ArrowRows(event_table(given, Envelope(), topic=name, limits=chosen), Envelope().policy, limits=chosen),
        )
        for name, chosen in (("whole", BatchLimits()), ("divided", limits))
    )
    assert divided == whole
    assert (len(whole[0]), len(whole[1])) == (6, 1)


def test_rows_without_a_sequence_are_refused_once_the_log_has_one(tmp_path: Path) -> None:
    """Without it a row could put an older state over a newer one; the message names the topic and the column."""
    topic = LogDir(str(tmp_path)).create_topic("fruit", config=_CONFIG)
    topic.append([{"key": "a", "value": "1", "source_sequence": 7}])
    with pytest.raises(InvalidRecords, match="topic fruit orders its records by source_sequence; add this column to the rows"):
        topic.append([{"key": "a", "value": "2"}])
    assert [row["value"] for row in topic.records().to_pylist()] == [b"1"]


def test_no_rows_are_joined_to_no_batch() -> None:
    """Not to an empty one, which would look into the log for nothing."""
    assert list(join_batches([])) == []
