"""Offsets, segments and slices of an append against Kafka's walk, record by record."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from lastword.compaction.errors import InvalidRecords
from lastword.compaction.log.segments import ActiveSegment
from lastword.compaction.rows.input_columns import HEADERS, TIMESTAMP
from lastword.compaction.rows.numbering import Compression, Numbering, SegmentLimits

_RAW = Compression(key=1.0, rest=1.0, overhead=0.0)


def _rows(sizes: list[int], times_ms: list[int] | None = None, offsets: list[int] | None = None) -> pa.RecordBatch:
    times = pa.array([time * 1000 for time in times_ms or [0] * len(sizes)], pa.int64()).cast(TIMESTAMP)
    columns = {
        "timestamp": times,
        "key": pa.array([b"k" * min(size, 1) for size in sizes], pa.binary()),
        "value": pa.array([b"v" * max(0, size - 1) for size in sizes], pa.binary()),
        "headers": pa.nulls(len(sizes), HEADERS),
    }
    if offsets is not None:
        columns["offset"] = pa.array(offsets, pa.int64())
    return pa.record_batch(columns)


def _numbering(
    *, end: int = 0, label: int = 0, filled: int = 0, since_ms: int | None = None, most: int = 10, longest_ms: int = 99
) -> Numbering:
    active = ActiveSegment(partition=0, log_end_offset=end, label=label, size_bytes=filled, first_timestamp_ms=since_ms)
    return Numbering(active, SegmentLimits(segment_bytes=most, max_segment_ms=longest_ms), _RAW, "fruit")


def _parts(numbering: Numbering, rows: pa.RecordBatch, *, has_offsets: bool = False) -> list[tuple[int, int, int, int]]:
    offsets, parts = numbering.number(rows, has_offsets=has_offsets)
    return [(int(offsets[part.start]), int(offsets[part.end - 1]), part.segment, part.slice) for part in parts]


def test_the_picture_of_the_module() -> None:
    """Log end 100, active segment 60 with 3 of 10 bytes free: first offset, last offset, segment, slice."""
    numbering = _numbering(end=100, label=60, filled=3, since_ms=0)
    assert _parts(numbering, _rows([1] * 12)) == [(100, 106, 60, 100), (107, 111, 107, 107)]
    assert _parts(numbering, _rows([1] * 6)) == [(112, 116, 107, 107), (117, 117, 117, 117)]


def test_a_record_that_does_not_fit_opens_a_segment_and_one_that_is_larger_than_a_segment_has_one_of_its_own() -> None:
    """Kafka's shouldRoll: size + record > segment.bytes, unless the segment is empty; equality fits."""
    assert _parts(_numbering(), _rows([4, 6, 1, 30, 2])) == [(0, 1, 0, 0), (2, 2, 2, 2), (3, 3, 3, 3), (4, 4, 4, 4)]
    assert _parts(_numbering(end=5, filled=10, since_ms=0), _rows([1])) == [(5, 5, 5, 5)]


def test_a_record_that_is_later_than_segment_ms_opens_a_segment_and_an_earlier_one_does_not() -> None:
    """From the segment's first record on; equality is not later."""
    times = [1_000, 1_099, 1_100, 900, 1_199, 1_200]
    assert _parts(_numbering(), _rows([1] * 6, times)) == [(0, 1, 0, 0), (2, 4, 2, 2), (5, 5, 5, 5)]
    assert _parts(_numbering(end=3, label=1, filled=1, since_ms=0), _rows([1], [100])) == [(3, 3, 3, 3)]


def test_given_offsets_stay_and_name_the_segments() -> None:
    """Gaps stay; the first slice is the log end, wherever the first record stands."""
    numbering = _numbering(end=5, label=2, filled=8, since_ms=0)
    assert _parts(numbering, _rows([1, 1, 1], offsets=[7, 9, 20]), has_offsets=True) == [(7, 9, 2, 5), (20, 20, 20, 20)]
    assert _parts(numbering, _rows([], offsets=[]), has_offsets=True) == []
    for wrong in ([20], [21, 21], [30, 29]):
        with pytest.raises(InvalidRecords, match="two rows carry the same partition and offset"):
            numbering.number(_rows([1] * len(wrong), offsets=wrong), has_offsets=True)


def _walk(numbering: Numbering, records: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return (segment, slice) of each record, given as size and time: one record at a time."""
    active, limits = numbering.active, numbering.limits
    place, filled, first_ms = (active.label, active.log_end_offset), active.size_bytes, active.first_timestamp_ms
    found = []
    for offset, (size, time_ms) in enumerate(records, start=active.log_end_offset):
        if first_ms is not None and (filled + size > limits.segment_bytes or time_ms - first_ms > limits.max_segment_ms):
            place, filled, first_ms = (offset, offset), 0, None
        filled += size
        first_ms = time_ms if first_ms is None else first_ms
        found.append(place)
    return found


@pytest.mark.parametrize("seed", range(200))
def test_random_appends_are_split_as_kafka_walks(seed: int) -> None:
    """However they are cut into batches."""
    chance = random.Random(seed)
    is_new = chance.random() < 0.5
    filled, since_ms = (0, None) if is_new else (chance.randrange(1, 30), chance.randrange(50))
    given: dict[str, Any] = {
        "end": 40,
        "label": 40 if is_new else 7,
        "filled": filled,
        "since_ms": since_ms,
        "most": chance.choice([5, 20, 60]),
    }
    records = [(chance.randrange(9), chance.randrange(300)) for _ in range(chance.randrange(60))]
    expected = _walk(_numbering(**given), records)
    numbering, found, start = _numbering(**given), [], 0
    while start < len(records):
        batch = records[start : start + chance.randrange(1, 20)]
        offsets, parts = numbering.number(_rows([size for size, _ in batch], [time for _, time in batch]), has_offsets=False)
        assert offsets.tolist() == list(range(40 + start, 40 + start + len(batch)))
        assert [part.start for part in parts[1:]] == [part.end for part in parts[:-1]]
        found += [(part.segment, part.slice) for part in parts for _ in range(part.end - part.start)]
        start += len(batch)
    assert found == expected


def test_sizes_are_what_records_take_in_a_file() -> None:
    """The columns' compression, and what each record takes besides; headers count with the value."""
    active = ActiveSegment(partition=0, log_end_offset=0, label=0, size_bytes=0, first_timestamp_ms=None)
    compression = Compression(key=0.5, rest=0.25, overhead=1.0)
    headers = pa.array([None, [("h", b"1234567")], []], HEADERS)
    rows = pa.record_batch(
        {
            "timestamp": pa.array([0, 0, 0]).cast(TIMESTAMP),
            "key": pa.array([b"kk", b"kk", None]),
            "value": pa.array([b"vvvv", None, b"vvvv"]),
            "headers": headers,
        }
    )
    # 1 + 1 + 1, then 1 + 2 + 1, then 1 + 1
    assert _parts(Numbering(active, SegmentLimits(segment_bytes=7, max_segment_ms=9), compression, "f"), rows) == [
        (0, 1, 0, 0),
        (2, 2, 2, 2),
    ]
